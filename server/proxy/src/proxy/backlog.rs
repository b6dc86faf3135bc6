//! A queue of work for the store, done in order by a thread of its own. Threads that carry traffic never wait
//! for it.
//!
//! A job may be delayed until an urgent job follows or its time is over. Waking the thread for each chunk of
//! each stream would cost more than the work, and the moment after an answer belongs to the program.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use tokio::time::Instant;

/// One unit of work.
type BacklogJob = Box<dyn FnOnce() + Send>;

/// The niceness of the thread below the threads that carry traffic: it yields on a full machine and still
/// gets a quarter of a core.
const NICE: i32 = 5;

/// Maximum number of waiting jobs; a caller that pushes one more waits for all of them.
const JOBS_MAX: usize = 4096;

/// A few backlogs shared by many users. Each user's work is done in order and may wait for the others in its
/// backlog.
pub(crate) struct BacklogPool {
    name: &'static str,
    /// Each is started when first needed.
    backlogs: Vec<Mutex<Option<Arc<Backlog>>>>,
    next: AtomicUsize,
}

impl BacklogPool {
    /// At most `most` backlogs, at least one.
    pub(crate) fn new(name: &'static str, most: usize) -> Self {
        Self {
            name,
            backlogs: (0..most.max(1)).map(|_| Mutex::default()).collect(),
            next: AtomicUsize::new(0),
        }
    }

    /// The next backlog in turn.
    ///
    /// # Errors
    /// As [`Backlog::new`].
    pub(crate) fn next_backlog(&self) -> std::io::Result<Arc<Backlog>> {
        let at = self.next.fetch_add(1, Ordering::Relaxed) % self.backlogs.len();
        let mut one = self.backlogs[at].lock().unwrap_or_else(PoisonError::into_inner);
        match &*one {
            Some(backlog) => Ok(backlog.clone()),
            None => Ok(one.insert(Arc::new(Backlog::new(self.name)?)).clone()),
        }
    }

    /// As [`Backlog::run_now`], for all of them.
    pub(crate) fn run_now(&self) {
        for one in &self.backlogs {
            one.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|backlog| backlog.run_now());
        }
    }
}

/// The queue and its thread. The thread ends after the last job, when the queue is dropped.
pub(crate) struct Backlog {
    shared: Arc<BacklogShared>,
    thread: ThreadId,
}

#[derive(Default)]
struct BacklogShared {
    queue: Mutex<BacklogQueue>,
    /// Tells the thread to look at the queue earlier than planned.
    wake: Condvar,
}

#[derive(Default)]
struct BacklogQueue {
    jobs: VecDeque<BacklogJob>,
    /// When the waiting jobs must be done at the latest; `None` if there are none.
    due: Option<Instant>,
    /// Whether jobs are running.
    busy: bool,
    closed: bool,
}

impl BacklogShared {
    fn lock(&self) -> MutexGuard<'_, BacklogQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requires the queue to be done within this time. Wakes the thread only if that is earlier than before.
    fn wake_within(&self, queue: &mut BacklogQueue, within: Duration) {
        let due = Instant::now() + within;
        if queue.due.is_none_or(|known| due < known) {
            queue.due = Some(due);
            self.wake.notify_one();
        }
    }
}

impl Backlog {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system starts no thread.
    pub(crate) fn new(name: &str) -> std::io::Result<Self> {
        let shared = Arc::new(BacklogShared::default());
        let own = shared.clone();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            // If the system refuses, the thread keeps its normal priority.
            let _ = rustix::process::setpriority_process(None, NICE);
            run_jobs(&own);
        })?;
        Ok(Self { shared, thread: thread.thread().id() })
    }

    /// Queues a job behind all earlier ones; it runs within this time if the thread is otherwise idle.
    pub(crate) fn push(&self, within: Duration, job: impl FnOnce() + Send + 'static) {
        // A job pushed by a job runs before the waiting ones: no other thread could run it.
        if std::thread::current().id() == self.thread {
            return job();
        }
        let mut queue = self.shared.lock();
        while queue.jobs.len() >= JOBS_MAX {
            drop(queue);
            self.flush();
            queue = self.shared.lock();
        }
        queue.jobs.push_back(Box::new(job));
        self.shared.wake_within(&mut queue, within);
    }

    /// Runs all queued jobs at once.
    pub(crate) fn run_now(&self) {
        let mut queue = self.shared.lock();
        if !queue.jobs.is_empty() {
            self.shared.wake_within(&mut queue, Duration::ZERO);
        }
    }

    /// Waits until all jobs pushed so far are done.
    pub(crate) fn flush(&self) {
        use tokio::runtime::{Handle, RuntimeFlavor};
        let (last, all) = sync_channel::<()>(0);
        let mut queue = self.shared.lock();
        if std::thread::current().id() == self.thread || queue.jobs.is_empty() && !queue.busy {
            return;
        }
        queue.jobs.push_back(Box::new(move || drop(last)));
        self.shared.wake_within(&mut queue, Duration::ZERO);
        drop(queue);
        let many = Handle::try_current().is_ok_and(|at| at.runtime_flavor() == RuntimeFlavor::MultiThread);
        // Ends when the other end is dropped.
        let _ = if many { tokio::task::block_in_place(|| all.recv()) } else { all.recv() };
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.wake.notify_one();
    }
}

