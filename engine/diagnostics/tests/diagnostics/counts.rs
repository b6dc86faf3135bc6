//! The counts that are kept equal those of a full pass, over random histories.

use std::collections::BTreeMap;

use annals_diagnostics::{CategoryCounts, FailureCategory, LessonFilter, Recount, classify};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{Bench, ended, session};

/// A row as the test's own model has it.
#[derive(Debug, Clone)]
struct ModelRow {
    report: Value,
    time_ms: u64,
    expires_ms: Option<u64>,
}

/// A step of a history.
#[derive(Debug, Clone)]
enum Step {
    Record {
        report: Value,
        keep_ms: Option<u64>,
    },
    /// Sets the clock, also backwards.
    Clock(u64),
    Restart,
    Ask {
        org: Option<&'static str>,
        project: Option<&'static str>,
        since_ms: u64,
    },
}

/// Times around the limits of buckets: a millisecond, 256, 65,536 and 2^24 of them.
fn time_ms() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..600_u64,
        (0..4_u64, 0..3_u64).prop_map(|(bucket, near)| bucket * 65_536 + near),
        (0..4_u64, 0..3_u64).prop_map(|(bucket, near)| (bucket << 24) + near),
        (0..3_u64, 0..3_u64).prop_map(|(bucket, near)| (bucket << 32) + near),
        0..20_000_000_000_u64,
    ]
}

