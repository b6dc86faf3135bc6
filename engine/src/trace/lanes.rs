//! What a run remembers of its earlier bodies, so that the next one costs what it adds.
//!
//! A lane is the sequence of bodies of one component in one place (all inputs of the model, say). For each lane the
//! run keeps the recipes that later ones may be coded against; the store keeps the lane's last body itself, as long
//! as there is room for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::blob::{Body, DeltaStack, Extent};
use crate::ids::{BlobId, RunUid};
use crate::log::segments::lock;
use crate::trace::model::Component;

/// A body larger than this is not remembered.
const REMEMBERED_BYTES_MAX: usize = 16 << 20;
/// Recent bodies of a lane that a later one is compared with by id.
const RECENT_MAX: usize = 8;

/// The place of a body in its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Slot {
    Input,
    Output,
    Metadata,
    State,
}

/// Which lane.
pub(crate) type LaneKey = (Component, Slot);

/// See the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lane {
    /// Bodies so far.
    count: u64,
    stack: DeltaStack<u32>,
    /// Where recent bodies were first stored.
    recent: Vec<(u32, BlobId)>,
}

impl Lane {
    /// The frame and recipe that the next body is coded against.
    pub(crate) fn base(&self) -> Option<(u32, Arc<Vec<Extent>>)> {
        self.stack.base_for(self.count).map(|(seq, extents)| (*seq, extents.clone()))
    }

    /// The frame that holds just this body already.
    pub(crate) fn same(&self, id: BlobId) -> Option<u32> {
        self.recent.iter().find(|(_, known)| *known == id).map(|(seq, _)| *seq)
    }

    /// Takes in frame `seq`'s body.
    pub(crate) fn push(&mut self, seq: u32, id: BlobId, extents: Arc<Vec<Extent>>) {
        self.stack.push(self.count, seq, extents);
        self.count += 1;
        self.note(seq, id);
    }

    /// Takes in frame `seq`'s body, which stands in its record: no recipe can be coded against it.
    pub(crate) fn note(&mut self, seq: u32, id: BlobId) {
        if self.recent.len() == RECENT_MAX {
            self.recent.remove(0);
        }
        self.recent.push((seq, id));
    }
}

/// The last bodies of all lanes of all runs, the least recently used dropped first.
#[derive(Debug, Default)]
pub(crate) struct Previous {
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    bodies: HashMap<(RunUid, LaneKey), (Body, u64)>,
    bytes: usize,
    clock: u64,
}

impl Previous {
    pub(crate) fn get(&self, run: RunUid, lane: &LaneKey) -> Option<Body> {
        let mut held = lock(&self.held);
        held.clock += 1;
        let now = held.clock;
        let (body, used) = held.bodies.get_mut(&(run, lane.clone()))?;
        *used = now;
        Some(body.clone())
    }

    pub(crate) fn put(&self, run: RunUid, lane: LaneKey, body: Body, bytes_max: usize) {
        if body.bytes.len() > REMEMBERED_BYTES_MAX.min(bytes_max) {
            return;
        }
        let mut held = lock(&self.held);
        held.clock += 1;
        let now = held.clock;
        held.bytes += body.bytes.len();
        if let Some((old, _)) = held.bodies.insert((run, lane), (body, now)) {
            held.bytes -= old.bytes.len();
        }
        while held.bytes > bytes_max {
            let oldest = held.bodies.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| key.clone());
            let Some((old, _)) = oldest.and_then(|key| held.bodies.remove(&key)) else { break };
            held.bytes -= old.bytes.len();
        }
    }

    /// Forgets a run that has ended.
    pub(crate) fn forget(&self, run: RunUid) {
        let mut held = lock(&self.held);
        let Held { bodies, bytes, .. } = &mut *held;
        bodies.retain(|(of, _), (body, _)| {
            let keep = *of != run;
            if !keep {
                *bytes -= body.bytes.len();
            }
            keep
        });
    }
}
