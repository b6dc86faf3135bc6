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
//! Layout: `config` (the configuration), `access` (tokens), `tenant` (a served namespace), `operations` (the
//! record of operators' actions), `slow_log` (slow turns), `http` (the HTTP API), `perform` (one command
//! alone), `server` (listening, shutdown), `connection` (bytes and turns), `turn` (running requests),
//! `connection_limits` (open files), `databases` (keys, deadlines, pending writes), `value_cache` (cached
//! values), `open_runs` (runs being recorded), `stream_entries` (consecutive XADDs), `proxy_runs` (runs for
//! the proxy of many), `replay` (replays to a connection), `cursors` (positions in scans), `session` (the
//! state of a connection), `command_table` (the commands) and `commands/` (one file per group), `docs` (the
//! replies of COMMAND), `glob` (patterns).
//!
//! Out of scope: addresses outside of the loopback, scripts, publish and subscribe, lists, sets, hashes,
//! WATCH.

mod access;
mod commands;
mod config;
mod connection;
mod cursors;
mod databases;
mod docs;
mod entries;
mod files;
mod glob;
mod http;
mod open_runs;
mod operations;
mod perform;
mod proxied;
mod replay;
mod server;
mod session;
mod slow;
mod table;
mod tenant;
#[cfg(test)]
mod tests;
mod turn;
mod values;

pub use access::{Rights, Token, make_token, revoke_token, tokens};
pub use config::{ConfiguredToken, Log, Serving, ServingError};
#[cfg(any(test, fuzzing))]
pub(crate) use http::fuzz;
pub use server::{Began, serve};
