//! Bytes with correct checksums and wrong contents, as only an attacker or a bug of ours writes them.

use super::*;
use crate::kv::table::TableError;
use crate::kv::table::block_view::{BlockShape, RawBlock};
use crate::kv::table::cursor::{put_varint, zigzag};
use crate::kv::table::entry::VersionKey;
use crate::kv::table::index::{BlockIndex, BlockIndexBuilder};
use crate::kv::table::layout::{HEADER_LEN, TableFooter, block_crc, header};
use std::ops::Bound;

/// A block with a correct checksum around any body.
fn block(offset: u64, body: &[u8]) -> Vec<u8> {
    [&[0][..], &block_crc(&META, offset, 0, body).to_le_bytes(), body].concat()
}

/// A file with correct checksums around any blocks and index.
fn file(blocks: &[u8], index: &[u8], block_count: u32, entry_count: u64) -> Vec<u8> {
    let footer = TableFooter {
        index_offset: (HEADER_LEN + blocks.len()) as u64,
        block_count,
        entry_count,
        meta: META,
        index_crc: crc32fast::hash(index),
    };
    [&header()[..], blocks, index, &footer.encode()].concat()
}

fn varint(number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, number);
    out
}

/// A column of equal numbers.
fn same(number: u64) -> Vec<u8> {
    [&varint(zigzag(number))[..], &[0, 0]].concat()
}

/// A column of numbers that rise by one.
fn rising(first: u64) -> Vec<u8> {
    [&varint(zigzag(first))[..], &[2, 0]].concat()
}

/// Numbers of one byte each.
fn bytes(numbers: &[u8]) -> Vec<u8> {
    [&[0, 0, 8], numbers].concat()
}

fn decode(body: &[u8]) -> Result<BlockShape, &'static str> {
    let bytes = block(12, body);
    RawBlock::new(&bytes)?.check(&META, 12, |_| Ok(()))
}

/// The columns after the keys, if each entry has its own key.
fn values() -> Vec<u8> {
    [rising(0), same(5), same(1), same(1), same(1), same(1)].concat()
}

fn tailed(count: u64, head: &[u8], tail: u8, tails: &[u8]) -> Vec<u8> {
    keyed(count, &[&[1][..], &varint(head.len() as u64), head, &[tail], tails].concat())
}

fn paired(count: u64, head: &[u8], (high, low): (u8, u8), highs: &[u8], lows: &[u8]) -> Vec<u8> {
    keyed(count, &[&[2][..], &varint(head.len() as u64), head, &[high, low], highs, lows].concat())
}

fn ended(count: u64, head: &[u8], ends: &[u8], rests: &[u8]) -> Vec<u8> {
    keyed(count, &[&[0][..], &varint(head.len() as u64), head, ends, rests].concat())
}

fn keyed(count: u64, keys: &[u8]) -> Vec<u8> {
    [&varint(count)[..], &varint(count), keys, &values()].concat()
}

/// Two keys, and these columns for `entries` entries.
fn columns(entries: u64, which: &[u8], seqno: &[u8], kind: &[u8], b: &[u8]) -> Vec<u8> {
    let keys = [1, 1, b'k', 1, 14, 2, 0];
    [&varint(entries)[..], &[2], &keys, which, seqno, kind, &same(1), b, &same(1)].concat()
}

#[test]
fn test_builders_build_valid_blocks() {
    let len = |body: &[u8]| decode(body).map(|shape| shape.view(body).len());
    assert_eq!(len(&tailed(4, b"k", 1, &rising(7))), Ok(4));
    assert_eq!(len(&paired(4, b"k", (2, 1), &bytes(&[0, 0, 1, 2]), &bytes(&[3, 9, 3, 0]))), Ok(4));
    assert_eq!(len(&paired(2, b"k", (0, 8), &same(0), &rising(7))), Ok(2));
    assert_eq!(len(&ended(2, b"a", &rising(1), b"bc")), Ok(2));
    assert_eq!(len(&ended(3, b"", &bytes(&[0, 1, 3]), b"aab")), Ok(3));
    assert_eq!(len(&columns(3, &bytes(&[0, 0, 1]), &bytes(&[9, 7, 9]), &same(1), &same(1))), Ok(3));
}

