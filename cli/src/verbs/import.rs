//! `annals import`: whole runs, one commit each, so that stopping at any moment leaves whole runs only.
//! With `--json` each run is acknowledged by a line of its own, which goes out after its commit has returned.

use annals::import::{ChatOptions, ChatRuns, FrameOptions, FrameRuns, ImportError, ImportedRun};
use serde_json::json;

use crate::args::{Format, Global, ImportArgs};
use crate::failure::{Code, Failure, Result};
use crate::input;
use crate::out::{Out, bytes, count};
use crate::progress::Progress;

pub(super) fn run(global: &Global, args: &ImportArgs, out: &mut Out) -> Result<()> {
    let chat_only = [("--id", args.id.is_some()), ("--status-from", args.status_from.is_some())];
    if let (Format::Frames, Some((option, _))) = (args.format, chat_only.iter().find(|(_, given)| *given)) {
        return Err(Failure::new(
            Code::Usage,
            format!("{option} goes with --format chat"),
            "frames name their run and its status themselves",
        ));
    }
    let id = args.id.as_deref().map(str::parse).transpose()?;
    let input = input::open(&args.file)?;
    let progress = Progress::of(&input);
    let runs: Box<dyn Iterator<Item = std::result::Result<ImportedRun, ImportError>>> = match args.format {
        Format::Chat => {
            let (model, status_from) = (args.model.clone(), args.status_from.clone());
            let options = ChatOptions { id, model, status_from, ..ChatOptions::default() };
            Box::new(ChatRuns::new(input.reader, options))
        }
        Format::Frames => {
            let options = FrameOptions { model: args.model.clone(), ..FrameOptions::default() };
            Box::new(FrameRuns::new(input.reader, options))
        }
    };
    let door = super::writing(global)?;
    let mut done = Done::default();
    let mut acknowledging = out.json;
    let outcome = runs.map(|run| run.map_err(Failure::from)).try_for_each(|run| {
        let run = run?;
        let recorded = door.record(&run, args.replace).map_err(|failure| failure.at(run.place))?;
        done.add(recorded);
        progress.recorded(done.runs, done.frames);
        if acknowledging {
            acknowledging = acknowledge(&run.id, recorded.0, out)?;
        }
        Ok(())
    });
    progress.clear();
    // The store is closed in any case: what was recorded before a bad line stays.
    let outcome = outcome.and(door.close());
    if outcome.is_ok() || done.runs > 0 {
        done.tell(outcome.is_ok(), out)?;
    }
    outcome
}

/// Says that a run is on disk, at once: a reader may rely on it whatever happens to this process afterwards. Gives
/// false where nobody reads any longer; the import goes on, since its purpose is the store.
fn acknowledge(run: &str, frames: u64, out: &mut Out) -> Result<bool> {
    match out.object(&json!({ "run": run, "frames": frames })).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(Failure::ClosedPipe) => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// What has been recorded.
#[derive(Default)]
struct Done {
    runs: u64,
    frames: u64,
    raw_bytes: u64,
}

impl Done {
    fn add(&mut self, (frames, raw_bytes): (u64, u64)) {
        self.runs += 1;
        self.frames += frames;
        self.raw_bytes += raw_bytes;
    }

    fn tell(&self, whole: bool, out: &mut Out) -> Result<()> {
        if out.json {
            let (runs, frames, raw_bytes) = (self.runs, self.frames, self.raw_bytes);
            return out
                .object(&json!({ "runs": runs, "frames": frames, "raw_bytes": raw_bytes, "whole": whole }));
        }
        let so_far = if whole { "" } else { " before the error" };
        let (runs, frames, raw) = (count(self.runs), count(self.frames), bytes(self.raw_bytes));
        out.line(format_args!("imported {runs} runs, {frames} frames, {raw}{so_far}"))
    }
}
