//! `annals retain`, `pin`, `unpin`, `flag`, `unflag` and `forget`: keep and drop runs. The process that holds the
//! store, a daemon or a recorder, does the work; else this process does.

use std::path::Path;

use annals::{
    Severity,
    retention::{RetentionPolicy, RetentionReport, parse_duration_ns},
    upkeep::CompactOptions,
};
use annals_server::{ExpiredCounts, ForgetTarget, POLICY_BYTES_MAX, parse_policy};
use serde_json::{Value, json};

use crate::args::{FlagArgs, ForgetArgs, GlobalArgs, PinArgs, RetainArgs, UnflagArgs, UnpinArgs};
use crate::failure::{CliResult, Failure, FailureCode};
use crate::input;
use crate::locate;
use crate::output::{CliOutput, bytes, count, plural, printable, time};
use crate::store_access::{AskedStore, StoreAccess, StoreWait};

/// Ends every report of `forget`.
const UNKNOWN_COPIES: &str = "annals does not know of exports, tapes and copies made by other tools";

pub(super) fn retain(global: &GlobalArgs, args: &RetainArgs, out: &mut CliOutput) -> CliResult<()> {
    let root = locate::store(global.store.as_deref());
    let (policy, text) = read_policy(args.policy.as_deref())?;
    let at = args
        .at
        .as_deref()
        .map(|text| Moment::parse(text).ok_or_else(|| invalid_time_failure(text)))
        .transpose()?;
    let at_ns;
    {
        // Options are checked before anything is dropped, here or by a daemon.
        let door = StoreAccess::open_to_read(&root, &global.namespace)?;
        at_ns = match (at, args.at.as_deref()) {
            (Some(Moment::Absolute(ns)), _) => Some(ns),
            // A relative time needs a trusted clock.
            (Some(moment), Some(text)) => {
                Some(moment.to_ns(door.now_ns()?).ok_or_else(|| invalid_time_failure(text))?)
            }
            _ => None,
        };
        let plan = door.plan_retention(&policy, at_ns)?;
        let mut planned = plan.report().clone();
        planned.memories = door.delete_expired_memories(&policy, planned.at_ns, true)?;
        if args.dry_run {
            return print_report(&planned, None, out);
        }
        if !out.json {
            print_report(&planned, None, out)?;
            out.flush()?;
        }
    }
    let at = at_ns.map(|ns| ns.to_string());
    let mut words: Vec<&[u8]> = vec![b"STORE.RETAIN"];
    if let Some(text) = &text {
        words.extend([b"POLICY".as_slice(), text.as_bytes()]);
    }
    if let Some(at) = &at {
        words.extend([b"AT".as_slice(), at.as_bytes()]);
    }
    let wait = StoreWait::from_args(global);
    let door = match StoreAccess::ask_or_open_store(&root, &global.namespace, &words, true, wait)? {
        AskedStore::Opened(door) => door,
        AskedStore::Asked(reply) => {
            let done: RetentionReport = serde_json::from_str(&reply).map_err(|error| {
                let message = format!("the process that serves the store sent an invalid report: {error}");
                Failure::failed(message, "use the same version of annals for both")
            })?;
            // A daemon deletes expired keys by itself, all the time.
            return print_done(&done, ExpiredCounts::default(), out);
        }
    };
    let plan = door.plan_retention(&policy, at_ns)?;
    let reserve = door.use_reserve()?;
    let mut done = door.retain(plan)?;
    let expired = door.delete_expired_memories(&policy, done.at_ns, false).and_then(|memories| {
        done.memories = memories;
        door.delete_expired()
    });
    drop(reserve);
    let closed = door.close();
    // The drops happened, whatever failed after them.
    print_done(&done, *expired.as_ref().unwrap_or(&ExpiredCounts::default()), out)?;
    expired.and(closed)
}

fn print_done(done: &RetentionReport, expired: ExpiredCounts, out: &mut CliOutput) -> CliResult<()> {
    if out.json { print_report(done, Some(expired), out) } else { print_summary(done, Some(expired), out) }
}

