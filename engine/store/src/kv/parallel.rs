//! Runs jobs on as many threads as the caller says.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::io::Io;
use crate::log::segments::lock;
use crate::sync::Mutex;

/// A job that borrows nothing from its caller.
pub type ParallelJob<T> = Box<dyn FnOnce() -> T + Send>;

/// Runs all jobs on `threads` threads, the caller's included, and returns the results in the order of the
/// jobs. If the system refuses a thread, fewer threads do the work.
///
/// # Errors
/// `Bug` if a job panicked.
pub fn run_all<T: Send + 'static>(io: &dyn Io, threads: usize, jobs: Vec<ParallelJob<T>>) -> Result<Vec<T>> {
    let count = jobs.len();
    if threads <= 1 || count <= 1 {
        return Ok(jobs.into_iter().map(|job| job()).collect());
    }
    let waiting = Arc::new(Mutex::new(jobs.into_iter().enumerate()));
    let done: Arc<Mutex<Vec<Option<T>>>> = Arc::new(Mutex::new((0..count).map(|_| None).collect()));
    let work = {
        let (waiting, done) = (waiting.clone(), done.clone());
        move || {
            loop {
                // Release the lock before the job begins.
                let next = lock(&waiting).next();
                let Some((index, job)) = next else { return };
                let came = job();
                if let Some(place) = lock(&done).get_mut(index) {
                    *place = Some(came);
                }
            }
        }
    };
    let helpers: Vec<_> = (1..threads.min(count))
        .map_while(|number| io.spawn(&format!("annals-read-{number}"), Box::new(work.clone())).ok())
        .collect();
    work();
    for helper in helpers {
        // A thread that panicked leaves its job without a result, which is checked below.
        let _ = helper.join();
    }
    let done = std::mem::take(&mut *lock(&done));
    done.into_iter().map(|came| came.ok_or_else(|| Error::bug("a reading thread ended early"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::RealIo;

    #[test]
    fn parallel_results_keep_the_order_of_jobs() {
        for threads in [0, 1, 2, 5] {
            let jobs = (0..100u64).map(|n| Box::new(move || n * n) as ParallelJob<u64>).collect();
            let came = run_all(&RealIo::new(), threads, jobs).unwrap();
            assert!(came.into_iter().eq((0..100).map(|n| n * n)), "{threads} threads");
        }
    }
}
