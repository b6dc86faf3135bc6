//! The manifest: the list of files that make the store, and the known state of the log's end.
//!
//! ```text
//! CURRENT        "MANIFEST-0007 <crc32 of that name, hex>\n"
//! MANIFEST-0007  magic [8] | store uuid [16] | crc32 u32 | edit*
//! edit           crc32 u32 | bytes u32 | bincode(ManifestState)
//! ```
//! Each edit contains the whole state, so the last whole edit counts and nothing is replayed. An edit is
//! synced before anything relies on it. Each opening for writing starts a new generation: write the new file,
//! sync it, sync the directory, rename CURRENT, sync the directory.

use std::fmt;
use std::io::IoSlice;
use std::path::Path;
use std::sync::{Arc, Weak};

use serde::{Deserialize, Serialize};

use crate::codec::{self, ByteReader, CodecError};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{NamespaceId, SegmentId, Seqno, StoreId};
use crate::io::{File, Io, LockKind, OpenMode};
use crate::log::layout::{COUNT_MAX, LogState};
use crate::log::paths::{StorePaths, manifest_name, parse_manifest};
use crate::log::segments::lock;
use crate::log::totals::LogTotals;
use crate::log::writer_lock::WriterLock;
use crate::sync::{Mutex, rank};
use crate::timestamp::rfc3339;

const MAGIC: [u8; 8] = *b"annalman";
/// Version of an edit as it is written. Older formats are also read: format 3 has no cuts and no file
/// `SYNCED`, format 2 also has no vector files, format 1 also has no compaction.
pub const FORMAT: u16 = 4;
const FORMAT_THIRD: u16 = 3;
/// The format before the ledger stated erasures. A store of an older format has it while its first opening for
/// writing states what is missing: a crash in between must not leave a store that claims to be complete.
pub const FORMAT_UNSTATED: u16 = FORMAT_THIRD;
const FORMAT_SECOND: u16 = 2;
const FORMAT_FIRST: u16 = 1;
pub const HEADER_BYTES: u64 = HEADER_LEN as u64;
const HEADER_LEN: usize = 28;
pub const EDIT_HEADER_BYTES: u64 = 8;
/// A manifest that exceeds this size continues as a new generation.
const GENERATION_BYTES_MAX: u64 = 1 << 20;
/// A larger file is not a manifest of annals.
const MANIFEST_BYTES_MAX: u64 = 256 << 20;

/// One log file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentEntry {
    pub id: SegmentId,
    pub first_seqno: Seqno,
    /// The whole file's length after sealing.
    pub sealed_bytes: Option<u64>,
}

/// One table file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableEntry {
    pub id: u64,
    pub bytes: u64,
}

/// One vector file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VectorEntry {
    pub id: u64,
    pub bytes: u64,
    pub namespace: NamespaceId,
    pub embedder: String,
    pub dimensions: u32,
    pub count: u64,
    /// Seqno up to which this file and those listed before it hold all vectors of the partition.
    pub upto: Seqno,
}

/// The vector files.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct VectorList {
    /// The files of one partition are in order of age.
    pub files: Vec<VectorEntry>,
    /// Seqno up to which the files together hold all vectors.
    pub upto: Seqno,
    /// The number of the next file.
    pub next: u64,
}

/// Bytes after the log's last whole batch that an opening for writing cut, after an unclean stop. A crash tore
/// them, or they were damaged: commits that were acknowledged in that time may have been among them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogCut {
    /// The segment that was active.
    pub segment: SegmentId,
    /// Where the bytes began.
    pub offset: u64,
    /// Number of bytes, without zeros that were written ahead.
    pub bytes: u64,
    /// Everything that was acknowledged before this time is there.
    pub from_ns: u64,
    /// When the bytes were cut; 0 if they still stand there.
    pub until_ns: u64,
}

impl fmt::Display for LogCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segment, offset, bytes, from_ns, until_ns } = self;
        let until = match until_ns {
            0 => String::new(),
            until => format!(" and before {}", rfc3339(*until)),
        };
        write!(
            f,
            "{bytes} bytes at the end of segment {}, from byte {offset} on: commits acknowledged after {}{until} may have been among them",
            segment.0,
            rfc3339(*from_ns)
        )
    }
}

