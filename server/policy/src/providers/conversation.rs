//! An exchange as a conversation that a person reads: the messages of a request that the request before did
//! not have, and the messages of an answer, complete or as a stream put together. All texts are plain text.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::api::{ApiShape, ModelApi};
use super::blocks;
use super::diff::{ComparablePart, PartMatch, matches, request_changes};
use super::exchange_reader::{WireExchange, summary_with};
use super::json::{JsonFields, JsonNode};
use super::messages::{PartKind, RequestPart, SYSTEM_KEYS, TURN_KEYS, parts, request_turns};
use super::spoken_texts::text;
use super::summary::ExchangeSummary;
use super::text::{BoundedText, clip};

/// Maximum bytes of an image that are shown as base64.
pub const IMAGE_BYTES_MAX: usize = 2 << 20;
/// Bytes of a binary body that are shown.
const HEX_BYTES: usize = 256;
/// Maximum number of changes outside the messages, and of names of tools.
const CHANGES_MAX: usize = 256;

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConversationMessage {
    /// The role in the provider's own word.
    pub role: String,
    /// Where it stands in the body, as a path of JSON; `None` for an answer that was put together.
    pub at: Option<String>,
    /// Its parts, in order.
    pub parts: Vec<ConversationPart>,
}

/// A part of a message. `bytes` is the length of the whole text, `cut` says that the rest is left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names of the fields say it")]
pub enum ConversationPart {
    /// Text.
    Text { text: String, bytes: u64, cut: bool },
    /// Thinking; an empty text if the provider hides it.
    Thinking { text: String, bytes: u64, cut: bool },
    /// A call of a tool; `arguments` is JSON as text.
    ToolCall { id: String, name: String, arguments: String, bytes: u64, cut: bool },
    /// The result of a tool.
    ToolResult { id: String, name: Option<String>, text: String, bytes: u64, cut: bool, error: bool },
    /// An image; `base64` is left out beyond [`IMAGE_BYTES_MAX`].
    Image { media_type: String, base64: Option<String>, url: Option<String>, bytes: u64 },
    /// Anything else, as its JSON.
    Other { json: String, bytes: u64, cut: bool },
    /// Bytes that are no text: the first ones in hexadecimal.
    Binary { bytes: u64, hex: String },
}

impl ConversationPart {
    /// Whether a part of its text or bytes is left out.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        match self {
            Self::Text { cut, .. }
            | Self::Thinking { cut, .. }
            | Self::ToolCall { cut, .. }
            | Self::ToolResult { cut, .. }
            | Self::Other { cut, .. } => *cut,
            Self::Image { base64, url, .. } => base64.is_none() && url.is_none(),
            Self::Binary { bytes, hex } => hex.len() as u64 / 2 < *bytes,
        }
    }
}

/// What of a request is shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestConversation {
    /// The new messages, or all.
    pub messages: Vec<ConversationMessage>,
    /// How many messages are as in the request before, and their bytes.
    pub before: (usize, u64),
    /// How many messages only the request before has.
    pub removed: usize,
    /// Changes of parameters, tools and the like, a line each.
    pub changes: Vec<String>,
    /// The names of the offered tools.
    pub tools: Vec<String>,
    /// Why the request is not read as a conversation.
    pub fault: Option<String>,
}

/// A message of a request, compared by the hashes of its parts.
struct MessageRow<'a> {
    parts: Vec<RequestPart<'a>>,
    role: String,
    at: String,
    bytes: u64,
    hash: [u8; 32],
    kind: PartKind,
}

impl ComparablePart for MessageRow<'_> {
    fn kind(&self) -> PartKind {
        self.kind
    }

    fn name(&self) -> &str {
        ""
    }

    fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    fn is_like(&self, other: &Self) -> bool {
        self.role == other.role
    }
}

