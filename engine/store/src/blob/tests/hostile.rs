//! Hostile bytes: every one gives a typed error, within bounded memory and without a panic.

use proptest::prelude::*;

use super::store::{SEED, bytes_of};
use crate::blob::*;

/// A group of four parts and its raw bytes.
fn group() -> (Vec<u8>, Vec<EncodedPart>) {
    let mut writer = GroupWriter::new(GroupId(7), Codec::Zstd, SEED).unwrap();
    let mut parts = Vec::new();
    for (seed, len, kind) in [(1, 9_000, 0), (2, 300, 0), (3, 5_000, 1), (4, 70_000, 3)] {
        writer.append(&bytes_of(seed, len, kind), None::<std::iter::Empty<usize>>, &mut Vec::new()).unwrap();
        parts.extend(writer.flush().unwrap());
    }
    (writer.raw().to_vec(), parts)
}

fn decode(parts: &[EncodedPart]) -> Result<Vec<u8>, BlobError> {
    decode_group(parts.iter().map(|p| (p.codec, p.raw_len, p.encoded.as_slice())))
}

#[test]
fn group_prefix_decodes() {
    let (raw, parts) = group();
    let mut len = 0;
    for (i, part) in parts.iter().enumerate() {
        assert_eq!(part.raw_start as usize, len);
        len += part.raw_len as usize;
        assert!(decode(&parts[..=i]).unwrap() == raw[..len]);
    }
    assert_eq!(decode(&[]).unwrap(), b"");
}

#[test]
fn bombs_ended_frames_and_wrong_lengths_are_refused() {
    let zeros = zstd::bulk::compress(&vec![0; 50_000_000], 3).unwrap();
    let one = |raw_len, encoded: &[u8]| decode_group([(Codec::Zstd, raw_len, encoded)]);
    assert!(matches!(one(1000, &zeros), Err(BlobError::PartLength { .. } | BlobError::PartDamaged { .. })));
    assert!(matches!(one(u32::MAX, &zeros), Err(BlobError::GroupTooLong { .. })));
    let ended = zstd::bulk::compress(b"hello hello hello", 3).unwrap();
    assert!(matches!(one(17, &ended), Err(BlobError::PartDamaged { .. })));
    let (_, parts) = group();
    for change in [-1i64, 1] {
        let mut wrong = parts.clone();
        wrong[1].raw_len = u32::try_from(i64::from(wrong[1].raw_len) + change).unwrap();
        assert!(matches!(decode(&wrong), Err(BlobError::PartLength { part: 1, .. })));
    }
    let mut longer = parts.clone();
    longer[3].encoded.extend_from_slice(&[1, 2, 3, 4, 5, 6]);
    assert!(decode(&longer).is_err());
    let mut mixed = parts;
    mixed[2].codec = Codec::Raw;
    assert!(matches!(decode(&mixed), Err(BlobError::MixedCodec { part: 2 })));
    let raw = decode_group([(Codec::Raw, 4, &b"five!"[..])]);
    assert!(matches!(raw, Err(BlobError::PartLength { .. })));
    assert!(matches!(Codec::from_code(2), Err(BlobError::UnknownCodec { found: 2 })));
}

#[test]
fn recipe_copying_a_big_base_repeatedly_is_refused() {
    let base: Vec<Extent> = (0..100_000).map(|i| Extent { group: GroupId(i), offset: 0, len: 1 }).collect();
    let mut bomb = Vec::new();
    for _ in 0..1000 {
        // Copy 100,000 bytes from the base's start: 400,000 as a number, then back by 100,000.
        bomb.extend([0x80, 0xb5, 0x18]);
        bomb.extend(if bomb.len() == 3 { vec![0] } else { vec![0xbf, 0x9a, 0x0c] });
    }
    assert!(matches!(decode_recipe(&bomb, Some(&base), 1 << 30), Err(BlobError::TooManyExtents { .. })));
    let far = [[0xff; 4].as_slice(), &[0x7f, 0]].concat();
    assert!(matches!(decode_recipe(&far, Some(&base), 1 << 30), Err(BlobError::BodyTooLong { .. })));
}

