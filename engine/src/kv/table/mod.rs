//! Sorted immutable tables: the index from key to log position. They can always be rebuilt from the log.
//!
//! Start at [`Table`] to read and at [`TableWriter`] to write; the bytes are specified in `layout.rs`.

mod block;
mod column;
mod cursor;
mod entry;
mod error;
mod filter;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
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

pub(crate) use entry::{Covers, Entry, TableMeta, Value};
pub(crate) use error::{Result, TableError};
pub(crate) use merge::{Source, merge};
pub(crate) use reader::Table;
pub(crate) use scan::All;
pub(crate) use writer::TableWriter;
