//! Records frames whose output arrives in parts.

use std::ops::Deref;
use std::sync::Arc;

use crate::blob::Extent;
use crate::error::{Error, Result};
use crate::ids::BlobId;
use crate::log::queue::{Durability, WriteThread};
use crate::log::segments::lock;
use crate::log::ticket::Ticket;
use crate::sync::{Mutex, rank};
use crate::trace::batch::BegunFrame;
use crate::trace::heads::PartHead;
use crate::trace::kinds;
use crate::trace::lanes::BodySlot;
use crate::trace::model::{Frame, Severity};
use crate::trace::recorder::Run;
use annals_store::kv::content::{Content, StoredBlob};
use annals_store::kv::write::BatchWriter;

/// Pending output is written to the log once it has this many bytes.
const PART_BYTES: usize = 16 << 10;
/// Output that arrives at least this long after the last part is written at once, in nanoseconds.
const PART_NS: u64 = 50_000_000;

/// A frame that has begun. Its written parts survive a crash: the frame then reads as incomplete, with the
/// output that had arrived. `R` is how it refers to its run: `&Run`, or `Arc<Run>` if it must outlive the
/// caller.
#[derive(Debug)]
pub struct OpenFrame<R> {
    run: R,
    begun: BegunFrame,
    state: Mutex<ArrivedOutput, { rank::STREAM_STATE }>,
}

/// A part that the log refuses changes nothing but `last_part_ns`, so that it can be written later.
#[derive(Debug)]
struct ArrivedOutput {
    written: ArrivedParts,
    /// The output after that.
    pending: Vec<u8>,
    last_part_ns: u64,
    finished: bool,
}

impl ArrivedOutput {
    fn len(&self) -> u64 {
        self.written.len + self.pending.len() as u64
    }
}

/// The output of an unfinished frame that the log holds.
#[derive(Debug, Clone, Default)]
pub(crate) struct ArrivedParts {
    pub(crate) extents: Vec<Extent>,
    pub(crate) hasher: blake3::Hasher,
    pub(crate) len: u64,
    pub(crate) parts: u32,
}

impl Run {
    /// Begins a frame whose output arrives later; `frame.output` is ignored. When this returns, the beginning
    /// has the durability of the store's options.
    ///
    /// # Errors
    /// As [`Run::record`].
    pub fn begin_frame(&self, frame: &Frame) -> Result<OpenFrame<&Self>> {
        OpenFrame::begin(self, frame)
    }
}

/// The values of a frame that are known only when its output is complete.
#[derive(Debug, Clone, Default)]
pub struct Ending {
    /// The component failed.
    pub error: bool,
    /// The frame's severity; ignored if lower than the one at its beginning.
    pub severity: Severity,
    /// Metadata (JSON) that replaces the metadata given at the beginning.
    pub metadata: Option<Vec<u8>>,
    /// How long it took, in nanoseconds. Default: from its beginning until now.
    pub duration_ns: Option<u64>,
}

impl<R: Deref<Target = Run>> OpenFrame<R> {
    /// As [`Run::begin_frame`], for callers that must own the run.
    ///
    /// # Errors
    /// As [`Run::record`].
    pub fn begin(run: R, frame: &Frame) -> Result<Self> {
        let durability = run.core.options.durability;
        let (begun, ticket) = Self::submit_begin(run, frame, durability)?;
        ticket.wait()?;
        Ok(begun)
    }

    /// As [`OpenFrame::begin`], without waiting; also returns a ticket for the beginning.
    ///
    /// # Errors
    /// As [`Run::record`].
    pub fn submit_begin(run: R, frame: &Frame, durability: Durability) -> Result<(Self, Ticket)> {
        let mut batch = run.batch()?;
        batch.durability(durability);
        let begun = batch.start_frame(frame, false)?;
        batch.put_begun_frame(&begun)?;
        let ticket = batch.submit()?;
        Ok((Self::resumed(run, begun, ArrivedParts::default()), ticket))
    }

