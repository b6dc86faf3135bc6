//! Rebuilds a damaged table from the log while the store is open.
//!
//! Opening checks a table's header, footer and index. A block is checked when it is first read. If it is
//! damaged, the part of the log that this table covers is read again. The new table takes the old one's place
//! in the levels, and the caller retries.
//!
//! A writer writes the new table to a file, and the next edit of the manifest lists it. Memory stays bounded
//! as at an opening. A reader keeps the new table in memory, where it takes as many bytes as the file. So
//! does a writer whose disk has no room. If the log cannot be read either, the call fails with the log's own
//! error.
//!
//! Left out: checking blocks that no caller reads. `Store::verify` reads them all.

use crate::sync::atomic::Ordering;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{RecordPlace, SegmentId};
use crate::kv::index::flush::{TableLocation, TableWriteError};
use crate::kv::index::levels::{Index, ListedTable};
use crate::kv::index::memtable::Memtable;
use crate::kv::index::reads::table_error;
use crate::kv::keys;
use crate::kv::table::{TableCoverage, TableError};
use crate::log::cursor::for_each_checked_record;
use crate::log::manifest::TableEntry;
use crate::log::open::{Damage, find};
use crate::log::scan::scan_between;
use crate::log::segments::lock;

/// Maximum number of tables rebuilt by one call. On a disk that damages what was just written, rebuilding
/// would not end.
const REBUILDS_MAX: usize = 64;
/// Maximum number of notes about rebuilt tables.
const NOTES_MAX: usize = 1000;

/// A part of the index that was rebuilt.
#[derive(Debug)]
pub(super) struct RebuiltPart {
    damage: Damage,
    /// The table, if one of its blocks is damaged.
    table: Option<u64>,
}

/// Where the part of the log that a table covers ends.
fn covered_end(listed: &ListedTable) -> Result<(SegmentId, u64)> {
    let covers = listed.table.meta().covers;
    let segment = u32::try_from(covers.segment)
        .map_err(|_| Error::new(ErrorKind::Damaged, "a table covers a segment number that is too large"))?;
    Ok((SegmentId(segment), covers.offset))
}

impl Index {
    /// Calls `attempt`, which reads tables. If a table is damaged, rebuilds it from the log and calls
    /// `attempt` again.
    pub(super) fn with_repair<T>(
        &self,
        mut attempt: impl FnMut() -> std::result::Result<T, TableError>,
    ) -> Result<T> {
        let mut mended = 0;
        loop {
            match attempt() {
                Ok(found) => return Ok(found),
                Err(error @ TableError::Damaged { table, .. }) if mended < REBUILDS_MAX => {
                    let _tables = lock(&self.tables);
                    self.rebuild_table(table, &error)?;
                    mended += 1;
                }
                Err(error) => return Err(table_error(error)),
            }
        }
    }

