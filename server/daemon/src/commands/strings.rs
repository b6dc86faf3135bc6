//! Strings.

use super::decimal::Decimal;
use super::parse::{expiry_ms, integer, syntax, word_is};
use crate::access::Rights;
use crate::command_table::CommandHandler;
use crate::databases::KeyEntry;
use crate::turn::{CommandCall, CommandRefusal, CommandResult, wrong_arity};
use annals_wire::resp::{BULK_BYTES_MAX, Reply};

pub(super) const HANDLERS: &[(&str, CommandHandler)] = &[
    ("get", |call| Ok(get(call)?.map_or(Reply::Null, bulk))),
    ("set", set),
    ("setnx", |call| {
        let is_new = get(call)?.is_none();
        if is_new {
            put(call, call.value(2, None))?;
        }
        Ok(Reply::Integer(is_new.into()))
    }),
    ("setex", |call| set_with_expiry(call, 1000, "setex")),
    ("psetex", |call| set_with_expiry(call, 1, "psetex")),
    ("getset", |call| {
        let before = get(call)?;
        put(call, call.value(2, None))?;
        Ok(before.map_or(Reply::Null, bulk))
    }),
    ("getdel", |call| {
        let before = get(call)?;
        let (database, words) = (call.database(), call.words);
        call.work.delete(database, &words[1])?;
        Ok(before.map_or(Reply::Null, bulk))
    }),
    ("getex", getex),
    ("strlen", |call| Ok(Reply::count(get(call)?.map_or(0, |entry| entry.value.len())))),
    ("append", |call| {
        let before = get(call)?;
        let added = call.word(2);
        let mut value = before.as_ref().map(|entry| entry.value.to_vec()).unwrap_or_default();
        check_value_len(value.len() + added.len())?;
        value.extend_from_slice(added);
        let len = value.len();
        put(call, new_entry(value, before.and_then(|entry| entry.deadline)))?;
        Ok(Reply::count(len))
    }),
    ("getrange", range),
    ("substr", range),
    ("setrange", set_range),
    ("incrbyfloat", add_float),
    ("incr", |call| add(call, 1)),
    ("decr", |call| add(call, -1)),
    ("incrby", |call| {
        let by = integer(call.word(2))?;
        add(call, by)
    }),
    ("decrby", |call| {
        let by = integer(call.word(2))?.checked_neg().ok_or("ERR decrement would overflow")?;
        add(call, by)
    }),
    ("mget", |call| {
        let (database, words) = (call.database(), call.words);
        call.work.read_ahead(database, words.iter().skip(1).map(Vec::as_slice))?;
        let mut values = Vec::with_capacity(words.len());
        let mut bytes = 0;
        for key in words.iter().skip(1) {
            let found = call.work.get(database, key)?;
            bytes += found.as_ref().map_or(0, |entry| entry.value.len());
            if bytes > BULK_BYTES_MAX {
                return Err(CommandRefusal(format!("ERR a reply has at most {BULK_BYTES_MAX} bytes")));
            }
            values.push(found.map_or(Reply::Null, bulk));
        }
        Ok(Reply::Array(values))
    }),
    ("mset", |call| mset(call, "mset", true)),
    ("msetnx", |call| mset(call, "msetnx", false)),
];

fn bulk(entry: KeyEntry) -> Reply {
    Reply::Shared(entry.value)
}

/// The value of the command's key.
fn get(call: &mut CommandCall<'_, '_>) -> Result<Option<KeyEntry>, CommandRefusal> {
    let (database, words) = (call.database(), call.words);
    Ok(call.work.get(database, &words[1])?)
}

/// Sets the command's key.
fn put(call: &mut CommandCall<'_, '_>, entry: KeyEntry) -> Result<(), CommandRefusal> {
    let (database, words) = (call.database(), call.words);
    Ok(call.work.put(database, &words[1], entry)?)
}

/// A computed value.
fn new_entry(value: Vec<u8>, deadline: Option<u64>) -> KeyEntry {
    KeyEntry { value: value.into(), stored: None, deadline }
}

