//! Answers requests from a recording. Each request is matched by its content and gets the recorded answer, in
//! its recorded parts. No upstream is called.
//!
//! The last part of an answer waits for the answers that ended before it in the recording
//! ([`super::answer_ends`]), so that a program sees its calls end in the recorded order. An answer that would
//! wait for ever is sent after a while, and that counts as a divergence.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use annals::RunReader;
use annals::matching::{Answer as Found, Call, CallHash, Divergence, Matching, Receipt, Rules};
use bytes::Bytes;
use http_body_util::BodyExt;
use http_body_util::channel::{Channel, Sender};
use hyper::header::HeaderMap;
use hyper::{Response, StatusCode};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::awake::Awake;
use super::diverged::Diverged;
use super::ends::{alone, end_with_data};
use super::exchange::Exchange;
use super::lines::{Line, Lines};
use super::listen::{Answer, Asked, Handler, OURS, Outgoing, Proxy, ProxyError, refused, told, whole};
use super::mounts::recorded_path;
use super::record::http_of;
use super::room::{Held, Room};
use super::taping::HUNG_UP;
use super::wire::Wire;
use crate::providers::{Cost, Prices, Usage};
use crate::redact::Secrets;

/// How long an answer waits for others while nothing moves.
const PATIENCE: Duration = Duration::from_secs(3);

/// Maximum time between two answers to identical requests.
const GAP_MAX: Duration = Duration::from_millis(3);

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
}

/// The result of a replay.
#[derive(Debug, Clone)]
pub struct Replayed {
    /// Counts.
    pub receipt: Receipt,
    /// Deviations from the recording, in the order they came.
    pub diverged: Vec<Diverged>,
    /// Tokens that the answers had used.
    pub tokens: u64,
    /// What they had cost.
    pub cost: Cost,
}

/// Answers one program from one run.
pub(crate) struct Replayer(Arc<Inner>);

