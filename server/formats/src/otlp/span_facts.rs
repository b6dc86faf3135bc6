//! Facts of a span under the metadata keys of annals' other recorders: provider, model, sampling, usage,
//! finish reason, tool, error.
//!
//! Invariant: nothing here is guessed. A fact that the span does not state has no key.

use opentelemetry_proto::tonic::common::v1::AnyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Held;
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::{Map, Value, json};

use super::bodies::SpanBody;
use super::conventions::{self, first_count, first_text, first_value};
use super::value::to_plain_json;

/// Maximum length of a name in the metadata, in bytes.
const NAME_BYTES_MAX: usize = 1024;
/// Maximum length of a tool call's arguments in the metadata, in bytes.
const ARGUMENTS_BYTES: usize = 4096;
/// Maximum number of tool calls kept per span.
pub(super) const CALLS_MAX: usize = 256;
/// Maximum length of the id of a tool call, in bytes.
pub(super) const CALL_ID_BYTES_MAX: usize = 128;
/// Maximum length of a text that is parsed as JSON, in bytes.
const TEXT_BYTES_MAX: usize = 2 << 20;
/// Maximum number of values of one attribute that are examined.
const VALUES_MAX: usize = 1 << 14;

/// The facts of a span.
#[derive(Debug, Default)]
pub(super) struct SpanFacts {
    /// Keys of the frame's metadata.
    pub(super) stable: Map<String, Value>,
    /// Keys under `volatile` in the metadata.
    pub(super) volatile: Map<String, Value>,
    /// Ids of the tool calls that the output requests.
    pub(super) requested_calls: Vec<String>,
    /// Ids of the tool calls whose results the input carries.
    pub(super) carried_results: Vec<String>,
    /// The id of the tool call that this span is.
    pub(super) tool_call_id: Option<String>,
}

impl SpanFacts {
    pub(super) fn new(span: &Span, input: &SpanBody, output: &SpanBody, is_tool: bool) -> Self {
        let attributes = span.attributes.as_slice();
        let mut facts = Self::default();
        let name = |names: &[&str]| first_text(attributes, names).map(|text| clip(text, NAME_BYTES_MAX));
        let (answered, requested) = (name(conventions::MODEL_ANSWERED), name(conventions::MODEL_REQUESTED));
        facts.put("provider", name(conventions::PROVIDER));
        facts.put("model", answered.or(requested));
        if answered.is_some() && answered != requested {
            facts.put("model_requested", requested);
        }
        facts.put("sampling", sampling(span));
        let usage = conventions::USAGE
            .iter()
            .filter_map(|(key, names)| Some((*key, first_count(attributes, names)?)));
        facts.put("usage", object(usage));
        facts.put("finish_reason", finish_reason(span));
        if is_tool && let Some(tool) = name(conventions::TOOL_NAME).or(Some(span.name.as_str())) {
            facts.put("tool", Some(json!({ "name": clip(tool, NAME_BYTES_MAX) })));
            facts.tool_call_id =
                first_text(attributes, conventions::TOOL_CALL_ID).filter(|id| is_id(id)).map(str::to_owned);
        }
        facts.put("error", error(span));
        facts.collect_calls(span, input, output);
        if let Some(id) = name(conventions::RESPONSE_ID) {
            facts.volatile.insert("response_id".to_owned(), json!(id));
        }
        facts
    }

    fn put(&mut self, key: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.stable.insert(key.to_owned(), value.into());
        }
    }

    /// Collects the tool calls that the output requests and the results that the input carries.
    fn collect_calls(&mut self, span: &Span, input: &SpanBody, output: &SpanBody) {
        let (mut asked, mut unused) = (ToolCallFindings::default(), ToolCallFindings::default());
        scan_body(span, output, &mut asked);
        scan_body(span, input, &mut unused);
        self.carried_results = unused.carried;
        self.requested_calls = asked.asked.iter().map(|call| call.id.clone()).collect();
        let called = asked.asked.iter().filter(|call| !call.name.is_empty());
        let calls: Vec<Value> = called.map(RequestedToolCall::to_json).collect();
        if !calls.is_empty() {
            self.stable.insert("tool_calls".to_owned(), Value::Array(calls));
        }
        if !self.requested_calls.is_empty() {
            self.volatile.insert("tool_call_ids".to_owned(), json!(self.requested_calls));
        }
    }
}

