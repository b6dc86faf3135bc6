//! Selects the nodes of the tree that a proof needs (RFC 9162, sections 2.1.3 and 2.1.4), and computes them
//! in one pass over the leaves.

use std::ops::Range;

use crate::log::ledger::{Frontier, LedgerNode, MerkleHash, node_hash};

/// The leaf at which a tree over `span` splits: after the greatest power of two below its length. `span` has
/// 2 or more leaves.
fn split(span: &Range<u64>) -> u64 {
    span.start + (1 << (63 - (span.end - span.start - 1).leading_zeros()))
}

/// The siblings on the path from a leaf to the root of a tree of `size` leaves, the leaf's own sibling first.
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

/// The nodes of a consistency proof: a tree of `size` leaves begins with one of `old` leaves. They are in the
/// RFC's order. None are needed if `old` is 0 or `size`.
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
    // The last subtree needs no node if it is the whole old tree: the checker has its root.
    if span.start != 0 {
        nodes.push(span);
    }
    nodes.reverse();
    nodes
}

/// At most `most` complete subtrees that tile a tree of `size` leaves, from the left. They have equal sizes,
/// as small as `most` allows; the rest is covered by smaller ones. `most` must be at least 64.
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

/// Collects the roots of spans of leaves during one pass over the leaves. The spans do not overlap.
#[derive(Debug)]
pub(super) struct SubtreeRoots {
    spans: Vec<Range<u64>>,
    roots: Vec<Option<MerkleHash>>,
    /// Indexes of the unfinished `spans`, the next one last.
    ahead: Vec<usize>,
    current: Frontier,
    at: u64,
}

impl SubtreeRoots {
    /// A collector that begins at the first leaf.
    pub(super) fn new(spans: Vec<Range<u64>>) -> Self {
        Self::continuing(&Frontier::default(), spans)
    }

    /// A collector that begins after the leaves of `before`. Spans that end there or earlier must be peaks of
    /// `before`, as those of a leaf's inclusion proof are.
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

    /// Adds the next leaf, or a subtree of erased leaves. The root of a span that begins or ends inside such
    /// a subtree stays unknown.
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

/// The root of the tree that consists of these complete subtrees (number of leaves, root), from the left;
/// `None` if there is no such tree.
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