/// Reads the policy that samples runs when they end, if one is named.
pub(super) fn sampling_policy(file: Option<&Path>) -> CliResult<Option<RetentionPolicy>> {
    match file {
        Some(file) if file.as_os_str() == "default" => Ok(Some(RetentionPolicy::default())),
        Some(_) => read_policy(file).map(|(policy, _)| Some(policy)),
        None => Ok(None),
    }
}

/// Reads a policy and its text. Without a file, returns the built-in policy.
fn read_policy(file: Option<&Path>) -> CliResult<(RetentionPolicy, Option<String>)> {
    let Some(file) = file else { return Ok((RetentionPolicy::default(), None)) };
    let refused = |place: &str, what: &str| {
        let message = format!("{}{place}: {}", file.display(), printable(what));
        Failure::usage(message, "docs/retention.md describes all parts of a policy; nothing was dropped")
    };
    let text = String::from_utf8(input::read_small(file, POLICY_BYTES_MAX)?).map_err(|error| {
        refused("", &format!("not UTF-8 after byte {}", error.utf8_error().valid_up_to()))
    })?;
    let policy = parse_policy(&text)
        .map_err(|error| refused(&format!(":{}:{}", error.line, error.column), &error.what))?;
    Ok((policy, Some(text)))
}

/// A time as the user writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// A time by RFC 3339, in nanoseconds since 1970-01-01 UTC.
    Absolute(u64),
    /// Nanoseconds after now: `+8d`.
    After(u64),
    /// Nanoseconds before now: `-2h`.
    Before(u64),
}

impl Moment {
    fn parse(text: &str) -> Option<Self> {
        match text.split_at_checked(1) {
            Some(("+", rest)) => parse_duration_ns(rest).map(Self::After),
            Some(("-", rest)) => parse_duration_ns(rest).map(Self::Before),
            _ => {
                let at = text.parse::<jiff::Timestamp>().ok()?;
                u64::try_from(at.as_nanosecond()).ok().map(Self::Absolute)
            }
        }
    }

    /// Returns `None` before 1970 and after 2554.
    fn to_ns(self, now_ns: u64) -> Option<u64> {
        match self {
            Self::Absolute(ns) => Some(ns),
            Self::After(ns) => now_ns.checked_add(ns),
            Self::Before(ns) => now_ns.checked_sub(ns),
        }
    }
}

fn invalid_time_failure(text: &str) -> Failure {
    let message = format!("--at takes a time from 1970 to 2554, not {text:?}");
    Failure::usage(message, "write 2026-01-31T12:00:00Z, or +8d for eight days from now")
}

/// Prints what a sweep will drop, or, with `done`, has dropped.
fn print_report(report: &RetentionReport, done: Option<ExpiredCounts>, out: &mut CliOutput) -> CliResult<()> {
    if out.json {
        let dropped = report.dropped();
        let mut shown = json!({ "done": done.is_some(), "dropped": dropped, "report": report });
        if let Some(expired) = done {
            shown["expired"] = json!(expired);
        }
        return out.object(&shown);
    }
    out.line(format_args!("by the time {}", time(report.at_ns)))?;
    let row = |name: &str,
               keep: &str,
               kept: &annals::retention::RunTotals,
               dropped: &annals::retention::RunTotals| {
        let mut row = vec![name.to_owned(), keep.to_owned()];
        for amount in [kept, dropped] {
            row.extend([count(amount.runs), count(amount.frames), bytes(amount.bytes)]);
        }
        row
    };
    let nothing = annals::retention::RunTotals::default();
    let mut rows: Vec<_> =
        report.rules.iter().map(|rule| row(&rule.rule, &rule.keep, &rule.kept, &rule.dropped)).collect();
    rows.push(row("(no rule)", "for ever", &report.unmatched, &nothing));
    rows.push(row("(pinned)", "for ever", &report.pinned, &nothing));
    out.table(&["RULE", "KEEPS", ">KEPT", ">FRAMES", ">BYTES", ">DROPPED", ">FRAMES", ">BYTES"], rows)?;
    if report.open > 0 {
        out.line(format_args!("{} open, which stay", plural(report.open, "run")))?;
    }
    print_summary(report, done, out)
}

