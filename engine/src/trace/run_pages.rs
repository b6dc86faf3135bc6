//! Pages of runs: the runs that a filter selects, in the order of their numbers.
//!
//! A page is read from lists of the index (see `run_keys`): one for each agent, model and tag, for each status but
//! `ok`, for each severity but `normal`, and one by the time of the beginning. The flags of people are a list, too. A page walks one list, the shortest
//! that its first keys show, and checks each run's record against the whole filter. So an entry that a later record
//! or a deletion has made wrong costs a look, and is never shown. A page looks at a bounded number of runs and then
//! says where to go on, also if it found none.

use std::collections::BTreeSet;
use std::ops::Bound;

use crate::error::Result;
use crate::ids::{NamespaceId, RunUid, Seqno};
use crate::store::Namespace;
use crate::trace::flags::{FLAGS, Flag, flag_in};
use crate::trace::heads::RunFields;
use crate::trace::model::{Severity, Status};
use crate::trace::reader::{RunOrTombstone, RunReader, find_run_or_tombstone};
use crate::trace::run_keys::{self, RunTerm};
use annals_store::kv::core::Core;
use annals_store::kv::index::prefix_end;
use annals_store::kv::keys;
use annals_store::kv::keyspace::Keyspace;

/// Maximum number of runs whose records one page reads.
const LOOKED_MAX: usize = 1000;
/// Keys that one look at a list reads.
const LIST_KEYS: usize = 128;
/// A time range with more runs than this is no list of its own: the records are checked instead.
const TIME_RUNS_MAX: usize = 4096;

/// Which runs a page shows. Without any field, all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunFilter {
    /// Runs with one of these; empty: any.
    pub statuses: Vec<Status>,
    /// Runs that count with this severity: the greater of what was recorded and what their [`Flag`] says.
    pub severity: Option<Severity>,
    /// Runs of this agent.
    pub agent: Option<String>,
    /// Runs of this model, as their recorder named it.
    pub model: Option<String>,
    /// Runs that have each of these tags: key and value.
    pub tags: Vec<(String, String)>,
    /// Runs that began at this time or later, nanoseconds since 1970-01-01 UTC.
    pub since_ns: Option<u64>,
    /// Runs that began before this time, nanoseconds since 1970-01-01 UTC.
    pub until_ns: Option<u64>,
}

/// The order of a page: by the runs' numbers, which count up as runs begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RunOrder {
    /// The run that began last comes first.
    #[default]
    NewestFirst,
    /// The run that began first comes first.
    OldestFirst,
}

/// Some of the runs that a filter selects.
#[derive(Debug)]
pub struct RunPage {
    /// In the order asked for.
    pub runs: Vec<RunReader>,
    /// The run after which the next page begins; `None` if there are no more runs. It need not be a shown run.
    pub next: Option<RunUid>,
}

impl RunFilter {
    /// `severity`: what the run counts with.
    fn admits(&self, fields: &RunFields, severity: Severity) -> bool {
        let is_or_any = |wanted: &Option<String>, known: &str| wanted.as_deref().is_none_or(|it| it == known);
        (self.statuses.is_empty() || self.statuses.iter().any(|status| status.code() == fields.status))
            && self.severity.is_none_or(|wanted| wanted == severity)
            && is_or_any(&self.agent, &fields.agent)
            && is_or_any(&self.model, &fields.model)
            && self.tags.iter().all(|tag| fields.tags.contains(tag))
            && self.since_ns.is_none_or(|since| fields.started_ns >= since)
            && self.until_ns.is_none_or(|until| fields.started_ns < until)
    }

    /// The lists that this filter can be read from; each holds every run that it selects. `flags`: the keyspace of
    /// flags, whose keys are a list, too.
    fn lists(&self, namespace: NamespaceId, flags: Option<&Keyspace>) -> Vec<RunList> {
        let list = |term: RunTerm<'_>| run_keys::run_list(namespace, term);
        let mut lists = Vec::new();
        lists.extend(self.tags.iter().map(|(key, value)| RunList(vec![list(RunTerm::Tag(key, value))])));
        if !self.statuses.is_empty() && !self.statuses.contains(&Status::Ok) {
            let of = |status: &Status| match status {
                Status::Open => run_keys::open_runs_of(namespace),
                ended => list(RunTerm::Status(ended.code())),
            };
            lists.push(RunList(self.statuses.iter().map(of).collect()));
        }
        if let Some(severity) = self.severity.filter(|severity| *severity != Severity::Normal) {
            let flagged = flags.map(|flags| keys::user(flags.id(), &[]));
            lists.push(RunList(
                [list(RunTerm::Severity(severity.code()))].into_iter().chain(flagged).collect(),
            ));
        }
        lists.extend(self.agent.iter().map(|agent| RunList(vec![list(RunTerm::Agent(agent))])));
        lists.extend(self.model.iter().map(|model| RunList(vec![list(RunTerm::Model(model))])));
        // An empty name has no list.
        let is_named = |name: &Option<String>| name.as_deref() != Some("");
        match is_named(&self.agent) && is_named(&self.model) {
            true => lists,
            false => Vec::new(),
        }
    }
}

