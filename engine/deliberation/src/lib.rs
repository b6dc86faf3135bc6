//! Decisions of agents, and how they were reached.
//!
//! A *decision* is a JSON object; its *deliberation* holds the inputs and the steps that led to it. Queries,
//! guardrail checks, look-ups and statistics are captured as inputs of the caller's next decision, without any
//! change of the caller. Rules, shapes and texts are those of CSTP and its feature F023, read from its sources.
//!
//! Everything is an ordinary record of a namespace: decisions in `annals.decisions`, captured inputs in
//! `annals.deliberation.inputs`, notes of consumptions in `annals.deliberation.consumed`, rules in
//! `annals.guardrails`, switches in `annals.deliberation.settings`, and decisions by run and frame in
//! `annals.deliberation.frames`.
//!
//! Layout: `calls` (the methods, JSON in and out), `record`, `query` (what they do), `decision`, `trace` (the
//! two shapes), `tracker` (captured inputs), `search` (the index in memory), `guardrails`, `statistics`,
//! `spikes`, `json` and `times`.
//!
//! Invariants: an input becomes part of at most one decision, in the commit that stores that decision. An input
//! of one token never becomes part of a decision of another token. An acknowledged call's input survives the
//! death of the process.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

mod calls;
mod decision;
mod guardrails;
mod json;
mod query;
mod record;
mod search;
mod settings;
mod spikes;
mod statistics;
mod times;
mod trace;
mod tracker;

use std::sync::Arc;

use annals::kv::{History, ScanRange};
use annals::{Durability, Error, Keyspace, KvBatch, Namespace, Result};
use annals_store::kv::core::LayerState;
use annals_store::log::segments::lock;
use annals_store::sync::{Mutex, MutexGuard, rank};

pub use calls::{Caller, Method, TextEmbedder};
pub use decision::{CATEGORIES, MENTAL_STATES, OUTCOMES, STAKES};
pub use times::parse_iso;
pub use trace::{REASON_TYPES, Spelling};

use decision::StoredDecision;
use search::DecisionIndex;
use tracker::{TrackerSpaces, Trackers};

const DECISIONS: &str = "annals.decisions";
const INPUTS: &str = "annals.deliberation.inputs";
const CONSUMED: &str = "annals.deliberation.consumed";
const FRAMES: &str = "annals.deliberation.frames";
const SETTINGS: &str = "annals.deliberation.settings";
const GUARDRAILS: &str = "annals.guardrails";

/// The decisions of a namespace. Cheap to clone; all handles of an open store share what they know.
#[derive(Debug, Clone)]
pub struct Deliberation {
    space: Namespace,
    decisions: Keyspace,
    trackers: TrackerSpaces,
    frames: Keyspace,
    settings: Keyspace,
    guardrails: Keyspace,
    state: Arc<SharedState>,
    /// Decisions wait for the disk, whatever the store's options say.
    on_disk: bool,
}

#[derive(Debug)]
struct SharedState(Mutex<State, { rank::DELIBERATION }>);

/// What is known without reading the store. `None` until it is needed, and after a failed write.
#[derive(Debug, Default)]
struct State {
    trackers: Option<Trackers>,
    index: Option<DecisionIndex>,
}

impl Deliberation {
    /// The decisions of this namespace.
    ///
    /// # Errors
    /// `NotFound` in a store that is open for reading and holds none; `Unavailable`, `Poisoned`.
    pub fn open(space: &Namespace) -> Result<Self> {
        let keyspace = |name: &str| space.keyspace(name, History::Latest);
        let decisions = keyspace(DECISIONS)?;
        let mut states = lock(&decisions.core().layer_states);
        states.retain(|known| known.state.strong_count() > 0);
        let is_own =
            |known: &&LayerState| known.namespace == decisions.namespace() && known.layer == DECISIONS;
        let known = states.iter().find(is_own).and_then(|known| known.state.upgrade());
        let state = match known.and_then(|known| known.downcast::<SharedState>().ok()) {
            Some(state) => state,
            None => {
                let state = Arc::new(SharedState(Mutex::new(State::default())));
                let weak = Arc::downgrade(&state);
                states.push(LayerState { namespace: decisions.namespace(), layer: DECISIONS, state: weak });
                state
            }
        };
        drop(states);
        Ok(Self {
            space: space.clone(),
            trackers: TrackerSpaces { inputs: keyspace(INPUTS)?, consumed: keyspace(CONSUMED)? },
            frames: keyspace(FRAMES)?,
            settings: keyspace(SETTINGS)?,
            guardrails: keyspace(GUARDRAILS)?,
            decisions,
            state,
            on_disk: false,
        })
    }

    /// These decisions, with writes that are on disk when they return, even if the store's options ask for less.
    /// Captured inputs always survive the death of the process; they are on disk with the decision.
    #[must_use]
    pub fn with_disk_durability(self) -> Self {
        Self { on_disk: true, ..self }
    }

    fn now_ns(&self) -> u64 {
        self.decisions.core().io.now_ns()
    }

    /// Eight random hexadecimal digits.
    fn random_id(&self) -> Result<String> {
        let mut bytes = [0; 4];
        self.decisions.core().io.random(&mut bytes).map_err(Error::from)?;
        Ok(annals_text::hex::encode(&bytes))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state.0)
    }

    fn durability(&self) -> Durability {
        if self.on_disk { Durability::Disk } else { self.decisions.core().options.durability }
    }

    fn commit(&self, batch: KvBatch) -> Result<()> {
        batch.submit_inline(self.durability())?.wait().map(drop)
    }

    fn stored(&self, id: &str) -> Result<Option<String>> {
        let Some(text) = self.decisions.get(id.as_bytes())? else { return Ok(None) };
        String::from_utf8(text).map(Some).map_err(stored_error)
    }
}

impl State {
    /// The captured inputs, read at first use.
    fn trackers(&mut self, spaces: &TrackerSpaces) -> Result<&mut Trackers> {
        match &mut self.trackers {
            Some(trackers) => Ok(trackers),
            empty => Ok(empty.insert(Trackers::load(spaces)?)),
        }
    }

    /// The index, built at first use.
    fn index(&mut self, decisions: &Keyspace) -> Result<&mut DecisionIndex> {
        if self.index.as_ref().is_some_and(DecisionIndex::is_stale) {
            self.index = None;
        }
        match &mut self.index {
            Some(index) => Ok(index),
            empty => {
                let mut index = DecisionIndex::default();
                for found in decisions.scan(ScanRange::all()) {
                    index.add(&StoredDecision::parse(&found?.1)?);
                }
                Ok(empty.insert(index))
            }
        }
    }
}

/// The error for a stored value that is not in the form that this layer writes.
fn stored_error(error: impl std::fmt::Display) -> Error {
    Error::bug(format!("a stored value of decisions is malformed: {error}"))
}
