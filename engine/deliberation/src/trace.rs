//! A deliberation: the inputs of a decision, the steps of thinking, and when they converged.
//!
//! Form (snake_case, as stored): `inputs [{id, text, source?, timestamp?}]`, `steps [{step, thought, inputs_used?,
//! timestamp?, duration_ms?, type?, conclusion?}]`, `total_duration_ms?`, `convergence_point?`. Over JSON-RPC
//! durations and the convergence point are in camelCase. Both spellings are read. Members that are not known
//! keep their bytes. A known member that says nothing (`null`, `false`, an empty text or list) is left out.

use std::collections::HashSet;

use annals::{Error, Result};

use crate::json::{ObjectText, RawObject, array_text, check_choice, parse_as, raw_items};
use crate::times::iso_micros;
use crate::tracker::TrackedInput;

/// Types of reasons, of a decision and of a step.
pub const REASON_TYPES: [&str; 8] =
    ["authority", "analogy", "analysis", "pattern", "intuition", "empirical", "elimination", "constraint"];
/// Types of steps.
const STEP_TYPES: [&str; 9] = [
    "authority",
    "analogy",
    "analysis",
    "pattern",
    "intuition",
    "empirical",
    "elimination",
    "constraint",
    "reasoning",
];

/// How names of members are spelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Spelling {
    /// `totalDurationMs`, as JSON-RPC has it.
    #[default]
    Camel,
    /// `total_duration_ms`, as it is stored.
    Snake,
}

/// Members in the spelling of JSON-RPC, and as they are stored.
const SPELLINGS: [(&str, &str); 3] = [
    ("durationMs", "duration_ms"),
    ("totalDurationMs", "total_duration_ms"),
    ("convergencePoint", "convergence_point"),
];

#[derive(Debug, Clone)]
pub(crate) struct TraceInput {
    pub(crate) id: String,
    pub(crate) source: Option<String>,
    pub(crate) timestamp: Option<String>,
    /// As it is stored.
    raw: String,
}

#[derive(Debug, Clone)]
pub(crate) struct TraceStep {
    pub(crate) number: u64,
    pub(crate) inputs_used: Vec<String>,
    pub(crate) timestamp: Option<String>,
    pub(crate) duration_ms: Option<f64>,
    pub(crate) kind: Option<String>,
    /// As it is stored.
    raw: String,
}

/// A deliberation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trace {
    pub(crate) inputs: Vec<TraceInput>,
    pub(crate) steps: Vec<TraceStep>,
    pub(crate) total_duration_ms: Option<f64>,
    pub(crate) convergence_point: Option<u64>,
    /// Names with quotes and values of all members besides inputs and steps, as they are stored.
    members: Vec<(String, String)>,
}

/// Whether a known optional member says nothing.
fn is_empty_value(value: &str) -> bool {
    matches!(value, "null" | "false" | "\"\"") || value.starts_with('[') && value[1..].trim_start() == "]"
}

/// The text of an object with known names as they are stored; known members that say nothing are left out.
fn stored_object(object: &RawObject<'_>, known: &[&str]) -> String {
    object
        .members
        .iter()
        .filter(|member| !(known.contains(&stored_name(&member.name)) && is_empty_value(member.value)))
        .fold(ObjectText::new(), |text, member| match stored_name(&member.name) {
            name if name == member.name => text.raw(member.quoted, member.value),
            name => text.json(name, member.value),
        })
        .end()
}

fn stored_name(name: &str) -> &str {
    match name {
        "inputsUsed" => "inputs_used",
        _ => SPELLINGS.iter().find(|(camel, _)| *camel == name).map_or(name, |(_, snake)| snake),
    }
}

/// A duration: finite and not negative.
fn duration(object: &mut RawObject<'_>, names: &[&str]) -> Result<Option<f64>> {
    let found = object.take_as::<f64>(names, "a number of milliseconds")?;
    if let Some(ms) = found
        && (!ms.is_finite() || ms < 0.0)
    {
        return Err(Error::invalid(format!("{:?} of {} must be at least 0", names[0], object.place)));
    }
    Ok(found)
}

impl TraceInput {
    fn parse(text: &str, number: usize) -> Result<Self> {
        let place = format!("input {number} of the deliberation");
        let mut object = RawObject::parse(text, &place)?;
        let raw = stored_object(&object, &["source", "timestamp"]);
        let id = object.take_text(&["id"])?.filter(|id| !id.is_empty());
        let id = id.ok_or_else(|| Error::invalid(format!("{place} has no \"id\"")))?;
        if object.take_text(&["text"])?.is_none() {
            return Err(Error::invalid(format!("{place} has no \"text\"")));
        }
        Ok(Self {
            id,
            source: object.take_text(&["source"])?.filter(|source| !source.is_empty()),
            timestamp: object.take_text(&["timestamp"])?.filter(|time| !time.is_empty()),
            raw,
        })
    }

