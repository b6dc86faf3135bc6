//! Writes a table, entry by entry, to a sink.
//!
//! Memory while writing: one block, and the index so far. That is 13 bytes and a separator key for each
//! block, or about a tenth of a byte for each entry. The sink gets the bytes once, in order, one block at a
//! time.

use super::block_builder::BlockBuilder;
#[cfg(test)]
use super::entry::IndexEntry;
use super::entry::{IndexValue, TableMeta, VersionKey};
use super::error::{TableError, TableResult};
use super::filter::FilterPolicy;
use super::index::BlockIndexBuilder;
use super::layout::{BLOCK_ENTRIES_MAX, BLOCK_KEYS_MAX, HEADER_LEN, KEY_LEN_MAX, TableFooter, header};
use std::io::Write;

/// A block is closed before its raw entries exceed this many bytes.
const BLOCK_RAW_LEN: usize = 8 * 1024;
/// What an entry counts towards [`BLOCK_RAW_LEN`] besides its key.
const ENTRY_RAW_LEN: usize = 25;

const _: () = assert!(BLOCK_RAW_LEN / ENTRY_RAW_LEN < BLOCK_ENTRIES_MAX);
const _: () = assert!(BLOCK_RAW_LEN + KEY_LEN_MAX < BLOCK_KEYS_MAX);

/// Writes one table. An unfinished table cannot be opened.
#[derive(Debug)]
pub struct TableWriter<W> {
    sink: W,
    meta: TableMeta,
    filter: FilterPolicy,
    block: BlockBuilder,
    index: BlockIndexBuilder,
    /// The last entry of the block before `block`.
    previous_last: Option<(Vec<u8>, u64)>,
    offset: u64,
    entry_count: u64,
    failed: bool,
}

impl<W: Write> TableWriter<W> {
    /// Starts a table in `sink`, to which nothing else is written.
    ///
    /// # Errors
    /// [`TableError::Sink`] if the sink refuses the header.
    pub fn new(mut sink: W, meta: TableMeta) -> TableResult<Self> {
        sink.write_all(&header()).map_err(|source| TableError::Sink { source })?;
        Ok(Self {
            sink,
            meta,
            filter: FilterPolicy::default(),
            block: BlockBuilder::default(),
            index: BlockIndexBuilder::default(),
            previous_last: None,
            offset: HEADER_LEN as u64,
            entry_count: 0,
            failed: false,
        })
    }

    /// Sets which blocks get a filter of their keys.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn with_filter(mut self, filter: FilterPolicy) -> Self {
        self.filter = filter;
        self
    }

    /// Adds the next entry.
    ///
    /// # Errors
    /// See [`push`](Self::push).
    #[cfg(test)]
    pub fn add(&mut self, entry: &IndexEntry) -> TableResult<()> {
        self.push(&entry.key, entry.seqno, entry.value)
    }

    /// Adds the next entry from its parts.
    ///
    /// # Errors
    /// [`TableError::OutOfOrder`] if the entry does not come after the last one (key ascending, then seqno
    /// descending; equal ones are refused), and [`TableError::KeyTooLong`]: the writer continues without the
    /// entry. [`TableError::Sink`] and [`TableError::TooLarge`]: the writer refuses everything from then on.
    pub fn push(&mut self, key: &[u8], seqno: u64, value: IndexValue) -> TableResult<()> {
        if self.failed {
            return Err(TableError::WriterFailed);
        }
        if key.len() > KEY_LEN_MAX {
            return Err(TableError::KeyTooLong { len: key.len(), max: KEY_LEN_MAX });
        }
        let spot = VersionKey { key, seqno };
        if self.last_version_key().is_some_and(|last| last >= spot) {
            return Err(TableError::OutOfOrder { position: self.entry_count, seqno });
        }
        let raw_len = self.block.keys_len() + key.len() + (self.block.len() + 1) * ENTRY_RAW_LEN;
        if raw_len > BLOCK_RAW_LEN {
            self.close_block()?;
        }
        self.block.push(spot, value);
        self.entry_count += 1;
        Ok(())
    }

    /// Writes the rest and returns the sink, which the caller must sync.
    ///
    /// # Errors
    /// [`TableError::Sink`], [`TableError::TooLarge`], or [`TableError::WriterFailed`] after an earlier one.
    pub fn finish(mut self) -> TableResult<W> {
        if self.failed {
            return Err(TableError::WriterFailed);
        }
        self.close_block()?;
        let (index, block_count) = std::mem::take(&mut self.index).finish();
        let footer = TableFooter {
            index_offset: self.offset,
            block_count,
            entry_count: self.entry_count,
            meta: self.meta,
            index_crc: crc32fast::hash(&index),
        };
        self.write(&index)?;
        self.write(&footer.encode())?;
        self.sink.flush().map_err(|source| TableError::Sink { source })?;
        Ok(self.sink)
    }

    fn last_version_key(&self) -> Option<VersionKey<'_>> {
        self.block.last_version_key().or_else(|| self.previous_block_last())
    }

    fn previous_block_last(&self) -> Option<VersionKey<'_>> {
        self.previous_last.as_ref().map(|(key, seqno)| VersionKey { key, seqno: *seqno })
    }

    /// Writes the gathered entries, as one block or as several.
    fn close_block(&mut self) -> TableResult<()> {
        for part in self.block.parts() {
            let last = part.end.checked_sub(1).and_then(|last| self.block.version_key(last));
            let (Some(first), Some(last)) = (self.block.version_key(part.start), last) else { continue };
            let last = (last.key.to_vec(), last.seqno);
            let before = self.previous_last.as_ref().map(|(key, seqno)| VersionKey { key, seqno: *seqno });
            let added = self.index.add(self.offset, before, first);
            self.failed |= added.is_err();
            added?;
            let wants_filter = self.filter.applies_at(self.offset);
            let bytes = self.block.encode(part, &self.meta, self.offset, wants_filter);
            self.write(&bytes)?;
            self.previous_last = Some(last);
        }
        self.block.clear();
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> TableResult<()> {
        let written = self.sink.write_all(bytes).map_err(|source| TableError::Sink { source });
        self.failed |= written.is_err();
        self.offset += bytes.len() as u64;
        written
    }
}
