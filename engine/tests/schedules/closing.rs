//! Closing a store while other threads submit.

use std::sync::atomic::{AtomicU64, Ordering};

use annals::io::sim::SimIo;
use annals::{Component, ErrorKind, Frame, Options, RunSpec, Status};

use crate::driver::explore;
use crate::support::{assert_whole, fresh, options, reopened, tiny_memory_options};
use crate::thread;

#[cfg_attr(miri, ignore = "bodies are compressed by a C library")]
#[test]
fn commit_acknowledged_during_close_is_kept() {
    explore("closing::commit_acknowledged_during_close_is_kept", |seed| {
        let io = SimIo::new(seed);
        let open: fn(&SimIo) -> Options = if seed % 2 == 0 { tiny_memory_options } else { options };
        let (store, space, keys) = fresh(Options { queue_bytes_max: 600, ..open(&io) });
        let run = space.begin_run(RunSpec::new("r")).unwrap();
        let put: Vec<AtomicU64> = (0..2).map(|_| AtomicU64::new(0)).collect();
        let recorded = AtomicU64::new(0);
        thread::scope(|scope| {
            for (thread, put) in put.iter().enumerate() {
                let keys = &keys;
                scope.spawn(move || {
                    for i in 0..6u64 {
                        match keys.put(format!("{thread}-{i}").as_bytes(), vec![1; 100]) {
                            Ok(_) => put.store(i + 1, Ordering::SeqCst),
                            Err(error) => {
                                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                                break;
                            }
                        }
                    }
                });
            }
            let (run, recorded) = (&run, &recorded);
            scope.spawn(move || {
                while let Ok(seq) = run.record(Frame::new(Component::Tool, "in", vec![1; 90])) {
                    recorded.store(u64::from(seq), Ordering::SeqCst);
                    if seq == 6 {
                        break;
                    }
                }
            });
            let store = &store;
            scope.spawn(move || {
                for _ in 0..seed % 40 {
                    thread::yield_now();
                }
                store.clone().close().unwrap();
            });
        });
        drop((run, keys, space, store));
        let (store, space, keys) = reopened(open(&io));
        for (thread, put) in put.iter().enumerate() {
            for i in 0..put.load(Ordering::SeqCst) {
                let found = keys.get(format!("{thread}-{i}").as_bytes()).unwrap();
                assert!(found.is_some(), "{thread}-{i} was acknowledged and is gone");
            }
        }
        let reader = space.run("r").unwrap();
        assert_eq!(reader.info().status, Status::Abandoned);
        assert!(u64::from(reader.info().frames) >= recorded.load(Ordering::SeqCst));
        assert_eq!(reader.frames().map(Result::unwrap).count() as u32, reader.info().frames);
        assert_whole(&store);
    });
}

#[test]
fn dropping_the_last_handle_closes_the_store() {
    explore("closing::dropping_the_last_handle_closes_the_store", |seed| {
        let io = SimIo::new(seed);
        let (store, space, keys) = fresh(tiny_memory_options(&io));
        let threads: Vec<_> = (0..3u8)
            .map(|thread| {
                let (store, space, keys) = (store.clone(), space.clone(), keys.clone());
                thread::spawn(move || {
                    keys.put(&[thread], "v").unwrap();
                    let view = space.view();
                    assert!(view.get(&keys, &[thread]).unwrap().is_some());
                    drop((view, keys, space, store));
                })
            })
            .collect();
        drop((store, space, keys));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // No handle is left, so the lock is free, and all data is there.
        let (store, _space, keys) = reopened(tiny_memory_options(&io));
        assert!((0..3u8).all(|thread| keys.get(&[thread]).unwrap().is_some()));
        assert_whole(&store);
    });
}
