//! Measurements: many keys in little memory, and the time to open after a close and after a kill.
//!
//! `ANNALS_KEYS=5000000 cargo test --release -p annals --test engine scale:: -- --ignored --nocapture`

use std::path::Path;
use std::time::Instant;

use annals::{History, Options, Store};

use crate::support::{SeededRng, process_durability_options};

const BATCH: u64 = 100;
const VALUE_BYTES: usize = 490;

fn key(n: u64) -> Vec<u8> {
    format!("{:016x}", n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes()
}

fn options() -> Options {
    Options { zero_ahead_bytes: 1 << 20, ..process_durability_options() }
}

/// Anonymous memory of this process in KiB.
fn anonymous_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("RssAnon")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).unwrap_or(0)
}

/// Copies an open store, as a kill of its process would leave it.
fn copy(from: &Path, to: &Path) {
    for folder in ["", "segments", "tables"] {
        std::fs::create_dir_all(to.join(folder)).unwrap();
        for entry in std::fs::read_dir(from.join(folder)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                // The upkeep thread may remove a table meanwhile; the manifest was copied before.
                let _ = std::fs::copy(entry.path(), to.join(folder).join(entry.file_name()));
            }
        }
    }
}

fn open(path: &Path, what: &str) -> Store {
    let start = Instant::now();
    let store = Store::open_with(path, options()).unwrap();
    println!("open {what}: {:.1} ms, {} KB anonymous", start.elapsed().as_secs_f64() * 1e3, anonymous_kb());
    store
}

fn gets(store: &Store, count: u64, keys: u64, what: &str) {
    let keyspace = store.namespace("n").unwrap().find_keyspace("k").unwrap().unwrap();
    let mut rng = SeededRng(7);
    let start = Instant::now();
    for _ in 0..count {
        let n = rng.below(keys as usize) as u64;
        assert!(keyspace.get(&key(n)).unwrap().is_some(), "key {n}");
    }
    println!(
        "{:.0} ns a get, {what}; {} KB anonymous",
        start.elapsed().as_nanos() as f64 / count as f64,
        anonymous_kb()
    );
}

#[test]
#[ignore = "figures for people"]
fn many_keys_in_little_memory() {
    let keys: u64 = std::env::var("ANNALS_KEYS").ok().and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = Store::open_with(&path, options()).unwrap();
    let space = store.namespace("n").unwrap();
    let keyspace = space.keyspace("k", History::Latest).unwrap();
    let value = SeededRng(1).bytes(VALUE_BYTES);
    let (mut most, mut longest) = (0, 0.0f64);
    let mut waiting = std::collections::VecDeque::new();
    let start = Instant::now();
    for first in (0..keys).step_by(BATCH as usize) {
        let mut batch = space.batch();
        for n in first..(first + BATCH).min(keys) {
            batch.put(&keyspace, &key(n), value.clone());
        }
        let submitting = Instant::now();
        waiting.push_back(batch.submit().unwrap());
        if waiting.len() > 64 {
            waiting.pop_front().unwrap().wait().unwrap();
        }
        longest = longest.max(submitting.elapsed().as_secs_f64());
        if first % 100_000 == 0 {
            most = most.max(anonymous_kb());
        }
    }
    for ticket in waiting {
        ticket.wait().unwrap();
    }
    let took = start.elapsed().as_secs_f64();
    println!(
        "{keys} keys of 512 B: {:.0} a second, longest wait {:.0} ms, {most} KB anonymous at most",
        keys as f64 / took,
        longest * 1e3
    );
    gets(&store, 100_000, keys, "any of all, cold");
    gets(&store, 100_000, keys, "any of all, warm");
    gets(&store, 100_000, 100, "of a hundred");
    let killed = dir.path().join("killed");
    copy(&path, &killed);
    let start = Instant::now();
    drop((keyspace, space));
    store.close().unwrap();
    println!("close: {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
    for what in ["after a close", "again"] {
        let store = open(&path, what);
        gets(&store, 10_000, keys, "any of all, just opened");
        store.close().unwrap();
    }
    open(&killed, "after a kill").close().unwrap();
    std::fs::remove_dir_all(&killed).unwrap();
    std::fs::remove_dir_all(path.join("tables")).unwrap();
    let store = open(&path, "without tables");
    gets(&store, 10_000, keys, "any of all, just opened");
    store.close().unwrap();
}
