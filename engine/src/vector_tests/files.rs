//! Vectors in files: found like those in memory, and rebuilt if a file is damaged.

#![cfg(not(annals_shuttle))]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use roaring::RoaringBitmap;

use super::{VectorTestRng, cosine, expected_hits, options, put};
use crate::io::Io;
use crate::io::sim::SimIo;
use crate::log::manifest::VectorEntry;
use crate::sync::atomic::Ordering;
use crate::vector::files::{CLOSE_ROWS, FlushScope};
use crate::vector::index::WAKE_BATCHES;
use crate::vector::merged::MergedVectors;
use crate::vector::partition::Partition;
use crate::vector::quantise::encode;
use crate::vector::types::{OwnerId, VectorOrigin};
use crate::vector::vector_file::OpenVectorFile;
use crate::vector::writer::{self, GraphBytes, VectorFileMeta};
use crate::vector::{graph, kernel};
use crate::{
    Options, ReadMode, RunUid, Seqno, Store,
    kv::{History, ScanRange},
    vectors::{Owner, Search, SearchHit},
};
use annals_store::kv::embeddings::SweptOwners;

type VectorFileModel = BTreeMap<Vec<u8>, (u64, Vec<f32>)>;

const DIMENSIONS: usize = 40;

/// A store with vectors in two files, of which a few are dead, and a few vectors in memory; with its model
/// and a query.
fn filled_store(io: &SimIo) -> (Store, VectorFileModel, Vec<f32>) {
    let mut numbers = VectorTestRng(77);
    let store = Store::open_with("s", options(io)).unwrap();
    let space = store.namespace("a").unwrap();
    let keys = space.keyspace("k", History::Latest).unwrap();
    let mut model = VectorFileModel::new();
    for step in 0..700 {
        let key = numbers.below(600).to_string().into_bytes();
        let vector = numbers.vector(DIMENSIONS);
        let seqno = put(&space, &keys, &key, "e", &vector);
        model.insert(key, (seqno.0, vector));
        if step == 500 || step == 660 {
            store.vectors().flush(store.core(), FlushScope::Due).unwrap();
        }
    }
    (store, model, numbers.vector(DIMENSIONS))
}

fn files(io: &SimIo) -> Vec<PathBuf> {
    io.files().into_iter().filter(|path| path.extension().is_some_and(|end| end == "vec")).collect()
}

fn all_vectors() -> Search<'static> {
    Search { k: 10_000, ..Search::default() }
}

fn found_vectors(store: &Store, query: &[f32]) -> Vec<SearchHit> {
    store.namespace("a").unwrap().nearest("e", query, &all_vectors()).unwrap()
}

#[test]
fn merged_files_hold_only_living_vectors() {
    let io = SimIo::new(1);
    let (store, model, query) = filled_store(&io);
    assert_eq!(files(&io).len(), 2);
    assert_eq!(found_vectors(&store, &query), expected_hits(&model, &query, &all_vectors()));
    store.close().unwrap();
    let store = Store::open_with("s", options(&io)).unwrap();
    assert_eq!(found_vectors(&store, &query), expected_hits(&model, &query, &all_vectors()));
    let nearest = Search { k: 3, min_score: 0.2, ..Search::default() };
    let space = store.namespace("a").unwrap();
    assert_eq!(space.nearest("e", &query, &nearest).unwrap(), expected_hits(&model, &query, &nearest));
    store.vectors().flush(store.core(), FlushScope::All).unwrap();
    assert_eq!(files(&io).len(), 1);
    let partition = store.vectors().partition(space.id, "e").unwrap();
    assert_eq!(partition.levels().segments[0].len(), model.len());
    assert_eq!(found_vectors(&store, &query), expected_hits(&model, &query, &all_vectors()));
    assert_eq!(store.rebuilt(), []);
    // A reader beside it that uses no maps reads the same file.
    let by_position = Options { read_mode: ReadMode::Positional, ..options(&io) };
    let reader = Store::open_read_only_with("s", by_position).unwrap();
    assert_eq!(found_vectors(&reader, &query), expected_hits(&model, &query, &all_vectors()));
}

