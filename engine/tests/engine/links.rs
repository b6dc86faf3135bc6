//! Links and special files in place of a store's own: each is refused by name, and nothing that it leads to is
//! read, changed, waited for or removed. The store's directory itself may be a link.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use annals::upkeep::{CompactOptions, Sharing, diagnose, repair};
use annals::{Error, ErrorKind, Options, RunSpec, Status, Store};

use crate::support::{GrowingConversation, record};

/// Small segments and little memory, so that there are sealed segments and tables.
fn options() -> Options {
    Options { segment_bytes_max: 8 << 10, index_memory_bytes: 8 << 10, ..Options::default() }
}

/// A store with several segments, tables and a vector file, in `s` of a new directory.
fn new_store() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = Store::open_with(&path, options()).unwrap();
    let run = store.namespace("default").unwrap().begin_run(RunSpec::new("r")).unwrap();
    record(&run, &mut GrowingConversation::new("r"), 12);
    run.snapshot("state", &[("e", &[1.0, 2.0])]).unwrap();
    run.end(Status::Ok).unwrap();
    store.settle_vectors().unwrap();
    store.close().unwrap();
    for kind in ["segments", "tables", "vectors"] {
        assert!(!names(&path.join(kind)).is_empty(), "{kind}");
    }
    (dir, path)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Whether an error says what stands in place of which file.
fn names_the_intruder(error: &Error, place: &Path, what: &str) -> bool {
    let text = error.to_string();
    error.kind() == ErrorKind::Damaged && text.contains(&*place.to_string_lossy()) && text.contains(what)
}

fn open_for_writing(path: &Path) -> annals::Result<()> {
    Store::open_with(path, options())?.close()
}

fn verify(path: &Path) -> annals::Result<()> {
    let report = Store::open_read_only_with(path, options())?.verify()?;
    match report.damaged.first() {
        Some(first) => Err(Error::damaged(path, 0, &first.what)),
        None => Ok(()),
    }
}

fn make_fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// `LOCK` was opened through a link, and the file that it led to became a process number.
#[test]
fn linked_lock_keeps_the_file_that_it_leads_to() {
    let (dir, path) = new_store();
    let victim = dir.path().join("diary");
    fs::write(&victim, "dear diary").unwrap();
    let lock = path.join("LOCK");
    fs::remove_file(&lock).unwrap();
    symlink(&victim, &lock).unwrap();
    let error = open_for_writing(&path).unwrap_err();
    assert_eq!(fs::read(&victim).unwrap(), b"dear diary");
    assert!(names_the_intruder(&error, &lock, "a symbolic link"), "{error}");
    // A dangling link would have made a file elsewhere.
    let elsewhere = dir.path().join("made");
    fs::remove_file(&lock).unwrap();
    symlink(&elsewhere, &lock).unwrap();
    assert!(names_the_intruder(&open_for_writing(&path).unwrap_err(), &lock, "a symbolic link"));
    assert!(!elsewhere.exists());
    fs::remove_file(&lock).unwrap();
    open_for_writing(&path).unwrap();
}

/// Opening a named pipe waits for its other end: `verify` of a store whose `CURRENT` was one hung for good.
#[test]
fn pipe_in_place_of_any_file_is_refused_not_waited_for() {
    let (_dir, path) = new_store();
    let manifest = names(&path).into_iter().find(|name| name.starts_with("MANIFEST")).unwrap();
    let first = |kind: &str| PathBuf::from(kind).join(names(&path.join(kind)).first().unwrap());
    for name in ["CURRENT".into(), manifest.into(), first("segments"), "LOCK".into()] {
        let (place, aside) = (path.join(&name), path.join("aside"));
        fs::rename(&place, &aside).unwrap();
        make_fifo(&place);
        let written = open_for_writing(&path).unwrap_err();
        assert!(names_the_intruder(&written, &place, "a named pipe"), "{written}");
        if place != path.join("LOCK") {
            let read = verify(&path).unwrap_err();
            assert!(names_the_intruder(&read, &place, "a named pipe"), "{read}");
            let findings = diagnose(&path, options()).unwrap().findings;
            assert!(findings.iter().any(|finding| finding.what.contains("a named pipe")), "{findings:?}");
        }
        fs::rename(&aside, &place).unwrap();
        verify(&path).unwrap();
    }
    // A table is a cache: it is made again from the log.
    let (place, aside) = (path.join(first("tables")), path.join("aside"));
    fs::rename(&place, &aside).unwrap();
    make_fifo(&place);
    open_for_writing(&path).unwrap();
    verify(&path).unwrap();
}

