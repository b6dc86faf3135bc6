//! Backups kept in a folder: a new one on a schedule, and the oldest removed.
//!
//! Each backup is a directory of its own, named by store and time. It is made under a draft's name, opened
//! once, and then renamed, so that a directory with a backup's name is a whole backup. Older backups are
//! removed only after that. What is removed first loses its name, so an interruption leaves drafts and never
//! a part of a backup; the next backup removes them. A lock on the folder keeps two processes apart.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use annals::Store;
use annals::upkeep::{BackupReport, Sharing};

use super::config::ServeError;

/// How many backups are kept if the caller does not say.
pub const BACKUPS_KEPT: usize = 14;
/// Names of backups begin with this, and those of drafts with the other.
const PREFIX: &str = "backup-";
const DRAFT: &str = ".annals-draft-";

/// A backup that was made.
#[derive(Debug)]
pub struct KeptBackup {
    /// Its directory.
    pub path: PathBuf,
    /// What was copied.
    pub report: BackupReport,
    /// Older backups that were removed.
    pub removed: Vec<PathBuf>,
    /// Older backups that could not be removed, and why.
    pub left: Vec<(PathBuf, io::Error)>,
}

/// Makes a backup in an existing folder, and removes all but the newest `keep` backups of this store. The new
/// backup is whole and on disk when this returns. `note` gets its directory before it has that name, so that an
/// interruption leaves no backup without a note.
///
/// # Errors
/// Those of the store and of the system; `Refused` if another process makes a backup in the folder now. Then no
/// backup was removed.
pub fn keep_backup(
    store: &Store,
    folder: &Path,
    keep: usize,
    sharing: Sharing,
    now_ns: u64,
    note: &mut dyn FnMut(&Path),
) -> Result<KeptBackup, ServeError> {
    let failed = |what: &str| {
        let what = format!("{what} {}", folder.display());
        move |cause| ServeError::System { what, cause }
    };
    let opened = open_folder(folder).map_err(failed("cannot open the folder"))?;
    let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    if rustix::fs::flock(&opened, lock).is_err() {
        let why = format!("another process makes a backup in {} now", folder.display());
        return Err(ServeError::Refused(why));
    }
    remove_drafts(folder).map_err(failed("cannot clear interrupted backups in"))?;
    let before = list_backups(store, folder).map_err(failed("cannot list the backups in"))?;
    // Names sort in the order of making, also after the clock went back.
    let newest = before.last().and_then(|last| time_of(last));
    let name = backup_name(store, newest.map_or(now_ns, |newest| now_ns.max(newest.saturating_add(1))));
    let (draft, path) = (folder.join(format!("{DRAFT}{name}")), folder.join(&name));
    let report = store.backup(&draft, sharing)?;
    // What cannot be opened is no reason to remove another backup.
    drop(Store::open_read_only(&draft)?);
    note(&path);
    rename(&draft, &path).map_err(failed("cannot name the new backup in"))?;
    opened.sync_all().map_err(failed("cannot sync the folder"))?;
    let mut kept = KeptBackup { path, report, removed: Vec::new(), left: Vec::new() };
    for old in before.iter().take((before.len() + 1).saturating_sub(keep.max(1))) {
        match remove_backup(folder, old, &opened) {
            Ok(()) => kept.removed.push(old.clone()),
            Err(error) => kept.left.push((old.clone(), error)),
        }
    }
    Ok(kept)
}

/// The name of a backup: store and time, so that names of one store sort by age.
fn backup_name(store: &Store, now_ns: u64) -> String {
    format!("{}{now_ns:020}", store_prefix(store))
}

/// The time in the name of a backup.
fn time_of(backup: &Path) -> Option<u64> {
    backup.file_name()?.to_str()?.rsplit('-').next()?.parse().ok()
}

fn store_prefix(store: &Store) -> String {
    let id = store.id().to_string();
    format!("{PREFIX}{}-", id.get(..8).unwrap_or_default())
}

/// The backups of this store in a folder, oldest first.
fn list_backups(store: &Store, folder: &Path) -> io::Result<Vec<PathBuf>> {
    let prefix = store_prefix(store);
    let is_backup = |name: &str| {
        let time = name.strip_prefix(&prefix);
        time.is_some_and(|time| time.len() == 20 && time.bytes().all(|byte| byte.is_ascii_digit()))
    };
    names(folder, is_backup)
}

/// Removes what interrupted backups and removals left.
fn remove_drafts(folder: &Path) -> io::Result<()> {
    names(folder, |name| name.starts_with(DRAFT))?.iter().try_for_each(|draft| remove_tree(draft))
}

