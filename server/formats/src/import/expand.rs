//! Selects the messages of a run that become frames, and the kinds of those frames.
//!
//! A chat with one model: each user message becomes a user frame (with [`Expansion::Turns`]), each assistant
//! message an LLM frame, each tool message a tool frame. Other messages are only in the requests of the LLM
//! frames after them.
//!
//! A transcript of agents: message i becomes frame i + 1 with the agent's name. A run is a transcript in two
//! cases: a message has a role that no chat has; or an assistant message has a `name`, and so has a user
//! message if there is any. A `name` on tool or system messages alone is ordinary in a chat.
//!
//! Invariant: every message is in a frame, or its index is in `ExpandedMessages::unframed`.

use std::collections::HashMap;

use super::run::ChatStep;
use super::span::{self, ObjectMember, TextSpan};

/// The roles that the messages of a chat can have.
const CHAT_ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// Which messages become frames of their own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Expansion {
    /// Messages of users, of the model and of tools; every message of a transcript of agents.
    #[default]
    Turns,
    /// Messages of the model and of tools only, also in a transcript of agents.
    Calls,
}

/// The frames that the messages of a run become.
#[derive(Debug)]
pub(super) struct ExpandedMessages {
    pub(super) messages: Vec<TextSpan>,
    pub(super) steps: Vec<ChatStep>,
    /// Indexes of the messages whose bytes are in no frame, in order.
    pub(super) unframed: Vec<usize>,
}

/// Expands the messages of a run. `elements` are parts of `text`. An error is a clause that names the
/// message.
pub(super) fn expand(
    text: &str,
    elements: &[&str],
    expansion: Expansion,
) -> Result<ExpandedMessages, String> {
    let mut reading = MessageReader::new(text, elements.len(), expansion);
    for (index, element) in elements.iter().enumerate() {
        reading.read_message(index, element)?;
    }
    reading.finish()
}

/// Reads the messages of a run. Only the last message decides whether the run is a transcript, so the results
/// for both cases are kept until then.
struct MessageReader<'a> {
    text: &'a str,
    expansion: Expansion,
    messages: Vec<TextSpan>,
    /// The `name` of each message, else its role, as JSON text.
    agents: Vec<TextSpan>,
    steps: Vec<ChatStep>,
    calls: HashMap<String, ImportedToolCall>,
    /// Number of messages that the requests so far and their answers contain.
    covered: usize,
    signs: TranscriptSigns,
    /// The first error in the tool calls. It is ignored in a transcript, which does not read them.
    wrong_calls: Option<String>,
}

/// The signs that distinguish a transcript of agents from a chat with one model.
#[derive(Default)]
struct TranscriptSigns {
    other_role: bool,
    user: bool,
    named_user: bool,
    named_assistant: bool,
}

/// A tool call that a later message may answer.
struct ImportedToolCall {
    span: TextSpan,
    name: Option<TextSpan>,
    /// The LLM frame that made it.
    frame: u32,
}

impl TranscriptSigns {
    fn note(&mut self, role: &str, named: bool) {
        self.other_role |= !CHAT_ROLES.contains(&role);
        self.user |= role == "user";
        self.named_user |= named && role == "user";
        self.named_assistant |= named && role == "assistant";
    }

    fn is_transcript(&self) -> bool {
        self.other_role || self.named_assistant && (self.named_user || !self.user)
    }
}

impl<'a> MessageReader<'a> {
    fn new(text: &'a str, messages: usize, expansion: Expansion) -> Self {
        Self {
            text,
            expansion,
            messages: Vec::with_capacity(messages),
            agents: Vec::with_capacity(messages),
            steps: Vec::new(),
            calls: HashMap::new(),
            covered: 0,
            signs: TranscriptSigns::default(),
            wrong_calls: None,
        }
    }

