//! Recording what goes through: a frame for each exchange, begun when its request is there and written on as its answer comes.
//!
//! The program always gets what the upstream said, also where the store refuses a frame: from then on nothing is
//! recorded, and the recording's end says why.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use annals::io::{Io, RealIo};
use annals::matching::CallHash;
use annals::{Component, Ending, Frame, Severity};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame as Part, SizeHint};
use hyper::header::HeaderMap;
use hyper::{Method, Response, StatusCode};
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::backlog::Backlog;
use super::cache::{Cache, Cached};
use super::clearing::{NOT_KEPT, clear_answer, clear_request};
use super::exchange::{Exchange, Headers, Http, Volatile};
use super::listen::{Answer, Asked, BoxError, Handler, Outgoing, Proxy, ProxyError, refused};
use super::mounts::Mounts;
use super::upload::{Coming, Going};
use super::upstream::{Upstream, chain};
use crate::nondet::Capture;
use crate::providers::{self, Api, Body as Looked, Cost, Evidence};
use crate::redact::{Secrets, redact_target};
use crate::rules::RulesFile;
use crate::share::{NewFrame, NewRun};

/// Why an answer is not whole whose client went away.
pub(crate) const HUNG_UP: &str = "the client hung up";

/// What has been recorded.
#[derive(Debug, Clone, Default)]
pub struct Recorded {
    /// Exchanges.
    pub requests: u64,
    /// Of those, calls of a model.
    pub calls: u64,
    /// Exchanges that have no whole answer.
    pub broken: u64,
    /// Tools that the answers called.
    pub tools: u64,
    /// Of the calls, those that got the answer of an earlier run.
    pub cached: u64,
    /// What those had cost then.
    pub saved: Cost,
    /// What the others cost.
    pub cost: Cost,
    /// Secrets that did not reach the store.
    pub secrets_removed: u64,
    /// Why nothing more was recorded from some moment on.
    pub failed: Option<String>,
}

/// Records one run.
pub(crate) struct Recorder(Arc<Inner>);

struct Inner {
    run: NewRun,
    key: [u8; 32],
    mounts: Mounts,
    upstream: Upstream,
    /// Where this listens itself.
    port: OnceLock<u16>,
    cache: Option<Cache>,
    counts: Mutex<Recorded>,
    /// What the program draws, recorded before each exchange.
    capture: OnceLock<Arc<Capture>>,
    /// What is taken out of all that is stored, where that was asked for.
    secrets: OnceLock<Secrets>,
    /// What matters more than by itself, and what is paid.
    rules: OnceLock<RulesFile>,
    /// Writes to the store.
    tape: Backlog,
    /// Exchanges whose end is still to be written.
    writing: tokio::sync::watch::Sender<usize>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("run", &self.0.run.name()).finish_non_exhaustive()
    }
}

impl Recorder {
    /// Records into this run what goes to these upstreams; `key` is that of its requests' hashes. Where there is a cache, it is
    /// asked first.
    ///
    /// # Errors
    /// Where the system gives no HTTP client.
    pub(crate) fn new(
        run: impl Into<NewRun>,
        key: [u8; 32],
        mounts: Mounts,
        cache: Option<Cache>,
    ) -> Result<Self, ProxyError> {
        let tape = Backlog::new("annals-tape");
        let tape = tape.map_err(|error| ProxyError(format!("no thread can be started: {error}")))?;
        Ok(Self(Arc::new(Inner {
            run: run.into(),
            key,
            mounts,
            upstream: Upstream::default(),
            port: OnceLock::new(),
            cache,
            counts: Mutex::default(),
            capture: OnceLock::new(),
            secrets: OnceLock::new(),
            rules: OnceLock::new(),
            tape,
            writing: tokio::sync::watch::Sender::new(0),
        })))
    }

    /// Records what this captures, too.
    pub(crate) fn draws_of(&self, capture: Arc<Capture>) {
        let _ = self.0.capture.set(capture);
    }

