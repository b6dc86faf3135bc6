//! Buckets of a new part, merged from the buckets of old parts and from new cards.
//!
//! All postings of a range of buckets are put in order by sorting numbers, each of which holds bucket, term and
//! source. Most terms have few entries, so a tree with a list for each of them would cost several times as much.

use annals_store::codec::{CodecError, put_varint};

use super::bitmap::{for_each_ordinal, put_ordinals};
use super::part::{Term, for_each_posting};

const KIND_SHIFT: u32 = 80;
const VALUE_SHIFT: u32 = 16;
const BUCKET_SHIFT: u32 = 82;

/// Bucket, term and 16 more bits, in the order of a part: by bucket, then by term.
fn packed(term: Term, bucket: u32, low: u16) -> u128 {
    let (kind, value) = term.parts();
    u128::from(bucket) << BUCKET_SHIFT
        | u128::from(kind) << KIND_SHIFT
        | u128::from(value) << VALUE_SHIFT
        | u128::from(low)
}

#[expect(clippy::cast_possible_truncation, reason = "each part of a packed number is taken by itself")]
fn bucket_of(packed: u128) -> u32 {
    (packed >> BUCKET_SHIFT) as u32
}

#[expect(clippy::cast_possible_truncation, reason = "each part of a packed number is taken by itself")]
fn low_of(packed: u128) -> u16 {
    packed as u16
}

/// The postings of new cards, in order.
pub(super) struct FreshPostings(Vec<u128>);

impl FreshPostings {
    /// From terms and the ordinals of their entries.
    pub(super) fn new(pairs: &[(Term, u16)], buckets: u32) -> Self {
        let all: Vec<u128> =
            pairs.iter().map(|(term, ordinal)| packed(*term, term.bucket(buckets), *ordinal)).collect();
        // By bucket first, which needs no comparison; then each bucket by itself, in the processor's caches.
        let mut ends = vec![0usize; buckets as usize];
        for one in &all {
            if let Some(count) = ends.get_mut(bucket_of(*one) as usize) {
                *count += 1;
            }
        }
        let mut next = 0;
        for end in &mut ends {
            next += std::mem::replace(end, next);
        }
        let mut sorted = vec![0; all.len()];
        for one in all {
            let place = ends.get_mut(bucket_of(one) as usize).and_then(|end| {
                *end += 1;
                sorted.get_mut(*end - 1)
            });
            if let Some(place) = place {
                *place = one;
            }
        }
        let mut from = 0;
        for end in ends {
            sorted.get_mut(from..end).unwrap_or_default().sort_unstable();
            from = end;
        }
        Self(sorted)
    }

    fn of_buckets(&self, first: u32, end: u32) -> &[u128] {
        let from = self.0.partition_point(|one| bucket_of(*one) < first);
        let to = self.0.partition_point(|one| bucket_of(*one) < end);
        self.0.get(from..to).unwrap_or_default()
    }
}

/// Some buckets of an old part.
pub(super) struct OldBuckets<'a> {
    pub(super) buckets: Vec<Vec<u8>>,
    /// The new ordinals of the part's entries; entries without one are left out. Parts are given in the order of their
    /// new ordinals.
    pub(super) ordinals: &'a [Option<u16>],
}

