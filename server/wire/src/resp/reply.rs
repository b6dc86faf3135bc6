//! Replies, written as the version of RESP that a connection speaks has them.

use std::borrow::Cow;
use std::sync::Arc;

use super::wire::LINE_BYTES_MAX;

/// From this length on a reply is long.
const LONG_BYTES: usize = 1 << 20;

/// What a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// RESP2, until it asks for something else.
    #[default]
    Resp2,
    /// RESP3.
    Resp3,
}

/// A reply. What RESP2 has no type for is written as the nearest that it has, as Redis does.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// A short text without line breaks.
    Simple(Cow<'static, str>),
    /// An error: its code in capitals, a space, a sentence.
    Error(String),
    Integer(i64),
    /// A string of any bytes.
    Bulk(Vec<u8>),
    /// One that others have, too.
    Shared(Arc<Vec<u8>>),
    /// A string that holds JSON, which stands as it is where a reply is JSON.
    Json(String),
    Null,
    /// Null where else an array stands, which RESP2 tells apart.
    NullArray,
    Array(Vec<Reply>),
    Map(Vec<(Reply, Reply)>),
    Set(Vec<Reply>),
    Double(f64),
    Boolean(bool),
    /// A text, and the three letters that say what it is: `txt`, `mkd`.
    Verbatim(&'static str, Vec<u8>),
    /// What was not asked for.
    Push(Vec<Reply>),
}

impl Reply {
    pub const OK: Self = Self::Simple(Cow::Borrowed("OK"));

    /// A string.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Bulk(text.into().into_bytes())
    }

    /// An error.
    pub fn error(text: impl Into<String>) -> Self {
        Self::Error(text.into())
    }

    /// A count.
    pub fn count(count: usize) -> Self {
        Self::Integer(i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// About how many bytes it holds.
    pub fn bytes(&self) -> usize {
        let of_all = |items: &[Self]| items.iter().map(Self::bytes).sum::<usize>();
        size_of::<Self>()
            + match self {
                Self::Simple(text) => text.len(),
                Self::Error(text) | Self::Json(text) => text.len(),
                Self::Shared(bytes) => bytes.len(),
                Self::Bulk(bytes) | Self::Verbatim(_, bytes) => bytes.len(),
                Self::Array(items) | Self::Set(items) | Self::Push(items) => of_all(items),
                Self::Map(pairs) => pairs.iter().map(|(key, value)| key.bytes() + value.bytes()).sum(),
                Self::Integer(_) | Self::Null | Self::NullArray | Self::Double(_) | Self::Boolean(_) => 0,
            }
    }

    /// Appends it as the next reply. A long one gets the room that it takes, not up to twice as much, and what of it is written is let go.
    pub fn append(self, protocol: Protocol, out: &mut Vec<u8>) {
        let bytes = self.bytes();
        if bytes >= LONG_BYTES {
            out.reserve_exact(bytes);
        }
        match self {
            Self::Array(items) => {
                head('*', items.len(), out);
                items.into_iter().for_each(|item| item.put(protocol, out));
            }
            other => other.put(protocol, out),
        }
    }

    /// Appends it. It nests as deep as a command builds it, which no input decides.
    pub fn put(&self, protocol: Protocol, out: &mut Vec<u8>) {
        let new = protocol == Protocol::Resp3;
        match self {
            Self::Simple(text) => line('+', text, out),
            Self::Error(text) => line('-', text, out),
            Self::Integer(number) => head(':', *number, out),
            Self::Bulk(bytes) => bulk('$', bytes, out),
            Self::Shared(bytes) => bulk('$', bytes, out),
            Self::Json(text) => bulk('$', text.as_bytes(), out),
            Self::Null if new => out.extend_from_slice(b"_\r\n"),
            Self::NullArray if new => out.extend_from_slice(b"_\r\n"),
            Self::Null => out.extend_from_slice(b"$-1\r\n"),
            Self::NullArray => out.extend_from_slice(b"*-1\r\n"),
            Self::Array(items) => all('*', items, protocol, out),
            Self::Set(items) => all(if new { '~' } else { '*' }, items, protocol, out),
            Self::Push(items) => all(if new { '>' } else { '*' }, items, protocol, out),
            Self::Map(pairs) => {
                let (kind, each) = if new { ('%', 1) } else { ('*', 2) };
                head(kind, pairs.len() * each, out);
                for (key, value) in pairs {
                    key.put(protocol, out);
                    value.put(protocol, out);
                }
            }
            Self::Double(number) if new && number.is_nan() => out.extend_from_slice(b",nan\r\n"),
            Self::Double(number) if new => out.extend_from_slice(format!(",{number}\r\n").as_bytes()),
            Self::Double(number) => bulk('$', number.to_string().as_bytes(), out),
            Self::Boolean(yes) if new => {
                out.extend_from_slice(if *yes { b"#t\r\n" } else { b"#f\r\n" });
            }
            Self::Boolean(yes) => head(':', u8::from(*yes), out),
            Self::Verbatim(kind, text) if new => {
                let mut whole = format!("{kind}:").into_bytes();
                whole.extend_from_slice(text);
                bulk('=', &whole, out);
            }
            Self::Verbatim(_, text) => bulk('$', text, out),
        }
    }
}

fn head(kind: char, number: impl std::fmt::Display, out: &mut Vec<u8>) {
    use std::io::Write;
    // A vector takes all.
    let _ = write!(out, "{kind}{number}\r\n");
}

fn bulk(kind: char, bytes: &[u8], out: &mut Vec<u8>) {
    head(kind, bytes.len(), out);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn all(kind: char, items: &[Reply], protocol: Protocol, out: &mut Vec<u8>) {
    head(kind, items.len(), out);
    items.iter().for_each(|item| item.put(protocol, out));
}

/// A text that never breaks out of its line, and that whoever reads lines can read.
fn line(kind: char, text: &str, out: &mut Vec<u8>) {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut end = text.len().min(LINE_BYTES_MAX / 2);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    head(kind, &text[..end], out);
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
    fn each_version_has_its_own_forms() {
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
            (Reply::Push(vec![]), "*0\r\n", ">0\r\n"),
            (Reply::Array(vec![Reply::Array(vec![])]), "*1\r\n*0\r\n", "*1\r\n*0\r\n"),
        ] {
            assert_eq!(written(&reply, Protocol::Resp2), two);
            assert_eq!(written(&reply, Protocol::Resp3), three);
        }
    }

    #[test]
    fn a_text_never_breaks_out_of_its_line() {
        let error = Reply::error(format!("ERR no\r\n+OK\r\n{}", "\u{e9}".repeat(5000)));
        let written = written(&error, Protocol::Resp2);
        assert!(written.starts_with("-ERR no  +OK") && written.len() < LINE_BYTES_MAX, "{written}");
        assert_eq!(written.matches('\n').count(), 1);
    }
}
