//! Listening, letting in, ending.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use annals::{Durability, Options, Share, Store};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::access::{self, Access, Grant, Rights};
use super::config::{Log, Places, Schedule, Serving, ServingError};
use super::connection;
use super::databases::Databases;
use super::files::connections_max;
use super::http::Http;
use super::session::{Daemon, Facts, Session};
use crate::share::{Came, Host, Listening, listen_at, listen_for};
use annals_proxy::program::interrupted;

/// Threads that read, answer and write, at most: all of them share one lock.
const CARRIERS_MAX: usize = 4;
/// How long nobody is let in after the system refused to, or at the limit.
const PAUSE: Duration = Duration::from_millis(20);
/// How long connections have for their last replies once the daemon ends.
const GRACE: Duration = Duration::from_secs(5);
/// How often keys whose deadline is past are looked for, and how many deadlines are looked at at once.
const SWEEP: Duration = Duration::from_secs(10);
const SWEPT_MAX: usize = 256;
/// How long after its end a run that sampling leaves out may still be there.
const SAMPLE: Duration = Duration::from_secs(1);

/// Where a daemon listens, once it does.
#[derive(Debug, Clone)]
pub struct Began {
    /// Unix sockets.
    pub sockets: Vec<PathBuf>,
    /// The address of TCP, its port as it was given by the system.
    pub tcp: Option<SocketAddr>,
    /// That of HTTP.
    pub http: Option<SocketAddr>,
    /// A token that was just made: nobody is told a second time.
    pub token: Option<String>,
    /// Whether TCP and HTTP ask for no token.
    pub is_open: bool,
}

