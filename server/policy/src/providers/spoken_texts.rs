//! Full texts of a request, of which a view only has previews: user messages, tool results, and all parts
//! that a caller has not read yet.

use super::api::{ApiShape, ModelApi, recognise};
use super::blocks;
use super::json::JsonNode;
use super::messages::{self, MessageView, PartKind, RequestPart, request_turns};
use super::text::clip;

/// A tool's result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolResult {
    /// The id of the answered call; empty if the provider gives none.
    pub call_id: String,
    /// The tool, if the result names it.
    pub name: String,
    /// The beginning of the result: a text, texts of blocks joined, or other values as JSON source.
    pub text: String,
    /// Whether it reports a failure.
    pub failed: bool,
}

/// Results of the tool calls whose ids `waits` accepts, newest first, at most `bytes_max` bytes each. A
/// result without an id counts only after the model's last message: older ones were new in an earlier
/// request.
pub fn tool_results(
    api: &ModelApi,
    body: &[u8],
    bytes_max: usize,
    mut waiting: usize,
    waits: impl Fn(&str) -> bool,
) -> Vec<ToolResult> {
    let mut results = Vec::new();
    let mut is_new = true;
    for (at, turn) in conversation(api, body).unwrap_or_default().into_iter().enumerate().rev() {
        if waiting == 0 {
            break;
        }
        if blocks::is_model(turn) {
            is_new = false;
            continue;
        }
        let given = parts(at, turn).into_iter().rev().filter(|part| part.view.kind == PartKind::ToolResult);
        for part in given {
            if waiting > 0 && if part.call_id.is_empty() { is_new } else { waits(&part.call_id) } {
                waiting -= 1;
                let text = text(part.content, bytes_max);
                let (name, failed) = (part.view.name, part.view.failed);
                results.push(ToolResult { call_id: part.call_id, name, text, failed });
            }
        }
    }
    results
}

/// A part of a request or message with its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpokenPart {
    /// The role in the provider's own word; empty for tools.
    pub role: String,
    /// What it is; never a parameter.
    pub kind: PartKind,
    /// The name of the tool, or of the tool of a call or result.
    pub name: String,
    /// The id of the call that it is or answers; empty if there is none.
    pub call_id: String,
    /// The beginning of its text: a text, arguments of a call, a result; empty for an offered tool.
    pub text: String,
    /// Whether a tool result reports a failure.
    pub failed: bool,
}

/// The parts of a request that `wanted` accepts, in order, at most `bytes_max` bytes of text each. Parameters
/// are left out, and so are messages that end within the first `known_bytes` bytes of the body: a caller that
/// has read a body with the same beginning knows them.
pub fn spoken_parts(
    api: &ModelApi,
    body: &[u8],
    known_bytes: usize,
    bytes_max: usize,
    mut wanted: impl FnMut(&MessageView) -> bool,
) -> Vec<SpokenPart> {
    if !api.shape.is_model_call() || api.shape == ApiShape::OpenAiEmbeddings {
        return Vec::new();
    }
    let parts = messages::parts_after(api, body, known_bytes).into_iter();
    let parts = parts.filter(|part| part.view.kind != PartKind::Parameter && wanted(&part.view));
    let spoken = parts.map(|part| SpokenPart {
        text: if part.view.kind == PartKind::Tool { String::new() } else { text(part.content, bytes_max) },
        role: part.view.role,
        kind: part.view.kind,
        name: part.view.name,
        call_id: part.call_id,
        failed: part.view.failed,
    });
    spoken.collect()
}

/// As [`spoken_parts`], of a single message as imports have it. `None` if it is no message.
pub fn spoken_message(
    message: &[u8],
    bytes_max: usize,
    wanted: impl FnMut(&MessageView) -> bool,
) -> Option<Vec<SpokenPart>> {
    let node = JsonNode::parse(message).ok()?;
    if node.get("role").is_absent() && node.get("content").is_absent() {
        return None;
    }
    let body = [b"{\"messages\":[", message, b"]}"].concat();
    Some(spoken_parts(&recognise("POST", "/v1/chat/completions", ""), &body, 0, bytes_max, wanted))
}

fn conversation<'a>(api: &ModelApi, body: &'a [u8]) -> Option<Vec<JsonNode<'a>>> {
    if !api.shape.is_model_call() || api.shape == ApiShape::OpenAiEmbeddings {
        return None;
    }
    Some(request_turns(&JsonNode::parse(body).ok()?.fields()).0)
}

