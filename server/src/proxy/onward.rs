//! A replay that continues live. Requests are answered from a recording until the first one without a
//! recorded answer. From then on all requests go to the upstreams and are recorded into a new run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use annals::matching::Answer as Found;
use tokio::sync::RwLock;
use tokio::time::Instant;

use super::diverged::Diverged;
use super::listen::{Answer, Asked, Handler, Proxy, ProxyError};
use super::record::{Recorder, http_of};
use super::replay::{Replayed, Replayer};

/// What the child takes over from its parent when it begins.
#[derive(Debug)]
pub(crate) struct Served {
    /// Answered calls of the parent, by frame. The value is the actual request if it differed from the
    /// recorded bytes.
    pub(crate) calls: BTreeMap<u32, Option<Asked>>,
    /// Calls that were never requested.
    pub(crate) missing: Vec<u32>,
}

/// Begins the child.
pub(crate) type Begin = Box<dyn Fn(Served) -> Result<Recorder, String> + Send + Sync>;

/// A replay that continues live.
pub(crate) struct Onward(Arc<Inner>);

struct Inner {
    parent: Replayer,
    begin: Begin,
    /// Locked while a request is looked up, so that none is answered from the parent once the child has
    /// begun.
    child: RwLock<Option<Arc<Recorder>>>,
    served: Mutex<BTreeMap<u32, Option<Asked>>>,
    port: OnceLock<u16>,
}

impl Onward {
    pub(crate) fn new(parent: Replayer, begin: Begin) -> Self {
        let (child, served, port) = (RwLock::default(), Mutex::default(), OnceLock::new());
        Self(Arc::new(Inner { parent, begin, child, served, port }))
    }

    pub(crate) async fn listen(&self) -> Result<Proxy, ProxyError> {
        let proxy = Proxy::start(self.0.clone()).await?;
        let _ = self.0.port.set(proxy.port());
        Ok(proxy)
    }

    /// The replay's result, and the recorder of the part after it.
    pub(crate) async fn finish(&self) -> (Replayed, Option<Arc<Recorder>>) {
        self.0.parent.settle().await;
        (self.0.parent.finish(), self.0.child.read().await.clone())
    }
}

impl Handler for Inner {
    fn answer(self: Arc<Self>, mut asked: Asked) -> Answer {
        Box::pin(async move {
            self.parent.settle_path(&mut asked);
            let began = Instant::now();
            let child = self.child.read().await;
            if let Some(child) = child.clone() {
                return child.exchange(asked, None).await;
            }
            let found = self.parent.ask(&http_of(&asked).0.call(), &asked.body);
            match found {
                Ok(Found::Exact(seq)) => {
                    self.serves(seq, None);
                    drop(child);
                    self.parent.serve(seq, began, asked.wire).await
                }
                Ok(Found::Matched(seq)) => {
                    let wire = asked.wire.clone();
                    self.serves(seq, Some(asked));
                    drop(child);
                    self.parent.serve(seq, began, wire).await
                }
                Ok(Found::Diverged(divergence)) => {
                    drop(child);
                    let answer = self.parent.diverge(divergence);
                    match self.child().await {
                        Ok(child) => child.exchange(asked, None).await,
                        Err(why) => {
                            self.parent.note(Diverged::Unrecorded(why));
                            answer
                        }
                    }
                }
                Err(error) => self.parent.unreadable(&error),
            }
        })
    }
}

impl Inner {
    fn serves(&self, seq: u32, asked: Option<Asked>) {
        self.served.lock().unwrap_or_else(PoisonError::into_inner).insert(seq, asked);
    }

    /// The child's recorder; begins the child if needed.
    async fn child(&self) -> Result<Arc<Recorder>, String> {
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
        let served = Served { calls, missing };
        let begun = Arc::new(tokio::task::block_in_place(|| (self.begin)(served))?);
        if let Some(port) = self.port.get() {
            begun.listens_at(*port);
        }
        *child = Some(begun.clone());
        Ok(begun)
    }
}
