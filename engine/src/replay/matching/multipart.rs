//! A `multipart/form-data` body (RFC 7578, RFC 2046 section 5.1) as the matcher sees it: parts without their boundary.
//!
//! Clients draw a new boundary for each request, so two requests with the same fields never have the same bytes. The boundary is
//! read from the body itself: a body is a form where its first line is a boundary and its first part has the header
//! `Content-Disposition: form-data`, or where it is nothing but a closing boundary. A part whose own type is
//! `multipart/...` is read in the same way, [`DEPTH_MAX`] levels deep.
//!
//! A body that ends without its closing boundary keeps its parts, and is not the same as one with it. Any other body, and one
//! over [`PARTS_MAX`] parts or over [`HEADERS_BYTES_MAX`] of headers in a part, is no form: its bytes are compared.
//! The work is linear in the body for each level.

use std::borrow::Cow;

use memchr::memmem;

/// Parts of one body, nested ones included.
pub(super) const PARTS_MAX: usize = 1 << 16;
/// Bytes of one part's headers.
const HEADERS_BYTES_MAX: usize = 16 << 10;
/// Levels of forms within each other.
const DEPTH_MAX: usize = 4;
/// Bytes of a boundary (RFC 2046).
const BOUNDARY_BYTES_MAX: usize = 70;
/// Least bytes of the boundary of a form without parts: nothing else tells it from text.
const LONE_BOUNDARY_BYTES_MIN: usize = 8;
/// What the canonical form begins with, which no text does.
const MARK: &[u8] = b"\0annals multipart\0";

/// The parts of a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Multipart<'a> {
    pub(super) parts: Vec<FormPart<'a>>,
    /// The closing boundary was there.
    pub(super) is_closed: bool,
    /// What stands behind the closing boundary, without one line break.
    epilogue: &'a [u8],
}

/// A part of a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FormPart<'a> {
    /// Names in lower case and values, by name. The boundary of a nested form is left out.
    pub(super) headers: Vec<(String, Cow<'a, str>)>,
    pub(super) content: PartContent<'a>,
}

/// What a part holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PartContent<'a> {
    Bytes(&'a [u8]),
    Nested(Multipart<'a>),
}

impl<'a> Multipart<'a> {
    /// The form that these bytes are, if they are one.
    pub(super) fn parse(body: &'a [u8]) -> Option<Self> {
        let line = body.strip_prefix(b"--")?;
        let line = &line[..line.len().min(BOUNDARY_BYTES_MAX + 4)];
        let boundary = match memmem::find(line, b"\r\n") {
            Some(end) => &line[..end],
            None => line,
        };
        let alone = boundary.strip_suffix(b"--").filter(|boundary| {
            let rest = &body[2 + boundary.len() + 2..];
            boundary.len() >= LONE_BOUNDARY_BYTES_MIN && matches!(rest, b"" | b"\r\n")
        });
        let mut left = PARTS_MAX;
        if let Some(boundary) = alone.filter(|boundary| is_boundary(boundary)) {
            return Self::parse_parts(body, boundary, 0, &mut left);
        }
        let boundary = boundary.trim_ascii_end();
        let form = is_boundary(boundary).then(|| Self::parse_parts(body, boundary, 0, &mut left))??;
        let disposition = form.parts.first()?.header("content-disposition")?;
        let is_form = disposition.get(..9).is_some_and(|kind| kind.eq_ignore_ascii_case("form-data"));
        is_form.then_some(form)
    }

    /// The parts between boundaries; `left` is how many more there may be.
    fn parse_parts(body: &'a [u8], boundary: &[u8], depth: usize, left: &mut usize) -> Option<Self> {
        let delimiter = [b"\r\n--", boundary].concat();
        let delimiters = memmem::Finder::new(&delimiter);
        let (mut parts, mut at) = (Vec::new(), delimiter.len() - 2);
        body.starts_with(&delimiter[2..]).then_some(())?;
        loop {
            let rest = body.get(at..)?;
            if let Some(epilogue) = rest.strip_prefix(b"--") {
                let epilogue = epilogue.strip_prefix(b"\r\n").unwrap_or(epilogue);
                return Some(Self { parts, is_closed: true, epilogue });
            }
            at += padding(rest)?;
            *left = left.checked_sub(1)?;
            let end = end_of_part(body, at, &delimiters, delimiter.len());
            parts.push(FormPart::parse(&body[at..end.unwrap_or(body.len())], depth, left)?);
            match end {
                Some(end) => at = end + delimiter.len(),
                None => return Some(Self { parts, is_closed: false, epilogue: b"" }),
            }
        }
    }

    /// Appends its one form: every text after its length, so that no two forms have the same.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(MARK);
        out.push(u8::from(self.is_closed));
        write_sized(self.epilogue, out);
        write_len(self.parts.len(), out);
        for part in &self.parts {
            write_len(part.headers.len(), out);
            for (name, value) in &part.headers {
                write_sized(name.as_bytes(), out);
                write_sized(value.as_bytes(), out);
            }
            match &part.content {
                PartContent::Bytes(bytes) => {
                    out.push(0);
                    write_sized(bytes, out);
                }
                PartContent::Nested(form) => {
                    out.push(1);
                    form.write(out);
                }
            }
        }
    }
}

