//! Shared helpers of this test binary.

use std::sync::Arc;

use annals::io::sim::SimIo;
use annals::{History, Keyspace, Namespace, Options, Store};

pub(crate) const STORE: &str = "/store";

/// Small segments, every commit synced.
pub(crate) fn options(io: &SimIo) -> Options {
    Options {
        io: Arc::new(io.clone()),
        segment_bytes_max: 1 << 10,
        zero_ahead_bytes: 1 << 10,
        ..Options::default()
    }
}

/// Memory for so few entries that the upkeep thread is always at work.
pub(crate) fn tiny_memory_options(io: &SimIo) -> Options {
    Options { index_memory_bytes: 512, ..options(io) }
}

/// A new store with a namespace and a keyspace that keeps all versions.
pub(crate) fn fresh(options: Options) -> (Store, Namespace, Keyspace) {
    let store = Store::open_with(STORE, options).unwrap();
    let space = store.namespace("n").unwrap();
    let keys = space.keyspace("k", History::All).unwrap();
    (store, space, keys)
}

/// Reopens an existing store.
pub(crate) fn reopened(options: Options) -> (Store, Namespace, Keyspace) {
    let store = Store::open_with(STORE, options).unwrap();
    let space = store.namespace("n").unwrap();
    let keys = space.find_keyspace("k").unwrap().unwrap();
    (store, space, keys)
}

pub(crate) fn assert_whole(store: &Store) {
    assert_eq!(store.verify().unwrap().damaged, []);
}

/// A value that holds its round.
pub(crate) fn value(round: u64) -> Vec<u8> {
    round.to_be_bytes().to_vec()
}

pub(crate) fn round_of(value: &[u8]) -> u64 {
    u64::from_be_bytes(value.try_into().unwrap())
}
