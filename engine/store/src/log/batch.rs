//! Builds a batch on the caller's thread: records end to end after space for the header. Once the queue has
//! fixed the batch's place, the caller fills in checksums and sums up the records. The writer fills in the
//! header.

use crate::blob::Anchor;
use crate::codec::{CodecError, put_bytes};
use crate::error::{Error, Result};
use crate::ids::{NamespaceId, RecordPlace, SegmentId, Seqno};
use crate::log::layout::{
    BATCH_BYTES_MAX, BATCH_HEADER_BYTES, ChainDigest, RawRecord, Salt, seal_record, set_layout, stamp_record,
    start_record,
};
use crate::log::leaf_hash::LeafHasher;
use crate::log::record::{GroupPart, LAYOUT, LAYOUT_WITH_KEY, LAYOUT_WITHOUT_SALT, RecordKind};
use crate::log::sums::{BatchSums, SumsBuilder};
use crate::schema::RecordSchema;

/// Initial capacity of a batch.
const BATCH_BYTES: usize = 2048;

/// A batch with a larger capacity is not reused.
const SPARE_BYTES_MAX: usize = 2 << 20;

/// Records on their way to the writer.
#[derive(Debug)]
pub struct BatchBuf {
    pub bytes: Vec<u8>,
    /// Where each record starts in `bytes`.
    pub starts: Vec<u32>,
    /// Where the first logical record starts.
    first_logical: Option<usize>,
    /// Anchors of the new bytes, for comparison with later bodies. The index adds them with the batch.
    pub anchors: Vec<Anchor>,
    /// The namespace of its bodies.
    pub namespace: NamespaceId,
    postings: Postings,
    /// Memory for reuse.
    leaves: LeafHasher,
}

/// The keys that the index adds with a batch; each leads to one of its records.
#[derive(Debug, Default)]
struct Postings {
    /// All keys, end to end.
    keys: Vec<u8>,
    /// Where each key ends, the index's own code for it, and the record it leads to.
    ends: Vec<(u32, u8, u32)>,
}

/// A key that leads to a record of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Posting<'a> {
    pub key: &'a [u8],
    /// The index's own code.
    pub kind: u8,
    pub record: usize,
}

impl BatchBuf {
    /// An empty batch of a namespace.
    pub fn new(namespace: NamespaceId) -> Self {
        let mut bytes = Vec::with_capacity(BATCH_BYTES);
        bytes.resize(BATCH_HEADER_BYTES, 0);
        Self {
            bytes,
            starts: Vec::new(),
            first_logical: None,
            anchors: Vec::new(),
            namespace,
            postings: Postings::default(),
            leaves: LeafHasher::default(),
        }
    }

    /// Empties the batch and keeps its capacity; `None` if that exceeds the limit for reuse.
    pub fn into_spare(mut self) -> Option<Self> {
        if self.bytes.capacity() > SPARE_BYTES_MAX {
            return None;
        }
        self.bytes.truncate(BATCH_HEADER_BYTES);
        self.bytes.fill(0);
        self.starts.clear();
        self.first_logical = None;
        self.anchors.clear();
        self.postings.keys.clear();
        self.postings.ends.clear();
        Some(self)
    }

