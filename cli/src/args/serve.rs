//! Verbs that serve: `serve`, `token` and `mcp`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::shared::ProfileArgs;

#[derive(Debug, Args)]
#[command(
    after_help = "The daemon always listens at SOCKET in the store's directory, for its user only. Over TCP and HTTP a client needs a token. `annals token add` makes
one. If there is none, the daemon makes one and shows it at the start. Each option can also be set in the environment, except --allow-fork, and in the file, except --config:
socket, tcp, http, tls_cert, tls_key, http_host, no_auth, upstream, allow_host, profiles, slow_ms, idle_seconds, namespace_idle_seconds, retain, sweep_every, witness, witness_every, backup_to, backup_every, backup_keep, log, allow_fork (a list: the command and its arguments), and [[tokens]] with name, namespace, rights, profile, blake3, expires. An option wins over the environment, and the environment wins over the file.
On SIGHUP the daemon reads the tokens of --config and the files of --tls-cert and --tls-key again. If they are invalid, it keeps the old ones and logs why."
)]
pub(crate) struct ServeArgs {
    /// Also listen at this Unix socket
    #[arg(long, value_name = "PATH", env = "ANNALS_SOCKET")]
    pub(crate) socket: Option<PathBuf>,
    /// Also listen for Redis clients at this address, for example 127.0.0.1:7420; outside of the loopback it
    /// needs --tls-cert
    #[arg(long, value_name = "ADDRESS:PORT", env = "ANNALS_TCP")]
    pub(crate) tcp: Option<String>,
    /// Also listen for HTTP at this address, for example 127.0.0.1:7421; outside of the loopback it needs
    /// --tls-cert
    #[arg(long, value_name = "ADDRESS:PORT", env = "ANNALS_HTTP")]
    pub(crate) http: Option<String>,
    /// Require TLS over TCP and HTTP, with this certificate chain: a PEM file [default: no TLS]
    #[arg(long, value_name = "FILE", env = "ANNALS_TLS_CERT")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert: a PEM file
    #[arg(long, value_name = "FILE", env = "ANNALS_TLS_KEY")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Host name, with or without port, that HTTP requests may name besides this machine's; repeatable
    /// [default: none]
    #[arg(long, value_name = "HOST", env = "ANNALS_HTTP_HOST", value_delimiter = ',')]
    pub(crate) http_host: Vec<String>,
    /// Require no token over TCP and HTTP: every user and program of this machine can read and write
    #[arg(long, env = "ANNALS_NO_AUTH", value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) no_auth: bool,
    /// Address for model calls of the proxy, for all providers or one; repeatable [default: the provider's
    /// public address]
    #[arg(long, value_name = "[PROVIDER=]URL", env = "ANNALS_UPSTREAM", value_delimiter = ',')]
    pub(crate) upstream: Vec<String>,
    /// Host that the proxy may call; repeatable [default: all hosts]
    #[arg(long, value_name = "HOST", env = "ANNALS_ALLOW_HOST", value_delimiter = ',')]
    pub(crate) allow_host: Vec<String>,
    /// File with redaction profiles, in TOML [default: profiles.toml in the store's directory]
    #[arg(long, value_name = "FILE", env = "ANNALS_PROFILES")]
    pub(crate) profiles: Option<PathBuf>,
    /// Log commands that take longer than this, in milliseconds [default: 100]
    #[arg(long, value_name = "MS", env = "ANNALS_SLOW_MS")]
    pub(crate) slow_ms: Option<u64>,
    /// Close the connection of a Redis client after this idle time, in seconds [default: 0, never]
    #[arg(long, value_name = "SECONDS", env = "ANNALS_IDLE_SECONDS")]
    pub(crate) idle_seconds: Option<u64>,
    /// Close a namespace that no client uses after this time, in seconds; 0 means never [default: 300]
    #[arg(long, value_name = "SECONDS", env = "ANNALS_NAMESPACE_IDLE_SECONDS")]
    pub(crate) namespace_idle_seconds: Option<u64>,
    /// Drop runs by this policy: a TOML file, or "default" for the built-in policy [default: drop nothing]
    #[arg(long, value_name = "POLICY", env = "ANNALS_RETAIN")]
    pub(crate) retain: Option<PathBuf>,
    /// Time between two sweeps of --retain, for example 30min [default: 1h]
    #[arg(long, value_name = "TIME", env = "ANNALS_SWEEP_EVERY")]
    pub(crate) sweep_every: Option<String>,
    /// Add a checkpoint of the ledger to this folder, regularly; existing files are never changed
    #[arg(long, value_name = "DIR", env = "ANNALS_WITNESS")]
    pub(crate) witness: Option<PathBuf>,
    /// Time between two checkpoints of --witness, for example 10min [default: 1h]
    #[arg(long, value_name = "TIME", env = "ANNALS_WITNESS_EVERY")]
    pub(crate) witness_every: Option<String>,
    /// Make a backup of the store in this folder, regularly, and remove the oldest ones
    #[arg(long, value_name = "DIR", env = "ANNALS_BACKUP_TO")]
    pub(crate) backup_to: Option<PathBuf>,
    /// Time between two backups of --backup-to, for example 6h [default: 24h]
    #[arg(long, value_name = "TIME", env = "ANNALS_BACKUP_EVERY")]
    pub(crate) backup_every: Option<String>,
    /// Number of backups of --backup-to that are kept [default: 14]
    #[arg(long, value_name = "N", env = "ANNALS_BACKUP_KEEP")]
    pub(crate) backup_keep: Option<usize>,
    /// Let clients with a token of all rights continue a run with the command after `--`, as a fork, from the page
    /// or over HTTP. What they change in a fork, the command's tools act on
    #[arg(long, requires = "command")]
    pub(crate) allow_fork: bool,
    /// Command of --allow-fork
    #[arg(last = true, value_name = "CMD", requires = "allow_fork")]
    pub(crate) command: Vec<String>,
    /// Format of the log on standard error [default: human]
    #[arg(long, value_name = "FORM", env = "ANNALS_LOG")]
    pub(crate) log: Option<LogFormatArg>,
    /// File with further options, in TOML
    #[arg(long, value_name = "FILE", env = "ANNALS_CONFIG")]
    pub(crate) config: Option<PathBuf>,
}

