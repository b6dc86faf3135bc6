//! Writing: the growing conversation, real runs, key-value records, small frames.

use std::fs::File;
use std::io::IoSlice;
use std::path::Path;

use annals::{Durability, Frame, RunSpec, Status, kv::History};
use annals_benches::conversation::{BenchConversation, BenchRng, ConversationForm, ConversationStep};
use annals_benches::measure::{Contender, TimedWork, interleave, timed};
use annals_benches::workloads::{
    begin_run, open_store, record_lent_step, record_step, scattered_key, small_bodies, small_frames,
};
use annals_formats::import::{ChatOptions, ChatRuns, Expansion};

use crate::{PerformanceArgs, print_rates};

const STEPS: usize = 200;

/// Appends to a file, and syncs it if `sync` is set.
pub(crate) fn append(file: &File, parts: &[&[u8]], at: &mut u64, sync: bool) {
    let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let want: usize = parts.iter().map(|part| part.len()).sum();
    let wrote = rustix::io::pwritev(file, &slices, *at).unwrap();
    assert_eq!(wrote, want, "a short write");
    *at += want as u64;
    if sync {
        file.sync_data().unwrap();
    }
}

/// Each step is handed over and freed, as with the engine.
fn raw_steps(dir: &Path, steps: Vec<ConversationStep>, sync: bool) -> TimedWork {
    let file = File::create_new(dir.join("raw")).unwrap();
    let mut at = 0;
    timed(steps.len() as f64, || {
        for step in steps {
            let parts = [&step.request, &step.response, &step.tool_input, &step.tool_output];
            append(&file, &parts.map(Vec::as_slice), &mut at, sync);
        }
    })
    .1
}

/// As [`raw_steps`], of bodies that stay with their owner.
fn raw_lent_steps(dir: &Path, steps: &[ConversationStep]) -> TimedWork {
    let file = File::create_new(dir.join("raw")).unwrap();
    let mut at = 0;
    timed(steps.len() as f64, || {
        for step in steps {
            let parts = [&step.request, &step.response, &step.tool_input, &step.tool_output];
            append(&file, &parts.map(Vec::as_slice), &mut at, false);
        }
    })
    .1
}

fn annals_lent_steps(dir: &Path, steps: &[ConversationStep]) -> TimedWork {
    let store = open_store(&dir.join("store"), Durability::Process);
    let run = begin_run(&store, "run");
    let (_, work) = timed(steps.len() as f64, || steps.iter().for_each(|step| record_lent_step(&run, step)));
    run.end(Status::Ok).unwrap();
    store.close().unwrap();
    work
}

/// Conversations of which each thread records one after the other.
pub(crate) fn many_conversations(plan: &PerformanceArgs) {
    const CONVERSATIONS: usize = 50;
    const EACH: usize = 40;
    let steps: Vec<ConversationStep> =
        BenchConversation::new(ConversationForm::Plain, 1).take(EACH).collect();
    let callers = |threads: usize| {
        let steps = &steps;
        move || {
            let dir = plan.temporary_dir();
            let store = open_store(&dir.path().join("store"), Durability::Process);
            let (_, work) = timed((CONVERSATIONS * EACH) as f64, || {
                std::thread::scope(|scope| {
                    for thread in 0..threads {
                        let store = &store;
                        scope.spawn(move || {
                            for number in (thread..CONVERSATIONS).step_by(threads) {
                                let run = begin_run(store, &format!("run-{number}"));
                                steps.iter().for_each(|step| record_lent_step(&run, step));
                                run.end(Status::Ok).unwrap();
                            }
                        });
                    }
                });
            });
            store.close().unwrap();
            work
        }
    };
    let contenders =
        vec![Contender::new("annals, 1 thread", callers(1)), Contender::new("annals, 4 threads", callers(4))];
    print_rates("50 conversations of 40 steps, Process", "steps", &interleave(plan.rounds, contenders));
}

fn annals_steps(dir: &Path, steps: Vec<ConversationStep>, durability: Durability) -> TimedWork {
    let store = open_store(&dir.join("store"), durability);
    let run = store.namespace("default").unwrap().begin_run(RunSpec::new("run")).unwrap();
    let (_, work) = timed(steps.len() as f64, || {
        for step in steps {
            record_step(&run, step);
        }
    });
    run.end(Status::Ok).unwrap();
    store.close().unwrap();
    work
}

