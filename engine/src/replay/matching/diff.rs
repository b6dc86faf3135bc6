//! Compares two bodies field by field.
//!
//! Objects are compared by key. Arrays of equal length are compared element by element. For arrays of
//! different lengths, equal elements are first removed from both ends, so that one added message is one
//! difference. Each difference weighs the bytes that differ; the sum is the distance of the two bodies.
//! Multipart forms are compared part by part in the same way.
//!
//! The work is linear in the bodies, times their depth if arrays differ in length. Not included by design:
//! the minimal edit between two arrays, which costs the product of their lengths.

use std::borrow::Cow;

use annals_text::visible::is_hidden;

use crate::error::Result;
use crate::replay::matching::canonical::{CanonicalBody, write};
use crate::replay::matching::json::{Json, JsonStep};
use crate::replay::matching::multipart::{FormPart, Multipart, PartContent};
use crate::replay::matching::path::path_text;
use crate::replay::matching::rules::{Rules, is_volatile};
use crate::replay::matching::shape::{SHAPES, Shape};

/// Maximum number of differences that one comparison lists; the others are counted.
pub(super) const DIFFERENCES_MAX: usize = 16;
/// Maximum number of bytes of a value that a difference shows.
const SHOWN_BYTES_MAX: usize = 96;
/// Bytes around the differing part that a difference shows, too.
const CONTEXT_BYTES: usize = 32;
/// Longest text that is searched as a whole for shapes. In a longer text, only the bytes around the
/// difference are searched.
const SHAPE_SEARCH_BYTES_MAX: usize = 64 << 10;
/// Longest difference inside of such a longer text that is searched for shapes.
const SHAPE_DIFFERENCE_BYTES_MAX: usize = 1024;

/// What happened to a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// Both requests have the field, with different values.
    Changed,
    /// Only the program's request has the field.
    Added,
    /// Only the recorded request has the field.
    Removed,
}

/// The part of two texts that differs, without their common beginning and end. At most 96 bytes of each, cut
/// at character boundaries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextChange {
    /// Offset of the part in both values, in bytes.
    pub at: usize,
    /// The recorded text of the part.
    pub recorded: String,
    /// The program's text of the part.
    pub asked: String,
}

/// A field in which a request differs from a recorded one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The field: a JSONPath in the body; `query.KEY` or `name` in the call's name; `part N "FIELD" HEADER`
    /// or `part N "FIELD" content` in a form; `body` for a body that is neither.
    pub path: String,
    /// What happened to the field.
    pub kind: ChangeKind,
    /// The recorded value, cut to the differing part and a little context; empty if there was none.
    pub recorded: String,
    /// The value in the program's request, cut in the same way.
    pub asked: String,
    /// The differing part, if both values are texts.
    pub span: Option<TextChange>,
    /// The shape of the differing part in both values, if it is one that often changes from run to run.
    pub looks_like: Option<Shape>,
    /// The rule that would cover the difference, in the form of [`Rules::rule`]. `None` if that rule would be
    /// refused or hide too much.
    pub rule: Option<String>,
}

/// The result of a comparison.
#[derive(Debug, Default)]
pub(super) struct Diff {
    pub(super) differences: Vec<Difference>,
    /// Number of differences beyond the listed ones.
    pub(super) more: usize,
    /// Number of differing bytes; for each field the larger of both sides.
    pub(super) distance: u64,
    /// Bytes of the larger body.
    pub(super) weight: u64,
}

impl Diff {
    /// Compares two bodies. `bytes` are the recorded and the asked body as received.
    pub(super) fn new(
        recorded: &CanonicalBody<'_>,
        asked: &CanonicalBody<'_>,
        bytes: (&[u8], &[u8]),
        rules: &Rules,
    ) -> Result<Self> {
        let mut differ = DiffBuilder { diff: Self::default(), way: Vec::new(), rules };
        match (recorded, asked) {
            (CanonicalBody::Json(a), CanonicalBody::Json(b)) => {
                differ.diff.weight = a.weight().max(b.weight());
                differ.values(a, b)?;
            }
            (CanonicalBody::Form(a), CanonicalBody::Form(b)) => {
                differ.diff.weight = a.weight().max(b.weight());
                differ.forms(a, b, "");
            }
            _ => {
                differ.diff.weight = bytes.0.len().max(bytes.1.len()) as u64;
                differ.bytes(bytes.0, bytes.1);
            }
        }
        Ok(differ.diff)
    }

