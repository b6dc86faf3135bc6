//! The store as a whole. Commands that read all of it are offloaded, two at a time, so they delay no other
//! connection.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use annals::upkeep::{CompactOptions, Sharing};

use super::parse::{field, integer_reply, number, syntax, word_is};
use crate::command_table::CommandHandler;
use crate::turn::{CommandCall, CommandRefusal, CommandResult};
use annals_wire::resp::Reply;

/// Maximum number of damaged places in a reply.
const TOLD_MAX: usize = 1000;

/// A command without keys.
pub(super) const HANDLERS: &[(&str, CommandHandler)] = &[
    ("store.stats", stats),
    ("store.sizes", |call| {
        let sizes = crate::sizes::sizes(&call.daemon.store)?.into_iter();
        let map = |size: crate::sizes::StoreSize| {
            let number = |name: &str, number: u64| field(name, integer_reply(number));
            Reply::Map(vec![
                number("at_ns", size.at_ns),
                number("runs", size.runs),
                number("frames", size.frames),
                number("raw_bytes", size.raw_bytes),
                number("disk_bytes", size.disk_bytes),
            ])
        };
        Ok(Reply::Array(sizes.map(map).collect()))
    }),
    ("store.verify", verify),
    ("store.checkpoint", |call| Ok(Reply::text(call.daemon.store.checkpoint()?.to_json(None)?))),
    ("store.backup", backup),
    ("store.compact", compact),
];

fn stats(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let stats = call.daemon.store.stats()?;
    let bytes = &stats.bytes;
    let number = |name: &str, number: u64| field(name, integer_reply(number));
    Ok(Reply::Map(vec![
        number("runs", stats.runs),
        number("frames", stats.frames),
        number("raw_bytes", stats.raw_bytes),
        number("dropped_runs", stats.dropped_runs),
        number("dropped_frames", stats.dropped_frames),
        number("sampled_out_runs", stats.sampled_out_runs),
        number("disk_bytes", stats.disk_bytes),
        number("segments", stats.segments),
        number("batches", stats.batches),
        number("seqno", stats.seqno.0),
        number("ledger_leaves", stats.ledger_leaves),
        field("ledger_root", stats.ledger_root.map_or(Reply::Null, |root| Reply::text(root.to_string()))),
        number("piece_bytes", bytes.pieces),
        number("recipe_bytes", bytes.recipes),
        number("frame_record_bytes", bytes.frame_records),
        number("run_record_bytes", bytes.run_records),
        number("kv_record_bytes", bytes.kv_records),
        number("chain_bytes", bytes.chains_and_ledger),
        number("table_bytes", bytes.tables),
        number("vector_bytes", bytes.vectors),
        number("log_file_bytes", bytes.log_files),
        number("manifest_bytes", bytes.manifest),
        number("other_bytes", bytes.other),
    ]))
}

fn verify(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let report = call.daemon.store.verify()?;
    let number = |name: &str, number: u64| field(name, integer_reply(number));
    let damaged = report.damaged.iter().take(TOLD_MAX).map(|problem| {
        let (namespace, run) = match &problem.run {
            Some((namespace, run)) => (Reply::text(namespace), Reply::text(run)),
            None => (Reply::Null, Reply::Null),
        };
        let what = Reply::text(&problem.what);
        Reply::Map(vec![field("namespace", namespace), field("run", run), field("what", what)])
    });
    Ok(Reply::Map(vec![
        number("runs", report.runs),
        number("frames", report.frames),
        number("blobs", report.blobs),
        number("snapshots", report.snapshots),
        number("values", report.values),
        number("bytes", report.bytes),
        number("batches", report.batches),
        field("damages", Reply::count(report.damaged.len())),
        field("damaged", Reply::Array(damaged.collect())),
        field("rebuilt_tables", Reply::count(report.rebuilt.len())),
    ]))
}

fn compact(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let mut options = CompactOptions::default();
    let mut words = call.rest(1).iter();
    while let Some(word) = words.next() {
        if word_is(word, "DRYRUN") {
            options.dry_run = true;
        } else if word_is(word, "NOW") {
            options.all_dead = true;
        } else if word_is(word, "RECOMPRESS") {
            options.recompress = Some(CompactOptions::RECOMPRESS_LEVEL);
        } else if word_is(word, "RATE") {
            let rate = words.next().ok_or_else(syntax)?;
            options.bytes_per_second_max = Some(number(rate)?);
        } else {
            return Err(syntax());
        }
    }
    Ok(Reply::text(call.daemon.store.compact(&options)?.to_json()))
}

/// What `STORE.BACKUP path NOTE` and `REMOVED` do to the store's list of backups.
type NoteChange = fn(&annals::Store, &str) -> annals::Result<()>;

fn backup(call: &mut CommandCall<'_, '_>) -> CommandResult {
    if !call.session.local {
        return Err("NOPERM STORE.BACKUP writes files and needs a connection by a Unix socket".into());
    }
    let (sharing, change): (Sharing, Option<NoteChange>) = match call.rest(2) {
        [] => (Sharing::Shared, None),
        [option] if word_is(option, "COPY") => (Sharing::Copied, None),
        [option] if word_is(option, "NOTE") => (Sharing::Shared, Some(annals::Store::note_backup)),
        [option] if word_is(option, "REMOVED") => (Sharing::Shared, Some(annals::Store::remove_backup_note)),
        _ => return Err(syntax()),
    };
    let to = Path::new(OsStr::from_bytes(call.word(1)));
    if !to.is_absolute() || call.word(1).contains(&0) {
        return Err("ERR a backup goes to an absolute path".into());
    }
    if let Some(change) = change {
        change(&call.daemon.store, &to.to_string_lossy())?;
        return Ok(Reply::OK);
    }
    match to.symlink_metadata() {
        Ok(_) => {
            return Err(CommandRefusal(format!(
                "CONFLICT {} is there already: name a new directory",
                to.display()
            )));
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(CommandRefusal(format!("UNAVAILABLE {}: {error}", to.display()))),
    }
    let report = call.daemon.store.backup(to, sharing)?;
    call.daemon.store.note_backup(&to.to_string_lossy())?;
    let number = |name: &str, number: u64| field(name, integer_reply(number));
    Ok(Reply::Map(vec![
        number("seqno", report.seqno.0),
        number("segments", report.segments),
        number("shared_files", report.shared_files),
        number("copied_files", report.copied_files),
        number("copied_bytes", report.copied_bytes),
    ]))
}
