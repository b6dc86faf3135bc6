//! The commands, a file for each group, with Redis' semantics and the texts of its errors.

mod connection;
mod keys;
mod parse;
mod server;
mod streams;
mod strings;
mod transactions;

use super::table::Command;

/// All of them.
pub(super) const GROUPS: &[&[Command]] = &[
    connection::COMMANDS,
    strings::COMMANDS,
    keys::COMMANDS,
    streams::COMMANDS,
    transactions::COMMANDS,
    server::COMMANDS,
];