#[test]
fn bad_blocks_are_refused() {
    let one = same(1);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("no bytes", vec![]),
        ("no entries", keyed(0, &[1, 0, 1, 0, 0, 0])),
        ("too many entries", tailed(5000, b"k", 2, &rising(0))),
        ("2^63 entries", tailed(1 << 63, b"k", 1, &rising(0))),
        ("more keys than entries", [&[1][..], &tailed(2, b"k", 1, &rising(0))[1..]].concat()),
        ("unknown key coding", [&varint(1)[..], &[1, 3, 0]].concat()),
        ("keys too long together", tailed(4096, &[0; 69_990], 2, &rising(0))),
        ("head too long", tailed(1, &[0; 70_001], 0, &same(0))),
        ("key too long", tailed(1, &[0; 70_000], 1, &same(0))),
        ("2^64-1 bytes of head", keyed(1, &[&[1][..], &varint(u64::MAX), &[0], &same(0)].concat())),
        ("tail longer than eight", tailed(1, b"k", 9, &same(0))),
        ("tail over its bytes", tailed(2, b"k", 1, &rising(255))),
        ("high number longer than eight", paired(1, b"k", (9, 1), &same(0), &same(0))),
        ("low number longer than eight", paired(1, b"k", (1, 9), &same(0), &same(0))),
        ("high number over its bytes", paired(2, b"k", (1, 1), &rising(255), &same(0))),
        ("low number over its bytes", paired(2, b"k", (1, 1), &rising(0), &rising(255))),
        ("equal pairs", paired(2, b"k", (1, 1), &same(1), &same(1))),
        ("falling high numbers", paired(2, b"k", (1, 1), &bytes(&[5, 4]), &rising(0))),
        ("falling low numbers", paired(2, b"k", (1, 1), &same(1), &bytes(&[5, 4]))),
        ("pairs without low numbers", keyed(1, &[&[2, 1, b'k', 1, 1][..], &same(0)].concat())[..9].to_vec()),
        ("head cut short", keyed(1, &[&[1][..], &varint(60_000), b"k", &[1], &same(0)].concat())),
        ("equal keys", tailed(2, b"k", 1, &same(1))),
        ("falling keys", tailed(2, b"k", 1, &bytes(&[5, 4]))),
        ("falling keys of any length", ended(2, b"", &rising(1), b"ba")),
        ("ends that fall", ended(3, b"", &bytes(&[1, 0, 2]), b"ab")),
        ("an end past the last", ended(3, b"", &bytes(&[1, 9, 2]), b"ab")),
        ("rests cut short", ended(2, b"", &bytes(&[1, 200]), b"ab")),
        ("an end of 2^64-1", ended(1, b"", &same(u64::MAX), b"ab")),
        ("a rest over the limit", ended(1, b"", &same(70_001), &[7; 70_001])),
        ("width over 64", tailed(2, b"k", 1, &[0, 0, 65])),
        ("width 64 without bytes", tailed(4000, b"k", 8, &[0, 0, 64])),
        ("a base that does not end", tailed(2, b"k", 1, &[0xff; 11])),
        ("bytes after the last column", [tailed(2, b"k", 1, &rising(1)), vec![0]].concat()),
        ("a key without an entry", columns(2, &same(0), &bytes(&[9, 8]), &one, &one)),
        ("a first entry of the second key", columns(2, &same(1), &bytes(&[9, 8]), &one, &one)),
        ("a third key of two", columns(3, &rising(0), &bytes(&[9, 8, 7]), &one, &one)),
        ("a key again", columns(3, &bytes(&[0, 1, 0]), &bytes(&[9, 8, 7]), &one, &one)),
        ("equal seqnos", columns(3, &bytes(&[0, 0, 1]), &same(9), &one, &one)),
        ("rising seqnos", columns(3, &bytes(&[0, 0, 1]), &rising(1), &one, &one)),
        ("kind over 255", columns(2, &rising(0), &one, &same(256), &one)),
        ("b over 2^32", columns(2, &rising(0), &one, &one, &same(1 << 32))),
    ];
    for (name, body) in cases {
        match decode(&body) {
            Ok(_) => panic!("{name}: was accepted"),
            Err(what) => println!("{name}: {what}"),
        }
        // The same by the public functions.
        let (index, count) = {
            let mut index = BlockIndexBuilder::default();
            index.add(12, None, VersionKey::newest_of(b"k")).unwrap();
            index.finish()
        };
        let table = open(&file(&block(12, &body), &index, count, 1)).unwrap();
        assert!(matches!(table.verify(), Err(TableError::Damaged { offset: 12, table: 7, .. })), "{name}");
        assert!(table.scan(Bound::Unbounded, Bound::Unbounded).any(|found| found.is_err()), "{name}");
        assert!(table.get(b"k", 9).is_err() && table.versions(b"k").is_err(), "{name}");
    }
}

