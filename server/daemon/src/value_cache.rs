//! A cache of the values of keys, so that most reads need no lookup in the store.
//!
//! Invariant: the cache has only durable values, as they are in the store. A change of a key updates the
//! cache before any other reader can look; [`super::databases`] does both under its lock.

use std::hash::{Hash, Hasher};

use foldhash::quality::RandomState;
use quick_cache::unsync::Cache;
use quick_cache::{Equivalent, Weighter};

use super::databases::{DatabaseKey, KeyEntry};

/// Approximate maximum size of all values, in bytes.
const BYTES_MAX: u64 = 128 << 20;
/// A longer value is read from the store each time; sending it costs more than reading it.
const VALUE_BYTES_MAX: usize = 64 << 10;
/// Approximate overhead of a value besides its bytes and its key's.
const OVERHEAD_BYTES: usize = 160;
/// Approximate number of values if all are small.
const VALUES_EXPECTED: usize = 1 << 16;

/// The cache of values.
#[derive(Debug)]
pub(super) struct ValueCache(Cache<DatabaseKey, KeyEntry, EntryWeighter, RandomState>);

/// Computes the size of a cached value.
#[derive(Debug, Clone)]
struct EntryWeighter;

impl Weighter<DatabaseKey, KeyEntry> for EntryWeighter {
    fn weight(&self, key: &DatabaseKey, entry: &KeyEntry) -> u64 {
        (key.1.len() + entry.value.len() + OVERHEAD_BYTES) as u64
    }
}

/// A borrowed key.
struct BorrowedKey<'a>(u8, &'a [u8]);

impl Hash for BorrowedKey<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.0, self.1).hash(state);
    }
}

impl Equivalent<DatabaseKey> for BorrowedKey<'_> {
    fn equivalent(&self, key: &DatabaseKey) -> bool {
        (self.0, self.1) == (key.0, key.1.as_slice())
    }
}

impl ValueCache {
    pub(super) fn new() -> Self {
        Self::with_room(BYTES_MAX)
    }

    fn with_room(bytes: u64) -> Self {
        Self(Cache::with(VALUES_EXPECTED, bytes, EntryWeighter, RandomState::default(), Default::default()))
    }

    /// The value of a key, if it is cached.
    pub(super) fn get(&self, database: u8, key: &[u8]) -> Option<KeyEntry> {
        self.0.get(&BorrowedKey(database, key)).cloned()
    }

    /// Sets the value of a key; `None` if it was deleted.
    pub(super) fn put(&mut self, key: DatabaseKey, entry: Option<KeyEntry>) {
        match entry {
            // Only a writer needs the blob's place in the store.
            Some(entry) if entry.value.len() <= VALUE_BYTES_MAX => {
                self.0.insert(key, KeyEntry { stored: None, ..entry });
            }
            _ => self.forget(&key),
        }
    }

    /// Removes a key from the cache.
    pub(super) fn forget(&mut self, key: &DatabaseKey) {
        self.0.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn entry(bytes: usize) -> Option<KeyEntry> {
        Some(KeyEntry { value: Arc::new(vec![7; bytes]), stored: None, deadline: Some(5) })
    }

    #[test]
    fn cache_holds_latest_value_and_no_long_values() {
        let mut values = ValueCache::new();
        let len = |values: &ValueCache, database| values.get(database, b"a").map(|entry| entry.value.len());
        values.put((1, b"a".to_vec()), entry(10));
        assert_eq!((len(&values, 1), len(&values, 0)), (Some(10), None));
        values.put((1, b"a".to_vec()), entry(VALUE_BYTES_MAX));
        assert_eq!(len(&values, 1), Some(VALUE_BYTES_MAX));
        assert_eq!(values.get(1, b"a").unwrap().deadline, Some(5));
        values.put((1, b"a".to_vec()), entry(VALUE_BYTES_MAX + 1));
        assert_eq!(len(&values, 1), None);
        values.put((1, b"a".to_vec()), entry(10));
        values.put((1, b"a".to_vec()), None);
        assert_eq!(len(&values, 1), None);
    }

    #[test]
    fn cache_evicts_beyond_its_byte_limit() {
        let room = 100 * (1000 + 4 + OVERHEAD_BYTES as u64);
        let mut values = ValueCache::with_room(room);
        for number in 0..1000u32 {
            values.put((0, number.to_le_bytes().to_vec()), entry(1000));
        }
        let kept = (0..1000u32).filter(|number| values.get(0, &number.to_le_bytes()).is_some()).count();
        assert!((50..=100).contains(&kept), "{kept}");
    }
}
