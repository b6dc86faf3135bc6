//! Reads the segments once, in log order: finds what their live records reference, and how much of each
//! segment is dead.
//!
//! It skips over records by their lengths; only live records are read and checked. Dead records are checked
//! when their segment is rewritten.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use crate::blob::{Extent, GroupId};
use crate::codec::{ByteReader, CodecError, index};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{NamespaceId, RecordPlace, RunUid};
use crate::log::layout::{
    BatchForm, BatchHeader, LONG_BATCH_HEADER_BYTES, RECORD_HEADER_BYTES_MAX, RecordHeader,
    SEGMENT_HEADER_BYTES,
};
use crate::log::record::{BodyRef, EmbeddingHead, GroupRest, KvHead, LogicalBody, RecipeRef, RecordKind};
use crate::log::rewrite::JOINED_BYTES;
use crate::log::segments::{Segment, lock};
use crate::sync::{Mutex, rank};
use crate::trace::frame_cache::{FrameCache, FrameRecord};
use crate::trace::heads::{FrameHead, PartHead, RunHead, SnapshotHead};
use crate::trace::kinds;
use crate::trace::reader::RunReader;
use crate::upkeep::compact::live::LiveRecords;
use crate::upkeep::compact::mark::{MarkedRun, MarkedStore};
use crate::upkeep::compact::run::Pace;
use crate::upkeep::compact::workers::run_jobs;
use crate::upkeep::deadlines::KeyPattern;
use crate::upkeep::forget::{ContentOwner, ForgottenKey, SharedContent};
use annals_store::kv::bodies;
use annals_store::kv::core::Core;

/// Bytes that one read takes from a segment that is not mapped.
const WINDOW_BYTES: usize = 64 << 10;
/// Bytes of a group part's record that are enough to identify its group.
const PART_FRONT_BYTES: usize = 48;
/// Maximum number of cached run readers for finding bodies.
const READERS_MAX: usize = 256;

/// About as many bytes stand for a batch that is joined with others.
const JOINED_ENTRY_BYTES: u64 = 8;

/// What a compaction knows about one sealed segment.
#[derive(Debug)]
pub(super) struct SegmentWeight {
    pub(super) segment: Arc<Segment>,
    /// Size of the file.
    pub(super) bytes: u64,
    /// Estimate of the dead bytes.
    pub(super) dead: u64,
    /// Estimate of the bytes that joining its batches saves.
    pub(super) joins: u64,
    /// Bytes of ends, which are dropped only if all earlier segments are rewritten, too.
    pub(super) ends: u64,
    pub(super) groups: Vec<GroupWeight>,
    /// Bytes of bodies that are packed as they were recorded.
    pub(super) as_recorded: u64,
    /// The segment holds a record of a run that must go.
    pub(super) holds_wanted: bool,
}

/// The sizes of a group's parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupWeight {
    pub(super) group: GroupId,
    pub(super) namespace: NamespaceId,
    pub(super) raw_bytes: u64,
    pub(super) stored_bytes: u64,
}

/// The start of a record, read without its whole body.
struct RecordFront<'a> {
    kind: u8,
    layout: u8,
    place: RecordPlace,
    /// The first bytes of the body.
    front: &'a [u8],
}

/// A segment to weigh: its file size, the end of its readable batches, and its live records.
type SegmentJob = (Arc<Segment>, u64, u64, Mutex<LiveRecords, { rank::LIVE_BYTES }>);

/// What must go, however little it is.
pub(super) struct MustGo {
    runs: Vec<RunUid>,
    /// Keyspaces and keys.
    keys: HashSet<(u32, Vec<u8>)>,
    /// Their entries in the index of deadlines.
    deadlines: Vec<KeyPattern>,
    /// The ranges of groups that hold values of those keys.
    ranges: HashMap<GroupId, Vec<Range<u32>>>,
}

impl MustGo {
    pub(super) fn new(runs: &[RunUid], keys: &[ForgottenKey]) -> Self {
        let mut ranges: HashMap<GroupId, Vec<Range<u32>>> = HashMap::new();
        for extent in keys.iter().flat_map(|gone| &gone.extents) {
            ranges.entry(extent.group).or_default().push(extent.offset..extent.end());
        }
        let deadlines =
            keys.iter().flat_map(|gone| &gone.deadlines).map(|(pattern, _)| pattern.clone()).collect();
        let keys = keys.iter().map(|gone| (gone.space, gone.key.clone())).collect();
        Self { runs: runs.to_vec(), keys, deadlines, ranges }
    }

    fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.keys.is_empty()
    }

    /// How many bytes of these extents are bytes of keys that must go.
    fn shared_bytes(&self, extents: &[Extent]) -> u64 {
        let shared = extents.iter().filter_map(|extent| Some((extent, self.ranges.get(&extent.group)?)));
        let overlap = |extent: &Extent, range: &Range<u32>| {
            extent.end().min(range.end).saturating_sub(extent.offset.max(range.start))
        };
        shared
            .map(|(extent, ranges)| {
                ranges.iter().map(|range| u64::from(overlap(extent, range))).max().unwrap_or(0)
            })
            .sum()
    }
}

/// Weighs each segment, and lists the living data that shares bytes with keys that must go. `segments` holds each
/// segment with its file size and the end of its readable batches.
pub(super) fn weigh(
    core: &Arc<Core>,
    marked: &mut MarkedStore,
    segments: Vec<(Arc<Segment>, u64, u64)>,
    wanted: MustGo,
    pace: Pace,
) -> Result<(Vec<SegmentWeight>, Vec<SharedContent>)> {
    let runs = Arc::new(std::mem::take(&mut marked.runs));
    let segments: Vec<SegmentJob> = segments
        .into_iter()
        .map(|(segment, bytes, tail)| {
            let live = marked.live.take(segment.id);
            (segment, bytes, tail, Mutex::new(live))
        })
        .collect();
    let (of, wanted) = (core.clone(), Arc::new(wanted));
    let runs_of = runs.clone();
    let weighed = run_jobs(&*core.io, segments.len(), move |at| {
        let Some((segment, bytes, tail, live)) = segments.get(at) else {
            return Err(Error::bug("a weighing job has no segment"));
        };
        let mut live = std::mem::take(&mut *lock(live));
        // Each job has its own cache: threads would contend for a shared one at every frame.
        let known = Arc::new(FrameCache::new());
        let mut names = ReferenceFinder {
            core: &of,
            runs: &runs_of,
            known,
            readers: HashMap::new(),
            wanted: &wanted,
            sharers: BTreeMap::new(),
        };
        let weighed = weigh_segment(&mut names, &mut live, (segment, *bytes, *tail), &pace)?;
        Ok((weighed, live, names.sharers))
    });
    let (mut all, mut sharers) = (Vec::new(), BTreeMap::new());
    for (weighed, live, some) in weighed? {
        marked.live.put_back(live);
        all.push(weighed);
        for (owner, bytes) in some {
            *sharers.entry(owner).or_insert(0) += bytes;
        }
    }
    marked.runs =
        Arc::into_inner(runs).ok_or_else(|| Error::bug("a job still uses the shared table of runs"))?;
    marked.live.add_extents(&core.fence.held_extents());
    marked.live.sort_ranges();
    for weighed in &mut all {
        let dead: u64 = weighed.groups.iter().map(|group| group.dead_bytes(&marked.live)).sum();
        weighed.dead += dead;
    }
    let sharers = sharers.into_iter().map(|(owner, bytes)| SharedContent { owner, bytes }).collect();
    Ok((all, sharers))
}

impl GroupWeight {
    /// Whether some bytes of the group are unreferenced.
    pub(super) fn has_dead(&self, live: &LiveRecords) -> bool {
        live.group_bytes(self.group) < self.raw_bytes
    }

    fn dead_bytes(&self, live: &LiveRecords) -> u64 {
        let dead = self.raw_bytes.saturating_sub(live.group_bytes(self.group));
        let share = u128::from(self.stored_bytes) * u128::from(dead) / u128::from(self.raw_bytes.max(1));
        u64::try_from(share).unwrap_or(self.stored_bytes)
    }
}

