//! Readers beside the writer and the upkeep thread: in the writing process, and through files only.

use annals::io::sim::{OpKind, SimIo};
use annals::{
    Keyspace, Namespace, Options, Store,
    kv::{History, ScanRange},
};

use crate::driver::explore;
use crate::support::{STORE, assert_whole, fresh, options, reopened, round_of, tiny_memory_options, value};
use crate::thread;

const KEYS: u8 = 4;
/// Records of a round.
const RECORDS: u64 = 2 * KEYS as u64;

/// A keyspace with all versions and one with the latest. A view of the latter needs versions that a merge may
/// drop.
struct KeyspacePair {
    space: Namespace,
    all: Keyspace,
    latest: Keyspace,
}

impl KeyspacePair {
    fn of(space: Namespace) -> Self {
        let find = |name| space.find_keyspace(name).unwrap().unwrap();
        Self { all: find("k"), latest: find("latest"), space }
    }
}

/// Puts all keys of a round in one batch.
fn put_round(KeyspacePair { space, all, latest }: &KeyspacePair, round: u64) {
    let mut batch = space.batch();
    for key in 0..KEYS {
        batch.put(all, &[key], value(round)).put(latest, &[key], value(round));
    }
    batch.commit().unwrap();
}

/// The round that a view shows; all keys must show the same.
fn round_in(KeyspacePair { space, all, latest }: &KeyspacePair, reverse: bool) -> u64 {
    let view = space.view();
    let mut rounds = Vec::new();
    for keys in [latest, all] {
        for key in 0..KEYS {
            rounds.push(round_of(&view.get(keys, &[key]).unwrap().unwrap()));
        }
        let range = if reverse { ScanRange::all().reverse() } else { ScanRange::all() };
        rounds.extend(view.scan(keys, range).map(|pair| round_of(&pair.unwrap().1)));
    }
    assert_eq!(rounds.len(), 4 * usize::from(KEYS));
    assert!(rounds.iter().all(|round| *round == rounds[0]), "part of a batch: {rounds:?}");
    rounds[0]
}

/// Checks all versions of a key, newest first and without gaps.
fn check_history(keys: &Keyspace, key: u8) -> u64 {
    let history = keys.history(&[key]).unwrap();
    let rounds: Vec<u64> =
        history.iter().map(|version| round_of(version.value.as_deref().unwrap())).collect();
    let newest = rounds.len() as u64 - 1;
    assert_eq!(rounds, (0..=newest).rev().collect::<Vec<_>>(), "versions of key {key}");
    newest
}

/// A new store with its first round.
fn filled(options: Options) -> (Store, KeyspacePair) {
    let (store, space, _) = fresh(options);
    space.keyspace("latest", History::Latest).unwrap();
    let spaces = KeyspacePair::of(space);
    put_round(&spaces, 0);
    (store, spaces)
}

fn read_beside_writer(seed: u64, options: fn(&SimIo) -> Options, rounds: u64) -> SimIo {
    let io = SimIo::new(seed);
    let (store, spaces) = filled(options(&io));
    let first = store.seqno();
    thread::scope(|scope| {
        for reader in 0..2u8 {
            let (store, spaces) = (&store, &spaces);
            scope.spawn(move || {
                let (mut last, mut seqno) = (0, store.seqno());
                for look in 0..4u8 {
                    let round = round_in(spaces, reader == 0);
                    assert!(round >= last, "from round {last} back to {round}");
                    last = round;
                    let newest = check_history(&spaces.all, (reader + look) % KEYS);
                    assert!(newest >= last, "history ends at {newest} after a view of {last}");
                    let now = store.seqno();
                    assert!(now >= seqno, "the visible seqno went back");
                    seqno = now;
                }
            });
        }
        for reader in 0..2u8 {
            let (store, spaces) = (&store, &spaces);
            // A check of few steps, which fits between two steps of the writer: everything visible can be
            // read.
            scope.spawn(move || {
                for look in 0..12u8 {
                    let rounds_visible = (store.seqno().0 - first.0) / RECORDS;
                    let newest = spaces.all.get(&[(look + reader) % KEYS]).unwrap().unwrap();
                    assert!(round_of(&newest) >= rounds_visible, "visible, but not readable");
                }
            });
        }
        let spaces = &spaces;
        // In a thread of its own: shuttle wakes the opener of a scope when the scope's threads have ended,
        // whatever it waits for.
        scope.spawn(move || {
            for round in 1..=rounds {
                put_round(spaces, round);
                // Every other time the writer is kept busy instead.
                if seed.is_multiple_of(2) {
                    assert_eq!(round_in(spaces, false), round, "acknowledged, but not readable");
                }
            }
        });
    });
    assert_whole(&store);
    store.close().unwrap();
    let (store, space, _) = reopened(options(&io));
    let spaces = KeyspacePair::of(space);
    assert_eq!(round_in(&spaces, false), rounds);
    assert_eq!((0..KEYS).map(|key| check_history(&spaces.all, key)).sum::<u64>(), rounds * u64::from(KEYS));
    assert_whole(&store);
    drop((store, spaces));
    io
}

