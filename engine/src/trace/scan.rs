//! Reads a run's frames in order. The cost of a frame is that of the bytes that differ from the frame before.
//!
//! A body usually repeats most of the previous body of its lane. A scan keeps the last large body of each
//! lane, with its extents and its hash tree. Of the next body it fetches only the ranges with other extents,
//! and hashes only the blocks that contain such a range.
//!
//! Invariant: every returned body is a copy of bytes that this scan has hashed in memory. A range that is
//! kept was hashed when it was fetched, under the same chaining value. Nothing that another reader checked is
//! trusted.
//!
//! Left out on purpose: bodies whose bytes moved. Their blocks differ, so they are hashed whole.

use std::ops::Range;
use std::sync::Arc;

use crate::blob::{BLOCK_BYTES, Extent, TreeHash};
use crate::codec::index;
use crate::error::Result;
use crate::ids::{BlobId, Link, RecordedId};
use crate::trace::chain;
use crate::trace::frame_cache::{FrameCache, FrameRecord};
use crate::trace::frames::{BodyLocation, ReadBody};
use crate::trace::lanes::BodySlot;
use crate::trace::reader::{RecordedFrame, RunReader, UnlinkedBodies};
use annals_store::kv::bodies::{self, HashCheck};
use annals_store::kv::groups::{DecodeScope, group_for_extent};

/// A body larger than this is not kept for the next one, in bytes.
const KEPT_BYTES_MAX: u64 = 16 << 20;
/// Maximum bytes of all kept bodies.
const KEPT_TOTAL_MAX: usize = 64 << 20;
/// Maximum number of lanes kept.
const LANES_MAX: usize = 16;

/// Whether the bytes of a frame's input and output are returned, or only checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyOutput {
    Returned,
    CheckedOnly,
}

/// A frame that was checked.
#[derive(Debug)]
pub(super) struct ScannedFrame {
    /// Without input and output if they were only checked.
    pub(super) frame: RecordedFrame,
    /// Bytes of its bodies.
    pub(super) bytes: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct FrameScan {
    reader: RunReader,
    next: u32,
    last: u32,
    link: Link,
    /// Least recently used first.
    lanes: Vec<ScanLane>,
}

/// The last body of a lane.
#[derive(Debug)]
struct ScanLane {
    component: (u8, Option<String>),
    slot: BodySlot,
    bytes: Vec<u8>,
    extents: Arc<Vec<Extent>>,
    hash: Option<TreeHash>,
}

impl FrameScan {
    /// Scans frames `first ..= last`. The link before frame `first` is taken as recorded.
    pub(super) fn new(reader: &RunReader, first: u32, last: u32) -> Result<Self> {
        // An own cache: records are read anew, and do not evict cached records that other readers need.
        let reader = RunReader { known: Arc::new(FrameCache::new()), ..reader.clone() };
        let link = reader.link_at(first.saturating_sub(1))?;
        Ok(Self { reader, next: first, last, link, lanes: Vec::new() })
    }

    /// Scans all frames.
    pub(super) fn all_frames(reader: &RunReader) -> Self {
        let last = reader.info.frames;
        let reader = RunReader { known: Arc::new(FrameCache::new()), ..reader.clone() };
        Self { reader, next: 1, last, link: chain::genesis(), lanes: Vec::new() }
    }

    /// The link after the last frame that was read.
    pub(super) fn link(&self) -> Link {
        self.link
    }

    /// The next frame, if there is one.
    pub(super) fn next(&mut self, handing: BodyOutput) -> Option<Result<ScannedFrame>> {
        if self.next > self.last {
            return None;
        }
        let seq = self.next;
        self.next += 1;
        let scanned = self.read(seq, handing);
        match &scanned {
            Ok(scanned) => self.link = scanned.frame.link,
            Err(_) => self.next = u32::MAX,
        }
        Some(scanned)
    }

    fn read(&mut self, seq: u32, handing: BodyOutput) -> Result<ScannedFrame> {
        let record = self.reader.record(seq)?;
        let input = self.body(seq, &record, BodySlot::Input, handing)?;
        let output = match record.head.open {
            true => ReadBody::from_bytes(self.reader.arrived_output(seq)?),
            false => self.body(seq, &record, BodySlot::Output, handing)?,
        };
        let metadata = self.body(seq, &record, BodySlot::Metadata, BodyOutput::Returned)?;
        let bytes = input.len + output.len + metadata.len;
        let bodies = UnlinkedBodies { input, output, metadata };
        Ok(ScannedFrame { frame: self.reader.checked_frame(seq, &record, &self.link, bodies)?, bytes })
    }

