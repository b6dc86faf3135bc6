//! The bytes of small tables, written down. A change here is a new format version.

use super::*;
use crate::kv::table::layout::{FOOTER_LEN, HEADER_LEN};
use annals_text::hex;
use std::ops::Bound;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn tailed() -> Vec<IndexEntry> {
    vec![entry(b"run\x01", 9, 1, 64), entry(b"run\x01", 4, 1, 32), entry(b"run\x02", 10, 2, 0)]
}

fn ended() -> Vec<IndexEntry> {
    vec![entry(b"", 3, 7, 1), entry(b"ab", 2, 7, 2), entry(b"abcd", 1, 7, 900)]
}

/// Frames 1 to 3 of three runs.
fn paired() -> Vec<IndexEntry> {
    let key = |run: u8, frame: u8| [b"frame".as_slice(), &[0, run, 0, 0, 0, frame]].concat();
    let frame = |n: u8| entry(&key(1 + n / 3, 1 + n % 3), 20 + u64::from(n), 1, 64 * u32::from(n));
    (0..9).map(frame).collect()
}

/// Three versions of each of four keys.
fn many() -> Vec<IndexEntry> {
    let version = |n: u64| entry(format!("session/{}", n / 3).as_bytes(), 100 - n, n % 2, (n * n * 7) as u32);
    (0..12).map(version).collect()
}

/// Parts in the order of the layout: header, block (words, crc, entries, keys, key coding, keys, columns), index, footer.
const TAILED: &str = "
         414e4e414c54424c 04000000 00 cd0556cb 03 02 01 03 72756e 01 020200 00000104 0800038501
         020000 02000104 80013f00 c8010000 0c000000000000000100000000 3400000000000000 01000000
         0300000000000000 30313233343536373839616263646566 0700000000000000 0300000000000000
         0010000000000000 6300000000000000 c9d6aea8 b989053e";
/// Written by version 3.
const TAILED_3: &str = "
         414e4e414c54424c 03000000 00 cd0556cb 03 02 01 03 72756e 01 020200 00000104 0800038501
         020000 02000104 80013f00 c8010000 0c000000000000000100000000 3400000000000000 01000000
         0300000000000000 30313233343536373839616263646566 0700000000000000 0300000000000000
         0010000000000000 6300000000000000 c9d6aea8 81922a23";
const PAIRED: &str = "
         414e4e414c54424c 04000000 00 d6e61953 09 09 02 06 6672616d6500 01 04
         02000240a502 020002244902 00020028020002000002000000800100c80100000c00000000000000
         01000000 00 3d00000000000000 01000000 0900000000000000
         30313233343536373839616263646566 0700000000000000 0300000000000000 0010000000000000
         6300000000000000 c9d6aea8 2825fc4e";
const ENDED: &str = "
         414e4e414c54424c 04000000 01 bdab021c
         400800014000042004a000000090000100020140800004010000102401080004 cc963696 03 03 00 00
         0106010561 626162636400
         02000601000200000e0000fd06820709c0010407c80100000c000000000000000100000000 5c00000000000000
         01000000 0300000000000000 30313233343536373839616263646566 0700000000000000 0300000000000000
         0010000000000000 6300000000000000 c9d6aea8 b94ac163";
const MANY: &str = "
         414e4e414c54424c 04000000 00 4ac6a1bd 0c 04 01 08 73657373696f6e2f
         0160020000000240a5fec8010100020000000001aa0aa3039a0108d28c542a0e00000e2a548cd2c80100000c00
         0000000000000100000000 4800000000000000 01000000 0c00000000000000
         30313233343536373839616263646566 0700000000000000 0300000000000000 0010000000000000
         6300000000000000 c9d6aea8 b7d8e4af";
const EMPTY: &str = "
         414e4e414c54424c 04000000 0c00000000000000 00000000 0000000000000000
         30313233343536373839616263646566 0700000000000000 0300000000000000 0010000000000000
         6300000000000000 00000000 3bc9acd4";

/// Version 3 wrote the same bytes with another number, and never a pair.
fn as_version_3(golden: &[u8]) -> Vec<u8> {
    let mut bytes = golden.to_vec();
    bytes[8] = 3;
    let crc_at = bytes.len() - 4;
    let footer = bytes.len() - FOOTER_LEN..crc_at;
    let crc = crc32fast::hash(&[&bytes[..HEADER_LEN], &bytes[footer]].concat());
    bytes[crc_at..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn check(entries: &[IndexEntry], filter: FilterPolicy, golden: &str) {
    let written = write(entries, filter);
    assert_eq!(hex::encode(&written), hex::encode(&bytes(golden)));
    check_read(entries, &written);
}

fn check_read(entries: &[IndexEntry], golden: &[u8]) {
    let table = open(golden).unwrap();
    table.verify().unwrap();
    assert_eq!(table.meta(), &META);
    let found: Vec<IndexEntry> = table.scan(Bound::Unbounded, Bound::Unbounded).map(Result::unwrap).collect();
    assert_eq!(found, entries);
}

#[test]
fn golden_table_with_key_tails() {
    check(&tailed(), FilterPolicy::Never, TAILED);
}

#[test]
fn golden_table_with_key_pairs() {
    check(&paired(), FilterPolicy::Never, PAIRED);
}

/// A table as a program of version 3 wrote it, and the same of the other golden tables.
#[test]
fn tables_of_version_3_are_read() {
    assert_eq!(hex::encode(&as_version_3(&bytes(TAILED))), hex::encode(&bytes(TAILED_3)));
    for (entries, golden) in [(tailed(), TAILED), (ended(), ENDED), (many(), MANY), (vec![], EMPTY)] {
        check_read(&entries, &as_version_3(&bytes(golden)));
    }
}

#[test]
fn golden_table_with_a_filter() {
    check(&ended(), FilterPolicy::Always, ENDED);
}

#[test]
fn golden_table_with_several_versions() {
    check(&many(), FilterPolicy::Never, MANY);
}

#[test]
fn golden_table_without_entries() {
    check(&[], FilterPolicy::Always, EMPTY);
}
