//! OpenAI chat completions, plain and streamed, and embeddings. Also variants of other servers:
//! `reasoning_content` and `reasoning` (DeepSeek, OpenRouter), content in parts (Mistral),
//! `prompt_cache_hit_tokens`, the old `function_call`.

use super::json::{JsonFields, JsonNode};
use super::summary::{ExchangeSummary, ModelToolCall, short};

/// Reads an answer, or one piece of a stream: the same except for `message`, which is then `delta`.
pub(super) fn answer(fields: &JsonFields<'_>, summary: &mut ExchangeSummary) {
    envelope(fields, summary);
    for (at, choice) in fields.get("choices").items().nodes.into_iter().enumerate() {
        let choice = choice.fields();
        let index = choice.get("index").number().unwrap_or(at as u64);
        let whole = choice.get("message");
        let piece = if whole.is_absent() { choice.get("delta") } else { whole };
        message(index, &piece.fields(), summary);
        let reason = choice.get("finish_reason").string();
        if reason.as_deref() == Some("content_filter") && summary.refusal.is_none() {
            summary.refuse("finish_reason content_filter");
        }
        summary.finish(reason);
    }
}

fn message(choice: u64, fields: &JsonFields<'_>, summary: &mut ExchangeSummary) {
    if choice == 0 {
        content(fields.get("content"), summary);
    }
    if let Some(words) = fields.get("refusal").text() {
        summary.refuse(&words);
    }
    for key in ["reasoning_content", "reasoning"] {
        if let Some(text) = fields.get(key).text() {
            summary.think(&text);
            break;
        }
    }
    for (at, call) in fields.get("tool_calls").items().nodes.into_iter().enumerate() {
        let call = call.fields();
        let index = call.get("index").number().unwrap_or(at as u64);
        function(call.get("function"), (choice, index), call.get("id").string(), summary);
    }
    let old = fields.get("function_call");
    if old.is_object() {
        function(old, (choice, 0), None, summary);
    }
}

fn content(node: JsonNode<'_>, summary: &mut ExchangeSummary) {
    if let Some(text) = node.text() {
        summary.text.push(&text);
    }
    for part in node.items().nodes {
        if let Some(text) = part.get("text").text() {
            summary.text.push(&text);
        }
    }
}

fn function(node: JsonNode<'_>, slot: (u64, u64), id: Option<String>, summary: &mut ExchangeSummary) {
    let fields = node.fields();
    let id = id.filter(|id| !id.is_empty()).map(short);
    // Some servers give every call the same index; a different id makes it a different call.
    let taken = |call: &ModelToolCall| call.slot == slot && !call.id.is_empty();
    let last = summary.tool_calls.iter().rev().find(|call| taken(call)).map(|call| &call.id);
    let call = if id.is_some() && last.is_some() && last != id.as_ref() {
        summary.new_tool_call(slot)
    } else {
        summary.tool_call(slot)
    };
    let Some(call) = call else { return };
    if let Some(id) = id {
        call.id = id;
    }
    if let Some(name) = fields.get("name").string().filter(|name| !name.is_empty()) {
        call.name = short(name);
    }
    let arguments = fields.get("arguments");
    match arguments.text() {
        Some(piece) => call.arguments.push(&piece),
        None => call.arguments.push(arguments.source()),
    }
}

fn envelope(fields: &JsonFields<'_>, summary: &mut ExchangeSummary) {
    let keep = |slot: &mut Option<String>, key: &str| {
        if let Some(value) = fields.get(key).scalar().filter(|value| !value.is_empty() && value != "0") {
            *slot = Some(short(value));
        }
    };
    keep(&mut summary.model_answered, "model");
    keep(&mut summary.response_id, "id");
    keep(&mut summary.created, "created");
    keep(&mut summary.system_fingerprint, "system_fingerprint");
    usage(fields.get("usage"), summary);
}

pub(super) fn usage(node: JsonNode<'_>, summary: &mut ExchangeSummary) {
    if !node.is_object() {
        return;
    }
    let fields = node.fields();
    let usage = &mut summary.usage;
    usage.input = fields.get("prompt_tokens").number().or(usage.input);
    usage.output = fields.get("completion_tokens").number().or(usage.output);
    let cached = fields.get("prompt_tokens_details").get("cached_tokens").number();
    usage.cached_input = cached.or(fields.get("prompt_cache_hit_tokens").number()).or(usage.cached_input);
    let reasoning = fields.get("completion_tokens_details").get("reasoning_tokens").number();
    usage.reasoning = reasoning.or(usage.reasoning);
}
