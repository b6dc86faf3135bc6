//! Tests of the structural comparison of two bodies.

use proptest::prelude::*;

use super::*;

fn diff_with(recorded: &str, asked: &str, rules: &Rules) -> Diff {
    let (a, b) = (recorded.as_bytes(), asked.as_bytes());
    Diff::new(&CanonicalBody::new(a, rules), &CanonicalBody::new(b, rules), (a, b), rules).unwrap()
}

fn diff(recorded: &str, asked: &str) -> Diff {
    diff_with(recorded, asked, &Rules::none())
}

fn one(recorded: &str, asked: &str) -> Difference {
    let diff = diff(recorded, asked);
    assert_eq!((diff.differences.len(), diff.more), (1, 0), "{:?}", diff.differences);
    diff.differences.into_iter().next().unwrap()
}

#[test]
fn a_changed_field_is_named_with_what_differs_in_it() {
    let of = |text: &str| {
        format!(r#"{{"messages":[{{"content":[{{"text":"{text}","type":"text"}}]}}],"model":"m"}}"#)
    };
    let found = one(&of("the weather in Wien is fine"), &of("the weather in Würzburg is fine"));
    assert_eq!((found.path.as_str(), found.kind), ("$.messages[0].content[0].text", ChangeKind::Changed));
    let span = found.span.unwrap();
    assert_eq!((span.at, span.recorded.as_str(), span.asked.as_str()), (16, "ien", "ürzburg"));
    assert_eq!(found.asked, "the weather in Würzburg is fine");
    assert_eq!((found.looks_like, found.rule), (None, None));
}

#[test]
fn characters_are_never_cut() {
    // é and è share their first byte; ǿ and ÿ their last.
    let span = one(r#"["aéb"]"#, r#"["aèb"]"#).span.unwrap();
    assert_eq!((span.at, span.recorded.as_str(), span.asked.as_str()), (1, "é", "è"));
    let span = one(r#"["aǿb"]"#, r#"["aÿb"]"#).span.unwrap();
    assert_eq!((span.recorded.as_str(), span.asked.as_str()), ("ǿ", "ÿ"));
    let span = one(r#"["aaa"]"#, r#"["aaaa"]"#).span.unwrap();
    assert_eq!((span.at, span.recorded.as_str(), span.asked.as_str()), (3, "", "a"));
}

#[test]
fn volatile_values_are_recognised_and_a_rule_is_proposed() {
    let system = |text: &str| format!(r#"{{"messages":[{{"content":"{text}"}}]}}"#);
    for (a, b, shape, rule) in [
        (
            "It is 2026-11-22T10:31:07Z now.",
            "It is 2026-11-22T10:45:00Z now.",
            Shape::Time,
            Some("mask time $.messages[0].content"),
        ),
        (
            "run 3f2a5c1e-0000-4abc-8def-0123456789ab",
            "run 3f2a5c1e-0000-4abc-9def-0123456789ff",
            Shape::Uuid,
            Some("mask uuid $.messages[0].content"),
        ),
        ("t=1795343107.5", "t=1795343999.25", Shape::UnixTime, Some("mask unix-time $.messages[0].content")),
        (
            "trace 5f2b9c0d1e3a4b5c",
            "trace 6f2b9c0d1e3a4b5d",
            Shape::HexId,
            Some("mask hex-id $.messages[0].content"),
        ),
        ("I have 5 apples", "I have 7 apples", Shape::Number, None),
    ] {
        let found = one(&system(a), &system(b));
        assert_eq!((found.looks_like, found.rule.as_deref()), (Some(shape), rule), "{a}");
        if let Some(rule) = rule {
            let rules = Rules::none().rule(rule).unwrap();
            assert_eq!(diff_with(&system(a), &system(b), &rules).distance, 0, "the rule covers it");
        }
    }
    let found = one(r#"{"metadata":{"request_id":"a"}}"#, r#"{"metadata":{"request_id":"b"}}"#);
    assert_eq!(found.rule.as_deref(), Some("ignore $.metadata.request_id"));
    let found = one(r#"{"model":"m-2026-11-22"}"#, r#"{"model":"m-2026-11-23"}"#);
    assert_eq!((found.looks_like, found.rule), (Some(Shape::Time), None), "no rule may hide a model");
    let found = one(r#"{"temperature":0.5}"#, r#"{"temperature":1}"#);
    assert_eq!((found.recorded.as_str(), found.asked.as_str(), found.rule), ("0.5", "1", None));
}

#[test]
fn arrays_are_aligned_from_both_ends() {
    let found = one(r#"{"messages":["a","b","c"]}"#, r#"{"messages":["a","b","x","c"]}"#);
    assert_eq!(
        (found.path.as_str(), found.kind, found.asked.as_str()),
        ("$.messages[2]", ChangeKind::Added, "x")
    );
    let found = one(r#"[1,{"k":2},3]"#, "[1,3]");
    assert_eq!((found.path.as_str(), found.kind), ("$[1]", ChangeKind::Removed));
    assert_eq!((found.recorded.as_str(), found.asked.as_str()), (r#"{"k":2}"#, ""));
    let all = diff(r#"["a","b"]"#, r#"["x","y","z"]"#);
    let kinds: Vec<_> = all.differences.iter().map(|d| (d.path.as_str(), d.kind)).collect();
    assert_eq!(
        kinds,
        [("$[0]", ChangeKind::Changed), ("$[1]", ChangeKind::Changed), ("$[2]", ChangeKind::Added)]
    );
}

#[test]
fn keys_are_quoted_and_kinds_told_apart() {
    assert_eq!(one(r#"{"a b":{"it's":1}}"#, r#"{"a b":{"it's":2}}"#).path, r"$['a b']['it\'s']");
    assert_eq!(one(r#"{"a":1}"#, r#"{"a":"1"}"#).kind, ChangeKind::Changed);
    assert_eq!(one(r#"{"a":[]}"#, r#"{"a":{}}"#).asked, "{}");
    assert_eq!(one(r#"{"a":null}"#, "{}").recorded, "null");
    assert_eq!(diff(r#"{"a":1.0,"b":2}"#, r#"{"b":2,"a":1}"#).distance, 0);
    assert_eq!(one(r#"[12345678901234567890123]"#, r#"[12345678901234567890124]"#).path, "$[0]");
    let long = "k".repeat(5000);
    let found = one(&format!(r#"{{"{long}_id":1}}"#), &format!(r#"{{"{long}_id":2}}"#));
    assert!(found.path.len() < 200 && found.rule.is_none(), "a shortened path gives no rule");
}

#[test]
fn non_json_difference_names_byte_and_field() {
    let found = one("plain text", "plain tent");
    assert_eq!(found.path, "body");
    assert_eq!(found.recorded, "from byte 8 of 10: xt");
    let found = one(r#"{"a":{"b":"xyz"}}"#, r#"{"a":{"b":"x\z"}}"#);
    assert_eq!(found.path, "$.a.b", "the recorded JSON gives the path");
    assert_eq!(one("", "x").asked, "from byte 0 of 1: x");
}

#[test]
fn differences_are_bounded_and_the_rest_counted() {
    let list =
        |n: usize| format!("[{}]", (0..100).map(|i| (i * n).to_string()).collect::<Vec<_>>().join(","));
    let all = diff(&list(1), &list(3));
    assert_eq!((all.differences.len(), all.more), (DIFFERENCES_MAX, 99 - DIFFERENCES_MAX));
    let huge = format!(r#"{{"a":"{}"}}"#, "\u{1b}[31mé".replace('\u{1b}', "\\u001b").repeat(100_000));
    let found = one(&huge, r#"{"a":""}"#);
    assert!(found.recorded.len() < 300 && !found.recorded.contains('\u{1b}'));
}

#[test]
fn one_changed_byte_in_50_megabytes_is_found_in_linear_time() {
    let body = |mark: &str| {
        let message = format!(r#"{{"content":"{}","role":"user"}}"#, "word ".repeat(2_000));
        let messages = vec![message; 2_500].join(",");
        format!(
            r#"{{"messages":[{messages},{{"content":"{}{mark}{}"}},{messages}]}}"#,
            "x".repeat(999),
            "y".repeat(999)
        )
    };
    let (a, b) = (body("a"), body("b"));
    assert!(a.len() > 50_000_000);
    let found = one(&a, &b);
    assert_eq!(found.path, "$.messages[2500].content");
    assert_eq!(found.span.unwrap().at, 999);
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(one(&deep, &deep.replace('1', "2")).path, "body");
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        (-5i64..5).prop_map(Into::into),
        "[a-cé0-9:-]{0,6}".prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::btree_map("[a-d ]{0,2}", inner, 0..4)
                .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn distance_is_zero_only_between_equal_bodies(a in any_json(), b in any_json()) {
        let found = diff(&a.to_string(), &b.to_string());
        prop_assert_eq!(found.distance == 0, a == b);
        prop_assert_eq!(found.differences.is_empty(), a == b);
        let back = diff(&b.to_string(), &a.to_string());
        prop_assert_eq!((found.distance, found.weight), (back.distance, back.weight));
    }

    #[test]
    fn forms_differences_and_grades_agree_under_any_rule(
        a in any_json(),
        b in any_json(),
        rule in prop::sample::select(vec![
            "", "ignore $.a", "ignore $.b[1]", "ignore $.a[*]", "mask number $.a", "mask time $", "ignore $.a[*].b",
        ]),
    ) {
        let (a, b) = (a.to_string(), b.to_string());
        super::super::fuzz::request([rule, &a, &b].join("\0").as_bytes());
        super::super::fuzz::request([rule, &a, &a].join("\0").as_bytes());
    }
}
