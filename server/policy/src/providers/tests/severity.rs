//! Severity: built-in conditions, and rules, which only raise it.

use annals::Severity;

use crate::providers::{ApiShape, EncodedBody, Evidence, ExchangeSummary, ProviderError, SeverityRules};
use crate::rules::RulesFile;

fn summary(status: u16) -> ExchangeSummary {
    ExchangeSummary::new("openai", ApiShape::OpenAiChat, status)
}

fn evidence(summary: &ExchangeSummary) -> Evidence<'_> {
    let (input, output) = (EncodedBody::default(), EncodedBody::default());
    let (mount, path, duration_ms) = ("openai", "/v1/chat/completions", 0);
    Evidence { summary, mount, path, transport: None, duration_ms, input, output }
}

fn judge(rules: &SeverityRules, evidence: &Evidence<'_>) -> Option<(Severity, String)> {
    rules.judge(evidence).map(|verdict| (verdict.severity, verdict.reason))
}

fn rules(text: &str) -> SeverityRules {
    RulesFile::parse(text).unwrap().severity
}

/// Whether a rule with these conditions holds.
#[track_caller]
fn holds(conditions: &str, evidence: &Evidence<'_>) -> bool {
    let rules = rules(&format!("[[severity]]\nseverity = 'escalated'\nwhy = 'it holds'\n{conditions}"));
    rules.judge(evidence).is_some_and(|verdict| verdict.reason == "it holds")
}

#[test]
fn built_in_severities() {
    let rules = SeverityRules::default();
    let judge = |summary: &ExchangeSummary| judge(&rules, &evidence(summary));
    assert_eq!(judge(&summary(200)), None);
    let mut limited = summary(429);
    limited.error = Some(ProviderError {
        kind: Some("rate_limit_error".to_owned()),
        message: Some("slow\ndown".to_owned()),
    });
    let flagged = |reason: &str| Some((Severity::Flagged, reason.to_owned()));
    assert_eq!(judge(&limited), flagged("the provider answered 429: rate_limit_error: slow down"));
    assert_eq!(judge(&summary(503)), flagged("the provider answered 503"));
    let mut refused = summary(200);
    refused.refuse("I can't");
    assert_eq!(judge(&refused), flagged("the model refused: I can't"));
    let mut tool = summary(200);
    tool.tool_errors = vec!["search: Error: gone".to_owned()];
    assert_eq!(judge(&tool), flagged("a tool failed: search: Error: gone"));
    tool.complete = Some(false);
    assert_eq!(judge(&tool), flagged("the answer's stream ended before its end"));
    let found = rules.judge(&Evidence { transport: Some("timed out"), ..evidence(&summary(0)) });
    assert_eq!(found.unwrap().reason, "the connection failed: timed out");
}

#[test]
fn greatest_severity_wins_and_none_is_lowered() {
    let rules = rules(
        r#"
        [[severity]]
        severity = "flagged"
        why = "an outage"
        status = ["5xx", 404]
        [[severity]]
        severity = "flagged"
        why = "an outage, too"
        status = 503
        [[severity]]
        severity = "escalated"
        why = "it deletes what is the system's"
        tool = "delete*"
        contains = ["/etc", "/usr"]
        [[severity]]
        severity = "flagged"
        why = "it took long"
        duration_over_ms = 1000
        "#,
    );
    let judge = |summary: &ExchangeSummary| judge(&rules, &evidence(summary));
    let is = |severity, why: &str| Some((severity, why.to_owned()));
    assert_eq!(judge(&summary(503)), is(Severity::Flagged, "an outage"), "the first of equals");
    assert_eq!(judge(&summary(404)), is(Severity::Flagged, "an outage"));
    assert_eq!(judge(&summary(500)), is(Severity::Flagged, "an outage"));
    assert_eq!(judge(&summary(403)), is(Severity::Flagged, "the provider answered 403"), "what is built in");
    assert_eq!(judge(&summary(200)), None);
    let mut call = summary(503);
    call.add_tool_call((0, 0), None, Some("delete_file".to_owned()), "{\"path\":\"/etc/x\"}");
    assert_eq!(judge(&call), is(Severity::Escalated, "it deletes what is the system's"));
    call.tool_calls[0].name = "read".to_owned();
    assert_eq!(judge(&call), is(Severity::Flagged, "an outage"));
    // Time-dependent reasons are marked.
    let good = summary(200);
    let slow = rules.judge(&Evidence { duration_ms: 1001, ..evidence(&good) }).unwrap();
    assert_eq!((slow.reason.as_str(), slow.timed), ("it took long", true));
    assert_eq!(rules.judge(&Evidence { duration_ms: 1000, ..evidence(&good) }), None);
    assert!(!rules.judge(&evidence(&summary(503))).unwrap().timed);
}

