//! A batch in the bytes of a segment. In a rewritten segment, several batches may be *joined*: they share one
//! header, one checksum and one digest, and a table tells them apart.
//!
//! ```text
//! joined = header (its `synced` is the end of the records) | record* | table
//! table  = (bytes varint | time signed varint)*
//! ```
//! The table has an entry for each batch but the last: the bytes of its records, and the time of the next batch
//! less its own. The last batch has the other records. docs/format.md has an example.

use std::ops::Range;

use crate::codec::{ByteReader, CodecError, put_signed, put_varint};
use crate::ids::Seqno;
use crate::log::layout::{BatchForm, BatchHeader, ChainDigest, PrevDigest, Salt, chain_digest};
use crate::log::ledger::LedgerNode;

/// A batch of the log. Its checksum was verified, unless [`crate::log::cursor::LogCursor::next_unchecked`]
/// returned it.
#[derive(Debug, Clone)]
pub struct LogBatch<'a> {
    /// Offset of `whole` in the segment.
    pub offset: u64,
    /// The batch, with those that are joined with it.
    pub whole: &'a [u8],
    /// Its header; of a batch that has none of its own, what the table says.
    pub header: BatchHeader,
    /// Its contribution to the ledger: its leaf, or a subtree for erased batches. Set by the scan
    /// after it has accounted for the batch; `None` if the batch contributes nothing.
    pub node: Option<LedgerNode>,
    records: Range<usize>,
    /// The batches joined with it that follow.
    after: Option<JoinedRest>,
}

/// Where the next of joined batches begins in their bytes.
#[derive(Debug, Clone, Copy)]
pub struct JoinedRest {
    records: usize,
    records_end: usize,
    table: usize,
    /// Time of the batch before.
    time_ns: u64,
    /// What the table said of the time of the next one.
    step_ns: i64,
}

impl<'a> LogBatch<'a> {
    /// The first batch in these bytes, which stand at `offset`. Checks the table of joined batches, and no checksum.
    ///
    /// # Errors
    /// For an impossible header or table; for joined batches in a segment that was not rewritten.
    pub fn of(whole: &'a [u8], offset: u64, salt: Salt) -> Result<Self, CodecError> {
        let (_, header) = BatchHeader::peek(whole)?;
        let BatchForm::Joined { records_end } = header.form else {
            let records = header.form.header_bytes()..whole.len();
            return Ok(Self { offset, whole, header, node: None, records, after: None });
        };
        if !salt.is_rewritten {
            let found = u64::from(records_end);
            return Err(CodecError::Unknown { what: "joined batches in a segment as written", found });
        }
        let (records, records_end) = (header.form.header_bytes(), records_end as usize);
        let before =
            JoinedRest { records, records_end, table: records_end, time_ns: header.time_ns, step_ns: 0 };
        let (records, after) = before.split_first(whole)?;
        let mut left = after;
        while let Some(rest) = left {
            left = rest.split_first(whole)?.1;
        }
        Ok(Self { offset, whole, header, node: None, records, after })
    }

    /// The batch joined with this one that follows it. `first_seqno` is the seqno after this batch's records.
    ///
    /// # Errors
    /// None, if `whole` is what [`LogBatch::of`] got.
    pub fn joined(&self, first_seqno: Seqno) -> Result<Option<Self>, CodecError> {
        self.after.map(|rest| rest.batch(self.whole, self.offset, first_seqno)).transpose()
    }

    /// What follows it of joined batches.
    #[must_use]
    pub fn rest(&self) -> Option<JoinedRest> {
        self.after
    }

    /// The batch's records in `whole`.
    #[must_use]
    pub fn records(&self) -> Range<usize> {
        self.records.clone()
    }

    /// Offset after the batch; `None` if another one is joined with it.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        self.after.is_none().then(|| self.offset + self.whole.len() as u64)
    }

    /// The chain digest after the batch, if this is the one before.
    #[must_use]
    pub fn digest_after(&self, before: ChainDigest) -> ChainDigest {
        if self.header.form == BatchForm::Inner { before } else { chain_digest(self.whole) }
    }
}

impl JoinedRest {
    /// The first batch of this rest.
    ///
    /// # Errors
    /// For another `whole` than the one that this is of.
    pub fn batch(self, whole: &[u8], offset: u64, first_seqno: Seqno) -> Result<LogBatch<'_>, CodecError> {
        let (records, after) = self.split_first(whole)?;
        let header = BatchHeader {
            bytes: 0,
            form: BatchForm::Inner,
            synced: 0,
            first_seqno,
            time_ns: self.time_ns.wrapping_add_signed(self.step_ns),
            prev: PrevDigest::unknown(),
        };
        Ok(LogBatch { offset, whole, header, node: None, records, after })
    }

    /// The records of the first batch, and what follows it.
    fn split_first(self, whole: &[u8]) -> Result<(Range<usize>, Option<Self>), CodecError> {
        let Self { records, records_end, table, .. } = self;
        let wrong = || CodecError::Header("the table of joined batches does not fit their records".into());
        let entries = whole.get(table..).ok_or_else(wrong)?;
        if entries.is_empty() {
            return if records < records_end { Ok((records..records_end, None)) } else { Err(wrong()) };
        }
        let mut reader = ByteReader::new(entries, "table of joined batches");
        let bytes = usize::try_from(reader.varint()?).map_err(|_| wrong())?;
        let step_ns = reader.signed()?;
        let end =
            records.checked_add(bytes).filter(|end| bytes > 0 && *end < records_end).ok_or_else(wrong)?;
        let time_ns = self.time_ns.wrapping_add_signed(self.step_ns);
        let table = table + reader.position();
        Ok((records..end, Some(Self { records: end, records_end, table, time_ns, step_ns })))
    }
}

/// Batches being joined.
#[derive(Debug, Default)]
pub struct JoinedTable {
    bytes: Vec<u8>,
    /// Bytes of the last batch's records, and its time.
    last: Option<(u64, u64)>,
}

impl JoinedTable {
    /// Adds a batch with so many bytes of records.
    pub fn push(&mut self, bytes: u64, time_ns: u64) {
        if let Some((before, before_ns)) = self.last.replace((bytes, time_ns)) {
            put_varint(&mut self.bytes, before);
            put_signed(&mut self.bytes, time_ns.wrapping_sub(before_ns).cast_signed());
        }
    }

    /// The table; empty for a single batch.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}
