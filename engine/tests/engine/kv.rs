//! Keyspaces against a model: every version, every policy, scans both ways, batches, views, reopening.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::Path;
use std::time::Duration;

use annals::io::Io;
use annals::io::sim::{Crash, SimIo};
use annals::{
    Durability, ErrorKind, Keyspace, Namespace, Options, Seqno, Store,
    kv::{History, KEY_BYTES_MAX, ScanRange, View},
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::support::{SeededRng, assert_whole, fresh, seed, sim_options};

/// Each operation advances the simulated clock by this much.
const STEP_NS: u64 = 100_000_000_000;
/// Between two multiples of the step, so that the microseconds of the clock do not matter.
const AGE: Duration = Duration::from_nanos(10 * STEP_NS + STEP_NS / 2);
const SPACES: [(&str, History); 4] = [
    ("all", History::All),
    ("latest", History::Latest),
    ("newest", History::Newest(3)),
    ("age", History::Age(AGE)),
];

#[derive(Debug, Clone)]
enum KeyChange {
    Put { space: usize, key: usize, len: usize },
    Delete { space: usize, key: usize },
}

#[derive(Debug, Clone)]
enum KeyspaceOp {
    Commit(Vec<KeyChange>),
    View,
    DropView,
    Wait(u64),
    Reopen,
    Kill,
    DeleteTables,
}

fn key(number: usize) -> Vec<u8> {
    match number {
        0 => Vec::new(),
        1 => vec![0],
        2 => vec![0xff],
        3 => vec![0xff, 0xff],
        4 => vec![0xff, 0xff, 0],
        5 => vec![b'a'; KEY_BYTES_MAX],
        6 => b"a".to_vec(),
        7 => b"ab".to_vec(),
        n => format!("key{:02}", n % 20).into_bytes(),
    }
}

fn ops() -> impl Strategy<Value = Vec<KeyspaceOp>> {
    let len = prop_oneof![
        4 => 0usize..200, 1 => Just(4095usize), 1 => Just(4096usize), 1 => 4097usize..20_000, 1 => Just(100_000usize)
    ];
    let change = prop_oneof![
        3 => (0usize..4, 0usize..16, len).prop_map(|(space, key, len)| KeyChange::Put { space, key, len }),
        1 => (0usize..4, 0usize..16).prop_map(|(space, key)| KeyChange::Delete { space, key }),
    ];
    let op = prop_oneof![
        12 => prop::collection::vec(change, 1..5).prop_map(KeyspaceOp::Commit),
        1 => Just(KeyspaceOp::View),
        1 => Just(KeyspaceOp::DropView),
        1 => (1u64..8).prop_map(KeyspaceOp::Wait),
        1 => Just(KeyspaceOp::Reopen),
        1 => Just(KeyspaceOp::Kill),
        1 => Just(KeyspaceOp::DeleteTables),
    ];
    prop::collection::vec(op, 1..60)
}

/// A key's versions: seqno of the commit's last record, time, and value.
type ModelVersions = Vec<(Seqno, u64, Option<Vec<u8>>)>;

#[derive(Default, Clone)]
struct KeyspaceModel([BTreeMap<Vec<u8>, ModelVersions>; 4]);

impl KeyspaceModel {
    fn living(&self, space: usize) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let newest = self.0[space]
            .iter()
            .filter_map(|(key, versions)| Some((key.clone(), versions.last()?.2.clone()?)));
        newest.collect()
    }

    /// Number of a key's versions that its policy keeps at a time.
    fn kept(&self, space: usize, versions: &ModelVersions, now: u64) -> usize {
        match SPACES[space].1 {
            History::All => versions.len(),
            History::Latest => 1,
            History::Newest(n) => versions.len().min(n as usize),
            History::Age(age) => {
                let horizon = now.saturating_sub(age.as_nanos() as u64);
                versions.iter().rev().take_while(|v| v.1 >= horizon).count().max(1)
            }
        }
    }
}

struct KeyspaceHarness {
    sim: SimIo,
    store: Option<Store>,
    space: Namespace,
    keyspaces: Vec<Keyspace>,
    model: KeyspaceModel,
    commits: BTreeSet<Seqno>,
    views: Vec<(View, KeyspaceModel)>,
    now: u64,
}

impl KeyspaceHarness {
    fn options(sim: &SimIo) -> Options {
        Options { durability: Durability::Process, segment_bytes_max: 256 << 10, ..sim_options(sim) }
    }

