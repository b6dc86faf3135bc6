//! The methods: parameters as JSON in, the result as JSON out. All faces call these.

use annals::{Durability, Error, ErrorKind, Result};

use crate::Deliberation;
use crate::decision::Scope;
use crate::json::{RawObject, to_json};
use crate::tracker::{InputKind, RelatedDecision, TrackedInput, TrackerKey};

/// Makes vectors of texts for a caller that sends none.
#[derive(Clone, Copy)]
pub struct TextEmbedder<'a> {
    /// Its name with its version. Vectors of different ids are never compared.
    pub id: &'a str,
    /// The vector of a text; zeros if the text holds nothing to search by.
    pub embed: &'a dyn Fn(&str) -> Result<Vec<f32>>,
}

/// Who calls.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    /// The name of the caller's token. Inputs of one token are never seen by another.
    pub token: &'a str,
    /// The session, over MCP.
    pub session: Option<&'a str>,
    /// Whether a name is that of another token: a caller cannot act as its agent.
    pub is_other_token: &'a dyn Fn(&str) -> bool,
    /// Whether calls become inputs of the caller's next decision.
    pub tracks: bool,
    /// Makes the vectors of decisions and questions that come without one. If it fails, the call goes on without
    /// a vector, and its result says so in `embedding_failed`.
    pub embedder: Option<TextEmbedder<'a>>,
}

impl std::fmt::Debug for Caller<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caller").field("token", &self.token).field("session", &self.session).finish()
    }
}

impl<'a> Caller<'a> {
    /// A caller by its token alone.
    #[must_use]
    pub fn new(token: &'a str) -> Self {
        Self { token, session: None, is_other_token: &|_| false, tracks: true, embedder: None }
    }

    /// The vector of a text with its embedder, if the caller has one; and why there is none after a failure.
    pub(crate) fn vector(&self, text: &str) -> (Option<(Vec<f32>, String)>, Option<String>) {
        let Some(embedder) = self.embedder else { return (None, None) };
        match (embedder.embed)(text) {
            Ok(vector) if vector.iter().any(|number| *number != 0.0) => {
                (Some((vector, embedder.id.to_owned())), None)
            }
            Ok(_) => (None, None),
            Err(error) => (None, Some(error.to_string())),
        }
    }

    fn key(&self, name: String) -> TrackerKey {
        TrackerKey { owner: self.token.to_owned(), name }
    }

    fn transport(&self) -> TrackerKey {
        self.key(match self.session {
            Some(session) => format!("mcp:{session}"),
            None => format!("rpc:{}", self.token),
        })
    }

    /// The key under which an input of this scope is captured.
    pub(crate) fn tracker(&self, scope: &Scope) -> TrackerKey {
        match (&scope.agent, &scope.decision) {
            (Some(agent), Some(decision)) => self.key(format!("agent:{agent}:decision:{decision}")),
            (Some(agent), None) => self.key(format!("agent:{agent}")),
            (None, Some(decision)) => self.key(format!("decision:{decision}")),
            (None, None) => self.transport(),
        }
    }

    /// The keys whose inputs a decision of this scope consumes: both ids, the decision, the agent, and what the
    /// token captured without a scope.
    pub(crate) fn consumed_trackers(&self, scope: &Scope) -> Vec<TrackerKey> {
        let mut keys = Vec::new();
        if let (Some(_), Some(_)) = (&scope.agent, &scope.decision) {
            keys.push(self.tracker(scope));
        }
        if let Some(decision) = &scope.decision {
            keys.push(self.key(format!("decision:{decision}")));
        }
        if let Some(agent) = &scope.agent {
            keys.push(self.key(format!("agent:{agent}")));
        }
        keys.push(self.transport());
        keys
    }

    /// # Errors
    /// `Invalid` if the scope names the agent of another token.
    pub(crate) fn check(&self, scope: &Scope) -> Result<()> {
        match &scope.agent {
            Some(agent) if agent != self.token && (self.is_other_token)(agent) => Err(Error::invalid(
                format!("agentId {agent:?} is the name of another token: use that token, or another agentId"),
            )),
            _ => Ok(()),
        }
    }
}

/// A method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Stores a decision, with the caller's captured inputs.
    RecordDecision,
    /// Finds decisions.
    QueryDecisions,
    /// Evaluates the guardrails.
    CheckGuardrails,
    /// Reads a decision.
    GetDecision,
    /// Statistics of reasons.
    GetReasonStats,
    /// Adds a thought to the next decision, or to a stored one.
    RecordThought,
    /// Stores how a decision turned out.
    ReviewOutcome,
    /// Statistics of deliberations.
    GetDeliberationStats,
    /// A deliberation as spike timings.
    ExportSpikes,
    /// Stores a guardrail.
    SetGuardrail,
    /// Lists the guardrails.
    ListGuardrails,
    /// Deletes a guardrail.
    DeleteGuardrail,
    /// Reads or changes the switches of the namespace.
    Configure,
    /// Shows the caller's captured inputs and the last consumptions.
    DebugTracker,
}

impl Method {
    /// All methods.
    pub const ALL: [Self; 14] = [
        Self::RecordDecision,
        Self::QueryDecisions,
        Self::CheckGuardrails,
        Self::GetDecision,
        Self::GetReasonStats,
        Self::RecordThought,
        Self::ReviewOutcome,
        Self::GetDeliberationStats,
        Self::ExportSpikes,
        Self::SetGuardrail,
        Self::ListGuardrails,
        Self::DeleteGuardrail,
        Self::Configure,
        Self::DebugTracker,
    ];

