//! One proxy for many runs at once. Each request names its run in its path, in a header, or behind its key.
//!
//! The listener hands over requests below [`RECORDED`] and [`REPLAYED`] with unread bodies. Everything that a
//! request says to annals (a token, the run) is removed first, so that no recording and no upstream sees it.
//! Then the caller is authorised, a missing run is begun, and the exchange is recorded. A replay answers from
//! the recording and sends nothing.
//!
//! Invariants: a run ends only while none of its exchanges is under way. No caller learns whether a run
//! exists before it is authorised. The memory of replays and of bodies is limited.
//!
//! Layout: `directives` (what a request says to annals), `runs` (access to the runs, and the proxy's state in
//! an open run), `recording`, `replays`.
//!
//! Left out on purpose: named secrets, user rules, cached answers and captured draws. `annals record` has
//! them.

mod directives;
mod recording;
mod replays;
mod runs;

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Body;
use hyper::{Request, Response, StatusCode};
use serde::Deserialize;
use tokio::sync::Semaphore;

pub use self::directives::{ProxyAction, RECORDED, REPLAYED};
use self::replays::SharedReplays;
pub use self::runs::{RequestRefusal, RunAccess, RunEndError, RunProxyState, WritableRun, ended_message};
use super::body_memory::BodyMemory;
use super::connection::ConnectionProgress;
use super::listen::{BoxError, IncomingBody, ProxyRequest, ResponseBody, discard_body};
use super::record::RecorderPool;
use crate::mounts::{MountError, Mounts};
use crate::upstream::UpstreamGuard;
use crate::variables::Variable;

/// Maximum number of runs that are begun or read at a time. Each blocks a thread of its own, never other
/// requests.
const LONG_MAX: usize = 16;

/// Where a proxy of many runs sends requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpstreamOptions {
    /// `[PROVIDER=]URL`: replaces the public address of one provider, or of all. An unknown provider becomes
    /// a mount of that name.
    pub upstream: Vec<String>,
    /// If not empty, only these hosts are called.
    pub allow_host: Vec<String>,
}

impl UpstreamOptions {
    /// The mounts. The environment of this process is ignored, because it may point clients to this very
    /// proxy.
    ///
    /// # Errors
    /// An address that cannot be an upstream, or is not allowed.
    pub fn mounts(&self) -> Result<Mounts, MountError> {
        let pairs: Vec<_> = self.upstream.iter().map(|text| Mounts::parse_upstream(text)).collect();
        let mounts = Mounts::new(&Variable::known(), &pairs, |_| None)?;
        UpstreamGuard { allowed: self.allow_host.clone() }.check(&mounts)?;
        Ok(mounts)
    }
}

/// See the module.
#[derive(Debug)]
pub struct MultiRunProxy {
    mounts: Arc<Mounts>,
    common: Arc<RecorderPool>,
    replays: SharedReplays,
    slow_work: Semaphore,
}

impl MultiRunProxy {
    /// A proxy to these upstreams, already checked by [`UpstreamOptions::mounts`].
    pub fn new(mounts: Mounts) -> Self {
        Self::within(mounts, BodyMemory::shared(), SharedReplays::room())
    }

    /// As [`Self::new`], with these limits on memory for bodies and for replayed runs.
    pub fn within(mounts: Mounts, bodies: BodyMemory, replayed: BodyMemory) -> Self {
        Self {
            mounts: Arc::new(mounts),
            common: Arc::new(RecorderPool::new(bodies)),
            replays: SharedReplays::new(replayed),
            slow_work: Semaphore::new(LONG_MAX),
        }
    }

    /// Sets the port of the listener: an upstream with this address is not called.
    pub fn set_port(&self, port: u16) {
        self.common.set_port(port);
    }

    /// Answers a request whose original path begins with [`RECORDED`] or [`REPLAYED`]. `login` gets the
    /// token, if any, and the requested action; it returns the accessible runs.
    ///
    /// Must be called on a multi-threaded runtime. Uses the `ConnectionProgress` among the request's
    /// extensions, if there is one.
    pub async fn answer<R: RunAccess, B>(
        &self,
        login: impl FnOnce(Option<&str>, ProxyAction) -> Result<R, RequestRefusal>,
        request: Request<B>,
    ) -> Response<ResponseBody>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (mut parts, body) = request.into_parts();
        // Taken by the branch that needs it.
        let mut body = Some(body.map_err(Into::into).boxed_unsync());
        let answered = async {
            let said = directives::take(&mut parts, &self.mounts)?;
            let runs = login(said.token.as_deref(), said.wants)?;
            let asked = ProxyRequest {
                mount: said.mount,
                method: parts.method,
                path: said.path,
                query: parts.uri.query().map(str::to_owned),
                headers: parts.headers,
                body: Bytes::new(),
                upload: None,
                refusal: None,
                wire: parts.extensions.remove::<Arc<ConnectionProgress>>(),
                arrived: None,
            };
            match said.wants {
                ProxyAction::Record => self.record(&runs, (&said.run, said.tags), asked, &mut body).await,
                ProxyAction::Replay => self.replay(&runs, said.run, said.session, asked, &mut body).await,
            }
        };
        let answered = answered.await;
        if let Some(unwanted) = body {
            discard_body(unwanted).await;
        }
        answered.unwrap_or_else(RequestRefusal::into_response)
    }

    /// Waits until everything recorded so far is written. Also waits for running exchanges, so the listener
    /// must end its connections first.
    pub async fn finish(&self) {
        self.common.finish().await;
    }

    /// Reads the body of a request.
    ///
    /// # Errors
    /// 503 if there is no memory for it.
    async fn take_body(
        &self,
        asked: &mut ProxyRequest,
        body: &mut Option<IncomingBody>,
        takes_coming: bool,
    ) -> Result<(), Box<Response<ResponseBody>>> {
        match body.take() {
            Some(body) => asked.take_body(body, self.common.room(), takes_coming).await,
            None => Ok(()),
        }
    }

    /// Runs blocking work without delaying other requests.
    async fn run_blocking<T>(
        &self,
        work: impl FnOnce() -> Result<T, RequestRefusal>,
    ) -> Result<T, RequestRefusal> {
        let place = self.slow_work.acquire().await;
        let _place =
            place.map_err(|_| RequestRefusal::new(StatusCode::SERVICE_UNAVAILABLE, "the daemon ends"))?;
        tokio::task::block_in_place(work)
    }
}
