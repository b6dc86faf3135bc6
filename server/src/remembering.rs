//! What is kept in a memory from outside: an entry, or a run's snapshot by itself.

use annals::{Error, ErrorKind, Result};
use annals_memory::{Embedder, Entry, Identity, Keep, Memory};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Which members there are that tell the two from each other.
#[derive(Default)]
struct Told {
    id: bool,
    value: bool,
    query: bool,
}

/// Of an object and nothing else: what is derived takes a list, too.
impl<'de> Deserialize<'de> for Told {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Told;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object with members")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Told, A::Error> {
                let mut told = Told::default();
                while let Some((name, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
                    let there = match name.as_str() {
                        "id" => &mut told.id,
                        "value" => &mut told.value,
                        "query" => &mut told.query,
                        _ => continue,
                    };
                    if std::mem::replace(there, true) {
                        return Err(serde::de::Error::custom(format!("{name:?} is there twice")));
                    }
                }
                Ok(told)
            }
        }
        from.deserialize_map(Each)
    }
}

/// Refuses what is to be made a vector of by another embedder than the one that is there.
///
/// # Errors
/// `Invalid`, naming both.
pub(crate) fn of_embedder(wanted: Option<&str>, own: &str, what: &str) -> Result<()> {
    match wanted.filter(|wanted| *wanted != own) {
        None => Ok(()),
        Some(other) => Err(Error::new(
            ErrorKind::Invalid,
            format!("{what} is made a vector of by {own:?} here, not by {other:?}: bring its vector"),
        )),
    }
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
    // Some editors put a mark of the byte order before a text.
    let text = text.trim_start_matches('\u{feff}').trim_matches([' ', '\t', '\r', '\n']);
    let told: Told = serde_json::from_str(text)
        .map_err(|error| Error::new(ErrorKind::Invalid, format!("a memory is a JSON object: {error}")))?;
    match told {
        Told { id: true, value: true, .. } => memory.remember(identity, text, with),
        Told { query: true, .. } => memory.write_snapshot(identity, text, with, keep),
        _ => Err(Error::new(
            ErrorKind::Invalid,
            "a memory is an entry, with an id and a value, or a run's snapshot, with its query",
        )),
    }
}
