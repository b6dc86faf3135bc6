//! Splits a body into ranges of earlier bytes and new ranges.
//!
//! The run's previous body is compared first ([`super::compare`]). The rest is looked up by anchors; each hit
//! is checked against the group's raw bytes and extended both ways. Bytes that the comparison covers are not
//! hashed.

use std::ops::Range;
use std::sync::Arc;

use super::anchor::{self, AnchorScanner};
use super::compare::{self, CommonRange};
use super::{ANCHOR_WINDOW_BYTES, AnchorKey, AnchorSeed, EXTENTS_MAX, Extent, GroupId, LaneBody, TreeHash};
use crate::ids::BlobId;

/// Shortest repeat that becomes an extent of its own, in bytes.
///
/// Zstandard's own context stores a shorter repeat at less cost than the recipes of later bodies would. An
/// extent is coded again each time a later body's base does not contain it.
pub(crate) const MATCH_BYTES_MIN: usize = 192;

/// Past this many steps the rest of the plan is new, so that the recipe of the packed body can be decoded.
const STEPS_MAX: usize = EXTENTS_MAX / 4;

/// Ends of windows are kept for packing unless there are more than one for so many bytes, as in a run of one byte.
const SELECTED_SPACING_BYTES_MIN: usize = 16;

/// Source of earlier bytes while planning; the store implements it.
pub trait EarlierBytes {
    /// The key of the namespace's anchors.
    fn seed(&self) -> AnchorSeed;

    /// Where the window with this key was seen. It may be stale or wrong, because each hit is verified.
    fn anchor(&self, key: AnchorKey) -> Option<(GroupId, u32)>;

    /// The decoded raw bytes of a group so far. `None` if they are not available, which counts as a miss.
    fn group(&self, id: GroupId) -> Option<Arc<Vec<u8>>>;
}

/// A body compared with the previous one in its lane; only the differing blocks are hashed.
#[derive(Debug)]
pub struct ComparedBody<'a> {
    bytes: &'a [u8],
    /// The bytes, if they were handed over.
    owned: Option<&'a Arc<Vec<u8>>>,
    previous: Option<&'a LaneBody>,
    same: Vec<CommonRange>,
    hash: TreeHash,
}

/// What a comparison found, without the previous body, which can then be changed.
#[derive(Debug)]
pub struct Comparison {
    owned: Option<Arc<Vec<u8>>>,
    same: Vec<CommonRange>,
    hash: TreeHash,
}

impl<'a> ComparedBody<'a> {
    /// Compares `bytes` with `previous`, the previous body in the same lane of the run.
    #[must_use]
    pub fn new(bytes: &'a Arc<Vec<u8>>, previous: Option<&'a LaneBody>) -> Self {
        Self { owned: Some(bytes), ..Self::lent(bytes, previous) }
    }

    /// As [`ComparedBody::new`], of bytes that their owner keeps.
    #[must_use]
    pub fn lent(bytes: &'a [u8], previous: Option<&'a LaneBody>) -> Self {
        let same = previous.map(|before| {
            compare::compare(bytes, &before.bytes, MATCH_BYTES_MIN, compare::RESYNC_BYTES_BESIDE_ANCHORS)
        });
        let same = same.unwrap_or_default();
        let hash = match previous {
            Some(before) => {
                let in_place = same.iter().filter(|same| same.new == same.old);
                TreeHash::with_previous(
                    bytes,
                    &before.hash,
                    in_place.map(|same| same.new..same.new + same.len),
                )
            }
            None => TreeHash::of(bytes),
        };
        Self { bytes, owned: None, previous, same, hash }
    }

    /// BLAKE3 of the body.
    #[must_use]
    pub fn id(&self) -> BlobId {
        self.hash.id()
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The ranges that the previous body contains; `None` without a previous body.
    #[must_use]
    pub fn previous_match(&self) -> Option<PreviousMatch<'_>> {
        self.previous.map(|body| PreviousMatch { body, same: &self.same })
    }

    /// The body that the next one is compared with.
    #[must_use]
    pub fn into_body(self, extents: Arc<Vec<Extent>>) -> LaneBody {
        let bytes = self.bytes;
        self.detach().into_body(bytes, None, extents)
    }

    /// Lets the previous body go.
    #[must_use]
    pub fn detach(self) -> Comparison {
        Comparison { owned: self.owned.cloned(), same: self.same, hash: self.hash }
    }
}

impl Comparison {
    /// The body that the next one is compared with; `bytes` are those that were compared. If they were only
    /// lent, `previous`, the body that they were compared with, is changed into them.
    #[must_use]
    pub fn into_body(self, bytes: &[u8], previous: Option<LaneBody>, extents: Arc<Vec<Extent>>) -> LaneBody {
        let bytes = self.owned.unwrap_or_else(|| Arc::new(patched(previous, bytes, &self.same)));
        LaneBody { bytes, extents, hash: Arc::new(self.hash) }
    }
}

