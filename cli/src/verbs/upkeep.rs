//! `annals doctor`, `repair`, `backup` and `restore`.

use std::path::Path;
use std::time::Duration;

use annals::replay::TailReport;
use annals::upkeep::{BackupReport, Diagnosis, LogCut, LostItem, Sharing};
use annals_server::BACKUPS_KEPT;
use serde_json::{Value, json};

use crate::args::{BackupArgs, GlobalArgs, RepairArgs, RestoreArgs};
use crate::failure::{CliResult, Failure, FailureCode};
use crate::output::{CliOutput, bytes, count, printable};
use crate::{locate, store_access};

/// Minimum interval between two backups, in nanoseconds.
const EVERY_MIN_NS: u64 = 1_000_000_000;

pub(super) fn doctor(global: &GlobalArgs, out: &mut CliOutput) -> CliResult<()> {
    let root = locate::store(global.store.as_deref());
    let found = store_access::diagnose(&root)?;
    if out.json {
        out.object(&diagnosis_json(&root, &found))?;
    } else {
        print_diagnosis(&root, &found, out)?;
    }
    if found.is_healthy() { Ok(()) } else { Err(Failure::Silent(FailureCode::Damage)) }
}

fn diagnosis_json(root: &Path, found: &Diagnosis) -> Value {
    let names = |paths: &[std::path::PathBuf]| -> Vec<String> {
        paths.iter().map(|path| path.display().to_string()).collect()
    };
    let findings: Vec<Value> = found
        .findings
        .iter()
        .map(|one| {
            let file = one.file.display().to_string();
            json!({ "file": file, "offset": one.offset, "what": one.what, "means": one.means, "next": one.next })
        })
        .collect();
    let rebuild: Vec<Value> = found.rebuild.iter().map(damage_json).collect();
    json!({
        "store": root.display().to_string(),
        "healthy": found.is_healthy(),
        "id": found.store.map(|id| id.to_string()),
        "format": found.format,
        "writer": found.writer,
        "clean": found.clean,
        "segments": found.segments,
        "tables": found.tables,
        "seqno": found.seqno.0,
        "unindexed_bytes": found.unindexed_bytes,
        "torn_bytes": found.tail.torn.as_ref().map_or(0, |torn| torn.bytes),
        "tail": tail_json(&found.tail),
        "open_runs": found.open_runs,
        "recovery": found.recovery_steps(),
        "findings": findings,
        "rebuild": rebuild,
        "leftovers": names(&found.leftovers),
        "unlisted": names(&found.unlisted),
        "foreign": names(&found.foreign),
        "notes": found.notes,
        "free_bytes": found.free_bytes,
    })
}

/// What is in doubt at the log's end, as JSON.
pub(super) fn tail_json(tail: &TailReport) -> Value {
    let cut = |cut: &LogCut| {
        json!({
            "segment": cut.segment.0,
            "offset": cut.offset,
            "bytes": cut.bytes,
            "from_ns": cut.from_ns,
            "until_ns": cut.until_ns,
        })
    };
    json!({
        "torn": tail.torn.as_ref().map(cut),
        "note_lost": tail.is_note_lost,
        "cuts": tail.cuts.iter().map(cut).collect::<Vec<_>>(),
        "earlier_cuts": tail.earlier_cuts,
    })
}

/// Prints what is in doubt at the log's end.
pub(super) fn print_tail(tail: &TailReport, out: &mut CliOutput) -> CliResult<()> {
    if let Some(torn) = &tail.torn {
        out.line(format_args!("torn: {torn}; the next opening for writing cuts them"))?;
    }
    if tail.is_note_lost {
        out.line(
            "in doubt: the store was not closed cleanly, and its file SYNCED is missing or unreadable: damage to its last commits would look like a crash",
        )?;
    }
    if tail.earlier_cuts > 0 {
        out.line(format_args!("cut: {} earlier cuts are no longer listed", count(tail.earlier_cuts)))?;
    }
    tail.cuts.iter().try_for_each(|cut| out.line(format_args!("cut after an unclean stop: {cut}")))
}

fn damage_json(damage: &annals::upkeep::Damage) -> Value {
    json!({ "file": damage.file.display().to_string(), "offset": damage.offset, "what": damage.what })
}

