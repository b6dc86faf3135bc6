//! JSON for the matcher: a tree over the body's own bytes, in which every number keeps its text.
//!
//! `serde_json` reads numbers as 64 bits, so two long ids could become the same number; here they stay
//! different.
//!
//! A body has no tree if it is not JSON (RFC 8259), or if an object has a key twice. The same holds for a
//! body nested deeper than [`DEPTH_MAX`], or with more than [`NODES_MAX`] values. Its bytes are then compared
//! unchanged.
//!
//! Invariant: the members of an object are sorted by key, in the order of RFC 8785 (UTF-16 code units).

use std::borrow::Cow;

use annals_text::json::{JsonScanner, JsonToken, JsonTokenKind, unescape};

/// Maximum depth of nested arrays and objects.
pub(super) const DEPTH_MAX: usize = 128;
/// Maximum number of values in one body. A tree of that size takes about 50 MB.
pub(super) const NODES_MAX: usize = 1 << 20;

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json<'a> {
    Null,
    Bool(bool),
    /// The number's text, as written.
    Number(&'a str),
    Text(Cow<'a, str>),
    Array(Vec<Json<'a>>),
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
    /// A value that a rule left out; it counts as absent.
    Hidden,
}

/// One step of a path to a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum JsonStep<'a> {
    Key(Cow<'a, str>),
    Index(usize),
}

impl<'a> Json<'a> {
    /// The tree of a body; `None` if it has none.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        JsonTreeParser::new(bytes)?.whole()
    }

    /// The path to the innermost value that covers byte `offset`; `None` if the body has no tree.
    pub(super) fn path_to(bytes: &'a [u8], offset: usize) -> Option<Vec<JsonStep<'a>>> {
        let mut parser = JsonTreeParser::new(bytes)?;
        parser.wanted = Some(offset);
        parser.whole()?;
        Some(parser.found.unwrap_or_default())
    }

    /// The value's weight in a distance: its bytes of text, and one for each value.
    pub(super) fn weight(&self) -> u64 {
        match self {
            Self::Hidden => 0,
            Self::Null | Self::Bool(_) => 4,
            Self::Number(text) => text.len() as u64,
            Self::Text(text) => 1 + text.len() as u64,
            Self::Array(items) => 1 + items.iter().map(Self::weight).sum::<u64>(),
            Self::Object(members) => {
                1 + members
                    .iter()
                    .filter(|(_, value)| *value != Self::Hidden)
                    .map(|(key, value)| key.len() as u64 + value.weight())
                    .sum::<u64>()
            }
        }
    }

    /// The member with this key.
    pub(super) fn member_mut(&mut self, wanted: &str) -> Option<&mut Self> {
        match self {
            Self::Object(members) => {
                members.iter_mut().find(|(key, _)| key == wanted).map(|(_, value)| value)
            }
            _ => None,
        }
    }
}

struct JsonTreeParser<'a> {
    text: &'a str,
    scanner: JsonScanner<'a>,
    /// The byte whose value is searched, the path to the current value, and the path found.
    wanted: Option<usize>,
    way: Vec<JsonStep<'a>>,
    found: Option<Vec<JsonStep<'a>>>,
}

impl<'a> JsonTreeParser<'a> {
    fn new(bytes: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let scanner = JsonScanner::new(bytes).values_max(NODES_MAX);
        Some(Self { text, scanner, wanted: None, way: Vec::new(), found: None })
    }

    fn token(&mut self) -> Option<JsonToken> {
        self.scanner.next_token().ok().flatten()
    }

    fn whole(&mut self) -> Option<Json<'a>> {
        let first = self.token()?;
        let value = self.value(first, 0)?;
        self.scanner.next_token().ok()?.is_none().then_some(value)
    }

    /// The value that begins with token `first`.
    fn value(&mut self, first: JsonToken, depth: usize) -> Option<Json<'a>> {
        if depth > DEPTH_MAX {
            return None;
        }
        let (value, end) = match first.kind {
            JsonTokenKind::ObjectStart => self.object(depth)?,
            JsonTokenKind::ArrayStart => self.array(depth)?,
            JsonTokenKind::Text => (Json::Text(self.string(first)?), first.end),
            JsonTokenKind::Number => (Json::Number(self.text.get(first.range())?), first.end),
            JsonTokenKind::Bool(value) => (Json::Bool(value), first.end),
            JsonTokenKind::Null => (Json::Null, first.end),
            JsonTokenKind::Name | JsonTokenKind::ObjectEnd | JsonTokenKind::ArrayEnd => return None,
        };
        // The innermost value ends first, so the first match is the innermost.
        if self.found.is_none() && self.wanted.is_some_and(|wanted| (first.start..end).contains(&wanted)) {
            self.found = Some(self.way.clone());
        }
        Some(value)
    }

    fn nested_value(
        &mut self,
        first: JsonToken,
        at: impl FnOnce() -> JsonStep<'a>,
        depth: usize,
    ) -> Option<Json<'a>> {
        if self.wanted.is_none() {
            return self.value(first, depth + 1);
        }
        self.way.push(at());
        let value = self.value(first, depth + 1);
        self.way.pop();
        value
    }

    /// The array whose start token was read, and its end.
    fn array(&mut self, depth: usize) -> Option<(Json<'a>, usize)> {
        let mut items = Vec::new();
        loop {
            let token = self.token()?;
            if token.kind == JsonTokenKind::ArrayEnd {
                return Some((Json::Array(items), token.end));
            }
            let index = items.len();
            items.push(self.nested_value(token, || JsonStep::Index(index), depth)?);
        }
    }

    /// The object whose start token was read, and its end.
    fn object(&mut self, depth: usize) -> Option<(Json<'a>, usize)> {
        let mut members: Vec<(Cow<'a, str>, Json<'a>)> = Vec::new();
        let end = loop {
            let token = self.token()?;
            if token.kind == JsonTokenKind::ObjectEnd {
                break token.end;
            }
            let key = self.string(token)?;
            let first = self.token()?;
            let value = self.nested_value(first, || JsonStep::Key(key.clone()), depth)?;
            members.push((key, value));
        };
        members.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
        // An object with a key twice has no tree: readers differ in which member they take.
        let twice = members.windows(2).any(|pair| pair[0].0 == pair[1].0);
        (!twice).then_some((Json::Object(members), end))
    }

    fn string(&self, token: JsonToken) -> Option<Cow<'a, str>> {
        let inner = self.text.get(token.inner())?;
        if token.escaped { unescape(inner) } else { Some(Cow::Borrowed(inner)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn json_refused_by_serde_json_has_no_tree() {
        for bad in [
            "",
            "{",
            "[1,]",
            "{\"a\":1,}",
            "01",
            "-",
            "1.",
            "1e",
            "\"\u{1}\"",
            r#""\ud800""#,
            "1 2",
            "nul",
            "{a:1}",
        ] {
            assert!(serde_json::from_str::<serde_json::Value>(bad).is_err(), "{bad}");
            assert_eq!(Json::parse(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(Json::parse(b"\xff"), None);
        assert_eq!(Json::parse(br#"{"a":1,"\u0061":2}"#), None, "a key twice");
        assert_eq!(Json::parse(" [ 1e400 , -0.5 ] ".as_bytes()), {
            Some(Json::Array(vec![Json::Number("1e400"), Json::Number("-0.5")]))
        });
    }

    #[test]
    fn depth_and_number_of_values_are_bounded() {
        let deep = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
        assert!(Json::parse(deep(DEPTH_MAX).as_bytes()).is_some());
        assert_eq!(Json::parse(deep(DEPTH_MAX + 1).as_bytes()), None);
        assert_eq!(Json::parse(deep(100_000).as_bytes()), None);
        assert_eq!(Json::parse("[".repeat(100_000).as_bytes()), None);
        let many = |count: usize| format!("[{}1]", "1,".repeat(count - 2));
        assert!(Json::parse(many(NODES_MAX).as_bytes()).is_some());
        assert_eq!(Json::parse(many(NODES_MAX + 1).as_bytes()), None);
    }

    #[test]
    fn a_byte_leads_to_the_innermost_value() {
        let body = br#"{"a":[{"b c":"xyz"}],"d":1}"#;
        let way = |what: &[u8]| {
            let offset = memchr::memmem::find(body, what).unwrap();
            Json::path_to(body, offset).unwrap()
        };
        let key = |key: &'static str| JsonStep::Key(Cow::Borrowed(key));
        assert_eq!(way(b"yz"), [key("a"), JsonStep::Index(0), key("b c")]);
        assert_eq!(way(b"b c"), [key("a"), JsonStep::Index(0)], "a key belongs to its object");
        assert_eq!(way(b"1"), [key("d")]);
        assert_eq!(way(b"{"), []);
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_tree_only_where_serde_json_reads_them(text in "[\\[\\]{}\",:0-9eE.+\\-a\\\\u \u{e9}]{0,24}") {
            if Json::parse(text.as_bytes()).is_some() {
                // 1e400 is valid JSON, although serde_json has no number for it.
                let read = serde_json::from_str::<&serde_json::value::RawValue>(text.trim());
                prop_assert!(read.is_ok(), "{}", text);
            } else if let Ok(value) = serde_json::from_str::<serde_json::Value>(&text) {
                // Objects with a key twice are the only JSON that this parser refuses in addition.
                prop_assert!(value.to_string().contains('{'), "{}", text);
            }
        }
    }
}
