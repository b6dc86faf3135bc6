//! Agent memory: entries with the evidence of decisions, recalled by what they are about.
//!
//! The commands of the engine's memory ([`annals_memory`]). Every command has the options TENANT, PRINCIPAL
//! and CONVERSATION for the identity; a missing part is distinct from every given one. All entries are in the
//! connection's namespace. A redacted reader sees entries by its profile, and asks by a question, which is redacted
//! before the search; a search by a vector would confirm guesses.

use std::sync::Arc;

use annals_diagnostics::RecallWeights;
use annals_memory::{
    Embedder, HitWeights, Identity, MemoryEntry, MemoryHit, MemoryQuery, Projection, SnapshotOptions,
    prompt_text,
};
use annals_policy::profiles::Redactor;

use super::frames::redaction_fields;
use super::parse::{display_word, field, integer_reply, number, syntax, word_is};
use super::snapshots::vector_from_bytes;
use crate::access::Rights;
use crate::command_table::CommandHandler;
use crate::tenant::Tenant;
use crate::turn::{CommandCall, CommandRefusal, CommandResult};
use annals_review::memory_input::{check_embedder, remember_json, submit_entries};
use annals_review::memory_redaction::{redacted_entry, redacted_hits};
use annals_wire::resp::Reply;

const NO_FLOAT: &str = "ERR value is not a valid float";
/// Maximum number of entries that a search returns.
const FOUND_MAX: usize = 1000;

pub(super) const HANDLERS: &[(&str, CommandHandler)] = &[
    ("mem.put", put),
    ("mem.putif", put_if),
    ("mem.get", |call| {
        let identity = identity(call, 2)?;
        let Some(entry) = call.tenant.memory()?.get(&identity, text(call.word(1))?)? else {
            return Ok(Reply::Null);
        };
        let redactor = call.daemon.redactor(call.session)?;
        Ok(Reply::Json(shown_entry(redactor.as_deref(), entry)?.to_json()))
    }),
    ("mem.list", list),
    ("mem.search", search),
    ("mem.define", define),
    ("mem.definitions", |call| {
        let definitions = call.tenant.memory()?.definitions()?.into_iter();
        Ok(Reply::Array(definitions.map(|one| Reply::Json(one.text().to_owned())).collect()))
    }),
    ("mem.undefine", |call| {
        let there = call.tenant.memory()?.undefine(text(call.word(1))?)?;
        Ok(integer_reply(u64::from(there)))
    }),
    ("mem.delete", |call| {
        let identity = identity(call, 2)?;
        call.tenant.memory()?.delete(&identity, text(call.word(1))?)?;
        Ok(Reply::OK)
    }),
    ("mem.forget", |call| {
        let identity = identity(call, 1)?;
        Ok(integer_reply(call.tenant.memory()?.forget(&identity)?))
    }),
    ("mem.feedback", feedback),
    ("mem.seen", seen),
];

/// A command without keys.
fn put(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let count = call.rest(1).iter().take_while(|word| !is_option(word)).count();
    if count == 0 {
        return Err("ERR an entry is missing before the options".into());
    }
    let (entries, mut embeds, mut namespace) = (call.rest(1).get(..count).unwrap_or_default(), false, None);
    let mut embedder = None;
    let identity = options(call, 1 + count, &mut |option, next| {
        if word_is(option, "EMBED") && !embeds {
            embeds = true;
        } else if word_is(option, "NAMESPACE") && namespace.is_none() {
            namespace = Some(text(next()?)?);
        } else if word_is(option, "EMBEDDER") && embedder.is_none() {
            embedder = Some(text(next()?)?);
        } else {
            return Ok(false);
        }
        Ok(true)
    })?;
    let entries: Vec<&str> = entries.iter().map(|entry| text(entry)).collect::<Result<_, _>>()?;
    let tenant = tenant_of_namespace(call, namespace)?;
    let memory = tenant.memory()?;
    let ids: Vec<String> = if embeds {
        let with = tenant.embedder()?;
        check_embedder(embedder, with.id(), "a memory")?;
        match submit_entries(&memory, &identity, &entries, &*with)? {
            Some((ids, ticket)) => {
                if let Some(ticket) = ticket {
                    call.work.await_before_reply(ticket);
                }
                ids
            }
            None => {
                let each = entries.iter().map(|entry| {
                    remember_json(&memory, &identity, entry, &*with, &SnapshotOptions::default())
                        .map(|entry| entry.id)
                });
                each.collect::<annals::Result<_>>()?
            }
        }
    } else {
        if let Some(ticket) = memory.submit_put(&identity, &entries)? {
            call.work.await_before_reply(ticket);
        }
        entries.iter().map(|entry| entry_id(entry)).collect()
    };
    Ok(Reply::Array(ids.into_iter().map(Reply::text).collect()))
}

