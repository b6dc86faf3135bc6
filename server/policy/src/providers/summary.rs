//! The summary of one exchange with a model. Its form in a frame's metadata is in `metadata`.
//!
//! [`summary`](super::summary()) derives it from a copy; the bytes are stored unchanged. Everything in it is
//! bounded.

use serde_json::{Map, Value};

use super::api::ApiShape;
use super::text::{BoundedText, TEXT_BYTES_MAX, clip};

/// Maximum number of tool calls kept.
pub const TOOL_CALLS_MAX: usize = 256;
/// Maximum length of a name, id or message, in bytes.
pub const NAME_BYTES_MAX: usize = 1024;
/// Maximum number of sampling parameters kept.
pub(super) const SAMPLING_MAX: usize = 64;
/// Maximum number of choices whose finish reasons are kept.
const CHOICES_MAX: usize = 128;
/// Token counts, with one meaning for all providers. `None` if the provider gives none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub struct TokenUsage {
    /// All tokens of the request, including those read from a cache.
    pub input: Option<u64>,
    /// All tokens of the answer, including reasoning.
    pub output: Option<u64>,
    /// The part of `input` read from the provider's cache.
    pub cached_input: Option<u64>,
    /// The part of `input` written to the provider's cache.
    pub cache_write: Option<u64>,
    /// The part of `output` spent on reasoning.
    pub reasoning: Option<u64>,
}

/// A tool call requested by the model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelToolCall {
    /// Its id; empty if the provider gives none.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its arguments, as JSON source.
    pub arguments: BoundedText,
    /// The position among the answer's calls, for the pieces that follow.
    pub(super) slot: (u64, u64),
}

/// An error in the provider's words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProviderError {
    /// Its type or status (`rate_limit_error`, `RESOURCE_EXHAUSTED`); else its code.
    pub kind: Option<String>,
    /// Its message.
    pub message: Option<String>,
}

/// The facts known about one exchange.
#[derive(Debug, Clone, PartialEq)]
pub struct ExchangeSummary {
    /// The provider that answered; see [`ModelApi`](super::ModelApi).
    pub provider: &'static str,
    /// The form of the bodies.
    pub shape: ApiShape,
    /// The answer's HTTP status; 0 if there was none.
    pub status: u16,
    /// The requested model.
    pub model_requested: Option<String>,
    /// The model named in the answer.
    pub model_answered: Option<String>,
    /// Sampling and limit parameters, by the provider's own names.
    pub sampling: Map<String, Value>,
    /// Whether a stream was requested.
    pub stream: Option<bool>,
    /// Whether the end of a streamed answer arrived.
    pub complete: Option<bool>,
    /// Token counts.
    pub usage: TokenUsage,
    /// The finish reason of each choice, in the provider's own words.
    pub finish_reasons: Vec<String>,
    /// Tools that the answer calls.
    pub tool_calls: Vec<ModelToolCall>,
    /// Number of tool calls beyond [`TOOL_CALLS_MAX`], or of their pieces in a stream.
    pub tool_calls_more: u64,
    /// Bytes of thinking in the answer; 0 if it is hidden, `None` if there is none.
    pub thinking_bytes: Option<u64>,
    /// The text of the thinking, as far as it is shown.
    pub thinking: BoundedText,
    /// Maximum number of bytes kept of a tool call's arguments.
    pub(super) arguments_max: usize,
    /// Why, or in which words, the model or its guard refused.
    pub refusal: Option<String>,
    /// The answer's text; of the first choice if there are several.
    pub text: BoundedText,
    /// The provider's error.
    pub error: Option<ProviderError>,
    /// Failed tool results in the request's last turn: `TOOL: TEXT`.
    pub tool_errors: Vec<String>,
    /// The answer's id.
    pub response_id: Option<String>,
    /// When the answer was made, according to the provider.
    pub created: Option<String>,
    /// The version of the provider's system.
    pub system_fingerprint: Option<String>,
    /// What could not be read, as a sentence.
    pub unparsed: Option<String>,
}

