//! Replies, encoded for the RESP version of a connection.

use std::borrow::Cow;

use super::shared_bytes::SharedBytes;
use super::wire::{LINE_BYTES_MAX, put_length};

/// A reply of at least this many bytes is long.
const LONG_BYTES: usize = 1 << 20;

/// The RESP version of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// RESP2, the default until the client selects another version.
    #[default]
    Resp2,
    /// RESP3.
    Resp3,
}

/// A reply. A type that RESP2 lacks is written as its nearest RESP2 type, as Redis does.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// A short text without line breaks.
    Simple(Cow<'static, str>),
    /// An error: its code in capitals, a space, a sentence.
    Error(String),
    Integer(i64),
    /// A string of any bytes.
    Bulk(Vec<u8>),
    /// A string whose bytes are shared with other owners.
    Shared(SharedBytes),
    /// A string of JSON; a JSON response embeds it unquoted.
    Json(String),
    Null,
    /// A null in place of an array; RESP2 distinguishes it from a null string.
    NullArray,
    Array(Vec<Reply>),
    Map(Vec<(Reply, Reply)>),
    Set(Vec<Reply>),
    Double(f64),
    Boolean(bool),
    /// A text and its three-letter format: `txt`, `mkd`.
    Verbatim(&'static str, Vec<u8>),
}

impl Reply {
    pub const OK: Self = Self::Simple(Cow::Borrowed("OK"));

    pub fn text(text: impl Into<String>) -> Self {
        Self::Bulk(text.into().into_bytes())
    }

    pub fn error(text: impl Into<String>) -> Self {
        Self::Error(text.into())
    }

    /// A count as an integer reply; values over `i64::MAX` are clamped.
    pub fn count(count: usize) -> Self {
        Self::Integer(i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// Approximate size in memory, in bytes.
    pub fn approximate_bytes(&self) -> usize {
        let of_all = |items: &[Self]| items.iter().map(Self::approximate_bytes).sum::<usize>();
        size_of::<Self>()
            + match self {
                Self::Simple(text) => text.len(),
                Self::Error(text) | Self::Json(text) => text.len(),
                Self::Shared(bytes) => bytes.len(),
                Self::Bulk(bytes) | Self::Verbatim(_, bytes) => bytes.len(),
                Self::Array(items) | Self::Set(items) => of_all(items),
                Self::Map(pairs) => {
                    pairs.iter().map(|(key, value)| key.approximate_bytes() + value.approximate_bytes()).sum()
                }
                Self::Integer(_) | Self::Null | Self::NullArray | Self::Double(_) | Self::Boolean(_) => 0,
            }
    }

    /// Appends this reply to `out`. A long reply reserves its exact size, because doubling could take twice
    /// as much. Written items are freed as it goes.
    pub fn append(self, protocol: Protocol, out: &mut Vec<u8>) {
        let bytes = self.approximate_bytes();
        if bytes >= LONG_BYTES {
            out.reserve_exact(bytes);
        }
        match self {
            Self::Array(items) => {
                put_length(b'*', items.len(), out);
                items.into_iter().for_each(|item| item.put(protocol, out));
            }
            other => other.put(protocol, out),
        }
    }

    /// Appends this reply to `out`. The nesting depth is set by the command, never by client input.
    pub fn put(&self, protocol: Protocol, out: &mut Vec<u8>) {
        let new = protocol == Protocol::Resp3;
        match self {
            Self::Simple(text) => put_line(b'+', text, out),
            Self::Error(text) => put_line(b'-', text, out),
            Self::Integer(number) => put_head(':', *number, out),
            Self::Bulk(bytes) => put_bulk(b'$', bytes, out),
            Self::Shared(bytes) => put_bulk(b'$', bytes, out),
            Self::Json(text) => put_bulk(b'$', text.as_bytes(), out),
            Self::Null if new => out.extend_from_slice(b"_\r\n"),
            Self::NullArray if new => out.extend_from_slice(b"_\r\n"),
            Self::Null => out.extend_from_slice(b"$-1\r\n"),
            Self::NullArray => out.extend_from_slice(b"*-1\r\n"),
            Self::Array(items) => put_items('*', items, protocol, out),
            Self::Set(items) => put_items(if new { '~' } else { '*' }, items, protocol, out),
            Self::Map(pairs) => {
                let (kind, each) = if new { ('%', 1) } else { ('*', 2) };
                put_head(kind, pairs.len() * each, out);
                for (key, value) in pairs {
                    key.put(protocol, out);
                    value.put(protocol, out);
                }
            }
            Self::Double(number) if new && number.is_nan() => out.extend_from_slice(b",nan\r\n"),
            Self::Double(number) if new => out.extend_from_slice(format!(",{number}\r\n").as_bytes()),
            Self::Double(number) => put_bulk(b'$', number.to_string().as_bytes(), out),
            Self::Boolean(yes) if new => {
                out.extend_from_slice(if *yes { b"#t\r\n" } else { b"#f\r\n" });
            }
            Self::Boolean(yes) => put_head(':', u8::from(*yes), out),
            Self::Verbatim(kind, text) if new => {
                let mut whole = format!("{kind}:").into_bytes();
                whole.extend_from_slice(text);
                put_bulk(b'=', &whole, out);
            }
            Self::Verbatim(_, text) => put_bulk(b'$', text, out),
        }
    }
}

fn put_head(kind: char, number: impl std::fmt::Display, out: &mut Vec<u8>) {
    use std::io::Write;
    // Writing to a vector cannot fail.
    let _ = write!(out, "{kind}{number}\r\n");
}

fn put_bulk(kind: u8, bytes: &[u8], out: &mut Vec<u8>) {
    put_length(kind, bytes.len(), out);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn put_items(kind: char, items: &[Reply], protocol: Protocol, out: &mut Vec<u8>) {
    put_head(kind, items.len(), out);
    items.iter().for_each(|item| item.put(protocol, out));
}

/// Writes a text on one line: control characters become spaces, and the text is cut at half the line limit.
fn put_line(kind: u8, text: &str, out: &mut Vec<u8>) {
    // Nearly every line is short and plain.
    if text.len() <= LINE_BYTES_MAX / 2 && text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        out.push(kind);
        out.extend_from_slice(text.as_bytes());
        out.extend_from_slice(b"\r\n");
        return;
    }
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut end = text.len().min(LINE_BYTES_MAX / 2);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    put_head(char::from(kind), &text[..end], out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(reply: &Reply, protocol: Protocol) -> String {
        let mut out = Vec::new();
        reply.put(protocol, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn replies_are_written_per_protocol_version() {
        let pair = || vec![(Reply::text("a"), Reply::Integer(-1))];
        for (reply, two, three) in [
            (Reply::OK, "+OK\r\n", "+OK\r\n"),
            (Reply::text(""), "$0\r\n\r\n", "$0\r\n\r\n"),
            (Reply::Json("{}".into()), "$2\r\n{}\r\n", "$2\r\n{}\r\n"),
            (Reply::Null, "$-1\r\n", "_\r\n"),
            (Reply::NullArray, "*-1\r\n", "_\r\n"),
            (Reply::Map(pair()), "*2\r\n$1\r\na\r\n:-1\r\n", "%1\r\n$1\r\na\r\n:-1\r\n"),
            (Reply::Set(vec![Reply::Integer(1)]), "*1\r\n:1\r\n", "~1\r\n:1\r\n"),
            (Reply::Double(1.5), "$3\r\n1.5\r\n", ",1.5\r\n"),
            (Reply::Boolean(true), ":1\r\n", "#t\r\n"),
            (Reply::Verbatim("txt", b"hi".to_vec()), "$2\r\nhi\r\n", "=6\r\ntxt:hi\r\n"),
            (Reply::Array(vec![Reply::Array(vec![])]), "*1\r\n*0\r\n", "*1\r\n*0\r\n"),
        ] {
            assert_eq!(written(&reply, Protocol::Resp2), two);
            assert_eq!(written(&reply, Protocol::Resp3), three);
        }
    }

    #[test]
    fn simple_reply_text_stays_on_one_line() {
        let error = Reply::error(format!("ERR no\r\n+OK\r\n{}", "\u{e9}".repeat(5000)));
        let written = written(&error, Protocol::Resp2);
        assert!(written.starts_with("-ERR no  +OK") && written.len() < LINE_BYTES_MAX, "{written}");
        assert_eq!(written.matches('\n').count(), 1);
    }
}
