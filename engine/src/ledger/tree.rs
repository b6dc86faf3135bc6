//! Which nodes of the tree a proof needs (RFC 9162, sections 2.1.3 and 2.1.4), and how they are computed while the
//! leaves go by once.

use std::ops::Range;

use crate::log::ledger::{Frontier, LedgerNode, MerkleHash, node_hash};

/// Where a tree over these leaves splits: the greatest power of two below their number, which is 2 or more.
fn split(span: &Range<u64>) -> u64 {
    span.start + (1 << (63 - (span.end - span.start - 1).leading_zeros()))
}

/// The siblings on the way from a leaf to the root of a tree of `size` leaves, the leaf's own first.
pub(super) fn inclusion(leaf: u64, size: u64) -> Vec<Range<u64>> {
    let mut span = 0..size;
    let mut siblings = Vec::new();
    while span.end - span.start > 1 {
        let middle = split(&span);
        let (own, sibling) = match leaf < middle {
            true => (span.start..middle, middle..span.end),
            false => (middle..span.end, span.start..middle),
        };
        siblings.push(sibling);
        span = own;
    }
    siblings.reverse();
    siblings
}

/// The nodes that show that a tree of `size` leaves begins with one of `old` leaves, in the RFC's order. None are
/// needed where `old` is 0 or `size`.
pub(super) fn consistency(old: u64, size: u64) -> Vec<Range<u64>> {
    let mut span = 0..size;
    let mut nodes = Vec::new();
    if old == 0 || old >= size {
        return nodes;
    }
    while old != span.end {
        let middle = split(&span);
        if old <= middle {
            nodes.push(middle..span.end);
            span = span.start..middle;
        } else {
            nodes.push(span.start..middle);
            span = middle..span.end;
        }
    }
    // A tree that the old one has whole needs no node if it is all of the old one: whoever checks has its root.
    if span.start != 0 {
        nodes.push(span);
    }
    nodes.reverse();
    nodes
}

/// Complete subtrees that tile a tree of `size` leaves, from the left, `most` or fewer (`most` being at least 64): equal
/// ones as small as that allows, then what is left over.
pub(super) fn tiles(size: u64, most: u64) -> Vec<Range<u64>> {
    let rest = |level: u32| size & ((1 << level) - 1);
    let fits = |level: &u32| (size >> level) + u64::from(rest(*level).count_ones()) <= most;
    let level = (0..64).find(fits).unwrap_or(63);
    let mut tiles = Vec::new();
    let mut at = 0;
    while at < size {
        let left = size - at;
        let len = if left >> level > 0 { 1 << level } else { 1 << (63 - left.leading_zeros()) };
        tiles.push(at..at + len);
        at += len;
    }
    tiles
}

/// Roots of spans of leaves, collected while the leaves go by in order. The spans of one collector do not overlap.
#[derive(Debug)]
pub(super) struct SubtreeRoots {
    spans: Vec<Range<u64>>,
    roots: Vec<Option<MerkleHash>>,
    /// Indexes of `spans` that are not done, the next one last.
    ahead: Vec<usize>,
    current: Frontier,
    at: u64,
}

impl SubtreeRoots {
    /// Collects from the first leaf on.
    pub(super) fn new(spans: Vec<Range<u64>>) -> Self {
        Self::continuing(&Frontier::default(), spans)
    }

    /// Collects from where `before` ends. Spans that end there or earlier have to be subtrees that it holds, as those
    /// of a leaf's inclusion proof are.
    pub(super) fn continuing(before: &Frontier, spans: Vec<Range<u64>>) -> Self {
        let mut known = Vec::new();
        let mut start = 0;
        for (peak, bit) in
            before.peaks().iter().zip((0..64).rev().filter(|bit| before.leaves >> bit & 1 == 1))
        {
            known.push((start..start + (1 << bit), *peak));
            start += 1 << bit;
        }
        let root = |span: &Range<u64>| known.iter().find(|(of, _)| of == span).map(|(_, peak)| *peak);
        let roots: Vec<Option<MerkleHash>> = spans.iter().map(root).collect();
        let mut ahead: Vec<usize> =
            (0..spans.len()).filter(|index| spans[*index].start >= before.leaves).collect();
        ahead.sort_by_key(|index| std::cmp::Reverse(spans[*index].start));
        Self { spans, roots, ahead, current: Frontier::default(), at: before.leaves }
    }

    /// Takes in the next leaf, or the subtree of some. The root of a span that begins or ends inside of a subtree stays
    /// unknown.
    pub(super) fn push(&mut self, node: LedgerNode) {
        let at = self.at;
        self.at = at.saturating_add(1 << node.height.min(63));
        while let Some(span) = self.ahead.last().map(|index| self.spans[*index].clone()) {
            if self.at <= span.start {
                return;
            }
            if at < span.start || span.end < self.at || self.current.push_node(node).is_err() {
                self.current = Frontier::default();
                self.ahead.pop();
                if span.end < self.at {
                    continue;
                }
                return;
            }
            if self.at == span.end
                && let Some(index) = self.ahead.pop()
            {
                self.roots[index] = Some(self.current.root());
                self.current = Frontier::default();
            }
            return;
        }
    }

    /// All roots, if none is missing.
    pub(super) fn into_hashes(self) -> Option<Vec<MerkleHash>> {
        self.roots.into_iter().collect()
    }
}

/// The root of a tree of which these are complete subtrees (number of leaves, root) from the left; `None` where no
/// tree has such subtrees.
pub(super) fn fold_subtrees(tiles: impl IntoIterator<Item = (u64, MerkleHash)>) -> Option<MerkleHash> {
    let mut peaks: Vec<(u64, MerkleHash)> = Vec::new();
    let mut at = 0u64;
    for (len, root) in tiles {
        if !len.is_power_of_two() || !at.is_multiple_of(len) {
            return None;
        }
        at = at.checked_add(len)?;
        let (mut len, mut root) = (len, root);
        while let Some((_, left)) = peaks.pop_if(|(before, _)| *before == len) {
            root = node_hash(&left, &root);
            len *= 2;
        }
        peaks.push((len, root));
    }
    let mut peaks = peaks.into_iter().rev().map(|(_, peak)| peak);
    match peaks.next() {
        None => Some(Frontier::default().root()),
        Some(last) => Some(peaks.fold(last, |right, left| node_hash(&left, &right))),
    }
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
