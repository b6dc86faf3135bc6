//! Requests with both `Content-Length` and `Transfer-Encoding`, which have two lengths.
//!
//! A proxy in front could take the other length and see another request in the rest (RFC 9112, section 6.3).
//! hyper takes `Transfer-Encoding` and hides the other header, so the bytes are looked at before hyper reads
//! them. This follows the messages of a connection with the parser that hyper uses, and notes the first request
//! with both headers. It changes nothing; the service refuses the request by its number.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::HEAD_BYTES_MAX;

/// Maximum number of headers, as in hyper.
const HEADERS_MAX: usize = 100;
/// Maximum length of a line with a chunk's size, or of a trailer.
const LINE_BYTES_MAX: usize = 16 << 10;
/// Maximum size of a head that hyper reads: it may be read past the limit at once.
const FOLLOWED_BYTES_MAX: usize = 4 * HEAD_BYTES_MAX;
const NONE: u64 = u64::MAX;

/// The number of the first request with two lengths, and of the first that cannot be checked, from 0.
#[derive(Debug, Clone)]
pub(super) struct TwoLengths {
    found: Arc<AtomicU64>,
    unchecked: Arc<AtomicU64>,
}

impl TwoLengths {
    fn new() -> Self {
        Self { found: Arc::new(AtomicU64::new(NONE)), unchecked: Arc::new(AtomicU64::new(NONE)) }
    }

    /// Whether a request has two lengths, or may have.
    pub(super) fn is_request(&self, number: u64) -> bool {
        self.found.load(Ordering::Acquire) == number || self.unchecked.load(Ordering::Acquire) <= number
    }
}

/// A stream whose requests are followed.
pub(super) struct FramingGuard<S> {
    stream: S,
    follower: MessageFollower,
}

impl<S> FramingGuard<S> {
    pub(super) fn new(stream: S) -> (Self, TwoLengths) {
        let found = TwoLengths::new();
        (Self { stream, follower: MessageFollower::new(found.clone()) }, found)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FramingGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let read = buffer.filled().get(before..).unwrap_or_default();
        self.follower.follow(read);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FramingGuard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// What the next bytes of a connection belong to.
#[derive(Debug)]
enum MessagePart {
    Head,
    /// A body with this many bytes left.
    Body(u64),
    /// The line with a chunk's size.
    ChunkSize,
    /// A chunk and its line end, with this many bytes left.
    Chunk(u64),
    Trailers,
    /// Nothing is followed any more: hyper refuses what comes, or a request was found.
    Unknown,
}

/// Follows the requests of a connection.
#[derive(Debug)]
struct MessageFollower {
    part: MessagePart,
    /// The head, or the line, that has not arrived whole.
    held: Vec<u8>,
    /// Number of heads so far.
    heads: u64,
    found: TwoLengths,
}

impl MessageFollower {
    fn new(found: TwoLengths) -> Self {
        Self { part: MessagePart::Head, held: Vec::new(), heads: 0, found }
    }

    fn follow(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            bytes = match self.part {
                MessagePart::Head => self.follow_head(bytes),
                MessagePart::Body(left) => self.skip(bytes, left, MessagePart::Body, MessagePart::Head),
                MessagePart::Chunk(left) => {
                    self.skip(bytes, left, MessagePart::Chunk, MessagePart::ChunkSize)
                }
                MessagePart::ChunkSize | MessagePart::Trailers => self.follow_line(bytes),
                MessagePart::Unknown => return,
            };
        }
    }

    fn skip<'a>(
        &mut self,
        bytes: &'a [u8],
        left: u64,
        more: fn(u64) -> MessagePart,
        next: MessagePart,
    ) -> &'a [u8] {
        let taken = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let left = left - taken as u64;
        self.part = if left > 0 { more(left) } else { next };
        bytes.get(taken..).unwrap_or_default()
    }

    /// Takes the bytes of a head; returns those after it.
    fn follow_head<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let known = self.held.len();
        self.held.extend_from_slice(bytes);
        // A head ends with an empty line; the line end before it may have come earlier.
        let looked = self.held.get(known.saturating_sub(3)..).unwrap_or_default();
        let has_empty_line = looked.windows(2).any(|pair| pair == b"\n\n")
            || looked.windows(3).any(|three| three == b"\n\r\n");
        if self.held.len() > FOLLOWED_BYTES_MAX {
            self.stop();
            return &[];
        }
        if !has_empty_line {
            return &[];
        }
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut head = httparse::Request::new(&mut headers);
        let len = match head.parse(&self.held) {
            Ok(httparse::Status::Complete(len)) => len,
            Ok(httparse::Status::Partial) => return &[],
            Err(_) => {
                self.stop();
                return &[];
            }
        };
        let value = |name: &str| {
            head.headers
                .iter()
                .find(|header| header.name.eq_ignore_ascii_case(name))
                .map(|header| header.value)
        };
        let (length, coding) = (value("content-length"), value("transfer-encoding"));
        let length = length.map(|text| std::str::from_utf8(text).ok()?.trim().parse::<u64>().ok());
        let number = self.heads;
        self.heads += 1;
        self.part = match (length, coding) {
            (Some(_), Some(_)) => {
                self.found.found.store(number, Ordering::Release);
                MessagePart::Unknown
            }
            (None, Some(_)) => MessagePart::ChunkSize,
            (Some(Some(0)), None) | (None, None) => MessagePart::Head,
            (Some(Some(length)), None) => MessagePart::Body(length),
            (Some(None), None) => {
                self.leave_unchecked(number + 1);
                MessagePart::Unknown
            }
        };
        self.held.clear();
        bytes.get(len - known..).unwrap_or_default()
    }

    /// Takes the bytes of a line; returns those after it.
    fn follow_line<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let Some(end) = memchr::memchr(b'\n', bytes) else {
            self.held.extend_from_slice(bytes);
            if self.held.len() > LINE_BYTES_MAX {
                self.stop();
            }
            return &[];
        };
        let (line, rest) = bytes.split_at(end + 1);
        self.held.extend_from_slice(line);
        let is_trailer = matches!(self.part, MessagePart::Trailers);
        if is_trailer && !self.held.ends_with(b"\r\n") {
            // hyper ends a trailer at CR LF only.
            if self.held.len() > LINE_BYTES_MAX {
                self.stop();
            }
            return rest;
        }
        let next = match chunk_size(self.held.trim_ascii()) {
            _ if is_trailer && self.held == b"\r\n" => Some(MessagePart::Head),
            _ if is_trailer => Some(MessagePart::Trailers),
            Some(0) => Some(MessagePart::Trailers),
            // With its line end.
            Some(size) => size.checked_add(2).map(MessagePart::Chunk),
            None => None,
        };
        self.held.clear();
        match next {
            Some(next) => self.part = next,
            None => self.stop(),
        }
        rest
    }

    /// Follows the connection no further. A later request cannot be checked, so it is refused.
    fn stop(&mut self) {
        self.leave_unchecked(self.heads);
        (self.part, self.held) = (MessagePart::Unknown, Vec::new());
    }

    fn leave_unchecked(&self, first: u64) {
        self.found.unchecked.fetch_min(first, Ordering::AcqRel);
    }
}

