//! Removes named secrets from bodies, for example the values of environment variables, in any form and
//! position.
//!
//! One pass over the body searches for all forms of all values (Aho and Corasick, 1975), so the time is
//! linear in its size. Bodies that arrive in chunks are joined first, so that no border hides a value. Values
//! spelled over the events of a stream are found too (`events`).

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};

use super::PLACEHOLDER;
use super::events::find_spelled;
use super::forms::forms;
use crate::providers::{DECODED_BYTES_MAX, decode};

/// Minimum length of a searched value: shorter ones would match by chance.
pub const SECRET_BYTES_MIN: usize = 8;
/// Maximum length of a searched value.
const SECRET_BYTES_MAX: usize = 16 << 10;
/// Maximum total size of all forms of all values; the search needs some 300 bytes of memory for each byte.
const FORMS_BYTES_MAX: usize = 512 << 10;
/// Maximum number of values.
pub const SECRETS_MAX: usize = 256;

/// The values to remove from bodies. Its `Debug` shows no value.
///
/// ```
/// use annals_policy::redact::Secrets;
///
/// let (secrets, refused) = Secrets::new(&[("TOKEN".to_owned(), b"s3cr3t/value".to_vec())]);
/// assert!(refused.is_empty());
/// let body = secrets.redact(br#"{"url":"https://h/?t=s3cr3t%2Fvalue"}"#);
/// assert_eq!(body.bytes.as_ref(), br#"{"url":"https://h/?t=annals-redacted"}"#);
/// assert_eq!(body.removed, 1);
/// ```
#[derive(Clone, Default)]
pub struct Secrets {
    automaton: Option<AhoCorasick>,
    names: Vec<String>,
    /// Length of the longest form, in bytes.
    longest: usize,
}

/// A secret that cannot be searched for, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} is not removed from bodies: {reason}")]
pub struct RefusedSecret {
    /// Its name.
    pub name: String,
    /// The reason, without the value.
    pub reason: String,
}

/// A body without secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedactedBytes<'a> {
    /// The bytes; borrowed if nothing was removed.
    pub bytes: Cow<'a, [u8]>,
    /// How many values were removed.
    pub removed: usize,
    /// Whether the bytes are decoded from their content encoding, because something had to be removed.
    pub decoded: bool,
    places: Vec<SecretSpan>,
    /// Where each of them begins in the result.
    places_now: Vec<usize>,
}

/// A removed range of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SecretSpan {
    pub(super) range: Range<usize>,
    /// Whether the placeholder replaces it; false for later pieces of a value spelled in pieces.
    pub(super) first: bool,
}

impl Secrets {
    /// Takes names and values. Also returns the refused ones: shorter than [`SECRET_BYTES_MIN`], longer than
    /// 16 KiB, or beyond [`SECRETS_MAX`] values or 512 KiB of their forms.
    #[must_use]
    pub fn new(named: &[(String, Vec<u8>)]) -> (Self, Vec<RefusedSecret>) {
        let mut refused = Vec::new();
        let mut names = Vec::new();
        let mut patterns = Vec::new();
        let mut room = FORMS_BYTES_MAX;
        for (name, value) in named {
            let reason = if value.len() < SECRET_BYTES_MIN {
                format!(
                    "its value has {} bytes; values under {SECRET_BYTES_MIN} bytes match by chance",
                    value.len()
                )
            } else if value.len() > SECRET_BYTES_MAX {
                format!("its value is longer than {SECRET_BYTES_MAX} bytes")
            } else if names.len() == SECRETS_MAX {
                format!("there are more than {SECRETS_MAX}")
            } else {
                let forms = forms(value);
                let bytes: usize = forms.iter().map(Vec::len).sum();
                if let Some(left) = room.checked_sub(bytes) {
                    room = left;
                    names.push(name.clone());
                    patterns.extend(forms);
                    continue;
                }
                format!("all forms of all values are more than {FORMS_BYTES_MAX} bytes")
            };
            refused.push(RefusedSecret { name: name.clone(), reason });
        }
        if patterns.is_empty() {
            return (Self::default(), refused);
        }
        let longest = patterns.iter().map(Vec::len).max().unwrap_or(0);
        match AhoCorasick::builder().match_kind(MatchKind::Standard).build(&patterns) {
            Ok(automaton) => (Self { automaton: Some(automaton), names, longest }, refused),
            // Too many states, which the limits above exclude. Refusing all values is the safe choice.
            Err(error) => {
                let reason = format!("the search cannot be built: {error}");
                refused.extend(names.into_iter().map(|name| RefusedSecret { name, reason: reason.clone() }));
                (Self::default(), refused)
            }
        }
    }

