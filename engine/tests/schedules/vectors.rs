//! Searches beside the writer, the thread that writes vector files, and callers that trigger it.

use annals::io::sim::SimIo;
use annals::{Keyspace, Namespace, Options, Store, kv::History, vectors::Search};

use crate::driver::explore;
use crate::support::{STORE, assert_whole, fresh, options};
use crate::thread;

const KEYS: u8 = 3;

/// Puts all keys of a round in one batch, each with the round's vector.
fn put_round(space: &Namespace, keys: &Keyspace, round: u8) {
    let mut batch = space.batch();
    for key in 0..KEYS {
        batch.put_embedded(keys, &[key], vec![round], &[("e", &[1.0, f32::from(round)])]);
    }
    batch.commit().unwrap();
}

/// The round that a search finds; it must find all keys of one round.
fn found(space: &Namespace) -> u8 {
    let found = space.nearest("e", &[1.0, 0.0], &Search { k: 100, ..Search::default() }).unwrap();
    assert_eq!(found.len(), usize::from(KEYS), "{found:?}");
    assert!(found.iter().all(|one| one.score == found[0].score), "part of a batch: {found:?}");
    let cosine = f64::from(found[0].score);
    (1.0 / (cosine * cosine) - 1.0).max(0.0).sqrt().round() as u8
}

fn filled(options: Options) -> (Store, Namespace, Keyspace) {
    let (store, space, _) = fresh(options);
    let keys = space.keyspace("latest", History::Latest).unwrap();
    put_round(&space, &keys, 0);
    (store, space, keys)
}

/// A vector that is dead for one search may be needed by another one with an older view. A vector newer than
/// the search is not dead either. A search once took its record, then the levels of a flush as of a later record:
/// the vectors of its own record were left out of them, and it found nothing.
#[test]
fn search_beside_flush_sees_whole_batches_in_order() {
    explore("vectors::search_beside_flush_sees_whole_batches_in_order", |seed| {
        let io = SimIo::new(seed);
        let (store, space, keys) = filled(options(&io));
        thread::scope(|scope| {
            for _ in 0..2 {
                let space = &space;
                scope.spawn(move || {
                    let mut last = 0;
                    for _ in 0..4 {
                        let round = found(space);
                        assert!(round >= last, "from round {last} back to {round}");
                        last = round;
                    }
                });
            }
            let store = &store;
            scope.spawn(move || (0..2).for_each(|_| store.settle_vectors().unwrap()));
            let (space, keys) = (&space, &keys);
            scope.spawn(move || {
                for round in 1..=5 {
                    put_round(space, keys, round);
                    assert_eq!(found(space), round, "acknowledged, but not found");
                }
            });
        });
        assert_eq!((found(&space), store.rebuilt()), (5, vec![]));
        assert_whole(&store);
        store.close().unwrap();
        drop((space, keys));
        let store = Store::open_with(STORE, options(&io)).unwrap();
        assert_eq!((found(&store.namespace("n").unwrap()), store.rebuilt()), (5, vec![]));
    });
}

/// The close once set the stop flag without the lock under which the thread checks it. Between the check and
/// its sleep the thread missed the wake-up, and the close waited for ever. The scheduler stops no thread just
/// between the two.
#[test]
fn store_closes_while_vectors_are_written() {
    explore("vectors::store_closes_while_vectors_are_written", |seed| {
        let io = SimIo::new(seed);
        let (store, space, keys) = filled(options(&io));
        for round in 1..3 {
            put_round(&space, &keys, round);
        }
        store.close().unwrap();
        drop((space, keys));
        let store = Store::open_with(STORE, options(&io)).unwrap();
        assert_eq!(found(&store.namespace("n").unwrap()), 2);
    });
}
