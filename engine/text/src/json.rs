//! A pull scanner for JSON (RFC 8259): tokens with their positions, no tree, no recursion, nothing copied.
//!
//! The scanner checks the grammar. It does not check the UTF-8 of strings, nor whether `\u` escapes pair up: [`unescape`]
//! does, for the strings that a caller reads. It never compares names, so a name may come twice.
//!
//! Invariant: tokens come in the order of their bytes and do not overlap. Each start of an array or object has its end.

use std::borrow::Cow;
use std::ops::Range;

use memchr::memchr2;

#[cfg(test)]
mod tests;

/// What a [`JsonToken`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonTokenKind {
    /// `{`
    ObjectStart,
    /// `}`
    ObjectEnd,
    /// `[`
    ArrayStart,
    /// `]`
    ArrayEnd,
    /// The name of an object's member, with its quotes. The member's value is the next token.
    Name,
    /// A string that is a value, with its quotes.
    Text,
    /// A number.
    Number,
    /// `true` or `false`
    Bool(bool),
    /// `null`
    Null,
}

/// A piece of JSON and where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JsonToken {
    /// What it is.
    pub kind: JsonTokenKind,
    /// Its first byte.
    pub start: usize,
    /// The byte after its last one.
    pub end: usize,
    /// Whether a name or text has a backslash, so that it needs [`unescape`].
    pub escaped: bool,
}

impl JsonToken {
    /// Its bytes, quotes included.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    /// The bytes between the quotes of a name or text; of any other token all its bytes.
    #[must_use]
    pub fn inner(&self) -> Range<usize> {
        match self.kind {
            JsonTokenKind::Name | JsonTokenKind::Text => self.start + 1..self.end - 1,
            _ => self.range(),
        }
    }
}

/// Why a text is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonError {
    /// It is not JSON.
    Malformed {
        /// How many bytes were read when it was clear; a byte that was read and cannot stand there is counted.
        at: usize,
        /// What is wrong, or what is expected instead.
        what: &'static str,
    },
    /// There are more values than the limit.
    TooManyValues {
        /// Where the first value over the limit begins.
        at: usize,
    },
}

/// What may come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Value,
    /// The array has just begun.
    ValueOrEnd,
    Name,
    /// The object has just begun.
    NameOrEnd,
    /// A value ended within an array or object.
    Separator,
    /// The outermost value ended.
    Nothing,
}

/// Reads one JSON value, a token at a time.
///
/// ```
/// use annals_text::json::{JsonScanner, JsonTokenKind};
/// let json = br#"{"id": [1, true]}"#;
/// let mut scanner = JsonScanner::new(json);
/// let mut kinds = Vec::new();
/// while let Some(token) = scanner.next_token().expect("this is JSON") {
///     kinds.push((token.kind, &json[token.range()]));
/// }
/// assert_eq!(kinds[1], (JsonTokenKind::Name, br#""id""#.as_slice()));
/// assert_eq!(kinds[3], (JsonTokenKind::Number, b"1".as_slice()));
/// assert_eq!(kinds.len(), 7);
/// ```
#[derive(Debug, Clone)]
pub struct JsonScanner<'a> {
    bytes: &'a [u8],
    at: usize,
    expected: Expected,
    /// A bit for each open array (0) or object (1), the innermost last.
    levels: Vec<u64>,
    depth: usize,
    values_left: usize,
}

