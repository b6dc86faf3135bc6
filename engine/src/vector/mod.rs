//! Vector search: finds the embeddings of snapshots and keys that are nearest to a vector.
//!
//! The log is the truth, and the index leads to every record that has vectors by its seqno. So this module is
//! a cache that **catches up**: before a search it reads what was committed since it last did. Writers need
//! not take part. Vectors are in partitions by namespace and embedder (`partition`), the newest in memory
//! (`block`), where they are scanned.
//!
//! A score is the cosine, from a dot product of one fixed order (`kernel`). So scores, and which of them pass
//! a threshold, do not depend on the machine. Int8 codes (`quantise`) only select the vectors that are worth
//! an exact score. Their error has a bound, so that a scan loses nothing.
//!
//! The index decides whether a vector still lives: its owner's newest version must be the one that it came
//! with.

mod among;
mod block;
#[cfg(feature = "graphs")]
mod build;
mod files;
mod floor;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod graph;
mod graphs;
mod item;
pub(crate) mod kernel;
mod layout;
mod merged;
mod nearest;
mod partition;
mod quantise;
mod segment;
mod source;
mod stopped;
#[cfg(test)]
mod tests;
mod writer;

pub use among::Among;

pub(crate) use floor::Floor;
pub use item::{Found, Owner, Search};
pub(crate) use nearest::nearest;
pub(crate) use source::vectors_at;
