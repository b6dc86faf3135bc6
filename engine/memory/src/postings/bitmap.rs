//! Sets of ordinals of a part: as bits in memory, and as a list or as bits on disk, whichever is shorter.

use annals_store::codec::{ByteReader, CodecError, put_varint};

const AS_GAPS: u8 = 0;
const AS_BITS: u8 = 1;

/// A set of ordinals below a fixed count.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in super::super) struct Bitmap(Vec<u64>);

impl Bitmap {
    /// An empty set of ordinals below `count`.
    pub(in super::super) fn empty(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    /// All ordinals below `count`.
    pub(in super::super) fn full(count: usize) -> Self {
        let mut words = vec![u64::MAX; count.div_ceil(64)];
        if let (Some(last), rest @ 1..) = (words.last_mut(), count % 64) {
            *last = (1 << rest) - 1;
        }
        Self(words)
    }

    pub(in super::super) fn words(&self) -> &[u64] {
        &self.0
    }

    pub(in super::super) fn words_mut(&mut self) -> &mut [u64] {
        &mut self.0
    }

    pub(in super::super) fn insert(&mut self, ordinal: usize) {
        if let Some(word) = self.0.get_mut(ordinal / 64) {
            *word |= 1 << (ordinal % 64);
        }
    }

    pub(in super::super) fn contains(&self, ordinal: usize) -> bool {
        self.0.get(ordinal / 64).is_some_and(|word| word >> (ordinal % 64) & 1 == 1)
    }

    pub(in super::super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    pub(in super::super) fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    pub(in super::super) fn remove_all(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word &= !other);
    }

    pub(in super::super) fn keep_only(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word &= other);
    }

    pub(in super::super) fn add_all(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word |= other);
    }

    pub(in super::super) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        for_each_bit(self.0.iter().copied())
    }

    /// The ordinals that both sets hold.
    pub(in super::super) fn iter_with<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = usize> + 'a {
        for_each_bit(self.0.iter().zip(&other.0).map(|(word, other)| word & other))
    }
}

fn for_each_bit(words: impl Iterator<Item = u64>) -> impl Iterator<Item = usize> {
    words.enumerate().flat_map(|(at, mut word)| {
        std::iter::from_fn(move || {
            (word != 0).then(|| {
                let bit = word.trailing_zeros() as usize;
                word &= word - 1;
                at * 64 + bit
            })
        })
    })
}

/// Appends ascending ordinals below `count`.
pub(in super::super) fn put_ordinals(out: &mut Vec<u8>, ordinals: &[u16], count: usize) {
    let bits = count.div_ceil(8);
    let start = out.len();
    out.push(AS_GAPS);
    let mut next = 0;
    for ordinal in ordinals {
        put_varint(out, u64::from(*ordinal) - next);
        next = u64::from(*ordinal) + 1;
        if out.len() - start > bits {
            break;
        }
    }
    if out.len() - start > bits {
        out.truncate(start);
        out.push(AS_BITS);
        out.resize(start + 1 + bits, 0);
        for ordinal in ordinals {
            if let Some(byte) = out.get_mut(start + 1 + usize::from(ordinal / 8)) {
                *byte |= 1 << (ordinal % 8);
            }
        }
    }
}

/// Reads what [`put_ordinals`] wrote.
pub(in super::super) fn read_ordinals(bytes: &[u8], count: usize) -> Result<Bitmap, CodecError> {
    // Frequent n-grams stand as bits: taken one by one, they were a quarter of a recall.
    if let Some((&AS_BITS, bits)) = bytes.split_first() {
        return read_bits(bits, count);
    }
    let mut set = Bitmap::empty(count);
    for_each_ordinal(bytes, count, &mut |ordinal| set.insert(ordinal))?;
    Ok(set)
}

fn read_bits(bits: &[u8], count: usize) -> Result<Bitmap, CodecError> {
    let mut reader = ByteReader::new(bits, "postings of memories");
    let bytes = reader.take(count.div_ceil(8))?;
    reader.finish()?;
    let mut set = Bitmap::empty(count);
    for (word, eight) in set.words_mut().iter_mut().zip(bytes.chunks(8)) {
        let mut padded = [0; 8];
        padded.iter_mut().zip(eight).for_each(|(to, from)| *to = *from);
        *word = u64::from_le_bytes(padded);
    }
    set.keep_only(&Bitmap::full(count));
    Ok(set)
}

/// Calls `each` with what [`put_ordinals`] wrote.
pub(super) fn for_each_ordinal(
    bytes: &[u8],
    count: usize,
    each: &mut impl FnMut(usize),
) -> Result<(), CodecError> {
    let mut reader = ByteReader::new(bytes, "postings of memories");
    match reader.u8()? {
        AS_GAPS => {
            let mut next = 0u64;
            while !reader.is_empty() {
                let ordinal = next.saturating_add(reader.varint()?);
                if ordinal >= count as u64 {
                    return Err(CodecError::Header(format!(
                        "postings of memories name entry {ordinal} of {count}"
                    )));
                }
                #[expect(clippy::cast_possible_truncation, reason = "below the count, which is a usize")]
                each(ordinal as usize);
                next = ordinal + 1;
            }
        }
        AS_BITS => {
            let bits = reader.take(count.div_ceil(8))?;
            read_bits(bits, count)?.iter().for_each(each);
        }
        other => return Err(CodecError::Header(format!("postings of memories have form {other}"))),
    }
    reader.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinals_round_trip_and_reject_damage() {
        for count in [1usize, 7, 64, 65, 1000, 24_576] {
            for step in [1usize, 2, 3, 9, 100, 5000] {
                let ordinals: Vec<u16> = (0..count).step_by(step).map(|one| one as u16).collect();
                let mut out = Vec::new();
                put_ordinals(&mut out, &ordinals, count);
                assert!(out.len() <= 1 + count.div_ceil(8));
                let set = read_ordinals(&out, count).unwrap();
                let back: Vec<u16> = set.iter().map(|one| one as u16).collect();
                assert_eq!((back, set.count()), (ordinals.clone(), ordinals.len() as u64), "{count} {step}");
            }
        }
        assert!(read_ordinals(&[], 8).is_err(), "no form");
        assert!(read_ordinals(&[2, 1], 8).is_err(), "an unknown form");
        assert!(read_ordinals(&[0, 8], 8).is_err(), "an ordinal beyond the count");
        assert!(read_ordinals(&[1], 8).is_err(), "bits are missing");
        assert!(read_ordinals(&[1, 255, 255], 8).is_err(), "too many bits");
        assert_eq!(
            read_ordinals(&[1, 255], 3).unwrap(),
            Bitmap::full(3),
            "bits beyond the count are ignored"
        );
    }
}
