//! Sessions' diagnostics: how a session ended, and what all sessions taught ([`annals_diagnostics`]).
//!
//! A redacted reader is refused, because a row holds unredacted error messages.

use annals_diagnostics::{Diagnostics, EdgeKey, Injection, LessonFilter, SessionDiagnostic, SessionResult};
use serde::Serialize;

use super::memory::{require_right, tenant_of_namespace, text};
use super::parse::{number, syntax, word_is};
use crate::access::Rights;
use crate::command_table::CommandHandler;
use crate::turn::{CommandCall, CommandRefusal, CommandResult};
use annals_wire::resp::Reply;

/// Default and maximum number of audit events in a reply.
const EVENTS_DEFAULT: usize = 100;
const EVENTS_MAX: usize = 1000;

pub(super) const HANDLERS: &[(&str, CommandHandler)] = &[
    ("diag.record", record),
    ("diag.inject", |call| {
        let injection = Injection::parse(text(call.word(1))?)?;
        call.tenant.diagnostics()?.log_injection(&injection)?;
        Ok(Reply::OK)
    }),
    ("diag.get", |call| {
        let row = call.tenant.diagnostics()?.session(text(call.word(1))?)?;
        Ok(row.map_or(Reply::Null, Reply::Json))
    }),
    ("diag.misleading", |call| {
        let ids = call.tenant.diagnostics()?.misleading(&filter(call)?)?;
        Ok(Reply::Array(ids.into_iter().map(Reply::text).collect()))
    }),
    ("diag.distribution", |call| json(&call.tenant.diagnostics()?.distribution(&filter(call)?)?)),
    ("diag.weight", |call| {
        let diagnostics = call.tenant.diagnostics()?;
        Ok(Reply::Double(match weighted(call)? {
            Weighted::Observation(id) => diagnostics.weight(id)?,
            Weighted::Node(id) => diagnostics.node_weight(id)?,
            Weighted::Edge(edge) => diagnostics.edge_weight(&edge)?,
        }))
    }),
    ("diag.history", |call| {
        let diagnostics = call.tenant.diagnostics()?;
        match weighted(call)? {
            Weighted::Observation(id) => json_each(&diagnostics.weight_history(id)?),
            Weighted::Node(id) => json_each(&diagnostics.node_history(id)?),
            Weighted::Edge(edge) => json_each(&diagnostics.edge_history(&edge)?),
        }
    }),
    ("diag.audit", audit),
    ("diag.retrievals", |call| json_each(&call.tenant.diagnostics()?.retrievals(text(call.word(1))?)?)),
    ("diag.weighting", weighting),
];

fn record(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (mut keep_ms, mut is_strict, mut is_dry, mut namespace) = (None, false, false, None);
    let mut words = call.rest(2).iter();
    while let Some(option) = words.next() {
        let mut next = || words.next().ok_or_else(syntax);
        match () {
            () if word_is(option, "TTL") && keep_ms.is_none() => keep_ms = Some(number::<u64>(next()?)?),
            () if word_is(option, "STRICT") && !is_strict => is_strict = true,
            () if word_is(option, "DRYRUN") && !is_dry => is_dry = true,
            () if word_is(option, "NAMESPACE") && namespace.is_none() => namespace = Some(text(next()?)?),
            () => return Err(syntax()),
        }
    }
    if is_dry {
        require_right(call, Rights::READ, "DIAG.RECORD with DRYRUN")?;
    } else {
        require_right(call, Rights::RECORD, "DIAG.RECORD")?;
    }
    let tenant = tenant_of_namespace(call, namespace)?;
    let session = text(call.word(1)).and_then(|report| Ok(SessionDiagnostic::parse(report)?));
    if is_dry {
        let category = session.and_then(|session| Ok(Diagnostics::category_of(&session)?))?;
        let nothing: [&str; 0] = [];
        return json(&serde_json::json!({
            "id": null, "aggressiveDownweightApplied": 0, "failureCategory": category, "failures": nothing,
        }));
    }
    let record = || -> Result<SessionResult, CommandRefusal> {
        match is_strict {
            true => call.check_writer()?,
            // The reply must not become an error after a failed write: it tells the failure itself.
            false => call.daemon.store.check_writer()?,
        }
        Ok(SessionResult::from(Ok(tenant.diagnostics()?.record(&session?, keep_ms)?)))
    };
    match record() {
        Err(refused) if !is_strict => {
            tracing::warn!(error = %refused.0, "a session was not recorded");
            json(&SessionResult { report: None, failures: vec![refused.0] })
        }
        done => json(&done?),
    }
}

