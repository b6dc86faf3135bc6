//! `annals tape`: exports runs to self-contained files, and imports tapes of annals and tracefork.

use std::io::Write;
use std::path::{Path, PathBuf};

use annals::{RunInfo, tape::REDACTED_TAG};
use serde_json::json;

use super::runs::short_hex;
use crate::args::{GlobalArgs, TapeExportArgs, TapeImportArgs, TapeVerb};
use crate::atomic_file::{self, FileAccess};
use crate::failure::{CliResult, Failure};
use crate::input::{self, AnyTape};
use crate::output::{CliOutput, bytes, plural, printable};
use crate::profiles;
use crate::store_access::{StoreAccess, StoreWait};
use crate::tracefork::TraceforkRecording;

pub(super) fn run(global: &GlobalArgs, verb: &TapeVerb, out: &mut CliOutput) -> CliResult<()> {
    match verb {
        TapeVerb::Export(args) => export(global, args, out),
        TapeVerb::Import(args) => import(global, args, out),
    }
}

fn export(global: &GlobalArgs, args: &TapeExportArgs, out: &mut CliOutput) -> CliResult<()> {
    if args.output.is_none() && out.is_terminal() {
        let message = "a tape is a file of bytes that a terminal may obey, so it is not written to one";
        let hint = "-o FILE names a file; -o - writes to the terminal anyway";
        return Err(Failure::usage(message, hint));
    }
    let redactor = profiles::redactor(global, &args.reader)?;
    let redactor = redactor.as_ref();
    let door = super::open_to_read(global)?;
    let reader = door.reader(&args.run)?;
    let export = |to: &mut dyn Write| match redactor {
        Some(redactor) => door.export_redacted_tape(&reader, redactor, to),
        None => door.export_tape(&reader, to),
    };
    let Some(path) = args.output.as_deref().filter(|path| path.as_os_str() != "-") else {
        let mut tape = Vec::new();
        export(&mut tape)?;
        profiles::print_redaction_note(redactor);
        return out.bytes(&tape);
    };
    let mut len = 0;
    let written = atomic_file::write(path, FileAccess::Owner, |file: &mut dyn Write| {
        export(file).map(|written| len = written)
    });
    written?.map_err(|error| write_failure(path, &error))?;
    let info = reader.info();
    let fingerprint = info.fingerprint.map(|link| link.to_string()).unwrap_or_default();
    let frames = plural(u64::from(info.frames), "frame");
    if let Some(redactor) = redactor {
        let (by, tape) = (redactor.profile().name(), path.to_string_lossy());
        if out.json {
            return out.object(
                &json!({ "run": info.name, "frames": info.frames, "bytes": len, "redacted": by, "tape": tape }),
            );
        }
        let (name, path, len) = (printable(&info.name), path.display(), bytes(len));
        return out.line(format_args!("wrote {name} to {path}: {frames}, {len}, redacted by profile {by}"));
    }
    if out.json {
        return out.object(&json!({
            "run": info.name, "frames": info.frames, "bytes": len, "fingerprint": fingerprint,
            "tape": path.to_string_lossy(),
        }));
    }
    out.line(format_args!(
        "wrote {} to {}: {frames}, {}, fingerprint {}",
        printable(&info.name),
        path.display(),
        bytes(len),
        short_hex(&fingerprint)
    ))
}

