//! The canonical form of a request: the bytes that are compared.
//!
//! A JSON body takes the form of RFC 8785, without the values that the rules leave out. A number that 64-bit
//! floating point cannot hold exactly keeps its text, so that two different numbers stay different. A
//! multipart form is its parts, without its boundary. Any other body is its bytes.

use std::borrow::Cow;

use crate::error::{Error, Result};
use crate::replay::matching::call::CallHash;
use crate::replay::matching::json::Json;
use crate::replay::matching::multipart::Multipart;
use crate::replay::matching::rules::Rules;

/// Maximum number of digits for which every decimal number has its own floating-point value.
const EXACT_DIGITS: usize = 15;

/// A body that is ready for comparison.
#[derive(Debug)]
pub(super) enum CanonicalBody<'a> {
    Json(Json<'a>),
    Form(Multipart<'a>),
    Bytes(&'a [u8]),
}

impl<'a> CanonicalBody<'a> {
    pub(super) fn new(bytes: &'a [u8], rules: &Rules) -> Self {
        match Json::parse(bytes) {
            Some(mut json) => {
                rules.apply(&mut json);
                Self::Json(json)
            }
            None => Multipart::parse(bytes).map_or(Self::Bytes(bytes), Self::Form),
        }
    }

    pub(super) fn canonical(&self) -> Result<Cow<'a, [u8]>> {
        match self {
            Self::Json(json) => {
                let mut out = String::new();
                write(json, &mut out, usize::MAX)?;
                Ok(Cow::Owned(out.into_bytes()))
            }
            Self::Form(form) => {
                let mut out = Vec::new();
                form.write(&mut out);
                Ok(Cow::Owned(out))
            }
            Self::Bytes(bytes) => Ok(Cow::Borrowed(bytes)),
        }
    }
}

/// The hash of a request in its canonical form.
pub(super) fn canonical_hash(
    key: &[u8; 32],
    name: &str,
    body: &CanonicalBody<'_>,
    rules: &Rules,
) -> Result<CallHash> {
    let mut text = route(name).to_owned();
    for (key, value) in query(name, rules) {
        text.extend(["&", key, "=", value]);
    }
    Ok(CallHash::new(key, &text, &body.canonical()?))
}

/// The part of a name before its query: method and path.
pub(super) fn route(name: &str) -> &str {
    name.split_once('?').map_or(name, |(route, _)| route)
}

/// Keys and values of a name's query, sorted by key, without those that the rules leave out. Equal keys keep
/// their order.
pub(super) fn query<'a>(name: &'a str, rules: &Rules) -> Vec<(&'a str, &'a str)> {
    let Some((_, query)) = name.split_once('?') else { return Vec::new() };
    let mut pairs: Vec<_> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .filter(|(key, _)| !rules.ignores_query(key))
        .collect();
    pairs.sort_by_key(|(key, _)| *key);
    pairs
}

/// Appends the canonical form; stops once `out` is longer than `limit`.
pub(super) fn write(json: &Json<'_>, out: &mut String, limit: usize) -> Result<()> {
    match json {
        _ if out.len() > limit => {}
        Json::Hidden => {}
        Json::Null => out.push_str("null"),
        Json::Bool(yes) => out.push_str(if *yes { "true" } else { "false" }),
        Json::Number(text) => out.push_str(&number(text)?),
        Json::Text(text) => write_text(text, out, limit)?,
        Json::Array(items) => {
            out.push('[');
            for (n, item) in items.iter().filter(|item| **item != Json::Hidden).enumerate() {
                if n > 0 {
                    out.push(',');
                }
                if out.len() > limit {
                    return Ok(());
                }
                write(item, out, limit)?;
            }
            out.push(']');
        }
        Json::Object(members) => {
            out.push('{');
            for (n, (key, value)) in members.iter().filter(|(_, value)| *value != Json::Hidden).enumerate() {
                if n > 0 {
                    out.push(',');
                }
                if out.len() > limit {
                    return Ok(());
                }
                write_text(key, out, limit)?;
                out.push(':');
                write(value, out, limit)?;
            }
            out.push('}');
        }
    }
    Ok(())
}

fn write_text(text: &str, out: &mut String, limit: usize) -> Result<()> {
    let shown = &text[..text.floor_char_boundary(limit)];
    out.push_str(&serde_json::to_string(shown).map_err(|e| Error::bug(e.to_string()))?);
    Ok(())
}

