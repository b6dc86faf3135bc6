//! Recording runs: programs, imports, forks.

use std::path::Path;

use annals::io::{Io, RealIo};
use annals::{
    Durability, ErrorKind, Frame, Options, Run, RunReader, RunSpec, Status, retention::RetentionPolicy,
};
use annals_formats::import::ImportedRun;
use annals_formats::otlp::TraceIngest;
use annals_server::{
    Destination, ForkOptions, ForkReport, MEMORY_ON, MEMORY_TAG, OnwardOptions, OnwardReport, Origin,
    Program, ReplayOptions, SessionError, Shared, Supervision,
};

use super::failures::{engine_failure, open_failure};
use super::opening::{print_opening, write_options};
use super::runs::{RunRow, run_row};
use super::{AskedStore, StoreAccess, StoreWait};
use crate::failure::{CliResult, Failure, before_start};

/// Most raw bytes of frames in one commit. A run up to this size is one commit, so that an import leaves only
/// whole runs. A larger run takes several commits; an import that stops between them leaves it open, then
/// abandoned.
const COMMIT_RAW_BYTES_MAX: u64 = 256 << 20;
/// What a frame counts for besides its bytes: at least what its records and keys take in memory until the commit.
const FRAME_OVERHEAD_BYTES: u64 = 2 << 10;

/// A run that is being recorded, with one commit for each frame.
pub(crate) struct LiveRun(Run);

/// A store that this process records into, together with other recorders.
pub(crate) struct SharedRecorder(Shared);

impl SharedRecorder {
    /// Opens a store, or joins the process that records into it. A frame counts as recorded once the
    /// operating system has it, so that no program waits for the disk. The end of a run waits for the disk.
    /// `policy` samples each run when it ends.
    pub(crate) fn open(root: &Path, namespace: &str, policy: Option<RetentionPolicy>) -> CliResult<Self> {
        let options = Options { durability: Durability::Process, ..write_options() };
        let shared = Shared::open(root, namespace, &options).map_err(engine_failure)?;
        shared.opening().iter().for_each(print_opening);
        match policy {
            Some(policy) => shared.with_sampling(policy).map(Self).map_err(engine_failure),
            None => Ok(Self(shared)),
        }
    }

    /// As [`SharedRecorder::open`], for an existing store. Waits for a process that holds it without serving.
    pub(crate) fn open_existing(root: &Path, namespace: &str, wait: StoreWait) -> CliResult<Self> {
        let options = Options { durability: Durability::Process, create: false, ..write_options() };
        wait.open_shared(root, namespace, &options).map(Self).map_err(|error| open_failure(root, error))
    }

    /// The store for reading what is recorded; if this process holds it, also for writing.
    pub(crate) fn view(&self, root: &Path, namespace: &str) -> CliResult<StoreAccess> {
        match self.0.local() {
            Some(store) => Ok(StoreAccess::new(store, namespace)),
            None => StoreAccess::open_to_read(root, namespace),
        }
    }

    /// Continues a recorded program from a frame of its run, into a fork of this name.
    pub(crate) fn fork_program(
        &self,
        reader: &RunReader,
        origin: &Origin,
        name: &str,
        remember: bool,
        forking: &ForkOptions,
    ) -> CliResult<ForkReport> {
        let of = reader.info();
        let spec = RunSpec::new(name).agent(&of.agent).model(&of.model);
        let spec = if remember { spec.tag(MEMORY_TAG, MEMORY_ON) } else { spec };
        Ok(annals_server::fork(self.0.destination(), reader, origin, spec, forking)?)
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

    /// Closes the store if this process holds it; another recorder takes it over. Returns the number of runs
    /// that were sampled out.
    pub(crate) fn close(self) -> CliResult<u64> {
        if self.0.has_taken_over() {
            self.0.opening().iter().for_each(print_opening);
        }
        self.0.close().map_err(engine_failure)
    }
}

impl StoreAccess {
    /// Begins a run that is recorded one frame at a time.
    pub(crate) fn begin(&self, run: &ImportedRun) -> CliResult<LiveRun> {
        self.namespace()?.begin_run(import_spec(run, false, &[])).map(LiveRun).map_err(engine_failure)
    }

