//! Bytes with right checksums and wrong contents: what only an attacker or our own mistake writes.

use super::*;
use crate::kv::table::TableError;
use crate::kv::table::block::{Block, RawBlock};
use crate::kv::table::cursor::put_varint;
use crate::kv::table::entry::Spot;
use crate::kv::table::index::{Index, IndexBuilder};
use crate::kv::table::layout::{Footer, HEADER_LEN, block_crc, header};
use std::ops::Bound;

/// A block with right checksums around any body.
fn block(offset: u64, body: &[u8]) -> Vec<u8> {
    [&[0][..], &block_crc(&META, offset, 0, body).to_le_bytes(), body].concat()
}

/// A file with right checksums around any blocks and index.
fn file(blocks: &[u8], index: &[u8], block_count: u32, entry_count: u64) -> Vec<u8> {
    let footer = Footer {
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
    [&[0][..], &varint(number), &[0]].concat()
}

/// A column of numbers one more each.
fn rising(first: u64) -> Vec<u8> {
    [&[1][..], &varint(first), &varint(2), &[0]].concat()
}

fn decode(body: &[u8]) -> Result<Block, &'static str> {
    let bytes = block(12, body);
    RawBlock::new(&bytes)?.decode(&META, 12)
}

/// The columns after the keys.
fn values() -> Vec<u8> {
    [same(5), same(1), same(1), same(1), same(1)].concat()
}

fn tailed(count: u64, len: u64, tail: u64, head: &[u8], tails: &[u8]) -> Vec<u8> {
    [&varint(count)[..], &[1], &varint(len), &varint(tail), head, tails, &values()].concat()
}

fn prefixed(count: u64, shared: &[u8], lens: &[u8], suffixes: &[u8]) -> Vec<u8> {
    [&varint(count)[..], &[0], shared, lens, &[4], suffixes, &values()].concat()
}

#[test]
fn the_builders_above_build_good_blocks() {
    assert_eq!(decode(&tailed(4, 2, 1, b"k", &rising(7))).unwrap().len(), 4);
    assert_eq!(decode(&prefixed(2, &same(0), &same(2), b"abac")).unwrap().len(), 2);
    assert_eq!(decode(&prefixed(3, &same(0), &rising(0), b"aab")).unwrap().len(), 3);
}

#[test]
fn bad_blocks_are_refused() {
    let zstd = |raw: &[u8]| {
        let frame = zstd::bulk::compress(raw, 3).unwrap();
        [varint(frame.len() as u64), frame].concat()
    };
    let bomb = zstd(&vec![0; 8 << 20]);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("no bytes", vec![]),
        ("no entries", tailed(0, 2, 1, b"k", &[])),
        ("too many entries", tailed(5000, 2, 1, b"k", &rising(0))),
        ("2^63 entries", tailed(1 << 63, 2, 1, b"k", &rising(0))),
        ("unknown key coding", [&varint(1)[..], &[2]].concat()),
        ("keys too long together", tailed(4096, 70_000, 0, &[0; 70_000], &same(0))),
        ("key too long", tailed(1, 70_001, 0, &[0; 70_001], &same(0))),
        ("2^64-1 bytes of key", tailed(1, u64::MAX, 0, &[], &same(0))),
        ("tail longer than the key", tailed(1, 2, 3, &[], &same(0))),
        ("tail longer than eight", tailed(1, 20, 9, &[0; 11], &same(0))),
        ("tail over its bytes", tailed(2, 2, 1, b"k", &rising(255))),
        ("head cut short", tailed(1, 60_000, 0, b"k", &same(0))),
        ("equal entries", tailed(2, 2, 1, b"k", &same(1))),
        ("falling keys", tailed(2, 2, 1, b"k", &[1, 5, 1, 0])),
        ("shares before the first", prefixed(2, &same(1), &same(2), b"ab")),
        ("shares more than the one before has", prefixed(2, &[1, 0, 6, 0], &same(2), b"ab")),
        ("shares more than it has", prefixed(2, &rising(0), &[1, 1, 1, 0], b"a")),
        ("long keys out of little", prefixed(4000, &[1, 0, 0, 0], &same(70_000), b"")),
        ("a length over the limit", prefixed(1, &same(0), &same(70_001), b"")),
        ("a length of 2^64-1", prefixed(1, &same(0), &same(u64::MAX), b"")),
        ("suffixes cut short", prefixed(2, &same(0), &same(60_000), b"ab")),
        ("unknown column coding", tailed(2, 2, 1, b"k", &[5, 0, 0])),
        ("unknown flags", tailed(2, 2, 1, b"k", &[0x41, 0, 0])),
        ("width over 64", tailed(2, 2, 1, b"k", &[0, 0, 65])),
        ("width 64 without bytes", tailed(4000, 2, 1, b"k", &[0, 0, 64])),
        ("varints longer than can be", tailed(2, 2, 1, b"k", &[2, 0, 11])),
        ("varints of 2^64-1 bytes", tailed(2, 2, 1, b"k", &[[2, 0].as_slice(), &varint(u64::MAX)].concat())),
        ("a varint that does not end", tailed(2, 2, 1, b"k", &[2, 0, 2, 0x80, 0x80])),
        ("bytes after the last varint", tailed(2, 2, 1, b"k", &[2, 0, 2, 2, 2])),
        ("a bomb", tailed(2, 2, 1, b"k", &[&[0x80, 0, 8][..], &bomb].concat())),
        ("a frame too short", tailed(9, 2, 1, b"k", &[&[0x80, 0, 8][..], &zstd(&[1; 8])].concat())),
        ("not a frame", tailed(9, 2, 1, b"k", &[0x80, 0, 8, 3, 1, 2, 3])),
        ("a frame of 2^64-1 bytes", tailed(9, 2, 1, b"k", &[&[0x80, 0, 8][..], &varint(u64::MAX)].concat())),
        ("bytes after the last column", [tailed(2, 2, 1, b"k", &rising(1)), vec![0]].concat()),
        (
            "kind over 255",
            [&[1, 1, 1, 0, 7][..], &same(0), &same(5), &same(256), &same(1), &same(1), &same(1)].concat(),
        ),
        (
            "b over 2^32",
            [&[1, 1, 1, 0, 7][..], &same(0), &same(5), &same(1), &same(1), &same(1 << 32), &same(1)].concat(),
        ),
    ];
    for (name, body) in cases {
        match decode(&body) {
            Ok(_) => panic!("{name}: taken for good"),
            Err(what) => println!("{name}: {what}"),
        }
        // The same through the front door.
        let (index, count) = {
            let mut index = IndexBuilder::default();
            index.add(12, None, Spot::first(b"k")).unwrap();
            index.finish()
        };
        let table = open(&file(&block(12, &body), &index, count, 1)).unwrap();
        assert!(matches!(table.verify(), Err(TableError::Damaged { offset: 12, table: 7, .. })), "{name}");
        assert!(table.scan(Bound::Unbounded, Bound::Unbounded).any(|found| found.is_err()), "{name}");
    }
}

