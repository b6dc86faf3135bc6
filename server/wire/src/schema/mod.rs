//! The schema of the daemon's commands: names, arguments, rights, and the texts of COMMAND DOCS,
//! docs/commands.md and the HTTP API. The daemon implements the commands.
//!
//! Layout: a file for each group of commands, `rights`, `docs` (COMMAND and docs/commands.md), `routes` (the
//! same commands over HTTP), `schemas` (the schemas of HTTP answers) and `recorder` (the commands of
//! processes that record into a store).

mod blobs;
mod connection;
pub mod docs;
mod frames;
mod history;
mod keys;
mod memory;
mod nondet;
pub mod recorder;
mod retention;
mod rights;
pub mod routes;
mod runs;
pub mod schemas;
mod server;
mod snapshots;
mod store;
mod streams;
mod strings;
mod tokens;
mod transactions;

pub use rights::Rights;

/// What stands in the place of a version of Redis for commands that Redis does not have.
const ANNALS: &str = "annals 0.1.0";

/// A command. Words, keys and flags are as in COMMAND of Redis.
#[derive(Debug, Clone, Copy)]
pub struct CommandSchema {
    /// In lower case.
    pub name: &'static str,
    /// Number of words including its name; a negative value is a minimum.
    pub arity: i32,
    /// Flags of annals (the others are for clients):
    /// - `no_auth`: allowed before login. `no_multi`: runs at once within a transaction.
    /// - `settled`: runs only when all earlier writes of the connection are on disk.
    /// - `apart`, `whole`: offloaded to a thread, so that it delays no other connection.
    /// - `stores`: its values are stored by the engine; long values are handed to it in advance.
    /// - `operate`: concerns the whole store. `action`: the store records that it was executed.
    /// - `changes`: changes the store for an operator, and records that itself.
    /// - `reveals`: a write whose reply shows the earlier value.
    /// - `redacts`: shows a redacted reader less.
    /// - `both`: a write that is a read in one of its forms, and checks the right itself.
    pub flags: &'static [&'static str],
    /// The words that are keys: first, last (negative counts from the end), step. Zeros mean no keys.
    pub keys: (i32, i32, i32),
    /// The group in Redis' documentation.
    pub group: &'static str,
    /// The Redis version that introduced it.
    pub since: &'static str,
    pub summary: &'static str,
    /// Its arguments: `[x]` is optional, `a|b` is a choice, `...` repeats, CAPITALS are literal.
    pub arguments: &'static str,
}

/// A command that only annals has, without keys and arguments.
const fn command(
    group: &'static str,
    name: &'static str,
    arity: i32,
    flags: &'static [&'static str],
) -> CommandSchema {
    CommandSchema { name, arity, flags, keys: (0, 0, 0), group, since: ANNALS, summary: "", arguments: "" }
}

impl CommandSchema {
    const fn keys(self, first: i32, last: i32, step: i32) -> Self {
        Self { keys: (first, last, step), ..self }
    }

    const fn since(self, since: &'static str) -> Self {
        Self { since, ..self }
    }

    const fn arguments(self, arguments: &'static str) -> Self {
        Self { arguments, ..self }
    }

    const fn summary(self, summary: &'static str) -> Self {
        Self { summary, ..self }
    }

    /// The rights that it needs.
    pub fn rights(&self) -> Rights {
        let is = |flag| self.flags.contains(&flag);
        let rights = [
            (is("readonly") || is("reveals"), Rights::READ),
            (is("write"), Rights::RECORD),
            (is("operate"), Rights::OPERATE),
        ];
        rights.into_iter().filter(|(is, _)| *is).fold(Rights::NONE, |all, (_, right)| all.union(right))
    }

    /// Whether every form of it writes. A command with the flag `both` decides by its words.
    pub fn writes(&self) -> bool {
        let is = |flag| self.flags.contains(&flag);
        is("write") && !is("both") || is("action") || is("changes")
    }

    /// Whether these rights permit the command. The daemon's session decides what a redacted reader sees.
    pub fn is_allowed(&self, rights: Rights) -> bool {
        let is = |flag| self.flags.contains(&flag);
        rights.includes(self.rights())
            || is("redacts") && rights.includes(Rights::REDACTED)
            || is("both") && rights.includes(Rights::READ)
    }
}

/// All commands, in the order in which they are told.
const GROUPS: &[&[CommandSchema]] = &[
    connection::COMMANDS,
    strings::COMMANDS,
    keys::COMMANDS,
    streams::COMMANDS,
    transactions::COMMANDS,
    server::COMMANDS,
    runs::COMMANDS,
    frames::COMMANDS,
    nondet::COMMANDS,
    snapshots::COMMANDS,
    blobs::COMMANDS,
    history::COMMANDS,
    memory::COMMANDS,
    retention::COMMANDS,
    store::COMMANDS,
    tokens::COMMANDS,
];

/// Every command, group by group.
pub fn all_commands() -> impl Iterator<Item = &'static CommandSchema> {
    GROUPS.iter().copied().flatten()
}

/// The reason why a Redis command is not supported, if there is a notable one.
pub fn unsupported_reason(name: &[u8]) -> Option<&'static str> {
    let known = REFUSED
        .iter()
        .find(|(names, _)| names.split(' ').any(|refused| refused.as_bytes().eq_ignore_ascii_case(name)));
    known.map(|(_, why)| *why)
}

const REFUSED: &[(&str, &str)] = &[
    (
        "watch unwatch",
        "transactions are atomic but not conditional; INCR, SET NX and SET GET change a key by its value",
    ),
    ("xdel xtrim xsetid", "a recorded run is immutable; retention drops whole runs"),
    (
        "subscribe unsubscribe psubscribe punsubscribe publish ssubscribe spublish pubsub",
        "nothing is published here",
    ),
    ("eval evalsha eval_ro evalsha_ro script fcall fcall_ro function", "there are no scripts here"),
    ("flushall flushdb swapdb", "a store cannot be cleared at once: DEL deletes keys one by one"),
    (
        "bgsave save bgrewriteaof lastsave",
        "the log is the database and every reply is durable; `annals backup` copies a store",
    ),
    (
        "replicaof slaveof psync sync replconf wait cluster failover readonly readwrite asking",
        "a store has one process that writes",
    ),
    (
        "lpush rpush lpop rpop lrange llen lindex lset ltrim linsert lrem lpushx rpushx blpop brpop lmove blmove lpos \
         hset hget hdel hgetall hmset hmget hincrby hexists hlen hkeys hvals hsetnx hscan hstrlen hincrbyfloat hrandfield \
         sadd srem smembers sismember scard spop sinter sunion sdiff sscan smismember smove srandmember \
         zadd zrem zrange zscore zcard zincrby zrank zrangebyscore zrevrange zcount zpopmin zpopmax zscan zmscore \
         setbit getbit bitcount bitop bitfield bitpos pfadd pfcount pfmerge geoadd geosearch geopos geodist",
        "values are strings here",
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{all_commands, unsupported_reason};

    #[test]
    fn names_are_unique_and_summaries_are_there() {
        let names: HashSet<_> = all_commands().map(|command| command.name).collect();
        assert_eq!(names.len(), all_commands().count());
        for command in all_commands() {
            assert!(unsupported_reason(command.name.as_bytes()).is_none(), "{}", command.name);
            assert!(!command.summary.is_empty() && command.name == command.name.to_lowercase());
        }
        assert!(unsupported_reason(b"Watch").is_some() && unsupported_reason(b"nothing").is_none());
    }
}
