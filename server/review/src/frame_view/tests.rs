//! Views of frames of every provider's form, of bodies that are no conversation, and of hostile bodies.

use annals::{Component, Frame, RunReader, RunSpec, Status, Store};
use annals_policy::profiles::{Profile, Redactor};
use annals_policy::providers::{ConversationPart, Prices};
use serde_json::{Value, json};

use super::{
    FrameStatus, FrameView, FrameViewOptions, Lanes, ShownSeverity, TEXT_BYTES_MAX, Timeline, frame_view,
    timeline,
};

const SECOND_NS: u64 = 1_000_000_000;
const BEGAN_NS: u64 = 1_800_000_000 * SECOND_NS;

struct ViewBench {
    reader: RunReader,
    _store: Store,
    _directory: tempfile::TempDir,
}

impl ViewBench {
    fn of(frames: Vec<Frame>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path().join("s")).unwrap();
        let space = store.namespace("default").unwrap();
        let run = space.begin_run(RunSpec::new("r").started_ns(BEGAN_NS)).unwrap();
        for frame in frames {
            run.record(frame).unwrap();
        }
        run.end(Status::Ok).unwrap();
        Self { reader: space.run("r").unwrap(), _store: store, _directory: directory }
    }

    fn view(&self, seq: u32) -> FrameView {
        self.view_with(seq, false, TEXT_BYTES_MAX, None)
    }

    fn view_with(&self, seq: u32, all: bool, text_bytes_max: usize, by: Option<&Redactor>) -> FrameView {
        let prices = Prices::built_in();
        let options = FrameViewOptions { redactor: by, all, text_bytes_max, prices: &prices };
        frame_view(&self.reader, seq, &options).unwrap()
    }

    fn timeline(&self, from: u32, limit: usize) -> Timeline {
        timeline(&self.reader, from, limit, &Prices::built_in(), None).unwrap()
    }
}

fn at(mut frame: Frame, began_s: u64, took_s: u64) -> Frame {
    frame.started_ns = Some(BEGAN_NS + began_s * SECOND_NS);
    frame.duration_ns = took_s * SECOND_NS;
    frame
}

fn exchange(path: &str, kind: &str, request: impl Into<Vec<u8>>, answer: impl Into<Vec<u8>>) -> Frame {
    let metadata = json!({
        "http": { "mount": "openai", "method": "POST", "path": path, "status": 200 },
        "model": "gpt-4o", "usage": { "input": 1000, "output": 500 },
        "volatile": { "asked": "", "request_headers": [], "response_headers": [["content-type", kind]] },
    });
    let (request, answer): (Vec<u8>, Vec<u8>) = (request.into(), answer.into());
    at(Frame::new(Component::Llm, request, answer).metadata(metadata.to_string()), 1, 2)
}

/// The messages as short lines: `role at: part | part`.
fn lines(messages: &[annals_policy::providers::ConversationMessage]) -> Vec<String> {
    let part = |part: &ConversationPart| match part {
        ConversationPart::Text { text, .. } => text.clone(),
        ConversationPart::Thinking { text, .. } => format!("({text})"),
        ConversationPart::ToolCall { id, name, arguments, .. } => format!("{name}#{id}{arguments}"),
        ConversationPart::ToolResult { id, name, text, error, .. } => {
            format!("{}#{id} = {text}{}", name.as_deref().unwrap_or("?"), if *error { " failed" } else { "" })
        }
        ConversationPart::Image { media_type, base64, url, bytes } => {
            format!("{media_type} {bytes} {base64:?} {url:?}")
        }
        ConversationPart::Other { json, .. } => format!("other {json}"),
        ConversationPart::Binary { bytes, hex } => format!("binary {bytes} {hex}"),
    };
    messages
        .iter()
        .map(|message| {
            let parts: Vec<String> = message.parts.iter().map(part).collect();
            format!("{} {}: {}", message.role, message.at.as_deref().unwrap_or("-"), parts.join(" | "))
        })
        .collect()
}

