//! One call at the end of a session: the row, its counts, the weights, their history and the audit log, in one
//! commit.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use annals::{Error, ErrorKind, Result};
use annals_text::hex;

use crate::Diagnostics;
use crate::category::{FailureCategory, Outcome, classify};
use crate::changes::{Changes, Space};
use crate::counts::{self, malformed};
use crate::keys::{self, Scope};
use crate::session::SessionDiagnostic;
use crate::weights::{
    ALPHA_GRAPH, AuditEvent, AuditMetadata, FIRST_GRAPH_WEIGHT, FIRST_WEIGHT, GraphChange, StoredWeight,
    WeightChange, WeightRule, graph_score, moving_average,
};

/// Sessions of [`Diagnostics::record_all`] that share a commit.
const SESSIONS_AT_ONCE: usize = 512;

/// A session with the time of its end, for imports.
#[derive(Debug, Clone)]
pub struct TimedSession {
    /// The session.
    pub session: SessionDiagnostic,
    /// When it ended, in milliseconds since 1970. The row, the weights' history and the audit log get this time.
    pub ended_ms: u64,
}

/// What the graph learned from a session.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GraphFeedback {
    /// Number of nodes whose weight changed.
    pub nodes: u64,
    /// Number of edges whose weight changed.
    pub edges: u64,
    /// Why no weight changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

/// What one session changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionReport {
    /// The row's id, a UUID that follows from the session's id.
    pub id: String,
    /// Number of observations that the doubled rate was applied to.
    pub aggressive_downweight_applied: u64,
    /// The session.
    pub session_id: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Why it failed.
    pub failure_category: Option<FailureCategory>,
    /// Whether the session had been reported before, with the same contents. Then nothing changed.
    pub repeated: bool,
    /// The changes of observations' weights.
    pub weight_changes: Vec<WeightChange>,
    /// What the graph learned.
    pub graph: GraphFeedback,
}

/// The result of [`Diagnostics::record_session`], which never fails. As JSON it is the report with the member
/// `failures`; the id is null if nothing was recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionResult {
    /// What was recorded; `None` if nothing was.
    pub report: Option<SessionReport>,
    /// What failed; empty if everything was recorded.
    pub failures: Vec<String>,
}

impl SessionResult {
    /// The row's id; `None` if nothing was recorded.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.report.as_ref().map(|report| report.id.as_str())
    }

    /// Number of observations that the doubled rate was applied to.
    #[must_use]
    pub fn aggressive_downweight_applied(&self) -> u64 {
        self.report.as_ref().map_or(0, |report| report.aggressive_downweight_applied)
    }
}

impl Serialize for SessionResult {
    fn serialize<S: serde::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Recorded<'a> {
            #[serde(flatten)]
            report: &'a SessionReport,
            failures: &'a [String],
        }
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Failed<'a> {
            id: Option<&'a str>,
            aggressive_downweight_applied: u64,
            failures: &'a [String],
        }
        let failures = &self.failures;
        match &self.report {
            Some(report) => Recorded { report, failures }.serialize(to),
            None => Failed { id: None, aggressive_downweight_applied: 0, failures }.serialize(to),
        }
    }
}

/// A row as it is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoredRow {
    pub(crate) id: String,
    pub(crate) recorded_at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expires_at: Option<u64>,
    /// Identifies the report, so that a second one is compared with it.
    pub(crate) digest: String,
    pub(crate) aggressive_downweight_applied: u64,
    pub(crate) graph: GraphFeedback,
    /// What is kept of the report; nothing once the row has expired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) session: Option<SessionDiagnostic>,
}

impl StoredRow {
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        serde_json::from_slice(bytes).map_err(|error| malformed(&format!("rows: {error}")))
    }
}

/// The times that a session names each observation, which it was given.
pub(crate) fn observation_counts(session: &SessionDiagnostic) -> BTreeMap<&str, u32> {
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for id in session.observations() {
        *counts.entry(id).or_default() += 1;
    }
    counts
}

