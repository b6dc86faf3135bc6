//! The content of a request or an answer, without its form: roles, texts, tool calls with arguments,
//! parameters.
//!
//! Two recordings of one program differ in ids, times, token counts, spacing and the cuts of a stream. None
//! of these is part of the meaning. A body with content that is not read here (sound, images in an answer,
//! several choices, overlong text) has no meaning, and its bytes are compared.

use std::fmt;

use serde_json::{Map, Value};

use super::api::{ApiShape, ModelApi};
use super::diff::{ComparablePart, FirstDifference, PartMatch, matches};
use super::encoding::{DECODED_BYTES_MAX, decode};
use super::exchange_reader::{WireExchange, summary_with};
use super::json::JsonNode;
use super::messages::{PARTS_MAX, PartKind, RequestPart, parts};
use super::summary::ExchangeSummary;
use super::text::one_line;

/// Maximum number of characters shown of a value.
const VALUE_CHARS: usize = 60;
/// Maximum number of values listed for one part.
const PATHS_MAX: usize = 20;
/// Content of an answer that no summary holds.
const UNREAD: [&[u8]; 5] =
    [b"inlineData", b"inline_data", b"image_generation_call", b"\"audio\":", b"b64_json"];

/// The content of a request or an answer.
#[derive(Debug, Clone, Default)]
pub struct Meaning(Vec<MeaningPart>);

/// One part of it.
#[derive(Debug, Clone)]
struct MeaningPart {
    message: Option<usize>,
    role: String,
    kind: PartKind,
    name: String,
    value: Value,
    hash: [u8; 32],
}

/// One difference between two sides.
#[derive(Debug, Clone, PartialEq)]
pub struct MeaningDifference {
    /// The message of the second side, or of the first if only that has it; from 0. `None` for parts outside the
    /// messages, and for an answer.
    pub message: Option<usize>,
    /// The role, on the same side.
    pub role: String,
    /// The kind of the part.
    pub kind: PartKind,
    /// The name of the parameter or the tool.
    pub name: String,
    /// The difference.
    pub detail: MeaningDetail,
}

/// The difference of one part.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum MeaningDetail {
    /// Only the second side has it; its beginning.
    Added(String),
    /// Only the first side has it; its beginning.
    Dropped(String),
    /// The role differs.
    Role {
        /// On the first side.
        a: String,
        /// On the second.
        b: String,
    },
    /// The tool that is called or answers differs.
    Tool {
        /// On the first side.
        a: String,
        /// On the second.
        b: String,
    },
    /// The text differs.
    Text(FirstDifference),
    /// Values of a parameter, of arguments or of a tool's result differ; and how many more.
    Values(Vec<ValueChange>, usize),
}

/// A value that differs.
#[derive(Debug, Clone, PartialEq)]
pub struct ValueChange {
    /// Its path: `$.city`, `$.items[2]`; `$` for the whole.
    pub path: String,
    /// On the first side, if present.
    pub a: Option<Value>,
    /// On the second side, if present.
    pub b: Option<Value>,
}

impl Meaning {
    /// The meaning of a request; its body is decoded. `None` if it cannot be read completely.
    #[must_use]
    pub fn of_request(api: &ModelApi, body: &[u8]) -> Option<Self> {
        let parts = parts(api, body);
        if parts.is_empty() || parts.len() >= PARTS_MAX {
            return None;
        }
        Some(Self(parts.iter().map(MeaningPart::from_part).collect()))
    }

    /// The meaning of a recorded message that serves as an answer, as imports have it.
    #[must_use]
    pub fn of_message(api: &ModelApi, message: &[u8]) -> Option<Self> {
        let node = JsonNode::parse(message).ok()?;
        if node.get("role").is_absent() && node.get("content").is_absent() {
            return None;
        }
        let body = [b"{\"messages\":[", message, b"]}"].concat();
        let mut meaning = Self::of_request(api, &body)?;
        for statement in &mut meaning.0 {
            statement.message = None;
        }
        Some(meaning)
    }

    /// The meaning of an exchange's answer. `None` if it cannot be read completely.
    #[must_use]
    pub fn of_answer(exchange: &WireExchange<'_>) -> Option<Self> {
        if !exchange.api.shape.is_model_call() || exchange.api.shape == ApiShape::OpenAiEmbeddings {
            return None;
        }
        let body = decode(exchange.content_encoding, exchange.response, DECODED_BYTES_MAX);
        if body.fault.is_some() || UNREAD.iter().any(|mark| holds(&body.bytes, mark)) {
            return None;
        }
        let summary = summary_with(exchange, DECODED_BYTES_MAX);
        let mut statements = status_parts(&summary);
        statements.extend(answer_parts(&summary)?);
        (statements.len() > 1).then_some(Self(statements))
    }

