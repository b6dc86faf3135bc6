//! Packing and reading back, and what hostile bytes may not do.
mod hostile;
mod roundtrip;
mod store;