impl Diagnostics {
    /// Records a session at its end: the only call that a session needs. With `keep_ms` the row expires after
    /// this time; weights, history and audit log stay.
    ///
    /// A second report with the same contents changes nothing and returns the first one's result.
    ///
    /// # Errors
    /// `Invalid` for a malformed report; `Conflict` if the session was reported with other contents;
    /// `Damaged`, `Unavailable`, `Poisoned`.
    pub fn record(&self, session: &SessionDiagnostic, keep_ms: Option<u64>) -> Result<SessionReport> {
        session.check()?;
        let now = self.now_ms();
        let _changing = self.lock_changes();
        self.expire_due(now)?;
        let mut changes = Changes::new(self);
        let report = self.record_in(&mut changes, session, keep_ms, now)?;
        changes.commit()?;
        Ok(report)
    }

    /// As [`Diagnostics::record`], from JSON, for the end of a session that no failure may disturb: what failed
    /// is in the result. The caller writes it to its log.
    pub fn record_session(&self, json: &str, keep_ms: Option<u64>) -> SessionResult {
        SessionDiagnostic::parse(json).and_then(|session| self.record(&session, keep_ms)).into()
    }

    /// Records many sessions in their order, in few commits. Those before a failure are recorded. With `keep_ms`
    /// each row expires after this time, counted from its session's end.
    ///
    /// # Errors
    /// As [`Diagnostics::record`].
    pub fn record_all(&self, sessions: &[TimedSession], keep_ms: Option<u64>) -> Result<Vec<SessionReport>> {
        sessions.iter().try_for_each(|timed| timed.session.check())?;
        let _changing = self.lock_changes();
        let mut reports = Vec::with_capacity(sessions.len());
        for some in sessions.chunks(SESSIONS_AT_ONCE) {
            self.expire_due(self.now_ms())?;
            let mut changes = Changes::new(self);
            for TimedSession { session, ended_ms } in some {
                reports.push(self.record_in(&mut changes, session, keep_ms, *ended_ms)?);
            }
            changes.commit()?;
        }
        Ok(reports)
    }

    /// The category that a report would get, without storing anything; `None` for an accepted session.
    ///
    /// # Errors
    /// `Invalid` for a malformed report.
    pub fn category_of(session: &SessionDiagnostic) -> Result<Option<FailureCategory>> {
        session.check()?;
        Ok(category(session))
    }

    fn record_in(
        &self,
        changes: &mut Changes<'_>,
        session: &SessionDiagnostic,
        keep_ms: Option<u64>,
        now: u64,
    ) -> Result<SessionReport> {
        let digest = digest(session)?;
        if let Some(bytes) = changes.get(Space::Rows, session.session_id.as_bytes())? {
            return repeated(session, &StoredRow::decode(&bytes)?, &digest);
        }
        let mut session = session.clone();
        self.add_injection(&mut session)?;
        session.failure_category = category(&session);
        if let Some(category) = session.failure_category {
            let scopes = Scope::all_of_row(session.org_id.as_deref(), session.project_id.as_deref());
            counts::count_failure(changes, &scopes, (category, now), 1)?;
        }
        count_observations(changes, &session, now)?;
        let weight_changes = change_weights(changes, &session, now)?;
        let graph = change_graph(changes, &session, now)?;
        let aggressive = weight_changes.iter().filter(|change| is_doubled(change)).count() as u64;
        let row = StoredRow {
            id: row_id(&session.session_id),
            recorded_at: now,
            expires_at: keep_ms.map(|keep| now.saturating_add(keep)),
            digest,
            aggressive_downweight_applied: aggressive,
            graph: graph.clone(),
            session: Some(kept_of(&session)),
        };
        if let Some(at) = row.expires_at {
            changes.put(Space::Counts, keys::expiry(at, &session.session_id), Vec::new());
        }
        changes.put(Space::Rows, session.session_id.clone().into_bytes(), to_json(&row)?);
        Ok(SessionReport {
            id: row.id,
            aggressive_downweight_applied: aggressive,
            session_id: session.session_id,
            outcome: session.outcome,
            failure_category: session.failure_category,
            repeated: false,
            weight_changes,
            graph,
        })
    }
}

impl From<Result<SessionReport>> for SessionResult {
    fn from(done: Result<SessionReport>) -> Self {
        match done {
            Ok(report) => Self { report: Some(report), failures: Vec::new() },
            Err(error) => {
                Self { report: None, failures: vec![format!("the session was not recorded: {error}")] }
            }
        }
    }
}

