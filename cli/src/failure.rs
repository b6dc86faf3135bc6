//! What a command that did not succeed says, and its exit code.

use std::fmt;
use std::io;
use std::process::ExitCode;

use annals_formats::import::{ImportError, TemplateError};

/// Exit codes: a contract, described in docs/cli.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// It could not be done.
    Failed = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// Divergence or damage was found.
    Damage = 3,
    /// There is no such thing.
    NoSuchThing = 4,
}

/// Why a command ended early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something to tell the user.
    Told { code: Code, message: String, hint: String },
    /// Everything was told already; only the exit code is left.
    Silent(Code),
    /// The recorded program's own exit code, passed on.
    Exit(u8),
    /// The reader of our output went away: not a failure.
    ClosedPipe,
}

/// Result of a command or a part of it.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure with its hint.
    pub(crate) fn new(code: Code, message: impl fmt::Display, hint: impl fmt::Display) -> Self {
        Self::Told { code, message: message.to_string(), hint: hint.to_string() }
    }

    /// The same failure, with where it happened before its message.
    pub(crate) fn at(self, place: impl fmt::Display) -> Self {
        match self {
            Self::Told { code, message, hint } => {
                Self::Told { code, message: format!("{place}: {message}"), hint }
            }
            other => other,
        }
    }

    /// The exit code, after the message has been told on standard error.
    pub(crate) fn tell(self) -> ExitCode {
        let code = match self {
            Self::ClosedPipe => return ExitCode::SUCCESS,
            Self::Exit(code) => return ExitCode::from(code),
            Self::Silent(code) => code,
            Self::Told { code, message, hint } => {
                let error = anstyle::AnsiColor::Red.on_default().bold();
                let help = anstyle::AnsiColor::Cyan.on_default();
                let mut stderr = anstream::stderr().lock();
                // Nothing is left to do where even this cannot be written.
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

/// Failures of our own output: a closed pipe ends a command quietly.
pub(crate) fn output(error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        Failure::ClosedPipe
    } else {
        Failure::new(Code::Failed, format!("cannot write the output: {error}"), "check where the output goes")
    }
}

/// What the command line's reader says: help and version, which are no failures, or a refusal. A refusal ends with
/// our own hint in place of its last paragraph, which says the same.
pub(crate) fn refused(refused: &clap::Error) -> ExitCode {
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
    ExitCode::from(Code::Usage as u8)
}

impl From<ImportError> for Failure {
    fn from(error: ImportError) -> Self {
        Self::new(Code::Failed, &error, error.hint())
    }
}

impl From<TemplateError> for Failure {
    fn from(error: TemplateError) -> Self {
        Self::new(Code::Usage, &error, "name runs by their own keys, for example --id '{task_id}-{trial}'")
    }
}

impl From<annals_server::SessionError> for Failure {
    fn from(error: annals_server::SessionError) -> Self {
        use annals_server::SessionError;
        match error {
            SessionError::Program(error) => {
                let failure = Self::new(Code::Failed, &error.message, "check the command after --");
                failure.tell();
                Self::Exit(error.code)
            }
            SessionError::Proxy(error) => {
                before(Self::new(Code::Failed, error, "the program was not started"))
            }
            SessionError::Mount(error) => {
                let hint = "--upstream names another address: [PROVIDER=]http://HOST[:PORT][/PATH]";
                before(Self::new(Code::Usage, error, hint))
            }
            SessionError::Nondet(error) => {
                let hint = "the program was not started; without --capture-nondet its calls are recorded all the same";
                before(Self::new(Code::Usage, error.0, hint))
            }
            SessionError::Secret(why) => {
                let hint = "the program was not started; --secret takes the name of a variable that is set, to 8 bytes or more";
                before(Self::new(Code::Usage, why, hint))
            }
            SessionError::Store(error) => before(crate::door::engine(error)),
        }
    }
}

/// A failure before the program began ends with 125, so that nobody takes it for the program's own.
pub(crate) fn before(failure: Failure) -> Failure {
    failure.tell();
    Failure::Exit(125)
}

impl From<annals_proof::Error> for Failure {
    fn from(error: annals_proof::Error) -> Self {
        let (code, hint) = match &error {
            annals_proof::Error::Refused(_) => (Code::Damage, "it is no evidence of anything as it is"),
            annals_proof::Error::TooLittle(_) => {
                (Code::Failed, "have a new proof made, with `annals ledger prove --since` that checkpoint")
            }
            _ => (Code::Failed, "name the file that is meant here, as annals or openssl wrote it"),
        };
        Self::new(code, error, hint)
    }
}
