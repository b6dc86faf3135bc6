//! redb: a copy-on-write B+tree in one file, in Rust.
//!
//! Settings, by redb's documentation (docs.rs/redb, and design.md in its repository):
//! - `Durability::Immediate` with the default one-phase commit (checksums and one fsync): two-phase commit
//!   and quick repair are documented as slower.
//! - redb's only faster level, `Durability::None`, keeps commits in the process's memory until a later
//!   durable one, so a killed process loses them. `redb` therefore meets [`Durability::Process`] by a
//!   `StorageBackend`, redb's documented way to replace the file, whose sync does nothing: each commit is
//!   written to the system in full. `redb-memory` is `Durability::None` with its weaker promise, to show
//!   what that is worth; a clean close makes its commits durable.
//! - the cache is redb's default of 1 GiB.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a benchmark fails by panicking")]

use std::fs::OpenOptions;
use std::io;
use std::path::Path;

use annals::Durability;
use redb::backends::FileBackend;
use redb::{
    Builder, Database, Durability as Level, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition,
    TableError,
};

use super::peer::{CACHE_BYTES, Peer, PeerRecord, PeerSettings, copy_value};

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");

struct Redb {
    database: Database,
    level: Level,
}

pub(super) fn open(folder: &Path, settings: PeerSettings) -> Box<dyn Peer> {
    let path = folder.join("redb");
    let database = match settings.durability {
        Durability::Disk | Durability::Confirmed => builder().create(path),
        Durability::Process => {
            let file =
                OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
            builder().create_with_backend(UnsyncedBackend(FileBackend::new(file).unwrap()))
        }
    };
    Box::new(Redb { database: database.unwrap(), level: Level::Immediate })
}

pub(super) fn open_memory(folder: &Path, settings: PeerSettings) -> Box<dyn Peer> {
    let level = match settings.durability {
        Durability::Disk | Durability::Confirmed => Level::Immediate,
        Durability::Process => Level::None,
    };
    Box::new(Redb { database: builder().create(folder.join("redb")).unwrap(), level })
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

impl Peer for Redb {
    fn put(&mut self, records: &[PeerRecord<'_>]) {
        let mut writer = self.database.begin_write().unwrap();
        writer.set_durability(self.level).unwrap();
        {
            let mut table = writer.open_table(TABLE).unwrap();
            for (key, value) in records {
                table.insert(key, value).unwrap();
            }
        }
        writer.commit().unwrap();
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let table = match self.database.begin_read().unwrap().open_table(TABLE) {
            Err(TableError::TableDoesNotExist(_)) => return None,
            table => table.unwrap(),
        };
        table.get(key).unwrap().map(|value| value.value().to_vec())
    }

    fn scan(&self) -> u64 {
        let table = self.database.begin_read().unwrap().open_table(TABLE).unwrap();
        let mut buffer = Vec::new();
        table.iter().unwrap().map(|entry| copy_value(&mut buffer, entry.unwrap().1.value())).sum()
    }

    fn close(self: Box<Self>) {
        self.database.close().unwrap();
    }
}

/// redb's file without its syncs.
#[derive(Debug)]
struct UnsyncedBackend(FileBackend);

impl StorageBackend for UnsyncedBackend {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.0.close()
    }
}
