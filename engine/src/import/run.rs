//! What an import hands out: whole runs, whose frames are made one at a time.

use super::error::Place;
use super::span::Span;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It did what it should.
    Ok,
    /// It did not.
    Failed,
    /// It was never ended. A source's `open` arrives as this, since nobody is left to go on with it.
    Abandoned,
}

impl Status {
    /// The status of that name.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "ok" => Some(Self::Ok),
            "failed" => Some(Self::Failed),
            "abandoned" | "open" => Some(Self::Abandoned),
            _ => None,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Abandoned => "abandoned",
        }
    }
}

/// How much a run or frame matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Severity {
    /// Of use only while debugging.
    Debug,
    /// As any other.
    #[default]
    Normal,
    /// Worth a look.
    Flagged,
    /// Needs a person.
    Escalated,
}

impl Severity {
    /// The severity of that name.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "debug" => Some(Self::Debug),
            "normal" => Some(Self::Normal),
            "flagged" => Some(Self::Flagged),
            "escalated" => Some(Self::Escalated),
            _ => None,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Normal => "normal",
            Self::Flagged => "flagged",
            Self::Escalated => "escalated",
        }
    }
}

/// What made a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Component {
    /// A person.
    User,
    /// A language model.
    Llm,
    /// A tool.
    Tool,
    /// A planner.
    Planner,
    /// A merge of branches.
    Merge,
    /// A source of chance: a clock, a random number.
    Nondet,
    /// The caller's own; never one of the names above, never empty.
    Other(String),
}

impl Component {
    /// The component of that name; none for the empty name.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "" => return None,
            "user" => Self::User,
            "llm" => Self::Llm,
            "tool" => Self::Tool,
            "planner" => Self::Planner,
            "merge" => Self::Merge,
            "nondet" => Self::Nondet,
            other => Self::Other(other.to_owned()),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::User => "user",
            Self::Llm => "llm",
            Self::Tool => "tool",
            Self::Planner => "planner",
            Self::Merge => "merge",
            Self::Nondet => "nondet",
            Self::Other(name) => name,
        }
    }
}

/// One frame of an imported run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// What made it.
    pub component: Component,
    /// The frame it came from, by number from 1; always an earlier one.
    pub parent: Option<u32>,
    /// When it began, in nanoseconds since 1970, where the source says so.
    pub started_ns: Option<u64>,
    /// How long it took, in nanoseconds; 0 where the source does not say.
    pub duration_ns: u64,
    /// What went in.
    pub input: Vec<u8>,
    /// What came out.
    pub output: Vec<u8>,
    /// A JSON object, or empty where there is nothing to say.
    pub metadata: Vec<u8>,
    /// How much it matters.
    pub severity: Severity,
}

/// One run of a source, checked as a whole.
#[derive(Debug, Clone)]
pub struct ImportedRun {
    /// Its name.
    pub id: String,
    /// How it ended.
    pub status: Status,
    /// How much it matters.
    pub severity: Severity,
    /// The model, where the source or the options name one.
    pub model: Option<String>,
    /// A JSON object of what the source says about the run besides its messages or frames; empty if nothing.
    pub metadata: Vec<u8>,
    /// Where it stands in the source.
    pub place: Place,
    pub(super) body: Body,
}

#[derive(Debug, Clone)]
pub(super) enum Body {
    Chat(Chat),
    Frames(Vec<Frame>),
}

/// A transcript: its text once, and where the messages lie in it.
#[derive(Debug, Clone)]
pub(super) struct Chat {
    pub(super) text: String,
    /// The model's name as JSON text, for requests.
    pub(super) model: String,
    /// The metadata of every LLM frame.
    pub(super) llm_metadata: Vec<u8>,
    pub(super) messages: Vec<Span>,
    pub(super) steps: Vec<ChatStep>,
}

/// A message that becomes a frame.
#[derive(Debug, Clone)]
pub(super) enum ChatStep {
    /// The assistant message of that index.
    Llm { message: u32 },
    /// The tool message of that index, the call that it answers, and the frame that held the call.
    Tool { message: u32, call: Option<Span>, parent: Option<u32>, name: Option<Span> },
}

impl ImportedRun {
    /// How many frames it has.
    pub fn frame_count(&self) -> usize {
        match &self.body {
            Body::Chat(chat) => chat.steps.len(),
            Body::Frames(frames) => frames.len(),
        }
    }

    /// Its frames in order, from frame 1. Each is made when it is asked for: the requests of a long conversation
    /// together are far larger than the conversation.
    pub fn frames(&self) -> impl Iterator<Item = Frame> + '_ {
        (0..self.frame_count()).filter_map(|index| match &self.body {
            Body::Chat(chat) => chat.frame(index),
            Body::Frames(frames) => frames.get(index).cloned(),
        })
    }
}

impl Chat {
    fn frame(&self, index: usize) -> Option<Frame> {
        let text_of = |message: u32| Some(self.messages.get(message as usize)?.get(&self.text));
        let (component, parent, input, output, metadata) = match *self.steps.get(index)? {
            ChatStep::Llm { message } => {
                let parent = u32::try_from(index).ok().filter(|number| *number > 0);
                let input = self.request(message);
                (Component::Llm, parent, input, text_of(message)?, self.llm_metadata.clone())
            }
            ChatStep::Tool { message, call, parent, name } => {
                let input = call.map_or(Vec::new(), |call| call.get(&self.text).as_bytes().to_vec());
                let metadata = tool_metadata(name.map(|name| name.get(&self.text)), call.is_some());
                (Component::Tool, parent, input, text_of(message)?, metadata)
            }
        };
        Some(Frame {
            component,
            parent,
            started_ns: None,
            duration_ns: 0,
            input,
            output: output.as_bytes().to_vec(),
            metadata,
            severity: Severity::Normal,
        })
    }

    /// The request whose answer is the message of that index: every message before it.
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