/// Format of the daemon's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormatArg {
    /// Text lines for a person
    Human,
    /// One JSON object per line
    Json,
}

/// Actions on the tokens with which clients log in to a daemon.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenVerb {
    /// Make a token for the namespace and print it; it is never shown again
    Add(TokenAddArgs),
    /// List tokens without their secret text
    List,
    /// Make a new token in place of a stored one, with the same rights, and print it. The old one stays valid
    /// for a while
    Rotate(TokenRotateArgs),
    /// Revoke a token and close the connections that use it
    Revoke(TokenRevokeArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TokenAddArgs {
    /// Name of the token
    pub(crate) name: String,
    /// Rights of the token, separated by commas: record, read, redacted, operate [default: all; redacted with
    /// --profile]
    #[arg(long, value_name = "RIGHTS")]
    pub(crate) rights: Option<String>,
    /// Profile that redacts what the token's readers see: safe, or one of the daemon's --profiles; implies
    /// --rights redacted
    #[arg(long, value_name = "PROFILE")]
    pub(crate) profile: Option<String>,
    /// When the token expires: a time (RFC 3339) or a duration, for example 90d [default: never]
    #[arg(long, value_name = "TIME")]
    pub(crate) expires: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TokenRotateArgs {
    /// Name of the token
    pub(crate) name: String,
    /// How long the old token stays valid; 0s revokes it now
    #[arg(long, value_name = "TIME", default_value = "24h")]
    pub(crate) overlap: String,
    /// When the new token expires: a time (RFC 3339) or a duration, for example 90d [default: never]
    #[arg(long, value_name = "TIME")]
    pub(crate) expires: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TokenRevokeArgs {
    /// Name of the token
    pub(crate) name: String,
}

#[derive(Debug, Args)]
#[command(
    after_help = "An agent's program starts this command and speaks MCP with it. The store is read while others write to it. docs/mcp.md has the configuration for Claude Code, Codex, Cursor and VS Code."
)]
pub(crate) struct McpArgs {
    /// Also offer the tools that write to the store
    #[arg(long, conflicts_with = "profile")]
    pub(crate) write: bool,
    #[command(flatten)]
    pub(crate) reader: ProfileArgs,
}