    /// An unfinished frame with the output that the log holds.
    pub(crate) fn resumed(run: R, begun: BegunFrame, arrived: ArrivedParts) -> Self {
        let last_part_ns = run.core.io.monotonic_ns();
        let state = ArrivedOutput { written: arrived, pending: Vec::new(), last_part_ns, finished: false };
        Self { run, begun, state: Mutex::new(state) }
    }

    /// Length of the output so far, in bytes. Of a frame that was taken up again: what the log holds.
    #[must_use]
    pub fn output_len(&self) -> u64 {
        lock(&self.state).len()
    }

    /// The frame's number.
    #[must_use]
    pub fn seq(&self) -> u32 {
        self.begun.head.seq
    }

    /// Appends to the output. The pending bytes are written to the log once they are 16 KiB, or 50 ms after
    /// the last write. [`OpenFrame::flush`] writes them at once.
    ///
    /// # Errors
    /// `Invalid` over the limit for bodies, or after the frame has ended; `Unavailable`, `Poisoned`. Then nothing of
    /// `bytes` is part of the output, and what was pending before still is.
    pub fn append(&self, bytes: &[u8]) -> Result<()> {
        self.append_with(bytes, &mut |state| {
            let now = self.run.core.io.monotonic_ns();
            let is_due =
                state.pending.len() >= PART_BYTES || now.saturating_sub(state.last_part_ns) >= PART_NS;
            if is_due {
                self.write_part(state, self.run.core.options.durability)?;
            }
            Ok(())
        })
    }

    /// Appends to the output and hands all pending bytes to the writer without waiting. Returns the output's
    /// length so far, and a ticket. Without pending bytes, the ticket is for what was queued before, because
    /// the length counts it.
    ///
    /// # Errors
    /// As [`OpenFrame::append`].
    pub fn submit_append(&self, bytes: &[u8], durability: Durability) -> Result<(u64, Ticket)> {
        self.append_with(bytes, &mut |state| {
            let ticket = match self.write_part(state, durability)? {
                Some(ticket) => ticket,
                None => self.run.core.log()?.queue.submit_barrier(),
            };
            Ok((state.len(), ticket))
        })
    }

    /// Appends to the pending bytes, and takes them back if `write` fails.
    fn append_with<T>(
        &self,
        bytes: &[u8],
        write: &mut dyn FnMut(&mut ArrivedOutput) -> Result<T>,
    ) -> Result<T> {
        let mut state = lock(&self.state);
        self.check_unfinished(&state)?;
        let limit = self.run.core.options.body_bytes_max;
        if state.len() + bytes.len() as u64 > limit {
            return Err(Error::invalid(format!("an output is over the limit of {limit} bytes for bodies")));
        }
        let before = state.pending.len();
        state.pending.extend_from_slice(bytes);
        write(&mut state).inspect_err(|_| state.pending.truncate(before))
    }

    fn check_unfinished(&self, state: &ArrivedOutput) -> Result<()> {
        match state.finished {
            true => Err(Error::invalid(format!("frame {} has ended", self.seq()))),
            false => Ok(()),
        }
    }

    /// Writes the pending bytes to the log and waits until they have the durability of the store's options.
    ///
    /// # Errors
    /// `Unavailable`, `Poisoned`.
    pub fn flush(&self) -> Result<()> {
        let mut state = lock(&self.state);
        match self.write_part(&mut state, self.run.core.options.durability)? {
            Some(ticket) => ticket.wait().map(drop),
            None => Ok(()),
        }
    }

    fn write_part(&self, state: &mut ArrivedOutput, durability: Durability) -> Result<Option<Ticket>> {
        if state.pending.is_empty() {
            return Ok(None);
        }
        let bytes = Arc::new(std::mem::take(&mut state.pending));
        let submitted = self.submit_part(&Content::Bytes(bytes.clone()), &state.written, durability);
        state.last_part_ns = self.run.core.io.monotonic_ns();
        match submitted {
            Ok((extents, ticket)) => {
                let written = &mut state.written;
                written.hasher.update(&bytes);
                written.len += bytes.len() as u64;
                written.parts += 1;
                extents.into_iter().for_each(|extent| push_extent(&mut written.extents, extent));
                Ok(ticket)
            }
            Err(error) => {
                // They are written with the next part.
                state.pending = Arc::unwrap_or_clone(bytes);
                Err(error)
            }
        }
    }

