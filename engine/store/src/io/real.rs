//! The real disk, clock, randomness and threads.
//!
//! Invariants: files are opened close-on-exec and created with mode 0600, directories with 0700. A signal never
//! cuts a read or a write short. An operation that returned `Ok` is complete. Beneath a root no link is
//! followed ([`super::root`]).
#![expect(
    clippy::disallowed_methods,
    reason = "this is the module that the disallowed methods are to be reached through"
)]

use std::fs::{self, DirBuilder, TryLockError};
use std::io::{Error, ErrorKind, IoSlice};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use super::root::{Place, RootDir};
use super::traits::check_rename;
use super::{File, FileBytes, FileId, Io, IoError, IoResult, LockKind, OpenMode, PathStat, map};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{JoinHandle, cores, thread};

/// Mode of files the engine creates: recordings are private to the user who made them.
const FILE_MODE: u32 = 0o600;
/// Mode of directories the engine creates.
const DIR_MODE: u32 = 0o700;

/// The real system. Clones share one monotonic start.
#[derive(Debug, Clone)]
pub struct RealIo {
    start: Instant,
    /// The directories beneath which no link is followed.
    roots: Vec<Arc<RootDir>>,
}

/// Maximum threads of one long task, so that recording and reading keep processor time.
const THREADS_MAX: usize = 2;

/// Niceness that is added to a thread of a long task.
#[cfg(target_os = "linux")]
const NICE_INCREMENT: i32 = 5;

/// One open file of the system.
#[derive(Debug)]
pub struct RealFile {
    file: fs::File,
    path: PathBuf,
    /// The process that locked it; 0 if none did.
    locked_by: AtomicU32,
}

impl RealIo {
    /// Access to the system; its monotonic clock starts now.
    #[must_use]
    pub fn new() -> Self {
        Self { start: Instant::now(), roots: Vec::new() }
    }
}

impl Default for RealIo {
    fn default() -> Self {
        Self::new()
    }
}

impl Io for RealIo {
    fn beneath(&self, root: &Path) -> IoResult<Arc<dyn Io>> {
        let opened = RootDir::open(root).map_err(|e| IoError::new("open", root, e))?;
        let others = self.roots.iter().filter(|known| known.path() != root).cloned();
        Ok(Arc::new(Self { start: self.start, roots: others.chain([Arc::new(opened)]).collect() }))
    }

    fn open(&self, path: &Path, how: OpenMode) -> IoResult<Arc<dyn File>> {
        Ok(Arc::new(RealFile::new(self.open_file(path, how)?, path)))
    }

    fn open_dir(&self, dir: &Path) -> IoResult<Arc<dyn File>> {
        let opened = self.at("open", dir, |place| place.open_dir())?;
        Ok(Arc::new(RealFile::new(opened.into(), dir)))
    }

    fn stat(&self, path: &Path) -> IoResult<Option<PathStat>> {
        let facts = self.facts(path)?;
        Ok(facts.map(|facts| PathStat {
            len: u64::try_from(facts.st_size).unwrap_or(0),
            is_dir: FileType::from_raw_mode(facts.st_mode) == FileType::Directory,
        }))
    }

    fn id(&self, path: &Path) -> IoResult<Option<FileId>> {
        Ok(self.facts(path)?.map(|facts| file_id(&facts)))
    }

    fn list(&self, dir: &Path) -> IoResult<Vec<String>> {
        // The standard library's directory reader panics if closing the directory fails.
        let entries = self.at("list", dir, |place| Ok(rustix::fs::Dir::new(place.open_dir()?)?))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|e| IoError::new("list", dir, e.into()))?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(String::from_utf8_lossy(name).into_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn create_dir_all(&self, dir: &Path) -> IoResult<()> {
        let fail = |e| IoError::new("create directory", dir, e);
        if let Some((root, names)) = self.root_of(dir) {
            for end in 1..=names.len() {
                let place = root.place(&names[..end]).map_err(fail)?;
                if place.make_dir(Mode::from_raw_mode(DIR_MODE)).map_err(fail)? {
                    let parent = root.place(&names[..end - 1]).and_then(|parent| parent.open_dir());
                    rustix::fs::fsync(parent.map_err(fail)?).map_err(|e| fail(e.into()))?;
                } else {
                    place.open_dir().map_err(fail)?;
                }
            }
            return Ok(());
        }
        // Finds the missing ancestors first, because their parents have to be synced.
        let mut missing = Vec::new();
        for ancestor in dir.ancestors().filter(|path| !path.as_os_str().is_empty()) {
            if self.stat(ancestor)?.is_some() {
                break;
            }
            missing.push(ancestor);
        }
        DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir).map_err(fail)?;
        missing.iter().filter_map(|made| made.parent()).try_for_each(|parent| self.sync_dir(parent))
    }

