//! The upkeep thread: it writes frozen memory into tables beside the writer. Another thread merges tables
//! ([`super::merges`]).
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
use crate::io::{File, OpenMode};
use crate::kv::index::levels::{Index, IndexCoverage, LOG_BYTES_MAX, ListedTable};
use crate::kv::index::memtable::Memtable;
use crate::log::manifest::{ManifestState, SharedManifest};
use crate::log::queue::WriteQueue;
use crate::log::segments::lock;
use crate::log::ticket::WriteFailure;
use crate::log::writer::LogEnd;
use crate::sync::{Condvar, JoinHandle, Mutex, rank};

/// Writing fails once memory that cannot be flushed has grown to this many times its bound.
const GROWTH_MAX: usize = 4;
/// A failed flush is retried once memory has grown by this part of its bound.
const RETRY_PART: usize = 4;

/// Memory on its way into a table.
#[derive(Debug, Clone)]
struct FrozenMemory {
    memory: Arc<Memtable>,
    covered: IndexCoverage,
    /// The segment in which it ends, if that is not durable up to there. The handle is its own and was opened
    /// before a failure: the system reports a disk error once to each handle, so the writer's sync still sees
    /// it.
    unsynced: Option<Arc<dyn File>>,
}

/// What the thread is doing.
#[derive(Debug)]
enum UpkeepPhase {
    /// Nothing is frozen.
    Idle,
    /// Memory is to be written, or is being written.
    Working(FrozenMemory),
    /// Memory was not written. The next try comes once memory has `again_at` bytes.
    Failed { frozen: FrozenMemory, why: WriteFailure, again_at: usize },
    /// The thread has ended.
    Ended,
}

#[derive(Debug)]
struct UpkeepState {
    phase: UpkeepPhase,
    /// There may be tables to merge.
    merges_due: bool,
    stop: bool,
}

/// State that the writer's thread and the upkeep's share.
#[derive(Debug)]
pub(super) struct Upkeep {
    state: Mutex<UpkeepState, { rank::UPKEEP_STATE }>,
    changed: Condvar,
    /// The threads that flush and merge.
    threads: Mutex<Vec<JoinHandle<()>>, { rank::UPKEEP_THREAD }>,
    pub(super) queue: Arc<WriteQueue>,
    pub(super) manifest: Arc<SharedManifest>,
}

impl Index {
    /// Starts the threads. Without them memory grows without a bound. A store open for reading has
    /// none.
    pub fn start_upkeep(
        self: &Arc<Self>,
        queue: &Arc<WriteQueue>,
        manifest: &Arc<SharedManifest>,
    ) -> Result<()> {
        let upkeep = Upkeep {
            state: Mutex::new(UpkeepState { phase: UpkeepPhase::Idle, merges_due: true, stop: false }),
            changed: Condvar::new(),
            threads: Mutex::default(),
            queue: queue.clone(),
            manifest: manifest.clone(),
        };
        if self.upkeep.set(upkeep).is_err() {
            return Err(Error::bug("upkeep was started twice"));
        }
        let (flushing, merging) = (self.clone(), self.clone());
        let thread = self.io.spawn("annals-upkeep", Box::new(move || flushing.run_upkeep()))?;
        let Some(upkeep) = self.upkeep.get() else { return Ok(()) };
        lock(&upkeep.threads).push(thread);
        let thread = self.io.spawn("annals-merges", Box::new(move || merging.run_merges()))?;
        lock(&upkeep.threads).push(thread);
        Ok(())
    }

    /// Ends the threads: the one that flushes after its current work, the one that merges within it.
    pub(super) fn stop_upkeep(&self) {
        let Some(upkeep) = self.upkeep.get() else { return };
        lock(&upkeep.state).stop = true;
        upkeep.changed.notify_all();
        for thread in std::mem::take(&mut *lock(&upkeep.threads)) {
            // A thread that panicked has already told its waiters so.
            let _ = thread.join();
        }
    }

    /// Freezes memory that is full or covers much log, and hands it to the thread. Waits if memory is full
    /// and the last one is not written yet.
    pub(super) fn freeze_if_full(&self, end: &LogEnd<'_>) -> Result<()> {
        let Some(upkeep) = self.upkeep.get() else { return Ok(()) };
        let used = self.levels().active.bytes();
        let bound = self.limits.memory_bytes;
        let logged = end.state.totals.bytes();
        let long = logged.saturating_sub(self.frozen_at.load(crate::sync::atomic::Ordering::Relaxed))
            >= LOG_BYTES_MAX;
        if used == 0 || !(used >= bound || long) || !upkeep.can_freeze(used, bound)? {
            return Ok(());
        }
        self.freeze(upkeep, end)
    }