    fn body(
        &mut self,
        seq: u32,
        record: &Arc<FrameRecord>,
        slot: BodySlot,
        handing: BodyOutput,
    ) -> Result<ReadBody> {
        let (extents, len, id) = match self.reader.find_body(seq, record, slot)? {
            BodyLocation::Inline(bytes) => return Ok(ReadBody::from_bytes(bytes)),
            BodyLocation::Blob { extents, len, id, .. } => (extents, len, id),
        };
        let RunReader { core, namespace, hashing, .. } = &self.reader;
        // A body of one block has no hash tree, and a body that is not hashed needs none.
        if len <= BLOCK_BYTES as u64 || len > KEPT_BYTES_MAX || *hashing == HashCheck::Skipped {
            let (bytes, id) =
                bodies::read_body_with(core, *namespace, &extents, (len, id), DecodeScope::Whole, *hashing)?;
            return Ok(ReadBody { bytes, len, id });
        }
        bodies::check_len(&extents, len, id)?;
        // After an error the lane is not put back, so a wrong body is never compared with.
        let mut lane = self.take_lane(record, slot);
        let id = Some(lane.load_next(&self.reader, extents, index(len), id)?);
        let bytes = match handing {
            BodyOutput::Returned => lane.bytes.clone(),
            BodyOutput::CheckedOnly => Vec::new(),
        };
        self.put_lane(lane);
        Ok(ReadBody { bytes, len, id })
    }

    fn take_lane(&mut self, record: &FrameRecord, slot: BodySlot) -> ScanLane {
        let head = &record.head;
        let is_it = |lane: &ScanLane| {
            lane.slot == slot && lane.component.0 == head.component && lane.component.1 == head.other
        };
        match self.lanes.iter().position(is_it) {
            Some(at) => self.lanes.remove(at),
            None => ScanLane {
                component: (head.component, head.other.clone()),
                slot,
                bytes: Vec::new(),
                extents: Arc::default(),
                hash: None,
            },
        }
    }

