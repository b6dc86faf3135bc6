//! Stores with rewritten segments, compared with their content before.

mod any;
mod forgotten;
mod hostile;
pub(crate) mod sample;
