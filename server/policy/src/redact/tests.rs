//! Named secrets in bodies: forms, borders, streams, limits.

use super::{PLACEHOLDER, Secrets};

const KEY: &str = "sk-ant-0123456789";

fn secrets(values: &[&str]) -> Secrets {
    let named: Vec<(String, Vec<u8>)> = values
        .iter()
        .enumerate()
        .map(|(at, value)| (format!("NAME_{at}"), value.as_bytes().to_vec()))
        .collect();
    let (secrets, refused) = Secrets::new(&named);
    assert!(refused.is_empty());
    secrets
}

fn redacted(secrets: &Secrets, body: &str) -> (String, usize) {
    let redacted = secrets.redact(body.as_bytes());
    (String::from_utf8(redacted.bytes.into_owned()).unwrap(), redacted.removed)
}

#[test]
fn values_are_removed_in_every_form() {
    let odd = "pa\"ss/wörd+1";
    let secrets = secrets(&[KEY, odd]);
    for (body, expected, count) in [
        (format!("a {KEY} b {KEY}{KEY}"), format!("a {PLACEHOLDER} b {PLACEHOLDER}{PLACEHOLDER}"), 3),
        ("{\"k\":\"pa\\\"ss/w\\u00f6rd+1\"}".to_owned(), format!("{{\"k\":\"{PLACEHOLDER}\"}}"), 1),
        (
            "{\"k\":\"{\\\"p\\\":\\\"pa\\\\\\\"ss/wörd+1\\\"}\"}".to_owned(),
            format!("{{\"k\":\"{{\\\"p\\\":\\\"{PLACEHOLDER}\\\"}}\"}}"),
            1,
        ),
        ("?k=pa%22ss%2fw%c3%b6rd%2b1&b".to_owned(), format!("?k={PLACEHOLDER}&b"), 1),
        // base64 of `u:sk-ant-0123456789`, whose first characters belong to the user name.
        ("Basic dTpzay1hbnQtMDEyMzQ1Njc4OQ==".to_owned(), format!("Basic dTp{PLACEHOLDER}OQ=="), 1),
        ("nothing".to_owned(), "nothing".to_owned(), 0),
    ] {
        let (text, removed) = redacted(&secrets, &body);
        if body.starts_with("Basic") {
            assert!(text.starts_with("Basic dT") && text.contains(PLACEHOLDER) && text.len() < 40, "{text}");
            assert!(!text.contains("MDEyMzQ1Njc4"), "{text}");
        } else {
            assert_eq!((text, removed), (expected, count), "{body}");
        }
        assert_eq!(removed, count, "{body}");
    }
    assert!(matches!(secrets.redact(b"nothing").bytes, std::borrow::Cow::Borrowed(_)));
}

#[test]
fn overlapping_values_are_removed_together() {
    let secrets = secrets(&["abcdefgh", "efghijklmnop", "cdefghij"]);
    assert_eq!(redacted(&secrets, "xabcdefghijklmnopx"), (format!("x{PLACEHOLDER}x"), 1));
    assert_eq!(redacted(&secrets, "xabcdefghx"), (format!("x{PLACEHOLDER}x"), 1));
}

#[test]
fn value_spelled_over_events_is_removed() {
    let secrets = secrets(&[KEY]);
    let event = |index: usize, text: &str| {
        format!(
            "event: x\ndata: {{\"type\":\"content_block_delta\",\"index\":{index},\"delta\":{{\"text\":\"{text}\"}}}}\n\n"
        )
    };
    let stream =
        |pieces: &[(usize, &str)]| pieces.iter().map(|(index, text)| event(*index, text)).collect::<String>();
    let mut body =
        stream(&[(0, "it is sk-an"), (1, "other"), (0, "t-0123"), (0, ""), (0, "456789."), (0, KEY)]);
    let expected = stream(&[
        (0, &format!("it is {PLACEHOLDER}")),
        (1, "other"),
        (0, ""),
        (0, ""),
        (0, "."),
        (0, PLACEHOLDER),
    ]);
    assert_eq!(redacted(&secrets, &body), (expected.clone(), 2));
    body = body.replace('\n', "\r\n");
    assert_eq!(redacted(&secrets, &body), (expected.replace('\n', "\r\n"), 2));
    let lines = "{\"message\":{\"content\":\"sk-ant-01\"}}\n{\"message\":{\"content\":\"23456789\"}}\n";
    let (text, removed) = redacted(&secrets, lines);
    assert_eq!(removed, 1);
    assert_eq!(
        text,
        format!("{{\"message\":{{\"content\":\"{PLACEHOLDER}\"}}}}\n{{\"message\":{{\"content\":\"\"}}}}\n")
    );
    // Two alternating choices do not form one text.
    let apart = stream(&[(0, "sk-ant-01"), (1, "23456789")]);
    assert_eq!(redacted(&secrets, &apart), (apart.clone(), 0));
}

