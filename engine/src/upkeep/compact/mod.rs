//! Reclaims the disk space of unreferenced data while the store stays in use.
//!
//! Steps:
//! 1. Seal the active segment and flush the index, so that durable tables cover the whole sealed log.
//! 2. Raise a fence, which keeps new batches from referencing old bytes.
//! 3. `mark` finds the live records in the index. `weigh` reads the segments once. `choose` selects the
//!    segments that are worth rewriting.
//! 4. Write those segments and the index's tables without the dead data.
//! 5. One edit of the manifest, as a new generation, replaces the old files by the new ones.
//! 6. Remove the old files.
//!
//! `workers` spreads surveying, rewriting and removing over several threads.
//!
//! Invariants:
//! - Until step 5 the store is unchanged. If it fails earlier, this process or the next opening removes the
//!   new files.
//! - A record does not count as dead if a crash could make it the newest again.
//! - Readers keep the files that they began with (`SegmentPin`).
//!
//! Not included: compaction on a schedule. Callers that need the space call [`Store::compact`].

mod choose;
mod live;
mod mark;
mod run;
mod swap;
mod tail;
mod weigh;
mod workers;

pub(crate) use tail::{CLOSING_BYTES_MIN, TailThread, compress_tail};

use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::ids::{RunUid, Seqno};
use crate::store::Store;
use crate::upkeep::forget::{ForgottenKey, SharedContent};

/// Options of [`Store::compact`].
#[derive(Clone, Default)]
#[must_use = "nothing happens before Store::compact"]
pub struct CompactOptions {
    /// Only report what a compaction would do. It changes nothing, so a store open for reading accepts it,
    /// too.
    pub dry_run: bool,
    /// Repack the groups of bodies at this zstd level; `None` copies groups that are wholly live unchanged,
    /// except those that were written raw, which it compresses as a closing does.
    pub recompress: Option<i32>,
    /// Maximum number of bytes written per second; `None`: no limit.
    pub bytes_per_second_max: Option<u64>,
    /// Dropped runs whose bytes must go now: every segment that holds some of them is rewritten, even if that
    /// frees little.
    pub must_go: Vec<RunUid>,
    /// Forgotten keys whose versions must go now, as [`CompactOptions::must_go`] of runs. They go regardless of
    /// their keyspace's history; a reader that began earlier no longer finds them.
    pub must_go_keys: Vec<ForgottenKey>,
    /// Rewrite every segment and every file of vectors that holds dead data, however little. Otherwise a segment is
    /// rewritten if a tenth of it is dead.
    pub all_dead: bool,
    /// Called with the progress, by one compaction thread at a time. It may read and write the store, but
    /// must not close it.
    pub progress: Option<Arc<dyn Fn(CompactProgress) + Send + Sync>>,
    /// Called from time to time; if it returns true, the compaction ends and the store stays unchanged.
    pub cancel: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

impl fmt::Debug for CompactOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompactOptions")
            .field("dry_run", &self.dry_run)
            .field("recompress", &self.recompress)
            .field("bytes_per_second_max", &self.bytes_per_second_max)
            .field("must_go", &self.must_go)
            .field("must_go_keys", &self.must_go_keys.len())
            .field("all_dead", &self.all_dead)
            .finish_non_exhaustive()
    }
}

/// Progress of a compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactProgress {
    /// The current phase.
    pub phase: CompactPhase,
    /// Bytes of this phase that are done.
    pub done: u64,
    /// Estimate of this phase's bytes in total.
    pub total: u64,
}

/// A phase of a compaction.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompactPhase {
    /// Finding the live data; bytes count the log that has been read.
    Looking,
    /// Writing segments; bytes count what has been written.
    Writing,
}

