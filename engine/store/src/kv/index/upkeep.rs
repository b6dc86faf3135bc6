//! The upkeep thread: it writes frozen memory into tables beside the writer.
//!
//! The writer freezes memory and goes on. It waits only if memory is full again before the last frozen memory
//! is written. The thread works in this order. It syncs the log up to where memory was frozen. It writes and
//! syncs the table, lists it in the manifest, and puts it in the levels. Then it removes files that are no
//! longer listed. So a listed table points only at records that no power cut can remove.
//!
//! A failed sync of the log poisons the store, as in the writer. Any other failure loses nothing, such as a
//! full disk: memory stays, and the flush is retried each time memory has grown by a quarter of its bound. At
//! four times the bound the writer waits for a last try. If it fails, writing fails with its cause.
//!
//! Left out: a clock. Nothing here depends on time.

use std::sync::{Arc, PoisonError};

use crate::error::{Error, ErrorKind, Result};
use crate::io::{File, Open};
use crate::kv::index::levels::{Covered, Index, LOG_BYTES_MAX};
use crate::kv::index::memtable::Memtable;
use crate::log::manifest::SharedManifest;
use crate::log::queue::Queue;
use crate::log::segments::lock;
use crate::log::ticket::Failure;
use crate::log::writer::LogEnd;
use crate::sync::{Condvar, JoinHandle, Mutex};

/// Writing fails once memory that cannot be flushed has grown to this many times its bound.
const GROWTH_MAX: usize = 4;
/// A failed flush is retried once memory has grown by this part of its bound.
const RETRY_PART: usize = 4;

/// Memory on its way into a table.
#[derive(Debug, Clone)]
struct Frozen {
    memory: Arc<Memtable>,
    covered: Covered,
    /// The segment in which it ends, if that is not durable up to there. The handle is its own and was opened
    /// before a failure: the system reports a disk error once to each handle, so the writer's sync still sees
    /// it.
    unsynced: Option<Arc<dyn File>>,
}

/// What the thread is doing.
#[derive(Debug)]
enum Phase {
    /// Nothing is frozen.
    Idle,
    /// Memory is to be written, or is being written.
    Working(Frozen),
    /// Memory was not written. The next try comes once memory has `again_at` bytes.
    Failed { frozen: Frozen, why: Failure, again_at: usize },
    /// The thread has ended.
    Ended,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    stop: bool,
}

/// State that the writer's thread and the upkeep's share.
#[derive(Debug)]
pub(super) struct Upkeep {
    state: Mutex<State>,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
    queue: Arc<Queue>,
    pub(super) manifest: Arc<SharedManifest>,
}

impl Index {
    /// Starts the thread. Without it memory grows without a bound. A store open for reading has no such
    /// thread.
    pub fn start_upkeep(self: &Arc<Self>, queue: &Arc<Queue>, manifest: &Arc<SharedManifest>) -> Result<()> {
        let upkeep = Upkeep {
            state: Mutex::new(State { phase: Phase::Idle, stop: false }),
            changed: Condvar::new(),
            thread: Mutex::new(None),
            queue: queue.clone(),
            manifest: manifest.clone(),
        };
        if self.upkeep.set(upkeep).is_err() {
            return Err(Error::bug("upkeep was started twice"));
        }
        let index = self.clone();
        let thread = self.io.spawn("annals-upkeep", Box::new(move || index.keep_up()))?;
        if let Some(upkeep) = self.upkeep.get() {
            *lock(&upkeep.thread) = Some(thread);
        }
        Ok(())
    }

    /// Ends the thread after its current work.
    pub(super) fn stop_upkeep(&self) {
        let Some(upkeep) = self.upkeep.get() else { return };
        lock(&upkeep.state).stop = true;
        upkeep.changed.notify_all();
        if let Some(thread) = lock(&upkeep.thread).take() {
            // A thread that panicked has already told its waiters so.
            let _ = thread.join();
        }
    }

