//! The row, the shape and the rules for categories.

use annals_diagnostics::{CategoryCounts, FailureCategory, Injection, LessonFilter, TEST_RUNNERS, classify};
use serde_json::{Value, json};

use crate::support::{Bench, ended, example, session};

#[test]
fn example_session_of_the_source_is_a_test_failure() {
    let bench = Bench::new();
    let report = bench.record(&example());
    assert_eq!(report.failure_category, Some(FailureCategory::TestFailure));
    assert_eq!(report.aggressive_downweight_applied, 0);
    assert_eq!((report.graph.nodes, report.graph.edges), (1, 0));
    assert_eq!(report.id.len(), 36, "{}", report.id);
}

/// Each message also holds the words of the rules behind it: only the order decides.
#[test]
fn first_matching_rule_wins() {
    let failed = |tools: Value, errors: &[&str], files: &[&str]| {
        let errors: Vec<Value> = errors
            .iter()
            .map(|message| json!({ "message": message, "tool": "bash", "recoverable": true }))
            .collect();
        classify(&session(&json!({
            "sessionId": "s", "outcome": "rework", "toolCallSummary": tools, "filesModified": files,
            "errorsEncountered": errors,
        })))
        .name()
    };
    let call = |tool: &str, success: bool| json!([{ "tool": tool, "success": success }]);
    let all = ["ESLint: this broke previously"];
    assert_eq!(failed(call("pytest", false), &all, &[]), "test_failure");
    assert_eq!(failed(call("pytest", true), &all, &[]), "style");
    assert_eq!(failed(call("bash", false), &["It BROKE"], &[]), "regression");
    assert_eq!(failed(json!([]), &["no such file"], &[]), "incomplete");
    assert_eq!(failed(json!([]), &["no such file"], &["a.rs"]), "wrong_approach");
    assert_eq!(failed(call("bash", false), &[], &["a.rs"]), "other");
    for message in ["splint", "reFORMATted", "Prettier", "eslint"] {
        assert_eq!(failed(json!([]), &["fine", message], &["a.rs"]), "style", "{message}");
    }
    for message in ["a Regression", "it was broken", "PREVIOUSLY green"] {
        assert_eq!(failed(json!([]), &[message], &[]), "regression", "{message}");
    }
    // As JavaScript's /i without /u: the long s and the Kelvin sign are no ASCII letters.
    assert_eq!(failed(json!([]), &["bro\u{212a}e e\u{17f}-lin"], &["a.rs"]), "wrong_approach");
}

#[test]
fn test_runners_are_found_by_their_names() {
    let category = |tool: &str| {
        classify(&session(&json!({
            "sessionId": "s", "outcome": "rejected", "filesModified": ["a"],
            "toolCallSummary": [{ "tool": tool, "success": false }],
        })))
    };
    let spelled = ["Jest", "go test", "go-test", "mcp__ci__pytest", "functions.vitest", "bin/cargo_test"];
    for tool in TEST_RUNNERS.iter().chain(&spelled) {
        assert_eq!(category(tool), FailureCategory::TestFailure, "{tool}");
    }
    for tool in ["bash", "jester", "test", "", "pytest_plugin_list"] {
        assert_eq!(category(tool), FailureCategory::Other, "{tool}");
    }
}

#[test]
fn accepted_session_leaves_a_light_row() {
    let bench = Bench::new();
    let mut report = example();
    report["outcome"] = "accepted".into();
    report["failureContext"] = json!({ "note": "none" });
    assert_eq!(bench.record(&report).failure_category, None);
    let row: Value =
        serde_json::from_str(&bench.diagnostics.session("session-abc").unwrap().unwrap()).unwrap();
    for member in
        ["toolCallSummary", "filesModified", "errorsEncountered", "failureContext", "failureCategory"]
    {
        assert_eq!(row.get(member), None, "{member}");
    }
    assert_eq!(row["injectedObservationIds"], json!(["obs-1", "obs-2", "obs-3"]));
    assert_eq!((row["orgId"].as_str(), row["projectId"].as_str()), (Some("org-1"), Some("proj-1")));
    let counts = bench.diagnostics.distribution(&LessonFilter::default()).unwrap();
    assert_eq!(counts, CategoryCounts::default());
}