    fn new() -> Self {
        let sim = SimIo::new(7);
        let (store, space, keyspaces) = Self::open(&sim);
        let mut rig = Self {
            sim,
            store: Some(store),
            space,
            keyspaces,
            model: KeyspaceModel::default(),
            commits: BTreeSet::new(),
            views: Vec::new(),
            now: 1_600_000_000_000_000_000,
        };
        rig.wait(1);
        rig
    }

    fn open(sim: &SimIo) -> (Store, Namespace, Vec<Keyspace>) {
        let store = Store::open_with("s", Self::options(sim)).unwrap();
        let space = store.namespace("default").unwrap();
        let keyspaces =
            SPACES.iter().map(|(name, history)| space.keyspace(name, *history).unwrap()).collect();
        (store, space, keyspaces)
    }

    fn wait(&mut self, steps: u64) {
        self.now += steps * STEP_NS;
        self.sim.set_now_ns(self.now);
    }

    fn reopen(&mut self, between: impl FnOnce(&SimIo) -> Option<SimIo>) {
        self.check_views();
        self.views.clear();
        let store = self.store.take().unwrap();
        match between(&self.sim) {
            Some(other) => {
                self.sim = other;
                self.sim.set_now_ns(self.now);
            }
            None => {
                store.close().unwrap();
            }
        }
        (self.store, self.space, self.keyspaces) = {
            let (store, space, keyspaces) = Self::open(&self.sim);
            (Some(store), space, keyspaces)
        };
        self.check();
    }

    fn apply(&mut self, number: usize, op: &KeyspaceOp) {
        match op {
            KeyspaceOp::Commit(changes) => {
                self.wait(1);
                let mut batch = self.space.batch();
                let mut staged = Vec::new();
                for (i, change) in changes.iter().enumerate() {
                    let mut rng = SeededRng((number * 100 + i) as u64);
                    match change {
                        KeyChange::Put { space, key: k, len } => {
                            let value =
                                if number.is_multiple_of(2) { rng.bytes(*len) } else { rng.text(*len) };
                            batch.put(&self.keyspaces[*space], &key(*k), value.clone());
                            staged.push((*space, key(*k), Some(value)));
                        }
                        KeyChange::Delete { space, key: k } => {
                            batch.delete(&self.keyspaces[*space], &key(*k));
                            staged.push((*space, key(*k), None));
                        }
                    }
                }
                let seqno = batch.commit().unwrap();
                for (space, key, value) in staged {
                    self.model.0[space].entry(key).or_default().push((seqno, self.now, value));
                }
                self.commits.insert(seqno);
            }
            KeyspaceOp::View => self.views.push((self.space.view(), self.model.clone())),
            KeyspaceOp::DropView => drop(self.views.pop()),
            KeyspaceOp::Wait(steps) => self.wait(*steps),
            KeyspaceOp::Reopen => self.reopen(|_| None),
            KeyspaceOp::Kill => self.reopen(|sim| Some(sim.crash(Crash::Everything))),
            KeyspaceOp::DeleteTables => {
                let store = self.store.as_ref().unwrap();
                self.check_views();
                self.views.clear();
                store.clone().close().unwrap();
                let tables = Path::new("s/tables");
                for name in self.sim.list(tables).unwrap() {
                    self.sim.remove(&tables.join(name)).unwrap();
                }
                self.reopen(|_| None);
            }
        }
    }

    fn check_views(&self) {
        for (view, model) in &self.views {
            for (space, keyspace) in self.keyspaces.iter().enumerate() {
                let living = model.living(space);
                let seen: BTreeMap<_, _> =
                    view.scan(keyspace, ScanRange::all()).map(Result::unwrap).collect();
                assert!(seen == living, "a view of {:?} sees other keys or values", SPACES[space].1);
                for number in 0..16 {
                    assert!(view.get(keyspace, &key(number)).unwrap() == living.get(&key(number)).cloned());
                }
            }
        }
    }