#[test]
fn a_reader_sees_whole_batches_and_never_goes_back() {
    explore("reading::a_reader_sees_whole_batches_and_never_goes_back", |seed| {
        read_beside_writer(seed, |io| Options { segment_bytes_max: 1 << 20, ..options(io) }, 4);
    });
}

#[test]
fn readers_see_every_version_beside_flush_and_merge() {
    explore("reading::readers_see_every_version_beside_flush_and_merge", |seed| {
        let io = read_beside_writer(seed, tiny_memory_options, 6);
        let tables = |kind| {
            let ops = io.history();
            let is = |op: &&annals::io::sim::SimOp| {
                op.kind() == kind && op.path().extension().is_some_and(|end| end == "tbl")
            };
            ops.ops().iter().filter(is).count()
        };
        let (made, gone) = (tables(OpKind::Create), tables(OpKind::Remove));
        assert!(made >= 3 && gone >= 1, "{made} tables made, {gone} removed: nothing was merged");
        // Segments change during the test: a round has about 300 bytes.
        assert!(
            io.files().iter().filter(|path| path.extension().is_some_and(|end| end == "seg")).count() >= 2
        );
    });
}

#[test]
fn a_reader_of_the_files_refreshes_beside_the_writer() {
    explore("reading::a_reader_of_the_files_refreshes_beside_the_writer", |seed| {
        let io = SimIo::new(seed);
        let (store, spaces) = filled(tiny_memory_options(&io));
        thread::scope(|scope| {
            let io = &io;
            scope.spawn(move || {
                let live = Store::open_read_only_with(STORE, tiny_memory_options(io)).unwrap();
                let theirs = KeyspacePair::of(live.namespace("n").unwrap());
                let mut last = 0;
                for look in 0..4 {
                    let round = round_in(&theirs, look % 2 == 0);
                    assert!(round >= last, "from round {last} back to {round}");
                    last = round;
                    assert!(check_history(&theirs.all, look) >= last);
                    live.refresh().unwrap();
                }
                assert_whole(&live);
            });
            let spaces = &spaces;
            scope.spawn(move || (1..=4).for_each(|round| put_round(spaces, round)));
        });
        // A store that opens now has all acknowledged data.
        let live = Store::open_read_only_with(STORE, tiny_memory_options(&io)).unwrap();
        assert_eq!(round_in(&KeyspacePair::of(live.namespace("n").unwrap()), false), 4);
        store.close().unwrap();
    });
}

/// Readers without a view, for which no versions are kept. Between reading the visible seqno and reading the
/// tables, newer values may arrive and be merged with the wanted one. The policy then drops the wanted one,
/// while an older value stands in a table that is not merged.
#[test]
fn a_plain_read_beside_merges_never_goes_back() {
    explore("reading::a_plain_read_beside_merges_never_goes_back", |seed| {
        plain_reads(seed, false);
    });
}

/// The same while a refresh exchanges the tables.
#[test]
fn a_plain_read_beside_a_refresh_never_goes_back() {
    explore("reading::a_plain_read_beside_a_refresh_never_goes_back", |seed| {
        plain_reads(seed, true);
    });
}

fn plain_reads(seed: u64, refreshed: bool) {
    let io = SimIo::new(seed);
    let (store, space, _) = fresh(options(&io));
    let latest = space.keyspace("latest", History::Latest).unwrap();
    // A table too large to be merged with new ones.
    let mut batch = space.batch();
    for key in 0..100 {
        batch.put(&latest, &[key], value(0));
    }
    batch.commit().unwrap();
    drop((space, latest));
    store.close().unwrap();
    let (store, space, _) = reopened(tiny_memory_options(&io));
    let latest = space.find_keyspace("latest").unwrap().unwrap();
    let put = |round| {
        let mut batch = space.batch();
        for key in 0..5 {
            batch.put(&latest, &[key], value(round));
        }
        batch.commit().unwrap();
    };
    put(1);
    let live = refreshed.then(|| Store::open_read_only_with(STORE, tiny_memory_options(&io)).unwrap());
    let read = match &live {
        Some(live) => live.namespace("n").unwrap().find_keyspace("latest").unwrap().unwrap(),
        None => latest.clone(),
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            let read = &read;
            scope.spawn(move || {
                let mut last = 1;
                for _ in 0..10 {
                    let round = round_of(&read.get(&[1]).unwrap().unwrap());
                    assert!(round >= last, "from {last} back to {round}");
                    last = round;
                }
            });
        }
        if let Some(live) = &live {
            scope.spawn(move || (0..5).for_each(|_| live.refresh().unwrap()));
        }
        let put = &put;
        scope.spawn(move || (2..=5).for_each(put));
    });
    assert_eq!(round_of(&latest.get(&[1]).unwrap().unwrap()), 5);
    store.close().unwrap();
}
