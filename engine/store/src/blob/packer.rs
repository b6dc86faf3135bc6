//! Packs bodies into groups.
//!
//! A packer belongs to one namespace and one writing handle. It holds at most one open group of each codec.
//! Its state advances when its batch is queued: if a batch fails or is dropped, drop the packer. Flushed
//! parts stay valid, unflushed bytes are lost, and their group ids are never reused.

use std::ops::Range;
use std::sync::Arc;

use super::group::{self, EncodedPart, GroupWriter};
use super::recipe::push_extent;
use super::{
    Anchor, AnchorSeed, BODY_BYTES_MAX, BlobError, BodyPlan, Codec, Extent, GROUP_BYTES_MAX, GroupId,
    PlanStep,
};

/// A group with less room than this is closed, rather than filled with another sliver of a region.
const ROOM_MIN: usize = 256;

/// The result of packing a body.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PackedExtents {
    /// The extents that make the body.
    pub extents: Vec<Extent>,
    /// Anchors of the new bytes. They may go to the index at once: anchors of a dropped batch name bytes that
    /// no group holds, and are misses.
    pub anchors: Vec<Anchor>,
}

/// The open groups of one handle.
pub struct Packer {
    seed: AnchorSeed,
    zstd: Option<GroupWriter>,
    raw: Option<GroupWriter>,
    /// Parts of the groups that became full since the last flush.
    finished_parts: Vec<EncodedPart>,
    /// Raw bytes of those groups, until the caller takes them.
    full_groups: Vec<(GroupId, Arc<Vec<u8>>)>,
}

impl Packer {
    /// A packer without open groups.
    #[must_use]
    pub fn new(seed: AnchorSeed) -> Self {
        Self { seed, zstd: None, raw: None, finished_parts: Vec::new(), full_groups: Vec::new() }
    }

    /// The key of its namespace's anchors.
    #[must_use]
    pub fn seed(&self) -> AnchorSeed {
        self.seed
    }

    /// Packs a body's new ranges into groups and returns the extents of the whole body.
    ///
    /// `plan` comes from [`super::plan`] on the same bytes. `next_group` returns a fresh id each time. New bytes
    /// stay raw if they do not compress, and also with `raw`.
    ///
    /// # Errors
    /// [`BlobError::BodyTooLong`] and [`BlobError::PlanMismatch`] before anything changes. After
    /// [`BlobError::Zstd`] the caller must drop the packer.
    pub fn put(
        &mut self,
        body: &[u8],
        plan: &BodyPlan,
        raw: bool,
        next_group: &mut dyn FnMut() -> GroupId,
    ) -> Result<PackedExtents, BlobError> {
        let len = body.len() as u64;
        if len > BODY_BYTES_MAX {
            return Err(BlobError::BodyTooLong { found: len, most: BODY_BYTES_MAX });
        }
        check_cover(body.len(), &plan.steps)?;
        let mut packed = PackedExtents::default();
        for step in &plan.steps {
            match step {
                PlanStep::Old(extent) => push_extent(&mut packed.extents, *extent),
                PlanStep::New(range) => {
                    let region = body.get(range.clone()).unwrap_or_default();
                    let codec =
                        if raw || group::is_incompressible(region) { Codec::Raw } else { Codec::Zstd };
                    self.put_region(body, range.clone(), plan, codec, next_group, &mut packed)?
                }
            }
        }
        Ok(packed)
    }

    fn put_region(
        &mut self,
        body: &[u8],
        mut range: Range<usize>,
        plan: &BodyPlan,
        codec: Codec,
        next_group: &mut dyn FnMut() -> GroupId,
        packed: &mut PackedExtents,
    ) -> Result<(), BlobError> {
        while !range.is_empty() {
            let writer = self.writer_for(codec, range.len(), next_group)?;
            let now = range.start..range.end.min(range.start + writer.room());
            range.start = now.end;
            let bytes = body.get(now.clone()).unwrap_or_default();
            let extent = writer.append(bytes, plan.window_ends_in(now), &mut packed.anchors)?;
            push_extent(&mut packed.extents, extent);
        }
        Ok(())
    }

