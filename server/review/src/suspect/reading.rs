//! Each message of a run looked at once: its values, its action, the results of its action, and where each
//! value of the run appears first.

use std::collections::{HashMap, HashSet};

use super::text;
use super::transcript::{Message, Speaker, Transcript};

/// A message with what is read of it.
#[derive(Debug)]
pub(super) struct MessageReading<'a> {
    pub(super) message: &'a Message,
    /// The text in lower case.
    pub(super) lower: String,
    /// The text without code.
    pub(super) prose: String,
    /// The same in lower case.
    pub(super) prose_lower: String,
    /// The fenced code, and the calls of tools: what the message does.
    pub(super) action: Option<String>,
    /// Values outside of code: what the message states.
    pub(super) stated: Vec<String>,
    /// The stated values that no earlier message and no task holds.
    pub(super) new_values: Vec<String>,
    /// Indexes of the results of its action.
    pub(super) results: Vec<usize>,
    /// Indexes of the results just before it.
    pub(super) answered: Vec<usize>,
}

/// A run, read.
#[derive(Debug)]
pub(super) struct RunReading<'a> {
    pub(super) messages: Vec<MessageReading<'a>>,
    /// Indexes of the messages of agents, in order: the steps that are ranked.
    pub(super) steps: Vec<usize>,
    /// The message of an agent that opens the run and hands the task over, if an agent does.
    pub(super) opening: Option<usize>,
    /// The last message of an agent that says something.
    pub(super) last: Option<usize>,
    /// The message in which each value appears first; `None` if the task holds it.
    pub(super) first_seen: HashMap<String, Option<usize>>,
    /// Values that messages of agents hold.
    pub(super) used: HashSet<String>,
    /// The first result that reports a failure.
    pub(super) first_failure: Option<usize>,
}

/// Words of prose that a message needs to say something.
pub(super) const SPEAKING_WORDS: usize = 4;

impl<'a> RunReading<'a> {
    pub(super) fn new(transcript: &'a Transcript) -> Self {
        let mut reading = Self {
            messages: Vec::with_capacity(transcript.messages.len()),
            steps: Vec::new(),
            opening: None,
            last: None,
            first_seen: HashMap::new(),
            used: HashSet::new(),
            first_failure: None,
        };
        for value in transcript.task.iter().flat_map(|task| text::values(task)) {
            reading.first_seen.insert(value, None);
        }
        let first = transcript.messages.iter().position(|message| message.speaker != Speaker::Context);
        reading.opening = first.filter(|first| transcript.messages[*first].speaker == Speaker::Agent);
        for (index, message) in transcript.messages.iter().enumerate() {
            reading.add(index, message);
        }
        reading.link_results();
        reading
    }

    fn add(&mut self, index: usize, message: &'a Message) {
        let is_task =
            matches!(message.speaker, Speaker::User | Speaker::Context) || self.opening == Some(index);
        let prose = text::prose(&message.text);
        let calls = message.calls.iter().map(|call| format!("{} {}", call.name, call.arguments));
        let action: Vec<String> = text::code(&message.text).into_iter().chain(calls).collect();
        let arguments = message.calls.iter().flat_map(|call| text::values(&call.arguments));
        let mut stated = text::values(&prose);
        stated.extend(arguments);
        let is_new = |value: &String| !text::is_known(value, |part| self.first_seen.contains_key(part));
        let new_values: Vec<String> = stated.iter().filter(|value| is_new(value)).cloned().collect();
        for value in text::values(&message.text).into_iter().chain(stated.iter().cloned()) {
            if message.speaker == Speaker::Agent {
                self.used.insert(value.clone());
            }
            self.first_seen.entry(value).or_insert((!is_task).then_some(index));
        }
        match message.speaker {
            Speaker::Agent => {
                self.steps.push(index);
                if text::words(&message.text).len() >= SPEAKING_WORDS {
                    self.last = Some(index);
                }
            }
            Speaker::Tool if message.is_failure && self.first_failure.is_none() => {
                self.first_failure = Some(index);
            }
            _ => {}
        }
        self.messages.push(MessageReading {
            message,
            lower: message.text.to_lowercase(),
            prose_lower: prose.to_lowercase(),
            prose,
            action: (!action.is_empty()).then(|| action.join("\n")),
            stated,
            new_values,
            results: Vec::new(),
            answered: Vec::new(),
        });
    }

    /// Links each result to the step that called for it: by the id of its call, else to the step just before.
    fn link_results(&mut self) {
        let mut waiting: Vec<usize> = Vec::new();
        let mut step = None;
        for index in 0..self.messages.len() {
            let message = self.messages[index].message;
            match message.speaker {
                Speaker::Tool => {
                    if let Some(caller) =
                        message.answers.or(step).and_then(|step| self.messages.get_mut(step))
                    {
                        caller.results.push(index);
                    }
                    waiting.push(index);
                }
                Speaker::Agent => {
                    self.messages[index].answered = std::mem::take(&mut waiting);
                    step = Some(index);
                }
                Speaker::User | Speaker::Context => {}
            }
        }
    }

    pub(super) fn seq(&self, index: usize) -> u32 {
        self.messages[index].message.seq
    }
}
