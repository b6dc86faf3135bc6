//! A request taken apart into what a person tells apart: parameters, system prompt, tools, and the parts of each
//! message, whatever provider it is for.
//!
//! A view's hash covers role, kind and source of its part, so that parts of two requests compare without their
//! text. Marks for the provider's cache (`cache_control`) are left out of it, and a text is the same whether it
//! stands alone or as the one block of a list: clients move and change both from call to call, and neither
//! changes what is said.

use std::collections::HashMap;
use std::fmt;

use super::api::{ApiShape, ModelApi};
use super::blocks;
use super::json::{JsonFields, JsonNode};
use super::text::one_line;

/// Characters of a preview.
pub const PREVIEW_CHARS: usize = 120;
/// The most parts of a request that are told apart.
pub const PARTS_MAX: usize = 1 << 17;
/// Source bytes that are decoded for a preview.
pub(super) const PREVIEW_BYTES: usize = 1024;
/// The most failed tool results that are told of.
const FAILURES_MAX: usize = 8;

/// What a part of a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PartKind {
    /// A field beside the conversation: model, temperature, ...
    Parameter,
    /// The system prompt, where it stands beside the messages.
    System,
    /// A tool that is offered.
    Tool,
    /// Text of a message.
    Text,
    /// Thinking that is sent back.
    Thinking,
    /// A call of a tool.
    ToolCall,
    /// What a tool gave.
    ToolResult,
    /// An image.
    Image,
    /// Sound.
    Audio,
    /// A file.
    Document,
    /// A refusal that is sent back.
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
    /// The message it is part of, from 0; none for what stands beside the messages.
    pub message: Option<usize>,
    /// Who says it, by the provider's own word; empty for parameters and tools.
    pub role: String,
    /// What it is.
    pub kind: PartKind,
    /// The parameter, the tool, or the tool that a call or result is of.
    pub name: String,
    /// Its beginning, on one line.
    pub preview: String,
    /// Length of its JSON source, in bytes.
    pub bytes: u64,
    /// BLAKE3 of role, kind and source.
    pub hash: [u8; 32],
    /// Of a tool result: whether it says that the tool failed.
    pub failed: bool,
}

/// A part with what is needed beside its view.
#[derive(Debug, Clone)]
pub(super) struct RequestPart<'a> {
    pub(super) view: MessageView,
    pub(super) source: &'a str,
    /// What of it is said, called with or given: a text, arguments, a tool's result.
    pub(super) content: JsonNode<'a>,
    /// The id of the call that it is or answers.
    pub(super) call_id: String,
}

/// Keys of the conversation; every other key is a parameter.
const SYSTEM_KEYS: [&str; 4] = ["system", "instructions", "systemInstruction", "system_instruction"];
const TOOL_KEYS: [&str; 2] = ["tools", "functions"];
const TOOL_CONFIG: &str = "toolConfig";
const TURN_KEYS: [&str; 4] = ["messages", "input", "contents", "prompt"];

/// The parts of a request, in the order parameters, system prompt, tools, messages. `body` is JSON, decoded
/// from its content encoding; empty for one that is none, or that is opaque. Parts beyond [`PARTS_MAX`] are left out, which a last
/// part says. Linear in its size.
#[must_use]
pub fn messages(api: &ModelApi, body: &[u8]) -> Vec<MessageView> {
    parts(api, body).into_iter().map(|part| part.view).collect()
}

pub(super) fn parts<'a>(api: &ModelApi, body: &'a [u8]) -> Vec<RequestPart<'a>> {
    if api.shape == ApiShape::Opaque {
        return Vec::new();
    }
    let Ok(node) = JsonNode::parse(body) else { return Vec::new() };
    let fields = node.fields();
    let mut parts = Vec::new();
    for (key, node) in fields.iter() {
        // Bedrock's Converse has its tools one deeper; Gemini has no tools there.
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
    for (at, turn) in turns.into_iter().enumerate() {
        if blocks::parts_left(&parts) == 0 {
            break;
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

/// The messages, and how many more there are than are looked at.
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

/// Gives tool results, which carry only the id of their call, the name of the tool.
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

/// The tool results of the last turn, after the last message of the model, that say that a tool failed. Earlier
/// ones were told of when they were new.
pub(super) fn failed_tools(api: &ModelApi, fields: &JsonFields<'_>) -> Vec<String> {
    if !api.shape.is_model_call() || api.shape == ApiShape::OpenAiEmbeddings {
        return Vec::new();
    }
    let (turns, _) = request_turns(fields);
    let is_model = |node: &JsonNode<'_>| blocks::is_model(*node);
    let answered = turns.iter().rposition(is_model).map_or(0, |at| at + 1);
    // The calls stand just before; they have the names.
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
