//! Forgetting keys, stored blobs and runs at once, and the reports of it: for commands of the daemon, for a recorder
//! that holds a store, and for the command line when it holds the store itself.

use annals::retention::{DeadlineKind, ForgottenRun};
use annals::runs::DroppedRun;
use annals::upkeep::{BackupNote, CompactOptions, CompactReport, ForgottenKey, SharedContent};
use annals::{BlobId, Error, ErrorKind, Namespace, Result};
use serde_json::{Map, Value, json};

use crate::commands::BLOBS;
use crate::databases::{DEADLINES, deadline_key};

/// Names of holders that a refusal lists.
const NAMED_MAX: usize = 10;
/// Keyspaces with this prefix are annals' own.
const OWN_PREFIX: &str = "annals.";

/// What a person asks to forget, besides runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForgetTarget<'a> {
    /// A key with all its versions.
    Key {
        /// The keyspace.
        keyspace: &'a str,
        /// The key.
        key: &'a [u8],
    },
    /// A stored blob: the id in hexadecimal digits.
    Blob(&'a str),
}

/// Forgets a key or a blob: deletes it, and rewrites every file that holds bytes of it. Returns what was done as one
/// line of JSON. `options` bounds the compaction.
///
/// # Errors
/// `NotFound` if the store has no record of it; `Conflict`, with their names, if runs or keys have a blob's content;
/// `Invalid` for a malformed id, a keyspace of annals' own, or without a reason. Those of
/// [`Store::compact`](annals::Store::compact).
pub fn forget(
    space: &Namespace,
    target: ForgetTarget<'_>,
    why: &str,
    options: CompactOptions,
) -> Result<String> {
    let gone = mark_forgotten(space, target, why)?;
    erase(space, target, gone, options)
}

/// The first half of [`forget`]: deletes it and notes why.
pub(crate) fn mark_forgotten(
    space: &Namespace,
    target: ForgetTarget<'_>,
    why: &str,
) -> Result<Vec<ForgottenKey>> {
    match target {
        ForgetTarget::Key { keyspace, .. } if is_own_keyspace(keyspace) => Err(Error::new(
            ErrorKind::Invalid,
            format!("keyspace {keyspace:?} belongs to annals: forget a run or a blob instead"),
        )),
        ForgetTarget::Key { keyspace, key } => {
            // The deadline of a daemon's key has the key's name, too.
            let name = database_number(keyspace).map(|number| deadline_key(number, key));
            let deadline = name.iter().map(|name| (DEADLINES, name.as_slice()));
            let all: Vec<(&str, &[u8])> = std::iter::once((keyspace, key)).chain(deadline).collect();
            space.forget_keys("key", &all, name.as_deref().map(|name| (DeadlineKind::Key, name)), why)
        }
        ForgetTarget::Blob(id) => {
            let id = parse_id(id)?;
            let holders = space.content_holders(id, BLOBS, NAMED_MAX + 1)?;
            if holders.is_empty() {
                return space.forget_keys("blob", &[(BLOBS, &id.0)], None, why);
            }
            let mut names: Vec<String> =
                holders.iter().take(NAMED_MAX).map(|holder| holder.to_string()).collect();
            if holders.len() > NAMED_MAX {
                names.push("more".to_owned());
            }
            let what = format!("the content is still in use: {}; forget those first", names.join(", "));
            Err(Error::new(ErrorKind::Conflict, what))
        }
    }
}

/// The second half of [`forget`]: removes the bytes.
pub(crate) fn erase(
    space: &Namespace,
    target: ForgetTarget<'_>,
    gone: Vec<ForgottenKey>,
    options: CompactOptions,
) -> Result<String> {
    let records: u64 = gone.iter().map(|key| key.records).sum();
    let options = CompactOptions { must_go_keys: gone, ..options };
    let what = match target {
        ForgetTarget::Key { .. } => "key",
        ForgetTarget::Blob(_) => "blob",
    };
    let erased = space.store().compact_and_list_sharers(&options);
    let (report, sharers) = erased.map_err(|error| {
        let what = format!(
            "the {what} is deleted, and its bytes are still in the log until it is forgotten again: {error}"
        );
        Error::with_source(error.kind(), what, error)
    })?;
    let mut object = report_object(&report);
    object.insert("forgotten".to_owned(), json!(what));
    object.insert("records".to_owned(), json!(records));
    object.insert("held".to_owned(), held_by(space, &sharers)?);
    Ok(Value::Object(object).to_string())
}

/// What still holds bytes of a forgotten key or blob.
fn held_by(space: &Namespace, sharers: &[SharedContent]) -> Result<Value> {
    Ok(json!({ "shared": space.name_sharers(sharers)?, "backups": backups(space)? }))
}

/// Rewrites every file that holds bytes of a forgotten run, of its memories and of its decisions. Returns the report of the
/// compaction as one line of JSON, with what still holds bytes of the run. `options` bounds the compaction.
///
/// # Errors
/// Those of [`Store::compact`](annals::Store::compact).
pub fn erase_run(space: &Namespace, forgotten: &ForgottenRun, options: CompactOptions) -> Result<String> {
    let CompactOptions { must_go, must_go_keys, .. } = forgotten.compact_options(space)?;
    let options = CompactOptions { must_go, must_go_keys, ..options };
    let (report, sharers) = space.store().compact_and_list_sharers(&options)?;
    let (DroppedRun { uid, frames, .. }, held) = space.run_remnants(forgotten.run.uid)?;
    let mut object = report_object(&report);
    object.insert("uid".to_owned(), json!(uid.0));
    object.insert("frames".to_owned(), json!(frames));
    object.insert("blame_forks".to_owned(), json!(forgotten.blame_forks));
    let held = json!({
        "shared": space.name_sharers(&sharers)?,
        "shared_by_forks": held.shared,
        "segments": held.segments,
        "vectors": held.vectors,
        "backups": held.backups,
    });
    object.insert("held".to_owned(), held);
    Ok(Value::Object(object).to_string())
}

fn report_object(report: &CompactReport) -> Map<String, Value> {
    match serde_json::from_str(&report.to_json()) {
        Ok(Value::Object(object)) => object,
        _ => Map::new(),
    }
}

fn backups(space: &Namespace) -> Result<Vec<String>> {
    let noted = space.store().noted_backups()?.into_iter();
    Ok(noted.map(|BackupNote { place, .. }| place).collect())
}

/// Whether annals keeps its own data in a keyspace of this name. A value that a user puts there may stop retention,
/// pins or memory, so the verbs for keys refuse it.
#[must_use]
pub fn is_own_keyspace(name: &str) -> bool {
    name.starts_with(OWN_PREFIX)
}

/// The number of the database that a keyspace holds.
pub(crate) fn database_number(keyspace: &str) -> Option<u8> {
    let number: u8 = keyspace.strip_prefix("db")?.parse().ok()?;
    (keyspace == format!("db{number}")).then_some(number)
}

fn parse_id(id: &str) -> Result<BlobId> {
    blake3::Hash::from_hex(id).map(|hash| BlobId(hash.into())).map_err(|_| {
        Error::new(ErrorKind::Invalid, format!("a blob's id is 64 hexadecimal digits, not {id:?}"))
    })
}
