//! Tapes: a run as one file that stands alone, for git, mail, another machine.
//!
//! - `layout` is what a tape is: its limits, its head, what can be wrong with one.
//! - `window` is the bodies that a later one may be coded against; writer and reader keep the same.
//! - `write` makes a tape of a run, `read` checks one, `record` records one into a store.
//!
//! Invariants: a tape is read whole and every hash of it compared before anything is recorded. A run gives the same bytes
//! wherever it is exported: nothing in a tape is of the store that it came from.
//!
//! Bodies are not compressed: git, zip and the wire do that, and a changed tape is then a small change. What a body
//! repeats of an earlier one is a reference.
//!
//! Left out on purpose: the times at which the parts of an unfinished output came; reading without the whole tape in memory.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod layout;
mod read;
mod record;
#[cfg(test)]
mod tests;
mod window;
mod write;

pub use layout::{REDACTED_TAG, TAPE_BYTES_MAX, TapeInfo};
pub use read::Tape;
pub use write::TapeRedaction;
