//! Anthropic messages.

use super::{calls, read, read_bytes};
use crate::providers::TokenUsage;

const MESSAGES: &str = "/v1/messages";

#[test]
fn plain_answer_gives_thinking_and_tool_call() {
    let request = r#"{"model":"claude-x","max_tokens":1024,"thinking":{"type":"enabled","budget_tokens":512},"messages":[{"role":"user","content":"hi"}]}"#;
    let response = r#"{"id":"msg_1","type":"message","role":"assistant","model":"claude-x-2025","content":[
        {"type":"thinking","thinking":"let me see","signature":"abc"},{"type":"redacted_thinking","data":"zzz"},
        {"type":"text","text":"Ich schaue."},{"type":"tool_use","id":"toolu_1","name":"find","input":{"q":"ä"}}],
        "stop_reason":"tool_use","stop_sequence":null,"usage":{"input_tokens":10,"cache_creation_input_tokens":100,"cache_read_input_tokens":1000,"output_tokens":30}}"#;
    let summary = read(MESSAGES, request, 200, response);
    assert_eq!(calls(&summary), [("toolu_1", "find", "{\"q\":\"ä\"}")]);
    assert_eq!(summary.text.head(), "Ich schaue.");
    assert_eq!(summary.thinking_bytes, Some(10));
    let usage = TokenUsage {
        input: Some(1110),
        output: Some(30),
        cached_input: Some(1000),
        cache_write: Some(100),
        reasoning: None,
    };
    assert_eq!(summary.usage, usage);
    assert_eq!(summary.finish_reasons, ["tool_use"]);
    assert_eq!(summary.sampling["thinking"]["budget_tokens"], 512);
    assert_eq!((summary.complete, summary.unparsed), (None, None));
}

