//! Keeps the proxy's thread awake for a moment after an answer, because the next request is likely near.
//! Waking a sleeping thread takes longer than answering from a recording.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::{AbortHandle, yield_now};
use tokio::time::Instant;

/// How long the thread stays awake: about the time a client needs to read an answer and ask again.
const AWAKE: Duration = Duration::from_micros(150);

/// Keeps the thread that carries traffic awake until it is dropped.
#[derive(Debug)]
pub(super) struct AwakeGuard {
    answered: Arc<Notify>,
    task: Option<AbortHandle>,
}

impl AwakeGuard {
    /// Does nothing on one core, where the client would have to run on the same core.
    pub(super) fn new() -> Self {
        let answered = Arc::new(Notify::new());
        let own = answered.clone();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let task = (cores > 1).then(|| tokio::spawn(keep_awake(own)).abort_handle());
        Self { answered, task }
    }

    /// Restarts the waking time: an answer goes out.
    pub(super) fn note_answer(&self) {
        self.answered.notify_one();
    }
}

impl Drop for AwakeGuard {
    fn drop(&mut self) {
        self.task.iter().for_each(AbortHandle::abort);
    }
}

async fn keep_awake(answered: Arc<Notify>) {
    loop {
        answered.notified().await;
        let until = Instant::now() + AWAKE;
        while Instant::now() < until {
            // Each turn polls for new events without blocking.
            yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An endless waking time would occupy one core for ever.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn awake_guard_sleeps_after_its_time() {
        let awake = AwakeGuard::new();
        awake.note_answer();
        let metrics = tokio::runtime::Handle::current().metrics();
        // Parked twice more: an awake thread does not park.
        let parked = metrics.worker_park_count(0);
        tokio::time::timeout(Duration::from_secs(60), async {
            while metrics.worker_park_count(0) < parked + 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await
        .unwrap();
    }
}
