//! Verbs that decide how long runs stay: `retain`, `pin`, `unpin`, `flag`, `unflag` and `forget`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(
    after_help = "The policy applies to every namespace. Open and pinned runs are never dropped. Frames that a fork shares stay. Without --at, annals refuses a clock \
that is before the newest record or more than 400 days after it. docs/retention.md describes policies."
)]
pub(crate) struct RetainArgs {
    /// File with the policy, in TOML [default: the built-in policy]
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
    /// Only list what would be dropped
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Time at which the policy is applied: 2026-01-31T12:00:00Z, or +8d for eight days from now [default:
    /// now]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) at: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PinArgs {
    /// Run to pin
    pub(crate) run: String,
    /// Reason for the pin
    #[arg(long, value_name = "TEXT")]
    pub(crate) why: String,
}

#[derive(Debug, Args)]
pub(crate) struct UnpinArgs {
    /// Run to unpin
    pub(crate) run: String,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The built-in policy keeps flagged and escalated runs 90 days after their end; sampling never drops them. `annals pin` keeps a run for ever. \
What was recorded stays as it is: the flag is beside it, and goes with the run."
)]
pub(crate) struct FlagArgs {
    /// Run to flag, open or ended
    pub(crate) run: String,
    /// Reason for the flag
    #[arg(long, value_name = "TEXT")]
    pub(crate) why: String,
    /// Escalate the run: the severity `escalated` instead of `flagged`
    #[arg(long)]
    pub(crate) escalate: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UnflagArgs {
    /// Run whose flag to remove; its recorded severity stays
    pub(crate) run: String,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A blob that frames, states or keys of the store contain is refused, and they are named: forget them first. Deleted keys can be forgotten, too. \
docs/retention.md says when bytes disappear without `forget`."
)]
pub(crate) struct ForgetArgs {
    /// Full name of the run
    #[arg(conflicts_with_all = ["key", "blob"])]
    pub(crate) run: Option<String>,
    /// Forget this key with all its versions, instead of a run
    #[arg(long, value_name = "KEY", conflicts_with = "blob")]
    pub(crate) key: Option<OsString>,
    /// Keyspace of the key [default: default]
    #[arg(long, value_name = "NAME", requires = "key", conflicts_with_all = ["run", "blob"])]
    pub(crate) keyspace: Option<String>,
    /// Forget this stored blob, instead of a run: its BLAKE3 hash in 64 hexadecimal digits
    #[arg(long, value_name = "HASH")]
    pub(crate) blob: Option<String>,
    /// Reason; it stays in the store, so it must hold no content of what is forgotten
    #[arg(long, value_name = "TEXT")]
    pub(crate) why: String,
}
