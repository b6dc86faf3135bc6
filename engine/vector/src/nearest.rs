//! Finds the nearest vectors of a partition.
//!
//! A search is as of one record, up to which all vectors are in the levels that it reads. Later records do
//! not count, neither as vectors nor as deletions.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;

use roaring::RoaringBitmap;

use crate::among::Asked;
use crate::error::{Error, Result};
use crate::floor::Floor;
use crate::graph::{Near, walk};
use crate::ids::{NamespaceId, Seqno};
use crate::item::{Found, Item, Search};
use crate::kernel::{dot, soon};
use crate::kv::core::Core;
use crate::kv::embeddings::{check_id, check_vector};
use crate::kv::view::View;
use crate::log::open::Damage;
use crate::partition::{Levels, Partition};
use crate::quantise::{Coded, code, near, reach, slack};
use crate::segment::{Scale, Segment};
use crate::source::lives;
use crate::stopped::{Stopped, Tried};

/// A vector to search with.
pub struct Query<'a> {
    pub vector: &'a [f32],
    /// Its dot product with itself.
    pub square: f32,
}

impl<'a> Query<'a> {
    pub fn new(vector: &'a [f32]) -> Self {
        Self { vector, square: dot(vector, vector) }
    }

    /// The cosine between it and a vector, whose dot product with itself is `square`. Exactly 1 for equal
    /// vectors.
    pub fn score(&self, vector: &[f32], square: f32) -> f32 {
        let dot = f64::from(dot(self.vector, vector));
        let cosine = dot / (f64::from(self.square) * f64::from(square)).sqrt();
        cosine.clamp(-1.0, 1.0) as f32
    }
}

/// A vector with an upper bound of its score.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Candidate {
    bound: f32,
    /// The index of a file, or of a block after the files.
    part: u32,
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

/// A vector that is returned unless nearer ones come. The greatest is the worst.
#[derive(Debug, Clone)]
struct Kept {
    score: f32,
    item: Item,
}

impl PartialEq for Kept {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Kept {}

impl PartialOrd for Kept {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Kept {
    fn cmp(&self, other: &Self) -> Ordering {
        other.score.total_cmp(&self.score).then_with(|| self.item.owner.cmp(&other.item.owner))
    }
}

/// The nearest so far.
#[derive(Debug, Clone)]
struct Best {
    all: BinaryHeap<Kept>,
    k: usize,
}

impl Best {
    fn push(&mut self, kept: Kept) {
        self.all.push(kept);
        if self.all.len() > self.k {
            self.all.pop();
        }
    }

