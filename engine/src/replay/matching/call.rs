//! A recorded call, and the hash by which the same request is known again.

use std::fmt;

use crate::error::Result;
use crate::replay::matching::canonical::{CanonicalBody, canonical_hash};
use crate::replay::matching::rules::Rules;

/// Keyed BLAKE3 of a request: of its name and its body as they were sent, each after its length (`u64`,
/// little-endian).
///
/// It is taken before anything is redacted, so that a recording without its secrets still knows the request; the key
/// keeps others from guessing what was redacted.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallHash(pub [u8; 32]);

impl CallHash {
    /// The hash of this request.
    #[must_use]
    pub fn new(key: &[u8; 32], name: &str, body: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(key);
        for part in [name.as_bytes(), body] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// The hash of what this request asks, however it is written: the order of members and of the query's keys, white space and the spelling
    /// of numbers and texts do not count.
    ///
    /// # Errors
    /// `Invalid` for a body that has no canonical form.
    pub fn canonical(key: &[u8; 32], name: &str, body: &[u8]) -> Result<Self> {
        let rules = Rules::none();
        canonical_hash(key, name, &CanonicalBody::new(body, &rules), &rules)
    }
}

impl fmt::Debug for CallHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&annals_text::hex::HexDisplay(&self.0), f)
    }
}

/// A call as it was recorded: a frame of the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedCall {
    /// The frame's number.
    pub seq: u32,
    /// What was called, such as `POST /v1/chat/completions?beta=1`: a route, and after `?` a query.
    pub name: String,
    /// The hash of its name and body as they were sent.
    pub exact: CallHash,
    /// When it began, nanoseconds since 1970-01-01 UTC.
    pub begun_ns: u64,
    /// When the last byte of its answer had come, by the same clock: not when the connection ended, which its program may not have
    /// waited for.
    pub ended_ns: u64,
    /// Order in which this request arrived among identical ones under way at the same time: the smallest first. 0 where only `begun_ns` tells.
    pub arrived: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_body_and_key_all_count_and_cannot_be_shifted() {
        let of = |key: u8, name: &str, body: &str| CallHash::new(&[key; 32], name, body.as_bytes());
        assert_eq!(of(1, "a", "bc"), of(1, "a", "bc"));
        for other in [of(2, "a", "bc"), of(1, "ab", "c"), of(1, "a", "bd"), of(1, "", "abc")] {
            assert_ne!(of(1, "a", "bc"), other);
        }
    }
}
