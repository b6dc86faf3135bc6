//! Questions: misleading observations, the distribution of categories, weights and their history.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;

use annals::kv::ScanRange;
use annals::{Error, Result};

use crate::Diagnostics;
use crate::category::FailureCategory;
use crate::changes::{Changes, Space};
use crate::counts::{self, CategoryCounts, ObservationTimes, malformed};
use crate::keys::{self, Scope};
use crate::record::{StoredRow, observation_counts};
use crate::session::EdgeKey;
use crate::weights::{AuditEvent, FIRST_GRAPH_WEIGHT, FIRST_WEIGHT, GraphChange, StoredWeight, WeightChange};

/// Which rows a question is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LessonFilter<'a> {
    /// Only rows of this organisation.
    pub org: Option<&'a str>,
    /// Only rows of this project.
    pub project: Option<&'a str>,
    /// Only rows of this time or later, in milliseconds since 1970.
    pub since_ms: u64,
}

impl LessonFilter<'_> {
    fn scope(&self) -> Scope {
        Scope::of_filter(self.org, self.project)
    }
}

/// The answers that a full pass over the rows gives.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Recount {
    /// The misleading observations, in order.
    pub misleading: Vec<String>,
    /// The failed sessions by category.
    pub distribution: CategoryCounts,
}

