//! Listening, accepting connections, shutdown.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use annals::{Durability, Options, Store};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::access::{self, Grant, Rights, TokenRegistry};
use super::client_connection::{ClientConnection, ClientStream};
use super::client_loop::ClientLoop;
use super::config::{ListenAddresses, LogFormat, ServeConfig, ServeError};
use super::connection;
use super::connection_limits::connections_max;
use super::http::{HttpApi, ServerHosts};
use super::reload::reload_on_hangup;
use super::schedules::{follow, keep_backups, keep_witnesses, retain, sweep};
use super::session::{ClientInfo, Daemon, Session};
use super::tls::{PortProtocol, TlsPorts, TlsTaskStream};
use crate::share::{Host, ListeningSocket, listen_at, listen_guarded};
use crate::witness::witness_inside_store;
use annals_proxy::program::{interrupted, terminated};

/// Maximum number of worker threads: they share one lock.
const WORKER_THREADS_MAX: usize = 4;
/// Pause after the system refused to accept a connection, or at the connection limit.
const PAUSE: Duration = Duration::from_millis(20);
/// Time for connections to take their last replies during shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

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
    /// Whether TCP and HTTP require TLS.
    pub has_tls: bool,
    /// The address of the debugger page; where a token is needed, a link that logs in once. Never logged.
    pub page: Option<String>,
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
                tracing::info!(protocol, %address, login, tls = self.has_tls, "listening");
            }
        }
    }
}

/// Serves a store until this process is told to end (Ctrl-C, SIGTERM; SIGHUP, if there is nothing to read again
/// on it: no configuration file and no certificate). Then finishes the requests of all
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
    if let Some(inside) = witnesses.as_ref().and_then(|of| witness_inside_store(&of.folder, root)) {
        return Err(ServeError::Refused(inside));
    }
    let backups = serving.backup_schedule()?;
    let tls = serving.tls_files()?.map(|files| files.load()).transpose()?;
    let profiles = serving.profiles()?;
    let forks = serving.fork_command(root)?;
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
    let store = match serving.reads_only {
        true => Store::open_read_only_with(root, options)?,
        false => Store::open_with(root, options)?,
    };
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
        if serving.reads_only {
            let _ = daemon.followed.set(root.to_path_buf());
        }
        let owner = daemon.owner()?;
        let (follower, sweeper) = match serving.reads_only {
            true => (Some(tokio::spawn(follow(daemon.clone()))), None),
            false => (None, Some(tokio::spawn(sweep(daemon.clone())))),
        };
        // Installed before the sockets exist, so that no signal is missed.
        let reloads = serving.file.is_some() || tls.is_some();
        let unreadable = Arc::new(Mutex::new(None));
        let why_ended = unreadable.clone();
        let ended = async move {
            let told = async {
                match reloads {
                    true => terminated().await,
                    false => interrupted().await,
                }
            };
            let followed = async {
                match follower {
                    Some(follower) => follower.await.ok(),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = told => {}
                why = followed => *why_ended.lock().unwrap_or_else(PoisonError::into_inner) = why,
            }
        };
        let has_tls = tls.is_some();
        let (new_tls, tls) = watch::channel(tls);
        let reloader =
            reloads.then(|| reload_on_hangup(daemon.clone(), namespace, serving, new_tls)).transpose();
        let reloader = reloader.map_err(|cause| system_error("cannot handle SIGHUP", cause))?;
        let doors = DaemonListeners::open(root, serving, &places).await?;
        if let Some(address) = doors.http.as_ref().and_then(|listener| listener.local_addr().ok()) {
            daemon.page.set_address(page_address(address, has_tls));
        }
        let began_at = StartedDaemon {
            sockets: doors.unix.iter().map(|(_, listening)| listening.place.clone()).collect(),
            tcp: doors.tcp.as_ref().and_then(|listener| listener.local_addr().ok()),
            http: doors.http.as_ref().and_then(|listener| listener.local_addr().ok()),
            token: made,
            is_open: !asks,
            has_tls,
            page: match asks {
                true => daemon.page_link(namespace)?,
                false => daemon.page.address().map(str::to_owned),
            },
        };
        began_at.log();
        began(&began_at);
        // Only a daemon that serves runs the schedules: one that fails to start again and again would replace the good
        // backups.
        let retainer = schedule.map(|schedule| tokio::spawn(retain(daemon.clone(), schedule)));
        let witness = witnesses.map(|schedule| tokio::spawn(keep_witnesses(daemon.clone(), schedule)));
        let backup = backups.map(|schedule| tokio::spawn(keep_backups(daemon.clone(), schedule)));
        let unasked = (!asks).then(|| owner.clone());
        let at = doors.http.as_ref().and_then(|listener| listener.local_addr().ok());
        let hosts = at.map(|address| ServerHosts::new(address, has_tls, &serving.http_host));
        let http = hosts.map(|hosts| HttpApi::new(daemon.clone(), unasked, hosts, mounts, forks));
        tracing::info!(store = %store.id(), namespace, "the daemon serves");
        let shared = Arc::new(ServerShared { daemon, host, store: store.clone(), owner, asks, http, tls });
        serve_listeners(&shared, doors, ended, waiting).await;
        if let Some(http) = &shared.http {
            http.finish().await;
        }
        if let Some(sweeper) = sweeper {
            sweeper.abort();
        }
        for task in [retainer, witness, backup, reloader].into_iter().flatten() {
            task.abort();
            // A sweep that is dropping runs now, and a witness or backup that is being written, are waited
            // for.
            let _ = task.await;
        }
        tokio::task::block_in_place(|| shared.daemon.shut_down());
        // Runs of remaining recorders are abandoned while the store is open; dropping this joins their
        // threads.
        tokio::task::block_in_place(|| drop(shared));
        let why = unreadable.lock().unwrap_or_else(PoisonError::into_inner).take();
        why.map_or(Ok(()), |why| Err(ServeError::Store(why)))
    });
    drop(runtime);
    listened?;
    Ok(store.close()?)
}

