//! Verbs that show runs: `runs`, `open`, `show`, `tail`, `diff` and `state`.

use clap::Args;

use super::shared::ProfileArgs;

fn key_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write a tag as KEY=VALUE".to_owned()),
    }
}

pub(super) fn duration_ns(text: &str) -> Result<u64, String> {
    annals::retention::parse_duration_ns(text).ok_or_else(|| "write a duration as 24h or 7d".to_owned())
}

#[derive(Debug, Args)]
pub(crate) struct RunsArgs {
    /// List only runs with this status
    #[arg(long, value_name = "STATUS", value_parser = ["open", "ok", "failed", "abandoned"])]
    pub(crate) status: Option<String>,
    /// List only runs with this severity
    #[arg(long, value_name = "SEVERITY", value_parser = ["debug", "normal", "flagged", "escalated"])]
    pub(crate) severity: Option<String>,
    /// List only runs that failed or were abandoned
    #[arg(long, conflicts_with = "status")]
    pub(crate) failed: bool,
    /// List only runs of this agent
    #[arg(long, value_name = "NAME")]
    pub(crate) agent: Option<String>,
    /// List only runs that were begun with this model, or that it answered
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// List only runs with this tag; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_and_value)]
    pub(crate) tag: Vec<(String, String)>,
    /// List only runs that began at most this long ago, for example 24h or 7d
    #[arg(long, value_name = "DURATION", value_parser = duration_ns)]
    pub(crate) within: Option<u64>,
    /// Also list the forks of blames
    #[arg(long)]
    pub(crate) blame_forks: bool,
    /// List only the newest N runs; 0 lists all [default: 50; with --json: 0]
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
}

#[derive(Debug, Args)]
#[command(after_help = SEARCH_HELP)]
pub(crate) struct SearchArgs {
    /// What to look for; several words are one question
    #[arg(required = true, value_name = "TEXT")]
    pub(crate) text: Vec<String>,
    /// Show at most N hits, up to 100 [default: 20]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) count: Option<u8>,
    /// Find runs with a question near to TEXT, in the memories of all tenants
    #[arg(long, conflicts_with = "rebuild")]
    pub(crate) meaning: bool,
    /// Make the index again before the search
    #[arg(long)]
    pub(crate) rebuild: bool,
    #[command(flatten)]
    pub(crate) reader: ProfileArgs,
}

const SEARCH_HELP: &str = "\
Finds messages, answers, arguments and results of tools, and bodies that are text. Frames that hold the text as it stands \
come first, then frames that hold most of its words or similar ones. A text that requests repeat is found in the \
first of them.
The first search indexes all frames, later ones the frames that came since. Recording is not slowed down.
With --meaning, the questions in agents' memory are compared, by the embedder that ANNALS_EMBEDDINGS_URL names or by the \
built-in one. Runs without an entry in memory are not found (docs/run-memory.md), nor are entries of another embedder.";

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which"))]
pub(crate) struct OpenArgs {
    /// The run
    #[arg(group = "which")]
    pub(crate) run: Option<String>,
    /// Open the newest run that failed or was abandoned; forks and live replays only if no other did. If none failed, the
    /// newest flagged or escalated run, with a note on standard error
    #[arg(long, group = "which")]
    pub(crate) last_failed: bool,
    /// Open the debugger page in a browser: serve the store on this machine until Ctrl-C, or use its daemon
    #[arg(long, conflicts_with = "profile")]
    pub(crate) web: bool,
    /// Open the terminal view at the frame to read first; without a terminal an error [default on a terminal]
    #[arg(long, conflicts_with_all = ["text", "web"])]
    pub(crate) tui: bool,
    /// Print one screen of text, also on a terminal [default without a terminal]
    #[arg(long, conflicts_with = "web")]
    pub(crate) text: bool,
    /// Port of the page on the loopback [default: a free one]
    #[arg(long, value_name = "PORT", requires = "web")]
    pub(crate) port: Option<u16>,
    #[command(flatten)]
    pub(crate) reader: ProfileArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The file holds the runs as the debugger page shows them: frames, answers, what is suspect and to blame, verification. It opens from disk in a browser and loads nothing from a network. It does not hold the raw bytes: `annals tape export` does."
)]
pub(crate) struct ReportArgs {
    /// The run
    #[arg(required_unless_present = "tape")]
    pub(crate) run: Option<String>,
    /// A second run, to compare with
    pub(crate) other: Option<String>,
    /// Report the run of a tape instead of one of the store
    #[arg(long, value_name = "FILE", conflicts_with_all = ["run", "other"])]
    pub(crate) tape: Option<std::path::PathBuf>,
    /// The HTML file to write
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: std::path::PathBuf,
    #[command(flatten)]
    pub(crate) reader: ProfileArgs,
}

