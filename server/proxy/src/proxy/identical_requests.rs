//! Identical requests that overlapped in the recording wait for each other in a replay.
//!
//! Nothing in them tells which caller got which answer, so only the arrival order is left. Each waits until
//! all have arrived, and the first gets the first answer. If some never come, the others wait at most
//! [`QUIET`] after the last arrival.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use annals::replay::matching::{CallHash, MatchOutcome};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How long the queue waits for one more request.
const QUIET: Duration = Duration::from_millis(100);

/// Queues by the hash of their request.
#[derive(Debug, Default)]
pub(super) struct IdenticalRequestQueues(Mutex<HashMap<CallHash, IdenticalRequestQueue>>);

/// Receives the answer to a queued request.
pub(super) type AnswerSender = oneshot::Sender<annals::Result<MatchOutcome>>;

/// Identical requests that wait for each other.
#[derive(Debug)]
pub(super) struct IdenticalRequestQueue {
    expected: usize,
    places: Vec<(u64, AnswerSender)>,
    last: Instant,
}

impl IdenticalRequestQueues {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<CallHash, IdenticalRequestQueue>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IdenticalRequestQueue {
    /// A queue for this many requests.
    pub(super) fn new(expected: usize) -> Self {
        Self { expected, places: Vec::new(), last: Instant::now() }
    }

    /// Adds a request by arrival order. Also returns whether the queue is complete with it.
    pub(super) fn join(&mut self, arrived: u64) -> (oneshot::Receiver<annals::Result<MatchOutcome>>, bool) {
        let (place, answer) = oneshot::channel();
        self.places.push((arrived, place));
        self.last = Instant::now();
        (answer, self.places.len() >= self.expected)
    }

    /// The time at which the queue stops waiting for more requests.
    pub(super) fn waits_until(&self) -> Instant {
        self.last + QUIET
    }

    /// The senders in order of arrival.
    pub(super) fn into_senders(mut self) -> impl Iterator<Item = AnswerSender> {
        self.places.sort_by_key(|(arrived, _)| *arrived);
        self.places.into_iter().map(|(_, place)| place)
    }
}