    fn check(&self) {
        for (space, keyspace) in self.keyspaces.iter().enumerate() {
            let policy = SPACES[space].1;
            assert_eq!(keyspace.history_policy(), policy);
            let living = self.model.living(space);
            for number in 0..16 {
                let key = key(number);
                assert!(keyspace.get(&key).unwrap() == living.get(&key).cloned(), "{policy:?} key {number}");
                let value = living.get(&key).map_or(&b""[..], Vec::as_slice);
                let other = [value, b"x"].concat();
                assert_eq!(keyspace.has_value(&key, value).unwrap(), living.contains_key(&key), "{policy:?}");
                assert!(!keyspace.has_value(&key, &other).unwrap(), "{policy:?} key {number}");
                let versions = self.model.0[space].get(&key).cloned().unwrap_or_default();
                self.check_history(keyspace, space, &key, &versions);
            }
            self.check_scans(keyspace, &living);
        }
        assert_whole(self.store.as_ref().unwrap());
    }

    fn check_history(&self, keyspace: &Keyspace, space: usize, key: &[u8], versions: &ModelVersions) {
        let policy = SPACES[space].1;
        let kept = if versions.is_empty() { 0 } else { self.model.kept(space, versions, self.now) };
        let history = keyspace.history(key).unwrap();
        assert_eq!(history.len(), kept, "{policy:?}");
        for (found, wanted) in history.iter().zip(versions.iter().rev()) {
            assert!(found.value == wanted.2 && found.seqno <= wanted.0, "{policy:?}");
            assert_eq!(found.time_ns / STEP_NS, wanted.1 / STEP_NS);
        }
        assert!(history.windows(2).all(|pair| pair[0].seqno > pair[1].seqno));
        for at in self.commits.iter().chain(&[Seqno(0), Seqno(u64::MAX)]) {
            let newer = versions.iter().rev().take_while(|version| version.0 > *at).count();
            let found = keyspace.get_at(key, *at);
            if newer < kept {
                assert!(found.unwrap() == versions[versions.len() - 1 - newer].2, "{policy:?} at {at}");
            } else if newer == versions.len() && kept < limit(policy) && kept == versions.len() {
                assert!(found.unwrap().is_none(), "{policy:?} at {at}: before the first version");
            } else {
                assert_eq!(found.unwrap_err().kind(), ErrorKind::Gone, "{policy:?} at {at}");
            }
        }
    }

    fn check_scans(&self, keyspace: &Keyspace, living: &BTreeMap<Vec<u8>, Vec<u8>>) {
        let mut ranges = vec![(ScanRange::all(), living.clone())];
        for prefix in [&b""[..], b"a", b"key", b"key1", b"\xff", b"\xff\xff", b"none"] {
            let within = living.iter().filter(|(key, _)| key.starts_with(prefix));
            ranges.push((ScanRange::prefix(prefix), within.map(|(k, v)| (k.clone(), v.clone())).collect()));
        }
        let edges = [&b""[..], b"a", b"key08", b"key12", b"\xff"];
        for from in edges {
            for to in edges {
                for (from, to) in [
                    (Bound::Included(from), Bound::Included(to)),
                    (Bound::Excluded(from), Bound::Excluded(to)),
                    (Bound::Included(from), Bound::Excluded(to)),
                    (Bound::Excluded(from), Bound::Unbounded),
                ] {
                    let within = living.iter().filter(|(key, _)| {
                        let above = match from {
                            Bound::Included(from) => &key[..] >= from,
                            Bound::Excluded(from) => &key[..] > from,
                            Bound::Unbounded => true,
                        };
                        above
                            && match to {
                                Bound::Included(to) => &key[..] <= to,
                                Bound::Excluded(to) => &key[..] < to,
                                Bound::Unbounded => true,
                            }
                    });
                    let within = within.map(|(k, v)| (k.clone(), v.clone())).collect();
                    ranges.push((ScanRange::between(from, to), within));
                }
            }
        }
        for (range, wanted) in ranges {
            let forward: Vec<_> = keyspace.scan(range.clone()).map(Result::unwrap).collect();
            assert!(forward.iter().map(|(k, v)| (k, v)).eq(&wanted), "{range:?}");
            let keys: Vec<_> = keyspace.scan(range.clone()).keys().map(Result::unwrap).collect();
            assert!(keys.iter().eq(wanted.keys()), "{range:?}, keys alone");
            let mut back: Vec<_> = keyspace.scan(range.clone().reverse()).map(Result::unwrap).collect();
            back.reverse();
            assert!(back == forward, "{range:?} reversed");
        }
    }
}

fn limit(policy: History) -> usize {
    match policy {
        History::Latest => 1,
        History::Newest(n) => n as usize,
        History::Age(_) | History::All => usize::MAX,
    }
}

