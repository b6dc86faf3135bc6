//! Decisions and explicit deliberations: what goes in comes out, and what is merged.

use annals::retention::{RetentionLimit, RetentionPolicy, RetentionRule};
use annals::{Component, ErrorKind, Frame, RunSpec, Status};
use annals_deliberation::{Caller, Method};
use serde_json::{Value, json};

use crate::support::{Bench, SECOND, decision, texts, with};

/// The worked example of F023 (S3.3 to S3.7, S3.9): 3200 and 1800 a step, 8200 in all, converged at step 2.
fn example() -> Value {
    json!({
        "inputs": [
            { "id": "i1", "text": "Three similar decisions used Postgres", "source": "cstp:query", "timestamp": "2026-02-08T12:00:00Z" },
            { "id": "i2", "text": "Guardrails allow it", "source": "cstp:check", "timestamp": "2026-02-08T12:00:01Z" },
            { "id": "i3", "text": "The team knows it", "timestamp": "2026-02-08T12:00:05Z" },
        ],
        "steps": [
            { "step": 1, "thought": "Past and rules agree", "inputs_used": ["i1", "i2"],
              "timestamp": "2026-02-08T12:00:03Z", "durationMs": 3200, "type": "pattern" },
            { "step": 2, "thought": "The team confirms", "inputs_used": ["i3"],
              "timestamp": "2026-02-08T12:00:08Z", "durationMs": 1800, "type": "analysis", "conclusion": true },
        ],
        "totalDurationMs": 8200,
        "convergencePoint": 2,
    })
}

/// S3.14, S3.17: camelCase goes in and comes out over JSON-RPC; snake_case is stored, and accepted.
#[test]
fn explicit_deliberation_comes_back_in_both_spellings() {
    let bench = Bench::new();
    let params = with(decision("Use Postgres"), json!({ "deliberation": example() }));
    let (recorded, snake) = bench.record(params);
    assert_eq!(
        (&recorded["deliberation_auto"], &recorded["deliberation_inputs_count"]),
        (&Value::Null, &json!(3))
    );
    let camel = bench.call(Method::GetDecision, json!({ "id": recorded["id"] }));
    assert_eq!(camel["deliberation"], example());
    let trace = &snake["deliberation"];
    assert_eq!((&trace["total_duration_ms"], &trace["convergence_point"]), (&json!(8200), &json!(2)));
    assert_eq!(
        (&trace["steps"][0]["duration_ms"], &trace["steps"][1]["duration_ms"]),
        (&json!(3200), &json!(1800))
    );
    assert_eq!(trace["steps"][1]["conclusion"], true);
    let keyspace = bench.space.find_keyspace("annals.decisions").unwrap().unwrap();
    let stored = keyspace.get(recorded["id"].as_str().unwrap().as_bytes()).unwrap().unwrap();
    let stored: Value = serde_json::from_slice(&stored).unwrap();
    assert_eq!(stored["deliberation"], *trace, "what is stored is snake_case");
    bench.record(decision("Consume the look-up"));
    let (_, again) = bench.record(with(decision("Again"), json!({ "deliberation": trace })));
    assert_eq!(again["deliberation"], *trace);
}

