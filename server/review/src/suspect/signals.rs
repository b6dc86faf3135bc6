//! The signals: what in a message, or around it, raises or lowers the suspicion that the run failed there.
//!
//! A signal has a name, a value, the frame that is its evidence, and a sentence. Its weight is in `weights`:
//! a negative weight clears a step. The phrases are ordinary English; runs in other languages give fewer
//! signals.

use std::collections::{HashMap, HashSet};

use super::reading::{MessageReading, RunReading};
use super::text;
use super::transcript::{Speaker, Transcript};

/// The kinds of signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Signal {
    /// The step hands the task over to the other agents.
    Opening,
    /// The task as handed over lacks words of the task as given.
    TaskChanged,
    /// One of the first two steps after the task.
    EarlyStep,
    /// A message of a few words, for example the end of a conversation.
    SaysLittle,
    /// The message assumes, estimates, or uses sample data.
    Assumption,
    /// The message states a value that nothing before it holds.
    ValueFromNowhere,
    /// The message reacts to the result of a tool.
    ReactsToResult,
    /// The message calls a tool or holds code.
    Acts,
    /// The message speaks of verification.
    Checks,
    /// A value of the final answer appears here first.
    SourceOfFinalValue,
    /// The result of the step's action is next to nothing.
    ThinResult,
    /// The result of the step's action is a failure.
    FailedAction,
    /// The message speaks of errors and other ways.
    SpeaksOfErrors,
    /// The run's first failure is the result of this step.
    FirstError,
    /// The same action was taken before.
    RepeatedAction,
    /// The message states another value than the result just before it.
    Contradiction,
    /// The message promises something, and no later step acts.
    UnkeptPromise,
    /// A user's message names values that no step uses.
    UnservedInstruction,
    /// The step calls a tool that its request does not offer.
    UnofferedTool,
    /// The step goes on with a result that calls itself out of date.
    StaleSource,
    /// The message reports success just after a failure.
    IgnoredFailure,
    /// A call that hands work over lacks values of the task.
    LostInHandover,
    /// The answer is cut or an error.
    CutShort,
}

impl Signal {
    /// All signals, in the order of their weights' file.
    pub const ALL: [Self; 23] = [
        Self::Opening,
        Self::TaskChanged,
        Self::EarlyStep,
        Self::SaysLittle,
        Self::Assumption,
        Self::ValueFromNowhere,
        Self::ReactsToResult,
        Self::Acts,
        Self::Checks,
        Self::SourceOfFinalValue,
        Self::ThinResult,
        Self::FailedAction,
        Self::SpeaksOfErrors,
        Self::FirstError,
        Self::RepeatedAction,
        Self::Contradiction,
        Self::UnkeptPromise,
        Self::UnservedInstruction,
        Self::UnofferedTool,
        Self::StaleSource,
        Self::IgnoredFailure,
        Self::LostInHandover,
        Self::CutShort,
    ];

    /// Its name in output and in the weights' file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::TaskChanged => "task_changed",
            Self::EarlyStep => "early_step",
            Self::SaysLittle => "says_little",
            Self::Assumption => "assumption",
            Self::ValueFromNowhere => "value_from_nowhere",
            Self::ReactsToResult => "reacts_to_result",
            Self::Acts => "acts",
            Self::Checks => "checks",
            Self::SourceOfFinalValue => "source_of_final_value",
            Self::ThinResult => "thin_result",
            Self::FailedAction => "failed_action",
            Self::SpeaksOfErrors => "speaks_of_errors",
            Self::FirstError => "first_error",
            Self::RepeatedAction => "repeated_action",
            Self::Contradiction => "contradiction",
            Self::UnkeptPromise => "unkept_promise",
            Self::UnservedInstruction => "unserved_instruction",
            Self::UnofferedTool => "unoffered_tool",
            Self::StaleSource => "stale_source",
            Self::IgnoredFailure => "ignored_failure",
            Self::LostInHandover => "lost_in_handover",
            Self::CutShort => "cut_short",
        }
    }
}

/// A signal seen at a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Observation {
    /// Its kind.
    pub signal: Signal,
    /// Its strength: 1, a share, or a logarithm of a count.
    pub value: f64,
    /// The frame that is its evidence.
    pub seq: u32,
    /// What is seen, as a sentence without a full stop.
    pub why: String,
}

