//! Weights in searches of the memory.

use annals::Result;
use annals_memory::{HitWeights, MemoryHit, RankedHit};

use crate::Diagnostics;
use crate::retrieval::{AdjustedCandidate, Candidate, Injection};

/// The observation that a memory entry is: its id if that is a UUID, else the identity's name, a slash and the id,
/// since ids such as `snap-1` exist in every conversation.
#[must_use]
pub fn observation_id(identity: &str, entry_id: &str) -> String {
    if is_uuid(entry_id) { entry_id.to_owned() } else { format!("{identity}/{entry_id}") }
}

fn is_uuid(id: &str) -> bool {
    let is_place_of_hyphen = |at: usize| matches!(at, 8 | 13 | 18 | 23);
    id.len() == 36
        && id.bytes().enumerate().all(|(at, byte)| match is_place_of_hyphen(at) {
            true => byte == b'-',
            false => byte.is_ascii_hexdigit(),
        })
}

/// Orders the hits of one search by their scores and weights. Without diagnostics every weight is 1.
#[derive(Debug, Clone, Copy)]
pub struct RecallWeights<'a> {
    /// Where the weights are kept.
    pub diagnostics: &'a Diagnostics,
    /// The organisation whose switch holds.
    pub org: Option<&'a str>,
    /// The session that asks. Its candidates are logged, and the hits that it is given are logged as injected.
    pub session: Option<&'a str>,
}

impl HitWeights for RecallWeights<'_> {
    fn weighted_scores(&self, hits: &[MemoryHit]) -> Result<Vec<f32>> {
        let adjusted = self.diagnostics.adjust_in_place(self.org, &candidates(hits.iter()))?;
        Ok(adjusted.iter().map(|candidate| rounded(candidate.weighted_score)).collect())
    }

    fn note_order(&self, hits: &[RankedHit<'_>], given: usize) -> Result<()> {
        let Some(session) = self.session else { return Ok(()) };
        let candidates = candidates(hits.iter().map(|ranked| ranked.hit));
        let mut adjusted: Vec<AdjustedCandidate> = self.diagnostics.adjust_in_place(self.org, &candidates)?;
        for (rank, (candidate, ranked)) in adjusted.iter_mut().zip(hits).enumerate() {
            candidate.unweighted_rank = ranked.rank_by_score as u64;
            candidate.weighted_rank = rank as u64;
        }
        self.diagnostics.log_retrieval(session, &adjusted)?;
        let observation_ids: Vec<String> =
            adjusted.into_iter().take(given).map(|candidate| candidate.id).collect();
        if observation_ids.is_empty() {
            return Ok(());
        }
        let injection = Injection {
            session_id: session.to_owned(),
            observation_ids,
            org_id: self.org.map(str::to_owned),
            ..Injection::default()
        };
        self.diagnostics.log_injection(&injection).map(drop)
    }
}

fn candidates<'a>(hits: impl Iterator<Item = &'a MemoryHit>) -> Vec<Candidate> {
    // The shortest decimal of the score: 0.7 as f32 is 0.699999988079071 as f64.
    let score = |score: f32| score.to_string().parse().unwrap_or(f64::from(score));
    hits.map(|hit| Candidate {
        id: observation_id(&hit.identity, &hit.entry.id),
        relevance_score: score(hit.score),
    })
    .collect()
}

#[expect(clippy::cast_possible_truncation, reason = "scores of the memory have 32 bits")]
fn rounded(score: f64) -> f32 {
    score as f32
}
