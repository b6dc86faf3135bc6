//! Scripts that clients are known to send. No Lua runs here: each known script is a function, found by the
//! script's SHA-1, and does what the script does.
//!
//! The scripts are those of `redis.lock.Lock` of redis-py, the same bytes in 3.5.3 to 8.1.0. A lock expires
//! with its key, and holds the token of its owner.

use super::parse::{display_word, integer, no_subcommand, word_is, wrong_subcommand_arity};
use crate::command_table::CommandHandler;
use crate::databases::KeyEntry;
use crate::turn::{CommandCall, CommandRefusal, CommandResult};
use annals_wire::resp::Reply;

pub(super) const HANDLERS: &[(&str, CommandHandler)] = &[
    ("evalsha", |call| {
        let sha1 = call.word(1);
        let script = find_sha1(sha1).ok_or_else(|| refused(&format!("script {}", display_word(sha1))))?;
        run(call, script)
    }),
    ("script", manage),
];

/// A known script.
#[derive(Debug)]
struct KnownScript {
    /// In hexadecimal digits of lower case, as clients send it.
    sha1: &'static str,
    /// Number of its arguments after the key.
    arguments: usize,
    run: fn(&mut CommandCall<'_, '_>, &[u8], &[Vec<u8>]) -> CommandResult,
}

const KNOWN: [KnownScript; 3] = [
    KnownScript { sha1: "c3f8721cbb97f72bc19e972846bd7aaf91901658", arguments: 1, run: release_lock },
    KnownScript { sha1: "a4e8783852e6b949f9ef3a97212805108459a890", arguments: 3, run: extend_lock },
    KnownScript { sha1: "1cac51482acf5858da00f6d685d68f886cd6b6b2", arguments: 2, run: reacquire_lock },
];

fn find_sha1(sha1: &[u8]) -> Option<&'static KnownScript> {
    KNOWN.iter().find(|known| known.sha1.as_bytes().eq_ignore_ascii_case(sha1))
}

fn refused(script: &str) -> CommandRefusal {
    CommandRefusal(format!(
        "ERR {script} is not offered: no Lua runs here, only the scripts of redis-py's lock are known, by their SHA-1"
    ))
}

/// Runs a script on the words `numkeys key argument...`.
fn run(call: &mut CommandCall<'_, '_>, script: &KnownScript) -> CommandResult {
    if integer(call.word(2))? != 1 || call.words.len() != 4 + script.arguments {
        let wanted = script.arguments;
        return Err(CommandRefusal(format!("ERR this script takes 1 key and {wanted} arguments")));
    }
    (script.run)(call, call.word(3), call.rest(4))
}

fn manage(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let what = call.word(1);
    match call.rest(2) {
        [_] if word_is(what, "LOAD") => Err(refused("this script")),
        [_, ..] if word_is(what, "EXISTS") => {
            let known = call.rest(2).iter().map(|sha1| Reply::Integer(find_sha1(sha1).is_some().into()));
            Ok(Reply::Array(known.collect()))
        }
        // Nothing was loaded; the known scripts stay.
        [] | [_] if word_is(what, "FLUSH") => Ok(Reply::OK),
        [] if word_is(what, "KILL") => Err("NOTBUSY No scripts in execution right now.".into()),
        _ if ["LOAD", "EXISTS", "FLUSH", "KILL"].iter().any(|of| word_is(what, of)) => {
            Err(wrong_subcommand_arity("script", what))
        }
        _ => Err(no_subcommand("SCRIPT", what)),
    }
}

/// The lock, if this token owns it.
fn owned_lock(
    call: &mut CommandCall<'_, '_>,
    key: &[u8],
    token: &[u8],
) -> Result<Option<KeyEntry>, CommandRefusal> {
    let database = call.database();
    Ok(call.work.get(database, key)?.filter(|entry| *entry.value == *token))
}

/// Sets when a lock ends, as PEXPIRE does: an end that is not in the future deletes it.
fn end_lock_in(call: &mut CommandCall<'_, '_>, key: &[u8], lock: KeyEntry, ms: i64) -> CommandResult {
    let (database, now) = (call.database(), call.work.now_ms());
    let ends = super::parse::expiry_ms(ms, 1, now, "pexpire")?;
    match u64::try_from(ends) {
        Ok(ends) if ends > now => call.work.put(database, key, KeyEntry { deadline: Some(ends), ..lock })?,
        _ => drop(call.work.delete(database, key)?),
    }
    Ok(Reply::Integer(1))
}

/// `release`: argument token. Deletes the lock of this token.
fn release_lock(call: &mut CommandCall<'_, '_>, key: &[u8], arguments: &[Vec<u8>]) -> CommandResult {
    if owned_lock(call, key, &arguments[0])?.is_none() {
        return Ok(Reply::Integer(0));
    }
    let database = call.database();
    call.work.delete(database, key)?;
    Ok(Reply::Integer(1))
}

/// `extend`: arguments token, milliseconds, and `0` if they are added to the remaining time. A lock that
/// never ends is not extended.
fn extend_lock(call: &mut CommandCall<'_, '_>, key: &[u8], arguments: &[Vec<u8>]) -> CommandResult {
    let ms = integer(&arguments[1])?;
    let Some(lock) = owned_lock(call, key, &arguments[0])? else { return Ok(Reply::Integer(0)) };
    let Some(deadline) = lock.deadline else { return Ok(Reply::Integer(0)) };
    let left = i64::try_from(deadline.saturating_sub(call.work.now_ms())).unwrap_or(i64::MAX);
    let ms = if arguments[2] == b"0" { ms.saturating_add(left) } else { ms };
    end_lock_in(call, key, lock, ms)
}

/// `reacquire`: arguments token, milliseconds from now.
fn reacquire_lock(call: &mut CommandCall<'_, '_>, key: &[u8], arguments: &[Vec<u8>]) -> CommandResult {
    let ms = integer(&arguments[1])?;
    match owned_lock(call, key, &arguments[0])? {
        Some(lock) => end_lock_in(call, key, lock, ms),
        None => Ok(Reply::Integer(0)),
    }
}
