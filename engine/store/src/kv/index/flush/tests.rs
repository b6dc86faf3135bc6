//! What a written table holds, and which tables it replaces.

use std::io::Write as _;
use std::path::Path;

use super::*;
use crate::blob::AnchorKey;
use crate::ids::{NamespaceId, Seqno, StoreId};
use crate::io::sim::{FailRule, OpKind, SimIo};
use crate::io::{Io, ReadMode};
use crate::kv::index::levels::LOG_BYTES_MAX;
use crate::kv::index::{IndexCoverage, IndexLimits};
use crate::kv::table::{IndexEntry, IndexValue};
use crate::log::paths::StorePaths;
use crate::log::segments::write_lock;
use crate::testing::no_schema;

const COVERS: TableCoverage = TableCoverage { segment: 1, offset: 96, seqno: 1 };

fn index(memory_bytes: usize) -> (SimIo, Index) {
    let sim = SimIo::new(1);
    let paths = StorePaths::new(Path::new("s"));
    sim.create_dir_all(&paths.tables()).unwrap();
    let io: Arc<dyn Io> = Arc::new(sim.clone());
    let limits = IndexLimits { memory_bytes, read_mode: ReadMode::Mapped };
    (sim, Index::empty(&io, &paths, StoreId::default(), limits, &no_schema()))
}

fn entry(key: Vec<u8>, seqno: u64) -> IndexEntry {
    IndexEntry { key, seqno, value: IndexValue { kind: keys::AT_PLACE, a: seqno, b: 0, c: 0 } }
}

fn numbered_entries(numbers: std::ops::Range<u64>) -> Vec<IndexEntry> {
    numbers.map(|n| entry(keys::user(50, &n.to_be_bytes()), n)).collect()
}

fn memory(entries: Vec<IndexEntry>) -> Arc<Memtable> {
    let memory = Memtable::default();
    memory.insert(entries);
    Arc::new(memory)
}

/// Tables with these numbers of entries, oldest first.
fn tables(index: &Index, counts: &[u64], kept: TableLocation) -> Vec<ListedTable> {
    let table = |count: &u64| {
        index
            .try_flush_memory(COVERS, &[memory(numbered_entries(0..*count))], &[], kept, u64::MAX)
            .unwrap()
            .remove(0)
    };
    counts.iter().map(table).collect()
}

fn sizes(tables: &[ListedTable]) -> Vec<(u64, TableLocation)> {
    tables.iter().map(|listed| (listed.table.entry_count(), listed.location)).collect()
}

fn files(sim: &SimIo) -> Vec<String> {
    sim.list(Path::new("s/tables")).unwrap()
}

#[test]
fn table_twice_as_large_as_newer_ones_is_kept() {
    let (_, index) = index(1 << 20);
    for (counts, entries, kept) in [
        (&[][..], 5, 0),
        (&[10], 5, 1),
        (&[10], 6, 0),
        (&[10], 0, 1),
        (&[100, 40, 10], 5, 3),
        (&[100, 40, 10], 6, 2),
        (&[100, 40, 10], 10, 2),
        (&[100, 40, 10], 11, 0),
        (&[100, 20, 10], 6, 1),
        (&[100, 20, 10], u64::MAX, 0),
        (&[10, 40], 6, 2),
        (&[10, 10, 40], 20, 3),
    ] {
        assert_eq!(
            tables_to_keep(&tables(&index, counts, TableLocation::Memory), entries, u64::MAX),
            kept,
            "{counts:?} and {entries}"
        );
    }
}

#[test]
fn at_most_so_many_entries_are_merged() {
    let (_, index) = index(1 << 20);
    for (entries, most, kept) in
        [(10, 0, 3), (10, 19, 3), (10, 20, 2), (10, 39, 2), (10, 40, 1), (10, 79, 1), (10, 80, 0)]
    {
        let tables = tables(&index, &[40, 20, 10], TableLocation::Memory);
        assert_eq!(tables_to_keep(&tables, entries, most), kept, "{most}");
    }
}

#[test]
fn flushes_merge_tables_by_size_ratio() {
    let (_, index) = index(1 << 20);
    let mut now: Vec<ListedTable> = Vec::new();
    let mut after = Vec::new();
    for flush in 0..8u64 {
        let some = memory(numbered_entries(10 * flush..10 * flush + 10));
        now = index.try_flush_memory(COVERS, &[some], &now, TableLocation::Memory, u64::MAX).unwrap();
        after.push(now.iter().map(|listed| listed.table.entry_count()).collect::<Vec<_>>());
    }
    let wanted =
        [vec![10], vec![20], vec![20, 10], vec![40], vec![40, 10], vec![40, 20], vec![40, 20, 10], vec![80]];
    assert_eq!(after, wanted);
}

