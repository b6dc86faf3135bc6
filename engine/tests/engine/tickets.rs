//! Submitting without waiting, many threads at once, and the guarantees while segments change.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use annals::io::sim::{Crash, OpKind, SimIo};
use annals::{
    Component, Durability, ErrorKind, Frame, Options, RunSpec, Seqno, Status, Store,
    kv::{History, ScanRange},
};

use crate::support::{
    GrowingConversation, SeededRng, assert_whole, bodies, delete_tables, frames, fresh,
    process_durability_options, sim_options,
};

struct UnparkWaker(Thread, AtomicUsize);

impl Wake for UnparkWaker {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.unpark();
    }
}

/// Drives a future on this thread; also returns the number of wake-ups.
fn block_on<F: Future>(future: F) -> (F::Output, usize) {
    let unpark = Arc::new(UnparkWaker(std::thread::current(), AtomicUsize::new(0)));
    let waker = Waker::from(unpark.clone());
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(done) => return (done, unpark.1.load(Ordering::SeqCst)),
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn a_ticket_can_be_waited_on_asked_and_awaited() {
    let dir = tempfile::tempdir().unwrap();
    // With Durability::Disk a sync separates submitting from completion, so the wait is real.
    let store = Store::open(dir.path().join("s")).unwrap();
    let space = store.namespace("default").unwrap();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    let mut woken = 0;
    let mut last = Seqno(0);
    for i in 0..60u32 {
        let (seq, ticket) = run.submit(Frame::new(Component::Llm, i.to_string(), vec![7; 5000])).unwrap();
        assert_eq!(seq, i + 1);
        let seqno = match i % 3 {
            0 => ticket.wait().unwrap(),
            1 => {
                let (seqno, wakes) = block_on(ticket);
                woken += wakes;
                seqno.unwrap()
            }
            _ => {
                while !ticket.is_done() {
                    std::thread::yield_now();
                }
                block_on(ticket).0.unwrap()
            }
        };
        assert!(seqno > last, "tickets return the seqnos in order");
        last = seqno;
        // A completed batch is visible.
        assert_eq!(space.run("r").unwrap().info().frames, i + 1);
    }
    assert!(woken > 0, "no ticket was ever pending: the waker was not tested");
    // Dropping a ticket does not cancel its batch.
    drop(run.submit(Frame::new(Component::Llm, "dropped", "")).unwrap());
    let keys = space.keyspace("k", History::Latest).unwrap();
    let mut batch = space.batch();
    batch.put(&keys, b"a", "b");
    let (done, _) = block_on(async { batch.submit_with(Durability::Process)?.await });
    assert_eq!(done.unwrap(), store.seqno());
    assert_eq!(space.run("r").unwrap().info().frames, 61);
    run.end(Status::Ok).unwrap();
    store.close().unwrap();
    assert_eq!(keys.put(b"a", "c").unwrap_err().kind(), ErrorKind::Unavailable);
}

#[test]
fn acknowledged_commit_has_requested_durability() {
    let sim = SimIo::new(4);
    let store = Store::open_with("s", sim_options(&sim)).unwrap();
    let space = store.namespace("default").unwrap();
    let keys = space.keyspace("k", History::Latest).unwrap();
    keys.put(b"disk", "1").unwrap();
    let mut batch = space.batch();
    batch.put(&keys, b"process", "2");
    let syncs = sim.op_count();
    batch.submit_with(Durability::Process).unwrap().wait().unwrap();
    assert_eq!(sim.op_count() - syncs, 1, "a write and no sync");
    for (how, process) in [(Crash::Nothing, false), (Crash::Everything, true)] {
        let disk = sim.crash(how);
        let store = Store::open_with("s", sim_options(&disk)).unwrap();
        let keys = store.namespace("default").unwrap().find_keyspace("k").unwrap().unwrap();
        assert_eq!(keys.get(b"disk").unwrap().unwrap(), b"1");
        assert_eq!(keys.get(b"process").unwrap().is_some(), process, "{how:?}");
    }
}

/// A server submits the writes of many clients and then waits: one wait writes and syncs all of them.
#[test]
fn inline_batches_are_written_by_one_wait_with_one_sync() {
    let sim = SimIo::new(4);
    let store = Store::open_with("s", sim_options(&sim)).unwrap();
    let spaces = ["a", "b", "c"].map(|name| store.namespace(name).unwrap());
    let keys = spaces.each_ref().map(|space| space.keyspace("k", History::Latest).unwrap());
    keys[0].put(b"first", "").unwrap();
    let counts = || (sim.count(OpKind::Write), sim.count(OpKind::Sync));
    let (writes, syncs) = counts();
    let submit = |at: usize, key: &[u8]| {
        let mut batch = spaces[at].batch();
        batch.put(&keys[at], key, "v");
        batch.submit_inline(Durability::Disk).unwrap()
    };
    let [first, second, third] = [0, 1, 2].map(|at| submit(at, b"waited"));
    assert!(!first.is_done() && counts() == (writes, syncs), "nothing is written before the wait");
    second.wait().unwrap();
    assert_eq!(counts(), (writes + 1, syncs + 1));
    assert!(first.is_done() && third.is_done());
    // Polling leaves the batch to the writer's thread.
    block_on(submit(0, b"polled")).0.unwrap();
    drop(submit(0, b"dropped"));
    store.close().unwrap();
    let store = Store::open_with("s", sim_options(&sim.crash(Crash::Nothing))).unwrap();
    let keys = store.namespace("a").unwrap().find_keyspace("k").unwrap().unwrap();
    assert_eq!(keys.scan(ScanRange::all()).map(Result::unwrap).count(), 4);
}

#[test]
fn a_queue_bounded_in_bytes_takes_everything_in_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_with(
        dir.path().join("s"),
        Options { queue_bytes_max: 2000, ..process_durability_options() },
    )
    .unwrap();
    let space = store.namespace("default").unwrap();
    let keys = space.keyspace("k", History::Latest).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..12u64 {
            let (space, keys) = (&space, &keys);
            scope.spawn(move || {
                let mut rng = SeededRng(thread);
                let mut tickets = Vec::new();
                for i in 0..60 {
                    let mut batch = space.batch();
                    // Some batches are larger than the whole queue.
                    let len = [10, 500, 1900, 3500, 30_000][rng.below(5)];
                    batch.put(keys, format!("{thread:02}-{i:02}").as_bytes(), rng.bytes(len));
                    tickets.push(batch.submit().unwrap());
                }
                for ticket in tickets {
                    ticket.wait().unwrap();
                }
            });
        }
    });
    assert_eq!(keys.scan(ScanRange::all()).map(Result::unwrap).count(), 12 * 60);
    assert_whole(&store);
}

