//! Memory entries as a reader with a profile sees them.
//!
//! The texts of an entry are redacted like bodies. Times, counts and the name of the embedder stay. The vector is left
//! out, because a reader could compare it with vectors of guesses. The member `redacted` names the profile.
//!
//! A question is redacted before the search, so that a hit confirms no guess of a redacted value.

use std::collections::BTreeMap;

use annals::{Error, ErrorKind, Result};
use annals_memory::{MemoryEntry, MemoryHit};
use annals_policy::profiles::Redactor;
use serde_json::value::{RawValue, to_raw_value};

/// Members of an entry that hold no text of a conversation.
const KEPT: [&str; 9] = [
    "version",
    "createdAt",
    "updatedAt",
    "lastAccessedAt",
    "accessCount",
    "ttl",
    "tier",
    "decayPolicy",
    "embeddingModel",
];
/// The member that holds the vector.
const VECTOR: &str = "embedding";
/// The member that names the profile.
const REDACTED: &str = "redacted";

/// An entry as the reader sees it.
///
/// # Errors
/// `Bug` if the redacted entry is none.
pub fn redacted_entry(redactor: &Redactor, entry: &MemoryEntry) -> Result<MemoryEntry> {
    let bug = |what: String| Error::new(ErrorKind::Bug, format!("a redacted memory is malformed: {what}"));
    let whole: BTreeMap<String, Box<RawValue>> =
        serde_json::from_str(&entry.to_json()).map_err(|error| bug(error.to_string()))?;
    let mut shown = BTreeMap::new();
    for (name, value) in whole {
        if name == VECTOR {
            continue;
        }
        let value = match KEPT.contains(&name.as_str()) {
            true => value,
            false => redacted_json(redactor, &value).map_err(|error| bug(error.to_string()))?,
        };
        shown.insert(name, value);
    }
    let profile = to_raw_value(redactor.profile().name()).map_err(|error| bug(error.to_string()))?;
    shown.insert(REDACTED.to_owned(), profile);
    let text = serde_json::to_string(&shown).map_err(|error| bug(error.to_string()))?;
    MemoryEntry::parse(&text).map_err(|error| bug(error.to_string()))
}

/// A JSON value as the reader sees it. What stands in its place and is no JSON becomes a text.
fn redacted_json(redactor: &Redactor, value: &RawValue) -> serde_json::Result<Box<RawValue>> {
    // As metadata: without the hashes of a commit log.
    let shown = redactor.metadata(value.get().as_bytes()).bytes;
    match serde_json::from_slice::<Box<RawValue>>(&shown) {
        Ok(json) => Ok(json),
        Err(_) => to_raw_value(&String::from_utf8_lossy(&shown)),
    }
}

/// Hits as the reader sees them.
///
/// # Errors
/// As [`redacted_entry`].
pub fn redacted_hits(redactor: &Redactor, hits: Vec<MemoryHit>) -> Result<Vec<MemoryHit>> {
    let shown = hits.into_iter().map(|hit| {
        let entry = redacted_entry(redactor, &hit.entry)?;
        Ok(MemoryHit { entry, identity: redactor.text(&hit.identity), score: hit.score })
    });
    shown.collect()
}

#[cfg(test)]
mod tests {
    use annals_policy::profiles::Profile;

    use super::*;

    /// A body is often short, so its hash in a commit log would confirm a guess of what is redacted.
    #[test]
    fn redacted_commit_log_holds_no_hashes() {
        let hash = "d74981efa70a0c880b8d8c1985d075dbcbf679b99a5f9914e5aaf96b831a9e24";
        let text = format!(
            r#"{{"id":"r","value":{{"query":"q","commitLog":[{{"frame":1,"input":{{"bytes":9,"blake3":"{hash}","preview":"jo@example.org"}},"output":{{"blake3":"{hash}"}}}}]}}}}"#
        );
        let entry = MemoryEntry::parse(&text).unwrap();
        let shown = redacted_entry(&Redactor::new(&Profile::safe(), [7; 32]), &entry).unwrap().to_json();
        assert!(!shown.contains(hash) && !shown.contains("jo@"), "{shown}");
        assert!(shown.contains("\"bytes\":9"), "{shown}");
    }

    #[test]
    fn redacted_entry_keeps_times_and_loses_secrets_and_vector() {
        let redactor = Redactor::new(&Profile::safe(), [7; 32]);
        let text = r#"{"id":"run-eve@example.org","value":{"query":"Is jo@example.org known?","finalContent":"password=hunter2secret9","decisions":[{"evidence":{"card":4111111111111111,"score":1e400}}]},"version":3,"createdAt":4111111111111111,"updatedAt":2,"lastAccessedAt":3,"accessCount":4,"embedding":[0.25,1],"embeddingModel":"e","source":{"identity":{"tenant":"t","principal":"jo@example.org"}}}"#;
        let entry = MemoryEntry::parse(text).unwrap();
        let shown = redacted_entry(&redactor, &entry).unwrap();
        let json = shown.to_json();
        for secret in ["eve@", "jo@", "hunter2", "0.25", "\"card\":4111"] {
            assert!(text.contains(secret) && !json.contains(secret), "{secret}: {json}");
        }
        assert!(json.contains("\"createdAt\":4111111111111111") && json.contains("1e400"), "{json}");
        assert!(json.contains("\"redacted\":\"safe\""), "{json}");
        assert_eq!((shown.version, shown.embedding, shown.embedder.as_deref()), (3, None, Some("e")));
        let hit = MemoryHit { entry, identity: "t/jo@example.org/c".to_owned(), score: 0.5 };
        let [shown] = redacted_hits(&redactor, vec![hit]).unwrap().try_into().unwrap();
        assert!(!shown.identity.contains("jo@") && shown.identity.starts_with("t/"), "{}", shown.identity);
    }
}