/// Two agents that take turns each have a conversation. A request was once compared with the last request of the run,
/// so every message of an agent looked new after the other one had spoken.
#[test]
fn interleaved_agents_are_compared_with_themselves() {
    let request = |agent: &str, turns: usize| {
        let mut messages = vec![
            json!({"role":"system","content":format!("You are {agent}.")}),
            json!({"role":"user","content":"Plan the trip."}),
        ];
        for turn in 0..turns {
            messages.push(json!({"role":"assistant","content":format!("{agent} says {turn}")}));
            messages.push(json!({"role":"user","content":format!("go on with {turn}")}));
        }
        json!({"model":"m","messages":messages}).to_string()
    };
    let chat = "/v1/chat/completions";
    let asked =
        [("the planner", 0), ("the critic", 0), ("the planner", 1), ("the critic", 1), ("the planner", 2)];
    let frames = asked.map(|(agent, turns)| exchange(chat, "application/json", request(agent, turns), "{}"));
    let bench = ViewBench::of(frames.into());
    let before = |seq: u32| {
        let view = bench.view(seq);
        (view.before.seq, view.before.messages, view.messages.len(), view.removed)
    };
    assert_eq!(before(2), (Some(1), 1, 1, 1), "the first request of the critic: only the task is as before");
    assert_eq!(before(3), (Some(1), 2, 2, 0));
    assert_eq!(before(4), (Some(2), 2, 2, 0));
    assert_eq!(before(5), (Some(3), 4, 2, 0));
    // An agent with the same beginning: the longer one is the conversation.
    let other =
        exchange(chat, "application/json", request("the planner", 3).replace("says 2", "thinks 2"), "{}");
    let bench = ViewBench::of(vec![
        exchange(chat, "application/json", request("the planner", 2), "{}"),
        exchange(chat, "application/json", request("the planner", 0), "{}"),
        other,
    ]);
    assert_eq!(bench.view(3).before.seq, Some(1));
}

#[test]
fn second_request_shows_only_its_new_messages() {
    let first = json!({"model":"m","messages":[{"role":"system","content":"Be kind."},{"role":"user","content":"q"}]});
    let second = json!({"model":"m","temperature":1,"messages":[{"role":"system","content":"Be kind."},{"role":"user","content":"q"},
        {"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"find","arguments":"{\"n\":1}"}}]},
        {"role":"tool","tool_call_id":"a","content":"Error: gone"}]});
    let answer = json!({"choices":[{"message":{"role":"assistant","content":"sorry"}}]});
    let chat = "/v1/chat/completions";
    let bench = ViewBench::of(vec![
        exchange(chat, "application/json", first.to_string(), "{}"),
        exchange(chat, "application/json", second.to_string(), answer.to_string()),
    ]);
    let view = bench.view(1);
    assert_eq!(lines(&view.messages), ["system $.messages[0]: Be kind.", "user $.messages[1]: q"]);
    assert_eq!((view.before.seq, view.before.messages, view.removed), (None, 0, 0));
    let view = bench.view(2);
    assert_eq!(
        lines(&view.messages),
        [r#"assistant $.messages[2]: find#a{"n":1}"#, "tool $.messages[3]: find#a = Error: gone failed"]
    );
    assert_eq!((view.before.seq, view.before.messages, view.removed), (Some(1), 2, 0));
    let source = r#"{"content":"Be kind.","role":"system"}{"content":"q","role":"user"}"#;
    assert_eq!(view.before.bytes, source.len() as u64);
    assert_eq!(view.changes.len(), 1, "{:?}", view.changes);
    assert!(view.changes[0].contains("temperature"), "{:?}", view.changes);
    assert_eq!(lines(&view.answer), ["assistant $.choices[0].message: sorry"]);
    assert_eq!(view.usage.unwrap().input, Some(1000));
    assert!(view.dollars.unwrap() > 0.0);
    let all = bench.view_with(2, true, TEXT_BYTES_MAX, None);
    assert_eq!((all.messages.len(), all.before.messages), (4, 0));
}

