//! What is known about one exchange with a model: the data. Its form as a frame's metadata is in `metadata`.
//!
//! It is made from a copy by [`summary`](super::summary()) and never stands for the bytes, which are stored as
//! they were. Everything in it is bounded.

use serde_json::{Map, Value};

use super::api::ApiShape;
use super::text::{BoundedText, clip};

/// The most tool calls that are kept.
pub const TOOL_CALLS_MAX: usize = 256;
/// The most bytes of any name, id or message that is kept.
pub const NAME_BYTES_MAX: usize = 1024;
/// The most sampling parameters that are kept.
pub(super) const SAMPLING_MAX: usize = 64;
/// The most choices whose ends are kept.
const CHOICES_MAX: usize = 128;
/// Token counts, in one meaning for all providers. None where the provider did not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub struct TokenUsage {
    /// All tokens of the request, those read from a cache included.
    pub input: Option<u64>,
    /// All tokens of the answer, reasoning included.
    pub output: Option<u64>,
    /// Of `input`: read from the provider's cache.
    pub cached_input: Option<u64>,
    /// Of `input`: written to the provider's cache.
    pub cache_write: Option<u64>,
    /// Of `output`: spent on reasoning.
    pub reasoning: Option<u64>,
}

/// A call of a tool that the model asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelToolCall {
    /// Its id; empty where the provider gives none.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its arguments, as JSON source.
    pub arguments: BoundedText,
    /// Which of the answer's calls it is, for pieces that follow.
    pub(super) slot: (u64, u64),
}

/// An error as the provider worded it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProviderError {
    /// Its type or status (`rate_limit_error`, `RESOURCE_EXHAUSTED`); else its code.
    pub kind: Option<String>,
    /// Its message.
    pub message: Option<String>,
}

/// What is known about one exchange.
#[derive(Debug, Clone, PartialEq)]
pub struct ExchangeSummary {
    /// Whose server answered; see [`Api`](super::Api).
    pub provider: &'static str,
    /// How the bodies are written.
    pub shape: ApiShape,
    /// The answer's HTTP status; 0 where there was none.
    pub status: u16,
    /// The model that was asked for.
    pub model_requested: Option<String>,
    /// The model that says it answered.
    pub model_answered: Option<String>,
    /// Parameters of sampling and limits, by the provider's own names.
    pub sampling: Map<String, Value>,
    /// Whether a stream was asked for.
    pub stream: Option<bool>,
    /// Of a streamed answer: whether its end arrived.
    pub complete: Option<bool>,
    /// Token counts.
    pub usage: TokenUsage,
    /// Why the answer ended, one for each choice, by the provider's own words.
    pub finish_reasons: Vec<String>,
    /// Tools that the answer calls.
    pub tool_calls: Vec<ModelToolCall>,
    /// Tool calls beyond [`TOOL_CALLS_MAX`], or, of a stream, their pieces.
    pub tool_calls_more: u64,
    /// Bytes of thinking in the answer; 0 where it is there and hidden, none where there is none.
    pub thinking_bytes: Option<u64>,
    /// Why or with what words the model or its guard refused.
    pub refusal: Option<String>,
    /// The answer's text; of the first choice where there are several.
    pub text: BoundedText,
    /// The provider's error.
    pub error: Option<ProviderError>,
    /// Results in the request's last turn that say a tool failed: `TOOL: TEXT`.
    pub tool_errors: Vec<String>,
    /// The answer's id.
    pub response_id: Option<String>,
    /// When the answer was made, by its maker.
    pub created: Option<String>,
    /// The version of the provider's set-up.
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

    /// The model that answered, else the one that was asked for.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.model_answered.as_deref().or(self.model_requested.as_deref())
    }

    /// Notes something that could not be read; the first few are kept.
    pub(super) fn note(&mut self, what: &str) {
        let noted = self.unparsed.get_or_insert_default();
        if noted.len() < NAME_BYTES_MAX {
            if !noted.is_empty() {
                noted.push_str("; ");
            }
            noted.push_str(clip(what, NAME_BYTES_MAX));
        }
    }

    /// The tool call of `slot`, made if it is new; none where there are too many.
    pub(super) fn tool_call(&mut self, slot: (u64, u64)) -> Option<&mut ModelToolCall> {
        match self.tool_calls.iter().rposition(|call| call.slot == slot) {
            Some(found) => self.tool_calls.get_mut(found),
            None => self.new_tool_call(slot),
        }
    }

    /// The tool call of `slot` that has begun.
    pub(super) fn tool_call_of(&mut self, slot: (u64, u64)) -> Option<&mut ModelToolCall> {
        self.tool_calls.iter_mut().rfind(|call| call.slot == slot)
    }

    /// A new tool call; pieces of `slot` that follow are its own.
    pub(super) fn new_tool_call(&mut self, slot: (u64, u64)) -> Option<&mut ModelToolCall> {
        if self.tool_calls.len() == TOOL_CALLS_MAX {
            self.tool_calls_more += 1;
            return None;
        }
        self.tool_calls.push(ModelToolCall { slot, ..ModelToolCall::default() });
        self.tool_calls.last_mut()
    }

    /// Notes a whole tool call. `arguments` is JSON source.
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
            call.arguments = BoundedText::default();
            call.arguments.push(arguments);
        }
    }

    /// The slot after those that are taken, for answers that give no index.
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
    }

    pub(super) fn refuse(&mut self, words: &str) {
        let refusal = self.refusal.get_or_insert_default();
        let room = NAME_BYTES_MAX.saturating_sub(refusal.len());
        refusal.push_str(clip(words, room));
    }

    /// Forgets the pieces of an answer, before the whole of it is read.
    pub(super) fn forget_pieces(&mut self) {
        self.text.clear();
        self.tool_calls.clear();
        self.tool_calls_more = 0;
        self.thinking_bytes = None;
        self.refusal = None;
    }
}

/// A name from outside, cut to its bound.
pub(super) fn short(text: String) -> String {
    if text.len() <= NAME_BYTES_MAX { text } else { clip(&text, NAME_BYTES_MAX).to_owned() }
}
