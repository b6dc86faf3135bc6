//! Runs: begun, ended, read, forked, verified, tailed, replayed.
//!
//! A run is identified by its name. Any connection may add to a run that was begun here, until RUN.END.

use std::collections::BTreeMap;
use std::sync::Arc;

use annals::runs::{Flag, RunFilter, RunOrder};
use annals::{Durability, Run, RunReader, RunSpec, RunUid, Status};

use super::frames::{frame_bytes, frame_reply, redaction_fields};
use super::memory::{tenant_of_namespace, text as utf8};
use super::parse::{arguments, field, integer_reply, number, run_name, run_reader, syntax, word_is};
use crate::command_table::CommandHandler;
use crate::open_runs::DaemonRun;
use crate::replay::ConnectionReplay;
use crate::session::HeldCommand;
use crate::turn::{CommandCall, CommandRefusal, CommandResult, wrong_arity};
use annals_policy::profiles::Redactor;
use annals_policy::providers::{Cost, Prices};
use annals_proxy::{RunUsage, run_usage};
use annals_wire::resp::Reply;
use serde_json::json;

/// Maximum total length of a run's agent, model and tags, in bytes.
const TEXT_BYTES_MAX: usize = 16 << 10;
/// Default and maximum number of runs that one RUN.LIST returns.
const LISTED: usize = 100;
const LISTED_MAX: usize = 10_000;
/// Maximum number of runs that one RUN.LIST returns with their usage, for which it reads their frames' metadata.
const LISTED_WITH_USAGE_MAX: usize = 1000;
/// Maximum number of pages of the engine that one RUN.LIST reads.
const PAGES_MAX: usize = 10;
/// Default and maximum number of frames that one RUN.TAIL returns, and their maximum bytes.
const TAILED: usize = 100;
const TAILED_MAX: usize = 10_000;
const REPLY_BYTES_MAX: usize = 64 << 20;

pub(super) const HANDLERS: &[(&str, CommandHandler)] = &[
    ("run.begin", |call| {
        let spec = run_spec(call, 1)?;
        call.tenant.check_open_limit()?;
        let run = call.work.namespace().prepare_run(spec)?;
        submit_begun_run(call, run)
    }),
    ("run.end", end),
    ("run.get", |call| {
        let reader = run_reader(call, 1)?;
        let redactor = call.daemon.redactor(call.session)?;
        let mut about = run_fields(&reader, redactor.as_deref())?;
        let metadata = reader.metadata()?;
        about.push(field(
            "metadata",
            Reply::Bulk(match redactor {
                Some(redactor) => redactor.metadata(&metadata).bytes.into_owned(),
                None => metadata,
            }),
        ));
        Ok(Reply::Map(about))
    }),
    ("run.list", list),
    ("run.fork", fork),
    ("run.verify", |call| {
        let reader = run_reader(call, 1)?;
        let verified = reader.verify()?;
        let fingerprint = reader.info().fingerprint.map_or(Reply::Null, |link| Reply::text(link.to_string()));
        Ok(Reply::Map(vec![
            field("frames", integer_reply(verified.frames)),
            field("blobs", integer_reply(verified.blobs)),
            field("bytes", integer_reply(verified.bytes)),
            field("fingerprint", fingerprint),
        ]))
    }),
    ("run.tail", tail),
    ("run.replay", replay),
];

/// The options of a new run.
fn run_spec(call: &CommandCall<'_, '_>, from: usize) -> Result<RunSpec, CommandRefusal> {
    let mut spec = arguments(call, from).run_options(RunSpec::default(), &["NAME"])?;
    if spec.name.is_empty() {
        let mut bytes = [0; 8];
        let drawn = call.daemon.io.random(&mut bytes);
        drawn.map_err(|error| CommandRefusal(format!("UNAVAILABLE {error}")))?;
        spec.name = format!("run-{:016x}", u64::from_be_bytes(bytes));
    }
    let tags = spec.tags.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
    if spec.agent.len() + spec.model.len() + tags > TEXT_BYTES_MAX {
        return Err(CommandRefusal(format!(
            "ERR agent, model and tags of a run have at most {TEXT_BYTES_MAX} bytes"
        )));
    }
    Ok(spec)
}

