//! Forgetting a run on request, and what of it is left where.

use std::collections::BTreeSet;

use crate::error::{Error, Result};
use crate::ids::{RunUid, SegmentId, Seqno};
use crate::kv::keys;
use crate::kv::{History, ScanRange};
use crate::log::queue::Durability;
use crate::store::{Namespace, Store};
use crate::trace::DroppedRun;
use crate::trace::heads::RunHead;
use crate::trace::kinds;
use crate::trace::model::check_text;
use crate::trace::reader::{RunOrTombstone, find_run_or_tombstone};
use crate::trace::run_keys;
use crate::upkeep::retention::{FORGET, OWN_NAMESPACE};

const BACKUPS: &str = "annals.backups";
/// Greatest length of a backup's place, in bytes.
const PLACE_BYTES_MAX: usize = 4096;

/// What still holds bytes of a run that was dropped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunRemnants {
    /// Of its frames the first so many stay, since living forks share them.
    pub shared: u32,
    /// Log files with records of it, until compaction has rewritten them.
    pub segments: Vec<String>,
    /// Files with vectors of its snapshots, until then.
    pub vectors: Vec<String>,
    /// Where backups were made to that may hold it.
    pub backups: Vec<String>,
}

/// A backup that the store was told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupNote {
    /// Where it went.
    pub place: String,
    /// When, nanoseconds since 1970-01-01 UTC.
    pub made_ns: u64,
}

impl Store {
    /// Keeps in the store itself that a backup of it was made, so that whoever has a run forgotten is told where else it may be. On
    /// disk when this returns.
    ///
    /// # Errors
    /// `Invalid` for a place that is empty or too long, or in a store open for reading; `Unavailable`, `Poisoned`.
    pub fn note_backup(&self, place: &str) -> Result<()> {
        check_text("where a backup goes", place, 1, PLACE_BYTES_MAX)?;
        let space = self.namespace(OWN_NAMESPACE)?;
        let keyspace = space.keyspace(BACKUPS, History::Latest)?;
        let made_ns = self.core().io.now_ns();
        let mut batch = space.batch();
        batch.put(&keyspace, place.as_bytes(), made_ns.to_le_bytes().to_vec());
        batch.submit_with(Durability::Disk)?.wait().map(drop)
    }

    /// The backups that the store was told of, by where they went; the newest of each place.
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

    /// Whether the store was closed cleanly, and nobody wrote to it, when this was opened.
    #[must_use]
    pub fn was_closed_cleanly(&self) -> bool {
        !self.core().recovered
    }
}

impl Namespace {
    /// Drops a run because somebody asked for it. What still holds its bytes, [`Namespace::still_held`] says.
    ///
    /// # Errors
    /// As [`Namespace::drop_run`]; `Invalid` without a reason.
    pub fn forget(&self, run: &str, why: &str) -> Result<DroppedRun> {
        if why.trim().is_empty() {
            return Err(Error::invalid("say why the run is forgotten: the ledger keeps that"));
        }
        self.drop_run(run, FORGET, why)
    }

    /// A run that was dropped, and what still holds its bytes.
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
                segments.insert(keys::place(hit.value).segment);
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

    /// The last frame of a run that a living fork shares, directly or through forks that were dropped.
    fn last_shared_frame(&self, uid: RunUid) -> Result<u32> {
        let core = self.store.core();
        let mut last = 0;
        let _pin = core.pin();
        for hit in core.index.scan_prefix(&run_keys::runs(self.id), Seqno(u64::MAX))? {
            let fields = core
                .read_logical(keys::place(hit.value), kinds::RUN, |logical| RunHead::parse(logical.head))?
                .fields;
            let (mut parent, mut upto) = (fields.parent, u32::MAX);
            // A parent is always older: this ends.
            while let Some((of, shared, _)) = parent.filter(|(of, ..)| *of >= uid) {
                upto = upto.min(shared);
                if of == uid {
                    last = last.max(upto);
                    break;
                }
                parent = match find_run_or_tombstone(core, self.id, of)? {
                    Some(RunOrTombstone::Run(head, _)) => head.fields.parent,
                    Some(RunOrTombstone::Dropped(head)) => head.parent,
                    None => None,
                };
            }
        }
        Ok(last)
    }
}

#[cfg(test)]
mod tests;
