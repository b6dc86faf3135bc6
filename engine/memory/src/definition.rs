//! Definitions: the settings of a memory query, kept under a name of the namespace, so that every caller of
//! that name asks in the same way.
//!
//! A definition is JSON with the members of agentfootprint 9.62.0's `defineMemory`: `id`, `description`,
//! `type` (`causal`), `strategy` (`kind` `top-k`, `topK`, `threshold`, `embedder`, here its id) and
//! `projection`. `acrossConversations` is an addition of annals. The definition's store is its namespace. The
//! identity is given with each question, never by a definition.

use serde::Deserialize;

use super::{Memory, Projection};
use annals::{Error, ErrorKind, Result};
use annals::{
    Keyspace,
    kv::{History, ScanRange},
};

/// The keyspace of definitions, by id.
const DEFINITIONS: &str = "annals.memory.definitions";
/// Maximum length of an id, and of a definition, in bytes.
const ID_BYTES_MAX: usize = 256;
const TEXT_BYTES_MAX: usize = 64 << 10;
/// Maximum number of definitions in a namespace.
const DEFINITIONS_MAX: usize = 1000;
/// Largest `topK`.
const TOP_K_MAX: usize = 1000;

/// The settings of a memory query.
#[derive(Debug, Clone, PartialEq)]
pub struct Definition {
    /// The id, unique within the namespace.
    pub id: String,
    /// The purpose, for people.
    pub description: Option<String>,
    /// Maximum number of hits; 1 if the definition names none.
    pub k: usize,
    /// Minimum score; the embedder's threshold if the definition names none.
    pub threshold: Option<f32>,
    /// The id of the embedder that questions must use; any embedder if the definition names none.
    pub embedder: Option<String>,
    /// The projection in which hits are given to a model.
    pub projection: Projection,
    /// Search all principals and conversations of the tenant.
    pub across_conversations: bool,
    text: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DefinitionJson {
    id: String,
    description: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    strategy: StrategyJson,
    projection: Option<String>,
    #[serde(default)]
    across_conversations: bool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StrategyJson {
    kind: Option<String>,
    top_k: Option<usize>,
    threshold: Option<f32>,
    embedder: Option<String>,
}

impl Definition {
    /// Parses a definition.
    ///
    /// # Errors
    /// `Invalid` with the reason: not an object, a missing or unknown member, a member of the wrong type, or
    /// a number out of range.
    pub fn parse(text: &str) -> Result<Self> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(Error::invalid(format!("a memory's definition has at most {TEXT_BYTES_MAX} bytes")));
        }
        // A derived `Deserialize` accepts a JSON list, too.
        if !text.trim_start().starts_with('{') {
            return Err(Error::invalid("a memory's definition must be a JSON object"));
        }
        let read: DefinitionJson = serde_json::from_str(text)
            .map_err(|e| Error::invalid(format!("a memory's definition must be a JSON object: {e}")))?;
        let StrategyJson { kind, top_k, threshold, embedder } = read.strategy;
        check_name(read.kind.as_deref(), "type", "causal")?;
        // agentfootprint's own documents write `topK`, too.
        check_name(kind.as_deref().filter(|kind| *kind != "topK"), "strategy.kind", "top-k")?;
        if read.id.is_empty() || read.id.len() > ID_BYTES_MAX || read.id.contains(char::is_control) {
            return Err(Error::invalid(format!(
                "a definition's id must have 1 to {ID_BYTES_MAX} bytes and no control characters"
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
            Some(name) => Projection::from_name(&name.to_ascii_lowercase()).ok_or_else(|| {
                Error::invalid(format!(
                    "a definition's projection must be decisions, commits, narrative or full, not {name:?}"
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
            across_conversations: read.across_conversations,
            text: text.to_owned(),
        })
    }

    /// The JSON text, as it was given.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Refuses any other name. Case and `_` for `-` do not matter: `TOP_K` is `top-k`.
fn check_name(given: Option<&str>, member: &str, name: &str) -> Result<()> {
    match given.filter(|given| given.to_ascii_lowercase().replace('_', "-") != name) {
        None => Ok(()),
        Some(other) => {
            Err(Error::invalid(format!("a definition's {member} must be {name:?}, not {other:?}")))
        }
    }
}

impl Memory {
    /// Stores a definition under its id, and replaces the one that has this id.
    ///
    /// # Errors
    /// `Invalid` for a malformed definition, and past 1,000 definitions; `Unavailable`, `Poisoned`.
    pub fn define(&self, definition: &str) -> Result<Definition> {
        let definition = Definition::parse(definition)?;
        let keyspace = self.space.keyspace(DEFINITIONS, History::Latest)?;
        let _changing = self.lock_changes()?;
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

    /// The definition with an id.
    ///
    /// # Errors
    /// `NotFound` if it does not exist, with the existing ids; `Damaged`, `Unavailable`.
    pub fn definition(&self, id: &str) -> Result<Definition> {
        let kept = match self.definitions_keyspace()? {
            Some(keyspace) => keyspace.get(id.as_bytes())?,
            None => None,
        };
        if let Some(kept) = kept {
            return parse_stored(&kept);
        }
        let ids: Vec<String> = self.definitions()?.into_iter().map(|one| format!("{:?}", one.id)).collect();
        let there = match ids.as_slice() {
            [] => "none is defined".to_owned(),
            ids => format!("there are {}", ids.get(..ids.len().min(10)).unwrap_or_default().join(", ")),
        };
        Err(Error::new(ErrorKind::NotFound, format!("there is no memory {id:?}: {there}")))
    }

    /// All definitions, sorted by id. Malformed values that another program wrote are skipped.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn definitions(&self) -> Result<Vec<Definition>> {
        let Some(keyspace) = self.definitions_keyspace()? else { return Ok(Vec::new()) };
        let mut definitions = Vec::new();
        for found in keyspace.scan(ScanRange::all()).take(DEFINITIONS_MAX) {
            definitions.extend(parse_stored(&found?.1).ok());
        }
        Ok(definitions)
    }

    /// Deletes a definition, and returns whether it existed. Memory entries are not changed.
    ///
    /// # Errors
    /// `Unavailable`, `Poisoned`.
    pub fn undefine(&self, id: &str) -> Result<bool> {
        let Some(keyspace) = self.definitions_keyspace()? else { return Ok(false) };
        let _changing = self.lock_changes()?;
        let there = keyspace.get(id.as_bytes())?.is_some();
        if there {
            let mut batch = self.space.batch();
            batch.delete(&keyspace, id.as_bytes());
            self.commit(batch)?;
        }
        Ok(there)
    }

    /// The keyspace of definitions, if it exists. A store that is open for reading may have none.
    fn definitions_keyspace(&self) -> Result<Option<Keyspace>> {
        match self.space.keyspace(DEFINITIONS, History::Latest) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }
}

/// Parses a stored definition.
fn parse_stored(kept: &[u8]) -> Result<Definition> {
    Definition::parse(&String::from_utf8_lossy(kept))
}