/// Runs in the order of their numbers, as the union of prefixes of keys that end with a run's number.
struct RunList(Vec<Vec<u8>>);

impl RunList {
    /// The next runs of this list, and whether there may be more after them.
    fn read(&self, core: &Core, after: Option<RunUid>, order: RunOrder) -> Result<(Vec<RunUid>, bool)> {
        let reverse = order == RunOrder::NewestFirst;
        let is_before = |one: RunUid, other: RunUid| if reverse { one > other } else { one < other };
        let mut found = BTreeSet::new();
        // The nearest run at which one of the prefixes was cut: nothing is known after it.
        let mut cut: Option<RunUid> = None;
        for prefix in &self.0 {
            let end = prefix_end(prefix);
            let bound = after.map(|uid| [prefix.as_slice(), &uid.0.to_be_bytes()].concat());
            let (mut from, mut to) = (
                Bound::Included(prefix.as_slice()),
                end.as_deref().map_or(Bound::Unbounded, Bound::Excluded),
            );
            match (&bound, reverse) {
                (Some(bound), true) => to = Bound::Excluded(bound),
                (Some(bound), false) => from = Bound::Excluded(bound),
                (None, _) => {}
            }
            let (hits, more) = core.index.read_page(from, to, Seqno(u64::MAX), reverse, LIST_KEYS)?;
            found.extend(hits.iter().filter_map(|hit| run_keys::last_uid(&hit.key)));
            if let Some(last) = more.as_deref().and_then(run_keys::last_uid)
                && cut.is_none_or(|known| is_before(last, known))
            {
                cut = Some(last);
            }
        }
        let mut uids: Vec<RunUid> =
            found.into_iter().filter(|uid| cut.is_none_or(|cut| !is_before(cut, *uid))).collect();
        if reverse {
            uids.reverse();
        }
        // A page of ended keys only has no runs, but a place to go on from.
        if let Some(cut) = cut
            && uids.last() != Some(&cut)
        {
            uids.push(cut);
        }
        Ok((uids, cut.is_some()))
    }
}

/// What a page walks: a list of the index, or the runs of a short time range.
enum Walk {
    List(RunList),
    Range(BTreeSet<RunUid>),
}

impl Walk {
    fn read(&self, core: &Core, after: Option<RunUid>, order: RunOrder) -> Result<(Vec<RunUid>, bool)> {
        match (self, order) {
            (Self::List(list), _) => list.read(core, after, order),
            (Self::Range(runs), RunOrder::NewestFirst) => {
                let end = after.map_or(Bound::Unbounded, Bound::Excluded);
                Ok((runs.range((Bound::Unbounded, end)).rev().copied().collect(), false))
            }
            (Self::Range(runs), RunOrder::OldestFirst) => {
                let start = after.map_or(Bound::Unbounded, Bound::Excluded);
                Ok((runs.range((start, Bound::Unbounded)).copied().collect(), false))
            }
        }
    }
}