    /// Stores nothing of these.
    pub(crate) fn hides(&self, secrets: &Secrets) {
        if !secrets.is_empty() {
            let _ = self.0.secrets.set(secrets.clone());
        }
    }

    /// Judges and prices exchanges by these.
    pub(crate) fn goes_by(&self, rules: &RulesFile) {
        let _ = self.0.rules.set(rules.clone());
    }

    /// Listens.
    ///
    /// # Errors
    /// Where no port of the loopback can be had.
    pub(crate) async fn listen(&self) -> Result<Proxy, ProxyError> {
        let proxy = Proxy::start(self.0.clone()).await?;
        let _ = self.0.port.set(proxy.port());
        Ok(proxy)
    }

    /// Waits until all that went through is written, and says what it was.
    pub(crate) async fn finish(&self) -> Recorded {
        self.0.tape.hurry();
        let mut writing = self.0.writing.subscribe();
        let _ = writing.wait_for(|left| *left == 0).await;
        self.0.counts().clone()
    }
}

impl Handler for Inner {
    fn takes_coming(&self) -> bool {
        // What is looked up is looked up whole.
        self.cache.is_none()
    }

    fn answer(self: Arc<Self>, asked: Asked) -> Answer {
        Box::pin(async move { self.exchange(asked, None).await })
    }
}

impl Recorder {
    /// Where whoever listens for this recorder does so.
    pub(crate) fn listens_at(&self, port: u16) {
        let _ = self.0.port.set(port);
    }

    /// Passes a request on, its body in another form if one is given, and records the exchange.
    pub(crate) async fn exchange(&self, asked: Asked, sent: Option<Bytes>) -> Response<Outgoing> {
        self.0.exchange(asked, sent).await
    }

    /// Begins the recording of an exchange that somebody else carries.
    #[cfg(feature = "middleware")]
    pub(crate) fn begin(&self, asked: &Asked) -> Taping {
        Taping::begin(&self.0, asked, asked.body.clone(), None, self.0.comes())
    }

    /// Records an exchange whose answer no upstream gave.
    pub(crate) fn invented(&self, asked: &Asked, status: StatusCode, headers: &HeaderMap, body: &Bytes) {
        self.0.keep_draws();
        let mut taping = Taping::begin(&self.0, asked, asked.body.clone(), None, self.0.comes());
        taping.head(status, Headers::of(headers));
        taping.part(body.clone());
        taping.end(None);
    }
}

impl Inner {
    async fn exchange(self: &Arc<Self>, mut asked: Asked, sent: Option<Bytes>) -> Response<Outgoing> {
        let came = self.comes();
        let (going, mut gone) = asked.coming.take().map(Coming::fork).unzip();
        let asked = Arc::new(asked);
        let ask = self.ask(&asked, going, sent.clone());
        let mut ask = std::pin::pin!(ask);
        // What is still on its way goes first: the recording has all the time that the upstream takes for its answer.
        let early = match &mut gone {
            None => None,
            Some(gone) => tokio::select! {
                biased;
                () = gone.sent() => None,
                answered = &mut ask => Some(answered),
            },
        };
        let begin = async {
            let body = match gone {
                Some(gone) => gone.whole().await,
                None => Ok(asked.body.clone()),
            };
            let (body, cut) = body.map_or_else(|why| (Bytes::new(), Some(why)), |body| (body, None));
            (self.begin(asked.clone(), body, sent.clone(), came).await, cut)
        };
        let ((taping, cut), answered) = match early {
            Some(answered) => (begin.await, answered),
            // Unless the store is to answer in the upstream's place, the upstream need not wait for it.
            None if self.cache.is_none() => tokio::join!(begin, ask),
            None => {
                let (mut begun, cut) = begin.await;
                let cached = begun.as_mut().and_then(Taping::cached);
                match (begun, cached) {
                    (Some(taping), Some(cached)) => return taping.repeat(cached),
                    (begun, _) => ((begun, cut), ask.await),
                }
            }
        };
        // Of a request that broke off no answer is worth anything.
        let answered = cut.map_or(answered, |why| Err((StatusCode::BAD_REQUEST, why)));
        let Some(taping) = taping else {
            // The program has its answer all the same.
            self.fail(&annals::Error::new(annals::ErrorKind::Unavailable, "the recorder has broken off"));
            return match answered {
                Ok(response) => {
                    let (status, headers) = (response.status(), Headers::of(response.headers()).to_map());
                    let mut passed = Response::new(Tee { body: response.into(), taping: None }.boxed());
                    *passed.status_mut() = status;
                    *passed.headers_mut() = headers;
                    passed
                }
                Err((status, why)) => refused(status, &why),
            };
        };
        match answered {
            Ok(response) => {
                let headers = Headers::of(response.headers()).to_map();
                let status = response.status();
                let body = taping.answered(&asked.method, response);
                let mut response = Response::new(body.boxed());
                *response.status_mut() = status;
                *response.headers_mut() = headers;
                response
            }
            Err((status, why)) => taping.refused(status, why).await,
        }
    }

