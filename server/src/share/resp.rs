//! RESP2 (the Redis serialization protocol, version 2): values to bytes and back.
//!
//! The decoder is given bytes as they come and keeps what is not whole yet, so that it takes neither sockets nor threads. It holds
//! at most what has arrived: a length that is announced reserves nothing. Arrays hold bulk strings only, so nothing nests.
//! Left out on purpose: inline commands, and what RESP3 adds.

use std::io::Write;

/// The greatest bulk string, in bytes.
pub(crate) const BULK_BYTES_MAX: usize = 512 << 20;
/// The greatest array, its strings together, in bytes.
const ARRAY_BYTES_MAX: usize = BULK_BYTES_MAX + (4 << 20);
/// The greatest number of strings in an array.
pub(crate) const ITEMS_MAX: usize = 1024;
/// The longest line: a length, a number, a short text.
const LINE_BYTES_MAX: usize = 1024;
/// Room that is made for a string before it is there.
const RESERVED_BYTES_MAX: usize = 64 << 10;
/// Strings longer than this are written where they are, not copied.
const COPIED_BYTES_MAX: usize = 16 << 10;

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// A short text without line breaks.
    Simple(String),
    /// An error: its code in capitals, a space, a sentence.
    Error(String),
    Integer(i64),
    /// A string of any bytes; `None` for a null.
    Bulk(Option<Vec<u8>>),
    /// Strings of any bytes: what a command is.
    Array(Vec<Vec<u8>>),
}

/// Bytes that are no value within the limits. Nothing that follows them can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) String);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reads values.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    /// The beginning of a line.
    line: Vec<u8>,
    bulk: Option<Bulk>,
    array: Option<Array>,
}

/// A string of which some bytes are there.
#[derive(Debug)]
struct Bulk {
    bytes: Vec<u8>,
    len: usize,
    /// How much of the line break behind it was there.
    ended: usize,
}

/// An array of which some strings are there.
#[derive(Debug)]
struct Array {
    items: Vec<Vec<u8>>,
    count: usize,
    bytes: usize,
}

impl Decoder {
    /// The next value, taken off the front of `input`; `None` once all of it is taken and the value is not whole.
    ///
    /// # Errors
    /// Bytes that are no value; the decoder is of no further use then.
    pub(crate) fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Value>, Malformed> {
        loop {
            let value = match &mut self.bulk {
                Some(bulk) => {
                    if !bulk.take(input)? {
                        return Ok(None);
                    }
                    Value::Bulk(self.bulk.take().map(|bulk| bulk.bytes))
                }
                None => match self.line(input)? {
                    None => return Ok(None),
                    Some(line) => match self.begin(&line)? {
                        None => continue,
                        Some(value) => value,
                    },
                },
            };
            let Some(array) = &mut self.array else { return Ok(Some(value)) };
            // `begin` lets nothing but strings into an array.
            if let Value::Bulk(Some(item)) = value {
                array.items.push(item);
            }
            if array.items.len() == array.count {
                return Ok(self.array.take().map(|array| Value::Array(array.items)));
            }
        }
    }

    /// A line without its break, once it is whole.
    fn line(&mut self, input: &mut &[u8]) -> Result<Option<Vec<u8>>, Malformed> {
        let room = LINE_BYTES_MAX - self.line.len();
        let end = memchr::memchr(b'\n', &input[..input.len().min(room)]);
        let taken = end.map_or(input.len().min(room), |end| end + 1);
        self.line.extend_from_slice(&input[..taken]);
        *input = &input[taken..];
        if end.is_none() {
            return if self.line.len() < LINE_BYTES_MAX {
                Ok(None)
            } else {
                Err(Malformed(format!("a line is over {LINE_BYTES_MAX} bytes")))
            };
        }
        let mut line = std::mem::take(&mut self.line);
        match line.strip_suffix(b"\r\n").map(<[u8]>::len) {
            Some(len) => line.truncate(len),
            None => return Err(Malformed("a line does not end with a carriage return".to_owned())),
        }
        Ok(Some(line))
    }

