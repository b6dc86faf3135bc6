//! The daemon over HTTP: a JSON API over the same commands, streamed bodies, and endpoints for monitoring.
//!
//! A request is one command and runs as its own turn ([`super::perform`]). So the rights, durability, limits
//! and logs of commands also hold over HTTP. Requests below `/proxy` and `/replay` go to the proxy of many
//! runs (`annals_proxy::proxy`).
//!
//! Layout: `json` (JSON to commands, replies to JSON), `bodies` (streamed bodies), `events` (server-sent events), `forks` (forks that a client starts), `framing` (requests with two lengths), `replays` (replays that
//! span several requests), `mcp` (tools for agents), `page` (the debugger page and its login), `traces` (OTLP), `monitoring` (liveness, metrics), `openapi` (the description of
//! the API), `problem` (errors), `hosts` (names of this server), `stall` (peers that do not read). The routes are the table
//! `annals_wire::schema::routes`.
//!
//! A client needs a token (`Authorization: Bearer`), or a session of the page. Requests from browser pages of other origins are
//! refused: the host must be this server, by a loopback address or a name that the configuration allows, and so
//! must the origin, if there is one.

mod bodies;
mod cstp;
mod events;
mod forks;
mod framing;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod hosts;
mod json;
mod mcp;
mod monitoring;
mod openapi;
mod page;
mod problem;
mod replays;
mod stall;
#[cfg(test)]
mod tests;
mod traces;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch as flag};
use tokio::time::timeout;

use self::forks::ForkPrograms;
use self::framing::FramingGuard;
pub(super) use self::hosts::ServerHosts;
use self::json::JsonMembers;
use self::problem::HttpProblem;
use self::replays::HttpReplays;
use self::stall::WriteStallGuard;
use super::access::{Grant, Rights};
use super::config::ForkCommand;
use super::databases::DATABASES;
use super::perform::perform;
use super::proxy_runs::ProxyRuns;
use super::session::{ClientInfo, Daemon, Session};
use super::turn::Offload;
use annals_mcp::McpHttp;
use annals_proxy::Mounts;
use annals_proxy::body::BodyAssembler;
use annals_proxy::proxy::{MultiRunProxy, ProxyAction, RECORDED, REPLAYED, RequestRefusal};
use annals_text::percent;
use annals_wire::resp::Reply;
use annals_wire::schema::routes::{HttpRoute, HttpVerb, MemberKind, ROUTES, ReplyShape, WordSource};

/// Time limits for a request's head, and for each part of its body.
const HEAD: Duration = Duration::from_secs(30);
const STALL: Duration = Duration::from_secs(60);
/// Maximum size of a request's head, and of a body held in memory, in bytes. Longer bodies are streamed
/// ([`bodies`]).
const HEAD_BYTES_MAX: usize = 64 << 10;
const BODY_BYTES_MAX: usize = 64 << 20;
/// Maximum total size of bodies held in memory, in KiB.
const BODIES_KIB_MAX: usize = 512 << 10;

/// After a failed write, responses name the last commit that readers see.
const AS_OF: &str = "annals-as-of";

/// Maximum number of trace requests processed at a time.
const TRACES_MAX: usize = 2;
/// Maximum number of concurrent blob uploads. Each blocks a thread until it is complete; streams share 512
/// threads.
const UPLOADS_MAX: usize = 64;

/// The HTTP API of a daemon.
pub(super) struct HttpApi {
    router: Router,
    shared: Arc<HttpShared>,
    proxy: MultiRunProxy,
    /// The host names and addresses that requests may name.
    hosts: ServerHosts,
    /// Time limit for a client to read some of a response.
    stall: Duration,
}