struct Inner {
    reader: RunReader,
    key: [u8; 32],
    secrets: Secrets,
    prices: Prices,
    exchanges: HashMap<u32, Exchange>,
    /// Mounts and paths of all calls.
    places: HashSet<(String, String)>,
    /// Calls that overlapped no other call in the recording.
    alone: HashSet<u32>,
    matching: Mutex<Matching>,
    /// Whether identical requests overlapped in the recording.
    has_batches: bool,
    lines: Lines,
    diverged: Mutex<Vec<Diverged>>,
    timing: Timing,
    /// Counts requests and releases.
    moved: watch::Sender<u64>,
    /// Set by the listener.
    awake: OnceLock<Awake>,
    /// The memory for request bodies.
    room: Room,
    /// The memory held for the run.
    _held: Held,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Replayer {
    /// Reads the metadata of each exchange; the bodies stay in the store.
    ///
    /// # Errors
    /// `Damaged` if the run cannot be read; `Invalid` if a frame is not in the recorder's form.
    pub(crate) fn new(reader: RunReader, key: [u8; 32], options: ReplayOptions) -> annals::Result<Self> {
        Self::within(reader, key, options, Room::of_process(), Room::of(usize::MAX).hold())
    }

    /// The same, with `held` for the run's memory and `room` for bodies.
    ///
    /// # Errors
    /// Also `Unavailable` if there is not enough memory.
    pub(crate) fn within(
        reader: RunReader,
        key: [u8; 32],
        options: ReplayOptions,
        room: Room,
        mut held: Held,
    ) -> annals::Result<Self> {
        let (mut exchanges, mut places) = (HashMap::new(), HashSet::new());
        let mut calls = Vec::new();
        for seq in 1..=reader.info().frames {
            let frame = reader.frame_info(seq)?;
            let exchange = serde_json::from_slice::<Exchange>(&frame.metadata);
            // Other frames belong to the program; an unfinished frame has no answer.
            let Ok(exchange) = exchange else { continue };
            if frame.incomplete || exchange.http.status.is_none() {
                continue;
            }
            held.more(CALL_BYTES + READ_TIMES * frame.metadata.len()).map_err(|_| {
                let why = "too many calls are replayed at once: end other replays first";
                annals::Error::new(annals::ErrorKind::Unavailable, why)
            })?;
            let hash = unhex(&exchange.volatile.asked).ok_or_else(|| {
                annals::Error::new(
                    annals::ErrorKind::Invalid,
                    format!("frame {seq} does not say what was asked"),
                )
            })?;
            let ended_ns = frame.started_ns.saturating_add(frame.duration_ns);
            let (name, exact) = (exchange.http.call(), CallHash(hash));
            places.insert((exchange.http.mount.clone(), exchange.http.path.clone()));
            let arrived = exchange.volatile.arrived.unwrap_or_default();
            calls.push(Call { seq, name, exact, begun_ns: frame.started_ns, ended_ns, arrived });
            exchanges.insert(seq, exchange);
        }
        end_with_data(&mut calls, &exchanges);
        let (bodies, alone) = (reader.clone(), alone(&calls));
        let mut matching = Matching::new(calls, move |seq| Ok(bodies.frame(seq)?.input), options.rules, key)?;
        if let Some(seed) = options.chaos {
            matching = matching.chaos(seed);
        }
        Ok(Self(Arc::new(Inner {
            reader,
            key,
            secrets: options.secrets,
            prices: options.prices,
            exchanges,
            places,
            alone,
            has_batches: matching.has_batches(),
            lines: Lines::default(),
            matching: Mutex::new(matching),
            diverged: Mutex::default(),
            timing: options.timing,
            moved: watch::Sender::new(0),
            awake: OnceLock::new(),
            room,
            _held: held,
        })))
    }

    /// Changes a request's path to the form that the recording has.
    pub(crate) fn settle_path(&self, asked: &mut Asked) {
        self.0.settle_path(asked);
    }

    /// Answers a request.
    pub(crate) async fn answer(&self, asked: Asked) -> Response<Outgoing> {
        self.0.clone().answer(asked).await
    }

    /// Starts listening.
    ///
    /// # Errors
    /// If no port of the loopback is free.
    pub(crate) async fn listen(&self) -> Result<Proxy, ProxyError> {
        let _ = self.0.awake.set(Awake::new());
        Proxy::start(self.0.clone()).await
    }

    /// The recorded call that answers a request, or the differences.
    pub(crate) fn ask(&self, call: &str, body: &[u8]) -> annals::Result<Found> {
        self.0.find(call, body)
    }

    /// The recorded answer of a frame.
    pub(crate) async fn serve(
        &self,
        seq: u32,
        began: Instant,
        wire: Option<Arc<Wire>>,
    ) -> Response<Outgoing> {
        self.0.clone().serve(seq, began, wire).await
    }

    /// Releases other answers from waiting for this frame's answer.
    pub(crate) fn give_up(&self, seq: u32) {
        lock(&self.0.matching).give_up(seq);
        self.0.moved.send_modify(|moved| *moved += 1);
    }

    /// Notes a divergence, and returns the answer that reports it.
    pub(crate) fn diverge(&self, divergence: Box<Divergence>) -> Response<Outgoing> {
        self.0.diverge(divergence)
    }

    /// Notes a deviation for the final report.
    pub(crate) fn note(&self, diverged: Diverged) {
        self.0.note(diverged);
    }

    pub(crate) fn unreadable(&self, error: &annals::Error) -> Response<Outgoing> {
        self.0.unreadable(error)
    }

    /// Number of recorded calls before a frame.
    pub(crate) fn calls_before(&self, seq: u32) -> u32 {
        let before = self.0.exchanges.keys().filter(|of| **of < seq).count();
        u32::try_from(before).unwrap_or(u32::MAX)
    }

    /// Why there was no answer, if the recorded answer was made by the proxy.
    #[cfg(feature = "middleware")]
    pub(crate) fn no_answer(&self, seq: u32) -> Option<String> {
        self.0.exchanges.get(&seq).filter(|of| made_here(of)).and_then(|of| of.http.broken.clone())
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
    pub(crate) fn finish(&self) -> Replayed {
        let receipt = lock(&self.0.matching).receipt();
        let (tokens, cost) = self.spent(|seq| !receipt.missing.contains(&seq));
        Replayed { receipt, diverged: lock(&self.0.diverged).clone(), tokens, cost }
    }

    /// Tokens and cost of these recorded calls.
    pub(crate) fn spent(&self, of: impl Fn(u32) -> bool) -> (u64, Cost) {
        let (mut tokens, mut cost) = (0_u64, Cost::default());
        for (_, exchange) in self.0.exchanges.iter().filter(|(seq, _)| of(**seq)) {
            let usage = exchange.summary.get("usage").cloned().unwrap_or_default();
            let usage: Usage = serde_json::from_value(usage).unwrap_or_default();
            let both = usage.input.unwrap_or(0).saturating_add(usage.output.unwrap_or(0));
            tokens = tokens.saturating_add(both);
            let model = |key: &str| exchange.summary.get(key).and_then(|model| model.as_str());
            cost += self.0.prices.cost_by(&usage, [model("model"), model("model_requested")]);
        }
        (tokens, cost)
    }
}

pub(crate) fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != bytes.len() || !rest.is_empty() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(pairs) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

impl Handler for Inner {
    fn answer(self: Arc<Self>, mut asked: Asked) -> Answer {
        Box::pin(async move {
            let began = Instant::now();
            self.settle_path(&mut asked);
            let (http, _) = http_of(&asked);
            let found = self.find_in_line(&http.call(), &asked.body, asked.arrived).await;
            match found {
                Ok(Found::Exact(seq) | Found::Matched(seq)) => self.serve(seq, began, asked.wire).await,
                Ok(Found::Diverged(divergence)) => self.diverge(divergence),
                Err(error) => self.unreadable(&error),
            }
        })
    }
}

impl Inner {
    /// A run recorded with other paths than this version's keeps its own.
    fn settle_path(&self, asked: &mut Asked) {
        let Some(path) = recorded_path(&asked.mount, &asked.path) else { return };
        let is_recorded = |path: &str| self.places.contains(&(asked.mount.clone(), path.to_owned()));
        if !is_recorded(&asked.path) && is_recorded(&path) {
            asked.path = path;
        }
    }

    fn find(&self, call: &str, body: &[u8]) -> annals::Result<Found> {
        let found = if self.secrets.is_empty() {
            lock(&self.matching).ask(call, body)
        } else {
            let exact = CallHash::of(&self.key, call, body);
            let (line, stored) = (self.secrets.redact(call.as_bytes()), self.secrets.redact(body));
            lock(&self.matching).ask_as(exact, &String::from_utf8_lossy(&line.bytes), &stored.bytes)
        };
        self.moved.send_modify(|moved| *moved += 1);
        found
    }

    /// As `find`, once all identical requests that overlapped have come, or no more are coming. The first to
    /// arrive gets the answer of the recorded one that arrived first.
    async fn find_in_line(&self, call: &str, body: &[u8], arrived: Option<u64>) -> annals::Result<Found> {
        if !self.has_batches {
            return self.find(call, body);
        }
        let hash = CallHash::of(&self.key, call, body);
        let (mut place, is_full) = {
            let mut lines = self.lines.lock();
            let expected = || lock(&self.matching).batch(&hash);
            let line = lines.entry(hash).or_insert_with(|| Line::of(expected()));
            line.join(arrived.unwrap_or_default())
        };
        if is_full {
            self.serve_line(&hash, call, body);
        }
        loop {
            let until = self.lines.lock().get(&hash).map(Line::quiet_at);
            let until = until.unwrap_or_else(Instant::now);
            match timeout_at(until, &mut place).await {
                Ok(found) => return found.unwrap_or_else(|_| self.find(call, body)),
                Err(_)
                    if self.lines.lock().get(&hash).is_none_or(|line| line.quiet_at() <= Instant::now()) =>
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
        for place in line.places() {
            // A client that has gone takes no answer, but its request was made.
            if let Err(Ok(Found::Exact(seq) | Found::Matched(seq))) = place.send(self.find(call, body)) {
                self.released(seq);
            }
        }
    }

    fn note(&self, diverged: Diverged) {
        let mut all = lock(&self.diverged);
        if all.len() < DIVERGED_MAX {
            all.push(diverged);
        }
    }

    fn diverge(&self, divergence: Box<Divergence>) -> Response<Outgoing> {
        let response = diverged(&divergence);
        self.note(Diverged::Request(divergence));
        response
    }

    fn unreadable(&self, error: &annals::Error) -> Response<Outgoing> {
        self.note(Diverged::Unreadable(error.to_string()));
        refused(StatusCode::BAD_GATEWAY, &format!("the recording cannot be read: {error}"))
    }

    async fn serve(self: Arc<Self>, seq: u32, began: Instant, wire: Option<Arc<Wire>>) -> Response<Outgoing> {
        let Some(exchange) = self.exchanges.get(&seq) else {
            return refused(StatusCode::BAD_GATEWAY, "the recording lacks this exchange");
        };
        let mut output = Vec::new();
        let read = self.reader.output_reader(seq).and_then(|mut from| {
            let damaged = |e: std::io::Error| annals::Error::new(annals::ErrorKind::Damaged, e.to_string());
            from.read_to_end(&mut output).map_err(damaged)
        });
        let output = match read {
            Ok(_) => {
                // The request has used its answer. Missing memory must stop later requests, not this answer.
                let mut held = self.room.hold();
                held.over(output.len());
                held.keep(Bytes::from(output))
            }
            Err(error) => {
                lock(&self.matching).give_up(seq);
                return self.unreadable(&error);
            }
        };
        let (status, headers) = Replayer(self.clone()).head(seq);
        let may = lock(&self.matching).may_release(seq);
        let whole_at_once = may
            && self.alone.contains(&seq)
            && self.timing == Timing::None
            && exchange.volatile.part_bytes.len() <= 1;
        let body = if whole_at_once && exchange.http.broken.is_none() {
            self.released(seq);
            whole(output)
        } else {
            let (sender, body) = Channel::new(1);
            tokio::spawn(self.clone().send(seq, output, began, sender, wire));
            body.boxed()
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        self.awake.get().inspect(|awake| awake.answered());
        response
    }

    fn released(&self, seq: u32) {
        lock(&self.matching).released(seq);
        self.moved.send_modify(|moved| *moved += 1);
    }

    /// Sends the parts of an answer.
    async fn send(
        self: Arc<Self>,
        seq: u32,
        mut output: Bytes,
        began: Instant,
        mut sender: Sender<Bytes, super::listen::BoxError>,
        wire: Option<Arc<Wire>>,
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
                self.turn(seq).await;
            }
            let upto = wire.as_ref().map_or(0, |wire| wire.written()) + part.len() as u64;
            if sender.send_data(part).await.is_err() {
                break;
            }
            if left == 0 && ends && !self.alone.contains(&seq) {
                self.taken(seq, exchange, upto, wire.as_deref()).await;
            }
        }
        if exchange.volatile.part_bytes.is_empty() && ends {
            self.turn(seq).await;
        }
        self.released(seq);
        match exchange.http.broken.as_deref() {
            // An answer made by the proxy is complete.
            None => {}
            Some(_) if made_here(exchange) => {}
            Some(why) => {
                // The program hangs up by itself if it did so in the recording; the wait is limited.
                // Otherwise the sent bytes need time before the connection is cut, which drops unsent ones.
                let pause = if why == HUNG_UP { PATIENCE } else { FLUSH };
                tokio::time::sleep(pause).await;
                sender.abort(why.to_owned().into());
            }
        }
    }

    /// Waits until the client has read its connection up to this byte. Waits a moment longer if only the
    /// order of answers tells them apart, because the client's threads may still run in another order.
    async fn taken(&self, seq: u32, exchange: &Exchange, upto: u64, wire: Option<&Wire>) {
        let sized = exchange.volatile.response_headers.get("content-length").is_some();
        if let Some(wire) = wire {
            wire.taken(upto, if sized { 0 } else { CHUNK_END_BYTES }).await;
        }
        let gap = Duration::from_nanos(lock(&self.matching).gap_after(seq));
        if !gap.is_zero() {
            tokio::time::sleep(gap.min(GAP_MAX)).await;
        }
    }

    /// Waits until this answer may end.
    async fn turn(&self, seq: u32) {
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
                self.note(Diverged::Order { step: seq, before });
                self.moved.send_modify(|moved| *moved += 1);
                return;
            }
        }
    }
}

/// Whether the proxy made this answer when it was recorded.
fn made_here(exchange: &Exchange) -> bool {
    exchange.volatile.response_headers.get(OURS).is_some()
}

/// The answer to a request that was not recorded.
fn diverged(divergence: &Divergence) -> Response<Outgoing> {
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
    told(StatusCode::BAD_GATEWAY, &error)
}
