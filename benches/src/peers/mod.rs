//! The stores that annals is measured against, each behind the same small trait, with its best documented
//! settings.
//!
//! Both sides wait for the same thing: [`Durability::Disk`] commits survive power loss, and
//! [`Durability::Process`] commits survive a killed process. After power loss the second kind differs:
//!
//! | peer | commits of `Process` after power loss |
//! | --- | --- |
//! | `lmdb` | the database may be damaged, unless the file system keeps the order of writes |
//! | `redb` | the newest state whose checksums hold, or none where the pages of both were torn |
//! | `redb-memory` | weaker throughout: a killed process too loses what came after the last durable commit |
//! | `fjall` | a prefix of the journal |
//! | `sqlite` | the database may be damaged (`synchronous=OFF`) |
//! | `rocksdb` | a prefix of the log |
//!
//! Feature `peers` has LMDB, redb, fjall and SQLite, feature `peers-all` RocksDB too. Its C++ takes an hour or more of
//! one core; the system's library takes a minute (Debian: `apt-get install librocksdb-dev libclang-dev`, then
//! `ROCKSDB_LIB_DIR=/usr/lib/x86_64-linux-gnu ROCKSDB_INCLUDE_DIR=/usr/include` before `cargo`).
//!
//! Left out on purpose: deletes, ranges and several tables, since no workload here uses them.

mod fjall;
mod lmdb;
mod peer;
mod redb;
#[cfg(feature = "peers-all")]
mod rocksdb;
mod sqlite;
#[cfg(test)]
mod tests;

pub use annals::Durability;
pub use peer::{OpenPeer, Peer, PeerRecord, PeerSettings, ValueSizes, all_peers, bytes_on_disk};
