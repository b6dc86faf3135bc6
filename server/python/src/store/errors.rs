//! Exceptions: one class for each thing that a caller can do about an error.

use annals::ErrorKind;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(annals, Error, PyException, "An error of annals. Its class says what to do.");
create_exception!(annals, Invalid, Error, "The argument or input is wrong: change it.");
create_exception!(annals, NotFound, Error, "There is no such run, frame, key or store.");
create_exception!(
    annals,
    Conflict,
    Error,
    "It exists already, has ended, or was changed meanwhile: read it again."
);
create_exception!(annals, Locked, Error, "Another process holds the store: wait, or open it for reading.");
create_exception!(annals, Damaged, Error, "Bytes on disk differ from what was written: verify, then repair.");
create_exception!(annals, Unsupported, Error, "A newer annals wrote the store: use the newer one.");
create_exception!(annals, Diverged, Error, "The replay differs from the recording.");
create_exception!(annals, Gone, Error, "It existed, and a retention policy dropped it.");
create_exception!(annals, Unavailable, Error, "The system refused: fix the cause and retry.");
create_exception!(annals, Poisoned, Error, "An earlier failure stopped the writer: open the store again.");
create_exception!(annals, Bug, Error, "annals contradicts itself: please report it.");

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("Error", py.get_type::<Error>())?;
    module.add("Invalid", py.get_type::<Invalid>())?;
    module.add("NotFound", py.get_type::<NotFound>())?;
    module.add("Conflict", py.get_type::<Conflict>())?;
    module.add("Locked", py.get_type::<Locked>())?;
    module.add("Damaged", py.get_type::<Damaged>())?;
    module.add("Unsupported", py.get_type::<Unsupported>())?;
    module.add("Diverged", py.get_type::<Diverged>())?;
    module.add("Gone", py.get_type::<Gone>())?;
    module.add("Unavailable", py.get_type::<Unavailable>())?;
    module.add("Poisoned", py.get_type::<Poisoned>())?;
    module.add("Bug", py.get_type::<Bug>())
}

/// The exception of an engine's error, for `map_err`.
#[expect(clippy::needless_pass_by_value, reason = "it is the argument of map_err")]
pub(crate) fn to_py(error: annals::Error) -> PyErr {
    python_error(&error)
}

/// The exception of an engine's error.
pub(crate) fn python_error(error: &annals::Error) -> PyErr {
    let message = error.to_string();
    match error.kind() {
        ErrorKind::Invalid => Invalid::new_err(message),
        ErrorKind::NotFound => NotFound::new_err(message),
        ErrorKind::Conflict => Conflict::new_err(message),
        ErrorKind::Locked => Locked::new_err(message),
        ErrorKind::Damaged => Damaged::new_err(message),
        ErrorKind::Unsupported => Unsupported::new_err(message),
        ErrorKind::Diverged => Diverged::new_err(message),
        ErrorKind::Gone => Gone::new_err(message),
        ErrorKind::Unavailable => Unavailable::new_err(message),
        ErrorKind::Poisoned => Poisoned::new_err(message),
        _ => Bug::new_err(message),
    }
}
