//! Opening a log: creating it, taking the lock, finding the end, mending what a crash left.
//!
//! Bytes after the last whole batch are *torn* if they stand at or after the greatest position known to be synced:
//! they were never promised, and a writer cuts them, seals the segment and starts the next. Before that position
//! they are *damage*: reported, never cut.

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{SegmentId, Seqno, StoreId};
use crate::io::{File, Io, Lock, Open, ReadMode};
use crate::log::cursor::{Batch, Cursor, account, next_seqno};
use crate::log::layout::{Footer, LogState, SEGMENT_HEADER_BYTES, Salt, SegmentHeader, chain_digest};
use crate::log::manifest::{self, Manifest, SegmentEntry, SharedManifest, State};
use crate::log::paths::{Paths, parse_manifest, parse_segment};
use crate::log::queue::Queue;
use crate::log::segments::{Segment, Segments, lock};
use crate::log::totals::Totals;
use crate::log::writer::{Sink, Writer, create_segment, seal};
use crate::schema::RecordSchema;
use crate::sync::Mutex;
use crate::sync::channel::{Receiver, unbounded};

/// Sizes that a store is opened with.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub segment_bytes_max: u64,
    pub queue_bytes_max: usize,
    pub zero_ahead_bytes: u64,
    pub read_mode: ReadMode,
}

/// A place in the log where bytes are not what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub file: std::path::PathBuf,
    /// Byte offset in it.
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

/// A log whose files are known and locked as asked, its unsealed end not yet read.
#[derive(Debug)]
pub struct Found {
    pub state: State,
    generation: u64,
    /// Held by a writer for as long as it lives.
    writer_lock: Option<Arc<dyn File>>,
    /// Held shared by a reader.
    generation_lock: Option<Arc<dyn File>>,
    pub segments: Arc<Segments>,
    manifest: Arc<dyn File>,
}

/// The end of the log as a scan found it.
#[derive(Debug, Clone)]
pub struct End {
    pub segment: SegmentId,
    pub tail: u64,
    pub state: LogState,
    /// Bytes of the active segment after the tail are not zeros, or not the length a clean close left.
    pub torn: bool,
    pub damage: Option<Damage>,
}

/// Finds the store in a directory; a writer creates one in an empty directory.
///
/// # Errors
/// `NotFound` without a store, `Locked` with the holder's pid, `Damaged`, `Invalid` for a directory of something
/// else, `Unavailable`.
pub fn find(io: &dyn Io, paths: &Paths, write: bool, create: bool, read_mode: ReadMode) -> Result<Found> {
    if write {
        return find_once(io, paths, write, create, read_mode);
    }
    // A writer may change segments or generations while a reader looks. What was met then is no damage: it counts
    // only if the manifest still says the same.
    let mut before = stamp(io, paths);
    loop {
        let found = find_once(io, paths, write, create, read_mode);
        let after = stamp(io, paths);
        if found.is_ok() || before == after {
            return found;
        }
        before = after;
    }
}

/// What changes with every edit of the manifest.
pub fn stamp(io: &dyn Io, paths: &Paths) -> Option<(Vec<u8>, u64)> {
    let current = io.open(&paths.current(), Open::Read).ok()?;
    let line = manifest::read_whole(&*current, &paths.current(), 256).ok()?;
    let len =
        manifest::parse_current(&line).and_then(|generation| io.stat(&paths.manifest(generation)).ok()?);
    Some((line, len.map_or(0, |stat| stat.len)))
}

