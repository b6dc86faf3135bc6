//! Reads a block in place: any entry can be read without the others.
//!
//! A [`BlockShape`] says where a block's columns are, and reads them from the block's bytes.
//! [`RawBlock::check`] makes its answers valid: it checks the checksum, and order and limits of every entry.
//! The reader calls it once for each block and opening. Answers from unchecked bytes may be wrong, but
//! nothing outside of the block is read.

use std::cmp::Ordering;

use super::column::PackedColumn;
use super::cursor::TableByteCursor;
use super::entry::{IndexEntry, IndexValue, TableMeta, VersionKey};
use super::error::DamageReason;
use super::filter;
use super::layout::{
    BLOCK_ENTRIES_MAX, BLOCK_KEYS_MAX, KEY_LEN_MAX, KEYS_BY_END, KEYS_BY_PAIR, KEYS_BY_TAIL, NUMBER_MAX,
    block_crc,
};

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockShape {
    count: usize,
    keys: usize,
    head: (usize, usize),
    rests: KeySuffixes,
    which: PackedColumn,
    seqno: PackedColumn,
    kind: PackedColumn,
    a: PackedColumn,
    b: PackedColumn,
    c: PackedColumn,
}

/// The part of each key after the shared head.
#[derive(Debug, Clone, Copy)]
enum KeySuffixes {
    /// A number of this many bytes, big-endian.
    Tail { bytes: usize, tails: PackedColumn },
    /// Two such numbers.
    Pair { high: usize, highs: PackedColumn, low: usize, lows: PackedColumn },
    /// Bytes up to an end, counted from `at`.
    End { at: usize, ends: PackedColumn },
}

impl BlockShape {
    pub(super) fn read(body: &[u8]) -> Result<Self, DamageReason> {
        let mut cursor = TableByteCursor::new(body);
        let cursor = &mut cursor;
        let count =
            bounded_number(cursor, BLOCK_ENTRIES_MAX).ok_or("a block's count is cut short or too big")?;
        let keys = bounded_number(cursor, count).ok_or("a block's count of keys is cut short or too big")?;
        if keys == 0 {
            return Err("a block is empty");
        }
        let coding = cursor.u8().ok_or("a block is cut short")?;
        let len = bounded_number(cursor, KEY_LEN_MAX).ok_or("a key's length is cut short or too big")?;
        let start = body.len() - cursor.rest().len();
        cursor.take(len).ok_or("a key is cut short")?;
        let rests = match coding {
            KEYS_BY_TAIL => KeySuffixes::Tail {
                bytes: number_len(cursor)?,
                tails: PackedColumn::read(body, cursor, keys)?,
            },
            KEYS_BY_END => {
                let ends = PackedColumn::read(body, cursor, keys)?;
                let at = body.len() - cursor.rest().len();
                let all = usize::try_from(ends.get(body, keys - 1)).map_err(|_| "a key is cut short")?;
                cursor.take(all).ok_or("a key is cut short")?;
                KeySuffixes::End { at, ends }
            }
            KEYS_BY_PAIR => KeySuffixes::Pair {
                high: number_len(cursor)?,
                low: number_len(cursor)?,
                highs: PackedColumn::read(body, cursor, keys)?,
                lows: PackedColumn::read(body, cursor, keys)?,
            },
            _ => return Err("a block's keys have an unknown coding"),
        };
        let mut column = || PackedColumn::read(body, cursor, count);
        let (which, seqno, kind) = (column()?, column()?, column()?);
        let (a, b, c) = (column()?, column()?, column()?);
        if !cursor.is_empty() {
            return Err("a block has bytes after its last column");
        }
        Ok(Self { count, keys, head: (start, start + len), rests, which, seqno, kind, a, b, c })
    }

    /// A view of the block with the bytes from which this shape was read.
    pub(super) fn view<'a>(&'a self, body: &'a [u8]) -> BlockView<'a> {
        BlockView { shape: self, body }
    }
}

/// A shape, and the bytes that it describes.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockView<'a> {
    shape: &'a BlockShape,
    body: &'a [u8],
}

impl<'a> BlockView<'a> {
    pub(super) fn len(&self) -> usize {
        self.shape.count
    }

