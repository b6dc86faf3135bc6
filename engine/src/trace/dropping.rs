//! Drops and pins runs.
//!
//! A dropped run is a tombstone in the log: the run's uid, its number of frames, and when and by which rule
//! it was dropped. A note finds it by a hash of its name (see `dropped_names`). Its frames are readable only through its forks; compaction frees the rest. The run's
//! belongings (see `belongings`) are deleted in the same commit. The forks of its blame (see `blame_forks`) are dropped
//! in this commit, too.
//!
//! Three kinds of runs are never dropped: open runs, pinned runs, and runs of which a fork is about to begin.
//! A pin is a key in the keyspace `annals.pins` of the run's namespace: the run's uid in eight bytes,
//! big-endian. Its value is JSON with `why` and `pinned_ns`. Pinning, dropping and forking take the same
//! lock, so each of them sees the finished result of the others.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::ids::{NamespaceId, RunUid};
use crate::log::queue::Durability;
use crate::log::segments::lock;
use crate::store::Namespace;
use crate::trace::belongings::{BelongingScope, Belongings, DeletedKey};
use crate::trace::blame_forks::blame_forks;
use crate::trace::dropped_names;
use crate::trace::heads::{RULE_BYTES_MAX, RunFields, TombstoneHead, WHY_BYTES_MAX};
use crate::trace::kinds;
use crate::trace::model::{Status, check_text};
use crate::trace::reader::{RunOrTombstone, RunReader, find_living_run, find_run_or_tombstone, run_record};
use crate::trace::run_keys;
use annals_store::kv::core::Core;
use annals_store::kv::keys;
use annals_store::kv::keyspace::{History, ScanRange};
use annals_store::kv::write::BatchWriter;

/// The keyspace of pins.
pub(crate) const PINS: &str = "annals.pins";
/// Maximum number of runs that one commit drops, without the forks of their blames.
const BATCH_RUNS_MAX: usize = 4096;
/// Keys of the index that one page of a scan reads.
const PAGE_KEYS: usize = 4096;

/// Parents of prepared forks that are not in the log yet, with the number of such forks.
#[derive(Debug, Default)]
pub(crate) struct PendingForks(HashMap<RunUid, usize>);

impl PendingForks {
    /// Prevents dropping the run until [`PendingForks::release`].
    pub(crate) fn hold(&mut self, parent: RunUid) {
        *self.0.entry(parent).or_default() += 1;
    }

    /// Whether a fork of this run is about to begin.
    pub(crate) fn is_parent(&self, uid: RunUid) -> bool {
        self.0.contains_key(&uid)
    }

    /// Ends one hold: the fork of this run is in the log, or will never be.
    pub(crate) fn release(&mut self, parent: RunUid) {
        if let Some(count) = self.0.get_mut(&parent) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&parent);
            }
        }
    }
}

/// A run that was dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppedRun {
    /// Its uid. Its name is not stored.
    pub uid: RunUid,
    /// Number of its frames, shared ones included.
    pub frames: u32,
    /// Number of frames that it shared with its parent.
    pub shared: u32,
    /// When it began, nanoseconds since 1970-01-01 UTC.
    pub started_ns: u64,
    /// When it was dropped, nanoseconds since 1970-01-01 UTC.
    pub dropped_ns: u64,
    /// The rule that dropped it.
    pub rule: String,
    /// The reason given for dropping it; empty if none was given.
    pub why: String,
}

/// What is dropped with a run.
#[derive(Debug, Default)]
pub(crate) struct DroppedParts {
    /// Forks of blames.
    pub(crate) forks: Vec<RunUid>,
    /// Keys of belongings.
    pub(crate) deleted: Vec<DeletedKey>,
}

/// Runs that can be dropped together, and those among them that cannot, and why.
type BlameFamily = (Vec<RunFields>, Vec<(RunUid, DropBlocker)>);

/// A run that no rule may drop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// The run's uid.
    pub uid: RunUid,
    /// The reason given for the pin.
    pub why: String,
    /// When it was pinned, nanoseconds since 1970-01-01 UTC.
    pub pinned_ns: u64,
}

/// The stored value of a pin.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct PinValue {
    why: String,
    pinned_ns: u64,
}

/// Why a run cannot be dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DropBlocker {
    Open,
    Pinned,
    Forking,
    /// A person flagged it after the policy judged it.
    Flagged,
}

impl DropBlocker {
    fn error(self, what: &str) -> Error {
        Error::conflict(match self {
            Self::Open => format!("{what} is open: end it first"),
            Self::Pinned => format!("{what} is pinned: unpin it first"),
            Self::Forking => format!("a fork of {what} is about to begin: wait for it"),
            Self::Flagged => format!("{what} was flagged meanwhile"),
        })
    }
}

