//! A run as a list of messages: what users asked, what agents said and called, what tools returned.
//!
//! A request repeats the messages of the requests before it. Each message is read once, by the hash of its
//! source, and belongs to the frame whose request first has it. A later message with the same source (a
//! second "yes") is therefore not seen.

use std::collections::{HashMap, HashSet, VecDeque};

use annals::{Component, ErrorKind, RecordedFrame, RunReader};
use annals_policy::exchange::ExchangeMetadata;
use annals_policy::profiles::Redactor;
use annals_policy::providers::{self, ModelApi, PartKind, SpokenPart, WireExchange};
use serde_json::Value;

use super::text;
use crate::frame_views::{api_and_shown_body, decode_answer, redacted_frame};

/// Maximum bytes read of one message. The rest of a longer message gives no signals.
const MESSAGE_BYTES_MAX: usize = 256 << 10;
/// Maximum characters of a system prompt that tell one agent from another.
const PROMPT_CHARS: usize = 80;

/// Number of requests that are kept to find out what the next one repeats: conversations that take turns.
const EARLIER_REQUESTS: usize = 4;

/// Keys of a run's metadata that may hold the task as it was given.
const TASK_KEYS: [&str; 4] = ["question", "task", "query", "instruction"];
/// Names of speakers that are people.
const PEOPLE: [&str; 5] = ["user", "human", "customer", "system", "developer"];
/// Components of a recorded program's own frames and draws, and of calls without messages.
const OTHER_COMPONENTS: [&str; 6] = ["stdin", "program", "stderr", "nondet", "embedding", "http"];

/// Who a message is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaker {
    /// A user.
    User,
    /// An agent: the only steps that are ranked.
    Agent,
    /// A tool, or a program that ran an agent's code.
    Tool,
    /// Known from the beginning: a system prompt, answers of an earlier run.
    Context,
}

/// A call of a tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolUse {
    /// The tool.
    pub name: String,
    /// Its arguments, as JSON source.
    pub arguments: String,
    /// Whether the request offered other tools only.
    pub is_unoffered: bool,
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The frame that holds it first.
    pub seq: u32,
    /// The name of its speaker.
    pub agent: String,
    /// The component of its frame.
    pub component: String,
    /// Who it is from.
    pub speaker: Speaker,
    /// Its text.
    pub text: String,
    /// The tools that it calls.
    pub calls: Vec<ToolUse>,
    /// Why it is not whole or reports a failure of its own: an error of the provider, a cut answer.
    pub fault: Option<String>,
    /// Whether it is a result that reports a failure.
    pub is_failure: bool,
    /// For a result: the index of the message that made the call.
    pub answers: Option<usize>,
}

impl Message {
    /// A message without calls.
    pub fn new(seq: u32, agent: &str, speaker: Speaker, text: String) -> Self {
        Self {
            seq,
            agent: agent.to_owned(),
            component: String::new(),
            speaker,
            text,
            calls: Vec::new(),
            fault: None,
            is_failure: false,
            answers: None,
        }
    }
}

/// A frame that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadFrame {
    /// Its number.
    pub seq: u32,
    /// The error.
    pub why: String,
}

/// A run as messages.
#[derive(Debug, Clone, Default)]
pub struct Transcript {
    /// The task as the run's metadata states it.
    pub task: Option<String>,
    /// The messages in order.
    pub messages: Vec<Message>,
    /// Damaged frames, which are left out.
    pub unread: Vec<UnreadFrame>,
    /// Number of frames without messages: of the program itself, draws, calls of other services.
    pub other_frames: u32,
}

