//! Compaction: equal answers before and after, room given back, readers and writers beside it, what it refuses.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use annals::io::sim::{FailRule, OpKind, SimIo};
use annals::{
    CompactOptions, CompactPhase, Compacted, Component, Content, ErrorKind, Frame, History, Keyspace,
    Namespace, Options, RunSpec, ScanRange, Status, Store,
};

use crate::support::{
    Rng, Talk, assert_whole, bodies, defaults, delete_tables, fresh, on, quick, record, recorded, seed,
};

const SPACES: [(&str, History); 4] = [
    ("all", History::All),
    ("latest", History::Latest),
    ("two", History::Newest(2)),
    ("age", History::Age(Duration::from_secs(3600))),
];

fn compact(store: &Store) -> Compacted {
    store.compact(&CompactOptions::default()).unwrap()
}

/// Small segments, so that there are some.
fn small() -> Options {
    Options { segment_bytes_max: 32 << 10, ..quick() }
}

fn keyspaces(space: &Namespace) -> Vec<Keyspace> {
    SPACES.iter().map(|(name, history)| space.keyspace(name, *history).unwrap()).collect()
}

/// Everything that can be asked of a store, in words.
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

/// A store with a good deal that is dead: replaced runs, overwritten keys.
fn used(path: &Path, options: Options) -> (Store, Namespace) {
    let store = Store::open_with(path, options).unwrap();
    let space = store.namespace("default").unwrap();
    let keys = keyspaces(&space);
    for round in 0..6u64 {
        for name in ["a", "b", "kept"] {
            if name == "kept" && round > 0 {
                continue;
            }
            let run = space.begin_run(RunSpec::new(name).replace(true)).unwrap();
            record(&run, &mut Talk::new(&format!("{name}{round}")), 20);
            run.snapshot(Rng(round).bytes(3000), &[("e", &[1.0, 2.0])]).unwrap();
            run.end(Status::Ok).unwrap();
        }
        for (index, keys) in keys.iter().enumerate() {
            for key in 0..20u8 {
                keys.put(&[key], Rng(round * 100 + index as u64).bytes(100)).unwrap();
                if key == 7 {
                    keys.put(&[key], Rng(round).bytes(9000)).unwrap();
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
    let (store, _) = used(&path, small());
    let before = (answers(&store), store.stats().unwrap());
    let done = compact(&store);
    println!("{done:?}");
    assert!(done.rewritten > 3 && done.made_bytes * 2 < done.rewritten_bytes, "{done:?}");
    let after = (answers(&store), store.stats().unwrap());
    assert_eq!(before.0, after.0);
    assert_eq!(before.1.ledger_root, after.1.ledger_root);
    assert_eq!((before.1.runs, before.1.frames), (after.1.runs, after.1.frames));
    assert!(after.1.disk_bytes < before.1.disk_bytes);
    assert_whole(&store);
    // Nothing is left to do.
    let again = compact(&store);
    assert_eq!((again.rewritten, again.made), (0, 0), "{again:?}");
    store.close().unwrap();
    let store = crate::support::writer(&path).unwrap();
    assert_eq!(answers(&store), before.0);
    assert_whole(&store);
    store.close().unwrap();
    // The log alone gives the same.
    delete_tables(&path);
    let store = crate::support::writer(&path).unwrap();
    assert_eq!(answers(&store), before.0);
    assert_eq!(store.stats().unwrap().ledger_root, before.1.ledger_root);
    assert_whole(&store);
}
