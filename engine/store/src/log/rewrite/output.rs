//! The segment that a rewrite writes, from its first byte to its last.

use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ids::{SegmentId, Seqno};
use crate::io::{File, Io, OpenMode};
use crate::log::layout::{
    BATCH_BYTES_MAX, BatchForm, BatchHeader, ChainDigest, Salt, SegmentFooter, SegmentHeader, chain_digest,
    stamp_record,
};
use crate::log::record::{LAYOUT, RecordKind};
use crate::log::rewrite::collapse::ErasedStretch;
use crate::log::rewrite::draft::BatchDraft;

/// Bytes written at a time.
const WRITE_BYTES: usize = 1 << 20;

/// Writes a rewritten segment.
pub(super) struct SegmentOutput<'a> {
    file: Arc<dyn File>,
    segment: SegmentId,
    salt: Salt,
    /// Offset of `pending` in the file.
    at: u64,
    pending: Vec<u8>,
    chain: ChainDigest,
    spend: &'a mut dyn FnMut(u64) -> Result<()>,
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
        Ok(Self { file, segment: header.segment, salt, at: 0, pending, chain: header.chain, spend })
    }

    pub(super) fn segment(&self) -> SegmentId {
        self.segment
    }

    /// Digest of the last batch written.
    pub(super) fn chain(&self) -> ChainDigest {
        self.chain
    }

    fn end(&self) -> u64 {
        self.at + self.pending.len() as u64
    }

    /// Offset of the next batch.
    pub(super) fn next_offset(&self) -> Result<u32> {
        u32::try_from(self.end()).map_err(|_| too_large())
    }

    /// Writes the records that stay of the batch with this first seqno and time.
    pub(super) fn batch(&mut self, mut draft: BatchDraft, first_seqno: Seqno, time_ns: u64) -> Result<()> {
        draft.flush_erased();
        let BatchDraft { mut bytes, starts, .. } = draft;
        let at = self.end();
        if bytes.len() > BATCH_BYTES_MAX || u32::try_from(at + bytes.len() as u64).is_err() {
            return Err(too_large());
        }
        let ends = starts.iter().skip(1).copied().chain([bytes.len()]);
        for (start, end) in starts.iter().copied().zip(ends.collect::<Vec<_>>()) {
            stamp_record(bytes.get_mut(start..end).unwrap_or_default(), self.salt, at + start as u64);
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most BATCH_BYTES_MAX: checked above")]
        let header = BatchHeader {
            bytes: bytes.len() as u32,
            form: BatchForm::Short,
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
        let mut draft = BatchDraft::new(self.next_offset()?);
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
