//! The engine under a scheduler: the simulated disk, every thread and every lock of it from one seed.
//!
//! Built only with `--cfg annals_shuttle`; `.ci/schedules` does that. Ordinary builds have an empty binary here.
#![cfg(annals_shuttle)]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test that cannot go on panics, and says how it is repeated"
)]

mod closing;
mod crashes;
mod driver;
mod failures;
mod reading;
mod support;
mod tickets;
