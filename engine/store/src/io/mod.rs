//! The only access to files, the clock, randomness and threads.
//!
//! All other modules take an [`Io`] and never call the system directly. So the same code runs on a real disk
//! ([`RealIo`]) and on a simulated one that loses unsynced writes (`sim`, for tests).
//!
//! Assumptions about a disk, which `sim` exploits:
//! - A write is torn at 512-byte sectors.
//! - Until `sync` returns, any subset of a file's written sectors and length changes may be lost.
//! - Until `sync_dir` returns, any subset of a directory's creations, renames and removals may be lost.
//! - A failed sync promises nothing about earlier writes.
//!
//! Left out on purpose: renames across directories, directory removal, appending and buffered access. No
//! caller needs them, and each would add states that a crash may leave.

mod bytes;
mod error;
mod map;
mod real;
mod root;
#[cfg(any(test, fuzzing, feature = "testing"))]
pub mod sim;
mod traits;

pub use bytes::{FileBytes, ReadMode};
pub use error::{IoError, IoResult};
pub use real::{RealFile, RealIo};
pub use traits::{File, FileId, Io, LockKind, OpenMode, PathStat};

#[cfg(test)]
mod tests;
