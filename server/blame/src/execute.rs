//! Runs the forks of a blame, several at once, and keeps the document up to date.
//!
//! Order: unperturbed re-runs; the forks of all steps up to the early look; the other forks of undecided
//! steps; coalitions; sampled orders. The document is stored before the first fork, at most every second, and
//! at the end. Forks that the document lacks were under way when a process died; `resume` drops them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use annals::io::{Io, RealIo};
use annals::{Namespace, RunReader, RunSpec, Status};
use annals_policy::exchange::ExchangeMetadata;
use annals_policy::providers::{Meaning, Prices, WireExchange, recognise};
use annals_proxy::program::StopReason;
use annals_proxy::proxy::{OtherCalls, RerunPlan};
use annals_proxy::{Origin, RerunReport, Rerunner, RerunnerOptions};

use crate::coalition::{pair_coalitions, sampled_orders, single_coalitions};
use crate::document::{
    BlameDocument, BlameSettings, BlameState, CoalitionForks, ForkRecord, Outcome, SampledOrder, Spent,
    StepForks, VERSION, count, drop_blame, drop_forks, load_blame,
};
use crate::error::BlameError;
use crate::estimate::{Estimate, ExpectedCosts, add_any_forks, estimate};
use crate::oracle::{Oracle, RunOutcome, Verdict};
use crate::perturb::Perturbation;
use crate::scratch;
use crate::spent::{spent_by, spent_in};
use crate::steps::{Step, steps};
use crate::{BLAME_STEPS_TAG, BLAME_TAG};

/// The longest time between two stored states of the document, in nanoseconds.
const SAVE_EVERY_NS: u64 = 1_000_000_000;
/// Re-runs of a program whose first re-runs did not all come out alike.
const BASE_FLAKY: u32 = 10;

/// What a blame is to do.
#[derive(Debug, Clone)]
pub struct BlameOptions {
    /// What the document keeps of it.
    pub settings: BlameSettings,
    /// Grades the forks.
    pub oracle: Oracle,
    /// Changes the steps.
    pub perturbation: Perturbation,
    /// Coalitions to try besides those of single steps and pairs, each as its perturbed steps in ascending order.
    pub more_coalitions: Vec<Vec<u32>>,
    /// Forks that run at the same time.
    pub jobs: usize,
}

/// Runs a blame.
pub struct Blamer {
    space: Namespace,
    reader: RunReader,
    origin: Origin,
    rerun: RerunnerOptions,
    options: BlameOptions,
    all: Vec<Step>,
    chosen: Vec<Step>,
    parent: RunOutcome,
    prices: Prices,
    costs: ExpectedCosts,
    /// The clock of all times here: the times of two clocks cannot be compared.
    clock: RealIo,
    interrupted: Arc<AtomicBool>,
}

/// Called after each fork: forks done and forks planned so far.
pub type ProgressFn<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// The reason why forks stop before all are done.
#[derive(Debug)]
enum Halt {
    State(BlameState),
    Error(BlameError),
}

impl From<BlameError> for Halt {
    fn from(error: BlameError) -> Self {
        Self::Error(error)
    }
}

/// A fork to run.
struct ForkJob<'a> {
    /// The perturbed steps.
    perturbed: &'a [u32],
    others: OtherCalls,
    attempt: u32,
    /// Steps that are not held in a coalition.
    free: &'a BTreeSet<u32>,
}

/// The state that forks share.
struct Progress<'a> {
    document: Mutex<BlameDocument>,
    /// A fork has ended, and what it could have cost is no longer reserved.
    released: Condvar,
    saved_ns: AtomicU64,
    planned: AtomicU64,
    report: ProgressFn<'a>,
}

