//! The index of deadlines of a namespace: what ends when, in the order of time, so that a sweep reads only what is over.
//!
//! It is the keyspace `annals.expiry`. An entry has the key *kind, milliseconds, id* and no value. It is written and
//! deleted in the commit that sets or removes what it points to. It is a hint: what it points to decides whether it is
//! over, so a sweep deletes an entry that points to nothing.
//!
//! Stores of earlier versions have deadlines that are not in the index. A kind is *complete* once somebody has added
//! those; until then its sweep must look at everything.

use std::ops::{Bound, Range};

use crate::error::Result;
use crate::log::queue::Durability;
use crate::store::Namespace;
use annals_store::kv::{History, KEY_BYTES_MAX, Keyspace, KvBatch, ScanRange};

/// The keyspace. Names that start with `annals.` are reserved.
const KEYSPACE: &str = "annals.expiry";
/// Bytes of an entry's key before the id: the kind and the time.
const FRONT_BYTES: usize = 9;
/// Where the time is in an entry's key.
const TIME: Range<usize> = 1..FRONT_BYTES;
/// Deadlines that are copied in one commit.
const COPIED_AT_ONCE: usize = 4096;

/// What ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum DeadlineKind {
    /// A key of a daemon's database: the id is its key in `annals.deadlines`, the number of the database and the key.
    Key = 1,
    /// An entry in memory with a time to live: the id is its key in `annals.memory`.
    Memory = 2,
    /// A cached answer: the id is its key in `annals.answers`.
    Answer = 3,
}

impl DeadlineKind {
    /// The keyspace whose keys are the ids.
    pub(crate) fn keyspace(self) -> &'static str {
        match self {
            Self::Key => "annals.deadlines",
            Self::Memory => "annals.memory",
            Self::Answer => "annals.answers",
        }
    }
}

/// An entry of the index.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline {
    /// Milliseconds since 1970-01-01 UTC.
    pub ms: u64,
    /// What ends then.
    pub id: Vec<u8>,
}

/// The index of deadlines of a namespace.
#[derive(Debug, Clone)]
pub struct DeadlineIndex {
    keyspace: Keyspace,
}

/// Keys of a keyspace that are equal but for the bytes in `free`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyPattern {
    space: u32,
    key: Vec<u8>,
    free: Range<usize>,
}

impl KeyPattern {
    /// Whether a key of a keyspace is one of these.
    pub(crate) fn matches(&self, space: u32, key: &[u8]) -> bool {
        let Range { start, end } = self.free;
        let is_equal =
            |of: &[u8], with: &[u8]| of.get(..start) == with.get(..start) && of.get(end..) == with.get(end..);
        space == self.space && key.len() == self.key.len() && is_equal(key, &self.key)
    }
}

impl Namespace {
    /// The index of deadlines; it is created if there is none.
    ///
    /// # Errors
    /// Those of [`Namespace::keyspace`].
    pub fn deadlines(&self) -> Result<DeadlineIndex> {
        Ok(DeadlineIndex { keyspace: self.keyspace(KEYSPACE, History::Latest)? })
    }

    /// The index of deadlines, if there is one.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn find_deadlines(&self) -> Result<Option<DeadlineIndex>> {
        Ok(self.find_keyspace(KEYSPACE)?.map(|keyspace| DeadlineIndex { keyspace }))
    }

    /// Whether a sweep of a kind at `now_ms`, milliseconds since 1970-01-01 UTC, has something to do.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn has_due(&self, kind: DeadlineKind, now_ms: u64) -> Result<bool> {
        let Some(owners) = self.find_keyspace(kind.keyspace())? else { return Ok(false) };
        match self.find_deadlines()? {
            Some(index) if index.is_complete(kind)? => Ok(!index.due(kind, now_ms, None, 1)?.is_empty()),
            _ => Ok(owners.scan(ScanRange::all()).keys().next().is_some()),
        }
    }

    /// The index with all deadlines of a kind. In a store of an earlier version the first call copies those that it lacks;
    /// `deadline_of` reads them from the values of the kind's keyspace.
    ///
    /// # Errors
    /// Those of `deadline_of`; `Invalid` in a store that is open for reading; `Damaged`, `Unavailable`, `Poisoned`.
    pub fn complete_deadlines(
        &self,
        kind: DeadlineKind,
        deadline_of: impl Fn(&[u8]) -> Result<Option<u64>>,
    ) -> Result<DeadlineIndex> {
        self.store.check_writer()?;
        let index = self.deadlines()?;
        if index.is_complete(kind)? {
            return Ok(index);
        }
        let (mut batch, mut in_batch) = (self.batch(), 0);
        if let Some(owners) = self.find_keyspace(kind.keyspace())? {
            for found in owners.scan(ScanRange::all()) {
                let (id, value) = found?;
                // What changes meanwhile leaves an entry that is outdated, which a sweep deletes.
                let Some(ms) = deadline_of(&value)? else { continue };
                index.add(&mut batch, kind, ms, &id);
                in_batch += 1;
                if in_batch == COPIED_AT_ONCE {
                    let copied = std::mem::replace(&mut batch, self.batch());
                    copied.submit_with(Durability::Process)?.wait()?;
                    in_batch = 0;
                }
            }
        }
        // After the entries in the log: a crash cannot keep only this.
        batch.put(&index.keyspace, &[kind as u8], Vec::new());
        batch.submit_with(Durability::Process)?.wait()?;
        Ok(index)
    }
}

