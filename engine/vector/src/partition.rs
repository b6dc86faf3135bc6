//! The vectors of one embedder in one namespace.

use std::sync::Arc;

use crate::block::VectorBlock;
use crate::ids::{NamespaceId, Seqno};
use crate::log::segments::{read_lock, write_lock};
use crate::sync::{RwLock, rank};
use crate::types::VectorOrigin;
use crate::vector_file::OpenVectorFile;

/// Identifies a partition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId {
    pub namespace: NamespaceId,
    pub embedder: Arc<str>,
}

/// The contents of a partition at one moment. They are replaced as a whole, so that a search holds no lock.
#[derive(Debug, Clone, Default)]
pub struct PartitionLevels {
    /// Files, oldest first.
    pub segments: Vec<Arc<OpenVectorFile>>,
    /// Vectors after those in the files, oldest first. All blocks but the last are full.
    pub tail: Vec<Arc<VectorBlock>>,
    /// Vectors that were dead as of this record may be missing. A search as of an earlier one needs them.
    pub as_of: Seqno,
}

impl PartitionLevels {
    pub fn tail_rows(&self) -> usize {
        self.tail.iter().map(|block| block.items.len()).sum()
    }
}

/// See the module.
#[derive(Debug)]
pub struct Partition {
    pub dimensions: usize,
    levels: RwLock<Arc<PartitionLevels>, { rank::VECTOR_LEVELS }>,
}

impl Partition {
    pub fn new(dimensions: usize) -> Self {
        Self { dimensions, levels: RwLock::default() }
    }

    /// The current contents.
    pub fn levels(&self) -> Arc<PartitionLevels> {
        read_lock(&self.levels).clone()
    }

    /// Adds vectors. Only the thread that catches up calls this.
    pub fn push(&self, vectors: Vec<(VectorOrigin, Vec<f32>)>) {
        let mut levels = write_lock(&self.levels);
        let levels = Arc::make_mut(&mut levels);
        for (item, vector) in vectors {
            match levels.tail.last_mut().filter(|block| !block.is_full()) {
                Some(block) => Arc::make_mut(block).push(item, &vector),
                None => {
                    let mut block = VectorBlock::default();
                    block.push(item, &vector);
                    levels.tail.push(Arc::new(block));
                }
            }
        }
    }

    /// Replaces all files, and the tail up to a record.
    pub fn replace(&self, segments: Vec<Arc<OpenVectorFile>>, upto: Seqno) {
        let mut levels = write_lock(&self.levels);
        let mut tail: Vec<Arc<VectorBlock>> = Vec::new();
        for block in &levels.tail {
            match block.items.first().is_none_or(|first| first.seqno > upto) {
                true => tail.push(block.clone()),
                false => tail.extend(block.rows_after(upto, self.dimensions).map(Arc::new)),
            }
        }
        let as_of = levels.as_of.max(upto);
        *levels = Arc::new(PartitionLevels { segments, tail, as_of });
    }

    /// Drops all vectors: they will be read again.
    pub fn clear(&self) {
        *write_lock(&self.levels) = Arc::default();
    }
}
