//! Records runs.
//!
//! Frames are numbered when they begin. They are bound to the chain in the order of their numbers, also if
//! they end in another order. A run's state changes only when a batch is queued; a dropped batch changes
//! nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BlobId, Link, NamespaceId, RunUid};
use crate::log::erasure::ranges_of;
use crate::log::record::BodyRef;
use crate::log::segments::lock;
use crate::log::ticket::Ticket;
use crate::sync::{Mutex, rank};
use crate::trace::batch::RunBatch;
use crate::trace::chain::{self, FrameDigest};
use crate::trace::dropping::{PendingForks, is_dropped};
use crate::trace::heads::{RunFields, RunHead};
use crate::trace::kinds;
use crate::trace::lanes::{PreviousBodies, RunLanes};
use crate::trace::model::{FrameInput, RunInfo, RunSpec, Severity, Status};
use crate::trace::reader::{RunReader, find_living_run, run_record};
use annals_store::kv::Content;
use annals_store::kv::core::Core;
use annals_store::kv::fence::HeldRecords;
use annals_store::kv::write::{BatchWriter, PackedBody};

/// State shared by all recorders of a store: names reserved by runs that are not in the index yet, previous
/// bodies, and prepared forks.
#[derive(Debug)]
pub(crate) struct RecorderRegistry {
    pub(super) names: Mutex<RunNames, { rank::RUN_NAMES }>,
    pub(crate) previous: PreviousBodies,
    /// Locked while a run is pinned, dropped or forked.
    pub(crate) forking: Mutex<PendingForks, { rank::FORKING }>,
    /// Runs that ended since the last call of `take_ended`; `None` before the first call.
    ended: Mutex<Option<Vec<(NamespaceId, RunUid)>>, { rank::ENDED_RUNS }>,
}

/// Names and numbers of runs that are taken.
#[derive(Debug, Default)]
pub(super) struct RunNames {
    pub(super) held: HashMap<(NamespaceId, String), RunUid>,
    /// Runs without a record yet.
    unused: BTreeMap<u64, NamespaceId>,
    /// Runs with a record, until they end.
    open: BTreeMap<RunUid, NamespaceId>,
    /// The greatest number with a record.
    last_used: u64,
}

impl RunNames {
    /// Notes that the first record of a run is queued.
    pub(super) fn note_used(&mut self, uid: RunUid) {
        if let Some(namespace) = self.unused.remove(&uid.0) {
            self.last_used = self.last_used.max(uid.0);
            self.open.insert(uid, namespace);
        }
    }

    /// Notes that an ended run is recorded again.
    pub(super) fn note_resumed(&mut self, namespace: NamespaceId, uid: RunUid) {
        self.open.insert(uid, namespace);
    }
}

/// Maximum number of ended runs that are remembered until the next
/// [`Store::sample_ended`](crate::Store::sample_ended).
pub const ENDED_RUNS_MAX: usize = 65_536;

impl RecorderRegistry {
    /// A registry that keeps at most this many bytes of previous bodies.
    pub(crate) fn new(previous_bytes_max: usize) -> Self {
        Self {
            names: Mutex::default(),
            previous: PreviousBodies::new(previous_bytes_max),
            forking: Mutex::default(),
            ended: Mutex::default(),
        }
    }

    /// The numbers below used ones that have no record. They get none any more once the store closes.
    pub(crate) fn unused_numbers(&self) -> Vec<Range<u64>> {
        let names = lock(&self.names);
        ranges_of(names.unused.range(..names.last_used).map(|(number, _)| *number))
    }

    /// The runs that this store's recorders began or resumed and that have not ended.
    pub(crate) fn open_runs(&self) -> Vec<(NamespaceId, RunUid)> {
        lock(&self.names).open.iter().map(|(uid, namespace)| (*namespace, *uid)).collect()
    }

    /// Notes a run whose end is queued.
    pub(super) fn note_ended(&self, namespace: NamespaceId, uid: RunUid) {
        lock(&self.names).open.remove(&uid);
        if let Some(ended) = &mut *lock(&self.ended)
            && ended.len() < ENDED_RUNS_MAX
        {
            ended.push((namespace, uid));
        }
    }

