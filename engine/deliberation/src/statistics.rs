//! Statistics of decisions: how steps, inputs, convergence and sources go with outcomes, and how well stated
//! confidence fits.
//!
//! An outcome counts as 1 (success), 0.5 (partial) or 0 (failure). Abandoned and pending decisions are counted,
//! and left out of everything that needs an outcome. A rate has the Wilson interval of 95 % (E. Wilson, 1927), a
//! correlation is Pearson's with the interval of Fisher's transformation (R. Fisher, 1921); it needs four
//! decisions. The calibration is the Brier score (G. Brier, 1950) and a table of ten bins.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::decision::StoredTrace;
use crate::search::{DecisionFacts, TraceFacts};
use crate::times::{iso_micros, parse_iso};

/// The quantile of the normal distribution for 95 %.
const Z: f64 = 1.959_963_984_540_054;
const BINS: usize = 10;

/// Milliseconds from the first event of a deliberation to its convergence: by times if the step and another
/// event have them, else by durations up to that step.
pub(crate) fn convergence_ms(trace: &StoredTrace) -> Option<f64> {
    let point = trace.convergence_point?;
    let step = trace.steps.iter().find(|step| step.step == point)?;
    let times = trace.inputs.iter().filter_map(|input| parse_iso(input.timestamp.as_deref()?));
    let times = times.chain(trace.steps.iter().filter_map(|step| parse_iso(step.timestamp.as_deref()?)));
    let first = times.min();
    if let (Some(at), Some(first)) = (step.timestamp.as_deref().and_then(parse_iso), first) {
        return Some((at - first) as f64 / 1e6);
    }
    let until = trace.steps.iter().filter(|step| step.step <= point);
    until.map(|step| step.duration_ms).sum()
}

/// The value of an outcome; `None` if it cannot be judged.
fn outcome_value(facts: &DecisionFacts) -> Option<f64> {
    match facts.outcome.as_deref()? {
        "success" => Some(1.0),
        "partial" => Some(0.5),
        "failure" => Some(0.0),
        _ => None,
    }
}

/// The Wilson interval of a rate.
pub(crate) fn wilson(successes: f64, count: f64) -> (f64, f64) {
    if count == 0.0 {
        return (0.0, 1.0);
    }
    let (rate, z2) = (successes / count, Z * Z);
    let centre = (rate + z2 / (2.0 * count)) / (1.0 + z2 / count);
    let half = Z / (1.0 + z2 / count) * (rate * (1.0 - rate) / count + z2 / (4.0 * count * count)).sqrt();
    ((centre - half).max(0.0), (centre + half).min(1.0))
}

/// Pearson's correlation, and its interval.
fn correlation(pairs: &[(f64, f64)]) -> Value {
    let count = pairs.len() as f64;
    let none = || json!({ "r": null, "interval": null, "decisions": pairs.len() });
    if pairs.len() < 2 {
        return none();
    }
    let (mean_x, mean_y) = (
        pairs.iter().map(|(x, _)| x).sum::<f64>() / count,
        pairs.iter().map(|(_, y)| y).sum::<f64>() / count,
    );
    let (mut xx, mut yy, mut xy) = (0.0, 0.0, 0.0);
    for (x, y) in pairs {
        let (dx, dy) = (x - mean_x, y - mean_y);
        (xx, yy, xy) = (xx + dx * dx, yy + dy * dy, xy + dx * dy);
    }
    if xx == 0.0 || yy == 0.0 {
        // All values are equal: nothing varies together.
        return none();
    }
    let r = (xy / (xx * yy).sqrt()).clamp(-1.0, 1.0);
    let interval = (pairs.len() >= 4).then(|| {
        let (z, error) = (r.atanh(), Z / (count - 3.0).sqrt());
        [(z - error).tanh(), (z + error).tanh()]
    });
    json!({ "r": r, "interval": interval.filter(|ends| ends.iter().all(|end| end.is_finite())), "decisions": pairs.len() })
}

/// Counts, and the rate of success among the judged decisions.
fn rate<'a>(all: impl Iterator<Item = &'a DecisionFacts>) -> Map<String, Value> {
    let (mut decisions, mut judged, mut successes) = (0u64, 0u64, 0u64);
    for facts in all {
        decisions += 1;
        if let Some(value) = outcome_value(facts) {
            judged += 1;
            successes += u64::from(value == 1.0);
        }
    }
    let (low, high) = wilson(successes as f64, judged as f64);
    let rate = (judged > 0).then(|| successes as f64 / judged as f64);
    let interval = (judged > 0).then_some([low, high]);
    Map::from_iter([
        ("decisions".to_owned(), decisions.into()),
        ("judged".to_owned(), judged.into()),
        ("successes".to_owned(), successes.into()),
        ("success_rate".to_owned(), json!(rate)),
        ("interval".to_owned(), json!(interval)),
    ])
}

