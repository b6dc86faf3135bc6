use super::*;

const STORE: StoreId = StoreId([7; 16]);

fn facts(status: Status, severity: Severity, ended_ns: u64) -> RetentionFacts<'static> {
    RetentionFacts { namespace: "default", status, severity, ended_ns }
}

/// The verdict on a single run without tags: whether it goes, and by which rule.
fn verdict(
    policy: &RetentionPolicy,
    uid: u64,
    run: &RetentionFacts<'_>,
    at_ns: u64,
    has: &[Component],
) -> (bool, RetentionCause) {
    verdict_with_tags(policy, uid, run, at_ns, (has, &[]))
}

fn verdict_with_tags(
    policy: &RetentionPolicy,
    uid: u64,
    run: &RetentionFacts<'_>,
    at_ns: u64,
    (components, tags): (&[Component], &[(String, String)]),
) -> (bool, RetentionCause) {
    let uid = RunUid(uid);
    let mut has = |condition: CostlyCondition<'_>| {
        Ok(match condition {
            CostlyCondition::AnyComponent(any) => any.iter().any(|one| components.contains(one)),
            CostlyCondition::AnyTag(any) => has_tag(any, tags),
        })
    };
    let cause = policy.find_cause((STORE, uid), run, at_ns, &mut has).unwrap();
    let mut one = [RunVerdict { namespace: 0, uid, ended_ns: run.ended_ns, cause, goes: false }];
    policy.decide(STORE, at_ns, &mut one);
    (one[0].goes, cause)
}

#[test]
fn default_policy_keeps_failures_90_days_and_others_7() {
    let policy = RetentionPolicy::default();
    policy.check().unwrap();
    let now = 1000 * DAY_NS;
    for (status, severity, days) in [
        (Status::Ok, Severity::Debug, 7),
        (Status::Ok, Severity::Normal, 7),
        (Status::Ok, Severity::Flagged, 90),
        (Status::Ok, Severity::Escalated, 90),
        (Status::Failed, Severity::Debug, 90),
        (Status::Failed, Severity::Escalated, 90),
        (Status::Abandoned, Severity::Normal, 90),
    ] {
        let goes = |age_ns: u64| verdict(&policy, 1, &facts(status, severity, now - age_ns), now, &[]).0;
        let kept = days * DAY_NS;
        assert_eq!((goes(kept - 1), goes(kept), goes(kept + 1)), (false, true, true), "{status} {severity}");
        // A run whose end lies in the future, because a clock was wrong once.
        assert!(!verdict(&policy, 1, &facts(status, severity, now + 1), now, &[]).0);
    }
}

#[test]
fn the_first_rule_that_matches_counts() {
    let all = |name: &str, keep| RetentionRule::new(name, keep);
    let tags = [("team".to_owned(), "a".to_owned()), ("hold".to_owned(), String::new())];
    let run = RetentionFacts {
        namespace: "shop-7",
        status: Status::Ok,
        severity: Severity::Normal,
        ended_ns: 990 * DAY_NS,
    };
    let text = |text: &str| text.to_owned();
    let gone = RetentionLimit::ForNs(0);
    let cases = [
        (RetentionRule { namespaces: vec![text("shop-*")], ..all("r", gone) }, true),
        (RetentionRule { namespaces: vec![text("shop-7"), text("x")], ..all("r", gone) }, true),
        (RetentionRule { namespaces: vec![text("shop-")], ..all("r", gone) }, false),
        (RetentionRule { statuses: vec![Status::Failed, Status::Ok], ..all("r", gone) }, true),
        (RetentionRule { statuses: vec![Status::Failed], ..all("r", gone) }, false),
        (RetentionRule { severities: vec![Severity::Debug], ..all("r", gone) }, false),
        (RetentionRule { tags: vec![(text("hold"), None)], ..all("r", gone) }, true),
        (
            RetentionRule {
                tags: vec![(text("team"), Some(text("b"))), (text("team"), Some(text("a")))],
                ..all("r", gone)
            },
            true,
        ),
        (RetentionRule { tags: vec![(text("team"), Some(text("b")))], ..all("r", gone) }, false),
        (RetentionRule { components: vec![Component::Tool, Component::Llm], ..all("r", gone) }, true),
        (RetentionRule { components: vec![Component::Planner], ..all("r", gone) }, false),
        (RetentionRule { older_than_ns: Some(10 * DAY_NS - 1), ..all("r", gone) }, true),
        (RetentionRule { older_than_ns: Some(10 * DAY_NS), ..all("r", gone) }, false),
        (RetentionRule { younger_than_ns: Some(10 * DAY_NS + 1), ..all("r", gone) }, true),
        (RetentionRule { younger_than_ns: Some(10 * DAY_NS), ..all("r", gone) }, false),
        (RetentionRule { pinned: Some(false), ..all("r", gone) }, true),
        (RetentionRule { pinned: Some(true), ..all("r", RetentionLimit::Forever) }, false),
        // All conditions must hold.
        (
            RetentionRule { statuses: vec![Status::Ok], severities: vec![Severity::Debug], ..all("r", gone) },
            false,
        ),
    ];
    for (rule, matches) in cases {
        let said = format!("{rule:?}");
        let policy = RetentionPolicy::new(vec![rule, all("rest", RetentionLimit::Forever)]);
        let (_, cause) = verdict_with_tags(&policy, 1, &run, 1000 * DAY_NS, (&[Component::Llm], &tags));
        assert_eq!(cause, RetentionCause::Rule(if matches { 0 } else { 1 }), "{said}");
    }
    let none = RetentionPolicy::new(Vec::new());
    assert_eq!(verdict(&none, 1, &run, u64::MAX, &[]), (false, RetentionCause::Nothing));
}

