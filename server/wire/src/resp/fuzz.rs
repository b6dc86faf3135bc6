//! Fuzz targets for requests and replies, for every way in which their bytes can be cut.

use std::borrow::Cow;

use super::wire::{BULK_BYTES_MAX, LINE_BYTES_MAX, Malformed, RESERVED_BYTES_MAX};
use super::{Protocol, Reply, RequestDecoder, RequestLimits, ResponseDecoder};
use crate::fuzzing::{pieces, take_byte};

/// The decoded items, and the error that ended decoding, if any.
type FuzzReadResult<T> = (Vec<T>, Option<Malformed>);
type FuzzWords = Vec<Vec<u8>>;

/// Input: a byte that selects the limits and the mode, a byte that seeds the cuts, then the data. The data is
/// either raw bytes or words that a plain encoder writes.
///
/// Oracle: the decoded requests and the error do not depend on the cuts. Each request is within its limits.
/// Memory held is at most what arrived, plus the reserve for one word. Arrays decode as by a whole-input
/// reader that shares no code with this one. What a plain encoder writes decodes to the same words.
pub fn resp_request(mut data: &[u8]) {
    let (kind, seed) = (take_byte(&mut data), take_byte(&mut data));
    let limits =
        [RequestLimits::UNAUTHENTICATED, RequestLimits::CLIENT, RequestLimits::RECORDER, RequestLimits::TINY]
            [usize::from(kind & 3)];
    if kind & 4 == 0 {
        let whole = requests(limits, [data]);
        assert_eq!(requests(limits, pieces(data, seed)), whole, "the result depends on the cuts");
        assert_eq!(requests(limits, data.chunks(1)), whole, "the result depends on the cuts");
        let (expected, goes_on) = arrays(limits, data);
        let (read, _) = &whole;
        assert!(read.starts_with(&expected), "arrays differ: {read:?} is not {expected:?}");
        assert!(goes_on || read.len() == expected.len(), "more items than in the input: {read:?}");
    } else {
        let sent: Vec<FuzzWords> = data.split(|byte| *byte == 0xff).map(words).collect();
        let bytes: Vec<u8> = sent.iter().flat_map(encoded).collect();
        let fits = sent.iter().take_while(|words| limits.admits(words)).count();
        let (read, refused) = requests(limits, pieces(&bytes, seed));
        assert_eq!((&read[..], refused.is_none()), (&sent[..fits], fits == sent.len()));
    }
}

/// Splits the data into words, each preceded by its length byte.
fn words(mut data: &[u8]) -> FuzzWords {
    let mut all = Vec::new();
    while !data.is_empty() {
        let len = usize::from(take_byte(&mut data)).min(data.len());
        let (word, rest) = data.split_at(len);
        all.push(word.to_vec());
        data = rest;
    }
    all
}

fn encoded(words: &FuzzWords) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).bytes());
        bytes.extend(word);
        bytes.extend(b"\r\n");
    }
    bytes
}

/// Decodes pieces with the reader under test.
fn requests<'a>(
    limits: RequestLimits,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> FuzzReadResult<FuzzWords> {
    let (mut reader, mut all, mut came) = (RequestDecoder::new(limits), Vec::new(), 0);
    for mut piece in pieces {
        came += piece.len();
        loop {
            match reader.next(&mut piece) {
                Ok(Some(request)) => {
                    assert!(limits.admits(&request), "over its limits: {request:?}");
                    all.push(request);
                }
                Ok(None) => break,
                Err(refused) => return (all, Some(refused)),
            }
        }
        assert!(piece.is_empty(), "input is left over");
        // An empty word takes the size of a vector and at least six bytes; a vector may allocate twice its
        // length.
        let most = RESERVED_BYTES_MAX + LINE_BYTES_MAX + 16 * came;
        assert!(reader.held_bytes() <= most, "{} held of {came} that came", reader.held_bytes());
    }
    (all, None)
}

/// The arrays at the start of the whole input, and whether the bytes after them may decode as something else.
fn arrays(limits: RequestLimits, mut rest: &[u8]) -> (Vec<FuzzWords>, bool) {
    let mut all = Vec::new();
    while rest.first() == Some(&b'*') {
        let Some((words, after)) = array(limits, rest) else { return (all, false) };
        all.push(words);
        rest = after;
    }
    (all, !rest.is_empty())
}

