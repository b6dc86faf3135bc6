//! Tools over streamable HTTP, as a client of the Model Context Protocol calls them.

use std::io::{Read, Write};
use std::net::TcpStream;

use annals::{Component, Frame, RunSpec, Severity, Status};
use serde_json::{Value, json};

use super::{HttpAnswer, TestApi, token};
use crate::access::{AccessToken, Rights};

const ACCEPT: &str = "accept: application/json, text/event-stream\r\ncontent-type: application/json\r\n";
const READING: [&str; 8] = [
    "search_runs",
    "last_failed_run",
    "get_run",
    "get_frame",
    "explain_failure",
    "compare_runs",
    "recall",
    "get_decision",
];
const READING_UNREDACTED: [&str; 5] =
    ["query_decisions", "check_guardrails", "deliberation_stats", "get_reason_stats", "lessons"];
const RECORDING: [&str; 6] =
    ["remember", "record_decision", "record_thought", "review_outcome", "diagnose_session", "fork_run"];

/// A client with a session.
struct McpClient<'a> {
    api: &'a TestApi,
    /// Its headers: the token's, then the session's.
    token: String,
    session: String,
}

impl TestApi {
    fn mcp_post(&self, headers: &str, message: &Value) -> HttpAnswer {
        self.ask_with("POST /mcp", &format!("{ACCEPT}{headers}"), message.to_string().as_bytes())
    }

    /// Begins a session as the token whose text is its name; without a token if the name is empty.
    fn mcp(&self, name: &str) -> McpClient<'_> {
        let token = if name.is_empty() { String::new() } else { format!("authorization: Bearer {name}\r\n") };
        let hello = json!({
            "jsonrpc": "2.0", "id": 1, "method": "initialize",
            "params": { "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } },
        });
        let answer = self.mcp_post(&token, &hello);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(event(&answer)["result"]["serverInfo"]["name"], "annals");
        let session = format!("mcp-session-id: {}\r\n", answer.header("mcp-session-id").unwrap());
        let client = McpClient { api: self, token, session };
        let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        assert_eq!(client.post(&ready).status, 202);
        client
    }

    fn add_mcp_token(&self, name: &str, rights: Rights) {
        let hash = blake3::hash(name.as_bytes());
        self.bench.daemon.access.add(AccessToken { hash, ..token(name, "default", rights) });
    }

    fn record_failed_run(&self) {
        let space = self.bench.daemon.store.namespace("default").unwrap();
        let run = space.begin_run(RunSpec::new("bad").tag("mail", "ann@example.com")).unwrap();
        let request =
            json!({ "model": "m", "messages": [{ "role": "user", "content": "Write to ann@example.com" }] });
        let answer = json!({ "role": "assistant", "content": "I wrote to ann@example.com." });
        let (request, answer) = (request.to_string(), answer.to_string());
        let mut frame = Frame::new(Component::Llm, request.as_bytes(), answer.as_bytes());
        frame.severity = Severity::Escalated;
        run.record(frame).unwrap();
        run.end(Status::Failed).unwrap();
    }
}

/// The JSON of the last server-sent event of a response.
fn event(answer: &HttpAnswer) -> Value {
    let text = answer.text();
    let mut data = text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim);
    let last = data.rfind(|data| !data.is_empty());
    serde_json::from_str(last.unwrap_or_else(|| panic!("no event in {text:?}"))).unwrap()
}

impl McpClient<'_> {
    fn post(&self, message: &Value) -> HttpAnswer {
        self.api.mcp_post(&format!("{}{}", self.token, self.session), message)
    }

    fn request(&self, method: &str, params: Value) -> Value {
        let answer = self.post(&json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params }));
        assert_eq!(answer.status, 200, "{}", answer.text());
        event(&answer)["result"].take()
    }

    fn tools(&self) -> Vec<String> {
        let tools = self.request("tools/list", json!({}));
        let tools = tools["tools"].as_array().unwrap().clone();
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    }

    /// The answer's JSON, or the sentence that refuses.
    fn call(&self, tool: &str, arguments: Value) -> Result<Value, String> {
        let result = self.request("tools/call", json!({ "name": tool, "arguments": arguments }));
        if result["isError"] == true {
            return Err(result["content"][0]["text"].as_str().unwrap().to_owned());
        }
        Ok(serde_json::from_str(result["content"][1]["text"].as_str().unwrap()).unwrap())
    }
}

fn decision(text: &str) -> Value {
    json!({ "decision": { "decision": text, "confidence": 0.9 } })
}

