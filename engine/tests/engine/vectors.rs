//! Vectors of keys and snapshots over compactions, backups and repairs.

use std::collections::BTreeMap;

use annals::{
    ErrorKind, Keyspace, Namespace, Options, Store,
    kv::History,
    upkeep::{CompactOptions, Sharing, repair, restore},
    vectors::{Owner, Search, SearchHit},
};

use crate::support::{SeededRng, assert_whole, process_durability_options, seed, sim_options};

/// By keyspace and key: the seqno and the vector.
type OwnerVectors = BTreeMap<(&'static str, Vec<u8>), (u64, Vec<f32>)>;

const SPACES: [(&str, History); 2] = [("all", History::All), ("latest", History::Latest)];

/// Small segments, so that a test has several.
fn small() -> Options {
    Options { segment_bytes_max: 32 << 10, ..process_durability_options() }
}

fn vector(rng: &mut SeededRng, dimensions: usize) -> Vec<f32> {
    (0..dimensions).map(|_| (rng.next() >> 40) as f32 / 8_388_608.0 - 1.0).collect()
}

/// The owner and seqno of every vector, by seqno.
fn all_owners(space: &Namespace, embedder: &str, query: &[f32]) -> Vec<(Owner, u64)> {
    let found = space.nearest(embedder, query, &Search { k: 10_000, ..Search::default() }).unwrap();
    let mut found: Vec<(Owner, u64)> =
        found.into_iter().map(|SearchHit { owner, seqno, .. }| (owner, seqno.0)).collect();
    found.sort_by_key(|(_, seqno)| *seqno);
    found
}

fn expected(model: &OwnerVectors) -> Vec<(Owner, u64)> {
    let mut all: Vec<(Owner, u64)> = model
        .iter()
        .map(|((keyspace, key), (seqno, _))| {
            (Owner::Key { keyspace: (*keyspace).to_owned(), key: key.clone() }, *seqno)
        })
        .collect();
    all.sort_by_key(|(_, seqno)| *seqno);
    all
}

struct VectorWorkload {
    space: Namespace,
    keys: Vec<(&'static str, Keyspace)>,
    model: OwnerVectors,
    rng: SeededRng,
    dimensions: usize,
}

impl VectorWorkload {
    fn new(store: &Store, seed: u64, dimensions: usize) -> Self {
        let space = store.namespace("default").unwrap();
        let keys = SPACES.map(|(name, history)| (name, space.keyspace(name, history).unwrap())).to_vec();
        Self { space, keys, model: OwnerVectors::new(), rng: SeededRng(seed), dimensions }
    }

    fn step(&mut self) {
        let (name, keys) = self.keys[self.rng.below(2)].clone();
        let key = self.rng.below(40).to_string().into_bytes();
        let mut batch = self.space.batch();
        match self.rng.below(6) {
            0 => {
                batch.delete(&keys, &key);
                self.model.remove(&(name, key));
                batch.commit().unwrap();
            }
            1 => {
                batch.put(&keys, &key, "without");
                self.model.remove(&(name, key));
                batch.commit().unwrap();
            }
            _ => {
                let vector = vector(&mut self.rng, self.dimensions);
                batch.put_embedded(&keys, &key, self.rng.bytes(200), &[("e", &vector)]);
                let last = batch.commit().unwrap();
                // A record with the bytes of a long vector may follow it.
                let seqno = if self.dimensions > 1000 { last.0 - 1 } else { last.0 };
                self.model.insert((name, key), (seqno, vector));
            }
        }
    }

    fn check(&mut self, store: &Store, what: &str) {
        let space = store.namespace("default").unwrap();
        let query = vector(&mut self.rng, self.dimensions);
        assert_eq!(all_owners(&space, "e", &query), expected(&self.model), "{what}");
    }
}

/// A vector is a record of its own after the put of its key. Compaction keeps it as long as that put.
#[test]
fn vector_survives_compaction_as_long_as_its_value() {
    // Inline vectors, and vectors stored as bodies.
    for dimensions in [8, 1500] {
        let seed = seed(0x7ec7, "vectors::vector_survives_compaction_as_long_as_its_value");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let mut store = Store::open_with(&path, small()).unwrap();
        let mut used = VectorWorkload::new(&store, seed, dimensions);
        for round in 0..6 {
            for _ in 0..150 {
                used.step();
            }
            let before = store.checkpoint().unwrap();
            let options =
                CompactOptions { recompress: (round % 2 == 0).then_some(3), ..CompactOptions::default() };
            let done = store.compact(&options).unwrap();
            assert!(done.rewritten > 0, "round {round}: {done:?}");
            used.check(&store, &format!("seed {seed:#x}, round {round}, {dimensions} dimensions"));
            assert_whole(&store);
            assert!(store.verify_against(&before).unwrap().differences.is_empty());
            store.close().unwrap();
            if round % 3 == 0 {
                // The log alone, with an index rebuilt from it.
                let _ = std::fs::remove_dir_all(path.join("vectors"));
                let _ = std::fs::remove_dir_all(path.join("tables"));
            }
            store = Store::open_with(&path, small()).unwrap();
            used.check(&store, &format!("seed {seed:#x}, round {round} reopened, {dimensions} dimensions"));
            used = VectorWorkload {
                model: used.model,
                ..VectorWorkload::new(&store, used.rng.next(), dimensions)
            };
        }
    }
}

/// After compaction no file holds a vector whose value was removed.
#[test]
fn vector_is_removed_when_its_value_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = Store::open_with(&path, small()).unwrap();
    let space = store.namespace("default").unwrap();
    let keys = space.keyspace("latest", History::Latest).unwrap();
    let mut rng = SeededRng(5);
    let canary = vector(&mut rng, 12);
    let bytes: Vec<u8> = canary.iter().flat_map(|x| x.to_le_bytes()).collect();
    let held = || -> Vec<String> {
        let mut files = Vec::new();
        for dir in ["segments", "vectors"] {
            for entry in std::fs::read_dir(path.join(dir)).into_iter().flatten() {
                let entry = entry.unwrap();
                let all = std::fs::read(entry.path()).unwrap();
                if all.windows(bytes.len()).any(|window| window == bytes) {
                    files.push(format!("{dir}/{}", entry.file_name().to_string_lossy()));
                }
            }
        }
        files
    };
    let mut batch = space.batch();
    batch.put_embedded(&keys, b"key", "old", &[("e", &canary)]);
    batch.commit().unwrap();
    store.settle_vectors().unwrap();
    assert_eq!(held().len(), 2, "{:?}", held());
    let mut batch = space.batch();
    batch.put_embedded(&keys, b"key", "new", &[("e", &vector(&mut rng, 12))]);
    batch.commit().unwrap();
    store.compact(&CompactOptions::default()).unwrap();
    assert_eq!(held(), Vec::<String>::new());
    assert_eq!(all_owners(&space, "e", &canary).len(), 1);
}

#[test]
fn backup_and_restore_keep_vector_files() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_with(dir.path().join("s"), small()).unwrap();
    let mut used = VectorWorkload::new(&store, 3, 20);
    for step in 0..400 {
        used.step();
        if step == 300 {
            store.settle_vectors().unwrap();
        }
    }
    for (name, sharing) in [("linked", Sharing::Shared), ("copied", Sharing::Copied)] {
        let to = dir.path().join(name);
        store.backup(&to, sharing).unwrap();
        assert!(to.join("vectors/00000001.vec").exists());
        let copy = Store::open_with(&to, small()).unwrap();
        used.check(&copy, name);
        assert_eq!(copy.rebuilt(), []);
        copy.close().unwrap();
    }
    restore(dir.path().join("copied"), dir.path().join("restored"), small()).unwrap();
    let restored = Store::open_read_only_with(dir.path().join("restored"), small()).unwrap();
    used.check(&restored, "restored");
    assert_eq!(restored.rebuilt(), []);
}

