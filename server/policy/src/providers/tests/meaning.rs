//! Meanings of requests and answers, independent of their form.

use super::api;
use crate::providers::{Meaning, WireExchange};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const CLAUDE: &str = "/v1/messages";
const GEMINI: &str = "/v1beta/models/g:streamGenerateContent";
const OLLAMA: &str = "/api/chat";

/// Writes words as the events of a stream.
type StreamFormat<'a> = &'a dyn Fn(&[&str]) -> String;

fn asked(path: &str, body: &str) -> Meaning {
    Meaning::of_request(&api(path), body.as_bytes()).unwrap()
}

fn answered(path: &str, response: &str) -> Option<Meaning> {
    let kind = if response.starts_with(['{', '[']) { "application/json" } else { "text/event-stream" };
    Meaning::of_answer(&WireExchange {
        api: &api(path),
        request: b"{}",
        request_encoding: None,
        status: 200,
        content_type: Some(kind),
        content_encoding: None,
        response: response.as_bytes(),
    })
}

fn difference_lines(a: &Meaning, b: &Meaning) -> Vec<String> {
    a.differences(b).iter().map(ToString::to_string).collect()
}

/// Ids, key order, spacing, the form of content and cache marks are not part of the meaning.
#[test]
fn request_form_does_not_change_its_meaning() {
    for (path, a, b) in [
        (
            CHAT,
            r#"{"model":"m","messages":[{"role":"user","content":"hi"},{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"a\":1,\"b\":2}"}}]},{"role":"tool","tool_call_id":"1","content":"{\"x\": 1}"}]}"#,
            r#"{"messages":[{"content":[{"type":"text","text":"h\u0069"}],"role":"user"},{"role":"assistant","tool_calls":[{"id":"2","function":{"name":"f","arguments":"{ \"b\": 2, \"a\": 1 }"}}]},{"role":"tool","tool_call_id":"2","content":"{\"x\":1}"}],"model":"m"}"#,
        ),
        (
            CLAUDE,
            r#"{"system":"s","messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{"n":1}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"r"}]}]}"#,
            r#"{"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"b","name":"f","input":{"n":1}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"b","content":[{"type":"text","text":"r"}]}]}]}"#,
        ),
        (
            RESPONSES,
            r#"{"input":"hi"}"#,
            r#"{"input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]}]}"#,
        ),
    ] {
        let (a, b) = (asked(path, a), asked(path, b));
        assert_eq!((difference_lines(&a, &b), a.hash() == b.hash()), (vec![], true), "{path}");
    }
}

