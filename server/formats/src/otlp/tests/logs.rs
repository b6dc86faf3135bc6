//! Content of model calls that arrives as log records.

use opentelemetry_proto::tonic::collector::logs::v1::{ExportLogsServiceRequest, ExportLogsServiceResponse};
use prost::Message as _;
use serde_json::{Value, json};

use super::*;
use crate::otlp::wire::decode_logs;

/// A log record of a span, by the span's number.
fn record(span: u64, name: &str, body: &Value, attributes: &[(&str, &str)]) -> Value {
    let pairs = attributes.iter().map(|(key, text)| json!({ "key": key, "value": { "stringValue": text } }));
    json!({
        "traceId": TRACE, "spanId": format!("{span:016x}"), "eventName": name,
        "timeUnixNano": (1_700_000_000_500_000_000 + span * 1_000_000_000).to_string(),
        "severityNumber": 9, "body": body, "attributes": pairs.collect::<Vec<_>>(),
    })
}

fn content(text: &str) -> Value {
    json!({ "kvlistValue": { "values": [{ "key": "content", "value": { "stringValue": text } }] } })
}

fn logs(records: &[Value]) -> Value {
    let service = json!({ "attributes": [{ "key": "service.name", "value": { "stringValue": "pilot" } }] });
    json!({ "resourceLogs": [{ "resource": service, "scopeLogs": [{ "scope": { "name": "ours" }, "logRecords": records }] }] })
}

impl IngestBench {
    #[track_caller]
    fn take_logs(&self, request: &Value) -> TraceReceipt {
        self.ingest.ingest_logs(request.to_string().as_bytes(), TraceEncoding::Json, NOW).unwrap()
    }
}

fn conversation() -> Value {
    logs(&[
        record(2, "gen_ai.user.message", &content("approve?"), &[("gen_ai.system", "openai")]),
        record(2, "gen_ai.choice", &content("rejected"), &[]),
        record(2, "cache.miss", &content("noise"), &[]),
    ])
}

/// Events usually arrive before their span, which is sent at its end.
#[test]
fn events_become_a_frame_below_their_span() {
    let bench = IngestBench::new();
    let taken = bench.take_logs(&conversation());
    assert_eq!((taken.frames, taken.rejected), (1, 1));
    let answer: Value = serde_json::from_slice(&taken.body(TraceEncoding::Json)).unwrap();
    assert_eq!(answer["partialSuccess"]["rejectedLogRecords"], "1", "{answer}");
    assert!(answer["partialSuccess"]["errorMessage"].as_str().unwrap().contains("gen_ai."), "{answer}");
    let decoded = ExportLogsServiceResponse::decode(&*taken.body(TraceEncoding::Protobuf)).unwrap();
    assert_eq!(decoded.partial_success.unwrap().rejected_log_records, 1);
    // The run stays open: the parent has not arrived.
    bench.ingest.end_quiet_traces(NOW + 60_000_000_000, false).unwrap();
    let call = span(2, 1, &[("gen_ai.operation.name", "chat")]);
    assert_eq!(bench.take(&request(&[span(1, 0, &[]), call])).frames, 2);
    let frames = bench.frames(&format!("trace-{TRACE}"));
    let [events, _root, call] = frames.as_slice() else { panic!("{frames:?}") };
    assert_eq!((events.component.to_string(), call.component.to_string()), ("llm".into(), "llm".into()));
    let input: Value = serde_json::from_slice(&events.input).unwrap();
    assert_eq!(input[0]["name"], "gen_ai.user.message");
    assert_eq!(
        (&input[0]["attributes"]["content"], &input[0]["attributes"]["gen_ai.system"]),
        (&json!("approve?"), &json!("openai"))
    );
    assert!(String::from_utf8_lossy(&events.output).contains("rejected"));
    let of_events = metadata(events);
    assert_eq!(
        (&of_events["ingested"]["signal"], &of_events["edges"]["recorded"]["parent"]),
        (&json!("logs"), &json!("later"))
    );
    assert_eq!(metadata(call)["edges"]["recorded"]["children"], json!([1]), "the span names its events");
    // The same request again is no second frame, in memory and after a restart.
    assert_eq!(bench.take_logs(&conversation()).duplicates, 1);
    let again = IngestBench::over(bench.close());
    assert_eq!((again.take_logs(&conversation()).duplicates, again.names().len()), (1, 1));
}

