//! JSON as a JavaScript engine reads and writes it (ECMA-262, `JSON.parse` and `JSON.stringify`). Numbers are
//! doubles, and strings are UTF-16 and may hold lone surrogates. Keys that are array indices come first, in
//! order. Of equal keys the last value counts, in the position of the first.
//!
//! Neither reading nor writing recurses, so nesting is limited only by length. A parsed text has at most
//! [`VALUES_MAX`] values, since each value takes many times the memory of its text.

use std::collections::HashMap;

use annals_text::json::{JsonError, JsonScanner, JsonToken, JsonTokenKind, unescape_utf16};

/// Maximum number of values in a text, the outermost included.
pub(super) const VALUES_MAX: usize = 1 << 20;
/// Objects with up to this many members are searched linearly.
const LINEAR_MEMBERS_MAX: usize = 16;

/// A JavaScript value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum JsValue {
    Null,
    Bool(bool),
    Number(f64),
    /// UTF-16 code units.
    Text(Vec<u16>),
    Array(Vec<JsValue>),
    /// In the order in which JavaScript lists them.
    Object(Vec<(Vec<u16>, JsValue)>),
}

/// Drops nested values without recursion.
impl Drop for JsValue {
    fn drop(&mut self) {
        let mut waiting = Vec::new();
        self.take_children(&mut waiting);
        while let Some(mut value) = waiting.pop() {
            value.take_children(&mut waiting);
        }
    }
}

/// Why a text is not JSON, and at which byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JsonSyntaxError {
    pub(super) at: usize,
    pub(super) what: &'static str,
}

impl JsValue {
    fn take_children(&mut self, into: &mut Vec<JsValue>) {
        match self {
            Self::Array(items) => into.append(items),
            Self::Object(members) => into.extend(members.drain(..).map(|(_, value)| value)),
            _ => {}
        }
    }

    /// Parses a text.
    ///
    /// # Errors
    /// If the text is not JSON (RFC 8259; lone surrogates in escapes are accepted).
    pub(super) fn parse(text: &str) -> Result<Self, JsonSyntaxError> {
        JsParser { text, scanner: JsonScanner::new(text.as_bytes()).values_max(VALUES_MAX) }.parse_document()
    }

    /// Whether a valid JSON text has more values than [`JsValue::parse`] accepts, counted by `,`, `[` and `{`
    /// outside of strings.
    pub(super) fn has_too_many_values(text: &str) -> bool {
        if text.len() < VALUES_MAX {
            return false;
        }
        let (mut values, mut in_text, mut bytes) = (1, false, text.bytes());
        while let Some(byte) = bytes.next() {
            match byte {
                b'"' => in_text = !in_text,
                b'\\' => drop(bytes.next()),
                b',' | b'[' | b'{' if !in_text => values += 1,
                _ => {}
            }
        }
        values > VALUES_MAX
    }

