//! The commands, one file per group, with the semantics and error texts of Redis.

mod blobs;
mod connection;
mod frames;
mod history;
mod keys;
mod memory;
mod nondet;
mod parse;
mod retention;
mod runs;
mod server;
mod snapshots;
mod store;
mod streams;
mod strings;
mod tokens;
mod transactions;

pub(super) use blobs::{blob_reader, keep_blob};

use super::table::Command;

/// All commands by group.
pub(super) const GROUPS: &[&[Command]] = &[
    connection::COMMANDS,
    strings::COMMANDS,
    keys::COMMANDS,
    streams::COMMANDS,
    transactions::COMMANDS,
    server::COMMANDS,
    runs::COMMANDS,
    frames::COMMANDS,
    nondet::COMMANDS,
    snapshots::COMMANDS,
    blobs::COMMANDS,
    history::COMMANDS,
    memory::COMMANDS,
    retention::COMMANDS,
    store::COMMANDS,
    tokens::COMMANDS,
];
