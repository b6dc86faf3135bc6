//! Recording runs.
//!
//! Frames are numbered when they begin and bound to the chain in that order, whatever order they end in. All that a
//! run remembers advances only when a batch is queued: one that is dropped leaves no trace.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BlobId, Link, NamespaceId, RunUid};
use crate::kv::Content;
use crate::kv::core::Core;
use crate::kv::fence::HeldParent;
use crate::kv::write::{BatchWriter, PackedBody};
use crate::log::record::BodyRef;
use crate::log::segments::lock;
use crate::log::ticket::Ticket;
use crate::sync::Mutex;
use crate::trace::batch::RunBatch;
use crate::trace::chain::{self, FrameDigest};
use crate::trace::dropping::{PendingForks, is_dropped};
use crate::trace::heads::{RunFields, RunHead};
use crate::trace::kinds;
use crate::trace::lanes::{PreviousBodies, RunLanes};
use crate::trace::model::{Frame, RunInfo, RunSpec, Severity, Status};
use crate::trace::reader::{RunReader, find_living_run, run_record};

/// Names that runs not yet in the index have taken, and previous bodies: shared by all recorders of a store.
#[derive(Debug)]
pub(crate) struct RecorderRegistry {
    names: Mutex<HashMap<(NamespaceId, String), RunUid>>,
    pub(crate) previous: PreviousBodies,
    /// Held by whoever pins or drops runs.
    pub(crate) forking: Mutex<PendingForks>,
    /// Runs that ended since somebody asked last; none before anybody did.
    ended: Mutex<Option<Vec<(NamespaceId, RunUid)>>>,
}

/// Runs that have ended which are kept in mind at most, until [`Store::sample_ended`](crate::Store::sample_ended) asks for them.
pub const ENDED_RUNS_MAX: usize = 65_536;

impl RecorderRegistry {
    /// Remembers at most so many bytes of previous bodies.
    pub(crate) fn new(previous_bytes_max: usize) -> Self {
        Self {
            names: Mutex::default(),
            previous: PreviousBodies::new(previous_bytes_max),
            forking: Mutex::default(),
            ended: Mutex::default(),
        }
    }

    /// A run's end is queued.
    pub(super) fn note_ended(&self, namespace: NamespaceId, uid: RunUid) {
        if let Some(ended) = &mut *lock(&self.ended)
            && ended.len() < ENDED_RUNS_MAX
        {
            ended.push((namespace, uid));
        }
    }

    /// The runs that ended since this was last called. From now on they are noted.
    pub(crate) fn take_ended(&self) -> Vec<(NamespaceId, RunUid)> {
        lock(&self.ended).replace(Vec::new()).unwrap_or_default()
    }
}

/// A run being recorded. May be shared between threads; its frames are then numbered in the order of the calls.
///
/// Dropping it leaves the run open; closing the store then makes it abandoned.
#[derive(Debug)]
pub struct Run {
    pub(crate) core: Arc<Core>,
    pub(super) recording: Arc<RecorderRegistry>,
    pub(super) namespace: NamespaceId,
    pub(super) uid: RunUid,
    pub(super) name: String,
    pub(super) state: Mutex<RunState>,
    /// What a fork shares, which the log may not say yet.
    _parent: Option<HeldParent>,
}

/// What a run remembers.
#[derive(Debug, Clone)]
pub(super) struct RunState {
    /// But for `severity` and `raw_bytes`, which change with each frame.
    pub(super) fields: Arc<RunFields>,
    pub(super) severity: u8,
    pub(super) raw_bytes: u64,
    pub(super) metadata: Arc<PackedBody>,
    /// Metadata that the first batch is still to pack.
    pub(super) unpacked: Option<Content>,
    /// Its record is in the log.
    pub(super) begun: bool,
    pub(super) ended: bool,
    /// The run that it was forked from, which is not to be dropped before this one is in the log.
    pub(super) held_parent: Option<RunUid>,
    /// The run of the same name that it takes the place of.
    pub(super) replaces: Option<RunUid>,
    pub(super) last_seq: u32,
    /// The chain up to here.
    pub(super) linked: (u32, Link),
    /// Digests of frames that ended before an earlier one did.
    pub(super) waiting: BTreeMap<u32, FrameDigest>,
    pub(super) lanes: RunLanes,
    /// Frames of its own that have a snapshot.
    pub(super) snapshots: Arc<BTreeSet<u32>>,
}

