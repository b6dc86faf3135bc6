//! Counts of what the writer has done since the store was opened, for monitoring.

use crate::sync::atomic::{AtomicU64, Ordering};

/// Upper bounds of the sync duration classes, in nanoseconds; the last class has no bound.
pub const SYNC_BOUNDS_NS: [u64; 12] = [
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    1_000_000_000,
];

/// What the writer has done since the store was opened, and what waits for it.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Activity {
    /// Batches written.
    pub batches: u64,
    /// Bytes of the written batches.
    pub bytes: u64,
    /// Bytes of batches that wait for the writer now.
    pub queued_bytes: u64,
    /// Syncs of batches.
    pub syncs: u64,
    /// Total duration of the syncs, in nanoseconds.
    pub sync_ns: u64,
    /// Syncs by duration: one count for each bound of [`SYNC_BOUNDS_NS`], and a last one for longer syncs.
    /// Each sync counts once.
    pub sync_classes: [u64; SYNC_BOUNDS_NS.len() + 1],
    /// Bytes of bodies at the log's end that are not compressed yet.
    pub raw_tail_bytes: u64,
    /// How often compressing them failed.
    pub raw_tail_failures: u64,
}

/// The counters behind [`Activity`].
#[derive(Debug, Default)]
pub struct ActivityCounters {
    batches: AtomicU64,
    bytes: AtomicU64,
    sync_ns: AtomicU64,
    sync_classes: [AtomicU64; SYNC_BOUNDS_NS.len() + 1],
}

impl ActivityCounters {
    pub fn count_write(&self, batches: usize, bytes: u64) {
        self.batches.fetch_add(batches as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn count_sync(&self, ns: u64) {
        let class = SYNC_BOUNDS_NS.iter().position(|bound| ns <= *bound).unwrap_or(SYNC_BOUNDS_NS.len());
        self.sync_ns.fetch_add(ns, Ordering::Relaxed);
        self.sync_classes[class].fetch_add(1, Ordering::Relaxed);
    }

    pub fn read(&self, queued_bytes: usize) -> Activity {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut sync_classes = [0; SYNC_BOUNDS_NS.len() + 1];
        for (to, from) in sync_classes.iter_mut().zip(&self.sync_classes) {
            *to = load(from);
        }
        Activity {
            batches: load(&self.batches),
            bytes: load(&self.bytes),
            queued_bytes: queued_bytes as u64,
            syncs: sync_classes.iter().sum(),
            sync_ns: load(&self.sync_ns),
            sync_classes,
            ..Activity::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sync_counts_in_the_first_class_that_fits() {
        let counters = ActivityCounters::default();
        for ns in [0, 100_000, 100_001, 1_000_000_000, u64::from(u32::MAX)] {
            counters.count_sync(ns);
        }
        counters.count_write(3, 70);
        let read = counters.read(9);
        assert_eq!((read.sync_classes[0], read.sync_classes[1]), (2, 1));
        assert_eq!((read.sync_classes[11], read.sync_classes[12]), (1, 1));
        assert_eq!((read.syncs, read.batches, read.bytes, read.queued_bytes), (5, 3, 70, 9));
    }
}
