//! The daemon: serves a store to Redis clients, to HTTP clients and to recorders.
//!
//! One thread, the client loop, polls the connections of Redis clients. It runs all whole requests of one read
//! as one *turn*, waits until everything that the turn wrote or read is durable, writes the replies, and reads
//! on. So replies come in order, and a client that does not read is not read from. The turns of one poll share
//! a batch of the engine and its sync. What would delay other connections runs in the connection's task.
//!
//! Invariants: one lock around reading and submitting makes each turn atomic among all connections; it is
//! never held during a wait for a sync, and not while the first command of a turn reads its keys. No reply is
//! sent before everything it depends on is durable. The memory of a connection is limited.
//!
//! Layout:
//! - The process: `config` (options), `reload` (SIGHUP), `server` (listening, shutdown), `client_loop` and `client_connection`
//!   (connections in the loop), `connection` (their tasks), `connection_limits` (open files), `session` (state
//!   of a connection), `access` (tokens and rights), `tls` (encrypted ports).
//! - Requests: `turn` (whole requests, run as one batch), `perform` (one command alone), `command_table`
//!   (each command of the schema in `annals_wire`, and its function), `commands` (one file for each group).
//! - Data: `tenant` (a served namespace), `databases` (keys and their expiry), `value_cache`, `cursors` and
//!   `glob` (scans), `stream_entries` (rows of XADD), `open_runs` (runs being recorded), `replay` (a run that
//!   answers a connection), `proxy_runs` (runs of the proxy).
//! - Beside the requests: `schedules` (sweeps, witnesses, backups), `background` (remembers ended runs), `operations` (records what operators do), `page_sessions` (browsers that use the page),
//!   `slow_log`, `witness` (checkpoints kept in a folder), `backups` (of the store, kept in a folder).
//! - Other doors: `http` (the same commands over HTTP), `share` (several recorders of one store).
//!
//! Out of scope: unencrypted addresses outside of the loopback, scripts, publish and subscribe, lists, sets, hashes,
//! WATCH.
#![allow(missing_docs, reason = "an internal crate: what others may use is documented in annals-server")]

mod access;
mod background;
mod backups;
mod changed_runs;
mod client_connection;
mod client_loop;
mod command_table;
mod commands;
mod config;
mod connection;
mod connection_limits;
mod cursors;
mod databases;
mod forgetting;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod glob;
mod http;
mod login_limits;
mod open_runs;
mod operations;
mod page_sessions;
mod perform;
mod proxy_runs;
mod reload;
mod replay;
mod schedules;
mod server;
mod session;
mod share;
mod sizes;
mod slow_log;
mod stream_entries;
mod tenant;
#[cfg(test)]
mod tests;
mod tls;
mod turn;
mod value_cache;
mod witness;

pub use access::{
    AccessToken, Rights, list_tokens, make_token, parse_expiry_ns, revoke_token, rotate_token, time_text,
};
pub use backups::{BACKUPS_KEPT, KeptBackup, keep_backup};
pub use config::{ConfiguredToken, LogFormat, ServeConfig, ServeError};
pub use databases::{ExpiredCounts, delete_expired};
pub use forgetting::{ForgetTarget, erase_run, forget, is_own_keyspace};
pub use server::{StartedDaemon, serve};
pub use share::{
    AskOutcome, HolderWait, KeyChange, KeyRange, KeyScan, RecorderHost, Shared, SharedKeys, SharedRun,
    ask_daemon, ask_or_open, open_or_wait,
};
pub use witness::{
    WITNESS_BYTES_MAX, list_witnesses, only_of_another_store, witness_inside_store, write_witness,
};
