//! The byte layout of a segment: segment header, batch header, record frame, footer, and their checks.
//! docs/format.md describes the same in prose; `tests::golden` checks both.
//!
//! ```text
//! segment  = header batch* (footer | zeros)
//! batch    = crc32 u32 | bytes u32 | records u32 | synced u32 | first seqno u64 | time ns u64 | prev [16] | record*
//! record   = crc32 u32 | bytes u32 | kind u8 | layout u8 | body
//! footer   = bincode(tail, LogState, root) | chain [16] if rewritten | bytes u32 | crc32 u32 | magic [8]
//! ```
//! Every crc is salted with the store's uuid, the segment and the offset of its bytes. A batch that was
//! written to the wrong place, or is left over from an older segment, fails the check. `bytes` counts the
//! whole item, its own header included. `prev` is the first half of the BLAKE3 of the previous batch.

use serde::{Deserialize, Serialize};

use crate::codec::{self, ByteReader, CodecError};
use crate::ids::{SegmentId, Seqno, StoreId};
use crate::log::ledger::Frontier;
use crate::log::record::FIRST_FREE_SPACE;
use crate::log::totals::LogTotals;

/// First bytes of a segment.
pub const SEGMENT_MAGIC: [u8; 8] = *b"annalseg";
/// Last bytes of a sealed segment.
pub const FOOTER_MAGIC: [u8; 8] = *b"annalend";
/// Version of everything in a segment that the writer writes.
pub const SEGMENT_FORMAT: u16 = 1;
/// Version of everything in a rewritten segment. The ledger holds a statement of what was erased from it.
pub const REWRITTEN_FORMAT: u16 = 4;
/// As [`REWRITTEN_FORMAT`], written before erasures were stated.
pub const REWRITTEN_FORMAT_FIRST: u16 = 2;
/// Bytes of a segment header.
pub const SEGMENT_HEADER_BYTES: u64 = SEGMENT_HEADER_LEN as u64;
/// [`SEGMENT_HEADER_BYTES`] as a length in memory.
pub const SEGMENT_HEADER_LEN: usize = 96;
/// Bytes of a batch header.
pub const BATCH_HEADER_BYTES: usize = 48;
/// Bytes of a record before its body.
pub const RECORD_HEADER_BYTES: usize = 10;
/// Bytes of a footer after its bincode part.
const FOOTER_TAIL_BYTES: usize = 16;
/// Maximum bytes of a batch.
pub const BATCH_BYTES_MAX: usize = 1 << 30;

/// First half of a BLAKE3: links a batch to the one before it.
pub type ChainDigest = [u8; 16];

/// The salt of a checksum: the store and the segment that the bytes belong to.
#[derive(Debug, Clone, Copy)]
pub struct Salt {
    hasher_state: u32,
    /// Whether the segment may hold records that only compaction writes.
    pub is_rewritten: bool,
}

impl Salt {
    pub fn new(store: StoreId, segment: SegmentId) -> Self {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&store.0);
        hasher.update(&segment.0.to_le_bytes());
        Self { hasher_state: hasher.finalize(), is_rewritten: segment.is_rewritten() }
    }

    pub fn crc(self, offset: u64, bytes: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.hasher_state);
        hasher.update(&offset.to_le_bytes());
        hasher.update(bytes);
        hasher.finalize()
    }
}

/// The first 96 bytes of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentHeader {
    pub magic: [u8; 8],
    pub format: u16,
    /// 0: not encrypted. Other values are refused.
    pub cipher: u8,
    pub key_id: u32,
    pub store: StoreId,
    pub segment: SegmentId,
    pub first_seqno: Seqno,
    pub chain: ChainDigest,
    pub created_ns: u64,
}

