//! Rebuilds the tables after a compaction: the records that they lead to have moved or are gone.
//!
//! The *base* is the tables that existed when the compaction looked at the log. They are read as often as it
//! needs, and nobody merges them meanwhile. Newer tables are written and merged as usual. In the end one
//! table takes the base's place. One manifest edit lists it together with the log's new segments, and readers
//! see it from then on.
//!
//! Invariant: a reader that sees the new table finds the segments that it leads to.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{RecordPlace, SegmentId, Seqno};
use crate::kv::index::flush::TableLocation;
use crate::kv::index::levels::{Index, ListedTable};
use crate::kv::index::memtable::{Memtable, MemtableSource};
use crate::kv::index::merges::UnlistedTable;
use crate::kv::index::reads::table_error;
use crate::kv::keys;
use crate::kv::table::{
    IndexValue, MergeSource, TableCoverage, TableError, TableMeta, TableSource, TableWriter, merge,
};
use crate::log::manifest::TableEntry;
use crate::log::segments::lock;
use crate::schema::PASSING_SPACE;
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;

/// Approximate size of an entry in a table, in bytes.
const TABLE_ENTRY_BYTES: u64 = 40;

/// See the module. After it is dropped, its tables may be merged again.
#[derive(Debug)]
pub struct CompactionBase {
    index: Arc<Index>,
    /// How many tables are older than the base.
    older: usize,
    tables: Vec<ListedTable>,
    /// Memory over the tables, newest first. Only for a base that is read and never replaced.
    memory: Vec<Arc<Memtable>>,
    /// The segments of the log that the tables were made of.
    segments: Vec<SegmentId>,
    covers: TableCoverage,
    /// A view is open that may need any version of a key.
    pub keep_all: bool,
}

impl Drop for CompactionBase {
    fn drop(&mut self) {
        self.index.pinned_tables.store(0, Ordering::Relaxed);
    }
}

/// Keeps other threads from changing tables while it lives.
pub(crate) type TablesGuard<'a> = MutexGuard<'a, ()>;

impl CompactionBase {
    /// The position up to which these tables cover the log.
    pub fn covers(&self) -> (SegmentId, u64) {
        (SegmentId(u32::try_from(self.covers.segment).unwrap_or(u32::MAX)), self.covers.offset)
    }

    /// The segments of the log at that time, in the log's order.
    pub fn segments(&self) -> &[SegmentId] {
        &self.segments
    }

    /// Bytes of its tables, and an estimate for the entries in memory.
    pub fn bytes(&self) -> u64 {
        let entries: usize = self.memory.iter().map(|memory| memory.len()).sum();
        let tables: u64 = self.tables.iter().map(|listed| listed.table.file_len()).sum();
        tables + entries as u64 * TABLE_ENTRY_BYTES
    }

    /// Calls `each` with all entries in order: key ascending, and of each key the newest version first.
    ///
    /// # Errors
    /// The error of `each`; `Damaged` if a table is.
    pub fn for_each(&self, mut each: impl FnMut(&[u8], Seqno, IndexValue) -> Result<()>) -> Result<()> {
        let mut failed = None;
        let done = merge(self.sources(), |key, seqno, value| {
            each(key, Seqno(seqno), value).map_err(|error| {
                failed = Some(error);
                TableError::WriterFailed
            })
        });
        match (done, failed) {
            (_, Some(error)) => Err(error),
            (done, None) => done.map_err(table_error),
        }
    }

    fn sources(&self) -> Vec<Box<dyn MergeSource>> {
        let memory = self
            .memory
            .iter()
            .map(|memory| Box::new(MemtableSource::new(memory.clone())) as Box<dyn MergeSource>);
        let tables = self.tables.iter().rev();
        let tables =
            tables.map(|listed| Box::new(TableSource::new(listed.table.clone())) as Box<dyn MergeSource>);
        memory.chain(tables).collect()
    }
}

