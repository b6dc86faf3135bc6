//! An entry as JSON text. Only its own members are parsed; their texts are kept byte for byte.

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use annals::{Error, Result};

/// The longest entry, in bytes.
pub(super) const ENTRY_BYTES_MAX: usize = 64 << 20;
/// The longest id, in bytes.
pub(super) const ID_BYTES_MAX: usize = 4 << 10;

/// Names the expected value in errors about times.
const TIMESTAMP_KIND: &str = "a number of milliseconds since 1970";

/// The members of an object in their order, each with its raw JSON.
struct RawMembers(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for RawMembers {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        struct MembersVisitor;
        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = RawMembers;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a JSON object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<RawMembers, A::Error> {
                let mut members: Vec<(String, Box<RawValue>)> = Vec::new();
                while let Some(member) = map.next_entry::<String, Box<RawValue>>()? {
                    if members.iter().any(|(name, _)| *name == member.0) {
                        return Err(serde::de::Error::custom(format!("member {:?} appears twice", member.0)));
                    }
                    members.push(member);
                }
                Ok(RawMembers(members))
            }
        }
        from.deserialize_map(MembersVisitor)
    }
}

/// A memory entry (agentfootprint 9.62.0's `MemoryEntry`). Times are in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryEntry {
    /// The id, unique within the identity.
    pub id: String,
    /// Counts changes made with compare-and-set; 1 at first.
    pub version: u64,
    /// When the entry was last changed.
    pub updated_ms: i64,
    /// When the entry expires.
    pub ttl_ms: Option<i64>,
    /// `hot`, `warm` or `cold`.
    pub tier: Option<String>,
    /// The vector.
    pub embedding: Option<Vec<f32>>,
    /// The id of the embedder that made the vector.
    pub embedder: Option<String>,
    /// The ids of the entries that this one only answers from.
    pub derived_from: Vec<String>,
    /// Whether the entry tells what might have been (`metadata.whatIf`): it is of a fork, or of a run that the
    /// cache answered.
    pub is_what_if: bool,
    /// Whether the entry was made of a recorded run (`metadata.run`).
    pub is_of_run: bool,
    members: Vec<(String, String)>,
}

impl MemoryEntry {
    /// Parses an entry.
    ///
    /// # Errors
    /// `Invalid` with the reason: not an object, a missing member, a member of the wrong type, or a malformed
    /// vector.
    pub fn parse(text: &str) -> Result<Self> {
        check_len(text.len())?;
        let members: RawMembers = serde_json::from_str(text)
            .map_err(|e| Error::invalid(format!("a memory is a JSON object: {e}")))?;
        let members: Vec<(String, String)> =
            members.0.into_iter().map(|(name, value)| (name, value.get().to_owned())).collect();
        let id: String =
            member(&members, "id", "a text")?.ok_or_else(|| Error::invalid("a memory must have an id"))?;
        if id.is_empty() || id.len() > ID_BYTES_MAX || id.contains('\0') {
            return Err(Error::invalid(format!(
                "a memory's id must have 1 to {ID_BYTES_MAX} bytes, none of them zero"
            )));
        }
        if find_member(&members, "value").is_none() {
            return Err(Error::invalid("a memory must have a value"));
        }
        let embedding: Option<Vec<f32>> =
            member::<Vec<f64>>(&members, "embedding", "a list of finite numbers")?
                .filter(|vector| !vector.is_empty())
                .map(|vector| vector.into_iter().map(vector_number).collect());
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        #[expect(dead_code, reason = "the policy is checked and kept; ranking does not use it")]
        struct DecayPolicyJson {
            half_life_ms: f64,
            access_boost: f64,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct EntryMetadata {
            derived_from: Option<DerivedFromJson>,
            what_if: serde_json::Value,
            run: serde_json::Value,
        }
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum DerivedFromJson {
            Single(String),
            Many(Vec<String>),
        }
        let tier: Option<String> = member(&members, "tier", "a text")?;
        if tier.as_deref().is_some_and(|tier| !["hot", "warm", "cold"].contains(&tier)) {
            return Err(Error::invalid("a memory's tier must be hot, warm or cold"));
        }
        const DECAY_KIND: &str = "an object with the numbers halfLifeMs and accessBoost";
        member::<DecayPolicyJson>(&members, "decayPolicy", DECAY_KIND)?;
        // Metadata belongs to the caller: members that the engine does not know are ignored.
        let metadata = find_member(&members, "metadata")
            .and_then(|text| serde_json::from_str::<EntryMetadata>(text).ok())
            .unwrap_or_default();
        let is_what_if = metadata.what_if == serde_json::Value::Bool(true);
        let is_of_run = metadata.run.is_string();
        let derived_from = match metadata.derived_from {
            None => Vec::new(),
            Some(DerivedFromJson::Single(id)) => vec![id],
            Some(DerivedFromJson::Many(ids)) => ids,
        };
        Ok(Self {
            version: member::<u64>(&members, "version", "a whole number of at least 0")?.unwrap_or(1),
            updated_ms: member::<f64>(&members, "updatedAt", TIMESTAMP_KIND)?.map_or(0, whole_ms),
            ttl_ms: member::<f64>(&members, "ttl", TIMESTAMP_KIND)?.map(whole_ms),
            embedder: member(&members, "embeddingModel", "a text")?,
            id,
            tier,
            embedding,
            derived_from,
            is_what_if,
            is_of_run,
            members,
        })
    }

    /// The JSON text of the value, as it was given.
    #[must_use]
    pub fn value(&self) -> &str {
        self.member("value").unwrap_or("null")
    }

    /// The JSON text of a member, as it was given.
    #[must_use]
    pub fn member(&self, name: &str) -> Option<&str> {
        find_member(&self.members, name)
    }

    /// Sets a member to a JSON text.
    pub(super) fn set_member(&mut self, name: &str, value: String) {
        match self.members.iter_mut().find(|(of, _)| of == name) {
            Some((_, old)) => *old = value,
            None => self.members.push((name.to_owned(), value)),
        }
    }

    /// Checks the entry's size after members were set.
    ///
    /// # Errors
    /// `Invalid` if the entry is too large.
    pub(super) fn check_size(&self) -> Result<()> {
        let quoted = |name: &str| serde_json::Value::from(name).to_string().len();
        // A colon, and a comma or a bracket; and the other bracket.
        let members = self.members.iter().map(|(name, value)| quoted(name) + value.len() + 2);
        check_len(members.sum::<usize>() + 1)
    }

    /// The entry as JSON text.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut out = String::from("{");
        for (number, (name, value)) in self.members.iter().enumerate() {
            if number > 0 {
                out.push(',');
            }
            out.push_str(&serde_json::Value::from(name.as_str()).to_string());
            out.push(':');
            out.push_str(value);
        }
        out.push('}');
        out
    }

