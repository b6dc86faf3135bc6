//! Hostile bytes of a rewritten segment.

use super::sample::{self, paths};
use crate::blob::GROUP_BYTES_MAX;
use crate::blob::{Codec, GroupDecoder, GroupId, RemainderEncoder};
use crate::codec::CodecError;
use crate::format_tests::samples::{self, OFFSET, rewritten, rewritten_salt};
use crate::format_tests::schema;
use crate::ids::SegmentId;
use crate::log::cursor::{advance_state, for_each_checked_record};
use crate::log::erased::{ErasedBatches, ErasedRecords};
use crate::log::joined::LogBatch;
use crate::log::layout::{BATCH_HEADER_BYTES, BatchHeader, LogState, SEGMENT_HEADER_BYTES};
use crate::log::ledger::{Frontier, LedgerNode, LedgerTiles, leaf_hash};
use crate::log::record::{GroupRest, RecordKind};
use crate::log::rewrite::groups::GroupRewriter;
use crate::log::rewrite::source::SourceSegment;
use crate::log::rewrite::{LiveSet, Recompress};
use crate::{ErrorKind, Store};

/// One record in sixteen stays, and the first bytes of each second group.
struct SparseLiveSet;

impl LiveSet for SparseLiveSet {
    fn keeps_record(&self, _: SegmentId, offset: u32) -> bool {
        offset % 16 == 3
    }

    fn live_ranges(&self, group: GroupId) -> Option<Vec<std::ops::Range<u32>>> {
        Some(if group.0.is_multiple_of(2) { vec![0..1, 3..9] } else { Vec::new() })
    }
}

#[test]
fn flipped_byte_of_rewritten_segment_is_damage() {
    let sim = sample::sample_store(1);
    let made = sample::rewrite_rows(&sim, &SparseLiveSet, &[2], Recompress::Nothing).unwrap();
    assert!(made[0].moved.len() > 3);
    let path = paths().segment(made[0].entry.id);
    let len = sim.read(&path).unwrap().len();
    assert!(len < 20_000, "{len}");
    assert!(sample::scan_whole_log(&sim).is_ok());
    for at in 0..len {
        let bit = 1 << (at % 8);
        sim.edit(&path, |bytes| bytes[at] ^= bit).unwrap();
        let opened = Store::open_read_only_with(sample::ROOT, sample::options(&sim));
        assert_eq!(opened.unwrap_err().kind(), ErrorKind::Damaged, "byte {at}");
        sim.edit(&path, |bytes| bytes[at] ^= bit).unwrap();
    }
    assert!(sample::scan_whole_log(&sim).is_ok());
}

/// Groups are planned from a survey that checks nothing.
#[test]
fn survey_that_differs_from_checked_records_is_refused() {
    let sim = sample::sample_store(1);
    let found = sample::find_log(&sim);
    let segment = found.segments.get(found.state.segments[0].id).unwrap();
    let source = SourceSegment::open(segment.clone()).unwrap();
    // All records except one, for each record in turn; first all of them.
    let records = |but: Option<u32>| {
        let mut groups = GroupRewriter::new(&SparseLiveSet, Recompress::Nothing);
        groups.survey(&source).unwrap();
        let mut number = 0;
        let each = |batch: &LogBatch<'_>| {
            for_each_checked_record(batch, segment.salt, |at, _, record| {
                number += 1;
                if but == Some(number) {
                    return Ok(());
                }
                groups.note_checked(at, &record)
            })
            .unwrap();
            groups.end_batch();
            Ok(())
        };
        source.each_batch(&mut { each }).unwrap();
        (groups.confirm_survey(&source).map_err(|error| error.kind()), number)
    };
    let (all, count) = records(None);
    assert_eq!(all, Ok(()));
    let mut refused = 0;
    for but in 1..=count {
        let (settled, _) = records(Some(but));
        // Dropping a record is not always detected. A batch of several logical records keeps its leaf, and
        // the last part of a group covers the others.
        refused += u32::from(settled.is_err_and(|kind| kind == ErrorKind::Damaged));
    }
    assert!(refused > 5, "{refused} of {count}");
}

