//! The daemon over HTTP: a JSON API over the same commands, bodies as streams, and what those ask who watch a server.
//!
//! A request is one command, done as a turn of its own ([`super::perform`]), so rights, durability, limits and logs are those of every command. `annals_wire::schema::routes` is
//! the table from which requests are understood and `openapi` describes them; `json` makes words of JSON and JSON of replies; `bodies` streams;
//! `replays` are runs that are replayed over several requests; `traces` are what telemetry sends; `watch` is for those who watch. Beneath `/proxy` and `/replay` it is the proxy
//! of many runs (`annals_proxy::proxy`).
//!
//! Who may ask: whoever has a token (`Authorization: Bearer`), and nobody from a page that a browser shows: the request has to name this server as its host,
//! by an address or a name of the loopback, and as its origin, if it has one.

mod bodies;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod json;
mod openapi;
mod problem;
mod replays;
mod stall;
#[cfg(test)]
mod tests;
mod traces;
mod watch;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::extract::{RawPathParams, RawQuery, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, ETAG, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, get, on};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch as flag};
use tokio::time::timeout;

use self::json::Members;
use self::problem::Problem;
use self::replays::Replays;
use self::stall::Stalling;
use super::access::{Grant, Rights};
use super::databases::DATABASES;
use super::perform::perform;
use super::proxied::ProxyRuns;
use super::session::{Daemon, Facts, Session};
use super::turn::Apart;
use annals_proxy::Mounts;
use annals_proxy::body::BodyAssembler;
use annals_proxy::proxy::{Many, RECORDED, REPLAYED, Refused, Wants};
use annals_text::percent;
use annals_wire::resp::Reply;
use annals_wire::schema::routes::{Gives, Kind, ROUTES, Route, Verb, Word};

/// How long a request's head may take, and each part of its body.
const HEAD: Duration = Duration::from_secs(30);
const STALL: Duration = Duration::from_secs(60);
/// Bytes of a request's head, and of a body that is taken in as a whole. What is longer is streamed ([`bodies`]).
const HEAD_BYTES_MAX: usize = 64 << 10;
const BODY_BYTES_MAX: usize = 64 << 20;
/// KiB of all bodies together that are taken in as a whole.
const BODIES_KIB_MAX: usize = 512 << 10;

/// Requests with traces that are taken in at a time.
const TRACES_MAX: usize = 2;
/// Blobs that are taken in at a time: each holds a thread until all of it has come, of 512 that streams share.
const UPLOADS_MAX: usize = 64;

/// What requests are answered with.
pub(super) struct Http {
    router: Router,
    shared: Arc<Shared>,
    proxy: Many,
    /// Names that this server goes by, with its port.
    hosts: Vec<String>,
    /// How long a connection may take nothing of its responses.
    stall: Duration,
}

/// What all handlers share.
pub(super) struct Shared {
    daemon: Arc<Daemon>,
    /// What may be done without a token.
    unasked: Option<Grant>,
    bodies: Arc<Semaphore>,
    /// For traces: what is decoded of one may be hundreds of MB.
    traces: Semaphore,
    uploads: Semaphore,
    replays: Replays,
}

impl Http {
    /// At an address; without a token this may be done.
    pub(super) fn new(
        daemon: Arc<Daemon>,
        unasked: Option<Grant>,
        address: SocketAddr,
        mounts: Mounts,
    ) -> Self {
        let port = address.port();
        let proxy = Many::new(mounts);
        proxy.listens_at(port);
        let hosts = vec![
            address.to_string(),
            format!("localhost:{port}"),
            format!("127.0.0.1:{port}"),
            format!("[::1]:{port}"),
        ];
        let bodies = Arc::new(Semaphore::new(BODIES_KIB_MAX));
        let (traces, uploads) = (Semaphore::new(TRACES_MAX), Semaphore::new(UPLOADS_MAX));
        let shared =
            Arc::new(Shared { daemon, unasked, bodies, traces, uploads, replays: Replays::default() });
        let mut router = Router::new();
        for route in ROUTES {
            let filter = match route.verb {
                Verb::Get => MethodFilter::GET,
                Verb::Put => MethodFilter::PUT,
                Verb::Post => MethodFilter::POST,
                Verb::Delete => MethodFilter::DELETE,
            };
            let handler = move |State(shared): State<Arc<Shared>>,
                                path: RawPathParams,
                                RawQuery(query): RawQuery,
                                request: Request| async move {
                answer(&shared, route, &path, query.as_deref().unwrap_or_default(), request)
                    .await
                    .unwrap_or_else(IntoResponse::into_response)
            };
            router = router.route(route.path, on(filter, handler));
        }
        let router = bodies::routes(router);
        let router = replays::routes(router);
        let router = traces::routes(router);
        let router = watch::routes(router)
            .route("/openapi.json", get(described))
            .fallback(async || Problem::not_found("there is nothing here: /openapi.json tells what there is"))
            .method_not_allowed_fallback(async || {
                Problem::new(StatusCode::METHOD_NOT_ALLOWED, "ERR", "this takes another method")
            })
            .with_state(shared.clone());
        Self { router, shared, proxy, hosts, stall: STALL }
    }