    /// Hands the part after those to the writer; returns where its bytes are.
    fn submit_part(
        &self,
        content: &Content,
        written: &ArrivedParts,
        durability: Durability,
    ) -> Result<(Vec<Extent>, Option<Ticket>)> {
        let mut writer = BatchWriter::new(&self.run.core, self.run.namespace())?;
        let packed = writer.pack_content(content, 0)?;
        let now = self.run.core.io.now_ns();
        let head = PartHead {
            run: self.run.uid(),
            seq: self.seq(),
            part: written.parts + 1,
            after_ns: now.saturating_sub(self.begun.started_ns),
            body: packed.reference.clone(),
        };
        let mut tail = Vec::new();
        packed.put_recipe(None, &mut tail);
        writer.add_record(kinds::FRAME_PART, &head.encode(), &tail)?;
        let submitted = writer.submit(durability)?;
        let extents = packed.extents.iter().flat_map(|extents| extents.iter().copied()).collect();
        Ok((extents, submitted.map(|(_, ticket)| ticket)))
    }

    /// Ends the frame and waits until it has the durability of the store's options; returns its number.
    ///
    /// # Errors
    /// As [`Run::record`]; `Invalid` if it has ended. After `Unavailable` it can be ended once more.
    pub fn finish(&self, error: bool) -> Result<u32> {
        self.finish_with(Ending { error, ..Ending::default() })
    }

    /// As [`OpenFrame::finish`], with the values in `ending`.
    ///
    /// # Errors
    /// As [`OpenFrame::finish`].
    pub fn finish_with(&self, ending: Ending) -> Result<u32> {
        let durability = self.run.core.options.durability;
        let (seq, ticket) = self.queue_finish(&ending, durability, WriteThread::Either)?;
        ticket.wait()?;
        Ok(seq)
    }

    /// As [`OpenFrame::finish_with`], without waiting; also returns a ticket.
    ///
    /// # Errors
    /// As [`OpenFrame::finish`].
    pub fn submit_finish(&self, ending: &Ending, durability: Durability) -> Result<(u32, Ticket)> {
        self.queue_finish(ending, durability, WriteThread::Writer)
    }

    fn queue_finish(
        &self,
        ending: &Ending,
        durability: Durability,
        write_thread: WriteThread,
    ) -> Result<(u32, Ticket)> {
        let mut state = lock(&self.state);
        self.check_unfinished(&state)?;
        self.write_part(&mut state, Durability::Process)?;
        let mut batch = self.run.batch()?;
        batch.durability(durability);
        let mut begun = self.begun.clone();
        batch.apply_ending(&mut begun, ending)?;
        let until_now = self.run.core.io.now_ns().saturating_sub(self.begun.started_ns);
        begun.head.duration_ns = ending.duration_ns.unwrap_or(until_now);
        let ArrivedParts { extents, hasher, len, .. } = &state.written;
        let id = BlobId(*hasher.finalize().as_bytes());
        let output = StoredBlob::new(self.run.namespace(), id, *len, Arc::new(extents.clone()));
        let seq = begun.head.seq;
        let lane = (begun.component.clone(), BodySlot::Output);
        let (output, base) = batch.pack_body(&lane, seq, &output.into())?;
        batch.finish_frame(begun, output, base)?;
        let ticket = batch.queue(write_thread)?;
        state.finished = true;
        Ok((seq, ticket))
    }
}

/// Adds an extent; joins it with the last one if they are adjacent.
pub(crate) fn push_extent(extents: &mut Vec<Extent>, extent: Extent) {
    match extents.last_mut() {
        Some(last) if last.is_followed_by(&extent) => last.len += extent.len,
        _ => extents.push(extent),
    }
}
