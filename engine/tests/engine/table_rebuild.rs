//! A damaged index table is rebuilt from the log when a reader or writer meets it: the answers are equal, and
//! the rebuild is reported.

use std::path::{Path, PathBuf};

use annals::io::sim::SimIo;
use annals::{
    ErrorKind, Namespace, Options, RunSpec, Status, Store,
    kv::{History, ScanRange},
};

use crate::support::{GrowingConversation, SeededRng, assert_whole, bodies, record, seed, sim_options};

/// Memory for few entries, so that tables are written and merged during the test.
fn small_options(sim: &SimIo) -> Options {
    Options { index_memory_bytes: 4 << 10, segment_bytes_max: 16 << 10, ..sim_options(sim) }
}

fn keys_of(space: &Namespace) -> annals::Keyspace {
    space.keyspace("k", History::All).unwrap()
}

/// A store of several tables and segments, closed cleanly.
fn store_with_tables() -> SimIo {
    let sim = SimIo::new(3);
    let store = Store::open_with("s", small_options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    fill(&space, 0);
    store.close().unwrap();
    // A closing merges small tables. A small one beside a large one stays.
    let store = Store::open_with("s", small_options(&sim)).unwrap();
    keys_of(&store.namespace("default").unwrap()).put(b"last", "one").unwrap();
    store.close().unwrap();
    assert!(tables(&sim).len() > 1, "{:?}", tables(&sim));
    sim
}

fn fill(space: &Namespace, round: u64) {
    let run = space.begin_run(RunSpec::new(format!("run-{round}"))).unwrap();
    record(&run, &mut GrowingConversation::new("topic"), 12);
    run.snapshot(SeededRng(round).text(900), &[]).unwrap();
    run.end(Status::Ok).unwrap();
    let keys = keys_of(space);
    for i in 0..60u64 {
        keys.put(format!("key{}", i % 40).as_bytes(), SeededRng(round ^ i).text(40)).unwrap();
    }
    keys.delete(b"key7").unwrap();
}

fn tables(sim: &SimIo) -> Vec<PathBuf> {
    sim.files().into_iter().filter(|path| path.extension().is_some_and(|end| end == "tbl")).collect()
}

/// Everything that `fill` wrote, as text.
fn observe(store: &Store) -> Vec<String> {
    let space = store.namespace("default").unwrap();
    let keys = space.find_keyspace("k").unwrap().unwrap();
    let mut seen = Vec::new();
    for (key, value) in keys.scan(ScanRange::all()).map(Result::unwrap) {
        seen.push(format!("{key:?} {value:?} {:?} {:?}", keys.get(&key), keys.history(&key)));
    }
    assert_eq!(keys.scan(ScanRange::all().reverse()).count(), seen.len());
    for info in space.runs().unwrap().map(Result::unwrap) {
        let reader = space.run(&info.name).unwrap();
        seen.push(format!("{info:?} {:?} {:?}", bodies(&reader), reader.snapshot_at(99)));
    }
    seen
}

/// One bit of every `step`th byte of every table.
fn flips(sim: &SimIo, seed: u64, step: usize) -> Vec<(PathBuf, usize, u8)> {
    let mut rng = SeededRng(seed);
    let mut flips = Vec::new();
    for path in tables(sim) {
        let len = sim.read(&path).unwrap().len();
        flips.extend((rng.below(step)..len).step_by(step).map(|at| (path.clone(), at, 1 << rng.below(8))));
    }
    flips
}

fn flip(sim: &SimIo, path: &Path, at: usize, bit: u8) {
    sim.edit(path, |bytes| bytes[at] ^= bit).unwrap();
}

#[test]
fn reader_rebuilds_damaged_table_in_memory_and_reports() {
    let seed = seed(41, "table_rebuild::reader_rebuilds_damaged_table_in_memory_and_reports");
    let sim = store_with_tables();
    let wanted = observe(&Store::open_read_only_with("s", small_options(&sim)).unwrap());
    let before = sim.op_count();
    let (mut tried, mut blocks) = (0, 0);
    for (path, at, bit) in flips(&sim, seed, 7) {
        flip(&sim, &path, at, bit);
        let store = Store::open_read_only_with("s", small_options(&sim)).unwrap();
        assert!(observe(&store) == wanted, "bit {bit} of byte {at} of {}", path.display());
        let report = store.verify().unwrap();
        assert_eq!(report.rebuilt.len(), 1, "byte {at} of {}: {:?}", path.display(), report.rebuilt);
        assert_eq!(report.rebuilt[0].file, path);
        // Other readers use the blocks that are not damaged, until a writer replaces the file.
        let is_block = report.rebuilt[0].what.contains("it was rebuilt from the log");
        let said: Vec<_> = report.damaged.iter().map(|problem| &*problem.what).collect();
        assert_eq!(said.len(), usize::from(is_block), "byte {at} of {}: {said:?}", path.display());
        assert!(said.iter().all(|what| what.starts_with("an index table is damaged: ")), "{said:?}");
        blocks += usize::from(is_block);
        drop(store);
        flip(&sim, &path, at, bit);
        tried += 1;
    }
    assert!(tried > 100 && blocks > 50 && blocks < tried);
    assert_eq!(sim.op_count() - before, 2 * tried, "a reader has changed the disk");
    println!("{tried} flips in tables, rebuilt by readers; {blocks} in blocks");
}

#[test]
fn writer_rebuilds_damaged_table_on_disk() {
    let seed = seed(42, "table_rebuild::writer_rebuilds_damaged_table_on_disk");
    let whole = store_with_tables();
    let wanted = observe(&Store::open_read_only_with("s", small_options(&whole)).unwrap());
    let (mut tried, mut files) = (0, 0);
    for (path, at, bit) in flips(&whole, seed, 23) {
        let sim = whole.crash(annals::io::sim::Crash::Everything);
        flip(&sim, &path, at, bit);
        let store = Store::open_with("s", small_options(&sim)).unwrap();
        if tried % 2 == 0 {
            // A read meets the damage, or a merge, or nothing does.
            assert!(observe(&store) == wanted, "byte {at} of {}", path.display());
            assert_eq!(store.verify().unwrap().rebuilt.len(), 1, "byte {at} of {}", path.display());
            files += usize::from(sim.read(&path).is_some());
        }
        fill(&store.namespace("default").unwrap(), 1);
        assert_whole(&store);
        store.close().unwrap();
        let store = Store::open_read_only_with("s", small_options(&sim)).unwrap();
        assert!(store.namespace("default").unwrap().run("run-1").is_ok());
        let report = store.verify().unwrap();
        assert!(report.damaged.is_empty() && report.rebuilt.is_empty(), "{report:?}");
        tried += 1;
    }
    assert!(tried > 30 && files > 0);
}

#[test]
fn full_disk_does_not_prevent_table_rebuild_in_memory() {
    let sim = store_with_tables();
    let wanted = observe(&Store::open_read_only_with("s", small_options(&sim)).unwrap());
    let store = Store::open_with("s", small_options(&sim)).unwrap();
    drop(store);
    let largest = tables(&sim).into_iter().max_by_key(|path| sim.read(path).unwrap().len()).unwrap();
    flip(&sim, &largest, 40, 1);
    let store = Store::open_with("s", small_options(&sim)).unwrap();
    sim.set_capacity(Some(0));
    assert!(observe(&store) == wanted);
    assert_eq!(store.rebuilt().len(), 1);
    sim.set_capacity(None);
    keys_of(&store.namespace("default").unwrap()).put(b"key3", "more").unwrap();
    store.close().unwrap();
    let store = Store::open_read_only_with("s", small_options(&sim)).unwrap();
    assert_whole(&store);
    assert!(store.rebuilt().is_empty(), "{:?}", store.rebuilt());
    assert_eq!(observe(&store).len(), wanted.len());
}

/// Opening reads no block, so a read meets the damage when there is no room for a file.
#[test]
fn damaged_block_on_full_disk_is_read_from_memory() {
    let sim = store_with_tables();
    let wanted = observe(&Store::open_read_only_with("s", small_options(&sim)).unwrap());
    let largest = tables(&sim).into_iter().max_by_key(|path| sim.read(path).unwrap().len()).unwrap();
    let middle = sim.read(&largest).unwrap().len() / 2;
    flip(&sim, &largest, middle, 1);
    let store = Store::open_with("s", small_options(&sim)).unwrap();
    sim.set_capacity(Some(0));
    assert!(observe(&store) == wanted);
    assert_eq!(store.rebuilt().len(), 1);
    sim.set_capacity(None);
    keys_of(&store.namespace("default").unwrap()).put(b"key3", "more").unwrap();
    store.close().unwrap();
    let store = Store::open_read_only_with("s", small_options(&sim)).unwrap();
    assert_whole(&store);
    assert_eq!(observe(&store).len(), wanted.len());
}

#[test]
fn damaged_log_prevents_table_rebuild() {
    let sim = store_with_tables();
    let table = tables(&sim).remove(0);
    flip(&sim, &table, 40, 1);
    let is_long = |path: &PathBuf| sim.read(path).unwrap().len() > 1000;
    let segment = sim
        .files()
        .into_iter()
        .find(|path| path.extension().is_some_and(|end| end == "seg") && is_long(path));
    let segment = segment.unwrap();
    flip(&sim, &segment, 300, 1);
    let opened = Store::open_read_only_with("s", small_options(&sim));
    let error = opened.and_then(|store| store.namespaces()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    assert!(error.to_string().contains(&segment.display().to_string()), "{error}");
}

/// The same table as version 2 wrote it: its footer ends with a checksum of the header and the footer.
fn make_version_2(bytes: &mut [u8]) {
    bytes[8] = 2;
    let (crc, footer) = (bytes.len() - 4, bytes.len() - 76);
    let sum = crc32fast::hash(&[&bytes[..12], &bytes[footer..crc]].concat());
    bytes[crc..].copy_from_slice(&sum.to_le_bytes());
}

/// Regression: a table of an earlier version counted as damaged, so the first opening after an upgrade told the
/// user to check the disk. Such tables lack the keys by which open runs and forks are found, so they are rebuilt.
#[test]
fn tables_of_an_earlier_version_are_rebuilt_without_a_warning() {
    let sim = store_with_tables();
    let wanted = observe(&Store::open_read_only_with("s", small_options(&sim)).unwrap());
    for path in tables(&sim) {
        sim.edit(&path, |bytes| make_version_2(bytes)).unwrap();
    }
    let reader = Store::open_read_only_with("s", small_options(&sim)).unwrap();
    assert_eq!((observe(&reader), reader.rebuilt()), (wanted.clone(), Vec::new()));
    drop(reader);
    let store = Store::open_with("s", small_options(&sim)).unwrap();
    assert_eq!((observe(&store), store.rebuilt()), (wanted, Vec::new()));
    store.close().unwrap();
    for path in tables(&sim) {
        assert_eq!(sim.read(&path).unwrap()[8], 4, "{}", path.display());
    }
}
