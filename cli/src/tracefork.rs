//! Makes frames of a tracefork tape.
//!
//! An exchange becomes an `llm` frame as `annals record` writes it, so that a replay can answer the program
//! from it. Its path is the usual path for bodies of this shape, and its status is 200, as tracefork itself
//! answers. A draw is a `nondet` frame, a tool's exchange a `tool` frame.

use annals::replay::matching::CallHash;
use annals::{Component, Frame, kv::Content};
use annals_server::{ExchangeMetadata, Headers, HttpExchange, Mounts, Origin, Variable, VolatileExchange};
use serde_json::{Map, Value, json};

use annals_formats::tracefork::{TapeEvent, TapeRefusal, TraceforkTape};

/// What is recorded of a tape.
#[derive(Debug)]
pub(crate) struct TraceforkRecording {
    pub(crate) digest: String,
    pub(crate) metadata: Vec<u8>,
    pub(crate) frames: Vec<Frame>,
}

impl TraceforkRecording {
    pub(crate) fn from_tape(tape: &TraceforkTape) -> Result<Self, TapeRefusal> {
        // No secret: a tape of tracefork holds the requests themselves. The same tape gives the same run.
        let key = tape.digest();
        let digest = annals_text::hex::encode(&key);
        let mounts = Mounts::new(&Variable::known(), &[], |_| None).map_err(|error| error.to_string())?;
        let origin = Origin {
            masked: Vec::new(),
            altered: Vec::new(),
            stdin: None,
            argv: Vec::new(),
            directory: String::new(),
            revision: None,
            environment: std::collections::BTreeMap::new(),
            mounts,
            key: digest.clone(),
            captured: false,
            secrets: Vec::new(),
            rules: String::new(),
        };
        let metadata = json!({
            "program": origin,
            "tracefork": {
                "digest": digest, "agent_name": tape.agent_name, "boundary": tape.boundary,
                "content_redacted": tape.content_redacted, "async_batches": tape.async_batches,
            },
        });
        let frames = tape.events.iter().map(|event| frame(event, &key)).collect();
        Ok(Self { digest, metadata: metadata.to_string().into_bytes(), frames })
    }
}

fn frame(event: &TapeEvent, key: &[u8; 32]) -> Frame {
    match event {
        TapeEvent::Draw(kind, value) => {
            let metadata = json!({ "draws": 1, "tracefork": kind });
            let line = format!("{kind} {value}\n");
            Frame::new(Component::Nondet, "", line).metadata(metadata.to_string())
        }
        TapeEvent::Tool(request, answer) => {
            Frame::new(Component::Tool, Content::Bytes(request.clone()), Content::Bytes(answer.clone()))
        }
        TapeEvent::Exchange(request, answer) => {
            let exchange = exchange(request, answer, key);
            let metadata = serde_json::to_vec(&exchange).unwrap_or_default();
            let (request, answer) = (Content::Bytes(request.clone()), Content::Bytes(answer.clone()));
            Frame::new(Component::Llm, request, answer).metadata(metadata)
        }
    }
}

fn exchange(request: &[u8], answer: &[u8], key: &[u8; 32]) -> ExchangeMetadata {
    let (mount, path) = guess_endpoint(request);
    let streamed =
        [&b"data:"[..], b"event:", b":", b"id:", b"retry:"].iter().any(|head| answer.starts_with(head));
    let kind = if streamed { "text/event-stream" } else { "application/json" };
    let (mount, path) = (mount.to_owned(), path.to_owned());
    let method = "POST".to_owned();
    let http = HttpExchange { mount, method, path, query: None, status: Some(200), broken: None };
    let asked = annals_text::hex::encode(&CallHash::new(key, &http.call(), request).0);
    let volatile = VolatileExchange {
        asked,
        response_headers: Headers(vec![("content-type".to_owned(), kind.to_owned())]),
        part_bytes: vec![answer.len() as u64],
        part_ms: vec![0],
        ..VolatileExchange::default()
    };
    let mut summary = Map::new();
    if let Some(model) =
        serde_json::from_slice::<Value>(request).ok().and_then(|body| body.get("model").cloned())
    {
        summary.insert("model".to_owned(), model);
    }
    ExchangeMetadata { http, summary, volatile }
}

/// Where a request of this shape is asked. tracefork began with Anthropic's interface: what is unclear is that.
fn guess_endpoint(request: &[u8]) -> (&'static str, &'static str) {
    let body: Value = serde_json::from_slice(request).unwrap_or_default();
    let has = |key: &str| body.get(key).is_some();
    if has("contents") {
        return ("gemini", "/v1beta/models");
    }
    if has("input") && !has("messages") {
        return ("openai", "/v1/responses");
    }
    let openai = body.get("model").and_then(Value::as_str).is_some_and(|model| !model.contains("claude"));
    let roles = body.get("messages").and_then(Value::as_array);
    let system = roles.is_some_and(|all| all.iter().any(|message| message["role"] == "system"));
    if has("messages") && (system || openai) {
        ("openai", "/v1/chat/completions")
    } else {
        ("anthropic", "/v1/messages")
    }
}
