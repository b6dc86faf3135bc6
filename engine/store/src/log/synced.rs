//! The file `SYNCED`: how far the log is known to be synced, noted apart from the log.
//!
//! Each batch says how far the log was synced before it. Nothing in the log says so of its last batches. The
//! note does. It stands in a file of its own, so that damage to the log's last page cannot take both.
//!
//! ```text
//! SYNCED  slot [512] | slot [512]
//! slot    bincode(SyncedNote) | zeros | crc32 u32
//! ```
//! The slots are written in turn, in place, and synced. A note with the counter n stands in slot n modulo 2,
//! so a torn write leaves the note before it. The valid note with the greater counter counts.

use std::io::IoSlice;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::codec;
use crate::error::{Error, Result};
use crate::ids::{SegmentId, Seqno, StoreId};
use crate::io::{File, Io, OpenMode};
use crate::log::layout::{ChainDigest, LogState};
use crate::log::paths::StorePaths;

const MAGIC: [u8; 8] = *b"annalsyn";
/// Version of a slot.
const FORMAT: u16 = 1;
/// The first format of a store that has the file.
pub const FIRST_STORE_FORMAT: u16 = 4;
/// Bytes of a slot: one sector.
pub const SLOT_BYTES: usize = 512;
const CRC_AT: usize = SLOT_BYTES - 4;

/// A position of the log up to which every byte is durable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncedNote {
    pub magic: [u8; 8],
    pub format: u16,
    pub store: StoreId,
    /// Counts the notes of a store, from 0.
    pub counter: u64,
    /// The segment that was active.
    pub segment: SegmentId,
    /// Position in that segment, the end of a batch.
    pub synced: u64,
    /// The seqno of the next record there.
    pub next_seqno: Seqno,
    /// Digest of the batch that ends there.
    pub chain: ChainDigest,
    /// When the note was written.
    pub time_ns: u64,
}

impl SyncedNote {
    /// The note with this counter: the log is durable up to `synced`, where its state is `state`.
    pub fn new(
        store: StoreId,
        counter: u64,
        synced: (SegmentId, u64),
        state: &LogState,
        time_ns: u64,
    ) -> Self {
        let (segment, synced) = synced;
        let (next_seqno, chain) = (state.next_seqno, state.chain);
        Self { magic: MAGIC, format: FORMAT, store, counter, segment, synced, next_seqno, chain, time_ns }
    }

    /// The bytes of the note's slot.
    pub fn encode(&self) -> Result<[u8; SLOT_BYTES]> {
        let fields = codec::encode(self).map_err(|e| Error::bug(e.to_string()))?;
        let mut slot = [0; SLOT_BYTES];
        match slot[..CRC_AT].get_mut(..fields.len()) {
            Some(start) => start.copy_from_slice(&fields),
            None => return Err(Error::bug("a note is longer than its slot")),
        }
        let crc = crc32fast::hash(&slot[..CRC_AT]);
        slot[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        Ok(slot)
    }

    /// The note in the slot with this number. `None` if no note of this store is whole there.
    ///
    /// # Errors
    /// `Unsupported` for a newer format.
    fn decode(slot: &[u8], number: u64, store: StoreId, paths: &StorePaths) -> Result<Option<Self>> {
        let Some((fields, crc)) = slot.split_at_checked(CRC_AT) else { return Ok(None) };
        if !fields.starts_with(&MAGIC) || crc != crc32fast::hash(fields).to_le_bytes() {
            return Ok(None);
        }
        let format = u16::from_le_bytes([fields[8], fields[9]]);
        if format > FORMAT {
            return Err(Error::newer(&paths.synced(), "SYNCED", u64::from(format), u64::from(FORMAT)));
        }
        let used = 8 + 2 + 16 + 8 + 4 + 8 + 8 + 16 + 8;
        let (fields, zeros) = fields.split_at(used);
        let note = codec::decode::<Self>(fields).ok().filter(|_| zeros.iter().all(|byte| *byte == 0));
        Ok(note.filter(|note| note.format == FORMAT && note.store == store && note.counter % 2 == number))
    }
}

/// What `SYNCED` says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FoundNote {
    /// The newest whole note.
    pub note: Option<SyncedNote>,
    /// Whether the file exists.
    pub exists: bool,
}

/// The bytes of `SYNCED`; `None` if the file is missing.
pub fn read(io: &dyn Io, paths: &StorePaths) -> Result<Option<Vec<u8>>> {
    let path = paths.synced();
    if io.stat(&path)?.is_none() {
        return Ok(None);
    }
    let file = io.open(&path, OpenMode::Read)?;
    let mut bytes = vec![0; 2 * SLOT_BYTES];
    let got = file.read_at(&mut bytes, 0)?;
    bytes.truncate(got);
    Ok(Some(bytes))
}

