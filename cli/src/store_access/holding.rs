//! The process that holds a store: commands that it runs for this one, and the wait for it.

use std::path::Path;
use std::time::Duration;

use annals::{Error, Options, Store};
use annals_server::{AskOutcome, HolderWait, RecorderHost, Shared, ask_or_open, open_or_wait};

use super::StoreAccess;
use super::failures::{engine_failure, no_namespace_failure, open_failure};
use super::opening::{print_opening, write_options};
use crate::args::GlobalArgs;
use crate::failure::CliResult;
use crate::output::{print_note, printable};

/// The longest wait for another process that holds the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoreWait(Duration);

/// The process that holds a store has run a command, or this process has opened the store.
pub(crate) enum AskedStore {
    Asked(String),
    Opened(StoreAccess),
}

impl StoreWait {
    /// Waits for no process.
    pub(crate) const NONE: Self = Self(Duration::ZERO);

    pub(crate) fn from_args(global: &GlobalArgs) -> Self {
        Self(Duration::from_secs(global.wait.into()))
    }

    /// Opens a store for writing, and says on standard error what the opening changed.
    pub(super) fn open(self, root: &Path, options: &Options) -> annals::Result<Store> {
        let wait = HolderWait { most: self.0, waiting: &mut print_waiting };
        let store = open_or_wait(root, options, wait)?;
        print_opening(store.opening());
        Ok(store)
    }

    /// Opens a store to record into, or joins the process that holds it.
    pub(super) fn open_shared(
        self,
        root: &Path,
        namespace: &str,
        options: &Options,
    ) -> annals::Result<Shared> {
        let wait = HolderWait { most: self.0, waiting: &mut print_waiting };
        let shared = Shared::open_or_wait(root, namespace, options, wait)?;
        shared.opening().iter().for_each(print_opening);
        Ok(shared)
    }

    /// As [`ask_or_open`].
    pub(super) fn ask_or_open(
        self,
        root: &Path,
        words: &[&[u8]],
        options: &Options,
        repeats: bool,
    ) -> annals::Result<AskOutcome> {
        let wait = HolderWait { most: self.0, waiting: &mut print_waiting };
        let asked = ask_or_open(root, words, options, repeats, wait)?;
        if let AskOutcome::Opened(store) = &asked {
            print_opening(store.opening());
        }
        Ok(asked)
    }
}

/// Prints that another process holds the store.
fn print_waiting(error: &Error) {
    print_note(format_args!("waiting, at most --wait SECONDS: {}", printable(&error.to_string())));
}

impl StoreAccess {
    /// Runs a command in the process that holds the store, else opens the existing store for writing to all of
    /// it; the namespace need not exist. Recorders that start meanwhile record through this process. `repeats`
    /// says that the command may happen twice.
    pub(crate) fn ask_or_open_store(
        root: &Path,
        namespace: &str,
        words: &[&[u8]],
        repeats: bool,
        wait: StoreWait,
    ) -> CliResult<AskedStore> {
        let options = Options { create: false, ..write_options() };
        let asked = wait.ask_or_open(root, words, &options, repeats);
        let failed = |error| match Store::open_read_only(root) {
            // The process that holds the store did not find what the command names.
            Ok(_) => engine_failure(error),
            Err(_) => open_failure(root, error),
        };
        match asked.map_err(failed)? {
            AskOutcome::Asked(reply) => Ok(AskedStore::Asked(reply)),
            AskOutcome::Opened(store) => Ok(AskedStore::Opened(Self::new(store, namespace).served(root))),
        }
    }

    /// As [`StoreAccess::ask_or_open_store`], for an existing namespace.
    pub(crate) fn ask_or_open_existing(
        root: &Path,
        namespace: &str,
        words: &[&[u8]],
        repeats: bool,
        wait: StoreWait,
    ) -> CliResult<AskedStore> {
        let asked = Self::ask_or_open_store(root, namespace, words, repeats, wait)?;
        if let AskedStore::Opened(door) = &asked {
            let names = door.store.namespaces().map_err(engine_failure)?;
            if !names.iter().any(|name| name == namespace) {
                return Err(no_namespace_failure(format!("there is no namespace {namespace:?}"), &names));
            }
        }
        Ok(asked)
    }

    /// Lets recorders that start from now on record through this process, for verbs that take long.
    pub(crate) fn served(mut self, root: &Path) -> Self {
        self.host = RecorderHost::start(&self.store, root);
        self
    }
}
