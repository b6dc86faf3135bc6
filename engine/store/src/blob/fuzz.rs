//! Fuzz entry points: recipes and groups from any bytes.

use super::{Codec, EXTENTS_MAX, GROUP_BYTES_MAX, decode_group, decode_recipe, encode_recipe};
use crate::testing::{byte, take_bytes, take_u16};

/// A recipe, after the length of its body. If the first byte is odd, the recipe is coded against another one that
/// precedes it.
pub fn recipe(data: &[u8]) {
    let mut rest = data;
    let base = match byte(&mut rest) & 1 {
        0 => None,
        _ => {
            let len = take_u16(&mut rest);
            let body_len = take_u16(&mut rest) as u64;
            decode_recipe(take_bytes(&mut rest, len), None, body_len).ok()
        }
    };
    let body_len = take_u16(&mut rest) as u64;
    let Ok(extents) = decode_recipe(rest, base.as_deref(), body_len) else { return };
    assert!(extents.len() <= EXTENTS_MAX, "more extents than allowed");
    let again = encode_recipe(&extents, base.as_deref());
    let len = extents.iter().map(|extent| u64::from(extent.len)).sum();
    let read = decode_recipe(&again, base.as_deref(), len).ok();
    assert!(read.as_ref() == Some(&extents), "the recipe changed when it was encoded again");
}

/// A group's parts: codec, raw length, encoded length, encoded bytes.
pub fn group(data: &[u8]) {
    let mut rest = data;
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let Ok(codec) = Codec::from_code(byte(&mut rest)) else { return };
        let raw_len = take_u16(&mut rest) | usize::from(byte(&mut rest)) << 16;
        let Ok(raw_len) = u32::try_from(raw_len) else { return };
        let len = take_u16(&mut rest);
        parts.push((codec, raw_len, take_bytes(&mut rest, len)));
    }
    let want: u64 = parts.iter().map(|(_, raw_len, _)| u64::from(*raw_len)).sum();
    if let Ok(raw) = decode_group(parts) {
        assert!(raw.len() as u64 == want && raw.len() <= GROUP_BYTES_MAX, "a group of another length");
    }
}
