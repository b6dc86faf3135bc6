//! Sorted immutable tables: the index from key to log position. They can always be rebuilt from the log.
//!
//! Start at [`Table`] to read and at [`TableWriter`] to write; the bytes are specified in `layout.rs`.

mod block_builder;
mod block_view;
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
#[cfg(test)]
pub(crate) use {filter::FilterPolicy, layout::KEY_LEN_MAX, scan::ReverseTableScan, scan::TableScan};
#[cfg(test)]
mod tests;
mod writer;

pub use entry::{IndexEntry, IndexValue, TableCoverage, TableMeta};
pub use error::{TableError, TableResult};
pub(crate) use layout::is_earlier_version;
pub use merge::{MergeSource, merge, merge_checked};
pub use reader::Table;
pub use scan::TableSource;
pub use writer::TableWriter;
