//! The two traits for system access, and their plain arguments.
//!
//! Invariants: an operation that returned an error may have had part of its effect, unless its documentation
//! says otherwise. No operation waits for another process. Nothing is durable before `sync` or `sync_dir`
//! returned, except directories, which are durable when `create_dir_all` returns.

use std::fmt::Debug;
use std::io::IoSlice;
use std::path::{Component, Path};
use std::sync::Arc;

use super::{FileBytes, IoResult};

/// The mode in which a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
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
pub enum LockKind {
    /// One holder.
    Exclusive,
    /// Many holders.
    Shared,
}

/// Kind and length of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathStat {
    /// Bytes; meaningless for a directory.
    pub len: u64,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// Identity of an open file or directory, by whatever name it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    /// The device.
    pub device: u64,
    /// Its number on that device.
    pub inode: u64,
}

/// The outside world of one store: files, clocks, randomness and threads.
///
/// Every method that takes a path returns an [`IoError`](super::IoError) with that path. A missing file or
/// parent is of kind `NotFound`.
pub trait Io: Send + Sync + Debug {
    /// The same world, but every path beneath the directory `root` is reached from that directory as it is
    /// now, and no link is followed on the way. `root` itself may be a link. Paths outside are as before.
    ///
    /// A link or a special file in place of a file or directory is an error of kind `InvalidData`; so is a file
    /// with several names that is opened for writing.
    ///
    /// # Errors
    /// `NotFound` if there is no such directory.
    fn beneath(&self, root: &Path) -> IoResult<Arc<dyn Io>>;
    /// Opens a regular file. A created one has mode 0600; its name is durable after `sync_dir` of its
    /// directory.
    ///
    /// # Errors
    /// `NotFound` if `Read` or `Write` finds no file, `AlreadyExists` if `CreateNew` finds one. `InvalidData`
    /// or `InvalidInput` for anything but a regular file.
    fn open(&self, path: &Path, how: OpenMode) -> IoResult<Arc<dyn File>>;
    /// Opens a directory, to lock it or to compare its id.
    ///
    /// # Errors
    /// `NotFound` if there is no such directory.
    fn open_dir(&self, dir: &Path) -> IoResult<Arc<dyn File>>;
    /// The id of what a path leads to now; `None` if nothing has that path.
    ///
    /// # Errors
    /// As [`Io::stat`].
    fn id(&self, path: &Path) -> IoResult<Option<FileId>>;
    /// Kind and length of a path; `None` if nothing has that path.
    ///
    /// # Errors
    /// The system's error, except for a missing path.
    fn stat(&self, path: &Path) -> IoResult<Option<PathStat>>;
    /// Names in a directory, of files and directories, sorted by their bytes. A name that is not UTF-8 gets
    /// replacement characters, and so equals no name of the store.
    ///
    /// # Errors
    /// `NotFound` if there is no such directory.
    fn list(&self, dir: &Path) -> IoResult<Vec<String>>;
    /// Makes a directory and its parents with mode 0700, durably. Existing directories are accepted.
    ///
    /// # Errors
    /// `AlreadyExists` or `InvalidData` if a file or a link has the name.
    fn create_dir_all(&self, dir: &Path) -> IoResult<()>;
    /// Atomically replaces `to` with the file `from`, both in one directory (durable after `sync_dir`).
    ///
    /// # Errors
    /// `NotFound` if `from` is missing; `InvalidInput` if the directories differ.
    fn rename(&self, from: &Path, to: &Path) -> IoResult<()>;
    /// Gives a file a second name, in any directory (durable after `sync_dir` of that directory). Both names
    /// then refer to the same file. Only for files that are never written or truncated again.
    ///
    /// # Errors
    /// `NotFound` if `from` is missing, `AlreadyExists` if the name is taken. Other errors if the system or
    /// the file system does not support links: then nothing changed, and the caller can copy.
    fn link(&self, from: &Path, to: &Path) -> IoResult<()> {
        let _ = from;
        Err(super::IoError::new("link", to, std::io::ErrorKind::Unsupported.into()))
    }
    /// Makes a new file with the bytes of another one. Both share disk space until one is written (a
    /// reflink). Nothing is durable before `sync` of the file and `sync_dir` of its directory.
    ///
    /// # Errors
    /// As [`Io::link`].
    fn clone_file(&self, from: &Path, to: &Path) -> IoResult<()> {
        let _ = from;
        Err(super::IoError::new("clone to", to, std::io::ErrorKind::Unsupported.into()))
    }
    /// Bytes that can still be written to the file system of a directory; `None` if unknown.
    ///
    /// # Errors
    /// The system's error.
    fn free_bytes(&self, dir: &Path) -> IoResult<Option<u64>> {
        let _ = dir;
        Ok(None)
    }
    /// Removes a file (durable after `sync_dir`). Open handles and maps of it stay readable.
    ///
    /// # Errors
    /// `NotFound` if there is no such file.
    fn remove(&self, path: &Path) -> IoResult<()>;
    /// Makes a directory's creations, renames and removals durable.
    ///
    /// # Errors
    /// After a failure, every change since the last success is in doubt, even if a later call succeeds.
    fn sync_dir(&self, dir: &Path) -> IoResult<()>;
    /// Wall clock, nanoseconds since 1970-01-01 UTC; 0 for a clock set before that.
    fn now_ns(&self) -> u64;
    /// A clock that never goes backwards, in nanoseconds from an arbitrary start.
    fn monotonic_ns(&self) -> u64;
    /// How long to wait until `ns` nanoseconds of these clocks have passed. `None` if they advance only when a
    /// test moves them: then no wait ends by itself.
    fn wait_time(&self, ns: u64) -> Option<std::time::Duration> {
        let _ = ns;
        None
    }
    /// Fills `buf` with random bytes fit for secrets.
    ///
    /// # Errors
    /// If the system has no randomness available.
    fn random(&self, buf: &mut [u8]) -> IoResult<()>;
    /// Number of threads that a long task may use, including the caller's.
    fn worker_threads(&self) -> usize {
        1
    }
    /// A thread of a long task calls this first, so that waiting callers get the processor before it.
    fn lower_priority(&self) -> fn() {
        || {}
    }
    /// Starts a named thread. The name holds no NUL.
    ///
    /// # Errors
    /// If the system refuses another thread.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> IoResult<crate::sync::JoinHandle<()>>;
}

