//! The rows of a blame, best first. Pure: everything follows from the document.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::document::{BlameDocument, CoalitionForks, ForkRecord, count};
use crate::statistics::{Interval, ShapleyEstimate, benjamini_hochberg, binomial_tail, shapley_interval};

/// The least base rate of flips that tests assume: so few re-runs cannot show a smaller one.
pub const BASE_RATE_MIN: f64 = 0.05;
/// A step's result can be trusted if at least this share of its forks is valid.
const VALID_SHARE_MIN: f64 = 0.5;
/// Rates from which a step is called decisive, and suggestive.
const DECISIVE: f64 = 0.7;
const SUGGESTIVE: f64 = 0.3;

/// A step's part in the failure, by coalitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Necessary and sufficient: the failure goes with it alone.
    Root,
    /// Necessary, and not sufficient: the failure needs it and another step.
    PartOfConjunction,
    /// Sufficient, and not necessary: another step alone keeps the failure, too.
    OverDetermined,
    /// Sufficient, and not necessary; asked again, its answer stays what it was: it repeats an earlier step.
    Echo,
    /// Neither.
    None,
}

/// Two steps that act together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PairRow {
    /// The two steps.
    pub steps: [u32; 2],
    /// `conjunction`: both are needed for the failure. `over-determined`: either is enough for it.
    pub kind: PairKind,
}

/// How two steps act together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PairKind {
    /// Both are needed for the failure, and together they suffice.
    Conjunction,
    /// Either suffices for the failure: only a fix of both ends it.
    OverDetermined,
}

/// One step of the ranking.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepRow {
    /// The step's frame.
    pub step: u32,
    /// Flips among valid forks.
    pub flip_rate: f64,
    /// Its interval.
    pub interval: Interval,
    /// Forks that flipped.
    pub flips: u32,
    /// Forks that could be graded.
    pub valid: u32,
    /// Forks that could not be graded.
    pub undefined: u32,
    /// The first reasons of those, with their counts.
    pub undefined_reasons: Vec<(String, u32)>,
    /// `decisive`, `suggestive` or `diffuse`.
    pub label: &'static str,
    /// The chance of so many flips at the base rate.
    pub p_value: f64,
    /// The same after Benjamini and Hochberg over all steps.
    pub q_value: f64,
    /// Whether at least half of the forks are valid.
    pub trustworthy: bool,
    /// Whether the step was decided before its last fork; the interval is then one of 97.5%.
    pub stopped_early: bool,
    /// Forks in which the perturbed answer said something else.
    pub changed: u32,
    /// Forks in which it said the same. In others that cannot be told: the answer did not come.
    pub unchanged: u32,
    /// Whether perturbing this step alone ends the failure, the others held as recorded.
    pub necessary: Option<bool>,
    /// Whether the failure stays while only this step is as recorded.
    pub sufficient: Option<bool>,
    /// Its part, by coalitions.
    pub role: Option<Role>,
    /// Its Shapley value.
    pub shapley: Option<ShapleyEstimate>,
    /// Why it was not perturbed.
    pub skipped: Option<String>,
}

/// Flips of the unperturbed re-runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct BaseRate {
    /// Re-runs that flipped.
    pub flips: u32,
    /// Re-runs that could be graded.
    pub valid: u32,
    /// The measured rate.
    pub measured: f64,
    /// The rate that the tests use.
    pub used: f64,
}

/// The base rate of a blame: at least [`BASE_RATE_MIN`].
#[must_use]
pub fn base_rate(document: &BlameDocument) -> BaseRate {
    let (flips, valid) = count(&document.base);
    let measured = rate(flips, valid);
    BaseRate { flips, valid, measured, used: measured.max(BASE_RATE_MIN) }
}

fn rate(hits: u32, of: u32) -> f64 {
    if of == 0 { 0.0 } else { f64::from(hits) / f64::from(of) }
}

fn label(rate: f64) -> &'static str {
    match rate {
        rate if rate >= DECISIVE => "decisive",
        rate if rate >= SUGGESTIVE => "suggestive",
        _ => "diffuse",
    }
}

/// The steps, sorted by flip rate; equal rates by role, by Shapley value, then by frame.
#[must_use]
pub fn rows(document: &BlameDocument) -> Vec<StepRow> {
    let base = base_rate(document).used;
    let schedule = document.settings.schedule();
    let coalitions = Coalitions::new(document);
    let counts: Vec<(u32, u32)> = document.steps.iter().map(|step| count(&step.forks)).collect();
    let p_values: Vec<f64> =
        counts.iter().map(|(flips, valid)| binomial_tail(*flips, *valid, base)).collect();
    let q_values = benjamini_hochberg(&p_values);
    let mut rows = Vec::new();
    for (place, step) in document.steps.iter().enumerate() {
        let (flips, valid) = counts[place];
        let forks = u32::try_from(step.forks.len()).unwrap_or(u32::MAX);
        let flip_rate = rate(flips, valid);
        let that = |changed| step.forks.iter().filter(|fork| fork.changed == Some(changed)).count();
        let [unchanged, changed] = [false, true].map(|of| u32::try_from(that(of)).unwrap_or(u32::MAX));
        let (necessary, sufficient) = (coalitions.necessary(step.step), coalitions.sufficient(step.step));
        rows.push(StepRow {
            step: step.step,
            flip_rate,
            interval: schedule.interval(flips, valid, step.stopped_early),
            flips,
            valid,
            undefined: forks - valid,
            undefined_reasons: reasons(&step.forks),
            label: label(flip_rate),
            p_value: p_values[place],
            q_value: q_values[place],
            trustworthy: forks > 0 && rate(valid, forks) >= VALID_SHARE_MIN,
            stopped_early: step.stopped_early,
            changed,
            unchanged,
            necessary,
            sufficient,
            role: necessary.zip(sufficient).map(|of| role(of, changed > 0)),
            shapley: shapley(document, step.step),
            skipped: step.skipped.clone(),
        });
    }
    rows.sort_by(|a, b| {
        let value = |row: &StepRow| row.shapley.map_or(0.0, |of| of.value);
        let by_rate = b.flip_rate.total_cmp(&a.flip_rate);
        by_rate
            .then_with(|| a.role.cmp(&b.role))
            .then_with(|| value(b).total_cmp(&value(a)))
            .then_with(|| a.step.cmp(&b.step))
    });
    rows
}

