//! Verbs of sessions' diagnostics: `diagnose` and `lessons`.

use std::path::PathBuf;

use clap::Args;

use super::read::duration_ns;

#[derive(Debug, Args)]
#[command(
    after_help = "A report is a JSON object: {\"sessionId\": ..., \"outcome\": \"accepted\" | \"rejected\" | \"rework\", \"injectedObservationIds\": [...], \"toolCallSummary\": [{\"tool\", \"file\", \"success\"}], \"filesModified\": [...], \"errorsEncountered\": [{\"message\", \"tool\", \"recoverable\"}], ...}. docs/diagnostics.md has all members. If a daemon or a recorder holds the store, that process stores the session."
)]
pub(crate) struct DiagnoseArgs {
    /// JSON file with the report of one session; - is standard input
    pub(crate) file: PathBuf,
    /// Only print the failure category; store nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Exit with 0 even if nothing was stored. The failure is printed on standard error [default: exit with 1]
    #[arg(long)]
    pub(crate) best_effort: bool,
    /// Lifetime of the session's row, for example 90d. Weights and their history stay [default: unlimited]
    #[arg(long, value_name = "DURATION", value_parser = duration_ns)]
    pub(crate) keep: Option<u64>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Without --weight-history and --session: the misleading observations with their weights, and the failed sessions by category. docs/diagnostics.md explains both."
)]
pub(crate) struct LessonsArgs {
    /// Count only sessions of this organisation
    #[arg(long, value_name = "ID")]
    pub(crate) org: Option<String>,
    /// Count only sessions of this project
    #[arg(long, value_name = "ID")]
    pub(crate) project: Option<String>,
    /// Count only sessions that were recorded at most this long ago, for example 30d [default: all]
    #[arg(long, value_name = "DURATION", value_parser = duration_ns)]
    pub(crate) within: Option<u64>,
    /// Print the changes of this observation's weight instead, oldest first
    #[arg(long, value_name = "OBSERVATION", conflicts_with_all = ["org", "project", "within", "session"])]
    pub(crate) weight_history: Option<String>,
    /// Print the row of this session instead, as JSON
    #[arg(long, value_name = "ID", conflicts_with_all = ["org", "project", "within"])]
    pub(crate) session: Option<String>,
}
