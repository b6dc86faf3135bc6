//! SQLite, through rusqlite with its own bundled copy.
//!
//! Settings, by sqlite.org:
//! - `journal_mode=WAL`: a commit appends, and needs one sync (wal.html).
//! - `synchronous=FULL` for [`Durability::Disk`]: in WAL mode the log is synced at every commit. `OFF` for
//!   `Process`: pragma.html promises that data survives if the application crashes; `NORMAL` would add the
//!   syncs of checkpoints.
//! - `locking_mode=EXCLUSIVE`: fewer system calls, no shared-memory file (pragma.html, wal.html). All other
//!   peers but LMDB are one process's own too.
//! - checkpoints at 64 MiB of log, since wal.html says to run few of them to write fast.
//! - page size: PAGE_FINDING
//! - `WITHOUT ROWID` for small values only: withoutrowid.html advises it where a row is below about a
//!   twentieth of a page and the key is no integer.
//! - a page cache and a memory map (mmap.html) that hold everything; prepared statements are cached.

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::path::Path;

use annals::Durability;
use rusqlite::{Connection, OptionalExtension, params};

use super::peer::{CACHE_BYTES, LOG_BYTES, Peer, Record, Settings, Values, touch};

struct Sqlite(Connection);

pub(super) fn open(folder: &Path, settings: Settings) -> Box<dyn Peer> {
    let connection = Connection::open(folder.join("sqlite")).unwrap();
    let (mut page_bytes, mut form) = match settings.values {
        Values::Large => (16 << 10, ""),
        Values::Small => (16 << 10, "WITHOUT ROWID"),
    };
    if let Ok(v) = std::env::var("SQ_PAGE") {
        page_bytes = v.parse().unwrap();
    }
    if std::env::var("SQ_ROWID").is_ok() {
        form = "";
    }
    let synchronous = match settings.durability {
        Durability::Disk => "FULL",
        Durability::Process => "OFF",
    };
    let (log_pages, cache_kib) = (LOG_BYTES / page_bytes, CACHE_BYTES >> 10);
    connection
        .execute_batch(&format!(
            "PRAGMA page_size={page_bytes}; PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL;
             PRAGMA synchronous={synchronous}; PRAGMA wal_autocheckpoint={log_pages};
             PRAGMA cache_size=-{cache_kib}; PRAGMA mmap_size={CACHE_BYTES};
             CREATE TABLE IF NOT EXISTS records(key BLOB PRIMARY KEY NOT NULL, value BLOB NOT NULL) {form};"
        ))
        .unwrap();
    Box::new(Sqlite(connection))
}

impl Peer for Sqlite {
    fn put(&mut self, records: &[Record<'_>]) {
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
            bytes += touch(&mut buffer, row.get_ref(0).unwrap().as_blob().unwrap());
        }
        bytes
    }

    fn close(self: Box<Self>) {
        self.0.close().map_err(|(_, error)| error).unwrap();
    }
}