/// State shared by all handlers.
pub(super) struct HttpShared {
    daemon: Arc<Daemon>,
    /// The rights of a client without a token.
    anonymous_grant: Option<Grant>,
    bodies: Arc<Semaphore>,
    /// Limits trace requests: one may take hundreds of MB when decoded.
    traces: Semaphore,
    uploads: Semaphore,
    streams: Arc<Semaphore>,
    replays: HttpReplays,
    forks: ForkPrograms,
    mcp: McpHttp,
    /// The name of the cookie of the page's sessions: browsers send the cookies of a host to all its ports.
    session_cookie: String,
    has_tls: bool,
}

impl HttpApi {
    /// Creates the API of a server with these names; `unasked` are the rights of a client without a token,
    /// `forks` is what its clients may start.
    pub(super) fn new(
        daemon: Arc<Daemon>,
        unasked: Option<Grant>,
        hosts: ServerHosts,
        mounts: Mounts,
        forks: Option<ForkCommand>,
    ) -> Self {
        let proxy = MultiRunProxy::new(mounts);
        proxy.set_port(hosts.port());
        let bodies = Arc::new(Semaphore::new(BODIES_KIB_MAX));
        let (traces, uploads) = (Semaphore::new(TRACES_MAX), Semaphore::new(UPLOADS_MAX));
        let shared = Arc::new(HttpShared {
            daemon,
            anonymous_grant: unasked,
            bodies,
            traces,
            uploads,
            streams: Arc::new(Semaphore::new(events::STREAMS_MAX)),
            replays: HttpReplays::default(),
            forks: ForkPrograms::new(forks),
            mcp: McpHttp::new(BODY_BYTES_MAX),
            session_cookie: format!("annals-{}", hosts.port()),
            has_tls: hosts.has_tls(),
        });
        let mut router = Router::new();
        for route in ROUTES {
            let filter = match route.verb {
                HttpVerb::Get => MethodFilter::GET,
                HttpVerb::Put => MethodFilter::PUT,
                HttpVerb::Post => MethodFilter::POST,
                HttpVerb::Delete => MethodFilter::DELETE,
            };
            let handler = move |State(shared): State<Arc<HttpShared>>,
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
        let router = forks::routes(router);
        let router = traces::routes(router);
        let router = cstp::routes(router);
        let router = mcp::routes(router);
        let router = events::routes(router);
        let router = page::routes(router);
        let router = monitoring::routes(router)
            .route("/openapi.json", get(describe_api))
            .fallback(async || HttpProblem::not_found("no such route: see /openapi.json"))
            .method_not_allowed_fallback(async || {
                HttpProblem::new(
                    StatusCode::METHOD_NOT_ALLOWED,
                    "ERR",
                    "this route does not support the method",
                )
            })
            .with_state(shared.clone());
        Self { router, shared, proxy, hosts, stall: STALL }
    }

    /// Serves a connection until it or the daemon ends.
    pub(super) async fn serve(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        from: SocketAddr,
        mut stopped: flag::Receiver<bool>,
    ) {
        let ends = stopped.clone();
        let (stream, two_lengths) = FramingGuard::new(stream);
        let numbers = AtomicU64::new(0);
        let service = service_fn(|mut request: hyper::Request<Incoming>| {
            let has_two_lengths = two_lengths.is_request(numbers.fetch_add(1, Ordering::Relaxed));
            request.extensions_mut().insert(PeerAddress(from));
            request.extensions_mut().insert(StopSignal(ends.clone()));
            async move {
                if has_two_lengths {
                    return Ok(two_lengths_response());
                }
                Ok::<_, Infallible>(self.handle_request(request).await)
            }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(WriteStallGuard::new(stream, self.stall)), service);
        tokio::pin!(connection);
        // A broken connection affects no other.
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = stopped.wait_for(|stopped| *stopped) => {
                self.shared.mcp.end_streams();
                connection.as_mut().graceful_shutdown();
            }
        }
        let _ = connection.await;
    }

    async fn handle_request(&self, request: hyper::Request<Incoming>) -> Response {
        if let Some(problem) = self.cross_origin_problem(request.headers()) {
            return problem.into_response();
        }
        let path = request.uri().path();
        let is_beneath = |begins| path.strip_prefix(begins).is_some_and(|rest| rest.starts_with('/'));
        if is_beneath(RECORDED) || is_beneath(REPLAYED) {
            let peer = peer_address(request.extensions());
            let login = |token: Option<&str>, wants| self.shared.proxy_login(token, wants, &peer);
            return self.proxy.answer(login, request).await.map(Body::new);
        }
        // The router never fails.
        let answered = TowerToHyperService::new(self.router.clone()).call(request).await;
        let mut response: Response = answered.unwrap_or_else(|never| match never {});
        let store = &self.shared.daemon.store;
        if store.check_writer().is_err() {
            response.headers_mut().insert(AS_OF, HeaderValue::from(store.seqno().0));
        }
        response
    }

    /// Asks the forks that clients have started to end.
    pub(super) fn stop_forks(&self) {
        self.shared.forks.stop_all();
    }

    /// Waits until all exchanges of the proxy are written. The connections must have ended before.
    pub(super) async fn finish(&self) {
        self.shared.mcp.end();
        self.proxy.finish().await;
    }

    /// The refusal of a request that a browser may have been tricked into.
    fn cross_origin_problem(&self, headers: &HeaderMap) -> Option<HttpProblem> {
        let hosts: Vec<_> = headers.get_all(HOST).iter().collect();
        if !matches!(hosts.as_slice(), [host] if self.hosts.includes(host.as_bytes())) {
            return Some(HttpProblem::new(
                StatusCode::MISDIRECTED_REQUEST,
                "ERR",
                "the request is for another host: --http-host allows further host names",
            ));
        }
        let from = headers.get(ORIGIN)?;
        if self.hosts.is_own_origin(from.as_bytes()) {
            return None;
        }
        Some(HttpProblem::new(
            StatusCode::FORBIDDEN,
            "NOPERM",
            "the request comes from a page of another origin",
        ))
    }
}

/// The answer to a request with `Content-Length` and `Transfer-Encoding`, after which the connection ends.
fn two_lengths_response() -> Response {
    HttpProblem::bad_request("the request has both Content-Length and Transfer-Encoding")
        .with_header("connection", HeaderValue::from_static("close"))
        .into_response()
}

async fn describe_api(State(shared): State<Arc<HttpShared>>) -> Response {
    json_response(StatusCode::OK, openapi::document(shared.anonymous_grant.is_some()))
}

/// The peer of a connection.
#[derive(Debug, Clone, Copy)]
struct PeerAddress(SocketAddr);

/// Tells streams without an end that the daemon ends.
#[derive(Debug, Clone)]
struct StopSignal(flag::Receiver<bool>);

/// The address of the client of a request, as client lists show it.
fn peer_address(extensions: &axum::http::Extensions) -> String {
    extensions.get().map(|PeerAddress(from)| format!("http {from}")).unwrap_or_default()
}

impl HttpShared {
    /// The rights of the client.
    fn grant(&self, request: &Request) -> Result<Grant, HttpProblem> {
        let told = || {
            let problem = HttpProblem::new(
                StatusCode::UNAUTHORIZED,
                "NOAUTH",
                "a token is needed: Authorization: Bearer TOKEN",
            );
            problem.with_header("www-authenticate", HeaderValue::from_static("Bearer"))
        };
        let Some(header) = request.headers().get(AUTHORIZATION) else {
            if let Some(namespace) = self.page_namespace(request.headers()) {
                return Ok(self.daemon.owner_of(&namespace)?);
            }
            return self.anonymous_grant.clone().ok_or_else(told);
        };
        let (scheme, token) = header.as_bytes().split_at_checked(7).ok_or_else(told)?;
        if !scheme.eq_ignore_ascii_case(b"bearer ") {
            return Err(told());
        }
        let peer = peer_address(request.extensions());
        self.daemon.login(b"default", token.trim_ascii(), &peer)?.ok_or_else(told)
    }

