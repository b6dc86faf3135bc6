//! Hostile bytes of the log: every one gives a typed error, none a panic.

use std::io::IoSlice;
use std::path::Path;

use proptest::prelude::*;

use super::golden::bytes;
use super::samples::{self, OFFSET, SEGMENT, STORE, salt};
use crate::ErrorKind;
use crate::blob::decode_recipe;
use crate::codec::{self, ByteReader, CodecError};
use crate::format_tests::schema;
use crate::io::sim::SimIo;
use crate::io::{Io, OpenMode};
use crate::log::batch::BatchBuf;
use crate::log::cursor::{advance_state, for_each_checked_record};
use crate::log::joined::LogBatch;
use crate::log::layout::{
    BatchForm, BatchHeader, COUNT_MAX, LogState, RawRecord, SegmentFooter, SegmentHeader, length_field,
    seal_record, stamp_record, start_record,
};
use crate::log::manifest::{self, Manifest, ManifestState};
use crate::log::paths::StorePaths;
use crate::log::record::{
    BodyRef, EMBEDDINGS_MAX, EmbeddingHead, GroupPart, KV_INLINE_BYTES_MAX, KvHead, LAYOUT, LogicalBody,
    RecipeRef, RecordKind, SKIPPABLE, SpaceHead,
};
use crate::trace::heads::{
    COMPONENT_BYTES_MAX, FrameHead, PartHead, RULE_BYTES_MAX, RunHead, SnapshotHead, TombstoneHead,
    WHY_BYTES_MAX,
};

/// Calls `each` with the place of each record of a batch.
fn walk(bytes: &[u8], offset: u64, mut each: impl FnMut(u32)) -> Result<(), CodecError> {
    let batch = LogBatch::of(bytes, offset, salt())?;
    for_each_checked_record(&batch, salt(), |at, _, _| {
        each(at);
        Ok(())
    })
}

/// Runs every parser of the log on the same bytes; returns which accepted them.
fn parse_all(bytes: &[u8]) -> Vec<bool> {
    let mut reader = ByteReader::new(bytes, "recipe");
    let mut state = LogState::empty();
    vec![
        SegmentHeader::decode(bytes, STORE, SEGMENT).is_ok(),
        BatchHeader::peek(bytes).is_ok(),
        BatchHeader::check(bytes, salt(), OFFSET).is_ok(),
        RawRecord::check_whole(bytes, salt(), OFFSET).is_ok(),
        walk(bytes, OFFSET, |_| ()).is_ok(),
        LogBatch::of(bytes, OFFSET, salt())
            .and_then(|batch| advance_state(&*schema(), &mut state, &batch, salt()))
            .is_ok(),
        SegmentFooter::decode_end(bytes, OFFSET, salt()).is_ok(),
        (1..=3).all(|layout| LogicalBody::parse(layout, bytes).is_ok()),
        KvHead::parse(RecordKind::Put, bytes).is_ok(),
        KvHead::parse(RecordKind::Delete, bytes).is_ok(),
        codec::decode::<SpaceHead>(bytes).is_ok(),
        RunHead::parse(bytes).is_ok(),
        FrameHead::parse(bytes).is_ok(),
        PartHead::parse(bytes).is_ok(),
        SnapshotHead::parse(bytes).is_ok(),
        TombstoneHead::parse(bytes).is_ok(),
        GroupPart::parse(bytes).is_ok(),
        RecipeRef::take(&mut reader, 300).is_ok(),
        codec::decode::<ManifestState>(bytes).is_ok(),
        decode_recipe(bytes, None, 300).is_ok(),
    ]
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        parse_all(&bytes);
    }

    #[test]
    fn changed_bytes_are_read_without_a_panic(
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        byte: u8,
    ) {
        let all = samples::all();
        let mut bytes = which.get(&all).1.clone();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        parse_all(&bytes);
        // Also parses the bytes below the checksum.
        if let Some(body) = bytes.get(10..) {
            parse_all(body);
            if let Ok(logical) = LogicalBody::parse(LAYOUT, body) {
                parse_all(logical.head);
                parse_all(logical.tail);
            }
        }
    }
}

