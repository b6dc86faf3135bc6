//! The queue without a writer: what it counts, leases and keeps.

use super::*;
use crate::blob::{AnchorSeed, GroupId, PlanStep};
use crate::log::layout::BATCH_HEADER_BYTES;
use crate::log::record::GroupPart;
use crate::testing::no_schema;
use std::collections::VecDeque;

const SPACE: NamespaceId = NamespaceId(16);

fn queue(segment_bytes_max: u64) -> Arc<WriteQueue> {
    let queue = WriteQueue::new(
        StoreId::default(),
        SegmentId(3),
        96,
        Seqno(5),
        1 << 20,
        segment_bytes_max,
        no_schema(),
    );
    Arc::new(queue)
}

fn take_jobs(queue: &WriteQueue) -> VecDeque<WriterJob> {
    queue.inbox.take(VecDeque::new())
}

fn terms(at_close: bool) -> SubmitTerms {
    SubmitTerms { durability: Durability::Process, time_ns: 7, at_close, write_thread: WriteThread::Writer }
}

fn packer() -> Packer {
    Packer::new(AnchorSeed(1))
}

/// A batch with one part of `group`, and the place of that part.
fn batch(group: u64) -> (BatchBuf, Vec<(u64, u32, u32)>) {
    let mut batch = BatchBuf::new(SPACE);
    let part = GroupPart {
        group,
        namespace: SPACE,
        raw_start: 0,
        raw_len: 4,
        codec: 0,
        before_offset: 0,
        before_len: 0,
        encoded: b"four",
    };
    let (start, len) = batch.push_group_part(&part).unwrap();
    (batch, vec![(group, start, len)])
}

/// A lease whose packer has an open group.
fn lease_with(queue: &Arc<WriteQueue>, group: u64) -> Lease {
    let mut lease = queue.lease(SPACE, packer);
    let packer = &mut lease.groups().unwrap().packer;
    packer.put(b"four", &vec![PlanStep::New(0..4)].into(), false, &mut || GroupId(group)).unwrap();
    lease
}

fn submit(queue: &Arc<WriteQueue>, group: u64, lease: Option<Lease>) -> Result<Seqno> {
    let (batch, places) = batch(group);
    queue.submit(batch, &places, lease, terms(false)).map(|(seqno, _)| seqno)
}

fn lease_counts(queue: &WriteQueue) -> (usize, usize) {
    let order = lock(&queue.order);
    (order.continuing_leases, order.idle.len())
}

#[test]
fn leased_groups_count_until_returned_or_dropped() {
    let queue = queue(1 << 30);
    let fresh = lease_with(&queue, 1);
    assert_eq!(lease_counts(&queue), (0, 0));
    drop(fresh);
    assert_eq!(lease_counts(&queue), (0, 0), "what has no parts yet was not counted");
    let lease = lease_with(&queue, 2);
    submit(&queue, 2, Some(lease)).unwrap();
    assert_eq!(lease_counts(&queue), (0, 1));
    drop(queue.lease(NamespaceId(17), packer));
    assert_eq!(lease_counts(&queue), (0, 1), "another namespace's");
    let mut lease = queue.lease(SPACE, packer);
    assert_eq!(lease_counts(&queue), (1, 0));
    // The part follows the header of the batch at offset 96.
    let len = batch(2).1[0].2;
    assert_eq!(lease.groups().unwrap().last_part(2), (96 + BATCH_HEADER_BYTES as u32, len));
    assert_eq!(lease.groups().unwrap().last_part(3), (0, 0));
    submit(&queue, 2, Some(lease)).unwrap();
    assert_eq!(lease_counts(&queue), (0, 1));
    drop(queue.lease(SPACE, packer));
    assert_eq!(lease_counts(&queue), (0, 0), "closed for good");
}

#[test]
fn eight_idle_groups_are_kept_newest_leased_first() {
    let queue = queue(1 << 30);
    let leases: Vec<Lease> = (1..=10).map(|group| lease_with(&queue, group)).collect();
    for (group, lease) in (1..).zip(leases) {
        submit(&queue, group, Some(lease)).unwrap();
        assert_eq!(lease_counts(&queue), (0, IDLE_GROUPS_MAX.min(usize::try_from(group).unwrap())));
    }
    let mut lent: Vec<Lease> = (0..9).map(|_| queue.lease(SPACE, packer)).collect();
    let groups: Vec<_> = lent.iter_mut().map(|lease| lease.groups().unwrap().packer.open_groups()).collect();
    assert_eq!(
        groups,
        [[10], [9], [8], [7], [6], [5], [4], [3]]
            .map(|one| one.to_vec())
            .into_iter()
            .chain([vec![]])
            .collect::<Vec<_>>()
    );
    assert_eq!(lease_counts(&queue), (8, 0));
}

