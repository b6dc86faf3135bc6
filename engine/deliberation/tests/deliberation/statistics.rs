//! Statistics: worked examples by hand.

use annals_deliberation::Method;
use serde_json::{Value, json};

use crate::support::{Bench, decision, with};

/// Four decisions with 1, 2, 3 and 4 steps; the last two succeed.
fn four() -> Bench {
    let bench = Bench::new();
    for (steps, outcome) in [(1, "failure"), (2, "failure"), (3, "success"), (4, "success")] {
        let each: Vec<Value> = (1..=steps)
            .map(|step| {
                let source = if step % 2 == 0 { "web" } else { "file" };
                json!({ "id": format!("i{step}"), "text": "t", "source": source, "timestamp": format!("2026-02-08T12:00:0{step}Z") })
            })
            .collect();
        let thoughts: Vec<Value> = (1..=steps)
            .map(|step| json!({ "step": step, "thought": "t", "inputs_used": [format!("i{step}")], "timestamp": format!("2026-02-08T12:00:0{step}.500Z") }))
            .collect();
        let trace = json!({ "inputs": each, "steps": thoughts, "totalDurationMs": steps * 1000, "convergencePoint": 1 });
        let category = if steps < 3 { "process" } else { "security" };
        let more = json!({ "deliberation": trace, "category": category, "confidence": 0.25 * f64::from(steps) - 0.05 });
        let (recorded, _) = bench.record(with(decision("d"), more));
        bench.call(Method::ReviewOutcome, json!({ "id": recorded["id"], "outcome": outcome }));
    }
    bench.record(with(decision("open"), json!({ "category": "process" })));
    bench
}

fn close(value: &Value, expected: f64) -> bool {
    value.as_f64().is_some_and(|value| (value - expected).abs() < 1e-9)
}

/// S3.12, S3.16, S3.31.
#[test]
fn steps_inputs_sources_and_convergence_go_with_outcomes() {
    let bench = four();
    let stats = bench.call(Method::GetDeliberationStats, json!({}));
    assert_eq!((&stats["decisions"], &stats["with_deliberation"]), (&json!(5), &json!(4)));
    assert!(close(&stats["avg_steps"], 2.5) && close(&stats["avg_inputs"], 2.5), "{stats}");
    assert!(close(&stats["avg_sources"], 1.75), "one source, then two: {stats}");
    assert!(close(&stats["avg_total_duration_ms"], 2500.0));
    assert!(close(&stats["avg_convergence_ms"], 500.0), "step 1 comes half a second after the first input");
    // Pearson of (1,0) (2,0) (3,1) (4,1) is 2/sqrt(5); Fisher's interval with n = 4 has error 1.96.
    let steps = &stats["correlations"]["steps"];
    let r = 2.0 / 5f64.sqrt();
    assert!(close(&steps["r"], r) && steps["decisions"] == 4, "{steps}");
    let low = (r.atanh() - 1.959_963_984_540_054).tanh();
    assert!(close(&steps["interval"][0], low), "{steps}");
    assert_eq!(stats["correlations"]["convergence_point"]["r"], Value::Null, "all converge at step 1");
    let rows = stats["step_count_vs_success_rate"].as_array().unwrap();
    let rates: Vec<(u64, f64)> = rows
        .iter()
        .map(|row| (row["steps"].as_u64().unwrap(), row["success_rate"].as_f64().unwrap()))
        .collect();
    assert_eq!(rates, [(1, 0.0), (2, 0.0), (3, 1.0), (4, 1.0)]);
    let speeds = stats["convergence_speed_vs_success_rate"].as_array().unwrap();
    let speeds: Vec<(&str, u64)> = speeds
        .iter()
        .map(|row| (row["speed"].as_str().unwrap(), row["decisions"].as_u64().unwrap()))
        .collect();
    assert_eq!(speeds, [("fast", 3), ("slow", 1)], "fast is the first half of the steps");
    assert_eq!(stats["by_month"][0]["month"], "2026-02");
    // Wilson of 2 successes among 4.
    assert_eq!(stats["outcomes"]["judged"], 4);
    assert!(close(&stats["outcomes"]["success_rate"], 0.5));
    let (low, high) = (0.150_038_989, 0.849_961_011);
    let interval = &stats["outcomes"]["interval"];
    let near = |value: &Value, expected: f64| (value.as_f64().unwrap() - expected).abs() < 1e-6;
    assert!(near(&interval[0], low) && near(&interval[1], high), "{interval}");
}

