//! Measures sessions' diagnostics: how long a report takes, and how long the questions take among many sessions.
//!
//! `cargo run --profile dist -p annals-benches --example diagnostics -- [SESSIONS]`
//! SESSIONS (default 1,000,000) end over a year, in five organisations with four projects each. Each was given
//! three of 20,000 observations, some of which mislead. Each answer is compared with a pass over all rows.

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a program that measures and prints")]

use std::time::{Duration, Instant};

use annals::{Durability, Options, Store};
use annals_diagnostics::{Diagnostics, LessonFilter, SessionDiagnostic, TimedSession};
use serde_json::json;

type BenchResult<T> = Result<T, Box<dyn std::error::Error>>;

const OBSERVATIONS: u64 = 20_000;
/// Each of this many observations misleads: every session that is given it fails.
const MISLEADING_EACH: u64 = 50;
/// The first session's end, and the time until the last one's, in milliseconds.
const FIRST_MS: u64 = 1_730_000_000_000;
const YEAR_MS: u64 = 365 * 24 * 3_600_000;
/// Sessions that are reported one by one, for the time of one report.
const ALONE: u64 = 200;
/// Times that each question is asked.
const ASKED: usize = 21;

/// The same numbers in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn session(number: u64, numbers: &mut Numbers) -> BenchResult<SessionDiagnostic> {
    // Some observations are given more often than others.
    let given: Vec<u64> =
        (0..3).map(|_| numbers.below(OBSERVATIONS).min(numbers.below(OBSERVATIONS))).collect();
    let misled = given.iter().any(|id| id % MISLEADING_EACH == 0);
    let fails = misled || numbers.below(4) == 0;
    let message = ["lint failed", "it worked previously", "no such file"][numbers.below(3) as usize];
    let report = json!({
        "sessionId": format!("session-{number:08}"),
        "outcome": if !fails { "accepted" } else if numbers.below(3) == 0 { "rework" } else { "rejected" },
        "injectedObservationIds": given.iter().map(|id| format!("observation-{id:06}")).collect::<Vec<_>>(),
        "toolCallSummary": [{ "tool": "vitest", "file": "src/a.test.ts", "success": numbers.below(3) != 0 }],
        "filesModified": ["src/a.ts"],
        "errorsEncountered": if fails { json!([{ "message": message, "tool": "bash", "recoverable": true }]) } else { json!([]) },
        "orgId": format!("org-{}", number % 5), "projectId": format!("project-{}", number / 5 % 4),
    });
    Ok(SessionDiagnostic::parse(&report.to_string())?)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn main() -> BenchResult<()> {
    let sessions: u64 = std::env::args().nth(1).map_or(Ok(1_000_000), |text| text.parse())?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("store");
    let options = Options { durability: Durability::Process, ..Options::default() };
    let store = Store::open_with(&path, options.clone())?;
    let diagnostics = Diagnostics::open(&store.namespace("default")?)?;
    let mut numbers = Numbers(1);
    let began = Instant::now();
    let mut number = 0;
    while number < sessions {
        let end = sessions.min(number + 4096);
        let some = (number..end).map(|number| {
            let ended_ms = FIRST_MS + number * YEAR_MS / sessions;
            Ok(TimedSession { session: session(number, &mut numbers)?, ended_ms })
        });
        diagnostics.record_all(&some.collect::<BenchResult<Vec<_>>>()?, None)?;
        number = end;
    }
    let took = began.elapsed();
    println!(
        "{sessions} sessions: {:.1} s, {:.1} µs each",
        took.as_secs_f64(),
        took.as_secs_f64() * 1e6 / sessions as f64
    );
    let mut alone = Vec::new();
    for number in sessions..sessions + ALONE {
        let session = session(number, &mut numbers)?;
        let began = Instant::now();
        diagnostics.record(&session, None)?;
        alone.push(began.elapsed());
    }
    println!("one report, not synced: {:?}", median(alone));
    drop(diagnostics);
    store.close()?;
    let began = Instant::now();
    let store = Store::open_read_only(&path)?;
    let diagnostics = Diagnostics::open(&store.namespace("default")?)?;
    println!("opened for reading: {:?}", began.elapsed());
    let half = FIRST_MS + YEAR_MS / 2 + 12_345;
    for (name, filter) in [
        ("all", LessonFilter::default()),
        ("all, half a year", LessonFilter { since_ms: half, ..LessonFilter::default() }),
        ("organisation", LessonFilter { org: Some("org-1"), ..LessonFilter::default() }),
        (
            "project, half a year",
            LessonFilter { org: Some("org-1"), project: Some("project-2"), since_ms: half },
        ),
    ] {
        let recounting = Instant::now();
        let recount = diagnostics.recount(&filter)?;
        let recounting = recounting.elapsed();
        let (mut misleading, mut distribution) = (Vec::new(), Vec::new());
        let (mut first_misleading, mut first_distribution) = (None, None);
        for _ in 0..ASKED {
            let began = Instant::now();
            let found = diagnostics.misleading(&filter)?;
            let took = began.elapsed();
            first_misleading.get_or_insert(took);
            misleading.push(took);
            let began = Instant::now();
            let counts = diagnostics.distribution(&filter)?;
            let took = began.elapsed();
            first_distribution.get_or_insert(took);
            distribution.push(took);
            if found != recount.misleading || counts != recount.distribution {
                return Err(format!("{name}: the kept counts differ from a pass over the rows").into());
            }
        }
        println!(
            "{name}: misleading ({}) first {:?}, median {:?}; distribution first {:?}, median {:?}; a pass over the rows {recounting:?}",
            recount.misleading.len(),
            first_misleading.unwrap_or_default(),
            median(misleading),
            first_distribution.unwrap_or_default(),
            median(distribution),
        );
    }
    Ok(())
}
