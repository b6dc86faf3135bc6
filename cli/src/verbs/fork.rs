//! `annals fork`: makes a run that shares the frames of another run. A recorded program continues from the
//! fork point.

use std::time::Duration;

use annals::RunReader;
use annals::io::{Io, RealIo};
use annals_server::blame::{Oracle, RunOutcome, Verdict};
use annals_server::providers::rename_tool_calls;
use annals_server::{
    BodyPath, ForkEdit, ForkEdits, ForkOptions, ForkReport, Origin, decoded_answer, first_difference,
    new_tool_results,
};
use serde_json::Value;

use super::network;
use super::record::{
    asides_text, cache_use, refused_line, split_pair, unremembered_line, upstream_guard, upstreams,
};
use super::replay::program_to_run;
use super::runs;
use crate::address::RunAddress;
use crate::args::{ForkArgs, GlobalArgs};
use crate::editor;
use crate::failure::{CliResult, Failure, FailureCode, before_start};
use crate::input;
use crate::locate;
use crate::output::{CliOutput, dollars, plural, print_note, printable};
use crate::rules;
use crate::store_access::{SharedRecorder, StoreAccess, StoreWait, engine_failure, run_row};
use crate::supervision::{self, RecordingEnd};

/// Most bytes of an answer that replaces a recorded one.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

pub(super) fn run(global: &GlobalArgs, args: &ForkArgs, out: &mut CliOutput) -> CliResult<()> {
    let address = RunAddress::parse(&args.from)?;
    let Some(seq) = address.seq else {
        return Err(Failure::usage(
            format!("`{}` names no frame to fork at", args.from),
            format!("name the last frame to share, for example {}@1", address.run),
        ));
    };
    let (root, namespace) = (locate::store(global.store.as_deref()), &global.namespace);
    let wait = StoreWait::from_args(global);
    let door = super::open_to_read(global)?;
    let reader = door.reader(&address.run)?;
    let parent = reader.info().name.clone();
    let frames = reader.info().frames;
    if seq > frames {
        let message =
            format!("run `{parent}` has no frame {seq}: it has {}", plural(u64::from(frames), "frame"));
        return Err(Failure::missing(message, format!("`annals show {parent}` lists its frames")));
    }
    let name = args.name.clone().unwrap_or_else(|| format!("{parent}-fork-{seq}"));
    match door.origin(&reader)?.filter(|_| !args.no_run) {
        Some(origin) => {
            if let Some(by) = door.redacted_by(&parent)? {
                return Err(Failure::usage(
                    format!(
                        "run `{parent}` was redacted by profile {} before it came here: no program gets the answers that were recorded",
                        printable(&by)
                    ),
                    "fork it in the store that it is from; --no-run makes a run that shares the frames",
                ));
            }
            let recorder = SharedRecorder::open_existing(&root, namespace, wait)?;
            let view = recorder.view(&root, namespace)?;
            let told = run_program(&recorder, &view, args, &parent, seq, &origin, &name);
            drop(view);
            let closed = recorder.close();
            told?;
            closed.map(drop)
        }
        None => {
            check_shares_frames_only(args, &parent)?;
            StoreAccess::share_frames(&root, namespace, &reader, seq, &name, wait)?;
            door.refresh()?;
            let run = door.reader(&name)?.info().clone();
            if out.json {
                return out.object(&runs::run_and_usage_fields(&door, &run_row(&run))?);
            }
            out.line(format_args!("{name} shares frames 1 to {seq} of {parent}"))
        }
    }
}