/// The tenant of a namespace; only local connections may name another than their own.
pub(super) fn tenant_of_namespace(
    call: &CommandCall<'_, '_>,
    namespace: Option<&str>,
) -> Result<Arc<Tenant>, CommandRefusal> {
    match namespace.filter(|name| *name != call.tenant.name) {
        None => Ok(call.tenant.clone()),
        Some(name) if call.session.local => Ok(call.daemon.tenant(name)?),
        Some(_) => Err("NOPERM another namespace needs a connection by a Unix socket".into()),
    }
}

fn define(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let namespace = match call.rest(2) {
        [] => None,
        [option, name] if word_is(option, "NAMESPACE") => Some(text(name)?),
        _ => return Err(syntax()),
    };
    let definition = text(call.word(1))?;
    tenant_of_namespace(call, namespace)?.memory()?.define(definition)?;
    Ok(Reply::OK)
}

/// The id of a stored entry.
fn entry_id(entry: &str) -> String {
    #[derive(serde::Deserialize, Default)]
    struct EntryIdField {
        id: String,
    }
    serde_json::from_str::<EntryIdField>(entry).unwrap_or_default().id
}

/// Whether a word cannot be an entry: entries begin with a brace.
fn is_option(word: &[u8]) -> bool {
    ["EMBED", "EMBEDDER", "NAMESPACE", "TENANT", "PRINCIPAL", "CONVERSATION"]
        .iter()
        .any(|option| word_is(word, option))
}

fn put_if(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (entry, version) = (text(call.word(1))?, number(call.word(2))?);
    let identity = identity(call, 3)?;
    let done = call.tenant.memory()?.put_if_version(&identity, entry, version)?;
    Ok(Reply::Map(vec![
        field("applied", Reply::Boolean(done.applied)),
        field("version", done.current.map_or(Reply::Null, integer_reply)),
    ]))
}

fn list(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (mut cursor, mut limit, mut tiers) = (None, None, None);
    let identity = options(call, 1, &mut |option, next| {
        if word_is(option, "CURSOR") && cursor.is_none() {
            cursor = Some(number::<u64>(next()?)?.to_string());
        } else if word_is(option, "LIMIT") && limit.is_none() {
            limit = Some(number::<usize>(next()?)?);
        } else if word_is(option, "TIERS") && tiers.is_none() {
            tiers = Some(parse_tiers(next()?)?);
        } else {
            return Ok(false);
        }
        Ok(true)
    })?;
    let tiers = tiers.unwrap_or_default();
    let (entries, next) = call.tenant.memory()?.list(&identity, cursor.as_deref(), limit, &tiers)?;
    let redactor = call.daemon.redactor(call.session)?;
    let entries = entries.into_iter().map(|entry| {
        let entry = shown_entry(redactor.as_deref(), entry)?;
        Ok(Reply::Json(entry.to_json()))
    });
    let entries = entries.collect::<Result<_, CommandRefusal>>()?;
    Ok(Reply::Array(vec![Reply::text(next.unwrap_or_else(|| "0".to_owned())), Reply::Array(entries)]))
}

/// An entry as the connection's reader sees it.
fn shown_entry(redactor: Option<&Redactor>, entry: MemoryEntry) -> annals::Result<MemoryEntry> {
    match redactor {
        Some(redactor) => redacted_entry(redactor, &entry),
        None => Ok(entry),
    }
}

/// The input of a search.
enum SearchInput<'a> {
    Vector(Vec<f32>),
    Question(&'a str),
}

