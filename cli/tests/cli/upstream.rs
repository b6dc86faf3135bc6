//! A scripted model provider for tests: plain HTTP/1.1 on a free loopback port, with the standard library
//! only.
//!
//! Its answers depend on the path and on the number of earlier requests. A replay that reached it would get
//! different answers.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(crate) struct FakeUpstream {
    pub(crate) url: String,
    asked: Arc<AtomicU64>,
}

impl FakeUpstream {
    /// Listens until the test process ends.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(AtomicU64::new(0));
        let count = asked.clone();
        let accept = move || {
            for stream in listener.incoming() {
                let (stream, count) = (stream.unwrap(), count.clone());
                std::thread::Builder::new().spawn(move || serve(stream, &count)).unwrap();
            }
        };
        std::thread::Builder::new().spawn(accept).unwrap();
        Self { url, asked }
    }

    /// Number of requests so far.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }
}

struct UpstreamRequest {
    path: String,
    body: Vec<u8>,
}

/// Returns `None` if the client has disconnected.
fn read(from: &mut impl BufRead) -> Option<UpstreamRequest> {
    let mut line = String::new();
    from.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let path = line.split_whitespace().nth(1)?.to_owned();
    let (mut length, mut chunked) = (0, false);
    loop {
        let mut header = String::new();
        from.read_line(&mut header).ok().filter(|read| *read > 0)?;
        let header = header.trim().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        chunked |= header.starts_with("transfer-encoding: chunked");
    }
    assert!(!chunked, "the proxy sends whole bodies");
    let mut body = vec![0; length];
    from.read_exact(&mut body).ok()?;
    Some(UpstreamRequest { path, body })
}

fn serve(stream: TcpStream, asked: &AtomicU64) {
    let mut from = BufReader::new(stream.try_clone().unwrap());
    let mut to = stream;
    while let Some(request) = read(&mut from) {
        let number = asked.fetch_add(1, Ordering::SeqCst) + 1;
        // Some tests disconnect their clients on purpose.
        if answer(&mut to, &request, number).is_err() {
            return;
        }
    }
}

fn whole(to: &mut TcpStream, status: &str, headers: &str, body: &[u8]) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\n{headers}x-answer: {}\r\ncontent-length: {}\r\n\r\n",
        body.len() * 3,
        body.len()
    );
    to.write_all(&[head.as_bytes(), body].concat())
}

