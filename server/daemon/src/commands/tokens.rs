//! Tokens: made, listed, rotated, revoked.

use super::parse::{field, integer_reply, syntax, word_is};
use crate::access::{Rights, make_token, parse_expiry_ns, revoke_token, rotate_token};
use crate::command_table::CommandHandler;
use crate::config::ServeError;
use crate::turn::{CommandCall, CommandRefusal, CommandResult};
use annals_wire::resp::Reply;

/// How long a rotated token stays valid if the caller does not say.
const ROTATION_OVERLAP_NS: u64 = 24 * 3600 * 1_000_000_000;

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
            told.extend(token.expires_ns.map(|ns| field("expires_ns", integer_reply(ns))));
            told.extend(token.profile.map(|profile| field("profile", Reply::text(profile))));
            Reply::Map(told)
        });
        Ok(Reply::Array(tokens.collect()))
    }),
    ("token.rotate", rotate),
    ("token.revoke", revoke),
];

fn add(call: &mut CommandCall<'_, '_>) -> CommandResult {
    require_local(call)?;
    let (mut namespace, mut rights, mut profile) = (call.tenant.name.clone(), None, None);
    let (mut expires_ns, now_ns) = (None, call.daemon.now_ns());
    for pair in call.rest(2).chunks(2) {
        let [option, value] = pair else { return Err(syntax()) };
        let value = text(value)?;
        if word_is(option, "NAMESPACE") {
            namespace = value.to_owned();
        } else if word_is(option, "RIGHTS") {
            let named = value.to_lowercase().parse::<Rights>();
            rights = Some(named.map_err(|why| CommandRefusal(format!("ERR {why}")))?);
        } else if word_is(option, "EXPIRES") {
            expires_ns = Some(expiry(value, now_ns)?);
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
    let rights = rights.unwrap_or(default);
    let (store, profile) = (&call.daemon.store, profile.as_deref());
    let made = make_token(store, name, &namespace, rights, profile, expires_ns, now_ns);
    let (token, text) = made.map_err(token_refusal)?;
    call.daemon.access.add(token);
    Ok(Reply::text(text))
}

fn rotate(call: &mut CommandCall<'_, '_>) -> CommandResult {
    require_local(call)?;
    let (mut overlap_ns, mut expires_ns, now_ns) = (ROTATION_OVERLAP_NS, None, call.daemon.now_ns());
    for pair in call.rest(2).chunks(2) {
        let [option, value] = pair else { return Err(syntax()) };
        let value = text(value)?;
        if word_is(option, "OVERLAP") {
            let why = || CommandRefusal(format!("ERR OVERLAP is a duration such as 24h, and not {value:?}"));
            overlap_ns = annals::retention::parse_duration_ns(value).ok_or_else(why)?;
        } else if word_is(option, "EXPIRES") {
            expires_ns = Some(expiry(value, now_ns)?);
        } else {
            return Err(syntax());
        }
    }
    let name = text(call.word(1))?;
    let rotated = rotate_token(&call.daemon.store, name, overlap_ns, expires_ns, now_ns);
    let (tokens, text) = rotated.map_err(token_refusal)?;
    call.daemon.access.replace_stored(name, tokens);
    Ok(Reply::text(text))
}

fn expiry(text: &str, now_ns: u64) -> Result<u64, CommandRefusal> {
    parse_expiry_ns(text, now_ns).map_err(|why| CommandRefusal(format!("ERR {why}")))
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
