//! Compaction: equal answers before and after, space reclaimed, readers and writers beside it, and what it
//! refuses.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use annals::io::sim::{Crash, FailRule, OpKind, SimIo};
use annals::{
    Component, ErrorKind, Frame, Keyspace, Namespace, Options, RunSpec, Status, Store,
    kv::{History, ScanRange},
    upkeep::{CompactOptions, CompactPhase, CompactReport},
};

use crate::support::{
    GrowingConversation, SeededRng, assert_whole, bodies, delete_tables, process_durability_options, record,
    recorded, seed, sim_options,
};

const SPACES: [(&str, History); 4] = [
    ("all", History::All),
    ("latest", History::Latest),
    ("two", History::Newest(2)),
    ("age", History::Age(Duration::from_secs(3600))),
];

fn compact(store: &Store) -> CompactReport {
    store.compact(&CompactOptions::default()).unwrap()
}

/// Small segments, so that a test has several.
fn small() -> Options {
    Options { segment_bytes_max: 32 << 10, ..process_durability_options() }
}

/// The kind and layout of the record that puts this key, and the 16 bytes before its head: in layout 2 the key of
/// its batch's salts.
fn salt_of_put(bytes: &[u8], key: &[u8]) -> Option<(u8, u8, [u8; 16])> {
    let at = bytes.windows(key.len()).position(|window| window == key)?;
    // Code of kind and layout, length, key of salts, length of the head, keyspace, time, length of the key.
    let front = bytes.get(at.checked_sub(1 + 1 + 16 + 1 + 1 + 8 + 1)?..)?;
    Some((front[0] & 31, 1 + (front[0] >> 5), *front[2..].first_chunk()?))
}

/// The salts of a batch follow from one key. While that key is in the store, the salt of an erased record could be
/// computed, and its content guessed from the hash that the ledger keeps.
#[test]
fn key_of_salts_goes_with_the_first_erased_record() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = Store::open_with(&path, small()).unwrap();
    let space = store.namespace("default").unwrap();
    let keys = space.keyspace("latest", History::Latest).unwrap();
    let mut rng = SeededRng(9);
    for (first, others) in [("holder", "secret"), ("intact", "plain")] {
        let mut batch = space.batch();
        batch.put(&keys, first.as_bytes(), b"small".to_vec());
        for at in 0..5 {
            batch.put(&keys, format!("{others} {at}").as_bytes(), rng.bytes(3000));
        }
        batch.commit().unwrap();
    }
    let log = || -> Vec<u8> {
        let segments = path.join("segments");
        segment_files(&path).iter().flat_map(|name| std::fs::read(segments.join(name)).unwrap()).collect()
    };
    let holds = |wanted: [u8; 16]| log().windows(16).any(|window| window == wanted);
    let before = log();
    let (1, 2, key) = salt_of_put(&before, b"holder").unwrap() else { panic!("no key") };
    let (1, 2, intact) = salt_of_put(&before, b"intact").unwrap() else { panic!("no key") };
    assert!(key != intact && holds(key) && holds(intact));
    for at in 0..5 {
        keys.put(format!("secret {at}").as_bytes(), "new").unwrap();
    }
    for at in 0..20 {
        keys.put(format!("later {at}").as_bytes(), rng.bytes(3000)).unwrap();
    }
    let kept = store.checkpoint().unwrap();
    assert!(compact(&store).rewritten > 0);
    assert!(!holds(key), "the key goes with the erased records");
    assert!(holds(intact), "a batch that stays whole keeps its key");
    let (kind, layout, _) = salt_of_put(&log(), b"holder").unwrap();
    assert_eq!((kind, layout), (1, 1), "the salts of the others are written out");
    assert_eq!(keys.get(b"holder").unwrap().unwrap(), b"small");
    assert_eq!(store.verify_against(&kept).unwrap().differences, []);
    assert_whole(&store);
}

fn keyspaces(space: &Namespace) -> Vec<Keyspace> {
    SPACES.iter().map(|(name, history)| space.keyspace(name, *history).unwrap()).collect()
}

/// Everything that can be asked of a store, as text.
fn answers(store: &Store) -> String {
    let mut said = String::new();
    for name in store.namespaces().unwrap() {
        let space = store.namespace(&name).unwrap();
        let _ = writeln!(said, "namespace {name}");
        for (name, _) in SPACES {
            let Some(keys) = space.find_keyspace(name).unwrap() else { continue };
            for pair in keys.scan(ScanRange::all()) {
                let (key, value) = pair.unwrap();
                let _ = writeln!(said, "{name} {key:?} {} {:?}", value.len(), blake3::hash(&value));
                for version in keys.history(&key).unwrap() {
                    let _ =
                        writeln!(said, "  {} {:?}", version.seqno.0, version.value.map(|v| blake3::hash(&v)));
                }
            }
        }
        for run in space.runs().unwrap() {
            let info = run.unwrap();
            let reader = space.run(&info.name).unwrap();
            let _ = writeln!(said, "{info:?} {:?}", reader.metadata().unwrap());
            for frame in reader.frames() {
                let frame = frame.unwrap();
                let snapshot = reader.snapshot(frame.seq).ok();
                let _ = writeln!(said, "{} {:?} {:?} {snapshot:?}", frame.seq, frame.link, frame.output_id);
            }
        }
    }
    said
}

