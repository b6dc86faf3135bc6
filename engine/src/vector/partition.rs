//! The vectors of one embedder in one namespace.

use std::sync::Arc;

use crate::ids::{NamespaceId, Seqno};
use crate::log::segments::{read, write};
use crate::sync::RwLock;
use crate::vector::block::Block;
use crate::vector::item::Item;
use crate::vector::segment::Segment;

/// Identifies a partition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PartitionId {
    pub(super) namespace: NamespaceId,
    pub(super) embedder: Arc<str>,
}

/// The contents of a partition at one moment. They are replaced as a whole, so that a search holds no lock.
#[derive(Debug, Clone, Default)]
pub(super) struct Levels {
    /// Files, oldest first.
    pub(super) segments: Vec<Arc<Segment>>,
    /// Vectors after those in the files, oldest first. All blocks but the last are full.
    pub(super) tail: Vec<Arc<Block>>,
}

impl Levels {
    pub(super) fn tail_rows(&self) -> usize {
        self.tail.iter().map(|block| block.items.len()).sum()
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Partition {
    pub(super) dimensions: usize,
    levels: RwLock<Arc<Levels>>,
}

impl Partition {
    pub(super) fn new(dimensions: usize) -> Self {
        Self { dimensions, levels: RwLock::default() }
    }

    /// The current contents.
    pub(super) fn levels(&self) -> Arc<Levels> {
        read(&self.levels).clone()
    }

    /// Adds vectors. Only the thread that catches up calls this.
    pub(super) fn push(&self, vectors: Vec<(Item, Vec<f32>)>) {
        let mut levels = write(&self.levels);
        let levels = Arc::make_mut(&mut levels);
        for (item, vector) in vectors {
            match levels.tail.last_mut().filter(|block| !block.is_full()) {
                Some(block) => Arc::make_mut(block).push(item, &vector),
                None => {
                    let mut block = Block::default();
                    block.push(item, &vector);
                    levels.tail.push(Arc::new(block));
                }
            }
        }
    }

    /// Replaces all files, and the tail up to a record.
    pub(super) fn replace(&self, segments: Vec<Arc<Segment>>, upto: Seqno) {
        let mut levels = write(&self.levels);
        let mut tail: Vec<Arc<Block>> = Vec::new();
        for block in &levels.tail {
            match block.items.first().is_none_or(|first| first.seqno > upto) {
                true => tail.push(block.clone()),
                false => tail.extend(block.after(upto, self.dimensions).map(Arc::new)),
            }
        }
        *levels = Arc::new(Levels { segments, tail });
    }

    /// Drops all vectors: they will be read again.
    pub(super) fn clear(&self) {
        *write(&self.levels) = Arc::default();
    }
}