/// The expiry time given by an option and its amount.
fn parse_expiry(
    call: &CommandCall<'_, '_>,
    option: &[u8],
    amount: &[u8],
    command: &str,
) -> Result<i64, CommandRefusal> {
    let amount = integer(amount)?;
    if amount <= 0 {
        return Err(CommandRefusal(format!("ERR invalid expire time in '{command}' command")));
    }
    let unit = if word_is(option, "EX") || word_is(option, "EXAT") { 1000 } else { 1 };
    let from = if word_is(option, "EXAT") || word_is(option, "PXAT") { 0 } else { call.work.now_ms() };
    expiry_ms(amount, unit, from, command)
}

fn is_expiry_option(option: &[u8]) -> bool {
    ["EX", "PX", "EXAT", "PXAT"].iter().any(|known| word_is(option, known))
}

fn set(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (mut new, mut old, mut gives, mut keeps, mut ends) = (false, false, false, false, None);
    let mut options = call.rest(3).iter();
    while let Some(option) = options.next() {
        if word_is(option, "NX") && !old {
            new = true;
        } else if word_is(option, "XX") && !new {
            old = true;
        } else if word_is(option, "GET") {
            if !call.session.has_rights(Rights::READ) {
                return Err("NOPERM SET with GET returns the old value, which takes the right read".into());
            }
            gives = true;
        } else if word_is(option, "KEEPTTL") && ends.is_none() {
            keeps = true;
        } else if is_expiry_option(option) && ends.is_none() && !keeps {
            ends = Some((option, options.next().ok_or_else(syntax)?));
        } else {
            return Err(syntax());
        }
    }
    let ends = match ends {
        Some((option, amount)) => Some(parse_expiry(call, option, amount, "set")?),
        None => None,
    };
    let before = if new || old || gives || keeps { get(call)? } else { None };
    let skip = new && before.is_some() || old && before.is_none();
    if !skip {
        let kept = before.as_ref().filter(|_| keeps).and_then(|entry| entry.deadline);
        match ends {
            Some(ends) if ends <= i64::try_from(call.work.now_ms()).unwrap_or(i64::MAX) => {
                let (database, words) = (call.database(), call.words);
                call.work.delete(database, &words[1])?;
            }
            ends => {
                let deadline = ends.and_then(|ends| u64::try_from(ends).ok()).or(kept);
                put(call, call.value(2, deadline))?;
            }
        }
    }
    Ok(match (gives, skip) {
        (true, _) => before.map_or(Reply::Null, bulk),
        (false, true) => Reply::Null,
        (false, false) => Reply::OK,
    })
}

fn set_with_expiry(call: &mut CommandCall<'_, '_>, unit: i64, name: &str) -> CommandResult {
    let amount = integer(call.word(2))?;
    if amount <= 0 {
        return Err(CommandRefusal(format!("ERR invalid expire time in '{name}' command")));
    }
    let ends = expiry_ms(amount, unit, call.work.now_ms(), name)?;
    put(call, call.value(3, u64::try_from(ends).ok()))?;
    Ok(Reply::OK)
}

fn getex(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let ends = match call.rest(2) {
        [] => None,
        [option] if word_is(option, "PERSIST") => Some(None),
        [option, amount] if is_expiry_option(option) => {
            Some(Some(parse_expiry(call, option, amount, "getex")?))
        }
        _ => return Err(syntax()),
    };
    let Some(entry) = get(call)? else { return Ok(Reply::Null) };
    match ends {
        Some(Some(ends)) if ends <= i64::try_from(call.work.now_ms()).unwrap_or(i64::MAX) => {
            let (database, words) = (call.database(), call.words);
            call.work.delete(database, &words[1])?;
        }
        Some(ends) => {
            let deadline = ends.and_then(|ends| u64::try_from(ends).ok());
            if deadline != entry.deadline {
                put(call, KeyEntry { deadline, ..entry.clone() })?;
            }
        }
        None => {}
    }
    Ok(bulk(entry))
}

