//! The command line's only access to the engine: opens a store, and turns the engine's results and errors
//! into what the verbs print. Apart from `verbs/token.rs`, no other file of this crate opens a store.

use std::collections::BTreeMap;
use std::path::Path;

use annals::{
    Durability, Error, ErrorKind, Frame, Keyspace, Namespace, Options, RecordedFrame, Run, RunInfo,
    RunReader, RunSpec, RunUid, Seqno, Status, Store,
    kv::{History, ScanRange},
    ledger::{Checkpoint, Comparison, Gap, Proof},
    retention::{RetentionPlan, RetentionPolicy, RetentionReport, RunRemnants},
    runs::DroppedRun,
    tape::{REDACTED_TAG, Tape, TapeRedaction},
    upkeep::{BackupReport, CompactOptions, CompactReport, Diagnosis, RepairReport, Sharing},
};
use annals_formats::import::ImportedRun;
use annals_memory::{Definition, Identity, Memory, MemoryHit, MemoryQuery, SnapshotOptions, TrainingFormat};

use annals_server::profiles::{Redactor, make_placeholder_key, placeholder_key, temporary_key};
use annals_server::providers::{Prices, RequestChanges};
use annals_server::{
    Alignment, AskOutcome, ConfiguredEmbedder, Destination, FailureReport, ForkOptions, ForkReport,
    FrameDifference, OnwardOptions, OnwardReport, Origin, Program, ReplayOptions, RunUsage, SessionError,
    Shared, Supervision, UnrecordedTraffic, ask_or_open,
};

use crate::failure::{CliResult, Failure, FailureCode, before_start};
use crate::tracefork::TraceforkRecording as Foreign;
use crate::watched_embedder::Watched;

/// Most raw bytes of frames in one commit. A run up to this size is one commit, so that an import leaves only
/// whole runs. A larger run takes several commits; an import that stops between them leaves it open, then
/// abandoned.
const COMMIT_RAW_BYTES_MAX: u64 = 256 << 20;

/// A run in a listing.
#[derive(Debug, Clone)]
pub(crate) struct RunRow {
    pub(crate) id: String,
    pub(crate) status: &'static str,
    pub(crate) severity: &'static str,
    pub(crate) frames: u64,
    /// In hexadecimal; `None` while the run is open.
    pub(crate) fingerprint: Option<String>,
    pub(crate) agent: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) started_ns: u64,
    pub(crate) ended_ns: Option<u64>,
    /// The reason of its pin, if it is pinned.
    pub(crate) pinned: Option<String>,
    /// The parent's name, if the parent still exists, and the last frame that both share.
    pub(crate) forked_from: Option<(Option<String>, u32)>,
}

/// A frame that has been read and checked.
#[derive(Debug, Clone)]
pub(crate) struct FrameRow {
    pub(crate) seq: u32,
    pub(crate) component: String,
    pub(crate) parent: Option<u32>,
    pub(crate) started_ns: u64,
    pub(crate) duration_ns: u64,
    pub(crate) severity: &'static str,
    /// The frame was begun and never finished: the output is the part that had arrived.
    pub(crate) incomplete: bool,
    /// The component failed.
    pub(crate) error: bool,
    pub(crate) input: Vec<u8>,
    pub(crate) output: Vec<u8>,
    pub(crate) metadata: Vec<u8>,
    /// The chain's link after this frame, in hexadecimal; empty if the frame is redacted.
    pub(crate) digest: String,
    /// The profile that redacted this frame, if any.
    pub(crate) redacted: Option<String>,
}

/// The result of a check.
#[derive(Debug, Default)]
pub(crate) struct VerifySummary {
    pub(crate) runs: u64,
    pub(crate) frames: u64,
    pub(crate) blobs: u64,
    /// One sentence for each damaged place.
    pub(crate) damaged: Vec<String>,
    /// One sentence for each index table that was rebuilt from the log.
    pub(crate) rebuilt: Vec<String>,
}

/// The content of a store and its size on disk.
#[derive(Debug, Default)]
pub(crate) struct StoreCosts {
    pub(crate) runs: u64,
    pub(crate) frames: u64,
    pub(crate) raw_bytes: u64,
    pub(crate) dropped_runs: u64,
    pub(crate) dropped_frames: u64,
    pub(crate) sampled_out_runs: u64,
    pub(crate) disk_bytes: u64,
    /// Bytes by kind, in the order they are shown.
    pub(crate) by_kind: Vec<(&'static str, u64)>,
}

/// The runs that a check covers.
pub(crate) enum VerifyScope<'a> {
    Run(&'a str),
    All,
    Sample(u64),
}

/// A version of a key. The value is `None` if this version deleted the key.
pub(crate) struct VersionRow {
    pub(crate) seqno: u64,
    pub(crate) time_ns: u64,
    pub(crate) value: Option<Vec<u8>>,
}

/// An open store and the name of the namespace to use.
pub(crate) struct StoreAccess {
    store: Store,
    namespace: String,
    prices: Prices,
}

/// A run that is being recorded, with one commit for each frame.
pub(crate) struct LiveRun(Run);

/// A store that this process records into, together with other recorders.
pub(crate) struct SharedRecorder(Shared);

impl SharedRecorder {
    /// Opens a store, or joins the process that records into it. A frame counts as recorded once the
    /// operating system has it, so that no program waits for the disk. The end of a run waits for the disk.
    /// `policy` samples each run when it ends.
    pub(crate) fn open(root: &Path, namespace: &str, policy: Option<RetentionPolicy>) -> CliResult<Self> {
        let options = Options { durability: Durability::Process, ..Options::default() };
        let shared = Shared::open(root, namespace, &options).map_err(engine_failure)?;
        match policy {
            Some(policy) => shared.with_sampling(policy).map(Self).map_err(engine_failure),
            None => Ok(Self(shared)),
        }
    }

