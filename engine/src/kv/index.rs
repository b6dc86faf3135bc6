//! The index: from a key to the places of its versions. A memory map holds what came since the newest table.
//!
//! It is a cache of the log. Tables are written at a clean close and when a segment is sealed; without them the
//! log is read again.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::io::IoSlice;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{SegmentId, Seqno, StoreId};
use crate::io::{File, Io, Open};
use crate::kv::keys;
use crate::kv::table::{Covers, Entry, Table, TableError, TableMeta, TableWriter, Value, merge};
use crate::log::batch::BatchBuf;
use crate::log::manifest::TableEntry;
use crate::log::paths::{Paths, parse_table};
use crate::log::queue::Queued;
use crate::log::record::HistoryCode;
use crate::log::segments::{lock, read, write};
use crate::log::writer::{Persisted, Sink};

/// A table is merged into the one before it unless that one is at least this many times larger.
const TABLE_RATIO: u64 = 4;

/// Versions of each key, the newest last.
type Versions = Vec<(u64, Value)>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Index {
    io: Arc<dyn Io>,
    paths: Paths,
    store: StoreId,
    memory: RwLock<BTreeMap<Vec<u8>, Versions>>,
    /// Oldest first.
    tables: RwLock<Vec<Arc<Table>>>,
    listed: Mutex<Vec<TableEntry>>,
    next_table: AtomicU64,
    /// Last seqno that readers may see.
    visible: AtomicU64,
    /// History policies of users' keyspaces, for what a new table may leave out.
    pub(crate) policies: RwLock<HashMap<u32, HistoryCode>>,
    /// Seqnos of living views, counted.
    pub(crate) views: Mutex<BTreeMap<u64, usize>>,
}

/// One key of a scan.
#[derive(Debug, Clone)]
pub(crate) struct Hit {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Value,
}

fn table_error(error: TableError) -> Error {
    let (kind, message) = match &error {
        TableError::Sink { source } => (
            ErrorKind::Unavailable,
            format!("an index table cannot be written: {source}; make room and reopen"),
        ),
        _ => (
            ErrorKind::Damaged,
            format!("{error}; delete the store's tables folder: the index is made again from the log"),
        ),
    };
    Error::with_source(kind, message, error)
}

impl Index {
    /// An index over these tables; `false` where one of them is missing or not what was written, and the log must
    /// be read from its start.
    pub(crate) fn open(
        io: &Arc<dyn Io>,
        paths: &Paths,
        store: StoreId,
        listed: &[TableEntry],
        next_table: u64,
    ) -> (Self, bool) {
        let tables: Option<Vec<Arc<Table>>> =
            listed.iter().map(|entry| open_table(&**io, paths, store, entry).map(Arc::new)).collect();
        let whole = tables.is_some();
        let index = Self {
            io: io.clone(),
            paths: paths.clone(),
            store,
            memory: RwLock::default(),
            tables: RwLock::new(tables.unwrap_or_default()),
            listed: Mutex::new(if whole { listed.to_vec() } else { Vec::new() }),
            next_table: AtomicU64::new(next_table),
            visible: AtomicU64::new(0),
            policies: RwLock::default(),
            views: Mutex::default(),
        };
        (index, whole)
    }

    /// Adds entries; they count from the next [`Index::show`] on.
    pub(crate) fn insert(&self, entries: impl IntoIterator<Item = Entry>) {
        let mut memory = write(&self.memory);
        for entry in entries {
            let newest_only = keys::newest_only(keys::space_of(&entry.key));
            let versions = memory.entry(entry.key).or_default();
            if newest_only {
                versions.clear();
            }
            versions.push((entry.seqno, entry.value));
        }
    }

    /// Makes everything up to this seqno visible.
    pub(crate) fn show(&self, last: Seqno) {
        self.visible.store(last.0, Ordering::Release);
    }

    pub(crate) fn visible(&self) -> Seqno {
        Seqno(self.visible.load(Ordering::Acquire))
    }

    /// The newest version of a key at `at`.
    pub(crate) fn get(&self, key: &[u8], at: Seqno) -> Result<Option<(Seqno, Value)>> {
        if let Some(versions) = read(&self.memory).get(key)
            && let Some((seqno, value)) = versions.iter().rev().find(|(seqno, _)| *seqno <= at.0)
        {
            return Ok(Some((Seqno(*seqno), *value)));
        }
        if !keys::kept_in_tables(key) {
            return Ok(None);
        }
        for table in read(&self.tables).iter().rev() {
            if let Some((seqno, value)) = table.get(key, at.0).map_err(table_error)? {
                return Ok(Some((Seqno(seqno), value)));
            }
        }
        Ok(None)
    }

