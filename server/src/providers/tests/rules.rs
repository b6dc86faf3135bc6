//! Severity: what is built in, rules of a user, rules that are wrong.

use annals::Severity;

use crate::providers::{Evidence, ProviderError, Rules, Shape, Summary};

fn summary(status: u16) -> Summary {
    Summary::new("openai", Shape::OpenAiChat, status)
}

fn judge(rules: &Rules, summary: &Summary, last: bool) -> Option<(Severity, String)> {
    let verdict = rules.judge(&Evidence { summary, transport: None, last });
    verdict.map(|verdict| (verdict.severity, verdict.reason))
}

#[test]
fn what_is_built_in() {
    let rules = Rules::default();
    assert_eq!(judge(&rules, &summary(200), true), None);
    assert_eq!(judge(&rules, &summary(429), false), None, "it was tried again");
    let mut limited = summary(429);
    limited.error = Some(ProviderError {
        kind: Some("rate_limit_error".to_owned()),
        message: Some("slow\ndown".to_owned()),
    });
    let flagged = |reason: &str| Some((Severity::Flagged, reason.to_owned()));
    assert_eq!(
        judge(&rules, &limited, true),
        flagged("the provider answered 429: rate_limit_error: slow down")
    );
    assert_eq!(judge(&rules, &summary(503), false), flagged("the provider answered 503"));
    let mut refused = summary(200);
    refused.refuse("I can't");
    assert_eq!(judge(&rules, &refused, false), flagged("the model refused: I can't"));
    let mut tool = summary(200);
    tool.tool_errors = vec!["search: Error: gone".to_owned()];
    assert_eq!(judge(&rules, &tool, false), flagged("a tool failed: search: Error: gone"));
    tool.complete = Some(false);
    assert_eq!(judge(&rules, &tool, false), flagged("the answer's stream ended before its end"));
    let found = rules.judge(&Evidence { summary: &summary(0), transport: Some("timed out"), last: false });
    assert_eq!(found.unwrap().reason, "the connection failed: timed out");
}

#[test]
fn the_first_rule_whose_conditions_all_hold_decides() {
    let rules = Rules::parse(
        r#"
        [[rule]]
        severity = "escalated"
        status = ["5xx", 404]
        last = true
        reason = "the run ended on an outage"
        [[rule]]
        severity = "debug"
        status = ["4xx"]
        [[rule]]
        severity = "escalated"
        tool = "delete"
        contains = "/etc"
        [[rule]]
        severity = "flagged"
        finish_reason = "length"
        "#,
    )
    .unwrap();
    let severity = |summary: &Summary, last| judge(&rules, summary, last).map(|(severity, _)| severity);
    assert_eq!(judge(&rules, &summary(503), true).unwrap().1, "the run ended on an outage");
    assert_eq!(severity(&summary(503), false), Some(Severity::Flagged));
    assert_eq!(severity(&summary(404), true), Some(Severity::Escalated));
    assert_eq!(severity(&summary(404), false), Some(Severity::Debug), "a rule may lower");
    let mut call = summary(200);
    call.add_tool_call((0, 0), None, Some("delete".to_owned()), "{\"path\":\"/etc/x\"}");
    assert_eq!(severity(&call, false), Some(Severity::Escalated));
    call.tool_calls[0].name = "read".to_owned();
    assert_eq!(severity(&call, false), None);
    call.finish_reasons = vec!["stop".to_owned(), "length".to_owned()];
    assert_eq!(judge(&rules, &call, false).unwrap().1, "rule 4 holds");
}

#[test]
fn rules_that_are_wrong_say_where() {
    for (text, expected) in [
        ("[[rule]]\nseverity = \"loud\"\nlast = true", "loud"),
        ("[[rule]]\nseverity = \"debug\"", "number 1"),
        ("[[rule]]\nseverity = \"debug\"\nstatsu = [1]", "statsu"),
        ("[[rule]]\nseverity = \"debug\"\nstatus = [\"6xx\"]", "status"),
        ("[[rule]]\nlast = true", "severity"),
    ] {
        let message = Rules::parse(text).unwrap_err().to_string();
        assert!(message.contains(expected), "{text}: {message}");
    }
}
