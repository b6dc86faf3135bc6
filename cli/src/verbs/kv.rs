//! `annals get`, `put`, `del` and `scan`: keys and values as bytes.

use std::ffi::OsStr;
use std::io::Read;

use serde_json::{Map, Value, json};

use crate::args::{DelArgs, GetArgs, Global, PutArgs, ScanArgs};
use crate::door::VersionRow;
use crate::failure::{Code, Failure, Result};
use crate::out::{Out, preview, put_bytes, time};

pub(super) fn get(global: &Global, args: &GetArgs, out: &mut Out) -> Result<()> {
    let door = super::reading(global)?;
    let key = args.key.as_encoded_bytes();
    if args.history {
        return history(&door.versions(&args.keyspace.keyspace, key)?, &args.key, out);
    }
    let value = door.get(&args.keyspace.keyspace, key, args.at)?.ok_or_else(|| no_key(&args.key))?;
    if out.json {
        return out.object(&pair(key, &value));
    }
    if args.raw { out.bytes(&value) } else { out.value(&value) }
}

pub(super) fn put(global: &Global, args: &PutArgs, out: &mut Out) -> Result<()> {
    let mut piped = Vec::new();
    let value = if args.value == "-" {
        std::io::stdin().lock().read_to_end(&mut piped).map_err(|error| {
            let message = format!("cannot read standard input: {error}");
            Failure::new(Code::Failed, message, "give the value as an argument")
        })?;
        piped
    } else {
        args.value.as_encoded_bytes().to_vec()
    };
    let door = super::writing(global)?;
    let seqno = door.put(&args.keyspace.keyspace, args.key.as_encoded_bytes(), value)?;
    door.close()?;
    if out.json { out.object(&json!({ "seqno": seqno })) } else { Ok(()) }
}

pub(super) fn del(global: &Global, args: &DelArgs, out: &mut Out) -> Result<()> {
    let door = super::writing_existing(global)?;
    let was = door.del(&args.keyspace.keyspace, args.key.as_encoded_bytes())?;
    door.close()?;
    if !was {
        return Err(no_key(&args.key));
    }
    if out.json { out.object(&json!({ "deleted": true })) } else { Ok(()) }
}

pub(super) fn scan(global: &Global, args: &ScanArgs, out: &mut Out) -> Result<()> {
    let door = super::reading(global)?;
    let prefix = args.prefix.as_deref().map(OsStr::as_encoded_bytes).unwrap_or_default();
    let limit = args.limit.unwrap_or(usize::MAX);
    for found in door.scan(&args.keyspace.keyspace, prefix, args.reverse)?.take(limit) {
        let (key, value) = found?;
        if out.json {
            out.object(&pair(&key, &value))?;
        } else {
            out.line(format_args!("{}\t{}", preview(&key, 200), preview(&value, 200)))?;
        }
    }
    Ok(())
}

fn history(versions: &[VersionRow], key: &OsStr, out: &mut Out) -> Result<()> {
    if versions.is_empty() {
        return Err(no_key(key));
    }
    for version in versions {
        if out.json {
            let mut object = Map::new();
            object.insert("seqno".to_owned(), json!(version.seqno));
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

fn no_key(key: &OsStr) -> Failure {
    let message = format!("no key `{}`", preview(key.as_encoded_bytes(), 80));
    Failure::new(Code::NoSuchThing, message, "`annals scan` lists the keys of a keyspace")
}

fn pair(key: &[u8], value: &[u8]) -> Map<String, Value> {
    let mut object = Map::new();
    put_bytes(&mut object, "key", key);
    put_bytes(&mut object, "value", value);
    object
}