/// A store with much dead data: replaced runs, overwritten keys.
fn store_after_use(path: &Path, options: Options) -> (Store, Namespace) {
    let store = Store::open_with(path, options).unwrap();
    let space = store.namespace("default").unwrap();
    let keys = keyspaces(&space);
    for round in 0..6u64 {
        for name in ["a", "b", "kept"] {
            if name == "kept" && round > 0 {
                continue;
            }
            let run = space.begin_run(RunSpec::new(name).replace(true)).unwrap();
            record(&run, &mut GrowingConversation::new(&format!("{name}{round}")), 20);
            run.snapshot(SeededRng(round).bytes(3000), &[("e", &[1.0, 2.0])]).unwrap();
            run.end(Status::Ok).unwrap();
        }
        for (index, keys) in keys.iter().enumerate() {
            for key in 0..20u8 {
                keys.put(&[key], SeededRng(round * 100 + index as u64).bytes(100)).unwrap();
                if key == 7 {
                    keys.put(&[key], SeededRng(round).bytes(9000)).unwrap();
                }
                if key > 15 {
                    keys.delete(&[key]).unwrap();
                }
            }
        }
    }
    (store, space)
}

#[test]
fn a_compacted_store_gives_the_same_answers_in_less_room() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (store, _) = store_after_use(&path, small());
    let before = (answers(&store), store.stats().unwrap());
    let checkpoint = store.checkpoint().unwrap();
    let done = compact(&store);
    println!("{done:?}");
    assert!(done.rewritten > 3 && done.made_bytes * 3 < done.rewritten_bytes * 2, "{done:?}");
    let after = (answers(&store), store.stats().unwrap());
    assert_eq!(before.0, after.0);
    // The ledger grows by the statement of what was erased.
    assert_eq!(before.1.ledger_leaves + 1, after.1.ledger_leaves);
    assert_eq!(store.verify_against(&checkpoint).unwrap().differences, []);
    assert_eq!((before.1.runs, before.1.frames), (after.1.runs, after.1.frames));
    assert!(after.1.disk_bytes < before.1.disk_bytes);
    // Dropped runs are no longer counted; the others all are.
    let bytes = [before.1.bytes, after.1.bytes];
    assert!(bytes[1].pieces < bytes[0].pieces && bytes[1].kv_records < bytes[0].kv_records, "{bytes:?}");
    // Every byte has a purpose, also the room written ahead and the headers of files.
    assert!(bytes[1].other == 0 && bytes[1].log_files > 0 && bytes[1].manifest > 0, "{bytes:?}");
    assert_whole(&store);
    // A second compaction has nothing to do.
    let again = compact(&store);
    assert_eq!((again.rewritten, again.made), (0, 0), "{again:?}");
    store.close().unwrap();
    let store = crate::support::writer(&path).unwrap();
    assert_eq!(answers(&store), before.0);
    assert_whole(&store);
    // A closing that compresses the tail states it in the ledger.
    let root = store.stats().unwrap().ledger_root;
    store.close().unwrap();
    // The log alone gives the same answers.
    delete_tables(&path);
    let store = crate::support::writer(&path).unwrap();
    assert_eq!(answers(&store), before.0);
    assert_eq!(store.stats().unwrap().ledger_root, root);
    assert_whole(&store);
}

/// A store without dead data was once left alone by a recompression, which packed only segments that were
/// rewritten anyway.
#[test]
fn a_store_that_lives_whole_is_recompressed_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_with(dir.path().join("s"), process_durability_options()).unwrap();
    let space = store.namespace("default").unwrap();
    for number in 0..4 {
        recorded(&space, &format!("r{number}"), 40).0.end(Status::Ok).unwrap();
    }
    let (before, pieces) = (answers(&store), store.stats().unwrap().bytes.pieces);
    assert_eq!(compact(&store).rewritten, 0, "nothing is dead");
    let recompress =
        CompactOptions { recompress: Some(CompactOptions::RECOMPRESS_LEVEL), ..CompactOptions::default() };
    let done = store.compact(&recompress).unwrap();
    assert!(done.rewritten > 0, "{done:?}");
    let after = store.stats().unwrap().bytes.pieces;
    assert!(after < pieces, "{after} of {pieces} bytes");
    assert_eq!(store.compact(&recompress).unwrap().rewritten, 0, "all sealed segments are packed already");
    assert_eq!(answers(&store), before);
    assert_whole(&store);
}

