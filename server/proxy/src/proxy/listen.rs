//! Listens on the loopback and hands whole requests to a [`ExchangeHandler`].
//!
//! A request is read to its end before an upstream is called. Clients that do not know the run's secret learn
//! nothing. A request that cannot be passed on (an upgrade, a tunnel, a body over the limit) is refused with
//! a reason, and the handler is told, so that a recording has it. Bodies are sent on with a length set here,
//! so that no two readers disagree about where one ends. Memory for bodies is limited for each one and in
//! total ([`BodyMemory`]).

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{
    CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER, TRANSFER_ENCODING, UPGRADE,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::arrivals::{Arrival, Arrivals, UnreadConnection};
use super::body_memory::{BodyMemory, BodyMemoryFull as NoRoom};
use super::connection::{ConnectionProgress, CountedStream};
use super::socket_diag::SocketDiag;
use super::upload::IncomingUpload;
use crate::body::BodyAssembler;
use crate::error::ProxyError;

/// Maximum length of a request's body, in bytes.
const REQUEST_BYTES_MAX: usize = 256 << 20;

/// How much of a refused body is read, and for how long.
const DISCARDED_BYTES_MAX: usize = 32 << 20;
const DISCARD_TIME_MAX: Duration = Duration::from_secs(10);

/// Lengths of bodies that are streamed to the upstream before they are complete.
const STREAMED_BYTES: std::ops::RangeInclusive<u64> = (32 << 10)..=(REQUEST_BYTES_MAX as u64);

/// The header that marks answers made by annals instead of an upstream.
pub(crate) const ANNALS_HEADER: &str = "x-annals";

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type ResponseBody = BoxBody<Bytes, BoxError>;
/// A request's body while it arrives.
pub(crate) type IncomingBody = UnsyncBoxBody<Bytes, BoxError>;
pub(crate) type AnswerFuture = Pin<Box<dyn Future<Output = Response<ResponseBody>> + Send>>;

/// A request as it arrived.
#[derive(Debug)]
pub(crate) struct ProxyRequest {
    pub(crate) mount: String,
    pub(crate) method: Method,
    /// The path below the mount.
    pub(crate) path: String,
    pub(crate) query: Option<String>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The body instead of `body`, if it is long and the handler starts before it is complete.
    pub(crate) upload: Option<IncomingUpload>,
    /// Why the request must not be passed on.
    pub(crate) refusal: Option<(StatusCode, String)>,
    /// The connection it came by, if any.
    pub(crate) wire: Option<Arc<ConnectionProgress>>,
    /// When it arrived, if it came by a connection.
    pub(crate) arrived: Option<Arrival>,
}

/// Answers requests.
pub(crate) trait ExchangeHandler: Send + Sync + 'static {
    /// Whether it accepts long bodies while they arrive.
    fn streams_bodies(&self) -> bool {
        false
    }

    /// The memory for request bodies.
    fn body_memory(&self) -> BodyMemory {
        BodyMemory::shared()
    }

    /// A request was refused before anything else: it lacks the secret of the address, or is no HTTP that can be read.
    fn note_refused(&self) {}

    fn answer(self: Arc<Self>, asked: ProxyRequest) -> AnswerFuture;
}

/// Most header fields of a request. hyper's own limit is 100, which clients with tracing exceed.
const HEADERS_MAX: usize = 1024;

/// A proxy that listens.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    secret: String,
    stop: watch::Sender<bool>,
    /// Accepts connections from listeners other than the proxy's own.
    others: mpsc::Sender<(std::net::TcpListener, Option<OwnedFd>)>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port of the loopback.
    pub(crate) async fn start(handler: Arc<dyn ExchangeHandler>) -> Result<Self, ProxyError> {
        let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = bound.map_err(|e| ProxyError(format!("cannot listen on the loopback: {e}")))?;
        let address = listener.local_addr().map_err(|e| ProxyError(e.to_string()))?;
        let mut bytes = [0; 12];
        getrandom::fill(&mut bytes).map_err(|e| ProxyError(format!("the system has no randomness: {e}")))?;
        let secret = annals_text::hex::encode(&bytes);
        let (stop, stopped) = watch::channel(false);
        let (others, more) = mpsc::channel(1);
        let task = tokio::spawn(listen(listener, more, handler, Arc::from(secret.as_str()), stopped));
        Ok(Self { address, secret, stop, others, task })
    }

    /// `http://127.0.0.1:PORT`.
    #[must_use]
    pub(crate) fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The secret that every path must begin with.
    #[must_use]
    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    /// Its port.
    #[must_use]
    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Also accepts from this listener: the proxy's own address within the program's network namespace.
    /// `socket_diag` tells about the sockets there.
    pub(crate) fn add_listener(&self, listener: std::net::TcpListener, socket_diag: Option<OwnedFd>) {
        // The receiver is gone once the proxy has stopped.
        let _ = self.others.try_send((listener, socket_diag));
    }

    /// Accepts no more connections and ends the open ones.
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(true);
        let _ = self.task.await;
    }
}

