//! Splits a request of any provider into its parts: parameters, system prompt, tools, and the parts of each
//! message.
//!
//! A view's hash covers the part's role, kind and source, so that parts of two requests can be compared
//! without their text. Cache marks (`cache_control`) are excluded. A text alone and a text as the only block
//! of a list are the same. Clients change both from call to call, without changing the content.

use std::collections::HashMap;
use std::fmt;

use super::api::{ApiShape, ModelApi};
use super::blocks;
use super::json::{JsonFields, JsonNode};
use super::text::one_line;

/// Maximum number of characters in a preview.
pub const PREVIEW_CHARS: usize = 120;
/// Maximum number of parts of a request.
pub const PARTS_MAX: usize = 1 << 17;
/// Maximum number of source bytes decoded for a preview.
pub(super) const PREVIEW_BYTES: usize = 1024;
/// Maximum number of failed tool results listed.
const FAILURES_MAX: usize = 8;

/// The kind of a request's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PartKind {
    /// A field beside the conversation: model, temperature, ...
    Parameter,
    /// The system prompt outside the messages.
    System,
    /// An offered tool.
    Tool,
    /// Text of a message.
    Text,
    /// Thinking, sent back to the model.
    Thinking,
    /// A tool call.
    ToolCall,
    /// A tool's result.
    ToolResult,
    /// An image.
    Image,
    /// Sound.
    Audio,
    /// A file.
    Document,
    /// A refusal, sent back to the model.
    Refusal,
    /// Anything else.
    Other,
}

impl fmt::Display for PartKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Parameter => "parameter",
            Self::System => "prompt",
            Self::Tool => "tool",
            Self::Text => "text",
            Self::Thinking => "thinking",
            Self::ToolCall => "tool call",
            Self::ToolResult => "tool result",
            Self::Image => "image",
            Self::Audio => "audio",
            Self::Document => "document",
            Self::Refusal => "refusal",
            Self::Other => "part",
        })
    }
}

/// One part of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageView {
    /// The message's number, from 0; `None` outside the messages.
    pub message: Option<usize>,
    /// The role in the provider's own word; empty for parameters and tools.
    pub role: String,
    /// What it is.
    pub kind: PartKind,
    /// The name of the parameter, the tool, or the tool of a call or result.
    pub name: String,
    /// Its beginning, on one line.
    pub preview: String,
    /// Length of its JSON source, in bytes.
    pub bytes: u64,
    /// BLAKE3 of role, kind and source.
    pub hash: [u8; 32],
    /// Whether a tool result reports a failure.
    pub failed: bool,
}

/// A part with more data than its view.
#[derive(Debug, Clone)]
pub(super) struct RequestPart<'a> {
    pub(super) view: MessageView,
    pub(super) source: &'a str,
    /// The content: a text, arguments, or a tool's result.
    pub(super) content: JsonNode<'a>,
    /// The id of the call that it is or answers.
    pub(super) call_id: String,
}

/// Keys of the conversation; all other keys are parameters.
pub(super) const SYSTEM_KEYS: [&str; 4] =
    ["system", "instructions", "systemInstruction", "system_instruction"];
const TOOL_KEYS: [&str; 2] = ["tools", "functions"];
const TOOL_CONFIG: &str = "toolConfig";
pub(super) const TURN_KEYS: [&str; 4] = ["messages", "input", "contents", "prompt"];

/// The parts of a request, in the order parameters, system prompt, tools, messages. `body` is JSON, decoded
/// from its content encoding; the result is empty for invalid or opaque bodies. Parts beyond [`PARTS_MAX`]
/// are dropped, and a last part says so. Linear in the body's size.
pub(super) fn parts<'a>(api: &ModelApi, body: &'a [u8]) -> Vec<RequestPart<'a>> {
    parts_after(api, body, 0)
}

