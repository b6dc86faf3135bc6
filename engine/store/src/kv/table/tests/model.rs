//! Tables answer like a sorted map.

use super::*;
use crate::kv::table::{
    KEY_LEN_MAX, MergeSource, ReverseTableScan, TableError, TableScan, TableSource, merge,
};
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

type TableModel = BTreeMap<(Vec<u8>, Reverse<u64>), IndexValue>;

fn keys() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        // Few distinct keys, so that there are many versions, and keys that begin one another.
        proptest::collection::vec(0u8..3, 0..4),
        (0u32..4, 0u64..4, 0u32..400).prop_map(|(space, run, frame)| {
            [&space.to_be_bytes()[..], &run.to_be_bytes(), &frame.to_be_bytes()].concat()
        }),
        proptest::array::uniform6(any::<u8>()).prop_map(Vec::from),
        // Long keys with long shared parts make blocks of few entries.
        (0usize..9000, any::<u8>()).prop_map(|(len, last)| {
            let mut key = vec![b'x'; len];
            key.push(last);
            key
        }),
    ]
}

fn values() -> impl Strategy<Value = IndexValue> {
    prop_oneof![
        (0u8..3, 0u64..5, 0u32..5000, 0u32..200).prop_map(|(kind, a, b, c)| IndexValue { kind, a, b, c }),
        any::<(u8, u64, u32, u32)>().prop_map(|(kind, a, b, c)| IndexValue { kind, a, b, c }),
    ]
}

fn models() -> impl Strategy<Value = TableModel> {
    let seqno = prop_oneof![0u64..20, any::<u64>(), Just(u64::MAX)];
    proptest::collection::btree_map((keys(), seqno.prop_map(Reverse)), values(), 0..800)
}

fn bounds() -> impl Strategy<Value = Bound<Vec<u8>>> {
    prop_oneof![keys().prop_map(Bound::Included), keys().prop_map(Bound::Excluded), Just(Bound::Unbounded),]
}

fn entries(model: &TableModel) -> Vec<IndexEntry> {
    let entry = |((key, seqno), value): (&(Vec<u8>, Reverse<u64>), &IndexValue)| IndexEntry {
        key: key.clone(),
        seqno: seqno.0,
        value: *value,
    };
    model.iter().map(entry).collect()
}

fn inside(key: &[u8], from: Bound<&[u8]>, to: Bound<&[u8]>) -> bool {
    let above = match from {
        Bound::Included(from) => key >= from,
        Bound::Excluded(from) => key > from,
        Bound::Unbounded => true,
    };
    let below = match to {
        Bound::Included(to) => key <= to,
        Bound::Excluded(to) => key < to,
        Bound::Unbounded => true,
    };
    above && below
}

fn check_point(table: &Table, all: &[IndexEntry], key: &[u8], at: u64) {
    let versions: Vec<(u64, IndexValue)> =
        all.iter().filter(|entry| entry.key == key).map(|entry| (entry.seqno, entry.value)).collect();
    assert_eq!(table.versions(key).unwrap(), versions);
    let newest = versions.iter().find(|(seqno, _)| *seqno <= at);
    assert_eq!(table.get(key, at).unwrap(), newest.copied());
}

