//! Listening, accepting connections, shutdown.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use annals::{Durability, Options, Store, retention::RunShare};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::access::{self, Grant, Rights, TokenRegistry};
use super::client_connection::{ClientConnection, ClientStream};
use super::client_loop::ClientLoop;
use super::config::{
    ListenAddresses, LogFormat, RetentionSchedule, ServeConfig, ServeError, WitnessSchedule,
};
use super::connection;
use super::connection_limits::connections_max;
use super::databases::Databases;
use super::http::HttpApi;
use super::session::{ClientInfo, Daemon, Session};
use super::witness::write_witness;
use crate::share::{Host, ListeningSocket, listen_at, listen_guarded};
use annals_proxy::program::interrupted;
use annals_review::memory_retention::delete_expired_memories;

/// Maximum number of worker threads: they share one lock.
const WORKER_THREADS_MAX: usize = 4;
/// Pause after the system refused to accept a connection, or at the connection limit.
const PAUSE: Duration = Duration::from_millis(20);
/// Time for connections to take their last replies during shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between sweeps for expired keys, and maximum number of deadlines examined at a time.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);
const SWEPT_MAX: usize = 256;
/// Interval of sampling: how long a run that is sampled out may remain after its end.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// The addresses of a daemon that has started listening.
#[derive(Debug, Clone)]
pub struct StartedDaemon {
    /// Paths of Unix sockets.
    pub sockets: Vec<PathBuf>,
    /// The TCP address, with the port that the system assigned.
    pub tcp: Option<SocketAddr>,
    /// The HTTP address, with the port that the system assigned.
    pub http: Option<SocketAddr>,
    /// The text of a token that was just made; it is shown only once.
    pub token: Option<String>,
    /// Whether TCP and HTTP require no token.
    pub is_open: bool,
}

impl StartedDaemon {
    /// Logs the addresses, but not the token.
    fn log(&self) {
        let login = if self.is_open { "none" } else { "token" };
        for socket in &self.sockets {
            tracing::info!(place = %socket.display(), login = "none", "listening");
        }
        for (protocol, address) in [("resp", self.tcp), ("http", self.http)] {
            if let Some(address) = address {
                tracing::info!(protocol, %address, login, "listening");
            }
        }
    }
}

