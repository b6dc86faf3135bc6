//! The live data: one bit for every 11 bytes of a segment, and the ranges of each group that are still
//! referenced.
//!
//! No two logical records begin in the same 11-byte cell: the shortest has 11 bytes (a snapshot of an empty state,
//! without a salt). The bits take 1/88 of the log's size.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

use crate::blob::{Extent, GroupId};
use crate::ids::{RecordPlace, SegmentId};

/// Bytes of a segment that share a bit.
const CELL_BYTES: u32 = 11;
/// A group's ranges are sorted and merged when more than this many unsorted ones have been added.
const LOOSE_RANGES_MAX: usize = 64;

/// A set of records of one segment, by offset.
#[derive(Debug, Clone, Default)]
pub(super) struct RecordBits(Vec<u64>);

impl RecordBits {
    fn spot(offset: u32) -> (usize, u64) {
        let cell = offset / CELL_BYTES;
        (cell as usize / 64, 1 << (cell % 64))
    }

    pub(super) fn set(&mut self, offset: u32) {
        let (word, bit) = Self::spot(offset);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        if let Some(word) = self.0.get_mut(word) {
            *word |= bit;
        }
    }

    pub(super) fn contains(&self, offset: u32) -> bool {
        let (word, bit) = Self::spot(offset);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }
}

/// Ranges of a group's raw bytes.
#[derive(Debug, Clone, Default)]
pub(super) struct ByteRanges {
    all: Vec<Range<u32>>,
    /// The number of ranges that were ascending and disjoint after the last merge.
    tidy: usize,
}

impl ByteRanges {
    fn add(&mut self, range: Range<u32>) {
        // Bodies are packed one after the other, so most ranges touch the previous one.
        match self.all.last_mut() {
            Some(last) if last.start <= range.start && range.start <= last.end => {
                last.end = last.end.max(range.end);
            }
            _ => self.all.push(range),
        }
        if self.all.len() > 2 * self.tidy + LOOSE_RANGES_MAX {
            self.merge();
        }
    }

    /// Sorts the ranges and merges those that touch or overlap.
    fn merge(&mut self) {
        self.all.sort_unstable_by_key(|range| range.start);
        self.all.dedup_by(|next, last| {
            let meet = next.start <= last.end;
            if meet {
                last.end = last.end.max(next.end);
            }
            meet
        });
        self.tidy = self.all.len();
    }

    /// The total number of bytes. The ranges must be merged first.
    fn bytes(&self) -> u64 {
        self.all.iter().map(|range| u64::from(range.end - range.start)).sum()
    }
}

/// The live records and group ranges of the store.
#[derive(Debug, Default)]
pub(super) struct LiveRecords {
    records: HashMap<SegmentId, RecordBits>,
    /// Ends (deletions) of keys and runs. They are needed only while an older record could bring back the
    /// ended thing.
    ends: HashMap<SegmentId, RecordBits>,
    groups: HashMap<GroupId, ByteRanges>,
}

impl LiveRecords {
    /// Marks the record at `place` as live.
    pub(super) fn keep(&mut self, place: RecordPlace) {
        self.records.entry(place.segment).or_default().set(place.offset);
    }

    /// Marks the end at `place` as live, unless everything before it is dropped in the same compaction.
    pub(super) fn keep_end(&mut self, place: RecordPlace) {
        self.keep(place);
        self.ends.entry(place.segment).or_default().set(place.offset);
    }

    pub(super) fn add_extents(&mut self, extents: &[Extent]) {
        for extent in extents {
            self.groups.entry(extent.group).or_default().add(extent.offset..extent.end());
        }
    }

    /// Moves out the marks of one segment; `put_back` returns them.
    pub(super) fn take(&mut self, segment: SegmentId) -> Self {
        let records = self.records.remove_entry(&segment).into_iter().collect();
        let ends = self.ends.remove_entry(&segment).into_iter().collect();
        Self { records, ends, groups: HashMap::new() }
    }

    /// Merges back the marks that `take` moved out, with what was added to them.
    pub(super) fn put_back(&mut self, taken: Self) {
        self.records.extend(taken.records);
        self.ends.extend(taken.ends);
        for (group, ranges) in taken.groups {
            match self.groups.entry(group) {
                Entry::Vacant(room) => drop(room.insert(ranges)),
                Entry::Occupied(mut there) => {
                    ranges.all.into_iter().for_each(|range| there.get_mut().add(range));
                }
            }
        }
    }

