//! An open store: a reader, a writer where it is open for writing, and the catalogue of its names.

use std::any::Any;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{NamespaceId, SegmentId, StoreId};
use crate::io::{File, Io, ReadMode};
use crate::kv::bodies::AnchorRebuild;
use crate::kv::catalogue::Catalogue;
use crate::kv::deferred::DeferredValues;
use crate::kv::embeddings::EmbeddingIndex;
use crate::kv::fence::Fence;
use crate::kv::groups::GroupCache;
use crate::kv::index::{Index, IndexCoverage, IndexLimits};
use crate::kv::keys;
use crate::kv::raw_tail::RawTail;
use crate::kv::store_reader::{LogFollower, StoreReader, visit_records};
use crate::kv::store_writer::StoreWriter;
use crate::log::layout::LogState;
use crate::log::manifest::{FORMAT, LogCut, VectorList};
use crate::log::names::NamesFile;
use crate::log::open::{FoundLog, LogSizes, OpenLog, enter, find, manifest_stamp, remove_unlisted, start};
use crate::log::paths::StorePaths;
use crate::log::queue::Durability;
use crate::log::room::release_reserve_if_short;
use crate::log::scan::{ScanEnd, scan_states};
use crate::log::segments::{Segments, lock};
use crate::log::ticket::WriteFailure;
use crate::log::writer::LogSink as _;
use crate::schema::RecordSchema;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, OnceLock, RwLock, rank};

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
    /// Disk space in bytes that the file RESERVE holds, so that runs can be dropped and the store be compacted
    /// on a full disk. Other commits never use it. Default: 256 KiB; 0: none.
    pub reserve_bytes: u64,
    /// Maximum length of a body, in bytes. Default: 1 GiB.
    pub body_bytes_max: u64,
    /// Maximum bytes of decoded groups in memory. Default: 32 MiB.
    pub group_cache_bytes: usize,
    /// Maximum bytes of previous bodies of runs in memory, kept for comparison. Default: 64 MiB.
    pub previous_bytes_max: usize,
    /// About how many bytes of the newest index entries stay in memory. Memory may hold twice as much while a
    /// table is written, and up to four times if the disk has no room for one. Default: 16 MiB.
    pub index_memory_bytes: usize,
    /// New bytes of bodies are first written as they are, up to this many in a store, and compressed when the store is
    /// closed or idle, or by `Store::compress_tail`. Beyond, and with 0, they are compressed at once. Default: 16 MiB.
    pub raw_tail_bytes_max: u64,
    /// How sealed segments and tables are read. Default: [`ReadMode::Mapped`]. Choose
    /// [`ReadMode::Positional`] for disks that may disappear, or if other programs may truncate the files
    /// (docs/guarantees.md).
    pub read_mode: ReadMode,
    /// Whether opening for writing creates a missing store. Default: true.
    pub create: bool,
    /// Whether opening for writing upgrades a store of an older format. Older versions of annals then no longer
    /// read it. If false, such a store is refused. Default: true.
    pub upgrade: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            io: Arc::new(crate::io::RealIo::new()),
            durability: Durability::default(),
            segment_bytes_max: 256 << 20,
            queue_bytes_max: 64 << 20,
            zero_ahead_bytes: 1 << 20,
            reserve_bytes: 256 << 10,
            body_bytes_max: 1 << 30,
            group_cache_bytes: 32 << 20,
            previous_bytes_max: 64 << 20,
            index_memory_bytes: 16 << 20,
            raw_tail_bytes_max: 16 << 20,
            read_mode: ReadMode::default(),
            create: true,
            upgrade: true,
        }
    }
}

/// What an opening did beside opening, or found missing. Empty after a clean close in this format.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OpeningReport {
    /// The format from which this opening upgraded the store. Older versions of annals no longer read it.
    pub upgraded_from: Option<u16>,
    /// The bytes that this opening cut from the log's end.
    pub cut: Option<LogCut>,
    /// The file `SYNCED` is missing or unreadable, and the store was not closed cleanly. Damage to its last
    /// commits could not be told from a torn write.
    pub is_note_lost: bool,
}