/// The memory of `before` with the bytes of `new`: ranges that are the same in the same place are not copied.
fn patched(before: Option<LaneBody>, new: &[u8], same: &[CommonRange]) -> Vec<u8> {
    // A body that something else still reads is not changed.
    let Some(mut bytes) = before.and_then(|body| Arc::try_unwrap(body.bytes).ok()) else {
        return new.to_vec();
    };
    let mut at = 0;
    for range in same.iter().take_while(|range| range.new == range.old) {
        bytes[at..range.new].copy_from_slice(&new[at..range.new]);
        at = range.new + range.len;
    }
    bytes.truncate(at);
    bytes.extend_from_slice(&new[at..]);
    bytes
}

/// The previous body and its ranges that equal the new body.
#[derive(Clone, Copy, Debug)]
pub struct PreviousMatch<'a> {
    body: &'a LaneBody,
    same: &'a [CommonRange],
}

/// One range of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PlanStep {
    /// Earlier bytes.
    Old(Extent),
    /// A range of the body that no earlier bytes contain.
    New(Range<usize>),
}

/// A body's old and new ranges, in order; they cover it exactly. No two `New` steps are neighbours.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BodyPlan {
    pub steps: Vec<PlanStep>,
    /// Where anchor windows within the new ranges end, in ascending order, counted from the body's start. `None` if
    /// they are not known.
    window_ends: Option<Vec<usize>>,
}

impl From<Vec<PlanStep>> for BodyPlan {
    fn from(steps: Vec<PlanStep>) -> Self {
        Self { steps, window_ends: None }
    }
}

impl BodyPlan {
    /// Number of bytes in new ranges.
    #[must_use]
    pub fn new_bytes(&self) -> usize {
        let new = |step: &PlanStep| match step {
            PlanStep::New(range) => range.len(),
            PlanStep::Old(_) => 0,
        };
        self.steps.iter().map(new).sum()
    }

    /// The ends of the anchor windows that lie within a part of a new range, counted from the part's start.
    pub(super) fn window_ends_in(&self, part: Range<usize>) -> Option<impl Iterator<Item = usize>> {
        let ends = self.window_ends.as_deref()?;
        let first = part.start + ANCHOR_WINDOW_BYTES;
        let inside = ends[ends.partition_point(|end| *end < first)..].iter();
        Some(inside.take_while(move |end| **end <= part.end).map(move |end| end - part.start))
    }
}

/// Splits a body into old and new ranges. `before` comes from [`ComparedBody`].
#[must_use]
pub fn plan(new: &[u8], before: Option<PreviousMatch<'_>>, earlier: &dyn EarlierBytes) -> BodyPlan {
    let mut planner = BodyPlanner {
        new,
        earlier,
        steps: Vec::new(),
        window_ends: Vec::new(),
        has_all_ends: true,
        groups: Vec::new(),
        lookups_left: group_lookups_max(new),
    };
    let mut at = 0;
    if let Some(PreviousMatch { body, same }) = before {
        let sliced = ExtentSlices::new(&body.extents, body.bytes.len());
        for same in same {
            if !sliced.contains(same) || planner.steps.len() + sliced.extent_count_max(same) > STEPS_MAX {
                continue;
            }
            planner.plan_range(at..same.new);
            sliced.push(same, &mut planner.steps);
            at = same.new + same.len;
        }
    }
    planner.plan_range(at..new.len());
    BodyPlan { steps: planner.steps, window_ends: planner.has_all_ends.then_some(planner.window_ends) }
}

/// Maximum number of groups that one plan may ask for; each may have to be decoded.
fn group_lookups_max(new: &[u8]) -> usize {
    8 + new.len() / 4096
}

struct BodyPlanner<'a> {
    new: &'a [u8],
    earlier: &'a dyn EarlierBytes,
    steps: Vec<PlanStep>,
    /// See [`BodyPlan`]. Not complete unless `has_all_ends`.
    window_ends: Vec<usize>,
    has_all_ends: bool,
    /// Groups asked for so far; `None` if not available.
    groups: Vec<(GroupId, Option<Arc<Vec<u8>>>)>,
    lookups_left: usize,
}