fn find_once(io: &dyn Io, paths: &Paths, write: bool, create: bool, read_mode: ReadMode) -> Result<Found> {
    let root = paths.root();
    match io.stat(root)? {
        Some(stat) if !stat.is_dir => {
            return Err(Error::invalid(format!("{} is a file, not a directory", root.display())));
        }
        None if !(write && create) => return Err(no_store(root)),
        None => io.create_dir_all(root)?,
        Some(_) => {}
    }
    let writer_lock = if write { Some(take_lock(io, paths, create)?) } else { None };
    let loaded = match manifest::load(io, paths)? {
        Some(loaded) => loaded,
        None if write && create => {
            create_store(io, paths)?;
            manifest::load(io, paths)?.ok_or_else(|| Error::bug("a new store has no manifest"))?
        }
        None => return Err(no_store(root)),
    };
    if write {
        // The folder holds a cache: whoever deletes it with what is in it deletes nothing.
        io.create_dir_all(&paths.tables())?;
    }
    let generation_lock =
        if write { None } else { loaded.file.try_lock(Lock::Shared)?.then(|| loaded.file.clone()) };
    let segments = Arc::new(Segments::default());
    for entry in &loaded.state.segments {
        segments.insert(open_segment(io, paths, &loaded.state, entry, write, read_mode)?);
    }
    refuse_stray_segment(io, paths, &loaded.state)?;
    Ok(Found {
        state: loaded.state,
        generation: loaded.generation,
        writer_lock,
        generation_lock,
        segments,
        manifest: loaded.file,
    })
}

fn no_store(root: &Path) -> Error {
    Error::not_found(format!("there is no annals store in {}", root.display()))
}

