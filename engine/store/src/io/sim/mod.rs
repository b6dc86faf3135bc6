//! A simulated disk for tests: deterministic, in memory, and able to lose unsynced changes.
//!
//! Compiled for tests of this crate and, by the feature `testing`, for those of other crates.
//!
//! A [`SimIo`] behaves like a file system for the program on it, and records every operation that changes
//! something. [`SimIo::history`] is that record. Run a workload once, then rebuild from its history the disk
//! after a crash before any operation:
//!
//! ```
//! # use annals_store as annals;
//! use annals::io::sim::SimIo;
//! use annals::io::{Io, OpenMode};
//! use std::io::IoSlice;
//! use std::path::Path;
//!
//! let sim = SimIo::new(1);
//! let file = sim.open(Path::new("log"), OpenMode::CreateNew)?;
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
//! Durable are: a file's content when its last successful `sync` returned, a directory's names when its last
//! successful `sync_dir` returned, and every directory. Each of these later changes is kept or lost
//! independently, in any combination:
//! - Each 512-byte sector of each write. So an older write may outlive a newer one.
//! - Each change of a file's length, by `set_len` or by a write past the end, separately from the data. A
//!   length without its data reads as zeros; data past the kept length is gone.
//! - Each creation, rename and removal. A rename is atomic: the file has the old name or the new one, never
//!   both. If its creation was not durable either, it may have neither.
//!
//! After a failed `sync` or `sync_dir`, its changes stay in doubt for good. A later call succeeds and says
//! nothing about them, because the system has marked those pages clean.
//!
//! Sectors are atomic except with [`Crash::Ragged`], where each may be kept in part. The engine does not need
//! atomic sectors: it overwrites durable bytes only where they are zeros written ahead, and all that it reads
//! after a crash has a checksum.
//!
//! # What a faulty disk may do
//! Beyond any crash, switched on one by one: writes that are acknowledged and synced but lost
//! ([`FailRule::lost_write`]), misdirected writes ([`FailRule::misdirected_write`]), old sectors that come
//! back ([`SimIo::restore_old_sector`]), flipped bits, cuts and garbage ([`SimIo::edit`]). No store can
//! repair these; it must not return them as data.
//!
//! # Left out on purpose
//! Short and interrupted calls: [`RealIo`](super::RealIo) handles them below the traits, and its tests
//! simulate them. Blocking locks. Directories are durable when made. Sparse space counts as used. Determinism
//! ends where the program's own threads race.

mod crash;
mod disk;
mod faults;
mod file;
mod history;
mod prng;
mod replay;
mod tree;

pub use crash::{Crash, CrashLosses, CrashPoint, HistoryWalk};
pub use disk::SimIo;
pub use faults::{FailRule, OpKind};
pub use file::FILE_BYTES_MAX;
pub use history::{OpHistory, SimOp};

/// Bytes of a sector: a disk writes a sector completely or not at all.
pub const SECTOR_BYTES: usize = 512;

#[cfg(test)]
mod tests;
