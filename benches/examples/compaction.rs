//! Measures the rate of a compaction, and what it costs the work beside it. A store that is 70% dead is
//! compacted while one thread records and two read.
//!
//! `cargo run --profile dist -p annals-benches --example compaction -- [MIB] [--dir DIR] [--recompress]
//! [--nobody] [--restless]`
//! MIB is 2048 by default. With `--nobody` nothing runs beside the compaction. With `--restless` the readers
//! do not pause between reads, so that five threads compete for two cores.
#![expect(clippy::print_stdout, reason = "a program that measures and prints")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a measurement fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "it measures the system itself")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use annals::{CompactOptions, Component, Durability, Frame, Namespace, RunSpec, Status, Store};
use annals_benches::conversation::BenchRng;
use annals_benches::measure::quantile;
use annals_benches::workloads::{begin_run, open_store, small_bodies};

/// Frames of a run, and incompressible bytes of each.
const FRAMES: u64 = 64;
const FRAME_BYTES: u64 = 16 << 10;
/// How many of ten runs are dropped.
const DEAD_RUNS_OF_TEN: u64 = 7;
/// How long a reader pauses after each read.
const READER_REST: Duration = Duration::from_millis(1);
/// How long writer and readers are measured without a compaction.
const BASELINE: Duration = Duration::from_secs(5);

fn body(random: &mut BenchRng) -> Vec<u8> {
    (0..FRAME_BYTES / 8).flat_map(|_| random.next().to_le_bytes()).collect()
}

/// Records runs until there are about `bytes` bytes. Returns the number of runs.
fn record_runs(space: &Namespace, bytes: u64) -> u64 {
    let runs = (bytes / (FRAMES * FRAME_BYTES)).max(10);
    let mut random = BenchRng(1);
    for number in 0..runs {
        let run = space.begin_run(RunSpec::new(format!("r{number}"))).unwrap();
        for _ in 0..FRAMES {
            run.record(Frame::new(Component::Tool, body(&mut random), "")).unwrap();
        }
        run.end(Status::Ok).unwrap();
    }
    for number in (0..runs).filter(|number| number % 10 < DEAD_RUNS_OF_TEN) {
        let spec = RunSpec::new(format!("r{number}")).replace(true);
        space.begin_run(spec).unwrap().end(Status::Ok).unwrap();
    }
    runs
}

/// What the writer and the readers did while other work ran.
struct ConcurrentLoad {
    frames_a_second: f64,
    reads: Vec<Duration>,
    took: Duration,
}

fn run_alongside(
    store: &Store,
    runs: u64,
    name: &str,
    rest: Duration,
    work: impl FnOnce(),
) -> ConcurrentLoad {
    let (done, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let run = begin_run(store, name);
    let space = store.namespace("default").unwrap();
    let living: Vec<u64> = (0..runs).filter(|number| number % 10 >= DEAD_RUNS_OF_TEN).collect();
    let began = Instant::now();
    let (took, reads) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let bodies = small_bodies(1000);
            for (input, output) in bodies.iter().cycle() {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                run.record(Frame::new(Component::Tool, input.clone(), output.clone())).unwrap();
                written.fetch_add(1, Ordering::Relaxed);
            }
        });
        let readers: Vec<_> = (0..2)
            .map(|reader| {
                let (space, living, done) = (&space, &living, &done);
                scope.spawn(move || {
                    let (mut random, mut took) = (BenchRng(reader), Vec::new());
                    while !done.load(Ordering::Relaxed) {
                        let number = living[(random.next() % living.len() as u64) as usize];
                        let seq = 1 + (random.next() % FRAMES) as u32;
                        let began = Instant::now();
                        let frame = space.run(&format!("r{number}")).unwrap().frame(seq).unwrap();
                        took.push(began.elapsed());
                        assert_eq!(frame.input.len() as u64, FRAME_BYTES);
                        if !rest.is_zero() {
                            std::thread::sleep(rest);
                        }
                    }
                    took
                })
            })
            .collect();
        work();
        let took = began.elapsed();
        done.store(true, Ordering::Relaxed);
        let mut reads: Vec<Duration> =
            readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect();
        reads.sort();
        (took, reads)
    });
    run.end(Status::Ok).unwrap();
    let frames_a_second = written.load(Ordering::Relaxed) as f64 / took.as_secs_f64();
    ConcurrentLoad { frames_a_second, reads, took }
}

