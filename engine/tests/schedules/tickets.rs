//! Many submitters: the order of the queue, its bound, and the results of tickets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use annals::io::sim::SimIo;
use annals::{Component, Durability, Frame, Options, RunSpec, Seqno, Status, kv::ScanRange};

use crate::driver::explore;
use crate::support::{assert_whole, fresh, options, reopened};
use crate::thread;

#[test]
fn every_submitter_gets_its_own_place_in_order() {
    explore("tickets::every_submitter_gets_its_own_place_in_order", |seed| {
        let io = SimIo::new(seed);
        let (store, space, keys) = fresh(options(&io));
        let first = store.seqno();
        let all: Vec<Vec<Seqno>> = thread::scope(|scope| {
            let submitters: Vec<_> = (0..3u8)
                .map(|submitter| {
                    let (space, keys) = (&space, &keys);
                    scope.spawn(move || {
                        let mut tickets = Vec::new();
                        for i in 0..4u8 {
                            let mut batch = space.batch();
                            // One record or two; some are large, so that encoding them takes long.
                            batch.put(keys, &[submitter, i], vec![i; 40 * usize::from(submitter)]);
                            if i % 2 == 1 {
                                batch.put(keys, &[submitter, i, 1], "second");
                            }
                            let durability = [Durability::Disk, Durability::Process][usize::from(i % 2)];
                            if i == 2 {
                                // A dropped batch leaves no gap.
                                space.batch().put(keys, b"never", "seen");
                            }
                            tickets.push(batch.submit_with(durability).unwrap());
                        }
                        tickets.into_iter().map(|ticket| ticket.wait().unwrap()).collect()
                    })
                })
                .collect();
            submitters.into_iter().map(|submitter| submitter.join().unwrap()).collect()
        });
        // Each batch ends at its own seqno, in its thread's submission order; together they leave no gap.
        assert!(all.iter().all(|of| of.is_sorted_by(|a, b| a < b)), "{all:?}");
        let mut ends: Vec<u64> = all.iter().flatten().map(|seqno| seqno.0).collect();
        ends.sort_unstable();
        ends.dedup();
        assert_eq!(ends.len(), 12, "{all:?}");
        assert_eq!(*ends.last().unwrap(), first.0 + 3 * (2 + 4));
        assert_eq!(store.seqno().0, *ends.last().unwrap());
        store.close().unwrap();
        let (store, _, keys) = reopened(options(&io));
        assert_eq!(keys.scan(ScanRange::all()).map(Result::unwrap).count(), 18);
        assert_whole(&store);
    });
}

/// A waker that notes that it was woken.
struct WokenFlag(AtomicBool, thread::Thread);

impl Wake for WokenFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
        self.1.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let woken = Arc::new(WokenFlag(AtomicBool::new(false), thread::current()));
    let waker = Waker::from(woken.clone());
    let mut future = std::pin::pin!(future);
    loop {
        if let std::task::Poll::Ready(done) =
            future.as_mut().poll(&mut std::task::Context::from_waker(&waker))
        {
            return done;
        }
        // A missing wake-up is a deadlock, which the scheduler detects.
        while !woken.0.swap(false, Ordering::SeqCst) {
            thread::park();
        }
    }
}

