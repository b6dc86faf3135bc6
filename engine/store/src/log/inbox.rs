//! Jobs on their way to the writer, in the order in which they were sent, and the bell of its thread.
//!
//! A caller who waits for its batch leaves it here without ringing, and then acts as the writer itself
//! ([`super::inline`]). All other jobs ring. There is one list for both: a batch must never overtake the job
//! that begins its segment.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::Duration;

use crate::log::segments::lock;
use crate::log::spin_wait::SpinWait;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex, rank};

#[derive(Debug)]
struct InboxState<T> {
    jobs: VecDeque<T>,
    /// The thread blocks on `changed`.
    is_parked: bool,
    /// The thread knows of commits that no note covers, and looks again when the log has been idle.
    watches_idle: bool,
    /// A job that was taken waits for an earlier one that has not arrived.
    awaits_earlier: bool,
    /// The thread is gone: nobody takes jobs any more.
    has_ended: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Inbox<T> {
    state: Mutex<InboxState<T>, { rank::WRITER_INBOX }>,
    /// The thread must look. Changed only under the lock of the state, read without it while spinning.
    is_rung: AtomicBool,
    changed: Condvar,
    spin_wait: SpinWait,
}

/// Why the thread looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wakeup {
    /// There may be jobs.
    Rung,
    /// The time is over.
    TimedOut,
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        let state = InboxState {
            jobs: VecDeque::new(),
            is_parked: false,
            watches_idle: false,
            awaits_earlier: false,
            has_ended: false,
        };
        Self {
            state: Mutex::new(state),
            is_rung: AtomicBool::new(false),
            changed: Condvar::new(),
            spin_wait: SpinWait::default(),
        }
    }
}

impl<T> Inbox<T> {
    /// Adds a job. `rings`: for the thread; otherwise its sender calls `inline::act_as_writer` later. It also rings if
    /// a job that was taken may wait for this one: the sender may first need a lock of a thread that waits for that job.
    /// After the end the job is dropped, which answers its waiter.
    pub fn send(&self, job: T, rings: bool) {
        let mut state = lock(&self.state);
        if state.has_ended {
            drop(state);
            drop(job);
            return;
        }
        state.jobs.push_back(job);
        if rings || state.awaits_earlier {
            self.ring_locked(&state);
        }
    }

    /// Notes whether a job that was taken waits for an earlier one. The thread that acts as the writer calls this, and
    /// looks for jobs once more after it no longer acts: a job that came before this call did not ring.
    pub fn note_gap(&self, awaits_earlier: bool) {
        lock(&self.state).awaits_earlier = awaits_earlier;
    }

    /// Takes all jobs. The result is `spare`'s memory or more.
    pub fn take(&self, spare: VecDeque<T>) -> VecDeque<T> {
        debug_assert!(spare.is_empty(), "jobs would be lost");
        std::mem::replace(&mut lock(&self.state).jobs, spare)
    }

    pub fn job_count(&self) -> usize {
        lock(&self.state).jobs.len()
    }

    /// Whether there are jobs, and `accepts` holds for all of them.
    pub fn has_only(&self, accepts: impl Fn(&T) -> bool) -> bool {
        let state = lock(&self.state);
        !state.jobs.is_empty() && state.jobs.iter().all(accepts)
    }

    /// Lets the thread look.
    pub fn ring(&self) {
        self.ring_locked(&lock(&self.state));
    }

    fn ring_locked(&self, state: &InboxState<T>) {
        // Waking a thread takes a system call, even if nobody sleeps.
        if !self.is_rung.swap(true, Ordering::Relaxed) && state.is_parked {
            self.changed.notify_all();
        }
    }

    /// Called by a caller who acted as the writer and no longer does. Returns whether jobs are left, for which
    /// nobody may have been woken. `is_unnoted`: the log's end is not noted, so the thread must watch.
    pub fn has_more(&self, is_unnoted: bool) -> bool {
        let state = lock(&self.state);
        if is_unnoted && !state.watches_idle {
            self.ring_locked(&state);
        }
        !state.jobs.is_empty()
    }

    /// Waits until the thread must look, at most for `limit`. Only the thread calls this, when it no longer
    /// holds the writer. `watches_idle`: it looks after the log's end by itself.
    pub fn wait(&self, watches_idle: bool, limit: Option<Duration>) -> Wakeup {
        let mut state = lock(&self.state);
        state.watches_idle = watches_idle;
        // A caller may have left a job while the thread held the writer.
        let mut waited = Wakeup::Rung;
        if state.jobs.is_empty() {
            drop(state);
            let _ = self.spin_wait.spin(|| self.is_rung.load(Ordering::Relaxed).then_some(()));
            state = lock(&self.state);
            state.is_parked = true;
            while !self.is_rung.load(Ordering::Relaxed) {
                let Some(limit) = limit else {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                    continue;
                };
                let (guard, result) =
                    self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner);
                state = guard;
                if result.timed_out() {
                    waited = Wakeup::TimedOut;
                    break;
                }
            }
            state.is_parked = false;
        }
        if self.is_rung.swap(false, Ordering::Relaxed) {
            waited = Wakeup::Rung;
        }
        state.watches_idle = false;
        waited
    }

    /// The thread is gone: drops all jobs, now and from now on.
    pub fn end(&self) {
        let mut state = lock(&self.state);
        state.has_ended = true;
        let left = std::mem::take(&mut state.jobs);
        drop(state);
        drop(left);
    }
}

#[cfg(all(test, not(annals_shuttle)))]
mod tests {
    use super::*;

    const SHORT: Option<Duration> = Some(Duration::from_millis(1));

    #[test]
    fn only_ringing_jobs_wake_the_thread_all_keep_their_order() {
        let inbox = Inbox::default();
        assert_eq!(inbox.wait(false, SHORT), Wakeup::TimedOut);
        inbox.send(1, false);
        assert_eq!(inbox.wait(false, None), Wakeup::Rung, "left while the thread was busy");
        inbox.send(2, true);
        assert_eq!(inbox.take(VecDeque::new()), [1, 2]);
        assert_eq!(inbox.wait(false, None), Wakeup::Rung);
        assert_eq!(inbox.wait(false, SHORT), Wakeup::TimedOut, "a ring counts once");
    }

    #[test]
    fn job_that_a_taken_one_waits_for_rings() {
        let inbox = Inbox::default();
        for (awaits_earlier, rings) in [(false, false), (true, true), (false, false)] {
            inbox.note_gap(awaits_earlier);
            inbox.send(1, false);
            assert_eq!(inbox.is_rung.swap(false, Ordering::Relaxed), rings);
        }
    }

    #[test]
    fn unnoted_commits_ring_unless_the_thread_watches() {
        let inbox = Inbox::<u8>::default();
        assert!(!inbox.has_more(true));
        assert_eq!(inbox.wait(false, None), Wakeup::Rung);
        assert!(!inbox.has_more(false));
        assert_eq!(inbox.wait(false, SHORT), Wakeup::TimedOut);
        lock(&inbox.state).watches_idle = true;
        assert!(!inbox.has_more(true));
        assert_eq!(inbox.wait(true, SHORT), Wakeup::TimedOut);
        assert!(!lock(&inbox.state).watches_idle, "a thread that is awake does not watch");
    }

    #[test]
    fn jobs_are_dropped_after_the_end() {
        let inbox = Inbox::default();
        let job = std::sync::Arc::new(());
        inbox.send(job.clone(), false);
        inbox.end();
        inbox.send(job.clone(), true);
        assert_eq!((std::sync::Arc::strong_count(&job), inbox.job_count()), (1, 0));
    }
}