pub(super) fn stream() -> String {
    let event = |kind: &str, rest: &str| format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{rest}}}\n\n");
    [
        ": ping\n\n".to_owned(),
        event("message_start", r#","message":{"id":"msg_1","role":"assistant","model":"claude-x","content":[],"stop_reason":null,"usage":{"input_tokens":25,"cache_read_input_tokens":5,"output_tokens":1}}"#),
        event("content_block_start", r#","index":0,"content_block":{"type":"thinking","thinking":""}"#),
        event("content_block_delta", r#","index":0,"delta":{"type":"thinking_delta","thinking":"hmm"}"#),
        event("content_block_delta", r#","index":0,"delta":{"type":"signature_delta","signature":"s"}"#),
        event("content_block_stop", r#","index":0"#),
        event("ping", ""),
        event("content_block_start", r#","index":1,"content_block":{"type":"text","text":""}"#),
        event("content_block_delta", r#","index":1,"delta":{"type":"text_delta","text":"Ol"}"#),
        event("content_block_delta", r#","index":1,"delta":{"type":"text_delta","text":"á 🌍"}"#),
        event("content_block_start", r#","index":2,"content_block":{"type":"tool_use","id":"toolu_1","name":"find","input":{}}"#),
        event("content_block_delta", r#","index":2,"delta":{"type":"input_json_delta","partial_json":""}"#),
        event("content_block_delta", r#","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"q\": \"x"}"#),
        event("content_block_delta", r#","index":2,"delta":{"type":"input_json_delta","partial_json":"y\"}"}"#),
        event("content_block_start", r#","index":3,"content_block":{"type":"tool_use","id":"toolu_2","name":"now","input":{}}"#),
        event("content_block_stop", r#","index":3"#),
        event("message_delta", r#","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":42}"#),
        event("message_stop", ""),
    ]
    .concat()
}

#[test]
fn stream_with_pings_equals_plain_answer() {
    for body in [stream(), stream().replace('\n', "\r\n")] {
        let summary = read(MESSAGES, r#"{"model":"claude-x","stream":true}"#, 200, &body);
        assert_eq!(summary.text.head(), "Olá 🌍");
        assert_eq!(calls(&summary), [("toolu_1", "find", "{\"q\": \"xy\"}"), ("toolu_2", "now", "")]);
        assert_eq!(summary.thinking_bytes, Some(3));
        let usage =
            TokenUsage { input: Some(30), output: Some(42), cached_input: Some(5), ..TokenUsage::default() };
        assert_eq!(summary.usage, usage);
        assert_eq!((summary.complete, summary.model()), (Some(true), Some("claude-x")));
        assert_eq!(summary.unparsed, None);
    }
}

#[test]
fn stream_starting_with_a_comment_is_recognised() {
    for kind in ["", "text/plain", "application/json"] {
        let summary = read_bytes(MESSAGES, r#"{"stream":true}"#, 200, kind, stream().as_bytes());
        assert_eq!(summary.text.head(), "Olá 🌍", "{kind}");
    }
}

#[test]
fn cut_compressed_stream_is_read_to_the_cut() {
    let body = zstd::encode_all(stream().as_bytes(), 3).unwrap();
    let api = super::api(MESSAGES);
    let read = |response: &[u8]| {
        crate::providers::summary(&crate::providers::WireExchange {
            api: &api,
            request: br#"{"stream":true}"#,
            request_encoding: Some("identity"),
            status: 200,
            content_type: Some("text/event-stream"),
            content_encoding: Some("zstd"),
            response,
        })
    };
    assert_eq!(read(&body).complete, Some(true));
    let cut = read(&body[..body.len() - 3]);
    assert!(cut.unparsed.unwrap().starts_with("the answer is cut or damaged as zstd"));
}

#[test]
fn errors_refusals_and_cuts_are_noted() {
    let limited = read(
        MESSAGES,
        "{}",
        429,
        r#"{"type":"error","error":{"type":"rate_limit_error","message":"slow"},"request_id":"r"}"#,
    );
    assert_eq!(limited.error.unwrap().kind.unwrap(), "rate_limit_error");
    let body = stream();
    let overloaded = format!(
        "{}event: error\ndata: {{\"type\":\"error\",\"error\":{{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}}}\n\n",
        &body[..body.find("event: content_block_stop").unwrap()]
    );
    let within = read(MESSAGES, r#"{"stream":true}"#, 200, &overloaded);
    assert_eq!(within.error.as_ref().unwrap().kind.as_deref(), Some("overloaded_error"));
    assert_eq!((within.complete, within.thinking_bytes), (Some(false), Some(3)));
    let refused = read(MESSAGES, "{}", 200, r#"{"content":[],"stop_reason":"refusal"}"#);
    assert_eq!(refused.refusal.unwrap(), "stop_reason refusal");
    let cut = read_bytes(MESSAGES, "{}", 200, "text/event-stream", &body.as_bytes()[..body.len() - 9]);
    assert_eq!(cut.complete, Some(false));
    assert_eq!(cut.unparsed.unwrap(), "the answer ends within an event");
    let count = read("/v1/messages/count_tokens", "{\"model\":\"c\"}", 200, "{\"input_tokens\":14}");
    assert_eq!((count.usage.input, count.shape.is_model_call()), (Some(14), false));
}

#[test]
fn only_tool_failures_of_the_last_turn_are_listed() {
    let request = r#"{"messages":[{"role":"user","content":"go"},
        {"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"old","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","is_error":true,"content":"was bad"}]},
        {"role":"assistant","content":[{"type":"tool_use","id":"t2","name":"find","input":{}},{"type":"tool_use","id":"t3","name":"ok","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"t2","is_error":true,"content":[{"type":"text","text":"no such\nfile"}]},
            {"type":"tool_result","tool_use_id":"t3","content":"fine"}]}]}"#;
    assert_eq!(read(MESSAGES, request, 200, "{}").tool_errors, ["find: no such file"]);
    let chat = r#"{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"run","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"a","content":"{\"error\": \"exit 1\"}"},{"role":"tool","tool_call_id":"b","content":"{\"error\": null}"}]}"#;
    assert_eq!(read("/v1/chat/completions", chat, 200, "{}").tool_errors, ["run: {\"error\": \"exit 1\"}"]);
    let responses = r#"{"input":[{"type":"function_call","call_id":"a","name":"run","arguments":"{}"},
        {"type":"function_call_output","call_id":"a","output":"Traceback (most recent call last):\n  x"}]}"#;
    assert_eq!(
        read("/v1/responses", responses, 200, "{}").tool_errors,
        ["run: Traceback (most recent call last): x"]
    );
    let gemini = r#"{"contents":[{"role":"model","parts":[{"functionCall":{"name":"run","args":{}}}]},
        {"role":"user","parts":[{"functionResponse":{"name":"run","response":{"error":"bad"}}}]}]}"#;
    assert_eq!(
        read("/v1beta/models/g:generateContent", gemini, 200, "{}").tool_errors,
        ["run: {\"error\":\"bad\"}"]
    );
}
