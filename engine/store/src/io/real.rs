//! The real disk, clock, randomness and threads.
//!
//! Invariants: files are opened close-on-exec (std's default) and created with mode 0600, directories with
//! 0700. A signal never cuts a read or a write short. An operation that returned `Ok` is complete.
#![expect(
    clippy::disallowed_methods,
    reason = "this is the module that the disallowed methods are to be reached through"
)]

use std::fs::{self, DirBuilder, OpenOptions, TryLockError};
use std::io::{ErrorKind, IoSlice};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::traits::check_rename;
use super::{File, FileBytes, Io, IoError, IoResult, LockKind, OpenMode, PathStat, map};
use crate::sync::{JoinHandle, cores, thread};

/// Mode of files the engine creates: recordings are private to the user who made them.
const FILE_MODE: u32 = 0o600;
/// Mode of directories the engine creates.
const DIR_MODE: u32 = 0o700;

/// The real system. Clones share one monotonic start.
#[derive(Debug, Clone)]
pub struct RealIo {
    start: Instant,
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
}

impl RealIo {
    /// Access to the system; its monotonic clock starts now.
    #[must_use]
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for RealIo {
    fn default() -> Self {
        Self::new()
    }
}

impl Io for RealIo {
    fn open(&self, path: &Path, how: OpenMode) -> IoResult<Arc<dyn File>> {
        let mut options = OpenOptions::new();
        options.read(true).mode(FILE_MODE);
        match how {
            OpenMode::Read => &mut options,
            OpenMode::Write => options.write(true),
            OpenMode::CreateNew => options.write(true).create_new(true),
            OpenMode::CreateOrOpen => options.write(true).create(true).truncate(false),
        };
        let file = options.open(path).map_err(|e| IoError::new("open", path, e))?;
        Ok(Arc::new(RealFile { file, path: path.to_path_buf() }))
    }

    fn stat(&self, path: &Path) -> IoResult<Option<PathStat>> {
        match fs::metadata(or_current_dir(path)) {
            Ok(facts) => Ok(Some(PathStat { len: facts.len(), is_dir: facts.is_dir() })),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(e) => Err(IoError::new("stat", path, e)),
        }
    }

    fn list(&self, dir: &Path) -> IoResult<Vec<String>> {
        // The standard library's directory reader panics if closing the directory fails.
        let entries =
            fs::File::open(or_current_dir(dir)).and_then(|opened| Ok(rustix::fs::Dir::new(opened)?));
        let mut names = Vec::new();
        for entry in entries.map_err(|e| IoError::new("list", dir, e))? {
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
        fs::rename(from, to).map_err(|e| IoError::new("rename", from, e))
    }

    fn link(&self, from: &Path, to: &Path) -> IoResult<()> {
        fs::hard_link(from, to).map_err(|e| IoError::new("link", to, e))
    }

    fn clone_file(&self, from: &Path, to: &Path) -> IoResult<()> {
        let fail = |e| IoError::new("clone to", to, e);
        let source = fs::File::open(from).map_err(|e| IoError::new("open", from, e))?;
        let mut options = OpenOptions::new();
        let made = options.write(true).create_new(true).mode(FILE_MODE).open(to).map_err(fail)?;
        rustix::fs::ioctl_ficlone(&made, &source).map_err(|e| {
            // Removes the empty file that a failed clone leaves.
            let _ = fs::remove_file(to);
            fail(e.into())
        })
    }

    fn free_bytes(&self, dir: &Path) -> IoResult<Option<u64>> {
        let facts =
            rustix::fs::statvfs(or_current_dir(dir)).map_err(|e| IoError::new("stat", dir, e.into()))?;
        Ok(Some(facts.f_bavail.saturating_mul(facts.f_frsize)))
    }

    fn remove(&self, path: &Path) -> IoResult<()> {
        fs::remove_file(path).map_err(|e| IoError::new("remove", path, e))
    }

    fn sync_dir(&self, dir: &Path) -> IoResult<()> {
        let opened = fs::File::open(or_current_dir(dir)).map_err(|e| IoError::new("open", dir, e))?;
        opened.sync_all().map_err(|e| IoError::new("sync directory", dir, e))
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

/// The empty path is the working directory: `parent` of a bare name returns it.
fn or_current_dir(dir: &Path) -> &Path {
    if dir.as_os_str().is_empty() { Path::new(".") } else { dir }
}

/// Starts a thread of the system; the simulation uses it too.
pub(super) fn start_thread(name: &str, body: Box<dyn FnOnce() + Send>) -> IoResult<JoinHandle<()>> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map_err(|e| IoError::new("start thread", Path::new(name), e))
}

impl RealFile {
    fn fail(&self, op: &'static str) -> impl FnOnce(std::io::Error) -> IoError {
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

    fn sync(&self) -> IoResult<()> {
        self.file.sync_data().map_err(self.fail("sync"))
    }

    fn map(&self) -> IoResult<FileBytes> {
        map::whole_file(&self.file).map_err(self.fail("map"))
    }

    fn try_lock(&self, lock: LockKind) -> IoResult<bool> {
        let taken = match lock {
            LockKind::Exclusive => self.file.try_lock(),
            LockKind::Shared => self.file.try_lock_shared(),
        };
        match taken {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(e)) => Err(self.fail("lock")(e)),
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
