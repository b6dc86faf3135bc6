//! Size: opening large stores, memory, forks, cost by length.

use std::path::Path;
use std::time::{Duration, Instant};

use annals::{Component, Durability, Frame, Namespace, Options, RunSpec, Status, Store, kv::History};
use annals_benches::conversation::{BenchConversation, BenchRng, ConversationForm, ConversationStep};
use annals_benches::measure::{quantile, resident_bytes as resident, sorted_samples, timed};
use annals_benches::workloads::{open_store, record_step, scattered_key};

use crate::PerformanceArgs;

const KEYS: u64 = 5_000_000;
const RUNS: usize = 4_000;

fn value(number: u64) -> Vec<u8> {
    let mut random = BenchRng(number ^ 0xabcd);
    (0..40).flat_map(|_| random.next().to_le_bytes()).collect()
}

fn put_keys(space: &Namespace, from: u64, to: u64) {
    let kv = space.keyspace("kv", History::Latest).unwrap();
    let mut at = from;
    let mut last = None;
    while at < to {
        let mut batch = space.batch();
        for number in at..(at + 100).min(to) {
            batch.put(&kv, &scattered_key(number), value(number));
        }
        last = Some(batch.submit().unwrap());
        at += 100;
    }
    if let Some(last) = last {
        last.wait().unwrap();
    }
}

fn put_runs(space: &Namespace, count: usize, steps: &[ConversationStep]) {
    for number in 0..count {
        let run = space.begin_run(RunSpec::new(format!("run-{number}"))).unwrap();
        for step in steps {
            record_step(&run, step.clone());
        }
        run.end(Status::Ok).unwrap();
    }
}

/// Records until the process is killed.
pub(crate) fn fill_until_killed(path: &Path) {
    let store = open_store(path, Durability::Process);
    let space = store.namespace("default").unwrap();
    let from = store.seqno().0;
    put_keys(&space, from, from + 700_000);
    println!("filled");
    std::thread::sleep(Duration::from_secs(600));
}

fn store_bytes(path: &Path) -> u64 {
    let stats = Store::open_read_only(path).unwrap().stats().unwrap();
    stats.disk_bytes
}

/// Opening a store of 2 GB after a clean close and after a kill.
pub(crate) fn open_and_recover(plan: &PerformanceArgs) {
    let dir = plan.temporary_dir();
    let path = dir.path().join("store");
    let steps: Vec<ConversationStep> = BenchConversation::new(ConversationForm::Plain, 5).take(4).collect();
    println!("\nopening");
    let store = open_store(&path, Durability::Process);
    let space = store.namespace("default").unwrap();
    let (_, runs) = timed(RUNS as f64, || put_runs(&space, RUNS, &steps));
    println!("  recorded {RUNS} runs of 8 frames in {:.1} s", runs.took.as_secs_f64());
    let mut from = 0;
    for part in [KEYS / 8, KEYS / 2, KEYS] {
        let store = if from == 0 { store.clone() } else { open_store(&path, Durability::Process) };
        let space = store.namespace("default").unwrap();
        let (_, work) = timed((part - from) as f64, || put_keys(&space, from, part));
        println!("  wrote keys up to {part}: {:.0} a second", work.done / work.took.as_secs_f64());
        drop(space);
        let (_, closing) = timed(1.0, || store.close().unwrap());
        println!("  closed in {:.3} s", closing.took.as_secs_f64());
        from = part;
        let times = sorted_samples(plan.rounds.max(5), |_| {
            let store = open_store(&path, Durability::Process);
            let kv = store.namespace("default").unwrap().keyspace("kv", History::Latest).unwrap();
            assert!(kv.get(&scattered_key(17)).unwrap().is_some());
            store.close().unwrap();
        });
        let read_only = sorted_samples(plan.rounds.max(5), |_| drop(Store::open_read_only(&path).unwrap()));
        println!(
            "  {:.2} GB, {part} keys: opened for writing, read a key and closed in {:.1} ms; opened for reading in {:.1} ms",
            store_bytes(&path) as f64 / 1e9,
            quantile(&times, 0.5).as_secs_f64() * 1e3,
            quantile(&read_only, 0.5).as_secs_f64() * 1e3
        );
        let mut opening: Vec<Duration> = (0..plan.rounds.max(5))
            .map(|_| {
                let (store, work) = timed(1.0, || open_store(&path, Durability::Process));
                store.close().unwrap();
                work.took
            })
            .collect();
        opening.sort();
        println!("  opened for writing alone in {:.1} ms", quantile(&opening, 0.5).as_secs_f64() * 1e3);
    }
    let before = store_bytes(&path);
    for _ in 0..3 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .arg("--fill")
            .arg(&path)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
            .unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let (store, work) = timed(1.0, || open_store(&path, Durability::Process));
        println!("  after a kill: opened in {:.3} s", work.took.as_secs_f64());
        store.close().unwrap();
    }
    println!("  ({:.2} GB more were written)", (store_bytes(&path) - before) as f64 / 1e9);
}

