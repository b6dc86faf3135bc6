//! Protobuf, JSON and gzip, and their limits.

use std::io::Write as _;

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value as Held;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue, KeyValueList};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message as _;
use serde_json::{Value, json};

use super::{IngestBench, NOW, request, span};
use crate::otlp::ingest::map_request;
use crate::otlp::value::{SpanJson, to_raw_json};
use crate::otlp::wire::decode_request;
use crate::otlp::{BODY_BYTES_MAX, TraceEncoding, TraceRefusal, gunzip, map_without_store};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A request as OTLP/JSON, encoded by the code that writes metadata.
fn as_json(request: &ExportTraceServiceRequest) -> String {
    let whole = |span: &Span| {
        serde_json::to_string(&SpanJson { span, attributes: Default::default(), events: Default::default() })
            .unwrap()
    };
    let scopes = |scopes: &ScopeSpans| {
        let spans: Vec<String> = scopes.spans.iter().map(whole).collect();
        let scope = scopes.scope.as_ref().map_or("null".to_owned(), |scope| to_raw_json(scope).to_string());
        format!(r#"{{"scope":{scope},"schemaUrl":{:?},"spans":[{}]}}"#, scopes.schema_url, spans.join(","))
    };
    let of = request.resource_spans.iter().map(|of: &ResourceSpans| {
        let scopes: Vec<String> = of.scope_spans.iter().map(scopes).collect();
        let resource =
            of.resource.as_ref().map_or("null".to_owned(), |resource| to_raw_json(resource).to_string());
        format!(
            r#"{{"resource":{resource},"schemaUrl":{:?},"scopeSpans":[{}]}}"#,
            of.schema_url,
            scopes.join(",")
        )
    });
    format!(r#"{{"resourceSpans":[{}]}}"#, of.collect::<Vec<_>>().join(","))
}

#[test]
fn exporter_requests_decode_equally_in_both_encodings() {
    let json = include_bytes!("data/openinference.json");
    for (body, form) in [
        (gunzip(include_bytes!("data/genai.pb.gz"), BODY_BYTES_MAX).unwrap(), TraceEncoding::Protobuf),
        (
            gunzip(include_bytes!("data/openinference.pb.gz"), BODY_BYTES_MAX).unwrap(),
            TraceEncoding::Protobuf,
        ),
        (json.to_vec(), TraceEncoding::Json),
    ] {
        let request = decode_request(&body, form).unwrap();
        let spans: usize =
            request.resource_spans.iter().flat_map(|of| &of.scope_spans).map(|of| of.spans.len()).sum();
        assert_eq!(spans, 4);
        assert_eq!(decode_request(as_json(&request).as_bytes(), TraceEncoding::Json).unwrap(), request);
        assert_eq!(decode_request(&request.encode_to_vec(), TraceEncoding::Protobuf).unwrap(), request);
    }
}

#[test]
fn every_value_kind_round_trips_through_json() {
    let held = [
        Held::StringValue("Grüße \u{0} ✓".to_owned()),
        Held::StringValue(String::new()),
        Held::BoolValue(false),
        Held::IntValue(i64::MIN),
        Held::IntValue(9_007_199_254_740_993),
        Held::DoubleValue(-0.0),
        Held::DoubleValue(8.533e68),
        Held::DoubleValue(f64::from_bits(1)),
        Held::DoubleValue(f64::INFINITY),
        Held::BytesValue(vec![0, 255, 62]),
        Held::ArrayValue(ArrayValue { values: vec![AnyValue { value: None }] }),
        Held::ArrayValue(ArrayValue { values: Vec::new() }),
        Held::KvlistValue(KeyValueList {
            values: vec![KeyValue { key: "k".to_owned(), ..KeyValue::default() }],
        }),
    ];
    let attributes = held.into_iter().map(|held| KeyValue {
        key: "same".to_owned(),
        value: Some(AnyValue { value: Some(held) }),
        ..KeyValue::default()
    });
    let span = Span { attributes: attributes.collect(), start_time_unix_nano: u64::MAX, ..Span::default() };
    let scope = ScopeSpans { spans: vec![span], ..ScopeSpans::default() };
    let request = ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans { scope_spans: vec![scope], ..ResourceSpans::default() }],
    };
    let read = decode_request(as_json(&request).as_bytes(), TraceEncoding::Json).unwrap();
    assert_eq!(read, request);
    let double = |request: &ExportTraceServiceRequest, at: usize| match request.resource_spans[0].scope_spans
        [0]
    .spans[0]
        .attributes[at]
        .value
        .clone()
        .unwrap()
        .value
    {
        Some(Held::DoubleValue(double)) => double.to_bits(),
        _ => 0,
    };
    // Equal doubles may differ in their bits.
    assert_eq!(double(&read, 5), (-0.0f64).to_bits());
}

