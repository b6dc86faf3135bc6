//! Sessions' diagnostics over RESP: each command, its rights, and failures that disturb nobody.

use annals::io::sim::{FailRule, OpKind};
use serde_json::{Value, json};

use super::poisoned::prepared;
use super::{DaemonBench, Rights, TestClient, token};

impl TestClient<'_> {
    fn diag(&mut self, words: &[&str]) -> String {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.ask(&words)
    }

    /// A reply of one JSON text.
    fn diag_json(&mut self, words: &[&str]) -> Value {
        let reply = self.diag(words);
        let text = reply.strip_prefix('$').and_then(|rest| rest.split_once('|')).map(|(_, text)| text);
        let text = text.and_then(|text| text.strip_suffix('|'));
        serde_json::from_str(text.unwrap_or_else(|| panic!("{words:?}: {reply}"))).unwrap()
    }
}

fn ended(id: &str, outcome: &str, observations: &[&str]) -> String {
    json!({ "sessionId": id, "outcome": outcome, "injectedObservationIds": observations, "orgId": "org" })
        .to_string()
}

#[test]
fn diagnostics_commands_record_and_answer() {
    let bench = DaemonBench::new();
    let mut client = bench.client();
    assert_eq!(
        client.diag(&[
            "diag.inject",
            r#"{"sessionId":"s","observationIds":["o"],"orgId":"org","graphEntityIds":["n"]}"#
        ]),
        "+OK|"
    );
    let report = client.diag_json(&["diag.record", r#"{"sessionId":"s","outcome":"rejected"}"#]);
    assert_eq!(report["failureCategory"], "incomplete");
    assert_eq!((&report["failures"], &report["repeated"]), (&json!([]), &json!(false)));
    assert_eq!(report["weightChanges"][0]["newWeight"], 0.85);
    assert_eq!(report["graph"], json!({ "nodes": 1, "edges": 0 }));
    for id in ["t", "u"] {
        client.diag_json(&["diag.record", &ended(id, "rework", &["o"]), "TTL", "100000000", "strict"]);
    }
    assert_eq!(client.diag(&["diag.misleading", "ORG", "org"]), "*1|$1|o|");
    assert_eq!(client.diag(&["diag.misleading", "org", "other"]), "*0|");
    assert_eq!(client.diag(&["diag.misleading", "since", "99999999999999"]), "*0|");
    let counts = client.diag_json(&["diag.distribution", "project", "none"]);
    assert_eq!(counts.as_object().unwrap().len(), 7);
    assert_eq!(client.diag_json(&["diag.distribution"])["incomplete"], 3);
    assert!(client.diag(&["diag.weight", "observation", "o"]).contains("0.505"));
    assert_eq!(client.diag(&["diag.weight", "node", "n"]), "$4|0.45|");
    assert_eq!(client.diag(&["diag.weight", "edge", "a", "b", "uses"]), "$3|0.5|");
    assert!(client.diag(&["diag.history", "observation", "o"]).starts_with("*3|"));
    assert!(client.diag(&["diag.history", "node", "n"]).starts_with("*1|"));
    assert!(client.diag(&["diag.audit"]).contains("\"event\":\"memory.feedback\""));
    assert_eq!(client.diag(&["diag.audit", "from", "1"]), "*0|");
    assert_eq!(client.diag_json(&["diag.get", "u"])["failureCategory"], "incomplete");
    assert_eq!(client.diag(&["diag.get", "none"]), "$-1|");
    assert_eq!(client.diag(&["diag.weighting", "OFF", "ORG", "org"]), ":0|");
    assert_eq!(client.diag(&["diag.weighting"]), ":1|");
    // Another daemon over the same store answers alike, and applies no session again.
    let bench = bench.started_again();
    let mut client = bench.client();
    assert_eq!(client.diag(&["diag.misleading"]), "*1|$1|o|");
    let again = client.diag_json(&["diag.record", r#"{"sessionId":"s","outcome":"rejected"}"#]);
    assert_eq!(again["repeated"], true);
    assert_eq!(client.diag(&["diag.weighting", "org", "org"]), ":0|");
    let dry = client.diag_json(&["diag.record", &ended("dry", "rework", &[]), "dryrun"]);
    assert_eq!((&dry["failureCategory"], &dry["id"]), (&json!("incomplete"), &Value::Null));
    assert_eq!(client.diag(&["diag.get", "dry"]), "$-1|");
}

/// By default a failure is in the reply; an error would break the end of the caller's session. STRICT asks for it.
#[test]
fn failed_record_replies_with_its_failure() {
    let (bench, sim) = prepared();
    let mut client = bench.client();
    let bad = r#"{"sessionId":"s","outcome":"lost"}"#;
    let told = client.diag_json(&["diag.record", bad]);
    assert_eq!((&told["id"], &told["aggressiveDownweightApplied"]), (&Value::Null, &json!(0)));
    assert!(told["failures"][0].as_str().unwrap().contains("`accepted`, `rejected`, `rework`"), "{told}");
    assert!(client.diag(&["diag.record", bad, "strict"]).starts_with("-ERR "));
    client.diag_json(&["diag.record", &ended("x", "rejected", &["o"])]);
    let other = client.diag_json(&["diag.record", &ended("x", "accepted", &["o"])]);
    assert!(other["failures"][0].as_str().unwrap().contains("other contents"), "{other}");
    sim.fail(FailRule::eio(OpKind::Sync).on("s/segments"));
    let lost = client.diag_json(&["diag.record", &ended("y", "rejected", &["o"])]);
    assert!(lost["id"].is_null() && lost["failures"][0].as_str().unwrap().contains("os error 5"), "{lost}");
    let lost = client.diag_json(&["diag.record", &ended("z", "rejected", &["o"])]);
    assert!(lost["failures"][0].as_str().unwrap().contains("os error 5"), "{lost}");
    for (words, why) in [
        (&["diag.record", "{}", "ttl"][..], "syntax"),
        (&["diag.record", "{}", "ttl", "x"], "not an integer"),
        (&["diag.record", "{}", "colour", "red"], "syntax"),
        (&["diag.misleading", "since", "-1"], "out of range"),
        (&["diag.misleading", "org"], "syntax"),
        (&["diag.weight", "edge", "a"], "syntax"),
        (&["diag.audit", "count", "0"], "1 to 1000"),
        (&["diag.weighting", "on", "off"], "syntax"),
    ] {
        let reply = client.diag(words);
        assert!(reply.starts_with('-') && reply.contains(why), "{words:?}: {reply}");
    }
}

#[test]
fn diagnostics_require_rights_and_stay_in_their_namespace() {
    let bench = DaemonBench::new();
    let mut owner = bench.client();
    owner.diag_json(&["diag.record", &ended("s", "rejected", &["secret"])]);
    let of = |rights: Rights| {
        let mut grant = bench.daemon.owner().unwrap();
        grant.rights = rights;
        bench.client_with(Some(grant))
    };
    let report = ended("t", "rejected", &["secret"]);
    let reads: [&[&str]; 9] = [
        &["diag.record", &report, "dryrun"],
        &["diag.get", "s"],
        &["diag.misleading"],
        &["diag.distribution"],
        &["diag.weight", "observation", "secret"],
        &["diag.history", "observation", "secret"],
        &["diag.audit"],
        &["diag.retrievals", "s"],
        &["diag.weighting"],
    ];
    let writes: [&[&str]; 3] =
        [&["diag.record", &report], &["diag.inject", r#"{"sessionId":"s"}"#], &["diag.weighting", "on"]];
    for (rights, may, may_not) in
        [(Rights::READ, &reads[..], &writes[..]), (Rights::RECORD, &writes[..], &reads[..])]
    {
        for command in may {
            let reply = of(rights).diag(command);
            assert!(!reply.starts_with('-'), "{rights}: {command:?}: {reply}");
        }
        for command in may_not {
            let reply = of(rights).diag(command);
            assert!(
                reply.starts_with("-NOPERM ") && !reply.contains("secret"),
                "{rights}: {command:?}: {reply}"
            );
        }
    }
    // Rows hold unredacted messages.
    for rights in [Rights::REDACTED, Rights::OPERATE] {
        for command in reads.iter().chain(&writes) {
            assert!(of(rights).diag(command).starts_with("-NOPERM "), "{rights}: {command:?}");
        }
    }
    bench.daemon.access.add(token("one", "first", Rights::ALL));
    let mut client = bench.client_with(None);
    assert!(client.diag(&["diag.get", "s"]).starts_with("-NOAUTH"));
    client.script("auth one token -> +OK\ndiag.get s -> $-1\ndiag.misleading -> *0");
    client.session.local = false;
    let elsewhere = client.diag(&["diag.record", &report, "namespace", "default"]);
    assert!(elsewhere.starts_with("-NOPERM another namespace"), "{elsewhere}");
}
