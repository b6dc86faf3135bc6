//! Spans, resources and scopes as OTLP/JSON: complete, in the form that OpenTelemetry's own tools read.
//! Fields with their default value are omitted.
//!
//! Encoded directly from the messages: an intermediate tree of JSON values would take hundreds of bytes per
//! value.

use annals_text::hex::encode;
use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Held;
use opentelemetry_proto::tonic::common::v1::{AnyValue, EntityRef, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link};
use opentelemetry_proto::tonic::trace::v1::{Span, Status};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// Serialises a message as OTLP/JSON.
#[derive(Debug, Clone, Copy)]
pub(super) struct Otlp<'a, T: ?Sized>(pub(super) &'a T);

/// A message as JSON text.
pub(super) fn to_raw_json<T>(message: &T) -> Box<RawValue>
where
    for<'a> Otlp<'a, T>: Serialize,
{
    // Keys are strings and numbers are finite, so this cannot fail.
    serde_json::value::to_raw_value(&Otlp(message)).unwrap_or_default()
}

/// A JSON object that omits default values.
struct Fields<S: Serializer>(S::SerializeMap);

impl<S: Serializer> Fields<S> {
    fn new(serializer: S) -> Result<Self, S::Error> {
        serializer.serialize_map(None).map(Self)
    }

    fn put(&mut self, key: &str, value: impl Serialize) -> Result<(), S::Error> {
        self.0.serialize_entry(key, &value)
    }

    fn text(&mut self, key: &str, text: &str) -> Result<(), S::Error> {
        if text.is_empty() { Ok(()) } else { self.put(key, text) }
    }

    fn number(&mut self, key: &str, number: impl Into<i64>) -> Result<(), S::Error> {
        match number.into() {
            0 => Ok(()),
            number => self.put(key, number),
        }
    }

    fn list<'a, T>(&mut self, key: &str, items: &'a [T]) -> Result<(), S::Error>
    where
        Otlp<'a, [T]>: Serialize,
    {
        if items.is_empty() { Ok(()) } else { self.put(key, Otlp(items)) }
    }

    fn end(self) -> Result<S::Ok, S::Error> {
        self.0.end()
    }
}

macro_rules! otlp {
    ($type:ty, |$message:ident, $fields:ident| $body:block) => {
        impl Serialize for Otlp<'_, $type> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let $message = self.0;
                let mut $fields = Fields::<S>::new(serializer)?;
                $body
                $fields.end()
            }
        }

        impl Serialize for Otlp<'_, [$type]> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_seq(self.0.iter().map(Otlp))
            }
        }
    };
}

otlp!(AnyValue, |any, fields| {
    match &any.value {
        None => {}
        Some(Held::StringValue(text)) => fields.put("stringValue", text)?,
        Some(Held::BoolValue(truth)) => fields.put("boolValue", truth)?,
        Some(Held::IntValue(int)) => fields.put("intValue", int.to_string())?,
        // JSON has no NaN or infinity; OTLP/JSON represents them as strings.
        Some(Held::DoubleValue(double)) if double.is_nan() => fields.put("doubleValue", "NaN")?,
        Some(Held::DoubleValue(f64::INFINITY)) => fields.put("doubleValue", "Infinity")?,
        Some(Held::DoubleValue(f64::NEG_INFINITY)) => fields.put("doubleValue", "-Infinity")?,
        Some(Held::DoubleValue(double)) => fields.put("doubleValue", double)?,
        Some(Held::BytesValue(bytes)) => fields.put("bytesValue", STANDARD.encode(bytes))?,
        Some(Held::ArrayValue(array)) => fields.put("arrayValue", ValuesField(&array.values))?,
        Some(Held::KvlistValue(list)) => fields.put("kvlistValue", ValuesField(&list.values))?,
        Some(Held::StringValueStrindex(index)) => fields.put("stringValueStrindex", index)?,
    }
});

/// The single field of arrays and lists; written even if empty.
struct ValuesField<'a, T>(&'a [T]);

impl<'a, T> Serialize for ValuesField<'a, T>
where
    Otlp<'a, [T]>: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("values", &Otlp(self.0))?;
        map.end()
    }
}

otlp!(KeyValue, |pair, fields| {
    fields.put("key", &pair.key)?;
    if let Some(value) = &pair.value {
        fields.put("value", Otlp(value))?;
    }
});

otlp!(EntityRef, |entity, fields| {
    fields.text("schemaUrl", &entity.schema_url)?;
    fields.text("type", &entity.r#type)?;
    fields.put("idKeys", &entity.id_keys)?;
    fields.put("descriptionKeys", &entity.description_keys)?;
});

otlp!(Resource, |resource, fields| {
    fields.list("attributes", &resource.attributes)?;
    fields.number("droppedAttributesCount", resource.dropped_attributes_count)?;
    fields.list("entityRefs", &resource.entity_refs)?;
});

otlp!(InstrumentationScope, |scope, fields| {
    fields.text("name", &scope.name)?;
    fields.text("version", &scope.version)?;
    fields.list("attributes", &scope.attributes)?;
    fields.number("droppedAttributesCount", scope.dropped_attributes_count)?;
});

otlp!(Status, |status, fields| {
    fields.text("message", &status.message)?;
    fields.number("code", status.code)?;
});

otlp!(Link, |link, fields| {
    fields.text("traceId", &encode(&link.trace_id))?;
    fields.text("spanId", &encode(&link.span_id))?;
    fields.text("traceState", &link.trace_state)?;
    fields.list("attributes", &link.attributes)?;
    fields.number("droppedAttributesCount", link.dropped_attributes_count)?;
    fields.number("flags", link.flags)?;
});

/// An event; without its attributes if they are part of a body (`true`).
struct EventJson<'a>(&'a Event, bool);

