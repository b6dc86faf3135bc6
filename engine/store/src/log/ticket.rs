//! Tickets: the outcome of a submitted batch. They can be waited on, polled, or awaited without a runtime.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::error::{Error, ErrorKind, Result};
use crate::ids::Seqno;
use crate::log::inline::InlineWrite;
use crate::log::segments::lock;
use crate::log::spin_wait::SpinWait;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex, rank};

/// A failure shared by many tickets.
#[derive(Debug, Clone)]
pub struct WriteFailure {
    pub kind: ErrorKind,
    pub message: Arc<str>,
}

impl WriteFailure {
    pub fn from_error(error: &Error) -> Self {
        Self { kind: error.kind(), message: error.to_string().into() }
    }

    pub fn to_error(&self) -> Error {
        Error::new(self.kind, self.message.to_string())
    }
}

#[derive(Debug, Default)]
struct TicketState {
    done: Option<std::result::Result<Seqno, WriteFailure>>,
    /// A thread blocks on `changed`. Waking takes a system call, even if nobody sleeps.
    is_awaited: bool,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct TicketShared {
    /// Set after the state holds the outcome.
    is_done: AtomicBool,
    state: Mutex<TicketState, { rank::TICKET }>,
    changed: Condvar,
    /// `None`: a waiter blocks at once.
    spin_wait: Option<Arc<SpinWait>>,
}

/// The outcome of a submitted batch: the seqno of its last record, once the batch has the requested
/// durability.
///
/// Dropping a ticket does not cancel the batch.
#[derive(Debug)]
#[must_use = "a batch may still fail: wait for its ticket"]
pub struct Ticket {
    shared: Arc<TicketShared>,
    /// Of a caller who will wait: the batch was left to it.
    inline: Option<InlineWrite>,
}

/// The writer's end of a ticket.
#[derive(Debug)]
pub struct Completer(Arc<TicketShared>);

/// A ticket and its writer's end. A waiter blocks at once without `spin_wait`, which all waiters share.
pub fn new_ticket(spin_wait: Option<Arc<SpinWait>>) -> (Completer, Ticket) {
    let shared = Arc::new(TicketShared {
        is_done: AtomicBool::new(false),
        state: Mutex::default(),
        changed: Condvar::new(),
        spin_wait,
    });
    (Completer(shared.clone()), Ticket { shared, inline: None })
}

impl Ticket {
    /// A ticket whose batch is left to the caller who waits for it.
    pub fn with_inline(self, inline: InlineWrite) -> Self {
        Self { inline: Some(inline), ..self }
    }

    /// Waits until the batch has the requested durability.
    ///
    /// # Errors
    /// `Unavailable` if the system refused to write or sync, `Poisoned` after an earlier failure.
    pub fn wait(self) -> Result<Seqno> {
        let Self { shared, inline } = self;
        let is_done = || shared.is_done.load(Ordering::Acquire);
        if let Some(inline) = inline {
            inline.run(is_done);
        }
        if let Some(spin_wait) = &shared.spin_wait {
            let _ = spin_wait.spin(|| is_done().then_some(()));
        }
        let mut state = lock(&shared.state);
        loop {
            match &state.done {
                Some(done) => return done.clone().map_err(|failure| failure.to_error()),
                None => {
                    state.is_awaited = true;
                    state = shared.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
                }
            }
        }
    }

    /// Whether [`Ticket::wait`] would return at once.
    #[must_use]
    pub fn is_done(&self) -> bool {
        lock(&self.shared.state).done.is_some()
    }
}

impl Future for Ticket {
    type Output = Result<Seqno>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // A task must not block: the thread takes over.
        self.inline = None;
        let mut state = lock(&self.shared.state);
        match &state.done {
            Some(done) => Poll::Ready(done.clone().map_err(|failure| failure.to_error())),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Completer {
    pub fn complete(self, done: std::result::Result<Seqno, WriteFailure>) {
        self.set(done);
    }

    fn set(&self, done: std::result::Result<Seqno, WriteFailure>) {
        let mut state = lock(&self.0.state);
        if state.done.is_none() {
            state.done = Some(done);
            self.0.is_done.store(true, Ordering::Release);
            if state.is_awaited {
                self.0.changed.notify_all();
            }
            if let Some(waker) = state.waker.take() {
                waker.wake();
            }
        }
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        // A writer that ends without an answer must not leave a waiter blocked.
        self.set(Err(WriteFailure {
            kind: ErrorKind::Poisoned,
            message: "the writer stopped: reopen the store".into(),
        }));
    }
}

#[cfg(all(test, not(annals_shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn dropped_completer_poisons_its_ticket() {
        let (completer, ticket) = new_ticket(Some(Arc::default()));
        assert!(!ticket.is_done());
        drop(completer);
        assert!(ticket.is_done());
        assert_eq!(ticket.wait().unwrap_err().kind(), ErrorKind::Poisoned);
    }

    #[test]
    fn first_completion_stands() {
        let (completer, ticket) = new_ticket(Some(Arc::default()));
        completer.complete(Ok(Seqno(7)));
        assert!(ticket.is_done());
        assert_eq!(ticket.wait().unwrap(), Seqno(7));
    }
}