async fn listen(
    listener: TcpListener,
    mut more: mpsc::Receiver<(std::net::TcpListener, Option<OwnedFd>)>,
    handler: Arc<dyn ExchangeHandler>,
    secret: Arc<str>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    let own_sockets = SocketDiag::of_this_process();
    let mut other: Option<(TcpListener, Arc<SocketDiag>)> = None;
    let arrivals = Arrivals::new();
    loop {
        let accepted = tokio::select! {
            _ = stopped.changed() => break,
            accepted = listener.accept() => Some((accepted, own_sockets.clone())),
            Some(accepted) = accept(other.as_ref()), if other.is_some() => Some(accepted),
            Some((listener, socket_diag)) = more.recv() => {
                let listener = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
                other = listener.ok().map(|listener| (listener, SocketDiag::of_namespace(socket_diag)));
                None
            }
            _ = connections.join_next(), if !connections.is_empty() => None,
        };
        match accepted {
            Some((Ok((stream, _)), sockets)) => {
                let first = arrivals.accept();
                let _ = stream.set_nodelay(true);
                if let Some(stream) = CountedStream::new(stream, sockets) {
                    let (handler, secret) = (handler.clone(), secret.clone());
                    connections.spawn(serve(stream, handler, secret, first, arrivals.clone()));
                }
            }
            // Accepting may fail for a while, for example without free descriptors. The pause prevents a busy
            // loop.
            Some((Err(_), _)) => tokio::time::sleep(Duration::from_millis(20)).await,
            None => {}
        }
    }
    // An aborted exchange ends like one whose client hangs up.
    connections.shutdown().await;
}

/// A connection, and what tells about the sockets of its namespace.
type Accepted = (std::io::Result<(TcpStream, SocketAddr)>, Arc<SocketDiag>);

async fn accept(other: Option<&(TcpListener, Arc<SocketDiag>)>) -> Option<Accepted> {
    let (listener, sockets) = other?;
    Some((listener.accept().await, sockets.clone()))
}

async fn serve(
    stream: CountedStream,
    handler: Arc<dyn ExchangeHandler>,
    secret: Arc<str>,
    first: UnreadConnection,
    arrivals: Arc<Arrivals>,
) {
    let wire = stream.wire();
    let first = Mutex::new(Some(first));
    let refusing = handler.clone();
    let service = service_fn(move |request| {
        let (handler, secret, wire) = (handler.clone(), secret.clone(), wire.clone());
        let first = first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let arrivals = arrivals.clone();
        async move {
            let answer = handle(request, handler, &secret, wire, first, &arrivals);
            Ok::<_, std::convert::Infallible>(answer.await)
        }
    });
    // A client that breaks off ends only its own connection.
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .half_close(true)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if served.is_err_and(|error| error.is_parse()) {
        refusing.note_refused();
    }
}

async fn handle(
    request: Request<Incoming>,
    handler: Arc<dyn ExchangeHandler>,
    secret: &str,
    wire: Arc<ConnectionProgress>,
    first: Option<UnreadConnection>,
    arrivals: &Arc<Arrivals>,
) -> Response<ResponseBody> {
    // A later request has its position before its body is read.
    let follows = if first.is_none() { Some(arrivals.follow()) } else { None };
    let (parts, body) = request.into_parts();
    let Some((mount, path)) = split_mount(parts.uri.path(), secret) else {
        handler.note_refused();
        return refuse(StatusCode::FORBIDDEN, "this address belongs to a recording and lacks its secret");
    };
    let mut asked = ProxyRequest {
        mount: mount.to_owned(),
        method: parts.method,
        path: path.to_owned(),
        query: parts.uri.query().map(str::to_owned),
        headers: parts.headers,
        body: Bytes::new(),
        upload: None,
        refusal: None,
        wire: Some(wire),
        arrived: follows,
    };
    let body = body.map_err(Into::into).boxed_unsync();
    match asked.take_body(body, &handler.body_memory(), handler.streams_bodies()).await {
        Ok(()) => {
            if let Some(first) = first {
                asked.arrived = Some(first.read());
            }
            handler.answer(asked).await
        }
        Err(refused) => *refused,
    }
}

impl ProxyRequest {
    /// Reads a request's body, or keeps it as a stream if that is allowed and worthwhile. Notes why the
    /// request must not be passed on, if so.
    ///
    /// # Errors
    /// If there is no memory for the body now: the answer to send. The request counts as never received.
    pub(super) async fn take_body(
        &mut self,
        body: IncomingBody,
        room: &BodyMemory,
        takes_coming: bool,
    ) -> Result<(), Box<Response<ResponseBody>>> {
        self.refusal = refusal(&self.method, &self.headers);
        let len = announced_length(&self.headers).filter(|len| STREAMED_BYTES.contains(len) && takes_coming);
        if let (None, Some(len)) = (&self.refusal, len) {
            self.upload = Some(IncomingUpload { from: Mutex::new(body), len, room: room.clone() });
        } else if self.refusal.is_none() {
            match whole_body(body, room).await {
                Ok(body) => self.body = body,
                Err((StatusCode::SERVICE_UNAVAILABLE, why)) => {
                    return Err(Box::new(refuse(StatusCode::SERVICE_UNAVAILABLE, &why)));
                }
                Err(why) => self.refusal = Some(why),
            }
        }
        Ok(())
    }
}