    /// Freezes memory that is full or covers much log, and hands it to the thread. Waits if memory is full
    /// and the last one is not written yet.
    pub(super) fn freeze_where_full(&self, end: &LogEnd<'_>) -> Result<()> {
        let Some(upkeep) = self.upkeep.get() else { return Ok(()) };
        let used = self.levels().active.bytes();
        let bound = self.limits.memory_bytes;
        let logged = end.state.totals.bytes();
        let long = logged.saturating_sub(self.frozen_at.load(crate::sync::atomic::Ordering::Relaxed))
            >= LOG_BYTES_MAX;
        if used == 0 || !(used >= bound || long) || !upkeep.is_free(used, bound)? {
            return Ok(());
        }
        self.freeze(upkeep, end)
    }

    /// Freezes memory of any size. If an earlier flush failed, waits for a last try.
    pub(super) fn freeze_whatever_there_is(&self, end: &LogEnd<'_>) -> Result<()> {
        let Some(upkeep) = self.upkeep.get() else { return Ok(()) };
        if upkeep.is_free(usize::MAX, self.limits.memory_bytes)? {
            self.freeze(upkeep, end)?;
        }
        Ok(())
    }

    /// Waits until frozen memory is written, if there is any.
    ///
    /// # Errors
    /// The cause if it was not written.
    pub fn wait_written(&self) -> Result<()> {
        let Some(upkeep) = self.upkeep.get() else { return Ok(()) };
        let mut state = lock(&upkeep.state);
        loop {
            match &state.phase {
                Phase::Idle => return Ok(()),
                Phase::Failed { why, .. } => return Err(why.error()),
                Phase::Ended => return Err(Error::new(ErrorKind::Unavailable, "the store is closed")),
                Phase::Working(_) => {
                    state = upkeep.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    fn freeze(&self, upkeep: &Upkeep, end: &LogEnd<'_>) -> Result<()> {
        let unsynced = match end.synced < end.tail {
            true => Some(self.io.open(&self.paths.segment(end.segment), Open::Read)?),
            false => None,
        };
        let memory = self.levels().active.clone();
        self.change_levels(|levels| {
            levels.frozen = Some(std::mem::take(&mut levels.active));
        });
        let logged = end.state.totals.bytes();
        self.frozen_at.store(logged, crate::sync::atomic::Ordering::Relaxed);
        let covered = Covered { at: (end.segment, end.tail), state: end.state.clone() };
        lock(&upkeep.state).phase = Phase::Working(Frozen { memory, covered, unsynced });
        upkeep.changed.notify_all();
        Ok(())
    }

    /// The thread's work.
    fn keep_up(&self) {
        let Some(upkeep) = self.upkeep.get() else { return };
        let _ended = Ended(upkeep);
        while let Some(frozen) = upkeep.next() {
            let done = self.write_frozen(upkeep, &frozen);
            let mut state = lock(&upkeep.state);
            state.phase = match done {
                Ok(()) => Phase::Idle,
                Err(error) => {
                    let again_at = self.levels().active.bytes() + self.limits.memory_bytes / RETRY_PART;
                    Phase::Failed { frozen, why: Failure::of(&error), again_at }
                }
            };
            drop(state);
            upkeep.changed.notify_all();
        }
    }

    fn write_frozen(&self, upkeep: &Upkeep, frozen: &Frozen) -> Result<()> {
        upkeep.queue.check()?;
        if let Some(file) = &frozen.unsynced
            && let Err(error) = file.sync()
        {
            let error = Error::from(error);
            upkeep.queue.poison(Failure::of(&error));
            return Err(error);
        }
        let Covered { at, state } = &frozen.covered;
        let _tables = lock(&self.tables);
        let tables = self.written_down(*at, state, std::slice::from_ref(&frozen.memory))?;
        // The writer's own sync may have failed meanwhile: then it is unknown what of the log is on disk.
        upkeep.queue.check()?;
        let listed = tables.iter().map(|listed| listed.entry.clone()).collect();
        let next_table = self.next_table.load(crate::sync::atomic::Ordering::Relaxed);
        let edited = upkeep.manifest.edit(|manifest| {
            manifest.tables = listed;
            manifest.next_table = next_table;
            manifest.covers = *at;
            manifest.covers_state = state.clone();
            if manifest.segments.last().is_some_and(|active| active.id == at.0) {
                manifest.synced = manifest.synced.max(at.1);
            }
        });
        if let Err(failed) = edited {
            if failed.in_doubt {
                upkeep.queue.poison(Failure::of(&failed.error));
            }
            return Err(failed.error);
        }
        self.change_levels(|levels| {
            levels.tables = tables;
            levels.frozen = None;
        });
        self.remove_other_tables(&self.levels());
        Ok(())
    }
}

impl Upkeep {
    /// Waits for memory to write; `None` once there is none and the thread must end.
    fn next(&self) -> Option<Frozen> {
        let mut state = lock(&self.state);
        loop {
            match &state.phase {
                Phase::Working(frozen) => return Some(frozen.clone()),
                _ if state.stop => return None,
                _ => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Whether memory of `used` bytes may be frozen now. Waits for that if it must; false if memory may grow
    /// on.
    fn is_free(&self, used: usize, bound: usize) -> Result<bool> {
        let mut tried = false;
        let mut state = lock(&self.state);
        loop {
            match &mut state.phase {
                Phase::Idle => return Ok(true),
                Phase::Ended => return Err(Error::bug("the upkeep thread has ended")),
                Phase::Working(_) if used < bound => return Ok(false),
                Phase::Working(_) => {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                Phase::Failed { frozen, why, again_at } => {
                    let last = used >= bound.saturating_mul(GROWTH_MAX);
                    if last && tried {
                        return Err(why.error());
                    }
                    if !last && (tried || used < *again_at) {
                        return Ok(false);
                    }
                    tried = true;
                    let frozen = frozen.clone();
                    state.phase = Phase::Working(frozen);
                    self.changed.notify_all();
                    if !last {
                        return Ok(false);
                    }
                }
            }
        }
    }
}

/// Marks the thread as ended when it is dropped, also after a panic.
struct Ended<'a>(&'a Upkeep);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).phase = Phase::Ended;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
#[cfg(not(annals_shuttle))]
mod tests {
    use super::*;
    use crate::ids::SegmentId;
    use crate::io::sim::SimIo;
    use crate::log::layout::LogState;
    use crate::testing::KvStore as Store;
    use crate::{ErrorKind, Options};

    #[test]
    fn what_failed_is_tried_again_once_memory_has_grown_and_waited_for_at_four_times_its_bound() {
        let store =
            Store::open_with("s", Options { io: Arc::new(SimIo::new(1)), ..Options::default() }).unwrap();
        let upkeep = store.core().index.upkeep.get().unwrap();
        let failed = || {
            let covered = Covered { at: (SegmentId(1), 96), state: LogState::empty() };
            let frozen = Frozen { memory: Arc::default(), covered, unsynced: None };
            let why = Failure { kind: ErrorKind::Unavailable, message: "full".into() };
            lock(&upkeep.state).phase = Phase::Failed { frozen, why, again_at: 50 };
        };
        let has_failed = || matches!(lock(&upkeep.state).phase, Phase::Failed { .. });
        let idle = || {
            let mut state = lock(&upkeep.state);
            while !matches!(state.phase, Phase::Idle) {
                state = upkeep.changed.wait(state).unwrap();
            }
        };
        assert!(upkeep.is_free(0, 100).unwrap());
        // While frozen memory is written, memory may grow up to its bound.
        failed();
        {
            let mut state = lock(&upkeep.state);
            if let Phase::Failed { frozen, .. } = std::mem::replace(&mut state.phase, Phase::Idle) {
                state.phase = Phase::Working(frozen);
            }
        }
        assert!(!upkeep.is_free(99, 100).unwrap() && !upkeep.is_free(0, 100).unwrap());
        upkeep.changed.notify_all();
        idle();
        for (used, again) in [(0, false), (49, false), (50, true), (399, true)] {
            failed();
            assert!(!upkeep.is_free(used, 100).unwrap(), "{used}: nobody waits");
            assert_eq!(!has_failed(), again, "{used}");
            if again {
                idle();
            }
        }
        failed();
        assert!(upkeep.is_free(400, 100).unwrap(), "waited for, and done");
        lock(&upkeep.state).phase = Phase::Ended;
        assert_eq!(upkeep.is_free(0, 100).unwrap_err().kind(), ErrorKind::Bug);
        lock(&upkeep.state).phase = Phase::Idle;
    }
}
