//! The debugger page: its files, and the login by a link.

use serde_json::{Value, json};

use super::{HttpAnswer, TestApi};
use crate::access::Rights;
use crate::tests::token;

impl TestApi {
    /// Logs in with a code. Returns the answer, and the headers of the session.
    fn login(&self, code: &str, headers: &str) -> (HttpAnswer, String) {
        let body = json!({ "code": code }).to_string();
        let headers = format!("content-type: application/json\r\n{headers}");
        let answer = self.ask_with("POST /login", &headers, body.as_bytes());
        let cookie = answer.header("set-cookie").map(|cookie| cookie.split(';').next().unwrap().to_owned());
        let key = serde_json::from_slice::<Value>(&answer.body).ok();
        let key = key.and_then(|key| Some(key["key"].as_str()?.to_owned())).unwrap_or_default();
        let session = format!("cookie: other=1; {}\r\nannals-page: {key}\r\n", cookie.unwrap_or_default());
        (answer, session)
    }

    fn code(&self) -> String {
        self.bench.daemon.page.make_code("default", &*self.bench.daemon.io).unwrap()
    }
}

#[test]
fn files_of_the_page_carry_the_content_policy() {
    let api = TestApi::with(false);
    for (path, kind) in
        [("/", "text/html"), ("/assets/page.css", "text/css"), ("/assets/page.js", "text/javascript")]
    {
        let answer = api.ask_with(&format!("GET {path}"), "", b"");
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.header("content-type").unwrap().starts_with(kind), "{path}");
        let policy = answer.header("content-security-policy").unwrap();
        for part in [
            "default-src 'none'",
            "script-src 'self';",
            "style-src 'self';",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'none'",
        ] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
        let tag = answer.header("etag").unwrap().to_owned();
        let again = api.ask_with(&format!("GET {path}"), &format!("if-none-match: {tag}\r\n"), b"");
        assert_eq!((again.status, again.body.len()), (304, 0), "{path}");
    }
}

#[test]
fn login_link_opens_one_session() {
    let api = TestApi::with(false);
    let code = api.code();
    let (answer, session) = api.login(&code, "");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let cookie = answer.header("set-cookie").unwrap();
    assert!(cookie.contains("; httponly; samesite=strict; path=/"), "{cookie}");
    assert_eq!(api.ask_with("GET /v1/runs", &session, b"").status, 200);
    let stream = api.ask_with("GET /v1/runs/none/events", &session, b"");
    assert_eq!(stream.status, 404, "streams take the session, too");
    let (again, _) = api.login(&code, "");
    assert_eq!(again.status, 401);
    assert!(again.text().contains("used before"), "{}", again.text());
    assert_eq!(again.header("set-cookie"), None);
}

/// A browser sends a cookie to every port of a host, also to a server of another user; a script of another page
/// may guess that the daemon is there, and has no key.
#[test]
fn session_needs_both_its_cookie_and_its_key() {
    let api = TestApi::with(false);
    let (_, session) = api.login(&api.code(), "");
    let (_, other) = api.login(&api.code(), "");
    let parts: Vec<&str> = session.split_inclusive("\r\n").collect();
    let others: Vec<&str> = other.split_inclusive("\r\n").collect();
    for headers in [parts[0].to_owned(), parts[1].to_owned(), [parts[0], others[1]].concat(), String::new()] {
        assert_eq!(api.ask_with("GET /v1/runs", &headers, b"").status, 401, "{headers}");
    }
    assert_eq!(api.ask_with("GET /v1/runs", &parts.concat(), b"").status, 200);
}

#[test]
fn session_is_refused_to_other_origins() {
    let api = TestApi::with(false);
    let (_, session) = api.login(&api.code(), "");
    let own = format!("origin: http://{}\r\n", api.address);
    for (headers, status) in [
        (own.as_str(), 200),
        ("sec-fetch-site: same-origin\r\n", 200),
        ("sec-fetch-site: none\r\n", 200),
        ("sec-fetch-site: same-site\r\n", 401),
        ("sec-fetch-site: cross-site\r\n", 401),
        ("origin: http://evil.example\r\n", 403),
        ("origin: http://127.0.0.1:1\r\n", 403),
        ("origin: null\r\n", 403),
    ] {
        let answer = api.ask_with("GET /v1/runs", &format!("{session}{headers}"), b"");
        assert_eq!(answer.status, status, "{headers}: {}", answer.text());
    }
    for headers in ["origin: http://evil.example\r\n", "sec-fetch-site: cross-site\r\n"] {
        let (answer, _) = api.login(&api.code(), headers);
        assert_eq!(answer.status, 403, "{headers}");
    }
    let form = api.ask_with("POST /login", "content-type: text/plain\r\n", b"{\"code\":\"x\"}");
    assert_eq!(form.status, 415, "a form of another page can send this");
}

/// A token wins over a session, so that a page that is given a token shows what the token may see.
#[test]
fn token_of_a_request_wins_over_its_session() {
    let api = TestApi::with(false);
    let (_, session) = api.login(&api.code(), "");
    api.bench.daemon.access.add(token("reader", "default", Rights::READ));
    let both = format!("{session}authorization: Bearer token\r\n");
    assert_eq!(api.ask_with("GET /v1/runs", &both, b"").status, 200);
    let body = b"{\"name\":\"r\"}";
    let headers = format!("{both}content-type: application/json\r\n");
    assert_eq!(api.ask_with("POST /v1/runs", &headers, body).status, 403, "the token may only read");
    let wrong = format!("{session}authorization: Bearer wrong\r\n");
    assert_eq!(api.ask_with("GET /v1/runs", &wrong, b"").status, 401);
}

