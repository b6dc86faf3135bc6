//! Directories outside any store that a recorder shares with its program: libraries that are loaded into the
//! program, and what these write.
//!
//! A directory is needed as long as a process has its path in its environment, even after the recorder. The
//! recorder holds a lock on it, which ends with the recorder however that ends; each new directory first
//! removes those that nothing needs any longer.

use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// Maximum length of a directory's path: the libraries keep it in a fixed buffer.
const PATH_BYTES_MAX: usize = 120;
/// Minimum free space in a directory's file system.
const FREE_BYTES_MIN: u64 = 256 << 20;
/// How many names are tried: another process may remove a directory before it is locked.
const ATTEMPTS_MAX: usize = 16;
/// Digits of a directory's random number.
const DIGITS: usize = 16;

/// What a directory is for; part of its name.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    Network,
    Nondet,
}

impl Purpose {
    fn prefix(self) -> &'static str {
        match self {
            Purpose::Network => "annals-network-",
            Purpose::Nondet => "annals-nondet-",
        }
    }
}

/// A directory that only this user can list. Deleted when this is dropped, if no process has it in its
/// environment; else by a later recorder.
#[derive(Debug)]
pub(crate) struct PrivateDirectory {
    path: PathBuf,
    /// `None` where directories cannot be locked; nothing is removed there later.
    _lock: Option<OwnedFd>,
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        if unneeded(std::slice::from_ref(&self.path)).is_none_or(|unneeded| !unneeded.is_empty()) {
            remove(&self.path);
        }
    }
}

impl PrivateDirectory {
    /// Creates an empty directory and removes abandoned ones beside it.
    ///
    /// # Errors
    /// Why there can be none.
    pub(crate) fn create(purpose: Purpose) -> Result<Self, String> {
        Self::create_in(&choose_parent()?, purpose)
    }

    fn create_in(parent: &Path, purpose: Purpose) -> Result<Self, String> {
        remove_abandoned(parent);
        for _ in 0..ATTEMPTS_MAX {
            let mut random = [0; DIGITS / 2];
            getrandom::fill(&mut random).map_err(|error| format!("the system has no randomness: {error}"))?;
            let path = parent.join(format!("{}{:016x}", purpose.prefix(), u64::from_le_bytes(random)));
            DirBuilder::new()
                .mode(0o700)
                .create(&path)
                .map_err(|error| format!("no private directory can be made: {error}"))?;
            match lock(&path) {
                Err(Errno::WOULDBLOCK | Errno::NOENT) => {}
                locked => {
                    // Locked too late if it is gone.
                    let lock = locked.ok();
                    if path.is_dir() {
                        return Ok(Self { path, _lock: lock });
                    }
                }
            }
        }
        Err("no private directory can be made: other processes remove them".to_owned())
    }

    /// Whether a program could get one. Creates nothing.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn check_support() -> Result<(), String> {
        choose_parent().map(|_| ())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// The first usable parent, on a file system that allows execution: TMPDIR; else memory, where a file for each
/// process and thread costs least.
fn choose_parent() -> Result<PathBuf, String> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let memory = Some(PathBuf::from("/dev/shm"));
    let places = [set("TMPDIR"), memory, Some(std::env::temp_dir()), set("XDG_RUNTIME_DIR")];
    let fits = |place: &PathBuf| {
        let text = place.to_string_lossy();
        let has_room = rustix::fs::statvfs(place).is_ok_and(|system| {
            let free = system.f_bavail.saturating_mul(system.f_frsize);
            allows_exec(&system) && free >= FREE_BYTES_MIN
        });
        // The loader splits its list of libraries at colons and spaces.
        has_room && text.len() + 40 <= PATH_BYTES_MAX && !text.contains([':', ' ', '\u{fffd}'])
    };
    let mut places = places.into_iter().flatten().filter_map(|place| place.canonicalize().ok());
    places.find(fits).ok_or_else(|| {
        "no directory has enough space and allows loading a library (set TMPDIR to one)".to_owned()
    })
}

/// Whether this file system allows execution.
fn allows_exec(system: &rustix::fs::StatVfs) -> bool {
    #[cfg(target_os = "linux")]
    let may = !system.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC);
    #[cfg(not(target_os = "linux"))]
    let may = system.f_bsize > 0;
    may
}

