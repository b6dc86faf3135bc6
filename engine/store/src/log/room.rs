//! Disk space for the log, allocated before a batch gets its place.
//!
//! A batch that has its place must be written: later batches, open groups and the memory of runs build on it.
//! So a full disk has to be noticed earlier. The queue places a batch only in space that its segment's file
//! already has ([`LogRoom::allocate`]); without that space the batch is refused, nothing has changed, and the
//! next one may find room again. Where a file system cannot allocate ahead, a full disk ends writing.
//!
//! A file RESERVE holds a little space for what makes room again: opening, dropping runs, compaction, closing.
//! Every other batch needs the reserve to be whole, so it never uses it up.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::SegmentId;
use crate::io::{File, Io, IoError, OpenMode};
use crate::log::layout::SEGMENT_HEADER_BYTES;
use crate::log::paths::StorePaths;
use crate::log::segments::lock;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, rank};

/// Bytes after the log's end that stay allocated for the segment's footer.
const FOOTER_ROOM_BYTES: u64 = 8 << 10;
/// Bytes of log that are allocated together, at least.
const STEP_BYTES_MIN: u64 = 4 << 10;
/// A segment is begun only with this many free bytes: a file, and an edit of the manifest.
const SEGMENT_ROOM_BYTES: u64 = 64 << 10;

/// A reserve that was freed is put back whole, or as a half, a quarter, and so on of it.
const PARTS_OF_RESERVE: u32 = 5;

/// The space of the active segment, and the reserve.
#[derive(Debug)]
pub struct LogRoom {
    io: Arc<dyn Io>,
    paths: StorePaths,
    step_bytes: u64,
    reserve_bytes: u64,
    /// Number of activities that may use the reserve.
    reserve_users: AtomicUsize,
    state: Mutex<RoomState, { rank::LOG_ROOM }>,
}

#[derive(Debug)]
struct RoomState {
    segment: SegmentId,
    file: Arc<dyn File>,
    /// Position up to which the file has disk space.
    allocated: u64,
    /// The reserve is whole.
    has_reserve: bool,
}

impl LogRoom {
    /// Room for a log that goes on at `tail` of a segment. `step_bytes` are allocated together.
    pub fn new(
        io: &Arc<dyn Io>,
        paths: &StorePaths,
        (step_bytes, reserve_bytes): (u64, u64),
        (segment, file, tail): (SegmentId, Arc<dyn File>, u64),
    ) -> Self {
        Self {
            io: io.clone(),
            paths: paths.clone(),
            step_bytes: step_bytes.max(STEP_BYTES_MIN),
            reserve_bytes,
            reserve_users: AtomicUsize::new(0),
            state: Mutex::new(RoomState { segment, file, allocated: tail, has_reserve: false }),
        }
    }

    /// The log goes on in this segment, which is empty.
    pub fn begin_segment(&self, segment: SegmentId, file: Arc<dyn File>) {
        let mut state = lock(&self.state);
        (state.segment, state.file, state.allocated) = (segment, file, SEGMENT_HEADER_BYTES);
    }

    /// Whether the disk has room for another segment.
    pub fn can_begin_segment(&self) -> bool {
        let free = self.io.free_bytes(self.paths.root()).ok().flatten();
        free.is_none_or(|free| free >= SEGMENT_ROOM_BYTES)
    }

    /// The position up to which a segment has disk space; 0 if it is not the active one.
    pub fn allocated_in(&self, segment: SegmentId) -> u64 {
        let state = lock(&self.state);
        if state.segment == segment { state.allocated } else { 0 }
    }

    /// Allocates disk space for the log of a segment, up to `end` at least. Returns the end of what batches
    /// may now use; `None` if the writer has not begun the segment, or is past it.
    ///
    /// # Errors
    /// `Unavailable` if the disk is full.
    pub fn allocate(&self, segment: SegmentId, end: u64) -> Result<Option<u64>> {
        let mut state = lock(&self.state);
        if state.segment != segment {
            return Ok(None);
        }
        let least = end.saturating_add(FOOTER_ROOM_BYTES);
        if least > state.allocated {
            let may_use_reserve = self.reserve_users.load(Ordering::Acquire) > 0;
            if !may_use_reserve {
                self.fill_reserve(&mut state)?;
            }
            let grown = self.grow(&mut state, least).or_else(|full| {
                match may_use_reserve && self.remove_reserve(&mut state) {
                    true => self.grow(&mut state, least),
                    false => Err(full),
                }
            });
            grown.map_err(|e| self.refusal(e))?;
        }
        Ok(Some(state.allocated - FOOTER_ROOM_BYTES))
    }