    /// Freezes memory of any size. If an earlier flush failed, waits for a last try.
    pub(super) fn freeze_now(&self, end: &LogEnd<'_>) -> Result<()> {
        let Some(upkeep) = self.upkeep.get() else { return Ok(()) };
        if upkeep.can_freeze(usize::MAX, self.limits.memory_bytes)? {
            self.freeze(upkeep, end)?;
        }
        Ok(())
    }

    /// Waits until frozen memory is written, if there is any.
    ///
    /// # Errors
    /// The cause if it was not written.
    pub fn wait_flushed(&self) -> Result<()> {
        let Some(upkeep) = self.upkeep.get() else { return Ok(()) };
        let mut state = lock(&upkeep.state);
        loop {
            match &state.phase {
                UpkeepPhase::Idle => return Ok(()),
                UpkeepPhase::Failed { why, .. } => return Err(why.to_error()),
                UpkeepPhase::Ended => return Err(Error::new(ErrorKind::Unavailable, "the store is closed")),
                UpkeepPhase::Working(_) => {
                    state = upkeep.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    fn freeze(&self, upkeep: &Upkeep, end: &LogEnd<'_>) -> Result<()> {
        let unsynced = match end.synced < end.tail {
            true => Some(self.io.open(&self.paths.segment(end.segment), OpenMode::Read)?),
            false => None,
        };
        let memory = self.levels().active.clone();
        self.change_levels(|levels| {
            levels.frozen = Some(std::mem::take(&mut levels.active));
        });
        let logged = end.state.totals.bytes();
        self.frozen_at.store(logged, crate::sync::atomic::Ordering::Relaxed);
        let covered = IndexCoverage { at: (end.segment, end.tail), state: end.state.clone() };
        lock(&upkeep.state).phase = UpkeepPhase::Working(FrozenMemory { memory, covered, unsynced });
        upkeep.changed.notify_all();
        Ok(())
    }

    /// The thread's work.
    fn run_upkeep(&self) {
        let Some(upkeep) = self.upkeep.get() else { return };
        let _ended = UpkeepEndGuard(upkeep);
        while let Some(frozen) = upkeep.next_frozen() {
            let done = self.flush_frozen(upkeep, &frozen);
            let mut state = lock(&upkeep.state);
            state.merges_due |= done.is_ok();
            state.phase = match done {
                Ok(()) => UpkeepPhase::Idle,
                Err(error) => {
                    let again_at = self.levels().active.bytes() + self.limits.memory_bytes / RETRY_PART;
                    UpkeepPhase::Failed { frozen, why: WriteFailure::from_error(&error), again_at }
                }
            };
            drop(state);
            upkeep.changed.notify_all();
        }
    }

    fn flush_frozen(&self, upkeep: &Upkeep, frozen: &FrozenMemory) -> Result<()> {
        upkeep.queue.check_poisoned()?;
        if let Some(file) = &frozen.unsynced
            && let Err(error) = file.sync()
        {
            let error = Error::from(error);
            upkeep.queue.poison(WriteFailure::from_error(&error));
            return Err(error);
        }
        let IndexCoverage { at, state } = &frozen.covered;
        let _tables = lock(&self.tables);
        let tables = self.flush_memory(*at, state, std::slice::from_ref(&frozen.memory), 0)?;
        // The writer's own sync may have failed meanwhile: then it is unknown what of the log is on disk.
        upkeep.queue.check_poisoned()?;
        upkeep.list_tables(self, &tables, |manifest| {
            manifest.covers = *at;
            manifest.covers_state = state.clone();
            if manifest.segments.last().is_some_and(|active| active.id == at.0) {
                manifest.synced = manifest.synced.max(at.1);
            }
        })?;
        self.change_levels(|levels| {
            levels.tables = tables;
            levels.frozen = None;
        });
        self.remove_tables_not_in(&self.levels());
        Ok(())
    }
}

impl Upkeep {
    /// Lists these tables in the manifest, with another change. The caller holds the lock on tables.
    pub(super) fn list_tables(
        &self,
        index: &Index,
        tables: &[ListedTable],
        change: impl FnOnce(&mut ManifestState),
    ) -> Result<()> {
        let listed = tables.iter().map(|listed| listed.entry.clone()).collect();
        let next_table = index.next_table.load(crate::sync::atomic::Ordering::Relaxed);
        let edited = self.manifest.edit(|manifest| {
            manifest.tables = listed;
            manifest.next_table = next_table;
            change(manifest);
        });
        edited.map_err(|failed| {
            if failed.in_doubt {
                self.queue.poison(WriteFailure::from_error(&failed.error));
            }
            failed.error
        })
    }

    /// Waits until there may be tables to merge; false once the thread that merges must end.
    pub(super) fn await_merges(&self) -> bool {
        let mut state = lock(&self.state);
        loop {
            if state.stop {
                return false;
            }
            if std::mem::take(&mut state.merges_due) {
                return true;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether the threads must end.
    pub(super) fn is_stopping(&self) -> bool {
        lock(&self.state).stop
    }

    /// Waits for memory to write; `None` once there is none and the thread must end.
    fn next_frozen(&self) -> Option<FrozenMemory> {
        let mut state = lock(&self.state);
        loop {
            match &state.phase {
                UpkeepPhase::Working(frozen) => return Some(frozen.clone()),
                _ if state.stop => return None,
                _ => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Whether memory of `used` bytes may be frozen now. Waits for that if it must; false if memory may grow
    /// on.
    fn can_freeze(&self, used: usize, bound: usize) -> Result<bool> {
        let mut tried = false;
        let mut state = lock(&self.state);
        loop {
            match &mut state.phase {
                UpkeepPhase::Idle => return Ok(true),
                UpkeepPhase::Ended => return Err(Error::bug("the upkeep thread has ended")),
                UpkeepPhase::Working(_) if used < bound => return Ok(false),
                UpkeepPhase::Working(_) => {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                UpkeepPhase::Failed { frozen, why, again_at } => {
                    let last = used >= bound.saturating_mul(GROWTH_MAX);
                    if last && tried {
                        return Err(why.to_error());
                    }
                    if !last && (tried || used < *again_at) {
                        return Ok(false);
                    }
                    tried = true;
                    let frozen = frozen.clone();
                    state.phase = UpkeepPhase::Working(frozen);
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
struct UpkeepEndGuard<'a>(&'a Upkeep);

impl Drop for UpkeepEndGuard<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).phase = UpkeepPhase::Ended;
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
    fn failed_flush_is_retried_as_memory_grows() {
        let store =
            Store::open_with("s", Options { io: Arc::new(SimIo::new(1)), ..Options::default() }).unwrap();
        let upkeep = store.core().index.upkeep.get().unwrap();
        let failed = || {
            let covered = IndexCoverage { at: (SegmentId(1), 96), state: LogState::empty() };
            let frozen = FrozenMemory { memory: Arc::default(), covered, unsynced: None };
            let why = WriteFailure { kind: ErrorKind::Unavailable, message: "full".into() };
            lock(&upkeep.state).phase = UpkeepPhase::Failed { frozen, why, again_at: 50 };
        };
        let has_failed = || matches!(lock(&upkeep.state).phase, UpkeepPhase::Failed { .. });
        let idle = || {
            let mut state = lock(&upkeep.state);
            while !matches!(state.phase, UpkeepPhase::Idle) {
                state = upkeep.changed.wait(state).unwrap();
            }
        };
        assert!(upkeep.can_freeze(0, 100).unwrap());
        // While frozen memory is written, memory may grow up to its bound.
        failed();
        {
            let mut state = lock(&upkeep.state);
            if let UpkeepPhase::Failed { frozen, .. } = std::mem::replace(&mut state.phase, UpkeepPhase::Idle)
            {
                state.phase = UpkeepPhase::Working(frozen);
            }
        }
        assert!(!upkeep.can_freeze(99, 100).unwrap() && !upkeep.can_freeze(0, 100).unwrap());
        upkeep.changed.notify_all();
        idle();
        for (used, again) in [(0, false), (49, false), (50, true), (399, true)] {
            failed();
            assert!(!upkeep.can_freeze(used, 100).unwrap(), "{used}: nobody waits");
            assert_eq!(!has_failed(), again, "{used}");
            if again {
                idle();
            }
        }
        failed();
        assert!(upkeep.can_freeze(400, 100).unwrap(), "waited for, and done");
        lock(&upkeep.state).phase = UpkeepPhase::Ended;
        assert_eq!(upkeep.can_freeze(0, 100).unwrap_err().kind(), ErrorKind::Bug);
        lock(&upkeep.state).phase = UpkeepPhase::Idle;
    }
}
