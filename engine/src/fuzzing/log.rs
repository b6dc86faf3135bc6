//! Fuzz entry points: records, segments and manifests from any bytes.

use std::path::{Path, PathBuf};

use crate::codec::{self, ByteReader, CodecError};
use crate::fuzzing::{compacted_store_files, disk_with, open_and_read, sample_disk, sample_store_files};
use crate::ids::{SegmentId, Seqno, StoreId};
use crate::log::cursor::{advance_state, next_seqno};
use crate::log::erased::{ErasedBatches, ErasedRecords};
use crate::log::erasure::ErasureHead;
use crate::log::joined::{JoinedTable, LogBatch};
use crate::log::layout::{
    BATCH_HEADER_BYTES, BatchForm, BatchHeader, ChainDigest, LogState, RECORD_HEADER_BYTES_MIN,
    SEGMENT_HEADER_BYTES, Salt, SegmentFooter, SegmentHeader, chain_digest, seal_record, stamp_record,
    start_record,
};
use crate::log::manifest::{self, ManifestState};
use crate::log::paths::StorePaths;
use crate::log::record::{
    BodyRef, GroupPart, GroupRest, KvHead, LogicalBody, RecipeRef, RecordKind, SpaceHead,
};
use crate::log::synced;
use crate::trace::heads::{FrameHead, PartHead, RunHead, SnapshotHead, TombstoneHead};
use crate::trace::schema::RunSchema;
use annals_store::testing::{byte, take_bytes, take_u16};

const SEGMENT: SegmentId = SegmentId(1);

/// Every parser of a record's bytes. Accepted bytes must encode to the same bytes again: each value has one
/// form.
pub fn record(data: &[u8]) {
    let mut rest = data;
    let which = byte(&mut rest);
    let same = |written: &[u8]| assert!(written == rest, "read and written again it has other bytes");
    match which {
        0 => drop(KvHead::parse(RecordKind::Put, rest).map(|head| same(&head.encode()))),
        1 => drop(KvHead::parse(RecordKind::Delete, rest).map(|head| same(&head.encode()))),
        2 => drop(FrameHead::parse(rest).map(|head| {
            // A frame of an earlier format has whole ids where its link proves them: it is written with their
            // first bytes, which have one form.
            let written = head.encode();
            if written.len() == rest.len() {
                same(&written);
            }
            assert!(FrameHead::parse(&written).is_ok_and(|again| again.encode() == written));
        })),
        3 => drop(PartHead::parse(rest).map(|head| same(&head.encode()))),
        4 => drop(SnapshotHead::parse(rest).map(|head| same(&head.encode()))),
        5 => drop(RunHead::parse(rest).map(|head| same(&head.encode().unwrap_or_default()))),
        6 => {
            drop(codec::decode::<SpaceHead>(rest).map(|head| same(&codec::encode(&head).unwrap_or_default())))
        }
        7 => drop(GroupPart::parse(rest).map(|part| {
            let mut written = Vec::new();
            part.put(&mut written);
            same(&written);
        })),
        8 => {
            let mut reader = ByteReader::new(rest, "reference");
            let _ = BodyRef::take(&mut reader);
            let _ = RecipeRef::take(&mut reader, 300);
        }
        9 => drop(
            LogicalBody::parse(1, rest)
                .map(|logical| (FrameHead::parse(logical.head), KvHead::peek(RecordKind::Put, logical.head))),
        ),
        10 => drop(
            codec::decode::<ManifestState>(rest)
                .map(|state| same(&codec::encode(&state).unwrap_or_default())),
        ),
        11 => drop(codec::decode::<LogState>(rest).map(|state| state.is_sound())),
        12 => drop(TombstoneHead::parse(rest).map(|head| same(&head.encode()))),
        13 => drop(ErasedRecords::parse(rest).map(|erased| {
            let mut written = Vec::new();
            erased.put(&mut written);
            same(&written);
        })),
        14 => drop(ErasedBatches::parse(rest).map(|erased| {
            let mut written = Vec::new();
            erased.put(&mut written);
            same(&written);
        })),
        15 => drop(GroupRest::parse(rest).map(|left| {
            let apart = left.ranges.windows(2).all(|two| two[0].end < two[1].start);
            let within = left.ranges.iter().all(|range| range.start < range.end);
            assert!(apart && within, "ranges that touch or are empty");
            let mut written = Vec::new();
            left.put(&mut written);
            same(&written);
        })),
        17 => drop(ErasureHead::parse(rest).map(|head| same(&head.encode()))),
        // An edit of any format is encoded in its own.
        16 => drop(ManifestState::decode(rest).map(|state| {
            let written = state.encode().unwrap_or_default();
            assert!(written == rest || state.format > manifest::FORMAT, "it has other bytes");
        })),
        _ => {
            let salt = Salt::new(StoreId::default(), SEGMENT);
            let _ = SegmentHeader::decode(rest, StoreId::default(), SEGMENT);
            let _ = BatchHeader::check(rest, salt, SEGMENT_HEADER_BYTES);
            let _ = SegmentFooter::decode_end(rest, SEGMENT_HEADER_BYTES, salt);
            let _ = manifest::parse_current(rest);
            let paths = StorePaths::new(Path::new("s"));
            let _ = synced::newest(Some(rest), StoreId::default(), &paths);
        }
    }
}

