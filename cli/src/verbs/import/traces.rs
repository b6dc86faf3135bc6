//! `annals import --format otlp`: traces in files, as the Collector's file exporter and SDKs write them.

use std::collections::BTreeMap;
use std::io::{BufRead, Read};
use std::sync::atomic::Ordering;

use annals_formats::otlp::{BODY_BYTES_MAX, TraceEncoding, TraceReceipt};
use serde::de::IgnoredAny;
use serde_json::json;
use serde_json::value::RawValue;

use crate::args::{GlobalArgs, ImportArgs};
use crate::failure::{CliResult, Failure};
use crate::input;
use crate::locate;
use crate::output::{CliOutput, plural, printable};

const HINT: &str =
    "the file holds ExportTraceServiceRequest messages: one JSON object, JSON Lines, or one in protobuf";

/// What was imported so far.
#[derive(Default)]
struct TraceTally {
    frames: u64,
    duplicates: u64,
    rejected: u64,
    reasons: Vec<String>,
}

impl TraceTally {
    fn add(&mut self, receipt: &TraceReceipt) {
        self.frames += receipt.frames;
        self.duplicates += receipt.duplicates;
        self.rejected += receipt.rejected;
        for reason in receipt.reasons() {
            if !self.reasons.contains(reason) {
                self.reasons.push(reason.clone());
            }
        }
    }
}

pub(super) fn import(global: &GlobalArgs, args: &ImportArgs, out: &mut CliOutput) -> CliResult<()> {
    let unused = [
        ("--id", args.id.is_some()),
        ("--model", args.model.is_some()),
        ("--status-from", args.status_from.is_some()),
        ("--expand", args.expand.is_some()),
        ("--replace", args.replace),
        ("--remember", args.remember),
    ];
    if let Some((option, _)) = unused.iter().find(|(_, given)| *given) {
        let message = format!("{option} does not go with --format otlp");
        return Err(Failure::usage(message, "traces name their runs, models and states themselves"));
    }
    let mut reader = input::open(&args.file)?.reader;
    let door = crate::verbs::open_to_write(global)?.served(&locate::store(global.store.as_deref()));
    let ingest = door.trace_ingest()?;
    let mut tally = TraceTally::default();
    let kept =
        super::tell_when_interrupted("frame", "import the file again: spans that are there stay as they are");
    let read = read_requests(&mut reader, &mut |body, form| {
        let receipt = ingest
            .ingest_request(body, form, door.clock_ns())
            .map_err(|refusal| Failure::failed(printable(refusal.message()), HINT))?;
        tally.add(&receipt);
        kept.store(tally.frames, Ordering::Release);
        let is_empty = receipt.frames + receipt.duplicates + receipt.rejected == 0;
        if is_empty && form == TraceEncoding::Json && is_dataset(body) {
            Err(dataset_failure())
        } else {
            Ok(())
        }
    });
    // Runs that were begun end in any case; the store is closed after them.
    let ended = door.end_traces(&ingest);
    drop(ingest);
    let closed = door.close();
    let whole = read.is_ok() && ended.is_ok();
    if out.json {
        out.object(&json!({
            "frames": tally.frames,
            "duplicates": tally.duplicates,
            "rejected": tally.rejected,
            "reasons": tally.reasons,
            "whole": whole,
        }))?;
    } else {
        let mut line = format!("imported {}", plural(tally.frames, "frame"));
        if tally.duplicates > 0 {
            line += &format!("; {} there already", plural(tally.duplicates, "span"));
        }
        out.line(format_args!("{line}{}", if whole { "" } else { " before the error" }))?;
    }
    read.and(ended).and(closed)?;
    if tally.rejected > 0 {
        let message =
            format!("{} not imported: {}", plural(tally.rejected, "span"), tally.reasons.join("; "));
        return Err(Failure::failed(printable(&message), HINT));
    }
    if tally.frames + tally.duplicates == 0 && !args.allow_empty {
        return Err(Failure::failed("no span was imported", "--allow-empty ends with 0"));
    }
    Ok(())
}

/// Whether a JSON object is a dataset, as evaluation tools export it. It has no spans, and unknown keys of a request are
/// ignored, so only its key tells.
fn is_dataset(object: &[u8]) -> bool {
    serde_json::from_slice::<BTreeMap<String, IgnoredAny>>(object)
        .is_ok_and(|members| members.contains_key("examples") && !members.contains_key("resourceSpans"))
}

fn dataset_failure() -> Failure {
    Failure::failed(
        "the file is a dataset: it has `examples`, as exports for OpenInference and Phoenix have, and no `resourceSpans`",
        "annals reads spans over OTLP: export the traces that the dataset was made from, or import its examples as frames (`--format frames`)",
    )
}

/// Calls `each` with every request of a file.
fn read_requests(
    reader: &mut dyn BufRead,
    each: &mut dyn FnMut(&[u8], TraceEncoding) -> CliResult<()>,
) -> CliResult<()> {
    let unreadable =
        |error: std::io::Error| Failure::failed(format!("cannot read the traces: {error}"), HINT);
    let begins =
        reader.fill_buf().map_err(unreadable)?.iter().copied().find(|byte| !byte.is_ascii_whitespace());
    if begins != Some(b'{') {
        let mut bytes = Vec::new();
        reader.take(BODY_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        return each(&bytes, TraceEncoding::Protobuf);
    }
    for (number, request) in
        (1..).zip(serde_json::Deserializer::from_reader(reader).into_iter::<Box<RawValue>>())
    {
        let request = request.map_err(|error| {
            Failure::failed(format!("request {number} of the file is not JSON: {error}"), HINT)
        })?;
        each(request.get().as_bytes(), TraceEncoding::Json)?;
    }
    Ok(())
}
