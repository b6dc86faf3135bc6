//! The in-memory part of the index: an ordered map from (key, seqno) to a value.
//!
//! Keys of up to [`INLINE_BYTES`] bytes are stored in the map's own nodes, so that most entries need no
//! allocation and no pointer. Each version is an entry. Bytes are counted as the map's nodes use them.
//!
//! Left out: removing older versions. Writing a table drops the versions that it need not hold.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::kv::table::{IndexEntry, IndexValue, MergeSource};
use crate::log::segments::{read_lock, write_lock};
use crate::sync::atomic::{AtomicUsize, Ordering as Memory};
use crate::sync::{RwLock, rank};

/// Bytes of a key that are stored in the entry itself.
const INLINE_BYTES: usize = 24;
/// Counted bytes of an entry: 64 bytes in a node of eleven, of which sequential keys fill six, and a tenth
/// for inner nodes.
pub(super) const ENTRY_BYTES: usize = 128;
/// From this number of entries on, they are sorted before they are added.
const SORT_ENTRIES_MIN: usize = 64;
/// Bytes that the allocator adds to the rest of a long key.
const LONG_KEY_OVERHEAD_BYTES: usize = 32;

/// A key and a seqno, in a table's order: key ascending, then seqno descending.
#[derive(Debug, Clone)]
struct MemKey {
    /// The key's first bytes as big-endian numbers, padded with zeros: they compare like the bytes.
    words: [u64; 3],
    /// The complement of the seqno.
    newness: u64,
    /// The key's bytes after the first 24, if any. A thin pointer, because few keys have more.
    #[expect(clippy::box_collection, reason = "8 bytes in every entry instead of 16")]
    rest: Option<Box<Vec<u8>>>,
    /// Bytes of the key.
    len: u32,
    /// The value's kind, stored here because there is room. Entries of one key and seqno have one kind.
    kind: u8,
}

/// The rest of a [`IndexValue`].
#[derive(Debug, Clone, Copy)]
struct MemValue {
    a: u64,
    b: u32,
    c: u32,
}

impl MemKey {
    fn new(key: &[u8], seqno: u64) -> Self {
        let mut inline = [0; INLINE_BYTES];
        let (head, rest) = key.split_at(key.len().min(INLINE_BYTES));
        inline[..head.len()].copy_from_slice(head);
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&inline[at..at + 8]);
            u64::from_be_bytes(bytes)
        };
        Self {
            words: [word(0), word(8), word(16)],
            newness: !seqno,
            rest: (!rest.is_empty()).then(|| Box::new(rest.to_vec())),
            #[expect(clippy::cast_possible_truncation, reason = "keys are at most 70,000 bytes")]
            len: key.len() as u32,
            kind: 0,
        }
    }

    fn rest(&self) -> &[u8] {
        self.rest.as_deref().map_or(&[], Vec::as_slice)
    }

    fn copy_key(&self, out: &mut Vec<u8>) {
        out.clear();
        for word in self.words {
            out.extend_from_slice(&word.to_be_bytes());
        }
        out.truncate(self.len as usize);
        out.extend_from_slice(self.rest());
    }

    fn same_key(&self, other: &Self) -> bool {
        self.words == other.words && self.len == other.len && self.rest() == other.rest()
    }
}

impl Ord for MemKey {
    fn cmp(&self, other: &Self) -> Ordering {
        // If two keys agree in their first bytes and are not both long, the shorter one is a prefix of the
        // longer one.
        let [a, b, c] = self.words;
        let [x, y, z] = other.words;
        (a.cmp(&x))
            .then_with(|| b.cmp(&y))
            .then_with(|| c.cmp(&z))
            .then_with(|| match (&self.rest, &other.rest) {
                (None, None) => Ordering::Equal,
                _ => self.rest().cmp(other.rest()),
            })
            .then_with(|| self.len.cmp(&other.len))
            .then_with(|| self.newness.cmp(&other.newness))
    }
}

