//! Dropping runs: what reads as gone, what stays for forks, what is never dropped, and sweeps by policy.

use std::sync::Arc;

use annals::io::sim::{Crash, SimIo};
use annals::{
    Component, ErrorKind, Frame, Namespace, Options, RunSpec, Severity, Status, Store,
    ledger::GapKind,
    retention::{RetentionLimit, RetentionPolicy, RetentionRule, RunShare},
    runs::{DroppedRun, RunFilter, RunOrder},
    upkeep::CompactOptions,
    vectors::Search,
};

use crate::support::{
    GrowingConversation, SeededRng, assert_whole, delete_tables, frames, fresh, process_durability_options,
    record, recorded, sim_options, writer,
};

const DAY_NS: u64 = 86_400 * 1_000_000_000;

fn ended_run(space: &Namespace, name: &str, steps: usize, status: Status) -> annals::RunInfo {
    recorded(space, name, steps).0.end(status).unwrap()
}

fn names(space: &Namespace) -> Vec<String> {
    space.runs().unwrap().map(|run| run.unwrap().name).collect()
}

fn dropped(space: &Namespace) -> Vec<DroppedRun> {
    let mut all = Vec::new();
    space
        .dropped(&mut |one| {
            all.push(one);
            Ok(())
        })
        .unwrap();
    all
}

/// Runs `check` on the store as it is, reopened, and with an index rebuilt from the log.
fn check_after_each_reopening(dir: &tempfile::TempDir, store: Store, check: impl Fn(&Store)) {
    check(&store);
    store.close().unwrap();
    let path = dir.path().join("s");
    check(&Store::open_read_only(&path).unwrap());
    delete_tables(&path);
    check(&Store::open_read_only(&path).unwrap());
    let store = writer(&path).unwrap();
    check(&store);
    store.close().unwrap();
}

#[test]
fn a_dropped_run_reads_as_gone_and_says_when_and_by_which_rule() {
    let (dir, store, space) = fresh();
    let kept = ended_run(&space, "kept", 3, Status::Ok);
    let gone = ended_run(&space, "gone", 5, Status::Ok);
    let before = space.run("gone").unwrap();
    let told = space.drop_run("gone", "normal", "").unwrap();
    assert_eq!((told.uid, told.frames, told.shared, told.rule.as_str()), (gone.uid, 5, 0, "normal"));
    assert!(told.dropped_ns >= gone.ended_ns.unwrap());
    // An existing reader of the run can continue.
    assert_eq!(frames(&before).len(), 5);
    check_after_each_reopening(&dir, store, |store| {
        let space = store.namespace("default").unwrap();
        assert_eq!(names(&space), ["kept"]);
        for error in [space.run("gone").unwrap_err(), space.run_by_uid(gone.uid).unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Gone);
            let text = error.to_string();
            assert!(text.contains("was dropped 20") && text.contains("by the rule \"normal\""), "{text}");
        }
        assert_eq!(space.run_by_uid(kept.uid).unwrap().info(), &kept);
        assert_eq!(space.last_run().unwrap().info().name, "kept");
        assert_eq!(dropped(&space), std::slice::from_ref(&told));
        let stats = store.stats().unwrap();
        assert_eq!((stats.runs, stats.frames), (1, 3));
        assert_eq!((stats.dropped_runs, stats.dropped_frames, stats.sampled_out_runs), (1, 5, 0));
        let mut gaps = Vec::new();
        store
            .gaps(&mut |gap| {
                gaps.push(gap);
                Ok(())
            })
            .unwrap();
        let [gap] = gaps.try_into().unwrap();
        assert_eq!((gap.kind, gap.run, gap.name, gap.frames), (GapKind::Dropped, gone.uid, None, Some(5)));
        assert_eq!((gap.rule.as_str(), gap.why.as_str()), ("normal", ""));
        assert_whole(store);
    });
    // Its name is free, its uid is not used again.
    let store = writer(dir.path().join("s")).unwrap();
    let space = store.namespace("default").unwrap();
    assert_eq!(space.drop_run("gone", "normal", "").unwrap_err().kind(), ErrorKind::Gone);
    let again = ended_run(&space, "gone", 2, Status::Ok);
    assert!(again.uid > gone.uid);
    check_after_each_reopening(&dir, store, |store| {
        let space = store.namespace("default").unwrap();
        assert_eq!(space.run("gone").unwrap().info(), &again);
        assert_eq!(space.run_by_uid(gone.uid).unwrap_err().kind(), ErrorKind::Gone);
        assert_eq!(names(&space), ["kept", "gone"]);
    });
}

