//! The order in which requests arrived.
//!
//! Connections are accepted in the order in which the program opened them, but read in any order. So the first
//! request of a connection takes the connection's position. A request whose answer depends on the order waits
//! until the connections before it are read ([`Arrival::wait_for_earlier`]).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// How long after its acceptance a connection is waited for. A program may open one and not use it.
const UNREAD_WAIT: Duration = Duration::from_secs(1);

/// Numbers the requests of one proxy by arrival.
#[derive(Debug)]
pub(crate) struct Arrivals {
    state: Mutex<ArrivalState>,
    /// Counts connections that are no longer unread.
    read: watch::Sender<u64>,
    unread_wait: Duration,
}

#[derive(Debug)]
struct ArrivalState {
    next: u64,
    /// Accepted connections whose first request is not whole yet, by position, and when each was accepted.
    unread: BTreeMap<u64, Instant>,
}

impl Arrivals {
    pub(crate) fn new() -> Arc<Self> {
        Self::waiting(UNREAD_WAIT)
    }

    fn waiting(unread_wait: Duration) -> Arc<Self> {
        let state = ArrivalState { next: 1, unread: BTreeMap::new() };
        Arc::new(Self { state: Mutex::new(state), read: watch::Sender::new(0), unread_wait })
    }

    fn lock(&self) -> MutexGuard<'_, ArrivalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection was accepted.
    pub(crate) fn accept(self: &Arc<Self>) -> UnreadConnection {
        let mut state = self.lock();
        let position = state.next;
        state.next += 1;
        state.unread.insert(position, Instant::now());
        UnreadConnection { position, arrivals: self.clone() }
    }

    /// A request came by a connection that had one before.
    pub(crate) fn follow(self: &Arc<Self>) -> Arrival {
        let mut state = self.lock();
        let position = state.next;
        state.next += 1;
        Arrival { position, arrivals: self.clone() }
    }
}

/// A connection without a whole request yet. Dropped if none will come.
#[derive(Debug)]
pub(crate) struct UnreadConnection {
    position: u64,
    arrivals: Arc<Arrivals>,
}

impl UnreadConnection {
    /// The arrival of its first request, which is whole.
    pub(crate) fn read(self) -> Arrival {
        Arrival { position: self.position, arrivals: self.arrivals.clone() }
    }
}

impl Drop for UnreadConnection {
    fn drop(&mut self) {
        self.arrivals.lock().unread.remove(&self.position);
        self.arrivals.read.send_modify(|read| *read += 1);
    }
}

/// When a request arrived, among all requests of its proxy.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) position: u64,
    arrivals: Arc<Arrivals>,
}

impl Arrival {
    /// Waits until the connections that were accepted before this one are read, at most for [`UNREAD_WAIT`]
    /// after the acceptance of each.
    pub(crate) async fn wait_for_earlier(&self) {
        let mut read = self.arrivals.read.subscribe();
        loop {
            let limit = {
                let state = self.arrivals.lock();
                let last = state.unread.range(..self.position).map(|(_, accepted)| *accepted).max();
                last.map(|accepted| accepted + self.arrivals.unread_wait)
                    .filter(|limit| *limit > Instant::now())
            };
            let Some(limit) = limit else { return };
            // Whether by time or by a connection: look again.
            let _ = timeout_at(limit, read.changed()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use super::*;

    #[tokio::test]
    async fn first_request_waits_for_connections_accepted_before() {
        let arrivals = Arrivals::waiting(Duration::from_secs(3600));
        let (one, two) = (arrivals.accept(), arrivals.accept());
        let second = two.read();
        let mut waiting = std::pin::pin!(second.wait_for_earlier());
        let is_over = std::future::poll_fn(|cx| std::task::Poll::Ready(waiting.as_mut().poll(cx).is_ready()));
        assert!(!is_over.await, "the first connection is not read");
        assert_eq!(one.read().position, 1);
        waiting.await;
        assert_eq!((second.position, arrivals.follow().position), (2, 3));
    }

    #[tokio::test]
    async fn unused_connection_is_waited_for_once() {
        let arrivals = Arrivals::waiting(Duration::from_millis(10));
        let (_unused, gone, later) = (arrivals.accept(), arrivals.accept(), arrivals.accept());
        drop(gone);
        let (began, arrival) = (Instant::now(), later.read());
        arrival.wait_for_earlier().await;
        assert!(began.elapsed() >= Duration::from_millis(10));
        let again = arrivals.follow();
        let mut waiting = std::pin::pin!(again.wait_for_earlier());
        let is_over = std::future::poll_fn(|cx| std::task::Poll::Ready(waiting.as_mut().poll(cx).is_ready()));
        assert!(is_over.await, "its time is over");
    }
}