/// A tool call that a model requested.
#[derive(Debug)]
struct RequestedToolCall {
    id: String,
    name: String,
    arguments: String,
}

impl RequestedToolCall {
    fn to_json(&self) -> Value {
        let arguments = clip(&self.arguments, ARGUMENTS_BYTES);
        let mut told = json!({ "name": clip(&self.name, NAME_BYTES_MAX), "arguments": arguments });
        if arguments.len() < self.arguments.len() {
            told["arguments_bytes"] = json!(self.arguments.len());
        }
        told
    }
}

#[derive(Debug, Default)]
struct ToolCallFindings {
    asked: Vec<RequestedToolCall>,
    carried: Vec<String>,
}

impl ToolCallFindings {
    fn ask(&mut self, id: &str, name: &str, arguments: Option<&Value>) {
        if self.accepts(id) {
            let arguments = match arguments {
                None | Some(Value::Null) => String::new(),
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
            };
            self.asked.push(RequestedToolCall { id: id.to_owned(), name: name.to_owned(), arguments });
        }
    }

    /// Whether this id is valid and new, and there is room for it.
    fn accepts(&self, id: &str) -> bool {
        is_id(id) && self.asked.len() < CALLS_MAX && self.asked.iter().all(|call| call.id != id)
    }

    fn carry(&mut self, id: &str) {
        if is_id(id) && self.carried.len() < CALLS_MAX && self.carried.iter().all(|known| known != id) {
            self.carried.push(id.to_owned());
        }
    }

    /// Searches JSON for calls and results in the forms of GenAI, OpenAI and Anthropic. Iterative, not
    /// recursive.
    fn scan_json(&mut self, value: &Value) {
        let mut open = vec![value];
        while let Some(value) = open.pop() {
            match value {
                Value::Array(items) => open.extend(items.iter().rev()),
                Value::Object(fields) => {
                    self.object(fields);
                    open.extend(fields.values().filter(|value| value.is_array() || value.is_object()));
                }
                _ => {}
            }
        }
    }

    fn object(&mut self, fields: &Map<String, Value>) {
        let text = |key: &str| fields.get(key).and_then(Value::as_str);
        let id = |keys: &[&str]| keys.iter().find_map(|key| text(key));
        let function = fields.get("function").and_then(Value::as_object);
        match (text("type"), text("role")) {
            (Some("tool_call_response" | "tool_result" | "function_call_output"), _) | (_, Some("tool")) => {
                if let Some(id) = id(&["tool_use_id", "tool_call_id", "call_id", "id"]) {
                    self.carry(id);
                }
            }
            (Some("tool_call" | "tool_use" | "function_call"), _) | (Some("function"), _) => {
                let of =
                    |key: &str| function.and_then(|function| function.get(key)).or_else(|| fields.get(key));
                if let Some(id) = id(&["call_id", "id"]) {
                    let name = of("name").and_then(Value::as_str).unwrap_or_default();
                    self.ask(id, name, of("arguments").or_else(|| fields.get("input")));
                }
            }
            _ => {}
        }
    }
}

/// Searches the attributes and events that a body was made of.
fn scan_body(span: &Span, body: &SpanBody, found: &mut ToolCallFindings) {
    let of_events = body.events.iter().map(|place| &span.events[*place]);
    for event in of_events.clone().filter(|event| event.name == "gen_ai.tool.message") {
        if let Some(id) = first_text(&event.attributes, &["id"]) {
            found.carry(id);
        }
    }
    let attributes = body.attributes.iter().map(|place| &span.attributes[*place]);
    for pair in attributes.chain(of_events.flat_map(|event| &event.attributes)) {
        match pair.value.as_ref().and_then(|value| value.value.as_ref()) {
            Some(Held::StringValue(text)) => match flat_key_kind(&pair.key) {
                // The sibling attributes are looked up among all attributes of the span.
                Some(FlatKeyKind::Requested) if !found.accepts(text) => {}
                Some(FlatKeyKind::Requested) => {
                    let sibling = |name: &str| format!("{}{name}", pair.key.trim_end_matches("id"));
                    let names = [sibling("function.name"), sibling("name")];
                    let arguments = [sibling("function.arguments"), sibling("arguments")];
                    let of = |keys: [String; 2]| {
                        keys.iter().find_map(|key| first_text(&span.attributes, &[key.as_str()]))
                    };
                    let arguments = of(arguments).map(|text| json!(text));
                    found.ask(text, of(names).unwrap_or_default(), arguments.as_ref());
                }
                Some(FlatKeyKind::Result) => found.carry(text),
                None if text.len() <= TEXT_BYTES_MAX && text.trim_start().starts_with(['{', '[']) => {
                    if let Ok(value) = serde_json::from_str(text) {
                        found.scan_json(&value);
                    }
                }
                None => {}
            },
            Some(Held::ArrayValue(_) | Held::KvlistValue(_)) => {
                found.scan_json(&pair.value.as_ref().map(plain_json).unwrap_or_default());
            }
            _ => {}
        }
    }
}

