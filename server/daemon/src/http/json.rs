//! Conversion of JSON to commands, and of replies to JSON.
//!
//! Bytes that are UTF-8 become a string, others `{"base64": "..."}`. A string is never ambiguous, because an
//! object is not one.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use annals_wire::resp::Reply;
use annals_wire::schema::routes::MemberKind;

/// The members of a request's JSON object, as raw JSON. A repeated member is refused, because parsers differ
/// on which one counts.
#[derive(Debug, Default)]
pub(super) struct JsonMembers(BTreeMap<String, Box<RawValue>>);

impl<'de> Deserialize<'de> for JsonMembers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct JsonMembersVisitor;
        impl<'de> Visitor<'de> for JsonMembersVisitor {
            type Value = JsonMembers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonMembers, A::Error> {
                let mut members = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    if members.insert(name.clone(), value).is_some() {
                        return Err(A::Error::custom(format!("{name:?} occurs twice")));
                    }
                }
                Ok(JsonMembers(members))
            }
        }
        deserializer.deserialize_map(JsonMembersVisitor)
    }
}

impl JsonMembers {
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
    pub(super) fn expect_empty(&self) -> Result<(), String> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => Err(format!("unknown member {name:?}")),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum JsonBytes {
    Text(String),
    Base64(Base64Object),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Base64Object {
    base64: String,
}

/// The words for a member, after the option name `word` if there is one.
///
/// # Errors
/// The error as a sentence.
pub(super) fn words(
    name: &str,
    value: &RawValue,
    kind: MemberKind,
    word: Option<&str>,
) -> Result<Vec<Vec<u8>>, String> {
    let wrong = |what: &str| format!("{name:?} is not {what}");
    let text = value.get();
    let behind =
        |bytes: Vec<u8>| word.map(|word| word.as_bytes().to_vec()).into_iter().chain([bytes]).collect();
    match kind {
        MemberKind::Text | MemberKind::OneOf(_) => serde_json::from_str::<String>(text)
            .map(|text| behind(text.into_bytes()))
            .map_err(|_| wrong("a text")),
        MemberKind::Number | MemberKind::Count | MemberKind::Frame => {
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
        MemberKind::Flag => {
            let flag = serde_json::from_str::<bool>(text).map_err(|_| wrong("true or false"))?;
            let word = word.filter(|_| flag);
            Ok(word.map(|word| word.as_bytes().to_vec()).into_iter().collect())
        }
        MemberKind::Json => Ok(behind(match serde_json::from_str::<String>(text) {
            Ok(text) => text.into_bytes(),
            Err(_) => text.as_bytes().to_vec(),
        })),
        MemberKind::Bytes => match serde_json::from_str(text) {
            Ok(JsonBytes::Text(text)) => Ok(behind(text.into_bytes())),
            Ok(JsonBytes::Base64(Base64Object { base64 })) => {
                STANDARD.decode(base64).map(behind).map_err(|_| wrong("base64 (RFC 4648, with padding)"))
            }
            Err(_) => Err(wrong("a text or {\"base64\": \"...\"}")),
        },
        MemberKind::Real => {
            serde_json::from_str::<f64>(text).map_err(|_| wrong("a number"))?;
            Ok(behind(text.as_bytes().to_vec()))
        }
        MemberKind::Names => {
            let names: Vec<String> = serde_json::from_str(text).map_err(|_| wrong("an array of texts"))?;
            Ok(behind(names.join(",").into_bytes()))
        }
        MemberKind::Vector => {
            let vector: Vec<f32> = serde_json::from_str(text).map_err(|_| wrong("an array of numbers"))?;
            Ok(behind(vector.into_iter().flat_map(f32::to_le_bytes).collect()))
        }
        MemberKind::JsonArray => {
            let each: Vec<&RawValue> = serde_json::from_str(text).map_err(|_| wrong("an array"))?;
            let each: Vec<Vec<u8>> = each.into_iter().map(|one| one.get().as_bytes().to_vec()).collect();
            if each.is_empty() { Err(wrong("an array that holds something")) } else { Ok(each) }
        }
        MemberKind::Texts => {
            let texts: BTreeMap<String, String> =
                serde_json::from_str(text).map_err(|_| wrong("an object of texts"))?;
            let each = texts.into_iter().flat_map(|(key, value)| [key.into_bytes(), value.into_bytes()]);
            Ok(words_per_pair(word, each.collect()))
        }
        MemberKind::Vectors => {
            let vectors: BTreeMap<String, Vec<f32>> =
                serde_json::from_str(text).map_err(|_| wrong("an object of arrays of numbers"))?;
            let bytes = |vector: Vec<f32>| vector.into_iter().flat_map(f32::to_le_bytes).collect();
            let each = vectors.into_iter().flat_map(|(key, vector)| [key.into_bytes(), bytes(vector)]);
            Ok(words_per_pair(word, each.collect()))
        }
    }
}

/// Pairs, each after the option name.
fn words_per_pair(word: Option<&str>, each: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    for pair in each.chunks(2) {
        words.extend(word.map(|word| word.as_bytes().to_vec()));
        words.extend_from_slice(pair);
    }
    words
}

/// A reply as JSON. The nesting depth is set by the command, never by client input.
pub(super) fn reply_to_json(reply: Reply) -> String {
    let mut out = String::new();
    write_reply(reply, &mut out);
    out
}

fn write_reply(reply: Reply, out: &mut String) {
    let plain: Value = match reply {
        Reply::Json(text) => return out.push_str(&text),
        Reply::Array(items) | Reply::Set(items) => {
            out.push('[');
            for (number, item) in items.into_iter().enumerate() {
                out.push_str(if number > 0 { "," } else { "" });
                write_reply(item, out);
            }
            return out.push(']');
        }
        Reply::Map(pairs) => {
            let members: BTreeMap<String, Reply> =
                pairs.into_iter().map(|(key, of)| (member_name(key), of)).collect();
            out.push('{');
            for (number, (name, of)) in members.into_iter().enumerate() {
                out.push_str(if number > 0 { "," } else { "" });
                out.push_str(&Value::from(name).to_string());
                out.push(':');
                write_reply(of, out);
            }
            return out.push('}');
        }
        Reply::Simple(text) => text.into_owned().into(),
        Reply::Error(text) => text.into(),
        Reply::Integer(number) => number.into(),
        Reply::Shared(bytes) => return write_reply(Reply::Bulk(bytes.into()), out),
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

fn member_name(reply: Reply) -> String {
    match reply {
        Reply::Bulk(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        other => reply_to_json(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words_of(json: &str, kind: MemberKind, word: Option<&str>) -> Result<Vec<String>, String> {
        let raw: Box<RawValue> = serde_json::from_str(json).unwrap();
        let words = words("x", &raw, kind, word)?;
        Ok(words.into_iter().map(|word| word.escape_ascii().to_string()).collect())
    }

    #[test]
    fn members_become_words() {
        let ok =
            |json, kind, word, expected: &[&str]| assert_eq!(words_of(json, kind, word).unwrap(), expected);
        ok("\"a\\u00e9\"", MemberKind::Text, Some("NAME"), &["NAME", "a\\xc3\\xa9"]);
        ok("\"a\"", MemberKind::Bytes, None, &["a"]);
        ok("{\"base64\":\"/wA=\"}", MemberKind::Bytes, None, &["\\xff\\x00"]);
        ok("{\"a\": 1.50}", MemberKind::Json, Some("METADATA"), &["METADATA", "{\\\"a\\\": 1.50}"]);
        ok("\"{}\"", MemberKind::Json, None, &["{}"]);
        ok("9223372036854775807", MemberKind::Number, None, &["9223372036854775807"]);
        ok("5.00", MemberKind::Frame, None, &["5"]);
        ok("true", MemberKind::Flag, Some("EDIT"), &["EDIT"]);
        ok("false", MemberKind::Flag, Some("EDIT"), &[]);
        ok("{\"b\":\"2\",\"a\":\"1\"}", MemberKind::Texts, Some("TAG"), &["TAG", "a", "1", "TAG", "b", "2"]);
        ok("0.50", MemberKind::Real, Some("MINSCORE"), &["MINSCORE", "0.50"]);
        ok("-1e0", MemberKind::Real, None, &["-1e0"]);
        ok("[\"hot\",\"cold\"]", MemberKind::Names, Some("TIERS"), &["TIERS", "hot,cold"]);
        ok("[]", MemberKind::Names, Some("TIERS"), &["TIERS", ""]);
        ok("[1,0.5]", MemberKind::Vector, Some("FP32"), &["FP32", "\\x00\\x00\\x80?\\x00\\x00\\x00?"]);
        ok("[{ \"a\": 1.50 },2]", MemberKind::JsonArray, None, &["{ \\\"a\\\": 1.50 }", "2"]);
        ok(
            "{\"m\":[1,0.5]}",
            MemberKind::Vectors,
            Some("E"),
            &["E", "m", "\\x00\\x00\\x80?\\x00\\x00\\x00?"],
        );
        for (json, kind) in [
            ("1", MemberKind::Text),
            ("-1", MemberKind::Number),
            ("9223372036854775808", MemberKind::Number),
            ("1.5", MemberKind::Number),
            ("\"yes\"", MemberKind::Flag),
            ("{\"base64\":\"/wA\"}", MemberKind::Bytes),
            ("{\"base64\":\"\",\"x\":1}", MemberKind::Bytes),
            ("[1]", MemberKind::Bytes),
            ("{\"a\":1}", MemberKind::Texts),
            ("{\"a\":[\"b\"]}", MemberKind::Vectors),
            ("\"1\"", MemberKind::Real),
            ("\"hot\"", MemberKind::Names),
            ("[1,null]", MemberKind::Vector),
            ("[]", MemberKind::JsonArray),
            ("{}", MemberKind::JsonArray),
        ] {
            assert!(words_of(json, kind, None).unwrap_err().contains("\"x\" is not "), "{json}");
        }
    }

    #[test]
    fn duplicate_and_unknown_members_are_refused() {
        assert!(JsonMembers::parse(b"{\"a\":1,\"a\":2}").unwrap_err().contains("twice"));
        assert!(JsonMembers::parse(b"[1]").is_err() && JsonMembers::parse(b"{").is_err());
        assert!(JsonMembers::parse(b" ").unwrap().expect_empty().is_ok());
        let mut members = JsonMembers::parse(b"{\"a\":1,\"b\":null}").unwrap();
        assert!(members.take("a").is_some() && members.take("b").is_none() && members.expect_empty().is_ok());
        assert!(JsonMembers::parse(b"{\"c\":1}").unwrap().expect_empty().unwrap_err().contains("\"c\""));
        // Deep nesting is only skipped here; parsing the value fails at the depth limit.
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        let deep = JsonMembers::parse(deep.as_bytes()).unwrap().take("a").unwrap();
        for kind in [
            MemberKind::Text,
            MemberKind::Bytes,
            MemberKind::Number,
            MemberKind::Flag,
            MemberKind::Texts,
            MemberKind::Vectors,
        ] {
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
        assert_eq!(reply_to_json(reply), json);
    }
}