fn segment_files(path: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(path.join("segments"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Their numbers begin at 2 to the power of 31.
fn is_rewritten(name: &str) -> bool {
    name.len() > "00000001.seg".len()
}

/// An action to run once, when a phase begins.
fn on_first_phase(
    phase: CompactPhase,
    act: impl Fn() + Send + Sync + 'static,
) -> Option<Arc<dyn Fn(annals::upkeep::CompactProgress) + Send + Sync>> {
    let done = AtomicBool::new(false);
    Some(Arc::new(move |progress| {
        if progress.phase == phase && !done.swap(true, Ordering::SeqCst) {
            act();
        }
    }))
}

#[test]
fn readers_begun_before_compaction_continue_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (store, space) = store_after_use(&path, small());
    let keys = keyspaces(&space);
    let view = space.view();
    let mut scan = view.scan(&keys[0], ScanRange::all());
    let first = scan.next().unwrap().unwrap();
    let mut versions = keys[0].versions(&[3]).unwrap();
    let newest = versions.next().unwrap().unwrap();
    let reader = space.run("kept").unwrap();
    let mut walk = reader.frames();
    walk.next().unwrap().unwrap();
    // The store in other readers: one refreshes with a view open, one without, one never.
    let theirs: Vec<Store> = (0..3).map(|_| crate::support::reader(&path).unwrap()).collect();
    let their_view = theirs[0].namespace("default").unwrap().view();
    let before = answers(&store);
    let value = keys[1].get(&[2]).unwrap();
    // An open view keeps all versions, so only runs are removed.
    let done = compact(&store);
    assert!(done.rewritten > 0 && done.pending_bytes > 0, "{done:?}");
    assert_eq!(scan.count(), 15, "after {first:?}");
    assert!(versions.all(|version| version.unwrap().seqno < newest.seqno));
    drop(versions);
    assert_eq!(walk.map(Result::unwrap).count(), 19);
    assert_eq!(view.get(&keys[1], &[2]).unwrap(), value);
    drop(view);
    let done = compact(&store);
    assert!(done.rewritten > 0, "{done:?}");
    for (number, theirs) in theirs.iter().enumerate() {
        assert_eq!(answers(theirs), before, "{number}");
        if number < 2 {
            theirs.refresh().unwrap();
            assert_eq!(answers(theirs), before, "{number} refreshed");
        }
    }
    assert_eq!(
        their_view
            .get(&theirs[0].namespace("default").unwrap().find_keyspace("latest").unwrap().unwrap(), &[2])
            .unwrap(),
        value
    );
    drop(their_view);
    keys[1].put(&[99], "new").unwrap();
    let done = compact(&store);
    theirs.iter().for_each(|theirs| theirs.refresh().unwrap());
    for theirs in &theirs {
        assert_eq!(answers(theirs), answers(&store), "{done:?}");
        assert_whole(theirs);
    }
}

/// Reports once counted only readers of the last generation, and none from before the store was opened for
/// writing.
#[test]
fn pinned_old_files_are_reported_while_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (store, space) = store_after_use(&path, small());
    drop(space);
    store.close().unwrap();
    let reader = crate::support::reader(&path).unwrap();
    let store = Store::open_with(&path, small()).unwrap();
    let space = store.namespace("default").unwrap();
    let first = compact(&store);
    assert!(first.rewritten > 0 && first.pending_bytes == first.rewritten_bytes, "{first:?}");
    // A reader that opens between the compactions reads only files that the second one removes.
    let between = crate::support::reader(&path).unwrap();
    let run = space.begin_run(RunSpec::new("more")).unwrap();
    record(&run, &mut GrowingConversation::new("more"), 20);
    run.end(Status::Ok).unwrap();
    space.drop_run("more", "rule", "").unwrap();
    let second = compact(&store);
    assert!(second.rewritten > 0, "{second:?}");
    assert_eq!(second.pending_bytes, first.rewritten_bytes + second.rewritten_bytes);
    drop(reader);
    assert_eq!(compact(&store).pending_bytes, second.rewritten_bytes);
    drop(between);
    assert_eq!(compact(&store).pending_bytes, 0);
}

/// The reader's end of the log is in a segment that compaction removes, and a view keeps the reader from
/// taking new tables.
#[test]
fn reader_refreshes_past_rewritten_segments() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (store, space) = store_after_use(&path, small());
    let keys = keyspaces(&space);
    let theirs = crate::support::reader(&path).unwrap();
    let view = theirs.namespace("default").unwrap().view();
    for round in 0..20u64 {
        keys[1].put(b"new", SeededRng(round).bytes(3000)).unwrap();
        keys[0].put(&[1], SeededRng(round).bytes(1000)).unwrap();
    }
    assert!(compact(&store).rewritten > 0);
    theirs.refresh().unwrap();
    assert_eq!(answers(&theirs), answers(&store));
    drop(view);
    theirs.refresh().unwrap();
    assert_eq!(answers(&theirs), answers(&store));
}

