//! Hostile bodies: deep, huge, endless, of the wrong type. Nothing fails and nothing grows without bound.

use super::{api, messages, read, read_bytes};
use crate::providers::{
    NAME_BYTES_MAX, PARTS_MAX, TEXT_BYTES_MAX, TOOL_CALLS_MAX, WireExchange, request_changes, summary,
};

const PATHS: [&str; 10] = [
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/messages",
    "/v1beta/models/g:generateContent",
    "/v1beta/models/g:streamGenerateContent",
    "/api/chat",
    "/other",
    "/model/a.b/converse-stream",
    "/model/a.b/invoke",
];

/// Bodies of the wrong form for every interface.
fn odd_bodies() -> Vec<Vec<u8>> {
    let deep =
        |open: &str, close: &str| format!("{}1{}", open.repeat(20_000), close.repeat(20_000)).into_bytes();
    let mut bodies: Vec<Vec<u8>> = [
        "", " ", "null", "0", "\"x\"", "[]", "[null]", "[[[]]]", "{", "{}", "{\"a\"", "true", "\u{feff}{}", "data: x\n\n", "data\n\n",
        r#"{"choices":{"0":1},"messages":7,"usage":[1],"error":[],"content":{"type":3},"output":"x","candidates":"y","input":{"a":1},"model":[2],"stream":"yes","tools":{"a":1}}"#,
        r#"{"choices":[[]],"messages":[[],1,null,"x",{"role":5,"content":9,"tool_calls":{}}],"content":[1,"a",[]],"contents":[{"parts":[1,[],{}]}],"usage":{"prompt_tokens":-1,"completion_tokens":1e400,"input_tokens":18446744073709551615,"cache_read_input_tokens":18446744073709551615}}"#,
        r#"{"error":{"type":{"a":1},"message":["x"]},"choices":[{"index":18446744073709551615,"delta":{"tool_calls":[{"index":-1}]}}]}"#,
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect();
    bodies.extend([
        vec![0xff; 99],
        vec![0; 99],
        deep("[", "]"),
        deep("{\"error\":", "}"),
        deep("{\"content\":[", "]}"),
    ]);
    bodies
}

#[test]
fn odd_bodies_give_a_summary() {
    let bodies = odd_bodies();
    for path in PATHS {
        let api = api(path);
        for request in &bodies {
            let _ = messages(&api, request);
            let _ = request_changes(&api, request, b"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}")
                .to_string();
        }
        for body in &bodies {
            for kind in ["application/json", "text/event-stream", ""] {
                for encoding in [None, Some("gzip"), Some("br"), Some("zstd"), Some("deflate"), Some("x,y,z")]
                {
                    let exchange = WireExchange {
                        api: &api,
                        request: body,
                        request_encoding: None,
                        status: 500,
                        content_type: Some(kind),
                        content_encoding: encoding,
                        response: body,
                    };
                    assert!(summary(&exchange).to_json().to_string().len() < 64 << 10);
                }
            }
        }
    }
}

#[test]
fn summaries_are_bounded() {
    let long = "x".repeat(1 << 20);
    let call = format!("{{\"id\":\"{long}\",\"function\":{{\"name\":\"{long}\",\"arguments\":\"{long}\"}}}}");
    let calls = [call.as_str(); 3].join(",") + &",{\"function\":{\"name\":\"f\"}}".repeat(5000);
    let body = format!(
        "{{\"id\":\"{long}\",\"model\":\"{long}\",\"choices\":[{{\"finish_reason\":\"{long}\",\"message\":{{\"content\":\"{long}\",\"refusal\":\"{long}\",\"tool_calls\":[{calls}]}}}}]}}"
    );
    let request = format!("{{\"model\":\"{long}\",\"stop\":\"{long}\",\"messages\":[]}}");
    let summary = read("/v1/chat/completions", &request, 200, &body);
    assert_eq!((summary.text.bytes(), summary.text.head().len()), (1 << 20, TEXT_BYTES_MAX));
    assert_eq!(summary.tool_calls.len(), TOOL_CALLS_MAX);
    assert_eq!(summary.tool_calls_more, 5003 - TOOL_CALLS_MAX as u64);
    for kept in [&summary.model_requested, &summary.model_answered, &summary.response_id, &summary.refusal] {
        assert_eq!(kept.as_ref().unwrap().len(), NAME_BYTES_MAX);
    }
    assert_eq!(summary.sampling["stop"], format!("({} bytes)", long.len() + 2));
    assert!(summary.to_json().to_string().len() < 64 << 10);
}

#[test]
fn parts_are_counted_over_all_messages() {
    let tokens = format!("[{}1]", "1,".repeat(999));
    let body = format!("{{\"input\":[{}{tokens}]}}", format!("{tokens},").repeat(299));
    let views = messages(&api("/v1/embeddings"), body.as_bytes());
    assert_eq!(views.len(), PARTS_MAX + 1);
    assert!(views.last().unwrap().preview.starts_with("more than 131072 parts"));
}

#[test]
fn non_json_streams_are_noted_as_unparsed() {
    let body = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choi\n\ndata: oops\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n";
    let summary = read("/v1/chat/completions", "not json", 200, body);
    assert_eq!(summary.text.head(), "ab");
    let unparsed = summary.unparsed.unwrap();
    assert!(unparsed.starts_with("the request is not JSON: "), "{unparsed}");
    assert!(unparsed.ends_with("an event is not JSON: {\"choi; 1 more events are not JSON"), "{unparsed}");
    let unparsed = |kind| read_bytes("/v1/messages", "{}", 200, kind, &[0, 0, 1, 2]).unparsed.unwrap();
    assert!(unparsed("application/octet-stream").contains("the answer is not JSON"));
    assert_eq!(unparsed("application/vnd.amazon.eventstream"), "the answer ends within an event");
}

#[test]
fn large_requests_take_linear_time() {
    let message = |at: usize| format!("{{\"role\":\"user\",\"content\":\"message number {at}\"}}");
    let row = |range: std::ops::Range<usize>| range.map(message).collect::<Vec<_>>().join(",");
    let before = format!("{{\"messages\":[{}]}}", row(0..40_000));
    let after = format!("{{\"messages\":[{}]}}", row(20_000..60_000));
    let api = api("/v1/chat/completions");
    let new = request_changes(&api, before.as_bytes(), after.as_bytes());
    assert_eq!((new.same, new.changes.len()), (20_000, 40_000));
    // The same message repeated, so that none is unique.
    let same = |count: usize| format!("{{\"messages\":[{}]}}", vec![message(1); count].join(","));
    let new = request_changes(&api, same(30_000).as_bytes(), same(30_002).as_bytes());
    assert_eq!((new.same, new.changes.len()), (30_000, 2));
    let failing = "{\"role\":\"tool\",\"content\":\"Error: x\"},".repeat(20_000);
    let request = format!("{{\"messages\":[{failing}{}]}}", message(1));
    assert_eq!(read("/v1/chat/completions", &request, 200, "{}").tool_errors.len(), 8);
}
