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
use crate::log::cursor::{LogCursor, advance_state, next_seqno};
use crate::log::joined::LogBatch;
use crate::log::layout::{
    LogState, SEGMENT_HEADER_BYTES, SEGMENT_HEADER_LEN, Salt, SegmentFooter, SegmentHeader,
};
use crate::log::manifest::{self, LogCut, Manifest, ManifestState, SegmentEntry, SharedManifest};
use crate::log::paths::{DRAFT, StorePaths, parse_manifest, parse_segment};
use crate::log::queue::WriteQueue;
use crate::log::room::LogRoom;
use crate::log::segments::{Segment, Segments, lock};
use crate::log::sequence::JobSequence;
use crate::log::synced::{self, FoundNote, NoteSchedule, SyncedFile, SyncedNote};
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

/// The end of the log that a scan found.
#[derive(Debug, Clone)]
pub struct ScanEnd {
    pub segment: SegmentId,
    pub tail: u64,
    pub state: LogState,
    /// Whether bytes after the tail of the active segment are not zeros, or its length differs from the clean
    /// close.
    pub is_torn: bool,
    /// Bytes after the tail, up to the last that is not zero. 0 if they are the footer of a segment that was
    /// being sealed.
    pub torn_bytes: u64,
    /// Everything that was acknowledged before this time stands before the tail.
    pub certain_until_ns: u64,
    pub damage: Option<Damage>,
}

