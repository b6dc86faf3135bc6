//! What the index is made of at one moment, and the handle on it.
//!
//! Invariants: a version is in one level only, except for the moment in which a reader still holds levels that have
//! been replaced; newer levels hold newer versions of a key. A reader fetches what is visible *before* it takes
//! the levels: so all up to that is in them. Levels are replaced as a whole, under a short lock; a table or memory
//! that a reader holds stays readable for as long as it does.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::ids::{SegmentId, Seqno, StoreId};
use crate::io::{Io, Open, ReadMode};
use crate::kv::index::flush::Kept;
use crate::kv::index::memtable::Memtable;
use crate::kv::index::upkeep::Upkeep;
use crate::kv::table::{Entry, Table};
use crate::log::layout::LogState;
use crate::log::manifest::{State, TableEntry};
use crate::log::open::Damage;
use crate::log::paths::Paths;
use crate::log::record::HistoryCode;
use crate::log::segments::{lock, read, write};
use crate::schema::RecordSchema;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, OnceLock, RwLock};

/// How much may be in memory, and how the rest is read.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Memory is frozen and written down once it has about this many bytes.
    pub memory_bytes: usize,
    /// How tables are read.
    pub read_mode: ReadMode,
}

/// Memory is written down once this much log came since it last was: it is what a crash leaves to be read again.
pub(super) const LOG_BYTES_MAX: u64 = 64 << 20;

/// A table of the current levels and what the manifest says of it.
#[derive(Debug, Clone)]
pub(super) struct Listed {
    pub(super) table: Arc<Table>,
    pub(super) entry: TableEntry,
    /// Where it stands: one that is in memory only is never listed in the manifest, and merged into the next that is
    /// written.
    pub(super) kept: Kept,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct Levels {
    /// What came last; the writer adds to it.
    pub(super) active: Arc<Memtable>,
    /// What is being written down.
    pub(super) frozen: Option<Arc<Memtable>>,
    /// Oldest first.
    pub(super) tables: Vec<Listed>,
}

impl Levels {
    /// Memory, the newest first.
    pub(super) fn memory(&self) -> impl Iterator<Item = &Arc<Memtable>> {
        std::iter::once(&self.active).chain(&self.frozen)
    }

    /// Tables, the newest first.
    pub(super) fn tables(&self) -> impl Iterator<Item = &Table> {
        self.tables.iter().rev().map(|listed| &*listed.table)
    }

    pub(super) fn entries(&self) -> Vec<TableEntry> {
        self.tables.iter().map(|listed| listed.entry.clone()).collect()
    }
}

/// Up to where the tables hold the index of the log.
#[derive(Debug, Clone)]
pub struct Covered {
    pub at: (SegmentId, u64),
    pub state: LogState,
}

/// The index of a store. See `kv::index`.
#[derive(Debug)]
pub struct Index {
    pub(super) io: Arc<dyn Io>,
    pub(super) paths: Paths,
    pub(super) store: StoreId,
    pub(super) limits: Limits,
    pub(super) schema: Arc<dyn RecordSchema>,
    levels: RwLock<Arc<Levels>>,
    /// Held by whoever makes tables, from looking at the levels until they are changed. A reader takes it only where it
    /// has met a damaged one.
    pub(super) tables: Mutex<()>,
    /// Files may be written: from opening for writing until the upkeep has ended.
    pub(super) writable: AtomicBool,
    /// What was made again from the log.
    pub(super) rebuilt: Mutex<Vec<Damage>>,
    pub(super) next_table: AtomicU64,
    /// So many of the oldest tables are merged with nothing: they are being made again.
    pub(super) pinned: AtomicUsize,
    /// The table that is being made of those; 0: none. Its file is listed nowhere yet.
    pub(super) making: AtomicU64,
    /// Bytes of log that were before what is now in memory and not frozen.
    pub(super) frozen_at: AtomicU64,
    /// Last seqno that readers may see.
    visible: AtomicU64,
    pub(super) upkeep: OnceLock<Upkeep>,
    /// History policies of users' keyspaces, for what a new table may leave out.
    pub policies: RwLock<HashMap<u32, HistoryCode>>,
    /// Seqnos of living views, counted.
    pub views: Mutex<BTreeMap<u64, usize>>,
}

impl Index {
    /// An index that is filled by hand, for reading.
    pub fn empty(
        io: &Arc<dyn Io>,
        paths: &Paths,
        store: StoreId,
        limits: Limits,
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
            pinned: AtomicUsize::new(0),
            making: AtomicU64::new(0),
            frozen_at: AtomicU64::new(0),
            visible: AtomicU64::new(0),
            upkeep: OnceLock::new(),
            policies: RwLock::default(),
            views: Mutex::default(),
        }
    }

