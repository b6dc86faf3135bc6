//! OTLP/JSON: the protobuf messages in JSON, with ids in hexadecimal digits and enumerations as numbers.
//!
//! Read as leniently as the mapping of protobuf to JSON has it: whatever is left out or null is its default, 64-bit numbers are numbers or texts, unknown keys
//! are passed over. (The derived reading of opentelemetry-proto refuses nulls, empty arrays that are left out, and NaN.) An id that is no
//! hexadecimal gives an id of a wrong length, so that only its span is refused. Doubles are read from their source text, to the bit.

use std::fmt;
use std::marker::PhantomData;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, EntityRef, InstrumentationScope, KeyValue, KeyValueList,
};
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
/// Length of an id that was none.
const NO_ID: [u8; 1] = [0];

pub(super) fn read(body: &[u8]) -> serde_json::Result<ExportTraceServiceRequest> {
    Ok(serde_json::from_slice::<Object<Request>>(body)?.0.into())
}

/// Declares a message as it stands in JSON, and how it becomes the one of protobuf.
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

message!(Request => ExportTraceServiceRequest { resource_spans: Many<OfResource> });
message!(OfResource => ResourceSpans { resource: One<Res>, scope_spans: Many<OfScope>, schema_url: Text });
message!(Res => Resource { attributes: Many<Pair>, dropped_attributes_count: Small, entity_refs: Many<Entity> });
message!(OfScope => ScopeSpans { scope: One<Scope>, spans: Many<OneSpan>, schema_url: Text });
message!(Scope => InstrumentationScope {
    name: Text, version: Text, attributes: Many<Pair>, dropped_attributes_count: Small,
});
message!(OneSpan => Span {
    trace_id: Id, span_id: Id, trace_state: Text, parent_span_id: Id, flags: Small, name: Text, kind: Kind,
    start_time_unix_nano: Big, end_time_unix_nano: Big, attributes: Many<Pair>, dropped_attributes_count: Small,
    events: Many<OneEvent>, dropped_events_count: Small, links: Many<OneLink>, dropped_links_count: Small,
    status: One<OneStatus>,
});
message!(OneEvent => Event {
    time_unix_nano: Big, name: Text, attributes: Many<Pair>, dropped_attributes_count: Small,
});
message!(OneLink => Link {
    trace_id: Id, span_id: Id, trace_state: Text, attributes: Many<Pair>, dropped_attributes_count: Small,
    flags: Small,
});
message!(OneStatus => Status { message: Text, code: Code });
message!(Pair => KeyValue { key: Text, value: One<Any> } else KeyValue::default());
message!(Values => ArrayValue { values: Many<Any> });
message!(Pairs => KeyValueList { values: Many<Pair> });

#[derive(Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Entity {
    #[serde(deserialize_with = "or_default")]
    schema_url: Text,
    #[serde(deserialize_with = "or_default", rename = "type")]
    kind: Text,
    #[serde(deserialize_with = "or_default")]
    id_keys: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    description_keys: Vec<String>,
}

impl From<Entity> for EntityRef {
    fn from(from: Entity) -> Self {
        let Entity { schema_url, kind, id_keys, description_keys } = from;
        Self { schema_url: schema_url.get(), r#type: kind.get(), id_keys, description_keys }
    }
}

#[derive(Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Any {
    string_value: Option<String>,
    bool_value: Option<bool>,
    int_value: Option<Int>,
    double_value: Option<Double>,
    array_value: Option<Object<Values>>,
    kvlist_value: Option<Object<Pairs>>,
    bytes_value: Option<Bytes>,
}

impl From<Any> for AnyValue {
    fn from(from: Any) -> Self {
        let value = from.string_value.map(Value::StringValue);
        let value = value.or_else(|| from.bool_value.map(Value::BoolValue));
        let value = value.or_else(|| from.int_value.map(|int| Value::IntValue(int.0)));
        let value = value.or_else(|| from.double_value.map(|double| Value::DoubleValue(double.0)));
        let value = value.or_else(|| from.array_value.map(|values| Value::ArrayValue(values.0.into())));
        let value = value.or_else(|| from.kvlist_value.map(|pairs| Value::KvlistValue(pairs.0.into())));
        Self { value: value.or_else(|| from.bytes_value.map(|bytes| Value::BytesValue(bytes.0))) }
    }
}

/// What a field of JSON is in protobuf.
trait Get<T> {
    fn get(self) -> T;
}

type Text = String;

impl Get<String> for String {
    fn get(self) -> String {
        self
    }
}

/// A message. What is derived would take an array for one, too, field by field.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Fields(PhantomData)).map(Self)
    }
}

struct Fields<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, fields: M) -> Result<T, M::Error> {
        T::deserialize(MapAccessDeserializer::new(fields))
    }
}

/// Messages of a list.
struct Many<T>(Vec<T>);

impl<T> Default for Many<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Many<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let items: Vec<Object<T>> = Vec::deserialize(from)?;
        Ok(Self(items.into_iter().map(|item| item.0).collect()))
    }
}

impl<T, I: From<T>> Get<Vec<I>> for Many<T> {
    fn get(self) -> Vec<I> {
        self.0.into_iter().map(I::from).collect()
    }
}

/// A message that may be missing.
struct One<T>(Option<T>);

impl<T> Default for One<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for One<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Object::deserialize(from).map(|message| Self(Some(message.0)))
    }
}

impl<T, I: From<T>> Get<Option<I>> for One<T> {
    fn get(self) -> Option<I> {
        self.0.map(I::from)
    }
}

/// A field read from its source text.
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
    Code(i32) = |text| text.parse().ok().or_else(|| Some(StatusCode::from_str_name(text)? as i32)),
    "a status code is a number"
);

fn double(text: &str) -> Option<f64> {
    match text {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        // What Rust reads besides, `inf` and `nan`, are no numbers of JSON.
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
