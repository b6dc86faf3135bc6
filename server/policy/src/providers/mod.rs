//! Knowledge about model providers: the interface of a request, the summary of an exchange, changes between
//! requests, costs and severity. Pure: no network, no clock, no files.
//!
//! Everything here reads copies. The bytes themselves are stored, served and hashed unchanged.

mod anthropic;
mod api;
mod asked_question;
mod aws_events;
mod bedrock;
mod blocks;
mod conversation;
mod diff;
mod encoding;
mod exchange_reader;
mod gemini;
mod json;
mod meaning;
mod messages;
mod metadata;
mod ollama;
mod openai_chat;
mod openai_responses;
mod prices;
mod rename_tool;
mod severity;
mod spoken_texts;
mod sse;
mod summary;
#[cfg(test)]
mod tests;
mod text;
mod tool_results;

pub use api::{ApiShape, ModelApi, recognise};
pub use asked_question::{AskedQuestion, asked_question, is_closing_answer};
pub use conversation::{
    ConversationMessage, ConversationPart, IMAGE_BYTES_MAX, RequestConversation, answer_conversation,
    message_hashes, plain_body, request_conversation,
};
pub use diff::{FirstDifference, PartChange, RequestChanges, request_changes};
pub use encoding::{DECODED_BYTES_MAX, DecodedBody, decode};
pub use exchange_reader::summary_with;
pub use exchange_reader::{WireExchange, summary};
pub use meaning::{Meaning, MeaningDetail, MeaningDifference, ValueChange};
pub use messages::{MessageView, PARTS_MAX, PREVIEW_CHARS, PartKind};
pub use prices::{Cost, Price, Prices, PricesError};
pub use rename_tool::rename_tool_calls;
pub use severity::{EncodedBody, Evidence, SeverityRules, SeverityVerdict};
pub(crate) use severity::{ExpectedScalar, NamePattern, SeverityRule, StatusRange};
pub use spoken_texts::{SpokenPart, spoken_message, spoken_parts, tool_results};
pub use sse::{EVENT_BYTES_MAX, SseEvent, SseParser};
pub use summary::{
    ExchangeSummary, ModelToolCall, NAME_BYTES_MAX, ProviderError, TOOL_CALLS_MAX, TokenUsage,
};
pub use text::{BoundedText, TEXT_BYTES_MAX};
pub use tool_results::{set_tool_result, tool_result_ids};