/// There are more vectors than the index gives in one page, so that catching up must continue.
#[test]
fn catch_up_reads_all_pages_of_new_vectors() {
    let io = SimIo::new(1);
    let store = Store::open_with("s", options(&io)).unwrap();
    let space = store.namespace("a").unwrap();
    let keys = space.keyspace("k", History::Latest).unwrap();
    for start in (0..6000u32).step_by(300) {
        let mut batch = space.batch();
        for at in start..start + 300 {
            batch.put_embedded(&keys, &at.to_be_bytes(), "", &[("e", &[1.0, at as f32])]);
        }
        batch.commit().unwrap();
    }
    store.close().unwrap();
    let reader = Store::open_read_only_with("s", options(&io)).unwrap();
    assert_eq!(found_vectors(&reader, &[1.0, 1.0]).len(), 6000);
    // The files that the close wrote are removed: only the log has the vectors.
    files(&io).iter().for_each(|path| io.remove(path).unwrap());
    let store = Store::open_with("s", options(&io)).unwrap();
    store.vectors().memory_bytes.store(256 << 10, Ordering::Relaxed);
    assert_eq!(found_vectors(&store, &[1.0, 1.0]).len(), 6000);
    // What exceeds the memory limit was flushed meanwhile.
    let space = store.namespace("a").unwrap();
    let levels = store.vectors().partition(space.id, "e").unwrap().levels();
    assert!(levels.tail_rows() < 4000 && !levels.segments.is_empty(), "{}", levels.tail_rows());
    // A full disk does not keep a search from finding all vectors.
    store.close().unwrap();
    files(&io).iter().for_each(|path| io.remove(path).unwrap());
    let store = Store::open_with("s", options(&io)).unwrap();
    store.vectors().memory_bytes.store(256 << 10, Ordering::Relaxed);
    io.set_capacity(Some(0));
    assert_eq!(found_vectors(&store, &[1.0, 1.0]).len(), 6000);
}

#[test]
fn damaged_files_are_rebuilt_from_the_log() {
    let io = SimIo::new(1);
    let (store, model, query) = filled_store(&io);
    store.close().unwrap();
    let wanted = expected_hits(&model, &query, &all_vectors());
    let check = |io: &SimIo, what: &str| {
        let store = Store::open_with("s", options(io)).unwrap();
        assert_eq!(found_vectors(&store, &query), wanted, "{what}");
        assert!(!store.rebuilt().is_empty(), "{what} was not noticed");
        // What was rebuilt is written anew. After that nothing is damaged.
        store.vectors().flush(store.core(), FlushScope::Due).unwrap();
        store.close().unwrap();
        let store = Store::open_with("s", options(io)).unwrap();
        assert_eq!((found_vectors(&store, &query), store.rebuilt()), (wanted.clone(), vec![]), "{what}");
    };
    let snapshot = || -> SimIo {
        let (_, disk) = io.history().crashes(0).last().unwrap();
        disk
    };
    for path in files(&io) {
        let len = io.read(&path).unwrap().len();
        // Steps that reach each kind of byte: headers, ids, owners, codes, vectors, checksums, padding.
        for at in (0..len).step_by(len / 97).chain([8, 255, len - 1, len - 5]) {
            let io = snapshot();
            io.edit(&path, |bytes| bytes[at] ^= 0x10).unwrap();
            check(&io, &format!("a flip at {at} of {len} in {}", path.display()));
        }
        for keep in [0, 100, 256, len / 2, len - 1] {
            let io = snapshot();
            io.edit(&path, |bytes| bytes.truncate(keep)).unwrap();
            check(&io, &format!("a cut at {keep}"));
        }
        let io = snapshot();
        io.remove(&path).unwrap();
        check(&io, "a file that is gone");
    }
    // A file of another number in its place.
    let all = files(&io);
    let other = io.read(&all[1]).unwrap();
    let io = snapshot();
    io.edit(&all[0], |bytes| *bytes = other).unwrap();
    check(&io, "another file");
}