fn import(global: &GlobalArgs, args: &TapeImportArgs, out: &mut CliOutput) -> CliResult<()> {
    if args.run.is_some() && args.tapes.len() > 1 {
        let hint = "leave out --run, or import one tape";
        return Err(Failure::usage("--run names the run of one tape", hint));
    }
    // A bad first tape opens no store. The runs of tapes before a bad one stay.
    let mut door = None;
    let imported = args.tapes.iter().try_for_each(|path| {
        let tape = input::read_tape(path)?;
        if let AnyTape::Native(tape) = &tape
            && let Some((_, by)) = tape.info().tags.iter().find(|(key, _)| key == REDACTED_TAG)
            && !args.redacted
        {
            let message = format!(
                "it was redacted by profile {} when exported, so it does not hold the recorded bytes",
                printable(by)
            );
            let hint = "--redacted imports it, marked as redacted";
            return Err(Failure::failed(message, hint).with_place(path.display()));
        }
        let door = match &mut door {
            Some(door) => door,
            none => none.insert(super::open_to_write(global)?),
        };
        let name = args.run.as_deref();
        match tape {
            AnyTape::Native(tape) => {
                let info =
                    door.import_tape(&tape, name, args.replace).map_err(|f| f.with_place(path.display()))?;
                print_imported(path, &info, None, out)
            }
            AnyTape::Tracefork(tape) => {
                let recording = TraceforkRecording::from_tape(&tape)
                    .map_err(|why| Failure::failed(why, "please report it").with_place(path.display()))?;
                let own =
                    Some(tape.agent_name.as_str()).filter(|name| !name.is_empty()).unwrap_or("tracefork");
                let digest = recording.digest.clone();
                let info = door.import_tracefork(recording, name.unwrap_or(own), args.replace);
                print_imported(path, &info.map_err(|f| f.with_place(path.display()))?, Some(&digest), out)
            }
        }
    });
    imported.and(door.map_or(Ok(()), StoreAccess::close))
}

/// Prints an imported run; for a tape of tracefork also tracefork's digest.
fn print_imported(path: &Path, info: &RunInfo, digest: Option<&str>, out: &mut CliOutput) -> CliResult<()> {
    let fingerprint = info.fingerprint.map(|link| link.to_string()).unwrap_or_default();
    if out.json {
        return out.object(&json!({
            "run": info.name, "frames": info.frames, "raw_bytes": info.raw_bytes, "fingerprint": fingerprint,
            "tape": path.to_string_lossy(), "tracefork_digest": digest,
        }));
    }
    let (frames, raw) = (plural(u64::from(info.frames), "frame"), bytes(info.raw_bytes));
    if let Some((_, by)) = info.tags.iter().find(|(key, _)| key == REDACTED_TAG) {
        let (name, by) = (printable(&info.name), printable(by));
        return out.line(format_args!(
            "imported {name}: {frames}, {raw}, redacted by profile {by}: not what was recorded"
        ));
    }
    let fingerprint = short_hex(&fingerprint);
    out.line(format_args!(
        "imported {}: {}, {frames}, {raw}, fingerprint {fingerprint}",
        printable(&info.name),
        info.status
    ))?;
    digest
        .map_or(Ok(()), |digest| out.line(format_args!("  tracefork's digest {digest}, every blob checked")))
}

/// The failure to write an output file.
pub(super) fn write_failure(path: &Path, error: &std::io::Error) -> Failure {
    let message = format!("cannot write {}: {error}", path.display());
    Failure::failed(message, "name a file that can be written")
}

/// A temporary store that holds the run of one tape, removed when this is dropped.
pub(super) struct TapeStore {
    pub(super) door: StoreAccess,
    pub(super) run: String,
    pub(super) root: PathBuf,
    /// Readable by its owner only.
    _folder: tempfile::TempDir,
}

impl TapeStore {
    pub(super) fn open(path: &Path) -> CliResult<Self> {
        let tape = input::read_tape(path)?;
        let failed = |error: std::io::Error| {
            let message = format!("cannot create a temporary store for the tape: {error}");
            Failure::failed(message, "set TMPDIR to another directory")
        };
        let folder = tempfile::tempdir().map_err(failed)?;
        let root = folder.path().join("store");
        let door = StoreAccess::open_to_write(&root, "default", StoreWait::NONE)?;
        let run = match tape {
            AnyTape::Native(tape) => door.import_tape(&tape, None, false)?.name,
            AnyTape::Tracefork(tape) => {
                let failed = |why| Failure::failed(why, "please report it");
                let recording = TraceforkRecording::from_tape(&tape).map_err(failed)?;
                door.import_tracefork(recording, "tape", false)?.name
            }
        };
        door.close()?;
        let door = StoreAccess::open_to_read(&root, "default")?;
        Ok(Self { door, run, root, _folder: folder })
    }
}
