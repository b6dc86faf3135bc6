//! `annals replay`: runs a program again with its model calls answered from a recording, or reads frames in
//! order. The engine checks every blob and every link of the chain.

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::Path;

use annals::RunReader;
use annals::replay::matching::Divergence;
use annals_formats::import::base64;
use annals_server::profiles::Redactor;
use annals_server::{
    OnwardOptions, Origin, Program, RecordingSummary, ReplayDivergence, ReplayOptions, ReplayReport, Timing,
};
use serde::Serialize;
use serde_json::value::RawValue;

use super::network;
use super::record::{asides_text, cache_use, refused_line, unremembered_line, upstream_guard, upstreams};
use super::runs::short_hex;
use crate::args::{CacheArg, DivergenceArg, GlobalArgs, ReplayArgs, TimingArg};
use crate::failure::{CliResult, Failure, FailureCode, before_start};
use crate::input;
use crate::locate;
use crate::output::{CliOutput, bytes, count, dollars, metadata, plural, preview, print_note, printable};
use crate::profiles;
use crate::rules;
use crate::store_access::{FrameRow, RunRow, StoreAccess, StoreWait};
use crate::supervision::{self, RecordingEnd, process_list};

pub(super) fn run(global: &GlobalArgs, args: &ReplayArgs, out: &mut CliOutput) -> CliResult<()> {
    let onward = args.on_divergence == DivergenceArg::Live;
    let live = &args.live;
    let asks =
        !live.upstream.is_empty() || !live.reroll.is_empty() || live.cache_for.is_some() || live.remember;
    if !onward && (asks || live.cache != CacheArg::Off || args.into.is_some()) {
        return Err(Failure::usage(
            "a replay calls no upstream: the recording serves every answer",
            "--on-divergence live continues with live calls",
        ));
    }
    let redactor = profiles::redactor(global, &args.reader)?;
    let redactor = redactor.as_ref();
    if args.check_output && (args.all || args.raw || out.json || redactor.is_some()) {
        return Err(no_output_failure("--all, --raw, --json and --as start no program"));
    }
    let given = &args.rules;
    let is_for_program = !args.command.is_empty()
        || args.chaos.is_some()
        || args.timing != TimingArg::None
        || given.file.is_some()
        || [&given.rule, &given.ignore, &given.matcher].iter().any(|all| !all.is_empty());
    if is_for_program && (args.all || args.raw || out.json) {
        return Err(Failure::usage(
            "--all, --raw and --json read the run and start no program, so a command, rules, --chaos and --timing do nothing",
            "leave out the one or the other",
        ));
    }
    if redactor.is_some() && (onward || !args.command.is_empty()) {
        return Err(Failure::usage(
            "--as changes the answers, but a program needs the recorded ones",
            "leave out --as; or leave out the program to read the run",
        ));
    }
    let door = if onward {
        StoreAccess::open_existing_to_record(
            &locate::store(global.store.as_deref()),
            &global.namespace,
            StoreWait::from_args(global),
        )?
    } else {
        super::open_to_read(global).map_err(|failure| failure.with_hint_if_missing(|| tape_hint(args)))?
    };
    if args.all {
        return replay_all(&door, args, redactor, out);
    }
    let run = door.run(args.run.as_deref().unwrap_or("last"));
    let run = run.map_err(|failure| failure.with_hint_if_missing(|| tape_hint(args)))?;
    let imported_by = door.redacted_by(&run.id)?;
    if !args.raw && !out.json && redactor.is_none() {
        let reader = door.reader(&run.id)?;
        if door.is_ingested(&reader)? {
            return Err(Failure::damage(
                format!(
                    "DIVERGED at step 1: run `{}` was ingested from traces, which hold no requests and answers as they were sent",
                    run.id
                ),
                format!(
                    "`annals show {}` lists what its spans say; --json and --raw give its frames, verified",
                    run.id
                ),
            ));
        }
        if let Some(by) =
            imported_by.as_deref().filter(|_| !args.command.is_empty() || has_program(&door, &reader))
        {
            return Err(Failure::damage(
                format!(
                    "run `{}` was redacted by profile {} before it came here: no program gets the answers that were recorded",
                    run.id,
                    printable(by)
                ),
                format!(
                    "`annals show {}` lists what there is of it; replay the run in the store that it is from",
                    run.id
                ),
            ));
        }
        if let Some(origin) = door.origin(&reader)? {
            return replay_program(&door, &reader, &run, &origin, args);
        }
    }
    if args.check_output {
        return Err(no_output_failure(&format!("no program was recorded as run `{}`", run.id)));
    }
    if !args.command.is_empty() {
        return Err(Failure::usage(
            format!("no program was recorded as run `{}`, so none can be replayed from it", run.id),
            "leave out the command: `annals replay RUN -- CMD` is for runs of `annals record`",
        ));
    }
    let many = !args.raw && !out.json;
    let mut rows = Vec::new();
    if args.raw {
        profiles::print_redaction_note(redactor);
    }
    let replayed = read_back(&door, &run, args, redactor, out, |frame| {
        if many {
            rows.push(vec![
                frame.seq.to_string(),
                frame.component.clone(),
                count(frame.input.len() as u64),
                count(frame.output.len() as u64),
                if frame.redacted.is_some() { String::new() } else { short_hex(&frame.digest) },
                preview(&frame.output, 60),
            ]);
        }
    })?;
    if !many {
        return Ok(());
    }
    if replayed.frames == 0 {
        return Err(no_frames_failure(format!("run `{}` has no frame", run.id)));
    }
    out.table(&[">SEQ", "COMPONENT", ">INPUT", ">OUTPUT", "DIGEST", "WHAT CAME OUT"], rows)?;
    let (frames, raw) = (count(replayed.frames), bytes(replayed.raw_bytes));
    if let Some(name) = redactor.map(|by| by.profile().name()).or(imported_by.as_deref()) {
        return out.line(format_args!(
            "redacted by profile {}, not what was recorded: {frames} frames, {raw}",
            printable(name)
        ));
    }
    let fingerprint = run.fingerprint.as_deref().unwrap_or("none, since it is open");
    out.marked_line(true, "bit-exact", format_args!(": {frames} frames, {raw}, fingerprint {fingerprint}"))
}

