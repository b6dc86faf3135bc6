//! The two traits that everything above codes against, and their plain arguments.
//!
//! Invariants: an operation that returned an error may have had part of its effect, unless its own page says
//! otherwise; no operation waits for another process; nothing is durable before `sync` or `sync_dir` says so,
//! except directories, which are durable when `create_dir_all` returns.

use std::fmt::Debug;
use std::io::IoSlice;
use std::path::{Component, Path};
use std::sync::Arc;

use super::{Bytes, Result};

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
    /// Bytes; of no meaning for a directory.
    pub len: u64,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// The outside world of one store.
///
/// Every method that takes a path gives an [`IoError`](super::IoError) naming it; a missing file or parent is
/// of kind `NotFound`.
pub trait Io: Send + Sync + Debug {
    /// Opens a file. A created one has mode 0600; its name is durable after `sync_dir` of its directory.
    ///
    /// # Errors
    /// `NotFound` for `Read` and `Write` of nothing, `AlreadyExists` for `CreateNew` of something.
    fn open(&self, path: &Path, how: Open) -> Result<Arc<dyn File>>;
    /// Facts about a path, `None` where nothing is.
    ///
    /// # Errors
    /// What the system says, other than that nothing is there.
    fn stat(&self, path: &Path) -> Result<Option<Stat>>;
    /// Names in a directory, of files and directories, sorted by their bytes. A name that is not UTF-8 comes
    /// with replacement characters, and so equals no name of ours.
    ///
    /// # Errors
    /// `NotFound` where no directory is.
    fn list(&self, dir: &Path) -> Result<Vec<String>>;
    /// Makes a directory and its parents with mode 0700, durably; existing ones are fine.
    ///
    /// # Errors
    /// `AlreadyExists` where a file has the name.
    fn create_dir_all(&self, dir: &Path) -> Result<()>;
    /// Atomically replaces `to` by the file `from`, both in one directory (durable after `sync_dir`).
    ///
    /// # Errors
    /// `NotFound` without `from`; `InvalidInput` where the directories differ.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;
    /// Gives a file a second name, in any directory (durable after `sync_dir` of that one). Both names are the same
    /// file from then on: only for files that nobody writes or cuts any more.
    ///
    /// # Errors
    /// `NotFound` without `from`, `AlreadyExists` where something has the name; others where the system or the file
    /// system cannot: then nothing was done, and a copy will do.
    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        let _ = from;
        Err(super::IoError::new("link", to, std::io::ErrorKind::Unsupported.into()))
    }
    /// Makes a new file of another one's bytes that shares its room on disk until one of them is written (a reflink).
    /// Nothing of it is durable before its `sync` and its directory's.
    ///
    /// # Errors
    /// As [`Io::link`].
    fn clone_file(&self, from: &Path, to: &Path) -> Result<()> {
        let _ = from;
        Err(super::IoError::new("clone to", to, std::io::ErrorKind::Unsupported.into()))
    }
    /// Bytes that may still be written to the file system of a directory; `None` where nobody can say.
    ///
    /// # Errors
    /// What the system says.
    fn free_bytes(&self, dir: &Path) -> Result<Option<u64>> {
        let _ = dir;
        Ok(None)
    }
    /// Removes a file (durable after `sync_dir`). Open handles and maps of it stay readable.
    ///
    /// # Errors
    /// `NotFound` where nothing is.
    fn remove(&self, path: &Path) -> Result<()>;
    /// Makes a directory's creations, renames and removals durable.
    ///
    /// # Errors
    /// After a failure nothing is known of any change since the last success, even if a later call succeeds.
    fn sync_dir(&self, dir: &Path) -> Result<()>;
    /// Wall clock, nanoseconds since 1970-01-01 UTC; 0 for a clock set before that.
    fn now_ns(&self) -> u64;
    /// A clock that never goes back, nanoseconds from an arbitrary start.
    fn monotonic_ns(&self) -> u64;
    /// Fills `buf` with random bytes fit for secrets.
    ///
    /// # Errors
    /// Where the system has no randomness to give.
    fn random(&self, buf: &mut [u8]) -> Result<()>;
    /// How many threads long work may be shared by, that of the caller counted.
    fn threads(&self) -> usize {
        1
    }
    /// What a thread of long work calls first, so that what somebody waits for goes before it.
    fn step_back(&self) -> fn() {
        || {}
    }
    /// Starts a named thread. The name holds no NUL.
    ///
    /// # Errors
    /// Where the system refuses another thread.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> Result<crate::sync::JoinHandle<()>>;
}

/// One open file. All operations are positional and may be called from several threads.
#[expect(clippy::len_without_is_empty, reason = "a length in a file can fail; callers want the number")]
pub trait File: Send + Sync + Debug {
    /// Reads up to `buf.len()` bytes at `offset`; fewer only at the end of the file.
    ///
    /// # Errors
    /// What the system says.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize>;
    /// Writes all the bytes at `offset`, extending the file where needed; a gap reads as zeros.
    ///
    /// # Errors
    /// `StorageFull` and others; some of the bytes may have been written.
    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()>;
    /// The file's length in bytes.
    ///
    /// # Errors
    /// What the system says.
    fn len(&self) -> Result<u64>;
    /// Cuts or extends (with zeros) the file.
    ///
    /// # Errors
    /// What the system says; the length is then unchanged.
    fn set_len(&self, len: u64) -> Result<()>;
    /// Makes data and length durable (fdatasync), but not the file's name: that is `sync_dir`'s.
    ///
    /// # Errors
    /// After a failure nothing is known of any write since the last success, even if a later call succeeds.
    fn sync(&self) -> Result<()>;
    /// Maps the whole file for reading. Only for files that nobody writes or cuts any more.
    ///
    /// # Errors
    /// What the system says.
    fn map(&self) -> Result<Bytes>;
    /// Takes a lock without waiting; false where somebody else holds it. Locks belong to the handle, not the
    /// process, are taken at most once by each, and are released when the handle is dropped.
    ///
    /// # Errors
    /// What the system says, other than that the lock is held.
    fn try_lock(&self, lock: Lock) -> Result<bool>;
}

/// Refuses a rename that leaves its directory: no caller needs one, and crash states stay few without.
pub(super) fn check_rename(from: &Path, to: &Path) -> Result<()> {
    if parent_parts(from).eq(parent_parts(to)) {
        return Ok(());
    }
    let why = format!("{} is in another directory", to.display());
    let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, why);
    Err(super::IoError::new("rename", from, source))
}

fn parent_parts(path: &Path) -> impl Iterator<Item = Component<'_>> {
    let dir = path.parent().unwrap_or(Path::new(""));
    dir.components().filter(|part| *part != Component::CurDir)
}
