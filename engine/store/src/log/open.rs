//! Opens a log: creates it, takes the lock, finds the end, and repairs what a crash left.
//!
//! Bytes after the last whole batch are *torn* if they stand at or after the greatest position known to be
//! synced. A writer cuts them, notes the cut in the manifest, seals the segment and starts the next: commits of
//! the last moment may have been among them. Before that position they are *damage*: reported, never cut.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{SegmentId, Seqno, StoreId};
use crate::io::{File, Io, LockKind, OpenMode, ReadMode};
use crate::log::cursor::{LogCursor, next_seqno};
use crate::log::layout::{LogState, SEGMENT_HEADER_BYTES, SEGMENT_HEADER_LEN, Salt, SegmentHeader};
use crate::log::manifest::{self, LogCut, Manifest, ManifestState, SegmentEntry, SharedManifest};
use crate::log::paths::{DRAFT, StorePaths, parse_manifest, parse_segment};
use crate::log::queue::WriteQueue;
use crate::log::room::LogRoom;
use crate::log::scan::{ScanEnd, footer_at_end};
use crate::log::segments::{Segment, Segments, lock};
use crate::log::sequence::JobSequence;
use crate::log::synced::{self, FoundNote, NoteSchedule, SyncedFile};
use crate::log::totals::LogTotals;
use crate::log::writer::{LogSink, LogWriter, create_segment, seal};
use crate::log::writer_lock::WriterLock;
use crate::schema::RecordSchema;
use crate::sync::channel::Receiver;
use crate::sync::{Mutex, rank};

/// Sizes that a store is opened with.
#[derive(Debug, Clone, Copy)]
pub struct LogSizes {
    pub segment_bytes_max: u64,
    pub queue_bytes_max: usize,
    pub zero_ahead_bytes: u64,
    pub reserve_bytes: u64,
    pub read_mode: ReadMode,
}

/// A position in the log whose bytes differ from what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub file: std::path::PathBuf,
    /// Byte offset in the file.
    pub offset: u64,
    /// What is wrong there.
    pub what: String,
}

impl Damage {
    #[doc(hidden)]
    pub fn error(&self) -> Error {
        Error::damaged(&self.file, self.offset, &self.what)
    }
}

/// A log with its files opened and locked; its unsealed end is not read yet.
#[derive(Debug)]
pub struct FoundLog {
    pub state: ManifestState,
    /// What `SYNCED` says.
    pub note: FoundNote,
    generation: u64,
    /// A writer holds it as long as it lives.
    writer_lock: Option<WriterLock>,
    /// A reader holds it shared.
    generation_lock: Option<Arc<dyn File>>,
    pub segments: Arc<Segments>,
    manifest: Arc<dyn File>,
}

/// Opens the directory of a store; with `create`, makes a missing one. Every file of the store is reached
/// through the result, without following a link.
///
/// # Errors
/// `NotFound` if there is no such directory; `Invalid` if it is a file; `Unavailable`.
pub fn enter(io: &Arc<dyn Io>, paths: &StorePaths, create: bool) -> Result<Arc<dyn Io>> {
    let root = paths.root();
    match io.stat(root)? {
        Some(stat) if !stat.is_dir => {
            return Err(Error::invalid(format!("{} is a file, not a directory", root.display())));
        }
        None if !create => return Err(no_store(root)),
        None => io.create_dir_all(root)?,
        Some(_) => {}
    }
    Ok(io.beneath(root)?)
}

/// Finds the store in a directory that was entered. A writer creates one in an empty directory.
///
/// # Errors
/// `NotFound` if there is no store, `Locked` with the holder's pid, `Damaged`, `Unsupported` for files of a newer
/// annals, `Invalid` for a directory with other files, `Unavailable`.
pub fn find(
    io: &dyn Io,
    paths: &StorePaths,
    write: bool,
    create: bool,
    read_mode: ReadMode,
) -> Result<FoundLog> {
    if write {
        return find_once(io, paths, write, create, read_mode);
    }
    // A writer may change segments or generations while a reader opens them. An error counts only if the
    // manifest did not change meanwhile.
    let mut before = manifest_stamp(io, paths);
    loop {
        let found = find_once(io, paths, write, create, read_mode);
        let after = manifest_stamp(io, paths);
        if found.is_ok() || before == after {
            return found;
        }
        before = after;
    }
}

