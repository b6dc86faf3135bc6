//! Ollama's own interface: `/api/chat` and `/api/generate`; a stream is a sequence of the same objects, one
//! per line.

use super::json::JsonFields;
use super::summary::{ExchangeSummary, short};

/// Reads an answer, or one line of a stream. Returns whether it is the last.
pub(super) fn answer(fields: &JsonFields<'_>, summary: &mut ExchangeSummary) -> bool {
    if let Some(model) = fields.get("model").string() {
        summary.model_answered = Some(short(model));
    }
    if let Some(created) = fields.get("created_at").string() {
        summary.created = Some(short(created));
    }
    let message = fields.get("message").fields();
    for text in [message.get("content"), fields.get("response")] {
        summary.text.push(&text.text().unwrap_or_default());
    }
    for thought in [message.get("thinking"), fields.get("thinking")] {
        if let Some(thought) = thought.text().filter(|thought| !thought.is_empty()) {
            summary.think(&thought);
        }
    }
    for call in message.get("tool_calls").items().nodes {
        let function = call.get("function").fields();
        let slot = summary.next_slot();
        let id = call.get("id").string();
        summary.add_tool_call(slot, id, function.get("name").string(), function.get("arguments").source());
    }
    let usage = &mut summary.usage;
    usage.input = fields.get("prompt_eval_count").number().or(usage.input);
    usage.output = fields.get("eval_count").number().or(usage.output);
    summary.finish(fields.get("done_reason").string());
    fields.get("done").truth() == Some(true)
}
