//! What is decoded of a group, how often the disk is asked, and parts that lie.

use super::*;
use crate::io::ReadMode;
use crate::io::sim::SimIo;
use crate::kv::hand_made::{Made, SPACE, behind, first};
use crate::{Component, Frame, Options, RunSpec, Store};

/// Words that compress a little.
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
    // A front; the same; once more is wanted, all of it; the same.
    assert!((30_000..40_000).contains(&held[0]), "{held:?}");
    assert!(held[1] == held[0] && held[2] > 200_000 && held[3] == held[2], "{held:?}");
}
/// The parts as they are walked to from the last, and how many windows were read.
fn walked(made: &Made, last: Place, sealed: bool) -> Result<(Vec<(u32, u32)>, usize)> {
    let segment = made.segment();
    if sealed {
        segment.mark_sealed(ReadMode::Mapped);
    }
    let mut windows = Windows { segment: &segment, map: segment.mapped(), read: Vec::new() };
    let parts = walk(&mut windows, last, SPACE, GroupId(1))?;
    for part in &parts {
        assert!(windows.get(part.window, &part.encoded).iter().all(|byte| *byte == b'x'));
    }
    Ok((parts.iter().map(|part| (part.raw_start, part.raw_len)).collect(), windows.read.len()))
}

#[test]
fn parts_are_walked_from_the_last_and_read_ahead_as_far_as_they_may_reach() {
    for (len, reads) in [(4, 3), (100, 2)] {
        let encoded = vec![b'x'; len];
        let mut made = Made::new();
        let one = first(&encoded);
        let two = behind(&one, made.put(&one), &encoded);
        let three = behind(&two, made.put(&two), &encoded);
        let last = made.put(&three);
        let len = one.raw_len;
        let parts = vec![(2 * len, len), (len, len), (0, len)];
        assert_eq!(walked(&made, last, false).unwrap(), (parts.clone(), reads));
        assert_eq!(walked(&made, last, true).unwrap(), (parts, 0), "mapped");
    }
}

#[test]
fn parts_that_do_not_follow_each_other_are_refused() {
    let most = u32::try_from(GROUP_BYTES_MAX).unwrap();
    // Two parts of these starts and lengths, one behind the other.
    let two = |before: (u32, u32), after: (u32, u32)| {
        let mut made = Made::new();
        let one = GroupPart { raw_start: before.0, raw_len: before.1, ..first(b"xxxx") };
        let place = made.put(&one);
        let last = GroupPart { raw_start: after.0, raw_len: after.1, ..behind(&one, place, b"xxxx") };
        let last = made.put(&last);
        walked(&made, last, false).map(|found| found.0)
    };
    assert_eq!(two((0, 4), (4, 4)).unwrap(), [(4, 4), (0, 4)]);
    assert_eq!(two((0, most - 4), (most - 4, 4)).unwrap().len(), 2, "full to the byte");
    for (before, after) in [
        ((0, most - 3), (most - 3, 4)),
        ((0, 4), (4, 0)),
        ((0, 4), (5, 4)),
        ((0, 4), (3, 4)),
        ((4, 4), (8, 4)),
        ((0, 4), (0, 4)),
        ((0, 0), (0, 4)),
        ((0, u32::MAX), (u32::MAX, 4)),
    ] {
        assert_eq!(two(before, after).unwrap_err().kind(), ErrorKind::Damaged, "{before:?} {after:?}");
    }
    let alone = |part: &GroupPart<'_>| {
        let mut made = Made::new();
        let place = made.put(part);
        walked(&made, place, false).map(|found| found.0)
    };
    assert_eq!(alone(&first(b"xxxx")).unwrap(), [(0, 4)]);
    assert_eq!(alone(&GroupPart { raw_len: most, ..first(b"xxxx") }).unwrap(), [(0, most)]);
    for part in [
        GroupPart { raw_len: 0, ..first(b"xxxx") },
        GroupPart { raw_len: most + 1, ..first(b"xxxx") },
        GroupPart { raw_start: 4, ..first(b"xxxx") },
        GroupPart { group: 2, ..first(b"xxxx") },
        GroupPart { namespace: NamespaceId(17), ..first(b"xxxx") },
        GroupPart { codec: 9, ..first(b"xxxx") },
    ] {
        assert_eq!(alone(&part).unwrap_err().kind(), ErrorKind::Damaged, "{part:?}");
    }
}

#[test]
fn a_part_leads_back_and_to_a_part() {
    // What is said to be before stands behind.
    let one = first(b"xxxx");
    let before_len = Made::new().put(&one).len;
    let mut made = Made::new();
    let last = made.put(&GroupPart { raw_start: 4, before_offset: 200, before_len, ..one });
    made.fill_up_to(200);
    assert_eq!(made.put(&one).offset, 200);
    assert_eq!(walked(&made, last, false).unwrap_err().kind(), ErrorKind::Damaged);
    // A record of another kind.
    let mut made = Made::new();
    let place = made.put_as(Kind::Put, &one);
    assert_eq!(walked(&made, place, false).unwrap_err().kind(), ErrorKind::Damaged);
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
        // It is held now: nothing is decoded.
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
