//! Commands about the server.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use super::connection::REDIS_VERSION;
use super::parse::{no_subcommand, word_is, wrong_subcommand_arity};
use crate::command_table::CommandHandler;
use crate::databases::DATABASES;
use crate::glob;
use crate::turn::{CommandCall, CommandRefusal, CommandResult, wrong_arity};
use annals_wire::resp::Reply;
use annals_wire::schema::{all_commands, docs};

pub(super) const HANDLERS: &[(&str, CommandHandler)] = &[
    ("command", commands),
    ("config", config),
    ("info", info),
    ("page.link", page_link),
    ("slowlog", slowlog),
    ("time", |call| {
        let now = call.daemon.now_ns();
        let text = |number: u64| Reply::text(number.to_string());
        Ok(Reply::Array(vec![text(now / 1_000_000_000), text(now / 1000 % 1_000_000)]))
    }),
];

fn page_link(call: &mut CommandCall<'_, '_>) -> CommandResult {
    if !call.session.local {
        return Err("NOPERM a link to the page needs a connection by a Unix socket".into());
    }
    let namespace = match call.rest(1) {
        [] => call.tenant.name.clone(),
        [name] => {
            let name = std::str::from_utf8(name).unwrap_or_default();
            if !call.daemon.store.namespaces()?.iter().any(|known| known == name) {
                return Err(CommandRefusal(format!("NOTFOUND there is no namespace {name:?}")));
            }
            name.to_owned()
        }
        _ => return Err(wrong_arity("page.link")),
    };
    let link = call.daemon.page_link(&namespace)?;
    let link =
        link.ok_or("UNAVAILABLE this daemon does not serve HTTP: start it with --http ADDRESS:PORT")?;
    Ok(Reply::text(link))
}

fn commands(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (word, count) = (call.word(1), call.words.len());
    let known = |name: &Vec<u8>| call.daemon.table.find(name).map(|command| command.schema);
    Ok(match count {
        1 => Reply::Array(all_commands().map(docs::info_entry).collect()),
        2 if word_is(word, "COUNT") => Reply::count(all_commands().count()),
        2 if word_is(word, "LIST") => {
            Reply::Array(all_commands().map(|command| Reply::text(command.name)).collect())
        }
        2 if word_is(word, "INFO") => Reply::Array(all_commands().map(docs::info_entry).collect()),
        _ if word_is(word, "INFO") => {
            let told = |name| known(name).map_or(Reply::NullArray, docs::info_entry);
            Reply::Array(call.rest(2).iter().map(told).collect())
        }
        2 if word_is(word, "DOCS") => Reply::Map(all_commands().map(docs::docs_entry).collect()),
        _ if word_is(word, "DOCS") => {
            Reply::Map(call.rest(2).iter().filter_map(known).map(docs::docs_entry).collect())
        }
        _ if ["COUNT", "LIST"].iter().any(|known| word_is(word, known)) => {
            return Err(wrong_subcommand_arity("command", word));
        }
        _ => return Err(no_subcommand("COMMAND", word)),
    })
}

