//! Writes one group: gathers raw bytes and flushes them as parts of one Zstandard frame.
//!
//! Invariant: after each flush, the parts in order decode to the raw bytes flushed so far. The frame is never
//! ended: writing may stop at any flush, and a reader stops at the recorded length.

use std::sync::Arc;

use zstd::stream::raw::{CParameter, Encoder, InBuffer, Operation, OutBuffer};

use super::anchor::{self, AnchorScanner};
use super::{ANCHOR_WINDOW_BYTES, Anchor, AnchorSeed, BlobError, Codec, Extent, GROUP_BYTES_MAX, GroupId};

/// Zstandard level of a recorded group (decision 0010). Level 6 takes three times as long and saves 4%.
const LEVEL: i32 = 3;
/// Sizes of the matcher's two tables, as powers of two of entries. Between two parts, comparing bodies fills
/// the processor caches. Small tables that still fit the cache are worth more than large ones that remember
/// more.
const HASH_LOG: u32 = 13;
const CHAIN_LOG: u32 = 12;
/// The window is exactly as large as a group, so that each part can refer to all bytes before it.
pub(super) const WINDOW_LOG: u32 = 18;
const _: () = assert!(GROUP_BYTES_MAX == 1 << WINDOW_LOG);

/// The bytes that one flush added to a group: the unit of storage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EncodedPart {
    /// The group.
    pub group: GroupId,
    /// How the raw bytes are encoded; the same for all parts of a group.
    pub codec: Codec,
    /// Where the part begins in the group's raw bytes.
    pub raw_start: u32,
    /// Raw bytes in the part, never 0.
    pub raw_len: u32,
    /// The encoded bytes.
    pub encoded: Vec<u8>,
}

/// One open group. Dropping it is safe at any time; unflushed bytes are lost.
pub(crate) struct GroupWriter {
    id: GroupId,
    raw: Arc<Vec<u8>>,
    flushed: usize,
    seed: AnchorSeed,
    scanner: AnchorScanner,
    /// `None` if the group is stored raw.
    encoder: Option<Encoder<'static>>,
}

impl GroupWriter {
    /// Opens an empty group.
    ///
    /// # Errors
    /// [`BlobError::Zstd`] if no compression context is available.
    pub(crate) fn new(id: GroupId, codec: Codec, seed: AnchorSeed) -> Result<Self, BlobError> {
        let encoder = match codec {
            Codec::Raw => None,
            Codec::Zstd => Some(new_encoder()?),
        };
        Ok(Self { id, raw: Arc::default(), flushed: 0, seed, scanner: AnchorScanner::default(), encoder })
    }

    /// The group's id.
    #[must_use]
    pub(crate) fn id(&self) -> GroupId {
        self.id
    }

    /// How the group is stored.
    #[must_use]
    pub(crate) fn codec(&self) -> Codec {
        if self.encoder.is_some() { Codec::Zstd } else { Codec::Raw }
    }

    /// Raw bytes that still fit.
    #[must_use]
    pub(crate) fn room(&self) -> usize {
        GROUP_BYTES_MAX.saturating_sub(self.raw.len())
    }

    /// The raw bytes so far, shared. While a caller holds them, the next append copies the group once.
    #[must_use]
    pub(crate) fn raw(&self) -> Arc<Vec<u8>> {
        Arc::clone(&self.raw)
    }

