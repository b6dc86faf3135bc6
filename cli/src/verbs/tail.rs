//! `annals tail`: prints a run's frames while a process records them.

use std::time::Duration;

use crate::args::{GlobalArgs, TailArgs};
use crate::failure::CliResult;
use crate::output::{CliOutput, count, preview, printable};
use crate::profiles;
use crate::store_access::FrameRow;

/// Time between two reads of the store.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Number of polls after which an abandoned run counts as ended.
const ABANDONED_POLLS: u32 = 10;

pub(super) fn run(global: &GlobalArgs, args: &TailArgs, out: &mut CliOutput) -> CliResult<()> {
    let redactor = profiles::redactor(global, &args.reader)?;
    let door = super::open_to_read(global)?;
    profiles::print_redaction_note(redactor.as_ref().filter(|_| !out.json));
    let id = door.run(args.run.as_deref().unwrap_or("last"))?.id;
    let (mut told, mut abandoned) = (0, 0);
    loop {
        let run = door.run(&id)?;
        // While recorders hand a store over, their runs are abandoned for a moment.
        abandoned = if run.status == "abandoned" { abandoned + 1 } else { 0 };
        let over = run.status != "open" && (abandoned == 0 || abandoned > ABANDONED_POLLS);
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