fn run_jobs(shared: &BacklogShared) {
    let mut queue = shared.lock();
    loop {
        let now = Instant::now();
        queue = match queue.due {
            _ if queue.closed && queue.jobs.is_empty() => return,
            None => shared.wake.wait(queue).unwrap_or_else(PoisonError::into_inner),
            Some(due) if due > now && !queue.closed => {
                shared.wake.wait_timeout(queue, due - now).unwrap_or_else(PoisonError::into_inner).0
            }
            Some(_) => {
                queue.due = None;
                let jobs = std::mem::take(&mut queue.jobs);
                queue.busy = true;
                drop(queue);
                // A panicking job must not stop the others.
                jobs.into_iter().for_each(|job| drop(catch_unwind(AssertUnwindSafe(job))));
                let mut queue = shared.lock();
                queue.busy = false;
                queue
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// Longer than any test waits.
    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn flush_runs_earlier_jobs_at_once() {
        let (done, all) = channel();
        let backlog = Backlog::new("test").unwrap();
        let first = done.clone();
        backlog.push(LONG, move || first.send(1).unwrap());
        backlog.push(Duration::ZERO, move || done.send(2).unwrap());
        assert_eq!(all.iter().collect::<Vec<_>>(), [1, 2]);
        let (done, all) = channel();
        backlog.push(LONG, move || done.send(3).unwrap());
        backlog.flush();
        assert_eq!(all.try_recv(), Ok(3));
    }

    #[test]
    fn jobs_run_in_order_and_all_before_drop() {
        let (done, all) = channel();
        let backlog = Backlog::new("test").unwrap();
        for number in 0..10_000 {
            let done = done.clone();
            let within = if number % 1000 == 999 { Duration::ZERO } else { LONG };
            backlog.push(within, move || done.send(number).unwrap());
        }
        drop((backlog, done));
        assert_eq!(all.iter().collect::<Vec<_>>(), (0..10_000).collect::<Vec<_>>());
    }

    #[test]
    fn panicking_job_leaves_other_jobs() {
        let (done, all) = channel();
        let backlog = Backlog::new("test").unwrap();
        backlog.push(LONG, || panic!("planted"));
        backlog.push(Duration::ZERO, move || done.send(()).unwrap());
        assert_eq!(all.iter().count(), 1);
    }

    #[test]
    fn delayed_job_runs_without_a_waiter() {
        let (done, all) = channel();
        let backlog = Backlog::new("test").unwrap();
        for _ in 0..3 {
            let done = done.clone();
            backlog.push(Duration::from_millis(1), move || done.send(()).unwrap());
            // Also after the thread has gone to sleep.
            all.recv().unwrap();
        }
    }

    /// A waiter was once told that all was done while the last jobs still ran: a run was seen as open right
    /// after its last answer.
    #[test]
    fn flush_waits_for_running_jobs() {
        let (began, has_begun) = channel();
        let (done, all) = channel();
        let backlog = Backlog::new("test").unwrap();
        for number in 0..100 {
            let (began, done) = (began.clone(), done.clone());
            backlog.push(Duration::ZERO, move || {
                began.send(()).unwrap();
                (0..1000).for_each(|_| std::thread::yield_now());
                done.send(number).unwrap();
            });
            has_begun.recv().unwrap();
            backlog.flush();
            assert_eq!(all.try_recv(), Ok(number));
        }
    }

    #[test]
    fn many_backlogs_share_few_threads() {
        let backlogs = BacklogPool::new("test", 3);
        let (done, all) = channel();
        let shares: Vec<_> = (0..200).map(|_| backlogs.next_backlog().unwrap()).collect();
        for (number, backlog) in shares.iter().enumerate() {
            let done = done.clone();
            backlog.push(LONG, move || done.send((std::thread::current().id(), number)).unwrap());
        }
        drop(done);
        backlogs.run_now();
        let done: Vec<_> = all.iter().collect();
        let threads: std::collections::HashSet<_> = done.iter().map(|(thread, _)| *thread).collect();
        assert_eq!((done.len(), threads.len()), (200, 3));
    }

    #[test]
    fn job_can_push_a_job() {
        let (done, all) = channel();
        let backlog = Arc::new(Backlog::new("test").unwrap());
        let inner = backlog.clone();
        backlog.push(Duration::ZERO, move || {
            let own = inner.clone();
            inner.push(LONG, move || done.send(own.shared.lock().closed).unwrap());
        });
        assert_eq!(all.recv(), Ok(false));
    }
}
