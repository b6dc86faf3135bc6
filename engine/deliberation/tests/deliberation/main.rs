//! Tests of decisions and deliberations, by behaviour, as one binary.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests reach for files, threads and clocks themselves, and a test that cannot go on panics"
)]

mod bad_input;
mod capture;
mod crashes;
mod decisions;
mod guardrails;
mod queries;
mod spikes;
mod statistics;
mod support;
