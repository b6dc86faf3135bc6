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

use super::messages::parts;
use super::{ExchangeSummary, MessageView, ModelApi, WireExchange, recognise, summary};

/// The interface behind a path of its provider.
fn api(path: &str) -> ModelApi {
    recognise("POST", path, "127.0.0.1:9")
}

fn messages(api: &ModelApi, body: &[u8]) -> Vec<MessageView> {
    parts(api, body).into_iter().map(|part| part.view).collect()
}

/// An exchange with JSON; an answer that does not begin like JSON is sent as events.
fn read(path: &str, request: &str, status: u16, response: &str) -> ExchangeSummary {
    let kind = if response.starts_with(['{', '[']) {
        "application/json"
    } else {
        "text/event-stream; charset=utf-8"
    };
    read_bytes(path, request, status, kind, response.as_bytes())
}

fn read_bytes(path: &str, request: &str, status: u16, kind: &str, response: &[u8]) -> ExchangeSummary {
    let api = api(path);
    summary(&WireExchange {
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
fn calls(summary: &ExchangeSummary) -> Vec<(&str, &str, &str)> {
    summary
        .tool_calls
        .iter()
        .map(|call| (call.id.as_str(), call.name.as_str(), call.arguments.head()))
        .collect()
}
