//! Sweeps: read the facts of all runs, apply a policy, and drop the runs that it selects.
//!
//! What is asked of each run stands in the index (`run_facts`), so an ended run's record is read only for a rule
//! about tags, and its frames only for a rule about components, each only if the rule's other conditions hold. A
//! sweep holds about 48 bytes per run in memory. A run may be pinned, flagged or forked
//! between plan and drop. Each is checked again when it is dropped, and stays if it must. No rule judges a fork of a blame:
//! it stays and goes with its parent.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::ids::{NamespaceId, RunUid};
use crate::log::record::SpaceHead;
use crate::store::{Namespace, Store};
use crate::trace::blame_forks::{BLAME_TAG, all_forks, living_parent};
use crate::trace::dropping::DropBlocker;
use crate::trace::flags::Flag;
use crate::trace::reader::{RunReader, run_record};
use crate::trace::run_facts::{RunFacts, RunFate, for_each_run};
use crate::trace::{Severity, Status};
use crate::upkeep::due::sweep_time;
use crate::upkeep::retention::{
    CostlyCondition, RetentionCause, RetentionFacts, RetentionPolicy, RunVerdict, SAMPLING, has_tag,
};
use annals_store::kv::core::Core;

/// Totals over some runs: how many, their own frames, and the raw bytes of those frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RunTotals {
    /// Number of runs.
    pub runs: u64,
    /// Number of their own frames; frames shared with a parent are not counted.
    pub frames: u64,
    /// Raw bytes of the frames, as callers gave them.
    pub bytes: u64,
}

/// What one rule keeps and drops.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleReport {
    /// The rule's name.
    pub rule: String,
    /// The rule's condition, in words.
    pub keep: String,
    /// Runs that stay by this rule.
    pub kept: RunTotals,
    /// Runs that go by this rule.
    pub dropped: RunTotals,
}

/// What a sweep will do, or did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetentionReport {
    /// Time of the sweep, in nanoseconds since 1970-01-01 UTC.
    pub at_ns: u64,
    /// Reports in the policy's order. Sampling comes first if it drops runs.
    pub rules: Vec<RuleReport>,
    /// Runs that no rule matches; they stay.
    pub unmatched: RunTotals,
    /// Pinned runs, and the forks that `blame` made of them; they stay.
    pub pinned: RunTotals,
    /// Runs that have not ended; they stay.
    pub open: u64,
    /// Runs that were due to go, but were pinned, flagged or forked after the plan; they stay.
    pub held: u64,
    /// Expired entries in memory that are deleted. The engine leaves it 0; the memory's own crate counts them.
    #[serde(default)]
    pub memories: u64,
}

/// The runs that a sweep will drop, and its report.
#[derive(Debug)]
pub struct RetentionPlan {
    report: RetentionReport,
    /// When planning began, by the store's clock.
    judged_ns: u64,
    /// The runs to drop, by namespace and rule.
    doomed: Vec<(NamespaceId, String, Vec<RunUid>)>,
}

impl RetentionPlan {
    /// The report of this plan.
    #[must_use]
    pub fn report(&self) -> &RetentionReport {
        &self.report
    }
}

