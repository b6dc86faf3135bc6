//! JSON objects whose members keep their bytes: values and unknown names come out as they went in.

use std::borrow::Cow;
use std::collections::HashSet;

use annals::{Error, Result};
use annals_text::json::{JsonError, JsonScanner, JsonTokenKind, unescape};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum number of values in an object: each takes many times the memory of its text.
const VALUES_MAX: usize = 1 << 20;

/// A member of an object: its name with and without quotes, and the text of its value.
#[derive(Debug, Clone)]
pub(crate) struct RawMember<'a> {
    pub(crate) quoted: &'a str,
    pub(crate) name: Cow<'a, str>,
    pub(crate) value: &'a str,
}

/// A parsed object. `place` names it in errors.
#[derive(Debug, Clone)]
pub(crate) struct RawObject<'a> {
    pub(crate) place: String,
    pub(crate) members: Vec<RawMember<'a>>,
}

impl<'a> RawObject<'a> {
    /// Parses an object.
    ///
    /// # Errors
    /// `Invalid`: not JSON, not an object, or a name that occurs twice.
    pub(crate) fn parse(text: &'a str, place: &str) -> Result<Self> {
        let mut scanner = JsonScanner::new(text.as_bytes()).values_max(VALUES_MAX);
        let mut members: Vec<RawMember<'a>> = Vec::new();
        let mut names = HashSet::new();
        let (mut depth, mut name, mut value_start) = (0usize, None, 0);
        while let Some(token) = scanner.next_token().map_err(|error| malformed(place, text, error))? {
            match token.kind {
                JsonTokenKind::ObjectStart | JsonTokenKind::ArrayStart => {
                    if depth == 0 && token.kind == JsonTokenKind::ArrayStart {
                        return Err(Error::invalid(format!("{place}: not a JSON object")));
                    }
                    if depth == 1 {
                        value_start = token.start;
                    }
                    depth += 1;
                    continue;
                }
                JsonTokenKind::Name if depth == 1 => {
                    name = Some(token);
                    continue;
                }
                JsonTokenKind::ObjectEnd | JsonTokenKind::ArrayEnd => depth -= 1,
                _ if depth == 0 => return Err(Error::invalid(format!("{place}: not a JSON object"))),
                _ if depth == 1 => value_start = token.start,
                _ => {}
            }
            if depth == 1
                && let Some(name) = name.take()
            {
                let inner = text.get(name.inner()).unwrap_or_default();
                let plain = unescape(inner).ok_or_else(|| {
                    Error::invalid(format!("{place} has a member whose name holds half of a surrogate pair"))
                })?;
                if !names.insert(plain.clone()) {
                    return Err(Error::invalid(format!("{place} has the member {plain:?} twice")));
                }
                members.push(RawMember {
                    quoted: text.get(name.range()).unwrap_or_default(),
                    name: plain,
                    value: text.get(value_start..token.end).unwrap_or_default(),
                });
            }
        }
        Ok(Self { place: place.to_owned(), members })
    }

    /// Takes the member with one of these names. A `null` counts as absent.
    ///
    /// # Errors
    /// `Invalid` if two of the names are given with different values.
    pub(crate) fn take(&mut self, names: &[&str]) -> Result<Option<&'a str>> {
        let mut found: Option<RawMember<'a>> = None;
        while let Some(at) = self.members.iter().position(|member| names.contains(&&*member.name)) {
            let member = self.members.remove(at);
            if member.value == "null" {
                continue;
            }
            match &found {
                Some(first) if first.value != member.value => {
                    return Err(Error::invalid(format!(
                        "{} has both {:?} and {:?}, with different values: give one",
                        self.place, first.name, member.name
                    )));
                }
                Some(_) => {}
                None => found = Some(member),
            }
        }
        Ok(found.map(|member| member.value))
    }

    /// Takes a member of a type, which `kind` names in errors.
    ///
    /// # Errors
    /// `Invalid` for a value of another type.
    pub(crate) fn take_as<T: DeserializeOwned>(&mut self, names: &[&str], kind: &str) -> Result<Option<T>> {
        let Some(value) = self.take(names)? else { return Ok(None) };
        parse_as(value, kind, &self.place, names.first().copied().unwrap_or_default()).map(Some)
    }

    pub(crate) fn take_text(&mut self, names: &[&str]) -> Result<Option<String>> {
        self.take_as(names, "a text")
    }

    /// Takes a text that must be one of these.
    ///
    /// # Errors
    /// `Invalid`, with all allowed texts.
    pub(crate) fn take_choice(&mut self, names: &[&str], allowed: &[&str]) -> Result<Option<String>> {
        let Some(text) = self.take_text(names)? else { return Ok(None) };
        check_choice(&text, names.first().copied().unwrap_or_default(), allowed)?;
        Ok(Some(text))
    }

    /// Refuses members that nobody took.
    ///
    /// # Errors
    /// `Invalid` with the name of the first one.
    pub(crate) fn expect_empty(&self) -> Result<()> {
        match self.members.first() {
            None => Ok(()),
            Some(member) => {
                Err(Error::invalid(format!("{} has an unknown member {:?}", self.place, member.name)))
            }
        }
    }
}

