//! Undoes a `Content-Encoding` (RFC 9110, section 8.4) on a copy, with a limit on the output.
//!
//! Bodies are stored as sent; decoding serves to read them. A cut or damaged body gives the bytes decoded
//! before the fault, with the reason.

use std::borrow::Cow;
use std::io::Read;

/// Maximum size of a decoded body: 256 MiB.
pub const DECODED_BYTES_MAX: usize = 256 << 20;
/// Maximum number of encodings undone, one after another.
const LAYERS_MAX: usize = 4;
/// Maximum zstd window, as a power of two: 8 MiB, as RFC 9659 requires for HTTP.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// A body without its encodings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodedBody<'a> {
    /// The decoded bytes, up to a fault.
    pub bytes: Cow<'a, [u8]>,
    /// Why decoding stopped early.
    pub fault: Option<String>,
}

/// Undoes `content_encoding` (`gzip`, `br`, `zstd`, `deflate`, or several separated by commas), with at most
/// `limit` bytes of output.
#[must_use]
pub fn decode<'a>(content_encoding: Option<&str>, body: &'a [u8], limit: usize) -> DecodedBody<'a> {
    let mut decoded = DecodedBody { bytes: Cow::Borrowed(body), fault: None };
    let layers: Vec<&str> = content_encoding
        .unwrap_or_default()
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case("identity"))
        .take(LAYERS_MAX + 1)
        .collect();
    if layers.len() > LAYERS_MAX {
        decoded.fault = Some(format!("has more than {LAYERS_MAX} content encodings"));
        return decoded;
    }
    // They are listed in the order of application.
    for name in layers.iter().rev() {
        if decoded.bytes.is_empty() {
            break;
        }
        match undo(name, &decoded.bytes, limit) {
            Ok((bytes, fault)) => {
                decoded.fault = decoded.fault.or(fault);
                decoded.bytes = Cow::Owned(bytes);
            }
            Err(fault) => return DecodedBody { fault: Some(fault), ..decoded },
        }
    }
    decoded
}

type DecodeResult = Result<(Vec<u8>, Option<String>), String>;

fn undo(name: &str, body: &[u8], limit: usize) -> DecodeResult {
    match name.to_ascii_lowercase().as_str() {
        "gzip" | "x-gzip" => Ok(read(name, flate2::read::MultiGzDecoder::new(body), limit)),
        // RFC 9110 requires zlib; some servers send raw deflate.
        "deflate" if body.first().is_some_and(|byte| byte & 0x0f == 8) => {
            Ok(read(name, flate2::read::ZlibDecoder::new(body), limit))
        }
        "deflate" => Ok(read(name, flate2::read::DeflateDecoder::new(body), limit)),
        // 'Large window' streams are not part of RFC 7932 and would need a gigabyte.
        "br" if body.first().is_some_and(|byte| byte & 0x7f == 0x11) => {
            Err("is brotli with a large window, which HTTP does not have".to_owned())
        }
        "br" => Ok(read(name, brotli_decompressor::Decompressor::new(body, 4096), limit)),
        "zstd" => {
            let decoder = zstd::stream::read::Decoder::with_buffer(body).and_then(|mut decoder| {
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
                Ok(decoder)
            });
            decoder
                .map(|decoder| read(name, decoder, limit))
                .map_err(|error| format!("cannot be decoded: {error}"))
        }
        _ => Err(format!("has the content encoding {:?}, which is not known here", clip(name))),
    }
}

fn clip(name: &str) -> &str {
    name.get(..name.floor_char_boundary(40)).unwrap_or_default()
}

/// Reads in pieces, so that the bytes before a fault are kept.
fn read(name: &str, mut decoder: impl Read, limit: usize) -> (Vec<u8>, Option<String>) {
    let mut bytes = Vec::new();
    let mut piece = [0; 16 << 10];
    loop {
        match decoder.read(&mut piece) {
            Ok(0) => return (bytes, None),
            Ok(len) => {
                let room = limit - bytes.len();
                bytes.extend_from_slice(&piece[..len.min(room)]);
                if len > room {
                    return (bytes, Some(format!("is more than {limit} bytes when decoded")));
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return (bytes, Some(format!("is cut or damaged as {name}: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::decode;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// A brotli stream of one uncompressed meta-block (RFC 7932, section 9.2), then the last, empty one.
    fn brotli(bytes: &[u8]) -> Vec<u8> {
        assert!(bytes.len() < 1 << 16);
        // WBITS = 16 (1 bit, 0), ISLAST 0, MNIBBLES 0 (2 bits), MLEN - 1 (16 bits), ISUNCOMPRESSED 1.
        let head = u32::try_from(bytes.len() - 1).unwrap() << 4 | 1 << 20;
        let mut stream = head.to_le_bytes()[..3].to_vec();
        stream.extend_from_slice(bytes);
        stream.push(3);
        stream
    }

    #[test]
    fn encodings_decode_alone_and_stacked() {
        let text = "data: {\"text\":\"Grüße\"}\n\n".repeat(400).into_bytes();
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(6));
        zlib.write_all(&text).unwrap();
        let mut bare = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::new(6));
        bare.write_all(&text).unwrap();
        let zstd = zstd::encode_all(text.as_slice(), 3).unwrap();
        for (name, body) in [
            ("gzip", gzip(&text)),
            ("X-GZIP", gzip(&text)),
            ("gzip", [gzip(&text[..100]), gzip(&text[100..])].concat()),
            ("deflate", zlib.finish().unwrap()),
            ("deflate", bare.finish().unwrap()),
            ("zstd", zstd.clone()),
            ("br", brotli(&text)),
            ("zstd, identity,gzip", gzip(&zstd)),
            ("identity", text.clone()),
        ] {
            let decoded = decode(Some(name), &body, 1 << 20);
            assert_eq!(decoded.fault, None, "{name}");
            assert!(decoded.bytes == text.as_slice(), "{name}");
        }
    }

    #[test]
    fn cut_body_gives_its_beginning_and_long_body_stops() {
        let text: Vec<u8> = (0..60_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for (name, body) in [
            ("gzip", gzip(&text)),
            ("br", brotli(&text)),
            ("zstd", zstd::encode_all(text.as_slice(), 1).unwrap()),
        ] {
            let decoded = decode(Some(name), &body[..body.len() - 9], 1 << 20);
            assert!(decoded.fault.unwrap().contains("cut or damaged"), "{name}");
            assert!(text.starts_with(&decoded.bytes), "{name}");
        }
        let bomb = gzip(&vec![0; 8 << 20]);
        assert!(bomb.len() < 10_000);
        let decoded = decode(Some("gzip"), &bomb, 1000);
        assert_eq!(decoded.bytes.len(), 1000);
        assert!(decoded.fault.unwrap().contains("more than 1000 bytes"));
    }

    #[test]
    fn unknown_encoding_is_a_fault() {
        assert!(decode(Some("snappy"), b"x", 9).fault.unwrap().contains("\"snappy\""));
        assert!(decode(Some("br"), &[0x11, 0x1e, 0, 0], 9).fault.unwrap().contains("large window"));
        assert!(decode(Some(&"gzip,".repeat(99)), b"x", 9).fault.unwrap().contains("more than 4"));
        assert_eq!(decode(Some("gzip"), b"", 9).fault, None, "an empty body, as to HEAD");
    }
}
