//! Reads the parts of one message in the forms of all providers at once. Role, `type` and keys tell the forms
//! apart, so one reader also serves servers that mix them.

use super::json::{JsonFields, JsonNode};
use super::messages::{MessageView, PARTS_MAX, PREVIEW_BYTES, PREVIEW_CHARS, PartKind, RequestPart};
use super::summary::short;
use super::text::one_line;

/// Prefixes of texts that report a tool's failure, if no field does.
const FAILURES: [&str; 4] = ["Error:", "error:", "ERROR:", "Traceback (most recent call last)"];

/// The parts of one message, or of one item of a Responses request.
pub(super) fn message_parts<'a>(at: usize, node: JsonNode<'a>, parts: &mut Vec<RequestPart<'a>>) {
    let first = parts.len();
    let fields = node.fields();
    let kind = fields.get("type").string().unwrap_or_default();
    let role = fields.get("role").string().map(short).unwrap_or_default();
    match kind.as_str() {
        _ if !node.is_object() => content("user", node, parts),
        "function_call" | "custom_tool_call" => {
            let name = fields.get("name").string().unwrap_or_default();
            let arguments = fields.get("arguments");
            let arguments = if arguments.is_absent() { fields.get("input") } else { arguments };
            parts.push(call("assistant", &name, fields.get("call_id"), node, arguments));
        }
        "function_call_output" | "custom_tool_call_output" => {
            parts.push(result("tool", "", fields.get("call_id"), node, fields.get("output"), false));
        }
        "reasoning" => parts.push(shown("assistant", PartKind::Thinking, node, fields.get("summary"))),
        kind if role.is_empty() && kind.ends_with("_output") => {
            parts.push(result("tool", kind, fields.get("call_id"), node, fields.get("output"), false));
        }
        kind if role.is_empty() && kind.ends_with("_call") => {
            parts.push(call("assistant", kind, fields.get("call_id"), node, fields.get("action")));
        }
        _ if role.is_empty() && !kind.is_empty() && kind != "message" => {
            block("user", node, parts);
        }
        _ => message(&role, node, &fields, parts),
    }
    for part in &mut parts[first..] {
        part.view.message = Some(at);
    }
}

/// How many more parts fit.
pub(super) fn parts_left(parts: &[RequestPart<'_>]) -> usize {
    PARTS_MAX.saturating_sub(parts.len())
}

/// Whether a message is from the model.
pub(super) fn is_model(node: JsonNode<'_>) -> bool {
    let fields = node.fields();
    match fields.get("role").string().as_deref() {
        Some(role) => matches!(role, "assistant" | "model"),
        None => {
            fields.get("type").string().is_some_and(|kind| kind.ends_with("_call") || kind == "reasoning")
        }
    }
}

fn message<'a>(role: &str, node: JsonNode<'a>, fields: &JsonFields<'a>, parts: &mut Vec<RequestPart<'a>>) {
    let role = if role.is_empty() { "user" } else { role };
    for key in ["reasoning_content", "thinking"] {
        if fields.get(key).is_string() {
            parts.push(shown(role, PartKind::Thinking, fields.get(key), fields.get(key)));
        }
    }
    if matches!(role, "tool" | "function") {
        let name = ["name", "tool_name"].iter().find_map(|key| fields.get(key).string()).unwrap_or_default();
        parts.push(result(role, &name, fields.get("tool_call_id"), node, fields.get("content"), false));
        return;
    }
    content(role, fields.get("content"), parts);
    content(role, fields.get("parts"), parts);
    for image in fields.get("images").items().nodes.into_iter().take(parts_left(parts)) {
        parts.push(shown(role, PartKind::Image, image, image));
    }
    if fields.get("refusal").is_string() {
        parts.push(shown(role, PartKind::Refusal, fields.get("refusal"), fields.get("refusal")));
    }
    for node in fields.get("tool_calls").items().nodes.into_iter().take(parts_left(parts)) {
        let function = node.get("function").fields();
        let name = function.get("name").string().unwrap_or_default();
        parts.push(call(role, &name, node.get("id"), node, function.get("arguments")));
    }
    let old = fields.get("function_call");
    if old.is_object() {
        parts.push(call(
            role,
            &old.get("name").string().unwrap_or_default(),
            JsonNode::default(),
            old,
            old.get("arguments"),
        ));
    }
}

