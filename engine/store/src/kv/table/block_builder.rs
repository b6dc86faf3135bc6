//! A block being written: some hundred neighbouring entries, encoded column by column. `block_view.rs` reads
//! it.

use super::column::put_numbers;
use super::cursor::put_varint;
use super::entry::{IndexValue, TableMeta, VersionKey};
use super::filter;
use super::layout::{KEYS_BY_END, KEYS_BY_TAIL, TAIL_MAX, block_crc};

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

    /// The block's bytes as they stand at `offset` of the table's file.
    pub(super) fn encode(&self, meta: &TableMeta, offset: u64, with_filter: bool) -> Vec<u8> {
        // Each key once, and for each entry the number of its key.
        let mut keys: Vec<&[u8]> = Vec::with_capacity(self.len());
        let mut which = Vec::with_capacity(self.len());
        for key in (0..self.len()).filter_map(|at| self.key(at)) {
            if keys.last() != Some(&key) {
                keys.push(key);
            }
            which.push(keys.len() as u64 - 1);
        }
        let mut out = Vec::new();
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
        let crc_at = out.len();
        out.extend_from_slice(&[0; 4]);
        self.put_body(&keys, &which, &mut out);
        let crc = block_crc(meta, offset, words, &out[crc_at + 4..]);
        out[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn put_body(&self, keys: &[&[u8]], which: &[u64], out: &mut Vec<u8>) {
        put_varint(out, self.len() as u64);
        put_varint(out, keys.len() as u64);
        put_keys(keys, out);
        put_numbers(which, out);
        put_numbers(&self.seqnos, out);
        let mut column = |number: fn(&IndexValue) -> u64| {
            let numbers: Vec<u64> = self.values.iter().map(number).collect();
            put_numbers(&numbers, out);
        };
        column(|value| u64::from(value.kind));
        column(|value| value.a);
        column(|value| u64::from(value.b));
        column(|value| u64::from(value.c));
    }
}

fn put_keys(keys: &[&[u8]], out: &mut Vec<u8>) {
    let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return };
    // Sorted keys share what the first and the last of them share.
    let shared = if keys.len() == 1 { first.len() } else { shared_len(first, last) };
    let head = &first[..shared];
    let tail = first.len() - shared;
    let by_tail = tail <= TAIL_MAX && keys.iter().all(|key| key.len() == first.len());
    out.push(if by_tail { KEYS_BY_TAIL } else { KEYS_BY_END });
    put_varint(out, head.len() as u64);
    out.extend_from_slice(head);
    let rests = || keys.iter().map(|key| &key[shared..]);
    if by_tail {
        #[expect(clippy::cast_possible_truncation, reason = "at most TAIL_MAX")]
        let tail = tail as u8;
        out.push(tail);
        let number = |rest: &[u8]| rest.iter().fold(0, |number, byte| (number << 8) + u64::from(*byte));
        put_numbers(&rests().map(number).collect::<Vec<_>>(), out);
    } else {
        let mut end = 0;
        let ends: Vec<u64> = rests()
            .map(|rest| {
                end += rest.len() as u64;
                end
            })
            .collect();
        put_numbers(&ends, out);
        rests().for_each(|rest| out.extend_from_slice(rest));
    }
}

pub(super) fn shared_len(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}