impl Run {
    /// A run that is not in the log yet: its first batch begins it.
    pub(crate) fn prepare(
        core: &Arc<Core>,
        recording: &Arc<RecorderRegistry>,
        namespace: NamespaceId,
        spec: RunSpec,
        fork: Option<(&RunReader, u32, u32)>,
    ) -> Result<Self> {
        spec.check()?;
        core.log()?.queue.check_poisoned()?;
        let uid = RunUid(core.writer()?.new_uid());
        // All that can fail comes before the name is taken.
        let held = fork.map(|(reader, _, shared)| core.fence.hold_parent(reader.info().uid, shared));
        let now = spec.started_ns.unwrap_or_else(|| core.io.now_ns());
        let (parent, linked, last_seq) = match fork {
            None => (None, (0, chain::genesis()), 0),
            Some((reader, at, shared)) => {
                (Some((reader.info().uid, shared, at)), (shared, reader.link_at(shared)?), shared)
            }
        };
        let holds = fork.map(|(reader, ..)| reader.info().uid);
        if let Some(parent) = holds {
            let mut forking = lock(&recording.forking);
            if is_dropped(core, namespace, parent)? {
                return Err(Error::new(ErrorKind::Gone, "the run was dropped before it could be forked"));
            }
            forking.hold(parent);
        }
        let replaces = match Self::reserve_name(core, recording, namespace, &spec, uid) {
            Ok(replaces) => replaces,
            Err(error) => {
                holds.inspect(|parent| lock(&recording.forking).release(*parent));
                return Err(error);
            }
        };
        let fields = RunFields {
            uid,
            namespace,
            name: spec.name.clone(),
            agent: spec.agent,
            model: spec.model,
            tags: spec.tags,
            status: Status::Open.code(),
            severity: spec.severity.code(),
            parent,
            started_ns: now,
            ended_ns: 0,
            frames: 0,
            raw_bytes: 0,
            fingerprint: linked.1,
            gone: false,
        };
        let run = Self {
            core: core.clone(),
            recording: recording.clone(),
            namespace,
            uid,
            name: spec.name,
            _parent: held,
            state: Mutex::new(RunState {
                severity: fields.severity,
                raw_bytes: 0,
                fields: Arc::new(fields),
                metadata: Arc::new(inline(&[])),
                unpacked: Some(spec.metadata),
                begun: false,
                ended: false,
                held_parent: holds,
                replaces,
                last_seq,
                linked,
                waiting: BTreeMap::new(),
                lanes: RunLanes::default(),
                snapshots: Arc::default(),
            }),
        };
        Ok(run)
    }

    /// Takes a name for a run that is about to begin; gives the run that has it.
    fn reserve_name(
        core: &Arc<Core>,
        recording: &RecorderRegistry,
        namespace: NamespaceId,
        spec: &RunSpec,
        uid: RunUid,
    ) -> Result<Option<RunUid>> {
        let mut names = lock(&recording.names);
        // A run of this name may be on its way to the index.
        core.log()?.queue.barrier(core.index.visible())?;
        let living = find_living_run(core, namespace, &spec.name)?;
        let key = (namespace, spec.name.clone());
        if names.contains_key(&key) || (living.is_some() && !spec.replace) {
            return Err(Error::conflict(format!(
                "run {:?} exists already: choose another name, or ask to replace it",
                spec.name
            )));
        }
        names.insert(key, uid);
        Ok(living)
    }

    /// The run's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The run's number.
    #[must_use]
    pub fn uid(&self) -> RunUid {
        self.uid
    }

    pub(crate) fn namespace(&self) -> NamespaceId {
        self.namespace
    }

    /// Records a frame and waits until it is as durable as the store's options say; gives its number.
    ///
    /// # Errors
    /// `Conflict` for a run that has ended; `Invalid` for a body over the limit or a parent that is no earlier frame;
    /// `Unavailable`, `Poisoned`.
    pub fn record(&self, frame: Frame) -> Result<u32> {
        let (seq, ticket) = self.submit(frame)?;
        ticket.wait()?;
        Ok(seq)
    }

    /// Hands a frame to the writer without waiting; gives its number and a ticket.
    ///
    /// # Errors
    /// As [`Run::record`].
    pub fn submit(&self, frame: Frame) -> Result<(u32, Ticket)> {
        let mut batch = self.batch()?;
        let seq = batch.frame(frame)?;
        Ok((seq, batch.submit()?))
    }

