//! The only door to files, the clock, randomness and threads.
//!
//! Everything above takes an [`Io`] and never touches the system by itself, so that the same code runs on a
//! real disk ([`RealIo`]) and on a simulated one that loses what was not synced ([`sim`]).
//!
//! Assumptions about a disk, the ones [`sim`] breaks things within: a write is torn at 512-byte sectors; until
//! `sync` returns any subset of a file's written sectors, its length changes, and until `sync_dir` returns any
//! subset of a directory's creations, renames and removals may be lost; a sync that failed promises nothing
//! about what came before it.

use std::fmt::Debug;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What failed, on which path, and why.
#[derive(Debug, thiserror::Error)]
#[error("cannot {op} {}: {source}", path.display())]
pub struct IoError {
    /// The operation, as a verb: "read", "sync".
    pub op: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// The system's own error.
    #[source]
    pub source: std::io::Error,
}

/// Result of an io operation.
pub type Result<T> = std::result::Result<T, IoError>;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open {
    /// Existing, for reading.
    Read,
    /// Existing, for reading and writing.
    Write,
    /// Must not exist; created for reading and writing.
    CreateNew,
    /// Created if missing, for reading and writing; never truncated.
    CreateOrOpen,
}

/// A whole-file advisory lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// One holder.
    Exclusive,
    /// Many holders.
    Shared,
}

/// Facts about a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Bytes.
    pub len: u64,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// The outside world of one store.
pub trait Io: Send + Sync + Debug {
    /// Opens a file.
    fn open(&self, path: &Path, how: Open) -> Result<Arc<dyn File>>;
    /// Facts about a path, `None` where nothing is.
    fn stat(&self, path: &Path) -> Result<Option<Stat>>;
    /// Names in a directory, sorted.
    fn list(&self, dir: &Path) -> Result<Vec<String>>;
    /// Makes a directory and its parents; existing ones are fine.
    fn create_dir_all(&self, dir: &Path) -> Result<()>;
    /// Atomically replaces `to` by `from` (durable after `sync_dir`).
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;
    /// Removes a file (durable after `sync_dir`).
    fn remove(&self, path: &Path) -> Result<()>;
    /// Makes a directory's creations, renames and removals durable.
    fn sync_dir(&self, dir: &Path) -> Result<()>;
    /// Wall clock, nanoseconds since 1970-01-01 UTC.
    fn now_ns(&self) -> u64;
    /// A clock that never goes back, nanoseconds from an arbitrary start.
    fn monotonic_ns(&self) -> u64;
    /// Fills `buf` with random bytes fit for secrets.
    fn random(&self, buf: &mut [u8]) -> Result<()>;
    /// Starts a named thread.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> Result<std::thread::JoinHandle<()>>;
}

/// One open file. All operations are positional and may be called from several threads.
pub trait File: Send + Sync + Debug {
    /// Reads up to `buf.len()` bytes at `offset`; fewer only at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize>;
    /// Writes all the bytes at `offset`, extending the file where needed.
    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()>;
    /// The file's length in bytes.
    fn len(&self) -> Result<u64>;
    /// Cuts or extends (with zeros) the file.
    fn set_len(&self, len: u64) -> Result<()>;
    /// Makes data and length durable (fdatasync).
    fn sync(&self) -> Result<()>;
    /// Maps the whole file for reading. Only for files that nobody writes or cuts any more.
    fn map(&self) -> Result<Bytes>;
    /// Takes a lock without waiting; false where somebody else holds it. Released when the file is dropped.
    fn try_lock(&self, lock: Lock) -> Result<bool>;
}

/// Read-only bytes of a whole file: a memory map, or an owned copy where the file lives in a simulation.
#[derive(Debug)]
pub struct Bytes(Repr);

#[derive(Debug)]
enum Repr {
    Owned(Arc<[u8]>),
}

impl Bytes {
    /// Wraps an owned copy.
    #[must_use]
    pub fn owned(bytes: Arc<[u8]>) -> Self {
        Self(Repr::Owned(bytes))
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Owned(bytes) => bytes,
        }
    }
}
