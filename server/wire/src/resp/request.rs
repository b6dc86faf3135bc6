//! Requests: an array of strings, or, if the limits allow it, an inline line of words.
//!
//! Error texts are those of Redis 7. Limits bound the number of words, each word, and the whole request;
//! unauthenticated clients get small limits.

use std::io::Write;

use super::wire::{
    BULK_BYTES_MAX, BulkBuffer, LineBuffer, Malformed, RESERVED_BYTES_MAX, length, put_length,
};

/// Maximum length of an inline command, in bytes.
const INLINE_BYTES_MAX: usize = 64 << 10;
/// Number of words for which space is reserved at once.
const WORDS_EXPECTED: usize = 16;
/// Approximate bytes of a word besides its own.
const WORD_BYTES: usize = 16;
/// Maximum number of digits of a length that is read at once.
const LENGTH_DIGITS_MAX: usize = 9;
/// Longer strings are written directly instead of being copied into the buffer.
const COPIED_BYTES_MAX: usize = 16 << 10;

/// Limits of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLimits {
    words: usize,
    word_bytes: usize,
    request_bytes: usize,
    inline: bool,
    unauthenticated: bool,
}

impl RequestLimits {
    /// Before login.
    pub const UNAUTHENTICATED: Self = Self {
        words: 10,
        word_bytes: 16 << 10,
        request_bytes: 64 << 10,
        inline: true,
        unauthenticated: true,
    };
    /// After login.
    pub const CLIENT: Self = Self {
        words: 1 << 20,
        word_bytes: BULK_BYTES_MAX,
        request_bytes: BULK_BYTES_MAX + (64 << 20),
        inline: true,
        unauthenticated: false,
    };
    /// Of a process that records through another process's store.
    pub const RECORDER: Self = Self {
        words: 1024,
        word_bytes: BULK_BYTES_MAX,
        request_bytes: BULK_BYTES_MAX + (4 << 20),
        inline: false,
        unauthenticated: false,
    };
    /// Small enough that short fuzz inputs reach every limit.
    #[cfg(any(test, fuzzing))]
    pub(super) const TINY: Self =
        Self { words: 4, word_bytes: 8, request_bytes: 20, inline: true, unauthenticated: false };

    /// Whether a request is within these limits.
    #[cfg(any(test, fuzzing))]
    pub(super) fn admits(&self, words: &[Vec<u8>]) -> bool {
        words.len() <= self.words
            && words.iter().all(|word| word.len() <= self.word_bytes)
            && words.iter().map(Vec::len).sum::<usize>() <= self.request_bytes
    }
}

/// Decodes requests.
#[derive(Debug)]
pub struct RequestDecoder {
    limits: RequestLimits,
    line: LineBuffer,
    bulk: Option<BulkBuffer>,
    /// The incomplete request: its words so far, the announced number of words, and their bytes.
    words: Vec<Vec<u8>>,
    count: usize,
    bytes: usize,
}

impl RequestDecoder {
    pub fn new(limits: RequestLimits) -> Self {
        Self { limits, line: LineBuffer::default(), bulk: None, words: Vec::new(), count: 0, bytes: 0 }
    }

    /// Applies to the requests that follow.
    pub fn set_limits(&mut self, limits: RequestLimits) {
        self.limits = limits;
    }

    /// Bytes of allocated memory.
    #[cfg(any(test, fuzzing))]
    pub(super) fn held_bytes(&self) -> usize {
        let of_words: usize = self.words.iter().map(Vec::capacity).sum();
        let lists = self.words.capacity() * size_of::<Vec<u8>>();
        of_words + lists + self.line.held_bytes() + self.bulk.as_ref().map_or(0, |bulk| bulk.bytes.capacity())
    }

