//! `annals verify`: lists damage, and differences from a checkpoint; both make the exit code 3.

use annals::ledger::{CheckpointDifference, Comparison, HistoryPart};
use serde_json::{Value, json};

use super::ledger;
use crate::args::{Global, VerifyArgs};
use crate::door::{Checked, Scope};
use crate::failure::{Code, Failure, Result};
use crate::out::{Out, count, printable, time};

pub(super) fn run(global: &Global, args: &VerifyArgs, out: &mut Out) -> Result<()> {
    let key = args.key.as_deref().map(ledger::public_key).transpose()?;
    let kept = args.against.as_deref().map(|path| ledger::kept(path, key.as_ref())).transpose()?;
    let scope = match (&args.run, args.sample) {
        (Some(run), _) => Scope::Run(run),
        (None, Some(runs)) => Scope::Sample(runs),
        (None, None) => Scope::All,
    };
    let checked = super::reading(global).and_then(|door| {
        let compared = kept.as_ref().map(|(_, kept)| door.compare(kept)).transpose()?;
        Ok((door.verify(scope)?, compared))
    });
    let (found, compared) = match checked {
        // Damage that prevents opening the store counts as found damage.
        Err(Failure::Told { code: Code::Damage, message, .. }) => {
            (Checked { damaged: vec![message], ..Checked::default() }, None)
        }
        checked => checked?,
    };
    if out.json {
        let mut report = json!({
            "runs": found.runs,
            "frames": found.frames,
            "blobs": found.blobs,
            "damaged": found.damaged,
            "rebuilt": found.rebuilt,
        });
        if args.against.is_some() {
            report["against"] = compared.as_ref().map_or(Value::Null, said);
        }
        out.object(&report)?;
    } else {
        if let Some(compared) = &compared {
            compared.differences.iter().try_for_each(|difference| tell(difference, out))?;
            if compared.differences.is_empty() {
                let leaves = count(compared.leaves);
                let but = match compared.erased {
                    0 => String::new(),
                    some => format!(", except the last {some}, which were forgotten with all later records"),
                };
                out.marked(
                    true,
                    "unchanged",
                    format_args!(": all {leaves} leaves that the checkpoint covers{but}"),
                )?;
            }
        }
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
    let unchanged = compared.is_none_or(|compared| compared.differences.is_empty());
    if found.damaged.is_empty() && unchanged { Ok(()) } else { Err(Failure::Silent(Code::Damage)) }
}

/// Prints a difference from a checkpoint.
fn tell(difference: &CheckpointDifference, out: &mut Out) -> Result<()> {
    match difference {
        CheckpointDifference::AnotherStore { found } => out.marked(
            false,
            "another store",
            format_args!(": the checkpoint is not one of this store, {found}"),
        ),
        CheckpointDifference::Rewritten(part) => {
            out.marked(false, "rewritten", format_args!(": {}", place(part)))
        }
        CheckpointDifference::RolledBack(part) => {
            out.marked(false, "rolled back", format_args!(": the store ends before {}", place(part)))
        }
        CheckpointDifference::Unreadable { what } => {
            out.marked(false, "unreadable", format_args!(": {}", printable(what)))
        }
        other => out.marked(false, "different", format_args!(": {other:?}")),
    }
}

fn place(part: &HistoryPart) -> String {
    let after = part.after_ns.map_or("the beginning".to_owned(), time);
    format!(
        "leaves {} to {}, records {} to {}, queued from {after} to {}",
        part.leaves.start,
        part.leaves.end.saturating_sub(1),
        part.first,
        part.last,
        time(part.until_ns)
    )
}

/// The comparison with a checkpoint, as JSON.
fn said(compared: &Comparison) -> Value {
    let part = |what: &str, part: &HistoryPart| {
        json!({
            "what": what,
            "leaves": [part.leaves.start, part.leaves.end.saturating_sub(1)],
            "seqnos": [part.first.0, part.last.0],
            "after_ns": part.after_ns,
            "until_ns": part.until_ns,
        })
    };
    let differences = compared.differences.iter().map(|difference| match difference {
        CheckpointDifference::AnotherStore { found } => {
            json!({ "what": "another_store", "store": found.to_string() })
        }
        CheckpointDifference::Rewritten(of) => part("rewritten", of),
        CheckpointDifference::RolledBack(of) => part("rolled_back", of),
        CheckpointDifference::Unreadable { what } => json!({ "what": "unreadable", "why": what }),
        other => json!({ "what": "different", "why": format!("{other:?}") }),
    });
    let differences: Vec<Value> = differences.collect();
    let Comparison { leaves, read, erased, .. } = compared;
    json!({ "leaves": leaves, "read": read, "erased": erased, "differences": differences })
}
