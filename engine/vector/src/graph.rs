//! The graph of a large file: hierarchical navigable small worlds (Malkov and Yashunin, 2018), built by
//! hnsw_rs, searched here in the file's own bytes.
//!
//! ```text
//! lowest level   for each vector, slots u32: positions of its neighbours, then u32::MAX
//! upper levels   each from the first: count u32 | positions u32, ascending | slots u32 of each
//! ```
//! The walk compares codes; its caller computes the exact scores of what it returns. Positions out of bounds,
//! which no written file has, are skipped.
//!
//! `build` builds graphs.
//!
//! Left out: a graph for few vectors, because a scan of them is as fast.

use std::borrow::Cow;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use roaring::RoaringBitmap;

use crate::kernel::prefetch;
use crate::log::open::Damage;
use crate::merged::MergedVectors;
use crate::quantise::{VectorCodes, approximate_cosine};
use crate::search_error::VectorResult;
use crate::vector_file::OpenVectorFile;
use crate::writer::GraphBytes;

/// Vectors of a file from which a graph is worth it.
pub const GRAPH_ROWS_MIN: usize = 20_000;
/// How many of the nearest vectors a walk takes from one upper level to the next: half its width, within
/// these limits. With only one, it ends in the wrong cluster if clusters are equally far from each other.
const UPPER_WIDTHS: (usize, usize) = (4, 32);
/// Marks an unused neighbour slot.
pub const NO_NEIGHBOUR: u32 = u32::MAX;

/// A position with its score. The greatest is the nearest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoredPosition {
    pub score: f32,
    pub at: u32,
}

impl Eq for ScoredPosition {}

impl PartialOrd for ScoredPosition {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScoredPosition {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.at.cmp(&self.at))
    }
}

/// About the `width` vectors of a file that are nearest to a query by their codes, in any order, with their
/// scores by codes. With `among`, only these positions are returned: the walk passes others until nothing
/// further away can be among the nearest. The file must have a graph.
pub fn walk(
    segment: &OpenVectorFile,
    query: &VectorCodes,
    width: usize,
    among: Option<&RoaringBitmap>,
) -> Result<Vec<ScoredPosition>, Damage> {
    let mut walk = GraphWalk::new(segment, query)?;
    let mut found = vec![walk.score(segment.header.entry)?];
    let upper = UpperLevel::parse(segment.upper()?, segment.header.levels, segment.header.slots.1);
    let upper_width = (width / 2).clamp(UPPER_WIDTHS.0, UPPER_WIDTHS.1);
    for level in upper.iter().rev() {
        let neighbours = |at| Ok(level.neighbours(at));
        found = walk.search_level(&found, upper_width, &neighbours, &|_| true)?;
    }
    let counts = |at: u32| among.is_none_or(|among| among.contains(at));
    walk.search_level(&found, width, &|at| segment.slots(at as usize), &counts)
}

/// One walk, on one level after another.
struct GraphWalk<'a> {
    segment: &'a OpenVectorFile,
    query: &'a VectorCodes,
    scales: Cow<'a, [f32]>,
    /// A bit for each vector that was visited on this level.
    seen: Vec<u64>,
    unseen: Vec<u32>,
}

impl<'a> GraphWalk<'a> {
    fn new(segment: &'a OpenVectorFile, query: &'a VectorCodes) -> Result<Self, Damage> {
        let seen = vec![0; segment.len().div_ceil(64)];
        Ok(Self { segment, query, scales: segment.scales()?, seen, unseen: Vec::new() })
    }

    fn score(&self, at: u32) -> Result<ScoredPosition, Damage> {
        let row = self.segment.codes(at as usize..at as usize + 1)?;
        let scale = self.scale(at).get(1).copied().unwrap_or(0.0);
        Ok(ScoredPosition {
            score: approximate_cosine((&self.query.codes, self.query.scale), (row, scale)),
            at,
        })
    }

    fn scale(&self, at: u32) -> &[f32] {
        self.scales.get(3 * at as usize..3 * at as usize + 3).unwrap_or_default()
    }

