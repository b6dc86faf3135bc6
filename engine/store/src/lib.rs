//! The storage of annals: a log of batches, an index over it, bodies without duplicates, keyspaces with history.
//!
//! An internal crate: programs use `annals`. It knows no run. The layer above has records of its own, which it describes
//! through one trait ([`schema::RecordSchema`]). Floors, lowest first: [`io`], [`blob`], [`log`], [`kv`]; a module uses only those
//! below it.
#![allow(missing_docs, reason = "an internal crate: `annals` documents what programs see of it")]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

pub mod blob;
pub mod codec;
pub mod error;
pub mod ids;
pub mod io;
pub mod kv;
pub mod log;
pub mod schema;
pub mod sync;
#[cfg(any(test, fuzzing, feature = "testing"))]
pub mod testing;
pub mod timestamp;

pub use error::{Error, ErrorKind, Result};
pub use ids::{BlobId, NodeHash, RecordedId, Seqno, StoreId};
pub use io::ReadMode;
pub use kv::core::Options;
pub use kv::{
    BlobReader, Content, History, KEY_BYTES_MAX, Keys, Keyspace, KvBatch, Scan, ScanRange, StoredBlob,
    Version, View,
};
pub use log::activity::{Activity, SYNC_BOUNDS_NS};
pub use log::{Damage, Durability, LogCut, Ticket, socket_paths};
