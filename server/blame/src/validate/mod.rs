//! The instrument checked on planted faults, offline and without a key.
//!
//! A scripted agent runs as a child process and talks to the real proxy; a scripted model answers on the
//! loopback. The run is recorded with a fault, and blamed by the same code as any other run: nothing here
//! knows the answer but the comparison at the end. The model gives the faulty answer while the run is
//! recorded, and the right one whenever it is asked again, as a model does that errs once.
//!
//! Layout: `agent` (the scripted agent), `model` (the scripted model), `faults` (the classes), `competing`
//! (several causes in one run), `trial` (record and blame one run), `report` (the result and its comparison),
//! `wire` (the forms of requests and answers).

mod agent;
mod competing;
mod faults;
mod model;
mod report;
#[cfg(test)]
mod tests;
mod trial;
mod wire;

use std::path::PathBuf;

use crate::error::BlameError;
use crate::statistics::{SeededNumbers, Z_95, wilson};

pub use agent::{AgentScript, run_agent};
pub use competing::{CompetingCase, CompetingReport, competing_case_count};
pub use report::{ClassResult, NegativeControl, ValidationReport, compare};
pub use wire::WireForm;

use faults::{CLASSES, FaultCase};
use trial::TrialBench;

/// Steps of a validated run.
const STEPS: u32 = 6;
/// The positions at which each class is planted: the first step, the middle, and a late one.
const POSITIONS: [u32; 5] = [1, 3, 5, 2, 4];
/// The greatest flip rate of a step in a run without a planted fault.
pub const NEGATIVE_MAX: f64 = 0.05;

/// What is validated, and how much.
#[derive(Debug, Clone)]
pub struct ValidateOptions {
    /// The agent's program and its first arguments; the script follows.
    pub agent: (PathBuf, Vec<String>),
    /// Forks of each step.
    pub forks: u32,
    /// Runs of each class, each with the fault at another position.
    pub runs: u32,
    /// Forks at the same time.
    pub jobs: usize,
    /// Seeds of the competing causes.
    pub seeds: u32,
}

/// Called after each run that was blamed, with its name.
pub type TrialFn<'a> = &'a dyn Fn(&str);

/// Blames runs of each class of faults, and runs without a fault.
///
/// # Errors
/// If a run cannot be recorded or blamed.
pub fn validate(options: &ValidateOptions, each: TrialFn<'_>) -> Result<ValidationReport, BlameError> {
    let bench = TrialBench::new(options)?;
    let mut classes = Vec::new();
    let (mut forks, mut calls) = (0, 0);
    for class in CLASSES {
        let (mut hits, mut missed) = (0, Vec::new());
        for run in 0..options.runs {
            let at = POSITIONS[usize::try_from(run).unwrap_or(0) % POSITIONS.len()];
            let case = FaultCase::new(class, at, STEPS);
            let blamed = bench.blame(
                &format!("{}-{run}", class.name()),
                case.script(),
                case.answers(),
                &[at],
                None,
            )?;
            forks += blamed.document.spent.forks;
            calls += blamed.document.spent.calls;
            let top = blamed.rows.first().filter(|row| row.flips > 0).map(|row| row.step);
            if top == Some(at) {
                hits += 1
            } else {
                missed.push((at, top))
            }
            each(class.name());
        }
        let interval = wilson(hits, options.runs, Z_95);
        classes.push(ClassResult {
            class: class.name().to_owned(),
            hits,
            runs: options.runs,
            interval,
            missed,
        });
    }
    let mut negative = NegativeControl::default();
    for run in 0..options.runs.max(1) {
        let (case, crashes) = (FaultCase::without_fault(STEPS, run), FaultCase::crashing_step(STEPS, run));
        let name = format!("negative-{run}");
        let blamed = bench.blame(&name, case.script(), case.answers(), &[crashes], None)?;
        forks += blamed.document.spent.forks;
        calls += blamed.document.spent.calls;
        negative.add(&blamed.rows, crashes);
        each("negative control");
    }
    Ok(ValidationReport::new(options.forks, classes, negative, forks, calls))
}

/// Blames runs in which several causes compete.
///
/// # Errors
/// If a run cannot be recorded or blamed.
pub fn validate_competing(
    options: &ValidateOptions,
    each: TrialFn<'_>,
) -> Result<CompetingReport, BlameError> {
    let bench = TrialBench::new(options)?;
    let mut report = CompetingReport::default();
    for seed in 0..options.seeds {
        for case in CompetingCase::of_seed(&mut SeededNumbers::new(u64::from(seed))) {
            let name = format!("{}-{seed}", case.name);
            let more = Some(case.one_order_coalitions());
            let blamed = bench.blame(&name, case.script.clone(), case.answers.clone(), &case.armed, more)?;
            report.add(seed, &case, &blamed);
            each(case.name);
        }
    }
    Ok(report)
}
