//! Content of model calls that arrives as log records, joined with the trace's spans.
//!
//! Some instrumentations send prompts and answers not in a span's attributes but as log events that name the
//! span. The events of a span in one request become a frame with the span as its parent: events with content
//! in their body are its events, in their order, and an event with content in its attributes is a frame of its
//! own. The frame takes part in the trace as a span does, so all that holds for spans holds for it: it is on
//! disk before the answer, is not stored twice, and waits for its parent.
//!
//! Out of scope: all other log records. They are rejected, and the answer counts them.

use std::sync::Arc;

use annals::Component;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Held;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::Event;
use prost::Message as _;

use super::conventions;
use super::reply::TraceReceipt;
use super::span::{
    MappedSpan, RESOURCE_BYTES_MAX, SPANS_MAX, SpanOrigin, SpanResource, map_span, nonzero_id,
};

/// Names of events with content begin with this.
const GEN_AI: &str = "gen_ai.";
/// The event that has its content in its attributes.
const DETAILS: &str = "gen_ai.client.inference.operation.details";
/// The attribute with an event's name, in records that have no name of their own.
const EVENT_NAME: &str = "event.name";
/// Attributes of an event that hold the fields of its record.
const BODY: &str = "log.body";
const SEVERITY_TEXT: &str = "log.severity_text";
const SEVERITY_NUMBER: &str = "log.severity_number";

/// The records of a span.
struct SpanRecords {
    trace_id: Vec<u8>,
    span_id: Vec<u8>,
    /// Whether the content is in the attributes of the only record.
    is_details: bool,
    records: Vec<LogRecord>,
}

/// Maps the log records of a request to frames of traces; rejected records are counted in `taken`.
pub(super) fn map_logs(
    request: ExportLogsServiceRequest,
    taken: &mut TraceReceipt,
    mut take: impl FnMut(MappedSpan),
) {
    taken.is_logs = true;
    let mut seen = 0;
    for ResourceLogs { resource, scope_logs, schema_url } in request.resource_logs {
        let resource = Arc::new(SpanResource::new(resource.as_ref(), schema_url));
        for ScopeLogs { scope, log_records, schema_url } in scope_logs {
            let origin = Arc::new(SpanOrigin::new(resource.clone(), scope.as_ref(), schema_url));
            let is_too_long = origin.bytes() > RESOURCE_BYTES_MAX;
            for group in group_by_span(log_records, taken) {
                let count = group.records.len();
                seen += 1;
                if seen > SPANS_MAX {
                    taken.reject(count, &format!("a request has events of at most {SPANS_MAX} spans"));
                } else if is_too_long {
                    let why = format!("a resource and a scope have at most {RESOURCE_BYTES_MAX} bytes");
                    taken.reject(count, &why);
                } else {
                    let is_details = group.is_details;
                    match map_span(&group.into_span(), &origin) {
                        Ok(mut mapped) => {
                            mapped.mark_as_logs(count);
                            if !is_details {
                                // Events have no operation; they are about a call of a model.
                                mapped.component = Component::Llm;
                            }
                            take(mapped);
                        }
                        Err(why) => taken.reject(count, why),
                    }
                }
            }
        }
    }
}

/// Groups records by their span, in order of arrival. Rejects those without content or span.
fn group_by_span(records: Vec<LogRecord>, taken: &mut TraceReceipt) -> Vec<SpanRecords> {
    let mut groups: Vec<SpanRecords> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for record in records {
        let name = event_name(&record);
        if !name.starts_with(GEN_AI) {
            taken.reject(1, "only events whose name begins with gen_ai. are kept");
            continue;
        }
        if nonzero_id::<16>(&record.trace_id).is_none() || nonzero_id::<8>(&record.span_id).is_none() {
            taken.reject(1, "an event without a trace id and a span id belongs to no span");
            continue;
        }
        let is_details = name == DETAILS;
        let key = (record.trace_id.clone(), record.span_id.clone());
        if !is_details && let Some(group) = places.get(&key).and_then(|at: &usize| groups.get_mut(*at)) {
            group.records.push(record);
            continue;
        }
        if !is_details {
            places.insert(key.clone(), groups.len());
        }
        groups.push(SpanRecords { trace_id: key.0, span_id: key.1, is_details, records: vec![record] });
    }
    groups
}

fn event_name(record: &LogRecord) -> &str {
    match record.event_name.as_str() {
        "" => conventions::first_text(&record.attributes, &[EVENT_NAME]).unwrap_or_default(),
        name => name,
    }
}

/// The time of a record; the collector's time if the program gave none.
fn time_ns(record: &LogRecord) -> u64 {
    if record.time_unix_nano > 0 { record.time_unix_nano } else { record.observed_time_unix_nano }
}

impl SpanRecords {
    /// A span that holds the records. Its id is a hash of them, so the same records sent again are recognised.
    fn into_span(self) -> Span {
        let mut hash = blake3::Hasher::new();
        self.records.iter().for_each(|record| {
            hash.update(&record.encode_length_delimited_to_vec());
        });
        let mut span_id = hash.finalize().as_bytes()[..8].to_vec();
        // Zeros would be no id.
        span_id[0] |= 1;
        let times = self.records.iter().map(time_ns).filter(|time| *time > 0);
        let (started, ended) = (times.clone().min().unwrap_or(0), times.max().unwrap_or(0));
        let mut span = Span {
            trace_id: self.trace_id,
            span_id,
            parent_span_id: self.span_id,
            start_time_unix_nano: started,
            end_time_unix_nano: ended,
            ..Span::default()
        };
        if self.is_details {
            for record in self.records {
                span.name = event_name(&record).to_owned();
                span.attributes.extend(event_attributes(record));
            }
        } else {
            span.name = "gen_ai events".to_owned();
            span.events = self.records.into_iter().map(into_event).collect();
        }
        span
    }
}

fn into_event(record: LogRecord) -> Event {
    Event {
        time_unix_nano: time_ns(&record),
        name: event_name(&record).to_owned(),
        dropped_attributes_count: record.dropped_attributes_count,
        attributes: event_attributes(record),
    }
}

/// The content of a record: the members of its body, then its attributes, and its severity if it has one.
fn event_attributes(record: LogRecord) -> Vec<KeyValue> {
    let pair = |key: &str, value: Held| KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    };
    let mut attributes = match record.body.and_then(|body| body.value) {
        Some(Held::KvlistValue(members)) => members.values,
        Some(body) => vec![pair(BODY, body)],
        None => Vec::new(),
    };
    attributes.extend(record.attributes);
    if !record.severity_text.is_empty() {
        attributes.push(pair(SEVERITY_TEXT, Held::StringValue(record.severity_text)));
    }
    if record.severity_number != 0 {
        attributes.push(pair(SEVERITY_NUMBER, Held::IntValue(record.severity_number.into())));
    }
    attributes
}
