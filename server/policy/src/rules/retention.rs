//! Retention policies: how long runs are kept. docs/retention.md describes the format.

use annals::{
    Component, Severity, Status,
    retention::{
        RETENTION_RULES_MAX, RetentionLimit, RetentionPolicy, RetentionRule, RunShare, parse_duration_ns,
    },
};

use super::document::{Located, RulesDocument, RulesError, RulesResult, RulesSection};

/// Maximum size of a policy, in bytes.
pub const POLICY_BYTES_MAX: usize = 64 << 10;

const KINDS: [&str; 3] = ["rule", "sampling", "memory"];
const RULE: [&str; 14] = [
    "name",
    "namespace",
    "status",
    "severity",
    "tag",
    "component",
    "older_than",
    "younger_than",
    "pinned",
    "keep",
    "keep_newest",
    "keep_share",
    "keep_for_ever",
    "why",
];
const KEEPS: &str = "keep = \"7d\", keep_newest = 100, keep_share = \"5%\" or keep_for_ever = true";
const LASTING: &str = "a duration such as \"7d\": an integer and s, min, h, d, w or y";
const SHARE: &str = "a share such as \"5%\" or \"0.5%\", at most 100%";

/// Parses a retention policy. It replaces the built-in policy entirely; nothing is inherited.
///
/// # Errors
/// Says what is wrong, where, and what is allowed. Refused are: invalid TOML; unknown keys; wrong types;
/// contradictions; unreachable rules; rules that would drop open or pinned runs.
///
/// ```
/// let policy = annals_policy::rules::parse_policy("[[rule]]\nname = \"all\"\nkeep = \"30d\"\n")?;
/// assert_eq!(policy.rules[0].keep.to_string(), "for 30d");
/// let error = annals_policy::rules::parse_policy("[[rule]]\npinned = true\nkeep = \"1d\"").unwrap_err();
/// assert!(error.to_string().starts_with("line 1, column 1: this [[rule]] would drop pinned runs"));
/// # Ok::<(), annals_policy::rules::RulesError>(())
/// ```
pub fn parse_policy(text: &str) -> RulesResult<RetentionPolicy> {
    let whole = |what| RulesError { line: 1, column: 1, what };
    if text.len() > POLICY_BYTES_MAX {
        return Err(whole(format!(
            "the policy has {} bytes; at most {POLICY_BYTES_MAX} are allowed",
            text.len()
        )));
    }
    let document = RulesDocument::parse(text, &KINDS)?;
    let mut policy = RetentionPolicy::new(Vec::new());
    for section in document.sections("rule", &RULE)? {
        if policy.rules.len() == RETENTION_RULES_MAX {
            return Err(
                section.wrong(format_args!("is one more than the {RETENTION_RULES_MAX} that are allowed"))
            );
        }
        let rule = rule(&section, policy.rules.len() + 1)?;
        if let Some(before) = policy.rules.iter().find(|before| before.name == rule.name) {
            return Err(section.wrong(format_args!("has the name of another, {:?}", before.name)));
        }
        if let Some(before) = policy.rules.iter().find(|before| before.matches_all()) {
            return Err(section.wrong(format_args!(
                "is never reached: the rule {:?} before it has no condition and matches every run",
                before.name
            )));
        }
        policy.rules.push(rule);
    }
    let sampling = document.sections("sampling", &["keep_share", "after"])?;
    if let Some(second) = sampling.get(1) {
        return Err(second.wrong("is the second: there is one sampling, or none"));
    }
    if let Some(section) = sampling.first() {
        policy.sample = share(section)?
            .ok_or_else(|| section.wrong(format_args!("lacks keep_share: {SHARE}, for example")))?;
        policy.sample_after_ns = duration_ns(section, "after")?.unwrap_or(0);
    }
    let memory = document.sections("memory", &["keep"])?;
    if let Some(second) = memory.get(1) {
        return Err(second.wrong("is the second: there is one memory, or none"));
    }
    if let Some(section) = memory.first() {
        policy.memory_for_ns = Some(
            duration_ns(section, "keep")?
                .ok_or_else(|| section.wrong(format_args!("lacks keep: {LASTING}, for example")))?,
        );
    }
    if policy.rules.is_empty() && sampling.is_empty() && memory.is_empty() {
        return Err(whole(
            "there is no [[rule]], no [[sampling]] and no [[memory]]: the policy would drop nothing"
                .to_owned(),
        ));
    }
    Ok(policy)
}

fn rule(section: &RulesSection<'_, '_>, number: usize) -> RulesResult<RetentionRule> {
    let name = section.text("name")?.map_or_else(|| format!("rule {number}"), |text| text.value.to_owned());
    let rule = RetentionRule {
        namespaces: patterns(section)?,
        statuses: parse_each::<Status>(section, "status", "open, ok, failed and abandoned")?,
        severities: parse_each::<Severity>(section, "severity", "debug, normal, flagged and escalated")?,
        tags: section.texts("tag")?.into_iter().map(tag).collect(),
        components: components(section)?,
        older_than_ns: duration_ns(section, "older_than")?,
        younger_than_ns: duration_ns(section, "younger_than")?,
        pinned: section.boolean("pinned")?,
        ..RetentionRule::new(name, keep(section)?)
    };
    // `why` is only for people who read the file.
    section.text("why")?;
    rule.check().map_err(|what| section.wrong(what))?;
    Ok(rule)
}