/// Runs `parse` on each proper prefix of `whole`, and on `whole` plus one byte: all must fail.
fn assert_exact_length<T: std::fmt::Debug>(
    name: &str,
    whole: &[u8],
    parse: impl Fn(&[u8]) -> Result<T, CodecError>,
) {
    parse(whole).unwrap();
    for cut in 0..whole.len() {
        assert!(parse(&whole[..cut]).is_err(), "{name} cut to {cut} bytes was taken");
    }
    let more = [whole, &[0]].concat();
    assert!(
        matches!(parse(&more), Err(CodecError::Trailing { count: 1, .. } | CodecError::Header(_))),
        "{name} with a byte more: {:?}",
        parse(&more)
    );
}

fn head(name: &str) -> Vec<u8> {
    let bytes = bytes(name);
    let record = RawRecord::check_whole(&bytes, salt(), OFFSET + 35).unwrap();
    LogicalBody::of(&record).unwrap().head.to_vec()
}

#[test]
fn heads_that_are_cut_or_too_long_are_refused() {
    assert_exact_length("put_inline", &head("put_inline"), |b| KvHead::parse(RecordKind::Put, b));
    assert_exact_length("put_blob", &head("put_blob"), |b| KvHead::parse(RecordKind::Put, b));
    assert_exact_length("delete", &head("delete"), |b| KvHead::parse(RecordKind::Delete, b));
    for name in ["namespace", "keyspace_newest", "keyspace_all"] {
        assert_exact_length(name, &head(name), codec::decode::<SpaceHead>);
    }
    assert_exact_length("run", &head("run"), RunHead::parse);
    for name in ["frame", "frame_open", "frame_other", "frame_ahead"] {
        assert_exact_length(name, &head(name), FrameHead::parse);
    }
    assert_exact_length("frame_part", &head("frame_part"), PartHead::parse);
    assert_exact_length("snapshot", &head("snapshot"), SnapshotHead::parse);
    assert_exact_length("tombstone", &head("tombstone"), TombstoneHead::parse);
    assert_exact_length("tombstone_of_fork", &head("tombstone_of_fork"), TombstoneHead::parse);
}

#[test]
fn tombstones_that_no_writer_makes_are_refused() {
    let good = samples::tombstone_of_fork();
    let parsed = |head: &TombstoneHead| TombstoneHead::parse(&head.encode());
    assert_eq!(parsed(&good), Ok(good.clone()));
    for parent in [2, 3, u64::MAX] {
        // A lineage of such parents would not end.
        let forged = TombstoneHead { parent: Some((crate::ids::RunUid(parent), 1, 1)), ..good.clone() };
        assert!(matches!(parsed(&forged), Err(CodecError::Unknown { found, .. }) if found == parent));
    }
    for (rule, why, fits) in
        [(RULE_BYTES_MAX, WHY_BYTES_MAX, true), (RULE_BYTES_MAX + 1, 0, false), (1, WHY_BYTES_MAX + 1, false)]
    {
        let long = TombstoneHead { rule: "r".repeat(rule), why: "w".repeat(why), ..good.clone() };
        assert_eq!(parsed(&long).is_ok(), fits, "{rule} {why}");
    }
    let mut bytes = samples::tombstone().encode();
    let at = bytes.len() - 1 - 7 - 8 - 1;
    assert_eq!(bytes[at], 0, "whether there is a parent");
    bytes[at] = 2;
    assert!(matches!(TombstoneHead::parse(&bytes), Err(CodecError::Unknown { found: 2, .. })));
    bytes[at] = 0;
    let end = bytes.len() - 2;
    bytes[end] = 0xff;
    assert!(TombstoneHead::parse(&bytes).is_err(), "a rule that is no UTF-8");
    assert_exact_length("embedding", &head("embedding"), EmbeddingHead::parse);
}

#[test]
fn cut_file_parts_are_refused() {
    let header = bytes("segment_header");
    let footer = bytes("footer");
    let batch = bytes("batch");
    for cut in 0..header.len() {
        assert!(SegmentHeader::decode(&header[..cut], STORE, SEGMENT).is_err(), "{cut}");
    }
    for cut in 0..footer.len() {
        assert!(SegmentFooter::decode_end(&footer[..cut], 4096, salt()).is_err(), "{cut}");
        assert!(SegmentFooter::decode_end(&footer[cut + 1..], 4096, salt()).is_err(), "{cut}");
    }
    for cut in 0..batch.len() {
        assert!(BatchHeader::check(&batch[..cut], salt(), OFFSET).is_err(), "{cut}");
    }
}

