//! Reading: verified scans beside the hash's own rate, single frames cold and warm.

use annals::{Component, Durability, RunReader, RunSpec, Status};
use annals_benches::conversation::{Conversation, Form};
use annals_benches::measure::{Contender, interleave, quantile, samples, timed};
use annals_benches::work::{open, record_step};

use crate::{Plan, table};

fn filled(plan: &Plan, form: Form) -> (tempfile::TempDir, annals::Store) {
    let dir = plan.fresh();
    let path = dir.path().join("store");
    let store = open(&path, Durability::Process);
    let run = store.namespace("default").unwrap().begin_run(RunSpec::new("run")).unwrap();
    Conversation::new(form, 1).take(200).for_each(|step| record_step(&run, step));
    run.end(Status::Ok).unwrap();
    store.close().unwrap();
    (dir, annals::Store::open_read_only(path).unwrap())
}

fn reader(store: &annals::Store) -> RunReader {
    store.namespace("default").unwrap().run("run").unwrap()
}

/// All frames of a run, every byte checked against its hash.
pub(crate) fn scan(plan: &Plan) {
    let bodies: Vec<Vec<u8>> = Conversation::new(Form::Plain, 1)
        .take(200)
        .flat_map(|step| [step.request, step.response, step.tool_input, step.tool_output])
        .collect();
    let bytes: usize = bodies.iter().map(Vec::len).sum();
    let stores = Form::ALL.map(|form| (form, filled(plan, form)));
    let mut contenders = vec![
        Contender::new("BLAKE3 of the same bodies in memory", || {
            timed(bytes as f64, || {
                for body in &bodies {
                    std::hint::black_box(blake3::hash(body));
                }
            })
            .1
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
    for (form, (_, store)) in &stores {
        contenders.push(Contender::new(format!("annals, one thread, {}", form.name()), move || {
            store.drop_caches();
            timed(bytes as f64, || assert_eq!(reader(store).verify().unwrap().frames, 400)).1
        }));
    }
    let plain = &stores[0].1.1;
    contenders.push(Contender::new("annals, frames handed out, one thread, plain", || {
        plain.drop_caches();
        timed(bytes as f64, || {
            for frame in reader(plain).frames() {
                std::hint::black_box(frame.unwrap());
            }
        })
        .1
    }));
    table("verified replay scan, caches empty at first", "bytes", &interleave(plan.rounds, contenders));
}

/// One frame: its group decoded anew, and out of the cache.
pub(crate) fn single(plan: &Plan) {
    let (_dir, store) = filled(plan, Form::Plain);
    let reader = reader(&store);
    let last = (1..=reader.info().frames).rev();
    let big = last.clone().find(|seq| reader.frame_info(*seq).unwrap().component == Component::Llm).unwrap();
    println!("\nsingle frames (microseconds; median, 99%)");
    let show = |name: &str, times: &[std::time::Duration]| {
        let us = |share| quantile(times, share).as_secs_f64() * 1e6;
        println!("  {name:44} {:>10.1} {:>10.1}", us(0.5), us(0.99));
    };
    for (name, seq) in [("780 KB", big), ("1 KB tool frame", big + 1)] {
        let cold = samples(200, |_| {
            store.drop_caches();
            std::hint::black_box(reader.frame(seq).unwrap());
        });
        show(&format!("{name}, cold, with dropping the caches"), &cold);
        let warm = samples(1000, |_| drop(std::hint::black_box(reader.frame(seq).unwrap())));
        show(&format!("{name}, from the cache, verified"), &warm);
    }
    let mut out = Vec::new();
    let response = samples(1000, |_| {
        store.drop_caches();
        out.clear();
        std::io::Read::read_to_end(&mut reader.output_reader(big).unwrap(), &mut out).unwrap();
    });
    show("4 KB response, cold", &response);
    let response = samples(5000, |_| {
        out.clear();
        std::io::Read::read_to_end(&mut reader.output_reader(big).unwrap(), &mut out).unwrap();
    });
    show("4 KB response, from the cache, verified", &response);
}
