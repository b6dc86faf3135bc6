//! The parts of the index at one moment, and the handle on it.
//!
//! Invariants: a version is in one level only, except while a reader still holds levels that were replaced.
//! Newer levels hold newer versions of a key. A reader fetches the visible seqno *before* it takes the
//! levels, so that everything up to that seqno is in them. Levels are replaced as a whole, under a short
//! lock. A table or memory stays readable while a reader holds it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::ids::{SegmentId, Seqno, StoreId};
use crate::io::{Io, OpenMode, ReadMode};
use crate::kv::index::flush::TableLocation;
use crate::kv::index::memtable::Memtable;
use crate::kv::index::repair::RebuiltPart;
use crate::kv::index::upkeep::Upkeep;
use crate::kv::table::{IndexEntry, Table, is_earlier_version};
use crate::log::layout::LogState;
use crate::log::manifest::{ManifestState, TableEntry};
use crate::log::open::Damage;
use crate::log::paths::StorePaths;
use crate::log::record::HistoryCode;
use crate::log::segments::{lock, read_lock, write_lock};
use crate::schema::RecordSchema;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, OnceLock, RwLock, rank};

/// How much may be in memory, and how tables are read.
#[derive(Debug, Clone, Copy)]
pub struct IndexLimits {
    /// Memory is frozen and flushed once it has about this many bytes.
    pub memory_bytes: usize,
    /// How tables are read.
    pub read_mode: ReadMode,
}

/// Memory is flushed once this many bytes of log were written since the last flush. After a crash, they are
/// read again.
pub(super) const LOG_BYTES_MAX: u64 = 64 << 20;

/// A table of the current levels, with its manifest entry.
#[derive(Debug, Clone)]
pub(super) struct ListedTable {
    pub(super) table: Arc<Table>,
    pub(super) entry: TableEntry,
    /// Where the table is stored. A table that is only in memory is never listed in the manifest. The next
    /// flush merges it.
    pub(super) location: TableLocation,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct IndexLevels {
    /// The newest entries; the writer adds to it.
    pub(super) active: Arc<Memtable>,
    /// Memory that is being flushed.
    pub(super) frozen: Option<Arc<Memtable>>,
    /// Oldest first.
    pub(super) tables: Vec<ListedTable>,
}

impl IndexLevels {
    /// Memory, newest first.
    pub(super) fn memory(&self) -> impl Iterator<Item = &Arc<Memtable>> {
        std::iter::once(&self.active).chain(&self.frozen)
    }

    /// Tables, newest first.
    pub(super) fn tables(&self) -> impl Iterator<Item = &Table> {
        self.tables.iter().rev().map(|listed| &*listed.table)
    }

    pub(super) fn table_entries(&self) -> Vec<TableEntry> {
        self.tables.iter().map(|listed| listed.entry.clone()).collect()
    }
}

/// How much of the log the tables cover.
#[derive(Debug, Clone)]
pub struct IndexCoverage {
    pub at: (SegmentId, u64),
    pub state: LogState,
}

/// The index of a store. See `kv::index`.
#[derive(Debug)]
pub struct Index {
    pub(super) io: Arc<dyn Io>,
    pub(super) paths: StorePaths,
    pub(super) store: StoreId,
    pub(super) limits: IndexLimits,
    pub(super) schema: Arc<dyn RecordSchema>,
    levels: RwLock<Arc<IndexLevels>, { rank::INDEX_LEVELS }>,
    /// Held while tables are made, from reading the levels until they are changed. A reader takes it only
    /// after it has met a damaged table.
    pub(super) tables: Mutex<(), { rank::INDEX_TABLES }>,
    /// Files may be written: from opening for writing until the upkeep has ended. False otherwise.
    pub(super) writable: AtomicBool,
    /// What was rebuilt from the log.
    pub(super) rebuilt: Mutex<Vec<RebuiltPart>, { rank::REBUILT_TABLES }>,
    pub(super) next_table: AtomicU64,
    /// Number of the oldest tables that no flush may merge, because a compaction replaces them.
    pub(super) pinned_tables: AtomicUsize,
    /// Numbers of tables whose files are written while others change tables. Nothing lists them yet.
    pub(super) unlisted: Mutex<BTreeSet<u64>, { rank::UNLISTED_TABLES }>,
    /// Bytes of log that were written before the memory that is now active.
    pub(super) frozen_at: AtomicU64,
    /// The last seqno that readers may see.
    visible: AtomicU64,
    pub(super) upkeep: OnceLock<Upkeep>,
    /// History policies of users' keyspaces: they decide what a new table may leave out.
    pub policies: RwLock<HashMap<u32, HistoryCode>, { rank::HISTORY_POLICIES }>,
    /// Number of living views by seqno.
    pub views: Mutex<BTreeMap<u64, usize>, { rank::VIEWS }>,
}

impl Index {
    /// An empty index for reading, which the caller fills.
    pub fn empty(
        io: &Arc<dyn Io>,
        paths: &StorePaths,
        store: StoreId,
        limits: IndexLimits,
        schema: &Arc<dyn RecordSchema>,
    ) -> Self {
        Self {
            io: io.clone(),
            paths: paths.clone(),
            store,
            limits,
            schema: schema.clone(),
            levels: RwLock::default(),
            tables: Mutex::new(()),
            writable: AtomicBool::new(false),
            rebuilt: Mutex::default(),
            next_table: AtomicU64::new(1),
            pinned_tables: AtomicUsize::new(0),
            unlisted: Mutex::default(),
            frozen_at: AtomicU64::new(0),
            visible: AtomicU64::new(0),
            upkeep: OnceLock::new(),
            policies: RwLock::default(),
            views: Mutex::default(),
        }
    }

