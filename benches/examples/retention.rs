//! Measures how long a sweep takes, and what is left of a year.
//!
//! `cargo run --profile dist -p annals-benches --example retention -- [RUNS]`
//! It records RUNS runs (default 100,000) and sweeps them by the built-in policy, first as a dry run. Then it
//! simulates a year: each day it records runs of every kind and sweeps. It prints what is left in the end, as
//! in docs/retention.md.

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a program that measures and prints")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use annals::io::Io as _;
use annals::io::sim::SimIo;
use annals::{
    Component, Durability, Frame, Namespace, Options, RunSpec, Severity, Status, Store,
    retention::RetentionPolicy,
};

type RetentionBenchResult<T> = Result<T, Box<dyn std::error::Error>>;

const DAY_NS: u64 = 86_400 * 1_000_000_000;
const RUNS_A_DAY: u64 = 60;

/// SplitMix64 (Steele, Lea, Flood 2014).
struct RetentionRng(u64);

impl RetentionRng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// Records a run of `frames` frames in one commit.
fn record_run(
    space: &Namespace,
    name: String,
    frames: u64,
    severity: Severity,
    status: Status,
) -> RetentionBenchResult<()> {
    let run = space.prepare_run(RunSpec::new(name).severity(severity))?;
    let mut batch = run.batch()?;
    for frame in 0..frames {
        let body = format!("request {frame} of {}: {}", run.name(), "words ".repeat(20 + frame as usize));
        batch.frame(Frame::new(Component::Llm, body, format!("answer {frame}")))?;
    }
    batch.end(status)?;
    batch.commit()?;
    Ok(())
}

fn measure_sweep(runs: u64) -> RetentionBenchResult<()> {
    let dir = tempfile::tempdir()?;
    let options = Options { durability: Durability::Process, ..Options::default() };
    let store = Store::open_with(dir.path().join("s"), options.clone())?;
    let space = store.namespace("default")?;
    for number in 0..runs {
        let status = if number % 20 == 0 { Status::Failed } else { Status::Ok };
        record_run(&space, format!("run-{number}"), 2, Severity::Normal, status)?;
    }
    store.close()?;
    let store = Store::open_with(dir.path().join("s"), options)?;
    let at_ns = Some(store.newest_ns() + 8 * DAY_NS);
    let began = Instant::now();
    let dry = store.plan_retention(&RetentionPolicy::default(), at_ns)?.report().dropped();
    let planned = began.elapsed();
    let plan = store.plan_retention(&RetentionPolicy::default(), at_ns)?;
    let done = store.retain(plan)?.dropped();
    let all = began.elapsed();
    println!(
        "{runs} runs: dry run {:.3} s, with the sweep {:.3} s; {} runs and {} frames dropped",
        planned.as_secs_f64(),
        all.as_secs_f64(),
        done.runs,
        done.frames
    );
    assert_eq!(dry, done);
    store.close()?;
    Ok(())
}

/// Runs, frames and bytes: what was recorded, and what is left.
#[derive(Default)]
struct RetentionRow {
    recorded: [u64; 3],
    kept: [u64; 3],
}

fn simulate_year() -> RetentionBenchResult<()> {
    let sim = SimIo::new(1);
    let options =
        Options { io: Arc::new(sim.clone()), durability: Durability::Process, ..Options::default() };
    let store = Store::open_with("s", options)?;
    let space = store.namespace("default")?;
    let mut rng = RetentionRng(1);
    let mut lines: BTreeMap<&str, RetentionRow> = BTreeMap::new();
    let mut kinds: Vec<&str> = Vec::new();
    for day in 0..365 {
        for number in 0..RUNS_A_DAY {
            sim.advance_ns(DAY_NS / (RUNS_A_DAY + 1));
            let (kind, severity, status) = match rng.below(100) {
                0..85 => ("ok", Severity::Normal, Status::Ok),
                85..90 => ("ok, debug", Severity::Debug, Status::Ok),
                90..95 => ("failed", Severity::Normal, Status::Failed),
                95..97 => ("abandoned", Severity::Normal, Status::Abandoned),
                97..99 => ("flagged", Severity::Flagged, Status::Ok),
                _ => ("escalated", Severity::Escalated, Status::Ok),
            };
            let name = format!("{day}-{number}");
            record_run(&space, name.clone(), 2 + rng.below(9), severity, status)?;
            kinds.push(kind);
            // One run in five hundred is pinned.
            if kinds.len().is_multiple_of(500) {
                space.pin(&name, "an example to keep")?;
            }
        }
        sim.advance_ns(DAY_NS / (RUNS_A_DAY + 1));
        let now_ns = sim.now_ns();
        count(&space, &kinds, &mut lines, |line| &mut line.recorded, now_ns - DAY_NS)?;
        let plan = store.plan_retention(&RetentionPolicy::default(), None)?;
        store.retain(plan)?;
    }
    count(&space, &kinds, &mut lines, |line| &mut line.kept, 0)?;
    println!("| kind | recorded: runs | frames | bytes | stays: runs | frames | bytes | of the bytes |");
    println!("|---|---|---|---|---|---|---|---|");
    let mut all = RetentionRow::default();
    for (kind, line) in &lines {
        print(kind, line);
        for at in 0..3 {
            all.recorded[at] += line.recorded[at];
            all.kept[at] += line.kept[at];
        }
    }
    print("all", &all);
    let stats = store.stats()?;
    println!(
        "dropped: {} runs, {} frames; pinned: {}",
        stats.dropped_runs,
        stats.dropped_frames,
        space.pins()?.len()
    );
    assert_eq!(stats.runs, all.kept[0]);
    assert_eq!(stats.runs + stats.dropped_runs, all.recorded[0]);
    Ok(())
}

/// Adds up the runs that began after a time.
fn count(
    space: &Namespace,
    kinds: &[&'static str],
    lines: &mut BTreeMap<&'static str, RetentionRow>,
    of: fn(&mut RetentionRow) -> &mut [u64; 3],
    after_ns: u64,
) -> RetentionBenchResult<()> {
    for info in space.runs()? {
        let info = info?;
        // Numbers count from 1, and every run here begins once.
        let Some(kind) = kinds.get(info.uid.0 as usize - 1).filter(|_| info.started_ns >= after_ns) else {
            continue;
        };
        let line = of(lines.entry(kind).or_default());
        line[0] += 1;
        line[1] += u64::from(info.frames);
        line[2] += info.raw_bytes;
    }
    Ok(())
}

fn print(kind: &str, line: &RetentionRow) {
    let [runs, frames, bytes] = line.recorded;
    let [stay, stay_frames, stay_bytes] = line.kept;
    let share = 100.0 * stay_bytes as f64 / bytes as f64;
    println!(
        "| {kind} | {runs} | {frames} | {bytes} | {stay} | {stay_frames} | {stay_bytes} | {share:.1}% |"
    );
}

fn main() -> RetentionBenchResult<()> {
    let runs = std::env::args().nth(1).map_or(Ok(100_000), |text| text.parse())?;
    measure_sweep(runs)?;
    simulate_year()
}
