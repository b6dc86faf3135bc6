//! Building a batch on the caller's thread: records end to end behind room for the header. Offsets, seqnos and
//! checksums are not known yet; the writer stamps them.

use crate::blob::Anchor;
use crate::codec::put_bytes;
use crate::error::{Error, Result};
use crate::ids::{NamespaceId, Place, SegmentId};
use crate::log::layout::{BATCH_BYTES_MAX, BATCH_HEADER_BYTES, seal_record, start_record};
use crate::log::record::{GroupPart, Kind, LAYOUT};

/// Records on their way to the writer.
#[derive(Debug)]
pub(crate) struct BatchBuf {
    pub(crate) bytes: Vec<u8>,
    /// Where each record starts in `bytes`.
    pub(crate) starts: Vec<u32>,
    /// What of the new bytes later bodies may be compared with; the index takes it in with the batch.
    pub(crate) anchors: Vec<Anchor>,
    /// The namespace of its bodies.
    pub(crate) namespace: NamespaceId,
}

impl BatchBuf {
    /// An empty batch of a namespace.
    pub(crate) fn new(namespace: NamespaceId) -> Self {
        Self { bytes: vec![0; BATCH_HEADER_BYTES], starts: Vec::new(), anchors: Vec::new(), namespace }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Appends a logical record.
    pub(crate) fn logical(&mut self, kind: Kind, salt: [u8; 16], head: &[u8], tail: &[u8]) -> Result<()> {
        let start = start_record(&mut self.bytes, kind as u8, LAYOUT);
        self.bytes.extend_from_slice(&salt);
        put_bytes(&mut self.bytes, head);
        self.bytes.extend_from_slice(tail);
        self.seal(start)
    }

    /// Appends a group part and says where in the batch it stands and how long it is.
    pub(crate) fn group_part(&mut self, part: &GroupPart<'_>) -> Result<(u32, u32)> {
        let start = start_record(&mut self.bytes, Kind::GroupPart as u8, LAYOUT);
        part.put(&mut self.bytes);
        self.seal(start)?;
        Ok((start as u32, (self.bytes.len() - start) as u32))
    }

    fn seal(&mut self, start: usize) -> Result<()> {
        if self.bytes.len() > BATCH_BYTES_MAX {
            self.bytes.truncate(start);
            return Err(Error::invalid(format!(
                "a batch may have {BATCH_BYTES_MAX} bytes as stored; commit in smaller parts"
            )));
        }
        seal_record(&mut self.bytes, start);
        self.starts.push(start as u32);
        Ok(())
    }

    /// Where record `index` will stand once the batch stands at `offset`.
    pub(crate) fn place(&self, index: usize, segment: SegmentId, offset: u64) -> Place {
        let start = self.starts[index];
        let end = self.starts.get(index + 1).copied().unwrap_or(self.bytes.len() as u32);
        Place { segment, offset: offset as u32 + start, len: end - start }
    }
}