/// A value that changes with every edit of the manifest.
pub fn manifest_stamp(io: &dyn Io, paths: &StorePaths) -> Option<(Vec<u8>, u64)> {
    let current = io.open(&paths.current(), OpenMode::Read).ok()?;
    let line = manifest::read_whole(&*current, &paths.current(), 256).ok()?;
    let len =
        manifest::parse_current(&line).and_then(|generation| io.stat(&paths.manifest(generation)).ok()?);
    Some((line, len.map_or(0, |stat| stat.len)))
}

fn find_once(
    io: &dyn Io,
    paths: &StorePaths,
    write: bool,
    create: bool,
    read_mode: ReadMode,
) -> Result<FoundLog> {
    let root = paths.root();
    let writer_lock = if write { Some(WriterLock::take(io, paths, create)?) } else { None };
    // Read before the manifest and the log: then the log that a reader sees beside a writer is as long as the
    // note says.
    let mut noted = synced::read(io, paths)?;
    let loaded = match manifest::load(io, paths)? {
        Some(loaded) => loaded,
        None if io.stat(&paths.root().join(DRAFT))?.is_some() => return Err(unfinished(root)),
        None if write && create => {
            refuse_lost_current(io, paths)?;
            create_store(io, paths)?;
            noted = synced::read(io, paths)?;
            manifest::load(io, paths)?.ok_or_else(|| Error::bug("a new store has no manifest"))?
        }
        None => {
            refuse_lost_current(io, paths)?;
            return Err(no_store(root));
        }
    };
    let note = synced::newest(noted.as_deref(), loaded.state.store, paths)?;
    refuse_later_note(paths, &loaded.state, &note)?;
    if write {
        // The directory holds a cache: deleting it with its content loses nothing.
        io.create_dir_all(&paths.tables())?;
    }
    let generation_lock =
        if write { None } else { loaded.file.try_lock(LockKind::Shared)?.then(|| loaded.file.clone()) };
    let segments = Arc::new(Segments::default());
    for entry in &loaded.state.segments {
        segments.insert(open_segment(io, paths, &loaded.state, entry, write, read_mode)?);
    }
    refuse_newer_segments(io, paths, &loaded.state)?;
    Ok(FoundLog {
        state: loaded.state,
        note,
        generation: loaded.generation,
        writer_lock,
        generation_lock,
        segments,
        manifest: loaded.file,
    })
}

/// A part of the errors for a manifest that is older than the store's other files.
pub const LAST_EDITS_LOST: &str = "the manifest's last edits are lost";

/// A note names a segment only after the manifest lists it; so if it does not, the manifest lost its last edit.
fn refuse_later_note(paths: &StorePaths, state: &ManifestState, found: &FoundNote) -> Result<()> {
    let active = state.active()?.id;
    match &found.note {
        Some(note) if note.segment > active => Err(Error::damaged(
            &paths.root().join("CURRENT"),
            0,
            format!(
                "its manifest ends with segment {}, and SYNCED knows segment {}: {LAST_EDITS_LOST}",
                active.0, note.segment.0
            ),
        )),
        _ => Ok(()),
    }
}

/// The end of the error for a directory that an interrupted repair left.
const UNFINISHED: &str = "holds an unfinished repair, not a store: remove the directory and repair again";

/// The error for a directory that an interrupted repair left.
pub fn unfinished(root: &Path) -> Error {
    Error::not_found(format!("{} {UNFINISHED}", root.display()))
}

/// Whether an opening failed because an interrupted repair left the directory.
#[must_use]
pub fn is_unfinished_repair(error: &Error) -> bool {
    error.kind() == ErrorKind::NotFound && error.to_string().ends_with(UNFINISHED)
}

pub(super) fn no_store(root: &Path) -> Error {
    Error::not_found(format!("there is no annals store in {}", root.display()))
}

fn open_segment(
    io: &dyn Io,
    paths: &StorePaths,
    state: &ManifestState,
    entry: &SegmentEntry,
    write: bool,
    read_mode: ReadMode,
) -> Result<Arc<Segment>> {
    let how = if write && entry.sealed_bytes.is_none() { OpenMode::Write } else { OpenMode::Read };
    let segment = Segment::open(io, paths, state.store, entry.id, how)?;
    if let Some(expected) = entry.sealed_bytes {
        let found = segment.file.len()?;
        if found != expected {
            let what = format!("it has {found} bytes, and had {expected} when it was sealed");
            return Err(Error::damaged(&segment.path, found.min(expected), what));
        }
        segment.mark_sealed(read_mode);
    }
    Ok(Arc::new(segment))
}

