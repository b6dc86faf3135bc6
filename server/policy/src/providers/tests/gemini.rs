//! Gemini and Ollama.

use super::{calls, read, read_bytes};
use crate::providers::TokenUsage;

const PLAIN: &str = "/v1beta/models/gemini-2.5-flash:generateContent";
const STREAM: &str = "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse";

pub(super) const FIRST: &str = r#"{"candidates":[{"content":{"parts":[{"text":"hmm","thought":true},{"text":"Hé"}],"role":"model"},"index":0}],"usageMetadata":{"promptTokenCount":7},"modelVersion":"gemini-2.5-flash","responseId":"r1"}"#;
pub(super) const SECOND: &str = r#"{"candidates":[{"content":{"parts":[{"text":"llo 🌍"},{"functionCall":{"name":"find","args":{"q":1}}}],"role":"model"},"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":7,"candidatesTokenCount":4,"thoughtsTokenCount":3,"cachedContentTokenCount":2},"modelVersion":"gemini-2.5-flash","responseId":"r1"}"#;

#[test]
fn plain_events_and_arrays_give_equal_summaries() {
    let request = r#"{"contents":[{"parts":[{"text":"hi"}]}],"generationConfig":{"temperature":0.5,"maxOutputTokens":9}}"#;
    let joined =
        SECOND.replace("\"text\":\"llo 🌍\"", "\"text\":\"hmm\",\"thought\":true},{\"text\":\"Héllo 🌍\"");
    for (path, body) in [
        (PLAIN, joined),
        (STREAM, format!("data: {FIRST}\r\n\r\ndata: {SECOND}\r\n\r\n")),
        (STREAM, format!("[{FIRST}\n,\r\n{SECOND}\n]\n")),
    ] {
        let summary = read(path, request, 200, &body);
        assert_eq!(summary.text.head(), "Héllo 🌍");
        assert_eq!(calls(&summary), [("", "find", "{\"q\":1}")]);
        assert_eq!(summary.thinking_bytes, Some(3));
        let usage = TokenUsage {
            input: Some(7),
            output: Some(7),
            cached_input: Some(2),
            cache_write: None,
            reasoning: Some(3),
        };
        assert_eq!(summary.usage, usage);
        assert_eq!(summary.complete, (path == STREAM).then_some(true));
        assert_eq!(
            (summary.model(), summary.sampling["maxOutputTokens"].as_u64()),
            (Some("gemini-2.5-flash"), Some(9))
        );
        assert_eq!((summary.unparsed, summary.finish_reasons), (None, vec!["STOP".to_owned()]));
    }
}

#[test]
fn cuts_blocks_and_errors_are_noted() {
    let cut = read(STREAM, "{}", 200, &format!("[{FIRST}\n,\r\n{}", &SECOND[..90]));
    assert_eq!((cut.text.head(), cut.complete), ("Hé", Some(false)));
    assert!(cut.unparsed.unwrap().contains("the last 90 bytes"));
    let blocked = read(
        PLAIN,
        "{}",
        200,
        r#"{"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":4}}"#,
    );
    assert_eq!(blocked.refusal.unwrap(), "prompt blocked: SAFETY");
    let stopped = read(PLAIN, "{}", 200, r#"{"candidates":[{"finishReason":"PROHIBITED_CONTENT"}]}"#);
    assert_eq!(stopped.refusal.unwrap(), "finishReason PROHIBITED_CONTENT");
    for body in [
        r#"{"error":{"code":429,"message":"quota","status":"RESOURCE_EXHAUSTED"}}"#,
        r#"[{"error":{"code":429,"message":"quota","status":"RESOURCE_EXHAUSTED"}}]"#,
    ] {
        let error = read(STREAM, "{}", 429, body).error.unwrap();
        assert_eq!(
            (error.kind.as_deref(), error.message.as_deref()),
            (Some("RESOURCE_EXHAUSTED"), Some("quota"))
        );
    }
}

#[test]
fn ollama_lines_are_read() {
    let lines = concat!(
        r#"{"model":"llama3","created_at":"2025-01-01T00:00:00Z","message":{"role":"assistant","content":"","thinking":"hm"},"done":false}"#,
        "\n",
        r#"{"model":"llama3","created_at":"2025-01-01T00:00:01Z","message":{"role":"assistant","content":"Hal"},"done":false}"#,
        "\n",
        r#"{"model":"llama3","message":{"role":"assistant","content":"lo","tool_calls":[{"function":{"name":"find","arguments":{"q":"x"}}}]},"done":false}"#,
        "\n",
        r#"{"model":"llama3","message":{"role":"assistant","content":""},"done_reason":"stop","done":true,"prompt_eval_count":11,"eval_count":5}"#,
        "\n",
    );
    let request = r#"{"model":"llama3","messages":[],"options":{"temperature":0,"num_ctx":8}}"#;
    let summary = read_bytes("/api/chat", request, 200, "application/x-ndjson", lines.as_bytes());
    assert_eq!(
        (summary.text.head(), summary.complete, summary.thinking_bytes),
        ("Hallo", Some(true), Some(2))
    );
    assert_eq!(calls(&summary), [("", "find", "{\"q\":\"x\"}")]);
    assert_eq!((summary.usage.input, summary.usage.output), (Some(11), Some(5)));
    assert_eq!(summary.sampling["num_ctx"], 8);
    let cut = read_bytes("/api/chat", request, 200, "application/x-ndjson", &lines.as_bytes()[..300]);
    assert_eq!((cut.complete, cut.text.head()), (Some(false), "Hal"));
    let missing = read("/api/chat", request, 404, r#"{"error":"model 'x' not found"}"#);
    assert_eq!(missing.error.unwrap().message.unwrap(), "model 'x' not found");
    let old = read(
        "/api/generate",
        r#"{"model":"m","prompt":"a","stream":false}"#,
        200,
        r#"{"model":"m","response":"b","done":true}"#,
    );
    assert_eq!((old.text.head(), old.stream, old.complete), ("b", Some(false), None));
}