/// What a compaction did, or what a dry run would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompactReport {
    /// The compaction was a dry run.
    pub dry_run: bool,
    /// The last record that the compaction considered.
    pub seqno: Seqno,
    /// Number of sealed log files considered.
    pub segments: u64,
    /// Bytes of those files.
    pub segment_bytes: u64,
    /// Number of segments rewritten.
    pub rewritten: u64,
    /// Number of segments that replaced them.
    pub made: u64,
    /// Bytes of the rewritten files.
    pub rewritten_bytes: u64,
    /// Bytes of the new files; in a dry run an estimate.
    pub made_bytes: u64,
    /// Bytes of live records in the new files; in a dry run an estimate.
    pub live_bytes: u64,
    /// Disk space that the compaction needed in addition to the existing files.
    pub needed_bytes: u64,
    /// Number of segments that are worth rewriting, but whose new files do not fit on the disk.
    pub unfit: u64,
    /// Bytes of old files that other processes still read. The disk regains them when those processes refresh
    /// or end.
    pub pending_bytes: u64,
}

impl CompactOptions {
    /// The zstd level at which the command line and the daemon repack bodies. Recording uses levels 1 to 3.
    pub const RECOMPRESS_LEVEL: i32 = 19;
}

impl CompactReport {
    /// One line of JSON with every field, and `freed_bytes`.
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
            "unfit": self.unfit,
            "pending_bytes": self.pending_bytes,
        })
        .to_string()
    }

    /// Adds what a further pass of the same compaction did.
    fn add(self, next: Self) -> Self {
        Self {
            rewritten: self.rewritten + next.rewritten,
            made: self.made + next.made,
            rewritten_bytes: self.rewritten_bytes + next.rewritten_bytes,
            made_bytes: self.made_bytes + next.made_bytes,
            live_bytes: self.live_bytes + next.live_bytes,
            needed_bytes: self.needed_bytes.max(next.needed_bytes),
            ..next
        }
    }

    /// Bytes by which the store's log files shrank.
    #[must_use]
    pub fn freed_bytes(&self) -> u64 {
        self.rewritten_bytes.saturating_sub(self.made_bytes)
    }
}

impl Store {
    /// Reclaims the disk space of unreferenced data: dropped and replaced runs, values past their keyspace's
    /// history, begun frames that have ended, and bodies that no record references. The store stays usable
    /// meanwhile. The ledger keeps every leaf, and its root does not change.
    ///
    /// On a disk without room for all new files at once, it rewrites the segments with the fewest live bytes
    /// first, and goes on with the room that they leave. [`CompactReport::unfit`] says what is left.
    ///
    /// The result is durable when this returns. After an error or a crash the store is as before or as after;
    /// nothing is lost.
    ///
    /// # Errors
    /// `Conflict` while another compaction runs. `Damaged`, with the location, if data to keep is not what
    /// was written; then nothing is dropped. `Invalid` in a store open for reading, except for a dry run.
    /// `Poisoned`. `Unavailable` if the disk lacks room for any new file, or for those that a run that must
    /// go is in; the message says how much they need. `Unavailable` also if the compaction was cancelled, or if the store is closed.
    pub fn compact(&self, options: &CompactOptions) -> Result<CompactReport> {
        self.compact_and_list_sharers(options).map(|(report, _)| report)
    }

    /// Compresses the bodies that were written raw at the end of the log ([`Options::raw_tail_bytes_max`]), unless they
    /// are few beside what else was written. Closing does it, too. The store stays usable meanwhile. Returns whether it
    /// did.
    ///
    /// [`Options::raw_tail_bytes_max`]: crate::Options::raw_tail_bytes_max
    ///
    /// # Errors
    /// As [`Store::compact`]; `Conflict` also while a compaction runs.
    pub fn compress_tail(&self) -> Result<bool> {
        compress_tail(self.core(), 1, &|| Ok(()))
    }

    /// As [`Store::compact`]. Also lists the living data that shares stored bytes with the keys of
    /// [`CompactOptions::must_go_keys`]: those bytes stay.
    ///
    /// # Errors
    /// As [`Store::compact`].
    pub fn compact_and_list_sharers(
        &self,
        options: &CompactOptions,
    ) -> Result<(CompactReport, Vec<SharedContent>)> {
        match options.dry_run {
            true => run::dry_run(self.core(), options),
            false => run::compact(self.core(), options),
        }
    }
}
