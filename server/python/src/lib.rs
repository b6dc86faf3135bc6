//! The extension module `annals._annals`: what the Python package does in Rust.
//!
//! `store` is the store, its namespaces, keyspaces and runs; `session` records and replays this process; `chunks` has
//! the hashes of the LangGraph saver's values, `lists` its serialised lists; `states` writes states as JSON. The modules
//! of the package say what users call.

mod chunks;
mod lists;
mod session;
mod states;
mod store;

use pyo3::prelude::*;

#[pymodule]
fn _annals(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    chunks::register(module)?;
    lists::register(module)?;
    store::register(module)?;
    states::register(module)?;
    session::register(module)
}
