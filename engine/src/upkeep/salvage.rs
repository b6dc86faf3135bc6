//! Everything of a log that checks, wherever it stands.
//!
//! Batches are looked for, so that one that is damaged costs itself and not what follows; in the bytes between two of
//! them single records are. A record counts only if its own checksum and its batch's place in the chain allow it: a
//! batch that the next one (or the footer, or the next segment's header) names by another digest has been changed by
//! somebody who could compute checksums, and is not believed. What a body holds is proven later, by its id.
//!
//! Invariants: nothing is written; records keep their order; every number that no record has is in `lost`.
//!
//! Left out: sectors that cannot be read. That is an error, not damage: copy the disk first.

use std::collections::{BTreeSet, HashMap};

use crate::codec::CodecError;
use crate::error::Result;
use crate::ids::{RecordPlace, SegmentId, Seqno};
use crate::kv::keys;
use crate::kv::table::IndexEntry;
use crate::log::cursor::{BatchSearch, LogCursor, for_each_checked_record, next_seqno};
use crate::log::erased::seqnos_of;
use crate::log::layout::{BatchHeader, ChainDigest, RawRecord, SEGMENT_HEADER_BYTES, chain_digest};
use crate::log::open::{Damage, sealed_footer};
use crate::log::record::{GroupPart, GroupRest, LogicalBody, RecordKind};
use crate::log::segments::Segment;
use crate::trace::heads::{FrameHead, PartHead, RunHead, SnapshotHead, TombstoneHead};
use crate::trace::kinds;
use crate::trace::schema::RunSchema;
use crate::upkeep::directory::{SegmentFile, StoreDirectory};
use crate::upkeep::repair_report::LostItem;
use annals_store::schema::RecordSchema;

/// Batches are looked for only with numbers up to so many after the last one that is known.
const AHEAD_MAX: u64 = 1 << 40;