#[test]
fn keyspaces_behave_as_their_model() {
    let seed = seed(11, "kv::keyspaces_behave_as_their_model");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases: 24, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let run = runner.run(&ops(), |ops| {
        let mut rig = KeyspaceHarness::new();
        for (number, op) in ops.iter().enumerate() {
            rig.apply(number, op);
        }
        rig.check_views();
        rig.check();
        rig.reopen(|_| None);
        Ok(())
    });
    run.unwrap();
}

#[test]
fn key_over_64_kib_fails_its_whole_batch() {
    let (_dir, store, space) = fresh();
    let keys = space.keyspace("k", History::All).unwrap();
    let (fits, over) = (vec![1; KEY_BYTES_MAX], vec![1; KEY_BYTES_MAX + 1]);
    keys.put(&fits, "v").unwrap();
    assert_eq!(keys.get(&fits).unwrap().unwrap(), b"v");
    for refused in [keys.put(&over, "v").map(drop), keys.delete(&over).map(drop), keys.get(&over).map(drop)] {
        let error = refused.unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("65536"), "{error}");
    }
    let mut batch = space.batch();
    batch.put(&keys, b"a", "1").put(&keys, &over, "2").put(&keys, b"b", "3");
    assert_eq!(batch.commit().unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!((keys.get(b"a").unwrap(), keys.get(b"b").unwrap()), (None, None));
    assert_eq!(space.batch().commit().unwrap_err().kind(), ErrorKind::Invalid);
    let other = store.namespace("other").unwrap();
    let theirs = other.keyspace("k", History::All).unwrap();
    assert_eq!(theirs.get(&fits).unwrap(), None);
    let mut mixed = space.batch();
    mixed.put(&keys, b"a", "1").put(&theirs, b"a", "1");
    assert_eq!(mixed.commit().unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(keys.get(b"a").unwrap(), None);
}

#[test]
fn a_keyspace_keeps_the_policy_that_it_was_made_with() {
    let (_dir, _store, space) = fresh();
    space.keyspace("k", History::Newest(2)).unwrap();
    assert_eq!(space.keyspace("k", History::All).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(space.find_keyspace("k").unwrap().unwrap().history_policy(), History::Newest(2));
    assert!(space.find_keyspace("none").unwrap().is_none());
    for bad in ["", "a\nb", "x".repeat(513).as_str()] {
        assert_eq!(space.keyspace(bad, History::All).unwrap_err().kind(), ErrorKind::Invalid);
    }
}

#[test]
fn threads_that_make_the_same_keyspace_share_it() {
    let (_dir, store, _space) = fresh();
    for round in 0..20 {
        let name = format!("k{round}");
        let start = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for i in 0..8u8 {
                let (store, name, start) = (&store, &name, &start);
                scope.spawn(move || {
                    start.wait();
                    let space = store.namespace(name).unwrap();
                    space.keyspace("k", History::All).unwrap().put(&[i], "v").unwrap();
                });
            }
        });
        let space = store.namespace(&name).unwrap();
        assert_eq!(
            space.keyspace("k", History::All).unwrap().scan(ScanRange::all()).count(),
            8,
            "round {round}"
        );
    }
    assert_eq!(store.namespaces().unwrap().len(), 21);
}

#[test]
fn batches_are_atomic_and_scans_and_views_are_stable() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { segment_bytes_max: 64 << 10, ..crate::support::process_durability_options() };
    let store = Store::open_with(dir.path().join("s"), options).unwrap();
    let space = store.namespace("default").unwrap();
    let keys = space.keyspace("k", History::Latest).unwrap();
    let write = |round: u32| {
        let mut batch = space.batch();
        for i in 0..600u32 {
            batch.put(&keys, format!("{i:04}").as_bytes(), round.to_string());
        }
        batch.commit().unwrap();
    };
    write(0);
    let view = space.view();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (1..60).for_each(write));
        let mut scans = 0;
        while !writer.is_finished() || scans < 5 {
            scans += 1;
            let range = if scans % 2 == 0 { ScanRange::all() } else { ScanRange::all().reverse() };
            let seen: Vec<_> = keys.scan(range).map(|pair| pair.unwrap().1).collect();
            assert_eq!(seen.len(), 600, "a scan misses keys that live all the time");
            assert!(seen.iter().all(|value| *value == seen[0]), "a scan sees half a batch");
            assert!(keys.get(b"0300").unwrap().is_some());
        }
    });
    assert!(store.stats().unwrap().segments > 5, "the test needs a segment change");
    let seen: Vec<_> = view.scan(&keys, ScanRange::all()).map(|pair| pair.unwrap().1).collect();
    assert!(seen.len() == 600 && seen.iter().all(|value| value == b"0"));
    assert_eq!(keys.get(b"0001").unwrap().unwrap(), b"59");
    assert_whole(&store);
}

