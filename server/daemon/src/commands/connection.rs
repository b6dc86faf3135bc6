//! Commands about the connection itself.

use super::parse::{display_word, integer, no_subcommand, syntax, word_is, wrong_subcommand_arity};
use crate::access::Rights;
use crate::command_table::CommandHandler;
use crate::databases::DATABASES;
use crate::session::ClientInfo;
use crate::turn::{CommandCall, CommandRefusal, CommandResult, wrong_arity};
use annals_wire::resp::{Protocol, Reply};

/// The Redis version whose semantics apply, for clients that check it.
pub(super) const REDIS_VERSION: &str = "7.2.0";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

pub(super) const HANDLERS: &[(&str, CommandHandler)] = &[
    ("ping", |call| match call.words.len() {
        1 => Ok(Reply::Simple("PONG".into())),
        2 => Ok(Reply::Bulk(call.word(1).to_vec())),
        _ => Err(wrong_arity("ping")),
    }),
    ("echo", |call| Ok(Reply::Bulk(call.word(1).to_vec()))),
    ("hello", hello),
    ("auth", auth),
    ("select", |call| {
        let wrong = |_| CommandRefusal("ERR invalid DB index".to_owned());
        let index = integer(call.word(1)).map_err(wrong)?;
        let index = u8::try_from(index).ok().filter(|index| *index < DATABASES);
        call.session.facts.database = index.ok_or("ERR DB index is out of range")?;
        update_client_list(call);
        Ok(Reply::OK)
    }),
    ("quit", |call| {
        call.session.hangs_up = true;
        Ok(Reply::OK)
    }),
    ("reset", |call| {
        call.session.reset();
        update_client_list(call);
        Ok(Reply::Simple("RESET".into()))
    }),
    ("client", client),
];

/// Updates this connection in the list of clients.
fn update_client_list(call: &CommandCall<'_, '_>) {
    let facts = &call.session.facts;
    call.daemon.clients().insert(facts.id, facts.clone());
}

fn hello(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let mut protocol = call.session.facts.protocol;
    let mut at = 1;
    if call.words.len() > 1 {
        protocol = match call.word(1) {
            b"2" => Protocol::Resp2,
            b"3" => Protocol::Resp3,
            other if integer(other).is_err() => {
                return Err("ERR Protocol version is not an integer or out of range".into());
            }
            _ => return Err("NOPROTO unsupported protocol version".into()),
        };
        at = 2;
    }
    let mut name = None;
    while at < call.words.len() {
        if word_is(call.word(at), "AUTH") && at + 2 < call.words.len() {
            login(call, at + 1, at + 2)?;
            at += 3;
        } else if word_is(call.word(at), "SETNAME") && at + 1 < call.words.len() {
            name = Some(client_text(call.word(at + 1), "Client names")?);
            at += 2;
        } else {
            return Err(CommandRefusal(format!(
                "ERR Syntax error in HELLO option '{}'",
                display_word(call.word(at))
            )));
        }
    }
    if call.session.grant.is_none() {
        return Err("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time".into());
    }
    call.session.facts.protocol = protocol;
    if let Some(name) = name {
        call.session.facts.name = name;
    }
    update_client_list(call);
    let number = match protocol {
        Protocol::Resp2 => 2,
        Protocol::Resp3 => 3,
    };
    let pair = |key: &str, value: Reply| (Reply::text(key), value);
    Ok(Reply::Map(vec![
        pair("server", Reply::text("annals")),
        pair("version", Reply::text(REDIS_VERSION)),
        pair("proto", Reply::Integer(number)),
        pair("id", client_id(&call.session.facts)),
        pair("mode", Reply::text("standalone")),
        pair("role", Reply::text("master")),
        pair("modules", Reply::Array(Vec::new())),
    ]))
}

fn auth(call: &mut CommandCall<'_, '_>) -> CommandResult {
    match call.words.len() {
        2 if call.daemon.access.is_empty() => Err("ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?".into()),
        2 => login(call, 0, 1),
        3 => login(call, 1, 2),
        _ => Err(syntax()),
    }
}

/// Logs in with a token; `user` is 0 if no user is named.
fn login(call: &mut CommandCall<'_, '_>, user: usize, password: usize) -> CommandResult {
    if call.session.in_exec {
        // The queued commands were checked against the rights of the earlier login.
        return Err("ERR a login is not possible inside a transaction".into());
    }
    let name = if user == 0 { b"default" } else { call.word(user) };
    let grant = call.daemon.login(name, call.word(password), &call.session.facts.address)?;
    match grant {
        Some(grant) => call.session.grant(grant),
        // As in Redis, a client that needs no token is the user `default` with any password.
        None if user > 0 && name == b"default" && call.session.needs_no_token() => {}
        None => return Err(WRONG_PASSWORD.into()),
    }
    update_client_list(call);
    Ok(Reply::OK)
}

