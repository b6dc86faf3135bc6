//! Number of reads for a group, and parts with wrong fields.

use super::*;
use crate::ErrorKind;
use crate::io::ReadMode;
use crate::kv::test_segment::{SPACE, TestSegment, first_part, next_part};

/// The parts, last to first, and the number of windows read.
fn walk_parts_of(made: &TestSegment, last: RecordPlace, sealed: bool) -> Result<(Vec<(u32, u32)>, usize)> {
    let segment = made.segment();
    if sealed {
        segment.mark_sealed(ReadMode::Mapped);
    }
    let mut windows = PartWindows { segment: &segment, map: segment.mapped(), read: Vec::new() };
    let parts = walk_parts(&mut windows, last, SPACE, GroupId(1))?;
    for part in &parts {
        assert!(windows.get(part.window, &part.encoded).iter().all(|byte| *byte == b'x'));
    }
    Ok((parts.iter().map(|part| (part.raw_start, part.raw_len)).collect(), windows.read.len()))
}

#[test]
fn parts_walk_backwards_with_bounded_read_ahead() {
    for (len, reads) in [(4, 3), (100, 2)] {
        let encoded = vec![b'x'; len];
        let mut made = TestSegment::new();
        let one = first_part(&encoded);
        let two = next_part(&one, made.put(&one), &encoded);
        let three = next_part(&two, made.put(&two), &encoded);
        let last = made.put(&three);
        let len = one.raw_len;
        let parts = vec![(2 * len, len), (len, len), (0, len)];
        assert_eq!(walk_parts_of(&made, last, false).unwrap(), (parts.clone(), reads));
        assert_eq!(walk_parts_of(&made, last, true).unwrap(), (parts, 0), "mapped");
    }
}

#[test]
fn parts_that_are_not_consecutive_are_refused() {
    let most = u32::try_from(GROUP_BYTES_MAX).unwrap();
    // Two consecutive parts with these starts and lengths.
    let two = |before: (u32, u32), after: (u32, u32)| {
        let mut made = TestSegment::new();
        let one = GroupPart { raw_start: before.0, raw_len: before.1, ..first_part(b"xxxx") };
        let place = made.put(&one);
        let last = GroupPart { raw_start: after.0, raw_len: after.1, ..next_part(&one, place, b"xxxx") };
        let last = made.put(&last);
        walk_parts_of(&made, last, false).map(|found| found.0)
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
        let mut made = TestSegment::new();
        let place = made.put(part);
        walk_parts_of(&made, place, false).map(|found| found.0)
    };
    assert_eq!(alone(&first_part(b"xxxx")).unwrap(), [(0, 4)]);
    assert_eq!(alone(&GroupPart { raw_len: most, ..first_part(b"xxxx") }).unwrap(), [(0, most)]);
    for part in [
        GroupPart { raw_len: 0, ..first_part(b"xxxx") },
        GroupPart { raw_len: most + 1, ..first_part(b"xxxx") },
        GroupPart { raw_start: 4, ..first_part(b"xxxx") },
        GroupPart { group: 2, ..first_part(b"xxxx") },
        GroupPart { namespace: NamespaceId(17), ..first_part(b"xxxx") },
        GroupPart { codec: 9, ..first_part(b"xxxx") },
    ] {
        assert_eq!(alone(&part).unwrap_err().kind(), ErrorKind::Damaged, "{part:?}");
    }
}

#[test]
fn previous_part_must_be_an_earlier_part() {
    // The part names a previous part that stands behind it.
    let one = first_part(b"xxxx");
    let before_len = TestSegment::new().put(&one).len;
    let mut made = TestSegment::new();
    let last = made.put(&GroupPart { raw_start: 4, before_offset: 200, before_len, ..one });
    made.pad_to(200);
    assert_eq!(made.put(&one).offset, 200);
    assert_eq!(walk_parts_of(&made, last, false).unwrap_err().kind(), ErrorKind::Damaged);
    // A record of another kind.
    let mut made = TestSegment::new();
    let place = made.put_as(RecordKind::Put, &one);
    assert_eq!(walk_parts_of(&made, place, false).unwrap_err().kind(), ErrorKind::Damaged);
}
