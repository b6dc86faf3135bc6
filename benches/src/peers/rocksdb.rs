//! RocksDB, through the `rocksdb` crate: a log-structured merge tree in C++. The crate's version is the last that
//! builds over the library that Debian 12 ships (7.8.3).
//!
//! Settings, by RocksDB's wiki and the comments of its `options.h`:
//! - `WriteOptions::sync` for [`Durability::Disk`]; without it the log is still written to the system at
//!   every commit, so that a killed process loses nothing (wiki, WAL Performance).
//! - blob files with zstd for values of 4 KiB and more (wiki, BlobDB): large values stay out of compaction.
//!   Only the system caches them: this version of the crate cannot set `blob_cache`.
//! - lz4 blocks, zstd in the bottommost level (wiki, Compression); 16 KiB blocks, 10-bit Bloom filters and
//!   level-0 filters pinned (wiki, Setup Options and Basic Tuning).
//! - `bytes_per_sync` of 1 MiB: the same page's advice; it spreads write-back, and no commit waits for it.
//! - 64 MiB memtables (the default), four of them so that writers seldom stall (wiki, Write Stalls).
//! - two background jobs, as fjall has on two cores; `increase_parallelism` is the documented call.
//!
//! A clean close flushes the memtable: RocksDB's own close leaves it in the log, and opening replays it.

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::path::Path;
use std::sync::Arc;

use annals::Durability;
use rocksdb::{BlockBasedOptions, Cache, DB, DBCompressionType, Options, WriteBatch, WriteOptions};

use super::peer::{CACHE_BYTES, MEMTABLE_BYTES, Peer, PeerRecord, PeerSettings, copy_value};

struct Rocksdb {
    database: Arc<DB>,
    durability: Durability,
}

pub(super) fn open(folder: &Path, settings: PeerSettings) -> Box<dyn Peer> {
    let cache = Cache::new_lru_cache(CACHE_BYTES).unwrap();
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(&cache);
    blocks.set_block_size(16 << 10);
    blocks.set_bloom_filter(10.0, false);
    blocks.set_cache_index_and_filter_blocks(true);
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&blocks);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_bottommost_compression_type(DBCompressionType::Zstd);
    options.set_enable_blob_files(true);
    options.set_min_blob_size(4 << 10);
    options.set_blob_compression_type(DBCompressionType::Zstd);
    options.set_write_buffer_size(MEMTABLE_BYTES);
    options.set_max_write_buffer_number(4);
    options.set_bytes_per_sync(1 << 20);
    options.increase_parallelism(2);
    let database = Arc::new(DB::open(&options, folder).unwrap());
    Box::new(Rocksdb { database, durability: settings.durability })
}

impl Peer for Rocksdb {
    fn put(&mut self, records: &[PeerRecord<'_>]) {
        let mut batch = WriteBatch::default();
        for (key, value) in records {
            batch.put(key, value);
        }
        let mut options = WriteOptions::default();
        options.set_sync(self.durability == Durability::Disk);
        self.database.write_opt(batch, &options).unwrap();
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.database.get(key).unwrap()
    }

    fn scan(&self) -> u64 {
        let (mut entries, mut buffer, mut bytes) = (self.database.raw_iterator(), Vec::new(), 0);
        entries.seek_to_first();
        while let Some(value) = entries.value() {
            bytes += copy_value(&mut buffer, value);
            entries.next();
        }
        entries.status().unwrap();
        bytes
    }

    fn share(&self) -> Option<Box<dyn Peer>> {
        Some(Box::new(Self { database: Arc::clone(&self.database), durability: self.durability }))
    }

    fn close(self: Box<Self>) {
        self.database.flush().unwrap();
        self.database.cancel_all_background_work(true);
    }
}
