//! A disk that fails while threads wait: every caller gets an answer, and acknowledged data stays.

use std::sync::atomic::{AtomicU64, Ordering};

use annals::io::sim::{Crash, FailRule, OpKind, SimIo};
use annals::{ErrorKind, Options};

use crate::driver::explore;
use crate::support::{fresh, options, reopened, tiny_memory_options};
use crate::thread;

/// Threads put keys until the disk fails. The number of acknowledged puts of each thread must be there after
/// a crash.
fn until_it_fails(io: &SimIo, options: Options, rule: FailRule) {
    let (store, _space, keys) = fresh(options);
    let acknowledged: Vec<AtomicU64> = (0..3).map(|_| AtomicU64::new(0)).collect();
    keys.put(b"before", "there").unwrap();
    io.fail(rule);
    thread::scope(|scope| {
        for (thread, count) in acknowledged.iter().enumerate() {
            let (keys, store) = (&keys, &store);
            scope.spawn(move || {
                for i in 0..12u64 {
                    match keys.put(format!("{thread}-{i}").as_bytes(), "v") {
                        Ok(seqno) => {
                            assert!(store.seqno() >= seqno);
                            count.store(i + 1, Ordering::SeqCst);
                        }
                        Err(first) => {
                            assert!(
                                matches!(first.kind(), ErrorKind::Unavailable | ErrorKind::Poisoned),
                                "{first}"
                            );
                            // From now on every write of every thread fails.
                            let second = keys.put(b"later", "v").unwrap_err();
                            assert_eq!(second.kind(), ErrorKind::Poisoned, "{second}");
                            assert!(second.to_string().contains("reopen"), "{second}");
                            break;
                        }
                    }
                }
                // Reads continue.
                assert_eq!(keys.get(b"before").unwrap().unwrap(), b"there");
            });
        }
    });
    let failed = acknowledged.iter().any(|count| count.load(Ordering::SeqCst) < 12);
    assert!(failed, "the disk never failed");
    let visible = store.seqno();
    assert!(store.close().is_err(), "a poisoned store does not close cleanly");
    // The machine keeps running, or its power fails: both keep acknowledged data.
    for how in [Crash::Everything, Crash::Nothing] {
        let disk = io.crash(how);
        disk.clear_faults();
        let (store, _space, keys) = reopened(self::options(&disk));
        for (thread, count) in acknowledged.iter().enumerate() {
            for i in 0..count.load(Ordering::SeqCst) {
                let found = keys.get(format!("{thread}-{i}").as_bytes()).unwrap();
                assert!(found.is_some(), "{thread}-{i} was acknowledged and is gone after {how:?}");
            }
        }
        assert!(store.seqno() >= visible, "visible data is gone after {how:?}");
        crate::support::assert_whole(&store);
    }
}

#[test]
fn a_failed_sync_answers_everybody_and_poisons() {
    explore("failures::a_failed_sync_answers_everybody_and_poisons", |seed| {
        let io = SimIo::new(seed);
        until_it_fails(&io, options(&io), FailRule::eio(OpKind::Sync).on("segments").after(seed % 6));
    });
}

#[test]
fn a_failed_write_answers_everybody_and_poisons() {
    explore("failures::a_failed_write_answers_everybody_and_poisons", |seed| {
        let io = SimIo::new(seed);
        let options = Options { queue_bytes_max: 400, ..options(&io) };
        until_it_fails(&io, options, FailRule::eio(OpKind::Write).on("segments").after(seed % 6));
    });
}

#[test]
fn failed_manifest_write_answers_everybody_and_poisons() {
    explore("failures::failed_manifest_write_answers_everybody_and_poisons", |seed| {
        let io = SimIo::new(seed);
        // The writer writes the manifest when a segment changes, the upkeep thread when a table is listed.
        until_it_fails(
            &io,
            tiny_memory_options(&io),
            FailRule::eio(OpKind::Sync).on("MANIFEST").after(seed % 3),
        );
    });
}

#[test]
fn failed_table_write_loses_nothing_and_stops_nobody() {
    explore("failures::failed_table_write_loses_nothing_and_stops_nobody", |seed| {
        let io = SimIo::new(seed);
        let (store, _space, keys) = fresh(tiny_memory_options(&io));
        io.fail(FailRule::enospc(OpKind::Write).on("tables").times(1 + seed % 3));
        thread::scope(|scope| {
            for thread in 0..2u8 {
                let keys = &keys;
                scope.spawn(move || {
                    for i in 0..8u8 {
                        keys.put(&[thread, i], "v").unwrap();
                        assert!(keys.get(&[thread, i]).unwrap().is_some());
                    }
                });
            }
        });
        store.close().unwrap();
        let (_store, _space, keys) = reopened(tiny_memory_options(&io));
        for thread in 0..2u8 {
            assert!((0..8u8).all(|i| keys.get(&[thread, i]).unwrap().is_some()));
        }
    });
}
