//! annals: an embedded key-value storage engine whose log is the database.
pub mod blob;
pub mod import;
pub mod io;
