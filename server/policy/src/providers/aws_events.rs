//! Decodes the binary event stream of AWS (`application/vnd.amazon.eventstream`); each frame is checked
//! before use.
//!
//! ```text
//! total length u32 | headers length u32 | CRC-32 of these 8 bytes | headers | payload | CRC-32 of all before     big-endian
//! header: name length u8 | name | type u8 | value, whose length the type says or a u16 before it
//! ```
//!
//! Source: the event stream encoding in the AWS SDK for Java's documentation, and botocore's reader, which
//! accepts the bytes written by the tests.

/// Maximum frame size in bytes. AWS allows 16 MiB of payload and 128 KiB of headers.
const FRAME_BYTES_MAX: usize = (16 << 20) + HEADERS_BYTES_MAX + FRAME_BYTES_MIN;
const HEADERS_BYTES_MAX: usize = 128 << 10;
/// Two lengths and two checksums.
const FRAME_BYTES_MIN: usize = 16;
const PRELUDE_BYTES: usize = 12;
const CRC_BYTES: usize = 4;

/// One frame; a missing header is empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct AwsEvent<'a> {
    /// `event`, `exception` or `error`.
    pub(super) message_type: &'a str,
    /// The event, the exception or the error's code.
    pub(super) name: &'a str,
    /// The message of an error frame, which has no payload.
    pub(super) error_message: &'a str,
    pub(super) payload: &'a [u8],
}

/// The frames of a body; ends at the first incomplete or damaged frame.
#[derive(Debug)]
pub(super) struct AwsEvents<'a> {
    rest: &'a [u8],
}

impl<'a> AwsEvents<'a> {
    pub(super) fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }
}

impl<'a> Iterator for AwsEvents<'a> {
    /// The error is a sentence about a damaged frame.
    type Item = Result<AwsEvent<'a>, &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let read = frame(self.rest);
        self.rest = read.as_ref().map_or(&[], |(_, rest)| *rest);
        Some(read.map(|(event, _)| event))
    }
}

const CUT: &str = "the answer ends within an event";

fn frame(bytes: &[u8]) -> Result<(AwsEvent<'_>, &[u8]), &'static str> {
    let prelude = bytes.get(..PRELUDE_BYTES).ok_or(CUT)?;
    let (total, headers) = (number(prelude)?, number(&prelude[4..])?);
    if crc32fast::hash(&prelude[..8]) != checksum(&prelude[8..])? {
        return Err("the lengths of an event are damaged");
    }
    if total > FRAME_BYTES_MAX || headers > HEADERS_BYTES_MAX || total < FRAME_BYTES_MIN + headers {
        return Err("the lengths of an event cannot be");
    }
    let frame = bytes.get(..total).ok_or(CUT)?;
    let (checked, sum) = frame.split_at(total - CRC_BYTES);
    if crc32fast::hash(checked) != checksum(sum)? {
        return Err("an event is damaged");
    }
    let (headers, payload) = checked[PRELUDE_BYTES..].split_at(headers);
    let mut event = AwsEvent { payload, ..AwsEvent::default() };
    read_headers(headers, &mut event).ok_or("the headers of an event are damaged")?;
    Ok((event, &bytes[total..]))
}

fn checksum(bytes: &[u8]) -> Result<u32, &'static str> {
    Ok(u32::from_be_bytes(*bytes.first_chunk().ok_or(CUT)?))
}

fn number(bytes: &[u8]) -> Result<usize, &'static str> {
    usize::try_from(checksum(bytes)?).map_err(|_| "the lengths of an event cannot be")
}