/// Refuses a manifest that is older than the log: one that lost its last edits, or that came with an older copy of
/// the store. Its next writer would remove the segments that it does not list.
///
/// What a crash leaves is older than the manifest: the next active segment without a batch, and files of a
/// compaction, with records of before the active segment.
fn refuse_newer_segments(io: &dyn Io, paths: &StorePaths, state: &ManifestState) -> Result<()> {
    let active = state.active()?;
    for id in io.list(&paths.segments())?.iter().filter_map(|name| parse_segment(name)) {
        if state.segments.iter().any(|entry| entry.id == id) {
            continue;
        }
        let path = paths.segment(id);
        let file = match io.open(&path, OpenMode::Read) {
            Ok(file) => file,
            // A writer has removed it meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error.into()),
        };
        let end = newest_record(file, Salt::new(state.store, id), state.store, id)?;
        if let Some(end) = end.filter(|end| *end > active.first_seqno) {
            let what = format!(
                "it holds record {}, and the manifest does not list it: {LAST_EDITS_LOST}, or an older copy was put over this store",
                end.0.saturating_sub(1)
            );
            return Err(Error::damaged(&path, 0, what));
        }
    }
    Ok(())
}

/// The seqno after the records of a segment file, as far as its footer or its first batch says; `None` if it holds no
/// batch of this store.
fn newest_record(file: Arc<dyn File>, salt: Salt, store: StoreId, id: SegmentId) -> Result<Option<Seqno>> {
    let mut header = [0; SEGMENT_HEADER_LEN];
    let got = file.read_at(&mut header, 0)?;
    let Ok(header) = SegmentHeader::decode(&header[..got], store, id) else { return Ok(None) };
    let len = file.len()?;
    let expected = LogState { next_seqno: header.first_seqno, chain: header.chain, ..LogState::default() };
    let mut cursor = LogCursor::new(file.clone(), salt, SEGMENT_HEADER_BYTES, len);
    let Ok(first) = cursor.next(&expected)? else { return Ok(None) };
    let first = next_seqno(&first, salt).ok();
    Ok(footer_at_end(&*file, salt, len)?.ok().map(|footer| footer.state.next_seqno).or(first))
}

/// Without CURRENT a directory is no store, unless it has segments that hold batches. An interrupted creation
/// leaves at most one segment, without batches.
fn refuse_lost_current(io: &dyn Io, paths: &StorePaths) -> Result<()> {
    let dir = paths.segments();
    let names = if io.stat(&dir)?.is_some() { io.list(&dir)? } else { Vec::new() };
    let (mut segments, mut hold_batches) = (0, false);
    for id in names.iter().filter_map(|name| parse_segment(name)) {
        let len = io.stat(&paths.segment(id))?.map_or(0, |stat| stat.len);
        segments += 1;
        hold_batches |= id.0 > 1 || len > SEGMENT_HEADER_BYTES;
    }
    if !hold_batches {
        return Ok(());
    }
    let root = paths.root().display();
    let manifests = io.list(paths.root())?.iter().filter(|name| parse_manifest(name).is_some()).count();
    let what = match manifests {
        0 => format!(
            "{root} has {segments} log segments, and neither CURRENT nor a manifest: an interrupted backup, which you can make again, or a store that has lost them; `annals repair --to NEWDIR` saves what is there"
        ),
        _ => format!(
            "{root} has lost its file CURRENT, which names the manifest: {manifests} manifests and {segments} log segments are there, but no CURRENT; `annals doctor` prints the command that mends it"
        ),
    };
    Err(Error::new(ErrorKind::Damaged, what))
}

