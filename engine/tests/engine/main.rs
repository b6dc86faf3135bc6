//! The engine's tests by behaviour, as one binary.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, prints its counts, and makes files that a user would have"
)]

mod crash;
mod format_fixture;
mod recording;