/// The options ORG, PROJECT and SINCE.
fn filter<'a>(call: &CommandCall<'a, '_>) -> Result<LessonFilter<'a>, CommandRefusal> {
    let (mut filter, mut since) = (LessonFilter::default(), None);
    let mut words = call.rest(1).iter();
    while let Some(option) = words.next() {
        let next = words.next().ok_or_else(syntax)?;
        match () {
            () if word_is(option, "ORG") && filter.org.is_none() => filter.org = Some(text(next)?),
            () if word_is(option, "PROJECT") && filter.project.is_none() => {
                filter.project = Some(text(next)?)
            }
            () if word_is(option, "SINCE") && since.is_none() => since = Some(number(next)?),
            () => return Err(syntax()),
        }
    }
    Ok(LessonFilter { since_ms: since.unwrap_or(0), ..filter })
}

/// What a weight belongs to.
enum Weighted<'a> {
    Observation(&'a str),
    Node(&'a str),
    Edge(EdgeKey),
}

fn weighted<'a>(call: &CommandCall<'a, '_>) -> Result<Weighted<'a>, CommandRefusal> {
    match call.rest(1) {
        [kind, id] if word_is(kind, "OBSERVATION") => Ok(Weighted::Observation(text(id)?)),
        [kind, id] if word_is(kind, "NODE") => Ok(Weighted::Node(text(id)?)),
        [kind, source, target, relationship] if word_is(kind, "EDGE") => Ok(Weighted::Edge(EdgeKey {
            source_id: text(source)?.to_owned(),
            target_id: text(target)?.to_owned(),
            relationship_name: text(relationship)?.to_owned(),
        })),
        _ => Err(syntax()),
    }
}

fn audit(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (mut from, mut count) = (None, None);
    let mut words = call.rest(1).iter();
    while let Some(option) = words.next() {
        let next = words.next().ok_or_else(syntax)?;
        match () {
            () if word_is(option, "FROM") && from.is_none() => from = Some(number(next)?),
            () if word_is(option, "COUNT") && count.is_none() => count = Some(number::<usize>(next)?),
            () => return Err(syntax()),
        }
    }
    let count = count.unwrap_or(EVENTS_DEFAULT);
    if !(1..=EVENTS_MAX).contains(&count) {
        return Err(CommandRefusal(format!("ERR a reply has 1 to {EVENTS_MAX} audit events")));
    }
    json_each(&call.tenant.diagnostics()?.audit(from.unwrap_or(0), count)?)
}

fn weighting(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (mut state, mut org) = (None, None);
    let mut words = call.rest(1).iter();
    while let Some(option) = words.next() {
        match () {
            () if word_is(option, "ON") && state.is_none() => state = Some(true),
            () if word_is(option, "OFF") && state.is_none() => state = Some(false),
            () if word_is(option, "ORG") && org.is_none() => {
                org = Some(text(words.next().ok_or_else(syntax)?)?);
            }
            () => return Err(syntax()),
        }
    }
    if let Some(state) = state {
        require_right(call, Rights::RECORD, "DIAG.WEIGHTING with ON or OFF")?;
        call.check_writer()?;
        call.tenant.diagnostics()?.set_weighting(org, state)?;
        return Ok(Reply::Boolean(state));
    }
    require_right(call, Rights::READ, "DIAG.WEIGHTING without ON and OFF")?;
    Ok(Reply::Boolean(call.tenant.diagnostics()?.is_weighting_enabled(org)?))
}

fn json(value: &impl Serialize) -> CommandResult {
    serde_json::to_string(value).map(Reply::Json).map_err(|error| CommandRefusal(format!("ERR {error}")))
}

fn json_each(values: &[impl Serialize]) -> CommandResult {
    Ok(Reply::Array(values.iter().map(json).collect::<Result<_, _>>()?))
}
