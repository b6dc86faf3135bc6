//! `annals verify`: lists damage, and differences from a checkpoint; both make the exit code 3.

use annals::ledger::{CheckpointDifference, Comparison, HistoryPart};
use annals::replay::{VerifyProblem, VerifyReport};
use serde_json::{Value, json};

use super::ledger;
use crate::args::{GlobalArgs, VerifyArgs};
use crate::failure::{CliResult, Failure, FailureCode};
use crate::output::{CliOutput, count, printable, time};
use crate::store_access::VerifyScope;

pub(super) fn run(global: &GlobalArgs, args: &VerifyArgs, out: &mut CliOutput) -> CliResult<()> {
    let key = args.key.as_deref().map(ledger::public_key).transpose()?;
    let kept = args.against.as_deref().map(|path| ledger::read_checkpoint(path, key.as_ref())).transpose()?;
    let scope = match (&args.run, args.sample) {
        (Some(run), _) => VerifyScope::Run(run),
        (None, Some(runs)) => VerifyScope::Sample(runs),
        (None, None) => VerifyScope::All,
    };
    let checked = super::open_to_read(global).and_then(|door| {
        let compared = kept.as_ref().map(|(_, kept)| door.compare(kept)).transpose()?;
        Ok((door.verify(scope)?, compared))
    });
    let (found, compared) = match checked {
        // Damage that prevents opening the store counts as found damage.
        Err(Failure::Message { code: FailureCode::Damage, message, .. }) => {
            let problem = VerifyProblem { run: None, what: message };
            (VerifyReport { damaged: vec![problem], ..VerifyReport::default() }, None)
        }
        checked => checked?,
    };
    let damaged: Vec<String> = found.damaged.iter().map(problem_text).collect();
    let rebuilt = found.rebuilt.iter().map(|table| format!("{}: {}", table.file.display(), table.what));
    let rebuilt: Vec<String> = rebuilt.collect();
    if out.json {
        let mut report = json!({
            "runs": found.runs,
            "frames": found.frames,
            "blobs": found.blobs,
            "damaged": damaged,
            "rebuilt": rebuilt,
            "tail": super::upkeep::tail_json(&found.tail),
        });
        if args.against.is_some() {
            report["against"] = compared.as_ref().map_or(Value::Null, comparison_json);
        }
        out.object(&report)?;
    } else {
        if let Some(compared) = &compared {
            compared.differences.iter().try_for_each(|difference| print_difference(difference, out))?;
            if compared.differences.is_empty() {
                let leaves = count(compared.leaves);
                let but = match compared.erased {
                    0 => String::new(),
                    some => format!(", except the last {some}, which were forgotten with all later records"),
                };
                out.marked_line(
                    true,
                    "unchanged",
                    format_args!(": all {leaves} leaves that the checkpoint covers{but}"),
                )?;
            }
        }
        for table in &rebuilt {
            out.line(format_args!("rebuilt: {}", printable(table)))?;
        }
        super::upkeep::print_tail(&found.tail, out)?;
        for place in &damaged {
            out.marked_line(false, "damaged", format_args!(": {}", printable(place)))?;
        }
        let (runs, frames, blobs) = (count(found.runs), count(found.frames), count(found.blobs));
        let checked = format!(": {runs} runs, {frames} frames, {blobs} blobs checked");
        match damaged.len() as u64 {
            0 => out.marked_line(true, "whole", checked)?,
            places => {
                out.marked_line(false, "damage", format_args!("{checked}, {} places", count(places)))?
            }
        }
    }
    let unchanged = compared.is_none_or(|compared| compared.differences.is_empty());
    if damaged.is_empty() && unchanged { Ok(()) } else { Err(Failure::Silent(FailureCode::Damage)) }
}

fn problem_text(problem: &VerifyProblem) -> String {
    match &problem.run {
        Some((namespace, run)) => format!("run {run} of namespace {namespace}: {}", problem.what),
        None => problem.what.clone(),
    }
}

/// Prints a difference from a checkpoint.
fn print_difference(difference: &CheckpointDifference, out: &mut CliOutput) -> CliResult<()> {
    match difference {
        CheckpointDifference::AnotherStore { found } => out.marked_line(
            false,
            "another store",
            format_args!(": the checkpoint is not one of this store, {found}"),
        ),
        CheckpointDifference::Rewritten(part) => {
            out.marked_line(false, "rewritten", format_args!(": {}", part_text(part)))
        }
        CheckpointDifference::RolledBack(part) => {
            out.marked_line(false, "rolled back", format_args!(": the store ends before {}", part_text(part)))
        }
        CheckpointDifference::Unreadable { what } => {
            out.marked_line(false, "unreadable", format_args!(": {}", printable(what)))
        }
        other => out.marked_line(false, "different", format_args!(": {other:?}")),
    }
}

fn part_text(part: &HistoryPart) -> String {
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
fn comparison_json(compared: &Comparison) -> Value {
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
