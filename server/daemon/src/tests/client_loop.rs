//! Connections of the client loop, over sockets.

use std::sync::{Arc, Mutex};

use annals::Options;
use annals::io::RealIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::hooked_io::{FileStep, HookedIo};
use super::{ClientInfo, DaemonBench, Session};
use crate::client_connection::{ClientConnection, ClientStream};
use crate::connection;
use crate::databases::TurnBatch;

/// The client's side of a new connection that is being served, and its task. The connection is in the loop's
/// inbox when this returns.
async fn connect(
    bench: &DaemonBench,
    stopped: &watch::Receiver<bool>,
    first: &[u8],
) -> (UnixStream, JoinHandle<()>) {
    let (mut near, far) = UnixStream::pair().unwrap();
    near.write_all(first).await.unwrap();
    let session = Session::new(ClientInfo::default(), Some(bench.daemon.owner().unwrap()), true);
    let stream = ClientStream::Unix(far.into_std().unwrap());
    let served = connection::serve(ClientConnection::new(&bench.daemon, session, stream), stopped.clone());
    let mut served = Box::pin(served);
    // One poll hands it to the loop.
    tokio::select! {
        biased;
        _ = &mut served => panic!("the connection ended"),
        () = std::future::ready(()) => {}
    }
    (near, tokio::spawn(async move { drop(served.await) }))
}

async fn read(near: &mut UnixStream, bytes: usize) -> String {
    let mut reply = vec![0; bytes];
    near.read_exact(&mut reply).await.unwrap();
    String::from_utf8(reply).unwrap()
}

/// Batches that are written while `clients` connections send `request` at the same time; each gets a reply of
/// this many bytes.
fn batches_of(bench: &DaemonBench, clients: usize, request: &[u8], reply: usize) -> (u64, Vec<String>) {
    let (_stop, stopped) = watch::channel(false);
    let databases = bench.daemon.tenant("default").unwrap().databases.clone();
    let before = bench.daemon.store.stats().unwrap().batches;
    let replies = bench.runtime.block_on(async {
        // The loop waits for this lock in its first turn, until all connections are there.
        let mut lock = TurnBatch::new(&databases);
        lock.lock_databases();
        let mut nears = Vec::new();
        for _ in 0..clients {
            nears.push(connect(bench, &stopped, request).await);
        }
        drop(lock);
        let mut replies = Vec::new();
        for (near, _) in &mut nears {
            replies.push(read(near, reply).await);
        }
        replies
    });
    (bench.daemon.store.stats().unwrap().batches - before, replies)
}

/// The first cycle may have some of the connections, the second has the others.
#[test]
fn writes_of_one_poll_are_one_batch() {
    let bench = DaemonBench::new();
    // The keyspace exists from here on.
    bench.client().script("set k 0 -> +OK\nxadd s nomkstream * a b -> $-1");
    let (batches, replies) = batches_of(&bench, 30, b"set k 1\r\nget k\r\n", 5 + 7);
    assert!(batches <= 2, "{batches}");
    assert!(replies.iter().all(|reply| reply == "+OK\r\n$1\r\n1\r\n"), "{replies:?}");
}

#[test]
fn entries_of_one_poll_are_one_batch_in_order() {
    let bench = DaemonBench::new();
    // In what is shown, a line's end is one byte.
    let (first, _) = bench.client().bytes(b"xadd s * a b\r\n");
    let (batches, replies) =
        batches_of(&bench, 4, b"xadd s * a b\r\nxadd s * c d\r\n", 2 * (first.len() + 2));
    assert!(batches <= 2, "{batches}");
    let numbers: Vec<u32> = replies
        .iter()
        .flat_map(|reply| reply.lines().filter_map(|line| line.split_once('-')?.1.parse().ok()))
        .collect();
    let mut sorted = numbers.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (2..=9).collect::<Vec<_>>(), "{replies:?}");
    assert!(numbers.chunks(2).all(|pair| pair[1] == pair[0] + 1), "one client's entries are in order");
}

