//! Standard input of a started program, processes that outlive the program, and the report of what a
//! recording lacks.

use std::time::Duration;

use annals::{RunReader, retention::parse_duration_ns};
use annals_server::{Origin, RecordingSummary, StandardInput, Supervision, Survivor};

use crate::args::{InputArgs, LingerArgs, RecordArgs, StdinArg};
use crate::failure::{CliResult, Failure, FailureCode};
use crate::output::{count, plural, print_note, printable};
use crate::store_access::engine_failure;

/// Returns the supervision of a program that is recorded.
pub(crate) fn for_recording(args: &RecordArgs) -> CliResult<Supervision> {
    let stdin = if args.no_stdin { StandardInput::Inherited } else { StandardInput::Kept };
    supervision(stdin, &args.linger)
}

/// Returns the supervision of a program that runs again. A fork or a live replay records its standard input
/// again.
pub(crate) fn for_replay(
    args: &InputArgs,
    origin: &Origin,
    reader: &RunReader,
    is_recorded: bool,
) -> CliResult<Supervision> {
    let recorded = match args.stdin {
        Some(StdinArg::Live) => None,
        None | Some(StdinArg::Recorded) => origin.input(reader).map_err(engine_failure)?,
    };
    let stdin = match recorded {
        Some(recorded) => recorded,
        None if args.stdin == Some(StdinArg::Recorded) => {
            return Err(Failure::usage(
                format!("the standard input of run `{}` was not recorded", reader.info().name),
                "--stdin live gives the program the standard input of this command",
            ));
        }
        None if is_recorded => StandardInput::Kept,
        None => StandardInput::Inherited,
    };
    supervision(stdin, &args.linger)
}

fn supervision(stdin: StandardInput, args: &LingerArgs) -> CliResult<Supervision> {
    let linger = parse_duration_ns(&args.linger).map(Duration::from_nanos).ok_or_else(|| {
        let message = format!("--linger takes a time such as 30s, not {:?}", args.linger);
        Failure::usage(message, "--linger 0s waits for no process that outlives the program")
    })?;
    Ok(Supervision { stdin, linger, waiting: print_waiting, unattended: None })
}

fn print_waiting(survivors: &[Survivor]) {
    print_note(format_args!(
        "the program has ended; waiting for {} of it: {} (Ctrl-C ends the waiting)",
        process_count(survivors),
        process_list(survivors)
    ));
}

/// Lists processes with their commands.
pub(crate) fn process_list(survivors: &[Survivor]) -> String {
    let names: Vec<_> = survivors.iter().map(ToString::to_string).collect();
    printable(&names.join(", "))
}

fn process_count(survivors: &[Survivor]) -> String {
    match survivors.len() {
        1 => "1 process".to_owned(),
        number => format!("{} processes", count(number as u64)),
    }
}

/// How a recording ends.
pub(crate) struct RecordingEnd<'a> {
    pub(crate) recorded: &'a RecordingSummary,
    /// The program's exit code, if there was one program.
    pub(crate) code: Option<u8>,
    /// A recording without a model call is no failure.
    pub(crate) may_be_empty: bool,
    /// The recording was to wait for processes that outlive the program.
    pub(crate) waits: bool,
    /// Connections that may carry model calls bypassed annals; this is already printed.
    pub(crate) is_missed: bool,
}

impl RecordingEnd<'_> {
    /// Returns the program's exit code, unless something was not recorded.
    pub(crate) fn result(&self) -> CliResult<()> {
        let program = self.program_end();
        if let Some(failure) = self.loss(&program) {
            return Err(failure);
        }
        let code = self.code.unwrap_or(0);
        // Requests of an unknown interface are recorded too, so they count.
        if self.recorded.requests == 0 && !self.may_be_empty {
            let failure = Failure::failed(
                format!("NO MODEL CALL WAS CAPTURED{program}"),
                "the program may read its base address from another variable (--env NAME=/PATH) or have it fixed; --allow-empty permits it",
            );
            // The program's own exit code tells more.
            return Err(if code == 0 { failure } else { print_then_exit(failure, code) });
        }
        match code {
            0 if self.is_missed || self.recorded.refused > 0 => Err(Failure::Silent(FailureCode::Failed)),
            0 => Ok(()),
            code => Err(Failure::Exit(code)),
        }
    }

    /// The end of an error line: the program's own exit code, which this command's exit code hides.
    pub(crate) fn program_end(&self) -> String {
        self.code.map_or_else(String::new, |code| format!("; the program ended with {code}"))
    }

    /// Returns a failure if the store lacks a part of the recording, or will lack one.
    pub(crate) fn loss(&self, program: &str) -> Option<Failure> {
        let recorded = self.recorded;
        if let Some(why) = &recorded.failure {
            let (stored, seen) = (recorded.requests.min(recorded.seen), recorded.seen);
            let lost = if stored == seen { ", the run's end is not" } else { "" };
            return Some(Failure::failed(
                format!(
                    "{} of {} are stored{lost}: {}{program}",
                    count(stored),
                    plural(seen, "request"),
                    printable(&store_failure_reason(why))
                ),
                "the program went on without being recorded; what is stored can be read and replayed",
            ));
        }
        if self.waits && !recorded.survivors.is_empty() {
            return Some(Failure::failed(
                format!(
                    "the recording ended before {} of the program: {}{program}",
                    process_count(&recorded.survivors),
                    process_list(&recorded.survivors)
                ),
                "--linger TIME waits longer for them; --linger 0s expects them to stay",
            ));
        }
        None
    }
}

/// Prints a failure; the exit code stays the program's.
fn print_then_exit(failure: Failure, code: u8) -> Failure {
    failure.print();
    Failure::Exit(code)
}

/// Names the reason of a store failure; a full disk is named in plain words.
pub(crate) fn store_failure_reason(why: &str) -> String {
    // ENOSPC, EDQUOT and EFBIG of Linux; EDQUOT of macOS.
    let kinds = [
        (["(os error 28)", "no space"].as_slice(), "the disk is full"),
        (["(os error 122)", "(os error 69)", "quota exceeded"].as_slice(), "the disk quota is used up"),
        (["(os error 27)", "file too large"].as_slice(), "the disk is full (a file may not grow any more)"),
    ];
    let lower = why.to_ascii_lowercase();
    match kinds.iter().find(|(words, _)| words.iter().any(|word| lower.contains(word))) {
        Some((_, name)) => format!("{name}: {why}"),
        None => why.to_owned(),
    }
}
