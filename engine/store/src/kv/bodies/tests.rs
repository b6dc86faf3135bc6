//! A body's length against its recipe's, and anchors rebuilt from parts in the log.

use super::*;
use crate::blob::{AnchorSeed, GroupWriter};
use crate::kv::test_segment::{SPACE, STORE, TestSegment, first_part};

#[test]
fn recipe_of_another_length_is_damage() {
    let e = |len| Extent { group: GroupId(1), offset: 0, len };
    let none = RecordedId::from(BlobId::of(&[]));
    let some = RecordedId::from(BlobId([1; 32]));
    let check = |lens: &[u32], len, id| {
        check_len(&lens.iter().map(|len| e(*len)).collect::<Vec<_>>(), len, id).map_err(|error| error.kind())
    };
    assert_eq!(check(&[3, 4], 7, some), Ok(()));
    assert_eq!(check(&[], 0, none), Ok(()));
    assert_eq!(check(&[1], 1, none), Ok(()), "only the length is checked here, not the hash");
    assert_eq!(check(&[u32::MAX], BODY_BYTES_MAX, some), Ok(()));
    for (lens, len, id) in [
        (&[3, 4][..], 6, some),
        (&[3, 4], 8, some),
        (&[], 1, some),
        (&[1], 0, none),
        (&[], 0, some),
        (&[u32::MAX, 1], BODY_BYTES_MAX + 1, some),
    ] {
        assert_eq!(check(lens, len, id), Err(ErrorKind::Damaged), "{lens:?} {len}");
    }
}

fn noise(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    bytes
}

/// Group parts in a segment, the arguments to note each of them, and the anchors that their writers found.
struct GroupTestLog {
    made: TestSegment,
    noted: Vec<(u64, u32, u32, RecordPlace)>,
    anchors: Vec<Anchor>,
}

/// Writes parts of noise, given as group and length. Each group has its own writer.
fn group_test_log(parts: &[(u64, usize)]) -> GroupTestLog {
    let seed = anchor_seed(STORE, SPACE);
    let mut writers: BTreeMap<u64, (GroupWriter, usize)> = BTreeMap::new();
    let (noise, mut anchors) = (noise(GROUP_BYTES_MAX * 2), Vec::new());
    let (mut made, mut noted) = (TestSegment::new(), Vec::new());
    for (id, len) in parts {
        let (writer, at) = writers.entry(*id).or_insert_with(|| {
            (GroupWriter::new(GroupId(*id), Codec::Zstd, seed).unwrap(), usize::try_from(*id).unwrap() * 1000)
        });
        let mut found = Vec::new();
        writer.append(&noise[*at..*at + len], None::<std::iter::Empty<usize>>, &mut found).unwrap();
        *at += len;
        found.retain(|anchor| *len < LARGE_PART_BYTES || keys::is_kept_for_large_bodies(anchor.key));
        anchors.extend(found);
        let part = writer.flush().unwrap().unwrap();
        let place = made.put(&GroupPart {
            group: *id,
            raw_start: part.raw_start,
            raw_len: part.raw_len,
            codec: 1,
            ..first_part(&part.encoded)
        });
        noted.push((*id, part.raw_start, part.raw_len, place));
    }
    GroupTestLog { made, noted, anchors }
}

fn rebuild(log: &GroupTestLog, newest: bool) -> AnchorRebuild {
    let segments = Segments::default();
    segments.insert(log.made.segment());
    AnchorRebuild::new(STORE, &Arc::new(segments), newest)
}

fn note(
    rebuild: &mut AnchorRebuild,
    (group, raw_start, raw_len, place): (u64, u32, u32, RecordPlace),
    seqno: u64,
) {
    rebuild.note_part(&GroupPart { group, raw_start, raw_len, ..first_part(b"") }, place, Seqno(seqno));
}

fn finish(rebuild: AnchorRebuild) -> Vec<IndexEntry> {
    let mut all = Vec::new();
    rebuild.finish(|entries| all.append(entries));
    all
}

/// The anchors that a rebuild must give, of those for which `of` is true: key, group and offset, sorted.
fn expected_anchors(log: &GroupTestLog, of: impl Fn(&Anchor) -> bool) -> Vec<(Vec<u8>, u64, u32)> {
    let entry = |anchor: &Anchor| keys::anchor_entry(SPACE, anchor, Seqno(0));
    let kept = log
        .anchors
        .iter()
        .filter(|anchor| of(anchor))
        .map(entry)
        .filter(|one| keys::is_kept_in_tables(&one.key));
    let mut all: Vec<_> = kept.map(|one| (one.key, one.value.a, one.value.b)).collect();
    all.sort();
    all
}

fn anchor_places(entries: &[IndexEntry]) -> Vec<(Vec<u8>, u64, u32)> {
    let mut all: Vec<_> = entries.iter().map(|one| (one.key.clone(), one.value.a, one.value.b)).collect();
    all.sort();
    all
}

