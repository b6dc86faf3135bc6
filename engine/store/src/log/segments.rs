//! Open segments, and reading a record from one.
//!
//! The active segment is read by position only, because it is still written and cut. Sealed segments are
//! mapped once, at the first read, unless the store was opened for positional reads.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use crate::error::{Error, Result};
use crate::ids::{RecordPlace, SegmentId, StoreId};
use crate::io::{File, FileBytes, Io, OpenMode, ReadMode};
use crate::log::layout::{RawRecord, SEGMENT_HEADER_LEN, Salt, SegmentHeader};
use crate::log::paths::StorePaths;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{OnceLock, RwLock, rank};

/// One open segment.
#[derive(Debug)]
pub struct Segment {
    pub id: SegmentId,
    store: StoreId,
    pub path: PathBuf,
    pub file: Arc<dyn File>,
    pub salt: Salt,
    /// Set once the segment is sealed: its read mode from then on.
    sealed: OnceLock<ReadMode>,
    map: OnceLock<Option<FileBytes>>,
    /// Greatest length that the file was seen to have.
    known_len: AtomicU64,
}

/// A record of at most this many bytes is read without an allocation.
const SMALL_RECORD_BYTES: usize = 512;

impl Segment {
    pub fn new(store: StoreId, id: SegmentId, path: PathBuf, file: Arc<dyn File>) -> Self {
        Self {
            id,
            store,
            path,
            file,
            salt: Salt::new(store, id),
            sealed: OnceLock::new(),
            map: OnceLock::new(),
            known_len: AtomicU64::new(0),
        }
    }

    /// Opens an existing segment and checks its header.
    pub fn open(
        io: &dyn Io,
        paths: &StorePaths,
        store: StoreId,
        id: SegmentId,
        how: OpenMode,
    ) -> Result<Self> {
        let path = paths.segment(id);
        let file = io.open(&path, how).map_err(|e| match e.source.kind() {
            std::io::ErrorKind::NotFound => Error::damaged(&path, 0, "the file is missing"),
            _ => e.into(),
        })?;
        let segment = Self::new(store, id, path, file);
        segment.header()?;
        Ok(segment)
    }

    /// The header, read and checked.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn header(&self) -> Result<SegmentHeader> {
        let mut header = [0; SEGMENT_HEADER_LEN];
        let got = self.file.read_at(&mut header, 0)?;
        SegmentHeader::decode(&header[..got], self.store, self.id)
            .map_err(|e| Error::of_codec(&self.path, 0, e))
    }

    /// From now on the file is never written or cut.
    pub fn mark_sealed(&self, read_mode: ReadMode) {
        self.sealed.get_or_init(|| read_mode);
    }

    pub fn is_sealed(&self) -> bool {
        self.sealed.get().is_some()
    }

    fn map(&self) -> Option<&FileBytes> {
        if *self.sealed.get()? == ReadMode::Positional {
            return None;
        }
        self.map.get_or_init(|| self.file.map().ok()).as_ref()
    }

    /// All bytes of a mapped sealed segment, without a copy. `None` if it is active or read by position.
    pub fn mapped(&self) -> Option<&[u8]> {
        self.map().map(|map| &**map)
    }

    /// Reads a range of a mapped segment ahead, before it is accessed.
    ///
    /// # Errors
    /// `Unavailable` if the disk fails or the file was truncated.
    pub fn populate(&self, from: u64, len: usize) -> Result<()> {
        let Some(map) = self.map() else { return Ok(()) };
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(map.len());
        map.populate(from, len).map_err(|e| crate::io::IoError::new("map", &self.path, e).into())
    }

    /// Reads the bytes from `start` to `end` into `out`, replacing its content.
    ///
    /// # Errors
    /// `Damaged` if the file ends before `end`. Then nothing is allocated, so `end` may be untrusted.
    pub fn read_range(&self, start: u64, end: u64, out: &mut Vec<u8>) -> Result<()> {
        let short = || Error::damaged(&self.path, start, "the file ends before a record");
        let len = end.checked_sub(start).and_then(|len| usize::try_from(len).ok()).ok_or_else(short)?;
        self.check_end(end, start)?;
        out.clear();
        out.resize(len, 0);
        let got = self.file.read_at(out, start)?;
        if got == len { Ok(()) } else { Err(short()) }
    }

    /// Refuses a range past the end of the file. Queries the length only if the range exceeds every length
    /// seen so far. A file that was truncated since then gives fewer bytes when read.
    fn check_end(&self, end: u64, start: u64) -> Result<()> {
        if end > self.known_len.load(Ordering::Relaxed) {
            let len = self.file.len()?;
            self.known_len.fetch_max(len, Ordering::Relaxed);
            if len < end {
                return Err(Error::damaged(&self.path, start, "the file ends before a record"));
            }
        }
        Ok(())
    }

    /// Checks that `bytes` are the record at `place`.
    pub fn check<'a>(&self, place: RecordPlace, bytes: &'a [u8]) -> Result<RawRecord<'a>> {
        let start = u64::from(place.offset);
        RawRecord::check_whole(bytes, self.salt, start).map_err(|e| Error::damaged(&self.path, start, e))
    }

    /// Calls `then` with the checked record at `place`.
    pub fn with_record<T>(
        &self,
        place: RecordPlace,
        then: impl FnOnce(RawRecord<'_>) -> Result<T>,
    ) -> Result<T> {
        let (start, len) = (u64::from(place.offset), place.len as usize);
        let end = start + u64::from(place.len);
        if let Some(map) = self.mapped() {
            let bytes = usize::try_from(start).ok().and_then(|start| map.get(start..)?.get(..len));
            let bytes =
                bytes.ok_or_else(|| Error::damaged(&self.path, start, "the file ends before a record"))?;
            return then(self.check(place, bytes)?);
        }
        // Most records are small and need no allocation.
        let mut small = [0; SMALL_RECORD_BYTES];
        if let Some(bytes) = small.get_mut(..len) {
            self.check_end(end, start)?;
            let got = self.file.read_at(bytes, start)?;
            return then(self.check(place, bytes.get(..got).unwrap_or_default())?);
        }
        let mut bytes = Vec::new();
        self.read_range(start, end, &mut bytes)?;
        then(self.check(place, &bytes)?)
    }
}

