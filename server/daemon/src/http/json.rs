//! Conversion of JSON to commands, and of replies to JSON.
//!
//! Bytes that are UTF-8 become a string, others `{"base64": "..."}`. A string is never ambiguous, because an
//! object is not one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use annals_wire::resp::Reply;
use annals_wire::schema::routes::Kind;

/// The members of a request's JSON object, as raw JSON. A repeated member is refused, because parsers differ
/// on which one counts.
#[derive(Debug, Default)]
pub(super) struct Members(BTreeMap<String, Box<RawValue>>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    if members.insert(name.clone(), value).is_some() {
                        return Err(A::Error::custom(format!("{name:?} occurs twice")));
                    }
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

impl Members {
    /// Parses a body; an empty body is an empty object.
    ///
    /// # Errors
    /// The error as a sentence.
    pub(super) fn parse(body: &[u8]) -> Result<Self, String> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self::default());
        }
        serde_json::from_slice(body).map_err(|error| format!("the body is not a JSON object: {error}"))
    }

    /// Takes a member out; null counts as absent.
    pub(super) fn take(&mut self, name: &str) -> Option<Box<RawValue>> {
        self.0.remove(name).filter(|value| value.get() != "null")
    }

    /// Expects that all members have been taken.
    ///
    /// # Errors
    /// An unknown member is left.
    pub(super) fn end(&self) -> Result<(), String> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => Err(format!("unknown member {name:?}")),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Bytes {
    Text(String),
    Base64(Base64),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Base64 {
    base64: String,
}

/// The words for a member, after the option name `word` if there is one.
///
/// # Errors
/// The error as a sentence.
pub(super) fn words(
    name: &str,
    value: &RawValue,
    kind: Kind,
    word: Option<&str>,
) -> Result<Vec<Vec<u8>>, String> {
    let wrong = |what: &str| format!("{name:?} is not {what}");
    let text = value.get();
    let behind =
        |bytes: Vec<u8>| word.map(|word| word.as_bytes().to_vec()).into_iter().chain([bytes]).collect();
    match kind {
        Kind::Text | Kind::Of(_) => serde_json::from_str::<String>(text)
            .map(|text| behind(text.into_bytes()))
            .map_err(|_| wrong("a text")),
        Kind::Number | Kind::Count | Kind::Frame => {
            // 5.0 is an integer in JSON Schema, and for clients without an integer type.
            let whole =
                text.split_once('.').filter(|(_, fraction)| fraction.bytes().all(|byte| byte == b'0'));
            let digits = whole.map_or(text, |(digits, _)| digits);
            let number =
                serde_json::from_str::<u64>(digits).ok().filter(|number| i64::try_from(*number).is_ok());
            number
                .map(|number| behind(number.to_string().into_bytes()))
                .ok_or_else(|| wrong("an integer from 0 to 2^63-1"))
        }
        Kind::Flag => {
            let flag = serde_json::from_str::<bool>(text).map_err(|_| wrong("true or false"))?;
            let word = word.filter(|_| flag);
            Ok(word.map(|word| word.as_bytes().to_vec()).into_iter().collect())
        }
        Kind::Json => Ok(behind(match serde_json::from_str::<String>(text) {
            Ok(text) => text.into_bytes(),
            Err(_) => text.as_bytes().to_vec(),
        })),
        Kind::Bytes => match serde_json::from_str(text) {
            Ok(Bytes::Text(text)) => Ok(behind(text.into_bytes())),
            Ok(Bytes::Base64(Base64 { base64 })) => {
                STANDARD.decode(base64).map(behind).map_err(|_| wrong("base64 (RFC 4648, with padding)"))
            }
            Err(_) => Err(wrong("a text or {\"base64\": \"...\"}")),
        },
        Kind::Real => {
            serde_json::from_str::<f64>(text).map_err(|_| wrong("a number"))?;
            Ok(behind(text.as_bytes().to_vec()))
        }
        Kind::Names => {
            let names: Vec<String> = serde_json::from_str(text).map_err(|_| wrong("an array of texts"))?;
            Ok(behind(names.join(",").into_bytes()))
        }
        Kind::Vector => {
            let vector: Vec<f32> = serde_json::from_str(text).map_err(|_| wrong("an array of numbers"))?;
            Ok(behind(vector.into_iter().flat_map(f32::to_le_bytes).collect()))
        }
        Kind::Jsons => {
            let each: Vec<&RawValue> = serde_json::from_str(text).map_err(|_| wrong("an array"))?;
            let each: Vec<Vec<u8>> = each.into_iter().map(|one| one.get().as_bytes().to_vec()).collect();
            if each.is_empty() { Err(wrong("an array that holds something")) } else { Ok(each) }
        }
        Kind::Texts => {
            let texts: BTreeMap<String, String> =
                serde_json::from_str(text).map_err(|_| wrong("an object of texts"))?;
            let each = texts.into_iter().flat_map(|(key, value)| [key.into_bytes(), value.into_bytes()]);
            Ok(spread(word, each.collect()))
        }
        Kind::Vectors => {
            let vectors: BTreeMap<String, Vec<f32>> =
                serde_json::from_str(text).map_err(|_| wrong("an object of arrays of numbers"))?;
            let bytes = |vector: Vec<f32>| vector.into_iter().flat_map(f32::to_le_bytes).collect();
            let each = vectors.into_iter().flat_map(|(key, vector)| [key.into_bytes(), bytes(vector)]);
            Ok(spread(word, each.collect()))
        }
    }
}

/// Pairs, each after the option name.
fn spread(word: Option<&str>, each: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    for pair in each.chunks(2) {
        words.extend(word.map(|word| word.as_bytes().to_vec()));
        words.extend_from_slice(pair);
    }
    words
}

/// A reply as JSON. The nesting depth is set by the command, never by client input.
pub(super) fn text(reply: Reply) -> String {
    let mut out = String::new();
    put(reply, &mut out);
    out
}

fn put(reply: Reply, out: &mut String) {
    let plain: Value = match reply {
        Reply::Json(text) => return out.push_str(&text),
        Reply::Array(items) | Reply::Set(items) | Reply::Push(items) => {
            out.push('[');
            for (number, item) in items.into_iter().enumerate() {
                out.push_str(if number > 0 { "," } else { "" });
                put(item, out);
            }
            return out.push(']');
        }
        Reply::Map(pairs) => {
            let members: BTreeMap<String, Reply> =
                pairs.into_iter().map(|(key, of)| (name(key), of)).collect();
            out.push('{');
            for (number, (name, of)) in members.into_iter().enumerate() {
                out.push_str(if number > 0 { "," } else { "" });
                out.push_str(&Value::from(name).to_string());
                out.push(':');
                put(of, out);
            }
            return out.push('}');
        }
        Reply::Simple(text) => text.into_owned().into(),
        Reply::Error(text) => text.into(),
        Reply::Integer(number) => number.into(),
        Reply::Shared(bytes) => return put(Reply::Bulk(Arc::unwrap_or_clone(bytes)), out),
        Reply::Bulk(bytes) | Reply::Verbatim(_, bytes) => match String::from_utf8(bytes) {
            Ok(text) => text.into(),
            Err(other) => Value::Object(Map::from_iter([(
                "base64".to_owned(),
                STANDARD.encode(other.as_bytes()).into(),
            )])),
        },
        Reply::Null | Reply::NullArray => Value::Null,
        Reply::Double(number) => number.into(),
        Reply::Boolean(yes) => yes.into(),
    };
    out.push_str(&plain.to_string());
}

fn name(reply: Reply) -> String {
    match reply {
        Reply::Bulk(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        other => text(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words_of(json: &str, kind: Kind, word: Option<&str>) -> Result<Vec<String>, String> {
        let raw: Box<RawValue> = serde_json::from_str(json).unwrap();
        let words = words("x", &raw, kind, word)?;
        Ok(words.into_iter().map(|word| word.escape_ascii().to_string()).collect())
    }

    #[test]
    fn members_become_words() {
        let ok =
            |json, kind, word, expected: &[&str]| assert_eq!(words_of(json, kind, word).unwrap(), expected);
        ok("\"a\\u00e9\"", Kind::Text, Some("NAME"), &["NAME", "a\\xc3\\xa9"]);
        ok("\"a\"", Kind::Bytes, None, &["a"]);
        ok("{\"base64\":\"/wA=\"}", Kind::Bytes, None, &["\\xff\\x00"]);
        ok("{\"a\": 1.50}", Kind::Json, Some("METADATA"), &["METADATA", "{\\\"a\\\": 1.50}"]);
        ok("\"{}\"", Kind::Json, None, &["{}"]);
        ok("9223372036854775807", Kind::Number, None, &["9223372036854775807"]);
        ok("5.00", Kind::Frame, None, &["5"]);
        ok("true", Kind::Flag, Some("EDIT"), &["EDIT"]);
        ok("false", Kind::Flag, Some("EDIT"), &[]);
        ok("{\"b\":\"2\",\"a\":\"1\"}", Kind::Texts, Some("TAG"), &["TAG", "a", "1", "TAG", "b", "2"]);
        ok("0.50", Kind::Real, Some("MINSCORE"), &["MINSCORE", "0.50"]);
        ok("-1e0", Kind::Real, None, &["-1e0"]);
        ok("[\"hot\",\"cold\"]", Kind::Names, Some("TIERS"), &["TIERS", "hot,cold"]);
        ok("[]", Kind::Names, Some("TIERS"), &["TIERS", ""]);
        ok("[1,0.5]", Kind::Vector, Some("FP32"), &["FP32", "\\x00\\x00\\x80?\\x00\\x00\\x00?"]);
        ok("[{ \"a\": 1.50 },2]", Kind::Jsons, None, &["{ \\\"a\\\": 1.50 }", "2"]);
        ok("{\"m\":[1,0.5]}", Kind::Vectors, Some("E"), &["E", "m", "\\x00\\x00\\x80?\\x00\\x00\\x00?"]);
        for (json, kind) in [
            ("1", Kind::Text),
            ("-1", Kind::Number),
            ("9223372036854775808", Kind::Number),
            ("1.5", Kind::Number),
            ("\"yes\"", Kind::Flag),
            ("{\"base64\":\"/wA\"}", Kind::Bytes),
            ("{\"base64\":\"\",\"x\":1}", Kind::Bytes),
            ("[1]", Kind::Bytes),
            ("{\"a\":1}", Kind::Texts),
            ("{\"a\":[\"b\"]}", Kind::Vectors),
            ("\"1\"", Kind::Real),
            ("\"hot\"", Kind::Names),
            ("[1,null]", Kind::Vector),
            ("[]", Kind::Jsons),
            ("{}", Kind::Jsons),
        ] {
            assert!(words_of(json, kind, None).unwrap_err().contains("\"x\" is not "), "{json}");
        }
    }

    #[test]
    fn a_member_twice_or_unknown_is_refused() {
        assert!(Members::parse(b"{\"a\":1,\"a\":2}").unwrap_err().contains("twice"));
        assert!(Members::parse(b"[1]").is_err() && Members::parse(b"{").is_err());
        assert!(Members::parse(b" ").unwrap().end().is_ok());
        let mut members = Members::parse(b"{\"a\":1,\"b\":null}").unwrap();
        assert!(members.take("a").is_some() && members.take("b").is_none() && members.end().is_ok());
        assert!(Members::parse(b"{\"c\":1}").unwrap().end().unwrap_err().contains("\"c\""));
        // Deep nesting is only skipped here; parsing the value fails at the depth limit.
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        let deep = Members::parse(deep.as_bytes()).unwrap().take("a").unwrap();
        for kind in [Kind::Text, Kind::Bytes, Kind::Number, Kind::Flag, Kind::Texts, Kind::Vectors] {
            assert!(words("a", &deep, kind, None).is_err());
        }
    }

    #[test]
    fn replies_become_json() {
        let reply = Reply::Map(vec![
            (Reply::text("a"), Reply::Array(vec![Reply::Integer(-1), Reply::Null, Reply::Boolean(true)])),
            (Reply::text("b"), Reply::Bulk(vec![255, 0])),
            (Reply::text("c"), Reply::Double(0.5)),
            // A JSON reply is embedded unchanged, not as a string.
            (Reply::text("d\""), Reply::Json("{ \"x\": 1.50 }".into())),
            (Reply::text("e"), Reply::text("{}")),
        ]);
        let json = r#"{"a":[-1,null,true],"b":{"base64":"/wA="},"c":0.5,"d\"":{ "x": 1.50 },"e":"{}"}"#;
        assert_eq!(text(reply), json);
    }
}