impl<'a> JsonScanner<'a> {
    /// A scanner of one value with white space around it, without limits: nesting takes a bit of memory a level.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            expected: Expected::Value,
            levels: Vec::new(),
            depth: 0,
            values_left: usize::MAX,
        }
    }

    /// Refuses texts of over `values` values, arrays and objects counted with what they hold.
    #[must_use]
    pub fn values_max(self, values: usize) -> Self {
        Self { values_left: values, ..self }
    }

    /// The next token; `None` after the outermost value, once only white space followed it.
    ///
    /// # Errors
    /// Where the text is not JSON or exceeds a limit. After an error the scanner must not be used.
    pub fn next_token(&mut self) -> Result<Option<JsonToken>, JsonError> {
        loop {
            self.skip_whitespace();
            return match self.expected {
                Expected::ValueOrEnd if self.peek() == Some(b']') => self.close(JsonTokenKind::ArrayEnd),
                Expected::NameOrEnd if self.peek() == Some(b'}') => self.close(JsonTokenKind::ObjectEnd),
                Expected::Value | Expected::ValueOrEnd => self.value(),
                Expected::Name | Expected::NameOrEnd => self.name(),
                Expected::Nothing if self.at == self.bytes.len() => Ok(None),
                Expected::Nothing => Err(self.wrong("something follows the value")),
                Expected::Separator => match (self.next_byte(), self.in_object()) {
                    (Some(b','), true) => {
                        self.expected = Expected::Name;
                        continue;
                    }
                    (Some(b','), false) => {
                        self.expected = Expected::Value;
                        continue;
                    }
                    (Some(b'}'), true) => self.closed(JsonTokenKind::ObjectEnd),
                    (Some(b']'), false) => self.closed(JsonTokenKind::ArrayEnd),
                    (_, true) => Err(self.wrong("',' or '}' is expected")),
                    (_, false) => Err(self.wrong("',' or ']' is expected")),
                },
            };
        }
    }

    fn value(&mut self) -> Result<Option<JsonToken>, JsonError> {
        let start = self.at;
        match self.values_left.checked_sub(1) {
            Some(left) => self.values_left = left,
            None => return Err(JsonError::TooManyValues { at: start }),
        }
        let mut escaped = false;
        let kind = match self.peek() {
            Some(b'{') => return self.open(true, JsonTokenKind::ObjectStart, Expected::NameOrEnd),
            Some(b'[') => return self.open(false, JsonTokenKind::ArrayStart, Expected::ValueOrEnd),
            Some(b'"') => {
                escaped = self.string()?;
                JsonTokenKind::Text
            }
            Some(b'-' | b'0'..=b'9') => {
                self.number()?;
                JsonTokenKind::Number
            }
            Some(b't') => self.literal("true", JsonTokenKind::Bool(true))?,
            Some(b'f') => self.literal("false", JsonTokenKind::Bool(false))?,
            Some(b'n') => self.literal("null", JsonTokenKind::Null)?,
            _ => return Err(self.wrong("a value is expected")),
        };
        self.after_value();
        Ok(Some(JsonToken { kind, start, end: self.at, escaped }))
    }

    /// A member's name and the colon after it.
    fn name(&mut self) -> Result<Option<JsonToken>, JsonError> {
        if self.peek() != Some(b'"') {
            return Err(self.wrong("a key is expected"));
        }
        let start = self.at;
        let escaped = self.string()?;
        let end = self.at;
        self.skip_whitespace();
        if self.next_byte() != Some(b':') {
            return Err(self.wrong("':' is expected"));
        }
        self.expected = Expected::Value;
        Ok(Some(JsonToken { kind: JsonTokenKind::Name, start, end, escaped }))
    }

    fn open(
        &mut self,
        is_object: bool,
        kind: JsonTokenKind,
        next: Expected,
    ) -> Result<Option<JsonToken>, JsonError> {
        let start = self.at;
        let (word, bit) = (self.depth / 64, 1 << (self.depth % 64));
        if word == self.levels.len() {
            self.levels.push(0);
        }
        if let Some(word) = self.levels.get_mut(word) {
            *word = if is_object { *word | bit } else { *word & !bit };
        }
        self.depth += 1;
        self.at += 1;
        self.expected = next;
        Ok(Some(JsonToken { kind, start, end: self.at, escaped: false }))
    }

    /// Ends the innermost array or object, whose last byte is next.
    fn close(&mut self, kind: JsonTokenKind) -> Result<Option<JsonToken>, JsonError> {
        self.at += 1;
        self.closed(kind)
    }

    /// Ends the innermost array or object, whose last byte was read.
    fn closed(&mut self, kind: JsonTokenKind) -> Result<Option<JsonToken>, JsonError> {
        self.depth -= 1;
        self.after_value();
        Ok(Some(JsonToken { kind, start: self.at - 1, end: self.at, escaped: false }))
    }

    fn after_value(&mut self) {
        self.expected = if self.depth == 0 { Expected::Nothing } else { Expected::Separator };
    }

    fn in_object(&self) -> bool {
        let Some(level) = self.depth.checked_sub(1) else { return false };
        self.levels.get(level / 64).is_some_and(|word| word & 1 << (level % 64) != 0)
    }

    /// Passes over the string whose opening quote is next; says whether it has a backslash.
    fn string(&mut self) -> Result<bool, JsonError> {
        const UNENDED: &str = "a text has no end, or a control character";
        self.at += 1;
        let mut escaped = false;
        loop {
            let rest = self.bytes.get(self.at..).unwrap_or_default();
            let plain = memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
            if let Some(control) = rest[..plain].iter().position(|byte| *byte < b' ') {
                self.at += control + 1;
                return Err(self.wrong(UNENDED));
            }
            self.at += plain;
            match self.next_byte() {
                Some(b'"') => return Ok(escaped),
                Some(_) => {
                    escaped = true;
                    self.escape()?;
                }
                None => return Err(self.wrong(UNENDED)),
            }
        }
    }

    /// Passes over what follows a backslash.
    fn escape(&mut self) -> Result<(), JsonError> {
        const NO_ESCAPE: &str = "this is no escape";
        match self.next_byte() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(()),
            Some(b'u') => {
                for _ in 0..4 {
                    if !self.next_byte().is_some_and(|byte| byte.is_ascii_hexdigit()) {
                        return Err(self.wrong(NO_ESCAPE));
                    }
                }
                Ok(())
            }
            _ => Err(self.wrong(NO_ESCAPE)),
        }
    }

    fn number(&mut self) -> Result<(), JsonError> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at > start { Ok(()) } else { Err(self.wrong("a digit is expected")) }
    }

    fn literal(&mut self, word: &str, kind: JsonTokenKind) -> Result<JsonTokenKind, JsonError> {
        if !self.bytes.get(self.at..).is_some_and(|rest| rest.starts_with(word.as_bytes())) {
            return Err(self.wrong("a value is expected"));
        }
        self.at += word.len();
        Ok(kind)
    }

    fn skip_whitespace(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn next_byte(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn wrong(&self, what: &'static str) -> JsonError {
        JsonError::Malformed { at: self.at, what }
    }
}

/// The text that stands between the quotes of a name or text the scanner gave; `None` where an escape is half of a surrogate
/// pair.
#[must_use]
pub fn unescape(inner: &str) -> Option<Cow<'_, str>> {
    let Some(first) = memchr::memchr(b'\\', inner.as_bytes()) else { return Some(Cow::Borrowed(inner)) };
    let mut text = String::with_capacity(inner.len());
    text.push_str(&inner[..first]);
    let mut high = None;
    let mut is_whole = true;
    pieces(&inner[first..], |piece| match (high.take(), piece) {
        (None, Piece::Plain(plain)) => text.push_str(plain),
        (None, Piece::Unit(unit @ 0xd800..=0xdbff)) => high = Some(unit),
        (None, Piece::Unit(unit)) => match char::from_u32(u32::from(unit)) {
            Some(letter) => text.push(letter),
            None => is_whole = false,
        },
        (Some(high), Piece::Unit(low)) => match char::decode_utf16([high, low]).next() {
            Some(Ok(letter)) => text.push(letter),
            _ => is_whole = false,
        },
        (Some(_), Piece::Plain(_)) => is_whole = false,
    });
    (is_whole && high.is_none()).then_some(Cow::Owned(text))
}