    /// The score below which nothing is among them; `None` while there is room.
    fn worst(&self) -> Option<f32> {
        match self.k {
            0 => Some(f32::INFINITY),
            k if self.all.len() < k => None,
            _ => self.all.peek().map(|worst| worst.score),
        }
    }
}

/// Minimum number of candidates with which a walk begins.
const WIDTH_MIN: usize = 64;
/// Vectors that a walk visits for each that it returns.
const SCAN_PART: u64 = 24;
/// Rows of a scan after which only those count that may beat the nearest so far.
const SCAN_ROWS: usize = 4096;
/// Number of codes that are prefetched while one is compared.
const AHEAD: usize = 8;
/// Maximum number of tries of a search, which starts again if files were discarded meanwhile.
const TRIES_MAX: usize = 8;

/// The nearest vectors of an embedder in a namespace.
pub fn nearest(
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
        return Err(Error::invalid("the minimum score is NaN: give a number from -1 to 1"));
    }
    // Keeps versions that end meanwhile: the search checks what lives as of a record that is not before this
    // one.
    let _view = View::new(core);
    let query = Query::new(vector);
    let mut tries = 0;
    loop {
        tries += 1;
        let losses = floor.losses();
        let found = look(floor, core, namespace, (embedder, &query), wanted);
        match found {
            Err(Stopped::Damaged(damage)) if tries < TRIES_MAX => floor.lose(core, damage),
            Err(Stopped::Damaged(damage)) => return Err(damage.error()),
            // Files were discarded while this search read them, or what was left of them.
            _ if floor.losses() != losses && tries < TRIES_MAX => {}
            Ok(found) => return Ok(found),
            Err(Stopped::Other(error)) => return Err(error),
        }
    }
}

fn look(
    floor: &Floor,
    core: &Arc<Core>,
    namespace: NamespaceId,
    (embedder, query): (&str, &Query<'_>),
    wanted: &Search<'_>,
) -> Tried<Vec<Found>> {
    floor.catch_up(core)?;
    let upto = floor.upto();
    let Some(partition) = floor.partition(namespace, embedder) else {
        return Err(unknown(floor, namespace, embedder).into());
    };
    if partition.dimensions != query.vector.len() {
        let message = format!(
            "the vectors of {embedder:?} have {} dimensions, the vector of the search has {}",
            partition.dimensions,
            query.vector.len()
        );
        return Err(Error::invalid(message).into());
    }
    let among = wanted.among.map(|among| Asked::new(among, (floor, core, namespace))).transpose()?;
    Looking { floor, core, namespace, upto, wanted, among }.look(&partition, query)
}

fn unknown(floor: &Floor, namespace: NamespaceId, embedder: &str) -> Error {
    let there = floor.embedders(namespace);
    let there = match there.is_empty() {
        true => "it has no vectors at all".to_owned(),
        false => format!("it has those of {}", there.join(", ")),
    };
    Error::not_found(format!("this namespace has no vectors of embedder {embedder:?}: {there}"))
}

/// One search.
pub struct Looking<'a> {
    pub floor: &'a Floor,
    pub core: &'a Core,
    pub namespace: NamespaceId,
    /// As of this record.
    pub upto: Seqno,
    pub wanted: &'a Search<'a>,
    pub among: Option<Asked<'a>>,
}

impl Looking<'_> {
    pub fn look(&self, partition: &Partition, query: &Query<'_>) -> Tried<Vec<Found>> {
        let levels = partition.levels();
        let mut best = Best { all: BinaryHeap::new(), k: self.wanted.k };
        let coded = code(query.vector);
        let mut candidates = Vec::new();
        for (index, block) in levels.tail.iter().enumerate() {
            let part = levels.segments.len() + index;
            let rows = (block.codes.as_slice(), block.scales.as_slice());
            scan(rows, (part, 0), &coded, self.wanted.min_score, &mut candidates);
        }
        self.take(&levels, query, candidates, &mut best)?;
        for (part, segment) in levels.segments.iter().enumerate() {
            let among = self.among.map(|among| among.positions(segment)).transpose()?;
            let among = among.as_deref();
            let walked = !self.wanted.exact
                && segment.header.slots.0 > 0
                && self.walk(&levels, part, (query, &coded), among, &mut best)?;
            if walked {
                continue;
            }
            if let Some(among) = among {
                let candidates = self.scan_some(segment, part, &coded, among)?;
                self.take(&levels, query, candidates, &mut best)?;
                continue;
            }
            for start in (0..segment.len()).step_by(SCAN_ROWS) {
                let range = start..segment.len().min(start + SCAN_ROWS);
                let scales = segment.scales()?;
                let scales = scales.get(3 * start..).unwrap_or_default();
                let rows = (segment.codes(range)?, scales);
                let mut candidates = Vec::new();
                scan(rows, (part, start), &coded, self.least(&best), &mut candidates);
                self.take(&levels, query, candidates, &mut best)?;
            }
        }
        Ok(self.given(best)?)
    }

    /// The score that a vector must at least have, given what was found.
    fn least(&self, best: &Best) -> f32 {
        best.worst().map_or(self.wanted.min_score, |worst| worst.max(self.wanted.min_score))
    }

    /// The vectors at some positions whose score may be high enough.
    fn scan_some(
        &self,
        segment: &Segment,
        part: usize,
        query: &Coded,
        among: &RoaringBitmap,
    ) -> std::result::Result<Vec<Candidate>, Damage> {
        let slack = slack(segment.header.dimensions as usize);
        let mut candidates = Vec::with_capacity(among.len() as usize);
        let mut ahead = among.iter().skip(AHEAD);
        for at in among {
            if let Some(next) = ahead.next() {
                soon(segment.codes(next as usize..next as usize + 1)?);
            }
            let row = segment.codes(at as usize..at as usize + 1)?;
            let Scale { scale, error, .. } = segment.scale(at as usize)?;
            let near = near((&query.codes, query.scale), (row, scale));
            let bound = near + reach(query.error, error, slack);
            if bound >= self.wanted.min_score {
                candidates.push(Candidate { bound, part: part as u32, at });
            }
        }
        Ok(candidates)
    }