impl SegmentHeader {
    pub fn encode(&self) -> Result<Vec<u8>, CodecError> {
        let mut bytes = codec::encode(self)?;
        bytes.resize(SEGMENT_HEADER_LEN - 4, 0);
        let crc = Salt::new(self.store, self.segment).crc(0, &bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        Ok(bytes)
    }

    pub fn decode(bytes: &[u8], store: StoreId, segment: SegmentId) -> Result<Self, CodecError> {
        let mut reader = ByteReader::new(bytes, "segment header");
        let whole = reader.take(SEGMENT_HEADER_LEN - 4)?;
        if whole[..8] != SEGMENT_MAGIC {
            return Err(CodecError::Header("these are not the first bytes of an annals segment".into()));
        }
        let used = 8 + 2 + 1 + 4 + 16 + 4 + 8 + 16 + 8;
        let (fields, padding) = whole.split_at(used);
        let header: Self = codec::decode(fields)?;
        let rewritten = [REWRITTEN_FORMAT, REWRITTEN_FORMAT_FIRST].contains(&header.format);
        if header.format != SEGMENT_FORMAT && !rewritten {
            return Err(header.unknown_format(whole, bytes));
        }
        if reader.u32()? != Salt::new(header.store, header.segment).crc(0, whole)
            || padding.iter().any(|b| *b != 0)
        {
            return Err(CodecError::Header("its checksum does not match".into()));
        }
        if header.cipher != 0 {
            return Err(CodecError::Unknown { what: "segment cipher", found: u64::from(header.cipher) });
        }
        if rewritten != header.segment.is_rewritten() {
            return Err(CodecError::Header("its segment number does not fit its format".into()));
        }
        if header.store != store || header.segment != segment {
            return Err(CodecError::Header(format!(
                "it is segment {} of store {}, not segment {} of store {store}",
                header.segment.0, header.store, segment.0
            )));
        }
        Ok(header)
    }

    /// The error for an unknown format. If the checksum fits with the format that belongs to the segment's
    /// number, the format was changed; else a newer annals wrote it.
    fn unknown_format(&self, whole: &[u8], bytes: &[u8]) -> CodecError {
        let known: &[u16] = match self.segment.is_rewritten() {
            true => &[REWRITTEN_FORMAT, REWRITTEN_FORMAT_FIRST],
            false => &[SEGMENT_FORMAT],
        };
        let salt = Salt::new(self.store, self.segment);
        let is_changed = known.iter().any(|format| {
            let mut original = whole.to_vec();
            original[8..10].copy_from_slice(&format.to_le_bytes());
            let crc = salt.crc(0, &original).to_le_bytes();
            bytes.get(whole.len()..).is_some_and(|rest| rest.starts_with(&crc))
        });
        let found = u64::from(self.format);
        match is_changed || found < u64::from(REWRITTEN_FORMAT) {
            true => CodecError::Unknown { what: "segment format", found },
            false => CodecError::Newer { what: "segment", found, known: u64::from(REWRITTEN_FORMAT) },
        }
    }
}

/// The header that a segment's first bytes claim, for any store. `None` if it is damaged.
///
/// # Errors
/// `Newer`.
pub fn claimed_header(bytes: &[u8]) -> Result<Option<SegmentHeader>, CodecError> {
    let store = bytes.get(15..31).and_then(|bytes| bytes.try_into().ok()).map(StoreId);
    let segment = bytes.get(31..35).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
    let (Some(store), Some(segment)) = (store, segment) else { return Ok(None) };
    match SegmentHeader::decode(bytes, store, SegmentId(segment)) {
        Err(newer @ CodecError::Newer { .. }) => Err(newer),
        header => Ok(header.ok()),
    }
}

/// The header of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHeader {
    pub bytes: u32,
    pub records: u32,
    /// Position in this segment known to be durable when the batch was written; 0 if none of it was.
    pub synced: u32,
    pub first_seqno: Seqno,
    pub time_ns: u64,
    pub prev: ChainDigest,
}

