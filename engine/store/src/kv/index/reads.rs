//! Finding keys in the levels: memory first, then tables from the newest to the oldest.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::Seqno;
use crate::kv::index::levels::Index;
use crate::kv::keys;
use crate::kv::table::{Entry, Table, TableError, Value};

type TableResult<T> = std::result::Result<T, TableError>;

/// One key of a scan, with its value.
#[derive(Debug, Clone)]
pub struct Hit {
    pub key: Vec<u8>,
    pub value: Value,
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

/// Counts the keys that one source contributes to a page.
struct Keys {
    last: Vec<u8>,
    seen: usize,
    limit: usize,
}

impl Keys {
    fn new(limit: usize) -> Self {
        Self { last: Vec::new(), seen: 0, limit }
    }

    /// Counts the next entry's key. Returns the last key as the error if the page already has all it needs
    /// before this one.
    fn count(&mut self, key: &[u8]) -> std::result::Result<(), &[u8]> {
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

impl Index {
    /// The newest version of a key at `at`.
    pub fn get(&self, key: &[u8], at: Seqno) -> Result<Option<(Seqno, Value)>> {
        self.mending(|| self.try_get(key, at))
    }

    fn try_get(&self, key: &[u8], at: Seqno) -> TableResult<Option<(Seqno, Value)>> {
        let levels = self.levels();
        for memory in levels.memory() {
            if let Some((seqno, value)) = memory.get(key, at.0) {
                return Ok(Some((Seqno(seqno), value)));
            }
        }
        if !keys::kept_in_tables(key) {
            return Ok(None);
        }
        for table in levels.tables() {
            if let Some((seqno, value)) = table.get(key, at.0)? {
                return Ok(Some((Seqno(seqno), value)));
            }
        }
        Ok(None)
    }

    /// The living newest value of a key of the engine's own keyspaces.
    pub fn newest(&self, key: &[u8]) -> Result<Option<Value>> {
        Ok(self.get(key, Seqno(u64::MAX))?.map(|(_, value)| value).filter(|value| value.kind != keys::ENDED))
    }

    /// All versions of a key up to `at`, newest first.
    pub fn versions(&self, key: &[u8], at: Seqno) -> Result<Vec<(Seqno, Value)>> {
        self.mending(|| self.try_versions(key, at))
    }

    fn try_versions(&self, key: &[u8], at: Seqno) -> TableResult<Vec<(Seqno, Value)>> {
        let mut found: Vec<(Seqno, Value)> = Vec::new();
        let levels = self.levels();
        for memory in levels.memory() {
            memory.versions(key, |seqno, value| found.push((Seqno(seqno), value)));
        }
        for table in levels.tables() {
            let versions = table.versions(key)?;
            found.extend(versions.into_iter().map(|(seqno, value)| (Seqno(seqno), value)));
        }
        found.retain(|(seqno, _)| *seqno <= at);
        found.sort_unstable_by_key(|(seqno, _)| std::cmp::Reverse(*seqno));
        found.dedup_by_key(|(seqno, _)| *seqno);
        Ok(found)
    }

    /// Up to about `limit` living keys between two bounds as of `at`, in the requested order; and the key
    /// after which to continue, if there may be more.
    pub fn page(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        at: Seqno,
        reverse: bool,
        limit: usize,
    ) -> Result<(Vec<Hit>, Option<Vec<u8>>)> {
        if is_empty_range(from, to) {
            return Ok((Vec::new(), None));
        }
        self.mending(|| self.try_page(from, to, at, reverse, limit, keys::is_living))
    }

    fn try_page(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        at: Seqno,
        reverse: bool,
        limit: usize,
        wanted: fn(Value) -> bool,
    ) -> TableResult<(Vec<Hit>, Option<Vec<u8>>)> {
        // Each source gives the first keys of its part. Nothing is known beyond the nearest key at which a
        // source was cut.
        let mut newest: BTreeMap<Vec<u8>, (u64, Value)> = BTreeMap::new();
        let mut frontier: Option<Vec<u8>> = None;
        let mut note = |key: &[u8], seqno: u64, value: Value| {
            if seqno > at.0 {
                return;
            }
            match newest.get_mut(key) {
                Some(kept) if kept.0 >= seqno => {}
                Some(kept) => *kept = (seqno, value),
                None => {
                    newest.insert(key.to_vec(), (seqno, value));
                }
            }
        };
        let mut cut = |key: &[u8]| {
            let nearer =
                frontier.as_deref().is_none_or(|known| if reverse { key > known } else { key < known });
            if nearer {
                frontier = Some(key.to_vec());
            }
        };
        let levels = self.levels();
        for memory in levels.memory() {
            let mut keys = Keys::new(limit);
            memory.range(from, to, reverse, |key, seqno, value| match keys.count(key) {
                Ok(()) => {
                    note(key, seqno, value);
                    true
                }
                Err(last) => {
                    cut(last);
                    false
                }
            });
        }
        for table in levels.tables() {
            let mut keys = Keys::new(limit);
            let mut each = |entry: &Entry| match keys.count(&entry.key) {
                Ok(()) => {
                    note(&entry.key, entry.seqno, entry.value);
                    true
                }
                Err(last) => {
                    cut(last);
                    false
                }
            };
            if reverse {
                for entry in table.scan_back(from, to) {
                    if !each(&entry?) {
                        break;
                    }
                }
            } else {
                for entry in table.scan(from, to) {
                    if !each(&entry?) {
                        break;
                    }
                }
            }
        }
        let within = |key: &Vec<u8>| {
            frontier.as_ref().is_none_or(|frontier| if reverse { key >= frontier } else { key <= frontier })
        };
        let mut hits: Vec<Hit> = newest
            .into_iter()
            .filter(|(key, (_, value))| wanted(*value) && within(key))
            .map(|(key, (_, value))| Hit { key, value })
            .collect();
        if reverse {
            hits.reverse();
        }
        Ok((hits, frontier))
    }

    /// All living keys with a prefix, in order.
    pub fn prefix(&self, prefix: &[u8], at: Seqno) -> Result<Vec<Hit>> {
        let mut all = Vec::new();
        let end = prefix_end(prefix);
        let mut from = Bound::Included(prefix.to_vec());
        loop {
            let to = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let (hits, more) = self.page(as_slice(&from), to, at, false, 4096)?;
            all.extend(hits);
            match more {
                Some(last) => from = Bound::Excluded(last),
                None => return Ok(all),
            }
        }
    }

    /// Up to about `limit` ended keys with a prefix, in order, and only those after `after` if it is given;
    /// and the key after which to continue, if there may be more.
    pub fn ended(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<(Vec<Hit>, Option<Vec<u8>>)> {
        let end = prefix_end(prefix);
        let from = after.map_or(Bound::Included(prefix), Bound::Excluded);
        let to = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        if is_empty_range(from, to) {
            return Ok((Vec::new(), None));
        }
        let ended = |value| !keys::is_living(value);
        self.mending(|| self.try_page(from, to, Seqno(u64::MAX), false, limit, ended))
    }

    /// The last living key that has a prefix and is at most `to`.
    pub fn last(&self, prefix: &[u8], to: &[u8]) -> Result<Option<Hit>> {
        let mut upper = Bound::Included(to.to_vec());
        loop {
            let (hits, more) =
                self.page(Bound::Included(prefix), as_slice(&upper), Seqno(u64::MAX), true, 16)?;
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
pub fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
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
    fn bounds_that_exclude_each_other_leave_nothing() {
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
    fn the_end_of_a_prefix_is_the_least_key_past_it() {
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
        let mut keys = Keys::new(2);
        for key in [&b""[..], b"", b"x", b"x"] {
            assert_eq!(keys.count(key), Ok(()));
        }
        assert_eq!(keys.count(b"y"), Err(&b"x"[..]));
        assert_eq!(keys.count(b"x"), Ok(()));
        assert_eq!(Keys::new(0).count(b""), Err(&b""[..]));
    }

    /// Versions are in memory, in frozen memory and in two tables. Reads pages of every size, in both
    /// directions, as of every seqno.
    #[test]
    fn pages_give_the_newest_living_version_of_each_key_wherever_it_stands() {
        use crate::kv::index::Limits;
        use crate::kv::index::flush::Kept;
        use crate::kv::index::memtable::Memtable;
        use crate::kv::table::Covers;
        use std::sync::Arc;

        let io: Arc<dyn crate::io::Io> = Arc::new(crate::io::sim::SimIo::new(1));
        let limits = Limits { memory_bytes: 1 << 20, read_mode: crate::io::ReadMode::Mapped };
        let paths = crate::log::paths::Paths::new(std::path::Path::new("s"));
        let index =
            Index::empty(&io, &paths, crate::ids::StoreId::default(), limits, &crate::testing::no_schema());
        // Each seqno writes one of twelve keys. Every fifth ends its key.
        let entry = |seqno: u64| {
            let kind = if seqno.is_multiple_of(5) { keys::ENDED } else { keys::AT };
            let value = Value { kind, a: seqno, b: 0, c: 0 };
            Entry {
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
        let covers = Covers { segment: 1, offset: 96, seqno: 1 };
        let table = |seqnos| index.written(covers, &[memory(seqnos)], &[], Kept::Memory).unwrap();
        let tables = [table(1..20), table(20..30)].concat();
        index.change_levels(|levels| {
            (levels.active, levels.frozen, levels.tables) = (memory(35..45), Some(memory(30..35)), tables);
        });
        for at in [0, 1, 19, 20, 29, 33, 36, 44, 99] {
            let mut newest: BTreeMap<Vec<u8>, Entry> = BTreeMap::new();
            (1..45)
                .filter(|seqno| *seqno <= at)
                .map(entry)
                .for_each(|one| drop(newest.insert(one.key.clone(), one)));
            let living: Vec<u64> =
                newest.values().filter(|one| one.value.kind == keys::AT).map(|one| one.seqno).collect();
            for (reverse, limit) in
                [1, 2, 3, 5, 100].into_iter().flat_map(|limit| [(false, limit), (true, limit)])
            {
                let (mut from, mut to) = (Bound::Unbounded, Bound::Unbounded);
                let mut seen = Vec::new();
                for _ in 0..50 {
                    let (hits, more) =
                        index.page(as_slice(&from), as_slice(&to), Seqno(at), reverse, limit).unwrap();
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