/// A repaired store has new seqnos, and the same vectors at the same keys.
#[test]
fn repair_copies_vectors() {
    let dir = tempfile::tempdir().unwrap();
    let (path, to) = (dir.path().join("s"), dir.path().join("mended"));
    let store = Store::open_with(&path, small()).unwrap();
    let mut used = VectorWorkload::new(&store, 9, 20);
    for _ in 0..200 {
        used.step();
    }
    store.close().unwrap();
    let report = repair(&path, &to, small()).unwrap();
    assert!(report.lost.is_empty(), "{report:?}");
    let mended = Store::open_with(&to, small()).unwrap();
    let space = mended.namespace("default").unwrap();
    for (name, _) in SPACES {
        let newest = |(keyspace, _): &&(&'static str, Vec<u8>)| *keyspace == name;
        for (_, key) in used.model.keys().filter(newest) {
            let (_, vector) = &used.model[&(name, key.clone())];
            let found = space.nearest("e", vector, &Search { k: 1, ..Search::default() }).unwrap();
            let owner = Owner::Key { keyspace: name.to_owned(), key: key.clone() };
            assert_eq!((&found[0].owner, found[0].score), (&owner, 1.0));
        }
    }
    let all = all_owners(&space, "e", &vector(&mut used.rng, 20));
    assert_eq!(all.len(), used.model.len());
    let sim = annals::io::sim::SimIo::new(1);
    let empty = Store::open_with("s", sim_options(&sim)).unwrap();
    let unknown = empty.namespace("default").unwrap().nearest("e", &[1.0], &Search::default()).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
}
