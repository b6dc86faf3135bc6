//! Retention: pins, flags, drops, forgotten keys and blobs, and sweeps by a policy.
//!
//! An action on a run is recorded with the run's number: the name of a dropped run must not survive in the
//! store.

use annals::{
    Namespace, Severity,
    retention::RetentionPolicy,
    upkeep::{CompactOptions, ForgottenKey},
};

use super::parse::{number, run_name, syntax, word_is};
use crate::command_table::CommandHandler;
use crate::databases::TurnBatch;
use crate::forgetting::{ForgetTarget, database_number, erase, erase_run, mark_forgotten};
use crate::turn::{CommandCall, CommandRefusal, CommandResult, record_operation};
use annals_policy::rules::parse_policy;
use annals_proxy::proxy::forget_answers;
use annals_review::memory_retention::delete_expired_memories;
use annals_wire::resp::Reply;

pub(super) const HANDLERS: &[(&str, CommandHandler)] = &[
    ("run.pin", |call| {
        let (space, run, why) = (target_namespace(call, 3)?, run_name(call.word(1))?, text(call.word(2))?);
        let pin = space.pin(run, why)?;
        record_action(call, "RUN.PIN", pin.uid.0, why)?;
        Ok(Reply::OK)
    }),
    ("run.unpin", |call| {
        let (space, run) = (target_namespace(call, 2)?, run_name(call.word(1))?);
        let uid = space.run(run)?.info().uid.0;
        if !space.unpin(run)? {
            return Ok(Reply::Null);
        }
        record_action(call, "RUN.UNPIN", uid, "")?;
        Ok(Reply::OK)
    }),
    ("run.flag", flag),
    ("run.unflag", |call| {
        let (space, run) = (target_namespace(call, 2)?, run_name(call.word(1))?);
        let uid = space.run(run)?.info().uid.0;
        if !space.unflag(run)? {
            return Ok(Reply::Null);
        }
        note_change(call, call.rest(2), run)?;
        record_action(call, "RUN.UNFLAG", uid, "")?;
        Ok(Reply::OK)
    }),
    ("run.drop", drop_run),
    ("kv.forget", forget_key),
    ("blob.forget", forget_blob),
    ("store.retain", retain),
];

/// The namespace given in the options from `from` on.
fn target_namespace(call: &CommandCall<'_, '_>, from: usize) -> Result<Namespace, CommandRefusal> {
    namespace_from_words(call, call.rest(from))
}

/// The namespace given in these options.
fn namespace_from_words(call: &CommandCall<'_, '_>, words: &[Vec<u8>]) -> Result<Namespace, CommandRefusal> {
    match words {
        [] => Ok(call.work.namespace().clone()),
        [option, name] if word_is(option, "NAMESPACE") => {
            let name = text(name)?;
            if name == call.tenant.name {
                return Ok(call.work.namespace().clone());
            }
            if !call.session.local {
                return Err("NOPERM another namespace needs a connection by a Unix socket".into());
            }
            // A lookup, so that no namespace is created for an unknown name.
            let store = &call.daemon.store;
            if !store.namespaces()?.iter().any(|known| known == name) {
                return Err(CommandRefusal(format!("NOTFOUND there is no namespace {name:?}")));
            }
            Ok(store.namespace(name)?)
        }
        _ => Err(syntax()),
    }
}

fn flag(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (mut severity, mut rest) = (Severity::Flagged, call.rest(3));
    if let [option, value, left @ ..] = rest
        && word_is(option, "SEVERITY")
    {
        let known = std::str::from_utf8(value).ok().and_then(|text| text.to_lowercase().parse().ok());
        (severity, rest) = (known.ok_or("ERR a flag's severity is flagged or escalated")?, left);
    }
    let (space, run, why) = (namespace_from_words(call, rest)?, run_name(call.word(1))?, text(call.word(2))?);
    let flag = space.flag(run, severity, why)?;
    note_change(call, rest, run)?;
    record_action(call, "RUN.FLAG", flag.uid.0, why)?;
    Ok(Reply::OK)
}

fn drop_run(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let rest = call.rest(3);
    let compacts = rest.last().is_some_and(|word| word_is(word, "COMPACT"));
    let rest = rest.get(..rest.len() - usize::from(compacts)).unwrap_or_default();
    let (space, run, why) = (namespace_from_words(call, rest)?, run_name(call.word(1))?, text(call.word(2))?);
    let store = call.daemon.store.clone();
    let _reserve = store.use_reserve()?;
    let forgotten = match compacts {
        true => space.forget_to_erase(run, why)?,
        false => space.forget(run, why)?,
    };
    forget_answers(&space, run)?;
    note_change(call, rest, run)?;
    record_action(call, "RUN.DROP", forgotten.run.uid.0, why)?;
    if !compacts {
        return Ok(Reply::OK);
    }
    Ok(Reply::text(erase_run(&space, &forgotten, CompactOptions::default())?))
}

