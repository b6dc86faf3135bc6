//! Writes memory into a table, alone or merged with the newest tables.
//!
//! A table is written to its own file and synced, and its name is synced, before anything lists it. Versions
//! that no reader can request any more are left out.

use std::io::IoSlice;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ids::SegmentId;
use crate::io::{File, FileBytes, IoError, OpenMode};
use crate::kv::index::levels::{Index, IndexLevels, ListedTable};
use crate::kv::index::memtable::{Memtable, MemtableSource};
use crate::kv::index::reads::table_error;
use crate::kv::keys;
use crate::kv::table::{
    IndexValue, MergeSource, Table, TableCoverage, TableError, TableMeta, TableSource, TableWriter, merge,
};
use crate::log::layout::LogState;
use crate::log::manifest::TableEntry;
use crate::log::paths::parse_table;
use crate::log::record::HistoryCode;
use crate::log::segments::{lock, read_lock};
use crate::schema::PASSING_SPACE;
use crate::sync::atomic::Ordering;

/// A table is merged into the one before it unless that one is at least this many times larger. Over 38
/// flushes, ratio 2 writes each entry 3.2 times and leaves at most 5 tables. Ratio 4 writes each entry 4.8
/// times and leaves 3 tables.
pub(super) const TABLE_RATIO: u64 = 2;

/// Tables that a flush leaves to the thread that merges. If there are more, that thread is too slow, and the
/// flush merges them itself.
const TABLES_MAX: usize = 32;

/// At most so many entries are merged by a closing: it takes no longer in a large store.
pub(super) const CLOSE_ENTRIES_MAX: u64 = 1 << 20;

/// How many of the oldest tables stay as they are when this many entries come. The newest are merged until
/// each remaining table is [`TABLE_RATIO`] times larger than what follows, or until more than `most` entries
/// would be merged.
fn tables_to_keep(tables: &[ListedTable], entries: u64, most: u64) -> usize {
    let mut size = entries;
    let mut keep = tables.len();
    while keep > 0 && tables[keep - 1].table.entry_count() < size.saturating_mul(TABLE_RATIO) {
        size = size.saturating_add(tables[keep - 1].table.entry_count());
        if size > most {
            break;
        }
        keep -= 1;
    }
    keep
}

/// Where a table is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableLocation {
    /// In its own file.
    File,
    /// In memory, in the same form: a table that a reader rebuilt.
    Memory,
}

/// Why a table could not be written.
#[derive(Debug)]
pub(super) enum TableWriteError {
    /// A table to be merged is damaged, or the new one cannot be encoded.
    Table(TableError),
    /// Any other error.
    Other(Error),
}

impl From<TableError> for TableWriteError {
    fn from(error: TableError) -> Self {
        Self::Table(error)
    }
}

impl From<IoError> for TableWriteError {
    fn from(error: IoError) -> Self {
        Self::Other(error.into())
    }
}

impl From<TableWriteError> for Error {
    fn from(error: TableWriteError) -> Self {
        match error {
            TableWriteError::Table(error) => table_error(error),
            TableWriteError::Other(error) => error,
        }
    }
}

impl Index {
    /// Writes memory, newest first, into a table merged with the newest existing tables, as long as these have
    /// together at most `most` entries. Returns the resulting tables. All of them are on disk with their names,
    /// but the new one is not listed yet. The caller holds the lock on tables until they are in the levels.
    pub(super) fn flush_memory(
        &self,
        at: (SegmentId, u64),
        state: &LogState,
        memory: &[Arc<Memtable>],
        most: u64,
    ) -> Result<Vec<ListedTable>> {
        let covers = TableCoverage { segment: u64::from(at.0.0), offset: at.1, seqno: state.next_seqno.0 };
        self.with_repair_locked(|| {
            let tables = &self.levels().tables;
            let most = if tables.len() > TABLES_MAX { u64::MAX } else { most };
            self.try_flush_memory(covers, memory, tables, TableLocation::File, most)
        })
    }

    /// One attempt of [`Index::flush_memory`], over these tables: all that there are.
    pub(super) fn try_flush_memory(
        &self,
        covers: TableCoverage,
        memory: &[Arc<Memtable>],
        tables: &[ListedTable],
        kept: TableLocation,
        most: u64,
    ) -> std::result::Result<Vec<ListedTable>, TableWriteError> {
        self.try_flush_part(covers, memory, tables, (kept, false), most)
    }

