//! The bodies that a later one may be coded against: the last ones, the newest first. Writer and reader put the same bodies
//! in, in the same order, so that a number means the same to both.

use std::collections::VecDeque;
use std::sync::Arc;

use super::layout::COPY_BYTES_MIN;
use crate::blob::{CommonRange, common_front, common_tail, compare};
use crate::ids::BlobId;
use crate::trace::lanes::LaneKey;

/// Bodies kept.
const BODIES_MAX: usize = 64;
/// Bytes of them together. One that is larger is not kept.
const BYTES_MAX: usize = 256 << 20;

/// A body that is kept. The reader does not know whose it was; it need not.
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
    /// Puts a body in as the newest.
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

    /// The body `back` before the newest.
    pub(super) fn get(&self, back: u64) -> Option<&Arc<Vec<u8>>> {
        self.bodies.get(usize::try_from(back).ok()?).map(|kept| &kept.bytes)
    }

    /// The same, which becomes the newest.
    pub(super) fn promote(&mut self, back: u64) -> Option<(BlobId, Arc<Vec<u8>>)> {
        let kept = self.bodies.remove(usize::try_from(back).ok()?)?;
        let found = (kept.id, kept.bytes.clone());
        self.bodies.push_front(kept);
        Some(found)
    }

    /// Where a body is, if it is kept.
    pub(super) fn find(&self, id: BlobId) -> Option<u64> {
        self.bodies.iter().position(|kept| kept.id == id).map(|at| at as u64)
    }

    /// The body to code another against, and what is the same in both: the last one of its lane, or the one that has most of
    /// its beginning and end, whichever has more of it.
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
            let same = compare(bytes, &self.bodies[at].bytes, COPY_BYTES_MIN);
            let total = same.iter().map(|same| same.len).sum();
            if found.as_ref().is_none_or(|(most, ..)| total > *most) {
                found = Some((total, at, same));
            }
        }
        found.map(|(_, at, same)| (at as u64, same))
    }
}
