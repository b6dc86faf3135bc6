//! Definitions: how a memory is asked, kept under a name of its namespace, so that whoever asks by that name asks alike.
//!
//! A definition is JSON with the members that agentfootprint 9.62.0's `defineMemory` takes: `id`, `description`, `type` (`causal`), `strategy` (`kind` `top-k`,
//! `topK`, `threshold`, `embedder`, here its id) and `projection`; `acrossConversations` is ours. Its store is the namespace that it is kept in. Whose memory
//! is asked is said with each question, and never by a definition.

use serde::Deserialize;

use super::{Memory, Projection, Wanted};
use annals::{Error, ErrorKind, Result};
use annals::{History, Keyspace, ScanRange};

/// Where they stand, by their ids.
const DEFINITIONS: &str = "annals.memory.definitions";
/// The longest id, and the longest text, in bytes.
const ID_BYTES_MAX: usize = 256;
const TEXT_BYTES_MAX: usize = 64 << 10;
/// Definitions of a namespace.
const DEFINITIONS_MAX: usize = 1000;
/// The most that one asks for.
const TOP_K_MAX: usize = 1000;

/// How a memory is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Definition {
    /// Its id, unique within its namespace.
    pub id: String,
    /// What it is for.
    pub description: Option<String>,
    /// How many entries are given at most; one, where none is named.
    pub k: usize,
    /// The least score that counts; the embedder's own, where none is named.
    pub threshold: Option<f32>,
    /// The id of the embedder that questions have to be made vectors of by; any, where none is named.
    pub embedder: Option<String>,
    /// What of an entry is told.
    pub projection: Projection,
    /// Of all principals and conversations of the tenant.
    pub across: bool,
    text: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Read {
    id: String,
    description: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    strategy: Strategy,
    projection: Option<String>,
    #[serde(default)]
    across_conversations: bool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Strategy {
    kind: Option<String>,
    top_k: Option<usize>,
    threshold: Option<f32>,
    embedder: Option<String>,
}

impl Definition {
    /// Reads a definition.
    ///
    /// # Errors
    /// `Invalid` with what is wrong: no object, a member that is missing, unknown or of another kind, a number out of its range.
    pub fn parse(text: &str) -> Result<Self> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(Error::invalid(format!("a memory's definition has at most {TEXT_BYTES_MAX} bytes")));
        }
        // What is derived takes a list, too.
        if !text.trim_start().starts_with('{') {
            return Err(Error::invalid("a memory's definition is a JSON object"));
        }
        let read: Read = serde_json::from_str(text)
            .map_err(|e| Error::invalid(format!("a memory's definition is a JSON object: {e}")))?;
        let Strategy { kind, top_k, threshold, embedder } = read.strategy;
        is(read.kind.as_deref(), "type", "causal")?;
        is(kind.as_deref(), "strategy.kind", "top-k")?;
        if read.id.is_empty() || read.id.len() > ID_BYTES_MAX || read.id.contains(char::is_control) {
            return Err(Error::invalid(format!(
                "a definition's id has 1 to {ID_BYTES_MAX} bytes, none of them of control"
            )));
        }
        let k = top_k.unwrap_or(1);
        if !(1..=TOP_K_MAX).contains(&k) {
            return Err(Error::invalid(format!("a definition's topK is from 1 to {TOP_K_MAX}, not {k}")));
        }
        if let Some(threshold) = threshold.filter(|threshold| !(-1.0..=1.0).contains(threshold)) {
            return Err(Error::invalid(format!("a definition's threshold is from -1 to 1, not {threshold}")));
        }
        let projection = match &read.projection {
            None => Projection::default(),
            Some(name) => Projection::of_name(&name.to_ascii_lowercase()).ok_or_else(|| {
                Error::invalid(format!(
                    "a definition's projection is decisions, commits, narrative or full, not {name:?}"
                ))
            })?,
        };
        Ok(Self {
            id: read.id,
            description: read.description,
            k,
            threshold,
            embedder,
            projection,
            across: read.across_conversations,
            text: text.to_owned(),
        })
    }

    /// Its text, as it was given.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What a question asked by it wants.
    #[must_use]
    pub fn wanted(&self) -> Wanted<'_> {
        Wanted {
            k: self.k,
            min_score: self.threshold,
            embedder: self.embedder.as_deref(),
            across: self.across,
            ..Wanted::default()
        }
    }
}

