//! `annals demo`: records real runs as an agent would, with one commit for each step, in a child process. It
//! kills the child halfway, reopens the store, and checks that every acknowledged frame exists. Then it
//! records the missing runs, and compares every byte with the source.
//!
//! The runs are those of the tests; engine/tests/data/PROVENANCE.md has their provenance and licence.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use annals::{Frame, kv::Content};
use annals_formats::import::{ChatOptions, ChatRuns, ImportedRun};
use serde_json::json;

use crate::args::DemoArgs;
use crate::failure::{CliResult, Failure, FailureCode};
use crate::input::xz_reader;
use crate::output::{CliOutput, bytes, count};
use crate::store_access::{FrameRow, StoreAccess, StoreWait};

use super::report;
use super::stats::ratio;

/// 12 real runs of a tool-calling agent: MIT, Copyright (c) 2024 Sierra.
const RUNS_XZ: &[u8] = include_bytes!("../../../engine/tests/data/tau-airline-cut.json.xz");

const NAMESPACE: &str = "default";

pub(super) fn run(args: &DemoArgs, out: &mut CliOutput) -> CliResult<()> {
    if let Some(root) = &args.record_into {
        return record_until_killed(root);
    }
    let runs = bundled_runs()?;
    let place = DemoStore::new(args)?;
    let root = place.path();
    let acknowledged = record_and_kill(&root, &runs)?;
    let frames_before: usize = acknowledged.values().sum();
    if !out.json {
        let (frames, total) = (count(frames_before as u64), count(frame_count(&runs)));
        out.line(format_args!("recorded {frames} of {total} frames, then killed the recorder (SIGKILL)"))?;
        out.flush()?;
    }
    let door = StoreAccess::open_to_write(&root, NAMESPACE, StoreWait::NONE)?;
    check_acknowledged(&door, &runs, &acknowledged)?;
    let again = record_missing(&door, &runs)?;
    if !out.json {
        let frames = count(frames_before as u64);
        out.line(format_args!(
            "reopened: all {frames} acknowledged frames are there; recorded the other {again} runs"
        ))?;
        out.flush()?;
    }
    door.close()?;
    let door = StoreAccess::open_to_read(&root, NAMESPACE)?;
    let receipt = replay_and_compare(&door, &runs)?;
    receipt.print(frames_before, out)?;
    if let Some(file) = &args.report {
        let longest = runs.iter().max_by_key(|run| run.frame_count());
        let longest = longest.map(|run| run.id.as_str()).unwrap_or_default();
        let written = report::write(&door, &[longest], None, file)?;
        if !out.json {
            let (frames, len) = (count(written.frames), bytes(written.bytes));
            out.line(format_args!("report       {}: {frames} frames of {longest}, {len}", file.display()))?;
        }
    }
    if let Some(kept) = &args.keep
        && !out.json
    {
        out.line(format_args!("the store is in {0}: annals --store {0} runs", kept.display()))?;
    }
    if receipt.exact == receipt.frames { Ok(()) } else { Err(Failure::Silent(FailureCode::Damage)) }
}

/// The store of the demonstration.
enum DemoStore {
    Kept(PathBuf),
    Temporary(tempfile::TempDir),
}

impl DemoStore {
    fn new(args: &DemoArgs) -> CliResult<Self> {
        if let Some(kept) = &args.keep {
            if kept.exists() {
                let message = format!("{} exists", kept.display());
                return Err(Failure::failed(message, "name a directory that does not exist yet"));
            }
            return Ok(Self::Kept(kept.clone()));
        }
        let temporary = tempfile::Builder::new().prefix("annals-demo-").tempdir().map_err(|error| {
            let message = format!("cannot make a temporary directory: {error}");
            Failure::failed(message, "set TMPDIR, or name a directory with --keep")
        })?;
        Ok(Self::Temporary(temporary))
    }

    fn path(&self) -> PathBuf {
        match self {
            Self::Kept(path) => path.clone(),
            Self::Temporary(directory) => directory.path().join("store"),
        }
    }
}

fn bundled_runs() -> CliResult<Vec<ImportedRun>> {
    let options = ChatOptions {
        id: Some("{task_id}-{trial}".parse()?),
        status_from: Some("reward".to_owned()),
        ..ChatOptions::default()
    };
    let reader = xz_reader(RUNS_XZ).map_err(|error| child_failed("unpack its runs", &error))?;
    ChatRuns::new(BufReader::new(reader), options).map(|run| run.map_err(Failure::from)).collect()
}

fn frame_count(runs: &[ImportedRun]) -> u64 {
    runs.iter().map(|run| run.frame_count() as u64).sum()
}

/// The child process: records every run with one commit for each frame, and prints each acknowledged frame.
fn record_until_killed(root: &Path) -> CliResult<()> {
    let door = StoreAccess::open_to_write(root, NAMESPACE, StoreWait::NONE)?;
    let mut stdout = std::io::stdout().lock();
    for run in bundled_runs()? {
        let live = door.begin(&run)?;
        for frame in run.frames() {
            live.record(frame)?;
            writeln!(stdout, "{}", run.id)
                .and_then(|()| stdout.flush())
                .map_err(crate::failure::output_failure)?;
        }
        live.end(run.status)?;
    }
    door.close()
}

