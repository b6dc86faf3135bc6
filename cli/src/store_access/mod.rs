//! The command line's only access to the engine: opens a store, and turns the engine's results and errors
//! into what the verbs print. Apart from `verbs/token.rs`, no other file of this crate opens a store.

mod blame;
mod deliberation;
mod diagnostics;
mod evidence;
mod failures;
mod holding;
mod kv;
mod mcp;
mod memory;
mod opening;
mod recording;
mod reports;
mod retention;
mod runs;
mod search;
mod suspects;
mod tapes;
mod terminal;
#[cfg(test)]
mod tests;
mod upkeep;

use std::path::Path;

use annals::{Durability, ErrorKind, Namespace, Options, Store};
use annals_server::RecorderHost;
use annals_server::providers::Prices;

use crate::failure::{CliResult, Failure};

pub(crate) use blame::is_blame_fork;
pub(crate) use evidence::{VerifyScope, parse_checkpoint};
pub(crate) use failures::engine_failure;
pub(crate) use holding::{AskedStore, StoreWait};
pub(crate) use mcp::ToolStore;
pub(crate) use opening::{forbid_upgrades, open_for_writing, write_options};
pub(crate) use recording::SharedRecorder;
pub(crate) use runs::{FrameRow, RunRow, run_row};
pub(crate) use tapes::parse_tape;
pub(crate) use upkeep::{diagnose, repair, restore};

use failures::{no_namespace_failure, open_failure};

/// An open store and the name of the namespace to use.
pub(crate) struct StoreAccess {
    store: Store,
    namespace: String,
    prices: Prices,
    /// Serves recorders while this process holds the store.
    host: Option<RecorderHost>,
}

impl StoreAccess {
    /// Creates a store with the namespace. Returns whether the store is new.
    pub(crate) fn create(root: &Path, namespace: &str, wait: StoreWait) -> CliResult<bool> {
        let there = Store::open_read_only(root).is_ok();
        Self::open_to_write(root, namespace, wait)?.close()?;
        Ok(!there)
    }

    /// Opens a store for writing. Creates the store and the namespace if they do not exist.
    pub(crate) fn open_to_write(root: &Path, namespace: &str, wait: StoreWait) -> CliResult<Self> {
        let store = wait.open(root, &write_options()).map_err(engine_failure)?;
        store.namespace(namespace).map_err(engine_failure)?;
        Ok(Self::new(store, namespace))
    }

    /// Opens an existing store with an existing namespace for writing.
    pub(crate) fn open_existing_to_write(root: &Path, namespace: &str, wait: StoreWait) -> CliResult<Self> {
        Self::open_existing(root, namespace, write_options(), wait)
    }

    /// Opens an existing store with an existing namespace to record a program, with the durability of
    /// [`SharedRecorder::open`].
    pub(crate) fn open_existing_to_record(root: &Path, namespace: &str, wait: StoreWait) -> CliResult<Self> {
        let options = Options { durability: Durability::Process, ..write_options() };
        Self::open_existing(root, namespace, options, wait)
    }

    /// As [`StoreAccess::open_existing_to_record`], for the forks of a blame: only the process that holds the store
    /// can record them.
    pub(crate) fn open_existing_for_blame(root: &Path, namespace: &str, wait: StoreWait) -> CliResult<Self> {
        let options = Options { durability: Durability::Process, ..write_options() };
        Self::open_existing_or(root, namespace, options, wait, |error| match error.kind() {
            ErrorKind::Locked => Failure::failed(
                format!("a blame records its forks itself and needs the store alone: {error}"),
                "end that process, wait longer for it with --wait SECONDS, or blame in a copy made by `annals backup`",
            ),
            _ => open_failure(root, error),
        })
    }

    fn new(store: Store, namespace: &str) -> Self {
        Self { store, namespace: namespace.to_owned(), prices: Prices::built_in(), host: None }
    }

    fn open_existing(root: &Path, namespace: &str, options: Options, wait: StoreWait) -> CliResult<Self> {
        Self::open_existing_or(root, namespace, options, wait, |error| open_failure(root, error))
    }

    fn open_existing_or(
        root: &Path,
        namespace: &str,
        options: Options,
        wait: StoreWait,
        failure: impl FnOnce(annals::Error) -> Failure,
    ) -> CliResult<Self> {
        let options = Options { create: false, ..options };
        let store = wait.open(root, &options).map_err(failure)?;
        let names = store.namespaces().map_err(engine_failure)?;
        if names.iter().any(|name| name == namespace) {
            return Ok(Self::new(store, namespace));
        }
        Err(no_namespace_failure(format!("there is no namespace {namespace:?}"), &names))
    }

    /// Opens a store for reading.
    pub(crate) fn open_to_read(root: &Path, namespace: &str) -> CliResult<Self> {
        let store = Store::open_read_only(root).map_err(|error| open_failure(root, error))?;
        Ok(Self::new(store, namespace))
    }

    /// Makes commits visible that came after the store was opened for reading.
    pub(crate) fn refresh(&self) -> CliResult<()> {
        self.store.refresh().map_err(engine_failure)
    }

    /// Whether a process holds the store open for writing.
    pub(crate) fn is_being_written(&self) -> CliResult<bool> {
        self.store.is_being_written().map_err(engine_failure)
    }

    pub(crate) fn close(self) -> CliResult<()> {
        // Recorders that write through this process take the store over.
        drop(self.host);
        self.store.close().map_err(engine_failure)
    }

    /// Reports a namespace that does not exist.
    pub(crate) fn check_namespace(&self) -> CliResult<()> {
        self.namespace().map(drop)
    }

    fn namespace(&self) -> CliResult<Namespace> {
        self.store.namespace(&self.namespace).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                no_namespace_failure(error.to_string(), &self.store.namespaces().unwrap_or_default())
            }
            _ => engine_failure(error),
        })
    }
}