fn print_summary(
    report: &RetentionReport,
    done: Option<ExpiredCounts>,
    out: &mut CliOutput,
) -> CliResult<()> {
    let dropped = report.dropped();
    let mut what = format!(
        "{} with {} and {}",
        plural(dropped.runs - report.held.min(dropped.runs), "run"),
        plural(dropped.frames, "frame"),
        bytes(dropped.bytes)
    );
    if report.memories > 0 {
        what += &format!(", and {} of memory that have expired", plural_entries(report.memories));
    }
    let Some(expired) = done else { return out.line(format_args!("to be dropped: {what}")) };
    if report.held > 0 {
        let held = plural(report.held, "run");
        out.line(format_args!("{held} stayed, because they were pinned, flagged or forked meanwhile"))?;
    }
    if expired != ExpiredCounts::default() {
        let (keys, answers) = (plural(expired.keys, "key"), plural(expired.answers, "cached answer"));
        out.line(format_args!("deleted: {keys} and {answers} that have expired"))?;
    }
    match dropped.runs > report.held || report.memories > 0 {
        true => {
            out.marked_line(true, "dropped", format_args!(": {what}; `annals compact` frees their space"))
        }
        false => out.line("nothing was dropped"),
    }
}

fn plural_entries(number: u64) -> String {
    if number == 1 { "1 entry".to_owned() } else { format!("{} entries", count(number)) }
}

pub(super) fn pin(global: &GlobalArgs, args: &PinArgs, out: &mut CliOutput) -> CliResult<()> {
    let root = locate::store(global.store.as_deref());
    let run = StoreAccess::open_to_read(&root, &global.namespace)?.run(&args.run)?.id;
    let words = [b"RUN.PIN".as_slice(), run.as_bytes(), args.why.as_bytes()];
    if let AskedStore::Opened(door) = ask_in_namespace(&root, global, &words)? {
        door.pin(&run, &args.why)?;
        door.close()?;
    }
    if out.json {
        return out.object(&json!({ "pinned": run, "why": args.why }));
    }
    out.line(format_args!("pinned {}", printable(&run)))
}

pub(super) fn unpin(global: &GlobalArgs, args: &UnpinArgs, out: &mut CliOutput) -> CliResult<()> {
    let root = locate::store(global.store.as_deref());
    let row = StoreAccess::open_to_read(&root, &global.namespace)?.run(&args.run)?;
    let run = row.id;
    if row.pinned.is_none() {
        let message = format!("run `{run}` is not pinned");
        return Err(Failure::missing(message, "`annals runs` shows which runs are"));
    }
    // A holder that went away may have removed the pin before it replied.
    let words = [b"RUN.UNPIN".as_slice(), run.as_bytes()];
    if let AskedStore::Opened(door) = ask_in_namespace(&root, global, &words)? {
        door.unpin(&run)?;
        door.close()?;
    }
    if out.json {
        return out.object(&json!({ "unpinned": run }));
    }
    out.line(format_args!("unpinned {}", printable(&run)))
}

pub(super) fn flag(global: &GlobalArgs, args: &FlagArgs, out: &mut CliOutput) -> CliResult<()> {
    let root = locate::store(global.store.as_deref());
    let run = StoreAccess::open_to_read(&root, &global.namespace)?.run(&args.run)?.id;
    let severity = if args.escalate { Severity::Escalated } else { Severity::Flagged };
    let words = [
        b"RUN.FLAG".as_slice(),
        run.as_bytes(),
        args.why.as_bytes(),
        b"SEVERITY",
        severity.name().as_bytes(),
    ];
    if let AskedStore::Opened(door) = ask_in_namespace(&root, global, &words)? {
        door.flag(&run, severity, &args.why)?;
        door.close()?;
    }
    if out.json {
        return out.object(&json!({ "flagged": run, "severity": severity.name(), "why": args.why }));
    }
    out.line(format_args!("{} {}", severity.name(), printable(&run)))
}

