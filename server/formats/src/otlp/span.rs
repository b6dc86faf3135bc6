//! A span as a frame, without its edges, which depend on the trace.

use std::sync::Arc;

use annals::{Component, Frame, Severity};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::bodies;
use super::conventions;
use super::reply::TraceReceipt;
use super::span_facts::{SpanFacts, is_error};
use super::value;

/// Maximum number of spans in a request.
pub(super) const SPANS_MAX: usize = 8192;
/// Maximum size of a resource and scope as JSON, in bytes: each frame stores its own copy.
pub(super) const RESOURCE_BYTES_MAX: usize = 64 << 10;
/// Maximum number of links that become edges; the metadata keeps all links.
const LINKS_MAX: usize = 128;
/// Maximum length of an agent's, model's or conversation's name, in bytes.
const WORD_BYTES_MAX: usize = 512;

pub(super) type TraceId = [u8; 16];
pub(super) type SpanId = [u8; 8];

/// A span mapped to the fields of a frame.
#[derive(Debug)]
pub(super) struct MappedSpan {
    pub(super) trace: TraceId,
    pub(super) span: SpanId,
    /// `None` for a root span.
    pub(super) parent: Option<SpanId>,
    pub(super) links: Vec<(TraceId, SpanId)>,
    pub(super) facts: SpanFacts,
    /// Nanoseconds since 1970.
    pub(super) started_ns: u64,
    pub(super) ended_ns: u64,
    pub(super) error: bool,
    pub(super) agent: Option<String>,
    pub(super) model: Option<String>,
    pub(super) conversation: Option<String>,
    pub(super) component: Component,
    pub(super) input: Vec<u8>,
    pub(super) output: Vec<u8>,
    /// How many spans, or log records, of the request it holds.
    pub(super) count: usize,
    ingested: Value,
    /// The span as JSON, without the content of input and output.
    span_json: Box<RawValue>,
    /// Its resource and scope.
    origin: Arc<SpanOrigin>,
}

/// The resource and scope of spans.
#[derive(Debug)]
pub(super) struct SpanOrigin {
    resource: Arc<SpanResource>,
    scope: Box<RawValue>,
    schema_url: String,
}

#[derive(Debug)]
pub(super) struct SpanResource {
    json: Box<RawValue>,
    schema_url: String,
    /// The name of the service.
    service: Option<String>,
}

impl SpanResource {
    pub(super) fn new(resource: Option<&Resource>, schema_url: String) -> Self {
        Self {
            service: resource.and_then(|of| short_text(&of.attributes, conventions::SERVICE)),
            json: resource.map(value::to_raw_json).unwrap_or_default(),
            schema_url,
        }
    }
}

impl SpanOrigin {
    pub(super) fn new(
        resource: Arc<SpanResource>,
        scope: Option<&InstrumentationScope>,
        schema_url: String,
    ) -> Self {
        Self { resource, scope: scope.map(value::to_raw_json).unwrap_or_default(), schema_url }
    }

    pub(super) fn bytes(&self) -> usize {
        let SpanResource { json: told, schema_url, .. } = &*self.resource;
        told.get().len() + schema_url.len() + self.scope.get().len() + self.schema_url.len()
    }
}

/// A frame's metadata; the field order is the order in which it is written.
#[derive(Serialize)]
struct SpanFrameMetadata<'a> {
    #[serde(flatten)]
    facts: &'a Map<String, Value>,
    ingested: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    edges: Option<Value>,
    volatile: SpanVolatileMetadata<'a>,
}

#[derive(Serialize)]
struct SpanVolatileMetadata<'a> {
    #[serde(flatten)]
    facts: &'a Map<String, Value>,
    otlp: SpanSourceJson<'a>,
}

#[derive(Serialize)]
struct SpanSourceJson<'a> {
    resource: &'a RawValue,
    #[serde(skip_serializing_if = "str::is_empty")]
    resource_schema_url: &'a str,
    scope: &'a RawValue,
    #[serde(skip_serializing_if = "str::is_empty")]
    scope_schema_url: &'a str,
    span: &'a RawValue,
}

impl MappedSpan {
    /// The name of the service that sent the span.
    pub(super) fn service(&self) -> Option<&String> {
        self.origin.resource.service.as_ref()
    }

    /// Marks it as made of log records. Their usage is left out, because the span of the call has it, too: it
    /// would count twice.
    pub(super) fn mark_as_logs(&mut self, count: usize) {
        self.count = count;
        self.facts.stable.remove("usage");
        if let Value::Object(ingested) = &mut self.ingested {
            ingested.insert("signal".to_owned(), json!("logs"));
        }
    }