/// S3.18, S3.19: what a session asks becomes the inputs of its next decision, and not of another session's.
#[test]
fn session_has_its_own_captured_inputs() {
    let api = TestApi::new();
    api.record_failed_run();
    let (one, other) = (api.mcp(""), api.mcp(""));
    assert_eq!(one.tools().len(), READING.len() + READING_UNREDACTED.len() + RECORDING.len());
    assert_eq!(one.call("last_failed_run", json!({})).unwrap()["run"]["run"], "bad");
    one.call("query_decisions", json!({ "query": "which ledger" })).unwrap();
    one.call("record_thought", json!({ "text": "one ledger is enough" })).unwrap();
    let others = other.call("record_decision", decision("Keep two")).unwrap();
    assert_eq!(others["deliberation_inputs_count"], Value::Null, "{others}");
    let own = one.call("record_decision", decision("Keep one")).unwrap();
    assert_eq!(own["deliberation_inputs_count"], 2, "{own}");
    let reviewed = json!({ "decision_id": own["id"], "outcome": "success" });
    one.call("review_outcome", reviewed).unwrap();
    let found = one.call("query_decisions", json!({ "query": "keep one", "include_deliberation": true }));
    let found = found.unwrap()["decisions"][0].clone();
    assert_eq!((&found["status"], &found["outcome"]), (&json!("reviewed"), &json!("success")));
    assert_eq!(found["deliberation"]["inputs"][1]["text"], "one ledger is enough");
    let entry = json!({ "entry": { "id": "e1", "value": { "query": "loan of Smith", "finalContent": "rejected",
        "iterations": 1, "decisions": [], "toolCalls": [], "durationMs": 1, "tokenUsage": { "input": 1, "output": 1 } } } });
    assert!(one.call("remember", entry).unwrap()["id"].is_string());
    let session =
        json!({ "session": { "sessionId": "s1", "outcome": "accepted", "injectedObservationIds": [] } });
    assert!(one.call("diagnose_session", session).unwrap().is_object());
}

/// S3.18, S3.22 to S3.24: the daemon's MCP had no tools for a check, a lookup and the statistics of reasons, so
/// they were never inputs of a session's decision. A reader with a profile sees a decision as the profile shows it.
#[test]
fn checks_lookups_and_reason_stats_are_captured_in_a_session() {
    let api = TestApi::new();
    let client = api.mcp("");
    let first = client.call("record_decision", decision("Ask ann@example.com first")).unwrap();
    client.call("check_guardrails", json!({ "description": "drop the ledger" })).unwrap();
    client.call("get_decision", json!({ "decision_id": first["id"] })).unwrap();
    client.call("get_reason_stats", json!({})).unwrap();
    let second = client.call("record_decision", decision("Keep it")).unwrap();
    assert_eq!(second["deliberation_inputs_count"], 3, "{second}");
    let found = client.call("get_decision", json!({ "decision_id": second["id"] })).unwrap();
    let ids: Vec<&str> = found["deliberation"]["inputs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|input| &input["id"].as_str().unwrap()[..2])
        .collect();
    assert_eq!(ids, ["g-", "l-", "s-"]);
    let guarded = TestApi::with(false);
    for (name, rights) in [("writer", Rights::READ.union(Rights::RECORD)), ("redacted", Rights::REDACTED)] {
        guarded.add_mcp_token(name, rights);
    }
    let first = guarded.mcp("writer").call("record_decision", decision("Ask ann@example.com first")).unwrap();
    let redacted = guarded.mcp("redacted");
    let shown = redacted.call("get_decision", json!({ "decision_id": first["id"] })).unwrap().to_string();
    assert!(shown.contains("[email:") && !shown.contains("ann@"), "{shown}");
    let refused = redacted.call("check_guardrails", json!({ "description": "drop" })).unwrap_err();
    assert!(refused.starts_with("there is no tool"), "{refused}");
}

/// S3.19, X.6: the rights of the request's token decide which tools there are, and what they show.
#[test]
fn rights_of_the_token_decide_over_tools() {
    let api = TestApi::with(false);
    api.record_failed_run();
    let all = Rights::READ.union(Rights::RECORD);
    for (name, rights) in [
        ("reader", Rights::READ),
        ("redacted", Rights::REDACTED),
        ("recorder", Rights::RECORD),
        ("both", all),
        ("operator", Rights::OPERATE),
    ] {
        api.add_mcp_token(name, rights);
    }
    let tools = |parts: &[&[&str]]| -> Vec<String> {
        let mut names: Vec<String> = parts.concat().iter().map(|name| (*name).to_owned()).collect();
        names.sort();
        names
    };
    for (name, wanted) in [
        ("reader", tools(&[&READING, &READING_UNREDACTED])),
        ("redacted", tools(&[&READING])),
        ("recorder", tools(&[&RECORDING])),
        ("both", tools(&[&READING, &READING_UNREDACTED, &RECORDING])),
    ] {
        let mut found = api.mcp(name).tools();
        found.sort();
        assert_eq!(found, wanted, "{name}");
    }
    let refused = api.mcp("reader").call("record_decision", decision("d")).unwrap_err();
    assert!(refused.starts_with("there is no tool \"record_decision\" for you"), "{refused}");
    let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {} });
    assert_eq!(api.mcp_post("", &hello).status, 401);
    assert_eq!(api.mcp_post("authorization: Bearer operator\r\n", &hello).status, 403);
    // What the profile hides is in no answer: bodies, tags, the search.
    let redacted = api.mcp("redacted");
    for (tool, arguments) in [
        ("get_frame", json!({ "run": "bad", "seq": 1 })),
        ("get_frame", json!({ "run": "bad", "seq": 1, "part": "request" })),
        ("get_run", json!({ "run": "bad" })),
        ("search_runs", json!({})),
        ("explain_failure", json!({ "run": "bad" })),
    ] {
        let shown = redacted.call(tool, arguments.clone()).unwrap().to_string();
        assert!(shown.contains("[email:") && !shown.contains("ann@"), "{tool} {arguments}: {shown}");
    }
    let searched = redacted.call("search_runs", json!({ "text": "ann@example.com" })).unwrap();
    assert_eq!(searched["runs"], json!([]));
    let guess = redacted.call("search_runs", json!({ "tags": ["mail=ann@example.com"] })).unwrap_err();
    assert!(guess.contains("cannot search by tags"), "{guess}");
    let logged = api.mcp("reader").call("recall", json!({ "question": "q", "session": "s1" })).unwrap_err();
    assert!(logged.contains("you may not write"), "{logged}");
    // A reader's questions are no inputs: it has no decision that would take them.
    api.mcp("reader").call("query_decisions", json!({ "query": "q" })).unwrap();
    let tracked = api.bench.client().ask(&[b"delib.tracked"]);
    assert!(tracked.contains("\"sessions\":[]"), "{tracked}");
}

