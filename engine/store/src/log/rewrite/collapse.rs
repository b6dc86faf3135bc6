//! Erased batches that are adjacent: one batch replaces as many as make a subtree of the ledger.

use crate::codec::CodecError;
use crate::ids::Seqno;
use crate::log::erased::ErasedBatches;
use crate::log::layout::BatchHeader;
use crate::log::ledger::{Node, is_left_sibling, node_hash};
use crate::log::sums::Sums;

/// Maximum height: subtrees of the ledger grow to 64 leaves. The nodes below an erased subtree are gone, so a
/// checkpoint that ends inside it cannot be compared up to its end. This bounds how much is not comparable,
/// while one node for 64 batches costs less than two bytes a batch.
const HEIGHT_MAX: u8 = 6;

/// A run of adjacent erased batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) first_seqno: Seqno,
    /// Time of the last batch, or of the last one with a leaf.
    pub(super) time_ns: u64,
    pub(super) gone: ErasedBatches,
}

/// Collects adjacent erased batches into subtrees.
#[derive(Debug, Default)]
pub(super) struct Collapse {
    /// Number of the ledger's next leaf.
    end: u64,
    /// Stretches with a subtree each.
    done: Vec<Stretch>,
    /// Batches without a leaf. They join the following batches, so that a subtree ends with its last leaf's
    /// batch.
    leafless: Option<Stretch>,
}

impl Collapse {
    /// Sets the number of the next leaf.
    pub(super) fn begins(&mut self, leaf: u64) {
        self.end = leaf;
    }

    /// Passes a batch that stays.
    pub(super) fn skip(&mut self, node: Option<Node>) -> Result<(), CodecError> {
        self.end += node.as_ref().map_or(Ok(0), Node::leaves)?;
        Ok(())
    }

    /// Adds an erased batch, or one that already replaces erased batches.
    pub(super) fn push(
        &mut self,
        header: &BatchHeader,
        sums: &Sums,
        node: Option<Node>,
    ) -> Result<(), CodecError> {
        self.skip(node)?;
        let gone = ErasedBatches { seqnos: sums.seqnos(), batches: sums.batches(), node };
        let own = Stretch { first_seqno: header.first_seqno, time_ns: header.time_ns, gone };
        let mut joined = match self.leafless.take() {
            Some(before) => before.and(&own, node),
            None => own,
        };
        let Some(mut node) = node else {
            self.leafless = Some(joined);
            return Ok(());
        };
        let end = self.end;
        let joins = |left: &Stretch, height: u8| {
            height < HEIGHT_MAX
                && left.gone.node.is_some_and(|left| is_left_sibling(left.height, height, end))
        };
        while let Some(left) = self.done.pop_if(|left| joins(left, node.height)) {
            let hash = left.gone.node.map_or(node.hash, |left| node_hash(&left.hash, &node.hash));
            node = Node { height: node.height + 1, hash };
            joined = left.and(&joined, Some(node));
        }
        self.done.push(joined);
        Ok(())
    }

    /// The stretches that no later batch can join.
    pub(super) fn take_ready(&mut self) -> Vec<Stretch> {
        let last = self.done.last().and_then(|last| last.gone.node);
        match last.is_some_and(|node| node.height >= HEIGHT_MAX) {
            true => std::mem::take(&mut self.done),
            false => Vec::new(),
        }
    }

    /// All stretches, before a batch that stays.
    pub(super) fn take_all(&mut self) -> Vec<Stretch> {
        let mut all = std::mem::take(&mut self.done);
        all.extend(self.leafless.take());
        all
    }
}

impl Stretch {
    /// This stretch joined with the next one.
    fn and(&self, next: &Self, node: Option<Node>) -> Self {
        let (seqnos, batches) = (self.gone.seqnos + next.gone.seqnos, self.gone.batches + next.gone.batches);
        let gone = ErasedBatches { seqnos, batches, node };
        Self { first_seqno: self.first_seqno, time_ns: next.time_ns, gone }
    }
}
