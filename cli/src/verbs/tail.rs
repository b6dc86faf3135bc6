//! `annals tail`: prints a run's frames while a process records them.

use std::time::Duration;

use crate::args::{Global, TailArgs};
use crate::door::FrameRow;
use crate::failure::Result;
use crate::out::{Out, count, preview, printable};
use crate::profiles;

/// Time between two reads of the store.
const LOOK: Duration = Duration::from_millis(200);

pub(super) fn run(global: &Global, args: &TailArgs, out: &mut Out) -> Result<()> {
    let redactor = profiles::of(global, &args.reader)?;
    let door = super::reading(global)?;
    profiles::note(redactor.as_ref().filter(|_| !out.json));
    let id = door.run(args.run.as_deref().unwrap_or("last"))?.id;
    let mut told = 0;
    loop {
        let run = door.run(&id)?;
        let over = run.status != "open";
        while u64::from(told) < run.frames {
            let frame = door.frame(&id, told + 1)?;
            // A frame that is still arriving is printed when it is finished or its run has ended.
            if frame.incomplete && !over {
                break;
            }
            told += 1;
            tell(&id, &profiles::shown(redactor.as_ref(), frame), out)?;
        }
        out.flush()?;
        if over {
            return if out.json {
                Ok(())
            } else {
                out.line(format_args!("{id}: {}, {}", run.status, run.severity))
            };
        }
        std::thread::sleep(LOOK);
        door.refresh()?;
    }
}

fn tell(id: &str, frame: &FrameRow, out: &mut Out) -> Result<()> {
    if out.json {
        return out.object(&super::replay::FrameLine::of(id, frame));
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