/// Serves a store until this process is told to end (Ctrl-C, SIGTERM). Then finishes the requests of all
/// connections, waits for recorders (`waiting` gets their number), and closes the store. A second signal ends
/// it at once; the recorders' runs are abandoned.
///
/// # Errors
/// `Refused` for an invalid or unsupported configuration; those of the store and of the system.
pub fn serve(
    root: &Path,
    namespace: &str,
    serving: &ServeConfig,
    began: impl FnOnce(&StartedDaemon),
    waiting: impl Fn(usize),
) -> Result<(), ServeError> {
    let places = serving.listen_addresses()?;
    let schedule = serving.schedule()?;
    let witnesses = serving.witness_schedule()?;
    let profiles = serving.profiles()?;
    let mounts = serving.upstreams.mounts().map_err(|error| ServeError::Refused(error.to_string()))?;
    // The writer and the clients need cores, too: on two cores, a second thread here costs a fifth of the
    // read throughput.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let carriers = (cores / 2).clamp(1, WORKER_THREADS_MAX);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(carriers).enable_all().build();
    let runtime = runtime.map_err(|cause| system_error("cannot start threads", cause))?;
    // Replies to Redis clients always wait for the disk. Recorders ask for it at a run's end only, so that no
    // program waits for each frame.
    let options =
        Options { durability: Durability::Process, upgrade: !serving.no_upgrade, ..Options::default() };
    let io = options.io.clone();
    let store = Store::open_with(root, options)?;
    for line in store.opening().lines() {
        tracing::warn!("{line}");
    }
    let host = Host::without_socket(root).map_err(|cause| system_error("cannot serve recorders", cause))?;
    let client_loop = ClientLoop::start().map_err(|cause| system_error("cannot serve clients", cause))?;
    let listened = runtime.block_on(async {
        let asks = !serving.no_auth && (places.tcp.is_some() || places.http.is_some());
        let (access, made) = load_tokens(&store, namespace, serving, asks, io.now_ns())?;
        let patience = serving.timeouts();
        let daemon =
            Arc::new(Daemon::new(store.clone(), namespace, io, access, profiles, patience, client_loop));
        let owner = daemon.owner()?;
        let sweeper = tokio::spawn(sweep(daemon.clone()));
        let retainer = schedule.map(|schedule| tokio::spawn(retain(daemon.clone(), schedule)));
        let witness = witnesses.map(|schedule| tokio::spawn(keep_witnesses(daemon.clone(), schedule)));
        // Installed before the sockets exist, so that no signal is missed.
        let ended = interrupted();
        let doors = DaemonListeners::open(root, serving, &places).await?;
        let began_at = StartedDaemon {
            sockets: doors.unix.iter().map(|(_, listening)| listening.place.clone()).collect(),
            tcp: doors.tcp.as_ref().and_then(|listener| listener.local_addr().ok()),
            http: doors.http.as_ref().and_then(|listener| listener.local_addr().ok()),
            token: made,
            is_open: !asks,
        };
        began_at.log();
        began(&began_at);
        let unasked = (!asks).then(|| owner.clone());
        let at = doors.http.as_ref().and_then(|listener| listener.local_addr().ok());
        let http = at.map(|address| HttpApi::new(daemon.clone(), unasked, address, mounts));
        tracing::info!(store = %store.id(), namespace, "the daemon serves");
        let shared = Arc::new(ServerShared { daemon, host, store: store.clone(), owner, asks, http });
        serve_listeners(&shared, doors, ended, waiting).await;
        if let Some(http) = &shared.http {
            http.finish().await;
        }
        sweeper.abort();
        for task in [retainer, witness].into_iter().flatten() {
            task.abort();
            // A sweep that is dropping runs now, and a witness that is being written, are waited for.
            let _ = task.await;
        }
        tokio::task::block_in_place(|| shared.daemon.shut_down());
        // Runs of remaining recorders are abandoned while the store is open; dropping this joins their
        // threads.
        tokio::task::block_in_place(|| drop(shared));
        Ok::<(), ServeError>(())
    });
    drop(runtime);
    listened?;
    Ok(store.close()?)
}

fn system_error(what: &str, cause: std::io::Error) -> ServeError {
    ServeError::System { what: what.to_owned(), cause }
}

/// State shared by all connections.
struct ServerShared {
    daemon: Arc<Daemon>,
    host: Host,
    store: Store,
    /// The rights of a client that needs no token.
    owner: Grant,
    /// Whether TCP and HTTP require a token.
    asks: bool,
    http: Option<HttpApi>,
}

impl ServerShared {
    /// The rights of a TCP or HTTP client without a token.
    fn anonymous_grant(&self) -> Option<Grant> {
        (!self.asks).then(|| self.owner.clone())
    }
}

/// Loads the stored and configured tokens. If a token is required and there is none, makes one and returns
/// its text.
fn load_tokens(
    store: &Store,
    namespace: &str,
    serving: &ServeConfig,
    asks: bool,
    now_ns: u64,
) -> Result<(TokenRegistry, Option<String>), ServeError> {
    let mut tokens = access::list_tokens(store)?;
    for token in serving.tokens(namespace)? {
        // Otherwise a client could get the rights of the other token, or be revoked with it.
        if tokens.iter().any(|known| known.name == token.name) {
            let why =
                format!("two tokens are called {:?}: give the one in the file another name", token.name);
            return Err(ServeError::Refused(why));
        }
        tokens.push(token);
    }
    let mut made = None;
    if asks && tokens.is_empty() && serving.log == Some(LogFormat::Json) {
        let why = "there is no token, and a JSON log must not show one: make one with `annals token add`";
        return Err(ServeError::Refused(why.to_owned()));
    }
    if asks && tokens.is_empty() {
        let (token, text) = access::make_token(store, "default", namespace, Rights::ALL, None, now_ns)?;
        tokens.push(token);
        made = Some(text);
    }
    Ok((TokenRegistry::new(tokens), made))
}

/// The listening sockets of a daemon.
struct DaemonListeners {
    unix: Vec<(UnixListener, ListeningSocket)>,
    tcp: Option<TcpListener>,
    http: Option<TcpListener>,
}