#[test]
fn shared_frames_outlive_dropped_parent() {
    let (dir, store, space) = fresh();
    let (run, _) = recorded(&space, "a", 6);
    run.snapshot("state after 6", &[]).unwrap();
    record(&run, &mut GrowingConversation::new("a more"), 4);
    run.end(Status::Ok).unwrap();
    let b = space.fork("a", 8, false, RunSpec::new("b")).unwrap();
    record(&b, &mut GrowingConversation::new("b"), 3);
    b.end(Status::Ok).unwrap();
    let c = space.fork("b", 9, true, RunSpec::new("c")).unwrap();
    record(&c, &mut GrowingConversation::new("c"), 2);
    let c = c.end(Status::Ok).unwrap();
    let of_c = frames(&space.run("c").unwrap());
    // A fork of a dropped run can still be recorded.
    let d = space.fork("b", 10, false, RunSpec::new("d")).unwrap();
    space.drop_run("a", "rule of a", "").unwrap();
    space.drop_run("b", "rule of b", "").unwrap();
    record(&d, &mut GrowingConversation::new("a"), 3);
    let d = d.end(Status::Ok).unwrap();
    let of_d = frames(&space.run("d").unwrap());
    assert_eq!((of_d.len(), d.frames), (13, 13));
    check_after_each_reopening(&dir, store, |store| {
        let space = store.namespace("default").unwrap();
        assert_eq!(names(&space), ["c", "d"]);
        let reader = space.run("c").unwrap();
        assert_eq!((frames(&reader), reader.info().fingerprint), (of_c.clone(), c.fingerprint));
        assert_eq!(frames(&space.run("d").unwrap()), of_d);
        assert_eq!(reader.snapshot_at(7).unwrap().unwrap().state, b"state after 6");
        let point = reader.info().parent.clone().unwrap();
        assert_eq!((point.run, point.at, point.shared), (None, 9, 8));
        let told = dropped(&space);
        assert_eq!((told[1].frames, told[1].shared, told[1].own_frames()), (11, 8, 3));
        assert_eq!(space.run("b").unwrap_err().kind(), ErrorKind::Gone);
        assert_eq!(space.prove("c", Some(3), None).map(drop).unwrap_err().kind(), ErrorKind::Gone);
        assert!(space.prove("c", Some(9), None).is_ok() && space.prove("c", None, None).is_ok());
        // Frames 1 to 8 of a stay, through b; of b's own frames only those that d shares.
        let (_, held) = space.run_remnants(told[0].uid).unwrap();
        assert_eq!((held.shared, held.segments.is_empty()), (8, false));
        assert_eq!(space.run_remnants(told[1].uid).unwrap().1.shared, 10);
        assert_whole(store);
    });
    // A fork of a fork whose ancestors are all tombstones.
    let store = writer(dir.path().join("s")).unwrap();
    let space = store.namespace("default").unwrap();
    let e = space.fork("c", 5, false, RunSpec::new("e")).unwrap();
    record(&e, &mut GrowingConversation::new("e"), 1);
    e.end(Status::Ok).unwrap();
    assert_eq!(frames(&space.run("e").unwrap())[..5], of_c[..5]);
    assert_whole(&store);
}