/// Cuts of the log.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CutList {
    /// The newest cuts, in order of age; at most [`CUTS_MAX`].
    pub newest: Vec<LogCut>,
    /// Number of earlier cuts, which are no longer listed.
    pub earlier: u64,
}

/// Maximum number of cuts that are listed.
pub const CUTS_MAX: usize = 32;

impl CutList {
    /// Adds a cut. If a crash interrupted it, the same place is cut again: then the first cut counts, because the
    /// bytes may be those of the footer by now.
    pub fn note(&mut self, cut: LogCut) {
        if self.newest.iter().any(|known| (known.segment, known.offset) == (cut.segment, cut.offset)) {
            return;
        }
        self.newest.push(cut);
        if self.newest.len() > CUTS_MAX {
            self.newest.remove(0);
            self.earlier += 1;
        }
    }
}

/// The log's end after a clean close.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CleanClose {
    pub tail: u64,
    pub state: LogState,
}

/// The whole content of the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestState {
    pub format: u16,
    pub store: StoreId,
    pub created_ns: u64,
    /// In the order of the log, which is not the order of their numbers; the last one is active.
    pub segments: Vec<SegmentEntry>,
    /// In order of age. Together they contain the index up to `covers`.
    pub tables: Vec<TableEntry>,
    /// Position in the log from which a reader of these tables continues.
    pub covers: (SegmentId, u64),
    /// State of the log at `covers`.
    pub covers_state: LogState,
    /// Greatest position of the active segment known to be durable.
    pub synced: u64,
    /// Only after a clean close.
    pub clean: Option<CleanClose>,
    pub next_table: u64,
    /// The number of the next rewritten segment.
    pub next_rewritten: u32,
    /// Cumulative totals that compaction removed: the current content is the log's totals minus these.
    pub erased: LogTotals,
    pub vectors: VectorList,
    /// What openings for writing cut from the log's end.
    pub cuts: CutList,
}

/// The state in format 1.
#[derive(Deserialize)]
struct ManifestStateV1 {
    format: u16,
    store: StoreId,
    created_ns: u64,
    segments: Vec<SegmentEntry>,
    tables: Vec<TableEntry>,
    covers: (SegmentId, u64),
    covers_state: LogState,
    synced: u64,
    clean: Option<CleanClose>,
    next_table: u64,
}

/// The state in format 2: format 1 with two more fields.
#[derive(Deserialize)]
struct ManifestStateV2 {
    first: ManifestStateV1,
    next_rewritten: u32,
    erased: LogTotals,
}

/// The state in format 3: format 2 with one more field.
#[derive(Deserialize)]
struct ManifestStateV3 {
    second: ManifestStateV2,
    vectors: VectorList,
}

impl From<ManifestStateV1> for ManifestStateV2 {
    fn from(first: ManifestStateV1) -> Self {
        Self { first, next_rewritten: SegmentId::REWRITTEN_MIN, erased: LogTotals::default() }
    }
}

impl From<ManifestStateV2> for ManifestStateV3 {
    fn from(second: ManifestStateV2) -> Self {
        Self { second, vectors: VectorList::default() }
    }
}

impl From<ManifestStateV3> for ManifestState {
    fn from(ManifestStateV3 { second, vectors }: ManifestStateV3) -> Self {
        let ManifestStateV2 { first, next_rewritten, erased } = second;
        let ManifestStateV1 { format, store, created_ns, segments, tables, covers, .. } = first;
        let ManifestStateV1 { covers_state, synced, clean, next_table, .. } = first;
        Self {
            format,
            store,
            created_ns,
            segments,
            tables,
            covers,
            covers_state,
            synced,
            clean,
            next_table,
            next_rewritten,
            erased,
            vectors,
            cuts: CutList::default(),
        }
    }
}

