//! Entries that XADD adds to one run in a row within a turn, and at the ends of the turns of one poll of the
//! client loop: they become one batch, and their replies are known once it is submitted.
//!
//! A batch per entry would cost a flush of the compressor, a batch record and a wake-up of the writer for
//! each entry of a pipeline, and for each client of a stream.

use std::sync::Arc;

use annals::{Durability, Frame, Ticket};

use super::databases::TurnBatch;
use super::open_runs::DaemonRun;
use super::turn::CommandRefusal;
use annals_wire::resp::Reply;

/// Overhead of an entry besides its bytes.
const ENTRY_BYTES: usize = 128;
/// Entries of this many bytes are joined by no others.
const JOINED_BYTES_MAX: usize = 4 << 20;

/// Entries of one run that are to be added.
#[derive(Debug)]
pub(super) struct StreamEntries {
    open: Arc<DaemonRun>,
    frames: Vec<Frame>,
    bytes: usize,
}

impl StreamEntries {
    /// Whether this command adds an entry to the same run.
    pub(super) fn continues_with(&self, words: &[Vec<u8>]) -> bool {
        let word = |at: usize| words.get(at).map(Vec::as_slice).unwrap_or_default();
        word(0).eq_ignore_ascii_case(b"xadd") && word(1) == self.open.run.name().as_bytes()
    }

    /// Appends entries of the same run. Returns them unchanged if they are of another run, or if these are
    /// enough for a batch.
    pub(super) fn join(&mut self, more: Self) -> Result<(), Self> {
        if !Arc::ptr_eq(&self.open, &more.open) || self.bytes >= JOINED_BYTES_MAX {
            return Err(more);
        }
        self.bytes += more.bytes;
        self.frames.extend(more.frames);
        Ok(())
    }

    pub(super) fn count(&self) -> usize {
        self.frames.len()
    }

    /// Approximate bytes of the entries.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Adds an entry to the deferred ones, which are of the same run.
pub(super) fn defer(entries: &mut Option<StreamEntries>, open: Arc<DaemonRun>, frame: Frame) {
    let bytes = usize::try_from(frame.input.len()).unwrap_or(usize::MAX).saturating_add(ENTRY_BYTES);
    match entries {
        Some(entries) => {
            entries.bytes += bytes;
            entries.frames.push(frame);
        }
        None => *entries = Some(StreamEntries { open, frames: vec![frame], bytes }),
    }
}

/// Whether an entry of this run can join the deferred ones.
pub(super) fn accepts_run(entries: &Option<StreamEntries>, open: &Arc<DaemonRun>) -> bool {
    entries.as_ref().is_none_or(|entries| Arc::ptr_eq(&entries.open, open))
}

/// Submits the entries as one batch of their turn; returns their replies in order.
pub(super) fn submit_entries(entries: StreamEntries, work: &mut TurnBatch<'_>, now_ns: u64) -> Vec<Reply> {
    let (replies, ticket) = submit_batch(entries, now_ns);
    if let Some(ticket) = ticket {
        work.await_before_reply(ticket);
    }
    replies
}

/// Submits the entries as one batch. Returns their replies in order, and what to wait for before sending
/// them; `None` if nothing was written.
pub(super) fn submit_batch(entries: StreamEntries, now_ns: u64) -> (Vec<Reply>, Option<Ticket>) {
    let StreamEntries { open, frames, .. } = entries;
    let count = frames.len();
    let all = |why: String| ((0..count).map(|_| Reply::Error(why.clone())).collect(), None);
    let mut batch = match open.run.batch() {
        Ok(batch) => batch,
        Err(error) => return all(CommandRefusal::from(error).0),
    };
    batch.durability(Durability::Disk);
    // A run has one batch at a time, so times are in the order of numbers.
    let ms = open.monotonic_ms(now_ns / 1_000_000);
    let mut replies = Vec::with_capacity(count);
    let mut any = false;
    for mut frame in frames {
        frame.started_ns = Some(now_ns.max(ms.saturating_mul(1_000_000)));
        replies.push(match batch.frame(frame) {
            Ok(seq) => {
                any = true;
                Reply::text(format!("{ms}-{seq}"))
            }
            Err(error) => Reply::Error(CommandRefusal::from(error).0),
        });
    }
    if !any {
        return (replies, None);
    }
    match batch.submit_inline() {
        Ok(ticket) => (replies, Some(ticket)),
        Err(error) => all(CommandRefusal::from(error).0),
    }
}
