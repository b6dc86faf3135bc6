//! Benchmarks and storage measurements of annals.
pub mod conversation;
pub mod measure;
#[cfg(feature = "peers")]
pub mod peers;
pub mod workloads;
