//! Readers beside a live writer, and the exclusion of a second writer.

use std::sync::atomic::{AtomicBool, Ordering};

use annals::{
    Component, ErrorKind, Frame, Keyspace, Options, RunSpec, Status, Store,
    kv::{History, ScanRange},
};

use crate::support::{
    GrowingConversation, SeededRng, assert_whole, bodies, fresh, process_durability_options, record,
    recorded, seed,
};

#[test]
fn reader_sees_opened_state_until_refresh() {
    let (dir, store, space) = fresh();
    let path = dir.path().join("s");
    let keys = space.keyspace("k", History::All).unwrap();
    keys.put(b"a", "1").unwrap();
    let (run, mut talk) = recorded(&space, "r", 3);
    let live = crate::support::reader(&path).unwrap();
    let theirs = live.namespace("default").unwrap();
    let their_keys = theirs.keyspace("k", History::All).unwrap();
    record(&run, &mut talk, 4);
    keys.put(b"a", "2").unwrap();
    space.keyspace("new", History::Latest).unwrap();
    let (other, _) = recorded(&space, "other", 2);
    other.end(Status::Ok).unwrap();
    assert_eq!(theirs.run("r").unwrap().info().frames, 3);
    assert_eq!(their_keys.get(b"a").unwrap().unwrap(), b"1");
    assert_eq!(theirs.run("other").unwrap_err().kind(), ErrorKind::NotFound);
    let before = live.seqno();
    live.refresh().unwrap();
    assert!(live.seqno() > before && live.seqno() == store.seqno());
    assert_eq!(theirs.run("r").unwrap().info().frames, 7);
    assert_eq!(bodies(&theirs.run("r").unwrap()), bodies(&space.run("r").unwrap()));
    assert_eq!(their_keys.get(b"a").unwrap().unwrap(), b"2");
    assert_eq!(their_keys.history(b"a").unwrap().len(), 2);
    assert!(theirs.find_keyspace("new").unwrap().is_some());
    assert_eq!(theirs.run("other").unwrap().info().status, Status::Ok);
    assert_whole(&live);
    for refused in [
        their_keys.put(b"a", "3").map(drop),
        theirs.begin_run(RunSpec::new("x")).map(drop),
        theirs.fork("r", 1, false, RunSpec::new("x")).map(drop),
        theirs.store_blob(&b"x"[..]).map(drop),
    ] {
        let error = refused.unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("reading only"), "{error}");
    }
    for refused in [live.namespace("x").map(drop), theirs.keyspace("x", History::All).map(drop)] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::NotFound);
    }
    // The writer closes; the reader continues, and sees the close.
    store.close().unwrap();
    assert_eq!(theirs.run("r").unwrap().info().status, Status::Open);
    live.refresh().unwrap();
    assert_eq!(theirs.run("r").unwrap().info().status, Status::Abandoned);
    assert_whole(&live);
    live.close().unwrap();
    crate::support::writer(&path).unwrap().close().unwrap();
}

/// The writer's tables keep only the newest value and have passed the reader's position; the reader's view
/// must not change.
#[test]
fn reader_view_survives_refresh_past_new_tables() {
    let (dir, store, space) = fresh();
    let path = dir.path().join("s");
    space.keyspace("k", History::Latest).unwrap().put(b"a", "1").unwrap();
    store.close().unwrap();
    let live = crate::support::reader(&path).unwrap();
    let theirs = live.namespace("default").unwrap();
    let keys = theirs.find_keyspace("k").unwrap().unwrap();
    let view = theirs.view();
    let put = |value: &str| {
        let options = Options { index_memory_bytes: 64 << 10, ..process_durability_options() };
        let store = Store::open_with(&path, options).unwrap();
        let space = store.namespace("default").unwrap();
        let keys = space.keyspace("k", History::Latest).unwrap();
        keys.put(b"a", value).unwrap();
        // Enough entries that memory is flushed to tables, and tables are merged.
        for number in 0..5000u32 {
            keys.put(&number.to_be_bytes(), "x").unwrap();
        }
        store.close().unwrap();
    };
    put("2");
    live.refresh().unwrap();
    assert_eq!(view.get(&keys, b"a").unwrap().unwrap(), b"1");
    assert_eq!(keys.get(b"a").unwrap().unwrap(), b"2");
    drop(view);
    put("3");
    live.refresh().unwrap();
    assert_eq!(keys.get(b"a").unwrap().unwrap(), b"3");
    assert_whole(&live);
}

#[test]
fn readers_open_refresh_and_verify_beside_changing_writers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let options = || Options { segment_bytes_max: 32 << 10, ..process_durability_options() };
    Store::open_with(&path, options()).unwrap().namespace("default").unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|reader| {
                let (path, done) = (&path, &done);
                scope.spawn(move || {
                    let mut live = crate::support::reader(path).unwrap();
                    let (mut looks, mut last) = (0, live.seqno());
                    while !done.load(Ordering::SeqCst) || looks < 20 {
                        looks += 1;
                        if looks % 3 == reader {
                            live = crate::support::reader(path).unwrap();
                        } else {
                            live.refresh().unwrap();
                        }
                        assert!(live.seqno() >= last, "a reader never goes back");
                        last = live.seqno();
                        let space = live.namespace("default").unwrap();
                        if let Ok(reader) = space.last_run() {
                            let name = reader.info().name.clone();
                            let wanted: Vec<_> =
                                GrowingConversation::new(&name).take(reader.info().frames as usize).collect();
                            assert!(bodies(&reader) == wanted, "{name}");
                        }
                    }
                    looks
                })
            })
            .collect();
        for round in 0..6 {
            let store = Store::open_with(&path, options()).unwrap();
            let space = store.namespace("default").unwrap();
            for run in 0..6 {
                let (run, _) = recorded(&space, &format!("{round}-{run}"), 30);
                run.snapshot(SeededRng(round).bytes(8000), &[]).unwrap();
                run.end(Status::Ok).unwrap();
            }
            if round % 2 == 0 {
                store.close().unwrap();
            }
        }
        done.store(true, Ordering::SeqCst);
        for reader in readers {
            println!("a reader looked {} times", reader.join().unwrap());
        }
    });
    let store = crate::support::reader(&path).unwrap();
    assert!(store.stats().unwrap().segments > 6);
    assert_whole(&store);
}