    /// The runs that a proxy client with this token may use.
    fn proxy_login(
        &self,
        token: Option<&str>,
        wants: ProxyAction,
        peer: &str,
    ) -> Result<ProxyRuns, RequestRefusal> {
        let grant = match token {
            Some(token) => self.daemon.login(b"default", token.as_bytes(), peer).map_err(|refusal| {
                let (status, why) = HttpProblem::from(refusal).into_parts();
                RequestRefusal::new(status, why)
            })?,
            None => self.anonymous_grant.clone(),
        };
        let grant = grant.ok_or_else(|| {
            RequestRefusal::new(StatusCode::UNAUTHORIZED, "a token of annals is needed, and a valid one")
        })?;
        let right = match wants {
            ProxyAction::Record => Rights::RECORD,
            ProxyAction::Replay => Rights::READ,
        };
        if !grant.rights.includes(right) {
            return Err(RequestRefusal::new(StatusCode::FORBIDDEN, format!("this takes the right {right}")));
        }
        if matches!(wants, ProxyAction::Record) {
            self.daemon.store.check_writer()?;
        }
        Ok(ProxyRuns::new(grant.tenant))
    }

    /// A session for one request.
    fn session(&self, request: &Request) -> Result<Session, HttpProblem> {
        let grant = self.grant(request)?;
        let address = peer_address(request.extensions());
        let began_ns = self.daemon.now_ns();
        let facts = ClientInfo { address, began_ns, ..ClientInfo::default() };
        let mut session = Session::new(facts, Some(grant), false);
        session.is_page = !request.headers().contains_key(AUTHORIZATION)
            && self.page_namespace(request.headers()).is_some();
        Ok(session)
    }

