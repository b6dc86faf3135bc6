//! Reads the recorded calls of a run in order and collects a snapshot of each question that a user asked.
//!
//! A run may hold many conversations, also at once. A call belongs to the question that its request works on
//! (`providers::asked_question`); a request without one belongs to the question that waits for its tool
//! results, else to the question of the call before it.

use std::borrow::Cow;

use annals::runs::FrameInfo;
use annals::{Component, RecordedFrame};
use annals_memory::Memory;
use memchr::memmem;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::snapshot::{CommitJson, CommittedBodyJson, SnapshotJson, ToolCallJson, arguments, preview};
use annals_policy::exchange::{ExchangeMetadata, Headers, HttpExchange, VolatileExchange};
use annals_policy::providers::{
    self, ApiShape, AskedQuestion, DECODED_BYTES_MAX, ModelApi, asked_question, decode, is_closing_answer,
    recognise, tool_results,
};

/// Maximum bytes kept of the question and of the answer.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// Maximum number of tool calls kept: the first ones. The same holds for decisions.
const TOOL_CALLS_MAX: usize = 4096;
const DECISIONS_MAX: usize = 4096;
/// Maximum number of frames kept in commit logs: the first ones.
const COMMITS_MAX: usize = 4096;
/// Maximum bytes of all decisions together.
const DECISIONS_BYTES_MAX: usize = 16 << 20;
/// Maximum bytes of all kept quotes together.
const QUOTES_BYTES_MAX: usize = 1 << 20;
/// Maximum bytes read of a tool's result.
const RESULT_BYTES_MAX: usize = 4 << 10;

/// Stands in every text that quotes a memory entry, whatever JSON escapes are used.
const QUOTE_START: &[u8] = b"[Past run ";

/// Maximum number of questions kept: the first ones.
const QUESTIONS_MAX: usize = 4096;
/// Maximum bytes of all kept questions and answers together; later questions are not kept.
const QUESTIONS_BYTES_MAX: usize = 64 << 20;

/// A question's snapshot, and where it comes from.
#[derive(Debug, Default)]
pub(super) struct QuestionSnapshot {
    pub(super) snapshot: SnapshotJson,
    /// The frame of the first call that worked on the question.
    pub(super) frame: u32,
    /// Texts in the requests that quote memory entries.
    pub(super) quotes: Vec<String>,
    /// The hash that identifies the question within its conversation.
    key: Option<[u8; 32]>,
    /// Calls without a result so far: index in the snapshot, and call id.
    waiting: Vec<(usize, String)>,
    /// From the first request to the end of the last answer: of the calls before the run began, and of its
    /// own calls.
    spans: [Option<(u64, u64)>; 2],
}

/// A run's snapshots under construction.
#[derive(Debug, Default)]
pub(super) struct RunConversations {
    questions: Vec<QuestionSnapshot>,
    /// The question of the last call.
    current: Option<usize>,
    /// Decisions stated before the first question.
    early_decisions: Vec<Box<RawValue>>,
    /// Frames before the first question, for its commit log.
    early_commits: Vec<CommitJson>,
    commits: usize,
    /// Whether the snapshots get commit logs.
    with_commits: bool,
    decisions: usize,
    decisions_bytes: usize,
    tool_calls: usize,
    texts_bytes: usize,
    /// Whether a question, a tool call or a decision was left out because of a limit.
    is_cut: bool,
    /// When the run began. Calls that a fork shares, or got answered from its parent, are older.
    run_began_ns: u64,
}

/// An imported call of a chat (`annals import`) as the exchange that would have made it.
fn chat_exchange(frame: &RecordedFrame) -> Option<(ExchangeMetadata, Vec<u8>)> {
    const HEAD: &[u8] = b"{\"choices\":[{\"index\":0,\"finish_reason\":\"stop\",\"message\":";
    const TAIL: &[u8] = b"}]}";
    #[derive(Deserialize)]
    struct ChatMessage<'a> {
        #[serde(borrow)]
        role: Cow<'a, str>,
    }
    #[derive(Deserialize)]
    struct ChatRequest<'a> {
        #[serde(borrow, rename = "messages")]
        _messages: Vec<&'a RawValue>,
    }
    let message = serde_json::from_slice::<ChatMessage<'_>>(&frame.output).ok()?;
    serde_json::from_slice::<ChatRequest<'_>>(&frame.input).ok()?;
    if message.role != "assistant" {
        return None;
    }
    let http = HttpExchange {
        mount: String::new(),
        method: "POST".to_owned(),
        path: "/v1/chat/completions".to_owned(),
        query: None,
        status: Some(200),
        broken: None,
    };
    let json = Headers(vec![("content-type".to_owned(), "application/json".to_owned())]);
    let volatile = VolatileExchange { response_headers: json, ..VolatileExchange::default() };
    let exchange = ExchangeMetadata { http, summary: serde_json::Map::new(), volatile };
    Some((exchange, [HEAD, &frame.output, TAIL].concat()))
}

