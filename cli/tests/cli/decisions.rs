//! `annals decide`, `decisions` and `decision`, beside a daemon and without one.

use serde_json::{Value, json};

use crate::CliBench;
use crate::serve::{ServeProcess, http};

const EXAMPLE: &str = r#"{ "decision": "Reject loan 42", "confidence": 0.9, "category": "process", "stakes": "high",
  "deliberation": { "inputs": [{ "id": "i1", "text": "Credit is 580", "source": "bureau", "timestamp": "2026-02-08T12:00:00Z" }],
    "steps": [{ "step": 1, "thought": "Below the floor of 600", "inputsUsed": ["i1"], "timestamp": "2026-02-08T12:00:02Z", "type": "analysis", "conclusion": true }],
    "totalDurationMs": 8200, "convergencePoint": 1 } }"#;

impl CliBench {
    fn decide(&self, args: &[&str]) -> String {
        let told = String::from_utf8(self.run_args(["decide"].iter().chain(args)).ok()).unwrap();
        told.strip_prefix("decided ").and_then(|rest| rest.get(..8)).expect(&told).to_owned()
    }
}

fn call(daemon: &ServeProcess, token: &str, method: &str, params: Value) -> Value {
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": format!("cstp.{method}"), "params": params });
    let (status, body) = http(daemon, "POST /v1/cstp", token, &call.to_string());
    assert_eq!(status, 200, "{body}");
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(answer["error"], Value::Null, "{answer}");
    answer["result"].clone()
}