/// Dead content is recorded again while a compaction scans and while it writes. The fence keeps such batches
/// from naming the old bytes.
#[test]
fn recording_beside_compaction_never_names_removed_bytes() {
    for phase in [CompactPhase::Looking, CompactPhase::Writing] {
        let dir = tempfile::tempdir().unwrap();
        let (store, space) = store_after_use(&dir.path().join("s"), small());
        let dead: Vec<_> =
            (0..6).map(|n| (SeededRng(900 + n).bytes(9000), SeededRng(950 + n).text(3000))).collect();
        let run = space.begin_run(RunSpec::new("dead")).unwrap();
        for (input, output) in dead.clone() {
            run.record(Frame::new(Component::Tool, input, output)).unwrap();
        }
        run.end(Status::Ok).unwrap();
        space.begin_run(RunSpec::new("dead").replace(true)).unwrap().end(Status::Ok).unwrap();
        let (theirs, again) = (space.clone(), dead.clone());
        let progress = on_first_phase(phase, move || {
            let run = theirs.begin_run(RunSpec::new("again")).unwrap();
            for (input, output) in again.clone() {
                run.record(Frame::new(Component::Tool, input, output)).unwrap();
            }
            run.end(Status::Ok).unwrap();
        });
        let done = store.compact(&CompactOptions { progress, ..CompactOptions::default() }).unwrap();
        assert!(done.rewritten > 0);
        assert_eq!(bodies(&space.run("again").unwrap()), dead, "{phase:?}");
        assert_whole(&store);
        // New bodies that are deduplicated against the compacted log are whole, too.
        let run = space.begin_run(RunSpec::new("third")).unwrap();
        for (input, output) in dead.clone() {
            run.record(Frame::new(Component::Tool, input, output)).unwrap();
        }
        for topic in ["a0", "b3", "kept0"] {
            for (input, output) in GrowingConversation::new(topic).take(20) {
                run.record(Frame::new(Component::Llm, input, output)).unwrap();
            }
        }
        run.end(Status::Ok).unwrap();
        assert_whole(&store);
        assert!(compact(&store).segments > 0);
        assert_whole(&store);
    }
}

#[test]
fn open_runs_streams_blobs_and_forks_go_on_over_compactions() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (store, space) = store_after_use(&path, small());
    let (run, mut talk) = recorded(&space, "open", 10);
    let open = run.begin_frame(&Frame::new(Component::Llm, SeededRng(5).bytes(5000), "")).unwrap();
    open.append(&SeededRng(6).bytes(4000)).unwrap();
    open.flush().unwrap();
    let blob = space.store_blob(&SeededRng(7).bytes(50_000)[..]).unwrap();
    let fork = space.fork("b", 10, false, RunSpec::new("fork")).unwrap();
    let prepared = space.prepare_fork("a", 5, false, RunSpec::new("prepared")).unwrap();
    // The parents are replaced: their first frames live on in the forks.
    for name in ["a", "b"] {
        space.begin_run(RunSpec::new(name).replace(true)).unwrap().end(Status::Ok).unwrap();
    }
    let stale = space.run("kept").unwrap();
    for round in 0..3 {
        for key in 0..200u32 {
            keyspaces(&space)[1].put(&key.to_be_bytes(), SeededRng(round).bytes(300)).unwrap();
        }
        assert!(compact(&store).rewritten > 0, "{round}");
        record(&run, &mut talk, 3);
        record(&fork, &mut GrowingConversation::new(&format!("fork{round}")), 3);
    }
    record(&prepared, &mut GrowingConversation::new("prepared"), 2);
    prepared.end(Status::Ok).unwrap();
    fork.end(Status::Ok).unwrap();
    open.append(&SeededRng(8).bytes(100)).unwrap();
    let seq = open.finish(false).unwrap();
    run.record(Frame::new(Component::Tool, blob.clone(), "")).unwrap();
    drop(blob);
    run.end(Status::Ok).unwrap();
    let check = |space: &Namespace| {
        let open = space.run("open").unwrap();
        assert_eq!(
            open.frame(seq).unwrap().output,
            [SeededRng(6).bytes(4000), SeededRng(8).bytes(100)].concat()
        );
        assert_eq!(open.frame(open.info().frames).unwrap().input, SeededRng(7).bytes(50_000));
        let shared: Vec<_> = GrowingConversation::new("b5").take(10).collect();
        assert_eq!(bodies(&space.run("fork").unwrap())[..10], shared);
        let shared: Vec<_> = GrowingConversation::new("a5").take(5).collect();
        assert_eq!(bodies(&space.run("prepared").unwrap())[..5], shared);
        assert_eq!(bodies(&stale)[..], GrowingConversation::new("kept0").take(20).collect::<Vec<_>>());
    };
    check(&space);
    assert_whole(&store);
    compact(&store);
    check(&space);
    assert_whole(&store);
    let before = answers(&store);
    drop((stale, run, fork, prepared, space));
    store.close().unwrap();
    delete_tables(&path);
    let store = crate::support::writer(&path).unwrap();
    assert_eq!(answers(&store), before);
    assert_whole(&store);
}

#[test]
fn reader_of_dropped_run_gets_gone_error() {
    let dir = tempfile::tempdir().unwrap();
    let (store, space) = store_after_use(&dir.path().join("s"), small());
    let reader = space.run("a").unwrap();
    let frames = reader.info().frames;
    space.begin_run(RunSpec::new("a").replace(true)).unwrap().end(Status::Ok).unwrap();
    compact(&store);
    for seq in 1..=frames {
        assert_eq!(reader.frame(seq).unwrap_err().kind(), ErrorKind::Gone, "{seq}");
    }
    assert_eq!(reader.frames().next().unwrap().unwrap_err().kind(), ErrorKind::Gone);
    assert_whole(&store);
}

