//! The segment that a rewrite writes, from its first byte to its last.

use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ids::{SegmentId, Seqno};
use crate::io::{File, Io, OpenMode};
use crate::log::joined::JoinedTable;
use crate::log::layout::{
    BATCH_BYTES_MAX, BATCH_HEADER_BYTES, BatchForm, BatchHeader, ChainDigest, Salt, SegmentFooter,
    SegmentHeader, chain_digest, stamp_record,
};
use crate::log::record::{LAYOUT, RecordKind};
use crate::log::rewrite::collapse::ErasedStretch;
use crate::log::rewrite::draft::BatchDraft;

/// Bytes written at a time.
const WRITE_BYTES: usize = 1 << 20;

/// Joined batches have fewer bytes of records before the last one. A reader checks them together, and one checksum
/// and one digest stand for all: more would save little (35 bytes for each stretch) and spread damage.
pub const JOINED_BYTES: usize = 32 << 10;

/// Writes a rewritten segment.
pub(super) struct SegmentOutput<'a> {
    file: Arc<dyn File>,
    segment: SegmentId,
    salt: Salt,
    /// Offset of `pending` in the file.
    at: u64,
    pending: Vec<u8>,
    /// Batches that are not in `pending` yet, because others may join them.
    open: Option<OpenBatches>,
    chain: ChainDigest,
    spend: &'a mut dyn FnMut(u64) -> Result<()>,
}

/// Batches being joined.
struct OpenBatches {
    /// Room for the header, then the records of all.
    bytes: Vec<u8>,
    table: JoinedTable,
    first_seqno: Seqno,
    /// Time of the first one.
    time_ns: u64,
}

impl<'a> SegmentOutput<'a> {
    pub(super) fn create(
        io: &dyn Io,
        path: PathBuf,
        header: &SegmentHeader,
        spend: &'a mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Self> {
        let pending = header.encode().map_err(|e| Error::bug(e.to_string()))?;
        let salt = Salt::new(header.store, header.segment);
        let file = io.open(&path, OpenMode::CreateNew)?;
        Ok(Self {
            file,
            segment: header.segment,
            salt,
            at: 0,
            pending,
            open: None,
            chain: header.chain,
            spend,
        })
    }

    pub(super) fn segment(&self) -> SegmentId {
        self.segment
    }

    /// Writes the batches that wait for others; returns the digest of the last one.
    pub(super) fn end_batches(&mut self) -> Result<ChainDigest> {
        self.close_batches()?;
        Ok(self.chain)
    }

    fn end(&self) -> u64 {
        self.at + self.pending.len() as u64
    }

    /// A draft of the next batch, which will have about so many bytes of records.
    pub(super) fn draft(&mut self, record_bytes: usize) -> Result<BatchDraft> {
        // A large batch stands alone, so that joined ones stay far from the limit of a batch.
        if record_bytes >= JOINED_BYTES {
            self.close_batches()?;
        }
        let records = self.open.as_ref().map_or(BATCH_HEADER_BYTES, |open| open.bytes.len());
        u32::try_from(self.end() + records as u64).map(BatchDraft::new).map_err(|_| too_large())
    }

    /// Takes the records that stay of the batch with this first seqno and time.
    pub(super) fn batch(&mut self, mut draft: BatchDraft, first_seqno: Seqno, time_ns: u64) -> Result<()> {
        draft.flush_erased();
        let BatchDraft { mut bytes, starts, .. } = draft;
        let at = self.end();
        let open = self.open.get_or_insert_with(|| OpenBatches {
            bytes: vec![0; BATCH_HEADER_BYTES],
            table: JoinedTable::default(),
            first_seqno,
            time_ns,
        });
        let begins = at + open.bytes.len() as u64;
        let len = open.bytes.len() + bytes.len();
        if len > BATCH_BYTES_MAX || u32::try_from(at + len as u64).is_err() {
            return Err(too_large());
        }
        let ends = starts.iter().skip(1).copied().chain([bytes.len()]);
        for (start, end) in starts.iter().copied().zip(ends.collect::<Vec<_>>()) {
            stamp_record(bytes.get_mut(start..end).unwrap_or_default(), self.salt, begins + start as u64);
        }
        open.table.push(bytes.len() as u64, time_ns);
        open.bytes.append(&mut bytes);
        if open.bytes.len() >= JOINED_BYTES { self.close_batches() } else { Ok(()) }
    }

    fn close_batches(&mut self) -> Result<()> {
        let Some(OpenBatches { mut bytes, table, first_seqno, time_ns }) = self.open.take() else {
            return Ok(());
        };
        let at = self.end();
        let records_end = u32::try_from(bytes.len()).map_err(|_| too_large())?;
        let mut table = table.finish();
        let form = if table.is_empty() { BatchForm::Short } else { BatchForm::Joined { records_end } };
        bytes.append(&mut table);
        let len = u32::try_from(bytes.len()).ok().filter(|len| *len as usize <= BATCH_BYTES_MAX);
        let header = BatchHeader {
            bytes: len.ok_or_else(too_large)?,
            form,
            synced: 0,
            first_seqno,
            time_ns,
            prev: self.chain.into(),
        };
        header.write(&mut bytes, self.salt, at);
        self.chain = chain_digest(&bytes);
        self.pending.append(&mut bytes);
        if self.pending.len() >= WRITE_BYTES { self.flush() } else { Ok(()) }
    }

    /// Writes a batch that replaces erased ones.
    pub(super) fn erased_batches(&mut self, stretch: &ErasedStretch) -> Result<()> {
        let mut draft = self.draft(0)?;
        draft.record(RecordKind::ErasedBatches.code(), LAYOUT, |out| stretch.gone.put(out));
        self.batch(draft, stretch.first_seqno, stretch.time_ns)
    }

    fn flush(&mut self) -> Result<()> {
        (self.spend)(self.pending.len() as u64)?;
        self.file.write_at(&[IoSlice::new(&self.pending)], self.at)?;
        self.at += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Writes the footer and syncs the file; returns its length.
    pub(super) fn seal(mut self, footer: SegmentFooter) -> Result<u64> {
        let footer = SegmentFooter { tail: self.end(), ..footer };
        self.pending.extend(footer.encode(self.salt).map_err(|e| Error::bug(e.to_string()))?);
        self.flush()?;
        self.file.sync()?;
        Ok(self.at)
    }
}

fn too_large() -> Error {
    Error::invalid("these segments together exceed the limit of one segment: rewrite fewer at a time")
}