    /// Answers a connection until it ends, or until the daemon does.
    pub(super) async fn serve(&self, stream: TcpStream, from: SocketAddr, mut stopped: flag::Receiver<bool>) {
        let service = service_fn(|mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(From(from));
            async { Ok::<_, Infallible>(self.one(request).await) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(Stalling::new(stream, self.stall)), service);
        tokio::pin!(connection);
        // A connection that breaks is nobody's concern but its own.
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = stopped.wait_for(|stopped| *stopped) => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    }

    async fn one(&self, request: hyper::Request<Incoming>) -> Response {
        if let Some(problem) = self.refused(request.headers()) {
            return problem.into_response();
        }
        let path = request.uri().path();
        let is_beneath = |begins| path.strip_prefix(begins).is_some_and(|rest| rest.starts_with('/'));
        if is_beneath(RECORDED) || is_beneath(REPLAYED) {
            let login = |token: Option<&str>, wants| self.shared.proxied(token, wants);
            return self.proxy.answer(login, request).await.map(Body::new);
        }
        // The router never fails.
        TowerToHyperService::new(self.router.clone())
            .call(request)
            .await
            .unwrap_or_else(|never| match never {})
    }

    /// Waits until all that went through the proxy is written. The connections have to be ended before.
    pub(super) async fn finish(&self) {
        self.proxy.finish().await;
    }

    /// Why a request is not answered that a browser may have been talked into.
    fn refused(&self, headers: &HeaderMap) -> Option<Problem> {
        let own = |host: &[u8]| self.hosts.iter().any(|own| own.as_bytes().eq_ignore_ascii_case(host));
        let hosts: Vec<_> = headers.get_all(HOST).iter().collect();
        if !matches!(hosts.as_slice(), [host] if own(host.as_bytes())) {
            return Some(Problem::new(
                StatusCode::MISDIRECTED_REQUEST,
                "ERR",
                "the request is for another host",
            ));
        }
        let from = headers.get(ORIGIN)?;
        if from.as_bytes().strip_prefix(b"http://").is_some_and(own) {
            return None;
        }
        Some(Problem::new(StatusCode::FORBIDDEN, "NOPERM", "the request comes from a page of another origin"))
    }
}

async fn described(State(shared): State<Arc<Shared>>) -> Response {
    json_response(StatusCode::OK, openapi::document(shared.unasked.is_some()))
}

/// Who asks.
#[derive(Debug, Clone, Copy)]
struct From(SocketAddr);

impl Shared {
    /// What whoever asks may do.
    fn grant(&self, headers: &HeaderMap) -> Result<Grant, Problem> {
        let told = || {
            let problem = Problem::new(
                StatusCode::UNAUTHORIZED,
                "NOAUTH",
                "a token is needed: Authorization: Bearer TOKEN",
            );
            problem.with("www-authenticate", HeaderValue::from_static("Bearer"))
        };
        let Some(header) = headers.get(AUTHORIZATION) else { return self.unasked.clone().ok_or_else(told) };
        let (scheme, token) = header.as_bytes().split_at_checked(7).ok_or_else(told)?;
        if !scheme.eq_ignore_ascii_case(b"bearer ") {
            return Err(told());
        }
        self.daemon.login(b"default", token.trim_ascii())?.ok_or_else(told)
    }

    /// The runs that somebody may have who came to the proxy by this token.
    fn proxied(&self, token: Option<&str>, wants: Wants) -> Result<ProxyRuns, Refused> {
        let grant = match token {
            Some(token) => self.daemon.login(b"default", token.as_bytes())?,
            None => self.unasked.clone(),
        };
        let grant = grant.ok_or_else(|| {
            Refused::new(StatusCode::UNAUTHORIZED, "a token of annals is needed, or another one")
        })?;
        let right = match wants {
            Wants::Record => Rights::RECORD,
            Wants::Replay => Rights::READ,
        };
        if !grant.rights.include(right) {
            return Err(Refused::new(StatusCode::FORBIDDEN, format!("this takes the right {right}")));
        }
        Ok(ProxyRuns::of(grant.tenant))
    }