impl Serialize for EventJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(event, taken) = self;
        let mut fields = Fields::<S>::new(serializer)?;
        fields.put("timeUnixNano", event.time_unix_nano.to_string())?;
        fields.text("name", &event.name)?;
        fields.list("attributes", if *taken { &[] } else { &event.attributes })?;
        fields.number("droppedAttributesCount", event.dropped_attributes_count)?;
        fields.end()
    }
}

/// A span without the attributes and event attributes, given by index, that are part of a body.
#[derive(Debug)]
pub(super) struct SpanJson<'a> {
    pub(super) span: &'a Span,
    pub(super) attributes: BTreeSet<usize>,
    pub(super) events: BTreeSet<usize>,
}

impl Serialize for SpanJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let span = self.span;
        let mut fields = Fields::<S>::new(serializer)?;
        fields.text("traceId", &encode(&span.trace_id))?;
        fields.text("spanId", &encode(&span.span_id))?;
        fields.text("traceState", &span.trace_state)?;
        fields.text("parentSpanId", &encode(&span.parent_span_id))?;
        fields.number("flags", span.flags)?;
        fields.text("name", &span.name)?;
        fields.number("kind", span.kind)?;
        fields.put("startTimeUnixNano", span.start_time_unix_nano.to_string())?;
        fields.put("endTimeUnixNano", span.end_time_unix_nano.to_string())?;
        fields.put("attributes", RemainingAttributes { of: &span.attributes, without: &self.attributes })?;
        fields.number("droppedAttributesCount", span.dropped_attributes_count)?;
        if !span.events.is_empty() {
            let events = span.events.iter().enumerate();
            let events = events.map(|(at, event)| EventJson(event, self.events.contains(&at)));
            fields.put("events", OnceSequence(std::cell::Cell::new(Some(events))))?;
        }
        fields.number("droppedEventsCount", span.dropped_events_count)?;
        fields.list("links", &span.links)?;
        fields.number("droppedLinksCount", span.dropped_links_count)?;
        if let Some(status) = &span.status {
            fields.put("status", Otlp(status))?;
        }
        fields.end()
    }
}

struct RemainingAttributes<'a> {
    of: &'a [KeyValue],
    without: &'a BTreeSet<usize>,
}

impl Serialize for RemainingAttributes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let left = self.of.iter().enumerate().filter(|(at, _)| !self.without.contains(at));
        serializer.collect_seq(left.map(|(_, pair)| Otlp(pair)))
    }
}

/// Items that can be serialised once.
struct OnceSequence<I>(std::cell::Cell<Option<I>>);

impl<I: Iterator<Item: Serialize>> Serialize for OnceSequence<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.take().into_iter().flatten())
    }
}

/// Attributes by name: a text as a string, any other value as OTLP/JSON.
pub(super) struct AttributesByName<'a>(pub(super) &'a [&'a KeyValue]);

impl Serialize for AttributesByName<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|pair| (&pair.key, BareValue(pair.value.as_ref()))))
    }
}

struct BareValue<'a>(Option<&'a AnyValue>);

impl Serialize for BareValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.map(|any| (&any.value, any)) {
            Some((Some(Held::StringValue(text)), _)) => serializer.serialize_str(text),
            Some((_, any)) => Otlp(any).serialize(serializer),
            None => serializer.serialize_unit(),
        }
    }
}

/// A value as plain JSON, for searching. Bytes become null; `left` counts down the values that may still be
/// examined.
pub(super) fn to_plain_json(value: &AnyValue, left: &mut usize) -> Value {
    if *left == 0 {
        return Value::Null;
    }
    *left -= 1;
    match &value.value {
        Some(Held::StringValue(text)) => json!(text),
        Some(Held::BoolValue(truth)) => json!(truth),
        Some(Held::IntValue(int)) => json!(int),
        Some(Held::DoubleValue(double)) => json!(double),
        Some(Held::ArrayValue(array)) => {
            let few = array.values.len().min(*left);
            array.values.iter().take(few).map(|value| to_plain_json(value, left)).collect()
        }
        Some(Held::KvlistValue(list)) => {
            let few = list.values.len().min(*left);
            let fields = list.values.iter().take(few);
            let fields =
                fields.filter_map(|pair| Some((pair.key.clone(), to_plain_json(pair.value.as_ref()?, left))));
            Value::Object(fields.collect())
        }
        Some(Held::BytesValue(_) | Held::StringValueStrindex(_)) | None => Value::Null,
    }
}
