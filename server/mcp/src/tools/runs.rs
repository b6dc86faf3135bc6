//! Runs: search, the last failed one, one with its frames, and why one failed.

use annals::runs::{Flag, FrameInfo, RunFilter, RunOrder};
use annals::{Error, ErrorKind, RecordedFrame, RunReader, RunUid, Severity, Status};
use annals_policy::exchange::ExchangeMetadata;
use annals_policy::profiles::Redactor;
use annals_policy::providers::{ExchangeSummary, Prices};
use annals_review::suspect::{Transcript, Weights, rank};
use annals_review::{answer_summary, failure_report, last_failure, redacted_frame};
use jiff::Timestamp;
use memchr::memmem;
use serde_json::{Map, Value, json};

use super::blame::blame_item;
use super::{CURSOR, RUN, Tool, cursor_place, named_run};
use crate::answer::{Page, clipped, field};
use crate::arguments::{Arguments, Parameter, ParameterKind, ToolError};
use crate::store::{McpStore, ToolRight};

/// Bytes of a frame's bodies that a tool reads.
const FRAME_BYTES_MAX: u64 = 64 << 20;
/// Runs that one call lists without `limit`.
const RUNS_DEFAULT: u64 = 20;
/// Runs that are asked for at a time.
const PAGE_RUNS: usize = 64;
/// Bytes of bodies that one call searches; the cursor goes on.
const SEARCH_BYTES_MAX: usize = 64 << 20;
/// Runs that could not be searched and are named.
const UNREADABLE_MAX: usize = 10;
/// Bytes of an answer's text in a list of frames.
const SAYS_BYTES_MAX: usize = 240;
/// Bytes of the answer, and of standard error, of a frame that failed.
const FAILURE_TEXT_BYTES_MAX: usize = 4000;
/// Suspect steps of a run, and signals of a step.
const SUSPECTS_MAX: usize = 3;
const SIGNALS_MAX: usize = 5;
/// What is read beyond the bytes that are shown, so that a cut is seen: a character at least.
const CUT_BYTES: usize = 4;
/// Lines of what a request adds.
const NEW_LINES_MAX: usize = 20;

pub(super) const SEARCH_RUNS: Tool = Tool {
    name: "search_runs",
    title: "Search runs",
    description: "Lists recorded agent runs, newest first, by status, severity, agent, model, tags, time, and a text in their requests and answers.",
    parameters: &[
        Parameter {
            name: "text",
            kind: ParameterKind::Text,
            is_required: false,
            description: "Only runs whose requests or answers hold this text; letters of any case",
        },
        Parameter {
            name: "status",
            kind: ParameterKind::OneOf(&["open", "ok", "failed", "abandoned"]),
            is_required: false,
            description: "Only runs with this status",
        },
        Parameter {
            name: "severity",
            kind: ParameterKind::OneOf(&["debug", "normal", "flagged", "escalated"]),
            is_required: false,
            description: "Only runs with this severity",
        },
        Parameter {
            name: "agent",
            kind: ParameterKind::Text,
            is_required: false,
            description: "Only runs of this agent",
        },
        Parameter {
            name: "model",
            kind: ParameterKind::Text,
            is_required: false,
            description: "Only runs that were begun with this model",
        },
        Parameter {
            name: "tags",
            kind: ParameterKind::Texts,
            is_required: false,
            description: "Only runs with all these tags, each as KEY=VALUE",
        },
        Parameter {
            name: "since",
            kind: ParameterKind::Text,
            is_required: false,
            description: "Only runs that began at this time or later, for example 2026-11-24T00:00:00Z",
        },
        Parameter {
            name: "until",
            kind: ParameterKind::Text,
            is_required: false,
            description: "Only runs that began before this time",
        },
        Parameter {
            name: "limit",
            kind: ParameterKind::Integer(1, 100),
            is_required: false,
            description: "Maximum number of runs; default 20",
        },
        CURSOR,
    ],
    right: ToolRight::Read,
    run: search_runs,
};

pub(super) const LAST_FAILED_RUN: Tool = Tool {
    name: "last_failed_run",
    title: "Last failed run",
    description: "Explains the newest run that failed or was abandoned, else the newest flagged or escalated one: the frame to look at first, why it is severe, what its request added, its answer, the program's exit code and standard error.",
    parameters: &[],
    right: ToolRight::Read,
    run: last_failed_run,
};

