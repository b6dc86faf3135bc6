//! The writer: it chains, appends, syncs and publishes the queue's batches, in that order. It has a thread;
//! callers who wait for their batches act in its place ([`super::inline`]).
//!
//! One call writes all waiting batches. If one of them asked for disk durability, one sync makes them all
//! durable (group commit). Nothing is published or acknowledged before it has the requested durability. The
//! first failure ends writing for good: recovery then decides what the disk holds.
//!
//! A batch says how far the log was synced before it. So that the last batches are protected, too, the writer
//! notes the end of the log in `SYNCED`: when nothing was written for `IDLE_NS`, or `NOTE_DUE_NS` after the
//! first synced commit that no note covers, or before it answers a commit that asked for that. The thread looks
//! once in `IDLE_NS`, so the first may take twice as long, and the second may take `IDLE_NS` longer.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ids::{SegmentId, Seqno, StoreId};
use crate::io::{Io, OpenMode, ReadMode};
use crate::log::inbox::Wakeup;
use crate::log::inline::{PoisonOnUnwind, SharedWriter};
use crate::log::layout::{
    BatchForm, BatchHeader, LogState, SEGMENT_FORMAT, SEGMENT_HEADER_BYTES, SEGMENT_MAGIC, SegmentFooter,
    SegmentHeader,
};
use crate::log::manifest::{CleanClose, SegmentEntry, SharedManifest, TableEntry};
use crate::log::paths::StorePaths;
use crate::log::queue::{Durability, QueuedBatch, WriteQueue, WriterJob};
use crate::log::segments::{Segment, Segments, lock};
use crate::log::sequence::JobSequence;
use crate::log::synced::{NOTE_DUE_NS, NoteSchedule, SyncedFile};
use crate::log::ticket::WriteFailure;
use crate::sync::atomic::Ordering;

/// Maximum bytes of batches written together, approximately.
const WRITE_BYTES_MAX: usize = 4 << 20;
/// How often the writer looks for callers who are about to commit, before it syncs without them.
const GATHER_LOOKS: u32 = if crate::sync::SCHEDULED { 1 } else { 32 };
/// Written bytes that nobody syncs are sent to the disk in parts of this size: otherwise the sync that ends a
/// segment has all of it to write, while every commit waits.
const START_WRITING_BYTES: u64 = 1 << 20;
/// Such parts end at a multiple of this many bytes, a page: the next batch still changes the last one.
const PAGE_BYTES: u64 = 4 << 10;
/// How long nothing is written before the log's end is noted, in nanoseconds. At most twice this time passes, which
/// must be less than a second.
const IDLE_NS: u64 = 400_000_000;
const _: () = assert!(IDLE_NS * 2 < 1_000_000_000 && IDLE_NS + NOTE_DUE_NS < 1_000_000_000);

/// The layer above the log that follows it: the index.
pub trait LogSink: Send + Sync + std::fmt::Debug {
    /// These batches are written. This call makes them all visible at once.
    fn publish(&self, batches: &[QueuedBatch]) -> Result<()>;
    /// Called before a write; everything up to `end` is published. May wait until memory is available.
    fn make_room(&self, end: &LogEnd<'_>) -> Result<()>;
    /// Starts flushing the whole index; everything up to `end` is published and durable.
    fn flush_index(&self, _end: &LogEnd<'_>) -> Result<()> {
        Ok(())
    }
    /// Ends the sink's own activity. Afterwards it accesses the store's files only when called.
    fn stop(&self);
    /// Flushes the index to synced files, and returns the tables that then make it up.
    fn persist(&self, end: &LogEnd<'_>) -> Result<PersistedTables>;
    /// The manifest lists those tables now: old tables may be removed.
    fn after_persist(&self);
}

/// The end of the log between two writes.
#[derive(Debug)]
pub struct LogEnd<'a> {
    pub segment: SegmentId,
    /// End of the last batch.
    pub tail: u64,
    /// Position known to be durable.
    pub synced: u64,
    pub state: &'a LogState,
}

/// The tables that make up the index.
#[derive(Debug, Clone)]
pub struct PersistedTables {
    pub tables: Vec<TableEntry>,
    pub next_table: u64,
}

/// The state of the writer.
#[derive(Debug)]
pub struct LogWriter {
    pub io: Arc<dyn Io>,
    pub paths: StorePaths,
    pub queue: Arc<WriteQueue>,
    pub segments: Arc<Segments>,
    pub sink: Arc<dyn LogSink>,
    pub manifest: Arc<SharedManifest>,
    pub store: StoreId,
    pub active: Arc<Segment>,
    /// State of the log as written so far.
    pub state: LogState,
    /// End of the last batch in the active segment.
    pub tail: u64,
    /// Position known to be durable.
    pub synced: u64,
    pub notes: SyncedFile,
    pub note_schedule: NoteSchedule,
    /// Position up to which bytes are on their way to disk, if it is beyond `synced`.
    pub started: u64,
    /// Position up to which zeros are written.
    pub zeroed: u64,
    pub zero_ahead_bytes: u64,
    /// Read mode of segments after sealing.
    pub read_mode: ReadMode,
    /// Jobs that were fetched and cannot be handled yet.
    pub sequence: JobSequence<WriterJob>,
    /// Empty between fetches: memory for reuse.
    pub arrived: VecDeque<WriterJob>,
    /// Whether the inbox knows that a fetched job waits for an earlier one.
    pub has_noted_gap: bool,
}

/// Ends the inbox when the thread ends, by a close or a panic.
struct EndInbox<'a>(&'a WriteQueue);