    /// Adds a difference of `bytes` bytes.
    pub(super) fn add(&mut self, bytes: usize, difference: impl FnOnce() -> Difference) {
        self.distance += bytes as u64;
        if self.differences.len() < DIFFERENCES_MAX {
            self.differences.push(difference());
        } else {
            self.more += 1;
        }
    }
}

struct DiffBuilder<'r, 'a> {
    diff: Diff,
    way: Vec<JsonStep<'a>>,
    rules: &'r Rules,
}

impl<'a> DiffBuilder<'_, 'a> {
    fn values<'j: 'a>(&mut self, a: &'j Json<'_>, b: &'j Json<'_>) -> Result<()> {
        match (a, b) {
            (Json::Hidden, _) | (_, Json::Hidden) => Ok(()),
            (Json::Object(a), Json::Object(b)) => self.objects(a, b),
            (Json::Array(a), Json::Array(b)) => self.arrays(a, b),
            (Json::Text(a), Json::Text(b)) => {
                if a != b {
                    self.texts(a, b);
                }
                Ok(())
            }
            (a, b) => {
                if canonical(a)? == canonical(b)? {
                    Ok(())
                } else {
                    self.add_value_change(ChangeKind::Changed, Some(a), Some(b))
                }
            }
        }
    }

    fn compare_at<'j: 'a>(
        &mut self,
        at: JsonStep<'a>,
        a: Option<&'j Json<'_>>,
        b: Option<&'j Json<'_>>,
    ) -> Result<()> {
        self.way.push(at);
        let done = match (a, b) {
            (Some(a), Some(b)) => self.values(a, b),
            (Some(Json::Hidden), None) | (None, Some(Json::Hidden)) | (None, None) => Ok(()),
            (Some(_), None) => self.add_value_change(ChangeKind::Removed, a, b),
            (None, Some(_)) => self.add_value_change(ChangeKind::Added, a, b),
        };
        self.way.pop();
        done
    }

    fn objects<'j: 'a>(
        &mut self,
        a: &'j [(Cow<'_, str>, Json<'_>)],
        b: &'j [(Cow<'_, str>, Json<'_>)],
    ) -> Result<()> {
        let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
        loop {
            let order = match (a.peek(), b.peek()) {
                (None, None) => return Ok(()),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some((a, _)), Some((b, _))) => a.encode_utf16().cmp(b.encode_utf16()),
            };
            let left = if order.is_le() { a.next() } else { None };
            let right = if order.is_ge() { b.next() } else { None };
            if let Some((key, _)) = left.or(right) {
                self.compare_at(
                    JsonStep::Key(Cow::Borrowed(key)),
                    left.map(|(_, v)| v),
                    right.map(|(_, v)| v),
                )?;
            }
        }
    }

    fn arrays<'j: 'a>(&mut self, a: &'j [Json<'_>], b: &'j [Json<'_>]) -> Result<()> {
        let short = a.len().min(b.len());
        let (mut from, mut tail) = (0, 0);
        if a.len() != b.len() {
            from = a.iter().zip(b).take_while(|(a, b)| a == b).count();
            let ends = a.iter().rev().zip(b.iter().rev()).take(short - from);
            tail = ends.take_while(|(a, b)| a == b).count();
        }
        for index in from..a.len().max(b.len()) - tail {
            let (a, b) = (a[..a.len() - tail].get(index), b[..b.len() - tail].get(index));
            self.compare_at(JsonStep::Index(index), a, b)?;
        }
        Ok(())
    }

    /// A value on one side only, or two values that are not both texts.
    fn add_value_change(
        &mut self,
        kind: ChangeKind,
        a: Option<&Json<'_>>,
        b: Option<&Json<'_>>,
    ) -> Result<()> {
        let bytes = a.map_or(0, Json::weight).max(b.map_or(0, Json::weight)).max(1);
        let looks_like = match (a, b) {
            (Some(Json::Number(a)), Some(Json::Number(b))) => looks_like(a, b),
            _ => None,
        };
        let (recorded, asked) =
            (a.map_or(Ok(String::new()), shown_value)?, b.map_or(Ok(String::new()), shown_value)?);
        let (path, rule) = self.path_and_rule(looks_like);
        let difference = || Difference { path, kind, recorded, asked, span: None, looks_like, rule };
        self.diff.add(usize::try_from(bytes).unwrap_or(usize::MAX), difference);
        Ok(())
    }

    fn texts(&mut self, a: &str, b: &str) {
        let (from, end_a, end_b) = differing_middle(a, b);
        let looks_like = shape_context(a, b, (from, end_a, end_b)).and_then(|(a, b)| looks_like(a, b));
        let (path, rule) = self.path_and_rule(looks_like);
        let bytes = end_a.max(end_b) - from;
        let difference = || Difference {
            path,
            kind: ChangeKind::Changed,
            recorded: excerpt(a, from, end_a),
            asked: excerpt(b, from, end_b),
            span: Some(TextChange {
                at: from,
                recorded: shown_text(&a[from..end_a]),
                asked: shown_text(&b[from..end_b]),
            }),
            looks_like,
            rule,
        };
        self.diff.add(bytes, difference);
    }

    /// Compares forms part by part. If one has more parts, equal parts at both ends are skipped. `within` is
    /// the path prefix of the enclosing part.
    fn forms(&mut self, a: &Multipart<'_>, b: &Multipart<'_>, within: &str) {
        let (short, long) = (a.parts.len().min(b.parts.len()), a.parts.len().max(b.parts.len()));
        let (mut from, mut tail) = (0, 0);
        if short != long {
            from = a.parts.iter().zip(&b.parts).take_while(|(a, b)| a == b).count();
            let ends = a.parts.iter().rev().zip(b.parts.iter().rev()).take(short - from);
            tail = ends.take_while(|(a, b)| a == b).count();
        }
        for index in from..long - tail {
            let left = a.parts[..a.parts.len() - tail].get(index);
            let right = b.parts[..b.parts.len() - tail].get(index);
            let name = left.or(right).map_or("", |part| part.name());
            let path = format!("{within}part {} \"{}\"", index + 1, shown_text(name));
            match (left, right) {
                (Some(a), Some(b)) => self.parts(a, b, &path),
                (Some(part), None) => self.part_of_one(ChangeKind::Removed, part, path),
                (None, Some(part)) => self.part_of_one(ChangeKind::Added, part, path),
                (None, None) => {}
            }
        }
        if !a.ends_like(b) {
            let end = |form: &Multipart<'_>| if form.is_closed { "closed" } else { "cut off" }.to_owned();
            self.field(format!("{within}body's end"), 1, end(a), end(b), None);
        }
    }

    fn parts(&mut self, a: &FormPart<'_>, b: &FormPart<'_>, path: &str) {
        let names: std::collections::BTreeSet<&str> =
            a.headers.iter().chain(&b.headers).map(|(name, _)| name.as_str()).collect();
        for name in names {
            let values = |part: &FormPart<'_>| {
                let all = part.headers.iter().filter(|(of, _)| of == name).map(|(_, value)| value.as_ref());
                all.collect::<Vec<&str>>().join(", ")
            };
            let (a, b) = (values(a), values(b));
            if a != b {
                let (from, end_a, end_b) = differing_middle(&a, &b);
                let (recorded, asked) = (excerpt(&a, from, end_a), excerpt(&b, from, end_b));
                let bytes = end_a.max(end_b) - from;
                self.field(
                    format!("{path} {}", shown_text(name)),
                    bytes,
                    recorded,
                    asked,
                    looks_like(&a, &b),
                );
            }
        }
        match (&a.content, &b.content) {
            (PartContent::Nested(a), PartContent::Nested(b)) => self.forms(a, b, &format!("{path}, ")),
            (PartContent::Bytes(a), PartContent::Bytes(b)) => self.contents(a, b, path),
            _ => self.field(format!("{path} content"), 1, String::new(), String::new(), None),
        }
    }

    /// Compares the contents of two parts, as texts if both are texts.
    fn contents(&mut self, a: &[u8], b: &[u8], path: &str) {
        if a == b {
            return;
        }
        let path = format!("{path} content");
        if let (Ok(a), Ok(b)) = (std::str::from_utf8(a), std::str::from_utf8(b)) {
            let (from, end_a, end_b) = differing_middle(a, b);
            let looks_like = shape_context(a, b, (from, end_a, end_b)).and_then(|(a, b)| looks_like(a, b));
            let (recorded, asked) = (excerpt(a, from, end_a), excerpt(b, from, end_b));
            return self.field(path, end_a.max(end_b) - from, recorded, asked, looks_like);
        }
        let (from, bytes) = differing_bytes(a, b);
        self.field(path, bytes, shown_from(a, from), shown_from(b, from), None);
    }

    fn part_of_one(&mut self, kind: ChangeKind, part: &FormPart<'_>, path: String) {
        let bytes = usize::try_from(part.weight()).unwrap_or(usize::MAX);
        let shown = match part.content {
            PartContent::Bytes(bytes) => {
                shown_text(&String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_BYTES_MAX)]))
            }
            PartContent::Nested(_) => "a form".to_owned(),
        };
        let (recorded, asked) =
            if kind == ChangeKind::Removed { (shown, String::new()) } else { (String::new(), shown) };
        let difference =
            || Difference { path, kind, recorded, asked, span: None, looks_like: None, rule: None };
        self.diff.add(bytes, difference);
    }

    /// A field of a form; no rule covers those.
    fn field(
        &mut self,
        path: String,
        bytes: usize,
        recorded: String,
        asked: String,
        looks_like: Option<Shape>,
    ) {
        let kind = ChangeKind::Changed;
        let difference = || Difference { path, kind, recorded, asked, span: None, looks_like, rule: None };
        self.diff.add(bytes.max(1), difference);
    }

    /// Compares bodies if at least one of them is neither JSON nor a form.
    fn bytes(&mut self, a: &[u8], b: &[u8]) {
        if a == b {
            return;
        }
        let (from, bytes) = differing_bytes(a, b);
        // If one side is JSON, its field at that byte still gives the path.
        let path = Json::path_to(a, from)
            .or_else(|| Json::path_to(b, from))
            .map_or("body".to_owned(), |way| path_text(&way).0);
        let (recorded, asked) = (shown_from(a, from), shown_from(b, from));
        let difference = || Difference {
            path,
            kind: ChangeKind::Changed,
            recorded,
            asked,
            span: None,
            looks_like: None,
            rule: None,
        };
        self.diff.add(bytes, difference);
    }

    /// The current path, and the rule that would cover a difference there.
    fn path_and_rule(&self, looks_like: Option<Shape>) -> (String, Option<String>) {
        let (path, whole) = path_text(&self.way);
        let mut candidates = Vec::new();
        if self.way.iter().rev().find_map(|at| match at {
            JsonStep::Key(key) => Some(is_volatile(key)),
            JsonStep::Index(_) => None,
        }) == Some(true)
        {
            candidates.push(format!("ignore {path}"));
        }
        // No rule for numbers in a text: they usually carry its meaning.
        if let Some(shape) = looks_like.filter(|shape| *shape != Shape::Number) {
            candidates.push(format!("mask {shape} {path}"));
        }
        let taken = |rule: &String| self.rules.clone().rule(rule).is_ok();
        (path, candidates.into_iter().find(taken).filter(|_| whole))
    }
}