    /// Whether nothing is searched for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The length of the longest form, in bytes.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    /// Replaces each value in `body` by the placeholder. `body` is complete: all chunks joined.
    #[must_use]
    pub fn redact<'a>(&self, body: &'a [u8]) -> RedactedBytes<'a> {
        let mut places: Vec<SecretSpan> =
            self.find(body).map(|range| SecretSpan { range, first: true }).collect();
        if self.automaton.is_some() {
            places.extend(find_spelled(self, body));
        }
        places.sort_by_key(|place| place.range.start);
        places.dedup_by(|next, place| {
            let overlaps = next.range.start < place.range.end;
            if overlaps {
                place.range.end = place.range.end.max(next.range.end);
                place.first |= next.first;
            }
            overlaps
        });
        let removed = places.iter().filter(|place| place.first).count();
        if places.is_empty() {
            return RedactedBytes {
                bytes: Cow::Borrowed(body),
                removed,
                decoded: false,
                places,
                places_now: Vec::new(),
            };
        }
        let mut places_now = Vec::with_capacity(places.len());
        let mut bytes = Vec::with_capacity(body.len());
        let mut from = 0;
        for place in &places {
            bytes.extend_from_slice(&body[from..place.range.start]);
            places_now.push(bytes.len());
            if place.first {
                bytes.extend_from_slice(PLACEHOLDER.as_bytes());
            }
            from = place.range.end;
        }
        bytes.extend_from_slice(&body[from..]);
        RedactedBytes { bytes: Cow::Owned(bytes), removed, decoded: false, places, places_now }
    }

    /// As [`Self::redact`], for a body with a content encoding. If it holds a secret, the result is decoded,
    /// and the header no longer fits. If such a body is cut or damaged, the result is the decodable part.
    ///
    /// # Errors
    /// Why it cannot be searched: it is damaged, too long, or in an unknown encoding.
    pub fn redact_encoded<'a>(
        &self,
        content_encoding: Option<&str>,
        body: &'a [u8],
    ) -> Result<RedactedBytes<'a>, String> {
        let decoded = decode(content_encoding, body, DECODED_BYTES_MAX);
        let was_decoded = matches!(decoded.bytes, Cow::Owned(_));
        let plain = match decoded.bytes {
            Cow::Borrowed(_) if decoded.fault.is_none() => return Ok(self.redact(body)),
            plain => plain,
        };
        let found = self.redact(&plain);
        match decoded.fault {
            _ if found.removed > 0 => {
                let RedactedBytes { bytes, removed, places, places_now, .. } = found;
                let bytes = Cow::Owned(bytes.into_owned());
                Ok(RedactedBytes { bytes, removed, decoded: was_decoded, places, places_now })
            }
            Some(fault) => Err(fault),
            None => Ok(RedactedBytes {
                bytes: Cow::Borrowed(body),
                removed: 0,
                decoded: false,
                places: Vec::new(),
                places_now: Vec::new(),
            }),
        }
    }

    /// Ranges that hold a value, in order and disjoint: overlapping values form one range.
    pub(super) fn find<'s>(&'s self, body: &'s [u8]) -> impl Iterator<Item = Range<usize>> + 's {
        let mut stretches: Vec<Range<usize>> = Vec::new();
        let matches = self.automaton.as_ref().map(|automaton| automaton.find_overlapping_iter(body));
        // Matches come in the order of their ends.
        for found in matches.into_iter().flatten() {
            let mut stretch = found.range();
            while let Some(last) = stretches.pop_if(|last| last.end > stretch.start) {
                stretch.start = stretch.start.min(last.start);
            }
            stretches.push(stretch);
        }
        stretches.into_iter()
    }
}

impl RedactedBytes<'_> {
    /// The new position of a border at `offset` of the original body: chunk borders move with removed bytes.
    /// A border within a removed value moves behind its placeholder.
    #[must_use]
    pub fn border(&self, offset: usize) -> usize {
        let before = self.places.partition_point(|place| place.range.start < offset);
        let last =
            before.checked_sub(1).and_then(|at| Some((self.places.get(at)?, self.places_now.get(at)?)));
        let Some((place, now)) = last else { return offset };
        let stands = if place.first { PLACEHOLDER.len() } else { 0 };
        now + stands + offset.saturating_sub(place.range.end)
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Secrets").field("names", &self.names).finish_non_exhaustive()
    }
}
