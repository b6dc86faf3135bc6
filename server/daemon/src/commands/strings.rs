//! Strings.

use std::sync::Arc;

use super::parse::{deadline, integer, is, syntax};
use crate::access::Rights;
use crate::databases::Entry;
use crate::table::Handler;
use crate::turn::{Call, Outcome, Refusal, wrong_number};
use annals_wire::resp::{BULK_BYTES_MAX, Reply};

pub(super) const HANDLERS: &[(&str, Handler)] = &[
    ("get", |call| Ok(get(call)?.map_or(Reply::Null, bulk))),
    ("set", set),
    ("setnx", |call| {
        let is_new = get(call)?.is_none();
        if is_new {
            put(call, call.value(2, None))?;
        }
        Ok(Reply::Integer(is_new.into()))
    }),
    ("setex", |call| set_for(call, 1000, "setex")),
    ("psetex", |call| set_for(call, 1, "psetex")),
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
        if value.len() + added.len() > BULK_BYTES_MAX {
            return Err("ERR string exceeds maximum allowed size (proto-max-bulk-len)".into());
        }
        value.extend_from_slice(added);
        let len = value.len();
        put(call, made(value, before.and_then(|entry| entry.deadline)))?;
        Ok(Reply::count(len))
    }),
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
        let mut values = Vec::with_capacity(words.len());
        let mut bytes = 0;
        for key in words.iter().skip(1) {
            let found = call.work.get(database, key)?;
            bytes += found.as_ref().map_or(0, |entry| entry.value.len());
            if bytes > BULK_BYTES_MAX {
                return Err(Refusal(format!("ERR a reply has at most {BULK_BYTES_MAX} bytes")));
            }
            values.push(found.map_or(Reply::Null, bulk));
        }
        Ok(Reply::Array(values))
    }),
    ("mset", |call| mset(call, "mset", true)),
    ("msetnx", |call| mset(call, "msetnx", false)),
];

fn bulk(entry: Entry) -> Reply {
    Reply::Shared(entry.value)
}

/// What the command's key holds.
fn get(call: &mut Call<'_, '_>) -> Result<Option<Entry>, Refusal> {
    let (database, words) = (call.database(), call.words);
    Ok(call.work.get(database, &words[1])?)
}

/// Sets the command's key.
fn put(call: &mut Call<'_, '_>, entry: Entry) -> Result<(), Refusal> {
    let (database, words) = (call.database(), call.words);
    Ok(call.work.put(database, &words[1], entry)?)
}

/// A value that was made of another.
fn made(value: Vec<u8>, deadline: Option<u64>) -> Entry {
    Entry { value: Arc::new(value), stored: None, deadline }
}

/// When something is to end, as an option says it: its name and its amount.
fn ending(call: &Call<'_, '_>, option: &[u8], amount: &[u8], command: &str) -> Result<i64, Refusal> {
    let amount = integer(amount)?;
    if amount <= 0 {
        return Err(Refusal(format!("ERR invalid expire time in '{command}' command")));
    }
    let unit = if is(option, "EX") || is(option, "EXAT") { 1000 } else { 1 };
    let from = if is(option, "EXAT") || is(option, "PXAT") { 0 } else { call.work.now_ms() };
    deadline(amount, unit, from, command)
}

fn is_ending(option: &[u8]) -> bool {
    ["EX", "PX", "EXAT", "PXAT"].iter().any(|known| is(option, known))
}

fn set(call: &mut Call<'_, '_>) -> Outcome {
    let (mut new, mut old, mut gives, mut keeps, mut ends) = (false, false, false, false, None);
    let mut options = call.rest(3).iter();
    while let Some(option) = options.next() {
        if is(option, "NX") && !old {
            new = true;
        } else if is(option, "XX") && !new {
            old = true;
        } else if is(option, "GET") {
            if !call.session.may(Rights::READ) {
                return Err("NOPERM SET with GET tells what was there, which takes the right read".into());
            }
            gives = true;
        } else if is(option, "KEEPTTL") && ends.is_none() {
            keeps = true;
        } else if is_ending(option) && ends.is_none() && !keeps {
            ends = Some((option, options.next().ok_or_else(syntax)?));
        } else {
            return Err(syntax());
        }
    }
    let ends = match ends {
        Some((option, amount)) => Some(ending(call, option, amount, "set")?),
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

fn set_for(call: &mut Call<'_, '_>, unit: i64, name: &str) -> Outcome {
    let amount = integer(call.word(2))?;
    if amount <= 0 {
        return Err(Refusal(format!("ERR invalid expire time in '{name}' command")));
    }
    let ends = deadline(amount, unit, call.work.now_ms(), name)?;
    put(call, call.value(3, u64::try_from(ends).ok()))?;
    Ok(Reply::OK)
}

fn getex(call: &mut Call<'_, '_>) -> Outcome {
    let ends = match call.rest(2) {
        [] => None,
        [option] if is(option, "PERSIST") => Some(None),
        [option, amount] if is_ending(option) => Some(Some(ending(call, option, amount, "getex")?)),
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
                put(call, Entry { deadline, ..entry.clone() })?;
            }
        }
        None => {}
    }
    Ok(bulk(entry))
}

fn add(call: &mut Call<'_, '_>, by: i64) -> Outcome {
    let before = get(call)?;
    let number = before.as_ref().map_or(Ok(0), |entry| integer(&entry.value))?;
    let number = number.checked_add(by).ok_or("ERR increment or decrement would overflow")?;
    put(call, made(number.to_string().into_bytes(), before.and_then(|entry| entry.deadline)))?;
    Ok(Reply::Integer(number))
}

fn mset(call: &mut Call<'_, '_>, name: &str, always: bool) -> Outcome {
    let (database, words) = (call.database(), call.words);
    let (pairs, odd) = words.get(1..).unwrap_or_default().as_chunks::<2>();
    if !odd.is_empty() {
        return Err(wrong_number(name));
    }
    // All of it or nothing: a key that cannot be set is found before any is.
    for [key, _] in pairs {
        crate::databases::check(key)?;
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