/// Reads content: a text, a list of blocks, or Gemini's object of parts.
pub(super) fn content<'a>(role: &str, node: JsonNode<'a>, parts: &mut Vec<RequestPart<'a>>) {
    if node.is_array() {
        for node in node.items().nodes.into_iter().take(parts_left(parts)) {
            block(role, node, parts);
        }
    } else if node.is_object() {
        match node.get("parts") {
            inner if inner.is_array() => content(role, inner, parts),
            _ => block(role, node, parts),
        }
    } else if !node.is_absent() {
        parts.push(shown(role, PartKind::Text, node, node));
    }
}

fn block<'a>(role: &str, node: JsonNode<'a>, parts: &mut Vec<RequestPart<'a>>) {
    let fields = node.fields();
    let get = |key: &str| fields.get(key);
    let name = || get("name").string().unwrap_or_default();
    let kind = get("type").string().unwrap_or_default();
    parts.push(match kind.as_str() {
        "text" | "input_text" | "output_text" => shown(role, PartKind::Text, node, get("text")),
        "thinking" | "redacted_thinking" | "reasoning" => {
            shown(role, PartKind::Thinking, node, get("thinking"))
        }
        "tool_use" | "server_tool_use" | "mcp_tool_use" => call(role, &name(), get("id"), node, get("input")),
        kind if kind.ends_with("tool_result") => {
            let failed = get("is_error").truth() == Some(true);
            result(role, "", get("tool_use_id"), node, get("content"), failed)
        }
        "image" | "image_url" | "input_image" => shown(role, PartKind::Image, node, JsonNode::default()),
        "input_audio" | "audio" => shown(role, PartKind::Audio, node, JsonNode::default()),
        "document" | "file" | "input_file" => shown(role, PartKind::Document, node, JsonNode::default()),
        "refusal" => shown(role, PartKind::Refusal, node, get("refusal")),
        "" => gemini(role, node, &fields),
        _ => shown(role, PartKind::Other, node, node),
    });
}

fn gemini<'a>(role: &str, node: JsonNode<'a>, fields: &JsonFields<'a>) -> RequestPart<'a> {
    let either = |a: &str, b: &str| {
        let node = fields.get(a);
        if node.is_absent() { fields.get(b) } else { node }
    };
    if !node.is_object() {
        return shown(role, PartKind::Text, node, node);
    }
    let text = fields.get("text");
    if text.is_string() {
        let thought = fields.get("thought").truth() == Some(true);
        return shown(role, if thought { PartKind::Thinking } else { PartKind::Text }, node, text);
    }
    let data = either("inlineData", "inline_data");
    if data.is_object() {
        let mime =
            data.get("mimeType").string().or_else(|| data.get("mime_type").string()).unwrap_or_default();
        let kind = match mime.split('/').next() {
            Some("image") => PartKind::Image,
            Some("audio") => PartKind::Audio,
            _ => PartKind::Document,
        };
        return shown(role, kind, node, JsonNode::default());
    }
    // Bedrock's Converse also names its blocks by their keys.
    let called = fields.get("toolUse");
    if called.is_object() {
        let name = called.get("name").string().unwrap_or_default();
        return call(role, &name, called.get("toolUseId"), node, called.get("input"));
    }
    let answered = fields.get("toolResult");
    if answered.is_object() {
        let failed = answered.get("status").string().as_deref() == Some("error");
        return result(role, "", answered.get("toolUseId"), node, answered.get("content"), failed);
    }
    let thought = fields.get("reasoningContent");
    if thought.is_object() {
        return shown(role, PartKind::Thinking, node, thought.get("reasoningText").get("text"));
    }
    for (key, kind) in
        [("image", PartKind::Image), ("audio", PartKind::Audio), ("document", PartKind::Document)]
    {
        if fields.get(key).is_object() {
            return shown(role, kind, node, JsonNode::default());
        }
    }
    let called = either("functionCall", "function_call");
    if called.is_object() {
        let name = called.get("name").string().unwrap_or_default();
        return call(role, &name, called.get("id"), node, called.get("args"));
    }
    let answered = either("functionResponse", "function_response");
    if answered.is_object() {
        let name = answered.get("name").string().unwrap_or_default();
        return result(role, &name, answered.get("id"), node, answered.get("response"), false);
    }
    let kind = if either("fileData", "file_data").is_object() { PartKind::Document } else { PartKind::Other };
    shown(role, kind, node, if kind == PartKind::Other { node } else { JsonNode::default() })
}