fn print_load(what: &str, beside: &ConcurrentLoad) {
    println!(
        "  {what:24} {:>10.0} frames a second written, {:>8} reads, p50 {:?}, p99.9 {:?}",
        beside.frames_a_second,
        beside.reads.len(),
        quantile(&beside.reads, 0.5),
        quantile(&beside.reads, 0.999),
    );
}

/// The command line's arguments.
struct CompactionBenchArgs {
    bytes: u64,
    recompress: bool,
    idle: bool,
    rest: Duration,
}

fn measure(path: &Path, asked: &CompactionBenchArgs) {
    let CompactionBenchArgs { bytes, recompress, idle: nobody, rest } = *asked;
    let store = open_store(path, Durability::Process);
    let runs = record_runs(&store.namespace("default").unwrap(), bytes);
    if nobody {
        let recompress = recompress.then_some(CompactOptions::RECOMPRESS_LEVEL);
        let began = Instant::now();
        let done = store.compact(&CompactOptions { recompress, ..CompactOptions::default() }).unwrap();
        let took = began.elapsed();
        println!(
            "{runs} runs; nobody beside: {:.1} MB of live bytes a second, in {took:?}",
            done.live_bytes as f64 / 1e6 / took.as_secs_f64()
        );
        return store.close().unwrap();
    }
    // The work that filling left must not count: the index's tables, and 2 GB on their way to the disk.
    std::process::Command::new("sync").status().unwrap();
    std::thread::sleep(BASELINE);
    let before = store.stats().unwrap().disk_bytes;
    println!("{runs} runs, {before} bytes on disk, {DEAD_RUNS_OF_TEN} of ten dropped");
    let mut done = None;
    let with = run_alongside(&store, runs, "beside", rest, || {
        let recompress = recompress.then_some(CompactOptions::RECOMPRESS_LEVEL);
        done = Some(store.compact(&CompactOptions { recompress, ..CompactOptions::default() }).unwrap());
    });
    print_load("beside a compaction", &with);
    let done = done.unwrap();
    let (after, lives) = (store.stats().unwrap().disk_bytes, live_bytes(&store));
    // Only now, so that what the writer leaves is not compacted.
    let alone = run_alongside(&store, runs, "alone", rest, || std::thread::sleep(BASELINE));
    print_load("alone", &alone);
    // Idle cores of a virtual machine are slow to wake: a writer may be faster beside anything that keeps a
    // core awake.
    let awake = run_alongside(&store, runs, "awake", rest, || {
        let began = Instant::now();
        while began.elapsed() < BASELINE {
            std::hint::spin_loop();
        }
    });
    print_load("beside an empty loop", &awake);
    println!("  {done:?}");
    println!(
        "  {:.1} MB of live bytes a second, in {:?}; the writer has {:.2} of its greater speed, readers' p99.9 is {:.1} times as long",
        done.live_bytes as f64 / 1e6 / with.took.as_secs_f64(),
        with.took,
        with.frames_a_second / alone.frames_a_second.max(awake.frames_a_second),
        quantile(&with.reads, 0.999).as_secs_f64() / quantile(&alone.reads, 0.999).as_secs_f64(),
    );
    println!("  {after} bytes on disk after, {:.3} of what lives", after as f64 / lives as f64);
    store.close().unwrap();
}

/// Bytes of log and index that are live: what a second compaction would leave.
fn live_bytes(store: &Store) -> u64 {
    let told = store.compact(&CompactOptions { dry_run: true, ..CompactOptions::default() }).unwrap();
    let tables = store.stats().unwrap().bytes.tables;
    told.segment_bytes - told.rewritten_bytes + told.made_bytes + tables
}

fn main() {
    let (mut mib, mut dir) = (2048, std::env::temp_dir());
    let (mut recompress, mut nobody, mut rest) = (false, false, READER_REST);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--dir" => dir = PathBuf::from(words.next().unwrap()),
            "--recompress" => recompress = true,
            "--nobody" => nobody = true,
            "--restless" => rest = Duration::ZERO,
            number => mib = number.parse().unwrap_or_else(|_| panic!("{number} is no number of MiB")),
        }
    }
    let dir = tempfile::tempdir_in(dir).unwrap();
    measure(
        &dir.path().join("store"),
        &CompactionBenchArgs { bytes: mib << 20, recompress, idle: nobody, rest },
    );
}
