//! Tapes of tracefork (github.com/pratik916/tracefork, 0.2): its SQLite file, and its binary form of versions
//! 1 to 4.
//!
//! A tape holds two lists of bodies, a list of draws, and a digest of all three. Of each exchange it holds
//! only the bodies. Method, path, status and headers were not recorded; they are derived from the bodies.
//! Every blob is hashed and compared with its name, which tracefork itself does not do.
//!
//! Left out on purpose: batches of overlapping calls (they stay unchanged in the run's metadata), later
//! versions.

mod parse;
mod sqlite;

pub use parse::{TapeEvent, TraceforkTape, looks_like_tape};

/// Why a tape cannot be read, in words.
pub type TapeRefusal = String;