impl ManifestState {
    /// An edit in the state's own format. An older format leaves out the fields that it lacks.
    pub fn encode(&self) -> std::result::Result<Vec<u8>, CodecError> {
        let first = (self.format, self.store, self.created_ns, &self.segments, &self.tables, self.covers);
        let first = (first, &self.covers_state, self.synced, &self.clean, self.next_table);
        let second = (&first, self.next_rewritten, self.erased);
        match self.format {
            FORMAT_FIRST => codec::encode(&first),
            FORMAT_SECOND => codec::encode(&second),
            FORMAT_THIRD => codec::encode(&(second, &self.vectors)),
            _ => codec::encode(self),
        }
    }

    /// Reads an edit of any known format.
    pub fn decode(body: &[u8]) -> std::result::Result<Self, CodecError> {
        let third: ManifestStateV3 = match format_of(body) {
            FORMAT_FIRST => ManifestStateV2::from(codec::decode::<ManifestStateV1>(body)?).into(),
            FORMAT_SECOND => codec::decode::<ManifestStateV2>(body)?.into(),
            FORMAT_THIRD => codec::decode(body)?,
            _ => return codec::decode(body),
        };
        Ok(third.into())
    }

    /// Whether the list of segments is plausible: no duplicates, the last one written by the writer, all
    /// others sealed.
    fn has_sound_segment_list(&self) -> bool {
        let mut ids: Vec<SegmentId> = self.segments.iter().map(|entry| entry.id).collect();
        let active = ids.last().is_none_or(|id| !id.is_rewritten());
        ids.sort_unstable();
        let once = ids.windows(2).all(|two| two[0] != two[1]);
        let in_order = self.segments.windows(2).all(|two| two[0].first_seqno <= two[1].first_seqno);
        let next = self.next_rewritten;
        let made = ids.iter().all(|id| !id.is_rewritten() || id.0 < next);
        active && once && in_order && made && SegmentId(next).is_rewritten()
    }

    /// Order of a position in the log; `None` if its segment is not listed.
    pub fn position(&self, place: (SegmentId, u64)) -> Option<(usize, u64)> {
        Some((self.segments.iter().position(|entry| entry.id == place.0)?, place.1))
    }

    /// Whether the fields are consistent: false for bytes that no writer produced. Positions in a segment
    /// have 32 bits, and the footer follows them.
    fn is_sound(&self) -> bool {
        let sealed = self.segments.iter().filter_map(|segment| segment.sealed_bytes);
        let clean = self.clean.iter();
        let places = clean.clone().map(|clean| clean.tail).chain([self.covers.1, self.synced]).chain(sealed);
        let counts = self.tables.iter().flat_map(|table| [table.id, table.bytes]).chain([self.next_table]);
        let counts = counts.chain(self.erased.to_array());
        let files = &self.vectors;
        let counts =
            counts.chain(files.files.iter().flat_map(|file| [file.id, file.bytes, file.count, file.upto.0]));
        let counts = counts.chain([files.upto.0, files.next, self.cuts.earlier]);
        let cuts = &self.cuts.newest;
        let counts = counts.chain(cuts.iter().map(|cut| cut.bytes));
        let places = places.chain(cuts.iter().map(|cut| cut.offset));
        let mut states = clean.map(|clean| &clean.state).chain([&self.covers_state]);
        places.into_iter().all(|at| at <= 2 * u64::from(u32::MAX))
            && counts.into_iter().all(|count| count <= COUNT_MAX)
            && states.all(LogState::is_sound)
            && cuts.len() <= CUTS_MAX
            && self.has_sound_segment_list()
    }

    /// The segment that the writer appends to.
    pub fn active(&self) -> Result<&SegmentEntry> {
        self.segments.last().ok_or_else(|| Error::new(ErrorKind::Damaged, "the manifest lists no segment"))
    }
}

/// A manifest file open for appending edits.
#[derive(Debug)]
pub struct Manifest {
    file: Arc<dyn File>,
    end: u64,
    generation: u64,
    pub state: ManifestState,
}

/// The shared manifest of an open store. The writer edits segments and the close; the index upkeep edits
/// tables.
#[derive(Debug)]
pub struct SharedManifest {
    io: Arc<dyn Io>,
    paths: StorePaths,
    /// Held while the store is open for writing.
    writer_lock: Option<Weak<WriterLock>>,
    inner: Mutex<GuardedManifest, { rank::MANIFEST }>,
}

