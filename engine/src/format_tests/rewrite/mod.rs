//! Stores with rewritten segments, compared with their content before.

mod forgotten_runs;
mod hostile;
mod random;
pub(crate) mod sample;