/// The rate of success for each group, by the group's order.
fn by_group<K: Ord>(
    all: &[&DecisionFacts],
    name: &str,
    group: impl Fn(&DecisionFacts) -> Option<K>,
    label: impl Fn(&K) -> Value,
) -> Value {
    let mut groups: BTreeMap<K, Vec<&DecisionFacts>> = BTreeMap::new();
    for facts in all {
        if let Some(key) = group(facts) {
            groups.entry(key).or_default().push(facts);
        }
    }
    let row = |(key, members): (&K, &Vec<&DecisionFacts>)| {
        let mut row = rate(members.iter().copied());
        row.insert(name.to_owned(), label(key));
        Value::Object(row)
    };
    groups.iter().map(row).collect()
}

fn mean(values: impl Iterator<Item = f64>) -> Value {
    let (count, sum) = values.fold((0u64, 0.0), |(count, sum), value| (count + 1, sum + value));
    json!((count > 0).then(|| sum / count as f64))
}

/// How well stated confidence fits.
pub(crate) fn calibration(all: &[&DecisionFacts]) -> Value {
    let judged: Vec<(f64, f64)> =
        all.iter().filter_map(|facts| Some((facts.confidence, outcome_value(facts)?))).collect();
    let count = judged.len() as f64;
    let brier = mean(judged.iter().map(|(stated, outcome)| (stated - outcome).powi(2)));
    let mut bins: Vec<Vec<(f64, f64)>> = vec![Vec::new(); BINS];
    for pair in &judged {
        // The last bin includes 1.
        let bin = (0..BINS).rev().find(|bin| pair.0 >= *bin as f64 / BINS as f64).unwrap_or(0);
        bins[bin].push(*pair);
    }
    let mut gap = 0.0;
    let table: Vec<Value> = (0u32..)
        .zip(&bins)
        .map(|(number, bin)| {
            let size = bin.len() as f64;
            let (stated, observed) = (
                bin.iter().map(|(stated, _)| stated).sum::<f64>() / size,
                bin.iter().map(|(_, outcome)| outcome).sum::<f64>() / size,
            );
            let ends = (f64::from(number) / BINS as f64, f64::from(number + 1) / BINS as f64);
            if bin.is_empty() {
                return json!({ "from": ends.0, "to": ends.1, "decisions": 0, "mean_confidence": null,
                               "observed": null, "interval": null });
            }
            gap += size / count * (stated - observed).abs();
            let (low, high) = wilson(observed * size, size);
            json!({ "from": ends.0, "to": ends.1, "decisions": bin.len(), "mean_confidence": stated,
                    "observed": observed, "interval": [low, high] })
        })
        .collect();
    json!({
        "decisions": judged.len(),
        "brier_score": brier,
        "expected_calibration_error": (count > 0.0).then_some(gap),
        "reliability": table,
    })
}