fn report() -> impl Strategy<Value = Value> {
    let org = prop::option::of(prop::sample::select(vec!["a", "b"]));
    let project = prop::option::of(prop::sample::select(vec!["p", "q"]));
    let outcome = prop::sample::select(vec!["accepted", "rejected", "rejected", "rework"]);
    let observations = prop::collection::vec(prop::sample::select(vec!["o1", "o2", "o3", "o4", "o"]), 0..5);
    let message = prop::option::of(prop::sample::select(vec!["lint", "it broke", "no such file"]));
    let (files, unknown) = (prop::bool::ANY, prop::bool::weighted(0.1));
    (0..40_u32, outcome, observations, org, project, message, files, unknown).prop_map(
        |(id, outcome, observations, org, project, message, files, unknown)| {
            let mut report = ended(&format!("s{id}"), outcome, &observations);
            report["orgId"] = json!(org);
            report["projectId"] = json!(project);
            report["filesModified"] = if files { json!(["f"]) } else { json!([]) };
            if let Some(message) = message {
                report["errorsEncountered"] =
                    json!([{ "message": message, "tool": "t", "recoverable": true }]);
            }
            if unknown && outcome != "accepted" {
                report["failureCategory"] = "unknown".into();
            }
            report
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let keep = prop::option::weighted(0.4, prop_oneof![0..300_u64, 0..70_000_u64, 0..5_000_000_000_u64]);
    let org = prop::option::of(prop::sample::select(vec!["a", "b", "c"]));
    let project = prop::option::of(prop::sample::select(vec!["p", "q"]));
    prop_oneof![
        12 => (report(), keep).prop_map(|(report, keep_ms)| Step::Record { report, keep_ms }),
        4 => time_ms().prop_map(Step::Clock),
        1 => Just(Step::Restart),
        4 => (org, project, time_ms()).prop_map(|(org, project, since_ms)| Step::Ask { org, project, since_ms }),
    ]
}

/// The answers by the source's own words: expand the ids of each row, group, and count.
fn answers(rows: &BTreeMap<String, ModelRow>, now_ms: u64, filter: &LessonFilter<'_>) -> Recount {
    let mut counts: BTreeMap<String, (u32, u32)> = BTreeMap::new();
    let mut distribution = CategoryCounts::default();
    let mut numbers: BTreeMap<FailureCategory, u64> = BTreeMap::new();
    for row in rows.values() {
        let is = |member: &str, wanted: Option<&str>| {
            wanted.is_none_or(|wanted| row.report[member].as_str() == Some(wanted))
        };
        if !is("orgId", filter.org)
            || !is("projectId", filter.project)
            || row.time_ms < filter.since_ms
            || row.expires_ms.is_some_and(|at| at <= now_ms)
        {
            continue;
        }
        let failed = row.report["outcome"] != "accepted";
        if failed {
            let category = match row.report.get("failureCategory") {
                Some(_) => FailureCategory::Unknown,
                None => classify(&session(&row.report)),
            };
            *numbers.entry(category).or_default() += 1;
        }
        for id in row.report["injectedObservationIds"].as_array().unwrap() {
            let (fails, successes) = counts.entry(id.as_str().unwrap().to_owned()).or_default();
            *(if failed { fails } else { successes }) += 1;
        }
    }
    for (category, number) in numbers {
        match category {
            FailureCategory::TestFailure => distribution.test_failure = number,
            FailureCategory::Style => distribution.style = number,
            FailureCategory::Regression => distribution.regression = number,
            FailureCategory::Incomplete => distribution.incomplete = number,
            FailureCategory::WrongApproach => distribution.wrong_approach = number,
            FailureCategory::Other => distribution.other = number,
            FailureCategory::Unknown => distribution.unknown = number,
        }
    }
    let misleading = counts.into_iter().filter(|(_, (fails, successes))| *fails >= 3 && *successes == 0);
    Recount { misleading: misleading.map(|(id, _)| id).collect(), distribution }
}

/// Compares the kept counts and a full pass with the model.
fn check(bench: &Bench, rows: &BTreeMap<String, ModelRow>, now_ms: u64, filter: &LessonFilter<'_>) {
    let wanted = answers(rows, now_ms, filter);
    let kept = Recount {
        misleading: bench.diagnostics.misleading(filter).unwrap(),
        distribution: bench.diagnostics.distribution(filter).unwrap(),
    };
    assert_eq!(kept, wanted, "the kept counts, {filter:?} at {now_ms}");
    assert_eq!(bench.diagnostics.recount(filter).unwrap(), wanted, "a full pass, {filter:?} at {now_ms}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Duplicates, restarts, expiry, clocks that go backwards, every filter. A failure prints its history and the
    /// seed, which `PROPTEST_RNG_SEED=… cargo test -p annals-diagnostics kept_counts` repeats.
    #[test]
    fn kept_counts_equal_a_full_pass(steps in prop::collection::vec(step(), 1..120)) {
        let mut bench = Bench::new();
        bench.sim.set_now_ns(0);
        let (mut rows, mut now_ms): (BTreeMap<String, ModelRow>, u64) = (BTreeMap::new(), 0);
        // Rows that have expired once stay gone, even if the clock then goes backwards.
        for step in steps {
            match step {
                Step::Record { report, keep_ms } => {
                    let id = report["sessionId"].as_str().unwrap().to_owned();
                    let done = bench.diagnostics.record(&session(&report), keep_ms);
                    match rows.get(&id) {
                        None => {
                            prop_assert!(!done.unwrap().repeated);
                            let expires_ms = keep_ms.map(|keep| now_ms + keep);
                            rows.insert(id, ModelRow { report, time_ms: now_ms, expires_ms });
                        }
                        Some(row) if row.report == report => prop_assert!(done.unwrap().repeated),
                        Some(_) => {
                            prop_assert_eq!(done.unwrap_err().kind(), annals::ErrorKind::Conflict);
                        }
                    }
                }
                Step::Clock(time_ms) => {
                    now_ms = time_ms;
                    bench.sim.set_now_ns(now_ms * 1_000_000);
                }
                Step::Restart => bench = bench.restarted(),
                Step::Ask { org, project, since_ms } => {
                    check(&bench, &rows, now_ms, &LessonFilter { org, project, since_ms });
                }
            }
            // Each report and each question ends the rows that are due.
            for row in rows.values_mut().filter(|row| row.expires_ms.is_some_and(|at| at <= now_ms)) {
                row.expires_ms = Some(0);
            }
            bench.diagnostics.misleading(&LessonFilter::default()).unwrap();
        }
        for org in [None, Some("a"), Some("b")] {
            for project in [None, Some("p")] {
                check(&bench, &rows, now_ms, &LessonFilter { org, project, since_ms: 0 });
            }
        }
    }
}

/// A store that is open for reading cannot end rows that are due: it passes over all rows instead.
#[test]
fn reader_leaves_expired_rows_out() {
    let bench = Bench::new();
    bench.diagnostics.record(&session(&ended("s", "rejected", &["o", "o", "o"])), Some(1_000)).unwrap();
    bench.diagnostics.record(&session(&ended("t", "rejected", &["p", "p", "p"])), None).unwrap();
    let options =
        annals::Options { io: std::sync::Arc::new(bench.sim.clone()), ..annals::Options::default() };
    let reader = annals::Store::open_read_only_with("s", options).unwrap();
    let diagnostics = annals_diagnostics::Diagnostics::open(&reader.namespace("default").unwrap()).unwrap();
    let all = LessonFilter::default();
    assert_eq!(diagnostics.misleading(&all).unwrap(), ["o", "p"]);
    bench.sim.advance_ns(1_000_000_000);
    assert_eq!(diagnostics.misleading(&all).unwrap(), ["p"]);
    assert_eq!(diagnostics.distribution(&all).unwrap().incomplete, 1);
    assert_eq!(diagnostics.session("s").unwrap(), None);
}