    /// Records into a run of this name. If `wish` is set and the name is taken, adds a number to the name.
    pub(crate) fn record_as<T>(
        &self,
        name: &str,
        wish: bool,
        record: impl Fn(&Destination, &str) -> Result<T, SessionError>,
    ) -> CliResult<(String, T)> {
        let mut number = 1;
        loop {
            let name = if number == 1 { name.to_owned() } else { format!("{name}-{number}") };
            match record(self.0.destination(), &name) {
                Ok(report) => return Ok((name, report)),
                Err(SessionError::Store(error)) if wish && error.kind() == ErrorKind::Conflict => {
                    number += 1;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Closes the store once no other recorder uses it through this process. Calls `waiting` with the number
    /// of recorders that still do. Returns the number of runs that were sampled out.
    pub(crate) fn close(self, waiting: impl FnOnce(usize)) -> CliResult<u64> {
        self.0.close(waiting).map_err(engine_failure)
    }
}

impl StoreAccess {
    /// Creates a store with the namespace. Returns whether the store is new.
    pub(crate) fn create(root: &Path, namespace: &str) -> CliResult<bool> {
        let there = Store::open_read_only(root).is_ok();
        Self::open_to_write(root, namespace)?.close()?;
        Ok(!there)
    }

    /// Opens a store for writing. Creates the store and the namespace if they do not exist.
    pub(crate) fn open_to_write(root: &Path, namespace: &str) -> CliResult<Self> {
        let store = Store::open(root).map_err(engine_failure)?;
        store.namespace(namespace).map_err(engine_failure)?;
        Ok(Self::new(store, namespace))
    }

    /// Opens an existing store with an existing namespace for writing.
    pub(crate) fn open_existing_to_write(root: &Path, namespace: &str) -> CliResult<Self> {
        Self::open_existing(root, namespace, Options::default())
    }

    /// Opens an existing store for writing to all of it; the namespace need not exist.
    pub(crate) fn open_store_to_write(root: &Path, namespace: &str) -> CliResult<Self> {
        let options = Options { create: false, ..Options::default() };
        let store = Store::open_with(root, options).map_err(|error| open_failure(root, error))?;
        Ok(Self::new(store, namespace))
    }

    /// Opens an existing store with an existing namespace to record a program, with the durability of
    /// [`SharedRecorder::open`].
    pub(crate) fn open_existing_to_record(root: &Path, namespace: &str) -> CliResult<Self> {
        Self::open_existing(
            root,
            namespace,
            Options { durability: Durability::Process, ..Options::default() },
        )
    }

    fn new(store: Store, namespace: &str) -> Self {
        Self { store, namespace: namespace.to_owned(), prices: Prices::built_in() }
    }

    fn open_existing(root: &Path, namespace: &str, options: Options) -> CliResult<Self> {
        let options = Options { create: false, ..options };
        let store = Store::open_with(root, options).map_err(|error| open_failure(root, error))?;
        let names = store.namespaces().map_err(engine_failure)?;
        if names.iter().any(|name| name == namespace) {
            return Ok(Self::new(store, namespace));
        }
        Err(no_namespace_failure(format!("there is no namespace {namespace:?}"), &names))
    }

    /// Returns the store's key for placeholders, and whether the key is stored. If the store has no key and
    /// another process writes to it, the key is drawn for this call only.
    pub(crate) fn placeholder_key(root: &Path) -> CliResult<([u8; 32], bool)> {
        let store = Store::open_read_only(root).map_err(|error| open_failure(root, error))?;
        if let Some(key) = placeholder_key(&store).map_err(engine_failure)? {
            return Ok((key, true));
        }
        drop(store);
        let options = Options { create: false, ..Options::default() };
        let drawn = Store::open_with(root, options).and_then(|store| {
            let key = make_placeholder_key(&store)?;
            store.close()?;
            Ok(key)
        });
        drawn.map(|key| (key, true)).or_else(|_| Ok((temporary_key().map_err(engine_failure)?, false)))
    }

    /// Opens a store for reading.
    pub(crate) fn open_to_read(root: &Path, namespace: &str) -> CliResult<Self> {
        let store = Store::open_read_only(root).map_err(|error| open_failure(root, error))?;
        Ok(Self::new(store, namespace))
    }

    /// Makes commits visible that came after the store was opened for reading.
    pub(crate) fn refresh(&self) -> CliResult<()> {
        self.store.refresh().map_err(engine_failure)
    }

    pub(crate) fn close(self) -> CliResult<()> {
        self.store.close().map_err(engine_failure)
    }

    fn namespace(&self) -> CliResult<Namespace> {
        self.store.namespace(&self.namespace).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                no_namespace_failure(error.to_string(), &self.store.namespaces().unwrap_or_default())
            }
            _ => engine_failure(error),
        })
    }

    pub(crate) fn runs(&self) -> CliResult<impl Iterator<Item = CliResult<RunRow>>> {
        let space = self.namespace()?;
        let pins = self.pins(&space)?;
        let runs = space.runs().map_err(engine_failure)?;
        Ok(runs.map(move |run| run.map(|info| pinned_row(&info, &pins)).map_err(engine_failure)))
    }

    /// Returns the runs, newest first.
    pub(crate) fn newest_runs(
        &self,
    ) -> CliResult<impl ExactSizeIterator<Item = CliResult<(RunReader, RunRow)>>> {
        let space = self.namespace()?;
        let pins = self.pins(&space)?;
        let runs = space.newest_runs().map_err(engine_failure)?;
        Ok(runs.map(move |run| {
            let reader = run.map_err(engine_failure)?;
            let row = pinned_row(reader.info(), &pins);
            Ok((reader, row))
        }))
    }

    /// Returns the unrecorded traffic of a run's program, if there was any.
    pub(crate) fn unrecorded_traffic(&self, id: &str) -> CliResult<Option<UnrecordedTraffic>> {
        UnrecordedTraffic::from_reader(&self.reader(id)?).map_err(engine_failure)
    }

    /// Models, tokens and cost of a run.
    pub(crate) fn usage(&self, reader: &RunReader) -> RunUsage {
        annals_server::run_usage(reader, &self.prices)
    }

    /// Returns the run with this name. If no run has this name, `last` is the newest run, and an unambiguous
    /// prefix stands for its run.
    pub(crate) fn reader(&self, id: &str) -> CliResult<RunReader> {
        let space = self.namespace()?;
        let missing = match space.run(id) {
            Err(error) if error.kind() == ErrorKind::NotFound => no_run_failure(error),
            found => return found.map_err(engine_failure),
        };
        if id == "last" {
            return space.last_run().map_err(no_run_failure);
        }
        let mut names = Vec::new();
        for run in space.runs().map_err(engine_failure)? {
            let name = run.map_err(engine_failure)?.name;
            if !id.is_empty() && name.starts_with(id) {
                names.push(name);
            }
        }
        match names.as_slice() {
            [] => Err(missing),
            [name] => space.run(name).map_err(engine_failure),
            names => {
                let shown: Vec<_> = names.iter().take(5).map(String::as_str).collect();
                let message =
                    format!("{id:?} is the start of {} run names: {}", names.len(), shown.join(", "));
                Err(Failure::new(FailureCode::NoSuchThing, message, "write a longer part of the name"))
            }
        }
    }

    fn pins(&self, space: &Namespace) -> CliResult<BTreeMap<RunUid, String>> {
        let pins = space.pins().map_err(engine_failure)?;
        Ok(pins.into_iter().map(|pin| (pin.uid, pin.why)).collect())
    }

    /// Returns the time in nanoseconds since 1970-01-01 UTC. Fails if a sweep would not trust the clock.
    pub(crate) fn now_ns(&self) -> CliResult<u64> {
        self.store.believed_now_ns().map_err(engine_failure)
    }

    /// Plans which runs a policy drops.
    pub(crate) fn plan_retention(
        &self,
        policy: &RetentionPolicy,
        at_ns: Option<u64>,
    ) -> CliResult<RetentionPlan> {
        self.store.plan_retention(policy, at_ns).map_err(engine_failure)
    }

    /// Drops the planned runs.
    pub(crate) fn retain(&self, plan: RetentionPlan) -> CliResult<RetentionReport> {
        self.store.retain(plan).map_err(engine_failure)
    }

    pub(crate) fn pin(&self, run: &str, why: &str) -> CliResult<()> {
        self.namespace()?.pin(run, why).map(drop).map_err(engine_failure)
    }

    /// Removes the pin of a run. Returns whether the run was pinned.
    pub(crate) fn unpin(&self, run: &str) -> CliResult<bool> {
        self.namespace()?.unpin(run).map_err(engine_failure)
    }

    /// Drops a run at once.
    pub(crate) fn forget(&self, run: &str, why: &str) -> CliResult<()> {
        let space = self.namespace()?;
        space.forget(run, why).map_err(engine_failure)?;
        annals_server::forget_answers(&space, run).map(drop).map_err(engine_failure)
    }

    /// Returns a dropped run, and the files and backups that still hold its bytes.
    pub(crate) fn still_held(&self, uid: RunUid) -> CliResult<(DroppedRun, RunRemnants)> {
        self.namespace()?.run_remnants(uid).map_err(engine_failure)
    }

    /// Returns the program that a run was recorded from, if there was one.
    pub(crate) fn origin(&self, reader: &RunReader) -> CliResult<Option<Origin>> {
        Origin::from_reader(reader).map_err(engine_failure)
    }

    /// Returns whether a run was ingested from traces of another tool.
    pub(crate) fn is_ingested(&self, reader: &RunReader) -> CliResult<bool> {
        annals_server::is_ingested(reader).map_err(engine_failure)
    }

    /// Returns the profile that redacted a run before its import, if any.
    pub(crate) fn redacted_by(&self, id: &str) -> CliResult<Option<String>> {
        let reader = self.reader(id)?;
        let tag = reader.info().tags.iter().find(|(key, _)| key == REDACTED_TAG);
        Ok(tag.map(|(_, name)| name.clone()))
    }

    pub(crate) fn run(&self, id: &str) -> CliResult<RunRow> {
        let reader = self.reader(id)?;
        Ok(pinned_row(reader.info(), &self.pins(&self.namespace()?)?))
    }

    /// Returns the number of the previous request, and what the frame's request adds to it, redacted by `by`.
    pub(crate) fn new_part(
        &self,
        id: &str,
        seq: u32,
        by: Option<&Redactor>,
    ) -> CliResult<(u32, RequestChanges)> {
        let found = annals_server::new_part(&self.reader(id)?, seq, by).map_err(engine_failure)?;
        found.ok_or_else(|| {
            let message = format!("frame {seq} of run `{id}` is no model call");
            Failure::new(
                FailureCode::Failed,
                message,
                format!("`annals show {id}@{seq} --input` prints its input"),
            )
        })
    }

    /// Aligns the frames of two runs.
    pub(crate) fn align(&self, a: &RunReader, b: &RunReader) -> CliResult<Alignment> {
        annals_server::align(a, b).map_err(engine_failure)
    }

    /// Returns the differences between two frames, redacted by `by`.
    pub(crate) fn difference(
        &self,
        a: (&RunReader, u32),
        b: (&RunReader, u32),
        by: Option<&Redactor>,
    ) -> CliResult<FrameDifference> {
        let (a, b) = (a.0.frame(a.1).map_err(engine_failure)?, b.0.frame(b.1).map_err(engine_failure)?);
        Ok(annals_server::frame_difference(&a, &b, by))
    }

    /// Returns the frame where a run failed, else its last frame.
    pub(crate) fn failure_report(&self, id: &str, by: Option<&Redactor>) -> CliResult<Option<FailureReport>> {
        annals_server::failure_report(&self.reader(id)?, by).map_err(engine_failure)
    }

    pub(crate) fn metadata(&self, id: &str) -> CliResult<Vec<u8>> {
        self.reader(id)?.metadata().map_err(engine_failure)
    }

    /// Returns a run's frames in order. The engine checks every blob and link, and the fingerprint after the
    /// last frame.
    pub(crate) fn frames(&self, id: &str) -> CliResult<impl Iterator<Item = CliResult<FrameRow>>> {
        let reader = self.reader(id)?;
        Ok(reader.frames().map(|frame| frame.map(frame_row).map_err(engine_failure)))
    }

    pub(crate) fn frame(&self, id: &str, seq: u32) -> CliResult<FrameRow> {
        let reader = self.reader(id)?;
        reader.frame(seq).map(frame_row).map_err(engine_failure)
    }

    /// Begins a run that is recorded one frame at a time.
    pub(crate) fn begin(&self, run: &ImportedRun) -> CliResult<LiveRun> {
        self.namespace()?.begin_run(import_spec(run, false)).map(LiveRun).map_err(engine_failure)
    }

    /// Records a whole run, in one commit up to [`COMMIT_RAW_BYTES_MAX`]. Returns its numbers of frames and
    /// raw bytes.
    pub(crate) fn record(&self, run: &ImportedRun, replace: bool) -> CliResult<(u64, u64)> {
        let recording = self.namespace()?.prepare_run(import_spec(run, replace)).map_err(engine_failure)?;
        let (mut frames, mut raw_bytes, mut uncommitted) = (0, 0, 0);
        let mut batch = recording.batch().map_err(engine_failure)?;
        for frame in run.frames() {
            let bytes = frame.input.len() + frame.output.len() + frame.metadata.len() as u64;
            if uncommitted > 0 && uncommitted + bytes > COMMIT_RAW_BYTES_MAX {
                batch.commit().map_err(engine_failure)?;
                batch = recording.batch().map_err(engine_failure)?;
                uncommitted = 0;
            }
            batch.frame(frame).map_err(engine_failure)?;
            frames += 1;
            raw_bytes += bytes;
            uncommitted += bytes;
        }
        batch.end(run.status).map_err(engine_failure)?;
        batch.commit().map_err(engine_failure)?;
        Ok((frames, raw_bytes))
    }

    /// Forks a run and ends the fork at once, because no program continues it.
    pub(crate) fn fork(&self, from: &str, at: u32, name: &str) -> CliResult<RunRow> {
        let namespace = self.namespace()?;
        let parent = self.reader(from)?;
        let of = parent.info();
        let spec = RunSpec::new(name).agent(&of.agent).model(&of.model).severity(of.severity);
        let fork = namespace.fork(&of.name, at, false, spec).map_err(engine_failure)?;
        fork.end(Status::Ok).map(|info| run_row(&info)).map_err(engine_failure)
    }

    /// Continues a recorded program from a frame of its run, into a fork of this name.
    pub(crate) fn fork_program(
        &self,
        reader: &RunReader,
        origin: &Origin,
        name: &str,
        forking: &ForkOptions,
    ) -> CliResult<ForkReport> {
        let of = reader.info();
        let spec = RunSpec::new(name).agent(&of.agent).model(&of.model);
        Ok(annals_server::fork(&self.namespace().map_err(before_start)?, reader, origin, spec, forking)?)
    }

    /// Replays a recorded program, and continues it live after its first divergence.
    pub(crate) fn replay_onward(
        &self,
        reader: &RunReader,
        origin: &Origin,
        program: &Program,
        supervision: &Supervision,
        options: ReplayOptions,
        onward: &OnwardOptions,
    ) -> CliResult<OnwardReport> {
        let space = self.namespace().map_err(before_start)?;
        Ok(annals_server::replay_onward(&space, reader, origin, program, supervision, options, onward)?)
    }

    /// Returns the newest snapshot at or before a frame (`None`: the last frame), with the frame of the
    /// snapshot.
    pub(crate) fn state(&self, id: &str, seq: Option<u32>) -> CliResult<(u32, Vec<u8>)> {
        let reader = self.reader(id)?;
        let last = reader.info().frames;
        if let Some(seq) = seq.filter(|seq| *seq > last) {
            let message = format!("run `{id}` has no frame {seq}");
            return Err(Failure::new(FailureCode::NoSuchThing, message, format!("the last frame is {last}")));
        }
        match reader.snapshot_at(seq.unwrap_or(last)).map_err(engine_failure)? {
            Some(snapshot) => Ok((snapshot.seq, snapshot.state)),
            None => {
                let at = seq.map_or(String::new(), |seq| format!(" at or before frame {seq}"));
                let message = format!("run `{id}` has no snapshot{at}");
                Err(Failure::new(
                    FailureCode::NoSuchThing,
                    message,
                    "a program records snapshots through the engine",
                ))
            }
        }
    }

    pub(crate) fn verify(&self, scope: VerifyScope<'_>) -> CliResult<VerifySummary> {
        let report = match scope {
            VerifyScope::All => self.store.verify(),
            VerifyScope::Run(id) => {
                let name = self.reader(id)?.info().name.clone();
                self.store.verify_runs(&self.namespace, &[name])
            }
            VerifyScope::Sample(wanted) => {
                let names = self.runs()?.map(|run| run.map(|run| run.id)).collect::<CliResult<Vec<_>>>()?;
                self.store.verify_runs(&self.namespace, &even_sample(&names, wanted))
            }
        };
        let report = report.map_err(no_run_failure)?;
        let rebuilt = report.rebuilt;
        let damaged = report.damaged.into_iter().map(|problem| match problem.run {
            Some((namespace, run)) => format!("run {run} of namespace {namespace}: {}", problem.what),
            None => problem.what,
        });
        Ok(VerifySummary {
            runs: report.runs,
            frames: report.frames,
            blobs: report.blobs,
            damaged: damaged.collect(),
            rebuilt: rebuilt
                .into_iter()
                .map(|table| format!("{}: {}", table.file.display(), table.what))
                .collect(),
        })
    }

    /// Writes a run as a tape. Returns the tape's length in bytes.
    pub(crate) fn export_tape(&self, reader: &RunReader, to: &mut dyn std::io::Write) -> CliResult<u64> {
        reader.write_tape(to).map_err(|error| match error.kind() {
            ErrorKind::Conflict => Failure::new(FailureCode::Failed, error, "wait until it has ended"),
            _ => engine_failure(error),
        })
    }

    /// Writes a redacted run as a tape that names the profile. Returns the tape's length in bytes.
    pub(crate) fn export_redacted_tape(
        &self,
        reader: &RunReader,
        redactor: &Redactor,
        to: &mut dyn std::io::Write,
    ) -> CliResult<u64> {
        let shown = TapeRedaction {
            by: redactor.profile().name(),
            frame: &mut |frame| {
                let shown = redactor.frame(&frame.input, &frame.output, &frame.metadata);
                (frame.input, frame.output, frame.metadata) = (shown.input, shown.output, shown.metadata);
            },
            bytes: &mut |bytes| redactor.metadata(&bytes).bytes.into_owned(),
            tag: &mut |tag| redactor.text(tag),
        };
        reader.write_redacted_tape(to, shown).map_err(|error| match error.kind() {
            ErrorKind::Conflict => Failure::new(FailureCode::Failed, error, "wait until it has ended"),
            _ => engine_failure(error),
        })
    }

    /// Reads a run and checks every byte. Returns its number of frames.
    pub(crate) fn check_frames(&self, reader: &RunReader) -> CliResult<u64> {
        reader.verify().map(|verified| verified.frames).map_err(engine_failure)
    }

    /// Returns the recorded exit code of a run's program, if there is one. The program's own frames are the
    /// last two.
    pub(crate) fn exit_code(&self, reader: &RunReader) -> CliResult<Option<u8>> {
        for seq in (1..=reader.info().frames).rev().take(2) {
            let frame = reader.frame_info(seq).map_err(engine_failure)?;
            if frame.component.name() == "program" {
                let metadata: serde_json::Value = serde_json::from_slice(&frame.metadata).unwrap_or_default();
                return Ok(metadata["exit"]["code"].as_u64().and_then(|code| u8::try_from(code).ok()));
            }
        }
        Ok(None)
    }

    /// Records the run of a tape.
    pub(crate) fn import_tape(&self, tape: &Tape, name: Option<&str>, replace: bool) -> CliResult<RunInfo> {
        self.namespace()?.import_tape(tape, name, replace).map_err(|error| match error.kind() {
            ErrorKind::Conflict => {
                Failure::new(FailureCode::Failed, error, "set another name with --run, or add --replace")
            }
            _ => engine_failure(error),
        })
    }

    /// Records a tape of tracefork as a run of this name.
    pub(crate) fn import_tracefork(
        &self,
        recording: Foreign,
        name: &str,
        replace: bool,
    ) -> CliResult<RunInfo> {
        let spec = RunSpec::new(name).replace(replace).metadata(recording.metadata);
        let run = self.namespace()?.prepare_run(spec).map_err(engine_failure)?;
        let mut batch = run.batch().map_err(engine_failure)?;
        for frame in recording.frames {
            batch.frame(frame).map_err(engine_failure)?;
        }
        batch.end(Status::Ok).map_err(engine_failure)?;
        batch.commit().map_err(engine_failure)?;
        Ok(self.reader(name)?.info().clone())
    }

    /// Returns the present head of the ledger.
    pub(crate) fn checkpoint(&self) -> CliResult<Checkpoint> {
        self.store.checkpoint().map_err(engine_failure)
    }

    /// Makes a proof of a run or of one of its frames.
    pub(crate) fn prove(&self, id: &str, seq: Option<u32>, since: Option<&Checkpoint>) -> CliResult<Proof> {
        let name = self.reader(id)?.info().name.clone();
        self.namespace()?.prove(&name, seq, since).map_err(|error| match error.kind() {
            ErrorKind::Diverged => {
                Failure::new(FailureCode::Damage, error, "`annals verify --against CHECKPOINT` shows where")
            }
            _ => no_run_failure(error),
        })
    }

    /// Compares the store's history with a checkpoint.
    pub(crate) fn compare(&self, checkpoint: &Checkpoint) -> CliResult<Comparison> {
        self.store.verify_against(checkpoint).map_err(engine_failure)
    }

    /// Calls `each` for every gap: a dropped or missing part of the history.
    pub(crate) fn gaps(&self, each: &mut dyn FnMut(Gap) -> CliResult<()>) -> CliResult<()> {
        let mut failure = None;
        let listed = self.store.gaps(&mut |gap| {
            each(gap).map_err(|failed| {
                failure = Some(failed);
                Error::new(ErrorKind::Unavailable, "the output could not be written")
            })
        });
        match failure {
            Some(failure) => Err(failure),
            None => listed.map_err(engine_failure),
        }
    }

    /// Reclaims the disk space of deleted data.
    pub(crate) fn compact(&self, options: &CompactOptions) -> CliResult<CompactReport> {
        self.store.compact(options).map_err(engine_failure)
    }

    /// Copies the store in its present state.
    pub(crate) fn backup(&self, dest: &Path, sharing: Sharing) -> CliResult<BackupReport> {
        self.store.backup(dest, sharing).map_err(engine_failure)
    }

    /// Notes in the store that a backup was made, if no process writes to the store and no recovery is
    /// needed. A daemon notes its own backups.
    pub(crate) fn note_backup(&self, root: &Path, dest: &Path) {
        if !self.store.was_closed_cleanly() {
            return;
        }
        let place = std::path::absolute(dest).unwrap_or_else(|_| dest.to_path_buf());
        let options = Options { create: false, ..Options::default() };
        // The backup is complete even if this note cannot be written.
        if let Ok(store) = Store::open_with(root, options) {
            let _ = store.note_backup(&place.to_string_lossy());
            let _ = store.close();
        }
    }

    pub(crate) fn stats(&self) -> CliResult<StoreCosts> {
        let stats = self.store.stats().map_err(engine_failure)?;
        let bytes = stats.bytes;
        Ok(StoreCosts {
            runs: stats.runs,
            frames: stats.frames,
            raw_bytes: stats.raw_bytes,
            dropped_runs: stats.dropped_runs,
            dropped_frames: stats.dropped_frames,
            sampled_out_runs: stats.sampled_out_runs,
            disk_bytes: stats.disk_bytes,
            by_kind: vec![
                ("pieces", bytes.pieces),
                ("recipes", bytes.recipes),
                ("frame_records", bytes.frame_records),
                ("run_records", bytes.run_records),
                ("kv_records", bytes.kv_records),
                ("chains_and_ledger", bytes.chains_and_ledger),
                ("tables", bytes.tables),
                ("other", bytes.other),
            ],
        })
    }

    /// Stores an entry or a snapshot in an agent's memory, and creates the store if there is none. Returns
    /// the entry's id. If a daemon or a recorder holds the store, it executes the command `words` instead.
    pub(crate) fn remember(
        root: &Path,
        namespace: &str,
        words: &[&[u8]],
        whose: &Identity,
        text: &str,
    ) -> CliResult<String> {
        const FORM: &str = "docs/memory.md has the form of an entry and of a snapshot";
        let store = match ask_or_open(root, words, &Options::default()) {
            Ok(AskOutcome::Asked(id)) => return Ok(id),
            Ok(AskOutcome::Opened(store)) => store,
            Err(error) => {
                let told = error.to_string();
                return Err(match told.strip_prefix("ERR ") {
                    Some(why) => Failure::new(FailureCode::Failed, why, FORM),
                    None if error.kind() == ErrorKind::Invalid => {
                        Failure::new(FailureCode::Failed, told, FORM)
                    }
                    None => engine_failure(error),
                });
            }
        };
        let space = store.namespace(namespace).map_err(engine_failure)?;
        let memory = Memory::open(&space).map_err(engine_failure)?;
        let with =
            Watched::new(ConfiguredEmbedder::from_environment(Some(&space)).map_err(embedder_failure)?);
        let kept = annals_server::remember_json(&memory, whose, text, &with, &SnapshotOptions::default());
        let id = kept.map(|entry| entry.id).map_err(|error| match error.kind() {
            _ if with.has_failed() => embedder_failure(error),
            ErrorKind::Invalid => Failure::new(FailureCode::Failed, error, FORM),
            _ => engine_failure(error),
        })?;
        drop((memory, with, space));
        store.close().map_err(engine_failure)?;
        Ok(id)
    }

    /// Stores a definition of a memory, and creates the store if there is none. Returns the definition's id.
    /// If a daemon or a recorder holds the store, that process stores it.
    pub(crate) fn define(root: &Path, namespace: &str, text: &str) -> CliResult<String> {
        let refused = |error: Error| {
            let told = error.to_string();
            match told.strip_prefix("ERR ") {
                None if error.kind() != ErrorKind::Invalid => engine_failure(error),
                why => {
                    let hint = "`annals define-memory --help` shows a definition";
                    Failure::new(FailureCode::Failed, why.unwrap_or(&told), hint)
                }
            }
        };
        let definition = Definition::parse(text).map_err(refused)?;
        let words = [&b"MEM.DEFINE"[..], text.as_bytes(), b"NAMESPACE", namespace.as_bytes()];
        if let AskOutcome::Opened(store) = ask_or_open(root, &words, &Options::default()).map_err(refused)? {
            let space = store.namespace(namespace).map_err(engine_failure)?;
            Memory::open(&space).and_then(|memory| memory.define(text)).map_err(refused)?;
            drop(space);
            store.close().map_err(engine_failure)?;
        }
        Ok(definition.id)
    }

    /// Returns a stored definition of a memory.
    pub(crate) fn definition(&self, id: &str) -> CliResult<Definition> {
        const HINT: &str = "`annals define-memory` defines one";
        let memory = match Memory::open(&self.namespace()?) {
            // Nothing was ever stored in this memory.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let message = format!("there is no memory {id:?}: none is defined");
                return Err(Failure::new(FailureCode::NoSuchThing, message, HINT));
            }
            found => found.map_err(engine_failure)?,
        };
        memory.definition(id).map_err(|error| match error.kind() {
            ErrorKind::NotFound => Failure::new(FailureCode::NoSuchThing, error, HINT),
            _ => engine_failure(error),
        })
    }

