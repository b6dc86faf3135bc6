//! Amazon Bedrock: Converse, and InvokeModel with bodies of the model's family; plain and as AWS's event
//! stream.
//!
//! The path names the model. Bedrock counts input tokens as Anthropic does: cached tokens are not included.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::api::ApiShape;
use super::aws_events::{AwsEvent, AwsEvents};
use super::json::{JsonFields, JsonNode};
use super::summary::{ExchangeSummary, ProviderError, short};
use super::{anthropic, openai_chat};

/// Prefixes of Anthropic's events.
const ANTHROPIC_EVENTS: [&str; 3] = ["message_", "content_block_", "error"];
/// Converse events, which Nova also sends inside its chunks.
const CONVERSE_EVENTS: [&str; 4] = ["contentBlockStart", "contentBlockDelta", "messageStop", "metadata"];
/// The key that Bedrock adds to the last chunk.
const METRICS: &str = "amazon-bedrock-invocationMetrics";
const INPUT_HEADER: &str = "x-amzn-bedrock-input-token-count";
const OUTPUT_HEADER: &str = "x-amzn-bedrock-output-token-count";

/// Form, model, and whether it streams, for `/model/ID/VERB`. An id may be an ARN with slashes.
pub(super) fn by_path(segments: &[&str]) -> Option<(ApiShape, String, bool)> {
    let at = segments.iter().position(|segment| *segment == "model")?;
    let (verb, id) = segments.get(at + 1..)?.split_last()?;
    let id = id.join("/");
    let is_anthropic = id.contains("anthropic.");
    let is_id = id.contains('.') || id.starts_with("arn:");
    let (shape, streams) = match *verb {
        "converse" if !id.is_empty() => (ApiShape::BedrockConverse, false),
        "converse-stream" if !id.is_empty() => (ApiShape::BedrockConverse, true),
        "invoke" if is_anthropic => (ApiShape::AnthropicMessages, false),
        "invoke-with-response-stream" if is_anthropic => (ApiShape::AnthropicMessages, true),
        "invoke" if is_id => (ApiShape::BedrockInvoke, false),
        "invoke-with-response-stream" if is_id => (ApiShape::BedrockInvoke, true),
        _ => return None,
    };
    Some((shape, id, streams))
}

/// Whether the content type is AWS's event stream.
pub(super) fn is_event_stream(content_type: &str) -> bool {
    content_type.starts_with("application/vnd.amazon.eventstream")
}

/// Reads a complete Converse answer.
pub(super) fn converse(fields: &JsonFields<'_>, summary: &mut ExchangeSummary) {
    let content = fields.get("output").get("message").get("content");
    for (at, block) in content.items().nodes.into_iter().enumerate() {
        let block = block.fields();
        summary.text.push(&block.get("text").text().unwrap_or_default());
        add_thinking(block.get("reasoningContent").get("reasoningText"), summary);
        let call = block.get("toolUse").fields();
        if let Some(name) = call.get("name").string() {
            let id = call.get("toolUseId").string();
            summary.add_tool_call((0, at as u64), id, Some(name), call.get("input").source());
        }
    }
    stop(fields, summary);
    usage(fields.get("usage"), summary);
}

/// Reads a complete InvokeModel answer.
pub(super) fn invoke(fields: &JsonFields<'_>, summary: &mut ExchangeSummary) {
    if fields.get("type").string().as_deref() == Some("message") {
        anthropic::answer(fields, summary);
    } else if fields.get("output").get("message").is_object() {
        converse(fields, summary);
    } else if fields.get("choices").is_array() {
        openai_chat::answer(fields, summary);
    } else {
        plain(fields, summary);
    }
}

/// Reads an answer or a chunk of Llama or Titan.
fn plain(fields: &JsonFields<'_>, summary: &mut ExchangeSummary) -> bool {
    for key in ["generation", "outputText"] {
        summary.text.push(&fields.get(key).text().unwrap_or_default());
    }
    for result in fields.get("results").items().nodes {
        let result = result.fields();
        summary.text.push(&result.get("outputText").text().unwrap_or_default());
        summary.usage.output = result.get("tokenCount").number().or(summary.usage.output);
        summary.finish(result.get("completionReason").string());
    }
    let count = |keys: [&str; 2]| keys.into_iter().find_map(|key| fields.get(key).number());
    let usage = &mut summary.usage;
    usage.input = count(["prompt_token_count", "inputTextTokenCount"]).or(usage.input);
    usage.output = count(["generation_token_count", "totalOutputTextTokenCount"]).or(usage.output);
    let reason = ["stop_reason", "completionReason"].into_iter().find_map(|key| fields.get(key).string());
    let has_ended = reason.is_some();
    summary.finish(reason);
    has_ended
}

/// Reads a body in AWS's event stream.
pub(super) fn events(shape: ApiShape, body: &[u8], summary: &mut ExchangeSummary) {
    let mut counts = anthropic::InputTokenCounts::default();
    let mut has_ended = false;
    for event in AwsEvents::new(body) {
        match event {
            Ok(event) => has_ended |= read_event(shape, &event, summary, &mut counts),
            Err(fault) => summary.note(fault),
        }
    }
    summary.complete = Some(has_ended);
}