/// Submits a prepared run and makes it open for all connections.
fn submit_begun_run(call: &mut CommandCall<'_, '_>, run: Run) -> CommandResult {
    let mut batch = run.batch()?;
    batch.durability(Durability::Disk);
    call.work.await_before_reply(batch.submit()?);
    let told = vec![field("name", Reply::text(run.name())), field("uid", integer_reply(run.uid().0))];
    call.tenant.insert_open_run(Arc::new(run), false);
    Ok(Reply::Map(told))
}

/// An open run.
///
/// # Errors
/// `NOTFOUND` if there is no run of this name, `CONFLICT` if it is not recorded here.
pub(super) fn open_run(call: &CommandCall<'_, '_>, at: usize) -> Result<Arc<DaemonRun>, CommandRefusal> {
    let name = run_name(call.word(at))?;
    if let Some(open) = call.tenant.open_run(name) {
        return Ok(open);
    }
    let status = call.work.namespace().run(name)?.info().status;
    Err(CommandRefusal(match status {
        Status::Open => format!("CONFLICT run {name} is recorded by another client"),
        status => format!("CONFLICT run {name} has ended ({status}): fork it, or record into a new run"),
    }))
}

fn end(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let status = match call.rest(2) {
        [] => Status::Ok,
        [status] => {
            let status = std::str::from_utf8(status).ok().and_then(|text| text.to_lowercase().parse().ok());
            status.ok_or("ERR a run ends as ok, failed or abandoned")?
        }
        _ => return Err(wrong_arity("run.end")),
    };
    let open = open_run(call, 1)?;
    if !open.proxied.is_settled() && call.session.offload.is_none() {
        return call.retry_offloaded();
    }
    let ticket = call.tenant.end_run(&open, status)?;
    call.work.await_before_reply(ticket);
    Ok(Reply::OK)
}

/// The properties of a run; its severity is what it counts with. A redacted reader does not get the fingerprint,
/// because guesses of the content could be checked against it.
pub(super) fn run_fields(
    run: &RunReader,
    redactor: Option<&Redactor>,
) -> Result<Vec<(Reply, Reply)>, CommandRefusal> {
    let (info, flag) = (run.info(), run.flag()?);
    let shown = |text: &str| redactor.map_or_else(|| text.to_owned(), |by| by.text(text));
    let number = |name: &str, number: u64| field(name, integer_reply(number));
    let tags = info.tags.iter().map(|(key, value)| match redactor {
        Some(redactor) => (Reply::text(key), Reply::text(redactor.text(value))),
        None => (Reply::text(key), Reply::text(value)),
    });
    let parent = info.parent.as_ref().map_or(Reply::Null, |parent| {
        Reply::Map(vec![
            field("run", parent.run.as_ref().map_or(Reply::Null, Reply::text)),
            number("uid", parent.uid.0),
            number("at", parent.at.into()),
            number("shared", parent.shared.into()),
        ])
    });
    let fingerprint = info.fingerprint.filter(|_| redactor.is_none());
    let fingerprint = fingerprint.map_or(Reply::Null, |link| Reply::text(link.to_string()));
    let mut about = vec![
        field("name", Reply::text(&info.name)),
        number("uid", info.uid.0),
        field("status", Reply::text(info.status.name())),
        field("severity", Reply::text(Flag::raise(flag.as_ref(), info.severity).name())),
        field("agent", Reply::text(&info.agent)),
        field("model", Reply::text(&info.model)),
        field("tags", Reply::Map(tags.collect())),
        field("parent", parent),
        number("started_ns", info.started_ns),
        field("ended_ns", info.ended_ns.map_or(Reply::Null, integer_reply)),
        number("frames", info.frames.into()),
        number("bytes", info.raw_bytes),
        field("fingerprint", fingerprint),
    ];
    about.extend(flag.map(|flag| field("flagged", Reply::text(shown(&flag.why)))));
    about.extend(redactor.into_iter().flat_map(redaction_fields));
    Ok(about)
}

