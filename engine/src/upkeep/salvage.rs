//! Reads everything of a log that passes its checks, at any position.
//!
//! It searches for batches, so that a damaged batch does not cost the ones after it. Between two batches it
//! searches for single records. A record counts only if its checksum and its batch's place in the chain are
//! right. A batch's successor is the next batch, the footer or the next segment's header. If the successor
//! names another digest, somebody who can compute checksums has changed the batch, and it is rejected. Bodies
//! are verified later, by their ids. A batch in which one byte changed is restored, if the digest that its
//! successor names confirms the result ([`super::correct`]).
//!
//! Invariants: nothing is written; records keep their order; every number that no record has is in `lost`.
//!
//! Not included: unreadable sectors. Those are an I/O error, not damage: copy the disk first.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use crate::blob::GROUP_BYTES_MAX;
use crate::codec::CodecError;
use crate::error::Result;
use crate::ids::{RecordPlace, SegmentId, Seqno};
use crate::log::cursor::{BatchSearch, LogCursor, for_each_checked_record, next_seqno};
use crate::log::erased::seqnos_of;
use crate::log::joined::LogBatch;
use crate::log::layout::{
    BatchHeader, ChainDigest, PrevDigest, RawRecord, SEGMENT_HEADER_BYTES, chain_digest,
};
use crate::log::open::Damage;
use crate::log::record::{GroupPart, GroupRest, LogicalBody, RecordKind};
use crate::log::scan::sealed_footer;
use crate::log::segments::Segment;
use crate::log::synced::SyncedNote;
use crate::trace::heads::{FrameHead, PartHead, RunHead, SnapshotHead, TombstoneHead};
use crate::trace::kinds;
use crate::trace::schema::RunSchema;
use crate::upkeep::correct::restore_changed_byte;
use crate::upkeep::directory::{SegmentFile, StoreDirectory};
use crate::upkeep::repair_report::LostItem;
use annals_store::kv::keys;
use annals_store::kv::table::IndexEntry;
use annals_store::schema::RecordSchema;

/// Greatest distance, in record numbers, between the last known record and a batch that the search accepts.
const AHEAD_MAX: u64 = 1 << 40;
/// Maximum bytes of a batch in which a changed byte is looked for.
const RESTORED_BYTES_MAX: u64 = 64 << 20;
/// Why the end of a log is in doubt.
const TORN_END: &str = "bytes after the last whole batch: a crash tore them, or they are damaged";

/// A record of a key or of a name, in log order.
#[derive(Debug, Clone, Copy)]
pub(super) struct SalvagedRecord {
    pub(super) kind: RecordKind,
    pub(super) place: RecordPlace,
    pub(super) seqno: Seqno,
    /// The batch's number; records of one batch share it.
    pub(super) batch: u64,
    /// The place of the record with this value's vectors, which follows it.
    pub(super) vectors: Option<RecordPlace>,
}

/// What was salvaged from a log, and what was lost.
#[derive(Debug, Default)]
pub(super) struct Salvage {
    /// Records of names and keys.
    pub(super) kept: Vec<SalvagedRecord>,
    /// Numbers of all runs that a record mentions.
    pub(super) runs: BTreeSet<u64>,
    /// Numbers of all namespaces that groups and runs mention.
    pub(super) namespaces: BTreeSet<u32>,
    pub(super) batches: u64,
    pub(super) damage: Vec<Damage>,
    pub(super) lost: Vec<LostItem>,
    next: u64,
    /// The log ends in bytes that are neither a whole batch nor zeros.
    torn_end: bool,
    pending: Option<PendingBatch>,
    groups: HashMap<u64, PartChain>,
}