    /// The open group of a codec; closes a group first that is too full for `len` bytes.
    fn writer_for(
        &mut self,
        codec: Codec,
        len: usize,
        next_group: &mut dyn FnMut() -> GroupId,
    ) -> Result<&mut GroupWriter, BlobError> {
        let slot = match codec {
            Codec::Zstd => &mut self.zstd,
            Codec::Raw => &mut self.raw,
        };
        if let Some(mut full) = slot.take_if(|w| w.room() < len.min(ROOM_MIN)) {
            self.finished_parts.extend(full.flush()?);
            self.full_groups.push((full.id(), full.raw()));
        }
        match slot {
            Some(writer) => Ok(writer),
            None => Ok(slot.insert(GroupWriter::new(next_group(), codec, self.seed)?)),
        }
    }

    /// The raw bytes of a group that is open, or that became full and was not yet taken.
    ///
    /// [`super::EarlierBytes::group`] asks the packer first. Drop the result before the next [`Self::put`],
    /// which otherwise copies the group.
    #[must_use]
    pub fn group(&self, id: GroupId) -> Option<Arc<Vec<u8>>> {
        let open = [&self.zstd, &self.raw].into_iter().flatten();
        open.filter(|w| w.id() == id).map(GroupWriter::raw).next().or_else(|| {
            self.full_groups.iter().find(|(filled, _)| *filled == id).map(|(_, raw)| Arc::clone(raw))
        })
    }

    /// The ids of the open groups: only these can get further parts.
    #[must_use]
    pub fn open_groups(&self) -> Vec<u64> {
        [&self.zstd, &self.raw].into_iter().flatten().map(|writer| writer.id().0).collect()
    }

    /// Encodes all pending bytes: the parts to store with the batch, in the order of their groups' raw bytes.
    ///
    /// # Errors
    /// [`BlobError::Zstd`]; the caller must then drop the packer.
    pub fn flush(&mut self) -> Result<Vec<EncodedPart>, BlobError> {
        let mut parts = std::mem::take(&mut self.finished_parts);
        for writer in [&mut self.zstd, &mut self.raw].into_iter().flatten() {
            parts.extend(writer.flush()?);
        }
        Ok(parts)
    }

    /// Takes the full groups. Call it after [`Self::flush`]; the log then has their parts.
    pub fn take_full_groups(&mut self) -> Vec<(GroupId, Arc<Vec<u8>>)> {
        std::mem::take(&mut self.full_groups)
    }
}

impl std::fmt::Debug for Packer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packer").field("open", &self.open_groups()).finish_non_exhaustive()
    }
}