#[test]
fn rebuilt_anchors_equal_the_written_ones() {
    let log = group_test_log(&[
        (1, 20_000),
        (2, 30_000),
        (1, 3000),
        (3, LARGE_PART_BYTES),
        (3, LARGE_PART_BYTES - 1),
        (1, 9),
    ]);
    let mut rebuild = rebuild(&log, false);
    for (seqno, noted) in (10..).zip(&log.noted) {
        note(&mut rebuild, *noted, seqno);
    }
    let entries = finish(rebuild);
    assert!(entries.len() > 100);
    assert_eq!(anchor_places(&entries), expected_anchors(&log, |_| true));
    // Each anchor has the seqno of its part's record. The group whose last part is oldest comes first.
    for entry in &entries {
        let of = |(group, start, len, _): &(u64, u32, u32, RecordPlace)| {
            *group == entry.value.a && (*start..start + len).contains(&entry.value.b)
        };
        assert_eq!(entry.seqno, 10 + log.noted.iter().position(of).unwrap() as u64);
    }
    let mut order: Vec<u64> = entries.iter().map(|entry| entry.value.a).collect();
    order.dedup();
    assert_eq!(order, [2, 3, 1]);
}

#[test]
fn group_with_parts_out_of_order_is_skipped() {
    let log = group_test_log(&[(1, 5000), (2, 5000), (1, 5000)]);
    let [one, two, more] = [log.noted[0], log.noted[1], log.noted[2]];
    let made = |noted: &[(u64, u32, u32, RecordPlace)]| {
        let mut rebuild = rebuild(&log, false);
        noted.iter().for_each(|part| note(&mut rebuild, *part, 1));
        let held = rebuild.raw_bytes;
        (held, anchor_places(&finish(rebuild)))
    };
    assert_eq!(made(&[one, two, more]), (15_000, expected_anchors(&log, |_| true)));
    let second = expected_anchors(&log, |anchor| anchor.group.0 == 2);
    assert_eq!(made(&[two, more]), (5000, second.clone()), "its first part was not seen");
    assert_eq!(made(&[one, two, (1, 5001, 5000, more.3)]), (5000, second.clone()), "a gap");
    assert_eq!(made(&[one, two, one]), (5000, second.clone()), "again from the start");
    let over = u32::try_from(GROUP_BYTES_MAX).unwrap() - 4999;
    assert_eq!(made(&[one, two, (1, 5000, over, more.3)]), (5000, second.clone()), "longer than a group");
    // A group that does not decode gives no anchors.
    assert_eq!(made(&[one, two, (1, 5000, 4999, more.3)]), (14_999, second));
    // A part of another namespace.
    let mut rebuild = rebuild(&log, false);
    note(&mut rebuild, one, 1);
    let part = GroupPart { raw_start: 5000, raw_len: 5000, namespace: NamespaceId(17), ..first_part(b"") };
    rebuild.note_part(&part, more.3, Seqno(2));
    assert_eq!((rebuild.raw_bytes, finish(rebuild).len()), (0, 0));
}

#[test]
fn rebuild_holds_at_most_32_open_groups() {
    let log = group_test_log(&(1..=33).map(|group| (group, 1000)).collect::<Vec<_>>());
    let mut rebuild = rebuild(&log, false);
    let mut entries = Vec::new();
    for (count, noted) in (1..).zip(&log.noted) {
        note(&mut rebuild, *noted, 1);
        rebuild.close_excess_groups(&mut entries);
        assert_eq!((rebuild.open.len(), rebuild.last_part_clock.len()), (count.min(32), count.min(32)));
    }
    assert_eq!(rebuild.raw_bytes, 32_000);
    assert_eq!(anchor_places(&entries), expected_anchors(&log, |anchor| anchor.group.0 == 1));
    entries.append(&mut finish(rebuild));
    assert_eq!(anchor_places(&entries), expected_anchors(&log, |_| true));
}

#[test]
fn rebuild_of_log_end_holds_64_mib_of_groups() {
    let log = group_test_log(&[(1, 1000)]);
    let most = u32::try_from(GROUP_BYTES_MAX).unwrap();
    let mut rebuild = rebuild(&log, true);
    let mut entries = Vec::new();
    for group in 1..=258 {
        note(&mut rebuild, (group, 0, most, log.noted[0].3), 1);
        rebuild.close_excess_groups(&mut entries);
        assert_eq!(rebuild.open.len() as u64, group.min(256));
        assert_eq!(rebuild.raw_bytes, rebuild.open.len() * GROUP_BYTES_MAX);
    }
    assert!(rebuild.open.values().map(|group| group.id).eq(3..=258));
    assert!(entries.is_empty(), "older groups are dropped without anchors");
}

#[test]
fn anchor_seed_differs_by_store_and_namespace() {
    let seeds =
        [(1, 1), (1, 2), (2, 1)].map(|(store, space)| anchor_seed(StoreId([store; 16]), NamespaceId(space)));
    assert!(seeds[0] != seeds[1] && seeds[0] != seeds[2] && seeds[1] != seeds[2]);
    assert_eq!(seeds[0], anchor_seed(StoreId([1; 16]), NamespaceId(1)));
    assert_ne!(seeds[0], AnchorSeed::default());
}
