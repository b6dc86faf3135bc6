//! Reads an exchange into an [`ExchangeSummary`]: the request's parameters, then the answer, complete or as a
//! stream joined event by event. Nothing fails: unreadable parts are described in `unparsed`.

use std::borrow::Cow;

use serde_json::Value;

use super::api::{ApiShape, ModelApi};
use super::encoding::{DECODED_BYTES_MAX, decode};
use super::json::{JsonFields, JsonNode, values};
use super::sse::SseParser;
use super::summary::{ExchangeSummary, ProviderError, SAMPLING_MAX, short};
use super::text::{BoundedText, TEXT_BYTES_MAX, clip, one_line};
use super::{anthropic, bedrock, gemini, messages, ollama, openai_chat, openai_responses};

/// One exchange as sent over the wire, without transfer coding.
#[derive(Debug, Clone, Copy)]
pub struct WireExchange<'a> {
    /// The request's interface.
    pub api: &'a ModelApi,
    /// The request's body.
    pub request: &'a [u8],
    /// Its `Content-Encoding`.
    pub request_encoding: Option<&'a str>,
    /// The answer's status; 0 if none came.
    pub status: u16,
    /// The answer's `Content-Type`.
    pub content_type: Option<&'a str>,
    /// The answer's `Content-Encoding`.
    pub content_encoding: Option<&'a str>,
    /// The answer's body, or the part that arrived.
    pub response: &'a [u8],
}

/// Sampling and limit parameters, by the names of all providers.
const SAMPLING: [&str; 34] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "seed",
    "n",
    "stop",
    "stop_sequences",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "response_format",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning",
    "reasoning_effort",
    "verbosity",
    "thinking",
    "service_tier",
    "truncation",
    "dimensions",
    "encoding_format",
    "think",
    "format",
    "toolConfig",
    "safetySettings",
    "output_config",
];
/// Objects whose fields are such parameters.
const NESTED: [&str; 4] = ["generationConfig", "generation_config", "options", "inferenceConfig"];
/// Longer values are not stored in metadata.
const VALUE_BYTES_MAX: usize = 1024;

/// Summarises an exchange. Reads copies, changes nothing and never fails; linear in the size of the bodies.
/// Names, texts and errors enter the summary unchanged, so secrets must be removed from the bodies before.
///
/// ```
/// use annals_policy::providers::{WireExchange, recognise, summary};
///
/// let api = recognise("POST", "/v1/messages", "api.anthropic.com");
/// let known = summary(&WireExchange {
///     api: &api,
///     request: br#"{"model":"claude-x","messages":[{"role":"user","content":"hi"}]}"#,
///     request_encoding: None,
///     status: 200,
///     content_type: Some("application/json"),
///     content_encoding: None,
///     response: br#"{"content":[{"type":"text","text":"hello"}],"stop_reason":"end_turn"}"#,
/// });
/// assert_eq!(known.text.head(), "hello");
/// assert_eq!(known.to_json()["finish_reason"], "end_turn");
/// ```
#[must_use]
pub fn summary(exchange: &WireExchange<'_>) -> ExchangeSummary {
    summary_with(exchange, TEXT_BYTES_MAX)
}

/// The same, with this limit on the answer's text.
pub fn summary_with(exchange: &WireExchange<'_>, text_bytes_max: usize) -> ExchangeSummary {
    let api = exchange.api;
    let mut summary = ExchangeSummary::new(api.provider, api.shape, exchange.status);
    summary.text = BoundedText::up_to(text_bytes_max);
    summary.thinking = BoundedText::up_to(text_bytes_max);
    summary.arguments_max = text_bytes_max.max(TEXT_BYTES_MAX);
    if api.shape == ApiShape::Opaque {
        return summary;
    }
    let body = decode(exchange.request_encoding, exchange.request, DECODED_BYTES_MAX);
    note(&mut summary, "the request", body.fault.as_deref());
    match JsonNode::parse(&body.bytes) {
        Ok(node) => request(api, node, &mut summary),
        Err(_) if body.fault.is_some() => {}
        Err(fault) => note(&mut summary, "the request", Some(&fault)),
    }
    let body = decode(exchange.content_encoding, exchange.response, DECODED_BYTES_MAX);
    note(&mut summary, "the answer", body.fault.as_deref());
    if !body.bytes.is_empty() {
        response(exchange, &body.bytes, body.fault.is_some(), &mut summary);
    } else if summary.stream == Some(true) && exchange.status == 200 {
        summary.complete = Some(false);
    }
    summary
}