    fn head(&self) -> &'a [u8] {
        self.body.get(self.shape.head.0..self.shape.head.1).unwrap_or(&[])
    }

    /// The part of key `number` after the head. Numbers are put into `room`.
    fn key_suffix<'r>(&self, number: usize, room: &'r mut SuffixRoom) -> Option<&'r [u8]>
    where
        'a: 'r,
    {
        match &self.shape.rests {
            KeySuffixes::Tail { bytes, tails } => {
                put_number(tails.get(self.body, number), *bytes, room)?;
                room.get(..*bytes)
            }
            KeySuffixes::Pair { high, highs, low, lows } => {
                put_number(highs.get(self.body, number), *high, room)?;
                put_number(lows.get(self.body, number), *low, room.get_mut(*high..)?)?;
                room.get(..high + low)
            }
            KeySuffixes::End { at, ends } => {
                let start = match number.checked_sub(1) {
                    Some(before) => usize::try_from(ends.get(self.body, before)).ok()?,
                    None => 0,
                };
                let end = usize::try_from(ends.get(self.body, number)).ok()?;
                self.body.get(at.checked_add(start)?..at.checked_add(end)?)
            }
        }
    }

    fn key_number(&self, at: usize) -> Option<usize> {
        let number = usize::try_from(self.shape.which.get(self.body, at)).ok()?;
        (at < self.shape.count && number < self.shape.keys).then_some(number)
    }

    pub(super) fn seqno(&self, at: usize) -> u64 {
        self.shape.seqno.get(self.body, at)
    }

    /// Puts the key of an entry into `out`.
    pub(super) fn key(&self, at: usize, out: &mut Vec<u8>) -> Option<()> {
        let mut room = [0; SUFFIX_ROOM];
        let rest = self.key_suffix(self.key_number(at)?, &mut room)?;
        out.clear();
        out.extend_from_slice(self.head());
        out.extend_from_slice(rest);
        Some(())
    }

    pub(super) fn value(&self, at: usize) -> Option<IndexValue> {
        let number = |column: &PackedColumn| column.get(self.body, at);
        Some(IndexValue {
            kind: u8::try_from(number(&self.shape.kind)).ok()?,
            a: number(&self.shape.a),
            b: u32::try_from(number(&self.shape.b)).ok()?,
            c: u32::try_from(number(&self.shape.c)).ok()?,
        })
    }

    pub(super) fn entry(&self, at: usize) -> Option<IndexEntry> {
        if at >= self.shape.count {
            return None;
        }
        let mut key = Vec::with_capacity(self.shape.head.1 - self.shape.head.0 + SUFFIX_ROOM);
        self.key(at, &mut key)?;
        Some(IndexEntry { key, seqno: self.seqno(at), value: self.value(at)? })
    }

    /// Whether the entry is a version of this key.
    pub(super) fn is_version_of(&self, at: usize, key: &[u8]) -> bool {
        let mut room = [0; SUFFIX_ROOM];
        let rest = self.key_number(at).and_then(|number| self.key_suffix(number, &mut room));
        rest.is_some_and(|rest| key.strip_prefix(self.head()) == Some(rest))
    }

    /// How many entries are before `spot`; with `through`, before or at it.
    pub(super) fn count_before(&self, spot: VersionKey<'_>, through: bool) -> usize {
        let wanted = match spot.key.strip_prefix(self.head()) {
            Some(rest) => rest,
            // All keys begin with the head, so all of them are on one side.
            None if spot.key > self.head() => return self.shape.count,
            None => return 0,
        };
        let (mut low, mut high) = (0, self.shape.count);
        while low < high {
            let middle = low + (high - low) / 2;
            let mut room = [0; SUFFIX_ROOM];
            let rest =
                self.key_number(middle).and_then(|number| self.key_suffix(number, &mut room)).unwrap_or(&[]);
            let order = rest.cmp(wanted).then_with(|| spot.seqno.cmp(&self.seqno(middle)));
            if order == Ordering::Less || (through && order == Ordering::Equal) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Calls `each` with every entry's key, and checks that entries are in order and within limits.
    pub(super) fn check(
        &self,
        mut each: impl FnMut(VersionKey<'_>) -> Result<(), DamageReason>,
    ) -> Result<(), DamageReason> {
        let (mut before, mut key): (Vec<u8>, Vec<u8>) = (Vec::new(), Vec::new());
        let (mut last, mut total) = (0, 0usize);
        for at in 0..self.shape.count {
            self.key(at, &mut key).ok_or("a key is cut short")?;
            let (number, seqno) = (self.key_number(at).unwrap_or(0), self.seqno(at));
            self.value(at).ok_or("a number of an entry is too big")?;
            total += key.len();
            if key.len() > KEY_LEN_MAX {
                return Err("a key is too long");
            }
            if total > BLOCK_KEYS_MAX {
                return Err("a block's keys are too long together");
            }
            let spot = VersionKey { key: &key, seqno };
            let follows = match at.checked_sub(1) {
                None => number == 0,
                Some(one) if number == last => seqno < self.seqno(one),
                Some(_) => number == last + 1 && key > before,
            };
            if !follows {
                return Err("a block's entries are out of order");
            }
            each(spot)?;
            last = number;
            std::mem::swap(&mut before, &mut key);
        }
        if last + 1 == self.shape.keys { Ok(()) } else { Err("a block has keys without an entry") }
    }
}

/// A block's bytes, split but not decoded.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawBlock<'a> {
    words: u32,
    filter_crc: u32,
    filter: &'a [u8],
    body_crc: u32,
    pub(super) body: &'a [u8],
}

impl<'a> RawBlock<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, DamageReason> {
        let mut cursor = TableByteCursor::new(bytes);
        Self::read(&mut cursor).ok_or("a block is cut short")
    }

    fn read(cursor: &mut TableByteCursor<'a>) -> Option<Self> {
        let words = u32::try_from(bounded_number(cursor, BLOCK_ENTRIES_MAX)?).ok()?;
        let (mut filter_crc, mut filter): (u32, &[u8]) = (0, &[]);
        if words > 0 {
            filter_crc = cursor.u32()?;
            filter = cursor.take(usize::try_from(words).ok()?.checked_mul(filter::WORD_LEN)?)?;
        }
        Some(Self { words, filter_crc, filter, body_crc: cursor.u32()?, body: cursor.rest() })
    }

    pub(super) fn check_filter(&self, meta: &TableMeta, offset: u64) -> Result<(), DamageReason> {
        if self.words > 0 && block_crc(meta, offset, self.words, self.filter) != self.filter_crc {
            return Err("a filter's checksum does not match");
        }
        Ok(())
    }

    /// Whether the block may hold the key, by its filter.
    pub(super) fn may_contain(&self, meta: &TableMeta, key: &[u8]) -> bool {
        filter::may_contain(meta, self.filter, key)
    }

    /// Checks the body's checksum and every entry.
    pub(super) fn check(
        &self,
        meta: &TableMeta,
        offset: u64,
        each: impl FnMut(VersionKey<'_>) -> Result<(), DamageReason>,
    ) -> Result<BlockShape, DamageReason> {
        if block_crc(meta, offset, self.words, self.body) != self.body_crc {
            return Err("a block's checksum does not match");
        }
        let shape = BlockShape::read(self.body)?;
        shape.view(self.body).check(each)?;
        Ok(shape)
    }
}

