//! Runs that are made of notes: a program that keeps its own state in keyspaces notes each step as a frame, so that its
//! history is listed and forked as a run.
//!
//! Many connections note into the same run, so the process that holds the store keeps the run open, not the
//! connection. A note carries an id, by which a fork finds its frame.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use annals::{Component, Durability, ErrorKind, Frame, KvBatch, Namespace, Run, RunSpec, Ticket};

/// Maximum number of runs that stay open. The least recently noted one is released and resumed when it is noted next.
const OPEN_RUNS_MAX: usize = 256;
/// The component of a note.
const COMPONENT: &str = "checkpoint";
/// The tag of a run that is made of notes.
const TAG: (&str, &str) = ("annals.notes", "checkpoints");

/// The runs that one process keeps open.
#[derive(Debug, Default)]
pub(super) struct NotedRuns(Mutex<OpenRuns>);

#[derive(Debug, Default)]
struct OpenRuns {
    /// Namespace and name; the run, and when it was last noted.
    runs: HashMap<(String, String), (Arc<Run>, u64)>,
    clock: u64,
}

impl NotedRuns {
    fn open(&self) -> MutexGuard<'_, OpenRuns> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a note as a frame of a run, which begins with its first note, together with changes of keys. The thread
    /// that waits for this ticket or for a later one writes them.
    ///
    /// # Errors
    /// `Conflict` if a run of this name has ended or is recorded by a program; `Unavailable`, `Poisoned`.
    pub(super) fn note(
        &self,
        space: NoteSpace<'_>,
        note: &Note,
        keys: impl Fn() -> KvBatch,
    ) -> annals::Result<Ticket> {
        let submit = |run: &Run| {
            // The id is short enough to stand in the frame's record, and equal outputs are stored once.
            let frame =
                Frame::new(Component::Other(COMPONENT.to_owned()), note.id.as_str(), note.output.clone());
            let mut batch = run.batch()?;
            batch.durability(Durability::Disk);
            batch.keys(keys())?;
            batch.frame(frame.metadata(note.metadata.clone()))?;
            batch.submit_inline()
        };
        match submit(&*self.run(space, &note.run)?) {
            Ok(ticket) => Ok(ticket),
            // The handle is of a store that was closed and opened again.
            Err(_) => {
                self.release(space, &note.run);
                submit(&*self.run(space, &note.run)?)
            }
        }
    }

    /// Forks a run at the frame with this id; the fork is open.
    ///
    /// # Errors
    /// `NotFound` for the run or the id; `Conflict` if the fork exists.
    pub(super) fn fork(&self, space: NoteSpace<'_>, run: &str, id: &str, fork: &str) -> annals::Result<()> {
        let reader = space.namespace.run(run)?;
        for seq in (1..=reader.info().frames).rev() {
            if reader.frame(seq)?.input == id.as_bytes() {
                let forked = space.namespace.fork(run, seq, false, RunSpec::new(fork).tag(TAG.0, TAG.1))?;
                self.insert(key(space, fork), Arc::new(forked));
                return Ok(());
            }
        }
        Err(annals::Error::new(ErrorKind::NotFound, format!("run {run:?} has no checkpoint {id:?}")))
    }

    /// Drops a run; a missing one is no error.
    ///
    /// # Errors
    /// `Conflict` if the run is pinned; `Unavailable`, `Poisoned`.
    pub(super) fn drop_run(&self, space: NoteSpace<'_>, run: &str) -> annals::Result<()> {
        if let Some(open) = self.release(space, run) {
            open.abandon()?;
        }
        match space.namespace.drop_run(run, "checkpoints", "its checkpoints were deleted") {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Gone) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn run(&self, space: NoteSpace<'_>, run: &str) -> annals::Result<Arc<Run>> {
        let key = key(space, run);
        let mut open = self.open();
        open.clock += 1;
        let now = open.clock;
        if let Some((handle, noted)) = open.runs.get_mut(&key) {
            *noted = now;
            return Ok(handle.clone());
        }
        // The lock is kept: two handles of one run would be a conflict.
        let handle = match space.namespace.resume_run(run) {
            Ok(resumed) => resumed.run,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Gone) => {
                Arc::new(space.namespace.begin_run(RunSpec::new(run).tag(TAG.0, TAG.1))?)
            }
            Err(error) => return Err(error),
        };
        open.insert(key, handle.clone());
        Ok(handle)
    }

    fn insert(&self, key: (String, String), run: Arc<Run>) {
        self.open().insert(key, run);
    }

    fn release(&self, space: NoteSpace<'_>, run: &str) -> Option<Arc<Run>> {
        self.open().runs.remove(&key(space, run)).map(|(run, _)| run)
    }
}

impl OpenRuns {
    fn insert(&mut self, key: (String, String), run: Arc<Run>) {
        if self.runs.len() >= OPEN_RUNS_MAX {
            let oldest = self.runs.iter().min_by_key(|(_, (_, noted))| *noted).map(|(key, _)| key.clone());
            if let Some((released, _)) = oldest.and_then(|oldest| self.runs.remove(&oldest)) {
                // If the store refuses this, the next opening abandons the run.
                let _ = released.abandon();
            }
        }
        self.clock += 1;
        self.runs.insert(key, (run, self.clock));
    }
}

/// A namespace and its name.
#[derive(Debug, Clone, Copy)]
pub(super) struct NoteSpace<'a> {
    pub(super) name: &'a str,
    pub(super) namespace: &'a Namespace,
}

/// A step of a program's history: a frame whose input is the step's id.
#[derive(Debug)]
pub(super) struct Note {
    pub(super) run: String,
    pub(super) id: String,
    /// JSON, or nothing.
    pub(super) metadata: Vec<u8>,
    pub(super) output: Vec<u8>,
}

fn key(space: NoteSpace<'_>, run: &str) -> (String, String) {
    (space.name.to_owned(), run.to_owned())
}