    /// Begins an exchange behind the ends of those before: once it is answered, all that its program had been told is stored.
    async fn begin(
        self: &Arc<Self>,
        asked: Arc<Asked>,
        body: Bytes,
        sent: Option<Bytes>,
        came: Came,
    ) -> Option<Taping> {
        let (tell, begun) = oneshot::channel();
        let recorder = self.clone();
        self.tape.push(Duration::ZERO, move || {
            recorder.keep_draws();
            // Nobody takes it where the client has hung up, which ends it.
            let _ = tell.send(Taping::begin(&recorder, &asked, body, sent, came));
        });
        begun.await.ok()
    }

    /// What the upstream answers; else why it cannot be asked.
    async fn ask(
        &self,
        asked: &Asked,
        going: Option<Going>,
        sent: Option<Bytes>,
    ) -> Result<reqwest::Response, (StatusCode, String)> {
        match (&asked.refusal, self.mounts.get(&asked.mount)) {
            (Some((status, why)), _) => Err((*status, why.clone())),
            (None, None) => {
                Err((StatusCode::NOT_FOUND, format!("this run has no upstream {:?}", asked.mount)))
            }
            (None, Some(mount)) if self.is_own(&mount.origin) => {
                Err((StatusCode::LOOP_DETECTED, "this upstream is the proxy itself".to_owned()))
            }
            (None, Some(mount)) => {
                let bytes = sent.unwrap_or_else(|| asked.body.clone());
                let body = match going {
                    Some(going) => Some(reqwest::Body::wrap(going)),
                    None => (!bytes.is_empty()).then(|| bytes.into()),
                };
                let sent = self.upstream.send(mount, asked, body).await;
                sent.map_err(|why| (StatusCode::BAD_GATEWAY, why))
            }
        }
    }

    /// A request has come, and its end is to be waited for.
    fn comes(self: &Arc<Self>) -> Came {
        self.writing.send_modify(|left| *left += 1);
        // Taken here and at the last part, so that what waits for the store changes no order.
        Came {
            started_ns: RealIo::default().now_ns(),
            began: Instant::now(),
            waited_for: WaitedFor(self.clone()),
        }
    }
}

/// When a request came.
struct Came {
    started_ns: u64,
    began: Instant,
    waited_for: WaitedFor,
}

/// An exchange whose end is still to be written; over when it is dropped, however that comes about.
struct WaitedFor(Arc<Inner>);

impl Drop for WaitedFor {
    fn drop(&mut self) {
        self.0.writing.send_modify(|left| *left -= 1);
    }
}

impl Inner {
    fn keep_draws(&self) {
        if let Some(capture) = self.capture.get() {
            capture.keep(&self.run);
        }
    }

    /// The first failure is kept; nothing is recorded after it.
    fn fail(&self, error: &annals::Error) {
        self.counts().failed.get_or_insert_with(|| error.to_string());
    }

