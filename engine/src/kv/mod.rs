//! Key-value: the index from keys to log places, bodies in the log, and keyspaces with history on top of both.

pub(crate) mod blob_reader;
pub(crate) mod bodies;
pub(crate) mod cache;
pub(crate) mod core;
pub(crate) mod embeddings;
pub(crate) mod fence;
pub(crate) mod frame_cache;
pub(crate) mod groups;
#[cfg(test)]
pub(crate) mod hand_made;
pub(crate) mod index;
pub(crate) mod keys;
pub(crate) mod keyspace;
pub(crate) mod parallel;
pub(crate) mod stored;
pub(crate) mod table;
pub(crate) mod view;
pub(crate) mod write;

pub use blob_reader::BlobReader;
pub use keys::KEY_BYTES_MAX;
pub use keyspace::{History, Keys, Keyspace, KvBatch, Scan, ScanRange, Version};
pub use stored::{Content, StoredBlob};
pub use view::View;
