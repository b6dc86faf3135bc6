//! Decodes replies on the client side: the simple replies that a recorder gets, and flat arrays of them.

use super::Reply;
use super::wire::{BULK_BYTES_MAX, BulkBuffer, LineBuffer, Malformed, length};

/// Maximum number of items in an array.
const PARTS_MAX: usize = 1024;

/// Decodes replies.
#[derive(Debug, Default)]
pub struct ResponseDecoder {
    line: LineBuffer,
    bulk: Option<BulkBuffer>,
    partial_array: Option<PartialArray>,
}

/// A partially received array.
#[derive(Debug)]
struct PartialArray {
    items: Vec<Reply>,
    bytes: usize,
    left: usize,
}

enum ResponsePart {
    Reply(Reply),
    Array(usize),
}

impl ResponseDecoder {
    /// Takes the next reply off the front of `input`; `None` once all input is consumed and the reply is
    /// incomplete.
    ///
    /// # Errors
    /// Malformed bytes; the decoder must not be used afterwards.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Reply>, Malformed> {
        loop {
            let reply = match self.part(input)? {
                None => return Ok(None),
                Some(ResponsePart::Reply(reply)) => reply,
                Some(ResponsePart::Array(_)) if self.partial_array.is_some() => {
                    return Err(Malformed::new("an array within an array"));
                }
                Some(ResponsePart::Array(0)) => return Ok(Some(Reply::Array(Vec::new()))),
                Some(ResponsePart::Array(left)) => {
                    self.partial_array = Some(PartialArray { items: Vec::new(), bytes: 0, left });
                    continue;
                }
            };
            let Some(several) = &mut self.partial_array else { return Ok(Some(reply)) };
            several.bytes += reply.approximate_bytes();
            several.left -= 1;
            several.items.push(reply);
            if several.bytes > BULK_BYTES_MAX {
                return Err(Malformed::new("an array is too long"));
            }
            if several.left == 0 {
                return Ok(self.partial_array.take().map(|several| Reply::Array(several.items)));
            }
        }
    }

    fn part(&mut self, input: &mut &[u8]) -> Result<Option<ResponsePart>, Malformed> {
        let whole = |reply| Ok(Some(ResponsePart::Reply(reply)));
        if self.bulk.is_none() {
            let Some(line) = self.line.take_crlf(input)? else { return Ok(None) };
            let (kind, rest) = line.split_first().ok_or_else(|| Malformed::new("a line is empty"))?;
            match kind {
                b'+' => return whole(Reply::Simple(text(rest)?.into())),
                b'-' => return whole(Reply::Error(text(rest)?)),
                b':' => {
                    let number = std::str::from_utf8(rest).ok().and_then(|text| text.parse().ok());
                    let number = number.ok_or_else(|| Malformed::new("an integer has no number"))?;
                    return whole(Reply::Integer(number));
                }
                b'$' if rest == b"-1" => return whole(Reply::Null),
                b'$' => {
                    let len = length(rest, BULK_BYTES_MAX);
                    self.bulk =
                        Some(BulkBuffer::new(len.ok_or_else(|| Malformed::new("invalid bulk length"))?));
                }
                b'*' => {
                    let count =
                        length(rest, PARTS_MAX).ok_or_else(|| Malformed::new("invalid array length"))?;
                    return Ok(Some(ResponsePart::Array(count)));
                }
                kind => return Err(Malformed::new(format!("unexpected byte 0x{kind:02x}"))),
            }
        }
        let is_whole = self.bulk.as_mut().map_or(Ok(false), |bulk| bulk.take(input))?;
        Ok(self.bulk.take_if(|_| is_whole).map(|bulk| ResponsePart::Reply(Reply::Bulk(bulk.bytes))))
    }
}

fn text(bytes: &[u8]) -> Result<String, Malformed> {
    String::from_utf8(bytes.to_vec()).map_err(|_| Malformed::new("a text is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::super::Protocol;
    use super::*;

    fn read(bytes: &[u8], step: usize) -> Result<Vec<Reply>, Malformed> {
        let (mut responses, mut all) = (ResponseDecoder::default(), Vec::new());
        for mut input in bytes.chunks(step) {
            while let Some(reply) = responses.next(&mut input)? {
                all.push(reply);
            }
        }
        Ok(all)
    }

    #[test]
    fn replies_decode_equally_for_every_chunk_size() {
        let replies = [
            Reply::OK,
            Reply::error("CONFLICT it is there"),
            Reply::Integer(-7),
            Reply::Null,
            Reply::Bulk(b"a\r\nb".to_vec()),
            Reply::text(""),
            Reply::Array(vec![]),
            Reply::Array(vec![Reply::text("a"), Reply::Null, Reply::Integer(1)]),
            Reply::OK,
        ];
        let mut bytes = Vec::new();
        replies.iter().for_each(|reply| reply.put(Protocol::Resp2, &mut bytes));
        for step in [1, 2, 7, bytes.len()] {
            assert_eq!(read(&bytes, step).unwrap(), replies, "{step} at a time");
        }
    }

    #[test]
    fn invalid_replies_are_refused() {
        let over = format!("${}\r\n", BULK_BYTES_MAX + 1);
        let long = format!("+{}\r\n", "x".repeat(2000));
        for hostile in [
            "\r\n",
            "$\r\n",
            "$-2\r\n",
            "*-1\r\n",
            "*1\r\n*1\r\n",
            "*1025\r\n",
            ":\r\n",
            ":1x\r\n",
            "+no\n",
            "$3\r\nabcd\r\n",
            &over,
            &long,
        ] {
            for step in [1, hostile.len()] {
                assert!(read(hostile.as_bytes(), step).is_err(), "{:?}", &hostile[..hostile.len().min(40)]);
            }
        }
    }
}
