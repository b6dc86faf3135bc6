//! Runs that are being recorded through the daemon.
//!
//! Any connection may add to a run that was begun here until it is ended, even after the connection that
//! began it is gone. The memory for this is limited: the number of runs, of frames whose answer is
//! incomplete, and the bytes of their metadata. Bodies are compressed under the lock of their run, never
//! under the lock of all runs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use annals::{
    Durability, Frame, Run, Status, Ticket,
    replay::{RecordingNondet, SystemNondet},
    runs::{Ending, OpenFrame},
};

use super::tenant::Tenant;
use super::turn::CommandRefusal;
use annals_proxy::proxy::{RunEndError, RunProxyState};

/// Maximum number of open runs.
const RUNS_MAX: usize = 1 << 16;
/// Maximum number of open frames of a run.
const FRAMES_MAX: usize = 1024;
/// Maximum number of open frames of all runs.
const ALL_FRAMES_MAX: u64 = 4096;
/// Maximum bytes of an open frame's metadata.
const OPEN_METADATA_BYTES_MAX: usize = 64 << 10;

/// An open run.
#[derive(Debug)]
pub(super) struct DaemonRun {
    pub(super) run: Arc<Run>,
    /// The proxy began it, so it is complete whenever the daemon ends.
    pub(super) ends_with_daemon: bool,
    /// Records the exchanges that go through the proxy.
    pub(super) proxied: Arc<RunProxyState>,
    /// The time of the last entry, in milliseconds since 1970.
    last_ms: AtomicU64,
    draws: Mutex<RecordingNondet>,
    frames: Mutex<HashMap<u32, OpenFrame<Arc<Run>>>>,
    /// Number of open frames of all runs.
    all_frames: Arc<AtomicU64>,
}

impl DaemonRun {
    /// This time, or the last one returned if that is later.
    pub(super) fn monotonic_ms(&self, ms: u64) -> u64 {
        self.last_ms.fetch_max(ms, Ordering::Relaxed).max(ms)
    }

    /// Draws and records a value; returns it.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn draw<T>(
        &self,
        draw: impl FnOnce(&RecordingNondet) -> Result<T, CommandRefusal>,
    ) -> Result<(T, Option<Ticket>), CommandRefusal> {
        // One draw at a time, so that each waits for its own record.
        let draws = self.draws.lock().unwrap_or_else(PoisonError::into_inner);
        let drawn = draw(&draws)?;
        Ok((drawn, draws.submit(Durability::Disk)?))
    }

    /// Begins a frame whose answer is still to come; returns its number.
    ///
    /// # Errors
    /// Those of the store; too many open frames; metadata that is too long.
    pub(super) fn begin_frame(&self, frame: &Frame) -> Result<(u32, Ticket), CommandRefusal> {
        if frame.metadata.len() > OPEN_METADATA_BYTES_MAX {
            return Err(CommandRefusal(format!(
                "ERR a frame begins with at most {OPEN_METADATA_BYTES_MAX} bytes of metadata: FRAME.END takes more"
            )));
        }
        let mut frames = self.frames();
        if frames.len() >= FRAMES_MAX || self.all_frames.load(Ordering::Relaxed) >= ALL_FRAMES_MAX {
            return Err(CommandRefusal(format!(
                "ERR at most {FRAMES_MAX} frames of a run and {ALL_FRAMES_MAX} of all runs are open at a time: end some"
            )));
        }
        let (begun, ticket) = OpenFrame::submit_begin(self.run.clone(), frame, Durability::Disk)?;
        let seq = begun.seq();
        frames.insert(seq, begun);
        self.all_frames.fetch_add(1, Ordering::Relaxed);
        Ok((seq, ticket))
    }

    /// Appends to the answer of an open frame; returns its length.
    ///
    /// # Errors
    /// `NOTFOUND` if there is no such open frame; those of the store.
    pub(super) fn append(&self, seq: u32, bytes: &[u8]) -> Result<(u64, Ticket), CommandRefusal> {
        let frames = self.frames();
        let frame = frames.get(&seq).ok_or_else(|| self.not_open_refusal(seq))?;
        Ok(frame.submit_append(bytes, Durability::Disk)?)
    }

    /// Ends an open frame. After an error it is still open.
    ///
    /// # Errors
    /// As [`DaemonRun::append`].
    pub(super) fn end_frame(&self, seq: u32, ending: &Ending) -> Result<Ticket, CommandRefusal> {
        let mut frames = self.frames();
        let frame = frames.get(&seq).ok_or_else(|| self.not_open_refusal(seq))?;
        let (_, ticket) = frame.submit_finish(ending, Durability::Disk)?;
        frames.remove(&seq);
        self.all_frames.fetch_sub(1, Ordering::Relaxed);
        Ok(ticket)
    }

    fn not_open_refusal(&self, seq: u32) -> CommandRefusal {
        CommandRefusal(format!(
            "NOTFOUND run {} has no open frame {seq}: FRAME.BEGIN gives the number of one",
            self.run.name()
        ))
    }

    fn frames(&self) -> MutexGuard<'_, HashMap<u32, OpenFrame<Arc<Run>>>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DaemonRun {
    fn drop(&mut self) {
        let left = self.frames().len() as u64;
        self.all_frames.fetch_sub(left, Ordering::Relaxed);
    }
}

