//! Records exchanges: each becomes a frame, begun when its request is complete and extended while its answer
//! arrives.
//!
//! The program always gets the upstream's answer, also if the store refuses a frame. From then on nothing is
//! recorded, and the end of the recording reports why.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use annals::io::{Io, RealIo};
use annals::{Severity, runs::Ending};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::header::HeaderMap;
use hyper::{Response, StatusCode};
use serde_json::{Map, Value};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::backlog::{Backlog, BacklogPool};
use super::body_memory::BodyMemory;
use super::cache::AnswerCache;
use super::connection::ConnectionProgress;
use super::exchange_recorder::{CACHED, ExchangeRecorder, HUNG_UP, RecordedAnswerBody};
use super::listen::{AnswerFuture, ExchangeHandler, Proxy, ProxyRequest, ResponseBody, refuse};
use super::upload::{IncomingUpload, UploadBody, UploadError};
use crate::destination::NewRun;
use crate::error::ProxyError;
use crate::mounts::Mounts;
use crate::nondet::NondetCapture;
use crate::program::Survivor;
use crate::upstream::UpstreamClients;
use annals_policy::exchange::WHY_SEVERE;
use annals_policy::exchange::{ExchangeMetadata, Headers, HttpExchange};
use annals_policy::providers::{self, Cost, EncodedBody as Looked, Evidence, ModelApi};
use annals_policy::redact::{Secrets, redact_target};
use annals_policy::rules::RulesFile;

/// Maximum delay before a long request's beginning is written, if no answer has come.
const BEGUN_WITHIN: Duration = Duration::from_millis(8);

/// The metadata key for the git revision of the program that implements the tools.
const TOOL_VERSION: &str = "tool_version";

/// Counts and results of a recording.
#[derive(Debug, Clone, Default)]
pub struct RecordingSummary {
    /// Requests received.
    pub seen: u64,
    /// Requests that were refused and not recorded: they lack the secret of the proxy's address, or are no HTTP that can be
    /// read. Another program may have sent them.
    pub refused: u64,
    /// Exchanges whose frames the store has acknowledged.
    pub requests: u64,
    /// Of those, calls of a model.
    pub calls: u64,
    /// Exchanges without a complete answer.
    pub broken: u64,
    /// Tool calls in the answers.
    pub tools: u64,
    /// Calls that got the answer of an earlier run.
    pub cached: u64,
    /// What those had cost in their own runs.
    pub saved: Cost,
    /// What the other calls cost.
    pub cost: Cost,
    /// Secrets that were kept out of the store.
    pub secrets_removed: u64,
    /// Masked arguments of the command.
    pub masked_arguments: u64,
    /// Words of the command that are not stored as they were, because they are not UTF-8.
    pub altered_arguments: u64,
    /// Processes still running after the program and the linger time.
    pub survivors: Vec<Survivor>,
    /// Why recording stopped early.
    pub failure: Option<String>,
    /// Why the outcome of the run was not stored in memory, though it was requested.
    pub memory_failure: Option<String>,
    /// Why the run's outcome was left out of memory, if a user may not expect it.
    pub memory_skipped: Option<String>,
}

impl RecordingSummary {
    /// Notes the result of storing the run's outcome in memory.
    pub(crate) fn note_memory(&mut self, done: annals::Result<Option<String>>) {
        match done {
            Ok(skipped) => self.memory_skipped = skipped,
            Err(error) => self.memory_failure = Some(error.to_string()),
        }
    }
}

/// Maximum number of threads that write recordings in one process.
const TAPES_MAX: usize = 4;

/// Shared by all recorders that write into one store at the same time.
pub(crate) struct RecorderPool {
    tapes: BacklogPool,
    upstream: Arc<UpstreamClients>,
    room: BodyMemory,
    /// Exchanges of all recorders whose end is not written yet.
    writing: watch::Sender<usize>,
    /// The port of the listener.
    port: OnceLock<u16>,
}

impl std::fmt::Debug for RecorderPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Common").field("room", &self.room).finish_non_exhaustive()
    }
}