    /// Finds the entries that answer a question.
    pub(crate) fn recall(
        &self,
        whose: &Identity,
        question: &str,
        wanted: &MemoryQuery<'_>,
    ) -> CliResult<Vec<MemoryHit>> {
        // Without a namespace the embedder caches no vectors, so that a read writes nothing.
        let with = Watched::new(ConfiguredEmbedder::from_environment(None).map_err(embedder_failure)?);
        let memory = match Memory::open(&self.namespace()?) {
            // Nothing was ever stored in this memory.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            found => found.map_err(engine_failure)?,
        };
        memory.recall(whose, question, &with, wanted).map_err(|error| match error.kind() {
            _ if with.has_failed() => embedder_failure(error),
            ErrorKind::Invalid => {
                let hint = "docs/memory.md explains recall and how ANNALS_EMBEDDINGS_URL names an embedder";
                Failure::new(FailureCode::Failed, error, hint)
            }
            _ => engine_failure(error),
        })
    }

    /// Calls `each` with every training line, until it fails.
    pub(crate) fn export_training(
        &self,
        whose: &Identity,
        across: bool,
        form: TrainingFormat,
        each: &mut dyn FnMut(&[u8]) -> CliResult<()>,
    ) -> CliResult<()> {
        let memory = match Memory::open(&self.namespace()?) {
            // Nothing was ever stored in this memory.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            found => found.map_err(engine_failure)?,
        };
        let mut failed = None;
        let given = memory.training_lines(whose, across, form, &mut |line| {
            each(line).map_err(|failure| {
                failed = Some(failure);
                Error::new(ErrorKind::Unavailable, "the lines can go nowhere")
            })
        });
        match failed {
            Some(failure) => Err(failure),
            None => given.map(drop).map_err(engine_failure),
        }
    }