    /// The newest version of a key of the engine's own keyspaces.
    pub(crate) fn newest(&self, key: &[u8]) -> Result<Option<Value>> {
        Ok(self.get(key, Seqno(u64::MAX))?.map(|(_, value)| value).filter(|value| value.kind != keys::ENDED))
    }

    /// All versions of a key up to `at`, the newest first.
    pub(crate) fn versions(&self, key: &[u8], at: Seqno) -> Result<Vec<(Seqno, Value)>> {
        let mut found: Vec<(Seqno, Value)> = Vec::new();
        if let Some(versions) = read(&self.memory).get(key) {
            found.extend(versions.iter().rev().map(|(seqno, value)| (Seqno(*seqno), *value)));
        }
        for table in read(&self.tables).iter().rev() {
            let versions = table.versions(key).map_err(table_error)?;
            found.extend(versions.into_iter().map(|(seqno, value)| (Seqno(seqno), value)));
        }
        found.retain(|(seqno, _)| *seqno <= at);
        // A table may have been made of what was just read from memory.
        found.sort_unstable_by_key(|(seqno, _)| std::cmp::Reverse(*seqno));
        found.dedup_by_key(|(seqno, _)| *seqno);
        Ok(found)
    }

    /// Up to about `limit` living keys between two bounds as of `at`, in the order asked for; and where to go on,
    /// if there may be more.
    pub(crate) fn page(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        at: Seqno,
        reverse: bool,
        limit: usize,
    ) -> Result<(Vec<Hit>, Option<Vec<u8>>)> {
        if is_empty_range(from, to) {
            return Ok((Vec::new(), None));
        }
        // Each source gives a prefix of its part; beyond the shortest prefix that was cut, nothing is known yet.
        let mut newest: BTreeMap<Vec<u8>, (u64, Value)> = BTreeMap::new();
        let mut frontier: Option<Vec<u8>> = None;
        let mut note = |key: &[u8], seqno: u64, value: Value| {
            if seqno > at.0 {
                return;
            }
            match newest.get_mut(key) {
                Some(kept) if kept.0 >= seqno => {}
                Some(kept) => *kept = (seqno, value),
                None => {
                    newest.insert(key.to_vec(), (seqno, value));
                }
            }
        };
        let mut cut = |key: &[u8]| {
            let nearer =
                frontier.as_deref().is_none_or(|known| if reverse { key > known } else { key < known });
            if nearer {
                frontier = Some(key.to_vec());
            }
        };
        {
            let memory = read(&self.memory);
            let range = memory.range::<[u8], _>((from, to));
            let mut each = |(key, versions): (&Vec<u8>, &Versions), seen: usize| {
                for (seqno, value) in versions {
                    note(key, *seqno, *value);
                }
                if seen == limit {
                    cut(key);
                }
            };
            if reverse {
                range.rev().take(limit).enumerate().for_each(|(i, pair)| each(pair, i + 1));
            } else {
                range.take(limit).enumerate().for_each(|(i, pair)| each(pair, i + 1));
            }
        }
        for table in read(&self.tables).iter() {
            let mut seen = 0;
            let mut last: Option<Vec<u8>> = None;
            let mut each = |entry: Entry| {
                if last.as_ref() != Some(&entry.key) {
                    if seen == limit {
                        if let Some(last) = &last {
                            cut(last);
                        }
                        return false;
                    }
                    seen += 1;
                    last = Some(entry.key.clone());
                }
                note(&entry.key, entry.seqno, entry.value);
                true
            };
            if reverse {
                for entry in table.scan_back(from, to) {
                    if !each(entry.map_err(table_error)?) {
                        break;
                    }
                }
            } else {
                for entry in table.scan(from, to) {
                    if !each(entry.map_err(table_error)?) {
                        break;
                    }
                }
            }
        }
        let within = |key: &Vec<u8>| {
            frontier.as_ref().is_none_or(|frontier| if reverse { key >= frontier } else { key <= frontier })
        };
        let mut hits: Vec<Hit> = newest
            .into_iter()
            .filter(|(key, (_, value))| value.kind != keys::ENDED && within(key))
            .map(|(key, (_, value))| Hit { key, value })
            .collect();
        if reverse {
            hits.reverse();
        }
        Ok((hits, frontier))
    }

