//! Commits that their callers write themselves, beside commits that are left to the writer's thread, a
//! compaction, a close and a disk that fails. Every commit gets an answer, and the log stays whole.

use std::sync::atomic::{AtomicU64, Ordering};

use annals::io::sim::{FailRule, OpKind, SimIo};
use annals::{Durability, ErrorKind, Options, RunSpec, Status, upkeep::CompactOptions};

use crate::driver::explore;
use crate::support::{assert_whole, fresh, options, reopened, tiny_memory_options};
use crate::thread;

const COMMITS: u64 = 5;

/// Two threads wait for each commit, one only submits, one compacts, and one closes after some steps. With
/// `fails` the disk refuses a write meanwhile.
fn commit_both_ways(seed: u64, fails: bool) {
    let io = SimIo::new(seed);
    let durability = if seed.is_multiple_of(3) { Durability::Disk } else { Durability::Process };
    let open: fn(&SimIo) -> Options = if seed.is_multiple_of(2) { tiny_memory_options } else { options };
    let (store, space, keys) = fresh(Options { durability, ..open(&io) });
    if fails {
        io.fail(FailRule::eio(OpKind::Write).on("segments").after(seed % 7));
    }
    let acknowledged: Vec<AtomicU64> = (0..2).map(|_| AtomicU64::new(0)).collect();
    let refused = |error: annals::Error| {
        let expected = match error.kind() {
            ErrorKind::Unavailable => true,
            ErrorKind::Poisoned => fails,
            _ => false,
        };
        assert!(expected, "{error}");
    };
    thread::scope(|scope| {
        for (thread, count) in acknowledged.iter().enumerate() {
            let (keys, store) = (&keys, &store);
            scope.spawn(move || {
                for i in 0..COMMITS {
                    match keys.put(format!("{thread}-{i}").as_bytes(), vec![1; 100]) {
                        Ok(seqno) => {
                            assert!(store.seqno() >= seqno, "acknowledged before it was visible");
                            count.store(i + 1, Ordering::SeqCst);
                        }
                        Err(error) => return refused(error),
                    }
                }
            });
        }
        let (space, keys, store) = (&space, &keys, &store);
        scope.spawn(move || {
            for i in 0..COMMITS {
                let mut batch = space.batch();
                batch.put(keys, format!("submitted-{i}").as_bytes(), vec![2; 100]);
                match batch.submit() {
                    Ok(ticket) if i % 2 == 0 => drop(ticket),
                    Ok(ticket) => {
                        if let Err(error) = ticket.wait() {
                            return refused(error);
                        }
                    }
                    Err(error) => return refused(error),
                }
            }
        });
        scope.spawn(move || {
            if let Err(error) = store.compact(&CompactOptions::default()) {
                assert!(
                    error.kind() == ErrorKind::Conflict || fails || error.kind() == ErrorKind::Unavailable
                );
            }
        });
        scope.spawn(move || {
            for _ in 0..seed % 60 {
                thread::yield_now();
            }
            let closed = store.clone().close();
            assert!(closed.is_ok() || fails, "{closed:?}");
        });
    });
    drop((keys, space, store));
    io.clear_faults();
    let (store, _space, keys) = reopened(open(&io));
    for (thread, count) in acknowledged.iter().enumerate() {
        for i in 0..count.load(Ordering::SeqCst) {
            let found = keys.get(format!("{thread}-{i}").as_bytes()).unwrap();
            assert!(found.is_some(), "{thread}-{i} was acknowledged and is gone");
        }
    }
    assert_whole(&store);
}

#[test]
fn inline_and_thread_commits_beside_compaction_keep_order() {
    explore("inline::inline_and_thread_commits_beside_compaction_keep_order", |seed| {
        commit_both_ways(seed, false);
    });
}

#[test]
fn inline_and_thread_commits_on_a_failing_disk_all_end() {
    explore("inline::inline_and_thread_commits_on_a_failing_disk_all_end", |seed| {
        commit_both_ways(seed, true);
    });
}

/// Regression: a thread that began a run held the names of runs while it waited for all commits before. One of these had
/// its place and had not arrived when the writer's thread looked. When it arrived, it rang no bell, because its caller
/// was about to write it; but the caller first waited for the names. All three waited forever.
#[test]
fn runs_begun_and_ended_at_once_do_not_wait_for_each_other() {
    explore("inline::runs_begun_and_ended_at_once_do_not_wait_for_each_other", |seed| {
        let io = SimIo::new(seed);
        let (store, space, _) = fresh(options(&io));
        thread::scope(|scope| {
            for thread in 0..3u8 {
                let space = &space;
                scope.spawn(move || {
                    let run = space.begin_run(RunSpec::new(format!("{thread}"))).unwrap();
                    run.end(Status::Ok).unwrap();
                });
            }
        });
        store.close().unwrap();
    });
}