fn search(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (mut asked, mut embedder_id, mut tiers) = (None, None, None);
    let (mut k, mut min_score, mut across) = (None, None, false);
    let (mut projection, mut budget, mut defined, mut asking) = (None, None, None, None);
    let identity = options(call, 1, &mut |option, next| {
        if word_is(option, "FP32") && asked.is_none() {
            asked = Some(SearchInput::Vector(vector_from_bytes(next()?)?));
        } else if word_is(option, "VECTOR") && asked.is_none() {
            let numbers: Vec<f32> = serde_json::from_slice(next()?).map_err(|error| {
                CommandRefusal(format!("ERR the vector is not a JSON array of numbers: {error}"))
            })?;
            asked = Some(SearchInput::Vector(numbers));
        } else if word_is(option, "QUESTION") && asked.is_none() {
            asked = Some(SearchInput::Question(text(next()?)?));
        } else if word_is(option, "EMBEDDER") && embedder_id.is_none() {
            embedder_id = Some(text(next()?)?);
        } else if word_is(option, "K") && k.is_none() {
            let wanted = number::<usize>(next()?)?;
            if !(1..=FOUND_MAX).contains(&wanted) {
                return Err(CommandRefusal(format!("ERR a search gives 1 to {FOUND_MAX} entries")));
            }
            k = Some(wanted);
        } else if word_is(option, "MINSCORE") && min_score.is_none() {
            let least = parse_float(next()?)?;
            min_score = Some(if least.is_nan() { return Err(NO_FLOAT.into()) } else { least as f32 });
        } else if word_is(option, "TIERS") && tiers.is_none() {
            tiers = Some(parse_tiers(next()?)?);
        } else if word_is(option, "ACROSS") && !across {
            across = true;
        } else if word_is(option, "PROJECTION") && projection.is_none() {
            let name = next()?;
            let known = text(name).ok().and_then(|name| Projection::from_name(&name.to_ascii_lowercase()));
            projection = Some(known.ok_or_else(|| {
                let name = display_word(name);
                CommandRefusal(format!(
                    "ERR unknown projection {name:?}: use decisions, commits, narrative or full"
                ))
            })?);
        } else if word_is(option, "MEMORY") && defined.is_none() {
            defined = Some(text(next()?)?);
        } else if word_is(option, "BUDGET") && budget.is_none() {
            budget = Some(number::<usize>(next()?)?);
        } else if word_is(option, "SESSION") && asking.is_none() {
            asking = Some(text(next()?)?);
        } else {
            return Ok(false);
        }
        Ok(true)
    })?;
    let redactor = call.daemon.redactor(call.session)?;
    let (memory, tiers) = (call.tenant.memory()?, tiers.unwrap_or_default());
    let definition = defined.map(|id| memory.definition(id)).transpose()?;
    let diagnostics = match asking {
        None => call.tenant.existing_diagnostics()?,
        Some(_) => {
            require_right(call, Rights::RECORD, "MEM.SEARCH with SESSION")?;
            call.check_writer()?;
            Some(call.tenant.diagnostics()?)
        }
    };
    let weights = diagnostics.as_ref().map(|diagnostics| RecallWeights {
        diagnostics,
        org: identity.tenant.as_deref(),
        session: asking,
    });
    // Options of the command take precedence over the definition.
    let by = definition.as_ref();
    let k = k.or(by.map(|by| by.k));
    let wanted = MemoryQuery {
        k: k.unwrap_or(0),
        min_score: min_score.or(by.and_then(|by| by.threshold)),
        tiers: &tiers,
        embedder: embedder_id.or(by.and_then(|by| by.embedder.as_deref())),
        across_conversations: across || by.is_some_and(|by| by.across_conversations),
        weights: weights.as_ref().map(|weights| weights as &dyn HitWeights),
    };
    let hits = match asked {
        None => {
            return Err(
                "ERR the search input is missing: give FP32 vector, VECTOR array or QUESTION text".into()
            );
        }
        Some(SearchInput::Vector(_)) if redactor.is_some() => {
            return Err("NOPERM a search by a vector takes the right read: ask by QUESTION".into());
        }
        Some(SearchInput::Vector(vector)) => memory.search(&identity, &vector, &wanted)?,
        Some(SearchInput::Question(question)) => {
            let with = call.tenant.embedder()?;
            let question = match &redactor {
                Some(redactor) => &redactor.text(question),
                None => question,
            };
            memory.recall(&identity, question, &*with, &MemoryQuery { k: k.unwrap_or(1), ..wanted })?
        }
    };
    let hits = match &redactor {
        Some(redactor) => redacted_hits(redactor, hits)?,
        None => hits,
    };
    let projection = projection.or(by.map(|by| by.projection));
    let text = (projection.is_some() || budget.is_some()).then(|| prompt_text(&hits, projection, budget));
    let hits = Reply::Array(hits.into_iter().map(hit_reply).collect());
    let mut reply = vec![field("hits", hits)];
    reply.extend(text.map(|text| field("text", Reply::text(text))));
    reply.extend(redactor.iter().flat_map(|redactor| redaction_fields(redactor)));
    Ok(Reply::Map(reply))
}

fn hit_reply(hit: MemoryHit) -> Reply {
    // The shortest decimal of this f32, so that 0.7 is shown as 0.7.
    let score = hit.score.to_string().parse().unwrap_or(f64::from(hit.score));
    Reply::Map(vec![
        field("id", Reply::text(hit.entry.id.as_str())),
        field("identity", Reply::text(hit.identity.as_str())),
        field("score", Reply::Double(score)),
        field("decided_ms", hit.decided_ms().map_or(Reply::Null, Reply::Integer)),
        field("decided_at", hit.decided_at().map_or(Reply::Null, Reply::text)),
        field("entry", Reply::Json(hit.entry.to_json())),
    ])
}

