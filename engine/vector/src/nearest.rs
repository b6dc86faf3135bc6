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
use crate::kernel::{LANES, dot, prefetch};
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
#[derive(Debug, Clone, Copy)]
struct Candidate {
    bound: f32,
    row: RowLocation,
}

/// Where candidates are.
enum CandidateRows {
    /// One after another, the first one here.
    Adjacent(RowLocation),
    Each(Vec<RowLocation>),
}

/// Candidates in any order. Those of a scan with a filter are all of its rows, so it keeps only their bounds.
struct Candidates {
    bounds: Vec<f32>,
    rows: CandidateRows,
}

impl Candidates {
    fn each() -> Self {
        Self { bounds: Vec::new(), rows: CandidateRows::Each(Vec::new()) }
    }

    fn push(&mut self, Candidate { bound, row }: Candidate) {
        self.bounds.push(bound);
        if let CandidateRows::Each(rows) = &mut self.rows {
            rows.push(row);
        }
    }

    fn get(&self, index: usize) -> Candidate {
        let row = match &self.rows {
            CandidateRows::Adjacent(first) => RowLocation::new(first.part(), first.at() + index),
            CandidateRows::Each(rows) => rows[index],
        };
        Candidate { bound: self.bounds[index], row }
    }
}

/// Candidates in batches, the most promising first. Most are never looked at, and so never sorted.
struct CandidateBatches {
    all: Candidates,
    /// How many were in batches so far. The bounds of the others are less than `below`.
    taken: usize,
    below: f32,
    /// About how many are in the next batch.
    size: usize,
}

impl CandidateBatches {
    fn new(all: Candidates) -> Self {
        Self { all, taken: 0, below: f32::INFINITY, size: BATCH_SIZE }
    }
}

impl Iterator for CandidateBatches {
    type Item = Vec<Candidate>;

