//! A program that records and replays itself: its own process hands over each request and each part of an
//! answer. The frames and the matching are those of the proxy; a request's mount is its host.
//!
//! All functions block, and none needs a runtime. Not included by design: HTTP clients. The caller is one,
//! or sits in one.

use std::sync::{Arc, Mutex, PoisonError};

use annals::runs::Ending;
use annals::{Component, Error, ErrorKind, Frame, RunReader, RunSpec, Severity, Status};
use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use reqwest::Url;

use crate::destination::{Destination, NewFrame, NewRun};
use crate::error::{SessionError, invalid};
use crate::mounts::Mounts;
use crate::origin::{Origin, random_key};
use crate::program::Program;
use crate::proxy::{
    ExchangeRecorder, ProxyRecorder, ProxyReplayer, ProxyRequest, RecordedAnswer, RecordedResult,
    RecordingSummary, ReplayOptions, ReplaySummary,
};
use crate::session::secrets::{known_secrets, named_secrets};
use annals_policy::exchange::Headers;

/// A request as a client sends it.
#[derive(Debug, Clone, Default)]
pub struct ClientRequest {
    /// The method.
    pub method: String,
    /// The whole address.
    pub url: String,
    /// Names and values of the headers.
    pub headers: Vec<(Vec<u8>, Vec<u8>)>,
    /// The whole body.
    pub body: Bytes,
}

impl ClientRequest {
    /// The proxy's form of the request. A recorded mount with this origin gives its name.
    fn proxy_request(&self, mounts: &Mounts) -> annals::Result<ProxyRequest> {
        let url = Url::parse(&self.url).map_err(|error| invalid(&format!("{}: {error}", self.url)))?;
        let method = Method::from_bytes(self.method.as_bytes())
            .map_err(|_| invalid(&format!("{:?} is not a method of HTTP", self.method)))?;
        let of = mounts.0.iter().find_map(|mount| {
            let path = self.url.strip_prefix(mount.origin.trim_end_matches('/'))?;
            path.starts_with(['/', '?']).then(|| mount.name.clone())
        });
        let path = match of.as_ref().and_then(|name| mounts.get(name)).map(|mount| Url::parse(&mount.origin))
        {
            Some(Ok(origin)) => {
                let below = url.path().strip_prefix(origin.path().trim_end_matches('/'));
                below.unwrap_or(url.path()).to_owned()
            }
            _ => url.path().to_owned(),
        };
        Ok(ProxyRequest {
            mount: of.unwrap_or_else(|| host(&url)),
            method,
            path,
            query: url.query().map(str::to_owned),
            headers: header_map(&self.headers),
            body: self.body.clone(),
            upload: None,
            refusal: None,
            wire: None,
            arrived: None,
        })
    }
}

/// The names of headers that HTTP does not allow, of their name or their value. They are left out of frames, so a
/// caller must say so.
#[must_use]
pub fn invalid_headers(headers: &[(Vec<u8>, Vec<u8>)]) -> Vec<String> {
    let invalid = headers.iter().filter(|header| parse_header(header).is_none());
    invalid.map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect()
}

fn parse_header((name, value): &(Vec<u8>, Vec<u8>)) -> Option<(HeaderName, HeaderValue)> {
    Some((HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?))
}

