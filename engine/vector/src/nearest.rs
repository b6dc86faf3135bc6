//! Finds the nearest vectors of a partition.
//!
//! A search is as of one record, as of which all living vectors are in the levels that it reads. Later records do
//! not count, neither as vectors nor as deletions.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;

use roaring::RoaringBitmap;

use crate::among::ResolvedOwnerFilter;
use crate::error::{Error, Result};
use crate::graph::{ScoredPosition, walk};
use crate::ids::{NamespaceId, Seqno};
use crate::index::VectorIndex;
use crate::kernel::{dot, prefetch};
use crate::kv::core::Core;
use crate::kv::embeddings::{check_embedder_id, check_vector};
use crate::kv::view::View;
use crate::log::open::Damage;
use crate::merged::RowLocation;
use crate::partition::PartitionLevels;
use crate::quantise::{VectorCodes, approximate_cosine, encode, error_bound, rounding_bound};
use crate::search_error::VectorError;
use crate::search_error::VectorResult;
use crate::source::is_living;
use crate::types::{Search, SearchHit, VectorOrigin};
use crate::vector_file::{CodeScale, OpenVectorFile};

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
    #[expect(clippy::cast_possible_truncation, reason = "a score is rounded to 32 bits")]
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
    row: RowLocation,
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
struct RankedVector {
    score: f32,
    item: VectorOrigin,
}

impl PartialEq for RankedVector {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for RankedVector {}

impl PartialOrd for RankedVector {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for RankedVector {
    fn cmp(&self, other: &Self) -> Ordering {
        other.score.total_cmp(&self.score).then_with(|| self.item.owner.cmp(&other.item.owner))
    }
}

/// The nearest so far.
#[derive(Debug, Clone)]
struct NearestHeap {
    heap: BinaryHeap<RankedVector>,
    k: usize,
}

impl NearestHeap {
    fn push(&mut self, kept: RankedVector) {
        self.heap.push(kept);
        if self.heap.len() > self.k {
            self.heap.pop();
        }
    }

    /// The score below which nothing is among them; `None` while there is room.
    fn worst_score(&self) -> Option<f32> {
        match self.k {
            0 => Some(f32::INFINITY),
            k if self.heap.len() < k => None,
            _ => self.heap.peek().map(|worst| worst.score),
        }
    }
}

/// Minimum number of candidates with which a walk begins.
const WIDTH_MIN: usize = 64;
/// Vectors that a walk visits for each that it returns.
const WALK_COST_PER_RESULT: u64 = 24;
/// Rows that are scanned in the time that a wide walk takes for each vector that it returns.
const SCAN_ROWS_PER_RESULT: usize = 200;
/// Rows of a scan after which only those count that may beat the nearest so far.
const SCAN_ROWS: usize = 4096;
/// The same with a filter: while it lets few pass, none beats another, and it is called for the nearest of each part.
const FILTERED_SCAN_ROWS: usize = 64 * SCAN_ROWS;
/// Number of codes that are prefetched while one is compared.
const PREFETCH_ROWS: usize = 8;
/// Maximum number of tries of a search, which starts again if files were discarded meanwhile.
const ATTEMPTS_MAX: usize = 8;

/// The nearest vectors of an embedder in a namespace.
pub fn nearest(
    floor: &VectorIndex,
    core: &Arc<Core>,
    namespace: NamespaceId,
    embedder: &str,
    vector: &[f32],
    wanted: &Search<'_>,
) -> Result<Vec<SearchHit>> {
    check_embedder_id(embedder)?;
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
        let losses = floor.await_discards();
        let found = search_once(floor, core, namespace, (embedder, &query), wanted);
        match found {
            Err(VectorError::Damaged(damage)) if tries < ATTEMPTS_MAX => floor.discard_damaged(core, damage),
            Err(VectorError::Damaged(damage)) => return Err(damage.error()),
            // Files were discarded while this search read them, or what was left of them.
            _ if floor.discards() != losses && tries < ATTEMPTS_MAX => {}
            Ok(found) => return Ok(found),
            Err(VectorError::Other(error)) => return Err(error),
        }
    }
}

fn search_once(
    floor: &VectorIndex,
    core: &Arc<Core>,
    namespace: NamespaceId,
    (embedder, query): (&str, &Query<'_>),
    wanted: &Search<'_>,
) -> VectorResult<Vec<SearchHit>> {
    let losses = floor.discards();
    floor.catch_up(core)?;
    let Some(partition) = floor.partition(namespace, embedder) else {
        return Err(unknown_embedder(floor, namespace, embedder).into());
    };
    if partition.dimensions != query.vector.len() {
        let message = format!(
            "the vectors of {embedder:?} have {} dimensions, the vector of the search has {}",
            partition.dimensions,
            query.vector.len()
        );
        return Err(Error::invalid(message).into());
    }
    let among =
        wanted.owners.map(|among| ResolvedOwnerFilter::new(among, (floor, core, namespace))).transpose()?;
    let (upto, levels) = loop {
        let upto = floor.upto();
        let levels = partition.levels();
        // A flush between these two lines leaves out vectors that were alive as of `upto`. While files are
        // discarded, the result does not count.
        if levels.as_of <= upto || floor.discards() != losses {
            break (upto, levels);
        }
    };
    PartitionSearch { floor, core, namespace, upto, wanted, among }.search(&levels, query)
}

fn unknown_embedder(floor: &VectorIndex, namespace: NamespaceId, embedder: &str) -> Error {
    let there = floor.embedders(namespace);
    let there = match there.is_empty() {
        true => "it has no vectors at all".to_owned(),
        false => format!("it has those of {}", there.join(", ")),
    };
    Error::not_found(format!("this namespace has no vectors of embedder {embedder:?}: {there}"))
}

/// One search.
pub struct PartitionSearch<'a> {
    pub floor: &'a VectorIndex,
    pub core: &'a Core,
    pub namespace: NamespaceId,
    /// As of this record.
    pub upto: Seqno,
    pub wanted: &'a Search<'a>,
    pub among: Option<ResolvedOwnerFilter<'a>>,
}

impl PartitionSearch<'_> {
    pub fn search(&self, levels: &PartitionLevels, query: &Query<'_>) -> VectorResult<Vec<SearchHit>> {
        let mut best = NearestHeap { heap: BinaryHeap::new(), k: self.wanted.k };
        let coded = encode(query.vector);
        let mut candidates = Vec::new();
        for (index, block) in levels.tail.iter().enumerate() {
            let part = levels.segments.len() + index;
            let rows = (block.codes.as_slice(), block.scales.as_slice());
            scan(rows, (part, 0), &coded, self.wanted.min_score, &mut candidates);
        }
        self.take_candidates(levels, query, candidates, &mut best)?;
        for (part, segment) in levels.segments.iter().enumerate() {
            let among = self.among.map(|among| among.positions(segment)).transpose()?;
            let among = among.as_deref();
            let walked = !self.wanted.exact
                && segment.header.slots.0 > 0
                && self.walk(levels, part, (query, &coded), among, &mut best)?;
            if walked {
                continue;
            }
            if let Some(among) = among {
                let candidates = self.scan_positions(segment, part, &coded, among)?;
                self.take_candidates(levels, query, candidates, &mut best)?;
                continue;
            }
            let rows_at_once = if self.wanted.filter.is_some() { FILTERED_SCAN_ROWS } else { SCAN_ROWS };
            for start in (0..segment.len()).step_by(rows_at_once) {
                let range = start..segment.len().min(start + rows_at_once);
                let scales = segment.scales()?;
                let scales = scales.get(3 * start..).unwrap_or_default();
                let rows = (segment.codes(range)?, scales);
                let mut candidates = Vec::new();
                scan(rows, (part, start), &coded, self.score_to_beat(&best), &mut candidates);
                self.take_candidates(levels, query, candidates, &mut best)?;
            }
        }
        Ok(self.collect_hits(best)?)
    }

