//! Weights: moving averages of outcomes, and the records of their changes.

use serde::{Deserialize, Serialize};

use annals::{Error, ErrorKind, Result};

use crate::category::Outcome;
use crate::session::EdgeKey;

/// How much of an observation's weight an accepted session replaces.
pub const ALPHA_SUCCESS: f64 = 0.1;
/// How much of an observation's weight a failed session replaces; twice this for a misleading observation.
pub const ALPHA_FAILURE: f64 = 0.15;
/// How much of the weight of a graph node or edge a session replaces.
pub const ALPHA_GRAPH: f64 = 0.1;
/// The weight of an observation before its first session.
pub const FIRST_WEIGHT: f64 = 1.0;
/// The weight of a graph node or edge before its first session.
pub const FIRST_GRAPH_WEIGHT: f64 = 0.5;

/// `previous × (1 - alpha) + signal × alpha`.
///
/// # Errors
/// `Invalid` if one of them is not a number from 0 to 1.
pub fn moving_average(previous: f64, signal: f64, alpha: f64) -> Result<f64> {
    for (name, number) in [("weight", previous), ("signal", signal), ("alpha", alpha)] {
        if !(0.0..=1.0).contains(&number) {
            return Err(Error::invalid(format!("a {name} must be a number from 0 to 1, not {number}")));
        }
    }
    Ok(previous * (1.0 - alpha) + signal * alpha)
}

/// What an outcome means for a graph node or edge: rework is a half.
pub(crate) fn graph_score(outcome: Outcome) -> f64 {
    match outcome {
        Outcome::Accepted => 1.0,
        Outcome::Rework => 0.5,
        Outcome::Rejected => 0.0,
    }
}

/// How a session changes the weight of an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WeightRule {
    /// By an accepted session, or because it helped.
    Rise,
    /// By a failed session, or because it misled.
    Fall(Outcome),
    /// Because its counts say that it misleads.
    FallTwice,
}

impl WeightRule {
    /// The signal, the rate, and the outcome that the history shows.
    pub(crate) fn terms(self) -> (f64, f64, Outcome) {
        match self {
            Self::Rise => (1.0, ALPHA_SUCCESS, Outcome::Accepted),
            Self::Fall(outcome) => (0.0, ALPHA_FAILURE, outcome),
            Self::FallTwice => (0.0, ALPHA_FAILURE * 2.0, Outcome::Rejected),
        }
    }
}

/// A weight as it is stored: the number, how often it changed, and when last.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StoredWeight {
    pub(crate) weight: f64,
    pub(crate) changes: u64,
    pub(crate) changed_ms: u64,
}

impl StoredWeight {
    pub(crate) fn first(weight: f64) -> Self {
        Self { weight, changes: 0, changed_ms: 0 }
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        [self.weight.to_bits(), self.changes, self.changed_ms]
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect()
    }

    /// # Errors
    /// `Damaged` if the bytes are none, or the weight is not a number from 0 to 1.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let [weight, changes, changed_ms] = crate::counts::numbers::<3>(bytes)?;
        let weight = f64::from_bits(weight);
        if !(0.0..=1.0).contains(&weight) {
            return Err(Error::new(
                ErrorKind::Damaged,
                format!("a stored weight is not a number from 0 to 1: {weight}"),
            ));
        }
        Ok(Self { weight, changes, changed_ms })
    }
}

/// A change of an observation's weight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WeightChange {
    /// The observation.
    pub observation_id: String,
    /// The session that changed it.
    pub session_id: String,
    /// The outcome that the change stands for; `rejected` for a misleading observation.
    pub outcome: Outcome,
    /// The weight before.
    #[serde(with = "exact_number")]
    pub previous_weight: f64,
    /// The weight after.
    #[serde(with = "exact_number")]
    pub new_weight: f64,
    /// How much of the weight was replaced.
    #[serde(with = "exact_number")]
    pub alpha: f64,
    /// The session's organisation.
    pub org_id: Option<String>,
    /// The session's project.
    pub project_id: Option<String>,
    /// When, in milliseconds since 1970.
    pub recorded_at: u64,
}

/// A change of the weight of a graph node or edge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GraphChange {
    /// The node, unless it is an edge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_id: Option<String>,
    /// The edge, unless it is a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edge_key: Option<EdgeKey>,
    /// The session that changed it.
    pub session_id: String,
    /// How the session ended.
    pub outcome: Outcome,
    /// What the outcome means: 1, a half, or 0.
    #[serde(with = "exact_number")]
    pub score: f64,
    /// The weight before.
    #[serde(with = "exact_number")]
    pub previous_weight: f64,
    /// The weight after.
    #[serde(with = "exact_number")]
    pub new_weight: f64,
    /// How much of the weight was replaced.
    #[serde(with = "exact_number")]
    pub alpha: f64,
    /// The session's organisation.
    pub org_id: Option<String>,
    /// The session's project.
    pub project_id: Option<String>,
    /// When, in milliseconds since 1970.
    pub recorded_at: u64,
}

/// An event of the audit log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditEvent {
    /// `memory.feedback`.
    pub event: String,
    /// When, in milliseconds since 1970.
    pub recorded_at: u64,
    /// The session that caused it.
    pub session_id: String,
    /// The observation.
    pub observation_id: String,
    /// The session's organisation.
    pub org_id: Option<String>,
    /// The session's project.
    pub project_id: Option<String>,
    /// What was done.
    pub metadata: AuditMetadata,
}

/// What an audit event notes about a change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditMetadata {
    /// Whether the doubled rate was applied.
    pub aggressive_downweight: bool,
    /// The weight before.
    #[serde(with = "exact_number")]
    pub previous_weight: f64,
    /// The weight after.
    #[serde(with = "exact_number")]
    pub new_weight: f64,
    /// How much of the weight was replaced.
    #[serde(with = "exact_number")]
    pub alpha: f64,
}

/// Numbers that are read back to the last bit: `serde_json` alone may be off by one unit in the last place.
mod exact_number {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::value::RawValue;

    pub(super) fn serialize<S: Serializer>(number: &f64, to: S) -> Result<S::Ok, S::Error> {
        number.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        let text = Box::<RawValue>::deserialize(from)?;
        text.get().parse().map_err(serde::de::Error::custom)
    }
}
