//! A replay that continues live. Requests are answered from a recording until the first one without a
//! recorded answer. From then on all requests go to the upstreams and are recorded into a new run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use annals::replay::matching::MatchOutcome as Found;
use tokio::sync::RwLock;
use tokio::time::Instant;

use super::diverged::ReplayDivergence;
use super::listen::{AnswerFuture, ExchangeHandler, Proxy, ProxyRequest};
use super::record::{ProxyRecorder, http_exchange};
use super::replay::{ProxyReplayer, ReplaySummary};
use crate::error::ProxyError;

/// What the child takes over from its parent when it begins.
#[derive(Debug)]
pub(crate) struct ServedCalls {
    /// Answered calls of the parent, by frame. The value is the actual request if it differed from the
    /// recorded bytes.
    pub(crate) calls: BTreeMap<u32, Option<ProxyRequest>>,
    /// Calls that were never requested.
    pub(crate) missing: Vec<u32>,
}

/// Begins the child.
pub(crate) type BeginChildFn = Box<dyn Fn(ServedCalls) -> Result<ProxyRecorder, String> + Send + Sync>;

/// A replay that continues live.
pub(crate) struct OnwardProxy(Arc<OnwardProxyState>);

struct OnwardProxyState {
    parent: ProxyReplayer,
    begin: BeginChildFn,
    /// Locked while a request is looked up, so that none is answered from the parent once the child has
    /// begun.
    child: RwLock<Option<Arc<ProxyRecorder>>>,
    served: Mutex<BTreeMap<u32, Option<ProxyRequest>>>,
    port: OnceLock<u16>,
}

impl OnwardProxy {
    pub(crate) fn new(parent: ProxyReplayer, begin: BeginChildFn) -> Self {
        let (child, served, port) = (RwLock::default(), Mutex::default(), OnceLock::new());
        Self(Arc::new(OnwardProxyState { parent, begin, child, served, port }))
    }

    pub(crate) async fn listen(&self) -> Result<Proxy, ProxyError> {
        let proxy = Proxy::start(self.0.clone()).await?;
        let _ = self.0.port.set(proxy.port());
        Ok(proxy)
    }

    /// The replay's result, and the recorder of the part after it.
    pub(crate) async fn finish(&self) -> (ReplaySummary, Option<Arc<ProxyRecorder>>) {
        self.0.parent.settle().await;
        (self.0.parent.finish(), self.0.child.read().await.clone())
    }
}

impl ExchangeHandler for OnwardProxyState {
    fn note_refused(&self) {
        // Without a child nothing is recorded yet.
        if let Ok(child) = self.child.try_read() {
            child.iter().for_each(|child| child.note_refused());
        }
    }

    fn answer(self: Arc<Self>, mut asked: ProxyRequest) -> AnswerFuture {
        Box::pin(async move {
            self.parent.settle_path(&mut asked);
            let began = Instant::now();
            let child = self.child.read().await;
            if let Some(child) = child.clone() {
                return child.exchange(asked, None).await;
            }
            let found = self.parent.ask(&http_exchange(&asked).0.call(), &asked.body);
            match found {
                Ok(Found::Exact(seq)) => {
                    self.note_served(seq, None);
                    drop(child);
                    self.parent.serve(seq, began, asked.wire).await
                }
                Ok(Found::Matched(seq)) => {
                    let wire = asked.wire.clone();
                    self.note_served(seq, Some(asked));
                    drop(child);
                    self.parent.serve(seq, began, wire).await
                }
                Ok(Found::Diverged(divergence)) => {
                    drop(child);
                    let answer = self.parent.diverge(divergence);
                    match self.child().await {
                        Ok(child) => child.exchange(asked, None).await,
                        Err(why) => {
                            self.parent.note(ReplayDivergence::Unrecorded(why));
                            answer
                        }
                    }
                }
                Err(error) => self.parent.unreadable(&error),
            }
        })
    }
}

impl OnwardProxyState {
    fn note_served(&self, seq: u32, asked: Option<ProxyRequest>) {
        self.served.lock().unwrap_or_else(PoisonError::into_inner).insert(seq, asked);
    }

    /// The child's recorder; begins the child if needed.
    async fn child(&self) -> Result<Arc<ProxyRecorder>, String> {
        let mut child = self.child.write().await;
        if let Some(child) = &*child {
            return Ok(child.clone());
        }
        let calls = std::mem::take(&mut *self.served.lock().unwrap_or_else(PoisonError::into_inner));
        let missing = self.parent.finish().receipt.missing;
        // Their answers will not go out, so no other answer may wait for them.
        for seq in &missing {
            self.parent.give_up(*seq);
        }
        let served = ServedCalls { calls, missing };
        let begun = Arc::new(tokio::task::block_in_place(|| (self.begin)(served))?);
        if let Some(port) = self.port.get() {
            begun.set_port(*port);
        }
        *child = Some(begun.clone());
        Ok(begun)
    }
}