    fn tracked(input: &TrackedInput) -> Self {
        let timestamp = iso_micros(input.time_ns);
        let raw = ObjectText::new()
            .value("id", &input.id)
            .value("text", &input.text)
            .value("source", &input.source)
            .value("timestamp", &timestamp)
            .end();
        Self { id: input.id.clone(), source: Some(input.source.clone()), timestamp: Some(timestamp), raw }
    }
}

impl TraceStep {
    fn parse(text: &str, number: usize) -> Result<Self> {
        let place = format!("step {number} of the deliberation");
        let mut object = RawObject::parse(text, &place)?;
        let raw = stored_object(&object, &["inputs_used", "timestamp", "duration_ms", "type", "conclusion"]);
        let own = object.take_as::<u64>(&["step"], "a whole number of at least 1")?;
        let number = own.filter(|number| *number > 0).ok_or_else(|| {
            Error::invalid(format!("{place} has no number: \"step\" is a whole number of at least 1"))
        })?;
        if object.take_text(&["thought"])?.is_none() {
            return Err(Error::invalid(format!("{place} has no \"thought\"")));
        }
        object.take_as::<bool>(&["conclusion"], "true or false")?;
        let used =
            object.take_as::<Vec<String>>(&["inputs_used", "inputsUsed"], "a list of ids of inputs")?;
        let step = Self {
            number,
            inputs_used: used.unwrap_or_default(),
            timestamp: object.take_text(&["timestamp"])?.filter(|time| !time.is_empty()),
            duration_ms: duration(&mut object, &["duration_ms", "durationMs"])?,
            kind: object.take_text(&["type"])?.filter(|kind| !kind.is_empty()),
            raw,
        };
        if let Some(kind) = &step.kind {
            check_choice(kind, &format!("type of {place}"), &STEP_TYPES)?;
        }
        Ok(step)
    }

    /// A step with these members, without a duration.
    fn new(number: u64, thought: &str, inputs_used: &[String], time_ns: u64, kind: &str) -> Self {
        let timestamp = iso_micros(time_ns);
        let used = Some(inputs_used).filter(|used| !used.is_empty());
        let raw = ObjectText::new()
            .value("step", number)
            .value("thought", thought)
            .some("inputs_used", used)
            .value("timestamp", &timestamp)
            .value("type", kind)
            .end();
        Self {
            number,
            inputs_used: inputs_used.to_vec(),
            timestamp: Some(timestamp),
            duration_ms: None,
            kind: Some(kind.to_owned()),
            raw,
        }
    }
}