const ASSUMPTIONS: [&str; 18] = [
    "assum",
    "hypothetical",
    "placeholder",
    "mock",
    "simulat",
    "for demonstration",
    "sample data",
    "example data",
    "dummy",
    "suppose ",
    "your_api_key",
    "your api key",
    "example.com",
    "path/to",
    "estimate",
    "general knowledge",
    "typical",
    "illustrat",
];
const CHECKS: [&str; 4] = ["verif", "validat", "double-check", "cross-check"];
const TROUBLE: [&str; 16] = [
    "apolog",
    "incorrect",
    "mistake",
    "fix",
    "correct the",
    "issue",
    "error",
    "let's try",
    "instead",
    "however",
    "does not",
    "not defined",
    "did not",
    "failed",
    "unable",
    "sorry",
];
const SUCCESS: [&str; 6] = ["success", "completed", "confirmed", "verified", "all set", "has been"];
const PROMISES: [&str; 6] = ["i will ", "i'll ", "let me ", "i am going to", "i'm going to", "i shall "];
/// Words after a promise's beginning that make it none: "let me know", "I'll need", "I will be happy".
const NO_PROMISES: [&str; 6] = ["know", "need", "be", "have", "require", "wait"];
const STALE: [&str; 7] =
    ["outdated", "out of date", "superseded", "deprecated", "obsolete", "no longer valid", "stale"];
const HANDOVERS: [&str; 5] = ["transfer", "handoff", "hand_off", "delegate", "assign"];
const NOTHING: [&str; 7] = ["", "null", "none", "[]", "{}", "\"\"", "undefined"];

/// Words of prose below which a message says little.
const LITTLE_WORDS: usize = 8;
/// Bytes of a program's output that are next to nothing.
const THIN_BYTES: usize = 120;
/// Bytes of prose at a message's beginning that are searched for signs of trouble.
const TROUBLE_BYTES: usize = 400;
/// A user's message with more values holds data, not instructions.
const INSTRUCTION_VALUES_MAX: usize = 40;
/// Bytes of arguments below which a handover passes no task.
const HANDOVER_BYTES_MIN: usize = 20;
/// Maximum number of values that a sentence names.
const NAMED_VALUES: usize = 3;

/// The observations of every step, in the order of [`RunReading::steps`].
pub(super) fn observe(run: &RunReading<'_>, transcript: &Transcript) -> Vec<Vec<Observation>> {
    let mut before = StepsBefore::new(run);
    let steps = run.steps.iter().enumerate().map(|(number, index)| {
        let mut seen = Observations { seq: run.seq(*index), list: Vec::new() };
        let step = &run.messages[*index];
        if run.opening == Some(*index) {
            opening(run, transcript, step, &mut seen);
        } else {
            position(run, number, &mut seen);
            words(step, &mut seen);
            values(run, *index, step, &mut seen);
        }
        action(run, step, &mut seen);
        results(run, step, &mut seen);
        conduct(run, *index, step, &mut before, &mut seen);
        seen.list
    });
    steps.collect()
}

/// The observations of one step.
struct Observations {
    seq: u32,
    list: Vec<Observation>,
}

impl Observations {
    fn add(&mut self, signal: Signal, value: f64, seq: u32, why: String) {
        self.list.push(Observation { signal, value, seq, why });
    }

    /// With the step itself as evidence.
    fn here(&mut self, signal: Signal, value: f64, why: impl Into<String>) {
        self.add(signal, value, self.seq, why.into());
    }
}

/// What the steps before did.
struct StepsBefore {
    /// The frame of the first step with each action.
    actions: HashMap<[u8; 32], u32>,
    /// The last step that acts.
    last_action: Option<usize>,
    /// Values of users' messages that no step uses, by the index of the message.
    unserved: HashMap<usize, Vec<String>>,
    /// Values of users' messages so far that are no mere data.
    asked: Vec<String>,
    /// The next message of a user to look at.
    next: usize,
}

