//! Recording and replaying the growing conversation: `cargo bench -p annals-benches`.
#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use annals::{Component, Durability, Frame, Options, RunSpec, Status, Store};
use annals_benches::conversation::{Conversation, Form, Step};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};

const STEPS: usize = 50;

fn steps(form: Form) -> Vec<Step> {
    Conversation::new(form, 1).take(STEPS).collect()
}

fn record(store: &Store, steps: Vec<Step>) {
    let run = store.namespace("bench").unwrap().begin_run(RunSpec::new("run")).unwrap();
    for step in steps {
        run.record(Frame::new(Component::Llm, step.request, step.response)).unwrap();
    }
    run.end(Status::Ok).unwrap();
}

fn fresh() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { durability: Durability::Process, ..Options::default() };
    let store = Store::open_with(dir.path().join("store"), options).unwrap();
    (dir, store)
}

fn conversations(criterion: &mut Criterion) {
    for form in [Form::Plain, Form::MovingMarker, Form::ChangingHead] {
        let steps = steps(form);
        let bytes: usize = steps.iter().map(|step| step.request.len() + step.response.len()).sum();
        let mut group = criterion.benchmark_group(form.name());
        group.throughput(Throughput::Bytes(bytes as u64)).sample_size(10);
        group.bench_function("record", |bench| {
            bench.iter_batched(
                || (fresh(), steps.clone()),
                |((dir, store), steps)| {
                    record(&store, steps);
                    (dir, store)
                },
                BatchSize::PerIteration,
            );
        });
        let (dir, store) = fresh();
        record(&store, steps);
        let reader = store.namespace("bench").unwrap().run("run").unwrap();
        group.bench_function("replay verified", |bench| bench.iter(|| reader.verify().unwrap()));
        group.finish();
        drop(dir);
    }
}

criterion_group!(benches, conversations);
criterion_main!(benches);