#[test]
fn bad_indexes_are_refused() {
    let good = tailed(2, b"k", 1, &rising(1));
    let blocks = [block(12, &good), block(12 + good.len() as u64 + 5, &good)].concat();
    let second = 12 + good.len() as u64 + 5;
    let fixed = |offset: u64, end: u32| [&offset.to_le_bytes()[..], &end.to_le_bytes()].concat();
    let index = |parts: &[(u64, u32)], separators: &[u8]| {
        let mut out: Vec<u8> = parts.iter().flat_map(|part| fixed(part.0, part.1)).collect();
        out.extend_from_slice(separators);
        out
    };
    let ends = [(12, 1), (second, 3)];
    assert!(open(&file(&blocks, &index(&ends, b"\0\0z"), 2, 4)).is_ok());
    let cases: Vec<(&str, Vec<u8>, u32, u64)> = vec![
        ("no index", vec![], 2, 4),
        ("4 billion blocks", index(&ends, b"\0\0z"), u32::MAX, u64::MAX),
        ("fewer blocks", index(&ends, b"\0\0z"), 1, 4),
        ("no blocks", index(&ends, b"\0\0z"), 0, 0),
        ("too few entries", index(&ends, b"\0\0z"), 2, 1),
        ("too many entries", index(&ends, b"\0\0z"), 2, 8193),
        ("first block elsewhere", index(&[(13, 1), (second, 3)], b"\0\0z"), 2, 4),
        ("blocks out of order", index(&[(12, 1), (12, 3)], b"\0\0z"), 2, 4),
        ("a block past the index", index(&[(12, 1), (u64::MAX, 3)], b"\0\0z"), 2, 4),
        ("a block at the index", index(&[(12, 1), (12 + blocks.len() as u64, 3)], b"\0\0z"), 2, 4),
        ("separators end backwards", index(&[(12, 3), (second, 1)], b"\0\0z"), 2, 4),
        ("separators past the end", index(&[(12, 1), (second, u32::MAX)], b"\0\0z"), 2, 4),
        ("separators left over", index(&ends, b"\0\0zz"), 2, 4),
        ("an empty separator", index(&[(12, 1), (second, 1)], b"\0"), 2, 4),
        ("an endless seqno", index(&[(12, 1), (second, 3)], b"\0\xff\xff"), 2, 4),
        ("first separator not least", index(&[(12, 2), (second, 4)], b"\0a\0z"), 2, 4),
        ("equal separators", index(&[(12, 1), (second, 2)], b"\0\0"), 2, 4),
    ];
    for (name, index, count, entries) in cases {
        let found = open(&file(&blocks, &index, count, entries));
        assert!(matches!(found, Err(TableError::Damaged { table: 7, .. })), "{name}: {found:?}");
    }
    // The separators are in order, but the first block holds keys after the second separator.
    let table = open(&file(&blocks, &index(&ends, b"\0\0k"), 2, 4)).unwrap();
    assert!(table.verify().is_err());
    assert!(table.get(b"a", 9).is_err());
}

