//! Answers requests from a recording. Each request is matched by its content and gets the recorded answer, in
//! its recorded parts. No upstream is called.
//!
//! The last part of an answer waits for the answers that ended before it in the recording
//! ([`super::answer_ends`]), so that a program sees its calls end in the recorded order. An answer that would
//! wait for ever is sent after a while, and that counts as a divergence. A request whose client hung up before any
//! answer gets none: it waits until its client hangs up again.

mod in_process;

pub use in_process::{RecordedAnswer, RecordedResult, ToolReplay};

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use annals::RunReader;
use annals::replay::matching::{
    CallHash, Divergence, MatchOutcome as Found, Matching, Receipt, RecordedCall, Rules,
};
use annals_text::hex;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::header::HeaderMap;
use hyper::{Response, StatusCode};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::answer_ends::{calls_without_overlap, end_with_data};
use super::arrivals::Arrival;
use super::awake::AwakeGuard;
use super::body_memory::{BodyMemory, MemoryReservation};
use super::connection::ConnectionProgress;
use super::diverged::ReplayDivergence;
use super::exchange_recorder::HUNG_UP;
use super::identical_requests::{IdenticalRequestQueue, IdenticalRequestQueues};
use super::listen::{
    ANNALS_HEADER, AnswerFuture, ExchangeHandler, Proxy, ProxyRequest, ResponseBody, error_response, refuse,
    whole_body_response,
};
use super::record::http_exchange;
use crate::channel_body::{BodySender, ChannelBody};
use crate::error::ProxyError;
use crate::mounts::recorded_path;
use annals_policy::exchange::ExchangeMetadata;
use annals_policy::providers::{Cost, Prices, TokenUsage};
use annals_policy::redact::Secrets;

/// How long an answer waits for others while nothing moves.
const PATIENCE: Duration = Duration::from_secs(3);

/// Time between two answers of several under way at once: what it was at the recording, within these limits. A client
/// has read the first before the second is sent, but its threads may still take them up in another order.
const GAP_MIN: Duration = Duration::from_millis(3);
const GAP_MAX: Duration = Duration::from_millis(5);

/// The line break after a chunk: a client may leave it unread until it wants more.
const CHUNK_END_BYTES: u64 = 2;

/// Time for a broken answer to reach its client before the connection is cut.
const FLUSH: Duration = Duration::from_millis(50);

/// How long answers on their way out are waited for after the program has ended.
const SETTLE: Duration = Duration::from_secs(2);

/// Maximum number of divergences kept for the report; all are counted.
const DIVERGED_MAX: usize = 1000;

/// Approximate memory for one call, in bytes, and the factor for its metadata while it is read.
const CALL_BYTES: usize = 512;
const READ_TIMES: usize = 4;

/// The latest time after its request at which a part is sent with `Timing::Recorded`: one day.
const PART_MS_MAX: u64 = 86_400_000;

/// When the parts of an answer are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Timing {
    /// As fast as the client takes them.
    #[default]
    None,
    /// At their recorded times after the request.
    Recorded,
}

/// Options of a replay.
#[derive(Debug, Clone, Default)]
pub struct ReplayOptions {
    /// Which parts of a request may differ.
    pub rules: Rules,
    /// Model prices.
    pub prices: Prices,
    /// When parts are sent.
    pub timing: Timing,
    /// Seed for another order of overlapping answers.
    pub chaos: Option<u64>,
    /// Secrets that were removed from the recording and are known here: requests are compared without them.
    pub secrets: Secrets,
    /// What becomes of the program's own tools. The proxy cannot see them.
    pub tools: ToolReplay,
}

/// The result of a replay.
#[derive(Debug, Clone)]
pub struct ReplaySummary {
    /// Counts.
    pub receipt: Receipt,
    /// Deviations from the recording, in the order they came.
    pub diverged: Vec<ReplayDivergence>,
    /// Tokens that the answers had used.
    pub tokens: u64,
    /// What they had cost.
    pub cost: Cost,
}

