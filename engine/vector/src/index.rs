//! The vector index: all partitions of a store, and catching up with its log.
//!
//! Invariants: one thread at a time catches up. `upto` is raised after every vector up to it is in its
//! partition. A reader fetches `upto` before a partition's levels. It finds in them all vectors that are alive as of
//! `upto`, and perhaps later ones, unless the levels were written as of a later record (`PartitionLevels::as_of`).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, Weak};

use crate::error::{Error, ErrorKind, Result};
use crate::files::{CLOSE_ROWS, FLUSH_ROWS, FlushScope};
use crate::ids::{NamespaceId, Seqno};
use crate::kv::core::Core;
use crate::kv::embeddings::{EmbeddingIndex, SweptOwners};
use crate::log::manifest::VectorList;
use crate::log::record::SpaceHead;
use crate::log::segments::{lock, read_lock, write_lock};
use crate::partition::{Partition, PartitionId};
use crate::source::{self, RunNamespaces};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Condvar, JoinHandle, Mutex, RwLock, SCHEDULED, rank};
use crate::types::{Owner, OwnerId, VectorOrigin};

/// The thread wakes after this many batches with vectors.
pub const WAKE_BATCHES: u64 = if SCHEDULED { 2 } else { 64 };

/// The thread that catches up in the background, so that searches need not, and writes files.
#[derive(Debug, Default)]
struct VectorWorker {
    state: Mutex<VectorWorkerState, { rank::VECTOR_WORKER }>,
    changed: Condvar,
    stop: AtomicBool,
    /// Number of batches with vectors that were queued.
    queued: AtomicU64,
}

#[derive(Debug, Default)]
struct VectorWorkerState {
    thread: Option<JoinHandle<()>>,
    is_pending: bool,
}

/// Records that are read together.
const PAGE: usize = 1024;
/// What vectors in memory take, about, when they are written down before more are read from the log.
const MEMORY_BYTES: usize = 128 << 20;
/// Approximate bytes of a vector in memory besides its numbers and codes.
const ROW_BYTES: usize = 96;

/// Keyspaces by number, with namespace and name.
type KeyspaceNames = HashMap<u32, (NamespaceId, String)>;

pub type Partitions = BTreeMap<PartitionId, Arc<Partition>>;

/// See the module.
#[derive(Debug, Default)]
pub struct VectorIndex {
    pub weak_self: Weak<VectorIndex>,
    pub partitions: RwLock<Arc<Partitions>, { rank::VECTOR_PARTITIONS }>,
    /// The last record that was read.
    pub upto: AtomicU64,
    pub catch_up_lock: Mutex<RunNamespaces, { rank::VECTOR_CATCH_UP }>,
    /// What the manifest lists. Held while files are written or discarded.
    pub files: Mutex<VectorList, { rank::VECTOR_FILES }>,
    /// Raised before and after all files are discarded.
    pub discards: AtomicU64,
    /// Number of vectors in memory.
    tail_rows: AtomicUsize,
    /// Approximate bytes of the vectors in memory.
    tail_bytes: AtomicUsize,
    /// `MEMORY_BYTES`; tests lower it.
    pub memory_bytes: AtomicUsize,
    /// Held while a graph is built.
    pub graph_lock: Mutex<(), { rank::VECTOR_MAKING }>,
    /// The file whose graph is being built; 0: none.
    pub pinned_file: AtomicU64,
    /// Whether a large file has no graph.
    pub lacks_graph: AtomicBool,
    worker: VectorWorker,
    /// Dimensions of vectors on their way into the log, for embedders that have no vectors there yet.
    expected_dimensions: Mutex<HashMap<PartitionId, usize>, { rank::VECTOR_EXPECTED }>,
    keyspace_names: RwLock<KeyspaceNames, { rank::VECTOR_NAMES }>,
}

