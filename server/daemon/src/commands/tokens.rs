//! Tokens: made, listed, revoked.

use super::parse::{field, integer_reply, syntax, word_is};
use crate::access::{Rights, make_token, revoke_token};
use crate::command_table::CommandHandler;
use crate::config::ServeError;
use crate::turn::{CommandCall, CommandRefusal, CommandResult};
use annals_wire::resp::Reply;

pub(super) const HANDLERS: &[(&str, CommandHandler)] = &[
    ("token.add", add),
    ("token.list", |call| {
        let tokens = call.daemon.access.all().into_iter().map(|token| {
            let mut told = vec![
                field("name", Reply::text(token.name)),
                field("namespace", Reply::text(token.namespace)),
                field("rights", Reply::text(token.rights.to_string())),
                field("made_ns", integer_reply(token.made_ns)),
            ];
            told.extend(token.profile.map(|profile| field("profile", Reply::text(profile))));
            Reply::Map(told)
        });
        Ok(Reply::Array(tokens.collect()))
    }),
    ("token.revoke", revoke),
];

fn add(call: &mut CommandCall<'_, '_>) -> CommandResult {
    require_local(call)?;
    let (mut namespace, mut rights, mut profile) = (call.tenant.name.clone(), None, None);
    for pair in call.rest(2).chunks(2) {
        let [option, value] = pair else { return Err(syntax()) };
        let value = text(value)?;
        if word_is(option, "NAMESPACE") {
            namespace = value.to_owned();
        } else if word_is(option, "RIGHTS") {
            let named = value.to_lowercase().parse::<Rights>();
            rights = Some(named.map_err(|why| CommandRefusal(format!("ERR {why}")))?);
        } else if word_is(option, "PROFILE") {
            if call.daemon.profiles().find(value).is_none() {
                let there: Vec<_> = call.daemon.profiles().names().collect();
                let there = there.join(", ");
                return Err(CommandRefusal(format!(
                    "NOTFOUND there is no profile {value:?}; there are {there}"
                )));
            }
            profile = Some(value.to_owned());
        } else {
            return Err(syntax());
        }
    }
    let name = text(call.word(1))?;
    let default = if profile.is_some() { Rights::REDACTED } else { Rights::ALL };
    let (rights, now_ns) = (rights.unwrap_or(default), call.daemon.now_ns());
    let made = make_token(&call.daemon.store, name, &namespace, rights, profile.as_deref(), now_ns);
    let (token, text) = made.map_err(token_refusal)?;
    call.daemon.access.add(token);
    Ok(Reply::text(text))
}

fn revoke(call: &mut CommandCall<'_, '_>) -> CommandResult {
    require_local(call)?;
    let name = text(call.word(1))?;
    if !revoke_token(&call.daemon.store, name).map_err(token_refusal)? {
        return Err(CommandRefusal(format!("NOTFOUND there is no token {name} in the store")));
    }
    call.daemon.access.remove(name);
    Ok(Reply::OK)
}

fn require_local(call: &CommandCall<'_, '_>) -> Result<(), CommandRefusal> {
    if call.session.local {
        return Ok(());
    }
    Err("NOPERM making and revoking tokens needs a connection by a Unix socket".into())
}

fn text(word: &[u8]) -> Result<&str, CommandRefusal> {
    std::str::from_utf8(word).map_err(|_| syntax())
}

fn token_refusal(error: ServeError) -> CommandRefusal {
    match error {
        ServeError::Store(error) => error.into(),
        other => CommandRefusal(format!("ERR {other}")),
    }
}
