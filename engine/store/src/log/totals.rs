//! Cumulative counts and bytes by kind, so that statistics need no pass over the log.

use serde::{Deserialize, Serialize};

/// Content of the log. Bytes are physical bytes of segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LogTotals {
    pub batches: u64,
    pub records: u64,
    pub frames: u64,
    /// Group records: the compressed new bytes of bodies.
    pub piece_bytes: u64,
    /// Blob ids, lengths and extents.
    pub recipe_bytes: u64,
    /// Frame records without the two above, their links and their salts.
    pub frame_bytes: u64,
    /// Run, snapshot and namespace records, and tombstones.
    pub run_bytes: u64,
    /// Key-value records.
    pub kv_bytes: u64,
    /// Batch headers, links and salts.
    pub chain_bytes: u64,
}

impl LogTotals {
    /// Adds the totals of a batch.
    pub fn add(&mut self, more: &Self) {
        self.batches += more.batches;
        self.records += more.records;
        self.frames += more.frames;
        self.piece_bytes += more.piece_bytes;
        self.recipe_bytes += more.recipe_bytes;
        self.frame_bytes += more.frame_bytes;
        self.run_bytes += more.run_bytes;
        self.kv_bytes += more.kv_bytes;
        self.chain_bytes += more.chain_bytes;
    }

    /// These totals minus `gone`.
    pub fn minus(&self, gone: &Self) -> Self {
        Self {
            batches: self.batches.saturating_sub(gone.batches),
            records: self.records.saturating_sub(gone.records),
            frames: self.frames.saturating_sub(gone.frames),
            piece_bytes: self.piece_bytes.saturating_sub(gone.piece_bytes),
            recipe_bytes: self.recipe_bytes.saturating_sub(gone.recipe_bytes),
            frame_bytes: self.frame_bytes.saturating_sub(gone.frame_bytes),
            run_bytes: self.run_bytes.saturating_sub(gone.run_bytes),
            kv_bytes: self.kv_bytes.saturating_sub(gone.kv_bytes),
            chain_bytes: self.chain_bytes.saturating_sub(gone.chain_bytes),
        }
    }

    /// All fields, in order.
    pub fn to_array(&self) -> [u64; 9] {
        [
            self.batches,
            self.records,
            self.frames,
            self.piece_bytes,
            self.recipe_bytes,
            self.frame_bytes,
            self.run_bytes,
            self.kv_bytes,
            self.chain_bytes,
        ]
    }

    /// Bytes of all batches: the log without segment headers and footers.
    pub fn bytes(&self) -> u64 {
        self.to_array()[3..].iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(first: u64) -> LogTotals {
        LogTotals {
            batches: first,
            records: first + 1,
            frames: first + 2,
            piece_bytes: first + 3,
            recipe_bytes: first + 4,
            frame_bytes: first + 5,
            run_bytes: first + 6,
            kv_bytes: first + 7,
            chain_bytes: first + 8,
        }
    }

    #[test]
    fn totals_add_every_field_and_bytes_skip_counts() {
        assert_eq!(totals(1).to_array(), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(totals(1).bytes(), 4 + 5 + 6 + 7 + 8 + 9);
        assert_eq!(LogTotals::default().bytes(), 0);
        let mut sum = totals(1);
        sum.add(&totals(100));
        assert_eq!(sum.to_array(), [101, 103, 105, 107, 109, 111, 113, 115, 117]);
        assert_eq!(totals(u64::MAX - 8).bytes(), u64::MAX);
    }
}