#[test]
fn part_borders_move_with_removed_values() {
    let secrets = secrets(&["0123456789"]);
    let body = b"ab0123456789cd0123456789";
    let redacted = secrets.redact(body);
    let mark = PLACEHOLDER.len();
    for (before, now) in [(0, 0), (2, 2), (7, 2 + mark), (12, 2 + mark), (14, 4 + mark), (24, 4 + 2 * mark)] {
        assert_eq!(redacted.border(before), now, "{before}");
    }
    assert_eq!(redacted.border(body.len()), redacted.bytes.len());
}

#[test]
fn short_values_are_refused_without_showing_them() {
    let named: Vec<(String, Vec<u8>)> = [("SHORT", "1234567"), ("EMPTY", ""), ("GOOD", "12345678")]
        .map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()))
        .to_vec();
    let (secrets, refused) = Secrets::new(&named);
    let names: Vec<&str> = refused.iter().map(|refused| refused.name.as_str()).collect();
    assert_eq!(names, ["SHORT", "EMPTY"]);
    assert!(refused[0].to_string().starts_with("SHORT is not removed from bodies: its value has 7 bytes"));
    assert!(!secrets.is_empty());
    assert!(!format!("{secrets:?}{refused:?}").contains("1234567"));
    let many: Vec<(String, Vec<u8>)> =
        (0..300).map(|n| (n.to_string(), format!("value-{n:08}").into_bytes())).collect();
    assert_eq!(Secrets::new(&many).1.len(), 300 - super::SECRETS_MAX);
    let long: Vec<(String, Vec<u8>)> =
        (0..8).map(|n| (n.to_string(), format!("{n}{}", "\"<é".repeat(1000)).into_bytes())).collect();
    let refused = Secrets::new(&long).1;
    assert!((3..8).contains(&refused.len()) && refused[0].reason.contains("524288"), "{}", refused.len());
    let (none, _) = Secrets::new(&[]);
    assert_eq!(none.redact(b"data: {\"a\":\"b\"}\ndata: {}\n").removed, 0);
}

#[test]
fn encoded_body_is_decoded_only_if_it_holds_a_secret() {
    let secrets = secrets(&[KEY]);
    let zstd = |text: &str| zstd::encode_all(text.as_bytes(), 1).unwrap();
    let clean = zstd("nothing here");
    let same = secrets.redact_encoded(Some("zstd"), &clean).unwrap();
    assert_eq!((same.bytes.as_ref(), same.decoded, same.removed), (clean.as_slice(), false, 0));
    let dirty = zstd(&format!("key {KEY}"));
    let found = secrets.redact_encoded(Some("zstd"), &dirty).unwrap();
    assert_eq!(
        (found.bytes.as_ref(), found.decoded, found.removed),
        (format!("key {PLACEHOLDER}").as_bytes(), true, 1)
    );
    assert!(secrets.redact_encoded(Some("snappy"), &clean).unwrap_err().contains("snappy"));
    assert!(secrets.redact_encoded(Some("zstd"), &clean[..clean.len() - 2]).is_err());
    let bare = secrets.redact_encoded(Some("snappy"), KEY.as_bytes()).unwrap();
    assert_eq!((bare.bytes.as_ref(), bare.decoded), (PLACEHOLDER.as_bytes(), false));
}

#[test]
fn hostile_bodies_take_linear_time() {
    let values: Vec<String> = (0..20).map(|n| format!("aaaaaaaa{}", "a".repeat(n))).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let secrets = secrets(&values);
    let body = "a".repeat(1 << 20);
    assert_eq!(secrets.redact(body.as_bytes()).removed, 1);
    let brackets = format!("data: {}\n", "[{\"".repeat(1 << 20));
    assert_eq!(secrets.redact(brackets.as_bytes()).removed, 0);
    let lines: String = (0..200_000).map(|n| format!("{{\"k{n}\":\"\\\"\"}}\n")).collect();
    assert_eq!(secrets.redact(lines.as_bytes()).removed, 0);
}
