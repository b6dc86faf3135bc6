//! `annals verify`: damage is listed and exits with its own code.

use serde_json::json;

use crate::args::{Global, VerifyArgs};
use crate::door::{Checked, Scope};
use crate::failure::{Code, Failure, Result};
use crate::out::{Out, count, printable};

pub(super) fn run(global: &Global, args: &VerifyArgs, out: &mut Out) -> Result<()> {
    let scope = match (&args.run, args.sample) {
        (Some(run), _) => Scope::Run(run),
        (None, Some(runs)) => Scope::Sample(runs),
        (None, None) => Scope::All,
    };
    let found = match super::reading(global).and_then(|door| door.verify(scope)) {
        // Damage that keeps the store from being opened is damage found, too.
        Err(Failure::Told { code: Code::Damage, message, .. }) => {
            Checked { damaged: vec![message], ..Checked::default() }
        }
        found => found?,
    };
    if out.json {
        let (runs, frames, blobs) = (found.runs, found.frames, found.blobs);
        out.object(&json!({ "runs": runs, "frames": frames, "blobs": blobs, "damaged": found.damaged,
            "rebuilt": found.rebuilt }))?;
    } else {
        for table in &found.rebuilt {
            out.line(format_args!("rebuilt: {}", printable(table)))?;
        }
        for place in &found.damaged {
            out.marked(false, "damaged", format_args!(": {}", printable(place)))?;
        }
        let (runs, frames, blobs) = (count(found.runs), count(found.frames), count(found.blobs));
        let checked = format!(": {runs} runs, {frames} frames, {blobs} blobs checked");
        match found.damaged.len() as u64 {
            0 => out.marked(true, "whole", checked)?,
            places => out.marked(false, "damage", format_args!("{checked}, {} places", count(places)))?,
        }
    }
    if found.damaged.is_empty() { Ok(()) } else { Err(Failure::Silent(Code::Damage)) }
}