fn sample_file_named(end: &str) -> (PathBuf, &'static [u8]) {
    let found = sample_store_files().iter().find(|(path, _)| path.to_string_lossy().contains(end));
    found.map_or_else(Default::default, |(path, bytes)| (path.clone(), bytes.as_slice()))
}

fn store_id() -> StoreId {
    let (_, manifest) = sample_file_named("MANIFEST-");
    let mut store = StoreId::default();
    if let Some(uuid) = manifest.get(8..24) {
        store.0.copy_from_slice(uuid);
    }
    store
}

/// The end of the log. After an even byte, the input replaces the log from some offset on. After an odd byte,
/// batches with valid checksums are built around the input's records (kind, layout, length, body; kind 255
/// ends a batch; kind 254 ends one with which the next is joined).
pub fn segment(data: &[u8]) {
    let mut rest = data;
    let (path, old) = sample_file_named(".seg");
    let mut bytes = old.to_vec();
    if byte(&mut rest) & 1 == 0 {
        bytes.truncate(take_u16(&mut rest).min(old.len()));
        bytes.extend_from_slice(rest);
    } else {
        append_batches(&mut bytes, rest);
    }
    open_and_read(&sample_disk(&[(&path, &bytes)]));
}

/// Appends batches to a segment, each chained to the one before.
fn append_batches(segment: &mut Vec<u8>, rest: &[u8]) {
    let salt = Salt::new(store_id(), SEGMENT);
    let (mut at, mut seqno, mut prev) = (SEGMENT_HEADER_BYTES as usize, 1, [0; 16]);
    while let Some(Ok((_, whole))) = segment.get(at..).map(|bytes| BatchHeader::check(bytes, salt, at as u64))
    {
        let next = for_each_joined(whole, at as u64, salt, Seqno(seqno), |batch| next_seqno(batch, salt));
        seqno = next.map_or(seqno, |next| next.0);
        (at, prev) = (at + whole.len(), chain_digest(whole));
    }
    segment.truncate(at);
    put_batches(segment, rest, salt, seqno, prev);
}

