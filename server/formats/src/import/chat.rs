//! Chats and transcripts: runs of messages in the OpenAI shape, expanded into the frames that an agent would record.
//!
//! A run is an object with its messages under `messages`, `traj` or `history` (the first of these that it has).
//! Each user message becomes a user frame. Each assistant message becomes an LLM frame: its request is
//! `{"model":M,"messages":[m1,m2,…]}` with every message before it, its output the message. Each tool message becomes
//! a tool frame: its input is the tool call that it answers, the one of its `tool_call_id` in the nearest assistant
//! message before it that has one, its output the message. The parent of a user or LLM frame is the frame before it;
//! a tool frame's parent is the LLM frame that made the call. In a transcript of agents every message becomes a frame;
//! `expand` says which runs are transcripts.
//!
//! Messages that are in no frame (system messages that no model call follows) are counted in
//! [`ImportedRun::unframed_messages`] and kept in the run's metadata under `annals.trailing_messages`, after the run's
//! own other keys.
//!
//! Left out on purpose: frames of their own for messages of other shapes (Anthropic's tool results, the older
//! `function` role). They stand in the requests after them.

use std::collections::HashSet;
use std::io::BufRead;

use super::error::{ImportError, SourcePosition};
use super::expand::{ExpandedMessages, Expansion, expand};
use super::run::{ImportedChat, ImportedRun, RunContent, status_named};
use super::source::{ObjectReader, RUN_BYTES_MAX, SourceObject};
use super::span::{self, ObjectMember};
use super::template::IdTemplate;
use annals::Status;

/// Where a run may have its messages, in order of preference.
const MESSAGES_KEYS: [&str; 3] = ["messages", "traj", "history"];

/// The metadata key of messages that are in no frame.
const TRAILING_KEY: &str = "annals.trailing_messages";

/// How transcripts are read.
#[derive(Debug, Clone)]
pub struct ChatOptions {
    /// How runs are named; without it by their key `id`, else by position: `run-000001`.
    pub id: Option<IdTemplate>,
    /// The model of runs that do not name one.
    pub model: Option<String>,
    /// A top-level key that says how the run ended: true, a number of 1 or more, or a status name as it says;
    /// false or a smaller number is failed.
    pub status_from: Option<String>,
    /// Which messages become frames.
    pub expansion: Expansion,
    /// Bytes that the text of one run may have, at most 4 GiB.
    pub run_bytes_max: u64,
}

impl Default for ChatOptions {
    fn default() -> Self {
        let expansion = Expansion::default();
        Self { id: None, model: None, status_from: None, expansion, run_bytes_max: RUN_BYTES_MAX }
    }
}

/// Reads runs from a JSON array, from JSON Lines, or from objects that follow each other. Holds one run.
#[derive(Debug)]
pub struct ChatRuns<R> {
    objects: ObjectReader<R>,
    options: ChatOptions,
    seen: RunNameSet,
    over: bool,
}

impl<R: BufRead> ChatRuns<R> {
    /// Reads runs from `reader`.
    pub fn new(reader: R, options: ChatOptions) -> Self {
        let bytes_max = options.run_bytes_max.min(u64::from(u32::MAX));
        Self {
            objects: ObjectReader::new(reader, "run", bytes_max),
            options,
            seen: RunNameSet::default(),
            over: false,
        }
    }

    fn read(&mut self) -> Result<Option<ImportedRun>, ImportError> {
        let Some(object) = self.objects.next()? else { return Ok(None) };
        let run = run_of(object, &self.options)?;
        self.seen.add(&run.id, run.place)?;
        Ok(Some(run))
    }
}

impl<R: BufRead> Iterator for ChatRuns<R> {
    type Item = Result<ImportedRun, ImportError>;

    /// The next run. After an error there is no other.
    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let next = self.read().transpose();
        self.over = !matches!(next, Some(Ok(_)));
        next
    }
}

/// The names seen in one input, 16 bytes each.
#[derive(Debug, Default)]
pub(super) struct RunNameSet(HashSet<[u8; 16]>);

impl RunNameSet {
    /// Notes a name; an error if it was there.
    pub(super) fn add(&mut self, id: &str, place: SourcePosition) -> Result<(), ImportError> {
        let mut short = [0; 16];
        short.copy_from_slice(&blake3::hash(id.as_bytes()).as_bytes()[..16]);
        if self.0.insert(short) {
            Ok(())
        } else {
            Err(ImportError::DuplicateRun { place, id: id.to_owned() })
        }
    }
}