/// Settings that clients ask for, under their Redis names.
fn settings() -> Vec<(&'static str, String)> {
    vec![
        ("appendfsync", "always".to_owned()),
        ("appendonly", "yes".to_owned()),
        ("databases", DATABASES.to_string()),
        ("maxmemory", "0".to_owned()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("proto-max-bulk-len", annals_wire::resp::BULK_BYTES_MAX.to_string()),
        ("save", String::new()),
        ("timeout", "0".to_owned()),
    ]
}

fn config(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (word, count) = (call.word(1), call.words.len());
    if word_is(word, "GET") && count > 2 {
        let wanted =
            |name: &str| call.rest(2).iter().any(|pattern| glob::matches(pattern, name.as_bytes(), true));
        let found = settings().into_iter().filter(|(name, _)| wanted(name));
        return Ok(Reply::Map(found.map(|(name, value)| (Reply::text(name), Reply::text(value))).collect()));
    }
    if word_is(word, "GET") {
        return Err(wrong_subcommand_arity("config", word));
    }
    if ["SET", "REWRITE", "RESETSTAT"].iter().any(|known| word_is(word, known)) {
        return Err("ERR settings cannot be changed here: give them when starting `annals serve`".into());
    }
    Err(no_subcommand("CONFIG", word))
}

fn slowlog(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let (word, count) = (call.word(1), call.words.len());
    let integer = |number: u64| Reply::Integer(i64::try_from(number).unwrap_or(i64::MAX));
    if word_is(word, "GET") && count <= 3 {
        // As in Redis: ten by default, `count` if given, all for -1.
        let most = match call.rest(2) {
            [] => 10,
            [count] => usize::try_from(super::parse::integer(count)?).unwrap_or(usize::MAX),
            _ => return Err(wrong_subcommand_arity("slowlog", word)),
        };
        let told = call.daemon.slow.latest().into_iter().take(most).map(|slow| {
            let words = vec![Reply::text(slow.name), Reply::text(format!("({} commands)", slow.commands))];
            Reply::Array(vec![
                integer(slow.id),
                integer(slow.at_s),
                integer(slow.micros),
                Reply::Array(words),
                Reply::text(slow.address),
                Reply::Bulk(slow.client),
            ])
        });
        return Ok(Reply::Array(told.collect()));
    }
    if word_is(word, "LEN") && count == 2 {
        return Ok(Reply::count(call.daemon.slow.latest().len()));
    }
    if word_is(word, "RESET") && count == 2 {
        call.daemon.slow.reset();
        return Ok(Reply::OK);
    }
    if ["GET", "LEN", "RESET"].iter().any(|known| word_is(word, known)) {
        return Err(wrong_subcommand_arity("slowlog", word));
    }
    Err(no_subcommand("SLOWLOG", word))
}

fn info(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let daemon = call.daemon;
    let now = daemon.now_ns();
    let up = now.saturating_sub(daemon.started_ns) / 1_000_000_000;
    let clients = daemon.clients().len();
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let failure = daemon.store.check_writer().err();
    let last_write = if failure.is_none() { "ok" } else { "err" };
    let mut own = format!("store:{}\r\nseqno:{}\r\n", daemon.store.id(), daemon.store.seqno());
    // Writing to a string cannot fail.
    let _ = match &failure {
        None => write!(own, "writes:ok\r\n"),
        Some(why) => {
            let why = why.to_string().replace(['\r', '\n'], " ");
            write!(
                own,
                "writes:refused\r\nreads_as_of_seqno:{}\r\nwrite_failure:{why}\r\n",
                daemon.store.seqno()
            )
        }
    };
    let sections: [(&str, String); 7] = [
        (
            "Server",
            format!(
                "redis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\narch_bits:{}\r\nannals_version:{}\r\nprocess_id:{}\r\nuptime_in_seconds:{up}\r\n",
                usize::BITS,
                env!("CARGO_PKG_VERSION"),
                std::process::id()
            ),
        ),
        ("Clients", format!("connected_clients:{clients}\r\n")),
        ("Persistence", format!("loading:0\r\naof_enabled:1\r\naof_last_write_status:{last_write}\r\n")),
        (
            "Stats",
            format!(
                "total_connections_received:{}\r\ntotal_commands_processed:{}\r\n",
                load(&daemon.connections),
                load(&daemon.commands)
            ),
        ),
        ("Replication", "role:master\r\nconnected_slaves:0\r\n".to_owned()),
        ("Cluster", "cluster_enabled:0\r\n".to_owned()),
        ("Annals", own),
    ];
    let everything = ["all", "default", "everything"];
    let wanted = |name: &str| {
        let asked = call.rest(1);
        asked.is_empty()
            || asked
                .iter()
                .any(|word| word_is(word, name) || everything.iter().any(|every| word_is(word, every)))
    };
    let mut text = String::new();
    for (name, body) in sections.iter().filter(|(name, _)| wanted(name)) {
        let gap = if text.is_empty() { "" } else { "\r\n" };
        // Writing to a string cannot fail.
        let _ = write!(text, "{gap}# {name}\r\n{body}");
    }
    Ok(Reply::Verbatim("txt", text.into_bytes()))
}
