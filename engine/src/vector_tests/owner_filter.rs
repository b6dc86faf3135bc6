//! Searches with an owner filter, against a model that checks each owner.

use std::collections::BTreeMap;

use super::{VectorTestRng, expected_hits, options, put};
use crate::io::sim::SimIo;
use crate::vector::files::FlushScope;
use crate::{
    Component, Frame, Namespace, RunSpec, Status, Store,
    kv::History,
    vectors::{Owner, OwnerFilter, Search},
};

type OwnerFilterModel = BTreeMap<Vec<u8>, (u64, Vec<f32>)>;

const DIMENSIONS: usize = 23;

/// True for about `share` of 1024 keys.
fn is_in_share(owner: &Owner, share: u64) -> bool {
    match owner {
        Owner::Key { key, .. } => {
            let mixed =
                key.iter().fold(7u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
            mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & 1023 < share
        }
        Owner::Snapshot { .. } => false,
    }
}

/// From one in a thousand to nine in ten.
const SHARES: [u64; 6] = [1, 10, 100, 300, 600, 920];

fn check(
    space: &Namespace,
    model: &OwnerFilterModel,
    numbers: &mut VectorTestRng,
    shares: &[(u64, OwnerFilter)],
    what: &str,
) {
    let query = numbers.vector(DIMENSIONS);
    let exact = numbers.below(2) == 0;
    let wanted = Search { k: 1 + numbers.below(40) as usize, min_score: -0.2, exact, ..Search::default() };
    for (share, among) in shares {
        let asked = |owner: &Owner| is_in_share(owner, *share);
        let found = space.nearest("e", &query, &Search { owners: Some(among), ..wanted }).unwrap();
        let wanted = Search { filter: Some(&asked), ..wanted };
        assert_eq!(found, expected_hits(model, &query, &wanted), "{share} of 1024 {what}");
    }
    // Also by a key's prefix, and with another filter after it.
    let prefix = numbers.below(10).to_string();
    let begins =
        |owner: &Owner| matches!(owner, Owner::Key { key, .. } if key.starts_with(prefix.as_bytes()));
    let both = |owner: &Owner| begins(owner) && is_in_share(owner, 512);
    let half = |owner: &Owner| is_in_share(owner, 512);
    let keys = OwnerFilter::keys("k", prefix.as_bytes());
    let found = space.nearest("e", &query, &Search { owners: Some(&keys), ..wanted }).unwrap();
    assert_eq!(
        found,
        expected_hits(model, &query, &Search { filter: Some(&begins), ..wanted }),
        "{prefix} {what}"
    );
    let found =
        space.nearest("e", &query, &Search { owners: Some(&keys), filter: Some(&half), ..wanted }).unwrap();
    assert_eq!(
        found,
        expected_hits(model, &query, &Search { filter: Some(&both), ..wanted }),
        "{prefix} {what}"
    );
}

#[test]
fn owner_filter_search_equals_the_model() {
    let io = SimIo::new(1);
    let mut numbers = VectorTestRng(0x5eed_0002);
    let mut store = Store::open_with("s", options(&io)).unwrap();
    let mut model = OwnerFilterModel::new();
    // Each filter is used for all searches: the bitmap of one file must not be used for another.
    let shares = SHARES.map(|share| (share, OwnerFilter::new(move |owner| is_in_share(owner, share))));
    for step in 0..2500 {
        let space = store.namespace("a").unwrap();
        let keys = space.keyspace("k", History::Latest).unwrap();
        let key = numbers.below(900).to_string().into_bytes();
        match numbers.below(8) {
            0 => {
                keys.delete(&key).unwrap();
                model.remove(&key);
            }
            _ => {
                let vector = numbers.vector(DIMENSIONS);
                let seqno = put(&space, &keys, &key, "e", &vector);
                model.insert(key, (seqno.0, vector));
            }
        }
        if numbers.below(120) == 0 {
            let what = [FlushScope::Tail, FlushScope::Due, FlushScope::All][numbers.below(3) as usize];
            store.vectors().flush(store.core(), what).unwrap();
        }
        if numbers.below(500) == 0 {
            store.close().unwrap();
            store = Store::open_with("s", options(&io)).unwrap();
        }
        if numbers.below(40) == 0 {
            let space = store.namespace("a").unwrap();
            check(&space, &model, &mut numbers, &shares, &format!("at step {step}"));
        }
    }
    assert!(model.len() > 600);
}

#[test]
fn prefix_filter_excludes_other_keyspaces_and_snapshots() {
    let io = SimIo::new(1);
    let store = Store::open_with("s", options(&io)).unwrap();
    let space = store.namespace("a").unwrap();
    let all = ["k", "l"].map(|name| space.keyspace(name, History::Latest).unwrap());
    for keys in &all {
        for key in [&b"1"[..], b"12", b"2"] {
            put(&space, keys, key, "e", &[1.0, 0.0]);
        }
    }
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    run.record(Frame::new(Component::Llm, "in", "out")).unwrap();
    run.snapshot("state", &[("e", &[1.0, 0.0])]).unwrap();
    run.end(Status::Ok).unwrap();
    let count = |among: &OwnerFilter| {
        let wanted = Search { owners: Some(among), ..Search::default() };
        space.nearest("e", &[1.0, 0.5], &wanted).unwrap().len()
    };
    let snapshots = OwnerFilter::new(|owner| matches!(owner, Owner::Snapshot { .. }));
    let counts = || {
        let keys = |name, prefix: &[u8]| count(&OwnerFilter::keys(name, prefix));
        (keys("k", b"1"), keys("l", b""), keys("l", b"12"), keys("m", b""), count(&snapshots))
    };
    for what in ["in memory", "in a file", "in a file that was looked at"] {
        assert_eq!(counts(), (2, 3, 1, 0, 1), "{what}");
        store.vectors().flush(store.core(), FlushScope::All).unwrap();
    }
    // A keyspace that is created later under that name.
    let later = space.keyspace("m", History::Latest).unwrap();
    put(&space, &later, b"1", "e", &[1.0, 0.0]);
    assert_eq!(count(&OwnerFilter::keys("m", b"")), 1);
    // A new filter takes nothing from a dropped one, though it may have the same address.
    for part in 0..200u64 {
        let among = OwnerFilter::new(
            move |owner| matches!(owner, Owner::Key { key, .. } if part % 2 == 0 && key == b"2"),
        );
        assert_eq!(count(&among), if part % 2 == 0 { 2 } else { 0 });
    }
}

/// A filter that few pass leads to a scan, others to a walk. Each finds nearly what a scan of all finds. So does a
/// closure: where 1% passed, it once took the furthest of a wide walk, and found nine of ten.
#[cfg(feature = "graphs")]
#[test]
fn filtered_walk_finds_nearly_all_that_a_scan_finds() {
    let io = SimIo::new(1);
    let mut numbers = VectorTestRng(23);
    let centres: Vec<Vec<f32>> = (0..60).map(|_| (0..24).map(|_| numbers.unit()).collect()).collect();
    let mut near_one = || -> Vec<f32> {
        let centre = &centres[numbers.below(60) as usize];
        centre.iter().map(|x| x + 0.4 * numbers.unit()).collect()
    };
    let store = Store::open_with("s", options(&io)).unwrap();
    let space = store.namespace("a").unwrap();
    let keys = space.keyspace("k", History::Latest).unwrap();
    let put_all = |from: u32, to: u32, near_one: &mut dyn FnMut() -> Vec<f32>| {
        for start in (from..to).step_by(500) {
            let mut batch = space.batch();
            for at in start..start + 500 {
                batch.put_embedded(&keys, &at.to_be_bytes(), "", &[("e", &near_one())]);
            }
            batch.commit().unwrap();
        }
    };
    put_all(0, 20_500, &mut near_one);
    store.settle_vectors().unwrap();
    let partition = store.vectors().partition(space.id, "e").unwrap();
    assert!(partition.levels().segments.iter().all(|segment| segment.header.slots.0 > 0));
    // Some are dead, and some in memory.
    put_all(3000, 4500, &mut near_one);
    for share in SHARES {
        let among = OwnerFilter::new(move |owner| is_in_share(owner, share));
        let closure = move |owner: &Owner| is_in_share(owner, share);
        for (how, wanted, least) in [
            ("once", Search { owners: Some(&among), ..Search::default() }, 0.98),
            ("each time", Search { filter: Some(&closure), ..Search::default() }, 0.99),
        ] {
            let (mut hits, mut all) = (0, 0);
            for _ in 0..40 {
                let query = near_one();
                let found = space.nearest("e", &query, &wanted).unwrap();
                let exact = space.nearest("e", &query, &Search { exact: true, ..wanted }).unwrap();
                assert!(found.iter().all(|found| is_in_share(&found.owner, share)));
                assert_eq!(found.len(), exact.len());
                hits += exact.iter().filter(|one| found.contains(one)).count();
                all += exact.len();
            }
            assert!(hits as f64 >= least * all as f64, "{how}, {share}: {hits} of {all}");
        }
    }
}
