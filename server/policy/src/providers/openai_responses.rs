//! OpenAI responses, plain and as events. The event that ends a stream contains the complete answer and is
//! used; if the stream was cut before it, the pieces are used.

use super::json::{JsonFields, JsonNode};
use super::summary::{ExchangeSummary, short};

pub(super) fn answer(fields: &JsonFields<'_>, summary: &mut ExchangeSummary) {
    let keep = |slot: &mut Option<String>, key: &str| {
        if let Some(value) = fields.get(key).scalar() {
            *slot = Some(short(value));
        }
    };
    keep(&mut summary.model_answered, "model");
    keep(&mut summary.response_id, "id");
    keep(&mut summary.created, "created_at");
    usage(fields.get("usage"), summary);
    let output = fields.get("output").items().nodes;
    if !output.is_empty() {
        summary.forget_pieces();
    }
    for (at, item) in output.into_iter().enumerate() {
        whole_item(at as u64, &item.fields(), summary);
    }
    let reason = fields.get("incomplete_details").get("reason").string();
    if reason.as_deref() == Some("content_filter") && summary.refusal.is_none() {
        summary.refuse("incomplete: content_filter");
    }
    match fields.get("status").string().as_deref() {
        Some("in_progress" | "queued") | None => {}
        Some(status) => summary.finish(Some(reason.unwrap_or_else(|| status.to_owned()))),
    }
}

/// Reads one event. Returns whether it ends the stream.
pub(super) fn event(name: &str, fields: &JsonFields<'_>, summary: &mut ExchangeSummary) -> bool {
    let kind = fields.get("type").string().unwrap_or_else(|| name.to_owned());
    let index = fields.get("output_index").number().unwrap_or(0);
    let delta = fields.get("delta").text();
    let delta = delta.as_deref().unwrap_or_default();
    match kind.as_str() {
        "response.created" | "response.in_progress" | "response.queued" => {
            answer(&fields.get("response").fields(), summary);
        }
        "response.completed" | "response.incomplete" | "response.failed" => {
            let response = fields.get("response").fields();
            answer(&response, summary);
            super::exchange_reader::error(&response, summary);
            return true;
        }
        "response.output_text.delta" => summary.text.push(delta),
        "response.refusal.delta" => summary.refuse(delta),
        "response.reasoning_text.delta" | "response.reasoning_summary_text.delta" => summary.think(delta),
        "response.function_call_arguments.delta" => {
            if let Some(call) = summary.tool_call((0, index)) {
                call.arguments.push(delta);
            }
        }
        "response.output_item.added" => {
            let item = fields.get("item").fields();
            match item.get("type").string().as_deref() {
                Some("function_call" | "custom_tool_call") => function(index, &item, summary),
                Some("reasoning") => summary.think(""),
                _ => {}
            }
        }
        // Its fields are at the top level, and its type is the event's.
        "error" => {
            let kind = fields.get("code").scalar().or(Some("error".to_owned()));
            let message = fields.get("message").string().map(short);
            summary.error = Some(super::ProviderError { kind: kind.map(short), message });
        }
        _ => {}
    }
    false
}

fn whole_item(at: u64, item: &JsonFields<'_>, summary: &mut ExchangeSummary) {
    match item.get("type").string().as_deref() {
        Some("message") => {
            for part in item.get("content").items().nodes {
                let part = part.fields();
                if let Some(text) = part.get("text").text() {
                    summary.text.push(&text);
                }
                if let Some(words) = part.get("refusal").text() {
                    summary.refuse(&words);
                }
            }
        }
        Some("function_call" | "custom_tool_call") => function(at, item, summary),
        Some("reasoning") => {
            summary.think("");
            for list in ["summary", "content"] {
                for part in item.get(list).items().nodes {
                    summary.think(&part.get("text").text().unwrap_or_default());
                }
            }
        }
        _ => {}
    }
}

fn function(at: u64, item: &JsonFields<'_>, summary: &mut ExchangeSummary) {
    let arguments = item.get("arguments").string().or_else(|| item.get("input").string());
    let id = item.get("call_id").string().or_else(|| item.get("id").string());
    summary.add_tool_call((0, at), id, item.get("name").string(), &arguments.unwrap_or_default());
}

fn usage(node: JsonNode<'_>, summary: &mut ExchangeSummary) {
    if !node.is_object() {
        return;
    }
    let fields = node.fields();
    let usage = &mut summary.usage;
    usage.input = fields.get("input_tokens").number().or(usage.input);
    usage.output = fields.get("output_tokens").number().or(usage.output);
    let cached = fields.get("input_tokens_details").get("cached_tokens").number();
    usage.cached_input = cached.or(usage.cached_input);
    let reasoning = fields.get("output_tokens_details").get("reasoning_tokens").number();
    usage.reasoning = reasoning.or(usage.reasoning);
}
