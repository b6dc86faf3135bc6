//! Reads a table.
//!
//! Opening checks header, footer and index; a block is checked when it is first read, and again each time it
//! is decoded. Invariant: what is returned was under a checksum that matched, and stands in order.

use super::block::{Block, RawBlock};
use super::cache::Cache;
use super::entry::{Spot, TableMeta, Value};
use super::error::{Result, TableError, What};
use super::index::Index;
use super::layout::{FOOTER_LEN, Footer, HEADER_LEN};
use super::scan::{Scan, ScanBack};
use crate::io::Bytes;
use std::ops::Bound;
use std::sync::Arc;

/// An open table. Cheap to hold: its bytes, and the few blocks read last, decoded.
#[derive(Debug)]
pub(crate) struct Table {
    bytes: Bytes,
    footer: Footer,
    cache: Cache,
}

/// Where an entry stands: a block, and a place in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) block: usize,
    pub(super) at: usize,
}

/// Whether a decoded block is worth keeping for the next reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    Yes,
    No,
}

impl Table {
    /// Opens a table from the bytes of its whole file. Reads header, footer and index; no block.
    ///
    /// # Errors
    /// [`TableError::NotATable`], [`TableError::UnknownVersion`], or [`TableError::Damaged`].
    pub(crate) fn open(bytes: Bytes) -> Result<Self> {
        let (footer, middle) = Footer::decode(&bytes)?;
        let damaged = |what| TableError::Damaged { table: footer.meta.id, offset: footer.index_offset, what };
        let index = Index::new(&footer, middle).map_err(damaged)?;
        index.validate(&footer).map_err(damaged)?;
        Ok(Self { bytes, footer, cache: Cache::default() })
    }

    /// Which table this is and what it covers.
    #[must_use]
    pub(crate) fn meta(&self) -> &TableMeta {
        &self.footer.meta
    }

    /// How many entries the table holds.
    #[must_use]
    pub(crate) fn entry_count(&self) -> u64 {
        self.footer.entry_count
    }

    /// The file's length in bytes.
    #[must_use]
    pub(crate) fn file_len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The newest version of `key` with a seqno of at most `at`.
    ///
    /// # Errors
    /// [`TableError::Damaged`] where a block that has to be read is damaged.
    pub(crate) fn get(&self, key: &[u8], at: u64) -> Result<Option<(u64, Value)>> {
        let target = Spot { key, seqno: at };
        let index = self.index()?;
        let Some(number) = self.locate(&index, target)? else { return Ok(None) };
        let Some(block) = self.block_with(number, key)? else { return Ok(None) };
        if let Some((spot, value)) = block.get(block.before(target)) {
            return Ok((spot.key == key).then_some((spot.seqno, value)));
        }
        // Nothing of the block is at or after the target: older versions of the key may begin the next block,
        // whose separator then is the first of them.
        if index.separator(number + 1).is_none_or(|separator| separator.key != key) {
            return Ok(None);
        }
        let block = self.block(number + 1, Keep::Yes)?;
        Ok(block.get(0).filter(|(spot, _)| spot.key == key).map(|(spot, value)| (spot.seqno, value)))
    }

    /// All versions of `key`, newest first.
    ///
    /// # Errors
    /// [`TableError::Damaged`] where a block that has to be read is damaged.
    pub(crate) fn versions(&self, key: &[u8]) -> Result<Vec<(u64, Value)>> {
        let mut found = Vec::new();
        let index = self.index()?;
        let Some(mut number) = self.locate(&index, Spot::first(key))? else { return Ok(found) };
        let Some(mut block) = self.block_with(number, key)? else { return Ok(found) };
        let mut at = block.before(Spot::first(key));
        loop {
            while let Some((spot, value)) = block.get(at) {
                if spot.key != key {
                    return Ok(found);
                }
                found.push((spot.seqno, value));
                at += 1;
            }
            number += 1;
            if index.separator(number).is_none_or(|separator| separator.key != key) {
                return Ok(found);
            }
            block = self.block(number, Keep::Yes)?;
            at = 0;
        }
    }