    /// Equal for sides with the same meaning.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for statement in &self.0 {
            hasher.update(&statement.hash);
        }
        *hasher.finalize().as_bytes()
    }

    /// The differences to another side, in order: parameters, prompt, tools, then messages.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<MeaningDifference> {
        let of = |found: PartMatch<'_, MeaningPart>| match found {
            PartMatch::Same => Vec::new(),
            PartMatch::Added(at) => vec![at.difference(MeaningDetail::Added(at.preview()))],
            PartMatch::Dropped(at) => vec![at.difference(MeaningDetail::Dropped(at.preview()))],
            PartMatch::Changed(a, b) => changed(a, b),
        };
        matches(&self.0, &other.0).into_iter().flat_map(of).collect()
    }
}

/// Status, finish reason and error of an answer.
fn status_parts(summary: &ExchangeSummary) -> Vec<MeaningPart> {
    let mut facts = vec![("status", Value::from(summary.status))];
    if !summary.finish_reasons.is_empty() {
        facts.push(("finish_reason", Value::from(summary.finish_reasons.clone())));
    }
    if let Some(model) = &summary.model_answered {
        facts.push(("model", Value::from(model.as_str())));
    }
    if let Some(error) = &summary.error {
        facts.push(("error", serde_json::json!({ "type": error.kind, "message": error.message })));
    }
    if summary.complete == Some(false) {
        facts.push(("cut_short", Value::from(true)));
    }
    if let Some(bytes) = summary.thinking_bytes {
        facts.push(("thinking_bytes", Value::from(bytes)));
    }
    let parameter = |(name, value): (&str, Value)| MeaningPart::new("", PartKind::Parameter, name, value);
    facts.into_iter().map(parameter).collect()
}

/// The model's output: a text, a refusal, tool calls. `None` if it is incomplete.
fn answer_parts(summary: &ExchangeSummary) -> Option<Vec<MeaningPart>> {
    let whole = summary.text.bytes() == summary.text.head().len() as u64;
    let calls = &summary.tool_calls;
    let called = calls.iter().all(|call| call.arguments.bytes() == call.arguments.head().len() as u64);
    let single = summary.finish_reasons.len() <= 1 && summary.tool_calls_more == 0;
    if !whole || !called || !single || summary.unparsed.is_some() {
        return None;
    }
    let mut words = Vec::new();
    if summary.text.bytes() > 0 {
        words.push(MeaningPart::new("assistant", PartKind::Text, "", Value::from(summary.text.head())));
    }
    if let Some(refusal) = &summary.refusal {
        words.push(MeaningPart::new("assistant", PartKind::Refusal, "", Value::from(refusal.as_str())));
    }
    for call in calls {
        let arguments = structured(call.arguments.head());
        words.push(MeaningPart::new("assistant", PartKind::ToolCall, &call.name, arguments));
    }
    Some(words)
}

impl MeaningPart {
    fn from_part(part: &RequestPart<'_>) -> Self {
        let view = &part.view;
        let value = match view.kind {
            PartKind::Text | PartKind::System | PartKind::Thinking | PartKind::Refusal
                if !part.content.is_absent() =>
            {
                said_value(part.content, false)
            }
            PartKind::ToolCall | PartKind::ToolResult => said_value(part.content, true),
            _ => plain(part.source),
        };
        let mut statement = Self::new(&view.role, view.kind, &view.name, value);
        statement.message = view.message;
        statement
    }

