//! The engine's integration tests, arranged by behaviour, in one binary.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests reach for files, threads and clocks themselves, and a test that cannot go on panics"
)]

mod agent_frames;
mod backup;
mod bodies;
mod compact;
mod costs;
mod crash;
mod damage;
mod disk_failures;
mod erasures;
mod flips;
mod forge;
mod forged_logs;
mod forks;
mod format_fixture;
mod kills;
mod kv;
mod ledger;
mod links;
mod log_tail;
mod poison;
mod raw_tail;
mod read_modes;
mod readers;
mod reading;
mod recording;
mod repair;
mod replayer;
mod resuming;
mod retention;
mod rewrites;
mod run_pages;
mod scale;
mod snapshots;
mod streaming;
mod support;
mod sync_imports;
mod table_rebuild;
mod tapes;
mod tickets;
mod vectors;
mod verify;
