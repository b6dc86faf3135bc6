//! `annals compact`: the room of what nothing leads to any more. A daemon that serves the store has it done; else it is done
//! here.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use annals::{CompactOptions, CompactPhase, CompactProgress};
use annals_server::{ask_daemon_without_timeout, when_interrupted};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::args::{CompactArgs, Global};
use crate::door::{Door, engine};
use crate::failure::{Code, Failure, Result};
use crate::locate;
use crate::out::{Out, bytes, count, many};

pub(super) fn run(global: &Global, args: &CompactArgs, out: &mut Out) -> Result<()> {
    let root = locate::store(global.store.as_deref());
    let rate = args.max_bytes_per_second.map(|rate| rate.to_string());
    let mut words: Vec<&[u8]> = vec![b"STORE.COMPACT"];
    words.extend(args.recompress.then_some(&b"RECOMPRESS"[..]));
    words.extend(rate.iter().flat_map(|rate| [&b"RATE"[..], rate.as_bytes()]));
    // A dry run changes nothing: whoever may read the store looks for himself, whoever writes it.
    let asked =
        if args.dry_run { None } else { ask_daemon_without_timeout(&root, &words).map_err(engine)? };
    let done = match asked {
        Some(done) => done,
        None => here(global, args, &root)?,
    };
    let done: Value = serde_json::from_str(&done).map_err(|why| {
        Failure::new(Code::Failed, why, "the process that serves the store says what it did in other words")
    })?;
    if out.json { out.object(&done) } else { tell(&done, out) }
}

/// Looks, or compacts, in this process.
fn here(global: &Global, args: &CompactArgs, root: &Path) -> Result<String> {
    let bar = bar();
    let shown = bar.clone();
    let stopped = Arc::new(AtomicBool::new(false));
    let (stops, asked) = (stopped.clone(), stopped.clone());
    if !args.dry_run {
        when_interrupted(move || stops.store(true, Ordering::Relaxed));
    }
    let options = CompactOptions {
        dry_run: args.dry_run,
        recompress: args.recompress.then_some(CompactOptions::RECOMPRESS_LEVEL),
        bytes_per_second_max: args.max_bytes_per_second,
        progress: Some(Arc::new(move |progress| show(&shown, progress))),
        cancel: Some(Arc::new(move || asked.load(Ordering::Relaxed))),
        ..CompactOptions::default()
    };
    let door = match args.dry_run {
        true => Door::read(root, &global.namespace)?,
        false => Door::write_existing(root, &global.namespace)?,
    };
    let done = door.compact(&options);
    bar.finish_and_clear();
    let done = done.map_err(|failure| match (stopped.load(Ordering::Relaxed), failure) {
        (true, Failure::Told { code, message, .. }) => {
            Failure::new(code, message, "the store is as it was; another one begins from the start")
        }
        (_, failure) => failure,
    });
    // Also after one that failed: what it had begun to write goes before the lock does.
    door.close()?;
    let done = done?;
    Ok(done.to_json())
}

fn tell(done: &Value, out: &mut Out) -> Result<()> {
    let number = |name: &str| done.get(name).and_then(Value::as_u64).unwrap_or_default();
    let dry = done.get("dry_run").and_then(Value::as_bool) == Some(true);
    if number("rewritten") == 0 {
        let looked = many(number("segments"), "log file");
        return out.marked(true, "compact", format_args!(": {looked}, none worth writing anew"));
    }
    let (freed, needed) = (bytes(number("freed_bytes")), bytes(number("needed_bytes")));
    let (rewritten, made) = (many(number("rewritten"), "log file"), count(number("made")));
    if dry {
        let what = format_args!(
            ": {rewritten} would become {made} and free about {freed}; it needs {needed} meanwhile"
        );
        return out.marked(true, "would compact", what);
    }
    out.marked(true, "compacted", format_args!(": {rewritten} became {made} and freed {freed}"))?;
    match number("pending_bytes") {
        0 => Ok(()),
        pending => out.line(format_args!(
            "{} of it is still read by another process: the disk has it back once that one ends or looks again",
            bytes(pending)
        )),
    }
}

fn bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes}") {
        bar.set_style(style);
    }
    bar
}

fn show(bar: &ProgressBar, progress: CompactProgress) {
    bar.set_message(match progress.phase {
        CompactPhase::Looking => "looking",
        _ => "writing",
    });
    bar.set_length(progress.total.max(progress.done));
    bar.set_position(progress.done);
}
