//! Reads a group: decodes its parts in order through one streaming decoder.
//!
//! Parts come from disk. The recorded lengths bound memory before anything is decoded, the decoder's window
//! is bounded, and each part must give exactly its recorded length. A flipped bit can still give wrong bytes
//! of the right length, so the caller hashes the assembled body.

use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

use super::group::WINDOW_LOG;
use super::{BlobError, Codec, GROUP_BYTES_MAX};

/// Decodes groups one after another. A Zstandard context costs some 400 KB to create and little to reuse.
#[derive(Default)]
pub struct GroupDecoder {
    zstd: Option<Decoder<'static>>,
}

impl std::fmt::Debug for GroupDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupDecoder").finish_non_exhaustive()
    }
}

impl GroupDecoder {
    /// Decodes the raw bytes of a group from its parts (codec, raw length, encoded bytes), first to last.
    ///
    /// The parts may stop anywhere: a prefix of a group decodes alone.
    ///
    /// # Errors
    /// [`BlobError::GroupTooLong`], [`BlobError::MixedCodec`], [`BlobError::PartLength`],
    /// [`BlobError::PartDamaged`]. At most [`GROUP_BYTES_MAX`] bytes and one decoder are allocated.
    pub fn decode<'a>(
        &mut self,
        parts: impl IntoIterator<Item = (Codec, u32, &'a [u8])> + Clone,
    ) -> Result<Vec<u8>, BlobError> {
        let mut total = 0u64;
        for (_, raw_len, _) in parts.clone() {
            total += u64::from(raw_len);
            if total > GROUP_BYTES_MAX as u64 {
                return Err(BlobError::GroupTooLong { found: total, most: GROUP_BYTES_MAX as u64 });
            }
        }
        // One byte more than recorded, so that excess output of the last part is detected.
        #[expect(clippy::cast_possible_truncation, reason = "at most GROUP_BYTES_MAX")]
        let mut out = Vec::with_capacity(total as usize + 1);
        let mut first = None;
        let mut zstd: Option<Decoder<'static>> = None;
        for (part, (codec, raw_len, encoded)) in parts.into_iter().enumerate() {
            if *first.get_or_insert(codec) != codec {
                return Err(BlobError::MixedCodec { part });
            }
            match codec {
                Codec::Raw if encoded.len() == raw_len as usize => out.extend_from_slice(encoded),
                Codec::Raw => {
                    let (expected, found) = (u64::from(raw_len), encoded.len() as u64);
                    return Err(BlobError::PartLength { part, expected, found });
                }
                Codec::Zstd => {
                    let decoder = match &mut zstd {
                        Some(decoder) => decoder,
                        None => zstd.insert(self.ready_decoder()?),
                    };
                    decode_part(decoder, part, raw_len as usize, encoded, &mut out)?;
                }
            }
        }
        // A decoder that met damage is not reused.
        self.zstd = zstd.or(self.zstd.take());
        Ok(out)
    }

    /// Decodes the raw bytes that a compaction kept of a group. They are one encoding of their own.
    ///
    /// # Errors
    /// As [`GroupDecoder::decode`]; also if the Zstandard frame does not end exactly with the bytes.
    pub fn decode_remainder(
        &mut self,
        codec: Codec,
        raw_len: u32,
        encoded: &[u8],
    ) -> Result<Vec<u8>, BlobError> {
        if raw_len as usize > GROUP_BYTES_MAX {
            let (found, most) = (u64::from(raw_len), GROUP_BYTES_MAX as u64);
            return Err(BlobError::GroupTooLong { found, most });
        }
        if codec == Codec::Raw {
            return self.decode([(codec, raw_len, encoded)]);
        }
        // One byte more than recorded, so that excess output of the frame is detected.
        let mut out = Vec::with_capacity(raw_len as usize + 1);
        let mut decoder = self.ready_decoder()?;
        let ended = decode_frame(&mut decoder, raw_len as usize, encoded, &mut out)?;
        if !ended {
            return Err(BlobError::PartDamaged { part: 0, what: "its Zstandard frame is incomplete" });
        }
        self.zstd = Some(decoder);
        Ok(out)
    }

    /// A decoder at the start of a frame.
    fn ready_decoder(&mut self) -> Result<Decoder<'static>, BlobError> {
        let ready = match self.zstd.take() {
            Some(mut used) => used.reinit().map(|()| used),
            None => new_decoder(),
        };
        ready.map_err(|source| BlobError::Zstd { what: "open a decoder", source })
    }
}

/// Decodes one group with its own decoder.
///
/// # Errors
/// As [`GroupDecoder::decode`].
pub fn decode_group<'a>(
    parts: impl IntoIterator<Item = (Codec, u32, &'a [u8])> + Clone,
) -> Result<Vec<u8>, BlobError> {
    GroupDecoder::default().decode(parts)
}

fn new_decoder() -> std::io::Result<Decoder<'static>> {
    let mut decoder = Decoder::new()?;
    decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG))?;
    Ok(decoder)
}

/// Decodes a whole frame; returns whether the frame ended with the bytes.
fn decode_frame(
    decoder: &mut Decoder<'static>,
    raw_len: usize,
    encoded: &[u8],
    out: &mut Vec<u8>,
) -> Result<bool, BlobError> {
    let mut output = OutBuffer::around(out);
    let mut input = InBuffer::around(encoded);
    let mut ended = false;
    while !ended && input.pos() < encoded.len() && output.pos() <= raw_len {
        let hint = decoder.run(&mut input, &mut output);
        ended = hint
            .map_err(|_| BlobError::PartDamaged { part: 0, what: "its bytes are not Zstandard blocks" })?
            == 0;
    }
    let (found, consumed) = (output.pos(), input.pos() == encoded.len());
    if found != raw_len {
        let (expected, found) = (raw_len as u64, found as u64);
        return Err(BlobError::PartLength { part: 0, expected, found });
    }
    Ok(ended && consumed)
}

fn decode_part(
    decoder: &mut Decoder<'static>,
    part: usize,
    raw_len: usize,
    encoded: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), BlobError> {
    let start = out.len();
    let mut output = OutBuffer::around_pos(out, start);
    let mut input = InBuffer::around(encoded);
    // There is room for one byte more than recorded, so the decoder holds nothing back once it has all input.
    // A decoder that makes no progress returns an error itself.
    while input.pos() < encoded.len() && output.pos() - start <= raw_len {
        let hint = decoder
            .run(&mut input, &mut output)
            .map_err(|_| BlobError::PartDamaged { part, what: "its bytes are not Zstandard blocks" })?;
        if hint == 0 {
            return Err(BlobError::PartDamaged { part, what: "its Zstandard frame ends too early" });
        }
    }
    let (found, consumed) = (output.pos() - start, input.pos() == encoded.len());
    if found != raw_len {
        let (expected, found) = (raw_len as u64, found as u64);
        return Err(BlobError::PartLength { part, expected, found });
    }
    if !consumed {
        return Err(BlobError::PartDamaged { part, what: "bytes are left over" });
    }
    Ok(())
}