pub(super) fn unflag(global: &GlobalArgs, args: &UnflagArgs, out: &mut CliOutput) -> CliResult<()> {
    let root = locate::store(global.store.as_deref());
    let row = StoreAccess::open_to_read(&root, &global.namespace)?.run(&args.run)?;
    let run = row.id;
    if row.flagged.is_none() {
        let message = match row.severity {
            "flagged" | "escalated" => {
                format!("run `{run}` was recorded as {}; nobody has flagged it since", row.severity)
            }
            _ => format!("run `{run}` is not flagged"),
        };
        return Err(Failure::missing(message, "`annals runs --severity flagged` lists the flagged runs"));
    }
    // A holder that went away may have removed the flag before it replied.
    let words = [b"RUN.UNFLAG".as_slice(), run.as_bytes()];
    if let AskedStore::Opened(door) = ask_in_namespace(&root, global, &words)? {
        door.unflag(&run)?;
        door.close()?;
    }
    if out.json {
        return out.object(&json!({ "unflagged": run }));
    }
    out.line(format_args!("unflagged {}", printable(&run)))
}

/// Forgets what is left of a run that was dropped: its entries in memory, forks of its blame, and records that no
/// compaction erased.
fn forget_remnants(
    global: &GlobalArgs,
    (run, why): (&str, &str),
    root: &Path,
    out: &mut CliOutput,
) -> CliResult<()> {
    let (namespace, wait) = (global.namespace.as_bytes(), StoreWait::from_args(global));
    let words: [&[u8]; 6] =
        [b"RUN.DROP", run.as_bytes(), why.as_bytes(), b"NAMESPACE", namespace, b"COMPACT"];
    let done = match StoreAccess::ask_or_open_existing(root, &global.namespace, &words, true, wait)? {
        AskedStore::Asked(done) => done,
        AskedStore::Opened(door) => {
            let done = door.forget(run, why)?;
            door.close()?;
            done
        }
    };
    let compacted: Value = serde_json::from_str(&done).unwrap_or_default();
    let forks = blame_forks(&compacted);
    if out.json {
        let done = json!({
            "forgotten": run, "frames": 0, "why": why, "blame_forks": forks, "compacted": compacted,
        });
        return out.object(&done);
    }
    let and_forks =
        if forks == 0 { String::new() } else { format!(", {} of its blame", plural(forks, "fork")) };
    let what = format!(
        ": what was left of {}{and_forks}: memories, decisions, bytes of frames (it had been dropped before)",
        printable(run)
    );
    out.marked_line(true, "forgotten", what)?;
    let pending = compacted["pending_bytes"].as_u64().unwrap_or_default();
    let (shared, backups) = (held_list(&compacted, "shared"), held_list(&compacted, "backups"));
    if !shared.is_empty() || !backups.is_empty() || pending > 0 {
        out.line("what still holds its bytes:")?;
    }
    print_sharers(&shared, out)?;
    print_pending(pending, out)?;
    for place in backups {
        out.line(format_args!("  - a backup: {place}"))?;
    }
    out.line(UNKNOWN_COPIES)
}

/// Forks of a blame that were dropped with their run.
fn blame_forks(report: &Value) -> u64 {
    report["blame_forks"].as_u64().unwrap_or_default()
}

/// A list in `held` of a report, fit to be printed.
fn held_list(report: &Value, name: &str) -> Vec<String> {
    let texts = report["held"][name].as_array().into_iter().flatten();
    texts.filter_map(Value::as_str).map(printable).collect()
}

fn print_sharers(shared: &[String], out: &mut CliOutput) -> CliResult<()> {
    shared
        .iter()
        .try_for_each(|holder| out.line(format_args!("  - living data with the same bytes: {holder}")))
}

pub(super) fn forget(global: &GlobalArgs, args: &ForgetArgs, out: &mut CliOutput) -> CliResult<()> {
    match (&args.run, &args.key, &args.blob) {
        (Some(run), ..) => forget_run(global, run, args, out),
        (None, Some(key), _) => {
            let keyspace = args.keyspace.as_deref().unwrap_or("default");
            let key = key.as_encoded_bytes();
            let words: [&[u8]; 5] =
                [b"KV.FORGET", key, args.why.as_bytes(), b"KEYSPACE", keyspace.as_bytes()];
            forget_content(global, ForgetTarget::Key { keyspace, key }, &words, &args.why, out)
        }
        (None, None, Some(id)) => {
            let words: [&[u8]; 3] = [b"BLOB.FORGET", id.as_bytes(), args.why.as_bytes()];
            forget_content(global, ForgetTarget::Blob(id), &words, &args.why, out)
        }
        (None, None, None) => {
            Err(Failure::usage("nothing to forget was named", "name a run, --key KEY or --blob HASH"))
        }
    }
}

