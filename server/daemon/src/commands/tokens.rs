//! Tokens: made, listed, revoked.

use super::parse::{field, integer_of, is, syntax};
use crate::access::{Rights, make_token, revoke_token};
use crate::config::ServingError;
use crate::table::Handler;
use crate::turn::{Call, Outcome, Refusal};
use annals_wire::resp::Reply;

pub(super) const HANDLERS: &[(&str, Handler)] = &[
    ("token.add", add),
    ("token.list", |call| {
        let tokens = call.daemon.access.all().into_iter().map(|token| {
            let mut told = vec![
                field("name", Reply::text(token.name)),
                field("namespace", Reply::text(token.namespace)),
                field("rights", Reply::text(token.rights.to_string())),
                field("made_ns", integer_of(token.made_ns)),
            ];
            told.extend(token.profile.map(|profile| field("profile", Reply::text(profile))));
            Reply::Map(told)
        });
        Ok(Reply::Array(tokens.collect()))
    }),
    ("token.revoke", revoke),
];

fn add(call: &mut Call<'_, '_>) -> Outcome {
    local(call)?;
    let (mut namespace, mut rights, mut profile) = (call.tenant.name.clone(), None, None);
    for pair in call.rest(2).chunks(2) {
        let [option, value] = pair else { return Err(syntax()) };
        let value = text(value)?;
        if is(option, "NAMESPACE") {
            namespace = value.to_owned();
        } else if is(option, "RIGHTS") {
            let named = value.to_lowercase().parse::<Rights>();
            rights = Some(named.map_err(|why| Refusal(format!("ERR {why}")))?);
        } else if is(option, "PROFILE") {
            if call.daemon.profiles().find(value).is_none() {
                let there: Vec<_> = call.daemon.profiles().names().collect();
                let there = there.join(", ");
                return Err(Refusal(format!("NOTFOUND there is no profile {value:?}; there are {there}")));
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
    let (token, text) = made.map_err(told)?;
    call.daemon.access.add(token);
    Ok(Reply::text(text))
}

fn revoke(call: &mut Call<'_, '_>) -> Outcome {
    local(call)?;
    let name = text(call.word(1))?;
    if !revoke_token(&call.daemon.store, name).map_err(told)? {
        return Err(Refusal(format!("NOTFOUND there is no token {name} in the store")));
    }
    call.daemon.access.remove(name);
    Ok(Reply::OK)
}

fn local(call: &Call<'_, '_>) -> Result<(), Refusal> {
    if call.session.local {
        return Ok(());
    }
    Err("NOPERM making and revoking tokens needs a connection by a Unix socket".into())
}

fn text(word: &[u8]) -> Result<&str, Refusal> {
    std::str::from_utf8(word).map_err(|_| syntax())
}

fn told(error: ServingError) -> Refusal {
    match error {
        ServingError::Store(error) => error.into(),
        other => Refusal(format!("ERR {other}")),
    }
}