impl Transcript {
    /// A transcript of named messages, as (speaker's role, speaker's name, text). Message i is frame i + 1.
    pub fn of_agents<'a>(
        task: Option<String>,
        messages: impl IntoIterator<Item = (&'a str, &'a str, String)>,
    ) -> Self {
        let messages = (1..).zip(messages).map(|(seq, (role, name, text))| {
            let mut message = named_message(seq, role, name, text);
            "agent".clone_into(&mut message.component);
            message
        });
        let mut transcript = Self { task, messages: messages.collect(), ..Self::default() };
        transcript.find_executors();
        transcript
    }

    /// Reads a run as `by` shows it.
    ///
    /// # Errors
    /// As [`RunReader::frame`], except for damaged frames, which the transcript names.
    pub fn read(reader: &RunReader, by: Option<&Redactor>) -> annals::Result<Self> {
        let mut builder = TranscriptBuilder::new(reader, by);
        for seq in 1..=reader.info().frames {
            match reader.frame(seq) {
                Ok(frame) => builder.add_frame(frame),
                Err(error) if error.kind() == ErrorKind::Damaged => {
                    builder.transcript.unread.push(UnreadFrame { seq, why: error.to_string() });
                }
                Err(error) => return Err(error),
            }
        }
        let mut transcript = builder.transcript;
        // Damaged metadata of the run costs only the task that it may state.
        transcript.task = reader.metadata().ok().and_then(|metadata| {
            let shown = match by {
                Some(by) => by.metadata(&metadata).bytes.into_owned(),
                None => metadata,
            };
            stated_task(&shown)
        });
        transcript.find_executors();
        Ok(transcript)
    }

    /// Marks the messages of programs that run code for agents. Such a speaker is known by its words: most of
    /// its messages begin as the output of a program does.
    fn find_executors(&mut self) {
        let mut counts: HashMap<&str, (usize, usize)> = HashMap::new();
        for message in &self.messages {
            if message.speaker == Speaker::Agent && message.calls.is_empty() {
                let (all, outputs) = counts.entry(&message.agent).or_default();
                *all += 1;
                *outputs += usize::from(is_program_output(&message.text));
            }
        }
        let executors: HashSet<String> = counts
            .into_iter()
            .filter(|(_, (all, outputs))| outputs * 2 > *all)
            .map(|(agent, _)| agent.to_owned())
            .collect();
        for message in &mut self.messages {
            if message.speaker == Speaker::Agent && executors.contains(&message.agent) {
                message.speaker = Speaker::Tool;
                message.is_failure = is_failed_output(&message.text);
            }
        }
    }
}

/// Beginnings of what a program or an executor of code prints.
const OUTPUT_STARTS: [&str; 5] =
    ["exitcode", "exit code", "there is no code", "traceback (most recent", "execution result"];
/// Marks of a program that failed.
const OUTPUT_FAILURES: [&str; 6] = [
    "traceback (most recent",
    "exitcode: 1",
    "exitcode: 2",
    "exit code: 1",
    "exit code: 2",
    "execution failed",
];

fn is_program_output(text: &str) -> bool {
    let start = text::head(text.trim_start(), 200).to_lowercase();
    OUTPUT_STARTS.iter().any(|mark| start.starts_with(mark)) || start.contains("code output")
}

fn is_failed_output(text: &str) -> bool {
    text::first_phrase(&text.to_lowercase(), &OUTPUT_FAILURES).is_some()
}

/// A message of a transcript of agents. What stands in brackets after a name is no part of it:
/// `Planner (thought)` and `Planner (to Searcher)` are one agent.
fn named_message(seq: u32, role: &str, name: &str, text: String) -> Message {
    let agent = name.split(" (").next().unwrap_or(name).trim();
    let speaker = match role {
        "tool" | "function" => Speaker::Tool,
        _ if PEOPLE.contains(&agent.to_lowercase().as_str()) => Speaker::User,
        _ => Speaker::Agent,
    };
    let is_failure = speaker == Speaker::Tool && is_failed_output(&text);
    Message { is_failure, ..Message::new(seq, agent, speaker, text) }
}

fn stated_task(metadata: &[u8]) -> Option<String> {
    let metadata: Value = serde_json::from_slice(metadata).ok()?;
    TASK_KEYS.iter().find_map(|key| metadata[key].as_str().map(str::to_owned))
}