    fn put_lane(&mut self, lane: ScanLane) {
        self.lanes.push(lane);
        let mut total: usize = self.lanes.iter().map(|lane| lane.bytes.capacity()).sum();
        while self.lanes.len() > LANES_MAX || (total > KEPT_TOTAL_MAX && self.lanes.len() > 1) {
            total -= self.lanes.remove(0).bytes.capacity();
        }
    }
}

impl ScanLane {
    /// Replaces the lane's body by that of `extents`, which must hash to `id`. Returns the whole id.
    fn load_next(
        &mut self,
        reader: &RunReader,
        extents: Arc<Vec<Extent>>,
        len: usize,
        id: RecordedId,
    ) -> Result<BlobId> {
        let (same, changed) = compare_extents(&self.extents, &extents);
        self.bytes.resize(len, 0);
        let mut group = None;
        // Last range first: two threads that begin at different frames then rarely wait for the same group to
        // be decoded.
        for (at, piece) in changed.iter().rev() {
            let range = piece.offset as usize..piece.end() as usize;
            let raw = match group.take() {
                Some((known, raw)) if known == piece.group => raw,
                _ => group_for_extent(&reader.core, reader.namespace, piece, &extents, DecodeScope::Whole)?,
            };
            // The bytes fetched for one range may end before the next range ends.
            let raw = match raw.len() >= range.end {
                true => raw,
                false => {
                    group_for_extent(&reader.core, reader.namespace, piece, &extents, DecodeScope::Whole)?
                }
            };
            let from = raw.get(range).ok_or_else(|| bodies::hash_mismatch(id))?;
            let to = self.bytes.get_mut(*at..*at + from.len()).ok_or_else(|| bodies::hash_mismatch(id))?;
            to.copy_from_slice(from);
            group = Some((piece.group, raw));
        }
        let hash = match &self.hash {
            Some(known) => TreeHash::with_previous(&self.bytes, known, same),
            None => TreeHash::of(&self.bytes),
        };
        let found = hash.id();
        if !id.fits(found) {
            return Err(bodies::hash_mismatch(id));
        }
        self.extents = extents;
        self.hash = Some(hash);
        Ok(found)
    }
}

/// Compares the extents of two bodies. Returns the ranges of the new body that have the same extent at the
/// same offset of the old one, ascending; and the extents of all other ranges, each with its offset in the
/// new body.
fn compare_extents(old: &[Extent], new: &[Extent]) -> (Vec<Range<usize>>, Vec<(usize, Extent)>) {
    let (mut same, mut changed): (Vec<Range<usize>>, Vec<(usize, Extent)>) = (Vec::new(), Vec::new());
    // The current extent of the old body, and its offset there.
    let mut old = old.iter();
    let mut before: Option<(usize, &Extent)> = old.next().map(|first| (0, first));
    let mut at = 0;
    for extent in new {
        let mut left = *extent;
        while left.len > 0 {
            while let Some((start, known)) = before
                && start + known.len as usize <= at
            {
                before = old.next().map(|next| (start + known.len as usize, next));
            }
            let (len, is_same) = match before {
                None => (left.len, false),
                Some((start, known)) => {
                    // Bytes of the old extent that lie before `at`.
                    #[expect(
                        clippy::cast_possible_truncation,
                        reason = "`at` is in the old extent, of 32 bits"
                    )]
                    let behind = (at - start) as u32;
                    let len = left.len.min(known.len - behind);
                    (len, known.group == left.group && known.offset.checked_add(behind) == Some(left.offset))
                }
            };
            let end = at + len as usize;
            match (is_same, same.last_mut(), changed.last_mut()) {
                (true, Some(last), _) if last.end == at => last.end = end,
                (true, _, _) => same.push(at..end),
                (false, _, Some((start, last)))
                    if *start + last.len as usize == at && last.is_followed_by(&left) =>
                {
                    last.len += len;
                }
                (false, _, _) => changed.push((at, Extent { len, ..left })),
            }
            left = Extent { offset: left.offset.saturating_add(len), len: left.len - len, ..left };
            at = end;
        }
    }
    (same, changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::GroupId;
    use crate::io::sim::SimIo;
    use crate::{Component, ErrorKind, Frame, Options, RunSpec, Store};

    fn numbers(mut state: u64) -> impl FnMut(u64) -> u64 {
        move |below| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        }
    }

    #[test]
    fn compared_extents_cover_the_new_body_once() {
        let mut next = numbers(9);
        // Each byte is represented by its group and offset, so that different bytes of the log are never
        // equal.
        let bytes = |extents: &[Extent]| -> Vec<(u64, u32)> {
            extents.iter().flat_map(|e| (e.offset..e.end()).map(|at| (e.group.0, at))).collect()
        };
        for round in 0..20_000 {
            let mut body = |count| -> Vec<Extent> {
                let mut one = |_| {
                    let (group, offset) = (GroupId(next(2)), next(6) as u32);
                    Extent { group, offset, len: 1 + next(5) as u32 }
                };
                (0..count).map(&mut one).collect()
            };
            let (old, mut new) = (body(round % 7), body(round % 5));
            if round % 2 == 0 {
                new.splice(0..0, old.iter().copied().take(3));
            }
            let (same, changed) = compare_extents(&old, &new);
            let (old, new) = (bytes(&old), bytes(&new));
            let mut made = vec![None; new.len()];
            for range in &same {
                assert!(!range.is_empty());
                for at in range.clone() {
                    assert!(made[at].replace(old[at]).is_none(), "covered twice");
                }
            }
            assert!(same.is_sorted_by(|a, b| a.end < b.start), "{same:?}");
            for (at, extent) in &changed {
                for (at, byte) in (*at..).zip(bytes(&[*extent])) {
                    assert!(made[at].replace(byte).is_none(), "covered twice");
                    assert!(old.get(at) != Some(&byte), "fetched although it is in memory");
                }
            }
            assert!(made.into_iter().eq(new.into_iter().map(Some)), "round {round}");
        }
    }

    #[test]
    fn body_with_wrong_id_is_refused_after_any_other() {
        let io = Arc::new(SimIo::new(1));
        let store = Store::open_with("s", Options { io, ..Options::default() }).unwrap();
        let space = store.namespace("default").unwrap();
        let run = space.begin_run(RunSpec::new("r")).unwrap();
        let (mut next, mut body) = (numbers(4), Vec::new());
        for _ in 0..12 {
            body.extend((0..9000).map(|_| b'a' + next(20) as u8));
            run.record(Frame::new(Component::Llm, body.clone(), "")).unwrap();
        }
        let reader = space.run("r").unwrap();
        let found = |seq| match reader.find_body(seq, &reader.record(seq).unwrap(), BodySlot::Input).unwrap()
        {
            BodyLocation::Blob { extents, len, id, .. } => (extents, len as usize, id),
            BodyLocation::Inline(_) => unreachable!("it is large"),
        };
        for wrong in 2..=11u32 {
            let mut scan = FrameScan::all_frames(&reader);
            let mut lane = scan.take_lane(&reader.record(1).unwrap(), BodySlot::Input);
            for seq in 1..wrong {
                let (extents, len, id) = found(seq);
                lane.load_next(&reader, extents, len, id).unwrap();
            }
            let ((extents, len, _), (_, _, id)) = (found(wrong), found(wrong + 1));
            assert_eq!(lane.load_next(&reader, extents, len, id).unwrap_err().kind(), ErrorKind::Damaged);
        }
    }
}
