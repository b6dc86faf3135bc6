//! What is found, and by what.

use crate::among::Among;
use crate::ids::{RunUid, Seqno};

/// Whose embedding a vector is. Of equally near ones the lesser owner comes first: snapshots before keys, by run and
/// number; then keys by keyspace, the older one first, and their bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The snapshot that a run took after frame `seq`.
    Snapshot {
        /// The run.
        run: RunUid,
        /// The frame.
        seq: u32,
    },
    /// What a key holds.
    Key {
        /// The keyspace's name.
        keyspace: String,
        /// The key.
        key: Vec<u8>,
    },
}

/// A vector that is near enough.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Whose it is.
    pub owner: Owner,
    /// The record that it stands in.
    pub seqno: Seqno,
    /// The cosine of the angle between it and the query: 1 for the same direction, -1 for the opposite one.
    pub score: f32,
}

/// What is to be found.
#[derive(Clone, Copy)]
pub struct Search<'a> {
    /// At most so many, the nearest first.
    pub k: usize,
    /// Nothing of a lesser score is given; one of just this score is.
    pub min_score: f32,
    /// Every vector is looked at, whatever that costs: none that is nearer can be missed.
    pub exact: bool,
    /// How many of the nearest a walk through a graph keeps in mind, HNSW's `ef`: more find more, and take longer. At least `k`; `None`: twice `k`,
    /// at least 64.
    pub width: Option<usize>,
    /// Only those of these owners. What each vector is, is looked at once; a search then goes by that.
    pub among: Option<&'a Among>,
    /// Of those, only the ones of owners for which this is true. Called from the searching thread, mostly for the nearest ones only:
    /// for what is not the same from one search to the next, and true of most.
    pub filter: Option<&'a (dyn Fn(&Owner) -> bool + Sync)>,
}

impl Default for Search<'_> {
    /// The ten nearest, however far.
    fn default() -> Self {
        Self { k: 10, min_score: -1.0, exact: false, width: None, among: None, filter: None }
    }
}

impl std::fmt::Debug for Search<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Search")
            .field("k", &self.k)
            .field("min_score", &self.min_score)
            .field("exact", &self.exact)
            .field("width", &self.width)
            .field("among", &self.among)
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

/// A vector's owner and the record that it came with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub seqno: Seqno,
    pub owner: OwnerId,
}
