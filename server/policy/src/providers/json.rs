//! Reads parts of JSON from outside without building a tree.
//!
//! A `JsonNode` is a piece of the source text. Each step down scans that piece once, so a walk of fixed depth
//! is linear in the body. Memory depends on the parts read, not on the body. Deep nesting uses no stack:
//! skipped values are handled by serde_json's scanner, which has its own. Absent, null and wrongly typed
//! values read as absent; nothing here fails.
//!
//! Left out on purpose: numbers beyond 64 bits, and the order of equal keys (the last one counts).

use std::borrow::Cow;
use std::fmt;

use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Maximum number of keys read of one object.
const FIELDS_MAX: usize = 4096;
/// Maximum number of items read of one array.
pub(super) const ITEMS_MAX: usize = 1 << 17;

/// A piece of JSON source, or nothing. Never `null`, which reads as nothing.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct JsonNode<'a>(&'a str);

/// The keys and values of an object, in source order.
#[derive(Debug, Clone, Default)]
pub(super) struct JsonFields<'a>(Vec<(String, JsonNode<'a>)>);

/// The items of an array, and how many more there were.
#[derive(Debug, Clone, Default)]
pub(super) struct JsonItems<'a> {
    pub(super) nodes: Vec<JsonNode<'a>>,
    pub(super) more: usize,
}

impl<'a> JsonNode<'a> {
    /// Parses `bytes` as one JSON value.
    ///
    /// # Errors
    /// A sentence that says where it stops being JSON.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes)
            .map_err(|error| format!("is not UTF-8 after byte {}", error.valid_up_to()))?;
        let raw: &RawValue = serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))?;
        Ok(Self::from_raw(raw))
    }

    fn from_raw(raw: &'a RawValue) -> Self {
        Self(if raw.get() == "null" { "" } else { raw.get() })
    }

    /// The source text; empty for an absent value.
    pub(super) fn source(self) -> &'a str {
        self.0
    }

    pub(super) fn is_absent(self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn is_array(self) -> bool {
        self.0.starts_with('[')
    }

    pub(super) fn is_string(self) -> bool {
        self.0.starts_with('"')
    }

    pub(super) fn is_object(self) -> bool {
        self.0.starts_with('{')
    }

    /// The value under `key`. Scans the whole object; use [`Self::fields`] for more than one or two keys.
    pub(super) fn get(self, key: &str) -> Self {
        self.fields().get(key)
    }

    pub(super) fn fields(self) -> JsonFields<'a> {
        if !self.is_object() {
            return JsonFields::default();
        }
        serde_json::Deserializer::from_str(self.0).deserialize_map(JsonFieldsVisitor).unwrap_or_default()
    }

    pub(super) fn items(self) -> JsonItems<'a> {
        if !self.is_array() {
            return JsonItems::default();
        }
        serde_json::Deserializer::from_str(self.0).deserialize_seq(JsonItemsVisitor).unwrap_or_default()
    }

    /// The text of a string. If its escapes are invalid (half a surrogate pair), the source between the
    /// quotes.
    pub(super) fn text(self) -> Option<Cow<'a, str>> {
        let inner = self.0.strip_prefix('"')?.strip_suffix('"')?;
        if !inner.contains('\\') {
            return Some(Cow::Borrowed(inner));
        }
        Some(serde_json::from_str(self.0).map_or(Cow::Borrowed(inner), Cow::Owned))
    }

    /// The beginning of a string's text; decodes at most `bytes_max` bytes of its source.
    pub(super) fn text_head(self, bytes_max: usize) -> Option<String> {
        let inner = self.0.strip_prefix('"')?.strip_suffix('"')?;
        let mut head = super::text::clip(inner, bytes_max);
        // The cut may split an escape, of at most twelve bytes for a surrogate pair.
        for _ in 0..12 {
            if let Ok(text) = serde_json::from_str::<String>(&format!("\"{head}\"")) {
                return Some(text);
            }
            head = super::text::clip(head, head.len().saturating_sub(1));
        }
        Some(head.to_owned())
    }

    pub(super) fn string(self) -> Option<String> {
        self.text().map(Cow::into_owned)
    }

    /// A string's text, or the source of a number or boolean: codes occur as either.
    pub(super) fn scalar(self) -> Option<String> {
        if self.is_absent() || self.is_array() || self.is_object() {
            return None;
        }
        self.string().or_else(|| Some(self.0.to_owned()))
    }

    pub(super) fn number(self) -> Option<u64> {
        self.0.parse().ok()
    }

    pub(super) fn truth(self) -> Option<bool> {
        self.0.parse().ok()
    }
}

