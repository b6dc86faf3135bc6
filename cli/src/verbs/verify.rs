//! `annals verify`: lists damage, and differences from a checkpoint; both make the exit code 3.

use std::ops::Range;
use std::path::{Path, PathBuf};

use annals::StoreId;
use annals::ledger::{Checkpoint, CheckpointDifference, Comparison, HistoryPart, run_numbers};
use annals::replay::{VerifyProblem, VerifyReport};
use annals_proof::PublicKey;
use serde_json::{Value, json};

use super::ledger::{self, Witnesses};
use crate::args::{GlobalArgs, VerifyArgs};
use crate::failure::{CliResult, Failure, FailureCode};
use crate::output::{CliOutput, count, plural, printable, time};
use crate::store_access::VerifyScope;

pub(super) fn run(global: &GlobalArgs, args: &VerifyArgs, out: &mut CliOutput) -> CliResult<()> {
    let key = args.key.as_deref().map(ledger::public_key).transpose()?;
    let kept = args.against.as_deref().map(|path| KeptCheckpoint::read(path, key.as_ref())).transpose()?;
    let malformed = match &kept {
        Some(KeptCheckpoint::Folder(_, witnesses)) => witnesses.malformed.clone(),
        _ => Vec::new(),
    };
    let scope = match (&args.run, args.sample) {
        (Some(run), _) => VerifyScope::Run(run),
        (None, Some(runs)) => VerifyScope::Sample(runs),
        (None, None) => VerifyScope::All,
    };
    let mut others = 0;
    let checked = super::open_to_read(global).and_then(|door| {
        if let Some(KeptCheckpoint::Folder(_, witnesses)) = &kept {
            others = witnesses.count_others(door.id());
        }
        let compared = match kept.map(|kept| kept.of_store(door.id())).transpose()? {
            Some(ComparedCheckpoints { files, newest, older }) => {
                Some((files, door.compare(&newest, &older)?))
            }
            None => None,
        };
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
            "snapshots": found.snapshots,
            "values": found.values,
            "damaged": damaged,
            "rebuilt": rebuilt,
            "tail": super::upkeep::tail_json(&found.tail),
            "notes": found.notes,
        });
        if args.against.is_some() {
            report["against"] = compared.as_ref().map_or(Value::Null, |(files, compared)| {
                comparison_json(files, compared, &malformed, others)
            });
        }
        out.object(&report)?;
    } else {
        for witness in &malformed {
            out.marked_line(false, "malformed", format_args!(": {}", printable(witness)))?;
        }
        if let Some((files, compared)) = &compared {
            if let Some(newest) = files.last() {
                let newest = newest.display().to_string();
                let older = match files.len() as u64 - 1 {
                    0 => String::new(),
                    some => format!(", and {}", plural(some, "older one")),
                };
                out.line(format_args!("compared with the newest checkpoint: {}{older}", printable(&newest)))?;
            }
            if others > 0 && compared.differences.is_empty() {
                out.line(format_args!(
                    "note: not compared, because they are of other stores: {}",
                    plural(others, "checkpoint")
                ))?;
            }
            if let Some(left_out) = with_younger(files, &compared.left_out) {
                out.line(format_args!(
                    "note: only counts were compared with {left_out}: the last leaves were erased together with younger ones"
                ))?;
            }
            print_differences(&compared.differences, files, out)?;
            if compared.differences.is_empty() {
                let leaves = count(compared.leaves);
                let but = match compared.erased {
                    0 => String::new(),
                    some => format!(", except the last {some}, which were forgotten with all later records"),
                };
                // Of such a history only the counts could be compared.
                match compared.erased == compared.leaves && compared.leaves > 0 {
                    true => out.line(format_args!(
                        "not compared: all {leaves} leaves that the checkpoint covers were erased together with later ones; only its counts were"
                    ))?,
                    false => out.marked_line(
                        true,
                        "unchanged",
                        format_args!(": all {leaves} leaves that the checkpoint covers{but}"),
                    )?,
                }
            }
            let oldest = match files.len() {
                0 | 1 => "the checkpoint",
                _ => "the oldest checkpoint",
            };
            if let Some(erased) = compared.erased_since_oldest.filter(|erased| *erased > 0) {
                let erased = plural(erased, "record");
                out.line(format_args!("erased since {oldest}: {erased} (`annals ledger gaps`)"))?;
            }
            if compared.erased_since.is_none() && compared.differences.is_empty() {
                out.line(
                    "note: this checkpoint counts no records (version 1), so a forged statement of an erasure, and \
                     erased records that came back, are not noticed",
                )?;
            }
            if compared.erased_since.is_some() && !compared.in_parts && compared.differences.is_empty() {
                out.line(
                    "note: this checkpoint does not count records by run (version 2), so a run that was erased and \
                     recorded anew with its number, and records that came back when others were erased, are not noticed",
                )?;
            }
        }
        for table in &rebuilt {
            out.line(format_args!("rebuilt: {}", printable(table)))?;
        }
        super::upkeep::print_tail(&found.tail, out)?;
        for note in &found.notes {
            out.line(format_args!("note: {}", printable(note)))?;
        }
        for place in &damaged {
            out.marked_line(false, "damaged", format_args!(": {}", printable(place)))?;
        }
        let (runs, frames, blobs) = (count(found.runs), count(found.frames), count(found.blobs));
        let (snapshots, values) = (count(found.snapshots), count(found.values));
        let checked = format!(
            ": {runs} runs, {frames} frames, {blobs} blobs, {snapshots} snapshots, {values} values checked"
        );
        match damaged.len() as u64 {
            0 => out.marked_line(true, "whole", checked)?,
            places => {
                out.marked_line(false, "damage", format_args!("{checked}, {} places", count(places)))?
            }
        }
    }
    let unchanged = compared.is_none_or(|(_, compared)| compared.differences.is_empty());
    if damaged.is_empty() && unchanged && malformed.is_empty() {
        Ok(())
    } else {
        Err(Failure::Silent(FailureCode::Damage))
    }
}

