//! OpenAI chat completions, responses and embeddings, and servers with variants of them.

use serde_json::json;

use super::{calls, read, read_bytes};
use crate::providers::TokenUsage;

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";

#[test]
fn plain_answer_gives_its_metadata() {
    let request = r#"{"model":"gpt-4o","temperature":0.2,"max_completion_tokens":50,"stop":["\n\n"],"messages":[{"role":"user","content":"hi"}],"tools":[]}"#;
    let response = r#"{"id":"chatcmpl-1","object":"chat.completion","created":1730000000,"model":"gpt-4o-2024-08-06","system_fingerprint":"fp_1",
        "choices":[{"index":0,"message":{"role":"assistant","content":"Grüße \ud83d\ude00\n\u001b[31m","refusal":null},"logprobs":null,"finish_reason":"stop"}],
        "usage":{"prompt_tokens":100,"completion_tokens":20,"total_tokens":120,"prompt_tokens_details":{"cached_tokens":64},"completion_tokens_details":{"reasoning_tokens":7}}}"#;
    let summary = read(CHAT, request, 200, response);
    assert_eq!(
        summary.to_json(),
        json!({
            "provider": "openai-compatible",
            "api": "openai.chat",
            "model": "gpt-4o-2024-08-06",
            "model_requested": "gpt-4o",
            "sampling": {"temperature": 0.2, "max_completion_tokens": 50, "stop": ["\n\n"]},
            "stream": false,
            "usage": {"input": 100, "output": 20, "cached_input": 64, "reasoning": 7},
            "finish_reason": "stop",
            "text": "Grüße \u{1f600} [31m",
            "text_bytes": 18,
            "volatile": {"response_id": "chatcmpl-1", "created": "1730000000", "system_fingerprint": "fp_1"},
        })
    );
    assert_eq!(summary.unparsed, None);
}

fn chunk(delta: &str, finish: &str) -> String {
    format!(
        "data: {{\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m-1\",\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{finish}}}],\"usage\":null}}\n\n"
    )
}

