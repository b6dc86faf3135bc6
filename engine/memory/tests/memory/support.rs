//! What the tests of this binary share: stores on a real disk.

use annals::{Durability, Namespace, Options, Store};

/// A real disk without waiting for it.
pub(crate) fn quick() -> Options {
    Options { durability: Durability::Process, zero_ahead_bytes: 64 << 10, ..Options::default() }
}

/// A new store with its namespace; the directory goes when the first is dropped.
pub(crate) fn fresh() -> (tempfile::TempDir, Store, Namespace) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_with(dir.path().join("s"), quick()).unwrap();
    let space = store.namespace("default").unwrap();
    (dir, store, space)
}
