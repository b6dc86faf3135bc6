//! The commands: one table, from which they are found, checked and described.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::access::Rights;
use super::commands;
use super::turn::{Call, Outcome};

/// A command. Words, keys and flags are as COMMAND of Redis tells them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Command {
    /// In small letters.
    pub(super) name: &'static str,
    /// How many words it has, its name among them; at least so many where this is negative.
    pub(super) arity: i32,
    /// `no_auth`: also before login; `no_multi`: done at once within a transaction; `settled`: only once what came before is on disk;
    /// `apart`, `whole`: by itself, where waiting holds nobody up ([`super::turn::Apart`]); `stores`: its values are the engine's, which long ones
    /// are handed to ahead; `operate`: what concerns the whole store; `action`: kept in the store that it was done; `reveals`: a write whose reply
    /// tells what was there; `redacts`: shows a redacted reader less; `both`: a
    /// write that is a read in one of its forms, and asks for the right itself; the others are for clients.
    pub(super) flags: &'static [&'static str],
    /// Which words are keys: the first, the last (from the end where negative), every how many. No keys: zeros.
    pub(super) keys: (i32, i32, i32),
    /// The group that Redis' documentation puts it in.
    pub(super) group: &'static str,
    /// The version of Redis that has had it since.
    pub(super) since: &'static str,
    pub(super) summary: &'static str,
    /// What follows its name: `[x]` may be left out, `a|b` is one of both, `...` may come again, CAPITALS are written as they are.
    pub(super) arguments: &'static str,
    pub(super) run: fn(&mut Call<'_, '_>) -> Outcome,
}

impl Command {
    /// The rights that it takes.
    pub(super) fn rights(&self) -> Rights {
        let is = |flag| self.flags.contains(&flag);
        let rights = [
            (is("readonly") || is("reveals"), Rights::READ),
            (is("write"), Rights::RECORD),
            (is("operate"), Rights::OPERATE),
        ];
        rights.into_iter().filter(|(is, _)| *is).fold(Rights::NONE, |all, (_, right)| all.and(right))
    }

    /// Whether whoever has these rights may give it. What shows a redacted reader less is asked of [`Session::is_redacted`](super::session::Session::is_redacted).
    pub(super) fn is_allowed(&self, rights: Rights) -> bool {
        let is = |flag| self.flags.contains(&flag);
        rights.include(self.rights())
            || is("redacts") && rights.include(Rights::REDACTED)
            || is("both") && rights.include(Rights::READ)
    }
}

/// A command on one key, whose group is said by [`in_group`].
pub(super) const fn command(
    name: &'static str,
    arity: i32,
    flags: &'static [&'static str],
    since: &'static str,
    summary: &'static str,
    arguments: &'static str,
    run: fn(&mut Call<'_, '_>) -> Outcome,
) -> Command {
    Command { name, arity, flags, keys: (1, 1, 1), group: "", since, summary, arguments, run }
}

/// Commands of one group.
pub(super) const fn in_group<const N: usize>(
    group: &'static str,
    mut commands: [Command; N],
) -> [Command; N] {
    let mut at = 0;
    while at < N {
        commands[at].group = group;
        at += 1;
    }
    commands
}

/// Commands by their names.
#[derive(Debug)]
pub(super) struct Table(HashMap<&'static str, &'static Command, RandomState>);

/// The longest name of a command.
const NAME_BYTES_MAX: usize = 32;

impl Table {
    pub(super) fn new() -> Self {
        Self(all().map(|command| (command.name, command)).collect())
    }

    /// The command of this name, in whatever letters.
    pub(super) fn find(&self, name: &[u8]) -> Option<&'static Command> {
        let mut small = [0; NAME_BYTES_MAX];
        let small = small.get_mut(..name.len())?;
        small.copy_from_slice(name);
        small.make_ascii_lowercase();
        self.0.get(std::str::from_utf8(small).ok()?).copied()
    }
}

/// Every command, group by group.
pub(super) fn all() -> impl Iterator<Item = &'static Command> {
    commands::GROUPS.iter().copied().flatten()
}

/// Why a command of Redis is not offered, where that is worth saying.
pub(super) fn refused(name: &[u8]) -> Option<&'static str> {
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
    use super::{Table, all, refused};

    #[test]
    fn names_are_unique_and_found_in_any_letters() {
        let table = Table::new();
        assert_eq!(table.0.len(), all().count());
        for command in all() {
            assert_eq!(table.find(command.name.to_uppercase().as_bytes()).unwrap().name, command.name);
            assert!(refused(command.name.as_bytes()).is_none(), "{}", command.name);
            assert!(!command.summary.is_empty() && command.name == command.name.to_lowercase());
        }
        assert!(
            table.find(b"no").is_none()
                && table.find(&[b'x'; 100]).is_none()
                && table.find(b"\xff").is_none()
        );
        assert!(refused(b"Watch").is_some() && refused(b"nothing").is_none());
    }
}
