//! What `kv`, `trace` and `replay` share: the log, its index, and the caches of decoded groups and of frames.

use std::sync::Arc;

use crate::blob::GroupId;
use crate::codec::CodecError;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Place, SegmentId, Seqno, StoreId};
use crate::io::{File, Io, ReadMode};
use crate::kv::bodies::AnchorRebuild;
use crate::kv::catalogue::Catalogue;
use crate::kv::embeddings::Finder;
use crate::kv::fence::Fence;
use crate::kv::groups::GroupCache;
use crate::kv::index::{Covered, Index, Limits};
use crate::kv::keys;
use crate::kv::table::Entry;
use crate::log::cursor::for_each_record;
use crate::log::layout::{LogState, RawRecord};
use crate::log::manifest::VectorList;
use crate::log::open::{
    End, Found, OpenLog, Sizes, find, remove_unlisted, scan, scan_between, scan_states, stamp, start,
};
use crate::log::paths::Paths;
use crate::log::queue::Durability;
use crate::log::record::{Kind, Logical};
use crate::log::segments::{Pin, Segments, lock};
use crate::log::totals::Totals;
use crate::log::writer::Sink as _;
use crate::schema::Schema;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, OnceLock};

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// Files, clock, randomness and threads. Default: the real ones.
    pub io: Arc<dyn Io>,
    /// What a commit waits for if the caller does not say. Default: [`Durability::Disk`].
    pub durability: Durability,
    /// A segment is sealed once it has about this many bytes. Default: 256 MiB. At most 2 GiB.
    pub segment_bytes_max: u64,
    /// Bytes that may be queued for the writer before callers wait. Default: 64 MiB.
    pub queue_bytes_max: usize,
    /// How far ahead of the log's end zeros are written, in bytes, so that syncs are cheap. Default: 1 MiB;
    /// 0: none.
    pub zero_ahead_bytes: u64,
    /// Maximum length of a body, in bytes. Default: 1 GiB.
    pub body_bytes_max: u64,
    /// Maximum bytes of decoded groups in memory. Default: 32 MiB.
    pub group_cache_bytes: usize,
    /// Maximum bytes of previous bodies of runs in memory, kept for comparison. Default: 64 MiB.
    pub previous_bytes_max: usize,
    /// About how many bytes of the newest index entries stay in memory. Memory may hold twice as much while a
    /// table is written, and up to four times if the disk has no room for one. Default: 16 MiB.
    pub index_memory_bytes: usize,
    /// How sealed segments and tables are read. Default: [`ReadMode::Mapped`]. Choose
    /// [`ReadMode::Positional`] for disks that may disappear, or if other programs may truncate the files
    /// (docs/guarantees.md).
    pub read_mode: ReadMode,
    /// Whether opening for writing creates a missing store. Default: true.
    pub create: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            io: Arc::new(crate::io::RealIo::new()),
            durability: Durability::default(),
            segment_bytes_max: 256 << 20,
            queue_bytes_max: 64 << 20,
            zero_ahead_bytes: 1 << 20,
            body_bytes_max: 1 << 30,
            group_cache_bytes: 32 << 20,
            previous_bytes_max: 64 << 20,
            index_memory_bytes: 16 << 20,
            read_mode: ReadMode::default(),
            create: true,
        }
    }
}

/// A clock that is more than this ahead of the newest record is ignored: 400 days.
pub const AHEAD_NS_MAX: u64 = 400 * 86_400 * 1_000_000_000;

/// Whether a clock is at most [`AHEAD_NS_MAX`] ahead of the newest record. `newest_ns` is 0 if there is no
/// record.
pub fn is_believed(now_ns: u64, newest_ns: u64) -> bool {
    newest_ns == 0 || now_ns <= newest_ns.saturating_add(AHEAD_NS_MAX)
}

/// How far a reader beside a writer has read the log.
#[derive(Debug)]
struct Followed {
    end: (SegmentId, u64),
    state: LogState,
    _lock: Option<Arc<dyn File>>,
}

