//! Upkeep that other processes ask of a recorder that holds the store: compaction, retention, pins and drops. The
//! commands are those of the daemon.

use std::sync::Arc;

use annals::{
    ErrorKind, Namespace, Store,
    retention::RetentionPolicy,
    upkeep::{CompactOptions, CompactReport},
};
use annals_policy::rules::parse_policy;
use annals_proxy::proxy::forget_answers;
use annals_wire::resp::Reply;
use annals_wire::words::{CommandArguments, invalid};

/// Whether the host closes: a compaction then stops.
pub(super) type IsClosing = Arc<dyn Fn() -> bool + Send + Sync>;

/// Runs a command of upkeep; `None` if there is none of this name.
pub(super) fn answer(
    store: &Store,
    name: &str,
    arguments: &mut CommandArguments,
    closing: IsClosing,
) -> Option<annals::Result<Reply>> {
    Some(match name {
        "STORE.COMPACT" => compact(store, arguments, closing),
        "STORE.RETAIN" => retain(store, arguments),
        "RUN.PIN" => pin(store, arguments),
        "RUN.UNPIN" => unpin(store, arguments),
        "RUN.DROP" => drop_run(store, arguments, closing),
        _ => return None,
    })
}

fn compact(store: &Store, arguments: &mut CommandArguments, closing: IsClosing) -> annals::Result<Reply> {
    let mut options = CompactOptions { cancel: Some(closing.clone()), ..CompactOptions::default() };
    while let Some(option) = arguments.option() {
        match option.as_str() {
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
    store.compact(options).map_err(|error| match closing() {
        true => {
            annals::Error::new(ErrorKind::Locked, "the recorder that held the store has ended: try again")
        }
        false => error,
    })
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
    let report = store.retain(store.plan_retention(&policy, at_ns)?)?;
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

fn drop_run(store: &Store, arguments: &mut CommandArguments, closing: IsClosing) -> annals::Result<Reply> {
    let (run, why) = (arguments.text("a run's name")?, arguments.text("a reason")?);
    let (space, compacts) = namespace(store, arguments)?;
    let dropped = space.forget(&run, &why)?;
    forget_answers(&space, &run)?;
    if !compacts {
        return Ok(Reply::OK);
    }
    let must_go = vec![dropped.uid];
    let options = CompactOptions { must_go, cancel: Some(closing.clone()), ..CompactOptions::default() };
    compact_with(store, &options, &closing).map(|report| Reply::text(report.to_json()))
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
    // A lookup, so that no namespace is created for an unknown name.
    if !store.namespaces()?.contains(&name) {
        return Err(annals::Error::new(ErrorKind::NotFound, format!("there is no namespace {name:?}")));
    }
    Ok((store.namespace(&name)?, compacts))
}

fn no_option(option: &str) -> annals::Error {
    invalid(format!("there is no option {option:?} here"))
}