fn note(summary: &mut ExchangeSummary, what: &str, fault: Option<&str>) {
    if let Some(fault) = fault {
        summary.note(&format!("{what} {fault}"));
    }
}

fn request(api: &ModelApi, node: JsonNode<'_>, summary: &mut ExchangeSummary) {
    let fields = node.fields();
    summary.model_requested = fields.get("model").string().or_else(|| api.model.clone()).map(short);
    // Ollama streams by default.
    let by_default = api.streams || api.shape == ApiShape::Ollama;
    summary.stream = Some(fields.get("stream").truth().unwrap_or(by_default));
    for (key, value) in fields.iter() {
        if SAMPLING.contains(&key) {
            parameter(key, value, summary);
        } else if NESTED.contains(&key) {
            for (key, value) in value.fields().iter() {
                parameter(key, value, summary);
            }
        }
    }
    summary.tool_errors = messages::failed_tools(api, &fields);
}

fn parameter(key: &str, node: JsonNode<'_>, summary: &mut ExchangeSummary) {
    if summary.sampling.len() == SAMPLING_MAX || node.is_absent() || key.len() > VALUE_BYTES_MAX {
        return;
    }
    let source = node.source();
    let value = if source.len() <= VALUE_BYTES_MAX { serde_json::from_str(source).ok() } else { None };
    let value = value.unwrap_or_else(|| Value::String(format!("({} bytes)", source.len())));
    summary.sampling.insert(key.to_owned(), value);
}

fn response(exchange: &WireExchange<'_>, body: &[u8], faulty: bool, summary: &mut ExchangeSummary) {
    let kind = exchange.content_type.unwrap_or_default().to_ascii_lowercase();
    let shape = exchange.api.shape;
    // Content types are unreliable: errors come as JSON under a stream's type, and streams under no type. No
    // JSON begins like an event.
    let is_json = body.trim_ascii_start().starts_with(b"{") || body.trim_ascii_start().starts_with(b"[");
    if bedrock::is_event_stream(&kind) && !is_json {
        bedrock::events(shape, body, summary);
        return;
    }
    if looks_like_events(body) || (kind.starts_with("text/event-stream") && !is_json) {
        events(shape, body, summary);
        return;
    }
    let text = String::from_utf8_lossy(body);
    let rows = kind.contains("ndjson") || kind.contains("jsonl") || shape == ApiShape::Ollama;
    if rows || (shape == ApiShape::Gemini && text.trim_ascii_start().starts_with('[')) {
        row(shape, &text, summary);
        return;
    }
    match JsonNode::parse(body) {
        Ok(node) => {
            let fields = node.fields();
            error(&fields, summary);
            answer(shape, &fields, summary);
        }
        Err(fault) => {
            if !faulty {
                note(summary, "the answer", Some(&fault));
            }
            if exchange.status >= 400 {
                summary.error = Some(ProviderError { kind: None, message: Some(one_line(&text, 200)) });
            }
        }
    }
}

/// Whether a body without a usable type begins like an event stream.
fn looks_like_events(body: &[u8]) -> bool {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body).trim_ascii_start();
    [&b"data:"[..], b"event:", b"id:", b"retry:", b":"].iter().any(|field| body.starts_with(field))
}

fn answer(shape: ApiShape, fields: &JsonFields<'_>, summary: &mut ExchangeSummary) -> bool {
    match shape {
        ApiShape::OpenAiChat => openai_chat::answer(fields, summary),
        ApiShape::OpenAiResponses => openai_responses::answer(fields, summary),
        ApiShape::OpenAiEmbeddings => {
            summary.model_answered = fields.get("model").string().map(short);
            openai_chat::usage(fields.get("usage"), summary);
        }
        ApiShape::AnthropicMessages => anthropic::answer(fields, summary),
        ApiShape::Gemini => gemini::answer(fields, summary),
        ApiShape::BedrockConverse => bedrock::converse(fields, summary),
        ApiShape::BedrockInvoke => bedrock::invoke(fields, summary),
        ApiShape::Ollama => return ollama::answer(fields, summary),
        ApiShape::CountTokens => {
            let count = fields.get("input_tokens").number();
            summary.usage.input = count.or(fields.get("totalTokens").number());
        }
        ApiShape::Opaque => {}
    }
    false
}