fn array(limits: RequestLimits, bytes: &[u8]) -> Option<(FuzzWords, &[u8])> {
    let (count, mut rest) = length_line(bytes, b'*')?;
    let mut words = Vec::new();
    for _ in 0..count {
        let (len, after) = length_line(rest, b'$')?;
        let word = after.get(..len)?;
        rest = after.get(len..)?.strip_prefix(b"\r\n")?;
        words.push(word.to_vec());
        if !limits.admits(&words) {
            return None;
        }
    }
    Some((words, rest))
}

/// A line of a sign and digits, and the bytes after it.
fn length_line(bytes: &[u8], sign: u8) -> Option<(usize, &[u8])> {
    let end = bytes.iter().take(LINE_BYTES_MAX).position(|byte| *byte == b'\n')?;
    let (line, rest) = bytes.split_at(end + 1);
    let digits = line.strip_prefix(&[sign])?.strip_suffix(b"\r\n")?;
    let number = (!digits.is_empty() && digits.iter().all(u8::is_ascii_digit)).then_some(digits)?;
    let number = number.iter().try_fold(0_usize, |sum, digit| {
        sum.checked_mul(10)?.checked_add(usize::from(digit - b'0')).filter(|sum| *sum <= BULK_BYTES_MAX)
    })?;
    Some((number, rest))
}

/// Input: a byte that selects the mode, a byte that seeds the cuts, then raw reply bytes or the material of a
/// built reply.
///
/// Oracle: the decoded replies and the error do not depend on the cuts. A decoded reply that is written again
/// decodes to the same reply. Every built reply is written, in either version, as exactly one whole reply of
/// that version.
pub fn resp_reply(mut data: &[u8]) {
    let (kind, seed) = (take_byte(&mut data), take_byte(&mut data));
    if kind & 1 == 0 {
        let whole = responses([data]);
        assert_eq!(responses(pieces(data, seed)), whole, "the result depends on the cuts");
        assert_eq!(responses(data.chunks(1)), whole, "the result depends on the cuts");
        for reply in &whole.0 {
            let once = written(reply, Protocol::Resp2);
            let (again, refused) = responses([once.as_slice()]);
            assert!(refused.is_none() && again.len() == 1, "{reply:?} is read as {again:?}, {refused:?}");
            assert_eq!(written(&again[0], Protocol::Resp2), once);
            // Control characters of a line are written as spaces.
            if !has_line(reply) {
                assert_eq!(&again[0], reply);
            }
        }
    } else {
        let reply = build_reply(&mut data, 0);
        for protocol in [Protocol::Resp2, Protocol::Resp3] {
            let bytes = written(&reply, protocol);
            let rest = skip_reply(&bytes, protocol, 0);
            assert_eq!(rest, Some(&[][..]), "{reply:?} is written as {}", bytes.escape_ascii());
        }
    }
}

/// Whether a reply is a line, or holds one.
fn has_line(reply: &Reply) -> bool {
    match reply {
        Reply::Simple(_) | Reply::Error(_) => true,
        Reply::Array(all) | Reply::Set(all) => all.iter().any(has_line),
        Reply::Map(pairs) => pairs.iter().any(|(key, value)| has_line(key) || has_line(value)),
        _ => false,
    }
}

fn written(reply: &Reply, protocol: Protocol) -> Vec<u8> {
    let mut bytes = Vec::new();
    reply.put(protocol, &mut bytes);
    bytes
}

fn responses<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> FuzzReadResult<Reply> {
    let (mut reader, mut all) = (ResponseDecoder::default(), Vec::new());
    for mut piece in pieces {
        loop {
            match reader.next(&mut piece) {
                Ok(Some(reply)) => all.push(reply),
                Ok(None) => break,
                Err(refused) => return (all, Some(refused)),
            }
        }
        assert!(piece.is_empty(), "input is left over");
    }
    (all, None)
}

/// Nesting depth of built replies; deeper than any command's reply.
const DEPTH_MAX: u8 = 6;

