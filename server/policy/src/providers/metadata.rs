//! The form of an [`ExchangeSummary`] in a frame's metadata.
//!
//! Metadata is part of a run's fingerprint, so values that differ between two recordings of one call are
//! stored under `volatile`. Keys are stable; keys without a value are left out.

use serde_json::{Map, Value, json};

use super::summary::{ExchangeSummary, ModelToolCall, TokenUsage};
use super::text::{clip, one_line};

/// Maximum number of characters of the answer's text in metadata.
const PREVIEW_CHARS: usize = 200;
/// Maximum number of bytes of a tool call's arguments in metadata.
const ARGUMENTS_BYTES: usize = 4096;

impl ExchangeSummary {
    /// The metadata object of a frame. Keys without a value are left out. Values that differ between two
    /// recordings of the same call (ids, times) are under `volatile`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        let mut put = |key: &str, value: Value| {
            let empty = match &value {
                Value::Null => true,
                Value::Object(map) => map.is_empty(),
                Value::Array(items) => items.is_empty(),
                Value::String(text) => text.is_empty(),
                _ => false,
            };
            if !empty {
                object.insert(key.to_owned(), value);
            }
        };
        put("provider", json!(self.provider));
        put("api", json!(self.shape.name()));
        put("model", json!(self.model()));
        if self.model_requested.as_deref() != self.model() {
            put("model_requested", json!(self.model_requested));
        }
        put("sampling", Value::Object(self.sampling.clone()));
        put("stream", json!(self.stream));
        if self.complete == Some(false) {
            put("cut_short", json!(true));
        }
        put("usage", usage(&self.usage));
        match self.finish_reasons.as_slice() {
            [one] => put("finish_reason", json!(one)),
            several => put("finish_reason", json!(several)),
        }
        let calls = self.tool_calls.iter().map(call).collect();
        put("tool_calls", Value::Array(calls));
        if self.tool_calls_more > 0 {
            put("tool_calls_more", json!(self.tool_calls_more));
        }
        put("thinking_bytes", json!(self.thinking_bytes));
        put("refusal", json!(self.refusal));
        put("text", json!(one_line(self.text.head(), PREVIEW_CHARS)));
        if self.text.bytes() > 0 {
            put("text_bytes", json!(self.text.bytes()));
        }
        if let Some(error) = &self.error {
            let mut fields = Map::new();
            for (key, value) in [("type", &error.kind), ("message", &error.message)] {
                if let Some(value) = value {
                    fields.insert(key.to_owned(), json!(value));
                }
            }
            put("error", Value::Object(fields));
        }
        put("tool_errors", json!(self.tool_errors));
        put("unparsed", json!(self.unparsed));
        let mut volatile = Map::new();
        for (key, value) in [
            ("response_id", &self.response_id),
            ("created", &self.created),
            ("system_fingerprint", &self.system_fingerprint),
        ] {
            if let Some(value) = value {
                volatile.insert(key.to_owned(), json!(value));
            }
        }
        if self.tool_calls.iter().any(|call| !call.id.is_empty()) {
            let ids: Vec<&str> = self.tool_calls.iter().map(|call| call.id.as_str()).collect();
            volatile.insert("tool_call_ids".to_owned(), json!(ids));
        }
        put("volatile", Value::Object(volatile));
        Value::Object(object)
    }
}

fn call(call: &ModelToolCall) -> Value {
    let mut fields = Map::new();
    fields.insert("name".to_owned(), json!(call.name));
    fields.insert("arguments".to_owned(), json!(clip(call.arguments.head(), ARGUMENTS_BYTES)));
    if call.arguments.bytes() > ARGUMENTS_BYTES as u64 {
        fields.insert("arguments_bytes".to_owned(), json!(call.arguments.bytes()));
    }
    Value::Object(fields)
}

fn usage(usage: &TokenUsage) -> Value {
    let counts = [
        ("input", usage.input),
        ("output", usage.output),
        ("cached_input", usage.cached_input),
        ("cache_write", usage.cache_write),
        ("reasoning", usage.reasoning),
    ];
    let known = counts.into_iter().filter_map(|(key, count)| Some((key.to_owned(), json!(count?))));
    Value::Object(known.collect())
}
