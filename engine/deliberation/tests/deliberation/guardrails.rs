//! Guardrails, and the switch that requires deliberations.

use annals::ErrorKind;
use annals_deliberation::Method;
use serde_json::{Value, json};

use crate::support::{Bench, decision, texts, with};

#[test]
fn rules_select_by_category_stakes_text_and_confidence() {
    let bench = Bench::new();
    bench.call(
        Method::SetGuardrail,
        json!({ "id": "no-friday", "description": "No deployments on Friday", "contains": ["Friday"], "phase": "check" }),
    );
    bench.call(
        Method::SetGuardrail,
        json!({ "id": "sure", "stakes": ["high", "critical"], "minConfidence": 0.8 }),
    );
    bench.call(Method::SetGuardrail, json!({ "id": "security", "category": ["security"], "effect": "warn" }));
    let check = |params: Value| bench.call(Method::CheckGuardrails, params);
    let violations = |params: Value| texts(&check(params)["violations"], "guardrail");
    assert_eq!(violations(json!({ "description": "Deploy on FRIDAY" })), ["no-friday"]);
    assert_eq!(violations(json!({ "action": "deploy", "context": "it is friday" })), ["no-friday"]);
    assert_eq!(violations(json!({ "description": "x", "stakes": "high", "confidence": 0.79 })), ["sure"]);
    assert_eq!(violations(json!({ "description": "x", "stakes": "high" })), ["sure"], "nothing is stated");
    assert_eq!(violations(json!({ "description": "x", "stakes": "high", "confidence": 0.8 })), [""; 0]);
    let warned = check(json!({ "description": "x", "category": "security" }));
    assert_eq!(
        (&warned["allowed"], texts(&warned["warnings"], "guardrail")),
        (&json!(true), vec!["security".into()])
    );
    assert_eq!(warned["evaluated"], 3);
    // The same rules hold when a decision is recorded; a rule of the phase `check` does not.
    let bad = json!({ "decision": "Deploy on Friday", "confidence": 0.5, "stakes": "high" });
    let (kind, text) = bench.refused(Method::RecordDecision, bad);
    assert!(kind == ErrorKind::Conflict && text.contains("sure: ") && !text.contains("no-friday"), "{text}");
    let (recorded, _) = bench.record(with(decision("Deploy on Friday"), json!({ "category": "security" })));
    assert_eq!(recorded["guardrail_warnings"][0]["guardrail"], "security");
    assert_eq!(bench.call(Method::ListGuardrails, json!({}))["guardrails"].as_array().unwrap().len(), 3);
    let gone = |id: &str| bench.call(Method::DeleteGuardrail, json!({ "id": id }))["deleted"].clone();
    assert_eq!((gone("sure"), gone("sure")), (json!(true), json!(false)));
}

/// S3.8: required for new decisions by a switch, optional where it is off and in old decisions.
#[test]
fn switch_requires_a_deliberation_of_new_decisions() {
    let bench = Bench::new();
    let (old, _) = bench.record(decision("Old"));
    bench.call(Method::Configure, json!({ "requireDeliberation": true }));
    let (kind, text) = bench.refused(Method::RecordDecision, decision("New"));
    assert!(kind == ErrorKind::Conflict && text.contains("require-deliberation"), "{text}");
    assert_eq!(
        bench.read(old["id"].as_str().unwrap())["deliberation"],
        Value::Null,
        "old ones stay readable"
    );
    // A captured input is a deliberation. A deliberation without reasoning is warned of.
    bench.query("q");
    let (recorded, _) = bench.record(decision("New"));
    assert_eq!(recorded["guardrail_warnings"][0]["guardrail"], "require-deliberation");
    bench.call(Method::RecordThought, json!({ "text": "because" }));
    assert_eq!(bench.record(decision("New")).0["guardrail_warnings"], Value::Null);
    let bench = bench.opened_again();
    assert_eq!(bench.refused(Method::RecordDecision, decision("New")).0, ErrorKind::Conflict);
    let empty = with(decision("New"), json!({ "deliberation": { "inputs": [], "steps": [] } }));
    assert_eq!(bench.refused(Method::RecordDecision, empty).0, ErrorKind::Conflict, "it has no content");
    bench.call(Method::Configure, json!({ "requireDeliberation": false }));
    bench.record(decision("New"));
}

/// A decision that is refused takes nothing.
#[test]
fn blocked_decision_leaves_the_inputs() {
    let bench = Bench::new();
    bench.query("q");
    bench.call(Method::SetGuardrail, json!({ "id": "never", "contains": ["drop"] }));
    bench.refused(Method::RecordDecision, decision("drop it"));
    let missing =
        json!({ "deliberation": { "steps": [{ "step": 1, "thought": "t", "inputs_used": ["nope"] }] } });
    bench.refused(Method::RecordDecision, with(decision("d"), missing));
    assert_eq!(bench.waiting(), [("rpc:x".to_owned(), 1)]);
    assert_eq!(bench.record(decision("keep it")).0["deliberation_inputs_count"], 1);
}
