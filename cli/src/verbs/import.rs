//! `annals import`: records whole runs, with one commit each, so that an interrupted import leaves only whole
//! runs. With `--json`, a line acknowledges each run after its commit has returned. Messages that are in no
//! frame are counted. They make the exit code 1, and so does an import without a frame, unless
//! `--allow-empty` is given.

mod traces;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use annals_formats::import::{
    ChatOptions, ChatRuns, Expansion, FrameOptions, FrameRuns, ImportError, ImportedRun,
};
use serde_json::json;

use crate::args::{ExpandArg, GlobalArgs, ImportArgs, ImportFormat};
use crate::failure::{CliResult, Failure, SIGNAL_BASE};
use crate::input;
use crate::locate;
use crate::output::{CliOutput, bytes, plural};
use crate::progress::ImportProgress;
use crate::verbs::record::identity_tags;

pub(super) fn run(global: &GlobalArgs, args: &ImportArgs, out: &mut CliOutput) -> CliResult<()> {
    let chat_only = [
        ("--id", args.id.is_some()),
        ("--status-from", args.status_from.is_some()),
        ("--expand", args.expand.is_some()),
    ];
    if args.format == ImportFormat::Otlp {
        return traces::import(global, args, out);
    }
    if let (ImportFormat::Frames, Some((option, _))) =
        (args.format, chat_only.iter().find(|(_, given)| *given))
    {
        return Err(Failure::usage(
            format!("{option} goes with --format chat"),
            "frames name their run and its status themselves",
        ));
    }
    let chat = chat_options(args)?;
    let tags = identity_tags(&args.whose);
    let input = input::open(&args.file)?;
    let progress = ImportProgress::new(&input);
    let runs: Box<dyn Iterator<Item = Result<ImportedRun, ImportError>>> = match args.format {
        ImportFormat::Chat => Box::new(ChatRuns::new(input.reader, chat)),
        ImportFormat::Frames | ImportFormat::Otlp => {
            let options = FrameOptions { model: args.model.clone(), ..FrameOptions::default() };
            Box::new(FrameRuns::new(input.reader, options))
        }
    };
    let door = super::open_to_write(global)?.served(&locate::store(global.store.as_deref()));
    let mut done = ImportTally { remembers: args.remember, ..ImportTally::default() };
    let mut acknowledging = out.json;
    let kept = tell_when_interrupted("run", "each of them whole; --replace imports them again");
    let outcome = runs.map(|run| run.map_err(Failure::from)).try_for_each(|run| {
        let run = run?;
        let recorded =
            door.record(&run, args.replace, &tags).map_err(|failure| failure.with_place(run.place))?;
        done.add(&run, recorded);
        kept.store(done.runs, Ordering::Release);
        if args.remember {
            match door.remember_imported(&run.id).map_err(|failure| failure.with_place(run.place))? {
                Ok(entries) => done.entries += entries as u64,
                Err(_) => done.unremembered += 1,
            }
        }
        progress.update(done.runs, done.frames);
        if acknowledging {
            acknowledging = acknowledge(&run.id, recorded.0, out)?;
        }
        Ok(())
    });
    progress.clear();
    // The store is closed in any case, so that runs recorded before a bad line stay.
    let outcome = outcome.and(door.close());
    let told = if outcome.is_ok() || done.runs > 0 { done.print(outcome.is_ok(), out) } else { Ok(()) };
    // Lost messages are an error even if nobody reads the summary line.
    outcome?;
    if !args.allow_empty {
        done.check_complete()?;
    }
    told
}

/// If a signal ends the import, says how many of `what` stay. The caller counts them.
fn tell_when_interrupted(what: &'static str, how: &'static str) -> Arc<AtomicU64> {
    let counted = Arc::new(AtomicU64::default());
    let kept = Arc::clone(&counted);
    annals_server::when_interrupted(move |signal| {
        let kept = plural(kept.load(Ordering::Acquire), what);
        Failure::failed(format!("interrupted; imported before, and kept: at least {kept}"), how).print();
        std::process::exit(SIGNAL_BASE + signal);
    });
    counted
}