/// The growing conversation beside a bare write of its raw bytes.
pub(crate) fn conversation(plan: &PerformanceArgs) {
    let forms: Vec<(ConversationForm, Vec<ConversationStep>)> = ConversationForm::ALL
        .into_iter()
        .map(|form| (form, BenchConversation::new(form, 1).take(STEPS).collect()))
        .collect();
    for (durability, sync) in [(Durability::Process, false), (Durability::Disk, true)] {
        let raw = &forms[0].1;
        let mut contenders = vec![Contender::new(
            if sync { "pwrite of the raw bodies + fdatasync" } else { "pwrite of the raw bodies" },
            move || raw_steps(plan.temporary_dir().path(), raw.clone(), sync),
        )];
        for (form, steps) in &forms {
            contenders.push(Contender::new(format!("annals, {}", form.name()), move || {
                annals_steps(plan.temporary_dir().path(), steps.clone(), durability)
            }));
        }
        if sync {
            contenders.push(Contender::new("append of 2.5 KB + fdatasync", || {
                let dir = plan.temporary_dir();
                let file = File::create_new(dir.path().join("raw")).unwrap();
                let (bytes, mut at) = (vec![7; 2560], 0);
                timed(STEPS as f64, || (0..STEPS).for_each(|_| append(&file, &[&bytes], &mut at, true))).1
            }));
        }
        print_rates(
            &format!("growing conversation, {durability:?}"),
            "steps",
            &interleave(plan.rounds, contenders),
        );
    }
    let raw = &forms[0].1;
    let mut contenders =
        vec![Contender::new("pwrite of the raw bodies", || raw_lent_steps(plan.temporary_dir().path(), raw))];
    for (form, steps) in &forms {
        contenders.push(Contender::new(format!("annals, {}", form.name()), move || {
            annals_lent_steps(plan.temporary_dir().path(), steps)
        }));
    }
    let rates = interleave(plan.rounds, contenders);
    print_rates("growing conversation, Process, bodies lent", "steps", &rates);
}

/// Real runs, one commit for each frame, beside a bare write of their bodies.
pub(crate) fn real_runs(plan: &PerformanceArgs) {
    let Some(chat) = &plan.chat else {
        println!("\nreal: give --chat FILE.json");
        return;
    };
    // Without user frames, so that the figures can be compared with earlier ones.
    let options = || ChatOptions {
        id: Some("{task_id}-{trial}".parse().unwrap()),
        expansion: Expansion::Calls,
        ..Default::default()
    };
    let source = std::io::BufReader::new(File::open(chat).unwrap());
    let runs: Vec<_> = ChatRuns::new(source, options()).map(|run| run.unwrap()).collect();
    let frames: usize = runs.iter().map(annals_formats::import::ImportedRun::frame_count).sum();
    let bodies: Vec<Vec<Frame>> = runs.iter().map(|run| run.frames().collect()).collect();
    let raw: Vec<[std::sync::Arc<Vec<u8>>; 2]> = bodies
        .iter()
        .flatten()
        .map(|frame| {
            [&frame.input, &frame.output].map(|body| match body {
                annals::kv::Content::Bytes(bytes) => bytes.clone(),
                _ => panic!("imported bodies are bytes"),
            })
        })
        .collect();
    let contenders = vec![
        Contender::new("pwrite of the raw bodies", || {
            let dir = plan.temporary_dir();
            let file = File::create_new(dir.path().join("raw")).unwrap();
            let mut at = 0;
            timed(frames as f64, || {
                raw.iter().for_each(|[a, b]| append(&file, &[a, b], &mut at, false));
            })
            .1
        }),
        Contender::new("annals", || {
            let dir = plan.temporary_dir();
            let store = open_store(&dir.path().join("store"), Durability::Process);
            let space = store.namespace("default").unwrap();
            let work = timed(frames as f64, || {
                for (run, frames) in runs.iter().zip(&bodies) {
                    let recorded = space.begin_run(RunSpec::new(run.id.clone())).unwrap();
                    for frame in frames {
                        recorded.record(frame.clone()).unwrap();
                    }
                    recorded.end(Status::Ok).unwrap();
                }
            })
            .1;
            store.close().unwrap();
            work
        }),
    ];
    print_rates("real runs, Process, a commit a frame", "frames", &interleave(plan.rounds, contenders));
}

/// Small records in batches.
pub(crate) fn kv(plan: &PerformanceArgs) {
    const COUNT: usize = 500_000;
    const BATCH: usize = 100;
    let mut random = BenchRng(7);
    let value: Vec<u8> = (0..512 + 64).map(|_| b' ' + (random.next() % 90) as u8).collect();
    let keys: Vec<[u8; 16]> = (0..COUNT as u64).map(scattered_key).collect();
    let record = |index: usize| &value[index % 64..index % 64 + 512];
    let contenders = vec![
        Contender::new("pwrite, 100 records at once", || {
            let dir = plan.temporary_dir();
            let file = File::create_new(dir.path().join("raw")).unwrap();
            let (mut at, mut buffer) = (0, Vec::new());
            timed(COUNT as f64, || {
                for (batch, keys) in keys.chunks(BATCH).enumerate() {
                    buffer.clear();
                    for (index, key) in keys.iter().enumerate() {
                        buffer.extend_from_slice(key);
                        buffer.extend_from_slice(record(batch * BATCH + index));
                    }
                    append(&file, &[&buffer], &mut at, false);
                }
            })
            .1
        }),
        Contender::new("annals, submitted, the last awaited", || kv_run(plan, &keys, BATCH, &record, false)),
        Contender::new("annals, each batch awaited", || kv_run(plan, &keys, BATCH, &record, true)),
    ];
    print_rates(
        "kv records of 512 B, batches of 100, Process",
        "records",
        &interleave(plan.rounds, contenders),
    );
    let keys = &keys[..COUNT / 10];
    let contenders = vec![
        Contender::new("pwrite, one record at once", || {
            let dir = plan.temporary_dir();
            let file = File::create_new(dir.path().join("raw")).unwrap();
            let mut at = 0;
            timed(keys.len() as f64, || {
                for (index, key) in keys.iter().enumerate() {
                    append(&file, &[key, record(index)], &mut at, false);
                }
            })
            .1
        }),
        Contender::new("annals, each key awaited", || kv_run(plan, keys, 1, &record, true)),
    ];
    let rates = interleave(plan.rounds, contenders);
    print_rates("keys of 512 B, one by one, Process", "records", &rates);
}

