//! Runs that are being recorded through the daemon, by whoever names them.
//!
//! A run that was begun here is added to until it is ended: by any connection, also after the one that began it went away. What that holds is
//! bounded: so many runs, so many frames whose answer is still to come, so many bytes of what such a frame knows of itself. Nobody holds the lock of all
//! runs while a body is compressed; that is done under the run's own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use annals::{Durability, Ending, Frame, OpenFrame, RecordingNondet, Run, Status, SystemNondet, Ticket};

use super::tenant::Tenant;
use super::turn::Refusal;
use annals_proxy::proxy::{Proxied, Unended};

/// Runs that are open at a time.
const RUNS_MAX: usize = 1 << 16;
/// Frames of one run that are open at a time.
const FRAMES_MAX: usize = 1024;
/// Frames of all runs that are open at a time.
const ALL_FRAMES_MAX: u64 = 4096;
/// What is kept of such a frame's metadata.
const OPEN_METADATA_BYTES_MAX: usize = 64 << 10;

/// A run that is added to.
#[derive(Debug)]
pub(super) struct OpenRun {
    pub(super) run: Arc<Run>,
    /// XADD or the proxy began it, so it is whole whenever the daemon ends.
    pub(super) is_stream: bool,
    /// Who records what goes through the proxy.
    pub(super) proxied: Arc<Proxied>,
    /// The time of the last entry, in milliseconds since 1970.
    last_ms: AtomicU64,
    draws: Mutex<RecordingNondet>,
    frames: Mutex<HashMap<u32, OpenFrame<Arc<Run>>>>,
    /// Open frames of all runs.
    all_frames: Arc<AtomicU64>,
}

impl OpenRun {
    /// This time, or the last one that this gave if that is later.
    pub(super) fn not_before(&self, ms: u64) -> u64 {
        self.last_ms.fetch_max(ms, Ordering::Relaxed).max(ms)
    }

    /// Has something drawn by this and recorded; gives what was drawn.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn draw<T>(
        &self,
        draw: impl FnOnce(&RecordingNondet) -> Result<T, Refusal>,
    ) -> Result<(T, Option<Ticket>), Refusal> {
        // One at a time, so that each waits for the record of its own.
        let draws = self.draws.lock().unwrap_or_else(PoisonError::into_inner);
        let drawn = draw(&draws)?;
        Ok((drawn, draws.submit(Durability::Disk)?))
    }

    /// Begins a frame whose answer is still to come; gives its number.
    ///
    /// # Errors
    /// Those of the store; where too many are open, or its metadata is long.
    pub(super) fn begin_frame(&self, frame: &Frame) -> Result<(u32, Ticket), Refusal> {
        if frame.metadata.len() > OPEN_METADATA_BYTES_MAX {
            return Err(Refusal(format!(
                "ERR a frame begins with at most {OPEN_METADATA_BYTES_MAX} bytes of metadata: FRAME.END takes more"
            )));
        }
        let mut frames = self.frames();
        if frames.len() >= FRAMES_MAX || self.all_frames.load(Ordering::Relaxed) >= ALL_FRAMES_MAX {
            return Err(Refusal(format!(
                "ERR at most {FRAMES_MAX} frames of a run and {ALL_FRAMES_MAX} of all runs are open at a time: end some"
            )));
        }
        let (begun, ticket) = OpenFrame::submit_begin(self.run.clone(), frame, Durability::Disk)?;
        let seq = begun.seq();
        frames.insert(seq, begun);
        self.all_frames.fetch_add(1, Ordering::Relaxed);
        Ok((seq, ticket))
    }

    /// Adds to an open frame's answer; gives how long that is now.
    ///
    /// # Errors
    /// `NOTFOUND` where no such frame is open; those of the store.
    pub(super) fn append(&self, seq: u32, bytes: &[u8]) -> Result<(u64, Option<Ticket>), Refusal> {
        let frames = self.frames();
        let frame = frames.get(&seq).ok_or_else(|| self.not_open(seq))?;
        Ok(frame.submit_append(bytes, Durability::Disk)?)
    }

    /// Ends an open frame.
    ///
    /// # Errors
    /// As [`OpenRun::append`].
    pub(super) fn end_frame(&self, seq: u32, ending: &Ending) -> Result<Ticket, Refusal> {
        let frame = self.frames().remove(&seq).ok_or_else(|| self.not_open(seq))?;
        self.all_frames.fetch_sub(1, Ordering::Relaxed);
        Ok(frame.submit_finish(ending, Durability::Disk)?.1)
    }

    fn not_open(&self, seq: u32) -> Refusal {
        Refusal(format!(
            "NOTFOUND run {} has no open frame {seq}: FRAME.BEGIN gives the number of one",
            self.run.name()
        ))
    }

    fn frames(&self) -> MutexGuard<'_, HashMap<u32, OpenFrame<Arc<Run>>>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpenRun {
    fn drop(&mut self) {
        let left = self.frames().len() as u64;
        self.all_frames.fetch_sub(left, Ordering::Relaxed);
    }
}

