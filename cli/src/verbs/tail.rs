//! `annals tail`: prints a run's frames while a process records them.

use std::time::Duration;

use crate::args::{GlobalArgs, TailArgs};
use crate::failure::{CliResult, Failure};
use crate::output::{CliOutput, count, preview, printable};
use crate::profiles;
use crate::store_access::FrameRow;

/// Time between two reads of the store.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Number of polls after which a run counts as ended that is abandoned, or that nobody can be recording. While recorders
/// hand a store over, both are so for a moment.
const PATIENCE_POLLS: u32 = 10;

pub(super) fn run(global: &GlobalArgs, args: &TailArgs, out: &mut CliOutput) -> CliResult<()> {
    let redactor = profiles::redactor(global, &args.reader)?;
    let door = super::open_to_read(global)?;
    profiles::print_redaction_note(redactor.as_ref().filter(|_| !out.json));
    let id = door.run(args.run.as_deref().unwrap_or("last"))?.id;
    let (mut told, mut polls, mut before) = (0, 0, 0);
    loop {
        let run = door.run(&id)?;
        let is_still = std::mem::replace(&mut before, told) == told;
        let is_left = match run.status {
            "abandoned" => true,
            // Its recorder was killed: the run stays open until the store is next opened for writing.
            "open" => is_still && !door.is_being_written()?,
            _ => false,
        };
        polls = if is_left { polls + 1 } else { 0 };
        let over = if is_left { polls > PATIENCE_POLLS } else { run.status != "open" };
        while u64::from(told) < run.frames {
            let frame = door.frame(&id, told + 1)?;
            // A frame that is still arriving is printed when it is finished or its run has ended.
            if frame.incomplete && !over {
                break;
            }
            told += 1;
            print_frame(&id, &profiles::redacted_frame(redactor.as_ref(), frame), out)?;
        }
        out.flush()?;
        if over && run.status == "open" {
            return Err(Failure::failed(
                format!("run `{id}` is open, and no process writes to the store: its recorder was stopped"),
                "the next opening of the store for writing ends it as abandoned",
            ));
        }
        if over {
            return if out.json {
                Ok(())
            } else {
                out.line(format_args!("{id}: {}, {}", run.status, run.severity))
            };
        }
        std::thread::sleep(POLL_INTERVAL);
        door.refresh()?;
    }
}

fn print_frame(id: &str, frame: &FrameRow, out: &mut CliOutput) -> CliResult<()> {
    if out.json {
        return out.object(&super::replay::FrameLine::new(id, frame));
    }
    let failed = if frame.error { " failed" } else { "" };
    let (component, ms) = (printable(&frame.component), frame.duration_ns / 1_000_000);
    let (input, output) = (count(frame.input.len() as u64), count(frame.output.len() as u64));
    let seq = frame.seq;
    out.line(format_args!(
        "{seq:>4}  {component}{failed}  {input} -> {output} bytes  {ms} ms  {}",
        preview(&frame.output, 60)
    ))
}