/// Parses a value as a type.
///
/// # Errors
/// `Invalid`.
pub(crate) fn parse_as<T: DeserializeOwned>(value: &str, kind: &str, place: &str, name: &str) -> Result<T> {
    serde_json::from_str(value)
        .map_err(|error| Error::invalid(format!("{name:?} of {place} is not {kind}: {error}")))
}

/// Refuses a text that is not one of the allowed ones, and names those.
///
/// # Errors
/// `Invalid`.
pub(crate) fn check_choice(text: &str, name: &str, allowed: &[&str]) -> Result<()> {
    if allowed.contains(&text) {
        return Ok(());
    }
    Err(Error::invalid(format!("unknown {name} {text:?}: use {}", allowed.join(", "))))
}

/// The texts of an array's items.
///
/// # Errors
/// `Invalid` if it is not an array.
pub(crate) fn raw_items<'a>(text: &'a str, place: &str) -> Result<Vec<&'a str>> {
    let raw: Vec<&serde_json::value::RawValue> = serde_json::from_str(text)
        .map_err(|error| Error::invalid(format!("{place} is not an array: {error}")))?;
    Ok(raw.into_iter().map(|one| one.get()).collect())
}

fn malformed(place: &str, text: &str, error: JsonError) -> Error {
    let (at, what) = match error {
        JsonError::Malformed { at, what } => (at, what),
        JsonError::TooManyValues { at } => (at, "too many values"),
    };
    let before = text.as_bytes().get(..at).unwrap_or_default();
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let column = before.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
    Error::invalid(format!("{place}: not JSON: {what} at line {line} column {column}"))
}

/// Builds an object's text.
#[derive(Debug)]
pub(crate) struct ObjectText(String);

impl ObjectText {
    pub(crate) fn new() -> Self {
        Self("{".to_owned())
    }

    /// Adds a member from the text of its name, with quotes, and of its value.
    pub(crate) fn raw(mut self, quoted: &str, value: &str) -> Self {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        self.0.push_str(quoted);
        self.0.push(':');
        self.0.push_str(value);
        self
    }

    /// Adds a member whose value is this JSON text.
    pub(crate) fn json(self, name: &str, value: &str) -> Self {
        let quoted = to_json(&name);
        self.raw(&quoted, value)
    }

    pub(crate) fn value(self, name: &str, value: impl Serialize) -> Self {
        let value = to_json(&value);
        self.json(name, &value)
    }

    /// Adds a member if there is a value.
    pub(crate) fn some(self, name: &str, value: Option<impl Serialize>) -> Self {
        match value {
            Some(value) => self.value(name, value),
            None => self,
        }
    }

    pub(crate) fn some_json(self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.json(name, value),
            None => self,
        }
    }

    pub(crate) fn members(self, members: &[RawMember<'_>]) -> Self {
        members.iter().fold(self, |text, member| text.raw(member.quoted, member.value))
    }

    pub(crate) fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

/// An array's text from the texts of its items.
pub(crate) fn array_text<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    let mut text = "[".to_owned();
    for item in items {
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(item.as_ref());
    }
    text.push(']');
    text
}

/// A value as JSON. Values of this crate always have a JSON form.
pub(crate) fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_their_bytes() {
        let text = "{ \"a\\u0062\" : 1.50 , \"x\": { \"y\" : [ 1e3 ] }, \"n\":null, \"t\":\"\\u00e9\" }";
        let mut object = RawObject::parse(text, "it").unwrap();
        assert_eq!(object.take(&["ab"]).unwrap(), Some("1.50"));
        assert_eq!(object.take(&["n"]).unwrap(), None);
        assert_eq!(
            ObjectText::new().members(&object.members).end(),
            "{\"x\":{ \"y\" : [ 1e3 ] },\"t\":\"\\u00e9\"}"
        );
    }

    #[test]
    fn malformed_objects_name_place_and_reason() {
        for (text, reason) in [
            ("[1]", "it: not a JSON object"),
            ("1", "it: not a JSON object"),
            ("{\"a\":1,\"a\":2}", "the member \"a\" twice"),
            ("{\"a\":\n}", "line 2 column"),
            ("{\"\\ud800\":1}", "surrogate"),
        ] {
            let error = RawObject::parse(text, "it").unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
        let mut object = RawObject::parse("{\"aB\":1,\"a_b\":2}", "it").unwrap();
        assert!(object.take(&["aB", "a_b"]).unwrap_err().to_string().contains("both \"aB\" and \"a_b\""));
    }
}