    fn next(&mut self) -> Option<Vec<Candidate>> {
        let (bounds, below) = (&self.all.bounds, self.below);
        let left = bounds.len() - self.taken;
        let mut least = f32::NEG_INFINITY;
        if left > 2 * self.size {
            let sample = bounds.iter().step_by(bounds.len().div_ceil(SAMPLE_SIZE));
            let mut sample: Vec<f32> = sample.copied().filter(|bound| *bound < below).collect();
            let rank = sample.len() * self.size / left;
            if rank < sample.len() {
                least = *sample.select_nth_unstable_by(rank, |a, b| b.total_cmp(a)).1;
            }
        }
        let mut batch = Vec::new();
        for (part, bounds) in bounds.chunks(LANES).enumerate() {
            // Without branches: few parts have any.
            if bounds.iter().fold(false, |any, bound| any | (*bound >= least)) {
                let chosen = bounds.iter().enumerate().filter(|(_, bound)| (least..below).contains(*bound));
                batch.extend(chosen.map(|(index, _)| self.all.get(part * LANES + index)));
            }
        }
        batch.sort_unstable_by(|a, b| b.bound.total_cmp(&a.bound));
        self.taken += batch.len();
        self.below = least;
        self.size = self.size.saturating_mul(8);
        (!batch.is_empty()).then_some(batch)
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
/// About how many candidates are in the first batch: without a filter, usually more than are looked at.
const BATCH_SIZE: usize = 256;
/// Number of candidates by which the least bound of a batch is guessed.
const SAMPLE_SIZE: usize = 1024;
/// Number of candidates whose owners are prefetched at once.
const PREFETCH_ITEMS: usize = 64;
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
        let mut candidates = Candidates::each();
        for (index, block) in levels.tail.iter().enumerate() {
            let part = levels.segments.len() + index;
            let rows = (block.codes.as_slice(), block.scales.as_slice());
            scan(rows, RowLocation::new(part, 0), &coded, self.wanted.min_score, &mut candidates);
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
                let first = RowLocation::new(part, start);
                let mut candidates = Candidates::each();
                let mut least = self.score_to_beat(&best);
                if self.wanted.filter.is_some() {
                    candidates.rows = CandidateRows::Adjacent(first);
                    least = f32::NEG_INFINITY;
                }
                scan(rows, first, &coded, least, &mut candidates);
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
    ) -> std::result::Result<Candidates, Damage> {
        let slack = rounding_bound(segment.header.dimensions as usize);
        let mut candidates = Candidates::each();
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
            let mut candidates = Candidates::each();
            let mut furthest = f32::INFINITY;
            for ScoredPosition { score, at } in found {
                let bound = score + error_bound(coded.error, segment.scale(at as usize)?.error, slack);
                furthest = furthest.min(bound);
                if bound >= self.wanted.min_score {
                    candidates.push(Candidate { bound, row: RowLocation::new(part, at as usize) });
                }
            }
            let (mut tried, found) = (best.clone(), candidates.bounds.len());
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
        candidates: Candidates,
        best: &mut NearestHeap,
    ) -> VectorResult<usize> {
        let mut looked_at = 0;
        let batches = CandidateBatches::new(candidates);
        for batch in batches {
            for some in batch.chunks(PREFETCH_ITEMS) {
                if self.wanted.filter.is_some() {
                    prefetch_items(levels, some)?;
                }
                for candidate in some {
                    // One of the same score may have the lesser owner.
                    if candidate.bound < self.score_to_beat(best) {
                        return Ok(looked_at);
                    }
                    looked_at += 1;
                    self.take_candidate(levels, query, candidate.row, best)?;
                }
            }
        }
        Ok(looked_at)
    }

    /// Adds a vector if it counts and is among the nearest.
    fn take_candidate(
        &self,
        levels: &PartitionLevels,
        query: &Query<'_>,
        row: RowLocation,
        best: &mut NearestHeap,
    ) -> VectorResult<()> {
        let (part, at) = (row.part(), row.at());
        let file = levels.segments.get(part);
        if file.is_some_and(|segment| segment.is_dead(at, self.upto)) {
            return Ok(());
        }
        let block = || &levels.tail[part - levels.segments.len()];
        let read_item = || match file {
            Some(segment) => segment.item(at),
            None => Ok(block().items[at].clone()),
        };
        let counts = |item: &VectorOrigin| Ok::<_, Error>(item.seqno <= self.upto && self.is_wanted(item)?);
        // What a filter says costs less than a score, for which the vector is read.
        let mut checked = None;
        if self.wanted.filter.is_some() {
            let item = read_item()?;
            if !counts(&item)? {
                return Ok(());
            }
            checked = Some(item);
        }
        let score = match file {
            Some(segment) => query.score(&segment.row(at)?, segment.scale(at)?.square),
            None => query.score(block().row(at, query.vector.len()), block().scale(at).square),
        };
        if score < self.score_to_beat(best) {
            return Ok(());
        }
        let item = match checked {
            Some(item) => item,
            None => {
                let item = read_item()?;
                if !counts(&item)? {
                    return Ok(());
                }
                item
            }
        };
        if is_living(self.core, self.namespace, &item, self.upto)? {
            best.push(RankedVector { score, item });
        } else if let Some(segment) = file {
            segment.note_dead(at, self.upto);
        }
        Ok(())
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

/// Prefetches the owners of candidates in files, all at once: one by one each would be waited for.
fn prefetch_items(levels: &PartitionLevels, candidates: &[Candidate]) -> std::result::Result<(), Damage> {
    let in_files = || {
        let places = candidates.iter().map(|candidate| (candidate.row.part(), candidate.row.at()));
        places.filter_map(|(part, at)| Some((levels.segments.get(part)?, at)))
    };
    in_files().try_for_each(|(file, at)| file.prefetch_place(at))?;
    in_files().try_for_each(|(file, at)| file.prefetch_owner(at))
}

/// Adds the vectors whose score may be at least `least`. They are given by their codes and scales; the first
/// is at `first`.
fn scan(
    (codes, scales): (&[i8], &[f32]),
    first: RowLocation,
    query: &VectorCodes,
    least: f32,
    candidates: &mut Candidates,
) {
    let dimensions = query.codes.len();
    let slack = rounding_bound(dimensions);
    for (at, (row, scale)) in (first.at()..).zip(codes.chunks_exact(dimensions).zip(scales.chunks_exact(3))) {
        let near = approximate_cosine((&query.codes, query.scale), (row, scale[1]));
        let bound = near + error_bound(query.error, scale[2], slack);
        if bound >= least {
            candidates.push(Candidate { bound, row: RowLocation::new(first.part(), at) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_have_every_candidate_once_the_most_promising_first() {
        for (count, values) in [(0, 1), (1, 1), (512, 7), (513, 1), (513, 1000), (20_000, 3), (100_000, 5000)]
        {
            let mut state = 88_172_645_463_325_252_u64;
            let mut bound = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state % values) as f32 / values as f32 - 0.5
            };
            let bounds: Vec<f32> = (0..count).map(|_| bound()).collect();
            let each = (0..count).map(|at| RowLocation::new(2, 10 + at)).collect();
            let adjacent = CandidateRows::Adjacent(RowLocation::new(2, 10));
            for rows in [adjacent, CandidateRows::Each(each)] {
                let batches = CandidateBatches::new(Candidates { bounds: bounds.clone(), rows });
                let mut sizes = Vec::new();
                let mut found: Vec<Candidate> =
                    batches.inspect(|batch| sizes.push(batch.len())).flatten().collect();
                assert!(found.is_sorted_by(|a, b| a.bound >= b.bound), "{count} {values}");
                found.sort_unstable_by_key(|candidate| candidate.row.at());
                assert!(
                    found
                        .iter()
                        .map(|candidate| candidate.row)
                        .eq((0..count).map(|at| RowLocation::new(2, 10 + at)))
                );
                assert!(found.iter().zip(&bounds).all(|(candidate, bound)| candidate.bound == *bound));
                // Values that repeat a lot come together.
                assert!(values < 1000 || count < 20_000 || sizes[0] < 1000, "{sizes:?}");
            }
        }
    }
}
