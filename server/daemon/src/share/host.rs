//! The side that holds the store: a listener, and a thread for each connection.
//!
//! A host that is dropped ends its connections; their recorders find the lock free. A daemon first waits until no
//! connection writes through it: closing and admitting a writer are one atomic step, so a later writer is refused
//! before anything is promised.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use annals::Store;
use tokio::sync::watch;

use super::member::{KeyOwner, RecorderSession};
use super::notes::NotedRuns;
use super::socket;
use annals_proxy::program::interrupted;
use annals_wire::resp::{Protocol, Reply, RequestDecoder, RequestLimits};

/// Maximum number of connections.
const CONNECTIONS_MAX: usize = 256;
/// Size of a read from a connection, in bytes.
const READ_BYTES: usize = 64 << 10;
/// Replies are sent once this many bytes have gathered, and before each wait.
const REPLY_BYTES: usize = 16 << 10;
/// Pause after the system refused to accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The number of connections that write, and whether the host is closing.
#[derive(Debug, Default, Clone, Copy)]
struct WriterCount {
    count: usize,
    closing: bool,
}

/// Lets other processes write through the process that holds a store.
#[derive(Debug)]
pub(crate) struct Host(Arc<HostState>, Option<JoinHandle<()>>);

/// The bytes already read from a connection that is handed to a host.
#[derive(Debug, Default)]
pub(crate) struct HandoverBytes {
    /// Its first command.
    pub(crate) command: Vec<Vec<u8>>,
    /// The bytes after that command.
    pub(crate) rest: Vec<u8>,
}

#[derive(Debug)]
struct HostState {
    root: PathBuf,
    writers: WriterGate,
    notes: Arc<NotedRuns>,
    key_owner: KeyOwner,
    connections: Mutex<HostConnections>,
}

impl HostState {
    fn new(root: PathBuf, notes: Arc<NotedRuns>, key_owner: KeyOwner) -> Self {
        Self { root, writers: WriterGate::new(), notes, key_owner, connections: Mutex::default() }
    }
}

/// Admits writers until the host closes.
#[derive(Debug, Clone)]
pub(super) struct WriterGate(Arc<watch::Sender<WriterCount>>);

/// The right of one connection to write; dropping it ends the right.
#[derive(Debug)]
pub(super) struct WriterPass(WriterGate);

#[derive(Debug, Default)]
struct HostConnections {
    last: u64,
    streams: HashMap<u64, UnixStream>,
    threads: Vec<JoinHandle<()>>,
}

impl WriterGate {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(WriterCount::default())))
    }

    /// Admits one more writer, unless the host is closing.
    pub(super) fn enter(&self) -> Option<WriterPass> {
        let entered = self.0.send_if_modified(|writers| {
            writers.count += usize::from(!writers.closing);
            !writers.closing
        });
        entered.then(|| WriterPass(self.clone()))
    }

    /// Whether the host is closing.
    pub(super) fn is_closing(&self) -> bool {
        self.0.borrow().closing
    }

    /// Closes for new writers if there are none.
    fn close_if_idle(&self) -> bool {
        self.0.send_if_modified(|writers| {
            writers.closing |= writers.count == 0;
            writers.closing
        })
    }
}

impl Drop for WriterPass {
    fn drop(&mut self) {
        self.0.0.send_modify(|writers| writers.count -= 1);
    }
}

impl Host {
    /// Serves the store in this directory to other processes. Only the process that opened it for writing may
    /// call this. `notes` holds the runs that this process and the others note into.
    ///
    /// # Errors
    /// The file system has no sockets, or the system gives no thread.
    pub(super) fn start(store: &Store, root: &Path, notes: Arc<NotedRuns>) -> std::io::Result<Self> {
        let listener = socket::listen(root)?;
        // The path must stay valid if this process changes its directory.
        let root = std::path::absolute(root)?;
        let inner = Arc::new(HostState::new(root, notes, KeyOwner::Nobody));
        let (host, store) = (inner.clone(), store.clone());
        let thread = std::thread::Builder::new().name("annals-host".to_owned());
        let thread = thread.spawn(move || accept(&host, &listener, &store));
        Ok(Self(inner, Some(thread?)))
    }

    /// A host without a socket of its own: connections are passed to it by [`Host::admit`].
    ///
    /// # Errors
    /// The current directory of this process is unknown.
    pub(crate) fn without_socket(root: &Path) -> std::io::Result<Self> {
        let root = std::path::absolute(root)?;
        Ok(Self(Arc::new(HostState::new(root, Arc::default(), KeyOwner::Daemon)), None))
    }

    /// Serves a connection that was accepted elsewhere.
    pub(crate) fn admit(&self, stream: UnixStream, store: &Store, came: HandoverBytes) {
        self.0.admit(stream, store, came);
    }