#[test]
fn next_flush_writes_memory_only_tables() {
    let (sim, index) = index(1 << 20);
    let mut now = tables(&index, &[100], TableLocation::File);
    assert_eq!(
        (files(&sim), sizes(&now)),
        (vec!["00000001.tbl".to_owned()], vec![(100, TableLocation::File)])
    );
    // Nothing is new or only in memory: the tables stay the same, and no table number is used.
    let same =
        index.try_flush_memory(COVERS, &[memory(vec![])], &now, TableLocation::File, u64::MAX).unwrap();
    assert_eq!((same[0].entry.clone(), same.len()), (now[0].entry.clone(), 1));
    now.extend(tables(&index, &[40], TableLocation::Memory));
    let same = index.try_flush_memory(COVERS, &[], &now, TableLocation::Memory, u64::MAX).unwrap();
    assert_eq!((sizes(&same), files(&sim).len()), (sizes(&now), 1));
    assert_eq!(index.next_table.load(Ordering::Relaxed), 3);
    let written = index.try_flush_memory(COVERS, &[], &now, TableLocation::File, u64::MAX).unwrap();
    assert_eq!(sizes(&written), [(100, TableLocation::File), (40, TableLocation::File)]);
    assert_eq!(files(&sim), ["00000001.tbl", "00000003.tbl"]);
    assert_eq!(written[1].entry.bytes, sim.read(Path::new("s/tables/00000003.tbl")).unwrap().len() as u64);
    let one = memory(vec![entry(keys::user(51, b"x"), 7)]);
    let written = index
        .try_flush_memory(COVERS, std::slice::from_ref(&one), &now, TableLocation::File, u64::MAX)
        .unwrap();
    assert_eq!(sizes(&written), [(100, TableLocation::File), (41, TableLocation::File)]);
    // A table that could not be written leaves no file. A file with a reused number is overwritten.
    sim.fail(FailRule::enospc(OpKind::Write));
    assert!(
        index
            .try_flush_memory(COVERS, std::slice::from_ref(&one), &[], TableLocation::File, u64::MAX)
            .is_err()
    );
    assert_eq!(files(&sim).len(), 3);
    index.next_table.store(1, Ordering::Relaxed);
    let over = index.try_flush_memory(COVERS, &[one], &[], TableLocation::File, u64::MAX).unwrap();
    assert_eq!((over[0].entry.id, files(&sim).len()), (1, 3));
    let levels = IndexLevels { tables: over, ..IndexLevels::default() };
    index.remove_tables_not_in(&levels);
    assert_eq!(files(&sim), ["00000001.tbl"]);
}

#[test]
fn flush_keeps_versions_by_policy_or_all_under_a_view() {
    let (_, index) = index(1 << 20);
    let policies = [
        (50, HistoryCode::Latest),
        (51, HistoryCode::Newest(2)),
        (52, HistoryCode::All),
        (53, HistoryCode::AgeNs(1)),
        (55, HistoryCode::Newest(0)),
    ];
    write_lock(&index.policies).extend(policies);
    let all: Vec<Vec<u8>> =
        (50..56).flat_map(|space| [b"a", b"b"].map(|key| keys::user(space, key))).collect();
    let own = [keys::group(1), keys::space(3), [keys::key(4, 0), vec![2; 12]].concat()];
    let versions = |seqnos: std::ops::RangeInclusive<u64>| {
        let keys = all.iter().chain(&own);
        memory(keys.flat_map(|key| seqnos.clone().map(|seqno| entry(key.clone(), seqno))).collect())
    };
    let left = |tables: &[ListedTable]| {
        assert_eq!(tables.len(), 1);
        let found = |key: &Vec<u8>| {
            tables[0].table.versions(key).unwrap().iter().map(|one| one.0).collect::<Vec<_>>()
        };
        (all.iter().map(found).collect::<Vec<_>>(), own.iter().map(found).collect::<Vec<_>>())
    };
    let every = vec![5, 4, 3, 2, 1];
    let by_policy: Vec<Vec<u64>> =
        [vec![5], vec![5, 4], every.clone(), every.clone(), every.clone(), vec![5]]
            .into_iter()
            .flat_map(|kept| [kept.clone(), kept])
            .collect();
    // From memory alone, from two memories, and from memory and a table.
    let one =
        index.try_flush_memory(COVERS, &[versions(1..=5)], &[], TableLocation::Memory, u64::MAX).unwrap();
    assert_eq!(left(&one), (by_policy.clone(), vec![vec![5]; 3]));
    let two = index
        .try_flush_memory(COVERS, &[versions(3..=5), versions(1..=2)], &[], TableLocation::Memory, u64::MAX)
        .unwrap();
    assert_eq!(left(&two), (by_policy.clone(), vec![vec![5]; 3]));
    lock(&index.views).insert(2, 1);
    let before =
        index.try_flush_memory(COVERS, &[versions(1..=2)], &[], TableLocation::Memory, u64::MAX).unwrap();
    let seen =
        index.try_flush_memory(COVERS, &[versions(3..=5)], &before, TableLocation::Memory, u64::MAX).unwrap();
    assert_eq!(left(&seen), (vec![every; 12], vec![vec![5]; 3]));
    lock(&index.views).clear();
    let after =
        index.try_flush_memory(COVERS, &[versions(3..=5)], &seen, TableLocation::Memory, u64::MAX).unwrap();
    assert_eq!(left(&after), (by_policy, vec![vec![5]; 3]));
}

