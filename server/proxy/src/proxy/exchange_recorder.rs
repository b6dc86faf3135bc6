//! Records one exchange: begins a frame with its request, extends it while its answer arrives, and ends it.
//!
//! Nothing here waits for the store; writes go to the recorder's backlog, in order. An exchange that is
//! dropped before its end is recorded as one whose client hung up.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use annals::io::{Io, RealIo};
use annals::replay::matching::CallHash;
use annals::{Component, Frame};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame as Part, SizeHint};
use hyper::{Method, Response, StatusCode};
use serde_json::{Map, json};
use tokio::time::Instant;

use super::body_memory::MemoryReservation;
use super::cache::CachedAnswer;
use super::clearing::{NOT_KEPT, redact_answer, redact_request};
use super::listen::{BoxError, ProxyRequest, ResponseBody, refuse, whole_body_response};
use super::record::{PendingExchange, ProxyRecorderState, RequestArrival, http_exchange};
use crate::destination::NewFrame;
use crate::upstream::error_chain;
use annals_policy::exchange::{ExchangeMetadata, Headers, VolatileExchange};
use annals_policy::providers::{self, ModelApi};

/// The reason stored when the client went away before the answer was complete.
pub(crate) const HUNG_UP: &str = "the client hung up";

/// An exchange being recorded. If dropped before its end, it is recorded as one whose client hung up.
pub(crate) struct ExchangeRecorder {
    recorder: Arc<ProxyRecorderState>,
    frame: Option<Arc<NewFrame>>,
    exchange: ExchangeMetadata,
    api: ModelApi,
    request: Bytes,
    /// Bytes of the answer that are not in the store yet.
    unwritten: Arc<Mutex<Vec<u8>>>,
    /// A copy of the answer for the summary, while it is short enough and memory is free.
    answer: Option<Vec<u8>>,
    room: MemoryReservation,
    /// Whether the answer is too long to be searched for secrets.
    is_too_long: bool,
    /// Whether the stored request differs from the original.
    request_redacted: bool,
    /// The request's cache key.
    known_by: Option<CallHash>,
    started_ns: u64,
    began: Instant,
    /// Kept until the frame is closed.
    waited_for: Option<PendingExchange>,
}

/// The metadata key for the run and frame that a cached answer came from.
pub(super) const CACHED: &str = "cached";

/// Maximum number of unwritten answer bytes; beyond it, the answer waits for the store.
const UNWRITTEN_BYTES_MAX: usize = 16 << 20;

/// Maximum delay before answer bytes are written. It gathers parts of the stream, and leaves the moment after
/// an answer to the program.
const WRITTEN_WITHIN: Duration = Duration::from_millis(50);

/// Maximum length of an answer that is summarised, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Why an answer is stored only in part.
const TOO_LONG: &str = "what follows is not stored: an answer is searched for secrets up to 64 MiB, and as long as there is memory for it";

/// How much of a held-back answer is handed to the store at a time, in bytes.
const HELD_PART_BYTES: usize = 4 << 20;