impl Namespace {
    /// Some of the living runs that `filter` selects: at most `count`, after the run `after` in this order, which
    /// may be gone by now. Reads the records of at most 1,000 runs; if that was not enough, the page may be short
    /// or empty and `next` says where to go on.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn page_runs(
        &self,
        filter: &RunFilter,
        order: RunOrder,
        after: Option<RunUid>,
        count: usize,
    ) -> Result<RunPage> {
        let core = self.store.core();
        let flags = self.flags_for(filter)?;
        let walk = self.choose_walk(filter, flags.as_ref(), after, order)?;
        let (mut runs, mut last, mut looked) = (Vec::new(), after, 0);
        loop {
            let (uids, more) = walk.read(core, last, order)?;
            let read = uids.len();
            for (at, uid) in uids.into_iter().enumerate() {
                last = Some(uid);
                looked += 1;
                if let Some(run) = self.admitted_run(filter, flags.as_ref(), uid)? {
                    runs.push(run);
                }
                if runs.len() >= count || looked >= LOOKED_MAX {
                    let next = last.filter(|_| more || at + 1 < read);
                    return Ok(RunPage { runs, next });
                }
            }
            if !more {
                return Ok(RunPage { runs, next: None });
            }
        }
    }

    /// The living runs that were forked from a run, oldest first, at most `count`.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn forks(&self, uid: RunUid, count: usize) -> Result<Vec<RunReader>> {
        let core = self.store.core();
        let list = RunList(vec![run_keys::forks(uid)]);
        let (mut runs, mut last) = (Vec::new(), None);
        loop {
            let (uids, more) = list.read(core, last, RunOrder::OldestFirst)?;
            for uid in uids {
                if runs.len() >= count {
                    return Ok(runs);
                }
                last = Some(uid);
                runs.extend(self.admitted_run(&RunFilter::default(), None, uid)?);
            }
            if !more {
                return Ok(runs);
            }
        }
    }

    /// The keyspace of flags, if the filter asks for a severity and there are any.
    fn flags_for(&self, filter: &RunFilter) -> Result<Option<Keyspace>> {
        match filter.severity {
            Some(_) => self.find_keyspace(FLAGS),
            None => Ok(None),
        }
    }

    /// Opens a run if it lives and the filter selects it.
    fn admitted_run(
        &self,
        filter: &RunFilter,
        flags: Option<&Keyspace>,
        uid: RunUid,
    ) -> Result<Option<RunReader>> {
        let core = self.store.core();
        if core.index.newest(&run_keys::run(self.id, uid))?.is_none() {
            return Ok(None);
        }
        match find_run_or_tombstone(core, self.id, uid)? {
            Some(RunOrTombstone::Run(head, tail)) if !head.fields.gone => {
                let flag = match flags {
                    Some(flags) => flag_in(flags, uid)?,
                    None => None,
                };
                let severity = Flag::raise(flag.as_ref(), Severity::from_code(head.fields.severity)?);
                match filter.admits(&head.fields, severity) {
                    true => RunReader::from_record(core, self.id, *head, &tail).map(Some),
                    false => Ok(None),
                }
            }
            _ => Ok(None),
        }
    }

    fn choose_walk(
        &self,
        filter: &RunFilter,
        flags: Option<&Keyspace>,
        after: Option<RunUid>,
        order: RunOrder,
    ) -> Result<Walk> {
        let core = self.store.core();
        let mut lists = filter.lists(self.id, flags);
        if lists.len() == 1 && filter.since_ns.is_none() && filter.until_ns.is_none() {
            return Ok(Walk::List(lists.remove(0)));
        }
        // The first list that ends within one look is short enough; otherwise the time range if that is.
        for at in 0..lists.len() {
            if !lists[at].read(core, after, order)?.1 {
                return Ok(Walk::List(lists.swap_remove(at)));
            }
        }
        if let Some(runs) = self.runs_between(filter.since_ns, filter.until_ns)? {
            return Ok(Walk::Range(runs));
        }
        Ok(Walk::List(match lists.is_empty() {
            true => RunList(vec![run_keys::runs(self.id)]),
            false => lists.remove(0),
        }))
    }

    /// The runs that began in a time range, to the second; `None` without a range, or if there are too many.
    fn runs_between(&self, since_ns: Option<u64>, until_ns: Option<u64>) -> Result<Option<BTreeSet<RunUid>>> {
        if since_ns.is_none() && until_ns.is_none() {
            return Ok(None);
        }
        let core = self.store.core();
        let from = run_keys::run_time(self.id, since_ns.unwrap_or(0), RunUid(0));
        let to = run_keys::run_time(self.id, until_ns.unwrap_or(u64::MAX), RunUid(u64::MAX));
        let (from, to) = (Bound::Included(from.as_slice()), Bound::Included(to.as_slice()));
        let (hits, more) = core.index.read_page(from, to, Seqno(u64::MAX), false, TIME_RUNS_MAX)?;
        Ok(more.is_none().then(|| hits.iter().filter_map(|hit| run_keys::last_uid(&hit.key)).collect()))
    }
}