/// The first segment is alive but for one value, and is not rewritten. The value's tombstone stands in a
/// segment that is mostly dead. Without the tombstone the log alone would show the value again.
#[test]
fn tombstone_stays_while_its_target_may_reappear() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = Store::open_with(&path, small()).unwrap();
    let space = store.namespace("default").unwrap();
    let keys = keyspaces(&space);
    for keys in &keys {
        keys.put(b"ended", "first").unwrap();
    }
    let run = space.begin_run(RunSpec::new("replaced")).unwrap();
    run.record(Frame::new(Component::Llm, "a", "b")).unwrap();
    run.end(Status::Ok).unwrap();
    let fill = |from: u32, keyspace: &Keyspace| {
        for key in from..from + 40 {
            keyspace.put(&(key % 1000).to_be_bytes(), SeededRng(u64::from(key)).bytes(1000)).unwrap();
        }
    };
    fill(0, &keys[0]);
    fill(100, &keys[1]);
    for keys in &keys {
        keys.delete(b"ended").unwrap();
    }
    space.begin_run(RunSpec::new("replaced").replace(true)).unwrap().end(Status::Ok).unwrap();
    space.begin_run(RunSpec::new("replaced").replace(true)).unwrap().end(Status::Ok).unwrap();
    for _ in 0..4 {
        fill(200, &keys[1]);
    }
    let done = compact(&store);
    assert!(done.rewritten > 0 && segment_files(&path)[0] == "00000001.seg", "{done:?}");
    let before = answers(&store);
    store.close().unwrap();
    delete_tables(&path);
    let store = Store::open_with(&path, small()).unwrap();
    assert_eq!(answers(&store), before);
    let space = store.namespace("default").unwrap();
    for keys in keyspaces(&space) {
        assert_eq!(keys.get(b"ended").unwrap(), None);
    }
    // Once everything before the tombstone is removed, so is the tombstone.
    let keys = keyspaces(&space);
    for key in 0..40u32 {
        keys[0].put(&key.to_be_bytes(), "small").unwrap();
    }
    let latest = &keys[1];
    for key in (0..1000u32).filter(|key| *key >= 240 || *key < 200) {
        latest.put(&key.to_be_bytes(), "").unwrap();
        latest.delete(&key.to_be_bytes()).unwrap();
    }
    let gone = |store: &Store| {
        store
            .namespace("default")
            .unwrap()
            .find_keyspace("latest")
            .unwrap()
            .unwrap()
            .history(b"ended")
            .unwrap()
            .is_empty()
    };
    assert!(!gone(&store));
    for _ in 0..3 {
        compact(&store);
    }
    drop((keys, space));
    store.close().unwrap();
    delete_tables(&path);
    let store = Store::open_with(&path, small()).unwrap();
    assert_eq!(store.namespace("default").unwrap().run("replaced").unwrap().info().frames, 0);
    assert_whole(&store);
}

#[test]
fn versions_past_history_age_are_gone() {
    let sim = SimIo::new(3);
    let store = Store::open_with("s", Options { segment_bytes_max: 16 << 10, ..sim_options(&sim) }).unwrap();
    let space = store.namespace("default").unwrap();
    let keys = &keyspaces(&space)[3];
    let mut seqnos = vec![store.seqno()];
    for version in 0..6u64 {
        for key in 0..10u8 {
            keys.put(&[key], SeededRng(version).bytes(500)).unwrap();
        }
        seqnos.push(store.seqno());
        sim.advance_ns(1_000_000_000_000);
    }
    let said = |seqno| match keys.get_at(&[4], seqno) {
        Ok(value) => value.map(|value| blake3::hash(&value).to_hex().to_string()),
        Err(error) => Some(format!("{:?}", error.kind())),
    };
    let before: Vec<_> = seqnos.iter().map(|seqno| said(*seqno)).collect();
    assert_eq!(before[1].as_deref(), Some("Gone"));
    assert!(compact(&store).rewritten > 0);
    let after: Vec<_> = seqnos.iter().map(|seqno| said(*seqno)).collect();
    // The history before the horizon is unknown.
    assert_eq!(before[1..], after[1..]);
    assert_eq!(after[0].as_deref(), Some("Gone"));
}

#[test]
fn dropped_run_is_removed_from_any_segment() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store =
        Store::open_with(&path, Options { segment_bytes_max: 256 << 10, ..process_durability_options() })
            .unwrap();
    let space = store.namespace("default").unwrap();
    let secret = b"the secret of this run, as it was said in it";
    let run = space.begin_run(RunSpec::new("small").agent("the secret agent")).unwrap();
    let uid = run.uid();
    let open = run.begin_frame(&Frame::new(Component::Llm, secret.to_vec(), "")).unwrap();
    open.append(secret).unwrap();
    open.flush().unwrap();
    open.finish(false).unwrap();
    run.end(Status::Ok).unwrap();
    recorded(&space, "large", 60).0.end(Status::Ok).unwrap();
    space.begin_run(RunSpec::new("small").replace(true)).unwrap().end(Status::Ok).unwrap();
    let found = || {
        let files = segment_files(&path);
        let bytes: Vec<u8> =
            files.iter().flat_map(|name| std::fs::read(path.join("segments").join(name)).unwrap()).collect();
        bytes.windows(16).any(|window| window == b"the secret agent")
    };
    assert_eq!(compact(&store).rewritten, 0);
    assert!(found());
    let done = store.compact(&CompactOptions { must_go: vec![uid], ..CompactOptions::default() }).unwrap();
    assert_eq!(done.rewritten, 1, "{done:?}");
    assert!(!found());
    assert_whole(&store);
}