/// Forks of a run of 200 steps beside copies of it.
pub(crate) fn forks(plan: &PerformanceArgs) {
    let dir = plan.temporary_dir();
    let path = dir.path().join("store");
    let store = open_store(&path, Durability::Process);
    let space = store.namespace("default").unwrap();
    let steps: Vec<ConversationStep> = BenchConversation::new(ConversationForm::Plain, 1).take(200).collect();
    let run = space.begin_run(RunSpec::new("run")).unwrap();
    steps.iter().cloned().for_each(|step| record_step(&run, step));
    run.end(Status::Ok).unwrap();
    store.close().unwrap();
    let before = store_bytes(&path);
    let store = open_store(&path, Durability::Process);
    let space = store.namespace("default").unwrap();
    let (_, forked) = timed(1000.0, || {
        for number in 0..1000u32 {
            let spec = RunSpec::new(format!("fork-{number}"));
            drop(space.fork("run", number % 400 + 1, false, spec).unwrap());
        }
    });
    store.close().unwrap();
    let fork_bytes = store_bytes(&path) - before;
    let store = open_store(&path, Durability::Process);
    let space = store.namespace("default").unwrap();
    let (_, copied) = timed(10.0, || {
        for number in 0..10 {
            let copy = space.begin_run(RunSpec::new(format!("copy-{number}"))).unwrap();
            for frame in space.run("run").unwrap().frames() {
                let frame = frame.unwrap();
                copy.record(Frame::new(frame.component, frame.input, frame.output)).unwrap();
            }
            copy.end(Status::Ok).unwrap();
        }
    });
    store.close().unwrap();
    let copy_bytes = store_bytes(&path) - before - fork_bytes;
    let each = |work: annals_benches::measure::TimedWork| work.took.as_secs_f64() / work.done * 1e6;
    println!("\nforks of a run of 200 steps");
    println!("  a fork {:.1} us, {:.0} bytes", each(forked), fork_bytes as f64 / 1000.0);
    println!("  a copy in the same store {:.1} us, {:.0} bytes", each(copied), copy_bytes as f64 / 10.0);
    println!(
        "  forks are {:.0} times faster and {:.0} times smaller than copies in the same store; {:.0} times smaller than the run as first stored",
        each(copied) / each(forked),
        (copy_bytes as f64 / 10.0) / (fork_bytes as f64 / 1000.0),
        before as f64 / (fork_bytes as f64 / 1000.0)
    );
}

