//! The queue under a scheduler: batches that are dropped after their place is fixed, which only unit tests
//! can produce. Other schedules are in `engine/tests/schedules`.

use std::sync::Arc;

use shuttle::thread;

use crate::error::ErrorKind;
use crate::ids::{NamespaceId, SegmentId, Seqno, StoreId};
use crate::log::batch::BatchBuf;
use crate::log::layout::SEGMENT_HEADER_BYTES;
use crate::log::queue::{Durability, Job, Queue};
use crate::log::record::GroupPart;
use crate::log::sequence::Sequence;
use crate::log::ticket::Failure;
use crate::sync::channel::unbounded;
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
        batch.group_part(&group_part()).unwrap();
    }
    batch
}

/// Handles jobs like the writer, without a disk: checks that places are consecutive, and answers every job.
fn write(queue: &Queue, jobs: &crate::sync::channel::Receiver<Job>) -> u64 {
    let mut sequence = Sequence::new(Seqno(1));
    let (mut at, mut next, mut batches) = ((SegmentId(1), SEGMENT_HEADER_BYTES), Seqno(1), 0);
    loop {
        sequence.push(jobs.recv().unwrap());
        while let Some(job) = sequence.pop() {
            match job {
                Job::Batch(queued) => {
                    if queued.segment != at.0 {
                        assert!(at.1 >= SEGMENT_BYTES, "the segment changed before it was full");
                        at = (SegmentId(at.0.0 + 1), SEGMENT_HEADER_BYTES);
                    }
                    assert_eq!((queued.segment, queued.offset, queued.first_seqno), (at.0, at.1, next));
                    at.1 += queued.batch.bytes.len() as u64;
                    next = Seqno(next.0 + queued.batch.starts.len() as u64);
                    queue.give_back(queued.batch.bytes.len());
                    let done = queue.check().map(|()| Seqno(next.0 - 1)).map_err(|e| Failure::of(&e));
                    batches += u64::from(done.is_ok());
                    queued.completer.complete(done);
                    queue.take_back(queued.batch);
                }
                Job::Lost { from, to } => {
                    // Nothing can follow a lost batch.
                    assert!(from == next && to > next);
                    let failure = Failure { kind: ErrorKind::Bug, message: "a batch was lost".into() };
                    queue.poison(failure);
                    return drain(queue, sequence, jobs, batches);
                }
                Job::Seal { .. } => unreachable!("nobody compacts here"),
                Job::Barrier { at, completer } => {
                    assert_eq!(at, next);
                    completer.complete(Ok(Seqno(next.0 - 1)));
                }
                Job::Close { at } => {
                    assert_eq!(at, next, "closed before all was written");
                    return batches;
                }
            }
        }
    }
}

/// After a loss: fails every job until the queue is closed.
fn drain(
    queue: &Queue,
    mut sequence: Sequence<Job>,
    jobs: &crate::sync::channel::Receiver<Job>,
    batches: u64,
) -> u64 {
    loop {
        while let Some(job) = sequence.pop() {
            match job {
                Job::Batch(queued) => {
                    queue.give_back(queued.batch.bytes.len());
                    queued.completer.complete(Err(Failure::of(&queue.check().unwrap_err())));
                }
                Job::Lost { .. } | Job::Seal { .. } => {}
                Job::Barrier { completer, .. } => {
                    completer.complete(Err(Failure::of(&queue.check().unwrap_err())));
                }
                Job::Close { .. } => return batches,
            }
        }
        sequence.push(jobs.recv().unwrap());
    }
}

fn queue_of(budget: usize) -> (Arc<Queue>, crate::sync::channel::Receiver<Job>) {
    let (sender, jobs) = unbounded();
    let store = StoreId([7; 16]);
    let at = SEGMENT_HEADER_BYTES;
    (
        Arc::new(Queue::new(sender, store, SegmentId(1), at, Seqno(1), budget, SEGMENT_BYTES, no_schema())),
        jobs,
    )
}

#[test]
fn places_follow_each_other_whoever_is_faster() {
    driver::explore("schedules::placed_batches_follow_each_other_in_any_schedule", |_| {
        let (queue, jobs) = queue_of(600);
        let writer = {
            let queue = queue.clone();
            thread::spawn(move || write(&queue, &jobs))
        };
        let submitters: Vec<_> = (0..SUBMITTERS)
            .map(|submitter| {
                let queue = queue.clone();
                thread::spawn(move || {
                    let mut last = Seqno(0);
                    for i in 0..BATCHES {
                        let records = 1 + (submitter + i) % 3;
                        let submitted =
                            queue.submit(batch(records), &[], None, Durability::Disk, 0, false).unwrap();
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
        let refused = queue.submit(batch(1), &[], None, Durability::Disk, 0, false).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
    });
}

#[test]
fn a_batch_lost_after_its_place_was_fixed_ends_all_writing_and_leaves_nobody_waiting() {
    driver::explore("schedules::batch_lost_after_placing_poisons_the_queue", |_| {
        let (queue, jobs) = queue_of(500);
        let writer = {
            let queue = queue.clone();
            thread::spawn(move || write(&queue, &jobs))
        };
        let submitters: Vec<_> = (0..SUBMITTERS)
            .map(|submitter| {
                let queue = queue.clone();
                thread::spawn(move || {
                    for i in 0..BATCHES {
                        if submitter == 0 && i == 1 {
                            queue.lose(&batch(2));
                        }
                        let sent = queue.submit(batch(1), &[], None, Durability::Disk, 0, false);
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
        assert_eq!(queue.check().unwrap_err().kind(), ErrorKind::Poisoned);
    });
}