/// What to do with a tape that is named in place of a run.
fn tape_hint(args: &ReplayArgs) -> Option<String> {
    let tape = Path::new(args.run.as_deref()?);
    (input::has_tape_name(tape) && tape.is_file()).then(|| {
        let tape = tape.display();
        format!("it is a tape: `annals tape import {tape}` records it as a run, which `annals replay` then replays")
    })
}

/// A run without frames is no success: nothing was compared.
fn no_frames_failure(message: String) -> Failure {
    Failure::missing(
        format!("{message}: there is nothing to replay"),
        "`annals runs` lists what there is; import or record the run again",
    )
}

/// --check-output has nothing to check.
fn no_output_failure(why: &str) -> Failure {
    Failure::usage(
        format!("--check-output compares the output of a replayed program: {why}"),
        "leave out --check-output",
    )
}

/// Returns whether the run has a recorded program.
fn has_program(door: &StoreAccess, reader: &RunReader) -> bool {
    door.origin(reader).is_ok_and(|origin| origin.is_some())
}

/// Runs the program again.
fn replay_program(
    door: &StoreAccess,
    reader: &RunReader,
    run: &RunRow,
    origin: &Origin,
    args: &ReplayArgs,
) -> CliResult<()> {
    let file = rules::read_or_recorded(args.rules.file.as_deref(), &run.id, origin).map_err(before_start)?;
    let rules = rules::matcher(&file, &args.rules).map_err(before_start)?;
    let program = program_to_run(&run.id, origin, &args.command)?;
    let network = network::policy(&args.network, &args.live.allow_host).map_err(before_start)?;
    let is_live = args.on_divergence == DivergenceArg::Live;
    let supervision = supervision::for_replay(&args.input, origin, reader, is_live)?;
    let timing = if args.timing == TimingArg::Recorded { Timing::Recorded } else { Timing::None };
    let prices = file.prices.clone();
    let options = ReplayOptions { rules, prices, timing, chaos: args.chaos, ..ReplayOptions::default() };
    // A name that only begins like one is free.
    if let Some(name) = &args.into
        && door.reader(name).is_ok_and(|taken| taken.info().name == *name)
    {
        let message = format!("there is a run `{name}`, so no new one gets this name");
        return Err(before_start(Failure::failed(
            message,
            "choose another name with --into, or leave it out",
        )));
    }
    let (report, child) = if is_live {
        let onward = OnwardOptions {
            name: args.into.clone().unwrap_or_else(|| format!("{}-live", run.id)),
            upstreams: upstreams(&args.live.upstream),
            guard: upstream_guard(&args.live),
            cache: cache_use(&args.live)?,
            rules: file,
            network,
            remember: args.live.remember,
        };
        let done = door.replay_onward(reader, origin, &program, &supervision, options, &onward)?;
        (done.replay, done.child)
    } else {
        (annals_server::replay(reader, origin, &program, &supervision, options, &network)?, None)
    };
    let faithful = report.replayed.receipt.is_faithful() && report.replayed.diverged.is_empty();
    let reached = print_network(&report, child.is_some());
    // A program that goes on live may end as it likes.
    let recorded_code = if child.is_none() { door.exit_code(reader)? } else { None };
    let otherwise = recorded_code.filter(|recorded| *recorded != report.code);
    let checked = !args.check_output || (report.same_output == Some(true) && otherwise.is_none());
    let faithful = faithful && !reached && checked;
    if let Some(recorded) = otherwise {
        print_note(format_args!("the program ended with {}, not with {recorded} as recorded", report.code));
    }
    print_receipt(run, &report, child.as_ref(), (faithful, args.check_output));
    if let Some((_, recorded)) = &child {
        refused_line(recorded).into_iter().for_each(print_note);
        let end = RecordingEnd {
            recorded,
            code: Some(report.code),
            may_be_empty: true,
            waits: false,
            is_missed: false,
        };
        if let Some(lost) = end.loss(&format!("; the program ended with {}", report.code)) {
            return Err(lost);
        }
    }
    match (faithful, report.code) {
        (false, _) => Err(Failure::Exit(FailureCode::Damage as u8)),
        (true, 0) => Ok(()),
        (true, code) => Err(Failure::Exit(code)),
    }
}