#[test]
fn request_change_is_listed_with_its_place() {
    let of = |message: &str| {
        asked(CHAT, &format!(r#"{{"model":"m","messages":[{{"role":"user","content":"q"}},{message}]}}"#))
    };
    let call = |name: &str, arguments: &str| {
        of(&format!(
            r#"{{"role":"assistant","tool_calls":[{{"id":"1","function":{{"name":"{name}","arguments":"{arguments}"}}}}]}}"#
        ))
    };
    assert_eq!(
        difference_lines(&call("f", "{}"), &call("g", "{}")),
        ["~ message 2, assistant tool call: f -> g"]
    );
    assert_eq!(
        difference_lines(&call("f", r#"{\"a\":[1,2],\"b\":1}"#), &call("f", r#"{\"a\":[1,3],\"c d\":1}"#)),
        [
            "~ message 2, assistant tool call f\n    $.a[1]: 2 -> 3\n    $.b: 1 -> nothing\n    $['c d']: nothing -> 1"
        ]
    );
    let text = |text: &str| of(&format!(r#"{{"role":"user","content":"{text}"}}"#));
    assert_eq!(
        difference_lines(&text("it is warm"), &text("it is cold")),
        ["~ message 2, user text, from byte 6\n    was  it is warm\n    is   it is cold"]
    );
    assert_eq!(
        difference_lines(
            &asked(CHAT, r#"{"model":"a","messages":[]}"#),
            &asked(CHAT, r#"{"model":"b","messages":[{"role":"user","content":"x"}]}"#)
        ),
        ["~ parameter model: a -> b", "+ message 1, user text: x"]
    );
}

/// A stream means the same as the complete answer, however it was cut.
#[test]
fn stream_meaning_equals_plain_meaning() {
    let event = |data: &str| format!("data: {data}\n\n");
    let chat = |words: &[&str]| {
        let delta = |word: &&str| {
            event(&format!(
                r#"{{"id":"{}","choices":[{{"index":0,"delta":{{"content":"{word}"}}}}]}}"#,
                words.len()
            ))
        };
        words.iter().map(delta).collect::<String>()
            + &event(r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#)
            + &event("[DONE]")
    };
    let claude = |words: &[&str]| {
        let delta = |word: &&str| {
            format!(
                "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{{\"type\":\"text_delta\",\"text\":\"{word}\"}}}}\n\n"
            )
        };
        let start = format!(
            "event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{{\"id\":\"{}\",\"model\":\"c\"}}}}\n\nevent: content_block_start\ndata: {{\"type\":\"content_block_start\",\"index\":0,\"content_block\":{{\"type\":\"text\",\"text\":\"\"}}}}\n\n",
            words.len()
        );
        start
            + &words.iter().map(delta).collect::<String>()
            + "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
    };
    let gemini = |words: &[&str]| {
        words
            .iter()
            .map(|word| {
                event(&format!(
                    r#"{{"candidates":[{{"content":{{"role":"model","parts":[{{"text":"{word}"}}]}}}}]}}"#
                ))
            })
            .collect::<String>()
    };
    let responses = |words: &[&str]| {
        let delta = |word: &&str| {
            format!(
                "event: response.output_text.delta\ndata: {{\"type\":\"response.output_text.delta\",\"output_index\":0,\"content_index\":0,\"delta\":\"{word}\"}}\n\n"
            )
        };
        words.iter().map(delta).collect::<String>()
    };
    let ollama = |words: &[&str]| {
        let row = |word: &&str| {
            format!(
                "{{\"model\":\"o\",\"message\":{{\"role\":\"assistant\",\"content\":\"{word}\"}},\"done\":false}}\n"
            )
        };
        words.iter().map(row).collect::<String>() + "{\"model\":\"o\",\"done\":true}\n"
    };
    let forms: [(&str, StreamFormat<'_>); 5] =
        [(CHAT, &chat), (CLAUDE, &claude), (GEMINI, &gemini), (RESPONSES, &responses), (OLLAMA, &ollama)];
    for (path, form) in forms {
        let of = |words: &[&str]| answered(path, &form(words)).expect(path);
        let (a, b, c) = (of(&["it is", " warm"]), of(&["it ", "is", " warm"]), of(&["it is", " cold"]));
        assert_eq!((difference_lines(&a, &b), a.hash() == b.hash()), (vec![], true), "{path}");
        assert_eq!(
            difference_lines(&a, &c),
            ["~ assistant text, from byte 6\n    was  it is warm\n    is   it is cold"],
            "{path}"
        );
    }
}

/// Bodies that are not completely read never count as equal: their bytes are compared.
#[test]
fn partly_read_body_has_no_meaning() {
    for (path, answer) in [
        (CHAT, "no JSON"),
        (CHAT, ""),
        (
            CHAT,
            r#"{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"},{"index":1,"message":{"content":"b"},"finish_reason":"stop"}]}"#,
        ),
        (
            CHAT,
            r#"{"choices":[{"index":0,"message":{"content":"a","audio":{"data":"AAAA"}},"finish_reason":"stop"}]}"#,
        ),
        (
            GEMINI,
            r#"[{"candidates":[{"content":{"parts":[{"text":"a"},{"inlineData":{"mimeType":"image/png","data":"AAAA"}}]}}]}]"#,
        ),
        ("/v1/embeddings", r#"{"data":[{"embedding":[1]}],"model":"e"}"#),
        ("/other", r#"{"choices":[]}"#),
    ] {
        assert!(answered(path, answer).is_none(), "{path}: {answer}");
    }
    assert!(Meaning::of_request(&api(CHAT), b"{no json").is_none());
    assert!(Meaning::of_message(&api(CHAT), b"19 degrees").is_none());
}
