//! Reads a table.
//!
//! Opening checks header, footer and index. A block is checked as a whole when it is first read, and read in
//! place from then on. Only the wanted entry is decoded. For each block, memory holds two bits and the first
//! bytes of its separator. Invariant: a returned entry was under a checksum that matched when the block was
//! first read, and is in order.

use super::block_view::{BlockShape, RawBlock};
use super::entry::{IndexValue, TableMeta, VersionKey};
use super::error::{DamageReason, TableError, TableResult};
use super::index::BlockIndex;
use super::layout::{FOOTER_LEN, HEADER_LEN, TableFooter};
use super::scan::{ReverseTableScan, TableScan};
use crate::io::FileBytes;
use crate::sync::atomic::{AtomicU64, Ordering};
use std::ops::{Bound, Range};

/// An open table. Cheap to hold: its bytes, and for each block two bits and a prefix.
#[derive(Debug)]
pub struct Table {
    bytes: FileBytes,
    footer: TableFooter,
    /// Two bits for each block: whether its filter was checked, and whether its body was.
    checked: Box<[AtomicU64]>,
    /// The first bytes of each block's separator, to find a block without reading many separators.
    prefixes: Box<[u128]>,
}

/// A checked block: its shape, and where its body is in the file.
#[derive(Debug, Clone)]
pub(super) struct CheckedBlock {
    pub(super) shape: BlockShape,
    pub(super) body: Range<usize>,
}

/// The first 16 bytes of a key as a number, padded with zeros. If two differ, they order the keys.
fn key_prefix(key: &[u8]) -> u128 {
    let mut bytes = [0; 16];
    let len = key.len().min(16);
    bytes[..len].copy_from_slice(&key[..len]);
    u128::from_be_bytes(bytes)
}

const FILTER_CHECKED: u64 = 1;
const BODY_CHECKED: u64 = 2;

/// Where an entry is: a block, and a place in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EntryPlace {
    pub(super) block: usize,
    pub(super) at: usize,
}

impl Table {
    /// Opens a table from the bytes of its whole file. Reads header, footer and index; no block.
    ///
    /// # Errors
    /// [`TableError::NotATable`], [`TableError::UnknownVersion`], or [`TableError::Damaged`].
    pub fn open(bytes: FileBytes) -> TableResult<Self> {
        let (footer, middle) = TableFooter::decode(&bytes)?;
        let damaged = |what| TableError::Damaged { table: footer.meta.id, offset: footer.index_offset, what };
        let index = BlockIndex::new(&footer, middle).map_err(damaged)?;
        index.validate(&footer).map_err(damaged)?;
        let checked = (0..index.len().div_ceil(32)).map(|_| AtomicU64::new(0)).collect();
        let prefixes = (0..index.len())
            .map(|block| index.separator(block).map_or(0, |spot| key_prefix(spot.key)))
            .collect();
        Ok(Self { bytes, footer, checked, prefixes })
    }

    /// Which table this is and what it covers.
    #[must_use]
    pub fn meta(&self) -> &TableMeta {
        &self.footer.meta
    }

    /// How many entries the table holds.
    #[must_use]
    pub fn entry_count(&self) -> u64 {
        self.footer.entry_count
    }

    /// The file's length in bytes.
    #[must_use]
    pub fn file_len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The newest version of `key` with a seqno of at most `at`.
    ///
    /// # Errors
    /// [`TableError::Damaged`] if a block that must be read is damaged.
    pub fn get(&self, key: &[u8], at: u64) -> TableResult<Option<(u64, IndexValue)>> {
        let target = VersionKey { key, seqno: at };
        let index = self.index()?;
        let Some(number) = self.find_block(&index, target)? else { return Ok(None) };
        let Some(block) = self.block_for_key(&index, number, key)? else { return Ok(None) };
        let view = block.shape.view(self.body(&block));
        let place = view.count_before(target, false);
        if place < view.len() {
            return if view.is_version_of(place, key) {
                self.entry_version(&block, place).map(Some)
            } else {
                Ok(None)
            };
        }
        // No entry of the block is at or after the target. Older versions of the key may begin the next
        // block. Its separator is then the first of them.
        if index.separator(number + 1).is_none_or(|separator| separator.key != key) {
            return Ok(None);
        }
        let block = self.block(&index, number + 1)?;
        let first_is = block.shape.view(self.body(&block)).is_version_of(0, key);
        if first_is { self.entry_version(&block, 0).map(Some) } else { Ok(None) }
    }

