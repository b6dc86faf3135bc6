//! Finding vectors: the embeddings of snapshots and keys, by how near they are to another vector.
//!
//! The log is the truth, and the index leads to every record that has vectors by its number. So this floor is a cache that
//! **catches up**: before a search it reads what was committed since it last did, and needs nothing of whoever writes.
//! Vectors stand in partitions by namespace and embedder (`partition`): a tail in memory (`block`), which is scanned.
//!
//! A score is the cosine, from a dot product of one fixed order (`kernel`), so that it and what passes a threshold do not
//! depend on the machine. Int8 copies (`quantise`) only say which vectors are worth that: their error has a bound, so a
//! scan loses nothing.
//!
//! Whether a vector still lives is the index's to say: its owner's newest version must be the one that it came with.

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