    /// Like [`Index::with_repair`], for a writing caller that holds the lock on tables.
    pub(super) fn with_repair_locked<T>(
        &self,
        mut attempt: impl FnMut() -> std::result::Result<T, TableWriteError>,
    ) -> Result<T> {
        let mut mended = 0;
        loop {
            match attempt() {
                Ok(done) => return Ok(done),
                Err(TableWriteError::Table(error @ TableError::Damaged { table, .. }))
                    if mended < REBUILDS_MAX =>
                {
                    self.rebuild_table(table, &error)?;
                    mended += 1;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Rebuilds a table, unless another thread has done so. The caller holds the lock on tables.
    pub(super) fn rebuild_table(&self, id: u64, why: &TableError) -> Result<()> {
        let levels = self.levels();
        let Some(at) = levels.tables.iter().position(|listed| listed.entry.id == id) else { return Ok(()) };
        let kept =
            if self.writable.load(Ordering::Acquire) { TableLocation::File } else { TableLocation::Memory };
        let made = match self.rebuilt_tables(&levels.tables, at, kept) {
            // The disk is full or takes no more writes: keep the table in memory.
            Err(error) if kept == TableLocation::File && error.kind() == ErrorKind::Unavailable => {
                self.rebuilt_tables(&levels.tables, at, TableLocation::Memory)?
            }
            made => made?,
        };
        self.change_levels(|levels| drop(levels.tables.splice(at..=at, made)));
        let offset = if let TableError::Damaged { offset, .. } = why { *offset } else { 0 };
        let file = self.paths.table(id);
        let damage = Damage { file, offset, what: format!("{why}; it was rebuilt from the log") };
        self.note(RebuiltPart { damage, table: Some(id) });
        Ok(())
    }

    /// The entries of the part of the log that table `at` covers, as new tables.
    fn rebuilt_tables(
        &self,
        tables: &[ListedTable],
        at: usize,
        kept: TableLocation,
    ) -> Result<Vec<ListedTable>> {
        let (Some(damaged), before) = (tables.get(at), at.checked_sub(1).and_then(|at| tables.get(at)))
        else {
            return Err(Error::bug("the table to rebuild does not exist"));
        };
        let (from, to) = (before.map(covered_end).transpose()?, covered_end(damaged)?);
        let found = find(&*self.io, &self.paths, false, false, self.limits.read_mode)?;
        let mut made: Vec<ListedTable> = Vec::new();
        let mut memory = Arc::new(Memtable::default());
        let mut entries = Vec::new();
        scan_between(&found, from, to, &mut |batch, segment, next_seqno| {
            for_each_checked_record(batch, segment.salt, |at, seqno, record| {
                let place = RecordPlace { segment: segment.id, offset: at, len: record.bytes };
                keys::derive_entries(&*self.schema, &record, seqno, place, &mut entries)
            })
            .map_err(|e| Error::damaged(&segment.path, batch.offset, e))?;
            memory.insert(entries.drain(..));
            // A table covers the log up to a batch with which no other is joined.
            if memory.bytes() >= self.limits.memory_bytes
                && let Some(offset) = batch.end()
            {
                let covers = TableCoverage { segment: u64::from(segment.id.0), offset, seqno: next_seqno.0 };
                made = self.try_flush_part(
                    covers,
                    &[std::mem::take(&mut memory)],
                    &made,
                    (kept, at > 0),
                    u64::MAX,
                )?;
            }
            Ok(())
        })?;
        Ok(self.try_flush_part(damaged.table.meta().covers, &[memory], &made, (kept, at > 0), u64::MAX)?)
    }

    /// Notes that a part of the index was rebuilt.
    pub fn note_rebuilt(&self, file: PathBuf, offset: u64, what: String) {
        self.note(RebuiltPart { damage: Damage { file, offset, what }, table: None });
    }

    fn note(&self, part: RebuiltPart) {
        let mut notes = lock(&self.rebuilt);
        if notes.len() < NOTES_MAX {
            notes.push(part);
        }
    }

    /// The damaged parts of the index that were rebuilt from the log since the store was opened.
    pub fn rebuilt(&self) -> Vec<Damage> {
        lock(&self.rebuilt).iter().map(|part| part.damage.clone()).collect()
    }

    /// Those of them that are tables of this list and have a damaged block. A reader that does not meet the block uses the
    /// others.
    pub fn damaged_tables(&self, listed: &[TableEntry]) -> Vec<Damage> {
        let parts = lock(&self.rebuilt);
        let of = |entry: &TableEntry| parts.iter().find(|part| part.table == Some(entry.id));
        listed.iter().filter_map(of).map(|part| part.damage.clone()).collect()
    }

    /// Reads every block of every table, and rebuilds the damaged tables.
    ///
    /// # Errors
    /// If the log from which a table must be rebuilt cannot be read.
    pub fn verify_tables(&self) -> Result<()> {
        self.with_repair(|| self.levels().tables().try_for_each(crate::kv::table::Table::verify))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::ids::StoreId;
    use crate::io::sim::SimIo;
    use crate::io::{Io, ReadMode};
    use crate::kv::index::IndexLimits;
    use crate::log::paths::StorePaths;

    fn index() -> Index {
        let io: Arc<dyn Io> = Arc::new(SimIo::new(1));
        let limits = IndexLimits { memory_bytes: 1000, read_mode: ReadMode::Mapped };
        Index::empty(
            &io,
            &StorePaths::new(Path::new("s")),
            StoreId::default(),
            limits,
            &crate::testing::no_schema(),
        )
    }

    /// Names a table that does not exist any more, so that nothing must be rebuilt.
    fn damaged() -> TableError {
        TableError::Damaged { table: 999, offset: 5, what: "it is planted" }
    }

    #[test]
    fn one_call_rebuilds_at_most_64_tables() {
        let index = index();
        for (failing, good) in [(0, true), (1, true), (64, true), (65, false), (1000, false)] {
            let mut tries = 0;
            let done = index.with_repair(|| {
                tries += 1;
                if tries > failing { Ok(()) } else { Err(damaged()) }
            });
            assert_eq!((done.is_ok(), tries), (good, (failing + 1).min(65)));
            let mut tries = 0;
            let done = index.with_repair_locked(|| {
                tries += 1;
                if tries > failing { Ok(()) } else { Err(TableWriteError::Table(damaged())) }
            });
            assert_eq!((done.is_ok(), tries), (good, (failing + 1).min(65)));
        }
        let mut tries = 0;
        let other = index.with_repair(|| {
            tries += 1;
            Err::<(), _>(TableError::WriterFailed)
        });
        assert!(other.is_err() && tries == 1, "only damage is retried");
    }

    #[test]
    fn at_most_1000_rebuild_notes_are_kept() {
        let index = index();
        for number in 0..1003u64 {
            assert_eq!(index.rebuilt().len() as u64, number.min(1000));
            index.note_rebuilt("t".into(), number, String::new());
        }
        assert!(index.rebuilt().iter().map(|note| note.offset).eq(0..1000));
    }
}
