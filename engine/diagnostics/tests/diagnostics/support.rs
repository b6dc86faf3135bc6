//! What the tests of this binary share.

use std::sync::Arc;

use annals::io::sim::SimIo;
use annals::{Options, Store};
use annals_diagnostics::{Diagnostics, SessionDiagnostic, SessionReport};
use serde_json::{Value, json};

/// A store on a simulated disk, with its diagnostics.
pub(crate) struct Bench {
    pub(crate) sim: SimIo,
    pub(crate) store: Store,
    pub(crate) diagnostics: Diagnostics,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let sim = SimIo::new(1);
        sim.set_now_ns(1_764_000_000_000_000_000);
        Self::on(sim)
    }

    pub(crate) fn on(sim: SimIo) -> Self {
        let options = Options { io: Arc::new(sim.clone()), ..Options::default() };
        let store = Store::open_with("s", options).unwrap();
        let diagnostics = Diagnostics::open(&store.namespace("default").unwrap()).unwrap();
        Self { sim, store, diagnostics }
    }

    /// The same store, closed and opened again.
    pub(crate) fn restarted(self) -> Self {
        let Self { sim, store, diagnostics } = self;
        drop(diagnostics);
        store.close().unwrap();
        Self::on(sim)
    }

    pub(crate) fn record(&self, report: &Value) -> SessionReport {
        self.diagnostics.record(&session(report), None).unwrap()
    }
}

pub(crate) fn session(report: &Value) -> SessionDiagnostic {
    SessionDiagnostic::parse(&report.to_string()).unwrap()
}

/// A report of a session with an outcome and observations.
pub(crate) fn ended(id: &str, outcome: &str, observations: &[&str]) -> Value {
    json!({ "sessionId": id, "outcome": outcome, "injectedObservationIds": observations })
}

/// The example of the source.
pub(crate) fn example() -> Value {
    json!({
        "sessionId": "session-abc", "outcome": "rejected",
        "injectedObservationIds": ["obs-1", "obs-2", "obs-3"],
        "injectedGraphEntityIds": ["node-1"], "injectedGraphEdgeKeys": [],
        "toolCallSummary": [{ "tool": "vitest", "file": "src/foo.test.ts", "success": false }],
        "filesModified": ["src/foo.ts"],
        "errorsEncountered": [{ "message": "2 tests failed", "tool": "vitest", "recoverable": false }],
        "orgId": "org-1", "projectId": "proj-1",
    })
}