/// Regression: looking at decisions on the page wrote an input of the owner's next decision.
#[test]
fn looking_at_decisions_writes_nothing() {
    let api = TestApi::with(false);
    let (_, session) = api.login(&api.code(), "");
    let ask = |method: &str, params: Value| {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
        let headers = format!("{session}content-type: application/json\r\n");
        let answer = api.ask_with("POST /v1/cstp", &headers, body.as_bytes());
        assert!(answer.text().contains("\"result\""), "{}", answer.text());
    };
    ask("cstp.recordDecision", json!({ "decision": "d", "confidence": 1 }));
    let before = api.bench.daemon.store.seqno();
    ask("cstp.queryDecisions", json!({}));
    assert_eq!(api.bench.daemon.store.seqno(), before);
}

#[test]
fn routes_of_the_page_say_what_a_run_is() {
    let api = TestApi::new();
    let add = |run: &str, answer: &str, error: bool| {
        let ask = json!({ "model": "m", "messages": [{ "role": "user", "content": "go" }] }).to_string();
        let answer = json!({ "role": "assistant", "content": answer }).to_string();
        let facts = json!({ "model": "gpt-4o", "usage": { "input": 1000, "output": 10 } });
        let frame = json!({ "component": "llm", "request": ask, "response": answer, "error": error, "metadata": facts });
        api.json(201, &format!("POST /v1/runs/{run}/frames"), frame);
    };
    api.json(201, "POST /v1/runs", json!({ "name": "a" }));
    assert_eq!(api.json(200, "GET /v1/runs/a/failure", Value::Null), Value::Null, "no frame");
    add("a", "one", true);
    add("a", "two", false);
    api.json(204, "POST /v1/runs/a/end", json!({ "status": "failed" }));
    for (parent, name, at) in [("a", "b", 1), ("b", "c", 2)] {
        api.json(201, &format!("POST /v1/runs/{parent}/fork"), json!({ "at": at, "name": name }));
        add(name, "other", false);
        api.json(204, &format!("POST /v1/runs/{name}/end"), json!({}));
    }
    api.json(204, "POST /v1/runs/a/pin", json!({ "why": "evidence" }));
    api.json(204, "POST /v1/runs/b/flag", json!({ "why": "odd", "severity": "escalated" }));
    api.json(204, "POST /v1/runs/c/flag", json!({ "why": "odd" }));
    api.json(204, "DELETE /v1/runs/c/flag", Value::Null);
    assert_eq!(api.ask("POST /v1/runs/c/flag", json!({ "why": "odd", "severity": "normal" })).status, 400);
    let failure = api.json(200, "GET /v1/runs/a/failure", Value::Null);
    assert_eq!((&failure["seq"], &failure["exit_code"]), (&json!(1), &Value::Null), "{failure}");
    let steps = api.json(200, "GET /v1/runs/a/suspect", Value::Null);
    assert_eq!(steps.as_array().unwrap().len(), 2, "{steps}");
    assert!(steps[0]["score"].is_number() && steps[0]["signals"].is_array(), "{steps}");
    assert_eq!(api.json(200, "GET /v1/runs/a/blame", Value::Null), Value::Null);
    let pairs = api.json(200, "GET /v1/runs/a/diff?with=b", Value::Null);
    assert_eq!(
        pairs["pairs"],
        json!([
            { "kind": "same", "a": 1, "b": 1 },
            { "kind": "changed", "a": 2, "b": 2, "input": false, "output": true, "says_same": false },
        ])
    );
    // From any run of the tree, parents before their forks.
    let tree = api.json(200, "GET /v1/runs/c/forks", Value::Null);
    let names: Vec<_> =
        tree["runs"].as_array().unwrap().iter().map(|run| run["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let listed = api.json(200, "GET /v1/runs?with=usage&order=newest", Value::Null);
    let runs = listed["runs"].as_array().unwrap();
    assert_eq!(runs[2]["usage"]["input"], 2000, "{listed}");
    assert_eq!(runs[1]["usage"]["input"], 1000, "the parent paid for shared frames: {listed}");
    assert!(runs[2]["usage"]["dollars"].as_f64().is_some_and(|dollars| dollars > 0.0), "{listed}");
    assert_eq!((&runs[2]["pinned"], &runs[1]["pinned"]), (&json!("evidence"), &Value::Null));
    let marks: Vec<_> = runs.iter().map(|run| (&run["severity"], &run["flagged"])).collect();
    let (plain, odd) = ((&json!("normal"), &Value::Null), (&json!("escalated"), &json!("odd")));
    assert_eq!(marks, [plain, odd, plain]);
    assert_eq!(api.ask("GET /v1/runs?with=other", Value::Null).status, 400);
    for path in ["failure", "suspect", "blame", "forks", "diff?with=a"] {
        assert_eq!(api.ask(&format!("GET /v1/runs/none/{path}"), Value::Null).status, 404, "{path}");
    }
}