    /// The number, if it is one.
    pub(super) fn number(&self) -> Option<f64> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }

    /// A member of an object.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let Self::Object(members) = self else { return None };
        members.iter().find(|(name, _)| name.iter().copied().eq(key.encode_utf16())).map(|(_, value)| value)
    }

    /// The items of an array; empty for any other value.
    pub(super) fn items(&self) -> &[Self] {
        match self {
            Self::Array(items) => items,
            _ => &[],
        }
    }

    /// Gives every text in the value in order, including keys and numbers.
    pub(super) fn for_each_text(&self, each: &mut dyn FnMut(&str)) {
        let mut waiting: Vec<(Option<&Vec<u16>>, &Self)> = vec![(None, self)];
        while let Some((key, value)) = waiting.pop() {
            if let Some(key) = key {
                each(&text_of(key));
            }
            match value {
                Self::Text(units) => each(&text_of(units)),
                Self::Number(number) => each(&number_text(*number)),
                Self::Array(items) => waiting.extend(items.iter().rev().map(|item| (None, item))),
                Self::Object(members) => {
                    waiting.extend(members.iter().rev().map(|(key, value)| (Some(key), value)));
                }
                Self::Null | Self::Bool(_) => {}
            }
        }
    }

    /// Whether JavaScript treats the value as true in a condition.
    pub(super) fn is_truthy(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Bool(value) => *value,
            Self::Number(number) => *number != 0.0 && !number.is_nan(),
            Self::Text(units) => !units.is_empty(),
            Self::Array(_) | Self::Object(_) => true,
        }
    }

    /// Appends the value as a JavaScript template string would.
    pub(super) fn put_text(&self, out: &mut Vec<u16>) {
        match self {
            Self::Text(units) => out.extend_from_slice(units),
            Self::Object(_) => push_text(out, "[object Object]"),
            Self::Array(items) => {
                // Nested arrays are joined by the same rule.
                let mut waiting: Vec<(&[Self], bool)> = vec![(items, true)];
                while let Some((rest, first)) = waiting.pop() {
                    let Some((item, rest)) = rest.split_first() else { continue };
                    if !first {
                        push_text(out, ",");
                    }
                    waiting.push((rest, false));
                    match item {
                        Self::Null => {}
                        Self::Array(items) => waiting.push((items, true)),
                        other => other.put_text(out),
                    }
                }
            }
            other => other.put_json(out),
        }
    }

    /// Appends the output of `JSON.stringify`.
    pub(super) fn put_json(&self, out: &mut Vec<u16>) {
        self.put_json_bounded(None, usize::MAX, out);
    }

    /// Appends the output of `JSON.stringify` with `width` spaces for each level, unless that takes more than
    /// `units_max` units. The limit is needed because indentation grows with the square of the depth, which
    /// the caller's text decides. Returns whether the output was appended.
    pub(super) fn put_indented(&self, width: usize, units_max: usize, out: &mut Vec<u16>) -> bool {
        let before = out.len();
        let fits = self.put_json_bounded(Some(width), before.saturating_add(units_max), out);
        if !fits {
            out.truncate(before);
        }
        fits
    }

    /// Returns false as soon as `out` is longer than `most` units.
    fn put_json_bounded(&self, indent: Option<usize>, most: usize, out: &mut Vec<u16>) -> bool {
        enum WriteStep<'a> {
            Value(&'a JsValue),
            Items(&'a [JsValue], bool),
            Members(&'a [(Vec<u16>, JsValue)], bool),
        }
        let mut depth = 0;
        let mut steps = vec![WriteStep::Value(self)];
        let line = |out: &mut Vec<u16>, depth: usize| {
            if let Some(width) = indent {
                out.push(u16::from(b'\n'));
                out.extend(std::iter::repeat_n(u16::from(b' '), width * depth));
            }
        };
        while let Some(step) = steps.pop() {
            if out.len() > most {
                return false;
            }
            match step {
                WriteStep::Value(Self::Null) => push_text(out, "null"),
                WriteStep::Value(Self::Bool(value)) => push_text(out, if *value { "true" } else { "false" }),
                WriteStep::Value(Self::Number(number)) => push_text(out, &number_text(*number)),
                WriteStep::Value(Self::Text(units)) => put_quoted(units, out),
                WriteStep::Value(Self::Array(items)) => {
                    push_text(out, "[");
                    depth += 1;
                    steps.push(WriteStep::Items(items, true));
                }
                WriteStep::Value(Self::Object(members)) => {
                    push_text(out, "{");
                    depth += 1;
                    steps.push(WriteStep::Members(members, true));
                }
                WriteStep::Items(rest, first) => match rest.split_first() {
                    None => {
                        depth -= 1;
                        if !first {
                            line(out, depth);
                        }
                        push_text(out, "]");
                    }
                    Some((item, rest)) => {
                        if !first {
                            push_text(out, ",");
                        }
                        line(out, depth);
                        steps.push(WriteStep::Items(rest, false));
                        steps.push(WriteStep::Value(item));
                    }
                },
                WriteStep::Members(rest, first) => match rest.split_first() {
                    None => {
                        depth -= 1;
                        if !first {
                            line(out, depth);
                        }
                        push_text(out, "}");
                    }
                    Some(((key, value), rest)) => {
                        if !first {
                            push_text(out, ",");
                        }
                        line(out, depth);
                        put_quoted(key, out);
                        push_text(out, if indent.is_some() { ": " } else { ":" });
                        steps.push(WriteStep::Members(rest, false));
                        steps.push(WriteStep::Value(value));
                    }
                },
            }
        }
        out.len() <= most
    }
}

/// The text of UTF-16 code units. Lone surrogates are replaced.
pub(super) fn text_of(units: &[u16]) -> String {
    let bytes = units.iter().map(|unit| u8::try_from(*unit).unwrap_or(u8::MAX));
    let bytes: Vec<u8> = bytes.collect();
    match bytes.is_ascii() {
        true => String::from_utf8(bytes).unwrap_or_default(),
        false => String::from_utf16_lossy(units),
    }
}

/// Appends text.
pub(super) fn push_text(out: &mut Vec<u16>, text: &str) {
    out.extend(text.encode_utf16());
}

/// A number as JavaScript writes it (`Number::toString`); a number that is not finite is `null` in JSON.
fn number_text(number: f64) -> String {
    if !number.is_finite() {
        return "null".to_owned();
    }
    serde_json_canonicalizer::to_string(&number).unwrap_or_else(|_| "null".to_owned())
}

/// Appends a string in quotes (`QuoteJSONString`).
fn put_quoted(units: &[u16], out: &mut Vec<u16>) {
    push_text(out, "\"");
    for unit in char::decode_utf16(units.iter().copied()) {
        match unit {
            Ok('"') => push_text(out, "\\\""),
            Ok('\\') => push_text(out, "\\\\"),
            Ok('\u{8}') => push_text(out, "\\b"),
            Ok('\u{c}') => push_text(out, "\\f"),
            Ok('\n') => push_text(out, "\\n"),
            Ok('\r') => push_text(out, "\\r"),
            Ok('\t') => push_text(out, "\\t"),
            Ok(control) if control < ' ' => push_text(out, &format!("\\u{:04x}", u32::from(control))),
            Ok(other) => out.extend_from_slice(other.encode_utf16(&mut [0; 2])),
            Err(lone) => push_text(out, &format!("\\u{:04x}", lone.unpaired_surrogate())),
        }
    }
    push_text(out, "\"");
}

struct JsParser<'a> {
    text: &'a str,
    scanner: JsonScanner<'a>,
}

