//! A `multipart/form-data` body (RFC 7578, RFC 2046 section 5.1) for the matcher: parts without their
//! boundary.
//!
//! Clients choose a new boundary for each request, so two requests with equal fields never have equal bytes.
//! The boundary is read from the body itself. A body is a form if its first line is a boundary and its first
//! part has the header `Content-Disposition: form-data`. A body that is only a closing boundary is a form,
//! too. A part of type `multipart/...` is read in the same way, up to [`DEPTH_MAX`] levels deep.
//!
//! A body without its closing boundary keeps its parts, but differs from one that has it. Any other body is
//! compared as bytes. The same holds for a body with more than [`PARTS_MAX`] parts, or with more than
//! [`HEADERS_BYTES_MAX`] bytes of headers in a part. The work is linear in the body for each level.

use std::borrow::Cow;

use memchr::memmem;

/// Maximum number of parts in one body, nested ones included.
pub(super) const PARTS_MAX: usize = 1 << 16;
/// Maximum size of one part's headers, in bytes.
const HEADERS_BYTES_MAX: usize = 16 << 10;
/// Maximum depth of nested forms.
const DEPTH_MAX: usize = 4;
/// Maximum length of a boundary in bytes (RFC 2046).
const BOUNDARY_BYTES_MAX: usize = 70;
/// Minimum length of the boundary of a form without parts: only its length distinguishes it from other text.
const LONE_BOUNDARY_BYTES_MIN: usize = 8;
/// The start of a form's canonical bytes; no text starts with it.
const MARK: &[u8] = b"\0annals multipart\0";

/// A multipart form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Multipart<'a> {
    pub(super) parts: Vec<FormPart<'a>>,
    /// The body has its closing boundary.
    pub(super) is_closed: bool,
    /// The bytes after the closing boundary, without one leading line break.
    epilogue: &'a [u8],
}

/// One part of a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FormPart<'a> {
    /// Header names in lower case with their values, sorted by name. The boundary of a nested form is
    /// removed.
    pub(super) headers: Vec<(String, Cow<'a, str>)>,
    pub(super) content: PartContent<'a>,
}

/// The content of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PartContent<'a> {
    Bytes(&'a [u8]),
    Nested(Multipart<'a>),
}

impl<'a> Multipart<'a> {
    /// The form in these bytes; `None` if they are not a form.
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

    /// Parses the parts between the boundaries; `left` is the number of parts still allowed.
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

    /// Appends the canonical bytes. Each text follows its length, so different forms have different bytes.
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

/// The end of the part that begins at `at`: the start of the next line that is exactly a boundary.
fn end_of_part(body: &[u8], at: usize, delimiters: &memmem::Finder<'_>, len: usize) -> Option<usize> {
    delimiters.find_iter(&body[at..]).map(|found| at + found).find(|found| {
        let rest = &body[found + len..];
        rest.starts_with(b"--") || padding(rest).is_some()
    })
}

/// Length of the spaces and the line break after a boundary; `None` if other bytes follow.
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
        // A part may have no headers: then it starts with the empty line.
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

    /// The nested form that the part's type announces. Removes the boundary from the type.
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

    /// The value of a header; `wanted` is in lower case.
    pub(super) fn header(&self, wanted: &str) -> Option<&str> {
        self.headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_ref())
    }

    /// The field's name, from the disposition header.
    pub(super) fn name(&self) -> &str {
        let disposition = self.header("content-disposition").unwrap_or_default();
        let after = disposition.split("; name=").nth(1).unwrap_or_default();
        match after.strip_prefix('"') {
            Some(quoted) => quoted.split('"').next().unwrap_or_default(),
            None => after.split(';').next().unwrap_or_default(),
        }
    }

    /// The part's weight in a distance: the bytes of its headers and content.
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
    /// The sum of its parts' weights.
    pub(super) fn weight(&self) -> u64 {
        1 + self.epilogue.len() as u64 + self.parts.iter().map(FormPart::weight).sum::<u64>()
    }

    /// Whether both forms end in the same way.
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