#[derive(Debug)]
struct GuardedManifest {
    manifest: Manifest,
    /// Earlier generations that may still be read, the oldest first. Each has the bytes of the files that
    /// were last listed in it.
    earlier: Vec<(Arc<dyn File>, u64)>,
    /// Why it is unknown whether the disk holds the last edit.
    in_doubt: Option<String>,
}

/// A failed edit.
#[derive(Debug)]
pub struct EditError {
    pub error: Error,
    /// Whether the manifest on disk is unknown: then nothing may be built on it. If false, the manifest is
    /// unchanged and the edit may be retried.
    pub in_doubt: bool,
}

impl From<EditError> for Error {
    fn from(failed: EditError) -> Self {
        failed.error
    }
}

impl SharedManifest {
    /// `before`: the generation that this manifest replaced.
    pub fn new(
        io: Arc<dyn Io>,
        paths: StorePaths,
        manifest: Manifest,
        before: Option<Arc<dyn File>>,
    ) -> Self {
        let earlier = before.into_iter().map(|file| (file, 0)).collect();
        let inner = Mutex::new(GuardedManifest { manifest, earlier, in_doubt: None });
        Self { io, paths, writer_lock: None, inner }
    }

    /// From now on every edit requires this lock.
    pub fn guarded_by(self, writer_lock: Option<&Arc<WriterLock>>) -> Self {
        Self { writer_lock: writer_lock.map(Arc::downgrade), ..self }
    }

    /// Refuses an edit that another process could make as well. The lock is held until the result is dropped.
    fn check_owner(
        &self,
        inner: &mut GuardedManifest,
    ) -> std::result::Result<Option<Arc<WriterLock>>, EditError> {
        inner.check_trusted()?;
        let Some(writer_lock) = &self.writer_lock else { return Ok(None) };
        let closed = || Error::new(ErrorKind::Unavailable, "the store is closed: open it again");
        let held = writer_lock.upgrade().ok_or_else(|| EditError { error: closed(), in_doubt: false })?;
        held.check_in_place(&*self.io, &self.paths).map_err(|error| {
            inner.in_doubt = Some(error.to_string());
            EditError { error, in_doubt: true }
        })?;
        Ok(Some(held))
    }

    /// Changes the state, writes and syncs it. After an error the state is unchanged.
    pub fn edit(&self, change: impl FnOnce(&mut ManifestState)) -> std::result::Result<(), EditError> {
        let mut inner = lock(&self.inner);
        let _owner = self.check_owner(&mut inner)?;
        let before = inner.manifest.state.clone();
        let (old, generation) = (inner.manifest.file.clone(), inner.manifest.generation);
        change(&mut inner.manifest.state);
        let done = inner.manifest.append_or_renew(&*self.io, &self.paths);
        inner.restore_on_error(before, done)?;
        if inner.manifest.generation != generation {
            inner.earlier.push((old, 0));
            inner.drop_unread_generations();
        }
        Ok(())
    }

    /// As [`SharedManifest::edit`], as a new generation. Readers may still use files that are no longer
    /// listed, `unlisted_bytes` in total. Their lock on the old generation shows that they do.
    pub fn renew(
        &self,
        unlisted_bytes: u64,
        change: impl FnOnce(&mut ManifestState),
    ) -> std::result::Result<(), EditError> {
        let mut inner = lock(&self.inner);
        let _owner = self.check_owner(&mut inner)?;
        let before = inner.manifest.state.clone();
        let old = inner.manifest.file.clone();
        change(&mut inner.manifest.state);
        let done = inner.manifest.renew(&*self.io, &self.paths);
        inner.restore_on_error(before, done)?;
        inner.earlier.push((old, unlisted_bytes));
        Ok(())
    }

    /// Bytes of unlisted files that readers of an earlier generation of this process may still use.
    pub fn pending_bytes(&self) -> u64 {
        let mut inner = lock(&self.inner);
        inner.drop_unread_generations();
        inner.earlier.iter().map(|(_, bytes)| bytes).sum()
    }

    /// The current content of the manifest.
    pub fn state(&self) -> ManifestState {
        lock(&self.inner).manifest.state.clone()
    }
}