fn print_diagnosis(root: &Path, found: &Diagnosis, out: &mut CliOutput) -> CliResult<()> {
    let format = found.format.map_or("unknown".to_owned(), |format| format.to_string());
    let id = found.store.map_or("unknown".to_owned(), |id| id.to_string());
    out.line(format_args!("store {} (format {format}, id {id})", root.display()))?;
    let records = count(found.seqno.0);
    out.line(format_args!(
        "{} log files, {} index tables, {records} records",
        count(found.segments),
        count(found.tables)
    ))?;
    match &found.writer {
        Some(pid) => out.line(format_args!("process {} is writing to it now", printable(pid)))?,
        None if found.clean => out.line("no process is writing to it; it was closed cleanly")?,
        None => out.line("no process is writing to it; it was not closed: its last writer was stopped")?,
    }
    if found.writer.is_none() && !found.recovery_steps().is_empty() {
        out.line("the next opening for writing will:")?;
        for step in found.recovery_steps() {
            out.line(format_args!("  - {step}"))?;
        }
    }
    print_tail(&found.tail, out)?;
    for table in &found.rebuild {
        let file = table.file.display();
        out.line(format_args!(
            "index table {file}: {}; no data is lost with a table",
            printable(&table.what)
        ))?;
    }
    for (paths, what) in [
        (&found.leftovers, "left over from a crash; the next opening for writing removes it"),
        (&found.unlisted, "not listed by the manifest; it may hold newer data: keep it"),
        (&found.foreign, "not a file of the store; left unchanged"),
    ] {
        for path in paths {
            out.line(format_args!("{}: {what}", printable(&path.display().to_string())))?;
        }
    }
    match found.free_bytes {
        Some(0) => out.line("the disk is full: nothing can be recorded until space is free")?,
        Some(free) => out.line(format_args!("{} are free on its disk", bytes(free)))?,
        None => {}
    }
    for note in &found.notes {
        out.line(format_args!("note: {}", printable(note)))?;
    }
    for one in &found.findings {
        let at = format!(": {} at byte {}: {}", one.file.display(), one.offset, one.what);
        out.marked_line(false, "damaged", printable(&at))?;
        out.line(format_args!("  means: {}", one.means))?;
        out.line(format_args!("  next:  {}", one.next))?;
    }
    match found.findings.len() as u64 {
        0 => {
            let is_as_written =
                found.rebuild.is_empty() && found.tail.torn.is_none() && found.leftovers.is_empty();
            let what = match is_as_written {
                true => ": every file is what was written (`annals verify` also checks every body)",
                false => {
                    ": no acknowledged record is known to be lost; the next opening for writing mends what is listed above"
                }
            };
            out.marked_line(true, "healthy", what)
        }
        places => out.marked_line(false, "damage", format_args!(" in {} places", count(places))),
    }
}

pub(super) fn repair(global: &GlobalArgs, args: &RepairArgs, out: &mut CliOutput) -> CliResult<()> {
    let root = locate::store(global.store.as_deref());
    let report = store_access::repair(&root, &args.to)?;
    let to = args.to.display().to_string();
    if out.json {
        out.object(&json!({
            "store": to,
            "runs": report.runs,
            "runs_whole": report.runs_whole,
            "frames": report.frames,
            "snapshots": report.snapshots,
            "versions": report.versions,
            "damage": report.damage.iter().map(damage_json).collect::<Vec<_>>(),
            "lost": report.lost.iter().map(lost_json).collect::<Vec<_>>(),
        }))?;
    } else {
        for place in &report.damage {
            let at = format!(": {} at byte {}: {}", place.file.display(), place.offset, place.what);
            out.marked_line(false, "damaged", printable(&at))?;
        }
        for one in &report.lost {
            out.marked_line(false, "lost", printable(&format!(": {one}")))?;
        }
        let (runs, whole, frames) = (count(report.runs), count(report.runs_whole), count(report.frames));
        let (states, versions) = (count(report.snapshots), count(report.versions));
        let saved = format!(
            ": {runs} runs ({whole} of them whole), {frames} frames, {states} snapshots, {versions} versions of keys are in {to}"
        );
        out.marked_line(true, "saved", printable(&saved))?;
    }
    if report.lost.is_empty() { Ok(()) } else { Err(Failure::Silent(FailureCode::Damage)) }
}

