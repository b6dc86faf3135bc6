//! Sorted immutable tables: the index from key to log position. Always rebuildable from the log.
//!
//! Start at [`Table`] to read and at [`TableWriter`] to write; the bytes are specified in `layout.rs`.

mod block;
mod cache;
mod column;
mod cursor;
mod entry;
mod error;
mod filter;
mod index;
mod layout;
mod merge;
mod reader;
mod scan;
#[cfg(test)]
mod tests;
mod writer;

pub use entry::{Covers, Entry, TableMeta, Value};
pub use error::{Result, TableError};
pub use filter::Filter;
pub use layout::KEY_LEN_MAX;
pub use merge::{Merge, merge};
pub use reader::Table;
pub use scan::{Scan, ScanBack};
pub use writer::TableWriter;