#[test]
fn own_namespace_needs_a_rule_that_names_it() {
    let own = RetentionFacts { namespace: OWN_NAMESPACE, ..facts(Status::Ok, Severity::Normal, 0) };
    let policy = |namespaces: &[&str]| {
        let namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
        let rules = vec![RetentionRule { namespaces, ..RetentionRule::new("r", RetentionLimit::ForNs(0)) }];
        RetentionPolicy { sample: RunShare::parse("0%").unwrap(), ..RetentionPolicy::new(rules) }
    };
    assert_eq!(verdict(&policy(&[]), 1, &own, DAY_NS, &[]), (false, RetentionCause::Nothing));
    assert_eq!(verdict(&policy(&["default"]), 1, &own, DAY_NS, &[]), (false, RetentionCause::Nothing));
    assert_eq!(verdict(&policy(&["annals"]), 1, &own, DAY_NS, &[]), (true, RetentionCause::Rule(0)));
    assert_eq!(verdict(&policy(&["*"]), 1, &own, DAY_NS, &[]), (true, RetentionCause::Rule(0)));
}

#[test]
fn frames_are_read_only_for_component_rules() {
    let rule = RetentionRule {
        statuses: vec![Status::Failed],
        components: vec![Component::Llm],
        ..RetentionRule::new("r", RetentionLimit::Forever)
    };
    let policy = RetentionPolicy::new(vec![rule]);
    let mut looks = 0;
    for status in [Status::Ok, Status::Failed] {
        let run = facts(status, Severity::Normal, 0);
        policy
            .find_cause((STORE, RunUid(1)), &run, 0, &mut |_| {
                looks += 1;
                Ok(true)
            })
            .unwrap();
    }
    assert_eq!(looks, 1);
}

#[test]
fn the_newest_stay_in_each_namespace() {
    let policy = RetentionPolicy::new(vec![RetentionRule::new("r", RetentionLimit::Newest(2))]);
    let judged = |namespace, uid, ended_ns| RunVerdict {
        namespace,
        uid: RunUid(uid),
        ended_ns,
        cause: RetentionCause::Rule(0),
        goes: false,
    };
    let mut runs = [
        judged(0, 1, 50),
        judged(0, 2, 10),
        judged(0, 3, 50),
        judged(0, 4, 50),
        judged(1, 5, 1),
        judged(1, 6, 2),
    ];
    policy.decide(STORE, 100, &mut runs);
    // Of runs that ended together, the younger ones stay.
    assert_eq!(runs.map(|run| run.goes), [true, true, false, false, false, false]);
}

#[test]
fn share_selects_a_stable_set_of_the_expected_size() {
    let kept = |share: RunShare, store: StoreId| -> Vec<u64> {
        (1..=20_000).filter(|uid| share.includes(store, RunUid(*uid))).collect()
    };
    let share = |text| RunShare::parse(text).unwrap();
    let five = kept(share("5%"), STORE);
    assert_eq!(five, kept(share("5%"), STORE));
    // The expected count is 1,000; five standard deviations are 154.
    assert!((846..=1154).contains(&five.len()), "{}", five.len());
    let ten = kept(share("10%"), STORE);
    assert!(five.iter().all(|uid| ten.contains(uid)), "a run in the 5% share is in the 10% share");
    assert_ne!(five, kept(share("5%"), StoreId([8; 16])));
    assert_eq!((kept(share("0%"), STORE).len(), kept(RunShare::ALL, STORE).len()), (0, 20_000));
}