impl Tenant {
    /// Checks whether one more run may be begun.
    ///
    /// # Errors
    /// Too many runs are open.
    pub(super) fn check_open_limit(&self) -> Result<(), CommandRefusal> {
        if self.streams().open.len() < RUNS_MAX {
            return Ok(());
        }
        Err(CommandRefusal(format!("ERR at most {RUNS_MAX} runs are open at a time: RUN.END ends one")))
    }

    /// Makes a run open for all connections.
    pub(super) fn insert_open_run(&self, run: Arc<Run>, ends_with_daemon: bool) -> Arc<DaemonRun> {
        let source = SystemNondet::new(self.databases.io().clone());
        let open = Arc::new(DaemonRun {
            draws: Mutex::new(RecordingNondet::new(run.clone(), source)),
            run,
            ends_with_daemon,
            proxied: Arc::default(),
            last_ms: AtomicU64::new(0),
            frames: Mutex::default(),
            all_frames: self.open_frames.clone(),
        });
        self.streams().open.insert(open.run.name().to_owned(), open.clone());
        open
    }

    /// The open run of this name.
    pub(super) fn open_run(&self, name: &str) -> Option<Arc<DaemonRun>> {
        self.streams().open.get(name).cloned()
    }

    /// Ends a run once the exchanges that the proxy has answered are written, which may take a moment. The
    /// run is then no longer open.
    ///
    /// # Errors
    /// `CONFLICT` while a frame is open or an exchange is in progress. `UNAVAILABLE` if the proxy could not
    /// record everything and the status is `Ok`. Those of the store. After an error, the run stays open.
    pub(super) fn end_run(&self, open: &Arc<DaemonRun>, status: Status) -> Result<Ticket, CommandRefusal> {
        let name = open.run.name();
        open.proxied.settle();
        let ended = open.proxied.end(status, || {
            let mut batch = open.run.batch()?;
            batch.durability(Durability::Disk);
            batch.end(status)?;
            batch.submit()
        });
        let ticket = ended.map_err(|unended| match unended {
            RunEndError::UnderWay(left) => CommandRefusal(format!(
                "CONFLICT {left} exchanges of run {name} are under way in the proxy: end it after them"
            )),
            RunEndError::Failed(why) => CommandRefusal(format!(
                "UNAVAILABLE run {name} is not whole, so it can end as failed only: {why}"
            )),
            RunEndError::Other(error) => error.into(),
        })?;
        self.remove_open_run(open);
        if open.proxied.recorded() {
            self.behind.remember(&self.space, open.run.uid(), status);
        }
        Ok(ticket)
    }

    /// Removes a run from the open ones.
    fn remove_open_run(&self, run: &Arc<DaemonRun>) {
        let mut streams = self.streams();
        if streams.open.get(run.run.name()).is_some_and(|open| Arc::ptr_eq(open, run)) {
            streams.open.remove(run.run.name());
        }
    }
}
