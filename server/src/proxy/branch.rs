//! A fork that runs its program: frames before the fork point are answered from the parent. Later requests go
//! to the upstreams and are recorded into the child.
//!
//! While the shared frames last, each request must match the parent's. Any other request is a divergence,
//! because everything after it would follow a different history.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use annals::matching::Answer as Found;
use bytes::Bytes;
use hyper::Response;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use serde_json::Value;
use tokio::time::Instant;

use super::diverged::Diverged;
use super::listen::{Answer, Asked, Handler, Proxy, ProxyError, whole};
use super::record::{Recorder, http_of};
use super::replay::Replayer;
use crate::network::NetworkWatch;
use crate::place::Place;
use crate::providers::{Cost, set_tool_result};

/// What a fork changes from its fork point on.
#[derive(Debug, Clone, Default)]
pub struct Edits {
    /// The answer of the frame at the fork point, in place of the recorded one.
    pub response: Option<Bytes>,
    /// Values set in the JSON request of that frame, by path. They win over `set_all`.
    pub set: Vec<(Place, Value)>,
    /// Values set in this and every later JSON request, by path.
    pub set_all: Vec<(Place, Value)>,
    /// Tool results set in this and every later request, by call id.
    pub tool_results: Vec<(String, String)>,
}

impl Edits {
    /// Whether nothing is changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.response.is_none()
            && self.set.is_empty()
            && self.set_all.is_empty()
            && self.tool_results.is_empty()
    }

    /// A request's body with the edits applied; `named` marks the request of the frame at the fork point. A
    /// body that is not JSON, or lacks the paths, stays as it is. `applied` collects the edits that changed
    /// something.
    fn apply(&self, body: &Bytes, named: bool, applied: &Applied) -> Option<Bytes> {
        let set: &[_] = if named { &self.set } else { &[] };
        if set.is_empty() && self.set_all.is_empty() && self.tool_results.is_empty() {
            return None;
        }
        let mut value: Value = serde_json::from_slice(body).ok()?;
        let mut changed = false;
        for (at, (place, to)) in self.set_all.iter().enumerate() {
            changed |= applied.note(Edit::SetAll(at), place.set(&mut value, to));
        }
        for (at, (place, to)) in set.iter().enumerate() {
            changed |= applied.note(Edit::Set(at), place.set(&mut value, to));
        }
        for (at, (id, text)) in self.tool_results.iter().enumerate() {
            changed |= applied.note(Edit::ToolResult(at), set_tool_result(&mut value, id, text));
        }
        changed.then(|| serde_json::to_vec(&value).ok().map(Bytes::from)).flatten()
    }

    /// Each edit of requests.
    fn each(&self) -> impl Iterator<Item = Edit> {
        let set = (0..self.set.len()).map(Edit::Set);
        let set_all = (0..self.set_all.len()).map(Edit::SetAll);
        set.chain(set_all).chain((0..self.tool_results.len()).map(Edit::ToolResult))
    }
}

/// One edit of requests: its kind and its number within that kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Edit {
    /// Of [`ForkEdits::set`].
    Set(usize),
    /// Of [`ForkEdits::set_all`].
    SetAll(usize),
    /// Of [`ForkEdits::tool_results`].
    ToolResult(usize),
}

/// The edits that have changed a request.
#[derive(Debug, Default)]
struct Applied(Mutex<HashSet<Edit>>);

impl Applied {
    /// Returns `changed`.
    fn note(&self, edit: Edit, changed: bool) -> bool {
        if changed {
            self.edits().insert(edit);
        }
        changed
    }

    fn edits(&self) -> MutexGuard<'_, HashSet<Edit>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a fork behind the proxy.
pub(crate) struct Branch(Arc<Inner>);

struct Inner {
    parent: Replayer,
    child: Recorder,
    /// The first frame that is not shared with the parent.
    from: u32,
    edits: Edits,
    applied: Applied,
    /// Whether the request of frame `from`, or one in its place, has come.
    has_named: AtomicBool,
    /// Calls of the shared frames that have not been requested yet.
    left: AtomicU32,
    /// Keeps the program off the network while the shared frames last.
    network: OnceLock<Arc<NetworkWatch>>,
}

impl Branch {
    pub(crate) fn new(parent: Replayer, child: Recorder, from: u32, edits: Edits) -> Self {
        let left = AtomicU32::new(parent.calls_before(from));
        let (applied, has_named) = (Applied::default(), AtomicBool::new(false));
        let network = OnceLock::new();
        Self(Arc::new(Inner { parent, child, from, edits, applied, has_named, left, network }))
    }

    /// Sets the program's network watch, which opens once the shared frames are over.
    pub(crate) fn watched_by(&self, network: Arc<NetworkWatch>) {
        if self.left() == 0 {
            network.go_live();
        }
        let _ = self.0.network.set(network);
    }