fn advance_over(records: &[(RecordKind, Vec<u8>)]) -> Result<LogState, CodecError> {
    // A ledger with three leaves.
    let mut state = LogState::empty();
    (0..3).for_each(|leaf| state.ledger.push([leaf; 32]));
    let whole = rewritten(records);
    let batch = LogBatch::of(&whole, OFFSET, rewritten_salt())?;
    advance_state(&*schema(), &mut state, &batch, rewritten_salt()).map(|_| state)
}

fn erased(count: u64, heights: &[u8]) -> (RecordKind, Vec<u8>) {
    let nodes = heights.iter().map(|height| LedgerNode { height: *height, hash: [9; 32] }).collect();
    (RecordKind::Erased, samples::put(|out| ErasedRecords { count, nodes }.put(out)))
}

fn batches(seqnos: u64, batches: u64, height: Option<u8>) -> (RecordKind, Vec<u8>) {
    let node = height.map(|height| LedgerNode { height, hash: [8; 32] });
    (RecordKind::ErasedBatches, samples::put(|out| ErasedBatches { seqnos, batches, node }.put(out)))
}

#[test]
fn erased_records_must_fit_their_position() {
    let next = |records: &[_]| advance_over(records).map(|state| (state.next_seqno.0, state.ledger.leaves));
    assert_eq!(next(&[erased(5, &[0])]), Ok((12, 4)));
    assert_eq!(next(&[erased(5, &[2])]), Ok((12, 4)));
    assert_eq!(next(&[erased(5, &[1, 1])]), Ok((12, 4)));
    assert_eq!(next(&[erased(1, &[0]), erased(9, &[0, 1])]), Ok((17, 4)));
    assert_eq!(next(&[erased(5, &[])]), Ok((12, 3)));
    // Fewer records than their nodes cover; none; too many; a node that begins elsewhere; an impossible
    // height.
    for wrong in
        [erased(2, &[1, 0]), erased(0, &[]), erased(1 << 30, &[]), erased(9, &[0, 1]), erased(9, &[56])]
    {
        assert!(next(&[wrong]).is_err());
    }
    assert!(next(&[erased(u64::MAX, &[63])]).is_err());

    assert_eq!(next(&[batches(90, 3, Some(0))]), Ok((97, 4)));
    assert_eq!(next(&[batches(90, 3, None)]), Ok((97, 3)));
    for wrong in [
        // The ledger's fourth leaf does not begin a larger subtree.
        batches(90, 3, Some(1)),
        batches(90, 1, Some(1)),
        batches(0, 0, None),
        batches(3, 0, None),
        batches(2, 3, None),
        batches(u64::MAX, 1, None),
        batches((1 << 56) - 1, 1, None),
        batches(1 << 57, 1 << 57, Some(56)),
        batches(1 << 56, 1 << 55, Some(55)),
    ] {
        assert!(next(&[wrong]).is_err());
    }
    assert!(next(&[batches(90, 3, None), batches(90, 3, None)]).is_err(), "not alone");
    assert!(next(&[erased(5, &[0]), batches(90, 3, Some(0))]).is_err(), "not alone");
    // Records of compaction are refused in a segment of the writer.
    for (kind, body) in [erased(5, &[0]), batches(90, 3, None), (RecordKind::GroupRest, rest(&[(0, 5)]))] {
        let whole = rewritten(&[(kind, body)]);
        let mut salt = rewritten_salt();
        salt.is_rewritten = false;
        let batch = LogBatch::of(&whole, OFFSET, salt).unwrap();
        let read = for_each_checked_record(&batch, salt, |_, _, _| Ok(()));
        assert!(matches!(read, Err(CodecError::Unknown { .. })), "{kind:?}");
    }
}