impl Tenant {
    /// Whether one more run may be begun.
    ///
    /// # Errors
    /// Where too many are open.
    pub(super) fn may_open(&self) -> Result<(), Refusal> {
        if self.streams().open.len() < RUNS_MAX {
            return Ok(());
        }
        Err(Refusal(format!("ERR at most {RUNS_MAX} runs are open at a time: RUN.END ends one")))
    }

    /// Lets whoever names this run add to it.
    pub(super) fn admit(&self, run: Run, is_stream: bool) -> Arc<OpenRun> {
        let run = Arc::new(run);
        let source = SystemNondet::new(self.databases.io().clone());
        let open = Arc::new(OpenRun {
            draws: Mutex::new(RecordingNondet::new(run.clone(), source)),
            run,
            is_stream,
            proxied: Arc::default(),
            last_ms: AtomicU64::new(0),
            frames: Mutex::default(),
            all_frames: self.open_frames.clone(),
        });
        self.streams().open.insert(open.run.name().to_owned(), open.clone());
        open
    }

    /// The run of this name that may be added to, if there is one.
    pub(super) fn open_run(&self, name: &str) -> Option<Arc<OpenRun>> {
        self.streams().open.get(name).cloned()
    }

    /// Ends a run, once exchanges that were answered through the proxy are written: that may take a moment. Nobody adds to it any more from then on.
    ///
    /// # Errors
    /// `CONFLICT` while a frame is open or an exchange is under way, `UNAVAILABLE` where the proxy could not record all of it and it is to be `Ok`;
    /// those of the store. The run goes on then.
    pub(super) fn end_run(&self, open: &Arc<OpenRun>, status: Status) -> Result<Ticket, Refusal> {
        let name = open.run.name();
        open.proxied.settle();
        let ended = open.proxied.end(status, || {
            let mut batch = open.run.batch()?;
            batch.durability(Durability::Disk);
            batch.end(status)?;
            batch.submit()
        });
        let ticket = ended.map_err(|unended| match unended {
            Unended::UnderWay(left) => Refusal(format!(
                "CONFLICT {left} exchanges of run {name} are under way in the proxy: end it after them"
            )),
            Unended::Failed(why) => {
                Refusal(format!("UNAVAILABLE run {name} is not whole, so it can end as failed only: {why}"))
            }
            Unended::Other(error) => error.into(),
        })?;
        self.dismiss(open);
        if open.proxied.recorded() {
            self.behind.remember(&self.space, open.run.uid(), status);
        }
        Ok(ticket)
    }

    /// Lets nobody add to it any more.
    fn dismiss(&self, run: &Arc<OpenRun>) {
        let mut streams = self.streams();
        if streams.open.get(run.run.name()).is_some_and(|open| Arc::ptr_eq(open, run)) {
            streams.open.remove(run.run.name());
        }
    }
}