/// A session belongs to its token: another token finds no such session. Rights hold from request to request.
#[test]
fn session_belongs_to_its_token() {
    let api = TestApi::with(false);
    api.add_mcp_token("ann", Rights::READ);
    api.add_mcp_token("bob", Rights::READ);
    let hers = api.mcp("ann");
    let list = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {} });
    let stolen = McpClient {
        api: &api,
        token: "authorization: Bearer bob\r\n".to_owned(),
        session: hers.session.clone(),
    };
    assert_eq!(stolen.post(&list).status, 404);
    let delete = |client: &McpClient<'_>| {
        api.ask_with("DELETE /mcp", &format!("{ACCEPT}{}{}", client.token, client.session), b"").status
    };
    assert_eq!(delete(&stolen), 404);
    assert_eq!(hers.post(&list).status, 200);
    // Another page or another name of the server is refused before the token is looked at.
    let from_page = format!("{}{}origin: http://evil.example\r\n", hers.token, hers.session);
    assert_eq!(api.mcp_post(&from_page, &list).status, 403);
    let elsewhere = format!(
        "POST /mcp HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\ncontent-length: 0\r\n{ACCEPT}\r\n"
    );
    assert_eq!(api.raw(elsewhere.as_bytes()).status, 421);
    let form = api.ask_with("POST /mcp", &format!("{}content-type: text/plain\r\n", hers.token), b"{}");
    assert_eq!(form.status, 415);
    assert_eq!(delete(&hers), 204);
    assert_eq!(hers.post(&list).status, 404);
    let again = api.mcp("ann");
    api.bench.daemon.access.remove("ann");
    assert_eq!(again.post(&list).status, 401);
}

/// A client waits for messages on a stream without an end. It ends when the daemon does; else the daemon would
/// never end.
#[test]
fn waiting_stream_ends_with_the_daemon() {
    let api = TestApi::new();
    let client = api.mcp("");
    let mut stream = TcpStream::connect(api.address).unwrap();
    let head = format!(
        "GET /mcp HTTP/1.1\r\nhost: {}\r\naccept: text/event-stream\r\n{}\r\n",
        api.address, client.session
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut begun = [0; 12];
    stream.read_exact(&mut begun).unwrap();
    assert_eq!(&begun, b"HTTP/1.1 200");
    api.stop.send(true).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.ends_with(b"0\r\n\r\n"), "{}", String::from_utf8_lossy(&rest));
}

/// A fork shares frames and runs no program; the answer says so.
#[test]
fn fork_run_shares_frames_over_http() {
    let api = TestApi::new();
    api.record_failed_run();
    let client = api.mcp("");
    let forked = client.call("fork_run", json!({ "run": "bad", "seq": 1 })).unwrap();
    assert_eq!((&forked["fork"]["run"], &forked["fork"]["status"]), (&json!("bad-shared-1"), &json!("ok")));
    assert_eq!(forked["fork"]["forked_from"], json!({ "run": "bad", "at": 1, "seq": 1 }));
    assert_eq!(forked["program_was_run"], false);
    let again = client.call("fork_run", json!({ "run": "bad", "seq": 1 })).unwrap_err();
    assert!(again.contains("exists already"), "{again}");
    let beyond = client.call("fork_run", json!({ "run": "bad", "seq": 2 })).unwrap_err();
    assert!(beyond.contains("has no frame 2"), "{beyond}");
    // The newest run that failed is still the parent.
    assert_eq!(client.call("last_failed_run", json!({})).unwrap()["run"]["run"], "bad");
}
