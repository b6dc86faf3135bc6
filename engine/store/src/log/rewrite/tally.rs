//! Totals and ledger leaves of the batches of one or more segments.

use crate::codec::CodecError;
use crate::error::{Error, Result};
use crate::ids::Seqno;
use crate::log::cursor::for_each_checked_record;
use crate::log::erasure::{ErasedSetBuilder, ErasedSpan};
use crate::log::layout::BatchHeader;
use crate::log::leaf_hash::LeafHasher;
use crate::log::ledger::LedgerTiles;
use crate::log::rewrite::source::SourceSegment;
use crate::log::sums::{BatchSums, SumsBuilder};
use crate::log::totals::LogTotals;
use crate::schema::RecordSchema;

/// Totals and leaves, for comparing a rewrite with its sources.
#[derive(Debug, Default)]
pub(super) struct SegmentTally {
    /// Number of the first leaf.
    begins: u64,
    leaves: LedgerTiles,
    /// Totals of present records. Erased records and batches are not counted, but the bytes of their
    /// replacements are.
    totals: LogTotals,
    erased: ErasedSetBuilder,
}

impl SegmentTally {
    pub(super) fn new(begins: u64) -> Self {
        Self { begins, leaves: LedgerTiles::starting_at(begins), ..Self::default() }
    }

    /// The tally of a segment with this first leaf.
    pub(super) fn of_segment(schema: &dyn RecordSchema, source: &SourceSegment, begins: u64) -> Result<Self> {
        let (mut tally, mut leaves) = (Self::new(begins), LeafHasher::default());
        source.each_batch(&mut |batch| {
            let mut sums = SumsBuilder::new(schema, &mut leaves);
            for_each_checked_record(batch, source.segment.salt, |_, seqno, record| {
                tally.erased.add_record(seqno, &record)?;
                sums.add_record(seqno, &record)
            })
            .and_then(|()| {
                let sums = sums.finish();
                tally.erased.end_batch(sums.node()?)?;
                tally.add(&batch.header, &sums)
            })
            .map_err(|e| Error::damaged(&source.segment.path, batch.offset, e))
        })?;
        Ok(tally)
    }

    pub(super) fn add(
        &mut self,
        header: &BatchHeader,
        sums: &BatchSums,
    ) -> std::result::Result<(), CodecError> {
        self.totals.add(sums.totals());
        self.totals.chain_bytes += header.own_bytes();
        self.totals.batches += u64::from(!sums.stands_for_batches());
        self.totals.records += sums.present_records();
        sums.node()?.map_or(Ok(()), |node| self.leaves.push(node))
    }

    /// The erased records of the tallied segment, whose seqnos are `first..end`; `None` if there are none.
    pub(super) fn take_erased(&mut self, first: Seqno, end: Seqno) -> Option<ErasedSpan> {
        std::mem::take(&mut self.erased).finish(first, end)
    }

    pub(super) fn first_leaf(&self) -> u64 {
        self.begins
    }

    pub(super) fn leaves(&self) -> &LedgerTiles {
        &self.leaves
    }

    /// The totals of this tally minus those of `other`. If one kind of bytes grew, the other kinds are
    /// reported as shrunk by less, so that the sum is correct.
    pub(super) fn minus(&self, other: &Self) -> LogTotals {
        let (all, left) = (self.totals, other.totals);
        let mut bytes = all.bytes().saturating_sub(left.bytes());
        let mut shrunk = |all: u64, left: u64| {
            let own = all.saturating_sub(left).min(bytes);
            bytes -= own;
            own
        };
        LogTotals {
            batches: all.batches.saturating_sub(left.batches),
            records: all.records.saturating_sub(left.records),
            frames: all.frames.saturating_sub(left.frames),
            frame_bytes: shrunk(all.frame_bytes, left.frame_bytes),
            recipe_bytes: shrunk(all.recipe_bytes, left.recipe_bytes),
            run_bytes: shrunk(all.run_bytes, left.run_bytes),
            kv_bytes: shrunk(all.kv_bytes, left.kv_bytes),
            piece_bytes: shrunk(all.piece_bytes, left.piece_bytes),
            chain_bytes: shrunk(all.chain_bytes, left.chain_bytes),
        }
    }
}
