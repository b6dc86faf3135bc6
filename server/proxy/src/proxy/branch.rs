//! A fork that runs its program: frames before the fork point are answered from the parent. Later requests go
//! to the upstreams and are recorded into the child.
//!
//! While the shared frames last, each request must match the parent's. Any other request is a divergence,
//! because everything after it would follow a different history. Where the fork replaces the answer of a frame, this
//! lasts until its request has come: the answer belongs to that request and to no other.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use annals::replay::matching::MatchOutcome as Found;
use bytes::Bytes;
use hyper::Response;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use serde_json::Value;
use tokio::time::Instant;

use super::diverged::ReplayDivergence;
use super::listen::{AnswerFuture, ExchangeHandler, Proxy, ProxyRequest, whole_body_response};
use super::record::{ProxyRecorder, http_exchange};
use super::replay::ProxyReplayer;
use crate::error::ProxyError;
use crate::network::NetworkWatch;
use annals_policy::body_path::BodyPath;
use annals_policy::providers::{Cost, set_tool_result};

/// What a fork changes from its fork point on.
#[derive(Debug, Clone, Default)]
pub struct ForkEdits {
    /// The answer of the frame at the fork point, in place of the recorded one.
    pub response: Option<Bytes>,
    /// Values set in the JSON request of that frame, by path. They win over `set_all`.
    pub set: Vec<(BodyPath, Value)>,
    /// Values set in this and every later JSON request, by path.
    pub set_all: Vec<(BodyPath, Value)>,
    /// Tool results set in this and every later request, by call id.
    pub tool_results: Vec<(String, String)>,
}

impl ForkEdits {
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
    fn apply(&self, body: &Bytes, named: bool, applied: &AppliedEdits) -> Option<Bytes> {
        let set: &[_] = if named { &self.set } else { &[] };
        if set.is_empty() && self.set_all.is_empty() && self.tool_results.is_empty() {
            return None;
        }
        let mut value: Value = serde_json::from_slice(body).ok()?;
        let mut changed = false;
        for (at, (place, to)) in self.set_all.iter().enumerate() {
            changed |= applied.note(ForkEdit::SetAll(at), place.set(&mut value, to));
        }
        for (at, (place, to)) in set.iter().enumerate() {
            changed |= applied.note(ForkEdit::Set(at), place.set(&mut value, to));
        }
        for (at, (id, text)) in self.tool_results.iter().enumerate() {
            changed |= applied.note(ForkEdit::ToolResult(at), set_tool_result(&mut value, id, text));
        }
        changed.then(|| serde_json::to_vec(&value).ok().map(Bytes::from)).flatten()
    }

    fn each(&self) -> impl Iterator<Item = ForkEdit> {
        let response = self.response.iter().map(|_| ForkEdit::Response);
        let set = (0..self.set.len()).map(ForkEdit::Set);
        let set_all = (0..self.set_all.len()).map(ForkEdit::SetAll);
        response.chain(set).chain(set_all).chain((0..self.tool_results.len()).map(ForkEdit::ToolResult))
    }
}

/// One edit: its kind, and its number if there may be several of that kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ForkEdit {
    /// [`ForkEdits::response`].
    Response,
    /// Of [`ForkEdits::set`].
    Set(usize),
    /// Of [`ForkEdits::set_all`].
    SetAll(usize),
    /// Of [`ForkEdits::tool_results`].
    ToolResult(usize),
}

/// The edits that have changed something.
#[derive(Debug, Default)]
struct AppliedEdits(Mutex<HashSet<ForkEdit>>);

impl AppliedEdits {
    /// Returns `changed`.
    fn note(&self, edit: ForkEdit, changed: bool) -> bool {
        if changed {
            self.edits().insert(edit);
        }
        changed
    }

    fn edits(&self) -> MutexGuard<'_, HashSet<ForkEdit>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a request says that it is JSON and cannot be read as such: half of a surrogate pair, or an encoding.
fn is_unreadable_json(asked: &ProxyRequest) -> bool {
    let kind = asked.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.contains("json") && serde_json::from_slice::<Value>(&asked.body).is_err()
}

/// Runs a fork behind the proxy.
pub(crate) struct ForkProxy(Arc<ForkProxyState>);

struct ForkProxyState {
    parent: ProxyReplayer,
    child: ProxyRecorder,
    /// The first frame that is not shared with the parent.
    from: u32,
    edits: ForkEdits,
    applied: AppliedEdits,
    /// Number of requests of which JSON was announced that are none, so that no edit could be made.
    unreadable: AtomicU32,
    /// Whether the request of frame `from`, or one in its place, has come.
    has_edited_request: AtomicBool,
    /// Calls of the shared frames that have not been requested yet.
    unasked: AtomicU32,
    /// Keeps the program off the network while the shared frames last.
    network: OnceLock<Arc<NetworkWatch>>,
}

impl ForkProxy {
    pub(crate) fn new(parent: ProxyReplayer, child: ProxyRecorder, from: u32, edits: ForkEdits) -> Self {
        let left = AtomicU32::new(parent.count_calls_before(from));
        let (applied, has_named) = (AppliedEdits::default(), AtomicBool::new(false));
        let network = OnceLock::new();
        Self(Arc::new(ForkProxyState {
            parent,
            child,
            from,
            edits,
            applied,
            unreadable: AtomicU32::new(0),
            has_edited_request: has_named,
            unasked: left,
            network,
        }))
    }

    /// Sets the program's network watch, which opens once the shared frames are over.
    pub(crate) fn set_network(&self, network: Arc<NetworkWatch>) {
        if self.unasked_calls() == 0 {
            network.go_live();
        }
        let _ = self.0.network.set(network);
    }

