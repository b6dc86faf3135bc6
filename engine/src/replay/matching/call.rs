//! A recorded call, and the hash that identifies an equal request.

use std::fmt;

use crate::error::Result;
use crate::replay::matching::canonical::{CanonicalBody, canonical_hash};
use crate::replay::matching::rules::Rules;
use crate::trace::RecordedFrame;

/// Keyed BLAKE3 of a request: of its name and its body as sent, each preceded by its length (`u64`,
/// little-endian).
///
/// It is computed before redaction, so a recording without its secrets still recognises the request. The key
/// keeps others from guessing the redacted bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallHash(pub [u8; 32]);

impl CallHash {
    /// The hash of a request.
    #[must_use]
    pub fn new(key: &[u8; 32], name: &str, body: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(key);
        for part in [name.as_bytes(), body] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// The hash of a request's meaning. The order of members and query keys, white space, and the spelling of
    /// numbers and texts do not matter.
    ///
    /// # Errors
    /// `Invalid` for a body without a canonical form.
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

/// A recorded call: a frame of the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedCall {
    /// The frame's number.
    pub seq: u32,
    /// The name of the call, such as `POST /v1/chat/completions?beta=1`: a route and, after `?`, a query.
    pub name: String,
    /// The hash of its name and body as they were sent.
    pub exact: CallHash,
    /// Time at which the call began, in nanoseconds since 1970-01-01 UTC.
    pub begun_ns: u64,
    /// Time at which the last byte of the answer arrived, by the same clock. It is not the end of the
    /// connection: the program may not have waited for that.
    pub ended_ns: u64,
    /// Order of arrival among identical requests that were under way at the same time, smallest first. 0 if
    /// only `begun_ns` tells the order.
    pub arrived: u64,
}

impl RecordedCall {
    /// The call of this name that a frame holds, as a request with the frame's input.
    #[must_use]
    pub fn from_frame(key: &[u8; 32], name: String, frame: &RecordedFrame) -> Self {
        Self {
            seq: frame.seq,
            exact: CallHash::new(key, &name, &frame.input),
            name,
            begun_ns: frame.started_ns,
            ended_ns: frame.started_ns.saturating_add(frame.duration_ns),
            arrived: 0,
        }
    }
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