/// Starts the child and kills it once half the frames are acknowledged. Returns the acknowledged frames of
/// each run.
fn record_and_kill(root: &Path, runs: &[ImportedRun]) -> CliResult<HashMap<String, usize>> {
    let program = std::env::current_exe().map_err(|error| child_failed("find this program", &error))?;
    let mut child = Command::new(program)
        .args(["demo", "--record-into"])
        .arg(root)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| child_failed("start the recorder", &error))?;
    let mut acknowledged: HashMap<String, usize> = HashMap::new();
    let mut left = frame_count(runs) / 2;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines() {
            let line = line.map_err(|error| child_failed("hear from the recorder", &error))?;
            *acknowledged.entry(line).or_default() += 1;
            // Lines that the child wrote before it was killed are acknowledgements too, so all are read.
            if left == 1 {
                child.kill().map_err(|error| child_failed("kill the recorder", &error))?;
            }
            left = left.saturating_sub(1);
        }
    }
    let status = child.wait().map_err(|error| child_failed("wait for the recorder", &error))?;
    if left > 0 {
        return Err(child_failed("record", &status));
    }
    Ok(acknowledged)
}

fn child_failed(what: &str, why: &impl std::fmt::Display) -> Failure {
    let message = format!("the demonstration could not {what}: {why}");
    Failure::failed(message, "it needs to start itself a second time and to write to a directory")
}

/// Checks that every acknowledged frame exists, with its exact bytes.
fn check_acknowledged(
    door: &StoreAccess,
    runs: &[ImportedRun],
    acknowledged: &HashMap<String, usize>,
) -> CliResult<()> {
    for run in runs {
        let Some(promised) = acknowledged.get(&run.id) else { continue };
        let mut stored = door.frames(&run.id)?;
        for (expected, seq) in run.frames().zip(1..).take(*promised) {
            match stored.next().transpose()? {
                Some(frame) if is_same_frame(&frame, &expected) => {}
                _ => {
                    let message = format!("frame {seq} of run {} was acknowledged and is not there", run.id);
                    return Err(Failure::damage(message, "please report this: it must not happen"));
                }
            }
        }
    }
    Ok(())
}

/// Records the incomplete runs again, in place of their remains. Returns their number.
fn record_missing(door: &StoreAccess, runs: &[ImportedRun]) -> CliResult<u64> {
    let stored =
        door.runs()?.map(|run| run.map(|run| (run.id, run.status))).collect::<CliResult<HashMap<_, _>>>()?;
    let mut recorded = 0;
    for run in runs.iter().filter(|run| stored.get(&run.id).is_none_or(|status| *status != run.status.name()))
    {
        door.record(run, true, &[])?;
        recorded += 1;
    }
    Ok(recorded)
}

fn is_same_frame(frame: &FrameRow, expected: &Frame) -> bool {
    let is = |body: &Content, bytes: &[u8]| matches!(body, Content::Bytes(body) if body.as_slice() == bytes);
    is(&expected.input, &frame.input)
        && is(&expected.output, &frame.output)
        && frame.metadata == expected.metadata
        && frame.component == expected.component.name()
        && frame.parent == expected.parent
}

/// The result of the demonstration.
struct DemoReceipt {
    runs: u64,
    frames: u64,
    exact: u64,
    raw_bytes: u64,
    disk_bytes: u64,
    fingerprint: String,
}

/// Replays every run and compares it with the source.
fn replay_and_compare(door: &StoreAccess, runs: &[ImportedRun]) -> CliResult<DemoReceipt> {
    let mut all = blake3::Hasher::new();
    let costs = door.stats()?;
    let mut receipt = DemoReceipt {
        runs: 0,
        frames: 0,
        exact: 0,
        raw_bytes: 0,
        disk_bytes: costs.disk_bytes,
        fingerprint: String::new(),
    };
    for run in runs {
        receipt.runs += 1;
        let mut stored = door.frames(&run.id)?;
        for expected in run.frames() {
            receipt.frames += 1;
            receipt.raw_bytes += expected.input.len() + expected.output.len();
            if stored.next().transpose()?.is_some_and(|frame| is_same_frame(&frame, &expected)) {
                receipt.exact += 1;
            }
        }
        // An extra frame is a difference, like a missing one.
        if stored.next().is_some() {
            receipt.frames += 1;
        }
        all.update(format!("{} {}\n", run.id, door.run(&run.id)?.fingerprint.unwrap_or_default()).as_bytes());
    }
    receipt.fingerprint = all.finalize().to_hex().to_string();
    Ok(receipt)
}

impl DemoReceipt {
    fn print(&self, frames_before: usize, out: &mut CliOutput) -> CliResult<()> {
        if out.json {
            return out.object(&json!({
                "runs": self.runs,
                "frames": self.frames,
                "frames_before_kill": frames_before,
                "raw_bytes": self.raw_bytes,
                "disk_bytes": self.disk_bytes,
                "fingerprint": self.fingerprint,
                "bit_exact": self.exact,
            }));
        }
        out.line(format_args!("runs         {}", count(self.runs)))?;
        out.line(format_args!("frames       {}", count(self.frames)))?;
        out.line(format_args!("raw bytes    {} ({})", count(self.raw_bytes), bytes(self.raw_bytes)))?;
        let share = ratio(self.raw_bytes, self.disk_bytes);
        out.line(format_args!("on disk      {} ({share})", count(self.disk_bytes)))?;
        out.line(format_args!("fingerprint  {}", self.fingerprint))?;
        let (exact, frames) = (count(self.exact), count(self.frames));
        out.marked_line(self.exact == self.frames, "bit-exact", format_args!(": {exact} of {frames}"))
    }
}