/// Continues the program from the frame, and says how the fork went.
fn run_program(
    recorder: &SharedRecorder,
    view: &StoreAccess,
    args: &ForkArgs,
    parent: &str,
    seq: u32,
    origin: &Origin,
    name: &str,
) -> CliResult<()> {
    let reader = view.reader(parent)?;
    let question = args.oracle.as_deref().map(|oracle| WhatIf::new(view, parent, oracle)).transpose()?;
    let forking = forking_options(args, &reader, seq, origin)?;
    let clock = RealIo::default();
    let began = clock.monotonic_ns();
    let report = recorder.fork_program(&reader, origin, name, args.live.remember, &forking)?;
    let ran = Duration::from_nanos(clock.monotonic_ns().saturating_sub(began));
    view.refresh()?;
    // What was lost must be said, and a run that was not stored whole may not even be there.
    let differs = match report.recorded.failure {
        Some(_) => "not compared with its parent".to_owned(),
        None => match first_difference(&reader, &view.reader(name)?).map_err(engine_failure)? {
            Some(seq) => format!("first different at frame {seq}"),
            None => "the same as its parent".to_owned(),
        },
    };
    let asked = question.as_ref().filter(|_| report.recorded.failure.is_none());
    let verdict = asked.map(|question| question.verdict(view, name)).transpose();
    let waits = !forking.supervision.linger.is_zero();
    let told = print_forked(name, args, &report, &differs, waits);
    match verdict? {
        // What was lost or diverged matters more than the verdict.
        Some(verdict) if !matches!(told, Err(Failure::Message { .. })) && is_as_planned(&report) => {
            print_verdict(&verdict, ran.as_secs_f64())
        }
        _ => told,
    }
}

/// Refuses what only a fork that runs a program can do.
fn check_shares_frames_only(args: &ForkArgs, parent: &str) -> CliResult<()> {
    let changes = args.response.is_some()
        || args.edit
        || args.use_tool.is_some()
        || args.model.is_some()
        || args.rules.is_some();
    let requests = [&args.set, &args.set_all, &args.tool_result];
    if changes || !args.command.is_empty() || requests.iter().any(|edits| !edits.is_empty()) {
        return Err(Failure::usage(
            format!("run `{parent}` has no recorded program, so no program can continue from it"),
            "leave out the options and the command: the new run then shares the frames",
        ));
    }
    Ok(())
}

/// A question about a fork: does it still fail?
struct WhatIf {
    oracle: Oracle,
    parent: RunOutcome,
}

impl WhatIf {
    /// Refuses an oracle that does not call the parent failed.
    fn new(door: &StoreAccess, parent: &str, oracle: &str) -> CliResult<Self> {
        let oracle = door.oracle(oracle)?;
        let outcome = door.outcome(parent)?;
        match oracle.grade(&outcome) {
            Verdict::Fail => Ok(Self { oracle, parent: outcome }),
            Verdict::Pass => Err(Failure::usage(
                format!("the oracle calls run `{parent}` passed, so there is no failure to ask about"),
                "name a failed run, or another --oracle",
            )),
            Verdict::Undefined(why) => Err(Failure::usage(
                format!("the oracle cannot grade run `{parent}` itself: {why}"),
                "use another --oracle",
            )),
        }
    }

    fn verdict(&self, door: &StoreAccess, fork: &str) -> CliResult<Verdict> {
        Ok(self.oracle.grade_fork(&door.outcome(fork)?, &self.parent))
    }
}

/// Whether the fork's program did before the fork's point what was recorded, and its edits were made.
fn is_as_planned(report: &ForkReport) -> bool {
    report.unasked == 0 && report.diverged.is_empty() && is_edited(report)
}

fn print_verdict(verdict: &Verdict, seconds: f64) -> CliResult<()> {
    match verdict {
        Verdict::Pass => {
            print_note(format_args!("no longer fails ({seconds:.1} s)"));
            Ok(())
        }
        Verdict::Fail => {
            print_note(format_args!("same failure ({seconds:.1} s)"));
            Err(Failure::Silent(FailureCode::Damage))
        }
        Verdict::Undefined(why) => Err(Failure::failed(
            format!("the fork cannot be graded: {why} ({seconds:.1} s)"),
            "`annals show FORK` shows what it did",
        )),
    }
}

