//! A decision: what a client gives, how it is stored, and what the index and statistics read of it.
//!
//! A decision is a JSON object under its id (8 hexadecimal digits) in the keyspace `annals.decisions`. Members
//! that are not known keep their bytes.

use annals::{Error, Result};
use serde::Deserialize;

use crate::json::{ObjectText, RawObject, array_text, check_choice, raw_items};
use crate::times::parse_iso;
use crate::trace::{REASON_TYPES, Spelling, Trace};

/// Allowed categories.
pub const CATEGORIES: [&str; 5] = ["architecture", "process", "integration", "tooling", "security"];
/// Allowed stakes.
pub const STAKES: [&str; 4] = ["low", "medium", "high", "critical"];
/// Allowed mental states.
pub const MENTAL_STATES: [&str; 5] = ["deliberate", "reactive", "exploratory", "habitual", "pressured"];
/// Allowed outcomes.
pub const OUTCOMES: [&str; 4] = ["success", "partial", "failure", "abandoned"];
/// Longest id of an agent or of a decision's scope, in bytes.
const SCOPE_BYTES_MAX: usize = 256;
/// Members that annals writes itself.
const RESERVED: [&str; 13] = [
    "id",
    "status",
    "outcome",
    "created_at",
    "reviewed_at",
    "recorded_by",
    "run_uid",
    "related_to",
    "quality_score",
    "deliberation_auto",
    "actual_result",
    "lessons",
    "earlier_reviews",
];

/// Whose a call is: ids of an agent and of a decision that is in the making.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Scope {
    pub(crate) agent: Option<String>,
    pub(crate) decision: Option<String>,
}

impl Scope {
    /// Takes the scope from the parameters of a call.
    ///
    /// # Errors
    /// `Invalid`.
    pub(crate) fn take(object: &mut RawObject<'_>) -> Result<Self> {
        let mut one = |camel: &str, snake: &str| {
            let id = object.take_text(&[camel, snake])?.filter(|id| !id.is_empty());
            match &id {
                Some(id) if id.len() > SCOPE_BYTES_MAX || id.chars().any(char::is_control) => {
                    Err(Error::invalid(format!(
                        "{camel:?} has at most {SCOPE_BYTES_MAX} bytes and no control characters"
                    )))
                }
                _ => Ok(id),
            }
        };
        Ok(Self { agent: one("agentId", "agent_id")?, decision: one("decisionId", "decision_id")? })
    }
}

/// A decision to record.
#[derive(Debug)]
pub(crate) struct NewDecision<'a> {
    pub(crate) scope: Scope,
    pub(crate) decision: String,
    pub(crate) confidence: f64,
    confidence_text: &'a str,
    pub(crate) category: Option<String>,
    pub(crate) stakes: String,
    pub(crate) context: Option<String>,
    reasons: Option<&'a str>,
    pub(crate) reason_types: Vec<String>,
    pub(crate) tags: Vec<String>,
    pub(crate) project: Option<String>,
    pub(crate) pattern: Option<String>,
    mental_state: Option<String>,
    bridge: Option<&'a str>,
    pub(crate) run: Option<String>,
    pub(crate) frame: Option<u32>,
    pub(crate) embedding: Option<Vec<f32>>,
    pub(crate) embedder: Option<String>,
    pub(crate) trace: Trace,
    pub(crate) has_explicit_trace: bool,
    /// Members that are not known.
    rest: RawObject<'a>,
}

/// What annals adds to a decision that it stores.
#[derive(Debug, Default)]
pub(crate) struct RecordedFacts<'a> {
    pub(crate) id: &'a str,
    pub(crate) recorded_by: &'a str,
    pub(crate) created_at: &'a str,
    pub(crate) run_uid: Option<u64>,
    pub(crate) related_json: Option<&'a str>,
    pub(crate) quality: f64,
    pub(crate) is_automatic: bool,
}

/// A confidence from 0 to 1.
///
/// # Errors
/// `Invalid`.
pub(crate) fn check_confidence(confidence: f64) -> Result<f64> {
    if (0.0..=1.0).contains(&confidence) {
        return Ok(confidence);
    }
    Err(Error::invalid(format!("confidence {confidence} is not from 0 to 1")))
}