    fn new(role: &str, kind: PartKind, name: &str, value: Value) -> Self {
        let mut hasher = blake3::Hasher::new();
        let canonical = sorted(value);
        for text in [role, &kind.to_string(), name, &canonical.to_string()] {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        let hash = *hasher.finalize().as_bytes();
        Self { message: None, role: role.to_owned(), kind, name: name.to_owned(), value: canonical, hash }
    }

    fn difference(&self, detail: MeaningDetail) -> MeaningDifference {
        let (role, name) = (self.role.clone(), self.name.clone());
        MeaningDifference { message: self.message, role, kind: self.kind, name, detail }
    }

    fn preview(&self) -> String {
        shown(&self.value)
    }
}

impl ComparablePart for MeaningPart {
    fn kind(&self) -> PartKind {
        self.kind
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    fn is_like(&self, other: &Self) -> bool {
        self.kind == other.kind && (self.role == other.role || self.value == other.value)
    }
}

fn changed(a: &MeaningPart, b: &MeaningPart) -> Vec<MeaningDifference> {
    let mut found = Vec::new();
    if a.role != b.role {
        found.push(b.difference(MeaningDetail::Role { a: a.role.clone(), b: b.role.clone() }));
    }
    if a.name != b.name {
        found.push(b.difference(MeaningDetail::Tool { a: a.name.clone(), b: b.name.clone() }));
    }
    match (&a.value, &b.value) {
        (a, b) if a == b => {}
        (Value::String(was), Value::String(is)) if b.kind != PartKind::Parameter => {
            found.push(b.difference(MeaningDetail::Text(FirstDifference::new(was, is))));
        }
        (was, is) => {
            let (mut values, mut more) = (Vec::new(), 0);
            compare("$", Some(was), Some(is), &mut values, &mut more);
            found.push(b.difference(MeaningDetail::Values(values, more)));
        }
    }
    found
}

/// Lists where two values differ. Values from outside are at most 128 levels deep, the limit of serde_json.
fn compare(path: &str, a: Option<&Value>, b: Option<&Value>, into: &mut Vec<ValueChange>, more: &mut usize) {
    match (a, b) {
        (a, b) if a == b => {}
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            for (key, value) in a {
                compare(&member(path, key), Some(value), b.get(key), into, more);
            }
            for (key, value) in b.iter().filter(|(key, _)| !a.contains_key(*key)) {
                compare(&member(path, key), None, Some(value), into, more);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            for at in 0..a.len().max(b.len()) {
                compare(&format!("{path}[{at}]"), a.get(at), b.get(at), into, more);
            }
        }
        _ if into.len() == PATHS_MAX => *more += 1,
        (a, b) => into.push(ValueChange { path: path.to_owned(), a: a.cloned(), b: b.cloned() }),
    }
}

fn member(path: &str, key: &str) -> String {
    let plain = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if plain { format!("{path}.{key}") } else { format!("{path}['{key}']") }
}

/// The text of a string or a list of strings, or a value. For a tool, JSON in a string counts as JSON.
fn said_value(node: JsonNode<'_>, of_tool: bool) -> Value {
    let texts: Option<Vec<String>> = match node.is_array() {
        true => node.items().nodes.iter().map(|item| item.get("text").string()).collect(),
        false => node.string().map(|text| vec![text]),
    };
    match texts.filter(|texts| !texts.is_empty()) {
        Some(texts) if of_tool => structured(&texts.concat()),
        Some(texts) => Value::String(texts.concat()),
        None => plain(node.source()),
    }
}

/// A text, or the object or array that it encodes.
fn structured(text: &str) -> Value {
    let is_json = text.trim_ascii_start().starts_with(['{', '[']);
    let parsed = if is_json { serde_json::from_str(text).ok() } else { None };
    parsed.unwrap_or_else(|| Value::String(text.to_owned()))
}

/// A value without marks for the provider's cache.
fn plain(source: &str) -> Value {
    match serde_json::from_str(source) {
        Ok(Value::Object(mut object)) => {
            object.remove("cache_control");
            Value::Object(object)
        }
        Ok(value) => value,
        Err(_) => Value::String(source.to_owned()),
    }
}

/// A value with sorted keys, independent of map order.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(object) => {
            let mut pairs: Vec<_> = object.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            pairs.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
            Value::Object(pairs.into_iter().collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        value => value,
    }
}

fn holds(bytes: &[u8], mark: &[u8]) -> bool {
    memchr::memmem::find(bytes, mark).is_some()
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => one_line(text, VALUE_CHARS),
        value => one_line(&value.to_string(), VALUE_CHARS),
    }
}

impl fmt::Display for MeaningDifference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self.detail {
            MeaningDetail::Added(_) => "+ ",
            MeaningDetail::Dropped(_) => "- ",
            _ => "~ ",
        })?;
        if let Some(message) = self.message {
            write!(formatter, "message {}, ", message + 1)?;
        }
        if !self.role.is_empty() && !matches!(self.detail, MeaningDetail::Role { .. }) {
            write!(formatter, "{} ", one_line(&self.role, 20))?;
        }
        write!(formatter, "{}", self.kind)?;
        if !self.name.is_empty() && !matches!(self.detail, MeaningDetail::Tool { .. }) {
            write!(formatter, " {}", one_line(&self.name, VALUE_CHARS))?;
        }
        match &self.detail {
            MeaningDetail::Added(text) | MeaningDetail::Dropped(text) => write!(formatter, ": {text}"),
            MeaningDetail::Role { a, b } => {
                write!(formatter, ": role {} -> {}", one_line(a, 20), one_line(b, 20))
            }
            MeaningDetail::Tool { a, b } => write!(formatter, ": {} -> {}", one_line(a, 60), one_line(b, 60)),
            MeaningDetail::Text(FirstDifference { at, was, is }) => {
                write!(formatter, ", from byte {at}\n    was  {was}\n    is   {is}")
            }
            MeaningDetail::Values(values, more) => {
                match values.as_slice() {
                    [one] if *more == 0 => write!(formatter, ": {one}")?,
                    values => values.iter().try_for_each(|value| write!(formatter, "\n    {value}"))?,
                }
                if *more > 0 { write!(formatter, "\n    and {more} more") } else { Ok(()) }
            }
        }
    }
}

impl fmt::Display for ValueChange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.path == "$";
        let side = |value: &Option<Value>| match value {
            None => "nothing".to_owned(),
            Some(value) if whole => shown(value),
            Some(value) => one_line(&value.to_string(), VALUE_CHARS),
        };
        if !whole {
            write!(formatter, "{}: ", one_line(&self.path, 120))?;
        }
        write!(formatter, "{} -> {}", side(&self.a), side(&self.b))
    }
}
