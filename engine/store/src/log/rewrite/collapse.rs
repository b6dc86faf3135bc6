//! Erased batches that are adjacent: one batch replaces as many as make a subtree of the ledger.

use crate::codec::CodecError;
use crate::ids::Seqno;
use crate::log::erased::ErasedBatches;
use crate::log::layout::BatchHeader;
use crate::log::ledger::{LedgerNode, is_left_sibling, node_hash};
use crate::log::sums::BatchSums;

/// Maximum height: subtrees of the ledger grow to 64 leaves. The nodes below an erased subtree are gone, so a
/// checkpoint that ends inside it cannot be compared up to its end. This bounds how much is not comparable,
/// while one node for 64 batches costs less than two bytes a batch.
const HEIGHT_MAX: u8 = 6;

/// A run of adjacent erased batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ErasedStretch {
    pub(super) first_seqno: Seqno,
    /// Time of the last batch, or of the last one with a leaf.
    pub(super) time_ns: u64,
    pub(super) gone: ErasedBatches,
}

/// Collects adjacent erased batches into subtrees.
#[derive(Debug, Default)]
pub(super) struct BatchCollapse {
    /// Number of the ledger's next leaf.
    end: u64,
    /// Stretches with a subtree each.
    done: Vec<ErasedStretch>,
    /// Batches without a leaf. They join the following batches, so that a subtree ends with its last leaf's
    /// batch.
    leafless: Option<ErasedStretch>,
}

impl BatchCollapse {
    /// Sets the number of the next leaf.
    pub(super) fn start_at_leaf(&mut self, leaf: u64) {
        self.end = leaf;
    }

    /// Passes a batch that stays.
    pub(super) fn skip_batch(&mut self, node: Option<LedgerNode>) -> Result<(), CodecError> {
        self.end += node.as_ref().map_or(Ok(0), LedgerNode::leaves)?;
        Ok(())
    }

    /// Adds an erased batch, or one that already replaces erased batches.
    pub(super) fn push(
        &mut self,
        header: &BatchHeader,
        sums: &BatchSums,
        node: Option<LedgerNode>,
    ) -> Result<(), CodecError> {
        self.skip_batch(node)?;
        let gone = ErasedBatches { seqnos: sums.seqnos(), batches: sums.batches(), node };
        let own = ErasedStretch { first_seqno: header.first_seqno, time_ns: header.time_ns, gone };
        let mut joined = match self.leafless.take() {
            Some(before) => before.followed_by(&own, node),
            None => own,
        };
        let Some(mut node) = node else {
            self.leafless = Some(joined);
            return Ok(());
        };
        let end = self.end;
        let joins = |left: &ErasedStretch, height: u8| {
            height < HEIGHT_MAX
                && left.gone.node.is_some_and(|left| is_left_sibling(left.height, height, end))
        };
        while let Some(left) = self.done.pop_if(|left| joins(left, node.height)) {
            let hash = left.gone.node.map_or(node.hash, |left| node_hash(&left.hash, &node.hash));
            node = LedgerNode { height: node.height + 1, hash };
            joined = left.followed_by(&joined, Some(node));
        }
        self.done.push(joined);
        Ok(())
    }

    /// The stretches that no later batch can join.
    pub(super) fn take_ready(&mut self) -> Vec<ErasedStretch> {
        let last = self.done.last().and_then(|last| last.gone.node);
        match last.is_some_and(|node| node.height >= HEIGHT_MAX) {
            true => std::mem::take(&mut self.done),
            false => Vec::new(),
        }
    }

    /// All stretches, before a batch that stays.
    pub(super) fn take_all(&mut self) -> Vec<ErasedStretch> {
        let mut all = std::mem::take(&mut self.done);
        all.extend(self.leafless.take());
        all
    }
}

impl ErasedStretch {
    /// This stretch joined with the next one.
    fn followed_by(&self, next: &Self, node: Option<LedgerNode>) -> Self {
        let (seqnos, batches) = (self.gone.seqnos + next.gone.seqnos, self.gone.batches + next.gone.batches);
        let gone = ErasedBatches { seqnos, batches, node };
        Self { first_seqno: self.first_seqno, time_ns: next.time_ns, gone }
    }
}