    /// A session for one request.
    fn session(&self, request: &Request) -> Result<Session, Problem> {
        let grant = self.grant(request.headers())?;
        let address = request.extensions().get().map(|From(from)| format!("http {from}")).unwrap_or_default();
        let began_ns = self.daemon.now_ns();
        Ok(Session::new(Facts { address, began_ns, ..Facts::default() }, Some(grant), false))
    }

    /// A whole body, and its place among all bodies.
    async fn body(&self, body: Body) -> Result<(Bytes, Option<OwnedSemaphorePermit>), Problem> {
        let (mut body, mut bytes, mut place) = (body, BodyAssembler::default(), None::<OwnedSemaphorePermit>);
        let too_long = || {
            let why = format!("a body has at most {BODY_BYTES_MAX} bytes here");
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "ERR", why)
        };
        // What is announced need not be waited for.
        if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
            return Err(too_long());
        }
        while let Some(data) = next(&mut body).await? {
            if bytes.len() + data.len() > BODY_BYTES_MAX {
                return Err(too_long());
            }
            // However small the pieces are that it comes in.
            let kib = (bytes.len() + data.len()).div_ceil(1024) - bytes.len().div_ceil(1024);
            if kib > 0 {
                let kib = u32::try_from(kib).unwrap_or(u32::MAX);
                let more = self.bodies.clone().try_acquire_many_owned(kib).map_err(|_| Problem::busy())?;
                match &mut place {
                    Some(place) => place.merge(more),
                    None => place = Some(more),
                }
            }
            bytes.push(data);
        }
        Ok((bytes.into_bytes(), place))
    }
}

/// The next bytes of a body.
async fn next(body: &mut Body) -> Result<Option<Bytes>, Problem> {
    loop {
        let slow = |_| Problem::new(StatusCode::REQUEST_TIMEOUT, "ERR", "the body did not go on");
        let Some(frame) = timeout(STALL, body.frame()).await.map_err(slow)? else { return Ok(None) };
        let frame = frame.map_err(|error| Problem::bad(format!("the body broke off: {error}")))?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
}

/// Does what takes its time where waiting keeps nobody else from going on.
async fn apart<T>(daemon: &Daemon, work: impl FnOnce() -> T) -> T {
    let _place = daemon.places(Apart::Long).acquire().await;
    tokio::task::block_in_place(work)
}

/// Answers a request by a command.
async fn answer(
    shared: &Shared,
    route: &Route,
    path: &RawPathParams,
    query: &str,
    request: Request,
) -> Result<Response, Problem> {
    let mut session = shared.session(&request)?;
    if let Some(database) = param(path, "database") {
        let known = database.parse().ok().filter(|number| *number < DATABASES);
        session.facts.database = known.ok_or_else(|| Problem::bad("a database is a number from 0 to 15"))?;
    }
    let (head, body) = request.into_parts();
    let takes_raw = route.words.iter().any(|word| matches!(word, Word::Body));
    let takes_json = route.verb == Verb::Post;
    let (body, _place) =
        if takes_raw || takes_json { shared.body(body).await? } else { (Bytes::new(), None) };
    let mut members = Members::default();
    if takes_json {
        json_only(&head.headers)?;
        members = Members::parse(&body).map_err(Problem::bad)?;
    }
    let words = words(route, &|name| param(path, name), query, &body, &mut members)?;
    members.end().map_err(Problem::bad)?;
    let reply = perform(&shared.daemon, &mut session, words).await;
    given(route, reply)
}

/// What a form of a page could send is not taken for JSON.
fn json_only(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(kind) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let kind = kind.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "ERR", "the body has to be application/json"))
}

fn param<'a>(path: &'a RawPathParams, name: &str) -> Option<&'a str> {
    path.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
}

