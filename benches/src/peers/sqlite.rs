//! SQLite, through rusqlite with its own bundled copy.
//!
//! Settings, by sqlite.org:
//! - `journal_mode=WAL`: a commit appends, and needs one sync (wal.html).
//! - `synchronous=FULL` for [`Durability::Disk`]: in WAL mode the log is synced at every commit. `OFF` for
//!   `Process`: pragma.html promises that data survives if the application crashes; `NORMAL` would add the
//!   syncs of checkpoints.
//! - `locking_mode=EXCLUSIVE`: fewer system calls, no shared-memory file (pragma.html, wal.html). All other
//!   peers but LMDB are one process's own too.
//! - checkpoints at 256 MiB of log, since wal.html says to run few of them to write fast: 1.2 to 1.5 times
//!   the rate of 64 MiB with small records. What is left for the close to do shows in `close ms`.
//! - pages of 4 KiB, the default, for small values, and 64 KiB for large ones. Those are written 1.2 to 1.4
//!   times as fast as with 16 KiB, which intern-v-extern-blob.html found best. Single big reads take half as
//!   long again.
//! - a table with rows numbered by SQLite: withoutrowid.html advises `WITHOUT ROWID` for rows below a
//!   twentieth of a page, and these are larger. With small rows it wrote at a third of the rate.
//! - a page cache and a memory map (mmap.html) that hold everything; prepared statements are cached.

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::path::Path;

use annals::Durability;
use rusqlite::{Connection, OptionalExtension, params};

use super::peer::{CACHE_BYTES, Peer, PeerRecord, PeerSettings, ValueSizes, copy_value};

/// Log at which a checkpoint is due, in bytes.
const LOG_BYTES: usize = 256 << 20;

struct Sqlite(Connection);

pub(super) fn open(folder: &Path, settings: PeerSettings) -> Box<dyn Peer> {
    let connection = Connection::open(folder.join("sqlite")).unwrap();
    let page_bytes = match settings.values {
        ValueSizes::Large => 64 << 10,
        ValueSizes::Small => 4 << 10,
    };
    let synchronous = match settings.durability {
        Durability::Disk | Durability::Confirmed => "FULL",
        Durability::Process => "OFF",
    };
    let (log_pages, cache_kib) = (LOG_BYTES / page_bytes, CACHE_BYTES >> 10);
    connection
        .execute_batch(&format!(
            "PRAGMA page_size={page_bytes}; PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL;
             PRAGMA synchronous={synchronous}; PRAGMA wal_autocheckpoint={log_pages};
             PRAGMA cache_size=-{cache_kib}; PRAGMA mmap_size={CACHE_BYTES};
             CREATE TABLE IF NOT EXISTS records(key BLOB PRIMARY KEY NOT NULL, value BLOB NOT NULL);"
        ))
        .unwrap();
    Box::new(Sqlite(connection))
}

impl Peer for Sqlite {
    fn put(&mut self, records: &[PeerRecord<'_>]) {
        let run = |sql: &str| self.0.prepare_cached(sql).unwrap().execute(()).unwrap();
        run("BEGIN IMMEDIATE");
        {
            let mut insert = self.0.prepare_cached("INSERT OR REPLACE INTO records VALUES(?, ?)").unwrap();
            for (key, value) in records {
                insert.execute(params![key, value]).unwrap();
            }
        }
        run("COMMIT");
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut select = self.0.prepare_cached("SELECT value FROM records WHERE key = ?").unwrap();
        select.query_row([key], |row| Ok(row.get_ref(0)?.as_blob()?.to_vec())).optional().unwrap()
    }

    fn scan(&self) -> u64 {
        let mut select = self.0.prepare_cached("SELECT value FROM records ORDER BY key").unwrap();
        let (mut rows, mut buffer, mut bytes) = (select.query(()).unwrap(), Vec::new(), 0);
        while let Some(row) = rows.next().unwrap() {
            bytes += copy_value(&mut buffer, row.get_ref(0).unwrap().as_blob().unwrap());
        }
        bytes
    }

    fn close(self: Box<Self>) {
        self.0.close().map_err(|(_, error)| error).unwrap();
    }
}