    /// Waits until no connection writes through this host, and admits no more. `waiting` gets the number of
    /// writers, if any. A signal that ends this process (Ctrl-C) ends the wait. Dropping the host ends it, which
    /// blocks until its threads have ended.
    pub(crate) async fn await_idle(&self, waiting: impl FnOnce(usize)) {
        let mut writers = self.0.writers.0.subscribe();
        let count = writers.borrow_and_update().count;
        if count == 0 && self.0.writers.close_if_idle() {
            return;
        }
        waiting(count);
        let idle = async { while !self.0.writers.close_if_idle() && writers.changed().await.is_ok() {} };
        tokio::select! {
            () = idle => {}
            () = interrupted() => {}
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.0.writers.0.send_modify(|writers| writers.closing = true);
        // The listener thread checks `closing` at its next connection, so connect once to wake it.
        if let Some(thread) = self.1.take() {
            let woken = socket::connect(&self.0.root).is_ok();
            socket::remove(&self.0.root);
            if woken {
                let _ = thread.join();
            }
        }
        let threads = {
            let mut connections = self.0.connections();
            for stream in connections.streams.values() {
                let _ = stream.shutdown(Shutdown::Both);
            }
            std::mem::take(&mut connections.threads)
        };
        // Runs that these threads began are abandoned while the store is still open.
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl HostState {
    fn connections(&self) -> MutexGuard<'_, HostConnections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn accept(host: &Arc<HostState>, listener: &UnixListener, store: &Store) {
    for came in listener.incoming() {
        if host.writers.is_closing() {
            return;
        }
        match came {
            Ok(stream) => host.admit(stream, store, HandoverBytes::default()),
            Err(_) => std::thread::sleep(ACCEPT_PAUSE),
        }
    }
}

impl HostState {
    /// Serves a connection on its own thread. A connection that cannot be served is dropped; its client
    /// retries or gives up.
    fn admit(self: &Arc<Self>, stream: UnixStream, store: &Store, came: HandoverBytes) {
        let mut connections = self.connections();
        connections.threads.retain(|thread| !thread.is_finished());
        let Ok(handle) = stream.try_clone() else { return };
        if connections.streams.len() >= CONNECTIONS_MAX {
            return;
        }
        connections.last += 1;
        let id = connections.last;
        let member =
            RecorderSession::new(store.clone(), self.writers.clone(), self.notes.clone(), self.key_owner);
        let host = self.clone();
        let thread = std::thread::Builder::new().name("annals-member".to_owned());
        let thread = thread.spawn(move || {
            // A panic here must still remove the connection and abandon its runs.
            let _present = HostConnectionGuard(&host, id);
            let _ = serve(stream, member, came);
        });
        if let Ok(thread) = thread {
            connections.streams.insert(id, handle);
            connections.threads.push(thread);
        }
    }
}

/// Keeps a connection listed until it is dropped.
struct HostConnectionGuard<'a>(&'a HostState, u64);

impl Drop for HostConnectionGuard<'_> {
    fn drop(&mut self) {
        self.0.connections().streams.remove(&self.1);
    }
}

/// Answers the commands of a connection in order until it ends.
fn serve(mut stream: UnixStream, mut member: RecorderSession, came: HandoverBytes) -> std::io::Result<()> {
    let (mut requests, mut replies) = (RequestDecoder::new(RequestLimits::RECORDER), Vec::new());
    if !came.command.is_empty() {
        match member.answer(came.command) {
            Some(reply) => reply.put(Protocol::Resp2, &mut replies),
            None => return Ok(()),
        }
    }
    let (mut buffer, mut read) = (came.rest, 0);
    loop {
        let mut input = if read == 0 { buffer.as_slice() } else { &buffer[..read] };
        loop {
            let command = match requests.next(&mut input) {
                Ok(None) => break,
                Ok(Some(command)) => command,
                Err(why) => {
                    Reply::Error(format!("ERR Protocol error: {why}")).put(Protocol::Resp2, &mut replies);
                    return stream.write_all(&replies);
                }
            };
            if command.is_empty() {
                continue;
            }
            match member.answer(command) {
                Some(reply) => reply.put(Protocol::Resp2, &mut replies),
                None => return stream.write_all(&replies),
            }
            if replies.len() >= REPLY_BYTES {
                stream.write_all(&replies)?;
                replies.clear();
            }
        }
        stream.write_all(&replies)?;
        replies.clear();
        if read == 0 {
            buffer = vec![0; READ_BYTES];
        }
        read = loop {
            match stream.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(read) => break read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use annals::{Component, Frame, Namespace, Options, RunSpec, Status, Store};
    use annals_proxy::destination::RemoteSpace;
    use annals_proxy::spool::SpooledBody;

    use super::super::holder::StoreHolder;
    use super::super::remote::{JoinOutcome, RemoteStore};
    use super::super::socket;
    use super::Host;

    struct HostBench {
        host: Host,
        store: Store,
        directory: tempfile::TempDir,
    }

    fn bench() -> HostBench {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path().join("store")).unwrap();
        let host = Host::start(&store, &directory.path().join("store"), Arc::default()).unwrap();
        HostBench { host, store, directory }
    }

    impl HostBench {
        fn connect(&self) -> UnixStream {
            socket::connect(&self.directory.path().join("store")).unwrap()
        }

        /// All replies to these bytes.
        fn replies(&self, bytes: &[u8]) -> String {
            let mut stream = self.connect();
            // The host may hang up before it reads everything.
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(Shutdown::Write);
            let mut replies = String::new();
            let _ = stream.read_to_string(&mut replies);
            replies
        }

        fn holder(&self) -> Arc<StoreHolder> {
            Arc::new(StoreHolder::new(&self.directory.path().join("store"), &Options::default()))
        }

        fn join(&self) -> RemoteStore {
            match RemoteStore::join(&self.holder(), "n").unwrap() {
                JoinOutcome::Joined(remote) => remote,
                JoinOutcome::NotNow => panic!("nobody serves"),
            }
        }

        fn space(&self) -> Namespace {
            self.store.namespace("n").unwrap()
        }

        /// Waits until a run has ended; returns its status.
        fn ended(&self, run: &str) -> Status {
            loop {
                match self.space().run(run).unwrap().info().status {
                    Status::Open => std::thread::yield_now(),
                    status => return status,
                }
            }
        }
    }

    /// Encodes a command given as words separated by spaces.
    fn command(line: &str) -> Vec<u8> {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let mut bytes = Vec::new();
        annals_wire::resp::write_command(&mut bytes, &words).unwrap();
        bytes
    }

    #[test]
    fn hostile_bytes_get_an_error_without_affecting_others() {
        let bench = bench();
        let (idle, half) = (bench.connect(), bench.connect());
        (&half).write_all(b"*3\r\n$12\r\nFRAME.APP").unwrap();
        for hostile in [
            &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
            b"*1\r\n$536870913\r\n",
            b"*99999999\r\n",
            b"*1\r\n*1\r\n$4\r\nPING\r\n",
            b"$4\r\nPING\r\n",
            &[0; 5000],
            &[b'x'; 5000],
        ] {
            let replies = bench.replies(hostile);
            assert!(replies.starts_with("-ERR Protocol error: "), "{replies}");
            assert_eq!(replies.lines().count(), 1);
        }
        assert_eq!(bench.replies(b"*0\r\n*1\r\n$4\r\nping\r\n"), "+PONG\r\n");
        // A connection that never sent STORE.USE is not waited for.
        drop(bench.host);
        bench.store.close().unwrap();
        drop((idle, half));
    }

    #[test]
    fn invalid_commands_are_refused_one_by_one() {
        let bench = bench();
        let script = [
            ("FLUSHALL", "-INVALID unknown command 'FLUSHALL'"),
            ("RUN.BEGIN r", "-INVALID STORE.USE comes first"),
            ("MEM.PUT", "-INVALID a memory is missing"),
            ("MEM.PUT {} EMBED NAMESPACE", "-INVALID NAMESPACE is missing"),
            ("MEM.PUT {} EMBED NAMESPACE n COLOUR red", "-INVALID there is no option \"COLOUR\""),
            ("MEM.PUT {} EMBED NAMESPACE n", "-INVALID a memory must be an entry, with an id and a value"),
            (
                "MEM.PUT {\"query\":\"a\"} EMBED NAMESPACE n EMBEDDER e",
                "-INVALID a memory is embedded by \"annals",
            ),
            ("MEM.DEFINE {} COLOUR n", "-INVALID there is no option \"COLOUR\""),
            (
                "MEM.DEFINE {} NAMESPACE n",
                "-INVALID a memory's definition must be a JSON object: missing field `id`",
            ),
            ("MEM.DEFINE {\"id\":\"d\"} NAMESPACE n", "+OK"),
            ("STORE.USE", "-INVALID a namespace's name is missing"),
            ("STORE.USE n", "+OK"),
            ("STORE.USE m", "-INVALID a connection stays"),
            ("RUN.BEGIN r STARTED x", "-INVALID STARTED is malformed"),
            ("FRAME.BEGIN r llm in", "-NOTFOUND this connection began no run"),
            ("RUN.BEGIN r", "+OK"),
            ("RUN.BEGIN r", "-CONFLICT run \"r\" exists already"),
            ("FRAME.BEGIN r llm in PARENT 9", "-INVALID"),
            ("FRAME.BEGIN r llm in", ":1"),
            ("FRAME.APPEND r 2 x", "-NOTFOUND frame 2"),
            ("FRAME.APPEND r 1 x", ":1"),
            ("RUN.END r ok", "-CONFLICT frame 1"),
            ("FRAME.END r 1 META {\"a\":1}", ":1"),
            ("FRAME.END r 1", "-NOTFOUND frame 1"),
            ("FRAME.ADD r tool in out BLOB b", "-NOTFOUND no blob"),
            ("BLOB.APPEND b abc", "+OK"),
            ("FRAME.ADD r tool in out BLOB b", "-NOTFOUND no blob"),
            ("BLOB.APPEND b def", "+OK"),
            ("BLOB.END b", ":6"),
            ("BLOB.APPEND b ghi", "-INVALID this blob has ended"),
            ("FRAME.ADD r tool in  BLOB b", ":2"),
            ("FRAME.ADD r tool in  BLOB b", "-NOTFOUND no blob"),
            ("BLOB.END c", ":0"),
            ("FRAME.ADD r tool in  BLOB c", ":3"),
            ("RUN.END r open", "-INVALID"),
            ("RUN.END r ok", ":3"),
            ("RUN.END r ok", "-NOTFOUND"),
        ];
        let bytes: Vec<u8> = script.iter().flat_map(|(line, _)| command(line)).collect();
        let replies = bench.replies(&bytes);
        let replies: Vec<_> = replies.lines().collect();
        for ((line, expected), reply) in script.iter().zip(&replies) {
            assert!(reply.starts_with(expected), "{line}: {reply}");
        }
        assert_eq!(replies.len(), script.len());
        let frame = bench.space().run("r").unwrap().frame(1).unwrap();
        assert_eq!((frame.output, frame.metadata), (b"x".to_vec(), b"{\"a\":1}".to_vec()));
        drop(bench.host);
    }

    #[test]
    fn runs_are_abandoned_when_their_connection_ends() {
        let bench = bench();
        let remote = bench.join();
        let run = remote.begin_run(&RunSpec::new("r")).unwrap();
        run.submit(&Frame::new(Component::User, "whole", "one"), None).unwrap();
        let open = run.begin_frame(&Frame::new(Component::Llm, "in", "")).unwrap();
        open.append(&[b'y'; 40_000]).unwrap();
        drop((open, run, remote));
        assert_eq!(bench.ended("r"), Status::Abandoned);
        let reader = bench.space().run("r").unwrap();
        assert_eq!((reader.info().frames, reader.frame(2).unwrap().incomplete), (2, true));
        assert!(reader.verify().is_ok());
        // The name is free again; another run of the same connection may be open meanwhile.
        assert!(bench.join().begin_run(&RunSpec::new("r").replace(true)).is_ok());
    }

    #[test]
    fn deferred_refusals_surface_on_the_next_call() {
        let bench = bench();
        let remote = bench.join();
        let run = remote.begin_run(&RunSpec::new("r")).unwrap();
        for number in 0..1000_u32 {
            run.submit(&Frame::new(Component::User, number.to_le_bytes().to_vec(), "out"), None).unwrap();
        }
        let body = Arc::new(SpooledBody::read_from(&mut &vec![7; 3_000_000][..]).unwrap());
        run.submit(&Frame::new(Component::Tool, "", ""), Some(&body)).unwrap();
        // There is no such parent: the error comes with the next reply, and no later command is sent.
        run.submit(&Frame::new(Component::Tool, "", "").parent(5000), None).unwrap();
        let refused = run.end(Status::Ok).unwrap_err();
        assert_eq!(refused.kind(), annals::ErrorKind::Invalid, "{refused}");
        assert!(run.submit(&Frame::new(Component::Tool, "", ""), None).is_err());
        drop((run, remote));
        assert_eq!(bench.ended("r"), Status::Abandoned);
        let reader = bench.space().run("r").unwrap();
        assert_eq!(reader.info().frames, 1001);
        assert_eq!(reader.frame(1001).unwrap().output, vec![7; 3_000_000]);
    }

    #[test]
    fn closing_host_admits_no_new_writers() {
        let bench = bench();
        let writer = bench.host.0.writers.enter().unwrap();
        assert!(!bench.host.0.writers.close_if_idle());
        drop(writer);
        assert!(bench.host.0.writers.close_if_idle());
        assert!(bench.host.0.writers.enter().is_none());
        // A connection that arrives in between is closed without a reply, and opens the store itself.
        let holder = bench.holder();
        assert!(matches!(RemoteStore::join(&holder, "n").unwrap(), JoinOutcome::NotNow));
        drop(bench.host);
        assert!(matches!(RemoteStore::join(&holder, "n").unwrap(), JoinOutcome::NotNow));
    }
}