/// All segments of a store, in the order of the log. The order is that of insertion, which is the manifest's,
/// never that of the segment numbers.
///
/// Compaction removes segments while others read. A reader takes a [`SegmentPin`] before it takes a place
/// from the index, and holds it until the record is read. A segment that is retired meanwhile stays open
/// until then.
#[derive(Debug, Default)]
pub struct Segments {
    open: RwLock<SegmentList, { rank::SEGMENT_LIST }>,
    /// Segments removed from the store; they exist while a pin holds them.
    retired: RwLock<BTreeMap<SegmentId, Weak<Segment>>, { rank::RETIRED_SEGMENTS }>,
    era: RwLock<Arc<PinEra>, { rank::SEGMENT_ERA }>,
}

#[derive(Debug, Default)]
struct SegmentList {
    by_id: BTreeMap<SegmentId, Arc<Segment>>,
    order: Vec<SegmentId>,
}

/// The time between two retirements. It keeps the segments that were retired at its end, and the later eras.
#[derive(Debug)]
struct PinEra {
    ended: OnceLock<(Vec<Arc<Segment>>, Arc<PinEra>)>,
}

impl Default for PinEra {
    fn default() -> Self {
        Self { ended: OnceLock::new() }
    }
}

impl Drop for PinEra {
    /// Drops the later eras in a loop. Each would otherwise drop the next one inside its own drop, and a long chain
    /// would overflow the stack.
    fn drop(&mut self) {
        let mut ended = self.ended.take();
        while let Some((segments, later)) = ended {
            drop(segments);
            // Another pin may still hold the later era, and everything after it.
            ended = Arc::into_inner(later).and_then(|mut era| era.ended.take());
        }
    }
}

/// Keeps every segment readable that was readable when the pin was taken.
#[derive(Debug, Clone)]
pub struct SegmentPin {
    _era: Arc<PinEra>,
}

impl Segments {
    /// Keeps readable every place that the index returns from now on, and the segments that replace others.
    pub fn pin(&self) -> SegmentPin {
        SegmentPin { _era: read_lock(&self.era).clone() }
    }

    /// Takes over new and newly sealed segments of `others`, and their order. Segments missing in `others`
    /// stay available by number until [`Segments::retire_unlisted`] removes them.
    pub fn adopt(&self, others: &Self) {
        let theirs = others.all();
        let mut open = write_lock(&self.open);
        open.order = theirs.iter().map(|segment| segment.id).collect();
        for segment in theirs {
            let is_known = open.by_id.get(&segment.id).is_some_and(|known| known.is_sealed());
            if !is_known {
                open.by_id.insert(segment.id, segment);
            }
        }
    }

    /// Removes the segments that are no longer in the order.
    pub fn retire_unlisted(&self) {
        let gone: Vec<SegmentId> = {
            let open = read_lock(&self.open);
            open.by_id.keys().copied().filter(|id| !open.order.contains(id)).collect()
        };
        if !gone.is_empty() {
            self.retire(&gone);
        }
    }

    /// Adds a segment at the end of the log.
    pub fn insert(&self, segment: Arc<Segment>) {
        let mut open = write_lock(&self.open);
        let id = segment.id;
        if open.by_id.insert(id, segment).is_none() {
            open.order.push(id);
        }
    }