#[test]
fn decisions_are_recorded_found_shown_and_reviewed() {
    let bench = CliBench::new();
    bench.write("loan.json", EXAMPLE);
    let loan = bench.decide(&["--file", "loan.json"]);
    let cache = bench.decide(&[
        "Cache answers in Redis",
        "--confidence",
        "0.6",
        "--reason",
        "analysis:it is cheaper",
        "--tag",
        "db",
        "--agent",
        "ann",
    ]);
    let listed = bench.run("decisions").text();
    let rows: Vec<&str> = listed.lines().collect();
    assert!(
        rows[0].starts_with("ID ") && rows[1].starts_with(&cache) && rows[2].starts_with(&loan),
        "{listed}"
    );
    assert!(rows[2].contains("pending") && rows[2].ends_with("Reject loan 42"), "{listed}");
    assert!(
        bench.run("decisions redis").text().contains(&cache)
            && !bench.run("decisions redis").text().contains(&loan)
    );
    assert!(!bench.run("decisions --stakes high").text().contains(&cache));
    assert_eq!(bench.run("decisions --tag none").text(), "");
    let shown = bench.run(&format!("decision {loan}")).text();
    for part in [
        "Reject loan 42\n",
        "process, stakes high, confidence 0.9, pending\n",
        "input i1: Credit is 580 [bureau]\n",
        "step 1 analysis, conclusion, inputs converge: Below the floor of 600 (from i1)\n",
        "deliberated for 8200 ms\n",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let spikes = bench.run(&format!("decision {loan} --spikes csv")).text();
    assert!(
        spikes.ends_with("activation,i1,0,0,0,false,bureau\nattractor,1,0,2000,8200,false,analysis\n"),
        "{spikes}"
    );
    assert_eq!(
        bench.run(&format!("decision {loan} --review success --result repaid")).text(),
        format!("reviewed {loan}: success\n")
    );
    let json = bench.run(&format!("decision {loan} --json")).json().remove(0);
    assert_eq!(
        (&json["outcome"], &json["actual_result"], &json["deliberation"]["total_duration_ms"]),
        (&json!("success"), &json!("repaid"), &json!(8200))
    );
    let stats = bench.run("decisions --stats").json().remove(0);
    assert_eq!((&stats["decisions"], &stats["outcomes"]["successes"]), (&json!(2), &json!(1)));
    let lines = bench.run("decisions --json --deliberation --stakes high").json();
    assert_eq!((lines.len(), &lines[0]["deliberation"]["inputs"][0]["id"]), (1, &json!("i1")));
    assert_eq!(bench.run("verify").code, 0, "they are ordinary records");
}

#[test]
fn bad_decisions_are_refused_with_exit_codes() {
    let bench = CliBench::new();
    assert_eq!(bench.run("decisions").code, 4, "there is no store");
    bench.run("init").ok();
    assert_eq!(bench.run("decisions").text(), "");
    assert_eq!(bench.run("decision 00000000").code, 4);
    assert_eq!(bench.run("decision 00000000 --review success").code, 4);
    let since = bench.run("decisions --since yesterday");
    assert!(since.code == 2 && since.stderr.contains("2026-02-08T12:00:00Z"), "{}", since.stderr);
    assert_eq!(bench.run("decisions --since 2026-02-08T12:00:00Z").code, 0);
    assert_eq!(bench.run("decide x").code, 2, "a confidence is required");
    assert_eq!(bench.run("decide x --confidence 2").code, 2);
    assert_eq!(bench.run("decide x --confidence 1 --category cooking").code, 2);
    assert_eq!(bench.run("decide x --confidence 1 --reason cheap").code, 2);
    let refused = bench.run_args(["decide", "x", "--confidence", "1", "--reason", "hunch:cheap"]);
    assert!(refused.code == 1 && refused.stderr.contains("use authority, analogy"), "{}", refused.stderr);
    assert_eq!(bench.run("decide x --confidence 1 --run nobody@1").code, 4);
    bench.write("bad.json", "{\"decision\":");
    let refused = bench.run("decide --file bad.json");
    assert!(refused.code == 1 && refused.stderr.contains("the decision: not JSON"), "{}", refused.stderr);
    assert_eq!(bench.run("decisions").text(), "", "nothing was stored");
}

/// A decision names its run and frame: `show` has it.
#[test]
fn show_names_the_decisions_of_a_run_and_a_frame() {
    let bench = CliBench::new();
    let frames = r#"{"run":"r","component":"llm","input":"q","output":"a"}
{"run":"r","component":"tool","input":"q","output":"a"}"#;
    bench.write("frames.jsonl", frames);
    assert_eq!(bench.run("import --format frames frames.jsonl").code, 0);
    let id = bench.decide(&["Mail ann@example.com", "--confidence", "1", "--run", "r@2"]);
    assert!(
        bench.run("show r@2").text().contains(&format!("decision in frame 2 {id}: Mail ann@example.com\n"))
    );
    assert!(!bench.run("show r@1").text().contains(&id));
    assert!(bench.run("show r").text().contains(&format!("decision in frame 2 {id}: ")));
    assert_eq!(bench.run("show r@2 --json").json()[0]["decisions"][0]["id"], id.as_str());
    let redacted = bench.run("show r@2 --as safe");
    assert!(!String::from_utf8_lossy(&redacted.stdout).contains("ann@example.com"), "{redacted:?}");
    let redacted = bench.run(&format!("decision {id} --as safe"));
    assert!(!String::from_utf8_lossy(&redacted.stdout).contains("ann@example.com"), "{redacted:?}");
    assert_eq!(bench.run("forget r --why asked").code, 0);
    assert_eq!(bench.run(&format!("decision {id}")).code, 4, "it goes with its run");
}

/// Acknowledged inputs survive a kill of the daemon (S3.18), and the command line's decision takes them.
#[test]
fn captured_inputs_survive_a_kill_of_the_daemon() {
    let bench = CliBench::new();
    bench.run("init").ok();
    let daemon = bench.serve(&["--http", "127.0.0.1:0", "--no-auth"]);
    call(&daemon, "", "queryDecisions", json!({ "query": "postgres" }));
    call(&daemon, "", "checkGuardrails", json!({ "description": "deploy" }));
    call(&daemon, "", "recordThought", json!({ "text": "cheap first" }));
    daemon.signal("-KILL");
    daemon.wait_for_exit();
    let daemon = bench.serve(&["--http", "127.0.0.1:0", "--no-auth"]);
    let recorded = call(&daemon, "", "recordDecision", json!({ "decision": "d", "confidence": 1 }));
    assert_eq!(
        (&recorded["deliberation_auto"], &recorded["deliberation_inputs_count"]),
        (&json!(true), &json!(3))
    );
    daemon.signal("-KILL");
    daemon.wait_for_exit();
    let daemon = bench.serve(&["--http", "127.0.0.1:0", "--no-auth"]);
    let read = call(&daemon, "", "getDecision", json!({ "id": recorded["id"] }));
    assert_eq!(read["deliberation"]["steps"][2]["thought"], "cheap first");
    // While the daemon holds the store, it stores the command line's decision, with what it captured.
    let told = bench.run("decide next --confidence 1").text();
    assert!(told.ends_with(", a deliberation with 1 input\n"), "{told}");
}