fn forget_key(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (key, why) = (call.word(1).to_vec(), text(call.word(2))?.to_owned());
    let (mut keyspace, mut rest) = (format!("db{}", call.database()), call.rest(3));
    if let [option, name, left @ ..] = rest
        && word_is(option, "KEYSPACE")
    {
        (keyspace, rest) = (text(name)?.to_owned(), left);
    }
    let space = namespace_from_words(call, rest)?;
    let store = call.daemon.store.clone();
    let _reserve = store.use_reserve()?;
    let target = ForgetTarget::Key { keyspace: &keyspace, key: &key };
    let gone = match database_number(&keyspace) {
        Some(number) => {
            // The cache must not keep the value: the lock is held until the key is deleted in the store.
            let tenant = call.daemon.tenant(&tenant_name(call, rest)?)?;
            let mut work = TurnBatch::new(&tenant.databases);
            if !work.forget_cached(number, &key) {
                return Err("CONFLICT the key is being written: try again".into());
            }
            mark_forgotten(&space, target, &why)?
        }
        None => mark_forgotten(&space, target, &why)?,
    };
    finish_forgetting(call, "KV.FORGET", &space, target, gone, &why)
}

/// Tells streams of events that a run has changed. `options` are checked and may give its namespace.
fn note_change(call: &CommandCall<'_, '_>, options: &[Vec<u8>], run: &str) -> Result<(), CommandRefusal> {
    call.daemon.changed_runs.add(&tenant_name(call, options)?, run);
    Ok(())
}

/// The name of the namespace that checked options give.
fn tenant_name(call: &CommandCall<'_, '_>, options: &[Vec<u8>]) -> Result<String, CommandRefusal> {
    match options {
        [_, name, ..] => text(name).map(str::to_owned),
        _ => Ok(call.tenant.name.clone()),
    }
}

fn forget_blob(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (id, why) = (text(call.word(1))?.to_owned(), text(call.word(2))?.to_owned());
    let space = namespace_from_words(call, call.rest(3))?;
    let store = call.daemon.store.clone();
    let _reserve = store.use_reserve()?;
    let target = ForgetTarget::Blob(&id);
    let gone = mark_forgotten(&space, target, &why)?;
    finish_forgetting(call, "BLOB.FORGET", &space, target, gone, &why)
}

/// Records the action and removes the bytes. The operation has the number of records, never a name or an id.
fn finish_forgetting(
    call: &mut CommandCall<'_, '_>,
    command: &str,
    space: &Namespace,
    target: ForgetTarget<'_>,
    gone: Vec<ForgottenKey>,
    why: &str,
) -> CommandResult {
    let records: u64 = gone.iter().map(|key| key.records).sum();
    record_action(call, command, records, why)?;
    Ok(Reply::text(erase(space, target, gone, CompactOptions::default())?))
}

fn record_action(
    call: &mut CommandCall<'_, '_>,
    what: &str,
    uid: u64,
    why: &str,
) -> Result<(), CommandRefusal> {
    let words = [what.to_owned(), uid.to_string(), why.to_owned()].map(String::into_bytes);
    tracing::info!(command = what, uid, "an operator's action");
    record_operation(call, &words, None)
}

fn retain(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (mut policy, mut at_ns, mut dry_run) = (RetentionPolicy::default(), None, false);
    let mut rest = call.rest(1);
    loop {
        rest = match rest {
            [] => break,
            [option, value, rest @ ..] if word_is(option, "POLICY") => {
                policy = parse_policy(text(value)?).map_err(|error| {
                    CommandRefusal(format!("INVALID the policy, {error}; nothing was dropped"))
                })?;
                rest
            }
            [option, value, rest @ ..] if word_is(option, "AT") => {
                at_ns = Some(number(value)?);
                rest
            }
            [option, rest @ ..] if word_is(option, "DRYRUN") => {
                dry_run = true;
                rest
            }
            _ => return Err(syntax()),
        };
    }
    let store = &call.daemon.store;
    // A store that is open for reading only tells what would be dropped.
    let _reserve = if dry_run { None } else { Some(store.use_reserve()?) };
    let plan = store.plan_retention(&policy, at_ns)?;
    let mut report = if dry_run { plan.report().clone() } else { store.retain(plan)? };
    report.memories = delete_expired_memories(store, &policy, report.at_ns, dry_run)?;
    let json = serde_json::to_vec(&report).map_err(|error| CommandRefusal(format!("BUG {error}")))?;
    Ok(Reply::Bulk(json))
}

fn text(word: &[u8]) -> Result<&str, CommandRefusal> {
    std::str::from_utf8(word).map_err(|_| syntax())
}
