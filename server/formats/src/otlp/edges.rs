//! Edges between the frames of a trace: recorded edges, and separately the inferred ones.
//!
//! A *recorded* edge is stated by a span: its parent and its links. An *inferred* edge is stated by no span:
//! a tool call answers a model's request, or an input holds an earlier output. Each inferred edge names its
//! rule; a recorded edge is not inferred again.
//!
//! A frame can reference earlier frames only, but spans arrive in any order. A parent that arrives after its
//! children therefore lists them.

use std::collections::{HashMap, VecDeque};

use annals::Component;
use memchr::memmem;
use serde_json::{Map, Value, json};

use super::span::{MappedSpan, SpanId};

/// Maximum number of tool calls remembered per trace, of each kind.
const CALLS_MAX: usize = 256;
/// Maximum number of outputs per trace that are searched in later inputs, and their maximum length in bytes.
const OUTPUTS_MAX: usize = 16;
const OUTPUT_BYTES_MAX: usize = 8 << 10;
/// A shorter output may occur in an input by chance.
const OUTPUT_BYTES_MIN: usize = 24;

/// The place of a span: the number of its run within the trace, and its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SpanPlace {
    pub(super) part: u16,
    pub(super) seq: u32,
}

/// The spans of a trace that are known so far.
#[derive(Debug, Default)]
pub(super) struct TraceSpans {
    spans: HashMap<SpanId, SpanPlace>,
    /// Frames of this run, by a parent that has not arrived.
    waiting: HashMap<SpanId, Vec<u32>>,
    /// Frames that requested a tool call, and frames that were one, by the id of the call.
    calls_requested: HashMap<String, u32>,
    calls_made: HashMap<String, u32>,
    /// Tool results that an input already carried; in later inputs they are history.
    results_carried: HashMap<String, u32>,
    outputs: VecDeque<RecentOutput>,
}

#[derive(Debug)]
struct RecentOutput {
    seq: u32,
    ended_ns: u64,
    text: Vec<u8>,
}

impl RecentOutput {
    /// Whether an input contains the output, either as it is or as an escaped JSON string.
    fn occurs_in(&self, input: &[u8]) -> bool {
        let holds = |text: &[u8]| memmem::find(input, text).is_some();
        let quoted = || serde_json::to_vec(&String::from_utf8_lossy(&self.text)).unwrap_or_default();
        holds(&self.text) || quoted().get(1..).and_then(|text| text.strip_suffix(b"\"")).is_some_and(holds)
    }
}

/// The edges of a frame.
#[derive(Debug, Default)]
pub(super) struct FrameEdges {
    /// The parent frame, if it is an earlier frame of the same run.
    pub(super) parent: Option<u32>,
    /// The edges as metadata.
    pub(super) metadata: Option<Value>,
}

impl TraceSpans {
    pub(super) fn len(&self) -> usize {
        self.spans.len()
    }

    pub(super) fn contains(&self, span: &SpanId) -> bool {
        self.spans.contains_key(span)
    }

