//! `annals compact`: reclaims the disk space of deleted data. The process that holds the store, a daemon or a
//! recorder, compacts it; else this process does, and recorders record through it meanwhile.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use annals::upkeep::{CompactOptions, CompactPhase, CompactProgress};
use annals_server::when_interrupted;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::args::{CompactArgs, GlobalArgs};
use crate::failure::{CliResult, Failure};
use crate::locate;
use crate::output::{CliOutput, bytes, count, plural};
use crate::store_access::{AskedStore, StoreAccess, StoreWait};

pub(super) fn run(global: &GlobalArgs, args: &CompactArgs, out: &mut CliOutput) -> CliResult<()> {
    let root = locate::store(global.store.as_deref());
    let rate = args.max_bytes_per_second.map(|rate| rate.to_string());
    let mut words: Vec<&[u8]> = vec![b"STORE.COMPACT"];
    words.extend(args.now.then_some(&b"NOW"[..]));
    words.extend(args.recompress.then_some(&b"RECOMPRESS"[..]));
    words.extend(rate.iter().flat_map(|rate| [&b"RATE"[..], rate.as_bytes()]));
    // A dry run changes nothing, so this process can do it while another one writes to the store.
    let asked = match args.dry_run {
        true => AskedStore::Opened(StoreAccess::open_to_read(&root, &global.namespace)?),
        false => {
            let wait = StoreWait::from_args(global);
            StoreAccess::ask_or_open_existing(&root, &global.namespace, &words, true, wait)?
        }
    };
    let done = match asked {
        AskedStore::Asked(done) => done,
        AskedStore::Opened(door) => compact_in_process(door, args)?,
    };
    let done: Value = serde_json::from_str(&done).map_err(|why| {
        Failure::failed(why, "use the same version of annals as the process that serves the store")
    })?;
    match out.json {
        true => out.object(&done)?,
        false => print_result(&done, out)?,
    }
    check_unfit(&done)
}

/// Fails if the disk had no room for a part of the work: a script must not take it for done.
fn check_unfit(done: &Value) -> CliResult<()> {
    match done.get("unfit").and_then(Value::as_u64) {
        None | Some(0) => Ok(()),
        Some(unfit) => Err(Failure::failed(
            format_args!(
                "{} more would free space, but the disk has no room for the new files",
                plural(unfit, "log file")
            ),
            "make room, then compact again",
        )),
    }
}

/// Compacts, or makes a dry run, in this process.
fn compact_in_process(door: StoreAccess, args: &CompactArgs) -> CliResult<String> {
    let bar = progress_bar();
    let shown = bar.clone();
    let stopped = Arc::new(AtomicBool::new(false));
    let (stops, asked) = (stopped.clone(), stopped.clone());
    if !args.dry_run {
        when_interrupted(move |_| stops.store(true, Ordering::Relaxed));
    }
    let options = CompactOptions {
        dry_run: args.dry_run,
        all_dead: args.now,
        recompress: args.recompress.then_some(CompactOptions::RECOMPRESS_LEVEL),
        bytes_per_second_max: args.max_bytes_per_second,
        progress: Some(Arc::new(move |progress| update_bar(&shown, progress))),
        cancel: Some(Arc::new(move || asked.load(Ordering::Relaxed))),
        ..CompactOptions::default()
    };
    let done = door.compact(&options);
    bar.finish_and_clear();
    let done = done.map_err(|failure| match (stopped.load(Ordering::Relaxed), failure) {
        (true, Failure::Message { code, message, .. }) => {
            Failure::new(code, message, "the store is unchanged; the next compaction starts anew")
        }
        (_, failure) => failure,
    });
    // Also after a failure: closing removes unfinished files before it releases the lock.
    door.close()?;
    let done = done?;
    Ok(done.to_json())
}

fn print_result(done: &Value, out: &mut CliOutput) -> CliResult<()> {
    let number = |name: &str| done.get(name).and_then(Value::as_u64).unwrap_or_default();
    let dry = done.get("dry_run").and_then(Value::as_bool) == Some(true);
    if number("rewritten") == 0 {
        let looked = plural(number("segments"), "log file");
        return out.marked_line(true, "compact", format_args!(": {looked}, none worth rewriting"));
    }
    let (freed, needed) = (bytes(number("freed_bytes")), bytes(number("needed_bytes")));
    let (rewritten, made) = (plural(number("rewritten"), "log file"), count(number("made")));
    if dry {
        let what = format_args!(
            ": {rewritten} would become {made} and free about {freed}; it needs {needed} meanwhile"
        );
        return out.marked_line(true, "would compact", what);
    }
    out.marked_line(true, "compacted", format_args!(": {rewritten} became {made} and freed {freed}"))?;
    if let pending @ 1.. = number("pending_bytes") {
        out.line(format_args!(
            "another process still reads {} of it: the disk space is free when that process ends or refreshes its view",
            bytes(pending)
        ))?;
    }
    Ok(())
}

fn progress_bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes}") {
        bar.set_style(style);
    }
    bar
}

fn update_bar(bar: &ProgressBar, progress: CompactProgress) {
    bar.set_message(match progress.phase {
        CompactPhase::Looking => "looking",
        _ => "writing",
    });
    bar.set_length(progress.total.max(progress.done));
    bar.set_position(progress.done);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::check_unfit;
    use crate::failure::{Failure, FailureCode};

    /// On a nearly full disk `compact` did a part of its work and ended with 0, so a script took it for done.
    #[test]
    fn partly_done_compaction_fails() {
        assert!(check_unfit(&json!({"rewritten": 3, "unfit": 0})).is_ok());
        let failed = check_unfit(&json!({"rewritten": 3, "unfit": 2}));
        let Err(Failure::Message { code, message, .. }) = failed else { panic!("{failed:?}") };
        assert_eq!(code, FailureCode::Failed);
        assert!(message.starts_with("2 log files more"), "{message}");
    }
}
