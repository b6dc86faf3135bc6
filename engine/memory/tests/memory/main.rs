//! Tests of what agents remember, by behaviour, as one binary.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests reach for files, threads and clocks themselves, and a test that cannot go on panics"
)]

mod belongings;
mod derived_entries;
mod memory;
mod recall;
mod retrieval;
mod run_recall;
mod support;
mod training;
mod word_index;