impl Drop for EndInbox<'_> {
    fn drop(&mut self) {
        self.0.inbox.end();
    }
}

impl LogWriter {
    /// Runs the writer's thread until told to close. `ended` receives the result of the close.
    pub fn run(self, ended: &crate::sync::channel::Sender<Result<()>>) {
        let (queue, io) = (self.queue.clone(), self.io.clone());
        let writer = Arc::new(SharedWriter::new(self));
        let _ = queue.writer.set(Arc::downgrade(&writer));
        let _ending = EndInbox(&queue);
        let mut woken = Wakeup::Rung;
        // The log's end when the thread began to wait.
        let mut idle_since = (SegmentId(0), 0);
        loop {
            let unwinding = PoisonOnUnwind(&queue);
            let mut held = lock(&writer);
            if woken == Wakeup::TimedOut {
                held.note_if_idle_or_due(idle_since);
            }
            let closed = held.handle_all();
            std::mem::forget(unwinding);
            if let Some(closed) = closed {
                let _ = ended.send(closed);
                return;
            }
            idle_since = held.end_position();
            let is_unnoted = held.is_unnoted();
            drop(held);
            let limit = if is_unnoted { io.wait_time(IDLE_NS) } else { None };
            woken = queue.inbox.wait(is_unnoted, limit);
        }
    }

    /// Handles jobs until there are none, and closes if told to: then returns the result of the close.
    fn handle_all(&mut self) -> Option<Result<()>> {
        loop {
            let any = self.handle_ready(true);
            if matches!(self.sequence.peek(), Some(WriterJob::Close { .. })) {
                self.sink.stop();
                return Some(self.close());
            }
            if !any {
                return None;
            }
        }
    }

    /// Handles the jobs that have arrived, all but a close; returns whether there were any. For a caller who
    /// acts as the writer.
    pub fn handle_arrived(&mut self) -> bool {
        self.handle_ready(false)
    }

    fn handle_ready(&mut self, gathers: bool) -> bool {
        self.fetch();
        let mut waiting: Vec<QueuedBatch> = Vec::new();
        let (mut bytes, mut any) = (0, false);
        loop {
            if matches!(self.sequence.peek(), Some(WriterJob::Close { .. })) {
                break;
            }
            let Some(job) = self.sequence.pop() else {
                if gathers && self.gather(&waiting) {
                    continue;
                }
                break;
            };
            any = true;
            let goes_on = matches!(&job, WriterJob::Batch(queued) if queued.segment == self.active.id);
            if !goes_on || bytes >= WRITE_BYTES_MAX {
                self.write_batches(std::mem::take(&mut waiting));
                bytes = 0;
            }
            match job {
                WriterJob::Batch(queued) => {
                    if !goes_on {
                        self.rotate_or_poison();
                    }
                    bytes += queued.batch.bytes.len();
                    waiting.push(queued);
                }
                job => self.handle_other(job),
            }
        }
        self.write_batches(waiting);
        any
    }

    /// Handles a job that is neither a batch nor a close.
    fn handle_other(&mut self, job: WriterJob) {
        match job {
            WriterJob::Batch(_) | WriterJob::Close { .. } => {}
            WriterJob::Lost { .. } => {
                let lost = Error::bug("a batch was lost on its way to the writer");
                self.queue.poison(WriteFailure::from_error(&lost));
            }
            WriterJob::Barrier { completer, .. } => {
                let last = self.state.last_seqno();
                let done = self.queue.check_poisoned().map(|()| last);
                completer.complete(done.map_err(|e| WriteFailure::from_error(&e)));
            }
            WriterJob::Seal { segment, completer, flush_index, .. } => {
                if segment != self.active.id {
                    self.rotate_or_poison();
                }
                let last = self.state.last_seqno();
                let done = self.queue.check_poisoned().and_then(|()| match flush_index {
                    true => self.sink.flush_index(&self.log_end()),
                    false => Ok(()),
                });
                completer.complete(done.map(|()| last).map_err(|e| WriteFailure::from_error(&e)));
            }
        }
    }

