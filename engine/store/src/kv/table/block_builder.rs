//! A block being written: some hundred neighbouring entries, encoded column by column. `block_view.rs` reads
//! it.

use std::ops::Range;

use super::column::put_numbers;
use super::cursor::put_varint;
use super::entry::{IndexValue, TableMeta, VersionKey};
use super::filter;
use super::layout::{KEYS_BY_END, KEYS_BY_PAIR, KEYS_BY_TAIL, NUMBER_MAX, block_crc};

/// Sorted entries in memory: one buffer for all keys.
#[derive(Debug, Default)]
pub(super) struct BlockBuilder {
    keys: Vec<u8>,
    /// Where each key ends in `keys`.
    ends: Vec<usize>,
    seqnos: Vec<u64>,
    values: Vec<IndexValue>,
}

impl BlockBuilder {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn keys_len(&self) -> usize {
        self.keys.len()
    }

    fn key(&self, at: usize) -> Option<&[u8]> {
        let end = *self.ends.get(at)?;
        let start = match at.checked_sub(1) {
            Some(before) => *self.ends.get(before)?,
            None => 0,
        };
        self.keys.get(start..end)
    }

    pub(super) fn version_key(&self, at: usize) -> Option<VersionKey<'_>> {
        Some(VersionKey { key: self.key(at)?, seqno: *self.seqnos.get(at)? })
    }

    pub(super) fn last_version_key(&self) -> Option<VersionKey<'_>> {
        self.version_key(self.len().checked_sub(1)?)
    }

    pub(super) fn push(&mut self, spot: VersionKey<'_>, value: IndexValue) {
        self.keys.extend_from_slice(spot.key);
        self.ends.push(self.keys.len());
        self.seqnos.push(spot.seqno);
        self.values.push(value);
    }

    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.ends.clear();
        self.seqnos.clear();
        self.values.clear();
    }

    /// The runs of entries that are a block each: all of them, or cut where keys of another keyspace begin, if that
    /// takes fewer bytes. Keys of two keyspaces have little in common, so a shared block stores them whole.
    pub(super) fn parts(&self) -> Vec<Range<usize>> {
        let space = |at| self.key(at).and_then(|key| key.first_chunk::<SPACE_LEN>());
        let starts: Vec<usize> = (1..self.len()).filter(|at| space(*at) != space(*at - 1)).collect();
        let starts = if starts.len() > CUTS_MAX { Vec::new() } else { starts };
        let (mut parts, mut part) = (Vec::new(), 0..starts.first().copied().unwrap_or(self.len()));
        let size = |part: &Range<usize>| {
            let (keys, which) = self.keys_of(part.clone());
            self.body(part.clone(), &keys, &which).len()
        };
        for (number, start) in starts.iter().enumerate() {
            let next = *start..starts.get(number + 1).copied().unwrap_or(self.len());
            let joined = part.start..next.end;
            if size(&joined) <= size(&part) + size(&next) + BLOCK_COST {
                part = joined;
            } else {
                parts.push(std::mem::replace(&mut part, next));
            }
        }
        parts.push(part);
        parts
    }

    /// Bytes of a block of these entries, as they stand at `offset` of the table's file.
    pub(super) fn encode(
        &self,
        part: Range<usize>,
        meta: &TableMeta,
        offset: u64,
        with_filter: bool,
    ) -> Vec<u8> {
        let mut out = Vec::new();
        let (keys, which) = self.keys_of(part.clone());
        let filter = if with_filter { filter::build(meta, keys.iter().copied()) } else { Vec::new() };
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a block has few entries, and its filter few words"
        )]
        let words = (filter.len() / filter::WORD_LEN) as u32;
        put_varint(&mut out, u64::from(words));
        if words > 0 {
            out.extend_from_slice(&block_crc(meta, offset, words, &filter).to_le_bytes());
            out.extend_from_slice(&filter);
        }
        let body = self.body(part, &keys, &which);
        out.extend_from_slice(&block_crc(meta, offset, words, &body).to_le_bytes());
        out.extend_from_slice(&body);
        out
    }

    /// Each key of these entries once, and for each entry the number of its key.
    fn keys_of(&self, part: Range<usize>) -> (Vec<&[u8]>, Vec<u64>) {
        let mut keys: Vec<&[u8]> = Vec::with_capacity(part.len());
        let mut which = Vec::with_capacity(part.len());
        for key in part.filter_map(|at| self.key(at)) {
            if keys.last() != Some(&key) {
                keys.push(key);
            }
            which.push(keys.len() as u64 - 1);
        }
        (keys, which)
    }

    fn body(&self, part: Range<usize>, keys: &[&[u8]], which: &[u64]) -> Vec<u8> {
        let (mut out, entries) = (Vec::new(), part.len() as u64);
        put_varint(&mut out, entries);
        put_varint(&mut out, keys.len() as u64);
        put_keys(keys, &mut out);
        put_numbers(which, &mut out);
        put_numbers(self.seqnos.get(part.clone()).unwrap_or_default(), &mut out);
        let values = self.values.get(part).unwrap_or_default();
        let mut column = |number: fn(&IndexValue) -> u64| {
            let numbers: Vec<u64> = values.iter().map(number).collect();
            put_numbers(&numbers, &mut out);
        };
        column(|value| u64::from(value.kind));
        column(|value| value.a);
        column(|value| u64::from(value.b));
        column(|value| u64::from(value.c));
        out
    }
}