    /// Returns the runs that ended since the last call. The first call starts the noting and returns nothing.
    pub(crate) fn take_ended(&self) -> Vec<(NamespaceId, RunUid)> {
        lock(&self.ended).replace(Vec::new()).unwrap_or_default()
    }
}

/// A run being recorded. Threads may share it; its frames are numbered in the order of the calls.
///
/// Dropping the handle leaves the run open; closing the store then ends it as abandoned.
#[derive(Debug)]
pub struct Run {
    pub(crate) core: Arc<Core>,
    pub(super) recording: Arc<RecorderRegistry>,
    pub(super) namespace: NamespaceId,
    pub(super) uid: RunUid,
    pub(super) name: String,
    pub(super) state: Mutex<RunState, { rank::RUN_STATE }>,
    /// Protects the frames that a fork shares with its parent while the log may not have the fork yet.
    _parent: Option<HeldRecords>,
}

/// The state of a run being recorded.
#[derive(Debug, Clone)]
pub(super) struct RunState {
    /// The run's fields. `severity` and `raw_bytes` are stale here: they change with each frame and are kept
    /// below.
    pub(super) fields: Arc<RunFields>,
    pub(super) severity: u8,
    pub(super) raw_bytes: u64,
    pub(super) metadata: Arc<PackedBody>,
    /// Metadata that the first batch packs.
    pub(super) unpacked: Option<Content>,
    /// The run's record is in the log.
    pub(super) begun: bool,
    pub(super) ended: bool,
    /// The parent of a fork. It must not be dropped before this run is in the log.
    pub(super) held_parent: Option<RunUid>,
    /// The run of the same name that this run replaces.
    pub(super) replaces: Option<RunUid>,
    pub(super) last_seq: u32,
    /// The last linked frame and its link.
    pub(super) linked: (u32, Link),
    /// Digests of frames that ended before an earlier frame.
    pub(super) waiting: BTreeMap<u32, FrameDigest>,
    pub(super) lanes: RunLanes,
    /// Frames after which this run took a snapshot.
    pub(super) snapshots: Arc<BTreeSet<u32>>,
}