impl GuardedManifest {
    fn check_trusted(&self) -> std::result::Result<(), EditError> {
        let Some(why) = &self.in_doubt else { return Ok(()) };
        let message = format!("the manifest cannot be trusted since this failed: {why}; reopen the store");
        Err(EditError { error: Error::new(ErrorKind::Poisoned, message), in_doubt: true })
    }

    /// Forgets generations without readers; a reader never opens an old generation again. The bytes of a
    /// forgotten one are added to the generation before it that is still read, because its readers have those
    /// files open too.
    fn drop_unread_generations(&mut self) {
        let mut read: Vec<(Arc<dyn File>, u64)> = Vec::new();
        for (file, bytes) in self.earlier.drain(..) {
            // A generation whose lock cannot be queried counts as read.
            if !matches!(file.try_lock(LockKind::Exclusive), Ok(true)) {
                read.push((file, bytes));
            } else if let Some((_, sum)) = read.last_mut() {
                *sum = sum.saturating_add(bytes);
            }
        }
        self.earlier = read;
    }

    /// Restores the old state after an error.
    fn restore_on_error(
        &mut self,
        before: ManifestState,
        done: std::result::Result<(), EditError>,
    ) -> std::result::Result<(), EditError> {
        if let Err(failed) = &done {
            self.manifest.state = before;
            if failed.in_doubt {
                self.in_doubt = Some(failed.error.to_string());
            }
        }
        done
    }
}

impl Manifest {
    /// Starts a new generation with `state` and makes it the current one.
    pub fn create(io: &dyn Io, paths: &StorePaths, generation: u64, state: ManifestState) -> Result<Self> {
        let manifest = Self::prepare(io, paths, generation, state)?;
        manifest.make_current(io, paths)?;
        Ok(manifest)
    }

    /// Writes and syncs a new generation, and the file that will become CURRENT.
    fn prepare(io: &dyn Io, paths: &StorePaths, generation: u64, state: ManifestState) -> Result<Self> {
        let path = paths.manifest(generation);
        if io.stat(&path)?.is_some() {
            io.remove(&path)?;
        }
        let file = io.open(&path, OpenMode::CreateNew)?;
        file.write_at(&[IoSlice::new(&file_header(MAGIC, state.store))], 0)?;
        let mut manifest = Self { file, end: HEADER_BYTES, generation, state };
        manifest.append().map_err(Error::from)?;
        io.sync_dir(paths.root())?;
        let line = current_line(generation);
        let next = paths.current_next();
        if io.stat(&next)?.is_some() {
            io.remove(&next)?;
        }
        let current = io.open(&next, OpenMode::CreateNew)?;
        current.write_at(&[IoSlice::new(line.as_bytes())], 0)?;
        current.sync()?;
        Ok(manifest)
    }

    fn make_current(&self, io: &dyn Io, paths: &StorePaths) -> Result<()> {
        io.rename(&paths.current_next(), &paths.current())?;
        Ok(io.sync_dir(paths.root())?)
    }

    /// The same manifest, pretending this length.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub fn with_end(self, end: u64) -> Self {
        Self { end, ..self }
    }

    /// Writes and syncs the current state, as a new generation if this one has grown too long.
    fn append_or_renew(&mut self, io: &dyn Io, paths: &StorePaths) -> std::result::Result<(), EditError> {
        if self.end < GENERATION_BYTES_MAX {
            return self.append();
        }
        self.renew(io, paths)
    }

    /// Continues as a new generation.
    fn renew(&mut self, io: &dyn Io, paths: &StorePaths) -> std::result::Result<(), EditError> {
        let old = self.generation;
        // A prepared generation is unreferenced; the next opening or attempt removes it.
        let renewed = Self::prepare(io, paths, old + 1, self.state.clone())
            .map_err(|error| EditError { error, in_doubt: false })?;
        // A failed replacement of CURRENT leaves unknown which generation the next opening finds.
        let in_doubt = |error| EditError { error, in_doubt: true };
        renewed.make_current(io, paths).map_err(in_doubt)?;
        *self = renewed;
        io.remove(&paths.manifest(old)).map_err(|e| in_doubt(e.into()))
    }

    /// Writes and syncs the current state.
    pub fn append(&mut self) -> std::result::Result<(), EditError> {
        // A partial write is overwritten by the next edit and never becomes valid.
        let before = |error| EditError { error, in_doubt: false };
        let body = self.state.encode().map_err(|e| before(Error::bug(e.to_string())))?;
        let edit = edit(&self.state.store, self.end, &body);
        self.file.write_at(&[IoSlice::new(&edit)], self.end).map_err(|e| before(e.into()))?;
        self.file.sync().map_err(|e| EditError { error: e.into(), in_doubt: true })?;
        self.end += edit.len() as u64;
        Ok(())
    }
}