/// Removes a backup. Without its name it is no backup any more, wherever this is interrupted.
fn remove_backup(folder: &Path, backup: &Path, opened: &File) -> io::Result<()> {
    let name = backup.file_name().unwrap_or_default().to_string_lossy();
    let draft = folder.join(format!("{DRAFT}{name}"));
    rename(backup, &draft)?;
    opened.sync_all()?;
    remove_tree(&draft)
}

#[expect(clippy::disallowed_methods, reason = "a folder of the user's, which is no part of a store")]
fn names(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() && entry.file_name().to_str().is_some_and(&is_wanted) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

#[expect(clippy::disallowed_methods, reason = "a folder of the user's, which is no part of a store")]
fn open_folder(folder: &Path) -> io::Result<File> {
    File::open(folder)
}

#[expect(clippy::disallowed_methods, reason = "a folder of the user's, which is no part of a store")]
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::rename(from, to)
}

#[expect(clippy::disallowed_methods, reason = "a folder of the user's, which is no part of a store")]
fn remove_tree(directory: &Path) -> io::Result<()> {
    std::fs::remove_dir_all(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "a test looks at the files as a user would")]
    fn listed(folder: &Path) -> Vec<String> {
        let all = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn keep(
        store: &Store,
        folder: &Path,
        keep: usize,
        sharing: Sharing,
        now_ns: u64,
    ) -> Result<KeptBackup, ServeError> {
        keep_backup(store, folder, keep, sharing, now_ns, &mut |path| assert!(!path.is_dir()))
    }

    /// The new backup was among the oldest when the clock had gone back, and was removed at once.
    #[test]
    fn backup_after_the_clock_went_back_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path().join("s")).unwrap();
        store.namespace("default").unwrap();
        let folder = directory.path().join("kept");
        std::fs::create_dir(&folder).unwrap();
        for time in [100, 200] {
            keep(&store, &folder, 2, Sharing::Shared, time).unwrap();
        }
        let kept = keep(&store, &folder, 2, Sharing::Shared, 50).unwrap();
        assert!(kept.path.exists() && !kept.removed.contains(&kept.path), "{kept:?}");
        assert_eq!(kept.removed, [folder.join(backup_name(&store, 100))]);
        let again = keep(&store, &folder, 2, Sharing::Shared, 60).unwrap();
        assert!(kept.path.exists() && again.path > kept.path, "{again:?}");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test makes what an interruption leaves")]
    fn only_whole_backups_of_this_store_replace_older_ones() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path().join("s")).unwrap();
        store.namespace("default").unwrap();
        let folder = directory.path().join("kept");
        assert!(keep(&store, &folder, 2, Sharing::Shared, 1).is_err(), "the folder must exist");
        std::fs::create_dir(&folder).unwrap();
        // Neither another store's backups nor other files are this store's to remove.
        for other in ["backup-00000000-00000000000000000001", "backup-mine", "notes"] {
            std::fs::create_dir(folder.join(other)).unwrap();
        }
        let others = listed(&folder);
        let names = |times: &[u64]| {
            let mut all = others.clone();
            all.extend(times.iter().map(|time| backup_name(&store, *time)));
            all.sort();
            all
        };
        for time in [1, 2] {
            assert!(keep(&store, &folder, 2, Sharing::Shared, time).unwrap().removed.is_empty());
        }
        // An interrupted backup left a draft, which has the wrong bytes.
        let draft = folder.join(format!("{DRAFT}{}", backup_name(&store, 3)));
        std::fs::create_dir(&draft).unwrap();
        std::fs::write(draft.join("MANIFEST"), "half").unwrap();
        let kept = keep(&store, &folder, 2, Sharing::Copied, 3).unwrap();
        assert_eq!(kept.removed, [folder.join(backup_name(&store, 1))]);
        assert!(kept.left.is_empty());
        assert_eq!(listed(&folder), names(&[2, 3]));
        Store::open_read_only(&kept.path).unwrap();
        // A backup that fails removes nothing: the name is taken.
        std::fs::write(folder.join(backup_name(&store, 4)), "a file").unwrap();
        assert!(keep(&store, &folder, 1, Sharing::Shared, 4).is_err());
        std::fs::remove_file(folder.join(backup_name(&store, 4))).unwrap();
        assert!(names(&[2, 3]).iter().all(|name| folder.join(name).exists()));
        // Another process works in the folder.
        let opened = File::open(&folder).unwrap();
        rustix::fs::flock(&opened, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let refused = keep(&store, &folder, 1, Sharing::Shared, 5).unwrap_err().to_string();
        assert!(refused.contains("another process"), "{refused}");
        drop(opened);
        let kept = keep(&store, &folder, 0, Sharing::Shared, 6).unwrap();
        assert_eq!(kept.removed.len(), 2, "the newest is always kept");
        assert_eq!(listed(&folder), names(&[6]));
    }
}