    /// Appends raw bytes and adds the anchors that became complete to `anchors`. `window_ends` are those within
    /// `bytes`, if the caller knows them.
    ///
    /// # Errors
    /// [`BlobError::NoRoom`] if the bytes exceed [`Self::room`]; then nothing is appended.
    pub(crate) fn append(
        &mut self,
        bytes: &[u8],
        window_ends: Option<impl Iterator<Item = usize>>,
        anchors: &mut Vec<Anchor>,
    ) -> Result<Extent, BlobError> {
        let no_room = BlobError::NoRoom { asked: bytes.len(), room: self.room() };
        if bytes.len() > self.room() {
            return Err(no_room);
        }
        let (Ok(offset), Ok(len)) = (u32::try_from(self.raw.len()), u32::try_from(bytes.len())) else {
            return Err(no_room);
        };
        let raw = Arc::make_mut(&mut self.raw);
        raw.extend_from_slice(bytes);
        let (group, seed, flushed) = (self.id, self.seed, self.flushed);
        let found = |start| {
            let start = flushed + start;
            if let (Some(window), Ok(offset)) =
                (raw.get(start..start + ANCHOR_WINDOW_BYTES), u32::try_from(start))
            {
                anchors.push(Anchor { key: anchor::key_of(window, seed), group, offset });
            }
        };
        match window_ends {
            Some(known) => self.scanner.scan_known(bytes, known, found),
            None => self.scanner.scan(bytes, found),
        }
        Ok(Extent { group: self.id, offset, len })
    }

    /// Encodes what was appended since the last flush; `None` if nothing was.
    ///
    /// # Errors
    /// [`BlobError::Zstd`]; the caller must then drop the group, because its frame is incomplete.
    pub(crate) fn flush(&mut self) -> Result<Option<EncodedPart>, BlobError> {
        let pending = self.raw.get(self.flushed..).unwrap_or_default();
        let (Ok(raw_start), Ok(raw_len)) = (u32::try_from(self.flushed), u32::try_from(pending.len())) else {
            return Err(BlobError::NoRoom { asked: pending.len(), room: 0 });
        };
        if raw_len == 0 {
            return Ok(None);
        }
        let encoded = match &mut self.encoder {
            None => pending.to_vec(),
            Some(encoder) => compress(encoder, pending)?,
        };
        self.flushed = self.raw.len();
        self.scanner = AnchorScanner::default();
        Ok(Some(EncodedPart { group: self.id, codec: self.codec(), raw_start, raw_len, encoded }))
    }
}

fn zstd_error(what: &'static str) -> impl FnOnce(std::io::Error) -> BlobError {
    move |source| BlobError::Zstd { what, source }
}

fn new_encoder() -> Result<Encoder<'static>, BlobError> {
    let open = || {
        let mut encoder = Encoder::new(LEVEL)?;
        encoder.set_parameter(CParameter::WindowLog(WINDOW_LOG))?;
        encoder.set_parameter(CParameter::HashLog(HASH_LOG))?;
        encoder.set_parameter(CParameter::ChainLog(CHAIN_LOG))?;
        set_frame_flags(&mut encoder)?;
        Ok(encoder)
    };
    open().map_err(zstd_error("open a frame"))
}

/// Feeds `pending` to the frame and flushes it: the output decodes without later parts.
fn compress(encoder: &mut Encoder<'static>, pending: &[u8]) -> Result<Vec<u8>, BlobError> {
    let mut out = Vec::with_capacity(zstd::compress_bound(pending.len()).saturating_add(64));
    let mut input = InBuffer::around(pending);
    loop {
        let written = out.len();
        let mut output = OutBuffer::around_pos(&mut out, written);
        let left = if input.pos() < pending.len() {
            encoder.run(&mut input, &mut output).map_err(zstd_error("compress"))?;
            1
        } else {
            encoder.flush(&mut output).map_err(zstd_error("flush"))?
        };
        if left == 0 {
            return Ok(out);
        }
        if out.len() == out.capacity() {
            out.reserve(1024);
        }
    }
}

/// Zstandard level of a group that was written raw, once it is compressed as a whole. Level 3 stores 5% more of the
/// real input in two thirds of the time, level 9 1% less in twice the time.
const WHOLE_GROUP_LEVEL: i32 = 6;

/// Compresses a group that was written raw, part by part.
pub struct PartEncoder(Encoder<'static>);

impl std::fmt::Debug for PartEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartEncoder").finish_non_exhaustive()
    }
}

impl PartEncoder {
    /// # Errors
    /// [`BlobError::Zstd`] if no compression context is available.
    pub fn new() -> Result<Self, BlobError> {
        Ok(Self(whole_group_encoder().map_err(zstd_error("open a frame"))?))
    }