fn weigh_segment(
    names: &mut ReferenceFinder<'_>,
    live: &mut LiveRecords,
    (segment, bytes, tail): (&Arc<Segment>, u64, u64),
    pace: &Pace,
) -> Result<SegmentWeight> {
    let mut weighed = SegmentWeight {
        segment: segment.clone(),
        bytes,
        dead: 0,
        joins: 0,
        ends: 0,
        groups: Vec::new(),
        as_recorded: 0,
        holds_wanted: false,
    };
    let mut by_group: HashMap<GroupId, usize> = HashMap::new();
    let mut window = SegmentWindow { segment, bytes: Vec::new(), at: 0 };
    let mut told = 0;
    let mut at = SEGMENT_HEADER_BYTES;
    while at < tail {
        let wrong = |what: &str| Error::damaged(&segment.path, at, what);
        let front = LONG_BATCH_HEADER_BYTES.min(index(tail - at));
        let (_, header) = BatchHeader::peek(window.get(at, front)?).map_err(|e| wrong(&e.to_string()))?;
        let end = at + u64::from(header.bytes);
        let own_bytes = header.own_bytes();
        let records_end = at + header.records_end() as u64;
        let mut record_at = at + header.form.header_bytes() as u64;
        if end > tail || end < records_end || records_end < record_at {
            return Err(wrong("a batch ends past the segment's last one"));
        }
        let (mut living, mut put_lives) = (0, false);
        while record_at < records_end {
            let passed = window.record(record_at, records_end, header.form)?;
            let bytes = u64::from(passed.place.len);
            record_at += bytes;
            let place = passed.place;
            match RecordKind::parse(passed.kind, passed.layout).map_err(|e| wrong(&e.to_string()))? {
                // Records of an optional unknown kind can be dropped: every reader may skip them.
                None => weighed.dead += bytes,
                Some(RecordKind::GroupPart | RecordKind::GroupRest) => {
                    if passed.kind == RecordKind::GroupPart.code() {
                        weighed.as_recorded += bytes;
                    }
                    let part = group_weight(segment, &passed).map_err(|e| wrong(&e.to_string()))?;
                    let spot = *by_group.entry(part.group).or_insert(weighed.groups.len());
                    match weighed.groups.get_mut(spot) {
                        Some(group) => {
                            group.raw_bytes += part.raw_bytes;
                            group.stored_bytes += part.stored_bytes;
                        }
                        None => weighed.groups.push(part),
                    }
                    living += 1;
                }
                Some(RecordKind::Erased | RecordKind::ErasedBatches) => living += 1,
                Some(kind) => {
                    // The embeddings of a value follow its put record and live as long as it.
                    if kind == RecordKind::Embedding && put_lives {
                        live.keep(place);
                    }
                    put_lives = kind == RecordKind::Put && live.has_record(segment.id, place.offset);
                    let wanted = names.wanted;
                    weighed.holds_wanted |= !wanted.is_empty() && is_wanted(segment, kind, place, wanted)?;
                    if live.has_record(segment.id, place.offset) {
                        living += 1;
                        if live.is_end(segment.id, place.offset) {
                            weighed.ends += bytes;
                        }
                        names.note_extents(live, segment, kind, place)?;
                    } else if kind == kinds::TOMBSTONE {
                        // The record of a drop is never dropped itself.
                        live.keep(place);
                        living += 1;
                    } else {
                        weighed.dead += bytes;
                    }
                }
            }
        }
        if living == 0 {
            weighed.dead += own_bytes;
        } else if !matches!(header.form, BatchForm::Joined { .. }) && end - at < JOINED_BYTES as u64 {
            weighed.joins += own_bytes - JOINED_ENTRY_BYTES;
        }
        at = end;
        if at - told >= 1 << 20 {
            pace.advance(at - told)?;
            told = at;
        }
    }
    pace.advance(at.saturating_sub(told))?;
    Ok(weighed)
}

/// The size that one record adds to its group.
fn group_weight(segment: &Segment, passed: &RecordFront<'_>) -> Result<GroupWeight> {
    let stored_bytes = u64::from(passed.place.len);
    let wrong = |e: CodecError| Error::damaged(&segment.path, u64::from(passed.place.offset), e);
    if passed.kind == RecordKind::GroupRest.code() {
        return segment.with_record(passed.place, |record| {
            let rest = GroupRest::parse(record.body).map_err(wrong)?;
            let raw_bytes = rest.ranges.iter().map(|range| u64::from(range.end - range.start)).sum();
            Ok(GroupWeight { group: GroupId(rest.group), namespace: rest.namespace, raw_bytes, stored_bytes })
        });
    }
    let mut r = ByteReader::new(passed.front, "group part");
    let mut front = || {
        let (group, namespace) = (GroupId(r.varint()?), NamespaceId(r.varint32()?));
        let _raw_start = r.varint32()?;
        Ok(GroupWeight { group, namespace, raw_bytes: u64::from(r.varint32()?), stored_bytes })
    };
    front().map_err(wrong)
}