pub(super) fn parts(at: usize, turn: JsonNode<'_>) -> Vec<RequestPart<'_>> {
    let mut parts = Vec::new();
    blocks::message_parts(at, turn, &mut parts);
    parts
}

/// The text of a user message.
pub(super) fn user_text(at: usize, turn: JsonNode<'_>, bytes_max: usize) -> Option<String> {
    let mut texts = String::new();
    for part in parts(at, turn) {
        if part.view.role == "user" && part.view.kind == PartKind::Text {
            add(&mut texts, &part.content.string().unwrap_or_default(), bytes_max);
        }
    }
    (!texts.trim().is_empty()).then_some(texts)
}

pub(super) fn text(node: JsonNode<'_>, bytes_max: usize) -> String {
    let mut texts = String::new();
    if let Some(text) = node.text() {
        add(&mut texts, &text, bytes_max);
        return texts;
    }
    for block in node.items().nodes {
        if let Some(text) = block.get("text").text() {
            add(&mut texts, &text, bytes_max);
        }
    }
    if texts.is_empty() {
        add(&mut texts, node.source(), bytes_max);
    }
    texts
}

/// Adds a text on a line of its own, as far as it fits.
fn add(texts: &mut String, text: &str, bytes_max: usize) {
    if !texts.is_empty() && texts.len() < bytes_max {
        texts.push('\n');
    }
    texts.push_str(clip(text, bytes_max.saturating_sub(texts.len())));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::recognise;

    const OPENAI: &str = "/v1/chat/completions";
    const CLAUDE: &str = "/v1/messages";
    const RESPONSES: &str = "/v1/responses";
    const GEMINI: &str = "/v1beta/models/g:generateContent";

    #[test]
    fn spoken_parts_are_the_wanted_ones_with_text() {
        let api = recognise("POST", OPENAI, "");
        let first = r#"{"model":"m","tools":[{"type":"function","function":{"name":"f"}}],"messages":[{"role":"user","content":"q"}]}"#;
        let second = r#"{"model":"m","tools":[{"type":"function","function":{"name":"f"}}],"messages":[{"role":"user","content":"q"},{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":"{\"n\":1}"}}]},{"role":"tool","tool_call_id":"a","content":"Error: gone"}]}"#;
        let mut seen = std::collections::HashSet::new();
        let mut of = |body: &str| {
            spoken_parts(&api, body.as_bytes(), 0, 99, |part| seen.insert(part.hash))
                .into_iter()
                .map(|part| {
                    format!("{}|{}|{}|{}|{}", part.role, part.kind, part.name, part.text, part.failed)
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(of(first), ["|tool|f||false", "user|text||q|false"]);
        assert_eq!(
            of(second),
            [r#"assistant|tool call|f|{"n":1}|false"#, "tool|tool result|f|Error: gone|true"]
        );
        // Messages within the known beginning are not looked at.
        let known = second.find(r#"{"role":"tool""#).unwrap();
        let rest = spoken_parts(&api, second.as_bytes(), known, 99, |part| part.kind != PartKind::Tool);
        assert_eq!(rest.iter().map(|part| part.text.as_str()).collect::<Vec<_>>(), ["Error: gone"]);
        let message = br#"{"role":"user","name":"Ann","content":"hello"}"#;
        let spoken = spoken_message(message, 3, |_| true).unwrap();
        assert_eq!(spoken.iter().map(|part| part.text.as_str()).collect::<Vec<_>>(), ["hel"]);
        assert!(
            spoken_message(br#"{"n":1}"#, 3, |_| true).is_none()
                && spoken_message(b"x", 3, |_| true).is_none()
        );
    }

    #[test]
    fn awaited_results_come_newest_first() {
        let of = |path: &str, body: &str, waiting: &[&str]| {
            let api = recognise("POST", path, "");
            tool_results(&api, body.as_bytes(), 99, waiting.len(), |id| waiting.contains(&id))
                .into_iter()
                .map(|result| format!("{}|{}|{}|{}", result.call_id, result.name, result.text, result.failed))
                .collect::<Vec<_>>()
        };
        let chat = r#"{"messages":[{"role":"user","content":"q"},{"role":"assistant","tool_calls":[{"id":"a"},{"id":"b"}]},{"role":"tool","tool_call_id":"a","content":"{ \"score\": 580 }"},{"role":"tool","tool_call_id":"b","content":"Error: gone"}]}"#;
        assert_eq!(of(OPENAI, chat, &["a", "b"]), ["b||Error: gone|true", r#"a||{ "score": 580 }|false"#]);
        assert_eq!(of(OPENAI, chat, &["a"]), [r#"a||{ "score": 580 }|false"#]);
        assert!(of(OPENAI, chat, &[]).is_empty());
        let claude = r#"{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","is_error":true,"content":[{"type":"text","text":"x"},{"type":"text","text":"y"}]}]}]}"#;
        assert_eq!(of(CLAUDE, claude, &["a"]), ["a||x\ny|true"]);
        // Some clients put each output after its own call.
        let items = r#"{"input":[{"type":"function_call","call_id":"a","name":"f"},{"type":"function_call_output","call_id":"a","output":"1"},{"type":"function_call","call_id":"b","name":"f"},{"type":"function_call_output","call_id":"b","output":"2"}]}"#;
        assert_eq!(of(RESPONSES, items, &["a", "b"]), ["b||2|false", "a||1|false"]);
        let gemini = r#"{"contents":[{"role":"user","parts":[{"functionResponse":{"name":"f","response":{"old":1}}}]},{"role":"model","parts":[{"functionCall":{"name":"f","args":{}}}]},{"role":"user","parts":[{"functionResponse":{"name":"f","response":{"n":1}}},{"functionResponse":{"name":"g","response":{"n":2}}}]}]}"#;
        assert_eq!(of(GEMINI, gemini, &["", "", ""]), [r#"|g|{"n":2}|false"#, r#"|f|{"n":1}|false"#]);
    }
}