impl Blamer {
    /// Prepares the blame of a run. `range` selects steps by frame. Asks no model: a judge grades the run when the
    /// forks begin.
    ///
    /// # Errors
    /// `Unusable` if the run has no step or no outcome, if the oracle calls it passed or cannot grade it, or if
    /// no step lies in the range. Errors of the store.
    pub fn new(
        space: &Namespace,
        reader: &RunReader,
        origin: &Origin,
        rerun: RerunnerOptions,
        mut options: BlameOptions,
        range: Option<&str>,
    ) -> Result<Self, BlameError> {
        let name = &reader.info().name;
        let prices = rerun.rules.prices.clone();
        let all = steps(reader, &prices)?;
        if all.is_empty() {
            let message = format!("run {name:?} has no call of a model, so it has no step to blame");
            return Err(BlameError::unusable(message, format!("`annals show {name}` lists its frames")));
        }
        let chosen =
            crate::steps::select(&all, range).map_err(|why| BlameError::unusable(why, "--steps 3..9"))?;
        let parent = RunOutcome::from_reader(reader)?.ok_or_else(|| {
            let message = format!("the program of run {name:?} has not ended, so the run has no outcome");
            BlameError::unusable(message, "record it again to its end")
        })?;
        options.oracle.set_prices(&prices);
        let question = options.oracle.cost(&parent);
        if question.is_none() {
            check_failed(name, &options.oracle, &parent)?;
        }
        options.settings.steps = chosen.iter().map(|step| step.seq).collect();
        let costs = ExpectedCosts::new(&all, |step| options.perturbation.cost(step, &prices), question);
        let interrupted = Arc::new(AtomicBool::new(false));
        Ok(Self {
            space: space.clone(),
            reader: reader.clone(),
            origin: origin.clone(),
            rerun,
            options,
            all,
            chosen,
            parent,
            prices,
            costs,
            clock: RealIo::default(),
            interrupted,
        })
    }

    /// Set this to end the blame: forks under way are ended and dropped, and the document is stored.
    #[must_use]
    pub fn interrupter(&self) -> Arc<AtomicBool> {
        self.interrupted.clone()
    }

    /// The most that the forks of all steps, of coalitions of single steps and of sampled orders can take. What
    /// `pair_forks_max` says comes on top.
    #[must_use]
    pub fn estimate(&self) -> Estimate {
        let settings = &self.options.settings;
        let mut sum = estimate(&self.costs, &self.chosen, settings.forks, settings.base);
        add_any_forks(&mut sum, &self.costs, self.coalition_forks());
        // The re-runs that a flaky program needs more ask no upstream, but are graded.
        let more = BASE_FLAKY.saturating_sub(settings.base);
        sum += self.costs.of_grading().times(more);
        sum
    }

    /// The most forks of coalitions of pairs. Which pairs are tried depends on the outcomes of single steps.
    #[must_use]
    pub fn pair_forks_max(&self) -> u64 {
        let (settings, steps) = (&self.options.settings, self.options.settings.steps.len() as u64);
        // With two steps, the coalitions of pairs are those of single steps.
        let pairs = if steps > 2 { steps * (steps - 1) / 2 } else { 0 };
        pairs * u64::from(settings.coalitions)
    }

    /// The coalitions that do not depend on outcomes.
    fn planned_coalitions(&self) -> Vec<Vec<u32>> {
        let mut all = single_coalitions(&self.options.settings.steps);
        all.extend(self.options.more_coalitions.iter().cloned());
        all.sort();
        all.dedup();
        all
    }

    /// Forks of coalitions of single steps, and of sampled orders.
    fn coalition_forks(&self) -> u64 {
        let settings = &self.options.settings;
        let singles = if settings.coalitions == 0 { 0 } else { self.planned_coalitions().len() };
        let orders = settings.steps.len() + 1;
        singles as u64 * u64::from(settings.coalitions) + orders as u64 * u64::from(settings.orders)
    }