impl<'a> NewDecision<'a> {
    /// Parses the parameters of `recordDecision`.
    ///
    /// # Errors
    /// `Invalid` with the reason.
    pub(crate) fn parse(text: &'a str) -> Result<Self> {
        let mut object = RawObject::parse(text, "the decision")?;
        let scope = Scope::take(&mut object)?;
        let decision = object.take_text(&["decision"])?.filter(|text| !text.trim().is_empty());
        let decision = decision.ok_or_else(|| {
            Error::invalid("a decision needs \"decision\": a text that says what was decided")
        })?;
        let confidence_text = object
            .take(&["confidence"])?
            .ok_or_else(|| Error::invalid("a decision needs \"confidence\": a number from 0 to 1"))?;
        let confidence: f64 =
            crate::json::parse_as(confidence_text, "a number from 0 to 1", "the decision", "confidence")?;
        let reasons = object.take(&["reasons"])?;
        let reason_types = reasons.map(reason_types).transpose()?.unwrap_or_default();
        let explicit = object.take(&["deliberation"])?;
        let trace = explicit.map(Trace::parse).transpose()?;
        let mut parsed = Self {
            scope,
            decision,
            confidence: check_confidence(confidence)?,
            confidence_text,
            category: object.take_choice(&["category"], &CATEGORIES)?,
            stakes: object.take_choice(&["stakes"], &STAKES)?.unwrap_or_else(|| "medium".to_owned()),
            context: object.take_text(&["context"])?.filter(|text| !text.is_empty()),
            reasons: reasons.filter(|_| !reason_types.is_empty()),
            reason_types,
            tags: object.take_as(&["tags"], "a list of texts")?.unwrap_or_default(),
            project: object.take_text(&["project"])?.filter(|text| !text.is_empty()),
            pattern: object.take_text(&["pattern"])?.filter(|text| !text.is_empty()),
            mental_state: object.take_choice(&["mentalState", "mental_state"], &MENTAL_STATES)?,
            bridge: object.take(&["bridge"])?,
            run: object.take_text(&["run"])?,
            frame: object.take_as(&["frame"], "the number of a frame")?,
            embedding: object.take_as::<Vec<f32>>(&["embedding"], "a list of numbers")?,
            embedder: object.take_text(&["embeddingModel", "embedding_model"])?,
            has_explicit_trace: trace.is_some(),
            trace: trace.unwrap_or_default(),
            rest: object,
        };
        if let Some(bridge) = parsed.bridge {
            RawObject::parse(bridge, "the bridge")?;
        }
        if parsed.frame.is_some() && parsed.run.is_none() {
            return Err(Error::invalid("a decision that names a frame must name its run"));
        }
        if parsed.embedding.as_ref().is_some_and(Vec::is_empty) {
            parsed.embedding = None;
        }
        if let Some(own) = parsed.rest.members.iter().find(|member| RESERVED.contains(&&*member.name)) {
            return Err(Error::invalid(format!(
                "{:?} of a decision is written by annals: leave it out",
                own.name
            )));
        }
        Ok(parsed)
    }

    /// The quality of what was written down, from 0 to 1.
    pub(crate) fn quality(&self) -> f64 {
        let kinds: std::collections::BTreeSet<_> = self.reason_types.iter().collect();
        let points = [
            (self.pattern.is_some(), 15),
            (!self.tags.is_empty(), 15),
            (kinds.len() >= 2, 15),
            (self.bridge.is_some(), 10),
            (self.decision.chars().count() > 20, 10),
            (self.context.as_ref().is_some_and(|text| text.chars().count() > 10), 10),
            (self.project.is_some(), 10),
            (self.trace.has_content(), 5),
            (self.trace.has_reasoning(), 10),
        ];
        f64::from(points.into_iter().filter(|(is, _)| *is).map(|(_, points)| points).sum::<i32>()) / 100.0
    }

    /// The text that is stored.
    pub(crate) fn to_stored(&self, facts: &RecordedFacts<'_>) -> String {
        let tags = Some(&self.tags).filter(|tags| !tags.is_empty());
        let mut text = ObjectText::new()
            .value("id", facts.id)
            .value("decision", &self.decision)
            .json("confidence", self.confidence_text)
            .some("category", self.category.as_ref())
            .value("stakes", &self.stakes)
            .some("context", self.context.as_ref())
            .some_json("reasons", self.reasons)
            .some("tags", tags)
            .some("project", self.project.as_ref())
            .some("pattern", self.pattern.as_ref())
            .some("mental_state", self.mental_state.as_ref())
            .some_json("bridge", self.bridge)
            .some("agent_id", self.scope.agent.as_ref())
            .value("recorded_by", facts.recorded_by)
            .some("run", self.run.as_ref())
            .some("run_uid", facts.run_uid)
            .some("frame", self.frame)
            .value("status", "pending")
            .value("created_at", facts.created_at)
            .value("quality_score", facts.quality)
            .some_json("related_to", facts.related_json)
            .some("embedding_model", self.embedder.as_ref())
            .members(&self.rest.members);
        if facts.is_automatic {
            text = text.value("deliberation_auto", true);
        }
        if self.trace.has_content() || self.has_explicit_trace {
            text = text.json("deliberation", &self.trace.to_json(Spelling::Snake));
        }
        text.end()
    }
}

/// The types of reasons, each with its text checked.
fn reason_types(text: &str) -> Result<Vec<String>> {
    let mut types = Vec::new();
    for (at, item) in raw_items(text, "\"reasons\" of the decision")?.into_iter().enumerate() {
        let place = format!("reason {} of the decision", at + 1);
        let mut reason = RawObject::parse(item, &place)?;
        let kind = reason.take_text(&["type"])?;
        let kind = kind.ok_or_else(|| {
            Error::invalid(format!("{place} has no \"type\": use {}", REASON_TYPES.join(", ")))
        })?;
        check_choice(&kind, &format!("type of {place}"), &REASON_TYPES)?;
        types.push(kind);
    }
    Ok(types)
}

