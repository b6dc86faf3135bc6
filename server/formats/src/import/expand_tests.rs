//! Tests of the expansion: the messages that become frames, and the bytes of those frames.

use super::tests::{TWO_RUNS, XorShift, body, chat, error, one, text};
use super::*;
use annals::{Component, Frame, Severity, Status};

fn calls() -> ChatOptions {
    ChatOptions { expansion: Expansion::Calls, ..ChatOptions::default() }
}

fn run(messages: &[&str]) -> String {
    format!(r#"{{"id":"r","messages":[{}]}}"#, messages.join(","))
}

/// Each frame's component, parent, output and metadata.
fn shown(run: &ImportedRun) -> Vec<(String, Option<u32>, String, String)> {
    let row = |frame: Frame| {
        let (output, metadata) = (body(&frame.output).to_owned(), text(&frame.metadata).to_owned());
        (frame.component.name().to_owned(), frame.parent, output, metadata)
    };
    run.frames().map(row).collect()
}

fn components(run: &ImportedRun) -> String {
    run.frames().map(|frame| frame.component.name().to_owned()).collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn assert_transcript(messages: &[&str], agents: &[&str]) {
    let run = one(&run(messages));
    let expected: Vec<_> = messages
        .iter()
        .zip(agents)
        .zip(0..)
        .map(|((message, agent), before)| {
            let metadata = format!(r#"{{"agent":{{"name":{agent}}}}}"#);
            ("agent".to_owned(), Some(before).filter(|before| *before > 0), (*message).to_owned(), metadata)
        })
        .collect();
    assert_eq!(shown(&run), expected);
    assert!(run.frames().all(|frame| body(&frame.input).is_empty()));
    assert_eq!(
        (run.frame_count(), run.unframed_messages, text(&run.metadata)),
        (messages.len(), 0, r#"{"id":"r"}"#)
    );
}

#[test]
fn calls_expansion_gives_llm_and_tool_frames_only() {
    let mut runs = chat(TWO_RUNS, ChatOptions { id: Some("{task_id}-{trial}".parse().unwrap()), ..calls() });
    assert_eq!(runs.len(), 2);
    let second = runs.pop().unwrap().unwrap();
    let first = runs.pop().unwrap().unwrap();
    assert_eq!((first.id.as_str(), second.id.as_str()), ("7-0", "b-1"));
    assert_eq!((first.place.line, first.place.item, second.place.line), (2, 1, 19));
    assert_eq!((first.status, first.severity, first.model.as_deref()), (Status::Ok, Severity::Normal, None));
    let frames: Vec<Frame> = first.frames().collect();
    assert_eq!(frames.len(), first.frame_count());
    let messages = [
        r#"{"role": "system", "content": "be brief"}"#,
        r#"{"role": "user", "content": "caf\u00e9 \ud83d\ude00 \ud800"}"#,
        "{\n        \"role\": \"assistant\", \"content\": null,\n        \"tool_calls\": [\n          {\"id\": \"call_1\", \"type\": \"function\", \"function\": {\"name\": \"find\", \"arguments\": \"{ \\\"q\\\": 1 }\"}}\n        ]\n      }",
        r#"{"role": "tool", "tool_call_id": "call_1", "name": "find", "content": "-0 1e400", "x": -0, "y": 1e400, "x": 2}"#,
        r#"{"content": "done", "role": "assistant"}"#,
    ];
    let request =
        |count: usize| format!(r#"{{"model":"unknown","messages":[{}]}}"#, messages[..count].join(","));
    let call =
        r#"{"id": "call_1", "type": "function", "function": {"name": "find", "arguments": "{ \"q\": 1 }"}}"#;
    let expected = [
        (Component::Llm, None, request(2), messages[2], ""),
        (Component::Tool, Some(1), call.to_owned(), messages[3], r#"{"tool":{"name":"find"}}"#),
        (Component::Llm, Some(2), request(4), messages[4], ""),
    ];
    assert_eq!(frames.len(), expected.len());
    for (frame, (component, parent, input, output, metadata)) in frames.iter().zip(expected) {
        assert_eq!((&frame.component, frame.parent), (&component, parent));
        assert_eq!((body(&frame.input), body(&frame.output)), (input.as_str(), output));
        assert_eq!(text(&frame.metadata), metadata);
    }
    assert_eq!(
        text(&first.metadata),
        concat!(
            r#"{"task_id":7,"trial":0,"reward":1.0,"info":{"a":  1},"#,
            r#""annals.trailing_messages":[{"role": "user", "content": "STOP"}]}"#
        )
    );
    assert_eq!((first.unframed_messages, second.unframed_messages), (1, 0));
    assert_eq!(
        (second.frame_count(), text(&second.metadata)),
        (0, r#"{"task_id":"b","trial":1,"reward":0.0}"#)
    );
}

/// S2.20: frames for the user's message, the model's call, the tool as a child of that call, and the model's
/// answer.
#[test]
fn turns_expansion_gives_user_llm_and_tool_frames() {
    let first =
        chat(TWO_RUNS, ChatOptions { id: Some("{task_id}".parse().unwrap()), ..ChatOptions::default() })
            .remove(0)
            .unwrap();
    let frames: Vec<_> = first.frames().collect();
    let seen: Vec<_> = frames.iter().map(|frame| (frame.component.clone(), frame.parent)).collect();
    let (user, llm, tool) = (Component::User, Component::Llm, Component::Tool);
    assert_eq!(
        seen,
        [(user.clone(), None), (llm.clone(), Some(1)), (tool, Some(2)), (llm, Some(3)), (user, Some(4))]
    );
    let output = |index: usize| body(&frames[index].output);
    assert_eq!(output(0), r#"{"role": "user", "content": "caf\u00e9 \ud83d\ude00 \ud800"}"#);
    assert_eq!(output(4), r#"{"role": "user", "content": "STOP"}"#);
    assert_eq!((body(&frames[0].input), text(&frames[0].metadata)), ("", ""));
    // Only the user frames and the numbers of parents differ from the other expansion.
    let old =
        chat(TWO_RUNS, ChatOptions { id: Some("{task_id}".parse().unwrap()), ..calls() }).remove(0).unwrap();
    let bodies = |frame: &Frame| (body(&frame.input).to_owned(), body(&frame.output).to_owned());
    let others = frames.iter().filter(|frame| frame.component != Component::User);
    assert!(others.map(bodies).eq(old.frames().map(|frame| bodies(&frame))));
    assert_eq!(text(&first.metadata), r#"{"task_id":7,"trial":0,"reward":1.0,"info":{"a":  1}}"#);
    assert_eq!(first.unframed_messages, 0);
}

#[test]
fn tool_message_takes_its_call_from_the_nearest_assistant() {
    let call = |id: &str, name: &str| format!(r#"{{"id":{id},"function":{{"name":"{name}"}}}}"#);
    let assistant =
        |calls: &[String]| format!(r#"{{"role":"assistant","tool_calls":[{}]}}"#, calls.join(","));
    let tool = |id: &str| format!(r#"{{"role":"tool","tool_call_id":{id}}}"#);
    let messages = [
        tool("\"early\""),
        assistant(&[call("\"x\"", "first"), call("\"y\"", "why"), call("\"x\"", "again")]),
        tool("\"y\""),
        tool("\"\\u0078\""),
        assistant(&[call("\"x\"", "second"), call("1", "number")]),
        tool("\"x\""),
        tool("\"y\""),
        tool("\"1\""),
        tool("1"),
        r#"{"role":"tool"}"#.to_owned(),
    ];
    let run = one(&format!(r#"{{"messages":[{}]}}"#, messages.join(",")));
    let tools: Vec<_> = run.frames().filter(|frame| frame.component == Component::Tool).collect();
    let seen: Vec<_> =
        tools.iter().map(|frame| (frame.parent, body(&frame.input), text(&frame.metadata))).collect();
    let (x, y, again, number) =
        (call("\"x\"", "first"), call("\"y\"", "why"), call("\"x\"", "second"), call("1", "number"));
    let unmatched = r#"{"tool_call":"unmatched"}"#;
    assert_eq!(
        seen,
        [
            (None, "", unmatched),
            (Some(2), y.as_str(), r#"{"tool":{"name":"why"}}"#),
            (Some(2), x.as_str(), r#"{"tool":{"name":"first"}}"#),
            (Some(5), again.as_str(), r#"{"tool":{"name":"second"}}"#),
            (Some(2), y.as_str(), r#"{"tool":{"name":"why"}}"#),
            (None, "", unmatched),
            (Some(5), number.as_str(), r#"{"tool":{"name":"number"}}"#),
            (None, "", unmatched),
        ]
    );
}

/// In real transcripts `role` can be an agent's name. They were once imported as runs without frames.
#[test]
fn role_outside_the_chat_roles_makes_a_transcript() {
    assert_transcript(
        &[
            r#"{"role":"human","content":""}"#,
            r#"{"content" : "caf\u00e9", "role":"Orchestrator (thought)"}"#,
            r#"{"role":"WebSurfer","content":[{"type":"text","text":"a"},{"type":"image_url"}]}"#,
            r#"{"role":"assistant","tool_calls":7}"#,
            r#"{"role":"tool","name":"find","content":null}"#,
            r#"{"role":"","parts":[1,2],"role":"model"}"#,
        ],
        &[
            "\"human\"",
            "\"Orchestrator (thought)\"",
            "\"WebSurfer\"",
            "\"assistant\"",
            "\"find\"",
            "\"model\"",
        ],
    );
    assert_transcript(&[r#"{"role":""}"#], &["\"\""]);
    assert_transcript(&[r#"{"role":"system"}"#, r#"{"role":"User"}"#], &["\"system\"", "\"User\""]);
}

#[test]
fn names_on_users_and_assistants_make_a_transcript() {
    let user = r#"{"role":"user","name":"Expert \"A\"","content":"x"}"#;
    let assistant = r#"{"role":"assistant","name":"Terminal","content":"y"}"#;
    let system = r#"{"role":"system","content":"s"}"#;
    let nameless = r#"{"role":"user","name":"","content":"z"}"#;
    let (a, terminal) = (r#""Expert \"A\"""#, "\"Terminal\"");
    assert_transcript(&[system, user, assistant, nameless], &["\"system\"", a, terminal, "\"user\""]);
    // Two of the 126 logs of Who&When have no user message.
    assert_transcript(&[assistant, assistant], &[terminal, terminal]);
}

/// In a chat, `name` on a tool message is the tool's name; on user messages alone it distinguishes people.
#[test]
fn names_on_tools_or_users_alone_stay_a_chat() {
    let user = r#"{"role":"user","content":"x"}"#;
    let named_user = r#"{"role":"user","name":"ann","content":"x"}"#;
    let assistant = r#"{"role":"assistant","content":"y"}"#;
    let named_assistant = r#"{"role":"assistant","name":"bot","content":"y"}"#;
    let tool = r#"{"role":"tool","name":"find","tool_call_id":"c","content":"z"}"#;
    let example = r#"{"role":"system","name":"example_user","content":"e"}"#;
    for (messages, expected) in [
        (&[user, assistant, tool, assistant][..], "user llm tool llm"),
        (&[example, named_user, assistant], "user llm"),
        (&[user, named_assistant], "user llm"),
        (&[r#"{"role":"user","name":null}"#, r#"{"role":"assistant","name":{"a":1}}"#], "user llm"),
    ] {
        let run = one(&run(messages));
        assert_eq!((components(&run).as_str(), run.unframed_messages), (expected, 0), "{messages:?}");
    }
}

/// Messages that are in no frame must not be lost silently.
#[test]
fn messages_in_no_frame_are_counted_and_kept() {
    let system = r#"{"role":"system","content":"s"}"#;
    let user = r#"{"role":"user","content":""}"#;
    let assistant = r#"{"role":"assistant"}"#;
    let function = r#"{"role":"function","content":"f"}"#;
    for (messages, expected, unframed) in [
        (&[system][..], "", &[system][..]),
        (&[system, user], "user", &[system]),
        (&[system, function, assistant], "llm", &[]),
        (&[assistant, user, function, user], "llm user user", &[function]),
        (&[], "", &[]),
    ] {
        let run = one(&run(messages));
        assert_eq!((components(&run).as_str(), run.unframed_messages), (expected, unframed.len() as u64));
        let kept = format!(r#"{{"id":"r","annals.trailing_messages":[{}]}}"#, unframed.join(","));
        assert_eq!(text(&run.metadata), if unframed.is_empty() { r#"{"id":"r"}"# } else { &kept });
    }
}

/// The older expansion: a transcript gives no frames, and all its messages are counted.
#[test]
fn calls_expansion_counts_every_message_of_a_transcript() {
    let source = run(&[r#"{"role":"Planner"}"#, r#"{"role":"user"}"#]);
    let run = chat(&source, calls()).remove(0).unwrap();
    assert_eq!((run.frame_count(), run.unframed_messages), (0, 2));
}

#[test]
fn messages_without_a_shape_are_errors_in_transcripts_too() {
    for (message, expected) in [
        ("1", "message 2 is not an object"),
        ("null", "message 2 is not an object"),
        ("[]", "message 2 is not an object"),
        ("{}", "message 2 has no `role`"),
        (r#"{"role":null,"name":"A"}"#, "message 2 has no `role`"),
        (r#"{"role":["A"]}"#, "message 2 has no `role`"),
        (r#"{"name":"A","content":"x"}"#, "message 2 has no `role`"),
    ] {
        let source = run(&[r#"{"role":"Planner"}"#, message]);
        assert_eq!(error(&source), format!("line 1: run 1: {expected}"));
    }
}

/// The invariant of the import: each message's bytes are in a frame, or it is counted and kept in the
/// metadata.
#[test]
fn random_messages_are_in_a_frame_or_counted() {
    let seed = std::env::var("ANNALS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed_u64);
    println!("ANNALS_SEED={seed} cargo test -p annals --lib import::expand_tests::random -- --nocapture");
    let mut random = XorShift(seed | 1);
    let roles =
        ["system", "developer", "user", "assistant", "tool", "function", "user", "assistant", "Critic"];
    let names = ["", "", r#","name":"A""#, r#","name":null"#];
    for round in 0..3_000 {
        // Only every fourth run may have a role that no chat has.
        let kinds = if round % 4 == 0 { roles.len() } else { roles.len() - 1 };
        let message = |number: usize, random: &mut XorShift| {
            let (role, name) = (roles[random.below(kinds)], names[random.below(names.len())]);
            format!(r#"{{"role":"{role}"{name},"content":["{round}-{number}"]}}"#)
        };
        let messages: Vec<String> = (0..random.below(7)).map(|number| message(number, &mut random)).collect();
        let texts: Vec<&str> = messages.iter().map(String::as_str).collect();
        let source = run(&texts);
        for options in [ChatOptions::default(), calls()] {
            let run = chat(&source, options).remove(0).unwrap();
            let bodies: Vec<(String, String)> = run
                .frames()
                .map(|frame| (body(&frame.input).to_owned(), body(&frame.output).to_owned()))
                .collect();
            let framed = |message: &&&str| {
                bodies.iter().any(|(input, output)| input.contains(**message) || output == **message)
            };
            let unframed: Vec<&&str> = texts.iter().filter(|message| !framed(message)).collect();
            assert_eq!(unframed.len() as u64, run.unframed_messages, "{source}");
            assert!(unframed.iter().all(|message| text(&run.metadata).contains(**message)), "{source}");
        }
    }
}
