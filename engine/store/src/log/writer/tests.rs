//! The writer without its thread: group commit, refusals, and zeros written ahead.

use std::future::Future;
use std::path::Path;

use super::*;
use crate::ErrorKind;
use crate::ids::NamespaceId;
use crate::io::sim::{FailRule, OpKind, SimIo};
use crate::log::batch::BatchBuf;
use crate::log::manifest::{Manifest, ManifestState};
use crate::log::queue::{SubmitTerms, WriteThread};
use crate::log::record::{KvHead, RecordKind};
use crate::log::synced::{self, FoundNote};
use crate::log::ticket::new_ticket;
use crate::sync::channel::bounded;
use crate::testing::{NoSchema, no_schema};

/// An index without content.
#[derive(Debug)]
struct EmptySink;

impl LogSink for EmptySink {
    fn publish(&self, _: &[QueuedBatch]) -> Result<()> {
        Ok(())
    }
    fn make_room(&self, _: &LogEnd<'_>) -> Result<()> {
        Ok(())
    }
    fn stop(&self) {}
    fn persist(&self, _: &LogEnd<'_>) -> Result<PersistedTables> {
        Ok(PersistedTables { tables: Vec::new(), next_table: 1 })
    }
    fn after_persist(&self) {}
}

fn writer(zero_ahead_bytes: u64) -> (SimIo, LogWriter) {
    let sim = SimIo::new(1);
    let io: Arc<dyn Io> = Arc::new(sim.clone());
    let paths = StorePaths::new(Path::new("s"));
    sim.create_dir_all(&paths.segments()).unwrap();
    let (store, id, state) = (StoreId([7; 16]), SegmentId(1), LogState::empty());
    let active = Arc::new(create_segment(&sim, &paths, &store, id, &state).unwrap());
    let segments = Arc::new(Segments::default());
    segments.insert(active.clone());
    let listed = ManifestState {
        format: SEGMENT_FORMAT,
        store,
        created_ns: 1,
        segments: vec![SegmentEntry { id, first_seqno: Seqno(1), sealed_bytes: None }],
        tables: Vec::new(),
        covers: (id, SEGMENT_HEADER_BYTES),
        covers_state: state.clone(),
        synced: SEGMENT_HEADER_BYTES,
        clean: None,
        next_table: 1,
        next_rewritten: SegmentId::REWRITTEN_MIN,
        erased: crate::log::totals::LogTotals::default(),
        vectors: crate::log::manifest::VectorList::default(),
        cuts: crate::log::manifest::CutList::default(),
    };
    let at = (id, SEGMENT_HEADER_BYTES);
    let notes = SyncedFile::open(&sim, &paths, store, &FoundNote::default(), at, &state).unwrap();
    let manifest = Manifest::create(&sim, &paths, 1, listed).unwrap();
    let manifest = Arc::new(SharedManifest::new(io.clone(), paths.clone(), manifest, None));
    let queue = WriteQueue::new(store, id, SEGMENT_HEADER_BYTES, Seqno(1), 64 << 20, 1 << 30, no_schema());
    let writer = LogWriter {
        io,
        paths,
        queue: Arc::new(queue),
        segments,
        sink: Arc::new(EmptySink),
        manifest,
        store,
        active,
        state,
        tail: SEGMENT_HEADER_BYTES,
        synced: SEGMENT_HEADER_BYTES,
        notes,
        note_schedule: NoteSchedule::new(SEGMENT_HEADER_BYTES),
        started: SEGMENT_HEADER_BYTES,
        zeroed: SEGMENT_HEADER_BYTES,
        zero_ahead_bytes,
        read_mode: ReadMode::Mapped,
        sequence: JobSequence::new(Seqno(1)),
        arrived: VecDeque::new(),
        has_noted_gap: false,
    };
    (sim, writer)
}

/// A batch of one record with `bytes` bytes in its tail.
fn batch(bytes: usize) -> BatchBuf {
    let head = KvHead { space: 20, time_ns: 1, key: b"key".to_vec(), value: None }.encode();
    let mut batch = BatchBuf::new(NamespaceId(16));
    batch.push_logical(RecordKind::Delete, [1; 16], &head, &vec![0; bytes]).unwrap();
    batch
}

fn terms() -> SubmitTerms {
    SubmitTerms {
        durability: Durability::Process,
        time_ns: 7,
        at_close: false,
        write_thread: WriteThread::Writer,
    }
}

/// Offset and length of the writes to the segment from operation `from` on.
fn writes(sim: &SimIo, from: usize) -> Vec<(u64, usize)> {
    let history = sim.history();
    let ops = history.ops()[from..].iter().filter(|op| op.kind() == OpKind::Write);
    ops.filter(|op| op.path().ends_with("00000001.seg"))
        .map(|op| (op.offset().unwrap(), op.written().len()))
        .collect()
}