/// The first bytes of a manifest, and of a file of the same form.
pub fn file_header(magic: [u8; 8], store: StoreId) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER_LEN);
    header.extend_from_slice(&magic);
    header.extend_from_slice(&store.0);
    header.extend_from_slice(&crc32fast::hash(&header).to_le_bytes());
    header
}

/// An edit that stands at `offset`.
pub fn edit(store: &StoreId, offset: u64, body: &[u8]) -> Vec<u8> {
    let mut edit = Vec::with_capacity(body.len() + 8);
    edit.extend_from_slice(&[0; 4]);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "`codec::encode` refuses over HEADER_BYTES_MAX bytes"
    )]
    let len = body.len() as u32;
    edit.extend_from_slice(&len.to_le_bytes());
    edit.extend_from_slice(body);
    let crc = edit_crc(store, offset, &edit[4..]);
    edit[..4].copy_from_slice(&crc.to_le_bytes());
    edit
}

fn edit_crc(store: &StoreId, offset: u64, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&store.0);
    hasher.update(&offset.to_le_bytes());
    hasher.update(bytes);
    hasher.finalize()
}

/// A manifest that was read.
#[derive(Debug)]
pub struct LoadedManifest {
    pub generation: u64,
    pub state: ManifestState,
    /// The open file, on which readers hold a shared lock.
    pub file: Arc<dyn File>,
}

/// Makes a draft a store, durably. Its writer has closed it.
pub fn publish_draft(io: &dyn Io, root: &Path) -> Result<()> {
    io.rename(&StorePaths::draft(root).current(), &StorePaths::new(root).current())?;
    Ok(io.sync_dir(root)?)
}

/// Reads the current manifest; `None` where the directory has none.
///
/// # Errors
/// `Damaged` if CURRENT or the manifest differs from what was written; `Unsupported` for a newer format.
pub fn load(io: &dyn Io, paths: &StorePaths) -> Result<Option<LoadedManifest>> {
    let current_path = paths.current();
    if io.stat(&current_path)?.is_none() {
        return Ok(None);
    }
    let current = io.open(&current_path, OpenMode::Read)?;
    let line = read_whole(&*current, &current_path, 256)?;
    let generation = parse_current(&line).ok_or_else(|| {
        Error::damaged(&current_path, 0, "it does not name a manifest (its checksum fails)")
    })?;
    load_generation(io, paths, generation).map(Some)
}

/// Reads the manifest of a generation, current or not.
///
/// # Errors
/// As [`load`].
pub fn load_generation(io: &dyn Io, paths: &StorePaths, generation: u64) -> Result<LoadedManifest> {
    let path = paths.manifest(generation);
    let file = io.open(&path, OpenMode::Read).map_err(|e| {
        Error::with_source(
            ErrorKind::Damaged,
            format!("CURRENT names {}, which cannot be opened: {}", path.display(), e.source),
            e,
        )
    })?;
    let bytes = read_whole(&*file, &path, MANIFEST_BYTES_MAX)?;
    let state = parse(&bytes, &path)?;
    Ok(LoadedManifest { generation, state, file })
}

/// The content of CURRENT that names a generation.
pub fn current_line(generation: u64) -> String {
    let name = manifest_name(generation);
    format!("{name} {:08x}\n", crc32fast::hash(name.as_bytes()))
}

pub fn parse_current(line: &[u8]) -> Option<u64> {
    let (name, crc) = std::str::from_utf8(line).ok()?.strip_suffix('\n')?.split_once(' ')?;
    (format!("{:08x}", crc32fast::hash(name.as_bytes())) == crc).then(|| parse_manifest(name))?
}