#[test]
fn every_flipped_bit_is_detected() {
    let flips = |whole: &[u8], refused: &dyn Fn(&[u8]) -> bool| {
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(refused(&bytes), "bit {bit}");
        }
    };
    flips(&bytes("segment_header"), &|b| SegmentHeader::decode(b, STORE, SEGMENT).is_err());
    flips(&bytes("footer"), &|b| SegmentFooter::decode_end(b, 4096, salt()).is_err());
    flips(&bytes("batch_long"), &|b| BatchHeader::check(b, salt(), OFFSET).is_err());
    flips(&bytes("batch"), &|b| BatchHeader::check(b, salt(), OFFSET).is_err());
    flips(&bytes("joined"), &|b| BatchHeader::check(b, samples::rewritten_salt(), OFFSET).is_err());
    flips(&bytes("frame"), &|b| RawRecord::check_whole(b, salt(), OFFSET + 35).is_err());
}

/// A segment header with one changed field and a valid checksum.
fn header_with(change: impl FnOnce(&mut SegmentHeader)) -> Result<SegmentHeader, CodecError> {
    let mut header = samples::segment_header();
    change(&mut header);
    SegmentHeader::decode(&header.encode().unwrap(), STORE, SEGMENT)
}

#[test]
fn unknown_formats_and_kinds_are_refused_by_name() {
    let newer = Err(CodecError::Newer { what: "segment", found: 5, known: 4 });
    assert_eq!(header_with(|h| h.format = 5), newer);
    for found in [0, 3] {
        let unknown = Err(CodecError::Unknown { what: "segment format", found: u64::from(found) });
        assert_eq!(header_with(|h| h.format = found), unknown);
    }
    // The checksum is that of format 1.
    let mut changed = bytes("segment_header");
    changed[8] ^= 16;
    let found = SegmentHeader::decode(&changed, STORE, SEGMENT);
    assert_eq!(found, Err(CodecError::Unknown { what: "segment format", found: 17 }));
    // Known formats, but with segment numbers of the other one.
    for rewritten in [2, 4] {
        assert!(matches!(header_with(|h| h.format = rewritten), Err(CodecError::Header(_))));
    }
    assert!(matches!(header_with(|h| h.segment.0 |= 1 << 31), Err(CodecError::Header(_))));
    assert_eq!(header_with(|h| h.cipher = 1), Err(CodecError::Unknown { what: "segment cipher", found: 1 }));
    assert!(matches!(header_with(|h| h.store.0[0] ^= 1), Err(CodecError::Header(_))));
    assert!(matches!(header_with(|h| h.segment.0 += 1), Err(CodecError::Header(_))));
    assert_eq!(RecordKind::parse(11, LAYOUT), Err(CodecError::Unknown { what: "record kind", found: 11 }));
    assert_eq!(RecordKind::parse(0, LAYOUT), Err(CodecError::Unknown { what: "record kind", found: 0 }));
    for kind in [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 16, 17, 18, 19] {
        assert!(matches!(RecordKind::parse(kind, LAYOUT), Ok(Some(known)) if known.code() == kind));
        for layout in [0, 2, 3, 4, 255] {
            // Layouts 2 and 3 say how a salt is stored. Only logical records have one.
            let known = kind < 16 && [2, 3].contains(&layout);
            let expected = CodecError::Unknown { what: "record layout", found: u64::from(layout) };
            assert_eq!(
                RecordKind::parse(kind, layout).err(),
                (!known).then_some(expected),
                "{kind} {layout}"
            );
        }
    }
    for kind in SKIPPABLE..=255 {
        assert_eq!(RecordKind::parse(kind, 77), Ok(None));
    }
}

#[test]
fn skippable_records_take_a_seqno_and_no_leaf() {
    let with = |kind: u8| {
        let mut batch = BatchBuf::new(crate::ids::NamespaceId(16));
        let start = start_record(&mut batch.bytes, kind, 9);
        batch.bytes.extend_from_slice(b"anything");
        seal_record(&mut batch.bytes, start);
        batch.starts.push(start as u32);
        batch.push_logical(RecordKind::Put, [1; 16], &samples::put_inline().encode(), &[]).unwrap();
        let bytes = samples::stamped(batch);
        let mut state = LogState::empty();
        let batch = LogBatch::of(&bytes, OFFSET, salt()).unwrap();
        advance_state(&*schema(), &mut state, &batch, salt()).map(|_| state)
    };
    let state = with(SKIPPABLE | 8).unwrap();
    assert_eq!((state.next_seqno.0, state.ledger.leaves, state.totals.records), (9, 1, 2));
    assert_eq!(with(11), Err(CodecError::Unknown { what: "record kind", found: 11 }));
}