/// One open file. All operations are positional and may be called from several threads.
#[expect(clippy::len_without_is_empty, reason = "a length in a file can fail; callers want the number")]
pub trait File: Send + Sync + Debug {
    /// Reads up to `buf.len()` bytes at `offset`; fewer only at the end of the file.
    ///
    /// # Errors
    /// The system's error.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> IoResult<usize>;
    /// Writes all the bytes at `offset`, extending the file where needed; a gap reads as zeros.
    ///
    /// # Errors
    /// `StorageFull` and others; part of the bytes may have been written.
    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> IoResult<()>;
    /// The file's length in bytes.
    ///
    /// # Errors
    /// The system's error.
    fn len(&self) -> IoResult<u64>;
    /// Truncates the file, or extends it with zeros.
    ///
    /// # Errors
    /// The system's error; the length is then unchanged.
    fn set_len(&self, len: u64) -> IoResult<()>;
    /// Allocates disk space for the first `len` bytes, so that writing them later does not fail on a full disk.
    /// Length and bytes stay. `set_len` gives back what lies beyond the new length. False if the file system
    /// cannot do it.
    ///
    /// # Errors
    /// `StorageFull` if there is not enough space. Part of it may then be allocated.
    fn allocate(&self, len: u64) -> IoResult<bool> {
        let _ = len;
        Ok(false)
    }
    /// A hint: begins to bring these bytes to disk and does not wait for it. Nothing is durable before `sync`,
    /// which then has less to do. Does nothing where the system has no such call.
    fn start_writing(&self, range: std::ops::Range<u64>) {
        let _ = range;
    }
    /// Makes data and length durable (fdatasync). The file's name needs `sync_dir`.
    ///
    /// # Errors
    /// After a failure, every write since the last success is in doubt, even if a later call succeeds.
    fn sync(&self) -> IoResult<()>;
    /// Maps the whole file for reading. Only for files that are never written or truncated again.
    ///
    /// # Errors
    /// The system's error.
    fn map(&self) -> IoResult<FileBytes>;
    /// The id of this file, which stays the same when its name changes.
    ///
    /// # Errors
    /// The system's error.
    fn id(&self) -> IoResult<FileId>;
    /// Takes a lock without waiting; false if another handle holds it. A lock belongs to the handle, not to
    /// the process. Each handle takes at most one, and dropping the handle releases it.
    ///
    /// # Errors
    /// The system's error, except for a held lock.
    fn try_lock(&self, lock: LockKind) -> IoResult<bool>;
}

/// Refuses a rename to another directory: no caller needs one, and without it a crash has fewer states.
pub(super) fn check_rename(from: &Path, to: &Path) -> IoResult<()> {
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
