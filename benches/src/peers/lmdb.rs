//! LMDB, through heed: a copy-on-write B+tree in one memory-mapped file.
//!
//! Settings, by LMDB's own documentation of `mdb_env_open` (`lmdb.h`):
//! - map size: an upper bound on the file, to be "as large as possible"; the file stays sparse.
//! - `MDB_NOSYNC` for [`Durability::Process`]: a commit is written and not synced.
//! - `MDB_WRITEMAP`, which "may be slightly faster for DBs that fit entirely in RAM", where it is faster:
//!   for small values without syncs, 1.7 times. With syncs, and with large values, it was the slower.
//! - `MDB_NOMEMINIT`: skips zeroing pages that are overwritten anyway.
//! - no `MDB_NORDAHEAD`: readahead hurts only stores larger than memory.

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::path::Path;

use annals::Durability;
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions};

use super::peer::{Peer, PeerRecord, PeerSettings, ValueSizes, copy_value};

/// Bytes of address space: more than any workload here stores.
const MAP_BYTES: usize = 64 << 30;

struct Lmdb {
    env: Env,
    table: Database<'static, Bytes, Bytes>,
}

pub(super) fn open(folder: &Path, settings: PeerSettings) -> Box<dyn Peer> {
    let mut flags = EnvFlags::NO_MEM_INIT;
    if settings.durability == Durability::Process {
        flags |= EnvFlags::NO_SYNC;
        if settings.values == ValueSizes::Small {
            flags |= EnvFlags::WRITE_MAP;
        }
    }
    let mut options = EnvOpenOptions::new();
    options.map_size(MAP_BYTES);
    #[expect(unsafe_code, reason = "heed has no other way to open")]
    // SAFETY: the folder is this process's own and nothing else changes its files; the flags leave
    // LMDB's locks on; a machine that stops in the middle is not opened again.
    let env = unsafe { options.flags(flags).open(folder) }.unwrap();
    let writer = env.write_txn().unwrap();
    let table = env
        .create_databases_and_commit(writer, |opener, writer| {
            opener.create_database(writer, None).map(CommitOrAbort::<_, ()>::Commit)
        })
        .unwrap()
        .unwrap_commit();
    Box::new(Lmdb { env, table })
}

impl Peer for Lmdb {
    fn put(&mut self, records: &[PeerRecord<'_>]) {
        let mut writer = self.env.write_txn().unwrap();
        for (key, value) in records {
            self.table.put(&mut writer, key, value).unwrap();
        }
        writer.commit().unwrap();
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let reader = self.env.read_txn().unwrap();
        self.table.get(&reader, key).unwrap().map(<[u8]>::to_vec)
    }

    fn scan(&self) -> u64 {
        let (reader, mut buffer) = (self.env.read_txn().unwrap(), Vec::new());
        self.table.iter(&reader).unwrap().map(|entry| copy_value(&mut buffer, entry.unwrap().1)).sum()
    }

    fn close(self: Box<Self>) {
        self.env.force_sync().unwrap();
        self.env.prepare_for_closing().wait();
    }
}
