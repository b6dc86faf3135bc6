//! Finding keys in the levels: memory first, then tables from the newest to the oldest.

use std::ops::Bound;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::Seqno;
use crate::kv::index::levels::{Index, IndexLevels};
use crate::kv::index::memtable::MemtableSource;
use crate::kv::keys;
use crate::kv::table::{IndexEntry, IndexValue, MergeSource, Table, TableError, TableSource, merge};

type LookupResult<T> = std::result::Result<T, TableError>;

/// One key of a scan, with its value.
#[derive(Debug, Clone)]
pub struct IndexHit {
    pub key: Vec<u8>,
    pub value: IndexValue,
}

/// The error that callers get for a table that cannot be read or written.
pub(super) fn table_error(error: TableError) -> Error {
    let (kind, message) = match &error {
        TableError::Sink { source } => (
            ErrorKind::Unavailable,
            format!("an index table cannot be written: {source}; make room and reopen"),
        ),
        _ => (
            ErrorKind::Damaged,
            format!("{error}, and so is the table that was rebuilt from the log: check the disk"),
        ),
    };
    Error::with_source(kind, message, error)
}

/// Why a walk over the levels ended before their end.
enum PickStop {
    /// It has all that was asked for.
    Done,
    Failed(TableError),
}

impl From<TableError> for PickStop {
    fn from(error: TableError) -> Self {
        Self::Failed(error)
    }
}

/// Counts the keys that one source contributes to a page.
struct KeyCounter {
    last: Vec<u8>,
    seen: usize,
    limit: usize,
}

impl KeyCounter {
    fn new(limit: usize) -> Self {
        Self { last: Vec::new(), seen: 0, limit }
    }

    /// Counts the next entry's key. Returns the last key as the error if the page already has all it needs
    /// before this one.
    fn count_key(&mut self, key: &[u8]) -> std::result::Result<(), &[u8]> {
        if self.seen > 0 && self.last == key {
            return Ok(());
        }
        if self.seen == self.limit {
            return Err(&self.last);
        }
        self.seen += 1;
        self.last.clear();
        self.last.extend_from_slice(key);
        Ok(())
    }
}

impl IndexLevels {
    /// The newest version of a key at `at`.
    pub(super) fn get(&self, key: &[u8], at: Seqno) -> LookupResult<Option<(Seqno, IndexValue)>> {
        for memory in self.memory() {
            if let Some((seqno, value)) = memory.get(key, at.0) {
                return Ok(Some((Seqno(seqno), value)));
            }
        }
        if !keys::is_kept_in_tables(key) {
            return Ok(None);
        }
        for table in self.tables() {
            if let Some((seqno, value)) = table.get(key, at.0)? {
                return Ok(Some((Seqno(seqno), value)));
            }
        }
        Ok(None)
    }

    /// All versions of a key up to `at`, newest first.
    pub(super) fn versions(&self, key: &[u8], at: Seqno) -> LookupResult<Vec<(Seqno, IndexValue)>> {
        let mut found: Vec<(Seqno, IndexValue)> = Vec::new();
        for memory in self.memory() {
            memory.versions(key, |seqno, value| found.push((Seqno(seqno), value)));
        }
        for table in self.tables() {
            let versions = table.versions(key)?;
            found.extend(versions.into_iter().map(|(seqno, value)| (Seqno(seqno), value)));
        }
        found.retain(|(seqno, _)| *seqno <= at);
        // Of equal entries, that of the first source counts, as elsewhere.
        found.sort_by_key(|(seqno, _)| std::cmp::Reverse(*seqno));
        found.dedup_by_key(|(seqno, _)| *seqno);
        Ok(found)
    }
}

impl Index {
    /// The newest version of a key at `at`.
    pub fn get(&self, key: &[u8], at: Seqno) -> Result<Option<(Seqno, IndexValue)>> {
        self.with_repair(|| self.try_get(key, at))
    }

    fn try_get(&self, key: &[u8], at: Seqno) -> LookupResult<Option<(Seqno, IndexValue)>> {
        self.levels().get(key, at)
    }

    /// The living newest value of a key of the engine's own keyspaces.
    pub fn newest(&self, key: &[u8]) -> Result<Option<IndexValue>> {
        Ok(self.get(key, Seqno(u64::MAX))?.map(|(_, value)| value).filter(|value| value.kind != keys::ENDED))
    }

    /// All versions of a key up to `at`, newest first.
    pub fn versions(&self, key: &[u8], at: Seqno) -> Result<Vec<(Seqno, IndexValue)>> {
        self.with_repair(|| self.try_versions(key, at))
    }