impl VectorIndex {
    /// An index that has read nothing of the log.
    pub fn empty() -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            weak_self: me.clone(),
            memory_bytes: AtomicUsize::new(MEMORY_BYTES),
            ..Self::default()
        })
    }

    /// The last record whose vectors are in their partitions.
    pub fn upto(&self) -> Seqno {
        Seqno(self.upto.load(Ordering::Acquire))
    }

    /// Reads the vectors that were committed since the last call. In the writing process, full memory is
    /// flushed meanwhile.
    pub fn catch_up(&self, core: &Arc<Core>) -> Result<()> {
        let mut most = if core.is_writer() { self.memory_bytes() } else { usize::MAX };
        while !self.catch_up_within(core, most)? {
            // A full disk must not keep a search from finding vectors.
            if self.flush(core, FlushScope::Due).is_err() {
                most = usize::MAX;
            }
        }
        Ok(())
    }

    /// Catches up until about `most` bytes are in memory. Returns whether it has caught up with everything.
    pub fn catch_up_within(&self, core: &Core, most: usize) -> Result<bool> {
        if self.upto() >= core.index.visible() {
            return Ok(true);
        }
        let mut runs = lock(&self.catch_up_lock);
        let _pin = core.pin();
        // Another thread may have caught up while this one waited for its turn.
        let visible = core.index.visible();
        let mut after = self.upto();
        while after < visible {
            if self.tail_bytes.load(Ordering::Relaxed) >= most {
                return Ok(false);
            }
            let (places, more) = source::vector_places(core, after, visible, PAGE)?;
            let mut fresh: BTreeMap<PartitionId, Vec<(VectorOrigin, Vec<f32>)>> = BTreeMap::new();
            let last = places.last().map(|(seqno, _)| *seqno);
            for (seqno, place) in places {
                let Some(found) = source::read_record_vectors(core, &mut runs, seqno, place)? else {
                    continue;
                };
                for (embedder, vector) in found.embeddings {
                    let id = PartitionId { namespace: found.namespace, embedder: embedder.into() };
                    fresh.entry(id).or_default().push((found.item.clone(), vector));
                }
            }
            for (id, vectors) in fresh {
                self.add_vectors(id, vectors);
            }
            after = if more { last.unwrap_or(visible) } else { visible };
            self.upto.store(after.0, Ordering::Release);
        }
        Ok(true)
    }

    /// Adds vectors to their partition, which the first vector creates. Vectors of other dimensions are
    /// skipped.
    fn add_vectors(&self, id: PartitionId, mut vectors: Vec<(VectorOrigin, Vec<f32>)>) {
        let known = read_lock(&self.partitions).get(&id).cloned();
        let partition = match known {
            Some(known) => known,
            None => {
                let Some((_, first)) = vectors.first() else { return };
                let made = Arc::new(Partition::new(first.len()));
                lock(&self.expected_dimensions).remove(&id);
                Arc::make_mut(&mut write_lock(&self.partitions)).insert(id, made.clone());
                made
            }
        };
        vectors.retain(|(_, vector)| vector.len() == partition.dimensions);
        self.tail_rows.fetch_add(vectors.len(), Ordering::Relaxed);
        self.tail_bytes.fetch_add(vectors.len() * row_bytes(partition.dimensions), Ordering::Relaxed);
        partition.push(vectors);
    }

    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes.load(Ordering::Relaxed)
    }

    /// Counts the vectors in memory again.
    pub fn recount_tail(&self) {
        let partitions = read_lock(&self.partitions).clone();
        let (mut rows, mut bytes) = (0, 0);
        for partition in partitions.values() {
            let here = partition.levels().tail_rows();
            rows += here;
            bytes += here * row_bytes(partition.dimensions);
        }
        self.tail_rows.store(rows, Ordering::Relaxed);
        self.tail_bytes.store(bytes, Ordering::Relaxed);
    }

    /// How often files were discarded; odd while that is going on.
    pub fn discards(&self) -> u64 {
        self.discards.load(Ordering::Acquire)
    }

    /// Waits until no files are being discarded. Returns how often that was done.
    pub fn await_discards(&self) -> u64 {
        loop {
            let discards = self.discards();
            if discards.is_multiple_of(2) {
                return discards;
            }
            // Held by the thread that discards them.
            drop(lock(&self.catch_up_lock));
        }
    }

    pub fn is_stopped(&self) -> bool {
        self.worker.stop.load(Ordering::Acquire)
    }

    /// Wakes the thread to look for work. The first call starts it.
    pub fn wake(&self, core: &Arc<Core>) {
        if !core.is_writer() || self.is_stopped() {
            return;
        }
        let mut state = lock(&self.worker.state);
        state.is_pending = true;
        if state.thread.is_none()
            && let Some(me) = self.weak_self.upgrade()
        {
            let core = core.clone();
            // If the system has no thread, searches catch up, and files are written at the close.
            state.thread = self.spawn_worker(&core.clone(), Box::new(move || me.run_worker(&core)));
        }
        drop(state);
        self.worker.changed.notify_all();
    }

    /// Whether there is a graph to build, and this program can build it.
    pub fn wants_graph(&self) -> bool {
        cfg!(feature = "graphs") && self.lacks_graph.load(Ordering::Relaxed)
    }

    fn spawn_worker(&self, core: &Core, body: Box<dyn FnOnce() + Send>) -> Option<JoinHandle<()>> {
        core.io.spawn("annals-vectors", body).ok()
    }

    fn run_worker(&self, core: &Arc<Core>) {
        loop {
            let mut state = lock(&self.worker.state);
            while !state.is_pending && !self.is_stopped() {
                state = self.worker.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            drop(state);
            if self.is_stopped() {
                return;
            }
            self.process_queued(core);
            if self.wants_graph() {
                // A failed build is tried again after more vectors have come.
                let _ = self.make_graphs(core, &|| {
                    self.process_queued(core);
                    self.is_stopped()
                });
            }
        }
    }

    /// Catches up if that was requested, and flushes if many vectors are in memory.
    fn process_queued(&self, core: &Arc<Core>) {
        if !std::mem::take(&mut lock(&self.worker.state).is_pending) {
            return;
        }
        // A failure loses nothing, and is tried again after more vectors have come.
        if self.catch_up(core).is_ok() && self.tail_rows.load(Ordering::Relaxed) >= FLUSH_ROWS {
            let _ = self.flush(core, FlushScope::Due);
        }
    }

    /// The vectors of an embedder in a namespace, if there are any.
    pub fn partition(&self, namespace: NamespaceId, embedder: &str) -> Option<Arc<Partition>> {
        let id = PartitionId { namespace, embedder: embedder.into() };
        read_lock(&self.partitions).get(&id).cloned()
    }

    /// The embedders that have vectors in a namespace.
    pub fn embedders(&self, namespace: NamespaceId) -> Vec<Arc<str>> {
        let partitions = read_lock(&self.partitions).clone();
        let ids = partitions.keys().filter(|id| id.namespace == namespace);
        ids.map(|id| id.embedder.clone()).collect()
    }

    /// The embedders that have committed vectors in a namespace.
    pub fn committed_embedders(&self, core: &Arc<Core>, namespace: NamespaceId) -> Result<Vec<String>> {
        self.catch_up(core)?;
        Ok(self.embedders(namespace).iter().map(|embedder| embedder.to_string()).collect())
    }

    /// An owner with the names that callers know.
    pub fn resolve_owner(&self, core: &Core, id: &OwnerId) -> Result<Owner> {
        let (space, key) = match id {
            OwnerId::Snapshot { run, seq } => return Ok(Owner::Snapshot { run: *run, seq: *seq }),
            OwnerId::Key { space, key } => (space, key),
        };
        let known = |names: &KeyspaceNames| names.get(space).map(|(_, name)| name.clone());
        let mut name = known(&read_lock(&self.keyspace_names));
        if name.is_none() {
            self.load_keyspace_names(core)?;
            name = known(&read_lock(&self.keyspace_names));
        }
        let keyspace = name.ok_or_else(|| {
            Error::new(ErrorKind::Damaged, format!("a vector names keyspace {space}, which does not exist"))
        })?;
        Ok(Owner::Key { keyspace, key: key.to_vec() })
    }

    /// The number of the keyspace of this name, if it exists.
    pub fn keyspace_id(&self, core: &Core, namespace: NamespaceId, wanted: &str) -> Result<Option<u32>> {
        let known = |names: &KeyspaceNames| {
            let found = names.iter().find(|(_, (of, name))| *of == namespace && name == wanted);
            found.map(|(id, _)| *id)
        };
        if let Some(known) = known(&read_lock(&self.keyspace_names)) {
            return Ok(Some(known));
        }
        self.load_keyspace_names(core)?;
        Ok(known(&read_lock(&self.keyspace_names)))
    }

    fn load_keyspace_names(&self, core: &Core) -> Result<()> {
        let spaces = core.list_spaces()?;
        let mut names = write_lock(&self.keyspace_names);
        for head in spaces {
            if let SpaceHead::Keyspace { id, namespace, name, .. } = head {
                names.insert(id, (namespace, name));
            }
        }
        Ok(())
    }
}

