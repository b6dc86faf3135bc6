//! What the calls of a run said, one after the other.

use annals::{Component, RecordedFrame};
use annals_memory::Memory;
use memchr::memmem;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::snapshot::{Snapshot, ToolCall, arguments, preview};
use crate::providers::{self, Api, DECODED_BYTES_MAX, Shape, decode, question, recognise, tool_results};
use crate::proxy::Exchange;

/// Bytes of the question and of the answer that are kept.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// Tool calls and decisions that are kept: the first ones.
const TOOL_CALLS_MAX: usize = 4096;
const DECISIONS_MAX: usize = 4096;
/// Bytes of all decisions together.
const DECISIONS_BYTES_MAX: usize = 16 << 20;
/// Bytes of texts that tell of what is remembered.
const TELLINGS_BYTES_MAX: usize = 1 << 20;
/// Bytes of a result that are looked at.
const RESULT_BYTES_MAX: usize = 4 << 10;

/// What stands in every text that tells of what is remembered, however its JSON is escaped.
const TELLING: &[u8] = b"[Past run ";

/// A run as far as it was looked at.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    snapshot: Snapshot,
    decisions_bytes: usize,
    /// Calls whose result has not come: where they stand, and their ids.
    waiting: Vec<(usize, String)>,
    /// Texts in the requests that tell of what is remembered.
    tellings: Vec<String>,
    /// When the run began: what a fork shares, or had answered from its parent, was asked before that.
    run_began_ns: u64,
    /// From the first request to the end of the last answer: of calls before the run began, and since.
    spans: [Option<(u64, u64)>; 2],
}

/// What a frame's metadata says of decisions.
#[derive(Deserialize)]
struct Decided {
    #[serde(default)]
    decisions: Vec<Box<RawValue>>,
}

impl Conversation {
    /// Of a run that began then.
    pub(super) fn of_run(run_began_ns: u64) -> Self {
        Self { run_began_ns, ..Self::default() }
    }

    /// Whether a frame's bodies are looked at.
    pub(super) fn wants(component: &Component) -> bool {
        *component == Component::Llm
    }

    /// Decisions that a frame says were made.
    pub(super) fn decided(&mut self, metadata: &[u8]) {
        // Nearly no frame has any: what is no list of them is passed over.
        let Ok(decided) = serde_json::from_slice::<Decided>(metadata) else { return };
        for decision in decided.decisions {
            let bytes = self.decisions_bytes + decision.get().len();
            let fits = self.snapshot.decisions.len() < DECISIONS_MAX && bytes <= DECISIONS_BYTES_MAX;
            if fits && decision.get().starts_with('{') {
                self.decisions_bytes = bytes;
                self.snapshot.decisions.push(decision);
            }
        }
    }

    /// A call of a model, in the order of their requests.
    pub(super) fn call(&mut self, frame: &RecordedFrame) {
        let Ok(exchange) = serde_json::from_slice::<Exchange>(&frame.metadata) else { return };
        let api = recognise(&exchange.http.method, &exchange.http.path, "");
        if !api.shape.is_model_call() || api.shape == Shape::OpenAiEmbeddings {
            return;
        }
        self.asked(&api, exchange.volatile.request_headers.get("content-encoding"), &frame.input);
        let status = exchange.http.status.unwrap_or(0);
        if frame.incomplete || !(200..400).contains(&status) {
            return;
        }
        let headers = &exchange.volatile.response_headers;
        let answer = providers::Exchange {
            api: &api,
            request: b"",
            request_encoding: None,
            status,
            content_type: headers.get("content-type"),
            content_encoding: headers.get("content-encoding"),
            response: &frame.output,
        };
        let answer = providers::summary_with(&answer, TEXT_BYTES_MAX);
        // Some clients hang up once they have read the last event.
        if exchange.http.broken.is_some() && answer.complete != Some(true) {
            return;
        }
        let ended_ns = frame.started_ns.saturating_add(frame.duration_ns);
        let span = &mut self.spans[usize::from(frame.started_ns >= self.run_began_ns)];
        let (first, last) = span.unwrap_or((frame.started_ns, ended_ns));
        *span = Some((first.min(frame.started_ns), last.max(ended_ns)));
        self.answered(&answer);
    }

