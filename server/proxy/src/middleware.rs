//! A program's own HTTP client recorded and replayed from within, as a middleware of reqwest.
//!
//! ```no_run
//! # async fn agent(space: annals::Namespace) -> Result<(), Box<dyn std::error::Error>> {
//! use annals::{RunSpec, Status};
//! use annals_proxy::middleware::ClientRecording;
//! use reqwest_middleware::ClientBuilder;
//!
//! let recording = ClientRecording::begin(&space, RunSpec::new("agent"))?;
//! let client = ClientBuilder::new(reqwest::Client::new()).with(recording.layer()).build();
//! client.get("https://example.org").send().await?;
//! recording.end(Status::Ok).await?;
//! # Ok(())
//! # }
//! ```
//!
//! With [`ClientReplay`] instead, every request gets its recorded answer and nothing is sent. The frames are
//! those of the proxy; a request's mount is its host. Request bodies are read whole before they are sent;
//! answers pass part by part.

use std::sync::Arc;

use annals::replay::matching::MatchOutcome as Found;
use annals::{Namespace, Run, RunReader, RunSpec, Status};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::http::{Extensions, response};
use reqwest::{Body, Request, Response, ResponseBuilderExt};
use reqwest_middleware::{Error, Middleware, Next, Result};
use tokio::time::Instant;

use crate::error::SessionError;
use crate::in_process::host;
use crate::mounts::Mounts;
use crate::origin::{Origin, random_key};
use crate::program::Program;
use crate::proxy::{
    ProxyRecorder, ProxyReplayer, ProxyRequest, RecordingSummary, ReplayDivergence, ReplayOptions,
    ReplaySummary, http_exchange,
};

type MiddlewareFuture<'a> = std::pin::Pin<Box<dyn Future<Output = Result<Response>> + Send + 'a>>;

/// A run that records a client's requests.
#[derive(Debug)]
pub struct ClientRecording {
    run: Arc<Run>,
    recorder: Arc<ProxyRecorder>,
}

impl ClientRecording {
    /// Begins a run.
    ///
    /// # Errors
    /// As [`Namespace::begin_run`].
    pub fn begin(space: &Namespace, spec: RunSpec) -> std::result::Result<Self, SessionError> {
        let (key, mounts) = (random_key()?, Mounts::default());
        let own = Program { argv: Vec::new(), directory: None, environment: Vec::new() };
        let origin = Origin::new(&own, &mounts, &[], &key);
        let run = Arc::new(space.begin_run(spec.metadata(origin.metadata()))?);
        let recorder = Arc::new(ProxyRecorder::new(run.clone(), key, mounts, None)?);
        Ok(Self { run, recorder })
    }

    /// The middleware for any number of clients.
    pub fn layer(&self) -> impl Middleware + use<> {
        let recorder = self.recorder.clone();
        layer(move |request, extensions, next| {
            Box::pin(record_request(recorder.clone(), request, extensions, next))
        })
    }

    /// The run, for frames other than requests.
    #[must_use]
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Ends the run after all open answers were read or dropped, and returns the summary.
    ///
    /// # Errors
    /// As [`Run::end`].
    pub async fn end(self, status: Status) -> annals::Result<RecordingSummary> {
        let recorded = self.recorder.finish().await;
        self.run.end(status)?;
        Ok(recorded)
    }
}

async fn record_request(
    recorder: Arc<ProxyRecorder>,
    mut request: Request,
    extensions: &mut Extensions,
    next: Next<'_>,
) -> Result<Response> {
    let (asked, url) = (proxy_request(&mut request).await?, request.url().clone());
    let taping = recorder.begin(&asked);
    match next.run(request, extensions).await {
        Ok(response) => {
            let mut head = response::Builder::new().status(response.status()).version(response.version());
            head = response.headers().iter().fold(head, |head, (name, value)| head.header(name, value));
            let body = Body::wrap(taping.into_recorded_answer(&asked.method, response));
            built(head.url(url).body(body))
        }
        Err(error) => {
            // The program gets its own error; the recording gets an answer that describes it, like the
            // proxy's.
            taping.record_refusal(hyper::StatusCode::BAD_GATEWAY, crate::upstream::error_chain(&error)).await;
            Err(error)
        }
    }
}