/// A loss as JSON: its kind, its names, and a sentence.
fn lost_json(lost: &LostItem) -> Value {
    let mut object = match lost {
        LostItem::Records { from, to, .. } => {
            json!({ "lost": "records", "from": from.0, "to": to.map(|to| to.0) })
        }
        LostItem::Run { namespace, run, .. } => json!({ "lost": "run", "namespace": namespace, "run": run }),
        LostItem::Frames { namespace, run, from, to, .. } => {
            json!({ "lost": "frames", "namespace": namespace, "run": run, "from": from, "to": to })
        }
        LostItem::Metadata { namespace, run, .. } => {
            json!({ "lost": "metadata", "namespace": namespace, "run": run })
        }
        LostItem::Snapshot { namespace, run, seq, .. } => {
            json!({ "lost": "snapshot", "namespace": namespace, "run": run, "seq": seq })
        }
        LostItem::Version { namespace, keyspace, key, seqno, .. } => {
            let mut object = serde_json::Map::new();
            object.insert("lost".into(), "version".into());
            object.insert("namespace".into(), namespace.as_str().into());
            object.insert("keyspace".into(), keyspace.as_str().into());
            object.insert("seqno".into(), seqno.0.into());
            crate::output::put_bytes(&mut object, "key", key);
            Value::Object(object)
        }
        LostItem::Name { name } => json!({ "lost": "name", "name": name }),
        _ => json!({ "lost": "other" }),
    };
    if let Value::Object(fields) = &mut object {
        fields.insert("text".into(), lost.to_string().into());
    }
    object
}

pub(super) fn backup(global: &GlobalArgs, args: &BackupArgs, out: &mut CliOutput) -> CliResult<()> {
    let sharing = if args.copy { Sharing::Copied } else { Sharing::Shared };
    let (dest, folder) = match (&args.dest, &args.to) {
        (_, Some(folder)) => (None, folder),
        (Some(dest), None) => (Some(dest), dest),
        (None, None) => return Err(Failure::usage("no directory for the backup", "name one, or use --to")),
    };
    if let Some(dest) = dest {
        let door = super::open_to_read(global)?;
        let report = door.backup(dest, sharing)?;
        door.note_backup(&locate::store(global.store.as_deref()), dest);
        return print_backup("backed up", dest, &report, out);
    }
    let keep = args.keep.and_then(|keep| usize::try_from(keep).ok()).unwrap_or(BACKUPS_KEPT);
    let Some(every) = &args.every else { return keep_one(global, folder, keep, sharing, out) };
    let every_ns = annals::retention::parse_duration_ns(every).filter(|ns| *ns >= EVERY_MIN_NS);
    let every = every_ns.map(Duration::from_nanos).ok_or_else(|| {
        Failure::usage(format!("--every {every:?} is not a duration of a second or more"), "as in --every 6h")
    })?;
    // The first one shows whether the store and the folder can be used at all.
    keep_one(global, folder, keep, sharing, out)?;
    loop {
        std::thread::sleep(every);
        if let Err(failure) = keep_one(global, folder, keep, sharing, out) {
            // The next one may succeed: a full disk, or another process in the folder.
            let _ = failure.print();
        }
    }
}

/// Makes a backup in a folder, and removes the oldest ones.
fn keep_one(
    global: &GlobalArgs,
    folder: &Path,
    keep: usize,
    sharing: Sharing,
    out: &mut CliOutput,
) -> CliResult<()> {
    let door = super::open_to_read(global)?;
    let kept = door.keep_backup(&locate::store(global.store.as_deref()), folder, keep, sharing)?;
    print_backup("backed up", &kept.path, &kept.report, out)?;
    if !out.json {
        for old in &kept.removed {
            out.line(format_args!("removed {}", printable(&old.display().to_string())))?;
        }
    }
    match kept.left.first() {
        None => Ok(()),
        Some((old, error)) => Err(Failure::failed(
            format_args!("the old backup {} could not be removed: {error}", old.display()),
            "remove it by hand",
        )),
    }
}

pub(super) fn restore(args: &RestoreArgs, out: &mut CliOutput) -> CliResult<()> {
    let report = store_access::restore(&args.backup, &args.dest)?;
    print_backup("restored", &args.dest, &report, out)
}

fn print_backup(what: &str, dest: &Path, report: &BackupReport, out: &mut CliOutput) -> CliResult<()> {
    let dest = dest.display().to_string();
    if out.json {
        return out.object(&json!({
            "store": dest,
            "seqno": report.seqno.0,
            "segments": report.segments,
            "shared_files": report.shared_files,
            "copied_files": report.copied_files,
            "copied_bytes": report.copied_bytes,
        }));
    }
    let (records, shared, copied) =
        (count(report.seqno.0), count(report.shared_files), count(report.copied_files));
    let size = bytes(report.copied_bytes);
    let told = format!(": {records} records into {dest}; {shared} files shared, {copied} copied ({size})");
    out.marked_line(true, what, printable(&told))
}
