//! Versioned keyspaces over the log.
pub mod table;
