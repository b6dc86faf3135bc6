//! What a session was given: its injections, and the candidates of its retrievals in both orders.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use annals::kv::ScanRange;
use annals::{Error, Result};

use crate::Diagnostics;
use crate::changes::{Changes, Space};
use crate::counts::malformed;
use crate::keys;
use crate::record::to_json;
use crate::session::{EdgeKey, SessionDiagnostic, check_edges, check_id, check_ids, check_object};

/// What was injected into a session's context. A later injection of the same session adds to the earlier ones.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Injection {
    /// The session.
    pub session_id: String,
    /// The observations.
    #[serde(default)]
    pub observation_ids: Vec<String>,
    /// The graph nodes.
    #[serde(default)]
    pub graph_entity_ids: Vec<String>,
    /// The graph edges.
    #[serde(default)]
    pub graph_edge_keys: Vec<EdgeKey>,
    /// The organisation.
    #[serde(default)]
    pub org_id: Option<String>,
    /// The project.
    #[serde(default)]
    pub project_id: Option<String>,
}

/// An entry that a retrieval considered.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The observation.
    pub id: String,
    /// How well it answers.
    pub relevance_score: f64,
}

/// A candidate in both orders.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdjustedCandidate {
    /// The observation.
    pub id: String,
    /// How well it answers.
    pub relevance_score: f64,
    /// Its weight.
    pub feedback_weight: f64,
    /// The product of both; the relevance alone if ranking by weight is switched off.
    pub weighted_score: f64,
    /// Its place by relevance, from 0.
    pub unweighted_rank: u64,
    /// Its place by the weighted score, from 0.
    pub weighted_rank: u64,
}

impl Injection {
    /// Parses and checks an injection.
    ///
    /// # Errors
    /// `Invalid` with the member and what is allowed.
    pub fn parse(json: &str) -> Result<Self> {
        check_object("an injection", json)?;
        let injection: Self = serde_json::from_str(json)
            .map_err(|error| Error::invalid(format!("an injection is malformed: {error}")))?;
        injection.check()?;
        Ok(injection)
    }

    fn check(&self) -> Result<()> {
        check_id("sessionId", &self.session_id)?;
        check_ids("observationIds", &self.observation_ids)?;
        check_ids("graphEntityIds", &self.graph_entity_ids)?;
        check_edges("graphEdgeKeys", &self.graph_edge_keys)?;
        for (member, id) in [("orgId", &self.org_id), ("projectId", &self.project_id)] {
            id.as_deref().map_or(Ok(()), |id| check_id(member, id))?;
        }
        Ok(())
    }

    /// Adds another injection of the same session.
    fn add(&mut self, more: &Self) {
        fn add<T: Clone + Ord>(all: &mut Vec<T>, more: &[T]) {
            let mut seen: BTreeSet<T> = all.iter().cloned().collect();
            all.extend(more.iter().filter(|one| seen.insert((*one).clone())).cloned());
        }
        add(&mut self.observation_ids, &more.observation_ids);
        add(&mut self.graph_entity_ids, &more.graph_entity_ids);
        add(&mut self.graph_edge_keys, &more.graph_edge_keys);
        self.org_id = self.org_id.take().or_else(|| more.org_id.clone());
        self.project_id = self.project_id.take().or_else(|| more.project_id.clone());
    }
}

impl Diagnostics {
    /// Logs what a session was given. The same ids twice are logged once.
    ///
    /// # Errors
    /// `Invalid`, `Unavailable`, `Poisoned`.
    pub fn log_injection(&self, injection: &Injection) -> Result<Injection> {
        injection.check()?;
        let _changing = self.lock_changes();
        let mut all = self.injection(&injection.session_id)?.unwrap_or_else(|| Injection {
            session_id: injection.session_id.clone(),
            ..Injection::default()
        });
        all.add(injection);
        all.check()?;
        let mut changes = Changes::new(self);
        changes.put(Space::Injections, all.session_id.clone().into_bytes(), to_json(&all)?);
        changes.commit()?;
        Ok(all)
    }