impl StepsBefore {
    fn new(run: &RunReading<'_>) -> Self {
        let mut unserved = HashMap::new();
        for (index, reading) in run.messages.iter().enumerate() {
            if reading.message.speaker == Speaker::User && reading.stated.len() <= INSTRUCTION_VALUES_MAX {
                let is_unused = |value: &&String| {
                    value.len() > 3 && !text::is_known(value, |part| run.used.contains(part))
                };
                let unused: Vec<String> = reading.stated.iter().filter(is_unused).cloned().collect();
                if !unused.is_empty() {
                    unserved.insert(index, unused);
                }
            }
        }
        let last_action = run.steps.iter().rev().find(|step| run.messages[**step].action.is_some()).copied();
        Self { actions: HashMap::new(), last_action, unserved, asked: Vec::new(), next: 0 }
    }
}

fn opening(
    run: &RunReading<'_>,
    transcript: &Transcript,
    step: &MessageReading<'_>,
    seen: &mut Observations,
) {
    let others = run.steps.len() > 1;
    if others {
        seen.here(Signal::Opening, 1.0, "this step hands the task over to the others");
    }
    let Some(task) = &transcript.task else { return };
    let (wanted, given) = (text::words(task), text::words(&step.message.text));
    let lost = wanted.difference(&given).count();
    if lost > 0 {
        let share = ratio(lost, wanted.len());
        let what = format!(
            "{lost} of the {} words of the task as given are not in the task as handed over",
            wanted.len()
        );
        seen.here(Signal::TaskChanged, share, what);
    }
}

fn position(run: &RunReading<'_>, number: usize, seen: &mut Observations) {
    let number = number - usize::from(run.opening.is_some());
    if number < 2 {
        let which = if number == 0 { "first" } else { "second" };
        seen.here(
            Signal::EarlyStep,
            1.0,
            format!("this is the {which} step after the task: later steps build on it"),
        );
    }
}

fn words(step: &MessageReading<'_>, seen: &mut Observations) {
    if step.action.is_none() && text::words(&step.prose).len() < LITTLE_WORDS {
        seen.here(Signal::SaysLittle, 1.0, "the message says little");
    }
    let arguments: String = step.message.calls.iter().map(|call| call.arguments.to_lowercase()).collect();
    let count = text::phrase_count(&step.lower, &ASSUMPTIONS) + text::phrase_count(&arguments, &ASSUMPTIONS);
    if count > 0 {
        let phrase = text::first_phrase(&step.lower, &ASSUMPTIONS);
        let quoted = phrase.map_or_else(
            || text::quote(&arguments),
            |phrase| text::quote_around(&step.message.text, &step.lower, phrase),
        );
        seen.here(Signal::Assumption, logarithm(count), format!("it builds on an assumption: {quoted}"));
    }
    if text::first_phrase(&step.prose_lower, &CHECKS).is_some() {
        seen.here(Signal::Checks, 1.0, "the message speaks of verification");
    }
    if text::first_phrase(text::head(&step.prose_lower, TROUBLE_BYTES), &TROUBLE).is_some() {
        seen.here(Signal::SpeaksOfErrors, 1.0, "the message speaks of errors or of another way");
    }
}

fn values(run: &RunReading<'_>, index: usize, step: &MessageReading<'_>, seen: &mut Observations) {
    if !step.new_values.is_empty() {
        let what = format!("no earlier frame holds {}", named(&step.new_values));
        seen.here(Signal::ValueFromNowhere, 1.0, what);
    }
    let Some(last) = run.last else { return };
    let is_source = |value: &&String| run.first_seen.get(*value) == Some(&Some(index));
    let sources: Vec<String> = run.messages[last].stated.iter().filter(is_source).cloned().collect();
    if !sources.is_empty() {
        let what =
            format!("the final answer has {}, which no tool returned before this step", named(&sources));
        seen.add(Signal::SourceOfFinalValue, 1.0, run.seq(last), what);
    }
}

fn action(run: &RunReading<'_>, step: &MessageReading<'_>, seen: &mut Observations) {
    if let Some(last) = step.answered.last() {
        seen.add(Signal::ReactsToResult, 1.0, run.seq(*last), "the message reacts to a result".to_owned());
    }
    if step.action.is_some() {
        let tools: Vec<String> = step.message.calls.iter().map(|call| call.name.clone()).collect();
        let what = if tools.is_empty() {
            "the step writes code".to_owned()
        } else {
            format!("the step calls {}", named(&tools))
        };
        seen.here(Signal::Acts, 1.0, what);
    }
}

