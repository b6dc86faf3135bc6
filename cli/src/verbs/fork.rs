//! `annals fork`.

use super::runs;
use crate::address::Address;
use crate::args::{ForkArgs, Global};
use crate::failure::{Code, Failure, Result};
use crate::out::Out;

pub(super) fn run(global: &Global, args: &ForkArgs, out: &mut Out) -> Result<()> {
    let address = Address::parse(&args.from)?;
    let Some(seq) = address.seq else {
        return Err(Failure::new(
            Code::Usage,
            format!("`{}` names no frame to fork at", args.from),
            format!("name the last frame to share, for example {}@1", address.run),
        ));
    };
    let door = super::writing_existing(global)?;
    let run = door.fork(&address.run, seq, &args.name)?;
    door.close()?;
    if out.json {
        return out.object(&runs::object(&run));
    }
    let parent = run.forked_from.as_ref().and_then(|(name, _)| name.as_deref()).unwrap_or(&address.run);
    out.line(format_args!("{} shares frames 1 to {seq} of {parent}", run.id))
}