impl Run {
    /// Creates a run that is not in the log yet: its first batch begins it.
    pub(crate) fn prepare(
        core: &Arc<Core>,
        recording: &Arc<RecorderRegistry>,
        namespace: NamespaceId,
        spec: RunSpec,
        fork: Option<(&RunReader, u32, u32)>,
    ) -> Result<Self> {
        spec.check()?;
        core.log()?.queue.check_poisoned()?;
        core.writer()?;
        // Every other step that can fail comes before the name is reserved and a number is taken.
        let held = fork.map(|(reader, _, shared)| core.fence.hold_records(reader.info().uid.0, shared));
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
            // Frames of an abandoned run are final only until its recorder takes it up again.
            let resumed = |(head, _): (RunHead, Vec<u8>)| head.fields.status == Status::Open.code();
            if fork.is_some_and(|(reader, ..)| reader.info().status != Status::Open)
                && run_record(core, namespace, parent)?.is_some_and(resumed)
            {
                return Err(Error::conflict("the run goes on again: fork it once more"));
            }
            forking.hold(parent);
        }
        let (uid, replaces) = match Self::reserve_name(core, recording, namespace, &spec) {
            Ok(reserved) => reserved,
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

    /// A run whose record is in the log, with this uid and name. The name must be reserved.
    pub(super) fn from_state(
        core: &Arc<Core>,
        recording: &Arc<RecorderRegistry>,
        namespace: NamespaceId,
        (uid, name): (RunUid, String),
        state: RunState,
    ) -> Self {
        let (core, recording) = (core.clone(), recording.clone());
        Self { core, recording, namespace, uid, name, state: Mutex::new(state), _parent: None }
    }

    /// Reserves a name and a number for a run that is about to begin; returns the number, and the living run that
    /// has the name. A refused run takes no number: an unused one looks like an erased run.
    fn reserve_name(
        core: &Arc<Core>,
        recording: &RecorderRegistry,
        namespace: NamespaceId,
        spec: &RunSpec,
    ) -> Result<(RunUid, Option<RunUid>)> {
        let mut names = lock(&recording.names);
        // A run of this name may be queued and not in the index yet.
        core.log()?.queue.barrier(core.index.visible())?;
        let living = find_living_run(core, namespace, &spec.name)?;
        let key = (namespace, spec.name.clone());
        let held = names.held.get(&key).copied();
        if !spec.replace && (held.is_some() || living.is_some()) {
            return Err(Error::conflict(format!(
                "run {:?} exists already: choose another name, or ask to replace it",
                spec.name
            )));
        }
        if let Some(held) = held {
            // Readers see the end of a run a moment before its recorder releases the name.
            let has_ended = living == Some(held)
                && run_record(core, namespace, held)?
                    .is_some_and(|(head, _)| head.fields.status != Status::Open.code());
            if !has_ended {
                let being = "is being recorded, and can be replaced when it has ended";
                return Err(Error::conflict(format!("run {:?} {being}", spec.name)));
            }
        }
        let uid = RunUid(core.writer()?.new_uid());
        names.held.insert(key, uid);
        names.unused.insert(uid.0, namespace);
        Ok((uid, living))
    }

    /// The run's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The run's uid.
    #[must_use]
    pub fn uid(&self) -> RunUid {
        self.uid
    }

    pub(crate) fn namespace(&self) -> NamespaceId {
        self.namespace
    }

    /// Records a frame and waits until it has the durability of the store's options; returns its number.
    ///
    /// # Errors
    /// `Conflict` if the run has ended; `Invalid` if a body is over the limit or the parent is not an earlier
    /// frame; `Unavailable`, `Poisoned`.
    pub fn record(&self, frame: FrameInput<'_>) -> Result<u32> {
        let mut batch = self.batch()?;
        let seq = batch.frame(frame)?;
        batch.commit()?;
        Ok(seq)
    }

    /// Hands a frame to the writer without waiting; returns its number and a ticket.
    ///
    /// # Errors
    /// As [`Run::record`].
    pub fn submit(&self, frame: FrameInput<'_>) -> Result<(u32, Ticket)> {
        let mut batch = self.batch()?;
        let seq = batch.frame(frame)?;
        Ok((seq, batch.submit()?))
    }

    /// Starts a batch: several frames, a snapshot and the end are committed together or not at all. Other
    /// callers of this run wait while the batch lives.
    ///
    /// # Errors
    /// `Unavailable` once the store is closed, `Poisoned`.
    pub fn batch(&self) -> Result<RunBatch<'_>> {
        RunBatch::new(self, lock(&self.state))
    }

    /// Stores the agent's state after the last frame; returns that frame's number.
    ///
    /// # Errors
    /// `Conflict` if that frame has a snapshot or the run has ended; `Invalid` before the first frame, or for
    /// a vector with NaN or infinity; `Unavailable`, `Poisoned`.
    pub fn snapshot(&self, state: impl Into<Content>, embeddings: &[(&str, &[f32])]) -> Result<u32> {
        let mut batch = self.batch()?;
        let seq = batch.snapshot(state, embeddings)?;
        batch.commit()?;
        Ok(seq)
    }

    /// Sets the run's severity.
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

    /// Ends the run and returns its final counts and fingerprint.
    ///
    /// # Errors
    /// `Conflict` if it has ended already or a frame is not finished; `Invalid` for [`Status::Open`];
    /// `Unavailable`, `Poisoned`.
    pub fn end(&self, status: Status) -> Result<RunInfo> {
        let mut batch = self.batch()?;
        batch.end(status)?;
        batch.commit()?;
        Ok(RunReader::open(&self.core, self.namespace, self.uid)?.info().clone())
    }

