//! Exchanges written by hand after the providers' documentation: plain, streamed, failed, cut.

mod anthropic;
mod bedrock;
mod gemini;
mod hostile;
mod meaning;
mod mutated;
mod openai;
mod requests;
mod severity;

use super::{Api, Exchange, Summary, recognise, summary};

/// The interface behind a path of its provider.
fn api(path: &str) -> Api {
    recognise("POST", path, "127.0.0.1:9")
}

/// An exchange with JSON; an answer that does not begin like JSON is sent as events.
fn read(path: &str, request: &str, status: u16, response: &str) -> Summary {
    let kind = if response.starts_with(['{', '[']) {
        "application/json"
    } else {
        "text/event-stream; charset=utf-8"
    };
    read_bytes(path, request, status, kind, response.as_bytes())
}

fn read_bytes(path: &str, request: &str, status: u16, kind: &str, response: &[u8]) -> Summary {
    let api = api(path);
    summary(&Exchange {
        api: &api,
        request: request.as_bytes(),
        request_encoding: None,
        status,
        content_type: Some(kind),
        content_encoding: None,
        response,
    })
}

/// Ids, names and arguments of an answer's tool calls.
fn calls(summary: &Summary) -> Vec<(&str, &str, &str)> {
    summary
        .tool_calls
        .iter()
        .map(|call| (call.id.as_str(), call.name.as_str(), call.arguments.head()))
        .collect()
}
