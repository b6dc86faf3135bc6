//! Knowledge about model providers: the interface of a request, the summary of an exchange, changes between
//! requests, costs and severity. Pure: no network, no clock, no files.
//!
//! Everything here reads copies. The bytes themselves are stored, served and hashed unchanged.

mod anthropic;
mod api;
mod aws_events;
mod bedrock;
mod blocks;
mod diff;
mod encoding;
mod gemini;
mod json;
mod meaning;
mod messages;
mod metadata;
mod ollama;
mod openai_chat;
mod openai_responses;
mod prices;
mod read;
mod severity;
mod spoken;
mod sse;
mod summary;
#[cfg(test)]
mod tests;
mod text;
mod tool_results;

pub use api::{Api, Shape, recognise};
pub use diff::{Change, NewPart, Span, new_part};
pub use encoding::{DECODED_BYTES_MAX, Decoded, decode};
pub use meaning::{Detail, Difference, Meaning, ValueChange};
pub use messages::{Kind, MessageView, PARTS_MAX, PREVIEW_CHARS, messages};
pub use prices::{Cost, Price, Prices, PricesError};
pub(crate) use read::summary_with;
pub use read::{Exchange, summary};
pub use severity::{Body, Evidence, SeverityRules, Verdict};
pub(crate) use severity::{Name, Scalar, SeverityRule, Statuses};
pub(crate) use spoken::{question, tool_results};
pub use sse::{EVENT_BYTES_MAX, Event, EventStream};
pub use summary::{NAME_BYTES_MAX, ProviderError, Summary, TOOL_CALLS_MAX, ToolCall, Usage};
pub use text::{TEXT_BYTES_MAX, Text};
pub use tool_results::{set_tool_result, tool_result_ids};
