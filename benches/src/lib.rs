//! Benchmarks and storage measurements of annals.