impl Index {
    /// Takes the current tables as a base, without those that hold only records before `from`. The caller has flushed
    /// memory to files before.
    ///
    /// # Errors
    /// `Damaged` if a table is and cannot be rebuilt; `Unavailable` if one could not be written.
    pub fn take_base(self: &Arc<Self>, from: Seqno) -> Result<CompactionBase> {
        self.verify_tables()?;
        let upkeep =
            self.upkeep.get().ok_or_else(|| Error::bug("an index without an upkeep thread has no base"))?;
        let _tables = lock(&self.tables);
        let mut tables = self.levels().tables.clone();
        let state = upkeep.manifest.state();
        if tables.iter().any(|listed| listed.location != TableLocation::File) {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "a table of the index could not be written to the disk: make room",
            ));
        }
        self.pinned_tables.store(tables.len(), Ordering::Relaxed);
        // A table covers the log up to its seqno, exclusive.
        let older = tables.partition_point(|listed| listed.table.meta().covers.seqno <= from.0);
        tables.drain(..older);
        // A view that is opened from now on sees the newest of what these tables hold.
        let keep_all = !lock(&self.views).is_empty();
        let covers = TableCoverage {
            segment: u64::from(state.covers.0.0),
            offset: state.covers.1,
            seqno: state.covers_state.next_seqno.0,
        };
        let segments = state.segments.iter().map(|entry| entry.id).collect();
        Ok(CompactionBase {
            index: self.clone(),
            older,
            tables,
            memory: Vec::new(),
            segments,
            covers,
            keep_all,
        })
    }

    /// A base of everything, memory included, that is only read. `end` is the position up to which `segments`
    /// were read. The caller keeps others from adding to this index meanwhile.
    ///
    /// # Errors
    /// `Damaged` if a table is and cannot be rebuilt.
    pub fn base_with_memory(
        self: &Arc<Self>,
        end: (SegmentId, u64),
        segments: Vec<SegmentId>,
        keep_all: bool,
    ) -> Result<CompactionBase> {
        self.verify_tables()?;
        let levels = self.levels();
        let (tables, memory) = (levels.tables.clone(), levels.memory().cloned().collect());
        let covers = TableCoverage { segment: u64::from(end.0.0), offset: end.1, seqno: self.visible().0 };
        Ok(CompactionBase { index: self.clone(), older: 0, tables, memory, segments, covers, keep_all })
    }

    /// Writes and syncs one table of the base's entries that `map` keeps. Nothing lists it yet.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`, or the error of `map`.
    pub fn write_rebuilt_table(
        &self,
        base: &CompactionBase,
        mut map: impl FnMut(&[u8], IndexValue) -> Result<Option<IndexValue>>,
    ) -> Result<RebuiltTable> {
        if base.tables.is_empty() {
            return Ok(RebuiltTable(None));
        }
        let unlisted = UnlistedTable::new(&base.index);
        let id = unlisted.id();
        let meta = TableMeta { store: self.store.0, id, covers: base.covers };
        let mut failed = None;
        let made = self.write_file_with(meta, |sink| {
            let mut writer = TableWriter::new(sink, meta)?;
            merge(base.sources(), |key, seqno, value| match map(key, value) {
                // Without older tables, no version that this one ends is left.
                Ok(Some(value))
                    if base.older == 0 && keys::space_of(key) == PASSING_SPACE && !keys::is_living(value) =>
                {
                    Ok(())
                }
                Ok(Some(value)) => writer.push(key, seqno, value),
                Ok(None) => Ok(()),
                Err(error) => {
                    failed = Some(error);
                    Err(TableError::WriterFailed)
                }
            })?;
            writer.finish()
        });
        let table = made.map_err(|error| failed.unwrap_or_else(|| error.into()))?;
        self.io.sync_dir(&self.paths.tables())?;
        let entry = TableEntry { id, bytes: table.file_len() };
        let listed = ListedTable { table: Arc::new(table), entry, location: TableLocation::File };
        Ok(RebuiltTable(Some((listed, unlisted))))
    }

    /// Keeps other threads from changing tables.
    ///
    /// # Errors
    /// `Unavailable` if the store is closed; `Conflict` if a table of the base was damaged and rebuilt
    /// meanwhile.
    pub fn lock_tables(&self, base: &CompactionBase) -> Result<TablesGuard<'_>> {
        let guard = lock(&self.tables);
        if !self.writable.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Unavailable, "the store is closed: open it again"));
        }
        let levels = self.levels();
        let now = levels.tables.get(base.older..).unwrap_or_default();
        let is_there = base.tables.len() <= now.len()
            && base.tables.iter().zip(now).all(|(one, other)| one.entry.id == other.entry.id);
        if !is_there {
            let what = "a damaged table of the index was rebuilt meanwhile: try again";
            return Err(Error::conflict(what));
        }
        Ok(guard)
    }

    /// What the manifest must list once `made` has the base's place: the tables, and the number of the next
    /// one.
    pub fn listing_with(&self, base: &CompactionBase, made: &RebuiltTable) -> (Vec<TableEntry>, u64) {
        let levels = self.levels();
        let made = made.0.iter().map(|(listed, _)| listed);
        let (older, newer) = (levels.tables.iter().take(base.older), base.older + base.tables.len());
        let tables = older.chain(made).chain(levels.tables.iter().skip(newer));
        (tables.map(|listed| listed.entry.clone()).collect(), self.next_table.load(Ordering::Relaxed))
    }

    /// Makes readers see `made` in the base's place. The segments that it leads to must be there. The caller
    /// holds the lock on tables, and the manifest lists them.
    pub fn install(&self, base: &CompactionBase, made: RebuiltTable) {
        let RebuiltTable(made) = made;
        let listed = made.iter().map(|(listed, _)| listed.clone());
        let place = base.older..base.older + base.tables.len();
        self.change_levels(|levels| drop(levels.tables.splice(place, listed)));
    }

    /// Removes the files of unlisted tables. A later call removes those that cannot be removed now.
    pub fn remove_unlisted_tables(&self) {
        let _tables = lock(&self.tables);
        if self.writable.load(Ordering::Acquire) {
            self.remove_tables_not_in(&self.levels());
        }
    }
}

