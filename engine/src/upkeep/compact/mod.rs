//! Giving back the room of what nothing leads to any more, while the store is used.
//!
//! In this order: the active segment is sealed and the index written down, so that all of the sealed log is in tables and
//! durable; a fence keeps new batches from naming old bytes; `mark` asks the index what lives, `weigh` passes over the
//! segments once, `choose` says which are worth it; those are written anew without what is dead, and the index's tables
//! with them; one edit of the manifest, as a new generation, puts the new in the place of the old; then the old files go.
//! What falls into pieces (looking, rewriting, removing) several threads share: `crew`.
//!
//! Invariants: until that edit nothing has changed, and all that was made is removed again, by this or by the next opening;
//! nothing is taken for dead that a crash could make the newest again; who reads keeps what it began with (`Pin`).
//!
//! Left out: anything by time. Whoever wants room calls [`Store::compact`].

mod choose;
mod live;
mod mark;
mod run;
mod weigh;
mod workers;

use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::ids::{RunUid, Seqno};
use crate::store::Store;

/// How a store is compacted.
#[derive(Clone, Default)]
#[must_use = "nothing happens before Store::compact"]
pub struct CompactOptions {
    /// Only says what would be done; changes nothing, so a store open for reading can be asked, too.
    pub dry_run: bool,
    /// Groups of bodies are packed anew at this level of zstd; `None`: what lives whole is copied as it is.
    pub recompress: Option<i32>,
    /// No more than so many bytes are written a second.
    pub bytes_per_second_max: Option<u64>,
    /// Dropped runs whose bytes are to go now: every segment that holds some of them is rewritten, however little that
    /// frees.
    pub must_go: Vec<RunUid>,
    /// Told what is being done, by one of the threads that compact at a time. May read and write the store, not close it.
    pub progress: Option<Arc<dyn Fn(CompactProgress) + Send + Sync>>,
    /// Asked now and then whether to end the compaction: then nothing has changed.
    pub cancel: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

impl fmt::Debug for CompactOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompactOptions")
            .field("dry_run", &self.dry_run)
            .field("recompress", &self.recompress)
            .field("bytes_per_second_max", &self.bytes_per_second_max)
            .field("must_go", &self.must_go)
            .finish_non_exhaustive()
    }
}

/// How far a compaction has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactProgress {
    /// What it is at.
    pub phase: CompactPhase,
    /// Bytes done of it.
    pub done: u64,
    /// About how many there are.
    pub total: u64,
}

/// What a compaction is at.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompactPhase {
    /// It looks at what lives: bytes of log passed over.
    Looking,
    /// It writes segments: bytes written.
    Writing,
}

/// What a compaction did, or would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompactReport {
    /// It was only asked what it would do.
    pub dry_run: bool,
    /// The last record that it looked at.
    pub seqno: Seqno,
    /// Sealed log files that were looked at.
    pub segments: u64,
    /// Bytes of those.
    pub segment_bytes: u64,
    /// How many were rewritten.
    pub rewritten: u64,
    /// How many they became.
    pub made: u64,
    /// Bytes of the files that were rewritten.
    pub rewritten_bytes: u64,
    /// Bytes of what they became; of a dry run about how many it would be.
    pub made_bytes: u64,
    /// Bytes of living records in them; of a dry run as `made_bytes`.
    pub live_bytes: u64,
    /// Bytes that the disk needed for it beside what was there.
    pub needed_bytes: u64,
    /// Bytes of old files that other processes still read: the disk gets them back when those refresh or end.
    pub pending_bytes: u64,
}

impl CompactOptions {
    /// The level of zstd that command line and daemon pack bodies anew with. Recording uses 1 to 3.
    pub const RECOMPRESS_LEVEL: i32 = 12;
}

impl CompactReport {
    /// One line of JSON: every number, and `freed_bytes`.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::json!({
            "dry_run": self.dry_run,
            "seqno": self.seqno.0,
            "segments": self.segments,
            "segment_bytes": self.segment_bytes,
            "rewritten": self.rewritten,
            "made": self.made,
            "rewritten_bytes": self.rewritten_bytes,
            "made_bytes": self.made_bytes,
            "live_bytes": self.live_bytes,
            "freed_bytes": self.freed_bytes(),
            "needed_bytes": self.needed_bytes,
            "pending_bytes": self.pending_bytes,
        })
        .to_string()
    }

    /// Bytes of log files that are no longer the store's.
    #[must_use]
    pub fn freed_bytes(&self) -> u64 {
        self.rewritten_bytes.saturating_sub(self.made_bytes)
    }
}

impl Store {
    /// Gives back the room of what nothing leads to any more: dropped and replaced runs, values past their keyspace's
    /// history, begun frames that have ended, bodies that nothing names. The store is used as ever meanwhile. The ledger
    /// keeps every leaf, and its root stays what it was.
    ///
    /// Durable when this returns. On an error or a crash nothing is lost: the store is as before or as after.
    ///
    /// # Errors
    /// `Conflict` while another compaction is at work; `Damaged`, naming the place, where what is to be kept is not what
    /// was written: then nothing is dropped; `Invalid` in a store open for reading, but for a dry run; `Poisoned`; `Unavailable` where the
    /// disk has no room for what is to be written (with how much that is), where it was cancelled, or the store closed.
    pub fn compact(&self, options: &CompactOptions) -> Result<CompactReport> {
        match options.dry_run {
            true => run::dry_run(self.core(), options),
            false => run::compact(self.core(), options),
        }
    }
}