/// serde_json parses some of these wrong in the last bit unless its feature `float_roundtrip` is on, which no
/// crate here enables.
#[test]
fn doubles_are_read_to_the_bit() {
    let doubles = (1..2000u64)
        .map(|n| f64::from_bits(0x3000_0000_0000_0000 + n.wrapping_mul(0x9e37_79b9_7f4a_7c15) / 4));
    let doubles: Vec<f64> = doubles.filter(|double| double.is_finite()).collect();
    let values: Vec<Value> =
        doubles.iter().map(|double| json!({ "value": { "doubleValue": double } })).collect();
    let body = request(&[json!({ "attributes": values })]).to_string();
    let read = decode_request(body.as_bytes(), TraceEncoding::Json).unwrap();
    let read = &read.resource_spans[0].scope_spans[0].spans[0].attributes;
    for (pair, double) in read.iter().zip(&doubles) {
        let held = pair.value.as_ref().and_then(|value| value.value.clone());
        assert!(
            matches!(held, Some(Held::DoubleValue(read)) if read.to_bits() == double.to_bits()),
            "{double}"
        );
    }
}

/// Mutated, cut and duplicated bytes of real requests never cause a panic.
#[test]
fn mutated_requests_are_accepted_or_refused() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut draw = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).unwrap()
    };
    let (mut taken, mut refused) = (0, 0);
    for (whole, form) in [
        (gunzip(include_bytes!("data/genai.pb.gz"), BODY_BYTES_MAX).unwrap(), TraceEncoding::Protobuf),
        (
            gunzip(include_bytes!("data/openinference.pb.gz"), BODY_BYTES_MAX).unwrap(),
            TraceEncoding::Protobuf,
        ),
        (include_bytes!("data/openinference.json").to_vec(), TraceEncoding::Json),
    ] {
        for _ in 0..1500 {
            let mut body = whole.clone();
            for _ in 0..=draw(3) {
                let (from, to) = (draw(body.len()), draw(body.len()));
                match draw(4) {
                    0 => body[from] ^= 1 << draw(8),
                    1 => body[from] = b"\0\x7f\xff{}[]\",:0"[draw(11)],
                    2 => body.copy_within(
                        from..(from + 40).min(whole.len()),
                        to.min(whole.len().saturating_sub(40)),
                    ),
                    _ => body.truncate(from.max(1)),
                }
                body.resize(whole.len(), b' ');
            }
            match map_without_store(&body, form) {
                Ok(_) => taken += 1,
                Err(error) => {
                    assert!(matches!(error.status, 400 | 413), "{}", error.message());
                    refused += 1;
                }
            }
        }
    }
    assert!(taken > 100 && refused > 100, "{taken} {refused}");
}

#[test]
fn json_decoding_is_lenient() {
    let read =
        |span: Value| decode_request(request(&[span]).to_string().as_bytes(), TraceEncoding::Json).unwrap();
    let strict = json!({ "traceId": "AF00", "kind": 3, "startTimeUnixNano": "7", "flags": 256,
        "attributes": [{ "key": "n", "value": { "intValue": "5" } }, { "key": "a", "value": { "arrayValue": { "values": [] } } },
            { "key": "x", "value": { "doubleValue": "NaN" } }] });
    let loose = json!({ "traceId": "af00", "spanId": null, "parentSpanId": null, "kind": "SPAN_KIND_CLIENT", "startTimeUnixNano": 7,
        "flags": "256", "links": null, "status": null, "unknown": { "key": [1] }, "name": null,
        "attributes": [{ "key": "n", "value": { "intValue": 5, "newer": [] } }, { "key": "a", "value": { "arrayValue": {} } },
            { "key": "x", "value": { "doubleValue": "NaN", "stringValue": null } }] });
    // NaN is not equal to itself, so compare the debug texts.
    assert_eq!(format!("{:?}", read(strict)), format!("{:?}", read(loose)));
    assert_eq!(decode_request(b"{}", TraceEncoding::Json).unwrap(), ExportTraceServiceRequest::default());
    for wrong in [
        "",
        "[]",
        "{",
        "null",
        r#"{"resourceSpans":{}}"#,
        r#"{"resourceSpans":[]} x"#,
        r#"{"resourceSpans":[[]]}"#,
    ] {
        assert_eq!(decode_request(wrong.as_bytes(), TraceEncoding::Json).unwrap_err().status, 400, "{wrong}");
    }
    for (key, wrong) in [
        ("intValue", "1.5"),
        ("intValue", "9223372036854775808"),
        ("doubleValue", "\"inf\""),
        ("bytesValue", "\"?\""),
    ] {
        let value: Value = serde_json::from_str(wrong).unwrap();
        let span = json!({ "attributes": [{ "key": "k", "value": { key: value } }] });
        assert_eq!(
            decode_request(request(&[span]).to_string().as_bytes(), TraceEncoding::Json).unwrap_err().status,
            400,
            "{wrong}"
        );
    }
}