    /// What a line begins or is.
    fn begin(&mut self, line: &[u8]) -> Result<Option<Value>, Malformed> {
        let (kind, rest) = line.split_first().ok_or_else(|| Malformed("a line is empty".to_owned()))?;
        match (kind, &mut self.array) {
            (b'$', None) if rest == b"-1" => Ok(Some(Value::Bulk(None))),
            (b'$', array) => {
                let len = length(rest, BULK_BYTES_MAX, "bytes")?;
                if let Some(array) = array {
                    array.bytes += len;
                    if array.bytes > ARRAY_BYTES_MAX {
                        return Err(Malformed(format!("a command is over {ARRAY_BYTES_MAX} bytes")));
                    }
                }
                self.bulk =
                    Some(Bulk { bytes: Vec::with_capacity(len.min(RESERVED_BYTES_MAX)), len, ended: 0 });
                Ok(None)
            }
            (b'*', None) => match length(rest, ITEMS_MAX, "strings")? {
                0 => Ok(Some(Value::Array(Vec::new()))),
                count => {
                    self.array = Some(Array { items: Vec::new(), count, bytes: 0 });
                    Ok(None)
                }
            },
            (b'+', None) => text(rest).map(|text| Some(Value::Simple(text))),
            (b'-', None) => text(rest).map(|text| Some(Value::Error(text))),
            (b':', None) => {
                let number = std::str::from_utf8(rest).ok().and_then(|text| text.parse().ok());
                let number = number.ok_or_else(|| Malformed("an integer has no number".to_owned()))?;
                Ok(Some(Value::Integer(number)))
            }
            (kind, _) => Err(Malformed(format!("unexpected byte 0x{kind:02x}"))),
        }
    }
}

impl Bulk {
    /// Takes what is there of it; says whether that is all.
    fn take(&mut self, input: &mut &[u8]) -> Result<bool, Malformed> {
        let taken = (self.len - self.bytes.len()).min(input.len());
        self.bytes.extend_from_slice(&input[..taken]);
        *input = &input[taken..];
        if self.bytes.len() < self.len {
            return Ok(false);
        }
        for expected in &b"\r\n"[self.ended..] {
            let Some((byte, rest)) = input.split_first() else { return Ok(false) };
            if byte != expected {
                return Err(Malformed("a string is longer than was said".to_owned()));
            }
            *input = rest;
            self.ended += 1;
        }
        Ok(true)
    }
}

/// A length: digits alone.
fn length(text: &[u8], max: usize, of: &str) -> Result<usize, Malformed> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(text).ok().filter(|_| digits).and_then(|text| text.parse().ok());
    match number {
        Some(number) if number <= max => Ok(number),
        _ => Err(Malformed(format!("a length is none, or over {max} {of}"))),
    }
}

fn text(bytes: &[u8]) -> Result<String, Malformed> {
    let text = String::from_utf8(bytes.to_vec());
    text.map_err(|_| Malformed("a text is not UTF-8".to_owned()))
}