/// Creates an empty store. Replaces leftovers of an interrupted attempt.
fn create_store(io: &dyn Io, paths: &StorePaths) -> Result<()> {
    io.create_dir_all(&paths.segments())?;
    io.create_dir_all(&paths.tables())?;
    let mut uuid = [0; 16];
    io.random(&mut uuid)?;
    let store = StoreId(uuid);
    let base = LogState::empty();
    let first = SegmentId(1);
    create_segment(io, paths, &store, first, &base)?;
    let state = ManifestState {
        format: manifest::FORMAT,
        store,
        created_ns: io.now_ns(),
        segments: vec![SegmentEntry { id: first, first_seqno: Seqno(1), sealed_bytes: None }],
        tables: Vec::new(),
        covers: (first, SEGMENT_HEADER_BYTES),
        covers_state: base,
        synced: SEGMENT_HEADER_BYTES,
        clean: None,
        next_table: 1,
        next_rewritten: SegmentId::REWRITTEN_MIN,
        erased: LogTotals::default(),
        vectors: manifest::VectorList::default(),
        cuts: manifest::CutList::default(),
    };
    SyncedFile::open(io, paths, store, &FoundNote::default(), (first, state.synced), &state.covers_state)?;
    Manifest::create(io, paths, 1, state)?;
    Ok(())
}

/// A log open for writing.
#[derive(Debug)]
pub struct OpenLog {
    pub queue: Arc<WriteQueue>,
    pub manifest: Arc<SharedManifest>,
    sink: Arc<dyn LogSink>,
    ended: Receiver<Result<()>>,
    thread: Mutex<Option<crate::sync::JoinHandle<()>>, { rank::WRITER_THREAD }>,
    /// Released by the close.
    lock: Mutex<Option<Arc<WriterLock>>, { rank::LOCK_FILE }>,
}

/// Starts writing after `end`: cuts torn bytes, starts a new manifest generation and the writer thread.
///
/// # Errors
/// `Damaged` if acknowledged bytes differ from what was written; `Unavailable`.
pub fn start(
    io: &Arc<dyn Io>,
    paths: &StorePaths,
    found: FoundLog,
    end: ScanEnd,
    sizes: LogSizes,
    sink: Arc<dyn LogSink>,
    schema: Arc<dyn RecordSchema>,
) -> Result<OpenLog> {
    if let Some(damage) = &end.damage {
        return Err(damage.error());
    }
    let mut active = found.segments.get(end.segment)?;
    if let Some(what) = changed_since_close(&found.state, &end) {
        return Err(Error::damaged(&active.path, end.tail, what));
    }
    let mut state = found.state;
    let mut tail = end.tail;
    let was_clean = state.clean.as_ref().is_some_and(|clean| !end.is_torn && clean.tail == tail);
    let is_new = tail == SEGMENT_HEADER_BYTES && active.file.len()? == tail;
    // The layer above states what compaction erased from an older store, and then sets the current format.
    let is_unstated =
        state.format < manifest::FORMAT && state.segments.iter().any(|entry| entry.id.is_rewritten());
    state.format = if is_unstated { manifest::FORMAT_UNSTATED } else { manifest::FORMAT };
    state.clean = None;
    let mut generation = found.generation;
    if let Some(cut) = end.torn() {
        // Noted before the bytes are cut: a crash in between must not hide the cut.
        state.cuts.note(LogCut { until_ns: io.now_ns(), ..cut });
        generation += 1;
        Manifest::create(&**io, paths, generation, state.clone())?;
    }
    state.synced = tail;
    if !was_clean && !is_new {
        // The cut must be durable before anything builds on it.
        let sealed_bytes = seal(&active, tail, &end.state)?;
        let next = SegmentId(active.id.0 + 1);
        let segment = Arc::new(create_segment(&**io, paths, &state.store, next, &end.state)?);
        if let Some(entry) = state.segments.last_mut() {
            entry.sealed_bytes = Some(sealed_bytes);
        }
        state.segments.push(SegmentEntry { id: next, first_seqno: end.state.next_seqno, sealed_bytes: None });
        state.synced = SEGMENT_HEADER_BYTES;
        active.mark_sealed(sizes.read_mode);
        found.segments.insert(segment.clone());
        active = segment;
        tail = SEGMENT_HEADER_BYTES;
    }
    let store = state.store;
    // All bytes before `end` are durable now: after a clean close they were, else the seal has synced them.
    let notes = SyncedFile::open(&**io, paths, store, &found.note, (end.segment, end.tail), &end.state)?;
    generation += 1;
    let manifest = Manifest::create(&**io, paths, generation, state)?;
    remove_old_manifests(&**io, paths, generation)?;
    remove_unlisted(&**io, paths, &manifest.state)?;
    let writer_lock = found.writer_lock.map(Arc::new);
    let manifest = SharedManifest::new(io.clone(), paths.clone(), manifest, Some(found.manifest));
    let manifest = Arc::new(manifest.guarded_by(writer_lock.as_ref()));
    let queue = Arc::new(WriteQueue::new(
        store,
        active.id,
        tail,
        end.state.next_seqno,
        sizes.queue_bytes_max,
        sizes.segment_bytes_max,
        schema,
    ));
    let steps = (sizes.zero_ahead_bytes, sizes.reserve_bytes);
    queue.set_room(LogRoom::new(io, paths, steps, (active.id, active.file.clone(), tail)));
    let first_seqno = end.state.next_seqno;
    let writer = LogWriter {
        io: io.clone(),
        paths: paths.clone(),
        queue: queue.clone(),
        segments: found.segments,
        sink: sink.clone(),
        manifest: manifest.clone(),
        store,
        active,
        state: end.state,
        tail,
        synced: tail,
        notes,
        note_schedule: NoteSchedule::new(tail),
        started: tail,
        zeroed: tail,
        zero_ahead_bytes: sizes.zero_ahead_bytes,
        read_mode: sizes.read_mode,
        sequence: JobSequence::new(first_seqno),
        arrived: VecDeque::new(),
        has_noted_gap: false,
    };
    let (ended_in, ended) = crate::sync::channel::bounded(1);
    let thread = io.spawn("annals-writer", Box::new(move || writer.run(&ended_in)))?;
    Ok(OpenLog {
        queue,
        manifest,
        sink,
        ended,
        thread: Mutex::new(Some(thread)),
        lock: Mutex::new(writer_lock),
    })
}

