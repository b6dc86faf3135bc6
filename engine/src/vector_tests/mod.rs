//! Searches against a model that computes every score itself.

#![cfg(not(annals_shuttle))]

mod files;
mod graph_upkeep;
mod nearest;
mod owner_filter;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::io::sim::SimIo;
use crate::vector::files::FlushScope;
use crate::{ErrorKind, History, Keyspace, Namespace, Options, Owner, Search, SearchHit, Seqno, Store};

/// Repeatable random numbers: xorshift64*.
struct VectorTestRng(u64);

impl VectorTestRng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 8_388_608.0 - 1.0
    }

    /// A vector of few directions and lengths, so that scores tie; or any vector.
    fn vector(&mut self, dimensions: usize) -> Vec<f32> {
        let coarse = self.below(2) == 0;
        let mut vector: Vec<f32> =
            (0..dimensions).map(|_| if coarse { self.below(3) as f32 - 1.0 } else { self.unit() }).collect();
        vector[0] += if vector.iter().all(|x| *x == 0.0) { 1.0 } else { 0.0 };
        vector
    }
}

fn options(io: &SimIo) -> Options {
    Options { io: Arc::new(io.clone()), ..Options::default() }
}

/// The cosine by the rule of the format: lanes of fused products, halves added up, the rest in 64 bits.
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| {
        let mut lanes = [0.0f32; 16];
        for (at, (a, b)) in a.iter().zip(b).enumerate() {
            lanes[at % 16] = a.mul_add(*b, lanes[at % 16]);
        }
        for width in [8, 4, 2, 1] {
            for lane in 0..width {
                lanes[lane] += lanes[lane + width];
            }
        }
        f64::from(lanes[0])
    };
    (dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()).clamp(-1.0, 1.0) as f32
}

/// What a search must return for these living vectors.
fn expected_hits(
    living: &BTreeMap<Vec<u8>, (u64, Vec<f32>)>,
    query: &[f32],
    wanted: &Search<'_>,
) -> Vec<SearchHit> {
    let mut all: Vec<SearchHit> = living
        .iter()
        .map(|(key, (seqno, vector))| SearchHit {
            owner: Owner::Key { keyspace: "k".into(), key: key.clone() },
            seqno: Seqno(*seqno),
            score: cosine(query, vector),
        })
        .filter(|found| found.score >= wanted.min_score)
        .filter(|found| wanted.filter.is_none_or(|filter| filter(&found.owner)))
        .collect();
    // The keys are in order: the sort is stable and keeps that for equal scores.
    all.sort_by(|a, b| b.score.total_cmp(&a.score));
    all.truncate(wanted.k);
    all
}

fn put(space: &Namespace, keys: &Keyspace, key: &[u8], embedder: &str, vector: &[f32]) -> Seqno {
    let mut batch = space.batch();
    batch.put_embedded(keys, key, "value", &[(embedder, vector)]);
    batch.commit().unwrap()
}

