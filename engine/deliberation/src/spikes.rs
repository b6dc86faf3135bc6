//! A deliberation as spike timings, for models of spiking neurons.
//!
//! An input is the activation of a population: population `n` is the input with that number, from 0, in the
//! order of the trace. A step is a window, whose populations are the inputs that it uses. The step of the
//! convergence is the attractor. Times are milliseconds since the first event.
//!
//! An event without a time of its own is marked `estimated`. An activation stands where the one before it stands. A
//! window starts where the one before it ends, and not before an input that it uses. It ends at its start and
//! duration, else where the next window starts, else at the trace's total duration.

use annals::{Error, Result};
use serde::Serialize;

use crate::times::parse_iso;
use crate::trace::Trace;

/// A line of the export.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct SpikeEvent {
    /// `activation`, `window` or `attractor`.
    kind: &'static str,
    /// The id of the input, or the number of the step.
    name: String,
    /// Numbers of populations.
    populations: Vec<usize>,
    t_ms: f64,
    end_ms: f64,
    /// Whether the time follows from the events beside it.
    estimated: bool,
    /// The source of the input, or the type of the step.
    label: String,
}

/// The events of a deliberation by time; at the same time activations come before windows.
///
/// # Errors
/// `NotFound` if the deliberation has no event.
pub(crate) fn events(trace: &Trace) -> Result<Vec<SpikeEvent>> {
    if !trace.has_content() {
        return Err(Error::new(annals::ErrorKind::NotFound, "the decision has no deliberation to export"));
    }
    let time = |text: &Option<String>| text.as_deref().and_then(parse_iso);
    let all = trace.inputs.iter().map(|input| time(&input.timestamp));
    let first = all.chain(trace.steps.iter().map(|step| time(&step.timestamp))).flatten().min();
    let since = |at: i128| first.map_or(0.0, |first| (at - first) as f64 / 1e6);
    let mut out = Vec::new();
    let mut before = 0.0;
    for (population, input) in trace.inputs.iter().enumerate() {
        let own = time(&input.timestamp);
        let t_ms = own.map_or(before, since);
        before = t_ms;
        out.push(SpikeEvent {
            kind: "activation",
            name: input.id.clone(),
            populations: vec![population],
            t_ms,
            end_ms: t_ms,
            estimated: own.is_none(),
            label: input.source.clone().unwrap_or_default(),
        });
    }
    let mut starts = Vec::new();
    let mut before = 0.0;
    for step in &trace.steps {
        let own = time(&step.timestamp);
        let after_inputs = || {
            let used = out.iter().filter(|input| step.inputs_used.contains(&input.name));
            used.map(|input| input.t_ms).fold(before, f64::max)
        };
        let t_ms = own.map_or_else(after_inputs, since);
        before = t_ms + step.duration_ms.unwrap_or(0.0);
        starts.push((t_ms, own.is_none()));
    }
    for (at, step) in trace.steps.iter().enumerate() {
        let (t_ms, estimated) = starts.get(at).copied().unwrap_or_default();
        let next = starts.get(at + 1).map(|(start, _)| *start);
        let end = step.duration_ms.map(|ms| t_ms + ms).or(next).or(trace.total_duration_ms);
        let used = |id: &String| trace.inputs.iter().position(|input| input.id == *id);
        out.push(SpikeEvent {
            kind: if trace.convergence_point == Some(step.number) { "attractor" } else { "window" },
            name: step.number.to_string(),
            populations: step.inputs_used.iter().filter_map(used).collect(),
            t_ms,
            end_ms: end.unwrap_or(t_ms).max(t_ms),
            estimated,
            label: step.kind.clone().unwrap_or_default(),
        });
    }
    out.sort_by(|one, other| {
        let is_window = |event: &SpikeEvent| event.kind != "activation";
        one.t_ms.total_cmp(&other.t_ms).then(is_window(one).cmp(&is_window(other)))
    });
    Ok(out)
}

/// The events as CSV (RFC 4180) with a header; populations are separated by spaces.
pub(crate) fn to_csv(events: &[SpikeEvent]) -> String {
    let mut text = "kind,name,populations,t_ms,end_ms,estimated,label\n".to_owned();
    for event in events {
        let populations: Vec<String> = event.populations.iter().map(usize::to_string).collect();
        let fields = [
            event.kind.to_owned(),
            field(&event.name),
            populations.join(" "),
            event.t_ms.to_string(),
            event.end_ms.to_string(),
            event.estimated.to_string(),
            field(&event.label),
        ];
        text.push_str(&fields.join(","));
        text.push('\n');
    }
    text
}

/// A field of CSV. A field that a spreadsheet would read as a formula begins with an apostrophe.
fn field(text: &str) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = if is_formula { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text
}
