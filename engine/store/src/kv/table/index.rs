//! The index of blocks: where each begins, and a separator that orders it among the others.
//!
//! It is searched in place, in the file's own bytes, so an open table holds none of it in memory. For the
//! same reason separators are not compressed against each other. `layout.rs` specifies the layout.

use super::block_builder::shared_len;
use super::cursor::{TableByteCursor, put_varint};
use super::entry::VersionKey;
use super::error::{DamageReason, TableError};
use super::layout::{BLOCK_ENTRIES_MAX, HEADER_LEN, KEY_LEN_MAX, TableFooter};
use std::ops::Range;

/// Bytes of an index entry without its separator.
const FIXED_LEN: usize = 12;

const SEPARATOR: DamageReason = "a separator is cut short or too long";

/// Collects the index while blocks are written.
#[derive(Debug, Default)]
pub(super) struct BlockIndexBuilder {
    fixed: Vec<u8>,
    separators: Vec<u8>,
    count: u32,
}

impl BlockIndexBuilder {
    /// Adds the block at `offset` whose first entry is `first`; `before` is the entry before it, if any.
    pub(super) fn add(
        &mut self,
        offset: u64,
        before: Option<VersionKey<'_>>,
        first: VersionKey<'_>,
    ) -> Result<(), TableError> {
        let separator = match before {
            None => VersionKey::newest_of(&[]),
            Some(before) if before.key == first.key => first,
            Some(before) => {
                let len = shared_len(before.key, first.key) + 1;
                VersionKey::newest_of(first.key.get(..len).unwrap_or(first.key))
            }
        };
        put_varint(&mut self.separators, !separator.seqno);
        self.separators.extend_from_slice(separator.key);
        let end = u32::try_from(self.separators.len())
            .map_err(|_| TableError::TooLarge { what: "its separators fill 4 GiB" })?;
        self.fixed.extend_from_slice(&offset.to_le_bytes());
        self.fixed.extend_from_slice(&end.to_le_bytes());
        self.count =
            self.count.checked_add(1).ok_or(TableError::TooLarge { what: "it has 4 billion blocks" })?;
        Ok(())
    }

    /// The index's bytes and the number of blocks.
    pub(super) fn finish(mut self) -> (Vec<u8>, u32) {
        self.fixed.append(&mut self.separators);
        (self.fixed, self.count)
    }
}

/// The index in a file's bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockIndex<'a> {
    fixed: &'a [u8],
    separators: &'a [u8],
    count: usize,
    /// Where the last block ends.
    offset: u64,
}

impl<'a> BlockIndex<'a> {
    /// Finds the index between `HEADER_LEN` and the footer: `middle` is all that lies there.
    pub(super) fn new(footer: &TableFooter, middle: &'a [u8]) -> Result<Self, DamageReason> {
        Self::split(footer, middle).ok_or("the index lies outside the file")
    }

    fn split(footer: &TableFooter, middle: &'a [u8]) -> Option<Self> {
        let start = usize::try_from(footer.index_offset).ok()?.checked_sub(HEADER_LEN)?;
        let count = usize::try_from(footer.block_count).ok()?;
        let bytes = middle.get(start..)?;
        let (fixed, separators) = bytes.split_at_checked(count.checked_mul(FIXED_LEN)?)?;
        Some(Self { fixed, separators, count, offset: footer.index_offset })
    }

    /// Checks the crc, and everything that the index alone can show.
    pub(super) fn validate(&self, footer: &TableFooter) -> Result<(), DamageReason> {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(self.fixed);
        hasher.update(self.separators);
        if hasher.finalize() != footer.index_crc {
            return Err("the index's checksum does not match");
        }
        let (blocks, most) = (self.count as u64, BLOCK_ENTRIES_MAX as u64);
        if footer.entry_count < blocks || footer.entry_count > blocks.saturating_mul(most) {
            return Err("the entry count does not fit the number of blocks");
        }
        let first_offset = if self.count == 0 { Some(self.offset) } else { self.start(0) };
        if first_offset != Some(HEADER_LEN as u64) {
            return Err("the first block does not follow the header");
        }
        let mut last = None;
        for block in 0..self.count {
            let range = self.range(block).ok_or("the index is cut short")?;
            if range.0 >= range.1 {
                return Err("the index names blocks out of order");
            }
            let separator = self.separator(block).ok_or(SEPARATOR)?;
            if block == 0 && separator != VersionKey::newest_of(&[]) {
                return Err("the first separator is not the least");
            }
            if last.is_some_and(|last| last >= separator) {
                return Err("separators are out of order");
            }
            last = Some(separator);
        }
        let end = self.count.checked_sub(1).map_or(Some(0), |block| self.separator_end(block));
        if end == Some(self.separators.len()) { Ok(()) } else { Err("the index has bytes left over") }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    fn fixed_entry(&self, block: usize) -> Option<(u64, u32)> {
        let start = block.checked_mul(FIXED_LEN)?;
        let mut cursor = TableByteCursor::new(self.fixed.get(start..start.checked_add(FIXED_LEN)?)?);
        Some((cursor.u64()?, cursor.u32()?))
    }

    fn start(&self, block: usize) -> Option<u64> {
        self.fixed_entry(block).map(|fixed| fixed.0)
    }

    fn separator_end(&self, block: usize) -> Option<usize> {
        usize::try_from(self.fixed_entry(block)?.1).ok()
    }

    /// First byte of a block and the byte after its last, in the file.
    pub(super) fn range(&self, block: usize) -> Option<(u64, u64)> {
        let end = if block + 1 == self.count { self.offset } else { self.start(block + 1)? };
        Some((self.start(block)?, end))
    }

    pub(super) fn separator(&self, block: usize) -> Option<VersionKey<'a>> {
        let start = match block.checked_sub(1) {
            Some(before) => self.separator_end(before)?,
            None => 0,
        };
        let mut cursor = TableByteCursor::new(self.separators.get(start..self.separator_end(block)?)?);
        let seqno = !cursor.varint()?;
        let key = cursor.rest();
        (key.len() <= KEY_LEN_MAX).then_some(VersionKey { key, seqno })
    }

    /// The last block whose separator is not after `spot`. All entries from `spot` up to the next block's
    /// separator are in it. `None` if the table is empty.
    ///
    /// The caller knows that separators before `among` are not after `spot`, and that those behind it are.
    pub(super) fn find_block(
        &self,
        spot: VersionKey<'_>,
        among: Range<usize>,
    ) -> Result<Option<usize>, DamageReason> {
        let (mut low, mut high) = (among.start, among.end);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.separator(middle).ok_or(SEPARATOR)? <= spot {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low.checked_sub(1))
    }
}
