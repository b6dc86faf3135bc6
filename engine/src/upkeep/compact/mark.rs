//! Marks the records that the index still references. It reads only what the tables cover, and all of that is
//! durable: a record must not count as dead because of a newer one that a power cut may lose.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{NamespaceId, RecordPlace, RunUid, SegmentId, Seqno};
use crate::log::erasure::ranges_of;
use crate::log::record::{HistoryCode, KvHead, RecordKind};
use crate::log::segments::read_lock;
use crate::trace::heads::{RunHead, TombstoneHead};
use crate::trace::kinds;
use crate::trace::run_keys::{self, RunKey};
use crate::upkeep::compact::live::LiveRecords;
use crate::upkeep::deadlines::KeyPattern;
use crate::upkeep::forget::ForgottenKey;
use annals_store::kv::core::Core;
use annals_store::kv::index::CompactionBase;
use annals_store::kv::keys::{self, KeyKind};
use annals_store::kv::table::IndexValue;

/// A run according to its newest record.
#[derive(Debug)]
pub(super) struct MarkedRun {
    pub(super) namespace: NamespaceId,
    pub(super) place: RecordPlace,
    pub(super) lives: bool,
    /// Its newest record is a tombstone. Compaction never drops tombstones.
    dropped: bool,
    parent: Option<(RunUid, u32)>,
    /// A living fork needs the frames up to this one.
    pub(super) needed: Option<u32>,
}

/// The result of marking: what is live, and all runs.
#[derive(Debug, Default)]
pub(super) struct MarkedStore {
    pub(super) live: LiveRecords,
    pub(super) runs: BTreeMap<RunUid, MarkedRun>,
}

struct Marker<'a> {
    core: &'a Core,
    keep_all: bool,
    /// Forgotten keys, as the index has them, each with the record up to which its versions are dead.
    forgotten: HashMap<Vec<u8>, Seqno>,
    /// Their entries in the index of deadlines, each likewise.
    forgotten_deadlines: Vec<(KeyPattern, Seqno)>,
    now_ns: u64,
    marked: MarkedStore,
    /// All runs have been read, and the frames that forks need of them are known.
    runs_known: bool,
    /// The current key, the number of its newer versions already read, and the state derived from them.
    key: Vec<u8>,
    newer: usize,
    versions: KeyVersionState,
}

/// State of a user's key after some of its versions have been read, newest first.
#[derive(Debug, Clone, Copy, Default)]
struct KeyVersionState {
    /// The newest version is a deletion older than the horizon; no reader can ask for earlier versions.
    forgotten: bool,
    /// A version older than the horizon has been kept.
    past: bool,
}

/// Marks the live records among those that `base` references.
pub(super) fn mark(
    core: &Core,
    base: &CompactionBase,
    forgotten: &[ForgottenKey],
    stop: &dyn Fn() -> Result<()>,
) -> Result<MarkedStore> {
    let mut marker = Marker {
        core,
        keep_all: base.keep_all,
        forgotten: forgotten.iter().map(|gone| (keys::user(gone.space, &gone.key), gone.upto)).collect(),
        forgotten_deadlines: forgotten.iter().flat_map(|gone| gone.deadlines.clone()).collect(),
        now_ns: core.io.now_ns(),
        marked: MarkedStore::default(),
        runs_known: false,
        key: Vec::new(),
        newer: 0,
        versions: KeyVersionState::default(),
    };
    let mut seen = 0u64;
    base.for_each(|key, seqno, value| {
        seen += 1;
        if seen.is_multiple_of(4096) {
            stop()?;
        }
        marker.mark_entry(key, seqno, value)
    })?;
    marker.settle_runs();
    Ok(marker.marked)
}