    fn keyspace(&self, name: &str) -> CliResult<Option<Keyspace>> {
        self.namespace()?.find_keyspace(name).map_err(engine_failure)
    }

    pub(crate) fn get(&self, keyspace: &str, key: &[u8], at: Option<u64>) -> CliResult<Option<Vec<u8>>> {
        let Some(keyspace) = self.keyspace(keyspace)? else { return Ok(None) };
        let value = match at {
            Some(seqno) => keyspace.get_at(key, Seqno(seqno)),
            None => keyspace.get(key),
        };
        value.map_err(engine_failure)
    }

    /// Returns every stored version of a key, in the engine's order.
    pub(crate) fn versions(&self, keyspace: &str, key: &[u8]) -> CliResult<Vec<VersionRow>> {
        let Some(keyspace) = self.keyspace(keyspace)? else { return Ok(Vec::new()) };
        let versions = keyspace.history(key).map_err(engine_failure)?;
        let row = |version: annals::kv::Version| VersionRow {
            seqno: version.seqno.0,
            time_ns: version.time_ns,
            value: version.value,
        };
        Ok(versions.into_iter().map(row).collect())
    }

    /// Sets a value. Creates the keyspace if it does not exist; it then keeps every version. Returns the
    /// sequence number.
    pub(crate) fn put(&self, keyspace: &str, key: &[u8], value: Vec<u8>) -> CliResult<u64> {
        let keyspace = match self.keyspace(keyspace)? {
            Some(keyspace) => keyspace,
            None => self.namespace()?.keyspace(keyspace, History::All).map_err(engine_failure)?,
        };
        keyspace.put(key, value).map(|seqno| seqno.0).map_err(engine_failure)
    }