struct TranscriptBuilder<'a> {
    transcript: Transcript,
    by: Option<&'a Redactor>,
    /// The agent of model calls whose frames name none.
    default_agent: String,
    /// The last requests: most begin with what one of them has.
    earlier: VecDeque<Vec<u8>>,
    /// Hashes of the parts of requests that were read.
    seen: HashSet<[u8; 32]>,
    /// Beginnings of system prompts, with the numbers of their agents.
    prompts: HashMap<String, usize>,
    /// The message that made each call, by the call's id.
    callers: HashMap<String, usize>,
    /// The message of each frame that called tools.
    frames: HashMap<u32, usize>,
}

impl<'a> TranscriptBuilder<'a> {
    fn new(reader: &RunReader, by: Option<&'a Redactor>) -> Self {
        let agent = reader.info().agent.as_str();
        Self {
            transcript: Transcript::default(),
            by,
            default_agent: if agent.is_empty() { "assistant" } else { agent }.to_owned(),
            earlier: VecDeque::new(),
            seen: HashSet::new(),
            prompts: HashMap::new(),
            callers: HashMap::new(),
            frames: HashMap::new(),
        }
    }

    fn add_frame(&mut self, frame: RecordedFrame) {
        if frame.component == Component::Llm
            && let Some((api, body)) = api_and_shown_body(&frame, self.by)
        {
            return self.add_model_call(&frame, &api, &body);
        }
        let frame = redacted_frame(frame, self.by);
        let component = frame.component.name().to_owned();
        let before = self.transcript.messages.len();
        match &frame.component {
            Component::User => self.add_user(&frame),
            Component::Tool => self.add_tool(&frame),
            _ if OTHER_COMPONENTS.contains(&component.as_str()) => {}
            _ => self.add_agent(&frame),
        }
        for message in self.transcript.messages.iter_mut().skip(before) {
            message.component.clone_from(&component);
        }
        self.transcript.other_frames += u32::from(self.transcript.messages.len() == before);
    }

    fn add_model_call(&mut self, frame: &RecordedFrame, api: &ModelApi, body: &[u8]) {
        let component = frame.component.name();
        let (seen, mut offered, mut prompt) = (&mut self.seen, HashSet::new(), None);
        let mut is_readable = false;
        let known = self.earlier.iter().map(|earlier| common_start(earlier, body)).max().unwrap_or(0);
        let parts = providers::spoken_parts(api, body, known, MESSAGE_BYTES_MAX, |part| {
            is_readable = true;
            if part.kind == PartKind::Tool {
                offered.insert(part.name.clone());
                return false;
            }
            if part.kind == PartKind::System || matches!(part.role.as_str(), "system" | "developer") {
                prompt.get_or_insert_with(|| part.preview.chars().take(PROMPT_CHARS).collect());
            }
            seen.insert(part.hash)
        });
        let agent = self.agent_of(prompt);
        for part in parts {
            self.add_part(frame.seq, component, part);
        }
        // A program that records its own calls may have requests of any form: their text is known.
        if self.earlier.len() == EARLIER_REQUESTS {
            self.earlier.pop_front();
        }
        self.earlier.push_back(body.to_vec());
        if !is_readable && known == 0 && !body.is_empty() && self.seen.insert(*blake3::hash(body).as_bytes())
        {
            self.push(Message::new(frame.seq, "request", Speaker::Context, bounded_text(body)));
        }
        let Some(mut message) = self.answer(frame, api, &agent) else {
            self.transcript.other_frames += 1;
            return;
        };
        component.clone_into(&mut message.component);
        for call in &mut message.calls {
            call.is_unoffered = !offered.is_empty() && !offered.contains(&call.name);
        }
        self.push(message);
    }

    /// The agent of a model call. Agents of one run differ by the beginnings of their system prompts.
    fn agent_of(&mut self, prompt: Option<String>) -> String {
        let Some(prompt) = prompt else { return self.default_agent.clone() };
        let next = self.prompts.len();
        let place = *self.prompts.entry(prompt).or_insert(next);
        if place == 0 { self.default_agent.clone() } else { format!("{}-{}", self.default_agent, place + 1) }
    }

