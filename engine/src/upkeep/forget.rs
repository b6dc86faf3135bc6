//! Drops a run on request, and reports where its bytes remain.

use std::collections::{BTreeSet, HashSet};

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{RunUid, SegmentId, Seqno};
use crate::log::queue::Durability;
use crate::store::{Namespace, Store};
use crate::trace::dropped_names;
use crate::trace::dropping::DroppedParts;
use crate::trace::model::check_text;
use crate::trace::reader::{RunOrTombstone, find_run_or_tombstone};
use crate::trace::run_keys;
use crate::trace::{DeletedKey, DroppedRun};
use crate::upkeep::compact::CompactOptions;
use crate::upkeep::deadlines::{DeadlineKind, KeyPattern};
use crate::upkeep::retention::{FORGET, OWN_NAMESPACE};
use annals_store::kv::keys as index_keys;
use annals_store::kv::{History, ScanRange};

mod keys;

pub(crate) use keys::ContentOwner;
pub use keys::{ContentHolder, ForgottenKey, SharedContent};

const BACKUPS: &str = "annals.backups";
/// Maximum length of a backup's place, in bytes.
const PLACE_BYTES_MAX: usize = 4096;

/// Where bytes of a dropped run remain.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunRemnants {
    /// Number of its first frames that stay because living forks share them.
    pub shared: u32,
    /// Log files with its records, until compaction rewrites them.
    pub segments: Vec<String>,
    /// Files with vectors of its snapshots, until compaction removes them.
    pub vectors: Vec<String>,
    /// Places of backups that may hold the run.
    pub backups: Vec<String>,
}

/// A run that was forgotten, and what a compaction must erase of it.
#[derive(Debug, Clone)]
pub struct ForgottenRun {
    /// The run.
    pub run: DroppedRun,
    /// Number of forks of its blame, which were dropped with it.
    pub blame_forks: u32,
    /// All runs of its name that were forgotten: those that retention dropped earlier, too; and forks of their blames.
    uids: Vec<RunUid>,
    /// Keys that belonged to them.
    deleted: Vec<DeletedKey>,
    /// Their entries in the index of deadlines, up to a record.
    deadlines: Vec<(KeyPattern, Seqno)>,
}

impl ForgottenRun {
    /// The options of a compaction that erases the run's bytes, and those of its memories, decisions and other
    /// belongings, whatever share of a log file they are.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn compact_options(&self, space: &Namespace) -> Result<CompactOptions> {
        let must_go_keys = self.deleted.iter().map(|(keyspace, key)| space.forgotten(keyspace, key));
        let mut must_go_keys: Vec<ForgottenKey> = must_go_keys.collect::<Result<_>>()?;
        if let Some(first) = must_go_keys.first_mut() {
            first.deadlines.clone_from(&self.deadlines);
        }
        Ok(CompactOptions { must_go: self.uids.clone(), must_go_keys, ..CompactOptions::default() })
    }
}

/// A backup that was noted in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupNote {
    /// The place that it was written to.
    pub place: String,
    /// Time of the backup, in nanoseconds since 1970-01-01 UTC.
    pub made_ns: u64,
}

impl Store {
    /// Notes in the store that a backup was made, so that forgetting a run can name the backups that may hold
    /// it. On disk when this returns.
    ///
    /// # Errors
    /// `Invalid` for a place that is empty or too long, or in a store open for reading; `Unavailable`,
    /// `Poisoned`.
    pub fn note_backup(&self, place: &str) -> Result<()> {
        check_text("where a backup goes", place, 1, PLACE_BYTES_MAX)?;
        let space = self.namespace(OWN_NAMESPACE)?;
        let keyspace = space.keyspace(BACKUPS, History::Latest)?;
        let made_ns = self.core().io.now_ns();
        let mut batch = space.batch();
        batch.put(&keyspace, place.as_bytes(), made_ns.to_le_bytes().to_vec());
        batch.submit_with(Durability::Disk)?.wait().map(drop)
    }

    /// Removes the note of a backup that was removed. On disk when this returns.
    ///
    /// # Errors
    /// As [`Store::note_backup`].
    pub fn remove_backup_note(&self, place: &str) -> Result<()> {
        let space = self.namespace(OWN_NAMESPACE)?;
        let keyspace = space.keyspace(BACKUPS, History::Latest)?;
        let mut batch = space.batch();
        batch.delete(&keyspace, place.as_bytes());
        batch.submit_with(Durability::Disk)?.wait().map(drop)
    }