impl ExchangeSummary {
    pub(super) fn new(provider: &'static str, shape: ApiShape, status: u16) -> Self {
        Self {
            provider,
            shape,
            status,
            model_requested: None,
            model_answered: None,
            sampling: Map::new(),
            stream: None,
            complete: None,
            usage: TokenUsage::default(),
            finish_reasons: Vec::new(),
            tool_calls: Vec::new(),
            tool_calls_more: 0,
            thinking_bytes: None,
            thinking: BoundedText::default(),
            arguments_max: TEXT_BYTES_MAX,
            refusal: None,
            text: BoundedText::default(),
            error: None,
            tool_errors: Vec::new(),
            response_id: None,
            created: None,
            system_fingerprint: None,
            unparsed: None,
        }
    }

    /// The answering model, else the requested one.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.model_answered.as_deref().or(self.model_requested.as_deref())
    }

    /// Notes something that could not be read; only the first few are kept.
    pub(super) fn note(&mut self, what: &str) {
        let noted = self.unparsed.get_or_insert_default();
        if noted.len() < NAME_BYTES_MAX {
            if !noted.is_empty() {
                noted.push_str("; ");
            }
            noted.push_str(clip(what, NAME_BYTES_MAX));
        }
    }

    /// The tool call of `slot`, added if new; `None` if there are too many.
    pub(super) fn tool_call(&mut self, slot: (u64, u64)) -> Option<&mut ModelToolCall> {
        match self.tool_calls.iter().rposition(|call| call.slot == slot) {
            Some(found) => self.tool_calls.get_mut(found),
            None => self.new_tool_call(slot),
        }
    }

    /// The existing tool call of `slot`.
    pub(super) fn tool_call_of(&mut self, slot: (u64, u64)) -> Option<&mut ModelToolCall> {
        self.tool_calls.iter_mut().rfind(|call| call.slot == slot)
    }

    /// A new tool call; later pieces of `slot` belong to it.
    pub(super) fn new_tool_call(&mut self, slot: (u64, u64)) -> Option<&mut ModelToolCall> {
        if self.tool_calls.len() == TOOL_CALLS_MAX {
            self.tool_calls_more += 1;
            return None;
        }
        let arguments = BoundedText::up_to(self.arguments_max);
        self.tool_calls.push(ModelToolCall { slot, arguments, ..ModelToolCall::default() });
        self.tool_calls.last_mut()
    }

    /// Notes a complete tool call. `arguments` is JSON source.
    pub(super) fn add_tool_call(
        &mut self,
        slot: (u64, u64),
        id: Option<String>,
        name: Option<String>,
        arguments: &str,
    ) {
        if let Some(call) = self.tool_call(slot) {
            call.id = short(id.unwrap_or_default());
            call.name = short(name.unwrap_or_default());
            call.arguments.clear();
            call.arguments.push(arguments);
        }
    }

    /// The slot after the used ones, for answers without an index.
    pub(super) fn next_slot(&self) -> (u64, u64) {
        (0, self.tool_calls.len() as u64 + self.tool_calls_more)
    }

    pub(super) fn finish(&mut self, reason: Option<String>) {
        if let Some(reason) = reason
            && self.finish_reasons.len() < CHOICES_MAX
        {
            self.finish_reasons.push(short(reason));
        }
    }

    pub(super) fn think(&mut self, text: &str) {
        *self.thinking_bytes.get_or_insert_default() += text.len() as u64;
        self.thinking.push(text);
    }

    pub(super) fn refuse(&mut self, words: &str) {
        let refusal = self.refusal.get_or_insert_default();
        let room = NAME_BYTES_MAX.saturating_sub(refusal.len());
        refusal.push_str(clip(words, room));
    }

    /// Drops the pieces of an answer before the complete answer is read.
    pub(super) fn forget_pieces(&mut self) {
        self.text.clear();
        self.tool_calls.clear();
        self.tool_calls_more = 0;
        self.thinking_bytes = None;
        self.thinking.clear();
        self.refusal = None;
    }
}

/// A name from outside, cut to its maximum length.
pub(super) fn short(text: String) -> String {
    if text.len() <= NAME_BYTES_MAX { text } else { clip(&text, NAME_BYTES_MAX).to_owned() }
}
