//! What a repair did, and what it could not save.

use std::fmt;

use crate::ids::Seqno;
use crate::log::open::Damage;

/// Something that was in the damaged store and is not in the new one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostItem {
    /// Records that no check confirms, whatever they held. If some records of a damaged batch could be saved,
    /// the count is right but the numbers may be shifted by those.
    Records {
        /// The first lost record.
        from: Seqno,
        /// The last lost record; `None` if the end of the log is lost and the count is unknown.
        to: Option<Seqno>,
        /// Why these records are not trusted.
        why: String,
    },
    /// A run's own record: name, times, tags and status. The run's frames are kept under a name made from its
    /// number.
    Run {
        /// The run's namespace, or the namespace that its frames belong to.
        namespace: String,
        /// The run's name in the new store.
        run: String,
        /// Why it is lost.
        why: String,
    },
    /// Frames of a run.
    Frames {
        /// The run's namespace.
        namespace: String,
        /// The run's name.
        run: String,
        /// The first lost frame.
        from: u32,
        /// The last lost frame.
        to: u32,
        /// Why they are lost.
        why: String,
    },
    /// A run's metadata.
    Metadata {
        /// The run's namespace.
        namespace: String,
        /// The run's name.
        run: String,
        /// Why it is lost.
        why: String,
    },
    /// An agent's state after a frame.
    Snapshot {
        /// The run's namespace.
        namespace: String,
        /// The run's name.
        run: String,
        /// The frame's number.
        seq: u32,
        /// Why it is lost.
        why: String,
    },
    /// A version of a key.
    Version {
        /// The keyspace's namespace.
        namespace: String,
        /// The keyspace.
        keyspace: String,
        /// The key's bytes.
        key: Vec<u8>,
        /// The record that held the version.
        seqno: Seqno,
        /// Why it is lost.
        why: String,
    },
    /// The name of a namespace or keyspace. Its contents are kept under a name made from its number.
    Name {
        /// Its name in the new store.
        name: String,
    },
}

impl fmt::Display for LostItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Records { from, to: Some(to), why } if from == to => write!(f, "record {from}: {why}"),
            Self::Records { from, to: Some(to), why } => write!(f, "records {from} to {to}: {why}"),
            Self::Records { from, to: None, why } => write!(f, "records from {from} on: {why}"),
            Self::Run { namespace, run, why } => {
                write!(f, "the run record of {run:?} of namespace {namespace:?}: {why}")
            }
            Self::Frames { namespace, run, from, to, why } if from == to => {
                write!(f, "frame {from} of run {run:?} of namespace {namespace:?}: {why}")
            }
            Self::Frames { namespace, run, from, to, why } => {
                write!(f, "frames {from} to {to} of run {run:?} of namespace {namespace:?}: {why}")
            }
            Self::Metadata { namespace, run, why } => {
                write!(f, "the metadata of run {run:?} of namespace {namespace:?}: {why}")
            }
            Self::Snapshot { namespace, run, seq, why } => {
                write!(f, "the snapshot after frame {seq} of run {run:?} of namespace {namespace:?}: {why}")
            }
            Self::Version { namespace, keyspace, key, seqno, why } => {
                let key = String::from_utf8_lossy(key);
                write!(
                    f,
                    "key {key:?} of keyspace {keyspace:?} of namespace {namespace:?}, record {seqno}: {why}"
                )
            }
            Self::Name { name } => write!(f, "the original name of {name:?}"),
        }
    }
}

/// What a repair did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RepairReport {
    /// Runs in the new store.
    pub runs: u64,
    /// Of these runs, the complete ones, whose fingerprint equals the recorded one.
    pub runs_whole: u64,
    /// Verified frames in the new store. Stand-ins for lost frames are not counted; shared frames count once.
    pub frames: u64,
    /// Snapshots in the new store.
    pub snapshots: u64,
    /// Versions of keys in the new store, deletions included.
    pub versions: u64,
    /// Damaged places in the files of the old store.
    pub damage: Vec<Damage>,
    /// What is missing from the new store; empty if nothing is.
    pub lost: Vec<LostItem>,
}
