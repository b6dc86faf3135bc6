//! `annals report`: one run, or two side by side, as an HTML file that opens without a network.

use std::path::Path;

use annals::io::{Io, RealIo};
use annals_server::profiles::Redactor;
use serde_json::json;

use super::tape::TapeStore;
use crate::args::{GlobalArgs, ReportArgs};
use crate::atomic_file::{self, FileAccess};
use crate::failure::{CliResult, Failure, FailureCode};
use crate::output::{CliOutput, bytes, plural, printable};
use crate::profiles;
use crate::store_access::StoreAccess;

/// Damages that a message names.
const DAMAGE_NAMED: usize = 5;

pub(super) fn run(global: &GlobalArgs, args: &ReportArgs, out: &mut CliOutput) -> CliResult<()> {
    let redactor = profiles::redactor(global, &args.reader)?;
    let redactor = redactor.as_ref();
    let tape = args.tape.as_deref().map(TapeStore::open).transpose()?;
    let store = if tape.is_none() { Some(super::open_to_read(global)?) } else { None };
    let (door, names) = match (&tape, &store) {
        (Some(tape), _) => (&tape.door, vec![tape.run.as_str()]),
        (None, Some(door)) => (door, args.run.iter().chain(&args.other).map(String::as_str).collect()),
        (None, None) => return Err(Failure::usage("no run is named", "name a run, or a tape with --tape")),
    };
    let written = write(door, &names, redactor, &args.output)?;
    let (path, damage) = (args.output.to_string_lossy(), &written.damage);
    if out.json {
        out.object(&json!({
            "report": path, "bytes": written.bytes, "runs": written.runs, "frames": written.frames, "damage": damage,
            "redacted": redactor.map(|by| by.profile().name()),
        }))?;
    } else {
        let (frames, len) = (plural(written.frames, "frame"), bytes(written.bytes));
        out.line(format_args!("{}: {frames}, {len}", printable(&path)))?;
    }
    profiles::print_redaction_note(redactor);
    out.flush()?;
    if damage.is_empty() {
        return Ok(());
    }
    let named: Vec<&str> = damage.iter().take(DAMAGE_NAMED).map(|what| what.as_str()).collect();
    let more = damage.len().saturating_sub(DAMAGE_NAMED);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    let message =
        format!("the report is written, but not everything could be read: {}{more}", named.join("; "));
    Err(Failure::damage(message, "`annals verify` checks the whole store, `annals repair` saves the rest"))
}

/// What a report holds.
pub(super) struct WrittenReport {
    /// The names of its runs.
    runs: Vec<String>,
    pub(super) frames: u64,
    pub(super) bytes: u64,
    /// What could not be read.
    damage: Vec<String>,
}

/// Writes a report of one run or two.
pub(super) fn write(
    door: &StoreAccess,
    names: &[&str],
    redactor: Option<&Redactor>,
    output: &Path,
) -> CliResult<WrittenReport> {
    let runs = names.iter().map(|id| door.reported_run(id, redactor)).collect::<CliResult<Vec<_>>>()?;
    let diff = match names {
        [a, b] => Some(door.reported_diff(a, b)?),
        _ => None,
    };
    let mut damage = Vec::new();
    // Damage elsewhere in the log costs a report its ledger, and no frame.
    let ledger = match door.checkpoint() {
        Ok(checkpoint) => checkpoint
            .to_json(None)
            .ok()
            .and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok()),
        Err(Failure::Message { code: FailureCode::Damage, message, .. }) => {
            damage.push(format!("no checkpoint of the ledger: {message}"));
            None
        }
        Err(failure) => return Err(failure),
    };
    let titles: Vec<_> =
        runs.iter().filter_map(|run| run.data["run"]["name"].as_str().map(str::to_owned)).collect();
    let title = format!("{} - annals report", titles.join(" and "));
    let data = json!({
        "made_ns": RealIo::new().now_ns().to_string(), "profile": redactor.map(|by| by.profile().name()),
        "annals": env!("CARGO_PKG_VERSION"), "diff": diff,
        "ledger": ledger,
        "runs": runs.iter().map(|run| &run.data).collect::<Vec<_>>(),
    });
    let html = annals_server::report(&title, &data);
    let written = atomic_file::write(output, FileAccess::Owner, |file| {
        std::io::Write::write_all(file, html.as_bytes()).map_err(crate::failure::output_failure)
    });
    written?.map_err(|error| {
        Failure::failed(
            format!("cannot write {}: {error}", output.display()),
            "name a file in a folder that exists",
        )
    })?;
    Ok(WrittenReport {
        runs: titles,
        frames: runs.iter().map(|run| run.data["run"]["frames"].as_u64().unwrap_or(0)).sum(),
        bytes: html.len() as u64,
        damage: runs.into_iter().flat_map(|run| run.damage).chain(damage).collect(),
    })
}
