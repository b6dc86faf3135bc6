//! What reading a store needs: the index, the segments, the groups that were decoded; and how a store that is open for reading
//! follows the log that another process writes.

use std::sync::Arc;

use crate::codec::CodecError;
use crate::error::{Error, Result};
use crate::ids::{RecordPlace, SegmentId, Seqno, StoreId};
use crate::io::{File, Io};
use crate::kv::catalogue::SpaceNames;
use crate::kv::core::{OpeningReport, Options};
use crate::kv::groups::GroupCache;
use crate::kv::index::Index;
use crate::kv::keys;
use crate::kv::table::IndexEntry;
use crate::log::cursor::for_each_checked_record;
use crate::log::joined::LogBatch;
use crate::log::layout::{LogState, RawRecord, SEGMENT_HEADER_BYTES};
use crate::log::manifest::VectorList;
use crate::log::open::{FoundLog, find};
use crate::log::paths::StorePaths;
use crate::log::record::{LogicalBody, RecordKind};
use crate::log::scan::{ScanEnd, scan, scan_between, scan_states};
use crate::log::segments::{SegmentPin, Segments, lock};
use crate::log::totals::LogTotals;
use crate::schema::RecordSchema;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, RwLock, rank};

/// A clock that is more than this ahead of the newest record is ignored: 400 days.
pub const AHEAD_NS_MAX: u64 = 400 * 86_400 * 1_000_000_000;

/// Whether a clock is at most [`AHEAD_NS_MAX`] ahead of the newest record. `newest_ns` is 0 if there is no
/// record.
pub fn is_plausible_time(now_ns: u64, newest_ns: u64) -> bool {
    newest_ns == 0 || now_ns <= newest_ns.saturating_add(AHEAD_NS_MAX)
}

/// How far a reader beside a writer has read the log.
#[derive(Debug)]
pub(super) struct LogFollower {
    pub(super) end: (SegmentId, u64),
    pub(super) state: LogState,
    pub(super) _lock: Option<Arc<dyn File>>,
}

/// The state of the log at the end of a published batch.
#[derive(Debug, Clone)]
pub(super) struct CountedLog {
    end: (SegmentId, u64),
    state: LogState,
}

/// See the module.
#[derive(Debug)]
pub struct StoreReader {
    pub io: Arc<dyn Io>,
    pub options: Options,
    pub paths: StorePaths,
    pub store: StoreId,
    pub index: Arc<Index>,
    pub segments: RwLock<Arc<Segments>, { rank::SEGMENTS }>,
    pub groups: GroupCache,
    /// What the layer above says about its records.
    pub schema: Arc<dyn RecordSchema>,
    /// All names, once they were read; see [`crate::kv::catalogue`].
    pub(super) spaces: RwLock<Option<Arc<SpaceNames>>, { rank::SPACE_NAMES }>,
    pub(super) followed: Mutex<Option<LogFollower>, { rank::FOLLOWED }>,
    /// The newest end of the log that [`StoreReader::log_state`] counted up to, in a store open for writing.
    pub(super) counted: Mutex<Option<CountedLog>, { rank::COUNTED_LOG }>,
    /// The last opening for writing followed a crash.
    pub recovered: bool,
    pub opening: OpeningReport,
    /// See [`StoreReader::newest_ns`].
    pub(super) newest_ns: AtomicU64,
    /// The vector files that the manifest listed at the opening.
    pub vectors: VectorList,
}

impl StoreReader {
    /// Keeps readable every place that the index leads to from now on.
    pub fn pin(&self) -> SegmentPin {
        crate::log::segments::read_lock(&self.segments).pin()
    }