    /// The score that a vector must at least have, given what was found.
    fn score_to_beat(&self, best: &NearestHeap) -> f32 {
        best.worst_score().map_or(self.wanted.min_score, |worst| worst.max(self.wanted.min_score))
    }

    /// The vectors at some positions whose score may be high enough.
    fn scan_positions(
        &self,
        segment: &OpenVectorFile,
        part: usize,
        query: &VectorCodes,
        among: &RoaringBitmap,
    ) -> std::result::Result<Vec<Candidate>, Damage> {
        let slack = rounding_bound(segment.header.dimensions as usize);
        let mut candidates = Vec::with_capacity(usize::try_from(among.len()).unwrap_or(0));
        let mut ahead = among.iter().skip(PREFETCH_ROWS);
        for at in among {
            if let Some(next) = ahead.next() {
                prefetch(segment.codes(next as usize..next as usize + 1)?);
            }
            let row = segment.codes(at as usize..at as usize + 1)?;
            let CodeScale { scale, error, .. } = segment.scale(at as usize)?;
            let near = approximate_cosine((&query.codes, query.scale), (row, scale));
            let bound = near + error_bound(query.error, error, slack);
            if bound >= self.wanted.min_score {
                candidates.push(Candidate { bound, row: RowLocation::new(part, at as usize) });
            }
        }
        Ok(candidates)
    }

