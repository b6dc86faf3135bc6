//! What every peer can do, and the list of them.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a benchmark fails by panicking")]

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use annals::Durability;

/// A key and its value.
pub type PeerRecord<'a> = (&'a [u8], &'a [u8]);

/// The kind of values: some peers have different best settings for each kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueSizes {
    /// From 1 KB to 1 MB, written in key order.
    Large,
    /// About 0.5 KB, written in random order of keys.
    Small,
}

/// How a peer is opened.
#[derive(Clone, Copy, Debug)]
pub struct PeerSettings {
    /// What a commit waits for.
    pub durability: Durability,
    /// What the values are like.
    pub values: ValueSizes,
}

/// Memory that each peer may use as cache, in bytes: more than any workload here stores, and the same
/// for all. (annals and LMDB have none of their own; they read through the system's.)
pub(super) const CACHE_BYTES: usize = 1 << 30;

/// Unsorted data that a merge tree gathers in memory before it writes it sorted, in bytes: the default of
/// RocksDB and fjall.
pub(super) const MEMTABLE_BYTES: usize = 64 << 20;

/// An open store. Every method panics on failure.
pub trait Peer: Send {
    /// Writes all records in one transaction, as durable as the store was opened for.
    fn put(&mut self, records: &[PeerRecord<'_>]);

    /// The value of a key, copied out: what a caller that owns its bytes pays.
    fn get(&self, key: &[u8]) -> Option<Vec<u8>>;

    /// Copies every value once into a reused buffer, in key order; gives their bytes together.
    fn scan(&self) -> u64;

    /// Another handle on the same store for another thread, if the peer lets writers run at once.
    fn share(&self) -> Option<Box<dyn Peer>> {
        None
    }

    /// Closes as the peer's documentation says.
    fn close(self: Box<Self>);
}

/// Opens or makes a store in this folder, which exists.
pub type OpenPeer = fn(&Path, PeerSettings) -> Box<dyn Peer>;

/// Every peer that was built, by name.
#[must_use]
pub fn all_peers() -> Vec<(&'static str, OpenPeer)> {
    vec![
        ("lmdb", super::lmdb::open),
        ("redb", super::redb::open),
        ("redb-memory", super::redb::open_memory),
        ("fjall", super::fjall::open),
        ("sqlite", super::sqlite::open),
        #[cfg(feature = "peers-all")]
        ("rocksdb", super::rocksdb::open),
    ]
}

/// Copies a value into the buffer that a scan reuses; gives its length.
pub(super) fn copy_value(buffer: &mut Vec<u8>, value: &[u8]) -> u64 {
    buffer.clear();
    buffer.extend_from_slice(value);
    std::hint::black_box(buffer.as_slice()).len() as u64
}

/// Bytes of the files under this folder. Of each file it counts the length or the allocated bytes, whichever
/// is less: LMDB's and fjall's files are sparse, and neither holes nor preallocated space count.
#[must_use]
pub fn bytes_on_disk(folder: &Path) -> u64 {
    let of = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        let facts = entry.metadata().unwrap();
        if facts.is_dir() { bytes_on_disk(&entry.path()) } else { facts.len().min(facts.blocks() * 512) }
    };
    std::fs::read_dir(folder).unwrap().map(of).sum()
}
