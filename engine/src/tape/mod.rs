//! Tapes: a run as one self-contained file, for git, mail or another machine.
//!
//! - `layout`: the limits, head and errors of a tape.
//! - `window`: the earlier bodies that a body may be coded against; writer and reader keep the same window.
//! - `write` makes a tape of a run, `read` checks a tape, `record` records a tape into a store.
//!
//! Invariants: a tape is read whole and every hash in it is compared before anything is recorded. A run gives
//! the same bytes wherever it is exported: a tape contains nothing that depends on its store.
//!
//! Bodies are not compressed. Git, zip and transports compress them, and a small change of a run stays a
//! small change of its tape. Bytes that a body repeats from an earlier one are stored as a reference.
//!
//! Left out on purpose: the arrival times of the parts of an unfinished output; reading a tape without
//! holding it in memory.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod layout;
mod read;
mod record;
#[cfg(test)]
mod tests;
mod window;
mod write;

pub use crate::trace::REDACTED_TAG;
pub use layout::{TAPE_BYTES_MAX, TapeInfo};
pub use read::Tape;
pub use write::TapeRedaction;
