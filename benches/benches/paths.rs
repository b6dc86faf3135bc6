//! Measures each path of the engine by itself: `cargo bench -p annals-benches`. The example `performance`
//! runs them beside their physical limits, and the example `hot` counts their instructions.
#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use annals::{Durability, History, RunSpec, Status, Store};
use annals_benches::conversation::{BenchConversation, ConversationForm, ConversationStep};
use annals_benches::workloads::{begin_run, open_store, record_step, scattered_key, small_frames};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};

const STEPS: usize = 50;

fn fresh(durability: Durability) -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = open_store(&dir.path().join("store"), durability);
    (dir, store)
}

fn conversations(criterion: &mut Criterion) {
    for form in ConversationForm::ALL {
        let steps: Vec<ConversationStep> = BenchConversation::new(form, 1).take(STEPS).collect();
        let bytes: usize = steps.iter().map(ConversationStep::raw_len).sum();
        let mut group = criterion.benchmark_group(form.name());
        group.throughput(Throughput::Bytes(bytes as u64)).sample_size(10);
        for durability in [Durability::Process, Durability::Disk] {
            group.bench_function(format!("record, {durability:?}"), |bench| {
                bench.iter_batched(
                    || (fresh(durability), steps.clone()),
                    |((dir, store), steps)| {
                        let run = begin_run(&store, "run");
                        steps.into_iter().for_each(|step| record_step(&run, step));
                        (dir, store)
                    },
                    BatchSize::PerIteration,
                );
            });
        }
        let (_dir, store) = fresh(Durability::Process);
        let run = begin_run(&store, "run");
        steps.into_iter().for_each(|step| record_step(&run, step));
        run.end(Status::Ok).unwrap();
        let reader = store.namespace("default").unwrap().run("run").unwrap();
        group.bench_function("replay verified", |bench| {
            bench.iter(|| {
                store.drop_caches();
                reader.verify().unwrap()
            });
        });
        group.finish();
    }
}

fn single_frames(criterion: &mut Criterion) {
    let (_dir, store) = fresh(Durability::Process);
    let run = begin_run(&store, "run");
    BenchConversation::new(ConversationForm::Plain, 1).take(200).for_each(|step| record_step(&run, step));
    run.end(Status::Ok).unwrap();
    let reader = store.namespace("default").unwrap().run("run").unwrap();
    let mut group = criterion.benchmark_group("one frame");
    group.sample_size(20);
    for (name, seq) in [("780 KB", 399), ("1 KB", 400)] {
        group.bench_function(format!("{name}, cold"), |bench| {
            bench.iter(|| {
                store.drop_caches();
                reader.frame(seq).unwrap()
            });
        });
        group.bench_function(format!("{name}, from the cache"), |bench| {
            bench.iter(|| reader.frame(seq).unwrap());
        });
    }
    group.bench_function("fork", |bench| {
        let space = store.namespace("default").unwrap();
        let mut number = 0u32;
        bench.iter(|| {
            number += 1;
            space.fork("run", number % 400 + 1, false, RunSpec::new(format!("fork-{number}"))).unwrap()
        });
    });
    group.finish();
}

fn records(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("records");
    group.sample_size(10);
    let (_dir, store) = fresh(Durability::Process);
    let space = store.namespace("default").unwrap();
    let kv = space.keyspace("kv", History::Latest).unwrap();
    let mut number = 0;
    group.throughput(Throughput::Elements(100));
    group.bench_function("put 512 B, batches of 100", |bench| {
        bench.iter(|| {
            let mut batch = space.batch();
            for _ in 0..100 {
                number += 1;
                batch.put(&kv, &scattered_key(number), &[7; 512]);
            }
            batch.commit().unwrap()
        });
    });
    group.throughput(Throughput::Elements(1));
    let mut at = 0;
    group.bench_function("get", |bench| {
        bench.iter(|| {
            at = (at * 31 + 7) % number;
            kv.get(&scattered_key(at + 1)).unwrap()
        });
    });
    group.throughput(Throughput::Elements(1000));
    group.bench_function("frames of 512 B, submitted", |bench| {
        let mut name = 0;
        bench.iter_batched(
            || {
                name += 1;
                (begin_run(&store, &format!("run-{name}")), small_frames(1000))
            },
            |(run, frames)| {
                let last = frames.into_iter().map(|frame| run.submit(frame).unwrap().1).last();
                last.unwrap().wait().unwrap();
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

fn opening(criterion: &mut Criterion) {
    let (dir, store) = fresh(Durability::Process);
    let space = store.namespace("default").unwrap();
    let kv = space.keyspace("kv", History::Latest).unwrap();
    for first in (0..200_000).step_by(100) {
        let mut batch = space.batch();
        for number in first..first + 100 {
            batch.put(&kv, &scattered_key(number), &[7; 100]);
        }
        batch.commit().unwrap();
    }
    store.close().unwrap();
    let path = dir.path().join("store");
    let mut group = criterion.benchmark_group("open");
    group.sample_size(10);
    group.bench_function("read-only, 200,000 keys", |bench| {
        bench.iter(|| Store::open_read_only(&path).unwrap());
    });
    group.finish();
}

criterion_group!(benches, conversations, single_frames, records, opening);
criterion_main!(benches);
