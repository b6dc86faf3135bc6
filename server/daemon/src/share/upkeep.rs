//! Upkeep that other processes ask of a recorder that holds the store: compaction, retention, pins,
//! flags, drops and forgotten keys. The commands are those of the daemon.

use std::sync::Arc;

use super::member::KeyOwner;
use crate::forgetting::{ForgetTarget, database_number, erase_run, forget};
use annals::{
    ErrorKind, Namespace, Severity, Store,
    retention::RetentionPolicy,
    upkeep::{CompactOptions, CompactReport},
};
use annals_policy::rules::parse_policy;
use annals_proxy::proxy::forget_answers;
use annals_review::memory_retention::delete_expired_memories;
use annals_wire::resp::Reply;
use annals_wire::words::{CommandArguments, invalid};

/// Whether the host closes: a compaction then stops.
pub(super) type IsClosing = Arc<dyn Fn() -> bool + Send + Sync>;

/// Runs a command of upkeep; `None` if there is none of this name.
pub(super) fn answer(
    store: &Store,
    key_owner: KeyOwner,
    name: &str,
    arguments: &mut CommandArguments,
    closing: IsClosing,
) -> Option<annals::Result<Reply>> {
    Some(match name {
        "STORE.COMPACT" => compact(store, arguments, closing),
        "STORE.RETAIN" => retain(store, arguments),
        "STORE.BACKUP" => note_backup(store, arguments),
        "RUN.PIN" => pin(store, arguments),
        "RUN.UNPIN" => unpin(store, arguments),
        "RUN.FLAG" => flag(store, arguments),
        "RUN.UNFLAG" => unflag(store, arguments),
        "RUN.DROP" => drop_run(store, arguments, closing),
        "KV.FORGET" | "BLOB.FORGET" => forget_content(store, key_owner, name, arguments, closing),
        _ => return None,
    })
}

fn compact(store: &Store, arguments: &mut CommandArguments, closing: IsClosing) -> annals::Result<Reply> {
    let mut options = CompactOptions { cancel: Some(closing.clone()), ..CompactOptions::default() };
    while let Some(option) = arguments.option() {
        match option.as_str() {
            "NOW" => options.all_dead = true,
            "RECOMPRESS" => options.recompress = Some(CompactOptions::RECOMPRESS_LEVEL),
            "RATE" => options.bytes_per_second_max = Some(arguments.parsed("RATE")?),
            _ => return Err(no_option(&option)),
        }
    }
    compact_with(store, &options, &closing).map(|report| Reply::text(report.to_json()))
}

/// Compacts; says why if the host's end stops the compaction.
fn compact_with(
    store: &Store,
    options: &CompactOptions,
    closing: &IsClosing,
) -> annals::Result<CompactReport> {
    store.compact(options).map_err(|error| explain(error, closing))
}

/// Says why a compaction failed if the host's end stopped it.
fn explain(error: annals::Error, closing: &IsClosing) -> annals::Error {
    match closing() {
        true => {
            annals::Error::new(ErrorKind::Locked, "the recorder that held the store has ended: try again")
        }
        false => error,
    }
}

/// Notes a backup that another process made or removed. A recorder makes none itself.
fn note_backup(store: &Store, arguments: &mut CommandArguments) -> annals::Result<Reply> {
    let place = arguments.text("a backup's place")?;
    match arguments.option() {
        Some(option) if option == "NOTE" => store.note_backup(&place)?,
        Some(option) if option == "REMOVED" => store.remove_backup_note(&place)?,
        _ => return Err(invalid("a recorder only notes backups: give NOTE or REMOVED".to_owned())),
    }
    Ok(Reply::OK)
}

fn retain(store: &Store, arguments: &mut CommandArguments) -> annals::Result<Reply> {
    let (mut policy, mut at_ns) = (RetentionPolicy::default(), None);
    while let Some(option) = arguments.option() {
        match option.as_str() {
            "POLICY" => {
                policy = parse_policy(&arguments.text("POLICY")?)
                    .map_err(|error| invalid(format!("the policy, {error}; nothing was dropped")))?;
            }
            "AT" => at_ns = Some(arguments.parsed("AT")?),
            _ => return Err(no_option(&option)),
        }
    }
    let _reserve = store.use_reserve()?;
    let mut report = store.retain(store.plan_retention(&policy, at_ns)?)?;
    report.memories = delete_expired_memories(store, &policy, report.at_ns, false)?;
    let json = serde_json::to_vec(&report);
    json.map(Reply::Bulk).map_err(|error| annals::Error::new(ErrorKind::Bug, error.to_string()))
}