/// The bytes of the buckets `first` to `end` of a part with `buckets` buckets and `count` entries, from old buckets that
/// hold no terms of others.
///
/// # Errors
/// If an old bucket is damaged.
pub(super) fn merged_buckets(
    old: &[OldBuckets<'_>],
    fresh: &FreshPostings,
    (first, end): (u32, u32),
    buckets: u32,
    count: usize,
) -> Result<Vec<Vec<u8>>, CodecError> {
    let mut lists: Vec<(u128, &[u8])> = Vec::new();
    for (source, part) in (0u16..).zip(old) {
        for bytes in &part.buckets {
            for_each_posting(bytes, &mut |term, list| {
                lists.push((packed(term, term.bucket(buckets), source), list));
                Ok(())
            })?;
        }
    }
    // Each old part with as many buckets is in order already, which a stable sort makes use of.
    lists.sort_by_key(|(packed, _)| *packed);
    let mut merged: Vec<Vec<u8>> = (first..end).map(|_| Vec::new()).collect();
    let (mut ordinals, mut encoded): (Vec<u16>, Vec<u8>) = (Vec::new(), Vec::new());
    let (mut lists, mut fresh) =
        (lists.into_iter().peekable(), fresh.of_buckets(first, end).iter().copied().peekable());
    while let Some(next) =
        lists.peek().map(|(packed, _)| *packed).into_iter().chain(fresh.peek().copied()).min()
    {
        let term = next >> VALUE_SHIFT;
        ordinals.clear();
        while let Some((packed, list)) = lists.next_if(|(packed, _)| packed >> VALUE_SHIFT == term) {
            let Some(part) = old.get(usize::from(low_of(packed))) else { continue };
            for_each_ordinal(list, part.ordinals.len(), &mut |ordinal| {
                ordinals.extend(part.ordinals.get(ordinal).copied().flatten());
            })?;
        }
        while let Some(packed) = fresh.next_if(|packed| packed >> VALUE_SHIFT == term) {
            ordinals.push(low_of(packed));
        }
        let place = bucket_of(next).checked_sub(first).and_then(|at| merged.get_mut(at as usize));
        let (Some(out), false) = (place, ordinals.is_empty()) else { continue };
        out.push(kind_of(next));
        put_varint(out, value_of(next));
        encoded.clear();
        put_ordinals(&mut encoded, &ordinals, count);
        put_varint(out, encoded.len() as u64);
        out.extend_from_slice(&encoded);
    }
    Ok(merged)
}

#[expect(clippy::cast_possible_truncation, reason = "each part of a packed number is taken by itself")]
fn kind_of(packed: u128) -> u8 {
    (packed >> KIND_SHIFT) as u8 & 3
}

#[expect(clippy::cast_possible_truncation, reason = "each part of a packed number is taken by itself")]
fn value_of(packed: u128) -> u64 {
    (packed >> VALUE_SHIFT) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Terms of an entry, made from a seed.
    fn terms(entry: u64) -> Vec<Term> {
        let mut mixed = entry.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        (0..20)
            .map(|at| {
                mixed ^= mixed << 13;
                mixed ^= mixed >> 7;
                mixed ^= mixed << 17;
                match at % 4 {
                    0 => Term::Main((mixed % 40) as u32),
                    1 => Term::Other((mixed % 900) as u32),
                    2 => Term::Gram((mixed % 30) as u16),
                    _ => Term::Identifier(mixed),
                }
            })
            .collect()
    }

    fn pairs(entries: impl Iterator<Item = (u64, u16)>) -> Vec<(Term, u16)> {
        let mut pairs: Vec<(Term, u16)> = entries
            .flat_map(|(entry, ordinal)| terms(entry).into_iter().map(move |term| (term, ordinal)))
            .collect();
        pairs.sort_unstable();
        pairs.dedup();
        pairs
    }

    fn postings(buckets: &[Vec<u8>], count: usize) -> Vec<BTreeMap<Term, Vec<u16>>> {
        let read = |bytes: &Vec<u8>| {
            let mut found = BTreeMap::new();
            for_each_posting(bytes, &mut |term, list| {
                let mut ordinals = Vec::new();
                for_each_ordinal(list, count, &mut |ordinal| ordinals.push(ordinal as u16))?;
                assert!(found.insert(term, ordinals).is_none(), "a term stands once");
                Ok(())
            })
            .unwrap();
            found
        };
        buckets.iter().map(read).collect()
    }

    /// Parts of 300 and 100 entries, every seventh of them removed, and 50 new cards, merged in ranges of buckets. The
    /// result is what the entries' terms say.
    #[test]
    fn merged_buckets_hold_the_terms_of_living_entries() {
        let part = |from: u64, count: u16, buckets: u32| {
            let fresh = FreshPostings::new(&pairs((from..).zip(0..count)), buckets);
            merged_buckets(&[], &fresh, (0, buckets), buckets, usize::from(count)).unwrap()
        };
        let (large, small) = (part(0, 300, 8), part(300, 100, 4));
        let mut next = 0..;
        let mut ordinals = |from: u64, count: u64| -> Vec<Option<u16>> {
            (from..from + count).map(|entry| (entry % 7 != 0).then(|| next.next().unwrap())).collect()
        };
        let (of_large, of_small) = (ordinals(0, 300), ordinals(300, 100));
        let living: Vec<u64> = (0..400).filter(|entry| entry % 7 != 0).chain(400..450).collect();
        let fresh = FreshPostings::new(&pairs((400..450).zip(living.len() as u16 - 50..)), 16);
        let mut merged = Vec::new();
        for range in 0..4usize {
            let old = [
                OldBuckets { buckets: large[range * 2..range * 2 + 2].to_vec(), ordinals: &of_large },
                OldBuckets { buckets: small[range..=range].to_vec(), ordinals: &of_small },
            ];
            let ends = (range as u32 * 4, range as u32 * 4 + 4);
            merged.extend(merged_buckets(&old, &fresh, ends, 16, living.len()).unwrap());
        }
        let found = postings(&merged, living.len());
        let mut wanted: Vec<BTreeMap<Term, Vec<u16>>> = vec![BTreeMap::new(); 16];
        for (term, ordinal) in pairs(living.iter().copied().zip(0..)) {
            wanted[term.bucket(16) as usize].entry(term).or_default().push(ordinal);
        }
        assert_eq!(found, wanted);
        let damaged = OldBuckets { buckets: vec![vec![9, 0, 1, 0]], ordinals: &of_large };
        assert!(merged_buckets(&[damaged], &fresh, (0, 16), 16, 9).is_err(), "an unknown kind of term");
    }
}