    /// A part of a request that no earlier request had.
    fn add_part(&mut self, seq: u32, component: &str, part: SpokenPart) {
        let speaker = match (part.kind, part.role.as_str()) {
            (PartKind::Tool | PartKind::Image | PartKind::Audio | PartKind::Document, _) => return,
            (PartKind::ToolResult, _) => Speaker::Tool,
            (PartKind::System, _) | (_, "system" | "developer" | "assistant" | "model") => Speaker::Context,
            _ => Speaker::User,
        };
        let agent = if speaker == Speaker::Tool { part.name.as_str() } else { part.role.as_str() };
        let mut message = Message::new(seq, agent, speaker, part.text);
        component.clone_into(&mut message.component);
        if speaker == Speaker::Tool {
            message.answers = self.callers.get(&part.call_id).copied();
            message.is_failure = part.failed || is_failed_output(&message.text);
        }
        self.push(message);
    }

    /// The answer of a model call; `None` if it holds nothing.
    fn answer(&mut self, frame: &RecordedFrame, api: &ModelApi, agent: &str) -> Option<Message> {
        let bytes = decode_answer(frame);
        let bytes = match self.by {
            Some(by) => by.body(&bytes, None).bytes.into_owned(),
            None => bytes,
        };
        let index = self.transcript.messages.len();
        let exchange = serde_json::from_slice::<ExchangeMetadata>(&frame.metadata).ok();
        if exchange.is_none()
            && let Some(parts) = self.message_parts(&bytes)
        {
            let mut message = self.message_of_parts(frame.seq, parts, index);
            agent.clone_into(&mut message.agent);
            return Some(message);
        }
        let exchange = exchange.as_ref();
        let wire = WireExchange {
            api,
            request: b"",
            request_encoding: None,
            status: exchange.map_or(200, |exchange| exchange.http.status.unwrap_or(0)),
            content_type: exchange
                .and_then(|exchange| exchange.volatile.response_headers.get("content-type")),
            content_encoding: None,
            response: &bytes,
        };
        let answer = providers::summary_with(&wire, MESSAGE_BYTES_MAX);
        let mut message = Message::new(frame.seq, agent, Speaker::Agent, answer.text.head().to_owned());
        for call in &answer.tool_calls {
            self.callers.insert(call.id.clone(), index);
            let (name, arguments) = (call.name.clone(), call.arguments.head().to_owned());
            message.calls.push(ToolUse { name, arguments, is_unoffered: false });
        }
        let cut = answer.finish_reasons.iter().find(|reason| {
            matches!(reason.to_lowercase().as_str(), "length" | "max_tokens" | "content_filter" | "safety")
        });
        message.fault = match (&answer.error, cut) {
            (Some(error), _) => {
                let what = error.message.as_deref().or(error.kind.as_deref()).unwrap_or("an error");
                Some(format!("the provider answered with {}", text::quote(what)))
            }
            (None, Some(reason)) => Some(format!("the answer was cut: the provider says {reason:?}")),
            (None, None) if frame.incomplete => Some("the answer is incomplete".to_owned()),
            (None, None) => None,
        };
        if exchange.is_none() && message.text.is_empty() && message.calls.is_empty() {
            // An answer in no known form.
            message.text = bounded_text(&bytes);
        }
        let is_empty = message.text.is_empty() && message.calls.is_empty() && message.fault.is_none();
        (!is_empty).then_some(message)
    }

    /// The parts of a frame's output, if it is a message that was not read before.
    fn message_parts(&mut self, bytes: &[u8]) -> Option<Vec<SpokenPart>> {
        let seen = &mut self.seen;
        providers::spoken_message(bytes, MESSAGE_BYTES_MAX, |part| {
            seen.insert(part.hash);
            true
        })
    }

