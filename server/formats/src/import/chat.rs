//! Chats and transcripts: runs of messages in the OpenAI shape, expanded into the frames that an agent would
//! record.
//!
//! A run is an object with its messages under `messages`, `traj` or `history` (the first of these that it
//! has).
//!
//! - Each user message becomes a user frame. Its output is the message.
//! - Each assistant message becomes an LLM frame. Its input is the request `{"model":M,"messages":[m1,m2,…]}`
//!   with every message before it, its output is the message.
//! - Each tool message becomes a tool frame. Its input is the tool call that it answers, its output is the
//!   message. The call has the message's `tool_call_id` and is in the nearest earlier assistant message with
//!   a call of this id.
//!
//! The parent of a user or LLM frame is the frame before it; a tool frame's parent is the LLM frame that made
//! the call. In a transcript of agents every message becomes a frame; `expand` decides which runs are
//! transcripts.
//!
//! Messages that are in no frame (system messages that no model call follows) are counted in
//! [`ImportedRun::unframed_messages`]. They are kept in the run's metadata under `annals.trailing_messages`,
//! after the run's own keys.
//!
//! Left out on purpose: separate frames for messages of other shapes (Anthropic's tool results, the older
//! `function` role). The requests after them contain them.

use std::collections::HashSet;
use std::io::BufRead;

use super::error::{ImportError, SourcePosition};
use super::expand::{ExpandedMessages, Expansion, expand};
use super::run::{ImportedChat, ImportedRun, RunContent, status_named};
use super::source::{ObjectReader, RUN_BYTES_MAX, SourceObject};
use super::span::{self, ObjectMember};
use super::template::IdTemplate;
use annals::Status;

/// Keys under which a run may have its messages, in order of preference.
const MESSAGES_KEYS: [&str; 3] = ["messages", "traj", "history"];

/// The metadata key of messages that are in no frame.
const TRAILING_KEY: &str = "annals.trailing_messages";

/// Options for reading chats.
#[derive(Debug, Clone)]
pub struct ChatOptions {
    /// Template for the names of runs. Default: the key `id`, else the position: `run-000001`.
    pub id: Option<IdTemplate>,
    /// The model of runs that do not name one.
    pub model: Option<String>,
    /// A top-level key with the status of the run. True or a number of at least 1 means ok; false or a
    /// smaller number means failed; a string is the name of a status.
    pub status_from: Option<String>,
    /// Which messages become frames.
    pub expansion: Expansion,
    /// Maximum bytes of the text of one run, at most 4 GiB.
    pub run_bytes_max: u64,
}

impl Default for ChatOptions {
    fn default() -> Self {
        let expansion = Expansion::default();
        Self { id: None, model: None, status_from: None, expansion, run_bytes_max: RUN_BYTES_MAX }
    }
}

/// Reads runs from a JSON array, from JSON Lines, or from consecutive objects. Holds one run in memory.
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

    /// Returns the next run. An error ends the iteration.
    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let next = self.read().transpose();
        self.over = !matches!(next, Some(Ok(_)));
        next
    }
}

/// The names of the runs of one input, as 16 bytes of hash each.
#[derive(Debug, Default)]
pub(super) struct RunNameSet(HashSet<[u8; 16]>);

impl RunNameSet {
    /// Adds a name; fails if the input has it already.
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
        return Err(shape(format!("the key `{messages_key}` appears twice")));
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

/// A scalar as part of a name: a string is decoded, a number or boolean is taken as written.
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
        // Rust parses every JSON number as f64. A number that is too large becomes infinite, which compares
        // correctly.
        Some(b'-' | b'0'..=b'9') => {
            json.parse().ok().map(|number: f64| if number >= 1.0 { Status::Ok } else { Status::Failed })
        }
        _ => None,
    };
    status.ok_or_else(|| ImportError::Shape {
        place,
        what: format!("`{field}` is not a status: give true, false, a number or the name of a status"),
    })
}

/// A value with one of annals' own names. Any other value under the key belongs to the source and is ignored
/// here.
fn named<T>(members: &[ObjectMember<'_>], key: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
    parse(&span::decode_string(span::last_value(members, key)?)?)
}

/// The run's metadata: every other key with its exact value, in source order, then the messages that are in
/// no frame.
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
