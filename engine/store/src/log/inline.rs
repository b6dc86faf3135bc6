//! Commits written by their callers.
//!
//! A caller who waits for its batch anyway acts as the writer while it waits, if nobody else does: a small
//! commit takes less than waking a thread. The writer itself is one object behind one lock, so there is one
//! writer at any time. Its thread handles the jobs for which nobody waits, gathers commits where several
//! callers wait for syncs, notes the log's end when the log is idle, and closes.
//!
//! No job is left behind: a caller adds its job before it tries the lock, and the thread that held the lock
//! looks for jobs once more after it has released the lock ([`Inbox::has_more`], [`Inbox::wait`]).
//!
//! [`Inbox::has_more`]: super::inbox::Inbox::has_more
//! [`Inbox::wait`]: super::inbox::Inbox::wait

use std::sync::{Arc, TryLockError, Weak};

use crate::error::Error;
use crate::log::queue::{Durability, WriteQueue, WriterJob};
use crate::log::ticket::WriteFailure;
use crate::log::writer::LogWriter;
use crate::sync::{Mutex, rank};

/// The writer behind its lock. The thread that holds the lock acts as the writer.
pub type SharedWriter = Mutex<LogWriter, { rank::LOG_WRITER }>;

/// Maximum groups of batches that a caller writes for others after its own.
const FOREIGN_GROUPS_MAX: usize = 8;

/// The right of a caller who will wait to act as the writer. If it is dropped unused, the thread takes over.
#[derive(Debug)]
pub struct InlineWrite {
    queue: Arc<WriteQueue>,
    is_used: bool,
}

impl InlineWrite {
    pub fn new(queue: &Arc<WriteQueue>) -> Self {
        Self { queue: queue.clone(), is_used: false }
    }

    /// Acts as the writer until `is_done`, unless another thread does.
    pub fn run(mut self, is_done: impl Fn() -> bool) {
        self.is_used = true;
        act_as_writer(&self.queue, &is_done);
    }
}

impl Drop for InlineWrite {
    fn drop(&mut self) {
        if !self.is_used {
            self.queue.inbox.ring();
        }
    }
}

/// See [`InlineWrite::run`].
fn act_as_writer(queue: &WriteQueue, is_done: &dyn Fn() -> bool) {
    while !is_done() {
        let Some(writer) = queue.writer.get().and_then(Weak::upgrade) else {
            // The thread has not started yet, or is gone.
            queue.inbox.ring();
            return;
        };
        let mut held = match writer.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let unwinding = PoisonOnUnwind(queue);
        let mut foreign = 0;
        while held.handle_arrived() {
            if !is_done() {
                continue;
            }
            foreign += 1;
            // Nobody's sync is waited for after the own commit.
            if foreign > FOREIGN_GROUPS_MAX || !queue.inbox.has_only(is_written_at_once) {
                break;
            }
        }
        let is_unnoted = held.is_unnoted();
        std::mem::forget(unwinding);
        drop(held);
        if !queue.inbox.has_more(is_unnoted) {
            return;
        }
        if is_done() {
            queue.inbox.ring();
        }
    }
}

fn is_written_at_once(job: &WriterJob) -> bool {
    matches!(job, WriterJob::Batch(queued) if queued.durability == Durability::Process)
}

/// Ends writing if a thread panics while it acts as the writer: the log's state may be half changed.
/// Forgotten if none does.
pub struct PoisonOnUnwind<'a>(pub &'a WriteQueue);

impl Drop for PoisonOnUnwind<'_> {
    fn drop(&mut self) {
        let panicked = Error::bug("a thread panicked while it wrote the log");
        self.0.poison(WriteFailure::from_error(&panicked));
    }
}
