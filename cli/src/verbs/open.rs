//! `annals open`: shows where a run failed, on one screen.

use annals_tui::StartScreen;

use super::show::{exchange_line, http_exchange};
use crate::args::{GlobalArgs, OpenArgs};
use crate::failure::{CliResult, Failure};
use crate::output::{CliOutput, bytes, print_note, printable, time};
use crate::profiles;
use crate::store_access::{RunRow, StoreAccess};

/// Most bytes of an answer that are shown.
const SHOWN_MAX: usize = 2000;

/// The named run, else the one that failed last. Says on standard error if it chose a run that is a fork or that
/// did not fail.
pub(super) fn named_run(door: &StoreAccess, args: &OpenArgs) -> CliResult<RunRow> {
    if let Some(run) = &args.run {
        return door.run(run);
    }
    let (run, reason) = door.last_failure()?.ok_or_else(|| {
        let message = "no run has failed, and none is flagged or escalated";
        Failure::missing(message, "`annals runs` lists the runs of the namespace")
    })?;
    if let Some(reason) = reason {
        print_note(format_args!("{}: {reason}", printable(&run.id)));
    }
    Ok(run)
}

pub(super) fn run(global: &GlobalArgs, args: &OpenArgs, out: &mut CliOutput) -> CliResult<()> {
    if args.web {
        return super::open_page::run(global, args, out);
    }
    let look = super::tui::wanted_look(args, out)?;
    if args.run.is_none() && !args.last_failed && look.is_none() {
        return Err(Failure::usage("no run is named", "name a run, or use --last-failed, --tui or --web"));
    }
    let redactor = profiles::redactor(global, &args.reader)?;
    let by = redactor.as_ref().map(|redactor| redactor.profile().name());
    let door = super::open_to_read(global)?;
    if let (Some(look), None, false) = (look, &args.run, args.last_failed) {
        return super::tui::show(door, redactor, look, &StartScreen::Runs);
    }
    let run = named_run(&door, args)?;
    if let Some(look) = look {
        return super::tui::show(door, redactor, look, &StartScreen::Run(run.id, None));
    }
    let failing = door.failure_report(&run.id, redactor.as_ref())?;
    let http = failing.as_ref().and_then(|failing| http_exchange(&failing.frame.metadata));
    if out.json {
        let mut object = serde_json::json!({
            "run": run.id, "status": run.status, "severity": run.severity, "frames": run.frames,
            "seq": failing.as_ref().map(|failing| failing.frame.seq),
            "why": failing.as_ref().and_then(|failing| failing.why.clone()),
            "method": http.as_ref().map(|http| &http.method),
            "path": http.as_ref().map(|http| &http.path),
            "status_code": http.as_ref().and_then(|http| http.status),
            "exit_code": failing.as_ref().and_then(|failing| failing.exit.map(|(code, _)| code)),
        });
        if let Some(by) = by {
            object["redacted"] = by.into();
        }
        return out.object(&object);
    }
    out.line(format_args!("{}: {}, {}, began {}", run.id, run.status, run.severity, time(run.started_ns)))?;
    if let Some(by) = by {
        out.line(format_args!("redacted by profile {by}: not what was recorded"))?;
    }
    let Some(failing) = failing else { return out.line("it has no frames") };
    let frame = &failing.frame;
    if let Some((code, signal)) = failing.exit {
        let signal = signal.map(|signal| format!(", ended by signal {signal}")).unwrap_or_default();
        out.line(format_args!("the program ended with {code}{signal}"))?;
    }
    let name = format!("{}@{}", run.id, frame.seq);
    let failed = if frame.error { ", failed" } else { "" };
    let component = printable(frame.component.name());
    out.line(format_args!("\n{name} of {}: {component}, {}{failed}", run.frames, frame.severity))?;
    if let Some(http) = &http {
        out.line(printable(&exchange_line(http)))?;
    }
    if let Some(why) = &failing.why {
        out.line(printable(why))?;
    }
    if let Some((before, new)) = &failing.new {
        super::show::show_new(&run.id, *before, new, out)?;
    }
    let head = frame.output.get(..frame.output.len().min(SHOWN_MAX)).unwrap_or_default();
    let is_own = matches!(frame.component.name(), "stdin" | "program" | "stderr");
    let what = if is_own { "no call was recorded; output" } else { "answer" };
    out.line(format_args!("\n{what}, {}:", bytes(frame.output.len() as u64)))?;
    out.line(printable(&String::from_utf8_lossy(head)))?;
    if let Some(stderr) = failing.stderr.as_ref().filter(|_| frame.component.name() != "stderr") {
        out.line("\nstandard error, its end:")?;
        out.line(printable(stderr.trim_end()))?;
    }
    let with = by.map(|by| format!(" --as {by}")).unwrap_or_default();
    out.line(format_args!("\nnext: annals show {name} --input{with} | annals replay {}{with}", run.id))
}