fn call<'a>(
    role: &str,
    name: &str,
    id: JsonNode<'a>,
    node: JsonNode<'a>,
    arguments: JsonNode<'a>,
) -> RequestPart<'a> {
    let mut part = shown(role, PartKind::ToolCall, node, arguments);
    part.view.name = short(name.to_owned());
    part.call_id = short(id.string().unwrap_or_default());
    part
}

fn result<'a>(
    role: &str,
    name: &str,
    id: JsonNode<'a>,
    node: JsonNode<'a>,
    given: JsonNode<'a>,
    failed: bool,
) -> RequestPart<'a> {
    let mut part = shown(role, PartKind::ToolResult, node, given);
    part.view.name = short(name.to_owned());
    part.call_id = short(id.string().unwrap_or_default());
    part.view.failed = failed || tells_failure(given);
    part
}

/// Whether a tool's result reports a failure: an object (also as text) with a non-empty `error`, or a text
/// that begins like an error report. A guess for providers without a field for it.
fn tells_failure(given: JsonNode<'_>) -> bool {
    let failed = |node: JsonNode<'_>| {
        let error = node.get("error");
        !error.is_absent() && !matches!(error.source(), "false" | "\"\"" | "{}" | "[]" | "0")
    };
    if given.is_object() {
        return failed(given);
    }
    let first = given.items().nodes.first().map(|block| block.get("text")).unwrap_or(given);
    let Some(text) = first.text() else { return false };
    let text = text.trim_ascii_start();
    FAILURES.iter().any(|begin| text.starts_with(begin))
        || (text.starts_with('{') && JsonNode::parse(text.as_bytes()).is_ok_and(failed))
}

/// A part whose preview shows `visible`; without it, its source.
fn shown<'a>(role: &str, kind: PartKind, node: JsonNode<'a>, visible: JsonNode<'a>) -> RequestPart<'a> {
    let mut part = part(role, kind, "", node);
    part.view.preview = preview(kind, visible, node);
    part.content = visible;
    part
}

/// A part with its hash.
pub(super) fn part<'a>(role: &str, kind: PartKind, name: &str, node: JsonNode<'a>) -> RequestPart<'a> {
    let mut hasher = blake3::Hasher::new();
    let mut update = |text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    update(role);
    update(&kind.to_string());
    update(name);
    let fields = if matches!(kind, PartKind::Parameter) { JsonFields::default() } else { node.fields() };
    let mut any = false;
    for (key, node) in fields.iter() {
        // A text's type depends on the form around it; the kind already states it.
        if key == "cache_control" || (key == "type" && kind == PartKind::Text) {
            continue;
        }
        any = true;
        update(key);
        update(node.source());
    }
    // Keys beyond the limit are included in the hash, too.
    if !any || fields.is_clipped() {
        update(if node.is_string() { "text" } else { "" });
        update(node.source());
    }
    MessageView {
        message: None,
        role: role.to_owned(),
        kind,
        name: short(name.to_owned()),
        preview: preview(kind, node, node),
        bytes: node.source().len() as u64,
        hash: *hasher.finalize().as_bytes(),
        failed: false,
    }
    .with(node)
}

impl MessageView {
    fn with(self, node: JsonNode<'_>) -> RequestPart<'_> {
        RequestPart { view: self, source: node.source(), content: node, call_id: String::new() }
    }
}

fn preview(kind: PartKind, visible: JsonNode<'_>, node: JsonNode<'_>) -> String {
    if visible.is_absent()
        && matches!(kind, PartKind::Image | PartKind::Audio | PartKind::Document | PartKind::Thinking)
    {
        return String::new();
    }
    let visible = if visible.is_absent() { node } else { visible };
    // A list of texts shows its first.
    let first = visible.items().nodes.first().map(|block| block.get("text")).filter(|text| text.is_string());
    let visible = first.unwrap_or(visible);
    let text = visible.text_head(PREVIEW_BYTES);
    let source = super::text::clip(visible.source(), PREVIEW_BYTES);
    one_line(text.as_deref().unwrap_or(source), PREVIEW_CHARS)
}