fn forking_options(args: &ForkArgs, reader: &RunReader, at: u32, origin: &Origin) -> CliResult<ForkOptions> {
    let mut edits = ForkEdits::default();
    if let Some(file) = &args.response {
        edits.response = Some(input::read_small(file, RESPONSE_BYTES_MAX)?.into());
    }
    if args.edit {
        let recorded = decoded_answer(reader, at).map_err(engine_failure)?;
        edits.response = Some(editor::edit(&recorded)?.into());
    }
    if let Some(text) = &args.use_tool {
        let (old, new) = split_pair(text, "--use-tool search=other")?;
        let recorded = decoded_answer(reader, at).map_err(engine_failure)?;
        let renamed = rename_tool_calls(&recorded, &old, &new).ok_or_else(|| {
            let message = format!("the answer of frame {at} calls no tool {old:?}");
            let hint = format!("`annals show {}@{at}` shows its calls", reader.info().name);
            Failure::usage(message, hint)
        })?;
        edits.response = Some(renamed.into());
    }
    for text in &args.tool_result {
        edits.tool_results.push(parse_tool_result(text, reader, at)?);
    }
    edits.set = args.set.iter().map(|text| parse_assignment(text)).collect::<CliResult<_>>()?;
    edits.set_all = args.set_all.iter().map(|text| parse_assignment(text)).collect::<CliResult<_>>()?;
    if let Some(model) = &args.model {
        edits.set_all.push((parse_place("$.model")?, Value::String(model.clone())));
    }
    let program = program_to_run(&reader.info().name, origin, &args.command)?;
    let (upstreams, guard, cache) =
        (upstreams(&args.live.upstream), upstream_guard(&args.live), cache_use(&args.live)?);
    let rules =
        rules::read_or_recorded(args.rules.as_deref(), &reader.info().name, origin).map_err(before_start)?;
    let network = network::policy(&args.network, &args.live.allow_host)?;
    let supervision = supervision::for_replay(&args.input, origin, reader, true)?;
    Ok(ForkOptions { at, edits, program, supervision, upstreams, cache, guard, rules, network })
}

fn parse_place(text: &str) -> CliResult<BodyPath> {
    BodyPath::parse(text).map_err(|why| Failure::usage(why, "--set '$.temperature=0'"))
}

/// Parses `JSONPATH=VALUE`: a place, and the value to set there.
fn parse_assignment(text: &str) -> CliResult<(BodyPath, Value)> {
    let (path, value) = split_pair(text, "--set JSONPATH=VALUE")?;
    let value = serde_json::from_str(&value).unwrap_or(Value::String(value));
    Ok((parse_place(&path)?, value))
}

/// Returns the command-line option of an edit.
fn edit_option(args: &ForkArgs, edit: ForkEdit) -> String {
    let given =
        |option: &str, values: &[String], at: usize| values.get(at).map(|value| format!("{option} {value}"));
    let option = match edit {
        ForkEdit::Response => Some(response_option(args)),
        ForkEdit::Set(at) => given("--set", &args.set, at),
        ForkEdit::SetAll(at) => given("--set-all", &args.set_all, at),
        ForkEdit::ToolResult(at) => given("--tool-result", &args.tool_result, at),
    };
    option.unwrap_or_else(|| format!("--model {}", args.model.as_deref().unwrap_or_default()))
}

/// The option that replaces an answer.
fn response_option(args: &ForkArgs) -> String {
    match (&args.response, &args.use_tool) {
        (Some(file), _) => format!("--response {}", file.display()),
        (None, Some(names)) => format!("--use-tool {names}"),
        (None, None) => "--edit".to_owned(),
    }
}