/// Reads one event. Returns whether it ends the answer.
fn read_event(
    shape: ApiShape,
    event: &AwsEvent<'_>,
    summary: &mut ExchangeSummary,
    counts: &mut anthropic::InputTokenCounts,
) -> bool {
    if event.message_type == "error" {
        let (kind, message) = (event.name.to_owned(), event.error_message.to_owned());
        summary.error = Some(ProviderError { kind: Some(short(kind)), message: Some(short(message)) });
        return false;
    }
    let Ok(node) = JsonNode::parse(event.payload) else {
        summary.note("an event is not JSON");
        return false;
    };
    if event.message_type == "exception" {
        let message = ["message", "Message"].into_iter().find_map(|key| node.get(key).string());
        let kind = Some(short(event.name.to_owned()));
        summary.error = Some(ProviderError { kind, message: message.map(short) });
        return false;
    }
    if shape == ApiShape::BedrockConverse {
        return converse_event(event.name, &node.fields(), summary);
    }
    let chunk = node.get("bytes").text().and_then(|text| STANDARD.decode(text.as_bytes()).ok());
    let Some(chunk) = chunk else {
        summary.note("an event has no chunk");
        return false;
    };
    match JsonNode::parse(&chunk) {
        Ok(node) => invoke_chunk(&node.fields(), summary, counts),
        Err(_) => {
            summary.note("a chunk is not JSON");
            false
        }
    }
}

fn invoke_chunk(
    fields: &JsonFields<'_>,
    summary: &mut ExchangeSummary,
    counts: &mut anthropic::InputTokenCounts,
) -> bool {
    let kind = fields.get("type").string().unwrap_or_default();
    let mut has_ended = if ANTHROPIC_EVENTS.iter().any(|begin| kind.starts_with(begin)) {
        anthropic::event("", fields, summary, counts)
    } else if fields.get("choices").is_array() {
        openai_chat::answer(fields, summary);
        false
    } else {
        plain(fields, summary)
    };
    for name in CONVERSE_EVENTS {
        let event = fields.get(name);
        has_ended |= event.is_object() && converse_event(name, &event.fields(), summary);
    }
    let metrics = fields.get(METRICS);
    if metrics.is_object() {
        let metrics = metrics.fields();
        let usage = &mut summary.usage;
        usage.input = usage.input.or(metrics.get("inputTokenCount").number());
        usage.output = usage.output.or(metrics.get("outputTokenCount").number());
        has_ended = true;
    }
    has_ended
}

fn converse_event(name: &str, fields: &JsonFields<'_>, summary: &mut ExchangeSummary) -> bool {
    let slot = (0, fields.get("contentBlockIndex").number().unwrap_or(0));
    match name {
        "contentBlockStart" => {
            let call = fields.get("start").get("toolUse").fields();
            if let Some(name) = call.get("name").string() {
                summary.add_tool_call(slot, call.get("toolUseId").string(), Some(name), "");
            }
        }
        "contentBlockDelta" => {
            let delta = fields.get("delta").fields();
            summary.text.push(&delta.get("text").text().unwrap_or_default());
            add_thinking(delta.get("reasoningContent"), summary);
            let input = delta.get("toolUse").get("input");
            if let (Some(input), Some(call)) = (input.text(), summary.tool_call_of(slot)) {
                call.arguments.push(&input);
            }
        }
        "messageStop" => {
            stop(fields, summary);
            return true;
        }
        "metadata" => usage(fields.get("usage"), summary),
        _ => {}
    }
    false
}

fn add_thinking(node: JsonNode<'_>, summary: &mut ExchangeSummary) {
    if let Some(text) = node.get("text").text() {
        summary.think(&text);
    }
}

fn stop(fields: &JsonFields<'_>, summary: &mut ExchangeSummary) {
    let reason = fields.get("stopReason").string();
    if let Some(reason @ ("guardrail_intervened" | "content_filtered")) = reason.as_deref() {
        summary.refuse(&format!("stopReason {reason}"));
    }
    summary.finish(reason);
}

fn usage(node: JsonNode<'_>, summary: &mut ExchangeSummary) {
    let fields = node.fields();
    let usage = &mut summary.usage;
    usage.cached_input = fields.get("cacheReadInputTokens").number().or(usage.cached_input);
    usage.cache_write = fields.get("cacheWriteInputTokens").number().or(usage.cache_write);
    let beside = usage.cached_input.unwrap_or(0).saturating_add(usage.cache_write.unwrap_or(0));
    let plain = fields.get("inputTokens").number();
    usage.input = plain.map(|plain| plain.saturating_add(beside)).or(usage.input);
    usage.output = fields.get("outputTokens").number().or(usage.output);
}

impl ExchangeSummary {
    /// Takes the token counts of Bedrock's headers, where the body has none; `header` gives a header by its name.
    pub fn count_by_headers<'a>(&mut self, header: impl Fn(&str) -> Option<&'a str>) {
        let count = |name| header(name)?.trim().parse().ok();
        self.usage.input = self.usage.input.or_else(|| count(INPUT_HEADER));
        self.usage.output = self.usage.output.or_else(|| count(OUTPUT_HEADER));
    }
}