    /// A whole body, and its share of the room for all bodies.
    async fn body(&self, body: Body) -> Result<(Bytes, Option<OwnedSemaphorePermit>), HttpProblem> {
        let (mut body, mut bytes, mut place) = (body, BodyAssembler::default(), None::<OwnedSemaphorePermit>);
        let too_long = || {
            let why = format!("a body has at most {BODY_BYTES_MAX} bytes here");
            HttpProblem::new(StatusCode::PAYLOAD_TOO_LARGE, "ERR", why)
        };
        // An announced length over the limit is refused before the body arrives.
        if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
            return Err(too_long());
        }
        while let Some(data) = next_chunk(&mut body).await? {
            if bytes.len() + data.len() > BODY_BYTES_MAX {
                return Err(too_long());
            }
            // Counted in total KiB, so that small chunks take no extra room.
            let kib = (bytes.len() + data.len()).div_ceil(1024) - bytes.len().div_ceil(1024);
            if kib > 0 {
                let kib = u32::try_from(kib).unwrap_or(u32::MAX);
                let more =
                    self.bodies.clone().try_acquire_many_owned(kib).map_err(|_| HttpProblem::busy())?;
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

/// The next chunk of a body.
async fn next_chunk(body: &mut Body) -> Result<Option<Bytes>, HttpProblem> {
    loop {
        let slow = |_| HttpProblem::new(StatusCode::REQUEST_TIMEOUT, "ERR", "the body stalled");
        let Some(frame) = timeout(STALL, body.frame()).await.map_err(slow)? else { return Ok(None) };
        let frame =
            frame.map_err(|error| HttpProblem::bad_request(format!("the body broke off: {error}")))?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
}

/// Runs blocking work without delaying other connections.
async fn run_offloaded<T>(daemon: &Daemon, work: impl FnOnce() -> T) -> T {
    let _place = daemon.offload_permits(Offload::Blocking).acquire().await;
    tokio::task::block_in_place(work)
}

/// Answers a request by running a command.
async fn answer(
    shared: &HttpShared,
    route: &HttpRoute,
    path: &RawPathParams,
    query: &str,
    request: Request,
) -> Result<Response, HttpProblem> {
    let mut session = shared.session(&request)?;
    if let Some(database) = param(path, "database") {
        let known = database.parse().ok().filter(|number| *number < DATABASES);
        session.facts.database =
            known.ok_or_else(|| HttpProblem::bad_request("a database is a number from 0 to 15"))?;
    }
    let (head, body) = request.into_parts();
    let takes_raw = route.words.iter().any(|word| matches!(word, WordSource::Body));
    let takes_json = route.verb == HttpVerb::Post;
    let (body, _place) =
        if takes_raw || takes_json { shared.body(body).await? } else { (Bytes::new(), None) };
    let mut members = JsonMembers::default();
    if takes_json {
        json_only(&head.headers)?;
        members = JsonMembers::parse(&body).map_err(HttpProblem::bad_request)?;
    }
    let words = command_words(route, &|name| param(path, name), query, &body, &mut members)?;
    members.expect_empty().map_err(HttpProblem::bad_request)?;
    let reply = perform(&shared.daemon, &mut session, words).await;
    reply_response(route, reply)
}

/// Refuses content types that an HTML form could send.
fn json_only(headers: &HeaderMap) -> Result<(), HttpProblem> {
    let Some(kind) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let kind = kind.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(HttpProblem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "ERR", "the body has to be application/json"))
}

fn param<'a>(path: &'a RawPathParams, name: &str) -> Option<&'a str> {
    path.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
}

/// The command for a request. `path` returns the parts of its path by name.
fn command_words<'a>(
    route: &HttpRoute,
    path: &dyn Fn(&str) -> Option<&'a str>,
    query: &str,
    body: &Bytes,
    members: &mut JsonMembers,
) -> Result<Vec<Vec<u8>>, HttpProblem> {
    let of_path = |name: &str| path(name).unwrap_or_default().as_bytes().to_vec();
    let mut asked = parse_query(query)?;
    let mut take = |name: &str| {
        let at = asked.iter().position(|(known, _)| known == name);
        at.map(|at| asked.swap_remove(at).1)
    };
    let mut words = vec![route.command.as_bytes().to_vec()];
    for word in route.words {
        match *word {
            WordSource::Path(name) => words.push(of_path(name)),
            WordSource::PathAt(name, at) => {
                let number =
                    members.take(at).ok_or_else(|| HttpProblem::bad_request(format!("{at:?} is missing")))?;
                let number = json::words(at, &number, MemberKind::Number, None)
                    .map_err(HttpProblem::bad_request)?
                    .concat();
                words.push([of_path(name), b"@".to_vec(), number].concat());
            }
            WordSource::Field(name, kind) => {
                let value = members
                    .take(name)
                    .ok_or_else(|| HttpProblem::bad_request(format!("{name:?} is missing")))?;
                words.extend(json::words(name, &value, kind, None).map_err(HttpProblem::bad_request)?);
            }
            WordSource::Option(name, word, kind) => {
                if let Some(value) = members.take(name) {
                    words.extend(
                        json::words(name, &value, kind, Some(word)).map_err(HttpProblem::bad_request)?,
                    );
                }
            }
            WordSource::OptionalValue(name, kind) => {
                if let Some(value) = members.take(name) {
                    words.extend(json::words(name, &value, kind, None).map_err(HttpProblem::bad_request)?);
                }
            }
            WordSource::Query(name, word, MemberKind::Flag) => match take(name).as_deref() {
                Some("true") => words.push(word.as_bytes().to_vec()),
                Some("false") | None => {}
                Some(_) => {
                    return Err(HttpProblem::bad_request(format!("{name} is neither true nor false")));
                }
            },
            WordSource::Query(name, word, kind) => {
                if let Some(value) = take(name) {
                    words.extend([word.as_bytes().to_vec(), query_word(name, value, kind)?]);
                }
            }
            WordSource::RequiredQuery(name, kind) => {
                let value = take(name)
                    .ok_or_else(|| HttpProblem::bad_request(format!("{name} is missing in the query")))?;
                words.push(query_word(name, value, kind)?);
            }
            WordSource::Constant(word) => words.push(word.as_bytes().to_vec()),
            WordSource::Body => words.push(body.to_vec()),
        }
    }
    match asked.first() {
        None => Ok(words),
        Some((name, _)) => Err(HttpProblem::bad_request(format!("unknown query parameter {name:?}"))),
    }
}

fn query_word(name: &str, value: String, kind: MemberKind) -> Result<Vec<u8>, HttpProblem> {
    if kind.is_number() && value.parse::<u64>().ok().filter(|number| i64::try_from(*number).is_ok()).is_none()
    {
        return Err(HttpProblem::bad_request(format!("{name} is not an integer from 0 to 2^63-1")));
    }
    Ok(value.into_bytes())
}

/// The parameters of a query; a repeated one is an error.
fn parse_query(query: &str) -> Result<Vec<(String, String)>, HttpProblem> {
    let mut asked: Vec<(String, String)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let text = |text: &str| percent::decode(&text.replace('+', " ")).into_owned();
        let (name, value) = (text(name), text(value));
        if asked.iter().any(|(known, _)| *known == name) {
            return Err(HttpProblem::bad_request(format!("the query parameter {name:?} occurs twice")));
        }
        asked.push((name, value));
    }
    Ok(asked)
}

