//! The API as a client sees it: bytes over a socket.

mod events;
mod page;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

mod cstp;
mod mcp;

use super::HttpApi;
use crate::access::Rights;
use crate::perform::perform;
use crate::session::{ClientInfo, Session};
use crate::tests::memory::{MONDAY, QUESTION};
use crate::tests::poisoned::prepared;
use crate::tests::{DaemonBench, token};
use annals::io::sim::{FailRule, OpKind};
use annals_wire::resp::Reply;

/// The API of a daemon on a loopback port.
struct TestApi {
    bench: DaemonBench,
    address: SocketAddr,
    stop: tokio::sync::watch::Sender<bool>,
    /// Number of connections that have ended.
    ended: tokio::sync::watch::Receiver<usize>,
}

/// A response.
#[derive(Debug)]
struct HttpAnswer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl TestApi {
    fn new() -> Self {
        Self::with(true)
    }

    fn with(is_open: bool) -> Self {
        Self::with_stall(is_open, super::STALL)
    }

    /// Its clients must read some of a response within `stall`.
    fn with_stall(is_open: bool, stall: Duration) -> Self {
        Self::of(DaemonBench::new(), is_open, stall)
    }

    fn of(bench: DaemonBench, is_open: bool, stall: Duration) -> Self {
        let listener = bench.runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let unasked = is_open.then(|| bench.daemon.owner().unwrap());
        let mounts = annals_proxy::proxy::UpstreamOptions::default().mounts().unwrap();
        let hosts = super::ServerHosts::new(address, false, &["annals.example".to_owned()]);
        let http = HttpApi { stall, ..HttpApi::new(bench.daemon.clone(), unasked, hosts, mounts, None) };
        let http = Arc::new(http);
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let (end, ended) = tokio::sync::watch::channel(0);
        bench.runtime.spawn(async move {
            while let Ok((stream, from)) = listener.accept().await {
                let (http, stopped, end) = (http.clone(), stopped.clone(), end.clone());
                tokio::spawn(async move {
                    http.serve(stream, from, stopped).await;
                    end.send_modify(|ended| *ended += 1);
                });
            }
        });
        Self { bench, address, stop, ended }
    }

    /// Waits until this many connections have ended.
    fn await_ended(&self, count: usize) {
        let mut ended = self.ended.clone();
        self.bench.runtime.block_on(async move {
            ended.wait_for(|ended| *ended >= count).await.unwrap();
        });
    }

    /// Sends these bytes and reads until the end.
    fn raw(&self, bytes: &[u8]) -> HttpAnswer {
        let mut stream = TcpStream::connect(self.address).unwrap();
        // The server may hang up before it reads everything.
        let _ = stream.write_all(bytes);
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        let end = all.windows(4).position(|window| window == b"\r\n\r\n").map_or(all.len(), |at| at + 4);
        let head = String::from_utf8(all[..end].to_vec()).unwrap().to_lowercase();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let mut body = all[end..].to_vec();
        if head.contains("transfer-encoding: chunked") {
            body = unchunked(&body);
        }
        HttpAnswer { status, head, body }
    }

    fn ask_with(&self, request: &str, headers: &str, body: &[u8]) -> HttpAnswer {
        let head = format!(
            "{request} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
            self.address,
            body.len()
        );
        self.raw(&[head.as_bytes(), body].concat())
    }

    fn ask(&self, request: &str, body: Value) -> HttpAnswer {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        self.ask_with(request, "", &body)
    }

    /// The JSON response to a request; it must have this status.
    #[track_caller]
    fn json(&self, status: u16, request: &str, body: Value) -> Value {
        let answer = self.ask(request, body);
        assert_eq!(answer.status, status, "{request}: {}", answer.text());
        if answer.body.is_empty() { Value::Null } else { serde_json::from_slice(&answer.body).unwrap() }
    }
}

impl HttpAnswer {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = bytes.windows(2).position(|window| window == b"\r\n") {
        let len = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
        if len == 0 || bytes.len() < end + 2 + len {
            break;
        }
        whole.extend_from_slice(&bytes[end + 2..end + 2 + len]);
        bytes = &bytes[end + 4 + len..];
    }
    whole
}

