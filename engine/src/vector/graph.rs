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
//! Left out: a graph for few vectors, which are scanned as fast.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::log::open::Damage;
use crate::vector::kernel::soon;
use crate::vector::quantise::{Coded, near};
use crate::vector::segment::Segment;
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
/// codes. The file has a graph.
pub(super) fn walk(segment: &Segment, query: &Coded, width: usize) -> Result<Vec<Near>, Damage> {
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
            if nearer.score <= best.score {
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
    let mut found = BinaryHeap::from([Reverse(best)]);
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
pub(super) fn build(vectors: &[Coded], stop: &dyn Fn() -> bool) -> Option<GraphBytes> {
    if vectors.len() < GRAPH_ROWS_MIN {
        return None;
    }
    of_any_size(vectors, stop)
}

#[cfg(not(feature = "graphs"))]
fn of_any_size(_: &[Coded], _: &dyn Fn() -> bool) -> Option<GraphBytes> {
    None
}

#[cfg(feature = "graphs")]
use built::of_any_size;

#[cfg(feature = "graphs")]
mod built {
    use hnsw_rs::anndists::dist::distances::Distance;
    use hnsw_rs::hnsw::Hnsw;

    use super::NONE;
    use crate::vector::quantise::{Coded, near};
    use crate::vector::writer::GraphBytes;

    /// Neighbours of a vector in an upper level; in the lowest it has twice as many.
    const NEIGHBOURS: usize = 16;
    /// Candidates that are looked at for each vector.
    const BREADTH: usize = 100;
    /// Levels at most.
    const LEVELS_MAX: usize = 16;
    /// Bytes of a scale, behind the codes.
    const SCALE_BYTES: usize = 4;

    /// How far directions are apart by their codes, as a walk sees them.
    struct Apart;

    impl Distance<i8> for Apart {
        fn eval(&self, a: &[i8], b: &[i8]) -> f32 {
            (1.0 - near(split(a), split(b))).max(0.0)
        }
    }

    fn split(row: &[i8]) -> (&[i8], f32) {
        match row.split_last_chunk::<SCALE_BYTES>() {
            Some((codes, scale)) => (codes, f32::from_le_bytes(scale.map(|byte| byte as u8))),
            None => (row, 0.0),
        }
    }

    pub(super) fn of_any_size(vectors: &[Coded], stop: &dyn Fn() -> bool) -> Option<GraphBytes> {
        let graph = Hnsw::<i8, Apart>::new(NEIGHBOURS, vectors.len(), LEVELS_MAX, BREADTH, Apart);
        let mut row = Vec::new();
        for (at, coded) in vectors.iter().enumerate() {
            if stop() {
                return None;
            }
            row.clear();
            row.extend_from_slice(&coded.codes);
            row.extend(coded.scale.to_le_bytes().map(|byte| byte as i8));
            graph.insert((&row, at));
        }
        // By vector, its neighbours in each of its levels.
        let mut lists: Vec<Vec<Vec<u32>>> = vec![Vec::new(); vectors.len()];
        let points = graph.get_point_indexation();
        let levels = usize::from(points.get_max_level_observed());
        let mut entry = None;
        for level in 0..=levels {
            for point in points.get_layer_iterator(level) {
                let at = point.get_origin_id();
                if level == levels {
                    entry.get_or_insert(at as u32);
                }
                let near = point.get_neighborhood_id();
                let near = near
                    .iter()
                    .take(level + 1)
                    .map(|level| level.iter().map(|near| near.d_id as u32).collect());
                *lists.get_mut(at)? = near.collect();
            }
        }
        let widest = |from: usize, to: usize| {
            let all = lists.iter().flat_map(|levels| levels.iter().take(to).skip(from));
            all.map(Vec::len).max().unwrap_or(0).max(1)
        };
        let slots = (widest(0, 1), widest(1, usize::MAX));
        let mut lowest = Vec::with_capacity(vectors.len() * slots.0 * 4);
        for levels in &lists {
            put(levels.first().map_or(&[], Vec::as_slice), slots.0, &mut lowest);
        }
        let mut upper = Vec::new();
        for level in 1..=levels {
            let there = || lists.iter().enumerate().filter(|(_, levels)| levels.len() > level);
            upper.extend_from_slice(&(there().count() as u32).to_le_bytes());
            there().for_each(|(at, _)| upper.extend_from_slice(&(at as u32).to_le_bytes()));
            there().for_each(|(_, levels)| put(&levels[level], slots.1, &mut upper));
        }
        let slots = (slots.0 as u32, slots.1 as u32);
        Some(GraphBytes { slots, levels: levels as u32, entry: entry?, lowest, upper })
    }

    fn put(neighbours: &[u32], slots: usize, out: &mut Vec<u8>) {
        let rest = std::iter::repeat_n(&NONE, slots - neighbours.len().min(slots));
        neighbours.iter().take(slots).chain(rest).for_each(|at| out.extend_from_slice(&at.to_le_bytes()));
    }
}
