//! JSON, streams, text and other bodies: what is removed, and that the body keeps its kind.

use std::io::Write as _;

use serde_json::{Value, json};

use super::{KEY, redactor_with, safe, short, shown};
use crate::profiles::{Profile, Profiles, REDACTED_BODY_BYTES_MAX, Redactor};

fn is_json(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok()
}

#[test]
fn only_equal_values_share_a_placeholder() {
    let redactor = safe();
    let tag = |text: &str| shown(&redactor, text);
    assert_eq!(tag("anna@example.com"), tag("ANNA@example.com"));
    assert_eq!(tag("4111 1111 1111 1111"), tag("4111-1111-1111-1111"));
    assert_ne!(tag("anna@example.com"), tag("anne@example.com"));
    // In JSON, twice escaped, or over a stream: the same placeholder.
    let alone = tag("anna@example.com");
    let places = [
        r#"{"a":"anna@example.com"}"#,
        r#"{"a":"\u0061nna\u0040example.com"}"#,
        r#"{"a":"{\"b\":\"anna\\u0040example.com\"}"}"#,
        "x=anna%40example.com",
        "data: {\"delta\":\"an\"}\n\ndata: {\"delta\":\"na@example.com \"}\n\n",
    ];
    for place in places {
        assert!(tag(place).contains(&alone), "{place} -> {}", tag(place));
    }
    // Another key gives other placeholders: nobody without the key can test guesses.
    let other = Redactor::new(&Profile::safe(), [8; 32]);
    assert_ne!(shown(&other, "anna@example.com"), alone);
    let own = redactor_with("key = 'a key that is long enough'");
    let again = Profiles::parse("[[profile]]\nname='mine'\nkey = 'a key that is long enough'").unwrap();
    let elsewhere = Redactor::new(again.find("mine").unwrap(), [9; 32]);
    assert_eq!(shown(&own, "anna@example.com"), shown(&elsewhere, "anna@example.com"));
}

