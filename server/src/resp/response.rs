//! Replies as whoever asks reads them: the simple ones, which are all that a recorder is answered with.

use super::Reply;
use super::wire::{BULK_BYTES_MAX, Bulk, Line, Malformed, length};

/// Reads replies.
#[derive(Debug, Default)]
pub(crate) struct Responses {
    line: Line,
    bulk: Option<Bulk>,
}

impl Responses {
    /// The next reply, taken off the front of `input`; `None` once all of it is taken and the reply is not whole.
    ///
    /// # Errors
    /// Bytes that are none; this is of no further use then.
    pub(crate) fn next(&mut self, input: &mut &[u8]) -> Result<Option<Reply>, Malformed> {
        if self.bulk.is_none() {
            let Some(line) = self.line.strict(input)? else { return Ok(None) };
            let (kind, rest) = line.split_first().ok_or_else(|| Malformed::new("a line is empty"))?;
            match kind {
                b'+' => return Ok(Some(Reply::Simple(text(rest)?.into()))),
                b'-' => return Ok(Some(Reply::Error(text(rest)?))),
                b':' => {
                    let number = std::str::from_utf8(rest).ok().and_then(|text| text.parse().ok());
                    let number = number.ok_or_else(|| Malformed::new("an integer has no number"))?;
                    return Ok(Some(Reply::Integer(number)));
                }
                b'$' if rest == b"-1" => return Ok(Some(Reply::Null)),
                b'$' => {
                    let len = length(rest, BULK_BYTES_MAX);
                    self.bulk = Some(Bulk::new(len.ok_or_else(|| Malformed::new("invalid bulk length"))?));
                }
                kind => return Err(Malformed::new(format!("unexpected byte 0x{kind:02x}"))),
            }
        }
        let is_whole = self.bulk.as_mut().map_or(Ok(false), |bulk| bulk.take(input))?;
        Ok(self.bulk.take_if(|_| is_whole).map(|bulk| Reply::Bulk(bulk.bytes)))
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
        let (mut responses, mut all) = (Responses::default(), Vec::new());
        for mut input in bytes.chunks(step) {
            while let Some(reply) = responses.next(&mut input)? {
                all.push(reply);
            }
        }
        Ok(all)
    }

    #[test]
    fn replies_come_back_however_their_bytes_arrive() {
        let replies = [
            Reply::OK,
            Reply::error("CONFLICT it is there"),
            Reply::Integer(-7),
            Reply::Null,
            Reply::Bulk(b"a\r\nb".to_vec()),
            Reply::text(""),
        ];
        let mut bytes = Vec::new();
        replies.iter().for_each(|reply| reply.put(Protocol::Resp2, &mut bytes));
        for step in [1, 2, 7, bytes.len()] {
            assert_eq!(read(&bytes, step).unwrap(), replies, "{step} at a time");
        }
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        let over = format!("${}\r\n", BULK_BYTES_MAX + 1);
        let long = format!("+{}\r\n", "x".repeat(2000));
        for hostile in [
            "\r\n",
            "$\r\n",
            "$-2\r\n",
            "*1\r\n",
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