#[test]
fn one_anchor_in_four_goes_into_a_table() {
    let (_, index) = index(1 << 20);
    let anchors: Vec<IndexEntry> =
        (0..16).map(|n| entry(keys::anchor(NamespaceId(1), AnchorKey(n)).to_vec(), 1)).collect();
    let table = index
        .try_flush_memory(COVERS, &[memory(anchors.clone())], &[], TableLocation::Memory, u64::MAX)
        .unwrap()
        .remove(0)
        .table;
    let held: Vec<bool> = anchors.iter().map(|one| table.get(&one.key, 9).unwrap().is_some()).collect();
    assert_eq!(held, (0..16).map(|n| n % 4 == 0).collect::<Vec<_>>());
}

/// An anchor's seqno is not in its table, so the newest is the one that was written last: in memory, then in the
/// newest table, and after a merge.
#[test]
fn newest_anchor_is_found_without_seqnos_in_tables() {
    let (_, index) = index(1 << 20);
    let key = keys::anchor(NamespaceId(16), AnchorKey(0x1234_5678)).to_vec();
    let at = |offset: u32, seqno: u64| {
        let value = IndexValue { kind: keys::ANCHOR, a: 3, b: offset, c: 0 };
        memory(vec![IndexEntry { key: key.clone(), seqno, value }])
    };
    let found = |tables: &[ListedTable]| {
        let levels = IndexLevels { tables: tables.to_vec(), ..IndexLevels::default() };
        let found = levels.tables().find_map(|table| table.get(&key, u64::MAX).unwrap());
        found.map(|(seqno, value)| (seqno, value.b))
    };
    let flush = |memory, tables: &[ListedTable], most| {
        index.try_flush_memory(COVERS, &[memory], tables, TableLocation::Memory, most).unwrap()
    };
    let first = flush(at(10, 5), &[], 0);
    assert_eq!(found(&first), Some((0, 10)));
    let second = flush(at(20, 9), &first, 0);
    assert_eq!((second.len(), found(&second)), (2, Some((0, 20))));
    let merged = flush(memory(numbered_entries(0..1)), &second, u64::MAX);
    assert_eq!((merged.len(), found(&merged)), (1, Some((0, 20))));
    let again = flush(at(30, 12), &merged, u64::MAX);
    assert_eq!((again[0].table.entry_count(), found(&again)), (2, Some((0, 30))));
}