    /// Entries of the keys between the bounds, in order: keys ascending, each key's newest version first.
    /// Bounds that exclude each other give nothing.
    pub(crate) fn scan(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Scan<&Self> {
        Scan::new(self, from, to)
    }

    /// Entries of the keys between the bounds, in reverse order: keys descending, each key's oldest version
    /// first. Bounds that exclude each other give nothing.
    pub(crate) fn scan_back(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> ScanBack<&Self> {
        ScanBack::new(self, from, to)
    }

    /// Reads every block and filter.
    ///
    /// # Errors
    /// [`TableError::Damaged`] names the first part that is damaged.
    pub(crate) fn verify(&self) -> Result<()> {
        let index = self.index()?;
        index.validate(&self.footer).map_err(|what| self.damaged(self.footer.index_offset, what))?;
        let mut entries = 0u64;
        for number in 0..index.len() {
            let (offset, raw) = self.raw(&index, number)?;
            raw.check_filter(self.meta(), offset).map_err(|what| self.damaged(offset, what))?;
            let block = self.decode(&index, number)?;
            let missed = |at| {
                block
                    .spot(at)
                    .is_some_and(|spot| !matches!(raw.may_hold(self.meta(), offset, spot.key), Ok(true)))
            };
            if (0..block.len()).any(missed) {
                return Err(self.damaged(offset, "a filter denies a key of its block"));
            }
            entries += block.len() as u64;
        }
        if entries == self.entry_count() {
            Ok(())
        } else {
            Err(self
                .damaged(self.footer.index_offset, "the blocks hold another number of entries than promised"))
        }
    }

    /// The place of the first entry not before `spot`, or with `past` of the first after it. It may be the
    /// place after a block's last entry.
    pub(super) fn seek(&self, spot: Spot<'_>, past: bool) -> Result<Place> {
        let Some(number) = self.locate(&self.index()?, spot)? else { return Ok(Place { block: 0, at: 0 }) };
        let block = self.block(number, Keep::Yes)?;
        let at = if past { block.through(spot) } else { block.before(spot) };
        Ok(Place { block: number, at })
    }

    pub(super) fn block_count(&self) -> Result<usize> {
        Ok(self.index()?.len())
    }

    pub(super) fn block(&self, number: usize, keep: Keep) -> Result<Arc<Block>> {
        if let Some(block) = self.cache.get(number) {
            return Ok(block);
        }
        let block = Arc::new(self.decode(&self.index()?, number)?);
        if keep == Keep::Yes {
            self.cache.put(number, &block);
        }
        Ok(block)
    }

    /// The block, unless its filter says that the key is not in it.
    fn block_with(&self, number: usize, key: &[u8]) -> Result<Option<Arc<Block>>> {
        if let Some(block) = self.cache.get(number) {
            return Ok(Some(block));
        }
        let (offset, raw) = self.raw(&self.index()?, number)?;
        if !raw.may_hold(self.meta(), offset, key).map_err(|what| self.damaged(offset, what))? {
            return Ok(None);
        }
        self.block(number, Keep::Yes).map(Some)
    }

    fn decode(&self, index: &Index<'_>, number: usize) -> Result<Block> {
        let (offset, raw) = self.raw(index, number)?;
        let damaged = |what| self.damaged(offset, what);
        let block = raw.decode(self.meta(), offset).map_err(damaged)?;
        let (first, last) = (block.spot(0), block.last());
        let after_own = index.separator(number).is_some_and(|own| first.is_some_and(|first| own <= first));
        let before_next = number + 1 == index.len()
            || index.separator(number + 1).is_some_and(|next| last.is_some_and(|last| last < next));
        if after_own && before_next { Ok(block) } else { Err(damaged("a block lies outside its separators")) }
    }

    fn raw(&self, index: &Index<'_>, number: usize) -> Result<(u64, RawBlock<'_>)> {
        let outside = || self.damaged(self.footer.index_offset, "the index names a block outside the file");
        let (start, end) = index.range(number).ok_or_else(outside)?;
        let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
        let bytes = range.and_then(|(start, end)| self.bytes.get(start..end)).ok_or_else(outside)?;
        let raw = RawBlock::new(bytes).map_err(|what| self.damaged(start, what))?;
        Ok((start, raw))
    }

    fn index(&self) -> Result<Index<'_>> {
        let middle = self.bytes.len().checked_sub(FOOTER_LEN).and_then(|end| self.bytes.get(HEADER_LEN..end));
        Index::new(&self.footer, middle.unwrap_or(&[]))
            .map_err(|what| self.damaged(self.footer.index_offset, what))
    }

    fn locate(&self, index: &Index<'_>, spot: Spot<'_>) -> Result<Option<usize>> {
        index.locate(spot).map_err(|what| self.damaged(self.footer.index_offset, what))
    }

    fn damaged(&self, offset: u64, what: What) -> TableError {
        TableError::Damaged { table: self.footer.meta.id, offset, what }
    }
}
