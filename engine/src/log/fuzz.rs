//! Doors for fuzzers: records, segments and manifests from any bytes.

use std::path::PathBuf;

use crate::codec::{self, Reader};
use crate::fuzzing::{byte, disk, open_and_read, sample, short, take};
use crate::ids::{SegmentId, Seqno, StoreId};
use crate::log::layout::{
    BATCH_HEADER_BYTES, BatchHeader, Footer, LogState, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, Salt,
    SegmentHeader, chain_digest, seal_record, stamp_record, start_record,
};
use crate::log::manifest::{self, State};
use crate::log::record::{
    BodyRef, FrameHead, GroupPart, Kind, KvHead, Logical, PartHead, RecipeRef, RunHead, SnapshotHead,
    SpaceHead, TombstoneHead,
};

const SEGMENT: SegmentId = SegmentId(1);

/// Every parser of a record's bytes. What is taken is written again as the same bytes: each thing has one form.
pub fn record(data: &[u8]) {
    let mut rest = data;
    let which = byte(&mut rest);
    let same = |written: &[u8]| assert!(written == rest, "read and written again it has other bytes");
    match which {
        0 => drop(KvHead::parse(Kind::Put, rest).map(|head| same(&head.encode()))),
        1 => drop(KvHead::parse(Kind::Delete, rest).map(|head| same(&head.encode()))),
        2 => drop(FrameHead::parse(rest).map(|head| same(&head.encode()))),
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
            let mut reader = Reader::new(rest, "reference");
            let _ = BodyRef::take(&mut reader);
            let _ = RecipeRef::take(&mut reader);
        }
        9 => drop(
            Logical::parse(rest)
                .map(|logical| (FrameHead::parse(logical.head), KvHead::peek(Kind::Put, logical.head))),
        ),
        10 => {
            drop(codec::decode::<State>(rest).map(|state| same(&codec::encode(&state).unwrap_or_default())))
        }
        11 => drop(codec::decode::<LogState>(rest).map(|state| state.is_sound())),
        12 => drop(TombstoneHead::parse(rest).map(|head| same(&head.encode()))),
        _ => {
            let salt = Salt::new(StoreId::default(), SEGMENT);
            let _ = SegmentHeader::decode(rest, StoreId::default(), SEGMENT);
            let _ = BatchHeader::check(rest, salt, SEGMENT_HEADER_BYTES);
            let _ = Footer::decode_end(rest, SEGMENT_HEADER_BYTES, salt);
            let _ = manifest::parse_current(rest);
        }
    }
}

fn sample_file(end: &str) -> (PathBuf, &'static [u8]) {
    let found = sample().iter().find(|(path, _)| path.to_string_lossy().contains(end));
    found.map_or_else(Default::default, |(path, bytes)| (path.clone(), bytes.as_slice()))
}

fn store_id() -> StoreId {
    let (_, manifest) = sample_file("MANIFEST-");
    let mut store = StoreId::default();
    if let Some(uuid) = manifest.get(8..24) {
        store.0.copy_from_slice(uuid);
    }
    store
}

/// The log's end. After an even byte: the input as it is, in place of the log from some offset on. After an odd one:
/// batches with right checksums around the input's records (kind, layout, length, body; kind 255 ends a batch).
pub fn segment(data: &[u8]) {
    let mut rest = data;
    let (path, old) = sample_file(".seg");
    let mut bytes = old.to_vec();
    if byte(&mut rest) & 1 == 0 {
        bytes.truncate(short(&mut rest).min(old.len()));
        bytes.extend_from_slice(rest);
    } else {
        append(&mut bytes, rest);
    }
    open_and_read(&disk(&[(&path, &bytes)]));
}

/// Appends batches to a segment, each bound to the one before.
fn append(segment: &mut Vec<u8>, mut rest: &[u8]) {
    let salt = Salt::new(store_id(), SEGMENT);
    let (mut at, mut seqno, mut prev) = (SEGMENT_HEADER_BYTES as usize, 1, [0; 16]);
    while let Some(Ok((header, whole))) =
        segment.get(at..).map(|bytes| BatchHeader::check(bytes, salt, at as u64))
    {
        (at, seqno, prev) = (at + whole.len(), seqno + u64::from(header.records), chain_digest(whole));
    }
    segment.truncate(at);
    while !rest.is_empty() {
        let mut batch = vec![0; BATCH_HEADER_BYTES];
        let mut starts = Vec::new();
        while !rest.is_empty() {
            let kind = byte(&mut rest);
            if kind == u8::MAX {
                break;
            }
            let layout = byte(&mut rest);
            let len = short(&mut rest);
            starts.push(batch.len());
            let start = start_record(&mut batch, kind, layout);
            batch.extend_from_slice(take(&mut rest, len));
            seal_record(&mut batch, start);
        }
        let (offset, end) = (segment.len() as u64, batch.len());
        for (index, start) in starts.iter().enumerate() {
            let until = starts.get(index + 1).copied().unwrap_or(end);
            if let Some(record) =
                batch.get_mut(*start..until).filter(|record| record.len() >= RECORD_HEADER_BYTES)
            {
                stamp_record(record, salt, offset + *start as u64);
            }
        }
        let header = BatchHeader {
            bytes: end as u32,
            records: starts.len() as u32,
            synced: SEGMENT_HEADER_BYTES as u32,
            first_seqno: Seqno(seqno),
            time_ns: 1,
            prev,
        };
        header.write(&mut batch, salt, offset);
        (seqno, prev) = (seqno + starts.len() as u64, chain_digest(&batch));
        segment.extend_from_slice(&batch);
    }
}

/// A manifest. After an even byte: the input as it is behind a good header. After an odd one: edits with right
/// checksums around the input's bodies (length, body).
pub fn manifest(data: &[u8]) {
    let mut rest = data;
    let (path, old) = sample_file("MANIFEST-");
    let mut bytes = old.get(..manifest::HEADER_BYTES as usize).unwrap_or_default().to_vec();
    if byte(&mut rest) & 1 == 0 {
        bytes.extend_from_slice(rest);
    } else {
        let store = store_id();
        while !rest.is_empty() {
            let len = short(&mut rest);
            let body = take(&mut rest, len);
            let framed = [&(body.len() as u32).to_le_bytes()[..], body].concat();
            let crc = manifest::edit_crc(&store, bytes.len() as u64, &framed);
            bytes.extend_from_slice(&crc.to_le_bytes());
            bytes.extend_from_slice(&framed);
        }
    }
    open_and_read(&disk(&[(&path, &bytes)]));
}