/// The category of a session, if it failed.
fn category(session: &SessionDiagnostic) -> Option<FailureCategory> {
    session.outcome.is_failed().then(|| match session.failure_category {
        Some(FailureCategory::Unknown) => FailureCategory::Unknown,
        _ => classify(session),
    })
}

/// The result of a session that has a row already.
fn repeated(session: &SessionDiagnostic, row: &StoredRow, digest: &str) -> Result<SessionReport> {
    if row.digest != digest {
        return Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "session {:?} was reported at {} ms since 1970 with other contents: the first report stays; give another session another id",
                session.session_id, row.recorded_at
            ),
        ));
    }
    Ok(SessionReport {
        id: row.id.clone(),
        aggressive_downweight_applied: row.aggressive_downweight_applied,
        session_id: session.session_id.clone(),
        outcome: session.outcome,
        failure_category: row
            .session
            .as_ref()
            .map_or_else(|| category(session), |kept| kept.failure_category),
        repeated: true,
        weight_changes: Vec::new(),
        graph: row.graph.clone(),
    })
}

/// What is kept of a session: an accepted one leaves a light row, without tool calls, files, errors and context.
fn kept_of(session: &SessionDiagnostic) -> SessionDiagnostic {
    if session.outcome.is_failed() {
        return session.clone();
    }
    SessionDiagnostic {
        tool_call_summary: None,
        files_modified: None,
        errors_encountered: None,
        failure_context: None,
        ..session.clone()
    }
}

fn count_observations(changes: &mut Changes<'_>, session: &SessionDiagnostic, now: u64) -> Result<()> {
    let (org, project) = (session.org_id.as_deref(), session.project_id.as_deref());
    let is_failed = session.outcome.is_failed();
    for (id, count) in observation_counts(session) {
        for scope in Scope::all_of_row(org, project) {
            let before = counts::observation_times(changes, &scope, id)?;
            let mut after = before;
            after.add(is_failed, now, count);
            counts::put_observation_times(changes, &scope, id, (before, after));
        }
        let key = keys::mention(id, now, &session.session_id);
        changes.put(Space::Counts, key, keys::mention_value(is_failed, count, org, project));
    }
    Ok(())
}

/// Moves the weight of each observation that the session names, once.
fn change_weights(
    changes: &mut Changes<'_>,
    session: &SessionDiagnostic,
    now: u64,
) -> Result<Vec<WeightChange>> {
    let counts = observation_counts(session);
    let all: BTreeSet<&str> = counts
        .keys()
        .copied()
        .chain(session.helpful().iter().chain(session.misleading()).map(String::as_str))
        .collect();
    let scope = Scope::of_filter(session.org_id.as_deref(), None);
    let (helpful, misleading) = (set_of(session.helpful()), set_of(session.misleading()));
    let mut done = Vec::with_capacity(all.len());
    for id in all {
        let misleads = session.outcome.is_failed()
            && counts.contains_key(id)
            && counts::observation_times(changes, &scope, id)?.is_misleading_since(0);
        let rule = match session.outcome {
            _ if helpful.contains(id) => WeightRule::Rise,
            _ if misleads => WeightRule::FallTwice,
            Outcome::Accepted if misleading.contains(id) => WeightRule::Fall(Outcome::Rejected),
            Outcome::Accepted => WeightRule::Rise,
            failed => WeightRule::Fall(failed),
        };
        done.push(change_weight(changes, session, id, rule, now)?);
    }
    Ok(done)
}

fn set_of(ids: &[String]) -> BTreeSet<&str> {
    ids.iter().map(String::as_str).collect()
}

