use proptest::prelude::*;

use super::*;

fn tokens(text: &str) -> Result<Vec<(JsonTokenKind, &str)>, JsonError> {
    let mut scanner = JsonScanner::new(text.as_bytes());
    let mut tokens = Vec::new();
    while let Some(token) = scanner.next_token()? {
        tokens.push((token.kind, &text[token.inner()]));
    }
    Ok(tokens)
}

#[test]
fn tokens_come_in_order_with_their_bytes() {
    use JsonTokenKind::{ArrayEnd, ArrayStart, Bool, Name, Null, Number, ObjectEnd, ObjectStart, Text};
    assert_eq!(
        tokens(r#" { "a" : [ -1.5e+3 , true,null ], "\"b" :{}, "c": "x\\", "d":[] } "#).unwrap(),
        [
            (ObjectStart, "{"),
            (Name, "a"),
            (ArrayStart, "["),
            (Number, "-1.5e+3"),
            (Bool(true), "true"),
            (Null, "null"),
            (ArrayEnd, "]"),
            (Name, r#"\"b"#),
            (ObjectStart, "{"),
            (ObjectEnd, "}"),
            (Name, "c"),
            (Text, r"x\\"),
            (Name, "d"),
            (ArrayStart, "["),
            (ArrayEnd, "]"),
            (ObjectEnd, "}"),
        ]
    );
}

#[test]
fn malformed_text_is_refused_where_it_is_wrong() {
    for (text, wrong_at) in [
        ("", 0),
        ("[1,]", 3),
        ("{\"a\" 1}", 6),
        ("{\"a\":1,}", 7),
        ("{,}", 1),
        ("[1}", 3),
        ("01", 1),
        ("1.", 2),
        ("-", 1),
        ("1e+", 3),
        ("nul", 0),
        ("\"a", 2),
        ("\"\\x\"", 3),
        ("\"\\u12g4\"", 6),
        ("\"\n\"", 2),
        ("1 2", 2),
        ("[1", 2),
        ("+1", 0),
        ("]", 0),
    ] {
        match tokens(text) {
            Err(JsonError::Malformed { at, .. }) => assert_eq!(at, wrong_at, "{text:?}"),
            other => panic!("{text:?}: {other:?}"),
        }
    }
}

#[test]
fn values_are_limited_and_depth_is_not() {
    let all = |mut scanner: JsonScanner<'_>| loop {
        match scanner.next_token() {
            Ok(Some(_)) => {}
            Ok(None) => return Ok(()),
            Err(error) => return Err(error),
        }
    };
    assert_eq!(all(JsonScanner::new(b"[1,{\"a\":2}]").values_max(4)), Ok(()));
    let one_less = JsonScanner::new(b"[1,{\"a\":2}]").values_max(3);
    assert_eq!(all(one_less), Err(JsonError::TooManyValues { at: 8 }));
    let very_deep = format!("{}{}", "[{\"a\":".repeat(500_000), "1}]".to_owned() + &"}]".repeat(499_999));
    assert_eq!(all(JsonScanner::new(very_deep.as_bytes())), Ok(()));
}

#[test]
fn escapes_are_undone_and_half_pairs_refused() {
    let text = r#"A\u00e9\ud83d\ude00\/\b\f\n\r\t\u0001\\\"z"#;
    assert_eq!(unescape(text).unwrap(), "Aé😀/\u{8}\u{c}\n\r\t\u{1}\\\"z");
    assert!(matches!(unescape("plain é"), Some(Cow::Borrowed("plain é"))));
    for half in [r"\ud800", r"\udc00", r"\ud83dx", r"\ud83d\u0041", r"\ud83d\n", r"\ud83d\ud83d\ude00"] {
        assert_eq!(unescape(half), None, "{half}");
        assert!(serde_json::from_str::<String>(&format!("\"{half}\"")).is_err());
    }
    let mut units = Vec::new();
    unescape_utf16(r"\ud83d and \uDE00é", &mut units);
    assert_eq!(units.first(), Some(&0xd83d));
    assert_eq!(units[units.len() - 2..], [0xde00, 0xe9]);
}

proptest! {
    #[test]
    fn scanner_and_serde_json_agree(text in "[\\[\\]{}\",:0-9eE.+\\-atrufalsn\\\\ \u{1}\u{e9}]{0,24}") {
        // A number over the range of 64-bit floats is JSON, though serde_json has no value for it.
        let read = serde_json::from_str::<Box<serde_json::value::RawValue>>(&text);
        prop_assert_eq!(tokens(&text).is_ok(), read.is_ok(), "{}", text);
    }

    #[test]
    fn unescape_and_serde_json_agree(inner in "([a-c\u{e9}]|\\\\[\"\\\\/bfnrt]|\\\\u(00[0-9a-f]{2}|d83d|DE00|d[89ef]00)){0,12}") {
        let read = serde_json::from_str::<String>(&format!("\"{inner}\"")).ok();
        prop_assert_eq!(unescape(&inner).map(Cow::into_owned), read, "{}", inner);
        let mut units = Vec::new();
        unescape_utf16(&inner, &mut units);
        prop_assert_eq!(String::from_utf16(&units).ok(), unescape(&inner).map(Cow::into_owned));
    }
}
