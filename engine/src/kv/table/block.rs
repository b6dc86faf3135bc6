//! A block: some hundred neighbouring entries, column by column.
//!
//! Invariants: a decoded block is sorted and holds at least one entry; its memory is bounded by
//! `BLOCK_KEYS_MAX` and `BLOCK_ENTRIES_MAX` whatever the bytes say. The layout is in `layout.rs`.

use super::column::{Inflater, Squeezer};
use super::cursor::{Cursor, put_varint};
use super::entry::{Entry, Spot, TableMeta, Value};
use super::error::What;
use super::filter;
use super::layout::{BLOCK_ENTRIES_MAX, BLOCK_KEYS_MAX, KEY_LEN_MAX, block_crc};

const KEYS_BY_PREFIX: u8 = 0;
const KEYS_BY_TAIL: u8 = 1;
const TAIL_MAX: usize = 8;

/// Sorted entries in memory: one buffer for all keys.
#[derive(Debug, Default)]
pub(super) struct Block {
    keys: Vec<u8>,
    /// Where each key ends in `keys`.
    ends: Vec<usize>,
    seqnos: Vec<u64>,
    values: Vec<Value>,
}

impl Block {
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

    pub(super) fn spot(&self, at: usize) -> Option<Spot<'_>> {
        Some(Spot { key: self.key(at)?, seqno: *self.seqnos.get(at)? })
    }

    pub(super) fn get(&self, at: usize) -> Option<(Spot<'_>, Value)> {
        Some((self.spot(at)?, *self.values.get(at)?))
    }

    pub(super) fn entry(&self, at: usize) -> Option<Entry> {
        let (spot, value) = self.get(at)?;
        Some(Entry { key: spot.key.to_vec(), seqno: spot.seqno, value })
    }

    pub(super) fn last(&self) -> Option<Spot<'_>> {
        self.spot(self.len().checked_sub(1)?)
    }

    /// How many entries stand before `spot`.
    pub(super) fn before(&self, spot: Spot<'_>) -> usize {
        self.count_while(|found| found < spot)
    }

    /// How many entries stand before or at `spot`.
    pub(super) fn through(&self, spot: Spot<'_>) -> usize {
        self.count_while(|found| found <= spot)
    }

    fn count_while(&self, holds: impl Fn(Spot<'_>) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.spot(middle).is_some_and(&holds) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    pub(super) fn push(&mut self, spot: Spot<'_>, value: Value) {
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

    fn all_keys(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).filter_map(|at| self.key(at))
    }

    /// The block's bytes as they stand at `offset` of the table's file.
    pub(super) fn encode(
        &self,
        meta: &TableMeta,
        offset: u64,
        with_filter: bool,
        squeezer: &mut Squeezer,
    ) -> Vec<u8> {
        let mut out = Vec::new();
        let mut filter = Vec::new();
        if with_filter {
            let mut keys: Vec<&[u8]> = self.all_keys().collect();
            keys.dedup();
            filter = filter::build(keys.into_iter());
        }
        // Entries are bounded, so the words of a filter are a small number.
        let words = u32::try_from(filter.len() / filter::WORD_LEN).unwrap_or(0);
        put_varint(&mut out, u64::from(words));
        if words > 0 {
            out.extend_from_slice(&block_crc(meta, offset, words, &filter).to_le_bytes());
            out.extend_from_slice(&filter);
        }
        let body = self.body(squeezer);
        out.extend_from_slice(&block_crc(meta, offset, words, &body).to_le_bytes());
        out.extend_from_slice(&body);
        out
    }

    fn body(&self, squeezer: &mut Squeezer) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, self.len() as u64);
        let mut keys = self.keys_by_prefix(squeezer);
        if let Some(by_tail) = self.keys_by_tail(squeezer)
            && by_tail.len() < keys.len()
        {
            keys = by_tail;
        }
        out.extend_from_slice(&keys);
        squeezer.put_numbers(&self.seqnos, &mut out);
        let mut column = |number: fn(&Value) -> u64| {
            let numbers: Vec<u64> = self.values.iter().map(number).collect();
            squeezer.put_numbers(&numbers, &mut out);
        };
        column(|value| u64::from(value.kind));
        column(|value| value.a);
        column(|value| u64::from(value.b));
        column(|value| u64::from(value.c));
        out
    }

    fn keys_by_prefix(&self, squeezer: &mut Squeezer) -> Vec<u8> {
        let (mut shared, mut lens, mut suffixes) = (Vec::new(), Vec::new(), Vec::new());
        let mut before: &[u8] = &[];
        for key in self.all_keys() {
            let same = shared_len(before, key);
            shared.push(same as u64);
            lens.push(key.len() as u64);
            suffixes.extend(key.iter().skip(same));
            before = key;
        }
        let mut out = vec![KEYS_BY_PREFIX];
        squeezer.put_numbers(&shared, &mut out);
        squeezer.put_numbers(&lens, &mut out);
        squeezer.put_bytes(&suffixes, &mut out);
        out
    }

    /// `None` where the keys differ in length or in more than their last eight bytes.
    fn keys_by_tail(&self, squeezer: &mut Squeezer) -> Option<Vec<u8>> {
        let (first, last) = (self.key(0)?, self.last()?.key);
        // Sorted keys share what the first and the last of them share.
        let head = first.get(..shared_len(first, last))?;
        let tail = first.len() - head.len();
        if tail > TAIL_MAX || self.all_keys().any(|key| key.len() != first.len()) {
            return None;
        }
        let tails: Vec<u64> = self
            .all_keys()
            .map(|key| key.iter().skip(head.len()).fold(0, |number, byte| number << 8 | u64::from(*byte)))
            .collect();
        let mut out = vec![KEYS_BY_TAIL];
        put_varint(&mut out, first.len() as u64);
        put_varint(&mut out, tail as u64);
        out.extend_from_slice(head);
        squeezer.put_numbers(&tails, &mut out);
        Some(out)
    }

    fn decode(body: &[u8]) -> Result<Self, What> {
        let mut cursor = Cursor::new(body);
        let cursor = &mut cursor;
        let count = small(cursor, BLOCK_ENTRIES_MAX).ok_or("a block's count is cut short or too big")?;
        if count == 0 {
            return Err("a block is empty");
        }
        let mut inflater = Inflater::default();
        let mut block = Self::default();
        match cursor.u8().ok_or("a block is cut short")? {
            KEYS_BY_PREFIX => block.read_prefixed(cursor, &mut inflater, count)?,
            KEYS_BY_TAIL => block.read_tailed(cursor, &mut inflater, count)?,
            _ => return Err("a block's keys have an unknown coding"),
        }
        block.seqnos = inflater.numbers(cursor, count)?;
        let kinds = inflater.numbers(cursor, count)?;
        let a = inflater.numbers(cursor, count)?;
        let b = inflater.numbers(cursor, count)?;
        let c = inflater.numbers(cursor, count)?;
        if !cursor.is_empty() {
            return Err("a block has bytes after its last column");
        }
        block.values.reserve_exact(count);
        for (((kind, a), b), c) in kinds.into_iter().zip(a).zip(b).zip(c) {
            block.values.push(value(kind, a, b, c).ok_or("a number of an entry is too big")?);
        }
        block.check_order()?;
        Ok(block)
    }

    fn read_prefixed(&mut self, cursor: &mut Cursor<'_>, inflater: &mut Inflater, count: usize) -> Read {
        let shared = lens(inflater.numbers(cursor, count)?)?;
        let lens = lens(inflater.numbers(cursor, count)?)?;
        let (mut total, mut new, mut before) = (0usize, 0usize, 0usize);
        for (same, len) in shared.iter().zip(&lens) {
            if *same > before || same > len {
                return Err("a key shares more than there is");
            }
            // Both sums are bounded: count and each length are.
            total += len;
            new += len - same;
            before = *len;
        }
        if total > BLOCK_KEYS_MAX {
            return Err("a block's keys are too long together");
        }
        let suffixes = inflater.bytes(cursor, new)?;
        let mut suffixes = Cursor::new(&suffixes);
        self.keys.reserve_exact(total);
        self.ends.reserve_exact(count);
        let mut start = 0;
        for (same, len) in shared.into_iter().zip(lens) {
            let end = self.keys.len();
            let suffix = suffixes.take(len - same).ok_or("a key is cut short")?;
            if start + same > end {
                return Err("a key shares more than there is");
            }
            self.keys.extend_from_within(start..start + same);
            self.keys.extend_from_slice(suffix);
            self.ends.push(self.keys.len());
            start = end;
        }
        Ok(())
    }

    fn read_tailed(&mut self, cursor: &mut Cursor<'_>, inflater: &mut Inflater, count: usize) -> Read {
        let len = small(cursor, KEY_LEN_MAX).ok_or("a key's length is cut short or too big")?;
        let tail = small(cursor, TAIL_MAX.min(len)).ok_or("a key's tail is cut short or too big")?;
        if len.saturating_mul(count) > BLOCK_KEYS_MAX {
            return Err("a block's keys are too long together");
        }
        let head = cursor.take(len - tail).ok_or("a key is cut short")?;
        self.keys.reserve_exact(len * count);
        self.ends.reserve_exact(count);
        for number in inflater.numbers(cursor, count)? {
            let bytes = number.to_be_bytes();
            let (above, tail) = bytes.split_at_checked(TAIL_MAX - tail).ok_or("a key is cut short")?;
            if above.iter().any(|byte| *byte != 0) {
                return Err("a key's tail is longer than promised");
            }
            self.keys.extend_from_slice(head);
            self.keys.extend_from_slice(tail);
            self.ends.push(self.keys.len());
        }
        Ok(())
    }

    fn check_order(&self) -> Read {
        let sorted = (1..self.len()).all(|at| self.spot(at - 1) < self.spot(at));
        if sorted { Ok(()) } else { Err("a block's entries are out of order") }
    }
}