#[test]
fn each_condition_holds_only_for_what_it_names() {
    let mut said = summary(200);
    said.model_requested = Some("gpt-4o".to_owned());
    said.model_answered = Some("gpt-4o-2024-08-06".to_owned());
    said.finish_reasons = vec!["stop".to_owned(), "length".to_owned()];
    said.error =
        Some(ProviderError { kind: Some("overloaded".to_owned()), message: Some("no room".to_owned()) });
    said.refuse("never");
    said.tool_errors = vec!["x".to_owned()];
    said.complete = Some(false);
    said.text.push("the account 1234567 is frozen");
    let full = Evidence {
        transport: Some("timed out"),
        input: EncodedBody { bytes: br#"{"n":1,"a":[{"b c":1.50}],"stream":true,"o":null}"#, encoding: None },
        output: EncodedBody { bytes: br#"{"error":{"code":"bu\u0073y","n":-7}}"#, encoding: None },
        ..evidence(&said)
    };
    let (quiet, none) = (summary(200), EncodedBody { bytes: b"no json", encoding: None });
    let bare = Evidence { input: none, output: none, ..evidence(&quiet) };
    for condition in [
        "model = 'gpt-4o'",
        "model = 'gpt-4o-2024*'",
        "model = ['x', 'gpt-4o']",
        "finish_reason = 'length'",
        "error_type = 'over*'",
        "contains = '1234567'",
        "contains = 'never'",
        "contains = 'no room'",
        "matches = '(?i)ACCOUNT \\d{7}\\b'",
        "refusal = true",
        "tool_errors = true",
        "cut_short = true",
        "broken = true",
        "input = { '$.n' = 1 }",
        "input = { '$.n' = 1.0 }",
        "input = { \"$.a[0]['b c']\" = 1.5, '$.stream' = true }",
        "output = { '$.error.code' = 'busy' }",
        "output.'$.error.n' = -7",
    ] {
        assert!(holds(condition, &full), "{condition}");
        assert!(!holds(condition, &bare), "{condition}");
    }
    for condition in [
        "mount = 'openai'",
        "path = '/v1/chat/*'",
        "provider = 'openai'",
        "api = 'openai.*'",
        "status = '2xx'",
        "refusal = false",
        "broken = false",
    ] {
        assert!(holds(condition, &bare), "{condition}");
    }
    for condition in [
        "mount = 'open'",
        "path = '/v1'",
        "provider = 'azure'",
        "api = 'opaque'",
        "status = 201",
        "model = 'gpt-4'",
        "finish_reason = 'len'",
        "tool = '*'",
        "contains = 'FROZEN'",
        "matches = '^account'",
        "duration_over_ms = 0",
        "refusal = false",
        "input = { '$.n' = 2 }",
        "input = { '$.n' = '1' }",
        "input = { '$.n' = true }",
        "input = { '$.o' = 'null' }",
        "input = { '$.a[1]' = 1 }",
        "output = { '$.error.code' = 'busy', '$.error.n' = 7 }",
        // All conditions must hold.
        "model = 'gpt-4o'\nstatus = 500",
    ] {
        assert!(!holds(condition, &full), "{condition}");
    }
}

#[test]
fn answers_are_decoded_and_opaque_ones_read_as_text() {
    let plain = br#"{"error":{"code":"quota"}}"#;
    let mut coder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut coder, plain).unwrap();
    let packed = coder.finish().unwrap();
    let output = EncodedBody { bytes: &packed, encoding: Some("gzip") };
    let (known, opaque) = (summary(200), ExchangeSummary::new("http", ApiShape::Opaque, 200));
    assert!(holds("output = { '$.error.code' = 'quota' }", &Evidence { output, ..evidence(&known) }));
    assert!(holds("contains = 'quota'", &Evidence { output, ..evidence(&opaque) }));
    assert!(!holds("contains = 'quota'", &Evidence { output, ..evidence(&known) }), "its text is another");
    // A body that cannot be decoded matches nothing.
    let output = EncodedBody { bytes: &packed[..8], encoding: Some("gzip") };
    assert!(!holds("output = { '$.error.code' = 'quota' }", &Evidence { output, ..evidence(&known) }));
}
