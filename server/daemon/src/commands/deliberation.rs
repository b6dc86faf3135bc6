//! Decisions and deliberations: each command is a method of [`annals_deliberation`].

use std::sync::Arc;

use annals_deliberation::{Caller, Deliberation, Method, TextEmbedder};
use annals_memory::Embedder as _;
use annals_proxy::embeddings::ConfiguredEmbedder;

use super::memory::tenant_of_namespace;
use super::parse::{syntax, word_is};
use crate::access::Rights;
use crate::command_table::CommandHandler;
use crate::turn::{CommandCall, CommandRefusal, CommandResult};
use annals_wire::resp::Reply;

pub(super) const HANDLERS: &[(&str, CommandHandler)] = &[
    ("delib.record", |call| run(call, Method::RecordDecision)),
    ("delib.query", |call| run(call, Method::QueryDecisions)),
    ("delib.check", |call| run(call, Method::CheckGuardrails)),
    ("delib.get", |call| run(call, Method::GetDecision)),
    ("delib.reasons", |call| run(call, Method::GetReasonStats)),
    ("delib.thought", |call| run(call, Method::RecordThought)),
    ("delib.review", |call| run(call, Method::ReviewOutcome)),
    ("delib.stats", |call| run(call, Method::GetDeliberationStats)),
    ("delib.spikes", |call| run(call, Method::ExportSpikes)),
    ("delib.guardrail", |call| run(call, Method::SetGuardrail)),
    ("delib.guardrails", |call| run(call, Method::ListGuardrails)),
    ("delib.unguard", |call| run(call, Method::DeleteGuardrail)),
    ("delib.config", |call| run(call, Method::Configure)),
    ("delib.tracked", |call| run(call, Method::DebugTracker)),
];

/// The command that runs a method.
pub(crate) fn command_of(method: Method) -> &'static str {
    match method {
        Method::RecordDecision => "delib.record",
        Method::QueryDecisions => "delib.query",
        Method::CheckGuardrails => "delib.check",
        Method::GetDecision => "delib.get",
        Method::GetReasonStats => "delib.reasons",
        Method::RecordThought => "delib.thought",
        Method::ReviewOutcome => "delib.review",
        Method::GetDeliberationStats => "delib.stats",
        Method::ExportSpikes => "delib.spikes",
        Method::SetGuardrail => "delib.guardrail",
        Method::ListGuardrails => "delib.guardrails",
        Method::DeleteGuardrail => "delib.unguard",
        Method::Configure => "delib.config",
        Method::DebugTracker => "delib.tracked",
    }
}

/// The method that a command runs.
pub(crate) fn method_of(command: &str) -> Option<Method> {
    Method::ALL.into_iter().find(|method| command_of(*method).eq_ignore_ascii_case(command))
}

/// Calls a method with an embedder for texts that come without a vector.
pub(crate) fn call_embedded(
    decisions: &Deliberation,
    embedder: Option<&ConfiguredEmbedder>,
    caller: &Caller<'_>,
    method: Method,
    params: &str,
) -> annals::Result<String> {
    let embedder = match embedder {
        Some(ConfiguredEmbedder::Http(embedder)) => Some(&**embedder),
        // The built-in embedder makes cards of words, which the index of decisions has already.
        _ => None,
    };
    let embed = |text: &str| {
        let made = embedder.map(|embedder| embedder.embed(&[text])).transpose()?;
        Ok(made.into_iter().flatten().next().unwrap_or_default())
    };
    let embedder = embedder.map(|embedder| TextEmbedder { id: embedder.id(), embed: &embed });
    decisions.call(&Caller { embedder, ..*caller }, method, params)
}

fn run(call: &mut CommandCall<'_, '_>, method: Method) -> CommandResult {
    let is_option = |word: &[u8]| word_is(word, "NAMESPACE") || word_is(word, "SESSION");
    let (params, options) = match call.rest(1) {
        [first, rest @ ..] if !is_option(first) => (first.as_slice(), rest),
        options => (b"{}".as_slice(), options),
    };
    let (mut namespace, mut client_session) = (None, None);
    for option in options.chunks(2) {
        let [name, value] = option else { return Err(syntax()) };
        let value = std::str::from_utf8(value).map_err(|_| "ERR a namespace and a session are UTF-8")?;
        if word_is(name, "NAMESPACE") && namespace.is_none() {
            namespace = Some(value);
        } else if word_is(name, "SESSION") && client_session.is_none() {
            client_session = Some(value);
        } else {
            return Err(syntax());
        }
    }
    let params = std::str::from_utf8(params)
        .map_err(|error| CommandRefusal(format!("ERR the parameters are not UTF-8: {error}")))?;
    let tenant = tenant_of_namespace(call, namespace)?;
    let token = call.session.grant.as_ref().map_or_else(|| Arc::from("owner"), |grant| grant.name.clone());
    let is_other_token = |name: &str| call.daemon.access.has_name(name);
    let redactor = call.daemon.redactor(call.session)?;
    // A token that may not record, and a reader of the page, have no next decision: their calls are no inputs.
    let tracks = redactor.is_none() && call.session.has_rights(Rights::RECORD) && !call.session.is_page;
    let embedder = match method {
        Method::RecordDecision | Method::QueryDecisions => Some(tenant.embedder()?),
        _ => None,
    };
    let caller =
        Caller { session: client_session, is_other_token: &is_other_token, tracks, ..Caller::new(&token) };
    let answer = call_embedded(&tenant.deliberation()?, embedder.as_deref(), &caller, method, params)?;
    Ok(Reply::Json(match redactor {
        None => answer,
        Some(redactor) => String::from_utf8_lossy(&redactor.body(answer.as_bytes(), None).bytes).into_owned(),
    }))
}
