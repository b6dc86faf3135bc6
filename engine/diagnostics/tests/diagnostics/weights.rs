//! Weights, their history and the audit log.

use annals_diagnostics::{Candidate, EdgeKey, LessonFilter, Outcome, TimedSession, moving_average};
use serde_json::json;

use crate::support::{Bench, ended, session};

/// The figures of the source: 1.0 falls to 0.85 by a rejected session and to 0.70 by the doubled rate; 0.85 rises
/// to 0.865; an accepted session leaves 1.0.
#[test]
fn moving_average_gives_the_figures_of_the_source() {
    let figures = [(1.0, 0.0, 0.15, "0.85"), (1.0, 0.0, 0.30, "0.7"), (0.85, 1.0, 0.1, "0.865")];
    for (previous, signal, alpha, wanted) in figures {
        assert_eq!(moving_average(previous, signal, alpha).unwrap().to_string(), wanted);
    }
    assert_eq!(moving_average(1.0, 1.0, 0.1).unwrap().to_string(), "1");
    for bad in [f64::NAN, f64::INFINITY, -0.1, 1.1] {
        for terms in [(bad, 0.0, 0.1), (0.5, bad, 0.1), (0.5, 0.0, bad)] {
            let refused = moving_average(terms.0, terms.1, terms.2).unwrap_err().to_string();
            assert!(refused.contains("a number from 0 to 1"), "{refused}");
        }
    }
}

#[test]
fn weights_follow_outcomes_to_the_digit() {
    let bench = Bench::new();
    let weight = || bench.diagnostics.weight("o").unwrap().to_string();
    assert_eq!(weight(), "1");
    for (id, outcome, wanted) in
        [("a", "rejected", "0.85"), ("b", "accepted", "0.865"), ("c", "rework", "0.73525")]
    {
        bench.record(&ended(id, outcome, &["o"]));
        assert_eq!(weight(), wanted);
    }
    let history = bench.diagnostics.weight_history("o").unwrap();
    let told: Vec<_> = history
        .iter()
        .map(|change| {
            (
                change.session_id.as_str(),
                change.outcome,
                change.previous_weight,
                change.new_weight,
                change.alpha,
            )
        })
        .collect();
    let wanted = [
        ("a", Outcome::Rejected, 1.0, 0.85, 0.15),
        ("b", Outcome::Accepted, 0.85, 0.865, 0.1),
        ("c", Outcome::Rework, 0.865, 0.73525, 0.15),
    ];
    assert_eq!(told, wanted);
    // Another observation is not touched.
    assert_eq!(bench.diagnostics.weight("other").unwrap(), 1.0);
}