/// Prints the connections that the program tried to make besides annals. Returns whether a replay forbids any
/// of them.
fn print_network(report: &ReplayReport, is_live: bool) -> bool {
    let (mut lines, is_wrong) = match is_live {
        // After the divergence, traffic counts as in a recording.
        true => network::live_lines(&report.traffic),
        false => network::replay_lines(&report.traffic),
    };
    lines.extend(report.unrecorded.as_ref().and_then(network::incomplete_line));
    lines.iter().for_each(|line| print_note(printable(line)));
    is_wrong
}

/// Returns the program to run: `command` if given, else the recorded one.
pub(super) fn program_to_run(run: &str, origin: &Origin, command: &[OsString]) -> CliResult<Program> {
    if !command.is_empty() {
        return Ok(Program { argv: command.to_vec(), directory: None, environment: Vec::new() });
    }
    let program = origin.program().map_err(|why| {
        let set = if origin.altered.is_empty() { "set the variable, or " } else { "" };
        let hint = format!("{set}name the command: annals replay {run} -- CMD");
        Failure::usage(why, hint)
    })?;
    if program.argv.is_empty() {
        return Err(Failure::usage(
            format!("run `{run}` was recorded by `annals attach`, so its program is unknown"),
            "name it after --",
        ));
    }
    Ok(program)
}

/// The hint for requests that differ in values that `--capture-nondet` captures, if there are any.
fn drawn_hint(diverged: &[ReplayDivergence]) -> Option<&'static str> {
    let any = |is_so: fn(&Divergence) -> bool| {
        diverged.iter().any(|one| matches!(one, ReplayDivergence::Request(of) if is_so(of)))
    };
    if any(Divergence::looks_drawn) {
        return Some(
            "hint: a time or a random id differs; `annals record --capture-nondet` records what the program \
             draws, and a replay serves it",
        );
    }
    any(Divergence::differs_in_a_number).then_some(
        "hint: a number differs; if the program draws it or measures it with a clock, \
         `annals record --capture-nondet` records it, and a replay serves it",
    )
}

