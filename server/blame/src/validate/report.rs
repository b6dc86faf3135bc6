//! The result of a validation, and its comparison with an earlier one.

use serde::{Deserialize, Serialize};

use super::NEGATIVE_MAX;
use crate::statistics::{Interval, Z_95, wilson};

/// How one class came out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassResult {
    /// The class.
    pub class: String,
    /// Runs in which the planted step came first.
    pub hits: u32,
    /// Runs.
    pub runs: u32,
    /// The 95% interval of the precision.
    pub interval: Interval,
    /// The planted step and the step that came first, of the other runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missed: Vec<(u32, Option<u32>)>,
}

impl ClassResult {
    /// The share of runs in which the planted step came first.
    #[must_use]
    pub fn precision(&self) -> f64 {
        if self.runs == 0 { 0.0 } else { f64::from(self.hits) / f64::from(self.runs) }
    }
}

/// The result of a validation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ValidationReport {
    /// Forks of each step.
    pub forks_per_step: u32,
    /// Each class.
    pub classes: Vec<ClassResult>,
    /// The precision over all classes.
    pub overall: f64,
    /// Its 95% interval.
    pub interval: Interval,
    /// The greatest flip rate of any step of a run without a fault.
    pub negative_max: f64,
    /// Forks in all.
    pub forks: u64,
    /// Calls of the scripted model by forks.
    pub calls: u64,
}

impl ValidationReport {
    pub(super) fn new(
        forks_per_step: u32,
        classes: Vec<ClassResult>,
        negative_max: f64,
        forks: u64,
        calls: u64,
    ) -> Self {
        let (hits, runs) = classes.iter().fold((0, 0), |(hits, runs), of| (hits + of.hits, runs + of.runs));
        let overall = if runs == 0 { 0.0 } else { f64::from(hits) / f64::from(runs) };
        let interval = wilson(hits, runs, Z_95);
        Self { forks_per_step, classes, overall, interval, negative_max, forks, calls }
    }

    /// Whether every planted step came first, and no step of a run without a fault flips.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.classes.iter().all(|class| class.hits == class.runs) && self.negative_max <= NEGATIVE_MAX
    }
}

/// Where a report is worse than an earlier one, as sentences.
#[must_use]
pub fn compare(now: &ValidationReport, earlier: &ValidationReport) -> Vec<String> {
    let mut worse = Vec::new();
    for class in &earlier.classes {
        match now.classes.iter().find(|of| of.class == class.class) {
            None => worse.push(format!("{} is no longer validated", class.class)),
            Some(of) if of.precision() < class.precision() => worse.push(format!(
                "{}: top-1 was {:.2} and is {:.2}",
                class.class,
                class.precision(),
                of.precision()
            )),
            Some(_) => {}
        }
    }
    if now.negative_max > earlier.negative_max.max(NEGATIVE_MAX) {
        worse.push(format!(
            "negative control: the greatest flip rate was {:.2} and is {:.2}",
            earlier.negative_max, now.negative_max
        ));
    }
    worse
}
