//! Says whether a run passed: from its exit code, its final output, a program, another run, or a model.
//!
//! The final output is what the program wrote to standard output. An outcome that cannot be graded is
//! undefined, with the reason.

mod command;
mod judge;

use annals::{RunReader, RunUid, Status};
use annals_policy::body_path::BodyPath;
use annals_policy::providers::{Cost, Prices};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use command::wait;
pub use judge::Judge;

use crate::document::Spent;

/// What an oracle says of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It passed.
    Pass,
    /// It failed.
    Fail,
    /// It cannot be graded, and why.
    Undefined(String),
}

/// The outcome of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunOutcome {
    /// Its exit code, or 128 and a signal's number.
    pub code: u8,
    /// The signal that ended it.
    pub signal: Option<i64>,
    /// Why annals ended it, if it did.
    pub stopped: Option<String>,
    /// Its standard output.
    pub output: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
    /// The recorded run whose outcome it is.
    pub run: Option<RunUid>,
}

/// Grades runs.
#[derive(Debug, Clone)]
pub enum Oracle {
    /// Exit code 0 is a pass.
    Exit,
    /// A match of the final output is a pass.
    Regex(regex::bytes::Regex),
    /// A value at a path of the final output, which is JSON, is a pass.
    Json(BodyPath, Value),
    /// A shell command that reads the final output: 0 is a pass, 1 a failure.
    Command(String),
    /// The same output and exit code as this outcome is a pass.
    Reference(Box<RunOutcome>),
    /// A model that is asked.
    Judge(Judge),
}

/// The beginnings of lines with which programs report an exception that nobody caught.
const EXCEPTIONS: [&str; 5] = [
    "Traceback (most recent call last)",
    "Uncaught ",
    "panicked at ",
    "Exception in thread ",
    "Unhandled rejection",
];

impl Oracle {
    /// Parses `exit`, `regex:P`, `json:PATH=V`, `cmd:P`, `run:R` or `judge:URL`. `reference` opens run R.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn parse(
        text: &str,
        reference: impl FnOnce(&str) -> Result<RunOutcome, String>,
    ) -> Result<Self, String> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        match (kind, rest) {
            ("exit", "") => Ok(Self::Exit),
            ("regex", pattern) if !pattern.is_empty() => regex::bytes::RegexBuilder::new(pattern)
                .multi_line(true)
                .build()
                .map(Self::Regex)
                .map_err(|error| format!("{pattern:?} is no regular expression: {error}")),
            ("json", rest) => {
                let (path, value) = rest
                    .split_once('=')
                    .ok_or_else(|| format!("{text:?} has no value: write json:$.status=done"))?;
                let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
                Ok(Self::Json(BodyPath::parse(path)?, value))
            }
            ("cmd", command) if !command.is_empty() => Ok(Self::Command(command.to_owned())),
            ("run", run) if !run.is_empty() => Ok(Self::Reference(Box::new(reference(run)?))),
            ("judge", url) if !url.is_empty() => Judge::new(url).map(Self::Judge),
            _ => Err(format!(
                "{text:?} is no oracle: write exit, regex:PATTERN, json:PATH=VALUE, cmd:COMMAND, run:RUN or judge:URL"
            )),
        }
    }

    /// Keeps the verdicts of a judge in this namespace, each with the run that was graded.
    pub fn keep_in(&mut self, space: &annals::Namespace) {
        if let Self::Judge(judge) = self {
            judge.keep_in(space);
        }
    }

    /// Counts the cost of a judge's questions by these prices.
    pub(crate) fn set_prices(&mut self, prices: &Prices) {
        if let Self::Judge(judge) = self {
            judge.set_prices(prices);
        }
    }

    /// What grading such an outcome is expected to cost; `None` if it costs nothing.
    pub(crate) fn cost(&self, outcome: &RunOutcome) -> Option<Cost> {
        match self {
            Self::Judge(judge) => Some(judge.cost(outcome)),
            _ => None,
        }
    }

    /// What grading took since the last call.
    pub(crate) fn take_spent(&self) -> Spent {
        match self {
            Self::Judge(judge) => judge.take_spent(),
            _ => Spent::default(),
        }
    }

    /// Grades an outcome.
    #[must_use]
    pub fn grade(&self, outcome: &RunOutcome) -> Verdict {
        let of = |passed: bool| if passed { Verdict::Pass } else { Verdict::Fail };
        if let Some(why) = &outcome.stopped {
            return Verdict::Undefined(format!("annals ended it: {why}"));
        }
        if let Some(signal) = outcome.signal {
            return Verdict::Undefined(format!("signal {signal} ended it"));
        }
        match self {
            Self::Exit => of(outcome.code == 0),
            Self::Regex(pattern) => of(pattern.is_match(&outcome.output)),
            Self::Json(path, wanted) => match final_json(&outcome.output) {
                None => Verdict::Undefined("its output is no JSON".to_owned()),
                Some(value) => of(path.get(&value) == Some(wanted)),
            },
            Self::Command(command) => command::grade(command, outcome),
            Self::Reference(reference) => {
                of((reference.code, &reference.output) == (outcome.code, &outcome.output))
            }
            Self::Judge(judge) => judge.grade(outcome),
        }
    }

    /// Grades a fork beside its parent. An uncaught exception that the parent did not report, or another
    /// failing exit code where the exit code decides, is no outcome of the agent: it is undefined.
    #[must_use]
    pub fn grade_fork(&self, outcome: &RunOutcome, parent: &RunOutcome) -> Verdict {
        if let Some(line) = exception(&outcome.stderr).filter(|_| exception(&parent.stderr).is_none()) {
            return Verdict::Undefined(format!("an exception: {line}"));
        }
        let ended_itself = outcome.stopped.is_none() && outcome.signal.is_none();
        if matches!(self, Self::Exit)
            && ended_itself
            && outcome.code != 0
            && parent.code != 0
            && outcome.code != parent.code
        {
            return Verdict::Undefined(format!(
                "it ended with {}, and the recorded run with {}",
                outcome.code, parent.code
            ));
        }
        self.grade(outcome)
    }
}