    /// Deletes a key. Returns whether the key existed.
    pub(crate) fn del(&self, keyspace: &str, key: &[u8]) -> CliResult<bool> {
        let Some(keyspace) = self.keyspace(keyspace)? else { return Ok(false) };
        if keyspace.get(key).map_err(engine_failure)?.is_none() {
            return Ok(false);
        }
        keyspace.delete(key).map(|_| true).map_err(engine_failure)
    }

    pub(crate) fn scan(
        &self,
        keyspace: &str,
        prefix: &[u8],
        reverse: bool,
    ) -> CliResult<impl Iterator<Item = CliResult<(Vec<u8>, Vec<u8>)>>> {
        let range = ScanRange::prefix(prefix);
        let range = if reverse { range.reverse() } else { range };
        let scan = self.keyspace(keyspace)?.map(|keyspace| keyspace.scan(range));
        Ok(scan.into_iter().flatten().map(|pair| pair.map_err(engine_failure)))
    }
}

/// Diagnoses the state of a store.
pub(crate) fn diagnose(root: &Path) -> CliResult<Diagnosis> {
    let mut found =
        annals::upkeep::diagnose(root, Options::default()).map_err(|error| open_failure(root, error))?;
    // The file of profiles is this crate's; the engine reports it as foreign.
    found.foreign.retain(|file| Some(file) != crate::profiles::store_profiles(root).as_ref());
    Ok(found)
}

/// Copies the undamaged data of a store into a new one.
pub(crate) fn repair(root: &Path, to: &Path) -> CliResult<RepairReport> {
    annals::upkeep::repair(root, to, Options::default()).map_err(|error| open_failure(root, error))
}

/// Restores a backup to a new store.
pub(crate) fn restore(backup: &Path, dest: &Path) -> CliResult<BackupReport> {
    annals::upkeep::restore(backup, dest, Options::default()).map_err(|error| open_failure(backup, error))
}

impl LiveRun {
    /// Records a frame, and waits until it is on disk.
    pub(crate) fn record(&self, frame: Frame) -> CliResult<u32> {
        self.0.record(frame).map_err(engine_failure)
    }