    fn try_versions(&self, key: &[u8], at: Seqno) -> LookupResult<Vec<(Seqno, IndexValue)>> {
        self.levels().versions(key, at)
    }

    /// Up to about `limit` living keys between two bounds as of `at`, in the requested order; and the key
    /// after which to continue, if there may be more.
    pub fn read_page(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        at: Seqno,
        reverse: bool,
        limit: usize,
    ) -> Result<(Vec<IndexHit>, Option<Vec<u8>>)> {
        if is_empty_range(from, to) {
            return Ok((Vec::new(), None));
        }
        self.with_repair(|| self.try_read_page(from, to, at, reverse, limit, keys::is_living))
    }

    fn try_read_page(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        at: Seqno,
        reverse: bool,
        limit: usize,
        wanted: fn(IndexValue) -> bool,
    ) -> LookupResult<(Vec<IndexHit>, Option<Vec<u8>>)> {
        // Each source gives the first keys of its part. Nothing is known beyond the nearest key at which a
        // source was cut.
        let mut found: Vec<(Vec<u8>, u64, IndexValue)> = Vec::new();
        let mut frontier: Option<Vec<u8>> = None;
        let mut cut = |key: &[u8]| {
            let nearer =
                frontier.as_deref().is_none_or(|known| if reverse { key > known } else { key < known });
            if nearer {
                frontier = Some(key.to_vec());
            }
        };
        let levels = self.levels();
        for memory in levels.memory() {
            let mut keys = KeyCounter::new(limit);
            memory.range(from, to, reverse, |key, seqno, value| match keys.count_key(key) {
                Ok(()) => {
                    if seqno <= at.0 {
                        found.push((key.to_vec(), seqno, value));
                    }
                    true
                }
                Err(last) => {
                    cut(last);
                    false
                }
            });
        }
        for table in levels.tables() {
            let mut keys = KeyCounter::new(limit);
            let mut each = |entry: IndexEntry| match keys.count_key(&entry.key) {
                Ok(()) => {
                    if entry.seqno <= at.0 {
                        found.push((entry.key, entry.seqno, entry.value));
                    }
                    true
                }
                Err(last) => {
                    cut(last);
                    false
                }
            };
            if reverse {
                for entry in table.scan_back(from, to) {
                    if !each(entry?) {
                        break;
                    }
                }
            } else {
                for entry in table.scan(from, to) {
                    if !each(entry?) {
                        break;
                    }
                }
            }
        }
        // A stable sort merges the sources, each of which is in order, in few comparisons. Of each key the
        // newest version comes first and stays.
        found.sort_by(|(key, seqno, _), (other, other_seqno, _)| {
            let by_key = if reverse { other.cmp(key) } else { key.cmp(other) };
            by_key.then_with(|| other_seqno.cmp(seqno))
        });
        found.dedup_by(|(key, ..), (kept, ..)| key == kept);
        let within = |key: &Vec<u8>| {
            frontier.as_ref().is_none_or(|frontier| if reverse { key >= frontier } else { key <= frontier })
        };
        let hits = found
            .into_iter()
            .filter(|(key, _, value)| wanted(*value) && within(key))
            .map(|(key, _, value)| IndexHit { key, value })
            .collect();
        Ok((hits, frontier))
    }

    /// All living keys with a prefix, in order.
    pub fn scan_prefix(&self, prefix: &[u8], at: Seqno) -> Result<Vec<IndexHit>> {
        let mut all = Vec::new();
        let end = prefix_end(prefix);
        let mut from = Bound::Included(prefix.to_vec());
        loop {
            let to = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let (hits, more) = self.read_page(bound_as_slice(&from), to, at, false, 4096)?;
            all.extend(hits);
            match more {
                Some(last) => from = Bound::Excluded(last),
                None => return Ok(all),
            }
        }
    }

