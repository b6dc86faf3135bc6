//! A simulated disk for tests: deterministic, in memory, and able to lose what was not synced.
//!
//! Compiled always, because integration tests and other crates' tests use it; nothing in the engine does.
//!
//! A [`SimIo`] behaves like a file system to the program on it, and writes down every operation that changes
//! something. [`SimIo::history`] is that log. Run a workload once, then rebuild from its history the disk as a
//! crash before any operation may have left it:
//!
//! ```
//! # use annals_store as annals;
//! use annals::io::sim::SimIo;
//! use annals::io::{Io, Open};
//! use std::io::IoSlice;
//! use std::path::Path;
//!
//! let sim = SimIo::new(1);
//! let file = sim.open(Path::new("log"), Open::CreateNew)?;
//! file.write_at(&[IoSlice::new(b"kept")], 0)?;
//! file.sync()?;
//! sim.sync_dir(Path::new(""))?;
//! let acknowledged = sim.op_count();
//!
//! for (point, disk) in sim.history().crashes(4) {
//!     if point.at >= acknowledged {
//!         assert_eq!(disk.read(Path::new("log")).as_deref(), Some(&b"kept"[..]), "{point}");
//!     }
//! }
//! # Ok::<(), annals::io::IoError>(())
//! ```
//!
//! # What a crash may do
//! Durable are: what a file held when its last good `sync` returned, the names a directory held when its last
//! good `sync_dir` returned, and every directory. Of what came later each of these is kept or lost by itself,
//! in any combination:
//! - each 512-byte sector of each write, so an older write may outlive a newer one;
//! - each change of a file's length, by `set_len` or by a write past the end, apart from the data: a length
//!   without its data reads as zeros, data without its length is gone;
//! - each creation, rename and removal. A rename is atomic: the file has the old name or the new one, never
//!   both; where its creation was not durable either, possibly neither.
//!
//! After a `sync` or `sync_dir` that failed, what it should have made durable stays in doubt for good: a later
//! one succeeds and says nothing about it (the system has marked those pages clean).
//!
//! Sectors are atomic but for [`Crash::Ragged`], where each may come in part. The engine asks for less than that: of what
//! is durable it writes over nothing but zeros written ahead, and all that it reads after a crash is under a checksum.
//!
//! # What a disk may do that lies
//! Beyond any crash, switched on one by one: writes that are acknowledged, synced and never there
//! ([`FailRule::lost_write`]), writes that come elsewhere ([`FailRule::misdirected_write`]), old sectors that come back
//! ([`SimIo::bring_back`]), bits that flip, cuts and garbage ([`SimIo::edit`]). No store can mend these; it must not hand
//! them out.
//!
//! # Left out on purpose
//! Short and interrupted calls: they end in [`RealIo`](super::RealIo), below the seam, whose tests make them. Waiting locks.
//! Directories are durable when made. Sparse space counts as used. Determinism ends where the program's own threads
//! race.

mod crash;
mod disk;
mod faults;
mod file;
mod history;
mod prng;
mod replay;
mod tree;

pub use crash::{Crash, CrashPoint, Losses, Walk};
pub use disk::SimIo;
pub use faults::{FailRule, OpKind};
pub use file::FILE_BYTES_MAX;
pub use history::{History, Op};

/// Bytes of a sector: what a disk writes wholly or not at all.
pub const SECTOR_BYTES: usize = 512;

#[cfg(test)]
mod tests;