    pub(crate) fn end(&self, status: Status) -> CliResult<()> {
        self.0.end(status).map(drop).map_err(engine_failure)
    }
}

fn import_spec(run: &ImportedRun, replace: bool) -> RunSpec {
    let spec = RunSpec::new(&run.id).severity(run.severity).metadata(run.metadata.clone()).replace(replace);
    match &run.model {
        Some(model) => spec.model(model),
        None => spec,
    }
}

fn run_row(info: &RunInfo) -> RunRow {
    let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    RunRow {
        id: info.name.clone(),
        status: info.status.name(),
        severity: info.severity.name(),
        frames: u64::from(info.frames),
        fingerprint: info.fingerprint.map(|link| link.to_string()),
        agent: given(&info.agent),
        model: given(&info.model),
        started_ns: info.started_ns,
        ended_ns: info.ended_ns,
        pinned: None,
        forked_from: info.parent.as_ref().map(|point| (point.run.clone(), point.shared)),
    }
}

fn pinned_row(info: &RunInfo, pins: &BTreeMap<RunUid, String>) -> RunRow {
    RunRow { pinned: pins.get(&info.uid).cloned(), ..run_row(info) }
}

fn frame_row(frame: RecordedFrame) -> FrameRow {
    FrameRow {
        seq: frame.seq,
        component: frame.component.name().to_owned(),
        parent: frame.parent,
        started_ns: frame.started_ns,
        duration_ns: frame.duration_ns,
        severity: frame.severity.name(),
        incomplete: frame.incomplete,
        error: frame.error,
        input: frame.input,
        output: frame.output,
        metadata: frame.metadata,
        digest: frame.link.to_string(),
        redacted: None,
    }
}

/// Selects this number of names, evenly spread.
fn even_sample(names: &[String], wanted: u64) -> Vec<String> {
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX).min(names.len());
    (0..wanted).filter_map(|index| names.get(index * names.len() / wanted)).cloned().collect()
}

