//! Commands for keys of any type: existence, expiry, listing.

use super::parse::{
    display_word, expiry_ms, integer, no_subcommand, syntax, word_is, wrong_subcommand_arity,
};
use crate::command_table::CommandHandler;
use crate::databases::{DATABASES, KeyEntry, KeyScan};
use crate::glob;
use crate::turn::{CommandCall, CommandRefusal, CommandResult};
use annals_wire::resp::{BULK_BYTES_MAX, Reply};

/// Maximum number of keys that KEYS returns; SCAN has no such limit.
const LISTED_MAX: usize = 1 << 20;
/// Maximum number of keys that one SCAN examines.
const SCANNED_MAX: usize = 10_000;
/// Maximum bytes of keys that one SCAN returns (plus a key), and that KEYS returns.
const SCANNED_BYTES_MAX: usize = 64 << 20;
const LISTED_BYTES_MAX: usize = BULK_BYTES_MAX;

/// Maximum bytes of a value that Redis embeds in its object.
const EMBEDDED_BYTES_MAX: usize = 44;

pub(super) const HANDLERS: &[(&str, CommandHandler)] = &[
    ("del", delete),
    ("unlink", delete),
    ("exists", count),
    ("touch", count),
    ("type", |call| {
        let name = std::str::from_utf8(call.word(1)).unwrap_or_default();
        Ok(Reply::Simple(match get(call)? {
            Some(_) => "string".into(),
            None if call.work.namespace().run(name).is_ok() => "stream".into(),
            None => "none".into(),
        }))
    }),
    ("expire", |call| expire(call, 1000, true, "expire")),
    ("pexpire", |call| expire(call, 1, true, "pexpire")),
    ("expireat", |call| expire(call, 1000, false, "expireat")),
    ("pexpireat", |call| expire(call, 1, false, "pexpireat")),
    ("ttl", |call| remaining_time(call, |ms, now| ms.saturating_sub(now).saturating_add(500) / 1000)),
    ("pttl", |call| remaining_time(call, |ms, now| ms.saturating_sub(now))),
    ("expiretime", |call| remaining_time(call, |ms, _| ms.saturating_add(500) / 1000)),
    ("pexpiretime", |call| remaining_time(call, |ms, _| ms)),
    ("persist", |call| match get(call)? {
        Some(KeyEntry { value, stored, deadline: Some(_) }) => {
            let (database, words) = (call.database(), call.words);
            call.work.put(database, &words[1], KeyEntry { value, stored, deadline: None })?;
            Ok(Reply::Integer(1))
        }
        _ => Ok(Reply::Integer(0)),
    }),
    ("rename", |call| match rename(call, true)? {
        true => Ok(Reply::OK),
        false => Err("BUG a rename that replaces did nothing".into()),
    }),
    ("renamenx", |call| Ok(Reply::Integer(rename(call, false)?.into()))),
    ("copy", copy),
    ("object", object),
    ("memory", memory),
    ("randomkey", |call| {
        let Some(all) = scan_all(call)? else { return call.retry_offloaded() };
        // Each key replaces the one before it with the chance that makes all keys as likely.
        let mut chosen = None;
        for (before, key) in all.enumerate() {
            let key = key?;
            if random()? % (before as u64 + 1) == 0 {
                chosen = Some(key);
            }
        }
        Ok(chosen.map_or(Reply::Null, Reply::Bulk))
    }),
    ("keys", |call| {
        let Some(all) = scan_all(call)? else { return call.retry_offloaded() };
        let (mut found, mut bytes) = (Vec::new(), 0);
        for key in all {
            let key = key?;
            if glob::matches(&call.words[1], &key, false) {
                bytes += key.len();
                found.push(Reply::Bulk(key));
            }
            if found.len() > LISTED_MAX || bytes > LISTED_BYTES_MAX {
                let most = format!("{LISTED_MAX} keys or {LISTED_BYTES_MAX} bytes");
                return Err(CommandRefusal(format!("ERR more than {most} match: use SCAN")));
            }
        }
        Ok(Reply::Array(found))
    }),
    ("scan", scan),
    ("dbsize", |call| {
        let Some(mut all) = scan_all(call)? else { return call.retry_offloaded() };
        let count = all.try_fold(0, |count, key| key.map(|_| count + 1))?;
        Ok(Reply::count(count))
    }),
];

/// All keys of the database. `None` if the command has to be offloaded first: then it runs alone, and holds no
/// lock while it reads.
fn scan_all(call: &mut CommandCall<'_, '_>) -> Result<Option<KeyScan>, CommandRefusal> {
    let (database, in_exec) = (call.database(), call.session.in_exec);
    if !in_exec && call.session.offload.is_none() {
        return Ok(None);
    }
    let all = call.work.scan_keys(database, None);
    if !in_exec {
        call.work.release_lock();
    }
    Ok(Some(all))
}

