//! Removes named secrets from an exchange before it is stored: from its request line, its headers and both
//! bodies. The program and the upstream get everything unchanged, and the request's hash is computed before.
//!
//! A body that cannot be searched (unknown or damaged content encoding) is not stored at all.

use bytes::Bytes;

use annals_policy::exchange::{ExchangeMetadata, Headers};
use annals_policy::redact::{RedactedBytes, Secrets};

/// The metadata key for the reason why a body is not stored.
pub(crate) const NOT_KEPT: &str = "not_kept";

/// Redacts the request's line and headers, and the body that will be stored. Returns the number of removed
/// values.
pub(crate) fn redact_request(
    secrets: &Secrets,
    exchange: &mut ExchangeMetadata,
    body: Bytes,
) -> (Bytes, usize) {
    if secrets.is_empty() {
        return (body, 0);
    }
    let mut removed = redact_text(secrets, &mut exchange.http.path);
    removed += exchange.http.query.as_mut().map_or(0, |query| redact_text(secrets, query));
    let headers = &mut exchange.volatile.request_headers;
    removed += headers.remove_named(secrets);
    match secrets.redact_encoded(headers.get("content-encoding"), &body) {
        Ok(cleared) if cleared.removed == 0 => (body.clone(), removed),
        Ok(cleared) => {
            fix_headers(headers, &cleared);
            (Bytes::copy_from_slice(&cleared.bytes), removed + cleared.removed)
        }
        Err(why) => {
            exchange.summary.insert(NOT_KEPT.to_owned(), format!("the request's body: {why}").into());
            (Bytes::new(), removed)
        }
    }
}

/// Redacts an answer. The borders of its parts move with the removed bytes; an answer that had to be decoded
/// becomes one part.
pub(crate) fn redact_answer(
    secrets: &Secrets,
    exchange: &mut ExchangeMetadata,
    body: Vec<u8>,
) -> (Vec<u8>, usize) {
    let volatile = &mut exchange.volatile;
    let headers = &mut volatile.response_headers;
    let mut removed = headers.remove_named(secrets);
    // The reason may contain the address of the upstream.
    removed += exchange.http.broken.as_mut().map_or(0, |broken| redact_text(secrets, broken));
    let cleared = match secrets.redact_encoded(headers.get("content-encoding"), &body) {
        Ok(cleared) if cleared.removed == 0 => return (body, removed),
        Ok(cleared) => cleared,
        Err(why) => {
            let why = format!("the answer's body: {why}");
            exchange.http.broken.get_or_insert(why.clone());
            exchange.summary.insert(NOT_KEPT.to_owned(), why.into());
            (volatile.part_bytes, volatile.part_ms) = (Vec::new(), Vec::new());
            return (Vec::new(), removed);
        }
    };
    fix_headers(headers, &cleared);
    let came = volatile.part_bytes.iter().zip(&volatile.part_ms);
    let parts: Vec<(u64, u64)> = if cleared.decoded {
        let last = volatile.part_ms.last();
        last.map(|ms| (cleared.bytes.len() as u64, *ms)).into_iter().collect()
    } else {
        let (mut offset, mut from) = (0_usize, 0);
        came.filter_map(|(len, ms)| {
            offset = offset.saturating_add(usize::try_from(*len).unwrap_or(usize::MAX));
            let border = cleared.border(offset);
            let part = border.saturating_sub(std::mem::replace(&mut from, border));
            // All bytes of a part may have been removed.
            (part > 0).then_some((part as u64, *ms))
        })
        .collect()
    };
    (volatile.part_bytes, volatile.part_ms) = parts.into_iter().unzip();
    let removed = removed + cleared.removed;
    (cleared.bytes.into_owned(), removed)
}

fn redact_text(secrets: &Secrets, text: &mut String) -> usize {
    let cleared = secrets.redact(text.as_bytes());
    let removed = cleared.removed;
    if removed > 0 {
        *text = String::from_utf8_lossy(&cleared.bytes).into_owned();
    }
    removed
}