/// Each key's value names its vector, so that the store itself says what must be found.
#[test]
fn after_any_crash_only_living_vectors_are_found() {
    let io = SimIo::new(3);
    let mut numbers = VectorTestRng(5);
    let store = Store::open_with("s", options(&io)).unwrap();
    let space = store.namespace("a").unwrap();
    let keys = space.keyspace("k", History::Latest).unwrap();
    let vector = |seed: u64| VectorTestRng(seed + 1).vector(3);
    for step in 0..40u64 {
        let mut batch = space.batch();
        let key = numbers.below(12).to_string();
        if step % 7 == 3 {
            batch.delete(&keys, key.as_bytes());
        } else {
            batch.put_embedded(&keys, key.as_bytes(), step.to_string(), &[("e", &vector(step))]);
        }
        // Some batches are only in the system's memory when their vectors are written to a file.
        let durability = if step % 3 == 0 { crate::Durability::Disk } else { crate::Durability::Process };
        batch.submit_with(durability).unwrap().wait().unwrap();
        if step % 9 == 8 {
            store
                .vectors()
                .flush(store.core(), if step % 2 == 0 { FlushScope::All } else { FlushScope::Due })
                .unwrap();
        }
    }
    store.close().unwrap();
    let (mut with_files, mut states) = (0, 0);
    for (point, disk) in io.history().crashes(2) {
        let Ok(store) = Store::open_with("s", options(&disk)) else { continue };
        let space = store.namespace("a").unwrap();
        let keys = space.keyspace("k", History::Latest).unwrap();
        let query = [0.3, 0.5, -0.7];
        let mut wanted: Vec<(Vec<u8>, f32)> = keys
            .scan(ScanRange::all())
            .map(|pair| {
                let (key, value) = pair.unwrap();
                let seed = String::from_utf8(value).unwrap().parse().unwrap();
                (key, cosine(&query, &vector(seed)))
            })
            .collect();
        wanted.sort_by(|a, b| b.1.total_cmp(&a.1));
        let found = match space.nearest("e", &query, &all_vectors()) {
            Ok(found) => found,
            Err(error) => {
                assert!(wanted.is_empty() && error.kind() == crate::ErrorKind::NotFound, "{point}: {error}");
                continue;
            }
        };
        let found: Vec<(Vec<u8>, f32)> = found
            .into_iter()
            .map(|found| match found.owner {
                Owner::Key { key, .. } => (key, found.score),
                Owner::Snapshot { .. } => unreachable!("no snapshot was taken"),
            })
            .collect();
        assert_eq!(found, wanted, "{point}");
        assert_eq!(store.rebuilt(), [], "{point}: a listed file is whole");
        states += 1;
        with_files += usize::from(!files(&disk).is_empty());
    }
    assert!(states > 200 && with_files > 100, "{states} {with_files}");
}