/// Unknown members keep their bytes: numbers, escapes and white space.
#[test]
fn unknown_members_keep_their_bytes() {
    let bench = Bench::new();
    let odd = r#"{ "y" : [1.50, 1e3], "z":"\u00e9" }"#;
    let params = format!(
        r#"{{"decision":"d","confidence":0.850,"x\u0061":{odd},"deliberation":{{"inputs":[{{"id":"i","text":"t","w":{odd}}}],"steps":[{{"step":1,"thought":"t","inputsUsed":["i"],"v":{odd},"conclusion":false}}],"u":{odd},"totalDurationMs":1.50}}}}"#
    );
    let caller = Caller::new("x");
    let answer = bench.decisions.call(&caller, Method::RecordDecision, &params).unwrap();
    let id = &serde_json::from_str::<Value>(&answer).unwrap()["id"];
    let read = bench.decisions.call(&caller, Method::GetDecision, &json!({ "id": id }).to_string()).unwrap();
    assert_eq!(read.matches(odd).count(), 4, "{read}");
    for part in
        [r#""x\u0061":"#, r#""confidence":0.850"#, r#""totalDurationMs":1.50"#, r#""inputs_used":["i"]"#]
    {
        assert!(read.contains(part), "{part}: {read}");
    }
    assert!(!read.contains("conclusion"), "only a conclusion says so: {read}");
}

/// S3.28: explicit traces are merged, never overwritten; steps are numbered on, known ids are left out.
#[test]
fn tracked_inputs_are_added_to_an_explicit_trace() {
    let bench = Bench::new();
    bench.query("a");
    bench.sim.advance_ns(SECOND);
    bench.call(Method::RecordThought, json!({ "text": "hm" }));
    let explicit = json!({
        "inputs": [{ "id": "i1", "text": "mine" }],
        "steps": [{ "step": 5, "thought": "five", "inputs_used": ["i1"] }, { "step": 2, "thought": "two" }],
        "convergencePoint": 5, "totalDurationMs": 8200,
    });
    let (recorded, read) = bench.record(with(decision("d"), json!({ "deliberation": explicit })));
    let trace = &read["deliberation"];
    assert_eq!(recorded["deliberation_inputs_count"], 3, "the total after the merge");
    assert_eq!(recorded["deliberation_auto"], true);
    let numbers: Vec<u64> =
        trace["steps"].as_array().unwrap().iter().map(|step| step["step"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [5, 2, 6, 7]);
    assert_eq!(trace["inputs"][0], json!({ "id": "i1", "text": "mine" }));
    assert_eq!((&trace["total_duration_ms"], &trace["convergence_point"]), (&json!(8200), &json!(5)));
    // A client that sends a captured input back with its id gets it once.
    bench.query("b");
    let id = bench.call(Method::DebugTracker, json!({}))["sessions"][0]["inputs"][0]["id"].clone();
    let explicit = json!({ "inputs": [{ "id": id, "text": "in my words" }] });
    let (recorded, read) = bench.record(with(decision("d"), json!({ "deliberation": explicit })));
    assert_eq!(recorded["deliberation_inputs_count"], 1);
    assert_eq!(read["deliberation"]["inputs"][0]["text"], "in my words");
    assert!(bench.waiting().is_empty(), "it is consumed");
    // Without a total of its own, an explicit trace gets none.
    bench.query("c");
    bench.query("d");
    let explicit = json!({ "steps": [{ "step": 1, "thought": "mine" }] });
    let (_, read) = bench.record(with(decision("d"), json!({ "deliberation": explicit })));
    assert_eq!(read["deliberation"]["total_duration_ms"], Value::Null);
}

/// A step may name a captured input by its id.
#[test]
fn explicit_step_may_use_a_captured_input() {
    let bench = Bench::new();
    let thought = bench.call(Method::RecordThought, json!({ "text": "hm", "agentId": "a" }));
    assert_eq!((&thought["mode"], &thought["tracker"]), (&json!("pre-decision"), &json!("agent:a")));
    let explicit = json!({ "steps": [{ "step": 1, "thought": "so", "inputs_used": [thought["input_id"]] }] });
    let params = with(decision("d"), json!({ "agentId": "a", "deliberation": explicit }));
    assert_eq!(bench.record(params).0["deliberation_inputs_count"], 1);
}

/// The point 0 is no step: it is read as absent. Durations of 0 are kept.
#[test]
fn zero_convergence_point_counts_as_absent() {
    let bench = Bench::new();
    let explicit = json!({ "steps": [{ "step": 1, "thought": "t", "durationMs": 0 }], "convergencePoint": 0, "totalDurationMs": 0 });
    let (_, read) = bench.record(with(decision("d"), json!({ "deliberation": explicit })));
    assert_eq!(
        read["deliberation"],
        json!({ "steps": [{ "step": 1, "thought": "t", "duration_ms": 0 }], "total_duration_ms": 0 })
    );
}

#[test]
fn thought_with_an_id_is_appended_to_the_stored_decision() {
    let bench = Bench::new();
    let (recorded, _) = bench.record(with(decision("d"), json!({ "deliberation": example() })));
    let id = recorded["id"].as_str().unwrap();
    let done = bench.call(Method::RecordThought, json!({ "id": id, "text": "Later I saw more" }));
    assert_eq!((&done["mode"], &done["step"]), (&json!("post-decision"), &json!(3)));
    let read = bench.read(id);
    let step = &read["deliberation"]["steps"][2];
    assert_eq!(
        (&step["step"], &step["type"], &step["conclusion"]),
        (&json!(3), &json!("reasoning"), &Value::Null)
    );
    assert_eq!(read["deliberation"]["convergence_point"], 2, "the rest stays");
    // A decision without a deliberation gets one.
    let (plain, _) = bench.record(decision("plain"));
    let done = bench.call(Method::RecordThought, json!({ "id": plain["id"], "text": "First" }));
    assert_eq!(done["step"], 1);
    assert_eq!(bench.read(plain["id"].as_str().unwrap())["deliberation"]["steps"][0]["thought"], "First");
    // Ten million bytes are kept: the source has no limit.
    let long = "t".repeat(10 << 20);
    bench.call(Method::RecordThought, json!({ "text": long }));
    let (_, read) = bench.record(decision("long"));
    assert_eq!(read["deliberation"]["inputs"][0]["text"].as_str().unwrap().len(), long.len());
}

#[test]
fn reviews_set_the_outcome_and_keep_earlier_ones() {
    let bench = Bench::new();
    let (recorded, read) = bench.record(decision("d"));
    assert_eq!((&read["status"], &read["outcome"]), (&json!("pending"), &Value::Null));
    let id = recorded["id"].as_str().unwrap();
    let review =
        json!({ "id": id, "outcome": "failure", "actualResult": "too slow", "lessons": ["measure"] });
    bench.call(Method::ReviewOutcome, review);
    bench.call(Method::ReviewOutcome, json!({ "id": id, "outcome": "success" }));
    let read = bench.read(id);
    assert_eq!((&read["status"], &read["outcome"]), (&json!("reviewed"), &json!("success")));
    assert_eq!(read["lessons"], Value::Null, "a review replaces the one before as a whole");
    let earlier = &read["earlier_reviews"][0];
    assert_eq!((&earlier["outcome"], &earlier["lessons"]), (&json!("failure"), &json!(["measure"])));
    // A client that lost the answer sends its review again: it is one review.
    bench.sim.advance_ns(1_000_000_000);
    bench.call(Method::ReviewOutcome, json!({ "id": id, "outcome": "success" }));
    assert_eq!(bench.read(id), read);
    bench.call(Method::ReviewOutcome, json!({ "id": id, "outcome": "success", "actualResult": "fast" }));
    assert_eq!(bench.read(id)["earlier_reviews"].as_array().unwrap().len(), 2);
    let read = bench.read(id);
    assert_eq!(bench.opened_again().read(id), read);
}

#[test]
fn quality_score_adds_up_what_was_written_down() {
    let bench = Bench::new();
    assert_eq!(bench.record(decision("short")).0["quality_score"], 0.0);
    let full = json!({
        "pattern": "p", "tags": ["t"], "reasons": [{ "type": "analysis" }, { "type": "pattern" }],
        "bridge": { "structure": "s", "function": "f" }, "context": "more than ten", "project": "x",
        "deliberation": { "steps": [{ "step": 1, "thought": "t", "type": "reasoning" }] },
    });
    let (recorded, read) = bench.record(with(decision("more than twenty characters"), full));
    assert_eq!(recorded["quality_score"], 1.0);
    assert_eq!(read["bridge"], json!({ "structure": "s", "function": "f" }));
    let some = json!({ "tags": ["t"], "deliberation": { "steps": [{ "step": 1, "thought": "t" }] } });
    assert_eq!(bench.record(with(decision("short"), some)).0["quality_score"], 0.2);
}

/// A decision names the run and frame in which it was taken, and goes with its run.
#[test]
fn decision_of_a_run_is_found_by_frame_and_goes_with_the_run() {
    let bench = Bench::new();
    let run = bench.space.begin_run(RunSpec::new("loan")).unwrap();
    run.record(Frame::new(Component::Llm, "in", "out")).unwrap();
    run.record(Frame::new(Component::Tool, "in", "out")).unwrap();
    let (recorded, read) = bench.record(with(decision("in frame 2"), json!({ "run": "loan", "frame": 2 })));
    bench.record(with(decision("in the run"), json!({ "run": "loan" })));
    assert_eq!((&read["run"], &read["frame"]), (&json!("loan"), &json!(2)));
    run.end(Status::Ok).unwrap();
    let uid = bench.space.run("loan").unwrap().info().uid;
    let at = |frame| bench.decisions.decisions_of_run(uid, frame).unwrap();
    assert_eq!((at(None).len(), at(Some(1)).len(), at(Some(2)).len()), (2, 0, 1));
    assert!(at(Some(2))[0].contains("\"title\":\"in frame 2\""), "{:?}", at(Some(2)));
    for (params, expected) in [
        (json!({ "run": "nobody" }), "nobody"),
        (json!({ "run": "loan", "frame": 3 }), "no frame 3: it has 2 frames"),
        (json!({ "run": "loan", "frame": 0 }), "no frame 0"),
    ] {
        let (kind, text) = bench.refused(Method::RecordDecision, with(decision("d"), params));
        assert!(kind == ErrorKind::NotFound && text.contains(expected), "{text}");
    }
    assert_eq!(bench.query("frame")["total"], 1);
    bench.space.forget("loan", "the customer asked").unwrap();
    assert_eq!(bench.query("frame")["decisions"], json!([]));
    assert_eq!(bench.call(Method::GetDeliberationStats, json!({}))["decisions"], 0);
    let refused = bench.refused(Method::ReviewOutcome, json!({ "id": recorded["id"], "outcome": "success" }));
    assert_eq!(refused.0, ErrorKind::NotFound, "a review does not bring it back");
    assert!(at(None).is_empty());
}

/// Retention dropped the decisions of a run with its frames, so that a week later nobody could say why a loan was
/// rejected.
#[test]
fn decision_outlives_a_run_that_retention_drops() {
    let bench = Bench::new();
    let run = bench.space.begin_run(RunSpec::new("loan")).unwrap();
    run.record(Frame::new(Component::Llm, "in", "out")).unwrap();
    let (recorded, _) = bench.record(with(decision("Reject the loan"), json!({ "run": "loan", "frame": 1 })));
    run.end(Status::Ok).unwrap();
    let rule = RetentionRule::new("all", RetentionLimit::ForNs(0));
    let policy = RetentionPolicy::new(vec![rule]);
    let swept = bench.store.retain(bench.store.plan_retention(&policy, None).unwrap()).unwrap();
    assert_eq!(swept.dropped().runs, 1);
    assert_eq!(bench.query("loan")["total"], 1);
    bench.call(Method::ReviewOutcome, json!({ "id": recorded["id"], "outcome": "success" }));
    assert_eq!(bench.read(recorded["id"].as_str().unwrap())["outcome"], "success");
    bench.space.forget("loan", "the customer asked").unwrap();
    assert_eq!(bench.query("loan")["decisions"], json!([]));
    let refused = bench.refused(Method::ReviewOutcome, json!({ "id": recorded["id"], "outcome": "success" }));
    assert_eq!(refused.0, ErrorKind::NotFound, "a review does not bring it back");
}

#[test]
fn decisions_survive_reopening() {
    let bench = Bench::new();
    bench.query("before");
    let (recorded, read) = bench.record(with(decision("Use Postgres"), json!({ "tags": ["db"] })));
    bench.query("after");
    let bench = bench.opened_again();
    assert_eq!(bench.read(recorded["id"].as_str().unwrap()), read);
    assert_eq!(texts(&bench.query("postgres")["decisions"], "title"), ["Use Postgres"]);
    assert_eq!(bench.record(decision("Next")).0["deliberation_inputs_count"], 2);
}