    /// Takes the next request off the front of `input`; `None` once all input is consumed and the request is
    /// incomplete. A request may have no words.
    ///
    /// # Errors
    /// Malformed bytes; the decoder must not be used afterwards.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Vec<Vec<u8>>>, Malformed> {
        if let Some(words) = self.take_whole(input) {
            return Ok(Some(words));
        }
        loop {
            if let Some(bulk) = &mut self.bulk {
                if !bulk.take(input)? {
                    return Ok(None);
                }
                self.words.extend(self.bulk.take().map(|bulk| bulk.bytes));
                if self.words.len() < self.count {
                    continue;
                }
                (self.count, self.bytes) = (0, 0);
                return Ok(Some(std::mem::take(&mut self.words)));
            }
            let Some(first) = self.line.first(input) else { return Ok(None) };
            match (first, self.count) {
                (b'$', 1..) => {
                    let mut line = std::mem::take(&mut self.line);
                    let len =
                        line.read_crlf(input, |line| self.word_length(line.get(1..).unwrap_or_default()));
                    self.line = line;
                    let Some(len) = len? else { return Ok(None) };
                    self.bulk = Some(BulkBuffer::new(len));
                }
                (other, 1..) => {
                    return Err(Malformed::new(format!("expected '$', got '{}'", other.escape_ascii())));
                }
                (b'*', 0) => {
                    let mut line = std::mem::take(&mut self.line);
                    let count =
                        line.read_crlf(input, |line| self.word_count(line.get(1..).unwrap_or_default()));
                    self.line = line;
                    let Some(count) = count? else { return Ok(None) };
                    self.count = count;
                    self.words = Vec::with_capacity(count.min(WORDS_EXPECTED));
                    if self.count == 0 {
                        return Ok(Some(Vec::new()));
                    }
                }
                (_, 0) if self.limits.inline => {
                    let line = self.line.take(input, INLINE_BYTES_MAX);
                    let Some(line) = line.map_err(|_| Malformed::new("too big inline request"))? else {
                        return Ok(None);
                    };
                    return self.inline_command(line.strip_suffix(b"\r").unwrap_or(&line)).map(Some);
                }
                (other, 0) => {
                    return Err(Malformed::new(format!("expected '*', got '{}'", other.escape_ascii())));
                }
            }
        }
    }

    /// Takes a short array that is entirely in `input`. For anything else, errors included, returns `None` and
    /// leaves everything as it was. It spares the state between the pieces of a request, which took as long as
    /// running a short command.
    fn take_whole(&self, input: &mut &[u8]) -> Option<Vec<Vec<u8>>> {
        if self.count > 0 || self.bulk.is_some() || !self.line.is_empty() {
            return None;
        }
        let (count, mut rest) = length_line(input, b'*')?;
        if count == 0 || count > self.limits.words.min(WORDS_EXPECTED) {
            return None;
        }
        let (mut words, mut bytes) = (Vec::with_capacity(count), 0);
        for _ in 0..count {
            let (len, after) = length_line(rest, b'$')?;
            bytes += len;
            if len > self.limits.word_bytes || bytes > self.limits.request_bytes {
                return None;
            }
            let word = after.get(..len)?;
            rest = after.get(len..)?.strip_prefix(b"\r\n")?;
            words.push(word.to_vec());
        }
        *input = rest;
        Some(words)
    }

    /// The error for a length over its limit.
    fn length_error(&self, of: &str) -> Malformed {
        Malformed::new(format!(
            "{} {of} length",
            if self.limits.unauthenticated { "unauthenticated" } else { "invalid" }
        ))
    }

    /// Parses the number of words of the request.
    fn word_count(&self, text: &[u8]) -> Result<usize, Malformed> {
        length(text, self.limits.words).ok_or_else(|| self.length_error("multibulk"))
    }

    /// Parses the length of the next word.
    fn word_length(&mut self, text: &[u8]) -> Result<usize, Malformed> {
        let len = length(text, self.limits.word_bytes).ok_or_else(|| self.length_error("bulk"))?;
        self.bytes += len;
        if self.bytes > self.limits.request_bytes {
            return Err(self.too_large_error());
        }
        Ok(len)
    }

    fn too_large_error(&self) -> Malformed {
        Malformed::new(format!("a command is over {} bytes", self.limits.request_bytes))
    }

    fn inline_command(&self, line: &[u8]) -> Result<Vec<Vec<u8>>, Malformed> {
        let words = split_inline(line).ok_or_else(|| Malformed::new("unbalanced quotes in request"))?;
        if is_http(&words) {
            return Err(Malformed::Http);
        }
        match () {
            () if words.len() > self.limits.words => Err(self.length_error("multibulk")),
            () if words.iter().any(|word| word.len() > self.limits.word_bytes) => {
                Err(self.length_error("bulk"))
            }
            () if words.iter().map(Vec::len).sum::<usize>() > self.limits.request_bytes => {
                Err(self.too_large_error())
            }
            () => Ok(words),
        }
    }
}