/// The newest note in the bytes of `SYNCED`.
///
/// # Errors
/// `Unsupported` for a newer format.
pub fn newest(bytes: Option<&[u8]>, store: StoreId, paths: &StorePaths) -> Result<FoundNote> {
    let mut found = FoundNote { note: None, exists: bytes.is_some() };
    for (number, slot) in (0..).zip(bytes.unwrap_or_default().chunks(SLOT_BYTES)) {
        let note = SyncedNote::decode(slot, number, store, paths)?;
        found.note = found.note.into_iter().chain(note).max_by_key(|note| note.counter);
    }
    Ok(found)
}

/// `SYNCED`, open for writing.
#[derive(Debug)]
pub struct SyncedFile {
    file: Arc<dyn File>,
    store: StoreId,
    next: u64,
}

impl SyncedFile {
    /// Opens the file to continue after `found`. If it has no whole note, writes both slots anew with the note
    /// that the log is durable up to `synced`. The caller syncs the directory.
    ///
    /// # Errors
    /// `Unavailable`.
    pub fn open(
        io: &dyn Io,
        paths: &StorePaths,
        store: StoreId,
        found: &FoundNote,
        synced: (SegmentId, u64),
        state: &LogState,
    ) -> Result<Self> {
        let file = io.open(&paths.synced(), OpenMode::CreateOrOpen)?;
        let next = found.note.as_ref().map_or(0, |note| note.counter + 1);
        let mut opened = Self { file, store, next };
        if found.note.is_none() {
            opened.file.set_len(0)?;
            opened.file.write_at(&[IoSlice::new(&[0; SLOT_BYTES])], SLOT_BYTES as u64)?;
            opened.note(io, synced, state)?;
        }
        Ok(opened)
    }

    /// Notes that the log is durable up to `synced`, where its state is `state`. The note is durable when this
    /// returns.
    ///
    /// # Errors
    /// `Unavailable`. Then it is unknown whether the note is on disk; the note before it is.
    pub fn note(&mut self, io: &dyn Io, synced: (SegmentId, u64), state: &LogState) -> Result<()> {
        let note = SyncedNote::new(self.store, self.next, synced, state, io.now_ns());
        let slot = note.encode()?;
        self.file.write_at(&[IoSlice::new(&slot)], self.next % 2 * SLOT_BYTES as u64)?;
        self.file.sync()?;
        self.next += 1;
        Ok(())
    }
}

/// How long after a synced commit its note is due, in nanoseconds. The next commit writes the note, or the writer's
/// thread when it looks next. This time and the time between two looks must be less than a second together.
pub const NOTE_DUE_NS: u64 = 500_000_000;

/// How far the active segment is noted, and when the next note is due.
#[derive(Debug)]
pub struct NoteSchedule {
    /// Position known to be durable that is on disk outside of the log: in `SYNCED` or the manifest.
    noted: u64,
    /// When the first commit was synced that no note covers, by the monotonic clock.
    unnoted_since_ns: Option<u64>,
}

impl NoteSchedule {
    /// The schedule after a note up to this position, which covers every synced commit.
    pub fn new(noted: u64) -> Self {
        Self { noted, unnoted_since_ns: None }
    }

    /// Whether the newest note covers the log up to `end`.
    pub fn covers(&self, end: u64) -> bool {
        end <= self.noted
    }

    /// Adds a commit that was synced at `now_ns` and is not noted.
    pub fn add_synced_commit(&mut self, now_ns: u64) {
        self.unnoted_since_ns.get_or_insert(now_ns);
    }

    /// Whether a synced commit has waited for its note for [`NOTE_DUE_NS`]. Reads the clock only if one waits.
    pub fn is_due(&self, now_ns: impl FnOnce() -> u64) -> bool {
        self.unnoted_since_ns.is_some_and(|since| now_ns().saturating_sub(since) >= NOTE_DUE_NS)
    }
}