#[test]
fn json_stays_json_and_other_bytes_stay() {
    let redactor = safe();
    for (body, expected) in [
        (
            r#"{ "a" : [1, 2.50, "x\/y"], "to":"b@example.com" }"#,
            r#"{ "a" : [1, 2.50, "x\/y"], "to":"[email]" }"#,
        ),
        (r#"{"b@example.com":{"n":1}}"#, r#"{"[email]":{"n":1}}"#),
        (r#"{"c":4111111111111111,"d":4111111111111112}"#, r#"{"c":"[card]","d":4111111111111112}"#),
        (r#"{"phone":4155550132}"#, r#"{"phone":"[phone]"}"#),
        (r#"{"t":"line\nsk-proj-abcDEF123456ghiJKL7890\tend"}"#, r#"{"t":"line\n[api-key]\tend"}"#),
        (r#"["\ud83d\ude00 10.1.2.3 \ud83d\ude00"]"#, r#"["\ud83d\ude00 [ip] \ud83d\ude00"]"#),
        (r#"{"p":"{\"q\":\"[\\\"b@example.com\\\"]\"}"}"#, r#"{"p":"{\"q\":\"[\\\"[email]\\\"]\"}"}"#),
        (r#""b@example.com""#, r#""[email]""#),
        ("\u{feff}{\"a\":\"b@example.com\"}", "\u{feff}{\"a\":\"[email]\"}"),
    ] {
        let found = shown(&redactor, body);
        assert_eq!(short(&found), expected);
        assert!(is_json(found.trim_start_matches('\u{feff}')), "{found}");
    }
    let clean = br#"{"a":"nothing here"}"#;
    assert!(matches!(redactor.body(clean, None).bytes, std::borrow::Cow::Borrowed(_)));
}

/// JSON cut in the middle, such as the answer of a killed recorder.
#[test]
fn cut_json_is_redacted() {
    let found = shown(&safe(), r#"{"a":"b@example.com","c":"d\u0040example.com","e":"f@exam"#);
    assert_eq!(short(&found), r#"{"a":"[email]","c":"[email]","e":"f@exam"#);
}

/// A path removes a value to the end where the body was cut within it, though nothing else in it is secret.
#[test]
fn path_removes_a_value_that_was_cut() {
    let redactor = redactor_with("detect = []\npaths = '$.a.b'");
    for cut in [
        r#"{"c":1,"a":{"b":{"x":"plain","y":["wo"#,
        r#"{"c":1,"a":{"b":[1,{"#,
        r#"{"c":1,"a":{"b":"plain wo"#,
    ] {
        let found = shown(&redactor, cut);
        assert!(
            found.starts_with(r#"{"c":1,"a":{"b":"#) && !found.contains("plain") && !found.contains("[1"),
            "{found}"
        );
    }
}

/// JSON with a fault in it: texts in it are decoded, what stands between them is, too, and JSON in it is read.
#[test]
fn damaged_json_is_redacted() {
    let body = concat!(
        r#"{"a":x,"b":"b@example.com","c":"d\u0040example.com", e%40example.com: "f&#64;example.com","#,
        r#""phone":"415 555 0100","arguments":"{\"api_key\":\"\\u0061B3dE5gH7jK9mN1p\",\"g\":\"h\u0040example.com"#,
    );
    let found = short(&shown(&safe(), body));
    let wanted = concat!(
        r#"{"a":x,"b":"[email]","c":"[email]", [email]: "[email]","phone":"[phone]","#,
        r#""arguments":"{\"api_key\":\"[entropy]\",\"g\":\"[email]"#,
    );
    assert_eq!(found, wanted);
}

#[test]
fn needed_ids_stay() {
    let id = "toolu_01A09q90qw90lq917835lq9X";
    let signature = "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pkiMOYds7Kp0W";
    let body = json!({
        "id": "msg_013Zva2CMHLNnjNjtJGqGqqs", "model": "gpt-4o-2024-08-06", "request_id": "req_011CSHoEeqs5C35K2UUqR7Fy",
        "content": [
            {"type": "tool_use", "id": id, "name": "f", "input": {}},
            {"type": "thinking", "thinking": "so", "signature": signature},
            {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix6LafPsn4aDFIT2Xlxh0L5L8rLVyIwxtE3rAFBa8cr3qpP"},
            {"type": "reasoning", "id": "rs_6820f383d7c08191846711c5df8233bc", "encrypted_content": "gAAAAABoIPOF8kP2m1XwQ9zT4vLrNcYb7HsJd"},
        ],
        "tool_calls": [{"id": "call_VfUqzGYnS7Yd5hNvXk2mRpQ8", "function": {"name": "f", "arguments": "{}"}}],
        "system_fingerprint": "fp_44709d6fcb", "tool_call_id": "call_VfUqzGYnS7Yd5hNvXk2mRpQ8",
        "previous_response_id": "resp_6820f382ee1c8191bc096bee70894d040ac5ba57aafcbac7",
    })
    .to_string();
    assert_eq!(shown(&safe(), &body), body);
    // Values that are not ids are removed there, too.
    let hidden = json!({"id": "b@example.com", "tool_use_id": "sk-proj-abcDEF123456ghiJKL7890"}).to_string();
    assert_eq!(short(&shown(&safe(), &hidden)), r#"{"id":"[email]","tool_use_id":"[api-key]"}"#);
}

/// Writes a part of an answer with this index as an event.
type EventFormat<'a> = &'a dyn Fn(usize, &str) -> String;

fn event(data: &Value) -> String {
    format!("event: x\ndata: {data}\n\n")
}

#[test]
fn value_spelled_over_events_is_removed_from_a_stream() {
    let key = "sk-ant-api03-abcDEF123456ghiJKL7890mnoPQR";
    let text = format!("mail b@example.com, {key}. bye");
    let anthropic = |index: usize, text: &str| {
        event(&json!({"type":"content_block_delta","index":index,"delta":{"type":"text_delta","text":text}}))
    };
    let openai = |index: usize, text: &str| {
        event(&json!({"id":"chatcmpl-1","choices":[{"index":index,"delta":{"content":text}}]}))
    };
    let responses = |index: usize, text: &str| {
        event(&json!({"type":"response.output_text.delta","output_index":index,"delta":text}))
    };
    let ollama = |_: usize, text: &str| {
        format!("{}\n", json!({"model":"m","message":{"role":"assistant","content":text},"done":false}))
    };
    let forms: [EventFormat<'_>; 4] = [&anthropic, &openai, &responses, &ollama];
    for form in forms {
        for step in [1, 2, 3, 7, 200] {
            let letters: Vec<char> = text.chars().collect();
            let pieces = letters.chunks(step).map(|piece| piece.iter().collect::<String>());
            let body: String = pieces.map(|piece| form(0, &piece) + &form(1, "other")).collect();
            let body = if form(1, "") == form(0, "") { body.replace(&form(1, "other"), "") } else { body };
            let found = shown(&safe(), &body);
            assert_eq!(found.lines().count(), body.lines().count());
            let mut joined = String::new();
            for line in found.lines().filter(|line| line.contains('{')) {
                let event: Value = serde_json::from_str(line.trim_start_matches("data: ")).unwrap();
                let spelt = [
                    &event["delta"]["text"],
                    &event["choices"][0]["delta"]["content"],
                    &event["delta"],
                    &event["message"]["content"],
                ];
                joined.push_str(spelt.iter().find_map(|text| text.as_str()).unwrap());
            }
            assert_eq!(
                short(&joined.replace("other", "")),
                "mail [email], [api-key]. bye",
                "{step} at a time: {found}"
            );
        }
    }
    // Tool call arguments are JSON within JSON, in pieces.
    let pieces = ["{\"to", "\":\"b\\u00", "40exam", "ple.com\"}"];
    let body: String = pieces
        .map(|piece| event(&json!({"index":1,"delta":{"type":"input_json_delta","partial_json":piece}})))
        .concat();
    let found = shown(&safe(), &body);
    assert!(short(&found).contains(r#""partial_json":"\":\"[email]""#), "{found}");
    assert!(!found.contains("exam"), "{found}");
    // Gemini streams an array.
    let part = |text: &str| json!({"candidates":[{"content":{"parts":[{"text":text}]}}]}).to_string();
    let found = shown(&safe(), &format!("[{},\n{}]", part("b@exa"), part("mple.com ok")));
    assert!(is_json(&found) && short(&found).contains("[email]") && !found.contains("mple"), "{found}");
    // Lines that do not belong together are not joined.
    let lines = "{\"email\":\"a@example.com\",\"n\":1}\n{\"email\":\"b@example.com\",\"n\":2}\n";
    assert_eq!(
        short(&shown(&safe(), lines)),
        "{\"email\":\"[email]\",\"n\":1}\n{\"email\":\"[email]\",\"n\":2}\n"
    );
}

#[test]
fn binary_and_encoded_bodies_are_redacted() {
    let redactor = safe();
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR b@example.com";
    let found = redactor.body(png, None);
    let text = String::from_utf8_lossy(&found.bytes).into_owned();
    assert!(text.starts_with("[binary:") && text.ends_with(" image/png, 30 bytes]"), "{text}");
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(b"{\"a\":\"b@example.com\"}").unwrap();
    let gzip = gzip.finish().unwrap();
    for encoding in [Some("gzip"), None] {
        assert_eq!(
            short(&String::from_utf8_lossy(&redactor.body(&gzip, encoding).bytes)),
            "{\"a\":\"[email]\"}"
        );
    }
    let cut = redactor.body(&gzip[..gzip.len() - 9], None);
    assert!(cut.bytes.starts_with(b"[binary:"), "{:?}", cut.bytes);
    // Text with a few bytes of invalid UTF-8 is text.
    let latin = redactor.body(b"caf\xe9 of b@example.com, and a long line of text", None);
    assert!(latin.bytes.starts_with(b"caf\xe9 of [email:"), "{:?}", latin.bytes);
    let json = redactor.body(b"{\"a\":\"caf\xe9 b@example.com\"}", None);
    assert!(json.bytes.starts_with(b"{\"a\":\"caf\xe9 [email:"), "{:?}", json.bytes);
    assert_eq!(redactor.body(b"", None).bytes.len(), 0);
}

#[test]
fn hostile_bodies_are_bounded() {
    let redactor = safe();
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let found = shown(&redactor, &deep);
    assert!(found.starts_with("\"[deep:") && is_json(&found), "{}", found.len());
    let nested = json!({"a": deep, "b": "b@example.com"}).to_string();
    assert!(is_json(&shown(&redactor, &nested)));
    let long = vec![b'a'; REDACTED_BODY_BYTES_MAX + 1];
    assert_eq!(
        redactor.body(&long, None).bytes.as_ref(),
        format!("[large: {} bytes]", long.len()).as_bytes()
    );
    // Each of these could make some detector search far from every position.
    for piece in [
        "-----BEGIN PRIVATE KEY-----",
        "eyJ",
        "eyJ-",
        "eyJ.-",
        "@",
        "a@",
        "1 ",
        "1-",
        "a.",
        "sk-",
        "DE00",
        "Bearer ",
        "%4",
        "{",
        "[\"",
        "1.",
        "::1",
        "=",
        "aB1",
    ] {
        let body = piece.repeat((1 << 20) / piece.len());
        let found = redactor.body(body.as_bytes(), None);
        assert!(found.bytes.len() <= body.len() + 64, "{piece}");
        let lines: String =
            std::iter::repeat_n(format!("data: {}\n", json!({"text": piece})), 20_000).collect();
        assert!(!redactor.body(lines.as_bytes(), None).bytes.is_empty());
    }
    let rows: String = (0..50_000).map(|n| format!("{{\"k{n}\":\"b@example.com\"}}\n")).collect();
    assert_eq!(redactor.body(rows.as_bytes(), None).replaced, 50_000);
}

#[test]
fn user_paths_and_patterns_are_redacted() {
    let redactor = redactor_with(
        "detect = []\npatterns = { customer = 'C-\\d{4}' }\npaths = ['$..password', '$.user', '$.list[1]', '$.deep.*.x']\nkeep = '$.keep'",
    );
    let body = r#"{"a":{"password":"p"},"user":{"name":["x",1]},"list":[1,2,3],"deep":{"q":{"x":true,"y":0}},"keep":{"password":"C-1234"},"t":"see C-1234"}"#;
    assert_eq!(
        short(&shown(&redactor, body)),
        r#"{"a":{"password":"[path]"},"user":"[path]","list":[1,"[path]",3],"deep":{"q":{"x":"[path]","y":0}},"keep":{"password":"C-1234"},"t":"see [customer]"}"#
    );
    let whole = redactor_with("paths = '$'");
    assert_eq!(short(&shown(&whole, "[1,2]")), "\"[path]\"");
}

#[test]
fn metadata_hashes_are_removed() {
    let body = r#"{"program":{"argv":["x"],"key":"0011"},"volatile":{"asked":"aabb","part_ms":[1]},"http":{"query":"to=b%40example.com"}}"#;
    let found = safe().metadata(body.as_bytes());
    let text = short(&String::from_utf8_lossy(&found.bytes));
    assert_eq!(
        text,
        r#"{"program":{"argv":["x"],"key":"[path]"},"volatile":{"asked":"[path]","part_ms":[1]},"http":{"query":"to=[email]"}}"#
    );
}

#[test]
fn wrong_profile_files_are_refused_with_their_place() {
    for (text, line, column, what) in [
        (
            "[[profile]]\nnmae = 'x'",
            2,
            1,
            "\"nmae\" is not a key of [[profile]]; allowed are name, detect, patterns, paths, keep and key",
        ),
        ("[[profiles]]\nname = 'x'", 1, 3, "there is no table \"profiles\""),
        ("[[profile]]\nname = 'safe'", 2, 8, "already"),
        ("[[profile]]\nname = 'a b'", 2, 8, "letters"),
        ("[[profile]]\ndetect = 'email'", 1, 1, "has no name"),
        ("[[profile]]\nname = 'x'\ndetect = ['email', 'mail']", 3, 20, "there is no detector \"mail\""),
        ("[[profile]]\nname = 'x'\npatterns = { a = '(x' }", 3, 18, "unclosed group"),
        ("[[profile]]\nname = 'x'\npatterns = { a = '(a{1000}){1000}' }", 3, 18, "too large"),
        ("[[profile]]\nname = 'x'\npatterns = { a = '(x)\\1' }", 3, 18, "backreferences"),
        ("[[profile]]\nname = 'x'\npatterns = { email = 'x' }", 3, 14, "not a detector's"),
        ("[[profile]]\nname = 'x'\npaths = '$..a..b'", 3, 9, "twice"),
        ("[[profile]]\nname = 'x'\nkey = 'short'", 3, 7, "guessing"),
        ("[[profile]]\nname = 1", 2, 8, "name is a text"),
        ("name = ", 1, 8, "not valid TOML"),
    ] {
        let error = Profiles::parse(text).unwrap_err();
        assert_eq!((error.line, error.column), (line, column), "{text}: {error}");
        assert!(error.what.contains(what), "{error}");
    }
    let many: String = (0..70).map(|n| format!("[[profile]]\nname = 'p{n}'\n")).collect();
    assert!(Profiles::parse(&many).unwrap_err().what.contains("one too many"));
    // A pattern that would take a backtracking matcher years takes a moment.
    let slow = redactor_with("patterns = { slow = '(a+)+$' }");
    assert_eq!(slow.body("a".repeat(100_000).as_bytes(), None).replaced, 1);
    let _ = KEY;
}