    /// Walks a file's graph, wider while too few of the results count. Returns false if a scan costs no more.
    fn walk(
        &self,
        levels: &Levels,
        part: usize,
        (query, coded): (&Query<'_>, &Coded),
        among: Option<&RoaringBitmap>,
        best: &mut Best,
    ) -> Tried<bool> {
        let segment = &levels.segments[part];
        let slack = slack(segment.header.dimensions as usize);
        let k = self.wanted.k;
        let mut width = self.wanted.width.unwrap_or(k.saturating_mul(2).max(WIDTH_MIN)).max(k).max(1);
        loop {
            // The fewer vectors count, the more others a walk passes.
            let counted = among.map_or(segment.len(), |among| among.len() as usize) as u64;
            let walked = (width as u64).saturating_mul(SCAN_PART).saturating_mul(segment.len() as u64);
            if counted.saturating_mul(counted) < walked {
                return Ok(false);
            }
            let found = walk(segment, coded, width, among)?;
            let mut candidates = Vec::with_capacity(found.len());
            let mut furthest = f32::INFINITY;
            for Near { score, at } in found {
                let bound = score + reach(coded.error, segment.scale(at as usize)?.error, slack);
                furthest = furthest.min(bound);
                if bound >= self.wanted.min_score {
                    candidates.push(Candidate { bound, part: part as u32, at });
                }
            }
            let mut tried = best.clone();
            self.take(levels, query, candidates, &mut tried)?;
            let enough = tried.all.len() >= self.wanted.k;
            // Everything further away than these is below the minimum score.
            if enough || furthest < self.wanted.min_score {
                *best = tried;
                return Ok(true);
            }
            width = width.saturating_mul(4);
        }
    }

    /// Adds the candidates that count and are among the nearest, the most promising first.
    fn take(
        &self,
        levels: &Levels,
        query: &Query<'_>,
        candidates: Vec<Candidate>,
        best: &mut Best,
    ) -> Tried<()> {
        let mut candidates = BinaryHeap::from(candidates);
        while let Some(Candidate { bound, part, at }) = candidates.pop() {
            // One of the same score may have the lesser owner.
            if best.worst().is_some_and(|worst| bound < worst) {
                break;
            }
            let at = at as usize;
            let file = levels.segments.get(part as usize);
            let enough = |score: f32| score >= self.least(best);
            let (item, score) = match file {
                Some(segment) => {
                    if segment.is_dead(at, self.upto) {
                        continue;
                    }
                    let score = query.score(&segment.row(at)?, segment.scale(at)?.square);
                    if !enough(score) {
                        continue;
                    }
                    (segment.item(at)?, score)
                }
                None => {
                    let block = &levels.tail[part as usize - levels.segments.len()];
                    let score = query.score(block.row(at, query.vector.len()), block.scale(at).square);
                    if !enough(score) {
                        continue;
                    }
                    (block.items[at].clone(), score)
                }
            };
            if item.seqno > self.upto || !self.is_wanted(&item)? {
                continue;
            }
            if lives(self.core, self.namespace, &item, self.upto)? {
                best.push(Kept { score, item });
            } else if let Some(segment) = file {
                segment.note_dead(at, self.upto);
            }
        }
        Ok(())
    }

    fn is_wanted(&self, item: &Item) -> Result<bool> {
        if let Some(among) = &self.among
            && !among.passes(&item.owner)?
        {
            return Ok(false);
        }
        match self.wanted.filter {
            Some(filter) => Ok(filter(&self.floor.owner(self.core, &item.owner)?)),
            None => Ok(true),
        }
    }

    fn given(&self, best: Best) -> Result<Vec<Found>> {
        let found = best.all.into_sorted_vec();
        let found = found.into_iter().map(|kept| {
            let owner = self.floor.owner(self.core, &kept.item.owner)?;
            Ok(Found { owner, seqno: kept.item.seqno, score: kept.score })
        });
        found.collect()
    }
}

/// Adds the vectors whose score may be at least `least`. They are given by their codes and scales; the first
/// is at position `first`.
fn scan(
    (codes, scales): (&[i8], &[f32]),
    (part, first): (usize, usize),
    query: &Coded,
    least: f32,
    candidates: &mut Vec<Candidate>,
) {
    let dimensions = query.codes.len();
    let slack = slack(dimensions);
    for (at, (row, scale)) in (first..).zip(codes.chunks_exact(dimensions).zip(scales.chunks_exact(3))) {
        let near = near((&query.codes, query.scale), (row, scale[1]));
        let bound = near + reach(query.error, scale[2], slack);
        if bound >= least {
            candidates.push(Candidate { bound, part: part as u32, at: at as u32 });
        }
    }
}
