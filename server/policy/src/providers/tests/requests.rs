//! Parts of requests, and changes between two requests.

use super::{api, messages};
use crate::providers::{PartChange, PartKind, request_changes};

/// Kind, role, name and preview of each part.
fn shown(path: &str, body: &str) -> Vec<String> {
    let views = messages(&api(path), body.as_bytes());
    views.iter().map(|view| format!("{} {} {}|{}", view.role, view.kind, view.name, view.preview)).collect()
}

#[test]
fn chat_request_parts_are_listed() {
    let body = r#"{"model":"m","temperature":0,"messages":[{"role":"system","content":"be\nbrief"},
        {"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"data:x"}}]},
        {"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[{"id":"c1","type":"function","function":{"name":"find","arguments":"{\"q\":1}"}}]},
        {"role":"tool","tool_call_id":"c1","content":"found"}],
        "tools":[{"type":"function","function":{"name":"find","parameters":{}}}]}"#;
    assert_eq!(
        shown("/v1/chat/completions", body),
        [
            " parameter model|m",
            " parameter temperature|0",
            " tool find|{\"type\":\"function\",\"function\":{\"name\":\"find\",\"parameters\":{}}}",
            "system text |be brief",
            "user text |see",
            "user image |",
            "assistant thinking |hm",
            "assistant tool call find|{\"q\":1}",
            "tool tool result find|found",
        ]
    );
    let views = messages(&api("/v1/chat/completions"), body.as_bytes());
    assert_eq!(views.iter().filter_map(|view| view.message).collect::<Vec<_>>(), [0, 1, 1, 2, 2, 3]);
}

