//! Stores whose segments were rewritten, held against what they were.

mod any;
mod forgotten;
mod hostile;
pub(crate) mod sample;
