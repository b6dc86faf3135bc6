//! The log: segments, manifest, writer thread, recovery, chains and ledger.
//!
//! Invariants: a batch is applied whole or not at all; seqnos have no gaps; commits acknowledged with
//! [`Durability::Disk`] are synced; synced bytes are never cut; a sealed segment never changes.

pub mod activity;
pub mod batch;
pub mod cursor;
pub mod erased;
pub mod erasure;
pub mod inbox;
pub mod inline;
pub mod joined;
pub mod layout;
pub mod leaf_hash;
pub mod ledger;
pub mod manifest;
pub mod names;
pub mod open;
pub mod parts;
pub mod paths;
pub mod queue;
pub mod record;
pub mod rewrite;
pub mod room;
pub mod salts;
pub mod scan;
pub mod segments;
pub mod sequence;
pub mod spin_wait;
pub mod sums;
pub mod synced;
#[cfg(all(test, annals_shuttle))]
mod tests;
pub mod ticket;
pub mod totals;
pub mod writer;
pub mod writer_lock;

pub use manifest::LogCut;
pub use open::Damage;
pub use paths::socket_paths;
pub use queue::Durability;
pub use ticket::Ticket;
