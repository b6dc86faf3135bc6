//! How much of a group is decoded and cached.

use super::*;
use crate::io::sim::SimIo;
use crate::kv::hand_made::SPACE;
use crate::{Component, Frame, Options, RunSpec, Store};

/// Random letters, which compress a little.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes.iter_mut().for_each(|byte| *byte = b'a' + *byte % 16);
    bytes
}

#[test]
fn the_cache_keeps_its_bound_and_a_front_is_decoded_no_further_than_wanted() {
    let bound = 600 << 10;
    let io = Arc::new(SimIo::new(1));
    let options = Options { io, group_cache_bytes: bound, ..Options::default() };
    let store = Store::open_with("s", options).unwrap();
    let space = store.namespace("default").unwrap();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    for seq in 0..150 {
        run.record(Frame::new(Component::Tool, text(seq, 10_000), "")).unwrap();
    }
    let (reader, groups) = (space.run("r").unwrap(), &store.core().groups);
    for round in [1, 2] {
        for seq in 1..=150 {
            assert!(reader.frame(seq).unwrap().input == text(u64::from(seq) - 1, 10_000));
            assert!(groups.bytes() <= bound, "{} bytes in round {round}", groups.bytes());
        }
    }
    assert!(groups.bytes() > bound / 2, "{}", groups.bytes());
    store.drop_caches();
    assert_eq!(groups.bytes(), 0);
    let mut held = Vec::new();
    for seq in [3, 2, 4, 1] {
        drop(reader.frame(seq).unwrap());
        held.push(groups.bytes());
    }
    // A front; no more; then all of it, because more is needed; no more.
    assert!((30_000..40_000).contains(&held[0]), "{held:?}");
    assert!(held[1] == held[0] && held[2] > 200_000 && held[3] == held[2], "{held:?}");
}

#[test]
fn a_body_reaches_as_far_into_a_group_as_its_last_extent_there() {
    let e = |group, offset, len| Extent { group: GroupId(group), offset, len };
    let extents = [e(1, 50, 10), e(1, 0, 70), e(2, 100, 5), e(1, 20, 1)];
    assert_eq!([1, 2, 3].map(|group| reach(&extents, GroupId(group))), [70, 105, 0]);
    assert_eq!(reach(&[], GroupId(1)), 0);
}

#[test]
fn four_decoders_are_kept_for_the_groups_to_come() {
    let io = Arc::new(SimIo::new(1));
    let store = Store::open_with("s", Options { io, ..Options::default() }).unwrap();
    let run = store.namespace("default").unwrap().begin_run(RunSpec::new("r")).unwrap();
    run.record(Frame::new(Component::Tool, text(1, 10_000), "")).unwrap();
    let reader = store.namespace("default").unwrap().run("r").unwrap();
    let groups = &store.core().groups;
    for (before, after) in [(0, 1), (1, 1), (3, 3), (4, 4), (5, 4)] {
        store.drop_caches();
        *lock(&groups.decoders) = (0..before).map(|_| GroupDecoder::default()).collect();
        drop(reader.frame(1).unwrap());
        assert_eq!(lock(&groups.decoders).len(), after, "of {before}");
        // The group is cached now: nothing is decoded.
        *lock(&groups.decoders) = Vec::new();
        drop(reader.frame(1).unwrap());
        assert_eq!(lock(&groups.decoders).len(), 0);
    }
}

#[test]
fn a_group_is_whole_once_all_of_its_parts_are_decoded() {
    let io = Arc::new(SimIo::new(1));
    let store = Store::open_with("s", Options { io, ..Options::default() }).unwrap();
    let space = store.namespace("default").unwrap();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    run.record(Frame::new(Component::Tool, text(1, 10_000), "")).unwrap();
    let (core, reader) = (store.core(), space.run("r").unwrap());
    let held = || core.groups.get(SPACE, GroupId(1)).map(|found| (found.raw.len(), found.whole));
    assert_eq!(held(), None);
    drop(reader.frame(1).unwrap());
    assert_eq!(held(), Some((10_000, true)), "of a single part");
    run.record(Frame::new(Component::Tool, text(2, 10_000), "")).unwrap();
    run.record(Frame::new(Component::Tool, text(3, 10_000), "")).unwrap();
    store.drop_caches();
    drop(reader.frame(1).unwrap());
    assert_eq!(held(), Some((10_000, false)), "its front");
    assert_eq!(group(core, SPACE, GroupId(1), 1).unwrap().len(), 30_000);
    assert_eq!(held(), Some((30_000, true)));
    store.drop_caches();
    assert!(group(core, SPACE, GroupId(1), 30_000).is_ok());
    store.drop_caches();
    assert_eq!(group(core, SPACE, GroupId(1), 30_001).unwrap_err().kind(), ErrorKind::Damaged);
}