/// The offset of the first difference of two bodies, and the number of differing bytes.
fn differing_bytes(a: &[u8], b: &[u8]) -> (usize, usize) {
    let from = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let end = a[from..].iter().rev().zip(b[from..].iter().rev()).take_while(|(a, b)| a == b).count();
    (from, a.len().max(b.len()) - from - end)
}

/// A short excerpt of a body from a byte on.
fn shown_from(bytes: &[u8], from: usize) -> String {
    let upto = bytes.len().min(from + SHOWN_BYTES_MAX);
    let text = String::from_utf8_lossy(&bytes[from.min(upto)..upto]);
    format!("from byte {from} of {}: {}", bytes.len(), shown_text(&text))
}

fn canonical(json: &Json<'_>) -> Result<String> {
    let mut out = String::new();
    match json {
        // Two arrays, objects or texts never come here. One of them differs by its first byte from a value of
        // any other kind.
        Json::Array(_) => out.push('['),
        Json::Object(_) => out.push('{'),
        Json::Text(_) => out.push('"'),
        other => write(other, &mut out, usize::MAX)?,
    }
    Ok(out)
}

/// The offset where two texts begin to differ, and the end of the differing part in each.
fn differing_middle(a: &str, b: &str) -> (usize, usize, usize) {
    let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    // Both texts have the same bytes up to there, so character boundaries agree.
    let from = a.floor_char_boundary(same).min(b.floor_char_boundary(same));
    let ends = a[from..].bytes().rev().zip(b[from..].bytes().rev());
    let mut tail = ends.take_while(|(a, b)| a == b).count();
    while !a.is_char_boundary(a.len() - tail) || !b.is_char_boundary(b.len() - tail) {
        tail -= 1;
    }
    (from, a.len() - tail, b.len() - tail)
}

