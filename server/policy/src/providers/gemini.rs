//! Gemini `generateContent`; a stream is a sequence of the same objects, as events or as an array.

use super::json::JsonFields;
use super::summary::{ExchangeSummary, short};

/// Finish reasons of answers that a guard stopped.
const BLOCKED: [&str; 6] =
    ["SAFETY", "PROHIBITED_CONTENT", "BLOCKLIST", "SPII", "RECITATION", "IMAGE_SAFETY"];

/// Reads an answer, or one piece of a stream.
pub(super) fn answer(fields: &JsonFields<'_>, summary: &mut ExchangeSummary) {
    if let Some(model) = fields.get("modelVersion").string() {
        summary.model_answered = Some(short(model));
    }
    if let Some(id) = fields.get("responseId").string() {
        summary.response_id = Some(short(id));
    }
    if let Some(reason) = fields.get("promptFeedback").get("blockReason").string() {
        summary.refuse(&format!("prompt blocked: {reason}"));
    }
    for (at, candidate) in fields.get("candidates").items().nodes.into_iter().enumerate() {
        let candidate = candidate.fields();
        let index = candidate.get("index").number().unwrap_or(at as u64);
        for part in candidate.get("content").get("parts").items().nodes {
            self::part(index, &part.fields(), summary);
        }
        let reason = candidate.get("finishReason").string();
        if let Some(reason) = reason.as_deref().filter(|reason| BLOCKED.contains(reason)) {
            summary.refuse(&format!("finishReason {reason}"));
        }
        summary.finish(reason);
    }
    usage(&fields.get("usageMetadata").fields(), summary);
}

fn part(candidate: u64, part: &JsonFields<'_>, summary: &mut ExchangeSummary) {
    let text = part.get("text").text();
    if part.get("thought").truth() == Some(true) {
        summary.think(&text.unwrap_or_default());
    } else if let (Some(text), 0) = (text, candidate) {
        summary.text.push(&text);
    }
    let call = part.get("functionCall");
    if call.is_object() {
        let call = call.fields();
        let slot = summary.next_slot();
        let arguments = call.get("args").source();
        summary.add_tool_call(slot, call.get("id").string(), call.get("name").string(), arguments);
    }
}

fn usage(fields: &JsonFields<'_>, summary: &mut ExchangeSummary) {
    let usage = &mut summary.usage;
    usage.input = fields.get("promptTokenCount").number().or(usage.input);
    usage.cached_input = fields.get("cachedContentTokenCount").number().or(usage.cached_input);
    usage.reasoning = fields.get("thoughtsTokenCount").number().or(usage.reasoning);
    // Gemini's candidates exclude thinking tokens; they are added here, as other providers count.
    let said = fields.get("candidatesTokenCount").number();
    let thought = fields.get("thoughtsTokenCount").number();
    if said.is_some() || thought.is_some() {
        usage.output = Some(said.unwrap_or(0).saturating_add(thought.unwrap_or(0)));
    }
}
