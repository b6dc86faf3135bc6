//! Verbs for keys and values: `get`, `put`, `del` and `scan`.

use std::ffi::OsString;

use clap::Args;

/// Options of the verbs for keys and values.
#[derive(Debug, Args)]
pub(crate) struct KeyspaceArgs {
    /// Keyspace of the key
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(crate) keyspace: String,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    pub(crate) key: OsString,
    #[command(flatten)]
    pub(crate) keyspace: KeyspaceArgs,
    /// Read the value as of this sequence number [default: the latest]
    #[arg(long, value_name = "SEQNO")]
    pub(crate) at: Option<u64>,
    /// List every stored version
    #[arg(long, conflicts_with_all = ["at", "raw"])]
    pub(crate) history: bool,
    /// Write only the exact bytes
    #[arg(long, conflicts_with = "json")]
    pub(crate) raw: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    pub(crate) key: OsString,
    /// Value, or - for standard input
    pub(crate) value: OsString,
    #[command(flatten)]
    pub(crate) keyspace: KeyspaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DelArgs {
    pub(crate) key: OsString,
    #[command(flatten)]
    pub(crate) keyspace: KeyspaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ScanArgs {
    /// List only keys with this prefix
    pub(crate) prefix: Option<OsString>,
    #[command(flatten)]
    pub(crate) keyspace: KeyspaceArgs,
    /// List in descending order
    #[arg(long)]
    pub(crate) reverse: bool,
    /// List at most this number of keys [default: all]
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
}
