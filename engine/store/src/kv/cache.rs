//! A bounded cache of values that can be made again: decoded groups, records, recipes.
//!
//! Invariants: the cache holds at most `bytes_max` bytes, as the callers of `put` count them, or a single
//! larger value. A lookup and the choice of a victim take constant time. Eviction is CLOCK (Corbató 1968): a
//! hand goes round, and a value that was used since the hand last passed is skipped once.

use std::collections::HashMap;
use std::hash::Hash;

use crate::log::segments::lock;
use crate::sync::{Mutex, rank};

/// See the module. Values must be cheap to clone.
#[derive(Debug)]
pub struct ClockCache<K, V> {
    bytes_max: usize,
    state: Mutex<ClockState<K, V>, { rank::CACHE }>,
}

#[derive(Debug)]
struct ClockState<K, V> {
    places: HashMap<K, usize>,
    /// One for each key in `places`, in no order.
    slots: Vec<ClockSlot<K, V>>,
    hand: usize,
    bytes: usize,
}

#[derive(Debug)]
struct ClockSlot<K, V> {
    key: K,
    value: V,
    bytes: usize,
    used: bool,
}

impl<K, V> Default for ClockState<K, V> {
    fn default() -> Self {
        Self { places: HashMap::new(), slots: Vec::new(), hand: 0, bytes: 0 }
    }
}

impl<K: Hash + Eq + Clone, V: Clone> ClockCache<K, V> {
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, state: Mutex::default() }
    }

    pub fn get(&self, key: &K) -> Option<V> {
        let mut held = lock(&self.state);
        let place = *held.places.get(key)?;
        let slot = held.slots.get_mut(place)?;
        slot.used = true;
        Some(slot.value.clone())
    }

    /// Stores a value of about `bytes` bytes, in place of an earlier value of its key.
    pub fn put(&self, key: K, value: V, bytes: usize) {
        let mut held = lock(&self.state);
        if let Some(place) = held.places.get(&key).copied() {
            held.remove(place);
        }
        // Make room first, so that the new value is not evicted.
        while held.bytes.saturating_add(bytes) > self.bytes_max && held.evict_one() {}
        let place = held.slots.len();
        held.places.insert(key.clone(), place);
        held.slots.push(ClockSlot { key, value, bytes, used: false });
        held.bytes += bytes;
    }

    /// Removes a value and returns it.
    pub fn take(&self, key: &K) -> Option<V> {
        let mut held = lock(&self.state);
        let place = *held.places.get(key)?;
        let value = held.slots.get(place)?.value.clone();
        held.remove(place);
        Some(value)
    }

    /// Removes a value.
    pub fn remove(&self, key: &K) {
        let mut held = lock(&self.state);
        if let Some(place) = held.places.get(key).copied() {
            held.remove(place);
        }
    }

    pub fn clear(&self) {
        *lock(&self.state) = ClockState::default();
    }

    #[cfg(any(test, feature = "testing"))]
    pub fn bytes(&self) -> usize {
        let held = lock(&self.state);
        assert_eq!(held.bytes, held.slots.iter().map(|slot| slot.bytes).sum::<usize>());
        assert_eq!(held.places.len(), held.slots.len());
        held.bytes
    }
}

impl<K: Hash + Eq, V> ClockState<K, V> {
    /// Evicts the next value that was not used since the hand last passed it. Returns false if the cache is
    /// empty.
    fn evict_one(&mut self) -> bool {
        loop {
            if self.hand >= self.slots.len() {
                self.hand = 0;
            }
            match self.slots.get_mut(self.hand) {
                None => return false,
                Some(slot) if slot.used => {
                    slot.used = false;
                    self.hand += 1;
                }
                Some(_) => {
                    self.remove(self.hand);
                    return true;
                }
            }
        }
    }

    fn remove(&mut self, place: usize) {
        let gone = self.slots.swap_remove(place);
        self.places.remove(&gone.key);
        self.bytes -= gone.bytes;
        // `swap_remove` has moved the last value to this place.
        if let Some(moved) = self.slots.get(place)
            && let Some(known) = self.places.get_mut(&moved.key)
        {
            *known = place;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_keeps_its_bound_except_for_one_value() {
        let cache = ClockCache::new(1000);
        let mut state = 1u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (key, bytes) = ((state >> 33) % 300, (state >> 45) as usize % 400);
            match state >> 62 {
                0 => drop(cache.get(&key).inspect(|value| assert_eq!(*value, key))),
                _ => cache.put(key, key, bytes),
            }
            assert!(cache.bytes() <= 1000, "{} bytes", cache.bytes());
        }
        cache.put(7, 7, 5000);
        assert_eq!((cache.bytes(), cache.get(&7)), (5000, Some(7)));
        cache.put(8, 8, 10);
        assert_eq!((cache.bytes(), cache.get(&7)), (10, None));
        cache.put(9, 9, 10);
        cache.remove(&8);
        assert_eq!((cache.bytes(), cache.get(&8), cache.get(&9)), (10, None, Some(9)));
        cache.clear();
        assert_eq!((cache.bytes(), cache.get(&9)), (0, None));
    }

    #[test]
    fn used_values_stay_and_unused_ones_are_evicted() {
        let cache = ClockCache::new(100);
        for key in 0..1000 {
            cache.put(key, key, 10);
            assert_eq!(cache.get(&0), Some(0), "used at every step");
        }
        assert_eq!((cache.get(&1), cache.get(&999)), (None, Some(999)));
    }
}