#[test]
fn a_second_writer_is_told_who_the_first_is() {
    let (dir, store, space) = fresh();
    let path = dir.path().join("s");
    let refused = || {
        let error = crate::support::writer(&path).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Locked);
        let text = error.to_string();
        assert!(
            text.contains(&format!("process {}", std::process::id())) && text.contains("read-only"),
            "{text}"
        );
    };
    refused();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    run.record(Frame::new(Component::Llm, "a", "b")).unwrap();
    refused();
    let clone = store.clone();
    drop(store);
    refused();
    clone.close().unwrap();
    // Handles that outlive the close do not hold the lock.
    let again = crate::support::writer(&path).unwrap();
    assert_eq!(run.record(Frame::new(Component::Llm, "a", "b")).unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(space.run("r").unwrap().info().name, "r");
    drop((run, space));
    refused();
    drop(again);
    crate::support::writer(&path).unwrap();
}

/// The writers' values hold their time.
fn puts(keyspace: &Keyspace, space: &annals::Namespace, round: u64, keys: u64) {
    for chunk in (0..keys).collect::<Vec<_>>().chunks(16) {
        let mut batch = space.batch();
        for n in chunk {
            batch.put(keyspace, &key(*n), round.to_be_bytes().to_vec());
        }
        batch.commit().unwrap();
    }
}

fn key(n: u64) -> Vec<u8> {
    format!("{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes()
}

fn round_of(value: &[u8]) -> u64 {
    u64::from_be_bytes(value.try_into().unwrap())
}

#[test]
fn readers_see_every_key_while_tables_are_written_and_merged() {
    const KEYS: u64 = 600;
    const ROUNDS: u64 = 12;
    let seed = seed(5, "readers::readers_see_every_key_while_tables_are_written_and_merged");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let little = || Options {
        index_memory_bytes: 16 << 10,
        segment_bytes_max: 64 << 10,
        ..process_durability_options()
    };
    let store = Store::open_with(&path, little()).unwrap();
    let space = store.namespace("default").unwrap();
    let latest = space.keyspace("latest", History::Latest).unwrap();
    let all = space.keyspace("all", History::All).unwrap();
    puts(&latest, &space, 0, KEYS);
    puts(&all, &space, 0, KEYS);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3u64)
            .map(|reader| {
                let (done, path, store) = (&done, &path, &store);
                scope.spawn(move || {
                    let mut rng = SeededRng(seed ^ reader);
                    // This thread reads beside the writer, through files only.
                    let other = (reader == 2).then(|| Store::open_read_only_with(path, little()).unwrap());
                    let store = other.as_ref().unwrap_or(store);
                    let space = store.namespace("default").unwrap();
                    let latest = space.find_keyspace("latest").unwrap().unwrap();
                    let all = space.find_keyspace("all").unwrap().unwrap();
                    let (mut looks, mut seen) = (0, vec![0; KEYS as usize]);
                    while !done.load(Ordering::SeqCst) || looks < 300 {
                        looks += 1;
                        if reader == 2 && looks % 20 == 0 {
                            store.refresh().unwrap();
                        }
                        let n = rng.below(KEYS as usize) as u64;
                        let found = round_of(&latest.get(&key(n)).unwrap().expect("a key is gone"));
                        let last = &mut seen[n as usize];
                        assert!(found >= *last, "key {n} went back from {last} to {found}");
                        *last = found;
                        let history = all.history(&key(n)).unwrap();
                        let rounds: Vec<_> =
                            history.iter().map(|v| round_of(v.value.as_deref().unwrap())).collect();
                        let wanted: Vec<_> = (0..rounds.len() as u64).rev().collect();
                        assert_eq!(rounds, wanted, "key {n}");
                        if looks % 40 == 0 {
                            let view = space.view();
                            let of = |round: u64| view.get(&latest, &key(round)).unwrap().unwrap();
                            let (first, last) = (round_of(&of(0)), round_of(&of(KEYS - 1)));
                            let scanned: Vec<_> = view
                                .scan(
                                    &latest,
                                    if looks % 80 == 0 {
                                        ScanRange::all().reverse()
                                    } else {
                                        ScanRange::all()
                                    },
                                )
                                .map(Result::unwrap)
                                .collect();
                            assert_eq!(scanned.len(), KEYS as usize);
                            // Keys are put in rounds: a view lies within one round.
                            assert!(
                                scanned.iter().all(|(_, value)| (last..=first).contains(&round_of(value)))
                            );
                        }
                    }
                    looks
                })
            })
            .collect();
        for round in 1..=ROUNDS {
            puts(&latest, &space, round, KEYS);
            puts(&all, &space, round, KEYS);
        }
        done.store(true, Ordering::SeqCst);
        for reader in readers {
            println!("a reader looked {} times", reader.join().unwrap());
        }
    });
    assert_whole(&store);
    store.close().unwrap();
    let store = Store::open_with(&path, little()).unwrap();
    let keyspace = store.namespace("default").unwrap().find_keyspace("all").unwrap().unwrap();
    for n in 0..KEYS {
        assert_eq!(keyspace.history(&key(n)).unwrap().len() as u64, ROUNDS + 1);
    }
    assert_whole(&store);
}
