//! `annals show` and `annals state`: show one run, one frame or one state.

use annals_server::profiles::Redactor;
use annals_server::providers::RequestChanges;
use annals_server::{ExchangeMetadata, HttpExchange};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::deliberation;
use super::network;
use super::replay::FrameLine;
use super::runs;
use crate::address::RunAddress;
use crate::args::{GlobalArgs, ShowArgs, StateArgs};
use crate::failure::{CliResult, Failure};
use crate::output::{
    CliOutput, bytes, count, dollars, metadata, plural, preview, printable, put_bytes, time,
};
use crate::profiles;
use crate::store_access::{FrameRow, RunRow, StoreAccess};
use crate::table_fit::{self, ColumnFit, TableColumn};

const COLUMNS: [TableColumn; 8] = [
    (">SEQ", ColumnFit::Fixed),
    ("COMPONENT", ColumnFit::Fixed),
    ("SEVERITY", ColumnFit::Fixed),
    (">PARENT", ColumnFit::Drop(1)),
    (">INPUT", ColumnFit::Drop(2)),
    (">OUTPUT", ColumnFit::Drop(3)),
    ("REQUEST", ColumnFit::Cut(2, 32)),
    ("WHAT CAME OUT", ColumnFit::Cut(1, 16)),
];

/// Rows of a table, which is held in memory until its columns fit. A longer run has several tables.
const PAGE_ROWS: usize = 4096;

/// Most bytes of a body that are shown; a longer body is shown with a hint to `--raw`.
const SHOWN_MAX: usize = 4000;

pub(super) fn run(global: &GlobalArgs, args: &ShowArgs, out: &mut CliOutput) -> CliResult<()> {
    let redactor = profiles::redactor(global, &args.reader)?;
    let redactor = redactor.as_ref();
    let door = super::open_to_read(global)?;
    let address = RunAddress::parse(&args.target)?;
    match address.seq {
        Some(seq) => {
            let run = door.reader(&address.run)?.info().name.clone();
            if args.new {
                let (before, new) = door.new_part(&run, seq, redactor)?;
                profiles::print_redaction_note(redactor);
                return show_new(&run, before, &new, out);
            }
            let frame = profiles::redacted_frame(redactor, door.frame(&run, seq)?);
            if args.input || args.output || args.metadata {
                profiles::print_redaction_note(redactor.filter(|_| !out.json));
            }
            let decisions = deliberation::of_run(&door, &run, Some(seq), redactor)?;
            show_frame(&run, &frame, &decisions, args, out)
        }
        None if args.input || args.output || args.new => Err(Failure::usage(
            "--input, --output and --new need a frame, but this names a run",
            format!("name a frame of it, for example {}@1", address.run),
        )),
        None => show_run(&door, &door.run(&address.run)?, args, redactor, out),
    }
}

pub(super) fn state(global: &GlobalArgs, args: &StateArgs, out: &mut CliOutput) -> CliResult<()> {
    let redactor = profiles::redactor(global, &args.reader)?;
    let door = super::open_to_read(global)?;
    let address = RunAddress::parse(&args.target)?;
    let run = door.run(&address.run)?.id;
    let (seq, state) = door.state(&run, address.seq)?;
    let state = match &redactor {
        Some(redactor) => redactor.body(&state, None).bytes.into_owned(),
        None => state,
    };
    if out.json {
        let mut object = Map::new();
        object.insert("run".to_owned(), json!(run));
        object.insert("seq".to_owned(), json!(seq));
        put_bytes(&mut object, "state", &state);
        if let Some(redactor) = &redactor {
            object.insert("redacted".to_owned(), json!(redactor.profile().name()));
        }
        return out.object(&object);
    }
    profiles::print_redaction_note(redactor.as_ref());
    if args.raw { out.bytes(&state) } else { out.value(&state) }
}