    /// Allocates whole steps if the disk has clearly room for them, else just `least`: a file system may keep what
    /// it allocated until it was full.
    fn grow(&self, state: &mut RoomState, least: u64) -> std::result::Result<(), IoError> {
        let whole = least.next_multiple_of(self.step_bytes);
        let needed = whole.saturating_sub(state.allocated).saturating_add(SEGMENT_ROOM_BYTES);
        let has_room = self.io.free_bytes(self.paths.root())?.is_none_or(|free| free >= needed);
        let end = if has_room { whole } else { least };
        state.allocated = match state.file.allocate(end) {
            Ok(true) => end,
            Ok(false) => u64::MAX,
            // Others took the room meanwhile.
            Err(e) if is_full(&e) && end > least => match state.file.allocate(least)? {
                true => least,
                false => u64::MAX,
            },
            Err(e) => return Err(e),
        };
        Ok(())
    }

    /// Makes the reserve whole.
    fn fill_reserve(&self, state: &mut RoomState) -> Result<()> {
        if state.has_reserve || self.reserve_bytes == 0 {
            return Ok(());
        }
        let path = self.paths.reserve();
        let filled = self.io.open(&path, OpenMode::CreateOrOpen);
        match filled.and_then(|file| file.allocate(self.reserve_bytes)) {
            Err(e) if is_full(&e) && e.kind() != std::io::ErrorKind::FileTooLarge => {
                // A reserve that is too small is not counted on.
                let _ = self.io.remove(&path);
                Err(self.refusal(e))
            }
            // A reserve that cannot be made for another reason is no reason to refuse a batch.
            _ => {
                state.has_reserve = true;
                Ok(())
            }
        }
    }

    /// Frees the reserve; false if there was none.
    pub fn release_reserve(&self) -> bool {
        self.remove_reserve(&mut lock(&self.state))
    }

    fn remove_reserve(&self, state: &mut RoomState) -> bool {
        state.has_reserve = false;
        self.io.remove(&self.paths.reserve()).is_ok()
    }

    /// Puts a freed reserve back, or what is left of it: the next opening may find no other room.
    pub fn restore_reserve(&self) {
        let state = lock(&self.state);
        if state.has_reserve || self.reserve_bytes == 0 {
            return;
        }
        let path = self.paths.reserve();
        let Ok(file) = self.io.open(&path, OpenMode::CreateOrOpen) else { return };
        let mut parts = (0..PARTS_OF_RESERVE).map(|part| self.reserve_bytes >> part);
        if !parts.any(|bytes| file.allocate(bytes).is_ok()) {
            let _ = self.io.remove(&path);
        }
    }

    /// Repeats an operation once with the reserve freed, if it failed for lack of room. `again` must have no
    /// effect beyond that of the first call.
    pub fn retry_with_reserve<T>(&self, mut again: impl FnMut() -> Result<T>) -> Result<T> {
        again().or_else(|error| match lacks_room(&error) && self.release_reserve() {
            true => again(),
            false => Err(error),
        })
    }

    fn refusal(&self, cause: IoError) -> Error {
        let root = self.paths.root().display();
        let what = match cause.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                format!(
                    "the disk of {root} is full: nothing was written; make room, then try again ({cause})"
                )
            }
            _ => format!("the log of {root} cannot grow: nothing was written ({cause})"),
        };
        Error::with_source(ErrorKind::Unavailable, what, cause)
    }
}

/// Permission to use the reserve while it lives.
#[derive(Debug)]
pub struct ReserveUse<'a>(&'a LogRoom);

impl LogRoom {
    /// From now on batches may use the reserve, until the result is dropped.
    pub fn use_reserve(&self) -> ReserveUse<'_> {
        self.reserve_users.fetch_add(1, Ordering::AcqRel);
        ReserveUse(self)
    }
}

impl Drop for ReserveUse<'_> {
    fn drop(&mut self) {
        self.0.reserve_users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Frees the reserve if the disk is nearly full, before a store is opened for writing: opening needs some
/// room itself.
pub fn release_reserve_if_short(io: &dyn Io, paths: &StorePaths, reserve_bytes: u64) -> Result<()> {
    let free = io.free_bytes(paths.root())?;
    if free.is_some_and(|free| free < reserve_bytes.saturating_mul(2)) && io.stat(&paths.reserve())?.is_some()
    {
        io.remove(&paths.reserve())?;
    }
    Ok(())
}

/// Whether an operation failed for lack of room: on the disk, or within a limit.
fn is_full(error: &IoError) -> bool {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// Whether an operation failed for lack of room and may be repeated. A failed sync never is: afterwards it is
/// unknown what the disk holds.
fn lacks_room(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<IoError>());
    source.is_some_and(|source| is_full(source) && !source.op.starts_with("sync"))
}