/// Where the part that begins at `at` ends: before the next line that is a boundary, and not a longer one.
fn end_of_part(body: &[u8], at: usize, delimiters: &memmem::Finder<'_>, len: usize) -> Option<usize> {
    delimiters.find_iter(&body[at..]).map(|found| at + found).find(|found| {
        let rest = &body[found + len..];
        rest.starts_with(b"--") || padding(rest).is_some()
    })
}

/// Length of the spaces and the line break behind a boundary; `None` where something else follows.
fn padding(rest: &[u8]) -> Option<usize> {
    let spaces = rest.iter().take(BOUNDARY_BYTES_MAX).take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    rest[spaces..].starts_with(b"\r\n").then_some(spaces + 2)
}

fn is_boundary(bytes: &[u8]) -> bool {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(byte);
    (1..=BOUNDARY_BYTES_MAX).contains(&bytes.len()) && bytes.iter().all(allowed)
}

impl<'a> FormPart<'a> {
    fn parse(bytes: &'a [u8], depth: usize, left: &mut usize) -> Option<Self> {
        let head = &bytes[..bytes.len().min(HEADERS_BYTES_MAX)];
        // A part may have no headers: then its empty line comes first.
        let (head, content) = match (bytes.strip_prefix(b"\r\n"), memmem::find(head, b"\r\n\r\n")) {
            (Some(content), _) => (&b""[..], content),
            (None, Some(end)) => (&bytes[..end], &bytes[end + 4..]),
            (None, None) => return None,
        };
        let mut headers = Vec::new();
        for line in std::str::from_utf8(head).ok()?.split("\r\n").filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':')?;
            headers.push((name.trim().to_ascii_lowercase(), Cow::Borrowed(value.trim())));
        }
        headers.sort_by(|(a, _), (b, _)| a.cmp(b));
        let mut part = Self { headers, content: PartContent::Bytes(content) };
        if depth + 1 < DEPTH_MAX
            && let Some(nested) = part.nested(content, depth, left)
        {
            part.content = PartContent::Nested(nested);
        }
        Some(part)
    }

    /// The form that this part's type says it is; takes the boundary out of the type.
    fn nested(&mut self, content: &'a [u8], depth: usize, left: &mut usize) -> Option<Multipart<'a>> {
        let (_, kind) = self.headers.iter_mut().find(|(name, _)| name == "content-type")?;
        let lower = kind.to_ascii_lowercase();
        let at = lower.find("boundary=").filter(|_| lower.starts_with("multipart/"))? + "boundary=".len();
        let value = kind[at..].split(';').next()?;
        let boundary = value.trim().trim_matches('"').as_bytes();
        let form =
            is_boundary(boundary).then(|| Multipart::parse_parts(content, boundary, depth + 1, left))??;
        let without = format!("{}{}", &kind[..at], &kind[at + value.len()..]);
        *kind = Cow::Owned(without);
        Some(form)
    }

    /// The value of a header; its name in lower case.
    pub(super) fn header(&self, wanted: &str) -> Option<&str> {
        self.headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_ref())
    }

    /// The field's name, as its disposition says it.
    pub(super) fn name(&self) -> &str {
        let disposition = self.header("content-disposition").unwrap_or_default();
        let after = disposition.split("; name=").nth(1).unwrap_or_default();
        match after.strip_prefix('"') {
            Some(quoted) => quoted.split('"').next().unwrap_or_default(),
            None => after.split(';').next().unwrap_or_default(),
        }
    }

    /// Bytes of its headers and its content: what it weighs in a distance.
    pub(super) fn weight(&self) -> u64 {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        let content = match &self.content {
            PartContent::Bytes(bytes) => bytes.len() as u64,
            PartContent::Nested(form) => form.weight(),
        };
        1 + headers as u64 + content
    }
}

impl Multipart<'_> {
    /// Bytes of its parts.
    pub(super) fn weight(&self) -> u64 {
        1 + self.epilogue.len() as u64 + self.parts.iter().map(FormPart::weight).sum::<u64>()
    }

    /// Whether both end in the same way.
    pub(super) fn ends_like(&self, other: &Multipart<'_>) -> bool {
        self.is_closed == other.is_closed && self.epilogue == other.epilogue
    }
}

fn write_len(len: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&(len as u64).to_le_bytes());
}

fn write_sized(bytes: &[u8], out: &mut Vec<u8>) {
    write_len(bytes.len(), out);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
#[path = "multipart_tests.rs"]
mod tests;