impl ScanEnd {
    /// The bytes that the next opening for writing cuts, if there are any.
    pub fn torn(&self) -> Option<LogCut> {
        (self.torn_bytes > 0 && self.damage.is_none()).then_some(LogCut {
            segment: self.segment,
            offset: self.tail,
            bytes: self.torn_bytes,
            from_ns: self.certain_until_ns,
            until_ns: 0,
        })
    }
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
            // Without a manifest it is a backup that was interrupted.
            if io.list(root)?.iter().any(|name| parse_manifest(name).is_some()) {
                refuse_lost_current(io, paths)?;
            }
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
    refuse_stray_segment(io, paths, &loaded.state)?;
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

/// A note names a segment only after the manifest lists it; so if it does not, the manifest lost its last edit.
fn refuse_later_note(paths: &StorePaths, state: &ManifestState, found: &FoundNote) -> Result<()> {
    let active = state.active()?.id;
    match &found.note {
        Some(note) if note.segment > active => Err(Error::damaged(
            &paths.root().join("CURRENT"),
            0,
            format!(
                "its manifest ends with segment {}, and SYNCED knows segment {}: the manifest's last edits are lost",
                active.0, note.segment.0
            ),
        )),
        _ => Ok(()),
    }
}

/// The error for a directory that an interrupted repair left.
pub fn unfinished(root: &Path) -> Error {
    Error::not_found(format!(
        "{} holds an unfinished repair, not a store: remove the directory and repair again",
        root.display()
    ))
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

/// An unlisted segment after the last listed one is left over from a crash during its creation, unless it
/// holds batches. Batches are written only after the manifest lists the segment; so then the manifest lost
/// its last edit.
fn refuse_stray_segment(io: &dyn Io, paths: &StorePaths, state: &ManifestState) -> Result<()> {
    let next = SegmentId(state.active()?.id.0 + 1);
    let path = paths.segment(next);
    if io.stat(&path)?.is_none() {
        return Ok(());
    }
    let file = io.open(&path, OpenMode::Read)?;
    let salt = Salt::new(state.store, next);
    let mut header = [0; SEGMENT_HEADER_LEN];
    let got = file.read_at(&mut header, 0)?;
    let Ok(header) = SegmentHeader::decode(&header[..got], state.store, next) else { return Ok(()) };
    let expected = LogState { next_seqno: header.first_seqno, chain: header.chain, ..LogState::default() };
    let end = file.len()?;
    let mut cursor = LogCursor::new(file, salt, SEGMENT_HEADER_BYTES, end);
    match cursor.next(&expected)? {
        Ok(_) => Err(Error::damaged(
            &path,
            0,
            "it holds batches, but the manifest does not list it: the manifest's last edit is lost",
        )),
        Err(_) => Ok(()),
    }
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
    let manifests = io.list(paths.root())?.iter().filter(|name| parse_manifest(name).is_some()).count();
    Err(Error::new(
        ErrorKind::Damaged,
        format!(
            "{} has lost its file CURRENT, which names the manifest: {manifests} manifests and {segments} log segments are there, but no CURRENT; `annals doctor` prints the command that mends it",
            paths.root().display()
        ),
    ))
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

/// Reads the log from `from`, where its state is `state`, to its end. Calls `visit` for each batch.
pub fn scan(
    schema: &dyn RecordSchema,
    found: &FoundLog,
    from: (SegmentId, u64),
    state: LogState,
    visit: &mut dyn FnMut(&LogBatch<'_>, &Segment) -> Result<()>,
) -> Result<ScanEnd> {
    scan_states(schema, found, from, state, &mut |batch, segment, _| visit(batch, segment))
}

/// As [`scan`]; `visit` also gets the log's state at the batch's end. `from` may be the end of a sealed
/// segment.
pub fn scan_states(
    schema: &dyn RecordSchema,
    found: &FoundLog,
    from: (SegmentId, u64),
    mut state: LogState,
    visit: &mut dyn FnMut(&LogBatch<'_>, &Segment, &LogState) -> Result<()>,
) -> Result<ScanEnd> {
    let active = found.state.active()?.id;
    let mut at = from.1;
    for segment in found.segments.from_segment(from.0)? {
        let segment = &*segment;
        let sealed = segment.id != active;
        let len = segment.file.len()?;
        let footer = if sealed { Some(sealed_footer(segment, len)?) } else { None };
        let end = footer.as_ref().map_or(len, |footer| footer.tail);
        let mut cursor = LogCursor::new(segment.file.clone(), segment.salt, at, end);
        let rewritten = footer.filter(|footer| footer.rewritten_chain.is_some());
        let note = found.note.note.as_ref().filter(|note| note.segment == segment.id && !sealed);
        let known = KnownEnds { rewritten: rewritten.as_ref(), note };
        let stopped = scan_segment(schema, &mut cursor, segment, known, &mut state, visit)?;
        let tail = cursor.at;
        if sealed {
            if tail != end {
                return Err(Error::damaged(&segment.path, tail, stopped));
            }
            if let Some(footer) = rewritten.filter(|footer| footer.state != state) {
                // The scan began at the segment's end, or the segment has no batch.
                adopt_footer(&mut state, &footer, segment)?;
            }
            at = SEGMENT_HEADER_BYTES;
            continue;
        }
        let mut torn_bytes = cursor.end_of_data_after(tail)? - tail;
        let mut torn = torn_bytes > 0;
        let mut damage = None;
        if let Some(clean) = &found.state.clean {
            torn |= len != clean.tail;
        }
        let noted = found.state.synced.max(note.map_or(0, |note| note.synced));
        let synced = match torn {
            true => noted.max(cursor.greatest_synced_after(tail, &state)?),
            false => noted,
        };
        if len < tail.max(noted) {
            let what = format!("the file ends here; {} bytes of it had been synced", tail.max(noted));
            damage = Some(Damage { file: segment.path.clone(), offset: len, what });
        } else if tail < synced {
            damage = Some(Damage { file: segment.path.clone(), offset: tail, what: stopped });
        }
        if torn && sealed_footer(segment, len).is_ok_and(|footer| footer.tail == tail) {
            torn_bytes = 0;
        }
        let certain_until_ns = state.newest_ns.max(note.map_or(0, |note| note.time_ns));
        let segment = segment.id;
        return Ok(ScanEnd { segment, tail, state, is_torn: torn, torn_bytes, certain_until_ns, damage });
    }
    Err(Error::bug("the log has no active segment"))
}

/// What is known of a segment's batches beside their own bytes.
#[derive(Clone, Copy)]
struct KnownEnds<'a> {
    /// The footer, in a rewritten segment.
    rewritten: Option<&'a SegmentFooter>,
    /// The note of the active segment.
    note: Option<&'a SyncedNote>,
}

fn scan_segment(
    schema: &dyn RecordSchema,
    cursor: &mut LogCursor,
    segment: &Segment,
    known: KnownEnds<'_>,
    state: &mut LogState,
    visit: &mut dyn FnMut(&LogBatch<'_>, &Segment, &LogState) -> Result<()>,
) -> Result<String> {
    loop {
        match cursor.next(state)? {
            Ok(mut batch) => {
                batch.node = advance_state(schema, state, &batch, segment.salt)
                    .map_err(|e| Error::damaged(&segment.path, batch.offset, e))?;
                let end = batch.end();
                if let Some(footer) = known.rewritten.filter(|footer| end == Some(footer.tail)) {
                    adopt_footer(state, footer, segment)?;
                }
                if known.note.is_some_and(|note| end == Some(note.synced) && note.chain != state.chain) {
                    let what = "another batch stood here: SYNCED names the digest of that one";
                    return Err(Error::damaged(&segment.path, batch.offset, what));
                }
                visit(&batch, segment, state)?;
            }
            Err(stopped) => return Ok(stopped.to_string()),
        }
    }
}

/// Takes over the state of a rewritten segment's footer at the segment's end. The footer has the counts of
/// erased records, and the digest that the next segment continues from. Its other fields must match the
/// batches.
fn adopt_footer(state: &mut LogState, footer: &SegmentFooter, segment: &Segment) -> Result<()> {
    let said = &footer.state;
    let same = state.ledger == said.ledger
        && state.next_seqno == said.next_seqno
        && [footer.own_chain(), said.chain].contains(&state.chain)
        && state.next_group <= said.next_group
        && state.next_run <= said.next_run
        && state.next_space <= said.next_space;
    if !same {
        let what = "its footer does not say what its batches add up to";
        return Err(Error::damaged(&segment.path, footer.tail, what));
    }
    state.clone_from(said);
    Ok(())
}

/// Calls `visit` with each batch, its segment, and the next seqno after it. Reads from `from` (`None`: the
/// start of the first segment) up to `to`. Both must be ends of batches; all batches between must be whole.
///
/// # Errors
/// `Damaged` if a batch is not whole.
pub fn scan_between(
    found: &FoundLog,
    from: Option<(SegmentId, u64)>,
    to: (SegmentId, u64),
    visit: &mut dyn FnMut(&LogBatch<'_>, &Segment, Seqno) -> Result<()>,
) -> Result<()> {
    let segments = match from {
        Some(from) => found.segments.from_segment(from.0)?,
        None => found.segments.all(),
    };
    let last = segments.iter().position(|segment| segment.id == to.0);
    let last = last.ok_or_else(|| Error::new(ErrorKind::Damaged, "the range ends in an unlisted segment"))?;
    for segment in segments.iter().take(last + 1) {
        let header = segment.header()?;
        let mut state =
            LogState { next_seqno: header.first_seqno, chain: header.chain, ..LogState::default() };
        let end = if segment.id == to.0 { to.1 } else { sealed_tail(segment, segment.file.len()?)? };
        let mut cursor = LogCursor::new(segment.file.clone(), segment.salt, SEGMENT_HEADER_BYTES, end);
        while cursor.at < end {
            let at = cursor.at;
            let batch = cursor.next(&state)?.map_err(|e| Error::damaged(&segment.path, at, e))?;
            state.next_seqno =
                next_seqno(&batch, segment.salt).map_err(|e| Error::damaged(&segment.path, at, e))?;
            state.chain = batch.digest_after(state.chain);
            if from.is_none_or(|from| segment.id != from.0 || batch.offset >= from.1) {
                visit(&batch, segment, state.next_seqno)?;
            }
        }
    }
    Ok(())
}

/// The end of the batches of a sealed segment, from its footer.
pub fn sealed_tail(segment: &Segment, len: u64) -> Result<u64> {
    Ok(sealed_footer(segment, len)?.tail)
}

/// A sealed segment's footer.
pub fn sealed_footer(segment: &Segment, len: u64) -> Result<SegmentFooter> {
    let start = len.saturating_sub(64 << 10);
    #[expect(clippy::cast_possible_truncation, reason = "at most 64 KiB")]
    let mut bytes = vec![0; (len - start) as usize];
    let got = segment.file.read_at(&mut bytes, start)?;
    bytes.truncate(got);
    SegmentFooter::decode_end(&bytes, start, segment.salt)
        .map_err(|e| Error::damaged(&segment.path, start, e))
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
    let mut state = found.state;
    let mut active = found.segments.get(end.segment)?;
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
