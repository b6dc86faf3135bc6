//! What agents remember: entries that hold a decision's evidence as JSON, kept byte for byte, found again by what they are about.
//!
//! An entry belongs to an [`Identity`] and has an id there; shapes and rules are those of agentfootprint 9.62.0's `MemoryStore`, read from its sources.
//! Entries stand in the keyspace `annals.memory` under the identity's name, a zero byte and the id; how often and when each was looked at, what was
//! said of it, signatures that were seen, and cards of words stand in keyspaces beside it, so that a look never writes the entry again.
//! Vectors stand in the vector floor (`near`). How a memory is asked may be kept under a name (`definition`).
//!
//! Invariant: nothing of one tenant is ever given to another; of one identity nothing to another of its tenant, unless a search asks for all its
//! conversations.

mod decay;
mod definition;
mod embed;
mod entry;
mod identity;
mod js;
mod near;
mod ops;
mod projection;
mod rank;
mod recall;
mod run;
mod told;
mod training;
mod words;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

pub use decay::Decay;
pub use definition::Definition;
pub use embed::Embedder;
pub use entry::Entry;
pub use identity::Identity;
pub use projection::{Projection, render};
pub use recall::Keep;
pub use told::told;
pub use training::Training;
pub use words::Words;

use annals::Durability;
use annals::Namespace;
use annals::{Error, ErrorKind, Result};
use annals::{History, Keyspace, KvBatch, ScanRange};

/// Entries of a page, unless told, and at most.
pub const LIST_DEFAULT: usize = 100;
/// See [`LIST_DEFAULT`].
pub const LIST_MAX: usize = 1000;
/// Bytes of a page, and one entry.
const LIST_BYTES_MAX: usize = 64 << 20;
/// The least score that counts for vectors that callers bring.
pub const THRESHOLD: f32 = 0.7;

/// The keyspaces of entries, of their words, of how they were looked at, and of what was said of them.
const ENTRIES: &str = "annals.memory";
const WORDS: &str = "annals.memory.words";
const LOOKS: &str = "annals.memory.looks";
const FEEDBACK: &str = "annals.memory.feedback";

/// The memory of a namespace.
#[derive(Debug, Clone)]
pub struct Memory {
    space: Namespace,
    entries: Keyspace,
    /// Cards of the entries that are of the embedder that is built in.
    words: Keyspace,
    looks: Keyspace,
    feedback: Keyspace,
    signatures: Keyspace,
    /// What is written is on disk before anything goes on.
    on_disk: bool,
    /// What each identity was told since its last snapshot.
    recalled: Keyspace,
}

/// How often an entry was looked at since it was put, and when last.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Looks {
    count: u64,
    last_ms: i64,
}

/// What was said of an entry's use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Feedback {
    /// Sum of all, each from -1 to 1.
    sum: f64,
    /// How many.
    pub count: u64,
}

impl Feedback {
    /// Their average.
    #[must_use]
    pub fn average(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum / self.count as f64 }
    }
}

/// What came of a compare-and-set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// Whether it was written.
    pub applied: bool,
    /// The version that is there, where there is one and it was not written.
    pub current: Option<u64>,
}

/// What a search wants.
#[derive(Debug, Clone, Default)]
pub struct Wanted<'a> {
    /// How many at most; 0: ten.
    pub k: usize,
    /// The least score; equal passes. [`THRESHOLD`] where it is not given.
    pub min_score: Option<f32>,
    /// Only entries of these tiers; of any where none is named. An entry without a tier is of none.
    pub tiers: &'a [String],
    /// The embedder that made the vector.
    pub embedder: Option<&'a str>,
    /// Of all principals and conversations of the tenant.
    pub across: bool,
}

impl Wanted<'_> {
    fn count(&self) -> usize {
        if self.k == 0 { 10 } else { self.k }
    }
}

/// An entry that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Hit {
    /// The entry as it was put.
    pub entry: Entry,
    /// The name of the identity that it belongs to.
    pub identity: String,
    /// Cosine of the angle between its vector and the one asked for; of the embedder that is built in, the share of the question that it holds.
    pub score: f32,
}

impl Memory {
    /// The same, whose writes are on disk when they return, also where the store's options ask for less.
    #[must_use]
    pub fn on_disk(self) -> Self {
        Self { on_disk: true, ..self }
    }
}

impl Memory {
    /// What agents remember in a namespace.
    ///
    /// # Errors
    /// `Unavailable`, `Poisoned`.
    pub fn open(space: &Namespace) -> Result<Self> {
        let keyspace = |name: &str| space.keyspace(name, History::Latest);
        Ok(Self {
            space: space.clone(),
            entries: keyspace(ENTRIES)?,
            words: keyspace(WORDS)?,
            looks: keyspace(LOOKS)?,
            feedback: keyspace(FEEDBACK)?,
            signatures: keyspace("annals.memory.signatures")?,
            recalled: keyspace("annals.memory.recalled")?,
            on_disk: false,
        })
    }
}
