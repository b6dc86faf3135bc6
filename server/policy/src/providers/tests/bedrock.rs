//! Amazon Bedrock: Converse and InvokeModel, plain and as AWS's event stream, in the forms that boto3 1.44
//! reads.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::{calls, read, read_bytes};
use crate::providers::TokenUsage;
use crate::providers::aws_events::tests::{encoded, event};

const NOVA: &str = "/model/amazon.nova-lite-v1%3A0/converse";
const STREAM: &str = "/model/amazon.nova-lite-v1%3A0/converse-stream";
const CLAUDE: &str = "/model/anthropic.claude-3-haiku-20240307-v1%3A0/invoke-with-response-stream";
const KIND: &str = "application/vnd.amazon.eventstream";

pub(super) fn converse_stream() -> Vec<u8> {
    [
        event("messageStart", r#"{"role":"assistant"}"#),
        event("contentBlockDelta", r#"{"contentBlockIndex":0,"delta":{"reasoningContent":{"text":"hm"}}}"#),
        event("contentBlockDelta", r#"{"contentBlockIndex":1,"delta":{"text":"Olá "}}"#),
        event("contentBlockDelta", r#"{"contentBlockIndex":1,"delta":{"text":"🌍"}}"#),
        event(
            "contentBlockStart",
            r#"{"contentBlockIndex":2,"start":{"toolUse":{"toolUseId":"t1","name":"find"}}}"#,
        ),
        event("contentBlockDelta", r#"{"contentBlockIndex":2,"delta":{"toolUse":{"input":"{\"q\":1}"}}}"#),
        event("contentBlockStop", r#"{"contentBlockIndex":2}"#),
        event("messageStop", r#"{"stopReason":"tool_use"}"#),
        event(
            "metadata",
            r#"{"usage":{"inputTokens":10,"outputTokens":4,"totalTokens":17,"cacheReadInputTokens":3}}"#,
        ),
    ]
    .concat()
}

fn chunk(json: &str) -> Vec<u8> {
    event("chunk", &format!(r#"{{"bytes":"{}","p":"abcd"}}"#, STANDARD.encode(json)))
}

fn usage(input: u64, output: u64) -> TokenUsage {
    TokenUsage { input: Some(input), output: Some(output), ..TokenUsage::default() }
}

#[test]
fn converse_gives_model_tokens_text_and_calls() {
    let request = r#"{"inferenceConfig":{"maxTokens":9},"messages":[{"role":"user","content":[{"toolResult":{"toolUseId":"t0","status":"error","content":[{"text":"gone"}]}}]}]}"#;
    let answer = r#"{"output":{"message":{"role":"assistant","content":[{"text":"hello"},{"toolUse":{"toolUseId":"t1","name":"find","input":{"q":1}}}]}},"stopReason":"tool_use","usage":{"inputTokens":10,"outputTokens":4,"totalTokens":14}}"#;
    let summary = read(NOVA, request, 200, answer);
    assert_eq!((summary.model(), summary.provider), (Some("amazon.nova-lite-v1:0"), "bedrock"));
    assert_eq!((summary.usage, summary.text.head()), (usage(10, 4), "hello"));
    assert_eq!(calls(&summary), [("t1", "find", r#"{"q":1}"#)]);
    assert_eq!(summary.finish_reasons, ["tool_use"]);
    assert_eq!(summary.sampling["maxTokens"], 9);
    assert_eq!(summary.tool_errors, ["t0: gone"]);
    assert_eq!((summary.stream, summary.unparsed), (Some(false), None));
}

#[test]
fn converse_stream_gives_model_tokens_text_and_calls() {
    let summary = read_bytes(STREAM, "{}", 200, KIND, &converse_stream());
    assert_eq!(summary.model(), Some("amazon.nova-lite-v1:0"));
    assert_eq!(summary.usage, TokenUsage { cached_input: Some(3), ..usage(13, 4) });
    assert_eq!((summary.text.head(), summary.thinking_bytes), ("Olá 🌍", Some(2)));
    assert_eq!(calls(&summary), [("t1", "find", r#"{"q":1}"#)]);
    assert_eq!((summary.stream, summary.complete), (Some(true), Some(true)));
    assert_eq!(summary.unparsed, None);
}

#[test]
fn converse_stream_that_is_cut_or_damaged_says_so() {
    let mut body = converse_stream();
    let cut = read_bytes(STREAM, "{}", 200, KIND, &body[..250]);
    assert_eq!(cut.complete, Some(false));
    assert_eq!(cut.unparsed.as_deref(), Some("the answer ends within an event"));
    body[300] ^= 1;
    let damaged = read_bytes(STREAM, "{}", 200, KIND, &body);
    assert!(damaged.unparsed.unwrap().contains("damaged") && damaged.complete == Some(false));
    // An error before the stream is JSON.
    let refused = read(STREAM, "{}", 400, r#"{"message":"no such model"}"#);
    assert_eq!(refused.error.unwrap().message.as_deref(), Some("no such model"));
    let throttled = encoded(
        &[(":exception-type", "throttlingException"), (":message-type", "exception")],
        br#"{"message":"slow down"}"#,
    );
    let error = read_bytes(STREAM, "{}", 200, KIND, &throttled).error.unwrap();
    assert_eq!(error.kind.as_deref(), Some("throttlingException"));
    assert_eq!(error.message.as_deref(), Some("slow down"));
    let failed =
        encoded(&[(":error-code", "500"), (":error-message", "gone"), (":message-type", "error")], b"");
    let error = read_bytes(STREAM, "{}", 200, KIND, &failed).error.unwrap();
    assert_eq!((error.kind.as_deref(), error.message.as_deref()), (Some("500"), Some("gone")));
}

#[test]
fn invoke_stream_of_anthropic_gives_model_and_tokens() {
    let body = [
        chunk(
            r#"{"type":"message_start","message":{"id":"m","model":"claude-3-haiku","usage":{"input_tokens":11,"output_tokens":1}}}"#,
        ),
        chunk(r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}"#),
        chunk(
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":5}}"#,
        ),
        chunk(
            r#"{"type":"message_stop","amazon-bedrock-invocationMetrics":{"inputTokenCount":11,"outputTokenCount":5}}"#,
        ),
    ]
    .concat();
    let summary = read_bytes(CLAUDE, "{}", 200, KIND, &body);
    assert_eq!(summary.model_requested.as_deref(), Some("anthropic.claude-3-haiku-20240307-v1:0"));
    assert_eq!((summary.usage, summary.text.head()), (usage(11, 5), "hi"));
    assert_eq!(
        (summary.complete, summary.finish_reasons.as_slice()),
        (Some(true), &["end_turn".to_owned()][..])
    );
}

#[test]
fn invoke_of_other_families_gives_tokens_of_body_or_headers() {
    let llama = "/model/meta.llama3-8b-instruct-v1%3A0/invoke";
    let answer =
        r#"{"generation":"hi","prompt_token_count":7,"generation_token_count":2,"stop_reason":"stop"}"#;
    assert_eq!(read(llama, "{}", 200, answer).usage, usage(7, 2));
    let titan = r#"{"inputTextTokenCount":7,"results":[{"tokenCount":2,"outputText":"hi","completionReason":"FINISH"}]}"#;
    assert_eq!(read(llama, "{}", 200, titan).usage, usage(7, 2));
    let body = [
        chunk(r#"{"contentBlockDelta":{"contentBlockIndex":0,"delta":{"text":"hi"}}}"#),
        chunk(
            r#"{"messageStop":{"stopReason":"end_turn"},"amazon-bedrock-invocationMetrics":{"inputTokenCount":7,"outputTokenCount":2}}"#,
        ),
    ];
    let path = "/model/amazon.nova-lite-v1%3A0/invoke-with-response-stream";
    let nova = read_bytes(path, "{}", 200, KIND, &body.concat());
    assert_eq!((nova.usage, nova.text.head(), nova.complete), (usage(7, 2), "hi", Some(true)));
    let mut unknown = read(llama, "{}", 200, r#"{"text":"hi"}"#);
    let header = |name: &str| match name {
        "x-amzn-bedrock-input-token-count" => Some("7"),
        "x-amzn-bedrock-output-token-count" => Some("2"),
        _ => None,
    };
    unknown.count_by_headers(header);
    assert_eq!(unknown.usage, usage(7, 2));
    unknown.count_by_headers(|_| Some("-1"));
    assert_eq!(unknown.usage, usage(7, 2));
}
