//! Memory entries that come from outside as JSON: a full entry, or a bare snapshot of a run.

use annals::{Error, ErrorKind, Result, Ticket};
use annals_memory::{Embedder, Identity, Memory, MemoryEntry, SnapshotOptions};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The members that tell an entry from a snapshot.
#[derive(Default)]
struct MemberFlags {
    id: bool,
    value: bool,
    query: bool,
}

/// Accepts objects only: a derived `Deserialize` accepts a list, too.
impl<'de> Deserialize<'de> for MemberFlags {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        struct MemberFlagsVisitor;
        impl<'de> Visitor<'de> for MemberFlagsVisitor {
            type Value = MemberFlags;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object with members")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<MemberFlags, A::Error> {
                let mut told = MemberFlags::default();
                while let Some((name, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
                    let there = match name.as_str() {
                        "id" => &mut told.id,
                        "value" => &mut told.value,
                        "query" => &mut told.query,
                        _ => continue,
                    };
                    if std::mem::replace(there, true) {
                        return Err(serde::de::Error::custom(format!("member {name:?} appears twice")));
                    }
                }
                Ok(told)
            }
        }
        from.deserialize_map(MemberFlagsVisitor)
    }
}

/// Refuses a request for another embedder than the configured one.
///
/// # Errors
/// `Invalid`, naming both embedders.
pub fn check_embedder(wanted: Option<&str>, own: &str, what: &str) -> Result<()> {
    match wanted.filter(|wanted| *wanted != own) {
        None => Ok(()),
        Some(other) => Err(Error::new(
            ErrorKind::Invalid,
            format!("{what} is embedded by {own:?} here, not by {other:?}: pass its vector instead"),
        )),
    }
}

/// Stores JSON texts of full entries in one batch, all of them or none, and returns their ids with a ticket that is answered when
/// they are stored. `None` if one of the texts is a snapshot: [`remember_json`] stores each of them by itself.
///
/// # Errors
/// As [`remember_json`].
pub fn submit_entries(
    memory: &Memory,
    identity: &Identity,
    texts: &[&str],
    with: &dyn Embedder,
) -> Result<Option<(Vec<String>, Option<Ticket>)>> {
    let texts: Vec<&str> = texts.iter().map(|text| trimmed(text)).collect();
    for text in &texts {
        if !matches!(flags(text)?, MemberFlags { id: true, value: true, .. }) {
            return Ok(None);
        }
    }
    let (entries, ticket) = memory.submit_remember(identity, &texts, with)?;
    Ok(Some((entries.into_iter().map(|entry| entry.id).collect(), ticket)))
}

/// Some editors put a byte order mark before a text.
fn trimmed(text: &str) -> &str {
    text.trim_start_matches('\u{feff}').trim_matches([' ', '\t', '\r', '\n'])
}

fn flags(text: &str) -> Result<MemberFlags> {
    serde_json::from_str(text)
        .map_err(|error| Error::new(ErrorKind::Invalid, format!("a memory is a JSON object: {error}")))
}

/// Stores a JSON text: an entry (`id`, `value`), or a snapshot (`query`, `finalContent`), which becomes the
/// entry of its conversation's next turn. An entry without a vector gets one from `with`. Returns the entry
/// as stored.
///
/// # Errors
/// `Invalid` if the text is neither, with line and column for a JSON error; as [`Memory::remember`].
pub fn remember_json(
    memory: &Memory,
    identity: &Identity,
    text: &str,
    with: &dyn Embedder,
    keep: &SnapshotOptions,
) -> Result<MemoryEntry> {
    let text = trimmed(text);
    match flags(text)? {
        MemberFlags { id: true, value: true, .. } => memory.remember(identity, text, with),
        MemberFlags { query: true, .. } => memory.write_snapshot(identity, text, with, keep),
        _ => Err(Error::new(
            ErrorKind::Invalid,
            "a memory must be an entry, with an id and a value, or a run's snapshot, with its query",
        )),
    }
}
