//! Decisions over JSON-RPC, as the clients of CSTP call them.

use serde_json::{Value, json};

use super::{TestApi, token};
use crate::access::{AccessToken, Rights};

impl TestApi {
    /// The whole response to a call.
    fn rpc(&self, method: &str, params: Value) -> Value {
        let call = json!({ "jsonrpc": "2.0", "id": 7, "method": format!("cstp.{method}"), "params": params });
        let answer = self.json(200, "POST /v1/cstp", call);
        assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &json!(7)), "{answer}");
        answer
    }

    #[track_caller]
    fn result(&self, method: &str, params: Value) -> Value {
        let mut answer = self.rpc(method, params);
        assert_eq!(answer["error"], Value::Null, "{answer}");
        answer["result"].take()
    }
}

fn decision() -> Value {
    json!({ "decision": "Keep the ledger in Postgres", "confidence": 0.85, "category": "architecture",
            "stakes": "high", "reasons": [{ "type": "analysis", "text": "transactions" }] })
}

/// S3.9, S3.18, S3.25, S3.27: three calls and a decision that says nothing of a deliberation.
#[test]
fn three_calls_become_inputs_of_the_next_decision() {
    let api = TestApi::new();
    let found = api.result("queryDecisions", json!({ "query": "where does the ledger live" }));
    assert_eq!(found["decisions"], json!([]));
    assert_eq!(api.result("checkGuardrails", json!({ "description": "choose a database" }))["allowed"], true);
    api.result("getReasonStats", json!({}));
    let recorded = api.result("recordDecision", decision());
    assert_eq!(recorded["deliberation_auto"], true, "{recorded}");
    assert_eq!(recorded["deliberation_inputs_count"], 3);
    let read = api.result("getDecision", json!({ "id": recorded["id"] }));
    let (inputs, steps) = (&read["deliberation"]["inputs"], &read["deliberation"]["steps"]);
    let texts: Vec<&str> =
        inputs.as_array().unwrap().iter().map(|input| input["text"].as_str().unwrap()).collect();
    assert_eq!(
        texts,
        [
            "Queried 'where does the ledger live': 0 results (keyword)",
            "Checked 'choose a database': allowed",
            "Reviewed reason stats: 0 types, 0 decisions",
        ]
    );
    let types: Vec<&str> =
        steps.as_array().unwrap().iter().map(|step| step["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["analysis", "constraint", "empirical"]);
    for (at, step) in steps.as_array().unwrap().iter().enumerate() {
        assert_eq!(step["step"], at + 1);
        assert_eq!(step["thought"], inputs[at]["text"]);
        assert_eq!(step["inputs_used"], json!([inputs[at]["id"]]));
    }
    // S3.11, S3.15: a query returns it, with the deliberation only if that is asked for.
    let query = |more: bool| {
        let params = json!({ "query": "ledger postgres", "includeDeliberation": more });
        api.result("queryDecisions", params)["decisions"][0].clone()
    };
    assert_eq!(query(false)["deliberation"], Value::Null);
    assert_eq!(query(true)["deliberation"]["inputs"], *inputs);
    assert_eq!(query(true)["summary"], "Keep the ledger in Postgres");
    assert_eq!(query(true)["category"], "architecture");
}

#[test]
fn batches_notifications_and_errors_follow_json_rpc() {
    let api = TestApi::new();
    let call = |id: Value, method: &str, params: Value| json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    let thought =
        json!({ "jsonrpc": "2.0", "method": "cstp.recordThought", "params": { "text": "cheap first" } });
    let batch = json!([
        call(json!("a"), "cstp.queryDecisions", json!({ "query": "x" })),
        thought,
        call(json!(2), "cstp.recordDecision", decision()),
        call(json!(null), "cstp.nothing", json!({})),
        1,
    ]);
    let answers = api.json(200, "POST /v1/cstp", batch);
    let answers = answers.as_array().unwrap();
    assert_eq!(answers.len(), 4, "{answers:?}");
    assert_eq!((&answers[0]["id"], &answers[1]["id"]), (&json!("a"), &json!(2)));
    assert_eq!(answers[1]["result"]["deliberation_inputs_count"], 2, "the notification counts");
    assert_eq!(answers[2]["error"]["code"], -32601);
    assert!(answers[2]["error"]["message"].as_str().unwrap().contains("cstp.recordDecision"));
    assert_eq!((&answers[3]["error"]["code"], &answers[3]["id"]), (&json!(-32600), &Value::Null));
    assert_eq!(api.ask("POST /v1/cstp", thought.clone()).status, 204);
    assert_eq!(api.ask("POST /v1/cstp", json!([thought])).status, 204);
    let code = |body: &[u8]| {
        let answer = api.ask_with("POST /v1/cstp", "", body);
        assert_eq!(answer.status, 200);
        serde_json::from_slice::<Value>(&answer.body).unwrap()["error"]["code"].clone()
    };
    assert_eq!(code(b"{"), -32700);
    assert_eq!(code(b"[{]"), -32700);
    assert_eq!(code(b"\xff"), -32700);
    assert_eq!(code(b"[]"), -32600);
    assert_eq!(code(b"{}"), -32600);
    assert_eq!(code(br#"{"jsonrpc":"1.0","id":1,"method":"cstp.getDecision"}"#), -32600);
    assert_eq!(code(br#"{"jsonrpc":"2.0","id":{},"method":"cstp.getDecision"}"#), -32600);
    assert_eq!(code(br#"{"jsonrpc":"2.0","id":1,"method":"cstp.getDecision","params":[1]}"#), -32602);
    assert_eq!(
        code(br#"{"jsonrpc":"2.0","id":1,"method":"cstp.getDecision","params":{"id":"00000000"}}"#),
        -32004
    );
    let error = api.rpc("recordDecision", json!({ "decision": "x", "confidence": 1.5 }));
    assert!(error["error"]["message"].as_str().unwrap().contains("not from 0 to 1"), "{error}");
    assert_eq!(error["error"]["data"]["code"], "ERR");
}

impl TestApi {
    /// A call with a token whose text is its name.
    fn rpc_as(&self, name: &str, method: &str, params: Value) -> Value {
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": format!("cstp.{method}"), "params": params });
        let header = format!("authorization: Bearer {name}\r\n");
        let answer = self.ask_with("POST /v1/cstp", &header, call.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        serde_json::from_slice(&answer.body).unwrap()
    }

    fn add_token(&self, name: &str, rights: Rights) {
        let hash = blake3::hash(name.as_bytes());
        self.bench.daemon.access.add(AccessToken { hash, ..token(name, "default", rights) });
    }
}

/// S3.19, S3.20: a token is an agent; it cannot take another's inputs, nor act as it.
#[test]
fn tokens_have_their_own_inputs_and_rights() {
    let api = TestApi::with(false);
    api.add_token("ann", Rights::READ.union(Rights::RECORD));
    api.add_token("bob", Rights::READ.union(Rights::RECORD));
    api.add_token("reader", Rights::READ);
    api.add_token("redacted", Rights::REDACTED);
    assert_eq!(api.ask("POST /v1/cstp", json!({})).status, 401);
    api.rpc_as("ann", "queryDecisions", json!({ "query": "hers" }));
    let bobs = api.rpc_as("bob", "recordDecision", decision());
    assert_eq!(bobs["result"]["deliberation_inputs_count"], Value::Null, "{bobs}");
    let stolen =
        api.rpc_as("bob", "recordDecision", json!({ "decision": "d", "confidence": 1, "agentId": "ann" }));
    assert!(stolen["error"]["message"].as_str().unwrap().contains("another token"), "{stolen}");
    let hers = api.rpc_as(
        "ann",
        "recordDecision",
        json!({
            "decision": "Write to ann@example.com", "confidence": 1, "agentId": "sub-agent",
        }),
    );
    assert_eq!(hers["result"]["deliberation_inputs_count"], 1, "{hers}");
    let id = &hers["result"]["id"];
    // Reading needs no right to record; recording, reviewing and switches do.
    assert!(api.rpc_as("reader", "getDecision", json!({ "id": id }))["result"].is_object());
    for (method, params) in [
        ("recordDecision", decision()),
        ("recordThought", json!({ "text": "t" })),
        ("reviewOutcome", json!({ "id": id, "outcome": "success" })),
        ("setGuardrail", json!({ "id": "g" })),
        ("configure", json!({ "requireDeliberation": true })),
    ] {
        assert_eq!(api.rpc_as("reader", method, params)["error"]["code"], -32003, "{method}");
    }
    assert_eq!(api.rpc_as("ann", "configure", json!({}))["error"]["data"]["code"], "NOPERM");
    // S3.35: the whole trace is stored, and redacted for a reader without the right to see it.
    let seen = api.rpc_as("redacted", "getDecision", json!({ "id": id }))["result"].clone();
    assert!(seen["decision"].as_str().unwrap().starts_with("Write to [email:"), "{seen}");
    assert_eq!(seen["confidence"], 1);
    assert_eq!(api.rpc_as("redacted", "queryDecisions", json!({}))["error"]["code"], -32003);
}

/// The same calls over RESP and over HTTP share their inputs.
#[test]
fn resp_and_http_are_one_tracker_of_a_token() {
    let api = TestApi::new();
    let mut client = api.bench.client();
    let mut ask = |words: &[&str]| {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        client.ask(&words)
    };
    assert!(ask(&["delib.query", "{\"query\":\"a\"}"]).contains("\"decisions\":[]"));
    api.result("queryDecisions", json!({ "query": "b" }));
    let recorded = ask(&["DELIB.RECORD", &decision().to_string()]);
    assert!(recorded.contains("\"deliberation_inputs_count\":2"), "{recorded}");
    assert!(ask(&["delib.tracked"]).contains("\"sessions\":[]"));
    assert!(ask(&["delib.get", "{\"id\":\"00000000\"}"]).starts_with("-NOTFOUND there is no decision"));
    assert!(ask(&["delib.get", "x"]).starts_with("-ERR the parameters: not JSON"));
    assert!(ask(&["delib.query", "{}", "namespace"]).starts_with("-ERR syntax"));
}