/// Statistics of deliberations.
pub(crate) fn deliberation_stats(all: &[&DecisionFacts]) -> Value {
    let traced: Vec<(&DecisionFacts, &TraceFacts)> =
        all.iter().filter_map(|facts| Some((*facts, facts.trace.as_ref()?))).collect();
    let with_trace: Vec<&DecisionFacts> = traced.iter().map(|(facts, _)| *facts).collect();
    let against = |value: &dyn Fn(&TraceFacts) -> Option<f64>| {
        let pairs: Vec<(f64, f64)> =
            traced.iter().filter_map(|(facts, trace)| Some((value(trace)?, outcome_value(facts)?))).collect();
        correlation(&pairs)
    };
    let steps = |trace: &TraceFacts| Some(trace.steps as f64);
    let inputs = |trace: &TraceFacts| Some(trace.inputs as f64);
    let sources = |trace: &TraceFacts| Some(trace.sources as f64);
    let point = |trace: &TraceFacts| trace.convergence_point.map(|point| point as f64);
    let average = |value: &dyn Fn(&TraceFacts) -> Option<f64>| {
        mean(traced.iter().filter_map(|(_, trace)| value(trace)))
    };
    let counted = |value: &'static dyn Fn(&TraceFacts) -> usize, name: &str| {
        by_group(&with_trace, name, move |facts| Some(value(facts.trace.as_ref()?)), |count| json!(count))
    };
    let speed = by_group(
        &with_trace,
        "speed",
        |facts| Some(ConvergenceSpeed::new(facts.trace.as_ref()?)),
        |speed| json!(speed.name()),
    );
    json!({
        "decisions": all.len(),
        "with_deliberation": traced.len(),
        "without_deliberation": all.len() - traced.len(),
        "outcomes": rate(all.iter().copied()),
        "avg_steps": average(&steps),
        "avg_inputs": average(&inputs),
        "avg_sources": average(&sources),
        "avg_total_duration_ms": average(&|trace| trace.total_duration_ms),
        "avg_convergence_point": average(&point),
        "avg_convergence_ms": average(&|trace| trace.convergence_ms),
        "step_count_vs_success_rate": counted(&|trace| trace.steps, "steps"),
        "input_count_vs_success_rate": counted(&|trace| trace.inputs, "inputs"),
        "source_diversity_vs_success_rate": counted(&|trace| trace.sources, "sources"),
        "convergence_speed_vs_success_rate": speed,
        "correlations": {
            "steps": against(&steps),
            "inputs": against(&inputs),
            "sources": against(&sources),
            "convergence_point": against(&point),
            "convergence_ms": against(&|trace| trace.convergence_ms),
            "total_duration_ms": against(&|trace| trace.total_duration_ms),
        },
        "by_category": by_group(all, "category", |facts| Some(facts.category.clone()), |name| json!(name)),
        "by_month": by_group(all, "month", |facts| Some(month(facts.created_ns)), |name| json!(name)),
        "calibration": calibration(all),
    })
}

/// How soon a deliberation converged: by the share of the sent steps up to the convergence. Captured calls and later
/// thoughts come after it, and say nothing about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ConvergenceSpeed {
    /// In the first half of the steps: intuition.
    Fast,
    /// Later: analysis.
    Slow,
    /// It did not, or did not say so.
    Unknown,
}

impl ConvergenceSpeed {
    fn new(trace: &TraceFacts) -> Self {
        match trace.convergence_point {
            None => Self::Unknown,
            Some(point) if point * 2 <= trace.sent_steps as u64 => Self::Fast,
            Some(_) => Self::Slow,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Slow => "slow",
            Self::Unknown => "unknown",
        }
    }
}

fn month(ns: i128) -> String {
    let text = iso_micros(u64::try_from(ns).unwrap_or(0));
    text.get(..7).unwrap_or_default().to_owned()
}

/// Statistics of reasons.
#[derive(Debug)]
pub(crate) struct ReasonStats {
    pub(crate) types: usize,
    pub(crate) decisions: usize,
    /// From 0 (one type) to 1 (all types alike): the entropy of the types by that of eight equal ones.
    pub(crate) diversity: f64,
    pub(crate) json: Value,
}

/// Which types of reasons decisions have, and how those decisions ended.
pub(crate) fn reason_stats(all: &[&DecisionFacts]) -> ReasonStats {
    let mut groups: BTreeMap<&str, (u64, Vec<&DecisionFacts>)> = BTreeMap::new();
    for facts in all {
        let mut seen = Vec::new();
        for kind in &facts.reason_types {
            let group = groups.entry(kind).or_default();
            group.0 += 1;
            if !seen.contains(&kind) {
                seen.push(kind);
                group.1.push(facts);
            }
        }
    }
    let total: u64 = groups.values().map(|(uses, _)| uses).sum();
    let entropy: f64 =
        groups.values().map(|(uses, _)| *uses as f64 / total as f64).map(|share| -share * share.ln()).sum();
    let diversity = (entropy / (crate::trace::REASON_TYPES.len() as f64).ln()).max(0.0);
    let rows: Vec<Value> = groups
        .iter()
        .map(|(kind, (uses, members))| {
            let mut row = rate(members.iter().copied());
            row.insert("type".to_owned(), json!(kind));
            row.insert("uses".to_owned(), json!(uses));
            row.insert("avg_confidence".to_owned(), mean(members.iter().map(|facts| facts.confidence)));
            Value::Object(row)
        })
        .collect();
    let json = json!({
        "reason_types": rows,
        "total_decisions": all.len(),
        "diversity": diversity,
        "calibration": calibration(all),
    });
    ReasonStats { types: groups.len(), decisions: all.len(), diversity, json }
}