impl RecorderPool {
    /// Starts nothing before the first recording. `room` limits the memory for bodies.
    pub(crate) fn new(room: BodyMemory) -> Self {
        Self {
            tapes: BacklogPool::new("annals-tape", TAPES_MAX),
            upstream: Arc::default(),
            room,
            writing: watch::Sender::new(0),
            port: OnceLock::new(),
        }
    }

    /// Sets the port of the listener that serves these recorders.
    pub(crate) fn set_port(&self, port: u16) {
        let _ = self.port.set(port);
    }

    /// The memory for request bodies.
    pub(crate) fn room(&self) -> &BodyMemory {
        &self.room
    }

    /// Waits until everything recorded so far is written.
    pub(crate) async fn finish(&self) {
        let mut writing = self.writing.subscribe();
        while *writing.borrow_and_update() > 0 {
            // Jobs pushed during this wait must run at once, too.
            self.tapes.run_now();
            let _ = writing.changed().await;
        }
    }
}

/// Records one run.
#[derive(Clone)]
pub(crate) struct ProxyRecorder(Arc<ProxyRecorderState>);

pub(super) struct ProxyRecorderState {
    pub(super) run: NewRun,
    pub(super) key: [u8; 32],
    pub(super) mounts: Arc<Mounts>,
    common: Arc<RecorderPool>,
    pub(super) cache: Option<AnswerCache>,
    counts: Mutex<RecordingSummary>,
    /// The program's draws, recorded before each exchange.
    capture: OnceLock<Arc<NondetCapture>>,
    /// Secrets that are removed before storing, if any.
    pub(super) secrets: OnceLock<Secrets>,
    /// The rules for severity and prices.
    rules: OnceLock<RulesFile>,
    /// The git revision of the program, which implements the tools.
    tool_version: OnceLock<String>,
    /// Writes to the store.
    pub(super) tape: Arc<Backlog>,
    /// Exchanges whose end is not written yet.
    writing: watch::Sender<usize>,
}

impl std::fmt::Debug for ProxyRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("run", &self.0.run.name()).finish_non_exhaustive()
    }
}

impl ProxyRecorder {
    /// Records requests to these upstreams into this run; `key` hashes the requests. If there is a cache, it
    /// is asked first.
    ///
    /// # Errors
    /// If no HTTP client can be made.
    pub(crate) fn new(
        run: impl Into<NewRun>,
        key: [u8; 32],
        mounts: Mounts,
        cache: Option<AnswerCache>,
    ) -> Result<Self, ProxyError> {
        Self::in_pool(&Arc::new(RecorderPool::new(BodyMemory::shared())), run, key, Arc::new(mounts), cache)
    }

    /// The same, as one recorder of a pool.
    ///
    /// # Errors
    /// If the system starts no thread.
    pub(crate) fn in_pool(
        common: &Arc<RecorderPool>,
        run: impl Into<NewRun>,
        key: [u8; 32],
        mounts: Arc<Mounts>,
        cache: Option<AnswerCache>,
    ) -> Result<Self, ProxyError> {
        let tape = common.tapes.next_backlog();
        let tape = tape.map_err(|error| ProxyError(format!("no thread can be started: {error}")))?;
        Ok(Self(Arc::new(ProxyRecorderState {
            run: run.into(),
            key,
            mounts,
            common: common.clone(),
            cache,
            counts: Mutex::default(),
            capture: OnceLock::new(),
            secrets: OnceLock::new(),
            rules: OnceLock::new(),
            tool_version: OnceLock::new(),
            tape,
            writing: watch::Sender::new(0),
        })))
    }

    /// Also records what this captures.
    pub(crate) fn set_capture(&self, capture: Arc<NondetCapture>) {
        let _ = self.0.capture.set(capture);
    }

    /// Removes these secrets before storing.
    pub(crate) fn set_secrets(&self, secrets: &Secrets) {
        if !secrets.is_empty() {
            let _ = self.0.secrets.set(secrets.clone());
        }
    }

