//! The result of a blame, as the store keeps it: a JSON document that belongs to the parent run and is deleted
//! with it. Everything that is shown follows from it ([`crate::ranking`]).

use std::collections::{BTreeMap, BTreeSet};

use annals::{Namespace, RunReader};
use serde::{Deserialize, Serialize};

use crate::BLAME_TAG;
use crate::error::BlameError;
use crate::estimate::Estimate;
use crate::oracle::Verdict;
use crate::statistics::ForkSchedule;

/// The keyspace of documents, by the parent's name. Names that start with `annals.` are reserved.
const KEYSPACE: &str = "annals.blames";
/// The version of the document's form.
pub const VERSION: u32 = 1;

/// How far a blame has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BlameState {
    /// Its forks are running, or its process was killed.
    Running,
    /// It was interrupted.
    Interrupted,
    /// It stopped at its budget.
    OutOfBudget,
    /// All its forks are done.
    Done,
}

/// How one fork came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The oracle's verdict is not the parent's.
    Flip,
    /// The oracle's verdict is the parent's.
    Same,
    /// The fork cannot be graded.
    Undefined,
}

/// One fork.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ForkRecord {
    /// Its run; empty if it was not started.
    pub run: String,
    /// How it came out.
    pub outcome: Outcome,
    /// Why it is undefined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Calls that went to an upstream.
    pub calls: u32,
    /// Whether the perturbed answer says something else than the recorded one, if one step was perturbed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<bool>,
}

/// The forks of one step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepForks {
    /// The step's frame.
    pub step: u32,
    /// Its forks, in the order in which they ended.
    pub forks: Vec<ForkRecord>,
    /// Whether it was decided at the early look.
    #[serde(default)]
    pub stopped_early: bool,
    /// Why the step cannot be perturbed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

/// The forks of one coalition.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CoalitionForks {
    /// The perturbed steps, in order.
    pub perturbed: Vec<u32>,
    /// Its forks.
    pub forks: Vec<ForkRecord>,
}

/// One sampled order of the steps: after each, the outcome with all steps so far perturbed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SampledOrder {
    /// The steps in this order.
    pub order: Vec<u32>,
    /// One fork more than steps: the first has no perturbed step.
    pub forks: Vec<ForkRecord>,
}

/// What a blame was asked to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BlameSettings {
    /// Forks of a step at most.
    pub forks: u32,
    /// Unperturbed re-runs.
    pub base: u32,
    /// The oracle, as it was written.
    pub oracle: String,
    /// The perturbation, as it was written.
    pub perturbation: String,
    /// The steps.
    pub steps: Vec<u32>,
    /// Whether decided steps get no more forks.
    pub stops_early: bool,
    /// Forks of each coalition; 0: no coalitions.
    pub coalitions: u32,
    /// Sampled orders for Shapley values.
    pub orders: u32,
    /// The seed of the orders.
    pub seed: u64,
    /// The budget in US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<f64>,
    /// The program, as it was given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Whether each fork had a copy of the working directory.
    pub scratch: bool,
}

impl BlameSettings {
    /// The schedule of a step's forks.
    #[must_use]
    pub fn schedule(&self) -> ForkSchedule {
        ForkSchedule::new(self.forks, self.stops_early)
    }
}

/// What a blame has taken so far. Forks that were dropped count with their calls and their cost, and not as forks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// Forks.
    pub forks: u64,
    /// Calls that went to an upstream.
    pub calls: u64,
    /// Questions to a judge.
    #[serde(default)]
    pub questions: u64,
    /// The known cost of calls and questions in US dollars.
    pub dollars: f64,
    /// Calls and questions whose model has no price.
    pub unpriced: u64,
}

impl std::ops::AddAssign for Spent {
    fn add_assign(&mut self, more: Self) {
        self.forks += more.forks;
        self.calls += more.calls;
        self.questions += more.questions;
        self.dollars += more.dollars;
        self.unpriced += more.unpriced;
    }
}

/// The result of a blame.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BlameDocument {
    /// [`VERSION`].
    pub version: u32,
    /// The parent's name.
    pub run: String,
    /// How far it has come.
    pub state: BlameState,
    /// What it was asked to do.
    pub settings: BlameSettings,
    /// The oracle's verdict of the parent.
    pub parent: Verdict,
    /// The most it could take, as computed before it began.
    pub estimate: Estimate,
    /// What it has taken.
    pub spent: Spent,
    /// Unperturbed re-runs.
    pub base: Vec<ForkRecord>,
    /// Forks of each step.
    pub steps: Vec<StepForks>,
    /// Forks of coalitions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub coalitions: Vec<CoalitionForks>,
    /// Sampled orders.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orders: Vec<SampledOrder>,
    /// The number of the next fork.
    pub next_fork: u64,
    /// The most that each fork under way can cost in US dollars, by its number. Not stored.
    #[serde(skip)]
    pub reserved: BTreeMap<u64, f64>,
    /// Forks that have begun and are not in `spent`, by their number: they are under way, or ended by an error.
    /// Forks that are lost and stand in no list may be in `spent`: those of an order that was not finished.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unpaid: BTreeSet<u64>,
}

