//! The window of recent bodies that a later one may be coded against, newest first. Writer and reader add the
//! same bodies in the same order, so an index refers to the same body for both.

use std::collections::VecDeque;
use std::sync::Arc;

use super::layout::COPY_BYTES_MIN;
use crate::blob::{CommonRange, RESYNC_BYTES_MIN, common_front, common_tail, compare};
use crate::ids::BlobId;
use crate::trace::lanes::LaneKey;

/// Maximum number of bodies in the window.
const BODIES_MAX: usize = 64;
/// Maximum total bytes of the bodies in the window. A larger body is not added.
const BYTES_MAX: usize = 256 << 20;

/// A body in the window. Only the writer needs its lane; the reader has `None`.
#[derive(Debug, Clone)]
struct WindowBody {
    id: BlobId,
    bytes: Arc<Vec<u8>>,
    lane: Option<LaneKey>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct BodyWindow {
    bodies: VecDeque<WindowBody>,
    bytes: usize,
}

impl BodyWindow {
    /// Adds a body as the newest.
    pub(super) fn put(&mut self, id: BlobId, bytes: &Arc<Vec<u8>>, lane: Option<LaneKey>) {
        if bytes.len() > BYTES_MAX {
            return;
        }
        self.bytes += bytes.len();
        self.bodies.push_front(WindowBody { id, bytes: bytes.clone(), lane });
        while self.bodies.len() > BODIES_MAX || self.bytes > BYTES_MAX {
            self.bytes -= self.bodies.pop_back().map_or(0, |kept| kept.bytes.len());
        }
    }

    /// The body at index `back`; the newest is 0.
    pub(super) fn get(&self, back: u64) -> Option<&Arc<Vec<u8>>> {
        self.bodies.get(usize::try_from(back).ok()?).map(|kept| &kept.bytes)
    }

    /// Makes the body at index `back` the newest and returns it.
    pub(super) fn promote(&mut self, back: u64) -> Option<(BlobId, Arc<Vec<u8>>)> {
        let kept = self.bodies.remove(usize::try_from(back).ok()?)?;
        let found = (kept.id, kept.bytes.clone());
        self.bodies.push_front(kept);
        Some(found)
    }

    /// The index of the body with this id, if it is in the window.
    pub(super) fn find(&self, id: BlobId) -> Option<u64> {
        self.bodies.iter().position(|kept| kept.id == id).map(|at| at as u64)
    }

    /// Chooses the base of a body; returns its index and the ranges that both have in common. Candidates are
    /// the last body of the lane, and the body with the longest common beginning and end. The one with more
    /// common bytes is chosen.
    pub(super) fn nearest(&self, bytes: &[u8], lane: &LaneKey) -> Option<(u64, Vec<CommonRange>)> {
        let own = self.bodies.iter().position(|kept| kept.lane.as_ref() == Some(lane));
        let ends = |kept: &WindowBody| {
            let front = common_front(bytes, &kept.bytes);
            front + common_tail(&bytes[front..], &kept.bytes[front..])
        };
        let mut best: Option<(usize, usize)> = None;
        for (at, kept) in self.bodies.iter().enumerate() {
            let ends = ends(kept);
            if ends > 0 && best.is_none_or(|(most, _)| ends > most) {
                best = Some((ends, at));
            }
        }
        let other = best.map(|(_, at)| at).filter(|at| Some(*at) != own);
        let mut found: Option<(usize, usize, Vec<CommonRange>)> = None;
        for at in own.into_iter().chain(other) {
            let same = compare(bytes, &self.bodies[at].bytes, COPY_BYTES_MIN, RESYNC_BYTES_MIN);
            let total = same.iter().map(|same| same.len).sum();
            if found.as_ref().is_none_or(|(most, ..)| total > *most) {
                found = Some((total, at, same));
            }
        }
        found.map(|(_, at, same)| (at as u64, same))
    }
}