fn problem_text(problem: &VerifyProblem) -> String {
    match &problem.run {
        Some((namespace, run)) => format!("run {run} of namespace {namespace}: {}", problem.what),
        None => problem.what.clone(),
    }
}

/// The checkpoint to compare with: a file, or the newest one in a folder.
enum KeptCheckpoint {
    File(Box<Checkpoint>),
    Folder(PathBuf, Witnesses),
}

impl KeptCheckpoint {
    fn read(path: &Path, key: Option<&PublicKey>) -> CliResult<Self> {
        match path.is_dir() {
            true => Ok(Self::Folder(path.to_path_buf(), Witnesses::read(path, key)?)),
            false => Ok(Self::File(Box::new(ledger::read_checkpoint(path, key)?.1))),
        }
    }

    fn of_store(self, store: StoreId) -> CliResult<ComparedCheckpoints> {
        match self {
            Self::File(checkpoint) => {
                Ok(ComparedCheckpoints { files: Vec::new(), newest: *checkpoint, older: Vec::new() })
            }
            Self::Folder(folder, witnesses) => {
                let (newest, older) = witnesses.newest_of(store, &folder)?;
                let (mut files, older): (Vec<_>, Vec<_>) =
                    older.into_iter().map(|witness| (witness.path, witness.checkpoint)).unzip();
                files.push(newest.path);
                Ok(ComparedCheckpoints { files, newest: newest.checkpoint, older })
            }
        }
    }
}

/// The checkpoints of one store to compare with.
struct ComparedCheckpoints {
    /// The files of the older ones and of the newest, if they are from a folder.
    files: Vec<PathBuf>,
    newest: Checkpoint,
    older: Vec<Checkpoint>,
}

/// The oldest of these files, and how many others there are. `None` if there is none.
fn with_younger(files: &[PathBuf], indices: &[usize]) -> Option<String> {
    let oldest = printable(&files.get(*indices.iter().min()?)?.display().to_string());
    Some(match indices.len() as u64 - 1 {
        0 => oldest,
        younger => format!("{oldest} and {} (--json names all)", plural(younger, "younger one")),
    })
}

