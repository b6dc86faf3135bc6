//! A forger of stores: reads a log and writes it again with new checksums, chain digests, footers, ledger
//! root and manifest. It follows docs/format.md and shares no code with the engine, so an attacker could make
//! the same files. It writes no tables, since tables are caches.

mod cursors;
mod heads;
mod reading;
mod state;
mod writing;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

pub(crate) use heads::{ForgedFrameHead, ForgedReference};
pub(crate) use state::ForgedLogState;
pub(crate) use writing::{crc, varint};

/// Record kinds that only compaction writes.
const ERASED: u8 = 17;
const ERASED_BATCHES: u8 = 18;
const GROUP_REST: u8 = 19;
/// Segments that compaction writes have numbers from here on.
const FIRST_REWRITTEN: u32 = 1 << 31;

/// Whole ids of bodies by their first bytes.
pub(crate) type WholeIds = HashMap<[u8; 8], [u8; 32]>;

pub(crate) type StoreFiles = BTreeMap<PathBuf, Vec<u8>>;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ForgedRecord {
    Logical {
        kind: u8,
        salt: [u8; 16],
        head: Vec<u8>,
        tail: Vec<u8>,
    },
    Part {
        group: u64,
        namespace: u64,
        raw_start: u64,
        raw_len: u64,
        codec: u8,
        encoded: Vec<u8>,
    },
    /// Replaces erased records of its batch: their number of seqnos, and nodes of the batch's tree.
    Erased {
        count: u64,
        nodes: Vec<SubtreeNode>,
    },
    /// Replaces erased batches; the only record of its batch.
    ErasedBatches {
        seqnos: u64,
        batches: u64,
        node: Option<SubtreeNode>,
    },
    /// The remaining ranges of a group, each as gap and length.
    Rest {
        group: u64,
        namespace: u64,
        codec: u8,
        ranges: Vec<(u64, u64)>,
        encoded: Vec<u8>,
    },
}

/// The height and root of a complete subtree.
pub(crate) type SubtreeNode = (u8, [u8; 32]);

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ForgedBatch {
    pub(crate) time_ns: u64,
    pub(crate) records: Vec<ForgedRecord>,
}

/// A log: batches by segment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ForgedLog {
    pub(crate) store: [u8; 16],
    pub(crate) segments: Vec<Vec<ForgedBatch>>,
    /// For each segment that compaction made: its number, and the log state before it as its footer has it.
    pub(crate) rewritten: Vec<Option<(u32, ForgedLogState)>>,
    /// The format in the headers of rewritten segments: 2 before format 4 of the store.
    pub(crate) rewritten_format: u16,
    /// The format in the manifest, from format 2 on.
    pub(crate) manifest_format: u16,
    /// The next rewritten segment number, and what compaction subtracted from the totals; format 2 only.
    pub(crate) erased: Option<(u32, [u64; 9])>,
}

/// A logical record: seqno, kind, salt, head.
pub(crate) type LogicalRecord = (u64, u8, [u8; 16], Vec<u8>);

impl ForgedBatch {
    pub(crate) fn has_leaf(&self) -> bool {
        self.leaves() > 0
    }

    /// The number of seqnos of its first `index` records.
    pub(crate) fn seqnos_before(&self, index: usize) -> u64 {
        let takes = |record: &ForgedRecord| match record {
            ForgedRecord::Erased { count, .. } => *count,
            ForgedRecord::ErasedBatches { seqnos, .. } => *seqnos,
            _ => 1,
        };
        self.records.iter().take(index).map(takes).sum()
    }

    /// The number of ledger leaves that the batch has or replaces.
    pub(crate) fn leaves(&self) -> u64 {
        let mut own = false;
        for record in &self.records {
            match record {
                ForgedRecord::Logical { kind, .. } => own |= *kind < 128,
                ForgedRecord::Erased { nodes, .. } => own |= !nodes.is_empty(),
                ForgedRecord::ErasedBatches { node: Some((height, _)), .. } => return 1 << (height & 63),
                _ => {}
            }
        }
        u64::from(own)
    }
}