fn read_headers<'a>(mut rest: &'a [u8], event: &mut AwsEvent<'a>) -> Option<()> {
    while !rest.is_empty() {
        let name_len = usize::from(*rest.first()?);
        let (name, after) = rest[1..].split_at_checked(name_len)?;
        let (kind, after) = after.split_first()?;
        let (value_at, value_len) = match kind {
            0 | 1 => (0, 0),
            2 => (0, 1),
            3 => (0, 2),
            4 => (0, 4),
            5 | 8 => (0, 8),
            6 | 7 => (2, usize::from(u16::from_be_bytes(*after.first_chunk()?))),
            9 => (0, 16),
            _ => return None,
        };
        let (value, after) = after.get(value_at..)?.split_at_checked(value_len)?;
        if *kind == 7 {
            let value = std::str::from_utf8(value).ok()?;
            match name {
                b":message-type" => event.message_type = value,
                b":event-type" | b":exception-type" | b":error-code" => event.name = value,
                b":error-message" => event.error_message = value,
                _ => {}
            }
        }
        rest = after;
    }
    Some(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A frame with these text headers.
    pub(in crate::providers) fn encoded(headers: &[(&str, &str)], payload: &[u8]) -> Vec<u8> {
        let mut head = Vec::new();
        for (name, value) in headers {
            head.push(name.len() as u8);
            head.extend_from_slice(name.as_bytes());
            head.push(7);
            head.extend_from_slice(&(value.len() as u16).to_be_bytes());
            head.extend_from_slice(value.as_bytes());
        }
        let total = (FRAME_BYTES_MIN + head.len() + payload.len()) as u32;
        let mut frame = [total.to_be_bytes(), (head.len() as u32).to_be_bytes()].concat();
        frame.extend_from_slice(&crc32fast::hash(&frame).to_be_bytes());
        frame.extend_from_slice(&head);
        frame.extend_from_slice(payload);
        frame.extend_from_slice(&crc32fast::hash(&frame).to_be_bytes());
        frame
    }

    /// An event as Bedrock sends it.
    pub(in crate::providers) fn event(name: &str, payload: &str) -> Vec<u8> {
        let headers =
            [(":event-type", name), (":content-type", "application/json"), (":message-type", "event")];
        encoded(&headers, payload.as_bytes())
    }

    fn faults(body: &[u8]) -> (usize, Option<&'static str>) {
        let all: Vec<_> = AwsEvents::new(body).collect();
        let whole = all.iter().filter(|event| event.is_ok()).count();
        (whole, all.last().and_then(|last| last.err()))
    }

    /// botocore 1.44.5 read the same from these bytes.
    #[test]
    fn botocore_frame_is_read() {
        let bytes = event("messageStart", r#"{"role": "assistant"}"#);
        assert_eq!(bytes.len(), 119);
        assert_eq!(&bytes[..12], [0, 0, 0, 119, 0, 0, 0, 82, 0xab, 0xb5, 0xd3, 0x6e]);
        let read = AwsEvents::new(&bytes).next().unwrap().unwrap();
        assert_eq!((read.message_type, read.name), ("event", "messageStart"));
        assert_eq!(read.payload, br#"{"role": "assistant"}"#);
    }

    #[test]
    fn cut_body_gives_whole_events_and_a_fault() {
        let one = event("a", "{}");
        let body = [one.clone(), one.clone()].concat();
        for at in 1..body.len() {
            let whole = at / one.len();
            let fault = (at % one.len() != 0).then_some(CUT);
            assert_eq!(faults(&body[..at]), (whole, fault), "cut at {at}");
        }
    }

    #[test]
    fn changed_byte_is_a_fault() {
        let one = event("a", r#"{"x":1}"#);
        for at in 0..one.len() {
            let mut bytes = one.clone();
            bytes[at] ^= 0x40;
            assert!(faults(&bytes).1.is_some(), "byte {at}");
        }
    }

    /// Wrong lengths with a correct checksum.
    #[test]
    fn wrong_lengths_end_the_body() {
        let lying = |total: u32, headers: u32| {
            let mut bytes = [total.to_be_bytes(), headers.to_be_bytes()].concat();
            bytes.extend_from_slice(&crc32fast::hash(&bytes).to_be_bytes());
            bytes.extend_from_slice(&[0; 99]);
            faults(&bytes)
        };
        for (total, headers) in [(0, 0), (15, 0), (16, 1), (u32::MAX, 0), (u32::MAX, u32::MAX), (40, 30)] {
            assert_eq!(lying(total, headers), (0, Some("the lengths of an event cannot be")));
        }
        assert_eq!(lying(1 << 20, 0), (0, Some(CUT)));
        assert_eq!(lying(40, 0), (0, Some("an event is damaged")));
        for headers in
            [&b"\xff"[..], b"\x01", b"\x01a", b"\x01a\x0b", b"\x01a\x07\xff\xff", b"\x01a\x07\0\x01\xff"]
        {
            let total = (FRAME_BYTES_MIN + headers.len()) as u32;
            let mut bytes = [total.to_be_bytes(), (headers.len() as u32).to_be_bytes()].concat();
            bytes.extend_from_slice(&crc32fast::hash(&bytes).to_be_bytes());
            bytes.extend_from_slice(headers);
            bytes.extend_from_slice(&crc32fast::hash(&bytes).to_be_bytes());
            assert_eq!(faults(&bytes), (0, Some("the headers of an event are damaged")), "{headers:?}");
        }
    }
}