fn chat_options(args: &ImportArgs) -> CliResult<ChatOptions> {
    let expansion = match args.expand {
        None | Some(ExpandArg::Turns) => Expansion::Turns,
        Some(ExpandArg::Calls) => Expansion::Calls,
    };
    Ok(ChatOptions {
        id: args.id.as_deref().map(str::parse).transpose()?,
        model: args.model.clone(),
        status_from: args.status_from.clone(),
        expansion,
        ..ChatOptions::default()
    })
}

/// Acknowledges at once that a run is on disk; a reader may rely on it even if this process dies. Returns
/// false if standard output is closed. The import continues, because its purpose is the store.
fn acknowledge(run: &str, frames: u64, out: &mut CliOutput) -> CliResult<bool> {
    match out.object(&json!({ "run": run, "frames": frames })).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(Failure::ClosedPipe) => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// Counts of what was imported.
#[derive(Default)]
struct ImportTally {
    runs: u64,
    frames: u64,
    raw_bytes: u64,
    runs_without_frames: u64,
    /// Messages that are in no frame, the runs that have them, and the first of these runs.
    unframed_messages: u64,
    unframed_runs: u64,
    unframed_first: Option<String>,
    /// With `--remember`: entries made in the agents' memory, and runs of which none was made.
    entries: u64,
    unremembered: u64,
    remembers: bool,
}

impl ImportTally {
    fn add(&mut self, run: &ImportedRun, (frames, raw_bytes): (u64, u64)) {
        self.runs += 1;
        self.frames += frames;
        self.raw_bytes += raw_bytes;
        self.runs_without_frames += u64::from(frames == 0);
        if run.unframed_messages > 0 {
            self.unframed_messages += run.unframed_messages;
            self.unframed_runs += 1;
            self.unframed_first.get_or_insert_with(|| run.id.clone());
        }
    }

    fn print(&self, whole: bool, out: &mut CliOutput) -> CliResult<()> {
        if out.json {
            let mut told = json!({
                "runs": self.runs,
                "frames": self.frames,
                "raw_bytes": self.raw_bytes,
                "runs_without_frames": self.runs_without_frames,
                "messages_in_no_frame": self.unframed_messages,
                "whole": whole,
            });
            if self.remembers {
                told["remembered"] = self.entries.into();
                told["runs_not_remembered"] = self.unremembered.into();
            }
            return out.object(&told);
        }
        let (runs, frames, raw) =
            (plural(self.runs, "run"), plural(self.frames, "frame"), bytes(self.raw_bytes));
        let mut line = format!("imported {runs}, {frames}, {raw}");
        if self.unframed_messages > 0 {
            line += &format!("; {} in no frame", plural(self.unframed_messages, "message"));
        }
        if self.runs_without_frames > 0 {
            line += &format!("; {} without a frame", plural(self.runs_without_frames, "run"));
        }
        if self.remembers {
            line += &format!("; remembered {}", plural(self.entries, "question"));
        }
        if self.unremembered > 0 {
            line += &format!(
                "; {} not remembered (abandoned, or without an answered question)",
                plural(self.unremembered, "run")
            );
        }
        out.line(format_args!("{line}{}", if whole { "" } else { " before the error" }))
    }

    /// Fails if a part of the input is in no frame.
    fn check_complete(&self) -> CliResult<()> {
        if let Some(first) = &self.unframed_first {
            let (messages, runs) =
                (plural(self.unframed_messages, "message"), plural(self.unframed_runs, "run"));
            let are = if self.unframed_messages == 1 { "is" } else { "are" };
            return Err(Failure::failed(
                format!("{messages} of {runs} {are} in no frame, the first in run `{first}`"),
                "the metadata of the run keeps them (`annals.trailing_messages`); --allow-empty ends with 0",
            ));
        }
        if self.frames == 0 {
            return Err(Failure::failed(
                format!("no frame was imported: the input holds {}", plural(self.runs, "run")),
                "check the file and --format; --allow-empty ends with 0",
            ));
        }
        Ok(())
    }
}