    /// As [`Index::try_flush_memory`]. With `is_part`, the index has older tables than these.
    pub(super) fn try_flush_part(
        &self,
        covers: TableCoverage,
        memory: &[Arc<Memtable>],
        tables: &[ListedTable],
        (kept, is_part): (TableLocation, bool),
        most: u64,
    ) -> std::result::Result<Vec<ListedTable>, TableWriteError> {
        let entries: usize = memory.iter().map(|memory| memory.len()).sum();
        // The manifest cannot list a table that is only in memory, so it is merged into the file.
        let files = tables
            .iter()
            .take_while(|listed| listed.location == TableLocation::File || kept == TableLocation::Memory)
            .count();
        if entries == 0 && files == tables.len() {
            return Ok(tables.to_vec());
        }
        let pinned = self.pinned_tables.load(Ordering::Relaxed);
        let keep = tables_to_keep(tables, entries as u64, most).max(pinned).min(files);
        let id = self.next_table.fetch_add(1, Ordering::Relaxed);
        let meta = TableMeta { store: self.store.0, id, covers };
        let is_oldest = keep == 0 && !is_part;
        let table = match kept {
            TableLocation::Memory => {
                let bytes =
                    self.merge_into(Vec::new(), meta, is_oldest, memory, &tables[keep..], &mut || Ok(()))?;
                Table::open(FileBytes::owned(bytes.into()))?
            }
            TableLocation::File => {
                let table = self.write_file(meta, is_oldest, memory, &tables[keep..]).inspect_err(|_| {
                    // The incomplete file takes space. If it cannot be removed now, the next cleanup removes
                    // it.
                    let _ = self.io.remove(&self.paths.table(id));
                })?;
                self.io.sync_dir(&self.paths.tables())?;
                table
            }
        };
        let entry = TableEntry { id, bytes: table.file_len() };
        let mut now = tables[..keep].to_vec();
        now.push(ListedTable { table: Arc::new(table), entry, location: kept });
        Ok(now)
    }

    fn write_file(
        &self,
        meta: TableMeta,
        is_oldest: bool,
        memory: &[Arc<Memtable>],
        tables: &[ListedTable],
    ) -> std::result::Result<Table, TableWriteError> {
        self.write_file_with(meta, |sink| {
            self.merge_into(sink, meta, is_oldest, memory, tables, &mut || Ok(()))
        })
    }

    /// Writes and syncs the file of a table that `fill` puts into a sink. The name is not synced.
    pub(super) fn write_file_with(
        &self,
        meta: TableMeta,
        fill: impl FnOnce(FileSink) -> std::result::Result<FileSink, TableError>,
    ) -> std::result::Result<Table, TableWriteError> {
        let path = self.paths.table(meta.id);
        if self.io.stat(&path)?.is_some() {
            self.io.remove(&path)?;
        }
        let file = self.io.open(&path, OpenMode::CreateNew)?;
        let sink = FileSink { file: file.clone(), at: 0, synced: 0, pending: Vec::new(), failed: None };
        fill(sink)?.finish().map_err(TableWriteError::Other)?;
        file.sync()?;
        Ok(Table::open(self.limits.read_mode.read_whole(&*file)?)?)
    }