fn open_failure(root: &Path, error: Error) -> Failure {
    if error.kind() == ErrorKind::NotFound {
        let message = format!("no store at {}", root.display());
        return Failure::new(
            FailureCode::NoSuchThing,
            message,
            "create one with `annals init`, or name one with --store",
        );
    }
    engine_failure(error)
}

fn no_namespace_failure(message: String, names: &[String]) -> Failure {
    let hint = if names.is_empty() {
        "this store has no namespace yet: `annals import` creates the one that it writes to".to_owned()
    } else {
        format!("choose another one with --namespace; existing: {}", names.join(", "))
    };
    Failure::new(FailureCode::NoSuchThing, message, hint)
}

fn no_run_failure(error: Error) -> Failure {
    if error.kind() == ErrorKind::NotFound {
        return Failure::new(
            FailureCode::NoSuchThing,
            error,
            "`annals runs` lists the runs of the namespace",
        );
    }
    engine_failure(error)
}

/// Parses a tape.
pub(crate) fn parse_tape(bytes: Vec<u8>) -> CliResult<Tape> {
    Tape::read(bytes).map_err(|error| match error.kind() {
        ErrorKind::Damaged => {
            Failure::new(FailureCode::Damage, error, "fetch the tape again, or repeat `annals tape export`")
        }
        _ => Failure::new(FailureCode::Failed, error, "name an unchanged tape of annals or of tracefork"),
    })
}

