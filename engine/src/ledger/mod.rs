//! Evidence from the ledger: checkpoints to keep elsewhere, proofs to hand out, the comparison of a store
//! with a checkpoint, and the list of gaps.
//!
//! The log keeps the tree (`log::ledger`), and of it only the right edge. Everything here is computed in one
//! pass over the log, in memory that does not depend on the log's length. `walk` visits the leaves in order;
//! `tree` selects the spans of leaves whose roots are needed and collects those roots.
//!
//! Invariant: nothing from the index or a footer is trusted unless the pass computes it again. docs/format.md
//! describes the same for checkers that share no code with this module; `annals-proof` is one.

mod checkpoint;
mod compare;
mod gaps;
mod json;
mod prove;
mod run_checker;
mod tree;
mod walk;

pub use crate::ids::NodeHash;
pub use checkpoint::{Checkpoint, Mark, PartCounts, RecordCounts, Signature};
pub use compare::{CheckpointDifference, Comparison, HistoryPart};
pub use gaps::{Gap, GapKind};
pub use prove::Proof;

pub use crate::trace::{ErasureReport, RunPart, UnexplainedErasure, run_numbers};