#[test]
fn table_of_joined_batches_must_fit_their_records() {
    let whole = samples::joined();
    let (_, header) = BatchHeader::peek(&whole).unwrap();
    let records_end = header.records_end();
    let (records, table) = whole.split_at(records_end);
    let joined = |records_end: usize, table: &[u8]| {
        let whole = samples::join(records[..records_end].to_vec(), table);
        let checked = BatchHeader::check(&whole, rewritten_salt(), OFFSET).map(|(_, whole)| whole.to_vec());
        let whole = checked?;
        LogBatch::of(&whole, OFFSET, rewritten_salt()).map(|_| ())
    };
    assert_eq!(joined(records_end, table), Ok(()));
    for cut in 1..table.len() {
        // A table that ends between two entries has fewer batches.
        let whole_entries = cut == table.len() - 4;
        assert_eq!(joined(records_end, &table[..cut]).is_ok(), whole_entries, "cut to {cut}");
    }
    let entry = |bytes: u64| {
        samples::put(|out| {
            crate::codec::put_varint(out, bytes);
            crate::codec::put_signed(out, -1);
        })
    };
    let room = (records_end - BATCH_HEADER_BYTES) as u64;
    assert_eq!(joined(records_end, &entry(room - 1)), Ok(()));
    // No bytes; all of them, so that none are left for the last batch; more; too many for any memory.
    for wrong in [0, room, room + 1, u64::MAX] {
        assert!(joined(records_end, &entry(wrong)).is_err(), "{wrong}");
    }
    assert!(joined(BATCH_HEADER_BYTES, &entry(1)).is_err(), "no records");
    // The records end in the header, or behind the batch.
    for place in [0, 34, whole.len() as u32 + 1, u32::MAX] {
        let mut lying = whole.clone();
        lying[8..12].copy_from_slice(&place.to_le_bytes());
        let checked = BatchHeader::check(&lying, rewritten_salt(), OFFSET);
        assert!(matches!(checked, Err(CodecError::Limit { .. })), "{place}");
        assert!(LogBatch::of(&lying, OFFSET, rewritten_salt()).is_err(), "{place}, unchecked");
    }
    let mut salt = rewritten_salt();
    salt.is_rewritten = false;
    let refused = LogBatch::of(&whole, OFFSET, salt).map(|_| ());
    assert!(matches!(refused, Err(CodecError::Unknown { .. })), "in a segment of the writer");
}

/// A group remainder with these gaps and lengths.
fn rest(ranges: &[(u64, u64)]) -> Vec<u8> {
    let mut body = vec![7, 16, 0];
    crate::codec::put_varint(&mut body, ranges.len() as u64);
    for (gap, len) in ranges {
        crate::codec::put_varint(&mut body, *gap);
        crate::codec::put_varint(&mut body, *len);
    }
    body
}

#[test]
fn group_rest_ranges_are_ordered_and_in_bounds() {
    let most = GROUP_BYTES_MAX as u64;
    let parsed = |ranges: &[(u64, u64)]| GroupRest::parse(&rest(ranges)).map(|rest| rest.ranges);
    assert_eq!(parsed(&[(0, 5), (1, 2)]).unwrap(), [0..5, 6..8]);
    let last = parsed(&[(most - 1, 1)]).unwrap();
    assert_eq!((last.len(), last[0].clone()), (1, most as u32 - 1..most as u32));
    for wrong in [
        &[][..],
        &[(0, 0)],
        &[(0, 5), (0, 2)],
        &[(0, most + 1)],
        &[(most, 1)],
        &[(u64::from(u32::MAX), 1)],
        &[(1, u64::from(u32::MAX))],
        &[(0, 1 << 40)],
    ] {
        assert!(parsed(wrong).is_err(), "{wrong:?}");
    }
    // A count of ranges that do not follow.
    assert!(GroupRest::parse(&[7, 16, 0, 0xff, 0xff, 0xff, 0xff, 0x7f]).is_err());
    let whole = samples::put(|out| samples::group_rest().put(out));
    assert_eq!(GroupRest::parse(&whole).unwrap(), samples::group_rest());
    for name in ["erased", "erased batches"] {
        let whole = match name {
            "erased" => samples::put(|out| samples::erased().put(out)),
            _ => samples::put(|out| samples::erased_of(true).put(out)),
        };
        let parse = |bytes: &[u8]| match name {
            "erased" => ErasedRecords::parse(bytes).map(|found| assert_eq!(found, samples::erased())),
            _ => ErasedBatches::parse(bytes).map(|found| assert_eq!(found, samples::erased_of(true))),
        };
        parse(&whole).unwrap();
        // Without its node the record is another valid one.
        let cuts = (0..whole.len()).filter(|cut| *cut != whole.len() - 33 || name == "erased");
        cuts.for_each(|cut| assert!(parse(&whole[..cut]).is_err(), "{name} cut to {cut}"));
        assert!(parse(&[&whole[..], &[0]].concat()).is_err());
    }
}