fn check_range(table: &Table, all: &[IndexEntry], from: Bound<&[u8]>, to: Bound<&[u8]>) {
    let mut wanted: Vec<IndexEntry> =
        all.iter().filter(|entry| inside(&entry.key, from, to)).cloned().collect();
    let found: Vec<IndexEntry> = table.scan(from, to).map(Result::unwrap).collect();
    assert_eq!(found, wanted);
    wanted.reverse();
    let found: Vec<IndexEntry> = table.scan_back(from, to).map(Result::unwrap).collect();
    assert_eq!(found, wanted);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn table_answers_like_a_sorted_map(
        model in models(),
        always in any::<bool>(),
        strangers in proptest::collection::vec((keys(), any::<u64>()), 8),
        ranges in proptest::collection::vec((bounds(), bounds()), 8),
    ) {
        let all = entries(&model);
        let bytes = write(&all, if always { FilterPolicy::Always } else { FilterPolicy::Auto });
        let table = open(&bytes).unwrap();
        prop_assert_eq!(table.meta(), &META);
        prop_assert_eq!(table.entry_count(), all.len() as u64);
        table.verify().unwrap();
        for (key, at) in &strangers {
            check_point(&table, &all, key, *at);
        }
        for entry in all.iter().step_by(7) {
            for at in [entry.seqno, entry.seqno.saturating_sub(1), entry.seqno.saturating_add(1), 0, u64::MAX] {
                check_point(&table, &all, &entry.key, at);
            }
        }
        for (from, to) in &ranges {
            let (from, to) = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
            check_range(&table, &all, from, to);
        }
        for pair in all.iter().step_by(31).zip(all.iter().skip(40).step_by(31)) {
            for from in [Bound::Included(&pair.0.key[..]), Bound::Excluded(&pair.0.key[..])] {
                for to in [Bound::Included(&pair.1.key[..]), Bound::Excluded(&pair.1.key[..])] {
                    check_range(&table, &all, from, to);
                }
            }
        }
        check_range(&table, &all, Bound::Unbounded, Bound::Unbounded);
    }

    #[test]
    fn merged_tables_answer_like_one_table(
        models in proptest::collection::vec(models(), 0..4),
        memory in models(),
    ) {
        // Of equal entries, that of the first source counts: memory first, then the tables in their order.
        let mut whole = TableModel::new();
        for model in models.iter().rev().chain([&memory]) {
            whole.extend(model.iter().map(|(at, value)| (at.clone(), *value)));
        }
        let mut sources: Vec<Box<dyn MergeSource>> = vec![Box::new(ListSource::new(entries(&memory)))];
        for model in &models {
            let table = Arc::new(open(&write(&entries(model), FilterPolicy::Auto)).unwrap());
            sources.push(Box::new(TableSource::new(table)));
        }
        let mut writer = TableWriter::new(Vec::new(), META).unwrap();
        merge(sources, |key, seqno, value| writer.push(key, seqno, value)).unwrap();
        let table = open(&writer.finish().unwrap()).unwrap();
        let found: Vec<IndexEntry> = table.scan(Bound::Unbounded, Bound::Unbounded).map(Result::unwrap).collect();
        prop_assert_eq!(found, entries(&whole));
    }
}

#[test]
fn versions_of_one_key_span_many_blocks() {
    let mut all = vec![entry(b"a", 5, 0, 0)];
    all.extend((0..5000u64).rev().map(|seqno| entry(b"k", seqno * 2, seqno, 1)));
    all.push(entry(b"k\0", 1, 0, 0));
    let table = open(&write(&all, FilterPolicy::Always)).unwrap();
    for at in (0..10_100).chain([u64::MAX]) {
        let wanted = (at / 2 * 2).min(9998);
        assert_eq!(table.get(b"k", at).unwrap().map(|found| found.0), Some(wanted));
    }
    assert_eq!(table.get(b"k\0", 0).unwrap(), None);
    assert_eq!(table.versions(b"k").unwrap().len(), 5000);
    check_range(&table, &all, Bound::Included(b"k"), Bound::Included(b"k"));
    check_range(&table, &all, Bound::Excluded(b"k"), Bound::Unbounded);
    check_range(&table, &all, Bound::Unbounded, Bound::Excluded(b"k"));
}

#[test]
fn the_longest_keys_fit() {
    let all: Vec<IndexEntry> = (0..6u8)
        .map(|last| {
            let mut key = vec![9; KEY_LEN_MAX];
            key[KEY_LEN_MAX - 1] = last;
            entry(&key, 1, 2, 3)
        })
        .collect();
    let table = open(&write(&all, FilterPolicy::Always)).unwrap();
    table.verify().unwrap();
    for entry in &all {
        check_point(&table, &all, &entry.key, 1);
    }
    let mut writer = TableWriter::new(Vec::new(), META).unwrap();
    let refused = writer.add(&entry(&vec![0; KEY_LEN_MAX + 1], 1, 1, 1));
    assert!(matches!(refused, Err(TableError::KeyTooLong { .. })));
}

