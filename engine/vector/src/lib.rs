//! An internal crate; programs use `annals`. Finding vectors: the embeddings of snapshots and keys, by how near they are to another vector.
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
#![allow(missing_docs, reason = "an internal crate: `annals` documents what programs see of it")]

pub mod among;
pub mod block;
#[cfg(feature = "graphs")]
pub mod build;
pub mod files;
pub mod floor;
#[cfg(any(test, fuzzing, feature = "testing"))]
pub mod fuzz;
pub mod graph;
pub mod graphs;
pub mod item;
pub mod kernel;
pub mod layout;
pub mod merged;
pub mod nearest;
pub mod partition;
pub mod quantise;
pub mod segment;
pub mod source;
pub mod stopped;

pub mod writer;

use annals_store::{codec, error, ids, io, kv, log, sync};

pub use among::Among;

pub use floor::Floor;
pub use item::{Found, Owner, Search};
pub use nearest::nearest;
pub use source::vectors_at;
