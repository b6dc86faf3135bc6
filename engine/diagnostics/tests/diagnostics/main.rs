//! Diagnostics of sessions, over a store on a simulated disk.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bad_input;
mod counts;
mod crashes;
mod recall;
mod rules;
mod support;
mod weights;