impl PartialOrd for MemKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for MemKey {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for MemKey {}

fn full_value(key: &MemKey, value: MemValue) -> IndexValue {
    IndexValue { kind: key.kind, a: value.a, b: value.b, c: value.c }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Memtable {
    map: RwLock<BTreeMap<MemKey, MemValue>, { rank::MEMTABLE }>,
    bytes: AtomicUsize,
}

impl Memtable {
    /// Adds entries, all under one lock.
    pub(super) fn insert(&self, entries: impl IntoIterator<Item = IndexEntry>) {
        self.insert_with(|add| {
            entries.into_iter().for_each(|entry| add(&entry.key, entry.seqno, entry.value))
        });
    }

    /// Adds the entries that `entries` passes to its argument, all under one lock. Many entries are sorted
    /// first: then neighbours are found near each other, and the lock is held for less time.
    pub(super) fn insert_with(&self, entries: impl FnOnce(&mut dyn FnMut(&[u8], u64, IndexValue))) {
        let mut ready: Vec<(MemKey, MemValue)> = Vec::new();
        entries(&mut |key, seqno, IndexValue { kind, a, b, c }| {
            ready.push((MemKey { kind, ..MemKey::new(key, seqno) }, MemValue { a, b, c }));
        });
        if ready.len() >= SORT_ENTRIES_MIN {
            // The sort is stable: of two entries with the same key and seqno, the later one counts.
            ready.sort_by(|(one, _), (other, _)| one.cmp(other));
        }
        let mut map = write_lock(&self.map);
        let mut bytes = 0;
        for (key, value) in ready {
            let rest = (key.len as usize).saturating_sub(INLINE_BYTES);
            if map.insert(key, value).is_none() {
                bytes += ENTRY_BYTES + if rest > 0 { rest + LONG_KEY_OVERHEAD_BYTES } else { 0 };
            }
        }
        self.bytes.fetch_add(bytes, Memory::Relaxed);
    }

    /// Approximate bytes of the entries.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Memory::Relaxed)
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        read_lock(&self.map).len()
    }

    /// The newest version of a key with a seqno of at most `at`.
    pub(super) fn get(&self, key: &[u8], at: u64) -> Option<(u64, IndexValue)> {
        let wanted = MemKey::new(key, at);
        let map = read_lock(&self.map);
        let (found, value) = map.range(&wanted..).next()?;
        found.same_key(&wanted).then(|| (!found.newness, full_value(found, *value)))
    }

    /// Calls `each` with all versions of a key, newest first.
    pub(super) fn versions(&self, key: &[u8], mut each: impl FnMut(u64, IndexValue)) {
        let wanted = MemKey::new(key, u64::MAX);
        for (found, value) in
            read_lock(&self.map).range(&wanted..).take_while(|(found, _)| found.same_key(&wanted))
        {
            each(!found.newness, full_value(found, *value));
        }
    }

    /// Up to `limit` entries from a bound on, in order.
    fn entries_from(&self, from: Bound<&MemKey>, limit: usize) -> Vec<(MemKey, MemValue)> {
        let map = read_lock(&self.map);
        let range = map.range::<MemKey, _>((from, Bound::Unbounded));
        range.take(limit).map(|(key, value)| (key.clone(), *value)).collect()
    }

    /// Calls `each` with the entries between two bounds on keys, in order or in reverse, until it returns
    /// false.
    pub(super) fn range(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        reverse: bool,
        mut each: impl FnMut(&[u8], u64, IndexValue) -> bool,
    ) {
        // Each bound becomes a position before the newest version of its key, or after the oldest.
        let from = match from {
            Bound::Included(key) => Bound::Included(MemKey::new(key, u64::MAX)),
            Bound::Excluded(key) => Bound::Excluded(MemKey::new(key, 0)),
            Bound::Unbounded => Bound::Unbounded,
        };
        let to = match to {
            Bound::Included(key) => Bound::Included(MemKey::new(key, 0)),
            Bound::Excluded(key) => Bound::Excluded(MemKey::new(key, u64::MAX)),
            Bound::Unbounded => Bound::Unbounded,
        };
        let map = read_lock(&self.map);
        let range = map.range((from, to));
        let mut bytes = Vec::new();
        let mut give = |(key, value): (&MemKey, &MemValue)| {
            key.copy_key(&mut bytes);
            each(&bytes, !key.newness, full_value(key, *value))
        };
        if reverse {
            range.rev().all(&mut give);
        } else {
            range.into_iter().all(&mut give);
        }
    }
}

/// Number of entries that are fetched under one lock.
const CHUNK_ENTRIES: usize = 1024;

/// Entries in order. Holds no lock between two steps: of memory that still changes, what is added behind the
/// current entry is left out.
#[derive(Debug)]
pub(super) struct MemtableSource {
    memory: Arc<Memtable>,
    /// Where the entries begin.
    from: Bound<MemKey>,
    chunk: Vec<(MemKey, MemValue)>,
    /// The position of the current entry in `chunk`.
    at: usize,
    key: Vec<u8>,
}

impl MemtableSource {
    pub(super) fn new(memory: Arc<Memtable>) -> Self {
        Self { memory, from: Bound::Unbounded, chunk: Vec::new(), at: 0, key: Vec::new() }
    }

