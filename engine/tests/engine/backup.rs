//! Backups are whole and consistent beside a writer, are no store before they are complete, and can be
//! restored.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use annals::io::sim::{Crash, SimIo};
use annals::io::{Io as _, OpenMode};
use annals::{
    Component, ErrorKind, Frame, Options, RunSpec, Status, Store,
    upkeep::{Sharing, diagnose, restore},
};

use crate::support::{
    GrowingConversation, SeededRng, assert_whole, bodies, process_durability_options, recorded, sim_options,
};

fn small_options(sim: &SimIo) -> Options {
    Options { segment_bytes_max: 4 << 10, index_memory_bytes: 4 << 10, ..sim_options(sim) }
}

fn files(sim: &SimIo, of: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    // The reserve holds disk space and no bytes.
    let ours = sim.files().into_iter().filter(|path| path.starts_with(of) && !path.ends_with("RESERVE"));
    ours.map(|path| (path.clone(), sim.read(&path).unwrap())).collect()
}

/// A store with two ended runs, one open run, several segments and tables; and its writer. The open run's
/// entries fit into memory, so that no upkeep thread writes tables while a test compares files.
fn store_with_open_run(sim: &SimIo) -> (Store, annals::Run) {
    let store = Store::open_with("s", small_options(sim)).unwrap();
    let space = store.namespace("default").unwrap();
    for name in ["a", "b"] {
        let (run, _) = recorded(&space, name, 12);
        run.end(Status::Ok).unwrap();
    }
    store.close().unwrap();
    let in_memory = Options { index_memory_bytes: sim_options(sim).index_memory_bytes, ..small_options(sim) };
    let store = Store::open_with("s", in_memory).unwrap();
    let (open, _) = recorded(&store.namespace("default").unwrap(), "open", 5);
    (store, open)
}

fn check(store: &Store, open_frames: std::ops::RangeInclusive<usize>) {
    assert_whole(store);
    let space = store.namespace("default").unwrap();
    for name in ["a", "b"] {
        assert!(
            bodies(&space.run(name).unwrap()) == GrowingConversation::new(name).take(12).collect::<Vec<_>>()
        );
    }
    let found = bodies(&space.run("open").unwrap());
    assert!(open_frames.contains(&found.len()), "{} frames", found.len());
    assert!(found == GrowingConversation::new("open").take(found.len()).collect::<Vec<_>>());
}

#[test]
fn backup_of_store_in_use_is_a_consistent_copy() {
    for sharing in [Sharing::Shared, Sharing::Copied] {
        let sim = SimIo::new(4);
        let (store, run) = store_with_open_run(&sim);
        let before = files(&sim, "s");
        // By the writer itself, and by a reader in another process.
        let report = store.backup("b1", sharing).unwrap();
        let reader = Store::open_read_only_with("s", small_options(&sim)).unwrap();
        assert_eq!(reader.backup("b2", sharing).unwrap(), report);
        assert!(files(&sim, "s") == before);
        assert_eq!(report.seqno, store.seqno());
        assert!(report.segments > 1);
        assert_eq!(report.shared_files > 0, sharing == Sharing::Shared);
        assert_eq!(report.copied_files == 1, sharing == Sharing::Shared);
        // Later commits are not in the backup.
        for (request, answer) in GrowingConversation::new("open").skip(5).take(9) {
            run.record(Frame::new(Component::Llm, request, answer)).unwrap();
        }
        for backup in ["b1", "b2"] {
            check(&Store::open_read_only_with(backup, small_options(&sim)).unwrap(), 5..=5);
            // A power loss now takes nothing from the backup.
            let disk = sim.crash(Crash::Nothing);
            check(&Store::open_read_only_with(backup, small_options(&disk)).unwrap(), 5..=5);
            let copy = Store::open_with(backup, small_options(&disk)).unwrap();
            assert_eq!(copy.id(), store.id());
            let space = copy.namespace("default").unwrap();
            assert_eq!(space.run("open").unwrap().info().status, Status::Abandoned);
            recorded(&space, "more", 3).0.end(Status::Ok).unwrap();
            copy.close().unwrap();
            check(&Store::open_read_only_with(backup, small_options(&disk)).unwrap(), 5..=5);
            // The store and its backup are independent.
            check(&Store::open_read_only_with("s", small_options(&disk)).unwrap(), 14..=14);
        }
        run.end(Status::Ok).unwrap();
        store.close().unwrap();
        let closed = Store::open_read_only_with("s", small_options(&sim)).unwrap();
        closed.backup("b3", sharing).unwrap();
        assert!(diagnose("b3", small_options(&sim)).unwrap().clean);
        check(&Store::open_read_only_with("b3", small_options(&sim)).unwrap(), 14..=14);
    }
}