/// What the index and statistics read of a stored decision.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StoredDecision {
    pub(crate) id: String,
    pub(crate) decision: String,
    pub(crate) confidence: f64,
    pub(crate) category: Option<String>,
    pub(crate) stakes: String,
    pub(crate) context: Option<String>,
    pub(crate) reasons: Vec<StoredReason>,
    pub(crate) tags: Vec<String>,
    pub(crate) project: Option<String>,
    pub(crate) pattern: Option<String>,
    pub(crate) agent_id: Option<String>,
    pub(crate) run: Option<String>,
    pub(crate) run_uid: Option<u64>,
    pub(crate) frame: Option<u32>,
    pub(crate) status: String,
    pub(crate) outcome: Option<String>,
    pub(crate) created_at: String,
    pub(crate) deliberation: Option<StoredTrace>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StoredReason {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) text: Option<serde_json::Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StoredTrace {
    pub(crate) inputs: Vec<StoredInput>,
    pub(crate) steps: Vec<StoredStep>,
    pub(crate) total_duration_ms: Option<f64>,
    pub(crate) convergence_point: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StoredInput {
    pub(crate) id: String,
    pub(crate) text: String,
    pub(crate) source: Option<String>,
    pub(crate) timestamp: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StoredStep {
    pub(crate) step: u64,
    pub(crate) thought: String,
    pub(crate) inputs_used: Vec<String>,
    pub(crate) timestamp: Option<String>,
    pub(crate) duration_ms: Option<f64>,
}

impl StoredTrace {
    /// Number of steps that the recorder of the decision sent: without those of captured inputs, and without
    /// thoughts later than the decision.
    pub(crate) fn sent_steps(&self, decided_ns: i128) -> usize {
        let is_captured = |step: &StoredStep| {
            let [used] = step.inputs_used.as_slice() else { return false };
            let input = self.inputs.iter().find(|input| input.id == *used);
            input.is_some_and(|input| {
                input.text == step.thought
                    && input.source.as_deref().is_some_and(|source| source.starts_with("cstp:"))
            })
        };
        let is_later = |step: &StoredStep| {
            let time = step.timestamp.as_deref().and_then(parse_iso);
            step.inputs_used.is_empty() && time.is_some_and(|time| time > decided_ns)
        };
        self.steps.iter().filter(|step| !is_captured(step) && !is_later(step)).count()
    }
}

impl StoredDecision {
    /// # Errors
    /// `Bug` if the store holds something else.
    pub(crate) fn parse(text: &[u8]) -> Result<Self> {
        serde_json::from_slice(text).map_err(crate::stored_error)
    }
}

/// A stored decision's text with members set, or removed where the value is `None`.
///
/// # Errors
/// `Invalid` if the text is malformed.
pub(crate) fn with_members(text: &str, changes: &[(&str, Option<String>)]) -> Result<String> {
    let object = RawObject::parse(text, "a stored decision")?;
    let mut out = ObjectText::new();
    for member in &object.members {
        match changes.iter().find(|(name, _)| *name == member.name) {
            None => out = out.raw(member.quoted, member.value),
            Some((name, Some(value))) => out = out.json(name, value),
            Some((_, None)) => {}
        }
    }
    for (name, value) in changes {
        if let Some(value) = value
            && !object.members.iter().any(|member| member.name == *name)
        {
            out = out.json(name, value);
        }
    }
    Ok(out.end())
}

/// How a stored decision is shown.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shown {
    pub(crate) spelling: Spelling,
    pub(crate) with_trace: bool,
}

/// A stored decision as an answer: with `title` and `summary`, and its deliberation in the wanted spelling.
/// `extra` are members that follow.
///
/// # Errors
/// `Invalid` if the text is malformed.
pub(crate) fn shown(text: &str, shown: Shown, extra: &[(&str, String)]) -> Result<String> {
    let object = RawObject::parse(text, "a stored decision")?;
    let mut out = ObjectText::new();
    for member in &object.members {
        match &*member.name {
            "deliberation" if !shown.with_trace => {}
            "deliberation" => {
                out = out.json("deliberation", &Trace::parse(member.value)?.to_json(shown.spelling));
            }
            "decision" => {
                out = out
                    .raw(member.quoted, member.value)
                    .json("title", member.value)
                    .json("summary", member.value);
            }
            _ => out = out.raw(member.quoted, member.value),
        }
    }
    Ok(extra.iter().fold(out, |out, (name, value)| out.json(name, value)).end())
}

/// The items of a stored array with one more.
///
/// # Errors
/// `Invalid` if the text is malformed.
pub(crate) fn pushed(array: Option<&str>, item: String) -> Result<String> {
    let mut items: Vec<String> = match array {
        Some(array) => raw_items(array, "earlier reviews")?.into_iter().map(str::to_owned).collect(),
        None => Vec::new(),
    };
    items.push(item);
    Ok(array_text(items))
}
