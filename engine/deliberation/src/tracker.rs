//! Inputs that were captured for decisions to come.
//!
//! An input stands in the keyspace `annals.deliberation.inputs`. Its key is the owner (the token's name), a
//! zero byte, the tracker's key, a zero byte, and a number that counts up, in eight bytes, big-endian. The
//! value is JSON. An input ends at a time in it; the sweep deletes what has ended. The last consumptions stand
//! in `annals.deliberation.consumed`, a ring of [`CONSUMED_MAX`] keys.
//!
//! Invariant: memory holds what the keyspace holds, or what a queued batch makes of it.

use std::collections::{BTreeMap, VecDeque};

use annals::kv::ScanRange;
use annals::{Keyspace, KvBatch, Result};
use serde::{Deserialize, Serialize};

/// How many consumptions are remembered.
pub(crate) const CONSUMED_MAX: u64 = 50;
/// A sweep runs with one of so many captured inputs.
const SWEEP_EVERY: u64 = 50;
/// Default life of an input in milliseconds.
pub(crate) const INPUT_TTL_MS: u64 = 300_000;
/// How much of a text the note of a consumption keeps.
const NOTED_CHARS: usize = 200;
/// The text of a consumption that found only ended inputs.
pub(crate) const ALL_EXPIRED: &str = "[all inputs expired at consume time]";

/// What an input is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum InputKind {
    Query,
    Guardrail,
    Lookup,
    Stats,
    Reasoning,
}

impl InputKind {
    pub(crate) fn prefix(self) -> char {
        match self {
            Self::Query => 'q',
            Self::Guardrail => 'g',
            Self::Lookup => 'l',
            Self::Stats => 's',
            Self::Reasoning => 'r',
        }
    }

    pub(crate) fn source(self) -> &'static str {
        match self {
            Self::Query => "cstp:queryDecisions",
            Self::Guardrail => "cstp:checkGuardrails",
            Self::Lookup => "cstp:getDecision",
            Self::Stats => "cstp:getReasonStats",
            Self::Reasoning => "cstp:recordThought",
        }
    }

    /// The type of the step that is made of an input.
    pub(crate) fn step_type(self) -> &'static str {
        match self {
            Self::Query | Self::Lookup => "analysis",
            Self::Guardrail => "constraint",
            Self::Stats => "empirical",
            Self::Reasoning => "reasoning",
        }
    }
}

/// A decision that a query found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RelatedDecision {
    pub(crate) id: String,
    pub(crate) summary: String,
    pub(crate) distance: f64,
}

/// A captured input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TrackedInput {
    pub(crate) id: String,
    pub(crate) kind: InputKind,
    pub(crate) text: String,
    pub(crate) source: String,
    pub(crate) time_ns: u64,
    pub(crate) expires_ns: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) related: Vec<RelatedDecision>,
    /// Its number; part of the key.
    #[serde(skip)]
    pub(crate) number: u64,
}

/// Whose inputs a tracker holds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TrackerKey {
    /// The token's name.
    pub(crate) owner: String,
    /// As the source has it, for example `agent:a`.
    pub(crate) name: String,
}

impl TrackerKey {
    fn input_key(&self, number: u64) -> Vec<u8> {
        [self.owner.as_bytes(), &[0], self.name.as_bytes(), &[0], &number.to_be_bytes()].concat()
    }

    fn from_input_key(key: &[u8]) -> Option<(Self, u64)> {
        let (head, number) = key.split_last_chunk::<8>()?;
        let head = std::str::from_utf8(head.strip_suffix(&[0])?).ok()?;
        let (owner, name) = head.split_once('\0')?;
        Some((Self { owner: owner.to_owned(), name: name.to_owned() }, u64::from_be_bytes(*number)))
    }
}

/// A past consumption.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ConsumedRecord {
    pub(crate) owner: String,
    pub(crate) keys: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) agent_id: Option<String>,
    pub(crate) decision_id: String,
    pub(crate) inputs_count: usize,
    pub(crate) texts: Vec<String>,
    pub(crate) consumed_at: String,
    /// Counts up; its key is the rest by [`CONSUMED_MAX`].
    pub(crate) number: u64,
}

/// The keyspaces of a tracker.
#[derive(Debug, Clone)]
pub(crate) struct TrackerSpaces {
    pub(crate) inputs: Keyspace,
    pub(crate) consumed: Keyspace,
}

/// All captured inputs of a namespace.
#[derive(Debug, Default)]
pub(crate) struct Trackers {
    sessions: BTreeMap<TrackerKey, Vec<TrackedInput>>,
    next_number: u64,
    captured: u64,
    consumed: VecDeque<ConsumedRecord>,
    next_consumed: u64,
}

/// What a decision consumes.
#[derive(Debug, Default)]
pub(crate) struct Consumption {
    /// In the order of their capture.
    pub(crate) inputs: Vec<TrackedInput>,
    /// All inputs that go, ended ones too.
    taken: Vec<(TrackerKey, u64)>,
    keys: Vec<String>,
}