fn parse(bytes: &[u8], path: &Path) -> Result<ManifestState> {
    let damaged = |offset: u64, what: String| Error::damaged(path, offset, what);
    let mut r = ByteReader::new(bytes, "manifest");
    let header = r.take(HEADER_LEN - 4).map_err(|e| damaged(0, e.to_string()))?;
    let crc = r.u32().map_err(|e| damaged(0, e.to_string()))?;
    if header[..8] != MAGIC || crc32fast::hash(header) != crc {
        return Err(damaged(0, "its header's checksum does not match".into()));
    }
    let mut store = StoreId::default();
    store.0.copy_from_slice(&header[8..]);
    let mut end = HEADER_BYTES;
    let mut last: Option<ManifestState> = None;
    // A later edit is written only after the previous one is durable, so only the last edit can be torn.
    while let Some(body) = whole_edit_at(bytes, end, &store) {
        check_format(body, path)?;
        let state = ManifestState::decode(body).map_err(|e| damaged(end, e.to_string()))?;
        if !state.is_sound() {
            return Err(damaged(end, "its edit contradicts itself".into()));
        }
        end += EDIT_HEADER_BYTES + body.len() as u64;
        last = Some(state);
    }
    if let Some(next) = later_edit(bytes, end, &store) {
        return Err(damaged(end, format!("an edit is not whole, yet another one follows at byte {next}")));
    }
    let state = last.ok_or_else(|| damaged(end, "it holds no whole edit".into()))?;
    Ok(state)
}

/// Every edit starts with its format, so an edit of an unknown shape still names its format.
fn check_format(body: &[u8], path: &Path) -> Result<()> {
    let format = format_of(body);
    match format {
        0 => Err(Error::damaged(path, HEADER_BYTES, "its edit has format 0, which no annals wrote")),
        FORMAT_FIRST..=FORMAT => Ok(()),
        _ => Err(Error::newer(path, "manifest", u64::from(format), u64::from(FORMAT))),
    }
}

fn format_of(body: &[u8]) -> u16 {
    body.first_chunk::<2>().map_or(0, |bytes| u16::from_le_bytes(*bytes))
}

/// Offset of a whole edit after a broken one. Arbitrary bytes may look like many edits: the search ends after
/// it has hashed 64 times the file's size.
fn later_edit(bytes: &[u8], end: u64, store: &StoreId) -> Option<u64> {
    let mut budget = 64 * (bytes.len() as u64 + 1);
    for at in end + 1..bytes.len() as u64 {
        let len =
            bytes.get(codec::index(at) + 4..)?.first_chunk::<4>().map(|len| u32::from_le_bytes(*len))?;
        if at + EDIT_HEADER_BYTES + u64::from(len) > bytes.len() as u64 {
            continue;
        }
        budget = budget.checked_sub(u64::from(len))?;
        if whole_edit_at(bytes, at, store).is_some() {
            return Some(at);
        }
    }
    None
}

/// The body of the whole edit at an offset, if there is one.
pub fn whole_edit_at<'a>(bytes: &'a [u8], at: u64, store: &StoreId) -> Option<&'a [u8]> {
    let rest = bytes.get(usize::try_from(at).ok()?..)?;
    let mut r = ByteReader::new(rest, "edit");
    let crc = r.u32().ok()?;
    let len = r.u32().ok()? as usize;
    let body = r.take(len).ok().filter(|b| !b.is_empty())?;
    (edit_crc(store, at, &rest[4..8 + len]) == crc).then_some(body)
}

/// Reads a whole small file.
pub fn read_whole(file: &dyn File, path: &Path, limit: u64) -> Result<Vec<u8>> {
    let len = file.len()?;
    if len > limit {
        return Err(Error::damaged(path, limit, format!("it has {len} bytes, over the limit of {limit}")));
    }
    #[expect(clippy::cast_possible_truncation, reason = "at most `limit`, which callers can allocate")]
    let mut bytes = vec![0; len as usize];
    let got = file.read_at(&mut bytes, 0)?;
    bytes.truncate(got);
    Ok(bytes)
}