impl RunTotals {
    fn add(&mut self, frames: u64, bytes: u64) {
        self.runs += 1;
        self.frames += frames;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

impl RetentionReport {
    /// Totals of all runs to drop.
    #[must_use]
    pub fn dropped(&self) -> RunTotals {
        self.rules.iter().fold(RunTotals::default(), |sum, rule| RunTotals {
            runs: sum.runs + rule.dropped.runs,
            frames: sum.frames + rule.dropped.frames,
            bytes: sum.bytes.saturating_add(rule.dropped.bytes),
        })
    }
}

/// Collects the verdicts while the runs are read.
struct SweepPlanner<'a> {
    policy: &'a RetentionPolicy,
    store: &'a Store,
    report: RetentionReport,
    judged: Vec<RunVerdict>,
    amounts: Vec<(u32, u64)>,
    /// All forks of the store, in order.
    forks: Vec<RunUid>,
    /// Forks of blames, which follow their parents.
    followers: Vec<Follower>,
    pinned: HashSet<RunUid>,
}

/// A fork of a blame, whose parent lives.
struct Follower {
    uid: RunUid,
    parent: RunUid,
    own_frames: u32,
    raw_bytes: u64,
}

impl Store {
    /// Plans what a policy drops as of `at_ns`, or of the store's clock if that is `None`. It changes
    /// nothing.
    ///
    /// # Errors
    /// `Invalid` for a policy that cannot be followed. `Unavailable` if no time is given and the clock is
    /// behind the newest record or more than 400 days ahead of it. `Damaged`.
    pub fn plan_retention(&self, policy: &RetentionPolicy, at_ns: Option<u64>) -> Result<RetentionPlan> {
        policy.check()?;
        let core = self.core();
        let judged_ns = core.io.now_ns();
        let at_ns = sweep_time(at_ns, judged_ns, self.newest_ns())?;
        let rule = |rule: &str, keep: String| RuleReport {
            rule: rule.to_owned(),
            keep,
            kept: RunTotals::default(),
            dropped: RunTotals::default(),
        };
        let mut rules = vec![rule(SAMPLING, policy.sample.to_string())];
        rules.extend(policy.rules.iter().map(|one| rule(&one.name, one.keep.to_string())));
        let report = RetentionReport {
            at_ns,
            rules,
            unmatched: RunTotals::default(),
            pinned: RunTotals::default(),
            open: 0,
            held: 0,
            memories: 0,
        };
        let mut reading = SweepPlanner {
            policy,
            store: self,
            report,
            judged: Vec::new(),
            amounts: Vec::new(),
            forks: all_forks(core)?,
            followers: Vec::new(),
            pinned: HashSet::new(),
        };
        let mut spaces = Vec::new();
        for space in core.list_spaces()? {
            if let SpaceHead::Namespace { id, name } = space {
                #[expect(clippy::cast_possible_truncation, reason = "each namespace has an id of 32 bits")]
                let number = spaces.len() as u32;
                reading.read_namespace(id, &name, number)?;
                spaces.push(id);
            }
        }
        policy.decide(core.store, at_ns, &mut reading.judged);
        reading.count_followers();
        Ok(reading.into_plan(&spaces, judged_ns))
    }

    /// Drops the planned runs and returns the final report. The drops are on disk when this returns.
    ///
    /// # Errors
    /// `Invalid` in a store open for reading; `Unavailable`, `Poisoned`: runs dropped before the error stay
    /// dropped.
    pub fn retain(&self, plan: RetentionPlan) -> Result<RetentionReport> {
        let RetentionPlan { mut report, judged_ns, doomed } = plan;
        for (id, rule, uids) in doomed {
            let namespace = Namespace { store: self.clone(), id };
            let held: Vec<(RunUid, DropBlocker)> = namespace.drop_runs(&uids, &rule, judged_ns)?;
            report.held += held.len() as u64;
        }
        Ok(report)
    }