/// See the module.
#[derive(Debug)]
pub struct Core {
    pub io: Arc<dyn Io>,
    pub options: Options,
    pub paths: Paths,
    pub store: StoreId,
    pub index: Arc<Index>,
    pub segments: crate::sync::RwLock<Arc<Segments>>,
    /// `None`: open for reading only.
    log: Option<OpenLog>,
    followed: Mutex<Option<Followed>>,
    pub groups: GroupCache,
    /// What the layer above says about its records.
    pub schema: Arc<dyn Schema>,
    next_group: AtomicU64,
    next_run: AtomicU64,
    pub catalogue: Catalogue,
    salts: Mutex<Salts>,
    /// Prevents compaction from removing content that no record names yet.
    pub fence: Arc<Fence>,
    /// Held while a compaction runs, and by the thread that closes the store.
    pub compacting: Mutex<()>,
    /// Held by the layers above while they look at something and then write it.
    pub remembering: Mutex<()>,
    /// The last opening for writing followed a crash.
    pub recovered: bool,
    closed: AtomicBool,
    /// See [`Core::newest_ns`].
    newest_ns: AtomicU64,
    /// The vector index, once the module `vector` has set it.
    pub finder: OnceLock<Arc<dyn Finder>>,
    /// The vector files that the manifest listed at the opening.
    pub vectors: VectorList,
}

impl Core {
    pub fn open(
        root: &std::path::Path,
        options: Options,
        for_writing: bool,
        schema: Arc<dyn Schema>,
    ) -> Result<Arc<Self>> {
        let io = options.io.clone();
        let paths = Paths::new(root);
        if options.segment_bytes_max > 2 << 30 {
            return Err(Error::invalid("segment_bytes_max is over 2 GiB"));
        }
        let limits = Limits { memory_bytes: options.index_memory_bytes, read_mode: options.read_mode };
        let (mut found, index, whole) = find_index(&io, &paths, &options, limits, for_writing, &schema)?;
        let store = found.state.store;
        if for_writing {
            index.begin_writing();
        }
        let (end, covered) = read_log(&*schema, &index, &found, whole, for_writing)?;
        let index = Arc::new(index);
        let segments = found.segments.clone();
        let vectors = found.state.vectors.clone();
        let recovered = end.torn || found.state.clean.is_none();
        // Records after the damage may be newer than those before it. A reader that went on would return old
        // values as the newest.
        if let Some(damage) = &end.damage {
            return Err(damage.error());
        }
        let state = end.state.clone();
        let (log, followed) = if for_writing {
            let sizes = Sizes {
                segment_bytes_max: options.segment_bytes_max,
                queue_bytes_max: options.queue_bytes_max,
                zero_ahead_bytes: options.zero_ahead_bytes,
                read_mode: options.read_mode,
            };
            if let Some(covered) = covered {
                index.list(covered, &mut found.state);
            }
            let log = start(&io, &paths, found, end, sizes, index.clone(), schema.clone())?;
            index.persisted();
            (Some(log), None)
        } else {
            let generation_lock = found.into_reader_lock();
            let end = (end.segment, end.tail);
            let followed = Followed { end, state: state.clone(), _lock: generation_lock };
            (None, Some(followed))
        };
        let core = Arc::new(Self {
            groups: GroupCache::new(options.group_cache_bytes),
            schema,
            io,
            options,
            paths,
            store,
            index,
            segments: crate::sync::RwLock::new(segments),
            log,
            followed: Mutex::new(followed),
            next_group: AtomicU64::new(state.next_group),
            next_run: AtomicU64::new(state.next_run),
            catalogue: Catalogue::new(state.next_space),
            salts: Mutex::default(),
            fence: Arc::default(),
            compacting: Mutex::new(()),
            remembering: Mutex::new(()),
            recovered,
            closed: AtomicBool::new(false),
            newest_ns: AtomicU64::new(state.newest_ns),
            finder: OnceLock::new(),
            vectors,
        });
        if let Some(log) = &core.log {
            core.index.start_upkeep(&log.queue, &log.manifest)?;
        }
        core.load_policies()?;
        Ok(core)
    }

    /// A store open for reading, over segments and an index that were assembled from what is left of a store.
    pub fn salvaged(
        options: Options,
        paths: Paths,
        store: StoreId,
        index: Index,
        segments: Arc<Segments>,
        schema: Arc<dyn Schema>,
    ) -> Arc<Self> {
        Arc::new(Self {
            groups: GroupCache::new(options.group_cache_bytes),
            schema,
            io: options.io.clone(),
            options,
            paths,
            store,
            index: Arc::new(index),
            segments: crate::sync::RwLock::new(segments),
            log: None,
            followed: Mutex::new(None),
            next_group: AtomicU64::new(u64::MAX),
            next_run: AtomicU64::new(u64::MAX),
            catalogue: Catalogue::new(u32::MAX),
            salts: Mutex::default(),
            fence: Arc::default(),
            compacting: Mutex::new(()),
            remembering: Mutex::new(()),
            recovered: false,
            closed: AtomicBool::new(false),
            newest_ns: AtomicU64::new(0),
            finder: OnceLock::new(),
            vectors: VectorList::default(),
        })
    }