/// An array or object whose end is not read yet; the outermost comes first.
enum OpenContainer {
    Array(Vec<JsValue>),
    /// The members so far, and the key whose value comes next.
    Object(ObjectMembers, Vec<u16>),
}

#[derive(Default)]
struct ObjectMembers {
    all: Vec<(Vec<u16>, JsValue)>,
    places: HashMap<Vec<u16>, usize>,
}

impl ObjectMembers {
    fn insert(&mut self, key: Vec<u16>, value: JsValue) {
        // Most objects have few members, and there can be as many objects as bytes. Small objects therefore
        // have no hash table.
        let place = match self.all.len() {
            0..LINEAR_MEMBERS_MAX => self.all.iter().position(|(name, _)| *name == key),
            LINEAR_MEMBERS_MAX => {
                self.places = self.all.iter().map(|(name, _)| name.clone()).zip(0..).collect();
                self.places.get(&key).copied()
            }
            _ => self.places.get(&key).copied(),
        };
        match place.and_then(|place| self.all.get_mut(place)) {
            Some(member) => member.1 = value,
            None => {
                if self.all.len() >= LINEAR_MEMBERS_MAX {
                    self.places.insert(key.clone(), self.all.len());
                }
                if self.all.is_empty() {
                    self.all.reserve_exact(1);
                }
                self.all.push((key, value));
            }
        }
    }

    /// Array indices first, in numeric order, then the other keys in insertion order.
    fn into_listed(mut self) -> Vec<(Vec<u16>, JsValue)> {
        self.all.sort_by_key(|(key, _)| array_index(key).map_or((true, 0), |index| (false, index)));
        self.all
    }
}

/// The array index that a key denotes, if it is one: canonical decimal form, below 2^32 - 1.
fn array_index(key: &[u16]) -> Option<u32> {
    let digits: Option<String> =
        key.iter().map(|unit| char::from_u32(u32::from(*unit)).filter(char::is_ascii_digit)).collect();
    let digits = digits.filter(|digits| digits == "0" || (!digits.is_empty() && !digits.starts_with('0')))?;
    digits.parse::<u32>().ok().filter(|index| *index < u32::MAX)
}

impl From<JsonError> for JsonSyntaxError {
    fn from(error: JsonError) -> Self {
        match error {
            JsonError::Malformed { at, what } => Self { at, what },
            JsonError::TooManyValues { at } => Self { at, what: "it has more than 1,048,576 values" },
        }
    }
}

