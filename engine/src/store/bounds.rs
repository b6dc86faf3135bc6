//! Tests that the memory of the index stays bounded.

use std::sync::Arc;

use crate::io::sim::{Crash, FailRule, OpKind, SimIo};
use crate::{Durability, ErrorKind, History, Options, Store};

const BOUND: usize = 64 << 10;

fn options(sim: &SimIo) -> Options {
    Options {
        io: Arc::new(sim.clone()),
        durability: Durability::Process,
        index_memory_bytes: BOUND,
        segment_bytes_max: 300 << 10,
        zero_ahead_bytes: 4 << 10,
        ..Options::default()
    }
}

fn key(n: usize) -> Vec<u8> {
    format!("{:08x}", n.wrapping_mul(0x9e37_79b1) & 0xffff_ffff).into_bytes()
}

fn memory_bytes_of(store: &Store) -> usize {
    store.core().index.memory_bytes()
}

fn table_file_count(sim: &SimIo) -> usize {
    sim.files().iter().filter(|path| path.extension().is_some_and(|end| end == "tbl")).count()
}

/// Puts keys, twenty in a batch. Returns the greatest counted memory.
fn fill(store: &Store, keys: std::ops::Range<usize>) -> usize {
    let space = store.namespace("n").unwrap();
    let keyspace = space.keyspace("k", History::Latest).unwrap();
    let mut most = 0;
    let numbers: Vec<usize> = keys.collect();
    for chunk in numbers.chunks(20) {
        let mut batch = space.batch();
        for n in chunk {
            batch.put(&keyspace, &key(*n), n.to_string());
        }
        batch.commit().unwrap();
        most = most.max(memory_bytes_of(store));
    }
    most
}

fn check(store: &Store, count: usize) {
    let keyspace = store.namespace("n").unwrap().find_keyspace("k").unwrap().unwrap();
    for n in 0..count {
        assert_eq!(keyspace.get(&key(n)).unwrap(), Some(n.to_string().into_bytes()), "key {n}");
    }
    assert_eq!(keyspace.scan(crate::ScanRange::all()).count(), count);
    assert_eq!(store.verify().unwrap().damaged, []);
}

#[test]
fn memory_stays_under_twice_its_bound() {
    let sim = SimIo::new(1);
    let store = Store::open_with("s", options(&sim)).unwrap();
    let most = fill(&store, 0..12_000);
    // The frozen and the active map each exceed the bound by at most one batch.
    assert!((BOUND..=2 * BOUND + 2 * 25 * 128).contains(&most), "{most}");
    check(&store, 12_000);
    store.close().unwrap();
    assert!(table_file_count(&sim) >= 1);
    check(&Store::open_with("s", options(&sim)).unwrap(), 12_000);
}

#[test]
fn opening_without_tables_flushes_while_reading() {
    let sim = SimIo::new(2);
    let store = Store::open_with("s", options(&sim)).unwrap();
    fill(&store, 0..8000);
    store.close().unwrap();
    for path in sim.files().into_iter().filter(|path| path.extension().is_some_and(|end| end == "tbl")) {
        crate::io::Io::remove(&sim, &path).unwrap();
    }
    let store = Store::open_with("s", options(&sim)).unwrap();
    assert!(
        table_file_count(&sim) >= 1 && memory_bytes_of(&store) <= BOUND + 3000,
        "{} {}",
        table_file_count(&sim),
        memory_bytes_of(&store)
    );
    check(&store, 8000);
    // Crash at once: the manifest already lists the tables that the opening wrote.
    let crashed = sim.crash(Crash::Nothing);
    let again = Store::open_with("s", options(&crashed)).unwrap();
    assert!(memory_bytes_of(&again) <= BOUND + 3000);
    check(&again, 8000);
}

#[test]
fn full_disk_fails_writes_once_memory_has_grown() {
    let sim = SimIo::new(3);
    let store = Store::open_with("s", options(&sim)).unwrap();
    fill(&store, 0..400);
    sim.fail(FailRule::enospc(OpKind::Write).on("tbl").forever());
    // Memory may grow to more than twice the bound. Once the disk has room again, it shrinks.
    let most = fill(&store, 400..1600);
    assert!(most > 2 * BOUND, "{most}");
    sim.clear_faults();
    fill(&store, 1600..4000);
    assert!(memory_bytes_of(&store) <= 2 * BOUND + 6400);
    check(&store, 4000);
    sim.fail(FailRule::enospc(OpKind::Write).on("tbl").forever());
    let keyspace = store.namespace("n").unwrap().find_keyspace("k").unwrap().unwrap();
    let mut written = 4000;
    let error = loop {
        match keyspace.put(&key(written), written.to_string()) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(memory_bytes_of(&store) <= 6 * BOUND, "memory grows without a bound");
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("table"), "{error}");
    assert_eq!(keyspace.put(b"x", "y").unwrap_err().kind(), ErrorKind::Poisoned);
    check(&store, written);
    drop(store);
    sim.clear_faults();
    check(&Store::open_with("s", options(&sim)).unwrap(), written);
}

#[test]
fn failed_log_sync_in_a_flush_poisons_the_store() {
    let sim = SimIo::new(4);
    let store = Store::open_with("s", options(&sim)).unwrap();
    fill(&store, 0..100);
    // Commits with `Durability::Process` do not sync, so the flush is the first to sync the log.
    sim.fail(FailRule::eio(OpKind::Sync).on("seg"));
    let keyspace = store.namespace("n").unwrap().find_keyspace("k").unwrap().unwrap();
    let mut written = 100;
    let error = loop {
        match keyspace.put(&key(written), written.to_string()) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 10_000, "nobody noticed");
    };
    assert_eq!(error.kind(), ErrorKind::Poisoned);
    assert!(error.to_string().contains("sync"), "{error}");
    assert!(store.close().is_err());
    check(&Store::open_with("s", options(&sim)).unwrap(), written);
}
