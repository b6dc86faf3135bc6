//! A store in Python: opened, shared with other processes, read and written.
//!
//! Every call that may touch the disk runs without the interpreter's lock. Every call checks that the store is open and
//! that this process opened it: a forked child has neither the threads nor the locks of its parent.

pub(crate) mod errors;
mod handle;
mod namespace;
mod run;
mod search;

use pyo3::prelude::*;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    errors::register(module)?;
    module.add_class::<handle::PyStore>()?;
    module.add_class::<namespace::PyNamespace>()?;
    module.add_class::<search::PyMemoryHit>()?;
    module.add_class::<search::PyVectorHit>()?;
    module.add_class::<run::PyRun>()?;
    module.add_class::<run::PyRunReader>()?;
    module.add_class::<run::PyFrames>()?;
    module.add_class::<run::PyRunInfo>()?;
    module.add_class::<run::PyFrame>()
}