fn feedback(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let mut value = None;
    let identity = options(call, 2, &mut |option, next| {
        let known = word_is(option, "VALUE") && value.is_none();
        if known {
            value = Some(parse_float(next()?)?);
        }
        Ok(known)
    })?;
    let id = text(call.word(1))?;
    match value {
        Some(value) => {
            require_right(call, Rights::RECORD, "MEM.FEEDBACK with VALUE")?;
            call.check_writer()?;
            call.tenant.memory()?.rate(&identity, id, value)?;
            Ok(Reply::OK)
        }
        None => {
            require_right(call, Rights::READ, "MEM.FEEDBACK without VALUE")?;
            let said = call.tenant.memory()?.feedback(&identity, id)?;
            Ok(said.map_or(Reply::Null, |said| {
                let (average, count) = (Reply::Double(said.average()), integer_reply(said.count));
                Reply::Map(vec![field("average", average), field("count", count)])
            }))
        }
    }
}

fn seen(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let mut records = false;
    let identity = options(call, 2, &mut |option, _| {
        let known = word_is(option, "RECORD") && !records;
        records |= known;
        Ok(known)
    })?;
    let signature = text(call.word(1))?;
    if records {
        require_right(call, Rights::RECORD, "MEM.SEEN with RECORD")?;
        call.check_writer()?;
        call.tenant.memory()?.record_signature(&identity, signature)?;
        return Ok(Reply::OK);
    }
    require_right(call, Rights::READ, "MEM.SEEN without RECORD")?;
    Ok(Reply::Boolean(call.tenant.memory()?.has_signature(&identity, signature)?))
}

pub(super) fn require_right(
    call: &CommandCall<'_, '_>,
    right: Rights,
    what: &str,
) -> Result<(), CommandRefusal> {
    if call.session.has_rights(right) {
        return Ok(());
    }
    Err(CommandRefusal(format!("NOPERM {what} takes the right {right}")))
}

/// The identity, for a command without other options.
fn identity(call: &CommandCall<'_, '_>, from: usize) -> Result<Identity, CommandRefusal> {
    options(call, from, &mut |_, _| Ok(false))
}

/// Takes the next word, which an option requires.
type NextWord<'n, 'a> = &'n mut dyn FnMut() -> Result<&'a [u8], CommandRefusal>;

/// Handles an option of the command itself and its arguments; returns false for an unknown option.
type ExtraOption<'n, 'a> = dyn FnMut(&'a [u8], NextWord<'_, 'a>) -> Result<bool, CommandRefusal> + 'n;

/// Reads options: the identity, and those that `other` handles. A repeated option is an error.
fn options<'a>(
    call: &CommandCall<'a, '_>,
    from: usize,
    other: &mut ExtraOption<'_, 'a>,
) -> Result<Identity, CommandRefusal> {
    let mut identity = Identity::default();
    let mut words = call.rest(from).iter().map(Vec::as_slice);
    while let Some(option) = words.next() {
        let part = match () {
            () if word_is(option, "TENANT") => &mut identity.tenant,
            () if word_is(option, "PRINCIPAL") => &mut identity.principal,
            () if word_is(option, "CONVERSATION") => &mut identity.conversation,
            () if other(option, &mut || words.next().ok_or_else(syntax))? => continue,
            () => return Err(syntax()),
        };
        let said = text(words.next().ok_or_else(syntax)?)?.to_owned();
        if part.replace(said).is_some() {
            return Err(syntax());
        }
    }
    Ok(identity)
}

fn parse_tiers(word: &[u8]) -> Result<Vec<String>, CommandRefusal> {
    let names: Vec<String> =
        text(word)?.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    match names.iter().find(|name| !["hot", "warm", "cold"].contains(&name.as_str())) {
        None => Ok(names),
        Some(name) => {
            let name = display_word(name.as_bytes());
            Err(CommandRefusal(format!("ERR unknown tier {name:?}: use hot, warm or cold")))
        }
    }
}

fn parse_float(word: &[u8]) -> Result<f64, CommandRefusal> {
    let number = std::str::from_utf8(word).ok().and_then(|text| text.parse::<f64>().ok());
    number.ok_or_else(|| NO_FLOAT.into())
}

pub(super) fn text(word: &[u8]) -> Result<&str, CommandRefusal> {
    std::str::from_utf8(word).map_err(|_| "ERR names and JSON are UTF-8".into())
}