/// A writer removes files that its manifest does not list. Through a linked directory it removed another
/// store's tables, or files that only looked like segments.
#[test]
fn linked_directory_is_refused_and_its_files_stay() {
    for kind in ["segments", "tables", "vectors"] {
        let (dir, path) = new_store();
        let (inner, foreign) = (path.join(kind), dir.path().join("foreign"));
        fs::rename(&inner, &foreign).unwrap();
        let name = match kind {
            "segments" => "10000009.seg",
            "tables" => "00009999.tbl",
            _ => "00009999.vec",
        };
        fs::write(foreign.join(name), "not yours").unwrap();
        let before = names(&foreign);
        symlink(&foreign, &inner).unwrap();
        let error = open_for_writing(&path).and_then(|()| {
            // Only the vectors are first needed later.
            let store = Store::open_with(&path, options())?;
            let done = store.settle_vectors().and_then(|()| store.compact(&CompactOptions::default()));
            store.close()?;
            done.map(drop)
        });
        assert_eq!(names(&foreign), before, "{kind}");
        if let Err(error) = error {
            assert!(names_the_intruder(&error, &inner, "a symbolic link"), "{kind}: {error}");
        } else {
            assert_eq!(kind, "vectors");
        }
        if kind == "segments" {
            assert!(names_the_intruder(&verify(&path).unwrap_err(), &inner, "a symbolic link"));
        }
        fs::remove_file(&inner).unwrap();
        fs::rename(&foreign, &inner).unwrap();
        open_for_writing(&path).unwrap();
        verify(&path).unwrap();
    }
}

/// A backup read through a linked segment or table, so that it could copy any file of its user. Where files
/// are shared, the copy got the link itself.
#[test]
fn backup_and_repair_copy_no_file_through_a_link() {
    for kind in ["segments", "tables", "vectors"] {
        let (dir, path) = new_store();
        let store = Store::open_read_only_with(&path, options()).unwrap();
        let place = path.join(kind).join(names(&path.join(kind)).first().unwrap());
        let elsewhere = dir.path().join("elsewhere");
        fs::rename(&place, &elsewhere).unwrap();
        symlink(&elsewhere, &place).unwrap();
        for (n, sharing) in [Sharing::Shared, Sharing::Copied].into_iter().enumerate() {
            let to = dir.path().join(format!("b{n}"));
            let error = store.backup(&to, sharing).unwrap_err();
            assert!(names_the_intruder(&error, &place, "a symbolic link"), "{kind}: {error}");
            assert!(!to.join("CURRENT").exists());
        }
        let report = repair(&path, dir.path().join("r"), options()).unwrap();
        assert_eq!(report.damage.iter().any(|at| at.what.contains("a symbolic link")), kind == "segments");
        assert_eq!(report.lost.is_empty(), kind != "segments", "{kind}: {report:?}");
    }
}