impl BodyPlanner<'_> {
    /// Plans a range that the previous body does not contain.
    fn plan_range(&mut self, range: Range<usize>) {
        let mut done = range.start;
        if range.len() >= ANCHOR_WINDOW_BYTES {
            let windows = self.find_windows(range.clone());
            for start in windows {
                if start < done || self.steps.len() > STEPS_MAX {
                    continue;
                }
                if let Some((at, extent)) = self.look_up_anchor(start, done..range.end) {
                    self.push_new(done..at);
                    self.steps.push(PlanStep::Old(extent));
                    done = at + extent.len as usize;
                }
            }
        }
        self.push_new(done..range.end);
    }

    /// Where the anchor windows of a range begin. Keeps the ends of all selected windows.
    fn find_windows(&mut self, range: Range<usize>) -> Vec<usize> {
        let bytes = &self.new[range.clone()];
        let mut ends = std::mem::take(&mut self.window_ends);
        let (known, ends_max) = (ends.len(), self.new.len() / SELECTED_SPACING_BYTES_MIN + 1);
        anchor::selections(0, bytes, |end| {
            if end >= ANCHOR_WINDOW_BYTES && ends.len() < ends_max {
                ends.push(range.start + end);
            }
        });
        let mut windows = Vec::new();
        let mut found = |start| windows.push(range.start + start);
        if self.has_all_ends && ends.len() < ends_max {
            let own = ends[known..].iter().map(|end| end - range.start);
            AnchorScanner::default().scan_known(bytes, own, &mut found);
        } else {
            self.has_all_ends = false;
            AnchorScanner::default().scan(bytes, &mut found);
        }
        self.window_ends = ends;
        windows
    }

    fn push_new(&mut self, range: Range<usize>) {
        match self.steps.last_mut() {
            Some(PlanStep::New(last)) if last.end == range.start => {
                // Windows across the border were not looked for.
                self.has_all_ends &= range.is_empty();
                last.end = range.end;
            }
            _ if !range.is_empty() => self.steps.push(PlanStep::New(range)),
            _ => {}
        }
    }

    /// Looks up the window at `start`; a verified hit is extended within `bounds` of the body.
    fn look_up_anchor(&mut self, start: usize, bounds: Range<usize>) -> Option<(usize, Extent)> {
        let new = self.new;
        let window = new.get(start..start + ANCHOR_WINDOW_BYTES)?;
        let (id, offset) = self.earlier.anchor(anchor::key_of(window, self.earlier.seed()))?;
        let group = self.group(id)?;
        let offset = offset as usize;
        if group.get(offset..offset + ANCHOR_WINDOW_BYTES)? != window {
            return None;
        }
        let back = compare::common_tail(&new[bounds.start..start], &group[..offset]);
        let ahead = compare::common_front(&new[start..bounds.end], &group[offset..]);
        let len = back + ahead;
        if len < MATCH_BYTES_MIN {
            return None;
        }
        let (offset, len) = (u32::try_from(offset - back).ok()?, u32::try_from(len).ok()?);
        Some((start - back, Extent { group: id, offset, len }))
    }

    fn group(&mut self, id: GroupId) -> Option<Arc<Vec<u8>>> {
        if let Some((_, known)) = self.groups.iter().rev().find(|(of, _)| *of == id) {
            return known.clone();
        }
        self.lookups_left = self.lookups_left.checked_sub(1)?;
        let found = self.earlier.group(id);
        self.groups.push((id, found.clone()));
        found
    }
}

/// Cuts byte ranges out of a body's extents.
struct ExtentSlices<'a> {
    extents: &'a [Extent],
    starts: Vec<usize>,
    total: usize,
}

impl<'a> ExtentSlices<'a> {
    /// Extents that do not make `expected` bytes contain nothing: a wrong previous body only costs space.
    fn new(extents: &'a [Extent], expected: usize) -> Self {
        let mut at = 0usize;
        let mut starts = Vec::with_capacity(extents.len());
        for e in extents {
            starts.push(at);
            at = at.saturating_add(e.len as usize);
        }
        Self { extents, starts, total: if at == expected { at } else { 0 } }
    }

    fn contains(&self, same: &CommonRange) -> bool {
        same.len > 0 && same.old + same.len <= self.total
    }

    /// Maximum number of extents that a range touches.
    fn extent_count_max(&self, same: &CommonRange) -> usize {
        let before = |at: usize| self.starts.partition_point(|&start| start <= at);
        before(same.old + same.len) - before(same.old) + 1
    }