/// Prints the receipt on standard error, because standard output is the program's.
fn print_receipt(
    run: &RunRow,
    report: &ReplayReport,
    child: Option<&(String, RecordingSummary)>,
    (faithful, checks_output): (bool, bool),
) {
    let line = |text: String| print_note(printable(&text));
    for diverged in &report.replayed.diverged {
        line(format!("DIVERGED {diverged}"));
    }
    if report.captured.is_none()
        && let Some(hint) = drawn_hint(&report.replayed.diverged)
    {
        line(hint.to_owned());
    }
    let receipt = &report.replayed.receipt;
    if receipt.overlapped > 0 {
        let many = receipt.overlapped;
        let requests = plural(u64::from(many), "identical request");
        line(format!("{requests} overlapped: which caller got which answer is not recorded"));
    }
    // A live program asks for no more recorded calls.
    if !receipt.missing.is_empty() && child.is_none() {
        let many = receipt.missing.len();
        let were = if many == 1 { "request was" } else { "requests were" };
        line(format!("{many} recorded {were} never asked for: the program took another path"));
    }
    if let Some(captured) = &report.captured {
        captured.missed.iter().for_each(|what| line(format!("NOT CAPTURED: {what}")));
        captured.differences.iter().for_each(|what| line(format!("DRAWN OTHERWISE: {what}")));
    }
    match report.same_output {
        Some(false) => line("the program's standard output is not what was recorded".to_owned()),
        None if checks_output => line("the program's recorded standard output is not known".to_owned()),
        _ => {}
    }
    if !report.survivors.is_empty() {
        line(format!("not waited for any longer, still running: {}", process_list(&report.survivors)));
    }
    if run.status == "abandoned" || run.status == "open" {
        line(format!("the recording is {}: it ends after frame {}", run.status, run.frames));
    }
    let fingerprint = run.fingerprint.as_deref().map_or_else(|| "none".to_owned(), short_hex);
    let word = if faithful { "replayed" } else { "NOT replayed as recorded:" };
    let tokens = count(report.replayed.tokens);
    let saved = dollars(&report.replayed.cost)
        .map_or_else(String::new, |cost| format!("; not spent: {tokens} tokens, {cost}"));
    let remark = report.unrecorded.as_ref().and_then(network::unrecorded_aside);
    let remark = remark.map_or_else(String::new, |remark| format!(", {remark}"));
    line(format!(
        "{word} {}: {receipt}{remark}, fingerprint {fingerprint} ({:.1} s{saved})",
        run.id, report.seconds
    ));
    if let Some((name, recorded)) = child {
        unremembered_line(recorded).map(line);
        let served = report.replayed.receipt.exact + report.replayed.receipt.matched;
        let money = asides_text(recorded);
        let tail = plural(recorded.requests, "request");
        line(format!(
            "went on live into {name}: {served} answered from {}, then {tail} recorded{money}: annals replay {name}",
            run.id
        ));
    }
}

/// Reads every run. A damaged run does not stop the others; it is reported at the end.
fn replay_all(
    door: &StoreAccess,
    args: &ReplayArgs,
    redactor: Option<&Redactor>,
    out: &mut CliOutput,
) -> CliResult<()> {
    let mut total = ReplayTotals::default();
    let mut rows = Vec::new();
    let mut damage = None;
    let mut empty = 0;
    if args.raw {
        profiles::print_redaction_note(redactor);
    }
    for run in door.runs()? {
        let run = run?;
        match read_back(door, &run, args, redactor, out, |_| ()) {
            Ok(replayed) => {
                let fingerprint = run.fingerprint.as_deref().filter(|_| redactor.is_none());
                let fingerprint = short_hex(fingerprint.unwrap_or_default());
                rows.push(vec![run.id, count(replayed.frames), bytes(replayed.raw_bytes), fingerprint]);
                empty += u64::from(replayed.frames == 0);
                total.frames += replayed.frames;
                total.raw_bytes += replayed.raw_bytes;
            }
            Err(failure @ Failure::Message { code: FailureCode::Damage, .. }) => {
                let first = failure.with_place(format_args!("run {}", run.id));
                damage.get_or_insert(first);
                rows.push(vec![run.id, String::new(), String::new(), "damaged".to_owned()]);
            }
            Err(failure) => return Err(failure),
        }
    }
    if !args.raw && !out.json {
        let runs = count(rows.len() as u64);
        out.table(&["RUN", ">FRAMES", ">BYTES", "FINGERPRINT"], rows)?;
        let (frames, raw) = (count(total.frames), bytes(total.raw_bytes));
        let empty =
            if empty == 0 { String::new() } else { format!("; {} without a frame", plural(empty, "run")) };
        if total.frames == 0 {
            // The error below reports it.
        } else if let Some(redactor) = redactor {
            let name = redactor.profile().name();
            out.line(format_args!(
                "redacted by profile {name}, not what was recorded: {runs} runs, {frames} frames, {raw}{empty}"
            ))?;
        } else if damage.is_none() {
            out.marked_line(true, "bit-exact", format_args!(": {runs} runs, {frames} frames, {raw}{empty}"))?;
        }
    }
    match damage {
        Some(damage) => Err(damage),
        None if total.frames == 0 => Err(no_frames_failure("no run has a frame".to_owned())),
        None => Ok(()),
    }
}