/// Flips and valid outcomes of some forks.
#[must_use]
pub fn count(forks: &[ForkRecord]) -> (u32, u32) {
    let of = |outcome: Outcome| {
        u32::try_from(forks.iter().filter(|fork| fork.outcome == outcome).count()).unwrap_or(u32::MAX)
    };
    let flips = of(Outcome::Flip);
    (flips, flips + of(Outcome::Same))
}

impl BlameDocument {
    /// Every fork that is in the store.
    pub fn forks(&self) -> impl Iterator<Item = &ForkRecord> {
        let steps = self.steps.iter().flat_map(|step| &step.forks);
        let coalitions = self.coalitions.iter().flat_map(|of| &of.forks);
        let orders = self.orders.iter().flat_map(|of| &of.forks);
        self.base.iter().chain(steps).chain(coalitions).chain(orders)
    }

    /// Stores the document with its run.
    pub(crate) fn save(&self, space: &Namespace, parent: &RunReader) -> Result<(), BlameError> {
        let bytes = serde_json::to_vec(self)
            .map_err(|error| annals::Error::new(annals::ErrorKind::Bug, error.to_string()))?;
        space.put_with_run(parent.info().uid, KEYSPACE, self.run.as_bytes(), bytes, None)?;
        Ok(())
    }
}

/// The blame of a run, if there is one.
///
/// # Errors
/// Of the store; `Damaged` if the document cannot be read.
pub fn load_blame(space: &Namespace, run: &str) -> annals::Result<Option<BlameDocument>> {
    let Some(keyspace) = space.find_keyspace(KEYSPACE)? else { return Ok(None) };
    let Some(bytes) = keyspace.get(run.as_bytes())? else { return Ok(None) };
    let document = serde_json::from_slice(&bytes).map_err(|error| {
        let message = format!("the blame of run {run:?} cannot be read: {error}");
        annals::Error::new(annals::ErrorKind::Damaged, message)
    })?;
    Ok(Some(document))
}

/// Drops the blame of a run with all its forks. Returns the number of forks.
///
/// # Errors
/// Of the store; `Conflict` if a fork is pinned, and then none was dropped.
pub fn drop_blame(space: &Namespace, run: &str) -> annals::Result<u64> {
    for_each_fork(space, run, &mut |reader| match space.is_pinned(reader.info().uid)? {
        true => Err(annals::Error::new(
            annals::ErrorKind::Conflict,
            format!("run {:?} is pinned: unpin it first", reader.info().name),
        )),
        false => Ok(()),
    })?;
    let dropped = drop_forks(space, run, &mut |_| Ok(true))?;
    if let Some(keyspace) = space.find_keyspace(KEYSPACE)? {
        keyspace.delete(run.as_bytes())?;
    }
    Ok(dropped)
}

/// Drops the forks of a run's blame that `which` selects.
pub(crate) fn drop_forks(
    space: &Namespace,
    run: &str,
    which: &mut dyn FnMut(&RunReader) -> annals::Result<bool>,
) -> annals::Result<u64> {
    let mut dropped = 0;
    for_each_fork(space, run, &mut |reader| {
        if which(reader)? {
            space.drop_run(&reader.info().name, "blame", &format!("a fork of the blame of {run}"))?;
            dropped += 1;
        }
        Ok(())
    })?;
    Ok(dropped)
}

/// Calls `visit` with each fork of a run's blame, the oldest first.
fn for_each_fork(
    space: &Namespace,
    run: &str,
    visit: &mut dyn FnMut(&RunReader) -> annals::Result<()>,
) -> annals::Result<()> {
    use annals::runs::{RunFilter, RunOrder};
    let filter = RunFilter { tags: vec![(BLAME_TAG.to_owned(), run.to_owned())], ..RunFilter::default() };
    let mut after = None;
    loop {
        let page = space.page_runs(&filter, RunOrder::OldestFirst, after, 256)?;
        page.runs.iter().try_for_each(&mut *visit)?;
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}