/// Reads a sequence of objects.
fn row(shape: ApiShape, text: &str, summary: &mut ExchangeSummary) {
    let (nodes, rest) = values(text);
    let mut ended = false;
    for node in nodes {
        let fields = node.fields();
        error(&fields, summary);
        ended |= answer(shape, &fields, summary);
    }
    if rest > 0 {
        summary.note(&format!("the last {rest} bytes of the answer are no whole JSON"));
        if summary.status >= 400 && summary.error.is_none() {
            summary.error = Some(ProviderError { kind: None, message: Some(one_line(text, 200)) });
        }
    }
    if summary.stream == Some(true) && summary.error.is_none() {
        let finished = ended || (shape == ApiShape::Gemini && !summary.finish_reasons.is_empty());
        summary.complete = Some(finished && rest == 0);
    }
}

fn events(shape: ApiShape, body: &[u8], summary: &mut ExchangeSummary) {
    let mut stream = SseParser::default();
    let mut counts = anthropic::InputTokenCounts::default();
    let mut ended = false;
    let mut faults = 0u64;
    stream.push(body, &mut |event| {
        let data: &Cow<'_, str> = &event.data;
        if data.trim() == "[DONE]" {
            ended = true;
            return;
        }
        let Ok(node) = JsonNode::parse(data.as_bytes()) else {
            faults += 1;
            if faults == 1 {
                summary.note(&format!("an event is not JSON: {}", one_line(clip(data, 80), 60)));
            }
            return;
        };
        let fields = node.fields();
        ended |= match shape {
            ApiShape::AnthropicMessages => anthropic::event(&event.name, &fields, summary, &mut counts),
            ApiShape::OpenAiResponses => openai_responses::event(&event.name, &fields, summary),
            _ => {
                error(&fields, summary);
                answer(shape, &fields, summary)
            }
        };
    });
    if faults > 1 {
        summary.note(&format!("{} more events are not JSON", faults - 1));
    }
    if stream.dropped() > 0 {
        summary.note(&format!("{} events are too long to be read", stream.dropped()));
    }
    if stream.is_within_event() {
        summary.note("the answer ends within an event");
    }
    let finished = matches!(shape, ApiShape::Gemini) && !summary.finish_reasons.is_empty();
    summary.complete = Some(ended || finished);
    if shape == ApiShape::OpenAiChat {
        // Some servers omit the final mark; a choice with a finish reason has ended.
        summary.complete = Some(ended || !summary.finish_reasons.is_empty());
    }
}

/// Reads the error of an answer or event: an object or plain text under `error`; for an error status also the
/// message at the top level.
pub(super) fn error(fields: &JsonFields<'_>, summary: &mut ExchangeSummary) {
    let node = fields.get("error");
    if let Some(message) = node.string() {
        summary.error = Some(ProviderError { kind: None, message: Some(short(message)) });
    } else if node.is_object() {
        let error = node.fields();
        let kind = ["type", "status", "code"].iter().find_map(|key| error.get(key).scalar());
        let message = error.get("message").string();
        summary.error = Some(ProviderError { kind: kind.map(short), message: message.map(short) });
    } else if summary.status >= 400 && summary.error.is_none() {
        let message = ["message", "detail"].iter().find_map(|key| {
            let node = fields.get(key);
            node.string().or_else(|| (!node.is_absent()).then(|| one_line(node.source(), 200)))
        });
        let kind = ["type", "code"].iter().find_map(|key| fields.get(key).scalar());
        if kind.is_some() || message.is_some() {
            summary.error = Some(ProviderError { kind: kind.map(short), message: message.map(short) });
        }
    }
}