/// A line of a sign and a short length, and the bytes after it.
fn length_line(bytes: &[u8], sign: u8) -> Option<(usize, &[u8])> {
    let mut rest = bytes.strip_prefix(&[sign])?;
    let mut number = 0;
    for digits in 0..=LENGTH_DIGITS_MAX {
        let (byte, after) = rest.split_first()?;
        match byte {
            b'0'..=b'9' => number = number * 10 + usize::from(byte - b'0'),
            b'\r' if digits > 0 => return Some((number, after.strip_prefix(b"\n")?)),
            _ => return None,
        }
        rest = after;
    }
    None
}

/// Whether this is the first line of an HTTP request, or a header that was smuggled in front of one.
fn is_http(words: &[Vec<u8>]) -> bool {
    let word = |at: usize| words.get(at).map(Vec::as_slice).unwrap_or_default();
    let verbs: [&[u8]; 8] = [b"GET", b"PUT", b"HEAD", b"PATCH", b"DELETE", b"OPTIONS", b"CONNECT", b"TRACE"];
    let first = word(0).to_ascii_uppercase();
    first == b"POST"
        || first == b"HOST:"
        || verbs.contains(&first.as_slice()) && (word(1).starts_with(b"/") || word(2).starts_with(b"HTTP/"))
}

/// Splits a line into words that are separated by space or quoted; `None` if a quotation is not closed.
/// Escapes are those of Redis.
fn split_inline(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_ascii_start();
        let Some(first) = rest.first() else { return Some(words) };
        let mut word = Vec::new();
        match first {
            quote @ (b'"' | b'\'') => {
                let quote = *quote;
                rest = rest.get(1..)?;
                loop {
                    let (byte, after) = rest.split_first()?;
                    rest = after;
                    match (*byte, quote) {
                        (byte, _) if byte == quote => break,
                        (b'\\', b'"') => rest = unescape(rest, &mut word)?,
                        (b'\\', _) if rest.first() == Some(&b'\'') => {
                            word.push(b'\'');
                            rest = rest.get(1..)?;
                        }
                        (byte, _) => word.push(byte),
                    }
                }
                if rest.first().is_some_and(|byte| !byte.is_ascii_whitespace()) {
                    return None;
                }
            }
            _ => {
                let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
                let (bare, after) = rest.split_at(end);
                // Quotes inside a word are literal here: nobody types that by hand and means quoting.
                word.extend_from_slice(bare);
                rest = after;
            }
        }
        words.push(word);
    }
}

/// Decodes the escape after a backslash; returns the bytes after it.
fn unescape<'a>(rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    let (byte, after) = rest.split_first()?;
    let hex = |at: usize| after.get(at).and_then(|digit| char::from(*digit).to_digit(16));
    if *byte == b'x'
        && let (Some(high), Some(low)) = (hex(0), hex(1))
    {
        word.push((high * 16 + low) as u8);
        return after.get(2..);
    }
    word.push(match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => *other,
    });
    Some(after)
}