fn results(run: &RunReading<'_>, step: &MessageReading<'_>, seen: &mut Observations) {
    if step.action.is_none() {
        return;
    }
    let failed = step.results.iter().find(|result| run.messages[**result].message.is_failure);
    if let Some(failed) = failed {
        let quoted = text::quote(last_line(&run.messages[*failed].message.text));
        seen.add(
            Signal::FailedAction,
            1.0,
            run.seq(*failed),
            format!("the result of its action is a failure: {quoted}"),
        );
        if run.first_failure == Some(*failed) {
            let what = "this is the first failure of the run".to_owned();
            seen.add(Signal::FirstError, 1.0, run.seq(*failed), what);
        }
    } else if let Some(first) = step.results.first() {
        let result = run.messages[*first].message.text.trim();
        // Tools with arguments often return a word; programs print what they found.
        let is_thin = match step.message.calls.is_empty() {
            true => result.len() < THIN_BYTES,
            false => NOTHING.contains(&result),
        };
        if is_thin {
            let what = format!("its action returned next to nothing: {}", text::quote(result));
            seen.add(Signal::ThinResult, 1.0, run.seq(*first), what);
        }
    }
}

/// How the step deals with what it knows.
fn conduct(
    run: &RunReading<'_>,
    index: usize,
    step: &MessageReading<'_>,
    before: &mut StepsBefore,
    seen: &mut Observations,
) {
    let seq = seen.seq;
    if let Some(action) = &step.action {
        let key = *blake3::hash(action.as_bytes()).as_bytes();
        match before.actions.get(&key) {
            Some(first) => {
                let what = format!("the same action was taken in frame {first}");
                seen.add(Signal::RepeatedAction, 1.0, *first, what);
            }
            None => {
                before.actions.insert(key, seq);
            }
        }
    }
    answered_results(run, step, seen);
    if let Some(promise) = promise(&step.prose_lower)
        && step.action.is_none()
        && before.last_action.is_none_or(|last| last < index)
    {
        let quoted = text::quote_at(&step.prose, step.prose_lower.len(), promise);
        seen.here(Signal::UnkeptPromise, 1.0, format!("no later step acts on {quoted}"));
    }
    while before.next < index {
        let user = before.next;
        before.next += 1;
        if let Some(unused) = before.unserved.remove(&user) {
            let what = format!("no step uses {}, which the user named", named(&unused));
            seen.add(Signal::UnservedInstruction, 1.0, run.seq(user), what);
        }
        let asked = &run.messages[user];
        if asked.message.speaker == Speaker::User && asked.stated.len() <= INSTRUCTION_VALUES_MAX {
            let room = INSTRUCTION_VALUES_MAX.saturating_sub(before.asked.len());
            before.asked.extend(asked.stated.iter().filter(|value| value.len() > 3).take(room).cloned());
        }
    }
    for call in &step.message.calls {
        if call.is_unoffered {
            let what = format!("its request does not offer the tool {:?}", call.name);
            seen.here(Signal::UnofferedTool, 1.0, what);
            break;
        }
    }
    lost_in_handover(step, before, seen);
    if let Some(fault) = &step.message.fault {
        seen.here(Signal::CutShort, 1.0, fault.clone());
    }
}

/// The results just before the step, and whether the step takes them as they are.
fn answered_results(run: &RunReading<'_>, step: &MessageReading<'_>, seen: &mut Observations) {
    let speaks_of_trouble = text::first_phrase(&step.prose_lower, &TROUBLE).is_some();
    for result in &step.answered {
        let reading = &run.messages[*result];
        let is_success = text::first_phrase(&step.prose_lower, &SUCCESS).is_some();
        if reading.message.is_failure && is_success && step.action.is_none() && !speaks_of_trouble {
            let what = "it reports success just after a failure".to_owned();
            seen.add(Signal::IgnoredFailure, 1.0, run.seq(*result), what);
        }
        if let Some(stale) = text::first_phrase(&reading.lower, &STALE)
            && !step.prose_lower.contains(stale)
            && !speaks_of_trouble
        {
            let quoted = text::quote_around(&reading.message.text, &reading.lower, stale);
            let what = format!("it goes on with a result that calls itself out of date: {quoted}");
            seen.add(Signal::StaleSource, 1.0, run.seq(*result), what);
        }
        if step.new_values.is_empty() {
            continue;
        }
        let new: HashSet<&str> = step.new_values.iter().map(String::as_str).collect();
        let given = labelled_numbers(&reading.message.text);
        let stated = labelled_numbers(&step.prose);
        let mut labels: Vec<&String> = stated.keys().filter(|label| given.contains_key(*label)).collect();
        labels.sort_unstable();
        let found = labels.into_iter().find_map(|label| {
            let (told, said) = (given.get(label)?, stated.get(label)?);
            let wrong = said.iter().find(|value| new.contains(value.as_str()) && !told.contains(value))?;
            Some(format!("it says {label} {wrong}, but the result says {}", told.first()?))
        });
        if let Some(what) = found {
            seen.add(Signal::Contradiction, 1.0, run.seq(*result), what);
        }
    }
}

