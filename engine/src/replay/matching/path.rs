//! Paths in a body: the part of JSONPath (RFC 9535) that rules need.
//!
//! Supported: `$.a.b`, `$['a b']`, `$.a[3]`, `$.a[*].b` and `$.a.*` (every element or member), `$..name`
//! (members of that name at any depth).
//! Not included by design: filters, slices, unions, negative indexes, and two descents in one path (quadratic
//! work).

use std::fmt;

use crate::error::{Error, Result};
use crate::replay::matching::json::{Json, JsonStep};

/// Maximum length of a path, in bytes.
pub(super) const PATH_BYTES_MAX: usize = 1024;
/// Longest key that a report prints in full, in bytes.
const KEY_SHOWN_MAX: usize = 128;

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathStep {
    /// The member with this name.
    Member(String),
    /// The element with this index, from 0.
    Element(usize),
    /// Every element or member.
    Every,
    /// All members with this name, at any depth.
    Anywhere(String),
}

/// A path; it may match several values in a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path(pub(super) Vec<PathStep>);

impl Path {
    /// Parses a path of at most 1,024 bytes.
    ///
    /// # Errors
    /// `Invalid` for a malformed path, with the byte.
    pub fn parse(text: &str) -> Result<Self> {
        if text.len() > PATH_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a path has {} bytes; at most {PATH_BYTES_MAX} are allowed",
                text.len()
            )));
        }
        let path = PathScanner { text, rest: text }.path()?;
        if path.0.iter().filter(|step| matches!(step, PathStep::Anywhere(_))).count() > 1 {
            return Err(Error::invalid(format!("{text:?} has `..` twice: use it at most once")));
        }
        Ok(path)
    }

    /// The steps of the path, from the top.
    #[must_use]
    pub fn steps(&self) -> &[PathStep] {
        &self.0
    }

    /// Passes every value that the path matches to `change`.
    pub(super) fn each<'a>(&self, json: &mut Json<'a>, change: &mut dyn FnMut(&mut Json<'a>)) {
        each(&self.0, json, change);
    }
}

fn each<'a>(steps: &[PathStep], json: &mut Json<'a>, change: &mut dyn FnMut(&mut Json<'a>)) {
    let Some((step, rest)) = steps.split_first() else { return change(json) };
    match (step, json) {
        (PathStep::Member(name), json) => {
            if let Some(value) = json.member_mut(name) {
                each(rest, value, change);
            }
        }
        (PathStep::Element(index), Json::Array(items)) => {
            if let Some(item) = items.get_mut(*index) {
                each(rest, item, change);
            }
        }
        (PathStep::Every, Json::Array(items)) => items.iter_mut().for_each(|item| each(rest, item, change)),
        (PathStep::Every, Json::Object(members)) => {
            members.iter_mut().for_each(|(_, value)| each(rest, value, change));
        }
        (PathStep::Anywhere(_), Json::Array(items)) => {
            items.iter_mut().for_each(|item| each(steps, item, change));
        }
        (PathStep::Anywhere(name), Json::Object(members)) => {
            for (key, value) in members {
                each(steps, value, change);
                if key == name {
                    each(rest, value, change);
                }
            }
        }
        _ => {}
    }
}

struct PathScanner<'a> {
    text: &'a str,
    rest: &'a str,
}

impl<'a> PathScanner<'a> {
    fn path(&mut self) -> Result<Path> {
        self.eat("$").ok_or_else(|| self.path_error("it must begin with `$`"))?;
        let mut steps = Vec::new();
        while !self.rest.is_empty() {
            steps.push(self.step()?);
        }
        Ok(Path(steps))
    }

    fn path_error(&self, why: &str) -> Error {
        let at = self.text.len() - self.rest.len();
        Error::invalid(format!("{:?} is not a valid path for a rule, at byte {at}: {why}", self.text))
    }

    fn eat(&mut self, what: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(what)?;
        Some(())
    }

    fn step(&mut self) -> Result<PathStep> {
        if self.eat("..").is_some() {
            return if self.rest.starts_with('[') {
                match self.bracket()? {
                    PathStep::Member(name) => Ok(PathStep::Anywhere(name)),
                    _ => Err(self.path_error("`..` needs a name")),
                }
            } else {
                self.name().map(PathStep::Anywhere)
            };
        }
        if self.rest.starts_with('[') {
            return self.bracket();
        }
        self.eat(".").ok_or_else(|| self.path_error("expected `.`, `..` or `[`"))?;
        match self.eat("*") {
            Some(()) => Ok(PathStep::Every),
            None => self.name().map(PathStep::Member),
        }
    }

    fn name(&mut self) -> Result<String> {
        let len = self.rest.find(['.', '[', ']', '\'', '"', '*', ' ', '?', '(', ')', '$', '@']);
        let (name, rest) = self.rest.split_at(len.unwrap_or(self.rest.len()));
        if name.is_empty() || name.chars().any(char::is_control) {
            return Err(self.path_error("expected a name; quote other names, as in ['a b']"));
        }
        self.rest = rest;
        Ok(name.to_owned())
    }

