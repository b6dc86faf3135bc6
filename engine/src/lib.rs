//! annals: an embedded key-value storage engine whose log is the database.
pub mod io;
pub mod kv;