/// Forgets a key or a blob, here or in the process that holds the store, and prints what still holds its bytes.
fn forget_content(
    global: &GlobalArgs,
    target: ForgetTarget<'_>,
    words: &[&[u8]],
    why: &str,
    out: &mut CliOutput,
) -> CliResult<()> {
    let root = locate::store(global.store.as_deref());
    let done = match ask_in_namespace(&root, global, words)? {
        AskedStore::Asked(done) => done,
        AskedStore::Opened(door) => {
            let done = door.forget_content(target, why)?;
            door.close()?;
            done
        }
    };
    let done: Value = serde_json::from_str(&done).map_err(|error| {
        let message = format!("the process that serves the store sent an invalid report: {error}");
        Failure::failed(message, "use the same version of annals for both")
    })?;
    if out.json {
        return out.object(&done);
    }
    let number = |name: &str| done[name].as_u64().unwrap_or_default();
    let what = done["forgotten"].as_str().unwrap_or_default();
    let records = plural(number("records"), "record");
    out.marked_line(true, "forgotten", format_args!(": a {what} with {records}"))?;
    let (shared, backups, pending) =
        (held_list(&done, "shared"), held_list(&done, "backups"), number("pending_bytes"));
    if !shared.is_empty() || !backups.is_empty() || pending > 0 {
        out.line("what still holds its bytes:")?;
    }
    print_sharers(&shared, out)?;
    print_pending(pending, out)?;
    for place in backups {
        out.line(format_args!("  - a backup: {place}"))?;
    }
    out.line(UNKNOWN_COPIES)
}

fn print_pending(pending: u64, out: &mut CliOutput) -> CliResult<()> {
    match pending {
        0 => Ok(()),
        pending => out.line(format_args!(
            "  - {} of old log files, until the processes that read them end or refresh their view",
            bytes(pending)
        )),
    }
}

fn forget_run(global: &GlobalArgs, named: &str, args: &ForgetArgs, out: &mut CliOutput) -> CliResult<()> {
    let root = locate::store(global.store.as_deref());
    let reading = StoreAccess::open_to_read(&root, &global.namespace)?;
    let reader = match reading.reader(named) {
        Err(Failure::Message { code: FailureCode::NoSuchThing, .. }) if reading.has_remnants(named)? => {
            drop(reading);
            return forget_remnants(global, (named, &args.why), &root, out);
        }
        reader => reader?,
    };
    let (run, uid) = (reader.info().name.clone(), reader.info().uid);
    if run != named {
        let message = format!("{named:?} is not the whole name of a run: {run:?} is");
        return Err(Failure::missing(message, "nothing was forgotten; write the whole name"));
    }
    // An open reader would keep the old files.
    drop((reader, reading));
    let (namespace, wait) = (global.namespace.as_bytes(), StoreWait::from_args(global));
    let words: [&[u8]; 6] =
        [b"RUN.DROP", run.as_bytes(), args.why.as_bytes(), b"NAMESPACE", namespace, b"COMPACT"];
    let asked = StoreAccess::ask_or_open_existing(&root, &global.namespace, &words, true, wait);
    let compacted = match asked {
        Ok(AskedStore::Asked(done)) => done,
        Ok(AskedStore::Opened(door)) => {
            // An earlier holder may have dropped it, and gone away before it replied. Which keys belonged to the run is
            // then unknown, so every file with dead data is rewritten.
            let done = match door.still_held(uid) {
                Err(_) => door.forget(&run, &args.why)?,
                Ok(_) => {
                    let options =
                        CompactOptions { must_go: vec![uid], all_dead: true, ..CompactOptions::default() };
                    door.compact(&options)?.to_json()
                }
            };
            door.close()?;
            done
        }
        // The same; what the next holder has not compacted is listed below.
        Err(Failure::Message { code: FailureCode::NoSuchThing, .. })
            if StoreAccess::open_to_read(&root, &global.namespace)?.still_held(uid).is_ok() =>
        {
            String::new()
        }
        Err(failure) => return Err(failure),
    };
    let compacted: Value = serde_json::from_str(&compacted).unwrap_or_default();
    let pending = compacted["pending_bytes"].as_u64().unwrap_or_default();
    let (dropped, held) = StoreAccess::open_to_read(&root, &global.namespace)?.still_held(uid)?;
    if out.json {
        return out.object(&json!({
            "forgotten": run,
            "uid": uid.0,
            "frames": dropped.frames,
            "dropped_ns": dropped.dropped_ns,
            "why": dropped.why,
            "blame_forks": blame_forks(&compacted),
            "shared_by_forks": held.shared,
            "segments": held.segments,
            "vectors": held.vectors,
            "compacted": compacted,
            "backups": held.backups,
        }));
    }
    let frames = plural(u64::from(dropped.own_frames()), "frame");
    let what = format!(": {} (number {}, {frames} of its own)", printable(&run), uid.0);
    out.marked_line(true, "forgotten", what)?;
    if blame_forks(&compacted) > 0 {
        out.line(format_args!("{} of its blame went with it", plural(blame_forks(&compacted), "fork")))?;
    }
    let shared = held_list(&compacted, "shared");
    if held.shared > 0 {
        let frames = plural(u64::from(held.shared), "frame");
        out.line(format_args!("forks share {frames} of it: forget the forks, too"))?;
    }
    let files = held.segments.len() + held.vectors.len();
    if files > 0 || !held.backups.is_empty() || pending > 0 || !shared.is_empty() {
        out.line("what still holds its bytes:")?;
    }
    print_sharers(&shared, out)?;
    if !held.segments.is_empty() {
        let files = held.segments.join(", ");
        out.line(format_args!("  - log files with frames that forks share: {files}"))?;
    }
    if !held.vectors.is_empty() {
        out.line(format_args!("  - vector files: {}", held.vectors.join(", ")))?;
    }
    print_pending(pending, out)?;
    for place in &held.backups {
        out.line(format_args!("  - a backup: {}", printable(place)))?;
    }
    out.line(UNKNOWN_COPIES)
}