/// The size at the start of a chunk's line.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| b"; \t".contains(byte)).next()?;
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of the request with two lengths, with the bytes in parts of this size.
    fn found(bytes: &[u8], part: usize) -> Option<u64> {
        let numbers = followed(bytes, part);
        Some(numbers.found.load(Ordering::Acquire)).filter(|number| *number != NONE)
    }

    fn followed(bytes: &[u8], part: usize) -> TwoLengths {
        let found = TwoLengths::new();
        let mut follower = MessageFollower::new(found.clone());
        bytes.chunks(part).for_each(|part| follower.follow(part));
        found
    }

    /// A trailer with a bare line feed ended the following, and the next request was not checked.
    #[test]
    fn bare_line_feeds_in_trailers_hide_no_request() {
        let first = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx: a\n\nzz\r\n\r\n";
        let both = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-length: 5\r\n\r\n0\r\n\r\n";
        let bytes = format!("{first}{both}");
        for part in [1, 2, 3, 64, bytes.len()] {
            assert_eq!(found(bytes.as_bytes(), part), Some(1), "{part}");
        }
        // What follows bytes that cannot be followed is refused.
        let numbers = followed(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 7);
        assert!(!numbers.is_request(0) && numbers.is_request(1) && numbers.is_request(7));
    }

    #[test]
    fn two_lengths_are_found_wherever_a_request_begins() {
        let get = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
        let body = "POST / HTTP/1.1\r\nContent-Length: 26\r\n\r\ntransfer-encoding: chunked\n";
        let body = body.trim_end();
        let chunked = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n6;x=y\r\nab\n\ncd\r\n\
            19\r\ncontent-length: 5\r\n\r\n\r\n\r\n\r\n0\r\ntrailer: 1\r\n\r\n";
        let both = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-length: 5\r\n\r\n0\r\n\r\n";
        let other = "POST / HTTP/1.1\ncontent-length: 5\nTRANSFER-ENCODING: chunked\n\n0\r\n\r\n";
        for two in [both, other] {
            for (before, number) in [
                (String::new(), 0),
                ("\r\n".to_owned(), 0),
                (get.to_owned(), 1),
                (format!("{get}{body}"), 2),
                (format!("{body}{chunked}{get}"), 3),
            ] {
                let bytes = format!("{before}{two}{get}");
                for part in [1, 2, 3, 7, 64, bytes.len()] {
                    assert_eq!(found(bytes.as_bytes(), part), Some(number), "{part} {bytes:?}");
                }
                let bytes = format!("{before}{get}");
                assert_eq!(found(bytes.as_bytes(), 5), None, "{bytes:?}");
            }
        }
    }

    #[test]
    fn bytes_that_are_no_http_are_not_followed() {
        for bytes in [
            &b"\x16\x03\x01garbage\n\n"[..],
            b"GET\n\n\n",
            b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        ] {
            assert_eq!(found(bytes, 4), None);
        }
        let endless = vec![b'a'; FOLLOWED_BYTES_MAX + 100];
        assert_eq!(found(&endless, 4096), None);
    }
}