fn change_weight(
    changes: &mut Changes<'_>,
    session: &SessionDiagnostic,
    id: &str,
    rule: WeightRule,
    now: u64,
) -> Result<WeightChange> {
    let key = keys::weight(keys::OBSERVATION_WEIGHT, id);
    let (signal, alpha, outcome) = rule.terms();
    let before = stored_weight(changes, &key, FIRST_WEIGHT)?;
    let change = WeightChange {
        observation_id: id.to_owned(),
        session_id: session.session_id.clone(),
        outcome,
        previous_weight: before.weight,
        new_weight: moving_average(before.weight, signal, alpha)?,
        alpha,
        org_id: session.org_id.clone(),
        project_id: session.project_id.clone(),
        recorded_at: now,
    };
    put_change(changes, &key, before, (change.new_weight, now), to_json(&change)?);
    if rule == WeightRule::FallTwice {
        let event = AuditEvent {
            event: "memory.feedback".to_owned(),
            recorded_at: now,
            session_id: session.session_id.clone(),
            observation_id: id.to_owned(),
            org_id: session.org_id.clone(),
            project_id: session.project_id.clone(),
            metadata: AuditMetadata {
                aggressive_downweight: true,
                previous_weight: change.previous_weight,
                new_weight: change.new_weight,
                alpha,
            },
        };
        let count = match changes.get(Space::Counts, keys::AUDIT_COUNT)? {
            Some(bytes) => counts::numbers::<1>(&bytes)?[0],
            None => 0,
        };
        changes.put(Space::Audit, keys::numbered(&[], count), to_json(&event)?);
        changes.put(Space::Counts, keys::AUDIT_COUNT.to_vec(), (count + 1).to_le_bytes().to_vec());
    }
    Ok(change)
}

/// Moves the weights of the session's graph nodes and edges, each independently.
fn change_graph(changes: &mut Changes<'_>, session: &SessionDiagnostic, now: u64) -> Result<GraphFeedback> {
    if session.nodes().is_empty() && session.edges().is_empty() {
        return Ok(GraphFeedback::default());
    }
    if session.org_id.is_none() {
        let skipped = Some("the session has no orgId".to_owned());
        return Ok(GraphFeedback { skipped, ..GraphFeedback::default() });
    }
    let score = graph_score(session.outcome);
    let change = |before: f64, node_id, edge_key| -> Result<GraphChange> {
        Ok(GraphChange {
            node_id,
            edge_key,
            session_id: session.session_id.clone(),
            outcome: session.outcome,
            score,
            previous_weight: before,
            new_weight: ALPHA_GRAPH * score + (1.0 - ALPHA_GRAPH) * before,
            alpha: ALPHA_GRAPH,
            org_id: session.org_id.clone(),
            project_id: session.project_id.clone(),
            recorded_at: now,
        })
    };
    let nodes: BTreeSet<_> = session.nodes().iter().collect();
    let edges: BTreeSet<_> = session.edges().iter().collect();
    let keys = nodes
        .iter()
        .map(|id| (keys::weight(keys::NODE_WEIGHT, id), Some((*id).clone()), None))
        .chain(edges.iter().map(|edge| (keys::edge_weight(edge), None, Some((*edge).clone()))));
    for (key, node, edge) in keys {
        let before = stored_weight(changes, &key, FIRST_GRAPH_WEIGHT)?;
        let change = change(before.weight, node, edge)?;
        put_change(changes, &key, before, (change.new_weight, now), to_json(&change)?);
    }
    Ok(GraphFeedback { nodes: nodes.len() as u64, edges: edges.len() as u64, skipped: None })
}

/// Stores a weight and the record of its change.
fn put_change(
    changes: &mut Changes<'_>,
    key: &[u8],
    before: StoredWeight,
    (weight, now): (f64, u64),
    record: Vec<u8>,
) {
    let number = before.changes;
    let after = StoredWeight { weight, changes: number + 1, changed_ms: now };
    changes.put(Space::History, keys::numbered(&keys::changes_of(key), number), record);
    changes.put(Space::Weights, key.to_vec(), after.encode());
}

fn stored_weight(changes: &Changes<'_>, key: &[u8], first: f64) -> Result<StoredWeight> {
    match changes.get(Space::Weights, key)? {
        Some(bytes) => StoredWeight::decode(&bytes),
        None => Ok(StoredWeight::first(first)),
    }
}

/// Whether the doubled rate made this change.
fn is_doubled(change: &WeightChange) -> bool {
    change.alpha > crate::ALPHA_FAILURE
}

/// Identifies a report by its contents.
fn digest(session: &SessionDiagnostic) -> Result<String> {
    Ok(hex::encode(blake3::hash(&to_json(session)?).as_bytes()))
}

/// A UUID (version 8) that follows from a session's id.
fn row_id(session: &str) -> String {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&blake3::derive_key("annals diagnostics row id", session.as_bytes())[..16]);
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let digits = hex::encode(&bytes);
    let part = |from: usize, to: usize| digits.get(from..to).unwrap_or_default();
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}

pub(crate) fn to_json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| Error::bug(error.to_string()))
}