    /// The noted backups: the newest of each place.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn noted_backups(&self) -> Result<Vec<BackupNote>> {
        if !self.namespaces()?.iter().any(|name| name == OWN_NAMESPACE) {
            return Ok(Vec::new());
        }
        let Some(keyspace) = self.namespace(OWN_NAMESPACE)?.find_keyspace(BACKUPS)? else {
            return Ok(Vec::new());
        };
        let made = |pair: Result<(Vec<u8>, Vec<u8>)>| {
            let (place, value) = pair?;
            let made_ns = <[u8; 8]>::try_from(value.as_slice()).map_or(0, u64::from_le_bytes);
            Ok(BackupNote { place: String::from_utf8_lossy(&place).into_owned(), made_ns })
        };
        keyspace.scan(ScanRange::all()).map(made).collect()
    }

    /// Whether the store was clean when this handle opened it: closed in order, and not written to since.
    #[must_use]
    pub fn was_closed_cleanly(&self) -> bool {
        !self.core().recovered
    }
}

impl Namespace {
    /// Drops a run on request, and everything that belongs to it, the forks of its blame included. Of a run that was
    /// dropped earlier, it deletes what outlived it: the entries in memory. [`ForgottenRun::compact_options`] erases the
    /// bytes, and [`Namespace::run_remnants`] tells where they remain.
    ///
    /// # Errors
    /// As [`Namespace::drop_run`]; `Gone` if nothing outlived the run; `Invalid` without a reason.
    pub fn forget(&self, run: &str, why: &str) -> Result<ForgottenRun> {
        self.forget_with(run, why, false)
    }

    /// As [`Namespace::forget`], for a caller that erases the bytes next. Records of a run that was dropped earlier and
    /// that no compaction erased outlive it, too: a drop that was cut off before its compaction leaves some, and so does
    /// retention.
    ///
    /// # Errors
    /// As [`Namespace::forget`].
    pub fn forget_to_erase(&self, run: &str, why: &str) -> Result<ForgottenRun> {
        self.forget_with(run, why, true)
    }

    fn forget_with(&self, run: &str, why: &str, erases: bool) -> Result<ForgottenRun> {
        if why.trim().is_empty() {
            return Err(Error::invalid("give the reason for forgetting the run: the ledger records it"));
        }
        // What follows the drop must not fail for lack of the room that it makes.
        let _reserve = self.store.use_reserve()?;
        let mut parts = DroppedParts::default();
        let dropped = match self.drop_and_list(run, FORGET, why, &mut parts) {
            // Compaction frees the name of a dropped run.
            Err(error) if !matches!(error.kind(), ErrorKind::Gone | ErrorKind::NotFound) => {
                return Err(error);
            }
            dropped => dropped,
        };
        let orphans = self.orphaned_blame_forks(run)?;
        self.drop_orphans(&orphans, (FORGET, why), &mut parts)?;
        let DroppedParts { forks, mut deleted } = parts;
        let lasting = self.forget_lasting(run, &mut deleted)?;
        let unerased = match &dropped {
            Err(_) if erases => self.unerased_runs(run)?,
            _ => Vec::new(),
        };
        let mut uids = [forks.as_slice(), &unerased, &lasting].concat();
        let blame_forks = u32::try_from(forks.len()).unwrap_or(u32::MAX);
        let run = match (dropped, uids.last()) {
            (Ok(dropped), _) => {
                uids.push(dropped.uid);
                dropped
            }
            (Err(_), Some(uid)) => match find_run_or_tombstone(self.store.core(), self.id, *uid)? {
                Some(RunOrTombstone::Dropped(head)) => head.into(),
                _ => return Err(Error::conflict(format!("run {run:?} was replaced meanwhile"))),
            },
            (Err(error), None) => return Err(error),
        };
        let deadlines = self.forget_deadlines(&deleted)?;
        Ok(ForgottenRun { run, blame_forks, uids, deleted, deadlines })
    }