    fn read_message(&mut self, index: usize, element: &str) -> Result<(), String> {
        let number = index + 1;
        let message = u32::try_from(index).map_err(|_| "too many messages".to_owned())?;
        self.messages.push(self.span(element)?);
        let members = span::members(element).ok_or_else(|| format!("message {number} is not an object"))?;
        let role_json = span::last_value(&members, "role");
        let role = role_json
            .and_then(span::decode_string)
            .ok_or_else(|| format!("message {number} has no `role`"))?;
        let name = span::last_value(&members, "name").filter(|name| name.starts_with('"') && name.len() > 2);
        self.signs.note(&role, name.is_some());
        self.agents.push(self.span(name.or(role_json).unwrap_or_default())?);
        match role.as_str() {
            "user" if self.expansion == Expansion::Turns => self.steps.push(ChatStep::User { message }),
            "assistant" => {
                self.steps.push(ChatStep::Llm { message });
                self.covered = number;
                if self.wrong_calls.is_none() {
                    self.wrong_calls = self.note_calls(&members, number).err();
                }
            }
            "tool" => {
                let call =
                    span::last_value(&members, "tool_call_id").and_then(|id| self.calls.get(&call_key(id)));
                let name = span::last_value(&members, "name").filter(|name| name.starts_with('"'));
                let name = name.map(|name| self.span(name)).transpose()?;
                let name = name.or(call.and_then(|call| call.name));
                let (parent, call) = (call.map(|call| call.frame), call.map(|call| call.span));
                self.steps.push(ChatStep::Tool { message, call, parent, name });
            }
            _ => {}
        }
        Ok(())
    }

    /// Notes an assistant message's tool calls. A later message's call replaces an earlier one of the same
    /// id; within one message the first call of an id counts.
    fn note_calls(&mut self, members: &[ObjectMember<'_>], number: usize) -> Result<(), String> {
        let frame = u32::try_from(self.steps.len()).map_err(|_| "too many frames".to_owned())?;
        let Some(list) = span::last_value(members, "tool_calls").filter(|list| *list != "null") else {
            return Ok(());
        };
        let list = span::elements(list)
            .ok_or_else(|| format!("`tool_calls` of message {number} is not an array"))?;
        for call in list {
            let members = span::members(call)
                .ok_or_else(|| format!("a tool call of message {number} is not an object"))?;
            let Some(id) = span::last_value(&members, "id") else { continue };
            let function = span::last_value(&members, "function").and_then(span::members).unwrap_or_default();
            let name = span::last_value(&function, "name").filter(|name| name.starts_with('"'));
            let name = name.map(|name| self.span(name)).transpose()?;
            let key = call_key(id);
            if self.calls.get(&key).is_none_or(|earlier| earlier.frame != frame) {
                let span = self.span(call)?;
                self.calls.insert(key, ImportedToolCall { span, name, frame });
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<ExpandedMessages, String> {
        if self.expansion == Expansion::Turns && self.signs.is_transcript() {
            let agents = (0..).zip(self.agents);
            let steps = agents.map(|(message, name)| ChatStep::Agent { message, name }).collect();
            return Ok(ExpandedMessages { messages: self.messages, steps, unframed: Vec::new() });
        }
        if let Some(wrong) = self.wrong_calls {
            return Err(wrong);
        }
        let mut framed: Vec<bool> = (0..self.messages.len()).map(|index| index < self.covered).collect();
        for step in &self.steps {
            if let Some(framed) = framed.get_mut(step.message() as usize) {
                *framed = true;
            }
        }
        let unframed = (0..).zip(framed).filter(|(_, framed)| !framed).map(|(index, _)| index).collect();
        Ok(ExpandedMessages { messages: self.messages, steps: self.steps, unframed })
    }

    fn span(&self, part: &str) -> Result<TextSpan, String> {
        TextSpan::new(part, self.text).ok_or_else(|| "a message is not in the text of its run".to_owned())
    }
}

/// The key by which ids of tool calls are compared: the decoded string, so that escapes do not matter. Other
/// JSON is compared as text, with a mark that keeps the number 1 distinct from the string "1".
fn call_key(json: &str) -> String {
    span::decode_string(json).map_or_else(|| format!("={json}"), |id| format!("\"{id}"))
}