fn kv_run<'a>(
    plan: &PerformanceArgs,
    keys: &[[u8; 16]],
    size: usize,
    record: &dyn Fn(usize) -> &'a [u8],
    wait: bool,
) -> TimedWork {
    let dir = plan.temporary_dir();
    let store = open_store(&dir.path().join("store"), Durability::Process);
    let space = store.namespace("default").unwrap();
    let kv = space.keyspace("kv", History::Latest).unwrap();
    let (_, work) = timed(keys.len() as f64, || {
        let mut last = None;
        for (batch, keys) in keys.chunks(size).enumerate() {
            let mut changes = space.batch();
            for (index, key) in keys.iter().enumerate() {
                changes.put(&kv, key, record(batch * size + index));
            }
            match wait {
                true => drop(changes.commit().unwrap()),
                false => last = Some(changes.submit().unwrap()),
            }
        }
        if let Some(last) = last {
            last.wait().unwrap();
        }
    });
    let found = kv.get(&keys[keys.len() / 2]).unwrap();
    assert_eq!(found.as_deref(), Some(record(keys.len() / 2)));
    store.close().unwrap();
    work
}

/// Frames of 512 bytes: submitted without waiting, and durable one by one from 16 callers.
pub(crate) fn frames(plan: &PerformanceArgs) {
    const COUNT: usize = 50_000;
    let bodies = small_bodies(COUNT);
    let contenders = vec![
        Contender::new("pwrite, one frame at once", || {
            let dir = plan.temporary_dir();
            let file = File::create_new(dir.path().join("raw")).unwrap();
            let mut at = 0;
            timed(COUNT as f64, || {
                bodies.iter().for_each(|(a, b)| append(&file, &[a, b], &mut at, false));
            })
            .1
        }),
        Contender::new("annals, submitted, one caller", || {
            let dir = plan.temporary_dir();
            let store = open_store(&dir.path().join("store"), Durability::Process);
            let run = begin_run(&store, "run");
            let frames = small_frames(COUNT);
            let (_, work) = timed(COUNT as f64, || {
                let last = frames.into_iter().map(|frame| run.submit(frame).unwrap().1).last();
                last.unwrap().wait().unwrap();
            });
            run.end(Status::Ok).unwrap();
            store.close().unwrap();
            work
        }),
        Contender::new("annals, each awaited, one caller", || {
            let dir = plan.temporary_dir();
            let store = open_store(&dir.path().join("store"), Durability::Process);
            let run = begin_run(&store, "run");
            let frames = small_frames(COUNT);
            let (_, work) = timed(COUNT as f64, || {
                for frame in frames {
                    run.record(frame).unwrap();
                }
            });
            run.end(Status::Ok).unwrap();
            store.close().unwrap();
            work
        }),
    ];
    print_rates("frames of 512 B, Process", "frames", &interleave(plan.rounds, contenders));
    let callers = |count: usize, each: usize| {
        move || {
            let dir = plan.temporary_dir();
            let store = open_store(&dir.path().join("store"), Durability::Disk);
            let mut frames = small_frames(count * each);
            let of_each: Vec<_> = (0..count)
                .map(|number| {
                    (begin_run(&store, &format!("run-{number}")), frames.split_off(frames.len() - each))
                })
                .collect();
            let (_, work) = timed((count * each) as f64, || {
                std::thread::scope(|scope| {
                    for (run, frames) in of_each {
                        scope.spawn(move || {
                            for frame in frames {
                                run.record(frame).unwrap();
                            }
                        });
                    }
                });
            });
            store.close().unwrap();
            work
        }
    };
    let contenders = vec![
        Contender::new("append of 512 B + fdatasync, one by one", || {
            let dir = plan.temporary_dir();
            let file = File::create_new(dir.path().join("raw")).unwrap();
            let (bytes, mut at) = (vec![7; 512], 0);
            timed(1000.0, || (0..1000).for_each(|_| append(&file, &[&bytes], &mut at, true))).1
        }),
        Contender::new("annals, 1 caller, Disk each", callers(1, 1000)),
        Contender::new("annals, 16 callers, Disk each", callers(16, 1000)),
    ];
    print_rates("frames of 512 B, durable each", "frames", &interleave(plan.rounds, contenders));
}
