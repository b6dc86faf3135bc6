//! Diagnostics of agents' sessions: one row for each session that was given observations from memory, and what
//! follows from it. Rules and shapes are those of Rensei's memory diagnostics.
//!
//! One call at the end of a session ([`Diagnostics::record`]) finds the failure category by ordered rules,
//! writes the row, and moves the weights of the session's observations, graph nodes and graph edges. Everything
//! of one session is one batch: it is applied whole or not at all, and once for each session id.
//!
//! ```
//! use annals_diagnostics::{Diagnostics, LessonFilter};
//! # let dir = tempfile::tempdir()?;
//! # let store = annals::Store::open(dir.path().join("store"))?;
//! let diagnostics = Diagnostics::open(&store.namespace("default")?)?;
//! let report = r#"{ "sessionId": "s-1", "outcome": "rejected", "injectedObservationIds": ["obs-1"],
//!   "toolCallSummary": [{ "tool": "vitest", "success": false }], "filesModified": ["a.ts"] }"#;
//! let done = diagnostics.record_session(report, None); // never fails: `failures` says what went wrong
//! assert!(done.failures.is_empty());
//! assert_eq!(diagnostics.weight("obs-1")?, 0.85);
//! assert_eq!(diagnostics.distribution(&LessonFilter::default())?.test_failure, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Layout: `session` (the shape of a session), `category` (the rules), `weights` (the formulas), `keys` and
//! `counts` (what is kept beside the rows), `changes` (one batch that reads its own writes), `record`,
//! `expiry`, `queries`, `retrieval` (what a session was given, and in which order), `recall` (weights in searches
//! of the memory).
//!
//! Invariants:
//! - The counts equal those of a full pass over the rows ([`Diagnostics::recount`]), in every commit.
//! - A session changes weights once, however often it is reported.
//! - A row's time is the clock's. No rule depends on the order of times, so a clock may go backwards.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

mod category;
mod changes;
mod counts;
mod expiry;
mod keys;
mod queries;
mod recall;
mod record;
mod retrieval;
mod session;
mod weights;

pub use category::{FailureCategory, Outcome, TEST_RUNNERS, classify};
pub use counts::CategoryCounts;
pub use queries::{LessonFilter, Recount};
pub use recall::{RecallWeights, observation_id};
pub use record::{GraphFeedback, SessionReport, SessionResult, TimedSession};
pub use retrieval::{AdjustedCandidate, Candidate, Injection};
pub use session::{EdgeKey, IDS_MAX, SESSION_BYTES_MAX, SessionDiagnostic, SessionError, ToolCall};
pub use weights::{
    ALPHA_FAILURE, ALPHA_GRAPH, ALPHA_SUCCESS, AuditEvent, FIRST_GRAPH_WEIGHT, FIRST_WEIGHT, GraphChange,
    WeightChange, moving_average,
};

use annals::kv::{History, Keyspace};
use annals::{Namespace, Result};
use annals_store::log::segments::lock;

/// The diagnostics of a namespace.
#[derive(Debug, Clone)]
pub struct Diagnostics {
    space: Namespace,
    keyspaces: Keyspaces,
    /// Every write waits for the disk, whatever the store's options say.
    on_disk: bool,
}

/// The keyspaces, by what they hold.
#[derive(Debug, Clone)]
struct Keyspaces {
    /// Rows, by session id.
    rows: Keyspace,
    /// Counts and indexes (`keys`).
    counts: Keyspace,
    /// Weights of observations, graph nodes and graph edges.
    weights: Keyspace,
    /// Changes of weights, oldest first.
    history: Keyspace,
    /// Audit events, oldest first.
    audit: Keyspace,
    /// What each session was given.
    injections: Keyspace,
    /// Candidates of each session's retrievals.
    retrievals: Keyspace,
}

impl Diagnostics {
    /// The diagnostics of this namespace.
    ///
    /// # Errors
    /// `NotFound` if there are none yet in a store open for reading; `Unavailable`, `Poisoned`.
    pub fn open(space: &Namespace) -> Result<Self> {
        let keyspace = |name: &str| space.keyspace(name, History::Latest);
        let keyspaces = Keyspaces {
            rows: keyspace("annals.diagnostics")?,
            counts: keyspace("annals.diagnostics.counts")?,
            weights: keyspace("annals.diagnostics.weights")?,
            history: keyspace("annals.diagnostics.history")?,
            audit: keyspace("annals.diagnostics.audit")?,
            injections: keyspace("annals.diagnostics.injections")?,
            retrievals: keyspace("annals.diagnostics.retrievals")?,
        };
        Ok(Self { space: space.clone(), keyspaces, on_disk: false })
    }

    /// The diagnostics of this namespace; `None` if no session was ever recorded in it. Writes nothing.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn find(space: &Namespace) -> Result<Option<Self>> {
        match space.find_keyspace("annals.diagnostics.retrievals")? {
            Some(_) => Self::open(space).map(Some),
            None => Ok(None),
        }
    }

    /// These diagnostics, with writes that are on disk when they return, even if the store's options ask for
    /// less.
    #[must_use]
    pub fn with_disk_durability(self) -> Self {
        Self { on_disk: true, ..self }
    }

    /// The time by the store's clock, in milliseconds since 1970.
    fn now_ms(&self) -> u64 {
        self.keyspaces.rows.core().io.now_ns() / 1_000_000
    }

    /// Whether this handle can write: the store is open for writing, and no write has failed.
    fn can_write(&self) -> bool {
        let core = self.keyspaces.rows.core();
        core.is_writer() && !core.is_poisoned()
    }

    /// Lock of every read-modify-write in this store.
    fn lock_changes(&self) -> impl Sized + '_ {
        lock(&self.keyspaces.rows.core().memory_lock)
    }
}