#[test]
fn crash_during_backup_leaves_no_backup_or_a_whole_one() {
    let sim = SimIo::new(4);
    let (store, run) = store_with_open_run(&sim);
    drop(run);
    store.close().unwrap();
    let began = sim.op_count();
    let reader = Store::open_read_only_with("s", small_options(&sim)).unwrap();
    reader.backup("b", Sharing::Shared).unwrap();
    let done = sim.op_count();
    let (mut none, mut whole) = (0, 0);
    for (point, disk) in sim.history().crashes(3) {
        if point.at < began {
            continue;
        }
        check(&Store::open_read_only_with("s", small_options(&disk)).unwrap(), 5..=5);
        match Store::open_read_only_with("b", small_options(&disk)) {
            Ok(copy) => {
                check(&copy, 5..=5);
                whole += 1;
            }
            Err(error) => {
                // Segments without CURRENT may also be those of a store that lost it, unless there is only an empty one.
                let has = |part: &str| disk.files().iter().any(|path| path.starts_with(part));
                let wanted = match (has("b/MANIFEST-0001"), has("b/segments")) {
                    (true, _) => &[ErrorKind::Damaged][..],
                    (false, true) => &[ErrorKind::NotFound, ErrorKind::Damaged],
                    (false, false) => &[ErrorKind::NotFound],
                };
                assert!(wanted.contains(&error.kind()), "{point}: {error}");
                assert!(point.at < done, "{point}: a finished backup is gone");
                // An unfinished backup cannot be written to as a store, nor replaced by another backup.
                let files: Vec<_> = disk.files().into_iter().filter(|path| path.starts_with("b")).collect();
                if files.iter().any(|path| path.ends_with("00000002.seg")) {
                    assert_eq!(
                        Store::open_with("b", small_options(&disk)).unwrap_err().kind(),
                        ErrorKind::Damaged
                    );
                }
                none += 1;
            }
        }
    }
    println!("{none} crashes left no backup, {whole} a whole one");
    assert!(none > 50 && whole > 1);
}

#[test]
fn restore_needs_whole_backup_and_empty_target() {
    let sim = SimIo::new(4);
    let (store, run) = store_with_open_run(&sim);
    run.end(Status::Ok).unwrap();
    // A backup inside the store would be copied by the next backup.
    for within in ["s", "s/b", "s/segments/b", "./s/b"] {
        let refused = store.backup(within, Sharing::Shared).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{within}: {refused}");
    }
    store.backup("b", Sharing::Shared).unwrap();
    store.close().unwrap();
    let report = restore("b", "r", small_options(&sim)).unwrap();
    assert_eq!(report.shared_files, 0);
    check(&Store::open_read_only_with("r", small_options(&sim)).unwrap(), 5..=5);
    assert_eq!(restore("b", "r", small_options(&sim)).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(restore("none", "r2", small_options(&sim)).unwrap_err().kind(), ErrorKind::NotFound);
    let store = Store::open_read_only_with("b", small_options(&sim)).unwrap();
    assert_eq!(store.backup("r", Sharing::Shared).unwrap_err().kind(), ErrorKind::Invalid);
    drop(store);
    // A flipped byte in the backup's log prevents a restore.
    for (path, bytes) in
        files(&sim, "b").iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "seg"))
    {
        for at in (0..bytes.len()).step_by(211) {
            sim.edit(path, |bytes| bytes[at] ^= 8).unwrap();
            let refused = restore("b", "r3", small_options(&sim)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Damaged, "byte {at} of {}: {refused}", path.display());
            assert!(files(&sim, "r3").is_empty());
            sim.edit(path, |to| to.clone_from(bytes)).unwrap();
        }
    }
    // A damaged table does not.
    let tables = files(&sim, "b").into_keys().filter(|path| path.extension().is_some_and(|e| e == "tbl"));
    let mut restored = 0;
    for path in tables {
        sim.edit(&path, |bytes| bytes[30] ^= 8).unwrap();
        let to = format!("r4-{restored}");
        restore("b", &to, small_options(&sim)).unwrap();
        check(&Store::open_read_only_with(&to, small_options(&sim)).unwrap(), 5..=5);
        restored += 1;
    }
    assert!(restored > 0);
}

