//! Witnesses: checkpoints as files of a folder that the store's owner cannot change, for example on another machine.
//!
//! A file is created and never changed or replaced. `annals verify --against FOLDER` reads them.

use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use annals::ledger::{Checkpoint, Signature};
use annals::{Store, StoreId};

/// The names of witness files that annals makes begin and end with these.
const PREFIX: &str = "checkpoint-";
const SUFFIX: &str = ".json";
/// Greatest length of a witness file, in bytes.
pub const WITNESS_BYTES_MAX: usize = 1 << 20;

/// The name of a checkpoint's file: store, leaves and time, so that names sort by age.
#[must_use]
pub(crate) fn witness_name(checkpoint: &Checkpoint) -> String {
    let store = checkpoint.store.to_string();
    let store = store.get(..8).unwrap_or_default();
    format!("{PREFIX}{store}-{:012}-{:020}{SUFFIX}", checkpoint.leaves, checkpoint.time_ns)
}

/// Whether a file of a folder counts as a witness: also one that somebody put there under another name. A draft's name
/// begins with a dot.
#[must_use]
pub(crate) fn is_witness_name(name: &str) -> bool {
    name.ends_with(SUFFIX) && !name.starts_with('.')
}

/// Adds a checkpoint to a folder, and returns its file. It is on disk when this returns.
///
/// # Errors
/// Those of the system; `AlreadyExists` if a file of this name is there. The folder must exist.
#[expect(clippy::disallowed_methods, reason = "a folder of the user's, which is no part of a store")]
pub fn write_witness(
    folder: &Path,
    checkpoint: &Checkpoint,
    signature: Option<&Signature>,
) -> io::Result<PathBuf> {
    let json = checkpoint.to_json(signature).map_err(io::Error::other)?;
    let path = folder.join(witness_name(checkpoint));
    // The name is made once the file is whole, so that no reader of the folder sees a part of a witness.
    let draft = folder.join(format!(".{}.{}", witness_name(checkpoint), std::process::id()));
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(&draft)?;
    let written = writeln!(file, "{json}").and_then(|()| file.sync_all());
    let named = written.and_then(|()| std::fs::hard_link(&draft, &path));
    let removed = std::fs::remove_file(&draft);
    named.and(removed)?;
    std::fs::File::open(folder)?.sync_all()?;
    Ok(path)
}

/// Why no witness may be added to a folder: the store does not have the history of the newest one, or the folder has
/// those of other stores alone. A witness made now would cover up what was done to the store, or that it was exchanged.
///
/// # Errors
/// Those of the system and of the store.
pub(crate) fn contradicted_witness(folder: &Path, store: &Store) -> annals::Result<Option<String>> {
    let unreadable = |error: io::Error| {
        annals::Error::new(annals::ErrorKind::Unavailable, format!("{}: {error}", folder.display()))
    };
    let mut newest: Option<(PathBuf, Checkpoint)> = None;
    let (mut other, mut malformed) = (None, None);
    for path in list_witnesses(folder).map_err(unreadable)? {
        let checkpoint = match read_witness(&path) {
            Ok(checkpoint) => checkpoint,
            Err(why) => {
                tracing::warn!(file = %path.display(), %why, "a witness cannot be read and is not compared");
                malformed = Some(format!("{}: {why}", path.display()));
                continue;
            }
        };
        let age = |of: &Checkpoint| (of.leaves, of.time_ns);
        if checkpoint.store != store.id() {
            other = Some(checkpoint.store);
        } else if newest.as_ref().is_none_or(|(_, last)| age(last) <= age(&checkpoint)) {
            newest = Some((path, checkpoint));
        }
    }
    let Some((path, checkpoint)) = newest else {
        let spoiled = malformed.map(|example| {
            format!("no checkpoint in {} is readable; for example {example}", folder.display())
        });
        return Ok(other.map(|other| only_of_another_store(folder, store.id(), other)).or(spoiled));
    };
    let is_contradicted = !store.verify_against(&checkpoint)?.differences.is_empty();
    Ok(is_contradicted.then(|| format!("the store does not have the history that {} covers", path.display())))
}

/// Whether a file still has the checkpoint that was written there.
pub(crate) fn is_kept_witness(file: &Path, checkpoint: &Checkpoint) -> bool {
    read_witness(file).is_ok_and(|found| found == *checkpoint)
}