fn list(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (mut filter, mut order, mut count, mut after) =
        (RunFilter::default(), RunOrder::OldestFirst, LISTED, None);
    let redactor = call.daemon.redactor(call.session)?;
    let mut prices = None;
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let mut options = call.rest(1).iter();
    while let Some(option) = options.next() {
        let value = options.next().ok_or_else(syntax)?;
        if word_is(option, "STATUS") {
            let known = std::str::from_utf8(value).ok().and_then(|text| text.to_lowercase().parse().ok());
            filter.statuses = vec![known.ok_or("ERR a run's status is open, ok, failed or abandoned")?];
        } else if word_is(option, "SEVERITY") {
            let known = std::str::from_utf8(value).ok().and_then(|text| text.to_lowercase().parse().ok());
            let wrong = "ERR a run's severity is debug, normal, flagged or escalated";
            filter.severity = Some(known.ok_or(wrong)?);
        } else if word_is(option, "AGENT") {
            filter.agent = Some(text(value));
        } else if word_is(option, "MODEL") {
            filter.model = Some(text(value));
        } else if word_is(option, "TAG") {
            // Guesses of a removed value could be checked with it.
            if redactor.is_some() {
                return Err("ERR a reader of redacted runs cannot list them by TAG".into());
            }
            let value = text(value);
            let (key, value) = value.split_once('=').ok_or("ERR a tag is written key=value")?;
            filter.tags.push((key.to_owned(), value.to_owned()));
        } else if word_is(option, "SINCE") {
            filter.since_ns = Some(number::<u64>(value)?);
        } else if word_is(option, "UNTIL") {
            filter.until_ns = Some(number::<u64>(value)?);
        } else if word_is(option, "ORDER") {
            order = match value {
                value if word_is(value, "OLDEST") => RunOrder::OldestFirst,
                value if word_is(value, "NEWEST") => RunOrder::NewestFirst,
                _ => return Err("ERR the order is oldest or newest".into()),
            };
        } else if word_is(option, "COUNT") {
            count = number::<usize>(value)?.clamp(1, LISTED_MAX);
        } else if word_is(option, "FROM") {
            after = Some(number::<u64>(value)?).filter(|uid| *uid > 0).map(RunUid);
        } else if word_is(option, "WITH") {
            if !word_is(value, "USAGE") {
                return Err("ERR a list of runs comes with usage, or without".into());
            }
            prices = Some(Prices::built_in());
        } else {
            return Err(syntax());
        }
    }
    let mut pins = BTreeMap::new();
    if prices.is_some() {
        count = count.min(LISTED_WITH_USAGE_MAX);
        pins.extend(call.work.namespace().pins()?.into_iter().map(|pin| (pin.uid, pin.why)));
    }
    let (mut found, mut bytes) = (Vec::new(), 0);
    'pages: for _ in 0..PAGES_MAX {
        let page = call.work.namespace().page_runs(&filter, order, after, count - found.len())?;
        after = page.next;
        let mut runs = page.runs.iter().peekable();
        while let Some(run) = runs.next() {
            let info = run.info();
            bytes += info.tags.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
            let mut about = run_fields(run, redactor.as_deref())?;
            if let Some(prices) = &prices {
                about.push(field("usage", usage_reply(&run_usage(run, prices))));
                if let Some(why) = pins.get(&info.uid) {
                    let why = redactor.as_ref().map_or_else(|| why.clone(), |redactor| redactor.text(why));
                    about.push(field("pinned", Reply::text(why)));
                }
            }
            found.push(Reply::Map(about));
            if bytes >= REPLY_BYTES_MAX {
                if runs.peek().is_some() {
                    after = Some(info.uid);
                }
                break 'pages;
            }
        }
        if found.len() >= count || after.is_none() {
            break;
        }
    }
    let cursor = after.map_or(0, |uid| uid.0);
    Ok(Reply::Array(vec![Reply::text(cursor.to_string()), Reply::Array(found)]))
}

/// Models, tokens and cost of a run. JSON, because RESP2 has no real numbers.
fn usage_reply(used: &RunUsage) -> Reply {
    let Cost { dollars, priced, unpriced } = used.cost;
    let dollars = (priced > 0).then_some(dollars);
    Reply::Json(
        json!({
            "models": used.models, "input": used.input, "output": used.output, "dollars": dollars,
            "unpriced": unpriced, "unreadable": used.unreadable,
        })
        .to_string(),
    )
}

