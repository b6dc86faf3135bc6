//! `annals diff`: compares two runs. Differences in meaning come before differences in bytes.

use std::collections::HashSet;

use annals::RunReader;
use annals_server::profiles::Redactor;
use annals_server::providers::{FirstDifference, MeaningDetail, MeaningDifference};
use annals_server::{BodyDifference, FrameDifference, FramePair};
use serde_json::{Map, Value, json};

use crate::args::{DiffArgs, GlobalArgs};
use crate::failure::{CliResult, Failure, FailureCode};
use crate::output::{CliOutput, count, plural, preview, printable};
use crate::profiles;
use crate::store_access::StoreAccess;

/// Most differing frames that are shown.
const FRAMES_MAX: usize = 200;
/// Most differences of one request or answer that are shown.
const DIFFERENCES_MAX: usize = 20;
/// Most characters shown of an answer that only one run has.
const ANSWER_CHARS: usize = 60;

/// Both runs, and the redactor of the reader.
struct DiffedRuns<'a> {
    door: &'a StoreAccess,
    a: RunReader,
    b: RunReader,
    redactor: Option<&'a Redactor>,
}

pub(super) fn run(global: &GlobalArgs, args: &DiffArgs, out: &mut CliOutput) -> CliResult<()> {
    let redactor = profiles::redactor(global, &args.reader)?;
    let redactor = redactor.as_ref();
    let door = super::open_to_read(global)?;
    let sides = DiffedRuns { door: &door, a: door.reader(&args.a)?, b: door.reader(&args.b)?, redactor };
    let pairs = door.align(&sides.a, &sides.b)?.pairs;
    let is_same = |pair: &&FramePair| matches!(pair, FramePair::Same(..));
    let says_same = |pair: &&FramePair| matches!(pair, FramePair::Changed { says_same: true, .. });
    let (same, form) = (pairs.iter().filter(is_same).count(), pairs.iter().filter(says_same).count());
    if out.json {
        pairs.iter().try_for_each(|pair| out.object(&sides.pair_json(pair)?))?;
    } else {
        profiles::print_redaction_note(redactor);
        // Frames with the same meaning are counted, not shown.
        let mut others = pairs.iter().filter(|pair| !is_same(pair) && !says_same(pair));
        let mut told = HashSet::new();
        others.by_ref().take(FRAMES_MAX).try_for_each(|pair| sides.print_pair(pair, &mut told, out))?;
        match others.count() {
            0 => {}
            more => out.line(format_args!("and {} more that differ", plural(more as u64, "frame")))?,
        }
        out.line(summary(same, form, pairs.len() - same - form))?;
    }
    if same == pairs.len() { Ok(()) } else { Err(Failure::Silent(FailureCode::Damage)) }
}

/// `2 frames the same, 1 says the same in other bytes, 3 differ`.
fn summary(same: usize, form: usize, other: usize) -> String {
    let mut text = format!("{} the same, ", plural(same as u64, "frame"));
    if form > 0 {
        let say = if form == 1 { "says" } else { "say" };
        text += &format!("{} {say} the same in other bytes, ", count(form as u64));
    }
    text + &format!("{} {}", count(other as u64), if other == 1 { "differs" } else { "differ" })
}

impl DiffedRuns<'_> {
    fn difference(&self, a: u32, b: u32) -> CliResult<FrameDifference> {
        self.door.difference((&self.a, a), (&self.b, b), self.redactor)
    }

    /// Prints a pair of frames. Later requests repeat earlier messages, so differences in `told` are only
    /// counted.
    fn print_pair(&self, pair: &FramePair, told: &mut HashSet<String>, out: &mut CliOutput) -> CliResult<()> {
        let (name_a, name_b) = (&self.a.info().name, &self.b.info().name);
        match pair {
            FramePair::Same(..) => Ok(()),
            FramePair::Dropped(seq) => self.print_unpaired('-', name_a, *seq, out),
            FramePair::Added(seq) => self.print_unpaired('+', name_b, *seq, out),
            FramePair::Changed { a, b, .. } => {
                let difference = self.difference(*a, *b)?;
                out.line(format_args!(
                    "~ {name_b}@{b} beside {name_a}@{a}: {}",
                    differing_side(&difference)
                ))?;
                print_body("request", &difference.request, told, out)?;
                print_body("answer", &difference.answer, &mut HashSet::new(), out)
            }
        }
    }

    /// Prints a frame that only one run has.
    fn print_unpaired(&self, mark: char, run: &str, seq: u32, out: &mut CliOutput) -> CliResult<()> {
        let frame = profiles::redacted_frame(self.redactor, self.door.frame(run, seq)?);
        let answer = preview(&frame.output, ANSWER_CHARS);
        out.line(format_args!("{mark} {run}@{seq} only: {}: {answer}", printable(&frame.component)))
    }

    fn pair_json(&self, pair: &FramePair) -> CliResult<Value> {
        Ok(match pair {
            FramePair::Same(a, b) => json!({ "same": true, "a": a, "b": b }),
            FramePair::Dropped(a) => json!({ "same": false, "a": a }),
            FramePair::Added(b) => json!({ "same": false, "b": b }),
            FramePair::Changed { a, b, input, output, says_same } => {
                let mut object = json!({
                    "same": false, "a": a, "b": b, "input": input, "output": output, "says_same": says_same,
                });
                let found = self.difference(*a, *b)?;
                let mut all = Vec::new();
                push_body_json("request", &found.request, &mut all);
                push_body_json("answer", &found.answer, &mut all);
                object["differences"] = Value::Array(all);
                object
            }
        })
    }
}