    /// Applies a policy's sampling to the runs that ended since the last call; drops those that it leaves out
    /// and returns their number. Each run is judged as of its end; the rules are left to the next sweep, and so is a
    /// sampling that waits ([`RetentionPolicy::sample_after_ns`]).
    ///
    /// From the first call on, the store remembers which runs end, up to
    /// [`ENDED_RUNS_MAX`](crate::runs::ENDED_RUNS_MAX). Runs that ended before the first call, or beyond that
    /// limit, are left to the next sweep, too. The drops are on disk when this returns.
    ///
    /// # Errors
    /// `Invalid` for a policy that cannot be followed, or in a store open for reading; `Damaged`,
    /// `Unavailable`, `Poisoned`.
    pub fn sample_ended(&self, policy: &RetentionPolicy) -> Result<u64> {
        policy.check()?;
        let core = self.core();
        let mut ended: BTreeMap<NamespaceId, Vec<RunUid>> = BTreeMap::new();
        for (id, uid) in self.recording().take_ended() {
            ended.entry(id).or_default().push(uid);
        }
        // Their ends may still be on their way to the index.
        core.log()?.queue.barrier(core.index.visible())?;
        let mut dropped = 0;
        for space in if ended.is_empty() { Vec::new() } else { core.list_spaces()? } {
            let SpaceHead::Namespace { id, name } = space else { continue };
            let (space, mut out) = (Namespace { store: self.clone(), id }, Vec::new());
            for uid in ended.remove(&id).unwrap_or_default() {
                let Some((head, _)) = run_record(core, id, uid)? else { continue };
                let fields = &head.fields;
                let status = Status::from_code(fields.status)?;
                let flag = space.flag_of(uid)?;
                let severity = Flag::raise(flag.as_ref(), Severity::from_code(fields.severity)?);
                let is_blame_fork = fields.tags.iter().any(|(key, _)| key == BLAME_TAG);
                if fields.gone || status == Status::Open || is_blame_fork {
                    continue;
                }
                let (run, end) = ((uid, !fields.tags.is_empty()), (status, severity, fields.ended_ns));
                let cause = judge_run(core, policy, (id, &name), run, end, fields.ended_ns)?;
                if cause == RetentionCause::Sampling {
                    out.push(uid);
                }
            }
            if !out.is_empty() {
                // Sampling is for runs that nobody flagged: neither before nor since, nor forks of their blames.
                let held = space.drop_runs(&out, SAMPLING, 0)?;
                dropped += (out.len() - held.len()) as u64;
            }
        }
        Ok(dropped)
    }
}

/// The severities that flags give runs. A fork of a blame stays and goes with its run, so its flag counts for the run.
fn flagged_severities(space: &Namespace) -> Result<HashMap<RunUid, Severity>> {
    let mut severities = HashMap::new();
    for flag in space.flags()? {
        let mut counts_for = Some(flag.uid);
        while let Some(uid) = counts_for {
            let known = severities.entry(uid).or_insert(flag.severity);
            *known = flag.severity.max(*known);
            counts_for = living_parent(space.store.core(), space.id, uid)?;
        }
    }
    Ok(severities)
}

/// Decides which rule or sampling applies to an ended run.
fn judge_run(
    core: &Arc<Core>,
    policy: &RetentionPolicy,
    (id, name): (NamespaceId, &str),
    (uid, has_tags): (RunUid, bool),
    (status, severity, ended_ns): (Status, Severity, u64),
    at_ns: u64,
) -> Result<RetentionCause> {
    let facts = RetentionFacts { namespace: name, status, severity, ended_ns };
    let mut reader = None;
    policy.find_cause((core.store, uid), &facts, at_ns, &mut |condition| {
        if matches!(condition, CostlyCondition::AnyTag(_)) && !has_tags {
            return Ok(false);
        }
        let reader: &mut RunReader = match &mut reader {
            Some(reader) => reader,
            None => reader.insert(RunReader::open(core, id, uid)?),
        };
        match condition {
            CostlyCondition::AnyTag(any) => Ok(has_tag(any, &reader.info().tags)),
            CostlyCondition::AnyComponent(any) => reader.has_component(any),
        }
    })
}

/// The place of a cause in the reports of a sweep.
fn rule_place(cause: RetentionCause) -> Option<usize> {
    match cause {
        RetentionCause::Sampling => Some(0),
        RetentionCause::Rule(at) => Some(at + 1),
        RetentionCause::Nothing => None,
    }
}

impl SweepPlanner<'_> {
    fn read_namespace(&mut self, id: NamespaceId, name: &str, number: u32) -> Result<()> {
        let core = self.store.core();
        let space = Namespace { store: self.store.clone(), id };
        let pins = space.pinned_runs()?;
        let flags = flagged_severities(&space)?;
        for_each_run(core, id, &mut |facts| {
            let RunFacts { uid, fate, own_frames, raw_bytes, has_tags } = facts;
            let RunFate::Living { status, severity, ended_ns } = fate else { return Ok(()) };
            let recorded = Severity::from_code(severity)?;
            let severity = flags.get(&uid).map_or(recorded, |flagged| recorded.max(*flagged));
            let status = Status::from_code(status)?;
            if status == Status::Open {
                self.report.open += 1;
            } else if pins.contains(&uid) {
                self.report.pinned.add(u64::from(own_frames), raw_bytes);
                self.pinned.insert(uid);
            } else if let Some(parent) = self.parent_of_follower(id, uid, has_tags)? {
                self.followers.push(Follower { uid, parent, own_frames, raw_bytes });
            } else {
                let (run, end) = ((uid, has_tags), (status, severity, ended_ns));
                let cause = judge_run(core, self.policy, (id, name), run, end, self.report.at_ns)?;
                self.judged.push(RunVerdict { namespace: number, uid, ended_ns, cause, goes: false });
                self.amounts.push((own_frames, raw_bytes));
            }
            Ok(())
        })
    }