/// The sentence for a folder that lies in the store whose checkpoints it gets; `None` if it does not.
#[must_use]
pub fn witness_inside_store(folder: &Path, store: &Path) -> Option<String> {
    let (folder_there, store_there) = (folder.canonicalize().ok()?, store.canonicalize().ok()?);
    folder_there.starts_with(store_there).then(|| {
        format!("{} is in the store, so its owner could change the checkpoints, too", folder.display())
    })
}

/// The sentence for a folder that has checkpoints, but none of this store.
#[must_use]
pub fn only_of_another_store(folder: &Path, store: StoreId, other: StoreId) -> String {
    format!(
        "{} has only checkpoints of another store ({other}), and this one is {store}: it may have been exchanged",
        folder.display()
    )
}

#[expect(clippy::disallowed_methods, reason = "a folder of the user's, which is no part of a store")]
fn read_witness(path: &Path) -> annals::Result<Checkpoint> {
    let unreadable = |why: String| annals::Error::new(annals::ErrorKind::Invalid, why);
    // Reading a FIFO would wait for a writer.
    if !path.is_file() {
        return Err(unreadable("it is not a regular file".to_owned()));
    }
    let mut json = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| unreadable(error.to_string()))?;
    let read = file.take(WITNESS_BYTES_MAX as u64 + 1).read_to_end(&mut json);
    read.map_err(|error| unreadable(error.to_string()))?;
    if json.len() > WITNESS_BYTES_MAX {
        return Err(unreadable(format!("it is larger than {WITNESS_BYTES_MAX} bytes")));
    }
    Checkpoint::from_json(&json)
}

/// The names of the witnesses in a folder, in ascending order.
///
/// # Errors
/// Those of the system.
#[expect(clippy::disallowed_methods, reason = "a folder of the user's, which is no part of a store")]
pub fn list_witnesses(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_witness_name) {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test reads the files that it made")]
    fn witness_is_created_and_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("store")).unwrap();
        store.namespace("default").unwrap();
        let checkpoint = store.checkpoint().unwrap();
        let path = write_witness(folder.path(), &checkpoint, None).unwrap();
        let kept = std::fs::read(&path).unwrap();
        assert_eq!(Checkpoint::from_json(&kept).unwrap(), checkpoint);
        let again = write_witness(folder.path(), &checkpoint, None).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), kept);
        assert_eq!(contradicted_witness(folder.path(), &store).unwrap(), None);
        // Regression: a daemon that had checked the folder once added to it whatever became of the files there.
        assert!(is_kept_witness(&path, &checkpoint));
        std::fs::write(&path, "").unwrap();
        assert!(!is_kept_witness(&path, &checkpoint));
        assert!(contradicted_witness(folder.path(), &store).unwrap().unwrap().contains("is readable"));
        std::fs::write(&path, &kept).unwrap();
        let mut other = Checkpoint { time_ns: u64::MAX, ..checkpoint.clone() };
        // Of one leaf: its hash is the root.
        other.root = annals::ledger::NodeHash([7; 32]);
        other.marks.iter_mut().for_each(|mark| mark.node = other.root);
        let forked = write_witness(folder.path(), &other, None).unwrap();
        let why = contradicted_witness(folder.path(), &store).unwrap().unwrap();
        assert!(why.contains(&forked.display().to_string()), "{why}");
        std::fs::remove_file(forked).unwrap();
        let long = folder.path().join("checkpoint-long.json");
        std::fs::write(&long, vec![b' '; WITNESS_BYTES_MAX + 1]).unwrap();
        let why = read_witness(&long).unwrap_err().to_string();
        assert!(why.contains("larger than"), "{why}");
        assert_eq!(contradicted_witness(folder.path(), &store).unwrap(), None, "it is left out");
        std::fs::remove_file(long).unwrap();
        // A store that was put in this one's place would be accepted from its first witness on.
        let exchanged = Store::open(folder.path().join("exchanged")).unwrap();
        let why = contradicted_witness(folder.path(), &exchanged).unwrap().unwrap();
        assert!(why.contains("only checkpoints of another store"), "{why}");
        let older = Checkpoint { leaves: 9, time_ns: 5, ..checkpoint.clone() };
        let newer = Checkpoint { leaves: 10, time_ns: 4, ..checkpoint };
        assert!(witness_name(&older) < witness_name(&newer));
        std::fs::write(folder.path().join("notes.txt"), "mine").unwrap();
        assert_eq!(list_witnesses(folder.path()).unwrap(), [path]);
        assert!(write_witness(&folder.path().join("none"), &newer, None).is_err());
    }
}