/// The threads that sync after one connection has sent `request` this many times, each time answered by
/// `reply` bytes.
fn syncing_threads(times: usize, request: &[u8], reply: usize) -> Vec<String> {
    let io = HookedIo::new(Arc::new(RealIo::new()));
    let bench = DaemonBench::with(Options { io: Arc::new(io.clone()), ..Options::default() });
    bench.client().script("set k 0 -> +OK");
    let threads = Arc::new(Mutex::new(Vec::new()));
    let noted = threads.clone();
    io.set_hook(move |step| {
        if step == FileStep::Sync {
            noted.lock().unwrap().push(std::thread::current().name().unwrap_or_default().to_owned());
        }
    });
    let (_stop, stopped) = watch::channel(false);
    bench.runtime.block_on(async {
        let (mut near, _served) = connect(&bench, &stopped, request).await;
        read(&mut near, reply).await;
        for _ in 1..times {
            near.write_all(request).await.unwrap();
            read(&mut near, reply).await;
        }
    });
    io.clear_hook();
    threads.lock().unwrap().clone()
}

/// Regression: the loop left every batch to the writer's thread, which took two wakes for each.
#[test]
fn short_writes_are_synced_on_the_loops_thread() {
    // While the writer's thread looks for jobs or notes the log's end, a commit is left to it.
    let threads = syncing_threads(30, b"set k 1\r\n", 5);
    assert!(threads.iter().any(|name| name == "annals-clients"), "{threads:?}");
}

#[test]
fn deep_pipelines_are_synced_beside_the_loop() {
    let threads = syncing_threads(1, &b"set k 1\r\n".repeat(16), 16 * 5);
    assert!(!threads.is_empty() && threads.iter().all(|name| name != "annals-clients"), "{threads:?}");
}

#[test]
fn client_that_does_not_read_delays_no_other() {
    let bench = DaemonBench::new();
    let (_stop, stopped) = watch::channel(false);
    let value = "v".repeat(60_000);
    bench.client().bytes(format!("set long {value}\r\n").as_bytes());
    bench.runtime.block_on(async {
        // More than the socket takes.
        let asked = "get long\r\n".repeat(40) + "ping\r\n";
        let (mut deaf, _served) = connect(&bench, &stopped, asked.as_bytes()).await;
        let (mut other, _served) = connect(&bench, &stopped, b"set a 1\r\n").await;
        assert_eq!(read(&mut other, 5).await, "+OK\r\n");
        other.write_all(b"get a\r\n").await.unwrap();
        assert_eq!(read(&mut other, 7).await, "$1\r\n1\r\n");
        let one = format!("$60000\r\n{value}\r\n");
        for _ in 0..40 {
            assert!(read(&mut deaf, one.len()).await == one);
        }
        assert_eq!(read(&mut deaf, 7).await, "+PONG\r\n");
        // It is in the loop again.
        deaf.write_all(b"set b 2\r\nget b\r\n").await.unwrap();
        assert_eq!(read(&mut deaf, 12).await, "+OK\r\n$1\r\n2\r\n");
    });
}

/// Requests that had arrived are answered; then the connection ends.
#[test]
fn connections_end_after_their_requests_when_told() {
    let bench = DaemonBench::new();
    let (stop, stopped) = watch::channel(false);
    bench.runtime.block_on(async {
        let (mut idle, idle_served) = connect(&bench, &stopped, b"ping\r\n").await;
        assert_eq!(read(&mut idle, 7).await, "+PONG\r\n");
        stop.send(true).unwrap();
        let (mut busy, busy_served) = connect(&bench, &stopped, b"set a 1\r\nget a\r\n").await;
        assert_eq!(read(&mut busy, 12).await, "+OK\r\n$1\r\n1\r\n");
        idle_served.await.unwrap();
        busy_served.await.unwrap();
        assert_eq!(idle.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(busy.read(&mut [0]).await.unwrap(), 0);
    });
}