impl DeadlineIndex {
    /// The key of an entry; `None` if the id is too long for one. What has such an id is not swept.
    fn entry_key(kind: DeadlineKind, ms: u64, id: &[u8]) -> Option<Vec<u8>> {
        if id.len() > KEY_BYTES_MAX - FRONT_BYTES {
            return None;
        }
        let mut key = Vec::with_capacity(FRONT_BYTES + id.len());
        key.push(kind as u8);
        key.extend_from_slice(&ms.to_be_bytes());
        key.extend_from_slice(id);
        Some(key)
    }

    /// Adds to a batch that something ends at `ms`, milliseconds since 1970-01-01 UTC.
    pub fn add(&self, batch: &mut KvBatch, kind: DeadlineKind, ms: u64, id: &[u8]) {
        if let Some(key) = Self::entry_key(kind, ms, id) {
            batch.put(&self.keyspace, &key, Vec::new());
        }
    }

    /// Adds to a batch that something does not end at `ms` any more.
    pub fn remove(&self, batch: &mut KvBatch, kind: DeadlineKind, ms: u64, id: &[u8]) {
        if let Some(key) = Self::entry_key(kind, ms, id) {
            batch.delete(&self.keyspace, &key);
        }
    }

    /// What ends at `now_ms` or earlier, in the order of time: at most `most` entries after `after`.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn due(
        &self,
        kind: DeadlineKind,
        now_ms: u64,
        after: Option<&Deadline>,
        most: usize,
    ) -> Result<Vec<Deadline>> {
        let first = [kind as u8];
        let start = after.and_then(|after| Self::entry_key(kind, after.ms, &after.id));
        let start = start.as_deref().map_or(Bound::Included(first.as_slice()), Bound::Excluded);
        let end = match now_ms.checked_add(1).and_then(|next| Self::entry_key(kind, next, b"")) {
            Some(next) => next,
            None => vec![kind as u8 + 1],
        };
        let range = ScanRange::between(start, Bound::Excluded(&end));
        let mut found = Vec::new();
        for key in self.keyspace.scan(range).keys() {
            let key = key?;
            // A key without a time marks a complete kind.
            let Some(ms) = key.get(TIME).and_then(|ms| <[u8; 8]>::try_from(ms).ok()) else { continue };
            let id = key.get(FRONT_BYTES..).unwrap_or_default().to_vec();
            found.push(Deadline { ms: u64::from_be_bytes(ms), id });
            if found.len() >= most {
                break;
            }
        }
        Ok(found)
    }

    /// Whether every deadline of a kind is in the index.
    fn is_complete(&self, kind: DeadlineKind) -> Result<bool> {
        // The mark is the first key of its kind. A key is read from the index; a value would be read from the log.
        let first = self.keyspace.scan(ScanRange::prefix(&[kind as u8])).keys().next().transpose()?;
        Ok(first.is_some_and(|key| key.len() == 1))
    }

    /// Adds to a batch that some things do not end any more: those of a kind whose ids `is_gone` accepts. Returns how
    /// many entries that are. Reads all entries of the kind.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn remove_all(
        &self,
        batch: &mut KvBatch,
        kind: DeadlineKind,
        is_gone: impl Fn(&[u8]) -> bool,
    ) -> Result<u64> {
        let mut removed = 0;
        for key in self.keyspace.scan(ScanRange::prefix(&[kind as u8])).keys() {
            let key = key?;
            if key.get(FRONT_BYTES..).is_some_and(&is_gone) {
                batch.delete(&self.keyspace, &key);
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// All entries that something ever had; `None` if its id is too long to have any.
    pub(crate) fn pattern(&self, kind: DeadlineKind, id: &[u8]) -> Option<KeyPattern> {
        let key = Self::entry_key(kind, 0, id)?;
        Some(KeyPattern { space: self.keyspace.id(), key, free: TIME })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, Store, io::sim::SimIo};
    use std::sync::Arc;

    #[test]
    fn due_entries_come_in_order_of_time_and_kinds_are_apart() {
        let io = Arc::new(SimIo::new(1));
        let store = Store::open_with("/s", Options { io, ..Options::default() }).unwrap();
        let space = store.namespace("n").unwrap();
        assert!(space.find_deadlines().unwrap().is_none());
        let index = space.deadlines().unwrap();
        let mut batch = space.batch();
        for (kind, ms, id) in [
            (DeadlineKind::Key, 300, "c"),
            (DeadlineKind::Key, 5, "a"),
            (DeadlineKind::Key, 5, "b"),
            (DeadlineKind::Key, u64::MAX, "never"),
            (DeadlineKind::Memory, 1, "m"),
        ] {
            index.add(&mut batch, kind, ms, id.as_bytes());
        }
        batch.commit().unwrap();
        let index = space.find_deadlines().unwrap().unwrap();
        let due = |kind, now, after: Option<&Deadline>, most| {
            let found = index.due(kind, now, after, most).unwrap();
            found.into_iter().map(|one| (one.ms, String::from_utf8(one.id).unwrap())).collect::<Vec<_>>()
        };
        let entry = |ms, id: &str| (ms, id.to_owned());
        assert_eq!(due(DeadlineKind::Key, 4, None, 9), []);
        assert_eq!(due(DeadlineKind::Key, 5, None, 9), [entry(5, "a"), entry(5, "b")]);
        assert_eq!(due(DeadlineKind::Key, 299, None, 1), [entry(5, "a")]);
        let first = Deadline { ms: 5, id: b"a".to_vec() };
        assert_eq!(due(DeadlineKind::Key, 300, Some(&first), 9), [entry(5, "b"), entry(300, "c")]);
        assert_eq!(due(DeadlineKind::Key, u64::MAX, Some(&first), 9).last(), Some(&entry(u64::MAX, "never")));
        assert_eq!(due(DeadlineKind::Memory, u64::MAX, None, 9), [entry(1, "m")]);
        assert_eq!(due(DeadlineKind::Answer, u64::MAX, None, 9), []);
        let mut batch = space.batch();
        index.remove(&mut batch, DeadlineKind::Key, 5, b"a");
        // An id that leaves no room for the time is not indexed.
        index.add(&mut batch, DeadlineKind::Key, 5, &vec![1; KEY_BYTES_MAX]);
        batch.commit().unwrap();
        assert_eq!(due(DeadlineKind::Key, 5, None, 9), [entry(5, "b")]);
    }

    #[test]
    fn deadlines_that_the_index_lacks_are_copied_once() {
        let io = Arc::new(SimIo::new(1));
        let store = Store::open_with("/s", Options { io, ..Options::default() }).unwrap();
        let space = store.namespace("n").unwrap();
        let kind = DeadlineKind::Answer;
        assert!(!space.has_due(kind, u64::MAX).unwrap(), "there is nothing that ends");
        let owners = space.keyspace(kind.keyspace(), History::Latest).unwrap();
        for number in 0..3 * COPIED_AT_ONCE as u64 / 2 {
            let mut batch = space.batch();
            batch.put(&owners, &number.to_be_bytes(), number.to_le_bytes().to_vec());
            batch.submit_with(Durability::Process).unwrap().wait().unwrap();
        }
        assert!(space.has_due(kind, 0).unwrap(), "nobody has looked");
        let copies = || {
            let deadline_of = |value: &[u8]| {
                let number = u64::from_le_bytes(value.try_into().unwrap());
                Ok((number % 2 == 1).then_some(number))
            };
            let index = space.complete_deadlines(kind, deadline_of).unwrap();
            index.due(kind, u64::MAX, None, usize::MAX).unwrap()
        };
        let copied = copies();
        assert_eq!(copied.len(), 3 * COPIED_AT_ONCE / 4);
        assert!(copied.iter().all(|one| one.ms % 2 == 1 && one.id == one.ms.to_be_bytes()));
        owners.put(&9u64.to_be_bytes(), 11u64.to_le_bytes().to_vec()).unwrap();
        assert_eq!(copies(), copied, "it is not read again");
        assert_eq!((space.has_due(kind, 0).unwrap(), space.has_due(kind, 1).unwrap()), (false, true));
    }
}
