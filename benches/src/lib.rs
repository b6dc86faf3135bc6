//! Benchmarks and storage measurements of annals.
pub mod conversation;
#[cfg(feature = "peers")]
pub mod peers;