/// Few bytes that would unfold to 280 MB of keys are refused before they do.
#[test]
fn keys_that_unfold_without_end_are_refused() {
    let shares: Vec<u8> = (1..4000).flat_map(|_| varint(70_000)).collect();
    let shared = [&[3, 0][..], &varint(shares.len() as u64), &shares].concat();
    let refused = decode(&prefixed(4000, &shared, &same(70_000), &[b'k'; 70_000]));
    assert_eq!(refused.err(), Some("a block's keys are too long together"));
}

#[test]
fn bad_indexes_are_refused() {
    let good = tailed(2, 2, 1, b"k", &rising(1));
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
    // The separator is in order, but the blocks do not keep to it: the first holds keys after it.
    let table = open(&file(&blocks, &index(&ends, b"\0\0k"), 2, 4)).unwrap();
    assert!(table.verify().is_err());
    assert!(table.get(b"a", 9).is_err());
}

#[test]
fn an_index_outside_the_file_is_refused() {
    let bytes = write(&[entry(b"k", 1, 1, 1)], Filter::Never);
    let (footer, middle) = Footer::decode(&bytes).unwrap();
    for index_offset in [0, 11, footer.index_offset + 1, bytes.len() as u64, u64::MAX] {
        let moved = Footer { index_offset, ..footer };
        let refused = Index::new(&moved, middle).and_then(|index| index.validate(&moved));
        assert!(refused.is_err(), "{index_offset}");
        let forged = [&header()[..], middle, &moved.encode()].concat();
        assert!(open(&forged).is_err(), "{index_offset}");
    }
}

#[test]
fn a_miscounted_table_is_found_by_verify() {
    let bytes = write(&[entry(b"k", 1, 1, 1)], Filter::Never);
    let (footer, middle) = Footer::decode(&bytes).unwrap();
    let forged = [&header()[..], middle, &Footer { entry_count: 2, ..footer }.encode()].concat();
    assert!(open(&forged).unwrap().verify().is_err());
}

#[test]
fn a_filter_that_denies_its_keys_is_found_by_verify() {
    let mut bytes = write(&[entry(b"k", 1, 1, 1)], Filter::Always);
    let (crc, filter) = (HEADER_LEN + 1, HEADER_LEN + 5..HEADER_LEN + 37);
    bytes[filter.clone()].fill(0);
    let right = block_crc(&META, HEADER_LEN as u64, 1, &bytes[filter]).to_le_bytes();
    bytes[crc..crc + 4].copy_from_slice(&right);
    assert!(open(&bytes).unwrap().verify().is_err());
}

#[test]
fn other_files_and_versions_are_named() {
    let mut bytes = write(&[], Filter::Never);
    bytes[8] = 2;
    assert!(matches!(open(&bytes), Err(TableError::UnknownVersion { found: 2, known: 1 })));
    bytes[0] = b'a';
    assert!(matches!(open(&bytes), Err(TableError::NotATable { .. })));
    assert!(matches!(open(&[]), Err(TableError::NotATable { .. })));
}

#[test]
fn random_bodies_never_panic() {
    let mut mix = Mix(4);
    let good = tailed(40, 2, 1, b"k", &rising(1));
    for round in 0..20_000u64 {
        let mut body = good.clone();
        for _ in 0..=round % 4 {
            let at = usize::try_from(mix.below(body.len() as u64)).unwrap();
            body[at] = mix.next().to_le_bytes()[0];
        }
        body.truncate(usize::try_from(1 + mix.below(2 * good.len() as u64)).unwrap());
        if let Ok(block) = decode(&body) {
            assert!((1..block.len()).all(|at| block.spot(at - 1) < block.spot(at)), "round {round}");
        }
    }
}