/// The address of the page of a daemon that listens here.
fn page_address(address: SocketAddr, has_tls: bool) -> String {
    let scheme = if has_tls { "https" } else { "http" };
    match address.ip().is_unspecified() {
        true => format!("{scheme}://127.0.0.1:{}/", address.port()),
        false => format!("{scheme}://{address}/"),
    }
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
    /// The TLS settings for new connections; `None` if TCP and HTTP are not encrypted.
    tls: watch::Receiver<Option<TlsPorts>>,
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
    let configured = serving.tokens(namespace)?;
    access::check_names(&tokens, &configured)?;
    tokens.extend(configured);
    let mut made = None;
    if serving.makes_no_token {
        return Ok((TokenRegistry::new(tokens), None));
    }
    if asks && tokens.is_empty() && serving.log == Some(LogFormat::Json) {
        let why = "there is no token, and a JSON log must not show one: make one with `annals token add`";
        return Err(ServeError::Refused(why.to_owned()));
    }
    if asks && tokens.is_empty() {
        let (token, text) = access::make_token(store, "default", namespace, Rights::ALL, None, None, now_ns)?;
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
        let own = || listen_guarded(root).and_then(register_socket);
        // The socket in the store's directory is that of the process which holds the store.
        let own = if serving.reads_only { None } else { Some(own()) };
        match own {
            None => {}
            Some(Ok(own)) => unix.push(own),
            // The configured socket suffices; recorders will find the store locked.
            Some(Err(_)) if serving.socket.is_some() => {}
            Some(Err(cause)) => return Err(system_error("cannot listen in the store's directory", cause)),
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
    if let Some(http) = &shared.http {
        http.stop_forks();
    }
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
            let Some(http) = &shared.http else { return };
            let tls = shared.tls.borrow().clone();
            match tls {
                None => http.serve(stream, from, stopped).await,
                Some(tls) => {
                    let peer = format!("http {from}");
                    let mut stop = stopped.clone();
                    let accepted = tokio::select! {
                        accepted = tls.accept(stream, PortProtocol::Http, &peer) => accepted,
                        _ = stop.wait_for(|stopped| *stopped) => return,
                    };
                    if let Ok(stream) = accepted {
                        http.serve(stream, from, stopped).await;
                    }
                }
            }
        }
        AcceptedStream::Tcp(stream, from) => {
            let _ = stream.set_nodelay(true);
            // Keep-alive detects a peer that has vanished.
            let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
            let tls = shared.tls.borrow().clone();
            let stream = match tls {
                None => stream.into_std().map(ClientStream::Tcp),
                Some(tls) => {
                    let peer = from.to_string();
                    let mut stop = stopped.clone();
                    let accepted = tokio::select! {
                        accepted = tls.accept(stream, PortProtocol::Resp, &peer) => accepted,
                        _ = stop.wait_for(|stopped| *stopped) => return,
                    };
                    accepted.and_then(TlsTaskStream::into_loop_stream).map(ClientStream::Tls)
                }
            };
            let Ok(stream) = stream else { return };
            let facts = facts(from.to_string());
            daemon.clients().insert(id, facts.clone());
            let session = Session::new(facts, shared.anonymous_grant(), false);
            let connection = ClientConnection::new(daemon, session, stream);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configured_token_with_a_stored_name_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path().join("s")).unwrap();
        access::make_token(&store, "ci", "n", Rights::READ, None, None, 1).unwrap();
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