    fn counts(&self) -> MutexGuard<'_, Recorded> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an exchange says of itself, from copies: its metadata, how much it matters, and what it adds to the counts.
    fn look_at(
        &self,
        mut exchange: Exchange,
        api: &Api,
        request: &[u8],
        answer: Option<&[u8]>,
        duration_ns: u64,
    ) -> (Ending, Recorded) {
        let header = |headers: &Headers, name: &str| headers.get(name).map(str::to_owned);
        let content_type = header(&exchange.volatile.response_headers, "content-type");
        let content_encoding = header(&exchange.volatile.response_headers, "content-encoding");
        let request_encoding = header(&exchange.volatile.request_headers, "content-encoding");
        let summary = providers::summary(&providers::Exchange {
            api,
            request,
            request_encoding: request_encoding.as_deref(),
            status: exchange.http.status.unwrap_or(0),
            content_type: content_type.as_deref(),
            content_encoding: content_encoding.as_deref(),
            response: answer.unwrap_or_default(),
        });
        let broken = exchange.http.broken.clone();
        let rules = self.rules.get_or_init(RulesFile::default);
        let verdict = rules.severity.judge(&Evidence {
            summary: &summary,
            mount: &exchange.http.mount,
            path: &exchange.http.path,
            transport: broken.as_deref(),
            duration_ms: duration_ns / 1_000_000,
            input: Looked { bytes: request, encoding: request_encoding.as_deref() },
            output: Looked { bytes: answer.unwrap_or_default(), encoding: content_encoding.as_deref() },
            last: false,
        });
        let mut facts = match summary.to_json() {
            Value::Object(facts) => facts,
            _ => Map::new(),
        };
        if let Some(Value::Object(volatile)) = facts.remove("volatile") {
            exchange.volatile.other = volatile;
        }
        if let Some(verdict) = &verdict {
            let about = if verdict.timed { &mut exchange.volatile.other } else { &mut facts };
            about.insert(WHY_SEVERE.to_owned(), verdict.reason.clone().into());
        }
        exchange.summary.extend(facts);
        let (cached, cost) = (exchange.summary.contains_key(CACHED), rules.prices.cost(&summary));
        let counted = Recorded {
            broken: u64::from(broken.is_some()),
            tools: summary.tool_calls.len() as u64 + summary.tool_calls_more,
            cached: u64::from(cached),
            cost: if cached { Cost::default() } else { cost },
            saved: if cached { cost } else { Cost::default() },
            ..Recorded::default()
        };
        let error = broken.is_some() || exchange.http.status.is_none_or(|status| status >= 400);
        let severity = verdict.map_or(Severity::Normal, |verdict| verdict.severity);
        let metadata = Some(bytes_of(&exchange));
        (Ending { error, severity, metadata, duration_ns: Some(duration_ns) }, counted)
    }

    fn count(&self, counted: &Recorded) {
        let mut counts = self.counts();
        counts.broken += counted.broken;
        counts.tools += counted.tools;
        counts.cached += counted.cached;
        counts.cost += counted.cost;
        counts.saved += counted.saved;
    }

    fn is_own(&self, origin: &str) -> bool {
        let port = self.port.get().map(|port| format!(":{port}"));
        let near =
            ["http://127.", "http://localhost", "http://[::1]"].iter().any(|host| origin.starts_with(host));
        near && port.is_some_and(|port| origin.ends_with(&port))
    }

    fn is_failed(&self) -> bool {
        self.counts().failed.is_some()
    }
}

/// A request's line without the secrets of its query, and how many there were.
pub(crate) fn http_of(asked: &Asked) -> (Http, usize) {
    // The query as a target of its own: what is not secret stays as it is, byte for byte.
    let redacted = asked.query.as_deref().map(|query| redact_target(format!("?{query}").as_bytes()));
    let removed = redacted.as_ref().map_or(0, |(_, removed)| *removed);
    let query =
        redacted.map(|(target, _)| String::from_utf8_lossy(target.get(1..).unwrap_or_default()).into_owned());
    let http = Http {
        mount: asked.mount.clone(),
        method: asked.method.as_str().to_owned(),
        path: asked.path.clone(),
        query,
        status: None,
        broken: None,
    };
    (http, removed)
}