    /// The entries of this key and of all keys after it.
    pub(super) fn starting_at(memory: Arc<Memtable>, from: &[u8]) -> Self {
        Self { from: Bound::Included(MemKey::new(from, u64::MAX)), ..Self::new(memory) }
    }
}

impl MergeSource for MemtableSource {
    fn advance(&mut self) -> crate::kv::table::TableResult<bool> {
        self.at += 1;
        if self.at >= self.chunk.len() {
            if let Some((last, _)) = self.chunk.last() {
                self.from = Bound::Excluded(last.clone());
            }
            let chunk = self.memory.entries_from(self.from.as_ref(), CHUNK_ENTRIES);
            if chunk.is_empty() {
                return Ok(false);
            }
            (self.chunk, self.at) = (chunk, 0);
        }
        if let Some((key, _)) = self.chunk.get(self.at) {
            key.copy_key(&mut self.key);
        }
        Ok(true)
    }

    fn key(&self) -> &[u8] {
        &self.key
    }

    fn seqno(&self) -> u64 {
        self.chunk.get(self.at).map_or(0, |(key, _)| !key.newness)
    }

    fn value(&self) -> IndexValue {
        let none = IndexValue { kind: 0, a: 0, b: 0, c: 0 };
        self.chunk.get(self.at).map_or(none, |(key, value)| full_value(key, *value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &[u8], seqno: u64) -> IndexEntry {
        IndexEntry { key: key.to_vec(), seqno, value: IndexValue { kind: 1, a: seqno, b: 2, c: 3 } }
    }

    #[test]
    fn memtable_entry_takes_64_bytes() {
        assert_eq!(size_of::<MemKey>() + size_of::<MemValue>(), 64);
    }

    #[test]
    fn memtable_order_is_byte_order() {
        let long = |last: u8| [vec![7; 24], vec![last; 9]].concat();
        let mut keys = vec![
            vec![],
            vec![0],
            vec![0, 0],
            vec![7; 23],
            vec![7; 24],
            vec![7; 25],
            [vec![7; 24], vec![0]].concat(),
            long(1),
            long(2),
            [long(1), vec![0]].concat(),
            vec![8],
            vec![255; 40],
        ];
        let memtable = Memtable::default();
        for (seqno, key) in keys.iter().enumerate() {
            memtable.insert([entry(key, seqno as u64), entry(key, seqno as u64 + 100)]);
        }
        keys.sort();
        for reverse in [false, true] {
            let mut seen = Vec::new();
            memtable.range(Bound::Unbounded, Bound::Unbounded, reverse, |key, seqno, _| {
                seen.push((key.to_vec(), seqno >= 100));
                true
            });
            if reverse {
                seen.reverse();
            }
            let wanted: Vec<_> =
                keys.iter().flat_map(|key| [(key.clone(), true), (key.clone(), false)]).collect();
            assert_eq!(seen, wanted);
        }
        for (number, key) in keys.iter().enumerate() {
            assert!(memtable.get(key, 99).is_some_and(|(seqno, _)| seqno < 100));
            let (mut versions, mut after) = (0, 0);
            memtable.versions(key, |_, _| versions += 1);
            memtable.range(Bound::Excluded(key), Bound::Unbounded, false, |_, _, _| {
                after += 1;
                true
            });
            assert_eq!((versions, after), (2, 2 * (keys.len() - number - 1)));
        }
        assert_eq!(memtable.get(&[9], u64::MAX), None);
    }

    #[test]
    fn bytes_are_counted_once_per_version() {
        let memtable = Memtable::default();
        let mut expected = 0;
        for (len, bytes) in [(0, 128), (1, 128), (24, 128), (25, 128 + 1 + 32), (100, 128 + 76 + 32)] {
            memtable.insert([entry(&vec![7; len], 1)]);
            expected += bytes;
            assert_eq!(memtable.bytes(), expected, "a key of {len}");
            memtable.insert([entry(&vec![7; len], 1)]);
            assert_eq!(memtable.bytes(), expected, "the same again");
        }
        memtable.insert([entry(&[7; 25], 2), entry(&[7; 25], 2)]);
        assert_eq!((memtable.bytes(), memtable.len()), (expected + 161, 6));
    }

    #[test]
    fn later_entry_with_same_key_and_seqno_wins() {
        for count in [1, 10, 40, 500] {
            let memtable = Memtable::default();
            let twice = |n: u64| [(n, 1), (n, 2)];
            let entries = (0..count).rev().flat_map(twice).map(|(n, a)| IndexEntry {
                value: IndexValue { kind: 9, a, b: 5, c: 6 },
                ..entry(&n.to_be_bytes(), 3)
            });
            memtable.insert(entries);
            assert_eq!((memtable.len() as u64, memtable.bytes() as u64), (count, 128 * count));
            for n in 0..count {
                let wanted = Some((3, IndexValue { kind: 9, a: 2, b: 5, c: 6 }));
                assert_eq!(memtable.get(&n.to_be_bytes(), 3), wanted);
                assert_eq!(memtable.get(&n.to_be_bytes(), 2), None);
            }
        }
    }

    #[test]
    fn a_scan_gives_every_entry_once_across_its_chunks() {
        for count in [0, 1, 1023, 1024, 1025, 2500] {
            let memtable = Memtable::default();
            memtable.insert((0..count).map(|n: u64| entry(&n.to_be_bytes(), n)));
            let mut scan = MemtableSource::new(Arc::new(memtable));
            for n in 0..count {
                assert!(scan.advance().unwrap());
                assert_eq!((scan.key(), scan.seqno(), scan.value().a), (&n.to_be_bytes()[..], n, n));
            }
            assert!(!scan.advance().unwrap() && !scan.advance().unwrap());
        }
    }

    #[test]
    fn key_comparison_operators_agree() {
        let ascending =
            [(&b""[..], 5), (b"a", 9), (b"a", 3), (b"a\0", 3), (&[b'b'; 24], 1), (&[b'b'; 25], 1)];
        let keys = ascending.map(|(key, seqno)| MemKey::new(key, seqno));
        for (i, one) in keys.iter().enumerate() {
            for (j, other) in keys.iter().enumerate() {
                assert_eq!((one < other, one == other, one > other), (i < j, i == j, i > j), "{i} {j}");
            }
        }
    }
}