fn pin(store: &Store, arguments: &mut CommandArguments) -> annals::Result<Reply> {
    let (run, why) = (arguments.text("a run's name")?, arguments.text("a reason")?);
    let (space, _) = namespace(store, arguments)?;
    space.pin(&run, &why)?;
    Ok(Reply::OK)
}

fn unpin(store: &Store, arguments: &mut CommandArguments) -> annals::Result<Reply> {
    let run = arguments.text("a run's name")?;
    let (space, _) = namespace(store, arguments)?;
    Ok(if space.unpin(&run)? { Reply::OK } else { Reply::Null })
}

fn flag(store: &Store, arguments: &mut CommandArguments) -> annals::Result<Reply> {
    let (run, why) = (arguments.text("a run's name")?, arguments.text("a reason")?);
    let (mut name, mut severity) = (String::new(), Severity::Flagged);
    while let Some(option) = arguments.option() {
        match option.as_str() {
            "NAMESPACE" => name = arguments.text("NAMESPACE")?,
            "SEVERITY" => severity = arguments.parsed("SEVERITY")?,
            _ => return Err(no_option(&option)),
        }
    }
    existing_namespace(store, &name)?.flag(&run, severity, &why)?;
    Ok(Reply::OK)
}

fn unflag(store: &Store, arguments: &mut CommandArguments) -> annals::Result<Reply> {
    let run = arguments.text("a run's name")?;
    let (space, _) = namespace(store, arguments)?;
    Ok(if space.unflag(&run)? { Reply::OK } else { Reply::Null })
}

fn drop_run(store: &Store, arguments: &mut CommandArguments, closing: IsClosing) -> annals::Result<Reply> {
    let (run, why) = (arguments.text("a run's name")?, arguments.text("a reason")?);
    let (space, compacts) = namespace(store, arguments)?;
    let _reserve = store.use_reserve()?;
    let forgotten = match compacts {
        true => space.forget_to_erase(&run, &why)?,
        false => space.forget(&run, &why)?,
    };
    forget_answers(&space, &run)?;
    if !compacts {
        return Ok(Reply::OK);
    }
    let options = CompactOptions { cancel: Some(closing.clone()), ..CompactOptions::default() };
    let done = erase_run(&space, &forgotten, options).map_err(|error| explain(error, &closing))?;
    Ok(Reply::text(done))
}

fn forget_content(
    store: &Store,
    key_owner: KeyOwner,
    name: &str,
    arguments: &mut CommandArguments,
    closing: IsClosing,
) -> annals::Result<Reply> {
    let is_key = name == "KV.FORGET";
    let what = arguments.bytes(if is_key { "a key" } else { "a blob's id" })?;
    let why = arguments.text("a reason")?;
    let (mut namespace, mut keyspace) = (String::new(), String::new());
    while let Some(option) = arguments.option() {
        match option.as_str() {
            "NAMESPACE" => namespace = arguments.text("NAMESPACE")?,
            "KEYSPACE" if is_key => keyspace = arguments.text("KEYSPACE")?,
            _ => return Err(no_option(&option)),
        }
    }
    if key_owner == KeyOwner::Daemon && database_number(&keyspace).is_some() {
        let why = "the daemon's databases forget their own keys: send KV.FORGET without STORE.USE before it";
        return Err(invalid(why.to_owned()));
    }
    let space = existing_namespace(store, &namespace)?;
    let id = String::from_utf8_lossy(&what);
    let target = match is_key {
        true => ForgetTarget::Key { keyspace: &keyspace, key: &what },
        false => ForgetTarget::Blob(&id),
    };
    let options = CompactOptions { cancel: Some(closing.clone()), ..CompactOptions::default() };
    let done = forget(&space, target, &why, options).map_err(|error| explain(error, &closing))?;
    Ok(Reply::text(done))
}

/// The namespace that the options name, and whether they ask for a compaction.
fn namespace(store: &Store, arguments: &mut CommandArguments) -> annals::Result<(Namespace, bool)> {
    let (mut name, mut compacts) = (String::new(), false);
    while let Some(option) = arguments.option() {
        match option.as_str() {
            "NAMESPACE" => name = arguments.text("NAMESPACE")?,
            "COMPACT" => compacts = true,
            _ => return Err(no_option(&option)),
        }
    }
    Ok((existing_namespace(store, &name)?, compacts))
}

/// A lookup, so that no namespace is created for an unknown name.
fn existing_namespace(store: &Store, name: &str) -> annals::Result<Namespace> {
    if !store.namespaces()?.iter().any(|known| known == name) {
        return Err(annals::Error::new(ErrorKind::NotFound, format!("there is no namespace {name:?}")));
    }
    store.namespace(name)
}

fn no_option(option: &str) -> annals::Error {
    invalid(format!("there is no option {option:?} here"))
}