    /// Runs all forks, or those that an unfinished document lacks. The result is in the store.
    ///
    /// # Errors
    /// `Unusable` if a judge calls the run passed or cannot grade it, or if the budget does not pay for asking it.
    /// `Nondeterministic` if the program does not repeat its run without a perturbation. Errors of starting and
    /// storing forks. What is done stays in the store.
    pub fn run(
        &self,
        resumed: Option<BlameDocument>,
        report: ProgressFn<'_>,
    ) -> Result<BlameDocument, BlameError> {
        let name = self.reader.info().name.clone();
        let fresh = resumed.is_none();
        self.ask_about_parent()?;
        if fresh && load_blame(&self.space, &name)?.is_some() {
            drop_blame(&self.space, &name)?;
        }
        let mut document = resumed.unwrap_or_else(|| self.empty_document());
        document.state = BlameState::Running;
        let known: BTreeSet<String> = document.forks().map(|fork| fork.run.clone()).collect();
        let (next, unpaid) = (document.next_fork, std::mem::take(&mut document.unpaid));
        drop_forks(&self.space, &name, &mut |fork| {
            let is_lost = !known.contains(&fork.info().name);
            let number = fork.info().name.rsplit('-').next().and_then(|text| text.parse::<u64>().ok());
            let is_paid = number.is_some_and(|number| number < next && !unpaid.contains(&number));
            if is_lost && !is_paid && !fresh {
                // It is run again, but was paid for.
                document.spent += spent_in(fork, &self.prices)?;
                if fork.info().status != Status::Open {
                    // Whether it was graded is not known.
                    let Estimate { questions, dollars, unpriced, .. } = self.costs.of_grading();
                    document.spent += Spent { questions, dollars, unpriced, ..Spent::default() };
                }
            }
            Ok(is_lost)
        })?;
        let rerunner = Rerunner::new(&self.space, &self.reader, &self.origin, self.rerun.clone(), true)?;
        document.spent += self.options.oracle.take_spent();
        document.save(&self.space, &self.reader)?;
        let progress = Progress {
            document: Mutex::new(document),
            released: Condvar::new(),
            saved_ns: AtomicU64::new(self.clock.monotonic_ns()),
            planned: AtomicU64::new(0),
            report,
        };
        let done = self.all_forks(&rerunner, &progress);
        let mut document = progress.document.into_inner().unwrap_or_else(PoisonError::into_inner);
        let result = match done {
            Ok(()) => {
                document.state = BlameState::Done;
                Ok(())
            }
            Err(Halt::State(state)) => {
                document.state = state;
                Ok(())
            }
            // No fork counts, so there is nothing to show or to go on with.
            Err(Halt::Error(error @ BlameError::Nondeterministic { .. })) if document.base.is_empty() => {
                drop_blame(&self.space, &document.run)?;
                return Err(error);
            }
            Err(Halt::Error(error)) => {
                document.state = BlameState::Interrupted;
                Err(error)
            }
        };
        match (result, document.save(&self.space, &self.reader)) {
            (Ok(()), Ok(())) => Ok(document),
            (Ok(()), Err(error)) | (Err(error), _) => Err(error),
        }
    }

    /// Has the run graded by a judge, if one grades.
    fn ask_about_parent(&self) -> Result<(), BlameError> {
        let Estimate { questions, dollars, .. } = self.costs.of_grading();
        if questions == 0 {
            return Ok(());
        }
        if self.options.settings.budget.is_some_and(|budget| dollars > budget) {
            let message = "the budget does not pay for one question to the judge".to_owned();
            return Err(BlameError::unusable(message, "--budget 5"));
        }
        check_failed(&self.reader.info().name, &self.options.oracle, &self.parent)
    }

    fn empty_document(&self) -> BlameDocument {
        BlameDocument {
            version: VERSION,
            run: self.reader.info().name.clone(),
            state: BlameState::Running,
            settings: self.options.settings.clone(),
            parent: Verdict::Fail,
            estimate: self.estimate(),
            spent: Spent::default(),
            base: Vec::new(),
            steps: self
                .chosen
                .iter()
                .map(|step| StepForks { step: step.seq, ..StepForks::default() })
                .collect(),
            coalitions: Vec::new(),
            orders: Vec::new(),
            next_fork: 1,
            reserved: BTreeMap::new(),
            unpaid: BTreeSet::new(),
        }
    }

    fn all_forks(&self, rerunner: &Rerunner, progress: &Progress<'_>) -> Result<(), Halt> {
        let settings = &self.options.settings;
        self.base_runs(rerunner, progress, settings.base)?;
        let (flips, valid) = count(&progress.lock().base);
        if flips > 0 && flips < valid {
            // A flaky program: so few re-runs say little about how flaky.
            self.base_runs(rerunner, progress, BASE_FLAKY.max(settings.base))?;
        }
        self.check_base(progress)?;
        let schedule = settings.schedule();
        for target in [schedule.look, schedule.most] {
            self.step_forks(rerunner, progress, target)?;
            if target == schedule.look && schedule.look < schedule.most {
                let mut document = progress.lock();
                for step in &mut document.steps {
                    let (flips, valid) = count(&step.forks);
                    let is_at_look = step.forks.len() == schedule.look as usize;
                    step.stopped_early |= is_at_look && schedule.decided(flips, valid).is_some();
                }
            }
        }
        if settings.coalitions > 0 {
            self.coalitions(rerunner, progress, &self.planned_coalitions())?;
            let pairs = pair_coalitions(&progress.lock());
            self.coalitions(rerunner, progress, &pairs)?;
        }
        self.orders(rerunner, progress)
    }

