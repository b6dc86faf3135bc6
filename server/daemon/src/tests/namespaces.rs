//! Namespaces that nobody uses are closed, and opened again.

use std::sync::Arc;

use annals::io::Io;
use annals::io::sim::SimIo;
use annals::{Options, Store};

use super::{DaemonBench, ServeTimeouts};
use crate::access::Grant;

/// Regression: a daemon kept every namespace open that a client had ever named, with its memory, the times of its
/// frames and its databases.
#[test]
fn idle_namespace_is_closed_and_opened_again_on_use() {
    let sim = SimIo::new(3);
    let io: Arc<dyn Io> = Arc::new(sim.clone());
    let store = Store::open_with("s", Options { io: io.clone(), ..Options::default() }).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(1).build().unwrap();
    let daemon = DaemonBench::daemon_with_timeouts(store, io, ServeTimeouts::default());
    let bench = DaemonBench { daemon, _directory: tempfile::tempdir().unwrap(), runtime };
    let open = || bench.daemon.tenants().iter().map(|tenant| tenant.name.clone()).collect::<Vec<_>>();
    let minutes = |minutes: u64| {
        // The client loop lets go of a namespace shortly after its last reply; a busy machine showed that.
        while bench.daemon.tenants().iter().any(|tenant| Arc::strong_count(&tenant.databases) > 1) {
            std::thread::yield_now();
        }
        sim.advance_ns(minutes * 60_000_000_000);
        bench.daemon.close_idle_tenants();
    };
    let client_of = |namespace: &str| {
        let grant = bench.daemon.owner().unwrap();
        bench.client_with(Some(Grant { tenant: bench.daemon.tenant(namespace).unwrap(), ..grant }))
    };
    // The namespace of clients without a token, which a daemon always holds.
    let _owner = bench.daemon.owner().unwrap();
    let mut busy = client_of("busy");
    client_of("idle").script("set k 1 -> +OK\nget k -> $1|1");
    client_of("recording").bytes(b"xadd s * a 1\r\n");
    assert_eq!(open(), ["busy", "default", "idle", "recording"]);
    minutes(0);
    minutes(4);
    assert_eq!(open().len(), 4, "unused for 4 minutes");
    minutes(2);
    assert_eq!(
        open(),
        ["busy", "default", "recording"],
        "a connection or an open run keeps a namespace open"
    );
    client_of("idle").script("get k -> $1|1\nset k 2 -> +OK\nget k -> $1|2");
    // Use begins the time anew.
    minutes(4);
    client_of("idle").script("get k -> $1|2");
    minutes(4);
    assert_eq!(open().len(), 4);
    minutes(6);
    client_of("recording").script("run.end s -> +OK");
    let hits = bench.daemon.figures().values_hits;
    minutes(0);
    minutes(6);
    assert_eq!(open(), ["busy", "default"]);
    assert_eq!(bench.daemon.figures().values_hits, hits, "the sum keeps what closed namespaces counted");
    busy.script("set k 3 -> +OK");
}