type Read = Result<(), What>;

/// A block's bytes, taken apart but not decoded.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawBlock<'a> {
    words: u32,
    filter_crc: u32,
    filter: &'a [u8],
    body_crc: u32,
    body: &'a [u8],
}

impl<'a> RawBlock<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, What> {
        let mut cursor = Cursor::new(bytes);
        Self::read(&mut cursor).ok_or("a block is cut short")
    }

    fn read(cursor: &mut Cursor<'a>) -> Option<Self> {
        let words = u32::try_from(small(cursor, BLOCK_ENTRIES_MAX)?).ok()?;
        let (mut filter_crc, mut filter): (u32, &[u8]) = (0, &[]);
        if words > 0 {
            filter_crc = cursor.u32()?;
            filter = cursor.take(usize::try_from(words).ok()?.checked_mul(filter::WORD_LEN)?)?;
        }
        Some(Self { words, filter_crc, filter, body_crc: cursor.u32()?, body: cursor.rest() })
    }

    pub(super) fn check_filter(&self, meta: &TableMeta, offset: u64) -> Read {
        if self.words > 0 && block_crc(meta, offset, self.words, self.filter) != self.filter_crc {
            return Err("a filter's checksum does not match");
        }
        Ok(())
    }

    /// Whether the block may hold the key, by its filter.
    pub(super) fn may_hold(&self, meta: &TableMeta, offset: u64, key: &[u8]) -> Result<bool, What> {
        self.check_filter(meta, offset)?;
        Ok(filter::may_hold(self.filter, key))
    }

    pub(super) fn decode(&self, meta: &TableMeta, offset: u64) -> Result<Block, What> {
        if block_crc(meta, offset, self.words, self.body) != self.body_crc {
            return Err("a block's checksum does not match");
        }
        Block::decode(self.body)
    }
}

pub(super) fn shared_len(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

fn small(cursor: &mut Cursor<'_>, max: usize) -> Option<usize> {
    usize::try_from(cursor.varint()?).ok().filter(|number| *number <= max)
}

fn lens(numbers: Vec<u64>) -> Result<Vec<usize>, What> {
    let len = |number| usize::try_from(number).ok().filter(|len| *len <= KEY_LEN_MAX);
    numbers.into_iter().map(|number| len(number).ok_or("a key is too long")).collect()
}

fn value(kind: u64, a: u64, b: u64, c: u64) -> Option<Value> {
    Some(Value { kind: u8::try_from(kind).ok()?, a, b: u32::try_from(b).ok()?, c: u32::try_from(c).ok()? })
}
