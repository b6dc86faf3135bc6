//! A cache of the values of keys, so that most reads need no lookup in the store. One cache serves all namespaces
//! of a daemon: its limit does not grow with their number, and the values of an idle namespace are evicted.
//!
//! Invariant: the cache has only durable values, as they are in the store. A change of a key updates the
//! cache before any other reader can look; [`super::databases`] does both under its lock.

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::quality::RandomState;
use quick_cache::unsync::Cache;
use quick_cache::{Equivalent, Weighter};

use annals_wire::resp::SharedBytes;

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

/// A [`KeyEntry`] without the blob's place in the store, which only a writer needs.
#[derive(Debug, Clone)]
struct CachedValue {
    value: SharedBytes,
    deadline: Option<u64>,
}

type Values = Cache<CachedKey, CachedValue, EntryWeighter, RandomState>;

/// The cache of all namespaces of a daemon.
#[derive(Debug)]
pub(super) struct SharedValues {
    /// One lock, which a batch takes once: with a lock for each key the processor could not fetch the keys of a
    /// batch side by side.
    values: Arc<Mutex<Values>>,
    /// The number of the next namespace.
    next: AtomicU64,
}

/// The values of one namespace in the cache.
#[derive(Debug)]
pub(super) struct ValueCache {
    values: Arc<Mutex<Values>>,
    namespace: u64,
}

/// The values of one namespace, to be changed: others wait.
pub(super) struct CacheUpdate<'a> {
    values: MutexGuard<'a, Values>,
    namespace: u64,
}

/// Computes the size of a cached value.
#[derive(Debug, Clone)]
struct EntryWeighter;

impl Weighter<CachedKey, CachedValue> for EntryWeighter {
    fn weight(&self, (_, key): &CachedKey, cached: &CachedValue) -> u64 {
        (key.1.len() + cached.value.len() + OVERHEAD_BYTES) as u64
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
        Self { values: Arc::new(Mutex::new(values)), next: AtomicU64::new(0) }
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
        let values = self.lock();
        let CachedValue { value, deadline } = values.get(&BorrowedKey(self.namespace, (database, key)))?;
        Some(KeyEntry { value: value.clone(), stored: None, deadline: *deadline })
    }

    /// Whether the value of a key is cached.
    pub(super) fn contains(&self, database: u8, key: &[u8]) -> bool {
        self.lock().contains_key(&BorrowedKey(self.namespace, (database, key)))
    }

    /// Takes the lock, to change several values.
    pub(super) fn update(&self) -> CacheUpdate<'_> {
        CacheUpdate { values: self.lock(), namespace: self.namespace }
    }

    /// Sets the value of a key; `None` if it was deleted.
    pub(super) fn put(&self, key: DatabaseKey, entry: Option<KeyEntry>) {
        self.update().put(key, entry);
    }

    /// Removes a key from the cache.
    pub(super) fn forget(&self, key: &DatabaseKey) {
        self.update().forget(key);
    }

    fn lock(&self) -> MutexGuard<'_, Values> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CacheUpdate<'_> {
    /// Brings these keys and their values nearer to the processor. They are all over memory, so one after the other
    /// would be waited for; here the processor fetches several at once.
    pub(super) fn fetch<'k>(&self, keys: impl Iterator<Item = &'k DatabaseKey>) {
        let bytes = keys.map(|key| {
            let found = self.values.peek(&BorrowedKey(self.namespace, (key.0, &key.1)));
            found.and_then(|cached| cached.value.first()).map_or(0, |byte| usize::from(*byte))
        });
        std::hint::black_box(bytes.sum::<usize>());
    }

    /// As [`ValueCache::put`].
    pub(super) fn put(&mut self, key: DatabaseKey, entry: Option<KeyEntry>) {
        match entry {
            Some(KeyEntry { value, deadline, .. }) if value.len() <= VALUE_BYTES_MAX => {
                self.values.insert((self.namespace, key), CachedValue { value, deadline });
            }
            _ => self.forget(&key),
        }
    }

    /// As [`ValueCache::forget`].
    pub(super) fn forget(&mut self, key: &DatabaseKey) {
        self.values.remove(&BorrowedKey(self.namespace, (key.0, &key.1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::databases::database_key;

    fn entry(bytes: usize) -> Option<KeyEntry> {
        Some(KeyEntry { value: vec![7; bytes].into(), stored: None, deadline: Some(5) })
    }

    #[test]
    fn cache_holds_latest_value_and_no_long_values() {
        let values = SharedValues::default().open_namespace();
        let len = |values: &ValueCache, database| values.get(database, b"a").map(|entry| entry.value.len());
        values.put(database_key(1, b"a"), entry(10));
        assert_eq!((len(&values, 1), len(&values, 0)), (Some(10), None));
        values.put(database_key(1, b"a"), entry(VALUE_BYTES_MAX));
        assert_eq!(len(&values, 1), Some(VALUE_BYTES_MAX));
        assert_eq!(values.get(1, b"a").unwrap().deadline, Some(5));
        values.put(database_key(1, b"a"), entry(VALUE_BYTES_MAX + 1));
        assert_eq!(len(&values, 1), None);
        values.put(database_key(1, b"a"), entry(10));
        values.put(database_key(1, b"a"), None);
        assert_eq!(len(&values, 1), None);
    }

    #[test]
    fn cache_evicts_beyond_its_byte_limit() {
        let room = 1000 * (1000 + 4 + OVERHEAD_BYTES as u64);
        let shared = SharedValues::with_room(room);
        let values = shared.open_namespace();
        for number in 0..10_000u32 {
            values.put(database_key(0, &number.to_le_bytes()), entry(1000));
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
        parts[0].put(database_key(0, b"mine"), entry(1000));
        assert!(parts[1].get(0, b"mine").is_none());
        for part in &parts {
            keys.iter().for_each(|key| part.put(database_key(0, key), entry(1000)));
        }
        let kept = |part: &ValueCache| keys.iter().filter(|key| part.get(0, *key).is_some()).count();
        let all: usize = parts.iter().map(kept).sum();
        assert!((400..=1000).contains(&all), "{all}");
    }
}