    /// Replaces adjacent segments with one. The replaced ones stay available by number until
    /// [`Segments::retire`] removes them.
    ///
    /// # Errors
    /// `Bug` if they are missing, or not adjacent.
    pub fn replace(&self, gone: &[SegmentId], made: Arc<Segment>) -> Result<()> {
        let mut open = write_lock(&self.open);
        let first = gone.first().and_then(|first| open.order.iter().position(|id| id == first));
        let at = first.filter(|at| open.order.get(*at..*at + gone.len()) == Some(gone));
        let at = at.ok_or_else(|| Error::bug("the rewritten segments are not adjacent"))?;
        open.order.splice(at..at + gone.len(), [made.id]);
        open.by_id.insert(made.id, made);
        Ok(())
    }

    /// Removes replaced segments after the index no longer leads to them. Pinned readers can still read them.
    pub fn retire(&self, gone: &[SegmentId]) {
        let mut open = write_lock(&self.open);
        let taken: Vec<_> = gone.iter().filter_map(|id| open.by_id.remove(id)).collect();
        let mut retired = write_lock(&self.retired);
        retired.retain(|_, segment| segment.strong_count() > 0);
        retired.extend(taken.iter().map(|segment| (segment.id, Arc::downgrade(segment))));
        let mut era = write_lock(&self.era);
        let next = Arc::new(PinEra::default());
        let ended = std::mem::replace(&mut *era, next.clone());
        let _ = ended.ended.set((taken, next));
    }

    /// Bytes of retired segments that a pin holds: their files are removed, and their disk space is not free.
    pub fn pinned_bytes(&self) -> u64 {
        let retired: Vec<_> = read_lock(&self.retired).values().filter_map(Weak::upgrade).collect();
        retired.iter().map(|segment| segment.file.len().unwrap_or(0)).sum()
    }

    pub fn get(&self, id: SegmentId) -> Result<Arc<Segment>> {
        let open = read_lock(&self.open).by_id.get(&id).cloned();
        let found = open.or_else(|| read_lock(&self.retired).get(&id).and_then(Weak::upgrade));
        found.ok_or_else(|| unlisted(id))
    }

    /// Every segment, in the order of the log.
    pub fn all(&self) -> Vec<Arc<Segment>> {
        let open = read_lock(&self.open);
        open.order.iter().filter_map(|id| open.by_id.get(id).cloned()).collect()
    }

    /// This segment and those after it, in the order of the log.
    ///
    /// # Errors
    /// `Damaged` if the store has no such segment.
    pub fn from_segment(&self, id: SegmentId) -> Result<Vec<Arc<Segment>>> {
        let mut all = self.all();
        let at = all.iter().position(|segment| segment.id == id).ok_or_else(|| unlisted(id))?;
        Ok(all.split_off(at))
    }
}

fn unlisted(id: SegmentId) -> Error {
    let what = format!("the index names segment {}, which the manifest does not list", id.0);
    Error::new(crate::ErrorKind::Damaged, what)
}

/// A read lock. Ignores poisoning by a panic, because every value behind these locks is always consistent.
pub fn read_lock<T, const RANK: u8>(lock: &RwLock<T, RANK>) -> crate::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A write lock; poisoning as in [`read_lock`].
pub fn write_lock<T, const RANK: u8>(lock: &RwLock<T, RANK>) -> crate::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A mutex; poisoning as in [`read_lock`].
pub fn lock<T, const RANK: u8>(mutex: &crate::sync::Mutex<T, RANK>) -> crate::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
#[cfg(not(annals_shuttle))]
mod tests {
    use super::*;
    use crate::io::sim::SimIo;

    /// Regression: each era dropped the next one inside its own drop. Dropping the pin of a view that had been open
    /// over some thousand compactions overflowed the stack, which ended the process.
    #[test]
    fn pin_older_than_many_retirements_is_dropped() {
        let segments = Segments::default();
        let pins = [segments.pin(), segments.pin()];
        let halfway = {
            (0..50_000).for_each(|_| segments.retire(&[]));
            segments.pin()
        };
        (0..50_000).for_each(|_| segments.retire(&[]));
        let kept = Arc::downgrade(&halfway._era);
        drop(pins);
        assert!(kept.upgrade().is_some_and(|era| era.ended.get().is_some()), "a later pin keeps its era");
        drop(halfway);
        assert!(kept.upgrade().is_none());
    }

    #[test]
    fn pinned_bytes_are_those_of_retired_segments() {
        let (sim, segments) = (SimIo::new(1), Segments::default());
        for number in 1..=3u32 {
            let path = PathBuf::from(number.to_string());
            let file = sim.open(&path, OpenMode::CreateNew).unwrap();
            file.set_len(u64::from(number) * 100).unwrap();
            segments.insert(Arc::new(Segment::new(StoreId::default(), SegmentId(number), path, file)));
        }
        segments.retire(&[SegmentId(1)]);
        assert_eq!(segments.pinned_bytes(), 0, "nobody reads it");
        let pin = segments.pin();
        segments.retire(&[SegmentId(2), SegmentId(3)]);
        assert_eq!(segments.pinned_bytes(), 500);
        drop(pin);
        assert_eq!(segments.pinned_bytes(), 0);
    }
}