/// Every caller keeps the offset of a record as 32 bits, and each cut it itself: a record beyond 4 GiB of a forged
/// segment would have led to the bytes at the cut offset.
#[test]
fn batch_that_ends_beyond_4_gib_is_refused() {
    let batch = bytes("batch");
    let offsets = |offset: u64| {
        let (mut batch, mut offsets) = (batch.clone(), Vec::new());
        stamp_record(&mut batch[35..], salt(), offset + 35);
        walk(&batch, offset, |at| offsets.push(u64::from(at))).map(|()| offsets)
    };
    let last = u64::from(u32::MAX) - batch.len() as u64;
    assert_eq!(offsets(last), Ok(vec![last + 35]));
    for beyond in [last + 1, last + (1 << 32), u64::MAX - 1000] {
        assert!(matches!(offsets(beyond), Err(CodecError::Limit { .. })), "{beyond}");
    }
}

#[test]
fn batch_with_wrong_record_count_is_refused() {
    let batch = bytes("batch_long");
    for records in [0u32, 2, u32::MAX] {
        let mut lying = batch.clone();
        lying[8..12].copy_from_slice(&records.to_le_bytes());
        assert!(walk(&lying, OFFSET, |_| ()).is_err(), "{records}");
    }
    let mut short = batch.clone();
    short[4..8].copy_from_slice(&47u32.to_le_bytes());
    assert!(matches!(BatchHeader::check(&short, salt(), OFFSET), Err(CodecError::Limit { .. })));
    let mut record = batch[48..].to_vec();
    record[4..8].copy_from_slice(&9u32.to_le_bytes());
    stamp_record(&mut record, salt(), OFFSET + 48);
    assert!(RawRecord::check_whole(&record, salt(), OFFSET + 48).is_err());
}

#[test]
fn short_batch_with_wrong_lengths_is_refused() {
    let batch = bytes("batch");
    let walk = |bytes: &[u8]| walk(bytes, OFFSET, |_| ());
    walk(&batch).unwrap();
    let mut short = batch.clone();
    short[4..8].copy_from_slice(&length_field(34));
    assert!(matches!(BatchHeader::check(&short, salt(), OFFSET), Err(CodecError::Limit { .. })));
    // The record is longer than its batch, and shorter than its own header. A batch of no records is none.
    for (at, byte) in [(40, batch[40] + 1), (40, 5), (40, 0)] {
        let mut lying = batch.clone();
        lying[at] = byte;
        assert!(walk(&lying).is_err(), "{byte}");
    }
    assert!(walk(&[&batch[..], &[0]].concat()).is_err(), "bytes after the last record");
    // In the long form, the length is not what the record's bytes say.
    assert!(RawRecord::unchecked(&batch[35..], BatchForm::Long { records: 1 }).is_err());
}

#[test]
fn lengths_over_their_limits_are_refused() {
    let reference = |number: u64, tag: u64| {
        let mut out = Vec::new();
        codec::put_varint(&mut out, number << 2 | tag);
        out.resize(out.len() + 5000, 0);
        BodyRef::take(&mut ByteReader::new(&out, "test")).is_ok()
    };
    assert!(reference(KV_INLINE_BYTES_MAX as u64, 0));
    assert!(!reference(KV_INLINE_BYTES_MAX as u64 + 1, 0));
    assert!(reference(1 << 40, 1));
    assert!(!reference(0, 2));
    assert!(reference(u64::from(u32::MAX), 2));
    assert!(!reference(1 << 32, 2));
    assert!(!reference(0, 3));
    let mut many = samples::snapshot();
    many.embeddings = vec![many.embeddings[0].clone(); EMBEDDINGS_MAX];
    assert!(SnapshotHead::parse(&many.encode()).is_ok());
    many.embeddings.push(many.embeddings[0].clone());
    assert!(matches!(SnapshotHead::parse(&many.encode()), Err(CodecError::Limit { what: "embeddings", .. })));
    let mut named = samples::frame_other();
    named.other = Some("x".repeat(COMPONENT_BYTES_MAX + 1));
    assert!(matches!(FrameHead::parse(&named.encode()), Err(CodecError::Limit { .. })));
    for parent in [0, 1] {
        let own = FrameHead { seq: 2, parent, ..samples::frame_other() };
        assert_eq!(FrameHead::parse(&own.encode()).unwrap().parent, parent);
    }
    // Two back from frame 2 would be frame 0. Run and seq have one byte, the flags two.
    let mut before_all = FrameHead { seq: 2, parent: 1, ..samples::frame() }.encode();
    before_all[4] = 2;
    assert!(matches!(
        FrameHead::parse(&before_all),
        Err(CodecError::Unknown { what: "frame parent", found: 2 })
    ));
    let mut flags = head("frame");
    flags[4] |= 0x04; // run one byte, seq two, then the flags
    assert!(matches!(FrameHead::parse(&flags), Err(CodecError::Unknown { what: "frame flags", .. })));
}