    /// Opens an index over the listed tables. The flag is false if a table is missing, damaged or of an earlier
    /// version of annals. Then the log must be read from its start.
    pub fn open(
        io: &Arc<dyn Io>,
        paths: &StorePaths,
        state: &ManifestState,
        limits: IndexLimits,
        schema: &Arc<dyn RecordSchema>,
    ) -> (Self, bool) {
        let (tables, damage) = match open_tables(&**io, paths, state, limits.read_mode) {
            Ok(tables) => (Some(tables), None),
            Err(TableRefusal::EarlierVersion) => (None, None),
            Err(TableRefusal::Damaged(damage)) => (None, Some(damage)),
        };
        let whole = tables.is_some();
        let tables = tables.unwrap_or_default();
        let mut index = Self::empty(io, paths, state.store, limits, schema);
        index.set_levels(IndexLevels { tables, ..IndexLevels::default() });
        *index.next_table.get_mut() = state.next_table;
        *index.frozen_at.get_mut() = if whole { state.covers_state.totals.bytes() } else { 0 };
        if let Some(Damage { file, offset, what }) = damage {
            index.note_rebuilt(file, offset, format!("{what}; the index was rebuilt from the log"));
        }
        (index, whole)
    }

    /// Replaces everything in the index by the tables that the manifest lists now. `rest` are the entries of
    /// the log from their `covers` on. For a store open for reading beside a writer.
    ///
    /// Returns false, and changes nothing, if a table cannot be opened or a living view may need what the
    /// tables leave out.
    pub fn reload(
        &self,
        state: &ManifestState,
        rest: impl IntoIterator<Item = IndexEntry>,
        last: Seqno,
    ) -> bool {
        let Ok(tables) = open_tables(&*self.io, &self.paths, state, self.limits.read_mode) else {
            return false;
        };
        let levels = IndexLevels { tables, ..IndexLevels::default() };
        levels.active.insert(rest);
        let _tables = lock(&self.tables);
        let views = lock(&self.views);
        if !views.is_empty() {
            return false;
        }
        self.set_levels(levels);
        self.set_visible(last);
        drop(views);
        true
    }

    /// Allows writing files from now on.
    pub fn allow_writes(&self) {
        self.writable.store(true, Ordering::Release);
    }

    /// Adds entries; they count from the next [`Index::set_visible`] on.
    pub fn insert(&self, entries: impl IntoIterator<Item = IndexEntry>) {
        self.levels().active.insert(entries);
    }

    /// Makes everything up to this seqno visible.
    pub fn set_visible(&self, last: Seqno) {
        self.visible.store(last.0, Ordering::Release);
    }

    pub fn visible(&self) -> Seqno {
        Seqno(self.visible.load(Ordering::Acquire))
    }

    /// The current levels. A caller that reads as of a seqno must have fetched the seqno before.
    pub(super) fn levels(&self) -> Arc<IndexLevels> {
        read_lock(&self.levels).clone()
    }

    /// Changes the levels. The writer changes memory. A thread that holds the lock on tables changes tables.
    pub(super) fn change_levels(&self, change: impl FnOnce(&mut IndexLevels)) {
        let mut held = write_lock(&self.levels);
        let mut levels = IndexLevels::clone(&held);
        change(&mut levels);
        *held = Arc::new(levels);
    }

    fn set_levels(&self, levels: IndexLevels) {
        *write_lock(&self.levels) = Arc::new(levels);
    }

    /// Counted bytes in memory.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub fn memory_bytes(&self) -> usize {
        self.levels().memory().map(|memory| memory.bytes()).sum()
    }
}

/// Why a listed table cannot be used.
enum TableRefusal {
    /// An earlier version of annals wrote it. Nothing is wrong with it.
    EarlierVersion,
    Damaged(Damage),
}

/// Opens the tables that the manifest lists. The error says what is wrong with one of them.
fn open_tables(
    io: &dyn Io,
    paths: &StorePaths,
    state: &ManifestState,
    read_mode: ReadMode,
) -> Result<Vec<ListedTable>, TableRefusal> {
    state.tables.iter().map(|entry| open_table(io, paths, &state.store, entry, read_mode)).collect()
}

/// Opens one table that the manifest lists. The error says what is wrong with it.
fn open_table(
    io: &dyn Io,
    paths: &StorePaths,
    store: &StoreId,
    entry: &TableEntry,
    read_mode: ReadMode,
) -> Result<ListedTable, TableRefusal> {
    let path = paths.table(entry.id);
    let wrong = |what: String| TableRefusal::Damaged(Damage { file: path.clone(), offset: 0, what });
    let file = io.open(&path, OpenMode::Read).map_err(|e| wrong(e.to_string()))?;
    let len = file.len().map_err(|e| wrong(e.to_string()))?;
    if len != entry.bytes {
        return Err(wrong(format!("it has {len} bytes, the manifest says {}", entry.bytes)));
    }
    let bytes = read_mode.read_whole(&*file).map_err(|e| wrong(e.to_string()))?;
    if is_earlier_version(&bytes) {
        return Err(TableRefusal::EarlierVersion);
    }
    let table = Table::open(bytes).map_err(|e| wrong(e.to_string()))?;
    if table.meta().store != store.0 || table.meta().id != entry.id {
        return Err(wrong("it is another table than the manifest lists".to_owned()));
    }
    Ok(ListedTable { table: Arc::new(table), entry: entry.clone(), location: TableLocation::File })
}
