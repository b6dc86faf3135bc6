//! Equal seeds give equal traces, and crashes within schedules keep acknowledged data.

use std::sync::{Arc, Mutex};

use annals::io::sim::{Crash, OpHistory, OpKind, SimIo, SimOp};
use annals::{
    Component, Durability, ErrorKind, Frame, Keyspace, Namespace, Run, RunSpec, Store, kv::History as Keep,
};

use crate::driver::{announce, hook, number, once, schedules};
use crate::support::{STORE, assert_whole, fresh, options, round_of, tiny_memory_options, value};
use crate::thread;

const THREADS: u8 = 3;
const STEPS: u64 = 5;

/// When a commit was issued and acknowledged, in disk operations; `usize::MAX`: not promised to be on disk.
#[derive(Debug, Clone, Copy)]
struct CommitInterval {
    issued: usize,
    acknowledged: usize,
}

/// The commits of each thread, in order.
type ThreadCommits = Vec<Vec<CommitInterval>>;

fn step(io: &SimIo, thread: u8, step: u64, space: &Namespace, keys: &Keyspace, run: &Run) -> CommitInterval {
    let issued = io.op_count();
    let to_disk = step % 3 != 2;
    if thread == 0 {
        run.record(Frame::new(Component::Llm, vec![step as u8; 300], step.to_string())).unwrap();
        return CommitInterval { issued, acknowledged: io.op_count() };
    }
    let mut batch = space.batch();
    batch.put(keys, &[thread, 0], value(step)).put(keys, &[thread, 1], value(step));
    let durability = if to_disk { Durability::Disk } else { Durability::Process };
    batch.submit_with(durability).unwrap().wait().unwrap();
    CommitInterval { issued, acknowledged: if to_disk { io.op_count() } else { usize::MAX } }
}

/// Several callers beside a busy upkeep thread; the seeds of the schedule and of the disk decide everything.
fn workload(schedule: u64, disk: u64) -> (OpHistory, ThreadCommits) {
    let made = Arc::new(Mutex::new(None));
    let out = made.clone();
    once(schedule, move || {
        let io = SimIo::new(disk);
        let (store, space, keys) = fresh(tiny_memory_options(&io));
        let run = space.begin_run(RunSpec::new("r")).unwrap();
        let commits: ThreadCommits = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (io, space, keys, run) = (&io, &space, &keys, &run);
                    scope.spawn(move || (0..STEPS).map(|n| step(io, thread, n, space, keys, run)).collect())
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        drop((run, keys, space));
        store.close().unwrap();
        *out.lock().unwrap() = Some((io.history(), commits));
    });
    made.lock().unwrap().take().unwrap()
}

#[cfg(annals_shuttle)]
#[test]
fn the_same_seed_gives_the_same_trace_and_another_one_another() {
    const TEST: &str = "crashes::the_same_seed_gives_the_same_trace_and_another_one_another";
    hook();
    let first = number("ANNALS_SEED", 1);
    let mut traces = std::collections::BTreeSet::new();
    for seed in first..first + 10 {
        announce("random", seed, 1, TEST);
        let (once, twice) = (workload(seed, 7).0, workload(seed, 7).0);
        let differs = once.ops().iter().zip(twice.ops()).find(|(a, b)| a != b);
        assert_eq!(
            once.trace_hash(),
            twice.trace_hash(),
            "seed {seed} ran differently: {:?}",
            differs.map(|(a, b)| (a.to_string(), b.to_string()))
        );
        traces.insert(once.trace_hash());
    }
    println!("{TEST}: {} traces of 10 schedules", traces.len());
    assert!(traces.len() > 5, "the seed hardly affects the schedule");
}

/// The fewest and the most steps of a thread that a crash before operation `at` may leave.
fn bounds(commits: &[CommitInterval], at: usize) -> (u64, u64) {
    let acknowledged = commits.iter().rposition(|commit| commit.acknowledged <= at).map_or(0, |n| n + 1);
    let issued = commits.iter().rposition(|commit| commit.issued <= at).map_or(0, |n| n + 1);
    (acknowledged as u64, issued as u64)
}