/// Anonymous memory while 2 GB are recorded into 1,000 runs that stay open, and while random keys are read.
pub(crate) fn memory(plan: &PerformanceArgs) {
    let dir = plan.temporary_dir();
    let path = dir.path().join("store");
    let store = open_store(&path, Durability::Process);
    let space = store.namespace("default").unwrap();
    println!("\nmemory (anonymous, resident)");
    println!("  at first {:.0} MB", resident().0 as f64 / 1e6);
    let runs: Vec<_> =
        (0..1000).map(|n| space.begin_run(RunSpec::new(format!("run-{n}"))).unwrap()).collect();
    let mut random = BenchRng(1);
    let mut most = 0;
    let (mut written, mut number) = (0u64, 0usize);
    let began = Instant::now();
    let mut report = 0;
    while written < 2_000_000_000 {
        // One third is text, and two thirds are bytes that do not compress.
        let text = BenchConversation::new(ConversationForm::Plain, number as u64).next().unwrap();
        let mut body = text.request;
        body.extend((0..3000).flat_map(|_| random.next().to_le_bytes()));
        written += body.len() as u64 + text.response.len() as u64;
        let run = &runs[number % runs.len()];
        let _ = run.submit(Frame::new(Component::Llm, body, text.response)).unwrap();
        number += 1;
        most = most.max(resident().0);
        if written / 500_000_000 > report {
            report = written / 500_000_000;
            println!(
                "  {:.1} GB, {number} frames: {:.0} MB",
                written as f64 / 1e9,
                resident().0 as f64 / 1e6
            );
        }
    }
    println!("  at most {:.0} MB in {:.1} s", most as f64 / 1e6, began.elapsed().as_secs_f64());
    drop(runs);
    store.close().unwrap();
    let dir = plan.temporary_dir();
    let path = dir.path().join("store");
    let store = open_store(&path, Durability::Process);
    let space = store.namespace("default").unwrap();
    let mut from = 0;
    for upto in [KEYS / 16, KEYS / 4, KEYS] {
        let mut at = from;
        let mut most = 0;
        while at < upto {
            put_keys(&space, at, (at + 20_000).min(upto));
            at += 20_000;
            most = most.max(resident().0);
        }
        from = upto;
        let kv = space.keyspace("kv", History::Latest).unwrap();
        let mut random = BenchRng(9);
        let times = sorted_samples(100_000, |_| {
            let number = random.next() % upto;
            assert!(kv.get(&scattered_key(number)).unwrap().is_some());
        });
        println!(
            "  {upto} keys: writing at most {:.0} MB; random gets: median {:.1} us, 99% {:.1} us, then {:.0} MB",
            most as f64 / 1e6,
            quantile(&times, 0.5).as_secs_f64() * 1e6,
            quantile(&times, 0.99).as_secs_f64() * 1e6,
            resident().0 as f64 / 1e6
        );
    }
    store.close().unwrap();
    let store = Store::open_read_only_with(&path, Options::default()).unwrap();
    let kv = store.namespace("default").unwrap().keyspace("kv", History::Latest).unwrap();
    let mut random = BenchRng(10);
    let times = sorted_samples(200_000, |_| {
        assert!(kv.get(&scattered_key(random.next() % KEYS)).unwrap().is_some());
    });
    println!(
        "  reopened: random gets: median {:.1} us, 99% {:.1} us, then {:.0} MB",
        quantile(&times, 0.5).as_secs_f64() * 1e6,
        quantile(&times, 0.99).as_secs_f64() * 1e6,
        resident().0 as f64 / 1e6
    );
}

/// Microseconds and bytes of a step, up to 2,000 steps. Comma-separated: form, steps so far, microseconds for
/// each step, KB of the request.
pub(crate) fn step_cost_curve(plan: &PerformanceArgs) {
    println!("\ncost of a step by its number (form,step,us a step,KB of the request)");
    for form in ConversationForm::ALL {
        let dir = plan.temporary_dir();
        let store = open_store(&dir.path().join("store"), Durability::Process);
        let run = store.namespace("default").unwrap().begin_run(RunSpec::new("run")).unwrap();
        let mut times: Vec<Duration> = Vec::new();
        for (number, step) in BenchConversation::new(form, 1).take(2000).enumerate() {
            let size = step.request.len();
            times.push(timed(1.0, || record_step(&run, step)).1.took);
            if (number + 1) % 200 == 0 {
                times.sort();
                let us = quantile(&times, 0.5).as_secs_f64() * 1e6;
                println!("{},{},{us:.0},{}", form.name(), number + 1, size / 1000);
                times.clear();
            }
        }
        run.end(Status::Ok).unwrap();
        store.close().unwrap();
    }
}