impl DaemonListeners {
    async fn open(root: &Path, serving: &ServeConfig, places: &ListenAddresses) -> Result<Self, ServeError> {
        let mut unix = Vec::new();
        let own = listen_guarded(root).and_then(register_socket);
        match own {
            Ok(own) => unix.push(own),
            // The configured socket suffices; recorders will find the store locked.
            Err(_) if serving.socket.is_some() => {}
            Err(cause) => return Err(system_error("cannot listen in the store's directory", cause)),
        }
        if let Some(place) = &serving.socket {
            let what = || format!("cannot listen at {}", place.display());
            let listening = listen_at(place).and_then(register_socket);
            unix.push(listening.map_err(|cause| ServeError::System { what: what(), cause })?);
        }
        Ok(Self { unix, tcp: bind_tcp(places.tcp).await?, http: bind_tcp(places.http).await? })
    }
}

async fn bind_tcp(address: Option<SocketAddr>) -> Result<Option<TcpListener>, ServeError> {
    let Some(address) = address else { return Ok(None) };
    let bound = TcpListener::bind(address).await;
    bound.map(Some).map_err(|cause| system_error(&format!("cannot listen at {address}"), cause))
}

fn register_socket(listening: ListeningSocket) -> std::io::Result<(UnixListener, ListeningSocket)> {
    let listener = listening.listener.try_clone()?;
    listener.set_nonblocking(true)?;
    Ok((UnixListener::from_std(listener)?, listening))
}

/// Accepts connections until this process is told to end, then ends all connections.
async fn serve_listeners(
    shared: &Arc<ServerShared>,
    doors: DaemonListeners,
    ended: impl Future<Output = ()>,
    waiting: impl Fn(usize),
) {
    let (stop, stopped) = watch::channel(false);
    let mut tasks = JoinSet::new();
    let DaemonListeners { unix, tcp, http } = doors;
    let most = connections_max(unix.len() + usize::from(tcp.is_some()) + usize::from(http.is_some()));
    let mut places = Vec::new();
    for (listener, listening) in unix {
        tasks.spawn(accept(shared.clone(), DaemonListener::Unix(listener), most, stopped.clone()));
        places.push(listening);
    }
    if let Some(listener) = tcp {
        tasks.spawn(accept(shared.clone(), DaemonListener::Tcp(listener), most, stopped.clone()));
    }
    if let Some(listener) = http {
        tasks.spawn(accept(shared.clone(), DaemonListener::Http(listener), most, stopped.clone()));
    }
    ended.await;
    tracing::info!("the daemon ends");
    // Removes the sockets: from now on, no client finds the daemon.
    drop(places);
    let again = interrupted();
    let _ = stop.send(true);
    let orderly = async {
        // A client that does not take its last replies is not waited for.
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, async { while tasks.join_next().await.is_some() {} })
            .await;
        shared.host.await_idle(waiting).await;
    };
    tokio::select! {
        () = orderly => {}
        () = again => {}
    }
    tasks.shutdown().await;
}

enum DaemonListener {
    Unix(UnixListener),
    Tcp(TcpListener),
    Http(TcpListener),
}

/// Accepts connections of one listener, up to a limit, and returns once all of them have ended.
async fn accept(
    shared: Arc<ServerShared>,
    door: DaemonListener,
    most: usize,
    stopped: watch::Receiver<bool>,
) {
    let mut stop = stopped.clone();
    let mut connections = JoinSet::new();
    loop {
        let let_in = async {
            if connections.len() >= most {
                tokio::time::sleep(PAUSE).await;
                return None;
            }
            let came = match &door {
                DaemonListener::Unix(listener) => {
                    listener.accept().await.map(|(stream, _)| AcceptedStream::Unix(stream))
                }
                DaemonListener::Tcp(listener) => {
                    listener.accept().await.map(|(stream, from)| AcceptedStream::Tcp(stream, from))
                }
                DaemonListener::Http(listener) => {
                    listener.accept().await.map(|(stream, from)| AcceptedStream::Http(stream, from))
                }
            };
            match came {
                Ok(stream) => Some(stream),
                // For example, out of file descriptors: this may pass, and must not become a busy loop.
                Err(_) => {
                    tokio::time::sleep(PAUSE).await;
                    None
                }
            }
        };
        tokio::select! {
            _ = stop.wait_for(|stopped| *stopped) => break,
            came = let_in => if let Some(stream) = came {
                connections.spawn(serve_one(shared.clone(), stream, stopped.clone()));
            },
        }
        while connections.try_join_next().is_some() {}
    }
    drop(door);
    while connections.join_next().await.is_some() {}
}

