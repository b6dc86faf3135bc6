//! `annals remember` and `annals recall`.

use std::process::Stdio;

use annals_memory::{Projection, render};
use serde_json::Value;

use crate::serve::http;
use crate::{CliBench, ProcessResult};

/// The original example. Its extra spaces must be kept.
const MONDAY: &str = r#"{ "query":"Should we approve loan #42? Credit: 580. Income: 95k. Amount: 50k.","finalContent":"Application #42: REJECTED. Credit (580) below floor (600). Suggest manual review.","iterations":1,"decisions":[{"stageId":"classify-risk","chosen":"rejected","rule":"Marginal credit","evidence":{"creditScore":580, "threshold" : 600}},{"stageId":"pick-reason","chosen":"credit-too-low","rule":"Credit below floor","evidence":{"creditScore":580,"incomeAboveFloor":true}}],"toolCalls":[{"name":"lookupCreditBureau","args":{"applicationId":"42"},"resultPreview":"{ \"score\": 580, \"bureau\": \"experian\" }","errored":false}],"durationMs":1840,"tokenUsage":{"input":1200,"output":180}}"#;

impl CliBench {
    /// Asks on Friday about Monday's decision.
    fn friday(&self, more: &str) -> ProcessResult {
        let question = [
            "recall",
            "Why was application #42 rejected?",
            "--conversation",
            "app-42-followup",
            "--threshold",
            "0.1",
        ];
        self.run_args(question.into_iter().chain(more.split_whitespace()))
    }

    fn monday(&self) {
        self.write("monday.json", format!("\n{MONDAY}\n"));
        let told = self.run("remember --tenant lending --conversation app-42 monday.json").text();
        assert_eq!(told, "remembered snap-1 in lending/_/app-42\n");
    }
}

#[test]
fn recall_crosses_conversations_but_never_tenants() {
    let bench = CliBench::new();
    assert_eq!(bench.friday("").failed(4), "no store at .annals");
    bench.run("init").ok();
    assert_eq!(bench.friday("--tenant lending --across-conversations").text(), "", "the memory is empty");
    bench.monday();
    for nothing in [
        "--tenant lending",
        "--tenant other --across-conversations",
        "--tenant lending/_ --across-conversations",
        "--across-conversations",
        "--tenant lending --across-conversations --budget 1",
        "--tenant lending --json",
    ] {
        assert_eq!(bench.friday(nothing).text(), "", "{nothing}");
    }
    let [hit] = bench.friday("--tenant lending --across-conversations --json").json().try_into().unwrap();
    assert_eq!((&hit["id"], &hit["identity"]), (&"snap-1".into(), &"lending/_/app-42".into()));
    assert_eq!(hit["snapshot"], serde_json::from_str::<Value>(MONDAY).unwrap());
    let raw = bench.friday("--tenant lending --across-conversations --json").text();
    assert!(raw.contains(&format!("\"snapshot\":{MONDAY}")), "byte for byte: {raw}");
    let (score, when) = (hit["score"].as_f64().unwrap() as f32, hit["decided_at"].as_str().unwrap());
    for projection in Projection::ALL {
        let text = render(MONDAY, projection, score).unwrap();
        let name = projection.name();
        let told =
            bench.friday(&format!("--tenant lending --across-conversations --projection {name}")).text();
        assert_eq!(told, format!("{text}\ndecided at {when}\n"), "{name}");
    }
    let told = bench.friday("--tenant lending --across-conversations").text();
    let text = hit["text"].as_str().unwrap();
    assert_eq!(told, format!("{text}\n"), "decisions is the default projection");
    let all = bench.friday("--tenant lending --across-conversations --budget 1000").text();
    assert!(all.contains("\"tokenUsage\": {"), "the largest projection fits: {all}");
}