#[test]
fn invalid_protobuf_is_refused() {
    let whole = gunzip(include_bytes!("data/genai.pb.gz"), BODY_BYTES_MAX).unwrap();
    for cut in 1..whole.len() {
        // A cut between two fields leaves a shorter valid request.
        if let Err(refused) = decode_request(&whole[..cut], TraceEncoding::Protobuf) {
            assert_eq!(refused.status, 400);
        }
    }
    assert_eq!(decode_request(b"", TraceEncoding::Protobuf).unwrap(), ExportTraceServiceRequest::default());
    for wrong in
        [&b"\x0b\x0c"[..], b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x0a\x05ab", b"\xff", b"{}"]
    {
        assert_eq!(decode_request(wrong, TraceEncoding::Protobuf).unwrap_err().status, 400, "{wrong:?}");
    }
}

/// A value nested in this many lists.
fn deep(levels: usize) -> ExportTraceServiceRequest {
    let mut value = AnyValue { value: Some(Held::BoolValue(true)) };
    for _ in 0..levels {
        let pair = KeyValue { key: "k".to_owned(), value: Some(value), ..KeyValue::default() };
        value = AnyValue { value: Some(Held::KvlistValue(KeyValueList { values: vec![pair] })) };
    }
    let attributes =
        vec![KeyValue { key: "input.value".to_owned(), value: Some(value), ..KeyValue::default() }];
    let span = Span { trace_id: vec![1; 16], span_id: vec![1; 8], attributes, ..Span::default() };
    let scope_spans = vec![ScopeSpans { spans: vec![span], ..ScopeSpans::default() }];
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans { scope_spans, ..ResourceSpans::default() }],
    }
}

