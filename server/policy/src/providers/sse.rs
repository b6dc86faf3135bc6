//! An incremental parser of server-sent events, by the WHATWG HTML standard (section 9.2.6, 'Interpreting an
//! event stream'). Lines end in LF, CR or CR LF. One byte order mark at the start is skipped. Lines that
//! begin with a colon are comments. `data` lines are joined by LF. An event without data is ignored, and an
//! event cut by the end of the stream is dropped. Input may be split anywhere, also inside a line end, a byte
//! order mark or a character.
//!
//! An event holds at most [`EVENT_BYTES_MAX`] bytes; a longer one is dropped and counted, and parsing
//! continues with the next.
//!
//! Left out on purpose: reconnecting, which is up to the client, and with it `id` and `retry`.

use std::borrow::Cow;

/// Maximum size of an event's data, and of one line: 16 MiB.
pub const EVENT_BYTES_MAX: usize = 16 << 20;

const MARK: &[u8] = b"\xef\xbb\xbf";

/// One dispatched event. Bytes that are not UTF-8 read as U+FFFD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SseEvent<'a> {
    /// Its type; `message` if the stream names none.
    pub name: Cow<'a, str>,
    /// Its data lines, joined by LF.
    pub data: Cow<'a, str>,
}

/// A parser of one event stream.
#[derive(Debug, Clone)]
pub struct SseParser {
    limit: usize,
    /// Number of byte order mark bytes seen at the start; `None` once the mark is decided.
    mark: Option<usize>,
    /// Whether the last byte was a CR that ended a line: a following LF belongs to it.
    after_cr: bool,
    line: Vec<u8>,
    data: Vec<u8>,
    name: Vec<u8>,
    /// Whether bytes of this line were dropped.
    line_cut: bool,
    /// Whether the current event is too long.
    overlong: bool,
    /// Whether any part of an event was read since the last blank line.
    pending: bool,
    dropped: u64,
}

impl Default for SseParser {
    fn default() -> Self {
        Self::with_limit(EVENT_BYTES_MAX)
    }
}

impl SseParser {
    /// A parser with at most `limit` bytes of data per event.
    #[must_use]
    pub fn with_limit(limit: usize) -> Self {
        Self {
            limit,
            mark: Some(0),
            after_cr: false,
            line: Vec::new(),
            data: Vec::new(),
            name: Vec::new(),
            line_cut: false,
            overlong: false,
            pending: false,
            dropped: 0,
        }
    }