impl OpeningReport {
    /// One sentence for each fact, for people.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(before) = self.upgraded_from {
            lines.push(format!(
                "upgraded the store from format {before} to format {FORMAT}: older versions of annals no longer read it. The way back is a backup from before: next time, run `annals backup` first, or refuse with --no-upgrade"
            ));
        }
        if let Some(cut) = &self.cut {
            lines.push(format!("the store was not closed cleanly. Cut {cut}"));
        }
        if self.is_note_lost {
            lines.push(
                "the store was not closed cleanly, and its file SYNCED is missing or unreadable: damage to its last commits would look like a crash"
                    .to_owned(),
            );
        }
        lines
    }
}

/// What a layer above keeps in memory of a namespace. The layer owns it; the core only finds it.
#[derive(Debug)]
pub struct LayerState {
    pub namespace: NamespaceId,
    /// The layer's name.
    pub layer: &'static str,
    pub state: Weak<dyn Any + Send + Sync>,
}

/// See the module. What only reads takes the reader, which a core can stand for.
#[derive(Debug)]
pub struct Core {
    pub reader: StoreReader,
    /// `None`: open for reading only.
    writer: Option<StoreWriter>,
    pub catalogue: Catalogue,
    /// Prevents compaction from removing content that no record names yet.
    pub fence: Arc<Fence>,
    /// Held by the layers above while they look at something and then write it. It guards what they share
    /// while the store is open.
    pub memory_lock: Mutex<Option<Box<dyn Any + Send>>, { rank::MEMORY_UPDATE }>,
    /// Values that a later batch writes.
    pub deferred: DeferredValues,
    /// What a layer above keeps in memory of a namespace, so that all handles of the layer share it.
    pub layer_states: Mutex<Vec<LayerState>, { rank::LAYER_STATES }>,
    /// The vector index, once the module `vector` has set it.
    pub embedding_index: OnceLock<Arc<dyn EmbeddingIndex>>,
    closed: AtomicBool,
}

/// A core can read whether or not it can write, so read functions take a core.
impl Deref for Core {
    type Target = StoreReader;

    fn deref(&self) -> &StoreReader {
        &self.reader
    }
}

impl Core {
    pub fn open(
        root: &std::path::Path,
        options: Options,
        for_writing: bool,
        schema: Arc<dyn RecordSchema>,
    ) -> Result<Arc<Self>> {
        Self::open_at(StorePaths::new(root), options, for_writing, schema)
    }

