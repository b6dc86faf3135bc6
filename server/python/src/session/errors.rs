//! Errors of the engine as exceptions of `annals.errors`.

use annals_proxy::SessionError;
use pyo3::prelude::*;
use pyo3::types::PyType;

pub(crate) type SessionResult<T> = Result<T, annals::Error>;

/// The exception for an error: the class of `annals.errors` that its kind names.
pub(crate) fn python_error(py: Python<'_>, error: &annals::Error) -> PyErr {
    let kind = format!("{:?}", error.kind());
    match exception(py, &kind) {
        Ok(class) => PyErr::from_type(class, error.to_string()),
        Err(failed) => failed,
    }
}

/// The exception for a session that could not start.
pub(super) fn session_error(py: Python<'_>, error: &SessionError) -> PyErr {
    match error {
        SessionError::Store(error) => python_error(py, error),
        other => match exception(py, "Invalid") {
            Ok(class) => PyErr::from_type(class, other.to_string()),
            Err(failed) => failed,
        },
    }
}

/// The exception for a session that is used in a forked child.
pub(super) fn forked_error(py: Python<'_>) -> PyErr {
    let why = "this process was forked from the one that began the session, and cannot use it: begin a session in the child";
    python_error(py, &annals::Error::new(annals::ErrorKind::Invalid, why))
}

fn exception<'py>(py: Python<'py>, kind: &str) -> PyResult<Bound<'py, PyType>> {
    let module = py.import("annals.errors")?;
    let class = module.getattr(kind).or_else(|_| module.getattr("Error"))?;
    Ok(class.cast_into::<PyType>()?)
}
