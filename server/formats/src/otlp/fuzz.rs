//! Fuzz target for traces in both encodings.

use super::{BODY_BYTES_MAX, TraceEncoding, gunzip, map_without_store};
use crate::fuzzing::take_byte;

/// Input: a byte that selects the encoding and gzip, then a body.
///
/// Oracle: the body is accepted or refused, with the same result each time.
pub fn otlp(mut data: &[u8]) {
    let kind = take_byte(&mut data);
    let form = if kind & 1 == 0 { TraceEncoding::Protobuf } else { TraceEncoding::Json };
    let unpacked;
    let body = if kind & 2 == 0 {
        data
    } else {
        let Ok(body) = gunzip(data, BODY_BYTES_MAX) else { return };
        assert!(body.len() <= BODY_BYTES_MAX);
        unpacked = body;
        &unpacked[..]
    };
    let once = map_without_store(body, form).map_err(|refused| refused.status);
    assert_eq!(map_without_store(body, form).map_err(|refused| refused.status), once);
}