#[test]
fn backups_beside_a_writer_on_a_real_disk_hold_whole_batches() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let options = || Options {
        segment_bytes_max: 64 << 10,
        index_memory_bytes: 32 << 10,
        ..process_durability_options()
    };
    let store = Store::open_with(at("s"), options()).unwrap();
    let space = store.namespace("default").unwrap();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    let (stop, recorded) = (AtomicBool::new(false), AtomicU32::new(0));
    let talk: Vec<_> = GrowingConversation::new("r").take(400).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = SeededRng(5);
            for (request, answer) in &talk {
                run.record(Frame::new(Component::Llm, request.clone(), answer.clone())).unwrap();
                if rng.below(8) == 0 {
                    run.snapshot(rng.text(2000), &[]).unwrap();
                }
                recorded.fetch_add(1, Ordering::SeqCst);
                if stop.load(Ordering::SeqCst) {
                    break;
                }
            }
        });
        for round in 0..12 {
            let least = recorded.load(Ordering::SeqCst);
            let name = at(&format!("b{round}"));
            let sharing = if round % 2 == 0 { Sharing::Shared } else { Sharing::Copied };
            let reader = Store::open_read_only_with(at("s"), options()).unwrap();
            let report = reader.backup(&name, sharing).unwrap();
            assert!(report.seqno.0 > 0);
            let copy = Store::open_read_only_with(&name, options()).unwrap();
            assert_whole(&copy);
            let found = bodies(&copy.namespace("default").unwrap().run("r").unwrap());
            assert!(
                found.len() >= least as usize && found[..] == talk[..found.len()],
                "{} {least}",
                found.len()
            );
        }
        stop.store(true, Ordering::SeqCst);
    });
    run.end(Status::Ok).unwrap();
    store.close().unwrap();
    assert_whole(&Store::open_read_only(at("s")).unwrap());
}

