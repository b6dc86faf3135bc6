//! The index: from a key to the places of its versions. It is a cache of the log: without it the log is read again.
//!
//! New entries stand in memory (`memtable`). Past a bound, memory is frozen and a thread of its own (`upkeep`) writes
//! it down (`flush`) into tables, which it merges by size; `levels` is what a reader sees of all that at one moment,
//! `reads` how a key is found in it, `mend`
//! how a table that is found damaged is made again, `remake` how all are after a compaction, `sink` what the log's writer calls.

mod flush;
mod levels;
mod memtable;
mod mend;
mod reads;
mod remake;
mod sink;
#[cfg(test)]
mod tests;
mod upkeep;

pub use levels::{Covered, Index, Limits};
pub use reads::{Hit, as_slice, prefix_end};
pub use remake::{Base, Remade, Remap};