/// A table that takes a base's place; `None` if the base had no tables.
#[derive(Debug)]
pub struct RebuiltTable(Option<(ListedTable, UnlistedTable)>);

/// Maps the places of records before a compaction to those after it.
#[derive(Debug, Default)]
pub struct PlaceMap {
    /// For each removed segment: old offsets and new places, ascending by offset after
    /// [`PlaceMap::sort_moves`].
    segments: HashMap<SegmentId, Vec<(u32, RecordPlace)>>,
}

impl PlaceMap {
    /// Notes a segment that is removed from the log.
    pub fn retire(&mut self, segment: SegmentId) {
        self.segments.entry(segment).or_default();
    }

    /// Notes that the record at `from` is now at `to`.
    pub fn add_move(&mut self, from: RecordPlace, to: RecordPlace) {
        self.segments.entry(from.segment).or_default().push((from.offset, to));
    }

    /// Prepares for lookups, after all moves were added.
    pub fn sort_moves(&mut self) {
        self.segments.values_mut().for_each(|moved| moved.sort_unstable_by_key(|(from, _)| *from));
    }

    /// Where a record is now: its old place if its segment stays; `None` if the record is gone.
    pub fn new_place(&self, place: RecordPlace) -> Option<RecordPlace> {
        let Some(moved) = self.segments.get(&place.segment) else { return Some(place) };
        let at = moved.binary_search_by_key(&place.offset, |(from, _)| *from).ok()?;
        moved.get(at).map(|(_, to)| *to)
    }
}