/// The single keep condition of a rule.
fn keep(section: &RulesSection<'_, '_>) -> RulesResult<RetentionLimit> {
    let mut said = Vec::new();
    said.extend(duration_ns(section, "keep")?.map(RetentionLimit::ForNs));
    said.extend(section.whole("keep_newest")?.map(RetentionLimit::Newest));
    said.extend(share(section)?.map(RetentionLimit::Share));
    match section.boolean("keep_for_ever")? {
        Some(true) => said.push(RetentionLimit::Forever),
        Some(false) => {
            return Err(
                section.wrong(format_args!("has keep_for_ever = false, which has no effect: {KEEPS}"))
            );
        }
        None => {}
    }
    match said.as_slice() {
        [keep] => Ok(*keep),
        [] => Err(section.wrong(format_args!("lacks a keep condition: {KEEPS}"))),
        _ => Err(section.wrong(format_args!("contradicts itself: it has more than one of {KEEPS}"))),
    }
}

fn duration_ns(section: &RulesSection<'_, '_>, key: &str) -> RulesResult<Option<u64>> {
    let Some(Located { value, at }) = section.text(key)? else { return Ok(None) };
    let ns = parse_duration_ns(value);
    ns.map(Some).ok_or_else(|| section.wrong_at(at, format!("{key} is {LASTING}, and not {value:?}")))
}

fn share(section: &RulesSection<'_, '_>) -> RulesResult<Option<RunShare>> {
    let Some(Located { value, at }) = section.text("keep_share")? else { return Ok(None) };
    let share = RunShare::parse(value);
    share.map(Some).ok_or_else(|| section.wrong_at(at, format!("keep_share is {SHARE}, and not {value:?}")))
}

fn patterns(section: &RulesSection<'_, '_>) -> RulesResult<Vec<String>> {
    let pattern = |Located { value, at }: Located<&str>| match value.find('*') {
        Some(star) if star + 1 < value.len() => {
            Err(section.wrong_at(at, "in namespace a * stands at the end only, for any rest"))
        }
        _ => Ok(value.to_owned()),
    };
    section.texts("namespace")?.into_iter().map(pattern).collect()
}

fn parse_each<T: std::str::FromStr>(
    section: &RulesSection<'_, '_>,
    key: &str,
    there: &str,
) -> RulesResult<Vec<T>> {
    let one = |Located { value, at }: Located<&str>| {
        value
            .parse()
            .map_err(|_| section.wrong_at(at, format!("there is no {key} {value:?}; there are {there}")))
    };
    section.texts(key)?.into_iter().map(one).collect()
}

fn components(section: &RulesSection<'_, '_>) -> RulesResult<Vec<Component>> {
    let one = |Located { value, at }: Located<&str>| {
        value.parse::<Component>().map_err(|error| section.wrong_at(at, error.to_string()))
    };
    section.texts("component")?.into_iter().map(one).collect()
}