    /// An agent's message: its texts, one under the other, and its calls.
    fn message_of_parts(&mut self, seq: u32, parts: Vec<SpokenPart>, index: usize) -> Message {
        let mut message = Message::new(seq, "", Speaker::Agent, String::new());
        for part in parts {
            if part.kind == PartKind::ToolCall {
                self.callers.insert(part.call_id, index);
                message.calls.push(ToolUse { name: part.name, arguments: part.text, is_unoffered: false });
            } else {
                if !message.text.is_empty() {
                    message.text.push('\n');
                }
                message.text.push_str(&part.text);
            }
        }
        message
    }

    fn add_user(&mut self, frame: &RecordedFrame) {
        let text = match self.message_parts(&frame.output) {
            Some(parts) => self.message_of_parts(frame.seq, parts, usize::MAX).text,
            None => bounded_text(if frame.output.is_empty() { &frame.input } else { &frame.output }),
        };
        if !text.trim().is_empty() {
            self.push(Message::new(frame.seq, "user", Speaker::User, text));
        }
    }

    fn add_tool(&mut self, frame: &RecordedFrame) {
        let metadata: Value = serde_json::from_slice(&frame.metadata).unwrap_or_default();
        let name = metadata["tool"]["name"].as_str().unwrap_or("tool").to_owned();
        let parts = self.message_parts(&frame.output);
        let call_id = parts.as_ref().and_then(|parts| parts.first()).map(|part| part.call_id.clone());
        let reports_failure = parts.as_ref().is_some_and(|parts| parts.iter().any(|part| part.failed));
        let text = match parts {
            Some(parts) => parts.into_iter().map(|part| part.text).collect::<Vec<_>>().join("\n"),
            None => bounded_text(&frame.output),
        };
        let mut message = Message::new(frame.seq, &name, Speaker::Tool, text);
        message.is_failure = frame.error || reports_failure || is_failed_output(&message.text);
        let by_parent = || frame.parent.and_then(|parent| self.frames.get(&parent));
        message.answers = call_id.and_then(|id| self.callers.get(&id)).or_else(by_parent).copied();
        self.push(message);
    }

    /// A frame of another component: a message of a transcript, or text.
    fn add_agent(&mut self, frame: &RecordedFrame) {
        let metadata: Value = serde_json::from_slice(&frame.metadata).unwrap_or_default();
        let name = metadata["agent"]["name"].as_str().unwrap_or(frame.component.name());
        let role = serde_json::from_slice::<Value>(&frame.output).ok();
        let role = role.as_ref().and_then(|message| message["role"].as_str()).unwrap_or_default().to_owned();
        let index = self.transcript.messages.len();
        let parts = self.message_parts(&frame.output);
        let is_message = parts.is_some();
        let said = match parts {
            Some(parts) => self.message_of_parts(frame.seq, parts, index),
            None if std::str::from_utf8(&frame.output).is_ok() => {
                Message::new(frame.seq, "", Speaker::Agent, bounded_text(&frame.output))
            }
            None => return,
        };
        if !is_message && said.text.trim().is_empty() {
            return;
        }
        let fault = frame.error.then(|| "the frame is marked as failed".to_owned());
        self.push(Message { calls: said.calls, fault, ..named_message(frame.seq, &role, name, said.text) });
    }

    fn push(&mut self, message: Message) {
        if message.speaker == Speaker::Agent {
            self.frames.insert(message.seq, self.transcript.messages.len());
        }
        self.transcript.messages.push(message);
    }
}

/// The number of bytes at the beginning that two bodies share.
fn common_start(a: &[u8], b: &[u8]) -> usize {
    const BLOCK: usize = 4096;
    let blocks =
        a.chunks(BLOCK).zip(b.chunks(BLOCK)).take_while(|(a, b)| a.len() == b.len() && a == b).count();
    let at = (blocks * BLOCK).min(a.len()).min(b.len());
    let same = a.iter().skip(at).zip(b.iter().skip(at)).take_while(|(a, b)| a == b).count();
    at + same
}

fn bounded_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.get(..bytes.len().min(MESSAGE_BYTES_MAX)).unwrap_or_default()).into_owned()
}