fn show_run(
    door: &StoreAccess,
    run: &RunRow,
    args: &ShowArgs,
    redactor: Option<&Redactor>,
    out: &mut CliOutput,
) -> CliResult<()> {
    let metadata = door.metadata(&run.id)?;
    let metadata = redactor.map(|by| by.metadata(&metadata).bytes.into_owned()).unwrap_or(metadata);
    // A fingerprint would let a reader confirm guesses of redacted content.
    let shown = |why: &String| redactor.map_or_else(|| why.clone(), |by| by.text(why));
    let run = &RunRow {
        fingerprint: run.fingerprint.clone().filter(|_| redactor.is_none()),
        pinned: run.pinned.as_ref().map(shown),
        flagged: run.flagged.as_ref().map(shown),
        ..run.clone()
    };
    let used = door.usage(&door.reader(&run.id)?);
    let decisions = deliberation::of_run(door, &run.id, None, redactor)?;
    if out.json {
        let mut object = RunJson::new(runs::run_fields(run, Some(&used)), &metadata);
        object.decisions = decisions;
        if let Some(redactor) = redactor {
            object.run.insert("redacted".to_owned(), json!(redactor.profile().name()));
        }
        return out.object(&object);
    }
    if args.metadata {
        profiles::print_redaction_note(redactor);
        return if args.raw { out.bytes(&metadata) } else { out.value(&metadata) };
    }
    let models =
        if used.models.is_empty() { run.model.iter().cloned().collect() } else { used.models.clone() };
    let models: String = models.iter().map(|model| format!(", {}", printable(model))).collect();
    out.line(format_args!("{}: {}, {}{models}", run.id, run.status, run.severity))?;
    if let Some(why) = &run.pinned {
        out.line(format_args!("pinned: {}", printable(why)))?;
    }
    if let Some(why) = &run.flagged {
        out.line(format_args!("flagged: {}", printable(why)))?;
    }
    if let Some(redactor) = redactor {
        let name = redactor.profile().name();
        out.line(format_args!("redacted by profile {name}: not what was recorded"))?;
    } else if let Some(by) = door.redacted_by(&run.id)? {
        out.line(format_args!(
            "redacted by profile {} before it came here: not what was recorded",
            printable(&by)
        ))?;
    }
    if let Some(from) = &run.forked_from {
        let parent = from.run.as_deref().unwrap_or("a run that is gone");
        let shared = match from.shared {
            0 => "no frame shared".to_owned(),
            shared => format!("frames 1 to {shared} shared"),
        };
        out.line(format_args!("forked from {parent} at frame {}, {shared}", from.at))?;
    }
    let ended = run.ended_ns.map_or_else(|| "not ended".to_owned(), |ns| format!("ended {}", time(ns)));
    out.line(format_args!("began {}, {ended}", time(run.started_ns)))?;
    let tokens = runs::total_tokens(&used).map(|tokens| plural(tokens, "token"));
    let told: Vec<String> = tokens.into_iter().chain(dollars(&used.cost)).collect();
    if !told.is_empty() {
        out.line(format_args!("its own calls: {}", told.join(", ")))?;
    }
    if let Some(unrecorded) = door.unrecorded_traffic(&run.id)? {
        for line in network::stored_lines(&unrecorded) {
            out.line(printable(&line))?;
        }
    }
    if let Some(fingerprint) = &run.fingerprint {
        out.line(format_args!("fingerprint {fingerprint}"))?;
    }
    deliberation::print_of_run(&decisions, out)?;
    if !metadata.is_empty() {
        out.line(format_args!("metadata {}", preview(&metadata, 80)))?;
    }
    out.line("")?;
    let mut rows = Vec::new();
    let columns = table_fit::output_columns();
    let print = |rows: &[Vec<String>], out: &mut CliOutput| {
        let fitted = table_fit::fit(&COLUMNS, rows, columns);
        out.table(&fitted.headers, fitted.rows)
    };
    for frame in door.frames(&run.id)? {
        let frame = profiles::redacted_frame(redactor, frame?);
        rows.push(vec![
            frame.seq.to_string(),
            frame.component,
            if frame.severity == "normal" { String::new() } else { frame.severity.to_owned() },
            frame.parent.map_or(String::new(), |parent| parent.to_string()),
            count(frame.input.len() as u64),
            count(frame.output.len() as u64),
            http_exchange(&frame.metadata).map_or(String::new(), |http| {
                let status = http.status.map_or("no answer".to_owned(), |status| status.to_string());
                format!("{} {} {status}", http.method, http.path)
            }),
            preview(&frame.output, 60),
        ]);
        if rows.len() == PAGE_ROWS {
            print(&rows, out)?;
            rows.clear();
        }
    }
    if rows.is_empty() && run.frames > 0 { Ok(()) } else { print(&rows, out) }
}

