//! The values of a frame's view. Their JSON is part of the HTTP interface (docs/http.md).

use annals::runs::FrameInfo;
use annals::{Component, Severity};
use serde::{Serialize, Serializer};

use annals_policy::providers::{ConversationMessage, TokenUsage};

/// One frame as a person reads it. All texts are plain text.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FrameView {
    pub seq: u32,
    /// The run's number and name.
    pub uid: u64,
    pub run: String,
    pub component: String,
    /// The model, the tool, the name of the call, or the line of the request.
    pub name: Option<String>,
    pub kind: FrameKind,
    pub parent: Option<u32>,
    pub lane: u32,
    #[serde(serialize_with = "as_text")]
    pub began_ns: u64,
    /// `None` while the frame is open.
    pub duration_ns: Option<u64>,
    pub status: FrameStatus,
    pub severity: ShownSeverity,
    /// Why the frame is severe, as noted when it was recorded.
    pub why: Option<String>,
    /// The form of the bodies, if it is a model call: `openai.chat`.
    pub api: Option<&'static str>,
    pub model: Option<String>,
    pub usage: Option<ShownUsage>,
    pub dollars: Option<f64>,
    pub http: Option<HttpView>,
    pub request: ShownBody,
    /// `None` while the frame is open and nothing has arrived.
    pub response: Option<ShownBody>,
    pub before: RequestBefore,
    /// The new messages of the request, or all.
    pub messages: Vec<ConversationMessage>,
    /// How many messages the request before had and this has not.
    pub removed: usize,
    /// Changes of parameters and tools since the request before, a line each.
    pub changes: Vec<String>,
    /// The names of the offered tools.
    pub tools: Vec<String>,
    pub answer: Vec<ConversationMessage>,
    pub error: Option<String>,
    /// What makes the view differ from the recorded bytes: `redacted by profile safe`, `cut`.
    pub labels: Vec<String>,
    /// Where the recorded bytes are damaged; the rest is shown.
    pub damage: Option<String>,
}

/// What made a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FrameKind {
    Llm,
    Tool,
    User,
    Nondet,
    Http,
    Other,
}

impl FrameKind {
    /// The kind of a component.
    #[must_use]
    pub fn of(component: &Component) -> Self {
        match component {
            Component::Llm => Self::Llm,
            Component::Tool => Self::Tool,
            Component::User => Self::User,
            Component::Nondet => Self::Nondet,
            Component::Other(name) if name == "http" => Self::Http,
            _ => Self::Other,
        }
    }

    /// Its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Llm => "llm",
            Self::Tool => "tool",
            Self::User => "user",
            Self::Nondet => "nondet",
            Self::Http => "http",
            Self::Other => "other",
        }
    }
}

/// How a frame ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FrameStatus {
    Ok,
    Error,
    /// It was begun and never finished, or its answer broke off.
    Aborted,
    /// Its answer is still to come.
    Open,
}

impl FrameStatus {
    /// Its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Aborted => "aborted",
            Self::Open => "open",
        }
    }
}

/// Severity as it is coloured, from least to most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ShownSeverity {
    Ok,
    Flagged,
    Failed,
    Escalated,
}

impl ShownSeverity {
    /// The severity of a frame: an error fails it, unless it is escalated.
    #[must_use]
    pub fn of(frame: &FrameInfo) -> Self {
        match frame.severity {
            Severity::Escalated => Self::Escalated,
            _ if frame.error => Self::Failed,
            Severity::Flagged => Self::Flagged,
            _ => Self::Ok,
        }
    }

    /// Its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Flagged => "flagged",
            Self::Failed => "failed",
            Self::Escalated => "escalated",
        }
    }
}

/// Token counts; `None` if the provider gives none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ShownUsage {
    pub input: Option<u64>,
    pub output: Option<u64>,
    pub cached: Option<u64>,
    pub reasoning: Option<u64>,
}

impl From<&TokenUsage> for ShownUsage {
    fn from(usage: &TokenUsage) -> Self {
        Self {
            input: usage.input,
            output: usage.output,
            cached: usage.cached_input,
            reasoning: usage.reasoning,
        }
    }
}

/// The lines and headers of an exchange.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HttpView {
    pub method: String,
    pub target: String,
    pub status: Option<u16>,
    pub request_headers: Vec<(String, String)>,
    pub response_headers: Vec<(String, String)>,
}

/// A stored body: its size, hash and content encoding. A redacted reader gets no hash, because guesses of the
/// content could be checked against it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShownBody {
    pub bytes: u64,
    pub blake3: Option<String>,
    pub decoded_from: Option<String>,
}

/// The messages that the request before has, too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RequestBefore {
    /// The frame of the request before; `None` if there is none.
    pub seq: Option<u32>,
    pub messages: usize,
    pub bytes: u64,
}

/// Nanoseconds since 1970 exceed the integers that JavaScript keeps, so they are text.
pub(crate) fn as_text<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(number)
}
