use super::*;

const STORE: StoreId = StoreId([7; 16]);

fn facts(status: Status, severity: Severity, ended_ns: u64) -> Facts<'static> {
    Facts { namespace: "default", status, severity, tags: &[], ended_ns }
}

/// The verdict on a single run: whether it goes, and by which rule.
fn verdict(policy: &Policy, uid: u64, run: &Facts<'_>, at_ns: u64, has: &[Component]) -> (bool, Cause) {
    let uid = RunUid(uid);
    let mut has = |any: &[Component]| Ok(any.iter().any(|one| has.contains(one)));
    let cause = policy.cause((STORE, uid), run, at_ns, &mut has).unwrap();
    let mut one = [Judged { namespace: 0, uid, ended_ns: run.ended_ns, cause, goes: false }];
    policy.decide(STORE, at_ns, &mut one);
    (one[0].goes, cause)
}

#[test]
fn the_built_in_policy_keeps_what_went_wrong_ninety_days_and_the_rest_seven() {
    let policy = Policy::default();
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
    let all = |name: &str, keep| Rule::new(name, keep);
    let tags = [("team".to_owned(), "a".to_owned()), ("hold".to_owned(), String::new())];
    let run = Facts {
        namespace: "shop-7",
        status: Status::Ok,
        severity: Severity::Normal,
        tags: &tags,
        ended_ns: 990 * DAY_NS,
    };
    let text = |text: &str| text.to_owned();
    let gone = Keep::ForNs(0);
    let cases = [
        (Rule { namespaces: vec![text("shop-*")], ..all("r", gone) }, true),
        (Rule { namespaces: vec![text("shop-7"), text("x")], ..all("r", gone) }, true),
        (Rule { namespaces: vec![text("shop-")], ..all("r", gone) }, false),
        (Rule { statuses: vec![Status::Failed, Status::Ok], ..all("r", gone) }, true),
        (Rule { statuses: vec![Status::Failed], ..all("r", gone) }, false),
        (Rule { severities: vec![Severity::Debug], ..all("r", gone) }, false),
        (Rule { tags: vec![(text("hold"), None)], ..all("r", gone) }, true),
        (
            Rule {
                tags: vec![(text("team"), Some(text("b"))), (text("team"), Some(text("a")))],
                ..all("r", gone)
            },
            true,
        ),
        (Rule { tags: vec![(text("team"), Some(text("b")))], ..all("r", gone) }, false),
        (Rule { components: vec![Component::Tool, Component::Llm], ..all("r", gone) }, true),
        (Rule { components: vec![Component::Planner], ..all("r", gone) }, false),
        (Rule { older_than_ns: Some(10 * DAY_NS - 1), ..all("r", gone) }, true),
        (Rule { older_than_ns: Some(10 * DAY_NS), ..all("r", gone) }, false),
        (Rule { younger_than_ns: Some(10 * DAY_NS + 1), ..all("r", gone) }, true),
        (Rule { younger_than_ns: Some(10 * DAY_NS), ..all("r", gone) }, false),
        (Rule { pinned: Some(false), ..all("r", gone) }, true),
        (Rule { pinned: Some(true), ..all("r", Keep::Forever) }, false),
        // All conditions must hold.
        (Rule { statuses: vec![Status::Ok], severities: vec![Severity::Debug], ..all("r", gone) }, false),
    ];
    for (rule, matches) in cases {
        let said = format!("{rule:?}");
        let policy = Policy { rules: vec![rule, all("rest", Keep::Forever)], sample: Share::ALL };
        let (_, cause) = verdict(&policy, 1, &run, 1000 * DAY_NS, &[Component::Llm]);
        assert_eq!(cause, Cause::Rule(if matches { 0 } else { 1 }), "{said}");
    }
    let none = Policy { rules: Vec::new(), sample: Share::ALL };
    assert_eq!(verdict(&none, 1, &run, u64::MAX, &[]), (false, Cause::Nothing));
}

#[test]
fn what_operators_had_done_is_for_rules_only_that_name_its_namespace() {
    let own = Facts { namespace: OWN_NAMESPACE, ..facts(Status::Ok, Severity::Normal, 0) };
    let policy = |namespaces: &[&str]| {
        let namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
        let rules = vec![Rule { namespaces, ..Rule::new("r", Keep::ForNs(0)) }];
        Policy { rules, sample: Share::parse("0%").unwrap() }
    };
    assert_eq!(verdict(&policy(&[]), 1, &own, DAY_NS, &[]), (false, Cause::Nothing));
    assert_eq!(verdict(&policy(&["default"]), 1, &own, DAY_NS, &[]), (false, Cause::Nothing));
    assert_eq!(verdict(&policy(&["annals"]), 1, &own, DAY_NS, &[]), (true, Cause::Rule(0)));
    assert_eq!(verdict(&policy(&["*"]), 1, &own, DAY_NS, &[]), (true, Cause::Rule(0)));
}

#[test]
fn frames_are_looked_at_only_for_runs_that_a_rule_of_components_may_match() {
    let rule = Rule {
        statuses: vec![Status::Failed],
        components: vec![Component::Llm],
        ..Rule::new("r", Keep::Forever)
    };
    let policy = Policy { rules: vec![rule], sample: Share::ALL };
    let mut looks = 0;
    for status in [Status::Ok, Status::Failed] {
        let run = facts(status, Severity::Normal, 0);
        policy
            .cause((STORE, RunUid(1)), &run, 0, &mut |_| {
                looks += 1;
                Ok(true)
            })
            .unwrap();
    }
    assert_eq!(looks, 1);
}

