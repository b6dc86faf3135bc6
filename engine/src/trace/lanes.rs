//! A run's earlier bodies, kept in memory so that a new body costs only the bytes that it adds.
//!
//! A lane is the sequence of bodies of one component in one slot (all inputs of the model, for example). For
//! each lane the run keeps the recipes that later ones may be coded against. The store keeps the lane's last
//! body while there is room for it.

use std::sync::Arc;

use crate::blob::{DeltaStack, Extent, LaneBody};
use crate::ids::BlobId;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::trace::model::Component;
use annals_store::kv::cache::ClockCache;

/// A body larger than this is not kept as a previous body, in bytes.
const REMEMBERED_BYTES_MAX: usize = 16 << 20;
/// Maximum number of recent bodies of a lane that a new one is compared with by id.
const RECENT_MAX: usize = 8;

/// The place of a body in its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum BodySlot {
    Input,
    Output,
    Metadata,
    State,
}

/// Identifies a lane within a run.
pub(crate) type LaneKey = (Component, BodySlot);

/// The lanes of a run, usually few. Cheap to clone, since a lane is copied only when it changes.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunLanes(Vec<(LaneKey, Arc<BodyLane>)>);

impl RunLanes {
    pub(crate) fn get(&self, key: &LaneKey) -> Option<&BodyLane> {
        self.0.iter().find(|(of, _)| of == key).map(|(_, lane)| &**lane)
    }

    pub(crate) fn get_mut(&mut self, key: &LaneKey) -> Option<&mut BodyLane> {
        self.0.iter_mut().find(|(of, _)| of == key).map(|(_, lane)| Arc::make_mut(lane))
    }

    /// Adds a lane that is not there yet.
    pub(crate) fn insert(&mut self, key: LaneKey, lane: BodyLane) {
        self.0.push((key, Arc::new(lane)));
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct BodyLane {
    /// Unique among the store's lanes.
    id: u64,
    /// Number of bodies so far.
    count: u64,
    stack: DeltaStack<u32>,
    /// The frames that first stored the recent bodies, with the ids of the bodies.
    recent: Vec<(u32, BlobId)>,
}

impl BodyLane {
    /// The frame and recipe that the next body is coded against.
    pub(crate) fn base(&self) -> Option<(u32, Arc<Vec<Extent>>)> {
        self.stack.base_for(self.count).map(|(seq, extents)| (*seq, extents.clone()))
    }

    /// The recent frame that holds a body of this id.
    pub(crate) fn frame_with_body(&self, id: BlobId) -> Option<u32> {
        self.recent.iter().find(|(_, known)| *known == id).map(|(seq, _)| *seq)
    }

    /// Adds frame `seq`'s body.
    pub(crate) fn push(&mut self, seq: u32, id: BlobId, extents: Arc<Vec<Extent>>) {
        self.stack.push(self.count, seq, extents);
        self.count += 1;
        self.push_inline(seq, id);
    }

    /// Adds frame `seq`'s inline body. No recipe can be coded against it.
    pub(crate) fn push_inline(&mut self, seq: u32, id: BlobId) {
        if self.recent.len() == RECENT_MAX {
            self.recent.remove(0);
        }
        self.recent.push((seq, id));
    }
}

/// A cache of the last bodies of all lanes of all runs.
#[derive(Debug)]
pub(crate) struct PreviousBodies {
    bodies: ClockCache<u64, LaneBody>,
    bytes_max: usize,
    next_lane: AtomicU64,
}

impl PreviousBodies {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bodies: ClockCache::new(bytes_max), bytes_max, next_lane: AtomicU64::new(0) }
    }

    /// Creates a lane without bodies.
    pub(crate) fn new_lane(&self) -> BodyLane {
        let id = self.next_lane.fetch_add(1, Ordering::Relaxed);
        BodyLane { id, count: 0, stack: DeltaStack::default(), recent: Vec::new() }
    }

    /// A lane's last body whose batch was queued, if it is cached.
    pub(crate) fn last_body(&self, lane: &BodyLane) -> Option<LaneBody> {
        self.bodies.get(&lane.id)
    }

    /// Takes a lane's last body out, so that it can be changed into the next one.
    pub(crate) fn take_last_body(&self, lane: &BodyLane) -> Option<LaneBody> {
        self.bodies.take(&lane.id)
    }

    /// Caches a body whose batch was queued.
    pub(crate) fn remember(&self, lane: &BodyLane, body: LaneBody) {
        let bytes = body.bytes.len();
        if bytes <= REMEMBERED_BYTES_MAX.min(self.bytes_max) {
            self.bodies.put(lane.id, body, bytes);
        } else {
            self.bodies.remove(&lane.id);
        }
    }

    /// Removes the bodies of lanes that get no more bodies.
    pub(crate) fn forget(&self, lanes: &RunLanes) {
        lanes.0.iter().for_each(|(_, lane)| self.bodies.remove(&lane.id));
    }
}
