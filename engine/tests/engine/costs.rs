//! What an operation costs, counted at the doors of `io`: reads of the log, writes, syncs. The formulas stand in
//! docs/performance.md. No operation here may cost more in a store with more runs.
//!
//! `ANNALS_COST_RUNS=300,50000 cargo test -p annals --test engine costs::` counts at other sizes.

use std::sync::Arc;

use annals::io::sim::{OpKind, SimIo};
use annals::kv::{History, Keyspace, ScanRange};
use annals::retention::{DeadlineKind, RetentionLimit, RetentionPlan, RetentionPolicy, RetentionRule};
use annals::runs::{RunFilter, RunOrder};
use annals::{
    Component, Durability, Frame, Namespace, Options, ReadMode, Run, RunSpec, RunUid, Severity, Status, Store,
};

/// Numbers of runs that are compared, unless the environment says otherwise.
fn sizes(unless_said: &str) -> Vec<u32> {
    let text = std::env::var("ANNALS_COST_RUNS").unwrap_or_else(|_| unless_said.to_owned());
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
    let costs: Vec<DoorCounts> = sizes("300,3000").into_iter().map(|runs| work(&store_of(runs))).collect();
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
            let dropped = space.forget("run-7", "asked to").unwrap().run;
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

/// Regression: statistics and the plan of a sweep read the record of every run. Both ask the index now, which also
/// knows the runs that were dropped and replaced.
#[test]
fn statistics_and_sweep_plans_read_no_ended_run() {
    let costs = costs_by_size(|sim| {
        let store = Store::open_with("s", options(sim)).unwrap();
        let space = store.namespace("default").unwrap();
        let before = store.stats().unwrap();
        space.drop_run("run-3", "test", "").unwrap();
        space.begin_run(RunSpec::new("run-4").replace(true)).unwrap().end(Status::Failed).unwrap();
        space.pin("run-5", "evidence").unwrap();
        let open = space.begin_run(RunSpec::new("open")).unwrap();
        let mut batch = open.batch().unwrap();
        batch.frame(Frame::new(Component::Llm, "question", "answer")).unwrap();
        batch.commit().unwrap();
        let (stats, counting) = counted(sim, || store.stats().unwrap());
        assert_eq!((stats.runs, stats.frames), (before.runs, before.frames - 1));
        assert_eq!((stats.dropped_runs, stats.dropped_frames, stats.sampled_out_runs), (1, 1, 0));
        let rules = vec![
            RetentionRule {
                statuses: vec![Status::Failed],
                tags: vec![("team".into(), None)],
                ..RetentionRule::new("failed", RetentionLimit::Newest(1))
            },
            RetentionRule::new("all", RetentionLimit::ForNs(0)),
        ];
        let policy = RetentionPolicy::new(rules);
        let (plan, planning) = counted(sim, || store.plan_retention(&policy, Some(u64::MAX)).unwrap());
        let report = plan.report();
        // Every hundredth run failed and has a tag; the replacement of run-4 failed and has none.
        let failed = stats.runs / 100;
        assert_eq!((report.open, report.pinned.runs), (1, 1));
        assert_eq!((report.rules[0].kept.runs, report.rules[0].dropped.runs), (1, failed - 1));
        assert_eq!(report.rules[1].dropped.runs, stats.runs - failed - 2);
        assert!(planning.reads <= 10 + 2 * failed, "{planning:?}: more than the {failed} runs with a tag");
        (store, open, counting).2
    });
    let least = costs.iter().map(|cost| cost.reads).min().unwrap();
    assert!(costs.iter().all(|cost| cost.reads <= least + 2 && cost.reads <= 30), "{costs:?}");
}

/// A store of many runs with everything that one call of each operation needs.
struct CostBench {
    sim: SimIo,
    store: Store,
    space: Namespace,
    notes: Keyspace,
    /// The run that is being recorded.
    run: Option<Run>,
}

impl CostBench {
    /// Opens a store of this many ended runs and as many keys.
    fn open(runs: u32) -> Self {
        let sim = store_of(runs);
        let store = Store::open_with("s", options(&sim)).unwrap();
        let space = store.namespace("default").unwrap();
        let notes = space.keyspace("notes", History::Latest).unwrap();
        space.keyspace("annals.deadlines", History::Latest).unwrap();
        let deadlines = space.complete_deadlines(DeadlineKind::Key, |_| Ok(None)).unwrap();
        for numbers in (0..runs).collect::<Vec<_>>().chunks(1000) {
            let mut batch = space.batch();
            for number in numbers {
                let note = format!("note-{number}");
                batch.put(&notes, note.as_bytes(), "a short value");
                deadlines.add(&mut batch, DeadlineKind::Key, u64::from(*number), note.as_bytes());
            }
            batch.commit().unwrap();
        }
        let marked = space.begin_run(RunSpec::new("marked")).unwrap();
        marked.set_severity(Severity::Escalated).unwrap();
        marked.end(Status::Ok).unwrap();
        // The pins of a namespace are in a keyspace, whose name costs a record.
        space.pin("run-50", "evidence").unwrap();
        store.close().unwrap();
        let store = Store::open_with("s", options(&sim)).unwrap();
        let space = store.namespace("default").unwrap();
        let notes = space.find_keyspace("notes").unwrap().unwrap();
        Self { sim, store, space, notes, run: None }
    }

    fn run(&self) -> &Run {
        self.run.as_ref().unwrap()
    }

    fn escalated_go(&self) -> RetentionPlan {
        let severities = vec![Severity::Escalated];
        let rule = RetentionRule { severities, ..RetentionRule::new("marked", RetentionLimit::ForNs(0)) };
        let policy = RetentionPolicy::new(vec![rule]);
        self.store.plan_retention(&policy, Some(u64::MAX)).unwrap()
    }
}

/// An operation, the most reads, writes and syncs that one call may cost, and the call.
type CostedOperation = (&'static str, [u64; 3], fn(&mut CostBench));

const OPERATIONS: &[CostedOperation] = &[
    ("open for reading", [14, 0, 0], |bench| {
        drop(Store::open_read_only_with("s", options(&bench.sim)).unwrap());
    }),
    ("names", [0, 0, 0], |bench| {
        bench.store.namespace("default").unwrap();
        bench.space.find_keyspace("notes").unwrap().unwrap();
    }),
    ("stats, no run open", [6, 0, 0], |bench| assert!(bench.store.stats().unwrap().runs > 200)),
    ("get", [1, 0, 0], |bench| assert!(bench.notes.get(b"note-77").unwrap().is_some())),
    ("put", [0, 1, 0], |bench| assert!(bench.notes.put(b"new", "value").unwrap().0 > 0)),
    ("delete", [0, 1, 0], |bench| assert!(bench.notes.delete(b"note-78").unwrap().0 > 0)),
    ("scan of 10", [10, 0, 0], |bench| {
        assert_eq!(bench.notes.scan(ScanRange::prefix(b"note-1")).take(10).map(Result::unwrap).count(), 10);
    }),
    ("keys of 10", [0, 0, 0], |bench| {
        assert_eq!(bench.notes.scan(ScanRange::prefix(b"note-1")).keys().take(10).count(), 10);
    }),
    ("has_due, due entries", [0, 0, 0], |bench| {
        assert!(bench.space.has_due(DeadlineKind::Key, 9).unwrap());
        let index = bench.space.find_deadlines().unwrap().unwrap();
        assert_eq!(index.due(DeadlineKind::Key, 9, None, 256).unwrap().len(), 10);
    }),
    ("begin_run", [0, 1, 0], |bench| bench.run = Some(bench.space.begin_run(RunSpec::new("new")).unwrap())),
    ("record", [0, 1, 0], |bench| {
        bench.run().record(Frame::new(Component::Llm, "what is a question?", "an answer")).unwrap();
    }),
    ("snapshot", [0, 1, 0], |bench| {
        bench.run().snapshot("state", &[]).unwrap();
    }),
    ("set_severity", [0, 1, 0], |bench| bench.run().set_severity(Severity::Flagged).unwrap()),
    ("end", [1, 1, 0], |bench| bench.run.take().unwrap().end(Status::Ok).map(drop).unwrap()),
    ("begin_run that replaces, end", [4, 2, 0], |bench| {
        let spec = RunSpec::new("run-70").replace(true);
        bench.space.begin_run(spec).unwrap().end(Status::Ok).unwrap();
    }),
    ("is_pinned, pinned", [1, 0, 0], |bench| assert!(bench.space.is_pinned(RunUid(51)).unwrap())),
    ("is_pinned, not pinned", [0, 0, 0], |bench| assert!(!bench.space.is_pinned(RunUid(52)).unwrap())),
    ("run", [2, 0, 0], |bench| drop(bench.space.run("run-60").unwrap())),
    ("frame", [3, 0, 0], |bench| drop(bench.space.run("run-61").unwrap().frame(1).unwrap())),
    ("verify of a run", [3, 0, 0], |bench| {
        bench.space.run("run-62").unwrap().verify().unwrap();
    }),
    ("fork", [5, 1, 0], |bench| {
        bench.run = Some(bench.space.fork("run-63", 1, false, RunSpec::new("fork")).unwrap());
    }),
    ("abandon", [4, 1, 0], |bench| bench.run.take().unwrap().abandon().unwrap()),
    ("resume_run", [5, 1, 0], |bench| drop(bench.space.resume_run("fork").unwrap())),
    ("page_runs of 5", [5, 0, 0], |bench| {
        bench.space.page_runs(&RunFilter::default(), RunOrder::OldestFirst, None, 5).unwrap();
    }),
    ("stats", [11, 0, 0], |bench| assert!(bench.store.stats().unwrap().runs > 200)),
    ("pin", [2, 1, 1], |bench| drop(bench.space.pin("run-64", "evidence").unwrap())),
    ("unpin", [3, 1, 1], |bench| assert!(bench.space.unpin("run-64").unwrap())),
    ("plan_retention", [1, 0, 0], |bench| {
        assert_eq!(bench.escalated_go().report().dropped().runs, 1);
    }),
    // The first drop of a namespace makes the keyspace of notes about dropped names: two writes and a sync.
    ("plan_retention, retain of one run", [2, 3, 2], |bench| {
        bench.store.retain(bench.escalated_go()).unwrap();
    }),
    ("forget", [3, 1, 1], |bench| drop(bench.space.forget("run-65", "asked to").unwrap())),
    ("run_remnants", [1, 0, 0], |bench| {
        bench.space.run_remnants(RunUid(66)).unwrap();
    }),
    // The first flag of a namespace makes the keyspaces of flags and of links: two writes and a sync each.
    ("flag, the first", [6, 5, 3], |bench| {
        drop(bench.space.flag("run-70", Severity::Flagged, "odd").unwrap())
    }),
    ("flag", [6, 1, 1], |bench| drop(bench.space.flag("run-71", Severity::Escalated, "odd").unwrap())),
    ("unflag", [3, 1, 1], |bench| assert!(bench.space.unflag("run-71").unwrap())),
    ("close", [5, 3, 4], |bench| bench.store.clone().close().unwrap()),
];

/// Each operation costs at most what docs/performance.md says, and the same in a store a hundred times larger. The
/// writer's thread notes the log's end in between: one write and one sync more.
#[test]
fn operations_cost_the_same_in_a_large_store() {
    let mut faults = Vec::new();
    let mut counts: Vec<Vec<DoorCounts>> = vec![Vec::new(); OPERATIONS.len()];
    for runs in sizes("1000,100000") {
        let built = std::time::Instant::now();
        let mut bench = CostBench::open(runs);
        println!("a store of {runs} runs, made in {:.1} s", built.elapsed().as_secs_f64());
        for ((name, [reads, writes, syncs], call), counts) in OPERATIONS.iter().zip(&mut counts) {
            print!("{name}: ");
            let sim = bench.sim.clone();
            let ((), cost) = counted(&sim, || call(&mut bench));
            if cost.reads > *reads || cost.writes > writes + 1 || cost.syncs > syncs + 1 {
                faults.push(format!("{name} at {runs} runs: {cost:?}"));
            }
            counts.push(cost);
        }
    }
    for ((name, ..), counts) in OPERATIONS.iter().zip(&counts) {
        // A larger store has some files more.
        if counts.iter().any(|cost| cost.reads > counts[0].reads + 1) {
            faults.push(format!("{name} depends on the number of runs: {counts:?}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