    /// An index over these tables; `false` where one of them is missing or not what was written, and the log must
    /// be read from its start.
    pub fn open(
        io: &Arc<dyn Io>,
        paths: &Paths,
        state: &State,
        limits: Limits,
        schema: &Arc<dyn RecordSchema>,
    ) -> (Self, bool) {
        let (tables, damage) = match open_tables(&**io, paths, state, limits.read_mode) {
            Ok(tables) => (tables, None),
            Err(damage) => (Vec::new(), Some(damage)),
        };
        let whole = damage.is_none();
        let mut index = Self::empty(io, paths, state.store, limits, schema);
        index.set_levels(Levels { tables, ..Levels::default() });
        *index.next_table.get_mut() = state.next_table;
        *index.frozen_at.get_mut() = if whole { state.covers_state.totals.bytes() } else { 0 };
        if let Some(Damage { file, offset, what }) = damage {
            index.note_rebuilt(file, offset, format!("{what}; the index was made again from the log"));
        }
        (index, whole)
    }

    /// Takes the tables that the manifest lists now in place of all that is here, where no view may need what they
    /// leave out. For a store open for reading beside a writer. The log is to be read on from their `covers`; nothing
    /// changes where the result is false.
    pub fn reload(&self, state: &State, rest: impl IntoIterator<Item = Entry>, last: Seqno) -> bool {
        let Ok(tables) = open_tables(&*self.io, &self.paths, state, self.limits.read_mode) else {
            return false;
        };
        let levels = Levels { tables, ..Levels::default() };
        levels.active.insert(rest);
        let _tables = lock(&self.tables);
        let views = lock(&self.views);
        if !views.is_empty() {
            return false;
        }
        self.set_levels(levels);
        self.show(last);
        drop(views);
        true
    }

    /// From here on files may be written.
    pub fn begin_writing(&self) {
        self.writable.store(true, Ordering::Release);
    }

    /// Adds entries; they count from the next [`Index::show`] on.
    pub fn insert(&self, entries: impl IntoIterator<Item = Entry>) {
        self.levels().active.insert(entries);
    }

    /// Makes everything up to this seqno visible.
    pub fn show(&self, last: Seqno) {
        self.visible.store(last.0, Ordering::Release);
    }

    pub fn visible(&self) -> Seqno {
        Seqno(self.visible.load(Ordering::Acquire))
    }

    /// What the index is made of now. Who reads as of a seqno has fetched that before.
    pub(super) fn levels(&self) -> Arc<Levels> {
        read(&self.levels).clone()
    }

    /// Only the writer's thread and the upkeep's change levels, each only its own part of them.
    pub(super) fn change_levels(&self, change: impl FnOnce(&mut Levels)) {
        let mut held = write(&self.levels);
        let mut levels = Levels::clone(&held);
        change(&mut levels);
        *held = Arc::new(levels);
    }

    fn set_levels(&self, levels: Levels) {
        *write(&self.levels) = Arc::new(levels);
    }

    /// Bytes counted of what is in memory.
    pub fn memory_bytes(&self) -> usize {
        self.levels().memory().map(|memory| memory.bytes()).sum()
    }
}

/// The tables that the manifest lists, or what is wrong with one of them.
fn open_tables(
    io: &dyn Io,
    paths: &Paths,
    state: &State,
    read_mode: ReadMode,
) -> Result<Vec<Listed>, Damage> {
    state.tables.iter().map(|entry| open_table(io, paths, &state.store, entry, read_mode)).collect()
}

/// One table that the manifest lists, or what is wrong with it.
fn open_table(
    io: &dyn Io,
    paths: &Paths,
    store: &StoreId,
    entry: &TableEntry,
    read_mode: ReadMode,
) -> Result<Listed, Damage> {
    let path = paths.table(entry.id);
    let wrong = |what: String| Damage { file: path.clone(), offset: 0, what };
    let file = io.open(&path, Open::Read).map_err(|e| wrong(e.to_string()))?;
    let len = file.len().map_err(|e| wrong(e.to_string()))?;
    if len != entry.bytes {
        return Err(wrong(format!("it has {len} bytes, the manifest says {}", entry.bytes)));
    }
    let bytes = read_mode.whole(&*file).map_err(|e| wrong(e.to_string()))?;
    let table = Table::open(bytes).map_err(|e| wrong(e.to_string()))?;
    if table.meta().store != store.0 || table.meta().id != entry.id {
        return Err(wrong("it is another table than the manifest lists".to_owned()));
    }
    Ok(Listed { table: Arc::new(table), entry: entry.clone(), kept: Kept::File })
}
