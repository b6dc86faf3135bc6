//! Measures what recording and replaying through the proxy costs. An agent, a scripted upstream and `annals`
//! run on one machine as separate processes. Each figure is beside that of the same agent without annals.
//!
//! `cargo build --profile dist && cargo run --profile dist -p annals-benches --example proxy -- [steps|latency|streams|replay]...`

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a program that measures and prints")]

mod agent;
mod http;
mod pace;
mod upstream;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

pub(crate) type ProxyBenchResult<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// How often each of two alternatives is measured, by turns.
const ROUNDS: usize = 5;

fn main() -> ProxyBenchResult<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if let [first, doing @ ..] = args.as_slice()
        && first == "agent"
    {
        return runtime.block_on(agent::run(doing));
    }
    let upstream = upstream::start()?;
    let bench = ProxyBench { upstream, annals: annals_binary()?, directory: tempfile::tempdir()? };
    let all = ["steps", "latency", "streams", "replay"].map(str::to_owned).to_vec();
    for what in if args.is_empty() { all } else { args } {
        match what.as_str() {
            "steps" => bench.steps()?,
            "latency" => bench.latency()?,
            "streams" => bench.streams()?,
            "replay" => bench.replay()?,
            other => return Err(format!("{other}: there is steps, latency, streams and replay").into()),
        }
    }
    Ok(())
}

/// The `annals` binary of the same build.
fn annals_binary() -> ProxyBenchResult<PathBuf> {
    let own = std::env::current_exe()?;
    let path = own.parent().and_then(Path::parent).map(|directory| directory.join("annals"));
    path.filter(|path| path.exists()).ok_or_else(|| "build annals first: cargo build --profile dist".into())
}

struct ProxyBench {
    upstream: String,
    annals: PathBuf,
    directory: tempfile::TempDir,
}

/// What an agent printed, and how long it took, in seconds.
struct AgentReport {
    figures: serde_json::Value,
    seconds: f64,
}

impl ProxyBench {
    fn agent_command(&self, doing: &[&str]) -> ProxyBenchResult<Vec<String>> {
        let own = std::env::current_exe()?.to_string_lossy().into_owned();
        Ok([vec![own, "agent".to_owned()], doing.iter().map(|text| (*text).to_owned()).collect()].concat())
    }

    fn run(&self, mut command: Command) -> ProxyBenchResult<AgentReport> {
        let began = Instant::now();
        let output = command.stdin(Stdio::null()).stderr(Stdio::piped()).output()?;
        let seconds = began.elapsed().as_secs_f64();
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        let told = serde_json::from_slice(&output.stdout)?;
        Ok(AgentReport { figures: told, seconds })
    }

    fn run_direct(&self, doing: &[&str]) -> ProxyBenchResult<AgentReport> {
        let args = self.agent_command(doing)?;
        let mut command = Command::new(&args[0]);
        command.args(&args[1..]).env("OPENAI_BASE_URL", format!("{}/v1", self.upstream));
        self.run(command)
    }

    fn run_recorded(&self, run: &str, doing: &[&str]) -> ProxyBenchResult<AgentReport> {
        let mut command = Command::new(&self.annals);
        command.arg("--store").arg(self.directory.path().join("store"));
        command
            .args(["record", "--run", run, "--upstream", &self.upstream, "--"])
            .args(self.agent_command(doing)?);
        command.env_remove("OPENAI_BASE_URL");
        self.run(command)
    }

    fn run_replayed(&self, run: &str) -> ProxyBenchResult<AgentReport> {
        let mut command = Command::new(&self.annals);
        command.arg("--store").arg(self.directory.path().join("store")).args(["replay", run]);
        self.run(command)
    }

    /// The wall time of a conversation of 200 steps whose answers come after 20 ms.
    fn steps(&self) -> ProxyBenchResult<()> {
        let (mut direct, mut recorded) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            direct.push(self.run_direct(&["steps", "200"])?.seconds);
            recorded.push(self.run_recorded(&format!("steps-{round}"), &["steps", "200"])?.seconds);
        }
        let (direct, recorded) = (median(direct), median(recorded));
        println!(
            "200 steps, answers after 20 ms: {direct:.3} s alone, {recorded:.3} s recorded: {:+.1}%",
            (recorded / direct - 1.0) * 100.0
        );
        Ok(())
    }

    /// One request after another, each answered at once.
    fn latency(&self) -> ProxyBenchResult<()> {
        let (mut direct, mut recorded) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            direct.push(figure(&self.run_direct(&["ask", "1000", "1"])?, "median_ms"));
            let done = self.run_recorded(&format!("latency-{round}"), &["ask", "1000", "1"])?;
            recorded.push(figure(&done, "median_ms"));
        }
        let (direct, recorded) = (median(direct), median(recorded));
        println!(
            "a request of 20 KB: {direct:.3} ms alone, {recorded:.3} ms recorded (medians): {:+.3} ms",
            recorded - direct
        );
        Ok(())
    }

    /// 200 streams of 50 chunks a second each, for eight seconds.
    fn streams(&self) -> ProxyBenchResult<()> {
        let (mut direct, mut recorded) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            direct.push(self.run_direct(&["streams", "200", "400"])?.figures);
            recorded
                .push(self.run_recorded(&format!("streams-{round}"), &["streams", "200", "400"])?.figures);
        }
        for key in ["median_ms", "p99_ms"] {
            let of = |all: &[serde_json::Value]| {
                median(all.iter().map(|told| told[key].as_f64().unwrap_or(f64::NAN)).collect())
            };
            let (direct, recorded) = (of(&direct), of(&recorded));
            println!(
                "a chunk of 200 streams at 50 a second, {key}: {direct:.3} alone, {recorded:.3} recorded: {:+.3} ms",
                recorded - direct
            );
        }
        println!("  chunks each time: {}", recorded[0]["chunks"]);
        Ok(())
    }

    /// Replays recorded requests of 20 KB, one after another and eight at once. The answers end in the
    /// recorded order.
    fn replay(&self) -> ProxyBenchResult<()> {
        for (connections, requests) in [("1", "3000"), ("8", "400")] {
            let run = format!("asked-{connections}");
            let recorded = self.run_recorded(&run, &["ask", requests, connections])?;
            let mut rates = Vec::new();
            for _ in 0..ROUNDS {
                rates.push(figure(&self.run_replayed(&run)?, "per_second"));
            }
            println!(
                "requests of 20 KB a second, {connections} at once: {:.0} recorded, {:.0} replayed (median of {ROUNDS})",
                figure(&recorded, "per_second"),
                median(rates)
            );
        }
        Ok(())
    }
}

fn figure(done: &AgentReport, key: &str) -> f64 {
    done.figures[key].as_f64().unwrap_or(f64::NAN)
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}