/// Sums of these counts use plain additions, so an unreachable count is refused on reading.
#[test]
fn unreachable_counts_are_not_sound() {
    assert!(samples::log_state().is_sound() && LogState::empty().is_sound());
    let changes: [fn(&mut LogState); 8] = [
        |state| state.next_seqno.0 = 0,
        |state| state.next_seqno.0 = COUNT_MAX + 1,
        |state| state.next_group = COUNT_MAX + 1,
        |state| state.next_run = COUNT_MAX + 1,
        |state| state.totals.batches = COUNT_MAX + 1,
        |state| state.totals.chain_bytes = COUNT_MAX + 1,
        |state| state.ledger.leaves = COUNT_MAX + 1,
        |state| state.ledger.leaves += 1,
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut state = samples::log_state();
        change(&mut state);
        assert!(!state.is_sound(), "change {number}");
    }
}

/// Loads a store that has only a manifest, after `change` modified its files.
fn load_changed(change: impl FnOnce(&SimIo, &StorePaths)) -> crate::Result<Option<manifest::LoadedManifest>> {
    let sim = SimIo::new(1);
    let root = Path::new("store");
    sim.create_dir_all(root).unwrap();
    let paths = StorePaths::new(root);
    let mut manifest = Manifest::create(&sim, &paths, 7, samples::manifest_state()).unwrap();
    manifest.state.synced = 97;
    manifest.append().unwrap();
    change(&sim, &paths);
    manifest::load(&sim, &paths)
}

#[test]
fn manifest_may_be_torn_only_in_its_last_edit() {
    let whole = load_changed(|_, _| {}).unwrap().unwrap();
    assert_eq!((whole.generation, whole.state.synced), (7, 97));
    let edit = bytes("manifest").len();
    let changed =
        |at: usize| load_changed(|sim, paths| sim.edit(&paths.manifest(7), |b| b[at] ^= 1).unwrap());
    for at in [0, 20, 27, 28, 32, 40, edit - 1] {
        assert_eq!(changed(at).unwrap_err().kind(), ErrorKind::Damaged, "byte {at}");
    }
    assert_eq!(changed(edit + 5).unwrap().unwrap().state.synced, 96);
    for cut in [edit, edit + 1, edit + 20] {
        let cut = load_changed(|sim, paths| sim.edit(&paths.manifest(7), |b| b.truncate(cut)).unwrap());
        assert_eq!(cut.unwrap().unwrap().state.synced, 96);
    }
    let none = load_changed(|sim, paths| sim.edit(&paths.manifest(7), |b| b.truncate(28)).unwrap());
    assert_eq!(none.unwrap_err().kind(), ErrorKind::Damaged);
}

#[test]
fn current_file_must_be_exactly_its_line() {
    for line in ["", "MANIFEST-0007", "MANIFEST-0007 00000000\n", "MANIFEST-7 00000000\n", "\u{7f}\n"] {
        let loaded = load_changed(|sim, paths| sim.edit(&paths.current(), |b| *b = line.into()).unwrap());
        assert_eq!(loaded.unwrap_err().kind(), ErrorKind::Damaged, "{line:?}");
    }
    let gone = load_changed(|sim, paths| sim.remove(&paths.manifest(7)).unwrap());
    assert_eq!(gone.unwrap_err().kind(), ErrorKind::Damaged);
}

#[test]
fn manifest_of_a_newer_format_is_unsupported() {
    let sim = SimIo::new(1);
    let root = Path::new("store");
    sim.create_dir_all(root).unwrap();
    let paths = StorePaths::new(root);
    Manifest::create(
        &sim,
        &paths,
        1,
        ManifestState { format: manifest::FORMAT + 1, ..samples::manifest_state() },
    )
    .unwrap();
    assert_eq!(manifest::load(&sim, &paths).unwrap_err().kind(), ErrorKind::Unsupported);
    let file = sim.open(&paths.current(), OpenMode::Write).unwrap();
    file.write_at(&[IoSlice::new(&[0xff; 300])], 0).unwrap();
    assert_eq!(manifest::load(&sim, &paths).unwrap_err().kind(), ErrorKind::Damaged);
}