    pub(crate) async fn listen(&self) -> Result<Proxy, ProxyError> {
        let proxy = Proxy::start(self.0.clone()).await?;
        self.0.child.set_port(proxy.port());
        Ok(proxy)
    }

    /// Calls of the shared frames that were never requested.
    pub(crate) fn unasked_calls(&self) -> u32 {
        self.0.unasked.load(Ordering::SeqCst)
    }

    pub(crate) fn child(&self) -> &ProxyRecorder {
        &self.0.child
    }

    /// Number of requests that went on as they came, because they are no JSON.
    pub(crate) fn unreadable(&self) -> u32 {
        self.0.unreadable.load(Ordering::SeqCst)
    }

    /// The edits that changed nothing.
    pub(crate) fn unapplied(&self) -> Vec<ForkEdit> {
        let applied = self.0.applied.edits();
        self.0.edits.each().filter(|edit| !applied.contains(edit)).collect()
    }

    /// Answers that were replaced: 0 or 1.
    pub(crate) fn replaced(&self) -> u32 {
        u32::from(self.0.applied.edits().contains(&ForkEdit::Response))
    }

    /// As [`ProxyReplayer::settle`].
    pub(crate) async fn settle(&self) {
        self.0.parent.settle().await;
    }

    /// How many calls were answered from the parent, and what they had cost.
    pub(crate) fn served(&self) -> (u32, Cost) {
        let receipt = self.0.parent.finish().receipt;
        let (_, cost) = self.0.parent.usage_of(|seq| seq < self.0.from && !receipt.missing.contains(&seq));
        (receipt.served, cost)
    }

    pub(crate) fn diverged(&self) -> Vec<ReplayDivergence> {
        self.0.parent.finish().diverged
    }
}

impl ExchangeHandler for ForkProxyState {
    fn note_refused(&self) {
        self.child.note_refused();
    }

    fn answer(self: Arc<Self>, mut asked: ProxyRequest) -> AnswerFuture {
        Box::pin(async move {
            self.parent.settle_path(&mut asked);
            let (http, _) = http_exchange(&asked);
            match self.parent.ask(&http.call(), &asked.body) {
                Ok(Found::Exact(seq) | Found::Matched(seq)) if seq < self.from => {
                    if self.unasked.fetch_sub(1, Ordering::SeqCst) == 1 {
                        self.go_live();
                    }
                    self.parent.serve(seq, Instant::now(), asked.wire).await
                }
                Ok(Found::Exact(seq) | Found::Matched(seq)) => {
                    // Its recorded answer will not go out, so no other answer may wait for it.
                    self.parent.give_up(seq);
                    match &self.edits.response {
                        Some(response) if seq == self.from => {
                            self.applied.note(ForkEdit::Response, true);
                            self.answer_replaced(seq, &asked, response.clone()).await
                        }
                        _ => self.answer_live(asked, Some(seq)).await,
                    }
                }
                Ok(Found::Diverged(_)) if self.is_past_the_point() => self.answer_live(asked, None).await,
                Ok(Found::Diverged(divergence)) => self.parent.diverge(divergence),
                Err(error) => self.parent.unreadable(&error),
            }
        })
    }
}

impl ForkProxyState {
    /// Whether the shared frames, and the one whose answer is replaced, have been asked for.
    fn is_past_the_point(&self) -> bool {
        let waits = self.edits.response.is_some() && !self.applied.edits().contains(&ForkEdit::Response);
        !waits && self.unasked.load(Ordering::SeqCst) == 0
    }

    fn go_live(&self) {
        self.network.get().into_iter().for_each(|network| network.go_live());
    }

    /// Answers a request after the fork point live, and records it. `seq` is the recorded frame that it
    /// matches.
    async fn answer_live(
        &self,
        asked: ProxyRequest,
        seq: Option<u32>,
    ) -> Response<super::listen::ResponseBody> {
        self.go_live();
        // A first request after the prefix that matches no recorded frame still counts as the edited step.
        let stands_for = seq.is_none_or(|seq| seq == self.from);
        let named = stands_for && !self.has_edited_request.swap(true, Ordering::SeqCst);
        let sent = self.edits.apply(&asked.body, named, &self.applied);
        let is_edited = !self.edits.set_all.is_empty() || (named && !self.edits.set.is_empty());
        if is_edited && sent.is_none() && is_unreadable_json(&asked) {
            self.unreadable.fetch_add(1, Ordering::SeqCst);
        }
        self.child.exchange(asked, sent).await
    }

    /// Answers the frame at the fork point with the replacement instead of the recorded answer.
    async fn answer_replaced(
        &self,
        seq: u32,
        asked: &ProxyRequest,
        body: Bytes,
    ) -> Response<super::listen::ResponseBody> {
        let (status, mut headers) = self.parent.head(seq);
        // The replacement is a plain body, whatever the encoding of the recorded one.
        headers.remove(CONTENT_ENCODING);
        headers.remove(CONTENT_LENGTH);
        headers.insert(CONTENT_LENGTH, body.len().into());
        self.child.record_local_answer(asked, status, &headers, &body);
        let mut response = Response::new(whole_body_response(body));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn edits(set: &[(&str, Value)]) -> ForkEdits {
        let set = set.iter().map(|(place, value)| (BodyPath::parse(place).unwrap(), value.clone())).collect();
        ForkEdits { set, ..ForkEdits::default() }
    }

    #[test]
    fn edits_set_existing_and_new_places() {
        let body = Bytes::from(json!({"model":"a","messages":[{"role":"system","content":"x"}]}).to_string());
        let of = |set: &[(&str, Value)]| edits(set).apply(&body, true, &AppliedEdits::default());
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
                &AppliedEdits::default()
            ),
            None
        );
        assert_eq!(edits(&[("$.model", json!("b"))]).apply(&body, false, &AppliedEdits::default()), None);
    }
}
