//! Reading: verified scans beside the hash's own rate, single frames cold and warm.

use annals::{Component, Durability, Frame, RunReader, RunSpec, Status};
use annals_benches::conversation::{BenchConversation, ConversationForm};
use annals_benches::measure::{Contender, interleave, quantile, sorted_samples, timed};
use annals_benches::workloads::{open_store, record_step};

use crate::{PerformanceArgs, print_rates};

/// A closed store with a run of 200 steps, and the number of a frame halfway whose bodies together have 4 KB.
fn filled_store(plan: &PerformanceArgs, form: ConversationForm) -> (tempfile::TempDir, annals::Store, u32) {
    let dir = plan.temporary_dir();
    let path = dir.path().join("store");
    let store = open_store(&path, Durability::Process);
    let run = store.namespace("default").unwrap().begin_run(RunSpec::new("run")).unwrap();
    let mut small = 0;
    for (index, step) in BenchConversation::new(form, 1).take(200).enumerate() {
        if index == 100 {
            let words = BenchConversation::new(ConversationForm::Plain, 2).next().unwrap().response;
            let (input, output) = words[..4096.min(words.len())].split_at(1024);
            let frame = Frame::new(Component::Planner, input.to_vec(), output.to_vec());
            small = run.record(frame).unwrap();
        }
        record_step(&run, step);
    }
    run.end(Status::Ok).unwrap();
    store.close().unwrap();
    (dir, annals::Store::open_read_only(path).unwrap(), small)
}

fn reader(store: &annals::Store) -> RunReader {
    store.namespace("default").unwrap().run("run").unwrap()
}

/// All frames of a run, every byte checked against its hash.
pub(crate) fn scan(plan: &PerformanceArgs) {
    let bodies: Vec<Vec<u8>> = BenchConversation::new(ConversationForm::Plain, 1)
        .take(200)
        .flat_map(|step| [step.request, step.response, step.tool_input, step.tool_output])
        .collect();
    let bytes: usize = bodies.iter().map(Vec::len).sum();
    let stores = ConversationForm::ALL.map(|form| (form, filled_store(plan, form)));
    let mut contenders = vec![
        Contender::new("BLAKE3 of the same bodies in memory", || {
            timed(bytes as f64, || {
                for body in &bodies {
                    std::hint::black_box(blake3::hash(body));
                }
            })
            .1
        }),
        // How much a second thread gains on this machine.
        Contender::new("BLAKE3 of the same bodies, two threads", || {
            let (even, odd): (Vec<_>, Vec<_>) =
                bodies.iter().enumerate().partition(|(at, _)| at / 4 % 2 == 0);
            let hash = |half: Vec<(usize, &Vec<u8>)>| {
                for (_, body) in half {
                    std::hint::black_box(blake3::hash(body));
                }
            };
            let both = || {
                std::thread::scope(|scope| {
                    scope.spawn(|| hash(even));
                    hash(odd);
                });
            };
            timed(bytes as f64, both).1
        }),
        Contender::new("copy of the same bodies", || {
            timed(bytes as f64, || {
                for body in &bodies {
                    std::hint::black_box(body.clone());
                }
            })
            .1
        }),
    ];
    for (form, (_, store, _)) in &stores {
        for (threads, name) in [(1, "one thread"), (2, "two threads")] {
            contenders.push(Contender::new(format!("annals, {name}, {}", form.name()), move || {
                store.drop_caches();
                let work = || reader(store).verify_with_threads(threads).unwrap().frames;
                let (frames, work) = timed(bytes as f64, work);
                assert_eq!(frames, 401);
                work
            }));
        }
    }
    let plain = &stores[0].1.1;
    for (name, verified) in [("verified", true), ("unverified", false)] {
        contenders.push(Contender::new(format!("annals, frames handed out, {name}, plain"), move || {
            plain.drop_caches();
            let reader = if verified { reader(plain) } else { reader(plain).unverified() };
            timed(bytes as f64, || {
                for frame in reader.frames() {
                    std::hint::black_box(frame.unwrap());
                }
            })
            .1
        }));
    }
    print_rates("verified replay scan, caches empty at first", "bytes", &interleave(plan.rounds, contenders));
}

/// Times reading one frame: with its records and groups decoded anew, and from the caches.
///
/// "Cold" is without the engine's caches. The system's page cache is warm, and dropping the caches is
/// counted. The frame of 780 KB is the conversation's last request and needs all groups. The tool frame
/// follows it, in the last group. The frame of 4 KB is in the middle of a run and of a group. The response is
/// streamed.
pub(crate) fn single(plan: &PerformanceArgs) {
    let (_dir, store, small) = filled_store(plan, ConversationForm::Plain);
    let verified = reader(&store);
    let unverified = verified.unverified();
    let last = (1..=verified.info().frames).rev();
    let is_big = |seq: &u32| verified.frame_info(*seq).unwrap().component == Component::Llm;
    let big = last.clone().find(is_big).unwrap();
    println!("\nsingle frames (microseconds; median, 99%)");
    let show = |name: &str, times: &[std::time::Duration]| {
        let us = |share| quantile(times, share).as_secs_f64() * 1e6;
        println!("  {name:44} {:>10.1} {:>10.1}", us(0.5), us(0.99));
    };
    let body = verified.frame(big).unwrap().input;
    show(
        "BLAKE3 of 780 KB",
        &sorted_samples(1000, |_| {
            std::hint::black_box(blake3::hash(&body));
        }),
    );
    show("copy of 780 KB", &sorted_samples(1000, |_| drop(std::hint::black_box(body.clone()))));
    show(
        "BLAKE3 of 4 KB",
        &sorted_samples(5000, |_| {
            std::hint::black_box(blake3::hash(&body[..4096]));
        }),
    );
    for (name, seq) in [("780 KB", big), ("1 KB tool frame", big + 1), ("4 KB frame", small)] {
        let cold = sorted_samples(200, |_| {
            store.drop_caches();
            std::hint::black_box(verified.frame(seq).unwrap());
        });
        show(&format!("{name}, cold, verified"), &cold);
        let cold = sorted_samples(200, |_| {
            store.drop_caches();
            std::hint::black_box(unverified.frame(seq).unwrap());
        });
        show(&format!("{name}, cold, unverified"), &cold);
        let warm = sorted_samples(2000, |_| drop(std::hint::black_box(verified.frame(seq).unwrap())));
        show(&format!("{name}, from the caches, verified"), &warm);
        let warm = sorted_samples(2000, |_| drop(std::hint::black_box(unverified.frame(seq).unwrap())));
        show(&format!("{name}, from the caches, unverified"), &warm);
    }
    let mut out = Vec::new();
    let response = sorted_samples(1000, |_| {
        store.drop_caches();
        out.clear();
        std::io::Read::read_to_end(&mut verified.output_reader(big).unwrap(), &mut out).unwrap();
    });
    show("4 KB response streamed, cold, verified", &response);
    let response = sorted_samples(5000, |_| {
        out.clear();
        std::io::Read::read_to_end(&mut verified.output_reader(big).unwrap(), &mut out).unwrap();
    });
    show("4 KB response streamed, from the caches", &response);
    let streamed = sorted_samples(500, |_| {
        out.clear();
        std::io::Read::read_to_end(&mut verified.input_reader(big).unwrap(), &mut out).unwrap();
    });
    show("780 KB streamed, from the caches, verified", &streamed);
}