/// What names a frame in the commit log.
#[derive(Debug, Default, Deserialize)]
struct CommitNames {
    #[serde(default)]
    call: Option<CommitCall>,
    #[serde(default)]
    http: Option<CommitHttp>,
}

#[derive(Debug, Deserialize)]
struct CommitCall {
    name: String,
}

#[derive(Debug, Deserialize)]
struct CommitHttp {
    path: String,
}

/// The decisions in a frame's metadata.
#[derive(Deserialize)]
struct DecisionsMetadata {
    #[serde(default)]
    decisions: Vec<Box<RawValue>>,
}

impl RunConversations {
    /// Starts with a run that began at `run_began_ns`.
    pub(super) fn new(run_began_ns: u64, with_commits: bool) -> Self {
        Self { run_began_ns, with_commits, ..Self::default() }
    }

    /// Adds a frame to the commit log of the question that is being worked on.
    pub(super) fn add_commit(&mut self, info: &FrameInfo, frame: &RecordedFrame) {
        if self.commits == COMMITS_MAX {
            self.is_cut = true;
            return;
        }
        self.commits += 1;
        let named = serde_json::from_slice::<CommitNames>(&info.metadata).unwrap_or_default();
        let commit = CommitJson {
            frame: info.seq,
            parent: info.parent,
            component: info.component.name().to_owned(),
            name: named.call.map(|call| call.name).or(named.http.map(|http| http.path)),
            started_at: info.started_ns / 1_000_000,
            duration_ms: info.duration_ns / 1_000_000,
            failed: info.error || info.incomplete,
            input: CommittedBodyJson::new(&frame.input),
            output: CommittedBodyJson::new(&frame.output),
        };
        match self.current.and_then(|at| self.questions.get_mut(at)) {
            Some(question) => question.snapshot.commit_log.get_or_insert_default().push(commit),
            None => self.early_commits.push(commit),
        }
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
            let fits = self.decisions < DECISIONS_MAX && bytes <= DECISIONS_BYTES_MAX;
            if !decision.get().starts_with('{') {
                continue;
            }
            self.is_cut |= !fits;
            if fits {
                (self.decisions, self.decisions_bytes) = (self.decisions + 1, bytes);
                match self.current.and_then(|at| self.questions.get_mut(at)) {
                    Some(question) => question.snapshot.decisions.push(decision),
                    None => self.early_decisions.push(decision),
                }
            }
        }
    }

    /// Adds a model call. Calls must come in the order of their requests.
    pub(super) fn add_call(&mut self, seq: u32, frame: &RecordedFrame) {
        let (exchange, response) = match serde_json::from_slice::<ExchangeMetadata>(&frame.metadata) {
            Ok(exchange) => (exchange, Cow::Borrowed(frame.output.as_slice())),
            // An imported call has no exchange: its request is of a chat, and its output is the message.
            Err(_) => match chat_exchange(frame) {
                Some((exchange, response)) => (exchange, Cow::Owned(response)),
                None => return,
            },
        };
        let api = recognise(&exchange.http.method, &exchange.http.path, "");
        if !api.shape.is_model_call() || api.shape == ApiShape::OpenAiEmbeddings {
            return;
        }
        let encoding = exchange.volatile.request_headers.get("content-encoding");
        let body = decode(encoding, &frame.input, DECODED_BYTES_MAX);
        let asked = asked_question(&api, &body.bytes, TEXT_BYTES_MAX);
        let Some(at) = self.question_of(&api, &body.bytes, asked.as_ref(), seq) else { return };
        self.current = Some(at);
        let run_began_ns = self.run_began_ns;
        let Some(question) = self.questions.get_mut(at) else { return };
        question.collect_quotes(&body.bytes);
        question.add_results(&api, &body.bytes);
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
            response: &response,
        };
        let answer = providers::summary_with(&answer, TEXT_BYTES_MAX);
        // Some clients hang up after the last event: a complete answer still counts.
        if exchange.http.broken.is_some() && answer.complete != Some(true) {
            return;
        }
        let ended_ns = frame.started_ns.saturating_add(frame.duration_ns);
        let closes = asked.is_some_and(|asked| asked.is_closing);
        if closes && answer.tool_calls.is_empty() {
            // The answer to a closing is none to the question.
            return;
        }
        let span = &mut question.spans[usize::from(frame.started_ns >= run_began_ns)];
        let (first, last) = span.unwrap_or((frame.started_ns, ended_ns));
        *span = Some((first.min(frame.started_ns), last.max(ended_ns)));
        let calls_left = TOOL_CALLS_MAX.saturating_sub(self.tool_calls);
        let text = answer.text.head();
        let is_answer = !closes && !text.trim().is_empty();
        if is_answer && (question.snapshot.final_content.is_empty() || !is_closing_answer(text)) {
            self.texts_bytes += text.len();
            self.texts_bytes = self.texts_bytes.saturating_sub(question.snapshot.final_content.len());
            question.snapshot.final_content = text.to_owned();
        }
        self.is_cut |= answer.tool_calls.len() > calls_left;
        self.tool_calls += question.add_answer(&answer, calls_left);
    }

    /// The question that a request works on; a new one if the request asks it first.
    fn question_of(
        &mut self,
        api: &ModelApi,
        body: &[u8],
        asked: Option<&AskedQuestion>,
        seq: u32,
    ) -> Option<usize> {
        let Some(asked) = asked else {
            // The questions with waiting calls, the newest first.
            let waits_for_result = |question: &QuestionSnapshot| {
                let waits = |id: &str| question.waiting.iter().any(|(_, waiting)| waiting == id);
                !question.waiting.is_empty() && !tool_results(api, body, 0, 1, waits).is_empty()
            };
            return self.questions.iter().rposition(waits_for_result).or(self.current);
        };
        let by_key = self.questions.iter().rposition(|question| question.key == Some(asked.key));
        // A client may have shortened the conversation before the question while it works on it.
        let by_text = || {
            let same = |question: &QuestionSnapshot| question.snapshot.query == asked.text;
            asked.is_underway.then(|| self.questions.iter().rposition(same)).flatten()
        };
        if let Some(at) = by_key.or_else(by_text) {
            let question = self.questions.get_mut(at)?;
            // Replies of the user are added as they come.
            if asked.text.len() > question.snapshot.query.len() {
                self.texts_bytes += asked.text.len() - question.snapshot.query.len();
                question.snapshot.query.clone_from(&asked.text);
            }
            return Some(at);
        }
        if self.questions.len() == QUESTIONS_MAX || self.texts_bytes > QUESTIONS_BYTES_MAX {
            self.is_cut = true;
            return None;
        }
        let mut question =
            QuestionSnapshot { key: Some(asked.key), frame: seq, ..QuestionSnapshot::default() };
        question.snapshot.query.clone_from(&asked.text);
        question.snapshot.decisions = std::mem::take(&mut self.early_decisions);
        question.snapshot.commit_log = self.with_commits.then(|| std::mem::take(&mut self.early_commits));
        self.texts_bytes += asked.text.len();
        self.questions.push(question);
        Some(self.questions.len() - 1)
    }

    /// The snapshots of the questions that were answered, in the order in which they were asked, and whether
    /// anything beyond a limit was left out.
    pub(super) fn finish(self) -> (Vec<QuestionSnapshot>, bool) {
        let answered = self.questions.into_iter().filter_map(|mut question| {
            let snapshot = &mut question.snapshot;
            // An answer that only takes leave answers nothing.
            let is_closing = snapshot.tool_calls.is_empty() && is_closing_answer(&snapshot.final_content);
            if snapshot.query.is_empty() || snapshot.final_content.is_empty() || is_closing {
                return None;
            }
            let spans = question.spans.iter().flatten();
            snapshot.duration_ms =
                spans.map(|(first, last)| last.saturating_sub(*first)).sum::<u64>() / 1_000_000;
            Some(question)
        });
        (answered.collect(), self.is_cut)
    }
}