/// The texts to search for a shape: both as a whole or, if they are long, the parts around the difference.
fn shape_context<'t>(
    a: &'t str,
    b: &'t str,
    (from, end_a, end_b): (usize, usize, usize),
) -> Option<(&'t str, &'t str)> {
    if a.len().max(b.len()) <= SHAPE_SEARCH_BYTES_MAX {
        return Some((a, b));
    }
    if end_a.max(end_b) - from > SHAPE_DIFFERENCE_BYTES_MAX {
        return None;
    }
    let start = a.floor_char_boundary(from.saturating_sub(CONTEXT_BYTES));
    let upto = |text: &str, end: usize| text.ceil_char_boundary((end + CONTEXT_BYTES).min(text.len()));
    Some((&a[start..upto(a, end_a)], &b[start..upto(b, end_b)]))
}

/// The shape whose masking makes two texts equal.
fn looks_like(a: &str, b: &str) -> Option<Shape> {
    SHAPES.into_iter().find(|shape| match (shape.mask(a), shape.mask(b)) {
        (Some(a), Some(b)) => a == b,
        _ => false,
    })
}

/// At most 96 bytes of a text, safe for a terminal.
pub(super) fn shown_text(text: &str) -> String {
    let shown = &text[..text.floor_char_boundary(SHOWN_BYTES_MAX)];
    let end = if shown.len() < text.len() { "…" } else { "" };
    escape_text(shown) + end
}

/// Hidden characters must not reach a terminal. NUL delimits a mask's placeholder.
fn escape_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\0' => out.push('|'),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if is_hidden(c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// The differing part of a text, with a little context before and after it.
fn excerpt(text: &str, from: usize, end: usize) -> String {
    let start = text.floor_char_boundary(from.saturating_sub(CONTEXT_BYTES));
    let stop = text.ceil_char_boundary((end + CONTEXT_BYTES).min(text.len()));
    let (before, after) = (if start > 0 { "…" } else { "" }, if stop < text.len() { "…" } else { "" });
    let (left, right) = (escape_text(&text[start..from]), escape_text(&text[end..stop]));
    format!("{before}{left}{}{right}{after}", shown_text(&text[from..end]))
}

fn shown_value(json: &Json<'_>) -> Result<String> {
    let mut out = String::new();
    match json {
        Json::Text(text) => out.push_str(&text[..text.floor_char_boundary(SHOWN_BYTES_MAX + 1)]),
        other => write(other, &mut out, SHOWN_BYTES_MAX)?,
    }
    Ok(shown_text(&out))
}

#[cfg(test)]
#[path = "diff_tests.rs"]
mod tests;