#[test]
fn a_run_is_recorded_read_and_replayed() {
    let api = TestApi::new();
    let run = json!({ "name": "r", "agent": "a", "tags": { "team": "x" }, "metadata": { "k": 1.50 } });
    assert_eq!(api.json(201, "POST /v1/runs", run)["name"], "r");
    let frame =
        json!({ "component": "llm", "request": "why?", "response": { "base64": "/wA=" }, "parent": null });
    assert_eq!(api.json(201, "POST /v1/runs/r/frames", frame), json!({ "seq": 1 }));
    let begun = json!({ "component": "llm", "request": "and?", "metadata": "{\"a\":1}" });
    assert_eq!(api.json(201, "POST /v1/runs/r/frames/begin", begun), json!({ "seq": 2 }));
    let append = |piece: &[u8]| api.ask_with("POST /v1/runs/r/frames/2/response", "", piece).text();
    assert_eq!(append(b"be"), "{\"response_bytes\":2}\n");
    assert_eq!(append(b"cause"), "{\"response_bytes\":7}\n");
    assert_eq!(append(b""), "{\"response_bytes\":7}\n");
    assert_eq!(api.ask("POST /v1/runs/r/frames/2/end", json!({ "error": false })).status, 204);
    let state = json!({ "state": "{}", "embeddings": { "m": [0.5, 1] } });
    assert_eq!(api.json(201, "POST /v1/runs/r/snapshots", state), json!({ "seq": 2 }));
    assert_eq!(
        api.json(201, "POST /v1/runs/r/draws", json!({ "kind": "uuid" }))["drawn"].as_str().unwrap().len(),
        36
    );
    assert_eq!(api.ask("POST /v1/runs/r/end", Value::Null).status, 204);

    let run = api.json(200, "GET /v1/runs/r", Value::Null);
    assert_eq!(
        (&run["status"], &run["tags"], &run["metadata"]),
        (&json!("ok"), &json!({ "team": "x" }), &json!("{\"k\":1.5}"))
    );
    let frame = api.json(200, "GET /v1/runs/r/frames/1", Value::Null);
    assert_eq!((&frame["request"], &frame["response"]), (&json!("why?"), &json!({ "base64": "/wA=" })));
    let frames = api.json(200, "GET /v1/runs/r/frames?from=2&count=1", Value::Null);
    assert_eq!((frames.as_array().unwrap().len(), &frames[0]["response"]), (1, &json!("because")));
    assert_eq!(api.json(200, "GET /v1/runs?status=ok", Value::Null)["runs"][0]["name"], "r");
    assert_eq!(api.json(200, "GET /v1/runs/r/state?at=3", Value::Null)["seq"], 2);
    assert!(api.json(200, "POST /v1/runs/r/verify", json!({}))["frames"].as_u64().unwrap() >= 2);

    let replay = api.json(201, "POST /v1/runs/r/replays", Value::Null)["replay"].as_str().unwrap().to_owned();
    let asked = |request: &str| api.ask(&format!("POST /v1/replays/{replay}"), json!({ "request": request }));
    assert_eq!(asked("and?").text(), "{\"response\":\"because\"}\n");
    assert_eq!(asked("why?").text(), "{\"response\":{\"base64\":\"/wA=\"}}\n");
    // Each call is served once.
    let diverged = asked("why?");
    assert_eq!(diverged.status, 409);
    assert!(diverged.text().contains("\"code\":\"DIVERGED\""), "{}", diverged.text());
    assert_eq!(api.ask(&format!("DELETE /v1/replays/{replay}"), Value::Null).status, 204);
    assert_eq!(asked("why?").status, 404);

    let fork = api.json(201, "POST /v1/runs/r/fork", json!({ "at": 1, "edit": true, "name": "f" }));
    assert_eq!(fork["name"], "f");
    assert_eq!(api.json(200, "GET /v1/runs/f", Value::Null)["parent"]["at"], 1);
}

#[test]
fn keys_are_set_read_scanned_and_deleted() {
    let api = TestApi::new();
    let at = "/v1/databases/3/keys";
    assert_eq!(api.ask_with(&format!("PUT {at}/a%2Fb"), "", b"\xff\x00").status, 204);
    let got = api.ask(&format!("GET {at}/a%2Fb"), Value::Null);
    assert_eq!((got.status, got.body.as_slice()), (200, &b"\xff\x00"[..]));
    let tag = format!("\"{}\"", blake3::hash(b"\xff\x00").to_hex());
    assert_eq!(got.header("etag"), Some(tag.as_str()));
    assert_eq!(
        api.json(200, &format!("GET {at}?cursor=0"), Value::Null),
        json!({ "cursor": "0", "keys": ["a/b"] })
    );
    assert_eq!(
        api.json(200, &format!("GET {at}/a%2Fb/history"), Value::Null)[0]["value"],
        json!({ "base64": "/wA=" })
    );
    assert_eq!(api.ask(&format!("DELETE {at}/a%2Fb"), Value::Null).status, 204);
    for gone in
        [format!("GET {at}/a%2Fb"), format!("DELETE {at}/a%2Fb"), "GET /v1/databases/4/keys/a".to_owned()]
    {
        assert_eq!(api.ask(&gone, Value::Null).status, 404, "{gone}");
    }
    assert_eq!(api.ask("GET /v1/databases/16/keys/a", Value::Null).status, 400);
}

#[test]
fn bodies_stream_in_ranges_with_their_hash_as_etag() {
    let api = TestApi::new();
    let bytes: Vec<u8> =
        (0..3_000_000_u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let id = blake3::hash(&bytes).to_hex().to_string();
    let put = api.ask_with("POST /v1/blobs", "", &bytes);
    assert_eq!((put.status, put.text()), (201, format!("{{\"bytes\":12000000,\"id\":\"{id}\"}}\n")));
    let get = |headers: &str| api.ask_with(&format!("GET /v1/blobs/{id}"), headers, b"");
    let whole = get("");
    assert!(whole.status == 200 && whole.body == bytes);
    assert_eq!(whole.header("etag"), Some(format!("\"{id}\"").as_str()));
    assert_eq!(whole.header("content-length"), Some("12000000"));
    let part = get("range: bytes=1000000-1000009\r\n");
    assert_eq!((part.status, part.body.as_slice()), (206, &bytes[1_000_000..1_000_010]));
    assert_eq!(part.header("content-range"), Some("bytes 1000000-1000009/12000000"));
    let last = get(&format!("range: bytes=-5\r\nif-range: \"{id}\"\r\n"));
    assert_eq!((last.status, last.body.as_slice()), (206, &bytes[11_999_995..]));
    assert_eq!(get("range: bytes=-5\r\nif-range: \"other\"\r\n").status, 200);
    let none = get("range: bytes=12000000-\r\n");
    assert_eq!((none.status, none.header("content-range")), (416, Some("bytes */12000000")));
    let known = get(&format!("if-none-match: \"{id}\"\r\n"));
    assert_eq!((known.status, known.body.len()), (304, 0));
    let head = api.ask_with(&format!("HEAD /v1/blobs/{id}"), "", b"");
    assert_eq!((head.status, head.header("content-length"), head.body.len()), (200, Some("12000000"), 0));
    assert_eq!(api.ask(&format!("GET /v1/blobs/{}", "0".repeat(64)), Value::Null).status, 404);
    assert_eq!(api.ask("GET /v1/blobs/zz", Value::Null).status, 400);
    // A frame's response is unchanged; a chunked body is appended as it arrives.
    api.json(201, "POST /v1/runs", json!({ "name": "r" }));
    api.json(201, "POST /v1/runs/r/frames/begin", json!({ "component": "llm", "request": "q" }));
    let chunked = format!(
        "POST /v1/runs/r/frames/1/response HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n",
        api.address
    );
    assert_eq!(api.raw(chunked.as_bytes()).text(), "{\"response_bytes\":7}\n");
    let part = api.ask_with("GET /v1/runs/r/frames/1/response", "range: bytes=2-3\r\n", b"");
    assert_eq!((part.status, part.text().as_str()), (206, "cd"));
    assert_eq!(api.ask("GET /v1/runs/r/frames/1/request", Value::Null).text(), "q");
}

#[test]
fn requests_without_sufficient_token_are_refused() {
    let api = TestApi::with(false);
    api.bench.daemon.access.add(token("reader", "default", Rights::READ));
    let with = |request: &str, header: &str| api.ask_with(request, header, b"{}").status;
    for header in
        ["", "authorization: Bearer wrong\r\n", "authorization: Basic token\r\n", "authorization: \r\n"]
    {
        let refused = api.ask_with("GET /v1/runs", header, b"");
        assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("bearer")), "{header}");
    }
    let token = "authorization: Bearer token\r\n";
    assert_eq!(with("GET /v1/runs", token), 200);
    assert_eq!(with("POST /v1/runs", token), 403);
    assert_eq!(with("GET /metrics", token), 403);
    assert_eq!(with("POST /v1/store/verify", token), 403);
    assert_eq!(api.ask_with("POST /v1/blobs", token, b"x").status, 403);
    // These endpoints reveal nothing and need no token.
    for open in ["GET /healthz", "GET /readyz", "GET /openapi.json"] {
        assert_eq!(with(open, ""), 200, "{open}");
    }
}

