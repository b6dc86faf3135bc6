//! `annals get`, `put`, `del` and `scan`: keys and values as bytes.

use std::ffi::OsStr;
use std::io::Read;

use annals::kv::Version;
use serde_json::{Map, Value, json};

use crate::args::{DelArgs, GetArgs, GlobalArgs, PutArgs, ScanArgs};
use crate::failure::{CliResult, Failure};
use crate::output::{CliOutput, preview, printable, put_bytes, time};

/// A value from standard input with fewer bytes is written at once, a longer one as it arrives.
const HEAD_BYTES: u64 = 64 << 10;
/// Characters of a key that a scan shows.
const KEY_CHARS_MAX: usize = 200;

pub(super) fn get(global: &GlobalArgs, args: &GetArgs, out: &mut CliOutput) -> CliResult<()> {
    let door = super::open_to_read(global)?;
    let key = args.key.as_encoded_bytes();
    if args.history {
        return print_history(&door.versions(&args.keyspace.keyspace, key)?, &args.key, out);
    }
    let value = door.get(&args.keyspace.keyspace, key, args.at)?.ok_or_else(|| no_key_failure(&args.key))?;
    if out.json {
        return out.object(&key_value_json(key, &value));
    }
    if args.raw { out.bytes(&value) } else { out.value(&value) }
}

pub(super) fn put(global: &GlobalArgs, args: &PutArgs, out: &mut CliOutput) -> CliResult<()> {
    let mut stdin = (args.value == "-").then(|| std::io::stdin().lock());
    // The beginning is read before the store is opened, so that a slow program holds no lock.
    let head = match &mut stdin {
        Some(stdin) => {
            let mut head = Vec::new();
            stdin.take(HEAD_BYTES).read_to_end(&mut head).map_err(|error| {
                let message = format!("cannot read standard input: {error}");
                Failure::failed(message, "give the value as an argument")
            })?;
            head
        }
        None => args.value.as_encoded_bytes().to_vec(),
    };
    let rest = stdin.filter(|_| head.len() as u64 == HEAD_BYTES);
    let door = super::open_to_write(global)?;
    let seqno = door.put(&args.keyspace.keyspace, args.key.as_encoded_bytes(), head, rest)?;
    door.close()?;
    if out.json { out.object(&json!({ "seqno": seqno })) } else { Ok(()) }
}

pub(super) fn del(global: &GlobalArgs, args: &DelArgs, out: &mut CliOutput) -> CliResult<()> {
    let door = super::open_existing_to_write(global)?;
    let was = door.del(&args.keyspace.keyspace, args.key.as_encoded_bytes())?;
    door.close()?;
    if !was {
        return Err(no_key_failure(&args.key));
    }
    if out.json { out.object(&json!({ "deleted": true })) } else { Ok(()) }
}

pub(super) fn scan(global: &GlobalArgs, args: &ScanArgs, out: &mut CliOutput) -> CliResult<()> {
    let door = super::open_to_read(global)?;
    let prefix = args.prefix.as_deref().map(OsStr::as_encoded_bytes).unwrap_or_default();
    let limit = args.limit.unwrap_or(usize::MAX);
    for found in door.scan(&args.keyspace.keyspace, prefix, args.reverse)?.take(limit) {
        let (key, value) = found?;
        if out.json {
            out.object(&key_value_json(&key, &value))?;
        } else {
            out.line(format_args!("{}\t{}", key_text(&key), preview(&value, 200)))?;
        }
    }
    Ok(())
}

/// A key on one line. Two keys look different, also if they differ in white space.
fn key_text(key: &[u8]) -> String {
    let text = String::from_utf8_lossy(key);
    let mut shown = String::new();
    for of in text.chars().take(KEY_CHARS_MAX) {
        match of {
            ' ' => shown.push(of),
            of if of.is_whitespace() => shown.extend(of.escape_default()),
            of => shown.push(of),
        }
    }
    if text.chars().nth(KEY_CHARS_MAX).is_some() {
        shown.push('…');
    }
    printable(&shown)
}

fn print_history(versions: &[Version], key: &OsStr, out: &mut CliOutput) -> CliResult<()> {
    if versions.is_empty() {
        return Err(no_key_failure(key));
    }
    for version in versions {
        if out.json {
            let mut object = Map::new();
            object.insert("seqno".to_owned(), json!(version.seqno.0));
            object.insert("time_ns".to_owned(), json!(version.time_ns));
            match &version.value {
                Some(value) => put_bytes(&mut object, "value", value),
                None => drop(object.insert("deleted".to_owned(), json!(true))),
            }
            out.object(&object)?;
        } else {
            let value =
                version.value.as_ref().map_or_else(|| "(deleted)".to_owned(), |value| preview(value, 200));
            out.line(format_args!("{}\t{}\t{value}", version.seqno, time(version.time_ns)))?;
        }
    }
    Ok(())
}

fn no_key_failure(key: &OsStr) -> Failure {
    let message = format!("no key `{}`", preview(key.as_encoded_bytes(), 80));
    Failure::missing(message, "`annals scan` lists the keys of a keyspace")
}

fn key_value_json(key: &[u8], value: &[u8]) -> Map<String, Value> {
    let mut object = Map::new();
    put_bytes(&mut object, "key", key);
    put_bytes(&mut object, "value", value);
    object
}