impl JsParser<'_> {
    fn parse_document(mut self) -> Result<JsValue, JsonSyntaxError> {
        let mut open: Vec<OpenContainer> = Vec::new();
        let mut whole = JsValue::Null;
        while let Some(token) = self.scanner.next_token()? {
            let value = match token.kind {
                JsonTokenKind::ArrayStart => {
                    open.push(OpenContainer::Array(Vec::new()));
                    continue;
                }
                JsonTokenKind::ObjectStart => {
                    open.push(OpenContainer::Object(ObjectMembers::default(), Vec::new()));
                    continue;
                }
                JsonTokenKind::Name => {
                    let name = self.units(token);
                    if let Some(OpenContainer::Object(_, key)) = open.last_mut() {
                        *key = name;
                    }
                    continue;
                }
                JsonTokenKind::ArrayEnd | JsonTokenKind::ObjectEnd => match open.pop() {
                    Some(OpenContainer::Array(items)) => JsValue::Array(items),
                    Some(OpenContainer::Object(members, _)) => JsValue::Object(members.into_listed()),
                    None => continue,
                },
                JsonTokenKind::Text => JsValue::Text(self.units(token)),
                JsonTokenKind::Number => self.number(token)?,
                JsonTokenKind::Bool(value) => JsValue::Bool(value),
                JsonTokenKind::Null => JsValue::Null,
            };
            match open.last_mut() {
                None => whole = value,
                Some(OpenContainer::Array(items)) => items.push(value),
                Some(OpenContainer::Object(members, key)) => members.insert(std::mem::take(key), value),
            }
        }
        Ok(whole)
    }

    fn number(&self, token: JsonToken) -> Result<JsValue, JsonSyntaxError> {
        let number = self.text.get(token.range()).and_then(|text| text.parse().ok());
        number.map(JsValue::Number).ok_or(JsonSyntaxError { at: token.end, what: "this is no number" })
    }

    fn units(&self, token: JsonToken) -> Vec<u16> {
        let mut units = Vec::new();
        unescape_utf16(self.text.get(token.inner()).unwrap_or_default(), &mut units);
        units
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(text: &str) -> String {
        let mut out = Vec::new();
        JsValue::parse(text).unwrap().put_json(&mut out);
        String::from_utf16(&out).unwrap()
    }

    /// Expected values are node 20's output of `JSON.stringify(JSON.parse(text))`.
    #[test]
    fn value_written_as_javascript_writes_it() {
        for (text, expected) in [
            (
                " [ 1 , 2.50 , -0 , 1e21 , 1e20 , 1e-7 , 0.000001 , 123456789012345680000 ] ",
                "[1,2.5,0,1e+21,100000000000000000000,1e-7,0.000001,123456789012345680000]",
            ),
            ("1e400", "null"),
            ("9007199254740993", "9007199254740992"),
            (r#"{"b":1,"a":2,"10":3,"9":4,"01":5,"b":6}"#, r#"{"9":4,"10":3,"b":6,"a":2,"01":5}"#),
            (r#"{"4294967294":1,"4294967295":2,"0":3}"#, r#"{"0":3,"4294967294":1,"4294967295":2}"#),
            (
                r#""\u0041\u00e9\ud83d\ude00\/\b\f\n\r\t\u0001\u007f""#,
                "\"Aé😀/\\b\\f\\n\\r\\t\\u0001\u{7f}\"",
            ),
            (r#""\ud83d and \uDE00""#, r#""\ud83d and \ude00""#),
            ("\"\u{2028}<é>\"", "\"\u{2028}<é>\""),
            ("[[],{},[[]],null,true,false]", "[[],{},[[]],null,true,false]"),
        ] {
            assert_eq!(round_trip(text), expected, "{text}");
        }
    }

    #[test]
    fn parse_invalid_json_gives_byte_position() {
        for (text, at) in [
            ("", 0),
            ("[1,]", 3),
            ("{\"a\" 1}", 6),
            ("{,}", 1),
            ("01", 1),
            ("1.", 2),
            ("-", 1),
            ("1e+", 3),
            ("nul", 0),
            ("\"a", 2),
            ("\"\\x\"", 3),
            ("\"\\u12g4\"", 6),
            ("\"\n\"", 2),
            ("1 2", 2),
            ("[1", 2),
            ("+1", 0),
            ("{\"a\":1", 6),
        ] {
            let refused = JsValue::parse(text).unwrap_err();
            assert!(refused.at == at || refused.at == at + 1, "{text:?}: {refused:?}");
        }
    }

    /// Reading, writing or dropping a value a million levels deep once overflowed the stack.
    #[test]
    fn deep_nesting_uses_no_stack() {
        let depth = 1_000_000;
        let text = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(round_trip(&text), text);
        let objects = format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
        assert_eq!(round_trip(&objects), objects);
        let mut out = Vec::new();
        JsValue::parse(&text).unwrap().put_text(&mut out);
        assert!(out.is_empty());
    }
}