impl Trackers {
    /// Reads what the store holds.
    pub(crate) fn load(spaces: &TrackerSpaces) -> Result<Self> {
        let mut trackers = Self::default();
        // After a failed write, inputs of other callers may be queued and not visible yet.
        let core = spaces.inputs.core();
        if core.is_writer() && !core.is_poisoned() {
            core.log()?.queue.barrier(core.index.visible())?;
        }
        for found in spaces.inputs.scan(ScanRange::all()) {
            let (key, value) = found?;
            let Some((key, number)) = TrackerKey::from_input_key(&key) else { continue };
            let mut input: TrackedInput = serde_json::from_slice(&value).map_err(crate::stored_error)?;
            input.number = number;
            trackers.next_number = trackers.next_number.max(number + 1);
            trackers.sessions.entry(key).or_default().push(input);
        }
        let mut consumed: Vec<ConsumedRecord> = Vec::new();
        for found in spaces.consumed.scan(ScanRange::all()) {
            consumed.push(serde_json::from_slice(&found?.1).map_err(crate::stored_error)?);
        }
        consumed.sort_by_key(|record| record.number);
        trackers.next_consumed = consumed.last().map_or(0, |last| last.number + 1);
        trackers.consumed = consumed.into();
        Ok(trackers)
    }

    /// Adds an input, and to a batch what stores it. Now and then, also deletes inputs that have ended.
    pub(crate) fn capture(
        &mut self,
        key: &TrackerKey,
        mut input: TrackedInput,
        spaces: &TrackerSpaces,
        batch: &mut KvBatch,
    ) {
        self.captured += 1;
        if self.captured.is_multiple_of(SWEEP_EVERY) {
            self.sweep(input.time_ns, spaces, batch);
        }
        input.number = self.next_number;
        self.next_number += 1;
        batch.put(&spaces.inputs, &key.input_key(input.number), crate::json::to_json(&input).into_bytes());
        self.sessions.entry(key.clone()).or_default().push(input);
    }

    /// Deletes the inputs that have ended. Returns how many.
    pub(crate) fn sweep(&mut self, now_ns: u64, spaces: &TrackerSpaces, batch: &mut KvBatch) -> usize {
        let mut ended = 0;
        for (key, inputs) in &mut self.sessions {
            inputs.retain(|input| {
                let is_live = input.expires_ns >= now_ns;
                if !is_live {
                    batch.delete(&spaces.inputs, &key.input_key(input.number));
                    ended += 1;
                }
                is_live
            });
        }
        self.sessions.retain(|_, inputs| !inputs.is_empty());
        ended
    }

    /// What a decision would consume under these keys. Nothing is changed.
    pub(crate) fn select(&self, keys: &[TrackerKey], now_ns: u64) -> Consumption {
        let mut found = Consumption::default();
        for key in keys {
            let Some(inputs) = self.sessions.get(key).filter(|inputs| !inputs.is_empty()) else { continue };
            found.keys.push(key.name.clone());
            found.taken.extend(inputs.iter().map(|input| (key.clone(), input.number)));
            found.inputs.extend(inputs.iter().filter(|input| input.expires_ns >= now_ns).cloned());
        }
        found.inputs.sort_by_key(|input| input.number);
        found
    }

    /// Removes what a decision consumes, and notes it. Adds both to the batch that stores the decision.
    pub(crate) fn consume(
        &mut self,
        consumption: &Consumption,
        mut note: ConsumedRecord,
        spaces: &TrackerSpaces,
        batch: &mut KvBatch,
    ) {
        if consumption.taken.is_empty() {
            return;
        }
        for (key, number) in &consumption.taken {
            batch.delete(&spaces.inputs, &key.input_key(*number));
            if let Some(inputs) = self.sessions.get_mut(key) {
                inputs.retain(|input| input.number != *number);
                if inputs.is_empty() {
                    self.sessions.remove(key);
                }
            }
        }
        note.keys.clone_from(&consumption.keys);
        note.inputs_count = consumption.inputs.len();
        note.texts = match consumption.inputs.as_slice() {
            [] => vec![ALL_EXPIRED.to_owned()],
            inputs => inputs.iter().map(|input| input.text.chars().take(NOTED_CHARS).collect()).collect(),
        };
        note.number = self.next_consumed;
        self.next_consumed += 1;
        let key = (note.number % CONSUMED_MAX).to_be_bytes();
        batch.put(&spaces.consumed, &key, crate::json::to_json(&note).into_bytes());
        self.consumed.push_back(note);
        while self.consumed.len() as u64 > CONSUMED_MAX {
            self.consumed.pop_front();
        }
    }

    /// The trackers of an owner, and its consumptions, the newest first.
    pub(crate) fn of_owner<'a>(
        &'a self,
        owner: &'a str,
    ) -> (
        impl Iterator<Item = (&'a str, &'a [TrackedInput])> + 'a,
        impl Iterator<Item = &'a ConsumedRecord> + 'a,
    ) {
        let sessions = self.sessions.iter().filter(move |(key, _)| key.owner == owner);
        (
            sessions.map(|(key, inputs)| (key.name.as_str(), inputs.as_slice())),
            self.consumed.iter().rev().filter(move |record| record.owner == owner),
        )
    }
}

/// The decisions that queries found before: each once, at its least distance, the nearest first.
pub(crate) fn related_decisions(inputs: &[TrackedInput]) -> Vec<RelatedDecision> {
    let mut related: Vec<RelatedDecision> = Vec::new();
    for found in inputs.iter().flat_map(|input| &input.related) {
        match related.iter_mut().find(|known| known.id == found.id) {
            Some(known) if found.distance < known.distance => *known = found.clone(),
            Some(_) => {}
            None => related.push(found.clone()),
        }
    }
    related.sort_by(|one, other| one.distance.total_cmp(&other.distance).then_with(|| one.id.cmp(&other.id)));
    related
}