/// Writes a command.
///
/// # Errors
/// As writing.
pub(crate) fn write_command(to: &mut impl Write, words: &[&[u8]]) -> std::io::Result<()> {
    let mut buffer = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        buffer.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
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

/// Appends a reply: never an array, which is what commands are.
pub(crate) fn put_reply(out: &mut Vec<u8>, reply: &Value) {
    let line = |kind: char, text: &str| {
        // Nothing breaks out of its line, and every line can be read.
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let mut end = text.len().min(LINE_BYTES_MAX / 2);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        format!("{kind}{}\r\n", &text[..end])
    };
    let head = match reply {
        Value::Simple(text) => line('+', text),
        Value::Error(text) => line('-', text),
        Value::Integer(number) => format!(":{number}\r\n"),
        Value::Bulk(None) | Value::Array(_) => "$-1\r\n".to_owned(),
        Value::Bulk(Some(bytes)) => format!("${}\r\n", bytes.len()),
    };
    out.extend_from_slice(head.as_bytes());
    if let Value::Bulk(Some(bytes)) = reply {
        out.extend_from_slice(bytes);
        out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::{
        BULK_BYTES_MAX, Decoder, ITEMS_MAX, LINE_BYTES_MAX, Malformed, Value, put_reply, write_command,
    };

    /// All values in these bytes, given so many at a time.
    fn decode(bytes: &[u8], step: usize) -> Result<Vec<Value>, Malformed> {
        let (mut decoder, mut values) = (Decoder::default(), Vec::new());
        for mut input in bytes.chunks(step) {
            while let Some(value) = decoder.decode(&mut input)? {
                values.push(value);
            }
            assert!(input.is_empty(), "what is not whole is kept");
        }
        Ok(values)
    }

    #[test]
    fn values_come_back_however_their_bytes_arrive() {
        let long = (0..70_000_u32).map(|number| number as u8).collect::<Vec<_>>();
        let command: Vec<Vec<u8>> =
            vec![b"FRAME.APPEND".to_vec(), b"\r\n$3\r\n\0\xff".to_vec(), Vec::new(), long];
        let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        let mut bytes = Vec::new();
        write_command(&mut bytes, &words).unwrap();
        let mut values = vec![Value::Array(command)];
        for reply in [
            Value::Simple("OK".to_owned()),
            Value::Error("CONFLICT it is there".to_owned()),
            Value::Integer(-7),
            Value::Bulk(None),
            Value::Bulk(Some(b"a\r\nb".to_vec())),
            Value::Bulk(Some(Vec::new())),
        ] {
            put_reply(&mut bytes, &reply);
            values.push(reply);
        }
        bytes.extend_from_slice(b"*0\r\n");
        values.push(Value::Array(Vec::new()));
        for step in [1, 2, 3, 7, 1000, usize::MAX] {
            assert_eq!(decode(&bytes, step.min(bytes.len())).unwrap(), values, "{step} at a time");
        }
    }

    #[test]
    fn what_is_no_value_is_refused_before_anything_is_held_for_it() {
        let over = format!("${}\r\n", BULK_BYTES_MAX + 1);
        let many = format!("*{}\r\n", ITEMS_MAX + 1);
        let together = format!("*3\r\n${0}\r\n", BULK_BYTES_MAX);
        for hostile in [
            "GET / HTTP/1.1\r\n",
            "\r\n",
            "$\r\n",
            "$-2\r\n",
            "$+3\r\n",
            "$ 3\r\n",
            "$99999999999999999999999\r\n",
            "*-1\r\n",
            "*1000000000\r\n",
            "*1\r\n*1\r\n",
            "*1\r\n$-1\r\n",
            "*1\r\n:1\r\n",
            ":\r\n",
            ":1x\r\n",
            "+no carriage return\n",
            "$3\r\nabcd\r\n",
            "$3\r\nabc\n\n",
            &over,
            &many,
            &format!("+{}\r\n", "x".repeat(LINE_BYTES_MAX)),
        ] {
            for step in [1, hostile.len()] {
                assert!(decode(hostile.as_bytes(), step).is_err(), "{:?}", &hostile[..hostile.len().min(40)]);
            }
        }
        // An announced length alone takes no memory to speak of.
        let mut decoder = Decoder::default();
        assert_eq!(decoder.decode(&mut together.as_bytes()).unwrap(), None);
        assert!(decoder.bulk.unwrap().bytes.capacity() <= super::RESERVED_BYTES_MAX);
    }

    #[test]
    fn an_array_is_bounded_as_a_whole() {
        let mut decoder = Decoder {
            array: Some(super::Array { items: Vec::new(), count: 9, bytes: super::ARRAY_BYTES_MAX }),
            ..Decoder::default()
        };
        assert!(decoder.decode(&mut &b"$1\r\n"[..]).is_err());
    }

    #[test]
    fn a_reply_never_breaks_out_of_its_line() {
        let mut out = Vec::new();
        put_reply(&mut out, &Value::Error(format!("ERR no\r\n+OK\r\n{}", "\u{e9}".repeat(5000))));
        let values = decode(&out, 11).unwrap();
        assert!(
            matches!(values.as_slice(), [Value::Error(text)] if text.starts_with("ERR no  +OK")),
            "{values:?}"
        );
    }
}