#[test]
fn dry_cancelled_and_concurrent_compaction_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (store, _) = store_after_use(&path, small());
    let before = answers(&store);
    let told = store.compact(&CompactOptions { dry_run: true, ..CompactOptions::default() }).unwrap();
    assert!(told.dry_run && told.rewritten > 0 && told.freed_bytes() > 0);
    // A preview once sealed the active segment: it changed the store, and a reader could not make one.
    let dry = CompactOptions { dry_run: true, ..CompactOptions::default() };
    let seen = Store::open_read_only_with(&path, small()).unwrap();
    let again = seen.compact(&dry).unwrap();
    // Tables may have been written meanwhile.
    assert_eq!(CompactReport { needed_bytes: told.needed_bytes, ..again }, told);
    assert_eq!(seen.compact(&CompactOptions::default()).unwrap_err().kind(), ErrorKind::Invalid);
    drop(seen);
    let files = segment_files(&path);
    let again = store.compact(&dry).unwrap();
    assert_eq!(CompactReport { needed_bytes: told.needed_bytes, ..again }, told);
    assert_eq!(segment_files(&path), files, "a dry run sealed a segment");
    for phase in [CompactPhase::Looking, CompactPhase::Writing] {
        let cancel = Arc::new(AtomicBool::new(false));
        let (set, again) = (cancel.clone(), store.clone());
        let progress = on_first_phase(phase, move || {
            let refused = again.compact(&CompactOptions::default()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Conflict);
            set.store(true, Ordering::SeqCst);
        });
        let cancel =
            Some(Arc::new(move || cancel.load(Ordering::SeqCst)) as Arc<dyn Fn() -> bool + Send + Sync>);
        let options = CompactOptions { progress, cancel, ..CompactOptions::default() };
        let refused = store.compact(&options).unwrap_err();
        assert!(
            refused.kind() == ErrorKind::Unavailable && refused.to_string().contains("cancelled"),
            "{refused}"
        );
        let now = segment_files(&path);
        assert!(
            files.iter().all(|name| now.contains(name)) && now.iter().all(|name| name.len() == 12),
            "{now:?}"
        );
        assert_eq!(answers(&store), before);
    }
    let done = compact(&store);
    assert!(done.rewritten >= told.rewritten);
    // The dry run's estimate is right within a twentieth.
    assert!(done.made_bytes.abs_diff(told.made_bytes) * 20 < done.rewritten_bytes, "{told:?} {done:?}");
    assert_eq!(answers(&store), before);
}

#[test]
fn compaction_on_full_disk_is_refused_or_loses_nothing() {
    let sim = SimIo::new(4);
    let (store, _) = store_after_use(
        Path::new("s"),
        Options { segment_bytes_max: 32 << 10, reserve_bytes: 0, ..sim_options(&sim) },
    );
    let before = answers(&store);
    let names = || sim.files().into_iter().filter(|file| file.to_string_lossy().contains("seg")).count();
    let told = store.compact(&CompactOptions { dry_run: true, ..CompactOptions::default() }).unwrap();
    let files = names();
    assert!(told.needed_bytes > 100_000);
    sim.set_capacity(Some(sim.used_bytes() + 10_000));
    let refused = compact_refused(&store);
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert!(refused.to_string().contains(" bytes on the disk"), "{refused}");
    sim.set_capacity(None);
    // A failing write, at each position.
    for (part, after) in [("seg", 0), ("seg", 1), ("seg", 3), ("tbl", 0), ("MANIFEST", 0), ("CURRENT", 0)] {
        sim.fail(FailRule::enospc(OpKind::Write).on(part).after(after));
        let refused = store.compact(&CompactOptions::default());
        sim.clear_faults();
        match refused {
            Err(refused) => assert_eq!(refused.kind(), ErrorKind::Unavailable, "{part} {after}: {refused}"),
            Ok(done) => panic!("{part} {after}: {done:?}"),
        }
        assert!(names() <= files + 4, "{part} {after}: {} of {files}", names());
        assert_eq!(answers(&store), before, "{part} {after}");
    }
    assert!(compact(&store).rewritten > 0);
    assert_eq!(answers(&store), before);
    assert_whole(&store);
}

fn compact_refused(store: &Store) -> annals::Error {
    store.compact(&CompactOptions::default()).unwrap_err()
}

#[test]
fn a_damaged_segment_is_named_and_nothing_is_dropped() {
    let mut damaged = 0;
    for flip in 0..12usize {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (store, _) = store_after_use(&path, small());
        store.close().unwrap();
        let files = segment_files(&path);
        let sealed: Vec<&String> = files.iter().filter(|name| is_rewritten(name)).collect();
        assert!(sealed.len() > 4, "the tail was compressed: {files:?}");
        let file = path.join("segments").join(sealed[flip % sealed.len()]);
        let mut bytes = std::fs::read(&file).unwrap();
        // An opening reads the names, at the beginning.
        let at = 600 + flip * 1931 % (bytes.len() - 1600);
        bytes[at] ^= 4;
        std::fs::write(&file, &bytes).unwrap();
        let store = Store::open_with(&path, small()).unwrap();
        match store.compact(&CompactOptions::default()) {
            Err(refused) => {
                assert_eq!(refused.kind(), ErrorKind::Damaged, "{refused}");
                damaged += 1;
                let now = segment_files(&path);
                assert!(files.iter().all(|name| now.contains(name)), "{now:?}");
                let made = now.iter().filter(|name| is_rewritten(name));
                assert_eq!(made.count(), sealed.len(), "{now:?}");
            }
            // The segment was not worth rewriting, and its damage is in dead data.
            Ok(done) => assert!(done.rewritten < done.segments, "{done:?}"),
        }
    }
    assert!(damaged > 6, "{damaged}");
}

