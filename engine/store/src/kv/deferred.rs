//! Values that are worth no commit of their own, such as counts of reads: they are kept in memory, and written with a later
//! batch or when the store closes. A crash loses them.

use std::collections::BTreeMap;

use crate::ids::NamespaceId;
use crate::log::segments::lock;
use crate::sync::{Mutex, rank};

/// A namespace, the number of a keyspace, and a key.
pub type DeferredKey = (NamespaceId, u32, Vec<u8>);

/// A value that is not written yet.
#[derive(Debug, Clone)]
pub struct DeferredValue {
    /// The number of the keyspace whose key of the same name the value is about. Once that key is deleted, the value must not be
    /// written.
    pub subject: u32,
    pub bytes: Vec<u8>,
}

/// See the module. The holder of a key must drop it here before it deletes the key, and again once the deletion can be read: a
/// reader that saw the key before may have set it in between.
#[derive(Debug, Default)]
pub struct DeferredValues(Mutex<BTreeMap<DeferredKey, DeferredValue>, { rank::DEFERRED_VALUES }>);

impl DeferredValues {
    /// The value of a key that is not written yet.
    pub fn get(&self, key: &DeferredKey) -> Option<Vec<u8>> {
        lock(&self.0).get(key).map(|value| value.bytes.clone())
    }

    /// Sets a key to what `change` makes of its unwritten value. `subject` is the keyspace that the value is about. Returns the
    /// number of keys.
    pub fn update(
        &self,
        key: DeferredKey,
        subject: u32,
        change: impl FnOnce(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> usize {
        let mut values = lock(&self.0);
        match change(values.get(&key).map(|value| value.bytes.as_slice())) {
            Some(bytes) => values.insert(key, DeferredValue { subject, bytes }),
            None => values.remove(&key),
        };
        values.len()
    }

    /// Drops the value of a key.
    pub fn remove(&self, key: &DeferredKey) {
        lock(&self.0).remove(key);
    }

    /// Whether a keyspace has any.
    pub fn has_any(&self, namespace: NamespaceId, keyspace: u32) -> bool {
        let values = lock(&self.0);
        let mut keys = values.range((namespace, keyspace, Vec::new())..).map(|(key, _)| key);
        keys.next().is_some_and(|(of, space, _)| (*of, *space) == (namespace, keyspace))
    }

    /// Takes the values of some keys of a keyspace.
    pub fn take(&self, namespace: NamespaceId, keyspace: u32, count_max: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut values = lock(&self.0);
        let first = (namespace, keyspace, Vec::new());
        let keys = values.range(first..).map(|(key, _)| key);
        let keys = keys.take_while(|(of, space, _)| (*of, *space) == (namespace, keyspace)).take(count_max);
        let keys: Vec<DeferredKey> = keys.cloned().collect();
        keys.into_iter().filter_map(|key| Some((key.2.clone(), values.remove(&key)?.bytes))).collect()
    }

    /// Takes all values.
    pub fn take_all(&self) -> BTreeMap<DeferredKey, DeferredValue> {
        std::mem::take(&mut lock(&self.0))
    }
}
