//! The queue under a scheduler: batches that are dropped after their place is fixed, which only unit tests
//! can produce. Other schedules are in `engine/tests/schedules`.

use std::collections::VecDeque;
use std::sync::Arc;

use shuttle::thread;

use crate::error::ErrorKind;
use crate::ids::{NamespaceId, SegmentId, Seqno, StoreId};
use crate::log::batch::BatchBuf;
use crate::log::layout::SEGMENT_HEADER_BYTES;
use crate::log::queue::{Durability, SubmitTerms, WriteQueue, WriteThread, WriterJob};
use crate::log::record::GroupPart;
use crate::log::sequence::JobSequence;
use crate::log::ticket::WriteFailure;
use crate::testing::no_schema;

#[path = "../../../../tests/schedules/driver.rs"]
mod driver;

const SUBMITTERS: u64 = 3;
const BATCHES: u64 = 4;
const SEGMENT_BYTES: u64 = 700;

/// A part of a group, as any.
fn group_part() -> GroupPart<'static> {
    GroupPart {
        group: 7,
        namespace: NamespaceId(16),
        raw_start: 0,
        raw_len: 5,
        codec: 0,
        before_offset: 0,
        before_len: 0,
        encoded: b"bytes",
    }
}

fn batch(records: u64) -> BatchBuf {
    let mut batch = BatchBuf::new(NamespaceId(16));
    for _ in 0..records {
        batch.push_group_part(&group_part()).unwrap();
    }
    batch
}

/// Waits for jobs and brings them into the order of the log.
fn fetch(queue: &WriteQueue, sequence: &mut JobSequence<WriterJob>) {
    queue.inbox.wait(false, None);
    queue.inbox.take(VecDeque::new()).into_iter().for_each(|job| sequence.push(job));
}

/// Handles jobs like the writer, without a disk: checks that places are consecutive, and answers every job.
fn run_writer(queue: &WriteQueue) -> u64 {
    let mut sequence = JobSequence::new(Seqno(1));
    let (mut at, mut next, mut batches) = ((SegmentId(1), SEGMENT_HEADER_BYTES), Seqno(1), 0);
    loop {
        fetch(queue, &mut sequence);
        while let Some(job) = sequence.pop() {
            match job {
                WriterJob::Batch(queued) => {
                    if queued.segment != at.0 {
                        assert!(at.1 >= SEGMENT_BYTES, "the segment changed before it was full");
                        at = (SegmentId(at.0.0 + 1), SEGMENT_HEADER_BYTES);
                    }
                    assert_eq!((queued.segment, queued.offset, queued.first_seqno), (at.0, at.1, next));
                    at.1 += queued.batch.bytes.len() as u64;
                    next = Seqno(next.0 + queued.batch.starts.len() as u64);
                    queue.release_bytes(queued.batch.bytes.len());
                    let done = queue
                        .check_poisoned()
                        .map(|()| Seqno(next.0 - 1))
                        .map_err(|e| WriteFailure::from_error(&e));
                    batches += u64::from(done.is_ok());
                    queued.completer.complete(done);
                    queue.recycle(queued.batch);
                }
                WriterJob::Lost { from, to } => {
                    // Nothing can follow a lost batch.
                    assert!(from == next && to > next);
                    let failure = WriteFailure { kind: ErrorKind::Bug, message: "a batch was lost".into() };
                    queue.poison(failure);
                    return fail_remaining_jobs(queue, sequence, batches);
                }
                WriterJob::Seal { .. } => unreachable!("nobody compacts here"),
                WriterJob::Barrier { at, completer } => {
                    assert_eq!(at, next);
                    completer.complete(Ok(Seqno(next.0 - 1)));
                }
                WriterJob::Close { at } => {
                    assert_eq!(at, next, "closed before all was written");
                    return batches;
                }
            }
        }
    }
}