impl<'a> JsonFields<'a> {
    pub(super) fn get(&self, key: &str) -> JsonNode<'a> {
        self.0.iter().rev().find(|(name, _)| name == key).map_or(JsonNode::default(), |(_, node)| *node)
    }

    /// Whether there may be more keys than were read.
    pub(super) fn is_clipped(&self) -> bool {
        self.0.len() == FIELDS_MAX
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, JsonNode<'a>)> {
        self.0.iter().map(|(name, node)| (name.as_str(), *node))
    }
}

struct JsonFieldsVisitor;

impl<'de> Visitor<'de> for JsonFieldsVisitor {
    type Value = JsonFields<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Vec::new();
        while fields.len() < FIELDS_MAX {
            let Some((key, raw)) = map.next_entry::<String, &RawValue>()? else { break };
            fields.push((key, JsonNode::from_raw(raw)));
        }
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(JsonFields(fields))
    }
}

struct JsonItemsVisitor;

impl<'de> Visitor<'de> for JsonItemsVisitor {
    type Value = JsonItems<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items = JsonItems::default();
        while items.nodes.len() < ITEMS_MAX {
            let Some(raw) = seq.next_element::<&RawValue>()? else { return Ok(items) };
            items.nodes.push(JsonNode::from_raw(raw));
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {
            items.more += 1;
        }
        Ok(items)
    }
}

/// The complete values of a sequence: one after another, or a possibly cut array. The second result is the
/// number of remaining bytes that are no value.
pub(super) fn values(text: &str) -> (Vec<JsonNode<'_>>, usize) {
    let mut nodes = Vec::new();
    let mut rest = text.trim_ascii_start();
    rest = rest.strip_prefix('[').unwrap_or(rest);
    while nodes.len() < ITEMS_MAX {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n', ',']);
        let mut stream = serde_json::Deserializer::from_str(rest).into_iter::<&RawValue>();
        let Some(Ok(raw)) = stream.next() else { break };
        let end = stream.byte_offset();
        nodes.push(JsonNode::from_raw(raw));
        rest = rest.get(end..).unwrap_or_default();
    }
    rest = rest.trim_ascii();
    (nodes, if rest == "]" { 0 } else { rest.len() })
}

#[cfg(test)]
mod tests {
    use super::{FIELDS_MAX, ITEMS_MAX, JsonNode, values};

    #[test]
    fn absent_values_read_as_absent() {
        let body = br#" {"a":{"b":[1,"two \u00e9",null]},"n":null,"a2":true,"x":1,"x":2} "#;
        let node = JsonNode::parse(body).unwrap();
        let items = node.get("a").get("b").items();
        assert_eq!(items.nodes.len(), 3);
        assert_eq!(items.nodes[0].number(), Some(1));
        assert_eq!(items.nodes[1].text().unwrap(), "two é");
        assert!(items.nodes[2].is_absent());
        assert!(node.get("n").get("deeper").items().nodes.is_empty());
        assert_eq!(node.get("a2").truth(), Some(true));
        assert_eq!(node.get("x").number(), Some(2), "the last of two equal keys counts");
        assert_eq!(JsonNode::parse(br#""\ud83d""#).unwrap().text().unwrap(), r"\ud83d");
    }

    #[test]
    fn deep_nesting_takes_no_stack_and_wide_arrays_are_bounded() {
        let deep = format!("{{\"a\":{}{},\"b\":7}}", "[".repeat(3 << 20), "]".repeat(3 << 20));
        assert_eq!(JsonNode::parse(deep.as_bytes()).unwrap().get("b").number(), Some(7));
        let wide = format!("[{}0]", "0,".repeat(ITEMS_MAX + 4));
        let items = JsonNode::parse(wide.as_bytes()).unwrap().items();
        assert_eq!((items.nodes.len(), items.more), (ITEMS_MAX, 5));
        let keys: String = (0..FIELDS_MAX + 9).map(|key| format!("\"{key}\":{key},")).collect();
        let object = format!("{{{}\"z\":1}}", keys);
        assert_eq!(JsonNode::parse(object.as_bytes()).unwrap().fields().iter().count(), FIELDS_MAX);
    }

    #[test]
    fn values_are_read_from_cut_arrays_and_lines() {
        let count = |text| {
            let (nodes, rest) = values(text);
            (nodes.len(), rest)
        };
        assert_eq!(count("[{\"a\":1},\r\n{\"a\":2}]\n"), (2, 0));
        assert_eq!(count("[{\"a\":1},\n{\"a\":"), (1, 5));
        assert_eq!(count("{\"a\":1}\n{\"a\":2}\n"), (2, 0));
        assert_eq!(count("<html>"), (0, 6));
        assert_eq!(count(""), (0, 0));
    }

    #[test]
    fn invalid_json_is_an_error() {
        assert!(JsonNode::parse(b"{\"a\":").unwrap_err().starts_with("is not JSON: EOF"));
        assert!(JsonNode::parse(b"\"\xff\"").unwrap_err().starts_with("is not UTF-8 after byte 1"));
    }
}
