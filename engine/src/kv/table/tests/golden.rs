//! The bytes of small tables, written down. A change here is a new format version.
//!
//! Tables that hold a zstd frame are only read back: another zstd may find a shorter frame for the same bytes.

use super::*;
use std::ops::Bound;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn tailed() -> Vec<Entry> {
    vec![entry(b"run\x01", 9, 1, 64), entry(b"run\x01", 4, 1, 32), entry(b"run\x02", 10, 2, 0)]
}

fn prefixed() -> Vec<Entry> {
    vec![entry(b"", 3, 7, 1), entry(b"ab", 2, 7, 2), entry(b"abcd", 1, 7, 900)]
}

/// Varint steps, bytes and frames under zstd.
fn squeezed() -> Vec<Entry> {
    (0..60u64)
        .map(|n| {
            let key = format!("session/{:02}/{}", n, "turn".repeat(usize::try_from(n % 4).unwrap()));
            let step = if n % 7 == 0 { 1 << 20 } else { 100 };
            entry(key.as_bytes(), n * n, n % 5, u32::try_from(n * step).unwrap())
        })
        .collect()
}

/// Parts in the order of the layout: header, block (words, crc, count, key coding, keys, columns), index, footer.
const TAILED: &str = "
         414e4e414c54424c 01000000 00 60c7d2cc 03 01 04 01 72756e 00010104 0004038501 000100 00010104
         01403f00 006400 0c0000000000000001000000 00 2f00000000000000 01000000 0300000000000000
         30313233343536373839616263646566 0700000000000000 0300000000000000 0010000000000000
         6300000000000000 c9d6aea8 e895a45d";
const PREFIXED: &str = "
         414e4e414c54424c 01000000 01 c79c2083
         01000200220008000120010000400004102200000000a4000000010c60000004 ce1d6780 03 00 00000220
         01000400 0461626364 00010206 000100 000700 00010a00043038 006400 0c0000000000000001000000 00
         5800000000000000 01000000 0300000000000000 30313233343536373839616263646566 0700000000000000
         0300000000000000 0010000000000000 6300000000000000 c9d6aea8 2f71a46c";
const SQUEEZED: &str = "
         414e4e414c54424c0100000000d67db10d3c0083003b1328b52ffd00005500001009080200b644817057800b041128b5
         2ffd00004500001040c80100310e0b846328b52ffd0000d50200c40273657373696f6e2f30302f312f7475726e323334
         2f353637382f39313031322f333435362f3738393233343514a040e874ff0ce08221740c652aa8fa6995a21f955dc7cf
         5cea4238a5ea5f4667568d87da85821720574e01010002080004080c1014181c2024282c3034383c4044484c5054585c
         6064686c7074787c8084888c9094989ca0a4a8acb0b4b8bcc0c4c8ccd0d4d8dce0e4e800010082003b1428b52ffd0000
         5d00002802020202070100c359b48100c8011b5928b52ffd000085020074030020ea7fe31eff1b88fadffccdff0680f9
         fea903f74f0140d4fff688fe37002af9172fc6bf0880f9fee967b8d91f3ec1fe3088fadfafd20900115368988d12120d
         1003100e100e10b373361277050064000c0000000000000001000000006001000000000000010000003c000000000000
         003031323334353637383961626364656607000000000000000300000000000000001000000000000063000000000000
         00c9d6aea8adbd28e9";
const EMPTY: &str = "
         414e4e414c54424c01000000 0c00000000000000 00000000 0000000000000000
         30313233343536373839616263646566 0700000000000000 0300000000000000 0010000000000000
         6300000000000000 00000000 3eb6770e";

fn check(entries: &[Entry], filter: Filter, golden: &str) {
    let written = write(entries, filter);
    assert_eq!(hex(&written), hex(&bytes(golden)));
    check_read(entries, golden);
}

fn check_read(entries: &[Entry], golden: &str) {
    let table = open(&bytes(golden)).unwrap();
    table.verify().unwrap();
    assert_eq!(table.meta(), &META);
    let found: Vec<Entry> = table.scan(Bound::Unbounded, Bound::Unbounded).map(Result::unwrap).collect();
    assert_eq!(found, entries);
}

#[test]
fn keys_with_a_tail() {
    check(&tailed(), Filter::Never, TAILED);
}

#[test]
fn keys_by_prefix_with_a_filter() {
    check(&prefixed(), Filter::Always, PREFIXED);
}

#[test]
fn compressed_columns_are_read() {
    check_read(&squeezed(), SQUEEZED);
}

#[test]
fn no_entries() {
    check(&[], Filter::Always, EMPTY);
}