/// Refuses a name that is given and another, however it is written: `TOP_K` is `top-k`.
fn is(given: Option<&str>, member: &str, name: &str) -> Result<()> {
    match given.filter(|given| given.to_ascii_lowercase().replace('_', "-") != name) {
        None => Ok(()),
        Some(other) => {
            Err(Error::invalid(format!("a definition's {member} is {name:?}, and there is no {other:?}")))
        }
    }
}

impl Memory {
    /// Keeps a definition under its id, in the place of one that has it.
    ///
    /// # Errors
    /// `Invalid` for a text that is none, and past 1,000 of them; `Unavailable`, `Poisoned`.
    pub fn define(&self, definition: &str) -> Result<Definition> {
        let definition = Definition::parse(definition)?;
        let keyspace = self.space.keyspace(DEFINITIONS, History::Latest)?;
        let _changing = self.changing();
        let key = definition.id.as_bytes();
        if keyspace.get(key)?.is_none() && keyspace.scan(ScanRange::all()).keys().count() >= DEFINITIONS_MAX {
            return Err(Error::invalid(format!(
                "a namespace has at most {DEFINITIONS_MAX} definitions of memories"
            )));
        }
        let mut batch = self.space.batch();
        batch.put(&keyspace, key, definition.text.clone());
        self.commit(batch)?;
        Ok(definition)
    }

    /// The definition of an id.
    ///
    /// # Errors
    /// `NotFound` where there is none, naming those that there are; `Damaged`, `Unavailable`.
    pub fn defined(&self, id: &str) -> Result<Definition> {
        let kept = match self.defining()? {
            Some(keyspace) => keyspace.get(id.as_bytes())?,
            None => None,
        };
        if let Some(kept) = kept {
            return read(&kept);
        }
        let ids: Vec<String> = self.definitions()?.into_iter().map(|one| format!("{:?}", one.id)).collect();
        let there = match ids.as_slice() {
            [] => "none is defined".to_owned(),
            ids => format!("there are {}", ids.get(..ids.len().min(10)).unwrap_or_default().join(", ")),
        };
        Err(Error::new(ErrorKind::NotFound, format!("there is no memory {id:?}: {there}")))
    }

    /// All definitions, by their ids. What somebody else wrote there and is none is passed over.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn definitions(&self) -> Result<Vec<Definition>> {
        let Some(keyspace) = self.defining()? else { return Ok(Vec::new()) };
        let mut definitions = Vec::new();
        for found in keyspace.scan(ScanRange::all()).take(DEFINITIONS_MAX) {
            definitions.extend(read(&found?.1).ok());
        }
        Ok(definitions)
    }

    /// Ends a definition; says whether there was one. What is remembered stays.
    ///
    /// # Errors
    /// `Unavailable`, `Poisoned`.
    pub fn undefine(&self, id: &str) -> Result<bool> {
        let Some(keyspace) = self.defining()? else { return Ok(false) };
        let _changing = self.changing();
        let there = keyspace.get(id.as_bytes())?.is_some();
        if there {
            let mut batch = self.space.batch();
            batch.delete(&keyspace, id.as_bytes());
            self.commit(batch)?;
        }
        Ok(there)
    }

    /// Where they stand, if any was ever kept: a store that is open for reading may be older than all of this.
    fn defining(&self) -> Result<Option<Keyspace>> {
        match self.space.keyspace(DEFINITIONS, History::Latest) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }
}

/// A definition as it was kept.
fn read(kept: &[u8]) -> Result<Definition> {
    Definition::parse(&String::from_utf8_lossy(kept))
}