#[test]
fn full_segment_rotates_once_no_group_continues_in_it() {
    let bytes = batch(1).0.bytes.len() as u64;
    // The second batch fills the segment exactly.
    let queue = queue(96 + 2 * bytes);
    let place = || match take_jobs(&queue).pop_front() {
        Some(WriterJob::Batch(queued)) => (queued.segment.0, queued.offset, queued.first_seqno.0),
        other => panic!("{other:?}"),
    };
    let first = lease_with(&queue, 1);
    submit(&queue, 1, Some(first)).unwrap();
    assert_eq!(place(), (3, 96, 5));
    let held = queue.lease(SPACE, packer);
    submit(&queue, 2, None).unwrap();
    assert_eq!(place(), (3, 96 + bytes, 6));
    // A lease holds a group with parts in this segment, so the segment stays.
    submit(&queue, 3, None).unwrap();
    assert_eq!(place(), (3, 96 + 2 * bytes, 7));
    submit(&queue, 1, Some(held)).unwrap();
    assert_eq!((place(), lease_counts(&queue)), ((3, 96 + 3 * bytes, 8), (0, 0)));
    submit(&queue, 4, None).unwrap();
    assert_eq!(place(), (4, 96, 9));
    submit(&queue, 5, None).unwrap();
    assert_eq!(place(), (4, 96 + bytes, 10));
    submit(&queue, 6, None).unwrap();
    assert_eq!(place(), (5, 96, 11));
}

#[test]
fn budget_bounds_bytes_except_for_a_single_large_batch() {
    let budget = ByteBudget { limit: 10, used: Mutex::default(), freed: Condvar::new() };
    budget.acquire(4, || ());
    budget.acquire(6, || ());
    assert_eq!(lock(&budget.used).bytes, 10, "just full");
    budget.release(4);
    budget.release(6);
    budget.acquire(25, || ());
    assert_eq!(lock(&budget.used).bytes, 25, "alone");
    budget.release(25);
    crate::sync::thread::scope(|scope| {
        for bytes in [3, 4, 5, 6, 7] {
            let budget = &budget;
            scope.spawn(move || {
                for _ in 0..2000 {
                    budget.acquire(bytes, || ());
                    assert!(lock(&budget.used).bytes <= 10);
                    budget.release(bytes);
                }
            });
        }
    });
    assert_eq!(lock(&budget.used).bytes, 0);
}

#[test]
fn thirty_two_spare_batches_are_kept() {
    let queue = queue(1 << 30);
    for count in 1..=40 {
        queue.recycle(batch(1).0);
        assert_eq!(lock(&queue.spare).len(), SPARE_BATCHES_MAX.min(count));
    }
    let again = queue.batch(NamespaceId(99));
    assert_eq!((again.namespace, again.is_empty(), lock(&queue.spare).len()), (NamespaceId(99), true, 31));
    let mut large = BatchBuf::new(SPACE);
    large.bytes.reserve(4 << 20);
    queue.recycle(large);
    assert_eq!(lock(&queue.spare).len(), 31, "too large to keep");
}

#[test]
fn barrier_waits_only_for_unpublished_batches() {
    let queue = queue(1 << 30);
    queue.barrier(Seqno(4)).unwrap();
    assert_eq!(queue.inbox.job_count(), 0);
    submit(&queue, 1, None).unwrap();
    assert!(matches!(take_jobs(&queue).pop_front(), Some(WriterJob::Batch(_))));
    queue.barrier(Seqno(5)).unwrap();
    assert_eq!(queue.inbox.job_count(), 0);
    // No writer answers: waiters get an error.
    queue.inbox.end();
    assert_eq!(queue.barrier(Seqno(4)).unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(queue.barrier(Seqno(6)).unwrap_err().kind(), ErrorKind::Poisoned);
    queue.close();
    queue.barrier(Seqno(4)).unwrap();
}

#[test]
fn stopped_queue_takes_only_close_batches_closed_takes_none() {
    let queue = queue(1 << 30);
    let refused = |at_close| {
        let (batch, places) = batch(1);
        let done = queue.submit(batch, &places, None, terms(at_close));
        done.err().map(|error| error.kind())
    };
    assert_eq!(refused(false), None);
    assert_eq!(lock(&queue.budget.used).bytes, batch(1).0.bytes.len());
    queue.stop_accepting();
    assert_eq!(refused(false), Some(ErrorKind::Unavailable));
    assert_eq!(refused(true), None);
    queue.close();
    assert_eq!(refused(true), Some(ErrorKind::Unavailable));
    queue.close();
    let kinds: Vec<_> =
        take_jobs(&queue).iter().map(|job| (job.first_seqno().0, job.end_seqno().0)).collect();
    assert_eq!(kinds, [(5, 6), (6, 7), (7, 7)]);
    // A refused batch releases its budget.
    assert_eq!(lock(&queue.budget.used).bytes, 2 * batch(1).0.bytes.len());
    queue.release_bytes(2 * batch(1).0.bytes.len());
    assert!(!queue.is_poisoned() && queue.check_poisoned().is_ok());
    let failure = WriteFailure { kind: ErrorKind::Unavailable, message: "first".into() };
    let other = WriteFailure { message: "second".into(), ..failure.clone() };
    assert_eq!(&*queue.poison(failure).message, "first");
    assert_eq!(&*queue.poison(other).message, "first");
    assert!(queue.is_poisoned());
    assert!(queue.check_poisoned().unwrap_err().to_string().contains("first"));
    assert_eq!(refused(true), Some(ErrorKind::Poisoned));
}