/// A number in the form of RFC 8785, or as written if other numbers have the same floating-point value.
fn number(text: &str) -> Result<Cow<'_, str>> {
    let integer = text.strip_prefix('-').unwrap_or(text);
    if integer.len() <= EXACT_DIGITS && integer != "0" && integer.bytes().all(|b| b.is_ascii_digit()) {
        return Ok(Cow::Borrowed(text));
    }
    let mantissa = text.split(['e', 'E']).next().unwrap_or(text).trim_start_matches(['-', '0', '.']);
    let digits = mantissa.bytes().filter(u8::is_ascii_digit).count();
    let value: f64 = text.parse().unwrap_or(f64::NAN);
    // Near the ends of the range floating point loses digits; beyond the range it loses all.
    let in_range = if digits == 0 { value == 0.0 } else { (1e-290..1e290).contains(&value.abs()) };
    if digits > EXACT_DIGITS || !in_range {
        return Ok(Cow::Borrowed(text));
    }
    serde_json_canonicalizer::to_string(&value)
        .map(Cow::Owned)
        .map_err(|e| Error::bug(format!("a number has no canonical form: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::matching::shape::Shape;
    use proptest::prelude::*;

    fn of(body: &str, rules: &Rules) -> String {
        String::from_utf8(CanonicalBody::new(body.as_bytes(), rules).canonical().unwrap().into_owned())
            .unwrap()
    }

    fn plain(body: &str) -> String {
        of(body, &Rules::none())
    }

    #[test]
    fn order_space_and_spelling_do_not_matter() {
        assert_eq!(plain("{ \"b\" : [1.0, -0, 1e2], \"a\":\"\\u0041\\/\" }"), r#"{"a":"A/","b":[1,0,100]}"#);
        assert_eq!(plain("\"\u{e9}\\n\\u007f\""), "\"\u{e9}\\n\u{7f}\"");
        assert_ne!(plain("[1,2]"), plain("[2,1]"));
        assert_eq!(plain("[1, 2"), "[1, 2", "no JSON: its bytes");
    }

    #[test]
    fn numbers_that_differ_stay_different() {
        for (a, b) in [
            ("12345678901234567890123", "12345678901234567890124"),
            ("9007199254740993", "9007199254740992"),
            ("18446744073709551616", "18446744073709551617"),
            ("1e400", "1e401"),
            ("1e-400", "0"),
            ("5e-324", "4e-324"),
            ("0.1", "0.10000000000000000001"),
        ] {
            assert_ne!(plain(a), plain(b));
            assert_eq!(plain(a), plain(&format!(" {a} ")));
        }
        assert_eq!(plain("1e21"), "1e+21");
        assert_eq!(plain("1000000000000000000000"), "1000000000000000000000", "too long: as written");
    }

    #[test]
    fn rules_take_out_and_mask() {
        let rules = Rules::none()
            .ignore("$.request_id")
            .and_then(|r| r.ignore("$.list[3]"))
            .and_then(|r| r.mask("$.messages[0].content", Shape::Time))
            .unwrap();
        let a = r#"{"request_id":1,"messages":[{"content":"now 10:31:07"},{"content":"at 10:31:07"}],"list":[1,2,3]}"#;
        let b = r#"{"messages":[{"content":"now 11:00:00"},{"content":"at 10:31:07"}],"list":[1,2,3,4]}"#;
        assert_eq!(of(a, &rules), of(b, &rules));
        assert_ne!(of(a, &rules), of(&b.replace("at 10", "at 11"), &rules), "another message is not masked");
        assert_ne!(of(a, &rules), of(&b.replace("now", "new"), &rules), "a mask hides only the time");
    }

    #[test]
    fn queries_are_compared_by_key() {
        let rules = Rules::none().preset("gemini").unwrap();
        assert_eq!(route("POST /v1/x?b=1&a=2"), "POST /v1/x");
        assert_eq!(
            query("POST /v1/x?b=1&a=2&b=0&KEY=s&c", &rules),
            [("a", "2"), ("b", "1"), ("b", "0"), ("c", "")]
        );
        assert_eq!(query("POST /v1/x", &rules), []);
    }

    proptest! {
        #[test]
        fn canonical_form_equals_rfc_8785_for_small_numbers(
            text in "\\PC{0,12}",
            number in -1_000_000_000i64..1_000_000_000,
            scale in 0u32..6,
            key in "\\PC{0,6}",
        ) {
            let number = number as f64 / 10f64.powi(scale as i32);
            let value = serde_json::json!({"k": [text, number, null, true], key: {}});
            let expected = serde_json_canonicalizer::to_string(&value).unwrap();
            prop_assert_eq!(plain(&value.to_string()), expected);
        }
    }
}