    /// Brings the jobs that have arrived into the order of the log.
    fn fetch(&mut self) {
        let mut arrived = self.queue.inbox.take(std::mem::take(&mut self.arrived));
        arrived.drain(..).for_each(|job| self.sequence.push(job));
        self.arrived = arrived;
        let awaits_earlier = self.sequence.awaits_earlier();
        if awaits_earlier != self.has_noted_gap {
            self.has_noted_gap = awaits_earlier;
            self.queue.inbox.note_gap(awaits_earlier);
        }
    }

    /// Waits a little for callers whose commits were synced together before: they are probably about to
    /// commit again. Returns whether jobs came.
    fn gather(&mut self, waiting: &[QueuedBatch]) -> bool {
        if waiting.is_empty()
            || waiting.len() >= self.queue.sync_group.load(Ordering::Relaxed)
            || waiting.iter().all(|queued| queued.durability == Durability::Process)
        {
            return false;
        }
        for _ in 0..GATHER_LOOKS {
            crate::sync::thread::yield_now();
            self.fetch();
            if self.sequence.peek().is_some() {
                return true;
            }
        }
        false
    }

    /// Whether the log's end is not noted outside of the log.
    pub fn is_unnoted(&self) -> bool {
        !self.note_schedule.covers(self.tail) && !self.queue.is_poisoned()
    }

    fn end_position(&self) -> (SegmentId, u64) {
        (self.active.id, self.tail)
    }

    /// Writes, syncs, publishes and answers a group of batches.
    fn write_batches(&mut self, mut batches: Vec<QueuedBatch>) {
        if batches.is_empty() {
            return;
        }
        let bytes: usize = batches.iter().map(|queued| queued.batch.bytes.len()).sum();
        let done = match self.queue.check_poisoned() {
            Ok(()) => {
                self.sink.make_room(&self.log_end()).and_then(|()| self.write_and_publish(&mut batches))
            }
            Err(poisoned) => Err(poisoned),
        };
        if batches.iter().any(|queued| queued.durability >= Durability::Disk) {
            let group = batches.len() + self.queue.inbox.job_count();
            self.queue.sync_group.store(group, Ordering::Relaxed);
        }
        self.queue.release_bytes(bytes);
        let failure = done.err().map(|error| {
            let own = WriteFailure::from_error(&error);
            let first = self.queue.poison(own.clone());
            // The upkeep thread may have failed first: all callers get the same first failure.
            if Arc::ptr_eq(&first.message, &own.message) { own } else { WriteQueue::poisoned_failure(&first) }
        });
        for queued in batches {
            let last = Seqno(queued.first_seqno.0 + queued.batch.starts.len() as u64 - 1);
            queued.completer.complete(match &failure {
                None => Ok(last),
                Some(failure) => Err(failure.clone()),
            });
            self.queue.recycle(queued.batch);
        }
        // The callers have their answers: what follows delays only later batches.
        self.start_writing();
        if self.is_note_due() {
            self.note_or_poison();
        }
    }

    fn write_and_publish(&mut self, batches: &mut [QueuedBatch]) -> Result<()> {
        let start = self.tail;
        for queued in batches.iter_mut() {
            self.bind_to_chain(queued)?;
        }
        let slices: Vec<IoSlice<'_>> =
            batches.iter().map(|queued| IoSlice::new(&queued.batch.bytes)).collect();
        // Where disk space cannot be allocated ahead, this is where a full disk shows.
        with_reserve(&self.queue, || Ok(self.active.file.write_at(&slices, start)?))?;
        let wanted = batches.iter().map(|queued| queued.durability).max().unwrap_or_default();
        if wanted >= Durability::Disk {
            self.zero_ahead()?;
            let synced_ns = self.sync()?;
            self.note_schedule.add_synced_commit(synced_ns);
        }
        if wanted == Durability::Confirmed {
            self.note_end()?;
        }
        self.queue.counters.count_write(batches.len(), self.tail - start);
        self.sink.publish(batches)
    }

