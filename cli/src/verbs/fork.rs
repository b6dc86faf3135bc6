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
    out.line(format_args!("{} shares frames 1 to {seq} of {}", run.id, address.run))
}