/// Reads a request beside the request before. Both are JSON without content encoding. `all` shows the
/// messages that both have, too.
#[must_use]
pub fn request_conversation(
    api: &ModelApi,
    before: Option<&[u8]>,
    after: &[u8],
    all: bool,
    text_bytes_max: usize,
) -> RequestConversation {
    let mut read = RequestConversation::default();
    if let Err(fault) = JsonNode::parse(after) {
        read.fault = Some(fault);
        return read;
    }
    let rows = message_rows(api, after);
    let before = before.filter(|_| !all);
    let old = before.map_or_else(Vec::new, |before| message_rows(api, before));
    let mut shown = Vec::new();
    if let Some(before) = before {
        for found in matches(&old, &rows) {
            match found {
                PartMatch::Same => read.before.0 += 1,
                PartMatch::Added(row) => shown.push(row),
                PartMatch::Changed(_, row) => {
                    shown.push(row);
                    read.removed += 1;
                }
                PartMatch::Dropped(_) => read.removed += 1,
            }
        }
        let bytes = |rows: &mut dyn Iterator<Item = &MessageRow<'_>>| rows.map(|row| row.bytes).sum::<u64>();
        let shown_bytes = bytes(&mut shown.iter().copied());
        read.before.1 = bytes(&mut rows.iter()).saturating_sub(shown_bytes);
        let beside = |view: &super::MessageView| matches!(view.kind, PartKind::Parameter | PartKind::Tool);
        let changes = request_changes(api, before, after).changes;
        let changes = changes.iter().filter(|change| match change {
            super::PartChange::Added(view) | super::PartChange::Dropped(view) => beside(view),
            super::PartChange::Changed { after, .. } => beside(after),
        });
        read.changes = changes.take(CHANGES_MAX).map(ToString::to_string).collect();
    } else {
        shown.extend(&rows);
    }
    read.messages = shown.iter().map(|row| row.message(text_bytes_max)).collect();
    let tools = parts(api, after).into_iter().filter(|part| part.view.kind == PartKind::Tool);
    read.tools = tools.take(CHANGES_MAX).map(|part| part.view.name).collect();
    read
}

/// The hashes of a request's messages, in order. Messages are equal if their hashes and their roles are.
#[must_use]
pub fn message_hashes(api: &ModelApi, body: &[u8]) -> Vec<[u8; 32]> {
    let rows = message_rows(api, body).into_iter();
    rows.map(|row| *blake3::Hasher::new().update(row.role.as_bytes()).update(&row.hash).finalize().as_bytes())
        .collect()
}

fn message_rows<'a>(api: &ModelApi, body: &'a [u8]) -> Vec<MessageRow<'a>> {
    let Ok(node) = JsonNode::parse(body) else { return Vec::new() };
    let fields = node.fields();
    let (turns, _) = request_turns(&fields);
    let turns_key = TURN_KEYS.into_iter().find(|key| !fields.get(key).is_absent()).unwrap_or_default();
    let turns_are_listed = fields.get(turns_key).is_array();
    let system_key = SYSTEM_KEYS.into_iter().find(|key| !fields.get(key).is_absent()).unwrap_or_default();
    let mut rows: Vec<MessageRow<'_>> = Vec::new();
    let mut last = None;
    for part in parts(api, body) {
        if matches!(part.view.kind, PartKind::Parameter | PartKind::Tool) {
            continue;
        }
        let message = part.view.message;
        if last == Some(message)
            && let Some(row) = rows.last_mut()
        {
            row.parts.push(part);
            continue;
        }
        last = Some(message);
        let (at, bytes, kind) = match message {
            None => (format!("$.{system_key}"), fields.get(system_key).source().len(), PartKind::System),
            Some(index) => {
                let bytes = turns.get(index).map_or(0, |turn| turn.source().len());
                let at = if turns_are_listed { format!("[{index}]") } else { String::new() };
                (format!("$.{turns_key}{at}"), bytes, PartKind::Text)
            }
        };
        let role = part.view.role.clone();
        let row = MessageRow { parts: vec![part], role, at, bytes: bytes as u64, hash: [0; 32], kind };
        rows.push(row);
    }
    for row in &mut rows {
        let mut hasher = blake3::Hasher::new();
        for part in &row.parts {
            hasher.update(&part.view.hash);
        }
        row.hash = *hasher.finalize().as_bytes();
    }
    rows
}