impl Trace {
    /// Parses a deliberation in either spelling. References are not checked yet ([`Trace::check`]).
    ///
    /// # Errors
    /// `Invalid` with the place and the reason.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        const PLACE: &str = "the deliberation";
        let mut object = RawObject::parse(text, PLACE)?;
        let inputs = match object.take(&["inputs"])? {
            None => Vec::new(),
            Some(items) => raw_items(items, "\"inputs\" of the deliberation")?,
        };
        let steps = match object.take(&["steps"])? {
            None => Vec::new(),
            Some(items) => raw_items(items, "\"steps\" of the deliberation")?,
        };
        let mut members = Vec::new();
        for member in &object.members {
            let name = stored_name(&member.name);
            let is_known = SPELLINGS.iter().any(|(_, snake)| *snake == name);
            // The point 0 is no step: the source reads it as absent.
            if is_known
                && (is_empty_value(member.value) || name == "convergence_point" && member.value == "0")
            {
                continue;
            }
            let quoted = if name == member.name { member.quoted.to_owned() } else { format!("\"{name}\"") };
            if !members.iter().any(|(known, _)| *known == quoted) {
                members.push((quoted, member.value.to_owned()));
            }
        }
        let total = duration(&mut object, &["total_duration_ms", "totalDurationMs"])?;
        let point = object.take(&["convergence_point", "convergencePoint"])?;
        let point =
            point.map(|point| parse_as::<u64>(point, "the number of a step", PLACE, "convergence_point"));
        let number = |(at, text): (usize, &str)| TraceInput::parse(text, at + 1);
        Ok(Self {
            inputs: inputs.into_iter().enumerate().map(number).collect::<Result<_>>()?,
            steps: steps
                .into_iter()
                .enumerate()
                .map(|(at, text)| TraceStep::parse(text, at + 1))
                .collect::<Result<_>>()?,
            total_duration_ms: total,
            convergence_point: point.transpose()?.filter(|point| *point > 0),
            members,
        })
    }

    /// Whether there are inputs or steps.
    pub(crate) fn has_content(&self) -> bool {
        !self.inputs.is_empty() || !self.steps.is_empty()
    }

    pub(crate) fn has_reasoning(&self) -> bool {
        self.steps.iter().any(|step| step.kind.as_deref() == Some("reasoning"))
    }

    /// Checks numbers and references.
    ///
    /// # Errors
    /// `Invalid` with the ids of inputs that do not exist, or the number that is wrong.
    pub(crate) fn check(&self) -> Result<()> {
        let mut ids = HashSet::new();
        if let Some(twice) = self.inputs.iter().find(|input| !ids.insert(input.id.as_str())) {
            return Err(Error::invalid(format!(
                "the deliberation has two inputs with the id {:?}",
                twice.id
            )));
        }
        let mut numbers = HashSet::new();
        if let Some(twice) = self.steps.iter().find(|step| !numbers.insert(step.number)) {
            return Err(Error::invalid(format!(
                "the deliberation has two steps with the number {}",
                twice.number
            )));
        }
        let used =
            self.steps.iter().flat_map(|step| step.inputs_used.iter().map(move |id| (step.number, id)));
        let missing: Vec<String> = used
            .filter(|(_, id)| !ids.contains(id.as_str()))
            .map(|(step, id)| format!("{id:?} (step {step})"))
            .collect();
        if !missing.is_empty() {
            return Err(Error::invalid(format!(
                "the deliberation uses inputs that it does not have: {}",
                missing.join(", ")
            )));
        }
        match self.convergence_point {
            Some(point) if !numbers.contains(&point) => Err(Error::invalid(format!(
                "the deliberation converges at step {point}, which it does not have"
            ))),
            _ => Ok(()),
        }
    }

    /// Adds tracked inputs, in the order of their capture, each with one step. An input whose id is there
    /// already is left out. Returns how many were added.
    pub(crate) fn merge_tracked(&mut self, tracked: &[TrackedInput]) -> usize {
        let is_derived = !self.has_content() && self.members.is_empty();
        let known: HashSet<String> = self.inputs.iter().map(|input| input.id.clone()).collect();
        let new: Vec<&TrackedInput> = tracked.iter().filter(|input| !known.contains(&input.id)).collect();
        let last = self.last_number();
        for (number, input) in (last + 1..).zip(&new) {
            self.inputs.push(TraceInput::tracked(input));
            let used = [input.id.clone()];
            let kind = input.kind.step_type();
            self.steps.push(TraceStep::new(number, &input.text, &used, input.time_ns, kind));
        }
        if let [first, .., last] = new.as_slice()
            && is_derived
        {
            // A clock that went backwards gives 0.
            let ms = last.time_ns.saturating_sub(first.time_ns) / 1_000_000;
            self.members.push(("\"total_duration_ms\"".to_owned(), ms.to_string()));
            self.total_duration_ms = Some(ms as f64);
        }
        new.len()
    }

    /// Adds a step of reasoning after all others.
    pub(crate) fn add_thought(&mut self, thought: &str, time_ns: u64) -> u64 {
        let number = self.last_number() + 1;
        self.steps.push(TraceStep::new(number, thought, &[], time_ns, "reasoning"));
        number
    }

    fn last_number(&self) -> u64 {
        self.steps.iter().map(|step| step.number).max().unwrap_or(0)
    }

    /// The text in a spelling.
    pub(crate) fn to_json(&self, spelling: Spelling) -> String {
        let mut text = ObjectText::new();
        if !self.inputs.is_empty() {
            text = text.json("inputs", &array_text(self.inputs.iter().map(|input| &input.raw)));
        }
        if !self.steps.is_empty() {
            let steps = self.steps.iter().map(|step| match spelling {
                Spelling::Snake => step.raw.clone(),
                Spelling::Camel => camel_object(&step.raw),
            });
            text = text.json("steps", &array_text(steps));
        }
        for (quoted, value) in &self.members {
            text = text.raw(&spelled(quoted, spelling), value);
        }
        text.end()
    }
}

fn spelled(quoted: &str, spelling: Spelling) -> String {
    let plain = quoted.trim_matches('"');
    match SPELLINGS.iter().find(|(_, snake)| spelling == Spelling::Camel && *snake == plain) {
        Some((camel, _)) => format!("\"{camel}\""),
        None => quoted.to_owned(),
    }
}

/// An object's text with known names in camelCase.
fn camel_object(text: &str) -> String {
    let Ok(object) = RawObject::parse(text, "a step") else { return text.to_owned() };
    let text = |text: ObjectText, member: &crate::json::RawMember<'_>| {
        text.raw(&spelled(member.quoted, Spelling::Camel), member.value)
    };
    object.members.iter().fold(ObjectText::new(), text).end()
}
