//! Verbs that run recorded programs again: `replay`, `fork` and `check`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::shared::{InputArgs, LiveArgs, NetworkArgs, ProfileArgs, RuleArgs};

#[derive(Debug, Args)]
#[command(
    after_help = "If a program was recorded, it runs again, and the recording answers every model call: no key, no network.
--all, --json, --raw and --as start no program. Exit code: 3 if anything was not as recorded, else the program's."
)]
pub(crate) struct ReplayArgs {
    /// Run to replay [default: the latest]
    #[arg(conflicts_with = "all")]
    pub(crate) run: Option<String>,
    /// Read and check every run; start no program
    #[arg(long, conflicts_with = "command")]
    pub(crate) all: bool,
    /// Write only the exact bytes of the outputs; start no program
    #[arg(long, conflicts_with = "json")]
    pub(crate) raw: bool,
    #[command(flatten)]
    pub(crate) reader: ProfileArgs,
    #[command(flatten)]
    pub(crate) rules: RuleArgs,
    /// Speed of the replayed answers
    #[arg(long, value_enum, default_value_t)]
    pub(crate) timing: TimingArg,
    /// Exit with 3 if the program's standard output or exit code differs from the recorded one or cannot be compared
    #[arg(long)]
    pub(crate) check_output: bool,
    /// Shuffle the order of overlapping answers with this seed, to find programs whose behaviour depends on
    /// response order
    #[arg(long, value_name = "SEED")]
    pub(crate) chaos: Option<u64>,
    /// What happens to a request without a recorded answer
    #[arg(long, value_enum, default_value_t)]
    pub(crate) on_divergence: DivergenceArg,
    /// Name of the new run, with --on-divergence live [default: RUN-live]
    #[arg(long, value_name = "NAME")]
    pub(crate) into: Option<String>,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    #[command(flatten)]
    pub(crate) live: LiveArgs,
    #[command(flatten)]
    pub(crate) input: InputArgs,
    /// Program to run instead of the recorded one
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// What happens to a request that is not in the recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum DivergenceArg {
    /// Answer with error 502 that says what differs
    #[default]
    Refuse,
    /// Send this and all later requests to their upstreams, and record them into a new run that replays alone
    Live,
}

/// Speed of replayed answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum TimingArg {
    /// As fast as the program reads them
    #[default]
    None,
    /// With the recorded delays
    Recorded,
}

#[derive(Debug, Args)]
#[command(
    after_help = "If RUN has a recorded program, the program runs. RUN answers its calls up to the fork point; later calls go
to the upstreams and are recorded into the new run. Otherwise, or with --no-run, the new run only shares the frames.
Exit code: 3 if the program's calls before the fork point differ from the recording, else the program's."
)]
pub(crate) struct ForkArgs {
    /// RUN@SEQ: the new run shares frames 1 to SEQ, or 1 to SEQ-1 if an option below changes frame SEQ
    pub(crate) from: String,
    /// Name of the new run [default: RUN-fork-SEQ]
    pub(crate) name: Option<String>,
    /// File with a new answer for the request of frame SEQ
    #[arg(long, value_name = "FILE")]
    pub(crate) response: Option<PathBuf>,
    /// Model for all requests from frame SEQ on
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Set a value in the request of frame SEQ only, for example $.temperature=0. A value that is not JSON is
    /// text; repeatable
    #[arg(long, value_name = "JSONPATH=VALUE", conflicts_with_all = ["response", "edit"])]
    pub(crate) set: Vec<String>,
    /// Set a value in every request from frame SEQ on; repeatable
    #[arg(long, value_name = "JSONPATH=VALUE")]
    pub(crate) set_all: Vec<String>,
    /// Edit the answer of frame SEQ in $VISUAL, $EDITOR or vi
    #[arg(long, conflicts_with = "response")]
    pub(crate) edit: bool,
    /// In the answer of frame SEQ, calls of tool OLD become calls of tool NEW
    #[arg(long, value_name = "OLD=NEW", conflicts_with_all = ["response", "edit"])]
    pub(crate) use_tool: Option<String>,
    /// Grade the fork: exit with 3 if it fails as RUN does, with 0 if it no longer fails. Forms: exit,
    /// regex:PATTERN, json:PATH=VALUE, cmd:COMMAND, run:RUN or judge:URL
    #[arg(long, value_name = "ORACLE")]
    pub(crate) oracle: Option<String>,
    /// File that replaces the result of tool call ID from frame SEQ on [default ID: the only new result in
    /// the request of frame SEQ]; repeatable
    #[arg(long, value_name = "[ID=]FILE")]
    pub(crate) tool_result: Vec<String>,
    /// File with rules, in TOML, stored with the new run [default: the rules of RUN]
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    #[command(flatten)]
    pub(crate) live: LiveArgs,
    #[command(flatten)]
    pub(crate) input: InputArgs,
    /// Start no program; only share the frames
    #[arg(long, conflicts_with_all = ["response", "edit", "use_tool", "oracle", "tool_result", "model", "set", "set_all", "rules", "command", "upstream", "cache_for", "reroll", "remember", "stdin", "refuse_quietly"])]
    pub(crate) no_run: bool,
    /// Program to run instead of the recorded one
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A folder stands for the *.tape files in it. An argument that ends in .tape is a tape; any other is a run.
If a folder has a file tapes.sums, its tapes must have the fingerprints that it lists.
Exit codes: 3 if anything drifted, is damaged or has another fingerprint than the listed one; 1 if something could not
be checked, is listed and missing, or is not listed."
)]
pub(crate) struct DriftArgs {
    /// Runs, tapes, or folders of tapes [default: a sample of the store's runs]
    #[arg(value_name = "RUN|TAPE|DIR", conflicts_with_all = ["sample", "seed"])]
    pub(crate) targets: Vec<String>,
    /// Number of runs in the sample [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) sample: Option<u64>,
    /// Seed of the sample [default: a new one, which is printed]
    #[arg(long, value_name = "SEED")]
    pub(crate) seed: Option<u64>,
    /// Also run each recorded program again with model calls answered from the recording
    #[arg(long)]
    pub(crate) programs: bool,
    /// Also report drift if a program's standard output differs from the recorded one
    #[arg(long)]
    pub(crate) check_output: bool,
    /// Also write the results to this file, as JUnit XML
    #[arg(long, value_name = "FILE")]
    pub(crate) junit: Option<PathBuf>,
    /// Write tapes.sums with the fingerprints of each DIR's tapes if all are as recorded
    #[arg(long, requires = "targets", conflicts_with_all = ["sample", "seed"])]
    pub(crate) write_sums: bool,
    #[command(flatten)]
    pub(crate) rules: RuleArgs,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    /// Host that programs may reach directly; repeatable
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) allow_host: Vec<String>,
    /// Program to run instead of each recorded one
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}