/// The last line of an uncaught exception's report, if there is one.
fn exception(stderr: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(stderr);
    EXCEPTIONS.iter().any(|mark| text.contains(mark)).then(|| {
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        last.trim().chars().take(120).collect()
    })
}

/// The output as JSON: as a whole, or its last line.
fn final_json(output: &[u8]) -> Option<Value> {
    serde_json::from_slice(output).ok().or_else(|| {
        let last = output.split(|byte| *byte == b'\n').rev().find(|line| !line.trim_ascii().is_empty())?;
        serde_json::from_slice(last).ok()
    })
}

impl RunOutcome {
    /// The outcome of a recorded run; `None` if its program has not ended, or there was none.
    ///
    /// # Errors
    /// As [`RunReader::frame`].
    pub fn from_reader(reader: &RunReader) -> annals::Result<Option<Self>> {
        #[derive(Deserialize)]
        struct ProgramEnd {
            exit: Exit,
        }
        #[derive(Deserialize)]
        struct Exit {
            code: u8,
            signal: Option<i64>,
            stopped: Option<String>,
        }
        if reader.info().status == Status::Open {
            return Ok(None);
        }
        let (mut found, mut stderr) = (None, Vec::new());
        for seq in (1..=reader.info().frames).rev().take(3) {
            match reader.frame_info(seq)?.component.name() {
                "stderr" => stderr = reader.frame(seq)?.output,
                "program" => {
                    let frame = reader.frame(seq)?;
                    let Ok(end) = serde_json::from_slice::<ProgramEnd>(&frame.metadata) else { continue };
                    let Exit { code, signal, stopped } = end.exit;
                    let (output, run) = (frame.output, Some(reader.info().uid));
                    found = Some(Self { code, signal, stopped, output, stderr: Vec::new(), run });
                    break;
                }
                _ => {}
            }
        }
        Ok(found.map(|outcome| Self { stderr, ..outcome }))
    }
}

#[cfg(test)]
mod tests;
