//! The daemon: the engine over sockets, for Redis clients and recorders.
//!
//! A connection is a task. It reads, and runs all whole requests that have arrived as one *turn*. It waits
//! until everything the turn wrote or read is durable, writes the replies, and reads on. So replies come in
//! order, a client that does not read is not read from, and waiting connections share a sync. The writes of a
//! turn are one batch of the engine.
//!
//! Invariants: one lock around reading and submitting makes each turn atomic among all connections; it is
//! never held during a wait for the disk. No reply is sent before everything it depends on is durable. The
//! memory of a connection is limited.
//!
//! Layout: `config` (what it is told), `access` (tokens), `tenant` (a namespace as it is served), `operations` (what operators did), `slow` (what took long), `http` (the same over HTTP), `perform` (one command alone), `server` (listening, ending), `connection` (bytes and turns), `turn` (requests done),
//! `files` (how many may be open), `databases` (keys, deadlines, what is not on disk yet), `values` (what keys hold, at hand), `open_runs` (what is being recorded), `entries` (what XADD adds in a row), `proxied` (runs as the proxy of many asks for them), `replay` (what is replayed to a connection), `cursors` (places in scans), `session` (what a connection is), `table` (the commands, by the schema of `annals_wire`) and `commands/`
//! (a file for each group), `glob` (patterns),
//! `share` (several recorders of one store), `behind` (runs remembered by a thread).
//!
//! Out of scope: addresses outside of the loopback, scripts, publish and subscribe, lists, sets, hashes,
//! WATCH.
#![allow(missing_docs, reason = "an internal crate: what others may use is documented in annals-server")]

mod access;
mod background;
mod command_table;
mod commands;
mod config;
mod connection;
mod connection_limits;
mod cursors;
mod databases;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod glob;
mod http;
mod open_runs;
mod operations;
mod perform;
mod proxy_runs;
mod replay;
mod server;
mod session;
mod share;
mod slow_log;
mod stream_entries;
mod tenant;
#[cfg(test)]
mod tests;
mod turn;
mod value_cache;

pub use access::{AccessToken, Rights, list_tokens, make_token, revoke_token};
pub use config::{ConfiguredToken, LogFormat, ServeConfig, ServeError};
pub use server::{StartedDaemon, serve};
pub use share::{AskOutcome, Shared, ask_daemon, ask_daemon_without_timeout, ask_or_open};
