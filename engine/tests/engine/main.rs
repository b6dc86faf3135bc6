//! The engine's tests by behaviour, as one binary.

mod crash;
mod recording;