#[test]
fn an_index_outside_the_file_is_refused() {
    let bytes = write(&[entry(b"k", 1, 1, 1)], FilterPolicy::Never);
    let (footer, middle) = TableFooter::decode(&bytes).unwrap();
    for index_offset in [0, 11, footer.index_offset + 1, bytes.len() as u64, u64::MAX] {
        let moved = TableFooter { index_offset, ..footer };
        let refused = BlockIndex::new(&moved, middle).and_then(|index| index.validate(&moved));
        assert!(refused.is_err(), "{index_offset}");
        let forged = [&header()[..], middle, &moved.encode()].concat();
        assert!(open(&forged).is_err(), "{index_offset}");
    }
}

#[test]
fn wrong_entry_count_is_found_by_verify() {
    let bytes = write(&[entry(b"k", 1, 1, 1)], FilterPolicy::Never);
    let (footer, middle) = TableFooter::decode(&bytes).unwrap();
    let forged = [&header()[..], middle, &TableFooter { entry_count: 2, ..footer }.encode()].concat();
    assert!(open(&forged).unwrap().verify().is_err());
}

#[test]
fn filter_without_its_keys_is_found_by_verify() {
    let mut bytes = write(&[entry(b"k", 1, 1, 1)], FilterPolicy::Always);
    let (crc, filter) = (HEADER_LEN + 1, HEADER_LEN + 5..HEADER_LEN + 37);
    bytes[filter.clone()].fill(0);
    let right = block_crc(&META, HEADER_LEN as u64, 1, &bytes[filter]).to_le_bytes();
    bytes[crc..crc + 4].copy_from_slice(&right);
    assert!(open(&bytes).unwrap().verify().is_err());
}

#[test]
fn other_files_and_versions_are_refused() {
    let mut bytes = write(&[], FilterPolicy::Never);
    bytes[8] = 1;
    assert!(matches!(open(&bytes), Err(TableError::UnknownVersion { found: 1, known: 4 })));
    bytes[0] = b'a';
    assert!(matches!(open(&bytes), Err(TableError::NotATable { .. })));
    assert!(matches!(open(&[]), Err(TableError::NotATable { .. })));
}

#[test]
fn random_bodies_never_panic() {
    let mut mix = TableTestRng(4);
    let good = [tailed(40, b"k", 1, &rising(1)), paired(40, b"k", (1, 2), &rising(1), &same(9))];
    for round in 0..40_000u64 {
        let good = if round % 2 == 0 { &good[0] } else { &good[1] };
        let mut body = good.clone();
        for _ in 0..=round / 2 % 4 {
            let at = usize::try_from(mix.below(body.len() as u64)).unwrap();
            body[at] = mix.next().to_le_bytes()[0];
        }
        body.truncate(usize::try_from(1 + mix.below(2 * good.len() as u64)).unwrap());
        // Unchecked blocks may be queried, too: nothing panics.
        if let Ok(shape) = BlockShape::read(&body) {
            let view = shape.view(&body);
            let spot = VersionKey { key: b"k\x09", seqno: 5 };
            assert!(
                view.count_before(spot, false) <= view.len() && view.count_before(spot, true) <= view.len()
            );
            let entries: Vec<_> =
                (0..view.len() + 2).map(|at| (view.entry(at), view.is_version_of(at, b"k\x09"))).collect();
            if decode(&body).is_ok() {
                let spots: Vec<_> = entries.iter().filter_map(|(entry, _)| entry.as_ref()).collect();
                assert_eq!(spots.len(), view.len());
                assert!(
                    spots.windows(2).all(|pair| pair[0].version_key() < pair[1].version_key()),
                    "round {round}"
                );
            }
        }
    }
}
