//! The byte layout of a segment: segment header, batch header, record frame, footer, and their checks.
//! docs/format.md describes the same in prose; `tests::golden` checks both.
//!
//! ```text
//! segment  = header batch* (footer | zeros)
//! batch    = crc32 u32 | bytes u32 | synced u32 | first seqno u56 | time ns u64 | prev [8] | record*
//! record   = crc32 u32 | code u8 | bytes varint | body
//! footer   = bincode(tail, LogState, root) | chain [16] if rewritten | bytes u32 | crc32 u32 | magic [8]
//! ```
//! Every crc is salted with the store's uuid, the segment and the offset of its bytes. A batch that was
//! written to the wrong place, or is left over from an older segment, fails the check. `bytes` counts the
//! whole item, its own header included. `prev` is the first quarter of the BLAKE3 of the previous batch.
//!
//! This is the short form of batches and their records. Formats 1 to 3 have the long form
//! ([`BatchForm::Long`]). The highest bit of a batch's `bytes` tells them apart; a segment may hold both. The
//! next bit marks joined batches ([`crate::log::joined`]).

use serde::{Deserialize, Serialize};

use crate::codec::{self, ByteReader, CodecError};
use crate::ids::{SegmentId, Seqno, StoreId};
use crate::log::ledger::Frontier;
use crate::log::record::{FIRST_FREE_SPACE, SKIPPABLE};
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
/// Bytes of a batch header in the short form, which is the one that is written.
pub const BATCH_HEADER_BYTES: usize = 35;
/// Bytes of a batch header in the long form.
pub const LONG_BATCH_HEADER_BYTES: usize = 48;
/// The least bytes of a record before its body.
pub const RECORD_HEADER_BYTES_MIN: usize = 6;
/// The most bytes of a record before its body.
pub const RECORD_HEADER_BYTES_MAX: usize = 10;
/// Bit of a batch's length that marks the short form.
const SHORT_FORM: u32 = 1 << 31;
/// Bit of a length in the short form that marks joined batches.
const JOINED_FORM: u32 = 1 << 30;
/// Bytes of a record in the short form before its length.
const CODE_END: usize = 5;
/// Bytes of a footer after its bincode part.
const FOOTER_TAIL_BYTES: usize = 16;
/// Maximum bytes of a batch in the short form.
pub const BATCH_BYTES_MAX: usize = (1 << 30) - 1;
/// Maximum bytes of a batch in the long form.
const LONG_BATCH_BYTES_MAX: usize = 1 << 30;

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

/// The form of a batch's header and of the headers of its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchForm {
    /// The only one of formats 1 to 3. It counts the records.
    Long { records: u32 },
    /// From format 4 on. The records end with the batch.
    Short,
    /// Joined batches of a rewritten segment; the header is of the first one. Their records end at this offset.
    Joined { records_end: u32 },
    /// A batch after the first one of joined batches. It has no header of its own.
    Inner,
}

impl BatchForm {
    /// Bytes of the batch header.
    #[must_use]
    pub fn header_bytes(self) -> usize {
        match self {
            Self::Long { .. } => LONG_BATCH_HEADER_BYTES,
            Self::Short | Self::Joined { .. } => BATCH_HEADER_BYTES,
            Self::Inner => 0,
        }
    }
}

/// The digest of the batch before, as far as a header holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrevDigest {
    digest: ChainDigest,
    /// How many of the digest's first bytes are known.
    known: usize,
}

impl PrevDigest {
    /// A digest that is not known: any fits.
    #[must_use]
    pub fn unknown() -> Self {
        Self { digest: [0; 16], known: 0 }
    }

    /// Whether this is `digest`, as far as it is known.
    #[must_use]
    pub fn fits(&self, digest: &ChainDigest) -> bool {
        self.digest.iter().zip(digest).take(self.known).all(|(known, byte)| known == byte)
    }
}

impl From<ChainDigest> for PrevDigest {
    fn from(digest: ChainDigest) -> Self {
        Self { digest, known: digest.len() }
    }
}

/// The header of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHeader {
    pub bytes: u32,
    pub form: BatchForm,
    /// Position in this segment known to be durable when the batch was written; 0 if none of it was, and in
    /// joined batches.
    pub synced: u32,
    pub first_seqno: Seqno,
    pub time_ns: u64,
    pub prev: PrevDigest,
}