#[test]
fn removed_and_changed_messages_are_counted() {
    let of = |words: &[&str]| {
        let messages: Vec<Value> = words.iter().map(|word| json!({"role":"user","content":word})).collect();
        exchange("/v1/chat/completions", "application/json", json!({ "messages": messages }).to_string(), "")
    };
    let bench = ViewBench::of(vec![of(&["a", "b", "c", "d"]), of(&["a", "x", "d", "e"])]);
    let view = bench.view(2);
    assert_eq!(lines(&view.messages), ["user $.messages[1]: x", "user $.messages[3]: e"]);
    assert_eq!((view.before.messages, view.removed), (2, 2));
}

#[test]
fn every_providers_form_reads_as_a_conversation() {
    let anthropic = json!({"system":"S","messages":[{"role":"user","content":[{"type":"text","text":"q"},
        {"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0K"}},
        {"type":"tool_result","tool_use_id":"t","is_error":true,"content":[{"type":"text","text":"x"}]}]}]});
    let anthropic_answer = json!({"type":"message","role":"assistant","content":[{"type":"thinking","thinking":"hm"},
        {"type":"text","text":"a"},{"type":"tool_use","id":"t","name":"f","input":{"n":1}}]});
    let responses = json!({"instructions":"S","input":[{"role":"user","content":[{"type":"input_text","text":"q"},
        {"type":"input_image","image_url":"https://x/y.png"}]},
        {"type":"function_call","call_id":"c","name":"f","arguments":"{}"},
        {"type":"function_call_output","call_id":"c","output":"1"}]});
    let responses_answer = json!({"status":"completed","output":[{"type":"reasoning","summary":[{"type":"summary_text","text":"hm"}]},
        {"type":"message","role":"assistant","content":[{"type":"output_text","text":"a"}]},
        {"type":"function_call","call_id":"d","name":"g","arguments":"{\"m\":2}"}]});
    let gemini = json!({"systemInstruction":{"parts":[{"text":"S"}]},"contents":[{"role":"user","parts":[{"text":"q"},
        {"inlineData":{"mimeType":"image/jpeg","data":"AAAA"}}]}]});
    let gemini_answer = json!({"candidates":[{"content":{"role":"model","parts":[{"thought":true,"text":"hm"},{"text":"a"},
        {"functionCall":{"name":"f","args":{"n":1}}}]}}]});
    let bedrock = json!({"system":[{"text":"S"}],"messages":[{"role":"user","content":[{"text":"q"},
        {"image":{"format":"png","source":{"bytes":"AAAA"}}},
        {"toolResult":{"toolUseId":"t","content":[{"text":"r"}],"status":"error"}}]}]});
    let bedrock_answer = json!({"output":{"message":{"role":"assistant","content":[{"text":"a"},
        {"toolUse":{"toolUseId":"t","name":"f","input":{"n":1}}}]}}});
    for (path, request, answer, asked, said) in [
        (
            "/v1/messages",
            anthropic,
            anthropic_answer,
            vec![
                "system $.system: S",
                r#"user $.messages[0]: q | image/png 6 Some("iVBORw0K") None | ?#t = x failed"#,
            ],
            vec![r#"assistant $: (hm) | a | f#t{"n":1}"#],
        ),
        (
            "/v1/responses",
            responses,
            responses_answer,
            vec![
                "system $.instructions: S",
                r#"user $.input[0]: q | image/* 0 None Some("https://x/y.png")"#,
                "assistant $.input[1]: f#c{}",
                "tool $.input[2]: f#c = 1",
            ],
            vec![r#"assistant $.output[0]: (hm) | a | g#d{"m":2}"#],
        ),
        (
            "/v1beta/models/g:generateContent",
            gemini,
            gemini_answer,
            vec![
                "system $.systemInstruction: S",
                r#"user $.contents[0]: q | image/jpeg 3 Some("AAAA") None"#,
            ],
            vec![r#"model $.candidates[0].content: (hm) | a | f#{"n":1}"#],
        ),
        (
            "/model/amazon.nova-lite-v1%3A0/converse",
            bedrock,
            bedrock_answer,
            vec![
                "system $.system: S",
                r#"user $.messages[0]: q | image/png 3 Some("AAAA") None | ?#t = r failed"#,
            ],
            vec![r#"assistant $.output.message: a | f#t{"n":1}"#],
        ),
    ] {
        let bench =
            ViewBench::of(vec![exchange(path, "application/json", request.to_string(), answer.to_string())]);
        let view = bench.view(1);
        assert_eq!(lines(&view.messages), asked, "{path}");
        assert_eq!(lines(&view.answer), said, "{path}");
        assert_eq!(view.labels, [""; 0], "{path}");
    }
}

#[test]
fn streamed_answers_are_put_together() {
    let chat = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"reasoning_content\":\"h\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"m\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"lo\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"n\\\"\"}}]}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\":1}\"}}]}}]}\n\n";
    let request = r#"{"messages":[{"role":"user","content":"q"}],"stream":true}"#;
    let whole = format!("{chat}data: [DONE]\n\n");
    let kind = "text/event-stream";
    let bench = ViewBench::of(vec![
        exchange("/v1/chat/completions", kind, request, whole),
        exchange("/v1/chat/completions", kind, request, chat),
    ]);
    let view = bench.view(1);
    assert_eq!(lines(&view.answer), [r#"assistant -: (hm) | Hello | f#a{"n":1}"#]);
    assert_eq!(view.labels, [""; 0]);
    let view = bench.view(2);
    assert_eq!(lines(&view.answer), [r#"assistant -: (hm) | Hello | f#a{"n":1}"#]);
    assert_eq!(view.labels, ["the stream broke off"]);
    // The same request again has nothing new.
    assert_eq!((view.messages.len(), view.before.messages), (0, 1));
}

#[test]
fn long_texts_are_cut_between_characters_and_say_so() {
    let words = "é".repeat(5_000_000);
    let request = json!({"messages":[{"role":"user","content":words}]}).to_string();
    let bench = ViewBench::of(vec![exchange("/v1/chat/completions", "application/json", request, "{}")]);
    let view = bench.view_with(1, false, 99_999, None);
    let ConversationPart::Text { text, bytes, cut } = &view.messages[0].parts[0] else { panic!() };
    assert_eq!((text.len(), *bytes, *cut), (99_998, 10_000_000, true));
    assert!(view.labels.contains(&"cut".to_owned()));
    assert!(serde_json::to_vec(&view).unwrap().len() < 110_000);
}

#[test]
fn hostile_bodies_are_shown_as_they_are() {
    let chat = "/v1/chat/completions";
    let deep = format!(
        "{{\"messages\":[{{\"role\":\"user\",\"content\":{}{}}}]}}",
        "[".repeat(200_000),
        "]".repeat(200_000)
    );
    let bench = ViewBench::of(vec![
        exchange(chat, "application/json", &b"{\"messages\":[\xff\xfe"[..], "<script>alert(1)</script>"),
        exchange(chat, "application/json", "{\"messages\":[{\"role\"", ""),
        exchange(chat, "application/json", deep, "[1,2]"),
        Frame::new(Component::Tool, &b"\x00\x01\x02"[..], &b"caf\xe9 au lait, et encore un peu"[..]),
        exchange(chat, "application/json", "null", "\u{1b}[31m"),
        exchange(
            chat,
            "application/json",
            r#"{"messages":[{"role":"user","content":"\ud800"},7,null,[],{"role":{}}]}"#,
            "{}",
        ),
    ]);
    let view = bench.view(1);
    // Two broken bytes of 15: binary.
    assert_eq!(lines(&view.messages), ["input -: binary 15 7b226d65737361676573223a5bfffe"]);
    assert_eq!(lines(&view.answer), ["output -: <script>alert(1)</script>"]);
    assert!(view.labels.iter().any(|label| label.contains("is not UTF-8 after byte")), "{:?}", view.labels);
    let view = bench.view(2);
    assert_eq!(lines(&view.messages), ["input -: {\"messages\":[{\"role\""]);
    assert!(
        view.labels.iter().any(|label| label.starts_with("the request is not JSON")),
        "{:?}",
        view.labels
    );
    let view = bench.view(3);
    assert_eq!(lines(&view.answer), ["output -: [1,2]"]);
    assert!(serde_json::to_vec(&view).unwrap().len() < 2 * TEXT_BYTES_MAX + 10_000);
    let view = bench.view(4);
    assert_eq!(lines(&view.messages), ["input -: binary 3 000102"]);
    assert_eq!(lines(&view.answer), ["output -: caf\u{fffd} au lait, et encore un peu"]);
    assert_eq!(lines(&bench.view(5).answer), ["output -: \u{1b}[31m"]);
    let view = bench.view(6);
    assert!(
        lines(&view.messages)[0].starts_with("user $.messages[0]: \\ud800"),
        "{:?}",
        lines(&view.messages)
    );
}

#[test]
fn redacted_view_has_no_hashes_and_no_secrets() {
    let request = json!({"messages":[{"role":"user","content":"write to jane.roe@example.com"}]}).to_string();
    let bench = ViewBench::of(vec![exchange("/v1/chat/completions", "application/json", request, "{}")]);
    assert!(bench.view(1).request.blake3.is_some());
    let redactor = Redactor::new(&Profile::safe(), [7; 32]);
    let view = bench.view_with(1, false, TEXT_BYTES_MAX, Some(&redactor));
    let text = serde_json::to_string(&view).unwrap();
    assert!(!text.contains("jane.roe") && text.contains("redacted by profile safe"), "{text}");
    assert_eq!(view.request.blake3, None);
    assert_eq!((view.messages.len(), view.messages[0].role.as_str()), (1, "user"));
}

#[test]
fn overlapping_frames_get_lanes_that_never_change() {
    let tool = |began: u64, took: u64| at(Frame::new(Component::Tool, "i", "o"), began, took);
    let program = at(Frame::new(Component::Other("program".to_owned()), "", ""), 0, 100);
    let bench = ViewBench::of(vec![
        program,
        tool(0, 10),
        tool(2, 10),
        tool(10, 5),
        tool(11, 9),
        tool(12, 1),
        tool(30, 0),
    ]);
    let rows = bench.timeline(1, 100);
    let found: Vec<u32> = rows.frames.iter().map(|row| row.lane).collect();
    assert_eq!(found, [0, 0, 1, 0, 2, 1, 0]);
    let later = bench.timeline(4, 2);
    assert_eq!((later.frames[0].seq, later.frames[0].lane, later.next, later.total), (4, 0, Some(6), 7));
    assert_eq!(bench.view(5).lane, 2);
    assert_eq!(bench.timeline(6, 99).next, None);
    // Frames beyond the last lane share it.
    let mut lanes = Lanes::default();
    let info = bench.reader.frame_info(2).unwrap();
    let last = (0..200).map(|_| lanes.add(&info)).max();
    assert_eq!(last, Some(63));
}

#[test]
fn failed_frames_say_why() {
    let mut frame = exchange(
        "/v1/chat/completions",
        "application/json",
        r#"{"messages":[]}"#,
        r#"{"error":{"type":"rate_limit","message":"slow down"}}"#,
    );
    frame.error = true;
    let bench = ViewBench::of(vec![frame]);
    let view = bench.view(1);
    assert_eq!((view.status, view.severity), (FrameStatus::Error, ShownSeverity::Failed));
    assert_eq!(view.error.as_deref(), Some("rate_limit: slow down"));
    let row = &bench.timeline(1, 1).frames[0];
    assert_eq!(
        (row.severity, row.tokens, row.name.as_deref()),
        (ShownSeverity::Failed, Some(1500), Some("gpt-4o"))
    );
}