#[test]
fn open_pinned_and_forking_runs_are_not_dropped() {
    let (dir, store, space) = fresh();
    let (open, _) = recorded(&space, "open", 2);
    ended_run(&space, "pinned", 2, Status::Ok);
    ended_run(&space, "parent", 2, Status::Ok);
    let refused = |run: &str, what: &str| {
        let error = space.drop_run(run, "r", "").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.to_string().contains(what), "{error}");
    };
    refused("open", "is open");
    let pin = space.pin("pinned", "evidence").unwrap();
    assert_eq!(space.pins().unwrap(), std::slice::from_ref(&pin));
    refused("pinned", "is pinned");
    let error = space.begin_run(RunSpec::new("pinned").replace(true)).unwrap_err();
    assert!(error.to_string().contains("pinned"), "{error}");
    let fork = space.prepare_fork("parent", 1, false, RunSpec::new("fork")).unwrap();
    refused("parent", "about to begin");
    // The protection ends with the fork: here it never begins, there it begins.
    drop(fork);
    let fork = space.fork("parent", 1, false, RunSpec::new("fork")).unwrap();
    space.drop_run("parent", "r", "").unwrap();
    assert_eq!(
        space.prepare_fork("parent", 1, false, RunSpec::new("f")).unwrap_err().kind(),
        ErrorKind::Gone
    );
    fork.end(Status::Ok).unwrap();
    open.end(Status::Ok).unwrap();
    space.drop_run("open", "r", "").unwrap();
    store.close().unwrap();
    // Pins last across reopenings.
    let store = writer(dir.path().join("s")).unwrap();
    let space = store.namespace("default").unwrap();
    assert_eq!(space.pins().unwrap(), [pin]);
    assert_eq!(space.drop_run("pinned", "r", "").unwrap_err().kind(), ErrorKind::Conflict);
    assert!(space.unpin("pinned").unwrap() && !space.unpin("pinned").unwrap());
    space.drop_run("pinned", "r", "").unwrap();
    assert_eq!(space.pin("pinned", "too late").unwrap_err().kind(), ErrorKind::Gone);
    for (rule, why) in
        [("", ""), ("a\nb", ""), (&"x".repeat(257), ""), ("r", "a\0"), ("r", &"x".repeat(1025))]
    {
        assert_eq!(space.drop_run("fork", rule, why).unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(space.forget("fork", " ").unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(space.forget("fork", "asked for").unwrap().run.rule, "forget");
    assert_eq!(names(&space), Vec::<String>::new());
}

/// A store on a simulated disk whose clock a test sets.
fn store_with_timed_runs() -> (SimIo, Store, Namespace) {
    let sim = SimIo::new(1);
    let options = Options { segment_bytes_max: 64 << 10, ..sim_options(&sim) };
    let store = Store::open_with("s", options).unwrap();
    let space = store.namespace("default").unwrap();
    (sim, store, space)
}

#[test]
fn built_in_policy_drops_only_due_runs_everywhere() {
    let (sim, store, space) = store_with_timed_runs();
    let other = store.namespace("other").unwrap();
    ended_run(&space, "ok", 2, Status::Ok);
    ended_run(&space, "failed", 3, Status::Failed);
    let (run, _) = recorded(&space, "flagged", 1);
    run.set_severity(Severity::Flagged).unwrap();
    run.end(Status::Ok).unwrap();
    ended_run(&space, "pinned", 2, Status::Ok);
    space.pin("pinned", "why").unwrap();
    ended_run(&other, "ok", 4, Status::Ok);
    let (_open, _) = recorded(&space, "open", 1);
    sim.advance_ns(6 * DAY_NS);
    ended_run(&space, "young", 1, Status::Ok);
    let plan = store.plan_retention(&RetentionPolicy::default(), None).unwrap();
    assert_eq!(plan.report().dropped().runs, 0);
    assert_eq!((plan.report().pinned.runs, plan.report().open), (1, 1));
    sim.advance_ns(DAY_NS);
    let plan = store.plan_retention(&RetentionPolicy::default(), None).unwrap();
    let report = plan.report().clone();
    let of = |rule: &str| report.rules.iter().find(|one| one.rule == rule).unwrap();
    assert_eq!((of("normal").dropped.runs, of("normal").dropped.frames, of("normal").kept.runs), (2, 6, 1));
    assert!(of("normal").dropped.bytes > 0);
    assert_eq!((of("failed").kept.runs, of("marked").kept.runs), (1, 1));
    assert_eq!(names(&space).len(), 6, "a plan changes nothing");
    // Between plan and execution.
    space.pin("ok", "wait").unwrap();
    let done = store.retain(plan).unwrap();
    assert_eq!((done.held, done.rules.clone()), (1, report.rules));
    assert_eq!(names(&other), Vec::<String>::new());
    space.unpin("ok").unwrap();
    store.retain(store.plan_retention(&RetentionPolicy::default(), None).unwrap()).unwrap();
    assert_eq!(names(&space), ["failed", "flagged", "pinned", "open", "young"]);
    let plan = store.plan_retention(&RetentionPolicy::default(), Some(sim_now(&sim) + 90 * DAY_NS)).unwrap();
    store.retain(plan).unwrap();
    assert_eq!(names(&space), ["pinned", "open"]);
    let rules: Vec<_> = dropped(&space).into_iter().map(|one| one.rule).collect();
    assert_eq!(rules, ["normal", "failed", "marked", "normal"]);
    assert_whole(&store);
}

fn sim_now(sim: &SimIo) -> u64 {
    annals::io::Io::now_ns(sim)
}

#[test]
fn a_clock_that_went_backwards_or_far_ahead_drops_nothing() {
    let (sim, store, space) = store_with_timed_runs();
    ended_run(&space, "run", 2, Status::Ok);
    let then = sim_now(&sim);
    let refused = |store: &Store, what: &str| {
        let error = store.plan_retention(&RetentionPolicy::default(), None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(
            error.to_string().contains(what) && error.to_string().contains("nothing was dropped"),
            "{error}"
        );
    };
    sim.set_now_ns(then - DAY_NS);
    refused(&store, "before the newest record");
    sim.set_now_ns(then + 401 * DAY_NS);
    refused(&store, "more than 400 days after");
    // A record written under a wrong clock proves no time while the store is open.
    ended_run(&space, "later", 1, Status::Ok);
    refused(&store, "more than 400 days after");
    assert_eq!(names(&space), ["run", "later"]);
    let told = store.plan_retention(&RetentionPolicy::default(), Some(then + 8 * DAY_NS)).unwrap();
    assert_eq!(told.report().dropped().runs, 1);
    store.retain(told).unwrap();
    assert_eq!(names(&space), ["later"]);
    sim.set_now_ns(then + 399 * DAY_NS);
    store.plan_retention(&RetentionPolicy::default(), None).unwrap();
}

#[test]
fn policy_naming_open_or_pinned_runs_is_refused_early() {
    let (_sim, store, space) = store_with_timed_runs();
    ended_run(&space, "run", 1, Status::Ok);
    let keep = RetentionLimit::ForNs(0);
    for rule in [
        RetentionRule { statuses: vec![Status::Open], ..RetentionRule::new("r", keep) },
        RetentionRule { pinned: Some(true), ..RetentionRule::new("r", keep) },
    ] {
        let policy = RetentionPolicy::new(vec![rule, RetentionRule::new("all", keep)]);
        assert_eq!(store.plan_retention(&policy, None).unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(names(&space), ["run"]);
}

#[test]
fn component_rules_match_frames_and_sampling_repeats() {
    let (sim, store, space) = store_with_timed_runs();
    for number in 0..200 {
        let run = space.begin_run(RunSpec::new(format!("run-{number:03}"))).unwrap();
        run.record(Frame::new(Component::Llm, "in", "out")).unwrap();
        if number % 10 == 0 {
            run.record(Frame::new(Component::Tool, "in", "out")).unwrap();
        }
        run.end(if number % 50 == 1 { Status::Failed } else { Status::Ok }).unwrap();
    }
    let tools = RetentionRule {
        components: vec![Component::Tool],
        ..RetentionRule::new("tools", RetentionLimit::Forever)
    };
    let policy =
        RetentionPolicy { sample: RunShare::parse("25%").unwrap(), ..RetentionPolicy::new(vec![tools]) };
    let plan = store.plan_retention(&policy, None).unwrap();
    let report = plan.report().clone();
    let of = |rule: &str| report.rules.iter().find(|one| one.rule == rule).unwrap();
    assert_eq!(of("tools").kept.runs, 20);
    let out = of("sampling").dropped.runs;
    // Of 176 about three in four are dropped; five standard deviations are 29.
    assert!((103..=161).contains(&out), "{out}");
    assert_eq!(out + report.unmatched.runs, 180);
    store.retain(plan).unwrap();
    let left = names(&space);
    assert!((0..200).step_by(10).all(|n| left.contains(&format!("run-{n:03}"))), "a tool was called there");
    assert!([1, 51, 101, 151].iter().all(|n| left.contains(&format!("run-{n:03}"))), "these failed");
    // A second sweep drops no run that stayed.
    assert_eq!(store.plan_retention(&policy, None).unwrap().report().dropped().runs, 0);
    let stats = store.stats().unwrap();
    assert_eq!((stats.runs, stats.dropped_runs, stats.sampled_out_runs), (200 - out, out, out));
    store.close().unwrap();
    let store = Store::open_with("s", Options { io: Arc::new(sim), ..Options::default() }).unwrap();
    assert_eq!(store.plan_retention(&policy, None).unwrap().report().dropped().runs, 0);
    assert_eq!(store.stats().unwrap().sampled_out_runs, out);
}

/// Such runs once stayed until the next sweep, however late it was.
#[test]
fn unsampled_run_is_dropped_at_its_end_and_counted() {
    let (sim, store, space) = store_with_timed_runs();
    ended_run(&space, "before", 1, Status::Ok);
    let none = RetentionPolicy {
        sample: RunShare::parse("0%").unwrap(),
        ..RetentionPolicy::new(vec![RetentionRule {
            tags: vec![("hold".to_owned(), None)],
            ..RetentionRule::new("held", RetentionLimit::Forever)
        }])
    };
    // Runs that ended before the first call are left to a sweep.
    assert_eq!(store.sample_ended(&none).unwrap(), 0);
    ended_run(&space, "ok", 2, Status::Ok);
    ended_run(&space, "failed", 1, Status::Failed);
    let flagged = space.begin_run(RunSpec::new("flagged")).unwrap();
    flagged.set_severity(Severity::Flagged).unwrap();
    flagged.end(Status::Ok).unwrap();
    space.begin_run(RunSpec::new("held").tag("hold", "x")).unwrap().end(Status::Ok).unwrap();
    let pinned = space.begin_run(RunSpec::new("pinned")).unwrap();
    pinned.record(Frame::new(Component::Llm, "in", "out")).unwrap();
    space.pin("pinned", "to be looked at").unwrap();
    pinned.end(Status::Ok).unwrap();
    let open = space.begin_run(RunSpec::new("open")).unwrap();
    open.record(Frame::new(Component::Llm, "in", "out")).unwrap();
    let other = store.namespace("other").unwrap();
    ended_run(&other, "elsewhere", 1, Status::Ok);
    // The decision is as of the run's end, not of the current time.
    sim.set_now_ns(1);
    assert_eq!(store.sample_ended(&none).unwrap(), 2);
    assert_eq!(names(&space), ["before", "failed", "flagged", "held", "pinned", "open"]);
    assert!(names(&other).is_empty());
    assert_eq!(
        dropped(&space).iter().map(|run| (run.frames, run.rule.as_str())).collect::<Vec<_>>(),
        [(2, "sampling")]
    );
    let stats = store.stats().unwrap();
    assert_eq!((stats.dropped_runs, stats.sampled_out_runs), (2, 2));
    // Each run is judged once, and a policy that samples nothing drops nothing.
    assert_eq!(store.sample_ended(&none).unwrap(), 0);
    open.end(Status::Ok).unwrap();
    assert_eq!(store.sample_ended(&RetentionPolicy::default()).unwrap(), 0);
    assert_eq!(store.sample_ended(&none).unwrap(), 0, "the run was judged before");
    // Sampling uses the same hash as a sweep: both drop the same runs.
    let half =
        RetentionPolicy { sample: RunShare::parse("50%").unwrap(), ..RetentionPolicy::new(Vec::new()) };
    for number in 0..40 {
        ended_run(&space, &format!("run-{number}"), 1, Status::Ok);
    }
    let went = store.sample_ended(&half).unwrap();
    assert!((8..=32).contains(&went), "{went}");
    sim.set_now_ns(u64::MAX / 4);
    let plan = store.plan_retention(&half, Some(u64::MAX / 4)).unwrap();
    let left: Vec<_> = names(&space).into_iter().filter(|name| name.starts_with("run-")).collect();
    assert_eq!(left.len() as u64, 40 - went);
    store.retain(plan).unwrap();
    assert_eq!(names(&space).into_iter().filter(|name| name.starts_with("run-")).collect::<Vec<_>>(), left);
    let wrong = RetentionPolicy::new(vec![RetentionRule::new("", RetentionLimit::Forever)]);
    assert_eq!(store.sample_ended(&wrong).unwrap_err().kind(), ErrorKind::Invalid);
}

/// A call right after the end once saw such a run as open, so the run stayed until a sweep.
#[test]
fn ending_run_is_sampled_as_of_its_end() {
    let (sim, store, space) = store_with_timed_runs();
    let none =
        |rules| RetentionPolicy { sample: RunShare::parse("0%").unwrap(), ..RetentionPolicy::new(rules) };
    assert_eq!(store.sample_ended(&none(Vec::new())).unwrap(), 0);
    for number in 0..50 {
        let run = space.begin_run(RunSpec::new(format!("run-{number}"))).unwrap();
        let mut batch = run.batch().unwrap();
        batch.end(Status::Ok).unwrap();
        let ticket = batch.submit().unwrap();
        assert_eq!(store.sample_ended(&none(Vec::new())).unwrap(), 1, "{number}");
        ticket.wait().unwrap();
    }
    // A late call decides as of the run's end, too. A rule that keeps young runs once kept this one.
    let young = RetentionRule {
        younger_than_ns: Some(DAY_NS),
        ..RetentionRule::new("young", RetentionLimit::Forever)
    };
    ended_run(&space, "young", 1, Status::Ok);
    sim.advance_ns(2 * DAY_NS);
    assert_eq!(store.sample_ended(&none(vec![young])).unwrap(), 0);
    assert_eq!(names(&space), ["young"]);
}

#[test]
fn crash_leaves_drop_whole_or_absent() {
    let (sim, store, space) = store_with_timed_runs();
    for number in 0..5 {
        ended_run(&space, &format!("run-{number}"), 3, Status::Ok);
    }
    space.drop_run("run-1", "r", "").unwrap();
    space.drop_run("run-3", "r", "").unwrap();
    // Neither closed nor flushed: acknowledged drops are on disk.
    let disks: Vec<SimIo> = (0..20).map(|seed| sim.crash(Crash::Seed(seed))).collect();
    drop((store, space));
    for after in disks {
        let store = Store::open_with("s", sim_options(&after)).unwrap();
        let space = store.namespace("default").unwrap();
        assert_eq!(names(&space), ["run-0", "run-2", "run-4"]);
        assert_eq!(dropped(&space).len(), 2);
        assert_whole(&store);
    }
}

#[test]
fn a_repaired_store_does_not_bring_dropped_runs_back() {
    let (dir, store, space) = fresh();
    ended_run(&space, "gone", 3, Status::Ok);
    ended_run(&space, "parent", 3, Status::Ok);
    let fork = space.fork("parent", 2, false, RunSpec::new("fork")).unwrap();
    record(&fork, &mut GrowingConversation::new("fork"), 1);
    let fork = fork.end(Status::Ok).unwrap();
    space.pin("fork", "evidence").unwrap();
    space.flag("fork", Severity::Escalated, "seen").unwrap();
    space.flag("gone", Severity::Flagged, "gone").unwrap();
    for run in ["gone", "parent"] {
        space.drop_run(run, "r", "").unwrap();
    }
    drop(space);
    store.close().unwrap();
    let report =
        annals::upkeep::repair(dir.path().join("s"), dir.path().join("new"), process_durability_options())
            .unwrap();
    assert_eq!((report.runs, report.lost), (1, Vec::new()));
    let store = writer(dir.path().join("new")).unwrap();
    let space = store.namespace("default").unwrap();
    let repaired = space.run("fork").unwrap();
    assert_eq!(repaired.info().fingerprint, fork.fingerprint);
    let pins = space.pins().unwrap();
    assert_eq!((pins.len(), pins[0].uid, pins[0].why.as_str()), (1, repaired.info().uid, "evidence"));
    // The flag follows its run's number, and still goes with it.
    let flag = repaired.flag().unwrap().unwrap();
    assert_eq!((flag.severity, flag.why.as_str()), (Severity::Escalated, "seen"));
    assert_eq!(space.flags().unwrap(), [flag]);
    space.unpin("fork").unwrap();
    space.drop_run("fork", "r", "").unwrap();
    assert_eq!(space.flags().unwrap(), []);
}

/// The bytes of all files of a store.
fn files(root: &std::path::Path) -> Vec<u8> {
    let mut all = Vec::new();
    for dir in [root.to_path_buf(), root.join("segments"), root.join("tables"), root.join("vectors")] {
        // A store is complete without its tables and vector files.
        for entry in std::fs::read_dir(dir).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_file() {
                all.extend(std::fs::read(path).unwrap());
            }
        }
    }
    all
}

fn holds(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

#[test]
fn forgotten_run_leaves_no_bytes_after_compaction() {
    let (dir, store, space) = fresh();
    let mut rng = SeededRng(77);
    // The bytes do not compress, so the files show them unchanged.
    let [body, metadata, state]: [Vec<u8>; 3] = std::array::from_fn(|_| rng.bytes(3000));
    // Short enough to be inline in the log; the vector file holds it anyway.
    let vector: Vec<f32> = state.iter().take(8).map(|byte| f32::from(*byte) / 7.0 + 1.0).collect();
    let vector_bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    let canaries: [&[u8]; 7] = [
        &vector_bytes,
        b"canary-name",
        b"canary-tag",
        b"canary-inline",
        &body[100..400],
        &metadata[100..400],
        &state[100..400],
    ];
    let (kept, mut talk) = recorded(&space, "kept", 5);
    kept.end(Status::Ok).unwrap();
    let spec = RunSpec::new("canary-name").tag("t", "canary-tag").metadata(metadata.clone());
    let run = space.begin_run(spec).unwrap();
    run.record(Frame::new(Component::Llm, body.clone(), "canary-inline")).unwrap();
    run.snapshot(state.clone(), &[("e5", &vector)]).unwrap();
    run.end(Status::Ok).unwrap();
    store.settle_vectors().unwrap();
    let nearest = |space: &Namespace| space.nearest("e5", &vector, &Search::default()).unwrap();
    assert_eq!(nearest(&space).len(), 1);
    space.pin("canary-name", "for a while").unwrap();
    let (parent, _) = recorded(&space, "parent", 6);
    parent.end(Status::Ok).unwrap();
    let fork = space.fork("parent", 4, false, RunSpec::new("fork")).unwrap();
    record(&fork, &mut talk, 2);
    fork.end(Status::Ok).unwrap();
    space.unpin("canary-name").unwrap();
    let old = store.checkpoint().unwrap();
    let before = [frames(&space.run("kept").unwrap()), frames(&space.run("fork").unwrap())];
    let told =
        [space.forget("canary-name", "asked for").unwrap().run, space.drop_run("parent", "r", "").unwrap()];
    let root = dir.path().join("s");
    assert_eq!(space.run_remnants(told[0].uid).unwrap().1.vectors, ["00000001.vec"]);
    assert_eq!(nearest(&space), []);
    for canary in canaries {
        assert!(holds(&files(&root), canary), "it was not stored: {}", String::from_utf8_lossy(canary));
    }
    let options =
        CompactOptions { must_go: told.iter().map(|one| one.uid).collect(), ..CompactOptions::default() };
    assert!(store.compact(&options).unwrap().rewritten > 0);
    let check = |store: &Store| {
        for canary in canaries {
            assert!(!holds(&files(&root), canary), "it is still stored: {}", String::from_utf8_lossy(canary));
        }
        let space = store.namespace("default").unwrap();
        assert_eq!(names(&space), ["kept", "fork"]);
        assert_eq!([frames(&space.run("kept").unwrap()), frames(&space.run("fork").unwrap())], before);
        assert_eq!(dropped(&space), told);
        assert_eq!(space.run_by_uid(told[0].uid).unwrap_err().kind(), ErrorKind::Gone);
        // Its name is nowhere, and a request by it still tells when and by which rule the run was dropped.
        let error = space.run("canary-name").unwrap_err();
        assert!(error.kind() == ErrorKind::Gone && error.to_string().contains("(asked for)"), "{error}");
        assert_eq!(space.run("another-name").unwrap_err().kind(), ErrorKind::NotFound);
        let (_, held) = space.run_remnants(told[0].uid).unwrap();
        assert_eq!((held.shared, held.segments.len(), held.vectors.len()), (0, 0, 0));
        let (_, held) = space.run_remnants(told[1].uid).unwrap();
        assert_eq!((held.shared, held.segments.len()), (4, 1));
        assert!(store.verify_against(&old).unwrap().differences.is_empty());
        let mut gaps = Vec::new();
        store
            .gaps(&mut |gap| {
                gaps.push((gap.kind, gap.run));
                Ok(())
            })
            .unwrap();
        assert_eq!(gaps, [(GapKind::Dropped, told[0].uid), (GapKind::Dropped, told[1].uid)]);
        assert_whole(store);
    };
    check_after_each_reopening(&dir, store, check);
    // After the fork is dropped, too, compaction removes its content; the tombstones stay.
    let store = writer(&root).unwrap();
    let space = store.namespace("default").unwrap();
    let fork = space.drop_run("fork", "r", "").unwrap();
    let options = CompactOptions { must_go: vec![told[1].uid, fork.uid], ..CompactOptions::default() };
    store.compact(&options).unwrap();
    assert_eq!(space.run_remnants(told[1].uid).unwrap().1.segments.len(), 0);
    assert_eq!(dropped(&space).len(), 3);
    check_after_each_reopening(&dir, store, |store| {
        let space = store.namespace("default").unwrap();
        assert_eq!((names(&space), dropped(&space).len()), (vec!["kept".to_owned()], 3));
        assert!(store.verify_against(&old).unwrap().differences.is_empty());
        assert_whole(store);
    });
}

fn blame_fork(space: &Namespace, parent: &str, name: &str) {
    let spec = RunSpec::new(name).tag(annals::runs::BLAME_TAG, parent);
    let fork = space.fork(parent, 1, true, spec).unwrap();
    record(&fork, &mut GrowingConversation::new(name), 2);
    fork.end(Status::Ok).unwrap();
}

/// A run with two forks of its blame, one of them blamed itself, and a fork that a person made.
fn blamed_run(space: &Namespace, name: &str) {
    ended_run(space, name, 3, Status::Failed);
    let forks = [format!("{name}-blame-1"), format!("{name}-blame-2")];
    forks.iter().for_each(|fork| blame_fork(space, name, fork));
    blame_fork(space, &forks[0], &format!("{}-blame-1", forks[0]));
    let own = RunSpec::new(format!("{name}-own"));
    space.fork(&forks[1], 1, false, own).unwrap().end(Status::Ok).unwrap();
}

fn policy(keep: RetentionLimit) -> RetentionPolicy {
    RetentionPolicy {
        sample: RunShare::parse("0%").unwrap(),
        ..RetentionPolicy::new(vec![RetentionRule::new("r", keep)])
    }
}

/// Forks of a blame were runs like others. A forgotten or dropped run left them, with bytes of its conversation,
/// and nothing named them.
#[test]
fn blame_forks_go_with_their_run() {
    for how in ["drop", "forget", "retain"] {
        let (dir, store, space) = fresh();
        blamed_run(&space, "a");
        match how {
            "drop" => drop(space.drop_run("a", "r", "").unwrap()),
            "forget" => assert_eq!(space.forget("a", "asked for").unwrap().blame_forks, 3),
            _ => {
                let plan = store.plan_retention(&policy(RetentionLimit::ForNs(0)), Some(u64::MAX)).unwrap();
                let planned = plan.report().clone();
                assert_eq!((planned.dropped().runs, planned.rules[0].rule.as_str()), (5, "sampling"));
                assert_eq!(store.retain(plan).unwrap().held, 0);
            }
        }
        let left: &[&str] = if how == "retain" { &[] } else { &["a-own"] };
        check_after_each_reopening(&dir, store, |store| {
            let space = store.namespace("default").unwrap();
            assert_eq!(names(&space), left, "{how}");
            assert_eq!(store.stats().unwrap().dropped_runs, 5 - left.len() as u64);
            assert_eq!(space.run("a-blame-1").unwrap_err().kind(), ErrorKind::Gone);
            assert_whole(store);
        });
    }
}

/// Forks of a blame have other statuses than their run, and are many: sampling took the good ones away, and a rule
/// for the newest runs dropped the user's own.
#[test]
fn no_rule_judges_blame_forks_of_a_living_run() {
    let (_dir, store, space) = fresh();
    ended_run(&space, "old", 2, Status::Failed);
    blamed_run(&space, "a");
    space.drop_run("a-own", "r", "").unwrap();
    let plan = store.plan_retention(&policy(RetentionLimit::Newest(2)), Some(u64::MAX)).unwrap();
    let report = store.retain(plan).unwrap();
    // The run and its three forks count in the line of the rule that keeps the run.
    assert_eq!((report.rules[0].kept.runs, report.dropped().runs), (5, 0));
    space.pin("a", "evidence").unwrap();
    let plan = store.plan_retention(&policy(RetentionLimit::ForNs(0)), Some(u64::MAX)).unwrap();
    let report = store.retain(plan).unwrap();
    // They were "(no rule)", as if a rule had been forgotten.
    assert_eq!((report.pinned.runs, report.unmatched.runs, report.dropped().runs), (4, 0, 1));
    assert_eq!(names(&space).len(), 4);
    assert_eq!(store.sample_ended(&policy(RetentionLimit::Forever)).unwrap(), 0);
}

/// A pinned fork of a blame: a person decides about it, and retention leaves it.
#[test]
fn pinned_blame_fork_stays_until_it_is_forgotten() {
    let (_dir, store, space) = fresh();
    blamed_run(&space, "a");
    space.pin("a-blame-2", "evidence").unwrap();
    for error in [space.forget("a", "asked for").unwrap_err(), space.drop_run("a", "r", "").unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Conflict);
        let text = error.to_string();
        assert!(text.contains("\"a-blame-2\", a fork of the blame of \"a\", is pinned"), "{text}");
    }
    assert_eq!(names(&space).len(), 5, "nothing was dropped");
    let plan = store.plan_retention(&policy(RetentionLimit::ForNs(0)), Some(u64::MAX)).unwrap();
    assert_eq!(store.retain(plan).unwrap().held, 0);
    assert_eq!(names(&space), ["a-blame-2"]);
    let error = space.forget("a", "asked for").unwrap_err();
    assert!(error.to_string().contains("a fork of a blame, is pinned"), "{error}");
    space.unpin("a-blame-2").unwrap();
    assert_eq!(space.forget("a", "asked for").unwrap().blame_forks, 1);
    assert!(names(&space).is_empty());
}

/// Recording a run of the same name again replaces it. Its forks are then found by their tag only.
#[test]
fn blame_forks_of_a_replaced_run_are_forgotten() {
    let (_dir, _store, space) = fresh();
    blamed_run(&space, "a");
    space.begin_run(RunSpec::new("a").replace(true)).unwrap().end(Status::Ok).unwrap();
    // The third is a fork of the blame of the first, which lives.
    assert_eq!(space.orphaned_blame_forks("a").unwrap().len(), 2);
    assert_eq!(space.forget("a", "asked for").unwrap().blame_forks, 3);
    assert_eq!(names(&space), ["a-own"]);
}

/// A person could flag a run only while it was open: afterwards there were pins, which keep a run for ever.
#[test]
fn flag_of_a_person_counts_as_severity_after_the_end() {
    let (sim, store, space) = store_with_timed_runs();
    let policy = RetentionPolicy::default();
    for name in ["plain", "flagged", "escalated", "unflagged", "replaced"] {
        ended_run(&space, name, 2, Status::Ok);
    }
    let (run, _) = recorded(&space, "severe", 1);
    run.set_severity(Severity::Escalated).unwrap();
    let severe = run.end(Status::Ok).unwrap();
    let flag = space.flag("flagged", Severity::Flagged, "looks wrong").unwrap();
    space.flag("escalated", Severity::Flagged, "looks wrong").unwrap();
    space.flag("escalated", Severity::Escalated, "is wrong").unwrap();
    // A flag never lowers a severity.
    space.flag("severe", Severity::Flagged, "seen").unwrap();
    space.flag("unflagged", Severity::Flagged, "a mistake").unwrap();
    assert!(space.unflag("unflagged").unwrap() && !space.unflag("unflagged").unwrap());
    assert!(!space.unflag("plain").unwrap());
    space.flag("replaced", Severity::Flagged, "of the first").unwrap();
    let first = space.run("replaced").unwrap().info().uid;
    space.begin_run(RunSpec::new("replaced").replace(true)).unwrap().end(Status::Ok).unwrap();
    assert!(space.flags().unwrap().iter().all(|one| one.uid != first), "it went with its run");
    assert_eq!(space.run("flagged").unwrap().flag().unwrap(), Some(flag));
    assert_eq!(
        space.flags().unwrap().iter().map(|one| (one.severity, one.why.as_str())).collect::<Vec<_>>(),
        [(Severity::Flagged, "looks wrong"), (Severity::Escalated, "is wrong"), (Severity::Flagged, "seen")]
    );
    for (severity, why) in [(Severity::Normal, "x"), (Severity::Debug, "x"), (Severity::Flagged, "")] {
        assert_eq!(space.flag("plain", severity, why).unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(space.flag("nobody", Severity::Flagged, "x").unwrap_err().kind(), ErrorKind::NotFound);
    // What was recorded stays as it was.
    assert_eq!(space.run("severe").unwrap().info(), &severe);
    assert_eq!(space.run("flagged").unwrap().info().severity, Severity::Normal);

    let check = |store: &Store| {
        let space = store.namespace("default").unwrap();
        let listed = |severity: Severity| -> Vec<String> {
            let filter = RunFilter { severity: Some(severity), ..RunFilter::default() };
            let page = space.page_runs(&filter, RunOrder::OldestFirst, None, 100).unwrap();
            page.runs.iter().map(|run| run.info().name.clone()).collect()
        };
        assert_eq!(listed(Severity::Flagged), ["flagged"]);
        assert_eq!(listed(Severity::Escalated), ["escalated", "severe"]);
        assert_eq!(listed(Severity::Normal), ["plain", "unflagged", "replaced"]);
        let plan = store.plan_retention(&policy, Some(sim_now(&sim) + 8 * DAY_NS)).unwrap();
        let of = |rule: &str| plan.report().rules.iter().find(|one| one.rule == rule).unwrap().clone();
        assert_eq!((of("marked").kept.runs, of("normal").dropped.runs), (3, 3));
    };
    check(&store);
    store.close().unwrap();
    let open = || {
        let options = Options { segment_bytes_max: 64 << 10, ..sim_options(&sim) };
        Store::open_with("s", options).unwrap()
    };
    let store = open();
    check(&store);
    let space = store.namespace("default").unwrap();

    // A flag that comes between plan and drop still counts.
    sim.advance_ns(8 * DAY_NS);
    let plan = store.plan_retention(&policy, None).unwrap();
    assert_eq!(plan.report().dropped().runs, 3);
    space.flag("plain", Severity::Flagged, "at the last moment").unwrap();
    assert_eq!(store.retain(plan).unwrap().held, 1);
    assert_eq!(names(&space), ["plain", "flagged", "escalated", "severe"]);
    // A flag goes with its run, and a flagged run can be forgotten.
    space.forget("plain", "asked for").unwrap();
    let plan = store.plan_retention(&policy, Some(sim_now(&sim) + 90 * DAY_NS)).unwrap();
    store.retain(plan).unwrap();
    assert_eq!((names(&space).len(), space.flags().unwrap().len()), (0, 0));
    assert_whole(&store);
}

/// A fork of a blame goes with its run, whatever a person said of the fork.
#[test]
fn flag_on_blame_fork_counts_for_its_run() {
    let (_dir, store, space) = fresh();
    let flagged = RetentionRule {
        severities: vec![Severity::Flagged],
        ..RetentionRule::new("kept", RetentionLimit::Forever)
    };
    let rest = RetentionRule::new("rest", RetentionLimit::ForNs(0));
    let policy = RetentionPolicy::new(vec![flagged, rest]);
    let plan = || store.plan_retention(&policy, Some(u64::MAX)).unwrap();
    blamed_run(&space, "a");
    blamed_run(&space, "b");
    // A fork of a fork.
    space.flag("a-blame-1-blame-1", Severity::Flagged, "shows the cause").unwrap();
    let before = plan();
    space.flag("b-blame-2", Severity::Flagged, "at the last moment").unwrap();
    let report = store.retain(before).unwrap();
    assert_eq!((report.rules[0].kept.runs, report.held), (4, 1));
    assert_eq!(names(&space).len(), 8, "the forks that a person made are gone: {:?}", names(&space));
    assert_eq!(plan().report().dropped().runs, 0);
    assert!(space.unflag("a-blame-1-blame-1").unwrap());
    store.retain(plan()).unwrap();
    assert_eq!(names(&space), ["b", "b-blame-1", "b-blame-2", "b-blame-1-blame-1"]);
}

/// Sampling looked at the flag of the run only, and dropped the fork that a person had flagged along with it.
#[test]
fn sampling_keeps_a_run_whose_blame_fork_is_flagged() {
    let (_dir, store, space) = fresh();
    let policy =
        RetentionPolicy { sample: RunShare::parse("0%").unwrap(), ..RetentionPolicy::new(Vec::new()) };
    assert_eq!(store.sample_ended(&policy).unwrap(), 0);
    for name in ["seen", "not seen"] {
        ended_run(&space, name, 2, Status::Ok);
        blame_fork(&space, name, &format!("{name}-blame-1"));
    }
    space.flag("seen-blame-1", Severity::Flagged, "shows the cause").unwrap();
    assert_eq!(store.sample_ended(&policy).unwrap(), 1);
    assert_eq!(names(&space), ["seen", "seen-blame-1"]);
}

/// Sampling dropped a run at its end, before a person could escalate it.
#[test]
fn sampling_that_waits_leaves_time_to_flag() {
    let (sim, store, space) = store_with_timed_runs();
    let policy = RetentionPolicy {
        sample: RunShare::parse("0%").unwrap(),
        sample_after_ns: DAY_NS,
        ..RetentionPolicy::new(Vec::new())
    };
    assert_eq!(store.sample_ended(&policy).unwrap(), 0);
    ended_run(&space, "seen", 2, Status::Ok);
    ended_run(&space, "not seen", 2, Status::Ok);
    assert_eq!(store.sample_ended(&policy).unwrap(), 0);
    sim.advance_ns(DAY_NS / 2);
    let plan = store.plan_retention(&policy, None).unwrap();
    assert_eq!(plan.report().dropped().runs, 0);
    space.flag("seen", Severity::Escalated, "a customer asked").unwrap();
    sim.advance_ns(DAY_NS / 2 + 1);
    store.retain(store.plan_retention(&policy, None).unwrap()).unwrap();
    assert_eq!(names(&space), ["seen"]);
    assert_eq!(dropped(&space).into_iter().map(|run| run.rule).collect::<Vec<_>>(), ["sampling"]);
    // Without waiting, a run that was flagged while it was open stays, too.
    let at_once = RetentionPolicy { sample_after_ns: 0, ..policy };
    let (run, _) = recorded(&space, "open", 1);
    space.flag("open", Severity::Flagged, "watched").unwrap();
    run.end(Status::Ok).unwrap();
    assert_eq!(store.sample_ended(&at_once).unwrap(), 0);
    assert_eq!(names(&space), ["seen", "open"]);
}