#[test]
fn other_interfaces_parts_are_listed() {
    let anthropic = r#"{"system":[{"type":"text","text":"be brief","cache_control":{"type":"ephemeral"}}],"tools":[{"name":"find","input_schema":{}}],
        "messages":[{"role":"user","content":"go"},{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"tool_use","id":"t","name":"find","input":{"q":1}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"found"}]},{"type":"document","source":{}}]}]}"#;
    assert_eq!(
        shown("/v1/messages", anthropic),
        [
            "system prompt |be brief",
            " tool find|{\"name\":\"find\",\"input_schema\":{}}",
            "user text |go",
            "assistant thinking |hm",
            "assistant tool call find|{\"q\":1}",
            "user tool result find|found",
            "user document |",
        ]
    );
    let responses = r#"{"instructions":"be brief","input":[{"role":"user","content":[{"type":"input_text","text":"go"}]},{"type":"reasoning","summary":[{"type":"summary_text","text":"hm"}]},
        {"type":"function_call","call_id":"c","name":"find","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"found"},{"type":"web_search_call","action":{"query":"x"}}]}"#;
    assert_eq!(
        shown("/v1/responses", responses),
        [
            "system prompt |be brief",
            "user text |go",
            "assistant thinking |hm",
            "assistant tool call find|{}",
            "tool tool result find|found",
            "assistant tool call web_search_call|{\"query\":\"x\"}",
        ]
    );
    assert_eq!(shown("/v1/responses", r#"{"input":"go"}"#), ["user text |go"]);
    let gemini = r#"{"systemInstruction":{"parts":[{"text":"be brief"}]},"tools":[{"functionDeclarations":[{"name":"a"},{"name":"b"}]},{"googleSearch":{}}],
        "contents":[{"role":"user","parts":[{"text":"go"},{"inlineData":{"mimeType":"image/png","data":"AAAA"}}]},
        {"role":"model","parts":[{"functionCall":{"name":"a","args":{"q":1}}}]},{"role":"user","parts":[{"functionResponse":{"name":"a","response":{"ok":1}}}]}]}"#;
    assert_eq!(
        shown("/v1beta/models/g:generateContent", gemini),
        [
            "system prompt |be brief",
            " tool a|{\"name\":\"a\"}",
            " tool b|{\"name\":\"b\"}",
            " tool googleSearch|{\"googleSearch\":{}}",
            "user text |go",
            "user image |",
            "model tool call a|{\"q\":1}",
            "user tool result a|{\"ok\":1}",
        ]
    );
    assert_eq!(
        shown("/api/generate", r#"{"model":"m","prompt":"go"}"#),
        [" parameter model|m", "user text |go"]
    );
    assert_eq!(shown("/v1/embeddings", r#"{"input":["a","b"]}"#), ["user text |a", "user text |b"]);
}

#[test]
fn request_changes_are_shown_as_text() {
    let before = r#"{"model":"m-1","temperature":0.2,"system":"You are a careful agent.","tools":[{"name":"a"},{"name":"b","v":1}],"messages":[{"role":"user","content":"go"}]}"#;
    let after = r#"{"model":"m-2","system":"You are a careless agent.","max_tokens":5,"tools":[{"name":"b","v":2},{"name":"c"}],"messages":[{"role":"user","content":[{"type":"text","text":"go","cache_control":{"type":"ephemeral"}}]},
        {"role":"assistant","content":[{"type":"tool_use","id":"t","name":"a","input":{"q":1}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","is_error":true,"content":"no\u001b[2Jway"}]}]}"#;
    let new = request_changes(&api("/v1/messages"), before.as_bytes(), after.as_bytes());
    assert_eq!(
        new.to_string(),
        "\
~ parameter model: m-1 -> m-2
+ parameter max_tokens: 5
~ system prompt (27 B), from byte 15
    was  \"You are a careful agent.\"
    is   \"You are a careless agent.\"
~ tool b (18 B), from byte 16
    was  {\"name\":\"b\",\"v\":1}
    is   {\"name\":\"b\",\"v\":2}
+ tool c (12 B): {\"name\":\"c\"}
- parameter temperature: 0.2
- tool a (12 B): {\"name\":\"a\"}
+ message 2, assistant tool call a (55 B): {\"q\":1}
+ message 3, user tool result a, failed (83 B): no [2Jway
  and 1 part as before
"
    );
    let same = request_changes(&api("/v1/messages"), after.as_bytes(), after.as_bytes());
    assert_eq!(same.to_string(), "nothing new: the same 8 parts\n");
}

#[test]
fn dropped_inserted_edited_and_moved_messages_match() {
    let body = |texts: &[&str]| {
        let message = |text: &&str| format!("{{\"role\":\"user\",\"content\":\"{text}\"}}");
        format!("{{\"messages\":[{}]}}", texts.iter().map(message).collect::<Vec<_>>().join(","))
    };
    let signs = |before: &[&str], after: &[&str]| {
        let new =
            request_changes(&api("/v1/chat/completions"), body(before).as_bytes(), body(after).as_bytes());
        let sign = |change: &PartChange| match change {
            PartChange::Added(view) => format!("+{}", view.preview),
            PartChange::Dropped(view) => format!("-{}", view.preview),
            PartChange::Changed { before, after, .. } => format!("{}>{}", before.preview, after.preview),
        };
        (new.changes.iter().map(sign).collect::<Vec<_>>().join(" "), new.same)
    };
    assert_eq!(signs(&["a", "b", "c", "d"], &["a", "c", "d", "e"]), ("-b +e".to_owned(), 3));
    assert_eq!(signs(&["a", "b", "c"], &["a", "x", "b", "c"]), ("+x".to_owned(), 3));
    assert_eq!(signs(&["a", "b", "c"], &["a", "B", "c", "d"]), ("b>B +d".to_owned(), 2));
    assert_eq!(signs(&["a", "b", "c", "d"], &["d", "a", "b", "c"]), ("+d -d".to_owned(), 3));
    assert_eq!(signs(&["a", "a", "a"], &["a", "a"]), ("-a".to_owned(), 2));
    assert_eq!(signs(&[], &["a"]), ("+a".to_owned(), 0));
    assert_eq!(signs(&["a", "b"], &[]), ("-a -b".to_owned(), 0));
}

#[test]
fn part_hash_covers_role_kind_and_words() {
    let hash = |body: &str| messages(&api("/v1/messages"), body.as_bytes()).last().unwrap().hash;
    let alone = hash(r#"{"messages":[{"role":"user","content":"go"}]}"#);
    assert_eq!(alone, hash(r#"{"messages":[{"role":"user","content":[{"type":"text","text":"go"}]}]}"#));
    assert_eq!(
        alone,
        hash(r#"{"messages":[{"role":"user","content":[{"cache_control":{},"text":"go","type":"text"}]}]}"#)
    );
    for other in [
        r#"{"messages":[{"role":"assistant","content":"go"}]}"#,
        r#"{"messages":[{"role":"user","content":"go "}]}"#,
        r#"{"messages":[{"role":"user","content":[{"type":"thinking","text":"go"}]}]}"#,
        r#"{"messages":[{"role":"user","content":[{"type":"text","text":"go","citations":[1]}]}]}"#,
    ] {
        assert_ne!(alone, hash(other), "{other}");
    }
    let tool = |text: &str| {
        format!("{{\"messages\":[{{\"role\":\"tool\",\"tool_call_id\":\"x\",\"content\":\"{text}\"}}]}}")
    };
    let views = messages(&api("/v1/chat/completions"), tool("error: y").as_bytes());
    assert_eq!((views[0].kind, views[0].failed, views[0].name.as_str()), (PartKind::ToolResult, true, "x"));
    assert_ne!(hash(&tool("a")), hash(&tool("b")));
}
