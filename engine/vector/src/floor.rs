//! All partitions of a store, and catching up with its log.
//!
//! Invariants: one thread at a time catches up; `upto` is raised once every vector up to there is in its partition; so
//! whoever reads `upto` before a partition's levels finds in them all vectors up to it, and perhaps later ones.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, Weak};

use crate::error::{Error, ErrorKind, Result};
use crate::files::{CLOSE_ROWS, FLUSH_ROWS, What};
use crate::ids::{NamespaceId, RunUid, Seqno};
use crate::item::{Item, Owner, OwnerId};
use crate::kv::core::Core;
use crate::kv::embeddings::Finder;
use crate::log::manifest::VectorList;
use crate::log::record::SpaceHead;
use crate::log::segments::{lock, read, write};
use crate::partition::{Partition, PartitionId};
use crate::source::{self, Runs};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Condvar, JoinHandle, Mutex, RwLock, SCHEDULED};

/// The thread looks after this many batches with vectors.
pub const WAKE_BATCHES: u64 = if SCHEDULED { 2 } else { 64 };

/// The thread that keeps catching up short, and writes files.
#[derive(Debug, Default)]
struct Worker {
    state: Mutex<WorkerState>,
    changed: Condvar,
    stop: AtomicBool,
    /// Batches with vectors.
    queued: AtomicU64,
}

#[derive(Debug, Default)]
struct WorkerState {
    thread: Option<JoinHandle<()>>,
    wanted: bool,
}

/// Records that are read together.
const PAGE: usize = 1024;
/// What vectors in memory take, about, when they are written down before more are read from the log.
const MEMORY_BYTES: usize = 128 << 20;
/// Bytes of a vector in memory beside its numbers and codes, about.
const ROW_BYTES: usize = 96;

/// Keyspaces, by number.
type Names = HashMap<u32, (NamespaceId, String)>;

pub type Partitions = BTreeMap<PartitionId, Arc<Partition>>;

/// See the module.
#[derive(Debug, Default)]
pub struct Floor {
    pub me: Weak<Floor>,
    pub partitions: RwLock<Arc<Partitions>>,
    /// The last record that was looked at.
    pub upto: AtomicU64,
    pub catching: Mutex<Runs>,
    /// What the manifest lists. Held by whoever writes files or gives them up.
    pub files: Mutex<VectorList>,
    /// Raised before and after all files were given up.
    pub losses: AtomicU64,
    /// Vectors in memory,
    tail_rows: AtomicUsize,
    /// and what they take there, about.
    tail_bytes: AtomicUsize,
    /// `MEMORY_BYTES`; tests lower it.
    pub memory_bytes: AtomicUsize,
    /// Held by whoever makes a graph.
    pub making: Mutex<()>,
    /// The file of which a graph is in the making; 0 for none.
    pub pinned: AtomicU64,
    /// A large file has no graph.
    pub lacks_graph: AtomicBool,
    worker: Worker,
    /// Dimensions of vectors on their way into the log, of embedders that have none there yet.
    expected: Mutex<HashMap<PartitionId, usize>>,
    names: RwLock<Names>,
}

