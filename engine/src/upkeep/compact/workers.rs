//! Runs long work on several threads, in independent jobs.
//!
//! Invariants: no job starts after one has failed; when [`run_jobs`] returns, no other thread is working.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::Io;
use crate::log::segments::lock;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

struct WorkerPool<T, F> {
    job: F,
    count: usize,
    next: AtomicUsize,
    failed: AtomicBool,
    ends: Mutex<Vec<Option<Result<T>>>>,
}

/// Runs the jobs 0 to `count` (exclusive) on at most `io.threads()` threads and returns their results in
/// order. The extra threads run at lower priority.
///
/// # Errors
/// The error of the lowest-numbered job that failed.
pub(super) fn run_jobs<T: Send + 'static>(
    io: &dyn Io,
    count: usize,
    job: impl Fn(usize) -> Result<T> + Send + Sync + 'static,
) -> Result<Vec<T>> {
    let crew = Arc::new(WorkerPool {
        job,
        count,
        next: AtomicUsize::new(0),
        failed: AtomicBool::new(false),
        ends: Mutex::new((0..count).map(|_| None).collect()),
    });
    // If the system refuses a thread, fewer threads do the work.
    let others: Vec<_> = (1..io.worker_threads().min(count))
        .filter_map(|_| {
            let crew = crew.clone();
            let begin = io.lower_priority();
            let work = move || {
                begin();
                crew.work();
            };
            io.spawn("annals-compact", Box::new(work)).ok()
        })
        .collect();
    crew.work();
    // A panicking thread leaves its job without a result; that is checked below.
    others.into_iter().for_each(|thread| drop(thread.join()));
    let ends = std::mem::take(&mut *lock(&crew.ends));
    let unended = ends.iter().any(Option::is_none);
    let done: Vec<T> = ends.into_iter().flatten().collect::<Result<_>>()?;
    match unended {
        false => Ok(done),
        true => Err(Error::bug("a job of a compaction has no result")),
    }
}

impl<T, F: Fn(usize) -> Result<T>> WorkerPool<T, F> {
    fn work(&self) {
        while !self.failed.load(Ordering::Acquire) {
            let at = self.next.fetch_add(1, Ordering::AcqRel);
            if at >= self.count {
                return;
            }
            let end = (self.job)(at);
            if end.is_err() {
                self.failed.store(true, Ordering::Release);
            }
            if let Some(place) = lock(&self.ends).get_mut(at) {
                *place = Some(end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::io::sim::SimIo;
    use crate::sync::thread;

    #[test]
    fn results_keep_job_order_and_a_failure_stops_new_jobs() {
        for threads in [1, 2, 5, 40] {
            let io = SimIo::new(1);
            io.set_threads(threads);
            assert_eq!(
                run_jobs(&io, 30, |at| Ok(at * at)).unwrap(),
                (0..30).map(|at| at * at).collect::<Vec<_>>()
            );
            assert!(run_jobs(&io, 0, |_| -> Result<()> { panic!("there is no job") }).unwrap().is_empty());
            let begun = Arc::new(AtomicUsize::new(0));
            let count = begun.clone();
            let failed = run_jobs(&io, 10_000, move |at| {
                count.fetch_add(1, Ordering::SeqCst);
                if at < 3 { Ok(()) } else { Err(Error::invalid(format!("job {at}"))) }
            });
            assert_eq!(failed.unwrap_err().to_string(), Error::invalid("job 3").to_string());
            // Each other thread may have started one more job.
            assert!(begun.load(Ordering::SeqCst) <= 3 + threads, "{threads}: {begun:?}");
        }
    }

    #[test]
    fn panicking_job_is_an_error_and_does_not_hang() {
        let io = SimIo::new(1);
        io.set_threads(2);
        let here = thread::current().id();
        let ended = run_jobs(&io, 200, move |_| {
            assert!(thread::current().id() == here, "planted");
            thread::sleep(std::time::Duration::from_millis(1));
            Ok(())
        });
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Bug);
    }
}
