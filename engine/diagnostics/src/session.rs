//! The shape of a session as it is reported, and what is refused.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use annals::{Error, Result};

use crate::category::{FailureCategory, Outcome};

/// The longest report of a session, in bytes of JSON.
pub const SESSION_BYTES_MAX: usize = 64 << 20;
/// Most ids in one list of a session.
pub const IDS_MAX: usize = 10_000;
/// The longest id, in bytes.
const ID_BYTES_MAX: usize = 4 << 10;

/// A tool call of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    /// The tool's name.
    pub tool: String,
    /// The file that it worked on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Whether it succeeded.
    pub success: bool,
}

/// An error that a session met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionError {
    /// What it said.
    pub message: String,
    /// The tool that gave it.
    pub tool: String,
    /// Whether the session could go on.
    pub recoverable: bool,
}

/// An edge of a knowledge graph.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EdgeKey {
    /// The node where it begins.
    pub source_id: String,
    /// The node where it ends.
    pub target_id: String,
    /// What it says of the two.
    pub relationship_name: String,
}

/// A session as it is reported at its end. `null` counts as absent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionDiagnostic {
    /// The session's id.
    pub session_id: String,
    /// How it ended.
    pub outcome: Outcome,
    /// The observations that it was given at its start. Absent: those of its injections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub injected_observation_ids: Option<Vec<String>>,
    /// The graph nodes that it was shown. Absent: those of its injections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub injected_graph_entity_ids: Option<Vec<String>>,
    /// The graph edges that it was shown. Absent: those of its injections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub injected_graph_edge_keys: Option<Vec<EdgeKey>>,
    /// Its tool calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_summary: Option<Vec<ToolCall>>,
    /// The files that it modified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files_modified: Option<Vec<String>>,
    /// The errors that it met.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errors_encountered: Option<Vec<SessionError>>,
    /// The category, if the reporter names it: the one that the rules find, or `unknown`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_category: Option<FailureCategory>,
    /// More about the failure: any JSON, kept byte for byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_context: Option<Box<RawValue>>,
    /// Observations that helped, whatever the outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub helpful_observation_ids: Option<Vec<String>>,
    /// Observations that misled, whatever the outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub misleading_observation_ids: Option<Vec<String>>,
    /// The organisation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org_id: Option<String>,
    /// The project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
}

impl SessionDiagnostic {
    /// Parses and checks a report.
    ///
    /// # Errors
    /// `Invalid` with the member and what is allowed.
    pub fn parse(json: &str) -> Result<Self> {
        if json.len() > SESSION_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a session's report has {} bytes, and at most {SESSION_BYTES_MAX} are allowed",
                json.len()
            )));
        }
        check_object("a session's report", json)?;
        let session: Self = serde_json::from_str(json)
            .map_err(|error| Error::invalid(format!("a session's report is malformed: {error}")))?;
        session.check()?;
        Ok(session)
    }

    /// Checks ids, lists, and what they say together.
    ///
    /// # Errors
    /// `Invalid` with the member and what is allowed.
    pub fn check(&self) -> Result<()> {
        check_id("sessionId", &self.session_id)?;
        for (member, id) in [("orgId", &self.org_id), ("projectId", &self.project_id)] {
            id.as_deref().map_or(Ok(()), |id| check_id(member, id))?;
        }
        let lists = [
            ("injectedObservationIds", &self.injected_observation_ids),
            ("injectedGraphEntityIds", &self.injected_graph_entity_ids),
            ("helpfulObservationIds", &self.helpful_observation_ids),
            ("misleadingObservationIds", &self.misleading_observation_ids),
        ];
        for (member, ids) in lists {
            check_ids(member, ids.as_deref().unwrap_or_default())?;
        }
        check_edges("injectedGraphEdgeKeys", self.injected_graph_edge_keys.as_deref().unwrap_or_default())?;
        let misleading: HashSet<&String> = self.misleading().iter().collect();
        let both = self.helpful().iter().find(|id| misleading.contains(id));
        if let Some(id) = both {
            return Err(Error::invalid(format!(
                "observation {id:?} is in helpfulObservationIds and in misleadingObservationIds: name it in one of them"
            )));
        }
        self.check_category()
    }

    /// A category that the rules do not give would make the distribution depend on the reporter.
    fn check_category(&self) -> Result<()> {
        let Some(given) = self.failure_category else { return Ok(()) };
        if !self.outcome.is_failed() {
            return Err(Error::invalid("an accepted session has no failureCategory: leave it out"));
        }
        let found = crate::classify(self);
        if given == FailureCategory::Unknown || given == found {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "failureCategory is {:?}, but the rules give {:?}: leave it out, or give \"unknown\" for a session that nobody classified",
            given.name(),
            found.name()
        )))
    }

    /// The tool calls.
    #[must_use]
    pub fn tool_calls(&self) -> &[ToolCall] {
        self.tool_call_summary.as_deref().unwrap_or_default()
    }

    /// The modified files.
    #[must_use]
    pub fn files(&self) -> &[String] {
        self.files_modified.as_deref().unwrap_or_default()
    }

    /// The errors.
    #[must_use]
    pub fn errors(&self) -> &[SessionError] {
        self.errors_encountered.as_deref().unwrap_or_default()
    }

    pub(crate) fn helpful(&self) -> &[String] {
        self.helpful_observation_ids.as_deref().unwrap_or_default()
    }

    pub(crate) fn misleading(&self) -> &[String] {
        self.misleading_observation_ids.as_deref().unwrap_or_default()
    }

    pub(crate) fn observations(&self) -> &[String] {
        self.injected_observation_ids.as_deref().unwrap_or_default()
    }

    pub(crate) fn nodes(&self) -> &[String] {
        self.injected_graph_entity_ids.as_deref().unwrap_or_default()
    }

    pub(crate) fn edges(&self) -> &[EdgeKey] {
        self.injected_graph_edge_keys.as_deref().unwrap_or_default()
    }
}

/// An array of values would be read as the members in their order.
pub(crate) fn check_object(what: &str, json: &str) -> Result<()> {
    match json.trim_start().starts_with('{') {
        true => Ok(()),
        false => Err(Error::invalid(format!("{what} is a JSON object"))),
    }
}

pub(crate) fn check_id(member: &str, id: &str) -> Result<()> {
    if id.is_empty() || id.len() > ID_BYTES_MAX || id.contains('\0') {
        return Err(Error::invalid(format!(
            "{member} must have 1 to {ID_BYTES_MAX} bytes, none of them zero; it has {}",
            id.len()
        )));
    }
    Ok(())
}

pub(crate) fn check_ids(member: &str, ids: &[String]) -> Result<()> {
    check_count(member, ids.len())?;
    ids.iter().try_for_each(|id| check_id(member, id))
}

pub(crate) fn check_edges(member: &str, edges: &[EdgeKey]) -> Result<()> {
    check_count(member, edges.len())?;
    edges.iter().try_for_each(|edge| {
        [&edge.source_id, &edge.target_id, &edge.relationship_name]
            .into_iter()
            .try_for_each(|part| check_id(member, part))
    })
}

fn check_count(member: &str, count: usize) -> Result<()> {
    if count > IDS_MAX {
        return Err(Error::invalid(format!("{member} has {count} ids, and at most {IDS_MAX} are allowed")));
    }
    Ok(())
}