    /// Its name in JSON-RPC.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RecordDecision => "cstp.recordDecision",
            Self::QueryDecisions => "cstp.queryDecisions",
            Self::CheckGuardrails => "cstp.checkGuardrails",
            Self::GetDecision => "cstp.getDecision",
            Self::GetReasonStats => "cstp.getReasonStats",
            Self::RecordThought => "cstp.recordThought",
            Self::ReviewOutcome => "cstp.reviewOutcome",
            Self::GetDeliberationStats => "cstp.getDeliberationStats",
            Self::ExportSpikes => "cstp.exportSpikes",
            Self::SetGuardrail => "cstp.setGuardrail",
            Self::ListGuardrails => "cstp.listGuardrails",
            Self::DeleteGuardrail => "cstp.deleteGuardrail",
            Self::Configure => "cstp.configure",
            Self::DebugTracker => "cstp.debugTracker",
        }
    }

    /// The method of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }
}

/// An input to capture.
#[derive(Debug)]
pub(crate) struct Captured {
    pub(crate) scope: Scope,
    pub(crate) kind: InputKind,
    pub(crate) text: String,
    pub(crate) related: Vec<RelatedDecision>,
}

/// A result, and the input that it becomes.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) json: String,
    pub(crate) captured: Option<Captured>,
}

impl From<String> for Answer {
    fn from(json: String) -> Self {
        Self { json, captured: None }
    }
}

/// At most the first 50 characters.
pub(crate) fn cut(text: &str) -> String {
    text.chars().take(50).collect()
}

impl Deliberation {
    /// Calls a method with its parameters, a JSON object (an empty text means none). Returns the result as JSON.
    ///
    /// A query, a check, a look-up and a call for statistics become inputs of the caller's next decision. If
    /// such an input cannot be stored, the result has the member `deliberation_not_tracked` with the reason.
    ///
    /// # Errors
    /// `Invalid` with what to change; `NotFound` with the id; `Conflict` if a guardrail refuses a decision;
    /// `Damaged`, `Unavailable`, `Poisoned`.
    pub fn call(&self, caller: &Caller<'_>, method: Method, params: &str) -> Result<String> {
        let params = if params.trim().is_empty() { "{}" } else { params };
        let answer: Answer = match method {
            Method::RecordDecision => self.record_decision(caller, params)?.into(),
            Method::QueryDecisions => self.query_decisions(caller, params)?,
            Method::CheckGuardrails => self.check_guardrails(caller, params)?,
            Method::GetDecision => self.get_decision(caller, params)?,
            Method::GetReasonStats => self.get_reason_stats(caller, params)?,
            Method::RecordThought => return self.record_thought(caller, params),
            Method::ReviewOutcome => self.review_outcome(params)?.into(),
            Method::GetDeliberationStats => self.get_deliberation_stats(params)?.into(),
            Method::ExportSpikes => self.export_spikes(params)?.into(),
            Method::SetGuardrail => self.set_guardrail(params)?.into(),
            Method::ListGuardrails => self.list_guardrails(params)?.into(),
            Method::DeleteGuardrail => self.delete_guardrail(params)?.into(),
            Method::Configure => self.configure(params)?.into(),
            Method::DebugTracker => self.debug_tracker(caller, params)?.into(),
        };
        let Some(captured) = answer.captured.filter(|_| caller.tracks) else { return Ok(answer.json) };
        match self.capture(caller, captured) {
            Ok(_) => Ok(answer.json),
            // The caller's call has succeeded: it gets its result, and learns that the trace will lack it.
            Err(error) => add_member(&answer.json, "deliberation_not_tracked", &error.to_string()),
        }
    }

    /// Stores an input. Returns its id and the name of its tracker.
    pub(crate) fn capture(&self, caller: &Caller<'_>, captured: Captured) -> Result<(String, String)> {
        let core = self.decisions.core();
        if !core.is_writer() || core.is_poisoned() {
            return Err(Error::new(ErrorKind::Unavailable, "the store takes no writes"));
        }
        let ttl_ns = self.read_settings()?.input_ttl_ms.saturating_mul(1_000_000);
        let id = format!("{}-{}", captured.kind.prefix(), self.random_id()?);
        let key = caller.tracker(&captured.scope);
        let mut batch = self.space.batch();
        let queued = {
            let mut state = self.state();
            let time_ns = self.now_ns();
            let input = TrackedInput {
                id: id.clone(),
                kind: captured.kind,
                text: captured.text,
                source: captured.kind.source().to_owned(),
                time_ns,
                expires_ns: time_ns.saturating_add(ttl_ns),
                related: captured.related,
                number: 0,
            };
            state.trackers(&self.trackers)?.capture(&key, input, &self.trackers, &mut batch);
            // The caller asked for nothing to be stored: its input outlives the process, and is on disk with the
            // decision. A thought is stored because the caller says so.
            let durability =
                if captured.kind == InputKind::Reasoning { self.durability() } else { Durability::Process };
            let queued = batch.submit_inline(durability);
            if queued.is_err() {
                state.trackers = None;
            }
            queued
        };
        self.settle_trackers(queued?.wait())?;
        Ok((id, key.name))
    }

    /// Passes on the result of a write. After a failure, captured inputs are read from the store again.
    pub(crate) fn settle_trackers(&self, written: Result<annals::Seqno>) -> Result<()> {
        if written.is_err() {
            self.state().trackers = None;
        }
        written.map(drop)
    }
}

/// An object's text with one more member.
fn add_member(object: &str, name: &str, value: &str) -> Result<String> {
    let parsed = RawObject::parse(object, "the result")?;
    let text = crate::json::ObjectText::new().members(&parsed.members);
    Ok(text.json(name, &to_json(&value)).end())
}