#[test]
fn search_equals_the_model() {
    let seed = 0x5eed_0001;
    let io = SimIo::new(1);
    let mut numbers = VectorTestRng(seed);
    let mut store = Store::open_with("s", options(&io)).unwrap();
    let dimensions = 19;
    // In each of two namespaces, by key: the record and its vector.
    let mut models = [BTreeMap::new(), BTreeMap::new()];
    for step in 0..3000 {
        if numbers.below(400) == 0 {
            store.close().unwrap();
            store = Store::open_with("s", options(&io)).unwrap();
        }
        if numbers.below(150) == 0 {
            let all = numbers.below(3) == 0;
            store.vectors().flush(store.core(), if all { FlushScope::All } else { FlushScope::Due }).unwrap();
        }
        let which = numbers.below(2) as usize;
        let space = store.namespace(["a", "b"][which]).unwrap();
        let keys = space.keyspace("k", History::Latest).unwrap();
        let model: &mut BTreeMap<Vec<u8>, (u64, Vec<f32>)> = &mut models[which];
        let key = numbers.below(300).to_string().into_bytes();
        match numbers.below(10) {
            0 => {
                keys.delete(&key).unwrap();
                model.remove(&key);
            }
            1 => {
                keys.put(&key, "without").unwrap();
                model.remove(&key);
            }
            2..6 => {
                let vector = numbers.vector(dimensions);
                let seqno = put(&space, &keys, &key, "e", &vector);
                model.insert(key, (seqno.0, vector));
            }
            _ if model.is_empty() => {}
            _ => {
                let query = numbers.vector(dimensions);
                // A minimum score that one of the vectors just reaches, or just misses.
                let scores: Vec<f32> = model.values().map(|(_, vector)| cosine(&query, vector)).collect();
                let score = scores[numbers.below(scores.len() as u64) as usize];
                let min_score = [-1.0, 0.3, score, score.next_up()][numbers.below(4) as usize];
                let odd = |owner: &Owner| matches!(owner, Owner::Key { key, .. } if key.ends_with(b"3"));
                let filter: Option<&(dyn Fn(&Owner) -> bool + Sync)> =
                    if numbers.below(3) == 0 { Some(&odd) } else { None };
                let exact = numbers.below(2) == 0;
                let wanted =
                    Search { k: numbers.below(20) as usize, min_score, exact, filter, ..Search::default() };
                let found = space.nearest("e", &query, &wanted).unwrap();
                assert_eq!(
                    found,
                    expected_hits(model, &query, &wanted),
                    "seed {seed:#x}, step {step}: cargo test -p annals --lib vector"
                );
            }
        }
    }
    assert!(models.iter().all(|model| model.len() > 50));
    store.close().unwrap();
    // A reader finds the same.
    let reader = Store::open_read_only_with("s", options(&io)).unwrap();
    let wanted = Search { k: 1000, ..Search::default() };
    let query = numbers.vector(dimensions);
    let found = reader.namespace("a").unwrap().nearest("e", &query, &wanted).unwrap();
    assert_eq!(found, expected_hits(&models[0], &query, &wanted));
}

/// More vectors tie than are wanted: the order of visits must not decide which are returned.
#[test]
fn equal_scores_are_given_by_least_owner() {
    let io = SimIo::new(1);
    let store = Store::open_with("s", options(&io)).unwrap();
    let space = store.namespace("n").unwrap();
    let keys = space.keyspace("k", History::Latest).unwrap();
    // 101 and 300 have no common divisor: each number comes once.
    for at in (0..300u32).map(|at| at * 101 % 300) {
        put(&space, &keys, &at.to_be_bytes(), "e", &[2.0, 1.0]);
    }
    for what in ["in memory", "in a file", "in a file that was looked at"] {
        for k in [1, 7, 64, 299] {
            let found = space.nearest("e", &[1.0, 0.0], &Search { k, ..Search::default() }).unwrap();
            let owners: Vec<Owner> = found.into_iter().map(|found| found.owner).collect();
            let key = |at: u32| Owner::Key { keyspace: "k".into(), key: at.to_be_bytes().to_vec() };
            assert_eq!(owners, (0..k as u32).map(key).collect::<Vec<_>>(), "{k} {what}");
        }
        store.vectors().flush(store.core(), FlushScope::All).unwrap();
    }
}

#[test]
fn vector_is_found_once_its_commit_is_acknowledged() {
    let io = SimIo::new(1);
    let store = Store::open_with("s", options(&io)).unwrap();
    let space = store.namespace("n").unwrap();
    let keys = space.keyspace("k", History::Latest).unwrap();
    put(&space, &keys, b"first", "e", &[1.0, 0.0]);
    let near = || space.nearest("e", &[0.0, 1.0], &Search { min_score: 0.9, ..Search::default() }).unwrap();
    let mut batch = space.batch();
    batch.put_embedded(&keys, b"second", "value", &[("e", &[0.0, 1.0])]);
    assert_eq!(near(), []);
    let seqno = batch.commit().unwrap();
    let owner = Owner::Key { keyspace: "k".into(), key: b"second".to_vec() };
    assert_eq!(near(), [SearchHit { owner, seqno, score: 1.0 }]);
    // Of two puts in one batch the last counts. A key that the batch deletes does not count.
    let mut batch = space.batch();
    batch.put_embedded(&keys, b"second", "value", &[("e", &[0.0, 2.0])]);
    batch.put_embedded(&keys, b"second", "value", &[("e", &[0.1, 1.0])]);
    batch.put_embedded(&keys, b"third", "value", &[("e", &[0.0, 1.0])]);
    batch.delete(&keys, b"third");
    batch.commit().unwrap();
    let found = near();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].score, cosine(&[0.0, 1.0], &[0.1, 1.0]));
}