    /// As [`Core::open`]; the paths may be those of a draft.
    pub fn open_at(
        paths: StorePaths,
        options: Options,
        for_writing: bool,
        schema: Arc<dyn RecordSchema>,
    ) -> Result<Arc<Self>> {
        if options.segment_bytes_max > 2 << 30 {
            return Err(Error::invalid("segment_bytes_max is over 2 GiB"));
        }
        let io = enter(&options.io, &paths, for_writing && options.create)?;
        if for_writing {
            release_reserve_if_short(&*io, &paths, options.reserve_bytes)?;
        }
        let limits = IndexLimits { memory_bytes: options.index_memory_bytes, read_mode: options.read_mode };
        let (mut found, index, whole) = open_index(&io, &paths, &options, limits, for_writing, &schema)?;
        let store = found.state.store;
        let format = found.state.format;
        if for_writing {
            if format < FORMAT && !options.upgrade {
                return Err(Error::invalid(format!(
                    "{} has format {format}, and opening it for writing would upgrade it to format {FORMAT}, which the options forbid",
                    paths.root().display()
                )));
            }
            index.allow_writes();
        }
        let raw_tail = RawTail::new(options.raw_tail_bytes_max);
        let (end, covered) = read_log(&*schema, &index, &found, whole, for_writing.then_some(&raw_tail))?;
        let index = Arc::new(index);
        let segments = found.segments.clone();
        let vectors = found.state.vectors.clone();
        let recovered = end.is_torn || found.state.clean.is_none();
        // Records after the damage may be newer than those before it. A reader that went on would return old
        // values as the newest.
        if let Some(damage) = &end.damage {
            return Err(damage.error());
        }
        let state = end.state.clone();
        if for_writing {
            raw_tail.resume(&found.segments, &state);
        }
        let opening = OpeningReport {
            upgraded_from: (for_writing && format < FORMAT).then_some(format),
            cut: end.torn().filter(|_| for_writing),
            is_note_lost: for_writing && found.is_note_lost(),
        };
        let (log, follower) = if for_writing {
            let sizes = LogSizes {
                segment_bytes_max: options.segment_bytes_max,
                queue_bytes_max: options.queue_bytes_max,
                zero_ahead_bytes: options.zero_ahead_bytes,
                reserve_bytes: options.reserve_bytes,
                read_mode: options.read_mode,
            };
            if let Some(covered) = covered {
                index.write_listing(covered, &mut found.state);
            }
            let log = start(&io, &paths, found, end, sizes, index.clone(), schema.clone())?;
            index.after_persist();
            (Some(log), None)
        } else {
            let generation_lock = found.into_reader_lock();
            let end = (end.segment, end.tail);
            let followed = LogFollower { end, state: state.clone(), _lock: generation_lock };
            (None, Some(followed))
        };
        let catalogue = Catalogue::new(state.next_space);
        let writer = log.map(|log| StoreWriter::new(log, &state, raw_tail));
        let reader = StoreReader {
            groups: GroupCache::new(options.group_cache_bytes),
            io,
            options,
            paths,
            store,
            index,
            segments: RwLock::new(segments),
            schema,
            spaces: RwLock::new(None),
            followed: Mutex::new(follower),
            counted: Mutex::new(None),
            recovered,
            opening,
            newest_ns: AtomicU64::new(state.newest_ns),
            vectors,
        };
        let core = Arc::new(Self::of(reader, writer, catalogue));
        if let Some(writer) = &core.writer {
            core.index.start_upkeep(&writer.log.queue, &writer.log.manifest)?;
        }
        let spaces = core.load_catalogue()?;
        if for_writing {
            core.catalogue.set_names_file(NamesFile::open(&*core.io, &core.paths, store, &spaces)?);
        }
        Ok(core)
    }

    /// A store open for reading, over segments and an index that were assembled from what is left of a store.
    pub fn from_salvage(
        options: Options,
        paths: StorePaths,
        store: StoreId,
        index: Index,
        segments: Arc<Segments>,
        schema: Arc<dyn RecordSchema>,
    ) -> Arc<Self> {
        let reader = StoreReader {
            groups: GroupCache::new(options.group_cache_bytes),
            io: options.io.clone(),
            options,
            paths,
            store,
            index: Arc::new(index),
            segments: RwLock::new(segments),
            schema,
            spaces: RwLock::new(None),
            followed: Mutex::new(None),
            counted: Mutex::new(None),
            recovered: false,
            opening: OpeningReport::default(),
            newest_ns: AtomicU64::new(0),
            vectors: VectorList::default(),
        };
        Arc::new(Self::of(reader, None, Catalogue::new(u32::MAX)))
    }

    fn of(reader: StoreReader, writer: Option<StoreWriter>, catalogue: Catalogue) -> Self {
        Self {
            reader,
            writer,
            catalogue,
            fence: Arc::default(),
            memory_lock: Mutex::new(None),
            deferred: DeferredValues::default(),
            layer_states: Mutex::new(Vec::new()),
            embedding_index: OnceLock::new(),
            closed: AtomicBool::new(false),
        }
    }