    /// Sets the rules for severity and prices.
    pub(crate) fn set_rules(&self, rules: &RulesFile) {
        let _ = self.0.rules.set(rules.clone());
    }

    /// Notes this revision on frames with tool calls or results.
    pub(crate) fn set_tool_version(&self, revision: Option<&str>) {
        revision.map(|revision| self.0.tool_version.set(revision.to_owned()));
    }

    /// Starts listening.
    ///
    /// # Errors
    /// If no port of the loopback is free.
    pub(crate) async fn listen(&self) -> Result<Proxy, ProxyError> {
        let proxy = Proxy::start(self.0.clone()).await?;
        self.set_port(proxy.port());
        Ok(proxy)
    }

    /// As [`ExchangeHandler::note_refused`], for a proxy that records through this one.
    pub(crate) fn note_refused(&self) {
        self.0.note_refused();
    }

    /// Waits until everything is written, and returns the summary.
    pub(crate) async fn finish(&self) -> RecordingSummary {
        self.0.tape.run_now();
        let mut writing = self.0.writing.subscribe();
        let _ = writing.wait_for(|left| *left == 0).await;
        let mut counts = self.0.counts().clone();
        // What the store has not acknowledged is missing, whatever the reason.
        if counts.failure.is_none() && counts.requests < counts.seen {
            let why = "the others were not acknowledged, and no error says why: please report this";
            counts.failure = Some(why.to_owned());
        }
        counts
    }
}

impl ExchangeHandler for ProxyRecorderState {
    fn streams_bodies(&self) -> bool {
        // The cache needs the whole request.
        self.cache.is_none()
    }

    fn body_memory(&self) -> BodyMemory {
        self.common.room.clone()
    }

    fn note_refused(&self) {
        self.counts().refused += 1;
    }

    fn answer(self: Arc<Self>, asked: ProxyRequest) -> AnswerFuture {
        Box::pin(async move { self.exchange(asked, None).await })
    }
}

impl ProxyRecorder {
    /// Sets the port of the listener that serves this recorder.
    pub(crate) fn set_port(&self, port: u16) {
        self.0.common.set_port(port);
    }

    /// Announces a request: it counts as under way until this is dropped.
    pub(crate) fn expect_exchange(&self) -> PendingExchange {
        self.0.pending_exchange()
    }

    /// Number of exchanges whose end is not written yet.
    pub(crate) fn under_way(&self) -> usize {
        *self.0.writing.borrow()
    }

    /// Waits until all finished exchanges are written. Running exchanges are not waited for.
    pub(crate) fn flush(&self) {
        self.0.tape.flush();
    }

    /// Why recording has stopped, if it has.
    pub(crate) fn failure(&self) -> Option<String> {
        self.0.counts().failure.clone()
    }

    /// Whether it accepts long bodies while they arrive.
    pub(crate) fn streams_bodies(&self) -> bool {
        self.0.cache.is_none()
    }

    /// Passes a request on, with another body if one is given, and records the exchange.
    pub(crate) async fn exchange(&self, asked: ProxyRequest, sent: Option<Bytes>) -> Response<ResponseBody> {
        self.0.exchange(asked, sent).await
    }

    /// Begins the recording of an exchange that somebody else sends.
    pub(crate) fn begin(&self, asked: &ProxyRequest) -> ExchangeRecorder {
        ExchangeRecorder::begin(&self.0, asked, asked.body.clone(), None, self.0.arrival())
    }

    /// Records an exchange whose answer no upstream gave.
    pub(crate) fn record_local_answer(
        &self,
        asked: &ProxyRequest,
        status: StatusCode,
        headers: &HeaderMap,
        body: &Bytes,
    ) {
        self.0.record_draws();
        let mut taping = ExchangeRecorder::begin(&self.0, asked, asked.body.clone(), None, self.0.arrival());
        taping.mark_local();
        taping.set_head(status, Headers::from_map(headers));
        taping.push_part(body.clone());
        taping.end(None);
    }
}