#[test]
fn sixteen_threads_record_into_one_run() {
    let (dir, store, space) = fresh();
    let run = space.begin_run(RunSpec::new("r")).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let run = &run;
            scope.spawn(move || {
                for (request, answer) in GrowingConversation::new(&format!("thread {thread}")).take(20) {
                    run.record(
                        Frame::new(Component::Llm, request, answer).metadata(format!("{{\"t\":{thread}}}")),
                    )
                    .unwrap();
                }
            });
        }
    });
    run.end(Status::Ok).unwrap();
    store.close().unwrap();
    let store = Store::open_read_only(dir.path().join("s")).unwrap();
    let all = frames(&store.namespace("default").unwrap().run("r").unwrap());
    assert_eq!(all.len(), 320);
    for thread in 0..16 {
        let metadata = format!("{{\"t\":{thread}}}").into_bytes();
        let of_thread = all.iter().filter(|frame| frame.metadata == metadata);
        let of_thread: Vec<_> = of_thread.map(|frame| (frame.input.clone(), frame.output.clone())).collect();
        assert!(
            of_thread == GrowingConversation::new(&format!("thread {thread}")).take(20).collect::<Vec<_>>(),
            "thread {thread}"
        );
    }
    assert_whole(&store);
}

#[test]
fn sixteen_runs_at_once_while_segments_change_under_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let options = || Options { segment_bytes_max: 64 << 10, ..process_durability_options() };
    for round in 0..2 {
        let store = Store::open_with(&path, options()).unwrap();
        let space = store.namespace("default").unwrap();
        std::thread::scope(|scope| {
            for thread in 0..16u64 {
                let space = &space;
                scope.spawn(move || {
                    let name = format!("{round}-{thread}");
                    let run = space.begin_run(RunSpec::new(&name)).unwrap();
                    let mut rng = SeededRng(thread);
                    for (i, (request, answer)) in GrowingConversation::new(&name).take(25).enumerate() {
                        if rng.below(5) == 0 {
                            let open = run.begin_frame(&Frame::new(Component::Llm, request, "")).unwrap();
                            answer.chunks(100).for_each(|part| open.append(part).unwrap());
                            open.flush().unwrap();
                            open.finish(false).unwrap();
                        } else {
                            run.record(Frame::new(Component::Llm, request, answer)).unwrap();
                        }
                        if i % 10 == 4 {
                            run.snapshot(rng.bytes(3000), &[]).unwrap();
                        }
                    }
                    run.end(Status::Ok).unwrap();
                });
            }
        });
        if round == 1 {
            drop(store);
        } else {
            store.close().unwrap();
        }
    }
    let check = |store: &Store| {
        assert_whole(store);
        let space = store.namespace("default").unwrap();
        for round in 0..2 {
            for thread in 0..16u64 {
                let name = format!("{round}-{thread}");
                let reader = space.run(&name).unwrap();
                assert_eq!(reader.info().status, Status::Ok);
                assert!(
                    bodies(&reader) == GrowingConversation::new(&name).take(25).collect::<Vec<_>>(),
                    "{name}"
                );
                assert_eq!(reader.snapshot_at(25).unwrap().unwrap().seq, 25);
            }
        }
    };
    let store = Store::open_read_only(&path).unwrap();
    let segments = store.stats().unwrap().segments;
    assert!(segments > 4, "{segments} segments: none changed while threads wrote");
    check(&store);
    drop(store);
    delete_tables(&path);
    check(&Store::open_read_only(&path).unwrap());
    check(&Store::open_with(&path, options()).unwrap());
}

#[test]
fn commit_acknowledged_during_close_is_kept() {
    for round in 0..12 {
        let (dir, store, space) = fresh();
        let run = space.begin_run(RunSpec::new("r")).unwrap();
        let acknowledged = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while let Ok(seq) = run.record(Frame::new(Component::Tool, "in", vec![1; 300])) {
                        acknowledged.fetch_max(seq as usize, Ordering::SeqCst);
                    }
                });
            }
            while acknowledged.load(Ordering::SeqCst) < 30 + round * 7 {
                std::thread::yield_now();
            }
            store.clone().close().unwrap();
        });
        let store = Store::open_read_only(dir.path().join("s")).unwrap();
        let reader = store.namespace("default").unwrap().run("r").unwrap();
        assert_eq!(reader.info().status, Status::Abandoned);
        assert!(reader.info().frames as usize >= acknowledged.load(Ordering::SeqCst), "round {round}");
        assert_whole(&store);
    }
}