/// The records of a batch, until its successor confirms or rejects it.
#[derive(Debug)]
struct PendingBatch {
    /// The batch's digest; `None` for records found outside of batches, which no digest can reject.
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

/// A group part's position in its group.
#[derive(Debug, Clone, Copy)]
struct GroupPartPlace {
    group: u64,
    raw_start: u32,
    raw_len: u32,
    before: (u32, u32),
}

/// The end of a group's gapless sequence of parts, and the last part of it.
#[derive(Debug, Clone, Copy)]
struct PartChain {
    segment: SegmentId,
    raw_end: u32,
    last: (u32, u32),
}

/// Reads everything of the log that passes its checks. `index` receives the index entries of those records.
///
/// # Errors
/// `Unavailable` if a file cannot be read.
pub(super) fn salvage(site: &StoreDirectory, index: &mut dyn FnMut(Vec<IndexEntry>)) -> Result<Salvage> {
    let mut all = Salvage { next: 1, ..Salvage::default() };
    let last = site.segments.last().map(|standing| standing.segment.id);
    let clean = site.manifest.as_ref().ok().and_then(|loaded| loaded.state.clean.as_ref());
    let clean_chain = clean.map(|clean| clean.state.chain.into());
    for standing in &site.segments {
        all.read_segment(standing, Some(standing.segment.id) == last, clean_chain, index)?;
    }
    all.check_log_end(site, index);
    Ok(all)
}

impl Salvage {
    fn read_segment(
        &mut self,
        standing: &SegmentFile,
        last: bool,
        clean_chain: Option<PrevDigest>,
        index: &mut dyn FnMut(Vec<IndexEntry>),
    ) -> Result<()> {
        let SegmentFile { segment, header, len, .. } = standing;
        if let Some(header) = header {
            self.check_follows(header.first_seqno.0, Some(header.chain.into()), &segment.path, index);
        }
        // Positions in a segment are 32 bits wide; the writer puts nothing behind that limit.
        let len = (*len).min(u64::from(u32::MAX));
        let footer = match sealed_footer(segment, len) {
            Ok(footer) => Some(footer),
            Err(error) if !last && error.kind() == crate::ErrorKind::Damaged => {
                self.note(segment, len, "the segment's footer is damaged".to_owned());
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
                    let wanted = footer
                        .as_ref()
                        .map(|footer| footer.own_chain().into())
                        .or(clean_chain.filter(|_| last));
                    self.torn_end = self.read_gap(standing, before..end, wanted, index)?;
                    break;
                }
            };
            if batch.offset > before {
                self.read_gap(standing, before..batch.offset, Some(batch.header.prev), index)?;
            }
            self.take_batch(segment, batch, index);
        }
        if let Some(footer) = footer {
            self.check_follows(
                footer.state.next_seqno.0,
                Some(footer.own_chain().into()),
                &segment.path,
                index,
            );
        } else if segment.id.is_rewritten() {
            // The next segment's header names the original batch, not this rewritten one, so it cannot
            // confirm it.
            self.settle(None, index);
        }
        Ok(())
    }

    /// Takes over the records of a whole batch and of those joined with it, which their successor has to confirm.
    fn take_batch(&mut self, segment: &Segment, first: LogBatch<'_>, index: &mut dyn FnMut(Vec<IndexEntry>)) {
        let schema = RunSchema::shared();
        let (from, offset) = (first.header.first_seqno, first.offset);
        self.check_follows(from.0, Some(first.header.prev), &segment.path, index);
        let mut pending = PendingBatch::new(segment, offset, Some(chain_digest(first.whole)), from, from);
        let (mut next, mut read) = (Some(first), Ok(()));
        while let Some(batch) = next.take_if(|_| read.is_ok()) {
            let batch_number = self.batches;
            self.batches += 1;
            read = for_each_checked_record(&batch, segment.salt, |at, seqno, record| {
                pending.note(&*schema, &record, seqno, record_place(segment, at, record.bytes), batch_number)
            });
            // If the next number cannot be read, the batch's records cannot be read either.
            pending.to = next_seqno(&batch, segment.salt).unwrap_or(pending.to);
            match batch.joined(pending.to) {
                Ok(joined) => next = joined,
                Err(error) => read = read.and(Err(error)),
            }
        }
        let to = pending.to;
        self.next = to.0;
        match read {
            Ok(()) => self.pending = Some(pending),
            Err(error) => {
                let what = format!("a batch has damaged records: {error}");
                self.reject_batch(segment.path.clone(), offset, from, to, &what);
            }
        }
    }