/// As [`parts`], without the messages that end within the first `known_bytes` bytes of the body.
pub(super) fn parts_after<'a>(api: &ModelApi, body: &'a [u8], known_bytes: usize) -> Vec<RequestPart<'a>> {
    if api.shape == ApiShape::Opaque {
        return Vec::new();
    }
    let Ok(node) = JsonNode::parse(body) else { return Vec::new() };
    let fields = node.fields();
    let mut parts = Vec::new();
    for (key, node) in fields.iter() {
        // Bedrock's Converse nests its tools one level deeper; Gemini has none there.
        let has_tools = key == TOOL_CONFIG && node.get("tools").is_array();
        let beside =
            SYSTEM_KEYS.contains(&key) || TOOL_KEYS.contains(&key) || TURN_KEYS.contains(&key) || has_tools;
        if !beside {
            parts.push(blocks::part("", PartKind::Parameter, key, node));
        }
    }
    for key in SYSTEM_KEYS {
        blocks::content("system", fields.get(key), &mut parts);
    }
    let first = parts.iter().position(|part| part.view.kind != PartKind::Parameter).unwrap_or(parts.len());
    for part in &mut parts[first..] {
        part.view.kind = PartKind::System;
    }
    let converse = fields.get(TOOL_CONFIG).get("tools");
    for tools in TOOL_KEYS.map(|key| fields.get(key)).into_iter().chain([converse]) {
        for node in tools.items().nodes.into_iter().take(blocks::parts_left(&parts)) {
            tool(node, &mut parts);
        }
    }
    let (turns, more) = request_turns(&fields);
    // Every node's source is a piece of the body.
    let end = |turn: &JsonNode<'_>| {
        let source = turn.source();
        (source.as_ptr().addr() - body.as_ptr().addr()) + source.len()
    };
    for (at, turn) in turns.into_iter().enumerate() {
        if blocks::parts_left(&parts) == 0 {
            break;
        }
        if known_bytes > 0 && !turn.is_absent() && end(&turn) <= known_bytes {
            continue;
        }
        blocks::message_parts(at, turn, &mut parts);
    }
    if more > 0 || blocks::parts_left(&parts) == 0 {
        let mut rest = blocks::part("", PartKind::Other, "", JsonNode::default());
        rest.view.preview = format!("more than {PARTS_MAX} parts; the rest is not looked at");
        parts.push(rest);
    }
    name_results(&mut parts);
    parts
}

/// The messages, and how many more there are.
pub(super) fn request_turns<'a>(fields: &JsonFields<'a>) -> (Vec<JsonNode<'a>>, usize) {
    for key in TURN_KEYS {
        let node = fields.get(key);
        if node.is_array() {
            let items = node.items();
            return (items.nodes, items.more);
        }
        if !node.is_absent() {
            return (vec![node], 0);
        }
    }
    (Vec::new(), 0)
}

fn tool<'a>(node: JsonNode<'a>, parts: &mut Vec<RequestPart<'a>>) {
    let fields = node.fields();
    for key in ["functionDeclarations", "function_declarations"] {
        let declared = fields.get(key).items().nodes;
        if !declared.is_empty() {
            for node in declared.into_iter().take(blocks::parts_left(parts)) {
                parts.push(blocks::part(
                    "",
                    PartKind::Tool,
                    &node.get("name").string().unwrap_or_default(),
                    node,
                ));
            }
            return;
        }
    }
    let name = ["function", "toolSpec"].iter().find_map(|key| fields.get(key).get("name").string());
    let name = name.or_else(|| fields.get("name").string()).or_else(|| fields.get("type").string());
    let name = name.or_else(|| fields.iter().next().map(|(key, _)| key.to_owned()));
    parts.push(blocks::part("", PartKind::Tool, &name.unwrap_or_default(), node));
}

/// Adds the tool's name to results that only have their call's id.
fn name_results(parts: &mut [RequestPart<'_>]) {
    let mut names: HashMap<String, String> = HashMap::new();
    for part in parts {
        match part.view.kind {
            PartKind::ToolCall if !part.call_id.is_empty() => {
                names.insert(part.call_id.clone(), part.view.name.clone());
            }
            PartKind::ToolResult if part.view.name.is_empty() => {
                part.view.name = names.get(&part.call_id).unwrap_or(&part.call_id).clone();
            }
            _ => {}
        }
    }
}

/// Failed tool results of the last turn, after the model's last message. Earlier ones were reported when they
/// were new.
pub(super) fn failed_tools(api: &ModelApi, fields: &JsonFields<'_>) -> Vec<String> {
    if !api.shape.is_model_call() || api.shape == ApiShape::OpenAiEmbeddings {
        return Vec::new();
    }
    let (turns, _) = request_turns(fields);
    let is_model = |node: &JsonNode<'_>| blocks::is_model(*node);
    let answered = turns.iter().rposition(is_model).map_or(0, |at| at + 1);
    // The calls just before have the tools' names.
    let from = turns[..answered].iter().rposition(|node| !is_model(node)).map_or(0, |at| at + 1);
    let mut parts = Vec::new();
    for (at, turn) in turns.into_iter().enumerate().skip(from) {
        if blocks::parts_left(&parts) == 0 {
            break;
        }
        blocks::message_parts(at, turn, &mut parts);
    }
    name_results(&mut parts);
    let failed = parts.into_iter().filter(|part| part.view.failed).take(FAILURES_MAX);
    failed.map(|part| format!("{}: {}", one_line(&part.view.name, 80), part.view.preview)).collect()
}
