//! A door for fuzzers: traces in either form.

use super::{BODY_BYTES_MAX, Form, look, unpack};
use crate::fuzzing::byte;

/// A byte that says which form it has and whether it is packed, then a body.
///
/// Its oracle: it is taken or refused, each time the same.
pub fn otlp(mut data: &[u8]) {
    let kind = byte(&mut data);
    let form = if kind & 1 == 0 { Form::Protobuf } else { Form::Json };
    let unpacked;
    let body = if kind & 2 == 0 {
        data
    } else {
        let Ok(body) = unpack(data, BODY_BYTES_MAX) else { return };
        assert!(body.len() <= BODY_BYTES_MAX);
        unpacked = body;
        &unpacked[..]
    };
    let once = look(body, form).map_err(|refused| refused.status);
    assert_eq!(look(body, form).map_err(|refused| refused.status), once);
}
