//! A disk that calls a test before each read and each sync of a file.

use std::fmt;
use std::io::IoSlice;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use annals::io::{File, FileBytes, FileId, Io, IoResult, LockKind, OpenMode, PathStat};

/// What a file is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileStep {
    Read,
    Sync,
}

type StepHook = Arc<dyn Fn(FileStep) + Send + Sync>;

/// Calls the hook before each step, then does what `below` does.
#[derive(Clone)]
pub(crate) struct HookedIo {
    below: Arc<dyn Io>,
    hook: Arc<Mutex<Option<StepHook>>>,
}

impl HookedIo {
    pub(crate) fn new(below: Arc<dyn Io>) -> Self {
        Self { below, hook: Arc::default() }
    }

    pub(crate) fn set_hook(&self, hook: impl Fn(FileStep) + Send + Sync + 'static) {
        *self.hook.lock().unwrap() = Some(Arc::new(hook));
    }

    pub(crate) fn clear_hook(&self) {
        *self.hook.lock().unwrap() = None;
    }

    fn file(&self, below: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(HookedFile { below, hook: self.hook.clone() })
    }
}

impl fmt::Debug for HookedIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.below.fmt(f)
    }
}

impl Io for HookedIo {
    fn beneath(&self, root: &Path) -> IoResult<Arc<dyn Io>> {
        Ok(Arc::new(Self { below: self.below.beneath(root)?, hook: self.hook.clone() }))
    }
    fn open(&self, path: &Path, how: OpenMode) -> IoResult<Arc<dyn File>> {
        Ok(self.file(self.below.open(path, how)?))
    }
    fn open_dir(&self, dir: &Path) -> IoResult<Arc<dyn File>> {
        self.below.open_dir(dir)
    }
    fn id(&self, path: &Path) -> IoResult<Option<FileId>> {
        self.below.id(path)
    }
    fn stat(&self, path: &Path) -> IoResult<Option<PathStat>> {
        self.below.stat(path)
    }
    fn list(&self, dir: &Path) -> IoResult<Vec<String>> {
        self.below.list(dir)
    }
    fn create_dir_all(&self, dir: &Path) -> IoResult<()> {
        self.below.create_dir_all(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> IoResult<()> {
        self.below.rename(from, to)
    }
    fn remove(&self, path: &Path) -> IoResult<()> {
        self.below.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> IoResult<()> {
        self.below.sync_dir(dir)
    }
    fn now_ns(&self) -> u64 {
        self.below.now_ns()
    }
    fn monotonic_ns(&self) -> u64 {
        self.below.monotonic_ns()
    }
    fn wait_time(&self, ns: u64) -> Option<std::time::Duration> {
        self.below.wait_time(ns)
    }
    fn random(&self, buf: &mut [u8]) -> IoResult<()> {
        self.below.random(buf)
    }
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> IoResult<JoinHandle<()>> {
        self.below.spawn(name, body)
    }
}

struct HookedFile {
    below: Arc<dyn File>,
    hook: Arc<Mutex<Option<StepHook>>>,
}

impl HookedFile {
    fn step(&self, step: FileStep) {
        // Called without the lock: a hook may block.
        let hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(hook) = hook {
            hook(step);
        }
    }
}

impl fmt::Debug for HookedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.below.fmt(f)
    }
}

impl File for HookedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> IoResult<usize> {
        self.step(FileStep::Read);
        self.below.read_at(buf, offset)
    }
    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> IoResult<()> {
        self.below.write_at(bufs, offset)
    }
    fn len(&self) -> IoResult<u64> {
        self.below.len()
    }
    fn set_len(&self, len: u64) -> IoResult<()> {
        self.below.set_len(len)
    }
    fn sync(&self) -> IoResult<()> {
        self.step(FileStep::Sync);
        self.below.sync()
    }
    fn map(&self) -> IoResult<FileBytes> {
        self.below.map()
    }
    fn id(&self) -> IoResult<FileId> {
        self.below.id()
    }
    fn try_lock(&self, lock: LockKind) -> IoResult<bool> {
        self.below.try_lock(lock)
    }
}