/// The steps of a thread in a store; all of them must be whole, without a gap.
fn steps_of(thread: u8, space: &Namespace, keys: Option<&Keyspace>) -> u64 {
    if thread == 0 {
        let Ok(reader) = space.run("r") else { return 0 };
        let frames: Vec<_> = reader.frames().map(Result::unwrap).collect();
        for (n, frame) in frames.iter().enumerate() {
            assert!(frame.input == vec![n as u8; 300] && frame.output == n.to_string().into_bytes());
        }
        return frames.len() as u64;
    }
    let Some(keys) = keys else { return 0 };
    let rounds = |key: u8| -> Vec<u64> {
        let history = keys.history(&[thread, key]).unwrap();
        history.iter().rev().map(|version| round_of(version.value.as_deref().unwrap())).collect()
    };
    let found = rounds(0);
    assert_eq!(found, rounds(1), "part of a batch of thread {thread}");
    assert!(found.iter().copied().eq(0..found.len() as u64), "thread {thread} lost one before {found:?}");
    found.len() as u64
}

fn observe(store: &Store) -> Vec<u64> {
    let Ok(space) = store.namespace("n") else { return vec![0; usize::from(THREADS)] };
    let keys = space.find_keyspace("k").unwrap();
    (0..THREADS).map(|thread| steps_of(thread, &space, keys.as_ref())).collect()
}

/// Opens a store after a crash, in a schedule of its own.
fn check(disk: &SimIo, at: usize, commits: &ThreadCommits) {
    let read = match Store::open_read_only_with(STORE, options(disk)) {
        Ok(store) => observe(&store),
        Err(error) if error.kind() == ErrorKind::NotFound => vec![0; usize::from(THREADS)],
        Err(error) => panic!("cannot open for reading: {error}"),
    };
    for (thread, (steps, commits)) in read.iter().zip(commits).enumerate() {
        let (least, most) = bounds(commits, at);
        assert!(
            (least..=most).contains(steps),
            "thread {thread} has {steps} steps after a crash at {at}; {least} were acknowledged, {most} issued"
        );
    }
    let writing = if at.is_multiple_of(2) { tiny_memory_options } else { options };
    let store = Store::open_with(STORE, writing(disk)).unwrap();
    let space = store.namespace("n").unwrap();
    let keys = space.keyspace("k", Keep::All).unwrap();
    assert_eq!(observe(&store), read, "recovery changed what was there");
    assert_whole(&store);
    keys.put(b"still", "writing").unwrap();
    drop((space, keys));
    store.close().unwrap();
    let store = Store::open_read_only_with(STORE, options(disk)).unwrap();
    assert_eq!(observe(&store), read);
    let keys = store.namespace("n").unwrap().find_keyspace("k").unwrap().unwrap();
    assert_eq!(keys.get(b"still").unwrap().unwrap(), b"writing");
    assert_whole(&store);
}

#[cfg_attr(miri, ignore = "bodies are compressed by a C library")]
#[test]
fn crashes_within_schedules_keep_what_was_acknowledged() {
    const TEST: &str = "crashes::crashes_within_schedules_keep_what_was_acknowledged";
    const STATES: u64 = 40;
    hook();
    let (first, rounds) = (number("ANNALS_SEED", 1), schedules().div_ceil(10));
    let (mut made, mut gone) = (0, 0);
    for seed in first..first + rounds {
        // Ten schedules of another test cost as much as one schedule here with its crashes.
        announce("random", seed, 1, TEST);
        let (history, commits) = workload(seed, seed);
        let table =
            |op: &&SimOp, kind| op.kind() == kind && op.path().extension().is_some_and(|end| end == "tbl");
        made += history.ops().iter().filter(|op| table(op, OpKind::Create)).count();
        gone += history.ops().iter().filter(|op| table(op, OpKind::Remove)).count();
        let points = history.ops().len() as u64 + 1;
        let (history, commits) = (Arc::new(history), Arc::new(commits));
        for state in 0..STATES {
            // Points spread over the history, different for each seed, with each kind of crash in turn.
            let at = (((state * points) + (seed * 7919) % points) / STATES) as usize;
            let how = match state % 8 {
                0 => Crash::Nothing,
                1 => Crash::Everything,
                2 => Crash::Torn,
                3 => Crash::Hollow,
                _ => Crash::Seed(seed * STATES + state),
            };
            let (history, commits) = (history.clone(), commits.clone());
            once(seed + state, move || check(&history.crash(at, how), at, &commits));
        }
    }
    println!(
        "{TEST}: {rounds} schedules, {} crash states, {made} tables made, {gone} removed",
        rounds * STATES
    );
    assert!(made as u64 > rounds && gone > 0, "no tables were made and merged");
}