#[test]
fn requests_from_other_origins_are_refused() {
    let api = TestApi::new();
    let port = api.address.port();
    let asked = |host: &str, more: &str| {
        api.raw(
            format!("GET /v1/runs HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{more}\r\n").as_bytes(),
        )
        .status
    };
    assert_eq!(asked(&format!("localhost:{port}"), ""), 200);
    assert_eq!(asked(&format!("LOCALHOST:{port}"), &format!("origin: http://127.0.0.1:{port}\r\n")), 200);
    // Names that an attacker could resolve to this address.
    for host in ["evil.example", &format!("evil.example:{port}"), "localhost", "localhost:1", ""] {
        assert_eq!(asked(host, ""), 421, "{host}");
    }
    for origin in [
        "http://evil.example",
        "null",
        "https://127.0.0.1:1",
        &format!("http://127.0.0.1:{port}.evil.example"),
    ] {
        assert_eq!(asked(&api.address.to_string(), &format!("origin: {origin}\r\n")), 403, "{origin}");
    }
    let form = "content-type: text/plain\r\n";
    assert_eq!(api.ask_with("POST /v1/runs", form, b"{}").status, 415);
    let two = format!("host: {}\r\n", api.address);
    assert_eq!(api.ask_with("GET /v1/runs", &two, b"").status, 421);
}

#[test]
fn invalid_requests_are_refused_with_a_reason() {
    let api = TestApi::new();
    api.json(201, "POST /v1/runs", json!({ "name": "r" }));
    for (status, request, body, told) in [
        (400, "POST /v1/runs/r/frames", "{", "not a JSON object"),
        (400, "POST /v1/runs/r/frames", "{}", "\"component\" is missing"),
        (
            400,
            "POST /v1/runs/r/frames",
            r#"{"component":"llm","request":1,"response":""}"#,
            "\"request\" is not a text",
        ),
        (
            400,
            "POST /v1/runs/r/frames",
            r#"{"component":"llm","request":"","response":"","wat":1}"#,
            "\"wat\"",
        ),
        (400, "POST /v1/runs/r/frames", r#"{"component":"llm","component":"llm"}"#, "occurs twice"),
        (
            404,
            "POST /v1/runs/no/frames",
            r#"{"component":"llm","request":"","response":""}"#,
            "there is no run",
        ),
        (409, "POST /v1/runs", r#"{"name":"r"}"#, "CONFLICT"),
        (400, "GET /v1/runs?count=x", "", "count is not an integer"),
        (400, "GET /v1/runs?count=1&count=2", "", "twice"),
        (400, "GET /v1/runs?wat=1", "", "wat"),
        (400, "GET /v1/runs/r/state", "", "at is missing"),
        (404, "GET /v1/runs/r/frames/9", "", "NOTFOUND"),
        (400, "GET /v1/runs/r/frames/x/request", "", "number"),
        (404, "GET /nothing", "", "openapi.json"),
        (405, "DELETE /v1/runs", "", "does not support the method"),
        (403, "POST /v1/store/backup", r#"{"path":"/tmp/x"}"#, "Unix socket"),
    ] {
        let answer = api.ask_with(request, "", body.as_bytes());
        assert_eq!(answer.status, status, "{request} {body}: {}", answer.text());
        let text = answer.text().replace("\\\"", "\"");
        assert!(text.contains(told), "{request} {body}: {text}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{request}");
    }
    // The sizes of a head and of a body in memory are limited.
    let long = format!("GET /v1/runs?x={} HTTP/1.1\r\nhost: {}\r\n\r\n", "x".repeat(100_000), api.address);
    assert!((400..500).contains(&api.raw(long.as_bytes()).status));
}

#[test]
fn tail_with_wait_returns_new_frames() {
    let api = TestApi::new();
    api.json(201, "POST /v1/runs", json!({ "name": "r" }));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| api.json(200, "GET /v1/runs/r/frames?wait_ms=20000", Value::Null));
        api.json(
            201,
            "POST /v1/runs/r/frames",
            json!({ "component": "tool", "request": "a", "response": "b" }),
        );
        assert_eq!(waits.join().unwrap()[0]["request"], "a");
    });
    assert_eq!(api.json(200, "GET /v1/runs/r/frames?from=2&wait_ms=1", Value::Null), Value::Null);
}