    /// What writes.
    ///
    /// # Errors
    /// `Invalid` if the store is open for reading only, `Unavailable` if it is closed.
    pub fn writer(&self) -> Result<&StoreWriter> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Unavailable, "the store is closed: open it again"));
        }
        self.writer.as_ref().ok_or_else(|| {
            Error::invalid("this store is open for reading only: open it for writing to change it")
        })
    }

    /// The writing side of the log.
    ///
    /// # Errors
    /// As [`Core::writer`].
    pub fn log(&self) -> Result<&OpenLog> {
        Ok(&self.writer()?.log)
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub fn is_writer(&self) -> bool {
        self.writer.is_some()
    }

    /// Whether a write failed, so that nothing more can be written until the store is opened again.
    pub fn is_poisoned(&self) -> bool {
        self.writer.as_ref().is_some_and(|writer| writer.log.queue.is_poisoned())
    }

    /// Syncs a file of the log beside the writer. A failure poisons the writer: it is unknown what of the log
    /// is on disk, and the system may report it only once.
    ///
    /// # Errors
    /// `Unavailable` if the system refused; `Poisoned` if it refused the writer before.
    pub fn sync_log(&self, file: &dyn File) -> Result<()> {
        let Some(writer) = &self.writer else { return Ok(file.sync()?) };
        let queue = &writer.log.queue;
        queue.check_poisoned()?;
        file.sync().map_err(|error| {
            let error = Error::from(error);
            queue.poison(WriteFailure::from_error(&error));
            error
        })
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
        match &self.writer {
            Some(writer) => {
                let _reserve = writer.log.queue.use_reserve();
                let _compacting = lock(&writer.compacting);
                writer.log.close()
            }
            None => Ok(()),
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // Best effort: `Store::close` reports errors.
        let _ = self.close();
    }
}

/// How often a reader tries to open tables that a writer replaces meanwhile.
const OPEN_ATTEMPTS_MAX: usize = 100;

/// Opens the log and the index that its manifest lists. The flag says whether the index is whole.
fn open_index(
    io: &Arc<dyn Io>,
    paths: &StorePaths,
    options: &Options,
    limits: IndexLimits,
    for_writing: bool,
    schema: &Arc<dyn RecordSchema>,
) -> Result<(FoundLog, Index, bool)> {
    let mut looks = 0;
    loop {
        let before = manifest_stamp(&**io, paths);
        let found = find(&**io, paths, for_writing, options.create, options.read_mode)?;
        let (index, whole) = Index::open(io, paths, &found.state, limits, schema);
        looks += 1;
        // A writer beside this reader may have listed other tables and removed these.
        let again =
            !whole && !for_writing && looks < OPEN_ATTEMPTS_MAX && manifest_stamp(&**io, paths) != before;
        if !again {
            return Ok((found, index, whole));
        }
    }
}

/// Reads the part of the log that the tables do not cover into the index. For writing, memory stays bounded:
/// full memory is flushed, and the result says what the tables then cover if it differs from the manifest. Raw bodies
/// that it meets are added to `raw_tail`, which is given for writing.
fn read_log(
    schema: &dyn RecordSchema,
    index: &Index,
    found: &FoundLog,
    whole: bool,
    raw_tail: Option<&RawTail>,
) -> Result<(ScanEnd, Option<IndexCoverage>)> {
    let state = &found.state;
    let first = state.segments.first().map_or(SegmentId(1), |segment| segment.id);
    let (mut covered, at, at_from) = match whole {
        true => (None, state.covers, state.covers_state.clone()),
        false => {
            let at = (first, crate::log::layout::SEGMENT_HEADER_BYTES);
            (Some(IndexCoverage { at, state: LogState::empty() }), at, LogState::empty())
        }
    };
    let mut entries = Vec::new();
    let mut anchors = AnchorRebuild::new(state.store, &found.segments, whole);
    let end = scan_states(schema, found, at, at_from, &mut |batch, segment, log| {
        visit_records(batch, segment, |record, place, seqno| {
            anchors.note_record(record, place, seqno)?;
            if let Some(tail) = raw_tail.filter(|_| whole) {
                tail.note_record(record, place)?;
            }
            keys::derive_entries(schema, record, seqno, place, &mut entries)
        })?;
        anchors.close_excess_groups(&mut entries);
        if raw_tail.is_some() {
            // All entries of this batch are in memory before a table claims to cover it.
            index.insert(entries.drain(..));
            // A scan begins between batches that are not joined.
            if let Some(end) = batch.end() {
                index.flush_while_opening((segment.id, end), log, &mut covered)?;
            }
        } else if entries.len() > 4096 {
            index.insert(entries.drain(..));
        }
        Ok(())
    })?;
    index.insert(entries);
    anchors.finish(|entries| index.insert(entries.drain(..)));
    index.set_visible(end.state.last_seqno());
    Ok((end, covered))
}

#[cfg(test)]
mod tests;