#[test]
fn failed_session_leaves_a_full_row() {
    for outcome in ["rejected", "rework"] {
        let bench = Bench::new();
        let mut report = example();
        report["outcome"] = outcome.into();
        report["failureContext"] = json!({ "attempt": 3 });
        report["helpfulObservationIds"] = json!(["obs-1"]);
        report["misleadingObservationIds"] = json!(["obs-2"]);
        report["injectedGraphEdgeKeys"] =
            json!([{ "sourceId": "a", "targetId": "b", "relationshipName": "uses" }]);
        bench.record(&report);
        let bench = bench.restarted();
        let row = bench.diagnostics.session("session-abc").unwrap().unwrap();
        let row: Value = serde_json::from_str(&row).unwrap();
        for (member, value) in report.as_object().unwrap() {
            assert_eq!(&row[member], value, "{member}");
        }
        assert_eq!(row["failureCategory"], "test_failure");
        assert_eq!(row["recordedAt"], 1_764_000_000_000_u64);
    }
}

#[test]
fn session_without_observations_gets_those_of_its_injection() {
    let bench = Bench::new();
    let edge = json!({ "sourceId": "a", "targetId": "b", "relationshipName": "uses" });
    let given = |observations: &[&str]| {
        let injection = json!({
            "sessionId": "s", "observationIds": observations, "graphEntityIds": ["n"],
            "graphEdgeKeys": [edge], "orgId": "o", "projectId": "p",
        });
        Injection::parse(&injection.to_string()).unwrap()
    };
    bench.diagnostics.log_injection(&given(&["x", "y"])).unwrap();
    let all = bench.diagnostics.log_injection(&given(&["y", "z"])).unwrap();
    assert_eq!((all.observation_ids.len(), all.graph_edge_keys.len()), (3, 1), "each id once");
    let report = bench.record(&json!({ "sessionId": "s", "outcome": "rework" }));
    let ids: Vec<_> = report.weight_changes.iter().map(|change| change.observation_id.as_str()).collect();
    assert_eq!(ids, ["x", "y", "z"]);
    assert_eq!((report.graph.nodes, report.graph.edges), (1, 1));
    let of = LessonFilter { org: Some("o"), project: Some("p"), since_ms: 0 };
    assert_eq!(bench.diagnostics.distribution(&of).unwrap().incomplete, 1);
    // What the report names wins.
    let own = bench.record(&json!({ "sessionId": "t", "outcome": "rework", "injectedObservationIds": [] }));
    assert!(own.weight_changes.is_empty());
}

/// The counts of the source's example: 12, 3, 1, 0, 7, 2, 0.
#[test]
fn distribution_has_every_category_also_with_zero() {
    let bench = Bench::new();
    let error = |message: &str| json!([{ "message": message, "tool": "bash", "recoverable": false }]);
    let kinds = [
        (12, json!({ "toolCallSummary": [{ "tool": "jest", "success": false }] })),
        (3, json!({ "errorsEncountered": error("lint") })),
        (1, json!({ "errorsEncountered": error("regression") })),
        (7, json!({ "errorsEncountered": error("no"), "filesModified": ["a"] })),
        (2, json!({ "filesModified": ["a"] })),
    ];
    let mut number = 0;
    for (count, more) in kinds {
        for _ in 0..count {
            let mut report = ended(&format!("s{number}"), "rejected", &[]);
            report.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            report["orgId"] = "org-1".into();
            report["projectId"] = "proj-1".into();
            bench.record(&report);
            number += 1;
        }
    }
    let of = |org, project, since_ms| {
        let filter = LessonFilter { org, project, since_ms };
        serde_json::to_string(&bench.diagnostics.distribution(&filter).unwrap()).unwrap()
    };
    let all = r#"{"test_failure":12,"style":3,"regression":1,"incomplete":0,"wrong_approach":7,"other":2,"unknown":0}"#;
    let none = r#"{"test_failure":0,"style":0,"regression":0,"incomplete":0,"wrong_approach":0,"other":0,"unknown":0}"#;
    assert_eq!(of(Some("org-1"), Some("proj-1"), 1_764_000_000_000), all);
    assert_eq!(of(None, None, 0), all);
    assert_eq!(of(Some("org-1"), None, 1_764_000_000_001), none);
    assert_eq!(of(Some("org-2"), None, 0), none);
    assert_eq!(of(Some("org-1"), Some("proj-2"), 0), none);
    // A session that nobody classified counts as unknown.
    let mut report = ended("u", "rejected", &[]);
    report["failureCategory"] = "unknown".into();
    bench.record(&report);
    assert_eq!(bench.diagnostics.distribution(&LessonFilter::default()).unwrap().unknown, 1);
}