    /// The next part of the group.
    ///
    /// # Errors
    /// [`BlobError::Zstd`].
    pub fn encode(&mut self, raw: &[u8]) -> Result<Vec<u8>, BlobError> {
        compress(&mut self.0, raw)
    }
}

fn whole_group_encoder() -> std::io::Result<Encoder<'static>> {
    let mut encoder = Encoder::new(WHOLE_GROUP_LEVEL)?;
    encoder.set_parameter(CParameter::WindowLog(WINDOW_LOG))?;
    set_frame_flags(&mut encoder)?;
    Ok(encoder)
}

/// The record around a part has its own checksum and the sizes.
fn set_frame_flags(encoder: &mut Encoder<'static>) -> std::io::Result<()> {
    encoder.set_parameter(CParameter::ChecksumFlag(false))?;
    encoder.set_parameter(CParameter::ContentSizeFlag(false))?;
    encoder.set_parameter(CParameter::DictIdFlag(false))
}

/// Compresses what a compaction keeps of groups, each group by itself.
pub struct RemainderEncoder {
    zstd: zstd::bulk::Compressor<'static>,
}

impl std::fmt::Debug for RemainderEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RestEncoder").finish_non_exhaustive()
    }
}

impl RemainderEncoder {
    /// Uses this Zstandard level; `None` means the level of recorded groups.
    ///
    /// # Errors
    /// [`BlobError::Zstd`] if no compression context is available.
    pub fn new(level: Option<i32>) -> Result<Self, BlobError> {
        let open = || {
            let mut zstd = zstd::bulk::Compressor::new(level.unwrap_or(LEVEL))?;
            zstd.set_parameter(CParameter::WindowLog(WINDOW_LOG))?;
            zstd.set_parameter(CParameter::ChecksumFlag(false))?;
            zstd.set_parameter(CParameter::ContentSizeFlag(false))?;
            zstd.set_parameter(CParameter::DictIdFlag(false))?;
            Ok(zstd)
        };
        Ok(Self { zstd: open().map_err(zstd_error("open a frame"))? })
    }

    /// The raw bytes as one frame, or unchanged if the frame is not shorter.
    ///
    /// # Errors
    /// [`BlobError::Zstd`].
    pub fn encode(&mut self, raw: &[u8]) -> Result<(Codec, Vec<u8>), BlobError> {
        let encoded = self.zstd.compress(raw).map_err(zstd_error("compress"))?;
        match encoded.len() < raw.len() {
            true => Ok((Codec::Zstd, encoded)),
            false => Ok((Codec::Raw, raw.to_vec())),
        }
    }
}

