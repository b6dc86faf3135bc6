//! A segment of group parts that a test builds by hand, so that it can hold what no writer writes.

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

use crate::ids::{NamespaceId, RecordPlace, SegmentId, StoreId};
use crate::io::sim::SimIo;
use crate::io::{Io, OpenMode};
use crate::log::layout::{SEGMENT_HEADER_BYTES, Salt, seal_record, stamp_record, start_record};
use crate::log::record::{GroupPart, LAYOUT, RecordKind};
use crate::log::segments::Segment;

pub(crate) const STORE: StoreId = StoreId([7; 16]);
pub(crate) const SEGMENT: SegmentId = SegmentId(3);
pub(crate) const SPACE: NamespaceId = NamespaceId(16);

/// The first part of group 1, stored raw.
pub(crate) fn first_part(encoded: &[u8]) -> GroupPart<'_> {
    GroupPart {
        group: 1,
        namespace: SPACE,
        raw_start: 0,
        raw_len: u32::try_from(encoded.len()).unwrap(),
        codec: 0,
        before_offset: 0,
        before_len: 0,
        encoded,
    }
}

/// The part after `part`, which is at `place`.
pub(crate) fn next_part<'a>(part: &GroupPart<'_>, place: RecordPlace, encoded: &'a [u8]) -> GroupPart<'a> {
    let (before_offset, before_len) = (place.offset, place.len);
    GroupPart { raw_start: part.raw_start + part.raw_len, before_offset, before_len, ..first_part(encoded) }
}

/// The bytes of a segment, record after record.
pub(crate) struct TestSegment {
    bytes: Vec<u8>,
}

impl TestSegment {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; SEGMENT_HEADER_BYTES as usize] }
    }

    pub(crate) fn put(&mut self, part: &GroupPart<'_>) -> RecordPlace {
        self.put_as(RecordKind::GroupPart, part)
    }

    pub(crate) fn put_as(&mut self, kind: RecordKind, part: &GroupPart<'_>) -> RecordPlace {
        let mut record = Vec::new();
        let start = start_record(&mut record, kind.code(), LAYOUT);
        part.put(&mut record);
        seal_record(&mut record, start);
        let offset = self.bytes.len();
        stamp_record(&mut record, Salt::new(STORE, SEGMENT), offset as u64);
        self.bytes.extend_from_slice(&record);
        let place = |n: usize| u32::try_from(n).unwrap();
        RecordPlace { segment: SEGMENT, offset: place(offset), len: place(record.len()) }
    }

    pub(crate) fn pad_to(&mut self, offset: usize) {
        self.bytes.resize(offset, 0);
    }

    pub(crate) fn segment(&self) -> Arc<Segment> {
        let sim = SimIo::new(1);
        let file = sim.open(Path::new("seg"), OpenMode::CreateNew).unwrap();
        file.write_at(&[IoSlice::new(&self.bytes)], 0).unwrap();
        Arc::new(Segment::new(STORE, SEGMENT, "seg".into(), file))
    }
}