    fn rename(&self, from: &Path, to: &Path) -> IoResult<()> {
        check_rename(from, to)?;
        self.at("rename", from, |old| {
            let new = self.place(to)?;
            Ok(rustix::fs::renameat(old.dir(), old.name(), new.dir(), new.name())?)
        })
    }

    fn link(&self, from: &Path, to: &Path) -> IoResult<()> {
        self.at("link", to, |made| {
            let old = self.place(from)?;
            rustix::fs::linkat(old.dir(), old.name(), made.dir(), made.name(), AtFlags::empty())?;
            // A second name of a link is a link, too.
            let facts = rustix::fs::statat(made.dir(), made.name(), AtFlags::SYMLINK_NOFOLLOW)?;
            let kind = FileType::from_raw_mode(facts.st_mode);
            if kind == FileType::RegularFile {
                return Ok(());
            }
            let _ = rustix::fs::unlinkat(made.dir(), made.name(), AtFlags::empty());
            Err(old.wrong_kind(kind, "a file"))
        })
    }

    fn clone_file(&self, from: &Path, to: &Path) -> IoResult<()> {
        let source = self.open_file(from, OpenMode::Read)?;
        let made = self.open_file(to, OpenMode::CreateNew)?;
        rustix::fs::ioctl_ficlone(&made, &source).map_err(|e| {
            // Removes the empty file that a failed clone leaves.
            let _ = self.remove(to);
            IoError::new("clone to", to, e.into())
        })
    }

    fn free_bytes(&self, dir: &Path) -> IoResult<Option<u64>> {
        let facts = self.at("stat", dir, |place| Ok(rustix::fs::fstatvfs(place.open_dir()?)?))?;
        // The superuser may use the blocks that file systems keep for it.
        let is_root = rustix::process::geteuid().is_root();
        let blocks = if is_root { facts.f_bfree } else { facts.f_bavail };
        Ok(Some(blocks.saturating_mul(facts.f_frsize)))
    }

    fn remove(&self, path: &Path) -> IoResult<()> {
        self.at("remove", path, |place| {
            Ok(rustix::fs::unlinkat(place.dir(), place.name(), AtFlags::empty())?)
        })
    }

    fn sync_dir(&self, dir: &Path) -> IoResult<()> {
        let opened = self.at("open", dir, |place| place.open_dir())?;
        rustix::fs::fsync(opened).map_err(|e| IoError::new("sync directory", dir, e.into()))
    }

