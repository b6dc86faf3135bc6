//! The original example, Monday and Friday, through four interfaces: the library, the command line, the
//! daemon's socket, HTTP. Each interface finds the entries that the others kept, in the same words. The
//! expected words stand here literally.

use std::io::{BufRead, BufReader, Write};

use annals::Store;
use annals_memory::{Identity, Memory, MemoryQuery, Projection, SnapshotOptions, WordEmbedder, prompt_text};
use annals_server::ask_daemon;
use serde_json::{Value, json};

use crate::CliBench;
use crate::serve::{ServeProcess, http};

const QUESTION: &str = "Why was application #42 rejected?";

/// JSON in the form of a program that indents its output.
pub(crate) const MONDAY: &str = r#"{
  "query": "Should we approve loan #42? Credit: 580. Income: 95k. Amount: 50k.",
  "finalContent": "Application #42: REJECTED. Credit (580) below floor (600). Suggest manual review.",
  "iterations": 1,
  "decisions": [
    { "stageId": "classify-risk", "chosen": "rejected", "rule": "Marginal credit",
      "evidence": { "creditScore": 580, "threshold": 600 } },
    { "stageId": "pick-reason", "chosen": "credit-too-low", "rule": "Credit below floor",
      "evidence": { "creditScore": 580, "incomeAboveFloor": true } }
  ],
  "toolCalls": [
    { "name": "lookupCreditBureau", "args": { "applicationId": "42" },
      "resultPreview": "{ \"score\": 580, \"bureau\": \"experian\" }", "errored": false }
  ],
  "narrative": "[Seed] application #42 received\n[ClassifyRisk] credit 580 < threshold 600 → rejected\n[PickReason] chose credit-too-low (income above floor)",
  "durationMs": 1840,
  "tokenUsage": { "input": 1200, "output": 180 }
}"#;

const HEADER: &str = "[Past run \u{b7} query: \"Should we approve loan #42? Credit: 580. Income: 95k. Amount: 50k.\" \u{b7} score: 0.89]\n";