/// What is wrong with a log that goes on after its clean close, although no process has opened it for writing since:
/// each opening begins another generation of the manifest. `None` for other logs.
pub fn changed_since_close(state: &ManifestState, end: &ScanEnd) -> Option<String> {
    let (clean, torn) = (state.clean.as_ref()?, end.torn()?);
    Some(format!(
        "{} bytes follow the end that the log had when the store was closed ({}): the file is that of another copy, or was changed",
        torn.bytes, clean.tail
    ))
}

/// Removes segment files that a compaction wrote or replaced before a crash: all unlisted ones. Keeps
/// segments that the writer may have created after the last listed one.
pub fn remove_unlisted(io: &dyn Io, paths: &StorePaths, state: &ManifestState) -> Result<()> {
    let active = state.active()?.id;
    for name in io.list(&paths.segments())? {
        let Some(id) = parse_segment(&name) else { continue };
        let may_be_the_writers = id > active && id.0 < SegmentId::REWRITTEN_MIN;
        if !may_be_the_writers && state.segments.iter().all(|entry| entry.id != id) {
            io.remove(&paths.segment(id))?;
        }
    }
    Ok(())
}

fn remove_old_manifests(io: &dyn Io, paths: &StorePaths, current: u64) -> Result<()> {
    for name in io.list(paths.root())? {
        if let Some(generation) = parse_manifest(&name).filter(|generation| *generation != current) {
            io.remove(&paths.manifest(generation))?;
        }
    }
    Ok(())
}

impl OpenLog {
    /// Writes and syncs everything queued and closes cleanly. A second call does nothing.
    pub fn close(&self) -> Result<()> {
        let Some(thread) = lock(&self.thread).take() else { return Ok(()) };
        self.queue.close();
        let ended = self.ended.recv();
        let joined = thread.join();
        // The lock is released only after nothing of this store accesses a file any more.
        self.sink.stop();
        drop(lock(&self.lock).take());
        match (ended, joined) {
            (Ok(done), Ok(())) => done,
            _ => Err(Error::bug("the writer thread panicked")),
        }
    }
}

impl FoundLog {
    /// Whether a note must be there and is not: the store was not closed cleanly, and its last commits stand
    /// unprotected.
    pub fn is_note_lost(&self) -> bool {
        self.state.format >= synced::FIRST_STORE_FORMAT
            && self.state.clean.is_none()
            && self.note.note.is_none()
    }

    /// A reader's lock on this generation; the result holds it while it lives.
    pub fn into_reader_lock(self) -> Option<Arc<dyn File>> {
        self.generation_lock
    }
}
