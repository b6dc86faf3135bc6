//! The engine on the simulated disk with many threads, and the guarantees that hold in every schedule.
//!
//! With `--cfg annals_shuttle`, as in `.ci/schedules`, every thread and lock runs under a scheduler that
//! chooses from a seed. Without it the same tests run on the system's threads, a few times each. That is
//! the case in `cargo test`, and under Miri and the thread sanitizer in `.ci/sanitize`.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that cannot go on panics, and says how it is repeated"
)]
#![cfg_attr(
    annals_shuttle,
    expect(clippy::print_stderr, reason = "a panic says how its schedule is repeated")
)]
#![cfg_attr(
    not(annals_shuttle),
    expect(clippy::disallowed_methods, reason = "tests start threads themselves")
)]

mod closing;
mod compacting;
mod crashes;
mod driver;
mod failures;
mod inline;
mod reading;
mod support;
mod tickets;
mod vectors;

/// Threads of the scheduler, or of the system.
mod thread {
    #[cfg(annals_shuttle)]
    pub(crate) use shuttle::thread::{Thread, current, park, scope, spawn, yield_now};
    #[cfg(not(annals_shuttle))]
    pub(crate) use std::thread::{Thread, current, park, scope, spawn, yield_now};
}
