//! The index: from a key to the places of its versions. It is a cache of the log: without it the log is read
//! again.
//!
//! New entries go into memory (`memtable`). Past a bound, memory is frozen, and a separate thread (`upkeep`)
//! writes it into tables (`flush`), which it merges by size. `levels` is what a reader sees of all that at
//! one moment, and `reads` finds keys in it. `repair` rebuilds a damaged table, and `rebuild` all tables
//! after a compaction. The log's writer calls `sink`.

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
