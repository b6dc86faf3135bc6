//! Tapes of tracefork (github.com/pratik916/tracefork, 0.2): its SQLite file, and its bytes form of versions 1 to 4.
//!
//! What such a tape says is two lists of bodies, one of draws, and a digest over all three. Of each exchange there are
//! only the bodies: method, path, status and headers were not recorded, so they are taken from what the bodies
//! are. Every blob is hashed and compared with its name, which tracefork itself does not do.
//!
//! Left out on purpose: batches of overlapping calls (they are kept as they are, in the run's metadata), later versions.

mod parse;
mod sqlite;

pub use parse::{TapeEvent, TraceforkTape, looks_like_tape};

/// Why a tape cannot be read, in words.
pub type TapeRefusal = String;