impl MessageRow<'_> {
    fn message(&self, text_bytes_max: usize) -> ConversationMessage {
        let mut shown = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            add_part(part, text_bytes_max, &mut shown);
        }
        ConversationMessage { role: self.role.clone(), at: Some(self.at.clone()), parts: shown }
    }
}

/// The beginning of a text, its length in bytes, and whether it was cut.
fn cut(text: &str, bytes_max: usize) -> (String, u64, bool) {
    let head = clip(text, bytes_max);
    (head.to_owned(), text.len() as u64, head.len() < text.len())
}

fn add_part(part: &RequestPart<'_>, text_bytes_max: usize, shown: &mut Vec<ConversationPart>) {
    let whole = |node: JsonNode<'_>| match node.is_array() && node.items().nodes.is_empty() {
        true => String::new(),
        false => text(node, usize::MAX),
    };
    match part.view.kind {
        PartKind::ToolCall => {
            let arguments = part.content.string().unwrap_or_else(|| part.content.source().to_owned());
            let (arguments, bytes, cut) = cut(&arguments, text_bytes_max);
            let (id, name) = (part.call_id.clone(), part.view.name.clone());
            shown.push(ConversationPart::ToolCall { id, name, arguments, bytes, cut });
        }
        PartKind::ToolResult => {
            let (text, bytes, cut) = cut(&whole(part.content), text_bytes_max);
            let name = Some(part.view.name.clone()).filter(|name| !name.is_empty() && *name != part.call_id);
            let (id, error) = (part.call_id.clone(), part.view.failed);
            shown.push(ConversationPart::ToolResult { id, name, text, bytes, cut, error });
            let blocks = part.content.items().nodes;
            shown.extend(blocks.into_iter().filter_map(image));
        }
        PartKind::Thinking => {
            let (text, bytes, cut) = cut(&whole(part.content), text_bytes_max);
            shown.push(ConversationPart::Thinking { text, bytes, cut });
        }
        PartKind::Image => {
            let node = JsonNode::parse(part.source.as_bytes()).unwrap_or_default();
            shown.push(image(node).unwrap_or_else(|| other(part.source, text_bytes_max)));
        }
        PartKind::Text | PartKind::System | PartKind::Refusal
            if !part.content.is_absent() || part.source.is_empty() =>
        {
            let whole = match part.source.is_empty() {
                // The note that the rest is left out has no source.
                true => part.view.preview.clone(),
                false => whole(part.content),
            };
            let (text, bytes, cut) = cut(&whole, text_bytes_max);
            shown.push(ConversationPart::Text { text, bytes, cut });
        }
        _ if part.source.is_empty() => {
            let (text, bytes, cut) = cut(&part.view.preview, text_bytes_max);
            shown.push(ConversationPart::Text { text, bytes, cut });
        }
        _ => shown.push(other(part.source, text_bytes_max)),
    }
}

fn other(source: &str, text_bytes_max: usize) -> ConversationPart {
    let (json, bytes, cut) = cut(source, text_bytes_max);
    ConversationPart::Other { json, bytes, cut }
}

