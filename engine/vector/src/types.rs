//! Owners, searches, and what a search finds.

use serde::{Deserialize, Serialize};

use crate::among::OwnerFilter;
use crate::ids::Seqno;

/// A run's internal number, unique in its store and never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RunUid(pub u64);

/// The owner of an embedding. Hits of equal score come in the order of their owners: snapshots before keys;
/// snapshots by run and frame; keys by keyspace, the older one first, then by their bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The snapshot that a run took after frame `seq`.
    Snapshot {
        /// The run.
        run: RunUid,
        /// The frame.
        seq: u32,
    },
    /// The value of a key.
    Key {
        /// The keyspace's name.
        keyspace: String,
        /// The key.
        key: Vec<u8>,
    },
}

/// A vector that a search has found.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchHit {
    /// Its owner.
    pub owner: Owner,
    /// The record that holds it.
    pub seqno: Seqno,
    /// The cosine of the angle between it and the query: 1 for the same direction, -1 for the opposite one.
    pub score: f32,
}

/// What a search looks for.
#[derive(Clone, Copy)]
pub struct Search<'a> {
    /// Maximum number of hits; the nearest come first.
    pub k: usize,
    /// Minimum score; scores equal to it are included.
    pub min_score: f32,
    /// Compare every vector, whatever it costs: no nearer one can be missed.
    pub exact: bool,
    /// How many of the nearest a walk through a graph keeps (HNSW's `ef`): more find more, and take longer.
    /// At least `k`. `None`: twice `k`, at least 64.
    pub width: Option<usize>,
    /// Only vectors of these owners. The filter is evaluated once for each vector, and later searches use the
    /// result.
    pub owners: Option<&'a OwnerFilter>,
    /// Of those, only vectors of owners for which this is true. It is called from the searching thread,
    /// mostly for the nearest vectors. Use it for conditions that change from one search to the next and that
    /// most owners meet.
    pub filter: Option<&'a (dyn Fn(&Owner) -> bool + Sync)>,
}

impl Default for Search<'_> {
    /// The ten nearest, however far.
    fn default() -> Self {
        Self { k: 10, min_score: -1.0, exact: false, width: None, owners: None, filter: None }
    }
}

impl std::fmt::Debug for Search<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Search")
            .field("k", &self.k)
            .field("min_score", &self.min_score)
            .field("exact", &self.exact)
            .field("width", &self.width)
            .field("owners", &self.owners)
            .field("filter", &self.filter.is_some())
            .finish()
    }
}

/// An owner as the index knows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OwnerId {
    Snapshot { run: RunUid, seq: u32 },
    Key { space: u32, key: Box<[u8]> },
}

/// A vector's owner, and the record that holds the vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VectorOrigin {
    pub seqno: Seqno,
    pub owner: OwnerId,
}
