//! Prevents compaction from removing bytes that an uncommitted batch will reference.
//!
//! A batch that repeats older content names its place before anything in the log says so. So a writer that
//! looks for older content takes a *pass* first, and keeps it until its batch is queued. Compaction raises
//! the fence, so that later passes do not lead to groups that it may rewrite. Then it waits until the older
//! passes have ended. After that, everything that was named is in the log, where a mark finds it.
//!
//! Besides passes there are *holds*: on streamed bodies that no record names yet, and on records of the layer
//! above that a batch will share which is not in the log yet.
//!
//! Invariant: what a pass may lead to is fixed when it is issued, and does not change while it lives.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, Weak};

use crate::blob::{Extent, GroupId};
use crate::error::Result;
use crate::log::segments::lock;
use crate::log::spin_wait::STOP_CHECK_INTERVAL;
use crate::sync::{Condvar, Mutex, rank};

/// See the module.
#[derive(Debug, Default)]
pub struct Fence {
    state: Mutex<FenceState, { rank::FENCE_STATE }>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct FenceState {
    /// New batches must not name groups below this; 0: the fence is down.
    hidden_below: u64,
    /// How often the fence was raised.
    round: u64,
    /// Number of living passes by the round in which they were issued; may be 0.
    passes: BTreeMap<u64, usize>,
    bodies: Vec<Weak<Vec<Extent>>>,
    streams: Vec<Weak<Mutex<Vec<Extent>, { rank::STREAM_EXTENTS }>>>,
    /// Records that batches will share which may not be in the log yet: those of a uid, up to a number below it.
    records: Vec<(u64, u32)>,
}

/// Permission to name older content. See the module.
#[derive(Debug)]
pub struct Pass {
    fence: Arc<Fence>,
    round: u64,
    hidden_below: u64,
}

impl Pass {
    /// Whether a batch may name bytes of this group.
    pub fn may_reference(&self, group: GroupId) -> bool {
        group.0 >= self.hidden_below
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut state = lock(&self.fence.state);
        if let Some(count) = state.passes.get_mut(&self.round) {
            *count -= 1;
            // Only a fence that was raised since waits, and waking nobody takes a system call, too.
            if *count == 0 && self.round < state.round {
                self.fence.changed.notify_all();
            }
        }
    }
}

/// Keeps records of the layer above from compaction while this lives.
#[derive(Debug)]
pub struct HeldRecords {
    fence: Arc<Fence>,
    records: (u64, u32),
}

impl Drop for HeldRecords {
    fn drop(&mut self) {
        let mut state = lock(&self.fence.state);
        if let Some(at) = state.records.iter().position(|held| *held == self.records) {
            state.records.swap_remove(at);
        }
    }
}

/// A raised fence. Dropping it lowers the fence.
#[derive(Debug)]
pub struct RaisedFence(Arc<Fence>);

impl Drop for RaisedFence {
    fn drop(&mut self) {
        lock(&self.0.state).hidden_below = 0;
    }
}

impl Fence {
    /// Issues a pass for one batch.
    pub fn pass(self: &Arc<Self>) -> Pass {
        let mut state = lock(&self.state);
        let (round, below) = (state.round, state.hidden_below);
        *state.passes.entry(round).or_default() += 1;
        Pass { fence: self.clone(), round, hidden_below: below }
    }

