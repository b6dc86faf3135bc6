//! The bytes of everything that the log writes, compared with `tests/data/format/golden.hex`.
//!
//! A difference is a new format: it needs a new version or layout number, and old stores must stay readable.

use annals_text::hex;

use super::samples::{self, OFFSET, SEGMENT, STORE, salt};
use crate::blob::decode_recipe;
use crate::codec;
use crate::format_tests::schema;
use crate::ids::SegmentId;
use crate::log::cursor::{advance_state, for_each_checked_record};
use crate::log::erasure::ErasureHead;
use crate::log::joined::LogBatch;
use crate::log::layout::{
    BATCH_HEADER_BYTES, BatchForm, BatchHeader, LogState, RawRecord, SegmentFooter, SegmentHeader,
    chain_digest,
};
use crate::log::ledger::{Frontier, LedgerNode, leaf_hash, record_hash};
use crate::log::manifest::{CutList, ManifestState, VectorList};
use crate::log::record::{EmbeddingHead, GroupPart, KvHead, LogicalBody, RecordKind, SpaceHead};
use crate::log::totals::LogTotals;
use crate::trace::heads::{FrameHead, PartHead, RunHead, SnapshotHead, TombstoneHead};

/// Offset of the first record of a sample batch.
const RECORD_AT: u64 = OFFSET + BATCH_HEADER_BYTES as u64;

const GOLDEN: &str = include_str!("../../tests/data/format/golden.hex");

/// Syntax: `name: hex digits` with any spacing; continuation lines are indented; `#` begins a comment.
fn golden() -> Vec<(String, String)> {
    let mut items: Vec<(String, String)> = Vec::new();
    for line in GOLDEN.lines() {
        let line = line.split('#').next().unwrap_or("");
        let digits = match line.split_once(':') {
            Some((name, digits)) => {
                items.push((name.trim().to_owned(), String::new()));
                digits
            }
            None => line,
        };
        if let Some(item) = items.last_mut() {
            item.1.extend(digits.chars().filter(|c| !c.is_whitespace()));
        }
    }
    items
}

#[test]
fn encoded_bytes_match_golden_file() {
    let golden = golden();
    let all = samples::all();
    let wrong: Vec<String> = all
        .iter()
        .filter(|(name, bytes)| !golden.contains(&((*name).to_owned(), hex::encode(bytes))))
        .map(|(name, bytes)| format!("{name}: {}", hex::encode(bytes)))
        .collect();
    assert!(wrong.is_empty(), "these bytes are not as written down:\n{}", wrong.join("\n"));
    let unknown: Vec<_> =
        golden.iter().filter(|(name, _)| all.iter().all(|(known, _)| known != name)).collect();
    assert!(unknown.is_empty(), "nothing makes these: {unknown:?}");
}

/// The golden bytes of an item.
pub(super) fn bytes(name: &str) -> Vec<u8> {
    let digits =
        golden().into_iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("no {name}")).1;
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

fn checked_record(bytes: &[u8]) -> (RawRecord<'_>, LogicalBody<'_>) {
    let record = RawRecord::check_whole(bytes, salt(), RECORD_AT).unwrap();
    (record, LogicalBody::of(&record).unwrap())
}

#[test]
fn golden_bytes_decode_to_the_samples() {
    assert_eq!(
        SegmentHeader::decode(&bytes("segment_header"), STORE, SEGMENT).unwrap(),
        samples::segment_header()
    );
    assert_eq!(SegmentFooter::decode_end(&bytes("footer"), 4096, salt()).unwrap(), samples::footer());
    let head = |name| checked_record(&bytes(name)).1.head.to_vec();
    assert_eq!(KvHead::parse(RecordKind::Put, &head("put_inline")).unwrap(), samples::put_inline());
    let deleted = KvHead { value: None, ..samples::put_inline() };
    assert_eq!(KvHead::parse(RecordKind::Delete, &head("delete")).unwrap(), deleted);
    for (name, space) in ["namespace", "keyspace_newest", "keyspace_all"].into_iter().zip(samples::spaces()) {
        assert_eq!(codec::decode::<SpaceHead>(&head(name)).unwrap(), space);
    }
    assert_eq!(RunHead::parse(&head("run")).unwrap().fields, samples::run_fields());
    assert_eq!(FrameHead::parse(&head("frame")).unwrap(), samples::frame().with_id_fronts());
    assert_eq!(FrameHead::parse(&head("frame_open")).unwrap(), samples::frame_open());
    assert_eq!(FrameHead::parse(&head("frame_other")).unwrap(), samples::frame_other().with_id_fronts());
    assert_eq!(FrameHead::parse(&head("frame_ahead")).unwrap(), samples::frame_ahead());
    assert_eq!(PartHead::parse(&head("frame_part")).unwrap(), samples::part());
    assert_eq!(SnapshotHead::parse(&head("snapshot")).unwrap(), samples::snapshot());
    assert_eq!(TombstoneHead::parse(&head("tombstone")).unwrap(), samples::tombstone());
    assert_eq!(TombstoneHead::parse(&head("tombstone_of_fork")).unwrap(), samples::tombstone_of_fork());
    assert_eq!(EmbeddingHead::parse(&head("embedding")).unwrap(), samples::embedding());
    assert_eq!(ErasureHead::parse(&head("erasure")).unwrap(), samples::erasure());
    for (name, first) in [("group_part_first", true), ("group_part_later", false)] {
        let bytes = bytes(name);
        let record = RawRecord::check_whole(&bytes, salt(), RECORD_AT).unwrap();
        assert_eq!(GroupPart::parse(record.body).unwrap(), samples::group_part(first));
    }
    let state = samples::manifest_state();
    let third = ManifestState { format: 3, cuts: CutList::default(), ..state };
    assert_eq!(ManifestState::decode(&bytes("manifest_3")).unwrap(), third);
    let second = ManifestState { format: 2, vectors: VectorList::default(), ..third };
    assert_eq!(ManifestState::decode(&bytes("manifest_2")).unwrap(), second);
    let (next_rewritten, erased) = (SegmentId::REWRITTEN_MIN, LogTotals::default());
    let first = ManifestState { format: 1, next_rewritten, erased, ..second };
    assert_eq!(ManifestState::decode(&bytes("manifest_1")).unwrap(), first);
    let alone = decode_recipe(&bytes("recipe_alone"), None, 300).unwrap();
    assert_eq!(decode_recipe(&bytes("recipe_against_base"), Some(&alone[..2]), 300).unwrap(), alone);
}