/// Names the side whose meaning or bytes differ, not only its form.
fn differing_side(difference: &FrameDifference) -> &'static str {
    let differs = |body: &BodyDifference| !matches!(body, BodyDifference::Same | BodyDifference::Form(_));
    match (differs(&difference.request), differs(&difference.answer)) {
        (true, true) => "request and answer",
        (true, false) => "request",
        (false, true) => "answer",
        (false, false) => "component or failure",
    }
}

fn print_body(
    side: &str,
    body: &BodyDifference,
    told: &mut HashSet<String>,
    out: &mut CliOutput,
) -> CliResult<()> {
    let span = |span: &FirstDifference, why: &str, out: &mut CliOutput| {
        let FirstDifference { at, was, is } = span;
        out.line(format_args!(
            "  {side}, {why}, from byte {at}\n    was  {}\n    is   {}",
            printable(was),
            printable(is)
        ))
    };
    match body {
        BodyDifference::Same => Ok(()),
        BodyDifference::Hidden => {
            out.line(format_args!("  {side}: differs in what this profile does not show"))
        }
        BodyDifference::Form(_) => out.line(format_args!("  {side}: says the same in other bytes")),
        BodyDifference::Bytes(at) => span(at, "compared by its bytes", out),
        BodyDifference::Words(differences) => {
            let lines: Vec<_> = differences.iter().map(ToString::to_string).collect();
            let new: Vec<_> = lines.iter().filter(|line| told.insert((*line).clone())).collect();
            let before = lines.len() - new.len();
            out.line(format_args!("  {side}:"))?;
            for line in new.iter().take(DIFFERENCES_MAX) {
                out.line(printable(&format!("  {line}")))?;
            }
            if let Some(more) = new.len().checked_sub(DIFFERENCES_MAX).filter(|more| *more > 0) {
                out.line(format_args!("  and {} more: --json has all", count(more as u64)))?;
            }
            match before {
                0 => Ok(()),
                before => out.line(format_args!("  and {} told above", count(before as u64))),
            }
        }
    }
}

fn push_body_json(side: &str, body: &BodyDifference, into: &mut Vec<Value>) {
    let span = |span: &FirstDifference, kind: &str| json!({ "in": side, "kind": kind, "at": span.at, "a": span.was, "b": span.is });
    match body {
        BodyDifference::Same => {}
        BodyDifference::Hidden => into.push(json!({ "in": side, "kind": "hidden" })),
        BodyDifference::Form(at) => into.push(span(at, "form")),
        BodyDifference::Bytes(at) => into.push(span(at, "bytes")),
        BodyDifference::Words(all) => {
            into.extend(all.iter().map(|one| Value::Object(difference_json(side, one))))
        }
    }
}

fn difference_json(side: &str, difference: &MeaningDifference) -> Map<String, Value> {
    let mut object = Map::new();
    let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
    put("in", side.into());
    put("kind", difference.kind.to_string().into());
    if let Some(message) = difference.message {
        put("message", (message + 1).into());
    }
    for (key, text) in [("role", &difference.role), ("name", &difference.name)] {
        if !text.is_empty() {
            put(key, text.as_str().into());
        }
    }
    let mut sides = |change: &str, a: Option<&str>, b: Option<&str>| {
        put("change", change.into());
        for (key, text) in [("a", a), ("b", b)] {
            if let Some(text) = text {
                put(key, text.into());
            }
        }
    };
    match &difference.detail {
        MeaningDetail::Added(b) => sides("added", None, Some(b)),
        MeaningDetail::Dropped(a) => sides("dropped", Some(a), None),
        MeaningDetail::Role { a, b } => sides("role", Some(a), Some(b)),
        MeaningDetail::Tool { a, b } => sides("tool", Some(a), Some(b)),
        MeaningDetail::Text(span) => {
            sides("text", Some(&span.was), Some(&span.is));
            put("at", span.at.into());
        }
        MeaningDetail::Values(values, more) => {
            sides("values", None, None);
            let value = |value: &annals_server::providers::ValueChange| json!({ "path": value.path, "a": value.a, "b": value.b });
            put("paths", values.iter().map(value).collect());
            if *more > 0 {
                put("more", (*more).into());
            }
        }
        _ => {}
    }
    object
}