    /// Up to about `limit` ended keys with a prefix, in order, and only those after `after` if it is given;
    /// and the key after which to continue, if there may be more.
    pub fn ended_keys(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<(Vec<IndexHit>, Option<Vec<u8>>)> {
        let end = prefix_end(prefix);
        let from = after.map_or(Bound::Included(prefix), Bound::Excluded);
        let to = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        if is_empty_range(from, to) {
            return Ok((Vec::new(), None));
        }
        let ended = |value| !keys::is_living(value);
        self.with_repair(|| self.try_read_page(from, to, Seqno(u64::MAX), false, limit, ended))
    }

    /// What `pick` makes of the newest versions of keys, living and ended, from `from` up to `end`, which is left
    /// out; `pick` sees at most `limit` keys, in order. Also returns the key at which to continue, if there may be
    /// more. Lends keys, so it costs less than [`Index::read_page`].
    pub fn pick_newest<T>(
        &self,
        from: &[u8],
        end: &[u8],
        limit: usize,
        mut pick: impl FnMut(&[u8], IndexValue) -> Option<T>,
    ) -> Result<(Vec<T>, Option<Vec<u8>>)> {
        self.with_repair(|| self.try_pick_newest(from, end, limit, &mut pick))
    }

    fn try_pick_newest<T>(
        &self,
        from: &[u8],
        end: &[u8],
        limit: usize,
        pick: &mut impl FnMut(&[u8], IndexValue) -> Option<T>,
    ) -> LookupResult<(Vec<T>, Option<Vec<u8>>)> {
        let levels = self.levels();
        let mut sources: Vec<Box<dyn MergeSource + '_>> = Vec::new();
        for memory in levels.memory() {
            sources.push(Box::new(MemtableSource::starting_at(memory.clone(), from)));
        }
        for table in levels.tables() {
            sources.push(Box::new(TableSource::starting_at(table, from)?));
        }
        let (mut picked, mut keys) = (Vec::new(), KeyCounter::new(limit));
        let mut next = None;
        let done = merge(sources, |key, _, value| {
            if key >= end {
                return Err(PickStop::Done);
            }
            // The newest version of a key comes first.
            if keys.seen > 0 && keys.last == key {
                return Ok(());
            }
            if keys.count_key(key).is_err() {
                next = Some(key.to_vec());
                return Err(PickStop::Done);
            }
            picked.extend(pick(key, value));
            Ok(())
        });
        match done {
            Err(PickStop::Failed(error)) => Err(error),
            Ok(()) | Err(PickStop::Done) => Ok((picked, next)),
        }
    }

    /// The last living key that has a prefix and is at most `to`.
    pub fn last_key(&self, prefix: &[u8], to: &[u8]) -> Result<Option<IndexHit>> {
        let mut upper = Bound::Included(to.to_vec());
        loop {
            let (hits, more) =
                self.read_page(Bound::Included(prefix), bound_as_slice(&upper), Seqno(u64::MAX), true, 16)?;
            if let Some(hit) = hits.into_iter().next() {
                return Ok(Some(hit));
            }
            match more {
                Some(last) => upper = Bound::Excluded(last),
                None => return Ok(None),
            }
        }
    }

    /// Bytes of all tables.
    pub fn table_bytes(&self) -> u64 {
        self.levels().tables().map(Table::file_len).sum()
    }
}

fn is_empty_range(from: Bound<&[u8]>, to: Bound<&[u8]>) -> bool {
    match (from, to) {
        (Bound::Included(a), Bound::Included(b)) => a > b,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Excluded(b))
        | (Bound::Excluded(a), Bound::Included(b)) => a >= b,
        _ => false,
    }
}

