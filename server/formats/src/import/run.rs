//! The result of an import: whole runs, whose frames are built one at a time.

use super::error::SourcePosition;
use super::frames::frames_of;
use super::packed_lines::PackedLines;
use super::span::TextSpan;
use annals::{Component, Frame, Severity, Status};

/// One run of a source, checked as a whole.
#[derive(Debug, Clone)]
pub struct ImportedRun {
    /// Its name.
    pub id: String,
    /// How it ended; never open: a run that is open in its source is abandoned here.
    pub status: Status,
    /// How much it matters.
    pub severity: Severity,
    /// The model, if the source or the options name one.
    pub model: Option<String>,
    /// The source's other data about the run, without messages or frames: a JSON object, or empty.
    pub metadata: Vec<u8>,
    /// Number of its messages that are in no frame; the metadata contains them.
    pub unframed_messages: u64,
    /// Its position in the source.
    pub place: SourcePosition,
    pub(super) body: RunContent,
}

#[derive(Debug, Clone)]
pub(super) enum RunContent {
    Chat(ImportedChat),
    Frames(PackedLines),
}

/// A chat: its text, stored once, and the spans of its messages.
#[derive(Debug, Clone)]
pub(super) struct ImportedChat {
    pub(super) text: String,
    /// The model's name as JSON text, for requests.
    pub(super) model: String,
    /// The metadata of every LLM frame.
    pub(super) llm_metadata: Vec<u8>,
    pub(super) messages: Vec<TextSpan>,
    pub(super) steps: Vec<ChatStep>,
}

/// A message that becomes a frame.
#[derive(Debug, Clone)]
pub(super) enum ChatStep {
    /// The user message with this index.
    User { message: u32 },
    /// The assistant message with this index.
    Llm { message: u32 },
    /// The tool message with this index, the call that it answers, the LLM frame that made the call, and the
    /// tool's name.
    Tool { message: u32, call: Option<TextSpan>, parent: Option<u32>, name: Option<TextSpan> },
    /// The message with this index in a transcript of agents, and the agent's name as JSON text.
    Agent { message: u32, name: TextSpan },
}

impl ChatStep {
    /// The index of its message.
    pub(super) fn message(&self) -> u32 {
        match *self {
            Self::User { message }
            | Self::Llm { message }
            | Self::Tool { message, .. }
            | Self::Agent { message, .. } => message,
        }
    }
}

impl ImportedRun {
    /// How many frames it has.
    pub fn frame_count(&self) -> usize {
        match &self.body {
            RunContent::Chat(chat) => chat.steps.len(),
            RunContent::Frames(lines) => lines.len() as usize,
        }
    }

    /// Its frames in order, from frame 1. Each is built on demand: the requests of a long conversation
    /// together are far larger than the conversation. A caller that records them compares their number with
    /// [`ImportedRun::frame_count`].
    pub fn frames(&self) -> Box<dyn Iterator<Item = Frame> + '_> {
        match &self.body {
            RunContent::Chat(chat) => Box::new((0..chat.steps.len()).map_while(|index| chat.frame(index))),
            RunContent::Frames(lines) => Box::new(frames_of(lines)),
        }
    }
}

impl ImportedChat {
    fn frame(&self, index: usize) -> Option<Frame> {
        let step = self.steps.get(index)?;
        let text = self.messages.get(step.message() as usize)?.get(&self.text);
        let before = u32::try_from(index).ok().filter(|number| *number > 0);
        let (mut frame, parent) = match *step {
            ChatStep::User { .. } => (Frame::new(Component::User, "", text), before),
            ChatStep::Llm { message } => {
                let frame = Frame::new(Component::Llm, self.request(message), text);
                (frame.metadata(self.llm_metadata.clone()), before)
            }
            ChatStep::Tool { call, parent, name, .. } => {
                let input = call.map_or("", |call| call.get(&self.text));
                let metadata = tool_metadata(name.map(|name| name.get(&self.text)), call.is_some());
                (Frame::new(Component::Tool, input, text).metadata(metadata), parent)
            }
            ChatStep::Agent { name, .. } => {
                let metadata = format!("{{\"agent\":{{\"name\":{}}}}}", name.get(&self.text));
                (Frame::new(Component::Other("agent".to_owned()), "", text).metadata(metadata), before)
            }
        };
        frame.parent = parent;
        Some(frame)
    }

    /// The request that the message with this index answers: all messages before it.
    fn request(&self, message: u32) -> Vec<u8> {
        let before = self.messages.get(..message as usize).unwrap_or_default();
        let messages = before.iter().map(|span| span.get(&self.text).len() + 1).sum::<usize>();
        let mut request = Vec::with_capacity(messages + self.model.len() + 26);
        request.extend_from_slice(b"{\"model\":");
        request.extend_from_slice(self.model.as_bytes());
        request.extend_from_slice(b",\"messages\":[");
        for (index, span) in before.iter().enumerate() {
            if index > 0 {
                request.push(b',');
            }
            request.extend_from_slice(span.get(&self.text).as_bytes());
        }
        request.extend_from_slice(b"]}");
        request
    }
}

fn tool_metadata(name: Option<&str>, answers_a_call: bool) -> Vec<u8> {
    let tool = name.map(|name| format!("\"tool\":{{\"name\":{name}}}"));
    let unmatched = (!answers_a_call).then(|| "\"tool_call\":\"unmatched\"".to_owned());
    let members: Vec<String> = tool.into_iter().chain(unmatched).collect();
    if members.is_empty() { Vec::new() } else { format!("{{{}}}", members.join(",")).into_bytes() }
}

/// Parses the name of a status. `open` becomes abandoned, since no recorder will continue the run.
pub(super) fn status_named(name: &str) -> Option<Status> {
    name.parse().ok().map(|status| if status == Status::Open { Status::Abandoned } else { status })
}