/// A recorded run that answers a client's requests.
#[derive(Clone)]
pub struct ClientReplay(Arc<ProxyReplayer>);

impl std::fmt::Debug for ClientReplay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replaying").finish_non_exhaustive()
    }
}

impl ClientReplay {
    /// Answers from this run.
    ///
    /// # Errors
    /// `Invalid` if the run was not recorded over HTTP; `Damaged` if it cannot be read.
    pub fn new(reader: &RunReader, options: ReplayOptions) -> annals::Result<Self> {
        let origin = Origin::from_reader(reader)?;
        let origin = origin.ok_or_else(|| {
            annals::Error::new(annals::ErrorKind::Invalid, "this run was not recorded over HTTP")
        })?;
        Ok(Self(Arc::new(ProxyReplayer::new(reader.clone(), origin.key_bytes()?, options)?)))
    }

    /// The middleware, used instead of [`ClientRecording::layer`].
    pub fn layer(&self) -> impl Middleware + use<> {
        let replayer = self.0.clone();
        layer(move |request, _, _| Box::pin(replay_request(replayer.clone(), request)))
    }

    /// The result of the replay. Its receipt says whether it was faithful.
    #[must_use]
    pub fn finish(&self) -> ReplaySummary {
        self.0.finish()
    }
}

async fn replay_request(replayer: Arc<ProxyReplayer>, mut request: Request) -> Result<Response> {
    let (began, asked, url) = (Instant::now(), proxy_request(&mut request).await?, request.url().clone());
    let served = match replayer.ask(&http_exchange(&asked).0.call(), &asked.body) {
        Ok(Found::Exact(seq) | Found::Matched(seq)) => {
            let served = replayer.serve(seq, began, None).await;
            if let Some(why) = replayer.broken_reason(seq) {
                return Err(failed(why));
            }
            served
        }
        Ok(Found::Diverged(divergence)) => {
            let why = ReplayDivergence::Request(divergence.clone()).to_string();
            let _ = replayer.diverge(divergence);
            return Err(failed(why));
        }
        Err(error) => {
            let _ = replayer.unreadable(&error);
            return Err(failed(error.to_string()));
        }
    };
    let (parts, body) = served.into_parts();
    let mut head = response::Builder::new().status(parts.status);
    head = parts.headers.iter().fold(head, |head, (name, value)| head.header(name, value));
    built(head.url(url).body(Body::wrap(body)))
}

/// Wraps a function as a middleware.
fn layer<F>(of: F) -> F
where
    F: for<'a> Fn(Request, &'a mut Extensions, Next<'a>) -> MiddlewareFuture<'a> + Send + Sync + 'static,
{
    of
}

fn failed(why: String) -> Error {
    Error::middleware(std::io::Error::other(why))
}

fn built(response: hyper::http::Result<hyper::Response<Body>>) -> Result<Response> {
    response.map(Response::from).map_err(|error| failed(error.to_string()))
}

/// Converts a request to the proxy's form. Its body is read whole and put back.
async fn proxy_request(request: &mut Request) -> Result<ProxyRequest> {
    let body = match request.body_mut().take() {
        Some(body) => body.collect().await.map_err(Error::Reqwest)?.to_bytes(),
        None => Bytes::new(),
    };
    if !body.is_empty() {
        *request.body_mut() = Some(Body::from(body.clone()));
    }
    let url = request.url();
    Ok(ProxyRequest {
        mount: host(url),
        method: request.method().clone(),
        path: url.path().to_owned(),
        query: url.query().map(str::to_owned),
        headers: request.headers().clone(),
        body,
        upload: None,
        refusal: None,
        wire: None,
        arrived: None,
    })
}