/// An exchange being recorded. Dropped before its end, it is one whose client has hung up.
pub(crate) struct Taping {
    recorder: Arc<Inner>,
    frame: Option<Arc<NewFrame>>,
    exchange: Exchange,
    api: Api,
    request: Bytes,
    /// What of the answer is not in the store yet.
    unwritten: Arc<Mutex<Vec<u8>>>,
    /// A copy of the answer to look at, as long as it is not too long.
    answer: Option<Vec<u8>>,
    /// It is longer than can be searched for secrets.
    too_long: bool,
    /// What is stored of the request is not what was asked.
    cleared: bool,
    /// What the request is known by in the cache.
    known_by: Option<CallHash>,
    started_ns: u64,
    began: Instant,
    /// Until it is closed.
    waited_for: Option<WaitedFor>,
}

/// What an exchange says of the run and the frame whose answer it got.
const CACHED: &str = "cached";

/// Why a frame is severe: among what is read from a copy or, where that hangs on time, among what is volatile.
pub(crate) const WHY_SEVERE: &str = "why_severe";

/// An answer with so much that is not in the store yet waits for the store.
const UNWRITTEN_BYTES_MAX: usize = 16 << 20;

/// How long what an answer brings waits to be written at most: for others of its stream, and for the moment after it, which belongs to the
/// program.
const WRITTEN_WITHIN: Duration = Duration::from_millis(50);

/// An answer longer than this is not looked into.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Why an answer is stored only in part.
const TOO_LONG: &str = "what follows is not stored: an answer is searched for secrets up to 64 MiB";

/// So much of an answer that was held back is handed to the store at a time.
const HELD_PART_BYTES: usize = 4 << 20;

impl Taping {
    /// `sent` is what goes to the upstream where that is not what was asked: it is what is recorded, and the hash stays that of
    /// what was asked.
    fn begin(recorder: &Arc<Inner>, asked: &Asked, body: Bytes, sent: Option<Bytes>, came: Came) -> Self {
        let (http, mut removed) = http_of(asked);
        let hash = CallHash::of(&recorder.key, &http.call(), &body);
        let asked_as = hash.0.iter().map(|byte| format!("{byte:02x}")).collect();
        let volatile = Volatile { asked: asked_as, ..Volatile::default() };
        let mut exchange = Exchange { http, summary: Map::new(), volatile };
        exchange.volatile.request_headers = Headers::of(&asked.headers);
        removed += exchange.volatile.request_headers.remove_secrets();
        // Where there are no mounts, a request names its host.
        let host = recorder.mounts.get(&asked.mount).map_or(asked.mount.as_str(), |mount| &mount.origin);
        let host = host.split_once("://").map_or(host, |(_, host)| host);
        let api = providers::recognise(asked.method.as_str(), &asked.path, host);
        let llm = api.shape.is_model_call();
        {
            let mut counts = recorder.counts();
            counts.requests += 1;
            counts.calls += u64::from(llm);
            counts.secrets_removed += removed as u64;
        }
        let component = if llm { Component::Llm } else { Component::Other("http".to_owned()) };
        if sent.is_some() {
            exchange.summary.insert("edited".to_owned(), true.into());
        }
        let mut request = sent.unwrap_or(body);
        let mut cleared = false;
        if let Some(secrets) = recorder.secrets.get() {
            let (stored, removed) = clear_request(secrets, &mut exchange, request);
            request = stored;
            cleared = removed > 0 || exchange.summary.contains_key(NOT_KEPT);
            recorder.counts().secrets_removed += removed as u64;
        }
        let mut frame = Frame::new(component, request.to_vec(), "").metadata(bytes_of(&exchange));
        frame.started_ns = Some(came.started_ns);
        let frame = match recorder.is_failed() {
            true => None,
            false => recorder.run.begin_frame(&frame).inspect_err(|e| recorder.fail(e)).ok(),
        };
        let frame = frame.map(Arc::new);
        Self {
            recorder: recorder.clone(),
            frame,
            exchange,
            api,
            request,
            unwritten: Arc::default(),
            answer: Some(Vec::new()),
            too_long: false,
            cleared,
            known_by: None,
            started_ns: came.started_ns,
            began: came.began,
            waited_for: Some(came.waited_for),
        }
    }