/// Headers that HTTP does not allow are left out: [`invalid_headers`] names them.
fn header_map(headers: &[(Vec<u8>, Vec<u8>)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in headers.iter().filter_map(parse_header) {
        map.append(name, value);
    }
    map
}

/// Host and port, without the scheme's default port.
pub(crate) fn host(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

fn block_on<T>(of: impl Future<Output = T>) -> annals::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.map_err(|error| Error::new(ErrorKind::Unavailable, error.to_string()))?;
    Ok(runtime.block_on(of))
}

/// A run that a program records of itself.
#[derive(Debug)]
pub struct InProcessRecording {
    into: Destination,
    run: NewRun,
    recorder: ProxyRecorder,
    /// The first failure to record a frame that is no exchange.
    failure: Arc<Mutex<Option<String>>>,
}

impl InProcessRecording {
    /// Begins a run. `argv` is the program's own command, `secrets` names variables whose values are removed
    /// before storing.
    ///
    /// # Errors
    /// As [`Namespace::begin_run`](annals::Namespace::begin_run); `Secret` if a secret cannot be removed.
    pub fn begin(into: &Destination, spec: RunSpec, secrets: &[String]) -> Result<Self, SessionError> {
        let secrets_known = named_secrets(secrets)?;
        let (key, mounts) = (random_key()?, Mounts::default());
        let own = Program { argv: Vec::new(), directory: None, environment: Vec::new() };
        let origin = Origin::new(&own, &mounts, &[], &key).with_secrets(secrets, &secrets_known)?;
        let run = into.begin_run(spec.metadata(origin.metadata()))?;
        let recorder = ProxyRecorder::new(run.clone(), key, mounts, None)?;
        recorder.set_secrets(&secrets_known);
        recorder.set_tool_version(origin.revision.as_deref());
        Ok(Self { into: into.clone(), run, recorder, failure: Arc::default() })
    }

    /// The run's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.run.name()
    }

    /// Begins an exchange. If it is dropped before its end, its client hung up.
    ///
    /// # Errors
    /// `Invalid` for an address or method that is not one of HTTP.
    pub fn exchange(&self, request: &ClientRequest) -> annals::Result<InProcessExchange> {
        let asked = request.proxy_request(&Mounts::default())?;
        Ok(InProcessExchange { recorder: Some(self.recorder.begin(&asked)) })
    }

    /// Begins a frame of another call, which is recorded as incomplete until it ends.
    pub fn call(&self, frame: &Frame) -> InProcessCall {
        let begun = self.run.begin_frame(frame);
        let begun = begun.map_err(|error| self.note_failure(&error)).ok();
        InProcessCall { frame: begun, failure: self.failure.clone() }
    }

    /// Records a whole frame.
    pub fn record(&self, frame: Frame) {
        if let Err(error) = self.run.submit(frame) {
            self.note_failure(&error);
        }
    }

    /// Records a frame with the state after it; durable as the run's frames are. Returns the frame's number.
    ///
    /// # Errors
    /// As [`Run::snapshot`](annals::Run::snapshot).
    pub fn snapshot(&self, frame: Frame, state: Vec<u8>) -> annals::Result<u32> {
        self.run.record_state(frame, state)
    }

    /// Ends the run after all exchanges that have ended were written, and stores its outcome in memory.
    ///
    /// # Errors
    /// As [`Run::end`](annals::Run::end).
    pub fn end(&self, status: Status) -> annals::Result<RecordingSummary> {
        let mut recorded = block_on(self.recorder.finish())?;
        let other = self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        recorded.failure = recorded.failure.or(other);
        self.run.end(status)?;
        if recorded.failure.is_none() {
            let remembered = self.into.remember(&self.run, status);
            match remembered {
                Ok(skipped) => recorded.memory_skipped = skipped,
                Err(error) => recorded.memory_failure = Some(error.to_string()),
            }
        }
        Ok(recorded)
    }

    fn note_failure(&self, error: &Error) {
        note(&self.failure, error);
    }
}

fn note(failure: &Mutex<Option<String>>, error: &Error) {
    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| error.to_string());
}

/// An exchange that is being recorded.
pub struct InProcessExchange {
    recorder: Option<ExchangeRecorder>,
}

impl std::fmt::Debug for InProcessExchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InProcessExchange").field("ended", &self.recorder.is_none()).finish()
    }
}

impl InProcessExchange {
    /// The frame's number; `None` if the store refused the frame.
    #[must_use]
    pub fn seq(&self) -> Option<u32> {
        self.recorder.as_ref().and_then(ExchangeRecorder::seq)
    }

    /// Sets the answer's status and headers.
    pub fn head(&mut self, status: u16, headers: &[(Vec<u8>, Vec<u8>)]) {
        if let Some(recorder) = &mut self.recorder {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
            recorder.set_head(status, Headers::from_map(&header_map(headers)));
        }
    }

    /// Adds a part of the answer.
    pub fn part(&mut self, bytes: Bytes) {
        if let Some(recorder) = &mut self.recorder {
            recorder.push_part(bytes);
        }
    }

    /// Ends the exchange. `broken` says why the answer is not complete.
    pub fn end(&mut self, broken: Option<String>) {
        if let Some(recorder) = self.recorder.take() {
            recorder.end(broken);
        }
    }

    /// Ends an exchange that got no answer, and says why.
    ///
    /// # Errors
    /// `Unavailable` if the system has no resources.
    pub fn fail(&mut self, why: String) -> annals::Result<()> {
        match self.recorder.take() {
            Some(recorder) => block_on(recorder.record_refusal(StatusCode::BAD_GATEWAY, why)).map(drop),
            None => Ok(()),
        }
    }
}