#[test]
fn waiting_batches_are_written_together_up_to_4_mib() {
    let (sim, writer) = writer(0);
    let queue = writer.queue.clone();
    let len = batch(1 << 20).bytes.len();
    let tickets: Vec<_> =
        (0..6).map(|_| queue.submit(batch(1 << 20), &[], None, terms()).unwrap().1).collect();
    queue.close();
    let (ended_in, ended) = bounded(1);
    let before = sim.op_count();
    writer.run(&ended_in);
    ended.recv().unwrap().unwrap();
    assert_eq!(writes(&sim, before), [(96, 4 * len), (96 + 4 * len as u64, 2 * len)]);
    for (number, ticket) in (1..).zip(tickets) {
        assert_eq!(ticket.wait().unwrap(), Seqno(number));
    }
}

#[test]
fn batch_not_at_the_log_end_is_refused() {
    let (_, mut writer) = writer(0);
    let salt = writer.active.salt;
    let queued = |segment, offset, first_seqno| {
        let mut batch = batch(5);
        let sums = Some(batch.stamp_and_sum(&NoSchema, salt, offset, Seqno(first_seqno)).unwrap());
        QueuedBatch {
            batch,
            sums,
            segment: SegmentId(segment),
            offset,
            first_seqno: Seqno(first_seqno),
            time_ns: 1,
            durability: Durability::Process,
            completer: new_ticket(None).0,
        }
    };
    for (segment, offset, seqno) in [(2, 96, 1), (1, 97, 1), (1, 96, 2), (0, 96, 1), (1, 0, 1), (1, 96, 0)] {
        let refused = writer.bind_to_chain(&mut queued(segment, offset, seqno)).unwrap_err();
        assert_eq!((refused.kind(), writer.tail), (ErrorKind::Bug, 96), "{segment} {offset} {seqno}");
    }
    let mut first = queued(1, 96, 1);
    writer.bind_to_chain(&mut first).unwrap();
    let len = first.batch.bytes.len() as u64;
    assert_eq!((writer.tail, writer.state.next_seqno), (96 + len, Seqno(2)));
    let (header, _) = BatchHeader::check(&first.batch.bytes, writer.active.salt, 96).unwrap();
    assert_eq!((u64::from(header.bytes), header.form, header.synced), (len, BatchForm::Short, 96));
    assert!(writer.bind_to_chain(&mut queued(1, 96, 1)).is_err());
    writer.bind_to_chain(&mut queued(1, 96 + len, 2)).unwrap();
}

#[test]
fn zeros_are_written_to_a_multiple_of_the_step() {
    let (sim, mut writer) = writer(1000);
    let mut ahead = |tail| {
        let before = sim.op_count();
        writer.tail = tail;
        writer.zero_ahead().unwrap();
        (writes(&sim, before), writer.zeroed)
    };
    assert_eq!(ahead(96), (vec![], 96), "nothing was written since");
    assert_eq!(ahead(97), (vec![(97, 903)], 1000));
    assert_eq!(ahead(999), (vec![], 1000));
    assert_eq!(ahead(1000), (vec![], 1000));
    assert_eq!(ahead(1001), (vec![(1001, 999)], 2000));
    assert_eq!(ahead(4000), (vec![(4000, 1000)], 5000));
    let step = 200_000;
    writer.zero_ahead_bytes = step;
    (writer.tail, writer.zeroed) = (6000, 5000);
    let before = sim.op_count();
    writer.zero_ahead().unwrap();
    assert_eq!((writes(&sim, before), writer.zeroed), (vec![(6000, 194_000)], step));
    assert!(sim.read(&writer.paths.segment(SegmentId(1))).unwrap()[6000..].iter().all(|byte| *byte == 0));
    // A full disk has no room for zeros: they are no longer written.
    writer.tail = step + 1;
    sim.fail(FailRule::eio(OpKind::Write));
    assert!(writer.zero_ahead().is_err());
    sim.fail(FailRule::enospc(OpKind::Write));
    writer.zero_ahead().unwrap();
    assert_eq!((writer.zero_ahead_bytes, writer.zeroed), (0, step));
    assert_eq!(writer.active.file.len().unwrap(), step + 1);
    let before = sim.op_count();
    writer.zero_ahead().unwrap();
    assert_eq!(sim.op_count(), before);
}