    fn origin(&self) -> &str {
        self.recorder.mounts.get(&self.exchange.http.mount).map_or("", |mount| mount.origin.as_str())
    }

    /// The answer that an earlier run got.
    fn cached(&mut self) -> Option<Cached> {
        let recorder = self.recorder.clone();
        // Without its secrets it may be the same as another's.
        let cache = recorder.cache.as_ref().filter(|_| self.api.shape.is_model_call() && !self.cleared)?;
        self.known_by = cache.known_by(self.origin(), &self.exchange.http, &self.request);
        let seq = self.frame.as_ref().map(|frame| frame.seq());
        // It may be long, and waits for the disk.
        tokio::task::block_in_place(|| cache.find(self.known_by?, self.origin(), seq))
    }

    /// Gives the answer of an earlier run, recorded as one of this.
    fn repeat(mut self, cached: Cached) -> Response<Outgoing> {
        let Cached { exchange, body, from } = cached;
        let mut response = Response::new(super::listen::whole(body.clone()));
        let status = exchange.http.status.and_then(|status| StatusCode::from_u16(status).ok());
        *response.status_mut() = status.unwrap_or(StatusCode::OK);
        *response.headers_mut() = exchange.volatile.response_headers.to_map();
        self.exchange.summary.insert(CACHED.to_owned(), json!(from));
        self.known_by = None;
        self.head(response.status(), exchange.volatile.response_headers);
        self.part(body);
        self.end(None);
        response
    }

    /// The answer of an upstream, recorded as it goes by.
    pub(crate) fn answered(mut self, asked: &Method, response: reqwest::Response) -> Tee {
        self.head(response.status(), Headers::of(response.headers()));
        let status = response.status();
        let body: reqwest::Body = response.into();
        // Of an answer that has no body nothing is ever asked for, and so no end would be seen.
        let none = *asked == Method::HEAD
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
            || body.is_end_stream();
        let mut taping = Some(self);
        if none && let Some(taping) = taping.take() {
            taping.end(None);
        }
        Tee { body, taping }
    }

    /// An answer of our own, where there is none.
    pub(crate) async fn refused(mut self, status: StatusCode, why: String) -> Response<Outgoing> {
        let (parts, body) = refused(status, &why).into_parts();
        self.head(status, Headers::of(&parts.headers));
        let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        self.part(bytes.clone());
        self.end(Some(why));
        Response::from_parts(parts, super::listen::whole(bytes))
    }

    fn head(&mut self, status: StatusCode, headers: Headers) {
        self.exchange.http.status = Some(status.as_u16());
        self.exchange.volatile.response_headers = headers;
        let removed = self.exchange.volatile.response_headers.remove_secrets();
        self.recorder.counts().secrets_removed += removed as u64;
    }

    fn part(&mut self, bytes: Bytes) {
        let Some(frame) = self.frame.clone() else { return };
        let ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let fits = self.answer.as_ref().is_some_and(|kept| kept.len() + bytes.len() <= ANSWER_BYTES_MAX);
        // What is to be searched for secrets is held back until all of it is here: one may be spread over parts.
        let held = self.recorder.secrets.get().is_some();
        if held && (self.too_long || !fits) {
            self.too_long = true;
            return;
        }
        self.exchange.volatile.part_bytes.push(bytes.len() as u64);
        self.exchange.volatile.part_ms.push(ms);
        match &mut self.answer {
            Some(answer) if fits => answer.extend_from_slice(&bytes),
            _ => self.answer = None,
        }
        if held {
            return;
        }
        let mut unwritten = self.unwritten.lock().unwrap_or_else(PoisonError::into_inner);
        unwritten.extend_from_slice(&bytes);
        let len = unwritten.len();
        drop(unwritten);
        if len >= UNWRITTEN_BYTES_MAX {
            self.recorder.tape.flush();
        }
        // The first one's job takes what has come until then.
        if len > bytes.len() || bytes.is_empty() {
            return;
        }
        let (recorder, unwritten) = (self.recorder.clone(), self.unwritten.clone());
        // The program has its part by the time that the store has it.
        self.recorder.tape.push(WRITTEN_WITHIN, move || {
            let bytes = std::mem::take(&mut *unwritten.lock().unwrap_or_else(PoisonError::into_inner));
            if !recorder.is_failed()
                && let Err(error) = frame.append(&bytes)
            {
                recorder.fail(&error);
            }
        });
    }