impl From<TombstoneHead> for DroppedRun {
    fn from(head: TombstoneHead) -> Self {
        Self {
            uid: head.run,
            frames: head.frames,
            shared: head.parent.map_or(0, |(_, shared, _)| shared),
            started_ns: head.started_ns,
            dropped_ns: head.dropped_ns,
            rule: head.rule,
            why: head.why,
        }
    }
}

impl Namespace {
    /// Opens a run by its uid.
    ///
    /// # Errors
    /// `Gone`, with time and rule, if the run was dropped; `NotFound`, `Damaged`, `Unavailable`.
    pub fn run_by_uid(&self, uid: RunUid) -> Result<RunReader> {
        RunReader::open(self.store.core(), self.id, uid)
    }

    /// Drops a run and the forks of its blame: reading them then fails with `Gone`. Other forks keep the frames
    /// they share. On disk when this returns.
    ///
    /// # Errors
    /// `Conflict` if the run or a fork of its blame is open or pinned, or a fork of it is about to begin; `NotFound` or `Gone` if
    /// there is no run of this name; `Invalid` if the rule or reason is too long or has control characters;
    /// `Unavailable`, `Poisoned`.
    pub fn drop_run(&self, run: &str, rule: &str, why: &str) -> Result<DroppedRun> {
        self.drop_and_list(run, rule, why, &mut DroppedParts::default())
    }

    /// As [`Namespace::drop_run`]; adds what is dropped with the run to `parts`.
    pub(crate) fn drop_and_list(
        &self,
        run: &str,
        rule: &str,
        why: &str,
        parts: &mut DroppedParts,
    ) -> Result<DroppedRun> {
        let uid = self.run(run)?.info().uid;
        let (mut dropped, DroppedParts { forks, deleted }) = (None, parts);
        let scope = BelongingScope::All;
        let mut each = |head: TombstoneHead| match head.run == uid {
            true => dropped = Some(head),
            false => forks.push(head.run),
        };
        let held = self.drop_each(&[uid], (rule, why, scope), &mut each, &mut |some| deleted.extend(some))?;
        if let Some((of, held)) = held.first() {
            return Err(match *of == uid {
                true => held.error(&format!("run {run:?}")),
                false => {
                    let fork = self.run_by_uid(*of)?.info().name.clone();
                    held.error(&format!("run {fork:?}, a fork of the blame of {run:?},"))
                }
            });
        }
        // Nothing is read after the commit: a failed read would call the drop failed.
        if let Some(head) = dropped {
            return Ok(head.into());
        }
        match find_run_or_tombstone(self.store.core(), self.id, uid)? {
            Some(RunOrTombstone::Dropped(head)) => Ok(head.into()),
            _ => Err(Error::conflict(format!("run {run:?} was replaced meanwhile"))),
        }
    }

    /// Drops orphaned forks of blames: those whose parent is gone. Adds them to `parts`.
    pub(crate) fn drop_orphans(
        &self,
        uids: &[RunUid],
        (rule, why): (&str, &str),
        parts: &mut DroppedParts,
    ) -> Result<()> {
        let DroppedParts { forks, deleted } = parts;
        let mut each = |head: TombstoneHead| forks.push(head.run);
        let all = (rule, why, BelongingScope::All);
        let held = self.drop_each(uids, all, &mut each, &mut |some| deleted.extend(some))?;
        match held.first() {
            Some((of, held)) => {
                let fork = self.run_by_uid(*of)?.info().name.clone();
                Err(held.error(&format!("run {fork:?}, a fork of a blame,")))
            }
            None => Ok(()),
        }
    }

    /// Drops runs by retention, many in one commit; returns the runs that could not be dropped, and why. Runs
    /// that are gone already are skipped. Their lasting belongings stay. Forks of their blames go with them. `judged_ns`
    /// is when the policy began to judge these runs: those that a person has flagged since stay.
    pub(crate) fn drop_runs(
        &self,
        uids: &[RunUid],
        rule: &str,
        judged_ns: u64,
    ) -> Result<Vec<(RunUid, DropBlocker)>> {
        let since = BelongingScope::Passing { judged_ns };
        self.drop_each(uids, (rule, "", since), &mut drop, &mut drop)
    }