/// Whether a logical record belongs to one of the runs or keys in `wanted`.
fn is_wanted(segment: &Segment, kind: RecordKind, place: RecordPlace, wanted: &MustGo) -> Result<bool> {
    segment.with_record(place, |record| {
        let wrong = |e: CodecError| Error::damaged(&segment.path, u64::from(place.offset), e);
        let head = LogicalBody::of(&record).map_err(wrong)?.head;
        let run = match kind {
            kinds::RUN => RunHead::parse(head).map(|head| head.fields.uid),
            kinds::FRAME => FrameHead::peek(head).map(|(run, _)| run),
            kinds::FRAME_PART => PartHead::parse(head).map(|head| head.run),
            kinds::SNAPSHOT => SnapshotHead::parse(head).map(|head| head.run),
            RecordKind::Put | RecordKind::Delete if !wanted.keys.is_empty() => {
                let head = KvHead::parse(kind, head).map_err(wrong)?;
                let is_deadline = wanted.deadlines.iter().any(|gone| gone.matches(head.space, &head.key));
                return Ok(is_deadline || wanted.keys.contains(&(head.space, head.key)));
            }
            _ => return Ok(false),
        };
        Ok(wanted.runs.contains(&run.map_err(wrong)?))
    })
}

/// A buffered window over a segment's bytes.
struct SegmentWindow<'a> {
    segment: &'a Segment,
    bytes: Vec<u8>,
    at: u64,
}

impl SegmentWindow<'_> {
    /// `len` bytes from offset `at`.
    fn get(&mut self, at: u64, len: usize) -> Result<&[u8]> {
        let short = || Error::damaged(&self.segment.path, at, "the file ends before a record");
        if let Some(map) = self.segment.mapped() {
            return map.get(index(at)..).and_then(|rest| rest.get(..len)).ok_or_else(short);
        }
        let held = at >= self.at && at + len as u64 <= self.at + self.bytes.len() as u64;
        if !held {
            let end = (at + WINDOW_BYTES.max(len) as u64).min(self.segment.file.len()?);
            if end < at + len as u64 {
                return Err(short());
            }
            self.segment.read_range(at, end, &mut self.bytes)?;
            self.at = at;
        }
        let from = index(at - self.at);
        self.bytes
            .get(from..)
            .and_then(|rest| rest.get(..len))
            .ok_or_else(|| Error::bug("a segment window lacks bytes"))
    }

    /// The record at offset `at`, in a batch of this form that ends at `end`.
    fn record(&mut self, at: u64, end: u64, form: BatchForm) -> Result<RecordFront<'_>> {
        let segment = self.segment;
        let wrong = |what: &str| Error::damaged(&segment.path, at, what);
        let bytes = self.get(at, RECORD_HEADER_BYTES_MAX.min(index(end.saturating_sub(at))))?;
        let header = RecordHeader::peek(bytes, form).map_err(|e| wrong(&e.to_string()))?;
        let RecordHeader { kind, layout, bytes: len, header_bytes, .. } = header;
        if at + u64::from(len) > end {
            return Err(wrong("a record is longer than its batch"));
        }
        let body = len as usize - header_bytes;
        let front = self.get(at + header_bytes as u64, body.min(PART_FRONT_BYTES))?;
        // Writers stop before 4 GiB. A forged segment may be longer.
        let offset = u32::try_from(at).map_err(|_| wrong("a record begins beyond 4 GiB"))?;
        Ok(RecordFront { kind, layout, place: RecordPlace { segment: segment.id, offset, len }, front })
    }
}

/// Finds the extents that live records reference.
struct ReferenceFinder<'a> {
    core: &'a Arc<Core>,
    runs: &'a BTreeMap<RunUid, MarkedRun>,
    known: Arc<FrameCache>,
    readers: HashMap<RunUid, RunReader>,
    wanted: &'a MustGo,
    /// Living data that shares bytes with keys that must go.
    sharers: BTreeMap<ContentOwner, u64>,
}