#[derive(Debug, Args)]
#[command(after_help = TUI_HELP)]
pub(crate) struct TuiArgs {
    /// RUN, or RUN@SEQ for one of its frames [default: the list of runs]
    pub(crate) target: Option<String>,
    #[command(flatten)]
    pub(crate) reader: ProfileArgs,
}

const TUI_HELP: &str = "\
The key ? lists the keys. NO_COLOR removes colours. Without UTF-8 in LC_ALL, LC_CTYPE or LANG the view is ASCII.
docs/terminal.md describes the view.";

#[derive(Debug, Args)]
#[command(after_help = SUSPECT_HELP)]
pub(crate) struct SuspectArgs {
    /// The run
    pub(crate) run: String,
    /// Show only the N most suspect steps; 0 shows all [default: 3; with --json: 0]
    #[arg(long, value_name = "N")]
    pub(crate) top: Option<usize>,
    /// Also ask the model behind this OpenAI-compatible base address, which ends in /v1. The run's messages are
    /// sent there
    #[arg(long, value_name = "URL")]
    pub(crate) judge: Option<String>,
    #[command(flatten)]
    pub(crate) reader: ProfileArgs,
}

const SUSPECT_HELP: &str = "\
A score is a heuristic, not a proof: docs/suspect.md has its accuracy on annotated runs.
--judge reads the model's name from ANNALS_JUDGE_MODEL [default: gpt-4o-mini] and its key from ANNALS_JUDGE_KEY
[default for api.openai.com: OPENAI_API_KEY]. The verdict is kept in the store and never changes a score.";

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// RUN, or RUN@SEQ for one frame
    pub(crate) target: String,
    /// Show only the frame's input
    #[arg(long, group = "part")]
    pub(crate) input: bool,
    /// Show only the frame's output
    #[arg(long, group = "part")]
    pub(crate) output: bool,
    /// Show only the metadata
    #[arg(long, group = "part")]
    pub(crate) metadata: bool,
    /// Show only the messages that the frame's request adds, drops or changes, compared with the previous
    /// request
    #[arg(long, group = "part", conflicts_with = "raw")]
    pub(crate) new: bool,
    /// Write only the exact bytes
    #[arg(long, requires = "part", conflicts_with = "json")]
    pub(crate) raw: bool,
    #[command(flatten)]
    pub(crate) reader: ProfileArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TailArgs {
    /// Run to follow [default: the latest]
    pub(crate) run: Option<String>,
    #[command(flatten)]
    pub(crate) reader: ProfileArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// First run
    pub(crate) a: String,
    /// Second run
    pub(crate) b: String,
    #[command(flatten)]
    pub(crate) reader: ProfileArgs,
}

#[derive(Debug, Args)]
pub(crate) struct StateArgs {
    /// RUN for its last state, or RUN@SEQ for the state after that frame
    pub(crate) target: String,
    /// Write only the exact bytes
    #[arg(long, conflicts_with = "json")]
    pub(crate) raw: bool,
    #[command(flatten)]
    pub(crate) reader: ProfileArgs,
}
