//! The graph of a large file: hierarchical navigable small worlds (Malkov and Yashunin, 2018), built by hnsw_rs, searched
//! here from the file's own bytes.
//!
//! ```text
//! lowest level   for each vector, slots u32: positions of its neighbours, then u32::MAX
//! upper levels   each from the first: count u32 | positions u32, ascending | slots u32 of each
//! ```
//! The walk compares codes; whoever walks looks again at what it gives. Positions out of bounds, which no file that was
//! written has, are passed over.
//!
//! Building is `build`'s.
//!
//! Left out: a graph for few vectors, which are scanned as fast.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use roaring::RoaringBitmap;

use crate::log::open::Damage;
use crate::vector::kernel::soon;
use crate::vector::merged::Merged;
use crate::vector::quantise::{Coded, near};
use crate::vector::segment::Segment;
use crate::vector::stopped::Tried;
use crate::vector::writer::GraphBytes;

/// Vectors of a file that are worth a graph.
pub(super) const GRAPH_ROWS_MIN: usize = 20_000;
/// No neighbour.
#[cfg(any(test, feature = "graphs"))]
pub(super) const NONE: u32 = u32::MAX;

/// A vector by how near it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Near {
    pub(super) score: f32,
    pub(super) at: u32,
}

impl Eq for Near {}

impl PartialOrd for Near {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Near {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.at.cmp(&self.at))
    }
}

/// About the `width` vectors of a file that are nearest to a query by their codes, in any order; each with its score by
/// codes. Where only some are asked for, it walks past the others until nothing further away could be among the nearest.
/// The file has a graph.
pub(super) fn walk(
    segment: &Segment,
    query: &Coded,
    width: usize,
    among: Option<&RoaringBitmap>,
) -> Result<Vec<Near>, Damage> {
    let count = segment.header.count;
    let scales = segment.scales()?;
    let look = |at: u32| -> Result<Near, Damage> {
        let row = segment.codes(at as usize..at as usize + 1)?;
        let scale = scales.get(3 * at as usize + 1).copied().unwrap_or(0.0);
        Ok(Near { score: near((&query.codes, query.scale), (row, scale)), at })
    };
    let mut best = look(segment.header.entry)?;
    let upper = Upper::parse(segment.upper()?, segment.header.levels, segment.header.slots.1);
    for level in upper.iter().rev() {
        loop {
            let mut nearer = best;
            for at in level.neighbours(best.at).filter(|at| *at < count) {
                nearer = nearer.max(look(at)?);
            }
            // Strictly nearer each time, whatever numbers a file claims: so it ends.
            if nearer <= best {
                break;
            }
            best = nearer;
        }
    }
    let mut seen = vec![0u64; (count as usize).div_ceil(64)];
    let mut first_time = |at: u32| {
        let (word, bit) = (&mut seen[at as usize / 64], 1u64 << (at % 64));
        let first = *word & bit == 0;
        *word |= bit;
        first
    };
    first_time(best.at);
    let mut fresh = Vec::new();
    let mut open = BinaryHeap::from([best]);
    let counts = |at: u32| among.is_none_or(|among| among.contains(at));
    let mut found: BinaryHeap<Reverse<Near>> =
        Some(Reverse(best)).into_iter().filter(|best| counts(best.0.at)).collect();
    while let Some(next) = open.pop() {
        if found.len() >= width && found.peek().is_some_and(|Reverse(worst)| next.score < worst.score) {
            break;
        }
        fresh.clear();
        for slot in segment.slots(next.at as usize)? {
            let at = u32::from_le_bytes(*slot);
            if at >= count {
                break;
            }
            if first_time(at) {
                soon(segment.codes(at as usize..at as usize + 1)?);
                fresh.push(at);
            }
        }
        for at in fresh.iter().copied() {
            let near = look(at)?;
            if found.len() < width || found.peek().is_some_and(|Reverse(worst)| near.score > worst.score) {
                open.push(near);
                if !counts(at) {
                    continue;
                }
                found.push(Reverse(near));
                if found.len() > width {
                    found.pop();
                }
            }
        }
    }
    Ok(found.into_iter().map(|Reverse(near)| near).collect())
}

/// A level above the lowest.
struct Upper<'a> {
    positions: &'a [[u8; 4]],
    slots: &'a [[u8; 4]],
    width: usize,
}

impl<'a> Upper<'a> {
    /// The levels that these bytes hold, from the lowest up: as far as there are any.
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

    fn neighbours(&self, at: u32) -> impl Iterator<Item = u32> + use<'_> {
        let found = self.positions.binary_search_by_key(&at, |position| u32::from_le_bytes(*position));
        let slots = found.ok().and_then(|index| self.slots.get(index * self.width..(index + 1) * self.width));
        slots.unwrap_or_default().iter().map(|slot| u32::from_le_bytes(*slot))
    }
}

/// The graph of these vectors; `None` where they are too few, where this program is built without hnsw_rs, or once
/// `stop` says so.
pub(super) fn build(vectors: &Merged<'_>, stop: &dyn Fn() -> bool) -> Tried<Option<GraphBytes>> {
    if vectors.len() < GRAPH_ROWS_MIN {
        return Ok(None);
    }
    of_any_size(vectors, stop)
}

#[cfg(not(feature = "graphs"))]
fn of_any_size(_: &Merged<'_>, _: &dyn Fn() -> bool) -> Tried<Option<GraphBytes>> {
    Ok(None)
}

#[cfg(feature = "graphs")]
use crate::vector::build::of_any_size;