    /// Writes the frame's end, away from whoever carries the traffic.
    fn end(mut self, broken: Option<String>) {
        self.close(broken);
    }

    fn close(&mut self, broken: Option<String>) {
        let Some(waited_for) = self.waited_for.take() else { return };
        self.exchange.http.broken = broken.or_else(|| self.too_long.then(|| TOO_LONG.to_owned()));
        let (recorder, frame, mut exchange) =
            (self.recorder.clone(), self.frame.take(), self.exchange.clone());
        let (api, request, mut answer) = (self.api.clone(), self.request.clone(), self.answer.take());
        let (mut known_by, http) = (self.known_by.take(), exchange.http.clone());
        let duration_ns = RealIo::default().now_ns().saturating_sub(self.started_ns);
        let write = move || {
            if let Some(secrets) = recorder.secrets.get()
                && let Some(held) = answer.take()
            {
                let (kept, removed) = clear_answer(secrets, &mut exchange, held);
                recorder.counts().secrets_removed += removed as u64;
                // A later run would get what this one did not.
                known_by = known_by.filter(|_| removed == 0);
                if let Some(frame) = frame.as_ref().filter(|_| !recorder.is_failed())
                    && let Err(error) = kept.chunks(HELD_PART_BYTES).try_for_each(|part| frame.append(part))
                {
                    recorder.fail(&error);
                }
                answer = Some(kept);
            }
            let (ending, counted) =
                recorder.look_at(exchange, &api, &request, answer.as_deref(), duration_ns);
            recorder.count(&counted);
            // All its parts are written; one that is not whole is not ended.
            let frame = frame.and_then(Arc::into_inner).filter(|_| !recorder.is_failed());
            let finished = frame.map(|frame| frame.finish_with(ending)).transpose();
            let noted = finished.and_then(|seq| match (seq, known_by, &recorder.cache) {
                (Some(seq), Some(known_by), Some(cache)) => {
                    cache.note(known_by, &http, recorder.run.name(), seq)
                }
                _ => Ok(()),
            });
            if let Err(error) = noted {
                recorder.fail(&error);
            }
            drop(waited_for);
        };
        self.recorder.tape.push(WRITTEN_WITHIN, write);
    }
}

impl Drop for Taping {
    fn drop(&mut self) {
        self.close(Some(HUNG_UP.to_owned()));
    }
}

fn bytes_of(exchange: &Exchange) -> Vec<u8> {
    serde_json::to_vec(exchange).unwrap_or_default()
}

/// An answer on its way to the client, recorded as it goes by.
pub(crate) struct Tee {
    body: reqwest::Body,
    taping: Option<Taping>,
}

impl Body for Tee {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Part<Bytes>, BoxError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match &polled {
            Poll::Ready(Some(Ok(part))) => {
                if let (Some(bytes), Some(taping)) = (part.data_ref(), &mut self.taping) {
                    taping.part(bytes.clone());
                }
                // hyper asks no further once the announced length is there.
                if self.body.is_end_stream()
                    && let Some(taping) = self.taping.take()
                {
                    taping.end(None);
                }
            }
            Poll::Ready(Some(Err(error))) => {
                if let Some(taping) = self.taping.take() {
                    taping.end(Some(format!("the upstream broke off: {}", chain(error))));
                }
            }
            Poll::Ready(None) => {
                if let Some(taping) = self.taping.take() {
                    taping.end(None);
                }
            }
            Poll::Pending => {}
        }
        polled.map(|part| part.map(|part| part.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.taping.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