#[test]
fn ticket_completes_by_any_wait_and_batch_is_visible() {
    explore("tickets::ticket_completes_by_any_wait_and_batch_is_visible", |seed| {
        let io = SimIo::new(seed);
        let (store, space, keys) = fresh(options(&io));
        thread::scope(|scope| {
            for submitter in 0..3u8 {
                let (space, keys, store) = (&space, &keys, &store);
                scope.spawn(move || {
                    for i in 0..3u8 {
                        let mut batch = space.batch();
                        batch.put(keys, &[submitter, i], "v");
                        // Such a batch is written when its ticket is waited for, polled or dropped.
                        let is_inline = i == 1 && (submitter + i) % 4 != 2;
                        let submitted = match is_inline {
                            true => batch.submit_inline(Durability::Disk),
                            false => batch.submit(),
                        };
                        let ticket = submitted.unwrap();
                        let last = match (submitter + i) % 4 {
                            0 => ticket.wait().unwrap(),
                            1 => block_on(ticket).unwrap(),
                            2 => {
                                while !ticket.is_done() {
                                    thread::yield_now();
                                }
                                ticket.wait().unwrap()
                            }
                            _ => {
                                // A dropped ticket does not cancel its batch, and a later put comes after it.
                                drop(ticket);
                                keys.put(&[submitter, i, 1], "after").unwrap()
                            }
                        };
                        assert!(store.seqno() >= last, "done, but not visible");
                        assert_eq!(keys.get(&[submitter, i]).unwrap().unwrap(), b"v");
                    }
                });
            }
        });
        store.close().unwrap();
    });
}

#[test]
fn a_queue_bounded_in_bytes_takes_everything_in_the_end() {
    explore("tickets::a_queue_bounded_in_bytes_takes_everything_in_the_end", |seed| {
        let io = SimIo::new(seed);
        let (store, space, keys) = fresh(Options { queue_bytes_max: 500, ..options(&io) });
        thread::scope(|scope| {
            for submitter in 0..4u8 {
                let (space, keys) = (&space, &keys);
                scope.spawn(move || {
                    let mut tickets = Vec::new();
                    for i in 0..3u8 {
                        let mut batch = space.batch();
                        // Some batches are larger than the whole queue.
                        batch.put(keys, &[submitter, i], vec![7; [10, 200, 900][usize::from(i)]]);
                        // An inline batch takes room although nobody writes it yet.
                        let submitted = match submitter % 2 {
                            0 => batch.submit(),
                            _ => batch.submit_inline(Durability::Process),
                        };
                        tickets.push(submitted.unwrap());
                    }
                    tickets.into_iter().for_each(|ticket| _ = ticket.wait().unwrap());
                });
            }
        });
        assert_eq!(keys.scan(ScanRange::all()).map(Result::unwrap).count(), 12);
        store.close().unwrap();
    });
}

#[cfg_attr(miri, ignore = "bodies are compressed by a C library")]
#[test]
fn open_groups_never_span_segments_that_change_under_them() {
    explore("tickets::open_groups_never_span_segments_that_change_under_them", |seed| {
        let io = SimIo::new(seed);
        let (store, space, _) = fresh(options(&io));
        let body = |thread: u8, i: u8| -> Vec<u8> {
            (0..700u32).map(|at| (at.wrapping_mul(2_654_435_761) >> (24 - i)) as u8 ^ thread).collect()
        };
        thread::scope(|scope| {
            for thread in 0..3u8 {
                let (space, body) = (&space, &body);
                scope.spawn(move || {
                    let run = space.begin_run(RunSpec::new(format!("{thread}"))).unwrap();
                    for i in 0..4 {
                        let frame = Frame::new(Component::Llm, body(thread, i), body(thread, i + 4));
                        if i == 2 {
                            // Its groups are leased and returned unused.
                            let mut dropped = run.batch().unwrap();
                            dropped.frame(frame.clone()).unwrap();
                        }
                        run.record(frame).unwrap();
                    }
                    run.end(Status::Ok).unwrap();
                });
            }
        });
        assert!(store.stats().unwrap().segments > 2);
        store.close().unwrap();
        let (store, space, _) = reopened(options(&io));
        for thread in 0..3u8 {
            let frames: Vec<_> =
                space.run(&format!("{thread}")).unwrap().frames().map(Result::unwrap).collect();
            assert_eq!(frames.len(), 4);
            for (i, frame) in frames.iter().enumerate() {
                assert!(frame.input == body(thread, i as u8) && frame.output == body(thread, i as u8 + 4));
            }
        }
        assert_whole(&store);
    });
}
