//! Runs as a reader of a failure asks about them: which frame failed, which steps are suspect or to blame, how two
//! runs differ, and what was forked from them.

use std::collections::VecDeque;

use annals::{ErrorKind, RunReader};
use annals_blame::load_blame;
use annals_blame::ranking::{pairs, rows};
use annals_memory::Embedder;
use annals_policy::exchange::ExchangeMetadata;
use annals_review::search::{MeaningAnswer, SearchAnswer, find, find_by_meaning};
use annals_review::suspect::{self, Transcript, Weights};
use annals_review::{FramePair, align, failure_report};
use annals_wire::resp::Reply;
use serde_json::{Value, json};

use super::memory::tenant_of_namespace;
use super::parse::{field, integer_reply, number, run_name, run_reader, syntax, word_is};
use super::runs::run_fields;
use crate::command_table::CommandHandler;
use crate::turn::{CommandCall, CommandRefusal, CommandResult};

/// Maximum number of runs that RUN.FORKS returns.
const FORKS_MAX: usize = 1000;
/// Default number of hits of RUN.SEARCH.
const HITS_DEFAULT: usize = 20;
/// Maximum bytes of a question.
const QUESTION_BYTES_MAX: usize = 16 << 10;
/// Maximum number of ancestors that RUN.FORKS looks for.
const ANCESTORS_MAX: usize = 10_000;

pub(super) const HANDLERS: &[(&str, CommandHandler)] = &[
    ("run.failure", failure),
    ("run.suspect", suspect_steps),
    ("run.blame", blame),
    ("run.diff", diff),
    ("run.forks", forks),
    ("run.search", search),
    ("run.index", index),
];

fn failure(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let redactor = call.daemon.redactor(call.session)?;
    let Some(report) = failure_report(&run_reader(call, 1)?, redactor.as_deref())? else {
        return Ok(Reply::Null);
    };
    let exchange = serde_json::from_slice::<ExchangeMetadata>(&report.frame.metadata).ok();
    let number = |number: Option<u64>| number.map_or(Reply::Null, integer_reply);
    let (code, signal) = report.exit.map_or((None, None), |(code, signal)| (Some(code), signal));
    let text = |text: Option<String>| text.map_or(Reply::Null, Reply::text);
    Ok(Reply::Map(vec![
        field("seq", integer_reply(report.frame.seq.into())),
        field("why", text(report.why)),
        field("status_code", number(exchange.and_then(|exchange| exchange.http.status).map(u64::from))),
        field("exit_code", number(code)),
        field("signal", signal.map_or(Reply::Null, Reply::Integer)),
        field("stderr", text(report.stderr)),
    ]))
}

fn suspect_steps(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let redactor = call.daemon.redactor(call.session)?;
    let transcript = Transcript::read(&run_reader(call, 1)?, redactor.as_deref())?;
    let weights = Weights::built_in().map_err(|error| CommandRefusal(format!("BUG {error}")))?;
    let steps: Vec<Value> = suspect::rank(&transcript, &weights)
        .steps
        .iter()
        .map(|step| {
            let signals: Vec<Value> = step
                .signals
                .iter()
                .map(|seen| json!({ "name": seen.signal.name(), "seq": seen.seq, "why": seen.why }))
                .collect();
            json!({
                "seq": step.seq, "agent": step.agent, "component": step.component, "score": step.score,
                "signals": signals,
            })
        })
        .collect();
    json_reply(&steps)
}

fn blame(call: &mut CommandCall<'_, '_>) -> CommandResult {
    // A run that does not exist has no blame, but that is another answer.
    let reader = run_reader(call, 1)?;
    let Some(document) = load_blame(call.work.namespace(), &reader.info().name)? else {
        return Ok(Reply::Null);
    };
    json_reply(&json!({
        "state": document.state, "rows": rows(&document), "pairs": pairs(&document), "spent": document.spent,
        "settings": document.settings,
    }))
}

fn diff(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let alignment = align(&run_reader(call, 1)?, &run_reader(call, 2)?)?;
    let pairs: Vec<Value> = alignment
        .pairs
        .iter()
        .map(|pair| match *pair {
            FramePair::Same(a, b) => json!({ "kind": "same", "a": a, "b": b }),
            FramePair::Changed { a, b, input, output, says_same } => json!({
                "kind": "changed", "a": a, "b": b, "input": input, "output": output, "says_same": says_same,
            }),
            FramePair::Dropped(a) => json!({ "kind": "dropped", "a": a }),
            FramePair::Added(b) => json!({ "kind": "added", "b": b }),
        })
        .collect();
    json_reply(&json!({ "pairs": pairs }))
}

