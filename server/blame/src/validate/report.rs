//! The result of a validation, and its comparison with an earlier one.

use serde::{Deserialize, Serialize};

use super::NEGATIVE_MAX;
use crate::ranking::StepRow;
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

/// Runs that fail whatever the model says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct NegativeControl {
    /// The greatest flip rate of any step.
    pub negative_max: f64,
    /// Forks whose new answer crashes the agent.
    #[serde(default)]
    pub crashed: u32,
    /// Those of them that were called undefined.
    #[serde(default)]
    pub crashed_undefined: u32,
}

impl NegativeControl {
    /// Adds a run, with the step whose new answer crashes the agent.
    pub(super) fn add(&mut self, rows: &[StepRow], crashes: u32) {
        self.negative_max = rows.iter().map(|row| row.flip_rate).fold(self.negative_max, f64::max);
        for row in rows.iter().filter(|row| row.step == crashes) {
            self.crashed += row.valid + row.undefined;
            self.crashed_undefined += row.undefined;
        }
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
    /// Runs without a fault.
    #[serde(flatten)]
    pub negative: NegativeControl,
    /// Forks in all.
    pub forks: u64,
    /// Calls of the scripted model by forks.
    pub calls: u64,
}

impl ValidationReport {
    pub(super) fn new(
        forks_per_step: u32,
        classes: Vec<ClassResult>,
        negative: NegativeControl,
        forks: u64,
        calls: u64,
    ) -> Self {
        let (hits, runs) = classes.iter().fold((0, 0), |(hits, runs), of| (hits + of.hits, runs + of.runs));
        let overall = if runs == 0 { 0.0 } else { f64::from(hits) / f64::from(runs) };
        let interval = wilson(hits, runs, Z_95);
        Self { forks_per_step, classes, overall, interval, negative, forks, calls }
    }

    /// Whether every planted step came first, no step of a run without a fault flips, and crashed forks are undefined.
    #[must_use]
    pub fn passed(&self) -> bool {
        let NegativeControl { negative_max, crashed, crashed_undefined } = self.negative;
        let is_flat = negative_max <= NEGATIVE_MAX && crashed == crashed_undefined;
        self.classes.iter().all(|class| class.hits == class.runs) && is_flat
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
    let (was, is) = (earlier.negative.negative_max, now.negative.negative_max);
    if is > was.max(NEGATIVE_MAX) {
        worse.push(format!("negative control: the greatest flip rate was {was:.2} and is {is:.2}"));
    }
    worse
}
