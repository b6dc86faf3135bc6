//! `annals attach`: keeps the proxy open for programs that are started elsewhere.

use std::io::Write;

use annals_server::{AttachOptions, Destination, interrupted};

use super::record::{cache, guard, mounts, result_of, secrets, spec, tags, tell, wait_for};
use crate::args::{AttachArgs, Global};
use crate::door::Recorder;
use crate::failure::{Result, before};
use crate::locate;
use crate::out::Out;
use crate::rules;
use crate::supervision::RecordingEnd;
use crate::verbs::retain;

pub(super) fn run(global: &Global, args: &AttachArgs, out: &mut Out) -> Result<()> {
    let (run, tags) = (&args.run, tags(&args.run)?);
    let attaching = AttachOptions {
        mounts: mounts(run)?,
        guard: guard(&run.live),
        cache: cache(&run.live)?,
        secrets: secrets(run)?,
        rules: rules::read(run.rules.as_deref()).map_err(before)?,
    };
    let policy = retain::sampling(args.run.retain.as_deref()).map_err(before)?;
    let store = locate::store(global.store.as_deref());
    let door = Recorder::open(&store, &global.namespace, policy).map_err(before)?;
    let default = format!("attach-{}", jiff::Zoned::now().strftime("%Y%m%d-%H%M%S"));
    let wish = run.run.is_none();
    let name = run.run.clone().unwrap_or(default);
    let exports = std::cell::RefCell::new(out);
    let attach = |into: &Destination, name: &str| {
        let ready = |variables: &[(String, String)]| {
            let mut out = exports.borrow_mut();
            // If the variables cannot be printed, no program connects; the recording still ends on a signal.
            let _ = variables
                .iter()
                .try_for_each(|(name, value)| out.line(format_args!("export {name}='{value}'")));
            let _ = out.flush();
            let mut stderr = anstream::stderr().lock();
            let _ = writeln!(
                stderr,
                "annals: recording into {name} until Ctrl-C; put the lines above into the other terminal (eval), or into a container that shares this network"
            );
        };
        annals_server::attach(into, spec(name, &tags), &attaching, ready, interrupted)
    };
    let recorded = door.record_as(&name, wish, attach);
    if let Ok((name, attached)) = &recorded {
        tell(name, &attached.recorded, None, attached.seconds, &format!("annals replay {name} -- CMD"));
    }
    let closed = door.close(wait_for);
    let (_, attached) = recorded?;
    let may_be_empty = args.run.allow_empty;
    let end = RecordingEnd {
        recorded: &attached.recorded,
        code: None,
        may_be_empty,
        waits: false,
        is_missed: false,
    };
    result_of(&end, closed)
}