    fn push(&self, same: &CommonRange, steps: &mut Vec<PlanStep>) {
        let mut index = self.starts.partition_point(|&start| start <= same.old).saturating_sub(1);
        let (mut at, end) = (same.old, same.old + same.len);
        while at < end {
            let (Some(e), Some(start)) = (self.extents.get(index), self.starts.get(index)) else { break };
            let skip = at - start;
            let len = (e.len as usize - skip).min(end - at);
            let (Ok(skip), Ok(piece)) = (u32::try_from(skip), u32::try_from(len)) else { break };
            if piece > 0 {
                steps.push(PlanStep::Old(Extent { group: e.group, offset: e.offset + skip, len: piece }));
            }
            at += len;
            index += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Edits anywhere, and a body that shrinks or grows.
        #[test]
        fn previous_body_patched_in_place_has_the_lent_bytes(
            old in prop::collection::vec(0u8..3, 0..20_000),
            edits in prop::collection::vec(
                (0usize..20_000, 0usize..700, prop::collection::vec(any::<u8>(), 0..700)), 0..4,
            ),
            is_shared in any::<bool>(),
        ) {
            let mut new = old.clone();
            for (at, cut, put) in edits {
                let at = at.min(new.len());
                let end = (at + cut).min(new.len());
                new.splice(at..end, put);
            }
            let previous = ComparedBody::lent(&old, None).into_body(Arc::default());
            let shared = is_shared.then(|| previous.clone());
            let comparison = ComparedBody::lent(&new, Some(&previous)).detach();
            let body = comparison.into_body(&new, Some(previous), Arc::default());
            prop_assert_eq!(body.hash.id(), BlobId::of(&new));
            prop_assert!(*body.bytes == new);
            prop_assert!(shared.is_none_or(|shared| *shared.bytes == old));
        }
    }

    #[test]
    fn plan_may_look_up_eight_groups_and_one_per_page() {
        for (len, looks) in [(0, 8), (4095, 8), (4096, 9), (8191, 9), (8192, 10), (409_600, 108)] {
            assert_eq!(group_lookups_max(&vec![0; len]), looks, "{len} bytes");
        }
    }

    fn extents() -> Vec<Extent> {
        let e = |group, offset, len| Extent { group: GroupId(group), offset, len };
        vec![e(1, 100, 10), e(1, 200, 20), e(2, 0, 5)]
    }

    #[test]
    fn body_range_is_sliced_from_its_extents() {
        let all = extents();
        let sliced = ExtentSlices::new(&all, 35);
        let cut = |old: usize, len: usize| {
            let same = CommonRange { new: 0, old, len };
            if !sliced.contains(&same) {
                return None;
            }
            let mut steps = Vec::new();
            sliced.push(&same, &mut steps);
            assert!(steps.len() <= sliced.extent_count_max(&same), "{old} {len}");
            let whole = |step: &PlanStep| match step {
                PlanStep::Old(e) => (e.group.0, e.offset, e.len),
                PlanStep::New(_) => (0, 0, 0),
            };
            Some(steps.iter().map(whole).collect::<Vec<_>>())
        };
        assert_eq!(cut(0, 35), Some(vec![(1, 100, 10), (1, 200, 20), (2, 0, 5)]));
        assert_eq!(cut(0, 10), Some(vec![(1, 100, 10)]));
        assert_eq!(cut(10, 1), Some(vec![(1, 200, 1)]));
        assert_eq!(cut(9, 2), Some(vec![(1, 109, 1), (1, 200, 1)]));
        assert_eq!(cut(29, 6), Some(vec![(1, 219, 1), (2, 0, 5)]));
        assert_eq!(cut(34, 1), Some(vec![(2, 4, 1)]));
        assert_eq!(cut(34, 2), None, "past the end");
        assert_eq!(cut(5, 0), None, "no bytes");
        let count = |old, len| sliced.extent_count_max(&CommonRange { new: 0, old, len });
        assert_eq!([count(0, 5), count(0, 35), count(9, 2), count(12, 3)], [1, 3, 2, 1]);
        // Extents of another length contain nothing.
        assert!(!ExtentSlices::new(&all, 34).contains(&CommonRange { new: 0, old: 0, len: 1 }));
    }

    /// Records the group ids it is asked for.
    struct CountingSource(std::cell::RefCell<Vec<u64>>);

    impl EarlierBytes for CountingSource {
        fn seed(&self) -> AnchorSeed {
            AnchorSeed(1)
        }
        fn anchor(&self, key: AnchorKey) -> Option<(GroupId, u32)> {
            Some((GroupId(key.0), 0))
        }
        fn group(&self, id: GroupId) -> Option<Arc<Vec<u8>>> {
            self.0.borrow_mut().push(id.0);
            None
        }
    }

    #[test]
    fn plan_asks_for_each_group_once_within_its_limit() {
        let mut noise = vec![0; 20_000];
        blake3::Hasher::new().finalize_xof().fill(&mut noise);
        let whole = [noise.clone(), noise].concat();
        let earlier = CountingSource(std::cell::RefCell::default());
        assert_eq!(plan(&whole, None, &earlier).steps, [PlanStep::New(0..40_000)]);
        let mut asked = earlier.0.into_inner();
        assert_eq!(asked.len(), group_lookups_max(&whole));
        asked.sort_unstable();
        asked.dedup();
        assert_eq!(asked.len(), group_lookups_max(&whole), "none twice");
    }
}
