//! The members of an object and the elements of an array, each as its exact text in the source.
//!
//! Uses serde_json's raw values. They keep inner white space, escapes (lone surrogates too), duplicate keys
//! and numbers of any size, because nothing is decoded. Values that are needed, such as a role, are decoded
//! separately.

use std::fmt;
use std::ops::Range;

use serde::de::{Deserializer as _, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

/// A part of a run's text. Offsets have 32 bits, which halves the memory of a long run of small messages. A
/// longer text is refused before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TextSpan {
    start: u32,
    len: u32,
}

impl TextSpan {
    /// The span of `part` in `whole`; `None` if `part` is not a slice of `whole`.
    pub(super) fn new(part: &str, whole: &str) -> Option<Self> {
        let start = (part.as_ptr() as usize).checked_sub(whole.as_ptr() as usize)?;
        let span = Self { start: u32::try_from(start).ok()?, len: u32::try_from(part.len()).ok()? };
        (span.get(whole).len() == part.len()).then_some(span)
    }

    /// The text of the span.
    pub(super) fn get(self, whole: &str) -> &str {
        let start = self.start as usize;
        let range: Range<usize> = start..start + self.len as usize;
        whole.get(range).unwrap_or_default()
    }
}

/// A member of an object: the texts of its key, with quotes, and of its value.
#[derive(Debug, Clone, Copy)]
pub(super) struct ObjectMember<'a> {
    pub(super) key: &'a str,
    pub(super) value: &'a str,
}

impl ObjectMember<'_> {
    /// Whether the decoded key is `name`.
    pub(super) fn has_key(&self, name: &str) -> bool {
        decode_string(self.key).is_some_and(|key| key == name)
    }
}

/// The members of an object's text, in source order; `None` if it is not an object.
pub(super) fn members(text: &str) -> Option<Vec<ObjectMember<'_>>> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let members = deserializer.deserialize_map(RawMembersVisitor).ok()?;
    deserializer.end().ok()?;
    Some(members)
}

/// The elements of an array's text; `None` if it is not an array.
pub(super) fn elements(text: &str) -> Option<Vec<&str>> {
    let raw: Vec<&RawValue> = serde_json::from_str(text).ok()?;
    Some(raw.into_iter().map(RawValue::get).collect())
}

/// The value of the last member called `name`: JSON parsers also take the last of duplicate keys.
pub(super) fn last_value<'a>(members: &[ObjectMember<'a>], name: &str) -> Option<&'a str> {
    members.iter().rev().find(|member| member.has_key(name)).map(|member| member.value)
}

/// Decodes a string's text; `None` if it is not a string or has an escape without a character (a lone
/// surrogate).
pub(super) fn decode_string(text: &str) -> Option<String> {
    if !text.starts_with('"') {
        return None;
    }
    serde_json::from_str(text).ok()
}

struct RawMembersVisitor;

impl<'de> Visitor<'de> for RawMembersVisitor {
    type Value = Vec<ObjectMember<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(key) = map.next_key::<&'de RawValue>()? {
            let value = map.next_value::<&'de RawValue>()?;
            if !key.get().starts_with('"') {
                return Err(A::Error::custom("a key that is no string"));
            }
            members.push(ObjectMember { key: key.get(), value: value.get() });
        }
        Ok(members)
    }
}
