//! Merges tables on a thread of its own, beside flushes.
//!
//! A flush writes a table of its own, so no commit waits for a merge, and the longest wait does not grow with
//! the store. This thread merges neighbouring tables until each is [`TABLE_RATIO`] times larger than the one
//! after it, the smallest merge first. A long merge works in slices: after each it first does the smaller
//! merges that have become due, so few tables wait however long it takes.
//!
//! The lock on tables is held only while a new table takes the place of those that it was made of. If they
//! have changed meanwhile (a compaction, a rebuilt table), the work is discarded. A failed merge loses
//! nothing, and the next flush starts it again.

use std::ops::Range;
use std::sync::Arc;

use crate::error::Result;
use crate::kv::index::flush::{TABLE_RATIO, TableLocation, TableWriteError};
use crate::kv::index::levels::{Index, IndexLevels, ListedTable};
use crate::kv::index::upkeep::Upkeep;
use crate::kv::table::{TableError, TableMeta};
use crate::log::manifest::TableEntry;
use crate::log::segments::lock;
use crate::sync::atomic::Ordering;

/// The number of a table whose file is written while others change tables. Until it is dropped, nobody removes
/// the file as unlisted.
#[derive(Debug)]
pub(super) struct UnlistedTable {
    index: Arc<Index>,
    id: u64,
}

impl UnlistedTable {
    pub(super) fn new(index: &Arc<Index>) -> Self {
        let id = index.next_table.fetch_add(1, Ordering::Relaxed);
        lock(&index.unlisted).insert(id);
        Self { index: index.clone(), id }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for UnlistedTable {
    fn drop(&mut self) {
        lock(&self.index.unlisted).remove(&self.id);
    }
}

/// The smallest due merge of neighbouring tables with these numbers of entries, oldest first.
fn smallest_merge(entries: &[u64]) -> Option<Range<usize>> {
    let due = (2..=entries.len()).rev().filter_map(|end| {
        let (mut start, mut size) = (end - 1, *entries.get(end - 1)?);
        while let Some(older) = start.checked_sub(1).and_then(|older| entries.get(older))
            && *older < size.saturating_mul(TABLE_RATIO)
        {
            (start, size) = (start - 1, size.saturating_add(*older));
        }
        (start + 1 < end).then_some((size, start..end))
    });
    due.min_by_key(|(size, _)| *size).map(|(_, range)| range)
}

/// Number of entries of all these tables.
fn entries_of(tables: &[ListedTable]) -> u64 {
    tables.iter().map(|listed| listed.table.entry_count()).sum()
}

/// Where these tables are in the levels, next to each other and in this order.
fn place_in(levels: &IndexLevels, tables: &[ListedTable]) -> Option<Range<usize>> {
    let first = tables.first()?.entry.id;
    let start = levels.tables.iter().position(|listed| listed.entry.id == first)?;
    let there = levels.tables.get(start..start + tables.len())?;
    let are_equal = there.iter().zip(tables).all(|(one, other)| one.entry.id == other.entry.id);
    are_equal.then(|| start..start + tables.len())
}

impl Index {
    /// The thread's work.
    pub(super) fn run_merges(self: &Arc<Self>) {
        let Some(upkeep) = self.upkeep.get() else { return };
        while upkeep.await_merges() {
            self.merge_all(upkeep, &[]);
        }
    }

    /// Does all merges that are due, while others are being merged or not. Ends early if one does not succeed.
    fn merge_all(self: &Arc<Self>, upkeep: &Upkeep, merging: &[ListedTable]) {
        while let Some(tables) = self.next_merge(merging)
            && !upkeep.is_stopping()
            && self.merge_tables(upkeep, &tables).is_ok_and(|has_changed| has_changed)
        {}
    }

    /// The tables to merge next. While others are being merged, only newer ones count, and a smaller merge.
    fn next_merge(&self, merging: &[ListedTable]) -> Option<Vec<ListedTable>> {
        let levels = self.levels();
        let from = match merging {
            [] => self.pinned_tables.load(Ordering::Relaxed),
            _ => place_in(&levels, merging)?.end,
        };
        let newer = levels.tables.get(from..)?;
        // A table that is only in memory is written by the next flush.
        let newer = newer.split(|listed| listed.location == TableLocation::Memory).next()?;
        let entries: Vec<u64> = newer.iter().map(|listed| listed.table.entry_count()).collect();
        let due = newer.get(smallest_merge(&entries)?)?;
        (merging.is_empty() || entries_of(due) < entries_of(merging)).then(|| due.to_vec())
    }

    /// Merges these tables into one, unless they change meanwhile. Returns whether tables were replaced.
    fn merge_tables(self: &Arc<Self>, upkeep: &Upkeep, tables: &[ListedTable]) -> Result<bool> {
        let Some(newest) = tables.last() else { return Ok(false) };
        let unlisted = UnlistedTable::new(self);
        let id = unlisted.id();
        let meta = TableMeta { store: self.store.0, id, covers: newest.table.meta().covers };
        let is_oldest = place_in(&self.levels(), tables).is_some_and(|place| place.start == 0);
        let mut after_slice = || {
            self.merge_all(upkeep, tables);
            match upkeep.is_stopping() || place_in(&self.levels(), tables).is_none() {
                // The work is of no use any more.
                true => Err(TableError::WriterFailed),
                false => Ok(()),
            }
        };
        let made = self
            .write_file_with(meta, |sink| {
                self.merge_into(sink, meta, is_oldest, &[], tables, &mut after_slice)
            })
            .and_then(|table| {
                self.io.sync_dir(&self.paths.tables())?;
                let entry = TableEntry { id, bytes: table.file_len() };
                Ok(ListedTable { table: Arc::new(table), entry, location: TableLocation::File })
            });
        // If it cannot be removed now, the next cleanup removes it.
        let remove = || drop(self.io.remove(&self.paths.table(id)));
        match made {
            Ok(made) => {
                // After a failed edit of the manifest, it may list the table: its file stays.
                let is_listed = self.install_merged(upkeep, tables, made)?;
                if !is_listed {
                    remove();
                }
                Ok(is_listed)
            }
            Err(error) => {
                remove();
                let TableWriteError::Table(error @ TableError::Damaged { table, .. }) = error else {
                    return Err(error.into());
                };
                let _tables = lock(&self.tables);
                self.rebuild_table(table, &error).map(|()| true)
            }
        }
    }

    /// Puts a merged table in the place of those that it was made of, if they are all still there.
    fn install_merged(&self, upkeep: &Upkeep, old: &[ListedTable], made: ListedTable) -> Result<bool> {
        let _tables = lock(&self.tables);
        let levels = self.levels();
        let place = place_in(&levels, old);
        let place = place.filter(|place| place.start >= self.pinned_tables.load(Ordering::Relaxed));
        let Some(place) = place.filter(|_| self.writable.load(Ordering::Acquire)) else { return Ok(false) };
        upkeep.queue.check_poisoned()?;
        let mut tables = levels.tables.clone();
        tables.splice(place, [made]);
        // The manifest cannot list what is only in memory.
        if tables.iter().any(|listed| listed.location == TableLocation::Memory) {
            return Ok(false);
        }
        upkeep.list_tables(self, &tables, |_| {})?;
        self.change_levels(|levels| levels.tables = tables);
        self.remove_tables_not_in(&self.levels());
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