impl ExchangeRecorder {
    /// `sent` is the body for the upstream if it differs from the original. It is the recorded one; the hash
    /// stays that of the original.
    pub(super) fn begin(
        recorder: &Arc<ProxyRecorderState>,
        asked: &ProxyRequest,
        body: Bytes,
        sent: Option<Bytes>,
        came: RequestArrival,
    ) -> Self {
        let (http, mut removed) = http_exchange(asked);
        let hash = CallHash::new(&recorder.key, &http.call(), &body);
        let asked_as = annals_text::hex::encode(&hash.0);
        let arrived = asked.arrived.as_ref().map(|arrival| arrival.position);
        let volatile = VolatileExchange { asked: asked_as, arrived, ..VolatileExchange::default() };
        let mut exchange = ExchangeMetadata { http, summary: Map::new(), volatile };
        exchange.volatile.request_headers = Headers::from_map(&asked.headers);
        removed += exchange.volatile.request_headers.remove_secrets();
        // Without mounts, a request names its host.
        let host = recorder.mounts.get(&asked.mount).map_or(asked.mount.as_str(), |mount| &mount.origin);
        let host = host.split_once("://").map_or(host, |(_, host)| host);
        let api = providers::recognise(asked.method.as_str(), &asked.path, host);
        let llm = api.shape.is_model_call();
        {
            let mut counts = recorder.counts();
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
            let (stored, removed) = redact_request(secrets, &mut exchange, request);
            request = stored;
            cleared = removed > 0 || exchange.summary.contains_key(NOT_KEPT);
            recorder.counts().secrets_removed += removed as u64;
        }
        let mut frame = Frame::new(component, request.to_vec(), "").metadata(exchange.to_bytes());
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
            room: recorder.room().reservation(),
            is_too_long: false,
            request_redacted: cleared,
            known_by: None,
            started_ns: came.started_ns,
            began: came.began,
            waited_for: Some(came.waited_for),
        }
    }

    fn upstream_origin(&self) -> &str {
        self.recorder.mounts.get(&self.exchange.http.mount).map_or("", |mount| mount.origin.as_str())
    }

    /// The answer of an earlier run.
    pub(super) fn cached_answer(&mut self) -> Option<CachedAnswer> {
        let recorder = self.recorder.clone();
        // Without its secrets the request may equal another one.
        let cache =
            recorder.cache.as_ref().filter(|_| self.api.shape.is_model_call() && !self.request_redacted)?;
        self.known_by = cache.request_key(self.upstream_origin(), &self.exchange.http, &self.request);
        let seq = self.frame.as_ref().map(|frame| frame.seq());
        // The read may be long and waits for the disk.
        tokio::task::block_in_place(|| cache.find(self.known_by?, self.upstream_origin(), seq))
    }

    /// Sends the answer of an earlier run, recorded as an answer of this one.
    pub(super) fn answer_from_cache(mut self, cached: CachedAnswer) -> Response<ResponseBody> {
        let CachedAnswer { exchange, body, from } = cached;
        let mut response = Response::new(whole_body_response(body.clone()));
        let status = exchange.http.status.and_then(|status| StatusCode::from_u16(status).ok());
        *response.status_mut() = status.unwrap_or(StatusCode::OK);
        *response.headers_mut() = exchange.volatile.response_headers.to_map();
        self.exchange.summary.insert(CACHED.to_owned(), json!(from));
        self.known_by = None;
        self.set_head(response.status(), exchange.volatile.response_headers);
        self.push_part(body);
        self.end(None);
        response
    }

    /// An upstream's answer, recorded while it passes.
    pub(crate) fn into_recorded_answer(
        mut self,
        asked: &Method,
        response: reqwest::Response,
    ) -> RecordedAnswerBody {
        self.set_head(response.status(), Headers::from_map(response.headers()));
        let status = response.status();
        let body: reqwest::Body = response.into();
        // hyper never polls a body that must be empty, so its end would not be seen.
        let none = *asked == Method::HEAD
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
            || body.is_end_stream();
        let mut taping = Some(self);
        if none && let Some(taping) = taping.take() {
            taping.end(None);
        }
        RecordedAnswerBody { body, taping }
    }

    /// An answer made by the proxy, because there is no other.
    pub(crate) async fn record_refusal(mut self, status: StatusCode, why: String) -> Response<ResponseBody> {
        let (parts, body) = refuse(status, &why).into_parts();
        self.set_head(status, Headers::from_map(&parts.headers));
        let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        self.push_part(bytes.clone());
        self.end(Some(why));
        Response::from_parts(parts, whole_body_response(bytes))
    }

    /// Says that no upstream is asked.
    pub(super) fn mark_local(&mut self) {
        self.exchange.volatile.local = true;
    }

    /// The frame's number; `None` if the store refused the frame.
    pub(crate) fn seq(&self) -> Option<u32> {
        self.frame.as_ref().map(|frame| frame.seq())
    }

    pub(crate) fn set_head(&mut self, status: StatusCode, headers: Headers) {
        self.exchange.http.status = Some(status.as_u16());
        self.exchange.volatile.response_headers = headers;
        let removed = self.exchange.volatile.response_headers.remove_secrets();
        self.recorder.counts().secrets_removed += removed as u64;
    }

    pub(crate) fn push_part(&mut self, bytes: Bytes) {
        let Some(frame) = self.frame.clone() else { return };
        let after = self.began.elapsed();
        let ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        if !bytes.is_empty() {
            self.exchange.volatile.data_ns = u64::try_from(after.as_nanos()).ok();
        }
        let fits = self.answer.as_ref().is_some_and(|kept| kept.len() + bytes.len() <= ANSWER_BYTES_MAX)
            && self.room.reserve(bytes.len()).is_ok();
        // An answer that is searched for secrets is held back until it is complete: a secret may span parts.
        let held = self.recorder.secrets.get().is_some();
        if held && (self.is_too_long || !fits) {
            self.is_too_long = true;
            return;
        }
        self.exchange.volatile.part_bytes.push(bytes.len() as u64);
        self.exchange.volatile.part_ms.push(ms);
        match &mut self.answer {
            Some(answer) if fits => answer.extend_from_slice(&bytes),
            _ => {
                self.answer = None;
                self.room.clear();
            }
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
        // The job of the first part takes everything that has come until then.
        if len > bytes.len() || bytes.is_empty() {
            return;
        }
        let (recorder, unwritten) = (self.recorder.clone(), self.unwritten.clone());
        // The program gets its part no later than the store.
        self.recorder.tape.push(WRITTEN_WITHIN, move || {
            let bytes = std::mem::take(&mut *unwritten.lock().unwrap_or_else(PoisonError::into_inner));
            if !recorder.is_failed()
                && let Err(error) = frame.append(&bytes)
            {
                recorder.fail(&error);
            }
        });
    }

    /// Writes the frame's end in the background.
    pub(crate) fn end(mut self, broken: Option<String>) {
        self.close(broken);
    }

    fn close(&mut self, broken: Option<String>) {
        let Some(waited_for) = self.waited_for.take() else { return };
        self.exchange.http.broken = broken.or_else(|| self.is_too_long.then(|| TOO_LONG.to_owned()));
        let (recorder, frame, mut exchange) =
            (self.recorder.clone(), self.frame.take(), self.exchange.clone());
        let (api, request, mut answer) = (self.api.clone(), self.request.clone(), self.answer.take());
        let (mut known_by, http) = (self.known_by.take(), exchange.http.clone());
        let room = std::mem::replace(&mut self.room, self.recorder.room().reservation());
        let duration_ns = RealIo::default().now_ns().saturating_sub(self.started_ns);
        let write = move || {
            if let Some(secrets) = recorder.secrets.get()
                && let Some(held) = answer.take()
            {
                let (kept, removed) = redact_answer(secrets, &mut exchange, held);
                recorder.counts().secrets_removed += removed as u64;
                // A later run would get an answer that differs from this one's.
                known_by = known_by.filter(|_| removed == 0);
                if let Some(frame) = frame.as_ref().filter(|_| !recorder.is_failed())
                    && let Err(error) = kept.chunks(HELD_PART_BYTES).try_for_each(|part| frame.append(part))
                {
                    recorder.fail(&error);
                }
                answer = Some(kept);
            }
            let (ending, counted) =
                recorder.summarise(exchange, &api, &request, answer.as_deref(), duration_ns);
            // All parts are written; an incomplete frame is not ended.
            let frame = frame.and_then(Arc::into_inner).filter(|_| !recorder.is_failed());
            let finished = frame.map(|frame| frame.finish_with(ending)).transpose();
            if let Ok(Some(_)) = finished {
                recorder.count(&counted);
            }
            let noted = finished.and_then(|seq| match (seq, known_by, &recorder.cache) {
                (Some(seq), Some(known_by), Some(cache)) => {
                    recorder.run.local().map_or(Ok(()), |run| cache.note(known_by, &http, run, seq))
                }
                _ => Ok(()),
            });
            if let Err(error) = noted {
                recorder.fail(&error);
            }
            drop((room, waited_for));
        };
        self.recorder.tape.push(WRITTEN_WITHIN, write);
    }
}

impl Drop for ExchangeRecorder {
    fn drop(&mut self) {
        self.close(Some(HUNG_UP.to_owned()));
    }
}

/// An answer on its way to the client, recorded while it passes.
pub(crate) struct RecordedAnswerBody {
    body: reqwest::Body,
    taping: Option<ExchangeRecorder>,
}

impl RecordedAnswerBody {
    /// An answer that is not recorded.
    pub(super) fn unrecorded(response: reqwest::Response) -> Self {
        Self { body: response.into(), taping: None }
    }
}

impl Body for RecordedAnswerBody {
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
                    taping.push_part(bytes.clone());
                }
                // hyper stops polling once the announced length, or the trailers, have arrived.
                if (part.is_trailers() || self.body.is_end_stream())
                    && let Some(taping) = self.taping.take()
                {
                    taping.end(None);
                }
            }
            Poll::Ready(Some(Err(error))) => {
                if let Some(taping) = self.taping.take() {
                    taping.end(Some(format!("the upstream broke off: {}", error_chain(error))));
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