/// Steps that annals adds after those of the agent made a late convergence an early one: two queries before the
/// decision, or two thoughts after it, turned analysis into intuition.
#[test]
fn steps_added_by_annals_do_not_hasten_a_convergence() {
    let bench = Bench::new();
    let trace = json!({
        "inputs": [{ "id": "i1", "text": "t" }],
        "steps": [{ "step": 1, "thought": "a", "inputs_used": ["i1"] }, { "step": 2, "thought": "b" }],
        "convergencePoint": 2,
    });
    for word in ["one", "two", "three"] {
        bench.call(Method::QueryDecisions, json!({ "query": word }));
    }
    let (recorded, _) = bench.record(with(decision("d"), json!({ "deliberation": trace })));
    assert_eq!(recorded["deliberation_inputs_count"], 4, "three calls were captured: {recorded}");
    bench.call(Method::ReviewOutcome, json!({ "id": recorded["id"], "outcome": "success" }));
    for thought in ["c", "d", "e"] {
        bench.call(Method::RecordThought, json!({ "id": recorded["id"], "text": thought }));
    }
    let stats = bench.call(Method::GetDeliberationStats, json!({}));
    assert_eq!(stats["step_count_vs_success_rate"][0]["steps"], 8, "{stats}");
    let speeds = stats["convergence_speed_vs_success_rate"].as_array().unwrap();
    assert_eq!((speeds.len(), &speeds[0]["speed"]), (1, &json!("slow")), "{stats}");
}

/// S3.16: filters.
#[test]
fn statistics_follow_filters() {
    let bench = four();
    let of = |category: &str| {
        bench.call(Method::GetDeliberationStats, json!({ "filters": { "category": category } }))
    };
    assert_eq!((&of("process")["decisions"], &of("process")["with_deliberation"]), (&json!(3), &json!(2)));
    assert!(close(&of("security")["outcomes"]["success_rate"], 1.0));
    assert_eq!(of("tooling")["outcomes"]["success_rate"], Value::Null);
    assert_eq!(
        of("tooling")["correlations"]["steps"],
        json!({ "r": null, "interval": null, "decisions": 0 })
    );
}

/// Stated 0.2, 0.45, 0.7 and 0.95 against 0, 0, 1 and 1.
#[test]
fn calibration_has_brier_score_and_reliability() {
    let bench = four();
    let calibration = bench.call(Method::GetDeliberationStats, json!({}))["calibration"].take();
    let brier = (0.2f64.powi(2) + 0.45f64.powi(2) + 0.3f64.powi(2) + 0.05f64.powi(2)) / 4.0;
    assert!(close(&calibration["brier_score"], brier), "{calibration}");
    assert!(
        close(&calibration["expected_calibration_error"], (0.2 + 0.45 + 0.3 + 0.05) / 4.0),
        "{calibration}"
    );
    let table = calibration["reliability"].as_array().unwrap();
    assert_eq!(table.len(), 10);
    assert_eq!((&table[0]["decisions"], &table[0]["observed"]), (&json!(0), &Value::Null));
    assert_eq!(
        (&table[9]["decisions"], &table[9]["observed"], &table[9]["to"]),
        (&json!(1), &json!(1.0), &json!(1.0))
    );
    // A confidence of 1 is in the last bin; an abandoned decision is not judged.
    for (confidence, outcome) in [(1.0, "partial"), (0.5, "abandoned")] {
        let (recorded, _) = bench.record(with(decision("d"), json!({ "confidence": confidence })));
        bench.call(Method::ReviewOutcome, json!({ "id": recorded["id"], "outcome": outcome }));
    }
    let calibration = bench.call(Method::GetDeliberationStats, json!({}))["calibration"].take();
    assert_eq!(
        (&calibration["decisions"], &calibration["reliability"][9]["decisions"]),
        (&json!(5), &json!(2))
    );
}

#[test]
fn reason_statistics_count_types_and_their_outcomes() {
    let bench = Bench::new();
    for (types, outcome) in
        [(vec!["analysis", "pattern"], "success"), (vec!["analysis", "analysis"], "failure")]
    {
        let reasons: Vec<Value> = types.iter().map(|kind| json!({ "type": kind, "text": "t" })).collect();
        let (recorded, _) = bench.record(with(decision("d"), json!({ "reasons": reasons })));
        bench.call(Method::ReviewOutcome, json!({ "id": recorded["id"], "outcome": outcome }));
    }
    let stats = bench.call(Method::GetReasonStats, json!({}));
    let row = &stats["reason_types"][0];
    assert_eq!((&row["type"], &row["uses"], &row["decisions"]), (&json!("analysis"), &json!(3), &json!(2)));
    assert!(close(&row["success_rate"], 0.5) && close(&stats["reason_types"][1]["success_rate"], 1.0));
    let entropy = -(0.75f64 * 0.75f64.ln() + 0.25 * 0.25f64.ln()) / 8f64.ln();
    assert!(close(&stats["diversity"], entropy), "{stats}");
}