impl Began {
    /// What may be told to everybody.
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

/// Serves a store until this process is told to end (Ctrl-C, SIGTERM); then ends the connections, each after what it had asked for, waits for
/// those who record (`waiting` is told how many), and closes the store. Told once more, it ends at once: those runs are abandoned.
///
/// # Errors
/// `Refused` for what makes no sense or is not offered; those of the store and of the system.
pub fn serve(
    root: &Path,
    namespace: &str,
    serving: &Serving,
    began: impl FnOnce(&Began),
    waiting: impl Fn(usize),
) -> Result<(), ServingError> {
    let places = serving.places()?;
    let schedule = serving.schedule()?;
    let profiles = serving.profiles()?;
    let mounts = serving.upstreams.mounts().map_err(|error| ServingError::Refused(error.to_string()))?;
    // The writer and the clients need cores, too: with two of them, a second thread here costs a fifth of the reads.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let carriers = (cores / 2).clamp(1, CARRIERS_MAX);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(carriers).enable_all().build();
    let runtime = runtime.map_err(|cause| system("cannot start threads", cause))?;
    // Redis clients are told of what is on disk only; recorders ask for it at a run's end, and nobody's program waits for each frame.
    let options = Options { durability: Durability::Process, ..Options::default() };
    let io = options.io.clone();
    let store = Store::open_with(root, options)?;
    let host = Host::without_socket(root).map_err(|cause| system("cannot serve recorders", cause))?;
    let listened = runtime.block_on(async {
        let asks = !serving.no_auth && (places.tcp.is_some() || places.http.is_some());
        let (access, made) = admitted(&store, namespace, serving, asks, io.now_ns())?;
        let patience = serving.patience();
        let daemon = Arc::new(Daemon::new(
            store.clone(),
            namespace,
            io,
            access,
            profiles,
            patience,
            Handle::current(),
        ));
        let owner = daemon.owner()?;
        let sweeper = tokio::spawn(sweep(daemon.clone()));
        let retainer = schedule.map(|schedule| tokio::spawn(retain(daemon.clone(), schedule)));
        // Before anybody knows where to find it: what ends it is heard from the beginning.
        let ended = interrupted();
        let doors = Doors::open(root, serving, &places).await?;
        let began_at = Began {
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
        let http = at.map(|address| Http::new(daemon.clone(), unasked, address, mounts));
        tracing::info!(store = %store.id(), namespace, "the daemon serves");
        let shared = Arc::new(Shared { daemon, host, store: store.clone(), owner, asks, http });
        listen(&shared, doors, ended, waiting).await;
        if let Some(http) = &shared.http {
            http.finish().await;
        }
        sweeper.abort();
        if let Some(retainer) = retainer {
            retainer.abort();
            // One that drops runs now is waited for.
            let _ = retainer.await;
        }
        tokio::task::block_in_place(|| shared.daemon.end());
        // Runs of those who still record are abandoned while the store is open; their threads end with this.
        tokio::task::block_in_place(|| drop(shared));
        Ok::<(), ServingError>(())
    });
    drop(runtime);
    listened?;
    Ok(store.close()?)
}

fn system(what: &str, cause: std::io::Error) -> ServingError {
    ServingError::System { what: what.to_owned(), cause }
}

/// What connections are served with.
struct Shared {
    daemon: Arc<Daemon>,
    host: Host,
    store: Store,
    /// What whoever needs no token may do.
    owner: Grant,
    /// Whether a token is asked for over TCP and HTTP.
    asks: bool,
    http: Option<Http>,
}

impl Shared {
    /// What whoever comes over TCP or HTTP may do without a token.
    fn unasked(&self) -> Option<Grant> {
        (!self.asks).then(|| self.owner.clone())
    }
}

/// Who is let in. Where a token is asked for and there is none, one is made, which is given beside.
fn admitted(
    store: &Store,
    namespace: &str,
    serving: &Serving,
    asks: bool,
    now_ns: u64,
) -> Result<(Access, Option<String>), ServingError> {
    let mut tokens = access::tokens(store)?;
    for token in serving.tokens(namespace)? {
        // One of them would be let in with the other's rights, or taken back with it.
        if tokens.iter().any(|known| known.name == token.name) {
            let why =
                format!("two tokens are called {:?}: give the one in the file another name", token.name);
            return Err(ServingError::Refused(why));
        }
        tokens.push(token);
    }
    let mut made = None;
    if asks && tokens.is_empty() && serving.log == Some(Log::Json) {
        let why = "there is no token, and a log is no place to show one: make one with `annals token add`";
        return Err(ServingError::Refused(why.to_owned()));
    }
    if asks && tokens.is_empty() {
        let (token, text) = access::make_token(store, "default", namespace, Rights::ALL, None, now_ns)?;
        tokens.push(token);
        made = Some(text);
    }
    Ok((Access::new(tokens), made))
}

/// Where somebody may come in.
struct Doors {
    unix: Vec<(UnixListener, Listening)>,
    tcp: Option<TcpListener>,
    http: Option<TcpListener>,
}

impl Doors {
    async fn open(root: &Path, serving: &Serving, places: &Places) -> Result<Self, ServingError> {
        let mut unix = Vec::new();
        let own = listen_for(root).and_then(registered);
        match own {
            Ok(own) => unix.push(own),
            // Another place was named; recorders will find the store locked.
            Err(_) if serving.socket.is_some() => {}
            Err(cause) => return Err(system("cannot listen in the store's directory", cause)),
        }
        if let Some(place) = &serving.socket {
            let what = || format!("cannot listen at {}", place.display());
            let listening = listen_at(place).and_then(registered);
            unix.push(listening.map_err(|cause| ServingError::System { what: what(), cause })?);
        }
        Ok(Self { unix, tcp: bound(places.tcp).await?, http: bound(places.http).await? })
    }
}

async fn bound(address: Option<SocketAddr>) -> Result<Option<TcpListener>, ServingError> {
    let Some(address) = address else { return Ok(None) };
    let bound = TcpListener::bind(address).await;
    bound.map(Some).map_err(|cause| system(&format!("cannot listen at {address}"), cause))
}

fn registered(listening: Listening) -> std::io::Result<(UnixListener, Listening)> {
    let listener = listening.listener.try_clone()?;
    listener.set_nonblocking(true)?;
    Ok((UnixListener::from_std(listener)?, listening))
}

/// Serves whoever comes until this process is told to end, then ends connection after connection.
async fn listen(
    shared: &Arc<Shared>,
    doors: Doors,
    ended: impl Future<Output = ()>,
    waiting: impl Fn(usize),
) {
    let (stop, stopped) = watch::channel(false);
    let mut tasks = JoinSet::new();
    let Doors { unix, tcp, http } = doors;
    let most = connections_max(unix.len() + usize::from(tcp.is_some()) + usize::from(http.is_some()));
    let mut places = Vec::new();
    for (listener, listening) in unix {
        tasks.spawn(accept(shared.clone(), Door::Unix(listener), most, stopped.clone()));
        places.push(listening);
    }
    if let Some(listener) = tcp {
        tasks.spawn(accept(shared.clone(), Door::Tcp(listener), most, stopped.clone()));
    }
    if let Some(listener) = http {
        tasks.spawn(accept(shared.clone(), Door::Http(listener), most, stopped.clone()));
    }
    ended.await;
    tracing::info!("the daemon ends");
    // From now on it is found nowhere.
    drop(places);
    let again = interrupted();
    let _ = stop.send(true);
    let orderly = async {
        // Who does not take the last replies is not waited for.
        let _ = tokio::time::timeout(GRACE, async { while tasks.join_next().await.is_some() {} }).await;
        shared.host.idle(waiting).await;
    };
    tokio::select! {
        () = orderly => {}
        () = again => {}
    }
    tasks.shutdown().await;
}

enum Door {
    Unix(UnixListener),
    Tcp(TcpListener),
    Http(TcpListener),
}

/// Lets in whoever comes by a door, so many at a time, and ends once all of them have.
async fn accept(shared: Arc<Shared>, door: Door, most: usize, stopped: watch::Receiver<bool>) {
    let mut stop = stopped.clone();
    let mut connections = JoinSet::new();
    loop {
        let let_in = async {
            if connections.len() >= most {
                tokio::time::sleep(PAUSE).await;
                return None;
            }
            let came = match &door {
                Door::Unix(listener) => listener.accept().await.map(|(stream, _)| Stream::Unix(stream)),
                Door::Tcp(listener) => {
                    listener.accept().await.map(|(stream, from)| Stream::Tcp(stream, from))
                }
                Door::Http(listener) => {
                    listener.accept().await.map(|(stream, from)| Stream::Http(stream, from))
                }
            };
            match came {
                Ok(stream) => Some(stream),
                // Out of descriptors or the like: it may pass, and must not become a busy loop.
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

enum Stream {
    Unix(tokio::net::UnixStream),
    Tcp(tokio::net::TcpStream, SocketAddr),
    Http(tokio::net::TcpStream, SocketAddr),
}

async fn serve_one(shared: Arc<Shared>, stream: Stream, stopped: watch::Receiver<bool>) {
    let daemon = &shared.daemon;
    let id = daemon.connections.fetch_add(1, Ordering::Relaxed) + 1;
    let facts = |address: String| Facts { id, address, began_ns: daemon.now_ns(), ..Facts::default() };
    let _listed = Listed(daemon, id);
    // A connection that breaks is nobody's concern but its own.
    match stream {
        Stream::Http(stream, from) => {
            let _ = stream.set_nodelay(true);
            if let Some(http) = &shared.http {
                http.serve(stream, from, stopped).await;
            }
        }
        Stream::Tcp(mut stream, from) => {
            let _ = stream.set_nodelay(true);
            // A peer that vanished is found out some time.
            let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
            let facts = facts(from.to_string());
            daemon.clients().insert(id, facts.clone());
            let session = Session::new(facts, shared.unasked(), false);
            let _ = connection::serve(daemon, session, &mut stream, stopped).await;
        }
        Stream::Unix(mut stream) => {
            // The file's mode says so already; a socket that was handed on is not refused by that.
            let own = rustix::process::geteuid().as_raw();
            if !stream.peer_cred().is_ok_and(|peer| peer.uid() == own) {
                return;
            }
            let facts = facts("unix".to_owned());
            daemon.clients().insert(id, facts.clone());
            let session = Session::new(facts, Some(shared.owner.clone()), true);
            let served = connection::serve(daemon, session, &mut stream, stopped).await;
            let Ok(Some((command, rest))) = served else { return };
            let stream = stream.into_std().and_then(|stream| {
                stream.set_nonblocking(false)?;
                Ok(stream)
            });
            if let Ok(stream) = stream {
                shared.host.admit(stream, &shared.store, Came { command, rest });
            }
        }
    }
}

/// A connection that is listed.
struct Listed<'a>(&'a Daemon, u64);

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.0.clients().remove(&self.1);
    }
}

/// Looks for keys whose deadline is past, a few at a time.
async fn sweep(daemon: Arc<Daemon>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        for tenant in daemon.tenants() {
            sweep_one(&tenant.databases).await;
            // A store that cannot be written says so to whoever writes.
            let _ = tokio::task::block_in_place(|| tenant.ingest.settle(daemon.now_ns(), false));
        }
    }
}

/// Drops what a policy does not keep, at the beginning and then on schedule.
async fn retain(daemon: Arc<Daemon>, schedule: Schedule) {
    let samples = schedule.policy.sample != Share::ALL;
    if samples {
        // From here on it is known who ends; the sweep is for those from before.
        tokio::task::block_in_place(|| sample(&daemon, &schedule));
    }
    loop {
        tokio::task::block_in_place(|| retain_once(&daemon, &schedule));
        let next = tokio::time::Instant::now() + schedule.every;
        while samples && tokio::time::Instant::now() + SAMPLE < next {
            tokio::time::sleep(SAMPLE).await;
            tokio::task::block_in_place(|| sample(&daemon, &schedule));
        }
        tokio::time::sleep_until(next).await;
    }
}

/// Drops the runs that have ended since and that sampling leaves out. Each stands in the ledger by that rule.
fn sample(daemon: &Daemon, schedule: &Schedule) {
    match daemon.store.sample_ended(&schedule.policy) {
        Ok(0) => {}
        Ok(runs) => tracing::info!(runs, "sampled out"),
        Err(why) => tracing::warn!(%why, "runs that have ended are sampled at the next sweep"),
    }
}

/// One sweep. It is kept in the store as an action where it dropped something or failed.
fn retain_once(daemon: &Daemon, schedule: &Schedule) {
    // The time is looked at first: what is kept below is a record, too, and would vouch for the clock.
    let swept =
        daemon.store.plan_retention(&schedule.policy, None).and_then(|plan| daemon.store.retain(plan));
    let failed = swept.as_ref().err().map(ToString::to_string);
    let runs = swept.as_ref().map_or(0, |report| report.dropped().runs.saturating_sub(report.held));
    match &failed {
        Some(why) => tracing::warn!(why, "a sweep by schedule dropped nothing more"),
        None => tracing::info!(runs, "a sweep by schedule"),
    }
    if runs > 0 || failed.is_some() {
        let words = ["STORE.RETAIN".to_owned(), format!("{runs} runs dropped")].map(String::into_bytes);
        let kept = daemon.operations.record("schedule", "", &words, failed.as_deref(), daemon.now_ns());
        // A store that cannot be written says so to whoever writes.
        let _ = kept.and_then(annals::Ticket::wait);
    }
}

async fn sweep_one(databases: &Databases) {
    let mut from = Vec::new();
    loop {
        // A store that cannot be read says so to whoever asks for something.
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
    fn a_token_of_the_file_does_not_take_the_place_of_one_of_the_store() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path().join("s")).unwrap();
        access::make_token(&store, "ci", "n", Rights::READ, None, 1).unwrap();
        let hash = blake3::hash(b"x").to_hex();
        let named = |name: &str| {
            let file = format!("[[tokens]]\nname = \"{name}\"\nblake3 = \"{hash}\"\n");
            let serving = Serving::parse(&file).unwrap();
            admitted(&store, "default", &serving, true, 1).map(|(access, made)| (access.all().len(), made))
        };
        assert!(named("ci").unwrap_err().to_string().contains("two tokens are called \"ci\""));
        assert_eq!(named("other").unwrap(), (2, None));
    }
}
