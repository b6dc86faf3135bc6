//! Builds a graph with hnsw_rs, on a private instance and one vector at a time. Then the edges are read out
//! and written in our own form.
//!
//! It compares codes: the same distance as in a walk, with a quarter of the vectors' memory.

use hnsw_rs::anndists::dist::distances::Distance;
use hnsw_rs::hnsw::Hnsw;

use crate::graph::NO_NEIGHBOUR;
use crate::merged::MergedVectors;
use crate::quantise::approximate_cosine;
use crate::search_error::VectorResult;
use crate::writer::GraphBytes;

/// Neighbours of a vector in an upper level; in the lowest it has twice as many.
const NEIGHBOURS: usize = 16;
/// Candidates for each vector of a graph of up to [`BREADTH_ROWS`] vectors. Each doubling adds
/// [`BREADTH_MORE`], up to [`BREADTH_MAX`]. With 64 candidates for a million vectors, no walk reaches one
/// true neighbour in twenty-five.
const BREADTH: usize = 64;
const BREADTH_ROWS: usize = 100_000;
const BREADTH_MORE: u32 = 16;
const BREADTH_MAX: usize = 128;
/// Maximum number of levels.
const LEVELS_MAX: usize = 16;
/// Bytes of a scale, after the codes.
const SCALE_BYTES: usize = 4;

/// The distance of two directions by their codes, as in a walk.
struct CodeDistance;

impl Distance<i8> for CodeDistance {
    fn eval(&self, a: &[i8], b: &[i8]) -> f32 {
        (1.0 - approximate_cosine(split_scale(a), split_scale(b))).max(0.0)
    }
}

fn split_scale(row: &[i8]) -> (&[i8], f32) {
    match row.split_last_chunk::<SCALE_BYTES>() {
        Some((codes, scale)) => (codes, f32::from_le_bytes(scale.map(i8::cast_unsigned))),
        None => (row, 0.0),
    }
}

pub fn of_any_size(vectors: &MergedVectors<'_>, stop: &dyn Fn() -> bool) -> VectorResult<Option<GraphBytes>> {
    let count = vectors.len();
    let graph = Hnsw::<i8, CodeDistance>::new(NEIGHBOURS, count, LEVELS_MAX, breadth(count), CodeDistance);
    let mut row = Vec::new();
    for at in 0..count {
        if stop() {
            return Ok(None);
        }
        let (codes, scale) = vectors.codes_and_scale(at)?;
        row.clear();
        row.extend_from_slice(codes);
        row.extend(scale.scale.to_le_bytes().map(u8::cast_signed));
        graph.insert((&row, at));
    }
    Ok(graph_bytes(&graph, count))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a logarithm of at most 64, not below 0; its fraction does not count"
)]
fn breadth(count: usize) -> usize {
    let doublings = (count as f64 / BREADTH_ROWS as f64).log2().max(0.0);
    BREADTH_MAX.min(BREADTH + (doublings * f64::from(BREADTH_MORE)) as usize)
}

/// The edges in a file's form.
fn graph_bytes(graph: &Hnsw<'_, i8, CodeDistance>, count: usize) -> Option<GraphBytes> {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a file has at most COUNT_MAX vectors, and fewer levels and neighbours"
    )]
    let number = |of: usize| of as u32;
    let points = graph.get_point_indexation();
    let levels = usize::from(points.get_max_level_observed());
    let mut entry = None;
    let slots = (2 * NEIGHBOURS, NEIGHBOURS);
    let mut lowest = vec![NO_NEIGHBOUR; count * slots.0];
    // For each level above the lowest: its vectors, each with its neighbours.
    let mut above: Vec<Vec<(u32, Vec<u32>)>> = vec![Vec::new(); levels];
    for top in 0..=levels {
        for point in points.get_layer_iterator(top) {
            let at = point.get_origin_id();
            if top == levels {
                entry.get_or_insert(number(at));
            }
            let near = point.get_neighborhood_id();
            for (level, near) in near.iter().enumerate().take(top + 1) {
                // hnsw_rs keeps neighbours sorted by distance.
                let near = near.iter().map(|near| number(near.d_id));
                match level.checked_sub(1) {
                    None => {
                        let own = lowest.get_mut(at * slots.0..(at + 1) * slots.0)?;
                        own.iter_mut().zip(near).for_each(|(slot, near)| *slot = near);
                    }
                    Some(index) => above[index].push((number(at), near.take(slots.1).collect())),
                }
            }
        }
    }
    let mut upper = Vec::new();
    for level in &mut above {
        level.sort_unstable_by_key(|(at, _)| *at);
        upper.extend_from_slice(&number(level.len()).to_le_bytes());
        level.iter().for_each(|(at, _)| upper.extend_from_slice(&at.to_le_bytes()));
        for (_, near) in level.iter() {
            let rest = std::iter::repeat_n(&NO_NEIGHBOUR, slots.1 - near.len());
            near.iter().chain(rest).for_each(|at| upper.extend_from_slice(&at.to_le_bytes()));
        }
    }
    let lowest = lowest.iter().flat_map(|at| at.to_le_bytes()).collect();
    let slots = (number(slots.0), number(slots.1));
    Some(GraphBytes { slots, levels: number(levels), entry: entry?, lowest, upper })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_graphs_use_more_candidates() {
        assert_eq!(
            [0, 1, 100_000, 200_000, 1_000_000, 3_000_000, usize::MAX].map(breadth),
            [64, 64, 64, 80, 117, 128, 128]
        );
    }
}