/// The command that a request is. `path` has the parts of its path by their names.
fn words<'a>(
    route: &Route,
    path: &dyn Fn(&str) -> Option<&'a str>,
    query: &str,
    body: &Bytes,
    members: &mut Members,
) -> Result<Vec<Vec<u8>>, Problem> {
    let of_path = |name: &str| path(name).unwrap_or_default().as_bytes().to_vec();
    let mut asked = asked(query)?;
    let mut take = |name: &str| {
        let at = asked.iter().position(|(known, _)| known == name);
        at.map(|at| asked.swap_remove(at).1)
    };
    let mut words = vec![route.command.as_bytes().to_vec()];
    for word in route.words {
        match *word {
            Word::Path(name) => words.push(of_path(name)),
            Word::PathAt(name, at) => {
                let number = members.take(at).ok_or_else(|| Problem::bad(format!("{at:?} is missing")))?;
                let number = json::words(at, &number, Kind::Number, None).map_err(Problem::bad)?.concat();
                words.push([of_path(name), b"@".to_vec(), number].concat());
            }
            Word::Field(name, kind) => {
                let value = members.take(name).ok_or_else(|| Problem::bad(format!("{name:?} is missing")))?;
                words.extend(json::words(name, &value, kind, None).map_err(Problem::bad)?);
            }
            Word::Option(name, word, kind) => {
                if let Some(value) = members.take(name) {
                    words.extend(json::words(name, &value, kind, Some(word)).map_err(Problem::bad)?);
                }
            }
            Word::Tail(name, kind) => {
                if let Some(value) = members.take(name) {
                    words.extend(json::words(name, &value, kind, None).map_err(Problem::bad)?);
                }
            }
            Word::Query(name, word, kind) => {
                if let Some(value) = take(name) {
                    words.extend([word.as_bytes().to_vec(), of_query(name, value, kind)?]);
                }
            }
            Word::Asked(name, kind) => {
                let value =
                    take(name).ok_or_else(|| Problem::bad(format!("{name} is missing in the query")))?;
                words.push(of_query(name, value, kind)?);
            }
            Word::Is(word) => words.push(word.as_bytes().to_vec()),
            Word::Body => words.push(body.to_vec()),
        }
    }
    match asked.first() {
        None => Ok(words),
        Some((name, _)) => Err(Problem::bad(format!("there is no {name:?} in the query here"))),
    }
}

fn of_query(name: &str, value: String, kind: Kind) -> Result<Vec<u8>, Problem> {
    if kind.is_number() && value.parse::<u64>().ok().filter(|number| i64::try_from(*number).is_ok()).is_none()
    {
        return Err(Problem::bad(format!("{name} is not an integer from 0 to 2^63-1")));
    }
    Ok(value.into_bytes())
}

/// What a query asks for; nothing is asked for twice.
fn asked(query: &str) -> Result<Vec<(String, String)>, Problem> {
    let mut asked: Vec<(String, String)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let text = |text: &str| percent::decode(&text.replace('+', " ")).into_owned();
        let (name, value) = (text(name), text(value));
        if asked.iter().any(|(known, _)| *known == name) {
            return Err(Problem::bad(format!("{name:?} is twice in the query")));
        }
        asked.push((name, value));
    }
    Ok(asked)
}

/// A reply as a response.
fn given(route: &Route, reply: Reply) -> Result<Response, Problem> {
    if let Reply::Error(text) = reply {
        return Err(Problem::of(&text));
    }
    let reply = match reply {
        Reply::Shared(bytes) => Reply::Bulk(Arc::unwrap_or_clone(bytes)),
        reply => reply,
    };
    let status = StatusCode::from_u16(route.status).unwrap_or(StatusCode::OK);
    let none = || Problem::not_found("there is no such thing");
    Ok(match (route.gives, reply) {
        (Gives::Found(_) | Gives::Bytes, Reply::Null | Reply::NullArray) => return Err(none()),
        (Gives::Nothing, Reply::Integer(0)) => return Err(none()),
        (Gives::Nothing, _) => StatusCode::NO_CONTENT.into_response(),
        (Gives::Json(_) | Gives::Found(_), reply) => json_response(status, json::text(reply)),
        (Gives::Named(name, _), reply) => {
            json_response(status, json::text(Reply::Map(vec![(Reply::text(name), reply)])))
        }
        (Gives::Page(name, _), Reply::Array(mut pair)) if pair.len() == 2 => {
            let (of, cursor) = (pair.pop().unwrap_or(Reply::Null), pair.pop().unwrap_or(Reply::Null));
            let members = vec![(Reply::text("cursor"), cursor), (Reply::text(name), of)];
            json_response(status, json::text(Reply::Map(members)))
        }
        (Gives::Bytes, Reply::Bulk(bytes)) => {
            let tag = HeaderValue::from_str(&format!("\"{}\"", blake3::hash(&bytes).to_hex()));
            let mut response = (status, [(CONTENT_TYPE, "application/octet-stream")], bytes).into_response();
            if let Ok(tag) = tag {
                response.headers_mut().insert(ETAG, tag);
            }
            response
        }
        (Gives::Bytes | Gives::Page(..), _) => {
            return Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "BUG", "the reply has no bytes"));
        }
    })
}

/// JSON with a line's end, as a person reads it in a terminal.
fn json_response(status: StatusCode, value: impl std::fmt::Display) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], format!("{value}\n")).into_response()
}
