//! All partitions of a store, and catching up with its log.
//!
//! Invariants: one thread at a time catches up; `upto` is raised once every vector up to there is in its partition; so
//! whoever reads `upto` before a partition's levels finds in them all vectors up to it, and perhaps later ones.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{NamespaceId, Seqno};
use crate::kv::core::Core;
use crate::kv::embeddings::Finder;
use crate::log::record::SpaceHead;
use crate::log::segments::{lock, read, write};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, RwLock};
use crate::vector::item::{Item, Owner, OwnerId};
use crate::vector::partition::{Partition, PartitionId};
use crate::vector::source::{self, Runs};

/// Records that are read together.
const PAGE: usize = 1024;

type Partitions = BTreeMap<PartitionId, Arc<Partition>>;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Floor {
    partitions: RwLock<Arc<Partitions>>,
    /// The last record that was looked at.
    upto: AtomicU64,
    catching: Mutex<Runs>,
    /// Dimensions of vectors on their way into the log, of embedders that have none there yet.
    expected: Mutex<HashMap<PartitionId, usize>>,
    /// Names of keyspaces.
    names: RwLock<HashMap<u32, String>>,
}

impl Floor {
    /// The last record whose vectors are in their partitions.
    pub(super) fn upto(&self) -> Seqno {
        Seqno(self.upto.load(Ordering::Acquire))
    }

    /// Takes in what was committed since it last did.
    pub(super) fn catch_up(&self, core: &Core) -> Result<()> {
        if self.upto() >= core.index.visible() {
            return Ok(());
        }
        let mut runs = lock(&self.catching);
        // Once it is this thread's turn, another one may have done it.
        let visible = core.index.visible();
        let mut after = self.upto();
        while after < visible {
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
        Ok(())
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
        partition.push(vectors);
    }

    /// The vectors of an embedder in a namespace, if there are any.
    pub(super) fn partition(&self, namespace: NamespaceId, embedder: &str) -> Option<Arc<Partition>> {
        let id = PartitionId { namespace, embedder: embedder.into() };
        read(&self.partitions).get(&id).cloned()
    }

    /// The embedders that have vectors in a namespace.
    pub(super) fn embedders(&self, namespace: NamespaceId) -> Vec<Arc<str>> {
        let partitions = read(&self.partitions).clone();
        let ids = partitions.keys().filter(|id| id.namespace == namespace);
        ids.map(|id| id.embedder.clone()).collect()
    }

    /// An owner by the names that callers know.
    pub(super) fn owner(&self, core: &Core, id: &OwnerId) -> Result<Owner> {
        let (space, key) = match id {
            OwnerId::Snapshot { run, seq } => return Ok(Owner::Snapshot { run: *run, seq: *seq }),
            OwnerId::Key { space, key } => (space, key),
        };
        let known = read(&self.names).get(space).cloned();
        let keyspace = match known {
            Some(name) => name,
            None => {
                let mut names = write(&self.names);
                for head in core.spaces_known()? {
                    if let SpaceHead::Keyspace { id, name, .. } = head {
                        names.insert(id, name);
                    }
                }
                names.get(space).cloned().ok_or_else(|| {
                    Error::new(ErrorKind::Damaged, format!("a vector is of keyspace {space}, and there is none"))
                })?
            }
        };
        Ok(Owner::Key { keyspace, key: key.to_vec() })
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

    fn queued(&self, _core: &Arc<Core>) {}

    fn stop(&self) {}
}
