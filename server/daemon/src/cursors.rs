//! Cursors: numbers for positions in scans. Their number and the bytes of their keys are limited; the oldest
//! are evicted first.

use std::collections::{HashMap, VecDeque};

/// Maximum number of remembered positions, and of the bytes of their keys.
const CURSORS_MAX: usize = 1 << 16;
const CURSORS_BYTES_MAX: usize = 64 << 20;

/// The remembered positions of scans.
#[derive(Debug, Default)]
pub(super) struct ScanCursors {
    last: u64,
    places: HashMap<u64, Vec<u8>>,
    order: VecDeque<u64>,
    bytes: usize,
}

impl ScanCursors {
    /// Returns a cursor for continuing after this key.
    pub(super) fn remember(&mut self, after: Vec<u8>) -> u64 {
        self.last += 1;
        self.bytes += after.len();
        self.places.insert(self.last, after);
        self.order.push_back(self.last);
        while self.order.len() > CURSORS_MAX || self.bytes > CURSORS_BYTES_MAX {
            let Some(oldest) = self.order.pop_front() else { break };
            self.bytes -= self.places.remove(&oldest).map_or(0, |key| key.len());
        }
        self.last
    }

    /// The key of a cursor, if it is still remembered.
    pub(super) fn position(&self, cursor: u64) -> Option<Vec<u8>> {
        self.places.get(&cursor).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::{CURSORS_BYTES_MAX, CURSORS_MAX, ScanCursors};

    /// Regression: 65,536 positions after keys of 65,535 bytes took 4 GB.
    #[test]
    fn oldest_cursors_are_evicted_by_count_and_bytes() {
        let mut cursors = ScanCursors::default();
        for number in 1..=CURSORS_MAX as u64 + 2 {
            assert_eq!(cursors.remember(vec![b'x']), number);
        }
        assert_eq!((cursors.position(2), cursors.position(3)), (None, Some(vec![b'x'])));
        let long = vec![b'y'; 65_535];
        let last = (0..2000).map(|_| cursors.remember(long.clone())).last().unwrap();
        let kept = (CURSORS_BYTES_MAX / long.len()) as u64;
        assert_eq!(cursors.position(last), Some(long));
        assert!(cursors.position(last - kept + 1).is_some() && cursors.position(last - kept).is_none());
        assert!(cursors.bytes <= CURSORS_BYTES_MAX && cursors.places.len() == cursors.order.len());
    }
}