impl QuestionSnapshot {
    /// From the first request for the question in its own run to the end of the last answer, in milliseconds since 1970.
    pub(super) fn worked_ms(&self) -> std::ops::RangeInclusive<u64> {
        // A bound of the record is in nanoseconds.
        match self.spans.get(1).copied().flatten() {
            Some((first, last)) => first / 1_000_000..=last / 1_000_000,
            None => std::ops::RangeInclusive::new(1, 0),
        }
    }

    /// Reads the results of the waiting tool calls in a request.
    fn add_results(&mut self, api: &ModelApi, body: &[u8]) {
        if self.waiting.is_empty() {
            return;
        }
        let waits = |id: &str| self.waiting.iter().any(|(_, waiting)| waiting == id);
        let results = tool_results(api, body, RESULT_BYTES_MAX, self.waiting.len(), waits);
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

    /// Adds an answer's counts and tool calls, at most `calls_max`. Returns the number of added calls.
    fn add_answer(&mut self, answer: &providers::ExchangeSummary, calls_max: usize) -> usize {
        self.snapshot.iterations += 1;
        self.snapshot.token_usage.input += answer.usage.input.unwrap_or(0);
        self.snapshot.token_usage.output += answer.usage.output.unwrap_or(0);
        let calls = answer.tool_calls.iter().take(calls_max);
        for call in calls.clone() {
            self.waiting.push((self.snapshot.tool_calls.len(), call.id.clone()));
            self.snapshot.tool_calls.push(ToolCallJson {
                name: call.name.clone(),
                args: arguments(call.arguments.head()),
                result_preview: String::new(),
                errored: false,
            });
        }
        calls.count()
    }
}