#[test]
fn the_newest_stay_in_each_namespace() {
    let policy = Policy { rules: vec![Rule::new("r", Keep::Newest(2))], sample: Share::ALL };
    let judged = |namespace, uid, ended_ns| Judged {
        namespace,
        uid: RunUid(uid),
        ended_ns,
        cause: Cause::Rule(0),
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
fn a_share_is_the_same_runs_each_time_and_about_as_many_as_it_says() {
    let kept = |share: Share, store: StoreId| -> Vec<u64> {
        (1..=20_000).filter(|uid| share.has(store, RunUid(*uid))).collect()
    };
    let share = |text| Share::parse(text).unwrap();
    let five = kept(share("5%"), STORE);
    assert_eq!(five, kept(share("5%"), STORE));
    // The expected count is 1,000; five standard deviations are 154.
    assert!((846..=1154).contains(&five.len()), "{}", five.len());
    let ten = kept(share("10%"), STORE);
    assert!(five.iter().all(|uid| ten.contains(uid)), "a run in the 5% share is in the 10% share");
    assert_ne!(five, kept(share("5%"), StoreId([8; 16])));
    assert_eq!((kept(share("0%"), STORE).len(), kept(Share::ALL, STORE).len()), (0, 20_000));
}

#[test]
fn sampling_takes_only_what_ended_well_and_matters_no_more_than_any_other() {
    let rules = vec![Rule { tags: vec![("hold".to_owned(), None)], ..Rule::new("held", Keep::Forever) }];
    let policy = Policy { rules, sample: Share::parse("0%").unwrap() };
    for (status, severity, sampled) in [
        (Status::Ok, Severity::Debug, true),
        (Status::Ok, Severity::Normal, true),
        (Status::Ok, Severity::Flagged, false),
        (Status::Ok, Severity::Escalated, false),
        (Status::Failed, Severity::Normal, false),
        (Status::Abandoned, Severity::Debug, false),
    ] {
        let (goes, cause) = verdict(&policy, 1, &facts(status, severity, 5), 5, &[]);
        assert_eq!((goes, cause == Cause::Sampling), (sampled, sampled), "{status} {severity}");
    }
    let tags = [("hold".to_owned(), String::new())];
    let held = Facts { tags: &tags, ..facts(Status::Ok, Severity::Normal, 5) };
    assert_eq!(verdict(&policy, 1, &held, 5, &[]), (false, Cause::Rule(0)));
}

#[test]
fn what_would_drop_open_or_pinned_runs_or_contradicts_itself_is_refused() {
    let rule = |keep| Rule::new("r", keep);
    let day = Keep::ForNs(DAY_NS);
    for (rule, what) in [
        (Rule { statuses: vec![Status::Open], ..rule(day) }, "open runs"),
        (Rule { statuses: vec![Status::Ok, Status::Open], ..rule(Keep::Newest(1)) }, "open runs"),
        (Rule { pinned: Some(true), ..rule(Keep::Share(Share::ALL)) }, "pinned runs"),
        (Rule { older_than_ns: Some(5), younger_than_ns: Some(5), ..rule(day) }, "contradicts itself"),
        (rule(Keep::Newest(0)), "newest 0"),
        (Rule::new("", day), "name"),
        (Rule::new("a\nb", day), "name"),
        (Rule::new("x".repeat(257), day), "name"),
        (Rule::new(SAMPLING, day), "annals' own"),
    ] {
        let said = rule.check().unwrap_err();
        assert!(said.contains(what), "{said}");
        let policy = Policy { rules: vec![rule], sample: Share::ALL };
        assert_eq!(policy.check().unwrap_err().kind(), crate::ErrorKind::Invalid);
    }
    let policy = |rules| Policy { rules, sample: Share::ALL }.check().map_err(|error| error.to_string());
    assert!(policy(vec![rule(day), Rule::new("s", day)]).unwrap_err().contains("never reached"));
    let some = Rule { statuses: vec![Status::Ok], ..rule(day) };
    assert!(policy(vec![some.clone(), rule(day)]).unwrap_err().contains("name of another"));
    assert!(policy(vec![rule(day); 101]).unwrap_err().contains("at most 100"));
    policy(vec![some, Rule::new("s", day)]).unwrap();
    Rule { statuses: vec![Status::Open], pinned: Some(true), ..rule(Keep::Forever) }.check().unwrap();
}

#[test]
fn texts_of_times_and_shares_read_as_what_they_say() {
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
        assert_eq!(lasting_ns(text), ns, "{text}");
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
        assert_eq!(Share::parse(text).map(|share| share.to_string()).as_deref(), said, "{text}");
    }
    for (ns, said) in [
        (7 * DAY_NS, "7d"),
        (365 * DAY_NS, "1y"),
        (DAY_NS / 24 * 36, "36h"),
        (90_000_000_000, "90s"),
        (0, "0s"),
    ] {
        assert_eq!(Keep::ForNs(ns).to_string(), format!("for {said}"));
    }
}
