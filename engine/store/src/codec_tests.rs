//! Varints and the bincode form: round trips, and every refusal that docs/format.md promises.

use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use super::*;

fn varint_of(bytes: &[u8]) -> Result<u64, CodecError> {
    let mut r = ByteReader::new(bytes, "test");
    let value = r.varint()?;
    r.finish()?;
    Ok(value)
}

proptest! {
    #[test]
    fn varints_round_trip_in_shortest_form(value: u64, signed: i64, follow: u8) {
        let mut out = Vec::new();
        put_varint(&mut out, value);
        let bits = 64 - value.leading_zeros() as usize;
        prop_assert_eq!(out.len(), bits.div_ceil(7).max(1));
        prop_assert_eq!(varint_of(&out), Ok(value));
        for cut in 0..out.len() {
            let short = matches!(varint_of(&out[..cut]), Err(CodecError::Short { .. }));
            prop_assert!(short);
        }
        // The same number in one byte more.
        if out.len() < 10 {
            let mut longer = out.clone();
            if let Some(last) = longer.last_mut() { *last |= 0x80 }
            longer.push(0);
            prop_assert_eq!(varint_of(&longer), Err(CodecError::Varint));
        }
        out.push(follow);
        prop_assert_eq!(varint_of(&out), Err(CodecError::Trailing { what: "test", count: 1 }));
        let mut out = Vec::new();
        put_signed(&mut out, signed);
        let mut r = ByteReader::new(&out, "test");
        prop_assert_eq!(r.signed(), Ok(signed));
        prop_assert_eq!(r.finish(), Ok(()));
    }

    #[test]
    fn decoded_varint_encodes_to_the_same_bytes(bytes in prop::collection::vec(any::<u8>(), 0..12)) {
        let mut r = ByteReader::new(&bytes, "test");
        if let Ok(value) = r.varint() {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            prop_assert_eq!(out.as_slice(), &bytes[..bytes.len() - r.take_rest().len()]);
        }
    }
}

#[test]
fn varints_match_the_specification_examples() {
    let of = |value| {
        let mut out = Vec::new();
        put_varint(&mut out, value);
        out
    };
    assert_eq!(of(0), [0]);
    assert_eq!(of(127), [0x7f]);
    assert_eq!(of(128), [0x80, 1]);
    assert_eq!(of(300), [0xac, 2]);
    assert_eq!(of(u64::MAX), [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]);
    let signed = |value| {
        let mut out = Vec::new();
        put_signed(&mut out, value);
        out
    };
    assert_eq!(
        [signed(0), signed(-1), signed(1), signed(-64), signed(64)].concat(),
        [0, 1, 2, 0x7f, 0x80, 1]
    );
}

#[test]
fn overlong_numbers_are_refused() {
    for bytes in [
        &[0x80, 0][..],
        &[0xff; 10],
        &[0xff; 11],
        &[0x80; 10],
        &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2],
    ] {
        assert_eq!(varint_of(bytes), Err(CodecError::Varint), "{bytes:02x?}");
    }
    let mut r = ByteReader::new(&[0x80, 0x80, 0x80, 0x80, 0x10], "test");
    assert_eq!(
        r.varint32(),
        Err(CodecError::Limit { what: "test", found: 1 << 32, limit: u64::from(u32::MAX) })
    );
}

#[test]
fn lengths_are_checked_before_anything_is_taken() {
    let over = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 7];
    let mut r = ByteReader::new(&over, "test");
    assert_eq!(r.bytes(16), Err(CodecError::Limit { what: "test", found: u64::MAX, limit: 16 }));
    let mut r = ByteReader::new(&over, "test");
    assert!(matches!(r.bytes(usize::MAX), Err(CodecError::Short { .. })));
    let mut r = ByteReader::new(&[2, 0xff, 0xfe], "test");
    assert_eq!(r.text(16), Err(CodecError::Utf8));
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum BincodeSample {
    Empty,
    Full { number: u16, text: String, list: Vec<u32>, maybe: Option<u8>, array: [u8; 3], flag: bool },
}

#[test]
fn bincode_form_matches_the_format_contract() {
    assert_eq!(encode(&BincodeSample::Empty).unwrap(), [0, 0, 0, 0]);
    let full = BincodeSample::Full {
        number: 0x102,
        text: "ab".into(),
        list: vec![5],
        maybe: Some(9),
        array: [1, 2, 3],
        flag: true,
    };
    let bytes = encode(&full).unwrap();
    assert_eq!(
        bytes,
        [
            1, 0, 0, 0, // the variant's number, u32
            2, 1, // u16, little-endian
            2, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', // length u64, bytes
            1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, // length u64, elements
            1, 9, // Some
            1, 2, 3, // an array has no length
            1, // true
        ]
    );
    assert_eq!(decode::<BincodeSample>(&bytes).unwrap(), full);
    for cut in 0..bytes.len() {
        assert!(matches!(decode::<BincodeSample>(&bytes[..cut]), Err(CodecError::Header(_))), "{cut} bytes");
    }
    let trailing = [&bytes[..], &[0]].concat();
    assert!(matches!(decode::<BincodeSample>(&trailing), Err(CodecError::Header(_))));
    let with = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        decode::<BincodeSample>(&bytes)
    };
    assert!(with(0, 2).is_err(), "an unknown variant");
    assert!(with(13, 0xff).is_err(), "a text of 2^56 bytes and more");
    assert!(with(28, 2).is_err(), "an option's byte that is neither 0 nor 1");
    assert!(with(bytes.len() - 1, 2).is_err(), "a truth value that is neither 0 nor 1");
    assert!(with(14, 0xff).is_err(), "text that is not UTF-8");
}

#[test]
fn header_over_the_limit_is_not_encoded() {
    let bytes = vec![0u8; HEADER_BYTES_MAX as usize];
    assert!(matches!(encode(&bytes), Err(CodecError::Header(_))));
}

#[test]
fn length_beyond_the_bytes_is_refused_without_allocation() {
    for len in [1u64, 1 << 40, u64::MAX] {
        assert!(matches!(decode::<Vec<u8>>(&len.to_le_bytes()), Err(CodecError::Header(_))), "{len}");
        assert!(matches!(decode::<Vec<String>>(&len.to_le_bytes()), Err(CodecError::Header(_))), "{len}");
    }
}
