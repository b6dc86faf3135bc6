//! `annals validate`: planted faults, and the comparison with an earlier report.

use serde_json::{Value, json};

use crate::CliBench;

#[test]
fn validate_ranks_planted_faults_first() {
    let bench = CliBench::new();
    let done = bench.run("validate --runs 3 --k 1 --json");
    assert_eq!(done.code, 0, "{done:?}");
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(
        (&report["overall"], report["classes"].as_array().unwrap().len()),
        (&json!(1.0), 10),
        "{report}"
    );
    assert_eq!(report["negative_max"], 0.0);
    let mut better = report.clone();
    better["classes"][0]["hits"] = json!(4);
    bench.write("better.json", better.to_string());
    bench.write("report.json", report.to_string());
    let checked = bench.run("validate --runs 1 --k 1 --check report.json").text();
    assert!(checked.contains("[PASS] corrupted_tool_output top-1: 1.00\n"), "{checked}");
    assert!(checked.contains("overall top-1 precision: 1.00\n"), "{checked}");
    assert!(checked.contains("negative control max flip: 0.00 (threshold 0.05)\n"), "{checked}");
    let worse = bench.run("validate --runs 1 --k 1 --check better.json");
    assert_eq!(worse.code, 3, "{worse:?}");
    bench.write("none.json", "{}");
    bench.run("validate --check none.json").failed(2);
}

#[test]
fn competing_causes_are_told_apart() {
    let bench = CliBench::new();
    let done = bench.run("validate --competing --seeds 2 --k 1");
    assert_eq!(done.code, 0, "{done:?}");
    let text = String::from_utf8(done.stdout).unwrap();
    for cause in [
        "delayed root",
        "downstream echo",
        "masked cause",
        "earlier half of a conjunction",
        "first over-determining cause",
        "decoy before the root",
    ] {
        assert!(text.contains(&format!("[PASS] {cause}: 2 of 2")), "{text}");
    }
    assert!(text.contains(" calls of a scripted model\n"), "{text}");
}