#[test]
fn details_after_the_span_name_it_and_count_no_usage() {
    let bench = IngestBench::new();
    bench.take(&request(&[span(2, 0, &[("gen_ai.operation.name", "chat")])]));
    let messages = "[{\"role\":\"user\",\"parts\":[{\"type\":\"text\",\"content\":\"approve?\"}]}]";
    let mut details = record(
        2,
        "gen_ai.client.inference.operation.details",
        &Value::Null,
        &[
            ("gen_ai.operation.name", "chat"),
            ("gen_ai.input.messages", messages),
            ("gen_ai.output.messages", "[\"no\"]"),
        ],
    );
    let usage = json!({ "key": "gen_ai.usage.input_tokens", "value": { "intValue": "7" } });
    details["attributes"].as_array_mut().unwrap().push(usage);
    // The name may stand in an attribute, as older programs send it.
    details["eventName"] = Value::Null;
    let name = json!({ "key": "event.name", "value": { "stringValue": "gen_ai.client.inference.operation.details" } });
    details["attributes"].as_array_mut().unwrap().push(name);
    let taken = bench.take_logs(&logs(&[details]));
    assert_eq!((taken.frames, taken.rejected), (1, 0));
    assert_eq!(taken.body(TraceEncoding::Json), b"{}");
    let frames = bench.frames(&format!("trace-{TRACE}"));
    let [_, details] = frames.as_slice() else { panic!("{frames:?}") };
    assert_eq!((details.component.to_string(), details.parent), ("llm".to_owned(), Some(1)));
    assert_eq!(
        (details.input.as_slice(), details.output.as_slice()),
        (messages.as_bytes(), &b"[\"no\"]"[..])
    );
    assert_eq!(metadata(details).get("usage"), None, "the span has it");
    assert!(String::from_utf8_lossy(&details.metadata).contains("input_tokens"), "it is kept as it was sent");
}

#[test]
fn events_without_a_span_are_rejected_and_counted() {
    let bench = IngestBench::new();
    let mut orphan = record(2, "gen_ai.choice", &content("no"), &[]);
    orphan["spanId"] = Value::Null;
    let mut lost = record(2, "gen_ai.choice", &content("no"), &[]);
    lost["traceId"] = json!("00");
    let taken = bench.take_logs(&logs(&[orphan, lost]));
    assert_eq!((taken.frames, taken.rejected, bench.names().len()), (0, 2, 0));
    let told = String::from_utf8(taken.body(TraceEncoding::Json)).unwrap();
    assert!(told.contains("belongs to no span"), "{told}");
}

/// Both encodings give the same request.
#[test]
fn log_records_in_protobuf_are_those_in_json() {
    let json = conversation().to_string();
    let decoded = decode_logs(json.as_bytes(), TraceEncoding::Json).unwrap();
    let bytes = decoded.encode_to_vec();
    assert_eq!(decode_logs(&bytes, TraceEncoding::Protobuf).unwrap(), decoded);
    let bench = IngestBench::new();
    let taken = bench.ingest.ingest_logs(&bytes, TraceEncoding::Protobuf, NOW).unwrap();
    assert_eq!((taken.frames, bench.take_logs(&conversation()).duplicates), (1, 1));
    // A deep body is counted, not followed.
    let mut value = opentelemetry_proto::tonic::common::v1::AnyValue::default();
    for _ in 0..60 {
        use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, any_value};
        value = AnyValue { value: Some(any_value::Value::ArrayValue(ArrayValue { values: vec![value] })) };
    }
    let mut deep: ExportLogsServiceRequest = decoded;
    deep.resource_logs[0].scope_logs[0].log_records[0].body = Some(value);
    assert_eq!(
        bench.ingest.ingest_logs(&deep.encode_to_vec(), TraceEncoding::Protobuf, NOW).unwrap_err().status,
        400
    );
}