    /// Several frames, a snapshot, the end: together or not at all. Other callers of this run wait meanwhile.
    ///
    /// # Errors
    /// `Unavailable` once the store is closed, `Poisoned`.
    pub fn batch(&self) -> Result<RunBatch<'_>> {
        RunBatch::new(self, lock(&self.state))
    }

    /// Keeps the agent's state after the last frame.
    ///
    /// # Errors
    /// `Conflict` where that frame has a snapshot or the run has ended; `Invalid` before the first frame, or for a
    /// vector with NaN or infinity; `Unavailable`, `Poisoned`.
    pub fn snapshot(&self, state: impl Into<Content>, embeddings: &[(&str, &[f32])]) -> Result<u32> {
        let mut batch = self.batch()?;
        let seq = batch.snapshot(state, embeddings)?;
        batch.commit()?;
        Ok(seq)
    }

    /// Says how much the run matters from now on.
    ///
    /// # Errors
    /// As [`Run::record`].
    pub fn set_severity(&self, severity: Severity) -> Result<()> {
        let mut batch = self.batch()?;
        batch.check_open()?;
        batch.staged.severity = severity.code();
        batch.changed = true;
        batch.commit()?;
        Ok(())
    }

    /// Ends the run and gives what it has come to.
    ///
    /// # Errors
    /// `Conflict` where it has ended already; `Invalid` for [`Status::Open`]; `Unavailable`, `Poisoned`.
    pub fn end(&self, status: Status) -> Result<RunInfo> {
        let mut batch = self.batch()?;
        batch.end(status)?;
        batch.commit()?;
        Ok(RunReader::open(&self.core, self.namespace, self.uid)?.info().clone())
    }

    /// Ends the run for a recorder that has gone away: abandoned, with what there is. Frames that are not finished stay
    /// incomplete. Does nothing where it has ended already.
    ///
    /// # Errors
    /// `Unavailable`, `Poisoned`.
    pub fn abandon(&self) -> Result<()> {
        let mut state = lock(&self.state);
        if state.begun && !state.ended {
            // What was submitted may still be on its way to the index, from which the end is made.
            self.core.log()?.queue.barrier(self.core.index.visible())?;
            abandon(&self.core, self.namespace, self.uid)?;
        }
        state.ended = true;
        self.release_state(&mut state);
        Ok(())
    }

    /// The run is over, here at least: its name is for the index to guard, its bodies need not be remembered.
    pub(super) fn release_state(&self, state: &mut RunState) {
        self.release_parent(state);
        self.recording.previous.forget(&std::mem::take(&mut state.lanes));
        let mut names = lock(&self.recording.names);
        let key = (self.namespace, self.name.clone());
        if names.get(&key) == Some(&self.uid) {
            names.remove(&key);
        }
    }

    /// The run is in the log, or will never be: what it was forked from may be dropped.
    pub(super) fn release_parent(&self, state: &mut RunState) {
        if let Some(parent) = state.held_parent.take() {
            lock(&self.recording.forking).release(parent);
        }
    }

    /// The last link so far: the fingerprint, if the run ended now. Frames that are not finished are not in it.
    #[must_use]
    pub fn link(&self) -> Link {
        lock(&self.state).linked.1
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        self.release_state(&mut state);
    }
}

fn inline(bytes: &[u8]) -> PackedBody {
    PackedBody {
        reference: BodyRef::Inline(bytes.to_vec()),
        id: BlobId::of(bytes),
        extents: None,
        len: bytes.len() as u64,
    }
}

pub(super) fn encode_run(head: &RunHead) -> Result<Vec<u8>> {
    head.encode().map_err(|e| Error::bug(format!("a run's record cannot be coded: {e}")))
}

/// Ends a run whose writer is gone: abandoned, with what there is.
pub(crate) fn abandon(core: &Arc<Core>, namespace: NamespaceId, uid: RunUid) -> Result<()> {
    end_open_run(core, namespace, uid, |fields| fields.status = Status::Abandoned.code())
}

/// Ends an open run with the frames that the log has, finished or not; `change` says how, and has the last word.
pub(crate) fn end_open_run(
    core: &Arc<Core>,
    namespace: NamespaceId,
    uid: RunUid,
    change: impl FnOnce(&mut RunFields),
) -> Result<()> {
    let Some((mut head, tail)) = run_record(core, namespace, uid)? else { return Ok(()) };
    if head.fields.status != Status::Open.code() || head.fields.gone {
        return Ok(());
    }
    let reader = RunReader::open(core, namespace, uid)?;
    let info = reader.info();
    head.fields.frames = info.frames;
    head.fields.raw_bytes = info.raw_bytes;
    head.fields.fingerprint = reader.link_at(info.frames)?;
    head.fields.ended_ns = core.io.now_ns().max(head.fields.started_ns);
    change(&mut head.fields);
    let mut writer = BatchWriter::for_close(core, namespace)?;
    writer.add_record(kinds::RUN, &encode_run(&head)?, &tail)?;
    if let Some((_, ticket)) = writer.submit(core.options.durability)? {
        ticket.wait()?;
    }
    Ok(())
}