    /// The living parent of a fork of a blame. Reads the records of tagged forks only.
    fn parent_of_follower(&self, id: NamespaceId, uid: RunUid, has_tags: bool) -> Result<Option<RunUid>> {
        match has_tags && self.forks.binary_search(&uid).is_ok() {
            true => living_parent(self.store.core(), id, uid),
            false => Ok(None),
        }
    }

    /// Counts forks of blames where their parents count: dropping a parent drops them. Forks of a parent that has not
    /// ended are unmatched.
    fn count_followers(&mut self) {
        let mut verdicts: HashMap<RunUid, Option<(RetentionCause, bool)>> =
            self.followers.iter().map(|follower| (follower.parent, None)).collect();
        for run in &self.judged {
            verdicts.entry(run.uid).and_modify(|verdict| *verdict = Some((run.cause, run.goes)));
        }
        // A fork is younger than its parent, which may be a fork of a blame itself.
        self.followers.sort_unstable_by_key(|follower| follower.uid);
        for Follower { uid, parent, own_frames, raw_bytes } in std::mem::take(&mut self.followers) {
            let totals = if self.pinned.contains(&parent) {
                self.pinned.insert(uid);
                &mut self.report.pinned
            } else {
                let verdict = verdicts.get(&parent).copied().flatten();
                verdicts.entry(uid).and_modify(|known| *known = verdict);
                let (cause, goes) = verdict.unwrap_or((RetentionCause::Nothing, false));
                self.totals(cause, goes)
            };
            totals.add(u64::from(own_frames), raw_bytes);
        }
    }

    /// The totals of the report that a run counts in.
    fn totals(&mut self, cause: RetentionCause, goes: bool) -> &mut RunTotals {
        let RetentionReport { rules, unmatched, .. } = &mut self.report;
        match rule_place(cause).and_then(|at| rules.get_mut(at)) {
            Some(rule) if goes => &mut rule.dropped,
            Some(rule) => &mut rule.kept,
            None => unmatched,
        }
    }

    /// Turns the verdicts into a plan with its report.
    fn into_plan(mut self, spaces: &[NamespaceId], judged_ns: u64) -> RetentionPlan {
        let mut doomed: BTreeMap<(u32, usize), Vec<RunUid>> = BTreeMap::new();
        let judged = std::mem::take(&mut self.judged);
        for (run, (frames, bytes)) in judged.iter().zip(std::mem::take(&mut self.amounts)) {
            self.totals(run.cause, run.goes).add(u64::from(frames), bytes);
            if let (true, Some(at)) = (run.goes, rule_place(run.cause)) {
                doomed.entry((run.namespace, at)).or_default().push(run.uid);
            }
        }
        let named = |at: usize| self.report.rules.get(at).map_or(String::new(), |rule| rule.rule.clone());
        let doomed = doomed
            .into_iter()
            .filter_map(|((namespace, at), uids)| Some((*spaces.get(namespace as usize)?, named(at), uids)))
            .collect();
        if self.report.rules.first().is_some_and(|sampling| sampling.dropped.runs == 0) {
            self.report.rules.remove(0);
        }
        RetentionPlan { report: self.report, judged_ns, doomed }
    }
}