impl BatchHeader {
    /// Writes the header over the first bytes of a whole batch whose records are already in place.
    pub fn write(&self, batch: &mut [u8], salt: Salt, offset: u64) {
        batch[4..8].copy_from_slice(&self.bytes.to_le_bytes());
        batch[8..12].copy_from_slice(&self.records.to_le_bytes());
        batch[12..16].copy_from_slice(&self.synced.to_le_bytes());
        batch[16..24].copy_from_slice(&self.first_seqno.0.to_le_bytes());
        batch[24..32].copy_from_slice(&self.time_ns.to_le_bytes());
        batch[32..48].copy_from_slice(&self.prev);
        let crc = salt.crc(offset, &batch[4..]);
        batch[..4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads the fields without checking the crc: they cannot be trusted yet.
    pub fn peek(bytes: &[u8]) -> Result<(u32, Self), CodecError> {
        let mut r = ByteReader::new(bytes, "batch header");
        let crc = r.u32()?;
        let header = Self {
            bytes: r.u32()?,
            records: r.u32()?,
            synced: r.u32()?,
            first_seqno: Seqno(r.u64()?),
            time_ns: r.u64()?,
            prev: r.array()?,
        };
        Ok((crc, header))
    }

    /// Reads and checks a whole batch at the front of `bytes`.
    pub fn check(bytes: &[u8], salt: Salt, offset: u64) -> Result<(Self, &[u8]), CodecError> {
        let (crc, header) = Self::peek(bytes)?;
        let len = header.bytes as usize;
        if !(BATCH_HEADER_BYTES..=BATCH_BYTES_MAX).contains(&len) {
            return Err(CodecError::Limit {
                what: "batch length",
                found: len as u64,
                limit: BATCH_BYTES_MAX as u64,
            });
        }
        let Some(whole) = bytes.get(..len) else {
            return Err(CodecError::Short { what: "batch", found: bytes.len(), needed: len });
        };
        if salt.crc(offset, &whole[4..]) != crc {
            return Err(CodecError::Header("the batch's checksum does not match".into()));
        }
        Ok((header, whole))
    }
}

/// The digest that the next batch carries as its `prev`.
pub fn chain_digest(batch: &[u8]) -> ChainDigest {
    let mut digest = [0; 16];
    digest.copy_from_slice(&blake3::hash(batch).as_bytes()[..16]);
    digest
}

/// Starts a record in `out`; [`seal_record`] and [`stamp_record`] fill in its length and crc.
pub fn start_record(out: &mut Vec<u8>, kind: u8, layout: u8) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; 8]);
    out.push(kind);
    out.push(layout);
    start
}

/// Writes the length of the record that ends at the end of `out`.
pub fn seal_record(out: &mut [u8], start: usize) {
    #[expect(clippy::cast_possible_truncation, reason = "a batch has at most BATCH_BYTES_MAX bytes")]
    let len = (out.len() - start) as u32;
    out[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
}

/// Writes a record's crc, which depends on the record's offset.
pub fn stamp_record(record: &mut [u8], salt: Salt, offset: u64) {
    let crc = salt.crc(offset, &record[4..]);
    record[..4].copy_from_slice(&crc.to_le_bytes());
}

/// A record in a segment. Its crc was checked, unless [`RawRecord::unchecked`] or [`RawRecord::of`] returned
/// it.
#[derive(Debug, Clone, Copy)]
pub struct RawRecord<'a> {
    pub kind: u8,
    pub layout: u8,
    pub body: &'a [u8],
    pub bytes: u32,
}

impl<'a> RawRecord<'a> {
    /// A whole record that this process built.
    pub fn of(whole: &'a [u8]) -> Result<Self, CodecError> {
        match whole.split_at_checked(RECORD_HEADER_BYTES) {
            Some((header, body)) => {
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "a record is a part of a batch of at most BATCH_BYTES_MAX bytes"
                )]
                let bytes = whole.len() as u32;
                Ok(Self { kind: header[8], layout: header[9], body, bytes })
            }
            None => {
                Err(CodecError::Short { what: "record", found: whole.len(), needed: RECORD_HEADER_BYTES })
            }
        }
    }

    /// The record at the front of `bytes`, which stand at `offset`; checks its crc.
    pub fn check(bytes: &'a [u8], salt: Salt, offset: u64) -> Result<Self, CodecError> {
        let (crc, whole) = Self::peek(bytes)?;
        if salt.crc(offset, &whole[4..]) != crc {
            return Err(CodecError::Header("the record's checksum does not match".into()));
        }
        Self::of(whole)
    }

    /// The record at the front of `bytes` by its length alone, unchecked.
    pub fn unchecked(bytes: &'a [u8]) -> Result<Self, CodecError> {
        Self::of(Self::peek(bytes)?.1)
    }

    /// The record's checksum and its whole bytes.
    fn peek(bytes: &'a [u8]) -> Result<(u32, &'a [u8]), CodecError> {
        let mut r = ByteReader::new(bytes, "record");
        let crc = r.u32()?;
        let len = r.u32()?;
        let Some(whole) = bytes.get(..len as usize).filter(|w| w.len() >= RECORD_HEADER_BYTES) else {
            return Err(CodecError::Short { what: "record", found: bytes.len(), needed: len as usize });
        };
        Ok((crc, whole))
    }
}