/// Regression: the sync that ended a segment wrote up to 64 MiB, and every commit waited for it, 100 ms long.
#[test]
fn unsynced_bytes_are_sent_to_disk_by_the_mib() {
    let (_, mut writer) = writer(0);
    let mut started = |synced, tail| {
        (writer.synced, writer.tail) = (synced, tail);
        writer.start_writing();
        writer.started
    };
    let (mib, page) = (1 << 20, PAGE_BYTES);
    assert_eq!(started(96, mib + 95), 96, "the last page is not whole");
    assert_eq!(started(96, mib + page + 5), mib + page);
    assert_eq!(started(96, 2 * mib + page - 1), mib + page);
    assert_eq!(started(96, 2 * mib + page), 2 * mib + page);
    assert_eq!(started(5 * mib, 5 * mib + 7), 2 * mib + page, "it is synced");
    assert_eq!(started(5 * mib, 6 * mib), 6 * mib);
}

/// A caller who said that it would wait may drop its ticket, or poll it in a task.
#[test]
fn batch_left_to_a_caller_who_goes_away_is_written() {
    let (_, writer) = writer(0);
    let queue = writer.queue.clone();
    let (ended_in, ended) = bounded(1);
    crate::sync::thread::scope(|scope| {
        scope.spawn(move || writer.run(&ended_in));
        let submit = || {
            let terms = SubmitTerms { write_thread: WriteThread::Either, ..terms() };
            queue.submit(batch(5), &[], None, terms).unwrap().1
        };
        let mut polled = submit();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let mut poll = || std::pin::Pin::new(&mut polled).poll(&mut context).is_ready();
        while !poll() {
            crate::sync::thread::yield_now();
        }
        drop(submit());
        while queue.activity().batches < 2 {
            crate::sync::thread::yield_now();
        }
        assert_eq!(submit().wait().unwrap(), Seqno(3));
        queue.close();
    });
    ended.recv().unwrap().unwrap();
}

/// A commit of this durability. Returns the position up to which the log is noted after it.
fn noted_after_commit(sim: &SimIo, writer: &mut LogWriter, durability: Durability) -> u64 {
    let queue = writer.queue.clone();
    let ticket = queue.submit(batch(5), &[], None, SubmitTerms { durability, ..terms() }).unwrap().1;
    writer.handle_arrived();
    ticket.wait().unwrap();
    noted(sim, writer)
}

/// The position in the newest note.
fn noted(sim: &SimIo, writer: &LogWriter) -> u64 {
    let bytes = sim.read(&writer.paths.synced());
    synced::newest(bytes.as_deref(), writer.store, &writer.paths).unwrap().note.unwrap().synced
}

/// Regression: only a later sync made a note due. Commits with `Process` do not sync. While they went on, the `Disk`
/// commit before them was never noted.
#[test]
fn note_is_due_while_process_commits_follow() {
    let (sim, mut writer) = writer(0);
    assert_eq!(noted_after_commit(&sim, &mut writer, Durability::Disk), 96);
    for _ in 0..4 {
        sim.advance_ns(100_000_000);
        assert_eq!(noted_after_commit(&sim, &mut writer, Durability::Process), 96, "it is not due");
    }
    sim.advance_ns(100_000_000);
    assert_eq!(noted_after_commit(&sim, &mut writer, Durability::Process), writer.tail);
    let end = writer.tail;
    sim.advance_ns(2_000_000_000);
    assert_eq!(noted_after_commit(&sim, &mut writer, Durability::Process), end, "nothing synced is unnoted");
}

/// Regression: `Process` commits that ended before the note was due left it to the thread. The thread noted the log's
/// end only once the log had been idle, up to 0.8 s after the last of them.
#[test]
fn thread_notes_a_due_commit_before_the_log_is_idle() {
    let (sim, mut writer) = writer(0);
    noted_after_commit(&sim, &mut writer, Durability::Disk);
    sim.advance_ns(400_000_000);
    let idle_since = writer.end_position();
    noted_after_commit(&sim, &mut writer, Durability::Process);
    writer.note_if_idle_or_due(idle_since);
    assert_eq!(noted(&sim, &writer), 96, "it is not due");
    sim.advance_ns(100_000_000);
    writer.note_if_idle_or_due(idle_since);
    assert_eq!(noted(&sim, &writer), writer.tail);
    // Without a synced commit, only an idle log is noted.
    let idle_since = writer.end_position();
    sim.advance_ns(2_000_000_000);
    noted_after_commit(&sim, &mut writer, Durability::Process);
    writer.note_if_idle_or_due(idle_since);
    assert!(noted(&sim, &writer) < writer.tail);
    writer.note_if_idle_or_due(writer.end_position());
    assert_eq!(noted(&sim, &writer), writer.tail);
}
