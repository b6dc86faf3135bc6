//! What is kept in a memory from outside: an entry, or a run's snapshot by itself.

use annals::memory::{Embedder, Entry, Identity, Keep, Memory};
use annals::{Error, ErrorKind, Result};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// What tells the two from each other.
#[derive(Deserialize)]
struct Told {
    id: Option<IgnoredAny>,
    value: Option<IgnoredAny>,
    query: Option<IgnoredAny>,
}

/// Keeps what a JSON text holds: an entry (`id`, `value`), or a snapshot (`query`, `finalContent`), which becomes the entry of its conversation's next turn.
/// One without a vector gets one by this embedder. Gives the entry as it was kept.
///
/// # Errors
/// `Invalid` for a text that is neither, with line and column where it is no JSON; as [`Memory::remember`].
pub fn remember(
    memory: &Memory,
    identity: &Identity,
    text: &str,
    with: &dyn Embedder,
    keep: &Keep,
) -> Result<Entry> {
    let text = text.trim_matches([' ', '\t', '\r', '\n']);
    let told: Told = serde_json::from_str(text)
        .map_err(|error| Error::new(ErrorKind::Invalid, format!("a memory is a JSON object: {error}")))?;
    match told {
        Told { id: Some(_), value: Some(_), .. } => memory.remember(identity, text, with),
        Told { query: Some(_), .. } => memory.write_snapshot(identity, text, with, keep),
        _ => Err(Error::new(
            ErrorKind::Invalid,
            "a memory is an entry, with an id and a value, or a run's snapshot, with its query",
        )),
    }
}