#[test]
fn diagnose_reports_store_and_changes_nothing() {
    let sim = SimIo::new(4);
    let (store, run) = store_with_open_run(&sim);
    let before = files(&sim, "s");
    let found = diagnose("s", small_options(&sim)).unwrap();
    assert!(found.writer.as_deref() == Some(std::process::id().to_string().as_str()), "{found:?}");
    assert!(found.is_healthy() && !found.clean && found.open_runs == 1, "{found:?}");
    drop(run);
    let torn = sim.crash(Crash::Torn);
    let found = diagnose("s", small_options(&torn)).unwrap();
    assert!(found.is_healthy() && found.writer.is_none() && !found.recovery_steps().is_empty(), "{found:?}");
    store.close().unwrap();
    assert!(files(&sim, "s") != before);
    let before = files(&sim, "s");
    let found = diagnose("s", small_options(&sim)).unwrap();
    assert!(found.is_healthy() && found.clean && found.recovery_steps().is_empty(), "{found:?}");
    assert!(found.leftovers.is_empty() && found.foreign.is_empty() && found.rebuild.is_empty(), "{found:?}");
    assert_eq!(found.format, Some(4));
    for (path, bytes) in &before {
        let kind = path.extension().map(|end| end.to_string_lossy().into_owned()).unwrap_or_default();
        for at in [bytes.len() / 3, bytes.len() * 2 / 3] {
            sim.edit(path, |bytes| bytes[at] ^= 1).unwrap();
            let hurt = files(&sim, "s");
            let found = diagnose("s", small_options(&sim)).unwrap();
            assert!(files(&sim, "s") == hurt);
            match kind.as_str() {
                "seg" => {
                    assert!(!found.is_healthy(), "{found:?}");
                    assert!(
                        found.findings.iter().any(|one| one.file == *path && one.next.contains("repair"))
                    );
                }
                // A damaged block is a finding, because readers use the others. What must be whole to open the table is
                // not: no reader uses the table then.
                "tbl" => {
                    assert!(found.rebuild[0].file == *path, "{found:?}");
                    assert!(found.findings.iter().all(|one| one.file.ends_with("tables")), "{found:?}");
                    assert!(found.recovery_steps().is_empty(), "{found:?}");
                }
                _ if path.ends_with("CURRENT") => assert!(!found.is_healthy()),
                _ => {}
            }
            sim.edit(path, |to| to.clone_from(bytes)).unwrap();
        }
    }
    assert_eq!(diagnose("nothing", small_options(&sim)).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(Path::new("s").is_relative());
}

/// Regression: an older backup was copied over a newer store. The manifest was that of the backup, and everything was
/// called healthy; the next opening for writing removed the newer files that a compaction had made.
#[test]
fn older_copy_over_a_newer_store_is_refused() {
    let sim = SimIo::new(4);
    let (store, run) = store_with_open_run(&sim);
    run.end(Status::Ok).unwrap();
    store.close().unwrap();
    let older = files(&sim, "s");
    let store = Store::open_with("s", small_options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    for name in ["c", "d"] {
        recorded(&space, name, 12).0.end(Status::Ok).unwrap();
    }
    store.compact(&annals::upkeep::CompactOptions::default()).unwrap();
    store.close().unwrap();
    for (path, bytes) in &older {
        let file = sim.open(path, OpenMode::CreateOrOpen).unwrap();
        file.set_len(0).unwrap();
        file.write_at(&[IoSlice::new(bytes)], 0).unwrap();
    }
    let before = files(&sim, "s");
    assert!(before.len() > older.len());
    for opened in
        [Store::open_read_only_with("s", small_options(&sim)), Store::open_with("s", small_options(&sim))]
    {
        let error = opened.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
        assert!(error.to_string().contains("an older copy was put over this store"), "{error}");
    }
    assert!(!diagnose("s", small_options(&sim)).unwrap().is_healthy());
    let after = files(&sim, "s");
    assert!(before.keys().all(|path| after.contains_key(path)), "a file was removed");
    // Repair takes the records of both.
    let report = annals::upkeep::repair("s", "new", small_options(&sim)).unwrap();
    assert_eq!((report.runs, report.runs_whole, report.lost), (5, 5, Vec::new()), "{:?}", report.damage);
    assert!(report.damage.iter().all(|damage| !damage.what.contains("missing")), "{:?}", report.damage);
}

/// Regression: a copy of a killed store was copied over what the store became. Opening it was refused with the cause, but
/// `diagnose` named a footer instead, and called the newer log file left over: "the next opening removes it".
#[test]
fn newer_log_file_beside_an_older_copy_is_no_leftover() {
    let sim = SimIo::new(5);
    let store = Store::open_with("s", small_options(&sim)).unwrap();
    let put = |store: &Store, key: &[u8]| {
        let keyspace = store.namespace("default").unwrap().keyspace("keys", annals::kv::History::All);
        keyspace.unwrap().put(key, key.to_vec()).unwrap();
    };
    put(&store, b"first");
    // As a process that is killed leaves them.
    let older = files(&sim, "s");
    store.close().unwrap();
    let put_over = || {
        for (path, bytes) in &older {
            let file = sim.open(path, OpenMode::CreateOrOpen).unwrap();
            file.set_len(0).unwrap();
            file.write_at(&[IoSlice::new(bytes)], 0).unwrap();
        }
    };
    for path in files(&sim, "s").keys().filter(|path| !older.contains_key(*path)) {
        sim.remove(path).unwrap();
    }
    put_over();
    let store = Store::open_with("s", small_options(&sim)).unwrap();
    put(&store, b"second");
    store.close().unwrap();
    put_over();
    let error = Store::open_with("s", small_options(&sim)).map(drop).unwrap_err();
    assert!(error.to_string().contains("an older copy was put over this store"), "{error}");
    let found = diagnose("s", small_options(&sim)).unwrap();
    assert!(found.findings[0].what.contains("an older copy was put over this store"), "{:?}", found.findings);
    let newer = |path: &PathBuf| path.starts_with("s/segments");
    assert!(found.unlisted.iter().any(newer) && found.leftovers.is_empty(), "{found:?}");
    let report = annals::upkeep::repair("s", "new", small_options(&sim)).unwrap();
    assert_eq!(report.versions, 2, "{report:?}");
}

/// A store whose table and log are both damaged does not open. `diagnose` must then report what its manifest
/// says. It once reported no tables, no records and an unclean stop.
#[test]
fn diagnose_of_unopenable_store_reports_its_manifest() {
    let sim = SimIo::new(4);
    let (store, run) = store_with_open_run(&sim);
    drop(run);
    store.close().unwrap();
    let whole = diagnose("s", small_options(&sim)).unwrap();
    for (path, bytes) in files(&sim, "s") {
        match path.extension().and_then(|end| end.to_str()) {
            // The footer: an opening need not read the blocks.
            Some("tbl") => sim.edit(&path, |to| to[bytes.len() - 8] ^= 1).unwrap(),
            Some("seg") => sim.edit(&path, |to| to[bytes.len() / 2] ^= 1).unwrap(),
            _ => {}
        }
    }
    assert!(Store::open_read_only_with("s", small_options(&sim)).is_err());
    let found = diagnose("s", small_options(&sim)).unwrap();
    assert!(!found.is_healthy() && found.clean, "{found:?}");
    assert_eq!((found.tables, found.seqno, found.segments), (whole.tables, whole.seqno, whole.segments));
    assert!(found.tables > 0 && found.seqno.0 > 0, "{found:?}");
}