#[test]
fn snapshots_are_found_until_their_run_is_replaced() {
    use crate::{Component, Frame, RunSpec, Status};
    let io = SimIo::new(1);
    let store = Store::open_with("s", options(&io)).unwrap();
    let space = store.namespace("n").unwrap();
    let record = |spec: RunSpec, vector: &[f32]| {
        let run = space.begin_run(spec).unwrap();
        run.record(Frame::new(Component::Llm, "in", "out")).unwrap();
        // The recipe of a state that is a blob comes before the vector's recipe.
        run.snapshot("state".repeat(100), &[("e", vector), ("other", &[1.0])]).unwrap();
        run.end(Status::Ok).unwrap();
    };
    let long: Vec<f32> = (0..40).map(|n| n as f32).collect();
    record(RunSpec::new("r"), &long);
    let near = |store: &Store| {
        store.namespace("n").unwrap().nearest("e", &long, &Search { min_score: 0.99, ..Search::default() })
    };
    let found = near(&store).unwrap();
    assert_eq!(found.len(), 1);
    assert!(matches!(found[0].owner, Owner::Snapshot { seq: 1, .. }));
    let mut replaced = RunSpec::new("r");
    replaced.replace = true;
    let other: Vec<f32> = (0..40).map(|n| (40 - n) as f32).collect();
    record(replaced, &other);
    assert_eq!(near(&store).unwrap(), []);
    store.close().unwrap();
    let store = Store::open_with("s", options(&io)).unwrap();
    assert_eq!(near(&store).unwrap(), []);
}

#[test]
fn incomparable_vectors_are_refused() {
    let io = SimIo::new(1);
    let store = Store::open_with("s", options(&io)).unwrap();
    let space = store.namespace("n").unwrap();
    let keys = space.keyspace("k", History::Latest).unwrap();
    let wanted = Search::default();
    let unknown = space.nearest("e", &[1.0], &wanted).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    let written = |embedder: &str, vector: &[f32]| {
        let mut batch = space.batch();
        batch.put_embedded(&keys, b"key", "value", &[(embedder, vector)]);
        batch.commit()
    };
    for wrong in [&[f32::NAN, 1.0][..], &[f32::INFINITY, 0.0], &[0.0, 0.0], &[]] {
        assert_eq!(written("e", wrong).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(space.nearest("e", wrong, &wanted).unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(keys.get(b"key").unwrap(), None, "a refused batch leaves nothing");
    written("e", &[1.0, 0.0]).unwrap();
    written("f", &[1.0]).unwrap();
    for wrong in [&[1.0][..], &[1.0, 0.0, 0.0]] {
        let error = written("e", wrong).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("2 dimensions"), "{error}");
        assert_eq!(space.nearest("e", wrong, &wanted).unwrap_err().kind(), ErrorKind::Invalid);
    }
    let unknown = space.nearest("g", &[1.0], &wanted).unwrap_err();
    assert!(unknown.kind() == ErrorKind::NotFound && unknown.to_string().contains("e, f"), "{unknown}");
    let nan = Search { min_score: f32::NAN, ..Search::default() };
    assert_eq!(space.nearest("f", &[1.0], &nan).unwrap_err().kind(), ErrorKind::Invalid);
    // An embedder's dimensions hold for one namespace.
    let other = store.namespace("other").unwrap();
    let keys = other.keyspace("k", History::Latest).unwrap();
    put(&other, &keys, b"key", "e", &[1.0, 2.0, 3.0]);
    // All of its vectors are gone: nothing is near, but the embedder is still known.
    keys.delete(b"key").unwrap();
    assert_eq!(other.nearest("e", &[1.0, 2.0, 3.0], &wanted).unwrap(), []);
    // After reopening, the log gives the dimensions.
    store.close().unwrap();
    let store = Store::open_with("s", options(&io)).unwrap();
    let space = store.namespace("n").unwrap();
    let keys = space.keyspace("k", History::Latest).unwrap();
    let mut batch = space.batch();
    batch.put_embedded(&keys, b"key", "value", &[("e", &[1.0, 2.0, 3.0])]);
    assert_eq!(batch.commit().unwrap_err().kind(), ErrorKind::Invalid);
}
