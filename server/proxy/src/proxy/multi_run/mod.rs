//! One proxy for many runs at once: each request says which run it belongs to, in its path, in a header, or behind its key.
//!
//! Whoever listens hands over requests beneath [`RECORDED`] and [`REPLAYED`], their bodies not read yet. What a request says to annals (a token,
//! the run) is taken out of it first, so that neither a recording nor an upstream ever sees it. Then: who asks is let in or not, a run that is not
//! there is begun, and the exchange is recorded as any recorder's; or it is answered from the recording, and nothing goes out.
//!
//! Invariants: a run is ended only while no exchange of it is under way. Nobody learns whether there is a run before being let in. What replays
//! hold, and what bodies take of memory, is bounded.
//!
//! Layout: `said` (what a request says to annals), `runs` (what is asked of whoever keeps the runs, and what an open run knows of this), `recording`,
//! `replays`.
//!
//! Left out on purpose: named secrets, rules of one's own, answers of earlier runs and captured draws. `annals record` has them.

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

/// Runs that are begun or read at a time, each on a thread where waiting keeps no other request waiting.
const LONG_MAX: usize = 16;

/// Where a proxy of many runs sends requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpstreamOptions {
    /// `[PROVIDER=]URL`, each in place of the public address of a provider, or of all; a provider that is not known becomes a mount of that name.
    pub upstream: Vec<String>,
    /// If there are any, only these hosts are called.
    pub allow_host: Vec<String>,
}

impl UpstreamOptions {
    /// The mounts. The process's own environment is not asked: what clients are pointed at by it may be this very proxy.
    ///
    /// # Errors
    /// An address that cannot be an upstream, or may not be called.
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
    /// A proxy to these upstreams, which have to be checked ([`Upstreams::mounts`]).
    pub fn new(mounts: Mounts) -> Self {
        Self::within(mounts, BodyMemory::shared(), SharedReplays::room())
    }

    /// The same with so much memory for bodies, and for what replays hold of their runs.
    pub fn within(mounts: Mounts, bodies: BodyMemory, replayed: BodyMemory) -> Self {
        Self {
            mounts: Arc::new(mounts),
            common: Arc::new(RecorderPool::new(bodies)),
            replays: SharedReplays::new(replayed),
            slow_work: Semaphore::new(LONG_MAX),
        }
    }

    /// Where whoever hands over requests listens: an upstream that is this is not called.
    pub fn set_port(&self, port: u16) {
        self.common.set_port(port);
    }

    /// Answers a request whose path, as it came, begins with [`RECORDED`] or [`REPLAYED`]. `login` is given the token, if there was one, and what is
    /// wanted; it gives the runs that are to be had by that.
    ///
    /// Has to be called on a runtime of several threads. A connection's [`Wire`] among the request's extensions is used where it is there.
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
        // Whoever wants it takes it.
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

    /// Waits until all that went through is written. An exchange that goes on is waited for: whoever listens ends the connections first.
    pub async fn finish(&self) {
        self.common.finish().await;
    }

    /// Takes in the body of a request.
    ///
    /// # Errors
    /// 503 where there is no room for it.
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

    /// Does what may wait for the disk, without keeping other requests waiting.
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
