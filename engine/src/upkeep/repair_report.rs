//! What a repair found, and what it could not save.

use std::fmt;

use crate::ids::Seqno;
use crate::log::open::Damage;

/// Something that was in the damaged store and is not in the new one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostItem {
    /// Records of which nothing checks: whatever they held. Where some records of a damaged batch could be saved, the
    /// count is right and the numbers may be off by those.
    Records {
        /// The first.
        from: Seqno,
        /// The last; `None` where the end of the log is gone, too, and nobody knows how many there were.
        to: Option<Seqno>,
        /// Why they are not believed.
        why: String,
    },
    /// A run's own record: name, times, tags and status. Its frames are under a name made of its number.
    Run {
        /// Its namespace, or the one that its frames were found to belong to.
        namespace: String,
        /// The name that it has now.
        run: String,
        /// Why.
        why: String,
    },
    /// Frames of a run.
    Frames {
        /// The run's namespace.
        namespace: String,
        /// The run.
        run: String,
        /// The first frame.
        from: u32,
        /// The last.
        to: u32,
        /// Why.
        why: String,
    },
    /// A run's metadata.
    Metadata {
        /// The run's namespace.
        namespace: String,
        /// The run.
        run: String,
        /// Why.
        why: String,
    },
    /// The state taken after a frame.
    Snapshot {
        /// The run's namespace.
        namespace: String,
        /// The run.
        run: String,
        /// The frame.
        seq: u32,
        /// Why.
        why: String,
    },
    /// A version of a key.
    Version {
        /// The keyspace's namespace.
        namespace: String,
        /// The keyspace.
        keyspace: String,
        /// The key.
        key: Vec<u8>,
        /// The record that held it.
        seqno: Seqno,
        /// Why.
        why: String,
    },
    /// The name of a namespace or keyspace. What is in it is under a name made of its number.
    Name {
        /// The name that it has now.
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
                write!(f, "what is known of run {run:?} of namespace {namespace:?}: {why}")
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
            Self::Name { name } => write!(f, "the name of what is now called {name:?}"),
        }
    }
}

/// What a repair did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RepairReport {
    /// Runs in the new store.
    pub runs: u64,
    /// Of these, the runs of which nothing is lost and whose fingerprint is the recorded one.
    pub runs_whole: u64,
    /// Frames in the new store that were proven; stand-ins for lost ones are not counted, shared ones once.
    pub frames: u64,
    /// Snapshots in the new store.
    pub snapshots: u64,
    /// Versions of keys in the new store, deletions included.
    pub versions: u64,
    /// Where the damaged store's files are not what was written.
    pub damage: Vec<Damage>,
    /// What is not in the new store. Empty: everything is.
    pub lost: Vec<LostItem>,
}