#[test]
fn entry_keeps_its_id_and_daemon_stores_new_entries() {
    let bench = CliBench::new();
    let entry =
        r#"{"id":"mine","value":{"query":"which colour?","finalContent":"blue"},"createdAt":1795426351790}"#;
    assert_eq!(bench.pipe("remember - --json", entry.as_bytes()).json()[0]["id"], "mine");
    let daemon = bench.serve(&[]);
    bench.monday();
    bench.write("monday.json", MONDAY);
    let other = bench.run("remember monday.json --namespace other --tenant t --json").json();
    assert_eq!((&other[0]["id"], &other[0]["identity"]), (&"snap-1".into(), &"t/_/_".into()));
    let refused = bench.pipe("remember -", b"{\"query\":\n 1").failed(1);
    assert!(refused.starts_with("standard input: ") && refused.ends_with("at line 2 column 2"), "{refused}");
    assert!(bench.friday("--tenant lending --across-conversations").text().starts_with("[Past run"));
    assert!(
        bench.friday("--tenant t --across-conversations --namespace other").text().starts_with("[Past run")
    );
    daemon.signal("-TERM");
    daemon.wait_for_exit();
    assert!(bench.friday("--tenant lending --across-conversations").text().starts_with("[Past run"));
    let told = bench.run_args(["recall", "which colour?", "--projection", "narrative"]).text();
    assert_eq!(
        told,
        "[Past run \u{b7} query: \"which colour?\" \u{b7} score: 1.00]\n(no narrative captured)\nFinal answer: blue\ndecided at 2026-11-23T09:32:31Z\n"
    );
}

/// Regression: a recorder that held the store understood only commands of runs. An agent that called `annals
/// remember` while a recorder ran got "unknown command 'MEM.PUT'".
#[test]
fn recorded_agent_can_remember() {
    let bench = CliBench::new();
    bench.write("monday.json", MONDAY);
    bench.write("bad.json", "{}");
    let annals = env!("CARGO_BIN_EXE_annals");
    let program = format!(
        "'{annals}' remember --tenant lending --conversation app-42 monday.json; \
         '{annals}' recall --tenant lending --across-conversations 'Why was application #42 rejected?'; \
         '{annals}' remember --namespace other monday.json; \
         '{annals}' remember bad.json"
    );
    let done = bench.run_args(["record", "--", "sh", "-c", &program]);
    let (told, stderr) = (String::from_utf8_lossy(&done.stdout), &done.stderr);
    assert!(told.starts_with("remembered snap-1 in lending/_/app-42\n[Past run"), "{told}{stderr}");
    assert!(told.ends_with("remembered snap-1 in _/_/_\n"), "{told}{stderr}");
    assert!(stderr.contains("bad.json: a memory must be an entry, with an id and a value"), "{stderr}");
    assert!(bench.friday("--tenant lending --across-conversations").text().starts_with("[Past run"));
    assert!(bench.friday("--namespace other --across-conversations").text().starts_with("[Past run"));
}