/// Makes the headers describe the redacted body.
fn fix_headers(headers: &mut Headers, cleared: &RedactedBytes<'_>) {
    if cleared.decoded {
        headers.0.retain(|(name, _)| name != "content-encoding");
    }
    for (_, value) in headers.0.iter_mut().filter(|(name, _)| name == "content-length") {
        *value = cleared.bytes.len().to_string();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use serde_json::Map;

    use super::*;
    use annals_policy::exchange::{HttpExchange, VolatileExchange};
    use annals_policy::redact::PLACEHOLDER;

    const SECRET: &str = "s3cr3t/value";

    fn secrets() -> Secrets {
        Secrets::new(&[("TOKEN".to_owned(), SECRET.as_bytes().to_vec())]).0
    }

    fn exchange(encoding: &str, len: usize) -> ExchangeMetadata {
        let http = HttpExchange {
            mount: "openai".to_owned(),
            method: "POST".to_owned(),
            path: "/v1/s3cr3t%2Fvalue/x".to_owned(),
            query: Some("a=s3cr3t/value&b=1".to_owned()),
            status: Some(200),
            broken: None,
        };
        let pairs = [
            ("content-encoding", encoding.to_owned()),
            ("content-length", len.to_string()),
            ("x-mine", format!("caf\u{e9} {SECRET}")),
        ];
        let headers = Headers(pairs.map(|(name, value)| (name.to_owned(), value)).to_vec());
        let volatile = VolatileExchange {
            request_headers: headers.clone(),
            response_headers: headers,
            ..VolatileExchange::default()
        };
        ExchangeMetadata { http, summary: Map::new(), volatile }
    }

    fn gzip(text: &str) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn request_is_redacted_in_every_part() {
        let body = Bytes::from(format!("{{\"a\":\"{SECRET}\"}}"));
        let mut of = exchange("identity", body.len());
        let (stored, removed) = redact_request(&secrets(), &mut of, body);
        assert_eq!(stored, format!("{{\"a\":\"{PLACEHOLDER}\"}}"));
        assert_eq!(removed, 4);
        assert_eq!(of.http.call(), "POST openai /v1/annals-redacted/x?a=annals-redacted&b=1");
        assert_eq!(of.volatile.request_headers.get("x-mine"), Some("caf\u{e9} annals-redacted"));
        let length = stored.len().to_string();
        assert_eq!(of.volatile.request_headers.get("content-length"), Some(length.as_str()));
    }

    #[test]
    fn secret_across_two_parts_is_removed_and_borders_move() {
        let body = format!("one {SECRET} two {SECRET}").into_bytes();
        let mut of = exchange("identity", body.len());
        of.http.broken = Some(format!("http://h/{SECRET} broke off"));
        of.volatile.part_bytes = vec![7, 6, 3, 2, body.len() as u64 - 18];
        of.volatile.part_ms = vec![1, 2, 3, 4, 5];
        let (stored, removed) = redact_answer(&secrets(), &mut of, body);
        assert_eq!(stored, format!("one {PLACEHOLDER} two {PLACEHOLDER}").into_bytes());
        assert_eq!(removed, 4);
        assert_eq!(of.http.broken.as_deref(), Some("http://h/annals-redacted broke off"));
        // The second part lay within the value, and nothing of it is left.
        assert_eq!(of.volatile.part_bytes.iter().sum::<u64>(), stored.len() as u64);
        assert_eq!((of.volatile.part_bytes[0], of.volatile.part_ms.as_slice()), (19, &[1, 4, 5][..]));
    }

    #[test]
    fn compressed_body_is_decoded_only_if_it_holds_a_secret() {
        let body = gzip(&format!("the value is {SECRET}"));
        let mut of = exchange("gzip", body.len());
        (of.volatile.part_bytes, of.volatile.part_ms) = (vec![5, body.len() as u64 - 5], vec![1, 2]);
        let (stored, removed) = redact_answer(&secrets(), &mut of, body);
        assert_eq!((stored.as_slice(), removed), (&b"the value is annals-redacted"[..], 2));
        assert_eq!(of.volatile.response_headers.get("content-encoding"), None);
        assert_eq!((&of.volatile.part_bytes, &of.volatile.part_ms), (&vec![28], &vec![2]));

        let body = gzip("nothing");
        let mut of = exchange("gzip", body.len());
        assert_eq!(redact_answer(&secrets(), &mut of, body.clone()), (body, 1));
        assert_eq!(of.volatile.response_headers.get("content-encoding"), Some("gzip"));
    }

    #[test]
    fn body_with_unknown_encoding_is_not_stored() {
        let mut of = exchange("gzip", 3);
        of.volatile.part_bytes = vec![3];
        assert_eq!(redact_answer(&secrets(), &mut of, b"no!".to_vec()).0, b"");
        assert!(of.http.broken.is_some());
        assert!(of.volatile.part_bytes.is_empty());
        let mut of = exchange("sealed-by-us", 3);
        assert_eq!(redact_request(&secrets(), &mut of, Bytes::from_static(b"no!")).0, b""[..]);
        assert!(of.summary.contains_key(NOT_KEPT));
    }
}