/// Answers one program from one run.
pub struct ProxyReplayer(Arc<ProxyReplayerState>);

struct ProxyReplayerState {
    reader: RunReader,
    key: [u8; 32],
    secrets: Secrets,
    prices: Prices,
    exchanges: HashMap<u32, ExchangeMetadata>,
    /// Mounts and paths of all calls.
    routes: HashSet<(String, String)>,
    /// Calls that overlapped no other call in the recording.
    without_overlap: HashSet<u32>,
    /// Calls whose client hung up before any answer, and how long it had waited.
    unanswered: HashMap<u32, Duration>,
    matching: Mutex<Matching>,
    /// Whether the recording has identical requests.
    has_repeats: bool,
    /// Whether identical requests overlapped in the recording.
    has_batches: bool,
    lines: IdenticalRequestQueues,
    diverged: Mutex<Vec<ReplayDivergence>>,
    timing: Timing,
    /// Counts requests and releases.
    moved: watch::Sender<u64>,
    /// Set by the listener.
    awake_guard: OnceLock<AwakeGuard>,
    /// The memory for request bodies.
    room: BodyMemory,
    /// The memory held for the run.
    _held: MemoryReservation,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ProxyReplayer {
    /// Reads the metadata of each exchange; the bodies stay in the store.
    ///
    /// # Errors
    /// `Damaged` if the run cannot be read; `Invalid` if a frame is not in the recorder's form.
    pub fn new(reader: RunReader, key: [u8; 32], options: ReplayOptions) -> annals::Result<Self> {
        Self::with_memory(
            reader,
            key,
            options,
            BodyMemory::shared(),
            BodyMemory::new(usize::MAX).reservation(),
        )
    }

    /// The same, with `held` for the run's memory and `room` for bodies.
    ///
    /// # Errors
    /// Also `Unavailable` if there is not enough memory.
    pub(crate) fn with_memory(
        reader: RunReader,
        key: [u8; 32],
        options: ReplayOptions,
        room: BodyMemory,
        mut held: MemoryReservation,
    ) -> annals::Result<Self> {
        let (mut exchanges, mut places, mut unanswered) = (HashMap::new(), HashSet::new(), HashMap::new());
        let (mut calls, mut inside) = (Vec::new(), HashSet::new());
        for seq in 1..=reader.info().frames {
            let frame = reader.frame_info(seq)?;
            let exchange = serde_json::from_slice::<ExchangeMetadata>(&frame.metadata);
            // Other frames belong to the program; an unfinished frame has no answer.
            let Ok(exchange) = exchange else {
                if options.tools != ToolReplay::Live && !frame.incomplete {
                    calls.extend(in_process::other_call(&reader, &key, seq, &frame.metadata)?);
                    inside.extend(in_process::calls_inside(options.tools, &frame.metadata));
                }
                continue;
            };
            let has_hung_up = exchange.http.broken.as_deref() == Some(HUNG_UP);
            if frame.incomplete || (exchange.http.status.is_none() && !has_hung_up) {
                continue;
            }
            if exchange.http.status.is_none() {
                unanswered.insert(seq, Duration::from_nanos(frame.duration_ns));
            }
            held.reserve(CALL_BYTES + READ_TIMES * frame.metadata.len()).map_err(|_| {
                let why = "too many calls are replayed at once: end other replays first";
                annals::Error::new(annals::ErrorKind::Unavailable, why)
            })?;
            let hash = hex::decode(&exchange.volatile.asked);
            let hash = hash.and_then(|hash| hash.try_into().ok()).ok_or_else(|| {
                annals::Error::new(
                    annals::ErrorKind::Invalid,
                    format!("frame {seq} does not say what was asked"),
                )
            })?;
            let ended_ns = frame.started_ns.saturating_add(frame.duration_ns);
            let (name, exact) = (exchange.http.call(), CallHash(hash));
            places.insert((exchange.http.mount.clone(), exchange.http.path.clone()));
            let arrived = exchange.volatile.arrived.unwrap_or_default();
            calls.push(RecordedCall { seq, name, exact, begun_ns: frame.started_ns, ended_ns, arrived });
            exchanges.insert(seq, exchange);
        }
        calls.retain(|call| !inside.contains(&call.seq));
        end_with_data(&mut calls, &exchanges);
        let (bodies, alone) = (reader.clone(), calls_without_overlap(&calls));
        let mut matching = Matching::new(calls, move |seq| Ok(bodies.frame(seq)?.input), options.rules, key)?;
        if let Some(seed) = options.chaos {
            matching = matching.chaos(seed);
        }
        Ok(Self(Arc::new(ProxyReplayerState {
            reader,
            key,
            secrets: options.secrets,
            prices: options.prices,
            exchanges,
            routes: places,
            without_overlap: alone,
            unanswered,
            has_repeats: matching.has_repeats(),
            has_batches: matching.has_batches(),
            lines: IdenticalRequestQueues::default(),
            matching: Mutex::new(matching),
            diverged: Mutex::default(),
            timing: options.timing,
            moved: watch::Sender::new(0),
            awake_guard: OnceLock::new(),
            room,
            _held: held,
        })))
    }

    /// Changes a request's path to the form that the recording has.
    pub(crate) fn settle_path(&self, asked: &mut ProxyRequest) {
        self.0.settle_path(asked);
    }

    /// Answers a request.
    pub(crate) async fn answer(&self, asked: ProxyRequest) -> Response<ResponseBody> {
        self.0.clone().answer(asked).await
    }

    /// Starts listening.
    ///
    /// # Errors
    /// If no port of the loopback is free.
    pub(crate) async fn listen(&self) -> Result<Proxy, ProxyError> {
        let _ = self.0.awake_guard.set(AwakeGuard::new());
        Proxy::start(self.0.clone()).await
    }

    /// The recorded call that answers a request, or the differences.
    pub fn ask(&self, call: &str, body: &[u8]) -> annals::Result<Found> {
        self.0.find(call, body)
    }

    /// Takes the recorded call that equals a request, exactly or after the rules, without comparing and
    /// reporting other requests.
    pub(crate) fn take(&self, call: &str, body: &[u8]) -> annals::Result<Option<u32>> {
        self.0.take(call, body)
    }

    /// Takes the earliest call of this route that no request has taken.
    pub(crate) fn take_next(&self, call: &str) -> Option<u32> {
        lock(&self.0.matching).take_next(call)
    }

    /// The recorded answer's bytes, as they were sent.
    pub(crate) fn output(&self, seq: u32) -> annals::Result<Bytes> {
        Ok(self.0.reader.frame(seq)?.output.into())
    }

    /// The recorded answer of a frame.
    pub(crate) async fn serve(
        &self,
        seq: u32,
        began: Instant,
        wire: Option<Arc<ConnectionProgress>>,
    ) -> Response<ResponseBody> {
        self.0.clone().serve(seq, began, wire).await
    }

    /// Releases other answers from waiting for this frame's answer.
    pub(crate) fn give_up(&self, seq: u32) {
        lock(&self.0.matching).give_up(seq);
        self.0.moved.send_modify(|moved| *moved += 1);
    }

    /// Notes a divergence, and returns the answer that reports it.
    pub(crate) fn diverge(&self, divergence: Box<Divergence>) -> Response<ResponseBody> {
        self.0.diverge(divergence)
    }

    /// Notes a deviation for the final report.
    pub(crate) fn note(&self, diverged: ReplayDivergence) {
        self.0.note(diverged);
    }

    pub(crate) fn unreadable(&self, error: &annals::Error) -> Response<ResponseBody> {
        self.0.unreadable(error)
    }

    /// Number of recorded calls before a frame.
    pub(crate) fn count_calls_before(&self, seq: u32) -> u32 {
        let before = self.0.exchanges.keys().filter(|of| **of < seq).count();
        u32::try_from(before).unwrap_or(u32::MAX)
    }

    /// Why there was no answer, if the recorded answer was made by the proxy.
    #[cfg(feature = "middleware")]
    pub(crate) fn broken_reason(&self, seq: u32) -> Option<String> {
        self.0.exchanges.get(&seq).filter(|of| is_local_answer(of)).and_then(|of| of.http.broken.clone())
    }

    /// Status and headers of a recorded answer.
    pub(crate) fn head(&self, seq: u32) -> (StatusCode, HeaderMap) {
        let Some(exchange) = self.0.exchanges.get(&seq) else { return (StatusCode::OK, HeaderMap::new()) };
        let status = exchange.http.status.and_then(|status| StatusCode::from_u16(status).ok());
        (status.unwrap_or(StatusCode::OK), exchange.volatile.response_headers.to_map())
    }

    /// Waits a while for requested answers that are still being sent: a program may end with the last byte of
    /// one.
    pub(crate) async fn settle(&self) {
        let mut moved = self.0.moved.subscribe();
        let settled = async {
            loop {
                moved.mark_unchanged();
                let receipt = lock(&self.0.matching).receipt();
                if receipt.served + receipt.given_up >= receipt.exact + receipt.matched {
                    return;
                }
                let _ = moved.changed().await;
            }
        };
        let _ = timeout(SETTLE, settled).await;
    }

    /// The result of the replay.
    pub(crate) fn finish(&self) -> ReplaySummary {
        let receipt = lock(&self.0.matching).receipt();
        let (tokens, cost) = self.usage_of(|seq| !receipt.missing.contains(&seq));
        ReplaySummary { receipt, diverged: lock(&self.0.diverged).clone(), tokens, cost }
    }

    /// Tokens and cost of these recorded calls.
    pub(crate) fn usage_of(&self, of: impl Fn(u32) -> bool) -> (u64, Cost) {
        let (mut tokens, mut cost) = (0_u64, Cost::default());
        for (_, exchange) in self.0.exchanges.iter().filter(|(seq, _)| of(**seq)) {
            let usage = exchange.summary.get("usage").cloned().unwrap_or_default();
            let usage: TokenUsage = serde_json::from_value(usage).unwrap_or_default();
            let both = usage.input.unwrap_or(0).saturating_add(usage.output.unwrap_or(0));
            tokens = tokens.saturating_add(both);
            let model = |key: &str| exchange.summary.get(key).and_then(|model| model.as_str());
            cost += self.0.prices.cost_by(&usage, [model("model"), model("model_requested")]);
        }
        (tokens, cost)
    }
}

impl ExchangeHandler for ProxyReplayerState {
    fn answer(self: Arc<Self>, mut asked: ProxyRequest) -> AnswerFuture {
        Box::pin(async move {
            let began = Instant::now();
            self.settle_path(&mut asked);
            let (http, _) = http_exchange(&asked);
            let found = self.find_in_line(&http.call(), &asked.body, asked.arrived.as_ref()).await;
            match found {
                Ok(Found::Exact(seq) | Found::Matched(seq)) => self.serve(seq, began, asked.wire).await,
                Ok(Found::Diverged(divergence)) => self.diverge(divergence),
                Err(error) => self.unreadable(&error),
            }
        })
    }
}

impl ProxyReplayerState {
    /// A run recorded with other paths than this version's keeps its own.
    fn settle_path(&self, asked: &mut ProxyRequest) {
        let Some(path) = recorded_path(&asked.mount, &asked.path) else { return };
        let is_recorded = |path: &str| self.routes.contains(&(asked.mount.clone(), path.to_owned()));
        if !is_recorded(&asked.path) && is_recorded(&path) {
            asked.path = path;
        }
    }

