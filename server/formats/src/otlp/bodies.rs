//! A frame's input and output: the texts that a span recorded.
//!
//! A single text becomes its exact bytes. Several attributes, or one that is not text, become a JSON object
//! by name: a text is a JSON string, any other value its OTLP/JSON value (`{"intValue":"5"}`). Events become
//! a JSON array of `{"name", "attributes"}` with attributes in the same form. Content that is part of a body
//! is stored nowhere else.

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Held;
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::{Value, json};

use super::conventions::{BodyAttributes, INPUT_EVENTS, INPUTS, OUTPUT_EVENTS, OUTPUTS};
use super::value::AttributesByName;

/// A body, and the attributes or events that it was made of.
#[derive(Debug, Default)]
pub(super) struct SpanBody {
    pub(super) bytes: Vec<u8>,
    /// For the metadata: the attribute's name if the body is one text, else an array of names; null if there
    /// is no body.
    pub(super) made_of: Value,
    /// Indexes into the span's attributes and events.
    pub(super) attributes: Vec<usize>,
    pub(super) events: Vec<usize>,
}

/// The input and output of a span.
pub(super) fn span_bodies(span: &Span) -> (SpanBody, SpanBody) {
    (select_body(span, &INPUTS, INPUT_EVENTS), select_body(span, &OUTPUTS, OUTPUT_EVENTS))
}

fn select_body(span: &Span, takes: &[BodyAttributes], events: &[&str]) -> SpanBody {
    for take in takes {
        let places = places(&span.attributes, *take);
        if !places.is_empty() {
            return body_from_attributes(span, places);
        }
    }
    let at: Vec<usize> = (0..span.events.len())
        .filter(|at| {
            events.contains(&span.events[*at].name.as_str()) && !span.events[*at].attributes.is_empty()
        })
        .collect();
    if at.is_empty() {
        return SpanBody::default();
    }
    body_from_events(span, at)
}

/// Indexes of the attributes of a body; the first of each name.
fn places(attributes: &[KeyValue], take: BodyAttributes) -> Vec<usize> {
    let is_there = |at: &usize| attributes[*at].value.as_ref().is_some_and(|value| value.value.is_some());
    match take {
        BodyAttributes::Names(names) => names
            .iter()
            .filter_map(|name| attributes.iter().position(|pair| pair.key == *name))
            .filter(is_there)
            .collect(),
        BodyAttributes::Prefixes(beginnings) => {
            let begins = |at: &usize| beginnings.iter().any(|with| attributes[*at].key.starts_with(with));
            let mut seen = std::collections::HashSet::new();
            (0..attributes.len())
                .filter(begins)
                .filter(is_there)
                .filter(|at| seen.insert(attributes[*at].key.as_str()))
                .collect()
        }
    }
}

fn body_from_attributes(span: &Span, places: Vec<usize>) -> SpanBody {
    if let [place] = places.as_slice() {
        let KeyValue { key, value, .. } = &span.attributes[*place];
        if let Some(Held::StringValue(text)) = value.as_ref().and_then(|value| value.value.as_ref()) {
            let (bytes, made_of) = (text.clone().into_bytes(), json!(key));
            return SpanBody { bytes, made_of, attributes: places, events: Vec::new() };
        }
    }
    let taken: Vec<&KeyValue> = places.iter().map(|place| &span.attributes[*place]).collect();
    let made_of = taken.iter().map(|pair| json!(pair.key)).collect();
    let bytes = serde_json::to_vec(&AttributesByName(&taken)).unwrap_or_default();
    SpanBody { bytes, made_of, attributes: places, events: Vec::new() }
}

fn body_from_events(span: &Span, events: Vec<usize>) -> SpanBody {
    let mut bytes = vec![b'['];
    for (number, place) in events.iter().enumerate() {
        if number > 0 {
            bytes.push(b',');
        }
        let event = &span.events[*place];
        let attributes = first_by_name(&event.attributes);
        let told = SpanEventBody { name: &event.name, attributes: AttributesByName(&attributes) };
        bytes.extend(serde_json::to_vec(&told).unwrap_or_default());
    }
    bytes.push(b']');
    let mut names: Vec<&str> = events.iter().map(|place| span.events[*place].name.as_str()).collect();
    names.dedup();
    // An event that repeats an attribute name is kept in the metadata as well, because the array holds only
    // the first value.
    let events = events.iter().copied().filter(|place| is_plain(&span.events[*place].attributes)).collect();
    let made_of = names.into_iter().map(|name| json!(name)).collect();
    SpanBody { bytes, made_of, attributes: Vec::new(), events }
}

fn is_plain(attributes: &[KeyValue]) -> bool {
    let mut seen = std::collections::HashSet::new();
    attributes.iter().all(|pair| pair.value.is_some() && seen.insert(pair.key.as_str()))
}

/// The first attribute of each name.
fn first_by_name(attributes: &[KeyValue]) -> Vec<&KeyValue> {
    let mut seen = std::collections::HashSet::new();
    attributes.iter().filter(|pair| seen.insert(pair.key.as_str())).collect()
}

#[derive(serde::Serialize)]
struct SpanEventBody<'a> {
    name: &'a str,
    attributes: AttributesByName<'a>,
}
