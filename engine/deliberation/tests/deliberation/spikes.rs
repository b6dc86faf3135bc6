//! A deliberation as spike timings: order and times.

use annals::ErrorKind;
use annals_deliberation::Method;
use serde_json::{Value, json};

use crate::support::{Bench, decision, with};

fn exported(trace: Value, format: &str) -> Value {
    let bench = Bench::new();
    let (recorded, _) = bench.record(with(decision("d"), json!({ "deliberation": trace })));
    bench.call(Method::ExportSpikes, json!({ "id": recorded["id"], "format": format }))
}

fn example() -> Value {
    json!({
        "inputs": [
            { "id": "i1", "text": "t", "source": "=web", "timestamp": "2026-02-08T12:00:00.250Z" },
            { "id": "i2,x", "text": "t", "timestamp": "2026-02-08T13:00:01+01:00" },
        ],
        "steps": [
            { "step": 1, "thought": "t", "inputs_used": ["i2,x", "i1"], "timestamp": "2026-02-08T12:00:01Z", "durationMs": 3200, "type": "pattern" },
            { "step": 2, "thought": "t", "timestamp": "2026-02-08T12:00:05Z" },
        ],
        "totalDurationMs": 8200, "convergencePoint": 2,
    })
}

/// S3.13, S3.32: an input is an activation, a step a window, the convergence the attractor.
#[test]
fn events_come_by_time_with_activations_first() {
    let found = exported(example(), "csv");
    assert_eq!(
        found["csv"],
        "kind,name,populations,t_ms,end_ms,estimated,label\n\
         activation,i1,0,0,0,false,'=web\n\
         activation,\"i2,x\",1,750,750,false,\n\
         window,1,1 0,750,3950,false,pattern\n\
         attractor,2,,4750,8200,false,\n"
    );
    let events = exported(example(), "json")["events"].take();
    assert_eq!(events.as_array().unwrap().len(), 4);
    assert_eq!(
        events[2],
        json!({ "kind": "window", "name": "1", "populations": [1, 0], "t_ms": 750.0, "end_ms": 3950.0, "estimated": false, "label": "pattern" })
    );
}

#[test]
fn events_without_times_follow_those_before_and_say_so() {
    let trace = json!({
        "inputs": [{ "id": "i1", "text": "t" }],
        "steps": [
            { "step": 1, "thought": "t", "durationMs": 100 },
            { "step": 2, "thought": "t", "durationMs": 50 },
        ],
    });
    let events = exported(trace, "json")["events"].take();
    let times: Vec<_> = events
        .as_array()
        .unwrap()
        .iter()
        .map(|event| (event["t_ms"].clone(), event["end_ms"].clone(), event["estimated"].clone()))
        .collect();
    let at = |start: f64, end: f64| (json!(start), json!(end), json!(true));
    assert_eq!(times, [at(0.0, 0.0), at(0.0, 100.0), at(100.0, 150.0)]);
}

/// A window without a time began before the end of a timed one, or before the inputs that it used: the order of cause
/// and effect was reversed.
#[test]
fn windows_without_times_follow_timed_ones_and_their_inputs() {
    let input = |id: &str, second: u32| json!({ "id": id, "text": "t", "timestamp": format!("2026-02-08T12:00:0{second}Z") });
    let trace = json!({
        "inputs": [input("i1", 0), input("i2", 2)],
        "steps": [
            { "step": 1, "thought": "t", "inputs_used": ["i2"], "durationMs": 100 },
            { "step": 2, "thought": "t", "timestamp": "2026-02-08T12:00:03Z", "durationMs": 3200 },
            { "step": 3, "thought": "t", "inputs_used": ["i1"] },
        ],
    });
    let events = exported(trace, "json")["events"].take();
    let windows: Vec<_> =
        events.as_array().unwrap().iter().filter(|event| event["kind"] == "window").collect();
    let times: Vec<_> = windows.iter().map(|event| (&event["t_ms"], &event["end_ms"])).collect();
    let at = |ms: f64| json!(ms);
    assert_eq!(times, [(&at(2000.0), &at(2100.0)), (&at(3000.0), &at(6200.0)), (&at(6200.0), &at(6200.0)),]);
}

#[test]
fn decision_without_deliberation_has_no_events() {
    let bench = Bench::new();
    let (recorded, _) = bench.record(decision("d"));
    let (kind, text) = bench.refused(Method::ExportSpikes, json!({ "id": recorded["id"] }));
    assert!(kind == ErrorKind::NotFound && text.contains("no deliberation"), "{text}");
}