/// How long an awaited commit of 100 keys takes while a store grows: the longest waits come from the index.
pub(crate) fn commit_waits(plan: &PerformanceArgs) {
    const BATCH: u64 = 100;
    println!("\nawaited commits of {BATCH} keys of 512 B, `Process`, by the size of the store");
    println!(
        "  {:>12} {:>12} {:>10} {:>10} {:>10} {:>10}",
        "keys", "keys/s", "p50", "p99.9", "p99.99", "greatest"
    );
    let dir = plan.temporary_dir();
    let store = open_store(&dir.path().join("store"), Durability::Process);
    let space = store.namespace("default").unwrap();
    let kv = space.keyspace("kv", History::Latest).unwrap();
    let value: Vec<u8> = value(1).into_iter().chain(value(2)).take(512).collect();
    let mut at = 0;
    for end in [1_000_000, 2_000_000, 5_000_000, 10_000_000u64] {
        let (count, began) = (end - at, Instant::now());
        let waits = sorted_samples(usize::try_from(count / BATCH).unwrap(), |_| {
            let mut batch = space.batch();
            for number in at..at + BATCH {
                batch.put(&kv, &scattered_key(number), value.clone());
            }
            batch.commit().unwrap();
            at += BATCH;
        });
        let rate = count as f64 / began.elapsed().as_secs_f64();
        let at = |share| quantile(&waits, share);
        println!(
            "  {end:>12} {rate:>12.0} {:>10.1?} {:>10.1?} {:>10.1?} {:>10.1?}",
            at(0.5),
            at(0.999),
            at(0.9999),
            at(1.0)
        );
    }
    store.close().unwrap();
}

/// A store of 20 GB: filled once, then opened and read.
pub(crate) fn large(plan: &PerformanceArgs) {
    const VALUE_BYTES: u64 = 4000;
    const BATCH: u64 = 100;
    const KEYS: u64 = 20_000_000_000 / VALUE_BYTES;
    println!(
        "\n{} GB: {KEYS} keys of {VALUE_BYTES} B that do not compress, batches of {BATCH}, each awaited, `Process`",
        KEYS * VALUE_BYTES / 1_000_000_000
    );
    println!(
        "  {:>10} {:>8} {:>10} {:>10} {:>10} {:>10} {:>9}",
        "keys", "MB/s", "p50", "p99.9", "p99.99", "greatest", "memory, MB"
    );
    let dir = plan.temporary_dir();
    let path = dir.path().join("store");
    let store = open_store(&path, Durability::Process);
    let space = store.namespace("default").unwrap();
    let kv = space.keyspace("kv", History::Latest).unwrap();
    let content = |number: u64| -> Vec<u8> {
        let mut random = BenchRng(number ^ 0x1a57);
        (0..VALUE_BYTES / 8).flat_map(|_| random.next().to_le_bytes()).collect()
    };
    let mut at = 0;
    for tenth in 1..=10 {
        let (end, began) = (KEYS / 10 * tenth, Instant::now());
        let from = at;
        let waits = sorted_samples(usize::try_from((end - at) / BATCH).unwrap(), |_| {
            let mut batch = space.batch();
            for number in at..at + BATCH {
                batch.put(&kv, &scattered_key(number), content(number));
            }
            batch.commit().unwrap();
            at += BATCH;
        });
        let rate = ((end - from) * VALUE_BYTES) as f64 / 1e6 / began.elapsed().as_secs_f64();
        let wait = |share| quantile(&waits, share);
        println!(
            "  {end:>10} {rate:>8.0} {:>10.1?} {:>10.1?} {:>10.1?} {:>10.1?} {:>9.0}",
            wait(0.5),
            wait(0.999),
            wait(0.9999),
            wait(1.0),
            resident().0 as f64 / 1e6
        );
    }
    drop((kv, space));
    let (_, closing) = timed(1.0, || store.close().unwrap());
    println!(
        "  closed in {:.3} s; {:.2} GB on the disk",
        closing.took.as_secs_f64(),
        store_bytes(&path) as f64 / 1e9
    );
    let opening =
        sorted_samples(plan.rounds.max(5), |_| open_store(&path, Durability::Process).close().unwrap());
    println!("  opened and closed in {:.1} ms", quantile(&opening, 0.5).as_secs_f64() * 1e3);
    let store = open_store(&path, Durability::Process);
    let kv = store.namespace("default").unwrap().keyspace("kv", History::Latest).unwrap();
    let mut random = BenchRng(7);
    for round in 1..=2 {
        let gets = sorted_samples(20_000, |_| {
            let number = random.next() % KEYS;
            assert!(kv.get(&scattered_key(number)).unwrap().is_some_and(|value| value == content(number)));
        });
        println!(
            "  {} random gets, part {round}: p50 {:.1?}, p99 {:.1?}, greatest {:.1?}; {:.0} MB of memory",
            gets.len(),
            quantile(&gets, 0.5),
            quantile(&gets, 0.99),
            quantile(&gets, 1.0),
            resident().0 as f64 / 1e6
        );
    }
    store.close().unwrap();
}
