//! What a run remembers of its earlier bodies, so that the next one costs what it adds.
//!
//! A lane is the sequence of bodies of one component in one place (all inputs of the model, say). For each lane the
//! run keeps the recipes that later ones may be coded against, and its last body itself as long as the store has
//! room for it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::blob::{Body, DeltaStack, Extent};
use crate::ids::BlobId;
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

/// The lanes of a run: a handful. Cheap to clone, since a lane is copied only when it changes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lanes(Vec<(LaneKey, Arc<Lane>)>);

impl Lanes {
    pub(crate) fn get(&self, key: &LaneKey) -> Option<&Lane> {
        self.0.iter().find(|(of, _)| of == key).map(|(_, lane)| &**lane)
    }

    pub(crate) fn get_mut(&mut self, key: &LaneKey) -> Option<&mut Lane> {
        self.0.iter_mut().find(|(of, _)| of == key).map(|(_, lane)| Arc::make_mut(lane))
    }

    /// Adds a lane that is not there yet.
    pub(crate) fn insert(&mut self, key: LaneKey, lane: Lane) {
        self.0.push((key, Arc::new(lane)));
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    /// Bodies so far.
    count: u64,
    stack: DeltaStack<u32>,
    /// Where recent bodies were first stored.
    recent: Vec<(u32, BlobId)>,
    /// The last body whose batch was queued.
    last: Arc<Remembered>,
}

impl Lane {
    pub(crate) fn new(previous: &Arc<Previous>) -> Self {
        let last = Arc::new(Remembered {
            body: Mutex::default(),
            used: AtomicBool::new(false),
            listed: AtomicBool::new(false),
            of: previous.clone(),
        });
        Self { count: 0, stack: DeltaStack::default(), recent: Vec::new(), last }
    }

    /// The last body whose batch was queued, if it is still remembered.
    pub(crate) fn last(&self) -> Option<Body> {
        self.last.used.store(true, Ordering::Relaxed);
        lock(&self.last.body).clone()
    }

    /// Remembers a body whose batch was queued.
    pub(crate) fn remember(&self, body: Body, bytes_max: usize) {
        Previous::put(&self.last, body, bytes_max);
    }

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

/// A lane's last body, until there is no room for it.
#[derive(Debug)]
struct Remembered {
    body: Mutex<Option<Body>>,
    /// Looked at since it was last passed over.
    used: AtomicBool,
    /// It waits in the queue of those that may have to go.
    listed: AtomicBool,
    of: Arc<Previous>,
}

impl Drop for Remembered {
    fn drop(&mut self) {
        let body = self.body.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        self.of.bytes.fetch_sub(body.map_or(0, |body| body.bytes.len()), Ordering::Relaxed);
    }
}

/// The last bodies of all lanes of all runs, bounded. One that was not looked at since it was last passed over goes
/// first (the clock of Corbató's paging experiment, 1968).
#[derive(Debug, Default)]
pub(crate) struct Previous {
    bytes: AtomicUsize,
    queue: Mutex<VecDeque<Weak<Remembered>>>,
}

impl Previous {
    fn put(slot: &Arc<Remembered>, body: Body, bytes_max: usize) {
        let this = &slot.of;
        let len = body.bytes.len();
        let body = (len <= REMEMBERED_BYTES_MAX.min(bytes_max)).then_some(body);
        this.bytes.fetch_add(body.as_ref().map_or(0, |_| len), Ordering::Relaxed);
        let old = std::mem::replace(&mut *lock(&slot.body), body);
        this.bytes.fetch_sub(old.map_or(0, |old| old.bytes.len()), Ordering::Relaxed);
        if !slot.listed.swap(true, Ordering::Relaxed) {
            let mut queue = lock(&this.queue);
            // Slots of runs that are gone must not gather where nothing ever has to go.
            while queue.front().is_some_and(|slot| slot.strong_count() == 0) {
                queue.pop_front();
            }
            queue.push_back(Arc::downgrade(slot));
        }
        if this.bytes.load(Ordering::Relaxed) > bytes_max {
            this.shrink(bytes_max);
        }
    }

    fn shrink(&self, bytes_max: usize) {
        let mut queue = lock(&self.queue);
        // Each is passed over once at most.
        for _ in 0..queue.len() * 2 {
            if self.bytes.load(Ordering::Relaxed) <= bytes_max {
                return;
            }
            let Some(slot) = queue.pop_front().and_then(|slot| slot.upgrade()) else { continue };
            if slot.used.swap(false, Ordering::Relaxed) {
                queue.push_back(Arc::downgrade(&slot));
                continue;
            }
            slot.listed.store(false, Ordering::Relaxed);
            let gone = lock(&slot.body).take();
            self.bytes.fetch_sub(gone.map_or(0, |body| body.bytes.len()), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::Compared;

    fn body(len: usize) -> Body {
        Compared::new(&Arc::new(vec![7; len]), None).into_body(Arc::default())
    }

    #[test]
    fn remembered_bodies_stay_within_their_bound_and_go_with_their_lanes() {
        let previous = Arc::new(Previous::default());
        let lanes: Vec<Lane> = (0..100).map(|_| Lane::new(&previous)).collect();
        for round in 0..3 {
            for lane in &lanes {
                lane.remember(body(1000 + round), 20_000);
                assert!(previous.bytes.load(Ordering::Relaxed) <= 20_000);
            }
        }
        let kept = lanes.iter().filter(|lane| lane.last().is_some()).count();
        assert!((15..=20).contains(&kept), "{kept} bodies of 1,002 bytes");
        lanes[0].remember(body(30_000), 20_000);
        assert!(lanes[0].last().is_none(), "one that is too large is not kept, nor what was there before it");
        drop(lanes);
        assert_eq!(previous.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_is_looked_at_stays_longer() {
        let previous = Arc::new(Previous::default());
        let hot = Lane::new(&previous);
        hot.remember(body(1000), 10_000);
        for _ in 0..100 {
            assert!(hot.last().is_some());
            let other = Lane::new(&previous);
            other.remember(body(1000), 10_000);
            std::mem::forget(other);
        }
    }
}