/// Calls `each` with a batch and those joined with it; it returns the seqno after the batch. Returns the seqno after
/// the last one.
fn for_each_joined(
    whole: &[u8],
    offset: u64,
    salt: Salt,
    first: Seqno,
    mut each: impl FnMut(&LogBatch<'_>) -> Result<Seqno, CodecError>,
) -> Result<Seqno, CodecError> {
    let (mut next, mut seqno) = (Some(LogBatch::of(whole, offset, salt)?), first);
    while let Some(batch) = next {
        seqno = each(&batch)?;
        next = batch.joined(seqno)?;
    }
    Ok(seqno)
}

/// Appends batches with valid checksums around the input's records; returns the offset of each batch.
fn put_batches(
    segment: &mut Vec<u8>,
    mut rest: &[u8],
    salt: Salt,
    mut seqno: u64,
    mut prev: ChainDigest,
) -> Vec<usize> {
    let mut begins = Vec::new();
    while !rest.is_empty() {
        let mut batch = vec![0; BATCH_HEADER_BYTES];
        let mut starts = Vec::new();
        let (mut table, mut time_ns, mut joined_at) = (JoinedTable::default(), 1, BATCH_HEADER_BYTES);
        while !rest.is_empty() {
            let kind = byte(&mut rest);
            if kind == u8::MAX {
                break;
            }
            if kind == u8::MAX - 1 {
                table.push((batch.len() - joined_at) as u64, time_ns);
                (time_ns, joined_at) = (take_u16(&mut rest) as u64, batch.len());
                continue;
            }
            let layout = byte(&mut rest);
            let len = take_u16(&mut rest);
            starts.push(batch.len());
            let start = start_record(&mut batch, kind, layout);
            batch.extend_from_slice(take_bytes(&mut rest, len));
            seal_record(&mut batch, start);
        }
        let (offset, end) = (segment.len() as u64, batch.len());
        for (index, start) in starts.iter().enumerate() {
            let until = starts.get(index + 1).copied().unwrap_or(end);
            if let Some(record) =
                batch.get_mut(*start..until).filter(|record| record.len() >= RECORD_HEADER_BYTES_MIN)
            {
                stamp_record(record, salt, offset + *start as u64);
            }
        }
        table.push((end - joined_at) as u64, time_ns);
        let mut table = table.finish();
        let form = match table.is_empty() {
            true => BatchForm::Short,
            false => BatchForm::Joined { records_end: end as u32 },
        };
        batch.append(&mut table);
        let header = BatchHeader {
            bytes: batch.len() as u32,
            form,
            synced: SEGMENT_HEADER_BYTES as u32,
            first_seqno: Seqno(seqno),
            time_ns: 1,
            prev: prev.into(),
        };
        header.write(&mut batch, salt, offset);
        // A record for erased ones takes as many seqnos as they had.
        let after = for_each_joined(&batch, offset, salt, Seqno(seqno), |batch| next_seqno(batch, salt));
        seqno = after.map_or(seqno + starts.len() as u64, |next| next.0);
        prev = chain_digest(&batch);
        begins.push(segment.len());
        segment.extend_from_slice(&batch);
    }
    begins
}

/// A segment that a compaction wrote. The first byte, modulo 3, chooses the case:
/// - 0: the input replaces its bytes from some offset on, followed by the footer.
/// - 1: batches with valid checksums are built around the input's records (as for [`segment`]), followed by
///   the old footer with the new tail.
/// - 2: as 1, but the footer's sums match the batches.
///
/// The manifest lists the segment with its length, and no tables.
pub fn rewritten(data: &[u8]) {
    let mut rest = data;
    let files = compacted_store_files();
    let file = |part: &str| files.iter().find(|(path, _)| path.to_string_lossy().contains(part));
    let Some((manifest_path, manifest)) = file("MANIFEST-") else { return };
    let mut store = StoreId::default();
    if let Some(uuid) = manifest.get(8..24) {
        store.0.copy_from_slice(uuid);
    }
    let Some(mut state) = last_edit(manifest) else { return };
    let Some(at) = state.segments.iter().position(|entry| entry.id.is_rewritten()) else { return };
    let id = state.segments.get(at).map(|entry| entry.id).unwrap_or_default();
    let Some((path, old)) = file(&format!("{:08}.seg", id.0)) else { return };
    let salt = Salt::new(store, id);
    let Ok(header) = SegmentHeader::decode(old, store, id) else { return };
    let Ok(mut footer) = SegmentFooter::decode_end(old, 0, salt) else { return };
    let how = byte(&mut rest) % 3;
    let mut bytes = old.clone();
    if how == 0 {
        bytes.truncate(footer.tail as usize);
        let from = (SEGMENT_HEADER_BYTES as usize + take_u16(&mut rest)).min(bytes.len());
        let end = (from + rest.len()).min(bytes.len());
        if let Some(room) = bytes.get_mut(from..end) {
            room.copy_from_slice(rest.get(..room.len()).unwrap_or_default());
        }
    } else {
        bytes.truncate(SEGMENT_HEADER_BYTES as usize);
        let begins = put_batches(&mut bytes, rest, salt, header.first_seqno.0, header.chain);
        let mut sum = LogState { next_seqno: header.first_seqno, chain: header.chain, ..LogState::empty() };
        let schema = RunSchema::shared();
        for (number, begin) in begins.iter().enumerate() {
            let end = begins.get(number + 1).copied().unwrap_or(bytes.len());
            let Some(whole) = bytes.get(*begin..end) else { return };
            footer.rewritten_chain = Some(chain_digest(whole));
            let _ = for_each_joined(whole, *begin as u64, salt, sum.next_seqno, |batch| {
                advance_state(&*schema, &mut sum, batch, salt).map(|_| sum.next_seqno)
            });
        }
        if how == 2 && at == 0 {
            let said = &mut footer.state;
            (said.next_seqno, said.ledger) = (sum.next_seqno, sum.ledger);
            footer.root = footer.state.ledger.root();
        }
    }
    footer.tail = bytes.len() as u64;
    bytes.extend(footer.encode(salt).unwrap_or_default());
    if let Some(entry) = state.segments.get_mut(at) {
        entry.sealed_bytes = Some(bytes.len() as u64);
    }
    state.tables.clear();
    let first = state.segments.first().map(|entry| entry.id).unwrap_or_default();
    (state.covers, state.covers_state, state.clean) =
        ((first, SEGMENT_HEADER_BYTES), LogState::empty(), None);
    let mut listed = manifest.get(..manifest::HEADER_BYTES as usize).unwrap_or_default().to_vec();
    put_edit(&mut listed, &store, &state.encode().unwrap_or_default());
    open_and_read(&disk_with(files, &[(path, &bytes), (manifest_path, &listed)]));
}

/// The last whole edit of a manifest.
fn last_edit(manifest: &[u8]) -> Option<ManifestState> {
    let (mut at, mut last) = (manifest::HEADER_BYTES as usize, None);
    while let Some(len) = manifest.get(at + 4..at + 8).and_then(|len| len.first_chunk::<4>()) {
        let end = at + 8 + u32::from_le_bytes(*len) as usize;
        let Some(body) = manifest.get(at + 8..end) else { break };
        (at, last) = (end, ManifestState::decode(body).ok());
    }
    last
}

/// Appends an edit with its checksum.
fn put_edit(manifest: &mut Vec<u8>, store: &StoreId, body: &[u8]) {
    let edit = manifest::edit(store, manifest.len() as u64, body);
    manifest.extend_from_slice(&edit);
}

/// A manifest. After an even byte, the input follows a valid header. After an odd byte, edits with valid
/// checksums are built around the input's bodies (length, body).
pub fn manifest(data: &[u8]) {
    let mut rest = data;
    let (path, old) = sample_file_named("MANIFEST-");
    let mut bytes = old.get(..manifest::HEADER_BYTES as usize).unwrap_or_default().to_vec();
    if byte(&mut rest) & 1 == 0 {
        bytes.extend_from_slice(rest);
    } else {
        let store = store_id();
        while !rest.is_empty() {
            let len = take_u16(&mut rest);
            put_edit(&mut bytes, &store, take_bytes(&mut rest, len));
        }
    }
    open_and_read(&sample_disk(&[(&path, &bytes)]));
}