/// Writes a command.
///
/// # Errors
/// Those of the writer.
pub fn write_command(to: &mut impl Write, words: &[&[u8]]) -> std::io::Result<()> {
    let copied: usize = words.iter().map(|word| word.len().min(COPIED_BYTES_MAX) + WORD_BYTES).sum();
    let mut buffer = Vec::with_capacity((WORD_BYTES + copied).min(RESERVED_BYTES_MAX));
    put_length(b'*', words.len(), &mut buffer);
    for word in words {
        put_length(b'$', word.len(), &mut buffer);
        if word.len() > COPIED_BYTES_MAX {
            to.write_all(&buffer)?;
            buffer.clear();
            to.write_all(word)?;
        } else {
            buffer.extend_from_slice(word);
        }
        buffer.extend_from_slice(b"\r\n");
    }
    to.write_all(&buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    type RequestWords = Vec<Vec<u8>>;

    /// All requests in these bytes, decoded `step` bytes at a time.
    fn read(bytes: &[u8], step: usize, limits: RequestLimits) -> Result<Vec<RequestWords>, Malformed> {
        let (mut requests, mut all) = (RequestDecoder::new(limits), Vec::new());
        for mut input in bytes.chunks(step) {
            while let Some(request) = requests.next(&mut input)? {
                all.push(request);
            }
            assert!(input.is_empty(), "input is left over");
        }
        Ok(all)
    }

    fn words(words: &[&[u8]]) -> RequestWords {
        words.iter().map(|word| word.to_vec()).collect()
    }

    #[test]
    fn requests_decode_equally_for_every_chunk_size() {
        let long = (0..70_000_u32).map(|number| number as u8).collect::<Vec<_>>();
        let command: [&[u8]; 4] = [b"FRAME.APPEND", b"\r\n$3\r\n\0\xff", b"", &long];
        let mut bytes = Vec::new();
        write_command(&mut bytes, &command).unwrap();
        bytes.extend_from_slice(b"*0\r\nPING\r\n  set \"a b\\x41\\n\" 'it\\'s' \n\r\n");
        let expected =
            vec![words(&command), vec![], words(&[b"PING"]), words(&[b"set", b"a bA\n", b"it's"]), vec![]];
        for step in [1, 2, 3, 7, 1000, bytes.len()] {
            assert_eq!(read(&bytes, step, RequestLimits::CLIENT).unwrap(), expected, "{step} at a time");
        }
    }

    #[test]
    fn invalid_requests_are_refused_before_memory_is_reserved() {
        let over = format!("*1\r\n${}\r\n", BULK_BYTES_MAX + 1);
        let together = format!("*3\r\n${0}\r\n", BULK_BYTES_MAX);
        let long = "x".repeat(INLINE_BYTES_MAX);
        for (hostile, told) in [
            ("*1\r\n$\r\n", "invalid bulk length"),
            ("*1\r\n$-1\r\n", "invalid bulk length"),
            ("*1\r\n$+3\r\n", "invalid bulk length"),
            ("*1\r\n$99999999999999999999999\r\n", "invalid bulk length"),
            (&over, "invalid bulk length"),
            ("*1000000000\r\n", "invalid multibulk length"),
            ("*-1\r\n", "invalid multibulk length"),
            ("*1\r\n*1\r\n", "expected '$', got '*'"),
            ("*1\r\n:1\r\n", "expected '$', got ':'"),
            ("*1\r\n$3\r\nabcd\r\n", "a string is longer than its announced length"),
            ("*1\r\n$3\r\nabc\n\n", "a string is longer than its announced length"),
            ("*1\n", "a line does not end with a carriage return"),
            ("set \"a\r\n", "unbalanced quotes in request"),
            (&long, "too big inline request"),
        ] {
            for step in [1, hostile.len()] {
                let refused = read(hostile.as_bytes(), step, RequestLimits::CLIENT).unwrap_err();
                assert_eq!(refused.to_string(), told, "{:?}", &hostile[..hostile.len().min(40)]);
            }
        }
        // An announced length alone reserves almost no memory.
        let mut requests = RequestDecoder::new(RequestLimits::CLIENT);
        assert_eq!(requests.next(&mut together.as_bytes()).unwrap(), None);
        assert!(requests.bulk.unwrap().bytes.capacity() <= RESERVED_BYTES_MAX);
        // The total length of many words is limited, too.
        let mut requests = RequestDecoder {
            bytes: RequestLimits::CLIENT.request_bytes,
            ..RequestDecoder::new(RequestLimits::CLIENT)
        };
        requests.count = 9;
        assert!(requests.next(&mut &b"$1\r\n"[..]).is_err());
    }

    #[test]
    fn unauthenticated_limits_are_small() {
        let told = |bytes: &[u8]| {
            read(bytes, 1, RequestLimits::UNAUTHENTICATED).map_err(|refused| refused.to_string())
        };
        assert_eq!(told(b"*11\r\n"), Err("unauthenticated multibulk length".to_owned()));
        assert_eq!(told(b"*1\r\n$16385\r\n"), Err("unauthenticated bulk length".to_owned()));
        assert_eq!(told(b"a b c d e f g h i j k\r\n"), Err("unauthenticated multibulk length".to_owned()));
        // Regression: only the whole line was measured, not each word.
        let long = format!("AUTH {}\r\n", "x".repeat(16385));
        assert_eq!(told(long.as_bytes()), Err("unauthenticated bulk length".to_owned()));
        assert_eq!(told(b"*2\r\n$4\r\nAUTH\r\n$1\r\nx\r\n").unwrap(), [words(&[b"AUTH", b"x"])]);
    }

    #[test]
    fn http_is_detected_but_path_like_keys_are_accepted() {
        for http in
            ["GET / HTTP/1.1\r\n", "POST x\r\n", "host: a\r\n", "OPTIONS * HTTP/1.1\r\n", "put /a\r\n"]
        {
            assert_eq!(read(http.as_bytes(), 1, RequestLimits::CLIENT), Err(Malformed::Http), "{http}");
        }
        assert!(read(b"GET a\r\n", 1, RequestLimits::CLIENT).is_ok());
        assert!(read(b"*2\r\n$3\r\nGET\r\n$2\r\n/a\r\n", 1, RequestLimits::CLIENT).is_ok());
    }
}