    /// Parses the next bytes, and passes each completed event to `sink`.
    pub fn push(&mut self, bytes: &[u8], sink: &mut impl FnMut(SseEvent<'_>)) {
        let mut rest = self.skip_mark(bytes);
        while let Some(first) = rest.first() {
            if std::mem::take(&mut self.after_cr) && *first == b'\n' {
                rest = &rest[1..];
                continue;
            }
            let Some(end) = memchr::memchr2(b'\r', b'\n', rest) else {
                self.keep(rest);
                return;
            };
            self.after_cr = rest[end] == b'\r';
            if self.line.is_empty() {
                self.end_line(&rest[..end], sink);
            } else {
                self.keep(&rest[..end]);
                let mut line = std::mem::take(&mut self.line);
                self.end_line(&line, sink);
                line.clear();
                self.line = line;
            }
            rest = &rest[end + 1..];
        }
    }

    /// How many events were dropped because they were too long.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Whether an event has begun and not ended; after the last byte this means that the stream was cut.
    #[must_use]
    pub fn is_within_event(&self) -> bool {
        self.pending || !self.line.is_empty() || self.mark.is_some_and(|seen| seen > 0)
    }

    fn skip_mark<'b>(&mut self, mut bytes: &'b [u8]) -> &'b [u8] {
        while let (Some(seen), Some(byte)) = (self.mark, bytes.first()) {
            if MARK.get(seen) == Some(byte) {
                self.mark = if seen + 1 == MARK.len() { None } else { Some(seen + 1) };
                bytes = &bytes[1..];
            } else {
                // Not a byte order mark: the bytes begin the first line.
                self.line.extend_from_slice(&MARK[..seen]);
                self.mark = None;
            }
        }
        bytes
    }

    fn keep(&mut self, bytes: &[u8]) {
        // Leaves space for the field's name and its colon.
        if self.line.len() + bytes.len() > self.limit.saturating_add(64) {
            self.line_cut = true;
            // The beginning stays, so that a comment stays a comment and the line does not look blank.
            self.line.truncate(64);
            if self.line.is_empty() {
                self.line.extend_from_slice(&bytes[..bytes.len().min(64)]);
            }
        } else {
            self.line.extend_from_slice(bytes);
        }
    }

    fn end_line(&mut self, line: &[u8], sink: &mut impl FnMut(SseEvent<'_>)) {
        let line_cut = std::mem::take(&mut self.line_cut);
        if line.is_empty() {
            self.dispatch(sink);
            return;
        }
        let (field, value) = match memchr::memchr(b':', line) {
            Some(0) => return,
            Some(colon) => {
                let value = &line[colon + 1..];
                (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
            }
            None => (line, &line[line.len()..]),
        };
        self.pending = true;
        match field {
            b"data" if line_cut || self.data.len() + value.len() >= self.limit => self.overlong = true,
            b"data" => {
                self.data.extend_from_slice(value);
                self.data.push(b'\n');
            }
            b"event" => {
                self.name.clear();
                self.name.extend_from_slice(&value[..value.len().min(self.limit)]);
            }
            _ => {}
        }
    }

    fn dispatch(&mut self, sink: &mut impl FnMut(SseEvent<'_>)) {
        if self.overlong {
            self.dropped += 1;
        } else if let Some(data) = self.data.strip_suffix(b"\n") {
            let name = if self.name.is_empty() { b"message" } else { self.name.as_slice() };
            sink(SseEvent { name: String::from_utf8_lossy(name), data: String::from_utf8_lossy(data) });
        }
        self.data.clear();
        self.name.clear();
        self.overlong = false;
        self.pending = false;
    }
}

#[cfg(test)]
mod tests {
    use super::SseParser;

    type ReadEvents = Vec<(String, String)>;

    fn read(limit: usize, parts: &[&[u8]]) -> (ReadEvents, SseParser) {
        let mut stream = SseParser::with_limit(limit);
        let mut seen = Vec::new();
        for part in parts {
            stream.push(part, &mut |event| {
                seen.push((event.name.into_owned(), event.data.into_owned()));
            });
        }
        (seen, stream)
    }

    fn of(name: &str, data: &str) -> (String, String) {
        (name.to_owned(), data.to_owned())
    }

    #[test]
    fn examples_of_the_standard_are_parsed() {
        let (seen, _) = read(99, &[b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n"]);
        assert_eq!(
            seen,
            [of("message", "first event"), of("message", "second event"), of("message", " third event")]
        );
        let (seen, stream) = read(99, &[b"data\n\ndata\ndata\n\ndata:"]);
        assert_eq!(seen, [of("message", ""), of("message", "\n")]);
        assert!(stream.is_within_event());
        let (seen, _) = read(99, &[b"data: YHOO\ndata: +2\ndata: 10\n\n"]);
        assert_eq!(seen, [of("message", "YHOO\n+2\n10")]);
    }

    #[test]
    fn line_ends_and_splits_do_not_change_events() {
        let text = "\u{feff}: ping\n\nevent: a\ndata: x: \u{1f600}\ndata:é\nid: 7\nretry: 1500\nretry: x\n\n\nevent: none\n\nid: a\0b\nnonsense\ndata: {\"b\":1}\n\ndata: cut";
        let expected = [of("a", "x: \u{1f600}\né"), of("message", "{\"b\":1}")];
        for end in ["\n", "\r", "\r\n"] {
            let bytes = text.replace('\n', end).into_bytes();
            for at in 0..=bytes.len() {
                for two in [at, (at + 1).min(bytes.len()), (at + 5).min(bytes.len())] {
                    let (seen, stream) = read(99, &[&bytes[..at], &bytes[at..two], &bytes[two..]]);
                    assert_eq!(seen, expected, "{end:?} split at {at} and {two}");
                    assert!(stream.is_within_event());
                }
            }
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            assert_eq!(read(99, &single).0, expected);
        }
    }

    #[test]
    fn byte_order_mark_is_skipped_only_at_the_start() {
        let (seen, _) = read(99, &[b"\xef\xbb", b"\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n"]);
        assert_eq!(seen, [of("message", "a")]);
        let (seen, _) = read(99, &[b"\xef\xbb", b"data: a\n\ndata: b\n\n"]);
        assert_eq!(seen, [of("message", "b")], "half a mark is part of the first line");
    }

    #[test]
    fn overlong_event_is_dropped_and_counted() {
        let long = vec![b'x'; 5000];
        for split in [1, 7, 4096, 6000] {
            let mut bytes = b"event: big\ndata: ".to_vec();
            bytes.extend_from_slice(&long);
            bytes.extend_from_slice(b"\n\n: ");
            bytes.extend_from_slice(&long);
            bytes.extend_from_slice(b"\ndata: small\n\n");
            let parts: Vec<&[u8]> = bytes.chunks(split).collect();
            let (seen, stream) = read(100, &parts);
            assert_eq!(seen, [of("message", "small")], "in chunks of {split}");
            assert_eq!(stream.dropped(), 1);
            assert!(stream.line.capacity() < 20_000);
        }
    }
}
