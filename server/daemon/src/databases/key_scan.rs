//! A scan over the keys of a database.

use std::collections::btree_map;
use std::iter::Peekable;

use annals::{Keyspace, Namespace, kv::Keys};

use super::{deadline_in, deadline_key};

/// Names of the existing keys of a database, in order. It needs no lock: it reads the store as it was when the scan
/// began. A key whose deadline is past is left out.
pub(crate) struct KeyScan {
    pub(super) database: u8,
    pub(super) stored: Option<Keys>,
    /// The next key of the store.
    pub(super) next: Option<Vec<u8>>,
    /// Keys with pending or staged writes, and whether they exist.
    pub(super) changed: Peekable<btree_map::IntoIter<Vec<u8>, bool>>,
    /// `None` if no key has a deadline.
    pub(super) deadlines: Option<Keyspace>,
    pub(super) space: Namespace,
    pub(super) now_ns: u64,
}

impl KeyScan {
    fn next_key(&mut self) -> annals::Result<Option<Vec<u8>>> {
        loop {
            if self.next.is_none() {
                self.next = self.stored.as_mut().and_then(Iterator::next).transpose()?;
            }
            let is_changed = match (&self.next, self.changed.peek()) {
                (_, None) => false,
                (None, Some(_)) => true,
                (Some(stored), Some((changed, _))) => {
                    let order = changed.cmp(stored);
                    if order.is_eq() {
                        self.next = None;
                    }
                    order.is_le()
                }
            };
            if is_changed {
                match self.changed.next() {
                    Some((key, true)) => return Ok(Some(key)),
                    _ => continue,
                }
            }
            let Some(key) = self.next.take() else { return Ok(None) };
            if !self.is_expired(&key)? {
                return Ok(Some(key));
            }
        }
    }

    fn is_expired(&self, key: &[u8]) -> annals::Result<bool> {
        let Some(deadlines) = &self.deadlines else { return Ok(false) };
        let deadline = deadline_in(deadlines.get(&deadline_key(self.database, key))?);
        Ok(deadline.is_some_and(|ms| self.space.is_due(ms.saturating_mul(1_000_000), self.now_ns)))
    }
}

impl Iterator for KeyScan {
    type Item = annals::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_key().transpose()
    }
}