impl Floor {
    /// A floor that has seen nothing of the log.
    pub fn empty() -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            memory_bytes: AtomicUsize::new(MEMORY_BYTES),
            ..Self::default()
        })
    }

    /// The last record whose vectors are in their partitions.
    pub fn upto(&self) -> Seqno {
        Seqno(self.upto.load(Ordering::Acquire))
    }

    /// Takes in what was committed since it last did. What is more than memory should hold goes into files on the way, if this
    /// process writes.
    pub fn catch_up(&self, core: &Arc<Core>) -> Result<()> {
        let mut most = if core.is_writer() { self.memory_bytes() } else { usize::MAX };
        while !self.catch_up_some(core, most)? {
            // A disk that is full is no reason to find nothing.
            if self.flush(core, What::Due).is_err() {
                most = usize::MAX;
            }
        }
        Ok(())
    }

    /// The same until so much is in memory; whether that was all.
    pub fn catch_up_some(&self, core: &Core, most: usize) -> Result<bool> {
        if self.upto() >= core.index.visible() {
            return Ok(true);
        }
        let mut runs = lock(&self.catching);
        let _pin = core.pin();
        // Once it is this thread's turn, another one may have done it.
        let visible = core.index.visible();
        let mut after = self.upto();
        while after < visible {
            if self.tail_bytes.load(Ordering::Relaxed) >= most {
                return Ok(false);
            }
            let (places, more) = source::places(core, after, visible, PAGE)?;
            let mut fresh: BTreeMap<PartitionId, Vec<(Item, Vec<f32>)>> = BTreeMap::new();
            let last = places.last().map(|(seqno, _)| *seqno);
            for (seqno, place) in places {
                let Some(found) = source::read(core, &mut runs, seqno, place)? else { continue };
                for (embedder, vector) in found.embeddings {
                    let id = PartitionId { namespace: found.namespace, embedder: embedder.into() };
                    fresh.entry(id).or_default().push((found.item.clone(), vector));
                }
            }
            for (id, vectors) in fresh {
                self.take_in(id, vectors);
            }
            after = if more { last.unwrap_or(visible) } else { visible };
            self.upto.store(after.0, Ordering::Release);
        }
        Ok(true)
    }

    /// Puts vectors into their partition, which the first one makes; those of other dimensions are passed over.
    fn take_in(&self, id: PartitionId, mut vectors: Vec<(Item, Vec<f32>)>) {
        let known = read(&self.partitions).get(&id).cloned();
        let partition = match known {
            Some(known) => known,
            None => {
                let Some((_, first)) = vectors.first() else { return };
                let made = Arc::new(Partition::new(first.len()));
                lock(&self.expected).remove(&id);
                Arc::make_mut(&mut write(&self.partitions)).insert(id, made.clone());
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
    pub fn count_tail(&self) {
        let partitions = read(&self.partitions).clone();
        let (mut rows, mut bytes) = (0, 0);
        for partition in partitions.values() {
            let here = partition.levels().tail_rows();
            rows += here;
            bytes += here * row_bytes(partition.dimensions);
        }
        self.tail_rows.store(rows, Ordering::Relaxed);
        self.tail_bytes.store(bytes, Ordering::Relaxed);
    }

    /// How often files were given up; odd while they are.
    pub fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    pub fn is_stopped(&self) -> bool {
        self.worker.stop.load(Ordering::Acquire)
    }

    /// Lets the thread look whether there is something to do, which the first call starts.
    pub fn wake(&self, core: &Arc<Core>) {
        if !core.is_writer() || self.is_stopped() {
            return;
        }
        let mut state = lock(&self.worker.state);
        state.wanted = true;
        if state.thread.is_none()
            && let Some(me) = self.me.upgrade()
        {
            let core = core.clone();
            // Where the system has no thread to give, searches catch up and files wait for the close.
            state.thread = self.io_spawn(&core.clone(), Box::new(move || me.work(&core)));
        }
        drop(state);
        self.worker.changed.notify_all();
    }

    /// Whether there is a graph to build, and this program can.
    pub fn wants_graph(&self) -> bool {
        cfg!(feature = "graphs") && self.lacks_graph.load(Ordering::Relaxed)
    }

    fn io_spawn(&self, core: &Core, body: Box<dyn FnOnce() + Send>) -> Option<JoinHandle<()>> {
        core.io.spawn("annals-vectors", body).ok()
    }

    fn work(&self, core: &Arc<Core>) {
        loop {
            let mut state = lock(&self.worker.state);
            while !state.wanted && !self.is_stopped() {
                state = self.worker.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            drop(state);
            if self.is_stopped() {
                return;
            }
            self.tend(core);
            if self.wants_graph() {
                // What fails is tried again when more has come.
                let _ = self.make_graphs(core, &|| {
                    self.tend(core);
                    self.is_stopped()
                });
            }
        }
    }

    /// Takes in what has come since it was last wanted, and writes it down where that is much.
    fn tend(&self, core: &Arc<Core>) {
        if !std::mem::take(&mut lock(&self.worker.state).wanted) {
            return;
        }
        // What fails loses nothing, and is tried again when more has come.
        if self.catch_up(core).is_ok() && self.tail_rows.load(Ordering::Relaxed) >= FLUSH_ROWS {
            let _ = self.flush(core, What::Due);
        }
    }

    /// The vectors of an embedder in a namespace, if there are any.
    pub fn partition(&self, namespace: NamespaceId, embedder: &str) -> Option<Arc<Partition>> {
        let id = PartitionId { namespace, embedder: embedder.into() };
        read(&self.partitions).get(&id).cloned()
    }

    /// The embedders that have vectors in a namespace.
    pub fn embedders(&self, namespace: NamespaceId) -> Vec<Arc<str>> {
        let partitions = read(&self.partitions).clone();
        let ids = partitions.keys().filter(|id| id.namespace == namespace);
        ids.map(|id| id.embedder.clone()).collect()
    }

    /// The same of all that is committed.
    pub fn embedders_of(&self, core: &Arc<Core>, namespace: NamespaceId) -> Result<Vec<String>> {
        self.catch_up(core)?;
        Ok(self.embedders(namespace).iter().map(|embedder| embedder.to_string()).collect())
    }

    /// An owner by the names that callers know.
    pub fn owner(&self, core: &Core, id: &OwnerId) -> Result<Owner> {
        let (space, key) = match id {
            OwnerId::Snapshot { run, seq } => return Ok(Owner::Snapshot { run: *run, seq: *seq }),
            OwnerId::Key { space, key } => (space, key),
        };
        let known = |names: &Names| names.get(space).map(|(_, name)| name.clone());
        let mut name = known(&read(&self.names));
        if name.is_none() {
            self.learn_names(core)?;
            name = known(&read(&self.names));
        }
        let keyspace = name.ok_or_else(|| {
            Error::new(ErrorKind::Damaged, format!("a vector is of keyspace {space}, and there is none"))
        })?;
        Ok(Owner::Key { keyspace, key: key.to_vec() })
    }

    /// The number of a keyspace, if there is one of this name.
    pub fn keyspace(&self, core: &Core, namespace: NamespaceId, wanted: &str) -> Result<Option<u32>> {
        let known = |names: &Names| {
            let found = names.iter().find(|(_, (of, name))| *of == namespace && name == wanted);
            found.map(|(id, _)| *id)
        };
        if let Some(known) = known(&read(&self.names)) {
            return Ok(Some(known));
        }
        self.learn_names(core)?;
        Ok(known(&read(&self.names)))
    }

    fn learn_names(&self, core: &Core) -> Result<()> {
        let spaces = core.spaces_known()?;
        let mut names = write(&self.names);
        for head in spaces {
            if let SpaceHead::Keyspace { id, namespace, name, .. } = head {
                names.insert(id, (namespace, name));
            }
        }
        Ok(())
    }
}

impl Finder for Floor {
    fn check(
        &self,
        core: &Arc<Core>,
        namespace: NamespaceId,
        embedder: &str,
        dimensions: usize,
    ) -> Result<()> {
        let refuse = |known: usize| match known == dimensions {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "a vector of {embedder:?} has {known} dimensions in this namespace, not {dimensions}: give another model an id of its own"
            ))),
        };
        if let Some(known) = self.partition(namespace, embedder) {
            return refuse(known.dimensions);
        }
        self.catch_up(core)?;
        // Under this lock, so that of two first ones the second meets the other.
        let mut expected = lock(&self.expected);
        if let Some(known) = self.partition(namespace, embedder) {
            return refuse(known.dimensions);
        }
        let id = PartitionId { namespace, embedder: embedder.into() };
        refuse(*expected.entry(id).or_insert(dimensions))
    }

    fn queued(&self, core: &Arc<Core>) {
        if self.worker.queued.fetch_add(1, Ordering::Relaxed) % WAKE_BATCHES == WAKE_BATCHES - 1 {
            self.wake(core);
        }
    }

    fn stop(&self, core: &Arc<Core>) {
        if self.worker.stop.swap(true, Ordering::AcqRel) {
            return;
        }
        // Behind the lock, and only then: a thread that has looked and goes to sleep holds it until it can be woken.
        let thread = lock(&self.worker.state).thread.take();
        self.worker.changed.notify_all();
        if let Some(thread) = thread {
            // One that panicked has said so.
            let _ = thread.join();
        }
        if core.is_writer() && self.tail_rows.load(Ordering::Relaxed) >= CLOSE_ROWS {
            // They are in the log; without a file they are read from there.
            let _ = self.flush(core, What::Tail);
        }
    }

    fn sweep(&self, core: &Arc<Core>, must_go: &[RunUid]) -> Result<()> {
        let swept = self.flush(core, What::Without(must_go));
        if self.wants_graph() {
            self.wake(core);
        }
        swept
    }
}

/// What a vector takes in memory, about.
fn row_bytes(dimensions: usize) -> usize {
    5 * dimensions + ROW_BYTES
}