/// A bound on owned bytes as one on a slice.
pub fn bound_as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    match bound {
        Bound::Included(key) => Bound::Included(key),
        Bound::Excluded(key) => Bound::Excluded(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

/// The least key greater than all keys with this prefix; `None` if there is none.
pub fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradicting_bounds_are_an_empty_range() {
        use Bound::{Excluded, Included, Unbounded};
        let (a, b): (&[u8], &[u8]) = (b"a", b"b");
        for (from, to, empty) in [
            (Included(a), Included(a), false),
            (Included(a), Included(b), false),
            (Included(b), Included(a), true),
            (Included(a), Excluded(a), true),
            (Included(a), Excluded(b), false),
            (Included(b), Excluded(a), true),
            (Excluded(a), Included(a), true),
            (Excluded(a), Included(b), false),
            (Excluded(b), Included(a), true),
            (Excluded(a), Excluded(a), true),
            (Excluded(a), Excluded(b), false),
            (Unbounded, Included(a), false),
            (Unbounded, Excluded(a), false),
            (Included(b), Unbounded, false),
            (Excluded(b), Unbounded, false),
            (Unbounded, Unbounded, false),
        ] {
            assert_eq!(is_empty_range(from, to), empty, "{from:?} {to:?}");
        }
    }

    #[test]
    fn prefix_end_is_the_least_key_after_it() {
        let ends: [(&[u8], Option<&[u8]>); 6] = [
            (b"a", Some(b"b")),
            (b"", None),
            (&[255], None),
            (&[255, 255], None),
            (&[1, 255, 255], Some(&[2])),
            (&[1, 254, 255], Some(&[1, 255])),
        ];
        for (prefix, end) in ends {
            assert_eq!(prefix_end(prefix).as_deref(), end, "{prefix:?}");
        }
    }

    #[test]
    fn a_page_counts_keys_and_not_versions() {
        let mut keys = KeyCounter::new(2);
        for key in [&b""[..], b"", b"x", b"x"] {
            assert_eq!(keys.count_key(key), Ok(()));
        }
        assert_eq!(keys.count_key(b"y"), Err(&b"x"[..]));
        assert_eq!(keys.count_key(b"x"), Ok(()));
        assert_eq!(KeyCounter::new(0).count_key(b""), Err(&b""[..]));
    }

    /// Versions are in memory, in frozen memory and in two tables. Reads pages of every size, in both
    /// directions, as of every seqno.
    #[test]
    fn pages_give_newest_living_versions_from_all_levels() {
        use crate::kv::index::IndexLimits;
        use crate::kv::index::flush::TableLocation;
        use crate::kv::index::memtable::Memtable;
        use crate::kv::table::TableCoverage;
        use std::collections::BTreeMap;
        use std::sync::Arc;

        let io: Arc<dyn crate::io::Io> = Arc::new(crate::io::sim::SimIo::new(1));
        let limits = IndexLimits { memory_bytes: 1 << 20, read_mode: crate::io::ReadMode::Mapped };
        let paths = crate::log::paths::StorePaths::new(std::path::Path::new("s"));
        let index =
            Index::empty(&io, &paths, crate::ids::StoreId::default(), limits, &crate::testing::no_schema());
        // Each seqno writes one of twelve keys. Every fifth ends its key.
        let entry = |seqno: u64| {
            let kind = if seqno.is_multiple_of(5) { keys::ENDED } else { keys::AT_PLACE };
            let value = IndexValue { kind, a: seqno, b: 0, c: 0 };
            IndexEntry {
                key: keys::user(50, &[(seqno * seqno % 12) as u8 + seqno.is_multiple_of(7) as u8]),
                seqno,
                value,
            }
        };
        let memory = |seqnos: std::ops::Range<u64>| {
            let memory = Memtable::default();
            memory.insert(seqnos.map(entry));
            Arc::new(memory)
        };
        let covers = TableCoverage { segment: 1, offset: 96, seqno: 1 };
        let table = |seqnos| {
            index.try_flush_memory(covers, &[memory(seqnos)], &[], TableLocation::Memory, u64::MAX).unwrap()
        };
        let tables = [table(1..20), table(20..30)].concat();
        index.change_levels(|levels| {
            (levels.active, levels.frozen, levels.tables) = (memory(35..45), Some(memory(30..35)), tables);
        });
        for limit in [1, 2, 5, 100] {
            let newest: BTreeMap<Vec<u8>, u64> = (1..45).map(entry).map(|one| (one.key, one.seqno)).collect();
            let (mut seen, mut from) = (Vec::new(), keys::user(50, b""));
            loop {
                let pick = |key: &[u8], value: IndexValue| Some((key.to_vec(), value.a));
                let (picked, next) = index.pick_newest(&from, &keys::user(51, b""), limit, pick).unwrap();
                assert!(picked.len() <= limit);
                seen.extend(picked);
                let Some(next) = next else { break };
                from = next;
            }
            assert_eq!(seen, newest.into_iter().collect::<Vec<_>>(), "{limit} at a time");
        }
        for at in [0, 1, 19, 20, 29, 33, 36, 44, 99] {
            let mut newest: BTreeMap<Vec<u8>, IndexEntry> = BTreeMap::new();
            (1..45)
                .filter(|seqno| *seqno <= at)
                .map(entry)
                .for_each(|one| drop(newest.insert(one.key.clone(), one)));
            let living: Vec<u64> =
                newest.values().filter(|one| one.value.kind == keys::AT_PLACE).map(|one| one.seqno).collect();
            for (reverse, limit) in
                [1, 2, 3, 5, 100].into_iter().flat_map(|limit| [(false, limit), (true, limit)])
            {
                let (mut from, mut to) = (Bound::Unbounded, Bound::Unbounded);
                let mut seen = Vec::new();
                for _ in 0..50 {
                    let (hits, more) = index
                        .read_page(bound_as_slice(&from), bound_as_slice(&to), Seqno(at), reverse, limit)
                        .unwrap();
                    assert!(hits.len() <= 4 * limit);
                    seen.extend(hits.iter().map(|hit| hit.value.a));
                    let Some(last) = more else { break };
                    *(if reverse { &mut to } else { &mut from }) = Bound::Excluded(last);
                }
                if reverse {
                    seen.reverse();
                }
                assert_eq!(seen, living, "as of {at}, {limit} at a time, reverse: {reverse}");
            }
        }
    }
}