    /// Whether every referenced parent has arrived.
    pub(super) fn is_whole(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a span of an earlier run of the trace.
    pub(super) fn remember(&mut self, span: SpanId, place: SpanPlace) {
        self.spans.entry(span).or_insert(place);
    }

    /// The edges of a span that becomes the next frame.
    pub(super) fn edges(&self, span: &MappedSpan, part: u16, name_of: impl Fn(u16) -> String) -> FrameEdges {
        let mut recorded = Map::new();
        let elsewhere = |place: &SpanPlace| json!({ "run": name_of(place.part), "frame": place.seq });
        let mut parent = None;
        if let Some(id) = span.parent {
            let told = match self.spans.get(&id) {
                Some(place) if place.part == part => {
                    parent = Some(place.seq);
                    json!(place.seq)
                }
                Some(place) => elsewhere(place),
                None => json!("later"),
            };
            recorded.insert("parent".to_owned(), told);
        }
        if let Some(children) = self.waiting.get(&span.span) {
            recorded.insert("children".to_owned(), json!(children));
        }
        let links = span.links.iter().filter(|(trace, _)| *trace == span.trace);
        let links = links.filter_map(|(_, id)| self.spans.get(id));
        let links: Vec<Value> =
            links.map(|place| if place.part == part { json!(place.seq) } else { elsewhere(place) }).collect();
        if !links.is_empty() {
            recorded.insert("links".to_owned(), Value::Array(links));
        }
        let inferred = self.infer_edges(span, &recorded);
        let mut told = Map::new();
        if !recorded.is_empty() {
            told.insert("recorded".to_owned(), Value::Object(recorded));
        }
        if !inferred.is_empty() {
            told.insert("inferred".to_owned(), Value::Array(inferred));
        }
        FrameEdges { parent, metadata: (!told.is_empty()).then_some(Value::Object(told)) }
    }

    fn infer_edges(&self, span: &MappedSpan, recorded: &Map<String, Value>) -> Vec<Value> {
        let is_recorded = |seq: u32| {
            let of = |key: &str| recorded.get(key).and_then(Value::as_array);
            recorded.get("parent") == Some(&json!(seq))
                || of("children").into_iter().chain(of("links")).any(|frames| frames.contains(&json!(seq)))
        };
        let mut edges: Vec<(u32, Value)> = Vec::new();
        let mut put = |seq: u32, edge: Value| {
            if !is_recorded(seq) && edges.iter().all(|(known, _)| *known != seq) {
                edges.push((seq, edge));
            }
        };
        if let Some(id) = &span.facts.tool_call_id {
            // The frame that requested the call comes before it; the frame that carries the result comes
            // after it.
            if let Some(seq) = self.calls_requested.get(id) {
                put(*seq, json!({ "rule": "tool_call_id", "from": seq }));
            }
            if let Some(seq) = self.results_carried.get(id) {
                put(*seq, json!({ "rule": "tool_result_id", "to": seq }));
            }
        }
        for id in &span.facts.requested_calls {
            if let Some(seq) = self.calls_made.get(id) {
                put(*seq, json!({ "rule": "tool_call_id", "to": seq }));
            }
        }
        for id in
            span.facts.carried_results.iter().filter(|id| !self.results_carried.contains_key(id.as_str()))
        {
            if let Some(seq) = self.calls_made.get(id) {
                put(*seq, json!({ "rule": "tool_result_id", "from": seq }));
            }
        }
        for output in &self.outputs {
            if output.ended_ns <= span.started_ns && output.occurs_in(&span.input) {
                put(output.seq, json!({ "rule": "output_in_input", "from": output.seq }));
            }
        }
        edges.into_iter().map(|(_, edge)| edge).collect()
    }

    /// Adds a span that has become this frame.
    pub(super) fn insert_frame(&mut self, span: &SpanNote, place: SpanPlace) {
        let seq = place.seq;
        self.spans.insert(span.span, place);
        self.waiting.remove(&span.span);
        if let Some(parent) = span.parent.filter(|parent| !self.spans.contains_key(parent)) {
            self.waiting.entry(parent).or_default().push(seq);
        }
        remember_ids(&mut self.calls_made, span.tool_call_id.iter(), seq);
        remember_ids(&mut self.calls_requested, span.requested_calls.iter(), seq);
        remember_ids(&mut self.results_carried, span.carried_results.iter(), seq);
        // An output is matched to one input only: later inputs repeat it as history.
        self.outputs.retain(|output| !span.consumed.contains(&output.seq));
        if let Some(output) = &span.output {
            if self.outputs.len() == OUTPUTS_MAX {
                self.outputs.pop_front();
            }
            let text = output.clone();
            self.outputs.push_back(RecentOutput { seq, ended_ns: span.ended_ns, text });
        }
    }
}

/// The data of a span that is kept once the span is a frame.
#[derive(Debug)]
pub(super) struct SpanNote {
    span: SpanId,
    parent: Option<SpanId>,
    tool_call_id: Option<String>,
    requested_calls: Vec<String>,
    carried_results: Vec<String>,
    consumed: Vec<u32>,
    output: Option<Vec<u8>>,
    ended_ns: u64,
}

impl SpanNote {
    pub(super) fn new(span: &MappedSpan, edges: &FrameEdges) -> Self {
        let told = edges.metadata.as_ref().and_then(|told| told["inferred"].as_array());
        let took_up =
            told.into_iter().flatten().filter_map(|edge| u32::try_from(edge["from"].as_u64()?).ok());
        // Only outputs of these components are searched for; the output of an agent or chain repeats one of
        // them.
        let gives = matches!(span.component, Component::Llm | Component::Tool)
            || span.component.name() == "retriever";
        let is_apt = gives && (OUTPUT_BYTES_MIN..=OUTPUT_BYTES_MAX).contains(&span.output.len());
        Self {
            span: span.span,
            parent: span.parent,
            tool_call_id: span.facts.tool_call_id.clone(),
            requested_calls: span.facts.requested_calls.clone(),
            carried_results: span.facts.carried_results.clone(),
            consumed: took_up.collect(),
            output: is_apt.then(|| span.output.clone()),
            ended_ns: span.ended_ns,
        }
    }
}

/// Stores the first frame of each id, up to the limit.
fn remember_ids<'a>(known: &mut HashMap<String, u32>, ids: impl Iterator<Item = &'a String>, seq: u32) {
    for id in ids {
        if known.len() < CALLS_MAX {
            known.entry(id.clone()).or_insert(seq);
        }
    }
}