    /// The dropped runs that may have had this name and of which records of their own are left. A drop that was cut off
    /// before its compaction leaves some, and so does retention. Runs that were dropped in the same moment by the same
    /// rule are among them, since no name of a dropped run is kept.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn unerased_runs(&self, run: &str) -> Result<Vec<RunUid>> {
        let core = self.store.core();
        let Some(named) = dropped_names::find(core, self.id, run)? else { return Ok(Vec::new()) };
        let mut dropped = Vec::new();
        self.dropped(&mut |one| {
            if (one.dropped_ns, &one.rule, &one.why) == (named.dropped_ns, &named.rule, &named.why) {
                dropped.push(one.uid);
            }
            Ok(())
        })?;
        let mut unerased = Vec::new();
        for uid in dropped {
            let shared = self.last_shared_frame(uid)?;
            let _pin = core.pin();
            let frames = core.index.scan_prefix(&run_keys::frames(uid), Seqno(u64::MAX))?;
            if frames.iter().any(|hit| run_keys::last_number(&hit.key).is_some_and(|seq| seq > shared)) {
                unerased.push(uid);
            }
        }
        Ok(unerased)
    }

    /// Deletes the entries of deleted memories in the index of deadlines. Returns all that they ever had.
    fn forget_deadlines(&self, deleted: &[DeletedKey]) -> Result<Vec<(KeyPattern, Seqno)>> {
        let (Some(index), Some(memories)) =
            (self.find_deadlines()?, self.find_keyspace(DeadlineKind::Memory.keyspace())?)
        else {
            return Ok(Vec::new());
        };
        let gone = deleted.iter().filter(|(keyspace, _)| keyspace.id() == memories.id());
        let gone: HashSet<&[u8]> = gone.map(|(_, key)| key.as_slice()).collect();
        if gone.is_empty() {
            return Ok(Vec::new());
        }
        let mut batch = self.batch();
        let upto = match index.remove_all(&mut batch, DeadlineKind::Memory, |id| gone.contains(id))? {
            0 => self.store.core().index.visible(),
            _ => batch.submit_with(Durability::Disk)?.wait()?,
        };
        let patterns = gone.into_iter().filter_map(|id| index.pattern(DeadlineKind::Memory, id));
        Ok(patterns.map(|pattern| (pattern, upto)).collect())
    }

    /// A dropped run, and where its bytes remain.
    ///
    /// # Errors
    /// `NotFound` for a run that was not dropped; `Damaged`, `Unavailable`.
    pub fn run_remnants(&self, uid: RunUid) -> Result<(DroppedRun, RunRemnants)> {
        let core = self.store.core();
        let Some(RunOrTombstone::Dropped(head)) = find_run_or_tombstone(core, self.id, uid)? else {
            return Err(Error::not_found(format!("run number {} was not dropped", uid.0)));
        };
        let _pin = core.pin();
        let mut segments = BTreeSet::new();
        for prefix in [run_keys::frames(uid), run_keys::all_parts(uid), run_keys::snapshots(uid)] {
            for hit in core.index.scan_prefix(&prefix, Seqno(u64::MAX))? {
                segments.insert(index_keys::place(hit.value).segment);
            }
        }
        let file = |id: &SegmentId| {
            core.paths.segment(*id).file_name().map(|name| name.to_string_lossy().into_owned())
        };
        let held = RunRemnants {
            shared: self.last_shared_frame(uid)?,
            vectors: self.store.vectors().files_with_run(self.id, uid)?,
            segments: segments.iter().filter_map(file).collect(),
            backups: self.store.noted_backups()?.into_iter().map(|made| made.place).collect(),
        };
        Ok((head.into(), held))
    }

    /// The last frame of a run that a living fork shares, directly or through dropped forks.
    fn last_shared_frame(&self, uid: RunUid) -> Result<u32> {
        let core = self.store.core();
        let mut last = 0;
        let _pin = core.pin();
        // Runs whose forks are still to be looked at, with the last frame that those can share.
        let mut left = vec![(uid, u32::MAX)];
        while let Some((of, upto)) = left.pop() {
            for hit in core.index.scan_prefix(&run_keys::forks(of), Seqno(u64::MAX))? {
                // A fork is younger than its parent, so the loop ends.
                let Some(fork) = run_keys::fork_uid(&hit.key).filter(|fork| *fork > of) else { continue };
                let (parent, lives) = match find_run_or_tombstone(core, self.id, fork)? {
                    Some(RunOrTombstone::Run(head, _)) => (head.fields.parent, !head.fields.gone),
                    Some(RunOrTombstone::Dropped(head)) => (head.parent, false),
                    None => continue,
                };
                let Some((_, shared, _)) = parent.filter(|(parent, ..)| *parent == of) else { continue };
                let upto = upto.min(shared);
                match lives {
                    true => last = last.max(upto),
                    false => left.push((fork, upto)),
                }
            }
        }
        Ok(last)
    }
}

#[cfg(test)]
mod tests;