    fn now_ns(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    fn monotonic_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn wait_time(&self, ns: u64) -> Option<std::time::Duration> {
        Some(std::time::Duration::from_nanos(ns))
    }

    fn random(&self, buf: &mut [u8]) -> IoResult<()> {
        getrandom::fill(buf).map_err(|e| IoError::new("get randomness", Path::new(""), e.into()))
    }

    fn lower_priority(&self) -> fn() {
        // On other systems this call would change the priority of all threads.
        #[cfg(target_os = "linux")]
        let step_back = || {
            let _ = rustix::process::setpriority_process(None, NICE_INCREMENT);
        };
        #[cfg(not(target_os = "linux"))]
        let step_back = || {};
        step_back
    }

    fn worker_threads(&self) -> usize {
        cores().min(THREADS_MAX)
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> IoResult<JoinHandle<()>> {
        start_thread(name, body)
    }
}

impl RealIo {
    /// The root that a path is beneath, and the names that lead there. The root that was added last counts.
    fn root_of<'a>(&'a self, path: &'a Path) -> Option<(&'a RootDir, Vec<&'a std::ffi::OsStr>)> {
        self.roots.iter().rev().find_map(|root| Some((&**root, root.names(path)?)))
    }

    fn place<'a>(&'a self, path: &'a Path) -> Result<Place<'a>, Error> {
        match self.root_of(path) {
            Some((root, names)) => root.place(&names),
            None => Ok(Place::Outside(path)),
        }
    }

    /// Calls `then` with the place of a path. Its error gets the operation and the path.
    fn at<T>(
        &self,
        op: &'static str,
        path: &Path,
        then: impl FnOnce(&Place<'_>) -> Result<T, Error>,
    ) -> IoResult<T> {
        self.place(path).and_then(|place| then(&place)).map_err(|e| IoError::new(op, path, e))
    }

    fn open_file(&self, path: &Path, how: OpenMode) -> IoResult<fs::File> {
        let flags = match how {
            OpenMode::Read => OFlags::RDONLY,
            OpenMode::Write => OFlags::RDWR,
            OpenMode::CreateNew => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
            OpenMode::CreateOrOpen => OFlags::RDWR | OFlags::CREATE,
        };
        let opened = self.at("open", path, |place| place.open_file(flags, Mode::from_raw_mode(FILE_MODE)))?;
        Ok(opened.into())
    }

    fn facts(&self, path: &Path) -> IoResult<Option<rustix::fs::Stat>> {
        match self.at("stat", path, |place| Ok(place.stat()?)) {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            found => found.map(Some),
        }
    }
}

fn file_id(facts: &rustix::fs::Stat) -> FileId {
    // The width of both numbers differs between systems.
    fn widened(number: impl TryInto<u64>) -> u64 {
        number.try_into().unwrap_or(u64::MAX)
    }
    FileId { device: widened(facts.st_dev), inode: widened(facts.st_ino) }
}

/// Starts a thread of the system; the simulation uses it too.
pub(super) fn start_thread(name: &str, body: Box<dyn FnOnce() + Send>) -> IoResult<JoinHandle<()>> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map_err(|e| IoError::new("start thread", Path::new(name), e))
}

impl RealFile {
    fn new(file: fs::File, path: &Path) -> Self {
        Self { file, path: path.to_path_buf(), locked_by: AtomicU32::new(0) }
    }

    fn fail(&self, op: &'static str) -> impl FnOnce(Error) -> IoError {
        move |e| IoError::new(op, &self.path, e)
    }
}

impl File for RealFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> IoResult<usize> {
        read_full(buf, offset, |part, at| self.file.read_at(part, at)).map_err(self.fail("read"))
    }

    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> IoResult<()> {
        match bufs {
            [] => Ok(()),
            [one] => self.file.write_all_at(one, offset).map_err(self.fail("write")),
            // One call takes a limited number of buffers (1024 on Linux).
            many => write_full(many, offset, |bufs, at| Ok(rustix::io::pwritev(&self.file, bufs, at)?))
                .map_err(self.fail("write")),
        }
    }

    fn len(&self) -> IoResult<u64> {
        Ok(self.file.metadata().map_err(self.fail("stat"))?.len())
    }