    /// All living keys with a prefix, in order.
    pub(crate) fn prefix(&self, prefix: &[u8], at: Seqno) -> Result<Vec<Hit>> {
        let mut all = Vec::new();
        let end = prefix_end(prefix);
        let mut from = Bound::Included(prefix.to_vec());
        loop {
            let to = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let (hits, more) = self.page(as_slice(&from), to, at, false, 4096)?;
            all.extend(hits);
            match more {
                Some(last) => from = Bound::Excluded(last),
                None => return Ok(all),
            }
        }
    }

    /// The last living key with a prefix and at most `to`.
    pub(crate) fn last(&self, prefix: &[u8], to: &[u8]) -> Result<Option<Hit>> {
        let mut upper = Bound::Included(to.to_vec());
        loop {
            let (hits, more) =
                self.page(Bound::Included(prefix), as_slice(&upper), Seqno(u64::MAX), true, 16)?;
            if let Some(hit) = hits.into_iter().next() {
                return Ok(Some(hit));
            }
            match more {
                Some(last) => upper = Bound::Excluded(last),
                None => return Ok(None),
            }
        }
    }

    /// Bytes of all tables.
    pub(crate) fn table_bytes(&self) -> u64 {
        read(&self.tables).iter().map(|table| table.file_len()).sum()
    }

    /// Checks every block of every table.
    pub(crate) fn verify_tables(&self) -> Vec<String> {
        read(&self.tables).iter().filter_map(|table| table.verify().err().map(|e| e.to_string())).collect()
    }

    /// Whether a version may be left out of a table: it is past what its keyspace's policy keeps.
    fn is_superseded(&self, space: u32, newer: usize) -> bool {
        if keys::newest_only(space) {
            return newer >= 1;
        }
        match read(&self.policies).get(&space) {
            Some(HistoryCode::Latest) => newer >= 1,
            Some(HistoryCode::Newest(count)) => newer >= (*count).max(1) as usize,
            _ => false,
        }
    }

    fn write_table(
        &self,
        covers: Covers,
        sources: Vec<Vec<Entry>>,
        tables: &[Arc<Table>],
    ) -> Result<(Table, TableEntry)> {
        let id = self.next_table.fetch_add(1, Ordering::Relaxed);
        let path = self.paths.table(id);
        if self.io.stat(&path)?.is_some() {
            self.io.remove(&path)?;
        }
        let file = self.io.open(&path, Open::CreateNew)?;
        let sink = FileSink { file: file.clone(), at: 0, pending: Vec::new(), failed: None };
        let meta = TableMeta { store: self.store.0, id, covers };
        let mut writer = TableWriter::new(sink, meta).map_err(table_error)?;
        let keep_all = !lock(&self.views).is_empty();
        let memory = sources.into_iter().map(|entries| {
            Box::new(entries.into_iter().map(Ok))
                as Box<dyn Iterator<Item = std::result::Result<Entry, TableError>>>
        });
        let old = tables.iter().map(|table| {
            Box::new(table.scan(Bound::Unbounded, Bound::Unbounded))
                as Box<dyn Iterator<Item = std::result::Result<Entry, TableError>>>
        });
        let mut last: Option<(Vec<u8>, usize)> = None;
        for entry in merge(memory.chain(old).collect()) {
            let entry: Entry = entry.map_err(table_error)?;
            let newer = match &mut last {
                Some((key, newer)) if *key == entry.key => {
                    *newer += 1;
                    *newer
                }
                _ => {
                    last = Some((entry.key.clone(), 0));
                    0
                }
            };
            let space = keys::space_of(&entry.key);
            if !keys::kept_in_tables(&entry.key) {
                continue;
            }
            if self.is_superseded(space, newer) && (keys::newest_only(space) || !keep_all) {
                continue;
            }
            writer.add(&entry).map_err(table_error)?;
        }
        let sink = writer.finish().map_err(table_error)?;
        let bytes = sink.finish()?;
        file.sync()?;
        let table = Table::open(file.map()?).map_err(table_error)?;
        Ok((table, TableEntry { id, bytes }))
    }
}

