//! What is refused, and that the error says what to change.

use annals::ErrorKind;
use annals_deliberation::Method;
use serde_json::{Value, json};

use crate::support::{Bench, decision, with};

#[test]
fn bad_input_is_refused_with_a_reason() {
    use Method::{
        CheckGuardrails, Configure, ExportSpikes, GetDecision, QueryDecisions, RecordDecision, RecordThought,
        ReviewOutcome, SetGuardrail,
    };
    let bench = Bench::new();
    let of = |more: Value| with(decision("d"), more);
    let trace = |trace: Value| of(json!({ "deliberation": trace }));
    let step = |more: Value| trace(json!({ "steps": [with(json!({ "step": 1, "thought": "t" }), more)] }));
    let all_categories = "use architecture, process, integration, tooling, security";
    let all_types =
        "use authority, analogy, analysis, pattern, intuition, empirical, elimination, constraint";
    for (method, params, reason) in [
        (RecordDecision, json!({ "confidence": 1 }), "a decision needs \"decision\""),
        (RecordDecision, json!({ "decision": " ", "confidence": 1 }), "a decision needs \"decision\""),
        (RecordDecision, json!({ "decision": "d" }), "a decision needs \"confidence\""),
        (RecordDecision, of(json!({ "confidence": 1.01 })), "confidence 1.01 is not from 0 to 1"),
        (RecordDecision, of(json!({ "confidence": -0.1 })), "confidence -0.1 is not from 0 to 1"),
        (
            RecordDecision,
            of(json!({ "confidence": "high" })),
            "\"confidence\" of the decision is not a number",
        ),
        (RecordDecision, of(json!({ "category": "cooking" })), all_categories),
        (RecordDecision, of(json!({ "stakes": "huge" })), "use low, medium, high, critical"),
        (
            RecordDecision,
            of(json!({ "mentalState": "x" })),
            "use deliberate, reactive, exploratory, habitual, pressured",
        ),
        (RecordDecision, of(json!({ "reasons": [{ "type": "hunch" }] })), all_types),
        (
            RecordDecision,
            of(json!({ "reasons": [{ "text": "t" }] })),
            "reason 1 of the decision has no \"type\"",
        ),
        (RecordDecision, of(json!({ "reasons": 1 })), "\"reasons\" of the decision is not an array"),
        (RecordDecision, of(json!({ "id": "1" })), "\"id\" of a decision is written by annals"),
        (RecordDecision, of(json!({ "frame": 1 })), "must name its run"),
        (RecordDecision, of(json!({ "agentId": "a\u{0}b" })), "no control characters"),
        (RecordDecision, of(json!({ "embedding": [0, 0] })), "is zero, or too small"),
        (RecordDecision, trace(json!([])), "the deliberation: not a JSON object"),
        (
            RecordDecision,
            trace(json!({ "inputs": [{ "text": "t" }] })),
            "input 1 of the deliberation has no \"id\"",
        ),
        (
            RecordDecision,
            trace(json!({ "inputs": [{ "id": "i" }] })),
            "input 1 of the deliberation has no \"text\"",
        ),
        (
            RecordDecision,
            trace(json!({ "inputs": [{ "id": "i", "text": "t" }, { "id": "i", "text": "u" }] })),
            "two inputs with the id \"i\"",
        ),
        (
            RecordDecision,
            trace(json!({ "steps": [{ "thought": "t" }] })),
            "step 1 of the deliberation has no number",
        ),
        (RecordDecision, step(json!({ "step": 0 })), "a whole number of at least 1"),
        (RecordDecision, step(json!({ "type": "magic" })), "constraint, reasoning"),
        (RecordDecision, step(json!({ "durationMs": -1 })), "must be at least 0"),
        (
            RecordDecision,
            step(json!({ "inputs_used": ["i1", "i9"] })),
            "that it does not have: \"i1\" (step 1), \"i9\" (step 1)",
        ),
        (
            RecordDecision,
            step(json!({ "durationMs": 1, "duration_ms": 2 })),
            "both \"durationMs\" and \"duration_ms\"",
        ),
        (
            RecordDecision,
            trace(json!({ "convergencePoint": 3 })),
            "converges at step 3, which it does not have",
        ),
        (
            RecordDecision,
            trace(json!({ "steps": [{ "step": 1, "thought": "t" }, { "step": 1, "thought": "u" }] })),
            "two steps with the number 1",
        ),
        (QueryDecisions, json!({ "limit": 1001 }), "1 to 1000 decisions, not 1001"),
        (QueryDecisions, json!({ "outcome": "great" }), "use success, partial, failure, abandoned"),
        (QueryDecisions, json!({ "colour": "red" }), "unknown member \"colour\""),
        (
            QueryDecisions,
            json!({ "filters": { "colour": "red" } }),
            "\"filters\" has an unknown member \"colour\"",
        ),
        (QueryDecisions, json!({ "stakes": "low", "filters": {} }), "give all of them within it"),
        (QueryDecisions, json!({ "since": "yesterday" }), "\"since\" is not a time"),
        (QueryDecisions, json!({ "query": "q", "mode": "semantic" }), "needs \"embedding\""),
        (QueryDecisions, json!({ "mode": "keyword" }), "needs \"query\""),
        (CheckGuardrails, json!({}), "needs \"description\""),
        (CheckGuardrails, json!({ "description": "d", "confidence": 2 }), "not from 0 to 1"),
        (GetDecision, json!({}), "\"id\" of the decision is missing"),
        (GetDecision, json!({ "id": 5 }), "not a text"),
        (RecordThought, json!({}), "a thought needs \"text\""),
        (RecordThought, json!({ "text": "t", "id": "i", "decisionId": "d" }), "not both"),
        (ReviewOutcome, json!({ "outcome": "success" }), "a review needs \"id\""),
        (ReviewOutcome, json!({ "id": "i" }), "use success, partial, failure, abandoned"),
        (SetGuardrail, json!({ "id": "" }), "1 to 128 bytes"),
        (SetGuardrail, json!({ "id": "require-deliberation" }), "is a switch"),
        (SetGuardrail, json!({ "id": "x", "weight": 1 }), "unknown field `weight`"),
        (SetGuardrail, json!({ "id": "x", "stakes": ["huge"] }), "use low, medium, high, critical"),
        (SetGuardrail, json!({ "id": "x", "contains": [""] }), "every decision contains it"),
        (SetGuardrail, json!({ "id": "x", "minConfidence": 2 }), "not from 0 to 1"),
        (Configure, json!({ "inputTtlMs": 0 }), "from 1 to 86400000"),
        (Configure, json!({ "inputs": 0 }), "unknown member"),
        (ExportSpikes, json!({ "id": "i", "format": "xml" }), "use json, csv"),
    ] {
        let (kind, text) = bench.refused(method, params.clone());
        assert!(kind == ErrorKind::Invalid && text.contains(reason), "{params}: {text}");
    }
    for (method, params) in [
        (GetDecision, json!({ "id": "00000000" })),
        (RecordThought, json!({ "id": "00000000", "text": "t" })),
        (ReviewOutcome, json!({ "id": "00000000", "outcome": "success" })),
        (ExportSpikes, json!({ "id": "00000000" })),
    ] {
        let (kind, text) = bench.refused(method, params);
        assert!(kind == ErrorKind::NotFound && text.contains("no decision \"00000000\""), "{text}");
    }
    assert!(bench.waiting().is_empty());
    assert_eq!(bench.call(QueryDecisions, json!({}))["total"], 0, "nothing was stored");
}