    fn set_len(&self, len: u64) -> IoResult<()> {
        self.file.set_len(len).map_err(self.fail("set the length of"))
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn allocate(&self, len: u64) -> IoResult<bool> {
        use rustix::io::Errno;
        // The system checks this limit only when bytes are written.
        let most = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        if most.is_some_and(|most| len > most) {
            return Err(self.fail("allocate space for")(ErrorKind::FileTooLarge.into()));
        }
        let call = || rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, len);
        match rustix::io::retry_on_intr(call) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            Err(errno) => Err(self.fail("allocate space for")(errno.into())),
        }
    }

    /// The advice writes dirty pages without waiting. It would also drop clean ones, but these are under way.
    fn start_writing(&self, range: std::ops::Range<u64>) {
        if let Some(len) = std::num::NonZeroU64::new(range.end.saturating_sub(range.start)) {
            // A hint that is not taken changes nothing.
            let _ = rustix::fs::fadvise(&self.file, range.start, Some(len), rustix::fs::Advice::DontNeed);
        }
    }

    fn sync(&self) -> IoResult<()> {
        self.file.sync_data().map_err(self.fail("sync"))
    }

    fn map(&self) -> IoResult<FileBytes> {
        map::whole_file(&self.file).map_err(self.fail("map"))
    }

    fn id(&self) -> IoResult<FileId> {
        let facts = rustix::fs::fstat(&self.file).map_err(|e| self.fail("stat")(e.into()))?;
        Ok(file_id(&facts))
    }

    fn try_lock(&self, lock: LockKind) -> IoResult<bool> {
        let taken = match lock {
            LockKind::Exclusive => self.file.try_lock(),
            LockKind::Shared => self.file.try_lock_shared(),
        };
        match taken {
            Ok(()) => {
                self.locked_by.store(std::process::id(), Ordering::Relaxed);
                Ok(true)
            }
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(e)) => Err(self.fail("lock")(e)),
        }
    }
}

impl Drop for RealFile {
    /// Releases the lock now. A child process that another thread starts has a copy of the open file until it runs its
    /// program, and a lock lasts as long as the last copy. A forked child that drops its own copy must not release
    /// the lock of its parent.
    fn drop(&mut self) {
        if self.locked_by.load(Ordering::Relaxed) == std::process::id() {
            let _ = self.file.unlock();
        }
    }
}

/// Fills `buf` with repeated calls: one call may read less than asked, or be interrupted by a signal.
fn read_full(
    buf: &mut [u8],
    offset: u64,
    mut call: impl FnMut(&mut [u8], u64) -> std::io::Result<usize>,
) -> std::io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match call(&mut buf[done..], offset.saturating_add(done as u64)) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Writes all of `bufs` with repeated calls.
fn write_full(
    bufs: &[IoSlice<'_>],
    offset: u64,
    mut call: impl FnMut(&[IoSlice<'_>], u64) -> std::io::Result<usize>,
) -> std::io::Result<()> {
    let mut owned = bufs.to_vec();
    let mut left = owned.as_mut_slice();
    let mut at = offset;
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match call(left, at) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => {
                at = at.saturating_add(n as u64);
                IoSlice::advance_slices(&mut left, n);
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a system that takes at most three bytes per call and is interrupted at every other call.
    fn short_or_interrupted<T>(calls: &mut usize, call: impl FnOnce() -> T) -> std::io::Result<T> {
        *calls += 1;
        if calls.is_multiple_of(2) { Err(ErrorKind::Interrupted.into()) } else { Ok(call()) }
    }

    #[test]
    fn short_and_interrupted_calls_are_repeated() {
        let (disk, mut calls) = (b"0123456789".to_vec(), 0);
        let mut buf = [b'-'; 8];
        let read = read_full(&mut buf, 4, |part, at| {
            short_or_interrupted(&mut calls, || {
                let n = part.len().min(3).min(disk.len() - at as usize);
                part[..n].copy_from_slice(&disk[at as usize..][..n]);
                n
            })
        });
        assert_eq!((read.unwrap(), &buf), (6, b"456789--"));

        let mut disk = vec![b'-'; 12];
        let bufs = [b"ab".as_slice(), b"", b"cdefg", b"h"].map(IoSlice::new);
        write_full(&bufs, 2, |bufs, at| {
            short_or_interrupted(&mut calls, || {
                let all: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
                let n = all.len().min(3);
                disk[at as usize..][..n].copy_from_slice(&all[..n]);
                n
            })
        })
        .unwrap();
        assert_eq!(disk, b"--abcdefgh--");
        assert!(calls > 8, "{calls}");

        let stuck = write_full(&bufs, 0, |_, _| Ok(0)).unwrap_err();
        assert_eq!(stuck.kind(), ErrorKind::WriteZero);
        let failed = read_full(&mut buf, 0, |_, _| Err(ErrorKind::Other.into())).unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Other);
    }
}