/// Checks that the steps cover `len` bytes in order.
fn check_cover(len: usize, steps: &[PlanStep]) -> Result<(), BlobError> {
    let mut at = 0usize;
    for step in steps {
        at = match step {
            PlanStep::Old(e) if e.len > 0 && e.end() as usize <= GROUP_BYTES_MAX => {
                at.saturating_add(e.len as usize)
            }
            PlanStep::New(range) if range.start == at && range.end > at && range.end <= len => range.end,
            _ => return Err(BlobError::PlanMismatch { expected: len, found: at }),
        };
    }
    if at == len { Ok(()) } else { Err(BlobError::PlanMismatch { expected: len, found: at }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn old(offset: usize, len: usize) -> PlanStep {
        PlanStep::Old(Extent {
            group: GroupId(1),
            offset: u32::try_from(offset).unwrap(),
            len: u32::try_from(len).unwrap(),
        })
    }

    #[test]
    fn plan_must_cover_body_in_order_with_valid_extents() {
        let max = GROUP_BYTES_MAX;
        let good = [
            (0, vec![]),
            (4, vec![PlanStep::New(0..4)]),
            (4, vec![old(0, 4)]),
            (9, vec![old(0, 4), PlanStep::New(4..7), old(9, 2)]),
            (max, vec![old(0, max)]),
            (1, vec![old(max - 1, 1)]),
        ];
        for (len, steps) in good {
            assert!(check_cover(len, &steps).is_ok(), "{steps:?}");
        }
        let bad = [
            (1, vec![]),
            (4, vec![PlanStep::New(0..3)]),
            (4, vec![PlanStep::New(0..5)]),
            (4, vec![PlanStep::New(1..4)]),
            (4, vec![PlanStep::New(0..0), PlanStep::New(0..4)]),
            (4, vec![old(0, 0), PlanStep::New(0..4)]),
            (4, vec![PlanStep::New(0..4), PlanStep::New(4..4)]),
            (4, vec![PlanStep::New(0..4), old(0, 1)]),
            (4, vec![PlanStep::New(0..2), PlanStep::New(1..4)]),
            (max + 1, vec![old(0, max + 1)]),
            (2, vec![old(max - 1, 2)]),
        ];
        for (len, steps) in bad {
            assert!(check_cover(len, &steps).is_err(), "{steps:?}");
        }
    }

    /// Bytes that do not compress.
    fn noise(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        blake3::Hasher::new().finalize_xof().fill(&mut bytes);
        bytes
    }

    #[test]
    fn packer_returns_open_and_full_groups_and_leaves_slivers() {
        let mut packer = Packer::new(AnchorSeed(1));
        let mut last = 0;
        let mut next = || {
            last += 1;
            GroupId(last)
        };
        let mut put = |packer: &mut Packer, body: &[u8]| {
            let steps = if body.is_empty() { vec![] } else { vec![PlanStep::New(0..body.len())] };
            let packed = packer.put(body, &steps.into(), false, &mut next).unwrap().extents;
            packed.iter().map(|e| (e.group.0, e.offset as usize, e.len as usize)).collect::<Vec<_>>()
        };
        let noise = noise(GROUP_BYTES_MAX);
        assert_eq!(put(&mut packer, b"words"), [(1, 0, 5)]);
        assert_eq!(put(&mut packer, &noise[..GROUP_BYTES_MAX - 256]), [(2, 0, GROUP_BYTES_MAX - 256)]);
        assert_eq!(put(&mut packer, b"more"), [(1, 5, 4)]);
        assert_eq!(packer.open_groups(), [1, 2]);
        assert_eq!(packer.group(GroupId(1)).unwrap().as_slice(), b"wordsmore");
        assert!(packer.group(GroupId(2)).unwrap().as_slice() == &noise[..GROUP_BYTES_MAX - 256]);
        assert_eq!(packer.group(GroupId(3)), None);
        // Group 2 has exactly the minimum room left; the append fills it.
        assert_eq!(put(&mut packer, &noise[..5000]), [(2, GROUP_BYTES_MAX - 256, 256), (3, 0, 4744)]);
        assert_eq!(packer.open_groups(), [1, 3]);
        assert_eq!(packer.group(GroupId(2)).unwrap().len(), GROUP_BYTES_MAX);
        let lens: Vec<_> =
            packer.flush().unwrap().iter().map(|part| (part.group.0, part.raw_len as usize)).collect();
        assert_eq!(lens, [(2, GROUP_BYTES_MAX), (1, 9), (3, 4744)]);
        assert_eq!(packer.take_full_groups().len(), 1);
        assert_eq!(packer.group(GroupId(2)), None);
        assert!(packer.flush().unwrap().is_empty() && packer.take_full_groups().is_empty());
        // One byte less than the minimum room is a sliver.
        let fill = GROUP_BYTES_MAX - 4744 - 255;
        assert_eq!(put(&mut packer, &noise[..fill]), [(3, 4744, fill)]);
        assert_eq!(put(&mut packer, &noise[..5000]), [(4, 0, 5000)]);
        assert_eq!(packer.take_full_groups().len(), 1);
    }
}