/// Whether Zstandard would not help: the bytes of a sample from the middle have nearly eight bits of entropy
/// each. Repeats in such bytes are left to anchors.
pub fn is_incompressible(bytes: &[u8]) -> bool {
    const SAMPLE: usize = 4096;
    const SAMPLE_BYTES: f64 = 4096.0;
    /// 95% of a byte.
    const INCOMPRESSIBLE_BITS: f64 = 7.6;
    if bytes.len() < SAMPLE {
        return false;
    }
    let start = (bytes.len() - SAMPLE) / 2;
    let sample = bytes.get(start..start + SAMPLE).unwrap_or_default();
    let mut counts = [0u16; 256];
    sample.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    let frequent = counts.iter().filter(|count| **count > 0).map(|count| f64::from(*count));
    // Base64 has six bits a byte and is worth it; images have nearly eight.
    let bits: f64 = frequent.map(|count| count * (SAMPLE_BYTES / count).log2()).sum();
    bits > INCOMPRESSIBLE_BITS * SAMPLE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that do not compress.
    fn noise(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        blake3::Hasher::new().finalize_xof().fill(&mut bytes);
        bytes
    }

    #[test]
    fn sample_above_95_percent_is_incompressible() {
        assert!(is_incompressible(&noise(4096)) && is_incompressible(&noise(100_000)));
        assert!(!is_incompressible(&noise(4095)), "too short to look at");
        assert!(!is_incompressible(&[]));
        // Bytes before and after the middle are not sampled.
        let around = |middle: &[u8]| [&vec![7; 9000][..], middle, &vec![7; 9000]].concat();
        assert!(is_incompressible(&around(&noise(4096))));
        let (front, back) = (&noise(6000)[..], &vec![7; 6000][..]);
        assert!(!is_incompressible(&[front, back].concat()), "half of the sample");
        assert!(!is_incompressible(&[&noise(9000)[..], &vec![7; 4096], &noise(9000)].concat()));
        // The limit of 7.6 bits lies between 190 and 200 equally frequent values.
        let of_values = |values: usize| (0..4096).map(|n| (n % values) as u8).collect::<Vec<_>>();
        assert!(!is_incompressible(&of_values(64)), "base64");
        assert!(!is_incompressible(&of_values(190)));
        assert!(is_incompressible(&of_values(200)) && is_incompressible(&of_values(256)));
    }

    /// Base64, hexadecimal digits and text compress; packed and encrypted bytes do not.
    #[test]
    fn entropy_and_a_trial_compression_agree_on_usual_content() {
        let hex: Vec<u8> =
            noise(4096).iter().map(|byte| b"0123456789abcdef"[usize::from(byte % 16)]).collect();
        let text = "The quick brown fox jumps over the lazy dog. ".repeat(100).into_bytes();
        let packed = zstd::bulk::compress(&[noise(3000), text.clone(), noise(9000)].concat(), 3).unwrap();
        for (bytes, wanted) in [(noise(8192), true), (hex, false), (text, false), (packed, true)] {
            let trial = zstd::bulk::compress(&bytes, 1).unwrap().len() > bytes.len() / 20 * 19;
            assert_eq!((is_incompressible(&bytes), trial), (wanted, wanted));
        }
    }

    #[test]
    fn group_append_returns_offset_and_respects_room() {
        let mut group = GroupWriter::new(GroupId(3), Codec::Raw, AnchorSeed(1)).unwrap();
        let mut anchors = Vec::new();
        assert_eq!(group.room(), GROUP_BYTES_MAX);
        assert_eq!(group.flush().unwrap(), None);
        let noise = noise(GROUP_BYTES_MAX - 10);
        let first = group.append(&noise[..1000], None::<std::iter::Empty<usize>>, &mut anchors).unwrap();
        assert_eq!(first, Extent { group: GroupId(3), offset: 0, len: 1000 });
        let part = group.flush().unwrap().unwrap();
        assert_eq!((part.raw_start, part.raw_len, part.encoded.len()), (0, 1000, 1000));
        let second = group.append(&noise[1000..], None::<std::iter::Empty<usize>>, &mut anchors).unwrap();
        assert_eq!((second.offset as usize, second.len as usize), (1000, noise.len() - 1000));
        assert!(matches!(
            group.append(&[0; 11], None::<std::iter::Empty<usize>>, &mut anchors),
            Err(BlobError::NoRoom { asked: 11, room: 10 })
        ));
        let third = group.append(&[0; 10], None::<std::iter::Empty<usize>>, &mut anchors).unwrap();
        assert_eq!((third.offset as usize, group.room()), (GROUP_BYTES_MAX - 10, 0));
        let part = group.flush().unwrap().unwrap();
        assert_eq!((part.raw_start, part.raw_len as usize), (1000, GROUP_BYTES_MAX - 1000));
        assert_eq!(group.flush().unwrap(), None);
        // Each anchor is the key of the window it points to, and lies within one part.
        assert!(anchors.len() > 500);
        let raw = group.raw();
        for found in &anchors {
            let at = found.offset as usize;
            assert_eq!(found.key, anchor::key_of(&raw[at..at + ANCHOR_WINDOW_BYTES], AnchorSeed(1)));
            assert!(at + ANCHOR_WINDOW_BYTES <= 1000 || at >= 1000);
        }
    }
}