/// Bytes of the longest rest that is made of numbers.
const SUFFIX_ROOM: usize = 2 * NUMBER_MAX;

/// Room for the rest of a key that is made of numbers.
type SuffixRoom = [u8; SUFFIX_ROOM];

/// Puts a number of `len` bytes, big-endian, at the start of `room`; `None` if it has more bytes.
fn put_number(number: u64, len: usize, room: &mut [u8]) -> Option<()> {
    let bytes = number.to_be_bytes();
    let (above, number) = bytes.split_at_checked(NUMBER_MAX - len)?;
    room.get_mut(..len)?.copy_from_slice(number);
    above.iter().all(|byte| *byte == 0).then_some(())
}

/// The length of a number in keys' rests.
fn number_len(cursor: &mut TableByteCursor<'_>) -> Result<usize, DamageReason> {
    match usize::from(cursor.u8().ok_or("a block is cut short")?) {
        len if len <= NUMBER_MAX => Ok(len),
        _ => Err("a number in a key is too long"),
    }
}

fn bounded_number(cursor: &mut TableByteCursor<'_>, max: usize) -> Option<usize> {
    usize::try_from(cursor.varint()?).ok().filter(|number| *number <= max)
}

#[cfg(test)]
mod tests {
    use super::super::tests::META;
    use super::*;

    #[test]
    fn filter_checksum_covers_its_block_and_place() {
        let filter = [5; 2 * filter::WORD_LEN];
        let crc = block_crc(&META, 77, 2, &filter);
        let with = |words: u32, filter_crc, offset| {
            RawBlock { words, filter_crc, filter: &filter, body_crc: 0, body: &[] }
                .check_filter(&META, offset)
        };
        assert_eq!(with(2, crc, 77), Ok(()));
        for (words, crc, offset) in [(2, crc ^ 1, 77), (2, crc, 78), (1, crc, 77), (1, 0, 77)] {
            assert!(with(words, crc, offset).is_err(), "{words} {crc} {offset}");
        }
        assert_eq!(with(0, 9, 77), Ok(()), "there is none to check");
    }
}