    fn take(&self, call: &str, body: &[u8]) -> annals::Result<Option<u32>> {
        let exact = CallHash::new(&self.key, call, body);
        if self.secrets.is_empty() {
            return lock(&self.matching).take(exact, call, body);
        }
        let (line, stored) = (self.secrets.redact(call.as_bytes()), self.secrets.redact(body));
        lock(&self.matching).take(exact, &String::from_utf8_lossy(&line.bytes), &stored.bytes)
    }

    fn find(&self, call: &str, body: &[u8]) -> annals::Result<Found> {
        let found = if self.secrets.is_empty() {
            lock(&self.matching).ask(call, body)
        } else {
            let exact = CallHash::new(&self.key, call, body);
            let (line, stored) = (self.secrets.redact(call.as_bytes()), self.secrets.redact(body));
            lock(&self.matching).ask_hashed(exact, &String::from_utf8_lossy(&line.bytes), &stored.bytes)
        };
        self.moved.send_modify(|moved| *moved += 1);
        found
    }

    /// As `find`, once all identical requests that overlapped have come, or no more are coming. The first to
    /// arrive gets the answer of the recorded one that arrived first.
    ///
    /// Identical requests may also have been opened together, of which the recording answered one before it
    /// read the next: then only the order of the connections tells whose answer it is.
    async fn find_in_line(
        &self,
        call: &str,
        body: &[u8],
        arrived: Option<&Arrival>,
    ) -> annals::Result<Found> {
        if !self.has_repeats {
            return self.find(call, body);
        }
        let hash = CallHash::new(&self.key, call, body);
        let is_repeated = lock(&self.matching).unserved(&hash) > 1;
        if let Some(arrived) = arrived.filter(|_| is_repeated) {
            arrived.wait_for_earlier().await;
        }
        if !self.has_batches {
            return self.find(call, body);
        }
        let (mut place, is_full) = {
            let mut lines = self.lines.lock();
            let expected = || lock(&self.matching).batch_len(&hash);
            let line = lines.entry(hash).or_insert_with(|| IdenticalRequestQueue::new(expected()));
            line.join(arrived.map(|arrival| arrival.position).unwrap_or_default())
        };
        if is_full {
            self.serve_line(&hash, call, body);
        }
        loop {
            let until = self.lines.lock().get(&hash).map(IdenticalRequestQueue::waits_until);
            let until = until.unwrap_or_else(Instant::now);
            match timeout_at(until, &mut place).await {
                Ok(found) => return found.unwrap_or_else(|_| self.find(call, body)),
                Err(_)
                    if self
                        .lines
                        .lock()
                        .get(&hash)
                        .is_none_or(|line| line.waits_until() <= Instant::now()) =>
                {
                    self.serve_line(&hash, call, body);
                }
                Err(_) => {}
            }
        }
    }