fn get(call: &mut CommandCall<'_, '_>) -> Result<Option<KeyEntry>, CommandRefusal> {
    let (database, words) = (call.database(), call.words);
    Ok(call.work.get(database, &words[1])?)
}

fn random() -> Result<u64, CommandRefusal> {
    getrandom::u64().map_err(|error| CommandRefusal(format!("UNAVAILABLE no random number: {error}")))
}

/// Moves a key; returns whether it was moved.
fn rename(call: &mut CommandCall<'_, '_>, replaces: bool) -> Result<bool, CommandRefusal> {
    let (database, words) = (call.database(), call.words);
    let Some(entry) = get(call)? else {
        return Err(match run_exists(call, 1) {
            true => "ERR a run keeps its name: only keys of strings can be renamed".into(),
            false => "ERR no such key".into(),
        });
    };
    crate::databases::check_key(&words[2])?;
    if !replaces && call.work.get(database, &words[2])?.is_some() {
        return Ok(false);
    }
    if words[1] != words[2] {
        call.work.delete(database, &words[1])?;
        call.work.put(database, &words[2], entry)?;
    }
    Ok(true)
}

fn run_exists(call: &CommandCall<'_, '_>, at: usize) -> bool {
    std::str::from_utf8(call.word(at)).is_ok_and(|name| call.work.namespace().run(name).is_ok())
}

fn copy(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (from, words) = (call.database(), call.words);
    let (mut to, mut replaces) = (from, false);
    let mut options = call.rest(3).iter();
    while let Some(option) = options.next() {
        if word_is(option, "REPLACE") {
            replaces = true;
        } else if word_is(option, "DB") {
            let number = integer(options.next().ok_or_else(syntax)?)?;
            let number = u8::try_from(number).ok().filter(|number| *number < DATABASES);
            to = number.ok_or("ERR DB index is out of range")?;
        } else {
            return Err(syntax());
        }
    }
    if from == to && words[1] == words[2] {
        return Err("ERR source and destination objects are the same".into());
    }
    let Some(entry) = get(call)? else {
        return match run_exists(call, 1) {
            true => Err("ERR a run is not copied: RUN.FORK forks it".into()),
            false => Ok(Reply::Integer(0)),
        };
    };
    crate::databases::check_key(&words[2])?;
    if !replaces && call.work.get(to, &words[2])?.is_some() {
        return Ok(Reply::Integer(0));
    }
    call.work.put(to, &words[2], entry)?;
    Ok(Reply::Integer(1))
}

fn object(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let what = call.word(1);
    if word_is(what, "HELP") {
        let help = ["OBJECT ENCODING key", "OBJECT REFCOUNT key"];
        return Ok(Reply::Array(help.into_iter().map(Reply::text).collect()));
    }
    if ["IDLETIME", "FREQ"].iter().any(|of| word_is(what, of)) {
        return Err("ERR the daemon does not keep when or how often a key was read".into());
    }
    if !["ENCODING", "REFCOUNT"].iter().any(|of| word_is(what, of)) {
        return Err(no_subcommand("OBJECT", what));
    }
    if call.words.len() != 3 {
        return Err(wrong_subcommand_arity("object", what));
    }
    let database = call.database();
    let Some(entry) = call.work.get(database, call.word(2))? else { return Ok(Reply::Null) };
    Ok(match word_is(what, "REFCOUNT") {
        true => Reply::Integer(1),
        // The names under which Redis keeps such a value; programs compare them.
        false if integer(&entry.value).is_ok() => Reply::text("int"),
        false if entry.value.len() <= EMBEDDED_BYTES_MAX => Reply::text("embstr"),
        false => Reply::text("raw"),
    })
}

fn memory(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let what = call.word(1);
    if word_is(what, "HELP") {
        return Ok(Reply::Array(vec![Reply::text("MEMORY USAGE key [SAMPLES count]")]));
    }
    if ["DOCTOR", "STATS", "MALLOC-STATS", "PURGE"].iter().any(|of| word_is(what, of)) {
        return Err("ERR of MEMORY only USAGE is offered: INFO and /metrics describe the daemon".into());
    }
    if !word_is(what, "USAGE") {
        return Err(no_subcommand("MEMORY", what));
    }
    match call.rest(3) {
        [] => {}
        [option, count] if word_is(option, "SAMPLES") => drop(integer(count)?),
        _ => return Err(syntax()),
    }
    if call.words.len() < 3 {
        return Err(wrong_subcommand_arity("memory", what));
    }
    let (database, key) = (call.database(), call.word(2));
    let found = call.work.get(database, key)?;
    Ok(found.map_or(Reply::Null, |entry| Reply::count(key.len() + entry.value.len())))
}