    fn base_runs(&self, rerunner: &Rerunner, progress: &Progress<'_>, wanted: u32) -> Result<(), Halt> {
        let done = u32::try_from(progress.lock().base.len()).unwrap_or(u32::MAX);
        let attempts: Vec<u32> = (done..wanted).collect();
        self.parallel(progress, &attempts, 1, |attempt| {
            let (others, free) = (OtherCalls::RecordedIfUnchanged, &BTreeSet::new());
            let job = ForkJob { perturbed: &[], others, attempt: *attempt, free };
            let record = self.fork(rerunner, progress, &job)?;
            progress.lock().base.push(record);
            Ok(())
        })
    }

    /// Fails if the re-runs say that no step can be blamed.
    fn check_base(&self, progress: &Progress<'_>) -> Result<(), Halt> {
        let document = progress.lock();
        let (flips, valid) = count(&document.base);
        let name = &self.reader.info().name;
        if valid == 0 {
            let why = document.base.iter().find_map(|fork| fork.why.clone()).unwrap_or_default();
            let message = format!("no re-run of {name:?} without a perturbation can be graded: {why}");
            return Err(BlameError::unusable(message, "try `annals replay` first").into());
        }
        if flips * 2 >= valid {
            let message = format!(
                "without any perturbation, {flips} of {valid} re-runs of {name:?} do not fail: the failure does not come from the recorded answers"
            );
            let hint = "look for what the program reads besides the models: files, clocks, the network";
            return Err(BlameError::unusable(message, hint).into());
        }
        Ok(())
    }

    /// Runs forks of every undecided step until it has `target` of them, a round of all steps at a time.
    fn step_forks(&self, rerunner: &Rerunner, progress: &Progress<'_>, target: u32) -> Result<(), Halt> {
        let mut jobs = Vec::new();
        for step in &mut progress.lock().steps {
            if step.stopped_early || step.skipped.is_some() {
                continue;
            }
            if let Err(why) = self.options.perturbation.at(&self.reader, step.step, 0) {
                step.skipped = Some(why);
                continue;
            }
            let done = u32::try_from(step.forks.len()).unwrap_or(u32::MAX);
            jobs.extend((done..target).map(|attempt| (attempt, step.step)));
        }
        jobs.sort_unstable();
        self.parallel(progress, &jobs, 1, |(attempt, seq)| {
            let perturbed = [*seq];
            let others = OtherCalls::RecordedIfUnchanged;
            let job = ForkJob { perturbed: &perturbed, others, attempt: *attempt, free: &BTreeSet::new() };
            let record = self.fork(rerunner, progress, &job)?;
            let mut document = progress.lock();
            if let Some(step) = document.steps.iter_mut().find(|step| step.step == *seq) {
                step.forks.push(record);
            }
            Ok(())
        })
    }

    fn coalitions(
        &self,
        rerunner: &Rerunner,
        progress: &Progress<'_>,
        wanted: &[Vec<u32>],
    ) -> Result<(), Halt> {
        let mut jobs: Vec<(u32, &[u32])> = Vec::new();
        let free = &self.free_steps(&progress.lock());
        {
            let mut document = progress.lock();
            for coalition in wanted {
                let place = document.coalitions.iter().position(|of| of.perturbed == *coalition);
                let place = place.unwrap_or_else(|| {
                    let perturbed = coalition.clone();
                    document.coalitions.push(CoalitionForks { perturbed, forks: Vec::new() });
                    document.coalitions.len() - 1
                });
                let done = u32::try_from(document.coalitions[place].forks.len()).unwrap_or(u32::MAX);
                jobs.extend((done..self.options.settings.coalitions).map(|at| (at, coalition.as_slice())));
            }
        }
        jobs.sort_unstable();
        self.parallel(progress, &jobs, 1, |(attempt, perturbed)| {
            let others = OtherCalls::RecordedByPosition;
            let job = ForkJob { perturbed, others, attempt: *attempt, free };
            let record = self.fork(rerunner, progress, &job)?;
            let mut document = progress.lock();
            if let Some(of) = document.coalitions.iter_mut().find(|of| of.perturbed == *perturbed) {
                of.forks.push(record);
            }
            Ok(())
        })
    }