/// Runs a command for this namespace in the process that holds the store, or opens the store.
fn ask_in_namespace(root: &Path, global: &GlobalArgs, words: &[&[u8]]) -> CliResult<AskedStore> {
    let namespace = ["NAMESPACE".as_bytes(), global.namespace.as_bytes()];
    let words: Vec<&[u8]> = words.iter().copied().chain(namespace).collect();
    let wait = StoreWait::from_args(global);
    StoreAccess::ask_or_open_existing(root, &global.namespace, &words, true, wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_absolute_or_relative_to_now() {
        let (now_ns, day) = (1_767_225_600_000_000_000, 86_400_000_000_000);
        for (text, ns) in [
            ("+8d", Some(now_ns + 8 * day)),
            ("-1w", Some(now_ns - 7 * day)),
            ("+0s", Some(now_ns)),
            ("2026-01-09T00:00:00Z", Some(now_ns + 8 * day)),
            ("2026-01-09 00:00:00Z", Some(now_ns + 8 * day)),
            ("2026-01-09T01:00:00+01:00", Some(now_ns + 8 * day)),
            ("2554-07-21T23:34:33Z", Some(18_446_744_073_000_000_000)),
            ("2554-07-21T23:34:34Z", None),
            ("9999-12-31T23:59:59Z", None),
            ("1970-01-01T00:00:00Z", Some(0)),
            ("1969-12-31T23:59:59Z", None),
            ("2026-02-30T00:00:00Z", None),
            ("2026-01-09", None),
            ("1767225600", None),
            ("+500y", Some(now_ns + 500 * 365 * day)),
            ("+600y", None),
            ("+99999999999999999999y", None),
            ("-56y", Some(now_ns - 56 * 365 * day)),
            ("-100y", None),
            ("+1.5d", None),
            ("+ 8d", None),
            ("+8D", None),
            ("+8m", None),
            ("8d", None),
            ("+8", None),
            ("+", None),
            ("tomorrow", None),
            ("", None),
        ] {
            assert_eq!(Moment::parse(text).and_then(|moment| moment.to_ns(now_ns)), ns, "{text}");
        }
    }
}