/// Crashes at every disk operation from the start of a compaction to its end, writes beside it included.
#[test]
fn crash_in_compaction_leaves_store_before_or_after_it() {
    let sim = SimIo::new(seed(5, "compact::crash_in_compaction_leaves_store_before_or_after_it"));
    let options = |sim: &SimIo| Options { segment_bytes_max: 8 << 10, ..sim_options(sim) };
    let store = Store::open_with("s", options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let keys = keyspaces(&space);
    for round in 0..3u64 {
        let run = space.begin_run(RunSpec::new("r").replace(true)).unwrap();
        record(&run, &mut GrowingConversation::new(&format!("r{round}")), 4);
        run.end(Status::Ok).unwrap();
        for (index, keys) in keys.iter().enumerate() {
            for key in 0..6u8 {
                keys.put(&[key], SeededRng(round * 10 + index as u64).bytes(300)).unwrap();
            }
            keys.delete(&[5]).unwrap();
        }
    }
    let (said, checkpoint) = (answers(&store), store.checkpoint().unwrap());
    let began = sim.op_count();
    assert!(compact(&store).rewritten > 2);
    let ended = sim.op_count();
    // Data that the compaction removed does not come back after a power loss. The old manifest, which holds
    // no user data, may.
    let names = |disk: &SimIo| -> Vec<_> {
        disk.files().into_iter().filter(|path| path.extension().is_some()).collect()
    };
    assert_eq!(names(&sim.crash(Crash::Nothing)), names(&sim));
    let mut checked = 0;
    for (point, disk) in sim.history().crashes(3) {
        if point.at < began || point.at > ended {
            continue;
        }
        checked += 1;
        let reader = Store::open_read_only_with("s", options(&disk)).unwrap();
        assert_eq!(answers(&reader), said, "{point}");
        // The statement of what was erased is on disk before the new segments are listed.
        assert_eq!(reader.verify_against(&checkpoint).unwrap().differences, [], "{point}");
        drop(reader);
        let store = Store::open_with("s", options(&disk)).unwrap();
        assert_eq!(answers(&store), said, "{point}");
        assert!(store.rebuilt().is_empty(), "{point}: {:?}", store.rebuilt());
        let listed = store.stats().unwrap().segments as usize;
        let there =
            disk.files().iter().filter(|file| file.extension().is_some_and(|end| end == "seg")).count();
        assert_eq!(there, listed, "{point}: nothing is left over");
        if checked % 8 == 0 {
            compact(&store);
            assert_eq!(answers(&store), said, "{point}");
            assert_whole(&store);
            store.close().unwrap();
            for table in disk.files().iter().filter(|file| file.extension().is_some_and(|end| end == "tbl")) {
                annals::io::Io::remove(&disk, table).unwrap();
            }
            let store = Store::open_with("s", options(&disk)).unwrap();
            assert_eq!(answers(&store), said, "{point}");
            assert_eq!(store.verify_against(&checkpoint).unwrap().differences, [], "{point}");
        }
    }
    println!("{checked} crashes");
    assert!(checked > 50);
}

/// Random operations, compactions, reopenings and lost tables give the answers of a map.
#[test]
fn random_use_with_compactions_agrees_with_a_model() {
    let mut rng = SeededRng(seed(11, "compact::random_use_with_compactions_agrees_with_a_model"));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let options = || Options {
        segment_bytes_max: 24 << 10,
        index_memory_bytes: 32 << 10,
        ..process_durability_options()
    };
    let mut store = Store::open_with(&path, options()).unwrap();
    let mut model: BTreeMap<(usize, u8), Vec<Option<Vec<u8>>>> = BTreeMap::new();
    let mut runs: BTreeMap<String, (String, usize)> = BTreeMap::new();
    let mut compacted = 0;
    for step in 0..60 {
        let space = store.namespace("default").unwrap();
        let keys = keyspaces(&space);
        for _ in 0..30 {
            let (at, key) = (rng.below(4), rng.below(12) as u8);
            let value = (rng.below(4) > 0).then(|| {
                let len = [5, 300, 6000][rng.below(3)];
                rng.text(len)
            });
            match &value {
                Some(value) => keys[at].put(&[key], value.clone()).unwrap(),
                None => keys[at].delete(&[key]).unwrap(),
            };
            model.entry((at, key)).or_default().push(value);
        }
        let (name, topic, frames) =
            (format!("r{}", rng.below(3)), format!("t{}", rng.below(5)), 1 + rng.below(12));
        let run = space.begin_run(RunSpec::new(&name).replace(true)).unwrap();
        record(&run, &mut GrowingConversation::new(&topic), frames);
        run.end(Status::Ok).unwrap();
        runs.insert(name.clone(), (topic.clone(), frames));
        if rng.below(3) == 0 {
            let fork = space.fork(&name, frames as u32, false, RunSpec::new(format!("fork{step}"))).unwrap();
            fork.end(Status::Ok).unwrap();
            runs.insert(format!("fork{step}"), (topic, frames));
        }
        let view = (rng.below(4) == 0).then(|| space.view());
        if rng.below(3) == 0 {
            let recompress = [None, Some(5)][rng.below(2)];
            let done = store.compact(&CompactOptions { recompress, ..CompactOptions::default() }).unwrap();
            compacted += done.rewritten;
        }
        drop((view, keys, space));
        if rng.below(8) == 0 {
            store.close().unwrap();
            if rng.below(2) == 0 {
                delete_tables(&path);
            }
            store = Store::open_with(&path, options()).unwrap();
        }
        assert_whole(&store);
        let space = store.namespace("default").unwrap();
        let keys = keyspaces(&space);
        for ((at, key), versions) in &model {
            let newest = versions.last().cloned().flatten();
            assert_eq!(keys[*at].get(&[*key]).unwrap(), newest, "step {step}: {at} {key}");
            let limit = [usize::MAX, 1, 2, usize::MAX][*at];
            let found = keys[*at].history(&[*key]).unwrap();
            let found: Vec<_> = found.into_iter().map(|version| version.value).collect();
            let wanted: Vec<_> = versions.iter().rev().take(limit).cloned().collect();
            // In a keyspace that keeps one version, the tombstone of a key may be removed with it.
            let forgotten = *at == 1 && newest.is_none() && found.is_empty();
            assert!(
                found == wanted || forgotten,
                "step {step}: {at} {key}: {} of {}",
                found.len(),
                wanted.len()
            );
        }
        for (name, (topic, frames)) in &runs {
            let wanted: Vec<_> = GrowingConversation::new(topic).take(*frames).collect();
            assert!(bodies(&space.run(name).unwrap()) == wanted, "step {step}: {name}");
        }
    }
    assert!(compacted > 10, "{compacted}");
    assert_whole(&store);
}

/// Writers and readers at work while the store is compacted repeatedly.
#[test]
fn a_store_is_used_while_it_is_compacted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let options = || Options {
        segment_bytes_max: 64 << 10,
        index_memory_bytes: 64 << 10,
        ..process_durability_options()
    };
    let store = Store::open_with(&path, options()).unwrap();
    let space = store.namespace("default").unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let (space, done) = (&space, &done);
            scope.spawn(move || {
                let keys = space.keyspace("latest", History::Latest).unwrap();
                for round in 0..25u64 {
                    let name = format!("w{writer}-{}", round % 3);
                    let run = space.begin_run(RunSpec::new(&name).replace(true)).unwrap();
                    record(&run, &mut GrowingConversation::new(&format!("{writer}-{}", round % 4)), 15);
                    run.end(Status::Ok).unwrap();
                    let wanted: Vec<_> =
                        GrowingConversation::new(&format!("{writer}-{}", round % 4)).take(15).collect();
                    assert!(bodies(&space.run(&name).unwrap()) == wanted);
                    for key in 0..50u8 {
                        keys.put(&[writer, key], SeededRng(round).bytes(200)).unwrap();
                    }
                }
                done.store(true, Ordering::SeqCst);
            });
        }
        let reading = (&space, &done, &path);
        scope.spawn(move || {
            let (space, done, path) = reading;
            let theirs = crate::support::reader(path).unwrap();
            while !done.load(Ordering::SeqCst) {
                if let Some(keys) = space.find_keyspace("latest").unwrap() {
                    for pair in keys.scan(ScanRange::all()) {
                        assert_eq!(pair.unwrap().1.len(), 200);
                    }
                }
                theirs.refresh().unwrap();
                let their_space = theirs.namespace("default").unwrap();
                for run in their_space.runs().unwrap() {
                    let name = run.unwrap().name;
                    assert!(their_space.run(&name).unwrap().frames().all(|frame| frame.is_ok()));
                }
            }
        });
        let mut rewritten = 0;
        while !done.load(Ordering::SeqCst) {
            rewritten += compact(&store).rewritten;
        }
        println!("{rewritten} segments rewritten meanwhile");
    });
    assert_whole(&store);
    compact(&store);
    assert_whole(&store);
    assert_eq!(segment_files(&path).len() as u64, store.stats().unwrap().segments);
}

#[test]
fn a_store_that_is_closed_meanwhile_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (store, space) = store_after_use(&path, small());
    let before = answers(&store);
    drop(space);
    let (tell, told) = std::sync::mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    let progress = on_first_phase(CompactPhase::Writing, move || tell.lock().unwrap().send(()).unwrap());
    let other = store.clone();
    let closing = std::thread::spawn(move || {
        told.recv().unwrap();
        other.close().unwrap();
    });
    if let Err(error) = store.compact(&CompactOptions { progress, ..CompactOptions::default() }) {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    closing.join().unwrap();
    let store = crate::support::writer(&path).unwrap();
    assert_eq!(answers(&store), before);
    assert_eq!(segment_files(&path).len() as u64, store.stats().unwrap().segments);
}