    /// Sorts and merges the ranges of all groups. Call it after all extents are added.
    pub(super) fn sort_ranges(&mut self) {
        self.groups.values_mut().for_each(ByteRanges::merge);
    }

    pub(super) fn has_record(&self, segment: SegmentId, offset: u32) -> bool {
        self.records.get(&segment).is_some_and(|cells| cells.contains(offset))
    }

    /// Whether the record is live only as an end.
    pub(super) fn is_end(&self, segment: SegmentId, offset: u32) -> bool {
        self.ends.get(&segment).is_some_and(|cells| cells.contains(offset))
    }

    /// Drops the ends of a segment.
    pub(super) fn drop_ends(&mut self, segment: SegmentId) {
        let (Some(ends), Some(records)) = (self.ends.remove(&segment), self.records.get_mut(&segment)) else {
            return;
        };
        for (word, ends) in records.0.iter_mut().zip(ends.0) {
            *word &= !ends;
        }
    }

    /// The referenced ranges of a group, ascending and disjoint.
    pub(super) fn group_ranges(&self, group: GroupId) -> &[Range<u32>] {
        self.groups.get(&group).map_or(&[], |ranges| &ranges.all)
    }

    pub(super) fn group_bytes(&self, group: GroupId) -> u64 {
        self.groups.get(&group).map_or(0, ByteRanges::bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{NamespaceId, RunUid};
    use crate::log::batch::BatchBuf;
    use crate::log::record::BodyRef;
    use crate::trace::heads::SnapshotHead;
    use crate::trace::kinds;

    #[test]
    fn ranges_are_ascending_and_disjoint_in_any_input_order() {
        let mut live = LiveRecords::default();
        let mut bytes = vec![false; 5000];
        let mut state = 7u64;
        for _ in 0..3000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (offset, len) = ((state >> 33) as u32 % 4900, 1 + (state >> 50) as u32 % 3);
            bytes[offset as usize..(offset + len) as usize].fill(true);
            live.add_extents(&[Extent { group: GroupId(3), offset, len }]);
        }
        live.sort_ranges();
        let ranges = live.group_ranges(GroupId(3));
        assert!(ranges.is_sorted_by(|a, b| a.end < b.start), "{ranges:?}");
        let named: Vec<bool> = (0..5000).map(|at| ranges.iter().any(|range| range.contains(&at))).collect();
        assert_eq!(named, bytes);
        assert_eq!(live.group_bytes(GroupId(3)), bytes.iter().filter(|named| **named).count() as u64);
        assert!(live.group_ranges(GroupId(4)).is_empty() && live.group_bytes(GroupId(4)) == 0);
    }

    /// Once the second record of a batch stored no salt, the shortest was shorter than a cell, which had 16 bytes. A
    /// dead one shared its cell with the live record after it, and compaction kept it.
    #[test]
    fn shortest_records_have_cells_of_their_own() {
        let state = BodyRef::Inline(Vec::new());
        let snapshot = SnapshotHead { run: RunUid(1), seq: 1, state, embeddings: Vec::new() }.encode();
        let mut batch = BatchBuf::new(NamespaceId(16));
        for _ in 0..40 {
            batch.push_logical(kinds::SNAPSHOT, [7; 16], &snapshot, &[]).unwrap();
        }
        let mut live = LiveRecords::default();
        let places: Vec<RecordPlace> =
            (1..40).map(|index| batch.record_place(index, SegmentId(1), 96)).collect();
        assert_eq!(places[0].len, CELL_BYTES);
        places.iter().step_by(2).for_each(|place| live.keep(*place));
        let lives: Vec<bool> =
            places.iter().map(|place| live.has_record(SegmentId(1), place.offset)).collect();
        assert_eq!(lives, (1..40).map(|index| index % 2 == 1).collect::<Vec<_>>());
    }

    #[test]
    fn ends_go_with_their_segment_and_records_stay() {
        let place = |segment, offset| RecordPlace { segment: SegmentId(segment), offset, len: 30 };
        let mut live = LiveRecords::default();
        live.keep(place(1, 96));
        live.keep_end(place(1, 126));
        live.keep_end(place(2, 96));
        live.drop_ends(SegmentId(1));
        let lives = |segment, offset| live.has_record(SegmentId(segment), offset);
        assert!(lives(1, 96) && !lives(1, 126) && lives(2, 96) && !lives(3, 96) && !lives(1, 1 << 30));
        assert!(!live.is_end(SegmentId(1), 126) && live.is_end(SegmentId(2), 96));
    }
}
