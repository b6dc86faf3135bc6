//! Graphs that are being built: nothing waits for one, and changes meanwhile are kept.

#![cfg(all(feature = "graphs", not(annals_shuttle)))]

use std::cell::Cell;

use super::{VectorTestRng, options};
use crate::io::sim::{Crash, SimIo};
use crate::vector::files::FlushScope;
use crate::vector::graph::GRAPH_ROWS_MIN;
use crate::{History, Namespace, Search, Store};

const DIMENSIONS: usize = 4;

fn put_vectors(space: &Namespace, from: usize, count: usize) {
    let keys = space.keyspace("k", History::Latest).unwrap();
    for start in (from..from + count).step_by(1000) {
        let mut batch = space.batch();
        for at in start..(start + 1000).min(from + count) {
            let vector = VectorTestRng(at as u64 + 1).vector(DIMENSIONS);
            batch.put_embedded(&keys, &(at as u32).to_be_bytes(), "", &[("e", &vector)]);
        }
        batch.commit().unwrap();
    }
}

/// A disk with a closed store whose only file is large enough for a graph and has none.
fn disk_without_graph() -> SimIo {
    let io = SimIo::new(1);
    let store = Store::open_with("s", options(&io)).unwrap();
    put_vectors(&store.namespace("a").unwrap(), 0, GRAPH_ROWS_MIN);
    store.vectors().catch_up(store.core()).unwrap();
    store.vectors().flush(store.core(), FlushScope::All).unwrap();
    store.close().unwrap();
    io.crash(Crash::Everything)
}

/// The number of vectors of each file, and whether it has a graph.
fn files_and_graphs(store: &Store) -> Vec<(usize, bool)> {
    let partition = store.vectors().partition(store.namespace("a").unwrap().id, "e").unwrap();
    partition.levels().segments.iter().map(|segment| (segment.len(), segment.header.slots.0 > 0)).collect()
}

/// Checks the number of vectors, and that a search finds some of them exactly.
fn check(space: &Namespace, count: usize) {
    for at in (0..count).step_by(count / 7) {
        let query = VectorTestRng(at as u64 + 1).vector(DIMENSIONS);
        let found =
            space.nearest("e", &query, &Search { k: 1, width: Some(200), ..Search::default() }).unwrap();
        assert!(found[0].score > 0.9999, "{at}: {}", found[0].score);
    }
    let all = Search { k: count + 100, exact: true, ..Search::default() };
    assert_eq!(space.nearest("e", &[1.0; DIMENSIONS], &all).unwrap().len(), count);
}

/// Once, vectors that came while a graph was built stayed in memory until it was done: nine in ten of a
/// million.
#[test]
fn new_vectors_are_flushed_while_a_graph_is_built() {
    let store = Store::open_with("s", options(&disk_without_graph())).unwrap();
    let space = store.namespace("a").unwrap();
    let asked = Cell::new(0);
    let stop = || {
        asked.set(asked.get() + 1);
        // These are merged until a file is large enough to be merged with the first, which its graph build
        // prevents.
        if asked.get() == 100 {
            put_vectors(&space, GRAPH_ROWS_MIN, 15_000);
            store.vectors().catch_up(store.core()).unwrap();
            store.vectors().flush(store.core(), FlushScope::Due).unwrap();
            check(&space, GRAPH_ROWS_MIN + 15_000);
        }
        false
    };
    store.vectors().make_graphs(store.core(), &stop).unwrap();
    let files = files_and_graphs(&store);
    assert_eq!(files[0], (GRAPH_ROWS_MIN, true));
    assert!(files.len() > 1 && files[1..].iter().all(|(_, graph)| !graph), "{files:?}");
    check(&space, GRAPH_ROWS_MIN + 15_000);
    // The build keeps files apart only while it runs.
    put_vectors(&space, GRAPH_ROWS_MIN + 15_000, 10);
    store.vectors().flush(store.core(), FlushScope::Due).unwrap();
    put_vectors(&space, GRAPH_ROWS_MIN + 15_010, 8000);
    store.vectors().catch_up(store.core()).unwrap();
    store.vectors().flush(store.core(), FlushScope::Due).unwrap();
    assert!(files_and_graphs(&store)[0] > (GRAPH_ROWS_MIN, true), "{:?}", files_and_graphs(&store));
    check(&space, GRAPH_ROWS_MIN + 23_010);
}

#[test]
fn graph_of_a_replaced_file_is_discarded() {
    let store = Store::open_with("s", options(&disk_without_graph())).unwrap();
    let space = store.namespace("a").unwrap();
    let asked = Cell::new(0);
    let stop = || {
        asked.set(asked.get() + 1);
        if asked.get() == 100 {
            put_vectors(&space, GRAPH_ROWS_MIN, 10);
            store.vectors().flush(store.core(), FlushScope::All).unwrap();
        }
        false
    };
    store.vectors().make_graphs(store.core(), &stop).unwrap();
    assert_eq!(files_and_graphs(&store), [(GRAPH_ROWS_MIN + 10, true)]);
    // The first build ended at once, and the second was completed.
    assert!((GRAPH_ROWS_MIN..GRAPH_ROWS_MIN + 300).contains(&asked.get()), "{}", asked.get());
    check(&space, GRAPH_ROWS_MIN + 10);
}

#[test]
fn stopped_graph_build_changes_nothing() {
    let io = disk_without_graph();
    let store = Store::open_with("s", options(&io)).unwrap();
    let (asked, before) = (Cell::new(0), io.files());
    let stop = || {
        asked.set(asked.get() + 1);
        asked.get() > 50
    };
    store.vectors().make_graphs(store.core(), &stop).unwrap();
    assert_eq!((files_and_graphs(&store), io.files()), (vec![(GRAPH_ROWS_MIN, false)], before));
    assert_eq!(asked.get(), 51);
}

/// Crashes before every operation, from the first byte of the new file to the removal of the old one.
#[test]
fn after_any_crash_one_file_remains() {
    let io = disk_without_graph();
    let store = Store::open_with("s", options(&io)).unwrap();
    let from = io.op_count();
    store.vectors().make_graphs(store.core(), &|| false).unwrap();
    let until = io.op_count();
    let (mut with, mut without) = (0, 0);
    for (point, disk) in io.history().crashes(1).filter(|(point, _)| (from..=until).contains(&point.at)) {
        let store = Store::open_with("s", options(&disk)).unwrap();
        assert_eq!(store.rebuilt(), [], "{point}");
        match files_and_graphs(&store).as_slice() {
            [(GRAPH_ROWS_MIN, true)] => with += 1,
            [(GRAPH_ROWS_MIN, false)] => without += 1,
            other => panic!("{point}: {other:?}"),
        }
        let query = VectorTestRng(78).vector(DIMENSIONS);
        let found = store.namespace("a").unwrap().nearest("e", &query, &Search::default()).unwrap();
        assert!(found.len() == 10 && found[0].score > 0.9999, "{point}");
        assert_eq!(store.rebuilt(), [], "{point}");
        let vectors =
            disk.files().iter().filter(|path| path.extension().is_some_and(|end| end == "vec")).count();
        assert_eq!(vectors, 1, "{point}: what is not listed goes when the store is opened");
    }
    assert!(with > 2 && without > 10, "{with} {without}");
}