#[test]
fn file_sink_writes_one_mebibyte_at_a_time() {
    let (sim, _) = index(1);
    let file = sim.open(Path::new("s/t"), OpenMode::CreateNew).unwrap();
    let sink = || FileSink { file: file.clone(), at: 0, synced: 0, pending: Vec::new(), failed: None };
    let half = vec![7; 1 << 19];
    let mut whole = sink();
    for bytes in [&half[..], &half, &half, &half[..5]] {
        assert_eq!(whole.write(bytes).unwrap(), bytes.len());
    }
    whole.flush().unwrap();
    whole.finish().unwrap();
    let writes: Vec<_> = sim
        .history()
        .ops()
        .iter()
        .filter(|op| op.kind() == OpKind::Write)
        .map(|op| (op.offset(), op.written().len()))
        .collect();
    assert_eq!(writes, [(Some(0), 1 << 20), (Some(1 << 20), (1 << 19) + 5)]);
    // The file's error is reported once, by the call that finishes.
    sim.fail(FailRule::enospc(OpKind::Write).forever());
    let mut refused = sink();
    refused.write_all(&half).unwrap();
    assert_eq!(refused.write(&half).unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    let mut late = sink();
    late.write_all(b"x").unwrap();
    assert_eq!(late.finish().unwrap_err().kind(), crate::ErrorKind::Unavailable);
}

#[test]
fn opening_flushes_full_memory_or_a_long_log() {
    let (sim, index) = index(10 * 128);
    let mut covered = None;
    let state = |bytes| {
        let mut state = LogState::empty();
        state.totals.kv_bytes = bytes;
        state
    };
    let mut flushed = |entries: Vec<IndexEntry>, logged: u64| {
        index.insert(entries);
        covered = None;
        index.flush_while_opening((SegmentId(1), 96), &state(logged), &mut covered).unwrap();
        let covered: Option<&IndexCoverage> = covered.as_ref();
        assert_eq!(covered.is_some(), index.memory_bytes() == 0);
        covered.map(|covered| covered.at)
    };
    let at = Some((SegmentId(1), 96));
    assert_eq!(flushed(numbered_entries(0..9), LOG_BYTES_MAX - 1), None);
    assert_eq!(flushed(numbered_entries(9..10), 0), at, "just full");
    assert_eq!(flushed(numbered_entries(10..11), LOG_BYTES_MAX - 1), None);
    assert_eq!(flushed(vec![], LOG_BYTES_MAX), at, "just long");
    assert_eq!(flushed(numbered_entries(11..12), 2 * LOG_BYTES_MAX - 1), None, "counted from there on");
    assert_eq!(flushed(vec![], 2 * LOG_BYTES_MAX), at);
    assert_eq!(sizes(&index.levels().tables), [(10, TableLocation::File), (2, TableLocation::File)]);
    assert_eq!(files(&sim).len(), 3);
    crate::log::writer::LogSink::after_persist(&index);
    assert_eq!(files(&sim).len(), 2);
    let (found, _) = index.get(&keys::user(50, &9u64.to_be_bytes()), Seqno(u64::MAX)).unwrap().unwrap();
    assert_eq!(found, Seqno(9));
}

/// Open runs are keys that come and go. Without this rule each ended run left a key in the tables for good, and
/// finding the open runs read as many keys as there were runs.
#[test]
fn end_in_passing_space_leaves_with_its_version() {
    let (_, index) = index(1 << 20);
    let key = |n: u8| [keys::key(PASSING_SPACE, 1), vec![n]].concat();
    let end = |n: u8, seqno: u64| {
        let value = IndexValue { kind: keys::ENDED, a: seqno, b: 0, c: 0 };
        IndexEntry { key: key(n), seqno, value }
    };
    let held = |tables: &[ListedTable], n: u8| -> Vec<u64> {
        let versions = |listed: &ListedTable| listed.table.versions(&key(n)).unwrap();
        tables.iter().flat_map(versions).map(|(seqno, _)| seqno).collect()
    };
    // 1 begins and ends, 2 stays open, 3 ends without having begun here.
    let first = memory(vec![entry(key(1), 1), end(1, 2), entry(key(2), 3), end(3, 4)]);
    let oldest = index
        .try_flush_memory(COVERS, std::slice::from_ref(&first), &[], TableLocation::Memory, u64::MAX)
        .unwrap();
    assert_eq!([1, 2, 3].map(|n| held(&oldest, n)), [vec![], vec![3], vec![]]);
    // In a part of the index an older table may have what 3 ends.
    let part = index.try_flush_part(COVERS, &[first], &[], (TableLocation::Memory, true), u64::MAX).unwrap();
    assert_eq!([1, 2, 3].map(|n| held(&part, n)), [vec![], vec![3], vec![4]]);
    // 2 ends: the end meets its version once both are merged.
    let after =
        index.try_flush_memory(COVERS, &[memory(vec![end(2, 5)])], &oldest, TableLocation::Memory, u64::MAX);
    assert_eq!(held(&after.unwrap(), 2), Vec::<u64>::new());
}