/// After a loss: fails every job until the queue is closed.
fn fail_remaining_jobs(queue: &WriteQueue, mut sequence: JobSequence<WriterJob>, batches: u64) -> u64 {
    loop {
        while let Some(job) = sequence.pop() {
            match job {
                WriterJob::Batch(queued) => {
                    queue.release_bytes(queued.batch.bytes.len());
                    queued
                        .completer
                        .complete(Err(WriteFailure::from_error(&queue.check_poisoned().unwrap_err())));
                }
                WriterJob::Lost { .. } | WriterJob::Seal { .. } => {}
                WriterJob::Barrier { completer, .. } => {
                    completer.complete(Err(WriteFailure::from_error(&queue.check_poisoned().unwrap_err())));
                }
                WriterJob::Close { .. } => return batches,
            }
        }
        fetch(queue, &mut sequence);
    }
}

fn queue_of(budget: usize) -> Arc<WriteQueue> {
    let at = SEGMENT_HEADER_BYTES;
    let (store, segment) = (StoreId([7; 16]), SegmentId(1));
    Arc::new(WriteQueue::new(store, segment, at, Seqno(1), budget, SEGMENT_BYTES, no_schema()))
}

fn terms() -> SubmitTerms {
    SubmitTerms {
        durability: Durability::Disk,
        time_ns: 0,
        at_close: false,
        write_thread: WriteThread::Writer,
    }
}

#[test]
fn placed_batches_follow_each_other_in_any_schedule() {
    driver::explore("schedules::placed_batches_follow_each_other_in_any_schedule", |_| {
        let queue = queue_of(600);
        let writer = {
            let queue = queue.clone();
            thread::spawn(move || run_writer(&queue))
        };
        let submitters: Vec<_> = (0..SUBMITTERS)
            .map(|submitter| {
                let queue = queue.clone();
                thread::spawn(move || {
                    let mut last = Seqno(0);
                    for i in 0..BATCHES {
                        let records = 1 + (submitter + i) % 3;
                        let submitted = queue.submit(batch(records), &[], None, terms()).unwrap();
                        let (first, ticket) = submitted;
                        assert!(first > last);
                        if i % 2 == 0 {
                            last = ticket.wait().unwrap();
                            assert_eq!(last.0, first.0 + records - 1);
                        }
                        queue.barrier(Seqno(0)).unwrap();
                    }
                })
            })
            .collect();
        submitters.into_iter().for_each(|submitter| submitter.join().unwrap());
        queue.close();
        assert_eq!(writer.join().unwrap(), SUBMITTERS * BATCHES);
        let refused = queue.submit(batch(1), &[], None, terms()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
    });
}

#[test]
fn batch_lost_after_placing_poisons_the_queue() {
    driver::explore("schedules::batch_lost_after_placing_poisons_the_queue", |_| {
        let queue = queue_of(500);
        let writer = {
            let queue = queue.clone();
            thread::spawn(move || run_writer(&queue))
        };
        let submitters: Vec<_> = (0..SUBMITTERS)
            .map(|submitter| {
                let queue = queue.clone();
                thread::spawn(move || {
                    for i in 0..BATCHES {
                        if submitter == 0 && i == 1 {
                            queue.drop_after_placing(&batch(2));
                        }
                        let sent = queue.submit(batch(1), &[], None, terms());
                        match sent.and_then(|(_, ticket)| ticket.wait()) {
                            Ok(_) => assert!(submitter != 0 || i == 0, "acknowledged after a lost batch"),
                            Err(error) => assert_eq!(error.kind(), ErrorKind::Poisoned),
                        }
                    }
                    if queue.barrier(Seqno(0)).is_ok() {
                        assert!(submitter != 0, "acknowledged after a lost batch");
                    }
                })
            })
            .collect();
        submitters.into_iter().for_each(|submitter| submitter.join().unwrap());
        queue.close();
        assert!(writer.join().unwrap() < SUBMITTERS * BATCHES);
        assert_eq!(queue.check_poisoned().unwrap_err().kind(), ErrorKind::Poisoned);
    });
}