    /// Answers all requests of a queue.
    fn serve_line(&self, hash: &CallHash, call: &str, body: &[u8]) {
        let Some(line) = self.lines.lock().remove(hash) else { return };
        for place in line.into_senders() {
            // A client that has gone takes no answer, but its request was made.
            if let Err(Ok(Found::Exact(seq) | Found::Matched(seq))) = place.send(self.find(call, body)) {
                self.note_released(seq);
            }
        }
    }

    fn note(&self, diverged: ReplayDivergence) {
        let mut all = lock(&self.diverged);
        if all.len() < DIVERGED_MAX {
            all.push(diverged);
        }
    }

    fn diverge(&self, divergence: Box<Divergence>) -> Response<ResponseBody> {
        let response = divergence_response(&divergence);
        self.note(ReplayDivergence::Request(divergence));
        response
    }

    fn unreadable(&self, error: &annals::Error) -> Response<ResponseBody> {
        self.note(ReplayDivergence::Unreadable(error.to_string()));
        refuse(StatusCode::BAD_GATEWAY, &format!("the recording cannot be read: {error}"))
    }

    async fn serve(
        self: Arc<Self>,
        seq: u32,
        began: Instant,
        wire: Option<Arc<ConnectionProgress>>,
    ) -> Response<ResponseBody> {
        let Some(exchange) = self.exchanges.get(&seq) else {
            return refuse(StatusCode::BAD_GATEWAY, "the recording lacks this exchange");
        };
        if let Some(recorded) = self.unanswered.get(&seq) {
            return self.leave_unanswered(seq, *recorded, wire).await;
        }
        let mut output = Vec::new();
        let read = self.reader.output_reader(seq).and_then(|mut from| {
            let damaged = |e: std::io::Error| annals::Error::new(annals::ErrorKind::Damaged, e.to_string());
            from.read_to_end(&mut output).map_err(damaged)
        });
        let output = match read {
            Ok(_) => {
                // The request has used its answer. Missing memory must stop later requests, not this answer.
                let mut held = self.room.reservation();
                held.reserve_beyond(output.len());
                held.attach_to(Bytes::from(output))
            }
            Err(error) => {
                lock(&self.matching).give_up(seq);
                return self.unreadable(&error);
            }
        };
        let (status, headers) = ProxyReplayer(self.clone()).head(seq);
        let may = lock(&self.matching).may_release(seq);
        let whole_at_once = may
            && self.without_overlap.contains(&seq)
            && self.timing == Timing::None
            && exchange.volatile.part_bytes.len() <= 1;
        let body = if whole_at_once && exchange.http.broken.is_none() {
            self.note_released(seq);
            whole_body_response(output)
        } else {
            let (sender, body) = ChannelBody::new(1);
            let wire = wire.map(|wire| (wire.written(), wire));
            tokio::spawn(self.clone().send(seq, output, began, sender, wire));
            body.boxed()
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        self.awake_guard.get().inspect(|awake| awake.note_answer());
        response
    }

    /// Waits until the client hangs up, as it did at the recording. What it returns then reaches nobody.
    async fn leave_unanswered(
        &self,
        seq: u32,
        recorded: Duration,
        wire: Option<Arc<ConnectionProgress>>,
    ) -> Response<ResponseBody> {
        // A client that goes away while this waits may drop it.
        let released = ReleaseGuard { replayer: self, seq };
        let hung_up = async {
            match &wire {
                Some(wire) => wire.hung_up().await,
                None => std::future::pending().await,
            }
        };
        let has_waited = timeout(recorded.saturating_add(PATIENCE), hung_up).await.is_err();
        drop(released);
        if has_waited {
            self.note(ReplayDivergence::Awaited { step: seq, recorded });
        }
        refuse(StatusCode::GATEWAY_TIMEOUT, "at the recording the program hung up before the answer came")
    }

    fn note_released(&self, seq: u32) {
        lock(&self.matching).mark_released(seq);
        self.moved.send_modify(|moved| *moved += 1);
    }

    /// Sends the parts of an answer. `wire` is the connection, and what was written to it before this answer.
    async fn send(
        self: Arc<Self>,
        seq: u32,
        mut output: Bytes,
        began: Instant,
        sender: BodySender<super::listen::BoxError>,
        wire: Option<(u64, Arc<ConnectionProgress>)>,
    ) {
        let Some(exchange) = self.exchanges.get(&seq) else { return };
        let parts = exchange.volatile.part_bytes.iter().zip(&exchange.volatile.part_ms);
        // An answer that its client did not wait for has no end that could come too early.
        let ends = exchange.http.broken.as_deref() != Some(HUNG_UP);
        let mut left = exchange.volatile.part_bytes.len();
        for (bytes, ms) in parts {
            left -= 1;
            let len = usize::try_from(*bytes).unwrap_or(usize::MAX).min(output.len());
            let part = if left == 0 { std::mem::take(&mut output) } else { output.split_to(len) };
            if self.timing == Timing::Recorded {
                // The milliseconds come from the recording and may be arbitrarily large.
                let pause = Duration::from_millis((*ms).min(PART_MS_MAX));
                tokio::time::sleep_until(began + pause).await;
            }
            if left == 0 && ends {
                self.wait_for_turn(seq).await;
            }
            let follows = left == 0 && ends && !self.without_overlap.contains(&seq);
            let wire = wire.as_ref().filter(|_| follows);
            if let Some((before, wire)) = wire {
                // The head goes first: from here on, only the part itself is written.
                wire.wait_until_written(before + 1).await;
            }
            let upto = wire.map_or(0, |(_, wire)| wire.written()) + part.len() as u64;
            if sender.send_data(part).await.is_err() {
                break;
            }
            if follows {
                self.wait_until_read(seq, exchange, upto, wire.map(|(_, wire)| &**wire)).await;
            }
        }
        if exchange.volatile.part_bytes.is_empty() && ends {
            self.wait_for_turn(seq).await;
        }
        self.note_released(seq);
        match exchange.http.broken.as_deref() {
            // An answer made by the proxy is complete.
            None => {}
            Some(_) if is_local_answer(exchange) => {}
            Some(why) => {
                // The program hangs up by itself if it did so in the recording; the wait is limited.
                // Otherwise the sent bytes need time before the connection is cut, which drops unsent ones.
                let pause = if why == HUNG_UP { PATIENCE } else { FLUSH };
                tokio::time::sleep(pause).await;
                sender.abort(why.to_owned().into()).await;
            }
        }
    }

    /// Waits until the client has read its connection up to this byte, and a moment longer if another answer follows.
    async fn wait_until_read(
        &self,
        seq: u32,
        exchange: &ExchangeMetadata,
        upto: u64,
        wire: Option<&ConnectionProgress>,
    ) {
        let sized = exchange.volatile.response_headers.get("content-length").is_some();
        if let Some(wire) = wire {
            wire.wait_until_read(upto, if sized { 0 } else { CHUNK_END_BYTES }).await;
        }
        let gap = Duration::from_nanos(lock(&self.matching).gap_after(seq));
        if !gap.is_zero() {
            tokio::time::sleep(gap.clamp(GAP_MIN, GAP_MAX)).await;
        }
    }

    /// Waits until this answer may end.
    async fn wait_for_turn(&self, seq: u32) {
        let mut moved = self.moved.subscribe();
        loop {
            moved.mark_unchanged();
            if lock(&self.matching).may_release(seq) {
                return;
            }
            if timeout(PATIENCE, moved.changed()).await.is_err() {
                let mut matching = lock(&self.matching);
                if matching.may_release(seq) {
                    return;
                }
                let before = matching.blocking(seq);
                for step in &before {
                    matching.give_up(*step);
                }
                drop(matching);
                self.note(ReplayDivergence::Order { step: seq, before });
                self.moved.send_modify(|moved| *moved += 1);
                return;
            }
        }
    }
}

/// Releases an answer when it is dropped.
struct ReleaseGuard<'a> {
    replayer: &'a ProxyReplayerState,
    seq: u32,
}

impl Drop for ReleaseGuard<'_> {
    fn drop(&mut self) {
        self.replayer.note_released(self.seq);
    }
}

/// Whether the proxy made this answer when it was recorded.
fn is_local_answer(exchange: &ExchangeMetadata) -> bool {
    exchange.volatile.response_headers.get(ANNALS_HEADER).is_some()
}

/// The answer to a request that was not recorded.
fn divergence_response(divergence: &Divergence) -> Response<ResponseBody> {
    let nearest = divergence.nearest.iter().map(|near| {
        let fields = near.differences.iter().map(|difference| difference.path.clone()).collect::<Vec<_>>();
        json!({ "step": near.seq, "call": near.name, "distance": near.distance, "fields": fields })
    });
    let error = json!({
        "type": "annals_divergence",
        "message": format!("annals: {divergence}"),
        "step": divergence.step,
        "nearest": nearest.collect::<Vec<_>>(),
    });
    error_response(StatusCode::BAD_GATEWAY, &error)
}