fn run_of(object: SourceObject, options: &ChatOptions) -> Result<ImportedRun, ImportError> {
    let SourceObject { text, place } = object;
    let shape = |what: String| ImportError::Shape { place, what };
    let members = span::members(&text).ok_or_else(|| shape("not an object".to_owned()))?;
    let messages_key = MESSAGES_KEYS
        .into_iter()
        .find(|key| span::last_value(&members, key).is_some())
        .ok_or_else(|| shape("none of the keys `messages`, `traj`, `history`".to_owned()))?;
    if members.iter().filter(|member| member.has_key(messages_key)).count() > 1 {
        return Err(shape(format!("the key `{messages_key}` stands twice")));
    }
    let elements = span::last_value(&members, messages_key)
        .and_then(span::elements)
        .ok_or_else(|| shape(format!("`{messages_key}` is not an array")))?;
    let model = model_of(&members, options).map_err(shape)?;
    let id = id_of(&members, options, place)?;
    let status = status_of(&members, options, place)?;
    let severity = named(&members, "severity", |name| name.parse().ok()).unwrap_or_default();
    let ExpandedMessages { messages, steps, unframed } =
        expand(&text, &elements, options.expansion).map_err(shape)?;
    let unframed_messages = unframed.len() as u64;
    let metadata =
        metadata_of(&members, messages_key, unframed.iter().filter_map(|index| elements.get(*index)));
    let llm_metadata =
        model.as_ref().map_or(Vec::new(), |(json, _)| format!("{{\"model\":{json}}}").into_bytes());
    let (model_json, model) = match model {
        Some((json, name)) => (json, Some(name)),
        None => ("\"unknown\"".to_owned(), None),
    };
    let chat = ImportedChat { model: model_json, llm_metadata, messages, steps, text };
    Ok(ImportedRun {
        id,
        status,
        severity,
        model,
        metadata,
        unframed_messages,
        place,
        body: RunContent::Chat(chat),
    })
}

/// The model as JSON text and as a string.
fn model_of(members: &[ObjectMember<'_>], options: &ChatOptions) -> Result<Option<(String, String)>, String> {
    match span::last_value(members, "model") {
        None | Some("null") => Ok(options.model.as_ref().map(|name| {
            let json = serde_json::Value::String(name.clone()).to_string();
            (json, name.clone())
        })),
        Some(json) => {
            let name = span::decode_string(json).ok_or_else(|| "`model` is not a string".to_owned())?;
            Ok(Some((json.to_owned(), name)))
        }
    }
}

fn id_of(
    members: &[ObjectMember<'_>],
    options: &ChatOptions,
    place: SourcePosition,
) -> Result<String, ImportError> {
    let lookup = |key: &str| span::last_value(members, key).and_then(scalar);
    match &options.id {
        Some(template) => template.fill(lookup).map_err(|key| ImportError::MissingKey {
            place,
            key: key.to_owned(),
            wanted_by: "the name of runs (--id)",
        }),
        None => Ok(lookup("id").unwrap_or_else(|| format!("run-{:06}", place.item))),
    }
}

/// A scalar as it stands in a name: a string decoded, a number or a truth value as it is written.
fn scalar(json: &str) -> Option<String> {
    match json.as_bytes().first()? {
        b'"' => span::decode_string(json),
        b'{' | b'[' | b'n' => None,
        _ => Some(json.to_owned()),
    }
}

fn status_of(
    members: &[ObjectMember<'_>],
    options: &ChatOptions,
    place: SourcePosition,
) -> Result<Status, ImportError> {
    let Some(field) = &options.status_from else {
        return Ok(named(members, "status", status_named).unwrap_or(Status::Ok));
    };
    let json = span::last_value(members, field).ok_or_else(|| ImportError::MissingKey {
        place,
        key: field.clone(),
        wanted_by: "the status of runs (--status-from)",
    })?;
    let status = match json.as_bytes().first() {
        Some(b't') => Some(Status::Ok),
        Some(b'f') => Some(Status::Failed),
        Some(b'"') => span::decode_string(json).and_then(|name| status_named(&name)),
        // Rust's own reading takes every JSON number; one too large for it becomes an infinity, which still compares.
        Some(b'-' | b'0'..=b'9') => {
            json.parse().ok().map(|number: f64| if number >= 1.0 { Status::Ok } else { Status::Failed })
        }
        _ => None,
    };
    status.ok_or_else(|| ImportError::Shape {
        place,
        what: format!("`{field}` is no status: it is neither true or false, nor a number, nor a status name"),
    })
}

/// A value that holds one of our own names; anything else under that key is the source's own affair.
fn named<T>(members: &[ObjectMember<'_>], key: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
    parse(&span::decode_string(span::last_value(members, key)?)?)
}

/// Every other key with its exact value, in source order, and the messages that are in no frame.
fn metadata_of<'a>(
    members: &[ObjectMember<'_>],
    messages_key: &str,
    unframed: impl Iterator<Item = &'a &'a str>,
) -> Vec<u8> {
    let mut parts: Vec<String> = members
        .iter()
        .filter(|member| !member.has_key(messages_key))
        .map(|member| format!("{}:{}", member.key, member.value))
        .collect();
    let unframed: Vec<&str> = unframed.copied().collect();
    if !unframed.is_empty() {
        parts.push(format!("\"{TRAILING_KEY}\":[{}]", unframed.join(",")));
    }
    if parts.is_empty() { Vec::new() } else { format!("{{{}}}", parts.join(",")).into_bytes() }
}
