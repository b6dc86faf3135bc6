//! What is refused, and what is kept although it is unusual.

use annals::ErrorKind;
use annals::io::sim::{FailRule, OpKind};
use annals_diagnostics::{IDS_MAX, Injection, LessonFilter, SESSION_BYTES_MAX, SessionDiagnostic};
use serde_json::json;

use crate::support::{Bench, ended, session};

#[test]
fn malformed_report_is_refused_with_what_is_allowed() {
    let long = "x".repeat(4097);
    let with = |more: &str| format!(r#"{{"sessionId":"s","outcome":"rejected",{more}}}"#);
    let many = format!("\"injectedObservationIds\":[{}]", vec!["\"o\""; 10_001].join(","));
    for (text, why) in [
        ("[]".to_owned(), "a session's report is a JSON object"),
        (r#"["s","rejected"]"#.to_owned(), "a JSON object"),
        ("{".to_owned(), "line 1 column 1"),
        ("{}".to_owned(), "missing field `sessionId`"),
        (r#"{"sessionId":"s"}"#.to_owned(), "missing field `outcome`"),
        (r#"{"sessionId":"s","outcome":"failed"}"#.to_owned(), "`accepted`, `rejected`, `rework`"),
        (r#"{"sessionId":"","outcome":"rework"}"#.to_owned(), "sessionId must have 1 to 4096 bytes"),
        (format!(r#"{{"sessionId":"{long}","outcome":"rework"}}"#), "it has 4097"),
        (r#"{"sessionId":"a\u0000","outcome":"rework"}"#.to_owned(), "none of them zero"),
        (
            with(r#""failureCategory":"bug""#),
            "`test_failure`, `style`, `regression`, `incomplete`, `wrong_approach`, `other`, `unknown`",
        ),
        (with(r#""failureCategory":"style""#), "the rules give \"incomplete\""),
        (with(r#""injectedObservationsIds":[]"#), "unknown field `injectedObservationsIds`"),
        (with(r#""toolCallSummary":[{"tool":"jest"}]"#), "missing field `success`"),
        (with(r#""injectedGraphEdgeKeys":[{"sourceId":"a"}]"#), "missing field `targetId`"),
        (
            with(r#""helpfulObservationIds":["a"],"misleadingObservationIds":["a"]"#),
            "observation \"a\" is in helpfulObservationIds and",
        ),
        (with(r#""orgId":"""#), "orgId must have"),
        (with(&many), "10001 ids, and at most 10000"),
        (with(r#""failureContext":NaN"#), "malformed"),
        (" ".repeat(SESSION_BYTES_MAX + 1), "at most 67108864"),
    ] {
        let refused = SessionDiagnostic::parse(&text).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        assert!(refused.to_string().contains(why), "{refused} is not {why}");
    }
    let accepted = r#"{"sessionId":"s","outcome":"accepted","failureCategory":"other"}"#;
    assert!(SessionDiagnostic::parse(accepted).unwrap_err().to_string().contains("no failureCategory"));
    for text in [
        "{}",
        "[\"s\"]",
        r#"{"sessionId":"s","observations":[]}"#,
        r#"{"sessionId":"s","graphEntityIds":[""]}"#,
    ] {
        assert_eq!(Injection::parse(text).unwrap_err().kind(), ErrorKind::Invalid, "{text}");
    }
}

#[test]
fn null_counts_as_absent() {
    let text =
        r#"{"sessionId":"s","outcome":"rework","filesModified":null,"orgId":null,"failureCategory":null}"#;
    let bench = Bench::new();
    let report = bench.diagnostics.record(&SessionDiagnostic::parse(text).unwrap(), None).unwrap();
    assert_eq!(report.failure_category.unwrap().name(), "incomplete");
}

#[test]
fn message_of_ten_megabytes_is_kept_whole() {
    let bench = Bench::new();
    let message = format!("{}ESLINT", "é".repeat(5_000_000));
    let mut report = ended("s", "rejected", &["o"]);
    report["errorsEncountered"] = json!([{ "message": message, "tool": "t", "recoverable": true }]);
    assert_eq!(bench.record(&report).failure_category.unwrap().name(), "style");
    let row = bench.diagnostics.session("s").unwrap().unwrap();
    let row: serde_json::Value = serde_json::from_str(&row).unwrap();
    assert!(row["errorsEncountered"][0]["message"] == json!(message));
}

/// A context is any JSON: numbers beyond 64 bits and repeated members stay as they were written.
#[test]
fn failure_context_is_kept_byte_for_byte() {
    let context = r#"{ "n": 1e400,"n":12345678901234567890123, "u":"\ud800" }"#;
    let text = format!(r#"{{"sessionId":"s","outcome":"rework","failureContext":{context}}}"#);
    let bench = Bench::new();
    bench.diagnostics.record(&SessionDiagnostic::parse(&text).unwrap(), None).unwrap();
    let row = bench.restarted().diagnostics.session("s").unwrap().unwrap();
    assert!(row.contains(&format!("\"failureContext\":{context}")), "{row}");
}

/// Counts and weights do not depend on the order of times.
#[test]
fn clock_that_goes_backwards_loses_nothing() {
    let bench = Bench::new();
    for (number, (ns, outcome)) in
        [(50, "rejected"), (40, "rejected"), (30, "rejected"), (20, "rejected"), (10, "accepted")]
            .into_iter()
            .enumerate()
    {
        bench.sim.set_now_ns(ns * 1_000_000);
        bench.record(&ended(&format!("s{number}"), outcome, &["o"]));
    }
    assert_eq!(bench.diagnostics.weight_history("o").unwrap().len(), 5);
    for (since_ms, misleading, failed) in
        [(0, false, 4), (10, false, 4), (11, true, 4), (30, true, 3), (31, false, 2), (51, false, 0)]
    {
        let filter = LessonFilter { since_ms, ..LessonFilter::default() };
        let recount = bench.diagnostics.recount(&filter).unwrap();
        assert_eq!(!recount.misleading.is_empty(), misleading, "since {since_ms}");
        assert_eq!(bench.diagnostics.misleading(&filter).unwrap(), recount.misleading, "since {since_ms}");
        assert_eq!(bench.diagnostics.distribution(&filter).unwrap().incomplete, failed, "since {since_ms}");
    }
}

/// The call at a session's end never fails: what failed is in its result, and nothing is half recorded.
#[test]
fn failure_is_in_the_result_and_breaks_nothing() {
    let bench = Bench::new();
    let text = ended("s", "rejected", &["o"]).to_string();
    let refused = bench.diagnostics.record_session("{\"sessionId\":", None);
    assert_eq!((refused.id(), refused.aggressive_downweight_applied()), (None, 0));
    assert!(refused.failures[0].starts_with("the session was not recorded: "), "{:?}", refused.failures);
    bench.sim.fail(FailRule::eio(OpKind::Sync).on("s/segments"));
    let failed = bench.diagnostics.record_session(&text, None);
    assert_eq!((failed.id(), failed.failures.len()), (None, 1));
    let json = serde_json::to_string(&failed).unwrap();
    assert!(
        json.starts_with(r#"{"id":null,"aggressiveDownweightApplied":0,"failures":["the session was"#),
        "{json}"
    );
    // Questions are still answered.
    assert_eq!(bench.diagnostics.weight("o").unwrap(), 1.0);
    assert!(bench.diagnostics.misleading(&LessonFilter::default()).unwrap().is_empty());
    bench.sim.clear_faults();
    let bench = Bench::on(bench.sim.crash(annals::io::sim::Crash::Everything));
    let report = bench.diagnostics.record_session(&text, None);
    assert!(report.failures.is_empty() && report.id().is_some(), "{report:?}");
    assert_eq!(bench.diagnostics.weight("o").unwrap(), 0.85);
}

/// A row that was given again after its expiry is not applied a second time.
#[test]
fn expired_session_is_not_applied_again() {
    let bench = Bench::new();
    let report = session(&ended("s", "rejected", &["o", "o", "o"]));
    bench.diagnostics.record(&report, Some(1_000)).unwrap();
    bench.sim.advance_ns(1_000_000_000);
    assert_eq!(bench.diagnostics.session("s").unwrap(), None);
    assert!(bench.diagnostics.misleading(&LessonFilter::default()).unwrap().is_empty());
    let again = bench.diagnostics.record(&report, Some(1_000)).unwrap();
    assert!(again.repeated);
    assert_eq!(bench.diagnostics.weight_history("o").unwrap().len(), 1);
    let other = session(&ended("s", "accepted", &["o"]));
    assert_eq!(bench.diagnostics.record(&other, None).unwrap_err().kind(), ErrorKind::Conflict);
}

/// The largest lists that are allowed are one commit, too.
#[test]
fn session_with_the_most_ids_is_recorded() {
    let bench = Bench::new();
    let ids = |kind: &str| (0..IDS_MAX).map(|number| format!("{kind}{number}")).collect::<Vec<_>>();
    let mut report = json!({
        "sessionId": "s", "outcome": "rework", "orgId": "o", "projectId": "p",
        "injectedObservationIds": ids("o"), "helpfulObservationIds": ids("h"),
        "misleadingObservationIds": ids("m"), "injectedGraphEntityIds": ids("n"),
    });
    let done = bench.record(&report);
    assert_eq!((done.weight_changes.len(), done.graph.nodes), (3 * IDS_MAX, IDS_MAX as u64));
    assert!(bench.record(&report).repeated);
    report["injectedObservationIds"][0] = "other".into();
    assert!(bench.diagnostics.record(&session(&report), None).is_err());
}
