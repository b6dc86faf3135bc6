//! The engine's errors as failures with an exit code and a hint.

use std::path::Path;

use annals::upkeep::is_unfinished_repair;
use annals::{Error, ErrorKind};

use crate::failure::{Failure, FailureCode};

pub(super) fn open_failure(root: &Path, error: Error) -> Failure {
    if error.kind() == ErrorKind::NotFound {
        if is_unfinished_repair(&error) {
            return Failure::missing(error, "an interrupted `annals repair` left it");
        }
        let message = format!("no store at {}", root.display());
        return Failure::missing(message, "create one with `annals init`, or name one with --store");
    }
    engine_failure(error)
}

pub(super) fn no_namespace_failure(message: String, names: &[String]) -> Failure {
    let hint = if names.is_empty() {
        "this store has no namespace yet: `annals import` creates the one that it writes to".to_owned()
    } else {
        format!("choose another one with --namespace; existing: {}", names.join(", "))
    };
    Failure::missing(message, hint)
}

/// Turns an engine error into an exit code and a hint.
pub(crate) fn engine_failure(error: Error) -> Failure {
    let (code, hint) = match error.kind() {
        ErrorKind::Invalid => (FailureCode::Failed, "correct the value that the message names"),
        ErrorKind::NotFound => {
            (FailureCode::NoSuchThing, "`annals runs` lists the runs, `annals scan` the keys")
        }
        ErrorKind::Conflict => {
            (FailureCode::Failed, "resolve the conflict that the message names, or wait for it")
        }
        ErrorKind::Locked => (
            FailureCode::Failed,
            "--wait SECONDS waits longer for that process; reading verbs work meanwhile",
        ),
        ErrorKind::Damaged => (FailureCode::Damage, "`annals doctor` lists the damage and the remedies"),
        ErrorKind::Unsupported => (FailureCode::Failed, "install the version of annals that wrote it"),
        ErrorKind::Diverged => (FailureCode::Damage, "compare the two with `annals show`"),
        ErrorKind::Gone => (FailureCode::NoSuchThing, "`annals ledger gaps` lists what was dropped"),
        ErrorKind::Unavailable => (FailureCode::Failed, "fix the system error, then try again"),
        ErrorKind::Poisoned => {
            (FailureCode::Failed, "an earlier write failed; try again: acknowledged data is kept")
        }
        _ => (FailureCode::Failed, "this is a bug in annals: please report it"),
    };
    Failure::new(code, error, hint)
}
