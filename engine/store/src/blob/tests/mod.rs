//! Packing and reading back; hostile bytes.
mod hostile;
mod roundtrip;
mod store;