    /// The frame, with these edges in its metadata.
    pub(super) fn frame(self, parent: Option<u32>, edges: Option<Value>) -> annals::Result<Frame> {
        let Self { facts, origin, .. } = &self;
        let otlp = SpanSourceJson {
            resource: &origin.resource.json,
            resource_schema_url: &origin.resource.schema_url,
            scope: &origin.scope,
            scope_schema_url: &origin.schema_url,
            span: &self.span_json,
        };
        let volatile = SpanVolatileMetadata { facts: &facts.volatile, otlp };
        let metadata = SpanFrameMetadata { facts: &facts.stable, ingested: &self.ingested, edges, volatile };
        let metadata = serde_json::to_vec(&metadata).map_err(|error| {
            annals::Error::with_source(annals::ErrorKind::Bug, "a span has no JSON", error)
        })?;
        let mut frame = Frame::new(self.component, self.input, self.output).metadata(metadata);
        frame.parent = parent;
        // 0 is the protobuf default: no start time was sent.
        frame.started_ns = (self.started_ns > 0).then_some(self.started_ns);
        frame.duration_ns = self.ended_ns.saturating_sub(self.started_ns);
        (frame.error, frame.severity) =
            (self.error, if self.error { Severity::Flagged } else { Severity::Normal });
        Ok(frame)
    }
}

/// Maps the spans of a request one by one; rejected spans are counted in `taken`.
pub(super) fn map_spans(
    request: ExportTraceServiceRequest,
    taken: &mut TraceReceipt,
    mut take: impl FnMut(MappedSpan),
) {
    let mut seen = 0;
    for ResourceSpans { resource, scope_spans, schema_url } in request.resource_spans {
        let resource = Arc::new(SpanResource::new(resource.as_ref(), schema_url));
        for ScopeSpans { scope, spans, schema_url } in scope_spans {
            let origin = Arc::new(SpanOrigin::new(resource.clone(), scope.as_ref(), schema_url));
            let bytes = origin.bytes();
            for span in spans {
                seen += 1;
                if seen > SPANS_MAX {
                    taken.reject(1, &format!("a request has at most {SPANS_MAX} spans"));
                    continue;
                }
                if bytes > RESOURCE_BYTES_MAX {
                    taken.reject(
                        1,
                        &format!("a resource and a scope have at most {RESOURCE_BYTES_MAX} bytes"),
                    );
                    continue;
                }
                match map_span(&span, &origin) {
                    Ok(mapped) => take(mapped),
                    Err(why) => taken.reject(1, why),
                }
            }
        }
    }
}

pub(super) fn map_span(span: &Span, origin: &Arc<SpanOrigin>) -> Result<MappedSpan, &'static str> {
    let trace = nonzero_id(&span.trace_id).ok_or("a trace id has 16 bytes, not all of them zero")?;
    let own = nonzero_id(&span.span_id).ok_or("a span id has 8 bytes, not all of them zero")?;
    let parent = match span.parent_span_id.as_slice() {
        // Some senders write zeros for no parent.
        [] | [0, 0, 0, 0, 0, 0, 0, 0] => None,
        bytes => Some(nonzero_id(bytes).ok_or("a parent span id has 8 bytes or none")?),
    };
    let (convention, component) = conventions::classify(span);
    let (input, output) = bodies::span_bodies(span);
    let facts = SpanFacts::new(span, &input, &output, component == Component::Tool);
    let told = value::SpanJson {
        span,
        attributes: input.attributes.iter().chain(&output.attributes).copied().collect(),
        events: input.events.iter().chain(&output.events).copied().collect(),
    };
    let told = serde_json::value::to_raw_value(&told).map_err(|_| "a span has no JSON")?;
    let links =
        span.links.iter().filter_map(|link| Some((nonzero_id(&link.trace_id)?, nonzero_id(&link.span_id)?)));
    let model = [conventions::MODEL_ANSWERED, conventions::MODEL_REQUESTED].concat();
    Ok(MappedSpan {
        trace,
        span: own,
        parent,
        links: links.take(LINKS_MAX).collect(),
        started_ns: span.start_time_unix_nano,
        ended_ns: span.end_time_unix_nano,
        error: is_error(span),
        agent: short_text(&span.attributes, conventions::AGENT),
        ingested: ingested_metadata(span, convention, &input, &output),
        span_json: told,
        origin: origin.clone(),
        model: short_text(&span.attributes, &model),
        conversation: short_text(&span.attributes, conventions::CONVERSATION),
        component,
        input: input.bytes,
        output: output.bytes,
        facts,
        count: 1,
    })
}

/// The `ingested` metadata of a frame.
fn ingested_metadata(
    span: &Span,
    convention: conventions::Convention,
    input: &bodies::SpanBody,
    output: &bodies::SpanBody,
) -> Value {
    let mut fields = Map::new();
    fields.insert("from".to_owned(), json!("otlp"));
    fields.insert("convention".to_owned(), json!(convention.name()));
    fields.insert("name".to_owned(), json!(span.name));
    fields.insert("kind".to_owned(), json!(conventions::kind_name(span)));
    for (key, body) in [("input", input), ("output", output)] {
        if !body.made_of.is_null() {
            fields.insert(key.to_owned(), body.made_of.clone());
        }
    }
    Value::Object(fields)
}

/// An id of `N` bytes that are not all zero.
pub(super) fn nonzero_id<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    <[u8; N]>::try_from(bytes).ok().filter(|id| id.iter().any(|byte| *byte != 0))
}

/// A name without control characters, cut at the length limit, so that a run can be found by it.
fn short_text(
    attributes: &[opentelemetry_proto::tonic::common::v1::KeyValue],
    names: &[&str],
) -> Option<String> {
    let text = conventions::first_text(attributes, names)?;
    let text = text.get(..text.floor_char_boundary(WORD_BYTES_MAX)).unwrap_or_default();
    Some(text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect())
}