impl Sink for Index {
    fn publish(&self, batches: &[Queued]) -> Result<()> {
        let mut entries = Vec::new();
        let mut last = self.visible();
        for queued in batches {
            let first = queued.first_seqno.0;
            entries.extend(queued.batch.postings().map(|posting| Entry {
                key: posting.key.to_vec(),
                seqno: first + posting.record as u64,
                value: keys::at(
                    posting.kind,
                    queued.batch.place(posting.record, queued.segment, queued.offset),
                ),
            }));
            let BatchBuf { anchors, namespace, starts, .. } = &queued.batch;
            entries.extend(
                anchors.iter().map(|anchor| keys::anchor_entry(*namespace, anchor, queued.first_seqno)),
            );
            last = Seqno(first + starts.len() as u64 - 1);
        }
        self.insert(entries);
        self.show(last);
        Ok(())
    }

    fn persist(&self, covers: (SegmentId, u64), next_seqno: Seqno) -> Result<Persisted> {
        let covers = Covers { segment: u64::from(covers.0.0), offset: covers.1, seqno: next_seqno.0 };
        let entries: Vec<Entry> = read(&self.memory)
            .iter()
            .flat_map(|(key, versions)| {
                versions.iter().rev().map(|(seqno, value)| Entry {
                    key: key.clone(),
                    seqno: *seqno,
                    value: *value,
                })
            })
            .collect();
        let mut tables = read(&self.tables).clone();
        let mut listed = lock(&self.listed).clone();
        if !entries.is_empty() {
            // Merge with as many of the newest tables as keeps each table a good deal larger than the next.
            let mut size = entries.len() as u64;
            let mut keep = tables.len();
            while keep > 0 && tables[keep - 1].entry_count() < size * TABLE_RATIO {
                keep -= 1;
                size += tables[keep].entry_count();
            }
            let (table, entry) = self.write_table(covers, vec![entries], &tables[keep..])?;
            tables.truncate(keep);
            listed.truncate(keep);
            tables.push(Arc::new(table));
            listed.push(entry);
            self.io.sync_dir(&self.paths.tables())?;
            let mut memory = write(&self.memory);
            *write(&self.tables) = tables;
            memory.clear();
            lock(&self.listed).clone_from(&listed);
        }
        Ok(Persisted { tables: listed, next_table: self.next_table.load(Ordering::Relaxed) })
    }

    fn persisted(&self) -> Result<()> {
        let listed = lock(&self.listed).clone();
        for name in self.io.list(&self.paths.tables())? {
            if let Some(id) = parse_table(&name).filter(|id| listed.iter().all(|entry| entry.id != *id)) {
                self.io.remove(&self.paths.table(id))?;
            }
        }
        Ok(())
    }
}

fn open_table(io: &dyn Io, paths: &Paths, store: StoreId, entry: &TableEntry) -> Option<Table> {
    let file = io.open(&paths.table(entry.id), Open::Read).ok()?;
    if file.len().ok()? != entry.bytes {
        return None;
    }
    let table = Table::open(file.map().ok()?).ok()?;
    (table.meta().store == store.0 && table.meta().id == entry.id).then_some(table)
}

fn is_empty_range(from: Bound<&[u8]>, to: Bound<&[u8]>) -> bool {
    match (from, to) {
        (Bound::Included(a), Bound::Included(b)) => a > b,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Excluded(b))
        | (Bound::Excluded(a), Bound::Included(b)) => a >= b,
        _ => false,
    }
}

/// A bound on owned bytes as one on a slice.
pub(crate) fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    match bound {
        Bound::Included(key) => Bound::Included(key),
        Bound::Excluded(key) => Bound::Excluded(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

/// The least key greater than all with this prefix; `None` if there is none.
pub(crate) fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// Writes a stream to a file in large pieces.
struct FileSink {
    file: Arc<dyn File>,
    at: u64,
    pending: Vec<u8>,
    failed: Option<crate::io::IoError>,
}

impl FileSink {
    fn flush_pending(&mut self) -> std::io::Result<()> {
        if let Err(error) = self.file.write_at(&[IoSlice::new(&self.pending)], self.at) {
            let kind = error.source.kind();
            self.failed = Some(error);
            return Err(kind.into());
        }
        self.at += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<u64> {
        if self.flush_pending().is_err()
            && let Some(error) = self.failed
        {
            return Err(error.into());
        }
        Ok(self.at)
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
