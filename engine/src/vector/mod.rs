//! Vectors.

pub(crate) mod kernel;