#[test]
fn entries_out_of_order_are_refused_and_leave_no_trace() {
    let mut writer = TableWriter::new(Vec::new(), META).unwrap();
    let kept = [entry(b"b", 5, 1, 1), entry(b"b", 4, 1, 1), entry(b"c", 9, 1, 1)];
    for (at, kept) in kept.iter().enumerate() {
        writer.add(kept).unwrap();
        for refused in [entry(b"a", 1, 1, 1), kept.clone(), entry(&kept.key, kept.seqno + 1, 1, 1)] {
            let position = at as u64 + 1;
            let found = writer.add(&refused);
            assert!(matches!(found, Err(TableError::OutOfOrder { position: p, .. }) if p == position));
        }
    }
    let table = open(&writer.finish().unwrap()).unwrap();
    check_range(&table, &kept, Bound::Unbounded, Bound::Unbounded);
}

#[test]
fn failing_sink_fails_the_writer_permanently() {
    #[derive(Debug)]
    struct FullSink(usize);
    impl std::io::Write for FullSink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or_else(|| std::io::Error::other("full"))?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut writer = TableWriter::new(FullSink(20), META).unwrap();
    let mut mix = TableTestRng(3);
    let failure =
        (0..10_000u32).find_map(|n| writer.add(&entry(&n.to_be_bytes(), mix.next(), mix.next(), 0)).err());
    assert!(matches!(failure, Some(TableError::Sink { .. })));
    assert!(matches!(writer.add(&entry(&[0xff; 5], 1, 1, 1)), Err(TableError::WriterFailed)));
    assert!(matches!(writer.finish(), Err(TableError::WriterFailed)));
}

/// Entries of a list; with `broken`, an error after them.
struct ListSource {
    entries: Vec<IndexEntry>,
    next: usize,
    broken: bool,
}

impl ListSource {
    fn new(entries: Vec<IndexEntry>) -> Self {
        Self { entries, next: 0, broken: false }
    }

    fn current(&self) -> &IndexEntry {
        &self.entries[self.next - 1]
    }
}

impl MergeSource for ListSource {
    fn advance(&mut self) -> Result<bool, TableError> {
        if self.next == self.entries.len() && self.broken {
            return Err(TableError::WriterFailed);
        }
        self.next += 1;
        Ok(self.next <= self.entries.len())
    }

    fn key(&self) -> &[u8] {
        &self.current().key
    }

    fn seqno(&self) -> u64 {
        self.current().seqno
    }

    fn value(&self) -> IndexValue {
        self.current().value
    }
}

#[test]
fn a_merge_ends_at_its_first_error() {
    let good = ListSource::new(vec![entry(b"a", 1, 1, 1), entry(b"z", 1, 1, 1)]);
    let bad = ListSource { broken: true, ..ListSource::new(vec![entry(b"b", 1, 1, 1)]) };
    let mut seen = Vec::new();
    let ended = merge(vec![Box::new(good), Box::new(bad)], |key, _, _| {
        seen.push(key.to_vec());
        Ok(())
    });
    assert!(matches!(ended, Err(TableError::WriterFailed)));
    assert_eq!(seen, [b"a", b"b"]);
    let good = ListSource::new(vec![entry(b"a", 1, 1, 1), entry(b"z", 1, 1, 1)]);
    let refused = merge(vec![Box::new(good)], |_, _, _| Err(TableError::WriterFailed));
    assert!(matches!(refused, Err(TableError::WriterFailed)));
}

#[test]
fn scans_can_own_their_table() {
    let all = [entry(b"a", 1, 1, 1), entry(b"b", 1, 1, 1)];
    let table = Arc::new(open(&write(&all, FilterPolicy::Never)).unwrap());
    let back = ReverseTableScan::new(Arc::clone(&table), Bound::Unbounded, Bound::Excluded(b"b"));
    let ahead = TableScan::new(table, Bound::Excluded(b"a"), Bound::Unbounded);
    assert_eq!(back.map(Result::unwrap).collect::<Vec<_>>(), all[..1]);
    assert_eq!(ahead.map(Result::unwrap).collect::<Vec<_>>(), all[1..]);
}