fn fork(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let of = std::str::from_utf8(call.word(1)).ok().and_then(|text| text.rsplit_once('@'));
    let (run, at) = of.ok_or("ERR a fork point is written run@seq")?;
    let at = number::<u32>(at.as_bytes())?;
    let mut next = 2;
    let edits = word_is(call.word(next), "EDIT");
    next += usize::from(edits);
    let ends = word_is(call.word(next), "END");
    next += usize::from(ends);
    let mut namespace = None;
    if ends && word_is(call.word(next), "NAMESPACE") {
        namespace = Some(utf8(call.word(next + 1))?.to_owned());
        next += 2;
    }
    let spec = run_spec(call, next)?;
    let run = run_name(run.as_bytes())?;
    if ends {
        let tenant = tenant_of_namespace(call, namespace.as_deref())?;
        let fork = tenant.space.prepare_fork(run, at, edits, spec)?;
        let mut batch = fork.batch()?;
        batch.durability(Durability::Disk);
        batch.end(Status::Ok)?;
        call.work.await_before_reply(batch.submit()?);
        return Ok(Reply::Map(vec![
            field("name", Reply::text(fork.name())),
            field("uid", integer_reply(fork.uid().0)),
        ]));
    }
    call.tenant.check_open_limit()?;
    let fork = call.work.namespace().prepare_fork(run, at, edits, spec)?;
    submit_begun_run(call, fork)
}

fn tail(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (mut from, mut count, mut block) = (1, TAILED, None);
    let mut options = call.rest(2).iter();
    while let Some(option) = options.next() {
        let value = options.next().ok_or_else(syntax)?;
        if word_is(option, "FROM") {
            from = number::<u32>(value)?.max(1);
        } else if word_is(option, "COUNT") {
            count = number::<usize>(value)?.clamp(1, TAILED_MAX);
        } else if word_is(option, "BLOCK") {
            let wrong = |_| CommandRefusal("ERR timeout is not an integer or out of range".to_owned());
            block = Some(number::<u64>(value).map_err(wrong)?);
        } else {
            return Err(syntax());
        }
    }
    let redactor = call.daemon.redactor(call.session)?;
    let reader = run_reader(call, 1)?;
    let info = reader.info();
    let (mut found, mut bytes) = (Vec::new(), 0);
    for seq in (from..=info.frames).take(count) {
        let frame = reader.frame(seq)?;
        // The frame's answer is still coming: readers get the frame and its successors once it has ended.
        if frame.incomplete && info.status == Status::Open {
            break;
        }
        bytes += frame_bytes(&frame);
        if bytes > REPLY_BYTES_MAX && !found.is_empty() {
            break;
        }
        found.push(frame_reply(frame, redactor.as_deref()));
    }
    if !found.is_empty() || info.status != Status::Open {
        return Ok(Reply::Array(found));
    }
    if let Some(ms) = block {
        let until = call.session.until.or((ms > 0).then(|| call.work.now_ms().saturating_add(ms)));
        if until.is_none_or(|until| call.work.now_ms() < until) {
            let (words, apart) = (call.words.to_vec(), call.session.offload);
            call.session.held_command = Some(HeldCommand { words, until, waits: true, offload: apart });
        }
    }
    Ok(Reply::NullArray)
}

/// The replay of this run for this connection; it replaces a replay of another run.
pub(super) fn connection_replay<'a>(
    call: &'a mut CommandCall<'_, '_>,
    name: &str,
    again: bool,
) -> Result<&'a mut ConnectionReplay, CommandRefusal> {
    if again || call.session.replay.as_ref().is_none_or(|replay| replay.name != name) {
        // If this fails, the previous replay stays.
        let replay = ConnectionReplay::open(name, call.work.namespace().run(name)?, &call.daemon.replayed)?;
        call.session.replay = Some(replay);
    }
    call.session.replay.as_mut().ok_or_else(|| "ERR nothing is replayed".into())
}

fn replay(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let run = run_name(call.word(1))?;
    let mut options = arguments(call, 3);
    let (mut name, mut again) = ("llm".to_owned(), false);
    while let Some(option) = options.option() {
        match option.as_str() {
            "NAME" => name = options.text("a call's name")?,
            "RESTART" => again = true,
            _ => return Err(syntax()),
        }
    }
    let request = call.word(2);
    Ok(Reply::Bulk(connection_replay(call, run, again)?.answer(&name, request)?))
}
