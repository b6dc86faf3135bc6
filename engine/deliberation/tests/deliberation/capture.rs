//! How calls become inputs of the next decision: each statement of CSTP's tracker.

use std::collections::HashSet;
use std::sync::Barrier;

use annals_deliberation::{Caller, Method};
use serde_json::{Value, json};

use crate::support::{Bench, NOON, SECOND, decision, texts, with};

/// S3.21 to S3.24: texts, ids and sources of inputs.
#[test]
fn each_call_becomes_an_input_with_its_text() {
    let bench = Bench::new();
    let (first, _) = bench.record(with(
        decision("Use Postgres for the ledger"),
        json!({ "reasons": [{ "type": "analysis" }, { "type": "pattern" }] }),
    ));
    let id = first["id"].as_str().unwrap();
    let long = "x".repeat(60);
    bench.call(Method::QueryDecisions, json!({ "query": format!("postgres é{long}") }));
    bench.call(Method::CheckGuardrails, json!({ "action": { "description": long, "stakes": "low" } }));
    bench.call(Method::GetDecision, json!({ "id": id }));
    bench.call(Method::GetReasonStats, json!({}));
    bench.call(Method::RecordThought, json!({ "text": "The ledger comes first" }));
    let (recorded, read) = bench.record(decision("Keep Postgres"));
    let trace = &read["deliberation"];
    assert_eq!(
        texts(&trace["inputs"], "text"),
        [
            format!("Queried 'postgres é{}': 1 results (keyword)", "x".repeat(40)),
            format!("Checked '{}': allowed", "x".repeat(50)),
            format!("Retrieved decision {id}: Use Postgres for the ledger"),
            "Reviewed reason stats: 2 types, 1 decisions, diversity=0.33".to_owned(),
            "The ledger comes first".to_owned(),
        ]
    );
    assert_eq!(
        texts(&trace["inputs"], "source"),
        [
            "cstp:queryDecisions",
            "cstp:checkGuardrails",
            "cstp:getDecision",
            "cstp:getReasonStats",
            "cstp:recordThought"
        ]
    );
    let ids = texts(&trace["inputs"], "id");
    for (id, prefix) in ids.iter().zip(["q-", "g-", "l-", "s-", "r-"]) {
        let digits = id.strip_prefix(prefix).unwrap();
        assert!(digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    }
    // Microseconds and an offset; the simulated clock moves by a few microseconds.
    let at = &texts(&trace["inputs"], "timestamp")[0];
    assert!(at.starts_with("2026-02-08T12:00:00.0000") && at.ends_with("+00:00") && at.len() == 32, "{at}");
    // One step for each input; the conclusion and the convergence are not guessed.
    assert_eq!(
        texts(&trace["steps"], "type"),
        ["analysis", "constraint", "analysis", "empirical", "reasoning"]
    );
    assert_eq!(texts(&trace["steps"], "thought"), texts(&trace["inputs"], "text"));
    for (at, step) in trace["steps"].as_array().unwrap().iter().enumerate() {
        assert_eq!(step["step"], at + 1);
        assert_eq!(step["inputs_used"], json!([ids[at]]));
        assert_eq!(step["conclusion"], Value::Null);
    }
    assert_eq!(trace["convergence_point"], Value::Null);
    assert_eq!(recorded["deliberation_auto"], true);
    assert_eq!(recorded["deliberation_inputs_count"], 5);
    assert_eq!(recorded["related_count"], 1);
    assert_eq!(read["related_to"][0]["id"], id);
}

#[test]
fn blocked_check_counts_violations() {
    let bench = Bench::new();
    for id in ["a", "b"] {
        bench.call(Method::SetGuardrail, json!({ "id": id, "contains": ["prod"] }));
    }
    let checked = bench.call(Method::CheckGuardrails, json!({ "description": "Drop PROD tables" }));
    assert_eq!(checked["allowed"], false);
    bench.call(Method::GetReasonStats, json!({}));
    let (_, read) = bench.record(decision("Do nothing"));
    assert_eq!(
        texts(&read["deliberation"]["inputs"], "text"),
        ["Checked 'Drop PROD tables': blocked (2 violations)", "Reviewed reason stats: 0 types, 0 decisions"]
    );
}

/// A call that fails is no input.
#[test]
fn failed_call_is_not_captured() {
    let bench = Bench::new();
    bench.refused(Method::GetDecision, json!({ "id": "00000000" }));
    bench.refused(Method::QueryDecisions, json!({ "limit": 0 }));
    bench.refused(Method::CheckGuardrails, json!({}));
    let (recorded, read) = bench.record(decision("Nothing came before"));
    assert_eq!(recorded["deliberation_auto"], Value::Null);
    assert_eq!(recorded["deliberation_inputs_count"], Value::Null);
    assert_eq!(read["deliberation"], Value::Null, "S3.8: a decision without a deliberation");
}

/// The worked example: 3200 and 1800 are steps, 8200 is the total (S3.6). A captured trace's total is the time
/// between its first and last input, cut to whole milliseconds, and only from two inputs on.
#[test]
fn captured_total_is_time_between_first_and_last_input() {
    let bench = Bench::new();
    bench.query("a");
    let (_, one) = bench.record(decision("One"));
    assert_eq!(one["deliberation"]["total_duration_ms"], Value::Null);
    bench.query("a");
    bench.sim.set_now_ns(NOON + 3_200_999_999);
    bench.query("b");
    let (_, two) = bench.record(decision("Two"));
    assert_eq!(two["deliberation"]["total_duration_ms"], 3200);
    // The clock goes backwards: nothing is lost, the order stays, and the total is 0.
    bench.query("later");
    bench.sim.set_now_ns(NOON - 3600 * SECOND);
    bench.query("earlier");
    let (_, back) = bench.record(decision("Three"));
    assert_eq!(back["deliberation"]["total_duration_ms"], 0);
    assert_eq!(texts(&back["deliberation"]["inputs"], "text")[0], "Queried 'later': 0 results (keyword)");
}

/// S3.25, S3.26: a decision consumes; what comes after belongs to the next one.
#[test]
fn decision_consumes_and_later_inputs_belong_to_the_next() {
    let bench = Bench::new();
    bench.query("a");
    assert_eq!(bench.record(decision("One")).0["deliberation_inputs_count"], 1);
    assert!(bench.waiting().is_empty());
    bench.query("b");
    let (_, read) = bench.record(decision("Two"));
    assert_eq!(texts(&read["deliberation"]["inputs"], "text"), ["Queried 'b': 0 results (keyword)"]);
    assert_eq!(bench.record(decision("Three")).1["deliberation"], Value::Null);
}

/// What was consumed, and what ended, does not come back with the store.
#[test]
fn consumed_inputs_stay_consumed_after_reopening() {
    let bench = Bench::new();
    bench.query("taken");
    assert_eq!(bench.record(decision("One")).0["deliberation_inputs_count"], 1);
    bench.query("waits");
    let bench = bench.opened_again();
    assert_eq!(bench.waiting(), [("rpc:x".to_owned(), 1)]);
    let (_, read) = bench.record(decision("Two"));
    assert_eq!(texts(&read["deliberation"]["inputs"], "text"), ["Queried 'waits': 0 results (keyword)"]);
    assert_eq!(bench.opened_again().record(decision("Three")).1["deliberation"], Value::Null);
}

/// Keys as the source has them, and the order of consumption.
#[test]
fn scopes_have_their_own_trackers_and_are_merged() {
    let bench = Bench::new();
    let query = |params: Value| bench.call(Method::QueryDecisions, with(json!({ "query": "q" }), params));
    query(json!({}));
    query(json!({ "agentId": "a" }));
    query(json!({ "decisionId": "d" }));
    query(json!({ "agent_id": "a", "decision_id": "d" }));
    query(json!({ "agentId": "other" }));
    let session = Caller { session: Some("s1"), ..Caller::new("x") };
    bench.call_as(&session, Method::QueryDecisions, &json!({ "query": "q" })).unwrap();
    let all = [
        ("agent:a", 1),
        ("agent:a:decision:d", 1),
        ("agent:other", 1),
        ("decision:d", 1),
        ("mcp:s1", 1),
        ("rpc:x", 1),
    ];
    assert_eq!(bench.waiting(), all.map(|(key, count)| (key.to_owned(), count)));
    let (recorded, _) = bench.record(with(decision("Both"), json!({ "agentId": "a", "decisionId": "d" })));
    assert_eq!(recorded["deliberation_inputs_count"], 4, "composite, decision, agent, transport");
    assert_eq!(bench.waiting(), [("agent:other".to_owned(), 1), ("mcp:s1".to_owned(), 1)]);
    let shown = bench.call(Method::DebugTracker, json!({}));
    assert_eq!(shown["consumed"][0]["keys"], json!(["agent:a:decision:d", "decision:d", "agent:a", "rpc:x"]));
    assert_eq!(shown["consumed"][0]["decision_id"], recorded["id"]);
    // An unscoped decision takes only what was captured without a scope.
    query(json!({}));
    query(json!({ "agentId": "a" }));
    assert_eq!(bench.record(decision("Unscoped")).0["deliberation_inputs_count"], 1);
    let recorded = bench.call_as(&session, Method::RecordDecision, &decision("In the session")).unwrap();
    assert_eq!(recorded["deliberation_inputs_count"], 1, "S3.19: the session of MCP");
}

/// The source loses these: a query without a scope, and a decision of the same token that names an agent.
#[test]
fn unscoped_inputs_of_the_token_reach_a_decision_of_an_agent() {
    let bench = Bench::new();
    bench.query("unscoped");
    let other = Caller::new("y");
    bench.call_as(&other, Method::QueryDecisions, &json!({ "query": "of another token" })).unwrap();
    let (_, read) = bench.record(with(decision("As an agent"), json!({ "agentId": "a" })));
    assert_eq!(texts(&read["deliberation"]["inputs"], "text"), ["Queried 'unscoped': 0 results (keyword)"]);
    assert_eq!(read["agent_id"], "a");
}

/// S3.20: agents of the same name under two tokens, and an agent named like another token.
#[test]
fn tokens_are_isolated_from_each_other() {
    let bench = Bench::new();
    let (one, other) = (Caller::new("x"), Caller::new("y"));
    let scoped = json!({ "query": "q", "agentId": "worker" });
    bench.call_as(&one, Method::QueryDecisions, &scoped).unwrap();
    let as_worker = with(decision("d"), json!({ "agentId": "worker" }));
    let recorded = bench.call_as(&other, Method::RecordDecision, &as_worker).unwrap();
    assert_eq!(recorded["deliberation_inputs_count"], Value::Null);
    assert_eq!(bench.waiting(), [("agent:worker".to_owned(), 1)]);
    let is_other_token = |name: &str| name == "y";
    let bad = Caller { is_other_token: &is_other_token, ..one };
    let error =
        bench.call_as(&bad, Method::QueryDecisions, &json!({ "query": "q", "agentId": "y" })).unwrap_err();
    assert!(error.to_string().contains("\"y\" is the name of another token"), "{error}");
}

/// S3.29: five minutes of life by the clock that is handed in; an age equal to it still counts.
#[test]
fn inputs_end_after_five_minutes_and_the_consumption_is_noted() {
    let bench = Bench::new();
    bench.query("old");
    bench.sim.advance_ns(SECOND);
    bench.query("young");
    bench.sim.set_now_ns(NOON + 301 * SECOND);
    let (recorded, _) = bench.record(decision("One of two"));
    assert_eq!(recorded["deliberation_inputs_count"], 1, "300 seconds are allowed");
    bench.query("old");
    bench.sim.advance_ns(300 * SECOND + 1);
    let (recorded, read) = bench.record(decision("All ended"));
    assert_eq!((&recorded["deliberation_auto"], &read["deliberation"]), (&Value::Null, &Value::Null));
    let shown = bench.call(Method::DebugTracker, json!({}));
    assert_eq!(shown["consumed"][0]["texts"], json!(["[all inputs expired at consume time]"]));
    assert_eq!(shown["consumed"][0]["inputs_count"], 0);
    // The life is a setting of the namespace.
    let settings = bench.call(Method::Configure, json!({ "inputTtlMs": 1000 }));
    assert_eq!(settings, json!({ "requireDeliberation": false, "inputTtlMs": 1000 }));
    bench.query("short");
    bench.sim.advance_ns(SECOND + 1);
    assert_eq!(bench.record(decision("Too late")).1["deliberation"], Value::Null);
}

/// S3.29: ended inputs are removed with one of fifty captures, and when the trackers are looked at.
#[test]
fn ended_inputs_are_swept() {
    let bench = Bench::new();
    let stored = || {
        let inputs = bench.space.find_keyspace("annals.deliberation.inputs").unwrap().unwrap();
        inputs.scan(annals::kv::ScanRange::all()).count()
    };
    bench.query("old");
    bench.sim.advance_ns(301 * SECOND);
    (2..50).for_each(|_| drop(bench.query("young")));
    assert_eq!(stored(), 49);
    bench.query("the fiftieth");
    assert_eq!(stored(), 49, "one came, one went");
    bench.sim.advance_ns(301 * SECOND);
    assert_eq!(bench.call(Method::DebugTracker, json!({}))["swept"], 49);
    assert_eq!(stored(), 0);
    // An input with a second left stays.
    bench.query("nearly ended");
    bench.sim.advance_ns(299 * SECOND);
    assert_eq!(bench.call(Method::DebugTracker, json!({}))["swept"], 0);
    assert_eq!(stored(), 1);
}

#[test]
fn last_fifty_consumptions_are_noted_and_survive_reopening() {
    let bench = Bench::new();
    for number in 0..53 {
        bench.query(&format!("q{number}"));
        bench.record(decision("d"));
    }
    let bench = bench.opened_again();
    let shown = bench.call(Method::DebugTracker, json!({}));
    let consumed = shown["consumed"].as_array().unwrap();
    assert_eq!(consumed.len(), 50);
    assert!(consumed[0]["texts"][0].as_str().unwrap().starts_with("Queried 'q52'"), "{}", consumed[0]);
    assert!(consumed[49]["texts"][0].as_str().unwrap().starts_with("Queried 'q3'"), "{}", consumed[49]);
}

#[test]
fn related_decisions_keep_their_least_distance_in_order() {
    let bench = Bench::new();
    for text in [
        "redis cache",
        "redis cache of answers and much more text",
        "redis queue",
        "redis",
        "redis a b c",
        "redis d e",
    ] {
        bench.record(decision(text));
    }
    bench.query("redis");
    bench.query("redis cache");
    let (recorded, read) = bench.record(decision("Use Redis"));
    let related = read["related_to"].as_array().unwrap();
    assert_eq!(recorded["related_count"], related.len());
    let distances: Vec<f64> = related.iter().map(|one| one["distance"].as_f64().unwrap()).collect();
    assert!(distances.is_sorted(), "{distances:?}");
    let ids: HashSet<&str> = related.iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), related.len(), "each once");
    assert_eq!(related[0]["summary"], "redis cache");
    for distance in distances {
        assert_eq!((distance * 1000.0).round() / 1000.0, distance, "three digits");
    }
    // Each query remembers its five best.
    assert!((5..=6).contains(&related.len()), "{related:?}");
}