    /// Syncs the log up to its end. Returns when that was done, by the monotonic clock.
    fn sync(&mut self) -> Result<u64> {
        let began = self.io.monotonic_ns();
        self.active.file.sync()?;
        let ended = self.io.monotonic_ns();
        self.queue.counters.count_sync(ended.saturating_sub(began));
        self.synced = self.tail;
        Ok(ended)
    }

    fn is_note_due(&self) -> bool {
        self.note_schedule.is_due(|| self.io.monotonic_ns())
    }

    /// Notes the log's end if it still is `idle_since`, or if a synced commit has waited long enough for its note.
    fn note_if_idle_or_due(&mut self, idle_since: (SegmentId, u64)) {
        if self.end_position() == idle_since || self.is_note_due() {
            self.note_or_poison();
        }
    }

    /// Notes that the log is durable up to its end. Syncs it first if only commits with
    /// [`Durability::Process`] were written since the last sync.
    fn note_end(&mut self) -> Result<()> {
        if self.synced < self.tail {
            self.sync()?;
        }
        self.notes.note(&*self.io, (self.active.id, self.synced), &self.state)?;
        self.note_schedule = NoteSchedule::new(self.synced);
        Ok(())
    }

    /// As [`LogWriter::note_end`]. A failed note ends writing, like any failed sync: the disk no longer keeps
    /// what it is given.
    fn note_or_poison(&mut self) {
        if self.queue.is_poisoned() {
            return;
        }
        if let Err(error) = self.note_end() {
            self.queue.poison(WriteFailure::from_error(&error));
        }
    }

    /// See [`START_WRITING_BYTES`].
    fn start_writing(&mut self) {
        let (from, end) = (self.started.max(self.synced), self.tail / PAGE_BYTES * PAGE_BYTES);
        if end.saturating_sub(from) >= START_WRITING_BYTES {
            self.active.file.start_writing(from..end);
            self.started = end;
        }
    }