/// Upper bound of every count of a log, so that a hostile number cannot overflow a sum.
pub const COUNT_MAX: u64 = 1 << 56;

/// Cumulative state of the log at the end of a segment; the last one covers the whole log.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LogState {
    /// The seqno of the next record.
    pub next_seqno: Seqno,
    /// Digest of the last batch.
    pub chain: ChainDigest,
    /// The ledger after the last batch.
    pub ledger: Frontier,
    /// Counts and bytes by kind.
    pub totals: LogTotals,
    /// Time of the newest batch.
    pub newest_ns: u64,
    /// The lowest ids that no record has used.
    pub next_group: u64,
    pub next_run: u64,
    pub next_space: u32,
}

impl LogState {
    /// The seqno of the last record; 0 if there is none.
    pub fn last_seqno(&self) -> Seqno {
        Seqno(self.next_seqno.0.saturating_sub(1))
    }

    /// Whether the fields are consistent: false for bytes that no writer produced.
    pub fn is_sound(&self) -> bool {
        let counts = [self.next_seqno.0, self.ledger.leaves, self.next_group, self.next_run];
        let in_reach = counts.iter().chain(&self.totals.to_array()).all(|count| *count <= COUNT_MAX);
        in_reach && self.next_seqno.0 >= 1 && self.ledger.is_sound()
    }

    /// The state of an empty log.
    pub fn empty() -> Self {
        Self {
            next_seqno: Seqno(1),
            next_group: 1,
            next_run: 1,
            next_space: FIRST_FREE_SPACE,
            ..Self::default()
        }
    }
}

/// The end of a sealed segment. In a rewritten segment, `state` is the log's state there before the rewrite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentFooter {
    /// End of the segment's last batch.
    pub tail: u64,
    pub state: LogState,
    /// Root of the ledger after the last batch.
    pub root: [u8; 32],
    /// Only in a rewritten segment: the digest of the last batch that it now holds.
    pub rewritten_chain: Option<ChainDigest>,
}

impl SegmentFooter {
    /// The digest of the last batch that the segment holds.
    pub fn own_chain(&self) -> ChainDigest {
        self.rewritten_chain.unwrap_or(self.state.chain)
    }

    pub fn encode(&self, salt: Salt) -> Result<Vec<u8>, CodecError> {
        let mut bytes = codec::encode(&(self.tail, &self.state, self.root))?;
        if let Some(chain) = self.rewritten_chain {
            bytes.extend_from_slice(&chain);
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "`codec::encode` refuses over HEADER_BYTES_MAX bytes"
        )]
        let len = bytes.len() as u32;
        bytes.extend_from_slice(&len.to_le_bytes());
        let crc = salt.crc(self.tail, &bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes.extend_from_slice(&FOOTER_MAGIC);
        Ok(bytes)
    }

    /// The footer at the end of a segment; `bytes` are the segment's last ones and begin at offset `start`.
    pub fn decode_end(bytes: &[u8], start: u64, salt: Salt) -> Result<Self, CodecError> {
        let wrong = |what: &str| CodecError::Header(format!("its footer {what}"));
        let at = bytes.len().checked_sub(FOOTER_TAIL_BYTES).ok_or_else(|| wrong("is missing"))?;
        let mut r = ByteReader::new(&bytes[at..], "footer");
        let (len, crc) = (r.u32()? as usize, r.u32()?);
        if r.take(8)? != FOOTER_MAGIC {
            return Err(wrong("is missing"));
        }
        let from = at.checked_sub(len).ok_or_else(|| wrong("has an impossible length"))?;
        let tail = start + from as u64;
        if salt.crc(tail, &bytes[from..at + 4]) != crc {
            return Err(wrong("does not match its checksum"));
        }
        let fields = &bytes[from..at];
        let (fields, rewritten_chain) = match salt.is_rewritten {
            false => (fields, None),
            true => {
                let (fields, chain) = fields.split_last_chunk().ok_or_else(|| wrong("is too short"))?;
                (fields, Some(*chain))
            }
        };
        let (found_tail, state, root) = codec::decode(fields)?;
        let footer = Self { tail: found_tail, state, root, rewritten_chain };
        if footer.tail != tail || !footer.state.is_sound() {
            return Err(wrong("contradicts the segment"));
        }
        Ok(footer)
    }
}
