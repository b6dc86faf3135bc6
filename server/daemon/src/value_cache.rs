//! A cache of the values of keys, so that most reads need no lookup in the store. One cache serves all namespaces
//! of a daemon: its limit does not grow with their number, and the values of an idle namespace are evicted.
//!
//! Invariant: the cache has only durable values, as they are in the store. A change of a key updates the
//! cache before any other reader can look; [`super::databases`] does both under its lock.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::quality::RandomState;
use quick_cache::sync::Cache;
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

/// A key in the cache: the number of its namespace, and the key there.
type CachedKey = (u64, DatabaseKey);

/// The cache of all namespaces of a daemon.
#[derive(Debug)]
pub(super) struct SharedValues {
    values: Arc<Cache<CachedKey, KeyEntry, EntryWeighter, RandomState>>,
    /// The number of the next namespace.
    next: AtomicU64,
}

/// The values of one namespace in the cache.
#[derive(Debug)]
pub(super) struct ValueCache {
    values: Arc<Cache<CachedKey, KeyEntry, EntryWeighter, RandomState>>,
    namespace: u64,
}

/// Computes the size of a cached value.
#[derive(Debug, Clone)]
struct EntryWeighter;

impl Weighter<CachedKey, KeyEntry> for EntryWeighter {
    fn weight(&self, (_, key): &CachedKey, entry: &KeyEntry) -> u64 {
        (key.1.len() + entry.value.len() + OVERHEAD_BYTES) as u64
    }
}

/// A borrowed key.
struct BorrowedKey<'a>(u64, (u8, &'a [u8]));

impl Hash for BorrowedKey<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.0, self.1).hash(state);
    }
}

impl Equivalent<CachedKey> for BorrowedKey<'_> {
    fn equivalent(&self, (namespace, key): &CachedKey) -> bool {
        (self.0, self.1) == (*namespace, (key.0, key.1.as_slice()))
    }
}

impl Default for SharedValues {
    fn default() -> Self {
        Self::with_room(BYTES_MAX)
    }
}

impl SharedValues {
    fn with_room(bytes: u64) -> Self {
        let hasher = RandomState::default();
        let values = Cache::with(VALUES_EXPECTED, bytes, EntryWeighter, hasher, Default::default());
        Self { values: Arc::new(values), next: AtomicU64::new(0) }
    }

    /// The part of a namespace that is opened now. No other part shares its keys.
    pub(super) fn open_namespace(&self) -> ValueCache {
        let namespace = self.next.fetch_add(1, Ordering::Relaxed);
        ValueCache { values: self.values.clone(), namespace }
    }
}

impl ValueCache {
    /// The value of a key, if it is cached.
    pub(super) fn get(&self, database: u8, key: &[u8]) -> Option<KeyEntry> {
        self.values.get(&BorrowedKey(self.namespace, (database, key)))
    }

    /// Sets the value of a key; `None` if it was deleted.
    pub(super) fn put(&self, key: DatabaseKey, entry: Option<KeyEntry>) {
        match entry {
            // Only a writer needs the blob's place in the store.
            Some(entry) if entry.value.len() <= VALUE_BYTES_MAX => {
                self.values.insert((self.namespace, key), KeyEntry { stored: None, ..entry });
            }
            _ => self.forget(&key),
        }
    }

    /// Removes a key from the cache.
    pub(super) fn forget(&self, key: &DatabaseKey) {
        self.values.remove(&BorrowedKey(self.namespace, (key.0, &key.1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(bytes: usize) -> Option<KeyEntry> {
        Some(KeyEntry { value: Arc::new(vec![7; bytes]), stored: None, deadline: Some(5) })
    }

    #[test]
    fn cache_holds_latest_value_and_no_long_values() {
        let values = SharedValues::default().open_namespace();
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
        let room = 1000 * (1000 + 4 + OVERHEAD_BYTES as u64);
        let shared = SharedValues::with_room(room);
        let values = shared.open_namespace();
        for number in 0..10_000u32 {
            values.put((0, number.to_le_bytes().to_vec()), entry(1000));
        }
        let kept = (0..10_000u32).filter(|number| values.get(0, &number.to_le_bytes()).is_some()).count();
        assert!((400..=1000).contains(&kept), "{kept}");
    }

    /// Regression: each namespace had a cache of 128 MiB of its own, which nothing emptied. A daemon with 100
    /// namespaces could hold 12 GiB.
    #[test]
    fn namespaces_share_one_limit_and_no_values() {
        let room = 1000 * (1000 + 4 + OVERHEAD_BYTES as u64);
        let shared = SharedValues::with_room(room);
        let parts: Vec<ValueCache> = (0..10).map(|_| shared.open_namespace()).collect();
        let keys: Vec<[u8; 4]> = (0..1000u32).map(u32::to_le_bytes).collect();
        parts[0].put((0, b"mine".to_vec()), entry(1000));
        assert!(parts[1].get(0, b"mine").is_none());
        for part in &parts {
            keys.iter().for_each(|key| part.put((0, key.to_vec()), entry(1000)));
        }
        let kept = |part: &ValueCache| keys.iter().filter(|key| part.get(0, *key).is_some()).count();
        let all: usize = parts.iter().map(kept).sum();
        assert!((400..=1000).contains(&all), "{all}");
    }
}
