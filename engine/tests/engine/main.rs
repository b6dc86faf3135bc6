//! The engine's tests by behaviour, as one binary.

mod format_fixture;
mod recording;
