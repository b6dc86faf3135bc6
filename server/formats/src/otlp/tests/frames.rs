//! The mapping of spans to frames: components, bodies, facts, edges.

use annals::{Component, Severity};
use serde_json::{Value, json};

use super::{IngestBench, NOW, TRACE, metadata, request, span};
use crate::otlp::{BODY_BYTES_MAX, TraceEncoding, gunzip};

#[test]
fn genai_trace_becomes_frames() {
    let bench = IngestBench::new();
    let body = gunzip(include_bytes!("data/genai.pb.gz"), BODY_BYTES_MAX).unwrap();
    assert_eq!(bench.ingest.ingest_request(&body, TraceEncoding::Protobuf, NOW).unwrap().frames, 4);
    let name = bench.names().remove(0);
    let run = bench.run(&name);
    let info = run.info();
    assert_eq!((info.agent.as_str(), info.model.as_str()), ("pilot", "gpt-4o-mini-2024-07-18"));
    assert!(info.tags.contains(&("annals.ingested".to_owned(), "otlp".to_owned())));
    assert!(info.tags.contains(&("conversation".to_owned(), "conv-7".to_owned())));
    let about: Value = serde_json::from_slice(&run.metadata().unwrap()).unwrap();
    assert_eq!(format!("trace-{}", about["ingested"]["trace_id"].as_str().unwrap()), name);

    // The exporter sent the children first and the root last.
    let frames = bench.frames(&name);
    let what: Vec<(&str, Option<u32>)> =
        frames.iter().map(|frame| (frame.component.name(), frame.parent)).collect();
    assert_eq!(what, [("agent", None), ("llm", Some(1)), ("tool", Some(1)), ("llm", Some(1))]);
    let llm = metadata(&frames[1]);
    for (key, value) in [
        ("provider", json!("openai")),
        ("model", json!("gpt-4o-mini-2024-07-18")),
        ("model_requested", json!("gpt-4o-mini")),
        ("sampling", json!({ "temperature": 0.2, "max_tokens": 200 })),
        ("usage", json!({ "input": 61, "output": 17 })),
        ("finish_reason", json!("tool_calls")),
        ("edges", json!({ "recorded": { "parent": 1 } })),
        (
            "ingested",
            json!({ "from": "otlp", "convention": "gen_ai", "name": "chat gpt-4o-mini", "kind": "client" }),
        ),
    ] {
        assert_eq!(llm[key], value, "{key}");
    }
    assert_eq!(llm["volatile"]["response_id"], "chatcmpl-our-own-2");
    let told = &llm["volatile"]["otlp"];
    assert_eq!(told["resource"]["attributes"][0]["key"], "telemetry.sdk.language");
    assert!(told["scope"]["name"].as_str().unwrap().contains("openai"));
    assert_eq!(told["span"]["kind"], 3);
    assert_eq!(format!("trace-{}", told["span"]["traceId"].as_str().unwrap()), name);
    assert!(frames[1].duration_ns > 0 && frames[1].started_ns >= info.started_ns);

    let tool = &frames[2];
    assert_eq!(tool.input, br#"{"harbour":"Husum"}"#);
    assert_eq!(tool.output, br#"{"high_water":"14:20","height_m":3.1}"#);
    let tool = metadata(tool);
    assert_eq!(tool["tool"], json!({ "name": "tide_table" }));
    assert_eq!(tool["ingested"]["input"], "gen_ai.tool.call.arguments");
    let left: Vec<&str> = tool["volatile"]["otlp"]["span"]["attributes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| pair["key"].as_str().unwrap())
        .collect();
    assert_eq!(left, ["gen_ai.operation.name", "gen_ai.tool.name", "gen_ai.tool.call.id"]);
}

#[test]
fn openinference_trace_is_equal_from_both_encodings() {
    let bench = IngestBench::new();
    let body = gunzip(include_bytes!("data/openinference.pb.gz"), BODY_BYTES_MAX).unwrap();
    bench.ingest.ingest_request(&body, TraceEncoding::Protobuf, NOW).unwrap();
    bench.ingest.ingest_request(include_bytes!("data/openinference.json"), TraceEncoding::Json, NOW).unwrap();
    let names = bench.names();
    let [one, other] = names.as_slice() else { panic!("{names:?}") };
    let (one, other) = (bench.frames(one), bench.frames(other));
    for (one, other) in one.iter().zip(&other) {
        // Everything except ids and times, which are under `volatile`: two recordings of the same trace have
        // the same links.
        assert_eq!((&one.input, &one.output, one.link), (&other.input, &other.output, other.link));
    }
    let what: Vec<&str> = one.iter().map(|frame| frame.component.name()).collect();
    assert_eq!(what, ["agent", "llm", "tool", "llm"]);
    assert_eq!(one[0].input, b"When do I leave Husum?");
    let sent: Value = serde_json::from_slice(&one[3].input).unwrap();
    assert_eq!(sent["messages"][1]["content"], "When do I leave Husum? Grüße ✓");
    let llm = metadata(&one[1]);
    assert_eq!(llm["usage"], json!({ "input": 61, "output": 17, "cached_input": 32 }));
    assert_eq!(llm["sampling"], json!({ "temperature": 0.2, "max_tokens": 200 }));
    assert_eq!(llm["tool_calls"], json!([{ "name": "tide_table", "arguments": "{\"harbour\":\"Husum\"}" }]));
    assert_eq!(
        (&llm["ingested"]["input"], &llm["ingested"]["output"]),
        (&json!("input.value"), &json!("output.value"))
    );
    // The tool's span has no call id, but its result occurs in the next request inside a JSON string.
    let last = metadata(&one[3])["edges"].clone();
    assert_eq!(
        last,
        json!({ "recorded": { "parent": 1 }, "inferred": [{ "rule": "output_in_input", "from": 3 }] })
    );
}

/// The viewing functions for recorded runs also accept ingested runs.
#[test]
fn ingested_run_is_shown_like_a_recorded_run() {
    let bench = IngestBench::new();
    bench.ingest.ingest_request(include_bytes!("data/openinference.json"), TraceEncoding::Json, NOW).unwrap();
    let name = bench.names().remove(0);
    let run = bench.run(&name);
    let (before, new) = annals_review::new_part(&run, 4, None).unwrap().unwrap();
    assert_eq!(before, 2);
    let new = new.to_string();
    assert!(new.contains("high_water") && !new.contains("You plan departures"), "{new}");
    assert_eq!(annals_review::failure_report(&run, None).unwrap().unwrap().frame.seq, 4);
    // GenAI messages have no provider's format; they are shown as they are.
    let messages = r#"[{"role":"user","parts":[{"type":"text","content":"hello"}]}]"#;
    let chat = [("gen_ai.operation.name", "chat"), ("gen_ai.input.messages", messages)];
    bench.take(&request(&[span(1, 0, &chat), span(2, 0, &chat)]));
    let run = bench.run(&format!("trace-{TRACE}"));
    assert!(annals_review::new_part(&run, 2, None).unwrap().is_some());
    run.verify().unwrap();
}

fn one(bench: &IngestBench, span: &Value) -> (annals::RecordedFrame, Value) {
    assert_eq!(bench.take(&request(std::slice::from_ref(span))).frames, 1);
    let frame = bench.frames(&format!("trace-{TRACE}")).pop().unwrap();
    let metadata = metadata(&frame);
    (frame, metadata)
}

#[test]
fn span_kind_determines_component() {
    let bench = IngestBench::new();
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[("gen_ai.operation.name", "text_completion")], "llm"),
        (&[("gen_ai.operation.name", "execute_tool")], "tool"),
        (&[("gen_ai.operation.name", "create_agent")], "agent"),
        (&[("gen_ai.operation.name", "plan")], "planner"),
        (&[("gen_ai.operation.name", "embeddings")], "embeddings"),
        (&[("gen_ai.operation.name", "of tomorrow")], "internal"),
        (&[("gen_ai.system", "openai"), ("gen_ai.request.model", "m")], "llm"),
        (&[("openinference.span.kind", "llm")], "llm"),
        (&[("openinference.span.kind", "RETRIEVER")], "retriever"),
        (&[("openinference.span.kind", "CHAIN")], "chain"),
        (&[("openinference.span.kind", "EMBEDDING")], "embeddings"),
        (&[("traceloop.span.kind", "tool")], "tool"),
        (&[("traceloop.span.kind", "workflow")], "workflow"),
        (&[("llm.request.type", "chat")], "llm"),
        (&[("http.request.method", "GET")], "internal"),
    ];
    for (number, (texts, component)) in (1..).zip(cases) {
        let (frame, _) = one(&bench, &span(number, 0, texts));
        assert_eq!(frame.component.name(), *component, "{texts:?}");
    }
}

#[test]
fn multi_part_bodies_keep_every_part() {
    let bench = IngestBench::new();
    let messages = r#"[{"role":"user","parts":[{"type":"text","content":"a \u00e4"}]}]"#;
    let mut two =
        span(1, 0, &[("gen_ai.operation.name", "chat"), ("gen_ai.input.messages", messages), ("other", "x")]);
    let instructions = json!({ "arrayValue": { "values": [{ "intValue": "5" }, { "doubleValue": 1.0 }] } });
    two["attributes"]
        .as_array_mut()
        .unwrap()
        .push(json!({ "key": "gen_ai.system_instructions", "value": instructions }));
    let (frame, told) = one(&bench, &two);
    let input: Value = serde_json::from_slice(&frame.input).unwrap();
    assert_eq!(
        input,
        json!({ "gen_ai.input.messages": messages, "gen_ai.system_instructions": instructions })
    );
    assert_eq!(told["ingested"]["input"], json!(["gen_ai.system_instructions", "gen_ai.input.messages"]));
    let left = &told["volatile"]["otlp"]["span"]["attributes"];
    assert_eq!(left.as_array().unwrap().len(), 2, "{left}");
    assert_eq!(frame.output, b"");

    // A single text becomes its exact bytes, including line ends.
    let (frame, _) = one(
        &bench,
        &span(
            2,
            0,
            &[("openinference.span.kind", "LLM"), ("input.value", " a\r\n\u{0} ü"), ("output.value", "")],
        ),
    );
    assert_eq!((frame.input.as_slice(), frame.output.as_slice()), (" a\r\n\u{0} ü".as_bytes(), &b""[..]));

    let flat = [
        ("llm.request.type", "chat"),
        ("gen_ai.prompt.0.role", "user"),
        ("gen_ai.prompt.0.content", "hi"),
        ("gen_ai.completion.0.content", "ho"),
    ];
    let (frame, _) = one(&bench, &span(3, 0, &flat));
    let input: Value = serde_json::from_slice(&frame.input).unwrap();
    assert_eq!(input, json!({ "gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "hi" }));
    assert_eq!(frame.output, b"ho");

    let mut events = span(4, 0, &[("gen_ai.operation.name", "chat")]);
    let text = |key: &str, text: &str| json!({ "key": key, "value": { "stringValue": text } });
    events["events"] = json!([
        { "name": "gen_ai.user.message", "timeUnixNano": "7", "attributes": [text("content", "hi")] },
        { "name": "exception", "attributes": [text("exception.type", "E")] },
        { "name": "gen_ai.choice", "attributes": [text("message", "ho")] },
        // The body has no place for a repeated attribute name, so the event stays in the metadata, too.
        { "name": "gen_ai.choice", "attributes": [text("message", "one"), text("message", "two")] },
    ]);
    let (frame, told) = one(&bench, &events);
    let body = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
    assert_eq!(
        body(&frame.input),
        json!([{ "name": "gen_ai.user.message", "attributes": { "content": "hi" } }])
    );
    assert_eq!(
        body(&frame.output)[1],
        json!({ "name": "gen_ai.choice", "attributes": { "message": "one" } })
    );
    let left = &told["volatile"]["otlp"]["span"]["events"];
    assert_eq!(left[0], json!({ "name": "gen_ai.user.message", "timeUnixNano": "7" }));
    assert_eq!(
        (&left[1]["attributes"][0]["key"], &left[2]["attributes"]),
        (&json!("exception.type"), &Value::Null)
    );
    assert_eq!(left[3]["attributes"][1]["value"]["stringValue"], "two");
}

#[test]
fn failed_span_becomes_failed_frame() {
    let bench = IngestBench::new();
    let mut failed = span(1, 0, &[("gen_ai.operation.name", "chat"), ("error.type", "timeout")]);
    failed["status"] = json!({ "code": 2, "message": "no answer" });
    let (frame, told) = one(&bench, &failed);
    assert!(frame.error);
    assert_eq!(frame.severity, Severity::Flagged);
    assert_eq!(told["error"], json!({ "type": "timeout", "message": "no answer" }));
    assert_eq!((frame.component, frame.duration_ns), (Component::Llm, 900_000_000));
    let mut fine = span(2, 0, &[]);
    fine["status"] = json!({ "code": 1 });
    // It ends before it begins: clocks may be wrong.
    fine["endTimeUnixNano"] = json!("5");
    let (frame, told) = one(&bench, &fine);
    assert_eq!((frame.error, frame.duration_ns, &told["error"]), (false, 0, &Value::Null));
}

fn edges(bench: &IngestBench) -> Vec<Value> {
    bench.frames(&format!("trace-{TRACE}")).iter().map(|frame| metadata(frame)["edges"].clone()).collect()
}

#[test]
fn early_children_keep_their_recorded_edges() {
    let bench = IngestBench::new();
    bench.take(&request(&[span(3, 2, &[])]));
    bench.take(&request(&[span(4, 2, &[])]));
    let mut middle = span(2, 1, &[]);
    middle["links"] = json!([{ "traceId": TRACE, "spanId": format!("{:016x}", 4) }, { "traceId": "ff".repeat(16), "spanId": format!("{:016x}", 3) }]);
    bench.take(&request(&[middle]));
    // Within a request, parents are ordered before their children.
    bench.take(&request(&[span(6, 5, &[]), span(5, 1, &[]), span(1, 0, &[])]));
    assert_eq!(
        edges(&bench),
        [
            json!({ "recorded": { "parent": "later" } }),
            json!({ "recorded": { "parent": "later" } }),
            json!({ "recorded": { "parent": "later", "children": [1, 2], "links": [2] } }),
            json!({ "recorded": { "children": [3] } }),
            json!({ "recorded": { "parent": 4 } }),
            json!({ "recorded": { "parent": 5 } }),
        ]
    );
    let parents: Vec<Option<u32>> =
        bench.frames(&format!("trace-{TRACE}")).iter().map(|frame| frame.parent).collect();
    assert_eq!(parents, [None, None, None, None, Some(4), Some(5)]);
}

#[test]
fn cyclic_spans_still_become_frames() {
    let bench = IngestBench::new();
    assert_eq!(bench.take(&request(&[span(1, 1, &[]), span(2, 3, &[]), span(3, 2, &[])])).frames, 3);
    assert_eq!(edges(&bench)[1]["recorded"]["parent"], "later");
}

#[test]
fn inferred_edges_are_separate_and_name_their_rule() {
    let bench = IngestBench::new();
    let asks =
        r#"[{"role":"assistant","parts":[{"type":"tool_call","id":"c1","name":"f","arguments":{"x":1}}]}]"#;
    let carries = r#"[{"role":"tool","parts":[{"type":"tool_call_response","id":"c1","response":"42"}]}]"#;
    let llm = ("gen_ai.operation.name", "chat");
    let tool = [
        ("gen_ai.operation.name", "execute_tool"),
        ("gen_ai.tool.call.id", "c1"),
        ("gen_ai.tool.call.result", "a result that nobody else would give"),
    ];
    bench.take(&request(&[
        span(1, 0, &[]),
        span(2, 1, &[llm, ("gen_ai.output.messages", asks)]),
        span(3, 1, &tool),
        span(4, 1, &[llm, ("gen_ai.input.messages", carries)]),
        // The same result in a later input is history.
        span(5, 1, &[llm, ("gen_ai.input.messages", carries)]),
        span(6, 1, &[llm, ("input.value", "so: a result that nobody else would give.")]),
        span(7, 1, &[llm, ("input.value", "so: a result that nobody else would give.")]),
    ]));
    let inferred: Vec<Value> = edges(&bench).iter().map(|edges| edges["inferred"].clone()).collect();
    assert_eq!(
        inferred,
        [
            Value::Null,
            Value::Null,
            json!([{ "rule": "tool_call_id", "from": 2 }]),
            json!([{ "rule": "tool_result_id", "from": 3 }]),
            Value::Null,
            Value::Null,
            Value::Null,
        ],
        "a result that was taken up by its id is not looked for as a text"
    );
    let told = metadata(&bench.frames(&format!("trace-{TRACE}"))[1]);
    assert_eq!(told["tool_calls"], json!([{ "name": "f", "arguments": "{\"x\":1}" }]));

    // The same, flattened into attributes.
    let call = "llm.output_messages.0.message.tool_calls.0.tool_call";
    let [id, name, arguments] =
        ["id", "function.name", "function.arguments"].map(|of| format!("{call}.{of}"));
    let flat = [
        ("openinference.span.kind", "LLM"),
        (id.as_str(), "c9"),
        (name.as_str(), "g"),
        (arguments.as_str(), "{}"),
    ];
    let carried = [("openinference.span.kind", "LLM"), ("llm.input_messages.2.message.tool_call_id", "c9")];
    let tool = [("openinference.span.kind", "TOOL"), ("tool.id", "c9")];
    bench.take(&request(&[span(11, 1, &flat), span(12, 1, &tool), span(13, 1, &carried)]));
    let edges = edges(&bench);
    assert_eq!(edges[8]["inferred"], json!([{ "rule": "tool_call_id", "from": 8 }]));
    assert_eq!(edges[9]["inferred"], json!([{ "rule": "tool_result_id", "from": 9 }]));
    let told = metadata(&bench.frames(&format!("trace-{TRACE}"))[7]);
    assert_eq!(told["tool_calls"], json!([{ "name": "g", "arguments": "{}" }]));
}

#[test]
fn inference_skips_recorded_edges_and_respects_time_order() {
    let bench = IngestBench::new();
    let long = "an output that is long enough to be told";
    let tool = |number, parent| {
        span(
            number,
            parent,
            &[
                ("gen_ai.operation.name", "execute_tool"),
                ("gen_ai.tool.call.id", "c1"),
                ("gen_ai.tool.call.result", long),
            ],
        )
    };
    let llm = ("gen_ai.operation.name", "chat");
    let asks = (
        "gen_ai.output.messages",
        r#"{"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]}"#,
    );
    // The tool's span comes before that of the model that requested it, and is not its child.
    bench.take(&request(&[tool(5, 1)]));
    bench.take(&request(&[span(2, 1, &[llm, asks])]));
    // This span began before the output existed.
    bench.take(&request(&[span(4, 1, &[llm, ("input.value", long)])]));
    // This span is a child of the span whose output it uses.
    bench.take(&request(&[span(8, 5, &[llm, ("input.value", long)])]));
    let inferred: Vec<Value> = edges(&bench).iter().map(|edges| edges["inferred"].clone()).collect();
    assert_eq!(
        inferred,
        [Value::Null, json!([{ "rule": "tool_call_id", "to": 1 }]), Value::Null, Value::Null]
    );
}