pub(super) const EXPLAIN_FAILURE: Tool = Tool {
    name: "explain_failure",
    title: "Explain a failure",
    description: "Explains one run as last_failed_run does, and names the steps that may have caused the failure: suspects by a heuristic from the record alone and, if `annals blame` was run, what it measured.",
    parameters: &[RUN],
    right: ToolRight::Read,
    run: explain_failure,
};

pub(super) const GET_RUN: Tool = Tool {
    name: "get_run",
    title: "Get a run",
    description: "One run: status, times, models, tokens, cost, and its frames with the beginning of each answer.",
    parameters: &[RUN, CURSOR],
    right: ToolRight::Read,
    run: get_run,
};

fn search_runs(store: &dyn McpStore, arguments: &Arguments) -> Result<Value, ToolError> {
    let space = store.namespace()?;
    let filter = filter(arguments)?;
    if store.redactor().is_some() && !filter.tags.is_empty() {
        // Guesses of a removed value could be checked with it.
        return Err(ToolError("a reader of redacted runs cannot search by tags".to_owned()));
    }
    let limit = usize::try_from(arguments.number("limit").unwrap_or(RUNS_DEFAULT)).unwrap_or(usize::MAX);
    let mut after = match arguments.text("cursor") {
        None => None,
        Some(_) => Some(RunUid(cursor_place(arguments, 0)?)),
    };
    let text = arguments.text("text").filter(|text| !text.is_empty()).map(TextSearch::new);
    let (mut page, mut room, mut searched) = (Page::default(), SEARCH_BYTES_MAX, 0_u64);
    let (mut unreadable, mut unreadable_runs) = (Vec::new(), 0_u64);
    let cursor = 'pages: loop {
        let found = space.page_runs(&filter, RunOrder::NewestFirst, after, PAGE_RUNS)?;
        for reader in found.runs {
            let is_full = page.len() == limit || room == 0;
            if is_full {
                break 'pages after;
            }
            if let Some(text) = &text {
                searched += 1;
                match text.is_in(&reader, store.redactor(), &mut room) {
                    Ok(true) => {}
                    Ok(false) => {
                        after = Some(reader.info().uid);
                        continue;
                    }
                    Err(error) => {
                        unreadable_runs += 1;
                        if unreadable.len() < UNREADABLE_MAX {
                            unreadable.push(field(&format!("{}: {error}", reader.info().name)));
                        }
                        after = Some(reader.info().uid);
                        continue;
                    }
                }
            }
            if !page.push(run_item(&reader, store.redactor())?) {
                break 'pages after;
            }
            after = Some(reader.info().uid);
        }
        match found.next {
            None => break None,
            next => after = next,
        }
    };
    let mut answer = json!({ "runs": page.into_items() });
    if text.is_some() {
        answer["searched_runs"] = searched.into();
        answer["searched_all"] = cursor.is_none().into();
    }
    if unreadable_runs > 0 {
        answer["unreadable_runs"] = unreadable_runs.into();
        answer["unreadable"] = unreadable.into();
    }
    if let Some(RunUid(uid)) = cursor {
        answer["cursor"] = uid.to_string().into();
    }
    Ok(answer)
}

fn filter(arguments: &Arguments) -> Result<RunFilter, ToolError> {
    let tag = |tag: &str| match tag.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(ToolError("write a tag as KEY=VALUE".to_owned())),
    };
    let time = |name: &str| -> Result<Option<u64>, ToolError> {
        let Some(text) = arguments.text(name) else { return Ok(None) };
        let at: Timestamp =
            text.parse().map_err(|_| ToolError(format!("{name} must be a time as 2026-11-24T00:00:00Z")))?;
        Ok(Some(u64::try_from(at.as_nanosecond()).unwrap_or(0)))
    };
    Ok(RunFilter {
        statuses: arguments.text("status").map(str::parse::<Status>).transpose()?.into_iter().collect(),
        severity: arguments.text("severity").map(str::parse::<Severity>).transpose()?,
        agent: arguments.text("agent").map(str::to_owned),
        model: arguments.text("model").map(str::to_owned),
        tags: arguments.texts("tags").into_iter().map(tag).collect::<Result<_, _>>()?,
        since_ns: time("since")?,
        until_ns: time("until")?,
    })
}

