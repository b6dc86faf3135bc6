//! The log: segments, manifest, writer thread, recovery, chains and ledger.
//!
//! Invariants: a batch is applied whole or not at all; seqnos have no gaps; commits acknowledged with
//! [`Durability::Disk`] are synced; synced bytes are never cut; a sealed segment never changes.

pub(crate) mod activity;
pub(crate) mod batch;
pub(crate) mod cursor;
pub(crate) mod erased;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub(crate) mod layout;
pub(crate) mod ledger;
pub(crate) mod manifest;
pub(crate) mod open;
pub(crate) mod parts;
pub(crate) mod paths;
pub(crate) mod patience;
pub(crate) mod queue;
pub(crate) mod record;
pub(crate) mod rewrite;
pub(crate) mod segments;
pub(crate) mod sequence;
pub(crate) mod sums;
#[cfg(test)]
mod tests;
pub(crate) mod ticket;
pub(crate) mod totals;
pub(crate) mod writer;

pub use open::Damage;
pub use paths::socket_paths;
pub use queue::Durability;
pub use ticket::Ticket;