/// Reads a body to its end, also without memory for it, so that its client listens to the answer.
async fn whole_body(mut body: IncomingBody, room: &BodyMemory) -> Result<Bytes, (StatusCode, String)> {
    let (mut held, mut all) = (room.reservation(), BodyAssembler::default());
    let (mut len, mut full) = (0, None);
    while let Some(part) = body.frame().await {
        let part = part.map_err(|error| (StatusCode::BAD_REQUEST, format!("the body broke off: {error}")))?;
        let Ok(part) = part.into_data() else { continue };
        len += part.len();
        if len > REQUEST_BYTES_MAX {
            let why = format!("a request's body may have at most {} MiB", REQUEST_BYTES_MAX >> 20);
            return Err((StatusCode::PAYLOAD_TOO_LARGE, why));
        }
        if full.is_none() {
            full = held.reserve(part.len()).err();
        }
        if full.is_some() {
            all.clear();
            held.clear();
            continue;
        }
        all.push(part);
    }
    match full {
        Some(full) => Err(body_memory_full(full)),
        None => Ok(held.attach_to(all.into_bytes())),
    }
}

/// Reads and drops a body, because a client that is cut off while sending may not read the answer.
pub(super) async fn discard_body(mut body: IncomingBody) {
    let mut left = DISCARDED_BYTES_MAX;
    let swallow = async {
        while let Some(Ok(part)) = body.frame().await {
            left = left.saturating_sub(part.data_ref().map_or(0, Bytes::len));
            if left == 0 {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(DISCARD_TIME_MAX, swallow).await;
}

/// The answer to a request whose body has no memory left.
pub(super) fn body_memory_full(_: NoRoom) -> (StatusCode, String) {
    (StatusCode::SERVICE_UNAVAILABLE, NoRoom::WHY.to_owned())
}

/// The body's length according to its headers; `None` for a chunked body.
fn announced_length(headers: &HeaderMap) -> Option<u64> {
    let chunked = headers.contains_key(TRANSFER_ENCODING);
    let len = headers.get(CONTENT_LENGTH).filter(|_| !chunked)?;
    len.to_str().ok()?.parse().ok()
}

/// The mount, and the path below it. Some clients join a path to a base that ends in a slash, which gives two
/// slashes.
fn split_mount<'a>(path: &'a str, secret: &str) -> Option<(&'a str, &'a str)> {
    let rest = path.trim_start_matches('/').strip_prefix(secret)?.strip_prefix('-')?;
    let end = rest.find('/').unwrap_or(rest.len());
    let (mount, path) = rest.split_at(end);
    let doubled = path.len() - path.trim_start_matches('/').len();
    Some((mount, &path[doubled.saturating_sub(1)..]))
}

/// Why a request must not be passed on, whatever its body.
fn refusal(method: &Method, headers: &HeaderMap) -> Option<(StatusCode, String)> {
    let refuse = |status, why: &str| Some((status, why.to_owned()));
    if headers.contains_key(UPGRADE) {
        let why = "an upgrade (WebSocket) cannot be recorded yet: use the HTTP form of the interface";
        return refuse(StatusCode::NOT_IMPLEMENTED, why);
    }
    if *method == Method::CONNECT {
        return refuse(
            StatusCode::METHOD_NOT_ALLOWED,
            "a tunnel cannot be recorded: set the base address instead",
        );
    }
    None
}

/// An answer made by annals.
pub(crate) fn refuse(status: StatusCode, why: &str) -> Response<ResponseBody> {
    error_response(status, &json!({ "type": "annals", "message": format!("annals: {why}") }))
}

/// An answer made by annals, in the error form of model providers. Clients do not retry it unless it tells
/// them to.
pub(crate) fn error_response(status: StatusCode, error: &serde_json::Value) -> Response<ResponseBody> {
    let body = json!({ "error": error }).to_string();
    let length = HeaderValue::from(body.len());
    let mut response = Response::new(whole_body_response(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_LENGTH, length);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let again = status == StatusCode::SERVICE_UNAVAILABLE;
    let should = if again { "true" } else { "false" };
    response.headers_mut().insert("x-should-retry", HeaderValue::from_static(should));
    if again {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response.headers_mut().insert(ANNALS_HEADER, HeaderValue::from_static("1"));
    response
}

pub(crate) fn whole_body_response(bytes: Bytes) -> ResponseBody {
    Full::new(bytes).map_err(|never| match never {}).boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_names_its_mount_after_the_secret() {
        assert_eq!(split_mount("/abc-openai/v1/x", "abc"), Some(("openai", "/v1/x")));
        assert_eq!(split_mount("/abc-openai", "abc"), Some(("openai", "")));
        assert_eq!(split_mount("//abc-openai//v1/x", "abc"), Some(("openai", "/v1/x")));
        assert_eq!(split_mount("/abd-openai/v1", "abc"), None);
        assert_eq!(split_mount("/v1/chat/completions", "abc"), None);
    }
}