/// A graph by hand: a ring with chords, and one level above it.
#[test]
fn walk_reads_the_graph_of_the_file() {
    let io = SimIo::new(1);
    let mut numbers = VectorTestRng(9);
    let count = 200u32;
    let partition = Partition::new(2);
    let vectors: Vec<(VectorOrigin, Vec<f32>)> = (0..count)
        .map(|at| {
            let angle = at as f32 / count as f32 * std::f32::consts::TAU;
            let owner = OwnerId::Key { space: 20, key: at.to_be_bytes().into() };
            (VectorOrigin { seqno: Seqno(u64::from(at) + 1), owner }, vec![angle.cos(), angle.sin()])
        })
        .collect();
    partition.push(vectors.clone());
    let mut graph = GraphBytes { slots: (3, 2), levels: 1, entry: 0, ..GraphBytes::default() };
    for at in 0..count {
        for to in [(at + 1) % count, (at + count - 1) % count, graph::NO_NEIGHBOUR] {
            graph.lowest.extend_from_slice(&to.to_le_bytes());
        }
    }
    let upper: Vec<u32> = (0..count).step_by(20).collect();
    graph.upper.extend_from_slice(&(upper.len() as u32).to_le_bytes());
    upper.iter().for_each(|at| graph.upper.extend_from_slice(&at.to_le_bytes()));
    for at in &upper {
        for to in [(at + 20) % count, (at + count - 20) % count] {
            graph.upper.extend_from_slice(&to.to_le_bytes());
        }
    }
    let store = crate::StoreId([7; 16]);
    let namespace = crate::ids::NamespaceId(16);
    let meta = VectorFileMeta { store, id: 3, namespace, upto: Seqno(500) };
    let path = Path::new("3.vec");
    let header = writer::write(&io, path, meta, &MergedVectors::all(&partition.levels(), 2), &graph).unwrap();
    let entry = VectorEntry {
        id: 3,
        bytes: header.file_bytes(),
        namespace,
        embedder: "e".into(),
        dimensions: 2,
        count: u64::from(count),
        upto: Seqno(500),
    };
    let segment = OpenVectorFile::open(&io, path, store, &entry, ReadMode::Mapped).unwrap();
    for (at, (item, vector)) in vectors.iter().enumerate() {
        assert_eq!(
            (segment.item(at).unwrap(), &*segment.row(at).unwrap()),
            (item.clone(), vector.as_slice())
        );
        assert_eq!(segment.scale(at).unwrap().square, kernel::dot(vector, vector));
    }
    for _ in 0..50 {
        let query = numbers.vector(2);
        let coded = encode(&query);
        let walked = graph::walk(&segment, &coded, 8, None).unwrap();
        assert_eq!(walked.len(), 8);
        let best = walked.iter().max().unwrap().at as usize;
        let scores: Vec<f32> = vectors.iter().map(|(_, vector)| cosine(&query, vector)).collect();
        let most = scores.iter().copied().fold(f32::MIN, f32::max);
        assert!(scores[best] > most - 0.01, "{best}: {} of {most}", scores[best]);
        // The walk passes vectors that do not count, to the nearest that do.
        let some: RoaringBitmap = (0..count).filter(|at| at % 9 == 4).collect();
        let walked = graph::walk(&segment, &coded, 3, Some(&some)).unwrap();
        assert!(walked.len() == 3 && walked.iter().all(|near| some.contains(near.at)));
        let best = walked.iter().max().unwrap().at as usize;
        let most = some.iter().map(|at| scores[at as usize]).fold(f32::MIN, f32::max);
        assert!(scores[best] > most - 0.01, "{best}: {} of {most}", scores[best]);
        // The narrowest walk goes from one vector to the next as long as that is nearer.
        let walked = graph::walk(&segment, &coded, 1, None).unwrap();
        assert!(walked.len() == 1 && scores[walked[0].at as usize] > greatest_score(&scores) - 0.01);
        // What the upper level found is kept on the way down, even if nothing else is wanted.
        let tops: RoaringBitmap = (0..count).step_by(20).collect();
        let mut walked: Vec<f32> = graph::walk(&segment, &coded, 2, Some(&tops))
            .unwrap()
            .iter()
            .map(|near| scores[near.at as usize])
            .collect();
        let mut nearest: Vec<f32> = tops.iter().map(|at| scores[at as usize]).collect();
        walked.sort_by(|a, b| b.total_cmp(a));
        nearest.sort_by(|a, b| b.total_cmp(a));
        // By their codes, two vectors that are nearly equally near may change places.
        assert!(walked.len() == 2 && walked[1] > nearest[1] - 0.02, "{walked:?} {nearest:?}");
    }
}

fn greatest_score(scores: &[f32]) -> f32 {
    scores.iter().copied().fold(f32::MIN, f32::max)
}

/// There are too few vectors for a graph, and more than a walk visits. For one result, a walk would end where
/// it begins.
#[test]
fn large_file_without_a_graph_is_scanned() {
    let io = SimIo::new(1);
    let mut numbers = VectorTestRng(5);
    let store = Store::open_with("s", options(&io)).unwrap();
    let space = store.namespace("a").unwrap();
    let keys = space.keyspace("k", History::Latest).unwrap();
    let mut model = VectorFileModel::new();
    for at in 0..2000u32 {
        let (key, vector) = (at.to_be_bytes().to_vec(), numbers.vector(8));
        let seqno = put(&space, &keys, &key, "e", &vector);
        model.insert(key, (seqno.0, vector));
    }
    store.vectors().flush(store.core(), FlushScope::All).unwrap();
    for k in [1, 2, 10, 1] {
        let query = numbers.vector(8);
        let wanted = Search { k, ..Search::default() };
        assert_eq!(
            space.nearest("e", &query, &wanted).unwrap(),
            expected_hits(&model, &query, &wanted),
            "{k}"
        );
    }
}

