//! The commands, one file per group, with the semantics and error texts of Redis.

mod blobs;
mod connection;
mod decimal;
mod deliberation;
mod diagnostics;
mod frames;
mod history;
mod keys;
mod memory;
mod nondet;
mod parse;
mod retention;
mod run_review;
mod runs;
mod scripts;
mod server;
mod snapshots;
mod store;
mod streams;
mod strings;
mod tokens;
mod transactions;

pub(super) use blobs::{BLOBS, blob_reader, keep_blob};
pub(super) use deliberation::{call_embedded, command_of, method_of};

use super::command_table::CommandHandler;

/// What each command does, by its name.
pub(super) const HANDLERS: &[&[(&str, CommandHandler)]] = &[
    connection::HANDLERS,
    strings::HANDLERS,
    keys::HANDLERS,
    streams::HANDLERS,
    transactions::HANDLERS,
    scripts::HANDLERS,
    server::HANDLERS,
    runs::HANDLERS,
    run_review::HANDLERS,
    frames::HANDLERS,
    nondet::HANDLERS,
    snapshots::HANDLERS,
    blobs::HANDLERS,
    history::HANDLERS,
    memory::HANDLERS,
    diagnostics::HANDLERS,
    deliberation::HANDLERS,
    retention::HANDLERS,
    store::HANDLERS,
    tokens::HANDLERS,
];