#[cfg(test)]
#[cfg(not(annals_shuttle))]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::io::RealIo;
    use crate::io::sim::SimIo;
    use crate::log::queue::Durability;
    use crate::testing::KvStore;
    use crate::{ErrorKind, History, Options};

    const STORE: StoreId = StoreId([7; 16]);

    fn file(sim: &SimIo, paths: &StorePaths) -> SyncedFile {
        let found = newest(read(sim, paths).unwrap().as_deref(), STORE, paths).unwrap();
        SyncedFile::open(sim, paths, STORE, &found, (SegmentId(1), 96), &LogState::empty()).unwrap()
    }

    fn found(sim: &SimIo, paths: &StorePaths) -> FoundNote {
        newest(read(sim, paths).unwrap().as_deref(), STORE, paths).unwrap()
    }

    fn position(found: &FoundNote) -> Option<(u64, u32, u64)> {
        found.note.as_ref().map(|note| (note.counter, note.segment.0, note.synced))
    }

    #[test]
    fn newest_whole_note_counts_after_any_crash() {
        let (sim, paths) = (SimIo::new(1), StorePaths::new(Path::new("s")));
        sim.create_dir_all(paths.root()).unwrap();
        assert_eq!(found(&sim, &paths), FoundNote::default());
        let mut notes = file(&sim, &paths);
        sim.sync_dir(paths.root()).unwrap();
        let begun = sim.op_count();
        let mut durable = vec![(begun, 96)];
        for synced in [200, 300, 400, 500] {
            notes.note(&sim, (SegmentId(1), synced), &LogState::empty()).unwrap();
            durable.push((sim.op_count(), synced));
        }
        drop(notes);
        let mut notes = file(&sim, &paths);
        notes.note(&sim, (SegmentId(2), 600), &LogState::empty()).unwrap();
        assert_eq!(position(&found(&sim, &paths)), Some((5, 2, 600)), "the counter continues");
        for (point, disk) in sim.history().crashes(4) {
            let Some((_, least)) = durable.iter().rev().find(|(at, _)| *at <= point.at) else { continue };
            let note = found(&disk, &paths).note.unwrap_or_else(|| panic!("no note after {point}"));
            assert!(note.synced >= *least, "{point}: {} of {least}", note.synced);
        }
    }

    #[test]
    fn changed_slot_counts_as_none() {
        let (sim, paths) = (SimIo::new(1), StorePaths::new(Path::new("s")));
        sim.create_dir_all(paths.root()).unwrap();
        let mut notes = file(&sim, &paths);
        notes.note(&sim, (SegmentId(1), 200), &LogState::empty()).unwrap();
        let whole = sim.read(&paths.synced()).unwrap();
        assert_eq!(whole.len(), 2 * SLOT_BYTES);
        let of = |bytes: &[u8]| position(&newest(Some(bytes), STORE, &paths).unwrap());
        for at in SLOT_BYTES..2 * SLOT_BYTES {
            let mut changed = whole.clone();
            changed[at] ^= 4;
            assert_eq!(of(&changed), Some((0, 1, 96)), "byte {at}");
        }
        for len in 0..2 * SLOT_BYTES {
            let left = (len >= SLOT_BYTES).then_some((0, 1, 96));
            assert_eq!(of(&whole[..len]), left, "cut to {len} bytes");
        }
        let mut swapped = whole[SLOT_BYTES..].to_vec();
        swapped.extend_from_slice(&whole[..SLOT_BYTES]);
        assert_eq!(of(&swapped), None, "a note counts only in its own slot");
        let other = newest(Some(&whole), StoreId([8; 16]), &paths).unwrap();
        assert_eq!(other, FoundNote { note: None, exists: true });
    }

    #[test]
    fn newer_note_is_refused_as_newer() {
        let paths = StorePaths::new(Path::new("s"));
        let (sim, mut bytes) = (SimIo::new(1), vec![0; SLOT_BYTES]);
        sim.create_dir_all(paths.root()).unwrap();
        drop(file(&sim, &paths));
        bytes.copy_from_slice(&sim.read(&paths.synced()).unwrap()[..SLOT_BYTES]);
        bytes[8] += 1;
        let crc = crc32fast::hash(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        let error = newest(Some(&bytes), STORE, &paths).unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("newer"), "{error}");
    }

    /// Regression: after a commit with `Disk`, a program committed with `Process` some times a second. The `Disk` commit
    /// was not noted for as long as that went on. The guarantee is a second.
    #[test]
    fn disk_commit_is_noted_while_process_commits_follow() {
        let directory = tempfile::tempdir().unwrap();
        let (io, paths) = (RealIo::new(), StorePaths::new(&directory.path().join("s")));
        let store = KvStore::open_with(paths.root(), Options::default()).unwrap();
        let space = store.namespace("n").unwrap();
        let keys = space.keyspace("k", History::Latest).unwrap();
        let commit = |durability| {
            let mut batch = space.batch();
            batch.put(&keys, b"key", b"value".to_vec());
            batch.submit_with(durability).unwrap().wait().unwrap();
        };
        let is_noted = |end| {
            let bytes = read(&io, &paths).unwrap();
            newest(bytes.as_deref(), store.core().store, &paths).unwrap().note.unwrap().synced >= end
        };
        commit(Durability::Disk);
        let end = store.core().log().unwrap().queue.active_end().1;
        // More often than the writer's thread looks, for far longer than a note may take.
        let noted = (0..200).any(|_| {
            commit(Durability::Process);
            std::thread::sleep(std::time::Duration::from_millis(20));
            is_noted(end)
        });
        assert!(noted);
    }
}
