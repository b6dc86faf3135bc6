//! Building blocks of requests and replies: lines, length-prefixed strings, lengths.

/// Maximum length of a bulk string, in bytes.
pub const BULK_BYTES_MAX: usize = 512 << 20;
/// Maximum length of a line other than an inline command, in bytes.
pub(super) const LINE_BYTES_MAX: usize = 1024;
/// Maximum number of bytes reserved for a string before it arrives.
pub(super) const RESERVED_BYTES_MAX: usize = 64 << 10;

/// Bytes that are no valid request or reply within the limits. Decoding cannot continue after them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Malformed {
    /// The error text that the other side gets.
    Protocol(String),
    /// The other side speaks HTTP: a browser or a tool was tricked into connecting. It gets no reply.
    Http,
}

impl Malformed {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self::Protocol(what.into())
    }
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Protocol(what) => f.write_str(what),
            Self::Http => f.write_str("this is HTTP"),
        }
    }
}

/// A partially received line.
#[derive(Debug, Default)]
pub(super) struct LineBuffer(Vec<u8>);

impl LineBuffer {
    /// Bytes of allocated memory.
    #[cfg(any(test, fuzzing))]
    pub(super) fn held_bytes(&self) -> usize {
        self.0.capacity()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its first byte, once one has arrived.
    pub(super) fn first(&self, input: &[u8]) -> Option<u8> {
        self.0.first().or(input.first()).copied()
    }

    /// Returns the line without its line feed once it is complete.
    ///
    /// # Errors
    /// The line is longer than `max` bytes.
    pub(super) fn take(&mut self, input: &mut &[u8], max: usize) -> Result<Option<Vec<u8>>, Malformed> {
        let room = max.saturating_sub(self.0.len());
        let end = memchr::memchr(b'\n', &input[..input.len().min(room)]);
        let taken = end.map_or(input.len().min(room), |end| end + 1);
        self.0.extend_from_slice(&input[..taken]);
        *input = &input[taken..];
        match end {
            Some(_) => {
                self.0.pop();
                Ok(Some(std::mem::take(&mut self.0)))
            }
            None if self.0.len() < max => Ok(None),
            None => Err(Malformed::new(format!("a line is over {max} bytes"))),
        }
    }

    /// Applies `read` to a complete line that ends with a carriage return. A line that is entirely in `input`
    /// is not copied.
    ///
    /// # Errors
    /// As [`LineBuffer::take_crlf`]; those of `read`.
    pub(super) fn read_crlf<T>(
        &mut self,
        input: &mut &[u8],
        read: impl FnOnce(&[u8]) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        let whole = memchr::memchr(b'\n', &input[..input.len().min(LINE_BYTES_MAX)]);
        if let (true, Some(end)) = (self.0.is_empty(), whole)
            && let Some(line) = input[..end].strip_suffix(b"\r")
        {
            *input = &input[end + 1..];
            return read(line).map(Some);
        }
        self.take_crlf(input)?.map(|line| read(&line)).transpose()
    }

    /// As [`LineBuffer::take`], for a line that must end with a carriage return, which is removed.
    ///
    /// # Errors
    /// As [`LineBuffer::take`]; the carriage return is missing.
    pub(super) fn take_crlf(&mut self, input: &mut &[u8]) -> Result<Option<Vec<u8>>, Malformed> {
        let Some(mut line) = self.take(input, LINE_BYTES_MAX)? else { return Ok(None) };
        match line.pop() {
            Some(b'\r') => Ok(Some(line)),
            _ => Err(Malformed::new("a line does not end with a carriage return")),
        }
    }
}

/// A partially received string.
#[derive(Debug)]
pub(super) struct BulkBuffer {
    pub(super) bytes: Vec<u8>,
    len: usize,
    /// Number of bytes of the trailing line break that have arrived.
    ended: usize,
}

impl BulkBuffer {
    pub(super) fn new(len: usize) -> Self {
        Self { bytes: Vec::with_capacity(len.min(RESERVED_BYTES_MAX)), len, ended: 0 }
    }

    /// Takes its bytes from `input`; returns whether the string is complete.
    ///
    /// # Errors
    /// The string does not end at its announced length.
    pub(super) fn take(&mut self, input: &mut &[u8]) -> Result<bool, Malformed> {
        let taken = (self.len - self.bytes.len()).min(input.len());
        self.bytes.extend_from_slice(&input[..taken]);
        *input = &input[taken..];
        if self.bytes.len() < self.len {
            return Ok(false);
        }
        for expected in &b"\r\n"[self.ended..] {
            let Some((byte, rest)) = input.split_first() else { return Ok(false) };
            if byte != expected {
                return Err(Malformed::new("a string is longer than its announced length"));
            }
            *input = rest;
            self.ended += 1;
        }
        Ok(true)
    }
}

/// Appends a line of a sign and a length. Formatting it in the general way took as long as running a short command.
pub(super) fn put_length(sign: u8, length: usize, out: &mut Vec<u8>) {
    let (mut digits, mut left, mut at) = ([b'0'; 20], length, 20);
    while left > 0 || at == digits.len() {
        at -= 1;
        digits[at] = b"0123456789"[left % 10];
        left /= 10;
    }
    out.push(sign);
    out.extend_from_slice(&digits[at..]);
    out.extend_from_slice(b"\r\n");
}

/// A length: only digits, and at most `max`.
pub(super) fn length(text: &[u8], max: usize) -> Option<usize> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(text).ok().filter(|_| digits).and_then(|text| text.parse().ok());
    number.filter(|number| *number <= max)
}