/// A record of a key or of a name, in the log's order.
#[derive(Debug, Clone, Copy)]
pub(super) struct SalvagedRecord {
    pub(super) kind: RecordKind,
    pub(super) place: RecordPlace,
    pub(super) seqno: Seqno,
    /// Records of one batch have one number.
    pub(super) batch: u64,
    /// Where the record of its vectors stands, which follows it.
    pub(super) vectors: Option<RecordPlace>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Salvage {
    /// Names and keys.
    pub(super) kept: Vec<SalvagedRecord>,
    /// Runs that any record speaks of.
    pub(super) runs: BTreeSet<u64>,
    /// Namespaces that groups and runs speak of.
    pub(super) namespaces: BTreeSet<u32>,
    pub(super) batches: u64,
    pub(super) damage: Vec<Damage>,
    pub(super) lost: Vec<LostItem>,
    next: u64,
    /// The log ends in bytes that are neither whole nor zeros.
    torn_end: bool,
    pending: Option<PendingBatch>,
    groups: HashMap<u64, PartChain>,
}

/// A batch's records, until what follows has had its say.
#[derive(Debug)]
struct PendingBatch {
    /// `None`: records found in bytes that make no batch. Nothing can speak against them.
    digest: Option<ChainDigest>,
    path: std::path::PathBuf,
    offset: u64,
    from: Seqno,
    to: Seqno,
    entries: Vec<IndexEntry>,
    kept: Vec<SalvagedRecord>,
    parts: Vec<(GroupPartPlace, Seqno, RecordPlace)>,
    runs: Vec<u64>,
    namespaces: Vec<u32>,
}

/// What a group's part says of its place in the group.
#[derive(Debug, Clone, Copy)]
struct GroupPartPlace {
    group: u64,
    raw_start: u32,
    raw_len: u32,
    before: (u32, u32),
}

/// Up to where a group's parts follow each other, and the last of them.
#[derive(Debug, Clone, Copy)]
struct PartChain {
    segment: SegmentId,
    raw_end: u32,
    last: (u32, u32),
}

/// Reads all of the log that checks. `index` takes the entries that lead to it.
///
/// # Errors
/// `Unavailable` where a file cannot be read.
pub(super) fn salvage(site: &StoreDirectory, index: &mut dyn FnMut(Vec<IndexEntry>)) -> Result<Salvage> {
    let mut all = Salvage { next: 1, ..Salvage::default() };
    let last = site.segments.last().map(|standing| standing.segment.id);
    for standing in &site.segments {
        all.read_segment(standing, Some(standing.segment.id) == last, index)?;
    }
    all.check_log_end(site, index);
    Ok(all)
}

impl Salvage {
    fn read_segment(
        &mut self,
        standing: &SegmentFile,
        last: bool,
        index: &mut dyn FnMut(Vec<IndexEntry>),
    ) -> Result<()> {
        let SegmentFile { segment, header, len } = standing;
        let schema = RunSchema::new();
        if let Some(header) = header {
            self.check_follows(header.first_seqno.0, Some(header.chain), &segment.path, index);
        }
        // Positions in a segment are 32 bits wide; nothing of ours stands behind.
        let len = (*len).min(u64::from(u32::MAX));
        let footer = match sealed_footer(segment, len) {
            Ok(footer) => Some(footer),
            Err(error) if !last && error.kind() == crate::ErrorKind::Damaged => {
                self.note(segment, len, "its footer is not what was written".to_owned());
                None
            }
            Err(error) if error.kind() == crate::ErrorKind::Damaged => None,
            Err(error) => return Err(error),
        };
        let end = footer.as_ref().map_or(len, |footer| footer.tail);
        let mut cursor = LogCursor::new(segment.file.clone(), segment.salt, SEGMENT_HEADER_BYTES, end);
        let mut budget = cursor.search_budget(SEGMENT_HEADER_BYTES);
        loop {
            let before = cursor.at;
            let numbers = self.next..=self.next.saturating_add(AHEAD_MAX);
            let batch = match cursor.search_batch(&numbers, &mut budget)? {
                BatchSearch::Batch(batch) => batch,
                BatchSearch::End | BatchSearch::BudgetSpent => {
                    self.torn_end = self.read_gap(segment, before, end, index)?;
                    break;
                }
            };
            let (offset, digest) = (batch.offset, chain_digest(batch.whole));
            let Ok((_, header)) = BatchHeader::peek(batch.whole) else { continue };
            if offset > before {
                self.read_gap(segment, before, offset, index)?;
            }
            self.check_follows(header.first_seqno.0, Some(header.prev), &segment.path, index);
            // Where that cannot be read, nothing of the batch is taken.
            let many = header.first_seqno.0.saturating_add(u64::from(header.records));
            let to = next_seqno(batch.whole, offset, segment.salt).unwrap_or(Seqno(many));
            let from = header.first_seqno;
            let mut pending = PendingBatch::new(segment, offset, Some(digest), from, to);
            let batch_number = self.batches;
            self.batches += 1;
            let read = for_each_checked_record(batch.whole, offset, segment.salt, |at, seqno, record| {
                pending.note(&*schema, &record, seqno, record_place(segment, at, record.bytes), batch_number)
            });
            self.next = to.0;
            match read {
                Ok(()) => self.pending = Some(pending),
                Err(error) => {
                    let what = format!("a batch's records do not check: {error}");
                    self.reject_batch(segment.path.clone(), offset, from, to, &what);
                }
            }
        }
        if let Some(footer) = footer {
            self.check_follows(footer.state.next_seqno.0, Some(footer.own_chain()), &segment.path, index);
        } else if segment.id.is_rewritten() {
            // What comes next names the batch that stood here before.
            self.settle(None, index);
        }
        Ok(())
    }