enum AcceptedStream {
    Unix(tokio::net::UnixStream),
    Tcp(tokio::net::TcpStream, SocketAddr),
    Http(tokio::net::TcpStream, SocketAddr),
}

async fn serve_one(shared: Arc<ServerShared>, stream: AcceptedStream, stopped: watch::Receiver<bool>) {
    let daemon = &shared.daemon;
    let id = daemon.connections.fetch_add(1, Ordering::Relaxed) + 1;
    let facts =
        |address: String| ClientInfo { id, address, began_ns: daemon.now_ns(), ..ClientInfo::default() };
    let _listed = ClientListGuard(daemon, id);
    // A broken connection affects no other.
    match stream {
        AcceptedStream::Http(stream, from) => {
            let _ = stream.set_nodelay(true);
            if let Some(http) = &shared.http {
                http.serve(stream, from, stopped).await;
            }
        }
        AcceptedStream::Tcp(stream, from) => {
            let _ = stream.set_nodelay(true);
            // Keep-alive detects a peer that has vanished.
            let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
            let facts = facts(from.to_string());
            daemon.clients().insert(id, facts.clone());
            let session = Session::new(facts, shared.anonymous_grant(), false);
            let Ok(stream) = stream.into_std() else { return };
            let connection = ClientConnection::new(daemon, session, ClientStream::Tcp(stream));
            let _ = connection::serve(connection, stopped).await;
        }
        AcceptedStream::Unix(stream) => {
            // The socket's file mode checks this at connect; this check also covers a socket passed to
            // another process.
            let own = rustix::process::geteuid().as_raw();
            if !stream.peer_cred().is_ok_and(|peer| peer.uid() == own) {
                return;
            }
            let facts = facts("unix".to_owned());
            daemon.clients().insert(id, facts.clone());
            let session = Session::new(facts, Some(shared.owner.clone()), true);
            let Ok(stream) = stream.into_std() else { return };
            let connection = ClientConnection::new(daemon, session, ClientStream::Unix(stream));
            let Ok(Some(handover)) = connection::serve(connection, stopped).await else { return };
            let (ClientStream::Unix(stream), bytes) = handover else { return };
            if stream.set_nonblocking(false).is_ok() {
                shared.host.admit(stream, &shared.store, bytes);
            }
        }
    }
}

/// Keeps a connection in the client list until it is dropped.
struct ClientListGuard<'a>(&'a Daemon, u64);

impl Drop for ClientListGuard<'_> {
    fn drop(&mut self) {
        self.0.clients().remove(&self.1);
    }
}

/// Periodically deletes expired keys, a few at a time, ends quiet traces, and closes idle namespaces.
async fn sweep(daemon: Arc<Daemon>) {
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        for tenant in daemon.tenants() {
            sweep_one(&tenant.databases).await;
            // A store that cannot be written reports it to its writers.
            let _ = tokio::task::block_in_place(|| tenant.ingest.end_quiet_traces(daemon.now_ns(), false));
        }
        tokio::task::block_in_place(|| daemon.close_idle_tenants());
    }
}

/// Drops the runs that a policy does not keep, at the start and then on schedule.
async fn retain(daemon: Arc<Daemon>, schedule: RetentionSchedule) {
    let samples = schedule.policy.sample != RunShare::ALL;
    if samples {
        // From here on, ended runs are tracked for sampling; the sweep handles earlier ones.
        tokio::task::block_in_place(|| sample(&daemon, &schedule));
    }
    loop {
        tokio::task::block_in_place(|| retain_once(&daemon, &schedule));
        let next = tokio::time::Instant::now() + schedule.every;
        while samples && tokio::time::Instant::now() + SAMPLE_INTERVAL < next {
            tokio::time::sleep(SAMPLE_INTERVAL).await;
            tokio::task::block_in_place(|| sample(&daemon, &schedule));
        }
        tokio::time::sleep_until(next).await;
    }
}