#[test]
fn deeply_nested_values_are_refused_without_overflow() {
    // A sender would not build this recursively; building it here needs a large stack.
    let builder = std::thread::Builder::new().stack_size(256 << 20);
    let bodies = builder.spawn(|| {
        [25, 28, 40, 5000].map(|levels| {
            let request = deep(levels);
            (levels, request.encode_to_vec(), as_json(&request).into_bytes())
        })
    });
    let bodies = bodies.unwrap().join().unwrap();
    // A tokio thread has a stack of 2 MiB.
    let read = move || {
        for (levels, protobuf, json) in bodies {
            for (form, body) in [(TraceEncoding::Protobuf, protobuf), (TraceEncoding::Json, json)] {
                let told = map_without_store(&body, form).map_err(|refused: TraceRefusal| refused.status);
                assert_eq!(told, if levels < 40 { Ok(1) } else { Err(400) }, "{levels} {form:?}");
            }
        }
        let open = |pair: &str| format!("{{\"resourceSpans\":{}", pair.repeat(200_000));
        for body in [open("["), open("{\"a\":")] {
            assert_eq!(map_request(body.as_bytes(), TraceEncoding::Json).unwrap_err().status, 400);
        }
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(read).unwrap().join().unwrap();
}

#[test]
fn message_count_is_limited_before_decoding() {
    // Two million empty spans: 4 MB that would take 600 MB when decoded. Each is a tag and a length within a
    // scope within a resource.
    let mut body = b"\x12\x00".repeat(2_000_000);
    for tag in [0x12, 0x0a] {
        let mut outer = vec![tag];
        prost::encoding::encode_varint(body.len() as u64, &mut outer);
        outer.extend_from_slice(&body);
        body = outer;
    }
    assert_eq!(decode_request(&body, TraceEncoding::Protobuf).unwrap_err().status, 413);
    let spans = "{},".repeat(2_000_000);
    let body = format!(r#"{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{spans}{{}}]}}]}}]}}"#);
    assert_eq!(decode_request(body.as_bytes(), TraceEncoding::Json).unwrap_err().status, 413);
    // Braces inside a string do not count.
    let braces = "[{\\\"".repeat(600_000);
    let body = format!(r#"{{"resourceSpans":[],"note":"{braces}"}}"#);
    assert_eq!(
        decode_request(body.as_bytes(), TraceEncoding::Json).unwrap(),
        ExportTraceServiceRequest::default()
    );
    assert_eq!(decode_request(&vec![0; BODY_BYTES_MAX + 1], TraceEncoding::Json).unwrap_err().status, 413);
}

#[test]
fn encoding_is_chosen_by_content_type() {
    for form in [TraceEncoding::Protobuf, TraceEncoding::Json] {
        assert_eq!(TraceEncoding::from_content_type(form.content_type()), Some(form));
    }
    assert_eq!(
        TraceEncoding::from_content_type("Application/JSON; charset=utf-8"),
        Some(TraceEncoding::Json)
    );
    assert_eq!(
        (TraceEncoding::from_content_type("application/grpc"), TraceEncoding::from_content_type("")),
        (None, None)
    );
}

#[test]
fn gzip_is_unpacked_up_to_its_limit() {
    let text = b"spans ".repeat(1000);
    let packed = gzip(&text);
    assert_eq!(gunzip(&packed, text.len()).unwrap(), text);
    assert_eq!(gunzip(&packed, text.len() - 1).unwrap_err().status, 413);
    assert_eq!(gunzip(&gzip(&vec![0; 64 << 20]), 1 << 20).unwrap_err().status, 413);
    for wrong in [&packed[..packed.len() - 5], b"", b"no gzip", &text] {
        assert_eq!(gunzip(wrong, 1 << 20).unwrap_err().status, 400);
    }
}

#[test]
fn invalid_spans_are_rejected_and_others_accepted() {
    let bench = IngestBench::new();
    let broken = |key: &str, id: &str| {
        let mut span = span(9, 0, &[]);
        span[key] = json!(id);
        span
    };
    let taken = bench.take(&request(&[
        broken("traceId", "00000000000000000000000000000000"),
        broken("traceId", "0af7651916cd43dd8448eb211c8031"),
        broken("spanId", "0000000000000000"),
        broken("spanId", ""),
        broken("spanId", "no hexadecimal!!"),
        broken("parentSpanId", "0102"),
        span(1, 0, &[]),
    ]));
    assert_eq!((taken.frames, taken.rejected), (1, 6));
    let told: Value = serde_json::from_slice(&taken.body(TraceEncoding::Json)).unwrap();
    assert_eq!(told["partialSuccess"]["rejectedSpans"], "6");
    assert!(told["partialSuccess"]["errorMessage"].as_str().unwrap().contains("a span id has 8 bytes"));
    let told = ExportTraceServiceResponse::decode(taken.body(TraceEncoding::Protobuf).as_slice()).unwrap();
    assert_eq!(told.partial_success.unwrap().rejected_spans, 6);
    assert_eq!(bench.frames(&bench.names()[0]).len(), 1);

    let taken = bench.take(&request(&[span(2, 0, &[])]));
    assert_eq!(
        (taken.body(TraceEncoding::Json), taken.body(TraceEncoding::Protobuf)),
        (b"{}".to_vec(), Vec::new())
    );
    let refused = bench.ingest.ingest_request(b"?", TraceEncoding::Json, NOW).unwrap_err();
    assert_eq!((refused.status, refused.retry_after_s), (400, None));
    let told: Value = serde_json::from_slice(&refused.body(TraceEncoding::Json)).unwrap();
    assert_eq!((&told["code"], told["message"].as_str().unwrap()), (&json!(3), refused.message()));
    let body = refused.body(TraceEncoding::Protobuf);
    assert_eq!((&body[..3], usize::from(body[3])), (&[8u8, 3, 0x12][..], refused.message().len()));
    assert!(body.ends_with(refused.message().as_bytes()));
}

#[test]
fn spans_over_the_request_limit_are_rejected() {
    let spans: Vec<Value> = (1..=8193)
        .map(|number| json!({ "traceId": super::TRACE, "spanId": format!("{number:016x}") }))
        .collect();
    let (taken, traces) = map_request(request(&spans).to_string().as_bytes(), TraceEncoding::Json).unwrap();
    assert_eq!((taken.rejected, traces.values().map(Vec::len).sum::<usize>()), (1, 8192));
    let resource = json!({ "attributes": [{ "key": "k", "value": { "stringValue": "x".repeat(70_000) } }] });
    let mut long = request(&[span(1, 0, &[])]);
    long["resourceSpans"][0]["resource"] = resource;
    assert_eq!(map_request(long.to_string().as_bytes(), TraceEncoding::Json).unwrap().0.rejected, 1);
}