/// Reads an image in the forms of all providers.
fn image(node: JsonNode<'_>) -> Option<ConversationPart> {
    let encoded = |media_type: String, data: &str| ConversationPart::Image {
        media_type,
        base64: (data.len() <= IMAGE_BYTES_MAX / 3 * 4).then(|| data.to_owned()),
        url: None,
        bytes: (data.len() / 4 * 3) as u64,
    };
    let by_url = |media_type: String, url: &str| match url.strip_prefix("data:") {
        Some(data) => {
            let (kind, data) = data.split_once(";base64,")?;
            Some(encoded(kind.to_owned(), data))
        }
        None => Some(ConversationPart::Image {
            media_type,
            base64: None,
            url: Some(clip(url, 4096).to_owned()),
            bytes: 0,
        }),
    };
    // Ollama lists the bytes alone.
    if let Some(data) = node.text() {
        return Some(encoded("image/*".to_owned(), &data));
    }
    let fields = node.fields();
    let first = |keys: [&str; 2]| {
        keys.into_iter().map(|key| fields.get(key)).find(|node| !node.is_absent()).unwrap_or_default()
    };
    let kind_of = |node: JsonNode<'_>| {
        ["media_type", "mimeType", "mime_type"].iter().find_map(|key| node.get(key).string())
    };
    let url = fields.get("image_url");
    if let Some(url) = url.text().or_else(|| url.get("url").text()) {
        return by_url("image/*".to_owned(), &url);
    }
    let source = fields.get("source");
    if source.is_object() {
        let kind = kind_of(source).unwrap_or_else(|| "image/*".to_owned());
        if let Some(data) = source.get("data").text() {
            return kind.starts_with("image/").then(|| encoded(kind, &data));
        }
        return by_url(kind, &source.get("url").text()?);
    }
    let data = first(["inlineData", "inline_data"]);
    if data.is_object() {
        let kind = kind_of(data).filter(|kind| kind.starts_with("image/"))?;
        return Some(encoded(kind, &data.get("data").text()?));
    }
    let converse = fields.get("image");
    let format = converse.get("format").string()?;
    let data = converse.get("source").get("bytes");
    Some(encoded(format!("image/{}", clip(&format, 20)), &data.text()?))
}

/// The messages of an answer. A complete answer is read as a request's messages are; a stream is put
/// together: thinking, text, calls. Empty if the answer says nothing that is known.
#[must_use]
pub fn answer_conversation(
    exchange: &WireExchange<'_>,
    text_bytes_max: usize,
) -> (Vec<ConversationMessage>, ExchangeSummary) {
    let summary = summary_with(exchange, text_bytes_max);
    let mut messages = Vec::new();
    if let Ok(node) = JsonNode::parse(exchange.response)
        && node.is_object()
    {
        for (at, node) in answer_nodes(exchange.api.shape, &node.fields(), node) {
            messages.extend(answer_message(at, node, text_bytes_max));
        }
    }
    if messages.is_empty() {
        messages.extend(joined_message(&summary));
    }
    // The items of a Responses answer are one message of the model.
    if exchange.api.shape == ApiShape::OpenAiResponses {
        let mut joined: Vec<ConversationMessage> = Vec::new();
        for message in messages {
            match joined.last_mut().filter(|last| last.role == message.role) {
                Some(last) => last.parts.extend(message.parts),
                None => joined.push(message),
            }
        }
        messages = joined;
    }
    (messages, summary)
}

fn answer_nodes<'a>(
    shape: ApiShape,
    fields: &JsonFields<'a>,
    whole: JsonNode<'a>,
) -> Vec<(String, JsonNode<'a>)> {
    let listed = |list: &str, member: &str| {
        let items = fields.get(list).items().nodes.into_iter().enumerate();
        let items = items.map(|(at, item)| match member {
            "" => (format!("$.{list}[{at}]"), item),
            _ => (format!("$.{list}[{at}].{member}"), item.get(member)),
        });
        items.filter(|(_, node)| node.is_object()).collect::<Vec<_>>()
    };
    let one = |at: &str, node: JsonNode<'a>| match node.is_object() {
        true => vec![(at.to_owned(), node)],
        false => Vec::new(),
    };
    let converse = || one("$.output.message", fields.get("output").get("message"));
    match shape {
        ApiShape::OpenAiChat => listed("choices", "message"),
        ApiShape::OpenAiResponses => listed("output", ""),
        ApiShape::AnthropicMessages if !fields.get("content").is_absent() => one("$", whole),
        ApiShape::Gemini => listed("candidates", "content"),
        ApiShape::BedrockConverse => converse(),
        ApiShape::BedrockInvoke if fields.get("type").string().as_deref() == Some("message") => {
            one("$", whole)
        }
        ApiShape::BedrockInvoke if fields.get("choices").is_array() => listed("choices", "message"),
        ApiShape::BedrockInvoke => converse(),
        ApiShape::Ollama => one("$.message", fields.get("message")),
        _ => Vec::new(),
    }
}

