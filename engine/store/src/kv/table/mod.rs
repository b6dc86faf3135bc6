//! Sorted immutable tables: the index from key to log position. They can always be rebuilt from the log.
//!
//! Start at [`Table`] to read and at [`TableWriter`] to write; the bytes are specified in `layout.rs`.

mod block;
mod column;
mod cursor;
mod entry;
mod error;
mod filter;
#[cfg(any(test, fuzzing, feature = "testing"))]
pub mod fuzz;
mod index;
mod layout;
mod merge;
mod reader;
mod scan;
mod shape;
#[cfg(test)]
pub(crate) use {filter::Filter, layout::KEY_LEN_MAX, scan::Scan, scan::ScanBack};
#[cfg(test)]
mod tests;
mod writer;

pub use entry::{Covers, Entry, TableMeta, Value};
pub use error::{Result, TableError};
pub use merge::{Source, merge};
pub use reader::Table;
pub use scan::All;
pub use writer::TableWriter;