    /// Writes a batch's header, which chains it to the previous batch, and adds it to the log's state.
    fn bind_to_chain(&mut self, queued: &mut QueuedBatch) -> Result<()> {
        if queued.segment != self.active.id
            || queued.offset != self.tail
            || queued.first_seqno != self.state.next_seqno
        {
            return Err(Error::bug("a batch was queued for another place than the log's end"));
        }
        let batch = &mut queued.batch;
        let mut sums = match queued.sums.take() {
            Some(sums) => sums,
            None => self.queue.stamp_and_sum(batch, queued.segment, queued.offset, queued.first_seqno)?,
        };
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the queue gives only places that end within 32 bits of a segment"
        )]
        let header = BatchHeader {
            bytes: batch.bytes.len() as u32,
            form: BatchForm::Short,
            synced: self.synced as u32,
            first_seqno: queued.first_seqno,
            time_ns: queued.time_ns,
            prev: self.state.chain.into(),
        };
        header.write(&mut batch.bytes, self.active.salt, queued.offset);
        let digest = batch.digest(&mut sums);
        self.state.advance(&header, &sums, digest).map_err(|e| Error::bug(e.to_string()))?;
        self.tail += batch.bytes.len() as u64;
        Ok(())
    }

    /// Keeps zeros written beyond the tail: a sync that does not change the file's length costs half. Without
    /// syncs, zeros would only cost. If the disk is full, the batches may still fit: then zeros are no longer
    /// written.
    fn zero_ahead(&mut self) -> Result<()> {
        if self.tail <= self.zeroed || self.zero_ahead_bytes == 0 {
            return Ok(());
        }
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let step = self.zero_ahead_bytes;
        let allocated = self.queue.room().map_or(u64::MAX, |room| room.allocated_in(self.active.id));
        let target = ((self.tail / step + 1) * step).min(allocated);
        if target <= self.tail {
            return Ok(());
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most `zero_ahead_bytes`, a few MiB")]
        let mut left = (target - self.tail) as usize;
        let mut slices = Vec::with_capacity(left / ZEROS.len() + 1);
        while left > 0 {
            let some = left.min(ZEROS.len());
            slices.push(IoSlice::new(&ZEROS[..some]));
            left -= some;
        }
        match self.active.file.write_at(&slices, self.tail) {
            Ok(()) => self.zeroed = target,
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                self.active.file.set_len(self.tail)?;
                self.zero_ahead_bytes = 0;
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn rotate_or_poison(&mut self) {
        if self.queue.is_poisoned() {
            return;
        }
        let queue = self.queue.clone();
        if let Err(error) = with_reserve(&queue, || self.rotate()) {
            self.queue.poison(WriteFailure::from_error(&error));
        }
    }

    fn log_end(&self) -> LogEnd<'_> {
        LogEnd { segment: self.active.id, tail: self.tail, synced: self.synced, state: &self.state }
    }

    /// Seals the active segment and starts the next. The tables cover the same records as before.
    fn rotate(&mut self) -> Result<()> {
        let sealed_bytes = seal(&self.active, self.tail, &self.state)?;
        let next = SegmentId(self.active.id.0 + 1);
        let segment = create_segment(&*self.io, &self.paths, &self.store, next, &self.state)?;
        let first_seqno = self.state.next_seqno;
        self.manifest.edit(|manifest| {
            if let Some(active) = manifest.segments.last_mut() {
                active.sealed_bytes = Some(sealed_bytes);
            }
            manifest.segments.push(SegmentEntry { id: next, first_seqno, sealed_bytes: None });
            manifest.synced = SEGMENT_HEADER_BYTES;
        })?;
        self.active.mark_sealed(self.read_mode);
        self.active = Arc::new(segment);
        self.segments.insert(self.active.clone());
        if let Some(room) = self.queue.room() {
            room.begin_segment(next, self.active.file.clone());
        }
        self.tail = SEGMENT_HEADER_BYTES;
        self.synced = SEGMENT_HEADER_BYTES;
        self.started = SEGMENT_HEADER_BYTES;
        self.note_schedule = NoteSchedule::new(SEGMENT_HEADER_BYTES);
        self.zeroed = SEGMENT_HEADER_BYTES;
        Ok(())
    }

    /// Cuts the zeros off, flushes the index and marks the manifest as cleanly closed.
    fn close(&mut self) -> Result<()> {
        self.queue.check_poisoned()?;
        let file = &self.active.file;
        file.set_len(self.tail)?;
        file.sync()?;
        self.synced = self.tail;
        // The manifest's last edit will say it, too. Without the note, one damaged byte there would leave the last
        // commits unprotected.
        if !self.note_schedule.covers(self.tail) {
            self.note_end()?;
        }
        let persisted = with_reserve(&self.queue, || self.sink.persist(&self.log_end()))?;
        self.manifest.edit(|manifest| {
            manifest.tables = persisted.tables;
            manifest.next_table = persisted.next_table;
            manifest.covers = (self.active.id, self.tail);
            manifest.covers_state = self.state.clone();
            manifest.synced = self.tail;
            manifest.clean = Some(CleanClose { tail: self.tail, state: self.state.clone() });
        })?;
        self.sink.after_persist();
        if let Some(room) = self.queue.room() {
            room.restore_reserve();
        }
        Ok(())
    }
}

/// Calls `write`, and once more with the reserve freed if it failed for lack of room.
fn with_reserve<T>(queue: &WriteQueue, mut write: impl FnMut() -> Result<T>) -> Result<T> {
    match queue.room() {
        Some(room) => room.retry_with_reserve(write),
        None => write(),
    }
}

/// Cuts a segment at its tail, writes its footer and syncs it; returns its length.
pub fn seal(segment: &Segment, tail: u64, state: &LogState) -> Result<u64> {
    let footer =
        SegmentFooter { tail, state: state.clone(), root: state.ledger.root(), rewritten_chain: None };
    let bytes = footer.encode(segment.salt).map_err(|e| Error::bug(e.to_string()))?;
    segment.file.set_len(tail)?;
    segment.file.write_at(&[IoSlice::new(&bytes)], tail)?;
    segment.file.sync()?;
    Ok(tail + bytes.len() as u64)
}

/// Creates and syncs an empty segment. Replaces a file of the same name: it is left over from a crash before
/// the manifest listed it.
pub fn create_segment(
    io: &dyn Io,
    paths: &StorePaths,
    store: &StoreId,
    id: SegmentId,
    state: &LogState,
) -> Result<Segment> {
    let path = paths.segment(id);
    if io.stat(&path)?.is_some() {
        io.remove(&path)?;
    }
    let file = io.open(&path, OpenMode::CreateNew)?;
    let header = SegmentHeader {
        magic: SEGMENT_MAGIC,
        format: SEGMENT_FORMAT,
        cipher: 0,
        key_id: 0,
        store: *store,
        segment: id,
        first_seqno: state.next_seqno,
        chain: state.chain,
        created_ns: io.now_ns(),
    };
    let bytes = header.encode().map_err(|e| Error::bug(e.to_string()))?;
    file.write_at(&[IoSlice::new(&bytes)], 0)?;
    file.sync()?;
    io.sync_dir(&paths.segments())?;
    Ok(Segment::new(*store, id, path, file))
}

#[cfg(test)]
#[cfg(not(annals_shuttle))]
mod tests;