fn lost_in_handover(step: &MessageReading<'_>, before: &StepsBefore, seen: &mut Observations) {
    let is_handover = |name: &str| text::first_phrase(&name.to_lowercase(), &HANDOVERS).is_some();
    for call in step.message.calls.iter().filter(|call| is_handover(&call.name)) {
        if call.arguments.len() < HANDOVER_BYTES_MIN {
            continue;
        }
        let passed: HashSet<String> = text::values(&call.arguments).into_iter().collect();
        let is_lost = |value: &&String| !text::is_known(value, |part| passed.contains(part));
        let lost: Vec<String> = before.asked.iter().filter(is_lost).cloned().collect();
        if !lost.is_empty() {
            let what =
                format!("the handover by {:?} lacks {}, which the user named", call.name, named(&lost));
            seen.here(Signal::LostInHandover, 1.0, what);
            return;
        }
    }
}

/// The place of the first promise to act in a text in lower case.
fn promise(lower: &str) -> Option<usize> {
    let is_promise = |(at, phrase): &(usize, &str)| {
        let next = lower.get(at + phrase.len()..).unwrap_or_default();
        let next = next.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        !NO_PROMISES.contains(&next)
    };
    let places = PROMISES.iter().flat_map(|phrase| lower.match_indices(phrase));
    places.filter(is_promise).map(|(at, _)| at).min()
}

/// Numbers with the word just before them: `total_price: 120` gives `price` with 120.
fn labelled_numbers(text: &str) -> HashMap<String, Vec<String>> {
    let mut found: HashMap<String, Vec<String>> = HashMap::new();
    let mut label = String::new();
    for token in text.split(|c: char| !(c.is_alphanumeric() || c == '.' || c == ',')) {
        let token = token.trim_matches(|c: char| !c.is_alphanumeric());
        if token.len() >= 4 && token.chars().all(char::is_alphabetic) {
            label = token.to_lowercase();
        } else if token.bytes().any(|byte| byte.is_ascii_digit()) {
            let value = text::values(token).into_iter().next();
            if let Some(value) = value.filter(|_| !label.is_empty()) {
                found.entry(std::mem::take(&mut label)).or_default().push(value);
            }
            label.clear();
        }
    }
    found
}

/// The last line of a text that is not empty: where programs name their error.
fn last_line(text: &str) -> &str {
    text.trim_end().lines().last().unwrap_or_default()
}

/// The first values of a list, as a sentence names them: numbers and identifiers before names.
fn named(values: &[String]) -> String {
    let has_digit = |value: &&String| value.bytes().any(|byte| byte.is_ascii_digit());
    let (first, rest): (Vec<&String>, Vec<&String>) = values.iter().partition(has_digit);
    let shown = first.into_iter().chain(rest).take(NAMED_VALUES).map(|value| text::quote(value));
    let shown: Vec<String> = shown.collect();
    match values.len() - shown.len() {
        0 => shown.join(", "),
        1 => format!("{} and 1 other", shown.join(", ")),
        more => format!("{} and {more} others", shown.join(", ")),
    }
}

fn ratio(part: usize, whole: usize) -> f64 {
    f64::from(u32::try_from(part).unwrap_or(u32::MAX))
        / f64::from(u32::try_from(whole.max(1)).unwrap_or(u32::MAX))
}

/// The natural logarithm of one more than a count, at most that of 33.
fn logarithm(count: usize) -> f64 {
    f64::from(u32::try_from(count.min(32)).unwrap_or(32)).ln_1p()
}