    /// What a session was given.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn injection(&self, session_id: &str) -> Result<Option<Injection>> {
        let Some(bytes) = self.keyspaces.injections.get(session_id.as_bytes())? else { return Ok(None) };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| malformed(&format!("injections: {error}")))
    }

    /// Takes what a report leaves out from the session's injections.
    pub(crate) fn add_injection(&self, session: &mut SessionDiagnostic) -> Result<()> {
        let Some(given) = self.injection(&session.session_id)? else { return Ok(()) };
        session.injected_observation_ids.get_or_insert(given.observation_ids);
        session.injected_graph_entity_ids.get_or_insert(given.graph_entity_ids);
        session.injected_graph_edge_keys.get_or_insert(given.graph_edge_keys);
        session.org_id = session.org_id.take().or(given.org_id);
        session.project_id = session.project_id.take().or(given.project_id);
        Ok(())
    }

    /// Puts candidates, which come in order of relevance, in order of their weighted scores. Equal scores keep
    /// their order. If ranking by weight is off for the organisation, the order stays.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn adjust(&self, org: Option<&str>, candidates: &[Candidate]) -> Result<Vec<AdjustedCandidate>> {
        let mut adjusted = self.adjust_in_place(org, candidates)?;
        if self.is_weighting_enabled(org)? {
            adjusted.sort_by(|a, b| b.weighted_score.total_cmp(&a.weighted_score));
        }
        adjusted.iter_mut().enumerate().for_each(|(rank, candidate)| candidate.weighted_rank = rank as u64);
        Ok(adjusted)
    }

    /// The weighted scores of candidates, which keep their order.
    pub(crate) fn adjust_in_place(
        &self,
        org: Option<&str>,
        candidates: &[Candidate],
    ) -> Result<Vec<AdjustedCandidate>> {
        let is_enabled = self.is_weighting_enabled(org)?;
        let mut adjusted = Vec::with_capacity(candidates.len());
        for (rank, candidate) in candidates.iter().enumerate() {
            let weight = self.weight(&candidate.id)?;
            let relevance = candidate.relevance_score;
            if !relevance.is_finite() {
                return Err(Error::invalid(format!(
                    "the score of candidate {:?} is {relevance}",
                    candidate.id
                )));
            }
            adjusted.push(AdjustedCandidate {
                id: candidate.id.clone(),
                relevance_score: relevance,
                feedback_weight: weight,
                weighted_score: if is_enabled { relevance * weight } else { relevance },
                unweighted_rank: rank as u64,
                weighted_rank: rank as u64,
            });
        }
        Ok(adjusted)
    }

    /// Logs the candidates of a session's retrieval, one row for each.
    ///
    /// # Errors
    /// `Invalid`, `Unavailable`, `Poisoned`.
    pub fn log_retrieval(&self, session_id: &str, candidates: &[AdjustedCandidate]) -> Result<()> {
        check_id("sessionId", session_id)?;
        let prefix = retrievals_of(session_id);
        let _changing = self.lock_changes();
        let last = self.keyspaces.retrievals.scan(ScanRange::prefix(&prefix).reverse()).keys().next();
        let last = last.transpose()?.and_then(|key| key.get(prefix.len()..)?.first_chunk::<8>().copied());
        let number = last.map_or(0, |last| u64::from_be_bytes(last) + 1);
        let mut changes = Changes::new(self);
        for candidate in candidates {
            let key = keys::numbered(&keys::numbered(&prefix, number), candidate.weighted_rank);
            changes.put(Space::Retrievals, key, to_json(candidate)?);
        }
        changes.commit()
    }

    /// The candidates of a session's retrievals, in the order of the retrievals and of their weighted ranks.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn retrievals(&self, session_id: &str) -> Result<Vec<AdjustedCandidate>> {
        let found = self.keyspaces.retrievals.scan(ScanRange::prefix(&retrievals_of(session_id)));
        found
            .map(|found| {
                serde_json::from_slice(&found?.1).map_err(|error| malformed(&format!("retrievals: {error}")))
            })
            .collect()
    }
}

fn retrievals_of(session_id: &str) -> Vec<u8> {
    [session_id.as_bytes(), b"\0"].concat()
}