/// Removes this user's private directories that no recorder has locked and no process has in its environment.
fn remove_abandoned(parent: &Path) {
    #[expect(clippy::disallowed_methods, reason = "a listing of directories of our own outside any store")]
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    let user = rustix::process::geteuid().as_raw();
    let mut abandoned = Vec::new();
    let mut locks = Vec::new();
    for entry in entries.flatten() {
        if !entry.file_name().to_str().is_some_and(is_private_name) {
            continue;
        }
        let Ok(locked) = lock(&entry.path()) else { continue };
        if rustix::fs::fstat(&locked).is_ok_and(|stat| stat.st_uid == user) {
            abandoned.push(entry.path());
            locks.push(locked);
        }
    }
    if !abandoned.is_empty() {
        unneeded(&abandoned).unwrap_or_default().into_iter().for_each(remove);
    }
}

fn is_private_name(name: &str) -> bool {
    [Purpose::Network, Purpose::Nondet].iter().filter_map(|purpose| name.strip_prefix(purpose.prefix())).any(
        |number| {
            number.len() == DIGITS && number.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        },
    )
}

/// Locks a directory until the descriptor is closed.
fn lock(directory: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::empty())?;
    rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive)?;
    Ok(opened)
}

#[expect(clippy::disallowed_methods, reason = "a directory of our own outside any store")]
fn remove(directory: &Path) {
    let _ = std::fs::remove_dir_all(directory);
}

/// Those of these directories that no process has in its environment, as far as this user may read them;
/// `None` if the system does not tell.
fn unneeded(directories: &[PathBuf]) -> Option<Vec<&Path>> {
    #[expect(clippy::disallowed_methods, reason = "the system's list of processes is no data of a store")]
    let entries = std::fs::read_dir("/proc").ok()?;
    let mut unneeded: Vec<_> = directories.iter().map(PathBuf::as_path).collect();
    let mut has_processes = false;
    for entry in entries.flatten() {
        if !entry.file_name().as_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        has_processes = true;
        // A process that overwrites its environment (to change its title) still has the library mapped.
        for name in ["environ", "maps"] {
            #[expect(clippy::disallowed_methods, reason = "a file that the system makes up")]
            let text = std::fs::read(entry.path().join(name)).unwrap_or_default();
            unneeded.retain(|path| memchr::memmem::find(&text, path.as_os_str().as_bytes()).is_none());
        }
    }
    has_processes.then_some(unneeded)
}

#[cfg(target_os = "linux")]
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "directories outside any store")]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn names(parent: &Path) -> Vec<PathBuf> {
        let mut names: Vec<_> = parent.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort_unstable();
        names
    }

    fn abandoned(parent: &Path, name: &str) -> PathBuf {
        let path = parent.join(name);
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("network.so"), "a library").unwrap();
        path
    }

    /// A killed recorder left its directory in memory (/dev/shm) for ever: 103 of them had gathered on a
    /// machine that runs the tests.
    #[test]
    fn directories_of_killed_recorders_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let parent = parent.path();
        abandoned(parent, "annals-network-0123456789abcdef");
        abandoned(parent, "annals-nondet-0123456789abcdef");
        let living = PrivateDirectory::create_in(parent, Purpose::Nondet).unwrap();
        assert_eq!(names(parent), [living.path()]);
        let second = PrivateDirectory::create_in(parent, Purpose::Network).unwrap();
        assert_eq!(names(parent).len(), 2, "a locked directory was removed");
        drop(living);
        assert_eq!(names(parent), [second.path()]);
        drop(second);
        assert!(names(parent).is_empty());
    }

    #[test]
    fn nothing_else_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let parent = parent.path();
        std::fs::write(elsewhere.path().join("file"), "another's").unwrap();
        abandoned(parent, "annals-network-0123456789abcdeg");
        abandoned(parent, "annals-network-0123456789abcdef0");
        abandoned(parent, "annals-store-0123456789abcdef");
        std::fs::write(parent.join("annals-nondet-0123456789abcdef"), "a file").unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), parent.join("annals-network-0000000000000000")).unwrap();
        let before = names(parent);
        drop(PrivateDirectory::create_in(parent, Purpose::Network).unwrap());
        assert_eq!(names(parent), before);
        assert_eq!(names(elsewhere.path()).len(), 1);
    }

    /// The loader complains in every program that a process with a missing library starts.
    #[test]
    fn directory_of_surviving_process_is_kept_until_it_ends() {
        let parent = tempfile::tempdir().unwrap();
        let parent = parent.path();
        let directory = PrivateDirectory::create_in(parent, Purpose::Network).unwrap();
        let path = directory.path().to_owned();
        let mut survivor = Command::new("cat")
            .env("ANNALS_TEST_DIRECTORY", &path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        drop(directory);
        drop(PrivateDirectory::create_in(parent, Purpose::Network).unwrap());
        assert_eq!(names(parent), [path]);
        drop(survivor.stdin.take());
        survivor.wait().unwrap();
        drop(PrivateDirectory::create_in(parent, Purpose::Network).unwrap());
        assert!(names(parent).is_empty());
    }
}
