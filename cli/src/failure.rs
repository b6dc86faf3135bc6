//! Messages and exit codes of commands that fail.

use std::fmt;
use std::io;
use std::process::ExitCode;

use annals_formats::import::{ImportError, TemplateError};
use annals_text::visible::printable;

/// Exit codes. They are a contract, described in docs/cli.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureCode {
    /// The command failed.
    Failed = 1,
    /// The command line is invalid.
    Usage = 2,
    /// Divergence or damage was found.
    Damage = 3,
    /// A named thing does not exist.
    NoSuchThing = 4,
}

/// Why a command ended early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A message for the user.
    Message { code: FailureCode, message: String, hint: String },
    /// The message is already printed; only the exit code is left.
    Silent(FailureCode),
    /// The recorded program's own exit code, passed on.
    Exit(u8),
    /// The reader of standard output has closed it, which is no failure.
    ClosedPipe,
}

/// Result of a command or a part of it.
pub(crate) type CliResult<T> = Result<T, Failure>;

/// A shell adds this to the number of the signal that ended a program.
pub(crate) const SIGNAL_BASE: i32 = 128;

impl Failure {
    /// A command that failed, with a hint.
    pub(crate) fn failed(message: impl fmt::Display, hint: impl fmt::Display) -> Self {
        Self::new(FailureCode::Failed, message, hint)
    }

    /// An invalid command line, with a hint.
    pub(crate) fn usage(message: impl fmt::Display, hint: impl fmt::Display) -> Self {
        Self::new(FailureCode::Usage, message, hint)
    }

    /// Divergence or damage, with a hint.
    pub(crate) fn damage(message: impl fmt::Display, hint: impl fmt::Display) -> Self {
        Self::new(FailureCode::Damage, message, hint)
    }

    /// A named thing that does not exist, with a hint.
    pub(crate) fn missing(message: impl fmt::Display, hint: impl fmt::Display) -> Self {
        Self::new(FailureCode::NoSuchThing, message, hint)
    }

    /// A failure with its hint.
    pub(crate) fn new(code: FailureCode, message: impl fmt::Display, hint: impl fmt::Display) -> Self {
        Self::Message { code, message: message.to_string(), hint: hint.to_string() }
    }

    /// Returns the failure with `place` before its message.
    pub(crate) fn with_place(self, place: impl fmt::Display) -> Self {
        match self {
            Self::Message { code, message, hint } => {
                Self::Message { code, message: format!("{place}: {message}"), hint }
            }
            other => other,
        }
    }

    /// Returns the failure with `end` after its message.
    pub(crate) fn with_end(self, end: &str) -> Self {
        match self {
            Self::Message { code, message, hint } => Self::Message { code, message: message + end, hint },
            other => other,
        }
    }

    /// Returns a failure for a missing thing with another hint; any other as it is.
    pub(crate) fn with_hint_if_missing(self, hint: impl FnOnce() -> Option<String>) -> Self {
        match self {
            Self::Message { code: FailureCode::NoSuchThing, message, hint: old } => {
                Self::missing(message, hint().unwrap_or(old))
            }
            other => other,
        }
    }

    /// Prints the message on standard error, and returns the exit code.
    pub(crate) fn print(self) -> ExitCode {
        let code = match self {
            Self::ClosedPipe => return ExitCode::SUCCESS,
            Self::Exit(code) => return ExitCode::from(code),
            Self::Silent(code) => code,
            Self::Message { code, message, hint } => {
                // Both may quote recorded text.
                let (message, hint) = (printable(&message), printable(&hint));
                let error = anstyle::AnsiColor::Red.on_default().bold();
                let help = anstyle::AnsiColor::Cyan.on_default();
                let mut stderr = anstream::stderr().lock();
                // A failure to write to standard error cannot be reported.
                let _ = io::Write::write_fmt(
                    &mut stderr,
                    format_args!("{error}error:{error:#} {message}\n{help}hint:{help:#} {hint}\n"),
                );
                code
            }
        };
        ExitCode::from(code as u8)
    }
}

/// A failure to write standard output. A closed pipe ends the command silently.
pub(crate) fn output_failure(error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        Failure::ClosedPipe
    } else {
        Failure::failed(format!("cannot write the output: {error}"), "check where the output goes")
    }
}

/// Prints clap's output: help and version, which are no failures, or a usage error. In a usage error, a hint
/// replaces clap's last paragraph, which says the same.
pub(crate) fn print_usage_error(refused: &clap::Error) -> ExitCode {
    if !refused.use_stderr() {
        let _ = refused.print();
        return ExitCode::SUCCESS;
    }
    let text = refused.render().ansi().to_string();
    let told = text.rfind("\nFor more information").and_then(|at| text.get(..at)).unwrap_or(&text).trim_end();
    let help = anstyle::AnsiColor::Cyan.on_default();
    let mut stderr = anstream::stderr().lock();
    let _ = io::Write::write_fmt(
        &mut stderr,
        format_args!(
            "{told}\n{help}hint:{help:#} `annals --help` lists the verbs, `annals VERB --help` the options\n"
        ),
    );
    ExitCode::from(FailureCode::Usage as u8)
}

impl From<ImportError> for Failure {
    fn from(error: ImportError) -> Self {
        Self::failed(&error, error.hint())
    }
}

impl From<TemplateError> for Failure {
    fn from(error: TemplateError) -> Self {
        Self::usage(&error, "use keys of the runs, for example --id '{task_id}-{trial}'")
    }
}

impl From<annals_server::SessionError> for Failure {
    fn from(error: annals_server::SessionError) -> Self {
        use annals_server::SessionError;
        match error {
            SessionError::Program(error) => {
                let failure = Self::failed(&error.message, "check the command after --");
                failure.print();
                Self::Exit(error.code)
            }
            SessionError::Proxy(error) => before_start(Self::failed(error, "the program was not started")),
            SessionError::Mount(error) => {
                let hint = "--upstream names another address: [PROVIDER=]http://HOST[:PORT][/PATH]";
                before_start(Self::usage(error, hint))
            }
            SessionError::Nondet(error) => {
                let hint = "the program was not started; calls are also recorded without --capture-nondet";
                before_start(Self::usage(error.0, hint))
            }
            SessionError::Secret(why) => {
                let hint = "the program was not started; --secret takes the name of a variable with a value of at least 8 bytes";
                before_start(Self::usage(why, hint))
            }
            SessionError::Store(error) => before_start(crate::store_access::engine_failure(error)),
        }
    }
}

/// Prints a failure that comes before the program starts. The exit code is 125, so that it differs from the
/// program's.
pub(crate) fn before_start(failure: Failure) -> Failure {
    failure.print();
    Failure::Exit(125)
}

impl From<annals_proof::ProofError> for Failure {
    fn from(error: annals_proof::ProofError) -> Self {
        let (code, hint) = match &error {
            annals_proof::ProofError::Refused(_) => {
                (FailureCode::Damage, "it proves nothing; get an unchanged file")
            }
            annals_proof::ProofError::Insufficient(_) => {
                (FailureCode::Failed, "make a new proof with `annals ledger prove --since CHECKPOINT`")
            }
            _ => (FailureCode::Failed, "name an unchanged file from annals or openssl"),
        };
        Self::new(code, error, hint)
    }
}
