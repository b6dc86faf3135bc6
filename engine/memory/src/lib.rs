//! The memory of agents: entries that hold a decision's evidence as JSON, kept byte for byte and found by
//! their content.
//!
//! An entry belongs to an [`Identity`] and has an id there. Shapes and rules are those of agentfootprint
//! 9.62.0's `MemoryStore`, read from its sources. Entries stand in the keyspace `annals.memory`. The key is
//! the identity's name, a zero byte and the id. Access counts, feedback, signatures and word cards stand in
//! keyspaces of their own, so that reading an entry never rewrites it. Vectors stand in the vector index
//! (`vector_search`). A query's settings can be kept under a name (`definition`).
//!
//! Invariant: an entry of one tenant is never given to another tenant. An entry of one identity is given to
//! another identity of its tenant only if a query asks for all conversations.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

mod definition;
mod embedder;
mod entry;
mod frame_texts;
mod identity;
mod js_value;
mod operations;
mod postings;
mod projection;
mod prompt_text;
#[cfg(test)]
mod race_tests;
mod rank;
mod recall;
mod run_entry;
mod run_recall;
mod training;
mod vector_search;
mod words;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use definition::Definition;
pub use embedder::Embedder;
pub use entry::MemoryEntry;
pub use frame_texts::{FrameGaps, FrameText, FrameTextBatch, FrameTextHit, FrameTexts, RunMark, text_share};
pub use identity::Identity;
pub use projection::{Projection, render};
pub use prompt_text::prompt_text;
pub use recall::SnapshotOptions;
pub use run_recall::{RUN_QUESTIONS_MAX, entry_shares};
pub use training::TrainingFormat;
pub use words::WordEmbedder;

use annals::Durability;
use annals::Namespace;
use annals::{Error, ErrorKind, Result};
use annals::{
    Keyspace, KvBatch,
    kv::{History, ScanRange},
};

/// Places at which a unit test does something in between, as another thread could.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RacePoint {
    /// The tail of an index was read, to be made a part.
    TailRead,
    /// Cards or their keys were read, to be numbered anew.
    CardsRead,
}

#[cfg(test)]
use race_tests::reach;

#[cfg(not(test))]
const fn reach(_: RacePoint) {}

/// Default number of entries in a page of [`Memory::list`].
pub const LIST_DEFAULT: usize = 100;
/// Largest number of entries in a page of [`Memory::list`].
pub const LIST_MAX: usize = 1000;
/// A page of [`Memory::list`] ends with the entry that reaches this size.
const LIST_BYTES_MAX: usize = 64 << 20;
/// Default minimum score for vectors that callers compute.
pub const THRESHOLD: f32 = 0.7;

/// The keyspace of entries. The other keyspaces of a memory have names that begin with it.
const ENTRIES: &str = "annals.memory";
/// Ends of the names of the keyspaces of word cards, access statistics and feedback.
const WORD_CARDS: &str = ".words";
const ACCESS_STATS: &str = ".looks";
const FEEDBACK: &str = ".feedback";

/// The memory of a namespace.
#[derive(Debug, Clone)]
pub struct Memory {
    space: Namespace,
    entries: Keyspace,
    /// Word cards of the entries that use the built-in embedder.
    words: Keyspace,
    looks: Keyspace,
    feedback: Keyspace,
    signatures: Keyspace,
    /// Every write waits for the disk, whatever the store's options say.
    on_disk: bool,
    /// Entries that each identity recalled since its last snapshot.
    recalled: Keyspace,
    /// The inverted index of the cards; `None` in an old store that is open for reading.
    postings: Option<PostingSpaces>,
    index_cache: Arc<postings::IndexCache>,
    /// The tail of the index is made a part at this length.
    tail_max: u64,
}

/// The keyspaces of the inverted index: see [`postings`].
#[derive(Debug, Clone)]
struct PostingSpaces {
    numbers: Keyspace,
    removed: Keyspace,
    postings: Keyspace,
    parts: Keyspace,
}

/// How often an entry was read since it was put, and when last.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct AccessStats {
    count: u64,
    last_ms: i64,
}

/// Ratings of an entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Feedback {
    /// Sum of all ratings, each from -1 to 1.
    sum: f64,
    /// Number of ratings.
    pub count: u64,
}

impl Feedback {
    /// The average rating; 0 without ratings.
    #[must_use]
    pub fn average(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum / self.count as f64 }
    }
}