fn answer_message(at: String, node: JsonNode<'_>, text_bytes_max: usize) -> Option<ConversationMessage> {
    let mut read = Vec::new();
    let mut shown = Vec::new();
    // DeepSeek and OpenRouter put thinking beside the content.
    let fields = node.fields();
    let beside = fields.get("reasoning");
    if let Some(words) = beside.text().filter(|_| !fields.get("reasoning_content").is_string()) {
        let (text, bytes, cut) = cut(&words, text_bytes_max);
        shown.push(ConversationPart::Thinking { text, bytes, cut });
    }
    // The type `message` of an Anthropic answer is none of its blocks.
    blocks::message_parts(0, node, &mut read);
    for part in &read {
        add_part(part, text_bytes_max, &mut shown);
    }
    let role = fields.get("role").string().unwrap_or_else(|| "assistant".to_owned());
    let role = clip(&role, 64).to_owned();
    (!shown.is_empty()).then_some(ConversationMessage { role, at: Some(at), parts: shown })
}

/// The message of a streamed answer.
fn joined_message(summary: &ExchangeSummary) -> Option<ConversationMessage> {
    let bounded = |text: &BoundedText| {
        (text.head().to_owned(), text.bytes(), (text.head().len() as u64) < text.bytes())
    };
    let mut parts = Vec::new();
    if summary.thinking_bytes.is_some() {
        let (text, bytes, cut) = bounded(&summary.thinking);
        parts.push(ConversationPart::Thinking { text, bytes, cut });
    }
    if summary.text.bytes() > 0 {
        let (text, bytes, cut) = bounded(&summary.text);
        parts.push(ConversationPart::Text { text, bytes, cut });
    }
    for call in &summary.tool_calls {
        let (arguments, bytes, cut) = bounded(&call.arguments);
        let (id, name) = (call.id.clone(), call.name.clone());
        parts.push(ConversationPart::ToolCall { id, name, arguments, bytes, cut });
    }
    (!parts.is_empty()).then(|| ConversationMessage { role: "assistant".to_owned(), at: None, parts })
}

/// A body that is no known conversation: an image, a text, or the first bytes in hexadecimal. The second
/// value says that bytes of the text are not UTF-8. An empty body has no part.
#[must_use]
pub fn plain_body(
    role: &str,
    body: &[u8],
    content_type: Option<&str>,
    text_bytes_max: usize,
) -> (Vec<ConversationMessage>, bool) {
    let mut is_lossy = false;
    let media_type = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let part = if body.is_empty() {
        return (Vec::new(), false);
    } else if media_type.starts_with("image/") && media_type.len() <= 64 && !media_type.contains("svg") {
        let base64 = (body.len() <= IMAGE_BYTES_MAX).then(|| STANDARD.encode(body));
        let media_type = media_type.to_ascii_lowercase();
        ConversationPart::Image { media_type, base64, url: None, bytes: body.len() as u64 }
    } else {
        match readable(body) {
            Some((text, lossy)) => {
                is_lossy = lossy;
                let (text, bytes, cut) = cut(&text, text_bytes_max);
                ConversationPart::Text { text, bytes: if lossy { body.len() as u64 } else { bytes }, cut }
            }
            None => {
                let head = body.get(..body.len().min(HEX_BYTES)).unwrap_or_default();
                ConversationPart::Binary { bytes: body.len() as u64, hex: annals_text::hex::encode(head) }
            }
        }
    };
    (vec![ConversationMessage { role: role.to_owned(), at: None, parts: vec![part] }], is_lossy)
}

/// The text of a body, and whether it was read with replacement characters. `None` if it is binary.
fn readable(body: &[u8]) -> Option<(std::borrow::Cow<'_, str>, bool)> {
    if let Ok(text) = std::str::from_utf8(body) {
        return (!text.as_bytes().contains(&0)).then_some((text.into(), false));
    }
    // At most one broken sequence in 32 bytes, and no zero: a text with damage or in Latin-1.
    let broken: usize = body.utf8_chunks().map(|chunk| usize::from(!chunk.invalid().is_empty())).sum();
    (!body.contains(&0) && broken <= 1 + body.len() / 32)
        .then(|| (String::from_utf8_lossy(body).into_owned().into(), true))
}
