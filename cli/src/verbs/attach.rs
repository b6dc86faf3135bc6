//! `annals attach`: keeps the proxy open for programs that are started elsewhere.

use annals_server::{AttachOptions, Destination, interrupted};

use super::record::{
    cache_use, end_result, mounts, print_recorded, run_spec, secret_names, tags, upstream_guard,
};
use crate::args::{AttachArgs, GlobalArgs};
use crate::failure::{CliResult, before_start};
use crate::locate;
use crate::output::{CliOutput, print_note};
use crate::rules;
use crate::store_access::SharedRecorder;
use crate::supervision::RecordingEnd;
use crate::verbs::retain;

pub(super) fn run(global: &GlobalArgs, args: &AttachArgs, out: &mut CliOutput) -> CliResult<()> {
    let (run, tags) = (&args.run, tags(&args.run)?);
    let attaching = AttachOptions {
        mounts: mounts(run)?,
        guard: upstream_guard(&run.live),
        cache: cache_use(&run.live)?,
        secrets: secret_names(run)?,
        rules: rules::read(run.rules.as_deref()).map_err(before_start)?,
    };
    let policy = retain::sampling_policy(args.run.retain.as_deref()).map_err(before_start)?;
    let store = locate::store(global.store.as_deref());
    let door = SharedRecorder::open(&store, &global.namespace, policy).map_err(before_start)?;
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
            print_note(format_args!(
                "recording into {name} until Ctrl-C; put the lines above into the other terminal (eval), or into a container that shares this network"
            ));
        };
        annals_server::attach(into, run_spec(name, &tags), &attaching, ready, interrupted)
    };
    let recorded = door.record_as(&name, wish, attach);
    if let Ok((name, attached)) = &recorded {
        print_recorded(
            name,
            &attached.recorded,
            None,
            attached.seconds,
            &format!("annals replay {name} -- CMD"),
        );
    }
    let closed = door.close();
    let (_, attached) = recorded?;
    let may_be_empty = args.run.allow_empty;
    let end = RecordingEnd {
        recorded: &attached.recorded,
        code: None,
        may_be_empty,
        waits: false,
        is_missed: false,
    };
    end_result(&end, closed)
}