    pub(crate) async fn listen(&self) -> Result<Proxy, ProxyError> {
        let proxy = Proxy::start(self.0.clone()).await?;
        self.0.child.listens_at(proxy.port());
        Ok(proxy)
    }

    /// Calls of the shared frames that were never requested.
    pub(crate) fn left(&self) -> u32 {
        self.0.left.load(Ordering::SeqCst)
    }

    pub(crate) fn child(&self) -> &Recorder {
        &self.0.child
    }

    /// The edits that changed no request.
    pub(crate) fn unapplied(&self) -> Vec<Edit> {
        let applied = self.0.applied.edits();
        self.0.edits.each().filter(|edit| !applied.contains(edit)).collect()
    }

    /// As [`ProxyReplayer::settle`].
    pub(crate) async fn settle(&self) {
        self.0.parent.settle().await;
    }

    /// How many calls were answered from the parent, and what they had cost.
    pub(crate) fn served(&self) -> (u32, Cost) {
        let receipt = self.0.parent.finish().receipt;
        let (_, cost) = self.0.parent.spent(|seq| seq < self.0.from && !receipt.missing.contains(&seq));
        (receipt.served, cost)
    }

    pub(crate) fn diverged(&self) -> Vec<Diverged> {
        self.0.parent.finish().diverged
    }
}

impl Handler for Inner {
    fn answer(self: Arc<Self>, mut asked: Asked) -> Answer {
        Box::pin(async move {
            self.parent.settle_path(&mut asked);
            let (http, _) = http_of(&asked);
            match self.parent.ask(&http.call(), &asked.body) {
                Ok(Found::Exact(seq) | Found::Matched(seq)) if seq < self.from => {
                    if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
                        self.go_live();
                    }
                    self.parent.serve(seq, Instant::now(), asked.wire).await
                }
                Ok(Found::Exact(seq) | Found::Matched(seq)) => {
                    // Its recorded answer will not go out, so no other answer may wait for it.
                    self.parent.give_up(seq);
                    match &self.edits.response {
                        Some(response) if seq == self.from => {
                            self.swapped(seq, &asked, response.clone()).await
                        }
                        _ => self.on(asked, Some(seq)).await,
                    }
                }
                Ok(Found::Diverged(_)) if self.left.load(Ordering::SeqCst) == 0 => self.on(asked, None).await,
                Ok(Found::Diverged(divergence)) => self.parent.diverge(divergence),
                Err(error) => self.parent.unreadable(&error),
            }
        })
    }
}

impl Inner {
    fn go_live(&self) {
        self.network.get().into_iter().for_each(|network| network.go_live());
    }

    /// Answers a request after the fork point live, and records it. `seq` is the recorded frame that it
    /// matches.
    async fn on(&self, asked: Asked, seq: Option<u32>) -> Response<super::listen::Outgoing> {
        self.go_live();
        // A first request after the prefix that matches no recorded frame still counts as the edited step.
        let stands_for = seq.is_none_or(|seq| seq == self.from);
        let named = stands_for && !self.has_named.swap(true, Ordering::SeqCst);
        let sent = self.edits.apply(&asked.body, named, &self.applied);
        self.child.exchange(asked, sent).await
    }

    /// Answers the frame at the fork point with the replacement instead of the recorded answer.
    async fn swapped(&self, seq: u32, asked: &Asked, body: Bytes) -> Response<super::listen::Outgoing> {
        let (status, mut headers) = self.parent.head(seq);
        // The replacement is a plain body, whatever the encoding of the recorded one.
        headers.remove(CONTENT_ENCODING);
        headers.remove(CONTENT_LENGTH);
        headers.insert(CONTENT_LENGTH, body.len().into());
        self.child.invented(asked, status, &headers, &body);
        let mut response = Response::new(whole(body));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn edits(set: &[(&str, Value)]) -> Edits {
        let set = set.iter().map(|(place, value)| (Place::parse(place).unwrap(), value.clone())).collect();
        Edits { set, ..Edits::default() }
    }

    #[test]
    fn places_are_set_where_they_are_or_can_be_made() {
        let body = Bytes::from(json!({"model":"a","messages":[{"role":"system","content":"x"}]}).to_string());
        let of = |set: &[(&str, Value)]| edits(set).apply(&body, true, &Applied::default());
        let sent =
            of(&[("$.model", json!("b")), ("$.messages[0].content", json!("y")), ("$['top p']", json!(1))]);
        let sent: Value = serde_json::from_slice(&sent.unwrap()).unwrap();
        assert_eq!(sent, json!({"model":"b","messages":[{"role":"system","content":"y"}],"top p":1}));
        assert_eq!(of(&[("$.messages[7].content", json!(1))]), None);
        assert_eq!(of(&[]), None);
        assert_eq!(
            edits(&[("$.model", json!("b"))]).apply(
                &Bytes::from_static(b"no json"),
                true,
                &Applied::default()
            ),
            None
        );
        assert_eq!(edits(&[("$.model", json!("b"))]).apply(&body, false, &Applied::default()), None);
    }
}