/// Stores of formats 1 to 3 have the long form. It has the same content and the same leaf.
#[test]
fn long_batch_is_read_like_short_one() {
    let batch = bytes("batch_long");
    let (header, _) = BatchHeader::check(&batch, salt(), OFFSET).unwrap();
    let (short, _) = BatchHeader::check(&bytes("batch"), salt(), OFFSET).unwrap();
    assert_eq!(
        (header.form, header.bytes, header.form.header_bytes()),
        (BatchForm::Long { records: 1 }, 94, 48)
    );
    assert_eq!(
        (header.synced, header.first_seqno, header.time_ns),
        (short.synced, short.first_seqno, short.time_ns)
    );
    let digest = [0xcd; 16];
    let mut other = digest;
    other[12] ^= 1;
    assert!(header.prev.fits(&digest) && short.prev.fits(&digest) && !header.prev.fits(&other));
    assert!(short.prev.fits(&other), "the short form has eight bytes of the digest");
    let mut state = LogState::empty();
    let read = LogBatch::of(&batch, OFFSET, salt()).unwrap();
    advance_state(&*schema(), &mut state, &read, salt()).unwrap();
    assert_eq!(state.ledger.root().to_vec(), bytes("leaf"));
    assert_eq!((state.next_seqno.0, state.totals.records, state.totals.chain_bytes), (8, 1, 48 + 16));
    let record = RawRecord::check_whole(&batch[48..], salt(), OFFSET + 48).unwrap();
    assert_eq!((record.kind, record.layout, record.bytes), (1, 1, 46));
}

#[test]
fn batch_checks_only_at_its_own_offset() {
    let batch = bytes("batch");
    let (header, whole) = BatchHeader::check(&batch, salt(), OFFSET).unwrap();
    assert_eq!((header.form, whole.len()), (BatchForm::Short, batch.len()));
    assert!(BatchHeader::check(&batch, salt(), OFFSET + 1).is_err());
    let other = crate::log::layout::Salt::new(STORE, SegmentId(4));
    assert!(BatchHeader::check(&batch, other, OFFSET).is_err());
    let mut records = 0;
    let read = LogBatch::of(&batch, OFFSET, salt()).unwrap();
    for_each_checked_record(&read, salt(), |at, seqno, record| {
        assert_eq!((u64::from(at), seqno.0, record.kind, record.layout), (RECORD_AT, 7, 1, 1));
        records += 1;
        Ok(())
    })
    .unwrap();
    assert_eq!(records, 1);
    let mut state = LogState::empty();
    advance_state(&*schema(), &mut state, &read, salt()).unwrap();
    assert_eq!(state.ledger.root().to_vec(), bytes("leaf"));
    assert_eq!(state.chain.to_vec(), bytes("chain_digest"));
    assert_eq!((state.next_seqno.0, state.totals.batches, state.totals.chain_bytes), (8, 1, 35 + 16));
}

/// Three batches share a header: a key's value, erased batches, and the same value 91 us later and 1 ns earlier.
#[test]
fn joined_batches_are_read_like_single_ones() {
    let (whole, salt) = (bytes("joined"), samples::rewritten_salt());
    let (header, _) = BatchHeader::check(&whole, salt, OFFSET).unwrap();
    let (mut state, mut read) = (LogState::empty(), Vec::new());
    (state.next_seqno, state.chain) = (header.first_seqno, [0xcd; 16]);
    let mut next = Some(LogBatch::of(&whole, OFFSET, salt).unwrap());
    let mut records = BATCH_HEADER_BYTES;
    while let Some(batch) = next {
        advance_state(&*schema(), &mut state, &batch, salt).unwrap();
        assert_eq!((batch.records().start, state.chain), (records, chain_digest(&whole)));
        records = batch.records().end;
        let BatchHeader { first_seqno, time_ns, .. } = batch.header;
        read.push((first_seqno.0, time_ns, batch.header.own_bytes(), batch.end()));
        next = batch.joined(state.next_seqno).unwrap();
    }
    let (time, end) = (samples::TIME_NS, OFFSET + whole.len() as u64);
    let table = whole.len() - records;
    assert_eq!(
        read,
        [(7, time, 35 + table as u64, None), (8, time + 91_000, 0, None), (508, time - 1, 0, Some(end))]
    );
    assert_eq!(records, header.records_end());
    assert_eq!((state.totals.batches, state.next_seqno.0, state.newest_ns), (3, 509, time + 91_000));
    // Each batch has the leaf that it has alone.
    let head = samples::put_inline().encode();
    let leaf = |seqno| leaf_hash(&record_hash(&samples::RECORD_SALT, 1, 1, seqno, &head));
    let mut ledger = Frontier::default();
    for leaf in [leaf(7), [0xa4; 32], leaf(508)] {
        ledger.push_node(LedgerNode::leaf(leaf)).unwrap();
    }
    assert_eq!(state.ledger, ledger);
}