/// `key` or `key=value`.
fn tag(text: Located<&str>) -> (String, Option<String>) {
    match text.value.split_once('=') {
        Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
        None => (text.value.to_owned(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The built-in policy as docs/retention.md shows it.
    const BUILT_IN: &str = r#"
        [[rule]]
        name = "failed"
        status = ["failed", "abandoned"]
        keep = "90d"

        [[rule]]
        name = "marked"
        severity = ["flagged", "escalated"]
        keep = "90d"

        [[rule]]
        name = "normal"
        keep = "7d"
    "#;

    #[test]
    fn documented_policy_equals_the_built_in_one() {
        assert_eq!(parse_policy(BUILT_IN).unwrap(), RetentionPolicy::default());
        let docs = include_str!("../../../../docs/retention.md");
        let block = docs.split("```toml").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        assert_eq!(
            parse_policy(block).unwrap(),
            RetentionPolicy::default(),
            "docs/retention.md shows another one"
        );
        for block in docs.split("```toml").skip(1).filter_map(|rest| rest.split("```").next()) {
            parse_policy(block).unwrap().check().unwrap();
        }
    }

    #[test]
    fn policy_parses_every_condition_and_keep_form() {
        let text = r#"
            [[rule]]
            namespace = ["shop-*", "x"]
            status = "ok"
            severity = ["debug", "normal"]
            tag = ["team=a=b", "hold"]
            component = ["tool", "judge"]
            older_than = "30d"
            younger_than = "1y"
            pinned = false
            keep_share = "5%"
            why = "enough to look at"
            [[rule]]
            tag = "exam"
            keep_for_ever = true
            [[rule]]
            keep_newest = 100
            [[sampling]]
            keep_share = "12.5%"
        "#;
        let policy = parse_policy(text).unwrap();
        policy.check().unwrap();
        let day = 86_400_000_000_000;
        let first = RetentionRule {
            namespaces: vec!["shop-*".into(), "x".into()],
            statuses: vec![Status::Ok],
            severities: vec![Severity::Debug, Severity::Normal],
            tags: vec![("team".into(), Some("a=b".into())), ("hold".into(), None)],
            components: vec![Component::Tool, Component::Other("judge".into())],
            older_than_ns: Some(30 * day),
            younger_than_ns: Some(365 * day),
            pinned: Some(false),
            ..RetentionRule::new("rule 1", RetentionLimit::Share(RunShare::parse("5%").unwrap()))
        };
        let second = RetentionRule {
            tags: vec![("exam".into(), None)],
            ..RetentionRule::new("rule 2", RetentionLimit::Forever)
        };
        assert_eq!(policy.rules, [first, second, RetentionRule::new("rule 3", RetentionLimit::Newest(100))]);
        assert_eq!(policy.sample.to_string(), "12.5%");
    }

    #[test]
    fn invalid_policies_are_refused_with_their_position() {
        for (text, at, what) in [
            ("", (1, 1), "there is no [[rule]]"),
            ("[[rule]\nkeep = 1", (1, 8), "not valid TOML"),
            ("[[rules]]\nkeep = \"1d\"", (1, 3), "there is no table \"rules\""),
            ("[rule]\nkeep = \"1d\"", (1, 2), "write [[rule]]"),
            ("[[rule]]\nkept = \"1d\"", (2, 1), "\"kept\" is not a key of [[rule]]"),
            ("[[rule]]\nkeep = \"1d\"\nkeep = \"2d\"", (3, 1), "duplicate key"),
            ("[[rule]]\nstatus = \"ok\"", (1, 1), "lacks a keep condition"),
            ("[[rule]]\nkeep = \"1d\"\nkeep_newest = 5", (1, 1), "contradicts itself"),
            ("[[rule]]\nkeep_for_ever = true\nkeep_share = \"5%\"", (1, 1), "contradicts itself"),
            ("[[rule]]\nkeep_for_ever = false", (1, 1), "has no effect"),
            ("[[rule]]\nkeep = 7", (2, 8), "keep is a text"),
            ("[[rule]]\nkeep = \"7m\"", (2, 8), "keep is a duration such as \"7d\""),
            ("[[rule]]\nkeep_newest = -1", (2, 15), "whole number"),
            ("[[rule]]\nkeep_newest = 0", (1, 1), "keeps the newest 0"),
            ("[[rule]]\nkeep_share = \"101%\"", (2, 14), "keep_share is a share"),
            ("[[rule]]\nkeep = \"1d\"\nstatus = \"done\"", (3, 10), "there is no status \"done\""),
            ("[[rule]]\nkeep = \"1d\"\nseverity = [\"normal\", \"bad\"]", (3, 23), "there is no severity"),
            ("[[rule]]\nkeep = \"1d\"\nstatus = []", (3, 10), "empty list"),
            ("[[rule]]\nkeep = \"1d\"\nnamespace = \"a*b\"", (3, 13), "at the end only"),
            ("[[rule]]\nkeep = \"1d\"\nstatus = \"open\"", (1, 1), "would drop open runs"),
            ("[[rule]]\nkeep = \"1d\"\npinned = true", (1, 1), "would drop pinned runs"),
            (
                "[[rule]]\nkeep = \"1d\"\nolder_than = \"9d\"\nyounger_than = \"8d\"",
                (1, 1),
                "contradicts itself",
            ),
            ("[[rule]]\nkeep = \"1d\"\n[[rule]]\nkeep = \"2d\"", (3, 1), "never reached"),
            (
                "[[rule]]\nname = \"a\"\nstatus = \"ok\"\nkeep = \"1d\"\n[[rule]]\nname = \"a\"\nkeep = \"2d\"",
                (5, 1),
                "name of another",
            ),
            ("[[rule]]\nname = \"sampling\"\nkeep = \"1d\"", (1, 1), "annals' own"),
            ("[[sampling]]\nkeep_share = \"5%\"\n[[sampling]]\nkeep_share = \"6%\"", (3, 1), "the second"),
            ("[[sampling]]", (1, 1), "lacks keep_share"),
            ("[[sampling]]\nkeep_share = \"5%\"\nafter = \"soon\"", (3, 9), "after is a duration"),
            ("[[sampling]]\nkeep = \"5%\"", (2, 1), "is not a key of [[sampling]]"),
        ] {
            let error = parse_policy(text).unwrap_err();
            assert_eq!((error.line, error.column), at, "{text:?}: {error}");
            assert!(error.what.contains(what), "{text:?}: {error}");
        }
        let many = "[[rule]]\nstatus = \"ok\"\nkeep = \"1d\"\n".repeat(101);
        assert!(parse_policy(&many).unwrap_err().what.contains("one more than the 100"));
        assert!(parse_policy(&" ".repeat(POLICY_BYTES_MAX + 1)).unwrap_err().what.contains("at most"));
    }
}