/// Appends the UTF-16 code units of the text between the quotes of a name or text the scanner gave, halves of surrogate
/// pairs included.
pub fn unescape_utf16(inner: &str, units: &mut Vec<u16>) {
    pieces(inner, |piece| match piece {
        Piece::Plain(plain) if plain.is_ascii() => units.extend(plain.bytes().map(u16::from)),
        Piece::Plain(plain) => units.extend(plain.encode_utf16()),
        Piece::Unit(unit) => units.push(unit),
    });
}

/// A stretch of a string.
enum Piece<'a> {
    Plain(&'a str),
    /// What an escape stands for.
    Unit(u16),
}

fn pieces<'a>(mut rest: &'a str, mut each: impl FnMut(Piece<'a>)) {
    while let Some(found) = memchr::memchr(b'\\', rest.as_bytes()) {
        if found > 0 {
            each(Piece::Plain(&rest[..found]));
        }
        let bytes = rest.as_bytes();
        let unit = match bytes.get(found + 1) {
            Some(b'b') => 8,
            Some(b'f') => 12,
            Some(b'n') => 10,
            Some(b'r') => 13,
            Some(b't') => 9,
            Some(b'u') => {
                let digits = bytes.get(found + 2..found + 6).unwrap_or_default();
                digits
                    .iter()
                    .filter_map(|digit| crate::hex::digit(*digit))
                    .fold(0, |unit, digit| unit << 4 | u16::from(digit))
            }
            Some(plain) => u16::from(*plain),
            None => return,
        };
        each(Piece::Unit(unit));
        let len = if bytes.get(found + 1) == Some(&b'u') { 6 } else { 2 };
        rest = rest.get(found + len..).unwrap_or_default();
    }
    if !rest.is_empty() {
        each(Piece::Plain(rest));
    }
}