impl ReferenceFinder<'_> {
    /// Notes that `owner` refers to these extents.
    fn add_extents(
        &mut self,
        live: &mut LiveRecords,
        extents: &[Extent],
        owner: impl FnOnce() -> ContentOwner,
    ) {
        live.add_extents(extents);
        if !self.wanted.ranges.is_empty() {
            let shared = self.wanted.shared_bytes(extents);
            if shared > 0 {
                *self.sharers.entry(owner()).or_insert(0) += shared;
            }
        }
    }

    /// Marks the extents of the bodies that a live record references.
    fn note_extents(
        &mut self,
        live: &mut LiveRecords,
        segment: &Segment,
        kind: RecordKind,
        place: RecordPlace,
    ) -> Result<()> {
        let wrong = |e: CodecError| Error::damaged(&segment.path, u64::from(place.offset), e);
        segment.with_record(place, |record| {
            let logical = LogicalBody::of(&record).map_err(wrong)?;
            let alone = |body: &BodyRef, tail: &mut ByteReader<'_>| match body {
                BodyRef::Blob { len, .. } => {
                    let recipe = RecipeRef::take(tail, *len).map_err(wrong)?;
                    bodies::decode_extents(recipe, |_| Err(Error::bug("this recipe has a base")))
                }
                _ => Ok(Arc::default()),
            };
            let mut tail = ByteReader::new(logical.tail, "record tail");
            match kind {
                RecordKind::Put => {
                    let head = KvHead::parse(RecordKind::Put, logical.head).map_err(wrong)?;
                    let (space, key) = (head.space, head.key);
                    if let Some(value) = &head.value {
                        let extents = alone(value, &mut tail)?;
                        self.add_extents(live, &extents, || ContentOwner::Key { space, key });
                    }
                }
                kinds::RUN => {
                    let head = RunHead::parse(logical.head).map_err(wrong)?;
                    let extents = alone(&head.metadata, &mut tail)?;
                    self.add_extents(live, &extents, || ContentOwner::Run(head.fields.uid));
                }
                kinds::FRAME_PART => {
                    let head = PartHead::parse(logical.head).map_err(wrong)?;
                    let extents = alone(&head.body, &mut tail)?;
                    self.add_extents(live, &extents, || ContentOwner::Run(head.run));
                }
                kinds::FRAME => {
                    let frame = Arc::new(FrameRecord::parse(logical).map_err(wrong)?);
                    let run = frame.head.run;
                    for extents in self.reader(run)?.own_extents(&frame)? {
                        self.add_extents(live, &extents, || ContentOwner::Run(run));
                    }
                }
                kinds::SNAPSHOT => {
                    let head = SnapshotHead::parse(logical.head).map_err(wrong)?;
                    for extents in self.reader(head.run)?.own_snapshot_extents(&head, logical.tail)? {
                        self.add_extents(live, &extents, || ContentOwner::Run(head.run));
                    }
                }
                RecordKind::Embedding => {
                    let head = EmbeddingHead::parse(logical.head).map_err(wrong)?;
                    for (_, vector) in &head.embeddings {
                        live.add_extents(&alone(vector, &mut tail)?);
                    }
                }
                _ => {}
            }
            Ok(())
        })
    }

    fn reader(&mut self, uid: RunUid) -> Result<&RunReader> {
        if self.readers.len() >= READERS_MAX && !self.readers.contains_key(&uid) {
            self.readers.clear();
        }
        match self.readers.entry(uid) {
            std::collections::hash_map::Entry::Occupied(known) => Ok(known.into_mut()),
            std::collections::hash_map::Entry::Vacant(room) => {
                let run = self.runs.get(&uid).ok_or_else(|| {
                    Error::new(ErrorKind::Damaged, format!("the record of run {} is missing", uid.0))
                })?;
                Ok(room.insert(RunReader::for_marking(self.core, run.namespace, uid, self.known.clone())?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use super::*;
    use crate::ids::{SegmentId, StoreId};
    use crate::io::{Io, OpenMode, ReadMode, RealIo};
    use crate::log::layout::{seal_record, start_record};
    use crate::log::record::LAYOUT;

    /// A forged segment may be longer than 4 GiB. The offset of a record beyond that was cut to 32 bits, so the
    /// record was judged as the one at the cut offset, and compaction could drop what lives.
    #[test]
    fn record_beyond_4_gib_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("forged.seg");
        let file = RealIo::new().open(&path, OpenMode::CreateNew).unwrap();
        let mut record = Vec::new();
        let start = start_record(&mut record, RecordKind::Put.code(), LAYOUT);
        record.extend_from_slice(b"body");
        seal_record(&mut record, start);
        // The file is sparse, so it takes a few blocks of the disk.
        let (within, beyond) = (u64::from(u32::MAX) - 20, 1 << 32);
        let end = beyond + record.len() as u64;
        for at in [within, beyond] {
            file.write_at(&[IoSlice::new(&record)], at).unwrap();
        }
        for mode in [ReadMode::Mapped, ReadMode::Positional] {
            let segment = Segment::new(StoreId([7; 16]), SegmentId(3), path.clone(), file.clone());
            segment.mark_sealed(mode);
            let mut window = SegmentWindow { segment: &segment, bytes: Vec::new(), at: 0 };
            let place = window.record(within, end, BatchForm::Short).unwrap().place;
            assert_eq!((u64::from(place.offset), place.len), (within, record.len() as u32), "{mode:?}");
            let Err(error) = window.record(beyond, end, BatchForm::Short) else {
                panic!("{mode:?}: the record was read")
            };
            assert_eq!(error.kind(), ErrorKind::Damaged, "{mode:?}: {error}");
            assert!(error.to_string().contains("byte 4294967296: a record begins beyond 4 GiB"), "{error}");
        }
    }
}