impl BatchHeader {
    /// Writes the header in the short form over the first bytes of a whole batch whose records are already in
    /// place. The seqno is below [`COUNT_MAX`].
    pub fn write(&self, batch: &mut [u8], salt: Salt, offset: u64) {
        let (length, place) = match self.form {
            BatchForm::Joined { records_end } => (joined_length_field(self.bytes), records_end),
            _ => (length_field(self.bytes), self.synced),
        };
        batch[4..8].copy_from_slice(&length);
        batch[8..12].copy_from_slice(&place.to_le_bytes());
        batch[12..19].copy_from_slice(&self.first_seqno.0.to_le_bytes()[..7]);
        batch[19..27].copy_from_slice(&self.time_ns.to_le_bytes());
        batch[27..35].copy_from_slice(&self.prev.digest[..8]);
        let crc = salt.crc(offset, &batch[4..]);
        batch[..4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads the fields without checking the crc: they cannot be trusted yet.
    pub fn peek(bytes: &[u8]) -> Result<(u32, Self), CodecError> {
        let mut r = ByteReader::new(bytes, "batch header");
        let (crc, length) = (r.u32()?, r.u32()?);
        if length & SHORT_FORM == 0 {
            let form = BatchForm::Long { records: r.u32()? };
            let (synced, first_seqno, time_ns) = (r.u32()?, Seqno(r.u64()?), r.u64()?);
            let prev = PrevDigest::from(r.array::<16>()?);
            return Ok((crc, Self { bytes: length, form, synced, first_seqno, time_ns, prev }));
        }
        let place = r.u32()?;
        let (form, synced) = match length & JOINED_FORM {
            0 => (BatchForm::Short, place),
            _ => (BatchForm::Joined { records_end: place }, 0),
        };
        let mut seqno = [0; 8];
        seqno[..7].copy_from_slice(&r.array::<7>()?);
        let time_ns = r.u64()?;
        let mut prev = PrevDigest { digest: [0; 16], known: 8 };
        prev.digest[..8].copy_from_slice(&r.array::<8>()?);
        let bytes = length & !(SHORT_FORM | JOINED_FORM);
        let first_seqno = Seqno(u64::from_le_bytes(seqno));
        Ok((crc, Self { bytes, form, synced, first_seqno, time_ns, prev }))
    }

    /// Whether a batch may have this length.
    #[must_use]
    pub fn has_valid_length(&self) -> bool {
        let most = match self.form {
            BatchForm::Long { .. } => LONG_BATCH_BYTES_MAX,
            _ => BATCH_BYTES_MAX,
        };
        let records_end = self.form.header_bytes()..=self.bytes as usize;
        records_end.contains(&self.records_end()) && self.bytes as usize <= most
    }

    /// Where the records end, as an offset in the batch.
    #[must_use]
    pub fn records_end(&self) -> usize {
        match self.form {
            BatchForm::Joined { records_end } => records_end as usize,
            _ => self.bytes as usize,
        }
    }

    /// Bytes of header and table: all but the records.
    #[must_use]
    pub fn own_bytes(&self) -> u64 {
        (self.form.header_bytes() + (self.bytes as usize).saturating_sub(self.records_end())) as u64
    }

    /// Reads and checks a whole batch at the front of `bytes`.
    pub fn check(bytes: &[u8], salt: Salt, offset: u64) -> Result<(Self, &[u8]), CodecError> {
        let (crc, header) = Self::peek(bytes)?;
        let len = header.bytes as usize;
        if !header.has_valid_length() {
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
    chain_digest_of(*blake3::hash(batch).as_bytes())
}

/// The digest of a batch with this BLAKE3 hash: its first half.
pub fn chain_digest_of(hash: [u8; 32]) -> ChainDigest {
    let mut digest = [0; 16];
    digest.copy_from_slice(&hash[..16]);
    digest
}

/// The length of a batch of this many bytes, as a header in the short form holds it.
#[must_use]
pub fn length_field(bytes: u32) -> [u8; 4] {
    (bytes | SHORT_FORM).to_le_bytes()
}

/// The length of joined batches of this many bytes together, as their header holds it.
#[must_use]
pub fn joined_length_field(bytes: u32) -> [u8; 4] {
    (bytes | SHORT_FORM | JOINED_FORM).to_le_bytes()
}

/// The byte that tells kind and layout of a record in the short form. Kinds below 32 have their layout in the two
/// bits after the kind; others have layout 1.
fn record_code(kind: u8, layout: u8) -> u8 {
    if kind & SKIPPABLE == 0 { (kind & 31) | (layout.wrapping_sub(1) & 3) << 5 } else { kind }
}

/// The opposite of [`record_code`].
fn kind_and_layout(code: u8) -> (u8, u8) {
    if code & SKIPPABLE == 0 { (code & 31, 1 + (code >> 5)) } else { (code, 1) }
}

/// Starts a record in `out`; [`seal_record`] and [`stamp_record`] fill in its length and crc.
pub fn start_record(out: &mut Vec<u8>, kind: u8, layout: u8) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.push(record_code(kind, layout));
    start
}

/// Puts the length of the record that ends at the end of `out` before its body.
pub fn seal_record(out: &mut Vec<u8>, start: usize) {
    let (body, end) = (start + CODE_END, out.len());
    // The length counts its own bytes.
    let mut digits = 1;
    while (end - start + digits) >> (7 * digits) != 0 {
        digits += 1;
    }
    let mut left = end - start + digits;
    out.resize(end + digits, 0);
    out.copy_within(body..end, body + digits);
    for (at, byte) in out[body..body + digits].iter_mut().enumerate() {
        #[expect(clippy::cast_possible_truncation, reason = "seven bits")]
        let low = (left & 0x7f) as u8;
        *byte = if at + 1 < digits { low | 0x80 } else { low };
        left >>= 7;
    }
}

/// Changes the layout of a record.
pub fn set_layout(record: &mut [u8], layout: u8) {
    if let Some(code) = record.get_mut(CODE_END - 1) {
        *code = record_code(kind_and_layout(*code).0, layout);
    }
}

/// Writes a record's crc, which depends on the record's offset.
pub fn stamp_record(record: &mut [u8], salt: Salt, offset: u64) {
    let crc = salt.crc(offset, &record[4..]);
    record[..4].copy_from_slice(&crc.to_le_bytes());
}

/// The header of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    pub kind: u8,
    pub layout: u8,
    /// Length of the record, this header included.
    pub bytes: u32,
    /// Length of this header.
    pub header_bytes: usize,
}

impl RecordHeader {
    /// Reads the header of a record in a batch of this form. Checks only that the record is not shorter.
    pub fn peek(bytes: &[u8], form: BatchForm) -> Result<Self, CodecError> {
        let mut r = ByteReader::new(bytes, "record");
        let _crc = r.u32()?;
        let (kind, layout, len) = match form {
            BatchForm::Long { .. } => {
                let len = r.u32()?;
                (r.u8()?, r.u8()?, len)
            }
            _ => {
                let (kind, layout) = kind_and_layout(r.u8()?);
                (kind, layout, r.varint32()?)
            }
        };
        let header_bytes = r.position();
        match len as usize >= header_bytes {
            true => Ok(Self { kind, layout, bytes: len, header_bytes }),
            false => Err(CodecError::Short { what: "record", found: len as usize, needed: header_bytes }),
        }
    }
}

/// Checks the crc of a whole record, which stands at `offset`.
fn check_crc(whole: &[u8], salt: Salt, offset: u64) -> Result<(), CodecError> {
    let crc = whole.first_chunk().map(|crc| u32::from_le_bytes(*crc));
    match whole.get(4..).map(|rest| salt.crc(offset, rest)) == crc {
        true => Ok(()),
        false => Err(CodecError::Header("the record's checksum does not match".into())),
    }
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
    /// A whole record. Its length tells its form: no record has the same length in both.
    pub fn of(whole: &'a [u8]) -> Result<Self, CodecError> {
        let forms = [BatchForm::Short, BatchForm::Long { records: 1 }];
        let mut headers = forms.into_iter().filter_map(|form| RecordHeader::peek(whole, form).ok());
        match headers.find(|header| header.bytes as usize == whole.len()) {
            Some(header) => Ok(Self::with_header(&header, whole)),
            None => Err(CodecError::Header("a record has another length than the index says".into())),
        }
    }

    /// As [`RawRecord::of`]; checks the crc of the record, which stands at `offset`.
    pub fn check_whole(whole: &'a [u8], salt: Salt, offset: u64) -> Result<Self, CodecError> {
        let record = Self::of(whole)?;
        check_crc(whole, salt, offset)?;
        Ok(record)
    }

    /// The record at the front of `bytes`, which stand at `offset` in a batch of this form; checks its crc.
    pub fn check(bytes: &'a [u8], form: BatchForm, salt: Salt, offset: u64) -> Result<Self, CodecError> {
        let (header, whole) = Self::split(bytes, form)?;
        check_crc(whole, salt, offset)?;
        Ok(Self::with_header(&header, whole))
    }

    /// The record at the front of `bytes` by its length alone, unchecked.
    pub fn unchecked(bytes: &'a [u8], form: BatchForm) -> Result<Self, CodecError> {
        let (header, whole) = Self::split(bytes, form)?;
        Ok(Self::with_header(&header, whole))
    }

    fn with_header(header: &RecordHeader, whole: &'a [u8]) -> Self {
        let body = whole.get(header.header_bytes..).unwrap_or_default();
        Self { kind: header.kind, layout: header.layout, body, bytes: header.bytes }
    }

    /// The header of the record at the front of `bytes`, and the whole record.
    fn split(bytes: &'a [u8], form: BatchForm) -> Result<(RecordHeader, &'a [u8]), CodecError> {
        let header = RecordHeader::peek(bytes, form)?;
        let needed = header.bytes as usize;
        let whole = bytes.get(..needed);
        Ok((header, whole.ok_or(CodecError::Short { what: "record", found: bytes.len(), needed })?))
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