/// A search for a text in the bodies of runs, as recorded and as JSON escapes it.
struct TextSearch([memmem::Finder<'static>; 2]);

impl TextSearch {
    fn new(text: &str) -> Self {
        let plain = text.to_lowercase();
        let json = Value::from(plain.as_str()).to_string();
        let within = json.get(1..json.len() - 1).unwrap_or_default().to_owned();
        let finder = |text: &str| memmem::Finder::new(text).into_owned();
        Self([finder(&plain), finder(&within)])
    }

    /// Whether a body of the run holds the text. Takes the bytes that it reads from `room`, and reads the run
    /// to its end even if it has less.
    fn is_in(&self, reader: &RunReader, by: Option<&Redactor>, room: &mut usize) -> annals::Result<bool> {
        for seq in 1..=reader.info().frames {
            let frame = redacted_frame(read_frame(reader, seq)?, by);
            for body in [&frame.input, &frame.output] {
                *room = room.saturating_sub(body.len());
                let body = String::from_utf8_lossy(body).to_lowercase();
                if self.0.iter().any(|finder| finder.find(body.as_bytes()).is_some()) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

fn last_failed_run(store: &dyn McpStore, _: &Arguments) -> Result<Value, ToolError> {
    let Some(last) = last_failure(&store.namespace()?)? else {
        let why = "no run failed or was abandoned, and none is flagged or escalated";
        return Ok(json!({ "run": null, "why": why }));
    };
    let mut answer = explain(store, &last.run)?;
    if let Some(reason) = last.reason() {
        answer["chosen_because"] = reason.into();
    }
    Ok(answer)
}

fn explain_failure(store: &dyn McpStore, arguments: &Arguments) -> Result<Value, ToolError> {
    let space = store.namespace()?;
    let reader = named_run(&space, arguments, "run")?;
    let mut answer = explain(store, &reader)?;
    answer["suspects"] = suspects(&reader, store.redactor())?;
    if let Some(blame) = blame_item(&space, &reader, store.redactor()) {
        answer["blame"] = blame;
    }
    Ok(answer)
}

/// The most suspect steps, with their evidence.
fn suspects(reader: &RunReader, by: Option<&Redactor>) -> Result<Value, ToolError> {
    let transcript = Transcript::read(reader, by)?;
    let weights = Weights::built_in().map_err(|error| ToolError(error.to_string()))?;
    let steps: Vec<_> = rank(&transcript, &weights)
        .steps
        .iter()
        .take(SUSPECTS_MAX)
        .map(|step| {
            let signals: Vec<_> = step
                .signals
                .iter()
                .take(SIGNALS_MAX)
                .map(|seen| json!({ "name": seen.signal.name(), "seq": seen.seq, "why": field(&seen.why) }))
                .collect();
            json!({ "seq": step.seq, "agent": field(&step.agent), "score": step.score, "signals": signals })
        })
        .collect();
    Ok(json!({
        "how": "A heuristic: signals in the recorded texts. Nothing was run again.", "heuristic": true,
        "steps": steps, "unreadable_frames": transcript.unread.len(),
    }))
}

fn explain(store: &dyn McpStore, reader: &RunReader) -> Result<Value, ToolError> {
    let by = store.redactor();
    let mut answer = json!({ "run": run_item(reader, by)? });
    let Some(report) = failure_report(reader, by)? else {
        answer["why"] = "the run has no frames".into();
        return Ok(answer);
    };
    let frame = &report.frame;
    let mut item = frame_item(&reader.frame_info(frame.seq)?, reader.info().started_ns, by);
    if let Some(summary) = answer_summary(&reader.frame(frame.seq)?, by, FAILURE_TEXT_BYTES_MAX + CUT_BYTES) {
        put_answer(&mut item, &summary);
    } else {
        let text = String::from_utf8_lossy(&frame.output);
        item.insert("answer".to_owned(), clipped(&text, FAILURE_TEXT_BYTES_MAX).into());
    }
    if let Some((before, changes)) = &report.new {
        let lines = changes.changes.iter().take(NEW_LINES_MAX).map(|change| field(&change.to_string()));
        item.insert(
            "request_adds".to_owned(),
            json!({
                "beside_frame": before, "lines": lines.collect::<Vec<_>>(),
                "more": changes.changes.len().saturating_sub(NEW_LINES_MAX), "as_before": changes.same,
            }),
        );
    }
    answer["frame"] = item.into();
    if let Some(why) = &report.why {
        answer["why"] = clipped(why, FAILURE_TEXT_BYTES_MAX).into();
    }
    if let Some((code, signal)) = report.exit {
        answer["exit"] = json!({ "code": code, "signal": signal });
    }
    if let Some(stderr) = &report.stderr {
        answer["standard_error_end"] = clipped(stderr.trim_end(), FAILURE_TEXT_BYTES_MAX).into();
    }
    Ok(answer)
}

fn get_run(store: &dyn McpStore, arguments: &Arguments) -> Result<Value, ToolError> {
    let reader = named_run(&store.namespace()?, arguments, "run")?;
    let frames = reader.info().frames;
    let first = cursor_place(arguments, 1)?;
    let mut answer = run_item(&reader, store.redactor())?;
    let used = annals_proxy::run_usage(&reader, &Prices::built_in());
    if !used.models.is_empty() {
        answer["models"] = used.models.iter().map(|model| field(model)).collect();
    }
    if used.input.is_some() || used.output.is_some() {
        answer["tokens"] = json!({ "input": used.input, "output": used.output });
        answer["cost"] = json!({
            "dollars": used.cost.dollars, "priced": used.cost.priced, "unpriced": used.cost.unpriced
        });
    }
    if let Some(unreadable) = &used.unreadable {
        answer["unreadable"] = field(unreadable);
    }
    let (mut page, mut next) = (Page::default(), None);
    for seq in first..=u64::from(frames) {
        let seq = u32::try_from(seq).unwrap_or(u32::MAX);
        let item = listed_frame(&reader, seq, store.redactor())
            .unwrap_or_else(|error| json!({ "seq": seq, "unreadable": field(&error.to_string()) }));
        if !page.push(item) {
            next = Some(seq);
            break;
        }
    }
    answer["frame_list"] = page.into_items().into();
    if let Some(next) = next {
        answer["cursor"] = next.to_string().into();
    }
    Ok(answer)
}

/// A frame in the list of a run's frames.
fn listed_frame(reader: &RunReader, seq: u32, by: Option<&Redactor>) -> annals::Result<Value> {
    let mut item = frame_item(&reader.frame_info(seq)?, reader.info().started_ns, by);
    let frame = match read_frame(reader, seq) {
        // The index has the rest.
        Err(error) if error.kind() == ErrorKind::Invalid => {
            item.insert("not_read".to_owned(), field(&error.to_string()));
            return Ok(item.into());
        }
        frame => frame?,
    };
    let says = match answer_summary(&frame, by, SAYS_BYTES_MAX + CUT_BYTES) {
        Some(summary) => says(&summary),
        None => String::from_utf8_lossy(&redacted_frame(frame, by).output).into_owned(),
    };
    if !says.is_empty() {
        item.insert("says".to_owned(), clipped(&says, SAYS_BYTES_MAX).into());
    }
    Ok(item.into())
}

/// Reads a frame whose bodies a tool may hold in memory.
///
/// # Errors
/// As [`RunReader::frame`]; `Invalid` if its bodies are longer than [`FRAME_BYTES_MAX`].
pub(super) fn read_frame(reader: &RunReader, seq: u32) -> annals::Result<RecordedFrame> {
    let info = reader.frame_info(seq)?;
    let bytes = info.input_bytes.saturating_add(info.output_bytes);
    if bytes > FRAME_BYTES_MAX {
        return Err(Error::invalid(format!(
            "the bodies of frame {seq} have {bytes} bytes, and tools read at most {FRAME_BYTES_MAX}: `annals show` writes them"
        )));
    }
    reader.frame(seq)
}

/// An answer on one line: its text, then its tool calls; else its refusal or its error.
fn says(summary: &ExchangeSummary) -> String {
    let mut said = summary.text.head().to_owned();
    for call in &summary.tool_calls {
        if !said.is_empty() {
            said.push(' ');
        }
        said += &format!("-> {}({})", call.name, call.arguments.head());
    }
    if said.is_empty() {
        let error = summary.error.as_ref().and_then(|error| error.message.clone().or(error.kind.clone()));
        said = summary.refusal.clone().or(error).unwrap_or_default();
    }
    said
}

/// Adds the parts of a model's answer.
pub(super) fn put_answer(item: &mut Map<String, Value>, summary: &ExchangeSummary) {
    let text = summary.text.head();
    if !text.is_empty() {
        item.insert("answer".to_owned(), clipped(text, FAILURE_TEXT_BYTES_MAX).into());
        let is_cut = summary.text.bytes() > text.len() as u64 || text.len() > FAILURE_TEXT_BYTES_MAX;
        if is_cut {
            item.insert("answer_bytes".to_owned(), summary.text.bytes().into());
        }
    }
    if !summary.tool_calls.is_empty() {
        let call = |call: &annals_policy::providers::ModelToolCall| json!({ "name": field(&call.name), "arguments": field(call.arguments.head()) });
        let shown = summary.tool_calls.iter().take(NEW_LINES_MAX).map(call).collect();
        item.insert("tool_calls".to_owned(), Value::Array(shown));
        let more = summary.tool_calls.len().saturating_sub(NEW_LINES_MAX) as u64 + summary.tool_calls_more;
        if more > 0 {
            item.insert("tool_calls_more".to_owned(), more.into());
        }
    }
    if let Some(refusal) = &summary.refusal {
        item.insert("refusal".to_owned(), field(refusal));
    }
    if let Some(error) = &summary.error {
        let text = |text: &Option<String>| text.as_deref().map(field);
        item.insert(
            "error".to_owned(),
            json!({ "kind": text(&error.kind), "message": text(&error.message) }),
        );
    }
    if !summary.finish_reasons.is_empty() {
        let reasons = summary.finish_reasons.iter().take(4).map(|reason| field(reason)).collect();
        item.insert("finish_reasons".to_owned(), Value::Array(reasons));
    }
    if let Some(unparsed) = &summary.unparsed {
        item.insert("unparsed".to_owned(), field(unparsed));
    }
}

/// What the index knows of a run, as the profile `by` shows it.
pub(super) fn run_item(reader: &RunReader, by: Option<&Redactor>) -> Result<Value, ToolError> {
    let (info, flag) = (reader.info(), reader.flag()?);
    let severity = Flag::raise(flag.as_ref(), info.severity);
    let mut item = json!({
        "run": field(&info.name), "status": info.status.name(), "severity": severity.name(),
        "frames": info.frames, "started_at": time(info.started_ns),
    });
    if let Some(ended_ns) = info.ended_ns {
        item["duration_ms"] = milliseconds(ended_ns.saturating_sub(info.started_ns));
    }
    for (key, text) in [("agent", &info.agent), ("model", &info.model)] {
        if !text.is_empty() {
            item[key] = field(text);
        }
    }
    if !info.tags.is_empty() {
        let tag = |(key, value): &(String, String)| match by {
            Some(by) => field(&format!("{key}={}", by.text(value))),
            None => field(&format!("{key}={value}")),
        };
        let tags: Vec<_> = info.tags.iter().take(16).map(tag).collect();
        item["tags"] = tags.into();
    }
    if let Some(point) = &info.parent {
        item["forked_from"] =
            json!({ "run": point.run.as_deref().map(field), "at": point.at, "seq": point.shared });
    }
    if let Some(flag) = flag {
        item["flagged"] = field(&by.map_or_else(|| flag.why.clone(), |by| by.text(&flag.why)));
    }
    Ok(item)
}

/// What a frame's record and metadata say, as the profile `by` shows it.
pub(super) fn frame_item(info: &FrameInfo, run_began_ns: u64, by: Option<&Redactor>) -> Map<String, Value> {
    let mut item = Map::new();
    let mut put = |key: &str, value: Value| item.insert(key.to_owned(), value);
    put("seq", info.seq.into());
    put("component", field(info.component.name()));
    if info.severity != Severity::Normal {
        put("severity", info.severity.name().into());
    }
    for (key, is_so) in [("failed", info.error), ("incomplete", info.incomplete)] {
        if is_so {
            put(key, true.into());
        }
    }
    if let Some(parent) = info.parent {
        put("parent", parent.into());
    }
    put("at_ms", milliseconds(info.started_ns.saturating_sub(run_began_ns)));
    put("duration_ms", milliseconds(info.duration_ns));
    put("request_bytes", info.input_bytes.into());
    put("answer_bytes", info.output_bytes.into());
    let metadata = by.map(|by| by.metadata(&info.metadata));
    let metadata = metadata.as_ref().map_or(info.metadata.as_slice(), |shown| &*shown.bytes);
    if let Ok(exchange) = serde_json::from_slice::<ExchangeMetadata>(metadata) {
        let status = exchange.http.status.map_or("no answer".to_owned(), |status| status.to_string());
        put("exchange", field(&format!("{}: {status}", exchange.http.call())));
        if let Some(model) = exchange.summary.get("model").and_then(Value::as_str) {
            put("model", field(model));
        }
    }
    item
}

/// Nanoseconds as milliseconds with three digits.
fn milliseconds(ns: u64) -> Value {
    ((ns / 1000) as f64 / 1000.0).into()
}

fn time(ns: u64) -> Value {
    let at = Timestamp::from_nanosecond(i128::from(ns)).unwrap_or_default();
    format!("{at:.3}").into()
}
