//! `annals mcp`: a client speaks the Model Context Protocol with it on standard input and output.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};

use super::CliBench;
use crate::upstream::FakeUpstream;

/// A client that sends one request at a time.
struct McpClient {
    child: Child,
    to_server: ChildStdin,
    from_server: BufReader<ChildStdout>,
    last_id: u64,
}

impl McpClient {
    fn start(bench: &CliBench, args: &[&str]) -> Self {
        let mut child = bench.command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let to_server = child.stdin.take().unwrap();
        let from_server = BufReader::new(child.stdout.take().unwrap());
        let mut client = Self { child, to_server, from_server, last_id: 0 };
        let hello = client.request(
            "initialize",
            json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" } }),
        );
        assert_eq!(hello["result"]["serverInfo"]["name"], "annals", "{hello}");
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        client
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.to_server, "{message}").unwrap();
    }

    fn request(&mut self, method: &str, params: Value) -> Value {
        self.last_id += 1;
        let id = self.last_id;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        let mut line = String::new();
        self.from_server.read_line(&mut line).unwrap();
        let answer: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.request("tools/call", json!({ "name": tool, "arguments": arguments }))["result"].take()
    }

    /// Closes standard input. Returns the exit code.
    fn end(mut self) -> i32 {
        drop(self.to_server);
        self.child.wait().unwrap().code().unwrap()
    }
}

/// An agent that asks what went wrong in its last failed run gets the frame. The server starts before the store
/// exists.
#[test]
fn mcp_client_finds_the_last_failed_run() {
    let bench = CliBench::new();
    let mut client = McpClient::start(&bench, &["mcp"]);
    let missing = client.call("last_failed_run", json!({}));
    assert_eq!(missing["isError"], true, "{missing}");
    assert!(missing["content"][0]["text"].as_str().unwrap().contains("no store at"), "{missing}");
    let run = json!({
        "id": "bad", "reward": 0.0,
        "messages": [
            { "role": "user", "content": "Where is order 1187?" },
            { "role": "assistant", "content": "The order does not exist." },
        ],
    });
    let file = bench.write("bad.jsonl", run.to_string());
    bench.run(&format!("import --format chat --status-from reward {file}")).ok();
    let answer = client.call("last_failed_run", json!({}));
    let text = answer["content"][1]["text"].as_str().unwrap();
    let found: Value = serde_json::from_str(text).unwrap();
    assert_eq!(found["run"]["run"], "bad");
    assert_eq!(found["frame"]["answer"], "The order does not exist.");
    let tools = client.request("tools/list", json!({}));
    let tools = tools["result"]["tools"].as_array().unwrap();
    assert!(tools.iter().all(|tool| tool["annotations"]["readOnlyHint"] == true), "{tools:?}");
    assert_eq!(client.end(), 0);
}

/// What an agent asked over MCP becomes the inputs of its decision, also across calls that open the store anew.
#[test]
fn decision_over_mcp_has_the_sessions_inputs() {
    let bench = CliBench::new();
    bench.run("init").ok();
    let mut client = McpClient::start(&bench, &["mcp", "--write"]);
    client.call("query_decisions", json!({ "query": "where does the ledger live" }));
    let decision = json!({ "decision": "Keep the ledger in Postgres", "confidence": 0.85 });
    let stored = client.call("record_decision", json!({ "decision": decision }));
    let stored: Value = serde_json::from_str(stored["content"][1]["text"].as_str().unwrap()).unwrap();
    assert_eq!(stored["deliberation_inputs_count"], 1, "{stored}");
    // A check, a lookup and the statistics of reasons were no tools, so none of them was ever an input.
    for (tool, arguments) in [
        ("check_guardrails", json!({ "description": "drop the ledger" })),
        ("get_decision", json!({ "decision_id": stored["id"] })),
        ("get_reason_stats", json!({})),
    ] {
        let answer = client.call(tool, arguments);
        assert_eq!(answer["isError"], false, "{tool}: {answer}");
    }
    let stored = client.call("record_decision", json!({ "decision": decision }));
    let stored: Value = serde_json::from_str(stored["content"][1]["text"].as_str().unwrap()).unwrap();
    assert_eq!(stored["deliberation_inputs_count"], 3, "{stored}");
    assert_eq!(client.end(), 0);
}