    /// Records a whole run, in one commit up to [`COMMIT_RAW_BYTES_MAX`]. Returns its numbers of frames and
    /// raw bytes.
    pub(crate) fn record(
        &self,
        run: &ImportedRun,
        replace: bool,
        tags: &[(String, String)],
    ) -> CliResult<(u64, u64)> {
        let spec = import_spec(run, replace, tags);
        let recording = self.namespace()?.prepare_run(spec).map_err(|error| match error.kind() {
            ErrorKind::Conflict if !replace => {
                Failure::failed(error, "--replace replaces runs of the same name")
            }
            _ => engine_failure(error),
        })?;
        let (mut frames, mut raw_bytes, mut uncommitted) = (0, 0, 0);
        let mut batch = recording.batch().map_err(engine_failure)?;
        for frame in run.frames() {
            let bytes = frame.input.len() + frame.output.len() + frame.metadata.len() as u64;
            let held = bytes + FRAME_OVERHEAD_BYTES;
            if uncommitted > 0 && uncommitted + held > COMMIT_RAW_BYTES_MAX {
                batch.commit().map_err(engine_failure)?;
                batch = recording.batch().map_err(engine_failure)?;
                uncommitted = 0;
            }
            batch.frame(frame).map_err(engine_failure)?;
            frames += 1;
            raw_bytes += bytes;
            uncommitted += held;
        }
        if frames != run.frame_count() as u64 {
            let message = format!("only {frames} of {} frames could be read back", run.frame_count());
            return Err(Failure::failed(message, "this is a bug in annals: please report it"));
        }
        batch.end(run.status).map_err(engine_failure)?;
        batch.commit().map_err(engine_failure)?;
        Ok((frames, raw_bytes))
    }

    /// An ingest of traces into the namespace, which is created if necessary.
    pub(crate) fn trace_ingest(&self) -> CliResult<TraceIngest> {
        self.namespace().map(TraceIngest::new)
    }

    /// The time in nanoseconds since 1970-01-01 UTC.
    pub(crate) fn clock_ns(&self) -> u64 {
        RealIo::new().now_ns()
    }

    /// Ends the runs of all traces.
    pub(crate) fn end_traces(&self, ingest: &TraceIngest) -> CliResult<()> {
        ingest.end_quiet_traces(self.clock_ns(), true).map_err(engine_failure)
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

    /// As [`Self::fork`], in the process that holds the store, or in this one.
    pub(crate) fn share_frames(
        root: &Path,
        namespace: &str,
        from: &RunReader,
        at: u32,
        name: &str,
        wait: StoreWait,
    ) -> CliResult<()> {
        let of = from.info();
        let point = format!("{}@{at}", of.name);
        let mut words = vec!["RUN.FORK", &point, "END", "NAMESPACE", namespace, "NAME", name];
        words.extend(["SEVERITY", of.severity.name()]);
        for (option, text) in [("AGENT", &of.agent), ("MODEL", &of.model)] {
            words.extend((!text.is_empty()).then_some([option, text.as_str()]).into_iter().flatten());
        }
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        match Self::ask_or_open_existing(root, namespace, &words, false, wait)? {
            AskedStore::Asked(_) => Ok(()),
            AskedStore::Opened(door) => {
                door.fork(&of.name, at, name)?;
                door.close()
            }
        }
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

fn import_spec(run: &ImportedRun, replace: bool, tags: &[(String, String)]) -> RunSpec {
    let spec = RunSpec::new(&run.id).severity(run.severity).metadata(run.metadata.clone()).replace(replace);
    let spec = tags.iter().fold(spec, |spec, (key, value)| spec.tag(key, value));
    match &run.model {
        Some(model) => spec.model(model),
        None => spec,
    }
}