/// Another call that is being recorded.
#[derive(Debug)]
pub struct InProcessCall {
    frame: Option<NewFrame>,
    failure: Arc<Mutex<Option<String>>>,
}

impl InProcessCall {
    /// The frame's number; `None` if the store refused the frame.
    #[must_use]
    pub fn seq(&self) -> Option<u32> {
        self.frame.as_ref().map(NewFrame::seq)
    }

    /// Adds to the output.
    pub fn part(&mut self, bytes: &[u8]) {
        if let Some(frame) = &self.frame
            && let Err(error) = frame.append(bytes)
        {
            note(&self.failure, &error);
        }
    }

    /// Ends the call.
    pub fn end(&mut self, error: bool, metadata: Option<Vec<u8>>) {
        let Some(frame) = self.frame.take() else { return };
        let ending = Ending { error, severity: Severity::Normal, metadata, duration_ns: None };
        if let Err(failed) = frame.finish_with(ending) {
            note(&self.failure, &failed);
        }
    }
}

/// A recorded run that answers the program of this process.
pub struct InProcessReplay {
    replayer: ProxyReplayer,
    mounts: Mounts,
}

impl std::fmt::Debug for InProcessReplay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InProcessReplay").finish_non_exhaustive()
    }
}

impl InProcessReplay {
    /// Answers from this run, which the proxy or a program itself has recorded.
    ///
    /// # Errors
    /// `Invalid` if the run was not recorded over HTTP; `Damaged` if it cannot be read.
    pub fn new(reader: &RunReader, mut options: ReplayOptions) -> annals::Result<Self> {
        let origin = Origin::from_reader(reader)?;
        let origin = origin.ok_or_else(|| invalid("this run was not recorded over HTTP"))?;
        options.secrets = known_secrets(&origin).0;
        let replayer = ProxyReplayer::new(reader.clone(), origin.key_bytes()?, options)?;
        Ok(Self { replayer, mounts: origin.mounts })
    }

    /// The recorded answer of a request; else the report of the divergence.
    ///
    /// # Errors
    /// `Invalid` for an address or method that is not one of HTTP; `Damaged` if the run cannot be read.
    pub fn answer(&self, request: &ClientRequest) -> annals::Result<Result<RecordedAnswer, String>> {
        self.replayer.take_answer(request.proxy_request(&self.mounts)?)
    }

    /// The recorded result of another call; else the report of the divergence.
    ///
    /// # Errors
    /// `Damaged` if the run cannot be read.
    pub fn result(&self, name: &str, input: &[u8]) -> annals::Result<Result<RecordedResult, String>> {
        self.replayer.take_result(name, input)
    }

    /// Whether the answer of this frame may end now: all answers that ended before it have ended.
    #[must_use]
    pub fn may_end(&self, seq: u32) -> bool {
        self.replayer.may_release(seq)
    }

    /// Says that the answer of this frame has ended.
    pub fn note_end(&self, seq: u32) {
        self.replayer.mark_released(seq);
    }

    /// Gives up the answers that this one waits for. That is a divergence.
    pub fn stop_waiting(&self, seq: u32) {
        self.replayer.give_up_earlier(seq);
    }

    /// The result of the replay.
    #[must_use]
    pub fn finish(&self) -> ReplaySummary {
        self.replayer.finish()
    }
}

/// The draws of a lane in a frame's metadata and output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneDraws {
    /// The thread or task, as the program's library names it.
    pub lane: String,
    /// A line `KIND VALUE` for each draw.
    pub lines: String,
}

/// The draws that a program's own library recorded, in the order of their frames.
///
/// # Errors
/// `Damaged` if a frame cannot be read, or is not UTF-8.
pub fn recorded_draws(reader: &RunReader) -> annals::Result<Vec<LaneDraws>> {
    #[derive(serde::Deserialize)]
    struct Metadata {
        draws: u64,
        lane: String,
    }
    let mut all = Vec::new();
    for seq in 1..=reader.info().frames {
        let info = reader.frame_info(seq)?;
        if info.component != Component::Nondet {
            continue;
        }
        let Ok(metadata) = serde_json::from_slice::<Metadata>(&info.metadata) else { continue };
        let lines = String::from_utf8(reader.frame(seq)?.output).ok();
        let lines = lines.filter(|lines| lines.lines().count() as u64 == metadata.draws);
        let lines = lines.ok_or_else(|| {
            Error::new(ErrorKind::Damaged, format!("frame {seq} does not hold its {} draws", metadata.draws))
        })?;
        all.push(LaneDraws { lane: metadata.lane, lines });
    }
    Ok(all)
}
