//! Reads the recorded calls of a run in order and collects its snapshot.

use annals::{Component, RecordedFrame};
use annals_memory::Memory;
use memchr::memmem;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::snapshot::{SnapshotJson, ToolCallJson, arguments, preview};
use annals_policy::exchange::ExchangeMetadata;
use annals_policy::providers::{
    self, ApiShape, DECODED_BYTES_MAX, ModelApi, decode, question, recognise, tool_results,
};

/// Maximum bytes kept of the question and of the answer.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// Maximum number of tool calls kept: the first ones. The same holds for decisions.
const TOOL_CALLS_MAX: usize = 4096;
const DECISIONS_MAX: usize = 4096;
/// Maximum bytes of all decisions together.
const DECISIONS_BYTES_MAX: usize = 16 << 20;
/// Maximum bytes of all kept quotes together.
const QUOTES_BYTES_MAX: usize = 1 << 20;
/// Maximum bytes read of a tool's result.
const RESULT_BYTES_MAX: usize = 4 << 10;

/// Stands in every text that quotes a memory entry, whatever JSON escapes are used.
const QUOTE_START: &[u8] = b"[Past run ";

/// A run's snapshot under construction.
#[derive(Debug, Default)]
pub(super) struct RunConversation {
    snapshot: SnapshotJson,
    decisions_bytes: usize,
    /// Calls without a result so far: index in the snapshot, and call id.
    waiting: Vec<(usize, String)>,
    /// Texts in the requests that quote memory entries.
    quotes: Vec<String>,
    /// When the run began. Calls that a fork shares, or got answered from its parent, are older.
    run_began_ns: u64,
    /// From the first request to the end of the last answer: of the calls before the run began, and of its
    /// own calls.
    spans: [Option<(u64, u64)>; 2],
}

/// The decisions in a frame's metadata.
#[derive(Deserialize)]
struct DecisionsMetadata {
    #[serde(default)]
    decisions: Vec<Box<RawValue>>,
}

impl RunConversation {
    /// Starts with a run that began at `run_began_ns`.
    pub(super) fn new(run_began_ns: u64) -> Self {
        Self { run_began_ns, ..Self::default() }
    }

    /// Whether a frame of this component is read.
    pub(super) fn reads_component(component: &Component) -> bool {
        *component == Component::Llm
    }

    /// Adds the decisions in a frame's metadata.
    pub(super) fn add_decisions(&mut self, metadata: &[u8]) {
        // Few frames have decisions. Metadata in another form is ignored.
        let Ok(decided) = serde_json::from_slice::<DecisionsMetadata>(metadata) else { return };
        for decision in decided.decisions {
            let bytes = self.decisions_bytes + decision.get().len();
            let fits = self.snapshot.decisions.len() < DECISIONS_MAX && bytes <= DECISIONS_BYTES_MAX;
            if fits && decision.get().starts_with('{') {
                self.decisions_bytes = bytes;
                self.snapshot.decisions.push(decision);
            }
        }
    }

    /// Adds a model call. Calls must come in the order of their requests.
    pub(super) fn add_call(&mut self, frame: &RecordedFrame) {
        let Ok(exchange) = serde_json::from_slice::<ExchangeMetadata>(&frame.metadata) else { return };
        let api = recognise(&exchange.http.method, &exchange.http.path, "");
        if !api.shape.is_model_call() || api.shape == ApiShape::OpenAiEmbeddings {
            return;
        }
        self.add_request(&api, exchange.volatile.request_headers.get("content-encoding"), &frame.input);
        let status = exchange.http.status.unwrap_or(0);
        if frame.incomplete || !(200..400).contains(&status) {
            return;
        }
        let headers = &exchange.volatile.response_headers;
        let answer = providers::WireExchange {
            api: &api,
            request: b"",
            request_encoding: None,
            status,
            content_type: headers.get("content-type"),
            content_encoding: headers.get("content-encoding"),
            response: &frame.output,
        };
        let answer = providers::summary_with(&answer, TEXT_BYTES_MAX);
        // Some clients hang up after the last event: a complete answer still counts.
        if exchange.http.broken.is_some() && answer.complete != Some(true) {
            return;
        }
        let ended_ns = frame.started_ns.saturating_add(frame.duration_ns);
        let span = &mut self.spans[usize::from(frame.started_ns >= self.run_began_ns)];
        let (first, last) = span.unwrap_or((frame.started_ns, ended_ns));
        *span = Some((first.min(frame.started_ns), last.max(ended_ns)));
        self.add_answer(&answer);
    }

    /// Reads the question and the tool results in a request.
    fn add_request(&mut self, api: &ModelApi, encoding: Option<&str>, body: &[u8]) {
        let body = decode(encoding, body, DECODED_BYTES_MAX);
        self.collect_quotes(&body.bytes);
        if !self.snapshot.query.is_empty() && self.waiting.is_empty() {
            return;
        }
        if self.snapshot.query.is_empty() {
            self.snapshot.query = question(api, &body.bytes, TEXT_BYTES_MAX).unwrap_or_default();
        }
        let waits = |id: &str| self.waiting.iter().any(|(_, waiting)| waiting == id);
        let results = tool_results(api, &body.bytes, RESULT_BYTES_MAX, self.waiting.len(), waits);
        for result in results {
            // The newest results come first. Without call ids, the last call with that name is answered.
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

    /// Keeps each text of a request that quotes memory entries, once.
    fn collect_quotes(&mut self, body: &[u8]) {
        // Few requests quote any.
        if memmem::find(body, QUOTE_START).is_none() {
            return;
        }
        let Ok(body) = serde_json::from_slice::<Value>(body) else { return };
        let mut waiting = vec![&body];
        while let Some(value) = waiting.pop() {
            match value {
                Value::Array(items) => waiting.extend(items),
                Value::Object(members) => waiting.extend(members.values()),
                Value::String(text) if Memory::may_quote_entries(text) && !self.quotes.contains(text) => {
                    let bytes: usize = self.quotes.iter().map(String::len).sum();
                    if bytes + text.len() <= QUOTES_BYTES_MAX {
                        self.quotes.push(text.clone());
                    }
                }
                _ => {}
            }
        }
    }

    fn add_answer(&mut self, answer: &providers::ExchangeSummary) {
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
            self.snapshot.tool_calls.push(ToolCallJson {
                name: call.name.clone(),
                args: arguments(call.arguments.head()),
                result_preview: String::new(),
                errored: false,
            });
        }
    }

    /// The snapshot and the quotes; `None` without a question or an answer.
    pub(super) fn finish(mut self) -> Option<(SnapshotJson, Vec<String>)> {
        let snapshot = &mut self.snapshot;
        if snapshot.query.is_empty() || snapshot.final_content.is_empty() {
            return None;
        }
        let ns = self.spans.iter().flatten().map(|(first, last)| last.saturating_sub(*first)).sum::<u64>();
        snapshot.duration_ms = ns / 1_000_000;
        Some((self.snapshot, self.quotes))
    }
}
