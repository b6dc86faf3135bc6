//! The order of hits.

use std::collections::HashMap;

use super::MemoryHit;

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
pub(super) fn rank(hits: Vec<MemoryHit>) -> Vec<MemoryHit> {
    let places = rank_positions(&hits);
    let mut placed: Vec<(RankPosition, MemoryHit)> = places.into_iter().zip(hits).collect();
    placed.sort_by(|(a, one), (b, other)| {
        let ids = || one.entry.id.encode_utf16().cmp(other.entry.id.encode_utf16());
        one.entry
            .is_what_if
            .cmp(&other.entry.is_what_if)
            .then(b.score.total_cmp(&a.score))
            .then(a.steps.cmp(&b.steps))
            .then(other.score.total_cmp(&one.score))
            .then_with(ids)
            .then_with(|| one.identity.cmp(&other.identity))
    });
    placed.into_iter().map(|(_, hit)| hit).collect()
}

/// The position of each hit; sources are computed before the hits derived from them. Hits that derive from
/// each other in a circle keep their own scores.
fn rank_positions(hits: &[MemoryHit]) -> Vec<RankPosition> {
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
        hits.iter().map(|hit| RankPosition { score: hit.score, steps: 0 }).collect();
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
