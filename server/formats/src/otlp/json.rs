//! OTLP/JSON: the protobuf messages as JSON, with hexadecimal ids and numeric enumerations.
//!
//! Decoding is lenient, as in protobuf's JSON mapping: an absent or null field has its default, 64-bit
//! numbers may be numbers or strings, unknown keys are ignored. The derived decoder of opentelemetry-proto
//! refuses nulls, absent arrays, and NaN. An id that is not hexadecimal becomes an id of a wrong length, so
//! only its span is rejected. Doubles are parsed from their source text and are exact to the bit.

use std::fmt;
use std::marker::PhantomData;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, EntityRef, InstrumentationScope, KeyValue, KeyValueList,
};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Both alphabets, with or without padding.
const BASE64: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
/// Stands for an invalid id; no valid id has this length.
const NO_ID: [u8; 1] = [0];

pub(super) fn parse_request(body: &[u8]) -> serde_json::Result<ExportTraceServiceRequest> {
    Ok(serde_json::from_slice::<MessageObject<Request>>(body)?.0.into())
}

pub(super) fn parse_logs(body: &[u8]) -> serde_json::Result<ExportLogsServiceRequest> {
    Ok(serde_json::from_slice::<MessageObject<LogRequest>>(body)?.0.into())
}

/// Declares a JSON message and its conversion to the protobuf message.
macro_rules! message {
    ($name:ident => $into:ident { $($field:ident: $type:ty),* $(,)? } $(else $rest:expr)?) => {
        #[derive(Default, serde::Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        struct $name {
            $(#[serde(deserialize_with = "or_default")] $field: $type,)*
        }

        impl From<$name> for $into {
            fn from(from: $name) -> Self {
                $into { $($field: from.$field.get(),)* $(..$rest)? }
            }
        }
    };
}

message!(Request => ExportTraceServiceRequest { resource_spans: MessageList<OfResource> });
message!(OfResource => ResourceSpans { resource: OptionalMessage<Res>, scope_spans: MessageList<OfScope>, schema_url: JsonText });
message!(Res => Resource { attributes: MessageList<Pair>, dropped_attributes_count: Small, entity_refs: MessageList<EntityJson> });
message!(OfScope => ScopeSpans { scope: OptionalMessage<Scope>, spans: MessageList<OneSpan>, schema_url: JsonText });
message!(Scope => InstrumentationScope {
    name: JsonText, version: JsonText, attributes: MessageList<Pair>, dropped_attributes_count: Small,
});
message!(OneSpan => Span {
    trace_id: Id, span_id: Id, trace_state: JsonText, parent_span_id: Id, flags: Small, name: JsonText, kind: Kind,
    start_time_unix_nano: Big, end_time_unix_nano: Big, attributes: MessageList<Pair>, dropped_attributes_count: Small,
    events: MessageList<OneEvent>, dropped_events_count: Small, links: MessageList<OneLink>, dropped_links_count: Small,
    status: OptionalMessage<OneStatus>,
});
message!(LogRequest => ExportLogsServiceRequest { resource_logs: MessageList<OfLogResource> });
message!(OfLogResource => ResourceLogs {
    resource: OptionalMessage<Res>, scope_logs: MessageList<OfLogScope>, schema_url: JsonText,
});
message!(OfLogScope => ScopeLogs {
    scope: OptionalMessage<Scope>, log_records: MessageList<OneRecord>, schema_url: JsonText,
});
message!(OneRecord => LogRecord {
    time_unix_nano: Big, observed_time_unix_nano: Big, severity_number: LogSeverity, severity_text: JsonText,
    body: OptionalMessage<AnyValueJson>, attributes: MessageList<Pair>, dropped_attributes_count: Small, flags: Small,
    trace_id: Id, span_id: Id, event_name: JsonText,
});
message!(OneEvent => Event {
    time_unix_nano: Big, name: JsonText, attributes: MessageList<Pair>, dropped_attributes_count: Small,
});
message!(OneLink => Link {
    trace_id: Id, span_id: Id, trace_state: JsonText, attributes: MessageList<Pair>, dropped_attributes_count: Small,
    flags: Small,
});
message!(OneStatus => Status { message: JsonText, code: Code });
message!(Pair => KeyValue { key: JsonText, value: OptionalMessage<AnyValueJson> } else KeyValue::default());
message!(Values => ArrayValue { values: MessageList<AnyValueJson> });
message!(Pairs => KeyValueList { values: MessageList<Pair> });

#[derive(Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct EntityJson {
    #[serde(deserialize_with = "or_default")]
    schema_url: JsonText,
    #[serde(deserialize_with = "or_default", rename = "type")]
    kind: JsonText,
    #[serde(deserialize_with = "or_default")]
    id_keys: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    description_keys: Vec<String>,
}

