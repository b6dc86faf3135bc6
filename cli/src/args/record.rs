//! Verbs that record programs: `record` and `attach`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::shared::{IdentityArgs, LingerArgs, LiveArgs};

#[derive(Debug, Args)]
#[command(
    after_help = "The exit code is the program's. 125: annals failed before the program started; 126 or 127: the program cannot be started."
)]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    pub(crate) run: NewRunArgs,
    /// Also capture the times and random numbers that the program draws, so that a replay serves them. Linux
    /// only; tested with Python and Node
    #[arg(long)]
    pub(crate) capture_nondet: bool,
    /// Store the value of this environment variable with the run; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) keep_env: Vec<String>,
    /// Expect unrecorded connections to this host that carry no model calls: list them, but do not exit with
    /// 1. "any" is every host; repeatable
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) expect_host: Vec<String>,
    /// Do not record standard input [default: a pipe or file is passed to the program and recorded; a
    /// terminal is not recorded]
    #[arg(long)]
    pub(crate) no_stdin: bool,
    #[command(flatten)]
    pub(crate) linger: LingerArgs,
    /// Program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Prints the variables that point a program to the proxy, and records until Ctrl-C or SIGTERM."
)]
pub(crate) struct AttachArgs {
    #[command(flatten)]
    pub(crate) run: NewRunArgs,
}

/// The new run of a recording, and the upstreams of its calls.
#[derive(Debug, Args)]
pub(crate) struct NewRunArgs {
    /// Name of the run [default: program name and start time; "attach" if there is no program]
    #[arg(long, value_name = "NAME")]
    pub(crate) run: Option<String>,
    /// Name of a variable whose value is removed from everything that is stored: bodies, addresses, headers,
    /// output; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) secret: Vec<String>,
    /// File with rules, in TOML, stored with the run: severities (`[[severity]]`), model prices
    /// (`[[price]]`), and what may differ in a replay (`[[matcher]]`)
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: Option<PathBuf>,
    /// Tag of the run; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) tag: Vec<String>,
    #[command(flatten)]
    pub(crate) whose: IdentityArgs,
    /// Do not store a memory of the run for `annals recall` when it ends
    #[arg(long, conflicts_with = "remember")]
    pub(crate) no_memory: bool,
    /// How long the run's memory is kept: an integer and s, min, h, d, w or y, for example 180d. `annals retain` deletes
    /// it after that [default: for ever, also when retention drops the run]
    #[arg(long, value_name = "TIME", conflicts_with = "no_memory")]
    pub(crate) memory_for: Option<String>,
    /// Add the commit log to the run's memory: each frame of a question with its time, hashes and beginnings of its
    /// bodies. `annals recall --projection commits` shows it [default: off]
    #[arg(long, conflicts_with = "no_memory")]
    pub(crate) with_commits: bool,
    /// Policy for sampling: a TOML file, or "default". A run that the sampling leaves out is dropped when it
    /// ends. If a daemon holds the store, the daemon's policy applies
    #[arg(long, value_name = "POLICY", env = "ANNALS_RETAIN")]
    pub(crate) retain: Option<PathBuf>,
    /// Do not fail if no request is recorded
    #[arg(long)]
    pub(crate) allow_empty: bool,
    #[command(flatten)]
    pub(crate) live: LiveArgs,
    /// Further variable with a base address, and the path after the address, for example MY_LLM_URL=/v1. Its
    /// upstream is its present value, else --upstream. NAME= leaves the variable unchanged. Repeatable
    #[arg(long, value_name = "NAME=/PATH")]
    pub(crate) env: Vec<String>,
}
