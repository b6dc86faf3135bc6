//! Identical requests that overlapped when they were recorded, and wait for each other when they are replayed.
//!
//! Nothing in them tells which caller got which answer. What is left is the order in which they arrived, so each waits until all
//! are here, and the first gets the first answer. Where some do not come, the others wait no longer than [`QUIET`] after the last.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use annals::matching::{CallHash, MatchOutcome};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How long a line waits for one more request.
const QUIET: Duration = Duration::from_millis(100);

/// Lines by the hash of their request.
#[derive(Debug, Default)]
pub(super) struct IdenticalRequestQueues(Mutex<HashMap<CallHash, IdenticalRequestQueue>>);

/// What a request in a line is answered.
pub(super) type AnswerSender = oneshot::Sender<annals::Result<MatchOutcome>>;

/// Requests that wait for each other.
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
    /// A line for this many requests.
    pub(super) fn new(expected: usize) -> Self {
        Self { expected, places: Vec::new(), last: Instant::now() }
    }

    /// A place in the line by arrival, and whether the line is full with it.
    pub(super) fn join(&mut self, arrived: u64) -> (oneshot::Receiver<annals::Result<MatchOutcome>>, bool) {
        let (place, answer) = oneshot::channel();
        self.places.push((arrived, place));
        self.last = Instant::now();
        (answer, self.places.len() >= self.expected)
    }

    /// From when on nobody else is waited for.
    pub(super) fn waits_until(&self) -> Instant {
        self.last + QUIET
    }

    /// The places, the first to arrive first.
    pub(super) fn into_senders(mut self) -> impl Iterator<Item = AnswerSender> {
        self.places.sort_by_key(|(arrived, _)| *arrived);
        self.places.into_iter().map(|(_, place)| place)
    }
}