/// Totals of the frames that were read.
#[derive(Default)]
struct ReplayTotals {
    frames: u64,
    raw_bytes: u64,
}

/// Reads a run. As JSON or raw, each frame is printed as soon as it is read and checked.
fn read_back(
    door: &StoreAccess,
    run: &RunRow,
    args: &ReplayArgs,
    redactor: Option<&Redactor>,
    out: &mut CliOutput,
    mut seen: impl FnMut(&FrameRow),
) -> CliResult<ReplayTotals> {
    let mut replayed = ReplayTotals::default();
    let mut last = None;
    for frame in door.frames(&run.id)? {
        let frame = frame?;
        last = Some(frame.digest.clone());
        let frame = profiles::redacted_frame(redactor, frame);
        replayed.frames += 1;
        replayed.raw_bytes += (frame.input.len() + frame.output.len()) as u64;
        if args.raw {
            out.bytes(&frame.output)?;
        } else if out.json {
            out.object(&FrameLine::new(&run.id, &frame))?;
        }
        seen(&frame);
    }
    // The engine has checked each link against the previous one. The last link must equal the run's
    // fingerprint.
    match (&last, &run.fingerprint) {
        (Some(last), Some(fingerprint)) if last != fingerprint => Err(Failure::damage(
            format!("the frames of run `{}` do not match its fingerprint", run.id),
            "`annals verify` lists everything that is damaged",
        )),
        _ => Ok(replayed),
    }
}

/// A frame as a line of JSON; `import --format frames` reads it.
#[derive(Serialize)]
pub(super) struct FrameLine<'a> {
    run: &'a str,
    seq: u32,
    component: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<u32>,
    started_ns: u64,
    duration_ns: u64,
    severity: &'a str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    error: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    incomplete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata_base64: Option<String>,
    /// Empty if the frame is redacted.
    #[serde(skip_serializing_if = "str::is_empty")]
    digest: &'a str,
    /// The profile that redacted the frame; `import` refuses such a line.
    #[serde(skip_serializing_if = "Option::is_none")]
    redacted: Option<&'a str>,
}

impl<'a> FrameLine<'a> {
    pub(super) fn new(run: &'a str, frame: &'a FrameRow) -> Self {
        let body = |body: &'a [u8]| match std::str::from_utf8(body) {
            Ok(text) => (Some(Cow::Borrowed(text)), None),
            Err(_) => (None, Some(base64::encode(body))),
        };
        let ((input, input_base64), (output, output_base64)) = (body(&frame.input), body(&frame.output));
        let (metadata, metadata_base64) = metadata(&frame.metadata);
        Self {
            run,
            seq: frame.seq,
            component: &frame.component,
            parent: frame.parent,
            started_ns: frame.started_ns,
            duration_ns: frame.duration_ns,
            severity: frame.severity,
            error: frame.error,
            incomplete: frame.incomplete,
            input,
            input_base64,
            output,
            output_base64,
            metadata,
            metadata_base64,
            digest: &frame.digest,
            redacted: frame.redacted.as_deref(),
        }
    }
}
