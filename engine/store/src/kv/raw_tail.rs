//! The raw tail: new bytes of bodies at the log's end that are not compressed yet.
//!
//! Compressing them takes a quarter of a commit. So a commit writes them as they are, while the store has few of
//! these. Later the segments that hold them are rewritten with their groups compressed: once the store is idle,
//! or when it is closed.
//!
//! The counts are a hint: what is missed stays raw until a compaction rewrites it.

use crate::blob::{Codec, is_incompressible};
use crate::codec::CodecError;
use crate::ids::{RecordPlace, SegmentId};
use crate::log::layout::{LogState, RawRecord};
use crate::log::record::{GroupPart, RecordKind};
use crate::log::scan::sealed_footer;
use crate::log::segments::{Segments, lock};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex, rank};
use std::sync::PoisonError;
use std::time::Duration;

/// More new bytes in one body are compressed at once: such a caller would soon fill the tail.
const NEW_BYTES_MAX: usize = 64 << 10;

/// Fewer raw bytes than this wait for the store's closing.
pub const IDLE_BYTES_MIN: u64 = 256 << 10;

/// Segments in which fewer than one byte in so many is raw are not rewritten.
pub const SHARE_MIN: u64 = 8;

/// See the module.
#[derive(Debug)]
pub struct RawTail {
    bytes_max: u64,
    held: Mutex<RawBytes, { rank::RAW_TAIL }>,
    /// The thread that compresses an idle store's tail waits for this.
    changed: Condvar,
    is_stopped: AtomicBool,
    is_compressing: AtomicBool,
    failures: AtomicU64,
}

/// Raw bytes, and the first segment that may hold some.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RawBytes {
    pub bytes: u64,
    pub first: SegmentId,
}

impl RawTail {
    pub fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            held: Mutex::default(),
            changed: Condvar::new(),
            is_stopped: AtomicBool::new(false),
            is_compressing: AtomicBool::new(false),
            failures: AtomicU64::new(0),
        }
    }

    /// Whether any body may be written raw.
    pub fn is_on(&self) -> bool {
        self.bytes_max > 0
    }

    /// Waits until there are [`IDLE_BYTES_MIN`]; false once [`RawTail::stop`] was called.
    pub fn wait_for_bytes(&self) -> bool {
        let mut held = lock(&self.held);
        while held.bytes < IDLE_BYTES_MIN && !self.is_stopped() {
            held = self.changed.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
        !self.is_stopped()
    }

    /// Waits as long; false once [`RawTail::stop`] was called.
    pub fn pause(&self, limit: Duration) -> bool {
        let held = lock(&self.held);
        if !self.is_stopped() {
            drop(self.changed.wait_timeout(held, limit));
        }
        !self.is_stopped()
    }

    /// Ends all waits.
    pub fn stop(&self) {
        let held = lock(&self.held);
        self.is_stopped.store(true, Ordering::Release);
        drop(held);
        self.changed.notify_all();
    }

    /// Whether a body with this many new bytes may be written raw; `has_fresh_segment` is asked if the tail is empty.
    pub fn takes(&self, new_bytes: usize, has_fresh_segment: impl FnOnce() -> bool) -> bool {
        if self.bytes_max == 0 || new_bytes == 0 || new_bytes > NEW_BYTES_MAX {
            return false;
        }
        let bytes = self.bytes();
        bytes < self.bytes_max && (bytes > 0 || has_fresh_segment())
    }

    /// Adds bytes that are written raw to this segment, or to a later one.
    pub fn add(&self, bytes: u64, segment: SegmentId) {
        let mut held = lock(&self.held);
        if held.bytes == 0 {
            held.first = segment;
        }
        let before = held.bytes;
        held.bytes += bytes;
        if before < IDLE_BYTES_MIN && held.bytes >= IDLE_BYTES_MIN {
            self.changed.notify_all();
        }
    }

    /// Adds the bytes of a record that an opening reads, if it is a part that may be compressed.
    pub fn note_record(&self, record: &RawRecord<'_>, place: RecordPlace) -> Result<(), CodecError> {
        if place.segment.is_rewritten()
            || RecordKind::parse(record.kind, record.layout)? != Some(RecordKind::GroupPart)
        {
            return Ok(());
        }
        let part = GroupPart::parse(record.body)?;
        if part.codec == Codec::Raw.code() && !is_incompressible(part.encoded) {
            self.add(u64::from(part.raw_len), place.segment);
        }
        Ok(())
    }

    /// Takes up what earlier openings left, if this one has read no raw parts: all parts after the last segment that
    /// a rewrite made. They are raw if a process ended early, or if there were too few to rewrite them. More than
    /// may be raw were compressed at once. If they are few beside what else is in these segments, they stay, and the
    /// next raw bodies begin a segment of their own.
    pub fn resume(&self, segments: &Segments, state: &LogState) {
        if self.bytes_max == 0 || self.bytes() > 0 {
            return;
        }
        let all = segments.all();
        let rewritten = all.iter().rposition(|segment| segment.id.is_rewritten());
        let Some(first) = all.get(rewritten.map_or(0, |at| at + 1)) else { return };
        let before = match rewritten.and_then(|at| all.get(at)) {
            None => Some(0),
            Some(segment) => {
                let footer = segment.file.len().ok().and_then(|len| sealed_footer(segment, len).ok());
                footer.map(|footer| footer.state.totals.piece_bytes)
            }
        };
        let bytes = before.map_or(0, |before| state.totals.piece_bytes.saturating_sub(before));
        let of_tail = all.iter().skip_while(|segment| segment.id != first.id);
        let all_bytes =
            of_tail.map(|segment| segment.file.len().unwrap_or(u64::MAX)).fold(0, u64::saturating_add);
        if bytes > 0 && bytes <= self.bytes_max && bytes >= all_bytes / SHARE_MIN {
            self.add(bytes, first.id);
        }
    }

    /// Number of raw bytes.
    pub fn bytes(&self) -> u64 {
        lock(&self.held).bytes
    }

    /// The first segment that may hold some.
    pub fn first(&self) -> SegmentId {
        lock(&self.held).first
    }

    /// Notes that a compaction has rewritten `bytes` of them: all in segments before `next`.
    pub fn pass(&self, bytes: u64, next: SegmentId) {
        let mut held = lock(&self.held);
        *held = RawBytes { bytes: held.bytes.saturating_sub(bytes), first: held.first.max(next) };
    }

    /// Takes what is held, to compress it.
    pub fn take(&self) -> RawBytes {
        self.is_compressing.store(true, Ordering::Release);
        std::mem::take(&mut *lock(&self.held))
    }

    /// Ends what [`RawTail::take`] began. What could not be compressed is counted again.
    pub fn finish(&self, taken: RawBytes, done: bool) {
        let mut held = lock(&self.held);
        if !done {
            *held = RawBytes { bytes: held.bytes + taken.bytes, first: taken.first };
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        self.is_compressing.store(false, Ordering::Release);
    }

    /// How often what was taken could not be compressed.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Whether the tail is being compressed.
    pub fn is_compressing(&self) -> bool {
        self.is_compressing.load(Ordering::Acquire)
    }

    /// Whether [`RawTail::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }
}
