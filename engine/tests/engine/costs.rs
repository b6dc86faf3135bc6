//! What an operation costs, counted at the doors of `io`: reads of the log, writes, syncs. The formulas stand in
//! docs/performance.md. No operation here may cost more in a store with more runs.
//!
//! `ANNALS_COST_RUNS=1000,100000 cargo test --release -p annals --test engine costs::` counts at other sizes.

use std::sync::Arc;

use annals::io::sim::{OpKind, SimIo};
use annals::runs::{RunFilter, RunOrder};
use annals::{Component, Durability, Frame, Namespace, Options, ReadMode, RunSpec, Severity, Status, Store};

/// Numbers of runs that are compared.
fn sizes() -> Vec<u32> {
    let text = std::env::var("ANNALS_COST_RUNS").unwrap_or_else(|_| "300,3000".to_owned());
    text.split(',')
        .map(|number| number.parse().unwrap_or_else(|_| panic!("ANNALS_COST_RUNS: {number:?} is no number")))
        .collect()
}

/// What passed the doors of `io`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct DoorCounts {
    reads: u64,
    writes: u64,
    syncs: u64,
}

impl DoorCounts {
    fn now(sim: &SimIo) -> Self {
        Self {
            reads: sim.count(OpKind::Read),
            writes: sim.count(OpKind::Write),
            syncs: sim.count(OpKind::Sync) + sim.count(OpKind::SyncDir),
        }
    }
}

/// Calls `work` and returns its result with what it cost.
fn counted<T>(sim: &SimIo, work: impl FnOnce() -> T) -> (T, DoorCounts) {
    let before = DoorCounts::now(sim);
    let start = std::time::Instant::now();
    let result = work();
    let took = start.elapsed();
    let after = DoorCounts::now(sim);
    let cost = DoorCounts {
        reads: after.reads - before.reads,
        writes: after.writes - before.writes,
        syncs: after.syncs - before.syncs,
    };
    println!("{cost:?} in {:.2} ms", took.as_secs_f64() * 1e3);
    (result, cost)
}

/// Positional reads: each record that is read passes a door.
fn options(sim: &SimIo) -> Options {
    Options {
        io: Arc::new(sim.clone()),
        durability: Durability::Process,
        read_mode: ReadMode::Positional,
        ..Options::default()
    }
}

fn small_run(space: &Namespace, number: u32) {
    let tags = vec![("team".to_owned(), format!("t{}", number % 10))];
    let spec = RunSpec { tags, ..RunSpec::new(format!("run-{number}")).agent("clerk").model("small") };
    let run = space.prepare_run(spec).unwrap();
    let mut batch = run.batch().unwrap();
    batch.frame(Frame::new(Component::Llm, format!("question {number}"), "answer")).unwrap();
    batch.end(if number.is_multiple_of(100) { Status::Failed } else { Status::Ok }).unwrap();
    drop(batch.submit().unwrap());
}

