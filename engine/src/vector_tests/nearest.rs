//! A search uses its own moment, whatever later searches have noted about the same files.

use std::sync::Arc;

use crate::io::sim::SimIo;
use crate::vector::files::FlushScope;
use crate::vector::nearest::{PartitionSearch, Query};
use crate::{
    Options, Store,
    kv::History,
    vectors::{Owner, Search, SearchHit},
};
use annals_store::kv::view::View;

#[test]
fn searches_of_different_moments_do_not_share_deaths() {
    let io = SimIo::new(1);
    let store = Store::open_with("s", Options { io: Arc::new(io), ..Options::default() }).unwrap();
    let space = store.namespace("a").unwrap();
    let keys = space.keyspace("k", History::Latest).unwrap();
    let put = |key: &[u8], vector: &[f32]| {
        let mut batch = space.batch();
        batch.put_embedded(&keys, key, "value", &[("e", vector)]);
        batch.commit().unwrap();
    };
    let (floor, core) = (store.vectors(), store.core());
    for key in [b"a", b"b", b"d"] {
        put(key, &[1.0, 0.0]);
    }
    floor.flush(core, FlushScope::All).unwrap();
    keys.delete(b"d").unwrap();
    floor.catch_up(core).unwrap();
    let older = floor.upto();
    // As a running search has one.
    let view = View::new(core);
    keys.delete(b"b").unwrap();
    put(b"c", &[1.0, 0.5]);
    floor.flush(core, FlushScope::Tail).unwrap();
    let newer = floor.upto();
    let partition = floor.partition(space.id, "e").unwrap();
    assert_eq!((partition.levels().segments.len(), partition.levels().tail_rows()), (2, 0));
    assert_eq!(partition.levels().as_of, newer);
    let query = Query::new(&[1.0, 0.5]);
    let of = |upto| -> Vec<u8> {
        let wanted = &Search::default();
        let looking = PartitionSearch { floor, core, namespace: space.id, upto, wanted, among: None };
        let found = looking.search(&partition.levels(), &query).unwrap();
        let key = |found: &SearchHit| match &found.owner {
            Owner::Key { key, .. } => key[0],
            Owner::Snapshot { .. } => unreachable!("no snapshot was taken"),
        };
        found.iter().map(key).collect()
    };
    for round in 0..2 {
        // What is dead now was alive then. What came later did not exist then, which does not make it dead.
        assert_eq!(of(newer), b"ca", "{round}");
        assert_eq!(of(older), b"ab", "{round}");
    }
    assert_eq!(of(newer), b"ca");
    drop(view);
}