/// Parses `[ID=]FILE`: the id of a tool call, and its new result.
fn parse_tool_result(text: &str, reader: &RunReader, at: u32) -> CliResult<(String, String)> {
    let new = new_tool_results(reader, at).map_err(engine_failure)?;
    let (id, file) = match text.split_once('=') {
        Some((id, file)) if new.iter().any(|of| of == id) => (id.to_owned(), file),
        _ => match new.as_slice() {
            [id] => (id.clone(), text),
            [] => {
                let message = format!("the request of frame {at} has no new tool result");
                let hint = format!("`annals show {}@{at} --new` shows its new part", reader.info().name);
                return Err(Failure::usage(message, hint));
            }
            ids => {
                let message =
                    format!("the request of frame {at} has {} new results: {}", ids.len(), ids.join(", "));
                return Err(Failure::usage(message, "say which one: --tool-result ID=FILE"));
            }
        },
    };
    let bytes = input::read_small(file.as_ref(), RESPONSE_BYTES_MAX)?;
    let text = String::from_utf8(bytes).map_err(|_| {
        Failure::usage(format!("{file} is not UTF-8"), "a tool's result is a text in the request")
    })?;
    Ok((id, text))
}

/// Whether every edit changed something, and no request that it was meant for was left out.
fn is_edited(report: &ForkReport) -> bool {
    report.unapplied.is_empty() && report.unreadable == 0
}

fn print_forked(
    name: &str,
    args: &ForkArgs,
    report: &ForkReport,
    differs: &str,
    waits: bool,
) -> CliResult<()> {
    let line = |text: String| print_note(printable(&text));
    let recorded = &report.recorded;
    unremembered_line(recorded).map(line);
    refused_line(recorded).map(line);
    let (lines, is_wrong) = network::live_lines(&report.traffic);
    lines.into_iter().for_each(line);
    for missed in report.captured.iter().flat_map(|captured| &captured.missed) {
        line(format!("NOT CAPTURED: {missed}"));
    }
    for diverged in &report.diverged {
        line(format!("DIVERGED {diverged}"));
    }
    if report.unasked > 0 {
        let calls = plural(u64::from(report.unasked), "shared request");
        line(format!("{calls} never asked for: the program took another path before the fork's point"));
    }
    for edit in &report.unapplied {
        let option = edit_option(args, *edit);
        let why = match edit {
            ForkEdit::Response => "changed no answer: the recorded request of the fork's point never came",
            _ => "changed no request: none came, it has no such place, or it has the value already",
        };
        line(format!("NOT EDITED: {option} {why}"));
    }
    if report.unreadable > 0 {
        let requests = plural(u64::from(report.unreadable), "request");
        line(format!("NOT EDITED: {requests} cannot be read as JSON, and went on as the program sent it"));
    }
    let money = asides_text(recorded);
    let saved = match dollars(&report.saved) {
        Some(saved) if report.saved.priced > 0 => format!(", {saved} not spent on the prefix"),
        _ => String::new(),
    };
    let replaced = if report.replaced > 0 { ", 1 answer replaced" } else { "" };
    let tail = recorded.requests.saturating_sub(u64::from(report.replaced));
    line(format!(
        "forked into {name}: prefix replayed {}{replaced}, tail recorded {tail}, {differs} ({:.1} s{saved}{money}): annals replay {name}",
        report.replayed, report.seconds,
    ));
    let end =
        RecordingEnd { recorded, code: Some(report.code), may_be_empty: true, waits, is_missed: is_wrong };
    if let Some(lost) = end.loss(&format!("; the program ended with {}", report.code)) {
        return Err(lost);
    }
    match report.code {
        _ if report.unasked > 0 || !report.diverged.is_empty() || !is_edited(report) => {
            Err(Failure::Exit(FailureCode::Damage as u8))
        }
        _ if report.traffic.refused().next().is_some() => Err(Failure::Exit(FailureCode::Damage as u8)),
        0 if is_wrong || recorded.refused > 0 => Err(Failure::Silent(FailureCode::Failed)),
        0 => Ok(()),
        code => Err(Failure::Exit(code)),
    }
}
