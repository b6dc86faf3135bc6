//! The daemon: the engine over sockets, for Redis clients and for recorders.
//!
//! A connection is a task. It reads, does all whole requests that have come as one *turn*, waits until what the turn wrote and what it read is on
//! disk, writes the replies, and reads on: so replies come in order, a client that does not read is not read from, and connections that wait
//! share a sync. What a turn writes is one batch of the engine.
//!
//! Invariants: one lock around reading and handing over makes each turn atomic among all connections; it is never held while anybody
//! waits for the disk. Nothing is replied before all it rests on is on disk. A connection can hold no more than its limits let it.
//!
//! Layout: `config` (what it is told), `access` (tokens), `tenant` (a namespace as it is served), `operations` (what operators did), `slow` (what took long), `http` (the same over HTTP), `perform` (one command alone), `server` (listening, ending), `connection` (bytes and turns), `turn` (requests done),
//! `files` (how many may be open), `databases` (keys, deadlines, what is not on disk yet), `values` (what keys hold, at hand), `open_runs` (what is being recorded), `entries` (what XADD adds in a row), `proxied` (runs as the proxy of many asks for them), `replay` (what is replayed to a connection), `cursors` (places in scans), `session` (what a connection is), `table` (the commands, by the schema of `annals_wire`) and `commands/`
//! (a file for each group), `glob` (patterns),
//! `share` (several recorders of one store), `behind` (runs remembered by a thread).
//!
//! Left out on purpose: other addresses than the loopback's, scripts, publishing and subscribing, lists, sets, hashes, WATCH.
#![allow(missing_docs, reason = "an internal crate: what others may use is documented in annals-server")]

mod access;
mod behind;
mod commands;
mod config;
mod connection;
mod cursors;
mod databases;
mod entries;
mod files;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod glob;
mod http;
mod open_runs;
mod operations;
mod perform;
mod proxied;
mod replay;
mod server;
mod session;
mod share;
mod slow;
mod table;
mod tenant;
#[cfg(test)]
mod tests;
mod turn;
mod values;

pub use access::{Rights, Token, make_token, revoke_token, tokens};
pub use config::{ConfiguredToken, Log, Serving, ServingError};
pub use server::{Began, serve};
pub use share::{AskedOrOpened, Shared, ask_daemon, ask_daemon_patiently, ask_or_open};
