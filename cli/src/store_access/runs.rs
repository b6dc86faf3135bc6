//! Reading runs and frames.

use std::collections::BTreeMap;

use annals::runs::{Flag, ForkPoint, RunFilter, RunOrder};
use annals::{Error, ErrorKind, Namespace, RecordedFrame, RunInfo, RunReader, RunUid, tape::REDACTED_TAG};
use annals_server::{
    Alignment, FailureReport, FrameDifference, Origin, RunUsage, UnrecordedTraffic, profiles::Redactor,
    providers::RequestChanges,
};

use super::StoreAccess;
use super::blame::is_blame_fork;
use super::failures::engine_failure;
use crate::failure::{CliResult, Failure};

/// Runs that are read at a time.
const PAGE_RUNS: usize = 64;

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
    /// The reason of its flag, if a person has flagged it. `severity` counts it.
    pub(crate) flagged: Option<String>,
    /// Where it was forked.
    pub(crate) forked_from: Option<ForkPoint>,
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

impl StoreAccess {
    pub(crate) fn runs(&self) -> CliResult<impl Iterator<Item = CliResult<RunRow>>> {
        let space = self.namespace()?;
        let marks = RunMarks::of(&space)?;
        let runs = space.runs().map_err(engine_failure)?;
        Ok(runs.map(move |run| run.map(|info| marks.row(&info)).map_err(engine_failure)))
    }

    /// Returns the runs that a filter selects, newest first. Reads them a page at a time.
    pub(crate) fn newest_runs(
        &self,
        filter: RunFilter,
    ) -> CliResult<impl Iterator<Item = CliResult<(RunReader, RunRow)>>> {
        let space = self.namespace()?;
        let marks = RunMarks::of(&space)?;
        let (mut after, mut ended) = (None, false);
        let pages = std::iter::from_fn(move || {
            if ended {
                return None;
            }
            match space.page_runs(&filter, RunOrder::NewestFirst, after, PAGE_RUNS) {
                Ok(page) => {
                    (after, ended) = (page.next, page.next.is_none());
                    Some(page.runs.into_iter().map(Ok).collect::<Vec<_>>())
                }
                Err(error) => {
                    ended = true;
                    Some(vec![Err(engine_failure(error))])
                }
            }
        });
        Ok(pages.flatten().map(move |run| {
            let reader = run?;
            let row = marks.row(reader.info());
            Ok((reader, row))
        }))
    }

    pub(crate) fn run(&self, id: &str) -> CliResult<RunRow> {
        let reader = self.reader(id)?;
        Ok(RunMarks::of(&self.namespace()?)?.row(reader.info()))
    }

    /// The run that failed last by the rule of [`annals_server::last_failure`], and why another run was chosen.
    pub(crate) fn last_failure(&self) -> CliResult<Option<(RunRow, Option<&'static str>)>> {
        let space = self.namespace()?;
        let Some(last) = annals_server::last_failure(&space).map_err(engine_failure)? else {
            return Ok(None);
        };
        Ok(Some((RunMarks::of(&space)?.row(last.run.info()), last.reason())))
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
            return last_run(&space);
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
                Err(Failure::missing(message, "write a longer part of the name"))
            }
        }
    }

    /// Models, tokens and cost of a run.
    pub(crate) fn usage(&self, reader: &RunReader) -> RunUsage {
        annals_server::run_usage(reader, &self.prices)
    }

    /// Returns the program that a run was recorded from, if there was one.
    pub(crate) fn origin(&self, reader: &RunReader) -> CliResult<Option<Origin>> {
        Origin::from_reader(reader).map_err(engine_failure)
    }

    /// Returns the unrecorded traffic of a run's program, if there was any.
    pub(crate) fn unrecorded_traffic(&self, id: &str) -> CliResult<Option<UnrecordedTraffic>> {
        UnrecordedTraffic::from_reader(&self.reader(id)?).map_err(engine_failure)
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

    pub(crate) fn metadata(&self, id: &str) -> CliResult<Vec<u8>> {
        self.reader(id)?.metadata().map_err(engine_failure)
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

    /// Reads a run and checks every byte. Returns its number of frames.
    pub(crate) fn check_frames(&self, reader: &RunReader) -> CliResult<u64> {
        reader.verify().map(|verified| verified.frames).map_err(engine_failure)
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
            Failure::failed(message, format!("`annals show {id}@{seq} --input` prints its input"))
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

    /// Returns the newest snapshot at or before a frame (`None`: the last frame), with the frame of the
    /// snapshot.
    pub(crate) fn state(&self, id: &str, seq: Option<u32>) -> CliResult<(u32, Vec<u8>)> {
        let reader = self.reader(id)?;
        let last = reader.info().frames;
        if let Some(seq) = seq.filter(|seq| *seq > last) {
            let message = format!("run `{id}` has no frame {seq}");
            return Err(Failure::missing(message, format!("the last frame is {last}")));
        }
        match reader.snapshot_at(seq.unwrap_or(last)).map_err(engine_failure)? {
            Some(snapshot) => Ok((snapshot.seq, snapshot.state)),
            None => {
                let at = seq.map_or(String::new(), |seq| format!(" at or before frame {seq}"));
                let message = format!("run `{id}` has no snapshot{at}");
                Err(Failure::missing(message, "a program records snapshots through the engine"))
            }
        }
    }
}

pub(crate) fn run_row(info: &RunInfo) -> RunRow {
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
        flagged: None,
        forked_from: info.parent.clone(),
    }
}

/// What people say of runs, beside what was recorded.
struct RunMarks {
    pins: BTreeMap<RunUid, String>,
    flags: BTreeMap<RunUid, Flag>,
}

impl RunMarks {
    fn of(space: &Namespace) -> CliResult<Self> {
        let pins = space.pins().map_err(engine_failure)?.into_iter().map(|pin| (pin.uid, pin.why)).collect();
        let flags = space.flags().map_err(engine_failure)?.into_iter().map(|flag| (flag.uid, flag)).collect();
        Ok(Self { pins, flags })
    }

    fn row(&self, info: &RunInfo) -> RunRow {
        let flag = self.flags.get(&info.uid);
        RunRow {
            severity: Flag::raise(flag, info.severity).name(),
            pinned: self.pins.get(&info.uid).cloned(),
            flagged: flag.map(|flag| flag.why.clone()),
            ..run_row(info)
        }
    }
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

/// The run that began last, forks of blames left out.
fn last_run(space: &Namespace) -> CliResult<RunReader> {
    let mut after = None;
    loop {
        let page = space
            .page_runs(&RunFilter::default(), RunOrder::NewestFirst, after, PAGE_RUNS)
            .map_err(engine_failure)?;
        if let Some(reader) = page.runs.into_iter().find(|reader| !is_blame_fork(reader)) {
            return Ok(reader);
        }
        after = page.next;
        if after.is_none() {
            return space.last_run().map_err(no_run_failure);
        }
    }
}

pub(super) fn no_run_failure(error: Error) -> Failure {
    if error.kind() == ErrorKind::NotFound {
        return Failure::missing(error, "`annals runs` lists the runs of the namespace");
    }
    engine_failure(error)
}