fn forks(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let redactor = call.daemon.redactor(call.session)?;
    let space = call.work.namespace();
    let mut origin = space.run(run_name(call.word(1))?)?;
    for _ in 0..ANCESTORS_MAX {
        let Some(parent) = origin.info().parent.as_ref() else { break };
        origin = match space.run_by_uid(parent.uid) {
            Ok(parent) => parent,
            // A parent that was dropped cannot be shown: its fork is then the first of the tree.
            Err(error) if matches!(error.kind(), ErrorKind::Gone | ErrorKind::NotFound) => break,
            Err(error) => return Err(error.into()),
        };
    }
    let mut waiting = VecDeque::from([origin]);
    let mut found: Vec<RunReader> = Vec::new();
    // Depth first, so that a run stands next to its forks.
    while let Some(run) = waiting.pop_front() {
        if found.len() >= FORKS_MAX {
            break;
        }
        for fork in space.forks(run.info().uid, FORKS_MAX)?.into_iter().rev() {
            waiting.push_front(fork);
        }
        found.push(run);
    }
    let fields = |run| run_fields(run, redactor.as_deref()).map(Reply::Map);
    Ok(Reply::Array(found.iter().map(fields).collect::<Result<_, _>>()?))
}

fn search(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let redactor = call.daemon.redactor(call.session)?;
    let question = std::str::from_utf8(call.word(1)).map_err(|_| "ERR a question is UTF-8")?;
    if question.len() > QUESTION_BYTES_MAX {
        return Err(CommandRefusal(format!("ERR a question has at most {QUESTION_BYTES_MAX} bytes")));
    }
    let (mut count, mut by_meaning) = (None, None);
    let mut words = call.rest(2).iter();
    while let Some(option) = words.next() {
        let value = words.next().ok_or_else(syntax)?;
        if word_is(option, "COUNT") && count.is_none() {
            count = Some(number(value)?);
        } else if word_is(option, "BY") && by_meaning.is_none() {
            by_meaning = Some(match () {
                () if word_is(value, "MEANING") => true,
                () if word_is(value, "WORDS") => false,
                () => return Err("ERR a search is BY WORDS or BY MEANING".into()),
            });
        } else {
            return Err(syntax());
        }
    }
    let count = count.unwrap_or(HITS_DEFAULT);
    if by_meaning == Some(true) {
        let (space, with) = (call.work.namespace(), call.tenant.embedder()?);
        let memory = match call.tenant.memory() {
            // A store that is only read, and in which nothing was ever remembered.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let embedder = with.id().to_owned();
                return json_reply(&MeaningAnswer { embedder, ..MeaningAnswer::default() });
            }
            opened => opened?,
        };
        return json_reply(&find_by_meaning(space, &memory, question, &*with, redactor.as_deref(), count)?);
    }
    call.daemon.ask_holder_to_index(&call.tenant.name);
    let is_whole = match call.tenant.index_frames(false) {
        Ok(is_whole) => is_whole,
        // Nothing can be indexed, but the index can be read.
        Err(error) if matches!(error.kind(), ErrorKind::Poisoned | ErrorKind::Unavailable) => false,
        Err(error) => return Err(index_refusal(error)),
    };
    let Some(index) = call.tenant.frame_texts()? else {
        return json_reply(&SearchAnswer { is_whole, ..SearchAnswer::default() });
    };
    let found = find(call.work.namespace(), &index, question, redactor.as_deref(), count, is_whole);
    json_reply(&found.map_err(index_refusal)?)
}

/// An error of a search. Damage may be that of the index, which can be made again.
fn index_refusal(error: annals::Error) -> CommandRefusal {
    let is_damage = matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Bug);
    let mut refusal = CommandRefusal::from(error);
    if is_damage {
        refusal.0.push_str("; RUN.INDEX REBUILD, or `annals search --rebuild`, makes the index again");
    }
    refusal
}

fn index(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (mut namespace, mut rebuilds) = (None, false);
    let mut words = call.rest(1).iter();
    while let Some(option) = words.next() {
        if word_is(option, "REBUILD") && !rebuilds {
            rebuilds = true;
        } else if word_is(option, "NAMESPACE") && namespace.is_none() {
            let name = words.next().and_then(|name| std::str::from_utf8(name).ok());
            namespace = Some(name.ok_or_else(syntax)?);
        } else {
            return Err(syntax());
        }
    }
    let is_whole = tenant_of_namespace(call, namespace)?.index_frames(rebuilds)?;
    Ok(integer_reply(is_whole.into()))
}

fn json_reply(value: &impl serde::Serialize) -> CommandResult {
    serde_json::to_string(value).map(Reply::Json).map_err(|error| CommandRefusal(format!("BUG {error}")))
}