    /// Restores a batch of which one byte changed, if it fills the gap alone. `wanted` is its digest.
    fn restore_batch(
        &mut self,
        standing: &SegmentFile,
        gap: &Range<u64>,
        wanted: &PrevDigest,
        index: &mut dyn FnMut(Vec<IndexEntry>),
    ) -> Result<bool> {
        let SegmentFile { segment, patched, .. } = standing;
        if gap.end - gap.start > RESTORED_BYTES_MAX {
            return Ok(false);
        }
        let mut whole = Vec::new();
        segment.read_range(gap.start, gap.end, &mut whole)?;
        let Some(restored) = restore_changed_byte(&mut whole, segment.salt, gap.start, wanted) else {
            return Ok(false);
        };
        let checked = BatchHeader::check(&whole, segment.salt, gap.start);
        let Ok(batch) = checked.and_then(|(_, whole)| LogBatch::of(whole, gap.start, segment.salt)) else {
            return Ok(false);
        };
        for (at, byte) in restored {
            let at = gap.start + at as u64;
            patched.patch(at, byte);
            let what = "this byte changed; repair restores it, and the digest of its batch confirms it";
            self.note(segment, at, what.to_owned());
        }
        self.take_batch(segment, batch, index);
        Ok(true)
    }

    /// Bytes that make no batch: zeros that were written ahead, a torn write, or damage that may contain
    /// whole records. If they are one batch, `wanted` is its digest. Returns whether they are lost and anything
    /// but zeros.
    fn read_gap(
        &mut self,
        standing: &SegmentFile,
        gap: Range<u64>,
        wanted: Option<PrevDigest>,
        index: &mut dyn FnMut(Vec<IndexEntry>),
    ) -> Result<bool> {
        let (segment, Range { start: from, end: to }) = (&standing.segment, gap.clone());
        let mut cursor = LogCursor::new(segment.file.clone(), segment.salt, from, to);
        if from >= to || cursor.only_zeros_after(from)? {
            return Ok(false);
        }
        if let Some(wanted) = wanted
            && self.restore_batch(standing, &gap, &wanted, index)?
        {
            return Ok(false);
        }
        self.settle(None, index);
        let mut budget = cursor.search_budget(from);
        let start = Seqno(self.next);
        let schema = RunSchema::shared();
        let mut pending = PendingBatch::new(segment, from, None, start, start);
        let mut found = 0;
        let is_plausible = |record: &RawRecord<'_>| is_plausible(&*schema, record);
        while let Some((at, whole)) = cursor.search_record(&is_plausible, &mut budget)? {
            let noted = RawRecord::of(whole).and_then(|record| {
                pending.note(
                    &*schema,
                    &record,
                    Seqno(self.next),
                    record_place(segment, at, record.bytes),
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
        let what = format!("{} bytes are not a whole batch; intact records in them: {found}", to - from);
        self.note(segment, from, what);
        pending.to = Seqno(self.next);
        pending.settle(self, index);
        Ok(true)
    }

    /// Checks the pending batch against its successor's first number and previous digest. Notes the records
    /// missing between them.
    fn check_follows(
        &mut self,
        first: u64,
        prev: Option<PrevDigest>,
        path: &std::path::Path,
        index: &mut dyn FnMut(Vec<IndexEntry>),
    ) {
        let adjacent = self.pending.as_ref().is_some_and(|pending| pending.to.0 == first);
        self.settle(prev.filter(|_| adjacent), index);
        if first > self.next {
            let why = format!("no intact copy of them was found before {}", path.display());
            self.note_lost_records(self.next, Some(first - 1), why);
            self.next = first;
        }
    }

    /// Accepts the pending batch, unless `prev` differs from its digest.
    fn settle(&mut self, prev: Option<PrevDigest>, index: &mut dyn FnMut(Vec<IndexEntry>)) {
        let Some(pending) = self.pending.take() else { return };
        if let (Some(prev), Some(digest)) = (prev, pending.digest)
            && !prev.fits(&digest)
        {
            let what =
                "the digest of a batch differs from the one that its successor names: the batch was changed";
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

    /// Checks the end of the log against the manifest and the note of what was synced.
    fn check_log_end(&mut self, site: &StoreDirectory, index: &mut dyn FnMut(Vec<IndexEntry>)) {
        let path = site.segments.last().map(|standing| standing.segment.path.clone());
        let state = site.manifest.as_ref().ok().map(|loaded| &loaded.state);
        if let Some(clean) = state.and_then(|state| state.clean.as_ref()) {
            let chain = Some(clean.state.chain.into());
            return self.check_follows(
                clean.state.next_seqno.0,
                chain,
                path.as_deref().unwrap_or("its end".as_ref()),
                index,
            );
        }
        let is_cut = self.check_synced_end(site.synced.as_ref(), index);
        let Some(state) = state else {
            if site.synced.is_none() {
                let why = "neither a manifest nor SYNCED says where the log ended";
                self.note_lost_records(self.next, None, why.to_owned());
            } else if self.torn_end && !is_cut {
                self.note_lost_records(self.next, None, TORN_END.to_owned());
            }
            return;
        };
        let active = state.segments.last().and_then(|entry| site.segment(entry.id));
        if is_cut {
            return;
        }
        if active.is_some_and(|standing| standing.len < state.synced) {
            self.note_lost_records(self.next, None, "the last segment was cut short".to_owned());
        } else if active.is_some() && self.torn_end {
            self.note_lost_records(self.next, None, TORN_END.to_owned());
        }
        if state.segments.last().is_some_and(|entry| site.segment(entry.id).is_none()) {
            self.note_lost_records(self.next, None, "the last segment is missing".to_owned());
        }
    }

    /// Settles the last batch, against the note's digest if the note is about it. Notes the records that are missing
    /// up to the note; returns whether there are any.
    fn check_synced_end(
        &mut self,
        note: Option<&SyncedNote>,
        index: &mut dyn FnMut(Vec<IndexEntry>),
    ) -> bool {
        let end = note.map_or(0, |note| note.next_seqno.0);
        let is_last = self.pending.as_ref().is_some_and(|pending| pending.to.0 == end);
        self.settle(note.filter(|_| is_last).map(|note| note.chain.into()), index);
        let is_cut = end > self.next;
        if is_cut {
            let why = "SYNCED says that they were synced, and no intact copy of them was found";
            self.note_lost_records(self.next, Some(end - 1), why.to_owned());
            self.next = end;
        }
        is_cut
    }
}

/// Whether a record's body has the form of its kind.
fn is_plausible(schema: &dyn RecordSchema, record: &RawRecord<'_>) -> bool {
    let place = RecordPlace { segment: SegmentId(0), offset: 0, len: record.bytes };
    let parsed = match RecordKind::parse(record.kind, record.layout) {
        Ok(Some(RecordKind::GroupPart)) => GroupPart::parse(record.body).map(|part| {
            let raw_end = u64::from(part.raw_start) + u64::from(part.raw_len);
            part.raw_len > 0 && raw_end <= GROUP_BYTES_MAX as u64
        }),
        Ok(Some(RecordKind::GroupRest)) => GroupRest::parse(record.body).map(|_| true),
        Ok(Some(kind)) if kind.is_logical() => {
            keys::derive_entries(schema, record, Seqno(0), place, &mut Vec::new()).map(|()| true)
        }
        Ok(Some(_)) => seqnos_of(record).map(|_| true),
        _ => Ok(false),
    };
    parsed.unwrap_or(false)
}

fn record_place(segment: &Segment, offset: u32, len: u32) -> RecordPlace {
    RecordPlace { segment: segment.id, offset, len }
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

    /// Adds a record as a whole or, on an error, not at all.
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
            // This record holds the whole group, so no part can follow.
            let noted = GroupPartPlace { group: rest.group, raw_start: 0, raw_len: u32::MAX, before: (0, 0) };
            self.parts.push((noted, seqno, place));
            return Ok(());
        }
        if !kind.is_logical() {
            return Ok(());
        }
        let mut entries = Vec::new();
        keys::derive_entries(schema, record, seqno, place, &mut entries)?;
        let head = LogicalBody::of(record)?.head;
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
            | RecordKind::Erasure
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
            // A part can be decoded only if all parts before it are present. The index names the last
            // decodable part.
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
