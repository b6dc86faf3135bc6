//! The ledger's faces: checkpoints to keep elsewhere, proofs to hand out, the comparison of a store with a checkpoint,
//! and the list of gaps.
//!
//! The tree itself is the log's (`log::ledger`), which keeps only its right edge. What is asked for here is computed
//! in one pass over the log, in memory that does not follow its length: `walk` hands out leaf after leaf, `tree` says
//! of which spans of leaves the roots are wanted and collects them. Nothing is taken from the index or from a footer
//! that the pass does not compute again. docs/format.md says the same for checkers that share no code with this;
//! `annals-proof` is one.

mod checkpoint;
mod compare;
mod gaps;
mod json;
mod prove;
mod tree;
mod walk;

pub use checkpoint::{Checkpoint, Mark, Signature};
pub use compare::{CheckpointDifference, Comparison, HistoryPart};
pub use gaps::{Gap, GapKind};
pub use prove::Proof;
