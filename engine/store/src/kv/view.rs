//! Read views: the key-value side of a store as it was after one record, regardless of later writes.

use std::sync::Arc;

use crate::error::Result;
use crate::ids::Seqno;
use crate::kv::core::Core;
use crate::kv::keyspace::{Keyspace, Scan, ScanRange};
use crate::log::segments::{SegmentPin, lock};

/// A consistent read: everything up to [`View::seqno`] and nothing after it. Everything that it may read is
/// kept while it lives.
#[derive(Debug)]
pub struct View {
    core: Arc<Core>,
    seqno: Seqno,
    _pin: SegmentPin,
}

impl View {
    #[doc(hidden)]
    pub fn new(core: &Arc<Core>) -> Self {
        let pin = core.pin();
        let mut views = lock(&core.index.views);
        let seqno = core.index.visible();
        *views.entry(seqno.0).or_default() += 1;
        drop(views);
        Self { core: core.clone(), seqno, _pin: pin }
    }

    /// Another handle on the same view, dropped separately.
    fn duplicate(&self) -> Self {
        *lock(&self.core.index.views).entry(self.seqno.0).or_default() += 1;
        Self { core: self.core.clone(), seqno: self.seqno, _pin: self._pin.clone() }
    }

    /// The last record that this view sees.
    #[must_use]
    pub fn seqno(&self) -> Seqno {
        self.seqno
    }

    /// A key's value in this view.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`; `Invalid` for a key that is too long.
    pub fn get(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(keyspace.version_at(self.seqno, key)?.and_then(|version| version.value))
    }

    /// Keys and values in this view, in key order.
    #[must_use]
    pub fn scan(&self, keyspace: &Keyspace, range: ScanRange) -> Scan {
        Scan::new(keyspace.clone(), range, self.duplicate())
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let mut views = lock(&self.core.index.views);
        if let Some(count) = views.get_mut(&self.seqno.0) {
            *count -= 1;
            if *count == 0 {
                views.remove(&self.seqno.0);
            }
        }
    }
}