impl EmbeddingIndex for VectorIndex {
    fn check_dimensions(
        &self,
        core: &Arc<Core>,
        namespace: NamespaceId,
        embedder: &str,
        dimensions: usize,
    ) -> Result<()> {
        let refuse = |known: usize| match known == dimensions {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "a vector of {embedder:?} has {known} dimensions in this namespace, not {dimensions}: give each model its own embedder id"
            ))),
        };
        if let Some(known) = self.partition(namespace, embedder) {
            return refuse(known.dimensions);
        }
        self.catch_up(core)?;
        // Of two concurrent first vectors, the second sees the dimensions of the first under this lock.
        let mut expected = lock(&self.expected_dimensions);
        if let Some(known) = self.partition(namespace, embedder) {
            return refuse(known.dimensions);
        }
        let id = PartitionId { namespace, embedder: embedder.into() };
        refuse(*expected.entry(id).or_insert(dimensions))
    }

    fn note_queued(&self, core: &Arc<Core>) {
        if self.worker.queued.fetch_add(1, Ordering::Relaxed) % WAKE_BATCHES == WAKE_BATCHES - 1 {
            self.wake(core);
        }
    }

    fn stop(&self, core: &Arc<Core>) {
        if self.worker.stop.swap(true, Ordering::AcqRel) {
            return;
        }
        // Notify only after the lock was taken: a thread that is about to sleep holds it until it can be
        // woken.
        let thread = lock(&self.worker.state).thread.take();
        self.worker.changed.notify_all();
        if let Some(thread) = thread {
            // A thread that panicked has already reported that.
            let _ = thread.join();
        }
        if core.is_writer() && self.tail_rows.load(Ordering::Relaxed) >= CLOSE_ROWS {
            // A failure loses nothing: without a file the vectors are read from the log.
            let _ = self.flush(core, FlushScope::Tail);
        }
    }

    fn sweep(&self, core: &Arc<Core>, what: &SweptOwners<'_>) -> Result<()> {
        let swept = self.flush(core, FlushScope::Sweep(*what));
        if self.wants_graph() {
            self.wake(core);
        }
        swept
    }
}

/// Approximate bytes of a vector in memory.
fn row_bytes(dimensions: usize) -> usize {
    5 * dimensions + ROW_BYTES
}