    /// Keeps readable every place that the index leads to from now on.
    pub fn pin(&self) -> Pin {
        crate::log::segments::read(&self.segments).pin()
    }

    /// The writing side of the log.
    ///
    /// # Errors
    /// `Invalid` if the store is open for reading only, `Unavailable` if it is closed.
    pub fn log(&self) -> Result<&OpenLog> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Unavailable, "the store is closed: open it again"));
        }
        self.log.as_ref().ok_or_else(|| {
            Error::invalid("this store is open for reading only: open it for writing to change it")
        })
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub fn is_writer(&self) -> bool {
        self.log.is_some()
    }

    /// Calls `then` with the parts of the logical record at `place`, which must be of the kind `expected`.
    pub fn logical<T>(
        &self,
        place: Place,
        expected: Kind,
        then: impl FnOnce(Logical<'_>) -> std::result::Result<T, CodecError>,
    ) -> Result<T> {
        self.logical_of(place, &[expected], |_, logical| then(logical))
    }

    /// Like [`Core::read_logical`], but the record may be of any of the kinds `expected`.
    pub fn logical_of<T>(
        &self,
        place: Place,
        expected: &[Kind],
        then: impl FnOnce(Kind, Logical<'_>) -> std::result::Result<T, CodecError>,
    ) -> Result<T> {
        let segment = crate::log::segments::read(&self.segments).get(place.segment)?;
        segment.record(place, |record: RawRecord<'_>| {
            let wrong = |what: String| Error::damaged(&segment.path, u64::from(place.offset), what);
            let kind = match Kind::parse(record.kind, record.layout).map_err(|e| wrong(e.to_string()))? {
                Some(kind) if expected.contains(&kind) => kind,
                other => {
                    let expected: Vec<String> = expected.iter().map(|kind| self.kind_name(*kind)).collect();
                    let other =
                        other.map_or("None".to_owned(), |kind| format!("Some({})", self.kind_name(kind)));
                    return Err(wrong(format!(
                        "the index expects a record of [{}] here, found {other}",
                        expected.join(", ")
                    )));
                }
            };
            Logical::parse(record.body)
                .and_then(|logical| then(kind, logical))
                .map_err(|e| wrong(e.to_string()))
        })
    }

    fn kind_name(&self, kind: Kind) -> String {
        match kind {
            Kind::Schema(kind) => self.schema.kind_name(kind).to_owned(),
            own => format!("{own:?}"),
        }
    }

    pub fn segment(&self, id: SegmentId) -> Result<Arc<crate::log::segments::Segment>> {
        crate::log::segments::read(&self.segments).get(id)
    }

    /// Groups below this have been numbered.
    pub fn next_group(&self) -> u64 {
        self.next_group.load(Ordering::Acquire)
    }

    pub fn new_group(&self) -> GroupId {
        GroupId(self.next_group.fetch_add(1, Ordering::Relaxed))
    }

    /// A number that no record of the layer above has used.
    pub fn new_uid(&self) -> u64 {
        self.next_run.fetch_add(1, Ordering::Relaxed)
    }

    /// A salt for one record.
    pub fn salt(&self) -> Result<[u8; 16]> {
        lock(&self.salts).next(&*self.io)
    }

    /// The state of the log at its current end (counts, bytes by kind, the ledger), and the counts that
    /// remain after compactions. Reads the part of the active segment that no sealed footer or clean close
    /// covers.
    pub fn log_state(&self) -> Result<(LogState, Totals)> {
        let found = find(&*self.io, &self.paths, false, false, self.options.read_mode)?;
        let from = found.state.covers;
        let state = found.state.covers_state.clone();
        let state = scan(&*self.schema, &found, from, state, &mut |_, _| Ok(()))?.state;
        let held = state.totals.less(&found.state.erased);
        Ok((state, held))
    }

    /// Reads on from where the last read ended. If the tables now cover more than that, reads on from their
    /// end and drops the entries in memory. Only for stores open for reading.
    pub fn refresh(&self) -> Result<()> {
        let mut guard = lock(&self.followed);
        let Some(followed) = guard.as_mut() else { return Ok(()) };
        let found = find(&*self.io, &self.paths, false, false, self.options.read_mode)?;
        // New segments must be readable before the index names them. Old ones stay readable while it names
        // them.
        let segments = crate::log::segments::read(&self.segments).clone();
        segments.follow(&found.segments);
        let read_to = found.state.position(followed.end);
        // If the segment that was read last is gone, a compaction has moved its records.
        let is_further = read_to
            .is_none_or(|to| found.state.position(found.state.covers).is_some_and(|covers| covers > to));
        let rest = |followed: &Followed| match read_to {
            Some(_) => read_on(&*self.schema, &found, followed.end, followed.state.clone()),
            None => read_after(&*self.schema, &found, followed.state.last_seqno()),
        };
        let (end, entries) = match is_further {
            true => {
                let (end, entries) =
                    read_on(&*self.schema, &found, found.state.covers, found.state.covers_state.clone())?;
                match self.index.reload(&found.state, entries, end.state.last_seqno()) {
                    true => {
                        segments.retire_others();
                        (end, Vec::new())
                    }
                    false => rest(followed)?,
                }
            }
            false => rest(followed)?,
        };
        self.index.insert(entries);
        self.index.show(end.state.last_seqno());
        self.newest_ns.store(end.state.newest_ns, Ordering::Relaxed);
        let generation_lock = found.into_reader_lock();
        *followed = Followed { end: (end.segment, end.tail), state: end.state, _lock: generation_lock };
        drop(guard);
        self.load_policies()
    }

    /// The position up to which the log was read; `None` in a store open for writing.
    pub fn read_to(&self) -> Option<(SegmentId, u64)> {
        lock(&self.followed).as_ref().map(|followed| followed.end)
    }

    /// The time of the newest batch since opening, without batches whose clock was ignored.
    pub fn newest_ns(&self) -> u64 {
        self.newest_ns.load(Ordering::Relaxed)
    }

    /// Notes the time of a batch. A clock far ahead is ignored: it would make everything due that has a
    /// deadline.
    pub fn note_time(&self, now_ns: u64) {
        if is_believed(now_ns, self.newest_ns()) {
            self.newest_ns.fetch_max(now_ns, Ordering::Relaxed);
        }
    }

    /// Removes segment files that the manifest does not list, except the writer's next one.
    pub fn remove_unlisted_segments(&self) -> Result<()> {
        let state = self.log()?.manifest.state();
        remove_unlisted(&*self.io, &self.paths, &state)
    }

    pub fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        // A running compaction stops at its next check. After the store's lock is released, the files belong
        // to another process.
        self.fence.wake();
        let _compacting = lock(&self.compacting);
        match &self.log {
            Some(log) => log.close(),
            None => Ok(()),
        }
    }
}