/// Drops runs that have ended since the last call and that sampling excludes. Each is in the ledger under the
/// sampling rule.
fn sample(daemon: &Daemon, schedule: &RetentionSchedule) {
    daemon.settle_memory();
    match daemon.store.sample_ended(&schedule.policy) {
        Ok(0) => {}
        Ok(runs) => tracing::info!(runs, "runs sampled out"),
        Err(why) => tracing::warn!(%why, "sampling failed; ended runs are sampled at the next sweep"),
    }
}

/// One sweep. It is recorded as an operator's action if it dropped runs or failed.
fn retain_once(daemon: &Daemon, schedule: &RetentionSchedule) {
    // The time is checked first: the record written below would make the clock look valid.
    let sweep = || {
        let mut report = daemon.store.retain(daemon.store.plan_retention(&schedule.policy, None)?)?;
        report.memories = delete_expired_memories(&daemon.store, &schedule.policy, report.at_ns, false)?;
        annals::Result::Ok(report)
    };
    // Sampling must not drop a run before its outcome is in memory.
    daemon.settle_memory();
    let swept = sweep();
    let failed = swept.as_ref().err().map(ToString::to_string);
    let runs = swept.as_ref().map_or(0, |report| report.dropped().runs.saturating_sub(report.held));
    let memories = swept.as_ref().map_or(0, |report| report.memories);
    match &failed {
        Some(why) => tracing::warn!(why, "a scheduled sweep failed"),
        None => tracing::info!(runs, memories, "scheduled sweep"),
    }
    if runs > 0 || memories > 0 || failed.is_some() {
        let done = format!("{runs} runs dropped, {memories} memories deleted");
        let words = ["STORE.RETAIN".to_owned(), done].map(String::into_bytes);
        let kept = daemon.operations.record("schedule", "", &words, failed.as_deref(), daemon.now_ns());
        // A store that cannot be written reports it to its writers.
        let _ = kept.and_then(annals::Ticket::wait);
    }
}

/// Adds checkpoints to a folder, at the start and then on schedule, if the store has grown.
async fn keep_witnesses(daemon: Arc<Daemon>, schedule: WitnessSchedule) {
    let mut kept = None;
    loop {
        let seqno = daemon.store.seqno();
        if kept != Some(seqno) {
            let made = tokio::task::block_in_place(|| {
                let checkpoint = daemon.store.checkpoint().map_err(|error| error.to_string())?;
                write_witness(&schedule.folder, &checkpoint, None).map_err(|error| error.to_string())
            });
            match made {
                Ok(file) => {
                    kept = Some(seqno);
                    tracing::info!(file = %file.display(), "kept a checkpoint");
                }
                Err(why) => tracing::warn!(
                    folder = %schedule.folder.display(),
                    why,
                    "no checkpoint could be kept: later erasures may not be noticed"
                ),
            }
        }
        tokio::time::sleep(schedule.every).await;
    }
}

async fn sweep_one(databases: &Databases) {
    let mut from = Vec::new();
    loop {
        // A store that cannot be read reports it to its readers.
        let Ok((next, settled)) = databases.sweep(&from, SWEPT_MAX) else { break };
        if let Some(settled) = settled {
            let _ = settled.await;
        }
        let Some(next) = next else { break };
        from = next;
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configured_token_with_a_stored_name_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path().join("s")).unwrap();
        access::make_token(&store, "ci", "n", Rights::READ, None, 1).unwrap();
        let hash = blake3::hash(b"x").to_hex();
        let named = |name: &str| {
            let file = format!("[[tokens]]\nname = \"{name}\"\nblake3 = \"{hash}\"\n");
            let serving = ServeConfig::parse(&file, "f").unwrap();
            load_tokens(&store, "default", &serving, true, 1).map(|(access, made)| (access.all().len(), made))
        };
        assert!(named("ci").unwrap_err().to_string().contains("two tokens are called \"ci\""));
        assert_eq!(named("other").unwrap(), (2, None));
    }
}
