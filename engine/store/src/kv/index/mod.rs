//! The index: from a key to the places of its versions. It is a cache of the log: without it the log is read
//! again.
//!
//! New entries go into memory (`memtable`). Past a bound, memory is frozen, and a thread (`upkeep`) writes it
//! into a table (`flush`). Another thread merges tables by size (`merges`). `levels` is what a reader sees of all that at
//! one moment, and `reads` finds keys in it. `repair` rebuilds a damaged table, and `rebuild` all tables
//! after a compaction. `snapshot` is the index at one moment, for a comparison with the log. The log's writer calls `sink`.

mod flush;
mod levels;
mod memtable;
mod merges;
mod reads;
mod rebuild;
mod repair;
mod sink;
mod snapshot;
#[cfg(test)]
mod tests;
mod upkeep;

pub use levels::{Index, IndexCoverage, IndexLimits};
pub use reads::{IndexHit, bound_as_slice, prefix_end};
pub use rebuild::{CompactionBase, PlaceMap, RebuiltTable};
pub use snapshot::IndexSnapshot;