pub(super) fn stream() -> String {
    [
        chunk(r#"{"role":"assistant","content":""}"#, "null"),
        chunk(r#"{"reasoning_content":"hm"}"#, "null"),
        ": ping\n\n".to_owned(),
        chunk(r#"{"content":"Gr\u00fc"}"#, "null"),
        chunk(r#"{"content":"ße 😀"}"#, "null"),
        chunk(r#"{"tool_calls":[{"index":0,"id":"call_a","type":"function","function":{"name":"find","arguments":""}}]}"#, "null"),
        chunk(r#"{"tool_calls":[{"index":1,"id":"call_b","type":"function","function":{"name":"read","arguments":"{\"n\""}}]}"#, "null"),
        chunk(r#"{"tool_calls":[{"index":0,"function":{"arguments":"{\"q\":\"a"}}]}"#, "null"),
        chunk(r#"{"tool_calls":[{"index":1,"function":{"arguments":":1}"}},{"index":0,"function":{"arguments":"\"}"}}]}"#, "null"),
        chunk("{}", "\"tool_calls\""),
        "data: {\"id\":\"c1\",\"model\":\"m-1\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4}}\n\n".to_owned(),
        "data: [DONE]\n\n".to_owned(),
    ]
    .concat()
}

#[test]
fn stream_chunks_are_joined() {
    let request = r#"{"model":"m","stream":true,"messages":[]}"#;
    for body in [
        stream(),
        stream().replace('\n', "\r\n"),
        stream().replace('\n', "\r"),
        format!("\u{feff}{}", stream()),
    ] {
        let summary = read(CHAT, request, 200, &body);
        assert_eq!(summary.text.head(), "Grüße 😀");
        assert_eq!(calls(&summary), [("call_a", "find", "{\"q\":\"a\"}"), ("call_b", "read", "{\"n\":1}")]);
        assert_eq!(summary.finish_reasons, ["tool_calls"]);
        assert_eq!(summary.usage, TokenUsage { input: Some(9), output: Some(4), ..TokenUsage::default() });
        assert_eq!(
            (summary.thinking_bytes, summary.complete, summary.stream),
            (Some(2), Some(true), Some(true))
        );
        assert_eq!(summary.unparsed, None);
        let metadata = summary.to_json();
        assert_eq!(metadata["volatile"]["tool_call_ids"], json!(["call_a", "call_b"]));
        assert_eq!(metadata["tool_calls"][0], json!({"name": "find", "arguments": "{\"q\":\"a\"}"}));
    }
}

#[test]
fn cut_stream_is_read_to_the_cut_and_incomplete() {
    let whole = stream();
    let mut texts = Vec::new();
    for end in 0..whole.len() {
        let summary =
            read_bytes(CHAT, "{\"stream\":true}", 200, "text/event-stream", &whole.as_bytes()[..end]);
        assert!("Grüße 😀".starts_with(summary.text.head()));
        texts.push(summary.text.head().to_owned());
        let reason = whole[..].find("\"tool_calls\"}]").unwrap_or(whole.len());
        if end < reason {
            assert_eq!(summary.complete, Some(false), "cut at {end}");
            assert_eq!(summary.to_json()["cut_short"], json!(true));
        }
    }
    texts.dedup();
    assert_eq!(texts, ["", "Grü", "Grüße 😀"]);
}

#[test]
fn error_messages_are_kept_verbatim() {
    for (status, body, kind, message) in [
        (
            429,
            r#"{"error":{"message":"Rate limit reached","type":"tokens","param":null,"code":"rate_limit_exceeded"}}"#,
            Some("tokens"),
            Some("Rate limit reached"),
        ),
        (
            401,
            r#"{"error":{"message":"no","type":null,"code":"invalid_api_key"}}"#,
            Some("invalid_api_key"),
            Some("no"),
        ),
        (404, r#"{"error":"model not found"}"#, None, Some("model not found")),
        (
            422,
            r#"{"detail":[{"loc":["body"],"msg":"missing"}]}"#,
            None,
            Some(r#"[{"loc":["body"],"msg":"missing"}]"#),
        ),
        (500, r#"{"message":"boom","code":3}"#, Some("3"), Some("boom")),
    ] {
        let error = read(CHAT, "{}", status, body).error.unwrap();
        assert_eq!((error.kind.as_deref(), error.message.as_deref()), (kind, message), "{body}");
    }
    let mistyped = read_bytes(CHAT, "{}", 400, "text/event-stream", b"{\"error\":{\"type\":\"t\"}}");
    assert_eq!(mistyped.error.unwrap().kind.unwrap(), "t");
    let page = read_bytes(CHAT, "{}", 502, "text/html", b"<html>\n<h1>Bad Gateway</h1>");
    assert_eq!(page.error.unwrap().message.unwrap(), "<html> <h1>Bad Gateway</h1>");
    assert!(page.unparsed.unwrap().starts_with("the answer is not JSON"));
    let within = read(
        CHAT,
        "{\"stream\":true}",
        200,
        &format!(
            "{}data: {{\"error\":{{\"type\":\"server_error\",\"message\":\"x\"}}}}\n\n",
            chunk("{}", "null")
        ),
    );
    assert_eq!(within.error.unwrap().kind.unwrap(), "server_error");
    assert_eq!(within.complete, Some(false));
}

#[test]
fn refusals_choices_and_compatible_servers_are_read() {
    let refused = read(
        CHAT,
        "{}",
        200,
        r#"{"choices":[{"message":{"content":null,"refusal":"I can't help"},"finish_reason":"stop"}]}"#,
    );
    assert_eq!(refused.refusal.unwrap(), "I can't help");
    let streamed =
        [chunk(r#"{"refusal":"I ca"}"#, "null"), chunk(r#"{"refusal":"n't"}"#, "\"stop\"")].concat();
    assert_eq!(read(CHAT, "{}", 200, &streamed).refusal.unwrap(), "I can't");
    let filtered = read(
        CHAT,
        "{}",
        200,
        r#"{"choices":[{"message":{"content":"x"},"finish_reason":"content_filter"}]}"#,
    );
    assert_eq!(filtered.refusal.unwrap(), "finish_reason content_filter");
    let two = read(
        CHAT,
        "{}",
        200,
        r#"{"choices":[{"index":1,"message":{"content":"b"},"finish_reason":"length"},{"index":0,"message":{"content":[{"type":"text","text":"a"}]},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"prompt_cache_hit_tokens":2}}"#,
    );
    assert_eq!((two.text.head(), two.finish_reasons.len(), two.usage.cached_input), ("a", 2, Some(2)));
    let old = read(
        CHAT,
        "{}",
        200,
        r#"{"choices":[{"message":{"content":null,"function_call":{"name":"f","arguments":"{}"}}}]}"#,
    );
    assert_eq!(calls(&old), [("", "f", "{}")]);
    let one = |id: &str, name: &str| {
        chunk(
            &format!(
                r#"{{"tool_calls":[{{"id":"{id}","function":{{"name":"{name}","arguments":"{{}}"}}}}]}}"#
            ),
            "null",
        )
    };
    let unnumbered = read(CHAT, "{}", 200, &[one("a", "f"), one("b", "g")].concat());
    assert_eq!(calls(&unnumbered), [("a", "f", "{}"), ("b", "g", "{}")]);
    let azure = read("/openai/deployments/dep/chat/completions", "{\"messages\":[]}", 200, "{}");
    assert_eq!((azure.model(), azure.provider), (Some("dep"), "azure"));
    let vectors = read(
        "/v1/embeddings",
        "{\"model\":\"e\",\"input\":[\"a\"]}",
        200,
        r#"{"data":[{"embedding":[0.1,0.2]}],"model":"e","usage":{"prompt_tokens":5,"total_tokens":5}}"#,
    );
    assert_eq!(vectors.usage.input, Some(5));
}

const RESPONSE: &str = r#"{"id":"resp_1","created_at":5,"status":"completed","error":null,"incomplete_details":null,"model":"gpt-5-2025","output":[
  {"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"think"}],"encrypted_content":"x"},
  {"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"Hi 😀","annotations":[]}]},
  {"type":"function_call","id":"fc_1","call_id":"call_1","name":"find","arguments":"{\"q\":1}"}],
  "usage":{"input_tokens":10,"input_tokens_details":{"cached_tokens":4},"output_tokens":8,"output_tokens_details":{"reasoning_tokens":2}}}"#;

pub(super) fn response_events() -> String {
    let event = |kind: &str, rest: &str| format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{rest}}}\n\n");
    [
        event("response.created", r#","response":{"id":"resp_1","status":"in_progress","model":"gpt-5-2025","output":[],"usage":null}"#),
        event("response.output_item.added", r#","output_index":0,"item":{"type":"reasoning"}"#),
        event("response.reasoning_summary_text.delta", r#","output_index":0,"delta":"think""#),
        event("response.output_text.delta", r#","output_index":1,"delta":"Hi ""#),
        event("response.output_text.delta", r#","output_index":1,"delta":"😀""#),
        event("response.output_item.added", r#","output_index":2,"item":{"type":"function_call","call_id":"call_1","name":"find","arguments":""}"#),
        event("response.function_call_arguments.delta", r#","output_index":2,"delta":"{\"q\"""#),
        event("response.function_call_arguments.delta", r#","output_index":2,"delta":":1}""#),
        event("response.completed", &format!(",\"response\":{}", RESPONSE.replace('\n', ""))),
    ]
    .concat()
}

#[test]
fn responses_plain_streamed_and_cut_are_equal() {
    let plain = read(RESPONSES, r#"{"model":"gpt-5","input":"hi"}"#, 200, RESPONSE);
    let streamed =
        read(RESPONSES, r#"{"model":"gpt-5","input":"hi","stream":true}"#, 200, &response_events());
    let events = response_events();
    let cut = read(
        RESPONSES,
        r#"{"stream":true}"#,
        200,
        &events[..events.find("event: response.completed").unwrap()],
    );
    for summary in [&plain, &streamed, &cut] {
        assert_eq!(summary.text.head(), "Hi 😀");
        assert_eq!(calls(summary), [("call_1", "find", "{\"q\":1}")]);
        assert_eq!(summary.thinking_bytes, Some(5));
        assert_eq!(summary.response_id.as_deref(), Some("resp_1"));
    }
    let usage = TokenUsage {
        input: Some(10),
        output: Some(8),
        cached_input: Some(4),
        cache_write: None,
        reasoning: Some(2),
    };
    assert_eq!((plain.usage, streamed.usage, cut.usage), (usage, usage, TokenUsage::default()));
    assert_eq!((plain.complete, streamed.complete, cut.complete), (None, Some(true), Some(false)));
    assert_eq!(
        (plain.finish_reasons.as_slice(), streamed.finish_reasons.as_slice()),
        (&["completed".to_owned()][..], &["completed".to_owned()][..])
    );
}

#[test]
fn failed_responses_give_an_error() {
    let failed = read(
        RESPONSES,
        "{}",
        200,
        r#"{"status":"failed","error":{"code":"server_error","message":"x"},"output":[]}"#,
    );
    assert_eq!(failed.error.unwrap().kind.unwrap(), "server_error");
    let short = read(
        RESPONSES,
        "{}",
        200,
        r#"{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"output":[]}"#,
    );
    assert_eq!(short.finish_reasons, ["max_output_tokens"]);
    let event = read(
        RESPONSES,
        "{}",
        200,
        "event: error\ndata: {\"type\":\"error\",\"code\":\"rate_limit\",\"message\":\"slow\"}\n\n",
    );
    let error = event.error.unwrap();
    assert_eq!((error.kind.as_deref(), error.message.as_deref()), (Some("rate_limit"), Some("slow")));
    let refused = read(
        RESPONSES,
        "{}",
        200,
        r#"{"status":"completed","output":[{"type":"message","content":[{"type":"refusal","refusal":"no"}]}]}"#,
    );
    assert_eq!(refused.refusal.unwrap(), "no");
}