/// The text that Friday's model reads, without the time.
pub(crate) const DECISIONS: &str = "- classify-risk \u{2192} \"rejected\" (rule: Marginal credit); evidence: {\"creditScore\":580,\"threshold\":600}
- pick-reason \u{2192} \"credit-too-low\" (rule: Credit below floor); evidence: {\"creditScore\":580,\"incomeAboveFloor\":true}
Tool evidence:
- lookupCreditBureau({\"applicationId\":\"42\"}) \u{2192} { \"score\": 580, \"bureau\": \"experian\" }
Final answer: Application #42: REJECTED. Credit (580) below floor (600). Suggest manual review.";
const COMMITS: &str = "classify-risk: chose \"rejected\"\npick-reason: chose \"credit-too-low\"";
const NARRATIVE: &str = "[Seed] application #42 received\n[ClassifyRisk] credit 580 < threshold 600 \u{2192} rejected\n[PickReason] chose credit-too-low (income above floor)";

/// Each interface keeps Monday's entry for its own tenant.
const INTERFACES: [&str; 4] = ["library", "command line", "socket", "http"];

fn identity(tenant: &str, conversation: &str) -> Identity {
    Identity { tenant: Some(tenant.into()), principal: None, conversation: Some(conversation.into()) }
}

fn query(across: bool) -> MemoryQuery<'static> {
    MemoryQuery { k: 1, across_conversations: across, ..MemoryQuery::default() }
}

/// Asks one interface on Friday and returns its answer.
type RecallFn<'a> = &'a dyn Fn(&str, Projection, bool) -> String;

/// Checks one interface. It finds each tenant's entry only across conversations, and never another tenant's.
fn check_all_tenants(door: &str, ask: RecallFn<'_>) -> Vec<String> {
    let mut times = Vec::new();
    for kept_by in INTERFACES {
        let place = format!("kept by the {kept_by}, asked by the {door}");
        assert_eq!(ask(kept_by, Projection::Decisions, false), "", "of another conversation: {place}");
        for (projection, body) in [
            (Projection::Decisions, DECISIONS),
            (Projection::Commits, COMMITS),
            (Projection::Narrative, NARRATIVE),
        ] {
            let told = ask(kept_by, projection, true);
            let text = format!("{HEADER}{body}");
            assert!(told.starts_with(&text), "{place}: {told}");
            let when = told.strip_prefix(&text).unwrap();
            assert!(when.starts_with("\ndecided at 20") && when.ends_with('Z'), "{place}: {when}");
            times.push(when.to_owned());
        }
        let full = ask(kept_by, Projection::Full, true);
        let (header, rest) = full.split_once('\n').unwrap();
        let (snapshot, _) = rest.rsplit_once("\ndecided at ").unwrap();
        assert_eq!(format!("{header}\n"), HEADER, "{place}");
        let snapshot: Value = serde_json::from_str(snapshot).unwrap();
        assert_eq!(snapshot, serde_json::from_str::<Value>(MONDAY).unwrap(), "{place}");
        assert_eq!(
            (&snapshot["iterations"], &snapshot["durationMs"], &snapshot["tokenUsage"]),
            (&json!(1), &json!(1840), &json!({ "input": 1200, "output": 180 }))
        );
    }
    for other in ["lendin", "libraries", "", "_", "%", "http/_"] {
        assert_eq!(ask(other, Projection::Decisions, true), "", "an entry of {other:?} by the {door}");
    }
    times
}

fn by_library(store: &Store) -> impl Fn(&str, Projection, bool) -> String {
    let memory = Memory::open(&store.namespace("default").unwrap()).unwrap();
    move |tenant, projection, across| {
        let hits = memory
            .recall(&identity(tenant, "app-42-followup"), QUESTION, &WordEmbedder, &query(across))
            .unwrap();
        assert!(hits.iter().all(|hit| hit.entry.value() == MONDAY), "byte for byte");
        prompt_text(&hits, Some(projection), None)
    }
}

fn by_command_line(bench: &CliBench) -> impl Fn(&str, Projection, bool) -> String {
    move |tenant, projection, across| {
        let mut line = vec!["recall", QUESTION, "--tenant", tenant, "--conversation", "app-42-followup"];
        line.extend(["--projection", projection.name()]);
        line.extend(across.then_some("--across-conversations"));
        let told = bench.run_args(line).text();
        match told.strip_suffix('\n') {
            Some(text) => text.to_owned(),
            None => {
                assert_eq!(told, "", "a text ends with a line end");
                told
            }
        }
    }
}

fn by_socket(bench: &CliBench) -> impl Fn(&str, Projection, bool) -> String {
    move |tenant, projection, across| {
        let mut words: Vec<&[u8]> = vec![b"MEM.SEARCH", b"QUESTION", QUESTION.as_bytes()];
        words.extend([&b"TENANT"[..], tenant.as_bytes(), b"CONVERSATION", b"app-42-followup"]);
        words.extend([&b"PROJECTION"[..], projection.name().as_bytes()]);
        words.extend(across.then_some(&b"ACROSS"[..]));
        let mut stream = bench.connect();
        stream.write_all(format!("*{}\r\n", words.len()).as_bytes()).unwrap();
        for word in words {
            stream.write_all(&[format!("${}\r\n", word.len()).as_bytes(), word, b"\r\n"].concat()).unwrap();
        }
        let found = reply(&mut BufReader::new(stream));
        assert_eq!((&found[0], &found[2]), (&json!("hits"), &json!("text")), "{found}");
        if let Some(entry) = found[1][0][11].as_str() {
            assert!(entry.contains(&format!("\"value\":{MONDAY},")), "byte for byte: {entry}");
        }
        found[3].as_str().unwrap().to_owned()
    }
}

/// Parses a reply of the daemon: lists of lists of texts.
fn reply(from: &mut impl BufRead) -> Value {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    let (kind, rest) = line.trim_end().split_at(1);
    match kind {
        "*" => (0..rest.parse().unwrap()).map(|_| reply(from)).collect::<Vec<Value>>().into(),
        "$" => {
            let mut text = vec![0; rest.parse::<usize>().unwrap() + 2];
            from.read_exact(&mut text).unwrap();
            String::from_utf8(text).unwrap().trim_end_matches("\r\n").into()
        }
        _ => line.trim_end().into(),
    }
}

fn by_http(daemon: &ServeProcess) -> impl Fn(&str, Projection, bool) -> String {
    move |tenant, projection, across| {
        let asked = json!({ "question": QUESTION, "tenant": tenant, "conversation": "app-42-followup", "across": across, "projection": projection.name() });
        let (status, body) = http(daemon, "POST /v1/memory/search", "", &asked.to_string());
        assert_eq!(status, 200, "{body}");
        if !body.contains("\"hits\":[]") {
            assert!(body.contains(&format!("\"value\":{MONDAY},")), "byte for byte: {body}");
        }
        serde_json::from_str::<Value>(&body).unwrap()["text"].as_str().unwrap().to_owned()
    }
}

#[test]
fn recall_text_is_equal_over_every_interface() {
    let bench = CliBench::new();
    let library = || Store::open(bench.path(".annals")).unwrap();
    let store = library();
    let memory = Memory::open(&store.namespace("default").unwrap()).unwrap();
    memory
        .write_snapshot(&identity("library", "app-42"), MONDAY, &WordEmbedder, &SnapshotOptions::default())
        .unwrap();
    store.close().unwrap();
    let line = ["remember", "monday.json", "--tenant", "command line", "--conversation", "app-42"];
    bench.write("monday.json", MONDAY);
    assert_eq!(bench.run_args(line).text(), "remembered snap-1 in command line/_/app-42\n");

    let daemon = bench.serve(&["--http", "127.0.0.1:0", "--no-auth"]);
    let words = ["MEM.PUT", MONDAY, "EMBED", "TENANT", "socket", "CONVERSATION", "app-42"];
    let words = words.map(str::as_bytes);
    assert_eq!(ask_daemon(&bench.path(".annals"), &words).unwrap().as_deref(), Some("snap-1"));
    let body =
        format!("{{\"entries\":[{MONDAY}],\"embed\":true,\"tenant\":\"http\",\"conversation\":\"app-42\"}}");
    let kept = http(&daemon, "POST /v1/memory/entries", "", &body);
    assert_eq!(kept, (200, "{\"ids\":[\"snap-1\"]}\n".to_owned()));

    let times = check_all_tenants("command line", &by_command_line(&bench));
    assert_eq!(times, check_all_tenants("socket", &by_socket(&bench)));
    assert_eq!(times, check_all_tenants("http", &by_http(&daemon)));
    daemon.signal("-TERM");
    assert_eq!(daemon.wait_for_exit().0, Some(0));
    let store = library();
    assert_eq!(times, check_all_tenants("library", &by_library(&store)));
    store.close().unwrap();
}
