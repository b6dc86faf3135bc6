//! Keeps other writers out while a store is open for writing.
//!
//! Two locks: one on the file LOCK, which also names the process, and one on the directory of the segments.
//! LOCK can be removed while it is held, and the next writer would then lock a new file of that name. The
//! directory cannot be removed while it holds segments. Where a file system has no locks on directories (NFS),
//! LOCK counts alone.
//!
//! Before each edit of the manifest the writer checks that what it locked still has its name
//! ([`WriterLock::check_in_place`]). Otherwise another process could be writing to the same files.

use std::io::IoSlice;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::io::{File, Io, LockKind, OpenMode};
use crate::log::manifest;
use crate::log::paths::{StorePaths, parse_manifest};

/// The locks of a writer; dropping them lets others write.
#[derive(Debug)]
pub struct WriterLock {
    lock: Arc<dyn File>,
    segments: Option<Arc<dyn File>>,
}

/// The outcome of an attempt to lock a store.
#[derive(Debug)]
pub enum StoreLock<T> {
    /// It is locked while this value lives.
    Held(T),
    /// A process writes to it, with its number if LOCK names it.
    Writer(String),
}

impl WriterLock {
    /// Locks a store for writing. With `create`, an empty directory is accepted.
    ///
    /// # Errors
    /// `Locked` with the holder's pid; `NotFound`; `Invalid` for a directory with other files; `Damaged` if
    /// LOCK is not a file; `Unavailable`.
    pub fn take(io: &dyn Io, paths: &StorePaths, create: bool) -> Result<Self> {
        check_directory(io, paths, create)?;
        let lock = io.open(&paths.lock(), OpenMode::CreateOrOpen)?;
        if !lock.try_lock(LockKind::Exclusive)? {
            return Err(held_by(&process_named_in(&*lock, paths), paths));
        }
        if create {
            io.create_dir_all(&paths.segments())?;
        }
        let segments = match lock_segments(io, paths, LockKind::Exclusive)? {
            StoreLock::Held(segments) => segments,
            StoreLock::Writer(pid) => return Err(held_by(&pid, paths)),
        };
        let pid = format!("{}\n", std::process::id());
        lock.set_len(0)?;
        lock.write_at(&[IoSlice::new(pid.as_bytes())], 0)?;
        Ok(Self { lock, segments })
    }

    /// Checks that no other process can have locked the same store since.
    ///
    /// # Errors
    /// `Unavailable` if what was locked has lost its name.
    pub fn check_in_place(&self, io: &dyn Io, paths: &StorePaths) -> Result<()> {
        let (held, path) = match &self.segments {
            Some(segments) => (segments, paths.segments()),
            None => (&self.lock, paths.lock()),
        };
        if io.id(&path)? == Some(held.id()?) {
            return Ok(());
        }
        let what = "was replaced or removed while this process wrote to the store: another process may write there, too. Close both and run annals verify";
        Err(Error::new(ErrorKind::Unavailable, format!("{} {what}", path.display())))
    }
}

/// Keeps writers out while the result lives. Any number of processes may do so.
///
/// # Errors
/// `Unavailable`; `Damaged` if LOCK is not a file.
pub fn keep_writers_out(io: &dyn Io, paths: &StorePaths) -> Result<StoreLock<Vec<Arc<dyn File>>>> {
    let mut held = Vec::new();
    if io.stat(&paths.lock())?.is_some() {
        let lock = io.open(&paths.lock(), OpenMode::Read)?;
        if !lock.try_lock(LockKind::Shared)? {
            return Ok(StoreLock::Writer(process_named_in(&*lock, paths)));
        }
        held.push(lock);
    }
    match lock_segments(io, paths, LockKind::Shared)? {
        StoreLock::Held(segments) => held.extend(segments),
        StoreLock::Writer(pid) => return Ok(StoreLock::Writer(pid)),
    }
    Ok(StoreLock::Held(held))
}

/// Whether a process holds the store open for writing.
pub fn is_being_written(io: &dyn Io, paths: &StorePaths) -> Result<bool> {
    Ok(matches!(keep_writers_out(io, paths)?, StoreLock::Writer(_)))
}

/// Locks the directory of the segments. `None` if it is missing or cannot be locked.
fn lock_segments(
    io: &dyn Io,
    paths: &StorePaths,
    kind: LockKind,
) -> Result<StoreLock<Option<Arc<dyn File>>>> {
    let dir = paths.segments();
    if io.stat(&dir)?.is_none() {
        return Ok(StoreLock::Held(None));
    }
    let opened = io.open_dir(&dir)?;
    Ok(match opened.try_lock(kind) {
        Ok(true) => StoreLock::Held(Some(opened)),
        // LOCK does not name that process: it was removed, or it is a new file.
        Ok(false) => StoreLock::Writer(String::new()),
        // NFS locks only files that are open for writing, and no directory is.
        Err(_) => StoreLock::Held(None),
    })
}

/// Refuses a directory that holds other files than a store's.
fn check_directory(io: &dyn Io, paths: &StorePaths, create: bool) -> Result<()> {
    if io.stat(&paths.lock())?.is_some() {
        return Ok(());
    }
    let root = paths.root();
    let names = io.list(root)?;
    // A LOCK that did not exist a moment ago belongs to a process that is creating the store.
    let is_ours =
        |n: &String| n == "LOCK" || n == "CURRENT" || n == "segments" || parse_manifest(n).is_some();
    let ours = names.iter().any(is_ours);
    if !create && !ours {
        return Err(super::open::no_store(root));
    }
    if !names.is_empty() && !ours {
        return Err(Error::invalid(format!(
            "{} holds other files and no annals store: name an empty or a new directory",
            root.display()
        )));
    }
    Ok(())
}

fn process_named_in(lock: &dyn File, paths: &StorePaths) -> String {
    let text = manifest::read_whole(lock, &paths.lock(), 64).ok();
    text.and_then(|text| String::from_utf8(text).ok()).unwrap_or_default().trim().to_owned()
}

fn held_by(pid: &str, paths: &StorePaths) -> Error {
    let holder = match pid {
        "" => "another process".to_owned(),
        pid => format!("process {pid}"),
    };
    let what = format!("{holder} is writing to {}; wait for it or open read-only", paths.root().display());
    Error::new(ErrorKind::Locked, what)
}