fn client_id(facts: &ClientInfo) -> Reply {
    Reply::Integer(i64::try_from(facts.id).unwrap_or(i64::MAX))
}

/// A name or text that is shown in client lists.
fn client_text(word: &[u8], what: &str) -> Result<Vec<u8>, CommandRefusal> {
    if word.len() > 1024 || !word.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        return Err(CommandRefusal(format!(
            "ERR {what} cannot contain spaces, newlines or special characters."
        )));
    }
    Ok(word.to_vec())
}

fn client(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (word, count) = (call.word(1), call.words.len());
    if word_is(word, "ID") && count == 2 {
        return Ok(client_id(&call.session.facts));
    }
    if word_is(word, "GETNAME") && count == 2 {
        let name = &call.session.facts.name;
        return Ok(if name.is_empty() { Reply::Null } else { Reply::Bulk(name.clone()) });
    }
    if word_is(word, "SETNAME") && count == 3 {
        call.session.facts.name = client_text(call.word(2), "Client names")?;
        update_client_list(call);
        return Ok(Reply::OK);
    }
    if word_is(word, "SETINFO") && count == 4 {
        let option = call.word(2);
        let text = |what| client_text(call.word(3), what);
        if word_is(option, "LIB-NAME") {
            call.session.facts.library.0 = text("lib-name")?;
        } else if word_is(option, "LIB-VER") {
            call.session.facts.library.1 = text("lib-ver")?;
        } else {
            return Err(CommandRefusal(format!("ERR Unrecognized option '{}'", display_word(option))));
        }
        update_client_list(call);
        return Ok(Reply::OK);
    }
    if word_is(word, "INFO") && count == 2 {
        let line = client_line(&call.session.facts, call.daemon.now_ns());
        return Ok(Reply::Verbatim("txt", line.into_bytes()));
    }
    if word_is(word, "LIST") && (count == 2 || count > 3) {
        let wanted = requested_ids(call)?;
        let now = call.daemon.now_ns();
        let clients = call.daemon.clients();
        // Only an operator sees the connections of other namespaces.
        let (all, own) = (call.session.has_rights(Rights::OPERATE), &call.session.facts.namespace);
        let chosen = clients.values().filter(|facts| {
            wanted.as_ref().is_none_or(|ids| ids.contains(&facts.id)) && (all || facts.namespace == *own)
        });
        let lines: String = chosen.map(|facts| client_line(facts, now)).collect();
        return Ok(Reply::Verbatim("txt", lines.into_bytes()));
    }
    let known = ["ID", "GETNAME", "SETNAME", "SETINFO", "INFO", "LIST"];
    if known.iter().any(|known| word_is(word, known)) {
        return Err(wrong_subcommand_arity("client", word));
    }
    Err(no_subcommand("CLIENT", word))
}

/// The ids that CLIENT LIST is limited to; `None` for all.
fn requested_ids(call: &CommandCall<'_, '_>) -> Result<Option<Vec<u64>>, CommandRefusal> {
    let (word, given) = (call.word(2), call.rest(3));
    if call.words.len() == 2 {
        return Ok(None);
    }
    if word_is(word, "ID") {
        let id =
            |word: &Vec<u8>| integer(word).ok().and_then(|id| u64::try_from(id).ok()).filter(|id| *id > 0);
        let ids: Option<Vec<u64>> = given.iter().map(id).collect();
        return ids.map(Some).ok_or_else(|| "ERR Invalid client ID".into());
    }
    let [kind] = given else { return Err(syntax()) };
    if !word_is(word, "TYPE") {
        return Err(syntax());
    }
    if word_is(kind, "normal") {
        return Ok(None);
    }
    match ["master", "replica", "slave", "pubsub"].iter().any(|known| word_is(kind, known)) {
        // The daemon has no clients of these types.
        true => Ok(Some(Vec::new())),
        false => Err(CommandRefusal(format!("ERR Unknown client type '{}'", String::from_utf8_lossy(kind)))),
    }
}

fn client_line(facts: &ClientInfo, now_ns: u64) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let proto = if facts.protocol == Protocol::Resp3 { 3 } else { 2 };
    format!(
        "id={} addr={} name={} age={} db={} user={} namespace={} resp={proto} lib-name={} lib-ver={}\n",
        facts.id,
        facts.address,
        text(&facts.name),
        now_ns.saturating_sub(facts.began_ns) / 1_000_000_000,
        facts.database,
        facts.user,
        facts.namespace,
        text(&facts.library.0),
        text(&facts.library.1),
    )
}