fn answer(to: &mut TcpStream, request: &UpstreamRequest, number: u64) -> std::io::Result<()> {
    let json = "content-type: application/json\r\n";
    let body: serde_json::Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let path = request.path.split('?').next().unwrap_or_default();
    if let Some(ms) = body["wait_ms"].as_u64() {
        std::thread::sleep(Duration::from_millis(ms));
    }
    match path {
        "/v1/chat/completions" if body["tools"].is_array() => loan(to, &body),
        "/v1/messages" => loan_claude(to, &body),
        "/v1/chat/completions" if body["stream"] == true => stream(to, &body, number),
        "/v1/chat/completions" => {
            let last = body["messages"].as_array().and_then(|all| all.last()).cloned().unwrap_or_default();
            let said = format!("{number}: you said {}", last["content"]);
            let answer = serde_json::json!({
                "id": format!("chatcmpl-{number}"), "object": "chat.completion", "created": 1_700_000_000 + number,
                "model": body["model"],
                "choices": [{ "index": 0, "message": { "role": "assistant", "content": said }, "finish_reason": "stop" }],
                "usage": { "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15 },
            });
            whole(to, "200 OK", json, answer.to_string().as_bytes())
        }
        // A judge that always names frame 2.
        "/judge/chat/completions" => {
            let said = r#"{"seq": 2, "why": "it guesses the year"}"#;
            let answer = serde_json::json!({ "choices": [{ "message": { "content": said } }] });
            whole(to, "200 OK", json, answer.to_string().as_bytes())
        }
        // A vector for each text: the counts of its letters.
        "/v1/embeddings" => {
            let texts = body["input"].as_array().cloned().unwrap_or_default();
            let vector = |text: &serde_json::Value| {
                let mut vector = [0; 32];
                text.as_str()
                    .unwrap_or_default()
                    .bytes()
                    .for_each(|byte| vector[usize::from(byte % 32)] += 1);
                vector
            };
            let data = texts
                .iter()
                .zip(0..)
                .map(|(text, index)| serde_json::json!({ "index": index, "embedding": vector(text) }));
            let answer = serde_json::json!({ "model": body["model"], "data": data.collect::<Vec<_>>() });
            whole(to, "200 OK", json, answer.to_string().as_bytes())
        }
        "/v1/limited" => {
            let headers = format!("{json}retry-after: 7\r\nx-ratelimit-remaining-tokens: 0\r\n");
            whole(to, "429 Too Many Requests", &headers, br#"{"error":{"message":"slow down"}}"#)
        }
        "/v1/binary" => {
            let bytes: Vec<u8> = (0..=255).cycle().skip(number as usize % 7).take(70_000).collect();
            whole(to, "200 OK", "content-type: audio/mpeg\r\ncontent-encoding: br\r\n", &bytes)
        }
        "/v1/empty" => to.write_all(b"HTTP/1.1 204 No Content\r\nx-odd: caf\xe9\r\n\r\n"),
        // The answer to HEAD has the length that GET would send, and no body.
        "/v1/empty/head" => to.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1234\r\n\r\n"),
        // Malformed events: no colon, no end, no UTF-8, truncated JSON.
        "/v1/garbled" => {
            let events = b"data: {\"choices\": [\n\nnonsense\r\rdata\n\n\xff\xfe: x\n\ndata: {\"usage\":\"no\"}\n\ndata: [DO";
            whole(to, "200 OK", "content-type: text/event-stream\r\n", events)
        }
        "/v1/broken" => {
            to.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nhalf of it")?;
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        path => whole(to, "200 OK", "content-type: text/plain\r\n", format!("{number} {path}").as_bytes()),
    }
}

/// The final text of a loan decision.
pub(crate) const REJECTED: &str =
    "Application #42: REJECTED. Credit (580) below floor (600). Suggest manual review.";

/// Requests a look-up of the credit score, then decides.
fn loan(to: &mut TcpStream, body: &serde_json::Value) -> std::io::Result<()> {
    let decides = body["messages"].as_array().is_some_and(|all| all.iter().any(|one| one["role"] == "tool"));
    let call = serde_json::json!({ "index": 0, "id": "call_1", "type": "function",
        "function": { "name": "lookupCreditBureau", "arguments": "{\"applicationId\":\"42\"}" } });
    let message = match decides {
        true => serde_json::json!({ "role": "assistant", "content": REJECTED }),
        false => serde_json::json!({ "role": "assistant", "content": null, "tool_calls": [call] }),
    };
    let (input, output) = if decides { (700, 100) } else { (500, 80) };
    let usage = serde_json::json!({ "prompt_tokens": input, "completion_tokens": output });
    let finish = if decides { "stop" } else { "tool_calls" };
    if body["stream"] != true {
        let answer = serde_json::json!({ "id": "l", "model": "m-1", "usage": usage,
            "choices": [{ "index": 0, "message": message, "finish_reason": finish }] });
        return whole(to, "200 OK", "content-type: application/json\r\n", answer.to_string().as_bytes());
    }
    let choices = serde_json::json!([{ "index": 0, "delta": message, "finish_reason": finish }]);
    let events = [
        serde_json::json!({ "id": "l", "model": "m-1", "choices": choices }),
        serde_json::json!({ "id": "l", "model": "m-1", "choices": [], "usage": usage }),
    ];
    let events: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    whole(to, "200 OK", "content-type: text/event-stream\r\n", (events + "data: [DONE]\n\n").as_bytes())
}

/// The same decision in Anthropic's events.
fn loan_claude(to: &mut TcpStream, body: &serde_json::Value) -> std::io::Result<()> {
    let decides = body["messages"].as_array().is_some_and(|all| all.len() > 1);
    let (input, output) = if decides { (700, 100) } else { (500, 80) };
    let (block, delta) = match decides {
        true => (
            serde_json::json!({ "type": "text", "text": "" }),
            serde_json::json!({ "type": "text_delta", "text": REJECTED }),
        ),
        false => (
            serde_json::json!({ "type": "tool_use", "id": "toolu_1", "name": "lookupCreditBureau", "input": {} }),
            serde_json::json!({ "type": "input_json_delta", "partial_json": "{\"applicationId\":\"42\"}" }),
        ),
    };
    let message = serde_json::json!({ "id": "m", "model": "c-1", "usage": { "input_tokens": input, "output_tokens": 1 } });
    let events = [
        serde_json::json!({ "type": "message_start", "message": message }),
        serde_json::json!({ "type": "content_block_start", "index": 0, "content_block": block }),
        serde_json::json!({ "type": "content_block_delta", "index": 0, "delta": delta }),
        serde_json::json!({ "type": "content_block_stop", "index": 0 }),
        serde_json::json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" }, "usage": { "output_tokens": output } }),
        serde_json::json!({ "type": "message_stop" }),
    ];
    let event = |event: &serde_json::Value| {
        format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default())
    };
    let events: String = events.iter().map(event).collect();
    whole(to, "200 OK", "content-type: text/event-stream\r\n", events.as_bytes())
}

/// A stream whose events do not end at chunk boundaries.
fn stream(to: &mut TcpStream, body: &serde_json::Value, number: u64) -> std::io::Result<()> {
    to.write_all(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
    )?;
    let mut events = ": ping\n\n".to_owned();
    let number = format!(" {number}");
    // Repeats the last message, with the requested number of bytes at a time.
    let told =
        body["messages"].as_array().and_then(|all| all.last()?["content"].as_str()).unwrap_or_default();
    let pieces = body["spell"].as_u64().map(|step| told.as_bytes().chunks(step as usize));
    let spelt: Option<Vec<_>> = pieces.map(|all| all.map(String::from_utf8_lossy).collect());
    for word in spelt.unwrap_or_else(|| vec!["h\u{e9}".into(), "llo".into(), number.into()]) {
        let delta = serde_json::json!({ "id": "s", "object": "chat.completion.chunk", "created": 1, "model": body["model"],
            "choices": [{ "index": 0, "delta": { "content": word }, "finish_reason": null }] });
        events += &format!("data: {delta}\n\n");
    }
    events += "data: [DONE]\n\n";
    let pause = Duration::from_millis(body["pause_ms"].as_u64().unwrap_or(1));
    for part in events.as_bytes().chunks(37) {
        write!(to, "{:x}\r\n", part.len())?;
        to.write_all(&[part, b"\r\n"].concat())?;
        std::thread::sleep(pause);
    }
    to.write_all(b"0\r\n\r\n")
}