/// After LOCK was removed, a second writer locked a new file of that name, and both wrote to one log.
#[test]
fn removed_lock_file_admits_no_second_writer() {
    let (_dir, path) = new_store();
    let store = Store::open_with(&path, options()).unwrap();
    fs::remove_file(path.join("LOCK")).unwrap();
    for _ in 0..2 {
        let error = Store::open_with(&path, options()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
        assert_eq!(repair(&path, path.join("../r"), options()).unwrap_err().kind(), ErrorKind::Locked);
        assert!(diagnose(&path, options()).unwrap().writer.is_some());
    }
    let run = store.namespace("default").unwrap().begin_run(RunSpec::new("second")).unwrap();
    record(&run, &mut GrowingConversation::new("second"), 12);
    run.end(Status::Ok).unwrap();
    store.close().unwrap();
    open_for_writing(&path).unwrap();
    verify(&path).unwrap();
}

/// What the writer locked can still be moved away and replaced by a copy. Then a second writer is admitted,
/// and the first one must not change the list of files any more.
#[test]
fn replaced_segments_directory_stops_the_first_writer() {
    let (dir, path) = new_store();
    let store = Store::open_with(&path, options()).unwrap();
    let space = store.namespace("default").unwrap();
    let aside = dir.path().join("aside");
    fs::rename(path.join("segments"), &aside).unwrap();
    assert!(Command::new("cp").arg("-r").arg(&aside).arg(path.join("segments")).status().unwrap().success());
    fs::remove_file(path.join("LOCK")).unwrap();
    open_for_writing(&path).unwrap();
    let current = fs::read(path.join("CURRENT")).unwrap();
    let run = space.begin_run(RunSpec::new("second")).unwrap();
    let mut frames = GrowingConversation::new("second");
    let error = loop {
        let (input, output) = frames.next().unwrap();
        let frame = annals::Frame::new(annals::Component::Llm, input, output);
        if let Err(error) = run.record(frame) {
            break error;
        }
    };
    assert!(error.to_string().contains("was replaced or removed"), "{error}");
    assert_eq!(run.end(Status::Ok).unwrap_err().kind(), ErrorKind::Poisoned);
    assert!(store.close().is_err());
    assert_eq!(fs::read(path.join("CURRENT")).unwrap(), current, "the second writer's");
}

#[test]
fn store_directory_may_be_a_link() {
    let (dir, path) = new_store();
    let link = dir.path().join("link");
    symlink(&path, &link).unwrap();
    open_for_writing(&link).unwrap();
    verify(&link).unwrap();
    let held = Store::open_with(&link, options()).unwrap();
    assert_eq!(Store::open_with(&path, options()).unwrap_err().kind(), ErrorKind::Locked);
    held.backup(dir.path().join("b"), Sharing::Shared).unwrap();
    verify(&dir.path().join("b")).unwrap();
    held.close().unwrap();
}

/// A hard link leads to a foreign file, too: `LOCK` wrote a process number into it, and the active segment the
/// next records.
#[test]
fn written_file_with_another_name_is_refused() {
    let (dir, path) = new_store();
    let is_rewritten = |name: &String| name.len() > "00000001.seg".len();
    let active = names(&path.join("segments")).into_iter().rfind(|name| !is_rewritten(name)).unwrap();
    for name in [PathBuf::from("LOCK"), PathBuf::from("segments").join(active)] {
        let (place, other) = (path.join(&name), dir.path().join("other"));
        fs::hard_link(&place, &other).unwrap();
        let before = fs::read(&other).unwrap();
        let error = open_for_writing(&path).unwrap_err();
        assert!(names_the_intruder(&error, &place, "a hard link"), "{error}");
        assert_eq!(fs::read(&other).unwrap(), before);
        verify(&path).unwrap();
        fs::remove_file(&other).unwrap();
        open_for_writing(&path).unwrap();
    }
    // Backups share sealed files, which are never written again.
    let store = Store::open_with(&path, options()).unwrap();
    assert!(store.backup(dir.path().join("b"), Sharing::Shared).unwrap().shared_files > 0);
    store.close().unwrap();
    open_for_writing(&path).unwrap();
    open_for_writing(&dir.path().join("b")).unwrap();
}
