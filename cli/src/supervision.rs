//! The standard input of a program that is started, processes that outlive it, and what a recording's end says of what it lacks.

use std::io::Write;
use std::time::Duration;

use annals::{RunReader, parse_duration_ns};
use annals_server::{Origin, RecordingSummary, StandardInput, Supervision, Survivor};

use crate::args::{InputArgs, LingerArgs, RecordArgs, StdinArg};
use crate::door::engine;
use crate::failure::{Code, Failure, Result};
use crate::out::{count, many, printable};

/// Of a program that is recorded.
pub(crate) fn of_recording(args: &RecordArgs) -> Result<Supervision> {
    let stdin = if args.no_stdin { StandardInput::Inherited } else { StandardInput::Kept };
    supervision(stdin, &args.linger)
}

/// Of a program that runs again; what a fork or a live replay of it reads is recorded again.
pub(crate) fn of_replay(
    args: &InputArgs,
    origin: &Origin,
    reader: &RunReader,
    is_recorded: bool,
) -> Result<Supervision> {
    let recorded = match args.stdin {
        Some(StdinArg::Live) => None,
        None | Some(StdinArg::Recorded) => origin.input(reader).map_err(engine)?,
    };
    let stdin = match recorded {
        Some(recorded) => recorded,
        None if args.stdin == Some(StdinArg::Recorded) => {
            return Err(Failure::new(
                Code::Usage,
                format!("the standard input of run `{}` was not recorded", reader.info().name),
                "--stdin live gives the program the standard input of this command",
            ));
        }
        None if is_recorded => StandardInput::Kept,
        None => StandardInput::Inherited,
    };
    supervision(stdin, &args.linger)
}

fn supervision(stdin: StandardInput, args: &LingerArgs) -> Result<Supervision> {
    let linger = parse_duration_ns(&args.linger).map(Duration::from_nanos).ok_or_else(|| {
        let message = format!("--linger is a time such as 30s, and {:?} is none", args.linger);
        Failure::new(Code::Usage, message, "--linger 0s waits for no process that outlives the program")
    })?;
    Ok(Supervision { stdin, linger, waiting })
}

fn waiting(survivors: &[Survivor]) {
    // Nothing is left to do where even this cannot be written.
    let _ = writeln!(
        anstream::stderr().lock(),
        "annals: the program has ended; waiting for {} of it: {} (Ctrl-C ends the waiting)",
        processes(survivors),
        named(survivors)
    );
}

/// Processes with their commands.
pub(crate) fn named(survivors: &[Survivor]) -> String {
    let names: Vec<_> = survivors.iter().map(ToString::to_string).collect();
    printable(&names.join(", "))
}

fn processes(survivors: &[Survivor]) -> String {
    match survivors.len() {
        1 => "1 process".to_owned(),
        number => format!("{} processes", count(number as u64)),
    }
}

/// That arguments of the command are not stored, as an aside of a closing line.
pub(crate) fn masked(recorded: &RecordingSummary) -> Option<String> {
    let masked = recorded.masked_arguments;
    (masked > 0).then(|| format!("{} masked", many(masked, "argument")))
}

/// How a recording ends.
pub(crate) struct RecordingEnd<'a> {
    pub(crate) recorded: &'a RecordingSummary,
    /// The program's exit code, if there was one program.
    pub(crate) code: Option<u8>,
    /// A recording without a model call is as good as any.
    pub(crate) may_be_empty: bool,
    /// Processes that outlive the program were to be waited for.
    pub(crate) waits: bool,
    /// Connections that may carry model calls did not go through annals, which was told.
    pub(crate) is_missed: bool,
}

impl RecordingEnd<'_> {
    /// The program's exit code, unless something was not recorded.
    pub(crate) fn result(&self) -> Result<()> {
        let program = self.code.map_or_else(String::new, |code| format!("; the program ended with {code}"));
        if let Some(failure) = self.lost(&program) {
            return Err(failure);
        }
        let code = self.code.unwrap_or(0);
        // Requests in a form that is not known here are recorded like any other.
        if self.recorded.requests == 0 && !self.may_be_empty {
            let failure = Failure::new(
                Code::Failed,
                format!("NO MODEL CALL WAS CAPTURED{program}"),
                "the program may read its base address from another variable (--env NAME=/PATH) or have it fixed; --allow-empty permits it",
            );
            // The program's own failure says more.
            return Err(if code == 0 { failure } else { told(failure, code) });
        }
        match code {
            0 if self.is_missed => Err(Failure::Silent(Code::Failed)),
            0 => Ok(()),
            code => Err(Failure::Exit(code)),
        }
    }

    /// What is not in the store, or will not be.
    pub(crate) fn lost(&self, program: &str) -> Option<Failure> {
        let recorded = self.recorded;
        if let Some(why) = &recorded.failure {
            let (stored, seen) = (recorded.requests.min(recorded.seen), recorded.seen);
            let lost = if stored == seen { ", the run's end is not" } else { "" };
            return Some(Failure::new(
                Code::Failed,
                format!(
                    "{} of {} are stored{lost}: {}{program}",
                    count(stored),
                    many(seen, "request"),
                    printable(&reason(why))
                ),
                "the program went on without being recorded; what is stored can be read and replayed",
            ));
        }
        if self.waits && !recorded.survivors.is_empty() {
            return Some(Failure::new(
                Code::Failed,
                format!(
                    "the recording ended before {} of the program: {}{program}",
                    processes(&recorded.survivors),
                    named(&recorded.survivors)
                ),
                "--linger TIME waits longer for them; --linger 0s expects them to stay",
            ));
        }
        None
    }
}

/// A failure that is told while the exit code stays the program's.
fn told(failure: Failure, code: u8) -> Failure {
    failure.tell();
    Failure::Exit(code)
}

/// Why the store failed; a full disk by its name.
fn reason(why: &str) -> String {
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