impl Marker<'_> {
    fn mark_entry(&mut self, key: &[u8], seqno: Seqno, value: IndexValue) -> Result<()> {
        if self.key == key && !key.is_empty() {
            self.newer += 1;
        } else {
            self.key.clear();
            self.key.extend_from_slice(key);
            self.newer = 0;
            self.versions = KeyVersionState::default();
        }
        let of = keys::kind_of(key).ok_or_else(key_of_nothing)?;
        let of_run = run_keys::of(key);
        if of == KeyKind::Schema && of_run.is_none() {
            return Err(key_of_nothing());
        }
        if of != KeyKind::Space && !matches!(of_run, Some(RunKey::Run(..))) && !self.runs_known {
            self.settle_runs();
        }
        match of {
            KeyKind::User(space) if self.is_forgotten(space, key, seqno) => Ok(()),
            KeyKind::User(space) => self.mark_user_key(space, value),
            // Of the engine's own keys only the newest version counts.
            _ if self.newer > 0 => Ok(()),
            KeyKind::Space | KeyKind::Erasure => {
                self.marked.live.keep(keys::place(value));
                Ok(())
            }
            KeyKind::Schema => match of_run {
                Some(RunKey::Run(namespace, uid)) => self.mark_run(namespace, uid, value),
                Some(RunKey::Frame(uid, seq)) => {
                    if self.marked.has_frame(uid, seq) {
                        self.marked.live.keep(keys::place(value));
                    }
                    Ok(())
                }
                // The run's own key marks the record; other keys only lead to it.
                Some(RunKey::ToRun) | None => Ok(()),
            },
            // Groups live through the records that reference them; vectors through the records that they were
            // made from.
            KeyKind::Group | KeyKind::Anchor | KeyKind::Vectors => Ok(()),
        }
    }

    /// Whether this version of a user's key is one of a forgotten key.
    fn is_forgotten(&self, space: u32, key: &[u8], seqno: Seqno) -> bool {
        self.forgotten.get(key).is_some_and(|upto| seqno <= *upto)
            || (self.forgotten_deadlines.iter())
                .any(|(gone, upto)| seqno <= *upto && gone.matches(space, keys::user_part(key)))
    }

    fn mark_run(&mut self, namespace: NamespaceId, uid: RunUid, value: IndexValue) -> Result<()> {
        let place = keys::place(value);
        let lives = value.kind != keys::ENDED;
        let kinds = [kinds::RUN, kinds::TOMBSTONE];
        let (parent, dropped) = self.core.read_logical_any(place, &kinds, |kind, logical| match kind {
            kinds::TOMBSTONE => Ok((TombstoneHead::parse(logical.head)?.parent, true)),
            _ => Ok((RunHead::parse(logical.head)?.fields.parent, false)),
        })?;
        let parent = parent.map(|(parent, shared, _)| (parent, shared));
        let run = MarkedRun { namespace, place, lives, dropped, parent, needed: None };
        self.marked.runs.insert(uid, run);
        Ok(())
    }

    /// Called when all runs are read: finds the ended runs that living forks need, and marks the run records.
    fn settle_runs(&mut self) {
        if std::mem::replace(&mut self.runs_known, true) {
            return;
        }
        let MarkedStore { live, runs } = &mut self.marked;
        self.core.fence.with_held_records(|held| {
            for (parent, shared) in held {
                note_needed_frames(runs, RunUid(*parent), *shared);
            }
        });
        // A fork is always younger than its parent.
        let uids: Vec<RunUid> = runs.keys().rev().copied().collect();
        for uid in uids {
            let Some(run) = runs.get(&uid) else { continue };
            let upto = if run.lives { Some(u32::MAX) } else { run.needed };
            if let (Some(upto), Some((parent, shared))) = (upto, run.parent) {
                note_needed_frames(runs, parent, shared.min(upto));
            }
        }
        for run in runs.values() {
            match run.lives || run.dropped || run.needed.is_some() {
                true => live.keep(run.place),
                false => live.keep_end(run.place),
            }
        }
    }

    /// A version of a user's key.
    fn mark_user_key(&mut self, space: u32, value: IndexValue) -> Result<()> {
        let place = keys::place(value);
        let is_end = value.kind == keys::ENDED;
        let policy = read_lock(&self.core.index.policies).get(&space).copied();
        if self.keep_all || matches!(policy, None | Some(HistoryCode::All)) {
            self.marked.live.keep(place);
            return Ok(());
        }
        let Some(HistoryCode::AgeNs(age)) = policy else {
            if !self.core.index.is_superseded(space, self.newer) {
                match is_end && policy == Some(HistoryCode::Latest) {
                    true => self.marked.live.keep_end(place),
                    false => self.marked.live.keep(place),
                }
            }
            return Ok(());
        };
        if self.versions.forgotten || self.versions.past {
            return Ok(());
        }
        let kind = if is_end { RecordKind::Delete } else { RecordKind::Put };
        let time_ns = self.core.read_logical(place, kind, |logical| KvHead::time(logical.head))?;
        let is_old = time_ns < self.now_ns.saturating_sub(age);
        if self.newer == 0 && is_old && is_end {
            self.versions.forgotten = true;
            self.marked.live.keep_end(place);
            return Ok(());
        }
        // One version older than the horizon stays: it tells readers that earlier versions may be gone.
        self.versions.past = is_old && self.newer > 0;
        self.marked.live.keep(place);
        Ok(())
    }
}

fn key_of_nothing() -> Error {
    Error::new(ErrorKind::Damaged, "the index has a key of an unknown kind")
}

/// Notes that the frames of run `uid` up to `shared` are needed.
fn note_needed_frames(runs: &mut BTreeMap<RunUid, MarkedRun>, uid: RunUid, shared: u32) {
    if let Some(run) = runs.get_mut(&uid) {
        run.needed = run.needed.max(Some(shared));
    }
}

impl MarkedStore {
    /// Whether the newest record of a frame is live.
    fn has_frame(&self, uid: RunUid, seq: u32) -> bool {
        self.runs.get(&uid).is_some_and(|run| run.lives || run.needed.is_some_and(|needed| seq <= needed))
    }

    /// The replaced runs whose last record goes when the segments `sources` are rewritten.
    pub(super) fn erased_runs(&self, sources: &HashSet<SegmentId>) -> Vec<Range<u64>> {
        let erased = self.runs.iter().filter(|(_, run)| {
            let place = run.place;
            sources.contains(&place.segment) && !self.live.has_record(place.segment, place.offset)
        });
        ranges_of(erased.map(|(uid, _)| uid.0))
    }

    /// Whether the parents that pending forks need are marked live.
    pub(super) fn has_parents(&self, held: &[(u64, u32)]) -> bool {
        held.iter().all(|(parent, shared)| match self.runs.get(&RunUid(*parent)) {
            // The run is too young to be marked, so no segment to rewrite holds any of it.
            None => true,
            Some(run) => run.lives || run.needed.is_some_and(|needed| needed >= *shared),
        })
    }
}
