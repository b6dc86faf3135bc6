//! The vectors of one embedder in one namespace.

use std::sync::Arc;

use crate::block::Block;
use crate::ids::{NamespaceId, Seqno};
use crate::item::Item;
use crate::log::segments::{read, write};
use crate::segment::Segment;
use crate::sync::RwLock;

/// Identifies a partition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId {
    pub namespace: NamespaceId,
    pub embedder: Arc<str>,
}

/// The contents of a partition at one moment. They are replaced as a whole, so that a search holds no lock.
#[derive(Debug, Clone, Default)]
pub struct Levels {
    /// Files, oldest first.
    pub segments: Vec<Arc<Segment>>,
    /// Vectors after those in the files, oldest first. All blocks but the last are full.
    pub tail: Vec<Arc<Block>>,
}

impl Levels {
    pub fn tail_rows(&self) -> usize {
        self.tail.iter().map(|block| block.items.len()).sum()
    }
}

/// See the module.
#[derive(Debug)]
pub struct Partition {
    pub dimensions: usize,
    levels: RwLock<Arc<Levels>>,
}

impl Partition {
    pub fn new(dimensions: usize) -> Self {
        Self { dimensions, levels: RwLock::default() }
    }

    /// The current contents.
    pub fn levels(&self) -> Arc<Levels> {
        read(&self.levels).clone()
    }

    /// Adds vectors. Only the thread that catches up calls this.
    pub fn push(&self, vectors: Vec<(Item, Vec<f32>)>) {
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
    pub fn replace(&self, segments: Vec<Arc<Segment>>, upto: Seqno) {
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
    pub fn clear(&self) {
        *write(&self.levels) = Arc::default();
    }
}
