//! One hot path, over and over, for a profiler: everything it needs is made before it begins.
//!
//! `cargo run --release -p annals-benches --example hot -- PATH [ROUNDS]`, PATH one of plain, marker, head, kv, frames,
//! scan, single.
#![expect(clippy::print_stderr, reason = "a program for a terminal")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a measurement fails by panicking")]

use std::time::Instant;

use annals::{Component, Durability, Frame, History, Options, Run, RunSpec, Status, Store};
use annals_benches::conversation::{Conversation, Form, Step};

fn open(dir: &tempfile::TempDir) -> Store {
    let options = Options { durability: Durability::Process, ..Options::default() };
    Store::open_with(dir.path().join("store"), options).unwrap()
}

fn begin(store: &Store) -> Run {
    store.namespace("default").unwrap().begin_run(RunSpec::new("run")).unwrap()
}

fn step(run: &Run, step: Step) {
    let mut batch = run.batch().unwrap();
    let llm = batch.frame(Frame::new(Component::Llm, step.request, step.response)).unwrap();
    batch.frame(Frame::new(Component::Tool, step.tool_input, step.tool_output).parent(llm)).unwrap();
    batch.commit().unwrap();
}

#[inline(never)]
fn measured(work: impl FnOnce()) -> f64 {
    let began = Instant::now();
    work();
    began.elapsed().as_secs_f64()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or_else(|| panic!("name a path"));
    let rounds: usize = arguments.next().map_or(5, |rounds| rounds.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let report = |what: &str, count: usize, seconds: f64| {
        eprintln!("{what}: {:.1} us each, {:.0} a second", seconds * 1e6 / count as f64, count as f64 / seconds);
    };
    let form = match path.as_str() {
        "marker" => Form::MovingMarker,
        "head" => Form::ChangingHead,
        _ => Form::Plain,
    };
    match path.as_str() {
        "plain" | "marker" | "head" => {
            let steps: Vec<Step> = Conversation::new(form, 1).take(200).collect();
            let copies: Vec<Vec<Step>> = (0..rounds).map(|_| steps.clone()).collect();
            for steps in copies {
                let dir = tempfile::tempdir().unwrap();
                let store = open(&dir);
                let run = begin(&store);
                let took = measured(|| steps.into_iter().for_each(|one| step(&run, one)));
                report("steps", 200, took);
                run.end(Status::Ok).unwrap();
                store.close().unwrap();
            }
        }
        "kv" => {
            let space = store.namespace("default").unwrap();
            let kv = space.keyspace("kv", History::Latest).unwrap();
            let value = [b'x'; 512];
            for round in 0..rounds {
                let took = measured(|| {
                    let mut last = None;
                    for batch in 0..1000u64 {
                        let mut changes = space.batch();
                        for record in 0..100u64 {
                            let number = (round as u64 * 1000 + batch) * 100 + record;
                            let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                            changes.put(&kv, &u128::from(key).to_le_bytes(), &value);
                        }
                        last = Some(changes.submit().unwrap());
                    }
                    last.unwrap().wait().unwrap();
                });
                report("records", 100_000, took);
            }
        }
        "frames" => {
            let text: Vec<u8> = Conversation::new(Form::Plain, 3).take(300).flat_map(|s| s.response).collect();
            let run = begin(&store);
            for round in 0..rounds {
                let frames: Vec<Frame> = (0..20_000)
                    .map(|index| {
                        let at = index * 37 % (text.len() - 512);
                        let (mut input, mut output) = (text[at..at + 256].to_vec(), text[at + 256..at + 512].to_vec());
                        let number = format!("{:08}", round * 20_000 + index);
                        input[..8].copy_from_slice(number.as_bytes());
                        output[..8].copy_from_slice(number.as_bytes());
                        Frame::new(Component::Tool, input, output)
                    })
                    .collect();
                let took = measured(|| {
                    let mut last = None;
                    for frame in frames {
                        last = Some(run.submit(frame).unwrap().1);
                    }
                    last.unwrap().wait().unwrap();
                });
                report("frames", 20_000, took);
            }
        }
        "scan" | "single" => {
            let run = begin(&store);
            Conversation::new(Form::Plain, 1).take(200).for_each(|one| step(&run, one));
            run.end(Status::Ok).unwrap();
            let reader = store.namespace("default").unwrap().run("run").unwrap();
            for _ in 0..rounds {
                if path == "scan" {
                    store.drop_caches();
                    report("frames", 400, measured(|| drop(reader.verify().unwrap())));
                } else {
                    report("frames", 100, measured(|| (0..100).for_each(|_| drop(reader.frame(399).unwrap()))));
                }
            }
        }
        other => panic!("there is no path {other:?}"),
    }
}
