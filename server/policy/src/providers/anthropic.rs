//! Anthropic messages, plain and as events. Anthropic's `input_tokens` exclude tokens read from and written
//! to the cache; they are added here, so that counts mean the same for all providers.

use super::json::{JsonFields, JsonNode};
use super::summary::{ExchangeSummary, short};

pub(super) fn answer(fields: &JsonFields<'_>, summary: &mut ExchangeSummary) {
    let mut counts = InputTokenCounts::default();
    message(fields, summary, &mut counts);
    for (at, block) in fields.get("content").items().nodes.into_iter().enumerate() {
        let block = block.fields();
        let input = block.get("input").source();
        start(at as u64, &block, input, summary);
    }
    stop(fields, summary);
}

/// The parts of the input token count; a later event may repeat only some of them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InputTokenCounts {
    plain: Option<u64>,
    read: Option<u64>,
    written: Option<u64>,
}

/// Reads one event. Returns whether it ends the stream.
pub(super) fn event(
    name: &str,
    fields: &JsonFields<'_>,
    summary: &mut ExchangeSummary,
    counts: &mut InputTokenCounts,
) -> bool {
    let kind = fields.get("type").string().unwrap_or_else(|| name.to_owned());
    let index = fields.get("index").number().unwrap_or(0);
    match kind.as_str() {
        "message_start" => message(&fields.get("message").fields(), summary, counts),
        "content_block_start" => start(index, &fields.get("content_block").fields(), "", summary),
        "content_block_delta" => delta(index, &fields.get("delta").fields(), summary),
        "message_delta" => {
            stop(&fields.get("delta").fields(), summary);
            usage(fields.get("usage"), summary, counts);
        }
        "message_stop" => return true,
        "error" => super::exchange_reader::error(fields, summary),
        _ => {}
    }
    false
}

fn message(fields: &JsonFields<'_>, summary: &mut ExchangeSummary, counts: &mut InputTokenCounts) {
    summary.model_answered = fields.get("model").string().map(short);
    summary.response_id = fields.get("id").string().map(short);
    usage(fields.get("usage"), summary, counts);
}

fn start(index: u64, block: &JsonFields<'_>, input: &str, summary: &mut ExchangeSummary) {
    match block.get("type").string().as_deref() {
        Some("text") => summary.text.push(&block.get("text").text().unwrap_or_default()),
        Some("thinking") => summary.think(&block.get("thinking").text().unwrap_or_default()),
        Some("redacted_thinking") => summary.think(""),
        Some("tool_use" | "server_tool_use" | "mcp_tool_use") => {
            let (id, name) = (block.get("id").string(), block.get("name").string());
            summary.add_tool_call((0, index), id, name, input);
        }
        _ => {}
    }
}

fn delta(index: u64, delta: &JsonFields<'_>, summary: &mut ExchangeSummary) {
    match delta.get("type").string().as_deref() {
        Some("text_delta") => summary.text.push(&delta.get("text").text().unwrap_or_default()),
        Some("thinking_delta") => summary.think(&delta.get("thinking").text().unwrap_or_default()),
        Some("input_json_delta") => {
            if let Some(call) = summary.tool_call((0, index)) {
                call.arguments.push(&delta.get("partial_json").text().unwrap_or_default());
            }
        }
        _ => {}
    }
}

fn stop(fields: &JsonFields<'_>, summary: &mut ExchangeSummary) {
    let reason = fields.get("stop_reason").string();
    if reason.as_deref() == Some("refusal") {
        summary.refuse("stop_reason refusal");
    }
    summary.finish(reason);
}

fn usage(node: JsonNode<'_>, summary: &mut ExchangeSummary, counts: &mut InputTokenCounts) {
    let fields = node.fields();
    counts.plain = fields.get("input_tokens").number().or(counts.plain);
    counts.read = fields.get("cache_read_input_tokens").number().or(counts.read);
    counts.written = fields.get("cache_creation_input_tokens").number().or(counts.written);
    let usage = &mut summary.usage;
    usage.cached_input = counts.read;
    usage.cache_write = counts.written;
    let beside = counts.read.unwrap_or(0).saturating_add(counts.written.unwrap_or(0));
    usage.input = counts.plain.map(|plain| plain.saturating_add(beside));
    usage.output = fields.get("output_tokens").number().or(usage.output);
}