    fn mark_seen(&mut self, at: u32) -> bool {
        let (Some(word), bit) = (self.seen.get_mut(at as usize / 64), 1u64 << (at % 64)) else {
            return false;
        };
        let first = *word & bit == 0;
        *word |= bit;
        first
    }

    /// The `width` nearest of the vectors that count and that edges reach from `start`.
    fn search_level(
        &mut self,
        start: &[ScoredPosition],
        width: usize,
        neighbours: &dyn Fn(u32) -> Result<&'a [[u8; 4]], Damage>,
        counts: &dyn Fn(u32) -> bool,
    ) -> Result<Vec<ScoredPosition>, Damage> {
        let count = self.segment.header.count;
        self.seen.fill(0);
        let mut open = BinaryHeap::with_capacity(2 * width.min(count as usize));
        let mut found = BinaryHeap::with_capacity(1 + width.min(count as usize));
        for near in start {
            self.mark_seen(near.at);
            open.push(*near);
            if counts(near.at) {
                found.push(Reverse(*near));
            }
        }
        while found.len() > width {
            found.pop();
        }
        while let Some(next) = open.pop() {
            if found.len() >= width && found.peek().is_some_and(|Reverse(worst)| next.score < worst.score) {
                break;
            }
            self.unseen.clear();
            for slot in neighbours(next.at)? {
                let at = u32::from_le_bytes(*slot);
                if at >= count {
                    break;
                }
                if self.mark_seen(at) {
                    prefetch(self.segment.codes(at as usize..at as usize + 1)?);
                    prefetch(self.scale(at));
                    self.unseen.push(at);
                }
            }
            for index in 0..self.unseen.len() {
                let near = self.score(self.unseen[index])?;
                if found.len() < width || found.peek().is_some_and(|Reverse(worst)| near.score > worst.score)
                {
                    open.push(near);
                    prefetch(neighbours(near.at)?);
                    if counts(near.at) {
                        found.push(Reverse(near));
                        if found.len() > width {
                            found.pop();
                        }
                    }
                }
            }
        }
        Ok(found.into_iter().map(|Reverse(near)| near).collect())
    }
}

/// A level above the lowest.
struct UpperLevel<'a> {
    positions: &'a [[u8; 4]],
    slots: &'a [[u8; 4]],
    width: usize,
}

impl<'a> UpperLevel<'a> {
    /// The levels that these bytes hold, from the lowest up. Stops where the bytes end.
    fn parse(bytes: &'a [u8], levels: u32, width: u32) -> Vec<Self> {
        let (mut numbers, width) = (bytes.as_chunks::<4>().0, width as usize);
        let mut all = Vec::new();
        for _ in 0..levels {
            let Some((count, rest)) = numbers.split_first() else { break };
            let count = u32::from_le_bytes(*count) as usize;
            let Some((positions, rest)) = rest.split_at_checked(count) else { break };
            let Some((slots, rest)) = rest.split_at_checked(count.saturating_mul(width)) else { break };
            all.push(Self { positions, slots, width });
            numbers = rest;
        }
        all
    }

    /// The slots of a node; empty if the node is not on this level.
    fn neighbours(&self, at: u32) -> &'a [[u8; 4]] {
        let found = self.positions.binary_search_by_key(&at, |position| u32::from_le_bytes(*position));
        let slots = found.ok().and_then(|index| self.slots.get(index * self.width..(index + 1) * self.width));
        slots.unwrap_or_default()
    }
}

/// Builds the graph of these vectors. `None` if they are too few, if this program is built without hnsw_rs,
/// or once `stop` returns true.
pub fn build(vectors: &MergedVectors<'_>, stop: &dyn Fn() -> bool) -> VectorResult<Option<GraphBytes>> {
    if vectors.len() < GRAPH_ROWS_MIN {
        return Ok(None);
    }
    of_any_size(vectors, stop)
}

#[cfg(not(feature = "graphs"))]
fn of_any_size(_: &MergedVectors<'_>, _: &dyn Fn() -> bool) -> VectorResult<Option<GraphBytes>> {
    Ok(None)
}

#[cfg(feature = "graphs")]
use crate::build::of_any_size;
