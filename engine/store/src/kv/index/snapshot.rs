//! The index at one moment, for a comparison with the log.
//!
//! A snapshot rebuilds no table: a table that turns out to be damaged is an error.

use std::collections::HashSet;
use std::sync::Arc;

use crate::error::Result;
use crate::ids::{SegmentId, Seqno};
use crate::kv::index::levels::{Index, IndexLevels};
use crate::kv::index::memtable::MemtableSource;
use crate::kv::index::reads::table_error;
use crate::kv::keys;
use crate::kv::table::{IndexValue, MergeSource, Table, TableError, TableSource, merge_checked};
use crate::log::manifest::TableEntry;
use crate::log::segments::lock;

/// See the module.
#[derive(Debug)]
pub struct IndexSnapshot {
    levels: Arc<IndexLevels>,
    visible: Seqno,
}

impl Index {
    /// The index now, and what `then` returns. No compaction of this process moves records between the two.
    pub fn snapshot_with<T>(&self, then: impl FnOnce() -> T) -> (IndexSnapshot, T) {
        let _tables = lock(&self.tables);
        // In this order, so that everything visible is in the levels.
        let visible = self.visible();
        let levels = self.levels();
        (IndexSnapshot { levels, visible }, then())
    }
}

impl IndexSnapshot {
    /// The last seqno that was visible. The snapshot may also hold some later entries.
    pub fn visible(&self) -> Seqno {
        self.visible
    }

    /// Whether these are its tables, as a manifest lists them.
    pub fn has_tables(&self, listed: &[TableEntry]) -> bool {
        let ids = |entries: &[TableEntry]| entries.iter().map(|entry| entry.id).collect::<Vec<_>>();
        ids(&self.levels.table_entries()) == ids(listed)
    }

    /// The segments that its entries lead to.
    ///
    /// # Errors
    /// `Damaged` if a table is.
    pub fn segments(&self) -> Result<HashSet<SegmentId>> {
        let (mut all, mut last) = (HashSet::new(), None);
        self.for_each(|_, _, value, _| {
            let segment = keys::place(value).segment;
            if value.kind != keys::ANCHOR && last.replace(segment) != Some(segment) {
                all.insert(segment);
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// The newest version of a key at `at`.
    ///
    /// # Errors
    /// `Damaged` if a table is.
    pub fn get(&self, key: &[u8], at: Seqno) -> Result<Option<(Seqno, IndexValue)>> {
        self.levels.get(key, at).map_err(table_error)
    }

    /// The number of versions of a key that are newer than `seqno`.
    ///
    /// # Errors
    /// `Damaged` if a table is.
    pub fn newer_versions(&self, key: &[u8], seqno: Seqno) -> Result<usize> {
        let versions = self.levels.versions(key, Seqno(u64::MAX)).map_err(table_error)?;
        Ok(versions.iter().filter(|(at, _)| *at > seqno).count())
    }

    /// Whether a table holds this version of a key. Tables hold only what was published.
    ///
    /// # Errors
    /// `Damaged` if a table is.
    pub fn is_in_table(&self, key: &[u8], seqno: Seqno) -> Result<bool> {
        for table in self.levels.tables() {
            let found = Table::get(table, key, seqno.0).map_err(table_error)?;
            if found.is_some_and(|(at, _)| at == seqno.0) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Calls `each` with all entries in order: key ascending, and of each key the newest version first. It also gets
    /// whether another table has a different value in the same entry, which no writer makes.
    ///
    /// # Errors
    /// The error of `each`; `Damaged` if a table is.
    pub fn for_each(&self, mut each: impl FnMut(&[u8], Seqno, IndexValue, bool) -> Result<()>) -> Result<()> {
        let mut failed = None;
        let memory = self.levels.memory();
        let mut sources: Vec<Box<dyn MergeSource + '_>> = Vec::new();
        sources.extend(memory.map(|memory| Box::new(MemtableSource::new(memory.clone())) as Box<_>));
        sources.extend(self.levels.tables().map(|table| Box::new(TableSource::new(table)) as Box<_>));
        let done = merge_checked(sources, |key, seqno, value, differs| {
            each(key, Seqno(seqno), value, differs).map_err(|error| {
                failed = Some(error);
                TableError::WriterFailed
            })
        });
        match (done, failed) {
            (_, Some(error)) => Err(error),
            (done, None) => done.map_err(table_error),
        }
    }
}