    fn bracket(&mut self) -> Result<PathStep> {
        let wrong = |scanner: &Self| scanner.path_error("expected [3], [*] or ['a b']");
        self.eat("[").ok_or_else(|| wrong(self))?;
        let step = if self.eat("*").is_some() {
            PathStep::Every
        } else if let Some(quote) = self.rest.chars().next().filter(|c| matches!(c, '\'' | '"')) {
            PathStep::Member(self.quoted(quote)?)
        } else {
            let len = self.rest.bytes().take_while(u8::is_ascii_digit).count();
            let (digits, rest) = self.rest.split_at(len);
            let index = digits.parse().map_err(|_| wrong(self))?;
            self.rest = rest;
            PathStep::Element(index)
        };
        self.eat("]").ok_or_else(|| wrong(self))?;
        Ok(step)
    }

    fn quoted(&mut self, quote: char) -> Result<String> {
        let mut name = String::new();
        let mut chars = self.rest[1..].chars();
        while let Some(c) = chars.next() {
            if c == quote {
                self.rest = chars.as_str();
                return Ok(name);
            }
            if c != '\\' {
                name.push(c);
                continue;
            }
            let escaped = match chars.next() {
                Some(c @ ('\\' | '\'' | '"')) => Some(c),
                Some('u') => {
                    let (code, rest) = chars.as_str().split_at_checked(4).unwrap_or_default();
                    chars = rest.chars();
                    u32::from_str_radix(code, 16).ok().and_then(char::from_u32)
                }
                _ => None,
            };
            name.push(escaped.ok_or_else(|| self.path_error("a name has an unknown escape"))?);
        }
        Err(self.path_error("a name's quote is not closed"))
    }
}

/// Appends `.name`, or `['a name']` if the name needs quotes.
fn push_member(out: &mut String, name: &str) {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !name.is_empty() && name.chars().all(plain) && !name.starts_with(|c: char| c.is_ascii_digit()) {
        out.push('.');
        out.push_str(name);
        return;
    }
    out.push_str("['");
    for c in name.chars() {
        match c {
            '\\' | '\'' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push_str("']");
}

/// The text of a path, and whether parsing that text gives the same path.
pub(super) fn path_text(way: &[JsonStep<'_>]) -> (String, bool) {
    let (mut out, mut whole) = ("$".to_owned(), true);
    for at in way {
        match at {
            JsonStep::Index(index) => out.push_str(&format!("[{index}]")),
            JsonStep::Key(key) if key.len() <= KEY_SHOWN_MAX => push_member(&mut out, key),
            JsonStep::Key(key) => {
                whole = false;
                push_member(&mut out, &format!("{}…", &key[..key.floor_char_boundary(KEY_SHOWN_MAX)]));
            }
        }
    }
    whole &= out.len() <= PATH_BYTES_MAX;
    (out, whole)
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = "$".to_owned();
        for step in &self.0 {
            match step {
                PathStep::Member(name) => push_member(&mut out, name),
                PathStep::Element(index) => out.push_str(&format!("[{index}]")),
                PathStep::Every => out.push_str("[*]"),
                PathStep::Anywhere(name) => {
                    out.push_str("..");
                    let mut name_out = String::new();
                    push_member(&mut name_out, name);
                    out.push_str(name_out.trim_start_matches('.'));
                }
            }
        }
        f.write_str(&out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn places(path: &str, body: &str) -> usize {
        let mut json = Json::parse(body.as_bytes()).unwrap();
        let mut count = 0;
        Path::parse(path).unwrap().each(&mut json, &mut |_| count += 1);
        count
    }

    #[test]
    fn paths_are_read_shown_and_followed() {
        for (text, shown) in [
            ("$", "$"),
            ("$.a.b", "$.a.b"),
            ("$['a b'][\"c\"]", "$['a b'].c"),
            ("$.a[*].b[3].*", "$.a[*].b[3][*]"),
            ("$..id", "$..id"),
            ("$..['x-id']", "$..['x-id']"),
            ("$.x-id", "$['x-id']"),
            (r"$['it\'s\\\u000a']", r"$['it\'s\\\u000a']"),
        ] {
            let path = Path::parse(text).unwrap();
            assert_eq!(path.to_string(), shown);
            assert_eq!(Path::parse(shown).unwrap(), path);
        }
        let body = r#"{"a":[{"b":1},{"b":{"b":2}},3],"b":4}"#;
        assert_eq!(places("$.a[*].b", body), 2);
        assert_eq!(places("$.a[2]", body), 1);
        assert_eq!(places("$.a[7]", body), 0);
        assert_eq!(places("$..b", body), 4);
        assert_eq!(places("$.*", body), 2);
        assert_eq!(places("$", body), 1);
    }

    #[test]
    fn other_paths_are_refused() {
        for bad in [
            "",
            "a",
            "$a",
            "$.",
            "$.a.",
            "$[",
            "$[-1]",
            "$[1:2]",
            "$[?(@.a)]",
            "$['a",
            "$['a'",
            "$..",
            "$..*",
            "$..[0]",
            "$..a..b",
            "$.a b",
            r"$['\x']",
            "$[99999999999999999999]",
        ] {
            let error = Path::parse(bad).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Invalid, "{bad}");
        }
        assert!(Path::parse(&format!("$.{}", "a".repeat(PATH_BYTES_MAX))).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "\\$[.\\[\\]*'\"a0\\\\u é]{0,20}") {
            if let Ok(path) = Path::parse(&text) {
                prop_assert_eq!(Path::parse(&path.to_string()).unwrap(), path);
            }
        }
    }
}