#[test]
fn metrics_report_counters() {
    let api = TestApi::new();
    api.ask_with("PUT /v1/databases/0/keys/a", "", b"1");
    let metrics = api.ask("GET /metrics", Value::Null).text();
    let value = |name: &str| {
        let line =
            metrics.lines().find(|line| line.starts_with(name) && line[name.len()..].starts_with([' ', '{']));
        line.and_then(|line| line.rsplit(' ').next())
            .and_then(|value| value.parse::<f64>().ok())
            .unwrap_or(-1.0)
    };
    assert!(value("annals_commands_total") >= 1.0 && value("annals_disk_bytes") > 0.0, "{metrics}");
    let syncs = value("annals_sync_seconds_count");
    assert!(syncs >= 1.0 && value("annals_sync_seconds_sum") > 0.0, "{metrics}");
    let last =
        metrics.lines().find(|line| line.starts_with("annals_sync_seconds_bucket{le=\"+Inf\"}")).unwrap();
    assert_eq!(
        last.rsplit(' ').next().unwrap().parse::<f64>().unwrap(),
        syncs,
        "the last class has all: {metrics}"
    );
    assert!(metrics.ends_with("# EOF\n"));
}

#[test]
fn openapi_document_lists_exactly_the_existing_routes() {
    let api = TestApi::new();
    let document = api.json(200, "GET /openapi.json", Value::Null);
    let mut seen = 0;
    for (path, verbs) in document["paths"].as_object().unwrap() {
        for (verb, operation) in verbs.as_object().unwrap() {
            seen += 1;
            let id = operation["operationId"].as_str().unwrap();
            let path = path.replace("{run}", "none").replace("{seq}", "1").replace("{database}", "0");
            let path =
                path.replace("{key}", "k").replace("{id}", &"0".repeat(64)).replace("{replay}", "none");
            // A stream without an end answers a wrong query at once.
            let path = if id == "followRuns" { format!("{path}?wrong=1") } else { path };
            let answer = api.ask_with(&format!("{} {path}", verb.to_uppercase()), "", b"");
            assert!(
                answer.status != 405 && !answer.text().contains("openapi.json"),
                "{id}: {} {}",
                answer.status,
                answer.text()
            );
        }
    }
    let streams = super::bodies::DESCRIBED.len() + super::events::DESCRIBED.len();
    assert_eq!(
        seen,
        super::ROUTES.len() + streams + super::replays::DESCRIBED.len() + super::forks::DESCRIBED.len() + 10
    );
    // Every reference resolves.
    let text = document.to_string();
    for part in text.split("\"$ref\":\"#/components/schemas/").skip(1) {
        let name = part.split('"').next().unwrap();
        assert!(document["components"]["schemas"][name].is_object(), "{name}");
    }
    let _ = api.stop.send(true);
}

/// Regression: each chunk of a body took 1 KiB of the room for all bodies. 600 KB in one-byte chunks used it
/// up, and other clients got 503.
#[test]
fn one_byte_chunks_reserve_no_more_than_their_total_size() {
    let api = TestApi::new();
    let head = format!(
        "PUT /v1/databases/0/keys/k HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n",
        api.address
    );
    let chunks = b"1\r\nx\r\n".repeat(600_000);
    let put = api.raw(&[head.as_bytes(), &chunks, b"0\r\n\r\n"].concat());
    assert_eq!(put.status, 204, "{}", put.text());
    assert_eq!(api.ask("GET /v1/databases/0/keys/k", Value::Null).body, vec![b'x'; 600_000]);
}

/// Regression: a connection that requested much and read nothing was kept forever, with its response in
/// memory.
#[test]
fn client_that_reads_nothing_is_disconnected() {
    let api = TestApi::with_stall(true, Duration::from_millis(50));
    let long = vec![b'x'; 32 << 20];
    assert_eq!(api.ask_with("PUT /v1/databases/0/keys/k", "", &long).status, 204);
    api.await_ended(1);
    let mut deaf = TcpStream::connect(api.address).unwrap();
    let asked = format!("GET /v1/databases/0/keys/k HTTP/1.1\r\nhost: {}\r\n\r\n", api.address);
    deaf.write_all(asked.as_bytes()).unwrap();
    api.await_ended(2);
    let mut all = Vec::new();
    let _ = deaf.read_to_end(&mut all);
    assert!(all.len() < long.len(), "{} bytes", all.len());
}

/// Regression: every upload blocked one of 512 threads until it was complete. As many slow uploads blocked
/// all streams.
#[test]
fn slow_uploads_over_the_limit_get_503_with_retry_after() {
    let api = TestApi::new();
    let kept = api.ask_with("POST /v1/blobs", "", b"kept");
    let id = serde_json::from_slice::<Value>(&kept.body).unwrap()["id"].as_str().unwrap().to_owned();
    let asked = format!(
        "POST /v1/blobs HTTP/1.1\r\nhost: {}\r\nconnection: close\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n",
        api.address
    );
    let begin = || {
        let mut stream = TcpStream::connect(api.address).unwrap();
        stream.write_all(asked.as_bytes()).unwrap();
        let mut told = [0; 12];
        stream.read_exact(&mut told).unwrap();
        (stream, String::from_utf8(told.to_vec()).unwrap())
    };
    let mut slow: Vec<_> = (0..super::UPLOADS_MAX).map(|_| begin()).collect();
    assert!(slow.iter().all(|(_, told)| told == "HTTP/1.1 100"));
    slow.iter_mut().for_each(|(stream, _)| stream.write_all(b"x").unwrap());
    let refused = api.ask_with("POST /v1/blobs", "", b"late");
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{}", refused.text());
    assert_eq!(api.ask(&format!("GET /v1/blobs/{id}"), Value::Null).text(), "kept");
    for (mut stream, _) in slow {
        stream.write_all(b"y").unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).unwrap();
        assert!(all.contains("HTTP/1.1 201"), "{all}");
    }
    assert_eq!(api.ask_with("POST /v1/blobs", "", b"late").status, 201);
}