    /// Reserves space for this many bytes of records.
    pub fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve(bytes);
    }

    /// Bytes of memory for records.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Whether the next logical record needs no salt: it follows from the first one's.
    pub fn derives_salts(&self) -> bool {
        self.first_logical.is_some()
    }

    /// Appends a logical record. The first one stores `salt`. From the second on, `salt` is not used: the first
    /// one's becomes the key of all salts of the batch.
    pub fn push_logical(&mut self, kind: RecordKind, salt: [u8; 16], head: &[u8], tail: &[u8]) -> Result<()> {
        let layout = if self.derives_salts() { LAYOUT_WITHOUT_SALT } else { LAYOUT };
        let start = start_record(&mut self.bytes, kind.code(), layout);
        if layout == LAYOUT {
            self.bytes.extend_from_slice(&salt);
        }
        put_bytes(&mut self.bytes, head);
        self.bytes.extend_from_slice(tail);
        self.finish_record(start)?;
        match self.first_logical {
            None => self.first_logical = Some(start),
            Some(first) => {
                set_layout(self.bytes.get_mut(first..).unwrap_or_default(), LAYOUT_WITH_KEY);
            }
        }
        Ok(())
    }

    /// Appends a group part; returns its offset in the batch and its length.
    pub fn push_group_part(&mut self, part: &GroupPart<'_>) -> Result<(u32, u32)> {
        let start = start_record(&mut self.bytes, RecordKind::GroupPart.code(), LAYOUT);
        part.put(&mut self.bytes);
        self.finish_record(start)?;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "`finish_record` refuses over BATCH_BYTES_MAX bytes"
        )]
        let place = (start as u32, (self.bytes.len() - start) as u32);
        Ok(place)
    }

    /// Adds a key that leads to the last record.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a record's keys are hardly longer than the record, and a batch has at most BATCH_BYTES_MAX bytes"
    )]
    pub fn add_posting(&mut self, key: &[u8], kind: u8) {
        self.postings.keys.extend_from_slice(key);
        let record = self.starts.len().saturating_sub(1) as u32;
        self.postings.ends.push((self.postings.keys.len() as u32, kind, record));
    }

    /// The keys and their records, in the order of the records.
    pub fn postings(&self) -> impl Iterator<Item = Posting<'_>> {
        let mut start = 0;
        self.postings.ends.iter().map(move |(end, kind, record)| {
            let key = self.postings.keys.get(start..*end as usize).unwrap_or_default();
            start = *end as usize;
            Posting { key, kind: *kind, record: *record as usize }
        })
    }

    fn finish_record(&mut self, start: usize) -> Result<()> {
        seal_record(&mut self.bytes, start);
        if self.bytes.len() > BATCH_BYTES_MAX {
            self.bytes.truncate(start);
            return Err(Error::invalid(format!(
                "the batch exceeds the limit of {BATCH_BYTES_MAX} stored bytes: commit in smaller batches"
            )));
        }
        #[expect(clippy::cast_possible_truncation, reason = "the batch has at most BATCH_BYTES_MAX bytes")]
        let begins = start as u32;
        self.starts.push(begins);
        Ok(())
    }

    /// Fills in the record checksums, which depend on the batch's place, and sums up the records. The sums are complete
    /// after [`BatchBuf::digest`].
    pub fn stamp_and_sum(
        &mut self,
        schema: &dyn RecordSchema,
        salt: Salt,
        offset: u64,
        first_seqno: Seqno,
    ) -> std::result::Result<BatchSums, CodecError> {
        let Self { bytes, starts, leaves, .. } = self;
        let mut sums = SumsBuilder::new(schema, leaves);
        let len = bytes.len();
        for (index, start) in starts.iter().enumerate() {
            let start = *start as usize;
            let end = starts.get(index + 1).map_or(len, |next| *next as usize);
            let record = bytes.get_mut(start..end).unwrap_or_default();
            stamp_record(record, salt, offset + start as u64);
            sums.add_record(Seqno(first_seqno.0 + index as u64), &RawRecord::of(record)?)?;
        }
        Ok(sums.finish_before_digest(len))
    }

    /// The digest of the batch, whose header is written. Completes its sums.
    pub fn digest(&mut self, sums: &mut BatchSums) -> ChainDigest {
        sums.digest_batch(&self.bytes, &mut self.leaves)
    }

    /// The place of record `index` once the batch is at `offset`.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the queue gives only places that end within 32 bits of a segment"
    )]
    pub fn record_place(&self, index: usize, segment: SegmentId, offset: u64) -> RecordPlace {
        let start = self.starts[index];
        let end = self.starts.get(index + 1).copied().unwrap_or(self.bytes.len() as u32);
        RecordPlace { segment, offset: offset as u32 + start, len: end - start }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::{AnchorKey, GroupId};

    #[test]
    fn spare_batch_is_empty_and_not_too_large() {
        let with_room = |bytes: usize| {
            let mut batch = BatchBuf { bytes: Vec::with_capacity(bytes), ..BatchBuf::new(NamespaceId(1)) };
            batch.bytes.resize(BATCH_HEADER_BYTES, 7);
            batch.push_logical(RecordKind::Delete, [1; 16], b"head", b"tail").unwrap();
            batch.add_posting(b"key", 3);
            batch.anchors.push(Anchor { key: AnchorKey(1), group: GroupId(1), offset: 0 });
            assert_eq!(batch.bytes.capacity(), bytes);
            batch.into_spare()
        };
        assert!(with_room(SPARE_BYTES_MAX + 1).is_none());
        let batch = with_room(SPARE_BYTES_MAX).unwrap();
        assert_eq!(
            (batch.bytes.as_slice(), batch.bytes.capacity()),
            (&[0; BATCH_HEADER_BYTES][..], SPARE_BYTES_MAX)
        );
        assert!(batch.is_empty() && batch.anchors.is_empty() && batch.postings().next().is_none());
        assert!(batch.postings.keys.is_empty());
    }

    #[test]
    fn postings_lead_to_their_records() {
        let mut batch = BatchBuf::new(NamespaceId(1));
        batch.push_logical(RecordKind::Delete, [1; 16], b"one", b"").unwrap();
        batch.add_posting(b"a", 1);
        batch.add_posting(b"", 2);
        batch.push_logical(RecordKind::Delete, [1; 16], b"second", b"t").unwrap();
        batch.add_posting(b"bcd", 1);
        let posted: Vec<_> = batch.postings().map(|one| (one.key.to_vec(), one.kind, one.record)).collect();
        assert_eq!(posted, [(b"a".to_vec(), 1, 0), (vec![], 2, 0), (b"bcd".to_vec(), 1, 1)]);
        // Header, salt of the first record, length, head, tail.
        let lens = [6 + 16 + 1 + 3, 6 + 1 + 6 + 1];
        let place = |index| batch.record_place(index, SegmentId(4), 1000);
        assert_eq!(place(0), RecordPlace { segment: SegmentId(4), offset: 1035, len: lens[0] });
        assert_eq!(place(1), RecordPlace { segment: SegmentId(4), offset: 1035 + lens[0], len: lens[1] });
    }
}