    /// Like [`Namespace::drop_runs`]. `each` is called with the tombstone of each run before it is committed, `deleted`
    /// with the keys of belongings after each commit that deletes them.
    fn drop_each(
        &self,
        uids: &[RunUid],
        (rule, why, scope): (&str, &str, BelongingScope),
        each: &mut dyn FnMut(TombstoneHead),
        deleted: &mut dyn FnMut(Vec<DeletedKey>),
    ) -> Result<Vec<(RunUid, DropBlocker)>> {
        check_text("the rule by which a run is dropped", rule, 1, RULE_BYTES_MAX)?;
        check_text("the reason why a run is dropped", why, 0, WHY_BYTES_MAX)?;
        let core = self.store.core();
        // Dropping runs is how a full disk gets room again.
        let _reserve = core.log()?.queue.use_reserve();
        let mut held = Vec::new();
        // Made here, so that a commit of drops finds it.
        let names = match uids.is_empty() {
            true => return Ok(held),
            false => dropped_names::keyspace(core, self.id)?,
        };
        for some in uids.chunks(BATCH_RUNS_MAX) {
            let forking = lock(&self.store.recording().forking);
            let dropped_ns = core.io.now_ns();
            let mut writer = BatchWriter::new(core, self.id)?;
            let mut belongings = Belongings::open(core, self.id)?;
            for uid in some {
                let (family, blocked) = self.blame_family(&forking, *uid)?;
                // Retention leaves a pinned fork as it is. A person who asks for one run decides about it first.
                let decides = |of: RunUid| of == *uid || scope == BelongingScope::All;
                let held_by = match (blocked.into_iter().find(|(of, _)| decides(*of)), scope) {
                    (None, BelongingScope::Passing { judged_ns }) => {
                        self.is_flagged_since(&family, judged_ns)?.then_some((*uid, DropBlocker::Flagged))
                    }
                    (found, _) => found,
                };
                if let Some(found) = held_by {
                    held.push(found);
                    continue;
                }
                for fields in family {
                    let head = TombstoneHead {
                        namespace: self.id,
                        run: fields.uid,
                        frames: fields.frames,
                        started_ns: fields.started_ns,
                        parent: fields.parent,
                        dropped_ns,
                        rule: rule.to_owned(),
                        why: why.to_owned(),
                    };
                    writer.add_record(kinds::TOMBSTONE, &head.encode(), &[])?;
                    dropped_names::note(&names, &fields.name, &head, &mut writer)?;
                    let scope = if fields.uid == *uid { scope } else { BelongingScope::All };
                    belongings.delete(fields.uid, scope, &mut writer)?;
                    each(head);
                }
            }
            // Wait under the lock, so that the next holder of the lock sees these runs as dropped.
            if let Some((_, ticket)) = writer.submit_awaited(Durability::Disk)? {
                ticket.wait()?;
            }
            deleted(belongings.finish());
        }
        Ok(held)
    }

    /// A living run and the forks of its blame, with forks of their blames: those that can be dropped, and those
    /// that cannot, and why. Nothing of a run that cannot be dropped is looked at.
    fn blame_family(&self, forking: &PendingForks, uid: RunUid) -> Result<BlameFamily> {
        let core = self.store.core();
        let (mut family, mut blocked) = (Vec::new(), Vec::new());
        let run = run_record(core, self.id, uid)?.map(|(head, _)| head.fields);
        let mut left: Vec<RunFields> = run.into_iter().filter(|fields| !fields.gone).collect();
        while let Some(fields) = left.pop() {
            match self.drop_blocker(forking, fields.uid, fields.status)? {
                Some(why) => blocked.push((fields.uid, why)),
                None => {
                    left.extend(blame_forks(core, self.id, fields.uid, &fields.name)?);
                    family.push(fields);
                }
            }
        }
        Ok((family, blocked))
    }

