//! `annals compact`: the room of what nothing leads to any more. A daemon that serves the store has it done; else it is done
//! here.

use std::io::IsTerminal;
use std::sync::Arc;

use annals::{CompactOptions, CompactPhase, CompactProgress};
use annals_server::ask_daemon_patiently;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::args::{CompactArgs, Global};
use crate::door::{Door, engine};
use crate::failure::{Code, Failure, Result};
use crate::locate;
use crate::out::{Out, bytes, count};

pub(super) fn run(global: &Global, args: &CompactArgs, out: &mut Out) -> Result<()> {
    let root = locate::store(global.store.as_deref());
    let rate = args.max_bytes_per_second.map(|rate| rate.to_string());
    let mut words: Vec<&[u8]> = vec![b"STORE.COMPACT"];
    words.extend(args.dry_run.then_some(&b"DRYRUN"[..]));
    words.extend(args.recompress.then_some(&b"RECOMPRESS"[..]));
    words.extend(rate.iter().flat_map(|rate| [&b"RATE"[..], rate.as_bytes()]));
    let done = match ask_daemon_patiently(&root, &words).map_err(engine)? {
        Some(done) => done,
        None => {
            let bar = bar();
            let shown = bar.clone();
            let options = CompactOptions {
                dry_run: args.dry_run,
                recompress: args.recompress.then_some(CompactOptions::RECOMPRESS_LEVEL),
                bytes_per_second_max: args.max_bytes_per_second,
                progress: Some(Arc::new(move |progress| show(&shown, progress))),
                ..CompactOptions::default()
            };
            let door = Door::write_existing(&root, &global.namespace)?;
            let done = door.compact(&options);
            bar.finish_and_clear();
            let done = done?;
            door.close()?;
            done.to_json()
        }
    };
    let done: Value = serde_json::from_str(&done).map_err(|why| {
        Failure::new(Code::Failed, why, "the process that serves the store says what it did in other words")
    })?;
    if out.json { out.object(&done) } else { tell(&done, out) }
}

fn tell(done: &Value, out: &mut Out) -> Result<()> {
    let number = |name: &str| done.get(name).and_then(Value::as_u64).unwrap_or_default();
    let dry = done.get("dry_run").and_then(Value::as_bool) == Some(true);
    if number("rewritten") == 0 {
        let looked = count(number("segments"));
        return out.marked(true, "compact", format_args!(": {looked} log files, none worth writing anew"));
    }
    let (freed, needed) = (bytes(number("freed_bytes")), bytes(number("needed_bytes")));
    let (rewritten, made) = (count(number("rewritten")), count(number("made")));
    if dry {
        let what = format_args!(
            ": {rewritten} log files would become {made} and free about {freed}; it needs {needed} meanwhile"
        );
        return out.marked(true, "would compact", what);
    }
    out.marked(true, "compacted", format_args!(": {rewritten} log files became {made} and freed {freed}"))?;
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
    bar.set_length(progress.of.max(progress.done));
    bar.set_position(progress.done);
}