/// Regression: the second call failed with the advice to wait, although the first ends after a moment.
#[test]
fn concurrent_remember_calls_wait_for_each_other() {
    let bench = CliBench::new();
    bench.write("monday.json", MONDAY);
    let each = |number: usize| {
        let conversation = format!("app-{number}");
        let mut command = bench.command(["remember", "monday.json", "--conversation", &conversation]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap()
    };
    let agents: Vec<_> = (0..8).map(each).collect();
    for agent in agents {
        let kept = ProcessResult::from_output(agent.wait_with_output().unwrap()).text();
        assert!(kept.starts_with("remembered snap-1 in _/_/app-"), "{kept}");
    }
    assert_eq!(bench.friday("--across-conversations --top-k 100 --json").json().len(), 8);
}

#[test]
fn long_question_is_read_from_standard_input() {
    let bench = CliBench::new();
    bench.monday();
    let ask = |question: &[u8]| bench.pipe("recall - --tenant lending --across-conversations", question);
    let long = "Why was application #42 rejected? ".repeat(10_000);
    assert!(ask(long.as_bytes()).text().starts_with("[Past run"));
    assert_eq!(ask(b"").text(), "");
    assert_eq!(ask(b"why\n\xff").failed(1), "standard input: not UTF-8 at line 2 column 1");
    assert!(ask(&[b'a'; (1 << 20) + 1]).failed(1).contains("larger than 1048576 bytes"));
}

/// One definition serves an agent that uses the command line and one that uses HTTP.
#[test]
fn one_definition_serves_several_agents() {
    let bench = CliBench::new();
    let definition = r#"{"id":"causal-memory","description":"why it was decided","type":"causal",
  "strategy":{"kind":"top-k","topK":1,"threshold":0.5},"projection":"commits","acrossConversations":true}"#;
    bench.write("causal.json", definition);
    assert_eq!(bench.run("define-memory causal.json").text(), "defined causal-memory\n");
    bench.monday();
    let told = bench.friday("--tenant lending --memory causal-memory").text();
    assert!(told.contains("classify-risk: chose \"rejected\""), "{told}");
    let missing = bench.friday("--tenant lending --memory casual").failed(4);
    assert_eq!(missing, "there is no memory \"casual\": there are \"causal-memory\"");
    let refused = bench.pipe("define-memory -", b"{\"id\":\"a\",\"topK\":1}").failed(1);
    assert!(refused.starts_with("standard input: ") && refused.contains("unknown field `topK`"), "{refused}");

    let daemon = bench.serve(&["--http", "127.0.0.1:0", "--no-auth"]);
    let put = bench.pipe("define-memory - --json", b"{\"id\":\"whole\",\"projection\":\"full\"}");
    assert_eq!(put.json()[0]["memory"], "whole");
    let ask = |method: &str, path: &str, body: &str| {
        http(&daemon, &format!("{method} /v1/memory/{path}"), "", body)
    };
    let search = r#"{"question":"Why was application #42 rejected?","tenant":"lending","conversation":"friday","memory":"causal-memory"}"#;
    let (status, body) = ask("POST", "search", search);
    assert!(status == 200 && body.contains("classify-risk: chose \\\"rejected\\\""), "{status}: {body}");
    assert_eq!(ask("POST", "definitions", r#"{"definition":{"id":"third"}}"#).0, 204);
    let (status, body) = ask("GET", "definitions", "");
    assert!(status == 200 && body.contains(definition), "byte for byte: {status}: {body}");
    assert!(body.contains("\"whole\"") && body.contains("\"third\""), "{body}");
    assert_eq!(
        (ask("DELETE", "definition?id=third", "").0, ask("DELETE", "definition?id=third", "").0),
        (204, 404)
    );
    assert_eq!(ask("POST", "search", r#"{"question":"why?","memory":"third"}"#).0, 404);
    daemon.signal("-TERM");
    daemon.wait_for_exit();
    assert!(
        bench
            .friday("--tenant lending --memory whole --across-conversations")
            .text()
            .contains("\n  \"query\": ")
    );
}

#[test]
fn invalid_entry_is_refused_with_place_and_not_stored() {
    let bench = CliBench::new();
    bench.run("init").ok();
    for (text, why) in [
        (
            &b"{\"query\":\"a\",\n  \"finalContent\": }"[..],
            "bad.json: a memory is a JSON object: expected value at line 2 column 19",
        ),
        (b"{\"id\":\"a\",\n \"value\":\"\xff\"}", "bad.json: not UTF-8 at line 2 column 11"),
        (b"", "bad.json: a memory is a JSON object: EOF while parsing a value at line 1 column 0"),
        (
            b"{}",
            "bad.json: a memory must be an entry, with an id and a value, or a run's snapshot, with its query",
        ),
        (
            b"{\"id\":\"a\",\"value\":1,\"embedding\":[0]}",
            "bad.json: a vector must not be all zeros, and its length must be finite",
        ),
    ] {
        bench.write("bad.json", text);
        assert_eq!(bench.run("remember bad.json").failed(1), why);
    }
    assert!(bench.run("remember none.json").failed(4).contains("none.json"));
    assert_eq!(bench.run("scan --keyspace annals.memory").text(), "");
}

#[test]
fn invalid_memory_arguments_are_refused() {
    let bench = CliBench::new();
    for line in [
        "recall",
        "recall a b",
        "recall a --top-k 0",
        "recall a --top-k -1",
        "recall a --top-k 1001",
        "recall a --threshold 1.5",
        "recall a --threshold nan",
        "recall a --projection all",
        "recall a --budget -1",
        "recall a --tenant",
        "recall a --memory",
        "define-memory",
        "remember",
        "remember a b",
    ] {
        bench.run(line).failed_usage();
    }
    bench.run("recall a --threshold -1").failed(4);
    // The tenant is checked before the file is read.
    let long = "t".repeat(10 << 10);
    for line in [["remember", "none.json", "--tenant", &long], ["recall", "a", "--tenant", &long]] {
        bench.run_args(line).failed_usage();
    }
}

impl ProcessResult {
    #[track_caller]
    fn failed_usage(self) {
        assert_eq!((self.code, self.stdout.as_slice()), (2, &b""[..]), "{self:?}");
        assert!(self.stderr.lines().any(|line| line.starts_with("hint: ")), "{}", self.stderr);
    }
}

/// A run's request and answer in the form of `import`.
const CHAT: &str = r#"{"id":"monday","model":"m","status":"ok","messages":[{"role":"system","content":"underwrite"},{"role":"user","content":"Should we approve loan #42 of jo@example.org?"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"lookupCreditBureau","arguments":"{\"applicationId\":\"42\"}"}}]},{"role":"tool","tool_call_id":"c1","content":"{\"score\":580}"},{"role":"assistant","content":"Application #42: REJECTED, password=hunter2secret9."},{"role":"user","content":"And what about loan #77?"},{"role":"assistant","content":"Application #77: APPROVED."}]}
{"id":"empty","model":"m","messages":[{"role":"assistant","content":"Hello."}]}
"#;

/// Imported runs made no entry, so history from before annals answered nothing.
#[test]
fn import_remembers_each_question_if_asked() {
    let bench = CliBench::new();
    bench.pipe("import --format chat -", CHAT.as_bytes()).ok();
    assert_eq!(bench.run_args(["recall", "Why was application #42 rejected?"]).text(), "");
    let text =
        bench.pipe("import --format chat - --replace --remember --tenant lending", CHAT.as_bytes()).text();
    assert!(text.contains("; remembered 2 questions; 1 run not remembered (abandoned, or without"), "{text}");
    let told = bench.run_args(["recall", "Why was application #42 rejected?", "--tenant", "lending"]).text();
    assert!(told.starts_with("[Past run") && told.contains("REJECTED") && told.ends_with("Z\n"), "{told}");
    assert!(told.contains("lookupCreditBureau({\"applicationId\":\"42\"}) → {\"score\":580}"), "{told}");
    let told = bench.run_args(["recall", "What was decided about #77?", "--tenant", "lending"]).text();
    assert!(told.contains("APPROVED"), "{told}");
    assert_eq!(bench.run_args(["recall", "Why was application #42 rejected?"]).text(), "", "another tenant");
    let [counts] = bench
        .pipe("import --format chat - --replace --remember --json --tenant t", CHAT.as_bytes())
        .json()[2..]
        .to_vec()
        .try_into()
        .unwrap();
    assert_eq!((&counts["remembered"], &counts["runs_not_remembered"]), (&2.into(), &1.into()));
}

/// `--budget` takes the whole snapshot of a recorded run if it fits.
#[test]
fn budget_chooses_the_full_projection_if_it_fits() {
    let bench = CliBench::new();
    bench.pipe("import --format chat - --remember", CHAT.as_bytes()).ok();
    let ask = |budget: &str| {
        bench.run_args(["recall", "Why was application #42 rejected?", "--budget", budget]).text()
    };
    assert!(ask("2000").contains("\n{\n  \"query\": "), "{}", ask("2000"));
    let small = ask("70");
    assert!(small.contains("Final answer: ") && !small.contains("\"query\": "), "{small}");
    assert_eq!(ask("1"), "");
}

/// A reader who may see a run only through a profile read the run's secrets in the memory.
#[test]
fn memory_is_redacted_for_readers_with_a_profile() {
    let bench = CliBench::new();
    bench.pipe("import --format chat - --remember", CHAT.as_bytes()).ok();
    let question = "Why was application #42 rejected?";
    let clear = bench.run_args(["recall", question, "--projection", "full"]).text();
    assert!(clear.contains("jo@example.org") && clear.contains("hunter2secret9"), "{clear}");
    let done = bench.run_args(["recall", question, "--projection", "full", "--as", "safe"]);
    assert!(done.code == 0 && done.stderr.contains("redacted by profile safe"), "{done:?}");
    let shown = String::from_utf8(done.stdout).unwrap();
    assert!(shown.contains("REJECTED") && shown.contains("[email:"), "{shown}");
    for secret in ["jo@example.org", "hunter2secret9"] {
        assert!(!shown.contains(secret), "{shown}");
        // Nor does a question confirm a guess.
        let guess = format!("What was decided about {secret} and #42?");
        assert!(bench.run_args(["recall", &guess, "--json"]).text().contains("snapshot"), "{guess}");
    }
    assert_eq!(bench.run_args(["recall", "Who is jo@example.org #42?", "--as", "safe"]).text(), "");
    let [hit] = bench.run_args(["recall", question, "--as", "safe", "--json"]).json().try_into().unwrap();
    assert_eq!(hit["redacted"], "safe");
    assert!(!hit.to_string().contains("hunter2secret9"), "{hit}");
    let lines = |more: &str| {
        let done = bench.run(&format!("export-training --format sft {more}"));
        assert_eq!(done.code, 0, "{done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    assert!(lines("").contains("hunter2secret9"), "{}", lines(""));
    let shown = lines("--as safe");
    assert!(shown.contains("APPROVED") && shown.contains("REJECTED"), "{shown}");
    assert!(!shown.contains("hunter2secret9") && !shown.contains("jo@example.org"), "{shown}");
    bench.run_args(["recall", question, "--as", "nobody"]).failed(2);
}
