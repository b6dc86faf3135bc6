//! The schema of the daemon's commands: what they are called, which arguments and rights they take, what COMMAND DOCS, docs/commands.md and the
//! HTTP API say of them. What a command does is the daemon's.
//!
//! Layout: a file for each group of commands, `rights`, `docs` (COMMAND and docs/commands.md), `routes` (the same commands over HTTP), `schemas`
//! (what those give) and `recorder` (the commands of recorders that join a store).

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

/// A command. Words, keys and flags are as COMMAND of Redis tells them.
#[derive(Debug, Clone, Copy)]
pub struct CommandSchema {
    /// In small letters.
    pub name: &'static str,
    /// How many words it has, its name among them; at least so many where this is negative.
    pub arity: i32,
    /// `no_auth`: also before login; `no_multi`: done at once within a transaction; `settled`: only once what came before is on disk;
    /// `apart`, `whole`: by itself, where waiting holds nobody up (the daemon's `turn::Apart`); `stores`: its values are the engine's, which long ones
    /// are handed to ahead; `operate`: what concerns the whole store; `action`: kept in the store that it was done; `reveals`: a write whose reply
    /// tells what was there; `redacts`: shows a redacted reader less; `both`: a
    /// write that is a read in one of its forms, and asks for the right itself; the others are for clients.
    pub flags: &'static [&'static str],
    /// Which words are keys: the first, the last (from the end where negative), every how many. No keys: zeros.
    pub keys: (i32, i32, i32),
    /// The group that Redis' documentation puts it in.
    pub group: &'static str,
    /// The version of Redis that has had it since.
    pub since: &'static str,
    pub summary: &'static str,
    /// What follows its name: `[x]` may be left out, `a|b` is one of both, `...` may come again, CAPITALS are written as they are.
    pub arguments: &'static str,
}

impl CommandSchema {
    /// The rights that it takes.
    pub fn rights(&self) -> Rights {
        let is = |flag| self.flags.contains(&flag);
        let rights = [
            (is("readonly") || is("reveals"), Rights::READ),
            (is("write"), Rights::RECORD),
            (is("operate"), Rights::OPERATE),
        ];
        rights.into_iter().filter(|(is, _)| *is).fold(Rights::NONE, |all, (_, right)| all.and(right))
    }

    /// Whether whoever has these rights may give it. What shows a redacted reader less is asked of the daemon's session.
    pub fn is_allowed(&self, rights: Rights) -> bool {
        let is = |flag| self.flags.contains(&flag);
        rights.include(self.rights())
            || is("redacts") && rights.include(Rights::REDACTED)
            || is("both") && rights.include(Rights::READ)
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
pub fn all() -> impl Iterator<Item = &'static CommandSchema> {
    GROUPS.iter().copied().flatten()
}

/// Why a command of Redis is not offered, where that is worth saying.
pub fn refused(name: &[u8]) -> Option<&'static str> {
    let known = REFUSED
        .iter()
        .find(|(names, _)| names.split(' ').any(|refused| refused.as_bytes().eq_ignore_ascii_case(name)));
    known.map(|(_, why)| *why)
}

const REFUSED: &[(&str, &str)] = &[
    (
        "watch unwatch",
        "a transaction is done as a whole, but not on a condition; INCR, SET NX and SET GET change a key by what it holds",
    ),
    ("xdel xtrim xsetid", "what a run recorded stays as it was recorded; retention drops whole runs"),
    (
        "subscribe unsubscribe psubscribe punsubscribe publish ssubscribe spublish pubsub",
        "nothing is published here",
    ),
    ("eval evalsha eval_ro evalsha_ro script fcall fcall_ro function", "there are no scripts here"),
    ("flushall flushdb swapdb", "a store does not forget all at once: DEL ends keys one by one"),
    (
        "bgsave save bgrewriteaof lastsave",
        "the log is the database and every reply rests on what is on disk; `annals backup` copies a store",
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

    use super::{all, refused};

    #[test]
    fn names_are_unique_and_summaries_are_there() {
        let names: HashSet<_> = all().map(|command| command.name).collect();
        assert_eq!(names.len(), all().count());
        for command in all() {
            assert!(refused(command.name.as_bytes()).is_none(), "{}", command.name);
            assert!(!command.summary.is_empty() && command.name == command.name.to_lowercase());
        }
        assert!(refused(b"Watch").is_some() && refused(b"nothing").is_none());
    }
}