/// A store of this many ended runs of one frame, closed cleanly.
fn store_of(runs: u32) -> SimIo {
    let sim = SimIo::new(7);
    let store = Store::open_with("s", options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    for number in 0..runs {
        small_run(&space, number);
    }
    store.close().unwrap();
    sim
}

/// Counts `work` on stores of each size. Returns the costs, smallest store first.
fn costs_by_size(work: impl Fn(&SimIo) -> DoorCounts) -> Vec<DoorCounts> {
    let costs: Vec<DoorCounts> = sizes().into_iter().map(|runs| work(&store_of(runs))).collect();
    println!("{costs:?}");
    costs
}

/// Regression: closing read the record of every run to find the open ones, and awaited a commit for each open
/// run. A store of 100,000 runs took seconds to close.
#[test]
fn closing_reads_only_open_runs() {
    let costs = costs_by_size(|sim| {
        let store = Store::open_with("s", options(sim)).unwrap();
        let space = store.namespace("default").unwrap();
        let open: Vec<_> =
            (0..5).map(|n| space.begin_run(RunSpec::new(format!("open-{n}"))).unwrap()).collect();
        let (closed, cost) = counted(sim, || store.close());
        closed.unwrap();
        drop(open);
        cost
    });
    assert!(costs.iter().all(|cost| cost.reads <= 80 && cost.writes <= 40), "{costs:?}");
    let least = costs.iter().map(|cost| cost.reads).min().unwrap();
    assert!(costs.iter().all(|cost| cost.reads <= least + 4), "{costs:?}");
}

/// Regression: the opening after a crash read the record of every run.
#[test]
fn opening_after_a_crash_reads_only_open_runs() {
    let costs = costs_by_size(|sim| {
        let store = Store::open_with("s", options(sim)).unwrap();
        let space = store.namespace("default").unwrap();
        let open: Vec<_> =
            (0..5).map(|n| space.begin_run(RunSpec::new(format!("open-{n}"))).unwrap()).collect();
        let crashed = sim.crash(annals::io::sim::Crash::Everything);
        drop(open);
        let (store, cost) = counted(&crashed, || Store::open_with("s", options(&crashed)).unwrap());
        let info = store.namespace("default").unwrap().run("open-3").unwrap().info().clone();
        assert_eq!(info.status, Status::Abandoned);
        cost
    });
    let least = costs.iter().map(|cost| cost.reads).min().unwrap();
    assert!(costs.iter().all(|cost| cost.reads <= least + 10), "{costs:?}");
}

/// Regression: each look-up of a keyspace's name read the records of all names. The daemon looked up 17 names to
/// open a tenant, so opening one of 100 tenants read 1,700 records.
#[test]
fn looking_a_name_up_reads_nothing() {
    let sim = SimIo::new(7);
    let store = Store::open_with("s", options(&sim)).unwrap();
    for tenant in 0..100 {
        store.namespace(&format!("tenant-{tenant}")).unwrap();
    }
    let names = |store: &Store| {
        let space = store.namespace("tenant-42").unwrap();
        (0..17).filter(|n| space.find_keyspace(&format!("db{n}")).unwrap().is_some()).count()
    };
    let (found, cost) = counted(&sim, || names(&store));
    assert_eq!((found, cost), (0, DoorCounts::default()));
    store.close().unwrap();
    let reader = Store::open_read_only_with("s", options(&sim)).unwrap();
    assert_eq!(counted(&sim, || names(&reader)), (0, DoorCounts::default()));
}

/// Regression: forgetting a run read the record of every run, to find the forks that share its frames.
#[test]
fn forgetting_a_run_reads_only_that_run_and_its_forks() {
    let costs = costs_by_size(|sim| {
        let store = Store::open_with("s", options(sim)).unwrap();
        let space = store.namespace("default").unwrap();
        let fork = space.fork("run-7", 1, false, RunSpec::new("fork")).unwrap();
        fork.end(Status::Ok).unwrap();
        let (_, cost) = counted(sim, || {
            let dropped = space.forget("run-7", "asked to").unwrap();
            let (_, remnants) = space.run_remnants(dropped.uid).unwrap();
            assert_eq!(remnants.shared, 1);
        });
        cost
    });
    let least = costs.iter().map(|cost| cost.reads).min().unwrap();
    assert!(costs.iter().all(|cost| cost.reads <= least + 2 && cost.reads <= 20), "{costs:?}");
}

/// Regression: a page of runs read the keys of all runs, and a filter read the record of every run before the
/// ones that it found.
#[test]
fn a_page_of_runs_reads_only_the_runs_it_shows() {
    let filters = [
        RunFilter::default(),
        RunFilter { statuses: vec![Status::Failed], ..RunFilter::default() },
        RunFilter { tags: vec![("team".into(), "t3".into())], ..RunFilter::default() },
        RunFilter { agent: Some("clerk".into()), ..RunFilter::default() },
        RunFilter { agent: Some("nobody".into()), ..RunFilter::default() },
        RunFilter { severity: Some(Severity::Escalated), ..RunFilter::default() },
        RunFilter { model: Some("small".into()), statuses: vec![Status::Failed], ..RunFilter::default() },
    ];
    for filter in filters {
        let costs = costs_by_size(|sim| {
            let reader = Store::open_read_only_with("s", options(sim)).unwrap();
            let space = reader.namespace("default").unwrap();
            let (page, cost) =
                counted(sim, || space.page_runs(&filter, RunOrder::NewestFirst, None, 3).unwrap());
            assert!(cost.reads <= 8 * (page.runs.len() as u64 + 1), "{filter:?}: {cost:?}");
            cost
        });
        assert!(costs.iter().all(|cost| *cost == costs[0]), "{filter:?}: {costs:?}");
    }
}