#[test]
fn group_rest_is_one_whole_frame() {
    let raw: Vec<u8> = (0..5000u32).map(|at| (at / 50) as u8).collect();
    let (codec, encoded) = RemainderEncoder::new(None).unwrap().encode(&raw).unwrap();
    assert_eq!(codec, Codec::Zstd);
    let mut decoder = GroupDecoder::default();
    assert_eq!(decoder.decode_remainder(codec, 5000, &encoded).unwrap(), raw);
    for wrong in [4999, 5001, 0, GROUP_BYTES_MAX as u32 + 1] {
        assert!(decoder.decode_remainder(codec, wrong, &encoded).is_err(), "{wrong}");
    }
    for cut in 0..encoded.len() {
        assert!(decoder.decode_remainder(codec, 5000, &encoded[..cut]).is_err(), "cut to {cut}");
    }
    assert!(decoder.decode_remainder(codec, 5000, &[&encoded[..], &[0]].concat()).is_err());
    assert!(decoder.decode_remainder(codec, 5000, &[&encoded[..], &encoded].concat()).is_err());
    assert!(decoder.decode_remainder(Codec::Raw, 4, b"five!").is_err());
    assert_eq!(decoder.decode_remainder(Codec::Raw, 5, b"five!").unwrap(), b"five!");
    let (codec, encoded) = RemainderEncoder::new(Some(19)).unwrap().encode(&sample::noise(3, 400)).unwrap();
    assert_eq!((codec, encoded), (Codec::Raw, sample::noise(3, 400)));
}

#[test]
fn tiles_are_greatest_subtrees_of_the_same_tree() {
    let leaves: Vec<LedgerNode> =
        (0..200u32).map(|leaf| LedgerNode::leaf(leaf_hash(&leaf.to_le_bytes()))).collect();
    for from in 0..70usize {
        for to in from..200 {
            let mut tiles = LedgerTiles::starting_at(from as u64);
            leaves[from..to].iter().for_each(|leaf| tiles.push(*leaf).unwrap());
            let (mut tree, mut plain) = (Frontier::default(), Frontier::default());
            leaves[..from].iter().for_each(|leaf| tree.push(leaf.hash));
            for node in tiles.nodes() {
                tree.push_node(*node).unwrap();
            }
            leaves[..to].iter().for_each(|leaf| plain.push(leaf.hash));
            assert_eq!(tree, plain, "{from}..{to}");
            assert!(tiles.nodes().len() <= 16);
        }
    }
}

#[test]
fn damaged_source_is_not_rewritten_and_leaves_no_file() {
    let sim = sample::sample_store(2);
    let files = sim.files().len();
    let path = paths().segment(SegmentId(2));
    let len = sim.read(&path).unwrap().len();
    for at in (SEGMENT_HEADER_BYTES as usize..len).step_by(701) {
        sim.edit(&path, |bytes| bytes[at] ^= 1).unwrap();
        let refused = sample::rewrite_rows(&sim, &SparseLiveSet, &[3], Recompress::Nothing).unwrap_err();
        assert_eq!((refused.kind(), sim.files().len()), (ErrorKind::Damaged, files), "byte {at}");
        sim.edit(&path, |bytes| bytes[at] ^= 1).unwrap();
    }
    assert!(sample::rewrite_rows(&sim, &SparseLiveSet, &[3], Recompress::Nothing).is_ok());
}