/// The first bytes of a key, which say its keyspace.
const SPACE_LEN: usize = 4;
/// So many runs of keyspaces are compared at most: a block of more has few keys of each.
const CUTS_MAX: usize = 8;
/// About what a block takes besides its columns: checksum, and its part of the index.
const BLOCK_COST: usize = 24;
/// A rest is stored as two numbers if that saves at least this part of one number's bytes. Two take longer to read.
const PAIR_GAIN: usize = 4;

fn put_keys(keys: &[&[u8]], out: &mut Vec<u8>) {
    let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return };
    // Sorted keys share what the first and the last of them share.
    let shared = if keys.len() == 1 { first.len() } else { shared_len(first, last) };
    let (head, tail) = (&first[..shared], first.len() - shared);
    let rests: Vec<&[u8]> = keys.iter().map(|key| &key[shared..]).collect();
    let (coding, coded) = if rests.iter().all(|rest| rest.len() == tail) {
        fixed_rests(&rests, tail)
    } else {
        (KEYS_BY_END, rests_by_end(&rests))
    };
    out.push(coding);
    put_varint(out, head.len() as u64);
    out.extend_from_slice(head);
    out.extend_from_slice(&coded);
}

/// Codes rests of `tail` bytes each.
fn fixed_rests(rests: &[&[u8]], tail: usize) -> (u8, Vec<u8>) {
    // The lower numbers of the engine's keys have four or eight bytes.
    let lows = || [4, 8].into_iter().filter(|low| *low < tail && tail - low <= NUMBER_MAX);
    if tail > NUMBER_MAX {
        let whole = rests_by_end(rests);
        let pair = lows().map(|low| rests_by_pair(rests, tail - low, low)).min_by_key(Vec::len);
        return match pair {
            Some(pair) if pair.len() < whole.len() => (KEYS_BY_PAIR, pair),
            _ => (KEYS_BY_END, whole),
        };
    }
    let numbers: Vec<u64> = rests.iter().map(|rest| number_of(rest)).collect();
    let mut whole = vec![number_len(tail)];
    put_numbers(&numbers, &mut whole);
    let most = whole.len() - whole.len() / PAIR_GAIN;
    // Most rests have nothing to gain, as their bits show, and are coded only once.
    let may_gain = |low: &usize| {
        let (first, last) = (numbers.first().unwrap_or(&0), numbers.last().unwrap_or(&0));
        let (high, below) = ((last >> (8 * low)) - (first >> (8 * low)), u64::MAX >> (64 - 8 * low));
        let bits = bits_of(high) + bits_of(numbers.iter().fold(0, |all, number| all | number) & below);
        (numbers.len() * bits).div_ceil(8) <= most
    };
    let pair = lows().filter(may_gain).map(|low| rests_by_pair(rests, tail - low, low)).min_by_key(Vec::len);
    match pair {
        Some(pair) if pair.len() <= most => (KEYS_BY_PAIR, pair),
        _ => (KEYS_BY_TAIL, whole),
    }
}

fn bits_of(number: u64) -> usize {
    (u64::BITS - number.leading_zeros()) as usize
}

fn rests_by_pair(rests: &[&[u8]], high: usize, low: usize) -> Vec<u8> {
    let mut out = vec![number_len(high), number_len(low)];
    put_numbers(&rests.iter().map(|rest| number_of(&rest[..high])).collect::<Vec<_>>(), &mut out);
    put_numbers(&rests.iter().map(|rest| number_of(&rest[high..])).collect::<Vec<_>>(), &mut out);
    out
}

fn rests_by_end(rests: &[&[u8]]) -> Vec<u8> {
    let mut end = 0;
    let ends: Vec<u64> = rests
        .iter()
        .map(|rest| {
            end += rest.len() as u64;
            end
        })
        .collect();
    let mut out = Vec::new();
    put_numbers(&ends, &mut out);
    rests.iter().for_each(|rest| out.extend_from_slice(rest));
    out
}

fn number_of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| (number << 8) + u64::from(*byte))
}

#[expect(clippy::cast_possible_truncation, reason = "at most NUMBER_MAX")]
fn number_len(bytes: usize) -> u8 {
    bytes as u8
}

pub(super) fn shared_len(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}