impl ProxyRecorderState {
    async fn exchange(
        self: &Arc<Self>,
        mut asked: ProxyRequest,
        sent: Option<Bytes>,
    ) -> Response<ResponseBody> {
        if let Some(path) = self.mounts.upstream_path(&asked.mount, &asked.path) {
            asked.path = path;
        }
        let (going, mut gone) = asked.upload.take().map(IncomingUpload::split).unzip();
        let asked = Arc::new(asked);
        let mut came = UnrecordedArrival::new(self, &asked);
        let ask = answer_unless_hung_up(asked.wire.clone(), self.call_upstream(&asked, going, sent.clone()));
        let mut ask = std::pin::pin!(ask);
        // The upload goes first; the recording has time until the answer.
        let early = match &mut gone {
            None => None,
            Some(gone) => tokio::select! {
                biased;
                () = gone.sent() => None,
                answered = &mut ask => Some(answered),
            },
        };
        let within = if gone.is_some() && early.is_none() { BEGUN_WITHIN } else { Duration::ZERO };
        let begin = async {
            let body = match gone {
                Some(gone) => gone.whole_body().await,
                None => Ok(asked.body.clone()),
            };
            let (body, cut) =
                body.map_or_else(|cut: UploadError| (Bytes::new(), Some(cut)), |body| (body, None));
            (self.begin(within, asked.clone(), body, sent.clone(), &mut came).await, cut)
        };
        let ((taping, cut), answered) = match early {
            Some(answered) => (begin.await, answered),
            // Unless the cache may answer, the upstream need not wait for the store.
            None if self.cache.is_none() => tokio::join!(begin, async {
                let answered = ask.await;
                self.tape.run_now();
                answered
            }),
            None => {
                let (mut begun, cut) = begin.await;
                let cached = begun.as_mut().and_then(ExchangeRecorder::cached_answer);
                match (begun, cached) {
                    (Some(taping), Some(cached)) => return taping.answer_from_cache(cached),
                    (begun, _) => ((begun, cut), ask.await),
                }
            }
        };
        // The answer to an incomplete request is worthless.
        let answered = cut.map_or(answered, |cut| Some(Err(cut)));
        let Some(answered) = answered else {
            // Dropped, it is recorded as without an answer.
            drop(taping);
            return refuse(StatusCode::BAD_GATEWAY, HUNG_UP);
        };
        let Some(taping) = taping else {
            // The program has its answer all the same.
            self.fail(&annals::Error::new(annals::ErrorKind::Unavailable, "the recorder has stopped"));
            return match answered {
                Ok(response) => {
                    let (status, headers) =
                        (response.status(), Headers::from_map(response.headers()).to_map());
                    let mut passed = Response::new(RecordedAnswerBody::unrecorded(response).boxed());
                    *passed.status_mut() = status;
                    *passed.headers_mut() = headers;
                    passed
                }
                Err((status, why)) => refuse(status, &why),
            };
        };
        match answered {
            Ok(response) => {
                let headers = Headers::from_map(response.headers()).to_map();
                let status = response.status();
                let body = taping.into_recorded_answer(&asked.method, response);
                let mut response = Response::new(body.boxed());
                *response.status_mut() = status;
                *response.headers_mut() = headers;
                response
            }
            Err((status, why)) => taping.record_refusal(status, why).await,
        }
    }

    /// Begins an exchange after the ends of earlier ones: when it is answered, everything its program had
    /// seen before is stored.
    async fn begin(
        self: &Arc<Self>,
        within: Duration,
        asked: Arc<ProxyRequest>,
        body: Bytes,
        sent: Option<Bytes>,
        came: &mut UnrecordedArrival,
    ) -> Option<ExchangeRecorder> {
        let came = came.arrival.take()?;
        let (tell, begun) = oneshot::channel();
        let recorder = self.clone();
        self.tape.push(within, move || {
            recorder.record_draws();
            // Nobody receives it if the client has hung up; the exchange then ends.
            let _ = tell.send(ExchangeRecorder::begin(&recorder, &asked, body, sent, came));
        });
        begun.await.ok()
    }