/// The coded form is the format's contract: these bytes never change without a version bump.
#[test]
fn recipe_matches_golden_bytes() {
    let e = |group, offset, len| Extent { group: GroupId(group), offset, len };
    let base = [e(5, 1000, 500), e(3, 40, 60)];
    let new = [e(5, 1000, 450), e(5, 1500, 10), e(3, 40, 60), e(5, 1600, 7), e(6, 0, 200), e(2, 9, 1)];
    let coded = encode_recipe(&new, Some(&base));
    let golden = [136, 14, 0, 41, 240, 1, 100, 30, 180, 1, 163, 6, 2, 0, 3, 7, 18];
    assert_eq!(coded, golden);
    assert_eq!(decode_recipe(&coded, Some(&base), body_len(&new)).unwrap(), new);
    let (key, start) = anchors_of(&bytes_of(1, 5_000, 0), AnchorSeed(3))[0];
    assert_eq!((key.0, start), (245_165_060_755_816, 278));
}

/// Length of the body that these extents make, in bytes.
fn body_len(extents: &[Extent]) -> u64 {
    extents.iter().map(|extent| u64::from(extent.len)).sum()
}

fn extents() -> impl Strategy<Value = Vec<Extent>> {
    let one = (0u64..4, 0u32..600, 1u32..200);
    prop::collection::vec(one.prop_map(|(g, offset, len)| Extent { group: GroupId(g), offset, len }), 0..40)
}

/// Merges adjacent extents, as packers and decoders do.
fn merged_neighbours(extents: &[Extent]) -> Vec<Extent> {
    let mut out = Vec::new();
    extents.iter().for_each(|e| recipe::push_extent(&mut out, *e));
    out
}

proptest! {
    #[test]
    fn recipe_round_trips_against_any_base(new in extents(), base in extents(), shared in extents()) {
        let base = [base.as_slice(), &shared].concat();
        let new = merged_neighbours(&[shared.as_slice(), &new, &shared].concat());
        for base in [None, Some(base.as_slice())] {
            let coded = encode_recipe(&new, base);
            prop_assert_eq!(&decode_recipe(&coded, base, body_len(&new)).unwrap(), &new);
        }
    }

    #[test]
    fn damaged_recipes_never_panic(
        new in extents(), base in extents(), noise in prop::collection::vec(any::<u8>(), 0..60),
        at in any::<prop::sample::Index>(), bit in 0u8..8,
    ) {
        let mut coded = encode_recipe(&merged_neighbours(&new), Some(&base));
        if !coded.is_empty() {
            let at = at.index(coded.len());
            coded[at] ^= 1 << bit;
            if bit % 2 == 0 {
                coded.truncate(at);
            }
        }
        for bytes in [&coded, &noise] {
            if let Ok(extents) = decode_recipe(bytes, Some(&base), body_len(&new)) {
                prop_assert!(extents.iter().all(|e| e.len > 0 && e.end() as usize <= GROUP_BYTES_MAX));
            }
        }
    }

    #[test]
    fn damaged_parts_never_panic_or_change_length(
        part in 0usize..4, at in any::<prop::sample::Index>(), noise in prop::collection::vec(any::<u8>(), 1..9),
        cut in any::<bool>(),
    ) {
        let (raw, mut parts) = group();
        let encoded = &mut parts[part].encoded;
        let at = at.index(encoded.len());
        if cut {
            encoded.truncate(at);
        } else {
            encoded[at..].iter_mut().zip(&noise).for_each(|(to, from)| *to ^= from);
        }
        // Wrong bytes may come out: only the caller's hash can detect them. The length never differs.
        if let Ok(out) = decode(&parts) {
            prop_assert_eq!(out.len(), raw.len());
        }
    }

    #[test]
    fn varints_round_trip(value in any::<u64>(), signed in any::<i64>()) {
        use crate::codec::{ByteReader, put_signed, put_varint};
        let mut out = Vec::new();
        put_varint(&mut out, value);
        put_signed(&mut out, signed);
        let mut reader = ByteReader::new(&out, "numbers");
        prop_assert_eq!(reader.varint().unwrap(), value);
        prop_assert_eq!(reader.signed().unwrap(), signed);
        prop_assert!(reader.is_empty());
    }

    #[test]
    fn common_ends_match_byte_by_byte_count(
        a in prop::collection::vec(0u8..2, 0..3000), flip in any::<prop::sample::Index>(), cut in 0usize..50,
    ) {
        use crate::blob::compare::{common_front, common_tail};
        let mut b = a.clone();
        if !b.is_empty() {
            b[flip.index(a.len())] ^= 1;
        }
        let front = &b[..b.len() - cut.min(b.len())];
        prop_assert_eq!(common_front(&a, front), a.iter().zip(front).take_while(|(x, y)| x == y).count());
        let tail = &b[cut.min(b.len())..];
        let counted = a.iter().rev().zip(tail.iter().rev()).take_while(|(x, y)| x == y).count();
        prop_assert_eq!(common_tail(&a, tail), counted);
    }
}