    fn orders(&self, rerunner: &Rerunner, progress: &Progress<'_>) -> Result<(), Halt> {
        let settings = &self.options.settings;
        let (done, free) = {
            let document = progress.lock();
            (document.orders.len(), self.free_steps(&document))
        };
        let orders = sampled_orders(&settings.steps, settings.orders, settings.seed);
        let left: Vec<(u32, Vec<u32>)> = (0..).zip(orders).skip(done).collect();
        self.parallel(progress, &left, settings.steps.len() as u64 + 1, |(attempt, order)| {
            let mut sampled = SampledOrder { order: order.clone(), forks: Vec::new() };
            for size in 0..=order.len() {
                let mut perturbed = order[..size].to_vec();
                perturbed.sort_unstable();
                let others = OtherCalls::RecordedByPosition;
                let job = ForkJob { perturbed: &perturbed, others, attempt: *attempt, free: &free };
                sampled.forks.push(self.fork(rerunner, progress, &job)?);
            }
            progress.lock().orders.push(sampled);
            Ok(())
        })
    }

    /// Runs jobs on several threads; the first error ends all.
    fn parallel<J: Sync>(
        &self,
        progress: &Progress<'_>,
        jobs: &[J],
        forks_each: u64,
        run: impl Fn(&J) -> Result<(), Halt> + Sync,
    ) -> Result<(), Halt> {
        progress.planned.fetch_add(jobs.len() as u64 * forks_each, Ordering::Relaxed);
        let (next, halt) = (AtomicUsize::new(0), Mutex::new(None));
        let is_halted = || halt.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        let work = || {
            while !is_halted() {
                let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
                let done = if self.interrupted.load(Ordering::SeqCst) {
                    Err(Halt::State(BlameState::Interrupted))
                } else {
                    run(job).and_then(|()| self.save_sometimes(progress))
                };
                if let Err(why) = done {
                    halt.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.options.jobs.clamp(1, jobs.len().max(1)) {
                scope.spawn(work);
            }
            work();
        });
        halt.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    fn save_sometimes(&self, progress: &Progress<'_>) -> Result<(), Halt> {
        let now = self.clock.monotonic_ns();
        let saved = progress.saved_ns.load(Ordering::Relaxed);
        if now.saturating_sub(saved) >= SAVE_EVERY_NS
            && progress.saved_ns.compare_exchange(saved, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            let document = progress.lock().clone();
            document.save(&self.space, &self.reader)?;
        }
        Ok(())
    }

    /// Runs one fork and grades it.
    fn fork(
        &self,
        rerunner: &Rerunner,
        progress: &Progress<'_>,
        job: &ForkJob<'_>,
    ) -> Result<ForkRecord, Halt> {
        let number = {
            let most = self.costs.of_fork(job.perturbed).dollars;
            let mut document = match job.perturbed {
                [] if self.costs.of_grading().questions == 0 => progress.lock(),
                _ => self.wait_for_budget(progress, most)?,
            };
            let number = document.next_fork;
            document.next_fork += 1;
            document.reserved.insert(number, most);
            document.unpaid.insert(number);
            number
        };
        let mut spent = None;
        let done = self.run_fork(rerunner, number, job, &mut spent);
        let mut document = progress.lock();
        document.reserved.remove(&number);
        if let Some(spent) = spent {
            document.spent += spent;
            document.unpaid.remove(&number);
        }
        document.spent += self.options.oracle.take_spent();
        let forks = document.spent.forks;
        drop(document);
        progress.released.notify_all();
        let record = done?;
        if spent.is_some_and(|spent| spent.forks > 0) {
            (progress.report)(forks, progress.planned.load(Ordering::Relaxed));
        }
        Ok(record)
    }

    /// Runs one fork and grades it. `spent` is what it took; `None` if an error ended it: resuming counts it.
    fn run_fork(
        &self,
        rerunner: &Rerunner,
        number: u64,
        job: &ForkJob<'_>,
        spent: &mut Option<Spent>,
    ) -> Result<ForkRecord, Halt> {
        let undefined = |why: String| ForkRecord {
            run: String::new(),
            outcome: Outcome::Undefined,
            why: Some(why),
            calls: 0,
            changed: None,
        };
        let plan = match self.plan(job) {
            Ok(plan) => plan,
            Err(why) => {
                *spent = Some(Spent::default());
                return Ok(undefined(why));
            }
        };
        let parent = &self.reader.info().name;
        let run = format!("{parent}-blame-{number}");
        let perturbed = job.perturbed.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let perturbed = if perturbed.is_empty() { "base".to_owned() } else { perturbed };
        let info = self.reader.info();
        let spec = RunSpec::new(&run)
            .agent(&info.agent)
            .model(&info.model)
            .tag(BLAME_TAG, parent)
            .tag(BLAME_STEPS_TAG, cut_tag(&perturbed));
        let scratch = match self.options.settings.scratch {
            true => Some(scratch::copy(&rerunner.directory()).map_err(|error| {
                let message = format!("the working directory cannot be copied: {error}");
                BlameError::unusable(message, "--scratch needs room for a copy for each fork under way")
            })?),
            false => None,
        };
        let directory = scratch.as_ref().map(tempfile::TempDir::path);
        let report = rerunner.run(spec, plan, directory).map_err(BlameError::from)?;
        if let Some(why) = &report.recorded.failure {
            return Err(BlameError::Lost(why.clone()).into());
        }
        if report.stopped == Some(StopReason::Interrupted) || self.interrupted.load(Ordering::SeqCst) {
            self.interrupted.store(true, Ordering::SeqCst);
            *spent = Some(spent_by(&report));
            // A fork that was ended has no outcome; resuming runs it again.
            let _ = self.space.drop_run(&run, "blame", "interrupted");
            return Err(Halt::State(BlameState::Interrupted));
        }
        let record = self.record(run, &report, job)?;
        *spent = Some(Spent { forks: 1, ..spent_by(&report) });
        Ok(record)
    }

    /// Grades a fork that has ended.
    fn record(&self, run: String, report: &RerunReport, job: &ForkJob<'_>) -> Result<ForkRecord, Halt> {
        let reader = self.space.run(&run).map_err(BlameError::from)?;
        if job.perturbed.is_empty() {
            self.check_repeats(report)?;
        }
        let undefined = self.undefined_reason(&reader, report, job).map_err(BlameError::from)?;
        let verdict = match undefined {
            Some(why) => Verdict::Undefined(why),
            None => match RunOutcome::from_reader(&reader).map_err(BlameError::from)? {
                Some(outcome) => self.options.oracle.grade_fork(&outcome, &self.parent),
                None => Verdict::Undefined("its end was not recorded".to_owned()),
            },
        };
        let (outcome, why) = match verdict {
            Verdict::Undefined(why) => (Outcome::Undefined, Some(why)),
            Verdict::Fail => (Outcome::Same, None),
            Verdict::Pass => (Outcome::Flip, None),
        };
        let changed = match job.perturbed {
            [seq] if report.reached.contains(seq) => {
                let perturbed = self.frame_of_step(&reader, *seq).map_err(BlameError::from)?;
                let is = perturbed.and_then(|seq| says(&reader, seq));
                says(&self.reader, *seq).zip(is).map(|(was, is)| was != is)
            }
            _ => None,
        };
        Ok(ForkRecord { run, outcome, why, calls: report.live_calls, changed })
    }

    /// Fails if an unperturbed re-run was not as recorded: the difference is named, never averaged away.
    fn check_repeats(&self, report: &RerunReport) -> Result<(), Halt> {
        let name = &self.reader.info().name;
        let hint = format!(
            "`annals replay {name}` shows all differences; --capture-nondet at the recording, or a rule, may remove them"
        );
        if let Some(diverged) = report.diverged.first() {
            let message = format!("the program is not deterministic before any perturbation: {diverged}");
            return Err(BlameError::Nondeterministic { message, hint }.into());
        }
        // A program that hangs before its last call is named by its time limit.
        if report.unasked > 0 && report.stopped.is_none() {
            let message = format!(
                "the program is not deterministic before any perturbation: it never made {} of the recorded calls",
                report.unasked
            );
            return Err(BlameError::Nondeterministic { message, hint }.into());
        }
        Ok(())
    }

    /// Why a fork says nothing about its step.
    fn undefined_reason(
        &self,
        reader: &RunReader,
        report: &RerunReport,
        job: &ForkJob<'_>,
    ) -> annals::Result<Option<String>> {
        if report.stopped == Some(StopReason::TimeLimit) {
            let seconds = self.rerun.time_limit.as_secs();
            return Ok(Some(format!("it ran longer than {seconds} s and was ended")));
        }
        if let Some(diverged) = report.diverged.first() {
            return Ok(Some(format!("not deterministic before the fork: {diverged}")));
        }
        if report.unasked > 0 {
            return Ok(Some("it took another path before the fork".to_owned()));
        }
        if let Some(refused) = report.traffic.refused().next() {
            let to = refused.destination();
            return Ok(Some(format!(
                "its connection to {to} was refused before the fork: --allow-host permits it"
            )));
        }
        if let [seq] = job.perturbed
            && !report.reached.contains(seq)
        {
            return Ok(Some(format!("it never requested frame {seq}")));
        }
        // A failed upstream is no answer of the model.
        let shared = reader.info().parent.as_ref().map_or(0, |point| point.shared);
        for seq in shared + 1..=reader.info().frames {
            let frame = reader.frame_info(seq)?;
            let Ok(exchange) = serde_json::from_slice::<ExchangeMetadata>(&frame.metadata) else { continue };
            let status = exchange.http.status.unwrap_or(0);
            let failed = frame.error && (exchange.http.broken.is_some() || status == 429 || status >= 500);
            let failed_there = self.reader.frame_info(seq.min(self.reader.info().frames))?.error;
            if failed && !failed_there && !self.has_failed_at(&reader.frame(seq)?.input)? {
                let why = exchange.http.broken.unwrap_or_else(|| format!("status {status}"));
                return Ok(Some(format!("the upstream failed at frame {seq}: {why}")));
            }
        }
        Ok(None)
    }

    /// Whether a call with this request failed in the run, too.
    fn has_failed_at(&self, request: &[u8]) -> annals::Result<bool> {
        for seq in 1..=self.reader.info().frames {
            if self.reader.frame_info(seq)?.error && self.reader.frame(seq)?.input == request {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The frame of a fork that is the perturbed step `seq`: the first new call that asks what the step asked and did not
    /// fail, else the first one that did not. Numbers alone do not tell: a fork may draw more or less than the run did.
    fn frame_of_step(&self, fork: &RunReader, seq: u32) -> annals::Result<Option<u32>> {
        let asked = self.reader.frame(seq)?.input;
        let shared = fork.info().parent.as_ref().map_or(0, |point| point.shared);
        let mut first = None;
        for new in shared + 1..=fork.info().frames {
            let frame = fork.frame(new)?;
            // A failed attempt is followed by another, or said nothing.
            if frame.error || serde_json::from_slice::<ExchangeMetadata>(&frame.metadata).is_err() {
                continue;
            }
            if frame.input == asked {
                return Ok(Some(new));
            }
            first = first.or(Some(new));
        }
        Ok(first)
    }

    /// The steps that are not held in a coalition: they answer as their request asks. These are the run's last
    /// step, whose answer often is the outcome itself, and steps whose answer never changed when they were
    /// perturbed alone: it follows from the request.
    fn free_steps(&self, document: &BlameDocument) -> BTreeSet<u32> {
        let follows = |step: &&StepForks| {
            !step.forks.is_empty() && step.forks.iter().all(|fork| fork.changed == Some(false))
        };
        let mut free: BTreeSet<u32> = document.steps.iter().filter(follows).map(|step| step.step).collect();
        free.extend(self.all.last().map(|step| step.seq));
        free
    }

    fn plan(&self, job: &ForkJob<'_>) -> Result<RerunPlan, String> {
        let Some(from) = job.perturbed.iter().min() else {
            let last = self.all.last().map_or(0, |step| step.seq);
            return Ok(RerunPlan::unchanged(last));
        };
        let mut actions = BTreeMap::new();
        let mut later = None;
        for seq in job.perturbed {
            let perturbation = self.options.perturbation.at(&self.reader, *seq, job.attempt)?;
            actions.insert(*seq, perturbation.action);
            later = later.or(perturbation.later);
        }
        let mut free = job.free.clone();
        // The step whose sufficiency is tested is held: it is the only one that is not perturbed.
        let mut kept = self.options.settings.steps.iter().filter(|step| !job.perturbed.contains(step));
        if let (Some(tested), None) = (kept.next(), kept.next()) {
            free.remove(tested);
        }
        Ok(RerunPlan { from: *from, actions, others: job.others, free, later: later.map(|edit| edit.0) })
    }

    /// Stops before a fork that could pass the budget. If it could pass it only together with forks that are under
    /// way, waits for their end: they may cost less than they can.
    fn wait_for_budget<'a>(
        &self,
        progress: &'a Progress<'_>,
        most: f64,
    ) -> Result<MutexGuard<'a, BlameDocument>, Halt> {
        let mut document = progress.lock();
        let Some(budget) = self.options.settings.budget else { return Ok(document) };
        loop {
            if self.interrupted.load(Ordering::SeqCst) {
                return Err(Halt::State(BlameState::Interrupted));
            }
            let reserved: f64 = document.reserved.values().sum();
            if document.spent.dollars + reserved + most <= budget {
                return Ok(document);
            }
            if document.spent.dollars + most > budget || document.reserved.is_empty() {
                return Err(Halt::State(BlameState::OutOfBudget));
            }
            document = progress.released.wait(document).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Fails unless the oracle calls the run failed.
fn check_failed(name: &str, oracle: &Oracle, parent: &RunOutcome) -> Result<(), BlameError> {
    match oracle.grade(parent) {
        Verdict::Fail => Ok(()),
        Verdict::Pass => {
            let message = format!("the oracle calls run {name:?} passed, so there is no failure to explain");
            let hint = "name a failed run, or another --oracle: regex:PATTERN, json:PATH=VALUE, cmd:COMMAND";
            Err(BlameError::unusable(message, hint))
        }
        Verdict::Undefined(why) => {
            let message = format!("the oracle cannot grade run {name:?} itself: {why}");
            Err(BlameError::unusable(message, "use another --oracle"))
        }
    }
}

impl Progress<'_> {
    fn lock(&self) -> MutexGuard<'_, BlameDocument> {
        self.document.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A tag's value has a length limit, and a coalition may have many steps.
fn cut_tag(text: &str) -> String {
    text.chars().take(200).collect()
}

/// What an answer says, as a hash: by its meaning if it can be read, else by its bytes.
fn says(reader: &RunReader, seq: u32) -> Option<[u8; 32]> {
    let frame = reader.frame(seq).ok()?;
    let exchange = serde_json::from_slice::<ExchangeMetadata>(&frame.metadata).ok()?;
    let host = exchange.http.mount.trim_end_matches(|c: char| c.is_ascii_digit());
    let api = recognise(&exchange.http.method, &exchange.http.path, host);
    let header =
        |headers: &annals_policy::exchange::Headers, name: &str| headers.get(name).map(str::to_owned);
    let content_type = header(&exchange.volatile.response_headers, "content-type");
    let content_encoding = header(&exchange.volatile.response_headers, "content-encoding");
    let request_encoding = header(&exchange.volatile.request_headers, "content-encoding");
    let meaning = Meaning::of_answer(&WireExchange {
        api: &api,
        request: &frame.input,
        request_encoding: request_encoding.as_deref(),
        status: exchange.http.status.unwrap_or(0),
        content_type: content_type.as_deref(),
        content_encoding: content_encoding.as_deref(),
        response: &frame.output,
    });
    Some(meaning.map_or_else(|| *blake3::hash(&frame.output).as_bytes(), |of| of.hash()))
}