/// A reply as a response.
fn reply_response(route: &HttpRoute, reply: Reply) -> Result<Response, HttpProblem> {
    if let Reply::Error(text) = reply {
        return Err(HttpProblem::from_error_text(&text));
    }
    let reply = match reply {
        Reply::Shared(bytes) => Reply::Bulk(bytes.into()),
        reply => reply,
    };
    let status = StatusCode::from_u16(route.status).unwrap_or(StatusCode::OK);
    let none = || HttpProblem::not_found("not found");
    Ok(match (route.gives, reply) {
        (ReplyShape::Found(_) | ReplyShape::Bytes, Reply::Null | Reply::NullArray) => return Err(none()),
        (ReplyShape::Nothing, Reply::Integer(0)) => return Err(none()),
        (ReplyShape::Nothing, _) => StatusCode::NO_CONTENT.into_response(),
        (ReplyShape::Json(_) | ReplyShape::Found(_), reply) => {
            json_response(status, json::reply_to_json(reply))
        }
        (ReplyShape::Named(name, _), reply) => {
            json_response(status, json::reply_to_json(Reply::Map(vec![(Reply::text(name), reply)])))
        }
        (ReplyShape::Page(name, _), Reply::Array(mut pair)) if pair.len() == 2 => {
            let (of, cursor) = (pair.pop().unwrap_or(Reply::Null), pair.pop().unwrap_or(Reply::Null));
            let members = vec![(Reply::text("cursor"), cursor), (Reply::text(name), of)];
            json_response(status, json::reply_to_json(Reply::Map(members)))
        }
        (ReplyShape::Bytes, Reply::Bulk(bytes)) => {
            let tag = HeaderValue::from_str(&format!("\"{}\"", blake3::hash(&bytes).to_hex()));
            let mut response = (status, [(CONTENT_TYPE, "application/octet-stream")], bytes).into_response();
            if let Ok(tag) = tag {
                response.headers_mut().insert(ETAG, tag);
            }
            response
        }
        (ReplyShape::Bytes | ReplyShape::Page(..), _) => {
            return Err(HttpProblem::new(StatusCode::INTERNAL_SERVER_ERROR, "BUG", "the reply has no bytes"));
        }
    })
}

/// JSON with a final line feed, for terminals.
fn json_response(status: StatusCode, value: impl std::fmt::Display) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], format!("{value}\n")).into_response()
}
