//! An internal crate: programs use `annals`. Vector search: finds the embeddings of snapshots and keys that are nearest to a vector.
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
#![allow(missing_docs, reason = "an internal crate: `annals` documents what programs see of it")]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

pub mod among;
pub mod block;
#[cfg(feature = "graphs")]
pub mod build;
pub mod files;
#[cfg(any(test, fuzzing, feature = "testing"))]
pub mod fuzz;
pub mod graph;
pub mod graphs;
pub mod index;
pub mod kernel;
pub mod layout;
pub mod merged;
pub mod nearest;
pub mod partition;
pub mod quantise;
pub mod search_error;
pub mod source;
pub mod types;
pub mod vector_file;

pub mod writer;

use annals_store::{codec, error, ids, io, kv, log, sync};

pub use among::OwnerFilter;

pub use index::VectorIndex;
pub use nearest::nearest;
pub use source::vectors_at;
pub use types::{Owner, RunUid, Search, SearchHit};