    /// What a request brings: the question, and what tools gave.
    fn asked(&mut self, api: &Api, encoding: Option<&str>, body: &[u8]) {
        let body = decode(encoding, body, DECODED_BYTES_MAX);
        self.told(&body.bytes);
        if !self.snapshot.query.is_empty() && self.waiting.is_empty() {
            return;
        }
        if self.snapshot.query.is_empty() {
            self.snapshot.query = question(api, &body.bytes, TEXT_BYTES_MAX).unwrap_or_default();
        }
        let waits = |id: &str| self.waiting.iter().any(|(_, waiting)| waiting == id);
        let results = tool_results(api, &body.bytes, RESULT_BYTES_MAX, self.waiting.len(), waits);
        for result in results {
            // The newest come first: of calls that have no ids the last one with that name is answered.
            let of = |(at, id): &(usize, String)| match result.call_id.is_empty() {
                true => {
                    id.is_empty()
                        && self.snapshot.tool_calls.get(*at).is_some_and(|call| call.name == result.name)
                }
                false => *id == result.call_id,
            };
            if let Some(found) = self.waiting.iter().rposition(of) {
                let (at, _) = self.waiting.remove(found);
                if let Some(call) = self.snapshot.tool_calls.get_mut(at) {
                    call.result_preview = preview(&result.text);
                    call.errored = result.failed;
                }
            }
        }
    }

    /// Keeps the texts of a request that tell of what is remembered, each once.
    fn told(&mut self, body: &[u8]) {
        // Nearly no request has any.
        if memmem::find(body, TELLING).is_none() {
            return;
        }
        let Ok(body) = serde_json::from_slice::<Value>(body) else { return };
        let mut waiting = vec![&body];
        while let Some(value) = waiting.pop() {
            match value {
                Value::Array(items) => waiting.extend(items),
                Value::Object(members) => waiting.extend(members.values()),
                Value::String(text) if Memory::may_tell(text) && !self.tellings.contains(text) => {
                    let bytes: usize = self.tellings.iter().map(String::len).sum();
                    if bytes + text.len() <= TELLINGS_BYTES_MAX {
                        self.tellings.push(text.clone());
                    }
                }
                _ => {}
            }
        }
    }

    fn answered(&mut self, answer: &providers::Summary) {
        self.snapshot.iterations += 1;
        self.snapshot.token_usage.input += answer.usage.input.unwrap_or(0);
        self.snapshot.token_usage.output += answer.usage.output.unwrap_or(0);
        if !answer.text.head().trim().is_empty() {
            self.snapshot.final_content = answer.text.head().to_owned();
        }
        for call in &answer.tool_calls {
            if self.snapshot.tool_calls.len() == TOOL_CALLS_MAX {
                break;
            }
            self.waiting.push((self.snapshot.tool_calls.len(), call.id.clone()));
            self.snapshot.tool_calls.push(ToolCall {
                name: call.name.clone(),
                args: arguments(call.arguments.head()),
                result_preview: String::new(),
                errored: false,
            });
        }
    }

    /// What it came to, and the texts that told it of what is remembered; `None` without a question or without an answer.
    pub(super) fn finish(mut self) -> Option<(Snapshot, Vec<String>)> {
        let snapshot = &mut self.snapshot;
        if snapshot.query.is_empty() || snapshot.final_content.is_empty() {
            return None;
        }
        let ns = self.spans.iter().flatten().map(|(first, last)| last.saturating_sub(*first)).sum::<u64>();
        snapshot.duration_ms = ns / 1_000_000;
        Some((self.snapshot, self.tellings))
    }
}