    /// Walks a file's graph, wider while too few of the results count. Returns false if a scan costs no more.
    fn walk(
        &self,
        levels: &PartitionLevels,
        part: usize,
        (query, coded): (&Query<'_>, &VectorCodes),
        among: Option<&RoaringBitmap>,
        best: &mut NearestHeap,
    ) -> VectorResult<bool> {
        let segment = &levels.segments[part];
        let slack = rounding_bound(segment.header.dimensions as usize);
        let k = self.wanted.k;
        let mut width = self.wanted.width.unwrap_or(k.saturating_mul(2).max(WIDTH_MIN)).max(k).max(1);
        loop {
            // The fewer vectors count, the more others a walk passes.
            let counted = among.map_or(segment.len() as u64, RoaringBitmap::len);
            let walked =
                (width as u64).saturating_mul(WALK_COST_PER_RESULT).saturating_mul(segment.len() as u64);
            if counted.saturating_mul(counted) < walked {
                return Ok(false);
            }
            let found = walk(segment, coded, width, among)?;
            let mut candidates = Vec::with_capacity(found.len());
            let mut furthest = f32::INFINITY;
            for ScoredPosition { score, at } in found {
                let bound = score + error_bound(coded.error, segment.scale(at as usize)?.error, slack);
                furthest = furthest.min(bound);
                if bound >= self.wanted.min_score {
                    candidates.push(Candidate { bound, row: RowLocation::new(part, at as usize) });
                }
            }
            let (mut tried, found) = (best.clone(), candidates.len());
            let looked_at = self.take_candidates(levels, query, candidates, &mut tried)?;
            let enough = tried.heap.len() >= self.wanted.k;
            // A walk misses some of the furthest that it returns. A filter that lets few pass leads down to those.
            let is_deep = self.wanted.filter.is_some() && looked_at.saturating_mul(2) > found;
            // Everything further away than these is below the minimum score.
            if enough && !is_deep || furthest < self.wanted.min_score {
                *best = tried;
                return Ok(true);
            }
            width = width.saturating_mul(4);
            if self.wanted.filter.is_some() {
                // As many as should pass, and twice that.
                let passed = tried.heap.len().saturating_sub(best.heap.len()).max(1);
                width = width.max(k.saturating_mul(2).saturating_mul(looked_at) / passed);
                if among.is_none() && width.saturating_mul(SCAN_ROWS_PER_RESULT) > segment.len() {
                    return Ok(false);
                }
            }
        }
    }

    /// Adds the candidates that count and are among the nearest, the most promising first. Returns how many of them
    /// were looked at.
    fn take_candidates(
        &self,
        levels: &PartitionLevels,
        query: &Query<'_>,
        candidates: Vec<Candidate>,
        best: &mut NearestHeap,
    ) -> VectorResult<usize> {
        let mut candidates = BinaryHeap::from(candidates);
        let mut looked_at = 0;
        while let Some(Candidate { bound, row }) = candidates.pop() {
            // One of the same score may have the lesser owner.
            if best.worst_score().is_some_and(|worst| bound < worst) {
                break;
            }
            looked_at += 1;
            let (part, at) = (row.part(), row.at());
            let file = levels.segments.get(part);
            if file.is_some_and(|segment| segment.is_dead(at, self.upto)) {
                continue;
            }
            let block = || &levels.tail[part - levels.segments.len()];
            let read_item = || match file {
                Some(segment) => segment.item(at),
                None => Ok(block().items[at].clone()),
            };
            let counts =
                |item: &VectorOrigin| Ok::<_, Error>(item.seqno <= self.upto && self.is_wanted(item)?);
            // What a filter says costs less than a score, for which the vector is read.
            let mut checked = None;
            if self.wanted.filter.is_some() {
                let item = read_item()?;
                if !counts(&item)? {
                    continue;
                }
                checked = Some(item);
            }
            let score = match file {
                Some(segment) => query.score(&segment.row(at)?, segment.scale(at)?.square),
                None => query.score(block().row(at, query.vector.len()), block().scale(at).square),
            };
            if score < self.score_to_beat(best) {
                continue;
            }
            let item = match checked {
                Some(item) => item,
                None => {
                    let item = read_item()?;
                    if !counts(&item)? {
                        continue;
                    }
                    item
                }
            };
            if is_living(self.core, self.namespace, &item, self.upto)? {
                best.push(RankedVector { score, item });
            } else if let Some(segment) = file {
                segment.note_dead(at, self.upto);
            }
        }
        Ok(looked_at)
    }

    fn is_wanted(&self, item: &VectorOrigin) -> Result<bool> {
        if let Some(among) = &self.among
            && !among.passes(&item.owner)?
        {
            return Ok(false);
        }
        match self.wanted.filter {
            Some(filter) => Ok(filter(&self.floor.resolve_owner(self.core, &item.owner)?)),
            None => Ok(true),
        }
    }

    fn collect_hits(&self, best: NearestHeap) -> Result<Vec<SearchHit>> {
        let found = best.heap.into_sorted_vec();
        let found = found.into_iter().map(|kept| {
            let owner = self.floor.resolve_owner(self.core, &kept.item.owner)?;
            Ok(SearchHit { owner, seqno: kept.item.seqno, score: kept.score })
        });
        found.collect()
    }
}

/// Adds the vectors whose score may be at least `least`. They are given by their codes and scales; the first
/// is at position `first`.
fn scan(
    (codes, scales): (&[i8], &[f32]),
    (part, first): (usize, usize),
    query: &VectorCodes,
    least: f32,
    candidates: &mut Vec<Candidate>,
) {
    let dimensions = query.codes.len();
    let slack = rounding_bound(dimensions);
    for (at, (row, scale)) in (first..).zip(codes.chunks_exact(dimensions).zip(scales.chunks_exact(3))) {
        let near = approximate_cosine((&query.codes, query.scale), (row, scale[1]));
        let bound = near + error_bound(query.error, scale[2], slack);
        if bound >= least {
            candidates.push(Candidate { bound, row: RowLocation::new(part, at) });
        }
    }
}