    /// Bytes that make no batch: zeros that are written ahead, a tear, or damage in which single records may be whole.
    /// Says whether they are anything but zeros.
    fn read_gap(
        &mut self,
        segment: &Segment,
        from: u64,
        to: u64,
        index: &mut dyn FnMut(Vec<IndexEntry>),
    ) -> Result<bool> {
        let mut cursor = LogCursor::new(segment.file.clone(), segment.salt, from, to);
        if from >= to || cursor.only_zeros_after(from)? {
            return Ok(false);
        }
        self.settle(None, index);
        let mut budget = cursor.search_budget(from);
        let start = Seqno(self.next);
        let schema = RunSchema::new();
        let mut pending = PendingBatch::new(segment, from, None, start, start);
        let mut found = 0;
        while let Some((at, whole)) = cursor.search_record(&mut budget)? {
            let len = whole.len() as u32;
            let noted = RawRecord::of(whole).and_then(|record| {
                pending.note(
                    &*schema,
                    &record,
                    Seqno(self.next),
                    record_place(segment, at, len),
                    self.batches,
                )?;
                seqnos_of(&record)
            });
            if let Ok(seqnos) = noted {
                self.next = self.next.saturating_add(seqnos);
                found += 1;
            }
        }
        self.batches += 1;
        let what = format!("{} bytes are no whole batch; {found} records of them are whole", to - from);
        self.note(segment, from, what);
        pending.to = Seqno(self.next);
        pending.settle(self, index);
        Ok(true)
    }

    /// What comes next says which number it has, and by which digest it follows.
    fn check_follows(
        &mut self,
        first: u64,
        prev: Option<ChainDigest>,
        path: &std::path::Path,
        index: &mut dyn FnMut(Vec<IndexEntry>),
    ) {
        let adjacent = self.pending.as_ref().is_some_and(|pending| pending.to.0 == first);
        self.settle(prev.filter(|_| adjacent), index);
        if first > self.next {
            let why = format!("nothing of them is whole before {}", path.display());
            self.note_lost_records(self.next, Some(first - 1), why);
            self.next = first;
        }
    }

    /// Takes in what was pending, unless `prev` speaks against it.
    fn settle(&mut self, prev: Option<ChainDigest>, index: &mut dyn FnMut(Vec<IndexEntry>)) {
        let Some(pending) = self.pending.take() else { return };
        if let (Some(prev), Some(digest)) = (prev, pending.digest)
            && prev != digest
        {
            let what =
                "a batch is not the one that what follows it names: it was changed after it was written";
            self.reject_batch(pending.path, pending.offset, pending.from, pending.to, what);
            return;
        }
        pending.settle(self, index);
    }

    fn reject_batch(&mut self, file: std::path::PathBuf, offset: u64, from: Seqno, to: Seqno, what: &str) {
        self.damage.push(Damage { file, offset, what: what.to_owned() });
        if to > from {
            self.note_lost_records(from.0, Some(to.0 - 1), what.to_owned());
        }
    }

    fn note_lost_records(&mut self, from: u64, to: Option<u64>, why: String) {
        self.lost.push(LostItem::Records { from: Seqno(from), to: to.map(Seqno), why });
    }

    fn note(&mut self, segment: &Segment, offset: u64, what: String) {
        self.damage.push(Damage { file: segment.path.clone(), offset, what });
    }

    /// What the manifest knows of the log's end.
    fn check_log_end(&mut self, site: &StoreDirectory, index: &mut dyn FnMut(Vec<IndexEntry>)) {
        let Ok(loaded) = &site.manifest else { return self.settle(None, index) };
        let state = &loaded.state;
        let path = site.segments.last().map(|standing| standing.segment.path.clone());
        if let Some(clean) = &state.clean {
            let chain = Some(clean.state.chain);
            return self.check_follows(
                clean.state.next_seqno.0,
                chain,
                path.as_deref().unwrap_or("its end".as_ref()),
                index,
            );
        }
        self.settle(None, index);
        let active = state.segments.last().and_then(|entry| site.segment(entry.id));
        if active.is_some_and(|standing| standing.len < state.synced) {
            self.note_lost_records(self.next, None, "the last segment was cut short".to_owned());
        } else if active.is_some() && self.torn_end {
            let why = "bytes after the last whole batch: a crash tore them, or they are damaged";
            self.note_lost_records(self.next, None, why.to_owned());
        }
        if state.segments.last().is_some_and(|entry| site.segment(entry.id).is_none()) {
            self.note_lost_records(self.next, None, "the last segment is missing".to_owned());
        }
    }
}

fn record_place(segment: &Segment, at: u64, len: u32) -> RecordPlace {
    RecordPlace { segment: segment.id, offset: at as u32, len }
}

impl PendingBatch {
    fn new(segment: &Segment, offset: u64, digest: Option<ChainDigest>, from: Seqno, to: Seqno) -> Self {
        Self {
            digest,
            path: segment.path.clone(),
            offset,
            from,
            to,
            entries: Vec::new(),
            kept: Vec::new(),
            parts: Vec::new(),
            runs: Vec::new(),
            namespaces: Vec::new(),
        }
    }

