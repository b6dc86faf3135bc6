//! Crashes and failing disks: an acknowledged input is in exactly one place, before and after.

use annals::io::sim::{Crash, FailRule, OpKind};
use annals::{Durability, ErrorKind, Options, Store};
use annals_deliberation::{Caller, Deliberation, Method};
use serde_json::{Value, json};

use crate::support::{Bench, decision, options, texts};

fn opened(sim: &annals::io::sim::SimIo) -> Bench {
    let store = Store::open_with("s", Options { durability: Durability::Process, ..options(sim) }).unwrap();
    let space = store.namespace("default").unwrap();
    let decisions = Deliberation::open(&space).unwrap();
    Bench { sim: sim.clone(), store, space, decisions }
}

/// S3.25: after a kill at any point of a script, each acknowledged input waits, or is part of one decision; never
/// both, never neither.
#[test]
fn killed_process_loses_and_doubles_no_input() {
    let bench = Bench::new();
    bench.query("warm up");
    bench.record(decision("warm up"));
    let mut acknowledged: Vec<(usize, usize)> = Vec::new();
    for number in 0..6 {
        bench.query(&format!("q{number}"));
        acknowledged.push((bench.sim.history().ops().len(), number + 1));
        if number % 3 == 2 {
            bench.record(decision(&format!("d{number}")));
        }
    }
    let history = bench.sim.history();
    let mut walk = history.walk();
    let mut points = 0;
    loop {
        let expected = acknowledged.iter().filter(|(at, _)| *at <= walk.at()).map(|(_, count)| *count).max();
        if let Some(expected) = expected {
            // A killed process leaves everything that it wrote.
            let after = opened(&walk.crash(Crash::Everything));
            let found = after
                .call_as(&silent(), Method::QueryDecisions, &json!({ "includeDeliberation": true }))
                .unwrap();
            let mut all: Vec<String> = Vec::new();
            for one in found["decisions"].as_array().unwrap() {
                all.extend(texts(&one["deliberation"]["inputs"], "text"));
            }
            let waiting = after.call(Method::DebugTracker, json!({}));
            waiting["sessions"]
                .as_array()
                .unwrap()
                .iter()
                .for_each(|session| all.extend(texts(&session["inputs"], "text")));
            let count = |number: usize| {
                all.iter().filter(|text| text.starts_with(&format!("Queried 'q{number}'"))).count()
            };
            for number in 0..expected {
                assert_eq!(count(number), 1, "q{number}, {}: {all:?}", walk.point(Crash::Everything));
            }
            assert!((expected..6).all(|number| count(number) <= 1), "{}", walk.point(Crash::Everything));
            points += 1;
        }
        if !walk.step() {
            break;
        }
    }
    assert!(points >= 8, "only {points} points");
}

fn silent() -> Caller<'static> {
    Caller { tracks: false, ..Caller::new("x") }
}

/// A loss of power: a decision that was acknowledged has its inputs; they wait nowhere else.
#[test]
fn power_loss_keeps_acknowledged_decisions_with_their_inputs() {
    for seed in 0..20 {
        let bench = Bench::new();
        (0..3).for_each(|number| drop(bench.query(&format!("q{number}"))));
        let (recorded, read) = bench.record(decision("d"));
        bench.query("later");
        let after = opened(&bench.sim.crash(Crash::Seed(seed)));
        let id = recorded["id"].as_str().unwrap();
        assert_eq!(after.read(id), read, "Crash::Seed({seed})");
        let waiting = after.waiting();
        assert!(waiting.iter().map(|(_, count)| count).sum::<u64>() <= 1, "Crash::Seed({seed}): {waiting:?}");
    }
}

/// After a failed write a decision is refused, its inputs wait on, and calls still answer and say that they
/// are not captured.
#[test]
fn failed_disk_refuses_decisions_and_says_what_is_not_captured() {
    let bench = Bench::new();
    bench.query("kept");
    bench.sim.fail(FailRule::eio(OpKind::Sync).on("s/segments").forever());
    let (kind, _) = bench.refused(Method::RecordDecision, decision("d"));
    assert!(matches!(kind, ErrorKind::Unavailable | ErrorKind::Poisoned), "{kind:?}");
    let found = bench.query("q");
    assert_eq!(found["decisions"], json!([]));
    assert!(found["deliberation_not_tracked"].as_str().unwrap().contains("takes no writes"), "{found}");
    let kind = bench.refused(Method::RecordThought, json!({ "text": "t" })).0;
    assert!(matches!(kind, ErrorKind::Unavailable | ErrorKind::Poisoned));
    let sim = bench.sim.crash(Crash::Everything);
    drop(bench);
    let after = opened(&sim);
    let waiting = after.call(Method::DebugTracker, json!({}));
    let decisions = after.call_as(&silent(), Method::QueryDecisions, &json!({})).unwrap();
    // The refused decision may be in the log: then it has the input, and the input waits no longer.
    let is_stored = decisions["total"] == 1;
    let waits = waiting["sessions"].as_array().is_some_and(|sessions| !sessions.is_empty());
    assert_ne!(is_stored, waits, "{decisions} {waiting}");
    assert_eq!(after.call(Method::GetReasonStats, json!({}))["deliberation_not_tracked"], Value::Null);
}

/// A decision that the store refuses takes nothing: its inputs wait for the next one.
#[test]
fn decision_too_long_for_the_store_takes_no_input() {
    let sim = annals::io::sim::SimIo::new(1);
    let store = Store::open_with("s", Options { body_bytes_max: 64 << 10, ..options(&sim) }).unwrap();
    let space = store.namespace("default").unwrap();
    let decisions = Deliberation::open(&space).unwrap();
    let bench = Bench { sim, store, space, decisions };
    bench.query("kept");
    let long = json!({ "decision": "d", "confidence": 1, "context": "x".repeat(100 << 10) });
    let (kind, why) = bench.refused(Method::RecordDecision, long);
    assert_eq!(kind, ErrorKind::Invalid, "{why}");
    assert_eq!(bench.waiting(), [("rpc:x".to_owned(), 1)]);
    assert_eq!(bench.record(decision("short")).0["deliberation_inputs_count"], 1);
}
