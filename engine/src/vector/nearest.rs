//! Finding the nearest vectors of a partition.
//!
//! A search happens at one moment: at a record up to which all vectors are in the levels that it looks at. What is newer
//! does not count, neither as a vector nor as the end of one.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ids::{NamespaceId, Seqno};
use crate::kv::core::Core;
use crate::kv::embeddings::{check_id, check_vector};
use crate::kv::view::View;
use crate::vector::floor::Floor;
use crate::vector::item::{Found, Item, Search};
use crate::vector::kernel::dot;
use crate::vector::partition::Partition;
use crate::vector::source::lives;

/// A query and what is looked at by it.
pub(super) struct Query<'a> {
    pub(super) vector: &'a [f32],
    /// Its dot product with itself.
    pub(super) square: f32,
}

impl<'a> Query<'a> {
    pub(super) fn new(vector: &'a [f32]) -> Self {
        Self { vector, square: dot(vector, vector) }
    }

    /// The cosine between it and a vector, whose dot product with itself is `square`. Of equal vectors just 1.
    pub(super) fn score(&self, vector: &[f32], square: f32) -> f32 {
        let dot = f64::from(dot(self.vector, vector));
        let cosine = dot / (f64::from(self.square) * f64::from(square)).sqrt();
        cosine.clamp(-1.0, 1.0) as f32
    }
}

/// A vector with what is known of its score: at most this.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Candidate {
    bound: f32,
    block: u32,
    at: u32,
}

impl Eq for Candidate {}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.bound.total_cmp(&other.bound)
    }
}

/// A vector that is given unless nearer ones come. The greatest is the worst.
#[derive(Debug, Clone)]
struct Kept<'a> {
    score: f32,
    item: &'a Item,
}

impl PartialEq for Kept<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Kept<'_> {}

impl PartialOrd for Kept<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Kept<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.score.total_cmp(&self.score).then_with(|| self.item.owner.cmp(&other.item.owner))
    }
}

/// The nearest vectors of an embedder in a namespace.
pub(crate) fn nearest(
    floor: &Floor,
    core: &Arc<Core>,
    namespace: NamespaceId,
    embedder: &str,
    vector: &[f32],
    wanted: &Search<'_>,
) -> Result<Vec<Found>> {
    check_id(embedder)?;
    check_vector(embedder, vector)?;
    if wanted.min_score.is_nan() {
        return Err(Error::invalid("no score is at least NaN: give a number from -1 to 1"));
    }
    // Keeps what ends meanwhile: whether something lives is asked as of a record that is not before this one.
    let _view = View::new(core);
    floor.catch_up(core)?;
    let upto = floor.upto();
    let Some(partition) = floor.partition(namespace, embedder) else {
        return Err(unknown(floor, namespace, embedder));
    };
    if partition.dimensions != vector.len() {
        return Err(Error::invalid(format!(
            "the vectors of {embedder:?} have {} dimensions, the one that is looked for {}",
            partition.dimensions,
            vector.len()
        )));
    }
    Looking { floor, core, namespace, upto, wanted }.scan(&partition, &Query::new(vector))
}

fn unknown(floor: &Floor, namespace: NamespaceId, embedder: &str) -> Error {
    let there = floor.embedders(namespace);
    let there = match there.is_empty() {
        true => "it has no vectors at all".to_owned(),
        false => format!("it has those of {}", there.join(", ")),
    };
    Error::not_found(format!("no vector of this namespace is of embedder {embedder:?}: {there}"))
}

/// One search.
struct Looking<'a> {
    floor: &'a Floor,
    core: &'a Core,
    namespace: NamespaceId,
    /// As of this record.
    upto: Seqno,
    wanted: &'a Search<'a>,
}

impl Looking<'_> {
    fn scan(&self, partition: &Partition, query: &Query<'_>) -> Result<Vec<Found>> {
        let levels = partition.levels();
        let mut candidates = Vec::new();
        for (index, block) in levels.tail.iter().enumerate() {
            for (at, square) in block.squares.iter().enumerate() {
                let bound = query.score(block.row(at, partition.dimensions), *square);
                if bound >= self.wanted.min_score {
                    candidates.push(Candidate { bound, block: index as u32, at: at as u32 });
                }
            }
        }
        let mut candidates = BinaryHeap::from(candidates);
        let mut best: BinaryHeap<Kept<'_>> = BinaryHeap::new();
        while let Some(candidate) = candidates.pop() {
            let full = best.len() >= self.wanted.k;
            // One of the same score may have the lesser owner.
            if full && best.peek().is_none_or(|worst| candidate.bound < worst.score) {
                break;
            }
            let block = &levels.tail[candidate.block as usize];
            let kept = Kept { score: candidate.bound, item: &block.items[candidate.at as usize] };
            if full && best.peek().is_some_and(|worst| kept >= *worst) {
                continue;
            }
            if self.counts(kept.item)? {
                best.push(kept);
                if best.len() > self.wanted.k {
                    best.pop();
                }
            }
        }
        self.given(best)
    }

    /// Whether a vector is there as of the search's record, its owner still has it, and the caller wants it.
    fn counts(&self, item: &Item) -> Result<bool> {
        if item.seqno > self.upto {
            return Ok(false);
        }
        if let Some(filter) = self.wanted.filter
            && !filter(&self.floor.owner(self.core, &item.owner)?)
        {
            return Ok(false);
        }
        lives(self.core, self.namespace, item, self.upto)
    }

    fn given(&self, best: BinaryHeap<Kept<'_>>) -> Result<Vec<Found>> {
        let found = best.into_sorted_vec();
        let found = found.into_iter().map(|kept| {
            let owner = self.floor.owner(self.core, &kept.item.owner)?;
            Ok(Found { owner, seqno: kept.item.seqno, score: kept.score })
        });
        found.collect()
    }
}