    /// Whether a person has flagged one of these runs since.
    fn is_flagged_since(&self, runs: &[RunFields], since_ns: u64) -> Result<bool> {
        for fields in runs {
            if self.flag_of(fields.uid)?.is_some_and(|flag| flag.flagged_ns >= since_ns) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Pins a run: it cannot be dropped until it is unpinned. Replaces an existing pin. On disk when this
    /// returns.
    ///
    /// # Errors
    /// `NotFound`, `Gone`; `Invalid` if the reason is empty, too long or has control characters;
    /// `Unavailable`, `Poisoned`.
    pub fn pin(&self, run: &str, why: &str) -> Result<Pin> {
        check_text("the reason why a run is pinned", why, 1, WHY_BYTES_MAX)?;
        let core = self.store.core();
        let keyspace = self.keyspace(PINS, History::Latest)?;
        let _forking = lock(&self.store.recording().forking);
        let uid = self.run(run)?.info().uid;
        let pin = Pin { uid, why: why.to_owned(), pinned_ns: core.io.now_ns() };
        let kept = PinValue { why: pin.why.clone(), pinned_ns: pin.pinned_ns };
        let kept = serde_json::to_vec(&kept).map_err(|e| Error::bug(e.to_string()))?;
        let mut batch = self.batch();
        batch.put(&keyspace, &uid.0.to_be_bytes(), kept);
        batch.submit_with(Durability::Disk)?.wait()?;
        Ok(pin)
    }

    /// Removes a run's pin; returns whether it had one. On disk when this returns.
    ///
    /// # Errors
    /// `NotFound`, `Gone`, `Unavailable`, `Poisoned`.
    pub fn unpin(&self, run: &str) -> Result<bool> {
        let uid = self.run(run)?.info().uid;
        let Some(keyspace) = self.find_keyspace(PINS)? else { return Ok(false) };
        let _forking = lock(&self.store.recording().forking);
        let key = uid.0.to_be_bytes();
        if keyspace.get(&key)?.is_none() {
            return Ok(false);
        }
        let mut batch = self.batch();
        batch.delete(&keyspace, &key);
        batch.submit_with(Durability::Disk)?.wait()?;
        Ok(true)
    }

    /// The pins of this namespace, in the order of the runs' uids.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn pins(&self) -> Result<Vec<Pin>> {
        let mut pins = BTreeMap::new();
        let Some(keyspace) = self.find_keyspace(PINS)? else { return Ok(Vec::new()) };
        for pair in keyspace.scan(ScanRange::all()) {
            let (key, value) = pair?;
            let Ok(number) = <[u8; 8]>::try_from(key.as_slice()) else { continue };
            let uid = RunUid(u64::from_be_bytes(number));
            // A value that cannot be parsed still pins the run: keeping too much is safer than losing a run.
            let PinValue { why, pinned_ns } = serde_json::from_slice(&value).unwrap_or_default();
            pins.insert(uid, Pin { uid, why, pinned_ns });
        }
        Ok(pins.into_values().collect())
    }

    /// The pinned runs of this namespace. Reads no value.
    pub(crate) fn pinned_runs(&self) -> Result<HashSet<RunUid>> {
        let Some(keyspace) = self.find_keyspace(PINS)? else { return Ok(HashSet::new()) };
        let mut pinned = HashSet::new();
        for key in keyspace.scan(ScanRange::all()).keys() {
            if let Ok(number) = <[u8; 8]>::try_from(key?.as_slice()) {
                pinned.insert(RunUid(u64::from_be_bytes(number)));
            }
        }
        Ok(pinned)
    }

    /// Calls `each` for every dropped run of this namespace, in the order of uids. Replaced runs are left
    /// out.
    ///
    /// # Errors
    /// Errors of `each`; `Damaged`, `Unavailable`.
    pub fn dropped(&self, each: &mut dyn FnMut(DroppedRun) -> Result<()>) -> Result<()> {
        let core = self.store.core();
        let prefix = run_keys::runs(self.id);
        let mut after: Option<Vec<u8>> = None;
        loop {
            let _pin = core.pin();
            let (hits, more) = core.index.ended_keys(&prefix, after.as_deref(), PAGE_KEYS)?;
            for hit in hits {
                let place = keys::place(hit.value);
                let head = core.read_logical_any(
                    place,
                    &[kinds::RUN, kinds::TOMBSTONE],
                    |kind, logical| match kind {
                        kinds::TOMBSTONE => TombstoneHead::parse(logical.head).map(Some),
                        _ => Ok(None),
                    },
                )?;
                if let Some(head) = head {
                    each(head.into())?;
                }
            }
            match more {
                Some(last) => after = Some(last),
                None => return Ok(()),
            }
        }
    }

    /// Whether a run has a pin.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn is_pinned(&self, uid: RunUid) -> Result<bool> {
        match self.find_keyspace(PINS)? {
            Some(pins) => Ok(pins.get(&uid.0.to_be_bytes())?.is_some()),
            None => Ok(false),
        }
    }

    /// The reason why a run cannot be dropped, if there is one.
    fn drop_blocker(&self, forking: &PendingForks, uid: RunUid, status: u8) -> Result<Option<DropBlocker>> {
        Ok(if status == Status::Open.code() {
            Some(DropBlocker::Open)
        } else if self.is_pinned(uid)? {
            Some(DropBlocker::Pinned)
        } else if forking.is_parent(uid) {
            Some(DropBlocker::Forking)
        } else {
            None
        })
    }

    /// Fails if the run of this name is pinned: a pinned run cannot be replaced.
    pub(crate) fn check_replaceable(&self, name: &str) -> Result<()> {
        match find_living_run(self.store.core(), self.id, name)? {
            Some(uid) if self.is_pinned(uid)? => {
                Err(Error::conflict(format!("run {name:?} is pinned: unpin it before it is replaced")))
            }
            _ => Ok(()),
        }
    }
}

/// Whether a run was dropped.
pub(crate) fn is_dropped(core: &Arc<Core>, namespace: NamespaceId, uid: RunUid) -> Result<bool> {
    Ok(matches!(find_run_or_tombstone(core, namespace, uid)?, Some(RunOrTombstone::Dropped(_))))
}

impl DroppedRun {
    /// Number of its own frames: gone with the run, except those that its forks share.
    #[must_use]
    pub fn own_frames(&self) -> u32 {
        self.frames.saturating_sub(self.shared)
    }
}
