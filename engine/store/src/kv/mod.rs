//! Key-value: the index from keys to log places, bodies in the log, and keyspaces with history on top of both.

pub mod blob_reader;
pub mod bodies;
pub mod cache;
pub mod catalogue;
pub mod content;
pub mod core;
pub mod deferred;
pub mod embeddings;
pub mod fence;
pub mod groups;
pub mod index;
pub mod keys;
pub mod keyspace;
pub mod parallel;
pub mod raw_tail;
pub mod store_reader;
pub mod store_writer;
pub mod table;
#[cfg(test)]
pub(crate) mod test_segment;
pub mod view;
pub mod write;

pub use blob_reader::BlobReader;
pub use content::{BodyInput, Content, StoredBlob};
pub use keys::KEY_BYTES_MAX;
pub use keyspace::{History, Keys, Keyspace, KvBatch, Scan, ScanRange, Version};
pub use view::View;