fn delete(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (database, mut deleted) = (call.database(), 0);
    call.work.read_ahead(database, call.words.iter().skip(1).map(Vec::as_slice))?;
    for key in call.words.iter().skip(1) {
        deleted += i64::from(call.work.delete(database, key)?);
    }
    Ok(Reply::Integer(deleted))
}

fn count(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (database, mut there) = (call.database(), 0);
    call.work.read_ahead(database, call.words.iter().skip(1).map(Vec::as_slice))?;
    for key in call.words.iter().skip(1) {
        there += i64::from(call.work.get(database, key)?.is_some());
    }
    Ok(Reply::Integer(there))
}

/// The remaining time of a key. `told` computes it from the deadline and the current time, both in
/// milliseconds since 1970.
fn remaining_time(call: &mut CommandCall<'_, '_>, told: fn(u64, u64) -> u64) -> CommandResult {
    let now = call.work.now_ms();
    Ok(Reply::Integer(match get(call)? {
        None => -2,
        Some(KeyEntry { deadline: None, .. }) => -1,
        Some(KeyEntry { deadline: Some(deadline), .. }) => {
            i64::try_from(told(deadline, now)).unwrap_or(i64::MAX)
        }
    }))
}

fn expire(call: &mut CommandCall<'_, '_>, unit: i64, from_now: bool, name: &str) -> CommandResult {
    let (database, words) = (call.database(), call.words);
    let amount = integer(call.word(2))?;
    let (mut new, mut old, mut later, mut sooner) = (false, false, false, false);
    for option in call.rest(3) {
        match option {
            option if word_is(option, "NX") => new = true,
            option if word_is(option, "XX") => old = true,
            option if word_is(option, "GT") => later = true,
            option if word_is(option, "LT") => sooner = true,
            option => return Err(CommandRefusal(format!("ERR Unsupported option {}", display_word(option)))),
        }
    }
    if new && (old || later || sooner) {
        return Err("ERR NX and XX, GT or LT options at the same time are not compatible".into());
    }
    if later && sooner {
        return Err("ERR GT and LT options at the same time are not compatible".into());
    }
    let now = call.work.now_ms();
    let ends = expiry_ms(amount, unit, if from_now { now } else { 0 }, name)?;
    let Some(entry) = get(call)? else { return Ok(Reply::Integer(0)) };
    // A key without a deadline expires later than any other.
    let had = entry.deadline.map_or(i128::MAX, i128::from);
    let goes = !(new && entry.deadline.is_some()
        || old && entry.deadline.is_none()
        || later && i128::from(ends) <= had
        || sooner && i128::from(ends) >= had);
    if !goes {
        return Ok(Reply::Integer(0));
    }
    match u64::try_from(ends) {
        Ok(ends) if ends > now => {
            call.work.put(database, &words[1], KeyEntry { deadline: Some(ends), ..entry })?;
        }
        _ => {
            call.work.delete(database, &words[1])?;
        }
    }
    Ok(Reply::Integer(1))
}

fn scan(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let text = std::str::from_utf8(call.word(1)).ok().and_then(|text| text.parse::<u64>().ok());
    let cursor = text.ok_or("ERR invalid cursor")?;
    let (mut pattern, mut count, mut strings) = (None, 10, true);
    let mut options = call.rest(2).iter();
    while let Some(option) = options.next() {
        let value = options.next().ok_or_else(syntax)?;
        if word_is(option, "MATCH") {
            pattern = Some(value);
        } else if word_is(option, "COUNT") {
            count = integer(value)?;
            if count < 1 {
                return Err(syntax());
            }
        } else if word_is(option, "TYPE") {
            strings = word_is(value, "string");
        } else {
            return Err(syntax());
        }
    }
    let after = match cursor {
        0 => None,
        cursor => Some(
            call.daemon.cursor_position(cursor).ok_or("ERR this cursor is no longer known: begin at 0")?,
        ),
    };
    let count = usize::try_from(count).unwrap_or(usize::MAX).min(SCANNED_MAX);
    let database = call.database();
    let (mut page, mut bytes, mut is_last) = (Vec::new(), 0, false);
    let mut keys = call.work.scan_keys(database, after.as_deref());
    while page.len() < count && bytes < SCANNED_BYTES_MAX && !is_last {
        match keys.next().transpose()? {
            Some(key) => {
                bytes += key.len();
                page.push(key);
            }
            None => is_last = true,
        }
    }
    let next = page.last().filter(|_| !is_last).map_or(0, |last| call.daemon.remember_cursor(last.clone()));
    let found = page
        .into_iter()
        .filter(|key| strings && pattern.is_none_or(|pattern| glob::matches(pattern, key, false)))
        .map(Reply::Bulk);
    let found = found.collect();
    Ok(Reply::Array(vec![Reply::text(next.to_string()), Reply::Array(found)]))
}