fn role(of: (bool, bool), changed: bool) -> Role {
    match of {
        (true, true) => Role::Root,
        (true, false) => Role::PartOfConjunction,
        (false, true) if changed => Role::OverDetermined,
        (false, true) => Role::Echo,
        (false, false) => Role::None,
    }
}

/// The distinct reasons of undefined forks, the most frequent first.
fn reasons(forks: &[ForkRecord]) -> Vec<(String, u32)> {
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for why in forks.iter().filter_map(|fork| fork.why.as_deref()) {
        *counts.entry(why).or_default() += 1;
    }
    let mut all: Vec<(String, u32)> = counts.into_iter().map(|(why, n)| (why.to_owned(), n)).collect();
    all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    all.truncate(3);
    all
}

/// What the coalitions of a document show.
pub(crate) struct Coalitions<'a> {
    all: Vec<u32>,
    by_steps: BTreeMap<&'a [u32], &'a CoalitionForks>,
}

impl<'a> Coalitions<'a> {
    pub(crate) fn new(document: &'a BlameDocument) -> Self {
        let all = document.settings.steps.clone();
        let by_steps = document.coalitions.iter().map(|of| (of.perturbed.as_slice(), of)).collect();
        Self { all, by_steps }
    }

    /// Whether the failure goes when exactly these steps are perturbed; `None` if that was not tried, or if
    /// less than half of the forks could be graded.
    pub(crate) fn flips(&self, perturbed: &[u32]) -> Option<bool> {
        // Without a perturbation the run failed.
        if perturbed.is_empty() {
            return Some(false);
        }
        let tried = self.by_steps.get(perturbed)?;
        let (flips, valid) = count(&tried.forks);
        let forks = u32::try_from(tried.forks.len()).unwrap_or(u32::MAX);
        (valid > 0 && rate(valid, forks) >= VALID_SHARE_MIN).then(|| rate(flips, valid) >= 0.5)
    }

    /// All steps but these.
    pub(crate) fn without(&self, held: &[u32]) -> Vec<u32> {
        self.all.iter().copied().filter(|step| !held.contains(step)).collect()
    }

    pub(crate) fn necessary(&self, step: u32) -> Option<bool> {
        self.flips(&[step])
    }

    /// Whether the failure stays while only this step is as recorded, although it goes with all perturbed.
    pub(crate) fn sufficient(&self, step: u32) -> Option<bool> {
        let goes_with_all = self.flips(&self.all)?;
        let goes = self.flips(&self.without(&[step]))?;
        Some(goes_with_all && !goes)
    }
}

/// The pairs of steps that act together.
#[must_use]
pub fn pairs(document: &BlameDocument) -> Vec<PairRow> {
    let coalitions = Coalitions::new(document);
    let mut found = Vec::new();
    for (place, first) in document.settings.steps.iter().enumerate() {
        for second in document.settings.steps.iter().skip(place + 1) {
            let of = |step: u32| coalitions.necessary(step).zip(coalitions.sufficient(step));
            let (Some(a), Some(b)) = (of(*first), of(*second)) else { continue };
            let steps = [*first, *second];
            // Both as recorded, all others perturbed.
            let held = || coalitions.flips(&coalitions.without(&steps));
            let kind = match (a, b) {
                ((true, false), (true, false)) if held() == Some(false) => PairKind::Conjunction,
                ((false, true), (false, true)) if coalitions.flips(&steps) == Some(true) => {
                    PairKind::OverDetermined
                }
                _ => continue,
            };
            found.push(PairRow { steps, kind });
        }
    }
    found
}

fn shapley(document: &BlameDocument, step: u32) -> Option<ShapleyEstimate> {
    let (mut gains, mut losses, mut orders) = (0, 0, 0);
    for sampled in &document.orders {
        let place = sampled.order.iter().position(|of| *of == step)?;
        let (Some(before), Some(after)) = (sampled.forks.get(place), sampled.forks.get(place + 1)) else {
            continue;
        };
        let value = |fork: &ForkRecord| match count(std::slice::from_ref(fork)) {
            (_, 0) => None,
            (flips, _) => Some(flips == 1),
        };
        let (Some(before), Some(after)) = (value(before), value(after)) else { continue };
        orders += 1;
        gains += u32::from(after && !before);
        losses += u32::from(before && !after);
    }
    (orders > 0).then(|| shapley_interval(gains, losses, orders))
}

#[cfg(test)]
pub(crate) mod tests;
