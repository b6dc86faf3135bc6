//! What the tests of this binary share: a store on a simulated disk, and calls as clients make them.

use std::sync::Arc;

use annals::io::sim::SimIo;
use annals::{ErrorKind, Namespace, Options, Store};
use annals_deliberation::{Caller, Deliberation, Method};
use serde_json::{Value, json};

pub(crate) const SECOND: u64 = 1_000_000_000;
/// 2026-02-08T12:00:00Z.
pub(crate) const NOON: u64 = 1_770_552_000 * SECOND;

/// A namespace of a store on a simulated disk.
pub(crate) struct Bench {
    pub(crate) sim: SimIo,
    pub(crate) store: Store,
    pub(crate) space: Namespace,
    pub(crate) decisions: Deliberation,
}

pub(crate) fn options(sim: &SimIo) -> Options {
    Options { io: Arc::new(sim.clone()), ..Options::default() }
}

impl Bench {
    pub(crate) fn new() -> Self {
        let sim = SimIo::new(1);
        sim.set_now_ns(NOON);
        Self::on(sim)
    }

    pub(crate) fn on(sim: SimIo) -> Self {
        let store = Store::open_with("s", options(&sim)).unwrap();
        let space = store.namespace("default").unwrap();
        let decisions = Deliberation::open(&space).unwrap();
        Self { sim, store, space, decisions }
    }

    /// The store opened again.
    pub(crate) fn opened_again(self) -> Self {
        let Self { sim, store, space, decisions } = self;
        drop((space, decisions));
        store.close().unwrap();
        Self::on(sim)
    }

    pub(crate) fn call_as(
        &self,
        caller: &Caller<'_>,
        method: Method,
        params: &Value,
    ) -> annals::Result<Value> {
        let answer = self.decisions.call(caller, method, &params.to_string())?;
        Ok(serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}")))
    }

    #[track_caller]
    pub(crate) fn call(&self, method: Method, params: Value) -> Value {
        self.call_as(&Caller::new("x"), method, &params).unwrap()
    }

    /// The error of a call: its kind and its text.
    #[track_caller]
    pub(crate) fn refused(&self, method: Method, params: Value) -> (ErrorKind, String) {
        let error = self.call_as(&Caller::new("x"), method, &params).unwrap_err();
        (error.kind(), error.to_string())
    }

    pub(crate) fn query(&self, text: &str) -> Value {
        self.call(Method::QueryDecisions, json!({ "query": text }))
    }

    /// Records a decision, and reads it back in the stored spelling.
    #[track_caller]
    pub(crate) fn record(&self, params: Value) -> (Value, Value) {
        let recorded = self.call(Method::RecordDecision, params);
        let read = self.read(recorded["id"].as_str().unwrap());
        (recorded, read)
    }

    /// A decision in the stored spelling, read without being captured.
    pub(crate) fn read(&self, id: &str) -> Value {
        let caller = Caller { tracks: false, ..Caller::new("x") };
        self.call_as(&caller, Method::GetDecision, &json!({ "id": id, "spelling": "snake_case" })).unwrap()
    }

    /// The keys of the trackers that hold inputs, with how many each holds.
    pub(crate) fn waiting(&self) -> Vec<(String, u64)> {
        let shown = self.call(Method::DebugTracker, json!({}));
        let sessions = shown["sessions"].as_array().unwrap();
        let one = |session: &Value| {
            (session["key"].as_str().unwrap().to_owned(), session["input_count"].as_u64().unwrap())
        };
        sessions.iter().map(one).collect()
    }
}

pub(crate) fn decision(text: &str) -> Value {
    json!({ "decision": text, "confidence": 0.85 })
}

/// Members of a decision beside those of [`decision`].
pub(crate) fn with(mut decision: Value, more: Value) -> Value {
    for (name, value) in more.as_object().unwrap() {
        decision[name] = value.clone();
    }
    decision
}

/// The texts of a member of each item.
pub(crate) fn texts(items: &Value, member: &str) -> Vec<String> {
    let items = items.as_array().map_or(&[][..], Vec::as_slice);
    items.iter().map(|item| item[member].as_str().unwrap_or_default().to_owned()).collect()
}
