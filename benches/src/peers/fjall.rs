//! fjall 3: a log-structured merge tree in Rust.
//!
//! Settings, by fjall's documentation (docs.rs/fjall):
//! - `PersistMode::SyncData` on each batch for [`Durability::Disk`]; nothing more for `Process`, since by
//!   default (`manual_journal_persist` off) every batch is handed to the system as it commits.
//! - key-value separation with lz4, fjall's only codec, for large values: "intended for large value
//!   workloads", it spares compaction. Its default threshold of 1 KiB is kept.
//! - no compression in the journal (`journal_compression`). The default is lz4 of values from 4 KiB on.
//!   Without it the conversation is written two to five times as fast, and reopened more than ten times as
//!   fast. The journal is dropped once the blob files hold its values.
//! - lz4 of blocks from the third level on: the default.
//! - `expect_point_read_hits`: documented for reads that mostly find their key, as here.
//! - a cache that holds everything; 64 MiB memtables (the default and the greatest recommended).
//!
//! fjall has no public call that empties its memtables, so a clean close leaves the newest data in the
//! journal and opening replays it.

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::path::Path;

use annals::Durability;
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode};

use super::peer::{CACHE_BYTES, MEMTABLE_BYTES, Peer, PeerRecord, PeerSettings, ValueSizes, copy_value};

#[derive(Clone)]
struct Fjall {
    database: Database,
    keyspace: Keyspace,
    /// What each batch waits for beyond being written.
    persist: Option<PersistMode>,
}

pub(super) fn open(folder: &Path, settings: PeerSettings) -> Box<dyn Peer> {
    let database = Database::builder(folder)
        .cache_size(CACHE_BYTES as u64)
        .journal_compression(CompressionType::None)
        .open()
        .unwrap();
    let separation = match settings.values {
        ValueSizes::Large => Some(KvSeparationOptions::default()),
        ValueSizes::Small => None,
    };
    let options = || {
        KeyspaceCreateOptions::default()
            .with_kv_separation(separation)
            .expect_point_read_hits(true)
            .max_memtable_size(MEMTABLE_BYTES as u64)
    };
    let keyspace = database.keyspace("records", options).unwrap();
    let persist = match settings.durability {
        Durability::Disk | Durability::Confirmed => Some(PersistMode::SyncData),
        Durability::Process => None,
    };
    Box::new(Fjall { database, keyspace, persist })
}

impl Peer for Fjall {
    fn put(&mut self, records: &[PeerRecord<'_>]) {
        let mut batch = self.database.batch().durability(self.persist);
        for (key, value) in records {
            batch.insert(&self.keyspace, *key, *value);
        }
        batch.commit().unwrap();
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.keyspace.get(key).unwrap().map(|value| value.to_vec())
    }

    fn scan(&self) -> u64 {
        let mut buffer = Vec::new();
        self.keyspace.iter().map(|entry| copy_value(&mut buffer, &entry.value().unwrap())).sum()
    }

    fn share(&self) -> Option<Box<dyn Peer>> {
        Some(Box::new(self.clone()))
    }

    fn close(self: Box<Self>) {
        self.database.persist(PersistMode::SyncAll).unwrap();
    }
}