/// A process that writes for long must not hold all vectors in memory.
#[test]
fn new_vectors_are_flushed_meanwhile_and_at_close() {
    let io = SimIo::new(1);
    let batch_of = |store: &Store, from: u32, count: u32| {
        let space = store.namespace("a").unwrap();
        let keys = space.keyspace("k", History::Latest).unwrap();
        let mut batch = space.batch();
        for at in from..from + count {
            batch.put_embedded(&keys, &at.to_be_bytes(), "", &[("e", &[1.0, at as f32])]);
        }
        batch.commit().unwrap();
    };
    let store = Store::open_with("s", options(&io)).unwrap();
    batch_of(&store, 0, CLOSE_ROWS as u32 - 1);
    assert_eq!(found_vectors(&store, &[1.0, 1.0]).len(), CLOSE_ROWS - 1);
    store.close().unwrap();
    assert!(files(&io).is_empty(), "these are soon read again");
    let store = Store::open_with("s", options(&io)).unwrap();
    batch_of(&store, 5000, 1);
    assert_eq!(found_vectors(&store, &[1.0, 1.0]).len(), CLOSE_ROWS);
    store.close().unwrap();
    assert_eq!(files(&io).len(), 1);
    let store = Store::open_with("s", options(&io)).unwrap();
    // The thread wakes after this many batches. The last of them may not be visible yet, so there is one
    // more.
    for batch in 0..WAKE_BATCHES as u32 {
        batch_of(&store, 10_000 + 100 * batch, 100);
    }
    let partition = store.vectors().partition(store.namespace("a").unwrap().id, "e").unwrap();
    while partition.levels().segments[0].len() == CLOSE_ROWS {
        crate::sync::spin_loop();
    }
    assert_eq!(found_vectors(&store, &[1.0, 1.0]).len(), CLOSE_ROWS + 100 * WAKE_BATCHES as usize);
}

/// Forgetting one run must not wait for all files of a large store.
#[test]
fn sweep_rewrites_files_of_dropped_runs_or_a_quarter_dead() {
    let io = SimIo::new(1);
    let store = Store::open_with("s", options(&io)).unwrap();
    let space = store.namespace("a").unwrap();
    let keys = space.keyspace("k", History::Latest).unwrap();
    for at in 0..100u8 {
        put(&space, &keys, &[at], "e", &[1.0, f32::from(at)]);
    }
    let sweep = |store: &Store, must_go: &[RunUid]| {
        let uids: Vec<u64> = must_go.iter().map(|uid| uid.0).collect();
        let what = SweptOwners { uids: &uids, ..SweptOwners::default() };
        store.vectors().flush(store.core(), FlushScope::Sweep(what)).unwrap();
        files(&io)
    };
    store.vectors().flush(store.core(), FlushScope::All).unwrap();
    let first = files(&io);
    assert_eq!(sweep(&store, &[RunUid(1)]), first, "no vector of it is there");
    for at in 0..24u8 {
        keys.delete(&[at]).unwrap();
    }
    assert_eq!(sweep(&store, &[]), first, "under a quarter");
    keys.delete(&[24]).unwrap();
    let second = sweep(&store, &[]);
    assert!(second.len() == 1 && second != first, "a quarter: {second:?}");
    assert_eq!(sweep(&store, &[]), second, "nothing is dead any more");
    let partition = store.vectors().partition(space.id, "e").unwrap();
    assert_eq!(partition.levels().segments[0].len(), 75);
    assert_eq!(found_vectors(&store, &[1.0, 0.0]).len(), 75);
    // A forgotten key's vector goes at once, however few are dead; so does every dead vector if that is asked.
    let sweep_with = |what: SweptOwners<'_>| {
        store.vectors().flush(store.core(), FlushScope::Sweep(what)).unwrap();
        store.vectors().partition(space.id, "e").unwrap().levels().segments[0].len()
    };
    keys.delete(&[25]).unwrap();
    assert_eq!(sweep_with(SweptOwners::default()), 75);
    let forgotten = [(keys.id(), vec![25])];
    assert_eq!(sweep_with(SweptOwners { keys: &forgotten, ..SweptOwners::default() }), 74);
    keys.delete(&[26]).unwrap();
    assert_eq!(sweep_with(SweptOwners { keys: &forgotten, ..SweptOwners::default() }), 74);
    assert_eq!(sweep_with(SweptOwners { all_dead: true, ..SweptOwners::default() }), 73);
}