/// Returns the HTTP request line and status of a frame, if the frame is an HTTP exchange.
pub(super) fn http_exchange(metadata: &[u8]) -> Option<HttpExchange> {
    serde_json::from_slice::<ExchangeMetadata>(metadata).ok().map(|exchange| exchange.http)
}

/// `POST openai /v1/chat/completions: 429`.
pub(super) fn exchange_line(http: &HttpExchange) -> String {
    let status = http.status.map_or("no answer".to_owned(), |status| status.to_string());
    let broken = http.broken.as_ref().map_or(String::new(), |why| format!(", not whole: {why}"));
    format!("{}: {status}{broken}", http.call())
}

/// Prints what a request adds to the previous one.
pub(super) fn show_new(run: &str, before: u32, new: &RequestChanges, out: &mut CliOutput) -> CliResult<()> {
    if out.json {
        let beside = (before > 0).then_some(before);
        return out.object(&json!({ "run": run, "beside": beside, "changes": new.to_string().trim_end() }));
    }
    match before {
        0 => out.line("the first request:")?,
        before => out.line(format_args!("beside {run}@{before}:"))?,
    }
    out.line(printable(new.to_string().trim_end()))
}

fn show_frame(
    run: &str,
    frame: &FrameRow,
    decisions: &[Box<RawValue>],
    args: &ShowArgs,
    out: &mut CliOutput,
) -> CliResult<()> {
    let parts = [
        ("input", args.input, &frame.input),
        ("output", args.output, &frame.output),
        ("metadata", args.metadata, &frame.metadata),
    ];
    if out.json {
        return out.object(&FrameJson { frame: FrameLine::new(run, frame), decisions });
    }
    if let Some((_, _, part)) = parts.iter().find(|(_, wanted, _)| *wanted) {
        return if args.raw { out.bytes(part) } else { out.value(part) };
    }
    let incomplete = if frame.incomplete { ", incomplete: the output is what had arrived" } else { "" };
    let error = if frame.error { ", failed" } else { "" };
    let component = printable(&frame.component);
    out.line(format_args!("{run}@{}: {component}, {}{error}{incomplete}", frame.seq, frame.severity))?;
    if let Some(http) = http_exchange(&frame.metadata) {
        out.line(printable(&exchange_line(&http)))?;
    }
    if let Some(parent) = frame.parent {
        out.line(format_args!("parent {run}@{parent}"))?;
    }
    out.line(format_args!(
        "began {}, took {:.3} ms",
        time(frame.started_ns),
        frame.duration_ns as f64 / 1e6
    ))?;
    match &frame.redacted {
        Some(name) => out.line(format_args!("redacted by profile {name}: not what was recorded"))?,
        None => out.line(format_args!("digest {}", frame.digest))?,
    }
    deliberation::print_of_run(decisions, out)?;
    for (name, _, part) in parts.into_iter().filter(|(_, _, part)| !part.is_empty()) {
        out.line(format_args!("\n{name}, {}:", bytes(part.len() as u64)))?;
        let head = part.get(..part.len().min(SHOWN_MAX)).unwrap_or_default();
        out.line(printable(&String::from_utf8_lossy(head)))?;
        if head.len() < part.len() {
            let more = count((part.len() - head.len()) as u64);
            let by = frame.redacted.as_ref().map_or(String::new(), |profile| format!(" --as {profile}"));
            out.line(format_args!(
                "… {more} bytes more: annals show {run}@{} --{name} --raw{by}",
                frame.seq
            ))?;
        }
    }
    Ok(())
}

/// A frame as JSON, with the decisions that were taken in it.
#[derive(Serialize)]
struct FrameJson<'a> {
    #[serde(flatten)]
    frame: FrameLine<'a>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    decisions: &'a [Box<RawValue>],
}

/// A run as JSON, with its metadata.
#[derive(Serialize)]
struct RunJson {
    #[serde(flatten)]
    run: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata_base64: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    decisions: Vec<Box<RawValue>>,
}

impl RunJson {
    fn new(run: Map<String, Value>, of_run: &[u8]) -> Self {
        let (metadata, metadata_base64) = metadata(of_run);
        Self { run, metadata, metadata_base64, decisions: Vec::new() }
    }
}
