//! Verbs that find causes: `blame`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::shared::NetworkArgs;

#[derive(Debug, Args)]
#[command(
    after_help = "The program runs again once for each fork: tools of the program run for real. Before a fork's step the
recording answers, and nothing reaches the network. Later requests that equal recorded ones keep their recorded answers;
all others go to the upstreams and cost money. A flip is a fork whose outcome is not the run's.
Exit code: 0 if all forks are done, 1 if not, 3 if the program did not repeat its recording before a fork."
)]
pub(crate) struct BlameArgs {
    /// Failed run to explain
    pub(crate) run: String,
    /// Forks of each step, at most
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) k: u32,
    /// Steps to perturb, by frame, both ends included: 3..9, 3.., ..9 or 5 [default: all]
    #[arg(long, value_name = "RANGE")]
    pub(crate) steps: Option<String>,
    /// How a run is graded: exit, regex:PATTERN, json:PATH=VALUE, cmd:COMMAND, run:RUN or judge:URL
    #[arg(long, value_name = "ORACLE", default_value = "exit")]
    pub(crate) oracle: String,
    /// How a step is perturbed: resample (ask the model again), drop (without the newest message), tool (with
    /// failed results of its tools), model:NAME (ask another model) or run:RUN (the answer of another run)
    #[arg(
        long = "with",
        value_name = "PERTURBATION",
        default_value = "resample",
        conflicts_with = "perturb"
    )]
    pub(crate) with: String,
    /// Shell command that reads the recorded answer of a step and writes another
    #[arg(long, value_name = "COMMAND")]
    pub(crate) perturb: Option<String>,
    /// Most US dollars to spend [default: 5.00]; forks stop before they could pass it. `inf`: no limit. Questions to
    /// a judge count. Calls and questions of models without a known price do not
    #[arg(long, value_name = "DOLLARS")]
    pub(crate) budget: Option<f64>,
    /// Forks that run at the same time [default: the number of processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) jobs: Option<u16>,
    /// Unperturbed re-runs, which measure how often the program flips by itself
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(3..=1000))]
    pub(crate) base: u32,
    /// Give each fork a copy of the working directory
    #[arg(long)]
    pub(crate) scratch: bool,
    /// Longest time of one fork, for example 30s; its whole process group is then ended [default: ten times
    /// the run's time, at least 30 s]
    #[arg(long, value_name = "TIME")]
    pub(crate) time_limit: Option<String>,
    /// Run all K forks of every step, also of steps that are decided earlier
    #[arg(long)]
    pub(crate) no_early_stop: bool,
    /// Also run each coalition of steps N times: shows which steps and pairs are necessary and sufficient
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1000))]
    pub(crate) coalitions: u32,
    /// Also estimate Shapley values from N sampled orders of the steps
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=10_000))]
    pub(crate) orders: u32,
    /// Seed of the sampled orders
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Only print what the blame would take: forks, calls and cost
    #[arg(long, conflicts_with_all = ["resume", "show", "drop"])]
    pub(crate) estimate: bool,
    /// Finish an interrupted blame, with its own settings
    #[arg(long, conflicts_with_all = ["show", "drop"])]
    pub(crate) resume: bool,
    /// Show the stored result; run nothing
    #[arg(long, conflicts_with = "drop")]
    pub(crate) show: bool,
    /// Drop the stored result and its forks
    #[arg(long)]
    pub(crate) drop: bool,
    /// Address for model calls, for all providers or one; repeatable [default: the recorded upstreams]
    #[arg(long, value_name = "[PROVIDER=]URL")]
    pub(crate) upstream: Vec<String>,
    /// Host that annals may call; if given, no others. Before its fork's step the program may also reach it
    /// directly; repeatable
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) allow_host: Vec<String>,
    /// File with rules, in TOML [default: the rules of RUN]
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    /// Program to run instead of the recorded one
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A scripted agent runs as a child process behind the real proxy, and a scripted model answers on the loopback: no key,
no network, no cost. The model errs once, at the planted step; the same code as `annals blame` then names the step.
Exit code: 0 if every planted step comes first and no step of a run without a fault flips; else 3."
)]
pub(crate) struct ValidateArgs {
    /// Forks of each step
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) k: u32,
    /// Runs of each class, each with the fault at another step
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,
    /// Tell competing causes apart instead: root and echo, conjunction, over-determination, decoys, delayed and
    /// masked causes
    #[arg(long)]
    pub(crate) competing: bool,
    /// Seeds of the competing causes: each has four runs with causes at random steps
    #[arg(long, value_name = "N", default_value_t = 3, requires = "competing", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) seeds: u32,
    /// Forks that run at the same time [default: the number of processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) jobs: Option<u16>,
    /// Compare with a report of `annals validate --json`; exit with 3 if a class got worse
    #[arg(long, value_name = "REPORT", conflicts_with = "competing")]
    pub(crate) check: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ScriptedAgentArgs {
    /// What the agent does, as JSON
    pub(crate) script: String,
}
