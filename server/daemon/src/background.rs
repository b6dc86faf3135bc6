//! A thread that remembers ended runs for a daemon, so that ending a run does not wait for it.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use annals::{Namespace, RunUid, Status};

use annals_proxy::embeddings::environment_embedder;
use annals_review::run_memory::{RememberOutcome, remember_ended};

/// Maximum number of queued runs.
const WAITING_MAX: usize = 4096;

/// The queue of ended runs. Its thread starts with the first run.
#[derive(Debug, Default)]
pub(crate) struct RememberQueue(Mutex<Option<RememberThread>>);

#[derive(Debug)]
struct RememberThread {
    sender: SyncSender<RememberJob>,
    thread: JoinHandle<()>,
}

/// What the thread does next.
#[derive(Debug)]
enum RememberJob {
    Run(EndedRun),
    /// Tells that everything before it is done.
    Settle(SyncSender<()>),
}

/// A run that has ended.
#[derive(Debug)]
struct EndedRun {
    space: Namespace,
    uid: RunUid,
    status: Status,
}

impl RememberQueue {
    /// Queues an ended run. If the queue is full, the run is not remembered, and the log says so.
    pub(crate) fn remember(&self, space: &Namespace, uid: RunUid, status: Status) {
        let mut working = self.lock_thread();
        if working.is_none() {
            let (to, from) = sync_channel(WAITING_MAX);
            let thread = std::thread::Builder::new().name("annals-remember".to_owned());
            match thread.spawn(move || remember_runs(&from)) {
                Ok(thread) => *working = Some(RememberThread { sender: to, thread }),
                Err(error) => {
                    tracing::warn!(run = uid.0, %error, "a run was not remembered: the thread could not be started")
                }
            }
        }
        let Some(working) = &*working else { return };
        match working.sender.try_send(RememberJob::Run(EndedRun { space: space.clone(), uid, status })) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                tracing::warn!(run = uid.0, "a run was not remembered: {WAITING_MAX} others are queued");
            }
            Err(TrySendError::Disconnected(_)) => tracing::warn!(run = uid.0, "a run was not remembered"),
        }
    }

    /// Waits until the runs queued so far are remembered.
    pub(crate) fn settle(&self) {
        let (done, settled) = sync_channel(1);
        let sender = self.lock_thread().as_ref().map(|working| working.sender.clone());
        if sender.is_some_and(|sender| sender.send(RememberJob::Settle(done)).is_ok()) {
            let _ = settled.recv();
        }
    }

    /// Waits until all queued runs are remembered, and ends the thread.
    pub(crate) fn finish(&self) {
        let working = self.lock_thread().take();
        if let Some(RememberThread { sender: to, thread }) = working {
            drop(to);
            let _ = thread.join();
        }
    }

    fn lock_thread(&self) -> MutexGuard<'_, Option<RememberThread>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remember_runs(from: &Receiver<RememberJob>) {
    for job in from {
        let EndedRun { space, uid, status } = match job {
            RememberJob::Run(run) => run,
            RememberJob::Settle(done) => {
                let _ = done.send(());
                continue;
            }
        };
        match remember_ended(&space, uid, status, environment_embedder) {
            Ok(RememberOutcome::Stored(_, ids)) => tracing::debug!(run = uid.0, ?ids, "remembered a run"),
            Ok(RememberOutcome::Skipped(why)) => {
                tracing::debug!(run = uid.0, why, "a run was not remembered")
            }
            Err(error) => tracing::warn!(run = uid.0, %error, "a run could not be remembered"),
        }
    }
}