fn open_segment(
    io: &dyn Io,
    paths: &Paths,
    state: &State,
    entry: &SegmentEntry,
    write: bool,
    read_mode: ReadMode,
) -> Result<Arc<Segment>> {
    let how = if write && entry.sealed_bytes.is_none() { Open::Write } else { Open::Read };
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

/// A segment after the last one listed is left over from a crash while it was made, unless batches stand in it:
/// they are only written once the manifest lists it, so then the manifest lost its end.
fn refuse_stray_segment(io: &dyn Io, paths: &Paths, state: &State) -> Result<()> {
    let next = SegmentId(state.active()?.id.0 + 1);
    let path = paths.segment(next);
    if io.stat(&path)?.is_none() {
        return Ok(());
    }
    let file = io.open(&path, Open::Read)?;
    let salt = Salt::new(state.store, next);
    let mut header = [0; SEGMENT_HEADER_BYTES as usize];
    let got = file.read_at(&mut header, 0)?;
    let Ok(header) = SegmentHeader::decode(&header[..got], state.store, next) else { return Ok(()) };
    let expected = LogState { next_seqno: header.first_seqno, chain: header.chain, ..LogState::default() };
    let end = file.len()?;
    let mut cursor = Cursor::new(file, salt, SEGMENT_HEADER_BYTES, end);
    match cursor.next(&expected)? {
        Ok(_) => Err(Error::damaged(
            &path,
            0,
            "it holds batches, but the manifest does not list it: the manifest's last edit is lost",
        )),
        Err(_) => Ok(()),
    }
}

fn take_lock(io: &dyn Io, paths: &Paths, create: bool) -> Result<Arc<dyn File>> {
    let path = paths.lock();
    if io.stat(&path)?.is_none() {
        let root = paths.root();
        let names = io.list(root)?;
        // A LOCK that was not there a moment ago is that of a process which makes the store just now.
        let is_ours =
            |n: &String| n == "LOCK" || n == "CURRENT" || n == "segments" || parse_manifest(n).is_some();
        let ours = names.iter().any(is_ours);
        if !create && !ours {
            return Err(no_store(root));
        }
        if !names.is_empty() && !ours {
            return Err(Error::invalid(format!(
                "{} holds other files and no annals store: name an empty or a new directory",
                root.display()
            )));
        }
    }
    let file = io.open(&path, Open::CreateOrOpen)?;
    if !file.try_lock(Lock::Exclusive)? {
        let holder = manifest::read_whole(&*file, &path, 64).ok();
        let holder = holder.and_then(|text| String::from_utf8(text).ok()).unwrap_or_default();
        let holder = match holder.trim() {
            "" => "another process".to_owned(),
            pid => format!("process {pid}"),
        };
        return Err(Error::new(
            ErrorKind::Locked,
            format!("{holder} is writing to {}; wait for it or open read-only", paths.root().display()),
        ));
    }
    let pid = format!("{}\n", std::process::id());
    file.set_len(0)?;
    file.write_at(&[IoSlice::new(pid.as_bytes())], 0)?;
    Ok(file)
}

/// Makes an empty store. Leftovers of an interrupted attempt are replaced, unless they hold batches.
fn create_store(io: &dyn Io, paths: &Paths) -> Result<()> {
    io.create_dir_all(&paths.segments())?;
    io.create_dir_all(&paths.tables())?;
    for name in io.list(&paths.segments())? {
        let Some(id) = parse_segment(&name) else { continue };
        let len = io.stat(&paths.segment(id))?.map_or(0, |stat| stat.len);
        if id.0 > 1 || len > SEGMENT_HEADER_BYTES {
            return Err(Error::new(
                ErrorKind::Damaged,
                format!("{} has log segments but no CURRENT: the file was lost", paths.root().display()),
            ));
        }
    }
    let mut uuid = [0; 16];
    io.random(&mut uuid)?;
    let store = StoreId(uuid);
    let base = LogState::empty();
    let first = SegmentId(1);
    create_segment(io, paths, &store, first, &base)?;
    let state = State {
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
        erased: Totals::default(),
        vectors: manifest::VectorList::default(),
    };
    Manifest::create(io, paths, 1, state)?;
    Ok(())
}

/// Reads the log from `from` (whose state is `state`) to its end, calling `visit` for each batch.
pub fn scan(
    schema: &dyn RecordSchema,
    found: &Found,
    from: (SegmentId, u64),
    state: LogState,
    visit: &mut dyn FnMut(&Batch<'_>, &Segment) -> Result<()>,
) -> Result<End> {
    scan_states(schema, found, from, state, &mut |batch, segment, _| visit(batch, segment))
}

/// As [`scan`]; `visit` also sees what the log says up to the batch's end. `from` may be the end of a sealed segment.
pub fn scan_states(
    schema: &dyn RecordSchema,
    found: &Found,
    from: (SegmentId, u64),
    mut state: LogState,
    visit: &mut dyn FnMut(&Batch<'_>, &Segment, &LogState) -> Result<()>,
) -> Result<End> {
    let active = found.state.active()?.id;
    let mut at = from.1;
    for segment in found.segments.from(from.0)? {
        let segment = &*segment;
        let sealed = segment.id != active;
        let len = segment.file.len()?;
        let footer = if sealed { Some(sealed_footer(segment, len)?) } else { None };
        let end = footer.as_ref().map_or(len, |footer| footer.tail);
        let mut cursor = Cursor::new(segment.file.clone(), segment.salt, at, end);
        let rewritten = footer.filter(|footer| footer.rewritten_chain.is_some());
        let stopped = scan_segment(schema, &mut cursor, segment, rewritten.as_ref(), &mut state, visit)?;
        let tail = cursor.at;
        if sealed {
            if tail != end {
                return Err(Error::damaged(&segment.path, tail, stopped));
            }
            if let Some(footer) = rewritten.filter(|footer| footer.state != state) {
                // The scan began at its end, or it has no batch.
                adopt(&mut state, &footer, segment)?;
            }
            at = SEGMENT_HEADER_BYTES;
            continue;
        }
        let mut torn = !cursor.only_zeros_after(tail)?;
        let mut damage = None;
        if let Some(clean) = &found.state.clean {
            torn |= len != clean.tail;
        }
        let synced = match torn {
            true => found.state.synced.max(cursor.greatest_synced_after(tail, &state)?),
            false => found.state.synced,
        };
        if len < tail {
            // The scan began after what a clean close had left, and that is no longer there.
            let what = format!("the file ends here; {tail} bytes of it had been synced");
            damage = Some(Damage { file: segment.path.clone(), offset: len, what });
        } else if tail < synced {
            damage = Some(Damage { file: segment.path.clone(), offset: tail, what: stopped });
        }
        return Ok(End { segment: segment.id, tail, state, torn, damage });
    }
    Err(Error::bug("the log has no active segment"))
}

fn scan_segment(
    schema: &dyn RecordSchema,
    cursor: &mut Cursor,
    segment: &Segment,
    rewritten: Option<&Footer>,
    state: &mut LogState,
    visit: &mut dyn FnMut(&Batch<'_>, &Segment, &LogState) -> Result<()>,
) -> Result<String> {
    loop {
        match cursor.next(state)? {
            Ok(mut batch) => {
                batch.node = account(schema, state, batch.whole, batch.offset, segment.salt)
                    .map_err(|e| Error::damaged(&segment.path, batch.offset, e))?;
                if let Some(footer) = rewritten
                    && batch.offset + batch.whole.len() as u64 == footer.tail
                {
                    adopt(state, footer, segment)?;
                }
                visit(&batch, segment, state)?;
            }
            Err(stopped) => return Ok(stopped.to_string()),
        }
    }
}

/// Takes over what a rewritten segment's footer says, at its end: the counts of what once stood there, and the digest that
/// the next segment goes on from. What its batches do say must be the same.
fn adopt(state: &mut LogState, footer: &Footer, segment: &Segment) -> Result<()> {
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

/// Calls `visit` with each batch, its segment, and the next record's seqno after it, from `from` (nothing: the first
/// segment's first) up to `to`. Both are ends of batches; all between must be whole.
///
/// # Errors
/// `Damaged` where it is not.
pub fn scan_between(
    found: &Found,
    from: Option<(SegmentId, u64)>,
    to: (SegmentId, u64),
    visit: &mut dyn FnMut(&Batch<'_>, &Segment, Seqno) -> Result<()>,
) -> Result<()> {
    let segments = match from {
        Some(from) => found.segments.from(from.0)?,
        None => found.segments.all(),
    };
    let last = segments.iter().position(|segment| segment.id == to.0);
    let last = last.ok_or_else(|| Error::new(ErrorKind::Damaged, "a part of the log ends where none is"))?;
    for segment in segments.iter().take(last + 1) {
        let header = segment.header()?;
        let mut state =
            LogState { next_seqno: header.first_seqno, chain: header.chain, ..LogState::default() };
        let end = if segment.id == to.0 { to.1 } else { sealed_tail(segment, segment.file.len()?)? };
        let mut cursor = Cursor::new(segment.file.clone(), segment.salt, SEGMENT_HEADER_BYTES, end);
        while cursor.at < end {
            let at = cursor.at;
            let batch = cursor.next(&state)?.map_err(|e| Error::damaged(&segment.path, at, e))?;
            state.next_seqno = next_seqno(batch.whole, at, segment.salt)
                .map_err(|e| Error::damaged(&segment.path, at, e))?;
            state.chain = chain_digest(batch.whole);
            if from.is_none_or(|from| segment.id != from.0 || batch.offset >= from.1) {
                visit(&batch, segment, state.next_seqno)?;
            }
        }
    }
    Ok(())
}

/// Where the batches of a sealed segment end, by its footer.
pub fn sealed_tail(segment: &Segment, len: u64) -> Result<u64> {
    Ok(sealed_footer(segment, len)?.tail)
}

/// A sealed segment's footer.
pub fn sealed_footer(segment: &Segment, len: u64) -> Result<Footer> {
    let start = len.saturating_sub(64 << 10);
    let mut bytes = vec![0; (len - start) as usize];
    let got = segment.file.read_at(&mut bytes, start)?;
    bytes.truncate(got);
    Footer::decode_end(&bytes, start, segment.salt).map_err(|e| Error::damaged(&segment.path, start, e))
}

/// A log open for writing.
#[derive(Debug)]
pub struct OpenLog {
    pub queue: Arc<Queue>,
    pub manifest: Arc<SharedManifest>,
    sink: Arc<dyn Sink>,
    ended: Receiver<Result<()>>,
    thread: Mutex<Option<crate::sync::JoinHandle<()>>>,
    /// Released at the close.
    lock: Mutex<Option<Arc<dyn File>>>,
}

/// Starts writing after `end`: cuts what is torn, starts a new manifest generation and the writer thread.
///
/// # Errors
/// `Damaged` where acknowledged bytes are not what was written; `Unavailable`.
pub fn start(
    io: &Arc<dyn Io>,
    paths: &Paths,
    found: Found,
    end: End,
    sizes: Sizes,
    sink: Arc<dyn Sink>,
    schema: Arc<dyn RecordSchema>,
) -> Result<OpenLog> {
    if let Some(damage) = &end.damage {
        return Err(damage.error());
    }
    let mut state = found.state;
    let mut active = found.segments.get(end.segment)?;
    let mut tail = end.tail;
    let was_clean = state.clean.as_ref().is_some_and(|clean| !end.torn && clean.tail == tail);
    let is_new = tail == SEGMENT_HEADER_BYTES && active.file.len()? == tail;
    state.format = manifest::FORMAT;
    state.clean = None;
    state.synced = tail;
    if !was_clean && !is_new {
        // What follows the tail was never promised. The cut must be durable before anything builds on it.
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
    let manifest = Manifest::create(&**io, paths, found.generation + 1, state)?;
    remove_old_manifests(&**io, paths, found.generation + 1)?;
    remove_unlisted(&**io, paths, &manifest.state)?;
    let manifest = Arc::new(SharedManifest::new(io.clone(), paths.clone(), manifest, Some(found.manifest)));
    let (sender, jobs) = unbounded();
    let queue = Arc::new(Queue::new(
        sender,
        store,
        active.id,
        tail,
        end.state.next_seqno,
        sizes.queue_bytes_max,
        sizes.segment_bytes_max,
        schema,
    ));
    let writer = Writer {
        io: io.clone(),
        paths: paths.clone(),
        jobs,
        queue: queue.clone(),
        segments: found.segments,
        sink: sink.clone(),
        manifest: manifest.clone(),
        store,
        active,
        state: end.state,
        tail,
        synced: tail,
        zeroed: tail,
        zero_ahead_bytes: sizes.zero_ahead_bytes,
        read_mode: sizes.read_mode,
    };
    let (ended_in, ended) = crate::sync::channel::bounded(1);
    let thread = io.spawn("annals-writer", Box::new(move || writer.run(&ended_in)))?;
    Ok(OpenLog {
        queue,
        manifest,
        sink,
        ended,
        thread: Mutex::new(Some(thread)),
        lock: Mutex::new(found.writer_lock),
    })
}

/// Removes files of segments that a compaction made or replaced and a crash left: those that are not listed, but for any
/// that the writer may have made after the last one listed.
pub fn remove_unlisted(io: &dyn Io, paths: &Paths, state: &State) -> Result<()> {
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

fn remove_old_manifests(io: &dyn Io, paths: &Paths, current: u64) -> Result<()> {
    for name in io.list(paths.root())? {
        if let Some(generation) = parse_manifest(&name).filter(|generation| *generation != current) {
            io.remove(&paths.manifest(generation))?;
        }
    }
    Ok(())
}

impl OpenLog {
    /// Writes and syncs all that is queued and closes cleanly. A second call does nothing.
    pub fn close(&self) -> Result<()> {
        let Some(thread) = lock(&self.thread).take() else { return Ok(()) };
        self.queue.close();
        let ended = self.ended.recv();
        let joined = thread.join();
        // The lock may only go once nothing of this store touches a file any more.
        self.sink.stop();
        drop(lock(&self.lock).take());
        match (ended, joined) {
            (Ok(done), Ok(())) => done,
            _ => Err(Error::bug("the writer thread panicked")),
        }
    }
}

impl Found {
    /// A reader's lock on this generation, held for as long as the result lives.
    pub fn into_reader_lock(self) -> Option<Arc<dyn File>> {
        self.generation_lock
    }
}