    /// The upstream's answer; else why it cannot be called.
    async fn call_upstream(
        &self,
        asked: &ProxyRequest,
        going: Option<UploadBody>,
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
                let sent = self.common.upstream.send(mount, asked, body).await;
                sent.map_err(|why| (StatusCode::BAD_GATEWAY, why))
            }
        }
    }

    /// Notes a request's arrival; its end will be waited for.
    fn arrival(self: &Arc<Self>) -> RequestArrival {
        self.counts().seen += 1;
        // Measured here and at the last part, so that waiting for the store changes no order.
        RequestArrival {
            started_ns: RealIo::default().now_ns(),
            began: Instant::now(),
            waited_for: self.pending_exchange(),
        }
    }

    fn pending_exchange(self: &Arc<Self>) -> PendingExchange {
        self.writing.send_modify(|left| *left += 1);
        self.common.writing.send_modify(|left| *left += 1);
        PendingExchange(self.clone())
    }
}

/// A client that gives up sooner than this is not noticed before its answer.
const GIVES_UP_AFTER: Duration = Duration::from_millis(5);

/// The upstream's answer; `None` if the client has closed its connection before it came. hyper does not look: a client
/// may end its own direction and still wait.
async fn answer_unless_hung_up<T>(
    wire: Option<Arc<ConnectionProgress>>,
    answer: impl Future<Output = T>,
) -> Option<T> {
    let Some(wire) = wire else { return Some(answer.await) };
    let began = Instant::now();
    let answered = tokio::select! {
        biased;
        answered = answer => answered,
        () = wire.hung_up() => return None,
    };
    let is_unheard = began.elapsed() > GIVES_UP_AFTER && wire.has_hung_up();
    (!is_unheard).then_some(answered)
}

/// When a request arrived.
pub(super) struct RequestArrival {
    pub(super) started_ns: u64,
    pub(super) began: Instant,
    pub(super) waited_for: PendingExchange,
}

/// A request whose recording has not begun. If its client hangs up before that, while it sends the body, the
/// request is recorded without a body.
struct UnrecordedArrival {
    recorder: Arc<ProxyRecorderState>,
    asked: Arc<ProxyRequest>,
    arrival: Option<RequestArrival>,
}

impl UnrecordedArrival {
    fn new(recorder: &Arc<ProxyRecorderState>, asked: &Arc<ProxyRequest>) -> Self {
        Self { recorder: recorder.clone(), asked: asked.clone(), arrival: Some(recorder.arrival()) }
    }
}

impl Drop for UnrecordedArrival {
    fn drop(&mut self) {
        let Some(came) = self.arrival.take() else { return };
        let (recorder, asked) = (self.recorder.clone(), self.asked.clone());
        self.recorder.tape.push(BEGUN_WITHIN, move || {
            drop(ExchangeRecorder::begin(&recorder, &asked, Bytes::new(), None, came));
        });
    }
}

/// An exchange whose end is not written yet; dropping it marks it as done.
pub(crate) struct PendingExchange(Arc<ProxyRecorderState>);

impl std::fmt::Debug for PendingExchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("WaitedFor").field(&self.0.run.name()).finish()
    }
}

impl Drop for PendingExchange {
    fn drop(&mut self) {
        self.0.writing.send_modify(|left| *left -= 1);
        // A caller that waits for all recorders must find each of them done.
        self.0.common.writing.send_modify(|left| *left -= 1);
    }
}

impl ProxyRecorderState {
    fn record_draws(&self) {
        if let Some(capture) = self.capture.get() {
            capture.record_new_draws(&self.run);
        }
    }

    /// Keeps the first failure; nothing is recorded after it. A daemon's log has it: nobody may ever end the run.
    pub(super) fn fail(&self, error: &annals::Error) {
        self.counts().failure.get_or_insert_with(|| {
            tracing::error!(run = self.run.name(), why = %error, "recording stopped: this exchange and later ones of the run are not recorded");
            error.to_string()
        });
    }