/// Random salts: BLAKE3's output stream under a random key that is never written and often replaced.
#[derive(Debug, Default)]
struct Salts {
    stream: Option<blake3::OutputReader>,
    left: u32,
}

/// Number of salts that are drawn from one key.
const SALTS_OF_A_KEY: u32 = 1024;

impl Salts {
    fn next(&mut self, io: &dyn Io) -> Result<[u8; 16]> {
        let stream = match &mut self.stream {
            Some(stream) if self.left > 0 => stream,
            _ => {
                let mut key = [0; 32];
                io.random(&mut key)?;
                self.left = SALTS_OF_A_KEY;
                self.stream.insert(blake3::Hasher::new_keyed(&key).finalize_xof())
            }
        };
        self.left -= 1;
        let mut salt = [0; 16];
        stream.fill(&mut salt);
        Ok(salt)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // Best effort: a caller that needs the result calls `Store::close`.
        let _ = self.close();
    }
}

/// Calls `each` with every record of a batch.
fn collect(
    whole: &[u8],
    offset: u64,
    segment: &crate::log::segments::Segment,
    mut each: impl FnMut(&RawRecord<'_>, Place, Seqno) -> std::result::Result<(), CodecError>,
) -> Result<()> {
    for_each_record(whole, offset, segment.salt, |at, seqno, record| {
        each(&record, Place { segment: segment.id, offset: at as u32, len: record.bytes }, seqno)
    })
    .map_err(|e| Error::damaged(&segment.path, offset, e))
}

/// Reads the log from a position on. Returns its end and the index entries.
fn read_on(
    schema: &dyn Schema,
    found: &Found,
    from: (SegmentId, u64),
    state: LogState,
) -> Result<(End, Vec<Entry>)> {
    let mut entries = Vec::new();
    let end = scan(schema, found, from, state, &mut |batch, segment| {
        collect(batch.whole, batch.offset, segment, |record, place, seqno| {
            keys::derive(schema, record, seqno, place, &mut entries)
        })
    })?;
    match &end.damage {
        Some(damage) => Err(damage.error()),
        None => Ok((end, entries)),
    }
}

/// Reads the records after a seqno, wherever they are now. Returns the log's end and the index entries.
fn read_after(schema: &dyn Schema, found: &Found, last: Seqno) -> Result<(End, Vec<Entry>)> {
    let mut newer = Vec::new();
    scan_between(found, None, found.state.covers, &mut |batch, segment, next| {
        if next > Seqno(last.0 + 1) {
            collect(batch.whole, batch.offset, segment, |record, place, seqno| {
                keys::derive(schema, record, seqno, place, &mut newer)
            })?;
            newer.retain(|entry| entry.seqno > last.0);
        }
        Ok(())
    })?;
    let (end, rest) = read_on(schema, found, found.state.covers, found.state.covers_state.clone())?;
    newer.extend(rest);
    Ok((end, newer))
}

/// How often a reader tries to open tables that a writer replaces meanwhile.
const LOOKS_MAX: usize = 100;

/// Opens the log and the index that its manifest lists. The flag says whether the index is whole.
fn find_index(
    io: &Arc<dyn Io>,
    paths: &Paths,
    options: &Options,
    limits: Limits,
    for_writing: bool,
    schema: &Arc<dyn Schema>,
) -> Result<(Found, Index, bool)> {
    let mut looks = 0;
    loop {
        let before = stamp(&**io, paths);
        let found = find(&**io, paths, for_writing, options.create, options.read_mode)?;
        let (index, whole) = Index::open(io, paths, &found.state, limits, schema);
        looks += 1;
        // A writer beside this reader may have listed other tables and removed these.
        let again = !whole && !for_writing && looks < LOOKS_MAX && stamp(&**io, paths) != before;
        if !again {
            return Ok((found, index, whole));
        }
    }
}

/// Reads the part of the log that the tables do not cover into the index. For writing, memory stays bounded:
/// full memory is flushed, and the result says what the tables then cover if it differs from the manifest.
fn read_log(
    schema: &dyn Schema,
    index: &Index,
    found: &Found,
    whole: bool,
    for_writing: bool,
) -> Result<(End, Option<Covered>)> {
    let state = &found.state;
    let first = state.segments.first().map_or(SegmentId(1), |segment| segment.id);
    let (mut covered, at, at_from) = match whole {
        true => (None, state.covers, state.covers_state.clone()),
        false => {
            let at = (first, crate::log::layout::SEGMENT_HEADER_BYTES);
            (Some(Covered { at, state: LogState::empty() }), at, LogState::empty())
        }
    };
    let mut entries = Vec::new();
    let mut anchors = AnchorRebuild::new(state.store, &found.segments, whole);
    let end = scan_states(schema, found, at, at_from, &mut |batch, segment, log| {
        collect(batch.whole, batch.offset, segment, |record, place, seqno| {
            anchors.note(record, place, seqno)?;
            keys::derive(schema, record, seqno, place, &mut entries)
        })?;
        anchors.settle(&mut entries);
        if for_writing {
            // All entries of this batch are in memory before a table claims to cover it.
            index.insert(entries.drain(..));
            let after = (segment.id, batch.offset + batch.whole.len() as u64);
            index.flush_while_opening(after, log, &mut covered)?;
        } else if entries.len() > 4096 {
            index.insert(entries.drain(..));
        }
        Ok(())
    })?;
    index.insert(entries);
    anchors.finish(|entries| index.insert(entries.drain(..)));
    index.show(end.state.last_seqno());
    Ok((end, covered))
}

#[cfg(test)]
mod tests;