    /// Merges memory and tables into one table. `is_oldest`: no older table has versions of
    /// these keys. Returns the sink. `after_slice` is called after each
    /// [`SLICE_ENTRIES`] entries, and may end the merge.
    pub(super) fn merge_into<S: std::io::Write>(
        &self,
        sink: S,
        meta: TableMeta,
        is_oldest: bool,
        memory: &[Arc<Memtable>],
        tables: &[ListedTable],
        after_slice: &mut dyn FnMut() -> std::result::Result<(), TableError>,
    ) -> std::result::Result<S, TableError> {
        let mut writer = TableWriter::new(sink, meta)?;
        // A view that is opened from now on sees the newest of everything written here.
        let keep_all = !lock(&self.views).is_empty();
        let mut sources: Vec<Box<dyn MergeSource>> = Vec::new();
        for memory in memory {
            sources.push(Box::new(MemtableSource::new(memory.clone())));
        }
        for listed in tables.iter().rev() {
            sources.push(Box::new(TableSource::new(listed.table.clone())));
        }
        // Number of newer versions of the same key.
        let (mut last, mut newer): (Vec<u8>, usize) = (Vec::new(), 0);
        let mut first = true;
        // The end of the key `last`, of a passing space. It leaves with the version before it; without one here,
        // an older table may have it.
        let mut held: Option<(u64, IndexValue)> = None;
        let mut left = SLICE_ENTRIES;
        merge(sources, |key, seqno, value| {
            left -= 1;
            if left == 0 {
                left = SLICE_ENTRIES;
                after_slice()?;
            }
            if let Some((seqno, value)) = held.take()
                && last != key
                && !is_oldest
            {
                writer.push(&last, seqno, value)?;
            }
            if !first && last == key {
                newer += 1;
            } else {
                last.clear();
                last.extend_from_slice(key);
                (newer, first) = (0, false);
            }
            let space = keys::space_of(key);
            let dropped = self.is_superseded(space, newer) && (keys::keeps_newest_only(space) || !keep_all);
            if dropped || !keys::is_kept_in_tables(key) {
                return Ok(());
            }
            if space == PASSING_SPACE && !keys::is_living(value) {
                held = Some((seqno, value));
                return Ok(());
            }
            writer.push(key, keys::seqno_in_tables(space, seqno), value)
        })?;
        if let Some((seqno, value)) = held
            && !is_oldest
        {
            writer.push(&last, seqno, value)?;
        }
        writer.finish()
    }

    /// Whether a version may be left out of a table because its keyspace's policy no longer keeps it.
    pub fn is_superseded(&self, space: u32, newer: usize) -> bool {
        if keys::keeps_newest_only(space) || newer == 0 {
            return newer >= 1;
        }
        match read_lock(&self.policies).get(&space) {
            Some(HistoryCode::Latest) => newer >= 1,
            Some(HistoryCode::Newest(count)) => newer >= (*count).max(1) as usize,
            _ => false,
        }
    }

    /// Removes table files that are not in these levels. A later call removes those that cannot be removed
    /// now.
    pub(super) fn remove_tables_not_in(&self, levels: &IndexLevels) {
        let Ok(names) = self.io.list(&self.paths.tables()) else { return };
        for name in names {
            if let Some(id) = parse_table(&name)
                && !lock(&self.unlisted).contains(&id)
                && levels.tables.iter().all(|listed| listed.entry.id != id)
            {
                let _ = self.io.remove(&self.paths.table(id));
            }
        }
    }
}

/// Entries of a slice of a merge.
const SLICE_ENTRIES: u32 = 1 << 16;
/// A table's file is synced each time that it has grown by so many bytes.
const SYNC_BYTES: u64 = 8 << 20;

/// Writes a stream to a file in large pieces.
pub(super) struct FileSink {
    file: Arc<dyn File>,
    at: u64,
    /// Position up to which the file was synced on the way.
    synced: u64,
    pending: Vec<u8>,
    failed: Option<IoError>,
}

impl FileSink {
    fn flush_pending(&mut self) -> std::io::Result<()> {
        let written = self.file.write_at(&[IoSlice::new(&self.pending)], self.at);
        self.checked(written)?;
        self.at += self.pending.len() as u64;
        self.pending.clear();
        // One sync of a long file would delay all syncs of the log that come meanwhile.
        if self.at - self.synced >= SYNC_BYTES {
            self.synced = self.at;
            let synced = self.file.sync();
            self.checked(synced)?;
        }
        Ok(())
    }

    /// Keeps an error for the call that finishes.
    fn checked(&mut self, done: crate::io::IoResult<()>) -> std::io::Result<()> {
        done.map_err(|error| {
            let kind = error.source.kind();
            self.failed = Some(error);
            kind.into()
        })
    }

    fn finish(mut self) -> Result<()> {
        if self.flush_pending().is_err()
            && let Some(error) = self.failed
        {
            return Err(error.into());
        }
        Ok(())
    }
}

impl std::io::Write for FileSink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        if self.pending.len() >= 1 << 20 {
            self.flush_pending()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
