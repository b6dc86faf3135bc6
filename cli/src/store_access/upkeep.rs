//! Whole stores: sizes, copies, compaction, diagnosis, repair.

use std::path::{Path, PathBuf};

use annals::{
    Error, ErrorKind, Options, Stats, Store,
    upkeep::{BackupReport, CompactOptions, CompactReport, Diagnosis, RepairReport, Sharing},
};
use annals_server::profiles::{make_placeholder_key, placeholder_key, temporary_key};
use annals_server::{KeptBackup, ServeError, ask_daemon};

use super::StoreAccess;
use super::failures::{engine_failure, open_failure};
use super::opening::{open_for_writing, write_options};
use crate::failure::{CliResult, Failure};
use crate::output::print_note;

/// What happens to the note of a backup.
#[derive(Clone, Copy)]
enum BackupNoteChange {
    Add,
    Remove,
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

impl StoreAccess {
    pub(crate) fn stats(&self) -> CliResult<Stats> {
        self.store.stats().map_err(engine_failure)
    }

    /// Reclaims the disk space of deleted data.
    pub(crate) fn compact(&self, options: &CompactOptions) -> CliResult<CompactReport> {
        self.store.compact(options).map_err(engine_failure)
    }

    /// Copies the store in its present state.
    pub(crate) fn backup(&self, dest: &Path, sharing: Sharing) -> CliResult<BackupReport> {
        self.store.backup(dest, sharing).map_err(engine_failure)
    }

    /// Makes a backup in a folder, and removes the oldest ones.
    pub(crate) fn keep_backup(
        &self,
        root: &Path,
        folder: &Path,
        keep: usize,
        sharing: Sharing,
    ) -> CliResult<KeptBackup> {
        let now_ns = Options::default().io.now_ns();
        let mut note = |path: &Path| self.note_backup(root, path);
        let kept = annals_server::keep_backup(&self.store, folder, keep, sharing, now_ns, &mut note);
        let kept = kept.map_err(|error| match error {
            ServeError::Store(error) => engine_failure(error),
            other => Failure::failed(other, "name an existing folder outside of the store"),
        })?;
        for old in &kept.removed {
            // A note too many names a backup that is gone; the next removal tries again for its own.
            let _ = self.change_backup_note(root, &absolute(old), BackupNoteChange::Remove);
        }
        Ok(kept)
    }

    /// Notes in the store that a backup was made, or has the process that holds the store note it. The backup is
    /// complete even without the note: then this says that `annals forget` does not name it.
    pub(crate) fn note_backup(&self, root: &Path, dest: &Path) {
        if let Err(why) = self.change_backup_note(root, &absolute(dest), BackupNoteChange::Add) {
            print_note(format_args!(
                "the store has no note of this backup, so `annals forget` will not name it: {why}"
            ));
        }
    }

    fn change_backup_note(&self, root: &Path, place: &Path, change: BackupNoteChange) -> annals::Result<()> {
        let place = place.to_string_lossy();
        let word: &[u8] = match change {
            BackupNoteChange::Add => b"NOTE",
            BackupNoteChange::Remove => b"REMOVED",
        };
        if ask_daemon(root, &[b"STORE.BACKUP", place.as_bytes(), word])?.is_some() {
            return Ok(());
        }
        if !self.store.was_closed_cleanly() {
            let why = "it was not closed cleanly, and a backup repairs nothing";
            return Err(Error::new(ErrorKind::Unavailable, why));
        }
        // A backup is no reason for an upgrade.
        let options = Options { create: false, upgrade: false, ..Options::default() };
        let store = open_for_writing(root, options)?;
        match change {
            BackupNoteChange::Add => store.note_backup(&place)?,
            BackupNoteChange::Remove => store.remove_backup_note(&place)?,
        }
        store.close()
    }

    /// Returns the store's key for placeholders, and whether the key is stored. If the store has no key and
    /// another process writes to it, the key is drawn for this call only.
    pub(crate) fn placeholder_key(root: &Path) -> CliResult<([u8; 32], bool)> {
        let store = Store::open_read_only(root).map_err(|error| open_failure(root, error))?;
        if let Some(key) = placeholder_key(&store).map_err(engine_failure)? {
            return Ok((key, true));
        }
        drop(store);
        let options = Options { create: false, ..write_options() };
        let drawn = open_for_writing(root, options).and_then(|store| {
            let key = make_placeholder_key(&store)?;
            store.close()?;
            Ok(key)
        });
        drawn.map(|key| (key, true)).or_else(|_| Ok((temporary_key().map_err(engine_failure)?, false)))
    }
}

/// Diagnoses the state of a store.
pub(crate) fn diagnose(root: &Path) -> CliResult<Diagnosis> {
    let mut found =
        annals::upkeep::diagnose(root, Options::default()).map_err(|error| open_failure(root, error))?;
    // The file of profiles is this crate's; the engine reports it as foreign.
    found.foreign.retain(|file| Some(file) != crate::profiles::store_profiles(root).as_ref());
    Ok(found)
}

/// Copies the undamaged data of a store into a new one.
pub(crate) fn repair(root: &Path, to: &Path) -> CliResult<RepairReport> {
    annals::upkeep::repair(root, to, Options::default()).map_err(|error| open_failure(root, error))
}

/// Restores a backup to a new store.
pub(crate) fn restore(backup: &Path, dest: &Path) -> CliResult<BackupReport> {
    annals::upkeep::restore(backup, dest, Options::default()).map_err(|error| open_failure(backup, error))
}
