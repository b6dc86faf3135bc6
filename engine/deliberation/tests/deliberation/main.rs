//! Tests of decisions and deliberations, by behaviour, as one binary.
#![expect(clippy::panic, clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod bad_input;
mod capture;
mod crashes;
mod decisions;
mod guardrails;
mod queries;
mod spikes;
mod statistics;
mod support;