#[test]
fn ambiguous_or_oversized_heads_are_refused_and_disconnected() {
    let api = TestApi::new();
    let host = format!("host: {}\r\n", api.address);
    let two = format!("POST /v1/runs HTTP/1.1\r\n{host}content-length: 2\r\ncontent-length: 3\r\n\r\n{{}}");
    let flood = format!("GET /healthz HTTP/1.1\r\n{host}{}\r\n", "a: b\r\n".repeat(1000));
    let long = format!("GET /healthz HTTP/1.1\r\n{host}a: {}\r\n\r\n", "b".repeat(1_000_000));
    let folded = format!("GET /healthz HTTP/1.1\r\n{host}a: b\r\n c: d\r\n\r\n");
    let length = format!("POST /v1/runs HTTP/1.1\r\n{host}content-length: -1\r\n\r\n");
    for head in [&*two, &flood, &long, &folded, &length, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\0\0\0"] {
        let answer = api.raw(head.as_bytes());
        let text = String::from_utf8_lossy(&answer.body);
        assert!(
            answer.status == 0 || answer.status >= 400,
            "{}: {} {text}",
            &head[..60.min(head.len())],
            answer.status
        );
        assert!(!text.contains("HTTP/1.1"), "nothing behind it is answered: {text}");
    }
    // An announced length reserves nothing, and is refused before the body arrives.
    let announced =
        format!("PUT /v1/databases/0/keys/k HTTP/1.1\r\n{host}content-length: 2147483648\r\n\r\nx");
    assert_eq!(api.raw(announced.as_bytes()).status, 413);
    // A compressed body that expands far beyond its size.
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    (0..64).for_each(|_| packed.write_all(&vec![0; 1 << 20]).unwrap());
    let bomb = packed.finish().unwrap();
    assert!(bomb.len() < 100_000);
    let headers = "content-type: application/x-protobuf\r\ncontent-encoding: gzip\r\n";
    assert_eq!(api.ask_with("POST /v1/traces", headers, &bomb).status, 413);
    let deep = format!("{{\"resourceSpans\":{}1{}}}", "[".repeat(1_000_000), "]".repeat(1_000_000));
    for (path, kind) in [("/v1/traces", "application/json"), ("/v1/runs", "application/json")] {
        let answer =
            api.ask_with(&format!("POST {path}"), &format!("content-type: {kind}\r\n"), deep.as_bytes());
        assert!([400, 413].contains(&answer.status), "{path}: {}", answer.status);
    }
    let metadata = format!("{{\"metadata\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert!((200..500).contains(&api.ask_with("POST /v1/runs", "", metadata.as_bytes()).status));
}

/// Regression: a request waiting for frames continued after its token was revoked.
#[test]
fn waiting_request_fails_once_its_token_is_revoked() {
    let bench = DaemonBench::new();
    bench.daemon.access.add(token("reader", "default", Rights::READ));
    bench.client().bytes(b"run.begin name r\r\nframe.add r llm question answer\r\n");
    let grant = bench.daemon.login(b"reader", b"token", "test").unwrap();
    let mut session = Session::new(ClientInfo::default(), grant, false);
    let mut tail = || {
        let words = [&b"run.tail"[..], b"r"].map(<[u8]>::to_vec).to_vec();
        bench.runtime.block_on(perform(&bench.daemon, &mut session, words))
    };
    assert!(matches!(tail(), Reply::Array(frames) if frames.len() == 1));
    bench.daemon.access.remove("reader");
    assert_eq!(tail(), Reply::error("NOAUTH the token was revoked"));
}

#[test]
fn redacted_reader_gets_redacted_bodies() {
    let api = TestApi::with(false);
    let reader = token("reader", "default", Rights::REDACTED);
    api.bench.daemon.access.add(reader);
    let mut owner = api.bench.client();
    let answer = format!("{}b@example.com.", "word ".repeat(1000));
    owner.bytes(b"run.begin name r\r\n");
    owner.bytes(format!("frame.add r llm '{{\"to\":\"b@example.com\"}}' '{answer}'\r\n").as_bytes());
    let get = |path: &str, headers: &str| {
        api.ask_with(&format!("GET {path}"), &format!("authorization: Bearer token\r\n{headers}"), b"")
    };
    let path = "/v1/runs/r/frames/1/response";
    let whole = get(path, "");
    assert_eq!(whole.status, 200, "{}", whole.text());
    assert_eq!(whole.header("annals-redacted"), Some("safe"));
    assert!(whole.text().ends_with("].") && whole.text().contains("[email:"), "{}", whole.text());
    assert_eq!(whole.header("content-length"), Some(whole.body.len().to_string().as_str()));
    // Neither the tag nor a header reveals the stored hash.
    let stored = blake3::hash(answer.as_bytes()).to_hex().to_string();
    let tag = whole.header("etag").unwrap().to_owned();
    assert!(!whole.head.contains(&stored), "{}", whole.head);
    assert_eq!(get(path, &format!("if-none-match: {tag}\r\n")).status, 304);
    let part = get(path, "range: bytes=4990-\r\n");
    assert_eq!((part.status, part.body.as_slice()), (206, &whole.body[4990..]));
    assert_eq!(part.header("annals-redacted"), Some("safe"));
    let frame = get("/v1/runs/r/frames/1", "");
    let frame: Value = serde_json::from_slice(&frame.body).unwrap();
    assert_eq!((&frame["redacted"], &frame["profile"]), (&json!(true), &json!("safe")));
    assert!(frame["request"].as_str().unwrap().starts_with("{\"to\":\"[email:"), "{frame}");
    assert!(frame.get("response_id").is_none() && frame.get("link").is_none());
    for refused in [format!("/v1/blobs/{stored}"), "/v1/databases/0/keys/k".to_owned()] {
        assert_eq!(get(&refused, "").status, 403, "{refused}");
    }
}

#[test]
fn memory_is_recalled_across_conversations_over_http() {
    let api = TestApi::new();
    // The snapshot as raw text, which no parsed value of the test may alter.
    let body = format!(
        "{{\"tenant\":\"lending\",\"conversation\":\"app-42\",\"embed\":true,\"entries\":[{MONDAY}]}}"
    );
    let kept = api.ask_with("POST /v1/memory/entries", "", body.as_bytes());
    assert_eq!((kept.status, kept.text().as_str()), (200, "{\"ids\":[\"snap-1\"]}\n"));
    let ask = |tenant: &str, across: bool| {
        let asked = json!({ "question": QUESTION, "tenant": tenant, "conversation": "app-42-followup", "across": across, "projection": "decisions" });
        api.ask("POST /v1/memory/search", asked)
    };
    for (tenant, across) in [("lending", false), ("other", true), ("lending/_", true)] {
        assert_eq!(ask(tenant, across).text(), "{\"hits\":[],\"text\":\"\"}\n", "{tenant} {across}");
    }
    let found = ask("lending", true);
    assert!(found.text().contains(&format!("\"value\":{MONDAY},")), "{}", found.text());
    let found: Value = serde_json::from_slice(&found.body).unwrap();
    let hit = &found["hits"][0];
    assert_eq!((&hit["id"], &hit["identity"]), (&json!("snap-1"), &json!("lending/_/app-42")));
    let score = hit["score"].as_f64().unwrap() as f32;
    let text = annals_memory::render(MONDAY, annals_memory::Projection::Decisions, score).unwrap();
    let when = hit["decided_at"].as_str().unwrap();
    assert_eq!(found["text"], format!("{text}\ndecided at {when}"));
    let entry = &hit["entry"];
    assert_eq!(
        (&entry["embeddingModel"], &entry["createdAt"]),
        (&json!("annals-words-1"), &hit["decided_ms"])
    );
}

#[test]
fn search_by_meaning_names_runs_and_embedder() {
    let api = TestApi::new();
    let entry = json!({
        "id": "run-loan", "value": { "query": "Why was the mortgage rejected?", "finalContent": "The credit is low." },
        "metadata": { "run": "loan", "frame": 2, "status": "failed" }, "createdAt": 5,
    });
    api.json(200, "POST /v1/memory/entries", json!({ "entries": [entry], "embed": true, "tenant": "bank" }));
    let asked = "GET /v1/search?q=was%20the%20mortgage%20rejected&by=meaning&count=5";
    let found = api.json(200, asked, Value::Null);
    assert_eq!(found["embedder"], "annals-words-1");
    let mut hit = found["hits"][0].clone();
    assert!(hit["score"].as_f64().unwrap() > 0.9, "{hit}");
    hit.as_object_mut().unwrap().remove("score");
    let expected = json!({
        "run": "loan", "gone": true, "identity": "bank/_/_", "ended_ms": 5, "status": "failed", "what_if": false,
        "seq": 2, "question": "Why was the mortgage rejected?", "answer": "The credit is low.", "others": [],
    });
    assert_eq!(hit, expected);
    let problem = api.json(400, "GET /v1/search?q=x&by=sound", Value::Null);
    assert!(problem["detail"].as_str().unwrap().contains("BY MEANING"), "{problem}");
}

/// Every operation of agentfootprint's memory store.
#[test]
fn memory_routes_cover_every_store_operation() {
    let api = TestApi::new();
    let who = "tenant=t%2F1&conversation=c%20%C3%A9";
    let with = |mut body: Value| {
        body["tenant"] = json!("t/1");
        body["conversation"] = json!("c \u{e9}");
        body
    };
    let entry = |id: &str, version: u64| json!({ "id": id, "value": { "n": version }, "version": version, "updatedAt": version, "embedding": [1, version], "tier": "hot" });
    let all: Vec<Value> = (1..=3).map(|n| entry(&format!("../{n}"), n)).collect();
    assert_eq!(
        api.json(200, "POST /v1/memory/entries", with(json!({ "entries": all }))),
        json!({ "ids": ["../1", "../2", "../3"] })
    );
    let page = api.json(200, &format!("GET /v1/memory/entries?limit=2&tiers=hot,cold&{who}"), Value::Null);
    assert_eq!(page, json!({ "cursor": "2", "entries": [all[2], all[1]] }));
    let page = api.json(200, &format!("GET /v1/memory/entries?cursor=2&{who}"), Value::Null);
    assert_eq!(page, json!({ "cursor": "0", "entries": [all[0]] }));
    let get =
        |status, id: &str| api.json(status, &format!("GET /v1/memory/entry?id={id}&{who}"), Value::Null);
    assert_eq!(get(200, "..%2F1")["accessCount"], 1);
    assert_eq!(get(404, "none")["code"], "NOTFOUND");
    assert_eq!(api.json(404, "GET /v1/memory/entry?id=..%2F1", Value::Null)["code"], "NOTFOUND");
    let search = |more: Value| {
        let mut body = with(json!({ "vector": [1, 3] }));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        api.json(200, "POST /v1/memory/search", body)["hits"].clone()
    };
    let hits = search(json!({ "k": 2, "min_score": 0.9, "embedder": null, "tiers": [] }));
    assert_eq!(
        (hits.as_array().unwrap().len(), &hits[0]["score"], &hits[0]["entry"]),
        (2, &json!(1.0), &all[2])
    );
    assert_eq!(search(json!({ "tiers": ["cold"] })), json!([]));
    let put_if = |version: u64, over: u64| {
        api.json(
            200,
            "POST /v1/memory/putif",
            with(json!({ "entry": entry("../1", version), "version": over })),
        )
    };
    assert_eq!(put_if(2, 5), json!({ "applied": false, "version": 1 }));
    assert_eq!(put_if(2, 1), json!({ "applied": true, "version": null }));
    let feedback = format!("GET /v1/memory/feedback?id=..%2F1&{who}");
    assert_eq!(api.json(200, &feedback, Value::Null), Value::Null);
    for usefulness in [json!(0.5), json!(-2), json!(1e300)] {
        api.json(204, "POST /v1/memory/feedback", with(json!({ "id": "../1", "usefulness": usefulness })));
    }
    assert_eq!(api.json(200, &feedback, Value::Null)["count"], 3);
    let seen =
        || api.json(200, &format!("GET /v1/memory/seen?signature=a%20b&{who}"), Value::Null)["seen"].clone();
    assert_eq!(seen(), false);
    api.json(204, "POST /v1/memory/seen", with(json!({ "signature": "a b" })));
    assert_eq!(seen(), true);
    for _ in 0..2 {
        api.json(204, &format!("DELETE /v1/memory/entry?id=..%2F1&{who}"), Value::Null);
    }
    assert_eq!(api.json(200, &feedback, Value::Null), Value::Null);
    assert_eq!(api.json(200, "POST /v1/memory/forget", with(json!({}))), json!({ "forgotten": 2 }));
    assert_eq!(seen(), false);
    for (body, why) in [
        (json!({ "entries": [] }), "holds something"),
        (json!({ "entries": {} }), "an array"),
        (json!({ "entries": [{ "id": "a" }] }), "must have a value"),
        (json!({ "entries": [{ "id": "a", "value": 1, "embedding": [1e39] }] }), "not finite"),
        (json!({ "entries": [{ "id": "a", "value": 1 }], "namespace": "x" }), "\"namespace\""),
    ] {
        let problem = api.json(400, "POST /v1/memory/entries", body);
        assert!(problem["detail"].as_str().unwrap().contains(why), "{problem}");
    }
    for (body, why) in [
        (json!({}), "QUESTION"),
        (json!({ "vector": "x" }), "array of numbers"),
        (json!({ "vector": [1], "question": "x" }), "syntax"),
        (json!({ "vector": [0.0] }), "zeros"),
        (json!({ "question": "x", "projection": "all" }), "projection"),
    ] {
        let problem = api.json(400, "POST /v1/memory/search", body);
        assert!(problem["detail"].as_str().unwrap().contains(why), "{problem}");
    }
}

/// Diagnostics over HTTP: what the commands do, with a status of 200 for a failure unless `strict` is given.
#[test]
fn diagnostics_routes_record_and_answer() {
    let api = TestApi::new();
    let get = |path: &str| api.json(200, &format!("GET /v1/diagnostics/{path}"), Value::Null);
    let record = |status, body: Value| api.json(status, "POST /v1/diagnostics/sessions", body);
    let session = |id: &str| json!({ "sessionId": id, "outcome": "rejected", "orgId": "o", "injectedObservationIds": ["a b", "a b", "a b"] });
    api.json(
        204,
        "POST /v1/diagnostics/injections",
        json!({ "injection": { "sessionId": "s", "graphEntityIds": ["n"] } }),
    );
    let report = record(200, json!({ "session": session("s"), "ttl_ms": 100_000_000 }));
    assert_eq!((&report["aggressiveDownweightApplied"], &report["graph"]["nodes"]), (&json!(1), &json!(1)));
    let bad = json!({ "session": { "sessionId": "t" } });
    let told = record(200, bad.clone());
    assert!(told["failures"][0].as_str().unwrap().contains("missing field `outcome`"), "{told}");
    let strict = record(400, json!({ "session": { "sessionId": "t" }, "strict": true }));
    assert!(strict["detail"].as_str().unwrap().contains("missing field `outcome`"), "{strict}");
    let dry = record(200, json!({ "session": session("dry"), "dry_run": true }));
    assert_eq!(dry["failureCategory"], "incomplete");
    assert_eq!(get("misleading?org=o&since=1"), json!({ "observations": ["a b"] }));
    assert_eq!(get("misleading?project=p"), json!({ "observations": [] }));
    assert_eq!(get("distribution")["incomplete"], 1);
    assert_eq!(get("distribution?since=99999999999999")["incomplete"], 0);
    assert_eq!(get("weight?observation=a%20b"), json!({ "weight": 0.7 }));
    assert_eq!(get("history?observation=a%20b")["changes"][0]["alpha"], 0.3);
    assert_eq!(get("audit?count=5")["events"][0]["metadata"]["aggressiveDownweight"], true);
    assert_eq!(get("retrievals?session=s"), json!({ "candidates": [] }));
    assert_eq!(get("session?id=s")["orgId"], "o");
    assert_eq!(api.json(404, "GET /v1/diagnostics/session?id=dry", Value::Null)["code"], "NOTFOUND");
    let off = api.json(200, "POST /v1/diagnostics/weighting", json!({ "state": "off", "org": "o" }));
    assert_eq!((off, get("weighting?org=o")), (json!({ "enabled": false }), json!({ "enabled": false })));
    assert_eq!(get("weighting"), json!({ "enabled": true }));
}

/// Regression: after a failed write, nothing told a client that it reads an older state than it wrote.
#[test]
fn responses_after_a_failed_write_name_the_last_commit() {
    let (bench, sim) = prepared();
    let api = TestApi::of(bench, true, super::STALL);
    let key = "/v1/databases/0/keys/k";
    let put = |value: &[u8]| api.ask_with(&format!("PUT {key}"), "", value);
    assert_eq!((put(b"2").status, put(b"2").header("annals-as-of")), (204, None));
    let seqno = api.bench.daemon.store.seqno().to_string();
    sim.fail(FailRule::eio(OpKind::Sync).on("s/segments"));
    let failed = put(b"3");
    assert!(failed.status == 503 && failed.text().contains("os error 5"), "{failed:?}");
    for (request, status) in [
        (format!("GET {key}"), 200),
        ("GET /v1/runs/done/frames/1/response".to_owned(), 200),
        ("GET /v1/runs".to_owned(), 200),
        ("GET /readyz".to_owned(), 503),
        ("GET /metrics".to_owned(), 200),
        (format!("PUT {key}"), 503),
        (format!("DELETE {key}"), 503),
        ("POST /v1/blobs".to_owned(), 503),
        ("POST /v1/runs/r/frames/2/response".to_owned(), 503),
    ] {
        let answer = api.ask_with(&request, "", b"");
        assert_eq!((answer.status, answer.header("annals-as-of")), (status, Some(&*seqno)), "{request}");
    }
    assert_eq!(api.ask(&format!("GET {key}"), Value::Null).text(), "2");
    let traces = api.ask_with("POST /v1/traces", "content-type: application/json\r\n", b"{}");
    assert_eq!(traces.status, 503, "{traces:?}");
    let proxied = api.ask_with("POST /proxy/r/openai/v1/chat/completions", "", b"{}");
    assert!(proxied.status == 503 && proxied.text().contains("os error 5"), "{proxied:?}");
}

/// The report of a drop over HTTP said nothing of the backups that still had the run.
#[test]
fn forgetting_over_http_names_remaining_holders() {
    let api = TestApi::new();
    api.json(201, "POST /v1/runs", json!({ "name": "r" }));
    api.json(201, "POST /v1/runs/r/frames", json!({ "component": "llm", "request": "q", "response": "a" }));
    assert!(api.ask("POST /v1/runs/r/end", json!({ "status": "ok" })).status < 300);
    let id = blake3::hash(b"a").to_hex().to_string();
    assert_eq!(api.ask_with("POST /v1/blobs", "", b"a").status, 201);
    api.bench.daemon.store.note_backup("/backups/one").unwrap();
    let used = api.ask(&format!("POST /v1/blobs/{id}/forget"), json!({ "why": "asked" }));
    assert!(used.status == 409 && used.text().contains("frame 1 of run"), "{}", used.text());
    let report = |request: &str| {
        let answer = api.ask(request, json!({ "why": "asked" }));
        assert_eq!(answer.status, 200, "{request}: {}", answer.text());
        serde_json::from_slice::<Value>(&answer.body).unwrap()
    };
    let dropped = report("POST /v1/runs/r/drop");
    assert_eq!(dropped["held"]["backups"], json!(["/backups/one"]));
    assert_eq!((&dropped["held"]["segments"], &dropped["held"]["shared_by_forks"]), (&json!([]), &json!(0)));
    assert_eq!(api.ask("GET /v1/runs/r", Value::Null).status, 410);
    let forgotten = report(&format!("POST /v1/blobs/{id}/forget"));
    assert_eq!((&forgotten["forgotten"], &forgotten["held"]["shared"]), (&json!("blob"), &json!([])));
    assert_eq!(api.ask(&format!("GET /v1/blobs/{id}"), Value::Null).status, 404);
    assert_eq!(api.ask_with("PUT /v1/databases/4/keys/person", "", b"secret").status, 204);
    let forgotten = report("POST /v1/databases/4/keys/person/forget");
    assert_eq!((&forgotten["records"], &forgotten["held"]["backups"]), (&json!(2), &json!(["/backups/one"])));
    assert_eq!(api.ask("GET /v1/databases/4/keys/person", Value::Null).status, 404);
    assert_eq!(api.ask("POST /v1/databases/4/keys/person/forget", json!({ "why": "x" })).status, 404);
    assert_eq!(api.ask("POST /v1/databases/4/keys/person/forget", json!({ "why": "" })).status, 400);
    api.json(200, "POST /v1/store/compact", json!({ "now": true }));
}

#[test]
fn frame_view_and_timeline_are_read_over_http() {
    let api = TestApi::new();
    api.json(201, "POST /v1/runs", json!({ "name": "r" }));
    let request = json!({ "messages": [{ "role": "user", "content": "<b>q</b>" }] }).to_string();
    let answer = json!({ "role": "assistant", "content": "a" }).to_string();
    let frame = json!({ "component": "llm", "request": request, "response": answer, "duration_ns": 5 });
    api.json(201, "POST /v1/runs/r/frames", frame.clone());
    api.json(201, "POST /v1/runs/r/frames", frame);
    let view = api.json(200, "GET /v1/runs/r/frames/2/view", Value::Null);
    assert_eq!((&view["before"]["messages"], view["messages"].as_array().unwrap().len()), (&json!(1), 0));
    let view = api.json(200, "GET /v1/runs/r/frames/2/view?all=true&text_max=4", Value::Null);
    assert_eq!(
        view["messages"][0]["parts"][0],
        json!({ "type": "text", "text": "<b>q", "bytes": 8, "cut": true })
    );
    assert_eq!(view["answer"][0]["parts"][0]["text"], "a");
    assert!(view["began_ns"].is_string());
    api.json(400, "GET /v1/runs/r/frames/2/view?all=yes", Value::Null);
    api.json(404, "GET /v1/runs/r/frames/9/view", Value::Null);
    let rows = api.json(200, "GET /v1/runs/r/timeline?from=1&limit=1", Value::Null);
    assert_eq!(
        (&rows["next"], &rows["total"], &rows["frames"][0]["kind"]),
        (&json!(2), &json!(2), &json!("llm"))
    );
}