/// Prints the differences from a checkpoint. `files` has the older checkpoints.
fn print_differences(
    differences: &[CheckpointDifference],
    files: &[PathBuf],
    out: &mut CliOutput,
) -> CliResult<()> {
    let (mut older, mut newest_differs) = (Vec::new(), false);
    for difference in differences {
        match difference {
            CheckpointDifference::OlderCheckpoint { index } => older.push(*index),
            of_newest => {
                newest_differs = true;
                print_difference(of_newest, out)?;
            }
        }
    }
    let Some(named) = with_younger(files, &older) else { return Ok(()) };
    let newest = if newest_differs { ", either" } else { "; the newest one was made after that was changed" };
    let cover = if older.len() == 1 { "covers" } else { "cover" };
    let what = format_args!(": the store does not have the history that {named} {cover}{newest}");
    out.marked_line(false, "older checkpoint", what)
}

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
        CheckpointDifference::Erased { what } => {
            out.marked_line(false, "erased", format_args!(": {}", printable(what)))
        }
        CheckpointDifference::Forged { what } => {
            out.marked_line(false, "forged", format_args!(": {}", printable(what)))
        }
        CheckpointDifference::Fewer { expected, found, stated } => out.marked_line(
            false,
            "erased",
            format_args!(
                ": {} records of the checkpoint are gone; the ledger states at most {} erased since then",
                count(expected.saturating_sub(*found)),
                count(*stated)
            ),
        ),
        CheckpointDifference::More { expected, found } => out.marked_line(
            false,
            "came back",
            format_args!(
                ": the checkpoint counts {} records, and {} exist: erased records were put back",
                count(*expected),
                count(*found)
            ),
        ),
        CheckpointDifference::Back(part) => out.marked_line(
            false,
            "came back",
            format_args!(": more records exist than the checkpoint counts in {}", part_text(part)),
        ),
        CheckpointDifference::RunRecordsMissing { runs, missing } => out.marked_line(
            false,
            "erased",
            format_args!(
                ": {} that only a drop or a replacement of their run may erase, of {}",
                plural(*missing, "record"),
                run_numbers(runs)
            ),
        ),
        CheckpointDifference::RunRecordsBack { runs, more } => out.marked_line(
            false,
            "came back",
            format_args!(
                ": {} of dropped or replaced runs, of {}",
                plural(*more, "record"),
                run_numbers(runs)
            ),
        ),
        CheckpointDifference::PermanentMissing { expected, found } => out.marked_line(
            false,
            "erased",
            format_args!(
                ": {} of {} tombstones, statements of erasures and definitions of namespaces",
                count(expected.saturating_sub(*found)),
                count(*expected)
            ),
        ),
        CheckpointDifference::RunsMissing { expected, found, missing } => out.marked_line(
            false,
            "runs missing",
            format_args!(
                ": the checkpoint counts {}, and {} have a record or a tombstone; without one: {}",
                plural(*expected, "run"),
                count(*found),
                run_numbers(missing)
            ),
        ),
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
fn comparison_json(files: &[PathBuf], compared: &Comparison, malformed: &[String], others: u64) -> Value {
    let part = |what: &str, part: &HistoryPart| {
        json!({
            "what": what,
            "leaves": [part.leaves.start, part.leaves.end.saturating_sub(1)],
            "seqnos": [part.first.0, part.last.0],
            "after_ns": part.after_ns,
            "until_ns": part.until_ns,
        })
    };
    let ranges =
        |runs: &[Range<u64>]| runs.iter().map(|runs| [runs.start, runs.end - 1]).collect::<Vec<[u64; 2]>>();
    let differences = compared.differences.iter().map(|difference| match difference {
        CheckpointDifference::AnotherStore { found } => {
            json!({ "what": "another_store", "store": found.to_string() })
        }
        CheckpointDifference::Rewritten(of) => part("rewritten", of),
        CheckpointDifference::RolledBack(of) => part("rolled_back", of),
        CheckpointDifference::Unreadable { what } => json!({ "what": "unreadable", "why": what }),
        CheckpointDifference::Erased { what } => json!({ "what": "erased", "why": what }),
        CheckpointDifference::Forged { what } => json!({ "what": "forged", "why": what }),
        CheckpointDifference::Fewer { expected, found, stated } => {
            json!({ "what": "fewer", "expected": expected, "found": found, "stated": stated })
        }
        CheckpointDifference::More { expected, found } => {
            json!({ "what": "more", "expected": expected, "found": found })
        }
        CheckpointDifference::RunsMissing { expected, found, missing } => {
            json!({ "what": "runs_missing", "expected": expected, "found": found, "missing": ranges(missing) })
        }
        CheckpointDifference::Back(of) => part("came_back", of),
        CheckpointDifference::RunRecordsMissing { runs, missing } => {
            json!({ "what": "run_records_missing", "runs": ranges(runs), "records": missing })
        }
        CheckpointDifference::RunRecordsBack { runs, more } => {
            json!({ "what": "run_records_back", "runs": ranges(runs), "records": more })
        }
        CheckpointDifference::PermanentMissing { expected, found } => {
            json!({ "what": "permanent_missing", "expected": expected, "found": found })
        }
        CheckpointDifference::OlderCheckpoint { index } => {
            json!({ "what": "older_checkpoint", "file": files.get(*index).map(|file| file.display().to_string()) })
        }
        other => json!({ "what": "different", "why": format!("{other:?}") }),
    });
    let differences: Vec<Value> = differences.collect();
    let left_out = compared.left_out.iter().filter_map(|index| files.get(*index));
    let left_out: Vec<String> = left_out.map(|file| file.display().to_string()).collect();
    let Comparison { leaves, read, erased, erased_since, erased_since_oldest, in_parts, notes, .. } =
        compared;
    json!({
        "file": files.last().map(|file| file.display().to_string()),
        "older": files.len().saturating_sub(1),
        "malformed": malformed,
        "others": others,
        "left_out": left_out,
        "leaves": leaves,
        "read": read,
        "erased": erased,
        "erased_since": erased_since,
        "erased_since_oldest": erased_since_oldest,
        "in_parts": in_parts,
        "notes": notes,
        "differences": differences,
    })
}