impl From<EntityJson> for EntityRef {
    fn from(from: EntityJson) -> Self {
        let EntityJson { schema_url, kind, id_keys, description_keys } = from;
        Self { schema_url: schema_url.get(), r#type: kind.get(), id_keys, description_keys }
    }
}

#[derive(Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AnyValueJson {
    string_value: Option<String>,
    bool_value: Option<bool>,
    int_value: Option<Int>,
    double_value: Option<Double>,
    array_value: Option<MessageObject<Values>>,
    kvlist_value: Option<MessageObject<Pairs>>,
    bytes_value: Option<Bytes>,
}

impl From<AnyValueJson> for AnyValue {
    fn from(from: AnyValueJson) -> Self {
        let value = from.string_value.map(Value::StringValue);
        let value = value.or_else(|| from.bool_value.map(Value::BoolValue));
        let value = value.or_else(|| from.int_value.map(|int| Value::IntValue(int.0)));
        let value = value.or_else(|| from.double_value.map(|double| Value::DoubleValue(double.0)));
        let value = value.or_else(|| from.array_value.map(|values| Value::ArrayValue(values.0.into())));
        let value = value.or_else(|| from.kvlist_value.map(|pairs| Value::KvlistValue(pairs.0.into())));
        Self { value: value.or_else(|| from.bytes_value.map(|bytes| Value::BytesValue(bytes.0))) }
    }
}

/// Converts a JSON field to its protobuf value.
trait Get<T> {
    fn get(self) -> T;
}

type JsonText = String;

impl Get<String> for String {
    fn get(self) -> String {
        self
    }
}

/// A message. The derived decoder would also accept an array of the fields.
struct MessageObject<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for MessageObject<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(MessageVisitor(PhantomData)).map(Self)
    }
}

struct MessageVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for MessageVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, fields: M) -> Result<T, M::Error> {
        T::deserialize(MapAccessDeserializer::new(fields))
    }
}

/// A list of messages.
struct MessageList<T>(Vec<T>);

impl<T> Default for MessageList<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for MessageList<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let items: Vec<MessageObject<T>> = Vec::deserialize(from)?;
        Ok(Self(items.into_iter().map(|item| item.0).collect()))
    }
}

impl<T, I: From<T>> Get<Vec<I>> for MessageList<T> {
    fn get(self) -> Vec<I> {
        self.0.into_iter().map(I::from).collect()
    }
}

/// A message that may be absent.
struct OptionalMessage<T>(Option<T>);

impl<T> Default for OptionalMessage<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OptionalMessage<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        MessageObject::deserialize(from).map(|message| Self(Some(message.0)))
    }
}

impl<T, I: From<T>> Get<Option<I>> for OptionalMessage<T> {
    fn get(self) -> Option<I> {
        self.0.map(I::from)
    }
}

/// Declares a field that is parsed from its source text.
macro_rules! scalar {
    ($name:ident($type:ty) = $read:expr, $wanted:literal) => {
        #[derive(Default)]
        struct $name($type);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let source = <&RawValue>::deserialize(from)?.get();
                let text = serde_json::from_str::<String>(source).ok();
                let read: fn(&str) -> Option<$type> = $read;
                read(text.as_deref().unwrap_or(source)).map(Self).ok_or_else(|| D::Error::custom($wanted))
            }
        }

        impl Get<$type> for $name {
            fn get(self) -> $type {
                self.0
            }
        }
    };
}

scalar!(Small(u32) = |text| text.parse().ok(), "a number from 0 to 4294967295 is wanted");
scalar!(Big(u64) = |text| text.parse().ok(), "a number from 0 to 18446744073709551615 is wanted");
scalar!(Int(i64) = |text| text.parse().ok(), "a 64-bit integer is wanted");
scalar!(Double(f64) = double, "a number, or \"NaN\", \"Infinity\" or \"-Infinity\", is wanted");
scalar!(Id(Vec<u8>) = |text| Some(annals_text::hex::decode(text).unwrap_or_else(|| NO_ID.to_vec())), "an id is wanted");
scalar!(Bytes(Vec<u8>) = bytes, "base64 is wanted");
scalar!(
    Kind(i32) = |text| text.parse().ok().or_else(|| Some(SpanKind::from_str_name(text)? as i32)),
    "a span's kind is a number"
);
scalar!(
    LogSeverity(i32) = |text| text.parse().ok().or_else(|| Some(SeverityNumber::from_str_name(text)? as i32)),
    "a severity is a number"
);
scalar!(
    Code(i32) = |text| text.parse().ok().or_else(|| Some(StatusCode::from_str_name(text)? as i32)),
    "a status code is a number"
);

fn double(text: &str) -> Option<f64> {
    match text {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        // Rust also parses `inf` and `nan`, which are not JSON numbers.
        _ if text.bytes().any(|byte| byte.is_ascii_alphabetic() && !byte.eq_ignore_ascii_case(&b'e')) => None,
        _ => text.parse().ok().filter(|double: &f64| double.is_finite()),
    }
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    let alphabet = if text.contains(['-', '_']) { &alphabet::URL_SAFE } else { &alphabet::STANDARD };
    GeneralPurpose::new(alphabet, BASE64).decode(text).ok()
}

fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}