    /// Raises the fence for the groups below `below`, and waits until no older pass is left. Calls `stop` now
    /// and then, and ends with its error.
    pub fn raise(self: &Arc<Self>, below: u64, stop: &dyn Fn() -> Result<()>) -> Result<RaisedFence> {
        let mut state = lock(&self.state);
        state.round += 1;
        state.hidden_below = below;
        let round = state.round;
        let raised = RaisedFence(self.clone());
        loop {
            state.passes.retain(|_, count| *count > 0);
            if state.passes.keys().next().is_none_or(|given| *given >= round) {
                break;
            }
            if let Err(stopped) = stop() {
                // Dropping `raised` lowers the fence under this lock.
                drop(state);
                return Err(stopped);
            }
            let waited = self.changed.wait_timeout(state, STOP_CHECK_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        Ok(raised)
    }

    /// Wakes a waiting [`Fence::raise`], so that it calls its `stop`.
    pub fn wake(&self) {
        drop(lock(&self.state));
        self.changed.notify_all();
    }

    /// Holds a body that no record names yet, for as long as a caller has its extents.
    pub fn hold_body(&self, extents: &Arc<Vec<Extent>>) {
        let mut state = lock(&self.state);
        state.bodies.retain(|held| held.strong_count() > 0);
        state.bodies.push(Arc::downgrade(extents));
    }

    /// Holds a body that is still being streamed.
    pub fn hold_stream(&self) -> Arc<Mutex<Vec<Extent>, { rank::STREAM_EXTENTS }>> {
        let stream = Arc::new(Mutex::new(Vec::new()));
        let mut state = lock(&self.state);
        state.streams.retain(|held| held.strong_count() > 0);
        state.streams.push(Arc::downgrade(&stream));
        stream
    }

    /// Holds the records of a uid from [`crate::kv::store_writer::StoreWriter::new_uid`], up to the number `upto`
    /// below it. A batch that is not in the log yet will share them.
    pub fn hold_records(self: &Arc<Self>, uid: u64, upto: u32) -> HeldRecords {
        lock(&self.state).records.push((uid, upto));
        HeldRecords { fence: self.clone(), records: (uid, upto) }
    }

    /// All extents that are held.
    pub fn held_extents(&self) -> Vec<Extent> {
        let (bodies, streams) = {
            let state = lock(&self.state);
            (state.bodies.clone(), state.streams.clone())
        };
        let mut extents: Vec<Extent> =
            bodies.iter().filter_map(Weak::upgrade).flat_map(|body| body.to_vec()).collect();
        for stream in streams.iter().filter_map(Weak::upgrade) {
            extents.extend(lock(&stream).iter());
        }
        extents
    }

    /// Calls `then` with the records that are held, by uid and greatest number. None is added meanwhile.
    pub fn with_held_records<T>(&self, then: impl FnOnce(&[(u64, u32)]) -> T) -> T {
        then(&lock(&self.state).records)
    }
}

#[cfg(test)]
#[cfg(not(annals_shuttle))]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn fence_waits_for_older_passes() {
        let fence = Arc::new(Fence::default());
        let before = fence.pass();
        assert!(before.may_reference(GroupId(1)));
        let stop = || Err(Error::bug("stopped"));
        assert!(fence.raise(5, &stop).is_err(), "the older pass may still lead to any group");
        drop(before);
        let raised = fence.raise(5, &|| Ok(())).unwrap();
        let during = fence.pass();
        assert!(!during.may_reference(GroupId(4)) && during.may_reference(GroupId(5)));
        drop(raised);
        assert!(!during.may_reference(GroupId(4)), "a pass keeps its limit");
        assert!(fence.pass().may_reference(GroupId(1)));
        assert!(fence.raise(9, &stop).is_err(), "a pass from an earlier round is waited for, too");
        drop(during);
        assert!(fence.raise(9, &stop).is_ok());
    }

    #[test]
    fn held_extents_last_as_long_as_their_holder() {
        let fence = Arc::new(Fence::default());
        let extent = |group| Extent { group: GroupId(group), offset: 0, len: 5 };
        let body = Arc::new(vec![extent(1), extent(2)]);
        fence.hold_body(&body);
        let stream = fence.hold_stream();
        lock(&stream).push(extent(3));
        assert_eq!(fence.held_extents(), [extent(1), extent(2), extent(3)]);
        drop(body);
        assert_eq!(fence.held_extents(), [extent(3)]);
        drop(stream);
        assert!(fence.held_extents().is_empty());
        let (one, two) = (fence.hold_records(1, 5), fence.hold_records(1, 5));
        drop(one);
        fence.with_held_records(|held| assert_eq!(held, [(1, 5)]));
        drop(two);
        fence.with_held_records(|held| assert!(held.is_empty()));
    }
}