/// The result of a compare-and-set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PutOutcome {
    /// Whether the entry was written.
    pub applied: bool,
    /// The current version, if the entry exists and was not written.
    pub current: Option<u64>,
}

/// What a search or a recall looks for.
#[derive(Debug, Clone, Default)]
pub struct MemoryQuery<'a> {
    /// Maximum number of hits; 0 means ten.
    pub k: usize,
    /// Minimum score; equal scores are included. Default: [`THRESHOLD`] for a search, the embedder's
    /// threshold for a recall.
    pub min_score: Option<f32>,
    /// Only entries of these tiers; empty means all entries. An entry without a tier matches no named tier.
    pub tiers: &'a [String],
    /// The id of the embedder that made the vector.
    pub embedder: Option<&'a str>,
    /// Search all principals and conversations of the tenant.
    pub across_conversations: bool,
    /// What orders the hits together with their scores.
    pub weights: Option<&'a dyn HitWeights>,
}

/// Weights that order hits. Which entries are hits, their scores alone decide.
pub trait HitWeights: std::fmt::Debug {
    /// The score by which each hit is placed. The hits come in the order of their own scores.
    ///
    /// # Errors
    /// Those of the place where weights are kept; the search then fails.
    fn weighted_scores(&self, hits: &[MemoryHit]) -> Result<Vec<f32>>;

    /// Learns all hits in their order, of which the first `given` are returned at most.
    ///
    /// # Errors
    /// As [`HitWeights::weighted_scores`].
    fn note_order(&self, hits: &[RankedHit<'_>], given: usize) -> Result<()>;
}

/// A hit that weights have placed.
#[derive(Debug, Clone, Copy)]
pub struct RankedHit<'a> {
    /// The hit.
    pub hit: &'a MemoryHit,
    /// The score by which it is placed.
    pub weighted_score: f32,
    /// Its place by its own score, from 0.
    pub rank_by_score: usize,
}

impl MemoryQuery<'_> {
    fn hit_limit(&self) -> usize {
        if self.k == 0 { 10 } else { self.k }
    }
}

/// An entry that a search found.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryHit {
    /// The entry as it was put.
    pub entry: MemoryEntry,
    /// The name of the identity that owns the entry.
    pub identity: String,
    /// Cosine similarity of the entry's vector and the question's. With the built-in embedder: the share of
    /// the question that the entry holds.
    pub score: f32,
}

impl Memory {
    /// This memory, with writes that are on disk when they return, even if the store's options ask for less.
    #[must_use]
    pub fn with_disk_durability(self) -> Self {
        Self { on_disk: true, ..self }
    }

    /// This memory, whose index begins a part at this many new cards: for tests of the index with few entries.
    #[doc(hidden)]
    #[must_use]
    pub fn with_tail_max(self, tail_max: u64) -> Self {
        Self { tail_max, ..self }
    }
}

impl Memory {
    /// The agents' memory in this namespace.
    ///
    /// # Errors
    /// `Unavailable`, `Poisoned`.
    pub fn open(space: &Namespace) -> Result<Self> {
        let keyspace = |end: &str| space.keyspace(&format!("{ENTRIES}{end}"), History::Latest);
        Ok(Self {
            space: space.clone(),
            entries: keyspace("")?,
            words: keyspace(WORD_CARDS)?,
            looks: keyspace(ACCESS_STATS)?,
            feedback: keyspace(FEEDBACK)?,
            signatures: keyspace(".signatures")?,
            recalled: keyspace(".recalled")?,
            on_disk: false,
            postings: Self::open_postings(space)?,
            index_cache: Arc::default(),
            tail_max: postings::TAIL_MAX,
        })
    }

    /// The keyspaces of the index. A store that is open for reading may be older than they are.
    fn open_postings(space: &Namespace) -> Result<Option<PostingSpaces>> {
        let mut found = [None, None, None, None];
        for (found, end) in
            found.iter_mut().zip([postings::NUMBERS, postings::REMOVED, postings::POSTINGS, postings::PARTS])
        {
            *found = match space.keyspace(&format!("{ENTRIES}{WORD_CARDS}{end}"), History::Latest) {
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                opened => Some(opened?),
            };
        }
        let [Some(numbers), Some(removed), Some(postings), Some(parts)] = found else { return Ok(None) };
        Ok(Some(PostingSpaces { numbers, removed, postings, parts }))
    }
}
