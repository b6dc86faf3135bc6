//! Reads tapes of tracefork (github.com/pratik916/tracefork, 0.2): its SQLite file, and its binary form of
//! versions 1 to 4.
//!
//! A tape holds two lists of bodies, a list of draws, and a digest of all three. An exchange has only its
//! bodies on the tape: method, path, status and headers were not recorded and are derived from the bodies.
//! Every blob is hashed and compared with its name, which tracefork itself does not do.
//!
//! Left out on purpose: batches of overlapping calls (they stay unchanged in the run's metadata), later
//! versions.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod parse;
mod sqlite;

pub use parse::{TapeEvent, TraceforkTape, looks_like_tape};

/// The reason why a tape cannot be read, as the end of a sentence about the tape.
pub type TapeRefusal = String;