    /// The approximate length of the JSON text in bytes.
    pub(super) fn approximate_bytes(&self) -> usize {
        self.members.iter().map(|(name, value)| name.len() + value.len()).sum()
    }

    /// When the entry expires, if it does, in milliseconds since 1970-01-01 UTC.
    pub(super) fn deadline_ms(&self) -> Option<u64> {
        self.ttl_ms.map(|ms| u64::try_from(ms).unwrap_or(0))
    }

    /// Whether the entry has expired.
    #[must_use]
    pub fn is_expired(&self, now_ms: i64) -> bool {
        self.ttl_ms.is_some_and(|ttl| ttl <= now_ms)
    }
}

/// A time without the fraction of a millisecond.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the fraction is cut off; a time beyond 64 bits saturates"
)]
pub(super) fn whole_ms(ms: f64) -> i64 {
    ms as i64
}

/// A number as vectors hold it.
#[expect(
    clippy::cast_possible_truncation,
    reason = "rounded to 32 bits; one beyond them is infinite, and refused"
)]
fn vector_number(number: f64) -> f32 {
    number as f32
}

fn check_len(bytes: usize) -> Result<()> {
    if bytes > ENTRY_BYTES_MAX {
        return Err(Error::invalid(format!("a memory has at most {ENTRY_BYTES_MAX} bytes")));
    }
    Ok(())
}

fn find_member<'a>(members: &'a [(String, String)], name: &str) -> Option<&'a str> {
    members.iter().find(|(of, _)| of == name).map(|(_, value)| value.as_str())
}

/// A member of the given type; `null` counts as absent.
fn member<T: serde::de::DeserializeOwned>(
    members: &[(String, String)],
    name: &str,
    kind: &str,
) -> Result<Option<T>> {
    match find_member(members, name) {
        None => Ok(None),
        Some(text) => serde_json::from_str::<Option<T>>(text)
            .map_err(|_| Error::invalid(format!("a memory's {name} is not {kind}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_members_kept_byte_for_byte() {
        let text = r#"{"id":"snap-1","value": { "b":1.0e0 ,"a":"\ud800" , "10":[]},"version":3,"updatedAt":1795304082049,"ttl":null,"embedding":[0.1,-1],"x\"y":[ 1 ]}"#;
        let entry = MemoryEntry::parse(text).unwrap();
        assert_eq!(entry.value(), r#"{ "b":1.0e0 ,"a":"\ud800" , "10":[]}"#);
        assert_eq!((entry.version, entry.updated_ms, entry.ttl_ms), (3, 1_795_304_082_049, None));
        assert_eq!(entry.embedding, Some(vec![0.1, -1.0]));
        assert_eq!(MemoryEntry::parse(&entry.to_json()).unwrap(), entry);
        let deep = format!("{{\"id\":\"d\",\"value\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(MemoryEntry::parse(&deep).unwrap().to_json(), deep);
    }

    #[test]
    fn parse_invalid_entry_gives_reason() {
        for (text, why) in [
            ("[]", "object"),
            (r#"{"value":1}"#, "must have an id"),
            (r#"{"id":"","value":1}"#, "id must have"),
            (r#"{"id":7,"value":1}"#, "id is not"),
            (r#"{"id":"a"}"#, "must have a value"),
            (r#"{"id":"a","value":1,"tier":"lukewarm"}"#, "tier"),
            (r#"{"id":"a","value":1,"embedding":["x"]}"#, "embedding"),
            (r#"{"id":"a","value":1,"id":"b"}"#, "twice"),
            (r#"{"id":"a","value":1,"version":-1}"#, "version is not a whole number of at least 0"),
            (r#"{"id":"a","value":1,"ttl":"soon"}"#, "ttl is not a number of milliseconds since 1970"),
        ] {
            let refused = MemoryEntry::parse(text).unwrap_err();
            assert!(refused.to_string().contains(why), "{text}: {refused}");
        }
    }
}
