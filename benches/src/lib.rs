//! Benchmarks and storage measurements of annals.
pub mod conversation;
pub mod measure;
pub mod work;
