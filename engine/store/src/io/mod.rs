//! The only door to files, the clock, randomness and threads.
//!
//! Everything above takes an [`Io`] and never touches the system by itself, so that the same code runs on a
//! real disk ([`RealIo`]) and on a simulated one that loses what was not synced ([`sim`]).
//!
//! Assumptions about a disk, the ones [`sim`] breaks things within: a write is torn at 512-byte sectors; until
//! `sync` returns any subset of a file's written sectors, its length changes, and until `sync_dir` returns any
//! subset of a directory's creations, renames and removals may be lost; a sync that failed promises nothing
//! about what came before it.
//!
//! Left out on purpose: renames across directories, directory removal, appending and buffered access.
//! No caller needs them, and each would widen what a crash may leave behind.

mod bytes;
mod error;
mod map;
mod real;
mod seam;
pub mod sim;

pub use bytes::{Bytes, ReadMode};
pub use error::{IoError, Result};
pub use real::{RealFile, RealIo};
pub use seam::{File, Io, Lock, Open, Stat};

#[cfg(test)]
mod tests;