/// Two handles of one namespace share what they know: an input is never consumed twice.
#[test]
fn handles_of_a_namespace_share_their_inputs() {
    let bench = Bench::new();
    let other = annals_deliberation::Deliberation::open(&bench.space).unwrap();
    bench.query("q");
    let caller = Caller::new("x");
    let first = other.call(&caller, Method::RecordDecision, &decision("d").to_string()).unwrap();
    assert!(first.contains("\"deliberation_inputs_count\":1"), "{first}");
    assert_eq!(bench.record(decision("d")).0["deliberation_inputs_count"], Value::Null);
}

/// S3.20: fifty agents at once, with threads of their own, never see each other's inputs.
#[test]
fn fifty_agents_at_once_never_see_each_other() {
    let bench = Bench::new();
    let start = Barrier::new(50);
    std::thread::scope(|scope| {
        for number in 0..50 {
            let (bench, start) = (&bench, &start);
            scope.spawn(move || {
                let agent = format!("agent-{number}");
                start.wait();
                for round in 0..4 {
                    let word = format!("word{number}x{round}");
                    for _ in 0..3 {
                        bench.call(Method::QueryDecisions, json!({ "query": word, "agentId": agent }));
                    }
                    let params = with(decision(&agent), json!({ "agentId": agent }));
                    let (recorded, read) = bench.record(params);
                    assert_eq!(recorded["deliberation_inputs_count"], 3, "{agent} {round}");
                    for text in texts(&read["deliberation"]["inputs"], "text") {
                        assert!(text.starts_with(&format!("Queried '{word}'")), "{agent}: {text}");
                    }
                }
            });
        }
    });
    assert!(bench.waiting().is_empty());
}
