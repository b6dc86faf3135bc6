//! Readers beside the writer and the upkeep: in the writing process, and through files alone.

use annals::io::sim::{OpKind, SimIo};
use annals::{Options, ScanRange, Store};
use shuttle::thread;

use crate::driver::explore;
use crate::support::{STORE, again, assert_whole, fresh, options, round_of, tiny, value};

const KEYS: u8 = 4;

/// Puts all keys of a round in one batch.
fn put_round(space: &annals::Namespace, keys: &annals::Keyspace, round: u64) {
    let mut batch = space.batch();
    for key in 0..KEYS {
        batch.put(keys, &[key], value(round));
    }
    batch.commit().unwrap();
}

/// The round of each key as one view has them: all the same.
fn round_in(space: &annals::Namespace, keys: &annals::Keyspace, reverse: bool) -> u64 {
    let view = space.view();
    let rounds: Vec<u64> =
        (0..KEYS).map(|key| round_of(&view.get(keys, &[key]).unwrap().expect("a key is gone"))).collect();
    assert!(rounds.iter().all(|round| *round == rounds[0]), "part of a batch: {rounds:?}");
    let range = if reverse { ScanRange::all().reverse() } else { ScanRange::all() };
    let scanned: Vec<u64> = view.scan(keys, range).map(|pair| round_of(&pair.unwrap().1)).collect();
    assert_eq!(scanned, rounds, "a scan of the same view");
    rounds[0]
}

/// All versions of a key, the newest first, with none missing.
fn check_history(keys: &annals::Keyspace, key: u8) -> u64 {
    let history = keys.history(&[key]).unwrap();
    let rounds: Vec<u64> =
        history.iter().map(|version| round_of(version.value.as_deref().unwrap())).collect();
    let newest = rounds.len() as u64 - 1;
    assert_eq!(rounds, (0..=newest).rev().collect::<Vec<_>>(), "versions of key {key}");
    newest
}

fn beside_a_writer(seed: u64, options: fn(&SimIo) -> Options, rounds: u64) -> SimIo {
    let io = SimIo::new(seed);
    let (store, space, keys) = fresh(options(&io));
    put_round(&space, &keys, 0);
    thread::scope(|scope| {
        for reader in 0..2u8 {
            let (store, space, keys) = (&store, &space, &keys);
            scope.spawn(move || {
                let (mut last, mut seqno) = (0, store.seqno());
                for look in 0..4u8 {
                    let round = round_in(space, keys, reader == 0);
                    assert!(round >= last, "from round {last} back to {round}");
                    last = round;
                    let newest = check_history(keys, (reader + look) % KEYS);
                    assert!(newest >= last, "history ends at {newest} after a view of {last}");
                    let now = store.seqno();
                    assert!(now >= seqno, "what is visible went back");
                    seqno = now;
                }
            });
        }
        let (space, keys) = (&space, &keys);
        // In a thread of its own: shuttle wakes who opened a scope when the scope's threads have ended, whatever it is at.
        scope.spawn(move || {
            for round in 1..=rounds {
                put_round(space, keys, round);
                assert_eq!(round_in(space, keys, false), round, "acknowledged, and not to be read");
            }
        });
    });
    assert_whole(&store);
    store.close().unwrap();
    let (store, space, keys) = again(options(&io));
    assert_eq!(round_in(&space, &keys, false), rounds);
    assert_eq!((0..KEYS).map(|key| check_history(&keys, key)).sum::<u64>(), rounds * u64::from(KEYS));
    assert_whole(&store);
    drop((store, space, keys));
    io
}

#[test]
fn a_reader_sees_whole_batches_and_never_goes_back() {
    explore("reading::a_reader_sees_whole_batches_and_never_goes_back", |seed| {
        beside_a_writer(seed, |io| Options { segment_bytes_max: 1 << 20, ..options(io) }, 3);
    });
}

#[test]
fn readers_see_every_version_while_memory_is_frozen_and_tables_are_merged() {
    explore("reading::readers_see_every_version_while_memory_is_frozen_and_tables_are_merged", |seed| {
        let io = beside_a_writer(seed, tiny, 5);
        let tables = |kind| {
            let ops = io.history();
            let is = |op: &&annals::io::sim::Op| {
                op.kind() == kind && op.path().extension().is_some_and(|end| end == "tbl")
            };
            ops.ops().iter().filter(is).count()
        };
        let (made, gone) = (tables(OpKind::Create), tables(OpKind::Remove));
        assert!(made >= 3 && gone >= 1, "{made} tables made, {gone} removed: nothing was merged");
        // Segments change under the readers, too: a round has some 300 bytes.
        assert!(
            io.files().iter().filter(|path| path.extension().is_some_and(|end| end == "seg")).count() >= 2
        );
    });
}

#[test]
fn a_reader_of_the_files_refreshes_beside_the_writer() {
    explore("reading::a_reader_of_the_files_refreshes_beside_the_writer", |seed| {
        let io = SimIo::new(seed);
        let (store, space, keys) = fresh(tiny(&io));
        put_round(&space, &keys, 0);
        thread::scope(|scope| {
            let io = &io;
            scope.spawn(move || {
                let live = Store::open_read_only_with(STORE, tiny(io)).unwrap();
                let theirs = live.namespace("n").unwrap();
                let keys = theirs.find_keyspace("k").unwrap().unwrap();
                let mut last = 0;
                for look in 0..4 {
                    let round = round_in(&theirs, &keys, look % 2 == 0);
                    assert!(round >= last, "from round {last} back to {round}");
                    last = round;
                    assert!(check_history(&keys, look) >= last);
                    live.refresh().unwrap();
                }
                assert_whole(&live);
            });
            let (space, keys) = (&space, &keys);
            scope.spawn(move || (1..=4).for_each(|round| put_round(space, keys, round)));
        });
        // All that was acknowledged is there for who opens now.
        let live = Store::open_read_only_with(STORE, tiny(&io)).unwrap();
        let theirs = live.namespace("n").unwrap();
        assert_eq!(round_in(&theirs, &theirs.find_keyspace("k").unwrap().unwrap(), false), 4);
        store.close().unwrap();
    });
}