/// A footer with a valid checksum and wrong content.
#[test]
fn wrong_footer_with_valid_checksum_is_refused() {
    let start = 4000;
    let with = |change: &dyn Fn(&mut SegmentFooter), len_off: i64, before: usize| {
        let mut footer = samples::footer();
        change(&mut footer);
        let mut end = codec::encode(&(footer.tail, &footer.state, footer.root)).unwrap();
        end.extend_from_slice(&u32::try_from(end.len() as i64 + len_off).unwrap().to_le_bytes());
        let from = before as i64 - len_off;
        let mut bytes = vec![3; before];
        bytes.extend_from_slice(&end);
        let covered = bytes.get(usize::try_from(from).unwrap_or(0)..).unwrap();
        let crc = salt().crc(u64::try_from(start + from).unwrap(), covered);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes.extend_from_slice(b"annalend");
        SegmentFooter::decode_end(&bytes, u64::try_from(start).unwrap(), salt())
    };
    let said = |result: Result<SegmentFooter, CodecError>| {
        result.map(|footer| footer.tail).map_err(|e| e.to_string())
    };
    assert_eq!(said(with(&|_| {}, 0, 96)), Ok(4096));
    // A tail that differs from the footer's position, then an impossible state at the right position.
    let contradicts = Err("its footer contradicts the segment".to_owned());
    assert_eq!(said(with(&|footer| footer.tail = 4097, 0, 96)), contradicts);
    assert_eq!(said(with(&|_| {}, 0, 95)), contradicts);
    assert_eq!(said(with(&|footer| footer.state.next_seqno.0 = 0, 0, 96)), contradicts);
    // A length that reaches before the given bytes; reaching exactly their start is valid.
    assert_eq!(said(with(&|footer| footer.tail = 4000, 0, 0)), Ok(4000));
    let length = Err("its footer has an impossible length".to_owned());
    assert_eq!(said(with(&|_| {}, 1, 0)), length);
    assert!(said(with(&|_| {}, 1, 96)).is_err() && said(with(&|_| {}, -1, 96)).is_err());
}

#[test]
fn frame_flags_reject_unknown_link_bits() {
    let whole = FrameHead { seq: 5, link: None, parent: 0, ..samples::frame() }.encode();
    assert!(FrameHead::parse(&whole).is_ok());
    // The flags' second byte: a link, and another frame's link; all other bits are unknown.
    for high in 0..=255u8 {
        let mut bytes = whole.clone();
        bytes[3] = high;
        let unknown =
            matches!(FrameHead::parse(&bytes), Err(CodecError::Unknown { what: "frame flags", .. }));
        assert_eq!(unknown, high > 3 || high == 2, "{high}");
    }
}

/// The first bytes of an id are enough only where the record's own link proves the others.
#[test]
fn id_front_without_own_link_is_refused() {
    let front = |head: FrameHead| {
        let mut bytes = head.encode();
        let whole = [&[0xb1, 0x09][..], &[0xb1; 32]].concat();
        let Some(at) = bytes.windows(whole.len()).position(|window| *window == whole) else {
            return FrameHead::parse(&bytes);
        };
        bytes[at] |= 2;
        bytes.drain(at + 2 + 8..at + whole.len());
        FrameHead::parse(&bytes)
    };
    assert_eq!(front(samples::frame()).unwrap(), samples::frame().with_id_fronts());
    for unproved in [samples::frame_open(), samples::frame_ahead()] {
        let refused = CodecError::Unknown { what: "body reference", found: 300 << 2 | 3 };
        assert_eq!(front(unproved).unwrap_err().to_string(), refused.to_string());
    }
    // The link covers the metadata without its key `volatile`, so it proves no id of it.
    let blob = samples::frame().input;
    let metadata = FrameHead { metadata: blob, input: BodyRef::Inline(Vec::new()), ..samples::frame() };
    assert!(front(metadata).is_err());
}

#[test]
fn a_frames_parent_is_before_it() {
    // Run and seq have one byte, the flags two.
    for (back, parent) in [(0, Some(0)), (1, Some(4)), (4, Some(1)), (5, None), (6, None)] {
        let mut bytes = FrameHead { seq: 5, parent: 1, ..samples::frame() }.encode();
        bytes[4] = back;
        assert_eq!(FrameHead::parse(&bytes).ok().map(|head| head.parent), parent, "{back}");
    }
}
