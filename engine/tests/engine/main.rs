//! The engine's tests by behaviour, as one binary.

mod recording;