fn build_reply(data: &mut &[u8], depth: u8) -> Reply {
    let (kind, len) = (take_byte(data), usize::from(take_byte(data)));
    let text = |data: &mut &[u8]| {
        let (text, rest) = data.split_at(len.min(data.len()));
        *data = rest;
        text.to_vec()
    };
    let lossy = |data: &mut &[u8]| String::from_utf8_lossy(&text(data)).into_owned();
    let number = |data: &mut &[u8]| u64::from_be_bytes(std::array::from_fn(|_| take_byte(data)));
    let items = |data: &mut &[u8]| -> Vec<Reply> {
        let count = if depth < DEPTH_MAX { len % 8 } else { 0 };
        (0..count).map_while(|_| (!data.is_empty()).then(|| build_reply(data, depth + 1))).collect()
    };
    match kind % 12 {
        0 => Reply::Simple(Cow::Owned(lossy(data))),
        1 => Reply::Error(lossy(data)),
        2 => Reply::Integer(number(data).cast_signed()),
        3 => Reply::Bulk(text(data)),
        4 => Reply::Null,
        5 => Reply::NullArray,
        6 => Reply::Array(items(data)),
        7 => Reply::Map(items(data).into_iter().map(|item| (item, Reply::Null)).collect()),
        8 => Reply::Set(items(data)),
        9 => Reply::Double(f64::from_bits(number(data))),
        10 => Reply::Boolean(len.is_multiple_of(2)),
        _ => Reply::Verbatim("txt", text(data)),
    }
}

/// The bytes after the first reply, as a client of this version reads it; `None` if the bytes start with no
/// valid reply.
fn skip_reply(bytes: &[u8], protocol: Protocol, depth: u8) -> Option<&[u8]> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let (line, rest) = bytes.split_at(end + 1);
    let (kind, line) = line.strip_suffix(b"\r\n")?.split_first()?;
    let text = std::str::from_utf8(line).ok()?;
    let new = protocol == Protocol::Resp3;
    let many = |count: usize, mut rest| {
        for _ in 0..count {
            rest = (depth <= DEPTH_MAX).then(|| skip_reply(rest, protocol, depth + 1))??;
        }
        Some(rest)
    };
    match kind {
        b'+' | b'-' => (line.len() <= LINE_BYTES_MAX && !text.contains('\r')).then_some(rest),
        b':' => text.parse::<i64>().ok().map(|_| rest),
        b'$' | b'*' if text == "-1" => (!new).then_some(rest),
        b'$' => rest.get(text.parse().ok()?..)?.strip_prefix(b"\r\n"),
        b'*' => many(text.parse().ok()?, rest),
        _ if !new => None,
        b'=' => {
            let len: usize = text.parse().ok()?;
            (len >= 4 && rest.get(3) == Some(&b':')).then_some(())?;
            rest.get(len..)?.strip_prefix(b"\r\n")
        }
        b'_' => text.is_empty().then_some(rest),
        b'~' => many(text.parse().ok()?, rest),
        b'%' => many(text.parse::<usize>().ok()?.checked_mul(2)?, rest),
        b',' => (["inf", "-inf", "nan"].contains(&text) || is_double(text)).then_some(rest),
        b'#' => ["t", "f"].contains(&text).then_some(rest),
        _ => None,
    }
}

/// Whether the text is a RESP3 double: digits with an optional sign, fraction and exponent.
fn is_double(text: &str) -> bool {
    text.parse::<f64>().is_ok_and(f64::is_finite)
        && text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::{resp_reply, resp_request};

    #[test]
    fn sample_inputs_run_without_a_panic() {
        let inputs: [&[u8]; 6] = [
            b"",
            b"\x01\x02*2\r\n$3\r\nGET\r\n$1\r\na\r\nPING\r\n",
            b"\x00\x02*1\r\n*1\r\n*1\r\n",
            b"\x07\x05\x03GET\x01a\xff\x04LONG",
            b"\x03\x05*1\r\n$9\r\nninebytes\r\n",
            b"\x02\x00\r\n",
        ];
        inputs.iter().for_each(|input| resp_request(input));
        let inputs: [&[u8]; 4] =
            [b"", b"\x00\x01+OK\r\n:1\r\n$-1\r\n", b"\x01\x00\x06\x03\x09\x00", b"\x00\x01:+1\r\n"];
        inputs.iter().for_each(|input| resp_reply(input));
        for kind in 0..13_u8 {
            resp_reply(&[1, 0, 7, 3, kind, 5, 0x7f, 0xf0, 0, 0, 0, 0, 0, 0, b'\r', b'\n']);
        }
    }
}