fn add(call: &mut CommandCall<'_, '_>, by: i64) -> CommandResult {
    let before = get(call)?;
    let number = before.as_ref().map_or(Ok(0), |entry| integer(&entry.value))?;
    let number = number.checked_add(by).ok_or("ERR increment or decrement would overflow")?;
    put(call, new_entry(number.to_string().into_bytes(), before.and_then(|entry| entry.deadline)))?;
    Ok(Reply::Integer(number))
}

/// # Errors
/// Redis' own error if a value of this length is too long.
fn check_value_len(len: usize) -> Result<(), CommandRefusal> {
    match len <= BULK_BYTES_MAX {
        true => Ok(()),
        false => Err("ERR string exceeds maximum allowed size (proto-max-bulk-len)".into()),
    }
}

fn range(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (first, last) = (integer(call.word(2))?, integer(call.word(3))?);
    let value = get(call)?.map(|entry| entry.value).unwrap_or_default();
    let len = i64::try_from(value.len()).unwrap_or(i64::MAX);
    // Negative positions count from the end; those before the start are the start.
    let position = |at: i64| if at < 0 { at.saturating_add(len).max(0) } else { at };
    let is_reversed = first < 0 && last < 0 && first > last;
    let from = usize::try_from(position(first)).unwrap_or(usize::MAX);
    let end = usize::try_from(position(last)).unwrap_or(usize::MAX).saturating_add(1).min(value.len());
    let found = value.get(from..end).filter(|_| !is_reversed).unwrap_or_default();
    Ok(Reply::Bulk(found.to_vec()))
}

fn set_range(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let offset = usize::try_from(integer(call.word(2))?).map_err(|_| "ERR offset is out of range")?;
    let before = get(call)?;
    let added = call.word(3);
    let old = before.as_ref().map(|entry| &*entry.value).unwrap_or_default();
    if added.is_empty() {
        return Ok(Reply::count(old.len()));
    }
    let end = offset.saturating_add(added.len());
    check_value_len(end)?;
    let mut value = old.to_vec();
    value.resize(value.len().max(end), 0);
    value[offset..end].copy_from_slice(added);
    let len = value.len();
    put(call, new_entry(value, before.and_then(|entry| entry.deadline)))?;
    Ok(Reply::count(len))
}

fn add_float(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let by = Decimal::parse(call.word(2)).ok_or("ERR value is not a valid float")?;
    let before = get(call)?;
    let number = match &before {
        Some(entry) => Decimal::parse(&entry.value).ok_or("ERR value is not a valid float")?,
        None => Decimal::default(),
    };
    let sum = number.plus(by).ok_or("ERR increment would produce NaN or Infinity")?.to_string();
    put(call, new_entry(sum.clone().into_bytes(), before.and_then(|entry| entry.deadline)))?;
    Ok(Reply::text(sum))
}

fn mset(call: &mut CommandCall<'_, '_>, name: &str, always: bool) -> CommandResult {
    let (database, words) = (call.database(), call.words);
    let (pairs, odd) = words.get(1..).unwrap_or_default().as_chunks::<2>();
    if !odd.is_empty() {
        return Err(wrong_arity(name));
    }
    let keys = pairs.iter().map(|[key, _]| key.as_slice());
    match always {
        true => call.work.read_deadlines_ahead(database, keys)?,
        false => call.work.read_ahead(database, keys)?,
    }
    // All or nothing: every key is checked before any is set.
    for [key, _] in pairs {
        crate::databases::check_key(key)?;
        if !always && call.work.get(database, key)?.is_some() {
            return Ok(Reply::Integer(0));
        }
    }
    for (number, [key, _]) in pairs.iter().enumerate() {
        let entry = call.value(2 + 2 * number, None);
        call.work.put(database, key, entry)?;
    }
    Ok(if always { Reply::OK } else { Reply::Integer(1) })
}