/// Three failures and no acceptance: the rate is doubled, once, and history and audit log say so. A row that holds
/// the id three times is enough, since rows are counted as the source's query expands them.
#[test]
fn misleading_observation_falls_with_the_doubled_rate() {
    let bench = Bench::new();
    let mut report = ended("s", "rework", &["o", "o", "o"]);
    report["orgId"] = "org".into();
    report["projectId"] = "proj".into();
    let done = bench.record(&report);
    assert_eq!(done.aggressive_downweight_applied, 1);
    assert_eq!(bench.diagnostics.weight("o").unwrap().to_string(), "0.7");
    let [change] = bench.diagnostics.weight_history("o").unwrap().try_into().unwrap();
    assert_eq!(
        (change.outcome, change.alpha, change.recorded_at),
        (Outcome::Rejected, 0.3, 1_764_000_000_000)
    );
    assert_eq!((change.org_id.as_deref(), change.project_id.as_deref()), (Some("org"), Some("proj")));
    let [event] = bench.diagnostics.audit(0, 10).unwrap().try_into().unwrap();
    assert_eq!((event.event.as_str(), event.observation_id.as_str()), ("memory.feedback", "o"));
    assert!(event.metadata.aggressive_downweight);
    assert_eq!((event.metadata.previous_weight, event.metadata.new_weight), (1.0, 0.7));
    let text = serde_json::to_string(&event).unwrap();
    assert!(text.contains(r#""metadata":{"aggressiveDownweight":true,"#), "{text}");
}

#[test]
fn third_failed_session_doubles_and_one_acceptance_prevents_it() {
    let bench = Bench::new();
    bench.record(&ended("good", "accepted", &["saved"]));
    for (number, doubled) in [(1, 0), (2, 0), (3, 1), (4, 1)] {
        let done = bench.record(&ended(&format!("s{number}"), "rejected", &["bad", "saved"]));
        assert_eq!(done.aggressive_downweight_applied, doubled, "session {number}");
    }
    let all = LessonFilter::default();
    assert_eq!(bench.diagnostics.misleading(&all).unwrap(), ["bad"]);
    let alphas: Vec<f64> =
        bench.diagnostics.weight_history("bad").unwrap().iter().map(|change| change.alpha).collect();
    assert_eq!(alphas, [0.15, 0.15, 0.3, 0.3]);
    // 1, 0.85, 0.7225, then twice the doubled rate.
    let weight = bench.diagnostics.weight("bad").unwrap();
    assert!((weight - 0.354_025).abs() < 1e-15, "{weight}");
    bench.record(&ended("late", "accepted", &["bad"]));
    assert!(bench.diagnostics.misleading(&all).unwrap().is_empty());
    // An observation of another organisation is counted apart.
    let mut other = ended("elsewhere", "rejected", &["bad", "bad", "bad"]);
    other["orgId"] = "b".into();
    assert_eq!(bench.record(&other).aggressive_downweight_applied, 1);
    let of = LessonFilter { org: Some("b"), ..LessonFilter::default() };
    assert_eq!(bench.diagnostics.misleading(&of).unwrap(), ["bad"]);
}

#[test]
fn session_changes_weights_once_however_often_it_is_reported() {
    let bench = Bench::new();
    let report = ended("s", "rejected", &["o", "o", "o", "p"]);
    let first = bench.record(&report);
    let seqno = bench.store.seqno();
    for _ in 0..3 {
        let again = bench.record(&report);
        assert!(again.repeated && again.weight_changes.is_empty());
        assert_eq!((again.id, again.aggressive_downweight_applied), (first.id.clone(), 1));
    }
    let timed = |report| TimedSession { session: session(report), ended_ms: 5 };
    let both = [timed(&report), timed(&report)];
    assert!(bench.diagnostics.record_all(&both, None).unwrap().iter().all(|report| report.repeated));
    assert_eq!(bench.store.seqno(), seqno, "nothing was written");
    assert_eq!(bench.diagnostics.weight_history("o").unwrap().len(), 1);
    // Within one commit, too.
    let twice = [timed(&ended("t", "rejected", &["q"])), timed(&ended("t", "rejected", &["q"]))];
    let reports = bench.diagnostics.record_all(&twice, None).unwrap();
    assert!(!reports[0].repeated && reports[1].repeated);
    assert_eq!(bench.diagnostics.weight("q").unwrap(), 0.85);
    assert_eq!(bench.diagnostics.weight_history("q").unwrap()[0].recorded_at, 5);
}

#[test]
fn session_with_other_contents_is_refused() {
    let bench = Bench::new();
    bench.record(&ended("s", "rejected", &["o"]));
    let seqno = bench.store.seqno();
    for other in [ended("s", "accepted", &["o"]), ended("s", "rejected", &["o", "p"])] {
        let refused = bench.diagnostics.record(&session(&other), None).unwrap_err();
        assert_eq!(refused.kind(), annals::ErrorKind::Conflict);
        assert!(refused.to_string().contains("other contents: the first report stays"), "{refused}");
    }
    assert_eq!(bench.store.seqno(), seqno);
}

#[test]
fn helpful_rises_and_named_misleading_falls_by_the_plain_rule() {
    let bench = Bench::new();
    bench.record(&ended("first", "rejected", &["a", "b", "c"]));
    let mut report = ended("second", "rejected", &["a", "b"]);
    report["helpfulObservationIds"] = json!(["a"]);
    bench.record(&report);
    let mut report = ended("third", "accepted", &["b", "c"]);
    report["misleadingObservationIds"] = json!(["c"]);
    bench.record(&report);
    let weight = |id: &str| bench.diagnostics.weight(id).unwrap();
    assert_eq!((weight("a"), weight("b"), weight("c")), (0.865, 0.85 * 0.85 * 0.9 + 0.1, 0.85 * 0.85));
    assert_eq!(bench.diagnostics.weight_history("c").unwrap()[1].outcome, Outcome::Rejected);
}

/// Nodes and edges start at a half and move by a tenth; rework is a half, which leaves a half where it is.
#[test]
fn graph_weights_move_by_their_own_rule() {
    let bench = Bench::new();
    let edge = EdgeKey {
        source_id: "n".to_owned(),
        target_id: "m".to_owned(),
        relationship_name: "uses".to_owned(),
    };
    let report = |id: &str, outcome: &str| {
        json!({ "sessionId": id, "outcome": outcome, "orgId": "o", "injectedGraphEntityIds": ["n", "n"],
                "injectedGraphEdgeKeys": [&edge] })
    };
    let weights =
        || (bench.diagnostics.node_weight("n").unwrap(), bench.diagnostics.edge_weight(&edge).unwrap());
    assert_eq!(weights(), (0.5, 0.5));
    for (id, outcome, wanted) in
        [("a", "accepted", 0.55), ("b", "rejected", 0.495), ("c", "rework", 0.1 * 0.5 + 0.9 * 0.495)]
    {
        let done = bench.record(&report(id, outcome));
        assert_eq!((done.graph.nodes, done.graph.edges), (1, 1));
        let (node, of_edge) = weights();
        assert!((node - wanted).abs() < 1e-15 && node == of_edge, "{outcome}: {node}");
    }
    let scores: Vec<f64> =
        bench.diagnostics.node_history("n").unwrap().iter().map(|change| change.score).collect();
    assert_eq!(scores, [1.0, 0.0, 0.5]);
    assert_eq!(bench.diagnostics.edge_history(&edge).unwrap()[2].edge_key, Some(edge.clone()));
    // Without an organisation there is no feedback, and the report says so.
    let mut lost = report("d", "rejected");
    lost.as_object_mut().unwrap().remove("orgId");
    let before = weights();
    assert_eq!(bench.record(&lost).graph.skipped.as_deref(), Some("the session has no orgId"));
    assert_eq!(weights(), before);
}

#[test]
fn weights_order_candidates_unless_switched_off() {
    let bench = Bench::new();
    bench.record(&ended("s", "rejected", &["near", "near", "near"]));
    let candidates: Vec<Candidate> = [("near", 0.9), ("far", 0.8), ("farther", 0.5)]
        .map(|(id, relevance_score)| Candidate { id: id.to_owned(), relevance_score })
        .to_vec();
    let adjusted = bench.diagnostics.adjust(None, &candidates).unwrap();
    let order: Vec<_> =
        adjusted.iter().map(|one| (one.id.as_str(), one.unweighted_rank, one.weighted_rank)).collect();
    assert_eq!(order, [("far", 1, 0), ("near", 0, 1), ("farther", 2, 2)]);
    assert_eq!(adjusted[1].weighted_score, 0.9 * 0.7);
    bench.diagnostics.set_weighting(Some("off"), false).unwrap();
    let off = bench.diagnostics.adjust(Some("off"), &candidates).unwrap();
    assert_eq!((off[0].id.as_str(), off[0].weighted_score, off[0].feedback_weight), ("near", 0.9, 0.7));
    assert!(bench.diagnostics.is_weighting_enabled(Some("other")).unwrap());
    bench.diagnostics.set_weighting(None, false).unwrap();
    assert!(!bench.diagnostics.is_weighting_enabled(Some("other")).unwrap());
    bench.diagnostics.set_weighting(Some("off"), true).unwrap();
    let bench = bench.restarted();
    assert!(bench.diagnostics.is_weighting_enabled(Some("off")).unwrap());
    // Weights go on while ranking by them is off.
    bench.record(&ended("t", "accepted", &["near"]));
    assert_eq!(bench.diagnostics.weight_history("near").unwrap().len(), 2);
    bench.diagnostics.log_retrieval("s", &adjusted).unwrap();
    bench.diagnostics.log_retrieval("s", &off).unwrap();
    let logged = bench.diagnostics.retrievals("s").unwrap();
    assert_eq!(logged, [adjusted, off].concat());
}
