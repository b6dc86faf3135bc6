//! Runs one hot path repeatedly, for a profiler or a count of instructions. Everything it needs is made
//! before, and only what runs in `measured` counts. Commits are submitted inside it and awaited outside, so
//! that the writer's time does not show in a count.
//!
//! `cargo run --profile dist -p annals-benches --bin hot -- PATH [TIMES]`, PATH one of plain, marker,
//! head, kv, frames, scan, single, get. TIMES is the amount of work: steps, batches of 100 records, frames,
//! scans, reads.
#![expect(clippy::print_stderr, reason = "a program for a terminal")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a measurement fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "it measures the system itself")]

use std::time::{Duration, Instant};

use annals::{Durability, Status, kv::History};
use annals_benches::conversation::{BenchConversation, ConversationForm, ConversationStep};
use annals_benches::workloads::{begin_run, open_store, scattered_key, small_frames, submit_step};

/// The function that a profiler looks for.
#[inline(never)]
fn measured<T>(work: impl FnOnce() -> T) -> T {
    work()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or_else(|| panic!("name a path"));
    let times: Option<usize> = arguments.next().map(|times| times.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let store = open_store(&dir.path().join("store"), Durability::Process);
    let space = store.namespace("default").unwrap();
    let mut took = Duration::ZERO;
    let mut clock = |work: &mut dyn FnMut()| {
        let began = Instant::now();
        work();
        took += began.elapsed();
    };
    let form = match path.as_str() {
        "marker" => ConversationForm::MovingMarker,
        "head" => ConversationForm::ChangingHead,
        _ => ConversationForm::Plain,
    };
    let count = match path.as_str() {
        "plain" | "marker" | "head" => {
            let steps: Vec<ConversationStep> =
                BenchConversation::new(form, 1).take(times.unwrap_or(200)).collect();
            let (count, run) = (steps.len(), begin_run(&store, "run"));
            let mut steps = steps.into_iter();
            clock(&mut || {
                for step in steps.by_ref() {
                    measured(|| submit_step(&run, step)).wait().unwrap();
                }
            });
            count
        }
        "kv" => {
            let kv = space.keyspace("kv", History::Latest).unwrap();
            let (value, batches) = ([b'x'; 512], times.unwrap_or(2000) as u64);
            let put = |batch: u64| {
                let mut changes = space.batch();
                for record in 0..100u64 {
                    changes.put(&kv, &scattered_key(batch * 100 + record), &value);
                }
                changes.submit().unwrap()
            };
            clock(&mut || {
                let last = (0..batches).fold(None, |_, batch| Some(measured(|| put(batch))));
                last.unwrap().wait().unwrap();
            });
            batches as usize * 100
        }
        "get" => {
            let kv = space.keyspace("kv", History::Latest).unwrap();
            let count = times.unwrap_or(100_000) as u64;
            for first in (0..count).step_by(100) {
                let mut batch = space.batch();
                for number in first..first + 100 {
                    batch.put(&kv, &scattered_key(number), &[7; 100]);
                }
                batch.commit().unwrap();
            }
            clock(&mut || {
                for number in 0..count {
                    let wanted = scattered_key(number.wrapping_mul(0x9e37_79b9) % count);
                    assert!(measured(|| kv.get(&wanted).unwrap()).is_some());
                }
            });
            count as usize
        }
        "frames" => {
            let frames = small_frames(times.unwrap_or(100_000));
            let (count, run) = (frames.len(), begin_run(&store, "run"));
            let mut frames = frames.into_iter();
            clock(&mut || {
                let last = frames.by_ref().map(|frame| measured(|| run.submit(frame).unwrap().1)).last();
                last.unwrap().wait().unwrap();
            });
            count
        }
        "scan" | "single" => {
            let run = begin_run(&store, "run");
            for step in BenchConversation::new(ConversationForm::Plain, 1).take(200) {
                submit_step(&run, step).wait().unwrap();
            }
            run.end(Status::Ok).unwrap();
            let reader = space.run("run").unwrap();
            let count = times.unwrap_or(if path == "scan" { 5 } else { 1000 });
            clock(&mut || {
                for _ in 0..count {
                    if path == "scan" {
                        store.drop_caches();
                        assert_eq!(measured(|| reader.verify().unwrap()).frames, 400);
                    } else {
                        drop(measured(|| reader.frame(399).unwrap()));
                    }
                }
            });
            count
        }
        other => panic!("there is no path {other:?}"),
    };
    let seconds = took.as_secs_f64();
    eprintln!("{path}: {count} in {seconds:.3} s, {:.2} us each", seconds * 1e6 / count as f64);
    store.close().unwrap();
}
