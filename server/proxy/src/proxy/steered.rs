//! A program that runs again by a plan: which of its calls get the recorded answer, which get another one, and
//! which go to their upstream.
//!
//! Calls before the plan's first changed frame are answered as in a replay: another request there is a
//! divergence. From that frame on, the plan decides, and each exchange is recorded into the child.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use annals::replay::matching::MatchOutcome as Found;
use bytes::Bytes;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderMap};
use hyper::{Response, StatusCode};
use tokio::time::Instant;

use super::diverged::ReplayDivergence;
use super::listen::{AnswerFuture, ExchangeHandler, Proxy, ProxyRequest, ResponseBody, whole_body_response};
use super::record::{ProxyRecorder, http_exchange};
use super::replay::ProxyReplayer;
use crate::error::ProxyError;
use crate::network::NetworkWatch;

/// Changes a request's body; `None` leaves it as it is.
pub type BodyEdit = Arc<dyn Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync>;

/// An answer in place of a recorded one.
#[derive(Debug, Clone)]
pub struct GivenAnswer {
    /// The whole body, without a content coding.
    pub body: Bytes,
    /// Its status; `None`: the recorded one.
    pub status: Option<u16>,
    /// Its content type; `None`: the recorded one.
    pub content_type: Option<String>,
}

/// What happens to one recorded call.
#[derive(Clone)]
pub enum CallAction {
    /// The upstream is asked, with an edited request if an edit is given.
    Ask(Option<BodyEdit>),
    /// The program gets this answer.
    Answer(GivenAnswer),
}

impl std::fmt::Debug for CallAction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ask(edit) => f.debug_tuple("Ask").field(&edit.is_some()).finish(),
            Self::Answer(answer) => f.debug_tuple("Answer").field(&answer.body.len()).finish(),
        }
    }
}

/// What happens to calls that the plan does not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherCalls {
    /// A request that equals a recorded one gets its recorded answer; any other goes to its upstream.
    RecordedIfUnchanged,
    /// The recorded answers are given by position, although requests differ. Calls beyond the recording go to
    /// their upstream.
    RecordedByPosition,
}

/// How a program's calls are answered when it runs again.
#[derive(Clone)]
pub struct RerunPlan {
    /// The first frame that the run does not share with its parent.
    pub from: u32,
    /// The frames whose calls are changed; all from `from` on.
    pub actions: BTreeMap<u32, CallAction>,
    /// The other calls from `from` on.
    pub others: OtherCalls,
    /// Steps whose answer is not held, although [`OtherCalls::RecordedByPosition`] is set: asked again if their
    /// request changed.
    pub free: BTreeSet<u32>,
    /// Changes every request that goes to an upstream without an action of its own.
    pub later: Option<BodyEdit>,
}

impl RerunPlan {
    /// The run again as it was recorded; `frames` is the number of its frames.
    #[must_use]
    pub fn unchanged(frames: u32) -> Self {
        let (actions, others) = (BTreeMap::new(), OtherCalls::RecordedIfUnchanged);
        Self { from: frames + 1, actions, others, free: BTreeSet::new(), later: None }
    }
}

impl std::fmt::Debug for RerunPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RerunPlan")
            .field("from", &self.from)
            .field("actions", &self.actions)
            .field("others", &self.others)
            .finish_non_exhaustive()
    }
}

/// Runs a program behind the proxy by a plan.
pub(crate) struct SteeredProxy(Arc<SteeredProxyState>);

struct SteeredProxyState {
    parent: ProxyReplayer,
    child: ProxyRecorder,
    plan: RerunPlan,
    /// Calls of the shared frames that have not been requested yet.
    unasked: AtomicU32,
    /// Calls that went to an upstream.
    live: AtomicU32,
    /// The planned frames whose requests came.
    reached: Mutex<BTreeSet<u32>>,
    /// The network opens once the shared frames are over.
    network: OnceLock<Arc<NetworkWatch>>,
}

impl SteeredProxy {
    pub(crate) fn new(parent: ProxyReplayer, child: ProxyRecorder, plan: RerunPlan) -> Self {
        let unasked = AtomicU32::new(parent.count_calls_before(plan.from));
        let (live, reached, network) = (AtomicU32::new(0), Mutex::default(), OnceLock::new());
        Self(Arc::new(SteeredProxyState { parent, child, plan, unasked, live, reached, network }))
    }

    pub(crate) fn set_network(&self, network: Arc<NetworkWatch>) {
        // A plan without an action never goes live.
        if self.unasked_calls() == 0 && !self.0.plan.actions.is_empty() {
            network.go_live();
        }
        let _ = self.0.network.set(network);
    }

    pub(crate) async fn listen(&self) -> Result<Proxy, ProxyError> {
        let proxy = Proxy::start(self.0.clone()).await?;
        self.0.child.set_port(proxy.port());
        Ok(proxy)
    }

    pub(crate) fn child(&self) -> &ProxyRecorder {
        &self.0.child
    }