impl Diagnostics {
    /// The observations that at least three failed rows and no accepted one were given, in order of their ids.
    /// An id that is twice in one row counts twice.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn misleading(&self, filter: &LessonFilter<'_>) -> Result<Vec<String>> {
        if !self.settle()? {
            return Ok(self.recount(filter)?.misleading);
        }
        let prefix = keys::scoped(keys::CANDIDATE, &filter.scope());
        let mut ids = Vec::new();
        for found in self.keyspaces.counts.scan(ScanRange::prefix(&prefix)) {
            let (key, value) = found?;
            if ObservationTimes::decode(&value)?.is_misleading_since(filter.since_ms) {
                let id = key.get(prefix.len()..).and_then(|id| std::str::from_utf8(id).ok());
                ids.push(id.ok_or_else(|| malformed("candidates"))?.to_owned());
            }
        }
        Ok(ids)
    }

    /// The failed sessions by category; every category is there, also with 0.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn distribution(&self, filter: &LessonFilter<'_>) -> Result<CategoryCounts> {
        if !self.settle()? {
            return Ok(self.recount(filter)?.distribution);
        }
        counts::sum_failures(&self.keyspaces.counts, &filter.scope(), filter.since_ms)
    }

    /// Both answers from a pass over all rows. For checks, and for a store open for reading in which rows have
    /// expired since its writer last looked.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn recount(&self, filter: &LessonFilter<'_>) -> Result<Recount> {
        let now = self.now_ms();
        let mut distribution = CategoryCounts::default();
        let mut seen: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for found in self.keyspaces.rows.scan(ScanRange::all()) {
            let row = StoredRow::decode(&found?.1)?;
            let Some(session) = row.session.filter(|_| row.expires_at.is_none_or(|at| at > now)) else {
                continue;
            };
            let is_other = |wanted: Option<&str>, own: Option<&str>| wanted.is_some() && wanted != own;
            if is_other(filter.org, session.org_id.as_deref())
                || is_other(filter.project, session.project_id.as_deref())
                || row.recorded_at < filter.since_ms
            {
                continue;
            }
            if session.outcome.is_failed() {
                distribution.add(session.failure_category.unwrap_or(FailureCategory::Unknown), 1);
            }
            for (id, count) in observation_counts(&session) {
                let (failed, accepted) = seen.entry(id.to_owned()).or_default();
                *(if session.outcome.is_failed() { failed } else { accepted }) += u64::from(count);
            }
        }
        let misleading = seen.into_iter().filter(|(_, (failed, accepted))| {
            *failed >= counts::MISLEADING_FAILURES as u64 && *accepted == 0
        });
        Ok(Recount { misleading: misleading.map(|(id, _)| id).collect(), distribution })
    }

    /// Ends due rows. Returns whether the counts are those of now.
    fn settle(&self) -> Result<bool> {
        let now = self.now_ms();
        if self.due_rows(now, 1)?.is_empty() {
            return Ok(true);
        }
        if !self.can_write() {
            return Ok(false);
        }
        let _changing = self.lock_changes();
        self.expire_due(now)?;
        Ok(true)
    }

    /// The row of a session as JSON; `None` if there is none, or if it has expired.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn session(&self, session_id: &str) -> Result<Option<String>> {
        let Some(bytes) = self.keyspaces.rows.get(session_id.as_bytes())? else { return Ok(None) };
        let row = StoredRow::decode(&bytes)?;
        let is_live = row.expires_at.is_none_or(|at| at > self.now_ms());
        let Some(session) = row.session.as_ref().filter(|_| is_live) else { return Ok(None) };
        let mut text = format!("{{\"id\":\"{}\",\"recordedAt\":{}", row.id, row.recorded_at);
        if let Some(at) = row.expires_at {
            text.push_str(&format!(",\"expiresAt\":{at}"));
        }
        let aggressive = row.aggressive_downweight_applied;
        text.push_str(&format!(",\"aggressiveDownweightApplied\":{aggressive},"));
        let session = serde_json::to_string(session).map_err(|error| Error::bug(error.to_string()))?;
        text.push_str(session.strip_prefix('{').unwrap_or("}"));
        Ok(Some(text))
    }

    /// The weight of an observation: 1 before its first session.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn weight(&self, observation: &str) -> Result<f64> {
        self.stored(&keys::weight(keys::OBSERVATION_WEIGHT, observation), FIRST_WEIGHT)
    }

    /// The weight of a graph node: a half before its first session.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn node_weight(&self, node: &str) -> Result<f64> {
        self.stored(&keys::weight(keys::NODE_WEIGHT, node), FIRST_GRAPH_WEIGHT)
    }

    /// The weight of a graph edge: a half before its first session.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn edge_weight(&self, edge: &EdgeKey) -> Result<f64> {
        self.stored(&keys::edge_weight(edge), FIRST_GRAPH_WEIGHT)
    }

    fn stored(&self, key: &[u8], first: f64) -> Result<f64> {
        match self.keyspaces.weights.get(key)? {
            Some(bytes) => Ok(StoredWeight::decode(&bytes)?.weight),
            None => Ok(first),
        }
    }

    /// The changes of an observation's weight, oldest first.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn weight_history(&self, observation: &str) -> Result<Vec<WeightChange>> {
        self.history(&keys::weight(keys::OBSERVATION_WEIGHT, observation))
    }

    /// The changes of a graph node's weight, oldest first.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn node_history(&self, node: &str) -> Result<Vec<GraphChange>> {
        self.history(&keys::weight(keys::NODE_WEIGHT, node))
    }

    /// The changes of a graph edge's weight, oldest first.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn edge_history(&self, edge: &EdgeKey) -> Result<Vec<GraphChange>> {
        self.history(&keys::edge_weight(edge))
    }

    fn history<T: DeserializeOwned>(&self, weight: &[u8]) -> Result<Vec<T>> {
        let prefix = keys::changes_of(weight);
        let found = self.keyspaces.history.scan(ScanRange::prefix(&prefix));
        found.map(|found| parse("the history", &found?.1)).collect()
    }

    /// Audit events from a number on, oldest first, at most `count` of them.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn audit(&self, from: u64, count: usize) -> Result<Vec<AuditEvent>> {
        let from = keys::numbered(&[], from);
        let range = ScanRange::between(std::ops::Bound::Included(&from), std::ops::Bound::Unbounded);
        let found = self.keyspaces.audit.scan(range).take(count);
        found.map(|found| parse("the audit log", &found?.1)).collect()
    }

    /// Whether weights order what an organisation recalls. Without its own switch the namespace's holds, which
    /// is on at first.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn is_weighting_enabled(&self, org: Option<&str>) -> Result<bool> {
        let counts = &self.keyspaces.counts;
        let own = match org {
            Some(org) => counts.get(&keys::setting(Some(org)))?,
            None => None,
        };
        let kept = match own {
            Some(own) => Some(own),
            None => counts.get(&keys::setting(None))?,
        };
        Ok(kept.is_none_or(|value| value.as_slice() != [0]))
    }

    /// Switches ranking by weight on or off, for an organisation or for the namespace. Weights are kept and
    /// written on either way.
    ///
    /// # Errors
    /// `Invalid`, `Unavailable`, `Poisoned`.
    pub fn set_weighting(&self, org: Option<&str>, is_enabled: bool) -> Result<()> {
        org.map_or(Ok(()), |org| crate::session::check_id("orgId", org))?;
        let _changing = self.lock_changes();
        let mut changes = Changes::new(self);
        changes.put(Space::Counts, keys::setting(org), vec![u8::from(is_enabled)]);
        changes.commit()
    }
}

fn parse<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| malformed(&format!("values in {what}: {error}")))
}
