//! No turn holds the lock of its databases while it waits for the disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use annals::io::{Io, RealIo};
use annals::{Options, ReadMode, Store};

use super::DaemonBench;
use super::hooked_io::{FileStep, HookedIo};

/// Regression: GET and SET of a namespace shared a lock, which a turn held while it read the store. So a reader
/// waited for the disk reads of every other client. Only the first key of a turn was read without the lock.
#[test]
fn commands_read_the_store_without_the_lock() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let io = HookedIo::new(Arc::new(RealIo::new()));
    // Without maps every read is a call.
    let open = || {
        let io: Arc<dyn Io> = Arc::new(io.clone());
        Store::open_with(&path, Options { io, read_mode: ReadMode::Positional, ..Options::default() })
            .unwrap()
    };
    let bench_of = |store: Store| DaemonBench {
        daemon: DaemonBench::daemon(store),
        _directory: tempfile::tempdir().unwrap(),
        runtime: tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(1).build().unwrap(),
    };
    let bench = bench_of(open());
    let names: Vec<String> = (0..8).map(|number| format!("k{number}")).collect();
    for name in &names {
        bench.client().bytes(format!("set {name} {} ex 10000\r\n", "v".repeat(5000)).as_bytes());
    }
    bench.daemon.store.clone().close().unwrap();
    drop(bench);
    let all = names.join(" ");
    for command in [
        "get k0",
        &format!("mget {all}"),
        &format!("exists {all}"),
        "set k3 new",
        "mset k3 new k5 new",
        "msetnx k3 new k5 new",
        "incr k4",
        "keys *",
        "dbsize",
        &format!("del {all}"),
    ] {
        // Nothing is cached in a store that was just opened.
        let bench = bench_of(open());
        let databases = bench.daemon.tenant("default").unwrap().databases.clone();
        let (reads, locked) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counts = (reads.clone(), locked.clone());
        let client_thread = std::thread::current().id();
        io.set_hook(move |step| {
            if step == FileStep::Read && std::thread::current().id() == client_thread {
                counts.0.fetch_add(1, Ordering::Relaxed);
                counts.1.fetch_add(usize::from(databases.is_locked()), Ordering::Relaxed);
            }
        });
        bench.client().bytes(format!("{command}\r\n").as_bytes());
        io.clear_hook();
        let (reads, locked) = (reads.load(Ordering::Relaxed), locked.load(Ordering::Relaxed));
        assert!(reads > 0, "{command} is answered without the disk, so it tests nothing");
        assert_eq!(locked, 0, "of {reads} reads by {command}");
    }
}