    /// All versions of `key`, newest first.
    ///
    /// # Errors
    /// [`TableError::Damaged`] if a block that must be read is damaged.
    pub fn versions(&self, key: &[u8]) -> TableResult<Vec<(u64, IndexValue)>> {
        let mut found = Vec::new();
        let index = self.index()?;
        let Some(mut number) = self.find_block(&index, VersionKey::newest_of(key))? else { return Ok(found) };
        let Some(mut block) = self.block_for_key(&index, number, key)? else { return Ok(found) };
        let mut at = block.shape.view(self.body(&block)).count_before(VersionKey::newest_of(key), false);
        loop {
            let view = block.shape.view(self.body(&block));
            while at < view.len() {
                if !view.is_version_of(at, key) {
                    return Ok(found);
                }
                found.push(self.entry_version(&block, at)?);
                at += 1;
            }
            number += 1;
            if index.separator(number).is_none_or(|separator| separator.key != key) {
                return Ok(found);
            }
            block = self.block(&index, number)?;
            at = 0;
        }
    }

    /// Entries of the keys between the bounds, in order: keys ascending, each key's newest version first.
    /// Bounds that exclude each other give nothing.
    pub fn scan(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> TableScan<&Self> {
        TableScan::new(self, from, to)
    }

    /// Entries of the keys between the bounds, in reverse order: keys descending, each key's oldest version
    /// first. Bounds that exclude each other give nothing.
    pub fn scan_back(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> ReverseTableScan<&Self> {
        ReverseTableScan::new(self, from, to)
    }

    /// Reads every block and filter.
    ///
    /// # Errors
    /// [`TableError::Damaged`] names the first part that is damaged.
    pub fn verify(&self) -> TableResult<()> {
        let index = self.index()?;
        index.validate(&self.footer).map_err(|what| self.damaged(self.footer.index_offset, what))?;
        let mut entries = 0u64;
        for number in 0..index.len() {
            let (offset, raw) = self.raw_block(&index, number)?;
            raw.check_filter(self.meta(), offset).map_err(|what| self.damaged(offset, what))?;
            let shape = self.check(&index, number, offset, &raw, |spot| {
                let held = raw.may_contain(self.meta(), spot.key);
                held.then_some(()).ok_or("a filter denies a key of its block")
            })?;
            let block = shape.view(raw.body);
            entries += block.len() as u64;
        }
        if entries == self.entry_count() {
            Ok(())
        } else {
            Err(self
                .damaged(self.footer.index_offset, "the entry count of the footer does not match the blocks"))
        }
    }

    /// The place of the first entry that is not before `spot`; with `past`, of the first entry after it. It
    /// may be the place after a block's last entry.
    pub(super) fn seek(&self, spot: VersionKey<'_>, past: bool) -> TableResult<EntryPlace> {
        let index = self.index()?;
        let Some(number) = self.find_block(&index, spot)? else { return Ok(EntryPlace { block: 0, at: 0 }) };
        let block = self.block(&index, number)?;
        Ok(EntryPlace { block: number, at: block.shape.view(self.body(&block)).count_before(spot, past) })
    }

    pub(super) fn block_count(&self) -> usize {
        // Opening has checked this count.
        self.footer.block_count as usize
    }

    /// A block, which is checked now unless it was before.
    pub(super) fn block_at(&self, number: usize) -> TableResult<CheckedBlock> {
        self.block(&self.index()?, number)
    }

    pub(super) fn body(&self, block: &CheckedBlock) -> &[u8] {
        self.bytes.get(block.body.clone()).unwrap_or(&[])
    }

    fn entry_version(&self, block: &CheckedBlock, at: usize) -> TableResult<(u64, IndexValue)> {
        let view = block.shape.view(self.body(block));
        let value = view.value(at).ok_or_else(|| self.changed_block_error())?;
        Ok((view.seqno(at), value))
    }

    /// The error for a block that was valid when it was first read and is not any more.
    pub(super) fn changed_block_error(&self) -> TableError {
        self.damaged(HEADER_LEN as u64, "a block has changed since it was first read")
    }

    fn block(&self, index: &BlockIndex<'_>, number: usize) -> TableResult<CheckedBlock> {
        let (offset, raw) = self.raw_block(index, number)?;
        self.checked_block(index, number, offset, &raw)
    }

    /// The block, unless its filter says that the key is not in it.
    fn block_for_key(
        &self,
        index: &BlockIndex<'_>,
        number: usize,
        key: &[u8],
    ) -> TableResult<Option<CheckedBlock>> {
        let (offset, raw) = self.raw_block(index, number)?;
        if !self.is_checked(number, FILTER_CHECKED) {
            raw.check_filter(self.meta(), offset).map_err(|what| self.damaged(offset, what))?;
            self.set_checked(number, FILTER_CHECKED);
        }
        if !raw.may_contain(self.meta(), key) {
            return Ok(None);
        }
        self.checked_block(index, number, offset, &raw).map(Some)
    }

    fn is_checked(&self, number: usize, what: u64) -> bool {
        let word = self.checked.get(number / 32);
        word.is_some_and(|word| word.load(Ordering::Acquire) & (what << (number % 32 * 2)) != 0)
    }

    fn set_checked(&self, number: usize, what: u64) {
        if let Some(word) = self.checked.get(number / 32) {
            word.fetch_or(what << (number % 32 * 2), Ordering::Release);
        }
    }

    fn checked_block(
        &self,
        index: &BlockIndex<'_>,
        number: usize,
        offset: u64,
        raw: &RawBlock<'_>,
    ) -> TableResult<CheckedBlock> {
        let shape = if self.is_checked(number, BODY_CHECKED) {
            BlockShape::read(raw.body).map_err(|what| self.damaged(offset, what))?
        } else {
            let shape = self.check(index, number, offset, raw, |_| Ok(()))?;
            self.set_checked(number, BODY_CHECKED);
            shape
        };
        // The body ends where the block does.
        let end = index.range(number).and_then(|range| usize::try_from(range.1).ok()).unwrap_or(0);
        Ok(CheckedBlock { shape, body: end.saturating_sub(raw.body.len())..end })
    }

    /// Checks a block and that it lies within its separators; `each` is called with every entry.
    fn check(
        &self,
        index: &BlockIndex<'_>,
        number: usize,
        offset: u64,
        raw: &RawBlock<'_>,
        mut each: impl FnMut(VersionKey<'_>) -> Result<(), DamageReason>,
    ) -> TableResult<BlockShape> {
        let (own, next) = (index.separator(number), index.separator(number + 1));
        let is_last = number + 1 == index.len();
        let inside = |spot: VersionKey<'_>| {
            let before_next = is_last || next.is_some_and(|next| spot < next);
            if before_next && own.is_some_and(|own| own <= spot) {
                each(spot)
            } else {
                Err("a block lies outside its separators")
            }
        };
        raw.check(self.meta(), offset, inside).map_err(|what| self.damaged(offset, what))
    }

    fn raw_block(&self, index: &BlockIndex<'_>, number: usize) -> TableResult<(u64, RawBlock<'_>)> {
        let outside = || self.damaged(self.footer.index_offset, "the index names a block outside the file");
        let (start, end) = index.range(number).ok_or_else(outside)?;
        let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
        let bytes = range.and_then(|(start, end)| self.bytes.get(start..end)).ok_or_else(outside)?;
        let raw = RawBlock::new(bytes).map_err(|what| self.damaged(start, what))?;
        Ok((start, raw))
    }

    fn index(&self) -> TableResult<BlockIndex<'_>> {
        let middle = self.bytes.len().checked_sub(FOOTER_LEN).and_then(|end| self.bytes.get(HEADER_LEN..end));
        BlockIndex::new(&self.footer, middle.unwrap_or(&[]))
            .map_err(|what| self.damaged(self.footer.index_offset, what))
    }

    fn find_block(&self, index: &BlockIndex<'_>, spot: VersionKey<'_>) -> TableResult<Option<usize>> {
        let wanted = key_prefix(spot.key);
        // Only separators that begin as the key does are read whole.
        let low = self.prefixes.partition_point(|prefix| *prefix < wanted);
        let same = self.prefixes.get(low..).unwrap_or(&[]).partition_point(|prefix| *prefix == wanted);
        index.find_block(spot, low..low + same).map_err(|what| self.damaged(self.footer.index_offset, what))
    }

    fn damaged(&self, offset: u64, what: DamageReason) -> TableError {
        TableError::Damaged { table: self.footer.meta.id, offset, what }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::META;
    use super::super::{FilterPolicy, IndexEntry, TableWriter};
    use super::*;

    /// Entries of large keys, so that there are many blocks; every second key is there.
    fn table(entries: u16, filter: FilterPolicy) -> Table {
        let mut writer = TableWriter::new(Vec::new(), META).unwrap().with_filter(filter);
        for n in 0..entries {
            let value = IndexValue { kind: 1, a: u64::from(n), b: 2, c: 3 };
            writer.add(&IndexEntry { key: key(2 * n), seqno: 5, value }).unwrap();
        }
        Table::open(FileBytes::owned(writer.finish().unwrap().into())).unwrap()
    }

    fn key(n: u16) -> Vec<u8> {
        let mut key = n.to_be_bytes().to_vec();
        key.resize(4000, 7);
        key
    }

    #[test]
    fn checked_bits_are_kept_per_block_and_filter() {
        let table = table(200, FilterPolicy::Always);
        let count = table.block_count();
        assert_eq!(count, 100);
        let checked =
            |what| (0..count + 40).filter(|block| table.is_checked(*block, what)).collect::<Vec<_>>();
        let mut read = Vec::new();
        for block in [0, 31, 32, 33, 63, 64, 99, 1, 98] {
            table.set_checked(block, FILTER_CHECKED);
            read.push(block);
            read.sort_unstable();
            assert_eq!(checked(FILTER_CHECKED), read);
            assert_eq!(checked(BODY_CHECKED).len(), read.len() - 1, "the one is not the other");
            table.set_checked(block, BODY_CHECKED);
            assert_eq!(checked(BODY_CHECKED), read);
        }
        table.set_checked(128, BODY_CHECKED);
        assert_eq!(checked(BODY_CHECKED), read, "there is no such block");
    }

    #[test]
    fn reading_a_key_checks_only_its_block() {
        let table = table(200, FilterPolicy::Always);
        let checked = |what| (0..100).filter(|block| table.is_checked(*block, what)).collect::<Vec<_>>();
        // There are two entries in a block.
        for n in [0, 137, 70] {
            assert_eq!(table.get(&key(2 * n), 9).unwrap().unwrap().1.a, u64::from(n));
        }
        assert_eq!((checked(FILTER_CHECKED), checked(BODY_CHECKED)), (vec![0, 35, 68], vec![0, 35, 68]));
        // If the filter denies a key, the block stays unread.
        let denied =
            (0..100).map(|n| 2 * n + 1).filter(|n| table.get(&key(*n), 9).unwrap().is_none()).count();
        assert_eq!(denied, 100);
        assert!(checked(FILTER_CHECKED).len() > checked(BODY_CHECKED).len() + 20);
        table.verify().unwrap();
    }

    #[test]
    fn key_prefix_orders_as_the_key_does() {
        let keys: [&[u8]; 7] =
            [b"", &[0, 1], &[1], b"abcdefghijklmno", b"abcdefghijklmnop", b"abcdefghijklmnopq", &[255; 20]];
        let fronts = keys.map(key_prefix);
        assert_eq!(fronts[0], 0);
        assert_eq!(fronts[2], 1 << 120);
        assert_eq!(fronts[1], 1 << 112);
        assert_eq!(fronts[4], u128::from_be_bytes(*b"abcdefghijklmnop"));
        assert!(fronts[3] < fronts[4] && fronts[4] == fronts[5]);
        assert_eq!(fronts[6], u128::MAX);
    }
}