    /// Calls `then` with the parts of the logical record at `place`, which must be of the kind `expected`.
    pub fn read_logical<T>(
        &self,
        place: RecordPlace,
        expected: RecordKind,
        then: impl FnOnce(LogicalBody<'_>) -> std::result::Result<T, CodecError>,
    ) -> Result<T> {
        self.read_logical_any(place, &[expected], |_, logical| then(logical))
    }

    /// Like `Core::read_logical`, but the record may be of any of the kinds `expected`.
    pub fn read_logical_any<T>(
        &self,
        place: RecordPlace,
        expected: &[RecordKind],
        then: impl FnOnce(RecordKind, LogicalBody<'_>) -> std::result::Result<T, CodecError>,
    ) -> Result<T> {
        let segment = crate::log::segments::read_lock(&self.segments).get(place.segment)?;
        segment.with_record(place, |record: RawRecord<'_>| {
            let wrong = |what: String| Error::damaged(&segment.path, u64::from(place.offset), what);
            let kind = match RecordKind::parse(record.kind, record.layout)
                .map_err(|e| wrong(e.to_string()))?
            {
                Some(kind) if expected.contains(&kind) => kind,
                other => {
                    let expected: Vec<String> = expected.iter().map(|kind| self.kind_name(*kind)).collect();
                    let other =
                        other.map_or("None".to_owned(), |kind| format!("Some({})", self.kind_name(kind)));
                    return Err(wrong(format!(
                        "the index expects a record of [{}] here, found {other}",
                        expected.join(", ")
                    )));
                }
            };
            LogicalBody::of(&record).and_then(|logical| then(kind, logical)).map_err(|e| wrong(e.to_string()))
        })
    }

    fn kind_name(&self, kind: RecordKind) -> String {
        match kind {
            RecordKind::Schema(kind) => self.schema.kind_name(kind).to_owned(),
            own => format!("{own:?}"),
        }
    }

    pub fn segment(&self, id: SegmentId) -> Result<Arc<crate::log::segments::Segment>> {
        crate::log::segments::read_lock(&self.segments).get(id)
    }

    /// The state of the log at its current end (counts, bytes by kind, the ledger), and the counts that
    /// remain after compactions. Reads the part of the active segment that no table, sealed footer or clean close
    /// covers.
    ///
    /// A writer names the last seqno that is published as `published`, and gets the state there: a batch whose sync
    /// failed, or is under way, is in the file already. It reads only what follows the end of the last call.
    pub fn log_state(&self, published: Option<Seqno>) -> Result<(LogState, LogTotals)> {
        let found = find(&*self.io, &self.paths, false, false, self.options.read_mode)?;
        let covered = CountedLog { end: found.state.covers, state: found.state.covers_state.clone() };
        let is_usable = |counted: &CountedLog| {
            Some(counted.state.last_seqno()) <= published
                && found.state.position(counted.end) > found.state.position(covered.end)
        };
        let counted = lock(&self.counted).clone().filter(is_usable).unwrap_or(covered);
        let is_last = |state: &LogState| Some(state.last_seqno()) == published;
        let mut last = is_last(&counted.state).then(|| counted.clone());
        let CountedLog { end, state } = counted;
        let end = scan_states(&*self.schema, &found, end, state, &mut |batch, segment, state| {
            if is_last(state) {
                let end = (segment.id, batch.offset + batch.whole.len() as u64);
                last = Some(CountedLog { end, state: state.clone() });
            }
            Ok(())
        })?;
        let state = match last {
            Some(last) => {
                *lock(&self.counted) = Some(last.clone());
                last.state
            }
            None => end.state,
        };
        let held = state.totals.minus(&found.state.erased);
        Ok((state, held))
    }

    /// Reads on from where the last read ended. If the tables now cover more than that, reads on from their
    /// end and drops the entries in memory. Only for stores open for reading.
    pub fn refresh(&self) -> Result<()> {
        let mut guard = lock(&self.followed);
        let Some(followed) = guard.as_mut() else { return Ok(()) };
        let found = find(&*self.io, &self.paths, false, false, self.options.read_mode)?;
        // New segments must be readable before the index names them. Old ones stay readable while it names
        // them.
        let segments = crate::log::segments::read_lock(&self.segments).clone();
        segments.adopt(&found.segments);
        let read_to = found.state.position(followed.end);
        // If the segment that was read last is gone, a compaction has moved its records.
        let is_further = read_to
            .is_none_or(|to| found.state.position(found.state.covers).is_some_and(|covers| covers > to));
        let rest = |followed: &LogFollower| match read_to {
            Some(_) => read_from(&*self.schema, &found, followed.end, followed.state.clone()),
            None => read_after(&*self.schema, &found, followed.state.last_seqno()),
        };
        let (end, entries) = match is_further {
            true => {
                let (end, entries) =
                    read_from(&*self.schema, &found, found.state.covers, found.state.covers_state.clone())?;
                match self.index.reload(&found.state, entries, end.state.last_seqno()) {
                    true => {
                        segments.retire_unlisted();
                        (end, Vec::new())
                    }
                    false => rest(followed)?,
                }
            }
            false => rest(followed)?,
        };
        self.index.insert(entries);
        self.index.set_visible(end.state.last_seqno());
        self.newest_ns.store(end.state.newest_ns, Ordering::Relaxed);
        let generation_lock = found.into_reader_lock();
        *followed = LogFollower { end: (end.segment, end.tail), state: end.state, _lock: generation_lock };
        drop(guard);
        self.load_catalogue().map(drop)
    }

    /// The position up to which the log was read; `None` in a store open for writing.
    pub fn read_position(&self) -> Option<(SegmentId, u64)> {
        lock(&self.followed).as_ref().map(|followed| followed.end)
    }

    /// The time of the newest batch since opening, without batches whose clock was ignored.
    pub fn newest_ns(&self) -> u64 {
        self.newest_ns.load(Ordering::Relaxed)
    }

    /// Notes the time of a batch. A clock far ahead is ignored: it would make everything due that has a
    /// deadline.
    pub fn note_time(&self, now_ns: u64) {
        if is_plausible_time(now_ns, self.newest_ns()) {
            self.newest_ns.fetch_max(now_ns, Ordering::Relaxed);
        }
    }
}

/// Calls `each` with every record of a batch.
pub(super) fn visit_records(
    batch: &LogBatch<'_>,
    segment: &crate::log::segments::Segment,
    mut each: impl FnMut(&RawRecord<'_>, RecordPlace, Seqno) -> std::result::Result<(), CodecError>,
) -> Result<()> {
    for_each_checked_record(batch, segment.salt, |at, seqno, record| {
        each(&record, RecordPlace { segment: segment.id, offset: at, len: record.bytes }, seqno)
    })
    .map_err(|e| Error::damaged(&segment.path, batch.offset, e))
}

/// Reads the log from a position on. Returns its end and the index entries.
fn read_from(
    schema: &dyn RecordSchema,
    found: &FoundLog,
    from: (SegmentId, u64),
    state: LogState,
) -> Result<(ScanEnd, Vec<IndexEntry>)> {
    let mut entries = Vec::new();
    let end = scan(schema, found, from, state, &mut |batch, segment| {
        visit_records(batch, segment, |record, place, seqno| {
            keys::derive_entries(schema, record, seqno, place, &mut entries)
        })
    })?;
    match &end.damage {
        Some(damage) => Err(damage.error()),
        None => Ok((end, entries)),
    }
}

/// Reads the records after a seqno, wherever they are now. Returns the log's end and the index entries.
fn read_after(
    schema: &dyn RecordSchema,
    found: &FoundLog,
    last: Seqno,
) -> Result<(ScanEnd, Vec<IndexEntry>)> {
    let (mut newer, mut entries) = (Vec::new(), Vec::new());
    let covers = found.state.covers;
    // The segments before hold only what was read.
    let first = found.state.segments.iter().rfind(|entry| entry.first_seqno.0 <= last.0 + 1);
    let from = first.map(|entry| (entry.id, SEGMENT_HEADER_BYTES));
    if from.is_none_or(|from| found.state.position(from) < found.state.position(covers)) {
        scan_between(found, from, covers, &mut |batch, segment, next| {
            if next > Seqno(last.0 + 1) {
                visit_records(batch, segment, |record, place, seqno| {
                    keys::derive_entries(schema, record, seqno, place, &mut entries)
                })?;
                newer.extend(entries.drain(..).filter(|entry| entry.seqno > last.0));
            }
            Ok(())
        })?;
    }
    let (end, rest) = read_from(schema, found, found.state.covers, found.state.covers_state.clone())?;
    newer.extend(rest);
    Ok((end, newer))
}