    /// Takes in a record, or nothing of it.
    fn note(
        &mut self,
        schema: &dyn RecordSchema,
        record: &RawRecord<'_>,
        seqno: Seqno,
        place: RecordPlace,
        batch: u64,
    ) -> std::result::Result<(), CodecError> {
        let Some(kind) = RecordKind::parse(record.kind, record.layout)? else { return Ok(()) };
        if kind == RecordKind::GroupPart {
            let part = GroupPart::parse(record.body)?;
            self.namespaces.push(part.namespace.0);
            let noted = GroupPartPlace {
                group: part.group,
                raw_start: part.raw_start,
                raw_len: part.raw_len,
                before: (part.before_offset, part.before_len),
            };
            self.parts.push((noted, seqno, place));
            return Ok(());
        }
        if kind == RecordKind::GroupRest {
            let rest = GroupRest::parse(record.body)?;
            self.namespaces.push(rest.namespace.0);
            // All of it stands here, so nothing else can follow.
            let noted = GroupPartPlace { group: rest.group, raw_start: 0, raw_len: u32::MAX, before: (0, 0) };
            self.parts.push((noted, seqno, place));
            return Ok(());
        }
        if !kind.is_logical() {
            return Ok(());
        }
        let mut entries = Vec::new();
        keys::derive_entries(schema, record, seqno, place, &mut entries)?;
        let head = LogicalBody::parse(record.body)?.head;
        match kind {
            RecordKind::Put | RecordKind::Delete | RecordKind::Space => {
                self.kept.push(SalvagedRecord { kind, place, seqno, batch, vectors: None });
            }
            RecordKind::Embedding => {
                if let Some(put) = self.kept.last_mut().filter(|kept| kept.seqno.0 + 1 == seqno.0) {
                    put.vectors = Some(place);
                }
            }
            kinds::FRAME => self.runs.push(FrameHead::peek(head)?.0.0),
            kinds::FRAME_PART => self.runs.push(PartHead::parse(head)?.run.0),
            kinds::SNAPSHOT => self.runs.push(SnapshotHead::parse(head)?.run.0),
            kinds::RUN => {
                let fields = RunHead::parse(head)?.fields;
                self.runs.push(fields.uid.0);
                self.namespaces.push(fields.namespace.0);
            }
            kinds::TOMBSTONE => {
                let head = TombstoneHead::parse(head)?;
                self.runs.push(head.run.0);
                self.namespaces.push(head.namespace.0);
            }
            RecordKind::Schema(_)
            | RecordKind::GroupPart
            | RecordKind::GroupRest
            | RecordKind::Erased
            | RecordKind::ErasedBatches => {}
        }
        self.entries.append(&mut entries);
        Ok(())
    }

    fn settle(mut self, all: &mut Salvage, index: &mut dyn FnMut(Vec<IndexEntry>)) {
        for (part, seqno, place) in self.parts {
            let at = (place.offset, place.len);
            // Only parts that all others before them lead to can ever be decoded; the index names the last of those.
            let follows = match all.groups.get(&part.group) {
                None => part.raw_start == 0,
                Some(chain) => {
                    chain.segment == place.segment
                        && chain.raw_end == part.raw_start
                        && chain.last == part.before
                }
            };
            if follows {
                let raw_end = part.raw_start.saturating_add(part.raw_len);
                all.groups.insert(part.group, PartChain { segment: place.segment, raw_end, last: at });
                let key = keys::group(part.group);
                self.entries.push(IndexEntry {
                    key,
                    seqno: seqno.0,
                    value: keys::record_value(keys::AT_PLACE, place),
                });
            }
        }
        all.kept.append(&mut self.kept);
        all.runs.extend(self.runs);
        all.namespaces.extend(self.namespaces);
        index(self.entries);
    }
}
