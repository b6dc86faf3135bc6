//! Errors of sessions as exceptions.

use annals_proxy::SessionError;
use pyo3::prelude::*;

use crate::store::errors::{Invalid, python_error};

pub(crate) type SessionResult<T> = Result<T, annals::Error>;

/// The exception for a session that could not start.
pub(super) fn session_error(error: &SessionError) -> PyErr {
    match error {
        SessionError::Store(error) => python_error(error),
        other => Invalid::new_err(other.to_string()),
    }
}

/// The exception for a session that is used in a forked child.
pub(super) fn forked_error() -> PyErr {
    Invalid::new_err(
        "this process was forked from the one that began the session, and cannot use it: begin a session in the child",
    )
}