    /// Ends the run as abandoned, for a recorder that has gone away. Unfinished frames stay incomplete. Does
    /// nothing if the run has ended already.
    ///
    /// # Errors
    /// `Unavailable`, `Poisoned`.
    pub fn abandon(&self) -> Result<()> {
        let mut state = lock(&self.state);
        if state.begun && !state.ended {
            // The end is built from the index, so every submitted frame must be in it first.
            self.core.log()?.queue.barrier(self.core.index.visible())?;
            abandon(&self.core, &[(self.namespace, self.uid)])?;
            lock(&self.recording.names).open.remove(&self.uid);
        }
        state.ended = true;
        self.release_state(&mut state);
        Ok(())
    }

    /// Releases what the recorder holds for a run that has ended or whose handle is dropped: its parent, its
    /// previous bodies and its reserved name. From then on the index alone guards the name.
    pub(super) fn release_state(&self, state: &mut RunState) {
        self.release_parent(state);
        self.recording.previous.forget(&std::mem::take(&mut state.lanes));
        let mut names = lock(&self.recording.names);
        let key = (self.namespace, self.name.clone());
        if names.held.get(&key) == Some(&self.uid) {
            names.held.remove(&key);
        }
    }

    /// Allows the parent of a fork to be dropped: the fork is in the log, or will never be.
    pub(super) fn release_parent(&self, state: &mut RunState) {
        if let Some(parent) = state.held_parent.take() {
            lock(&self.recording.forking).release(parent);
        }
    }

    /// The last link so far: the fingerprint if the run ended now. Unfinished frames are not in it.
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

pub(super) fn inline(bytes: &[u8]) -> PackedBody {
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

/// Maximum number of ends of abandoned runs in one commit.
const ABANDONED_MAX: usize = 4096;

/// Ends runs whose writers are gone as abandoned: one commit for each namespace, and one wait for all.
pub(crate) fn abandon(core: &Arc<Core>, runs: &[(NamespaceId, RunUid)]) -> Result<()> {
    let mut by_namespace: BTreeMap<NamespaceId, Vec<RunUid>> = BTreeMap::new();
    runs.iter().for_each(|(namespace, uid)| by_namespace.entry(*namespace).or_default().push(*uid));
    let mut tickets = Vec::new();
    for (namespace, uids) in by_namespace {
        for some in uids.chunks(ABANDONED_MAX) {
            let mut writer = BatchWriter::for_close(core, namespace)?;
            for uid in some {
                add_end(core, &mut writer, (namespace, *uid), |fields| {
                    fields.status = Status::Abandoned.code();
                })?;
            }
            tickets.extend(writer.submit(core.options.durability)?);
        }
    }
    tickets.into_iter().try_for_each(|(_, ticket)| ticket.wait().map(drop))
}

/// Ends an open run with the frames in the log, finished or not. `change` sets the status and may override
/// every other field.
pub(crate) fn end_open_run(
    core: &Arc<Core>,
    namespace: NamespaceId,
    uid: RunUid,
    change: impl FnOnce(&mut RunFields),
) -> Result<()> {
    let mut writer = BatchWriter::for_close(core, namespace)?;
    add_end(core, &mut writer, (namespace, uid), change)?;
    if let Some((_, ticket)) = writer.submit_awaited(core.options.durability)? {
        ticket.wait()?;
    }
    Ok(())
}

/// Adds the end of an open run to a batch; adds nothing for another run.
fn add_end(
    core: &Arc<Core>,
    writer: &mut BatchWriter,
    (namespace, uid): (NamespaceId, RunUid),
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
    head.fields.fingerprint = match reader.link_at(info.frames) {
        // The run ends all the same: else nobody could write to the store, or forget the run. `verify` names the damage.
        Err(error) if error.kind() == ErrorKind::Damaged => chain::genesis(),
        link => link?,
    };
    head.fields.ended_ns = core.io.now_ns().max(head.fields.started_ns);
    change(&mut head.fields);
    writer.add_record(kinds::RUN, &encode_run(&head)?, &tail)
}
