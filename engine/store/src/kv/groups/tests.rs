//! How much of a group is decoded and cached.

use super::*;
use crate::io::sim::SimIo;
use crate::kv::test_segment::SPACE;
use crate::testing::KvStore as Store;
use crate::{History, Keyspace, Options};

/// Random letters, which compress a little.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes.iter_mut().for_each(|byte| *byte = b'a' + *byte % 16);
    bytes
}

fn put(keyspace: &Keyspace, number: u64) {
    keyspace.put(&number.to_be_bytes(), text(number, 10_000)).unwrap();
}

fn get(keyspace: &Keyspace, number: u64) -> Vec<u8> {
    keyspace.get(&number.to_be_bytes()).unwrap().unwrap()
}

#[test]
fn group_cache_keeps_its_bound_and_decodes_only_needed_bytes() {
    let bound = 600 << 10;
    let io = Arc::new(SimIo::new(1));
    let options = Options { io, group_cache_bytes: bound, ..Options::default() };
    let store = Store::open_with("s", options).unwrap();
    let space = store.namespace("default").unwrap();
    let keyspace = space.keyspace("k", History::Latest).unwrap();
    for seq in 0..150 {
        put(&keyspace, seq);
    }
    let groups = &store.core().groups;
    for round in [1, 2] {
        for seq in 1..=150 {
            assert!(get(&keyspace, seq - 1) == text(seq - 1, 10_000));
            assert!(groups.bytes() <= bound, "{} bytes in round {round}", groups.bytes());
        }
    }
    assert!(groups.bytes() > bound / 2, "{}", groups.bytes());
    store.drop_caches();
    assert_eq!(groups.bytes(), 0);
    let mut held = Vec::new();
    for seq in [3, 2, 4, 1] {
        drop(get(&keyspace, seq - 1));
        held.push(groups.bytes());
    }
    // A front; no more; then all of it, because more is needed; no more.
    assert!((30_000..40_000).contains(&held[0]), "{held:?}");
    assert!(held[1] == held[0] && held[2] > 200_000 && held[3] == held[2], "{held:?}");
}

#[test]
fn needed_len_is_the_end_of_the_last_extent() {
    let e = |group, offset, len| Extent { group: GroupId(group), offset, len };
    let extents = [e(1, 50, 10), e(1, 0, 70), e(2, 100, 5), e(1, 20, 1)];
    assert_eq!([1, 2, 3].map(|group| needed_len(&extents, GroupId(group))), [70, 105, 0]);
    assert_eq!(needed_len(&[], GroupId(1)), 0);
}

#[test]
fn four_decoders_are_kept_for_reuse() {
    let io = Arc::new(SimIo::new(1));
    let store = Store::open_with("s", Options { io, ..Options::default() }).unwrap();
    let keyspace = store.namespace("default").unwrap().keyspace("k", History::Latest).unwrap();
    put(&keyspace, 1);
    let groups = &store.core().groups;
    for (before, after) in [(0, 1), (1, 1), (3, 3), (4, 4), (5, 4)] {
        store.drop_caches();
        *lock(&groups.decoders) = (0..before).map(|_| GroupDecoder::default()).collect();
        drop(get(&keyspace, 1));
        assert_eq!(lock(&groups.decoders).len(), after, "of {before}");
        // The group is cached now: nothing is decoded.
        *lock(&groups.decoders) = Vec::new();
        drop(get(&keyspace, 1));
        assert_eq!(lock(&groups.decoders).len(), 0);
    }
}

#[test]
fn group_is_whole_once_all_parts_are_decoded() {
    let io = Arc::new(SimIo::new(1));
    let store = Store::open_with("s", Options { io, ..Options::default() }).unwrap();
    let keyspace = store.namespace("default").unwrap().keyspace("k", History::Latest).unwrap();
    put(&keyspace, 1);
    let core = store.core();
    let held = || core.groups.get(SPACE, GroupId(1)).map(|found| (found.raw.len(), found.whole));
    assert_eq!(held(), None);
    drop(get(&keyspace, 1));
    assert_eq!(held(), Some((10_000, true)), "of a single part");
    put(&keyspace, 2);
    put(&keyspace, 3);
    store.drop_caches();
    drop(get(&keyspace, 1));
    assert_eq!(held(), Some((10_000, false)), "its front");
    assert_eq!(whole_group(core, SPACE, GroupId(1), 1).unwrap().len(), 30_000);
    assert_eq!(held(), Some((30_000, true)));
    store.drop_caches();
    assert!(whole_group(core, SPACE, GroupId(1), 30_000).is_ok());
    store.drop_caches();
    assert_eq!(whole_group(core, SPACE, GroupId(1), 30_001).unwrap_err().kind(), ErrorKind::Damaged);
}
