//! The order of hits.

use std::collections::HashMap;

use super::{MemoryHit, MemoryQuery, RankedHit};
use annals::{Error, Result};

/// Resolves an entry of `derivedFrom` to an identity's name and an id. It is an id of the entry's own
/// identity, or an identity's name, a slash and an id.
pub(super) fn resolve_source<'a>(identity: &'a str, said: &'a str) -> (&'a str, &'a str) {
    let third = said.match_indices('/').nth(2).map(|(at, _)| at);
    match third.and_then(|at| Some((said.get(..at)?, said.get(at + 1..)?))) {
        Some(named) => named,
        None => (identity, said),
    }
}

/// Sort key of a hit: the best score among the entries that it answers from, and the length of that chain.
#[derive(Clone, Copy)]
struct RankPosition {
    score: f32,
    steps: usize,
}

/// Sorts hits by score, then by id as JavaScript compares texts, then by identity. A derived hit stands
/// behind the hit that it answers from, at any depth. What-ifs stand behind all other hits.
///
/// With weights in the query, weighted scores take the place of the scores, and the weights learn the order.
///
/// # Errors
/// Those of the weights.
pub(super) fn rank(hits: Vec<MemoryHit>, wanted: &MemoryQuery<'_>) -> Result<Vec<MemoryHit>> {
    let scores: Vec<f32> = hits.iter().map(|hit| hit.score).collect();
    let mut hits: Vec<MemoryHit> = sort_by_scores(hits, &scores).into_iter().map(|(_, _, hit)| hit).collect();
    if let Some(weights) = wanted.weights {
        let scores = weights.weighted_scores(&hits)?;
        if scores.len() != hits.len() || !scores.iter().all(|score| score.is_finite()) {
            return Err(Error::bug("weights must give each hit a finite score"));
        }
        let sorted = sort_by_scores(hits, &scores);
        let ranked: Vec<RankedHit<'_>> = sorted
            .iter()
            .map(|(at, weighted_score, hit)| RankedHit {
                hit,
                weighted_score: *weighted_score,
                rank_by_score: *at,
            })
            .collect();
        weights.note_order(&ranked, wanted.hit_limit())?;
        hits = sorted.into_iter().map(|(_, _, hit)| hit).collect();
    }
    Ok(hits)
}

/// Sorts hits by these scores. Each comes with its place before and its score.
fn sort_by_scores(hits: Vec<MemoryHit>, scores: &[f32]) -> Vec<(usize, f32, MemoryHit)> {
    let places = rank_positions(&hits, scores);
    let own = scores.iter().copied().enumerate();
    let mut placed: Vec<(RankPosition, (usize, f32, MemoryHit))> =
        places.into_iter().zip(own.zip(hits).map(|((at, score), hit)| (at, score, hit))).collect();
    placed.sort_by(|(a, (_, one_score, one)), (b, (_, other_score, other))| {
        let ids = || one.entry.id.encode_utf16().cmp(other.entry.id.encode_utf16());
        one.entry
            .is_what_if
            .cmp(&other.entry.is_what_if)
            .then(b.score.total_cmp(&a.score))
            .then(a.steps.cmp(&b.steps))
            .then(other_score.total_cmp(one_score))
            .then_with(ids)
            .then_with(|| one.identity.cmp(&other.identity))
    });
    placed.into_iter().map(|(_, placed)| placed).collect()
}

/// The position of each hit; sources are computed before the hits derived from them. Hits that derive from
/// each other in a circle keep their own scores.
fn rank_positions(hits: &[MemoryHit], scores: &[f32]) -> Vec<RankPosition> {
    let own: HashMap<(&str, &str), usize> = hits
        .iter()
        .enumerate()
        .map(|(at, hit)| ((hit.identity.as_str(), hit.entry.id.as_str()), at))
        .collect();
    let mut answers: Vec<Vec<usize>> = vec![Vec::new(); hits.len()];
    let mut waits_for: Vec<usize> = vec![0; hits.len()];
    for (at, hit) in hits.iter().enumerate() {
        for said in &hit.entry.derived_from {
            if let Some(source) =
                own.get(&resolve_source(&hit.identity, said)).filter(|source| **source != at)
                && let Some(answers) = answers.get_mut(*source)
            {
                answers.push(at);
                waits_for[at] += 1;
            }
        }
    }
    let mut places: Vec<RankPosition> =
        scores.iter().map(|score| RankPosition { score: *score, steps: 0 }).collect();
    let mut ready: Vec<usize> = (0..hits.len()).filter(|at| waits_for[*at] == 0).collect();
    while let Some(source) = ready.pop() {
        let of = places[source];
        for at in std::mem::take(&mut answers[source]) {
            let place = &mut places[at];
            if place.steps == 0 || of.score.total_cmp(&place.score).is_gt() {
                place.score = of.score;
            }
            place.steps = place.steps.max(of.steps + 1);
            waits_for[at] -= 1;
            if waits_for[at] == 0 {
                ready.push(at);
            }
        }
    }
    places
}