#[test]
fn sampling_applies_only_to_ok_runs_of_normal_severity() {
    let rules = vec![RetentionRule {
        tags: vec![("hold".to_owned(), None)],
        ..RetentionRule::new("held", RetentionLimit::Forever)
    }];
    let policy = RetentionPolicy { sample: RunShare::parse("0%").unwrap(), ..RetentionPolicy::new(rules) };
    for (status, severity, sampled) in [
        (Status::Ok, Severity::Debug, true),
        (Status::Ok, Severity::Normal, true),
        (Status::Ok, Severity::Flagged, false),
        (Status::Ok, Severity::Escalated, false),
        (Status::Failed, Severity::Normal, false),
        (Status::Abandoned, Severity::Debug, false),
    ] {
        let (goes, cause) = verdict(&policy, 1, &facts(status, severity, 5), 5, &[]);
        assert_eq!((goes, cause == RetentionCause::Sampling), (sampled, sampled), "{status} {severity}");
    }
    let tags = [("hold".to_owned(), String::new())];
    let held = facts(Status::Ok, Severity::Normal, 5);
    let verdict = verdict_with_tags(&policy, 1, &held, 5, (&[], &tags));
    assert_eq!(verdict, (false, RetentionCause::Rule(0)));
}

#[test]
fn policy_check_refuses_unsafe_and_contradictory_rules() {
    let rule = |keep| RetentionRule::new("r", keep);
    let day = RetentionLimit::ForNs(DAY_NS);
    for (rule, what) in [
        (RetentionRule { statuses: vec![Status::Open], ..rule(day) }, "open runs"),
        (
            RetentionRule { statuses: vec![Status::Ok, Status::Open], ..rule(RetentionLimit::Newest(1)) },
            "open runs",
        ),
        (RetentionRule { pinned: Some(true), ..rule(RetentionLimit::Share(RunShare::ALL)) }, "pinned runs"),
        (
            RetentionRule { older_than_ns: Some(5), younger_than_ns: Some(5), ..rule(day) },
            "contradicts itself",
        ),
        (rule(RetentionLimit::Newest(0)), "newest 0"),
        (RetentionRule::new("", day), "name"),
        (RetentionRule::new("a\nb", day), "name"),
        (RetentionRule::new("x".repeat(257), day), "name"),
        (RetentionRule::new(SAMPLING, day), "annals' own"),
    ] {
        let said = rule.check().unwrap_err();
        assert!(said.contains(what), "{said}");
        let policy = RetentionPolicy::new(vec![rule]);
        assert_eq!(policy.check().unwrap_err().kind(), crate::ErrorKind::Invalid);
    }
    let policy = |rules| RetentionPolicy::new(rules).check().map_err(|error| error.to_string());
    assert!(policy(vec![rule(day), RetentionRule::new("s", day)]).unwrap_err().contains("never reached"));
    let some = RetentionRule { statuses: vec![Status::Ok], ..rule(day) };
    assert!(policy(vec![some.clone(), rule(day)]).unwrap_err().contains("name of another"));
    assert!(policy(vec![rule(day); 101]).unwrap_err().contains("at most 100"));
    policy(vec![some, RetentionRule::new("s", day)]).unwrap();
    RetentionRule { statuses: vec![Status::Open], pinned: Some(true), ..rule(RetentionLimit::Forever) }
        .check()
        .unwrap();
}

#[test]
fn durations_and_shares_parse_and_print() {
    for (text, ns) in [
        ("0d", Some(0)),
        ("90s", Some(90_000_000_000)),
        ("5min", Some(300_000_000_000)),
        ("2h", Some(DAY_NS / 12)),
        ("7d", Some(7 * DAY_NS)),
        ("1w", Some(7 * DAY_NS)),
        ("1y", Some(365 * DAY_NS)),
        ("", None),
        ("d", None),
        ("7", None),
        ("7 d", None),
        ("-7d", None),
        ("7m", None),
        ("1.5d", None),
        ("99999999999999999999d", None),
        ("999999999y", None),
    ] {
        assert_eq!(parse_duration_ns(text), ns, "{text}");
    }
    for (text, said) in [
        ("5%", Some("5%")),
        ("0.5%", Some("0.5%")),
        ("12.3450%", Some("12.345%")),
        ("100%", Some("100%")),
        ("100.0001%", None),
        ("101%", None),
        ("5", None),
        (".5%", None),
        ("5.%", None),
        ("+5%", None),
        ("0.00001%", None),
        ("-1%", None),
    ] {
        assert_eq!(RunShare::parse(text).map(|share| share.to_string()).as_deref(), said, "{text}");
    }
    for (ns, said) in [
        (7 * DAY_NS, "7d"),
        (365 * DAY_NS, "1y"),
        (DAY_NS / 24 * 36, "36h"),
        (90_000_000_000, "90s"),
        (0, "0s"),
    ] {
        assert_eq!(RetentionLimit::ForNs(ns).to_string(), format!("for {said}"));
    }
}