/// Clustered vectors, as embeddings are: a walk of the built graph against an exact scan.
#[cfg(feature = "graphs")]
#[test]
fn built_graph_finds_nearly_all_that_a_scan_finds() {
    let io = SimIo::new(1);
    let mut numbers = VectorTestRng(21);
    let centres: Vec<Vec<f32>> = (0..50).map(|_| (0..24).map(|_| numbers.unit()).collect()).collect();
    let mut near_one = |spread: f32| -> Vec<f32> {
        let centre = &centres[numbers.below(50) as usize];
        centre.iter().map(|x| x + spread * numbers.unit()).collect()
    };
    let store = Store::open_with("s", options(&io)).unwrap();
    let space = store.namespace("a").unwrap();
    let keys = space.keyspace("k", History::Latest).unwrap();
    let count = graph::GRAPH_ROWS_MIN as u32 + 500;
    let mut all: Vec<Vec<f32>> = Vec::new();
    for start in (0..count).step_by(500) {
        let mut batch = space.batch();
        for at in start..start + 500 {
            all.push(near_one(0.4));
            batch.put_embedded(&keys, &at.to_be_bytes(), "", &[("e", &all[at as usize])]);
        }
        batch.commit().unwrap();
    }
    store.settle_vectors().unwrap();
    let partition = store.vectors().partition(space.id, "e").unwrap();
    let slots: Vec<_> = partition.levels().segments.iter().map(|segment| segment.header.slots).collect();
    assert_eq!(slots, [(32, 16)]);
    // An exact search misses nothing, although there is a graph.
    for _ in 0..20 {
        let query: Vec<f32> = (0..24).map(|_| near_one(2.0)[3]).collect();
        let wanted = Search { k: 40, exact: true, ..Search::default() };
        let found: Vec<f32> =
            space.nearest("e", &query, &wanted).unwrap().iter().map(|found| found.score).collect();
        let mut scores: Vec<f32> = all.iter().map(|vector| cosine(&query, vector)).collect();
        scores.sort_by(|a, b| b.total_cmp(a));
        assert_eq!(found, scores[..40]);
    }
    let tenth = |owner: &Owner| matches!(owner, Owner::Key { key, .. } if key[3] % 10 == 0);
    let rare = |owner: &Owner| matches!(owner, Owner::Key { key, .. } if key[3] == 0);
    for (filter, least) in [
        (None, 0.97),
        (Some(&tenth as &(dyn Fn(&Owner) -> bool + Sync)), 0.97),
        (Some(&rare as &(dyn Fn(&Owner) -> bool + Sync)), 0.97),
    ] {
        let (mut hits, mut all) = (0, 0);
        for _ in 0..100 {
            let query = near_one(0.4);
            let wanted = Search { k: 10, filter, ..Search::default() };
            let walked = space.nearest("e", &query, &wanted).unwrap();
            let exact = space.nearest("e", &query, &Search { exact: true, ..wanted }).unwrap();
            assert_eq!(exact.len(), 10);
            hits += exact.iter().filter(|found| walked.contains(found)).count();
            all += exact.len();
        }
        assert!(hits as f64 >= least * all as f64, "{hits} of {all}");
    }
    // A wider walk finds more. The narrowest still finds the requested number, and correct scores.
    let found = [1, 16, 400].map(|width| {
        let mut hits = 0;
        let mut numbers = VectorTestRng(77);
        for _ in 0..60 {
            let query: Vec<f32> = (0..24).map(|_| numbers.unit()).collect();
            let wanted = Search { k: 10, width: Some(width), ..Search::default() };
            let walked = space.nearest("e", &query, &wanted).unwrap();
            assert_eq!(walked.len(), 10, "{width}");
            let exact = space.nearest("e", &query, &Search { exact: true, ..wanted }).unwrap();
            hits += exact.iter().filter(|found| walked.contains(found)).count();
        }
        hits
    });
    assert!(found[0] <= found[1] && found[1] < found[2] && found[2] > 570, "{found:?} of 600");
}
