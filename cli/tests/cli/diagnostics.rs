//! `annals diagnose` and `annals lessons`.

use serde_json::{Value, json};

use crate::CliBench;
use crate::serve::http;

/// The example of the source.
fn example(id: &str) -> Value {
    json!({
        "sessionId": id, "outcome": "rejected", "injectedObservationIds": ["obs-1", "obs-2", "obs-3"],
        "injectedGraphEntityIds": ["node-1"], "injectedGraphEdgeKeys": [],
        "toolCallSummary": [{ "tool": "vitest", "file": "src/foo.test.ts", "success": false }],
        "filesModified": ["src/foo.ts"],
        "errorsEncountered": [{ "message": "2 tests failed", "tool": "vitest", "recoverable": false }],
        "orgId": "org-1", "projectId": "proj-1",
    })
}

impl CliBench {
    fn session(&self, report: &Value) -> String {
        self.write("session.json", report.to_string())
    }
}

#[test]
fn diagnosed_sessions_teach_lessons() {
    let bench = CliBench::new();
    bench.session(&example("s-1"));
    assert_eq!(bench.run("diagnose session.json --dry-run").text(), "test_failure\n");
    assert_eq!(bench.run("lessons").failed(4), "no store at .annals");
    let told = bench.run("diagnose session.json").text();
    assert!(told.starts_with("s-1: rejected, test_failure\nOBSERVATION"), "{told}");
    assert!(told.contains("\nobs-1             1   0.85\n"), "{told}");
    assert!(
        told.ends_with(
            "\n0 observations downweighted as misleading\n1 node and 0 edges of the graph have new weights\n"
        ),
        "{told}"
    );
    let again = bench.run("diagnose session.json").text();
    assert!(again.starts_with("s-1: rejected, test_failure (reported before: nothing changed)\n"), "{again}");
    for id in ["s-2", "s-3"] {
        bench.session(&example(id));
        bench.run("diagnose session.json --keep 90d").text();
    }
    let lessons = bench.run("lessons --org org-1 --project proj-1 --within 1h").text();
    assert!(lessons.starts_with("misleading observations: 3\nOBSERVATION"), "{lessons}");
    for line in ["test_failure           3\n", "unknown                0\n"] {
        assert!(lessons.contains(line), "{lessons}");
    }
    let [told] = bench.run("lessons --org other --json").json().try_into().unwrap();
    assert_eq!(told["misleading"], json!([]));
    assert_eq!(told["distribution"].as_object().unwrap().len(), 7);
    let history = bench.run("lessons --weight-history obs-1 --json").json();
    let alphas: Vec<_> = history.iter().map(|change| change["alpha"].as_f64().unwrap()).collect();
    assert_eq!(alphas, [0.15, 0.15, 0.3]);
    let table = bench.run("lessons --weight-history obs-1").text();
    assert!(table.lines().count() == 4 && table.contains("s-3"), "{table}");
    assert!(bench.run("lessons --weight-history none").text().contains("it is 1"));
    let [row] = bench.run("lessons --session s-2").json().try_into().unwrap();
    assert_eq!(
        (&row["failureCategory"], &row["errorsEncountered"][0]["message"]),
        (&json!("test_failure"), &json!("2 tests failed"))
    );
    assert!(bench.run("lessons --session none").failed(4).contains("no row of session"));
}

#[test]
fn refused_report_says_why_and_stores_nothing() {
    let bench = CliBench::new();
    let refused = |more: &str, code| bench.run(&format!("diagnose session.json {more}")).failed(code);
    bench.write("session.json", r#"{"sessionId":"s","outcome":"failed"}"#);
    let told = refused("", 1);
    assert!(
        told.starts_with("session.json: ") && told.contains("`accepted`, `rejected`, `rework`"),
        "{told}"
    );
    // A hook at a session's end must not break it: the failure is told, the exit code is 0.
    let done = bench.run("diagnose session.json --best-effort");
    assert!(done.code == 0 && done.stderr.contains("`accepted`, `rejected`, `rework`"), "{done:?}");
    bench.session(&example("s"));
    bench.run("diagnose session.json").text();
    let mut other = example("s");
    other["outcome"] = "accepted".into();
    bench.session(&other);
    assert!(refused("", 1).contains("other contents: the first report stays"));
    bench.write("session.json", b"{\"sessionId\":\"\xff\"");
    assert!(refused("", 1).contains("not UTF-8 at line 1 column 15"));
    let [row] = bench.run("lessons --session s").json().try_into().unwrap();
    assert_eq!(row["outcome"], "rejected");
}

/// A daemon that holds the store records the session, in the namespace that the command names.
#[test]
fn daemon_records_the_session_of_the_command_line() {
    let bench = CliBench::new();
    bench.run("init").ok();
    let daemon = bench.serve(&["--http", "127.0.0.1:0", "--no-auth"]);
    bench.session(&example("s"));
    let [report] = bench.run("diagnose session.json --json --keep 1h").json().try_into().unwrap();
    assert_eq!((&report["failureCategory"], &report["failures"]), (&json!("test_failure"), &json!([])));
    assert_eq!(report["weightChanges"][0]["newWeight"], 0.85);
    bench.run("diagnose session.json --namespace other").text();
    let (status, row) = http(&daemon, "GET /v1/diagnostics/session?id=s", "", "");
    assert!(status == 200 && row.contains("\"expiresAt\":"), "{row}");
    let told = bench.run("lessons --namespace other").text();
    assert!(told.contains("test_failure           1\n"), "{told}");
    let mut other = example("s");
    other["outcome"] = "rework".into();
    bench.session(&other);
    assert!(bench.run("diagnose session.json").failed(1).contains("other contents"));
    daemon.signal("-TERM");
    assert_eq!(daemon.wait_for_exit().0, Some(0));
}