/// A client that does not wait for the thought before it sends the decision: half of the decisions had no input.
#[test]
fn calls_sent_without_waiting_keep_their_order() {
    let bench = CliBench::new();
    bench.run("init").ok();
    let mut client = McpClient::start(&bench, &["mcp", "--write"]);
    for round in 0..10 {
        let id = 1000 + 2 * round;
        for (id, tool, arguments) in [
            (id, "record_thought", json!({ "text": "a reason" })),
            (id + 1, "record_decision", json!({ "decision": { "decision": "d", "confidence": 0.5 } })),
        ] {
            let params = json!({ "name": tool, "arguments": arguments });
            client.send(&json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }));
        }
        let mut answers: Vec<Value> = (0..2)
            .map(|_| {
                let mut line = String::new();
                client.from_server.read_line(&mut line).unwrap();
                serde_json::from_str(&line).unwrap()
            })
            .collect();
        answers.sort_by_key(|answer| answer["id"].as_u64());
        let stored = answers[1]["result"]["content"][1]["text"].as_str().unwrap();
        let stored: Value = serde_json::from_str(stored).unwrap();
        assert_eq!(stored["deliberation_inputs_count"], 1, "round {round}: {stored}");
    }
    assert_eq!(client.end(), 0);
}

/// A fork shares frames; no program runs, and the answer has the command that would run it. Without `--write` there
/// is no such tool.
#[test]
fn fork_run_over_mcp_gives_the_command_to_continue() {
    let bench = CliBench::new();
    let upstream = FakeUpstream::start();
    assert_eq!(bench.record(&upstream.url, "r", &["changed", "two"]).code, 0);
    let file = bench.write(
        "chat.jsonl",
        json!({ "id": "chat", "reward": 0.0, "messages": [
            { "role": "user", "content": "Where is it?" }, { "role": "assistant", "content": "Nowhere." },
        ] })
        .to_string(),
    );
    bench.run(&format!("import --format chat --status-from reward {file}")).ok();
    let mut reader = McpClient::start(&bench, &["mcp"]);
    let refused = reader.call("fork_run", json!({ "run": "chat", "seq": 1 }));
    assert!(refused["content"][0]["text"].as_str().unwrap().contains("no tool \"fork_run\""), "{refused}");
    assert_eq!(reader.end(), 0);
    let mut client = McpClient::start(&bench, &["mcp", "--write"]);
    let mut fork = |arguments: Value| {
        let answer = client.call("fork_run", arguments);
        assert_eq!(answer["isError"], false, "{answer}");
        serde_json::from_str::<Value>(answer["content"][1]["text"].as_str().unwrap()).unwrap()
    };
    let imported = fork(json!({ "run": "chat", "seq": 1 }));
    assert_eq!((&imported["fork"]["run"], &imported["fork"]["frames"]), (&json!("chat-shared-1"), &json!(1)));
    assert_eq!(imported["program_was_run"], false);
    assert_eq!(imported["to_continue"], Value::Null, "nothing recorded can continue");
    let recorded = fork(json!({ "run": "r", "seq": 2 }));
    let command = recorded["to_continue"].as_str().unwrap();
    assert!(command.starts_with("annals --store /") && command.ends_with(" fork r@2"), "{command}");
    // A daemon that holds the store makes the fork.
    let daemon = bench.serve(&[]);
    assert_eq!(fork(json!({ "run": "chat", "seq": 2, "name": "held" }))["fork"]["frames"], 2);
    drop(daemon);
    assert_eq!(client.end(), 0);
    assert!(bench.run("runs").text().contains("chat-shared-1"));
}