#[test]
fn scan_survives_segment_change() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { segment_bytes_max: 64 << 10, ..crate::support::process_durability_options() };
    let store = Store::open_with(dir.path().join("s"), options).unwrap();
    let space = store.namespace("default").unwrap();
    let keys = space.keyspace("k", History::Latest).unwrap();
    for i in 0..600u32 {
        keys.put(format!("{i:04}").as_bytes(), "before").unwrap();
    }
    let mut scan = keys.scan(ScanRange::all());
    assert_eq!(scan.next().unwrap().unwrap().1, b"before");
    for _ in 0..3 {
        let mut batch = space.batch();
        for i in 0..600u32 {
            batch.put(&keys, format!("{i:04}").as_bytes(), "after ".repeat(20));
        }
        batch.commit().unwrap();
    }
    let rest: Vec<_> = scan.map(|pair| pair.unwrap().1).collect();
    assert_eq!(rest.len(), 599);
    assert!(rest.iter().all(|value| value == b"before"));
}

#[test]
fn scan_range_bounds_are_respected() {
    let (_dir, _store, space) = fresh();
    let keys = space.keyspace("k", History::Latest).unwrap();
    for key in ["a", "b", "c"] {
        keys.put(key.as_bytes(), key).unwrap();
    }
    let within = |from: Bound<&str>, to: Bound<&str>| -> String {
        let [from, to] = [from, to].map(|bound| bound.map(str::as_bytes));
        let found = |range| keys.scan(range).map(|pair| pair.unwrap().1).collect::<Vec<_>>().concat();
        let forwards = found(ScanRange::between(from, to));
        let mut backwards = found(ScanRange::between(from, to).reverse());
        backwards.reverse();
        assert_eq!(forwards, backwards);
        String::from_utf8(forwards).unwrap()
    };
    use Bound::{Excluded, Included, Unbounded};
    assert_eq!(within(Included("b"), Included("b")), "b");
    assert_eq!(within(Included("b"), Excluded("b")), "");
    assert_eq!(within(Excluded("b"), Included("b")), "");
    assert_eq!(within(Excluded("b"), Excluded("b")), "");
    assert_eq!(within(Included("a"), Excluded("c")), "ab");
    assert_eq!(within(Excluded("a"), Included("c")), "bc");
    assert_eq!(within(Excluded("a"), Excluded("b")), "");
    assert_eq!(within(Excluded("b"), Unbounded), "c");
    assert_eq!(within(Unbounded, Excluded("b")), "a");
    assert_eq!(within(Included("c"), Included("a")), "", "reversed bounds");
    assert_eq!(within(Excluded("c"), Excluded("a")), "", "reversed bounds");
}

/// Groups that are leased to a batch keep their segment from being sealed until the batch is queued or
/// dropped.
#[test]
fn a_batch_refused_half_way_keeps_no_segment_open() {
    let sim = SimIo::new(1);
    let options = Options { segment_bytes_max: 16 << 10, body_bytes_max: 8 << 10, ..sim_options(&sim) };
    let store = Store::open_with("s", options).unwrap();
    let space = store.namespace("default").unwrap();
    let keys = space.keyspace("k", History::Latest).unwrap();
    let mut rng = SeededRng(9);
    for round in 0..20u32 {
        keys.put(&round.to_le_bytes(), rng.bytes(5000)).unwrap();
        let mut batch = space.batch();
        batch.put(&keys, b"good", rng.bytes(5000)).put(&keys, b"too large", rng.bytes(9000));
        assert_eq!(batch.commit().unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(keys.get(b"good").unwrap(), None);
    let segments = sim.files().iter().filter(|path| path.extension().is_some_and(|end| end == "seg")).count();
    assert!(segments >= 5, "100,000 bytes stand in {segments} segments of 16 KiB");
    assert_whole(&store);
}
