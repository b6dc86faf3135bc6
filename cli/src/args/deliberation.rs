//! Verbs of decisions: `decide`, `decisions` and `decision`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::shared::ProfileArgs;

const CATEGORIES: [&str; 5] = annals_deliberation::CATEGORIES;
const STAKES: [&str; 4] = annals_deliberation::STAKES;
const OUTCOMES: [&str; 4] = annals_deliberation::OUTCOMES;

#[derive(Debug, Args)]
#[command(
    after_help = "The decision takes the inputs that a daemon captured for the token `owner`, and for --agent. If a daemon or a recorder holds the store, that process stores the decision. docs/deliberation.md has the form of a decision."
)]
pub(crate) struct DecideArgs {
    /// What was decided
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    pub(crate) decision: Option<String>,
    /// Stated confidence, from 0 to 1
    #[arg(long, value_name = "X", required_unless_present = "file", conflicts_with = "file", value_parser = confidence)]
    pub(crate) confidence: Option<f64>,
    /// JSON file with the whole decision, for example with a deliberation; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["category", "stakes", "context", "reason", "tag", "project", "agent", "run"])]
    pub(crate) file: Option<PathBuf>,
    /// Category
    #[arg(long, value_parser = CATEGORIES)]
    pub(crate) category: Option<String>,
    /// What is at stake [default: medium]
    #[arg(long, value_parser = STAKES)]
    pub(crate) stakes: Option<String>,
    /// Background of the decision
    #[arg(long, value_name = "TEXT")]
    pub(crate) context: Option<String>,
    /// A reason, as TYPE:TEXT, for example 'analysis:it is cheaper'; repeatable
    #[arg(long, value_name = "TYPE:TEXT")]
    pub(crate) reason: Vec<String>,
    /// A tag; repeatable
    #[arg(long, value_name = "TAG")]
    pub(crate) tag: Vec<String>,
    /// Project
    #[arg(long, value_name = "NAME")]
    pub(crate) project: Option<String>,
    /// Id of the agent that decides
    #[arg(long, value_name = "ID")]
    pub(crate) agent: Option<String>,
    /// Run, or frame of a run, in which the decision was taken; `annals forget` of the run deletes the decision, retention keeps it
    #[arg(long, value_name = "RUN[@SEQ]")]
    pub(crate) run: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Prints the newest first, or with a QUERY the best match first. Nothing that this verb reads becomes an input of a decision. docs/deliberation.md explains the statistics."
)]
pub(crate) struct DecisionsArgs {
    /// Words to search for
    pub(crate) query: Option<String>,
    /// Print at most this number, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) limit: u16,
    /// Only this category
    #[arg(long, value_parser = CATEGORIES)]
    pub(crate) category: Option<String>,
    /// Only these stakes
    #[arg(long, value_parser = STAKES)]
    pub(crate) stakes: Option<String>,
    /// Only this outcome
    #[arg(long, value_parser = OUTCOMES)]
    pub(crate) outcome: Option<String>,
    /// Only this agent
    #[arg(long, value_name = "ID")]
    pub(crate) agent: Option<String>,
    /// Only this project
    #[arg(long, value_name = "NAME")]
    pub(crate) project: Option<String>,
    /// Only decisions with this tag; repeatable
    #[arg(long, value_name = "TAG")]
    pub(crate) tag: Vec<String>,
    /// Only decisions from this time on, as 2026-02-08T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = checked_time)]
    pub(crate) since: Option<String>,
    /// With --json, print each decision's deliberation
    #[arg(long, requires = "json")]
    pub(crate) deliberation: bool,
    /// Print statistics of all matching decisions as JSON: deliberations against outcomes, and calibration
    #[arg(long, conflicts_with_all = ["query", "limit", "deliberation"])]
    pub(crate) stats: bool,
    #[command(flatten)]
    pub(crate) reader: ProfileArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DecisionArgs {
    /// Id of the decision, as `annals decisions` prints it
    pub(crate) id: String,
    /// Print the deliberation as spike timings
    #[arg(long, value_name = "FORMAT", conflicts_with = "review")]
    pub(crate) spikes: Option<SpikeFormatArg>,
    /// Store how the decision turned out
    #[arg(long, value_name = "OUTCOME", value_parser = OUTCOMES)]
    pub(crate) review: Option<String>,
    /// What really happened, for --review
    #[arg(long, value_name = "TEXT", requires = "review")]
    pub(crate) result: Option<String>,
    #[command(flatten)]
    pub(crate) reader: ProfileArgs,
}

/// Format of spike timings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SpikeFormatArg {
    /// A line for each event, with a header
    Csv,
    /// An array of events
    Json,
}

/// Parses a confidence.
fn confidence(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.0..=1.0).contains(number));
    number.ok_or_else(|| "a confidence must be a number from 0 to 1".to_owned())
}

/// A time as the queries of decisions take it.
fn checked_time(text: &str) -> Result<String, String> {
    match annals_deliberation::parse_iso(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("write a date and a time as 2026-02-08T12:00:00Z".to_owned()),
    }
}