    /// Calls of the shared frames that were never requested.
    pub(crate) fn unasked_calls(&self) -> u32 {
        self.0.unasked.load(Ordering::SeqCst)
    }

    /// Calls that went to an upstream.
    pub(crate) fn live_calls(&self) -> u32 {
        self.0.live.load(Ordering::SeqCst)
    }

    /// The planned frames whose requests came.
    pub(crate) fn reached(&self) -> BTreeSet<u32> {
        self.0.reached.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn diverged(&self) -> Vec<ReplayDivergence> {
        self.0.parent.finish().diverged
    }
}

impl ExchangeHandler for SteeredProxyState {
    fn answer(self: Arc<Self>, mut asked: ProxyRequest) -> AnswerFuture {
        Box::pin(async move {
            self.parent.settle_path(&mut asked);
            let (http, _) = http_exchange(&asked);
            let call = http.call();
            if self.unasked.load(Ordering::SeqCst) > 0 || self.plan.actions.is_empty() {
                match self.parent.ask(&call, &asked.body) {
                    Ok(Found::Exact(seq) | Found::Matched(seq)) if seq < self.plan.from => {
                        if self.unasked.fetch_sub(1, Ordering::SeqCst) == 1 && !self.plan.actions.is_empty() {
                            self.go_live();
                        }
                        return self.parent.serve(seq, Instant::now(), asked.wire).await;
                    }
                    // A call that overlapped the last shared ones.
                    Ok(Found::Exact(seq) | Found::Matched(seq)) => return self.step(seq, true, asked).await,
                    Ok(Found::Diverged(divergence)) => return self.parent.diverge(divergence),
                    Err(error) => return self.parent.unreadable(&error),
                }
            }
            match self.parent.take(&call, &asked.body) {
                Ok(Some(seq)) => self.step(seq, true, asked).await,
                Ok(None) => match self.parent.take_next(&call) {
                    Some(seq) => self.step(seq, false, asked).await,
                    None => self.ask_upstream(asked, self.plan.later.as_ref()).await,
                },
                Err(error) => self.parent.unreadable(&error),
            }
        })
    }
}

impl SteeredProxyState {
    fn go_live(&self) {
        self.network.get().into_iter().for_each(|network| network.go_live());
    }

    /// Answers the call that stands at a recorded frame; `same` says that its request is the recorded one.
    async fn step(&self, seq: u32, same: bool, asked: ProxyRequest) -> Response<ResponseBody> {
        // Its recorded answer does not go out through the replay, so no other answer may wait for it.
        self.parent.give_up(seq);
        let is_held = self.plan.others == OtherCalls::RecordedByPosition && !self.plan.free.contains(&seq);
        match self.plan.actions.get(&seq) {
            Some(action) => {
                self.reached.lock().unwrap_or_else(PoisonError::into_inner).insert(seq);
                match action {
                    CallAction::Ask(edit) => self.ask_upstream(asked, edit.as_ref()).await,
                    CallAction::Answer(given) => self.give(seq, &asked, given),
                }
            }
            None if same || is_held => self.give_recorded(seq, &asked),
            None => self.ask_upstream(asked, self.plan.later.as_ref()).await,
        }
    }

    async fn ask_upstream(&self, asked: ProxyRequest, edit: Option<&BodyEdit>) -> Response<ResponseBody> {
        self.go_live();
        self.live.fetch_add(1, Ordering::SeqCst);
        let sent = edit.and_then(|edit| edit(&asked.body)).map(Bytes::from);
        self.child.exchange(asked, sent).await
    }

    /// The recorded answer, which also becomes a frame of the child.
    fn give_recorded(&self, seq: u32, asked: &ProxyRequest) -> Response<ResponseBody> {
        match self.parent.output(seq) {
            Ok(body) => {
                let (status, headers) = self.parent.head(seq);
                self.respond(asked, status, headers, body)
            }
            Err(error) => self.parent.unreadable(&error),
        }
    }

    fn give(&self, seq: u32, asked: &ProxyRequest, given: &GivenAnswer) -> Response<ResponseBody> {
        let (recorded, mut headers) = self.parent.head(seq);
        let status = given.status.and_then(|status| StatusCode::from_u16(status).ok()).unwrap_or(recorded);
        headers.remove(CONTENT_ENCODING);
        headers.remove(CONTENT_LENGTH);
        headers.insert(CONTENT_LENGTH, given.body.len().into());
        if let Some(Ok(kind)) = given.content_type.as_deref().map(str::parse) {
            headers.insert(hyper::header::CONTENT_TYPE, kind);
        }
        self.respond(asked, status, headers, given.body.clone())
    }

    fn respond(
        &self,
        asked: &ProxyRequest,
        status: StatusCode,
        headers: HeaderMap,
        body: Bytes,
    ) -> Response<ResponseBody> {
        self.child.record_local_answer(asked, status, &headers, &body);
        let mut response = Response::new(whole_body_response(body));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }
}