    pub(super) fn counts(&self) -> MutexGuard<'_, RecordingSummary> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Derives an exchange's metadata, its severity and its counts from copies.
    pub(super) fn summarise(
        &self,
        mut exchange: ExchangeMetadata,
        api: &ModelApi,
        request: &[u8],
        answer: Option<&[u8]>,
        duration_ns: u64,
    ) -> (Ending, RecordingSummary) {
        let header = |headers: &Headers, name: &str| headers.get(name).map(str::to_owned);
        let content_type = header(&exchange.volatile.response_headers, "content-type");
        let content_encoding = header(&exchange.volatile.response_headers, "content-encoding");
        let request_encoding = header(&exchange.volatile.request_headers, "content-encoding");
        let mut summary = providers::summary(&providers::WireExchange {
            api,
            request,
            request_encoding: request_encoding.as_deref(),
            status: exchange.http.status.unwrap_or(0),
            content_type: content_type.as_deref(),
            content_encoding: content_encoding.as_deref(),
            response: answer.unwrap_or_default(),
        });
        if api.shape.is_model_call() {
            summary.count_by_headers(|name| exchange.volatile.response_headers.get(name));
        }
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
        if let Some(version) = self.tool_version.get().filter(|_| summary.has_tools(request)) {
            exchange.summary.insert(TOOL_VERSION.to_owned(), version.clone().into());
        }
        let cached = exchange.summary.contains_key(CACHED);
        // An answer that annals gives again or makes up costs nothing.
        let models = [summary.model_answered.as_deref(), summary.model_requested.as_deref()];
        let cost = match exchange.volatile.local {
            true => Cost::default(),
            false => rules.prices.cost_of_call(&summary.usage, models, exchange.http.status),
        };
        let counted = RecordingSummary {
            broken: u64::from(broken.is_some()),
            tools: summary.tool_calls.len() as u64 + summary.tool_calls_more,
            cached: u64::from(cached),
            cost: if cached { Cost::default() } else { cost },
            saved: if cached { cost } else { Cost::default() },
            ..RecordingSummary::default()
        };
        let error = broken.is_some() || exchange.http.status.is_none_or(|status| status >= 400);
        let severity = verdict.map_or(Severity::Normal, |verdict| verdict.severity);
        let metadata = Some(exchange.to_bytes());
        (Ending { error, severity, metadata, duration_ns: Some(duration_ns) }, counted)
    }

    /// Counts an exchange that the store has acknowledged.
    pub(super) fn count(&self, counted: &RecordingSummary) {
        let mut counts = self.counts();
        counts.requests += 1;
        counts.broken += counted.broken;
        counts.tools += counted.tools;
        counts.cached += counted.cached;
        counts.cost += counted.cost;
        counts.saved += counted.saved;
    }

    pub(super) fn room(&self) -> &BodyMemory {
        &self.common.room
    }

    fn is_own(&self, origin: &str) -> bool {
        let port = self.common.port.get().map(|port| format!(":{port}"));
        let near =
            ["http://127.", "http://localhost", "http://[::1]"].iter().any(|host| origin.starts_with(host));
        near && port.is_some_and(|port| origin.ends_with(&port))
    }

    pub(super) fn is_failed(&self) -> bool {
        self.counts().failure.is_some()
    }
}

/// A request's line without the secrets of its query, and how many there were.
pub(crate) fn http_exchange(asked: &ProxyRequest) -> (HttpExchange, usize) {
    // The query as a target of its own: everything that is not secret stays byte for byte.
    let redacted = asked.query.as_deref().map(|query| redact_target(format!("?{query}").as_bytes()));
    let removed = redacted.as_ref().map_or(0, |(_, removed)| *removed);
    let query =
        redacted.map(|(target, _)| String::from_utf8_lossy(target.get(1..).unwrap_or_default()).into_owned());
    let http = HttpExchange {
        mount: asked.mount.clone(),
        method: asked.method.as_str().to_owned(),
        path: asked.path.clone(),
        query,
        status: None,
        broken: None,
    };
    (http, removed)
}