/// Parses a checkpoint from JSON.
pub(crate) fn parse_checkpoint(json: &[u8]) -> CliResult<Checkpoint> {
    Checkpoint::from_json(json).map_err(engine_failure)
}

/// The failure of the embedder that the environment describes.
pub(crate) fn embedder_failure(error: Error) -> Failure {
    Failure::new(
        FailureCode::Failed,
        error,
        "docs/memory.md lists the variables that configure an HTTP embedder",
    )
}

/// Turns an engine error into an exit code and a hint.
pub(crate) fn engine_failure(error: Error) -> Failure {
    let (code, hint) = match error.kind() {
        ErrorKind::Invalid => (FailureCode::Failed, "correct the value that the message names"),
        ErrorKind::NotFound => {
            (FailureCode::NoSuchThing, "`annals runs` lists the runs, `annals scan` the keys")
        }
        ErrorKind::Conflict => (
            FailureCode::Failed,
            "resolve the conflict that the message names, or wait for it; an import replaces a taken name with --replace",
        ),
        ErrorKind::Locked => {
            (FailureCode::Failed, "wait until that process ends; reading verbs work meanwhile")
        }
        ErrorKind::Damaged => (FailureCode::Damage, "`annals doctor` lists the damage and the remedies"),
        ErrorKind::Diverged => (FailureCode::Damage, "compare the two with `annals show`"),
        ErrorKind::Gone => (FailureCode::NoSuchThing, "`annals ledger gaps` lists what was dropped"),
        ErrorKind::Unavailable => (FailureCode::Failed, "fix the system error, then try again"),
        ErrorKind::Poisoned => {
            (FailureCode::Failed, "an earlier write failed; try again: acknowledged data is kept")
        }
        _ => (FailureCode::Failed, "this is a bug in annals: please report it"),
    };
    Failure::new(code, error, hint)
}

#[cfg(test)]
mod tests {
    use super::even_sample;

    #[test]
    fn sample_is_spread_evenly() {
        let names: Vec<String> = (0..10).map(|number| number.to_string()).collect();
        assert_eq!(even_sample(&names, 3), ["0", "3", "6"]);
        assert_eq!(even_sample(&names, 99), names);
        assert!(even_sample(&[], 3).is_empty());
    }
}