/// The content of a flattened attribute, by its name.
enum FlatKeyKind {
    Requested,
    Result,
}

fn flat_key_kind(key: &str) -> Option<FlatKeyKind> {
    let (head, last) = key.rsplit_once('.')?;
    match last {
        "tool_call_id" => Some(FlatKeyKind::Result),
        "id" if head.ends_with(".tool_call") => Some(FlatKeyKind::Requested),
        "id" => {
            let (head, number) = head.rsplit_once('.')?;
            let is_list = head.ends_with(".tool_calls") && number.bytes().all(|byte| byte.is_ascii_digit());
            is_list.then_some(FlatKeyKind::Requested)
        }
        _ => None,
    }
}

fn is_id(id: &str) -> bool {
    (1..=CALL_ID_BYTES_MAX).contains(&id.len())
}

fn object<'a>(fields: impl Iterator<Item = (&'a str, impl Into<Value>)>) -> Option<Value> {
    let fields: Map<String, Value> = fields.map(|(key, value)| (key.to_owned(), value.into())).collect();
    (!fields.is_empty()).then_some(Value::Object(fields))
}

fn sampling(span: &Span) -> Option<Value> {
    let mut fields = Map::new();
    if let Some(text) = first_text(&span.attributes, &[conventions::INVOCATION])
        && text.len() <= TEXT_BYTES_MAX
        && let Ok(Value::Object(given)) = serde_json::from_str(text)
    {
        let scalar = |value: &Value| value.is_number() || value.is_boolean();
        fields.extend(
            given.into_iter().filter(|(key, value)| key.len() <= NAME_BYTES_MAX && scalar(value)).take(64),
        );
    }
    for (key, names) in conventions::SAMPLING {
        if let Some(value) = first_value(&span.attributes, names).map(plain_json)
            && !value.is_null()
            && value.to_string().len() <= ARGUMENTS_BYTES
        {
            fields.insert(key.to_owned(), value);
        }
    }
    (!fields.is_empty()).then_some(Value::Object(fields))
}

fn finish_reason(span: &Span) -> Option<Value> {
    let reasons = match plain_json(first_value(&span.attributes, conventions::FINISH_REASON)?) {
        Value::Array(reasons) => reasons,
        reason => vec![reason],
    };
    let texts =
        reasons.iter().filter_map(Value::as_str).take(128).map(|text| json!(clip(text, NAME_BYTES_MAX)));
    let mut texts: Vec<Value> = texts.collect();
    match texts.len() {
        0 => None,
        1 => texts.pop(),
        _ => Some(Value::Array(texts)),
    }
}

/// The error as the span describes it.
fn error(span: &Span) -> Option<Value> {
    if !is_error(span) {
        return None;
    }
    let exception = span.events.iter().rfind(|event| event.name == "exception");
    let told = exception.map(|event| event.attributes.as_slice()).unwrap_or_default();
    let of = |names: &[&str]| first_text(&span.attributes, names).or_else(|| first_text(told, names));
    let status = span.status.as_ref().map(|status| status.message.as_str()).filter(|text| !text.is_empty());
    let fields = [
        ("type", of(conventions::ERROR_TYPE)),
        ("message", status.or_else(|| of(conventions::ERROR_MESSAGE))),
    ];
    let fields = fields.into_iter().filter_map(|(key, text)| Some((key, clip(text?, NAME_BYTES_MAX))));
    Some(object(fields).unwrap_or_else(|| json!({})))
}

/// Whether the span's status is an error.
pub(super) fn is_error(span: &Span) -> bool {
    // StatusCode::Error
    span.status.as_ref().is_some_and(|status| status.code == 2)
}

/// A value as plain JSON, up to the limit of examined values.
fn plain_json(value: &AnyValue) -> Value {
    to_plain_json(value, &mut { VALUES_MAX })
}

fn clip(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or_default()
}
