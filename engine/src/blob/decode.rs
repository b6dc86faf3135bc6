//! Reading a group: its parts, in order, through one streaming decoder.
//!
//! Parts come from disk: the recorded lengths bound memory before anything is decoded, the decoder's
//! window is bounded, and each part must give just its recorded length. Wrong bytes of the right
//! length can still come out of a flipped block: the caller hashes what it assembles.

use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

use super::group::WINDOW_LOG;
use super::{BlobError, Codec, GROUP_BYTES_MAX};

/// Decodes the raw bytes of a group from its parts (codec, raw length, encoded bytes), first to last.
///
/// The parts may stop anywhere: a group's front decodes without its rest.
///
/// # Errors
/// [`BlobError::GroupTooLong`], [`BlobError::MixedCodec`], [`BlobError::PartLength`],
/// [`BlobError::PartDamaged`]. At most [`GROUP_BYTES_MAX`] bytes and one decoder are allocated.
pub(crate) fn decode_group<'a>(
    parts: impl IntoIterator<Item = (Codec, u32, &'a [u8])>,
) -> Result<Vec<u8>, BlobError> {
    let mut out = Vec::new();
    let mut group: Option<(Codec, Option<Decoder<'static>>)> = None;
    for (part, (codec, raw_len, encoded)) in parts.into_iter().enumerate() {
        let found = out.len() as u64 + u64::from(raw_len);
        if found > GROUP_BYTES_MAX as u64 {
            return Err(BlobError::GroupTooLong { found, most: GROUP_BYTES_MAX as u64 });
        }
        let (first, decoder) = match &mut group {
            Some(group) => group,
            None => group.insert((codec, new_decoder(codec)?)),
        };
        if *first != codec {
            return Err(BlobError::MixedCodec { part });
        }
        match decoder {
            None if encoded.len() == raw_len as usize => out.extend_from_slice(encoded),
            None => {
                let (expected, found) = (u64::from(raw_len), encoded.len() as u64);
                return Err(BlobError::PartLength { part, expected, found });
            }
            Some(decoder) => decode_part(decoder, part, raw_len as usize, encoded, &mut out)?,
        }
    }
    Ok(out)
}

fn new_decoder(codec: Codec) -> Result<Option<Decoder<'static>>, BlobError> {
    if codec == Codec::Raw {
        return Ok(None);
    }
    let open = || {
        let mut decoder = Decoder::new()?;
        decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG))?;
        Ok(decoder)
    };
    open().map(Some).map_err(|source| BlobError::Zstd { what: "open a decoder", source })
}

fn decode_part(
    decoder: &mut Decoder<'static>,
    part: usize,
    raw_len: usize,
    encoded: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), BlobError> {
    let start = out.len();
    // One byte more than recorded, so that a part that holds too much shows it.
    out.resize(start + raw_len + 1, 0);
    let room = out.get_mut(start..).unwrap_or_default();
    let mut output = OutBuffer::around(room);
    let mut input = InBuffer::around(encoded);
    loop {
        let before = (input.pos(), output.pos());
        let hint = decoder
            .run(&mut input, &mut output)
            .map_err(|_| BlobError::PartDamaged { part, what: "its bytes are no Zstandard block" })?;
        if hint == 0 {
            return Err(BlobError::PartDamaged { part, what: "its frame ends, which no group's does" });
        }
        if output.pos() > raw_len || (input.pos(), output.pos()) == before {
            break;
        }
    }
    let (found, consumed) = (output.pos(), input.pos() == encoded.len());
    if found != raw_len {
        let (expected, found) = (raw_len as u64, found as u64);
        return Err(BlobError::PartLength { part, expected, found });
    }
    if !consumed {
        return Err(BlobError::PartDamaged { part, what: "bytes are left over" });
    }
    out.truncate(start + raw_len);
    Ok(())
}
