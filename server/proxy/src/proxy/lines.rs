//! Identical requests that overlapped when they were recorded, and wait for each other when they are replayed.
//!
//! Nothing in them tells which caller got which answer. What is left is the order in which they arrived, so each waits until all
//! are here, and the first gets the first answer. Where some do not come, the others wait no longer than [`QUIET`] after the last.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use annals::matching::{Answer, CallHash};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How long a line waits for one more request.
const QUIET: Duration = Duration::from_millis(100);

/// Lines by the hash of their request.
#[derive(Debug, Default)]
pub(super) struct Lines(Mutex<HashMap<CallHash, Line>>);

/// What a request in a line is answered.
pub(super) type Place = oneshot::Sender<annals::Result<Answer>>;

/// Requests that wait for each other.
#[derive(Debug)]
pub(super) struct Line {
    expected: usize,
    places: Vec<(u64, Place)>,
    last: Instant,
}

impl Lines {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<CallHash, Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// A line for this many requests.
    pub(super) fn of(expected: usize) -> Self {
        Self { expected, places: Vec::new(), last: Instant::now() }
    }

    /// A place in the line by arrival, and whether the line is full with it.
    pub(super) fn join(&mut self, arrived: u64) -> (oneshot::Receiver<annals::Result<Answer>>, bool) {
        let (place, answer) = oneshot::channel();
        self.places.push((arrived, place));
        self.last = Instant::now();
        (answer, self.places.len() >= self.expected)
    }

    /// From when on nobody else is waited for.
    pub(super) fn quiet_at(&self) -> Instant {
        self.last + QUIET
    }

    /// The places, the first to arrive first.
    pub(super) fn places(mut self) -> impl Iterator<Item = Place> {
        self.places.sort_by_key(|(arrived, _)| *arrived);
        self.places.into_iter().map(|(_, place)| place)
    }
}
